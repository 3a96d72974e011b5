"""benches/commits without a broker: what is sent when, what is read of the answers, what it cost."""

import contextlib
import socket
import struct
import tempfile
import threading
import unittest
from pathlib import Path

from lib import commits, host, rows, side, tables, wire

BENCH = side.Bench("commits", "a client", "{reps}")


class Requests(unittest.TestCase):
    def test_an_offset_and_a_number_are_put_into_a_request_and_nothing_else_is_changed(self):
        """Lost if it fails: groups commit each other's offsets, or frames that no broker takes."""
        request = commits.commit_frame(7, partition=3, offset=0)
        sent = commits.with_offset(request, 0x0102030405060708, 99)
        self.assertEqual(struct.unpack_from(">i", sent)[0], len(sent) - 4)
        self.assertEqual(struct.unpack_from(">hhi", sent, 4), (8, 7, 99))
        self.assertEqual(sent, wire.again(commits.commit_frame(7, partition=3, offset=0x0102030405060708), 99))

    def test_the_layout_is_that_of_version_7(self):
        """Lost if it fails: a broker closes the connection, and its cost is that of closing."""
        body = commits.commit_frame(7, topic="t", partition=3, offset=5)[12:]
        want = wire.string("camus-benches") + wire.string("group-00007") + struct.pack(">i", -1) + wire.string("")
        want += b"\xff\xff" + struct.pack(">i", 1) + wire.string("t") + struct.pack(">iiqi", 1, 3, 5, -1)
        self.assertEqual(body, want + wire.string(""))

    def test_errors_are_found_behind_the_topics_name(self):
        """Lost if it fails: refused commits are called fast ones."""
        answer = struct.pack(">iii", 1, 0, 1) + wire.string("topic") + struct.pack(">iih", 1, 0, 25)
        self.assertEqual(commits.commit_error(answer), 25)
        self.assertEqual(commits.coordinator_error(struct.pack(">iih", 1, 0, 15) + b"\xff\xff"), 15)


class When(unittest.TestCase):
    def test_each_group_is_due_once_a_second_and_at_the_same_time_in_each(self):
        """Lost if it fails: 500 groups are 400, or come in a wave."""
        found = list(commits.dues(commits.phases(50, spread=True), 3.0))
        self.assertEqual(len(found), 150)
        self.assertEqual(found, sorted(found))
        for group in range(50):
            times = [at for at, of in found if of == group]
            self.assertAlmostEqual(times[1] - times[0], 1.0)
            self.assertAlmostEqual(times[2] - times[1], 1.0)
        thirds = [sum(third <= 3 * (at % 1) < third + 1 for at, _ in found) for third in range(3)]
        self.assertTrue(all(30 <= n <= 75 for n in thirds), thirds)

    def test_all_at_once_is_all_at_once(self):
        """Lost if it fails: the burst is none."""
        times = {at for at, _ in commits.dues(commits.phases(50, spread=False), 2.0)}
        self.assertEqual(times, {commits.BURST_AT_S, 1 + commits.BURST_AT_S})

    def test_every_run_has_the_same_times(self):
        """Lost if it fails: one system's groups collide more often than the other's."""
        self.assertEqual(commits.phases(50, spread=True), commits.phases(50, spread=True))


class FakeBroker:
    """Answers every commit with error 0, that of the groups in `errors` with theirs, that of `silent` ones never."""

    def __init__(self, errors=None, silent=()):
        self.errors, self.silent, self.seen, self.connections = errors or {}, silent, 0, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self.listener.accept()
                self.connections += 1
                threading.Thread(target=self.serve, args=(sock,), daemon=True).start()

    def serve(self, sock):
        with contextlib.suppress(OSError, struct.error), sock, sock.makefile("rb") as stream:
            while head := stream.read(4):
                frame = stream.read(struct.unpack(">i", head)[0])
                (number,) = struct.unpack_from(">i", frame, 4)
                client_bytes = struct.unpack_from(">h", frame, 8)[0]
                (length,) = struct.unpack_from(">h", frame, 10 + client_bytes)
                group = frame[12 + client_bytes : 12 + client_bytes + length].decode()
                self.seen += 1
                if group in self.silent:
                    return
                error = self.errors.get(group, 0)
                body = struct.pack(">iii", number, 0, 1) + wire.string("commits") + struct.pack(">iih", 1, 0, error)
                sock.sendall(struct.pack(">i", len(body)) + body)

    def close(self):
        self.listener.close()


class Driven(unittest.TestCase):
    def test_commits_of_the_warm_up_do_not_count_and_refused_ones_have_no_latency(self):
        """Lost if it fails: a cold JVM is in the figures, or a quick refusal improves them."""
        broker, looks = FakeBroker({commits.name_of(3): 25}), []
        try:
            done = commits.drive(broker.address, 10, True, 1.0, 1.0, lambda: looks.append(1), lambda: looks.append(2))
        finally:
            broker.close()
        self.assertEqual((broker.seen, done.due, len(done.took_ms), len(done.late_ms)), (20, 10, 9, 10))
        self.assertEqual((done.errors, looks), ({"25": 1}, [1, 2]))
        self.assertTrue(all(ms >= 0 for ms in done.took_ms))

    def test_each_group_has_a_connection_of_its_own_unless_they_are_to_share_some(self):
        """Lost if it fails: a commit waits for those of other groups, as that of no consumer does."""
        for connections, made in ((None, 10), (3, 3)):
            broker = FakeBroker()
            try:
                done = commits.drive(broker.address, 10, False, 0.0, 1.0, int, int, connections=connections)
            finally:
                broker.close()
            self.assertEqual((broker.connections, broker.seen, len(done.took_ms), done.errors), (made, 10, 10, {}))

    def test_a_broker_that_closes_a_connection_ends_the_run(self):
        """Lost if it fails: half of the groups are not there, and the broker is praised for its low CPU."""
        broker = FakeBroker(silent={commits.name_of(2)})
        try:
            with self.assertRaises(ConnectionError):
                commits.drive(broker.address, 10, True, 0.0, 1.5, lambda: None, lambda: None)
        finally:
            broker.close()

    def test_percentiles_of_nothing_are_nothing(self):
        """Lost if it fails: a run without an answer has a latency of zero."""
        self.assertIsNone(commits.percentiles([]))
        found = commits.percentiles([float(n) for n in range(1, 1001)])
        self.assertEqual(found, {"p50": 501.0, "p99": 991.0, "p999": 1000.0, "max": 1000.0})


class Costs(unittest.TestCase):
    def test_cost_is_what_lies_between_two_looks(self):
        """Lost if it fails: the broker's start is in the cost of a commit."""
        found = commits.Cost(12.0, 5.5, 4.25, 140).since(commits.Cost(2.0, 5.0, 4.0, 100))
        self.assertEqual((found["cpu_percent"], found["core_percent"], found["device_flushes"]), (5.0, 2.5, 40))
        unknown = commits.Cost(12.0, 5.5, None, None).since(commits.Cost(2.0, 5.0, None, None))
        self.assertEqual((unknown["core_percent"], unknown["device_flushes"]), (None, None))

    def test_flushes_are_read_of_the_kernels_and_of_the_brokers_account(self):
        """Lost if it fails: writes are called flushes, or an old kernel's nothing is a zero."""
        text = " ".join(str(n) for n in range(1, 18))
        self.assertEqual(host.parse_flushes(text), 16)
        self.assertIsNone(host.parse_flushes("1 2 3 4 5 6 7 8 9 10 11"))
        page = 'camus_wal_flushes_total{core="0"} 40\ncamus_wal_flushes_total{core="1"} 2\ncamus_wal_groups_total 9\n'
        self.assertEqual(commits.flushes_of(page), 42)
        self.assertIsNone(commits.flushes_of("camus_ready 1\n"))


class Rows(unittest.TestCase):
    ROWS = commits.rows_of()

    def test_every_bar_is_about_a_figure_and_a_gap_is_none(self):
        """Lost if it fails: the bar is held by what was never measured."""
        for row in self.ROWS:
            keys = {figure.key for figure in row.figures}
            self.assertEqual(len(keys), len(row.figures))
            self.assertTrue({bar.figure for bar in row.bars} <= keys)
            self.assertTrue(all(figure.of(rows.Run({})) is None for figure in row.figures))
        self.assertIsNone(tables.judge(tables.Medians([]), self.ROWS[0], self.ROWS[0].bars[0]).held)

    def test_a_figure_is_of_its_place_in_the_record(self):
        """Lost if it fails: the table is empty after twenty minutes, or shows another figure."""
        floor = {"write_4k_us": {"p50": 100.0, "p99": 300.0}}
        single = {"latency_us": {"p50": 150.0}, "floor": {"before": floor, "after": floor}}
        extra = {"cost": {"cpu_percent": 4.5, "core_percent": 4.0}, "latency_ms": {"p50": 0.25, "p99": 1.0}}
        run = rows.Run({"steps": {"single": single}, "extra": extra})
        found = {figure.key: figure.of(run) for figure in self.ROWS[0].figures}
        self.assertEqual((found["cpu"], found["core_cpu"], found["p99"], found["p999"]), (4.5, 4.0, 1.0, None))
        self.assertAlmostEqual(found["floor_p50"], 0.1)
        self.assertAlmostEqual(found["p50_over_floor"], 0.15)
        self.assertAlmostEqual(found["produce_p50"], 0.15)

    def test_the_page_of_the_house_has_markers_for_this_section(self):
        """Lost if it fails: twenty minutes of runs end in an error."""
        got = tables.between_markers(side.PAGE.read_text(), "new figures", BENCH.begin, BENCH.end)
        self.assertIn(f"{BENCH.begin}\n\nnew figures\n\n{BENCH.end}", got)

    def test_the_disk_under_a_directory_is_asked(self):
        """Lost if it fails: flushes of another disk, or an exception where there is none."""
        with tempfile.TemporaryDirectory() as folder:
            found = host.device_flushes(Path(folder))
        self.assertTrue(found is None or found >= 0)


if __name__ == "__main__":
    unittest.main()
