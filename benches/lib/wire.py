"""The few Kafka requests that need no client: is a broker there, make a topic, append one record.

Old versions in the classic layout: short, and every broker since 4.0 still has them (Produce 3, Metadata 1 and
CreateTopics 2 are the oldest that Kafka 4 takes). Source: Kafka's message definitions, KIP-896.
"""

import socket
import struct
import time

PRODUCE, METADATA, CREATE_TOPICS, DELETE_TOPICS = (0, 3), (3, 1), (19, 2), (20, 1)
ACKS_ALL = -1


def crc_table():
    table = []
    for n in range(256):
        for _ in range(8):
            n = n >> 1 ^ 0x82F63B78 if n & 1 else n >> 1
        table.append(n)
    return table


CRC_TABLE = crc_table()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CRC_TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def varint(n):
    z, out = (n << 1) ^ (n >> 63), bytearray()
    while z >= 0x80:
        out.append(z & 0x7F | 0x80)
        z >>= 7
    out.append(z)
    return bytes(out)


def batch(value, count=1):
    """One record batch of magic 2 with the value `count` times, without a producer id."""
    now = int(time.time() * 1000)
    records = bytearray()
    for delta in range(count):
        body = b"\x00" + varint(0) + varint(delta) + varint(-1) + varint(len(value)) + value + varint(0)
        records += varint(len(body)) + body
    after_crc = struct.pack(">hiqqqhii", 0, count - 1, now, now, -1, -1, -1, count) + bytes(records)
    head = struct.pack(">ibI", 0, 2, crc32c(after_crc))
    return struct.pack(">qi", 0, len(head) + len(after_crc)) + head + after_crc


def string(text):
    raw = text.encode()
    return struct.pack(">h", len(raw)) + raw


def frame(api, correlation, body, client="camus-benches"):
    head = struct.pack(">hhi", *api, correlation) + string(client) + body
    return struct.pack(">i", len(head)) + head


def produce_frame(topic, partition, records, correlation=0, timeout_ms=30000):
    """The correlation id stands in bytes 8 to 12: `again` puts another one in."""
    body = struct.pack(">hhi", -1, ACKS_ALL, timeout_ms) + struct.pack(">i", 1) + string(topic)
    body += struct.pack(">ii", 1, partition) + struct.pack(">i", len(records)) + records
    return frame(PRODUCE, correlation, body)


def again(request, correlation):
    return request[:8] + struct.pack(">i", correlation) + request[12:]


def produce_error(answer):
    """The error code of the one partition of an answer to Produce 3 (without its length)."""
    (length,) = struct.unpack_from(">h", answer, 8)
    at = 4 + 4 + 2 + length + 4
    return struct.unpack_from(">ih", answer, at)[1]


class Broken(ConnectionError):
    """The broker is not there, or does not answer as it should."""


class Conn:
    def __init__(self, address, timeout=10.0):
        host, _, port = address.rpartition(":")
        try:
            self.sock = socket.create_connection((host, int(port)), timeout)
        except OSError as error:
            raise Broken(f"{address}: {error}") from None
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.correlation = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()

    def exactly(self, count):
        got = bytearray()
        while len(got) < count:
            more = self.sock.recv(count - len(got))
            if not more:
                raise Broken("the broker closed the connection")
            got += more
        return bytes(got)

    def ask(self, request):
        """Sends a frame; the answer without its length, correlation id first."""
        try:
            self.sock.sendall(request)
            (size,) = struct.unpack(">i", self.exactly(4))
            return self.exactly(size)
        except OSError as error:
            raise Broken(str(error)) from None

    def number(self):
        self.correlation += 1
        return self.correlation

    def partitions(self, topic):
        """Partition -> (error, leader) of a topic; raises while the broker does not say."""
        answer = self.ask(frame(METADATA, self.number(), struct.pack(">i", 1) + string(topic)))
        return parse_metadata(answer)

    def brokers(self):
        answer = self.ask(frame(METADATA, self.number(), struct.pack(">i", 0)))
        return struct.unpack_from(">i", answer, 4)[0]

    def create_topic(self, topic, partitions=1, timeout_s=60.0):
        """The error code."""
        self.sock.settimeout(timeout_s + 10)
        body = struct.pack(">i", 1) + string(topic) + struct.pack(">ihii", partitions, 1, 0, 0)
        body += struct.pack(">i?", int(timeout_s * 1000), False)
        answer = self.ask(frame(CREATE_TOPICS, self.number(), body))
        (length,) = struct.unpack_from(">h", answer, 12)
        return struct.unpack_from(">h", answer, 14 + length)[0]

    def delete_topic(self, topic, timeout_s=30.0):
        """The error code."""
        self.sock.settimeout(timeout_s + 10)
        body = struct.pack(">i", 1) + string(topic) + struct.pack(">i", int(timeout_s * 1000))
        answer = self.ask(frame(DELETE_TOPICS, self.number(), body))
        (length,) = struct.unpack_from(">h", answer, 12)
        return struct.unpack_from(">h", answer, 14 + length)[0]

    def produce(self, topic, value, partition=0):
        """The error code."""
        return produce_error(self.ask(produce_frame(topic, partition, batch(value), self.number())))


def parse_metadata(answer):
    at = 4
    (brokers,) = struct.unpack_from(">i", answer, at)
    at += 4

    def text(at):
        (length,) = struct.unpack_from(">h", answer, at)
        return at + 2 + max(length, 0)

    for _ in range(brokers):
        at = text(at + 4) + 4
        at = text(at)
    at += 4 + 4  # the controller; the number of topics (one was asked for)
    (error,) = struct.unpack_from(">h", answer, at)
    at = text(at + 2) + 1
    (count,) = struct.unpack_from(">i", answer, at)
    at += 4
    found = {}
    for _ in range(count):
        code, index, leader = struct.unpack_from(">hii", answer, at)
        at += 10
        for _ in range(2):
            (replicas,) = struct.unpack_from(">i", answer, at)
            at += 4 + 4 * replicas
        found[index] = (code or error, leader)
    return found


def make_topic(address, topic, partitions, timeout_s):
    """Makes a topic and waits until every partition has a leader. Raises Broken when the time is over."""
    end = time.monotonic() + timeout_s
    with Conn(address) as conn:
        error = conn.create_topic(topic, partitions, timeout_s)
        if error:
            raise Broken(f"CreateTopics of {partitions} partitions ended with error {error}")
        while True:
            found = conn.partitions(topic)
            if len(found) == partitions and all(code == 0 and leader >= 0 for code, leader in found.values()):
                return
            if time.monotonic() > end:
                led = sum(code == 0 and leader >= 0 for code, leader in found.values())
                raise Broken(f"after {timeout_s:.0f} s {led} of {partitions} partitions have a leader")
            time.sleep(0.2)
