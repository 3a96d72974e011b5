"""From records to Markdown: medians and spread, verdicts, tables, plots, and the page between its markers."""

import json
import re
import statistics
import subprocess
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path

BEGIN = "<!-- figures: written by benches/vs-kafka; change the script, not these lines -->"
END = "<!-- figures: end -->"
TITLES = {"camus": "Camus", "kafka-fsync": "Kafka, fsync an append", "kafka": "Kafka, stock"}


@dataclass(frozen=True)
class Spread:
    median: float
    low: float
    high: float
    runs: int


def spread(values):
    values = [v for v in values if v is not None]
    return Spread(statistics.median(values), min(values), max(values), len(values)) if values else None


class Medians:
    """Of every figure of every row and system, over the runs that count."""

    def __init__(self, records):
        self.records = records
        found = {}
        for record in records:
            if not record["set_aside"] and not record["failed"]:
                for key, value in record["figures"].items():
                    found.setdefault((record["row"], record["system"], key), []).append(value)
        self.spreads = {key: spread(values) for key, values in found.items()}

    def of(self, row, system, key):
        return self.spreads.get((row, system, key))


@dataclass(frozen=True)
class Verdict:
    #: None: could not be judged, and why.
    held: bool | None
    text: str


def judge(medians, row, bar):
    mine = medians.of(row.name, "camus", bar.figure)
    if mine is None:
        return Verdict(None, "not measured")
    factor = bar.at_most if bar.at_most is not None else bar.at_least
    limit = factor
    if bar.system:
        theirs = {name: medians.of(name, bar.system, bar.figure) for name in bar.rows or (row.name,)}
        theirs = {name: found.median for name, found in theirs.items() if found}
        if not theirs or (bar.rows and set(theirs) == {row.name}):
            return Verdict(None, f"nothing to compare with ({bar.system})")
        limit = factor * min(theirs.values())
    held = mine.median <= limit if bar.at_most is not None else mine.median >= limit
    mine = mine.median
    shown = f"{number(mine)}, limit {number(limit)}"
    if number(mine) == number(limit):
        shown = f"{mine:.6g}, limit {limit:.6g}"
    if held:
        return Verdict(True, f"held: {shown}")
    by = abs(mine - limit)
    share = f" ({by / abs(limit):.1%})" if limit else ""
    return Verdict(False, f"**missed by {number(by)}{share}**: {shown}")


def number(value):
    """Three significant digits, thousands with commas."""
    if value is None:
        return "-"
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    if size >= 1:
        return f"{value:.2f}"
    return f"{value:.3f}" if value else "0"


def cell(spread):
    if spread is None:
        return "-"
    if spread.runs == 1:
        return f"{number(spread.median)}"
    return f"{number(spread.median)} ({number(spread.low)} .. {number(spread.high)})"


def table(heads, lines):
    out = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join([*out, *("| " + " | ".join(line) + " |" for line in lines)])


def row_table(medians, row, systems):
    lines = []
    for figure in row.figures:
        unit = f", {figure.unit}" if figure.unit else ""
        cells = [cell(medians.of(row.name, system, figure.key)) for system in systems]
        if any(c != "-" for c in cells):
            lines.append([f"{figure.label}{unit}", *cells])
    return table(["figure", *(TITLES.get(s, s) for s in systems)], lines)


def bars_table(medians, row):
    return table(["bar", "verdict"], [[bar.text, judge(medians, row, bar).text] for bar in row.bars])


def summary(medians, rows, systems):
    """One line for each bar of each row: what it is about on every system, and whether it holds."""
    lines = []
    for row in rows:
        units = {figure.key: figure.unit for figure in row.figures}
        for bar in row.bars:
            verdict = judge(medians, row, bar)
            word = {True: "held", False: "**missed**", None: "-"}[verdict.held]
            cells = [cell(medians.of(row.name, system, bar.figure)) for system in systems]
            what = f"{bar.text}{f' ({units[bar.figure]})' if units[bar.figure] else ''}"
            lines.append([f"[{row.name}](#{row.name})", what, *cells, word])
    return table(["row", "bar for Camus", *(TITLES.get(s, s) for s in systems), ""], lines)


def section(medians, row, systems, plots):
    here = [s for s in systems if any(medians.of(row.name, s, f.key) for f in row.figures)]
    parts = [f"### {row.name}", wrapped(f"{row.title[0].upper()}{row.title[1:]}. `benches/vs-kafka --rows {row.name}`")]
    commands = [r["commands"] for r in medians.records if r["row"] == row.name and r.get("commands")]
    if commands:
        parts.append("```\n" + "\n".join(map(wrapped, dict.fromkeys(commands[0]))) + "\n```")
    parts += [row_table(medians, row, here), bars_table(medians, row)]
    if row.name in plots:
        parts.append(f"![latency distribution of {row.name}]({plots[row.name]})")
    notes = remarks(medians.records, row)
    return "\n\n".join(parts + (["\n".join(map(wrapped, notes))] if notes else []))


def remarks(records, row):
    """What is to be known of a row's runs besides its figures."""
    of_row = [r for r in records if r["row"] == row.name]
    notes = []
    for system in dict.fromkeys(r["system"] for r in of_row):
        mine = [r for r in of_row if r["system"] == system]
        title = TITLES.get(system, system)
        for why in dict.fromkeys(why for r in mine for why in r["skipped"].values()):
            notes.append(f"- {title}: skipped: {one_line(why)}")
        failed = [r for r in mine if r["failed"]]
        if failed:
            notes.append(f"- {title}: {len(failed)} of {len(mine)} runs failed: {one_line(failed[0]['failed'])}")
        errors = sum(sum(e.values()) for r in mine for e in (r["extra"].get("errors") or {}).values())
        if errors:
            notes.append(f"- {title}: {errors:,} requests were answered with an error")
    return notes


def one_line(text):
    return " ".join(without_paths(text).split())[:300].replace("|", "/")


def without_paths(text):
    """Where something lay on this machine is nobody's business."""
    return re.sub(r"(?<![\w:/.])/[\w./-]+", "PATH", text) if text else text


def set_aside(records):
    """The runs that do not count, and those that had to count although others were busy."""
    lines = []
    for r in records:
        if r["set_aside"] or r.get("disturbed"):
            who = ", ".join((r["busy"] or {}).get("names") or []) or "not seen by name"
            what = "set aside" if r["set_aside"] else "kept: the least disturbed"
            share = f"{r['busy_share']:.0%} and {r['steal_share']:.0%} of a core"
            name = f"{r['row']} {TITLES.get(r['system'], r['system'])} {r['repetition'] + 1}"
            lines.append([name, what, share, who.replace("|", "/"), str(r["load_before"])])
    if not lines:
        return "None: in no run did other processes or the hypervisor use more than the thresholds."
    return table(["run", "", "others, hypervisor used", "who", "load before"], lines)


def conditions(about):
    disk = about["host"]["disk"]
    lines = [
        ["measured", about["started"]],
        ["host", f"{about['host']['cpus']} CPUs, {about['host']['cpu']}, {about['host']['memory_bytes'] >> 30} GiB"],
        ["kernel", about["host"]["kernel"]],
        ["file system", about["host"]["file_system"]],
        ["disk", ", ".join(f"{k} {v}" for k, v in disk.items() if v) or "unknown"],
        *[[TITLES.get(name, name), what] for name, what in about["systems"].items()],
        ["client", about.get("client_is") or f"`camus bench` of the same binary, on the same host{about['client']}"],
        ["repetitions", about.get("repeated") or repeated(about)],
        ["load average before the runs", about["load"]],
        ["kept by the hypervisor, of a core", about["steal"]],
        ["set aside above", set_aside_above(about)],
    ]
    return table(["", ""], lines)


def repeated(about):
    return f"{about['reps']}, {about['seconds']:g} s each after {about['warmup']:g} s of warm-up"


def page(records, rows, systems, about, plots):
    """What stands between the markers."""
    medians = Medians(records)
    about = about | {"load": load_line(records), "steal": steal_line(records)}
    warning = ["**A smoke test (`--quick`): these are no figures.**"] if about.get("quick") else []
    parts = [
        *warning,
        "## Conditions",
        conditions(about),
        "## The bars",
        summary(medians, rows, systems),
        "## Rows",
        "Medians of the runs that count, the smallest and the largest in brackets.",
        *(section(medians, row, systems, plots) for row in rows),
        "## Runs with another process busy",
        set_aside(records),
    ]
    return "\n\n".join(parts)


def load_line(records):
    found = spread([r["load_before"] for r in records if not r["set_aside"]])
    return f"{found.median:.2f} ({found.low:.2f} .. {found.high:.2f})" if found else "-"


def steal_line(records):
    found = spread([r["steal_share"] for r in records if not r["set_aside"]])
    return f"{found.median:.0%} ({found.low:.0%} .. {found.high:.0%})" if found else "-"


def set_aside_above(about):
    return f"{about['busy_max']:.0%} of a core used by other processes, {about['steal_max']:.0%} by the hypervisor"


def between_markers(text, figures, begin=BEGIN, end=END):
    """The page with its figures replaced; what stands around the markers stays."""
    before, first, rest = text.partition(begin)
    _, last, after = rest.partition(end)
    if not first or not last:
        raise ValueError(f"the page has no markers: {begin} and {end}")
    return f"{before}{begin}\n\n{figures}\n\n{end}{after}"


def middle_run(records, row, system):
    """The counted run whose p99 is the median one: it is drawn."""
    mine = [r for r in records if (r["row"], r["system"]) == (row.name, system) and not r["set_aside"]]
    mine = [r for r in mine if not r["failed"] and row.plot in r["steps"]]
    mine.sort(key=lambda r: r["figures"].get("p99") or r["figures"].get("p999") or 0)
    return mine[(len(mine) - 1) // 2] if mine else None


def plot(binary, records, row, systems, out):
    """`camus bench plot` of one run of each system. The SVG's path, or None."""
    chosen = [(system, middle_run(records, row, system)) for system in systems] if row.plot else []
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for system, record in chosen:
            if record:
                # A curve is labelled with the name of its file.
                files.append(Path(folder) / f"{TITLES.get(system, system)}.json")
                files[-1].write_text(json.dumps(record["steps"][row.plot]))
        if not files:
            return None
        done = subprocess.run([binary, "bench", "plot", out, *files], capture_output=True, text=True)
    return Path(out) if done.returncode == 0 and Path(out).exists() else None


def without_curves(records):
    """What is kept beside the page: every run with its figures, without the distributions and time lines."""
    kept = []
    for record in records:
        steps = {}
        for name, step in record["steps"].items():
            steps[name] = {key: value for key, value in step.items() if key not in ("distribution", "timeline")}
            asked = step.get("settings") or {}
            # Where it lay on this machine, and under which number it ran, is nobody's business.
            steps[name]["settings"] = {key: value for key, value in asked.items() if key.strip("-") not in LOCAL}
        kept.append(record | {"steps": steps, "failed": without_paths(record["failed"])})
    return kept


LOCAL = ("bootstrap", "broker_pid", "data_dir", "floor_dir", "json", "broker-pid", "data-dir", "floor-dir")


def wrapped(text, columns=118):
    """A paragraph, a list's point or a shell's command, as wide as the house's pages are."""
    command = text.startswith("camus ")
    lines = textwrap.wrap(
        text,
        columns - 2 if command else columns,
        subsequent_indent="    " if command else "  " if text.startswith("- ") else "",
        break_on_hyphens=False,
        break_long_words=False,
    )
    return (" \\\n" if command else "\n").join(lines)
