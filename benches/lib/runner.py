"""Runs rows turn by turn: each system once, then each again in another order.

Each run has a directory of its own that is removed behind it.

A run during which somebody else was busy is set aside and repeated, a bounded number of times; the list is kept.
"""

import json
import os
import re
import subprocess
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from . import actions, brokers, host, rows, tables, wire

#: The most that a row has on the disk at once, with room to spare.
DISK_BYTES = 12 * 10**9
BENCH_PATIENCE_S = 240.0


class BenchFailed(Exception):
    """`camus bench` ended with an error: what it said."""


@dataclass
class Options:
    binary: Path
    #: Where brokers keep their data: the disk that is measured.
    directory: Path
    out: Path
    seconds: float = 20.0
    warmup: float = 5.0
    reps: int = 5
    #: Sizes of actions are divided by this (--quick).
    shrink: int = 1
    #: Others may use this much of one core, and the hypervisor keep this much of one from us.
    busy_max: float = 0.10
    steal_max: float = 0.10
    #: Times that a run may be repeated since others were busy.
    repeats_max: int = 3
    client_cpus: tuple = ()
    #: What stands before each run.
    say: object = print
    #: After a start, and after the end. 0 for tests.
    pause_s: float = 1.0
    #: What has to be free on the disk before each run.
    disk_bytes: int = DISK_BYTES


@dataclass
class Context:
    """What one run of one row is given, and what it leaves."""

    options: Options
    system: object
    directory: Path
    prefix: Path
    steps: dict = field(default_factory=dict)
    extra: dict = field(default_factory=dict)
    skipped: dict = field(default_factory=dict)
    commands: list = field(default_factory=list)

    def scaled(self, amount):
        return max(1, int(amount // self.options.shrink))

    def skip(self, part, why):
        self.skipped[part] = why

    def client(self):
        if self.options.client_cpus:
            os.sched_setaffinity(0, self.options.client_cpus)
        host.die_with_parent()

    def camus(self, *words, broker, timeout=BENCH_PATIENCE_S):
        command = [str(w) for w in (self.options.binary, *words, "--bootstrap", broker.address)]
        env = {k: v for k, v in os.environ.items() if not k.startswith("CAMUS_")}
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            preexec_fn=self.client,
            env=env,
        )

    def bench(self, broker, step, floor=True):
        """Runs one step and keeps its JSON, also as a file beside the run's."""
        words = step.words(self.options.seconds, self.options.warmup)
        self.commands.append(" ".join(["camus bench", *words]))
        if "--topic" not in words:
            # One of its own: the last step's may still be on its way out.
            words += ["--topic", f"bench-{step.name}".replace("_", "-")]
        out = self.prefix.with_name(f"{self.prefix.name}-{step.name}.bench.json")
        words += ["--broker-pid", broker.pid, "--data-dir", broker.data_dir, "--json", out]
        if floor:
            # Beside the data: the same file system. It is removed by the one who makes it.
            words += ["--floor-dir", self.directory]
        patience = BENCH_PATIENCE_S + 2 * (self.options.seconds + self.options.warmup)
        done = self.camus("bench", *words, broker=broker, timeout=patience)
        if done.returncode or not out.exists():
            raise BenchFailed(f"camus bench {' '.join(map(str, words))}: {(done.stderr or done.stdout)[-1500:]}")
        self.steps[step.name] = json.loads(out.read_text())
        errors = self.steps[step.name].get("errors") or {}
        if sum(errors.values()):
            self.extra.setdefault("errors", {})[step.name] = errors


def order(systems, repetition):
    """A B C, then B C A, then C A B: nobody is always the first."""
    turn = repetition % len(systems)
    return [*systems[turn:], *systems[:turn]]


def one(options, row, system, repetition, attempt):
    """One run: the record that is stored."""
    folder = options.out / "raw" / row.name
    folder.mkdir(parents=True, exist_ok=True)
    prefix = folder / f"{system.name}-{repetition}{chr(96 + attempt) if attempt else ''}"
    directory = options.directory / f"{row.name}-{system.name}-{repetition}-{attempt}"
    context = Context(options, system, directory, prefix)
    record = {
        "row": row.name,
        "system": system.name,
        "repetition": repetition,
        "attempt": attempt,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "load_before": host.load_average(),
        "failed": None,
    }
    watch = None
    try:
        with system.broker(directory, row.serve) if row.serve else system.broker(directory) as broker:
            broker.start()
            time.sleep(options.pause_s)
            watch = host.Watch(lambda: [os.getpid()])
            if row.action:
                actions.run(context, broker, row)
            else:
                for step in row.steps:
                    floor = step.floor if isinstance(step.floor, bool) else system.name in step.floor
                    context.bench(broker, step, floor=floor)
                    time.sleep(step.rest_s if options.pause_s else 0)
            busy = watch.end()
    except (BenchFailed, brokers.DidNotStart, wire.Broken, OSError, subprocess.TimeoutExpired, ValueError) as error:
        record["failed"] = f"{type(error).__name__}: {error}".replace(str(options.directory), "DIR")
        busy = watch.end() if watch else None
    # What was removed is given back to the disk now, and not during the next one's run.
    if options.pause_s:
        os.sync()
        time.sleep(options.pause_s)
    record |= {
        "load_after": host.load_average(),
        "busy": vars(busy) if busy else None,
        "busy_share": round(busy.share(), 3) if busy else 0.0,
        "steal_share": round(busy.steal_share(), 3) if busy else 0.0,
        "set_aside": False,
        "commands": context.commands,
        "skipped": context.skipped,
        "steps": context.steps,
        "extra": context.extra,
    }
    record["figures"] = figures(row, record)
    return record, prefix.with_name(prefix.name + ".json")


def figures(row, record):
    run = rows.Run(record)
    return {figure.key: figure.of(run) for figure in row.figures}


def store(record, path):
    path.write_text(json.dumps(record, indent=1) + "\n")


def with_repeats(options, row, system, repetition, run=one):
    """One run that nobody disturbed; after the last try the least disturbed one, marked. Returns all records."""
    tried = []
    for attempt in range(options.repeats_max + 1):
        record, path = run(options, row, system, repetition, attempt)
        tried.append((record, path))
        quiet = record["busy_share"] <= options.busy_max and record["steal_share"] <= options.steal_max
        if record["failed"] or quiet:
            break
        who = ", ".join((record["busy"] or {}).get("names") or []) or "unknown"
        record["set_aside"] = True
        shares = f"{record['busy_share']:.0%} of a core ({who}), the hypervisor {record['steal_share']:.0%}"
        options.say(f"    others used {shares}; attempt {attempt + 1}")
    kept = [record for record, _ in tried if not record["set_aside"]]
    if not kept:
        least = min((record for record, _ in tried), key=lambda r: r["busy_share"] + r["steal_share"])
        least["set_aside"] = False
        least["disturbed"] = True
    for record, path in tried:
        store(record, path)
    return [record for record, _ in tried]


def run_row(options, row, systems, run=one):
    """All repetitions of a row on all systems."""
    records = []
    systems = [system for system in systems if system.name in row.systems]
    reps = min(row.reps or options.reps, options.reps)
    gave_up = set()
    forget(options, row, systems)
    for repetition in range(reps):
        for system in order(systems, repetition):
            if system.name in gave_up:
                continue
            if host.free_bytes(options.directory) < options.disk_bytes:
                raise brokers.Missing(f"{options.directory} has less than {options.disk_bytes // 10**9} GB free")
            options.say(f"{row.name} {repetition + 1}/{reps} {system.name} (load {host.load_average()})")
            done = with_repeats(options, row, system, repetition, run)
            records += done
            last = done[-1]
            for part, why in last["skipped"].items():
                options.say(f"    skipped {part}: {why}")
            if last["failed"]:
                options.say(f"    failed: {last['failed'][:600]}")
                if system.name in row.optional_on:
                    gave_up.add(system.name)
            else:
                options.say("    " + short(row, last))
    return records


def forget(options, row, systems):
    """An earlier measurement in the same results is replaced, and not mixed with this one."""
    for system in systems:
        for path in (options.out / "raw" / row.name).glob("*.json"):
            if re.fullmatch(rf"{re.escape(system.name)}-\d+[a-z]?(-\w+\.bench)?\.json", path.name):
                path.unlink()


def short(row, record):
    """The first figures, for who watches."""
    shown = [(f, record["figures"].get(f.key)) for f in row.figures[:6]]
    return ", ".join(f"{f.label} {tables.number(v)} {f.unit}".strip() for f, v in shown if v is not None)


def load(out):
    """All records of a results directory."""
    paths = sorted(p for p in (Path(out) / "raw").glob("*/*.json") if not p.name.endswith(".bench.json"))
    return [json.loads(path.read_text()) for path in paths]
