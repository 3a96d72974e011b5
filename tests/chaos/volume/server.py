"""The process behind a volume: answers the kernel, keeps the history, does the harm that it is told to do.

    python server.py MOUNTPOINT       commands are lines of JSON on standard input, answers lines on standard output

One thread. What takes time (a slow flush) is an answer that is given later; what hangs is one that is not given until
`release`. The end of a flush is noted before its answer leaves, so that whoever acts on the answer acts later.
"""

import errno
import fnmatch
import heapq
import itertools
import json
import os
import random
import select
import signal
import stat
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from volume import fuse  # noqa: E402
from volume.tree import History  # noqa: E402

REQUESTS_A_TURN = 64
now = time.monotonic_ns
#: Opcodes that change names, for rules.
MAKING = {fuse.MKNOD, fuse.MKDIR, fuse.UNLINK, fuse.RMDIR, fuse.CREATE, fuse.RENAME, fuse.RENAME2}
#: Where the name begins in their bodies.
NAMES_AT = {fuse.CREATE: 16, fuse.MKNOD: 16, fuse.MKDIR: 8, fuse.RENAME: 8, fuse.RENAME2: 16}
O_SYNCS = os.O_DSYNC | os.O_SYNC


@dataclass
class Rule:
    """What is to go wrong: the first rule that fits a request decides."""

    op: str  # read, write, sync, names; a write with O_DSYNC is both a write and a sync
    name: str = "*"
    #: So many that fit are let pass, and then so many are hit (-1: all).
    skip: int = 0
    times: int = -1
    errno: int = 0
    seconds: list | None = None
    hang: bool = False
    #: Of a write: only this part of it is done, and said to be done.
    part: float | None = None
    #: Only what touches these bytes of the file.
    low: int = 0
    high: int = 1 << 62
    hits: int = 0

    def fits(self, op, name, at, length):
        if op != self.op or not fnmatch.fnmatch(name, self.name) or at >= self.high or at + length <= self.low:
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        if self.times == 0:
            return False
        self.times -= 1
        self.hits += 1
        return True


class Refused(Exception):
    """The answer is an error."""


class Server:
    def __init__(self, at):
        self.at, self.mount = at, None
        self.history, self.recorded = History(), None
        self.rules, self.chance = [], random.Random(0)
        self.flush_seconds, self.early = (0.0, 0.0), False
        self.quota, self.frozen, self.dead = None, False, False
        self.later, self.counter = [], itertools.count()  # (when, n, what to do)
        self.held = []  # (unique, what to do if the disk comes back)
        self.counts = {}

    # the loop

    def run(self):
        poll, mine = select.poll(), 0
        poll.register(0, select.POLLIN)
        while True:
            fd = self.mount.fd if self.mount else None
            if fd != mine:
                if mine:
                    poll.unregister(mine)
                if fd is not None:
                    poll.register(fd, select.POLLIN)
                mine = fd or 0
            wait = max(0, self.later[0][0] - now()) / 1e6 if self.later else None
            for ready, _ in poll.poll(wait):
                if ready == 0 and not self.commands():
                    return
                if self.mount and ready == self.mount.fd:
                    self.requests()
            self.due()

    def due(self):
        while self.later and self.later[0][0] <= now():
            _, _, job = heapq.heappop(self.later)
            job()

    def after(self, seconds, job):
        heapq.heappush(self.later, (now() + int(seconds * 1e9), next(self.counter), job))

    def requests(self):
        for _ in range(REQUESTS_A_TURN):
            request = self.mount.read()
            if request is None:
                return
            self.request(*request)
            self.due()

    def request(self, opcode, unique, node, body):
        if opcode in (fuse.FORGET, fuse.BATCH_FORGET, fuse.INTERRUPT):
            return
        if opcode == fuse.INIT:
            return self.mount.greet(unique, body)
        if self.dead:
            return self.answer(unique, error=errno.EIO)
        if self.frozen:
            return self.held.append((unique, None))
        try:
            if opcode == fuse.WRITE:
                return self.write(unique, node, body)
            if opcode in (fuse.FSYNC, fuse.FSYNCDIR):
                return self.sync(unique, node)
            handler = self.HANDLERS.get(opcode)
            if handler is None:
                raise Refused(errno.ENOSYS)
            if opcode in MAKING:
                rule = self.rule("names", f"{self.path(node)}/{fuse.name_in(body[NAMES_AT.get(opcode, 0) :])}")
                self.unless(rule, unique, lambda: self.quietly(unique, handler, node, bytes(body)))
            elif opcode == fuse.READ:
                _, at, size, *_ = fuse.READ_IN.unpack_from(body)
                self.unless(
                    self.rule("read", self.path(node), at, size), unique, lambda: self.read(unique, node, at, size)
                )
            else:
                self.answer(unique, handler(self, node, body))
        except Refused as refused:
            self.answer(unique, error=refused.args[0])

    def quietly(self, unique, handler, node, body):
        try:
            self.answer(unique, handler(self, node, body))
        except Refused as refused:
            self.answer(unique, error=refused.args[0])

    def answer(self, unique, data=b"", error=0):
        self.mount.answer(unique, data, error)

    # harm

    def rule(self, op, name, at=0, length=1):
        self.counts[op] = self.counts.get(op, 0) + 1
        return next((rule for rule in self.rules if rule.fits(op, name, at, length)), None)

    def unless(self, rule, unique, job):
        """Does the job, or what the rule says instead."""
        if rule is None or rule.part is not None:
            return job()
        if rule.hang:
            return self.held.append((unique, job))
        if rule.errno:
            return self.answer(unique, error=rule.errno)
        self.after(self.chance.uniform(*rule.seconds), self.unfrozen(unique, job))

    def unfrozen(self, unique, job):
        """A job for later, which is not done if the disk was switched off meanwhile."""
        mount = self.mount

        def then():
            if self.mount is not mount:
                return
            if self.frozen:
                self.held.append((unique, None))
            else:
                job()

        return then

    # data

    def live(self, node):
        found = self.history.live.nodes.get(node)
        if found is None:
            raise Refused(errno.ESTALE)
        return found

    def path(self, node):
        return self.history.live.path(node)

    def has_room(self, node, size):
        more = size - self.live(node).size
        if self.quota is not None and more > 0 and self.history.live.bytes() + more > self.quota:
            raise Refused(errno.ENOSPC)

    def read(self, unique, node, at, size):
        self.answer(unique, self.live(node).read(at, size))

    def write(self, unique, node, body):
        _, at, size, _, _, flags, _ = fuse.WRITE_IN.unpack_from(body)
        data = bytes(body[fuse.WRITE_IN.size : fuse.WRITE_IN.size + size])
        dsync = bool(flags & O_SYNCS)
        self.has_room(node, at + size)
        rule = self.rule("write", self.path(node), at, size)
        if rule and rule.part is not None:
            data = data[: int(size * rule.part)]
        self.unless(rule, unique, lambda: self.written(unique, node, at, data, dsync))

    def written(self, unique, node, at, data, dsync):
        op = self.history.write(node, at, data, now(), dsync)
        done = len(data).to_bytes(4, "little") + bytes(4)
        if dsync:
            return self.flush(unique, op, done)
        op.answered = now()
        self.answer(unique, done)

    def sync(self, unique, node):
        self.live(node)
        self.flush(unique, self.history.sync(node, now()), b"")

    def flush(self, unique, op, data):
        rule = self.rule("sync", self.path(op.node))
        if rule and rule.errno:
            self.history.flushed(op, now(), ok=False)
            return self.answer(unique, error=rule.errno)

        def flushed():
            self.history.flushed(op, now())
            op.answered = op.answered or op.durable
            if not self.early:
                self.answer(unique, data)

        def slowly():
            seconds = self.chance.uniform(*self.flush_seconds)
            if self.early:
                # The answer leaves before the data is where it is said to be.
                op.answered = now()
                self.answer(unique, data)
            if seconds:
                self.after(seconds, self.unfrozen(unique, flushed))
            else:
                flushed()

        self.unless(rule, unique, slowly)

    # names

    def lookup(self, node, body):
        number = self.live(node).names.get(fuse.name_in(body))
        if number is None:
            raise Refused(errno.ENOENT)
        return fuse.entry(self.live(number))

    def getattr(self, node, _):
        return fuse.ATTR_OUT.pack(0, 0, 0) + fuse.attributes(self.live(node))

    def setattr(self, node, body):
        valid, _, _, size, *_ = fuse.SETATTR_IN.unpack_from(body)
        here = self.live(node)
        if valid & fuse.SETATTR_SIZE and size != here.size:
            self.has_room(node, size)
            self.history.change("size", node, now(), size).answered = now()
        return self.getattr(node, None)

    def make(self, parent, name, folder, mode):
        if name in self.live(parent).names:
            raise Refused(errno.EEXIST)
        node, op = self.history.make(parent, name, folder, mode & 0o7777, now())
        op.answered = now()
        return node

    def mkdir(self, node, body):
        return fuse.entry(self.make(node, fuse.name_in(body[8:]), True, int.from_bytes(body[:4], "little")))

    def mknod(self, node, body):
        mode = int.from_bytes(body[:4], "little")
        if not stat.S_ISREG(mode):
            raise Refused(errno.EPERM)
        return fuse.entry(self.make(node, fuse.name_in(body[16:]), False, mode))

    def create(self, node, body):
        made = self.make(node, fuse.name_in(body[16:]), False, int.from_bytes(body[4:8], "little"))
        return fuse.entry(made) + fuse.OPEN_OUT.pack(made.number, fuse.OPEN_FLAGS, 0)

    def open(self, node, _):
        self.live(node)
        return fuse.OPEN_OUT.pack(node, fuse.OPEN_FLAGS, 0)

    def opendir(self, node, _):
        self.live(node)
        return fuse.OPEN_OUT.pack(node, 0, 0)

    def readdir(self, node, body):
        _, at, size, *_ = fuse.READ_IN.unpack_from(body)
        return fuse.listing(self.live(node), self.history.live.nodes, at, size)

    def unlink(self, node, body):
        name = fuse.name_in(body)
        number = self.live(node).names.get(name)
        if number is None:
            raise Refused(errno.ENOENT)
        if self.live(number).names:
            raise Refused(errno.ENOTEMPTY)
        self.history.change("unlink", node, now(), name).answered = now()
        return b""

    def rename(self, node, body, start=8, flags=0):
        to = int.from_bytes(body[:8], "little")
        old, new = (os.fsdecode(part) for part in bytes(body[start:]).split(b"\0")[:2])
        if old not in self.live(node).names:
            raise Refused(errno.ENOENT)
        if flags & ~1 or to != node:
            raise Refused(errno.EINVAL)
        if flags & 1 and new in self.live(to).names:
            raise Refused(errno.EEXIST)
        self.history.change("rename", node, now(), old, new).answered = now()
        return b""

    def rename2(self, node, body):
        return self.rename(node, body, 16, int.from_bytes(body[8:12], "little"))

    def fallocate(self, node, body):
        _, at, length, mode, _ = fuse.FALLOCATE_IN.unpack_from(body)
        if mode:
            raise Refused(errno.EOPNOTSUPP)
        self.has_room(node, at + length)
        if at + length > self.live(node).size:
            self.history.change("size", node, now(), at + length).answered = now()
        return b""

    def statfs(self, _node, _body):
        total = (self.quota or 1 << 40) // 4096
        free = max(0, total - self.history.live.bytes() // 4096)
        return fuse.STATFS_OUT.pack(total, free, free, 1 << 20, 1 << 20, 4096, 255, 4096, 0)

    def nothing(self, _node, _body):
        return b""

    HANDLERS = {
        fuse.LOOKUP: lookup, fuse.GETATTR: getattr, fuse.SETATTR: setattr, fuse.MKDIR: mkdir, fuse.MKNOD: mknod,
        fuse.CREATE: create, fuse.OPEN: open, fuse.OPENDIR: opendir, fuse.READDIR: readdir, fuse.UNLINK: unlink,
        fuse.RMDIR: unlink, fuse.RENAME: rename, fuse.RENAME2: rename2, fuse.FALLOCATE: fallocate,
        fuse.STATFS: statfs, fuse.FLUSH: nothing, fuse.RELEASE: nothing, fuse.RELEASEDIR: nothing,
        fuse.DESTROY: nothing, fuse.READ: nothing,
    }  # fmt: skip

    # commands

    def commands(self):
        line = sys.stdin.readline()
        if not line:
            return False
        order = json.loads(line)
        try:
            said = getattr(self, "do_" + order.pop("do"))(**order)
        except Exception as error:  # noqa: BLE001: told to whoever asked
            said = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(said if said is not None else {}), flush=True)
        return True

    def do_mount(self):
        self.mount = fuse.Mount(self.at)

    def do_unmount(self):
        mount, self.mount = self.mount, None
        self.later, self.held, self.frozen, self.dead = [], [], False, False
        mount.close()

    def do_flush_seconds(self, low, high, early=False):
        self.flush_seconds, self.early = (low, high), early

    def do_harm(self, **rule):
        self.rules.append(Rule(**rule))

    def do_hits(self):
        return {"hits": [rule.hits for rule in self.rules], "counts": self.counts, "held": len(self.held)}

    def do_heal(self):
        """No more harm; what hung is done."""
        self.rules = []
        held, self.held = self.held, []
        for unique, job in held:
            job() if job else self.answer(unique, error=errno.EIO)

    def do_quota(self, bytes=None):
        self.quota = bytes

    def do_freeze(self):
        """The power goes: nothing is done any more, nothing is answered."""
        self.frozen = True
        return {"at": now()}

    def do_release(self):
        """What waits for the frozen disk, and what comes still, is told that it failed, so that its process can end."""
        self.dead = True
        waiting, self.later = self.later, []
        for _, _, job in sorted(waiting):
            job()
        held, self.held = self.held, []
        for unique, _ in held:
            self.answer(unique, error=errno.EIO)

    def do_lose(self, at, seed, keep, sector):
        """The disk as it is after the power went at that moment; what was before is no history any more."""
        assert self.mount is None, "unmount first"
        tree = self.history.image(at, random.Random(seed), at, keep, sector)
        self.history = History(tree)

    def do_keep(self):
        """What was recorded until now is what images are made of."""
        self.recorded = self.history

    def do_boundaries(self, since=0):
        return {"boundaries": (self.recorded or self.history).boundaries(since)}

    def do_image(self, flushed_by, begun_by=None, seed=None, keep=0.5, sector=4096):
        assert self.mount is None, "unmount first"
        chance = None if seed is None else random.Random(seed)
        self.history = History(self.recorded.image(flushed_by, chance, begun_by, keep, sector))

    def do_stats(self):
        tree = self.history.live
        return {
            "ops": len(self.history.ops),
            "bytes": tree.bytes(),
            "paths": [tree.path(n.number) for n in tree.linked()],
        }


def main():
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it ends it, by closing its input
    server = Server(sys.argv[1])
    print(json.dumps({"pid": os.getpid()}), flush=True)
    try:
        server.run()
    finally:
        if server.mount:
            server.do_unmount()


if __name__ == "__main__":
    main()
