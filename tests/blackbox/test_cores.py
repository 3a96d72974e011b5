"""Partitions on two pinned cores, reached through any connection."""

import os
import re
from pathlib import Path

import pytest

from harness import batch as rb
from harness import wire
from harness.broker import Client
from harness.threads import side_by_side

pytestmark = pytest.mark.camus_only
PARTITIONS = 32
two_cpus = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="NOT TESTED: this host has one CPU")


@pytest.fixture
def pair(serve):
    client = Client(serve(cores=2))
    yield client
    client.forget()


def pinned(pid):
    """CPU -> names of the threads that may run on this one only."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        status = (task / "status").read_text()
        cpus = re.search(r"Cpus_allowed_list:\s*(\S+)", status)[1]
        if cpus.isdigit():
            found.setdefault(int(cpus), []).append(re.search(r"Name:\s*(.+)", status)[1])
    return found


@two_cpus
@pytest.mark.both_io
def test_two_threads_are_pinned_to_two_cpus(pair):
    """Lost otherwise: the isolation of a core: a shard's thread that wanders over the CPUs."""
    cpus = pinned(pair.broker.pid)
    assert len(cpus) >= 2, cpus


@two_cpus
@pytest.mark.both_io
def test_one_connection_reaches_the_partitions_of_both_cores(pair):
    """Lost otherwise: half of all requests: those for partitions of another core than the connection's."""
    topic = pair.topic(PARTITIONS)
    marks = {p: b"core-probe-%d-" % p + os.urandom(8).hex().encode() for p in range(PARTITIONS)}
    with pair.connect() as conn:
        for p, mark in marks.items():
            assert conn.produce(topic, rb.build([mark]), p).base_offset == 0
        for p, mark in marks.items():
            got = conn.fetch(topic, 0, p)
            assert rb.parse(got.records)[0].records()[0].value == mark
            assert (got.error, got.high_watermark) == (0, 1)
    # Both cores own some of them: the records lie in the logs of two cores.
    folders = {}
    for path in pair.broker.data_dir.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            for p, mark in marks.items():
                if mark in data:
                    folders.setdefault(path.parent, set()).add(p)
    assert len(folders) == 2, {str(f): sorted(ps) for f, ps in folders.items()}
    assert sorted(p for ps in folders.values() for p in ps) == list(range(PARTITIONS))
    assert min(len(ps) for ps in folders.values()) >= PARTITIONS // 4, "the partitions are not spread over the cores"


@two_cpus
@pytest.mark.both_io
def test_one_request_for_partitions_of_both_cores_is_answered_whole(pair):
    """Lost otherwise: an answer's parts: one produce and one fetch that name all partitions."""
    topic = pair.topic(PARTITIONS)
    with pair.connect() as conn:
        for n in range(5):
            parts = [(p, rb.build([b"%d:%d" % (p, n)])) for p in range(PARTITIONS)]
            done = conn.receive_produce_many(conn.send_produce_many(topic, parts))
            assert {p: (d.error, d.base_offset) for p, d in done.items()} == {p: (0, n) for p in range(PARTITIONS)}
        got = conn.receive_fetch(conn.send_fetch(topic, dict.fromkeys(range(PARTITIONS), 0)))
        assert sorted(got) == list(range(PARTITIONS))
        for p, part in got.items():
            assert [r.value for b in rb.parse(part.records) for r in b.records()] == [
                b"%d:%d" % (p, n) for n in range(5)
            ]


@two_cpus
def test_many_connections_over_both_cores_keep_every_order(pair):
    """Lost otherwise: order or records, when requests of many connections cross between the cores."""
    topic = pair.topic(8)

    def work(me):
        with pair.connect() as conn:
            pid, epoch = conn.init_producer_id()
            pending = []
            for n in range(300):
                p = (me + n) % 8
                batch = rb.build([b"%d:%d" % (me, n)], pid=pid, epoch=epoch, seq=n // 8)
                pending.append(conn.send_produce(topic, batch, p))
                if len(pending) == 5:
                    assert conn.receive_produce(pending.pop(0)).error == 0
            for correlation in pending:
                assert conn.receive_produce(correlation).error == 0

    side_by_side([lambda me=me: work(me) for me in range(8)])
    seen = {me: [] for me in range(8)}
    for p in range(8):
        last = {}
        for value in pair.values(topic, p):
            me, n = map(int, value.split(b":"))
            assert n > last.get(me, -1), f"producer {me} is out of order in partition {p}"
            last[me] = n
            seen[me].append(n)
    assert all(sorted(ns) == list(range(300)) for ns in seen.values())


@two_cpus
def test_a_poll_on_one_core_wakes_for_a_partition_of_the_other(pair):
    """Lost otherwise: the latency of every consumer whose connection is on another core than its partition."""
    topic = pair.topic(8)
    for p in range(8):
        with pair.connect() as reader:
            waiting = reader.send_fetch(topic, {p: 0}, max_wait_ms=25000)
            reader.assert_silent(0.1)
            pair.put(topic, [b"%d" % p], p)
            got = reader.receive_fetch(waiting, timeout=5)[p]
            assert rb.parse(got.records)[0].records()[0].value == b"%d" % p


@two_cpus
@pytest.mark.restarts
def test_both_cores_recover_their_own(pair):
    """Lost otherwise: the log of one core, or a partition that comes back on another core."""
    topic = pair.topic(PARTITIONS)
    for n in range(3):
        for p in range(PARTITIONS):
            pair.put(topic, [b"%d:%d" % (p, n)], p)
    pair.forget()
    pair.broker.kill_9()
    pair.broker.start()
    pair.when_led(topic, PARTITIONS)
    for p in range(PARTITIONS):
        assert pair.values(topic, p) == [b"%d:%d" % (p, n) for n in range(3)]
        assert pair.put(topic, [b"more"], p) == 3


@two_cpus
def test_every_core_knows_a_topic_once_its_creation_is_answered(pair):
    """Lost otherwise: the first requests for a new topic, if another connection's core has not heard of it."""
    conns = [pair.connect() for _ in range(12)]
    try:
        for n in range(10):
            name = f"known-{n}"
            assert conns[n % 12].create_topic(name, 2) == 0
            for conn in conns:
                found = conn.metadata([name])["topics"][name]
                assert found["error"] in (0, wire.LEADER_NOT_AVAILABLE) and len(found["partitions"]) == 2
    finally:
        for conn in conns:
            conn.close()
