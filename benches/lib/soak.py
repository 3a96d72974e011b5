"""The soak gate: a load that comes in bursts, a watcher that only looks, and the judgement by cause.

Whether a thread slept is told by the kernel, not guessed from times. In /proc/PID/task/TID/schedstat stand the time it
ran, the time it waited for a CPU, and how often it got one; a thread that goes to sleep or wakes up and runs changes
them. So if two looks find the same three numbers and the second finds it asleep, it slept all the time between, however
late the looks themselves were. A thread that waits for its core is runnable (R): what it waited shows in the second
number as soon as it runs again.
"""

import contextlib
import mmap
import os
import random
import re
import selectors
import socket
import struct
import threading
import time
import urllib.request
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from . import wire

MS = 1_000_000
CORE_THREAD = re.compile(r"core-\d+")
CONNECTIONS = 16
#: Requests that one connection sends at once, and the pause before the next burst, s.
BURST_MAX, PAUSE_MAX_S = 8, 0.1
#: Of one record. Small: fifteen minutes of load should not fill a disk.
RECORD_BYTES = 256
#: A topic is used for so long, then another one, and the old one is deleted: what it took is given back.
TOPIC_S = 60.0
#: From here on a pause of the load's own process counts as one.
STALL_S = 0.02
#: A connection without an answer for so long is given up and made anew.
HANG_S = 30.0
BOUNDS_MS = (10, 20, 50)


# what the load and the watcher share


class Shared:
    """Numbers in memory that two processes see: each is written by one of them only."""

    NAMES = ("outstanding_since", "answered", "late", "longest_ns", "errors", "hung", "stalled_ns", "busy", "stop")

    def __init__(self):
        self.memory = mmap.mmap(-1, 8 * len(self.NAMES))

    def __getitem__(self, name):
        return struct.unpack_from("q", self.memory, 8 * self.NAMES.index(name))[0]

    def __setitem__(self, name, value):
        struct.pack_into("q", self.memory, 8 * self.NAMES.index(name), value)


# the load


class Latencies:
    """Buckets of 1/16 octave of microseconds: 4 % exact, no memory to speak of."""

    def __init__(self):
        self.buckets, self.count, self.max_ns = {}, 0, 0

    def add(self, ns):
        us = max(ns // 1000, 1)
        shift = max(us.bit_length() - 5, 0)
        key = (us >> shift) << shift
        self.buckets[key] = self.buckets.get(key, 0) + 1
        self.count += 1
        self.max_ns = max(self.max_ns, ns)

    def at(self, percentile):
        """ms"""
        left = self.count * percentile / 100
        for key in sorted(self.buckets):
            left -= self.buckets[key]
            if left <= 0:
                return key / 1e3
        return 0.0

    def report(self):
        shown = {f"p{p:g}".replace(".", ""): self.at(p) for p in (50, 99, 99.9)}
        return {"answers": self.count, **shown, "max": round(self.max_ns / 1e6, 3)}


@dataclass
class Client:
    """One connection of the load."""

    index: int
    sock: socket.socket | None = None
    #: Of each request that is out: when it was sent, ns, and how long the load itself had stood still until then.
    sent: deque = field(default_factory=deque)
    got: bytearray = field(default_factory=bytearray)
    next_burst: float = 0.0
    late_counted: bool = False


class Load:
    """16 connections, a partition each; bursts of pipelined requests with random pauses. Lives in its own process."""

    def __init__(self, address, shared, late_ns=1000 * MS, seed=1):
        self.address, self.shared, self.late_ns = address, shared, late_ns
        self.random = random.Random(seed)
        self.selector = selectors.DefaultSelector()
        self.clients = [Client(index) for index in range(CONNECTIONS)]
        self.latencies = {False: Latencies(), True: Latencies()}
        self.batch = wire.batch(b"s" * RECORD_BYTES)
        self.number = 0
        self.topic, self.requests, self.topic_until = None, [], 0.0
        self.old = None
        self.stalled_ns = 0

    def run(self):
        """Until it is told to stop; then the latencies, by whether the core had a competitor."""
        self.new_topic(wait=True)
        for client in self.clients:
            self.connect(client)
        while not self.shared["stop"]:
            now = time.monotonic()
            if now > self.topic_until:
                self.new_topic(wait=False)
            wait = 0.05
            for client in self.clients:
                if not client.sent and client.next_burst <= now:
                    self.burst(client)
                elif not client.sent:
                    wait = min(wait, client.next_burst - now)
            wait = max(wait, 0.0005)
            before = time.monotonic()
            ready = self.selector.select(wait)
            after = time.monotonic()
            self.had_to_wait(after - before - wait)
            for key, _ in ready:
                self.receive(key.data)
            self.look_for_late()
            self.had_to_wait(time.monotonic() - after)
        return {"quiet": self.latencies[False].report(), "busy": self.latencies[True].report()}

    def had_to_wait(self, seconds):
        """The load's own process did not get a CPU: that is no answer's fault."""
        if seconds > STALL_S:
            self.stalled_ns += int(seconds * 1e9)
            self.shared["stalled_ns"] = self.stalled_ns

    def new_topic(self, wait):
        """Makes the next topic, on a thread: the load goes on with the last one until it is there."""
        self.topic_until = time.monotonic() + TOPIC_S
        self.number += 1
        name = f"soak-{self.number}"

        def make():
            wire.make_topic(self.address, name, CONNECTIONS, 30)
            requests = [wire.produce_frame(name, index, self.batch) for index in range(CONNECTIONS)]
            old, self.topic, self.requests = self.topic, name, requests
            if self.old:
                with wire.Conn(self.address) as conn:
                    conn.delete_topic(self.old)
            self.old = old

        if wait:
            return make()
        threading.Thread(target=make, daemon=True).start()

    def connect(self, client):
        if client.sock:
            self.selector.unregister(client.sock)
            client.sock.close()
        host, _, port = self.address.rpartition(":")
        client.sock = socket.create_connection((host, int(port)), 10)
        client.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.sent.clear()
        client.got.clear()
        client.late_counted = False
        self.selector.register(client.sock, selectors.EVENT_READ, client)

    def burst(self, client):
        count = self.random.randint(1, BURST_MAX)
        request = self.requests[client.index]
        now = time.monotonic_ns()
        client.sent.extend([(now, self.stalled_ns)] * count)
        self.tell_outstanding()
        # At most 4 KiB: it always fits into an empty socket buffer.
        client.sock.sendall(b"".join(wire.again(request, n) for n in range(count)))

    def receive(self, client):
        more = client.sock.recv(1 << 16)
        if not more:
            raise wire.Broken("the broker closed a connection of the load")
        client.got += more
        now, busy = time.monotonic_ns(), bool(self.shared["busy"])
        while len(client.got) >= 4:
            (size,) = struct.unpack_from(">i", client.got)
            if len(client.got) < 4 + size:
                break
            if wire.produce_error(client.got[4 : 4 + size]):
                self.shared["errors"] += 1
            del client.got[: 4 + size]
            sent, stalled = client.sent.popleft()
            self.latencies[busy].add(now - sent)
            took = now - sent - (self.stalled_ns - stalled)
            self.shared["answered"] += 1
            self.shared["longest_ns"] = max(self.shared["longest_ns"], took)
            if took > self.late_ns:
                self.shared["late"] += not client.late_counted
                client.late_counted = False
        if not client.sent:
            client.next_burst = time.monotonic() + self.random.uniform(0, PAUSE_MAX_S)
        self.tell_outstanding()

    def tell_outstanding(self):
        """When the oldest request that waits was sent; 0: nothing is out."""
        self.shared["outstanding_since"] = min((c.sent[0][0] for c in self.clients if c.sent), default=0)

    def look_for_late(self):
        now = time.monotonic_ns()
        for client in self.clients:
            sent, stalled = client.sent[0] if client.sent else (now, self.stalled_ns)
            age = now - sent - (self.stalled_ns - stalled)
            if age > self.late_ns and not client.late_counted:
                client.late_counted = True
                self.shared["late"] += 1
                self.shared["longest_ns"] = max(self.shared["longest_ns"], age)
            if age > HANG_S * 1e9:
                self.shared["hung"] += 1
                self.shared["longest_ns"] = max(self.shared["longest_ns"], age)
                self.connect(client)


# the watcher


@dataclass(frozen=True)
class Look:
    """What the kernel says of a thread at one moment."""

    at_ns: int
    ran_ns: int
    waited_ns: int
    slices: int
    #: R, S, D.
    state: str
    #: What the load had out then: when the oldest request was sent, 0 for nothing.
    outstanding_since: int = 0

    def account(self):
        return self.ran_ns, self.waited_ns, self.slices


@dataclass
class Gap:
    """A time in which a thread did nothing."""

    at_ns: int
    #: Slept for certain, ns: between two looks with the same account, the second of which found it asleep.
    slept_ns: int = 0
    #: The same in state D: it waited inside a system call.
    blocked_ns: int = 0
    #: From the account: waited for its core when it ran again.
    waited_ns: int = 0
    #: Where in the kernel, while it was asleep.
    where: str = ""
    #: Work of a client was out while it slept.
    outstanding: bool = False
    busy: bool = False


class Judge:
    """Gaps out of looks. Pure: no clock, no files."""

    def __init__(self, worth_ns=10 * MS, where=lambda: ""):
        self.worth_ns, self.where = worth_ns, where
        self.first, self.last, self.gap = None, None, None
        self.gaps, self.looks, self.look_gap_ns = [], 0, 0

    def look(self, look, busy=False):
        self.looks += 1
        if self.last:
            self.look_gap_ns = max(self.look_gap_ns, look.at_ns - self.last.at_ns)
        if self.first is None or look.account() != self.first.account():
            self.end(look)
            self.first, self.gap = look, Gap(look.at_ns, busy=busy)
        else:
            lasted = look.at_ns - self.first.at_ns
            if look.state == "S":
                self.gap.slept_ns = lasted
                since = look.outstanding_since
                # Out before the sleep was seen and still out: it slept over it.
                self.gap.outstanding |= 0 < since and look.at_ns - max(since, self.first.at_ns) >= self.worth_ns
            elif look.state == "D":
                self.gap.blocked_ns = lasted
            if look.state in "SD" and lasted >= self.worth_ns and not self.gap.where:
                self.gap.where = self.where()
        self.last = look

    def end(self, look):
        """The thread ran again: what it waited for its core until then is in its account now."""
        if self.gap is None:
            return
        self.gap.waited_ns = look.waited_ns - self.first.waited_ns
        # Several slices since: the longest wait of them was at least the mean of them and is called that.
        self.gap.waited_ns //= max(look.slices - self.first.slices, 1)
        if max(self.gap.slept_ns, self.gap.blocked_ns, self.gap.waited_ns) >= self.worth_ns:
            self.gaps.append(self.gap)

    def done(self):
        """The last gap counts as well, as long as it was seen."""
        if self.gap and max(self.gap.slept_ns, self.gap.blocked_ns) >= self.worth_ns:
            self.gaps.append(self.gap)
        self.gap = None
        return self.gaps


def faults(gaps, gap_ms, tick_ms):
    """The gaps that fail the gate: slept or blocked for longer, with work out or a tick late."""
    found = []
    for gap in gaps:
        idle_ms = max(gap.slept_ns, gap.blocked_ns) / MS
        late = tick_ms > 0 and idle_ms > tick_ms
        if idle_ms > gap_ms and (gap.outstanding or late):
            found.append(gap)
    return found


class Thread:
    """A core's thread, read through files that stay open."""

    def __init__(self, pid, tid):
        self.name = Path(f"/proc/{pid}/task/{tid}/comm").read_text().strip()
        self.folder = f"/proc/{pid}/task/{tid}"
        self.schedstat = os.open(f"{self.folder}/schedstat", os.O_RDONLY)
        self.stat = os.open(f"{self.folder}/stat", os.O_RDONLY)
        self.judge = Judge(where=self.wchan)

    def look(self, outstanding_since):
        """The account is read on both sides of the state: it belongs to a state only if nothing moved between."""
        while True:
            before = os.pread(self.schedstat, 128, 0)
            text = os.pread(self.stat, 512, 0)
            after = os.pread(self.schedstat, 128, 0)
            state = chr(text[text.rindex(b")") + 2])
            if before == after or state == "R":
                ran, waited, slices = map(int, after.split())
                return Look(time.monotonic_ns(), ran, waited, slices, state, outstanding_since)

    def wchan(self):
        try:
            call = Path(f"{self.folder}/syscall").read_text().split()[0]
            return f"{Path(f'{self.folder}/wchan').read_text().strip()}, system call {call}"
        except (OSError, IndexError):
            return "unknown"

    def cpus(self):
        """The CPUs that it may run on."""
        for line in Path(f"{self.folder}/status").read_text().splitlines():
            if line.startswith("Cpus_allowed_list:"):
                return parse_cpus(line.split()[1])
        return set()


def parse_cpus(text):
    found = set()
    for part in text.split(","):
        low, _, high = part.partition("-")
        found |= set(range(int(low), int(high or low) + 1))
    return found


def core_threads(pid):
    threads = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        if CORE_THREAD.fullmatch((task / "comm").read_text().strip()):
            threads.append(Thread(pid, int(task.name)))
    return sorted(threads, key=lambda thread: thread.name)


class Turns:
    """The broker's own count of its turns, asked for once a second on a thread of its own."""

    def __init__(self, http):
        self.http, self.ended = http, threading.Event()
        self.first, self.last, self.longest_s, self.stood_s, self.missed = {}, {}, 0.0, 0.0, 0
        self.moved = {}
        self.thread = threading.Thread(target=self.run, daemon=True)

    def scrape(self):
        text = urllib.request.urlopen(f"http://{self.http}/metrics", timeout=5).read().decode()
        return parse_turns(text)

    def run(self):
        while not self.ended.wait(1.0):
            with contextlib.suppress(OSError):
                self.take(*self.scrape(), time.monotonic())
                continue
            self.missed += 1

    def take(self, turns, longest_s, now):
        self.first = self.first or turns
        self.longest_s = max(self.longest_s, longest_s)
        for core, count in turns.items():
            if self.last.get(core) != count or core not in self.moved:
                self.moved[core] = now
            self.stood_s = max(self.stood_s, now - self.moved[core])
        self.last = turns


def parse_turns(text):
    """(core -> turns, the longest turn since the last scrape in s)"""
    turns = {core: int(float(n)) for core, n in re.findall(r'(?m)^camus_loop_turns_total\{core="(\d+)"\} (\S+)', text)}
    longest = re.findall(r"(?m)^camus_loop_turn_seconds_max\{[^}]*\} (\S+)", text)
    return turns, max(map(float, longest), default=0.0)


def is_busy_time(second, share_s=30, of_s=60):
    """The middle of each minute belongs to the competitor."""
    begin = (of_s - share_s) / 2
    return begin <= second % of_s < begin + share_s


def counts(gaps, of):
    """How many were longer than each bound, and the longest, ms."""
    lengths = [of(gap) / MS for gap in gaps]
    over = {f"over_{bound}_ms": sum(length > bound for length in lengths) for bound in BOUNDS_MS}
    return over | {"longest_ms": round(max(lengths, default=0.0), 3)}
