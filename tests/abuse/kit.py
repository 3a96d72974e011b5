"""What the abuse scripts share: a broker, requests encoded once, a well-behaved client. Standard library only."""

import os
import pathlib
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
MIB = 1 << 20
READY = re.compile(r"(?m)^camus ready kafka=(\S+) http=(\S+) cluster=(\S+)\n")
PRODUCE, FETCH, CREATE_TOPICS, DELETE_RECORDS = 0, 1, 19, 21
PRODUCE_VERSION, FETCH_VERSION, CREATE_VERSION, DELETE_VERSION = 3, 4, 2, 0


def binary():
    return os.environ.get("CAMUS_BIN") or str(ROOT / "target" / "release" / "camus")


# Told to end, a script ends its broker as well.
signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))


def room_for(descriptors):
    """How many of so many descriptors this process, and each that it starts, may have: as far as the limit goes up."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for most in (max(hard, descriptors), hard):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
            return min(most, descriptors)
        except (ValueError, OSError):
            pass  # not ours to raise
    return min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], descriptors)


# requests, of versions without compact fields


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _table():
    table = []
    for n in range(256):
        for _ in range(8):
            n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
        table.append(n)
    return table


TABLE = _table()


def varint(n):
    n, out = n << 1, bytearray()
    while n >= 0x80:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes([*out, n])


def batch(value_bytes):
    """One batch of one record of random bytes."""
    value = os.urandom(value_bytes)
    body = b"\0\0\0\x01" + varint(len(value)) + value + b"\0"  # attributes, times, offset, no key, value, no headers
    record = varint(len(body)) + body
    now = int(time.time() * 1000)
    after_crc = struct.pack(">hiqqqhii", 0, 0, now, now, -1, -1, -1, 1) + record
    head = struct.pack(">ibI", -1, 2, crc32c(after_crc))
    return struct.pack(">qi", 0, len(head) + len(after_crc)) + head + after_crc


def text(name):
    return struct.pack(">h", len(name)) + name.encode()


def frame(key, version, correlation, body):
    rest = struct.pack(">hhi", key, version, correlation) + text("abuse") + body
    return struct.pack(">i", len(rest)) + rest


def produce(topic, records, partition=0, correlation=1):
    data = struct.pack(">i", 1) + text(topic) + struct.pack(">iii", 1, partition, len(records)) + records
    return frame(PRODUCE, PRODUCE_VERSION, correlation, struct.pack(">hhi", -1, -1, 30_000) + data)


def fetch(topic, partition=0, offset=0, max_bytes=50 * MIB, wait_ms=0, correlation=1):
    one = struct.pack(">i", 1) + text(topic) + struct.pack(">iiqi", 1, partition, offset, max_bytes)
    return frame(FETCH, FETCH_VERSION, correlation, struct.pack(">iiiib", -1, wait_ms, 1, max_bytes, 0) + one)


def create_topic(name, partitions=1):
    topic = text(name) + struct.pack(">ihii", partitions, 1, 0, 0)
    body = struct.pack(">i", 1) + topic + struct.pack(">i?", 20_000, False)
    return frame(CREATE_TOPICS, CREATE_VERSION, 1, body)


def delete_records(topic, partitions):
    """All that is there of them."""
    each = b"".join(struct.pack(">iq", partition, -1) for partition in range(partitions))
    body = struct.pack(">i", 1) + text(topic) + struct.pack(">i", partitions) + each + struct.pack(">i", 20_000)
    return frame(DELETE_RECORDS, DELETE_VERSION, 1, body)


def error_of_produce(answer):
    """The error code in the answer to `produce`, without its length."""
    (topic_bytes,) = struct.unpack_from(">h", answer, 8)
    return struct.unpack_from(">h", answer, 8 + 2 + topic_bytes + 4 + 4)[0]


def connect(address, timeout=30.0, source=None, receive_buffer=None):
    host, _, port = address.rpartition(":")
    sock = socket.socket()
    if receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.settimeout(timeout)
    if source:
        sock.bind((source, 0))
    sock.connect((host, int(port)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def exactly(sock, n):
    parts = bytearray()
    while len(parts) < n:
        more = sock.recv(min(n - len(parts), MIB))
        if not more:
            raise ConnectionError("the broker closed the connection")
        parts += more
    return bytes(parts)


def call(sock, request):
    sock.sendall(request)
    return exactly(sock, *struct.unpack(">i", exactly(sock, 4)))


# a broker


class Broker:
    def __init__(self, directory, *args, settings=None, group=None, limit=None):
        self.dir, self.group = pathlib.Path(directory), group
        self.err, out = self.dir / "err", self.dir / "out"
        command = [binary(), "serve", "--data-dir", self.dir / "data"]
        command += ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
        command += [*args, *(word for pair in (settings or {}).items() for word in ("--set", "=".join(pair)))]
        clean = {k: v for k, v in os.environ.items() if not k.startswith("CAMUS_")}

        def before():
            if group:
                group.enter()
            if limit:
                resource.setrlimit(*limit)

        with open(out, "wb") as o, open(self.err, "wb") as e:
            words = [str(word) for word in command]
            self.process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=o, stderr=e, env=clean, preexec_fn=before
            )
        end = time.monotonic() + 30
        while not (ready := READY.search(out.read_text())):
            if self.process.poll() is not None or time.monotonic() > end:
                self.kill()
                sys.exit(f"the broker did not start:\n{self.err.read_text()[-2000:]}")
            time.sleep(0.01)
        self.address, self.http, _ = ready.groups()

    def alive(self):
        return self.process.poll() is None

    def kill(self):
        if self.alive():
            self.process.kill()
        self.process.wait()

    def status(self, field):
        found = re.search(rf"^{field}:\s+(\d+) kB", pathlib.Path(f"/proc/{self.process.pid}/status").read_text(), re.M)
        return int(found[1]) * 1024

    def rss(self):
        return self.status("VmRSS")

    def rss_max(self):
        """The most since the last call."""
        most = self.status("VmHWM")
        try:
            pathlib.Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        except OSError:
            pass  # then it is the most of all times
        return most

    def descriptors(self):
        """Of connections; files of the log come and go."""
        found = 0
        for entry in os.scandir(f"/proc/{self.process.pid}/fd"):
            try:
                found += os.readlink(entry.path).startswith("socket:")
            except OSError:
                pass  # closed meanwhile
        return found

    def cpus(self):
        """Those that its cores may run on."""
        found = set()
        for task in pathlib.Path(f"/proc/{self.process.pid}/task").iterdir():
            if re.fullmatch(r"core-\d+", (task / "comm").read_text().strip()):
                found |= os.sched_getaffinity(int(task.name))
        return found

    def log_lines(self):
        return self.err.read_bytes().count(b"\n")

    def metric(self, beginning, within=""):
        """The sum of all lines that begin so and have that in them."""
        with urllib.request.urlopen(f"http://{self.http}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(beginning) and within in line)

    def create(self, topic, partitions=1):
        with connect(self.address) as sock:
            call(sock, create_topic(topic, partitions))


# the well-behaved client


def percentile(sorted_values, percent):
    return sorted_values[min(len(sorted_values) - 1, int(len(sorted_values) * percent / 100))]


def latencies(address, topic, seconds, until=None, pause=0.002, value_bytes=1024):
    """Seconds of each produce, one at a time, sorted: for so long, or until `until()` holds."""
    request, took = produce(topic, batch(value_bytes)), []
    with connect(address) as sock:
        end = time.monotonic() + seconds
        while time.monotonic() < end and not (until and until()):
            begun = time.perf_counter()
            error = error_of_produce(call(sock, request))
            took.append(time.perf_counter() - begun)
            assert error == 0, f"a produce was refused with {error}"
            time.sleep(pause)
    return sorted(took)


def workspace():
    return tempfile.TemporaryDirectory(prefix="camus-abuse-", dir=os.environ.get("ABUSE_DIR"))


# memory limits


class Group:
    """A memory control group below our own, for one child. Version 2 or 1; None where it may not be made."""

    def __init__(self, path, limit_file, peak_file, kills_file):
        self.path, self.limit_file, self.peak_file, self.kills_file = path, limit_file, peak_file, kills_file

    @staticmethod
    def make(limit_bytes):
        for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, ours = line.split(":", 2)
            if "memory" in controllers.split(","):
                base = pathlib.Path("/sys/fs/cgroup/memory" + ours)
                files = "memory.limit_in_bytes", "memory.max_usage_in_bytes", "memory.oom_control"
            elif not controllers:
                base = pathlib.Path("/sys/fs/cgroup" + ours)
                files = "memory.max", "memory.peak", "memory.events"
            else:
                continue
            path = base / f"camus-abuse-{os.getpid()}"
            try:
                path.mkdir()
            except OSError:
                continue
            group = Group(path, *files)
            try:
                (path / group.limit_file).write_text(str(limit_bytes))
                (path / "cgroup.procs").read_text()
                if group.limit() == limit_bytes:
                    return group
            except OSError:
                pass
            group.remove()
        return None

    def limit(self):
        return int((self.path / self.limit_file).read_text())

    def enter(self):
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def peak(self):
        try:
            return int((self.path / self.peak_file).read_text())
        except OSError:
            return 0

    def kills(self):
        found = re.search(r"oom_kill (\d+)", (self.path / self.kills_file).read_text())
        return int(found[1]) if found else 0

    def remove(self):
        for _ in range(50):
            try:
                return self.path.rmdir()
            except OSError:
                time.sleep(0.1)
