"""`camus bench` as a user runs it: each mode against a broker, and what it says where it can not measure."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading

import pytest

from harness.broker import Client, binary, fresh

pytestmark = pytest.mark.camus_only
SHORT = ["--warmup-s", "0.3", "--duration-s", "1"]


def bench(*args, seconds=90):
    return subprocess.run(
        [binary(), "bench", *map(str, args)],
        capture_output=True,
        text=True,
        timeout=seconds,
        stdin=subprocess.DEVNULL,
    )


def measured(*args):
    done = bench(*args, "--json", "-")
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(line.startswith("warning:") for line in done.stderr.splitlines()), "progress is for terminals"
    return json.loads(done.stdout)


def watched(broker):
    return ["--bootstrap", broker.address, "--broker-pid", broker.pid, "--data-dir", broker.data_dir]


def topics(client):
    return subprocess.run(
        [binary(), "topic", "list", "--bootstrap", client], capture_output=True, text=True, timeout=30, check=True
    ).stdout


def in_order(latency):
    return 0 < latency["p50"] <= latency["p90"] <= latency["p99"] <= latency["p999"] <= latency["max"]


def test_a_closed_loop_reports_latency_cost_and_flushes(broker):
    """Lost otherwise: the first thing anybody runs, and its JSON."""
    run = measured("produce", *watched(broker), *SHORT, "--partitions", 3, "--connections", 2, "--idempotent")
    assert run["mode"] == "produce" and run["errors"] == {}
    assert run["requests"] == run["records"] == run["latency_us"]["count"] > 0
    assert run["bytes"] == 1024 * run["records"]
    assert in_order(run["latency_us"]) and 0.9 < run["seconds"] < 60
    assert run["cpu"]["client_s"] > 0 and run["cpu"]["broker_s"] is not None
    assert run["broker"]["rss_bytes"] > 1 << 20
    assert run["settings"]["partitions"] == 3 and run["floor"] is None
    assert run["distribution"][-1][0] == 100
    assert not run["topic_was_there"]
    assert not [said for said in run["warnings"] if "does not listen" in said], "it is the broker"
    device = run["device"]
    if device and device["write_back"] and not device["fua"]:
        # Two requests are outstanding at most, so Camus needs half a flush for each; others may add to it.
        assert device["flushes_per_request"] > 0.4, device
        assert "did not flush" not in run["durability"]
    assert "camus-bench" not in topics(broker.address), "its topic is deleted"


def test_what_is_watched_and_is_not_the_brokers_is_warned_of(broker):
    """Lost otherwise: figures of another process, or a report in which the disk is missing without a word."""
    args = ["--bootstrap", broker.address, "--broker-pid", os.getpid(), "--data-dir", "/dev/shm", *SHORT]
    done = bench("produce", *args)
    assert done.returncode == 0, done.stderr
    for said in [f"process {os.getpid()} does not listen on port", "/dev/shm lies on tmpfs: nothing is counted"]:
        assert said in done.stderr and said in done.stdout, done


def test_an_open_loop_sends_what_is_due(broker):
    """Lost otherwise: the rate that was asked for, and the latency from when it was due."""
    run = measured("open", *watched(broker), *SHORT, "--rate", 200)
    assert run["requests"] + sum(run["errors"].values()) == 200
    assert run["settings"]["in_flight"] == 5
    assert in_order(run["latency_us"]) and run["send_delay_us"]["count"] == 200


def test_records_are_followed_to_their_consumer(broker):
    """Lost otherwise: the latency that users feel."""
    run = measured("e2e", *watched(broker), *SHORT, "--rate", 200, "--partitions", 4)
    assert run["errors"] == {}
    assert run["latency_us"]["count"] == run["produce_latency_us"]["count"] == 200
    assert in_order(run["latency_us"]) and in_order(run["produce_latency_us"])


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_was_produced_is_read_back_once(broker, codec):
    """Lost otherwise: batches that a broker stores and no client can read; a fetch that skips or repeats."""
    args = ["fetch", *watched(broker), "--fill-mb", 8, "--partitions", 3, "--connections", 2, "--once"]
    run = measured(*args, "--codec", codec, "--payload", "words")
    assert run["errors"] == {}
    assert run["records"] == -(-8_000_000 // 65536) * 64
    assert (run["bytes"] > 8_000_000) == (codec == "none"), "a codec makes words smaller"


def test_a_topic_that_is_there_is_used_and_left(broker):
    """Lost otherwise: somebody's topic and its records."""
    client = Client(broker)
    name = client.topic(partitions=2)
    client.put(name, [b"mine"])
    client.forget()
    run = measured("fetch", *watched(broker), *SHORT, "--topic", name, "--no-fill")
    assert run["records"] > 0 and name in topics(broker.address)
    assert run["topic_was_there"]
    done = bench("produce", *watched(broker), *SHORT, "--topic", name, "--partitions", 3)
    assert done.returncode == 1 and "CAM-0601" in done.stderr and "it has 2" in done.stderr, done.stderr
    assert name in topics(broker.address)


def test_the_floor_stands_beside_and_runs_are_drawn_over_each_other(broker, tmp_path):
    """Lost otherwise: what a figure is held against."""
    files = []
    for name in ["a", "b"]:
        out = tmp_path / f"{name}.json"
        args = ["--json", out, "--svg", tmp_path / f"{name}.svg", "--floor-dir", tmp_path, "--floor-s", "0.2"]
        done = bench("produce", *watched(broker), *SHORT, *args)
        assert done.returncode == 0 and "p99.9" in done.stdout, done.stderr
        assert "floor 4 KiB, 1 in flight, before" in done.stdout
        floor = json.loads(out.read_text())["floor"]
        assert in_order(floor["before"]["write_4k_us"]) and floor["after"]["sequential_mb_per_s"] > 0
        assert (tmp_path / f"{name}.svg").read_text().startswith("<svg")
        files.append(out)
    done = bench("plot", tmp_path / "both.svg", *files, "--label", "first")
    assert done.returncode == 0, done.stderr
    svg = (tmp_path / "both.svg").read_text()
    assert "\nfirst" in svg and ("\nb\n" in svg or "\nb (" in svg), "with what it has for itself"
    assert "produce" in svg and "50%" in svg


def test_nobody_there_and_no_broker_are_told_at_once(tmp_path):
    """Lost otherwise: minutes, and the reason."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = "127.0.0.1:%d" % free.getsockname()[1]
        done = bench("open", "--bootstrap", address, seconds=20)
        assert done.returncode == 20 and "CAM-0301" in done.stderr and address in done.stderr, done.stderr
    for said in [b"HTTP/1.1 400 Bad Request\r\n\r\n", os.urandom(64), b""]:
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = "127.0.0.1:%d" % server.getsockname()[1]

            def answer(server=server, said=said):
                connection, _ = server.accept()
                with connection:
                    connection.recv(1000)
                    connection.sendall(said)

            thread = threading.Thread(target=answer)
            thread.start()
            done = bench("produce", "--bootstrap", address, seconds=60)
            thread.join()
            assert done.returncode == 20 and address in done.stderr, done.stderr


def test_who_accepts_and_says_nothing_is_waited_for_no_longer_than_asked():
    """Lost otherwise: half a minute at a wrong port, and Ctrl-C unheard."""
    for args, stop, code in [(["--timeout-s", 1], False, "CAM-0301"), (["--timeout-s", 3600], True, "CAM-0401")]:
        with socket.create_server(("127.0.0.1", 0)) as server:
            command = ["bench", "produce", "--bootstrap", "127.0.0.1:%d" % server.getsockname()[1], *args]
            run = subprocess.Popen(
                [binary(), *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            try:
                connection, _ = server.accept()
                with connection:
                    assert connection.recv(1000), "it asks"
                    if stop:
                        run.send_signal(signal.SIGINT)
                    _, said = run.communicate(timeout=20)
                assert code in said, said
            finally:
                run.kill()


def test_what_does_not_go_is_refused_before_anything_is_done(broker, tmp_path):
    """Lost otherwise: a long run that ends without its result."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    here = ["--bootstrap", broker.address, *SHORT]
    cases = [
        (["produce", *here, "--broker-pid", gone.pid], 2, "CAM-0605"),
        (["produce", *here, "--data-dir", tmp_path / "nowhere"], 2, "CAM-0605"),
        (["produce", *here, "--floor-dir", tmp_path / "nowhere"], 2, "CAM-0605"),
        (["produce", *here, "--json", tmp_path / "nowhere" / "a.json"], 2, "CAM-0607"),
        (["e2e", *here, "--codec", "lz4"], 2, "CAM-0606"),
        (["open", *here, "--rate", "0"], 2, "CAM-0606"),
        (["produce", *here, "--rate", "500"], 2, "CAM-0606"),
        (["produce", "--bootstrap", "127.0.0.1"], 2, "CAM-0606"),
        (["produce", "--bootstrap", "127.0.0.1:99999"], 2, "CAM-0606"),
        (["fetch", *here, "--no-fill", "--topic", fresh()], 1, "CAM-0302"),
        (["produce", *here, "--record-bytes", 2_000_000], 1, "CAM-0604"),
        (["plot", tmp_path / "a.svg", tmp_path / "nowhere.json"], 2, "CAM-0607"),
        (["plot", tmp_path / "a.json", tmp_path / "b.json"], 2, "CAM-0607"),
        (["produce", *here, "--json", tmp_path], 2, "CAM-0607"),
    ]
    for args, status, code in cases:
        done = bench(*args)
        assert done.returncode == status and code in done.stderr, (args, done.returncode, done.stdout + done.stderr)
    assert "camus-bench" not in topics(broker.address)


def test_a_report_is_printed_whatever_becomes_of_its_file(broker):
    """Lost otherwise: a whole run, for a disk that was full at its end."""
    done = bench("produce", *watched(broker), *SHORT, "--json", "/dev/full")
    assert done.returncode == 2 and "CAM-0607" in done.stderr, done.stderr
    assert "p99.9" in done.stdout


def test_an_answer_that_can_not_be_written_is_no_success(broker, tmp_path):
    """Lost otherwise: a result, and a script goes on as if it had one."""
    commands = [
        ["bench", "produce", *watched(broker), *SHORT],
        ["waltest", tmp_path, "--seconds", "0.05"],
        ["doctor", "--data-dir", tmp_path, "--seconds", "0.1"],
    ]
    env = {name: value for name, value in os.environ.items() if not name.startswith("CAMUS_")}
    for command in commands:
        command = [binary(), *map(str, command)]
        with open("/dev/full", "w") as full:
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=90, env=env)
        assert done.returncode == 2 and "CAM-0403" in done.stderr, (command, done)
    # A reader that has gone away is no failure.
    read, write = os.pipe()
    os.close(read)
    try:
        gone = subprocess.run([binary(), "explain", "CAM-0601"], stdout=write, stderr=subprocess.PIPE, timeout=30)
    finally:
        os.close(write)
    assert gone.returncode == 0 and gone.stderr == b"", gone


@pytest.mark.restarts
def test_a_broker_that_dies_ends_the_run(serve):
    """Lost otherwise: a figure of a run in which the broker was gone, or a client that waits for ever."""
    broker = serve()
    args = ["produce", "--bootstrap", broker.address, "--duration-s", "60", "--warmup-s", "0"]
    run = subprocess.Popen([binary(), "bench", *args], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        client = Client(broker)
        for _ in range(100):
            if "camus-bench" in topics(broker.address):
                break
        client.forget()
        broker.kill_9()
        _, said = run.communicate(timeout=60)
        assert run.returncode == 20 and ("CAM-0603" in said or "CAM-0301" in said), said
    finally:
        run.kill()
        broker.start()


@pytest.mark.restarts
def test_ctrl_c_while_the_broker_hangs_is_heard_and_says_what_is_left(serve):
    """Lost otherwise: a minute of waiting, and a topic that is said to be gone and is not."""
    broker = serve()
    topic = fresh()
    args = ["produce", "--bootstrap", broker.address, "--duration-s", "60", "--warmup-s", "0", "--topic", topic]
    run = subprocess.Popen([binary(), "bench", *args], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        for _ in range(200):
            if topic in topics(broker.address):
                break
        os.kill(broker.pid, signal.SIGSTOP)
        run.send_signal(signal.SIGINT)
        # The clean-up is given 2 s; the default --timeout-s would be 30 s.
        _, said = run.communicate(timeout=20)
        assert run.returncode == 130 and "CAM-0401" in said, said
        assert f"deleting topic {topic}; Ctrl-C again to leave it" in said
        assert f"topic {topic} is still there" in said and f"camus topic delete {topic}" in said
    finally:
        run.kill()
        os.kill(broker.pid, signal.SIGCONT)
