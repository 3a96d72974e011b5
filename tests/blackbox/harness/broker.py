"""A broker process: started, watched, killed, started again on the same data and port.

With BLACKBOX_BOOTSTRAP=HOST:PORT the tests that hold for every Kafka-compatible broker run against that one instead, to
prove the tests themselves. BLACKBOX_KILL and BLACKBOX_START are then the shell commands that kill it with SIGKILL and
start it again; without them the tests that restart are skipped.
"""

import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from contextlib import contextmanager
from pathlib import Path

import pytest

from . import batch as rb
from .wait import until
from .wire import Closed, Conn

ROOT = Path(__file__).resolve().parents[3]
FOREIGN = os.environ.get("BLACKBOX_BOOTSTRAP")
READY = re.compile(r"(?m)^camus ready kafka=(\S+) http=(\S+) cluster=(\S+)\n")  # with its end: not while it is written
MIB = 1 << 20


def binary():
    path = Path(os.environ.get("CAMUS_BIN") or ROOT / "target/release/camus")
    if not path.exists():
        pytest.fail(f"there is no binary at {path}: cargo build --release, or set CAMUS_BIN", pytrace=False)
    return path


def fresh(name="t"):
    """A topic name that nobody used before."""
    return f"{name}-{uuid.uuid4().hex[:10]}"


class Camus:
    """One broker on one data directory. `start` may be called again after `kill_9` and `stop`: same data, same port."""

    def __init__(self, data_dir, cores=1, io=None, settings=None, env=None, args=(), logs=None):
        self.data_dir, self.cores = Path(data_dir), cores
        self.io = io or os.environ.get("CAMUS_TEST_IO", "uring")
        # The smallest segments: a start pre-writes little, and a test crosses several of them.
        self.settings = {"camus.wal.segment.bytes": 32 * MIB, **(settings or {})}
        self.env, self.args = env or {}, args
        self.out = self.err = None
        self.process, self.address, self.http, self.cluster = None, "127.0.0.1:0", "127.0.0.1:0", None
        self.logs, self.runs = Path(logs or self.data_dir.parent) / f"{self.data_dir.name}-logs", 0

    def command(self):
        command = [
            binary(),
            "serve",
            "--data-dir",
            self.data_dir,
            "--listen",
            self.address,
            "--http",
            self.http,
            "--cores",
            str(self.cores),
            "--io",
            self.io,
        ]
        # Another shell than the one that --io means: for builds with shell-glommio. Tests of `blocking` keep theirs.
        if (shell := os.environ.get("CAMUS_TEST_SHELL")) and self.io != "blocking":
            command += ["--shell", shell]
        for key, value in self.settings.items():
            command += ["--set", f"{key}={value}"]
        return [str(word) for word in [*command, *self.args]]

    def environment(self):
        clean = {k: v for k, v in os.environ.items() if not k.startswith("CAMUS_")}
        return {**clean, **self.env}

    def launch(self):
        """Starts the process and does not wait for anything."""
        assert self.process is None, "already running"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.runs += 1
        self.out, self.err = (self.logs / f"run{self.runs}.{kind}" for kind in ("out", "err"))
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=self.environment(), cwd=self.logs
            )
        return self

    def start(self, seconds=30.0):
        self.launch()
        begun = time.monotonic()
        while True:
            ready = READY.search(self.out.read_text(errors="replace"))
            if ready:
                break
            status = self.process.poll()
            assert status is None, f"the broker ended with {status} before it was ready:\n{self.said()}"
            if time.monotonic() - begun > seconds:
                said = self.said()
                self.kill_9()
                raise AssertionError(f"the broker was not ready within {seconds} s:\n{said}")
            time.sleep(0.01)
        self.start_seconds = time.monotonic() - begun
        self.address, self.http, self.cluster = ready.groups()
        return self

    def said(self):
        """The end of what the latest run printed."""
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-4000:]}"
            for path in (self.out, self.err)
            if path and path.exists()
        )

    @property
    def pid(self):
        return self.process.pid

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def signal(self, number):
        self.process.send_signal(number)

    def wait_end(self, seconds=30.0):
        """Waits for the end of the process, of its own accord; its exit status."""
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the broker did not end within {seconds} s:\n{self.said()}") from None
        self.process = None
        return status

    def kill_9(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self, seconds=10.0):
        """SIGTERM; must end with status 0 in time."""
        self.signal(signal.SIGTERM)
        status = self.wait_end(seconds)
        assert status == 0, f"SIGTERM ended the broker with status {status}:\n{self.said()}"

    # what the kernel knows of the process

    def rss_bytes(self):
        return int(re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())[1]) * 1024

    def cpu_seconds(self):
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    # HTTP and command line

    def get(self, path, timeout=10):
        """(status, body) of the HTTP port."""
        try:
            with urllib.request.urlopen(f"http://{self.http}{path}", timeout=timeout) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


class Foreign:
    """The same interface over a broker that somebody else started, as far as it goes."""

    io, cores, start_seconds = "foreign", 1, 0.0

    def __init__(self):
        self.address = FOREIGN

    def start(self, seconds=60.0):
        subprocess.run(
            os.environ["BLACKBOX_START"],
            shell=True,
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

        def answers():
            with Conn(self.address) as conn:
                return conn.metadata()["brokers"]

        until(answers, seconds, "the broker answers")
        return self

    def kill_9(self):
        if "BLACKBOX_KILL" not in os.environ:
            pytest.skip("BLACKBOX_KILL is not set")
        subprocess.run(os.environ["BLACKBOX_KILL"], shell=True, check=True)

    def said(self):
        return ""


class Client:
    """Short ways to do what most tests do, over one raw connection made when needed."""

    def __init__(self, broker):
        self.broker, self.conn = broker, None

    def connect(self, **options):
        return Conn(self.broker.address, **options)

    def on(self):
        if self.conn is None:
            self.conn = self.connect()
        return self.conn

    def forget(self):
        """The broker was killed: the connection is gone."""
        if self.conn is not None:
            self.conn.close()
        self.conn = None

    def topic(self, partitions=1, name="t", **configs):
        name = fresh(name)
        error = self.on().create_topic(name, partitions, configs)
        assert error == 0, f"CreateTopics error {error}"
        self.when_led(name, partitions)
        return name

    def when_led(self, name, partitions=1):
        def led():
            found = self.on().metadata([name])["topics"][name]
            return (
                len(found["partitions"]) == partitions
                and all(p["error"] == 0 and p["leader"] >= 0 for p in found["partitions"])
                and all(self.on().list_offset(name, -1, p)[0] == 0 for p in range(partitions))
            )

        until(led, what=f"every partition of {name} has a leader")

    def put(self, topic, values, partition=0, **fields):
        """Appends one batch and returns its base offset."""
        done = self.on().produce(topic, rb.build(values, **fields), partition)
        assert done.error == 0, f"produce error {done.error}: {done.message}"
        return done.base_offset

    def read(self, topic, partition=0, start=0, end=None, conn=None):
        """Every record from `start` to `end` (default: the high watermark), whose offsets must be contiguous."""
        conn = conn or self.on()
        out, at = [], start
        while end is None or at < end:
            got = conn.fetch(topic, at, partition, max_wait_ms=0)
            assert got.error == 0, f"fetch error {got.error} at {at}"
            end = got.high_watermark if end is None else end
            batches = rb.parse(got.records)
            if not batches:
                assert at >= end, f"nothing was served at {at}, below the end {end}"
                break
            for batch in batches:
                assert batch.base_offset <= at, f"the log skips from {at} to {batch.base_offset}"
                out += [r for r in batch.records() if r.offset >= at]
                at = max(at, batch.next_offset)
        assert [r.offset for r in out] == list(range(start, at)), "offsets are not contiguous"
        return [r for r in out if r.offset < end]

    def values(self, topic, partition=0, **options):
        return [r.value for r in self.read(topic, partition, **options)]

    def healthy(self):
        """The broker serves somebody else: a new connection, a new record of a new topic."""
        with self.connect() as conn:
            name = fresh("healthy")
            error = conn.create_topic(name)
            assert error == 0, f"CreateTopics error {error}"

            def appended():
                done = conn.produce(name, rb.build([b"alive"]))
                return done if done.error == 0 else None

            assert until(appended).base_offset == 0
            got = conn.fetch(name, 0, max_wait_ms=1000)
            assert [r.value for b in rb.parse(got.records) for r in b.records()] == [b"alive"]


__all__ = ["Camus", "Client", "Closed", "Conn", "FOREIGN", "Foreign", "MIB", "ROOT", "binary", "fresh"]


@contextmanager
def killed_after(broker):
    """A client of this broker. Behind the block both are gone: what the data lies on can go as well."""
    client = Client(broker)
    try:
        yield client
    finally:
        client.forget()
        broker.kill_9()
