"""What every client is asked to do, and what must come of it.

A scenario is a function of a [`Case`]: it gives the client's program verbs (README.md), and judges what the program
said. Nothing here knows a client; what one lacks is in its entry of `clients.py`. Where a client's word is not enough,
the broker is asked by hand (`broker.py`).
"""

import contextlib
import time
import zlib
from collections import Counter, defaultdict

import broker as wire
from process import Failure, Program, Skip, brief, run

#: A moment far enough back that it is nobody's clock, and late enough that no retention (days) comes near.
T0 = int(time.time() - 7200) * 1000
SCENARIOS = {}


def scenario(what, seconds=90, needs=(), ci=False, alone=False):
    """Registers a function of a case. `needs`: keys that the broker must advertise; `alone`: on a broker of its own."""

    def register(function):
        function.what, function.seconds, function.needs = what, seconds, dict(needs)
        function.ci, function.alone = ci, alone
        SCENARIOS[function.__name__] = function
        return function

    return register


def verb(name, **options):
    return name, {key.rstrip("_"): value for key, value in options.items()}


def expect(came, wanted, what):
    if came != wanted:
        raise Failure(f"{what}: expected {brief(repr(wanted))}, came {brief(repr(came))}")


def holds(condition, what):
    if not condition:
        raise Failure(what)


class Case:
    """One client in one scenario, with names of its own. `close` ends whatever is left of it."""

    def __init__(self, client, broker, name, folder, seconds):
        self.client, self.broker, self.name, self.folder = client, broker, name, folder
        self.topic, self.group = name, f"{name}-group"
        self.until = time.monotonic() + seconds
        #: `left_out`: reasons why something of the scenario was not asked; `notes`: what else is worth to be seen.
        self.programs, self.left_out, self.notes = [], [], []

    def left(self, seconds):
        left = self.until - time.monotonic()
        if left <= 0:
            raise Failure("the time of the scenario was over")
        return min(seconds * self.client.patience, left)

    def do(self, *verbs, seconds=60):
        """Runs the program with these verbs; what each of them said."""
        return run(self.start(*verbs), self.left(seconds))

    def start(self, *verbs):
        for name, _ in verbs:
            self.must_have(name)
        program = Program(self.client.command, self.broker.address, verbs, self.client.env, self.folder)
        self.programs.append(program)
        return program

    def must_have(self, what):
        if reason := self.client.lacks.get(what):
            raise Skip(reason)

    def has(self, what):
        """Whether the client has this; what it has not is noted."""
        if reason := self.client.lacks.get(what):
            if reason not in self.left_out:
                self.left_out.append(reason)
            return False
        return True

    def partitions(self, count):
        """As many, if the client lets its user choose the partition of a record; else one."""
        return count if self.client.places else 1

    def wait(self, condition, seconds, what):
        """Until `condition()`; the programs that the case started must live meanwhile."""
        end = time.monotonic() + self.left(seconds)
        while not (found := condition()):
            for program in self.programs:
                if not program.alive() and not program.stopped and program.process.returncode != 0:
                    raise Failure(f"{what}: {program.name} ended with {program.process.returncode}: {program.why()}")
            if time.monotonic() > end:
                living = [program for program in self.programs if not program.stopped]
                tails = "; ".join(f"{brief(p.events[-2:], 200)} {brief(p.said(), 300)}" for p in living)
                raise Failure(f"{what}: not within {seconds} s; they said {tails}")
            time.sleep(0.05)
        return found

    def close(self):
        for program in self.programs:
            program.kill()

    # Short forms of verbs

    def create(self, partitions=1, topic=None, **options):
        return verb("create", topic=topic or self.topic, partitions=partitions, **options)

    def produce(self, count, partitions=1, topic=None, first=0, **options):
        return verb("produce", topic=topic or self.topic, partitions=partitions, count=count, from_=first, **options)

    def consume(self, count, partitions=1, topic=None, **options):
        return verb("consume", topic=topic or self.topic, partitions=partitions, count=count, **options)

    def member(self, **options):
        return verb("member", topic=self.topic, group=self.group, **options)

    # Judgement

    def acknowledged(self, said, numbers, partitions=1):
        """number -> (partition, offset) of records that must all be acknowledged, each at an offset of its own."""
        numbers = list(numbers)
        if not self.client.reports:
            return {number: (0, place) for place, number in enumerate(numbers)}
        failed = [event for event in said if "failed" in event]
        holds(not failed, f"records that were not taken: {brief(failed[:3])}")
        acked = {event["record"]: (event["partition"], event["offset"]) for event in said if "record" in event}
        expect(sorted(acked), sorted(numbers), "records that were acknowledged")
        for number, (partition, _) in acked.items():
            expect(partition, number % partitions, f"partition of record {number}")
        places = Counter(acked.values())
        twice = [place for place, times in places.items() if times > 1]
        holds(not twice, f"an offset was given to two records: {twice[:3]}")
        return acked

    def read_back(self, said, acked, shape="plain", size=0, time_ms=None):
        """Exactly these records came, at their offsets, in order, and as they were sent."""
        records = [event for event in said if "offset" in event]
        last = {}
        for record in records:
            before = last.get(record["partition"], -1)
            holds(record["offset"] > before, f"offset {record['offset']} came after {before}: {record}")
            last[record["partition"]] = record["offset"]
        came = {(record["partition"], record["offset"]): record for record in records}
        expect(sorted(came), sorted(acked.values()), "partitions and offsets that were read")
        for number, place in acked.items():
            self.same(came[place], number, shape, size, time_ms)

    def same(self, record, number, shape="plain", size=0, time_ms=None):
        wanted = as_sent(number, shape, size)
        if time_ms is not None:
            wanted["time"] = time_ms + 1000 * number
        for field, value in wanted.items():
            if field in self.client.hides:
                continue
            expect(record.get(field), value, f"{field} of record {number} at {record['partition']}/{record['offset']}")


def as_sent(number, shape="plain", size=0):
    """The fields of a record as the rule of README.md makes them."""
    mixed = shape == "mixed"
    value = None if mixed and number % 5 == 3 else str(number).ljust(size, ".")
    data = (value or "").encode()
    return {
        "key": f"key-{number}" if mixed and number % 5 else None,
        "value": value if value is None else value[:64],
        "size": None if value is None else len(data),
        "crc": None if value is None else zlib.crc32(data),
        "headers": {"n": str(number), "mark": "ü"} if mixed and number % 2 else {},
    }


def number_of(record):
    return int(record["value"].rstrip("."))


def numbers_of(said):
    return [number_of(event) for event in said if "offset" in event]


# Records


@scenario("keys, headers, null values, timestamps: read as they were sent", ci=True)
def roundtrip(case):
    partitions = case.partitions(3)
    time_ms = T0 if case.client.times else None
    _, produced, consumed = case.do(
        case.create(partitions),
        case.produce(60, partitions, shape="mixed", time=time_ms),
        case.consume(60, partitions),
    )
    acked = case.acknowledged(produced, range(60), partitions)
    case.read_back(consumed, acked, "mixed", time_ms=time_ms)


@scenario("a record of a million bytes between two small ones")
def big_record(case):
    sizes = [10, 1_000_000, 10]
    verbs = [case.produce(1, first=number, size=size) for number, size in enumerate(sizes)]
    *said, consumed = case.do(case.create(), *verbs, case.consume(3), seconds=80)
    records = [event for event in consumed if "offset" in event]
    expect([record["offset"] for record in records], [0, 1, 2], "offsets that were read")
    for number, size in enumerate(sizes):
        case.acknowledged(said[1 + number], [number])
        case.same(records[number], number, size=size)


@scenario("each codec: stored compressed, and read back")
def codecs(case):
    verbs, count = [], 100
    for codec in case.client.codecs:
        topic = f"{case.topic}-{codec}"
        verbs += [case.create(topic=topic), case.produce(count, topic=topic, codec=codec, size=300)]
        verbs += [case.consume(count, topic=topic)]
    said = case.do(*verbs, seconds=80)
    for place, codec in enumerate(case.client.codecs):
        _, produced, consumed = said[3 * place : 3 * place + 3]
        case.read_back(consumed, case.acknowledged(produced, range(count)), size=300)
        expect(wire.codec_of(case.broker.address, f"{case.topic}-{codec}"), codec, "codec of the stored batch")
    case.has("zstd")
    case.notes.append(", ".join(case.client.codecs))


@scenario("an idempotent producer with many small batches: each record once, in the order of sending")
def idempotent(case):
    count = 1000
    _, produced, consumed = case.do(
        case.create(), case.produce(count, idempotent=1, small=1), case.consume(count, quiet=300), seconds=80
    )
    acked = case.acknowledged(produced, range(count))
    expect([acked[number] for number in range(count)], [(0, number) for number in range(count)], "offsets in order")
    expect(numbers_of(consumed), list(range(count)), "records in order")
    batch = wire.stored_batch(case.broker.address, case.topic)
    holds(batch.producer_id >= 0, f"the first batch has no producer id: {batch}")
    expect(batch.base_sequence, 0, "sequence of the first batch")
    holds(batch.records < count, "all records came in one batch, so that nothing was in flight beside another")


@scenario("acks 0, 1 and all: every record arrives")
def acks(case):
    count, verbs = 50, []
    for level in ("0", "1", "all"):
        topic = f"{case.topic}-{level}"
        verbs += [case.create(topic=topic), case.produce(count, topic=topic, acks=level)]
        verbs += [case.consume(count, topic=topic)]
    said = case.do(*verbs)
    for place, level in enumerate(("0", "1", "all")):
        _, produced, consumed = said[3 * place : 3 * place + 3]
        expect(sorted(numbers_of(consumed)), list(range(count)), f"records of acks={level}")
        if level != "0":
            case.read_back(consumed, case.acknowledged(produced, range(count)))


# Reading


@scenario("from the beginning, from an offset, from the end")
def seek(case):
    partitions = case.partitions(2)
    each = 40 // partitions
    _, produced, all_, later = case.do(
        case.create(partitions),
        case.produce(40, partitions),
        case.consume(40, partitions, start="earliest"),
        case.consume(40 - 10 * partitions, partitions, start=10, quiet=300),
    )
    acked = case.acknowledged(produced, range(40), partitions)
    case.read_back(all_, acked)
    case.read_back(later, {number: place for number, place in acked.items() if place[1] >= 10})
    expect(max(offset for _, offset in acked.values()), each - 1, "last offset")
    reader = case.start(case.consume(6, partitions, start="latest", quiet=300, seconds=40))
    reader.wait(lambda events: any("ready" in event for event in events), case.left(30), "a reader at the end")
    case.do(case.produce(6, partitions, first=40))
    holds(reader.join(case.left(45)) == 0, f"the reader at the end failed: {reader.why()}")
    expect(sorted(numbers_of(reader.events)), list(range(40, 46)), "what came after the reader had gone to the end")


@scenario("offsets by timestamp, the first and the last")
def offsets_by_time(case):
    if case.client.times:
        first, last = T0, T0 + 19_000
        _, one, other, said = case.do(
            case.create(),
            case.produce(10, time=T0),
            case.produce(10, first=10, time=T0),
            verb(
                "offsets",
                topic=case.topic,
                at=f"earliest,latest,{first - 1},{first},{first + 1},{first + 4500},{first + 9000},{last},{last + 1}",
            ),
        )
        wanted = [0, 20, 0, 0, 1, 5, 9, 19, None]
    else:
        _, one = case.do(case.create(), case.produce(10))
        time.sleep(1.0)
        between = int(time.time() * 1000)
        time.sleep(0.2)
        (other,) = case.do(case.produce(10, first=10))
        at = f"earliest,latest,{T0},{between},{between + 3_600_000}"
        (said,) = case.do(verb("offsets", topic=case.topic, at=at))
        wanted = [0, 20, 0, 10, None]
    case.acknowledged([*one, *other], range(20))
    came = [event for event in said if "at" in event]
    expect(len(came), len(wanted), "answers")
    for event, offset in zip(came, wanted, strict=True):
        if offset is None:  # none: some clients answer with the end instead
            holds(event["offset"] in (-1, 20), f"offset behind the last time: expected -1 or 20, came {event}")
        else:
            expect(event["offset"], offset, f"offset at {event['at']}")


# Groups


def owned(program):
    """What a member said last that it is assigned; None before it said so."""
    said = [event["assigned"] for event in program.events if "assigned" in event]
    return set(said[-1]) if said else None


def shared(members, partitions):
    """Each partition has one of these, and nobody is left out."""
    parts = [owned(member) for member in members]
    if not all(parts):
        return False
    return sum(map(len, parts)) == partitions and set().union(*parts) == set(range(partitions))


def seen(members):
    return {number_of(event) for member in members for event in member.events if "offset" in event}


def none_after_its_commit(members):
    """No record came to somebody after its commit was answered to the one who had it."""
    commits = defaultdict(list)
    for member in members:
        for event in member.events:
            for partition, following in event.get("committed", {}).items():
                commits[int(partition)].append((event["at_s"], following))
    records = [event for member in members for event in member.events if "offset" in event]
    had, again = set(), 0
    for event in sorted(records, key=lambda event: event["at_s"]):
        place = event["partition"], event["offset"]
        if place in had:
            again += 1
            late = [at for at, following in commits[place[0]] if following > place[1] and at < event["at_s"] - 0.05]
            holds(not late, f"{place[0]}/{place[1]} came again after the answer to its commit")
        had.add(place)
    return again


def two_members(case, protocol):
    partitions = 4
    case.must_have("member")
    case.do(case.create(partitions), case.produce(200, partitions))
    first = case.start(case.member(protocol=protocol))
    case.wait(lambda: shared([first], partitions), 40, "the only member has every partition")
    second = case.start(case.member(protocol=protocol))
    both = [first, second]
    case.wait(lambda: shared(both, partitions), 60, "two members share the partitions")
    if protocol == "consumer":  # and not silently by the classic one
        expect(wire.consumer_members(case.broker.address, case.group), 2, "members by the protocol of KIP-848")
    case.do(case.produce(200, partitions, first=200))
    case.wait(lambda: len(seen(both)) >= 400, 40, "both read what is there")
    second.stop(case.left(20))
    case.wait(lambda: shared([first], partitions), 60, "the one that stays takes over")
    case.do(case.produce(200, partitions, first=400))
    case.wait(lambda: len(seen(both)) >= 600, 40, "the one that stays reads the rest")
    first.stop(case.left(20))
    expect(sorted(seen(both)), list(range(600)), "records that came")
    holds(any("offset" in event for event in second.events), "the second member never read a record")
    if again := none_after_its_commit(both):
        case.notes.append(f"{again} records twice, before their commit")


@scenario("two members share, one leaves: nothing is lost, nothing comes again after its commit", 150, ci=True)
def group_leave(case):
    two_members(case, "classic")


KIP_848 = {68: "ConsumerGroupHeartbeat", 69: "ConsumerGroupDescribe"}


@scenario("the same with the protocol of KIP-848 (group.protocol=consumer)", 180, needs=KIP_848, ci=True)
def group_kip848(case):
    two_members(case, "consumer")


@scenario("a commit by hand, and the next member begins there")
def group_resume(case):
    case.must_have("member")
    limit = 60 if case.client.commits_by_reading else 100
    _, _, first = case.do(case.create(), case.produce(100), case.member(limit=limit, commit=60))
    expect(numbers_of(first), list(range(limit)), "records of the first member")
    second, committed = case.do(case.member(limit=40), verb("committed", group=case.group, topic=case.topic))
    expect(numbers_of(second), list(range(60, 100)), "records of the member after it, which begins at the commit")
    expect([event["offset"] for event in committed], [100], "committed offset at the end")


@scenario("a member that is killed without a commit: the next one gets what it did not commit", 120)
def group_crash(case):
    case.must_have("member")
    if case.client.commits_by_reading:
        raise Skip("the client commits what it has read by itself, at a time that nobody sees")
    case.do(case.create(), case.produce(50))
    victim = case.start(case.member(commit=20))
    victim.wait(lambda events: len(seen([victim])) >= 50, case.left(40), "the first member reads")
    victim.wait(lambda events: any("committed" in event for event in events), case.left(10), "and commits once")
    victim.kill()
    heir = case.start(case.member(limit=30))
    holds(heir.join(case.left(60)) == 0, f"the member after it failed: {heir.why()}")
    expect(numbers_of(heir.events), list(range(20, 50)), "records of the member after it")


# Administration


def steps(case, labelled):
    """Does those of (label, verb) that the client has; label -> what it said."""
    there = [(label, call) for label, call in labelled if case.has(call[0])]
    said = case.do(*[call for _, call in there], seconds=80)
    return dict(zip([label for label, _ in there], said, strict=True))


def settings_of(said):
    return {event["name"]: event["value"] for event in said if "name" in event}


def settles(case, call, said, get, wanted, what):
    """Asks again until a change is seen: Kafka answers it before all know of it, a client may have old metadata."""
    again, end = 0, time.monotonic() + 15
    while get(said) != wanted:
        holds(time.monotonic() < end, f"{what} 15 s after the change: expected {wanted!r}, came {get(said)!r}")
        time.sleep(0.2)
        (said,), again = case.do(call), again + 1
    if again:
        case.notes.append(f"{what} was as before the change when asked at once")


@scenario("topics: create, create again, describe, configs, partitions, delete records, delete", 120, ci=True)
def admin_topics(case):
    topic = case.topic
    asked, grown = verb("config", topic=topic, names="retention.ms,cleanup.policy"), verb("describe", topic=topic)
    said = steps(
        case,
        [
            ("create", case.create(2, set="retention.ms:3600000")),
            ("again", case.create(2, may="fail")),
            ("topics", verb("topics")),
            ("describe", grown),
            ("config", asked),
            ("alter", verb("alter", topic=topic, set="retention.ms:7200000")),
            ("altered", asked),
            ("grow", verb("grow", topic=topic, partitions=5)),
            ("grown", grown),
        ],
    )
    if "again" in said:
        errors = [event for event in said["again"] if "error" in event]
        holds(errors, "a topic was created twice, and nobody said so")
        right = errors[0].get("code") == 36 or "exist" in errors[0]["error"].lower()
        holds(right, f"creating a topic twice: expected TOPIC_ALREADY_EXISTS (36), came {errors[0]}")
    holds(topic in said["topics"][-1]["topics"], "the topic is not listed")
    expect(said["describe"][-1]["partitions"], 2, "partitions")
    if "config" in said:
        expect(settings_of(said["config"]), {"retention.ms": "3600000", "cleanup.policy": "delete"}, "configs")
    if "alter" in said and "config" in said:
        settles(case, asked, said["altered"], lambda now: settings_of(now)["retention.ms"], "7200000", "retention.ms")
    if "grow" in said:
        settles(case, grown, said["grown"], lambda now: now[-1]["partitions"], 5, "partitions")
    small = f"{topic}-records"
    said = steps(
        case,
        [
            ("create", case.create(topic=small)),
            ("produce", case.produce(20, topic=small)),
            ("delete_records", verb("delete_records", topic=small, partition=0, before=5)),
            ("offsets", verb("offsets", topic=small, at="earliest,latest")),
            ("consume", case.consume(15 if case.has("delete_records") else 20, topic=small)),
            ("delete", verb("delete", topic=topic)),
        ],
    )
    begin = 5 if "delete_records" in said else 0
    if "offsets" in said:
        expect([event["offset"] for event in said["offsets"]], [begin, 20], "first and last offset")
    expect(numbers_of(said["consume"]), list(range(begin, 20)), "records that are left")
    if "delete" in said:
        end = time.monotonic() + 15
        while topic in case.do(verb("topics"))[0][-1]["topics"]:
            holds(time.monotonic() < end, "the topic is still listed 15 s after it was deleted")
            time.sleep(0.3)


@scenario("groups: list, describe, committed offsets, delete offsets, delete", 120)
def admin_groups(case):
    case.must_have("member")
    case.must_have("groups")
    case.do(case.create(), case.produce(20), case.member(limit=20), seconds=80)
    asked = verb("committed", group=case.group, topic=case.topic)
    said = steps(
        case,
        [
            ("groups", verb("groups")),
            ("nobody", verb("committed", group=f"{case.group}-nobody", topic=case.topic)),
            ("group", verb("group", group=case.group)),
            ("committed", asked),
            ("delete_offsets", verb("delete_offsets", group=case.group, topic=case.topic, partition=0)),
            ("gone", asked),
        ],
    )
    holds(case.group in said["groups"][-1]["groups"], f"the group is not listed: {brief(said['groups'])}")
    expect([event["offset"] for event in said["nobody"]], [-1], "committed offset of a group that nobody made")
    if "group" in said:
        expect(said["group"][-1]["state"].lower(), "empty", "state of the group that all have left")
        expect(said["group"][-1]["members"], 0, "members")
    if "committed" in said:
        expect([event["offset"] for event in said["committed"]], [20], "committed offset")
    if "delete_offsets" in said:
        expect([event["offset"] for event in said["gone"]], [-1], "committed offset after it was deleted")
        # a group is gone with its last offset, or stays without any: from here on one with an offset is needed
        case.do(case.member(limit=20), seconds=80)
    if case.has("delete_group"):
        _, left = case.do(verb("delete_group", group=case.group), verb("groups"))
        holds(case.group not in left[-1]["groups"], "the group is still listed after it was deleted")


# Faults


@scenario("SIGKILL and a restart while it produces: nothing that was acknowledged is lost", 150, ci=True, alone=True)
def kill_9(case):
    if not case.broker.can_restart:
        raise Skip("BLACKBOX_KILL and BLACKBOX_START are not set")
    count, partitions = 300, case.partitions(2)
    case.do(case.create(partitions))
    idempotent = int("idempotent" not in case.client.lacks)
    producer = case.start(case.produce(count, partitions, idempotent=idempotent, pace=10))

    def acked():
        return [event for event in producer.events if "record" in event and "failed" not in event]

    case.wait(lambda: len(acked()) >= 60, 40, "the first 60 records are acknowledged")
    case.broker.kill_9()
    before = len(acked())
    time.sleep(0.5)
    case.broker.start()
    holds(producer.join(case.left(90)) == 0, f"the producer failed: {producer.why()}")
    holds(len(acked()) > before, "nothing was acknowledged after the restart")
    places = {event["record"]: (event["partition"], event["offset"]) for event in acked()}
    failed = [event for event in producer.events if "failed" in event]
    expect(len(places) + len({event["record"] for event in failed}), count, "records with an answer")
    holds(count - 1 in places, f"the last record was not acknowledged: {brief(failed[-2:])}")
    (ends,) = case.do(verb("offsets", topic=case.topic, partitions=partitions, at="latest"))
    there = sum(event["offset"] for event in ends)
    (said,) = case.do(case.consume(there, partitions))
    records = [event for event in said if "offset" in event]
    came = {(event["partition"], event["offset"]): number_of(event) for event in records}
    for number, place in places.items():
        expect(came.get(place), number, f"record that was acknowledged at {place[0]}/{place[1]}")
    twice = {number: times for number, times in Counter(came.values()).items() if times > 1}
    if idempotent:
        holds(not twice, f"an idempotent producer's records are there twice: {brief(twice)}")
        for partition in range(partitions):
            order = [number for (of, _), number in sorted(came.items()) if of == partition]
            expect(order, sorted(order), f"order of partition {partition}")
    case.notes.append(f"{len(places)} acknowledged, {before} of them before; {len(failed)} failed, {len(twice)} twice")


# Tools


#: What the consoles ask when they are opened, and without which they show a cluster as offline or empty.
ASKED = ("cluster", "topics", "describe_topics", "topic_configs", "broker_configs", "end_offsets", "groups", "group")
ASKED += ("group_offsets",)
#: What they do without, if it is refused by name.
OPTIONAL = ("acls", "quotas", "scram")
REFUSALS = ("unsupported", "security", "unknown api", "not support")


@scenario("what a web console asks when it is opened (Kafka-UI, AKHQ, Redpanda Console, Kafdrop)", 120, ci=True)
def console(case):
    case.must_have("console")
    asks = verb("console", topic=case.topic, group=case.group)
    *_, said = case.do(case.create(2), case.produce(20, 2), case.member(limit=20), asks, seconds=90)
    found = {event["call"]: event for event in said if "call" in event}
    for call in ASKED:
        holds(call in found, f"{call} was not asked")
        holds(found[call].get("found", 0) > 0, f"{call}: expected an answer with something in it, came {found[call]}")
    for call in set(OPTIONAL) & found.keys():
        refused = str(found[call].get("error", "")).lower()
        by_name = any(words in refused.replace("_", " ") for words in REFUSALS)
        came = found[call]
        holds("error" not in came or by_name, f"{call}: expected an answer or a refusal by name, came {came}")
    if 35 not in wire.served(case.broker.address):
        raise Skip("the broker does not advertise DescribeLogDirs (35), without which Kafka-UI shows it as offline")
    holds(found.get("log_dirs", {}).get("found", 0) > 0, f"log_dirs: expected partitions, came {found.get('log_dirs')}")


@scenario("Kafka's tools that look at a cluster: versions, cluster id, log dirs, quorum, features, groups", 240)
def inspect(case):
    case.must_have("inspect")
    served = wire.served(case.broker.address)
    case.do(case.create(2), case.produce(20))
    asked = {"api_versions": 18, "cluster_id": 60, "log_dirs": 35, "quorum": 55, "features": 18, "groups": 16}
    for tool, key in asked.items():
        if key not in served:
            case.left_out.append(f"{tool}: the broker does not advertise API {key}")
    there = [tool for tool, key in asked.items() if key in served]
    said = case.do(*[verb("inspect", tool=tool, topic=case.topic) for tool in there], seconds=120)
    for tool, events in zip(there, said, strict=True):
        holds(events and events[-1].get("found", 0) > 0, f"{tool}: expected something, came {brief(events)}")


@scenario("Kafka Streams: a word count, stopped, its local state lost, and gone on with", 180, ci=True)
def streams_word_count(case):
    case.must_have("words")
    counted = f"{case.topic}-counts"
    case.do(case.create(2), case.create(1, topic=counted))
    wanted = Counter()
    for life in range(2):
        case.do(case.produce(100, 2, first=100 * life))
        wanted += Counter("".join(str(number) for number in range(100 * life, 100 * life + 100)))
        words = verb("words", topic=case.topic, to=counted, application=f"{case.topic}-app", state=f"state-{life}")
        app = case.start(words)
        app.wait(lambda events: any("running" in event for event in events), case.left(60), "the application runs")

        def right():
            (ends,) = case.do(verb("offsets", topic=counted, at="latest"))
            (said,) = case.do(case.consume(ends[0]["offset"], topic=counted))
            latest = {event["key"]: int(event["value"]) for event in said if "offset" in event}
            return latest == dict(wanted)

        case.wait(right, 60, f"the counts are {brief(dict(wanted))}")
        app.stop(case.left(30))


@contextlib.contextmanager
def on(client, broker, name, folder, seconds):
    case = Case(client, broker, name, folder, seconds)
    try:
        yield case
    finally:
        case.close()
