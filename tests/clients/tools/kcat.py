"""kcat (librdkafka's command-line client), as Debian packages it.

It has no administration: topics are made by hand here, and what it lacks is in its entry of `clients.py`. It does not
say what was acknowledged; an exit status of 0 says that everything was.
"""

import json
import struct
import subprocess
import sys
import threading
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "python")]
from broker import Wire  # noqa: E402
from verbs import Enough, Refused, main, say, say_record  # noqa: E402

OFFSETS = {"earliest": "beginning", "latest": "end"}


class Client:
    def __init__(self, address):
        self.address = address

    def use(self, *words, text=b"", seconds=60):
        command = ["kcat", "-b", self.address, "-X", "socket.timeout.ms=15000", *map(str, words)]
        done = subprocess.run(command, input=text, capture_output=True, timeout=seconds)
        if done.returncode:
            raise RuntimeError(f"kcat ended with {done.returncode}: {done.stderr.decode(errors='replace')[-500:]}")
        return done.stdout.decode()

    def create(self, a):
        """CreateTopics 2, by hand."""
        name = a.topic.encode()
        body = struct.pack(">ih", 1, len(name)) + name + struct.pack(">ihiii?", a.partitions, 1, 0, 0, 20000, False)
        with Wire(self.address) as wire:
            answer = wire.ask(19, 2, body)
        answer.get("ii")
        answer.string()
        if code := answer.get("h"):
            raise Refused(code, f"CreateTopics {answer.string()}")

    def produce(self, a):
        conf = ["message.max.bytes=2000000", f"acks={a.text('acks', 'all')}"]
        conf += ["batch.num.messages=10", "linger.ms=0"] if a.flag("small") else []
        conf += ["enable.idempotence=true"] if a.flag("idempotent") else []
        words = ["-P", "-t", a.topic, "-p", 0]
        words += ["-z", a.text("codec")] if a.text("codec", "none") != "none" else []
        for setting in conf:
            words += ["-X", setting]
        records = list(a.records())
        if a.text("shape") != "mixed":
            self.use(*words, text=b"".join(value + b"\n" for _, _, _, value, _, _ in records))
            return
        # Headers are those of a whole run of kcat. What is empty behind a key is sent as null (-Z).
        for _, _, key, value, headers, _ in records:
            more = [word for name, content in headers for word in ("-H", f"{name}={content.decode()}")]
            line = (value or b"") + b"\n"
            if key is not None:
                more, line = [*more, "-Z", "-K", "\t"], key + b"\t" + line
            self.use(*words, *more, text=line)

    def consume(self, a):
        start, enough = a.text("start", "earliest"), Enough(a)
        start = f"s{start}" if start.startswith("@") else OFFSETS.get(start, start)
        words = ["-C", "-t", a.topic, "-p", 0, "-o", start, "-J", "-u", "-q", "-X", "fetch.wait.max.ms=300"]
        if start == "end":
            # It does not say when it is at the end; in three seconds it surely is.
            timer = threading.Timer(3, lambda: say(ready=True))
            timer.daemon = True
            timer.start()
        words += ["-e"] if enough.quiet_s and start != "end" else ["-c", enough.count]
        process = subprocess.Popen(
            ["kcat", "-b", self.address, *map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
        )
        # Ends the reader below, too: what it waits for is the end of kcat's output.
        guard = threading.Timer(a.number("seconds", 30), process.kill)
        guard.daemon = True
        guard.start()
        try:
            for line in process.stdout:
                self.show(json.loads(line))
                enough.one()
        finally:
            guard.cancel()
            process.kill()
            process.wait()
        if enough.came < enough.count:
            raise TimeoutError(f"{enough.came} of {enough.count} records came in time")

    def show(self, record):
        """Headers are a flat list of names and values."""
        flat = record.get("headers") or []
        headers = [(name, value.encode()) for name, value in zip(flat[::2], flat[1::2], strict=True)]
        key, value = record.get("key"), record.get("payload")
        say_record(
            record["partition"],
            record["offset"],
            None if key is None else key.encode(),
            None if value is None else value.encode(),
            headers,
            record.get("ts"),
        )

    def offsets(self, a):
        for at in a.times():
            for p in range(a.partitions):
                when = {"earliest": "-2", "latest": "-1"}.get(at, at)
                out = self.use("-Q", "-t", f"{a.topic}:{p}:{when}")
                say(at=at, partition=p, offset=int(out.split()[-1]))

    def topics(self, _):
        say(topics=sorted(topic["topic"] for topic in json.loads(self.use("-L", "-J"))["topics"]))

    def describe(self, a):
        (topic,) = json.loads(self.use("-L", "-J", "-t", a.topic))["topics"]
        say(partitions=len(topic["partitions"]))


main(Client)
