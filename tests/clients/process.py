"""A client's program as a process: started with its verbs, listened to, and ended by its id.

`Program` is one that runs; what it said is in `events`, each with the moment at which it came. `run` is for one that
ends by itself. Nothing waits without a bound.
"""

import contextlib
import json
import os
import signal
import subprocess
import threading
import time


class Failure(AssertionError):
    """What was expected and what came."""


class Skip(Exception):
    """What the client, the machine or the broker does not have."""


def words(*verbs):
    """The arguments for (verb, {name: value}) after each other. Values that are None are left out."""
    out = []
    for verb, options in verbs:
        out += (["then"] if out else []) + [verb]
        out += [f"{name}={value}" for name, value in options.items() if value is not None]
    return out


def brief(text, limit=600):
    text = " ".join(str(text).split())
    return text if len(text) <= limit else f"{text[: limit // 2]} ... {text[-limit // 2 :]}"


class Program:
    def __init__(self, command, address, verbs, env, folder):
        self.verbs, self.events, self.noise, self.changed = verbs, [], [], threading.Condition()
        #: Somebody asked it to end.
        self.stopped = False
        self.command = [str(word) for word in (*command, address, *words(*verbs))]
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **env},
            cwd=folder,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        self.readers = [threading.Thread(target=reader, daemon=True) for reader in (self.listen, self.hear)]
        for reader in self.readers:
            reader.start()

    @property
    def name(self):
        return " then ".join(verb for verb, _ in self.verbs)

    def listen(self):
        for line in self.process.stdout:
            event = None
            if line.startswith("{"):
                with contextlib.suppress(ValueError):
                    event = json.loads(line)
            with self.changed:
                if event is None:
                    self.noise = [*self.noise, line.strip()][-40:]
                else:
                    event["at_s"] = time.monotonic()
                    self.events.append(event)
                self.changed.notify_all()
        with self.changed:
            self.changed.notify_all()

    def hear(self):
        for line in self.process.stderr:
            self.noise = [*self.noise, line.strip()][-40:]

    def said(self):
        """The end of what it printed besides events."""
        return brief(" / ".join(line for line in self.noise if line), 1500)

    def alive(self):
        return self.process.poll() is None

    def wait(self, condition, seconds, what):
        """Until `condition(events)` holds; its value."""
        end = time.monotonic() + seconds
        with self.changed:
            while True:
                if found := condition(self.events):
                    return found
                if not self.alive() and not self.readers[0].is_alive():
                    raise Failure(f"{what}: {self.name} ended with {self.process.returncode} before: {self.why()}")
                left = end - time.monotonic()
                if left <= 0:
                    tail = brief(self.events[-4:])
                    raise Failure(f"{what}: not within {seconds:.0f} s; it said {tail} {self.said()}")
                self.changed.wait(min(left, 0.2))

    def why(self):
        errors = [event["error"] for event in self.events if "error" in event]
        failed = [event for event in self.events if "failed" in event]
        told = [f"{len(failed)} records failed, the first: {failed[0]['failed']}"] if failed else []
        return brief("; ".join(errors[-1:] + told) or self.said() or "it said nothing")

    def join(self, seconds):
        """Waits for its end, by itself. Its exit status; SIGKILL and a failure if it does not end in time."""
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            tail = brief(self.events[-3:])
            self.kill()
            raise Failure(f"{self.name} did not end within {seconds:.0f} s; it said {tail} {self.said()}") from None
        for reader in self.readers:
            reader.join(5)
        return status

    def stop(self, seconds=20):
        """SIGTERM; it must say that it ended, in time."""
        self.stopped = True
        if self.alive():
            self.process.send_signal(signal.SIGTERM)
        self.join(seconds)
        if not any("end" in event for event in self.events):
            raise Failure(f"{self.name} did not leave in order at SIGTERM: {self.why()}")

    def kill(self):
        """SIGKILL to it and to what it started (its own process group)."""
        self.stopped = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for reader in self.readers:
            reader.join(5)


def parts(program):
    """The events of each verb, in order; a verb that was not reached has none."""
    out = [[]]
    for event in program.events:
        if "end" in event:
            out.append([])
        else:
            out[-1].append(event)
    out += [[] for _ in program.verbs]
    return out[: len(program.verbs)]


def run(program, seconds):
    """Waits for a program that ends by itself; the events of each of its verbs."""
    verbs = program.verbs
    try:
        status = program.join(seconds)
    finally:
        program.kill()
    if status != 0:
        reached = sum("end" in event for event in program.events)
        verb = verbs[min(reached, len(verbs) - 1)][0]
        raise Failure(f"{verb}: the client's program ended with {status}: {program.why()}")
    missing = len(verbs) - sum("end" in event for event in program.events)
    if missing:
        raise Failure(f"{program.name}: {missing} verbs did not end, though its status is 0: {program.said()}")
    return parts(program)
