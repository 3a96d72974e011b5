"""SPEC promise 5: consumers are at least once. A group goes on where it committed, and that never goes back."""
import threading
import time

import pytest

from harness import groups as g
from harness.broker import Client, fresh
from harness.wait import until
from harness.wire import Closed, Conn

NO_DELAY = {"group.initial.rebalance.delay.ms": 0}


class Committer(threading.Thread):
    """Commits 1, 2, 3, ... with several requests in flight until the connection ends; knows what was acknowledged."""

    def __init__(self, address, group, topic, partition, first):
        super().__init__(daemon=True)
        self.conn, self.group, self.topic, self.partition = Conn(address), group, topic, partition
        self.sent = self.acked = first

    def run(self):
        pending = []
        try:
            while True:
                while len(pending) < 4:
                    self.sent += 1
                    offsets = {self.partition: self.sent}
                    pending.append((self.sent, g.send_commit(self.conn, self.group, self.topic, offsets)))
                offset, correlation = pending.pop(0)
                assert g.receive_commit(self.conn, correlation) == {self.partition: 0}
                self.acked = offset
        except (Closed, OSError):
            pass


@pytest.mark.both_io
@pytest.mark.restarts
def test_a_committed_offset_survives_kill_9_and_never_goes_back(broker, client):
    """Lost otherwise: the place where a group goes on. Four kills under load; what was acknowledged is there, or what
    was sent after it, and nothing else."""
    topic, names = client.topic(3), [fresh("g") for _ in range(2)]
    places = {(name, p): 0 for name in names for p in range(3)}
    for _ in range(4):
        threads = [Committer(broker.address, name, topic, p, first) for (name, p), first in places.items()]
        for thread in threads:
            thread.start()
        until(lambda: all(t.acked >= t.sent - 4 and t.acked > places[t.group, t.partition] + 10 for t in threads))
        broker.kill_9()
        for thread in threads:
            thread.join(30)
        client.forget()
        broker.start()
        for thread in threads:
            (found,) = g.committed(client.on(), thread.group, topic, [thread.partition]).values()
            assert thread.acked <= found <= thread.sent, (thread.group, thread.partition)
            places[thread.group, thread.partition] = found


@pytest.mark.restarts
def test_commit_crash_resume(serve):
    """Lost otherwise: records between a consumer's last commit and its crash. They come again, and none before them."""
    broker = serve(settings=NO_DELAY)
    client = Client(broker)
    topic, group = client.topic(), fresh("g")
    client.put(topic, [b"%d" % n for n in range(20)])
    one = g.Member(broker.address, group, 1).join()
    assert one.mine == [0]
    start = max(0, g.committed(one.on(), group, topic)[0])
    read = client.values(topic, start=start)[:12]
    assert one.commit(topic, {0: 8}) == {0: 0}
    one.dies()
    broker.kill_9()
    client.forget()
    broker.start()
    two = g.Member(broker.address, group, 1).join()
    start = g.committed(two.on(), group, topic)[0]
    again = client.values(topic, start=start)
    assert (start, read[:8] + again) == (8, [b"%d" % n for n in range(20)])
    client.forget()


@pytest.mark.camus_only
@pytest.mark.restarts
def test_a_member_of_before_a_restart_joins_again_and_can_not_commit_before(serve):
    """Lost otherwise: a group without a generation after a restart, or one in which a member of long ago commits."""
    broker = serve(settings=NO_DELAY)
    client = Client(broker)
    topic, group = client.topic(2), fresh("g")
    member = g.Member(broker.address, group, 2).join()
    assert member.commit(topic, {0: 3, 1: 4}) == {0: 0, 1: 0}
    before = member.id
    broker.kill_9()
    member.dies()
    client.forget()
    broker.start()
    assert member.beat() == g.UNKNOWN_MEMBER
    assert member.commit(topic, {0: 1}) == {0: g.UNKNOWN_MEMBER}
    member.join()
    assert member.id != before and member.mine == [0, 1]
    assert member.commit(topic, {0: 5}) == {0: 0}
    assert g.committed(client.on(), group, topic, [0, 1]) == {0: 5, 1: 4}
    client.forget()


def test_two_members_share_and_the_survivor_reads_what_the_dead_one_did_not_commit(serve):
    """Lost otherwise: the partitions of a member that dies. Members on two cores are one group; one dies silently."""
    broker = serve(cores=2, settings=NO_DELAY)
    client = Client(broker)
    topic, group = client.topic(4), fresh("g")
    for p in range(4):
        client.put(topic, [b"%d-%d" % (p, n) for n in range(10)], p)
    assert g.coordinator(client.on(), group) == (0, broker.address)
    lives, dies = (g.Member(broker.address, group, 4) for _ in range(2))
    lives.join()
    joining = threading.Thread(target=dies.join, daemon=True)
    joining.start()
    until(lambda: lives.beat() == g.REBALANCING, what="the group waits for its member")
    lives.join()
    joining.join(30)
    assert lives.generation == dies.generation and len(lives.mine) == len(dies.mine) == 2
    assert sorted(lives.mine + dies.mine) == [0, 1, 2, 3]
    orphans = dies.mine
    assert dies.commit(topic, {orphans[0]: 6}) == {orphans[0]: 0}
    dies.dies()
    died = time.monotonic()
    until(lambda: lives.beat() == g.REBALANCING, 20, "the dead member's session ends")
    assert time.monotonic() - died > 4.0, "it was not given its session"
    lives.join()
    assert lives.mine == [0, 1, 2, 3]
    places = g.committed(lives.on(), group, topic, orphans)
    assert places == {orphans[0]: 6, orphans[1]: -1}
    got = [client.values(topic, p, start=max(0, places[p])) for p in orphans]
    assert got == [[b"%d-%d" % (p, n) for n in range(max(0, places[p]), 10)] for p in orphans]
    client.forget()


@pytest.mark.camus_only
def test_sigterm_does_not_wait_for_members_that_wait(serve):
    """Lost otherwise: an orderly end. A member that waits is told to ask later, and the broker ends at once."""
    broker = serve(settings={"group.initial.rebalance.delay.ms": 60000})
    member = g.Member(broker.address, fresh("g"), 1, rebalance_ms=60000)
    member.send_join()
    member.id = member.receive_join().member
    member.send_join()
    member.conn.assert_silent(0.3)
    began = time.monotonic()
    broker.stop()
    assert time.monotonic() - began < 4.0
    assert member.receive_join().error in g.LATER
    member.dies()
