"""benches/vs-kafka without a broker: what it counts, what it sets aside, what it says."""

import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from lib import brokers, host, rows, runner, tables, wire

HERE = Path(__file__).resolve().parent


class FakeSystem:
    """A process that only sleeps, as a broker."""

    title = "fake"

    def __init__(self, name):
        self.name = name

    def broker(self, directory):
        return brokers.Broker(self.name, Path(directory), ["sleep", "600"], 1, lambda _: True)


def options(folder, **more):
    base = Path(folder)
    (base / "data").mkdir()
    settings = {"seconds": 1.0, "warmup": 0.0, "reps": 2, "say": lambda _: None, "pause_s": 0.0}
    settings |= {"busy_max": 1e9, "steal_max": 1e9}
    return runner.Options(HERE / "fake_camus.py", base / "data", base / "out", **(settings | more))


def record(row, system, figures, repetition=0, **more):
    base = {"row": row, "system": system, "figures": figures, "repetition": repetition, "set_aside": False}
    base |= {"failed": None, "skipped": {}, "steps": {}, "extra": {}}
    base |= {"busy": None, "busy_share": 0.0, "steal_share": 0.0, "load_before": 0.1}
    return base | more


class Turns(unittest.TestCase):
    def test_nobody_is_always_the_first(self):
        """Lost if it fails: who comes after a heavy system pays for it in every repetition."""
        self.assertEqual([runner.order("ABC", n) for n in range(4)], [[*"ABC"], [*"BCA"], [*"CAB"], [*"ABC"]])

    def test_every_system_is_run_as_often_on_a_directory_that_goes(self):
        """Lost if it fails: the disk fills, or one system has a run more to be lucky in."""
        with tempfile.TemporaryDirectory() as folder:
            chosen = options(folder)
            done = runner.run_row(chosen, rows.SINGLE, [FakeSystem("camus"), FakeSystem("kafka")])
            self.assertEqual([r["system"] for r in done], ["camus", "kafka", "kafka", "camus"])
            self.assertEqual([r["failed"] for r in done], [None] * 4)
            self.assertEqual(list(chosen.directory.iterdir()), [])
            self.assertEqual(len(runner.load(chosen.out)), 4)

    def test_a_row_that_is_measured_again_replaces_what_was_there(self):
        """Lost if it fails: medians of two days, or of two builds."""
        with tempfile.TemporaryDirectory() as folder:
            chosen = options(folder)
            systems = [FakeSystem("camus"), FakeSystem("kafka"), FakeSystem("kafka-fsync")]
            runner.run_row(chosen, rows.SINGLE, systems)
            chosen.reps = 1
            runner.run_row(chosen, rows.SINGLE, systems[:2])
            left = [(r["system"], r["repetition"]) for r in runner.load(chosen.out)]
        self.assertEqual(left, [("camus", 0), ("kafka", 0), ("kafka-fsync", 0), ("kafka-fsync", 1)])

    def test_a_step_gets_the_pid_the_data_and_the_floor_of_its_run(self):
        """Lost if it fails: a row without its floor, or with the figures of another process."""
        with tempfile.TemporaryDirectory() as folder:
            done = runner.run_row(options(folder, reps=1), rows.SINGLE, [FakeSystem("camus")])
            asked = done[0]["steps"]["steady"]["settings"]
            self.assertTrue(int(asked["--broker-pid"]) > 1)
            self.assertTrue(asked["--data-dir"].startswith(asked["--floor-dir"]))
            self.assertEqual((asked["--in-flight"], asked["--record-bytes"]), ("1", "1024"))
            self.assertEqual(asked["--duration-s"], "1")

    def test_a_bench_that_fails_is_a_failed_run_and_the_others_go_on(self):
        """Lost if it fails: four hours of runs end at the first broker that does not start."""
        bad = rows.Row("bad", "bad", (), (), steps=(rows.Step("steady", "produce", ("--topic", "fails")),))
        with tempfile.TemporaryDirectory() as folder:
            done = runner.run_row(options(folder, reps=1), bad, [FakeSystem("camus"), FakeSystem("kafka")])
        self.assertEqual([r["system"] for r in done], ["camus", "kafka"])
        self.assertTrue(all("it was told to fail" in r["failed"] for r in done), done)


class Disturbed(unittest.TestCase):
    def runs(self, shares, repeats=3, what="busy_share"):
        """What is kept of runs during which others used so much."""
        with tempfile.TemporaryDirectory() as folder:
            chosen = options(folder, busy_max=0.1, steal_max=0.1, repeats_max=repeats)
            left = list(shares)

            def run(_options, row, system, repetition, attempt):
                busy = {"names": ["cc1 1.0 s"]}
                made = record(row.name, system.name, {}, repetition, busy=busy, **{what: left.pop(0)})
                return made | {"attempt": attempt}, Path(folder) / f"{attempt}.json"

            done = runner.with_repeats(chosen, rows.SINGLE, FakeSystem("camus"), 0, run)
            return [(r[what], r["set_aside"], r.get("disturbed", False)) for r in done]

    def test_a_run_with_another_process_busy_is_set_aside_and_repeated(self):
        """Lost if it fails: a compiler in the background is published as a broker's latency."""
        self.assertEqual(self.runs([0.5, 0.05, 0.01]), [(0.5, True, False), (0.05, False, False)])

    def test_a_run_that_the_hypervisor_kept_the_cpus_from_is_set_aside_and_repeated(self):
        """Lost if it fails: a neighbour's load is published as a broker's latency."""
        self.assertEqual(self.runs([0.5, 0.05], what="steal_share"), [(0.5, True, False), (0.05, False, False)])

    def test_repeats_are_bounded_and_the_least_disturbed_run_stays_and_says_so(self):
        """Lost if it fails: on a busy host the command never ends, or ends with nothing."""
        want = [(0.5, True, False), (0.2, False, True), (0.4, True, False)]
        self.assertEqual(self.runs([0.5, 0.2, 0.4, 0.0], repeats=2), want)

    def test_what_is_set_aside_does_not_count_and_is_listed(self):
        """Lost if it fails: the median is of runs that nobody should trust."""
        busy = {"names": ["cc1 1.0 s"]}
        records = [
            record("single", "camus", {"p50": 1.0}),
            record("single", "camus", {"p50": 9.0}, set_aside=True, busy=busy, busy_share=0.5),
        ]
        self.assertEqual(tables.Medians(records).of("single", "camus", "p50"), tables.Spread(1.0, 1.0, 1.0, 1))
        listed = tables.set_aside(records)
        self.assertIn("cc1 1.0 s", listed)
        self.assertIn("50% and 0% of a core", listed)


STAT = "cpu  {user} 0 0 1000 0 0 0 {steal} 0 0\n"


def proc(folder, user, steal, processes):
    """A /proc of our own; `processes`: pid -> (name, parent, own ticks, children's ticks)."""
    (folder / "stat").write_text(STAT.format(user=user, steal=steal))
    for entry in folder.iterdir():
        if entry.is_dir():
            (entry / "stat").unlink()
            entry.rmdir()
    for pid, (name, parent, own, children) in processes.items():
        (folder / str(pid)).mkdir()
        (folder / str(pid) / "stat").write_text(
            f"{pid} ({name}) S {parent} 1 1 0 -1 0 0 0 0 0 {own} 0 {children} 0 20 0 1 0 0 0 0"
        )


class Others(unittest.TestCase):
    def between(self, before, after):
        with tempfile.TemporaryDirectory() as name:
            folder, times = Path(name), iter([0.0, 10.0])
            proc(folder, *before)
            watch = host.Watch(lambda: [100], proc=str(folder), clock=lambda: next(times))
            proc(folder, *after)
            return watch.end()

    def test_our_broker_and_client_are_not_others(self):
        """Lost if it fails: every run under load is set aside."""
        us = {100: ("vs-kafka", 1, 0, 0), 101: ("camus) odd", 100, 0, 0)}
        then = {100: ("vs-kafka", 1, 10, 500), 101: ("camus) odd", 100, 900, 0)}
        busy = self.between((0, 0, us), (1410, 0, then))
        self.assertEqual((busy.processes_s, busy.stat_s, busy.share()), (0.0, 0.0, 0.0))

    def test_a_compiler_that_came_and_went_is_found_in_the_account_of_its_parent(self):
        """Lost if it fails: many short processes take a core and none is seen at the end."""
        us, shell = ("vs-kafka", 1, 0, 0), ("make", 1, 0, 0)
        then = {100: us, 7: ("make", 1, 5, 395)}
        busy = self.between((0, 0, {100: us, 7: shell}), (400, 0, then))
        self.assertEqual(busy.processes_s, 4.0)
        self.assertEqual(busy.names, ["make 4.0 s"])
        self.assertAlmostEqual(busy.share(), 0.4)

    def test_what_a_process_used_before_is_not_charged_to_who_waited_for_it(self):
        """Lost if it fails: a long build that ends during a run sets it aside, under the name of a shell."""
        us, shell = ("vs-kafka", 1, 0, 0), ("bash", 1, 0, 0)
        before = {100: us, 7: shell, 8: ("cargo", 7, 50, 0), 9: ("rustc", 8, 9000, 0)}
        busy = self.between((0, 0, before), (20, 0, {100: us, 7: ("bash", 1, 0, 9070)}))
        self.assertEqual((busy.processes_s, busy.names), (0.2, ["bash 0.2 s"]))

    def test_time_that_no_process_accounts_for_is_somebodys(self):
        """Lost if it fails: the container next door is not seen."""
        us = {100: ("vs-kafka", 1, 0, 0)}
        self.assertEqual(self.between((0, 0, us), (300, 0, us)).stat_s, 3.0)
        self.assertAlmostEqual(self.between((0, 0, us), (0, 250, us)).steal_share(), 0.25)

    def test_the_kernels_own_threads_are_told_apart(self):
        """Lost if it fails: our own write-back sets our runs aside."""
        before = {100: ("vs-kafka", 1, 0, 0), 2: ("kthreadd", 0, 0, 0), 9: ("kworker/0:1", 2, 0, 0)}
        after = {100: ("vs-kafka", 1, 0, 0), 2: ("kthreadd", 0, 0, 0), 9: ("kworker/0:1", 2, 200, 0)}
        busy = self.between((0, 0, before), (200, 0, after))
        self.assertEqual((busy.kernel_s, busy.share()), (2.0, 0.0))


class Figures(unittest.TestCase):
    def run_of(self, row):
        with tempfile.TemporaryDirectory() as folder:
            return runner.run_row(options(folder, reps=1), row, [FakeSystem("camus")])[0]["figures"]

    def test_the_floor_is_that_of_the_same_run_before_and_after(self):
        """Lost if it fails: a bar relative to the floor is met by a floor of another hour."""
        found = self.run_of(rows.SINGLE)
        self.assertAlmostEqual(found["floor_p50"], 0.110)
        self.assertAlmostEqual(found["p50_over_floor"], 40.0)
        self.assertAlmostEqual(found["p99_of_floor"], 1.5)
        self.assertAlmostEqual(self.run_of(rows.BY_NAME["load_8"])["of_floor"], 90.0)

    def test_end_to_end_is_beyond_the_produce_latency_of_the_same_run(self):
        """Lost if it fails: the consumer's part is hidden in the producer's."""
        found = self.run_of(rows.E2E)
        self.assertAlmostEqual(found["beyond_p50"], 0.05)
        self.assertAlmostEqual(found["beyond_p99"], 0.05)

    def test_the_first_seconds_are_measured_without_warm_up(self):
        """Lost if it fails: a collapse in the first seconds of a topic is called warm-up."""
        step = rows.BY_NAME["open_256"].steps[0].words(20, 3)
        self.assertEqual(step[step.index("--warmup-s") + 1], "0")
        self.assertEqual(step[step.index("--duration-s") + 1], "5")
        self.assertAlmostEqual(self.run_of(rows.BY_NAME["open_256"])["first_worst"], 0.404)

    def test_a_figure_that_was_not_measured_is_none_and_no_zero(self):
        """Lost if it fails: a bar is held by what was never measured."""
        run = rows.Run({"steps": {"steady": {"device": None}}, "extra": {}})
        self.assertTrue(all(figure.of(run) is None for row in rows.ROWS for figure in row.figures))
        medians = tables.Medians([record("single", "camus", {"p50_over_floor": None})])
        self.assertIsNone(tables.judge(medians, rows.SINGLE, rows.SINGLE.bars[0]).held)

    def test_every_bar_is_about_a_figure_of_its_row(self):
        """Lost if it fails: a bar that is never judged."""
        for row in rows.ROWS:
            keys = {figure.key for figure in row.figures}
            self.assertEqual(len(keys), len(row.figures), row.name)
            self.assertTrue({bar.figure for bar in row.bars} <= keys, row.name)
            self.assertTrue(bool(row.steps) != bool(row.action), row.name)
            for bar in row.bars:
                self.assertEqual((bar.at_most is None) + (bar.at_least is None), 1, bar)
                self.assertTrue(all(name in rows.BY_NAME for name in bar.rows), bar)


class Verdicts(unittest.TestCase):
    def test_a_bar_beside_a_number_and_beside_another_system(self):
        """Lost if it fails: the page says that a bar holds that does not."""
        single = {bar.text: bar for bar in rows.SINGLE.bars}
        records = [
            record("single", "camus", {"p50_over_floor": v, "p50": v / 100, "flushes": 2.0}) for v in (40, 50, 90)
        ] + [record("single", "kafka-fsync", {"p50": 1.0})]
        medians = tables.Medians(records)

        def held(text):
            return tables.judge(medians, rows.SINGLE, single[text])

        self.assertTrue(held("p50 <= floor p50 + 60 us").held)
        self.assertFalse(held("p50 at least 3 x lower than Kafka's with an fsync").held)
        missed = held("flushes a request <= 1.05")
        self.assertFalse(missed.held)
        self.assertEqual(missed.text, "**missed by 0.950 (90.5%)**: 2.00, limit 1.05")
        self.assertIsNone(held("p99 at least 3 x lower than Kafka's with an fsync").held)

    def test_a_bar_that_is_missed_by_little_says_by_how_little(self):
        """Lost if it fails: the page says "missed: 1.05, limit 1.05"."""
        medians = tables.Medians([record("single", "camus", {"flushes": 1.0532})])
        bar = next(bar for bar in rows.SINGLE.bars if bar.figure == "flushes")
        self.assertEqual(tables.judge(medians, rows.SINGLE, bar).text, "**missed by 0.003 (0.3%)**: 1.0532, limit 1.05")

    def test_rows_within_a_factor_of_each_other_are_held_against_the_least(self):
        """Lost if it fails: a p99 that grows with the partitions is compared with itself."""
        records = [record(f"open_{n}", "camus", {"p99": p99}) for n, p99 in [(1, 1.2), (16, 1.0), (256, 1.4)]]
        medians = tables.Medians(records)
        results = {}
        for name in ("open_1", "open_256"):
            row = rows.BY_NAME[name]
            bar = next(bar for bar in row.bars if "each other" in bar.text)
            results[name] = tables.judge(medians, row, bar).held
        self.assertEqual(results, {"open_1": True, "open_256": False})
        alone = tables.Medians(records[:1])
        bar = next(bar for bar in rows.BY_NAME["open_1"].bars if "each other" in bar.text)
        self.assertIsNone(tables.judge(alone, rows.BY_NAME["open_1"], bar).held)

    def test_numbers_have_three_digits(self):
        """Lost if it fails: 0.13 ms reads as 0, or a rate as 1234.5678."""
        shown = [tables.number(v) for v in (0.1304, 1.234, 12.34, 1234.5, 0, None)]
        self.assertEqual(shown, ["0.130", "1.23", "12.3", "1,234", "0", "-"])
        self.assertEqual(tables.cell(tables.Spread(1.0, 0.5, 2.0, 5)), "1.00 (0.500 .. 2.00)")


class Page(unittest.TestCase):
    def test_what_stands_around_the_markers_stays(self):
        """Lost if it fails: the conditions that people wrote are overwritten by the script."""
        text = f"ours\n{tables.BEGIN}\nold\n{tables.END}\nours too\n"
        got = tables.between_markers(text, "new")
        self.assertEqual(got, f"ours\n{tables.BEGIN}\n\nnew\n\n{tables.END}\nours too\n")
        self.assertEqual(tables.between_markers(got, "new"), got)
        with self.assertRaises(ValueError):
            tables.between_markers("no markers", "new")

    def test_the_page_of_the_house_has_its_markers(self):
        """Lost if it fails: hours of runs end in an error."""
        page = HERE.parents[1] / "docs" / "benchmarks.md"
        self.assertIn("## Conditions", tables.between_markers(page.read_text(), "## Conditions"))

    def test_the_command_from_its_raw_data_makes_page_plots_and_runs(self):
        """Lost if it fails: figures can not be made again from what was measured."""
        with tempfile.TemporaryDirectory() as folder:
            chosen = options(folder)
            runner.run_row(chosen, rows.SINGLE, [FakeSystem("camus"), FakeSystem("kafka-fsync")])
            about = {"started": "now", "host": host.describe(folder), "systems": {"camus": "fake"}, "client": ""}
            about |= {"reps": 2, "seconds": 1.0, "warmup": 0.0, "busy_max": 0.1, "steal_max": 0.1}
            (chosen.out / "about.json").write_text(json.dumps(about))
            command = [sys.executable, HERE.parent / "vs-kafka", "--tables-only", "--out", chosen.out]
            done = subprocess.run([*command, "--camus", chosen.binary], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            page = (chosen.out / "benchmarks.md").read_text()
            svg = (chosen.out / "benchmarks" / "single.svg").read_text()
            kept = json.loads((chosen.out / "benchmarks" / "runs.json").read_text())
        self.assertIn("| p50, ms | 0.150 (0.150 .. 0.150) | 0.150 (0.150 .. 0.150) |", page)
        self.assertIn("| p50 <= floor p50 + 60 us | held: 40.0, limit 60.0 |", page)
        self.assertIn("(benchmarks/single.svg)", page)
        self.assertIn("| [single](#single) | p99 <= 2 x floor p99 (x) | 1.50 (1.50 .. 1.50) |", page)
        self.assertEqual(svg, "<svg>Camus Kafka, fsync an append</svg>")
        self.assertEqual(len(kept), 4)
        self.assertNotIn(str(folder), json.dumps(kept))
        # The house's pages are so wide; tables are as wide as they are.
        self.assertEqual([n for n in page.splitlines() if len(n) > 120 and not n.startswith("|")], [])
        self.assertNotIn("timeline", kept[0]["steps"]["steady"])

    def test_rows_are_chosen_by_name_and_by_family(self):
        """Lost if it fails: --rows measures something else."""
        self.assertEqual([r.name for r in rows.chosen("load,single")], ["single", "load_8", "load_256"])
        self.assertEqual(len(rows.chosen(",".join(rows.BY_NAME))), len(rows.ROWS))
        with self.assertRaises(ValueError):
            rows.chosen("sing")


class Wire(unittest.TestCase):
    def test_the_check_sum_is_castagnolis(self):
        """Lost if it fails: every broker refuses what we fill it with."""
        self.assertEqual(wire.crc32c(b"123456789"), 0xE3069283)

    def test_a_request_sent_again_differs_in_its_number_only(self):
        """Lost if it fails: pipelined requests are answered for each other."""
        request = wire.produce_frame("t", 3, wire.batch(b"x" * 10, 2), correlation=7)
        other = wire.again(request, 8)
        self.assertEqual(struct.unpack_from(">i", request)[0], len(request) - 4)
        self.assertEqual(struct.unpack_from(">i", other, 8)[0], 8)
        self.assertEqual([i for i in range(len(request)) if request[i] != other[i]], [11])

    def test_the_error_of_a_produce_is_found_behind_the_topics_name(self):
        """Lost if it fails: a refused record is called acknowledged."""
        answer = struct.pack(">ii", 7, 1) + wire.string("topic") + struct.pack(">iihqq", 1, 0, 3, 0, -1)
        self.assertEqual(wire.produce_error(answer), 3)

    def test_leaders_are_read_from_metadata(self):
        """Lost if it fails: filling begins before the topic is there."""
        broker = struct.pack(">ii", 1, 1) + wire.string("h") + struct.pack(">i", 9092) + struct.pack(">h", -1)
        topic = struct.pack(">ii", 1, 1) + struct.pack(">h", 0) + wire.string("t") + b"\0"
        parts = struct.pack(">i", 2)
        for index, leader in ((0, 1), (1, -1)):
            parts += struct.pack(">hiiiiii", 0, index, leader, 1, 1, 1, 1)
        self.assertEqual(wire.parse_metadata(struct.pack(">i", 7) + broker + topic + parts), {0: (0, 1), 1: (0, -1)})


class Disk(unittest.TestCase):
    def test_the_largest_files_are_read_first_and_no_more_than_asked(self):
        """Lost if it fails: the floor of a cold read is that of an index of 10 bytes, or takes an hour."""
        with tempfile.TemporaryDirectory() as folder:
            for name, mib in (("small", 1), ("large", 3)):
                (Path(folder) / name).write_bytes(os.urandom(mib << 20))
            self.assertEqual(Path(host.files(folder)[0]).name, "large")
            speed = host.sequential_read(folder, 2 << 20)
            self.assertTrue(speed is None or speed > 0)
            self.assertIsNone(host.sequential_read(Path(folder) / "nothing", 1 << 20))


if __name__ == "__main__":
    unittest.main()
