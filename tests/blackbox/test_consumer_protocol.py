"""Groups of KIP-848 (`group.protocol=consumer`), with librdkafka's members: shared, left, restarted, changed."""

import subprocess
import sys
import threading
import time
from collections import Counter

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient

from harness import groups as g
from harness.broker import Client, fresh
from harness.wait import until

SESSION_S = 6
#: A member is heard twice a second. One that is silent for as long as a busy machine may stall is not taken out yet.
QUICK = {
    "group.initial.rebalance.delay.ms": 0,
    "group.consumer.min.session.timeout.ms": 1000,
    "group.consumer.session.timeout.ms": SESSION_S * 1000,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": 500,
}


def options(address, group, protocol):
    classic = {"session.timeout.ms": 10000, "heartbeat.interval.ms": 500, "partition.assignment.strategy": "range"}
    return {
        "bootstrap.servers": address,
        "group.id": group,
        "group.protocol": protocol,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 100,
        "reconnect.backoff.max.ms": 500,
        "topic.metadata.refresh.interval.ms": 1000,
        **(classic if protocol == "classic" else {}),
    }


class Group:
    """What the members of one group did, all of them together."""

    def __init__(self, broker, topics):
        self.address, self.topics, self.name = broker.address, topics, fresh("g")
        self.lock, self.members = threading.Lock(), []
        self.read, self.acked, self.faults = [], {}, []
        self.holders, self.clashes = {}, []

    def join(self, protocol="consumer"):
        member = Reader(self, protocol)
        self.members.append(member)
        member.start()
        return member

    def shared(self, partitions, *members, seconds=40):
        """Waits until these members have all partitions among them, each as many as the others."""
        every = sorted(range(partitions))

        def are():
            parts = [sorted(p for _, p in member.mine) for member in members]
            return sorted(sum(parts, [])) == every and max(map(len, parts)) - min(map(len, parts)) <= 1

        until(are, seconds, f"{len(members)} members share {partitions} partitions")

    def all_read(self, values, seconds=40):
        """Waits until each of the values was read, and returns how often each of them was."""
        until(lambda: values <= {value for *_, value in self.read}, seconds, "all records were read")
        assert not self.faults, self.faults[:3]
        return Counter(value for *_, value in self.read)

    def end(self):
        for member in self.members:
            member.ends.set()
        for member in self.members:
            member.join(30)
            assert not member.is_alive(), "a member did not end"


class Reader(threading.Thread):
    """A member that reads, commits what it read, and notes both. It commits before it gives a partition up."""

    def __init__(self, group, protocol):
        super().__init__(daemon=True)
        self.group, self.ends, self.mine = group, threading.Event(), set()
        self.places, self.done = {}, {}
        self.consumer = ck.Consumer(options(group.address, group.name, protocol))

    def run(self):
        calls = {"on_assign": self.gets, "on_revoke": self.gives_up, "on_lost": self.loses}
        self.consumer.subscribe(self.group.topics, **calls)
        try:
            while not self.ends.is_set():
                self.step()
        except Exception as fault:
            self.group.faults.append(repr(fault))
        finally:
            self.consumer.close()

    def step(self):
        message = self.consumer.poll(0.1)
        if message is None:
            self.commit()
        elif message.error() is None:
            spot = message.topic(), message.partition()
            self.places[spot] = message.offset() + 1
            with self.group.lock:
                self.group.read.append((*spot, message.offset(), message.value()))
            if message.offset() % 16 == 15:
                self.commit()
        elif message.error().fatal():
            self.group.faults.append(str(message.error()))

    def commit(self):
        """True if everything that this member has read is committed."""
        new = [(spot, at) for spot, at in self.places.items() if self.done.get(spot) != at and spot in self.mine]
        if not new:
            return True
        try:
            spots = [ck.TopicPartition(*spot, at) for spot, at in new]
            answers = self.consumer.commit(offsets=spots, asynchronous=False)
        except ck.KafkaException:
            return False  # the broker is gone, or the member's epoch is another by now: later
        for at in answers:
            if at.error is None:
                spot = at.topic, at.partition
                self.done[spot] = at.offset
                with self.group.lock:
                    self.group.acked[spot] = max(at.offset, self.group.acked.get(spot, 0))
        return all(at.error is None for at in answers)

    def gets(self, _, spots):
        with self.group.lock:
            for spot in ((s.topic, s.partition) for s in spots):
                if holder := self.group.holders.get(spot):
                    self.group.clashes.append((spot, holder.name, self.name))
                self.group.holders[spot] = self
                self.mine = self.mine | {spot}

    def gives_up(self, _, spots):
        end = time.monotonic() + 10
        while not self.commit() and time.monotonic() < end:
            time.sleep(0.1)
        self.loses(_, spots)

    def loses(self, _, spots):
        with self.group.lock:
            for spot in ((s.topic, s.partition) for s in spots):
                self.mine = self.mine - {spot}
                self.places.pop(spot, None)
                self.done.pop(spot, None)
                if self.group.holders.get(spot) is self:
                    del self.group.holders[spot]


@pytest.fixture
def group_of():
    made = []

    def make(broker, topics):
        made.append(Group(broker, topics))
        return made[-1]

    yield make
    for group in made:
        group.end()


def put(client, topic, partitions, round_):
    """Some records in each partition; their values, no two of which are alike."""
    values = {p: [f"{round_}-{p}-{n}".encode() for n in range(40)] for p in range(partitions)}
    for p, some in values.items():
        client.put(topic, some, p)
    return {value for some in values.values() for value in some}


def type_of(admin, group):
    listed = admin.list_consumer_groups(request_timeout=10).result(15)
    return {found.group_id: found.type for found in listed.valid}.get(group)


def test_members_share_the_partitions_each_has_one_owner_and_a_third_gets_its_part(serve, group_of):
    """Lost otherwise: each record once in a group that grows: read by nobody, or by two."""
    broker = serve(settings=QUICK)
    client = Client(broker)
    topic = client.topic(6)
    group = group_of(broker, [topic])
    values = put(client, topic, 6, "before")
    one, two = group.join(), group.join()
    group.shared(6, one, two)
    values |= put(client, topic, 6, "two")
    three = group.join()
    for n in range(5):
        values |= put(client, topic, 6, f"grows{n}")
    group.shared(6, one, two, three)
    values |= put(client, topic, 6, "three")
    times = group.all_read(values)
    assert set(times.values()) == {1} and set(times) == values, times.most_common(3)
    assert not group.clashes, "a partition was given to a second member before the first one gave it up"
    client.forget()


CHILD = """
import sys
import confluent_kafka as ck
settings, topic = eval(sys.argv[1]), sys.argv[2]
consumer = ck.Consumer(settings)
consumer.subscribe([topic])
while True:
    message = consumer.poll(1.0)
    if message is not None and message.error() is None:
        print(message.partition(), message.value().decode(), flush=True)
        if message.offset() == 9:
            consumer.commit(message, asynchronous=False)
"""


@pytest.mark.camus_only
def test_the_partitions_of_a_member_that_dies_without_a_word_are_read_by_the_others(serve, group_of):
    """Lost otherwise: the partitions of a process that was killed: nobody reads them, or not what it did not commit."""
    broker = serve(settings=QUICK)
    client = Client(broker)
    topic = client.topic(4)
    group = group_of(broker, [topic])
    settings = options(broker.address, group.name, "consumer")
    child = subprocess.Popen([sys.executable, "-c", CHILD, repr(settings), topic], stdout=subprocess.PIPE, text=True)
    try:
        said = []
        listener = threading.Thread(target=lambda: said.extend(line.split() for line in child.stdout), daemon=True)
        listener.start()
        lives = group.join()
        until(lambda: len(lives.mine) == 2, 40, "the members share")
        orphans = set(range(4)) - {p for _, p in lives.mine}
        values = put(client, topic, 4, "a")
        until(lambda: {int(p) for p, _ in said} >= orphans, 40, "the member that is to die reads")
        child.kill()
        died = time.monotonic()
        child.wait()
        values |= put(client, topic, 4, "b")
        group.shared(4, lives)
        assert time.monotonic() - died > SESSION_S / 2, "it was not given its session"
        listener.join(10)
        by_child = {value.encode() for _, value in said}
        until(lambda: values - by_child <= {value for *_, value in group.read}, 40, "its partitions are read")
        starts = {p: min(at for _, q, at, _ in group.read if q == p) for p in orphans}
        assert all(start in (0, 10) for start in starts.values()), starts
        ends = dict.fromkeys(sorted(orphans), 80)
        until(lambda: g.committed(client.on(), group.name, topic, sorted(orphans)) == ends, 20, "all is committed")
    finally:
        child.kill()
        child.wait()
    client.forget()


@pytest.mark.restarts
def test_after_kill_9_of_the_broker_a_group_goes_on_where_it_committed(serve, group_of):
    """Lost otherwise: the place of a group and its members, whom the broker has forgotten. Two kills under load."""
    broker = serve(settings=QUICK)
    client = Client(broker)
    topic = client.topic(4)
    group = group_of(broker, [topic])
    one, two = group.join(), group.join()
    group.shared(4, one, two)
    values = set()
    for n in range(2):
        values |= put(client, topic, 4, f"warm{n}")
        warm = {p: client.on().end(topic, p) - 40 for p in range(4)}
        until(lambda warm=warm: all(group.acked.get((topic, p), -1) > at for p, at in warm.items()), 40, "all commit")
        values |= put(client, topic, 4, f"cut{n}")
        broker.kill_9()
        client.forget()
        with group.lock:
            acked, before = dict(group.acked), len(group.read)
        broker.start()
        places = g.committed(client.on(), group.name, topic, range(4))
        assert all(places[p] >= at for (_, p), at in acked.items()), (places, acked)
        client.when_led(topic, 4)
        values |= put(client, topic, 4, f"after{n}")
        until(lambda: all(group.acked[topic, p] == client.on().end(topic, p) for p in range(4)), 40, "it goes on")
        group.all_read(values)
        group.shared(4, one, two)
        for (_, p), at in acked.items():
            again = [offset for _, q, offset, _ in group.read[before:] if q == p]
            assert min(again) >= at - 40, f"{p}: began at {min(again)}, and {at} was committed"
            assert g.committed(client.on(), group.name, topic, [p])[p] == client.on().end(topic, p)
    client.forget()


def test_a_classic_group_is_joined_by_a_member_of_kip_848_and_ends_as_one(serve, group_of):
    """Lost otherwise: records while a group moves to the new protocol, member by member, as KIP-848 says it can."""
    broker = serve(settings=QUICK)
    client = Client(broker)
    admin = AdminClient({"bootstrap.servers": broker.address})
    topic = client.topic(4)
    group = group_of(broker, [topic])
    one, two = group.join("classic"), group.join("classic")
    group.shared(4, one, two)
    values = put(client, topic, 4, "classic")
    group.all_read(values)
    assert type_of(admin, group.name) == ck.ConsumerGroupType.CLASSIC
    three = group.join("consumer")
    values |= put(client, topic, 4, "joins")
    group.shared(4, one, two, three)
    assert type_of(admin, group.name) == ck.ConsumerGroupType.CONSUMER
    values |= put(client, topic, 4, "both")
    one.ends.set()
    four = group.join("consumer")
    values |= put(client, topic, 4, "one-left")
    group.shared(4, two, three, four)
    two.ends.set()
    values |= put(client, topic, 4, "two-left")
    group.shared(4, three, four)
    values |= put(client, topic, 4, "new")
    assert set(group.all_read(values)) == values
    ends = {p: client.on().end(topic, p) for p in range(4)}
    until(lambda: g.committed(client.on(), group.name, topic, range(4)) == ends, 20, "all is committed")
    described = admin.describe_consumer_groups([group.name], request_timeout=10)[group.name].result(15)
    assert (described.type, len(described.members)) == (ck.ConsumerGroupType.CONSUMER, 2)
    client.forget()


def test_a_subscription_by_pattern_takes_up_a_topic_that_is_made_later(serve, group_of):
    """Lost otherwise: the records of topics that are made while a group that means them by a pattern is running."""
    broker = serve(settings=QUICK)
    client = Client(broker)
    name = fresh("many")
    first, other = client.topic(2, f"{name}-a"), client.topic(1, f"x{name}-a")
    group = group_of(broker, [f"^{name}-[ab]-.*"])
    values = put(client, first, 2, "first")
    one, two = group.join(), group.join()
    until(lambda: {spot for m in (one, two) for spot in m.mine} == {(first, 0), (first, 1)}, 40, "the first topic")
    put(client, other, 1, "other")
    later = client.topic(2, f"{name}-b")
    values |= put(client, later, 2, "later")
    wanted = {(topic, p) for topic in (first, later) for p in range(2)}
    until(lambda: one.mine | two.mine == wanted and len(one.mine) == len(two.mine), 40, "the later topic")
    assert set(group.all_read(values)) == values and not group.clashes
    client.forget()
