"""Members of consumer groups, by hand: each on a connection of its own, because JoinGroup and SyncGroup wait."""
import struct
from dataclasses import dataclass, field

from .wire import FLEXIBLE_FROM, W, Conn

OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, JOIN_GROUP, HEARTBEAT, SYNC_GROUP = 8, 9, 10, 11, 12, 14
FLEXIBLE_FROM.update({OFFSET_COMMIT: 8, OFFSET_FETCH: 6, FIND_COORDINATOR: 3, JOIN_GROUP: 6, HEARTBEAT: 4,
                      SYNC_GROUP: 4})

UNKNOWN_MEMBER, REBALANCING, MEMBER_ID_REQUIRED = 25, 27, 79
#: Codes that a member answers by asking again.
LATER = {14, 15, 16}


def coordinator(conn, group):
    """(error, host:port)"""
    conn.send(FIND_COORDINATOR, 2, W(False).string(group).put("b", 0).out)
    r = conn.receive(FIND_COORDINATOR, 2)
    r.get("i")
    error = r.get("h")
    r.string()
    r.get("i")
    host, port = r.string(), r.get("i")
    r.done()
    return error, f"{host}:{port}"


def send_commit(conn, group, topic, offsets, generation=-1, member="", version=7):
    """`offsets`: partition -> the next offset to read."""
    w = W(False).string(group).put("i", generation).string(member)
    if version >= 7:
        w.string(None)
    w.array([0], lambda _: w.string(topic).array(
        list(offsets.items()), lambda item: w.put("iqi", item[0], item[1], -1).string("")))
    return conn.send(OFFSET_COMMIT, version, w.out)


def receive_commit(conn, correlation=None, version=7):
    """Partition -> error."""
    r, out = conn.receive(OFFSET_COMMIT, version, correlation), {}
    r.get("i")
    r.array(lambda: (r.string(), r.array(lambda: out.__setitem__(*r.get("ih")))))
    r.done()
    return out


def commit(conn, group, topic, offsets, generation=-1, member=""):
    return receive_commit(conn, send_commit(conn, group, topic, offsets, generation, member))


def committed(conn, group, topic, partitions=(0,), version=5):
    """Partition -> the next offset to read, -1 where there is none."""
    w, out = W(False).string(group), {}
    w.array([0], lambda _: w.string(topic).array(partitions, lambda p: w.put("i", p)))
    conn.send(OFFSET_FETCH, version, w.out)
    r = conn.receive(OFFSET_FETCH, version)
    r.get("i")

    def partition():
        index, offset, _ = r.get("iqi")
        r.string()
        error = r.get("h")
        assert error == 0, f"OffsetFetch error {error}"
        out[index] = offset
    r.array(lambda: (r.string(), r.array(partition)))
    error = r.get("h")
    r.done()
    assert error == 0, f"OffsetFetch error {error}"
    return out


@dataclass
class Joined:
    error: int
    generation: int
    leader: str
    member: str
    members: list


@dataclass
class Member:
    """One member. It assigns the partitions 0 .. `partitions`-1 in turn to all members when it leads."""

    address: str
    group: str
    partitions: int
    session_ms: int = 6000
    rebalance_ms: int = 10000
    id: str = ""
    generation: int = -1
    mine: list = field(default_factory=list)
    conn: Conn = None

    def on(self):
        if self.conn is None:
            self.conn = Conn(self.address)
        return self.conn

    def dies(self):
        """Without a word."""
        self.conn.close()
        self.conn = None

    def send_join(self):
        w = W(False).string(self.group).put("ii", self.session_ms, self.rebalance_ms).string(self.id).string(None)
        w.string("consumer").array([0], lambda _: w.string("turns").blob(b""))
        return self.on().send(JOIN_GROUP, 5, w.out)

    def receive_join(self, correlation=None, timeout=None):
        r = self.conn.receive(JOIN_GROUP, 5, correlation, timeout)
        r.get("i")
        error, generation = r.get("hi")
        r.string()
        leader, member = r.string(), r.string()
        members = r.array(lambda: (r.string(), r.string(), r.blob())[0])
        r.done()
        return Joined(error, generation, leader, member, members)

    def join(self, timeout=30.0):
        """Joins and takes its assignment, as often as the group asks for it."""
        while True:
            self.send_join()
            joined = self.receive_join(timeout=timeout)
            if joined.error == MEMBER_ID_REQUIRED:
                self.id = joined.member
                continue
            if joined.error == UNKNOWN_MEMBER:
                self.id = ""
                continue
            if joined.error in LATER | {REBALANCING}:
                continue
            assert joined.error == 0, f"JoinGroup error {joined.error}"
            self.id, self.generation = joined.member, joined.generation
            error, assignment = self.sync(sorted(joined.members), timeout)
            if error in LATER | {REBALANCING}:
                continue
            assert error == 0, f"SyncGroup error {error}"
            self.mine = [p for (p,) in struct.iter_unpack(">i", assignment)]
            return self

    def sync(self, members=(), timeout=None):
        """(error, assignment)"""
        def given(n):
            return b"".join(struct.pack(">i", p) for p in range(self.partitions) if p % len(members) == n)
        w = W(False).string(self.group).put("i", self.generation).string(self.id).string(None)
        w.array(list(enumerate(members)), lambda item: w.string(item[1]).blob(given(item[0])))
        self.conn.send(SYNC_GROUP, 3, w.out)
        r = self.conn.receive(SYNC_GROUP, 3, timeout=timeout)
        r.get("i")
        answer = r.get("h"), r.blob()
        r.done()
        return answer

    def beat(self):
        w = W(False).string(self.group).put("i", self.generation).string(self.id).string(None)
        self.on().send(HEARTBEAT, 3, w.out)
        r = self.conn.receive(HEARTBEAT, 3)
        r.get("i")
        error = r.get("h")
        r.done()
        return error

    def commit(self, topic, offsets):
        return commit(self.on(), self.group, topic, offsets, self.generation, self.id)
