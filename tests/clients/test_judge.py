"""The judge itself, without a broker and without clients: it finds what it is there to find."""

import re
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace

import clients
import matrix
from process import Failure, parts, words
from scenarios import SCENARIOS, Case, as_sent, none_after_its_commit, shared


def case(**more):
    client = SimpleNamespace(**{"reports": True, "places": True, "hides": (), "lacks": {}, "patience": 1.0, **more})
    return Case(client, None, "t", None, 10)


def record(number, partition=0, offset=None, shape="plain", **more):
    made = {"partition": partition, "offset": number if offset is None else offset, **as_sent(number, shape)}
    return {**made, **more}


def member(*events):
    return SimpleNamespace(events=[{"at_s": float(at), **event} for at, event in enumerate(events)])


class Judge(unittest.TestCase):
    def test_a_record_that_is_missing_changed_or_out_of_order_is_found(self):
        acked = {0: (0, 0), 1: (0, 1)}
        case().read_back([record(0), record(1)], acked)
        for came in (
            [record(0)],
            [record(1), record(0)],
            [record(0), record(1), record(2)],
            [record(0), record(1, value="2")],
            [record(0), record(1, key="key-1")],
            [record(0), record(1, headers={"n": "1"})],
        ):
            with self.assertRaises(Failure):
                case().read_back(came, acked)

    def test_null_and_empty_values_are_told_apart(self):
        mixed = record(3, offset=0, shape="mixed")
        self.assertIsNone(mixed["value"])
        case().read_back([mixed], {3: (0, 0)}, "mixed")
        with self.assertRaises(Failure):
            case().read_back([{**mixed, "value": "", "size": 0, "crc": 0}], {3: (0, 0)}, "mixed")

    def test_an_acknowledgement_that_is_missing_double_or_elsewhere_is_found(self):
        good = [{"record": n, "partition": n % 2, "offset": n // 2} for n in range(4)]
        self.assertEqual(len(case().acknowledged(good, range(4), 2)), 4)
        for bad in (
            good[:3],
            [*good[:3], {"record": 3, "failed": "x"}],
            [*good[:3], {"record": 3, "partition": 1, "offset": 0}],
            [*good[:3], {"record": 3, "partition": 0, "offset": 9}],
        ):
            with self.assertRaises(Failure):
                case().acknowledged(bad, range(4), 2)

    def test_a_record_that_comes_again_after_its_commit_is_found(self):
        one, commit = {"partition": 0, "offset": 0}, {"committed": {"0": 1}}
        self.assertEqual(none_after_its_commit([member(one, one, commit)]), 1)
        with self.assertRaises(Failure):
            none_after_its_commit([member(one, commit, one)])

    def test_members_that_own_the_same_or_leave_something_out_do_not_share(self):
        a, b = member({"assigned": [0, 1]}), member({"assigned": [2, 3]})
        self.assertTrue(shared([a, b], 4))
        for other in ([1, 2, 3], [2], []):
            self.assertFalse(shared([a, member({"assigned": other})], 4))
        self.assertFalse(shared([a, member()], 4))

    def test_what_verbs_say_is_told_apart(self):
        verbs = [("create", {"topic": "t", "time": None}), ("consume", {"count": 1})]
        self.assertEqual(words(*verbs), ["create", "topic=t", "then", "consume", "count=1"])
        program = SimpleNamespace(verbs=verbs, events=[{"end": "create"}, {"offset": 0}, {"end": "consume"}])
        self.assertEqual(parts(program), [[], [{"offset": 0}]])

    def test_every_reason_for_leaving_out_belongs_to_something(self):
        verbs = {"delete_offsets", "delete_group", "delete_records", "grow", "alter", "config", "delete", "group"}
        for client in clients.every():
            self.assertLessEqual(set(client.lacks), set(SCENARIOS) | verbs | set(clients.CODECS), client.name)
            self.assertLessEqual(set(client.also), set(SCENARIOS), client.name)
            self.assertTrue(all((clients.HERE / source).exists() for source in client.sources), client.name)

    def test_the_page_names_scenarios_and_clients_that_are_there_and_has_a_place_for_the_matrix(self):
        page = (clients.ROOT / "docs" / "compatibility.md").read_text()
        self.assertLessEqual(set(re.findall(r"--scenario (\w+)", page)), set(SCENARIOS))
        self.assertLessEqual(set(re.findall(r"--client ([\w-]+)", page)), {c.name for c in clients.every()})
        self.assertEqual((page.count(matrix.BEGIN), page.count(matrix.END)), (1, 1))

    def test_the_matrix_lies_between_its_marks_and_nowhere_else(self):
        client = SimpleNamespace(name="c", title="c 1")
        results = {("c", "seek"): ("ok", []), ("c", "acks"): ("FAILED", []), ("c", "codecs"): ("skipped", ["has none"])}
        results["c", "admin_topics"] = "ok", ["has no y", "has none"]
        lines = matrix.table(results, [client], ["seek", "acks", "codecs", "admin_topics", "kill_9"], "camus 1")
        self.assertIn("| c 1 | yes | **no** | 1 | yes 2 1 |  |", lines)
        self.assertIn("1. has none", lines)
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / "page.md"
            page.write_text(f"a\n{matrix.BEGIN}\nold\n{matrix.END}\nb\n")
            matrix.write(page, lines)
            text = page.read_text()
            self.assertTrue(text.startswith(f"a\n{matrix.BEGIN}\n") and text.endswith(f"{matrix.END}\nb\n"))
            self.assertNotIn("old", text)
            page.write_text("no marks")
            with self.assertRaises(SystemExit):
                matrix.write(page, lines)


if __name__ == "__main__":
    unittest.main()
