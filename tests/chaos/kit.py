"""What the cases share: a registry, a run with its folder, brokers and volumes that end with it, records by hand."""

import contextlib
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

from volume import Skipped, Volume

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "blackbox"))
from harness import batch as rb  # noqa: E402
from harness.broker import MIB, Camus, Client, killed_after  # noqa: E402
from harness.wait import until  # noqa: E402

CASES = {}
#: A case's exit status when the machine can not do it.
SKIPPED = 77
#: How the broker ends: tools/camus/src/errors.rs.
STORAGE, DAMAGED, LOCKED, DATA_DIR = 10, 11, 12, 13


def case(rows, what, ci=True):
    """Registers a function of a [`Run`] under its name. `rows`: of the fault matrix."""

    def register(function):
        CASES[function.__name__] = (function, rows, what, ci)
        return function

    return register


class Run:
    """One run of one case."""

    def __init__(self, name, seed, short):
        self.name, self.seed, self.short = name, seed, short
        self.chance = random.Random(seed)
        self.folder = Path(tempfile.mkdtemp(prefix=f"camus-chaos-{name}-"))
        self.stack, self.count = contextlib.ExitStack(), 0
        self.brokers, self.volumes = [], []

    def volume(self):
        self.count += 1
        self.volumes.append(self.stack.enter_context(Volume(self.folder / f"volume{self.count}")))
        return self.volumes[-1]

    def broker(self, data_dir=None, **options):
        """Not started."""
        self.count += 1
        data_dir = data_dir or self.folder / f"data{self.count}"
        broker = Camus(data_dir, logs=self.folder / f"logs{self.count}", **options)
        self.brokers.append(broker)
        self.stack.callback(broker.kill_9)
        return broker

    def client(self, broker):
        client = Client(broker)
        self.stack.callback(client.forget)
        return client

    def say(self, text):
        print(f"{self.name}: {text}", flush=True)

    def close(self, keep):
        for volume in [v for v in self.volumes if v.process.poll() is None]:
            with contextlib.suppress(AssertionError, OSError, shutil.Error):
                volume.heal()  # a process that waits for a disk that hangs does not end
                if keep:
                    shutil.copytree(volume.at, self.folder / f"kept-{volume.at.name}")
        self.stack.close()
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)


def run_case(name, seed, short):
    """The exit status."""
    function, rows, what, _ = CASES[name]
    run = Run(name, seed, short)
    print(f"{name}: row {rows}: {what}; seed {seed}", flush=True)
    failed = True
    try:
        function(run)
        failed = False
        return 0
    except Skipped as why:
        failed = False
        print(f"skipped: {why}", flush=True)
        return SKIPPED
    except Exception:  # noqa: BLE001: a fault of the case is a fault
        traceback.print_exc()
        for broker in run.brokers:
            if broker.out:
                print(f"--- the broker on {broker.data_dir} said:\n{broker.said()}", flush=True)
        print(
            f"{name}: FAULT; what is left lies in {run.folder}; again: tests/chaos/run {name} --seed {seed}", flush=True
        )
        return 1
    finally:
        run.close(keep=failed)


class Records:
    """Numbered records of one producer by hand, one partition, and what was acknowledged where."""

    def __init__(self, client, topic, partition=0, size=200):
        self.client, self.topic, self.partition, self.size = client, topic, partition, size
        self.acked, self.refused, self.sent = {}, [], 0
        self.conn = client.connect()
        self.ids = self.conn.init_producer_id()

    def value(self, number):
        return (b"%d:%d:" % (self.partition, number)).ljust(self.size, b".")

    def put(self, timeout=30.0, timeout_ms=30_000):
        """One record; its answer. An error answer or a cut connection says nothing about the record."""
        number = self.sent
        batch = rb.build([self.value(number)], pid=self.ids[0], epoch=self.ids[1], seq=number)
        done = self.conn.produce(self.topic, batch, self.partition, timeout_ms=timeout_ms, timeout=timeout)
        if done.error:
            self.refused.append(done)
            return done
        self.sent += 1
        self.acked[number] = done.base_offset
        return done

    def put_many(self, count):
        for _ in range(count):
            done = self.put()
            assert done.error == 0, f"produce error {done.error}"
        return self

    def until_cut(self, seconds=30.0):
        """Sends until the connection ends or a record is refused."""
        end = time.monotonic() + seconds
        with contextlib.suppress(OSError):
            while time.monotonic() < end:
                if self.put().error:
                    return
            raise AssertionError("the broker went on acknowledging")

    def again(self):
        """A new connection, as after a restart. The sequence goes on."""
        self.conn.close()
        self.conn = self.client.connect()

    def check(self, values=None):
        """Every acknowledged record is where it was acknowledged, and each is there once, in order."""
        values = self.client.values(self.topic, self.partition) if values is None else values
        assert values == [self.value(n) for n in range(len(values))], "lost, doubled or out of order"
        assert len(values) >= len(self.acked), f"{len(self.acked)} were acknowledged, {len(values)} are there"
        for number, offset in self.acked.items():
            assert offset == number, f"record {number} was acknowledged at {offset}"
        return values


def refuses(broker, statuses, *words, seconds=40):
    """A start that must not succeed: its status and its words."""
    broker.launch()
    status = broker.wait_end(seconds)
    said = broker.said()
    assert status in statuses, f"ended with {status}, not one of {statuses}:\n{said}"
    assert "camus ready" not in said and "panicked" not in said, said
    for word in words:
        assert str(word) in said, f"{word} is not named:\n{said}"
    return said


def comes_back(broker, client, topics):
    """Started again on what is there. `topics`: name -> partitions."""
    client.forget()
    broker.start()
    for topic, partitions in topics.items():
        client.when_led(topic, partitions)


def codes_ready(broker):
    """The reasons that /readyz gives; empty when it is ready."""
    _, body = broker.get("/readyz", timeout=5)
    return re.findall(r'"code":"(\w+)"', body)


@contextlib.contextmanager
def ext4(run, image, mebibytes=None):
    """A loop device with direct I/O over `image`, with a new ext4 on it if `mebibytes` says how large."""
    mount = run.folder / f"ext4-{image.name}-{time.monotonic_ns()}"
    mount.mkdir()
    if mebibytes:
        with open(image, "wb") as file:
            file.truncate(mebibytes << 20)
            os.fsync(file.fileno())
    done = subprocess.run(["losetup", "-f", "--show", "--direct-io=on", image], capture_output=True, text=True)
    if done.returncode:
        raise Skipped(f"a loop device can not be had: {done.stderr.strip()}")
    loop = done.stdout.strip()
    try:
        if mebibytes:
            lazy = "lazy_itable_init=0,lazy_journal_init=0,nodiscard"
            command = ["mkfs.ext4", "-q", "-F", "-b", "4096", "-m", "0", "-J", "size=8", "-E", lazy, loop]
            made = subprocess.run(command, capture_output=True, text=True)
            if made.returncode:
                raise Skipped(f"mkfs.ext4 failed: {made.stderr.strip()}")
        mounted = subprocess.run(["mount", loop, mount], capture_output=True, text=True)
        if mounted.returncode and mebibytes:
            raise Skipped(f"mounting is not permitted here: {mounted.stderr.strip()}")
        assert mounted.returncode == 0, f"the file system does not mount: {mounted.stderr.strip()}"
        try:
            yield mount
        finally:
            for _ in range(100):
                if subprocess.run(["umount", mount], capture_output=True).returncode == 0:
                    break
                time.sleep(0.05)
            else:
                subprocess.run(["umount", "-l", mount], capture_output=True)
    finally:
        for _ in range(100):
            subprocess.run(["losetup", "-d", loop], capture_output=True)
            attached = subprocess.run(["losetup", "-j", image], capture_output=True, text=True).stdout
            if loop + ":" not in attached:
                break
            time.sleep(0.05)
        mount.rmdir()


__all__ = [
    "CASES", "DAMAGED", "DATA_DIR", "LOCKED", "MIB", "SKIPPED", "STORAGE", "Records", "Run", "Skipped", "case",
    "codes_ready", "comes_back", "ext4", "killed_after", "rb", "refuses", "run_case", "until",
]  # fmt: skip
