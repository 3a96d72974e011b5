"""Groups that commit, by hand: the rows of benches/commits.

Each of many groups commits one offset once a second, from one thread, each on a connection of its own as a consumer
does (brokers answer the commits of one connection one after the other). An open loop: a stall counts for all commits
that were due in it. There are no members (generation -1): what is measured is the commit. Source: KIP-896 (OffsetCommit
7 and FindCoordinator 2 are in every broker since 2.1).
"""

import itertools
import random
import re
import select
import struct
import time
import urllib.request
from collections import defaultdict, deque
from dataclasses import dataclass, field
from pathlib import Path

from . import host, rows, wire

OFFSET_COMMIT, FIND_COORDINATOR = (8, 7), (10, 2)
#: Not yet: COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR.
LATER = {14, 15, 16}
TOPIC = "commits"
PERIOD_S = 1.0
#: Not at the very begin of the period: at that of the measured time the looks at /proc are in the way.
BURST_AT_S = 0.1
READY_S, ANSWER_S, REST_S = 60.0, 5.0, 3.0
#: A part of the commits may be refused for a run to be one; all are named.
ERRORS_MAX = 0.01


class Failed(ValueError):
    """No figure can be made of this run."""


# requests


def name_of(group):
    return f"group-{group:05}"


def commit_frame(group, topic=TOPIC, partition=0, offset=0):
    """OffsetCommit 7 of one partition; the offset stands in bytes -14 to -6, the correlation id where wire has it."""
    body = wire.string(name_of(group)) + struct.pack(">i", -1) + wire.string("") + struct.pack(">h", -1)
    body += struct.pack(">i", 1) + wire.string(topic)
    body += struct.pack(">iiqi", 1, partition, offset, -1) + wire.string("")
    return wire.frame(OFFSET_COMMIT, 0, body)


def with_offset(request, offset, correlation):
    request = wire.again(request, correlation)
    return request[:-14] + struct.pack(">q", offset) + request[-6:]


def commit_error(answer):
    """The error code of the one partition of an answer to OffsetCommit 7, without its length."""
    (length,) = struct.unpack_from(">h", answer, 12)
    return struct.unpack_from(">iih", answer, 14 + length)[2]


def coordinator_error(answer):
    """Of FindCoordinator 2: correlation id, throttle time, error."""
    return struct.unpack_from(">h", answer, 8)[0]


# when


def phases(groups, spread, seed=1):
    """(second within the period, group), sorted: each group at a time of its own, or all at once."""
    if not spread:
        return [(BURST_AT_S, group) for group in range(groups)]
    chance = random.Random(seed)
    return sorted((chance.uniform(0, PERIOD_S), group) for group in range(groups))


def dues(phases, seconds):
    """(second since the begin, group) of every commit of so many seconds, in order."""
    period = 0
    while True:
        for phase, group in phases:
            at = period * PERIOD_S + phase
            if at >= seconds:
                return
            yield at, group
        period += 1


# the load


@dataclass
class Done:
    """What came of the commits that were due in the measured time."""

    due: int = 0
    #: ms from when each was due until its answer was read, of those without an error.
    took_ms: list = field(default_factory=list)
    #: ms that each was sent late: the client's own.
    late_ms: list = field(default_factory=list)
    errors: dict = field(default_factory=dict)

    def wrong(self, what):
        self.errors[what] = self.errors.get(what, 0) + 1


def percentile(sorted_values, percent):
    return sorted_values[min(len(sorted_values) - 1, int(len(sorted_values) * percent / 100))]


def percentiles(values):
    """p50, p99, p999 and max, or nothing."""
    if not values:
        return None
    values = sorted(values)
    shown = {"p50": 50, "p99": 99, "p999": 99.9}
    return {name: round(percentile(values, p), 4) for name, p in shown.items()} | {"max": round(values[-1], 4)}


class Client:
    """One connection: what is out on it, in order, and the bytes that came."""

    def __init__(self, address):
        self.conn = wire.Conn(address)
        self.sock = self.conn.sock
        self.out, self.got = deque(), bytearray()

    def fileno(self):
        return self.sock.fileno()

    def answers(self):
        """(what was put into `out`, error) of each answer that has come."""
        more = self.sock.recv(1 << 16)
        if not more:
            raise wire.Broken("the broker closed a connection of the commits")
        self.got += more
        while len(self.got) >= 4:
            (size,) = struct.unpack_from(">i", self.got)
            if len(self.got) < 4 + size:
                return
            answer = bytes(self.got[4 : 4 + size])
            del self.got[: 4 + size]
            number, *asked = self.out.popleft()
            (found,) = struct.unpack_from(">i", answer)
            if found != number:
                raise Failed(f"the answer to request {found} came where that to {number} was due")
            yield asked, commit_error(answer)


def drive(address, groups, spread, warmup, seconds, at_begin, at_end, connections=None):
    """Warms up, calls `at_begin`, commits for the seconds, calls `at_end`, and waits for what is still out."""
    clients = [Client(address) for _ in range(connections or groups)]
    requests = [commit_frame(group) for group in range(groups)]
    done, number, began = Done(), 0, False
    poll, of_fd = select.epoll(), {client.fileno(): client for client in clients}
    for fd in of_fd:
        poll.register(fd, select.EPOLLIN)
    begun = time.monotonic() + 0.1

    def take(wait):
        # epoll itself waits for whole milliseconds.
        select.select([poll], [], [], max(wait, 0))
        for fd, _ in poll.poll(0):
            now = time.monotonic()
            for (due, counts), error in of_fd[fd].answers():
                if counts and error:
                    done.wrong(str(error))
                elif counts:
                    done.took_ms.append((now - due) * 1e3)

    try:
        for second, due_then in itertools.groupby(dues(phases(groups, spread), warmup + seconds), lambda of: of[0]):
            due, counts = begun + second, second >= warmup
            if counts and not began:
                began = True
                while (left := begun + warmup - time.monotonic()) > 0:
                    take(left)
                at_begin()
            # What is due at the same time leaves a connection at once.
            frames, numbers = defaultdict(bytearray), defaultdict(list)
            for _, group in due_then:
                number += 1
                frames[group % len(clients)] += with_offset(requests[group], number, number)
                numbers[group % len(clients)].append(number)
            while (left := due - time.monotonic()) > 0:
                take(left)
            for at, frame in frames.items():
                client, out = clients[at], numbers[at]
                if counts:
                    done.due += len(out)
                    done.late_ms += [(time.monotonic() - due) * 1e3] * len(out)
                client.out.extend((number, due, counts) for number in out)
                client.sock.sendall(frame)
            take(0)
        while (left := begun + warmup + seconds - time.monotonic()) > 0:
            take(left)
        at_end()
        end = time.monotonic() + ANSWER_S
        while any(client.out for client in clients) and time.monotonic() < end:
            take(0.05)
    finally:
        poll.close()
        for client in clients:
            client.sock.close()
    for client in clients:
        for _, _, counts in client.out:
            if counts:
                done.wrong("not answered")
    return done


def ready(address, groups):
    """Each group has committed once: its coordinator is there, and has loaded what it has to."""
    end = time.monotonic() + READY_S
    with wire.Conn(address, timeout=30) as conn:

        def until(ask, what):
            while error := ask():
                if error not in LATER or time.monotonic() > end:
                    raise Failed(f"{what} ends with error {error}")
                time.sleep(0.05)

        for group in range(groups):
            name, request = name_of(group), commit_frame(group)
            find = wire.frame(FIND_COORDINATOR, conn.number(), wire.string(name) + b"\0")
            until(lambda find=find: coordinator_error(conn.ask(find)), f"FindCoordinator of {name}")
            until(lambda request=request: commit_error(conn.ask(request)), f"OffsetCommit of {name}")


# what it cost


def core_seconds(pid):
    """CPU of the threads that are named after cores (Camus), s; None where there are none."""
    total, found = 0, False
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            if re.fullmatch(r"core-\d+", (task / "comm").read_text().strip()):
                total, found = total + int((task / "schedstat").read_text().split()[0]), True
        except (OSError, IndexError):
            pass  # it has just ended
    return total / 1e9 if found else None


def flushes_of(page):
    """The log's durable writes, of the text of /metrics."""
    found = re.findall(r"(?m)^camus_wal_flushes_total\{[^}]*\} (\S+)", page)
    return sum(map(float, found)) if found else None


def own_flushes(broker):
    if not broker.http:
        return None
    with urllib.request.urlopen(f"http://{broker.http}/metrics", timeout=10) as answer:
        return flushes_of(answer.read().decode())


@dataclass
class Cost:
    """One look; the difference of two is what lies between them."""

    at: float
    cpu_s: float
    core_s: float | None
    device_flushes: int | None

    @staticmethod
    def look(broker):
        return Cost(
            time.monotonic(),
            host.cpu_seconds(broker.pid),
            core_seconds(broker.pid),
            host.device_flushes(broker.data_dir),
        )

    def since(self, before):
        seconds = self.at - before.at
        core = None if self.core_s is None else 100 * (self.core_s - before.core_s) / seconds
        flushes = None if self.device_flushes is None else self.device_flushes - before.device_flushes
        return {
            "seconds": round(seconds, 3),
            "cpu_percent": round(100 * (self.cpu_s - before.cpu_s) / seconds, 3),
            "core_percent": None if core is None else round(core, 3),
            "cpu_s": round(self.cpu_s - before.cpu_s, 4),
            "device_flushes": flushes,
        }


def commits(context, broker, settings):
    groups = context.scaled(settings["groups"])
    # The disk by itself, in the same run; and one record at a time, which is as durable.
    context.bench(broker, rows.Step("single", "produce", rows.SINGLE_ARGS, most_s=2.0, warm=False))
    wire.make_topic(broker.address, TOPIC, 1, 30)
    ready(broker.address, groups)
    time.sleep(REST_S)
    resting = Cost.look(broker)
    time.sleep(REST_S)
    context.extra["at_rest"] = Cost.look(broker).since(resting)

    looks, own = [], [own_flushes(broker)]

    def look():
        looks.append(Cost.look(broker))

    options = context.options
    measured = options.warmup, options.seconds, look, look
    done = drive(broker.address, groups, settings["spread"], *measured, connections=settings["connections"])
    own.append(own_flushes(broker))
    answered = len(done.took_ms)
    if answered < (1 - ERRORS_MAX) * done.due:
        raise Failed(f"{answered} of {done.due} commits were answered without an error: {done.errors}")
    cost = looks[1].since(looks[0])
    context.extra |= {"groups": groups, "due": done.due, "answered": answered, "cost": cost}
    context.extra["per_s"] = round(done.due / cost["seconds"], 2)
    context.extra["latency_ms"] = percentiles(done.took_ms)
    context.extra["late_ms"] = percentiles(done.late_ms)
    context.extra["cpu_us_per_commit"] = round(cost["cpu_s"] * 1e6 / answered, 3)
    if cost["device_flushes"] is not None:
        context.extra["device_flushes_per_commit"] = round(cost["device_flushes"] / answered, 4)
    if None not in own:
        # The scrapes lie outside of the measured time, the warm-up inside of this count.
        all_commits = answered * (options.seconds + options.warmup) / options.seconds
        context.extra["own_flushes_per_commit"] = round((own[1] - own[0]) / all_commits, 4)
    if done.errors:
        context.extra["errors"] = {"commits": done.errors}


# the rows

P50, P99 = rows.path("extra.latency_ms.p50"), rows.path("extra.latency_ms.p99")
FIGURES = (
    rows.Figure("cpu", "broker CPU", "% of a core", rows.path("extra.cost.cpu_percent")),
    rows.Figure("core_cpu", "of this its core", "% of a core", rows.path("extra.cost.core_percent")),
    rows.Figure("rest_cpu", "broker CPU at rest before it", "% of a core", rows.path("extra.at_rest.cpu_percent")),
    rows.Figure("cpu_us", "broker CPU a commit", "us", rows.path("extra.cpu_us_per_commit")),
    rows.Figure("per_s", "commits", "/s", rows.path("extra.per_s")),
    rows.Figure("p50", "p50", "ms", P50),
    rows.Figure("p99", "p99", "ms", P99),
    rows.Figure("p999", "p99.9", "ms", rows.path("extra.latency_ms.p999")),
    rows.Figure("max", "max", "ms", rows.path("extra.latency_ms.max")),
    *rows.FLOOR,
    rows.Figure("p50_over_floor", "p50 beyond the floor's", "ms", rows.minus(P50, rows.FLOOR_P50)),
    rows.Figure("produce_p50", "p50 of one 1 KiB produce at a time", "ms", rows.path("single.latency_us.p50", 1e-3)),
    rows.Figure("late_p99", "sent late by the client, p99", "ms", rows.path("extra.late_ms.p99")),
    rows.Figure("flushes", "flushes of the disk a commit", "", rows.path("extra.device_flushes_per_commit")),
    rows.Figure("own_flushes", "durable writes of the log a commit", "", rows.path("extra.own_flushes_per_commit")),
)
BARS = (rows.Bar("broker CPU less than 10 % of a core", "cpu", at_most=10.0),)


def rows_of(groups=500, connections=None):
    """`connections`: that the groups share; None: each has its own."""
    found = []
    for name, how, spread in (("spread", "each at a time of its own", True), ("burst", "all at once", False)):
        shared = f", on {connections} connections" if connections else ""
        title = f"{groups} groups commit once a second, {how}{shared}"
        settings = {"groups": groups, "spread": spread, "connections": connections}
        found.append(rows.Row(f"commits_{name}", title, FIGURES, BARS, action=commits, settings=settings))
    return found
