"""Several brokers of one cluster on the loopback, each a process with its own data directory."""

import base64
import os
import socket
import time

from . import batch as rb
from .broker import Camus
from .wait import until
from .wire import NOT_LEADER, RETRIABLE, Closed, Conn, Silent

#: What an answer may be while nobody or somebody else leads: a client asks again.
MOVED = RETRIABLE | {14, 15, 16, 41}


def free_ports(count, each=1):
    """`count` first ports of runs of `each` free ones, below those that the system gives to clients."""
    found, at = [], 12000 + os.getpid() * 64 % 15000  # apart from a test beside this one
    while len(found) < count:
        held = []
        try:
            for port in range(at, at + each):
                held.append(socket.socket())
                held[-1].bind(("127.0.0.1", port))
            found.append(at)
        except OSError:
            pass
        finally:
            for one in held:
                one.close()
        at += each + 1
    return found


class Cluster:
    def __init__(self, tmp_path, brokers=3, cores=1, settings=None, io=None):
        ids = range(1, brokers + 1)
        clients, peers = free_ports(brokers), free_ports(2 * brokers, cores)[brokers:]
        self.cluster_id = base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")
        listed = [
            f"{id}@127.0.0.1:{client}/127.0.0.1:{peer}" for id, client, peer in zip(ids, clients, peers, strict=True)
        ]
        shared = {
            "camus.cluster.brokers": ",".join(listed),
            "camus.cluster.id": self.cluster_id,
            "camus.wal.disk.limit": "512MiB",
            "group.initial.rebalance.delay.ms": 0,
            "camus.memory": f"{128 * cores}MiB",
            **(settings or {}),
        }
        self.brokers = {}
        for id, port in zip(ids, clients, strict=True):
            broker = Camus(tmp_path / f"broker{id}", cores=cores, io=io, settings={**shared, "node.id": id})
            broker.address = f"127.0.0.1:{port}"
            self.brokers[id] = broker
        self.conns = {}

    def launch(self, *ids):
        for id in ids or self.brokers:
            self.brokers[id].launch()

    def wait_ready(self, *ids, seconds=30.0):
        for id in ids or self.brokers:
            broker = self.brokers[id]

            def ready(broker=broker):
                assert broker.alive(), f"a broker ended before it was ready:\n{broker.said()}"
                return "camus ready" in broker.out.read_text(errors="replace")

            until(ready, seconds, f"broker {id} is ready:\n{broker.said()}")

    def kill_9(self, id):
        self.brokers[id].kill_9()
        self.forget(id)

    def end(self):
        for id in list(self.brokers):
            self.kill_9(id)

    def alive(self):
        return [id for id, broker in self.brokers.items() if broker.alive()]

    def addresses(self, *ids):
        return ",".join(self.brokers[id].address for id in ids or self.brokers)

    def on(self, id):
        """A raw connection to this broker."""
        if id not in self.conns:
            self.conns[id] = Conn(self.brokers[id].address, timeout=10.0)
        return self.conns[id]

    def forget(self, id):
        if id in self.conns:
            self.conns.pop(id).close()

    def asked(self, id, what):
        """What the broker answers, or None if it is not there."""
        try:
            return what(self.on(id))
        except (Closed, Silent, OSError):
            self.forget(id)
            return None

    def leader(self, topic, partition=0, among=None, seconds=10.0):
        """The broker that all of these name as the leader of the partition, and that is alive."""

        def named():
            alive = among or self.alive()
            found = set()
            for id in alive:
                told = self.asked(id, lambda conn: conn.metadata([topic])["topics"].get(topic))
                if not told or told["error"] or len(told["partitions"]) <= partition:
                    return None
                found.add(told["partitions"][partition]["leader"])
            return found.pop() if len(found) == 1 and found <= set(alive) else None

        return until(named, seconds, f"the brokers agree on who leads {topic}", every=0.01)

    def create(self, id, topic, partitions=1, seconds=10.0):
        """Through this broker, whoever leads the metadata; tried again as a client does."""

        def created():
            error = self.asked(id, lambda conn: conn.create_topic(topic, partitions))
            assert error in {0, 36} or error is None or error in MOVED, error
            return error in {0, 36}

        until(created, seconds, f"broker {id} makes {topic}")

    def put(self, topic, batch, partition=0, seconds=10.0):
        """Sends one batch until it is acknowledged, to whoever leads; its offset and how long it took."""
        begun = time.monotonic()

        def sent():
            for id in self.alive():
                done = self.asked(id, lambda conn: conn.produce(topic, batch, partition, timeout=5.0))
                if done is None or done.error in {NOT_LEADER, *MOVED}:
                    continue
                assert done.error == 0, f"produce error {done.error}: {done.message}"
                return done
            return None

        done = until(sent, seconds, f"a batch for {topic} is acknowledged", every=0.005)
        return done.base_offset, time.monotonic() - begun

    def values(self, id, topic, partition=0):
        """Everything that this broker serves of the partition, which it has to lead."""
        out, at, end = [], 0, None
        while end is None or at < end:
            got = self.on(id).fetch(topic, at, partition, max_wait_ms=0)
            assert got.error == 0, f"fetch error {got.error} at {at}"
            end = got.high_watermark
            batches = rb.parse(got.records)
            assert batches or at >= end, f"nothing was served at {at}, below the end {end}"
            for batch in batches:
                out += [r.value for r in batch.records() if r.offset >= at]
                at = batch.next_offset
        return out
