"""Kills the broker with SIGKILL again and again under load from librdkafka, and then judges the whole log.

    tests/chaos/run kill9 --kills 100            (makes what it needs; or: python tests/chaos/kill9.py ...)

Producers live through all the kills, as a service's producer does:
  idempotent   retries for ever; its records must be in the log once each, in order, all of them
  retrying     plain, with retries: what is acknowledged is where it was said to be; a copy may only lie before
  that place
               (an earlier attempt whose answer was lost), never after it
  once         plain, without retries: at most one copy; exactly one if acknowledged
A consumer follows the tail meanwhile: what it was shown must be in the final log, at the same offset.
The moments of the kills come from a seed, which is printed first. The exit status is 0 only if everything held.
"""

import argparse
import random
import shutil
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path

import confluent_kafka as ck

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "blackbox"))
from harness.broker import FOREIGN, Camus, Client, Foreign  # noqa: E402

PARTITIONS = 6
KINDS = {
    "idempotent": {"enable.idempotence": True, "message.timeout.ms": 600_000},
    "retrying": {"enable.idempotence": False, "message.timeout.ms": 600_000, "retries": 1_000_000},
    "once": {"enable.idempotence": False, "message.timeout.ms": 20_000, "retries": 0},
}


class Producer(threading.Thread):
    """Sends numbered records to every partition at a steady rate until told to stop. Values: `name:number`, by
    partition."""

    def __init__(self, kind, name, address, topic, rate):
        super().__init__(daemon=True)
        self.kind, self.name_, self.topic, self.rate = kind, name, topic, rate
        self.producer = ck.Producer(
            {
                "bootstrap.servers": address,
                "linger.ms": 1,
                "acks": "all",
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 200,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "max.in.flight.requests.per.connection": 5,
                "socket.timeout.ms": 10_000,
                "queue.buffering.max.messages": 20_000,
                "error_cb": self.error,
                "log_level": 0,
                **KINDS[kind],
            }
        )
        self.sent = [0] * PARTITIONS
        self.acked = [{} for _ in range(PARTITIONS)]  # number -> offset
        self.failed = [set() for _ in range(PARTITIONS)]
        self.fatal, self.stop = None, False
        self.unflushed = 0

    def error(self, error):
        if error.fatal():
            self.fatal = self.fatal or error

    def delivered(self, partition, number):
        def answer(error, message):
            if error is None:
                self.acked[partition][number] = message.offset()
            else:
                self.failed[partition].add(number)
                self.last_failure = error

        return answer

    def run(self):
        begun, count = time.monotonic(), 0
        while not self.stop and not self.fatal:
            partition = count % PARTITIONS
            number = self.sent[partition]
            try:
                self.producer.produce(
                    self.topic,
                    b"%s:%d" % (self.name_.encode(), number),
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


class Follower(threading.Thread):
    """Reads the tail of every partition while the broker dies and comes back; remembers what it was shown."""

    def __init__(self, address, topic):
        super().__init__(daemon=True)
        self.consumer = ck.Consumer(
            {
                "bootstrap.servers": address,
                "group.id": uuid.uuid4().hex,
                "enable.auto.commit": False,
                "log_level": 0,
                "auto.offset.reset": "error",
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "fetch.wait.max.ms": 50,
                "error_cb": lambda error: None,
            }
        )
        self.consumer.assign([ck.TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
        self.shown = [[] for _ in range(PARTITIONS)]
        self.faults, self.stop = [], False

    def run(self):
        while not self.stop:
            for message in self.consumer.consume(500, 0.1):
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
        self.consumer.close()


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
        shown = follower.shown[partition]
        for offset, value in enumerate(shown[: len(log)]):
            if value != log[offset]:
                faults.append(
                    f"partition {partition}: the follower was shown {value} at {offset}, the log has {log[offset]}"
                )
                break
        if len(shown) > len(log):
            faults.append(f"partition {partition}: the follower was shown {len(shown)} records, the log has {len(log)}")
        places = {p.name_: {} for p in producers}
        for offset, value in enumerate(log):
            name, _, number = value.decode().partition(":")
            places[name].setdefault(int(number), []).append(offset)
        for p in producers:
            mine, acked, failed = places[p.name_], p.acked[partition], p.failed[partition]
            where = f"partition {partition}, {p.name_}"
            figures["acknowledged"] += len(acked)
            figures["failed"] += len(failed)
            lost = [n for n in acked if n not in mine]
            if lost:
                faults.append(
                    f"{where}: {len(lost)} acknowledged records are LOST, e.g. number {lost[0]} at {acked[lost[0]]}"
                )
            moved = [n for n, offset in acked.items() if n in mine and offset not in mine[n]]
            if moved:
                n = moved[0]
                faults.append(
                    f"{where}: {len(moved)} records are not where they were acknowledged, e.g. number {n}: "
                    f"acknowledged at {acked[n]}, in the log at {mine[n]}"
                )
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


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--kills", type=int, default=100)
    options.add_argument("--seed", type=int, default=None)
    options.add_argument("--cores", type=int, default=1)
    options.add_argument("--io", default=None)
    options.add_argument("--rate", type=int, default=600, help="records a second of each producer")
    options.add_argument("--each", type=int, default=2, help="producers of each kind")
    options.add_argument(
        "--life", type=float, default=1.0, help="the longest life of a broker after it is ready, seconds"
    )
    options.add_argument("--data-dir", type=Path, default=None, help="kept; default: a temporary one, kept on a fault")
    options = options.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"kill9: seed {seed}, {options.kills} kills, {options.cores} core(s)", flush=True)
    chance = random.Random(seed)
    folder = options.data_dir or Path(tempfile.mkdtemp(prefix="camus-kill9-"))
    broker = Foreign() if FOREIGN else Camus(folder / "data", cores=options.cores, io=options.io).start()
    client = Client(broker)
    topic = client.topic(PARTITIONS, "chaos")
    producers = [
        Producer(kind, f"{kind}-{n}", broker.address, topic, options.rate)
        for kind in KINDS
        for n in range(options.each)
    ]
    follower = Follower(broker.address, topic)
    begun, slowest = time.monotonic(), 0.0
    for thread in (*producers, follower):
        thread.start()
    faults = []
    try:
        for kill in range(1, options.kills + 1):
            time.sleep(chance.uniform(0.02, options.life))
            broker.kill_9()
            if chance.random() < 0.2 and not FOREIGN:  # and once more, while it starts
                broker.launch()
                time.sleep(chance.uniform(0.0, 0.1))
                broker.kill_9()
            broker.start()
            slowest = max(slowest, broker.start_seconds)
            if kill % 10 == 0 or kill == options.kills:
                acked = sum(len(a) for p in producers for a in p.acked)
                print(f"kill9: {kill} kills, {acked} records acknowledged, slowest start {slowest:.2f} s", flush=True)
        for p in producers:
            p.stop = True
        for p in producers:
            p.join(180)
        client.forget()
        client.when_led(topic, PARTITIONS)
        logs = [client.values(topic, p) for p in range(PARTITIONS)]  # insists on contiguous offsets
        end = time.monotonic() + 20
        while any(len(s) < len(log) for s, log in zip(follower.shown, logs, strict=True)) and time.monotonic() < end:
            time.sleep(0.1)
        follower.stop = True
        follower.join(20)
        faults, figures = judge(logs, producers, follower)
        for name, figure in figures.items():
            print(f"kill9: {figure:>9} {name}")
    except AssertionError as error:
        faults.append(str(error))
    finally:
        client.forget()
        if not FOREIGN:
            broker.kill_9()
    for fault in faults:
        print(f"kill9: FAULT: {fault}")
    if faults:
        print(
            f"kill9: verdict: {len(faults)} FAULTS after {options.kills} kills, seed {seed}; data and logs in {folder}"
        )
        return 1
    print(
        f"kill9: verdict: nothing lost, nothing doubled, order kept, offsets contiguous; {options.kills} kills in "
        f"{time.monotonic() - begun:.0f} s, slowest start {slowest:.2f} s, seed {seed}"
    )
    if options.data_dir is None:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
