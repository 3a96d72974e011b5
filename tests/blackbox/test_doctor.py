"""`camus waltest` and `camus doctor`, as a new user meets them: on a disk, and on what is none."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from harness.broker import Camus, binary
from harness.mounts import run, small_ext4

pytestmark = pytest.mark.camus_only
QUICK = ("--seconds", "0.05")


def camus(*args):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("CAMUS_")}
    command = [binary(), *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=clean, stdin=subprocess.DEVNULL)
    assert "panicked" not in done.stderr, done.stderr
    return done


@pytest.fixture
def on_disk():
    """A directory on a disk: pytest's own may be in memory, the binary's is not."""
    folder = Path(tempfile.mkdtemp(dir=Path(binary()).resolve().parent))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_the_floor_is_measured_by_each_method_and_nothing_is_left(on_disk):
    """Lost otherwise: the figure that every other one is held against, or 64 MiB of the disk each time."""
    done = camus("waltest", on_disk, *QUICK, "--json", "-")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    cells = {(c["method"], c["bytes"], c["depth"]): c for c in report["cells"]}
    assert len(cells) == len(report["cells"])
    assert len({method for method, _, _ in cells}) >= 2, "at least what needs no ring"
    assert {size for _, size, _ in cells} == {4096, 16384, 65536, 1 << 20}
    for cell in cells.values():
        us = cell["latency_us"]
        assert us["count"] > 0 and 0 < us["p50"] <= us["p90"] <= us["p99"] <= us["p999"] <= us["max"], cell
    chosen = [c for c in report["cells"] if c["broker"]]
    assert len(chosen) == 8 and report["method"] in {"dsync", "adaptive", "blocking"} and report["why"]
    assert report["floor"]["write_4k_us"] in [c["latency_us"] for c in chosen]
    assert report["floor"]["sequential_mb_per_s"] in [c["mb_per_s"] for c in chosen]
    assert os.listdir(on_disk) == []


def test_ctrl_c_ends_a_measurement_and_leaves_nothing(on_disk):
    """Lost otherwise: a file that nobody knows of, and a terminal that does not come back."""
    running = subprocess.Popen([binary(), "waltest", on_disk, "--seconds", "60"], stdout=subprocess.PIPE, text=True)
    try:
        assert "O_DIRECT" in running.stdout.readline(), "it runs"
        time.sleep(0.1)
        running.send_signal(signal.SIGINT)
        assert running.wait(timeout=30) == 130
    finally:
        running.kill()
    assert os.listdir(on_disk) == []


def test_an_interrupted_doctor_says_so_and_leaves_nothing(on_disk):
    """Lost otherwise: the user's time, with the advice to run another command than his."""
    command = [binary(), "doctor", "--data-dir", on_disk, "--seconds", "60"]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("CAMUS_")}
    running = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=clean)
    try:
        # Its file has no name: that it is open says that it measures, and so that signals are watched.
        until = time.monotonic() + 30
        while not any(str(on_disk) in link for link in open_files(running.pid)):
            assert running.poll() is None and time.monotonic() < until, "it does not measure"
            time.sleep(0.01)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=30)
    finally:
        running.kill()
    assert running.returncode == 130 and "doctor was interrupted" in err and "waltest" not in err, err
    assert f"camus doctor --data-dir {on_disk}" in err and "pass" not in out, err
    assert os.listdir(on_disk) == []


def open_files(pid):
    """What the open descriptors of a process lead to."""
    links = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            links.append(os.readlink(link))
        except FileNotFoundError:
            continue
    return links


@pytest.mark.parametrize(
    ("where", "code", "said"),
    [
        ("/dev/shm", "CAM-0110", "tmpfs"),
        ("/proc", "CAM-0110", "holds no data"),
        ("/nowhere/at/all", "CAM-0109", "there is no such directory"),
        ("/etc/passwd", "CAM-0109", "it is not a directory"),
    ],
)
def test_what_can_not_be_measured_is_refused_in_its_own_words(where, code, said):
    """Lost otherwise: the user's time, or his trust in a figure from a file system in memory."""
    done = camus("waltest", where, *QUICK)
    assert done.returncode == 13 and code in done.stderr and said in done.stderr, done.stderr


def test_a_full_disk_is_refused_before_anything_is_written(tmp_path):
    """Lost otherwise: the last space of a disk that is full."""
    with small_ext4(tmp_path, 48) as mount:
        done = camus("waltest", mount, *QUICK)
        assert done.returncode == 13 and "68 MiB are needed" in done.stderr, done.stderr
        found = doctor(mount, 2)
        assert failed(found) == ["free space"] and "see free space" in found["floor"]["measured"]
        assert os.listdir(mount) == ["lost+found"]


def test_a_directory_that_may_not_be_written_is_told_as_that(tmp_path):
    """Lost otherwise: a new user who does not learn that it is only a permission."""
    if os.geteuid() != 0:
        tmp_path.chmod(0o555)
        done = camus("waltest", tmp_path, *QUICK)
        assert done.returncode == 13 and "this user may not write there" in done.stderr, done.stderr
        found = doctor(tmp_path, 2)
        assert failed(found) == ["data directory"] and found["data directory"]["fix"] == f"chmod u+rwx {tmp_path}"
        return
    # Root may write to everything but what is mounted read-only.
    with small_ext4(tmp_path, 160) as mount:
        assert run("mount", "-o", "remount,ro", mount).returncode == 0
        done = camus("waltest", mount, *QUICK)
        assert done.returncode == 13 and "mounted read-only" in done.stderr, done.stderr
        found = doctor(mount, 2)
        assert failed(found) == ["mount options", "free space"], "it is too small as well"
        assert all("see mount options" in found[name]["measured"] for name in ("data directory", "floor"))


def failed(found):
    """One cause is one failure, so that a new user mends one thing."""
    return [name for name, check in found.items() if check["verdict"] == "fail"]


def doctor(data_dir, status, *args):
    """The findings by name, after what must be true of every answer."""
    # Any free port: those of every day may be taken on this host.
    free = ("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0") if not args else args
    done = camus("doctor", "--data-dir", data_dir, "--json", *QUICK, *free)
    report = json.loads(done.stdout)
    verdicts = [check["verdict"] for check in report["checks"]]
    worst = max(["pass", "warn", "fail"].index(verdict) for verdict in verdicts if verdict != "skip")
    assert ["pass", "warn", "fail"][worst] == report["verdict"] and done.returncode == worst, done.stdout
    assert status is None or done.returncode == status, done.stdout
    for check in report["checks"]:
        assert check["measured"] and check["why"], check
        assert not (check["fix"] and check["see"]), check
        assert bool(check["fix"] or check["see"]) == (check["verdict"] in ("warn", "fail")), check
    found = {check["name"]: check for check in report["checks"]}
    assert len(found) == len(verdicts)
    return found


def test_doctor_answers_with_findings_and_changes_nothing(on_disk):
    """Lost otherwise: an answer that a script can not read, or a directory that a look has made."""
    new = on_disk / "data"
    found = doctor(new, None)
    assert found["data directory"]["verdict"] == "pass" and "not there yet" in found["data directory"]["measured"]
    assert "acknowledged groups a second" in found["floor"]["measured"]
    assert {"flush honesty", "io_uring", "clock source", "memory", "free space"} <= set(found)
    assert os.listdir(on_disk) == []
    text = camus("doctor", "--data-dir", new, *QUICK)
    assert all(name in text.stdout for name in found), text.stdout


def test_doctor_fails_where_data_would_not_survive():
    """Lost otherwise: everything, at the next boot."""
    memory = doctor("/dev/shm/camus", 2)
    assert failed(memory) == ["file system"] and memory["mount options"]["fix"] is None, "no advice for what is memory"
    file = doctor("/etc/passwd", 2)
    assert failed(file) == ["data directory"] and "name another --data-dir" in file["data directory"]["measured"]


def test_doctor_names_the_running_broker_and_a_port_that_is_taken(on_disk):
    """Lost otherwise: a start that ends at once, after a check that passed."""
    data = on_disk / "data"
    broker = Camus(data).start()
    try:
        lock = doctor(data, None)["lock"]
        assert lock["verdict"] == "warn" and f"process {broker.pid} " in lock["measured"], lock
        assert "measured beside its work" in lock["measured"] and lock["see"] == f"ps -fp {broker.pid}"
        other = doctor(on_disk / "other", 2, "--listen", broker.address, "--http", "127.0.0.1:0")
        assert failed(other) == ["listeners"], "the lock is of another directory"
        assert broker.address in other["listeners"]["measured"] and "camus serve --listen" in other["listeners"]["fix"]
    finally:
        broker.kill_9()
    assert doctor(data, None)["lock"]["verdict"] == "pass"


def test_doctor_takes_the_settings_of_serve(on_disk):
    """Lost otherwise: a verdict on another broker than the one that is started."""
    done = camus("doctor", "--data-dir", on_disk, "--set", "camus.memory=1TiB", "--json", *QUICK)
    memory = next(check for check in json.loads(done.stdout)["checks"] if check["name"] == "memory")
    assert done.returncode == 2 and memory["verdict"] == "fail" and "camus serve --set camus.memory=" in memory["fix"]
    wrong = camus("doctor", "--data-dir", on_disk, "--set", "num.partition=1")
    assert wrong.returncode == 2 and "CAM-0001" in wrong.stderr
