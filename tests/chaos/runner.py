"""Runs the chaos scripts and cases, each in a process of its own, and counts.

    runner.py [--ci] [--list] [--seed N]      all of them
    runner.py NAME [OPTION ...]               one; its options go to it

The last line is `N passed, N failed`, and `, N skipped` if there are any; what was skipped is said, and why. The exit
status is 0 if none failed and something passed.
"""

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import faults  # noqa: F401 registers its cases
from kit import CASES, SKIPPED

HERE = Path(__file__).resolve().parent
#: name -> (script, its options in full, its options for CI or None, rows, what)
SCRIPTS = {
    "volume": ("test_volume.py", [], [], "", "the volume that records and loses is right itself"),
    "audit_self_test": (
        "audit.py",
        ["--self-test", "--boundaries", "40", "--seconds", "4"],
        ["--self-test", "--boundaries", "12", "--seconds", "2"],
        "8, 11, 12",
        "a disk that lies about its flushes is found by the audit",
    ),
    "audit": (
        "audit.py",
        ["--boundaries", "200"],
        ["--boundaries", "100", "--seconds", "5"],
        "6, 8, 11, 12",
        "at every flush, what was acknowledged is on the media",
    ),
    "audit_ext4": (
        "audit.py",
        ["--ext4", "--boundaries", "200"],
        ["--ext4", "--boundaries", "40", "--seconds", "4"],
        "6, 8, 11, 12",
        "the same through ext4 and the block layer",
    ),
    "kill9": (
        "kill9.py",
        ["--kills", "200"],
        ["--kills", "50"],
        "1, 3",
        "SIGKILL at random moments under a mixed load",
    ),
    "kill9_two_cores": (
        "kill9.py",
        ["--kills", "50", "--cores", "2", "--io", "blocking"],
        None,
        "1, 3",
        "the same on two cores, without io_uring",
    ),
    "power": (
        "kill9.py",
        ["--power", "--kills", "100", "--each", "1", "--rate", "200"],
        ["--power", "--kills", "40", "--each", "1", "--rate", "200"],
        "8, 11, 12",
        "the power goes at random moments under a mixed load",
    ),
}
CI_SECONDS = 600
CASE_SECONDS = 900


def commands(short):
    """name -> (command, rows, what); those that CI leaves out are not there."""
    all_ = {}
    for name, (script, full, ci, rows, what) in SCRIPTS.items():
        if not short or ci is not None:
            all_[name] = ([HERE / script, *(ci if short else full)], rows, what)
    for name, (_, rows, what, ci) in CASES.items():
        if not short or ci:
            all_[name] = ([HERE / "faults.py", name, *(["--ci"] if short else [])], rows, what)
    return all_


def run(command, seconds, log, folder):
    """The exit status; None if the time was up. What it leaves behind in its folder is ended with it."""
    folder.mkdir()
    with open(log, "wb") as out:
        process = subprocess.Popen(
            [sys.executable, *map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            env={**os.environ, "TMPDIR": str(folder)},
        )
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            clear(folder)


def clear(folder):
    """Nothing stays mounted there, and no loop device is on a file of it."""
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in sorted((m for m in mounts if m.startswith(f"{folder}/")), reverse=True):
        subprocess.run(["umount", "-l", mount], capture_output=True)
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            if backing.read_text().startswith(f"{folder}/"):
                subprocess.run(["losetup", "-d", f"/dev/{backing.parts[3]}"], capture_output=True)


def all_of_them(options):
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    todo, begun = commands(options.ci), time.monotonic()
    limit = CI_SECONDS if options.ci else float("inf")
    passed, failed, skipped = 0, [], []
    print(f"chaos: {len(todo)} cases, seed {seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="camus-chaos-"))
    for name, (command, rows, what) in todo.items():
        left, from_ = limit - (time.monotonic() - begun), time.monotonic()
        if left < 10:
            skipped.append((name, "the 10 minutes are over"))
            continue
        log = folder / f"{name}.log"
        seeded = command if name == "volume" else [*command, "--seed", seed]
        status = run(seeded, min(CASE_SECONDS, left), log, folder / name)
        took, text = time.monotonic() - from_, log.read_text(errors="replace")
        if status is None and left < CASE_SECONDS:
            skipped.append((name, f"the 10 minutes were over while it ran ({took:.0f} s)"))
            continue
        verdict = {0: "ok", SKIPPED: "skipped"}.get(status, "FAILED")
        print(f"{verdict:8}{name:24}{f'row {rows}' if rows else '':18}{took:6.1f} s  {what}", flush=True)
        if verdict == "ok":
            passed += 1
            shutil.rmtree(folder / name, ignore_errors=True)
        elif verdict == "skipped":
            why = [line for line in text.splitlines() if line.startswith("skipped: ")]
            skipped.append((name, why[-1][9:] if why else "it did not say why"))
        else:
            failed.append(name)
            print(text[-6000:], flush=True)
            print(
                f"chaos: {name}: {'the time was up' if status is None else f'status {status}'}; log: {log}", flush=True
            )
    if not failed:
        shutil.rmtree(folder, ignore_errors=True)
    for name, why in skipped:
        print(f"!! NOT TESTED: {name}: skipped: {why}", flush=True)
    print(f"chaos: {time.monotonic() - begun:.0f} s, seed {seed}{', failed: ' + ', '.join(failed) if failed else ''}")
    print(f"{passed} passed, {len(failed)} failed{f', {len(skipped)} skipped' if skipped else ''}")
    return 0 if passed and not failed else 1


def main():
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        name, options = sys.argv[1], sys.argv[2:]
        if name in SCRIPTS:
            script, full, *_ = SCRIPTS[name]
            # Of an option that is given twice the later one holds.
            command = [HERE / script, *full, *options]
        elif name in CASES:
            command = [HERE / "faults.py", name, *options]
        else:
            sys.exit(f"no such script or case: {name} (tests/chaos/run --list names them)")
        os.execv(sys.executable, [sys.executable, *map(str, command)])
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--ci", action="store_true", help="a part, bounded to 10 minutes")
    options.add_argument("--list", action="store_true")
    options.add_argument("--seed", type=int, default=None)
    options = options.parse_args()
    if options.list:
        for name, (_, rows, what) in commands(False).items():
            print(f"{name:24}{f'row {rows}' if rows else '':18}{what}")
        return 0
    return all_of_them(options)


if __name__ == "__main__":
    sys.exit(main())
