"""Kills the broker with SIGKILL again and again under a mixed load, and then judges the whole log.

    tests/chaos/run kill9 --kills 100            (makes what it needs; or: python tests/chaos/kill9.py ...)
    tests/chaos/run power --kills 100            the power goes each time: what was not flushed is lost

Clients live through all the kills, as those of a service do: producers of three kinds, a consumer that follows the
tail, a group that commits, topics that are made and deleted (load.py says what must be true of each). The history is
written beside the data and judged a second time, by the checker of the simulator, where CAMUS_SIM names that.
The moments of the kills come from a seed, which is printed first. The exit status is 0 only if everything held.

With --power the data lies on a volume of our own (volume/): at a kill nothing more reaches it, and what was not
flushed by then is gone, but for a random part of it, in sectors of 4 KiB or 512 bytes.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

import load
from load import KINDS, PARTITIONS, Committer, Follower, Producer, Topics, judge
from volume import Skipped, Volume

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "blackbox"))
from harness.broker import FOREIGN, Camus, Client, Foreign  # noqa: E402


def die(broker, volume, chance):
    """SIGKILL; or the power goes."""
    assert FOREIGN or broker.alive(), f"the broker ended by itself: {broker.process.returncode}\n{broker.said()}"
    if volume is None:
        return broker.kill_9()

    def kill(release):
        broker.process.kill()
        release()
        broker.kill_9()

    sector, keep = chance.choice([512, 4096]), chance.choice([0.0, 0.1, 0.5, 0.9])
    volume.power_cut(kill, chance.randrange(1 << 32), keep, sector)


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
    options.add_argument("--power", action="store_true", help="lose what was not flushed, too")
    options.add_argument("--data-dir", type=Path, default=None, help="kept; default: a temporary one, kept on a fault")
    options = options.parse_args()
    if options.power and FOREIGN:
        sys.exit("--power needs a broker of its own")
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"kill9: seed {seed}, {options.kills} kills, {options.cores} core(s)", flush=True)
    chance = random.Random(seed)
    folder = options.data_dir or Path(tempfile.mkdtemp(prefix="camus-kill9-"))
    try:
        volume = Volume(folder / "volume") if options.power else None
    except Skipped as why:
        print(f"skipped: {why}")
        return 77
    if volume:
        volume.ask("flush_seconds", low=0.0, high=0.004)
    data = (volume.at if volume else folder) / "data"
    broker = Foreign() if FOREIGN else Camus(data, cores=options.cores, io=options.io, logs=folder / "logs").start()
    client = Client(broker)
    topic = client.topic(PARTITIONS, "chaos")
    producers = [
        Producer(kind, f"{kind}-{n}", broker.address, topic, options.rate)
        for kind in KINDS
        for n in range(options.each)
    ]
    follower, committer = Follower(broker.address, topic), Committer(broker.address, topic)
    topics = Topics(broker.address)
    begun, slowest = time.monotonic(), 0.0
    for thread in (*producers, follower, committer, topics):
        thread.start()
    faults = []
    try:
        for kill in range(1, options.kills + 1):
            time.sleep(chance.uniform(0.02, options.life))
            die(broker, volume, chance)
            if chance.random() < 0.2 and not FOREIGN:  # and once more, while it starts
                broker.launch()
                time.sleep(chance.uniform(0.0, 0.1))
                die(broker, volume, chance)
            broker.start()
            slowest = max(slowest, broker.start_seconds)
            if kill % 10 == 0 or kill == options.kills:
                acked = sum(len(a) for p in producers for a in p.acked)
                print(f"kill9: {kill} kills, {acked} records acknowledged, slowest start {slowest:.2f} s", flush=True)
        for p in (*producers, committer, topics):
            p.stop = True
        for raw in (committer, topics):
            raw.join(30)
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
        faults += committer.judge(client.on()) + topics.judge(client.on())
        figures["commits answered"] = sum(1 for _, answered, _ in committer.commits if answered)
        figures["topics made and deleted"] = len(topics.made) + len(topics.gone)
        events = load.history(topic, logs, producers, follower, committer)
        said, more = load.judged_again(folder / "history.jsonl", events)
        print(f"kill9: {said}")
        faults += more
        for name, figure in figures.items():
            print(f"kill9: {figure:>9} {name}")
    except AssertionError as error:
        faults.append(str(error))
    finally:
        client.forget()
        if not FOREIGN:
            broker.kill_9()
        if volume:
            if faults:
                shutil.copytree(data, folder / "data")
            volume.close()
    for fault in faults:
        print(f"kill9: FAULT: {fault}")
    if faults:
        print(
            f"kill9: verdict: {len(faults)} FAULTS after {options.kills} kills, seed {seed}; data and logs in {folder}"
        )
        return 1
    print(
        f"kill9: verdict: nothing lost, nothing doubled, order kept, offsets contiguous; {options.kills} "
        f"{'power cuts' if volume else 'kills'} in {time.monotonic() - begun:.0f} s, slowest start {slowest:.2f} s, "
        f"seed {seed}"
    )
    if options.data_dir is None:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
