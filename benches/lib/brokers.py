"""A broker as a process: started on an empty directory, waited for, killed, started again, taken away.

`System` says how; `Broker` is one that runs. All three systems have the same interface, so that no row knows which one
it measures.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from . import host, wire

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
KAFKA_VERSION = "4.4.0"
POM = HERE.parent / "kafka" / "pom.xml"
LOG4J = HERE.parent / "kafka" / "log4j2.xml"
READY = re.compile(r"(?m)^camus ready kafka=(\S+) http=(\S+) cluster=(\S+)\n")
START_S = 120.0
STOP_S = 30.0


class Missing(Exception):
    """Something that the comparison needs is not on this machine: what, and what to do."""


class DidNotStart(Exception):
    """The broker ended, or was not ready in time; with the end of what it printed."""


@dataclass
class Broker:
    """One running broker. `start` again after `kill`: same directory, same port."""

    name: str
    directory: Path
    command: list
    port: int
    #: What `start` waits for: a function of the broker that returns whether it is ready.
    is_ready: object
    #: Environment variables that it is not to see.
    hidden: tuple = ()
    process: object = None
    start_s: float = 0.0
    http: str = ""
    runs: int = 0
    log: Path = None
    #: Run once, before the first start: a command that makes the data directory.
    before: list = field(default_factory=list)

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    @property
    def data_dir(self):
        return self.directory / "data"

    @property
    def pid(self):
        return self.process.pid

    def launch(self):
        """Starts the process and waits for nothing."""
        self.directory.mkdir(parents=True, exist_ok=True)
        env = {k: v for k, v in os.environ.items() if not k.startswith(self.hidden)} if self.hidden else None
        for command in self.before:
            made = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env)
            if made.returncode:
                raise DidNotStart(f"{self.name}: {' '.join(command[-4:])}:\n{(made.stdout + made.stderr)[-2000:]}")
        self.before = []
        self.runs += 1
        self.log = self.directory / f"run{self.runs}.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [str(word) for word in self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                env=env,
                preexec_fn=host.for_a_broker,
            )
        return self

    def start(self, seconds=START_S):
        begun = time.monotonic()
        self.launch()
        while not self.is_ready(self):
            status = self.process.poll()
            if status is not None:
                self.process = None
                raise DidNotStart(f"{self.name} ended with {status} before it was ready:\n{self.said()}")
            if time.monotonic() - begun > seconds:
                said = self.said()
                self.kill()
                raise DidNotStart(f"{self.name} was not ready within {seconds:.0f} s:\n{said}")
            time.sleep(0.01)
        self.start_s = time.monotonic() - begun
        return self

    def said(self):
        try:
            return self.log.read_text(errors="replace")[-3000:]
        except OSError:
            return ""

    def kill(self):
        """SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self):
        """SIGTERM, and SIGKILL when that does not end it in time."""
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_S)
                self.process = None
            except subprocess.TimeoutExpired:
                self.kill()

    def away(self):
        """Ends it and removes all that it wrote."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.away()


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def listens(broker):
    """It answers a client. (Kafka opens its port before it can.)"""
    try:
        with wire.Conn(broker.address, timeout=2.0) as conn:
            return conn.brokers() > 0
    except (wire.Broken, OSError):
        return False


class Camus:
    """`camus serve` with its defaults, on one core."""

    name = "camus"
    title = "Camus"

    def __init__(self, binary, cores="1", args=()):
        self.binary, self.cores, self.args = Path(binary), cores, list(args)
        if not os.access(self.binary, os.X_OK):
            raise Missing(f"there is no camus at {self.binary}: cargo build --release -p camus, or --camus BIN")

    def broker(self, directory, more=()):
        """`more`: settings as KEY=VALUE, besides those of all its brokers."""
        port, http = free_port(), free_port()
        directory = Path(directory)
        command = [self.binary, "serve", "--data-dir", directory / "data", "--listen", f"127.0.0.1:{port}"]
        command += ["--http", f"127.0.0.1:{http}", "--cores", self.cores, *self.args]
        command += [word for setting in more for word in ("--set", setting)]
        broker = Broker(self.name, directory, command, port, said_ready, hidden=("CAMUS_",))
        broker.http = f"127.0.0.1:{http}"
        return broker

    def memory_bytes(self):
        """camus.memory where nothing is set: the smaller of a quarter of the memory and 1 GiB a core."""
        asked = [word for word in self.args if str(word).startswith("camus.memory=")]
        if asked:
            number, unit = re.fullmatch(r"camus\.memory=(\d+)\s*([KMGT]?)i?B?", asked[-1]).groups()
            return int(number) << {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}[unit]
        cores = int(self.cores) if self.cores.isdigit() else len([c for c in self.cores.split(",") if c])
        return min(host.memory_bytes() // 4, cores << 30)

    def about(self):
        version = subprocess.run([self.binary, "--version"], capture_output=True, text=True).stdout.strip()
        return f"{version}, --cores {self.cores} {' '.join(map(str, self.args))}".rstrip()

    def knows(self, setting):
        return subprocess.run([self.binary, "settings", setting], capture_output=True).returncode == 0


def said_ready(broker):
    return bool(READY.search(broker.log.read_text(errors="replace")))


# As Kafka 4.4's bin/kafka-server-start.sh and kafka-run-class.sh set them.
HEAP = ["-Xmx1g", "-Xms1g"]
JVM = [
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true",
]
# As Kafka 4.4's config/server.properties sets them, for one broker that is its own controller.
PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs={data}
num.partitions=1
num.recovery.threads.per.data.dir=2
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""


class Kafka:
    """Apache Kafka as its own configuration starts it, or with one setting more."""

    def __init__(self, name, title, settings, cache):
        self.name, self.title, self.settings = name, title, settings
        self.java = java17()
        self.jars = fetch(cache)

    def run(self, heap, *words):
        return [self.java, *heap, *JVM, f"-Dlog4j2.configurationFile={LOG4J}", "-cp", f"{self.jars}/*", *words]

    def broker(self, directory, more=()):
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        port, controller = free_port(), free_port()
        text = PROPERTIES.format(port=port, controller=controller, data=directory / "data")
        text += "".join(f"{setting}\n" for setting in [*self.settings, *more])
        properties = directory / "server.properties"
        properties.write_text(text)
        cluster = "4L6g3nShT-eMCtK--X86sw"
        format_ = ["kafka.tools.StorageTool", "format", "--standalone", "-t", cluster, "-c", str(properties)]
        broker = Broker(self.name, directory, self.run(HEAP, "kafka.Kafka", properties), port, listens)
        broker.before = [self.run(["-Xmx256m"], *format_)]
        return broker

    def about(self):
        asked = ", ".join(self.settings)
        return f"Apache Kafka {KAFKA_VERSION}, {' '.join(HEAP)} G1{', ' + asked if asked else ', stock'}"


def java17():
    java = shutil.which("java") or ""
    home = os.environ.get("JAVA_HOME")
    if home and os.access(Path(home) / "bin" / "java", os.X_OK):
        java = str(Path(home) / "bin" / "java")
    if not java:
        raise Missing("there is no java: Kafka needs Java 17 (Debian: apt-get install openjdk-17-jre-headless)")
    said = subprocess.run([java, "-version"], capture_output=True, text=True).stderr
    found = re.search(r'version "(\d+)', said)
    if not found or int(found[1]) < 17:
        raise Missing(f"{java} is {said.splitlines()[0] if said else 'unknown'}: Kafka needs Java 17 or newer")
    return java


def cache_dir():
    """Where jars are kept between runs."""
    target = os.environ.get("CARGO_TARGET_DIR")
    if target or (ROOT / "target").is_dir():
        return Path(target or ROOT / "target") / f"kafka-{KAFKA_VERSION}"
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "camus-benches" / f"kafka-{KAFKA_VERSION}"


def fetch(cache):
    """Kafka's jars by benches/kafka/pom.xml, once."""
    jars = Path(cache) / "libs"
    if (Path(cache) / "complete").exists():
        return jars
    mvn = shutil.which("mvn")
    if not mvn:
        raise Missing("there is no mvn to fetch Kafka with (Debian: apt-get install maven), or --systems camus")
    jars.mkdir(parents=True, exist_ok=True)
    print(f"fetching Kafka {KAFKA_VERSION} into {jars}", flush=True)
    command = [mvn, "-q", "-B", "-f", POM, "dependency:copy-dependencies", f"-DoutputDirectory={jars.resolve()}"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode or not (jars / f"kafka_2.13-{KAFKA_VERSION}.jar").exists():
        raise Missing(f"mvn could not fetch Kafka:\n{(done.stdout + done.stderr)[-1500:]}")
    (Path(cache) / "complete").touch()
    return jars


def systems(names, binary, cores, args, cache=None):
    """By name, in the order in which the tables show them."""
    cache = cache or cache_dir()
    makers = {
        "camus": lambda: Camus(binary, cores, args),
        "kafka-fsync": lambda: Kafka(
            "kafka-fsync", "Kafka, fsync an append", ["log.flush.interval.messages=1"], cache
        ),
        "kafka": lambda: Kafka("kafka", "Kafka, stock (does not flush)", [], cache),
    }
    unknown = set(names) - set(makers)
    if unknown:
        raise Missing(f"there is no system {', '.join(sorted(unknown))}: {', '.join(makers)}")
    return [make() for name, make in makers.items() if name in names]
