"""The broker under test: a `camus serve` of our own, or one that somebody else started; and a few questions by hand.

`Own` starts, kills and starts again; `Foreign` does so with BLACKBOX_KILL and BLACKBOX_START. `served` and
`stored_batch` speak the protocol without a client library, so that what a client claims can be compared with what is
there.
"""

import os
import re
import signal
import socket
import struct
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from process import Failure

ROOT = Path(__file__).resolve().parents[2]
READY = re.compile(r"(?m)^camus ready kafka=(\S+) http=(\S+) cluster=(\S+)\n")
START_S = 30.0
STOP_S = 20.0
#: The smallest segments, so that a start writes little; and a group that does not wait for members that do not come.
SETTINGS = {"camus.wal.segment.bytes": 32 << 20, "group.initial.rebalance.delay.ms": 300}


def binary():
    target = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")
    path = Path(os.environ.get("CAMUS_BIN") or target / "release/camus")
    if not os.access(path, os.X_OK):
        raise SystemExit(f"there is no binary at {path}: cargo build --release -p camus, or set CAMUS_BIN")
    return path.resolve()


def version():
    done = subprocess.run([binary(), "--version"], capture_output=True, text=True, timeout=10)
    return done.stdout.strip() or "camus"


class Own:
    """One broker on one empty directory. `start` again after `kill_9`: same directory, same port."""

    can_restart = True

    def __init__(self, folder):
        self.folder, self.process, self.runs = Path(folder), None, 0
        self.address, self.http = "127.0.0.1:0", "127.0.0.1:0"
        self.folder.mkdir(parents=True, exist_ok=True)

    def command(self):
        words = [binary(), "serve", "--data-dir", self.folder / "data", "--listen", self.address, "--http", self.http]
        words += ["--cores", "1", "--io", os.environ.get("CAMUS_TEST_IO", "uring")]
        for key, value in SETTINGS.items():
            words += ["--set", f"{key}={value}"]
        return [str(word) for word in words]

    def start(self):
        self.runs += 1
        out, begun = self.folder / f"run{self.runs}.log", time.monotonic()
        clean = {key: value for key, value in os.environ.items() if not key.startswith("CAMUS_")}
        with open(out, "wb") as log:
            self.process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=clean, cwd=self.folder
            )
        while not (ready := READY.search(out.read_text(errors="replace"))):
            status = self.process.poll()
            if status is not None or time.monotonic() - begun > START_S:
                self.kill_9()
                what = "was not ready in time" if status is None else f"ended with {status} before it was ready"
                raise Failure(f"the broker {what}:\n{self.said()}")
            time.sleep(0.01)
        self.address, self.http = ready[1], ready[2]
        return self

    def said(self):
        logs = sorted(self.folder.glob("run*.log"), key=lambda path: path.stat().st_mtime)
        return logs[-1].read_text(errors="replace")[-4000:] if logs else ""

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def kill_9(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self):
        """SIGTERM, and SIGKILL if that does not end it in time. Whether it ended in order."""
        if not self.alive():
            return False
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_S) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            self.kill_9()


class Foreign:
    """A broker of somebody else's."""

    def __init__(self, address):
        self.address, self.can_restart = address, {"BLACKBOX_KILL", "BLACKBOX_START"} <= os.environ.keys()

    def shell(self, variable):
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run(os.environ[variable], shell=True, check=True, timeout=90, **quiet)

    def start(self):
        self.shell("BLACKBOX_START")
        end = time.monotonic() + 60
        while True:
            try:
                return served(self.address) and self
            except (OSError, Failure):
                if time.monotonic() > end:
                    raise Failure("the broker does not answer 60 s after BLACKBOX_START") from None
                time.sleep(0.2)

    def kill_9(self):
        self.shell("BLACKBOX_KILL")

    def said(self):
        return ""

    def alive(self):
        return True


class Wire:
    """One connection, and one request at a time."""

    def __init__(self, address):
        host, _, port = address.rpartition(":")
        self.sock = socket.create_connection((host, int(port)), timeout=15)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()

    def ask(self, key, version, body):
        head = struct.pack(">hhih", key, version, 7, -1)
        self.sock.sendall(struct.pack(">i", len(head) + len(body)) + head + body)
        (size,) = struct.unpack(">i", self.take(4))
        answer = self.take(size)
        if struct.unpack_from(">i", answer)[0] != 7:
            raise Failure("an answer to another question")
        return Reader(answer, 4)

    def take(self, count):
        out = b""
        while len(out) < count:
            more = self.sock.recv(count - len(out))
            if not more:
                raise Failure("the broker closed the connection")
            out += more
        return out


class Reader:
    def __init__(self, data, at):
        self.data, self.at = data, at

    def get(self, form):
        values = struct.unpack_from(f">{form}", self.data, self.at)
        self.at += struct.calcsize(f">{form}")
        return values[0] if len(values) == 1 else values

    def string(self):
        size = self.get("h")
        self.at += max(size, 0)
        return None if size < 0 else self.data[self.at - size : self.at].decode()

    def varint(self):
        value = shift = 0
        while True:
            byte = self.get("B")
            value, shift = value | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                return value

    def compact(self):
        """A compact string; None if it is null."""
        size = self.varint()
        return self.rest(size - 1).decode() if size else None

    def rest(self, count):
        self.at += count
        return self.data[self.at - count : self.at]


def served(address):
    """key -> (lowest, highest version), by ApiVersions 0."""
    with Wire(address) as wire:
        answer = wire.ask(18, 0, b"")
        error, count = answer.get("hi")
        if error:
            raise Failure(f"ApiVersions 0 answered error {error}")
        entries = [answer.get("hhh") for _ in range(count)]
    return {key: (low, high) for key, low, high in entries}


@dataclass
class Batch:
    base_offset: int
    attributes: int
    producer_id: int
    base_sequence: int
    records: int

    @property
    def codec(self):
        return ("none", "gzip", "snappy", "lz4", "zstd")[self.attributes & 7]


def stored_batch(address, topic, partition=0, offset=0):
    """The head of the batch that holds this offset, as Fetch 4 gives it."""
    name = topic.encode()
    body = struct.pack(">iiiib", -1, 1000, 1, 1 << 20, 0)
    body += struct.pack(">ih", 1, len(name)) + name + struct.pack(">iiqi", 1, partition, offset, 1 << 20)
    with Wire(address) as wire:
        answer = wire.ask(1, 4, body)
    answer.get("ii")  # throttled, topics: this one
    answer.string()
    _, _, error, _, _, aborted = answer.get("iihqqi")
    if error:
        raise Failure(f"Fetch 4 of {topic}-{partition} at {offset} answered error {error}")
    for _ in range(max(aborted, 0)):
        answer.get("qq")
    data = answer.rest(max(answer.get("i"), 0))
    if len(data) < 61:
        raise Failure(f"Fetch 4 of {topic}-{partition} at {offset} gave {len(data)} bytes, which is no batch")
    base, _, _, _, _, attributes, _, _, _, producer_id, _, sequence, count = struct.unpack_from(">qiibIhiqqqhii", data)
    return Batch(base, attributes, producer_id, sequence, count)


def consumer_members(address, group):
    """How many members a group of KIP-848 has, by ConsumerGroupDescribe 0; a group of the classic protocol is none."""
    name = group.encode()
    body = b"\0\2" + bytes([len(name) + 1]) + name + b"\0\0"  # the header's tags, one group, no operations, no tags
    with Wire(address) as wire:
        answer = wire.ask(69, 0, body)
    answer.get("bi")  # the header's tags, throttled
    answer.varint()  # groups: this one
    error, text, _, state = answer.get("h"), answer.compact(), answer.compact(), answer.compact()
    if error:
        raise Failure(f"ConsumerGroupDescribe 0 of {group} answered error {error}: {text} {state}")
    answer.get("ii")  # epochs
    answer.compact()  # assignor
    return answer.varint() - 1


def codec_of(address, topic, partition=0):
    return stored_batch(address, topic, partition).codec
