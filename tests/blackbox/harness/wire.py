"""A raw connection to a broker: frames encoded by hand, exact to the version asked for.

Only the seven APIs that the tests need. The reader insists that an answer is used up to its last byte, so that an
answer in
another version's layout is found. Requests can be sent without waiting (`send_*`) and their answers taken later, in
order.
"""

import socket
import struct
import time
from dataclasses import dataclass, field

PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS, CREATE_TOPICS, DELETE_TOPICS, INIT_PRODUCER_ID = (
    0,
    1,
    2,
    3,
    18,
    19,
    20,
    22,
)
FLEXIBLE_FROM = {
    PRODUCE: 9,
    FETCH: 12,
    LIST_OFFSETS: 6,
    METADATA: 9,
    API_VERSIONS: 3,
    CREATE_TOPICS: 5,
    DELETE_TOPICS: 4,
    INIT_PRODUCER_ID: 2,
}

OFFSET_OUT_OF_RANGE, CORRUPT_MESSAGE, UNKNOWN_TOPIC, LEADER_NOT_AVAILABLE, NOT_LEADER, TIMED_OUT = 1, 2, 3, 5, 6, 7
MESSAGE_TOO_LARGE, NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS_AFTER_APPEND, UNSUPPORTED_VERSION = 10, 19, 20, 35
TOPIC_EXISTS, OUT_OF_ORDER, INVALID_EPOCH, STORAGE_ERROR, INVALID_RECORD, THROTTLED = 36, 45, 47, 56, 87, 89
#: Codes that a client answers by sending the same batch again.
RETRIABLE = {
    CORRUPT_MESSAGE,
    UNKNOWN_TOPIC,
    LEADER_NOT_AVAILABLE,
    NOT_LEADER,
    TIMED_OUT,
    NOT_ENOUGH_REPLICAS,
    NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    STORAGE_ERROR,
    THROTTLED,
}


class Closed(ConnectionError):
    """The broker ended the connection."""


class Silent(AssertionError):
    """No answer within the time."""


class W:
    """Writes a body in the compact (flexible) or the classic layout."""

    def __init__(self, flexible):
        self.out, self.flexible = bytearray(), flexible

    def put(self, fmt, *values):
        self.out += struct.pack(">" + fmt, *values)
        return self

    def uvarint(self, n):
        while n >= 0x80:
            self.out.append(n & 0x7F | 0x80)
            n >>= 7
        self.out.append(n)
        return self

    def string(self, text):
        raw = None if text is None else text.encode()
        if self.flexible:
            self.uvarint(0 if raw is None else len(raw) + 1)
        else:
            self.put("h", -1 if raw is None else len(raw))
        self.out += raw or b""
        return self

    def blob(self, raw):
        if self.flexible:
            self.uvarint(0 if raw is None else len(raw) + 1)
        else:
            self.put("i", -1 if raw is None else len(raw))
        self.out += raw or b""
        return self

    def array(self, items, each):
        if self.flexible:
            self.uvarint(0 if items is None else len(items) + 1)
        else:
            self.put("i", -1 if items is None else len(items))
        for item in items or ():
            each(item)
        return self

    def tags(self):
        if self.flexible:
            self.out.append(0)
        return self


class R:
    """Reads a body; `done` fails when bytes are left over."""

    def __init__(self, data, flexible):
        self.data, self.at, self.flexible = data, 0, flexible

    def get(self, fmt):
        fmt = ">" + fmt
        values = struct.unpack_from(fmt, self.data, self.at)
        self.at += struct.calcsize(fmt)
        return values[0] if len(values) == 1 else values

    def raw(self, n):
        assert self.at + n <= len(self.data), "a length runs over the end of the answer"
        self.at += n
        return bytes(self.data[self.at - n : self.at])

    def uvarint(self):
        shift = value = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def string(self):
        n = self.uvarint() - 1 if self.flexible else self.get("h")
        return None if n < 0 else self.raw(n).decode()

    def blob(self):
        n = self.uvarint() - 1 if self.flexible else self.get("i")
        return None if n < 0 else self.raw(n)

    def array(self, each):
        n = self.uvarint() - 1 if self.flexible else self.get("i")
        return None if n < 0 else [each() for _ in range(n)]

    def tags(self):
        if self.flexible:
            for _ in range(self.uvarint()):
                self.uvarint()
                self.raw(self.uvarint())

    def done(self):
        assert self.at == len(self.data), f"{len(self.data) - self.at} bytes left over in the answer"


@dataclass
class Produced:
    error: int
    base_offset: int
    append_time: int = -1
    log_start: int = -1
    message: str | None = None
    record_errors: list = field(default_factory=list)


@dataclass
class Fetched:
    error: int
    high_watermark: int
    log_start: int
    records: bytes


class Conn:
    """One connection. Not for several threads at once."""

    def __init__(self, address, timeout=30.0, receive_buffer=None, client_id="blackbox"):
        self.sock = socket.socket()
        if receive_buffer:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.sock.settimeout(timeout)
        host, _, port = address.rpartition(":")
        self.sock.connect((host, int(port)))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.client_id, self.correlation, self.buffer = client_id, 0, b""
        self.topic_ids = {}

    def close(self):
        self.sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # frames

    def send_raw(self, data):
        try:
            self.sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise Closed(str(error)) from None

    def request(self, key, version, body, correlation=None, client_id="same"):
        """The whole frame of a request."""
        if correlation is None:
            self.correlation += 1
            correlation = self.correlation
        head = (
            W(False).put("hhi", key, version, correlation).string(self.client_id if client_id == "same" else client_id)
        )
        if version >= FLEXIBLE_FROM.get(key, 1 << 15):
            head.out.append(0)
        frame = bytes(head.out) + bytes(body)
        return struct.pack(">i", len(frame)) + frame

    def send(self, key, version, body):
        self.send_raw(self.request(key, version, body))
        return self.correlation

    def exactly(self, n, timeout=None):
        if timeout is not None:
            self.sock.settimeout(timeout)
        while len(self.buffer) < n:
            try:
                more = self.sock.recv(max(1 << 16, min(n - len(self.buffer), 1 << 20)))
            except TimeoutError:
                raise Silent(f"no answer within {self.sock.gettimeout()} s") from None
            except ConnectionResetError:
                more = b""
            if not more:
                raise Closed("the broker closed the connection")
            self.buffer += more
        got, self.buffer = self.buffer[:n], self.buffer[n:]
        return got

    def receive(self, key, version, correlation=None, timeout=None):
        """The next answer; it must be to the request `correlation` (default: the last one sent)."""
        (size,) = struct.unpack(">i", self.exactly(4, timeout))
        assert 4 <= size <= 1 << 30, f"an answer of {size} bytes"
        flexible = version >= FLEXIBLE_FROM[key]
        answer = R(self.exactly(size, timeout), flexible)
        got = answer.get("i")
        want = self.correlation if correlation is None else correlation
        assert got == want, f"the answer to request {got} came where that to {want} was due"
        if flexible and key != API_VERSIONS:
            answer.tags()
        return answer

    def assert_closed(self, timeout=15.0):
        """The broker closes without a further byte."""
        self.sock.settimeout(timeout)
        try:
            more = self.sock.recv(1)
        except ConnectionResetError:
            return
        except TimeoutError:
            raise Silent(f"the connection is still open after {timeout} s") from None
        assert not more, f"an answer came where the connection should have been closed: {more!r}"

    def assert_silent(self, seconds):
        self.sock.settimeout(seconds)
        try:
            more = self.sock.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return
        raise AssertionError(f"{'an answer came' if more else 'the connection was closed'} where nothing was due")

    # ApiVersions

    def api_versions(self, version=3):
        w = W(version >= 3)
        if version >= 3:
            w.string("blackbox").string("1").tags()
        self.send(API_VERSIONS, version, w.out)
        return self.receive_api_versions(version)

    def receive_api_versions(self, version):
        r = self.receive(API_VERSIONS, version)
        error = r.get("h")

        def entry():
            key, low, high = r.get("hhh")
            r.tags()
            return key, (low, high)

        ranges = dict(r.array(entry))
        if version >= 1:
            r.get("i")
        r.tags()
        r.done()
        return error, ranges

    # Metadata

    def metadata(self, topics=(), version=12, create=False):
        w = W(version >= 9)

        def name(topic):
            if version >= 10:
                w.out.extend(bytes(16))
            w.string(topic).tags()

        w.array(topics, name)
        if version >= 4:
            w.put("?", create)
        if 8 <= version <= 10:
            w.put("?", False)
        if version >= 8:
            w.put("?", False)
        self.send(METADATA, version, w.tags().out)
        r = self.receive(METADATA, version)
        if version >= 3:
            r.get("i")

        def broker():
            found = {"id": r.get("i"), "host": r.string(), "port": r.get("i")}
            if version >= 1:
                found["rack"] = r.string()
            r.tags()
            return found

        def partition():
            found = {"error": r.get("h"), "index": r.get("i"), "leader": r.get("i")}
            if version >= 7:
                found["epoch"] = r.get("i")
            found["replicas"], found["isr"] = r.array(lambda: r.get("i")), r.array(lambda: r.get("i"))
            if version >= 5:
                r.array(lambda: r.get("i"))
            r.tags()
            return found

        def topic():
            found = {"error": r.get("h"), "name": r.string()}
            if version >= 10:
                found["id"] = r.raw(16)
            if version >= 1:
                r.get("?")
            found["partitions"] = sorted(r.array(partition), key=lambda p: p["index"])
            if version >= 8:
                r.get("i")
            r.tags()
            if version >= 10:
                self.topic_ids[found["name"]] = found["id"]
            return found

        answer = {"brokers": r.array(broker)}
        if version >= 2:
            answer["cluster"] = r.string()
        if version >= 1:
            answer["controller"] = r.get("i")
        answer["topics"] = {t["name"]: t for t in r.array(topic)}
        if 8 <= version <= 10:
            r.get("i")
        if version >= 13:
            answer["error"] = r.get("h")
        r.tags()
        r.done()
        return answer

    def topic_id(self, name):
        if name not in self.topic_ids:
            self.metadata([name], version=12)
        return self.topic_ids[name]

    # CreateTopics, DeleteTopics

    def create_topic(self, name, partitions=1, configs=None, version=5, timeout_ms=20000):
        """The error code of the topic."""
        w = W(version >= 5)

        def topic(_):
            w.string(name).put("ih", partitions, 1).array([], None)
            w.array(list((configs or {}).items()), lambda kv: w.string(kv[0]).string(kv[1]).tags()).tags()

        w.array([0], topic).put("i?", timeout_ms, False).tags()
        self.send(CREATE_TOPICS, version, w.out)
        r = self.receive(CREATE_TOPICS, version)
        if version >= 2:
            r.get("i")

        def created():
            r.string()
            if version >= 7:
                r.raw(16)
            error = r.get("h")
            if version >= 1:
                r.string()
            if version >= 5:
                r.get("ih")
                r.array(lambda: (r.string(), r.string(), r.get("?b?"), r.tags()))
            r.tags()
            return error

        (error,) = r.array(created)
        r.tags()
        r.done()
        return error

    def delete_topic(self, name, version=4, timeout_ms=20000):
        w = W(version >= 4)
        w.array([name], w.string).put("i", timeout_ms).tags()
        self.send(DELETE_TOPICS, version, w.out)
        r = self.receive(DELETE_TOPICS, version)
        r.get("i")

        def deleted():
            r.string()
            error = r.get("h")
            if version >= 5:
                r.string()
            r.tags()
            return error

        (error,) = r.array(deleted)
        r.tags()
        r.done()
        return error

    # Produce

    def send_produce(self, topic, records, partition=0, acks=-1, timeout_ms=30000, version=9):
        return self.send_produce_many(topic, [(partition, records)], acks, timeout_ms, version)

    def send_produce_many(self, topic, parts, acks=-1, timeout_ms=30000, version=9):
        w = W(version >= 9).string(None).put("hi", acks, timeout_ms)

        def each(_):
            w.string(topic) if version < 13 else w.out.extend(topic_id)
            w.array(parts, lambda part: w.put("i", part[0]).blob(part[1]).tags()).tags()

        topic_id = self.topic_id(topic) if version >= 13 else None
        w.array([0], each).tags()
        return self.send(PRODUCE, version, w.out)

    def receive_produce(self, correlation=None, version=9, timeout=None):
        found = self.receive_produce_many(correlation, version, timeout)
        assert len(found) == 1, found
        return found.popitem()[1]

    def receive_produce_many(self, correlation=None, version=9, timeout=None):
        """Partition -> [`Produced`]."""
        r, out = self.receive(PRODUCE, version, correlation, timeout), {}

        def partition():
            index, error, base = r.get("ihq")
            done = Produced(error, base, r.get("q"))
            if version >= 5:
                done.log_start = r.get("q")
            if version >= 8:
                done.record_errors = r.array(lambda: (r.get("i"), r.string(), r.tags()))
                done.message = r.string()
            r.tags()
            out[index] = done

        r.array(lambda: (r.string() if version < 13 else r.raw(16), r.array(partition), r.tags()))
        r.get("i")
        r.tags()
        r.done()
        return out

    def produce(self, topic, records, partition=0, acks=-1, timeout_ms=30000, version=9, timeout=None):
        correlation = self.send_produce(topic, records, partition, acks, timeout_ms, version)
        return self.receive_produce(correlation, version, timeout)

    # Fetch

    def send_fetch(
        self, topic, offsets, max_wait_ms=0, min_bytes=1, max_bytes=50 << 20, partition_bytes=10 << 20, version=12
    ):
        """`offsets`: partition -> offset."""
        w = W(version >= 12)
        topic_id = self.topic_id(topic) if version >= 13 else None
        if version < 15:
            w.put("i", -1)
        w.put("iiib", max_wait_ms, min_bytes, max_bytes, 0)
        if version >= 7:
            w.put("ii", 0, -1)

        def partition(item):
            w.put("i", item[0])
            if version >= 9:
                w.put("i", -1)
            w.put("q", item[1])
            if version >= 12:
                w.put("i", -1)
            if version >= 5:
                w.put("q", -1)
            w.put("i", partition_bytes).tags()

        def each(_):
            w.string(topic) if version < 13 else w.out.extend(topic_id)
            w.array(list(offsets.items()), partition).tags()

        w.array([0], each)
        if version >= 7:
            w.array([], None)
        if version >= 11:
            w.string("")
        return self.send(FETCH, version, w.tags().out)

    def receive_fetch(self, correlation=None, version=12, timeout=None):
        """Partition -> [`Fetched`]."""
        r, out = self.receive(FETCH, version, correlation, timeout), {}
        r.get("i")
        if version >= 7:
            error, session = r.get("hi")
            assert error == 0, f"fetch error {error}"

        def partition():
            index, error, high = r.get("ihq")
            r.get("q")
            start = r.get("q") if version >= 5 else -1
            r.array(lambda: (r.get("qq"), r.tags()))
            if version >= 11:
                r.get("i")
            out[index] = Fetched(error, high, start, r.blob() or b"")
            r.tags()

        r.array(lambda: (r.string() if version < 13 else r.raw(16), r.array(partition), r.tags()))
        r.tags()
        r.done()
        return out

    def fetch(self, topic, offset, partition=0, version=12, timeout=None, **options):
        correlation = self.send_fetch(topic, {partition: offset}, version=version, **options)
        return self.receive_fetch(correlation, version, timeout)[partition]

    # ListOffsets

    def list_offset(self, topic, timestamp, partition=0, version=6):
        """(error, timestamp, offset)"""
        w = W(version >= 6).put("i", -1)
        if version >= 2:
            w.put("b", 0)

        def each(_):
            w.put("i", partition)
            if version >= 4:
                w.put("i", -1)
            w.put("q", timestamp).tags()

        w.array([0], lambda _: w.string(topic).array([0], each).tags())
        if version >= 10:
            w.put("i", 30000)
        self.send(LIST_OFFSETS, version, w.tags().out)
        r = self.receive(LIST_OFFSETS, version)
        if version >= 2:
            r.get("i")

        def found():
            _, error, time_ms, offset = r.get("ihqq")
            if version >= 4:
                r.get("i")
            r.tags()
            return error, time_ms, offset

        def per_topic():
            r.string()
            (answer,) = r.array(found)
            r.tags()
            return answer

        (answer,) = r.array(per_topic)
        r.tags()
        r.done()
        return answer

    def end(self, topic, partition=0):
        error, _, offset = self.list_offset(topic, -1, partition)
        assert error == 0, f"ListOffsets error {error}"
        return offset

    # InitProducerId

    def init_producer_id(self, version=4):
        """(producer id, epoch). A broker that has just started may ask to try again."""
        for _ in range(200):
            error, pid, epoch = self._init_producer_id(version)
            if error not in (14, 15):
                break
            time.sleep(0.1)
        assert error == 0, f"InitProducerId error {error}"
        return pid, epoch

    def _init_producer_id(self, version):
        w = W(version >= 2).string(None).put("i", 60000)
        if version >= 3:
            w.put("qh", -1, -1)
        self.send(INIT_PRODUCER_ID, version, w.tags().out)
        r = self.receive(INIT_PRODUCER_ID, version)
        r.get("i")
        error, pid, epoch = r.get("hqh")
        r.tags()
        r.done()
        return error, pid, epoch
