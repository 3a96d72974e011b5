"""benches/rebalance without a broker and without Java: what members say, and what is made of it."""

import contextlib
import io
import json
import tempfile
import types
import unittest
from pathlib import Path
from unittest import mock

from lib import brokers, host, members, rows, runner, side, tables, wire

S = 1_000_000_000
ROWS = members.rows_of(None)
BENCH = side.Bench("rebalance", "a client", "{reps}")


def ledger(partitions, *lines):
    made = members.Ledger(partitions)
    for line in lines:
        made.take(members.parse(line + "\n"))
    return made


class Lines(unittest.TestCase):
    def test_a_line_is_an_event_with_its_time_and_partitions(self):
        """Lost if it fails: who has what is read wrongly, and every figure with it."""
        self.assertEqual(members.parse("assigned a-7 12 3,40\n"), members.Event("assigned", "a-7", 12, (3, 40)))
        self.assertEqual(members.parse("revoked a-7 12 -\n"), members.Event("revoked", "a-7", 12, ()))
        self.assertEqual(members.parse("went a 12\n"), members.Event("went", "a", 12, ()))

    def test_a_consumer_that_fails_ends_the_run_with_its_reason(self):
        """Lost if it fails: a group of 99 is waited for until the patience is over, and nobody knows why."""
        with self.assertRaisesRegex(members.Failed, "a-7: .*UnsupportedVersion"):
            members.parse("failed a-7 org.apache.kafka.common.errors.UnsupportedVersionException: no such protocol\n")

    def test_an_event_that_is_not_known_is_refused(self):
        """Lost if it fails: what the Java side says newly is silently left out."""
        with self.assertRaises(members.Failed):
            ledger(1, "paused a-0 1 0")


class Whole(unittest.TestCase):
    def test_a_group_is_whole_when_each_partition_is_read_by_its_one_owner(self):
        """Lost if it fails: a group counts as settled while partitions lie idle."""
        lines = ["assigned a-0 1 0,1", "assigned a-1 2 2", "read a-0 3 0", "read a-0 4 1"]
        self.assertFalse(ledger(3, *lines).is_whole(2))
        whole = ledger(3, *lines, "read a-1 5 2")
        self.assertTrue(whole.is_whole(2))
        self.assertFalse(whole.is_whole(3), "a third member has nothing")
        self.assertEqual((whole.changed_ns, whole.last_read_ns(range(3)), whole.most()), (2, 5, 2))

    def test_two_owners_of_a_partition_are_no_whole_group(self):
        """Lost if it fails: the middle of a rebalance counts as its end."""
        self.assertFalse(ledger(1, "assigned a-0 1 0", "assigned a-1 2 0", "read a-0 3 0").is_whole(2))

    def test_who_got_a_partition_back_has_to_read_it_again(self):
        """Lost if it fails: a stop-the-world rebalance takes no time at all."""
        lines = ["assigned a-0 1 0", "read a-0 2 0", "revoked a-0 3 -", "assigned a-0 4 0"]
        self.assertFalse(ledger(1, *lines).is_whole(1))
        self.assertTrue(ledger(1, *lines, "read a-0 9 0").is_whole(1))

    def test_an_assignment_that_changes_nothing_is_no_change(self):
        """Lost if it fails: a group never becomes quiet, since its members are told the same again and again."""
        told = ledger(1, "assigned a-0 1 0", "assigned a-0 50 0")
        self.assertEqual((told.changes, told.changed_ns), (1, 1))


class Loss(unittest.TestCase):
    HAVE = ("assigned k-0 1 0", "assigned a-0 1 1", "assigned a-1 1 2")
    BEFORE = (*HAVE, "read k-0 2 0", "read a-0 2 1", "read a-1 2 2")

    def test_what_a_killed_member_had_is_read_again_when_another_one_does(self):
        """Lost if it fails: the dead member's own last record counts as the recovery."""
        made = ledger(3, *self.BEFORE)
        self.assertEqual(made.gone("k-0", 10), {0})
        self.assertFalse(made.is_read({0}, 10, "k-0"))
        made.take(members.parse("assigned a-0 16 0,1"))
        self.assertFalse(made.is_read({0}, 10, "k-0"), "assigned is not read")
        made.take(members.parse("read a-0 17 0"))
        self.assertTrue(made.is_read({0}, 10, "k-0"))
        self.assertTrue(made.is_whole(2))

    def test_the_pause_of_the_others_is_from_the_loss_of_a_partition_to_its_next_record(self):
        """Lost if it fails: a protocol that stops everybody looks like one that stops nobody."""
        made = ledger(3, *self.BEFORE)
        lost = made.gone("k-0", 10)
        for line in ("revoked a-0 16 -", "revoked a-1 16 -", "assigned a-0 18 0,1", "assigned a-1 18 2"):
            made.take(members.parse(line))
        for line in ("read a-0 19 1", "read a-1 21 2", "read a-0 22 0"):
            made.take(members.parse(line))
        self.assertEqual(made.longest_pause_ns(lost), 5)

    def test_who_keeps_its_partitions_has_no_pause(self):
        """Lost if it fails: the pauses of the rebalance before are those of this one."""
        made = ledger(2, "assigned a-0 1 0", "read a-0 2 0", "revoked a-0 3 -", "assigned a-0 4 0", "read a-0 5 0")
        self.assertEqual(made.longest_pause_ns(set()), 2)
        made.forget_pauses()
        self.assertEqual(made.longest_pause_ns(set()), 0)

    def test_a_leave_is_counted_from_when_the_consumer_is_closed(self):
        """Lost if it fails: the time that a thread takes to notice that it is to leave is the broker's."""
        self.assertEqual(ledger(1, "leaving l-0 77").leaving, {"l-0": 77})


class Script:
    """Stands in for a JVM: answers each command with lines that are written beforehand."""

    def __init__(self, name, lines, answers):
        self.name, self.lines, self.answers, self.killed = name, lines, answers, False
        self.log = Path("/dev/null")

    def tell(self, *words):
        for line in self.answers.pop(" ".join(map(str, words)), ()):
            self.lines.put((self, line + "\n"))

    def said(self):
        return ""

    def kill(self):
        self.killed = True


def cast_of(partitions, **answers):
    cast = members.Cast(None, None, "classic", "t", partitions)
    jvm = Script("a", cast.lines, {key.replace("_", " "): lines for key, lines in answers.items()})
    cast.jvms.append(jvm)
    return cast, jvm


class Casts(unittest.TestCase):
    def test_events_between_a_question_and_its_answer_are_taken(self):
        """Lost if it fails: the first assignments, which come before the answer is read, are never seen."""
        cast, jvm = cast_of(1, go=["assigned a-0 5 0", "went a 4", "read a-0 6 0"])
        self.assertEqual(cast.ask(jvm, "went", "go"), 4)
        cast.stable(1, 0.0)
        self.assertEqual(cast.ledger.reads, {0: ("a-0", 6)})

    def test_a_process_that_ends_by_itself_fails_the_run_and_one_that_was_killed_does_not(self):
        """Lost if it fails: half of a group is gone, and what the rest does is the figure; or a loss is an error."""
        cast, jvm = cast_of(1)
        cast.lines.put((jvm, None))
        with self.assertRaises(members.Failed):
            cast.listen(0)
        jvm.killed = True
        cast.lines.put((jvm, "read a-0 1"))
        cast.lines.put((jvm, None))
        cast.listen(0)
        self.assertEqual(cast.ledger.reads, {})

    def test_patience_is_bounded(self):
        """Lost if it fails: a broker that never assigns holds up the bench for good."""
        cast, _ = cast_of(1)
        with self.assertRaisesRegex(members.Failed, "never within 0 s; 0 members have partitions"):
            cast.until(lambda: False, "never", seconds=0)


class Topic(unittest.TestCase):
    def made(self, errors):
        """The partitions that a record was sent to, of a broker that answers with these errors."""
        sent, answers = [], iter(errors)
        conn = mock.MagicMock()
        conn.__enter__.return_value.produce = lambda _topic, _value, to: (sent.append(to), next(answers))[1]
        with mock.patch.multiple(wire, make_topic=mock.DEFAULT, Conn=mock.Mock(return_value=conn)):
            members.topic_of(types.SimpleNamespace(address="none"), 2)
        return sent

    def test_a_leader_that_does_not_know_it_yet_is_asked_again(self):
        """Lost if it fails: every run on Kafka ends before it begins."""
        self.assertEqual(self.made([6, 3, 0, 0]), [0, 0, 0, 1])

    def test_another_error_ends_the_run(self):
        """Lost if it fails: partitions without a record, of which nobody ever says that they are read."""
        with self.assertRaisesRegex(members.Failed, "partition 1 was refused with error 87"):
            self.made([0, 87])


class Rows(unittest.TestCase):
    def test_figures_are_of_the_second_group_and_missing_ones_are_none(self):
        """Lost if it fails: the cold group, with Kafka's making of its topic, is the figure; or a gap is a zero."""
        extra = {"warm": {"stable_s": 9.0}, "measured": {"stable_s": 3.2, "read_s": 3.4}}
        run = rows.Run({"extra": extra})
        found = {figure.key: figure.of(run) for figure in ROWS[0].figures}
        self.assertEqual((found["stable"], found["read"], found["cold"], found["changes"]), (3.2, 3.4, 9.0, None))
        for row in ROWS:
            self.assertEqual(len({f.key for f in row.figures}), len(row.figures))
            self.assertTrue(all(f.of(rows.Run({})) is None for f in row.figures))

    def test_both_protocols_have_the_same_timeouts(self):
        """Lost if it fails: one protocol is quicker since it was allowed to miss a member sooner."""
        serve = dict(setting.split("=") for setting in members.SERVE_CONSUMER)
        self.assertEqual(serve["group.consumer.session.timeout.ms"], str(members.SESSION_MS))
        self.assertEqual(serve["group.consumer.heartbeat.interval.ms"], str(members.HEARTBEAT_MS))
        by_name = {row.name: row for row in ROWS}
        self.assertEqual(by_name["leave_consumer"].serve, members.SERVE_CONSUMER)
        self.assertEqual([by_name[name].serve for name in ("join_classic", "join_consumer", "leave_classic")], [()] * 3)

    def test_quick_leaves_enough_members_to_lose_two(self):
        """Lost if it fails: the smoke test of a small group waits for a group of nobody."""
        context = types.SimpleNamespace(scaled=lambda n: max(1, n // 10))
        self.assertEqual(members.sizes(context, {"members": 100, "partitions": 200}), (10, 20))
        self.assertEqual(members.sizes(context, {"members": 10, "partitions": 10}), (3, 3))

    def test_rows_are_chosen_by_name_and_by_kind(self):
        """Lost if it fails: --rows measures something else."""
        self.assertEqual([r.name for r in side.chosen(ROWS, "join")], ["join_classic", "join_consumer"])
        self.assertEqual(side.chosen(ROWS, ""), ROWS)
        with self.assertRaises(ValueError):
            side.chosen(ROWS, "joi")

    def test_a_rows_settings_reach_its_broker(self):
        """Lost if it fails: a group of KIP-848 is measured with the session timeout of a shop's default, 45 s."""
        asked = []

        class System:
            name, title = "camus", "fake"

            def broker(self, directory, more=()):
                asked.append(more)
                return brokers.Broker(self.name, Path(directory), ["sleep", "600"], 1, lambda _: True)

        quiet = {"reps": 1, "pause_s": 0.0, "say": lambda _: None, "busy_max": 1e9, "steal_max": 1e9, "disk_bytes": 0}
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "data").mkdir()
            options = runner.Options(Path("none"), Path(folder) / "data", Path(folder) / "out", **quiet)
            seen = []
            keep = {"action": lambda *words: seen.append(words), "settings": {"a": 1}, "serve": ("k=v",)}
            row = rows.Row("x", "x", (), (), **keep)
            done = runner.run_row(options, row, [System()])
        self.assertEqual((asked, [words[2] for words in seen]), ([("k=v",)], [{"a": 1}]))
        self.assertIsNone(done[0]["failed"])


class Section(unittest.TestCase):
    def records(self):
        base = {"set_aside": False, "failed": None, "skipped": {}, "steps": {}, "extra": {}, "commands": []}
        base |= {"busy": None, "busy_share": 0.0, "steal_share": 0.0, "load_before": 0.1, "repetition": 0}
        return [
            base | {"row": "join_classic", "system": system, "figures": {"stable": value}}
            for system, values in (("camus", (3.1, 3.2, 3.0)), ("kafka", (3.4, 3.3, 3.9)))
            for value in values
        ]

    def about(self, folder):
        about = {"started": "now", "host": host.describe(folder), "systems": {"camus": "fake", "kafka": "fake"}}
        return about | {"reps": 3, "seconds": 0.0, "warmup": 0.0, "busy_max": 0.1, "steal_max": 0.1, "quick": False}

    def test_the_section_has_medians_and_spread_of_each_system(self):
        """Lost if it fails: an hour of runs without a table."""
        with tempfile.TemporaryDirectory() as folder:
            text = side.section(BENCH, self.records(), ROWS[:1], self.about(folder))
        line = "| until no assignment changes any more, s | 3.10 (3.00 .. 3.20) | 3.40 (3.30 .. 3.90) |"
        self.assertIn(line, text)
        self.assertIn("| client | a client |", text)
        self.assertEqual([n for n in text.splitlines() if len(n) > 120 and not n.startswith("|")], [])

    def test_the_page_of_the_house_has_markers_for_this_section_and_the_other_ones_stay(self):
        """Lost if it fails: an hour of runs ends in an error, or in the place of other figures."""
        page = side.PAGE.read_text()
        got = tables.between_markers(page, "new figures", BENCH.begin, BENCH.end)
        self.assertIn(f"{BENCH.begin}\n\nnew figures\n\n{BENCH.end}", got)
        self.assertEqual(page.partition(BENCH.begin)[0], got.partition(BENCH.begin)[0])
        self.assertEqual(page.partition(BENCH.end)[2], got.partition(BENCH.end)[2])
        self.assertIn("new figures", tables.between_markers(got, "others"))

    def test_results_become_a_section_and_a_page(self):
        """Lost if it fails: figures can not be made again from what was measured."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for record in self.records():
                path = folder / "raw" / record["row"] / f"{record['system']}-{record['figures']['stable']}.json"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(record))
            (folder / "about.json").write_text(json.dumps(self.about(folder)))
            page = folder / "page.md"
            page.write_text(f"ours\n{BENCH.begin}\nstale figures\n{BENCH.end}\nours too\n")
            with contextlib.redirect_stdout(io.StringIO()):
                side.write(BENCH, types.SimpleNamespace(docs=page), ROWS, folder)
            text = page.read_text()
            self.assertTrue(text.startswith("ours\n") and text.endswith("\nours too\n"))
            self.assertIn("### join_classic", text)
            self.assertNotIn("stale figures", text)
            self.assertEqual(len(json.loads((folder / "benchmarks" / "rebalance.json").read_text())), 6)


if __name__ == "__main__":
    unittest.main()
