"""A bench of a few rows beside vs-kafka: its turns, its raw results, its section of docs/benchmarks.md.

What benches/rebalance and benches/commits have in common. Rows, turns, medians and what is set aside are those of
vs-kafka (rows.py, runner.py, tables.py); the page's section stands between markers with the bench's own name.
"""

import json
import os
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from . import brokers, host, runner, tables

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "benchmarks.md"
DISK_BYTES = 3 * 10**9


@dataclass(frozen=True)
class Bench:
    #: Of its command, its results and its markers.
    name: str
    #: What asks, for the conditions.
    client_is: str
    #: How often and for how long, as a format of `about`.
    repeated: str

    @property
    def begin(self):
        return f"<!-- {self.name}: written by benches/{self.name}; change the script, not these lines -->"

    @property
    def end(self):
        return f"<!-- {self.name}: end -->"

    def fail(self, text):
        sys.exit(f"{self.name}: {text}")


def target():
    return Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")


def arguments(bench, parse, systems):
    """Those that both have; the seconds are for who measures by time."""
    add = parse.add_argument
    add("--rows", default="", help="some of the rows, with commas (default: all)")
    add("--list", action="store_true", help="print the rows with their bars and end")
    add("--systems", default=systems, help="which systems (default: %(default)s)")
    add("--reps", type=int, default=5, metavar="N", help="runs of each row on each system (default: 5)")
    add("--quick", action="store_true", help="one short run of each, small sizes: a smoke test, no figures")
    add("--out", type=Path, metavar="DIR", help=f"results (default: target/{bench.name}/DATE)")
    add("--dir", type=Path, metavar="DIR", help="where brokers keep their data (default: OUT/data)")
    add("--docs", type=Path, metavar="FILE", help="put the figures between the markers of this page as well")
    add("--camus", type=Path, default=target() / "release" / "camus", metavar="BIN", help="default: %(default)s")
    add("--cores", default="1", help="serve --cores of Camus (default: 1: two CPUs, and the client needs one)")
    add("--serve-arg", action="append", default=[], metavar="ARG", help="one more argument for camus serve; repeatable")
    add("--busy-max", type=float, default=0.10, metavar="X", help="others may use this much of a core (default: 0.1)")
    add("--steal-max", type=float, default=0.10, metavar="X", help="the hypervisor may keep this much (default: 0.1)")
    add("--repeats", type=int, default=3, metavar="N", help="times that a disturbed run is repeated (default: 3)")
    add("--tables-only", action="store_true", help="run nothing: make the section from what is in --out")


def chosen(rows, names):
    """Rows by name, in their order; `join` stands for all that begin with `join_`. All where nothing is said."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [n for n in wanted if not any(r.name == n or r.name.startswith(n + "_") for r in rows)]
    if unknown:
        raise ValueError(f"there is no row {', '.join(unknown)}: {', '.join(row.name for row in rows)}")
    return [r for r in rows if not wanted or any(r.name == n or r.name.startswith(n + "_") for n in wanted)]


def systems_of(bench, args):
    names = [name.strip() for name in args.systems.split(",") if name.strip()]
    try:
        return brokers.systems(names, args.camus.resolve(), args.cores, args.serve_arg)
    except brokers.Missing as error:
        bench.fail(error)


def out_of(bench, args):
    return (args.out or target() / bench.name / datetime.now(UTC).strftime("%Y-%m-%dT%H%M")).resolve()


def measure(bench, args, rows, systems, out, seconds=0.0, warmup=0.0):
    out.mkdir(parents=True, exist_ok=True)
    directory = (args.dir or out / "data").resolve()
    directory.mkdir(parents=True, exist_ok=True)
    options = runner.Options(
        binary=args.camus.resolve(),
        directory=directory,
        out=out,
        seconds=seconds,
        warmup=warmup,
        reps=1 if args.quick else args.reps,
        shrink=10 if args.quick else 1,
        busy_max=args.busy_max,
        steal_max=args.steal_max,
        repeats_max=0 if args.quick else args.repeats,
        say=lambda text: print(time.strftime("%H:%M:%S"), text, flush=True),
        disk_bytes=DISK_BYTES,
    )
    about = {
        "started": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "host": host.describe(directory),
        "systems": {system.name: system.about() for system in systems},
        "reps": options.reps,
        "seconds": seconds,
        "warmup": warmup,
        "busy_max": options.busy_max,
        "steal_max": options.steal_max,
        "quick": args.quick,
    }
    before = out / "about.json"
    if before.exists():
        # Rows may be measured one after the other into the same results.
        earlier = json.loads(before.read_text())
        about["systems"] = earlier["systems"] | about["systems"]
        about["reps"] = max(earlier["reps"], about["reps"])
        about["quick"] |= earlier["quick"]
        about["started"] = earlier["started"].split(" to ")[0] + f" to {about['started']}"
    (out / "about.json").write_text(json.dumps(about, indent=1) + "\n")
    print(f"results in {out}, data in {directory}", flush=True)
    # The end by a signal is as tidy as that by Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        for row in rows:
            runner.run_row(options, row, systems)
    except brokers.Missing as error:
        bench.fail(error)
    except KeyboardInterrupt:
        print("stopped: what is there is written", file=sys.stderr)
    finally:
        if not args.dir:
            shutil.rmtree(directory, ignore_errors=True)


def write(bench, args, rows, out):
    """The section as a file of its own in the results; with --docs in the page, with the raw data beside it."""
    try:
        about = json.loads((out / "about.json").read_text())
    except OSError as error:
        bench.fail(f"{out} has no results: {error}")
    records = runner.load(out)
    there = {record["row"] for record in records}
    done = [row for row in rows if row.name in there]
    if not done:
        bench.fail(f"{out} has no results of runs")
    text = section(bench, records, done, about)
    (out / f"{bench.name}.md").write_text(text + "\n")
    print(f"wrote {out / bench.name}.md")
    if args.docs:
        page = args.docs.resolve()
        page.write_text(tables.between_markers(page.read_text(), text, bench.begin, bench.end))
        beside = page.parent / "benchmarks"
        beside.mkdir(parents=True, exist_ok=True)
        kept = json.dumps(tables.without_curves(records), separators=(",", ":"))
        (beside / f"{bench.name}.json").write_text(kept + "\n")
        print(f"wrote {page}")
    print("\n" + text)
    verdicts = [tables.judge(tables.Medians(records), row, bar).held for row in done for bar in row.bars]
    if verdicts:
        missed, unjudged = verdicts.count(False), verdicts.count(None)
        print(f"bars: {verdicts.count(True)} held, {missed} missed, {unjudged} not judged")
    if any(record["failed"] and not record["set_aside"] for record in records):
        bench.fail("some runs failed; the section names them")
    return False not in verdicts


def section(bench, records, rows, about):
    """What stands between the markers."""
    medians = tables.Medians(records)
    names = {record["system"] for record in records}
    systems = [name for name in tables.TITLES if name in names]
    about = about | {"client_is": bench.client_is, "repeated": bench.repeated.format(**about)}
    about |= {"load": tables.load_line(records), "steal": tables.steal_line(records)}
    warning = ["**A smoke test (`--quick`): these are no figures.**"] if about.get("quick") else []
    parts = [*warning, tables.conditions(about)]
    parts.append("Medians of the runs that count, the smallest and the largest in brackets.")
    for row in rows:
        here = [s for s in systems if any(medians.of(row.name, s, f.key) for f in row.figures)]
        title = f"{row.title[0].upper()}{row.title[1:]}. `benches/{bench.name} --rows {row.name}`"
        parts += [f"### {row.name}", tables.wrapped(title)]
        if row.serve:
            parts.append(tables.wrapped(f"On all systems: {', '.join(f'`{setting}`' for setting in row.serve)}."))
        parts.append(tables.row_table(medians, row, here) if here else "No run ended well.")
        if row.bars:
            parts.append(tables.bars_table(medians, row))
        if notes := tables.remarks(records, row):
            parts.append("\n".join(map(tables.wrapped, notes)))
    parts += ["Runs with another process busy:", tables.set_aside(records)]
    return "\n\n".join(parts)
