"""Clients that live through whatever happens to the broker, what they saw, and the judgement on it.

Producers of librdkafka, as a service has them:
  idempotent   retries for ever; its records must be in the log once each, in order, all of them
  retrying     plain, with retries: what is acknowledged is where it was said to be; a copy may only lie before that
               place (an earlier attempt whose answer was lost), never after it
  once         plain, without retries: at most one copy; exactly one if acknowledged
A consumer follows the tail: what it was shown must be in the final log, at the same offset. A group commits offsets:
what it is given is what it committed last. Topics are made and deleted: as it was answered, so it is.
"""

import json
import os
import re
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import confluent_kafka as ck

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "blackbox"))
from harness import groups  # noqa: E402
from harness.broker import fresh  # noqa: E402
from harness.wire import Conn, Silent  # noqa: E402

PARTITIONS = 6
KINDS = {
    "idempotent": {"enable.idempotence": True, "message.timeout.ms": 600_000},
    "retrying": {"enable.idempotence": False, "message.timeout.ms": 600_000, "retries": 1_000_000},
    "once": {"enable.idempotence": False, "message.timeout.ms": 20_000, "retries": 0},
}
#: What a broker that has just started may say to a group: loading, not available, not the coordinator.
MAY_PASS = re.compile(r"error 1[456]$")
QUICK = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 200,
}


class Producer(threading.Thread):
    """Sends numbered records to every partition at a steady rate until told to stop. Values: `name:number`, by
    partition; with `size`, filled up with dots."""

    def __init__(self, kind, name, address, topic, rate, partitions=PARTITIONS, size=0, first=0, **config):
        super().__init__(daemon=True)
        self.kind, self.name_, self.topic, self.rate, self.size = kind, name, topic, rate, size
        self.partitions = range(first, first + partitions)
        self.producer = ck.Producer(
            {
                "bootstrap.servers": address,
                "linger.ms": 1,
                "acks": "all",
                **QUICK,
                "max.in.flight.requests.per.connection": 5,
                "socket.timeout.ms": 10_000,
                "queue.buffering.max.messages": 20_000,
                "error_cb": self.error,
                "log_level": 0,
                **KINDS[kind],
                **config,
            }
        )
        each = first + partitions
        self.sent = [0] * each
        self.acked = [{} for _ in range(each)]  # number -> offset
        self.acked_ns = [{} for _ in range(each)]  # number -> when it was known
        self.sent_ns = [{} for _ in range(each)]
        self.failed = [set() for _ in range(each)]
        self.fatal, self.stop, self.last_failure = None, False, None
        self.unflushed = 0

    def error(self, error):
        if error.fatal():
            self.fatal = self.fatal or error

    def value(self, number):
        return (b"%s:%d:" % (self.name_.encode(), number)).ljust(self.size, b".")

    def delivered(self, partition, number):
        def answer(error, message):
            if error is None:
                self.acked_ns[partition][number] = time.monotonic_ns()
                self.acked[partition][number] = message.offset()
            else:
                self.failed[partition].add(number)
                self.last_failure = error

        return answer

    def run(self):
        begun, count = time.monotonic(), 0
        while not self.stop and not self.fatal:
            partition = self.partitions[count % len(self.partitions)]
            number = self.sent[partition]
            self.sent_ns[partition][number] = time.monotonic_ns()
            try:
                self.producer.produce(
                    self.topic,
                    self.value(number),
                    partition=partition,
                    on_delivery=self.delivered(partition, number),
                )
                self.sent[partition] += 1
                count += 1
            except BufferError:
                self.producer.poll(0.05)
                begun += 0.05
                continue
            except ck.KafkaException as error:
                self.fatal = self.fatal or error
                break
            self.producer.poll(0)
            ahead = count / self.rate - (time.monotonic() - begun)
            if ahead > 0.005:
                self.producer.poll(ahead)
        self.unflushed = self.producer.flush(120)

    def count_acked(self):
        return sum(map(len, self.acked))


class Follower(threading.Thread):
    """Reads the tail of every partition while the broker dies and comes back; remembers what it was shown."""

    def __init__(self, address, topic, partitions=PARTITIONS):
        super().__init__(daemon=True)
        self.consumer = ck.Consumer(
            {
                "bootstrap.servers": address,
                "group.id": uuid.uuid4().hex,
                "enable.auto.commit": False,
                "log_level": 0,
                "auto.offset.reset": "error",
                **QUICK,
                "fetch.wait.max.ms": 50,
                "error_cb": lambda error: None,
            }
        )
        self.consumer.assign([ck.TopicPartition(topic, p, 0) for p in range(partitions)])
        self.shown = [[] for _ in range(partitions)]
        self.reads = []  # (asked ns, answered ns, partition, first offset, values)
        self.faults, self.stop = [], False

    def run(self):
        while not self.stop:
            asked = time.monotonic_ns()
            messages = self.consumer.consume(500, 0.1)
            answered, got = time.monotonic_ns(), {}
            for message in messages:
                error = message.error()
                if error is not None:
                    if error.code() in (ck.KafkaError.OFFSET_OUT_OF_RANGE, ck.KafkaError._AUTO_OFFSET_RESET):
                        self.faults.append(f"partition {message.partition()}: {error}")
                    continue
                shown = self.shown[message.partition()]
                if message.offset() != len(shown):
                    self.faults.append(
                        f"partition {message.partition()}: {message.offset()} came, {len(shown)} was due"
                    )
                if message.offset() >= len(shown):
                    shown.extend([None] * (message.offset() - len(shown)))
                    shown.append(message.value())
                got.setdefault(message.partition(), (message.offset(), []))[1].append(message.value())
            self.reads += [(asked, answered, p, first, values) for p, (first, values) in got.items()]
        self.consumer.close()


class Raw(threading.Thread):
    """One request after the other over a connection made by hand, made again when it breaks."""

    def __init__(self, address):
        super().__init__(daemon=True)
        self.address, self.conn, self.stop, self.faults = address, None, False, []

    def run(self):
        while not self.stop:
            try:
                if self.conn is None:
                    self.conn = Conn(self.address, timeout=5.0)
                self.once(self.conn)
            except (OSError, AssertionError) as error:  # refused, cut, no answer in time
                if not isinstance(error, (OSError, Silent)) and not MAY_PASS.search(str(error)):
                    self.faults.append(f"{type(self).__name__}: {error}")
                self.close()
                time.sleep(0.02)
        self.close()

    def close(self):
        if self.conn is not None:
            self.conn.close()
        self.conn = None


class Committer(Raw):
    """Commits 1, 2, 3 ... for a group, and asks now and then what is committed."""

    def __init__(self, address, topic, every=0.02):
        super().__init__(address)
        self.topic, self.group, self.every = topic, fresh("group"), every
        self.commits = []  # [asked ns, answered ns or None, offset]
        self.fetches = []  # (asked ns, answered ns, offset)

    def once(self, conn):
        if len(self.commits) % 5 == 4:
            asked = time.monotonic_ns()
            offset = groups.committed(conn, self.group, self.topic)[0]
            self.fetches.append((asked, time.monotonic_ns(), offset))
        commit = [time.monotonic_ns(), None, len(self.commits) + 1]
        self.commits.append(commit)
        error = groups.commit(conn, self.group, self.topic, {0: commit[2]})[0]
        if error == 0:
            commit[1] = time.monotonic_ns()
        time.sleep(self.every)

    def known(self, by=None):
        """The highest offset whose commit was answered (by that moment)."""
        known = [offset for _, ended, offset in self.commits if ended and (by is None or ended < by)]
        return max(known, default=-1)

    def judge(self, conn):
        found = groups.committed(conn, self.group, self.topic)[0]
        self.fetches.append((time.monotonic_ns(), time.monotonic_ns(), found))
        return self.faults + self.fault_of(found)

    def fault_of(self, found, by=None):
        if found < self.known(by):
            return [f"{self.group}: {self.known(by)} was committed, {found} is given: it went BACK"]
        if found > len(self.commits):
            return [f"{self.group}: {found} is given and was never committed"]
        return []


class Topics(Raw):
    """Makes topics and deletes every third one."""

    def __init__(self, address):
        super().__init__(address)
        self.made, self.gone, self.unsure = set(), set(), set()

    def once(self, conn):
        name = fresh("made")
        self.unsure.add(name)
        if conn.create_topic(name, 2) != 0:
            return
        self.unsure.discard(name)
        self.made.add(name)
        if len(self.made) % 3 == 0:
            self.made.discard(name)
            self.unsure.add(name)
            if conn.delete_topic(name) == 0:
                self.unsure.discard(name)
                self.gone.add(name)
        time.sleep(0.2)

    def judge(self, conn):
        there = set(conn.metadata(None)["topics"])
        return (
            self.faults
            + [f"topic {name} was made and is LOST" for name in self.made - there]
            + [f"topic {name} was deleted and is there" for name in self.gone & there]
        )


def judge(logs, producers, follower):
    """(faults, figures): every fault in words."""
    faults = list(follower.faults[:10])
    figures = {
        "in the log": sum(map(len, logs)),
        "acknowledged": 0,
        "failed": 0,
        "copies of retried plain records": 0,
        "shown to the follower": sum(map(len, follower.shown)),
    }
    for partition, log in enumerate(logs):
        faults += judge_shown(partition, log, follower.shown[partition])
        places = {p.name_: {} for p in producers}
        for offset, value in enumerate(log):
            name, number = named(value)
            places[name].setdefault(number, []).append(offset)
        for p in producers:
            if partition not in p.partitions:
                continue
            mine, acked, failed = places[p.name_], p.acked[partition], p.failed[partition]
            where = f"partition {partition}, {p.name_}"
            figures["acknowledged"] += len(acked)
            figures["failed"] += len(failed)
            faults += judge_places(where, mine, acked)
            copies = {n: offsets for n, offsets in mine.items() if len(offsets) > 1}
            if p.kind == "retrying":
                figures["copies of retried plain records"] += sum(len(o) - 1 for o in copies.values())
                late = [n for n, offsets in copies.items() if n in acked and max(offsets) > acked[n]]
                if late:
                    faults.append(
                        f"{where}: number {late[0]} has a copy behind its acknowledged place {acked[late[0]]}: "
                        f"{copies[late[0]]}"
                    )
            elif copies:
                n, offsets = copies.popitem()
                faults.append(f"{where}: {len(copies) + 1} records are DOUBLED, e.g. number {n} at {offsets}")
            if p.kind == "idempotent":
                if failed:
                    faults.append(f"{where}: {len(failed)} sends failed: {p.last_failure}")
                order = [n for n, _ in sorted(mine.items(), key=lambda item: item[1][0])]
                if order != list(range(len(order))):
                    at = next(i for i, n in enumerate(order) if n != i)
                    faults.append(f"{where}: OUT OF ORDER: place {at} has number {order[at]}")
                if len(order) != p.sent[partition]:
                    faults.append(f"{where}: {p.sent[partition]} were sent, {len(order)} are in the log")
    for p in producers:
        if p.fatal:
            faults.append(f"{p.name_}: fatal error: {p.fatal}")
        if p.unflushed:
            faults.append(f"{p.name_}: {p.unflushed} records were never answered")
    return faults, figures


def named(value):
    name, number = value.split(b":")[:2]
    return name.decode(), int(number)


def judge_shown(partition, log, shown):
    for offset, value in enumerate(shown[: len(log)]):
        if value != log[offset]:
            return [f"partition {partition}: the follower was shown {value} at {offset}, the log has {log[offset]}"]
    if len(shown) > len(log):
        return [f"partition {partition}: the follower was shown {len(shown)} records, the log has {len(log)}"]
    return []


def judge_places(where, mine, acked):
    """`mine`: number -> offsets in the log."""
    faults = []
    lost = [n for n in acked if n not in mine]
    if lost:
        faults.append(f"{where}: {len(lost)} acknowledged records are LOST, e.g. number {lost[0]} at {acked[lost[0]]}")
    moved = [n for n, offset in acked.items() if n in mine and offset not in mine[n]]
    if moved:
        n = moved[0]
        faults.append(
            f"{where}: {len(moved)} records are not where they were acknowledged, e.g. number {n}: "
            f"acknowledged at {acked[n]}, in the log at {mine[n]}"
        )
    return faults


# the same as a history, for the checker that the simulator uses (tests/history)


def value_number(producers, partition, value):
    """One number for each record: the checker knows no bytes."""
    name, number = named(value)
    index = next(i for i, p in enumerate(producers) if p.name_ == name)
    return index << 48 | partition << 40 | number


def history(topic, logs, producers, follower, committer=None):
    """Events as `tests/history/src/history.rs` has them."""
    end, events = time.monotonic_ns(), []

    def event(process, begun, ended, op, partition, **fields):
        events.append(
            {
                "process": process,
                "invoked_ns": begun,
                "completed_ns": ended,
                "op": op,
                "partition": {"topic": topic, "number": partition},
                **fields,
            }
        )

    for index, p in enumerate(producers):
        for partition in p.partitions:
            for number in range(p.sent[partition]):
                offset = p.acked[partition].get(number)
                event(
                    index,
                    p.sent_ns[partition][number],
                    p.acked_ns[partition].get(number, end),
                    "produce",
                    partition,
                    producer=index,
                    idempotent=p.kind == "idempotent",
                    first_number=number,
                    values=[index << 48 | partition << 40 | number],
                    outcome="info" if offset is None else {"acked": {"base_offset": offset}},
                )
    number = len(producers)
    for asked, answered, partition, first, values in follower.reads:
        records = [[first + n, value_number(producers, partition, value)] for n, value in enumerate(values)]
        mark = first + len(values)  # librdkafka does not tell which high watermark came with a record
        event(
            number, asked, answered, "read", partition,
            from_offset=first, records=records, high_watermark=mark, log_start=-1,
        )  # fmt: skip
    if committer:
        number += 1
        for asked, answered, offset in committer.commits:
            outcome = "info" if answered is None else "acked"
            event(
                number,
                asked,
                answered or end,
                "commit-offset",
                0,
                group=committer.group,
                offset=offset,
                outcome=outcome,
            )
        for asked, answered, offset in committer.fetches:
            event(number, asked, answered, "fetch-offset", 0, group=committer.group, offset=offset)
    events.sort(key=lambda one: one["completed_ns"])
    for partition, log in enumerate(logs):
        records = [[offset, value_number(producers, partition, value)] for offset, value in enumerate(log)]
        event(number + 1, end, end, "final", partition, log_start=0, records=records)
    return events


def judged_again(path, events):
    """Writes the history and asks `camus-sim check` about it, if there is one: what it found, in words."""
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    checker = os.environ.get("CAMUS_SIM")
    if not checker:
        return f"{len(events)} events in {path} (set CAMUS_SIM to have them judged by the checker of the simulator)", []
    done = subprocess.run([checker, "check", path], capture_output=True, text=True)
    lines = done.stdout.strip().splitlines() or [done.stderr.strip()]
    return f"camus-sim check: {lines[-1]}", [] if done.returncode == 0 else [f"camus-sim: {line}" for line in lines[:5]]
