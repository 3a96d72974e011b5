"""The flush-before-acknowledge audit: is what was acknowledged on the media, at every flush?

    tests/chaos/run audit [--boundaries 200] [--seconds 8] [--seed N] [--ext4] [--self-test]

A broker runs under load on a volume that records every write and flush in order (volume/). Then, for each of so many
flush boundaries, the disk is made again as it was at that moment, as if the power had gone: once with nothing but what
was flushed by then, once with a random part of the sectors that were written and not flushed before the next flush
ended. A broker starts on it, and must have every record that a client knew to be acknowledged, every record that a
reader had been shown and every offset that a group had committed before that next flush ended, where it was said to
be. So a broker that answers a moment before its flush ends is found, though no power ever failed.

All clients, and the volume, take their times from one monotonic clock. A flush's end is noted before the broker is told
of it, an acknowledgement after the client has it: an honest broker's acknowledgement is never earlier than the flush
that it rests on. The volume's flushes take 2 to 8 ms, so that an early answer has the time to be seen.

--ext4 puts a loop device with an ext4 in between: the log as the kernel's file system and block layer write it, the
journal and the flushes of the device's cache included. --self-test proves the audit: the same broker on a volume that
says that it has flushed 5 to 10 ms before it has must be found guilty, and so must images that lack one flush.
"""

import argparse
import contextlib
import os
import random
import shutil
import subprocess
import sys
import threading
import time

import kit
import load
from kit import rb
from volume import Skipped

PARTITIONS = 5
SMALL, SINGLE, LARGE = range(0, 3), 3, 4
LARGE_BYTES = 60_000
IMAGE_MIB = 512


class Reader(threading.Thread):
    """Fetches all partitions by hand and notes when it was shown what."""

    def __init__(self, client, topic):
        super().__init__(daemon=True)
        self.conn, self.topic, self.stop = client.connect(), topic, False
        self.next, self.shown, self.fault = dict.fromkeys(range(PARTITIONS), 0), [], None

    def run(self):
        try:
            while not self.stop:
                self.conn.send_fetch(self.topic, self.next, max_wait_ms=20)
                answer = self.conn.receive_fetch()
                at = time.monotonic_ns()
                for partition, got in answer.items():
                    for batch in rb.parse(got.records):
                        new = [r for r in batch.records() if r.offset >= self.next[partition]]
                        self.shown += [(at, partition, r.offset, r.value) for r in new]
                        self.next[partition] = max(self.next[partition], batch.next_offset)
        except (OSError, AssertionError) as error:
            self.fault = error
        finally:
            self.conn.close()


class Single(threading.Thread):
    """One record at a time, by hand: the shortest way from an answer to a note of it."""

    def __init__(self, client, topic):
        super().__init__(daemon=True)
        self.records, self.stop, self.acked_ns, self.fault = kit.Records(client, topic, SINGLE), False, {}, None

    def run(self):
        try:
            while not self.stop:
                done = self.records.put()
                self.acked_ns[self.records.sent - 1] = time.monotonic_ns()
                assert done.error == 0, f"produce error {done.error}"
        except (OSError, AssertionError) as error:
            self.fault = error


class Load:
    """What clients did, and when they knew what."""

    def __init__(self, broker, client, seconds):
        self.topic = client.topic(PARTITIONS, "audit")
        self.made_ns = time.monotonic_ns()
        several = [
            load.Producer("idempotent", f"small-{n}", broker.address, self.topic, 400, len(SMALL), 120)
            for n in range(2)
        ]
        large = load.Producer(
            "idempotent", "large", broker.address, self.topic, 100, 1, LARGE_BYTES, LARGE, **{"batch.size": 400_000}
        )
        self.producers = [*several, large]
        self.single, self.reader = Single(client, self.topic), Reader(client, self.topic)
        self.committer = load.Committer(broker.address, self.topic, every=0.005)
        threads = [*self.producers, self.single, self.reader, self.committer]
        for thread in threads:
            thread.start()
        time.sleep(seconds)
        for thread in threads:
            thread.stop = True
        for thread in threads:
            thread.join(150)
        self.known = self.everything_known()
        self.sent = [self.everything_sent(p) for p in range(PARTITIONS)]
        faults = [p.fatal for p in self.producers if p.fatal or p.unflushed] + self.committer.faults
        faults += [thread.fault for thread in (self.single, self.reader) if thread.fault]
        assert not faults, f"the load itself failed: {faults}"

    def everything_known(self):
        """(when, partition, offset, value, how), by time."""
        known = [(at, p, offset, value, "shown to a reader") for at, p, offset, value in self.reader.shown]
        for p in self.producers:
            for partition in p.partitions:
                for number, at in p.acked_ns[partition].items():
                    known.append((at, partition, p.acked[partition][number], p.value(number), "acknowledged"))
        records = self.single.records
        for number, at in self.single.acked_ns.items():
            known.append((at, SINGLE, records.acked[number], records.value(number), "acknowledged"))
        return sorted(known)

    def everything_sent(self, partition):
        """Value -> (producer, number)."""
        if partition == SINGLE:
            count = self.single.records.sent + 1  # the last one may have no answer
            return {self.single.records.value(n): (0, n) for n in range(count)}
        mine = [p for p in self.producers if partition in p.partitions]
        return {p.value(n): (i, n) for i, p in enumerate(mine) for n in range(p.sent[partition])}


class Audit:
    def __init__(self, options):
        self.options = options
        self.run = kit.Run("audit", options.seed, False)
        self.lost, self.faults, self.starts, self.required = [], [], 0, 0
        self.slowest = 0.0

    @contextlib.contextmanager
    def place(self, new=False):
        """The data directory on the volume as it is now."""
        if not self.options.ext4:
            yield self.volume.at / "data"
            return
        with kit.ext4(self.run, self.volume.at / "disk.img", IMAGE_MIB if new else None) as mount:
            if new:
                subprocess.run(["sync", "-f", mount], check=True)
            yield mount / "data"

    def record(self, seconds, early=False):
        """Runs the load on a recording volume. Returns the ends of the flushes."""
        self.volume = self.run.volume()
        with self.place(new=True) as data:
            if self.options.ext4:
                # The image's own name must be on the media before anything of it is.
                sync_folder(self.volume.at)
            since = time.monotonic_ns()
            low, high = (0.005, 0.010) if early else (0.002, 0.008)
            self.volume.ask("flush_seconds", low=low, high=high, early=early)
            broker = self.run.broker(data, io=self.options.io).start()
            client = self.run.client(broker)
            self.load = Load(broker, client, seconds)
            client.forget()
            broker.kill_9()
            self.volume.ask("flush_seconds", low=0.0, high=0.0)
        self.volume.ask("keep")
        self.boundaries = self.volume.ask("boundaries", since=since)["boundaries"]
        found = self.load.known
        self.run.say(
            f"{len(self.boundaries)} flushes in {seconds} s; {sum(k[4] == 'acknowledged' for k in found)} records "
            f"acknowledged, {sum(k[4] != 'acknowledged' for k in found)} shown, {self.load.committer.known()} commits"
        )

    def sample(self, count):
        """Places of boundaries, in order: the first and the last ones, and others by chance."""
        every = range(len(self.boundaries))
        assert len(every) >= count, f"only {len(every)} flush boundaries, {count} are wanted: a longer --seconds"
        edge = min(5, count // 4)
        chosen = set(every[:edge]) | set(every[-edge:])
        rest = [k for k in every if k not in chosen]
        chosen |= set(self.run.chance.sample(rest, count - len(chosen)))
        return sorted(chosen)

    def judge(self, place, subset, less=0):
        """Starts a broker on the disk as of a boundary. What it lacks goes to `lost`, what is wrong to `faults`."""
        at = self.boundaries[place - less] if place >= less else self.boundaries[0]
        until = self.boundaries[place + 1] if place + 1 < len(self.boundaries) else time.monotonic_ns()
        what = {}
        if subset:
            chance = self.run.chance
            what = {
                "begun_by": until,
                "seed": chance.randrange(1 << 32),
                "keep": chance.choice([0.1, 0.5, 0.9]),
                # An ext4 does not survive half a superblock, which is two sectors of 512 bytes: that is not the log's.
                "sector": 4096 if self.options.ext4 else chance.choice([512, 4096]),
            }
        self.volume.load(at, **what)
        where = f"boundary {place} of {len(self.boundaries)}{f' with {what}' if subset else ''}"
        known = [one for one in self.load.known if one[0] < until]
        found = len(self.lost) + len(self.faults)
        self.starts += 1
        self.required += len(known)
        try:
            with self.place() as data, kit.killed_after(self.run.broker(data, io=self.options.io)) as client:
                client.broker.start()
                self.slowest = max(self.slowest, client.broker.start_seconds)
                self.look(client, known, until, where)
        except AssertionError as error:
            self.faults.append(f"{where}: {error}")
        if found == 0 < len(self.lost) + len(self.faults) and not self.options.self_test:
            self.keep(at, what)

    def keep(self, at, what):
        """The disk on which the first fault was found, for who looks at it."""
        self.volume.load(at, **what)
        with contextlib.suppress(OSError, AssertionError, shutil.Error), self.place() as data:
            shutil.copytree(data, self.run.folder / "kept")
            self.run.say(f"the disk of the first fault is kept in {self.run.folder / 'kept'}")

    def look(self, client, known, until, where):
        there = self.load.topic in client.on().metadata(None)["topics"]
        if not there:
            if self.load.made_ns < until:
                self.lost.append(f"{where}: the topic, whose making was answered")
            return
        client.when_led(self.load.topic, PARTITIONS)
        logs = [client.values(self.load.topic, p) for p in range(PARTITIONS)]
        for _, partition, offset, value, how in known:
            log = logs[partition]
            if offset >= len(log):
                self.lost.append(f"{where}: partition {partition} offset {offset}, {how}: the log ends at {len(log)}")
                break
            if log[offset] != value:
                self.faults.append(f"{where}: partition {partition} offset {offset}: another value than was {how}")
                break
        for partition, log in enumerate(logs):
            due = {}
            for offset, value in enumerate(log):
                producer, number = self.load.sent[partition].get(value, (None, None))
                if producer is None or number != due.get(producer, 0):
                    self.faults.append(f"{where}: partition {partition} offset {offset}: {value[:40]} out of its order")
                    break
                due[producer] = number + 1
        if self.load.committer.known(until) > 0:
            group, topic = self.load.committer.group, self.load.topic
            committed = kit.until(lambda: load.groups.committed(client.on(), group, topic), 10, "the group answers")[0]
            self.lost += [f"{where}: {fault}" for fault in self.load.committer.fault_of(committed, until)]


def sync_folder(path):
    """What is in it has its name for ever."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def audit(audit_, options):
    audit_.record(options.seconds)
    begun = time.monotonic()
    chosen = audit_.sample(options.boundaries)
    for n, place in enumerate(chosen, 1):
        audit_.judge(place, subset=False)
        audit_.judge(place, subset=True)
        if n % 20 == 0 or n == len(chosen):
            audit_.run.say(
                f"{n} boundaries, {audit_.starts} starts, {audit_.required} records required, "
                f"slowest start {audit_.slowest:.2f} s"
            )
        if len(audit_.lost) + len(audit_.faults) > 20:
            break
    for text in audit_.lost:
        audit_.run.say(f"FAULT: LOST: {text}")
    for text in audit_.faults:
        audit_.run.say(f"FAULT: {text}")
    if audit_.lost or audit_.faults:
        audit_.run.say(f"verdict: {len(audit_.lost)} LOST, {len(audit_.faults)} other FAULTS, seed {options.seed}")
        return 1
    audit_.run.say(
        f"verdict: at {len(chosen)} flush boundaries everything acknowledged, shown and committed was on the media; "
        f"{audit_.starts} starts in {time.monotonic() - begun:.0f} s, seed {options.seed}"
    )
    return 0


def self_test(audit_, options):
    """The audit must find what is wrong: a flush that is left out, and a disk that says too early that it has."""
    problems = []
    audit_.record(options.seconds)
    chosen = audit_.sample(options.boundaries)
    for place in chosen:
        audit_.judge(place, subset=False)
    if audit_.lost or audit_.faults:
        problems.append(f"an honest disk was found guilty: {(audit_.lost + audit_.faults)[:3]}")
    found = {}
    for name in ("one flush left out", "flushes that are said to be done 5 to 10 ms too early"):
        audit_.lost, audit_.faults = [], []
        if name.startswith("flushes"):
            audit_.volume.close()
            audit_.record(options.seconds, early=True)
            chosen = audit_.sample(options.boundaries)
        less = 1 if name.startswith("one") else 0
        # The latest boundaries: those with records behind them.
        guilty = 0
        for place in [k for k in chosen if k >= len(audit_.boundaries) // 2]:
            before = len(audit_.lost) + len(audit_.faults)
            audit_.judge(place, subset=False, less=less)
            guilty += len(audit_.lost) + len(audit_.faults) > before
        found[name] = guilty
        audit_.run.say(f"{name}: {guilty} boundaries at which something acknowledged is missing")
        if not guilty:
            problems.append(f"{name}: nothing was found")
    for problem in problems:
        audit_.run.say(f"FAULT: the audit is blind: {problem}")
    audit_.run.say(f"verdict: {'the audit does not find' if problems else 'the audit finds'} what it is there to find")
    return 1 if problems else 0


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--boundaries", type=int, default=200)
    options.add_argument("--seconds", type=float, default=8.0)
    options.add_argument("--seed", type=int, default=None)
    options.add_argument("--io", default=None)
    options.add_argument("--ext4", action="store_true", help="an ext4 on a loop device in between")
    options.add_argument("--self-test", action="store_true", help="prove that the audit finds what it looks for")
    options = options.parse_args()
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1 << 32)
    audit_, status = Audit(options), 1
    audit_.run.say(f"seed {options.seed}")
    try:
        status = (self_test if options.self_test else audit)(audit_, options)
    except Skipped as why:
        print(f"skipped: {why}")
        status = kit.SKIPPED
    finally:
        audit_.run.close(keep=status == 1)
    return status


if __name__ == "__main__":
    sys.exit(main())
