"""SPEC promise 3: acknowledged means flushed, and nothing is visible before it is durable."""

import random
import signal
import threading
import time

import pytest

from harness import batch as rb
from harness.broker import killed_after
from harness.mounts import frozen, small_ext4
from harness.wire import Closed, Silent


class Writer(threading.Thread):
    """Appends numbered records with several requests in flight until the connection ends; knows what was
    acknowledged."""

    def __init__(self, client, topic, partition=0, in_flight=5, size=100, idempotent=True, first=0):
        super().__init__(daemon=True)
        self.conn, self.topic, self.partition = client.connect(), topic, partition
        self.ids = self.conn.init_producer_id() if idempotent else (-1, -1)
        self.in_flight, self.size, self.first = in_flight, size, first
        self.sent = self.acked = 0
        self.offsets, self.refused, self.stop = {}, [], False

    def value(self, n):
        return (b"%d:%d:" % (self.ids[0], self.first + n)).ljust(self.size, b".")

    def run(self):
        pending = []
        try:
            while not self.stop or pending:
                while len(pending) < self.in_flight and not self.stop:
                    seq = self.sent if self.ids[0] >= 0 else -1
                    batch = rb.build([self.value(self.sent)], pid=self.ids[0], epoch=self.ids[1], seq=seq)
                    pending.append((self.sent, self.conn.send_produce(self.topic, batch, self.partition)))
                    self.sent += 1
                n, correlation = pending.pop(0)
                done = self.conn.receive_produce(correlation)
                if done.error:
                    self.refused.append((n, done))
                    return
                self.offsets[n] = done.base_offset
                self.acked = n + 1
        except (Closed, OSError):
            pass
        finally:
            self.conn.close()


def acked_enough(writers, each):
    end = time.monotonic() + 30
    while min(w.acked for w in writers) < each:
        assert time.monotonic() < end, [(w.acked, w.refused[:1]) for w in writers]
        time.sleep(0.005)


def start_all(writers):
    for writer in writers:
        writer.start()
    return writers


def all_ended(writers, seconds):
    """They end because the broker does, and none of them was refused anything."""
    for writer in writers:
        writer.join(seconds)
        assert not writer.refused, writer.refused


def come_back(broker, client, topic, partitions):
    client.forget()
    broker.start()
    client.when_led(topic, partitions)


def check(client, writers):
    """Every acknowledged record is there once, at the offset that was answered; each producer's records are in
    order."""
    for partition in {w.partition for w in writers}:
        values = client.values(writers[0].topic, partition)
        for writer in (w for w in writers if w.partition == partition):
            mine = [i for i, v in enumerate(values) if v.startswith(b"%d:" % writer.ids[0])]
            assert [values[i] for i in mine] == [
                writer.value(n) for n in range(len(mine))
            ], "lost, doubled or out of order"
            assert writer.acked <= len(mine) <= writer.sent
            for n, offset in writer.offsets.items():
                assert values[offset] == writer.value(n), f"record {n} was acknowledged at {offset}"


@pytest.mark.both_io
@pytest.mark.restarts
def test_every_acknowledged_record_survives_kill_9_once_and_in_order(broker, client):
    """Lost otherwise: acknowledged records. Five kills, each at a random moment under load, the log read whole each
    time."""
    chance, topic, writers = random.Random(3), client.topic(4), []
    for _ in range(5 if broker.io != "foreign" else 2):
        now = start_all([Writer(client, topic, partition=n % 4) for n in range(6)])
        acked_enough(now, 20)
        time.sleep(chance.random() * 0.2)
        broker.kill_9()
        all_ended(now, 30)
        writers += now
        come_back(broker, client, topic, 4)
        check(client, writers)


@pytest.mark.restarts
def test_what_a_reader_saw_is_there_after_kill_9(broker, client):
    """Lost otherwise: the truth of what a consumer was shown: a record that it saw and acted upon must not vanish."""
    topic, shown = client.topic(), []

    def read(conn):
        try:
            while True:
                got = conn.fetch(topic, len(shown), max_wait_ms=100)
                if got.error:  # a broker that comes up
                    continue
                for batch in rb.parse(got.records):
                    shown.extend(r.value for r in batch.records() if r.offset == len(shown))
        except (Closed, OSError):
            pass

    for _ in range(4 if broker.io != "foreign" else 1):
        writers = [Writer(client, topic, idempotent=False, first=1000 * n, size=3000) for n in range(3)]
        conn = client.connect()
        reader = threading.Thread(target=read, args=(conn,), daemon=True)
        for thread in (*writers, reader):
            thread.start()
        acked_enough(writers, 30)
        broker.kill_9()
        for thread in (*writers, reader):
            thread.join(30)
        conn.close()
        client.forget()
        broker.start()
        client.when_led(topic)
        log = client.values(topic)
        assert len(shown) > 50
        assert log[: len(shown)] == shown, "a reader was shown what is not in the log"


@pytest.mark.both_io
@pytest.mark.camus_only
@pytest.mark.parametrize("acks", [-1, 1])
def test_nothing_is_answered_or_visible_while_the_disk_holds_the_write(serve, tmp_path, acks):
    """Lost otherwise: acknowledged and seen records, at a power failure. The file system is frozen: no write
    completes."""
    with small_ext4(tmp_path, 400) as mount, killed_after(serve(data_dir=mount / "data")) as client:
        topic = client.topic()
        client.put(topic, [b"before"])
        with client.connect() as writer, client.connect() as reader:
            with frozen(mount):
                sent = [writer.send_produce(topic, rb.build([b"held %d" % i]), acks=acks) for i in range(3)]
                writer.assert_silent(1.5)
                got = reader.fetch(topic, 0, max_wait_ms=0, timeout=5)
                assert got.high_watermark == 1, "visible before it was durable"
                assert [r.value for b in rb.parse(got.records) for r in b.records()] == [b"before"]
                waiting = reader.send_fetch(topic, {0: 1}, max_wait_ms=20000)
                writer.assert_silent(0.3)
                reader.assert_silent(0.3)
            for i, correlation in enumerate(sent):
                done = writer.receive_produce(correlation, timeout=20)
                assert (done.error, done.base_offset) == (0, 1 + i)
            woken = rb.parse(reader.receive_fetch(waiting, timeout=20)[0].records)
            assert woken[0].records()[0].value == b"held 0"
        assert client.values(topic) == [b"before", b"held 0", b"held 1", b"held 2"]


def test_acks_0_gets_no_answer_and_is_appended(client):
    """Lost otherwise: the pairing of answers and requests on the connection, if acks=0 were answered."""
    topic, conn = client.topic(), client.on()
    for i in range(10):
        conn.send_produce(topic, rb.build([b"%d" % i]), acks=0)
    assert conn.produce(topic, rb.build([b"last"])).base_offset == 10
    assert client.values(topic) == [b"%d" % i for i in range(10)] + [b"last"]


def test_answers_come_in_request_order(client):
    """Lost otherwise: the pairing of answers and requests: a slow produce, a long poll and quick requests, one
    connection."""
    topic, conn = client.topic(3), client.on()
    sent = []
    for i in range(60):
        if i % 3 == 0:
            sent.append(("produce", conn.send_produce(topic, rb.build([b"x" * 50_000]), i % 9 // 3)))
        elif i % 3 == 1:
            sent.append(
                ("fetch", conn.send_fetch(topic, {2: 1 << 40 if i % 2 else 0}, max_wait_ms=20, min_bytes=1 << 29))
            )
        else:
            sent.append(("fetch", conn.send_fetch(topic, {1: 0}, partition_bytes=100)))
    for kind, correlation in sent:  # receive() insists on the correlation id
        if kind == "produce":
            assert conn.receive_produce(correlation).error == 0
        else:
            conn.receive_fetch(correlation)


@pytest.mark.both_io
@pytest.mark.camus_only
@pytest.mark.restarts
def test_sigterm_ends_with_0_in_time_and_loses_nothing(broker, client):
    """Lost otherwise: acknowledged records, or ten seconds of every deployment."""
    topic, writers = client.topic(4), []
    for _ in range(3):
        now = start_all([Writer(client, topic, partition=n) for n in range(4)])
        acked_enough(now, 30)
        with client.connect() as idle, client.connect() as polling:
            idle.metadata()
            polling.send_fetch(topic, {0: 1 << 40}, max_wait_ms=60000, min_bytes=1 << 29)
            broker.stop()
        all_ended(now, 20)
        writers += now
        come_back(broker, client, topic, 4)
        check(client, writers)


@pytest.mark.camus_only
@pytest.mark.restarts
def test_a_start_that_is_killed_again_and_again_loses_nothing(serve, broker, client):
    """Lost otherwise: the log, if recovery itself is not safe to repeat."""
    topic = client.topic()
    values = [b"%d" % i for i in range(200)]
    for i in range(0, 200, 20):
        client.put(topic, values[i : i + 20])
    chance = random.Random(11)
    broker.kill_9()
    client.forget()
    for _ in range(15):
        broker.launch()
        time.sleep(chance.random() * 0.15)
        broker.kill_9()
    broker.start()
    client.when_led(topic)
    assert client.values(topic) == values
    client.put(topic, [b"more"])
    assert client.values(topic) == [*values, b"more"]


@pytest.mark.camus_only
@pytest.mark.restarts
def test_topics_and_producer_ids_survive_kill_9(broker, client):
    """Lost otherwise: metadata: a topic that was created, its id, and the promise that a producer id is given once."""
    topics = {client.topic(n + 1): n + 1 for n in range(5)}
    gone = client.topic()
    assert client.on().delete_topic(gone) == 0
    ids = {name: client.on().topic_id(name) for name in topics}
    pids = [client.on().init_producer_id()[0] for _ in range(5)]
    cluster = client.on().metadata()["cluster"]
    for _ in range(3):
        broker.kill_9()
        client.forget()
        broker.start()
        found = client.on().metadata(None)
        assert found["cluster"] == cluster == broker.cluster
        assert {n: len(t["partitions"]) for n, t in found["topics"].items()} == topics
        assert {n: t["id"] for n, t in found["topics"].items()} == ids
        pids += [client.on().init_producer_id()[0] for _ in range(5)]
        assert len(set(pids)) == len(pids), "a producer id was given twice"


@pytest.mark.camus_only
def test_a_frozen_process_answers_when_it_wakes(broker, client):
    """Lost otherwise: the requests that a broker held when it was stopped for a while (SIGSTOP, a paused machine)."""
    topic, conn = client.topic(), client.on()
    broker.signal(signal.SIGSTOP)
    try:
        sent = conn.send_produce(topic, rb.build([b"held"]))
        with pytest.raises(Silent):
            conn.receive_produce(sent, timeout=1.0)
    finally:
        broker.signal(signal.SIGCONT)
    assert conn.receive_produce(sent, timeout=20).base_offset == 0
    client.healthy()
