"""The table of docs/benchmarks.md as data: what is run, what is read from it, which bar it has to meet.

A row is run on each system by its steps (calls of `camus bench`) or by an action (by its name in actions.py, or a
function; other benches have rows of their own). A figure is a function
of one run; a bar is one of Camus's figures beside a number, or beside what another system has for the same figure.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

MIB = 1 << 20
STOCK, FSYNC = "kafka", "kafka-fsync"


@dataclass(frozen=True)
class Step:
    """One call of `camus bench`."""

    name: str
    mode: str
    args: tuple
    #: Share of --seconds that it measures, and the most it may take, s.
    share: float = 1.0
    most_s: float = 120.0
    #: Whether the first seconds are left out (--warmup).
    warm: bool = True
    #: Whether the floor is measured around it: on all systems, or on those whose bars ask for it.
    floor: bool | tuple = True
    #: Rest behind it, s: what it deleted is given back.
    rest_s: float = 0.0

    def words(self, seconds, warmup):
        seconds = min(seconds * self.share, self.most_s)
        words = [str(word) for word in self.args]
        return [self.mode, *words, "--duration-s", f"{seconds:g}", "--warmup-s", f"{warmup if self.warm else 0:g}"]


class Run:
    """One system's run of one row: the JSON of its steps, and what an action found."""

    def __init__(self, stored):
        self.stored = stored
        self.steps, self.extra = stored.get("steps", {}), stored.get("extra", {})

    def get(self, path):
        """`steady.latency_us.p50`; None where it was not measured."""
        first, *rest = path.split(".")
        at = self.extra if first == "extra" else self.steps.get(first)
        for key in rest:
            at = at.get(key) if isinstance(at, dict) else None
        return at

    def floor(self, key, step=None):
        """Of this run: the mean of before and after, of all its steps."""
        steps = [self.steps[step]] if step else self.steps.values()
        found = []
        for one in steps:
            for when in ("before", "after"):
                at = ((one or {}).get("floor") or {}).get(when) or {}
                for part in key.split("."):
                    at = at.get(part) if isinstance(at, dict) else None
                if at is not None:
                    found.append(at)
        return sum(found) / len(found) if found else None


@dataclass(frozen=True)
class Figure:
    key: str
    label: str
    unit: str
    of: Callable[[Run], float | None]


@dataclass(frozen=True)
class Bar:
    """What Camus's median of `figure` is held against: a number, or a factor of another system's median."""

    text: str
    figure: str
    at_most: float | None = None
    at_least: float | None = None
    system: str | None = None
    #: The rows of the other medians, of which the least counts (default: this row).
    rows: tuple = ()


@dataclass(frozen=True)
class Row:
    name: str
    title: str
    figures: tuple
    bars: tuple
    steps: tuple = ()
    action: str | Callable | None = None
    #: For the action.
    settings: dict = field(default_factory=dict)
    #: Settings of the broker beside its own, KEY=VALUE, the same on all systems.
    serve: tuple = ()
    #: The step whose distribution is drawn.
    plot: str | None = None
    #: Repetitions, where they are not --reps.
    reps: int | None = None
    systems: tuple = ("camus", FSYNC, STOCK)
    #: A system that can not is skipped with its reason, and that is no failure.
    optional_on: tuple = ()


def path(name, factor=1.0):
    def of(run):
        value = run.get(name)
        return None if value is None else value * factor

    return of


def floor(key, factor=1.0):
    def of(run):
        value = run.floor(key)
        return None if value is None else value * factor

    return of


def minus(a, b):
    def of(run):
        x, y = a(run), b(run)
        return None if x is None or y is None else x - y

    return of


def over(a, b):
    def of(run):
        x, y = a(run), b(run)
        return None if x is None or not y else x / y

    return of


def first_seconds(step, seconds, key="p99"):
    """The worst second of the first so many, ms: percentiles of seconds do not add up, so none is made of them."""

    def of(run):
        line = [s for s in (run.get(step) or {}).get("timeline") or [] if s["second"] < seconds and s.get(key)]
        return max(s[key] for s in line) / 1e3 if line else None

    return of


def percentiles(step):
    return tuple(
        Figure(key, label, "ms", path(f"{step}.latency_us.{key}", 1e-3))
        for key, label in [("p50", "p50"), ("p99", "p99"), ("p999", "p99.9"), ("max", "max")]
    )


FLOOR_P50, FLOOR_P99 = floor("write_4k_us.p50", 1e-3), floor("write_4k_us.p99", 1e-3)
FIRST_P99 = path("first.latency_us.p99", 1e-3)
FLOOR_SEQUENTIAL = floor("sequential_mb_per_s")
FLOOR = (
    Figure("floor_p50", "floor p50", "ms", FLOOR_P50),
    Figure("floor_p99", "floor p99", "ms", FLOOR_P99),
)
P50, P99 = path("steady.latency_us.p50", 1e-3), path("steady.latency_us.p99", 1e-3)
P50_OVER_FLOOR = minus(path("steady.latency_us.p50"), floor("write_4k_us.p50"))
CPU = (
    Figure("broker_us", "broker CPU a request", "us", path("steady.cpu.broker_us_per_request")),
    Figure("client_us", "client CPU a request", "us", path("steady.cpu.client_us_per_request")),
)
OWN_BYTES = over(path("steady.broker.write_bytes"), path("steady.bytes"))
DEVICE = (
    Figure("flushes", "flushes a request", "", path("steady.device.flushes_per_request")),
    Figure("device_bytes", "bytes to the device an acknowledged byte", "", path("steady.device.bytes_per_acked_byte")),
    # By the broker's own account (/proc/PID/io): without what other processes wrote meanwhile.
    Figure("own_bytes", "bytes written an acknowledged byte, the broker's account", "", OWN_BYTES),
)
THREE_TIMES_LOWER = (
    Bar("p50 at least 3 x lower than Kafka's with an fsync", "p50", at_most=1 / 3, system=FSYNC),
    Bar("p99 at least 3 x lower than Kafka's with an fsync", "p99", at_most=1 / 3, system=FSYNC),
)

LOAD_ARGS = ("--connections", 8, "--in-flight", 5, "--batch-bytes", 64 * 1024, "--record-bytes", 1024)


def before(partitions, seconds):
    """The life of a broker until its disk is in use, and the warm-up: a JVM is warm, and Camus's log has segments that
    were once written; the first use of each costs its length in zeros. The topic is deleted behind it."""
    args = (*LOAD_ARGS, "--partitions", partitions)
    return Step("before", "produce", args, most_s=seconds, warm=False, floor=False, rest_s=5.0)


SINGLE_ARGS = ("--connections", 1, "--in-flight", 1, "--partitions", 1, "--record-bytes", 1024)
SINGLE = Row(
    name="single",
    title="one 1 KiB produce at a time, acks=all, 1 connection, 1 in flight",
    steps=(before(1, 1.5), Step("steady", "produce", SINGLE_ARGS)),
    figures=(
        *percentiles("steady"),
        *FLOOR,
        Figure("p50_over_floor", "p50 beyond the floor's", "us", P50_OVER_FLOOR),
        Figure("p99_of_floor", "p99 : floor's", "x", over(P99, FLOOR_P99)),
        Figure("per_s", "requests", "/s", path("steady.requests_per_s")),
        *CPU,
        *DEVICE,
    ),
    bars=(
        Bar("p50 <= floor p50 + 60 us", "p50_over_floor", at_most=60),
        Bar("p99 <= 2 x floor p99", "p99_of_floor", at_most=2),
        Bar("flushes a request <= 1.05", "flushes", at_most=1.05),
        Bar("bytes to the device an acknowledged byte <= 4.1", "device_bytes", at_most=4.1),
        *THREE_TIMES_LOWER,
    ),
    plot="steady",
)

OPEN_PARTITIONS = (1, 16, 256, 1000, 10000)
#: Their p99 is compared; 10,000 is measured once only, so it is held against Kafka's alone.
OPEN_NAMES = tuple(f"open_{partitions}" for partitions in OPEN_PARTITIONS if partitions <= 1000)
#: What "from the first request on" looks at.
FIRST_S = 5


def open_row(partitions):
    args = ("--rate", 500, "--partitions", partitions, "--record-bytes", 1024, "--connections", 1)
    if partitions >= 256:
        # A broker that collapses at first is measured, not given up.
        args += ("--timeout-s", 120)
    return Row(
        name=f"open_{partitions}",
        title=f"open loop, 500/s of 1 KiB over {partitions:,} partition{'s' if partitions > 1 else ''}",
        steps=(
            # On a topic that has just been made, the first request counted.
            Step("first", "open", args, share=1.0, most_s=FIRST_S, warm=False, floor=False),
            Step("steady", "open", args, floor=("camus",)),
        ),
        figures=(
            *percentiles("steady"),
            *FLOOR,
            Figure("p99_of_floor", "p99 : floor's", "x", over(P99, FLOOR_P99)),
            Figure("first_p50", f"p50 of the first {FIRST_S} s", "ms", path("first.latency_us.p50", 1e-3)),
            Figure("first_p99", f"p99 of the first {FIRST_S} s", "ms", FIRST_P99),
            Figure("first_ratio", f"p99 of the first {FIRST_S} s : after it", "x", over(FIRST_P99, P99)),
            Figure("first_worst", f"worst second's p99 of the first {FIRST_S}", "ms", first_seconds("first", FIRST_S)),
            Figure("first_max", f"max of the first {FIRST_S} s", "ms", path("first.latency_us.max", 1e-3)),
            *CPU,
        ),
        bars=(
            Bar("p50 at or below stock Kafka's, which does not flush", "p50", at_most=1.0, system=STOCK),
            Bar("p99 at or below stock Kafka's, which does not flush", "p99", at_most=1.0, system=STOCK),
            Bar("p99 within 1.3 x of each other, whatever the partitions", "p99", 1.3, system="camus", rows=OPEN_NAMES),
            Bar(f"p99 of the first {FIRST_S} s within 1.3 x of p99 after it", "first_ratio", at_most=1.3),
            *THREE_TIMES_LOWER,
        ),
        plot="steady",
        reps=1 if partitions >= 10000 else None,
        optional_on=(STOCK, FSYNC) if partitions >= 10000 else (),
    )


def load_row(partitions):
    args = (*LOAD_ARGS, "--partitions", partitions)
    return Row(
        name=f"load_{partitions}",
        title=f"8 connections x 5 in flight x 64 KiB batches, {partitions} partitions",
        # A broker keeps all that it was sent until the topic goes, and a core of Camus at most 8 GiB.
        steps=(before(partitions, 6), Step("steady", "produce", args, most_s=4, warm=False, floor=("camus",))),
        figures=(
            Figure("mb_per_s", "throughput", "MB/s", path("steady.mb_per_s")),
            Figure("floor_mb_per_s", "floor, sequential durable", "MB/s", FLOOR_SEQUENTIAL),
            Figure("of_floor", "of the floor", "%", over(path("steady.mb_per_s", 100), FLOOR_SEQUENTIAL)),
            Figure("cpu_per_gb", "broker CPU", "s/GB", path("steady.cpu.broker_s_per_gb")),
            Figure("client_per_gb", "client CPU", "s/GB", path("steady.cpu.client_s_per_gb")),
            *DEVICE,
            *percentiles("steady"),
        ),
        bars=(
            Bar("throughput >= 85 % of the floor's", "of_floor", at_least=85),
            Bar("broker CPU <= 1.2 s/GB", "cpu_per_gb", at_most=1.2),
            Bar("flushes a request <= 0.2", "flushes", at_most=0.2),
            Bar("bytes to the device an acknowledged byte <= 1.1", "device_bytes", at_most=1.1),
            Bar("throughput at least 2 x Kafka's with an fsync", "mb_per_s", at_least=2.0, system=FSYNC),
        ),
        plot="steady",
    )


E2E = Row(
    name="e2e",
    title="produce to consumer, end to end, at 500/s, beyond the produce latency",
    steps=(Step("steady", "e2e", ("--rate", 500, "--partitions", 1, "--record-bytes", 1024), floor=("camus",)),),
    figures=(
        Figure("beyond_p50", "p50 beyond produce's", "ms", minus(P50, path("steady.produce_latency_us.p50", 1e-3))),
        Figure("beyond_p99", "p99 beyond produce's", "ms", minus(P99, path("steady.produce_latency_us.p99", 1e-3))),
        *percentiles("steady"),
        Figure("produce_p50", "produce p50", "ms", path("steady.produce_latency_us.p50", 1e-3)),
        Figure("produce_p99", "produce p99", "ms", path("steady.produce_latency_us.p99", 1e-3)),
        *FLOOR,
    ),
    bars=(
        Bar("p50 <= 0.1 ms beyond the produce latency's", "beyond_p50", at_most=0.1),
        Bar("p99 <= 1 ms beyond the produce latency's", "beyond_p99", at_most=1.0),
    ),
    plot="steady",
)

FETCH = (
    Figure("mb_per_s", "throughput", "MB/s", path("steady.mb_per_s")),
    Figure("cpu_per_gb", "broker CPU", "s/GB", path("steady.cpu.broker_s_per_gb")),
    Figure("client_per_gb", "client CPU", "s/GB", path("steady.cpu.client_s_per_gb")),
)
FETCH_TAIL = Row(
    name="fetch_tail",
    title="fetch of a tail in memory: 200 MB, just produced",
    action="fetch_tail",
    settings={"fill_mb": 200},
    figures=FETCH,
    bars=tuple(
        bar
        for system, whose in ((STOCK, "stock Kafka's"), (FSYNC, "Kafka's with an fsync"))
        for bar in (
            Bar(f"throughput >= {whose}", "mb_per_s", at_least=1.0, system=system),
            Bar(f"broker CPU a GB <= {whose}", "cpu_per_gb", at_most=1.0, system=system),
        )
    ),
)
FETCH_COLD = Row(
    name="fetch_cold",
    title="fetch of 4 GiB from the log on the disk, nothing cached",
    action="fetch_cold",
    settings={"bytes": 4096 * MIB},
    figures=(
        *FETCH,
        Figure("floor_read", "floor, sequential O_DIRECT read", "MB/s", path("extra.floor_read_mb_per_s")),
        Figure("of_read", "of the floor", "%", over(path("steady.mb_per_s", 100), path("extra.floor_read_mb_per_s"))),
        Figure("restart_s", "start before it", "s", path("extra.start_s")),
    ),
    bars=(Bar("throughput >= 85 % of the disk's sequential read", "of_read", at_least=85),),
)


def idle_figures(name, label):
    return (
        Figure(f"{name}_rss", f"RSS, {label}", "MiB", path(f"extra.{name}.rss_bytes", 1 / MIB)),
        Figure(f"{name}_cpu", f"CPU, {label}", "% of a core", path(f"extra.{name}.cpu_percent")),
    )


IDLE = Row(
    name="idle",
    title="idle; with 10,000 idle partitions",
    action="idle",
    settings={"partitions": 10000, "seconds": 15},
    figures=(
        *idle_figures("empty", "empty"),
        *idle_figures("many", "10,000 partitions"),
        Figure("create_s", "making 10,000 partitions", "s", path("extra.create_s")),
    ),
    bars=(
        Bar("RSS empty <= 64 MiB", "empty_rss", at_most=64),
        Bar("CPU empty under 1 % of a core", "empty_cpu", at_most=1),
        Bar("RSS with 10,000 partitions <= 512 MiB", "many_rss", at_most=512),
        Bar("CPU with 10,000 partitions under 1 % of a core", "many_cpu", at_most=1),
    ),
)
RSS_OF_MEMORY = over(path("extra.rss_max_bytes"), path("extra.memory_bytes"))
RSS = Row(
    name="rss_after_load",
    title="after the load above: resident memory",
    action="rss_after_load",
    figures=(
        Figure("rss", "RSS, 5 s after", "MiB", path("extra.rss_bytes", 1 / MIB)),
        Figure("rss_max", "RSS, the most", "MiB", path("extra.rss_max_bytes", 1 / MIB)),
        Figure("memory", "camus.memory", "MiB", path("extra.memory_bytes", 1 / MIB)),
        Figure("rss_of_memory", "the most : camus.memory", "x", RSS_OF_MEMORY),
    ),
    bars=(Bar("RSS within camus.memory", "rss_of_memory", at_most=1.0),),
)
RESTART = Row(
    name="restart_1g",
    title="restart with 1 GiB of unsealed log after kill -9, until the first acknowledged produce",
    action="restart",
    settings={"bytes": 1024 * MIB},
    figures=(
        Figure("first_ack_s", "first acknowledged produce", "s", path("extra.first_ack_s")),
        Figure("ready_s", "says that it is ready", "s", path("extra.ready_s")),
    ),
    bars=(Bar("first acknowledged produce within 3 s", "first_ack_s", at_most=3.0),),
)
CHURN_RATIO = over(path("beside.latency_us.p999"), path("alone.latency_us.p999"))
CHURN = Row(
    name="churn",
    title="the first row while a topic of 1,000 partitions is created and deleted beside it",
    action="churn",
    settings={"partitions": 1000, "args": SINGLE_ARGS},
    figures=(
        Figure("ratio", "p99.9 : p99.9 without", "x", CHURN_RATIO),
        Figure("alone_p999", "p99.9 without", "ms", path("alone.latency_us.p999", 1e-3)),
        Figure("p999", "p99.9", "ms", path("beside.latency_us.p999", 1e-3)),
        Figure("p50", "p50", "ms", path("beside.latency_us.p50", 1e-3)),
        Figure("max", "max", "ms", path("beside.latency_us.max", 1e-3)),
        Figure("cycles", "topics made and deleted", "", path("extra.cycles")),
    ),
    bars=(Bar("p99.9 <= 3 x", "ratio", at_most=3.0),),
    plot="beside",
    # Kafka loses topics of its own, and connections, while 1,000 partitions come and go each second.
    optional_on=(STOCK, FSYNC),
)

ROWS = (
    SINGLE,
    *(open_row(partitions) for partitions in OPEN_PARTITIONS),
    load_row(8),
    load_row(256),
    E2E,
    FETCH_TAIL,
    FETCH_COLD,
    IDLE,
    RSS,
    RESTART,
    CHURN,
)
BY_NAME = {row.name: row for row in ROWS}


def chosen(names):
    """Rows by name, in the table's order; `open` and `load` stand for all of theirs."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [n for n in wanted if not any(re.fullmatch(rf"{re.escape(n)}(_\d+)?", row.name) for row in ROWS)]
    if unknown:
        raise ValueError(f"there is no row {', '.join(unknown)}: {', '.join(BY_NAME)}")
    return [row for row in ROWS if any(re.fullmatch(rf"{re.escape(n)}(_\d+)?", row.name) for n in wanted)]
