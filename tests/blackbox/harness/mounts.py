"""Small file systems for a test: an ext4 in a file, mounted through a loop device."""

import subprocess
from contextlib import contextmanager

import pytest


def run(*command):
    return subprocess.run([str(c) for c in command], capture_output=True, text=True)


@contextmanager
def small_ext4(folder, mebibytes):
    """The folder of a mounted ext4 of this size. Skips, saying why, where mounting is not permitted."""
    image, mount = folder / "small.img", folder / "small"
    mount.mkdir()
    with open(image, "wb") as file:
        file.truncate(mebibytes << 20)
    made = run("mkfs.ext4", "-q", "-F", "-b", "4096", "-m", "0", "-E", "lazy_itable_init=0", image)
    if made.returncode:
        pytest.skip(f"NOT TESTED: mkfs.ext4 failed: {made.stderr.strip()}")
    mounted = run("mount", "-o", "loop", image, mount)
    if mounted.returncode:
        pytest.skip(f"NOT TESTED: mounting is not permitted here: {mounted.stderr.strip()}")
    try:
        yield mount
    finally:
        for _ in range(50):
            if run("umount", mount).returncode == 0:
                break
            run("sleep", "0.1")
        else:
            run("umount", "-l", mount)
        image.unlink()


@contextmanager
def frozen(mount):
    """No write to this file system completes inside."""
    done = run("fsfreeze", "--freeze", mount)
    if done.returncode:
        pytest.skip(f"NOT TESTED: fsfreeze is not permitted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        run("fsfreeze", "--unfreeze", mount)
