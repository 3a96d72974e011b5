"""The soak gate's judgement: who slept, who waited for a core, and what of it fails."""

import multiprocessing
import struct
import subprocess
import sys
import time
import unittest

from lib import soak, wire

MS = soak.MS


def judged(looks, **options):
    """Gaps of looks given as (ms, ran ms, waited ms, slices, state[, outstanding since ms])."""
    judge = soak.Judge(where=lambda: "io_cqring_wait", **options)
    for at, ran, waited, slices, state, *since in looks:
        since = since[0] * MS if since else 0
        judge.look(soak.Look(at * MS, ran * MS, waited * MS, slices, state, since))
    return judge.done()


class Judgement(unittest.TestCase):
    def test_a_thread_that_sleeps_over_its_tick_fails(self):
        """Lost if it fails: a loop that parks for good passes, as long as no client waits."""
        gaps = judged([(0, 1, 0, 1, "S"), (30, 1, 0, 1, "S"), (80, 1, 0, 1, "S"), (82, 2, 0, 2, "R")])
        self.assertEqual([(g.slept_ns // MS, g.waited_ns, g.where) for g in gaps], [(80, 0, "io_cqring_wait")])
        self.assertEqual(len(soak.faults(gaps, 50, 10)), 1)

    def test_a_thread_that_waits_for_its_core_is_reported_and_fails_nothing(self):
        """Lost if it fails: on a busy host no shell passes, and the gate is switched off."""
        looks = [(0, 1, 0, 1, "S"), (4, 1, 0, 1, "S"), (40, 1, 0, 1, "R"), (100, 1, 0, 1, "R"), (101, 2, 95, 2, "S")]
        gaps = judged(looks)
        self.assertEqual([(g.slept_ns // MS, g.waited_ns // MS) for g in gaps], [(4, 95)])
        self.assertEqual(soak.faults(gaps, 50, 10), [])

    def test_a_watcher_that_is_late_itself_accuses_nobody(self):
        """Lost if it fails: the watcher's own stalls are called the broker's."""
        gaps = judged([(0, 1, 0, 1, "S"), (500, 9, 0, 40, "S"), (1000, 15, 0, 80, "S")])
        self.assertEqual(gaps, [])

    def test_a_watcher_that_is_late_itself_misses_no_sleep(self):
        """Lost if it fails: on a busy host sleeps are only found by luck."""
        gaps = judged([(0, 1, 0, 1, "S"), (500, 1, 0, 1, "S"), (501, 2, 0, 2, "S")])
        self.assertEqual(len(soak.faults(gaps, 50, 10)), 1)

    def test_without_a_promised_tick_only_a_sleep_over_work_fails(self):
        """Lost if it fails: a shell that rightly sleeps while idle fails, or one that sleeps over requests passes."""
        idle = judged([(0, 1, 0, 1, "S"), (200, 1, 0, 1, "S"), (201, 2, 0, 2, "S")])
        self.assertEqual(soak.faults(idle, 50, 0), [])
        self.assertEqual(len(soak.faults(idle, 50, 10)), 1)
        over_work = judged([(0, 1, 0, 1, "S"), (100, 1, 0, 1, "S", 20), (201, 2, 0, 2, "S")])
        self.assertEqual([g.outstanding for g in over_work], [True])
        self.assertEqual(len(soak.faults(over_work, 50, 0)), 1)

    def test_a_thread_that_is_blocked_in_a_system_call_fails(self):
        """Lost if it fails: a synchronous write on the loop is nobody's fault."""
        gaps = judged([(0, 1, 0, 1, "D"), (70, 1, 0, 1, "D"), (71, 2, 0, 2, "R")])
        self.assertEqual((gaps[0].blocked_ns // MS, gaps[0].slept_ns), (70, 0))
        self.assertEqual(len(soak.faults(gaps, 50, 10)), 1)

    def test_a_sleep_that_has_not_ended_counts(self):
        """Lost if it fails: the thread that never wakes again is the one that passes."""
        gaps = judged([(0, 1, 0, 1, "S"), (90, 1, 0, 1, "S")])
        self.assertEqual(len(soak.faults(gaps, 50, 10)), 1)

    def test_many_short_waits_are_no_long_one(self):
        """Lost if it fails: ten waits of 10 ms between two late looks are called one of 100 ms."""
        gaps = judged([(0, 1, 0, 1, "S"), (200, 5, 100, 11, "S")])
        self.assertEqual([g.waited_ns // MS for g in gaps], [10])


SLEEPER = """
import sys, time
open("/proc/self/comm", "w").write("core-0")
print("up", flush=True)
end = time.monotonic() + 60
while time.monotonic() < end:
    time.sleep(float(sys.argv[1]))
"""


class Threads(unittest.TestCase):
    def gaps_of_a_thread_that_sleeps(self, seconds, until=lambda gaps: False, patience_s=1.2):
        process = subprocess.Popen([sys.executable, "-c", SLEEPER, str(seconds)], stdout=subprocess.PIPE)
        try:
            process.stdout.readline()
            (thread,) = soak.core_threads(process.pid)
            end = time.monotonic() + patience_s
            while time.monotonic() < end and not until(thread.judge.gaps):
                thread.judge.look(thread.look(0))
                time.sleep(0.002)
            return thread.judge.done()
        finally:
            process.kill()
            process.wait()
            process.stdout.close()

    def test_a_real_thread_that_sleeps_too_long_is_found(self):
        """Lost if it fails: what is read from /proc is not what the judgement takes it for."""
        found = self.gaps_of_a_thread_that_sleeps(0.3, lambda gaps: len(soak.faults(gaps, 50, 10)) > 1, patience_s=20)
        faults = soak.faults(found, 50, 10)
        self.assertTrue(faults)
        self.assertTrue(all(fault.where for fault in faults), faults)
        self.assertTrue(all(0.05e9 < fault.slept_ns < 0.4e9 for fault in faults), faults)

    def test_a_real_thread_that_wakes_often_is_not_accused(self):
        """Lost if it fails: every broker fails."""
        self.assertEqual(soak.faults(self.gaps_of_a_thread_that_sleeps(0.003), 50, 10), [])


class Measures(unittest.TestCase):
    def test_cpu_lists_are_read(self):
        """Lost if it fails: the competitor runs beside the core and not on it."""
        self.assertEqual(soak.parse_cpus("0-2,5"), {0, 1, 2, 5})

    def test_the_competitor_has_half_of_each_minute(self):
        """Lost if it fails: fifteen minutes without a competitor pass as the gate."""
        self.assertEqual(sum(soak.is_busy_time(second) for second in range(600)), 300)
        self.assertFalse(soak.is_busy_time(0))

    def test_turns_are_read_from_the_metrics(self):
        """Lost if it fails: a turn counter that stands still is not seen."""
        text = 'camus_loop_turns_total{core="0"} 12\ncamus_loop_turns_total{core="1"} 3\n'
        text += 'camus_loop_turn_seconds_max{core="0"} 0.002\ncamus_loop_turn_seconds_max{core="1"} 4e-05\n'
        self.assertEqual(soak.parse_turns(text), ({"0": 12, "1": 3}, 0.002))
        turns = soak.Turns("nowhere")
        for at, count in ((0.0, 1), (1.0, 2), (2.0, 2), (3.5, 2), (4.0, 3)):
            turns.take({"0": count}, 0.0, at)
        self.assertEqual(turns.stood_s, 2.5)

    def test_percentiles_of_the_load_are_exact_to_some_percent(self):
        """Lost if it fails: the table's latencies mean nothing."""
        latencies = soak.Latencies()
        for us in range(1, 10001):
            latencies.add(us * 1000)
        self.assertAlmostEqual(latencies.at(50), 5.0, delta=0.35)
        self.assertAlmostEqual(latencies.at(99), 9.9, delta=0.7)
        self.assertEqual(latencies.report()["max"], 10.0)

    def test_numbers_are_seen_by_the_other_process(self):
        """Lost if it fails: the watcher never knows that work is out."""
        shared = soak.Shared()

        def write():
            shared["outstanding_since"] = 1 << 40

        other = multiprocessing.get_context("fork").Process(target=write)
        other.start()
        other.join()
        self.assertEqual(shared["outstanding_since"], 1 << 40)
        self.assertEqual(shared["stop"], 0)


class LateAnswers(unittest.TestCase):
    def test_a_request_without_an_answer_counts_once_answered_late_or_never(self):
        """Lost if it fails: a hang of ten seconds is one slow request among millions, or a thousand faults."""
        shared = soak.Shared()
        load = soak.Load("127.0.0.1:1", shared, late_ns=1)
        client = load.clients[0]
        client.sent.append((time.monotonic_ns() - 1000, 0))
        load.look_for_late()
        load.look_for_late()
        self.assertEqual(shared["late"], 1)
        answer = struct.pack(">ii", 0, 1) + wire.string("t") + struct.pack(">iihqq", 1, 0, 0, 0, -1)
        client.sock = Answers(struct.pack(">i", len(answer)) + answer)
        load.receive(client)
        self.assertEqual((shared["late"], shared["answered"], shared["errors"]), (1, 1, 0))
        self.assertEqual(shared["outstanding_since"], 0)

    def test_a_load_that_stood_still_itself_accuses_nobody(self):
        """Lost if it fails: on a busy host the gate fails for what the load did not read in time."""
        shared = soak.Shared()
        load = soak.Load("127.0.0.1:1", shared, late_ns=1000 * MS)
        client = load.clients[0]
        client.sent.append((time.monotonic_ns() - 3000 * MS, 0))
        load.had_to_wait(2.5)
        load.look_for_late()
        self.assertEqual((shared["late"], shared["stalled_ns"]), (0, 2500 * MS))
        client.sent[0] = (client.sent[0][0] - 1000 * MS, 0)
        load.look_for_late()
        self.assertEqual(shared["late"], 1)


class Answers:
    """A socket that has this to read."""

    def __init__(self, data):
        self.data = data

    def recv(self, _):
        return self.data


if __name__ == "__main__":
    unittest.main()
