"""Every advertised version of the APIs that the raw client speaks, round the whole way."""

import pytest

from harness import batch as rb
from harness import wire

#: What clients use, from the oldest to the newest; a broker may advertise more.
RANGES = {
    wire.PRODUCE: (3, 11),  # 12 and 13 come with transactions
    wire.FETCH: (4, 17),
    wire.LIST_OFFSETS: (1, 10),
    wire.METADATA: (0, 13),
    wire.CREATE_TOPICS: (2, 7),
    wire.DELETE_TOPICS: (1, 5),
    wire.INIT_PRODUCER_ID: (0, 5),
    wire.API_VERSIONS: (0, 4),
}


def versions(key):
    low, high = RANGES[key]
    return range(low, high + 1)


def test_the_versions_that_clients_use_are_advertised(client):
    """Lost otherwise: clients: some of them never negotiate, others need the top of a range."""
    _, ranges = client.on().api_versions(0)
    for key, (low, high) in RANGES.items():
        assert key in ranges and ranges[key][0] <= low and ranges[key][1] >= high, (key, ranges.get(key))


@pytest.mark.parametrize("version", versions(wire.API_VERSIONS))
def test_api_versions(client, version):
    """Lost otherwise: every connection: it is the first request."""
    error, ranges = client.on().api_versions(version)
    assert error == 0 and wire.PRODUCE in ranges


@pytest.mark.parametrize("version", versions(wire.METADATA))
def test_metadata(client, version):
    """Lost otherwise: where partitions are."""
    topic, conn = client.topic(3), client.on()
    found = conn.metadata([topic], version)
    (broker,) = found["brokers"]
    assert f"{broker['host']}:{broker['port']}" == client.broker.address
    partitions = found["topics"][topic]["partitions"]
    assert [(p["error"], p["index"], p["leader"], p["replicas"]) for p in partitions] == [
        (0, i, broker["id"], [broker["id"]]) for i in range(3)
    ]
    assert topic in conn.metadata(None if version else [], version)["topics"]
    if version:
        assert conn.metadata([], version)["topics"] == {}
        missing = conn.metadata(["not-there"], max(version, 4))["topics"]["not-there"]
        assert missing["error"] == wire.UNKNOWN_TOPIC


@pytest.mark.parametrize("version", versions(wire.CREATE_TOPICS))
def test_create_topics(client, version):
    """Lost otherwise: new topics."""
    name = f"made-{version}-{client.topic()}"
    assert client.on().create_topic(name, 2, {"retention.ms": "1000"}, version) == 0
    client.when_led(name, 2)
    assert client.on().create_topic(name, 2, version=version) == wire.TOPIC_EXISTS


@pytest.mark.parametrize("version", versions(wire.DELETE_TOPICS))
def test_delete_topics(client, version):
    """Lost otherwise: the space of what nobody wants any more."""
    topic = client.topic()
    client.put(topic, [b"x"])
    assert client.on().delete_topic(topic, version) == 0
    found = client.on().metadata([topic], 12)["topics"][topic]
    assert found["error"] in (wire.UNKNOWN_TOPIC, wire.LEADER_NOT_AVAILABLE) and not found["partitions"]
    assert client.on().delete_topic(topic, version) == wire.UNKNOWN_TOPIC


@pytest.mark.parametrize("version", versions(wire.INIT_PRODUCER_ID))
def test_init_producer_id(client, version):
    """Lost otherwise: idempotent producers."""
    first, second = client.on().init_producer_id(version), client.on().init_producer_id(version)
    assert first[0] >= 0 and first[1] == 0 and first[0] != second[0]


@pytest.mark.parametrize("version", versions(wire.PRODUCE))
def test_produce(client, version):
    """Lost otherwise: records of clients that speak this version."""
    topic, conn = client.topic(), client.on()
    for i in range(3):
        done = conn.produce(topic, rb.build([b"a", b"b"]), version=version)
        assert (done.error, done.base_offset, done.append_time) == (0, 2 * i, -1)
        assert done.log_start in ((0,) if version >= 5 else (-1,))
    assert conn.produce(topic, rb.build([b"a"], crc=1), version=version).error == wire.CORRUPT_MESSAGE
    assert client.values(topic) == [b"a", b"b"] * 3


@pytest.mark.parametrize("version", versions(wire.FETCH))
def test_fetch(client, version):
    """Lost otherwise: readers that speak this version. Stored bytes come back as they were, in every codec."""
    topic, conn = client.topic(), client.on()
    for codec in range(5):
        client.put(topic, [b"%d" % codec, b"x" * 300], codec=codec)
    got = conn.fetch(topic, 0, version=version)
    assert (got.error, got.high_watermark) == (0, 10)
    assert got.log_start == (0 if version >= 5 else -1)
    batches = rb.parse(got.records)
    assert [(b.base_offset, b.attributes & 7) for b in batches] == [(2 * c, c) for c in range(5)]
    assert [r.value for b in batches for r in b.records()] == [v for c in range(5) for v in (b"%d" % c, b"x" * 300)]
    assert conn.fetch(topic, 11, version=version).error == wire.OFFSET_OUT_OF_RANGE
    at_end = conn.fetch(topic, 10, version=version)
    assert (at_end.error, at_end.records) == (0, b"")
    inside = rb.parse(conn.fetch(topic, 3, version=version, partition_bytes=1).records)
    assert [b.base_offset for b in inside] == [2], "the batch that holds the offset comes whole, and alone"


@pytest.mark.parametrize("version", versions(wire.LIST_OFFSETS))
def test_list_offsets(client, version):
    """Lost otherwise: where to begin to read."""
    topic, base, conn = client.topic(), 1_700_000_000_000, client.on()
    client.put(topic, [b"a", b"b", b"c"], first_ts=base, ts_step=10)
    client.put(topic, [b"d"], first_ts=base + 5)
    assert conn.list_offset(topic, -1, version=version)[::2] == (0, 4)
    assert conn.list_offset(topic, -2, version=version)[::2] == (0, 0)
    assert conn.list_offset(topic, base + 11, version=version) == (0, base + 20, 2)
    assert conn.list_offset(topic, base + 10, version=version) == (0, base + 10, 1)
    assert conn.list_offset(topic, base + 21, version=version) == (0, -1, -1)
    if version >= 7:
        assert conn.list_offset(topic, -3, version=version) == (0, base + 20, 2)
