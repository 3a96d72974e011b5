"""The clients: how each is built and started, which version it is, and what it does not have.

A client is built into `target/clients` when its sources have changed since. What it lacks is by verb or by scenario,
each with the reason that is shown: a scenario that it lacks is skipped, a verb or a codec leaves out what asks for it.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from broker import ROOT
from process import brief

HERE = Path(__file__).resolve().parent
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
BUILD_S = 900
#: Light: a program lives for seconds, and several run beside each other.
JVM = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Dlog4j2.configurationFile={HERE}/java/log4j2.xml"]


class NotBuilt(Exception):
    """Why a client could not be built."""


def folder_of(name):
    return Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve() / "clients" / name


@dataclass
class Client:
    name: str
    title: str
    #: Of the folder, and of what is built: clients that are built together have the same.
    built_as: str
    #: Files below tests/clients whose change asks for a new build.
    sources: tuple
    #: Programs that must be on the machine, and the packages that have them.
    tools: dict
    build: object
    #: The program: of the folder where it was built.
    program: object
    env: dict = field(default_factory=dict)
    lacks: dict = field(default_factory=dict)
    #: Only these scenarios (None: all that are for everybody), and these besides.
    only: tuple | None = None
    also: tuple = ()
    #: Its user chooses the partition, and the timestamp, of a record; it says where a record was stored.
    places: bool = True
    times: bool = True
    reports: bool = True
    #: Commits what it has read when it ends, and nothing else can be asked of it.
    commits_by_reading: bool = False
    #: Fields of a record that it does not show as they are.
    hides: tuple = ()
    patience: float = 1.0

    @property
    def folder(self):
        return folder_of(self.built_as)

    @property
    def command(self):
        return self.program(self.folder)

    @property
    def codecs(self):
        return [codec for codec in CODECS if codec not in self.lacks]

    def missing(self):
        """What is not on the machine, and how to get it; or None."""
        gone = [f"{tool} ({package})" for tool, package in self.tools.items() if not shutil.which(tool)]
        return f"not on this machine: {', '.join(gone)}" if gone else None

    def digest(self):
        sum_ = hashlib.sha256()
        for source in self.sources:
            sum_.update(source.encode() + b"\0" + (HERE / source).read_bytes())
        return sum_.hexdigest()

    def prepare(self):
        """Builds it, if that was not done from these sources."""
        mark, now = self.folder / "built-from", self.digest()
        if mark.exists() and mark.read_text() == now:
            return
        print(f"building {self.built_as}", flush=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        try:
            self.build(self.folder)
        except subprocess.TimeoutExpired as error:
            raise NotBuilt(f"{error.cmd[0]} did not end within {BUILD_S} s") from None
        mark.write_text(now)


def sh(*words, cwd=None, env=None):
    done = subprocess.run(
        [str(word) for word in words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        timeout=BUILD_S,
    )
    if done.returncode:
        raise NotBuilt(f"{words[0]} ended with {done.returncode}: {brief(done.stdout + done.stderr, 1500)}")


def pinned(file, pattern):
    """The version that a file asks for."""
    return re.search(pattern, (HERE / file).read_text())[1]


# Python


def python(name, package, **more):
    requirements = f"python/{name.replace('-', '_')}.txt"
    version = pinned(requirements, f"(?m)^{package}==(.+)$")

    def build(folder):
        sh(sys.executable, "-m", "venv", folder / "venv")
        pip = [folder / "venv/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        sh(*pip, "-r", HERE / requirements)

    script = {"aiokafka": "aiokafka_.py"}.get(name, f"{name.replace('-', '_')}.py")
    return Client(
        name=package,
        title=f"{package} {version}",
        built_as=package,
        sources=(requirements,),
        tools={},
        build=build,
        program=lambda folder: [folder / "venv/bin/python", HERE / "python" / script],
        env={"PYTHONDONTWRITEBYTECODE": "1"},
        **more,
    )


# Java


def java_program(name):
    home = os.environ.get("JAVA_HOME")
    return Path(home) / "bin" / name if home and os.access(Path(home) / "bin" / name, os.X_OK) else name


def build_java(folder):
    copy = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
    sh("mvn", "-q", "-B", "-f", HERE / "java/pom.xml", copy, f"-DoutputDirectory={folder}/jars")
    options = ["-nowarn", "-encoding", "UTF-8", "-cp", f"{folder}/jars/*", "-d", folder / "classes"]
    sh(java_program("javac"), *options, HERE / "java/Client.java", HERE / "java/Words.java")


def java(name, title, program=None, **more):
    def run(folder):
        return [java_program("java"), *JVM, "-cp", f"{folder}/classes:{folder}/jars/*", "Client"]

    version = pinned("java/pom.xml", r"<kafka.version>(.+)</kafka.version>")
    return Client(
        name=name,
        title=f"{title} {version}",
        built_as="java",
        sources=("java/pom.xml", "java/Client.java", "java/Words.java"),
        tools={"java": "openjdk-17-jre-headless", "javac": "openjdk-17-jdk-headless", "mvn": "maven"},
        build=build_java,
        program=program or run,
        **more,
    )


# Go


def go(name, module, **more):
    sources = ("go/go.mod", "go/go.sum", "go/main.go", "go/franz.go", "go/sarama.go", "go/kafkago.go")
    version = pinned("go/go.mod", rf"(?m)^\t{re.escape(module)} v(\S+)$")
    return Client(
        name=name,
        title=f"{name} {version}",
        built_as="go",
        sources=sources,
        tools={"go": "Go 1.26"},
        build=lambda folder: sh(
            "go", "build", "-trimpath", "-o", folder / "client", ".", cwd=HERE / "go", env={"GOTOOLCHAIN": "local"}
        ),
        program=lambda folder: [folder / "client", name],
        **more,
    )


# Node


def node(name, package, **more):
    files = (f"node/{name}/package.json", f"node/{name}/package-lock.json")
    version = json.loads((HERE / files[0]).read_text())["dependencies"][package]

    def build(folder):
        for file in files:
            shutil.copy(HERE / file, folder)
        sh("npm", "ci", "--no-audit", "--no-fund", "--loglevel=error", cwd=folder)
        for file in (f"{name}.js", "verbs.js"):
            shutil.copy(HERE / "node" / file, folder)

    return Client(
        name=package,
        title=f"{package} {version}",
        built_as=name,
        sources=(*files, f"node/{name}.js", "node/verbs.js"),
        tools={"node": "Node 20", "npm": "Node 20"},
        build=build,
        program=lambda folder: ["node", folder / f"{name}.js"],
        **more,
    )


# Command lines


def kafka_tools(folder):
    return [sys.executable, HERE / "tools/kafka_tools.py", folder / "jars"]


def kcat():
    version = ""
    if shutil.which("kcat"):
        said = subprocess.run(["kcat", "-V"], capture_output=True, text=True, timeout=10).stdout
        version = (re.search(r"Version (\S+)", said) or ["", ""])[1]
    return Client(
        name="kcat",
        title=f"kcat {version}".strip(),
        built_as="kcat",
        sources=(),
        tools={"kcat": "kcat"},
        build=lambda folder: None,
        program=lambda folder: [sys.executable, HERE / "tools/kcat.py"],
        env={"PYTHONDONTWRITEBYTECODE": "1"},
        only=("roundtrip", "big_record", "codecs", "idempotent", "acks", "seek", "offsets_by_time"),
        places=False,
        times=False,
        reports=False,
    )


def without(*reasons, **more):
    """A table of what is lacking."""
    return {**{name: reason for names, reason in reasons for name in names}, **more}


NO_KIP848 = ("group_kip848",), "the client has no KIP-848 protocol"


def every():
    """All of them, in the order in which the page shows them."""
    return [
        java("java", "Apache Kafka's Java client", also=("console",), patience=1.5),
        java("kafka-streams", "Kafka Streams", only=("streams_word_count",), patience=1.5),
        java(
            "kafka-tools",
            "Apache Kafka's command-line tools",
            program=kafka_tools,
            env={"PYTHONDONTWRITEBYTECODE": "1"},
            also=("inspect",),
            lacks=without(
                (("group_leave", "group_kip848"), "kafka-console-consumer does not say what it is assigned"),
                (("kill_9",), "kafka-console-producer does not say what was acknowledged"),
            ),
            places=False,
            times=False,
            reports=False,
            commits_by_reading=True,
            patience=3.0,
        ),
        python(
            "confluent",
            "confluent-kafka",
            lacks=without((("delete_offsets",), "confluent-kafka has no call that deletes offsets")),
        ),
        kcat(),
        go("franz-go", "github.com/twmb/franz-go", also=("console",)),
        go("sarama", "github.com/IBM/sarama", lacks=without(NO_KIP848)),
        go(
            "kafka-go",
            "github.com/segmentio/kafka-go",
            lacks=without(
                NO_KIP848,
                (("idempotent",), "kafka-go has no idempotent producer"),
                (("delete_records",), "kafka-go has no call that deletes records"),
            ),
        ),
        node(
            "kafkajs",
            "kafkajs",
            lacks=without(
                NO_KIP848,
                (("zstd",), "kafkajs has no zstd without a native plugin"),
                (("delete_offsets",), "kafkajs has no call that deletes offsets of a partition"),
            ),
        ),
        node(
            "platformatic",
            "@platformatic/kafka",
            lacks=without((("zstd",), "@platformatic/kafka has zstd from Node 22.15 on; these tests run on 20")),
        ),
        python("kafka-python", "kafka-python", lacks=without(NO_KIP848)),
        python(
            "aiokafka",
            "aiokafka",
            lacks=without(
                NO_KIP848,
                (("delete_offsets", "delete_group"), "aiokafka has no call that deletes groups or their offsets"),
            ),
        ),
    ]
