"""A volume that records every write and flush in order, can be taken back to any flush, and fails on command.

Files: `tree.py` what is durable when, and the disk after a power cut; `fuse.py` the kernel's protocol; `server.py` the
process that serves a mount; here: the handle on that process.
"""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

from . import fuse

SERVER = Path(__file__).with_name("server.py")


class Skipped(Exception):
    """It can not be done on this machine: why."""


class Volume:
    """A mount point and the process behind it."""

    def __init__(self, at):
        self.at, self.mounted = Path(at), False
        self.at.mkdir(parents=True, exist_ok=True)
        if os.geteuid() != 0:
            raise Skipped("mounting a FUSE file system by hand needs root")
        if not os.access("/dev/fuse", os.R_OK | os.W_OK):
            raise Skipped("there is no /dev/fuse (modprobe fuse, or a kernel without it)")
        command = [sys.executable, SERVER, self.at]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        json.loads(self.process.stdout.readline())
        try:
            self.mount()
        except AssertionError as error:
            self.close()
            raise Skipped(f"mounting is not permitted here: {error}") from None

    def ask(self, do, **order):
        self.process.stdin.write(json.dumps({"do": do, **order}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the volume's process ended with {self.process.wait()} at {do}"
        said = json.loads(line)
        assert "error" not in said, f"{do}: {said['error']}"
        return said

    def mount(self):
        self.ask("mount")
        self.mounted = True

    def unmount(self):
        self.ask("unmount")
        self.mounted = False

    def harm(self, op, name="*.wal", **rule):
        """`op`: read, write, sync or names; see `server.Rule`."""
        self.ask("harm", op=op, name=name, **rule)

    def hits(self):
        return sum(self.ask("hits")["hits"])

    def heal(self):
        self.ask("heal")

    def load(self, flushed_by, **what):
        """Puts the recorded disk as it was at a flush in the place of the present one."""
        if self.mounted:
            self.unmount()
        self.ask("image", flushed_by=flushed_by, **what)
        self.mount()

    def power_cut(self, kill, seed, keep=0.5, sector=4096):
        """Nothing reaches the disk from now on; `kill` ends who writes to it; then what was not flushed is gone, but
        for a random part."""
        at = self.ask("freeze")["at"]
        kill(lambda: self.ask("release"))
        self.unmount()
        self.ask("lose", at=at, seed=seed, keep=keep, sector=sector)
        self.mount()

    def close(self):
        with contextlib.suppress(AssertionError, OSError):
            self.process.stdin.close()
            self.process.wait(10)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if os.path.ismount(self.at):
            with contextlib.suppress(OSError):
                fuse.unmount(self.at)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
