"""What operators and their consoles ask for, over the raw wire."""

import pytest

from harness import batch as rb
from harness import wire
from harness.wire import W
from harness.wait import until

DESCRIBE_ACLS, DESCRIBE_LOG_DIRS, DESCRIBE_PRODUCERS = 29, 35, 61
SECURITY_DISABLED = 54
wire.FLEXIBLE_FROM.update({DESCRIBE_ACLS: 2, DESCRIBE_LOG_DIRS: 2, DESCRIBE_PRODUCERS: 0})


def sizes(client, version=4):
    """What each partition takes, by topic and number, and the directory."""
    conn = client.on()
    conn.send(DESCRIBE_LOG_DIRS, version, W(version >= 2).array(None, None).tags().out)
    r = conn.receive(DESCRIBE_LOG_DIRS, version)
    assert r.get("i") == 0
    if version >= 3:
        assert r.get("h") == 0
    found = {}

    def partition(topic):
        number, size, lag, future = r.get("iqq?")
        r.tags()
        assert lag == 0 and not future
        found[topic, number] = size

    def topic():
        name = r.string()
        r.array(lambda: partition(name))
        r.tags()

    def directory():
        assert r.get("h") == 0
        path = r.string()
        r.array(topic)
        if version >= 4:
            assert r.get("qq") == (-1, -1)
        r.tags()
        return path

    (path,) = r.array(directory)
    r.tags()
    r.done()
    return found, path


@pytest.mark.camus_only
@pytest.mark.parametrize("version", range(1, 5))
def test_the_size_of_a_partition_is_that_of_its_batches(client, version):
    """Lost otherwise: who looks for what fills the disk; and consoles, which call a cluster without this offline."""
    topic = client.topic(2)
    first, second = rb.build([b"x" * 1000]), rb.build([b"y" * 500] * 3)
    for batch in (first, second):
        assert client.on().produce(topic, batch).error == 0
    found, path = sizes(client, version)
    assert (found[topic, 0], found[topic, 1]) == (len(first) + len(second), 0)
    assert path.startswith("/")
    assert client.on().delete_topic(topic) == 0
    until(lambda: (topic, 0) not in sizes(client, version)[0], what="the deleted topic takes nothing")


@pytest.mark.camus_only
def test_who_writes_to_a_partition_is_told(client):
    """Lost otherwise: whoever looks for the producer that hangs."""
    topic, conn = client.topic(), client.on()
    producer, epoch = conn.init_producer_id()
    assert conn.produce(topic, rb.build([b"a", b"b"], pid=producer, epoch=epoch, seq=0)).error == 0
    w = W(True)
    w.array([topic], lambda name: w.string(name).array([0], lambda n: w.put("i", n)).tags()).tags()
    conn.send(DESCRIBE_PRODUCERS, 0, w.out)
    r = conn.receive(DESCRIBE_PRODUCERS, 0)
    assert r.get("i") == 0

    def active():
        state = r.get("qiiqiq")
        r.tags()
        return state

    def partition():
        number, error = r.get("ih")
        assert (number, error, r.string()) == (0, 0, None)
        states = r.array(active)
        r.tags()
        return states

    def described():
        assert r.string() == topic
        (states,) = r.array(partition)
        r.tags()
        return states

    (states,) = r.array(described)
    r.tags()
    r.done()
    ((found, found_epoch, sequence, timestamp, coordinator, began),) = states
    assert (found, found_epoch, sequence, coordinator, began) == (producer, epoch, 1, -1, -1)
    assert timestamp > 0


@pytest.mark.camus_only
@pytest.mark.parametrize("version", range(1, 4))
def test_that_there_are_no_acls_is_said(client, version):
    """Lost otherwise: an operator who takes an open cluster for a closed one."""
    w = W(version >= 2)
    w.put("b", 2).string(None).put("b", 1).string(None).string(None).put("bb", 1, 1).tags()
    conn = client.on()
    conn.send(DESCRIBE_ACLS, version, w.out)
    r = conn.receive(DESCRIBE_ACLS, version)
    assert r.get("ih") == (0, SECURITY_DISABLED) and r.string()
    assert r.array(None) == []
    r.tags()
    r.done()
