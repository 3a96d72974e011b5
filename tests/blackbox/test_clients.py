"""Real client libraries, unchanged: librdkafka (confluent-kafka), aiokafka, kafka-python."""

import asyncio
import os
import time
import uuid

import aiokafka
import confluent_kafka as ck
import kafka
import pytest

from harness import batch as rb
from harness.broker import fresh

SETTINGS = {"message.timeout.ms": 30000, "socket.timeout.ms": 15000}
#: As the attributes of a batch number them, and `compression.type` names them.
CODECS = ["uncompressed", "gzip", "snappy", "lz4", "zstd"]


def consume(address, topic, partitions=1, start=None, want=None, seconds=30):
    """All records up to the high watermarks at the begin, by partition, through librdkafka without a group."""
    consumer = ck.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": uuid.uuid4().hex,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    try:
        spots = [
            ck.TopicPartition(topic, p, ck.OFFSET_BEGINNING if start is None else start) for p in range(partitions)
        ]
        consumer.assign(spots)
        out, ended, end = {p: [] for p in range(partitions)}, set(), time.monotonic() + seconds
        while len(ended) < partitions:
            assert time.monotonic() < end, f"no end after {seconds} s: {[len(v) for v in out.values()]}"
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error():
                assert message.error().code() == ck.KafkaError._PARTITION_EOF, message.error()
                ended.add(message.partition())
                continue
            out[message.partition()].append(message)
        return out
    finally:
        consumer.close()


@pytest.mark.both_io
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_librdkafka_reads_back_what_it_wrote(broker, client, codec):
    """Lost otherwise: the clients built on librdkafka: keys, values, headers and timestamps in each codec."""
    topic = client.topic(3)
    producer = ck.Producer(
        {
            "bootstrap.servers": broker.address,
            "compression.type": codec,
            "linger.ms": 5,
            **SETTINGS,
            "enable.idempotence": True,
        }
    )
    sent, failed = {}, []

    def done(error, message):
        if error:
            failed.append(error)
        else:
            sent[message.partition(), message.offset()] = (message.key(), message.value())

    now = int(time.time() * 1000)
    for i in range(2000):
        producer.produce(
            topic,
            key=b"%d" % (i % 40),
            value=b"value %d " % i * 20,
            headers={"n": b"%d" % i},
            timestamp=now + i,
            on_delivery=done,
        )
        producer.poll(0)
    assert producer.flush(60) == 0 and not failed, failed[:3]
    assert len(sent) == 2000
    got = consume(broker.address, topic, 3)
    for p, messages in got.items():
        assert [m.offset() for m in messages] == list(range(len(messages)))
        for m in messages:
            assert sent.pop((p, m.offset())) == (m.key(), m.value())
            n = int(dict(m.headers())["n"])
            assert m.timestamp() == (ck.TIMESTAMP_CREATE_TIME, now + n)
    assert not sent


@pytest.mark.parametrize("idempotent", [True, False])
def test_librdkafka_keeps_order_with_five_in_flight(broker, client, idempotent):
    """Lost otherwise: the order of a single producer that does not wait for answers."""
    topic = client.topic()
    producer = ck.Producer(
        {
            "bootstrap.servers": broker.address,
            "enable.idempotence": idempotent,
            **SETTINGS,
            "linger.ms": 0,
            "max.in.flight.requests.per.connection": 5,
            "batch.num.messages": 7,
        }
    )
    for i in range(3000):
        producer.produce(topic, b"%d" % i, partition=0)
        producer.poll(0)
    assert producer.flush(60) == 0
    assert [int(m.value()) for m in consume(broker.address, topic)[0]] == list(range(3000))


def test_librdkafka_offsets_by_time(broker, client):
    """Lost otherwise: `seek to the time`: the first record at or after it, inside a batch too."""
    topic, base = client.topic(), 1_700_000_000_000
    client.put(topic, [b"a", b"b", b"c"], first_ts=base, ts_step=100)
    client.put(topic, [b"d", b"e"], first_ts=base + 1000, ts_step=100)
    consumer = ck.Consumer({"bootstrap.servers": broker.address, "group.id": fresh()})
    try:
        for when, offset in [
            (base, 0),
            (base + 1, 1),
            (base + 200, 2),
            (base + 201, 3),
            (base + 1100, 4),
            (base + 1101, -1),
        ]:
            (found,) = consumer.offsets_for_times([ck.TopicPartition(topic, 0, when)], timeout=15)
            if offset < 0:
                assert found.offset in (-1, 5), (when, found)
            else:
                assert found.offset == offset, (when, found)
        assert consumer.get_watermark_offsets(ck.TopicPartition(topic, 0), timeout=15) == (0, 5)
    finally:
        consumer.close()


@pytest.mark.camus_only
@pytest.mark.parametrize("codec", CODECS)
def test_a_topic_with_a_codec_of_its_own(broker, client, codec):
    """Lost otherwise: the records of a topic that packs them in another codec than its producers do."""
    topic = client.topic(**{"compression.type": codec})
    values = [b"%d" % n * 300 for n in range(100)]
    for sent in ("none", "gzip"):
        options = {"compression.type": sent, "linger.ms": 100, **SETTINGS}
        producer = ck.Producer({"bootstrap.servers": broker.address, **options})
        for value in values:
            producer.produce(topic, value, partition=0)
        assert producer.flush(30) == 0
    assert [m.value() for m in consume(broker.address, topic)[0]] == values * 2
    stored = rb.parse(client.on().fetch(topic, 0).records)
    assert {batch.attributes & 7 for batch in stored} == {CODECS.index(codec)}


def test_librdkafka_admin(broker):
    """Lost otherwise: the tools that make, widen, describe and delete topics."""
    from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic

    admin, name = AdminClient({"bootstrap.servers": broker.address}), fresh("admin")
    admin.create_topics([NewTopic(name, 2, 1, config={"max.message.bytes": "5000"})], operation_timeout=20)[
        name
    ].result(30)
    with pytest.raises(ck.KafkaException) as twice:
        admin.create_topics([NewTopic(name, 2, 1)])[name].result(30)
    assert twice.value.args[0].code() == ck.KafkaError.TOPIC_ALREADY_EXISTS
    admin.create_partitions([NewPartitions(name, 5)])[name].result(30)
    end = time.monotonic() + 15
    while len(admin.list_topics(name, timeout=10).topics[name].partitions) != 5:
        assert time.monotonic() < end
        time.sleep(0.1)
    configs = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, name)])
    (found,) = [f.result(30) for f in configs.values()]
    assert found["max.message.bytes"].value == "5000"
    assert "retention.ms" in found and "cleanup.policy" in found
    admin.delete_topics([name], operation_timeout=20)[name].result(30)
    end = time.monotonic() + 15
    while name in admin.list_topics(timeout=10).topics:
        assert time.monotonic() < end, "the topic is still there"
        time.sleep(0.1)


def test_a_record_of_a_megabyte_and_the_one_that_is_too_large(broker, client):
    """Lost otherwise: large records, or the client that sends one too large."""
    topic = client.topic()
    producer = ck.Producer({"bootstrap.servers": broker.address, "message.max.bytes": 10_000_000, **SETTINGS})
    results = []
    big = os.urandom(1_000_000)
    for value in (big, os.urandom(3_000_000), b"small"):
        producer.produce(topic, value, partition=0, on_delivery=lambda e, m: results.append(e))
        producer.flush(30)
    assert results[0] is None and results[2] is None
    assert results[1].code() == ck.KafkaError.MSG_SIZE_TOO_LARGE
    assert [m.value() for m in consume(broker.address, topic)[0]] == [big, b"small"]


def test_a_recreated_topic_is_a_new_topic(broker, client):
    """Lost otherwise: the emptiness of a new topic that has an old one's name."""
    topic = client.topic()
    client.put(topic, [b"old"] * 10)
    old = client.on().topic_id(topic)
    assert client.on().delete_topic(topic) == 0
    end = time.monotonic() + 20
    while client.on().create_topic(topic, 1):
        assert time.monotonic() < end
        time.sleep(0.2)
    client.when_led(topic)
    client.on().metadata([topic])
    assert client.on().topic_ids[topic] != old
    assert client.on().end(topic) == 0
    client.put(topic, [b"new"])
    assert [m.value() for m in consume(broker.address, topic)[0]] == [b"new"]


def test_aiokafka_reads_back_what_it_wrote(broker, client):
    """Lost otherwise: asyncio programs."""
    topic = client.topic()

    async def run():
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=broker.address, enable_idempotence=True, compression_type="gzip"
        ) as producer:
            waits = [await producer.send(topic, b"%d" % i, partition=0) for i in range(500)]
            offsets = [(await w).offset for w in waits]
        assert offsets == list(range(500))
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=broker.address, auto_offset_reset="earliest")
        async with consumer:
            spot = aiokafka.TopicPartition(topic, 0)
            consumer.assign([spot])
            await consumer.seek_to_beginning(spot)
            return [(await asyncio.wait_for(consumer.getone(), 20)).value for _ in range(500)]

    assert asyncio.run(run()) == [b"%d" % i for i in range(500)]


def test_kafka_python_reads_back_what_it_wrote(broker, client):
    """Lost otherwise: programs on kafka-python."""
    topic = client.topic()
    producer = kafka.KafkaProducer(bootstrap_servers=broker.address, acks="all", compression_type="lz4")
    waits = [producer.send(topic, b"%d" % i, partition=0) for i in range(500)]
    producer.flush(30)
    assert [w.get(10).offset for w in waits] == list(range(500))
    producer.close()
    consumer = kafka.KafkaConsumer(bootstrap_servers=broker.address, consumer_timeout_ms=20000)
    spot = kafka.TopicPartition(topic, 0)
    consumer.assign([spot])
    consumer.seek_to_beginning(spot)
    got = [next(consumer).value for _ in range(500)]
    consumer.close()
    assert got == [b"%d" % i for i in range(500)]
