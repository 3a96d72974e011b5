"""A client that never reads is bounded, and holds nobody up."""

import threading
import time

import pytest

from harness import batch as rb
from harness.broker import FOREIGN, MIB, Client
from harness.wire import Closed


def fill(client, topic, mebibytes):
    for i in range(mebibytes):
        client.put(topic, [bytes([i % 251]) * (MIB - 1000)])


def quick(client, topic, seconds, bar):
    """A second client's produce and fetch stay quick for so long; the worst time."""
    end, worst = time.monotonic() + seconds, 0.0
    with client.connect() as conn:
        while time.monotonic() < end:
            begun = time.monotonic()
            done = conn.produce(topic, rb.build([b"quick"]))
            assert done.error == 0, done
            got = conn.fetch(topic, done.base_offset)
            assert rb.parse(got.records)[0].records()[0].value == b"quick"
            worst = max(worst, time.monotonic() - begun)
            assert worst < bar, f"another client waited for {worst:.1f} s"
    return worst


@pytest.mark.both_io
@pytest.mark.alone
@pytest.mark.parametrize("readers", [1, 8])
def test_a_client_that_never_reads_is_bounded_and_holds_nobody_up(broker, client, readers):
    """Lost otherwise: memory (answers pile up) or the service of everybody else on that core."""
    big, other = client.topic(), client.topic()
    fill(client, big, 24)
    before = 0 if FOREIGN else broker.rss_bytes()
    lazy = [client.connect(receive_buffer=4096) for _ in range(readers)]
    try:
        for conn in lazy:
            conn.sock.settimeout(0.2)
            try:
                for _ in range(200):  # 200 x 20 MiB are asked for; the broker may stop reading requests at any time
                    conn.send_fetch(big, {0: 0}, max_bytes=20 * MIB, partition_bytes=20 * MIB)
            except (TimeoutError, Closed):
                pass
        quick(client, other, 4, 2.0)
        if not FOREIGN:
            assert broker.rss_bytes() - before < 160 * MIB, "answers that nobody reads pile up"
    finally:
        for conn in lazy:
            conn.close()
    quick(client, other, 0.5, 2.0)


@pytest.mark.camus_only
@pytest.mark.alone
def test_more_clients_than_memory_that_never_read_hold_nobody_up(serve):
    """Lost otherwise: the time of everybody on that core, until those that read nothing are closed."""
    broker = serve(cores=1, settings={"camus.memory": "128MiB"})
    client = Client(broker)
    big, other = client.topic(), client.topic()
    fill(client, big, 24)
    lazy = []
    try:
        for _ in range(80):  # a batch for each is more than there is for answers
            lazy.append(client.connect(receive_buffer=4096))
            lazy[-1].send_fetch(big, {0: 0}, max_bytes=50 * MIB, partition_bytes=50 * MIB)
        with client.connect() as conn:
            for _ in range(200):
                begun = time.monotonic()
                assert conn.produce(other, rb.build([b"quick"])).error == 0
                took = time.monotonic() - begun
                assert took < 1, f"a producer waited for {took:.1f} s"
                time.sleep(0.01)
        quick(client, other, 1, 3.0)
        assert broker.rss_bytes() < 300 * MIB, "answers that nobody reads pile up"
    finally:
        for conn in lazy:
            conn.close()


def test_a_client_that_reads_late_gets_every_answer_whole(client):
    """Lost otherwise: answers, or their bytes, of a client that was only slow."""
    big = client.topic()
    fill(client, big, 4)
    with client.connect(receive_buffer=4096, timeout=60) as conn:
        sent = []

        def ask():
            for _ in range(20):
                sent.append(conn.send_fetch(big, {0: 0}))

        asking = threading.Thread(target=ask)
        asking.start()
        time.sleep(2)
        for n in range(20):
            while len(sent) <= n:
                time.sleep(0.01)
            got = conn.receive_fetch(sent[n])[0]
            values = [r.value for b in rb.parse(got.records) for r in b.records()]
            assert values and all(v == bytes([i]) * (MIB - 1000) for i, v in enumerate(values))
        asking.join()


@pytest.mark.camus_only
@pytest.mark.alone
def test_a_producer_that_never_reads_is_bounded(broker, client):
    """Lost otherwise: memory, to a producer that sends and sends and takes no answer."""
    topic, other = client.topic(), client.topic()
    client.healthy()
    before, batch = broker.rss_bytes(), rb.build([b"x" * 500])
    with client.connect(receive_buffer=4096) as conn:
        conn.sock.settimeout(0.3)
        try:
            for _ in range(60_000):
                conn.send_produce(topic, batch)
        except (TimeoutError, Closed):
            pass
        quick(client, other, 2, 2.0)
        assert broker.rss_bytes() - before < 160 * MIB


@pytest.mark.camus_only
@pytest.mark.alone
def test_thousand_idle_connections_are_served_beside_others(broker, client):
    """Lost otherwise: the others, when many clients only hold their connection open."""
    conns = [client.connect() for _ in range(1000)]
    try:
        for conn in conns[::50]:
            conn.metadata()
        quick(client, client.topic(), 1, 2.0)
        assert broker.rss_bytes() < 400 * MIB
    finally:
        for conn in conns:
            conn.close()
    client.healthy()


def test_a_long_poll_wakes_at_once_and_ends_in_time(client):
    """Lost otherwise: latency (a reader that sleeps over new data) or the answer (a poll that never ends)."""
    topic, conn = client.topic(), client.on()
    begun = time.monotonic()
    got = conn.fetch(topic, 0, max_wait_ms=700)
    assert not got.records and 0.6 < time.monotonic() - begun < 5
    with client.connect() as reader:
        waiting = reader.send_fetch(topic, {0: 0}, max_wait_ms=25000)
        reader.assert_silent(0.3)
        begun = time.monotonic()
        client.put(topic, [b"news"])
        got = reader.receive_fetch(waiting, timeout=20)[0]
        assert time.monotonic() - begun < 3
        assert rb.parse(got.records)[0].records()[0].value == b"news"
