"""What the Python programs share: their arguments, the rule that makes records, and how they say what came.

See ../README.md for the convention. A program hands `main` a class; each of its methods is a verb.
"""

import json
import signal
import sys
import threading
import time
import uuid
import zlib

LOCK = threading.Lock()
STOPPED = threading.Event()


def say(**event):
    line = json.dumps(event) + "\n"
    with LOCK:
        sys.stdout.write(line)
        sys.stdout.flush()


class Refused(Exception):
    """An error that the broker answered, with its code."""

    def __init__(self, code, text):
        super().__init__(f"{text} ({code})")
        self.code = code


class Options:
    """The arguments of one verb."""

    def __init__(self, words):
        self.words = dict(word.split("=", 1) for word in words)

    def text(self, name, default=None):
        return self.words.get(name, default)

    def number(self, name, default=0):
        return int(self.words.get(name, default))

    def flag(self, name):
        return self.words.get(name, "0") == "1"

    @property
    def topic(self):
        return self.words["topic"]

    @property
    def group(self):
        return self.words["group"]

    @property
    def partitions(self):
        return self.number("partitions", 1)

    @property
    def settings(self):
        """`set=a:b,c:d`"""
        pairs = [pair.split(":", 1) for pair in self.text("set", "").split(",") if pair]
        return dict(pairs)

    @property
    def deadline(self):
        return time.monotonic() + self.number("seconds", 30)

    def times(self):
        """`at=earliest,latest,NUMBER`, as they were given."""
        return self.text("at", "latest").split(",")

    def records(self):
        """(number, partition, key, value, headers, time in ms or None) of each record to send."""
        first, time_ms = self.number("from"), self.text("time")
        mixed, size = self.text("shape") == "mixed", self.number("size")
        for number in range(first, first + self.number("count")):
            value = None if mixed and number % 5 == 3 else str(number).ljust(size, ".").encode()
            key = f"key-{number}".encode() if mixed and number % 5 else None
            headers = [("n", str(number).encode()), ("mark", "ü".encode())] if mixed and number % 2 else []
            when = None if time_ms is None else int(time_ms) + 1000 * number
            yield number, number % self.partitions, key, value, headers, when

    def pause(self):
        if pace := self.number("pace"):
            time.sleep(pace / 1000)


class Enough:
    """Whether a reader has what it wants: `count` records and `quiet` ms more, or its time is over."""

    def __init__(self, options):
        self.count, self.quiet_s = options.number("count"), options.number("quiet") / 1000
        self.deadline, self.came, self.since = options.deadline, 0, time.monotonic()

    def one(self):
        self.came += 1
        self.since = time.monotonic()

    def __bool__(self):
        now = time.monotonic()
        if now > self.deadline:
            raise TimeoutError(f"{self.came} of {self.count} records came in time")
        return self.came >= self.count and now - self.since >= self.quiet_s


def say_record(partition, offset, key, value, headers=(), time_ms=None):
    shown = {name: (content or b"").decode() for name, content in headers or ()}
    say(
        partition=partition,
        offset=offset,
        key=None if key is None else key.decode(),
        value=None if value is None else value[:64].decode(),
        size=None if value is None else len(value),
        crc=None if value is None else zlib.crc32(value),
        headers=shown,
        time=time_ms,
    )


def nobody():
    """A group that nobody else has."""
    return f"nobody-{uuid.uuid4().hex[:12]}"


def code_of(error):
    """Kafka's code of an exception of any of the libraries."""
    for found in (getattr(error, "code", None), getattr(error, "errno", None)):
        found = found() if callable(found) else found
        if isinstance(found, int):
            return found
    if error.args and error.args[0] is not error and hasattr(error.args[0], "code"):
        return code_of(error.args[0])
    return None


def main(make):
    signal.signal(signal.SIGTERM, lambda *_: STOPPED.set())
    address, rest = sys.argv[1], sys.argv[2:]
    client = make(address)
    while rest:
        cut = rest.index("then") if "then" in rest else len(rest)
        (verb, *arguments), rest = rest[:cut], rest[cut + 1 :]
        options = Options(arguments)
        try:
            getattr(client, verb)(options)
        except Exception as error:  # noqa: BLE001: whatever it is, it is the verb's answer
            say(error=f"{type(error).__name__}: {error}", code=code_of(error), verb=verb)
            if options.text("may") != "fail":
                sys.exit(1)
        say(end=verb)
