"""What an operator meets: the command line, settings, HTTP, memory, an idle broker."""

import os
import re
import socket
import subprocess
import threading
import time

import pytest

from harness import batch as rb
from harness import wire
from harness.broker import MIB, READY, Client, binary, fresh
from harness.wait import until
from harness.wire import Closed, Silent

pytestmark = pytest.mark.camus_only


def camus(*args, seconds=60, env=None, cwd=None):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("CAMUS_")}
    return subprocess.run(
        [binary(), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=seconds,
        cwd=cwd,
        env={**clean, **(env or {})},
        stdin=subprocess.DEVNULL,
    )


# settings


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("camus.memry", "camus.memory"),
        ("num.partition", "num.partitions"),
        ("listners", "listeners"),
        ("log.dirs", "camus.data.dir"),
    ],
)
def test_an_unknown_setting_is_refused_with_the_nearest_name(tmp_path, wrong, right):
    """Lost otherwise: a setting that somebody relies on and that a typing error took out of force."""
    done = camus("serve", "--data-dir", tmp_path / "d", "--set", f"{wrong}=1", cwd=tmp_path)
    said = done.stdout + done.stderr
    assert done.returncode == 2, said
    assert wrong in said and right in said, said
    assert not (tmp_path / "d").exists(), "a refused start left something on the disk"


def test_an_unknown_environment_variable_and_an_unknown_key_of_the_file_are_refused(tmp_path):
    """Lost otherwise: the same, for the two other sources."""
    done = camus("serve", "--data-dir", tmp_path / "d", env={"CAMUS_MEMRY": "1GiB"}, cwd=tmp_path)
    assert done.returncode == 2 and "CAMUS_MEMORY" in done.stderr, done.stderr
    (tmp_path / "c.toml").write_text("[num]\npartitons = 3\n")
    done = camus("serve", "--data-dir", tmp_path / "d", "--config", tmp_path / "c.toml", cwd=tmp_path)
    assert done.returncode == 2 and "num.partitions" in done.stderr and "c.toml" in done.stderr, done.stderr


@pytest.mark.parametrize(
    "pair", ["camus.memory=plenty", "num.partitions=0", "camus.wal.segment.bytes=7", "auto.create.topics.enable=maybe"]
)
def test_a_value_that_is_not_allowed_is_refused(tmp_path, pair):
    """Lost otherwise: a start with another value than the one that was meant."""
    done = camus("serve", "--data-dir", tmp_path / "d", "--set", pair, cwd=tmp_path)
    assert done.returncode == 2 and pair.split("=")[0] in done.stderr, done.stderr


def test_flags_beat_environment_beats_file(serve, tmp_path):
    """Lost otherwise: the operator's idea of which value is in force."""
    config = tmp_path / "c.toml"
    config.write_text('num.partitions = 2\n"default.replication.factor" = 1\n')

    def partitions(settings, env):
        broker = serve(name=fresh("d"), settings=settings, env=env, args=["--config", config])
        client, name = Client(broker), fresh("auto")

        def made():
            client.on().metadata([name], create=True)
            return client.on().metadata([name])["topics"][name]["partitions"]

        n = len(until(made, 20, "the topic is made by asking for it"))
        client.forget()
        broker.stop()
        return n

    assert partitions({}, {}) == 2
    assert partitions({}, {"CAMUS_NUM_PARTITIONS": "3"}) == 3
    assert partitions({"num.partitions": 4}, {"CAMUS_NUM_PARTITIONS": "3"}) == 4


def test_a_port_that_is_taken_is_said(broker, serve):
    """Lost otherwise: a newcomer's first quarter of an hour."""
    second = serve(name="second", start=False)
    second.address = broker.address
    second.launch()
    assert second.wait_end(15) == 14
    assert broker.address.rpartition(":")[2] in second.said() and "panicked" not in second.said(), second.said()


# topics from the command line


def test_topics_are_made_listed_described_and_deleted_from_the_command_line(broker, client):
    """Lost otherwise: the newcomer's tour."""
    name, to = fresh("cli"), ("--bootstrap", broker.address)
    made = camus("topic", "create", name, "--partitions", 3, *to)
    assert made.returncode == 0, made.stdout + made.stderr
    client.when_led(name, 3)
    listed = camus("topic", "list", *to)
    assert listed.returncode == 0 and name in listed.stdout, listed.stdout + listed.stderr
    told = camus("topic", "describe", name, *to)
    assert told.returncode == 0 and name in told.stdout, told.stdout + told.stderr
    again = camus("topic", "create", name, *to)
    assert again.returncode == 1 and "exist" in again.stdout + again.stderr, again.stdout + again.stderr
    gone = camus("topic", "delete", name, *to)
    assert gone.returncode == 0, gone.stdout + gone.stderr
    assert name not in camus("topic", "list", *to).stdout
    none = camus("topic", "describe", name, *to)
    assert none.returncode == 1, none.stdout + none.stderr


def test_a_command_without_a_broker_says_where_it_looked(tmp_path):
    """Lost otherwise: whether it was the address or the broker."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        address = "127.0.0.1:%d" % sock.getsockname()[1]
        done = camus("topic", "list", "--bootstrap", address)
    assert done.returncode == 20 and address in done.stderr, done.stderr


# HTTP


def test_live_ready_and_metrics(broker, client):
    """Lost otherwise: what an orchestrator and Prometheus look at."""
    assert broker.get("/livez")[0] == 200
    assert broker.get("/readyz")[0] == 200
    assert broker.get("/nothing-here")[0] == 404
    topic = client.topic()
    for _ in range(20):
        client.put(topic, [b"x" * 500])
    status, page = broker.get("/metrics")
    assert status == 200
    samples = {}
    for line in page.splitlines():
        if line and not line.startswith("#"):
            assert re.fullmatch(r'[a-zA-Z_:][\w:]*(\{[^}]*\})? \S+', line), line
            name, _, value = line.rpartition(" ")
            samples[name] = float(value)
    names = {n.partition("{")[0] for n in samples}
    for stage in ("decode", "queue", "wal", "commit", "send"):
        assert any(stage in n for n in samples), f"no sample of the stage {stage}: {sorted(names)}"
    for what in ("fsync", "flush", "turn", "memory"):
        if what not in ("fsync", "flush"):
            assert any(what in n for n in names), f"nothing about {what}: {sorted(names)}"
    assert any("fsync" in n or "flush" in n for n in names), sorted(names)


def test_ready_says_no_while_the_log_is_read(serve):
    """Lost otherwise: requests that an orchestrator sends to a broker that is not there yet. A broker either does not
    answer yet or says why; it never says yes before Kafka requests are served."""
    broker = serve(start=False).launch()
    said_yes, end = None, time.monotonic() + 20
    while not said_yes and time.monotonic() < end:
        ready = READY.search(broker.out.read_text())
        if ready:
            broker.address, broker.http, _ = ready.groups()
            said_yes = broker.get("/readyz")[0] == 200
        time.sleep(0.005)
    assert said_yes, broker.said()
    Client(broker).healthy()


def test_http_garbage_harms_nobody(broker, client):
    """Lost otherwise: the broker, to whatever scans its HTTP port."""
    host, _, port = broker.http.rpartition(":")
    for data in (
        b"\x00" * 100,
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: x\r\n",
    ):
        with socket.create_connection((host, int(port)), timeout=5) as sock:
            try:
                sock.sendall(data)
                sock.settimeout(0.5)
                sock.recv(1000)
            except OSError:
                pass
    assert broker.get("/livez")[0] == 200
    client.healthy()


# memory


@pytest.mark.both_io
@pytest.mark.alone
@pytest.mark.timeout(180)
def test_at_the_memory_budget_it_answers_retriably_and_goes_on(serve):
    """Lost otherwise: the broker, to more work than its memory holds: 24 connections, each with 8 requests of 900 KB in
    flight (170 MB in all), against a budget of 128 MiB."""
    broker = serve(env={"CAMUS_MEMORY": "128MiB"})
    client = Client(broker)
    topic = client.topic(8)
    codes, peak, stop = {}, [0], threading.Event()
    end = time.monotonic() + 10

    def load(me):
        batch = rb.build([os.urandom(900_000)])
        try:
            with client.connect(timeout=60) as conn:
                pending = []
                while time.monotonic() < end or pending:
                    while len(pending) < 8 and time.monotonic() < end:
                        pending.append(conn.send_produce(topic, batch, me % 8))
                    code = conn.receive_produce(pending.pop(0)).error
                    codes[code] = codes.get(code, 0) + 1
        except (Closed, Silent) as error:
            codes[type(error).__name__] = codes.get(type(error).__name__, 0) + 1

    def watch():
        while not stop.wait(0.05):
            peak[0] = max(peak[0], broker.rss_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    threads = [threading.Thread(target=load, args=(me,)) for me in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    stop.set()
    watcher.join()
    assert not any(thread.is_alive() for thread in threads), f"requests hang: {codes}"
    assert set(codes) <= {0} | wire.RETRIABLE, codes
    assert codes.get(0, 0) >= 20, codes
    print(f"peak {peak[0] // MIB} MiB, answers {codes}")
    # The budget, the binary and its threads, and what the allocator keeps of buffers between two uses.
    assert peak[0] < (128 + 160) * MIB, f"peak {peak[0] // MIB} MiB"
    total = sum(client.on().end(topic, p) for p in range(8))
    assert total == codes[0], "what was answered is not what is in the log"
    client.healthy()
    client.forget()


@pytest.mark.alone
def test_an_idle_broker_does_not_spin(serve):
    """Lost otherwise: a core's power for nothing: at most 1 % of a core, averaged, with a poll parked."""
    broker = serve()
    client = Client(broker)
    topic = client.topic(8)
    with client.connect() as reader:
        reader.send_fetch(topic, {0: 0}, max_wait_ms=60000)
        time.sleep(1.5)
        before, begun = broker.cpu_seconds(), time.monotonic()
        time.sleep(6)
        share = (broker.cpu_seconds() - before) / (time.monotonic() - begun)
    assert share <= 0.02, f"{share:.1%} of a core while idle"
    assert broker.rss_bytes() <= 128 * MIB, f"{broker.rss_bytes() // MIB} MiB while idle"
    client.forget()


# idle connections


def test_an_idle_connection_is_closed_and_a_busy_one_is_not(serve):
    """Lost otherwise: descriptors, to clients that are gone without a word; or answers, to one that waits for them."""
    client = Client(serve(settings={"connections.max.idle.ms": 1500}))
    topic = client.topic()
    with client.connect() as idle, client.connect() as busy, client.connect() as waiting:
        idle.api_versions()
        correlation = waiting.send_fetch(topic, {0: 0}, max_wait_ms=5000)
        begun = time.monotonic()
        while time.monotonic() < begun + 4:
            busy.api_versions()
            time.sleep(0.2)
        idle.assert_closed(timeout=1)
        waiting.receive_fetch(correlation)
