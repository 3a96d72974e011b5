"""Real faults on the real binary, each a case named by its hazard. Rows: the fault matrix in docs/testing.md.

    tests/chaos/run flush_eio [--seed N] [--ci]

A case ends with its process's status: 0 it held, 1 a fault of Camus (or of the case), 77 it can not be done here. What
must be true is the same in all: what was acknowledged is there, once, in order; what can not be served is refused by
name; and the broker either goes on, or ends by itself with the status that says why.
"""

import argparse
import contextlib
import ctypes
import errno
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import load
from harness import wire
from kit import (
    CASES,
    DAMAGED,
    DATA_DIR,
    LOCKED,
    MIB,
    STORAGE,
    Records,
    Skipped,
    case,
    codes_ready,
    comes_back,
    ext4,
    rb,
    refuses,
    run_case,
    until,
)

IOS = ("uring", "blocking")


# a disk that fails


def ends_by_itself(run, op, io, how, name="*.wal", **harm):
    """The disk fails once, under load; the broker must end with its own status and keep its word. Then it is started
    again, on the disk as it is or without what was not flushed."""
    volume = run.volume()
    broker = run.broker(volume.at / "data", io=io).start()
    client = run.client(broker)
    topic = client.topic(2)
    both = [Records(client, topic, p, size=3000).put_many(30) for p in range(2)]
    volume.harm(op, name, times=1, **harm)
    both[0].until_cut()
    status = broker.wait_end(15)
    said = broker.said()
    assert volume.hits() == 1, "the disk did not fail"
    assert status == STORAGE and "CAM-0105" in said, f"{how}: it ended with {status}:\n{said}"
    assert str(broker.data_dir) in said and "panicked" not in said, said
    volume.heal()
    if run.chance.random() < 0.5:
        volume.power_cut(lambda release: release(), run.chance.randrange(1 << 32), run.chance.choice([0.0, 0.5, 1.0]))
    comes_back(broker, client, {topic: 2})
    for records in both:
        records.check()
        records.again()
        # The one that got no answer goes again, with its number: it is there once, whatever became of it.
        records.put_many(20)
        records.check()
    run.say(f"{io}, {how}: ended with {status}, {sum(len(r.acked) for r in both)} acknowledged records are there")


@case("14", "a write fails with EIO once: the broker ends (status 10), nothing acknowledged is lost")
def write_eio(run):
    for io in IOS:
        for skip in (0, 3):
            ends_by_itself(run, "write", io, f"EIO at write {skip}", errno=errno.EIO, skip=skip)


@case("14", "the file system goes read-only: the same")
def write_erofs(run):
    for io in IOS:
        ends_by_itself(run, "write", io, "EROFS", errno=errno.EROFS)


@case("14", "a write is short: it is no write, the broker ends (status 10)")
def write_short(run):
    for io in IOS:
        ends_by_itself(run, "write", io, "half a write", part=0.5)


@case("13", "a flush fails with EIO once: it is not tried again, the broker ends (status 10)")
def flush_eio(run):
    for io in IOS:
        for skip in (0, 2):
            ends_by_itself(run, "sync", io, f"EIO at flush {skip}", errno=errno.EIO, skip=skip)


@case("14", "a segment can not be prepared (EIO): the broker ends (status 10), nothing acknowledged is lost")
def prepare_eio(run):
    volume = run.volume()
    broker = run.broker(volume.at / "data").start()
    client = run.client(broker)
    topic = client.topic(1)
    records = Records(client, topic, size=900_000).put_many(3)
    volume.harm("write", "*.wal.tmp", times=1, errno=errno.EIO)
    records.until_cut(60)
    status = broker.wait_end(15)
    assert status == STORAGE and "CAM-0105" in broker.said(), f"it ended with {status}:\n{broker.said()}"
    volume.heal()
    comes_back(broker, client, {topic: 1})
    records.check()


def place_of(folder, needle):
    """(file, byte) of the only place where the bytes lie."""
    found = []
    for path in sorted(folder.rglob("*.wal")):
        data, at = path.read_bytes(), -1
        while (at := data.find(needle, at + 1)) >= 0:
            found.append((path, at))
    assert len(found) == 1, f"{len(found)} places"
    return found[0]


@case("15", "a sector can not be read: that range answers with an error, all else is served, and it heals")
def read_eio(run):
    for io in IOS:
        volume = run.volume()
        broker = run.broker(volume.at / "data", io=io).start()
        client = run.client(broker)
        topic = client.topic(2)
        # More than stays in memory, so that reads go to the disk.
        large = Records(client, topic, 0, size=400_000).put_many(100)
        small = Records(client, topic, 1).put_many(20)
        client.forget()
        broker.stop()
        path, at = place_of(volume.at / "data", large.value(5)[:20])
        comes_back(broker, client, {topic: 2})
        volume.harm("read", low=at, high=at + 4096, errno=errno.EIO, name=f"*{path.name}")
        got = client.on().fetch(topic, 5, 0)
        assert volume.hits() > 0, "the read did not reach the disk"
        assert got.error == wire.STORAGE_ERROR, f"a range that can not be read answered {got.error}"
        assert not got.records, "something was served"
        assert [r.offset for r in client.read(topic, 0, start=60)] == list(range(60, 100)), "the rest is not served"
        small.check()
        small.again()
        small.put_many(5)
        large.again()
        large.put_many(1)
        assert broker.get("/livez")[0] == 200
        assert client.on().fetch(topic, 5, 0).error == wire.STORAGE_ERROR
        volume.heal()
        large.check()
        small.check()
        run.say(f"{io}: offset 5 answered 56, everything else was served")
        client.forget()
        broker.kill_9()


@case("15", "a sector of the log can not be read at a start: refused (status 13), file and byte named, heals")
def read_eio_at_start(run):
    volume = run.volume()
    broker = run.broker(volume.at / "data").start()
    client = run.client(broker)
    topic = client.topic(1)
    records = Records(client, topic).put_many(50)
    client.forget()
    broker.kill_9()
    path, at = place_of(volume.at / "data", records.value(20)[:20])
    volume.harm("read", low=at, high=at + 4096, errno=errno.EIO, name=f"*{path.name}")
    refuses(broker, {DATA_DIR}, path, "CAM-0101")
    volume.heal()
    comes_back(broker, client, {topic: 1})
    assert len(records.check()) == 50


# a disk that is slow, hangs, or is full


def judged(run, client, topic, producers, follower):
    """Ends the load, waits for all its answers, judges."""
    for p in producers:
        p.stop = True
    for p in producers:
        p.join(200)
    client.forget()
    client.when_led(topic, load.PARTITIONS)
    logs = [client.values(topic, p) for p in range(load.PARTITIONS)]
    with contextlib.suppress(AssertionError):
        until(lambda: all(len(s) >= len(log) for s, log in zip(follower.shown, logs, strict=True)), 20)
    follower.stop = True
    follower.join(20)
    faults, figures = load.judge(logs, producers, follower)
    said, more = load.judged_again(
        run.folder / f"history-{topic}.jsonl", load.history(topic, logs, producers, follower)
    )
    run.say(f"{figures['acknowledged']} acknowledged, {figures['in the log']} in the log; {said}")
    assert not faults + more, "\n".join([*faults, *more])
    return figures


def clients(broker, topic, rate=200, **config):
    producers = [load.Producer(kind, f"{kind}-0", broker.address, topic, rate, **config) for kind in load.KINDS]
    return producers, load.Follower(broker.address, topic)


def metric(broker, name):
    """Summed over the cores."""
    _, page = broker.get("/metrics")
    found = re.findall(rf"(?m)^{name}(?:\{{[^}}]*\}})? (\S+)$", page)
    assert found, f"there is no metric {name}"
    return sum(map(float, found))


@case("20", "flushes take 0.1 to 0.6 s, then some seconds: answers are late, nobody times out or sends twice")
def slow_disk(run):
    volume = run.volume()
    broker = run.broker(volume.at / "data").start()
    client = run.client(broker)
    topic = client.topic(load.PARTITIONS)
    producers, follower = clients(broker, topic, **{"socket.timeout.ms": 60_000})
    producers = [p for p in producers if p.kind != "once"]
    for thread in (*producers, follower):
        thread.start()
    until(lambda: min(p.count_acked() for p in producers) > 100, what="the load runs")
    for low, high, seconds in [(0.1, 0.6, 4), (2.0, 5.0, 12 if run.short else 30)]:
        volume.ask("flush_seconds", low=low, high=high)
        before, end = [p.count_acked() for p in producers], time.monotonic() + seconds
        while time.monotonic() < end:
            begun = time.monotonic()
            assert broker.get("/livez")[0] == 200, "a slow disk is no dead broker"
            assert client.on().fetch(topic, 0, 0).records, "readers of what is there wait for the disk"
            assert time.monotonic() - begun < 2.0, "readers wait for the disk's flushes"
            time.sleep(0.25)
        assert all(p.count_acked() > b for p, b in zip(producers, before, strict=True)), "nothing was acknowledged"
    volume.ask("flush_seconds", low=0.0, high=0.0)
    judged(run, client, topic, producers, follower)
    twice = metric(broker, "camus_produce_duplicates_total")
    assert twice == 0, f"{twice} batches were sent again: clients timed out"


@case("21", "the disk of one core hangs: the other core serves, nothing is lost when it comes back")
def disk_hangs(run):
    volume = run.volume()
    broker = run.broker(volume.at / "data", cores=2).start()
    client = run.client(broker)
    topic = client.topic(8)
    all_ = [Records(client, topic, p).put_many(3) for p in range(8)]
    for op in ("write", "sync", "read"):
        volume.harm(op, "*core-1/*", hang=True)
    served, hang = [], []
    for records in all_:
        begun = time.monotonic()
        try:
            done = records.put(timeout=1.5)
            assert done.error == 0, f"produce error {done.error}"
            assert time.monotonic() - begun < 1.0, "the other core waits, too"
            served.append(records)
        except wire.Silent:
            hang.append(records)
    assert served and hang, f"{len(served)} partitions are served, {len(hang)} wait"
    for _ in range(20):
        for records in served:
            begun = time.monotonic()
            assert records.put(timeout=5).error == 0
            assert time.monotonic() - begun < 1.0, "the other core waits, too"
    assert broker.get("/livez")[0] == 200, "loops turn: a broker that is started again would find the same disk"
    # What was committed is read, also of the partitions that hang.
    for records in hang:
        assert len(client.values(topic, records.partition)) == 3, "nothing is shown before it is durable"
    until(lambda: codes_ready(broker), 8, "/readyz says that a disk hangs", 0.25)
    run.say(f"{len(served)} partitions were served, {len(hang)} waited; not ready: {codes_ready(broker)}")
    volume.heal()
    until(lambda: not codes_ready(broker), 10, "/readyz says yes again")
    for records in all_:
        records.again()
        records.put_many(3)  # the one without an answer goes again under its number
        records.check()
    client.forget()
    broker.kill_9()
    comes_back(broker, client, {topic: 8})
    for records in all_:
        records.check()


@case(
    "22", "the disk is full: produce is refused for a while, reads go on, clients live through it, it heals by itself"
)
def enospc(run):
    with ext4(run, run.folder / "small.img", 400) as mount:
        fill_and_heal(run, mount, lambda full: ballast(mount, full))


@case("22", "the same with a file system that refuses what a file takes more (a quota)")
def quota(run):
    volume = run.volume()
    limit = 150 * MIB
    fill_and_heal(run, volume.at, lambda full: volume.ask("quota", bytes=limit if full else None))


def ballast(mount, there):
    if there:
        (mount / "ballast").write_bytes(os.urandom(MIB) * 230)
    else:
        (mount / "ballast").unlink()


def fill_and_heal(run, folder, fill):
    fill(True)
    broker = run.broker(folder / "data").start()
    client = run.client(broker)
    topic = client.topic(load.PARTITIONS)
    producers, follower = clients(broker, topic, rate=150, size=50_000)
    producers = [p for p in producers if p.kind != "once"]
    for thread in (*producers, follower):
        thread.start()
    until(lambda: "disk_full" in codes_ready(broker), 60, "the disk is full")
    held = client.topic(1, "held")
    refused = client.on().produce(held, rb.build([b"x" * 900_000]), timeout_ms=3000, timeout=30)
    assert refused.error in wire.RETRIABLE - {wire.CORRUPT_MESSAGE, wire.UNKNOWN_TOPIC}, refused
    full, before = time.monotonic(), sum(p.count_acked() for p in producers)
    for _ in range(8):
        time.sleep(0.5)
        assert broker.alive() and broker.get("/livez")[0] == 200
        assert client.on().fetch(topic, 0, 0).records, "nothing is served while the disk is full"
    assert "disk_full" in codes_ready(broker)
    run.say(f"full: produce answers {refused.error}, readers are served")
    fill(False)
    until(lambda: not codes_ready(broker), 30, "it is ready again by itself")
    until(lambda: sum(p.count_acked() for p in producers) > before + 200, 30, "clients go on by themselves")
    run.say(f"healed after {time.monotonic() - full:.1f} s")
    judged(run, client, topic, producers, follower)
    client.forget()
    broker.kill_9()
    comes_back(broker, client, {topic: load.PARTITIONS})
    for partition in range(load.PARTITIONS):
        log = client.values(topic, partition)
        for p in producers:
            moved = [n for n, offset in p.acked[partition].items() if log[offset] != p.value(n)]
            assert not moved, f"{len(moved)} acknowledged records are not where they were, after a restart"
    client.forget()
    broker.kill_9()


# a process that stands still


@case("4", "SIGSTOP for 5 to 60 s: clients time out, afterwards all goes on, nothing is lost or doubled")
def sigstop(run):
    broker = run.broker().start()
    client = run.client(broker)
    topic = client.topic(load.PARTITIONS)
    # Clients that give a request up well before the broker wakes.
    producers, follower = clients(broker, topic, **{"socket.timeout.ms": 3000, "request.timeout.ms": 2500})
    for thread in (*producers, follower):
        thread.start()
    for seconds in [5] if run.short else [5, 20, 60]:
        until(lambda: min(p.count_acked() for p in producers) > 100, what="the load runs")
        raw = client.connect()
        broker.signal(signal.SIGSTOP)
        until(lambda: stands_still(broker.pid), 5, "all its threads stand still")
        try:
            with contextlib.suppress(wire.Silent):
                raw.send(wire.API_VERSIONS, 0, b"")
                raw.receive(wire.API_VERSIONS, 0, timeout=1.0)
                raise AssertionError("a process that stands still has answered")
            time.sleep(seconds - 1)
        finally:
            broker.signal(signal.SIGCONT)
        raw.close()
        before, woke = [p.count_acked() for p in producers], time.monotonic()
        until(lambda was=before: all(p.count_acked() > b for p, b in zip(producers, was, strict=True)), 30, "all go on")
        run.say(f"{seconds} s: every client went on {time.monotonic() - woke:.1f} s after it woke")
        assert broker.alive() and broker.get("/livez")[0] == 200
    judged(run, client, topic, producers, follower)


def stands_still(pid):
    stats = [(f"/proc/{pid}/task/{task}/stat") for task in os.listdir(f"/proc/{pid}/task")]
    return all(open(stat).read().rpartition(")")[2].split()[0] == "T" for stat in stats)  # noqa: SIM115


SEIZE, INTERRUPT, DETACH, WALL = 0x4206, 0x4207, 17, 0x40000000


@contextlib.contextmanager
def stalled(thread):
    """One thread of another process does not run inside."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    if libc.ptrace(SEIZE, thread, None, None) != 0:
        raise Skipped(f"ptrace is not permitted here: {os.strerror(ctypes.get_errno())}")
    try:
        assert libc.ptrace(INTERRUPT, thread, None, None) == 0
        os.waitpid(thread, WALL)
        yield
    finally:
        libc.ptrace(DETACH, thread, None, None)


def thread_named(pid, name):
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/comm") as comm:
            if comm.read().strip() == name:
                return int(task)
    raise AssertionError(f"there is no thread {name}")


@case("7", "one core's thread stands still for seconds: only its partitions are late, health says which core")
def one_core_stalled(run):
    broker = run.broker(cores=2).start()
    client = run.client(broker)
    topic = client.topic(8)
    # A connection belongs to the core that took it: of many, some are on each.
    all_ = [Records(client, topic, n % 8).put_many(2) for n in range(8)]
    spare = [client.connect() for _ in range(40)]
    with stalled(thread_named(broker.pid, "core-1")):
        for conn in spare:
            conn.send(wire.API_VERSIONS, 0, b"")
        time.sleep(0.3)
        mine = []
        for conn in spare:
            with contextlib.suppress(wire.Silent):
                conn.receive(wire.API_VERSIONS, 0, timeout=0.02)
                mine.append(conn)
        assert len(mine) >= 9, f"{len(mine)} of {len(spare)} connections are on the other core"
        served, late = 0, 0
        for partition in range(8):
            conn, begun = mine[-1], time.monotonic()
            try:
                assert conn.produce(topic, rb.build([b"x"]), partition, timeout=0.3).error == 0
                assert time.monotonic() - begun < 0.3
                served += 1
            except wire.Silent:
                late += 1
                mine.remove(conn)
        assert served and late, f"{served} partitions are served, {late} wait"
        _, body = until(lambda: (found := broker.get("/livez", timeout=2))[0] == 503 and found, 5, "/livez says so")
        assert '"cores_standing_still":[1]' in body, body
    until(lambda: broker.get("/livez", timeout=2)[0] == 200, 5, "it is alive again")
    run.say(f"{served} partitions were served, {late} were late; {body.strip()}")
    for records in all_:
        records.again()
    for partition in range(8):
        values = client.values(topic, partition)
        assert values[:2] == [all_[partition].value(n) for n in range(2)] and values[2:] == [b"x"], values
    client.forget()
    broker.stop()


# two processes


@case("38", "two processes on one data directory: the second is refused (status 12) and told who has it")
def two_processes(run):
    broker = run.broker().start()
    client = run.client(broker)
    topic = client.topic(1)
    records = Records(client, topic).put_many(20)
    second = run.broker(broker.data_dir)
    refuses(second, {LOCKED}, "CAM-0102", broker.data_dir, f"process {broker.pid} ")
    # Nor when somebody takes the lock's file for a stale one, or comes by another path.
    (broker.data_dir / "lock").unlink()
    refuses(second, {LOCKED}, "CAM-0102")
    link = run.folder / "link"
    link.symlink_to(broker.data_dir)
    refuses(run.broker(link), {LOCKED}, "CAM-0102")
    # Nor while the first stands still.
    broker.signal(signal.SIGSTOP)
    try:
        refuses(second, {LOCKED}, "CAM-0102")
    finally:
        broker.signal(signal.SIGCONT)
    # Nor ten at once, when the first is gone: one of them has it.
    records.put_many(20)
    records.check()
    client.forget()
    broker.kill_9()
    rivals = [run.broker(broker.data_dir) for _ in range(10)]
    for rival in rivals:
        rival.launch()
    ended = until(lambda: (gone := [r for r in rivals if not r.alive()]) and len(gone) == 9 and gone, 30, "one is left")
    assert all(r.process.returncode == LOCKED for r in ended), [(r.process.returncode, r.said()) for r in ended]
    (winner,) = (r for r in rivals if r.alive())
    until(lambda: "camus ready" in winner.said(), 20, "the one that has it serves")
    winner.kill_9()
    comes_back(broker, client, {topic: 1})
    assert len(records.check()) == 40


# files that are not as they were


class Filled:
    """A data directory that was stopped in good order, and what is in it."""

    def __init__(self, run, segments=True):
        self.run = run
        self.broker = run.broker().start()
        client = run.client(self.broker)
        self.topics = {client.topic(2): 2, client.topic(1): 1}
        self.first, self.second = self.topics
        self.records = [Records(client, self.first, 0).put_many(60), Records(client, self.first, 1).put_many(40)]
        self.large = Records(client, self.second, 0, size=900_000).put_many(45 if segments else 5)
        for records in self.records:
            records.put_many(20)
        error = load.groups.commit(client.on(), "g", self.first, {0: 17})[0]
        assert error == 0
        client.forget()
        self.broker.stop()
        self.folder = self.broker.data_dir

    def copy(self, name):
        """A broker on a copy of it."""
        target = self.run.folder / name
        subprocess.run(["cp", "-r", "--sparse=always", self.folder, target], check=True)
        return self.run.broker(target)

    def whole(self, client):
        """Everything is there."""
        for topic, partitions in self.topics.items():
            client.when_led(topic, partitions)
        for records in (*self.records, self.large):
            values = client.values(records.topic, records.partition)
            assert values == [records.value(n) for n in range(records.sent)], (
                f"{records.topic}/{records.partition}: {len(values)} of {records.sent} records, or others"
            )
        committed = until(lambda: load.groups.committed(client.on(), "g", self.first), 10, "the group answers")
        assert committed[0] == 17, f"the group is given {committed[0]}"

    def used(self, path):
        """Bytes up to the last one that is not zero."""
        return len(path.read_bytes().rstrip(b"\0"))

    def segments(self):
        """Files that hold records, the oldest first, and those that are spare."""
        files = sorted((self.folder / "core-0").glob("*.wal"))
        held = [f for f in files if self.used(f) > 4096]
        return held, [f for f in files if f not in held]


def starts_whole_or_is_refused(run, filled, broker, statuses, *words):
    """Whether it was refused. Never anything in between."""
    broker.launch()

    def decided():
        return "ready" if "camus ready" in broker.said() else "ended" if not broker.alive() else None

    if until(decided, 40, "it starts or ends") == "ended":
        status, said = broker.wait_end(), broker.said()
        assert status in statuses and "panicked" not in said, f"it ended with {status}:\n{said}"
        for word in words:
            assert str(word) in said, f"{word} is not named:\n{said}"
        return said
    broker.kill_9()
    client = run.client(broker.start())
    filled.whole(client)
    client.forget()
    broker.kill_9()
    return None


def differs(one, other):
    done = subprocess.run(["diff", "-rq", "--exclude=lock", one, other], capture_output=True, text=True)
    return done.stdout


@case("16", "one or two bits of a file flip while it is stopped: refused with file and place, or nothing is missing")
def bit_flips(run):
    filled = Filled(run)
    held, spare = filled.segments()
    others = [filled.folder / "camus.toml", *spare]
    refused = intact = named = 0
    for _ in range(24 if run.short else 150):
        path = run.chance.choice(held) if run.chance.random() < 0.8 else run.chance.choice(others)
        used = filled.used(path)
        reach = used if used > 4096 or path.suffix != ".wal" else path.stat().st_size
        flips = [run.chance.randrange(reach * 8) for _ in range(run.chance.choice([1, 2]))]
        if run.chance.random() < 0.25 and path.suffix == ".wal":
            # Headers are few among so many bytes.
            flips = [run.chance.randrange(reach // 4096) * 4096 * 8 + run.chance.randrange(64 * 8)]
        broker = filled.copy("flipped")
        target = broker.data_dir / path.relative_to(filled.folder)
        data = bytearray(target.read_bytes())
        for bit in flips:
            data[bit // 8] ^= 1 << bit % 8
        target.write_bytes(data)
        where = f"{path.relative_to(filled.folder)}, bits {flips}"
        try:
            said = starts_whole_or_is_refused(run, filled, broker, {DAMAGED, DATA_DIR})
        except AssertionError as error:
            raise AssertionError(f"{where}: {error}") from None
        if said:
            refused += 1
            assert str(broker.data_dir) in said, f"{where} is not named:\n{said}"
            named += target.name in said
            place = re.search(r"byte (\d+) \(block", said)
            if place and target.name in said:
                near = min(abs(int(place[1]) - bit // 8) for bit in flips)
                assert near <= 2 * MIB, f"{where}: the place that is named is far away:\n{said}"
        else:
            intact += 1
        shutil.rmtree(broker.data_dir)
        run.brokers.remove(broker)
    run.say(f"{refused + intact} times: {refused} refused ({named} name the file), {intact} started with everything")
    assert refused > 5, "flips in the used part of the log are found"


@case("17", "a file of the log is cut short: refused (status 11) and named")
def truncated_files(run):
    filled = Filled(run)
    held, spare = filled.segments()
    assert len(held) >= 2, "the log has several segments"
    refused = 0
    for path in [*held, *spare, filled.folder / "camus.toml"]:
        size = path.stat().st_size
        lengths = {0, 100, min(size, 4096), run.chance.randrange(size), max(0, size - 4096)} - {size}
        for length in sorted(lengths)[:: 2 if run.short else 1]:
            broker = filled.copy("cut")
            target = broker.data_dir / path.relative_to(filled.folder)
            os.truncate(target, length)
            before = filled.copy("as-it-was")
            os.truncate(before.data_dir / path.relative_to(filled.folder), length)
            try:
                said = starts_whole_or_is_refused(run, filled, broker, {DAMAGED, DATA_DIR})
            except AssertionError as error:
                raise AssertionError(f"{path.name} cut to {length}: {error}") from None
            if said:
                refused += 1
                assert str(broker.data_dir) in said, said
                assert not differs(broker.data_dir, before.data_dir), "the refused start changed the data"
            else:
                assert path in spare, f"{path.name} cut to {length} was not noticed"
            for gone in (broker, before):
                shutil.rmtree(gone.data_dir)
                run.brokers.remove(gone)
    run.say(f"{refused} refused and named")


@case("17", "a file is missing: refused (status 11 or 13) and named, but for the newest segment, as the docs say")
def missing_files(run):
    filled = Filled(run)
    held, spare = filled.segments()
    refused = []
    for path in [*held, *spare, filled.folder / "camus.toml", filled.folder / "lock", filled.folder / "core-0"]:
        broker = filled.copy("missing")
        target = broker.data_dir / path.relative_to(filled.folder)
        shutil.rmtree(target) if target.is_dir() else target.unlink()
        newest = path == held[-1]
        try:
            said = starts_whole_or_is_refused(run, filled, broker, {DAMAGED, DATA_DIR}, broker.data_dir)
            assert said or path in spare or path.name == "lock", "it was not noticed"
            refused += [path.name] if said else []
        except AssertionError as error:
            if not newest:
                raise AssertionError(f"without {path.name}: {error}") from None
            # docs/guarantees.md: the removal of the newest segment is not noticed. What is left must be a beginning.
            broker.kill_9()
            client = run.client(broker.start())
            for records in (*filled.records, filled.large):
                values = client.values(records.topic, records.partition)
                assert values == [records.value(n) for n in range(len(values))], "what is left is no beginning"
            client.forget()
            broker.kill_9()
            run.say(f"without {path.name}, the newest: the log ends earlier, as is documented")
        shutil.rmtree(broker.data_dir)
        run.brokers.remove(broker)
    run.say(f"refused without {', '.join(refused)}")
    assert "camus.toml" in refused and "core-0" in refused and held[0].name in refused, refused


@case("18", "an older copy of the directory is put back: it is served as it was, and who is ahead of it is told")
def old_copy(run):
    broker = run.broker().start()
    client = run.client(broker)
    topic = client.topic(1)
    records = Records(client, topic).put_many(30)
    client.forget()
    broker.stop()
    subprocess.run(["cp", "-r", "--sparse=always", broker.data_dir, run.folder / "old"], check=True)
    comes_back(broker, client, {topic: 1})
    records.again()
    records.put_many(30)
    client.forget()
    broker.stop()
    shutil.rmtree(broker.data_dir)
    (run.folder / "old").rename(broker.data_dir)
    comes_back(broker, client, {topic: 1})
    assert client.values(topic) == [records.value(n) for n in range(30)], "the copy is not served as it was"
    ahead = client.on().fetch(topic, 60, 0)
    assert ahead.error == wire.OFFSET_OUT_OF_RANGE, f"a reader that is ahead is told {ahead.error}"
    batch = rb.build([b"next"], pid=records.ids[0], epoch=records.ids[1], seq=60)
    done = client.on().produce(topic, batch)
    assert done.error == wire.OUT_OF_ORDER, f"a producer that is ahead is told {done.error}"
    run.say("nothing on one disk tells that it is old; a reader and an idempotent producer that are ahead are told")


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("name", choices=CASES)
    options.add_argument("--seed", type=int, default=None)
    options.add_argument("--ci", action="store_true", help="shorter")
    options = options.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    return run_case(options.name, seed, options.ci)


if __name__ == "__main__":
    sys.exit(main())
