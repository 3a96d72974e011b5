"""Kafka's command-line tools (`kafka-topics.sh` and the others), each started by its class from the jars.

Run as `kafka_tools.py JARS HOST:PORT VERB ...` (../README.md has the verbs). Text goes in and text comes out, so
partitions and timestamps can not be chosen, and what was acknowledged is not said.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
from verbs import Enough, main, say, say_record  # noqa: E402

HERE = Path(__file__).resolve().parent
JARS = sys.argv.pop(1)
LOG4J = HERE.parent / "java" / "log4j2.xml"
JAVA = str(Path(os.environ["JAVA_HOME"]) / "bin" / "java") if os.environ.get("JAVA_HOME") else "java"
#: Light: a tool lives for a second.
JVM = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Dlog4j2.configurationFile={LOG4J}"]
CLASSES = {
    "topics": "TopicCommand",
    "configs": "ConfigCommand",
    "consumer-groups": "consumer.group.ConsumerGroupCommand",
    "groups": "GroupsCommand",
    "console-producer": "ConsoleProducer",
    "console-consumer": "consumer.ConsoleConsumer",
    "get-offsets": "GetOffsetShell",
    "delete-records": "DeleteRecordsCommand",
    "log-dirs": "LogDirsCommand",
    "metadata-quorum": "MetadataQuorumCommand",
    "broker-api-versions": "BrokerApiVersionsCommand",
    "features": "FeatureCommand",
    "cluster": "ClusterTool",
}
#: Between headers, key and value, where nothing else is said: producer and consumer agree.
SEPARATOR, NULL = "\t", "<null>"


def command(tool, *words):
    return [JAVA, *JVM, "-cp", f"{JARS}/*", f"org.apache.kafka.tools.{CLASSES[tool]}", *map(str, words)]


def use(tool, *words, text="", seconds=60):
    """What the tool printed; an error with what it said, if its status is not 0."""
    done = subprocess.run(command(tool, *words), input=text.encode(), capture_output=True, timeout=seconds)
    out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    if done.returncode:
        raise RuntimeError(f"kafka-{tool} ended with {done.returncode}: {(err + out).strip()[-600:]}")
    return out


class Client:
    def __init__(self, address):
        self.to = ("--bootstrap-server", address)

    def create(self, a):
        words = ["--create", "--topic", a.topic, "--partitions", a.partitions, "--replication-factor", 1]
        for name, value in a.settings.items():
            words += ["--config", f"{name}={value}"]
        use("topics", *self.to, *words)

    def produce(self, a):
        """Lines of headers, key and value."""
        lines = []
        for _, _, key, value, headers, _ in a.records():
            head = ",".join(f"{name}:{content.decode()}" for name, content in headers)
            parts = [head or NULL, NULL if key is None else key.decode(), NULL if value is None else value.decode()]
            lines.append(SEPARATOR.join(parts))
        words = ["--topic", a.topic, "--compression-codec", a.text("codec", "none")]
        words += ["--request-required-acks", a.text("acks", "all")]
        for setting in ("parse.key=true", "parse.headers=true", f"null.marker={NULL}"):
            words += ["--reader-property", setting]
        conf = ["max.request.size=2000000", f"enable.idempotence={str(a.flag('idempotent')).lower()}"]
        conf += ["batch.size=500", "linger.ms=0"] if a.flag("small") else []
        for setting in conf:
            words += ["--command-property", setting]
        use("console-producer", *self.to, *words, text="".join(f"{line}\n" for line in lines))

    def read(self, count, seconds, *words):
        """Records as the console consumer prints them; it ends when it has as many, or nothing came for a while."""
        shown = ["timestamp", "partition", "offset", "headers", "key", "value"]
        words = [*words, "--timeout-ms", seconds * 1000] + (["--max-messages", count] if count else [])
        for name in shown:
            words += ["--formatter-property", f"print.{name}=true"]
        words += ["--formatter-property", f"null.literal={NULL}"]
        for setting in ("max.partition.fetch.bytes=2000000", "fetch.max.wait.ms=300"):
            words += ["--command-property", setting]
        process = subprocess.Popen(
            command("console-consumer", *self.to, *words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
        )
        try:
            for line in process.stdout:
                yield self.record(line.rstrip("\n"))
            process.wait(20)
        finally:
            process.kill()
            process.wait()

    def record(self, line):
        """`CreateTime:1 Partition:0 Offset:2 n:1,mark:x key value`, with tabs."""
        parts = line.split(SEPARATOR)
        if len(parts) != 6:
            raise RuntimeError(f"kafka-console-consumer printed a line of {len(parts)} parts: {line[:200]!r}")
        when, partition, offset, headers, key, value = parts
        pairs = [] if headers in ("NO_HEADERS", "") else [header.split(":", 1) for header in headers.split(",")]
        say_record(
            int(partition.partition(":")[2]),
            int(offset.partition(":")[2]),
            None if key == NULL else key.encode(),
            None if value == NULL else value.encode(),
            [(name, content.encode()) for name, content in pairs],
            int(when.partition(":")[2]),
        )

    def consume(self, a):
        start, enough = a.text("start", "earliest"), Enough(a)
        words = ["--topic", a.topic]
        if start == "earliest":
            words += ["--from-beginning"]
        else:
            words += ["--partition", 0, "--offset", start]
        count, seconds = enough.count, a.number("seconds", 30)
        if start == "latest":
            # The tool does not say when it is at the end; in five seconds it surely is.
            timer = threading.Timer(5, lambda: say(ready=True))
            timer.daemon = True
            timer.start()
        elif enough.quiet_s:
            count, seconds = 0, 8
        for _ in self.read(count, seconds, *words):
            enough.one()
        if enough.came < enough.count:
            raise TimeoutError(f"{enough.came} of {enough.count} records came in time")

    def offsets(self, a):
        for at in a.times():
            out = use("get-offsets", *self.to, "--topic", a.topic, "--time", at)
            found = {}
            for line in out.split():
                _, partition, offset = line.rsplit(":", 2)
                found[int(partition)] = int(offset or -1)
            for p in range(a.partitions):
                say(at=at, partition=p, offset=found.get(p, -1))

    def member(self, a):
        """Reads `limit` records as a member, and commits those when it leaves."""
        words = ["--topic", a.topic, "--group", a.group, "--from-beginning"]
        came = sum(1 for _ in self.read(a.number("limit"), 30, *words))
        if came < a.number("limit"):
            raise TimeoutError(f"{came} of {a.number('limit')} records came in time")

    def committed(self, a):
        """GROUP TOPIC PARTITION CURRENT-OFFSET LOG-END-OFFSET LAG ..."""
        found = {}
        try:
            out = use("consumer-groups", *self.to, "--describe", "--group", a.group, "--offsets")
        except RuntimeError as error:
            if "does not exist" not in str(error):
                raise
            out = ""  # a group without members and offsets is none
        for line in out.splitlines():
            words = line.split()
            if len(words) > 3 and words[:2] == [a.group, a.topic]:
                found[int(words[2])] = -1 if words[3] == "-" else int(words[3])
        for p in range(a.partitions):
            say(partition=p, offset=found.get(p, -1))

    def topics(self, _):
        say(topics=sorted(use("topics", *self.to, "--list").split()))

    def describe(self, a):
        out = use("topics", *self.to, "--describe", "--topic", a.topic)
        led = re.findall(r"Partition: \d+\s+Leader: \d+", out)
        count = re.search(r"PartitionCount: (\d+)", out)
        if not count or int(count[1]) != len(led):
            raise RuntimeError(f"kafka-topics described partitions without a leader: {out}")
        say(partitions=int(count[1]))

    def config(self, a):
        words = ["--describe", "--all", "--entity-type", "topics", "--entity-name", a.topic]
        out = use("configs", *self.to, *words)
        found = dict(re.findall(r"(?m)^\s+([a-z.]+)=(\S*) sensitive=", out))
        for name in a.text("names").split(","):
            say(name=name, value=found.get(name))

    def alter(self, a):
        entity = ["--entity-type", "topics", "--entity-name", a.topic]
        for name, value in a.settings.items():
            use("configs", *self.to, "--alter", *entity, "--add-config", f"{name}={value}")

    def grow(self, a):
        use("topics", *self.to, "--alter", "--topic", a.topic, "--partitions", a.partitions)

    def delete_records(self, a):
        spot = {"topic": a.topic, "partition": a.number("partition"), "offset": a.number("before")}
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump({"version": 1, "partitions": [spot]}, file)
            file.flush()
            out = use("delete-records", *self.to, "--offset-json-file", file.name)
        if not re.search(rf"low_watermark: {spot['offset']}\b", out):
            raise RuntimeError(f"kafka-delete-records said {out.strip()[-300:]}")

    def delete(self, a):
        use("topics", *self.to, "--delete", "--topic", a.topic)

    def groups(self, _):
        say(groups=use("consumer-groups", *self.to, "--list").split())

    def group(self, a):
        """GROUP COORDINATOR (ID) ASSIGNMENT-STRATEGY STATE #MEMBERS: the last two are what is asked for."""
        out = use("consumer-groups", *self.to, "--describe", "--group", a.group, "--state")
        found = re.search(r"(?m)\s(\w+)\s+(\d+)\s*$", out)
        if not found:
            raise RuntimeError(f"kafka-consumer-groups described no state: {out.strip()[-300:]}")
        say(state=found[1], members=int(found[2]))

    def delete_offsets(self, a):
        spot = f"{a.topic}:{a.number('partition')}"
        use("consumer-groups", *self.to, "--delete-offsets", "--group", a.group, "--topic", spot)

    def delete_group(self, a):
        use("consumer-groups", *self.to, "--delete", "--group", a.group)

    def inspect(self, a):
        tool, found = a.text("tool"), None
        if tool == "api_versions":
            # Every API with the version that the tool would use; "UNSUPPORTED" where the broker has none.
            out = use("broker-api-versions", *self.to)
            found = re.findall(r"(?m)^\s+(\w+)\(\d+\): \d+", out)
        elif tool == "cluster_id":
            found = re.findall(r"Cluster ID: (\S+)", use("cluster", "cluster-id", *self.to))
        elif tool == "log_dirs":
            out = use("log-dirs", *self.to, "--describe", "--topic-list", a.topic)
            brokers = json.loads(out[out.index("{") :])["brokers"]
            parts = [part for broker in brokers for folder in broker["logDirs"] for part in folder["partitions"]]
            found = [part for part in parts if part["partition"].startswith(a.topic)]
        elif tool == "quorum":
            out = use("metadata-quorum", *self.to, "describe", "--status")
            found = re.findall(r"(?:LeaderId|HighWatermark):\s+\d+", out)
        elif tool == "features":
            use("features", *self.to, "describe")
            found = ["it ended well; a broker may have no features"]
        elif tool == "groups":
            use("groups", *self.to, "--list")
            found = ["it ended well; there may be no groups"]
        say(tool=tool, found=len(found))


main(Client)
