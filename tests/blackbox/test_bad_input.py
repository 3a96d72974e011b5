"""SPEC promise 9: bad input gets a clear error, costs little, and harms nobody else."""

import os
import random
import struct
import time

import pytest

from harness import batch as rb
from harness import wire
from harness.broker import FOREIGN, MIB
from harness.wire import Closed, Conn, W

HEADER = struct.Struct(">hhih")


# frames


@pytest.mark.parametrize("length", [-1, -(2**31), 2**31 - 1, 0x47455420, 101 * MIB, 0, 1, 7])
def test_a_frame_length_that_is_negative_too_small_or_over_the_limit_closes(client, length):
    """Lost otherwise: memory (a length is believed) or a thread that waits for bytes that never come."""
    with client.connect() as conn:
        conn.send_raw(struct.pack(">i", length) + bytes(max(0, min(length, 7))))
        conn.assert_closed()
    client.healthy()


@pytest.mark.both_io
@pytest.mark.camus_only
@pytest.mark.alone
def test_announced_frames_reserve_nothing(broker, client):
    """Lost otherwise: all memory of the host, to 200 clients that announce 100 MiB and send ten bytes."""
    client.healthy()
    before, conns = broker.rss_bytes(), [client.connect() for _ in range(200)]
    try:
        for conn in conns:
            conn.send_raw(struct.pack(">i", 100 * MIB) + HEADER.pack(0, 9, 1, -1))
        client.healthy()
        time.sleep(0.5)
        assert broker.rss_bytes() - before < 64 * MIB
    finally:
        for conn in conns:
            conn.close()
    client.healthy()


def test_a_frame_of_101_mib_is_refused_and_its_bytes_are_not_kept(broker, client):
    """Lost otherwise: memory, or the service of others, to a request over the limit whose bytes really arrive."""
    with client.connect() as conn:
        conn.sock.settimeout(20)
        with pytest.raises((Closed, OSError)):
            conn.send_raw(struct.pack(">i", 101 * MIB) + HEADER.pack(0, 9, 1, -1))
            for _ in range(101):
                conn.send_raw(bytes(MIB))
            conn.exactly(1)
    if not FOREIGN:
        assert broker.rss_bytes() < 400 * MIB
    client.healthy()


GARBAGE = {
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "tls": bytes.fromhex("16030100c8010000c40303") + b"\x11" * 190,
    "ones": b"\xff" * 64,
    "text": b"hello? " * 20,
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_bytes_of_another_protocol_close(client, kind):
    """Lost otherwise: a connection that hangs, or a crash by whoever scans the port."""
    with client.connect() as conn:
        conn.send_raw(GARBAGE[kind])
        conn.assert_closed()
    client.healthy()


def frames_of(client):
    topic, out = client.topic(), {}
    with client.connect() as conn:
        real = conn.send_raw
        for name, send in {
            "produce": lambda: conn.send_produce(topic, rb.build([b"x" * 50, b"y"])),
            "produce v3": lambda: conn.send_produce(topic, rb.build([b"x"]), version=3),
            "fetch": lambda: conn.send_fetch(topic, {0: 0}),
            "fetch v4": lambda: conn.send_fetch(topic, {0: 0}, version=4),
        }.items():
            kept = []
            conn.send_raw = kept.append
            send()
            out[name] = kept[0]
        conn.send_raw = real
    return out


@pytest.mark.both_io
def test_a_request_cut_at_any_byte_closes_or_is_answered(client):
    """Lost otherwise: the broker, to a body that ends early: a length that runs over the end, a half batch."""
    for name, frame in frames_of(client).items():
        for cut in [*range(4, len(frame) - 1, 3), len(frame) - 2]:
            with client.connect(timeout=15) as conn:
                body = frame[4 : cut + 1]
                conn.send_raw(struct.pack(">i", len(body)) + body)
                try:
                    conn.exactly(4)
                except Closed:
                    continue
                # Answered: then in a layout that carries the correlation id.
                assert len(conn.exactly(4)) == 4, (name, cut)
    client.healthy()


def test_a_frame_that_stops_halfway_and_a_reset_cost_nothing(client):
    """Lost otherwise: a buffer or a slot for each client that vanishes in the middle of a frame."""
    frames = list(frames_of(client).values())
    chance = random.Random(5)
    for _ in range(100):
        frame = chance.choice(frames)
        conn = client.connect()
        conn.send_raw(frame[: chance.randrange(1, len(frame))])
        if chance.random() < 0.5:  # a reset instead of an orderly end
            conn.sock.setsockopt(1, 13, struct.pack("ii", 1, 0))
        conn.close()
    client.healthy()


def test_a_frame_byte_by_byte_is_a_frame(client):
    """Lost otherwise: slow links: a frame may come in any number of pieces."""
    topic, conn = client.topic(), client.on()
    frame = conn.request(wire.PRODUCE, 9, produce_body(topic, rb.build([b"slow"])))
    for i in range(len(frame)):
        conn.send_raw(frame[i : i + 1])
    assert conn.receive_produce(conn.correlation).base_offset == 0


def produce_body(topic, records):
    w = W(True).string(None).put("hi", -1, 30000)
    w.array([0], lambda _: w.string(topic).array([0], lambda _: w.put("i", 0).blob(records).tags()).tags())
    return w.tags().out


@pytest.mark.parametrize("seed", range(3))
def test_random_bytes_in_a_good_frame_never_kill(client, seed):
    """Lost otherwise: the broker, to any of a hundred random bodies behind a valid header."""
    chance = random.Random(seed)
    _, ranges = client.on().api_versions(0)
    for _ in range(100):
        key = chance.choice(sorted(set(ranges) - {wire.CREATE_TOPICS, wire.DELETE_TOPICS}))
        low, high = ranges[key]
        body = HEADER.pack(key, chance.randint(low, high), 1, -1) + chance.randbytes(chance.randrange(0, 150))
        with client.connect(timeout=10) as conn:
            conn.send_raw(struct.pack(">i", len(body)) + body)
            try:
                conn.exactly(8)
            except (Closed, wire.Silent):
                pass
    client.healthy()


def test_a_flipped_byte_in_a_good_request_never_kills(client):
    """Lost otherwise: the broker, to one wrong byte; wrong data must not be taken either: the CRC sees it."""
    chance = random.Random(9)
    topic = client.topic()
    with client.connect() as conn:
        frame = conn.request(wire.PRODUCE, 9, produce_body(topic, rb.build([b"a" * 40, b"b" * 40])))
    for at in range(4, len(frame)):
        bad = bytearray(frame)
        bad[at] ^= 1 << chance.randrange(8)
        with client.connect(timeout=10) as conn:
            conn.send_raw(bytes(bad))
            # An acks of 0 is silent, a changed API may wait; the next request on another connection matters.
            try:
                conn.exactly(4, 0.3)
            except (Closed, wire.Silent):
                pass
    assert set(client.values(topic)) <= {b"a" * 40, b"b" * 40}
    client.healthy()


# headers


@pytest.mark.parametrize("key", [-1, 4, 54, 999, 32767])
def test_an_unknown_api_closes(client, key):
    """Lost otherwise: a client that waits for ever for an answer nobody can write."""
    with client.connect() as conn:
        conn.send_raw(conn.request(key, 0, bytes(20)))
        conn.assert_closed()
    client.healthy()


def test_a_version_that_is_not_advertised_closes(client):
    """Lost otherwise: an answer in a layout that the client does not know."""
    _, ranges = client.on().api_versions(0)
    for key, (low, high) in sorted(ranges.items()):
        if key == wire.API_VERSIONS:
            continue
        for version in {high + 1, -1, 32767} | ({low - 1} if low else set()):
            with client.connect() as conn:
                body = HEADER.pack(key, version, 1, -1) + bytes(40)
                conn.send_raw(struct.pack(">i", len(body)) + body)
                conn.assert_closed()
    client.healthy()


@pytest.mark.parametrize("version", [9, 99, 32767])
def test_an_unknown_version_of_api_versions_is_answered_in_version_0(client, version):
    """Lost otherwise: every client newer than the broker: they begin with their own newest ApiVersions."""
    with client.connect() as conn:
        conn.send_raw(conn.request(wire.API_VERSIONS, version, W(True).string("x").string("1").tags().out))
        error, ranges = conn.receive_api_versions(0)
        assert error == wire.UNSUPPORTED_VERSION
        assert ranges[wire.API_VERSIONS][0] == 0
        error, ranges = conn.api_versions(3)  # and the connection goes on
        assert error == 0 and wire.PRODUCE in ranges


@pytest.mark.camus_only
def test_what_is_not_there_is_not_advertised(client):
    """Lost otherwise: clients that use what they were told exists."""
    _, ranges = client.on().api_versions(3)
    assert all(0 <= low <= high for low, high in ranges.values())
    assert ranges[wire.PRODUCE] == (0, 11), "12 and 13 come with transactions"
    assert ranges[wire.FETCH][0] == 4
    must = {
        wire.PRODUCE,
        wire.FETCH,
        wire.LIST_OFFSETS,
        wire.METADATA,
        wire.API_VERSIONS,
        wire.CREATE_TOPICS,
        wire.DELETE_TOPICS,
        wire.INIT_PRODUCER_ID,
        10,
        23,
        32,
        37,
        60,
    } | {29, 30, 31, 35, 43, 45, 46, 48, 49, 50, 55, 57, 61, 74, 75}
    assert must <= set(ranges)


# batches


def build(*values, **fields):
    return rb.build(list(values) or [b"a", b"b"], **fields)


def flipped(at):
    raw = bytearray(build())
    raw[at] ^= 0x10
    return bytes(raw)


INVALID = {wire.CORRUPT_MESSAGE, wire.INVALID_RECORD}
BAD_BATCHES = {
    "wrong crc": (lambda: build(crc=1), {wire.CORRUPT_MESSAGE}),
    "flipped in the records": (lambda: flipped(-3), {wire.CORRUPT_MESSAGE}),
    "flipped in the header": (lambda: flipped(30), {wire.CORRUPT_MESSAGE}),
    "count 0": (lambda: build(count=0), INVALID),
    "count too large": (lambda: build(count=3, last_delta=2), INVALID),
    "count too small": (lambda: build(count=1, last_delta=0), INVALID),
    "count and delta differ": (lambda: build(last_delta=5), INVALID),
    "count negative": (lambda: build(count=-1), INVALID),
    "count huge": (lambda: build(count=2**31 - 1, last_delta=2**31 - 2), INVALID),
    "length too short": (lambda: build(length=20), INVALID),
    "length negative": (lambda: build(length=-5), INVALID),
    "length over the end": (lambda: build(length=5000), INVALID),
    "trailing bytes": (lambda: build() + b"\x00" * 7, INVALID),
    "two batches": (lambda: build() + build(), {wire.INVALID_RECORD}),
    "control batch": (lambda: build(attributes=0x20), {wire.INVALID_RECORD}),
    "producer without sequence": (lambda: build(pid=7, epoch=0, seq=-1), {wire.INVALID_RECORD}),
    "codec 7": (lambda: build(attributes=7), INVALID | {74, 76}),
    "gzip that is none": (lambda: build(attributes=rb.GZIP), INVALID),
    "lz4 that is none": (lambda: build(attributes=rb.LZ4), INVALID),
    "snappy that is none": (lambda: build(attributes=rb.SNAPPY), INVALID),
    "zstd that is none": (lambda: build(attributes=rb.ZSTD), INVALID),
    "record deltas": (lambda: build(body=rb.record(0, None, b"a") + rb.record(5, None, b"b")), INVALID),
    "record length over the end": (lambda: build(body=rb.record(0, None, b"a") + b"\x7f\x00"), INVALID),
    "base offset 5": (lambda: build(base_offset=5), {wire.INVALID_RECORD}),
    "half a header": (lambda: build()[:30], INVALID),
}
KAFKA_SAYS_OTHERWISE = {  # -1, or a closed connection, where a code is promised here
    "codec 7",
    "gzip that is none",
    "lz4 that is none",
    "snappy that is none",
    "zstd that is none",
    "record length over the end",
    "count negative",
    "count huge",
    "trailing bytes",
    "half a header",
    "count too small",
    "record deltas",
    "length over the end",
    "length negative",
    "length too short",
    "count 0",
}


@pytest.mark.both_io
@pytest.mark.parametrize("kind", BAD_BATCHES)
def test_a_bad_batch_is_refused_and_leaves_no_trace(client, kind):
    """Lost otherwise: the log: what is stored must be readable by every client for ever."""
    if FOREIGN and kind in KAFKA_SAYS_OTHERWISE:
        pytest.skip("other brokers differ here")
    make, codes = BAD_BATCHES[kind]
    topic = client.topic()
    client.put(topic, [b"before"])
    with client.connect() as conn:
        done = conn.produce(topic, make())
        assert done.error in codes, done
        assert done.base_offset == -1
    assert client.put(topic, [b"after"]) == 1
    assert client.values(topic) == [b"before", b"after"]


@pytest.mark.parametrize("magic", [0, 1, 3, -1])
def test_an_old_or_unknown_message_format_is_refused(client, magic):
    """Lost otherwise: readers: formats 0 and 1 are not stored, and nobody knows 3."""
    topic = client.topic()
    with client.connect() as conn:
        try:
            done = conn.produce(topic, build(magic=magic))
            assert done.error in INVALID | {43}, done
        except Closed:
            pass
    assert client.on().end(topic) == 0


def test_a_batch_over_the_limit_is_too_large(client):
    """Lost otherwise: the limit; and the connection must go on, since Java splits the batch and sends it again."""
    topic, conn = client.topic(**{"max.message.bytes": "2000"}), client.on()
    assert conn.produce(topic, build(os.urandom(3000))).error == wire.MESSAGE_TOO_LARGE
    assert conn.produce(topic, build(os.urandom(500))).base_offset == 0
    assert conn.end(topic) == 1


@pytest.mark.camus_only
@pytest.mark.alone
@pytest.mark.parametrize("codec", ["gzip", "zstd", "lz4", "snappy"])
def test_a_decompression_bomb_is_bounded(broker, client, codec):
    """Lost otherwise: the broker's memory, to 1 MB that unpacks to 1 GB."""
    topic = client.topic(**{"max.message.bytes": str(8 * MIB)})
    client.healthy()
    before = broker.rss_bytes()
    record = rb.record(0, None, bytes(120 * MIB if codec == "snappy" else 700 * MIB))
    bomb = build(b"", body=record, codec=rb.CODECS[codec])
    del record
    begun = time.monotonic()
    with client.connect() as conn:
        done = conn.produce(topic, bomb, timeout=60)
    assert time.monotonic() - begun < 30
    assert done.error in INVALID | {0, wire.MESSAGE_TOO_LARGE}, done
    assert broker.rss_bytes() - before < 250 * MIB
    client.healthy()


# counts that lie


@pytest.mark.parametrize("count", [2**31 - 1, 10**6, -2])
def test_an_array_count_that_lies_costs_nothing(broker, client, count):
    """Lost otherwise: memory, to an element count that the frame's bytes can not hold."""
    frames = {
        "metadata": (wire.METADATA, 1, struct.pack(">i", count)),
        "produce": (wire.PRODUCE, 7, struct.pack(">hhii", -1, -1, 1000, count)),
        "fetch": (wire.FETCH, 4, struct.pack(">iiiibi", -1, 0, 1, 1 << 20, 0, count)),
        "topics": (wire.CREATE_TOPICS, 4, struct.pack(">i", count)),
    }
    for key, version, body in frames.values():
        with client.connect(timeout=10) as conn:
            conn.send(key, version, body)
            try:
                conn.exactly(4)
            except Closed:
                pass
    if not FOREIGN:
        assert broker.rss_bytes() < 400 * MIB
    client.healthy()


def test_a_connection_per_request_leaks_nothing(broker, client):
    """Lost otherwise: descriptors, until the broker can not accept any more."""
    for _ in range(1500):
        with Conn(broker.address) as conn:
            conn.api_versions(0)
    client.healthy()
    if not FOREIGN:
        held = len(os.listdir(f"/proc/{broker.pid}/fd"))
        assert held < 200, f"{held} descriptors are open"
