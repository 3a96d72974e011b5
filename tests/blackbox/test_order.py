"""SPEC promises 1 and 4: order is per partition, and a retry never doubles or reorders."""

import random
import threading
import time

import pytest

from harness import batch as rb
from harness import wire
from harness.broker import Client, killed_after
from harness.mounts import frozen, small_ext4
from harness.threads import side_by_side
from harness.wire import Closed, Silent


@pytest.mark.both_io
def test_concurrent_producers_keep_each_send_order(client):
    """Lost otherwise: the order in which one producer sent, when others write the same partition."""
    topic, producers, each = client.topic(), 6, 120
    acked = [[] for _ in range(producers)]

    def produce(me):
        chance = random.Random(me)
        with client.connect() as conn:
            sent = 0
            while sent < each:
                n = min(chance.randrange(1, 5), each - sent)
                done = conn.produce(topic, rb.build([b"%d:%d" % (me, sent + i) for i in range(n)]))
                assert done.error == 0, done
                acked[me] += [(done.base_offset + i, sent + i) for i in range(n)]
                sent += n

    stop, seen = threading.Event(), []

    def follow():
        """A reader beside the writers: what it saw must be a prefix of the final log."""
        with client.connect() as conn:
            while len(seen) < producers * each and not stop.is_set():
                got = conn.fetch(topic, len(seen), max_wait_ms=200)
                assert got.error == 0, got
                for batch in rb.parse(got.records):
                    assert batch.base_offset == len(seen), f"{batch.base_offset} came where {len(seen)} was due"
                    seen.extend(r.value for r in batch.records())

    reader = threading.Thread(target=follow)
    reader.start()
    try:
        side_by_side([lambda me=me: produce(me) for me in range(producers)])
        reader.join(30)
    finally:
        stop.set()
    log = client.values(topic)
    assert seen == log
    for me in range(producers):
        mine = [int(v.split(b":")[1]) for v in log if v.startswith(b"%d:" % me)]
        assert mine == list(range(each)), f"producer {me} is out of order"
        assert all(
            log[offset] == b"%d:%d" % (me, n) for offset, n in acked[me]
        ), "an offset was answered for another record"


class Idempotent:
    """A producer whose batches are numbered; batch `b` holds `size` records."""

    def __init__(self, client, topic, size=3):
        self.topic, self.size = topic, size
        self.pid, self.epoch = client.on().init_producer_id()

    def batch(self, b):
        first = b * self.size
        return rb.build([b"%d" % (first + i) for i in range(self.size)], pid=self.pid, epoch=self.epoch, seq=first)

    def send(self, conn, b):
        return conn.send_produce(self.topic, self.batch(b))

    def offset(self, b):
        return b * self.size

    def check(self, b, done):
        assert (done.error, done.base_offset) == (0, self.offset(b)), f"batch {b}: {done}"


@pytest.mark.both_io
def test_idempotent_inflight_retries_keep_order(client):
    """Lost otherwise: a record (twice, or out of order) when a client retries five batches that are all in flight."""
    topic = client.topic()
    producer, rounds, conn = Idempotent(client, topic), 40, client.on()
    for n in range(rounds):
        five = range(n * 5, n * 5 + 5)
        # Originals and retries in one write: each retry arrives while its original is in flight.
        sent = [producer.send(conn, b) for b in five] + [producer.send(conn, b) for b in five]
        for b, correlation in zip([*five, *five], sent, strict=True):
            producer.check(b, conn.receive_produce(correlation))
    assert client.values(topic) == [b"%d" % i for i in range(rounds * 5 * producer.size)]


def test_a_retry_right_behind_its_own_original_gets_the_same_offset(client):
    """Lost otherwise: the answer to a retry, or a double, when original and retry lie in one burst, batch by batch."""
    topic = client.topic()
    producer, conn = Idempotent(client, topic), client.on()
    order = [b for first in range(0, 100, 5) for b in range(first, first + 5) for _ in range(3)]
    sent = []
    for b in order:
        sent.append((b, producer.send(conn, b)))
        if len(sent) == 15:
            for b_, correlation in sent:
                producer.check(b_, conn.receive_produce(correlation))
            sent = []
    assert client.values(topic) == [b"%d" % i for i in range(100 * producer.size)]


def test_retries_on_a_second_connection_race_the_originals(client):
    """Lost otherwise: order, when the client reconnects and its old requests still arrive. A retry that overtakes its
    predecessor is refused with 45, and is then sent again."""
    topic = client.topic()
    producer, rounds = Idempotent(client, topic), 40
    with client.connect() as second:
        for n in range(rounds):
            five = list(range(n * 5, n * 5 + 5))

            def through(conn, five=five):
                todo = list(five)
                while todo:
                    sent = [(b, producer.send(conn, b)) for b in todo]
                    todo = []
                    for b, correlation in sent:
                        done = conn.receive_produce(correlation)
                        if done.error == wire.OUT_OF_ORDER:
                            todo.append(b)
                        else:
                            producer.check(b, done)

            side_by_side([lambda: through(client.on()), lambda: through(second)])
    assert client.values(topic) == [b"%d" % i for i in range(rounds * 5 * producer.size)]


def test_a_cut_connection_with_five_in_flight_and_the_retry_of_all(client):
    """Lost otherwise: a record when the answers are lost with the connection."""
    topic = client.topic()
    producer, rounds = Idempotent(client, topic), 30
    for n in range(rounds):
        five = range(n * 5, n * 5 + 5)
        with client.connect() as lost:
            for b in five:
                producer.send(lost, b)
            if n % 3 == 1:
                lost.receive_produce(1)
        with client.connect() as conn:
            for b in five:
                for _ in range(200):
                    done = conn.produce(topic, producer.batch(b))
                    # The old connection may still be ahead of us or behind us; 45 says only that it is not yet our
                    # turn.
                    if done.error != wire.OUT_OF_ORDER:
                        break
                producer.check(b, done)
    assert client.values(topic) == [b"%d" % i for i in range(rounds * 5 * producer.size)]


@pytest.mark.both_io
@pytest.mark.camus_only
def test_retries_while_the_disk_holds_the_originals_wait_for_them(serve, tmp_path):
    """Lost otherwise: exactly-once when a client is quicker than a disk: the file system is frozen, so the originals
    are
    in flight for sure when their retries arrive, on the same and on another connection."""
    with small_ext4(tmp_path, 400) as mount, killed_after(serve(data_dir=mount / "data")) as client:
        topic = client.topic()
        producer = Idempotent(client, topic)
        producer.check(0, client.on().produce(topic, producer.batch(0)))
        with client.connect() as first, client.connect() as second:
            with frozen(mount):
                sent = [(first, b, producer.send(first, b)) for b in range(1, 6)]
                time.sleep(0.5)  # the originals have met the partition when the retries come
                sent += [(second, b, producer.send(second, b)) for b in (1, 3, 5)]
                sent += [(first, b, producer.send(first, b)) for b in (5, 1)]
                ahead = producer.send(second, 7)
                first.assert_silent(0.7)
                second.assert_silent(0.3)  # answers come in request order, so the refusal of 7 waits behind
            for conn, b, correlation in sent:
                producer.check(b, conn.receive_produce(correlation, timeout=20))
            assert second.receive_produce(ahead, timeout=20).error == wire.OUT_OF_ORDER
            producer.check(6, first.produce(topic, producer.batch(6)))
        assert client.values(topic) == [b"%d" % i for i in range(7 * producer.size)]


@pytest.mark.both_io
@pytest.mark.camus_only
def test_a_produce_that_times_out_at_the_broker_may_commit_and_its_retry_has_the_first_offset(serve, tmp_path):
    """Lost otherwise: a double, when the broker itself says that the time is up (7): the batch is still on its way."""
    with small_ext4(tmp_path, 400) as mount, killed_after(serve(data_dir=mount / "data")) as client:
        topic = client.topic()
        producer = Idempotent(client, topic)
        with client.connect() as first, client.connect() as second:
            with frozen(mount):
                sent = first.send_produce(topic, producer.batch(0), timeout_ms=700)
                try:
                    early = first.receive_produce(sent, timeout=6)
                except Silent:
                    early = None  # to hold the answer until the truth is known is allowed too
                retry = producer.send(second, 0)
                second.assert_silent(0.5)
            producer.check(0, second.receive_produce(retry, timeout=20))
            if early is None:
                producer.check(0, first.receive_produce(sent, timeout=20))
            else:
                assert (early.error, early.base_offset) == (wire.TIMED_OUT, -1), early
        producer.check(1, client.on().produce(topic, producer.batch(1)))
        assert client.values(topic) == [b"%d" % i for i in range(2 * producer.size)]


def test_a_gap_is_refused_and_not_appended(client):
    """Lost otherwise: the records of the gap, if what skips ahead were taken or parked."""
    topic = client.topic()
    producer, conn = Idempotent(client, topic), client.on()
    producer.check(0, conn.produce(topic, producer.batch(0)))
    done = conn.produce(topic, producer.batch(2))
    assert done.error == wire.OUT_OF_ORDER
    assert client.on().end(topic) == producer.size, "a batch that skips ahead was appended"
    producer.check(1, conn.produce(topic, producer.batch(1)))
    assert client.on().end(topic) == 2 * producer.size, "the batch that skipped ahead was parked and appended later"
    producer.check(2, conn.produce(topic, producer.batch(2)))
    assert client.values(topic) == [b"%d" % i for i in range(3 * producer.size)]


def test_an_old_epoch_is_fenced(client):
    """Lost otherwise: the protection from a producer that was replaced."""
    topic, (pid, epoch) = client.topic(), client.on().init_producer_id()
    conn = client.on()
    assert conn.produce(topic, rb.build([b"0"], pid=pid, epoch=epoch, seq=0)).error == 0
    assert conn.produce(topic, rb.build([b"1"], pid=pid, epoch=epoch + 1, seq=0)).error == 0
    assert conn.produce(topic, rb.build([b"2"], pid=pid, epoch=epoch, seq=1)).error == wire.INVALID_EPOCH
    assert client.values(topic) == [b"0", b"1"]


def test_the_sequence_wraps_to_zero(client):
    """Lost otherwise: everything after 2147483647 records of one producer."""
    topic, (pid, epoch), top = client.topic(), client.on().init_producer_id(), 2**31 - 1
    conn = client.on()
    steps = [(top - 3, 2), (top - 1, 4), (2, 1)]  # the second crosses: top-1, top, 0, 1
    offset = 0
    for seq, n in steps:
        for _ in range(2):
            done = conn.produce(topic, rb.build([b"x"] * n, pid=pid, epoch=epoch, seq=seq))
            assert (done.error, done.base_offset) == (0, offset), (seq, done)
        offset += n
    assert client.on().end(topic) == offset


@pytest.mark.restarts
@pytest.mark.camus_only  # Kafka remembers only the last batch of a producer over a restart
def test_a_retry_after_kill_9_gets_the_first_offset(broker, client):
    """Lost otherwise: exactly-once over a restart: the five remembered batches must come back from the log."""
    topic = client.topic()
    producer = Idempotent(client, topic)
    for b in range(8):
        producer.check(b, client.on().produce(topic, producer.batch(b)))
    broker.kill_9()
    client.forget()
    broker.start()
    client.when_led(topic)
    for b in range(3, 8):
        producer.check(b, client.on().produce(topic, producer.batch(b)))
    assert client.on().produce(topic, producer.batch(9)).error == wire.OUT_OF_ORDER
    producer.check(8, client.on().produce(topic, producer.batch(8)))
    assert client.values(topic) == [b"%d" % i for i in range(9 * producer.size)]


@pytest.mark.restarts
@pytest.mark.camus_only  # Kafka remembers only the last batch of a producer over a restart
def test_kill_9_with_five_in_flight_then_all_are_retried(broker, client):
    """Lost otherwise: a record, or its place, when the broker dies with five batches in flight."""
    topic = client.topic()
    producer, chance, rounds = Idempotent(client, topic), random.Random(7), 4
    for n in range(rounds):
        five = range(n * 5, n * 5 + 5)
        conn = client.on()
        sent = [(b, producer.send(conn, b)) for b in five]
        for b, correlation in sent[: chance.randrange(5)]:
            producer.check(b, conn.receive_produce(correlation))
        broker.kill_9()
        client.forget()
        broker.start()
        client.when_led(topic)
        for b in five:
            producer.check(b, client.on().produce(topic, producer.batch(b)))
    assert client.values(topic) == [b"%d" % i for i in range(rounds * 5 * producer.size)]


def test_another_client_reads_the_same_log(broker, client):
    """Lost otherwise: the proof that what the raw reader sees is what a second connection sees."""
    topic = client.topic()
    for i in range(50):
        client.put(topic, [b"%d" % i])
    other = Client(broker)
    try:
        assert other.values(topic) == client.values(topic) == [b"%d" % i for i in range(50)]
    finally:
        other.forget()


def test_requests_after_a_close_do_not_kill_others(client):
    """Lost otherwise: everybody's service, when one client dies with answers owed to it."""
    topic = client.topic()
    for _ in range(50):
        conn = client.connect()
        for _ in range(5):
            conn.send_produce(topic, rb.build([b"x" * 1000]))
        conn.close()
    with pytest.raises(Closed):
        conn = client.connect()
        conn.send_raw(b"\xff\xff\xff\xff")
        conn.exactly(1, 10)
    client.healthy()
