"""Members of consumer groups, and what they saw: the rows of benches/rebalance.

The members are Kafka's own consumers (benches/kafka/Members.java) in one or more processes; what happened is told by
what they tell an application: which partitions it has, and that a record has come. `Ledger` makes figures of that, and
knows neither broker nor process. Times are of the kernel's monotonic clock, in ns, which all processes share.
"""

import contextlib
import hashlib
import os
import queue
import random
import shutil
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from . import brokers, host, rows, wire

SOURCE = Path(__file__).resolve().parents[1] / "kafka" / "Members.java"
#: For many consumers in one process, and for one.
HEAP_MANY, HEAP_ONE = "512m", "128m"
PATIENCE_S = 120.0
#: Not yet: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER. Kafka names a leader before that one knows it is it.
LATER, READY_S = {3, 6}, 30.0
#: The classic protocol: the client's defaults, and those of its own that the rows with a loss set.
SESSION_MS, HEARTBEAT_MS = 6_000, 2_000
#: The same of the broker's groups of KIP-848, with their lower bounds out of the way.
SERVE_CONSUMER = (
    f"group.consumer.min.session.timeout.ms={SESSION_MS}",
    f"group.consumer.session.timeout.ms={SESSION_MS}",
    f"group.consumer.min.heartbeat.interval.ms={HEARTBEAT_MS}",
    f"group.consumer.heartbeat.interval.ms={HEARTBEAT_MS}",
)
#: Nothing has to change for so long until a group counts as stable: more than the longest heartbeat interval.
QUIET_S, QUIET_SHORT_S = 7.0, 2 * HEARTBEAT_MS / 1000


class Failed(ValueError):
    """The members could not do what they were to do: what they said."""


# what members say


@dataclass(frozen=True)
class Event:
    what: str
    #: The member; with `clock`, `prepared`, `went` and `closed` the process.
    who: str
    at_ns: int
    partitions: tuple = ()


def parse(line):
    """One line of Members.java."""
    what, who, rest = line.split(" ", 2)
    if what == "failed":
        raise Failed(f"{who}: {rest.strip()[:500]}")
    at, _, partitions = rest.strip().partition(" ")
    numbers = tuple(int(p) for p in partitions.split(",")) if partitions not in ("", "-") else ()
    return Event(what, who, int(at), numbers)


@dataclass
class Ledger:
    """Who has which partition, since when it is read, and for how long it was not. Pure: events in, figures out."""

    partitions: int
    #: Member -> its partitions.
    owners: dict = field(default_factory=dict)
    #: Partition -> (member, when it read the first record since it has it).
    reads: dict = field(default_factory=dict)
    #: Partition -> since when nobody reads it, because it was taken away; and the longest that it took, ns.
    stopped: dict = field(default_factory=dict)
    pauses: dict = field(default_factory=dict)
    changes: int = 0
    changed_ns: int = 0
    #: Member -> when it began to leave.
    leaving: dict = field(default_factory=dict)

    def take(self, event):
        if event.what in ("assigned", "revoked"):
            self.has(event.who, frozenset(event.partitions), event.at_ns)
        elif event.what == "read":
            (partition,) = event.partitions
            self.reads[partition] = (event.who, event.at_ns)
            since = self.stopped.pop(partition, None)
            if since is not None:
                self.pauses[partition] = max(self.pauses.get(partition, 0), event.at_ns - since)
        elif event.what == "leaving":
            self.leaving[event.who] = event.at_ns
        else:
            raise Failed(f"an event that nobody expects: {event}")

    def has(self, member, now, at_ns):
        before = self.owners.get(member, frozenset())
        if now == before:
            return
        self.owners[member] = now
        self.changes += 1
        self.changed_ns = max(self.changed_ns, at_ns)
        for partition in before - now:
            if self.reads.get(partition, ("",))[0] == member:
                del self.reads[partition]
                self.stopped[partition] = at_ns

    def gone(self, member, at_ns):
        """It was killed: its partitions, that nobody reads now."""
        lost = self.owners.get(member, frozenset())
        self.has(member, frozenset(), at_ns)
        return lost

    def is_whole(self, members):
        """Each partition has one owner and is read by it; each of so many members has some."""
        held = sorted(p for has in self.owners.values() for p in has)
        if held != list(range(self.partitions)) or sum(map(bool, self.owners.values())) != members:
            return False
        return all(p in self.owners[self.reads[p][0]] if p in self.reads else False for p in held)

    def is_read(self, partitions, since_ns, without):
        """Each of these is read again, by somebody else."""
        found = [self.reads.get(p, ("", 0)) for p in partitions]
        return all(who not in ("", without) and at > since_ns for who, at in found)

    def last_read_ns(self, partitions):
        return max(self.reads[p][1] for p in partitions)

    def last_ns(self):
        """When something happened last."""
        return max([self.changed_ns, *(at for _, at in self.reads.values())])

    def forget_pauses(self):
        self.pauses.clear()
        self.stopped.clear()

    def longest_pause_ns(self, without):
        """Of all partitions but these."""
        return max((ns for p, ns in self.pauses.items() if p not in without), default=0)

    def most(self):
        return max(map(len, self.owners.values()), default=0)


# the processes


@dataclass(frozen=True)
class Program:
    java: str
    class_path: str

    def command(self, heap, words):
        # What the JVM itself has to say is no event.
        flags = [f"-Xmx{heap}", "-Xss512k", "-XX:+UseSerialGC", "-XX:+DisplayVMOutputToStderr"]
        flags += [f"-Dlog4j2.configurationFile={brokers.LOG4J}"]
        return [self.java, *flags, "-cp", self.class_path, "Members", *map(str, words)]


def program(cache=None):
    """Members.java, compiled once for each state of its source."""
    java = brokers.java17()
    jars = brokers.fetch(cache or brokers.cache_dir()).resolve()
    classes = jars.parent / f"members-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]}"
    if not (classes / "Members.class").exists():
        beside = Path(java).resolve().with_name("javac")
        javac = str(beside) if os.access(beside, os.X_OK) else shutil.which("javac")
        if not javac:
            raise brokers.Missing("there is no javac to build the members with (Debian: openjdk-17-jdk-headless)")
        classes.mkdir(parents=True, exist_ok=True)
        command = [javac, "-proc:none", "-encoding", "UTF-8", "-cp", f"{jars}/*", "-d", str(classes), str(SOURCE)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            raise brokers.Missing(f"javac could not build {SOURCE.name}:\n{(done.stdout + done.stderr)[-1500:]}")
    return Program(java, f"{classes}:{jars}/*")


class Jvm:
    """One process of members. Its lines go into a queue, with None behind the last one."""

    def __init__(self, name, command, log, lines):
        self.name, self.log, self.killed = name, log, False
        with open(log, "wb") as errors:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                preexec_fn=host.die_with_parent,
            )
        self.thread = threading.Thread(target=self.pump, args=(lines,), daemon=True)
        self.thread.start()

    def pump(self, lines):
        for line in self.process.stdout:
            lines.put((self, line))
        lines.put((self, None))

    def tell(self, *words):
        try:
            self.process.stdin.write(" ".join(map(str, words)) + "\n")
            self.process.stdin.flush()
        except OSError as error:
            raise Failed(f"{self.name} has ended: {error}\n{self.said()}") from None

    def said(self):
        return self.log.read_text(errors="replace")[-1500:]

    def kill(self):
        """SIGKILL. The time just before it."""
        self.killed = True
        at = time.monotonic_ns()
        self.process.kill()
        self.process.wait()
        return at


class Cast:
    """All processes of members in one run, and the ledger of what they say."""

    def __init__(self, program, broker, protocol, topic, partitions, session_ms=0, heartbeat_ms=0):
        self.program, self.broker, self.protocol, self.topic = program, broker, protocol, topic
        self.timeouts = session_ms, heartbeat_ms
        self.lines, self.jvms, self.heard = queue.SimpleQueue(), [], {}
        self.ledger = Ledger(partitions)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for jvm in self.jvms:
            jvm.kill()

    def start(self, name, heap):
        """One more process. Its clock has to be ours."""
        words = [self.broker.address, self.protocol, self.topic, name, *self.timeouts]
        log = self.broker.directory / f"members-{name}.log"
        jvm = Jvm(name, self.program.command(heap, words), log, self.lines)
        self.jvms.append(jvm)
        before = time.monotonic_ns()
        theirs = self.ask(jvm, "clock", "clock")
        if not before <= theirs <= time.monotonic_ns():
            raise Failed("the JVM's clock is not the one of this process: times can not be compared")
        return jvm

    def ask(self, jvm, answer, *words):
        """Tells it something and waits for its word; the time that it says."""
        self.heard.pop((jvm.name, answer), None)
        jvm.tell(*words)
        self.until(lambda: (jvm.name, answer) in self.heard, f"{jvm.name} does not say {answer}")
        return self.heard[jvm.name, answer]

    def until(self, condition, what, seconds=PATIENCE_S):
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise Failed(f"{what} within {seconds:.0f} s; {self.state()}")
            self.listen(0.05)

    def listen(self, seconds):
        """Takes what was said by now; waits for it at most so long."""
        with contextlib.suppress(queue.Empty):
            jvm, line = self.lines.get(timeout=seconds)
            while True:
                self.hear(jvm, line)
                jvm, line = self.lines.get_nowait()

    def hear(self, jvm, line):
        if line is None or not line.endswith("\n"):
            if not jvm.killed:
                raise Failed(f"{jvm.name} has ended:\n{jvm.said()}")
            return
        event = parse(line)
        if event.what in ("clock", "prepared", "went", "closed"):
            self.heard[event.who, event.what] = event.at_ns
        else:
            self.ledger.take(event)

    def state(self):
        having = [m for m, has in self.ledger.owners.items() if has]
        return f"{len(having)} members have partitions, {len(self.ledger.reads)} partitions are read"

    def stable(self, members, quiet_s):
        """Waits until the group is whole and nothing has happened for so long."""

        def is_quiet():
            quiet = time.monotonic_ns() - self.ledger.last_ns() >= quiet_s * 1e9
            return quiet and self.ledger.is_whole(members)

        self.until(is_quiet, f"a group of {members} is not stable")


# the rows


def sizes(context, settings):
    """Members and partitions, smaller with --quick."""
    members = max(context.scaled(settings["members"]), 3)
    return members, max(context.scaled(settings["partitions"]), members)


def topic_of(broker, partitions):
    """A topic with one record in each partition."""
    wire.make_topic(broker.address, "members", partitions, 60)
    end = time.monotonic() + READY_S
    with wire.Conn(broker.address, timeout=30) as conn:
        for partition in range(partitions):
            while error := conn.produce("members", b"x" * 100, partition):
                if error not in LATER or time.monotonic() > end:
                    raise Failed(f"a record for partition {partition} was refused with error {error}")
                time.sleep(0.05)
    return "members"


def join(context, broker, settings):
    """All members of a group join at once, in a broker and a JVM that have seen it once before."""
    members, partitions = sizes(context, settings)
    topic = topic_of(broker, partitions)
    with Cast(settings["program"], broker, settings["protocol"], topic, partitions) as cast:
        jvm = cast.start("a", HEAP_MANY)
        for group in ("warm", "measured"):
            cast.ask(jvm, "prepared", "join", group, members)
            cast.ledger = ledger = Ledger(partitions)
            cpu = host.cpu_seconds(broker.pid)
            went = cast.ask(jvm, "went", "go")
            cast.stable(members, QUIET_S)
            cpu = host.cpu_seconds(broker.pid) - cpu
            context.extra[group] = {
                "stable_s": seconds(ledger.changed_ns - went),
                "read_s": seconds(ledger.last_read_ns(range(partitions)) - went),
                "changes_a_member": round(ledger.changes / members, 3),
                "most_partitions": ledger.most(),
                "broker_cpu_s": round(cpu, 3),
                "members": members,
                "partitions": partitions,
            }
            cast.ask(jvm, "closed", "close")
            time.sleep(1.0)


def leave(context, broker, settings):
    """Of a stable group one member is killed; when it is stable again, another one leaves as it should."""
    members, partitions = sizes(context, settings)
    topic = topic_of(broker, partitions)
    protocol = settings["protocol"]
    with Cast(settings["program"], broker, protocol, topic, partitions, SESSION_MS, HEARTBEAT_MS) as cast:
        many, killed, leaver = cast.start("a", HEAP_MANY), cast.start("k", HEAP_ONE), cast.start("l", HEAP_ONE)
        for jvm, count in ((many, members - 2), (killed, 1), (leaver, 1)):
            cast.ask(jvm, "prepared", "join", "group", count)
        for jvm in (many, killed, leaver):
            cast.ask(jvm, "went", "go")
        cast.stable(members, QUIET_SHORT_S)
        # At another point between two heartbeats in each repetition, at the same one on each system.
        turn = random.Random(context.prefix.name.rpartition("-")[2])
        cast.listen(0)
        end = time.monotonic() + turn.uniform(0, HEARTBEAT_MS / 1000)
        while time.monotonic() < end:
            cast.listen(0.02)

        ledger = cast.ledger
        ledger.forget_pauses()
        at = killed.kill()
        lost = ledger.gone("k-0", at)
        context.extra["lost"] = again(cast, lost, "k-0", at, members - 1)

        ledger.forget_pauses()
        given = ledger.owners["l-0"]
        cast.ask(leaver, "closed", "close")
        context.extra["left"] = again(cast, given, "l-0", ledger.leaving["l-0"], members - 2)


def again(cast, partitions, who, since_ns, members):
    """Waits until others read these partitions, and the group is stable; what it took."""
    ledger = cast.ledger
    cast.until(lambda: ledger.is_read(partitions, since_ns, who), f"what {who} had is not read again")
    first_whole = ledger.last_read_ns(partitions)
    cast.stable(members, QUIET_SHORT_S)
    return {
        "partitions": len(partitions),
        "read_again_s": seconds(first_whole - since_ns),
        "stable_s": seconds(ledger.changed_ns - since_ns),
        "others_pause_s": seconds(ledger.longest_pause_ns(partitions)),
    }


def seconds(ns):
    return round(ns / 1e9, 4)


def figures_of_join():
    def of(key):
        return rows.path(f"extra.measured.{key}")

    return (
        rows.Figure("stable", "until no assignment changes any more", "s", of("stable_s")),
        rows.Figure("read", "until each partition is read by who keeps it", "s", of("read_s")),
        rows.Figure("changes", "changes of assignment a member", "", of("changes_a_member")),
        rows.Figure("most", "partitions of who has most", "", of("most_partitions")),
        rows.Figure("cpu", f"broker CPU, {QUIET_S:g} s of quiet behind it included", "s", of("broker_cpu_s")),
        rows.Figure("cold", "the group before, in a cold broker and JVM", "s", rows.path("extra.warm.stable_s")),
    )


def figures_of_leave():
    def of(name):
        return rows.path(f"extra.{name}")

    return (
        rows.Figure("lost", "killed: until others read its partitions", "s", of("lost.read_again_s")),
        rows.Figure("lost_pause", "killed: the longest that others did not read", "s", of("lost.others_pause_s")),
        rows.Figure("left", "clean leave: until others read its partitions", "s", of("left.read_again_s")),
        rows.Figure("left_pause", "clean leave: the longest that others did not read", "s", of("left.others_pause_s")),
    )


TITLES = {"classic": "the classic protocol", "consumer": "the consumer protocol (KIP-848)"}


def rows_of(program, members=100, partitions=200):
    """The four rows; `program` is None where nothing is run."""
    found = []
    size = f"{members} members, {partitions} partitions"
    session = f"session timeout {SESSION_MS / 1000:g} s, a heartbeat every {HEARTBEAT_MS / 1000:g} s"
    for protocol, title in TITLES.items():
        settings = {"program": program, "protocol": protocol, "members": members, "partitions": partitions}
        text = f"all join at once, {title}: {size}"
        found.append(rows.Row(f"join_{protocol}", text, figures_of_join(), (), action=join, settings=settings))
        text = f"one is killed, then one leaves, {title}: {size}; {session}"
        serve = SERVE_CONSUMER if protocol == "consumer" else ()
        figures = figures_of_leave()
        row = rows.Row(f"leave_{protocol}", text, figures, (), action=leave, settings=settings, serve=serve)
        found.append(row)
    return found
