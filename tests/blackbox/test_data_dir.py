"""The data directory: one process, damage found and reported, a full disk survived."""

import hashlib
import os
import shutil
import socket
import subprocess
import time
import uuid
from pathlib import Path

import pytest

from harness import batch as rb
from harness import wire
from harness.broker import MIB, Client, binary, fresh, killed_after
from harness.mounts import small_ext4
from harness.wait import until

pytestmark = pytest.mark.camus_only


def camus(*args, seconds=60):
    return subprocess.run([binary(), *map(str, args)], capture_output=True, text=True, timeout=seconds)


def files_with(folder, needle):
    """(file, offset) of each place where the bytes lie."""
    found = []
    for path in sorted(Path(folder).rglob("*")):
        if path.is_file():
            data, at = path.read_bytes(), -1
            while (at := data.find(needle, at + 1)) >= 0:
                found.append((path, at))
    return found


def digest(folder):
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(Path(folder).rglob("*"))
        if p.is_file() and p.name != "lock"
    }


def test_a_second_process_on_the_same_data_is_refused(serve, broker, client):
    """Lost otherwise: the log: two writers of one WAL."""
    topic = client.topic()
    client.put(topic, [b"mine"])
    second = serve(data_dir=broker.data_dir, start=False).launch()
    status = second.wait_end(15)
    assert status == 12, "the exit status of a locked data directory is part of the interface"
    said = second.said()
    assert "lock" in said.lower() or "in use" in said.lower() or "another" in said.lower(), said
    assert str(broker.data_dir) in said, said
    assert "panicked" not in said, said
    assert client.put(topic, [b"still mine"]) == 1


def test_removing_the_lock_file_lets_no_second_process_in(serve, broker, client):
    """Lost otherwise: the log: somebody deletes `lock` as if it were stale, and two write one WAL."""
    topic = client.topic()
    client.put(topic, [b"mine"])
    (broker.data_dir / "lock").unlink()
    second = serve(data_dir=broker.data_dir, start=False).launch()
    assert second.wait_end(15) == 12, second.said()
    assert client.put(topic, [b"still mine"]) == 1


@pytest.mark.restarts
def test_the_lock_dies_with_the_process(broker, client):
    """Lost otherwise: the broker, after every crash, if a stale lock must be removed by hand."""
    topic = client.topic()
    for i in range(4):
        client.put(topic, [b"%d" % i])
        broker.kill_9()
        client.forget()
        broker.start()
        client.when_led(topic)
    assert client.values(topic) == [b"0", b"1", b"2", b"3"]


def damaged(broker, client):
    """Writes enough, stops the broker, flips one byte of a record in the middle of the WAL: (file, offset)."""
    topic, marks = client.topic(), [uuid.uuid4().hex.encode() for _ in range(40)]
    for mark in marks:
        client.put(topic, [mark * 40])
    client.forget()
    broker.stop()
    path, at = files_with(broker.data_dir, marks[len(marks) // 2])[0]
    with open(path, "r+b") as file:
        file.seek(at + 5)
        byte = file.read(1)
        file.seek(at + 5)
        file.write(bytes([byte[0] ^ 0x20]))
    return topic, marks, path, at + 5


@pytest.mark.both_io
@pytest.mark.restarts
def test_damage_in_the_middle_of_the_wal_stops_the_start_and_is_named(broker, client):
    """Lost otherwise: acknowledged records, silently: damage is never cut off, never served."""
    _, _, path, at = damaged(broker, client)
    before = digest(broker.data_dir)
    broker.launch()
    status = broker.wait_end(30)
    said = broker.said()
    assert status == 11, f"the exit status of a damaged WAL is 11, not {status}:\n{said}"
    assert path.name in said, f"{path.name} is not named:\n{said}"
    assert "camus ready" not in said and "panicked" not in said, said
    assert "wal verify" in said, f"what to run is not named:\n{said}"
    assert digest(broker.data_dir) == before, "the refused start changed the data"
    found = camus("wal", "verify", "--data-dir", broker.data_dir)
    text = found.stdout + found.stderr
    assert found.returncode not in (0, 101) and found.returncode > 0, text
    assert path.name in text, text
    assert digest(broker.data_dir) == before, "verify changed the data"


@pytest.mark.restarts
def test_the_place_of_the_damage_is_named_with_its_offset(broker, client):
    """Lost otherwise: the operator's hours: the message must say where, within the group that holds the byte."""
    import re

    _, _, path, at = damaged(broker, client)
    broker.launch()
    broker.wait_end(30)
    said = broker.said()
    numbers = [int(n.replace(" ", "").replace("_", "").replace(",", "")) for n in re.findall(r"\d[\d _,]*\d|\d", said)]
    near = [n for n in numbers if at - 2 * MIB <= n <= at + MIB or at // 4096 - 512 <= n <= at // 4096 + 1]
    assert near, f"no offset near {at} (block {at // 4096}):\n{said}"


@pytest.mark.restarts
def test_a_log_that_can_not_be_written_is_refused_at_the_start(broker, client):
    """Lost otherwise: the operator's hours: a wrong owner was told as a failed disk, and only at the first write."""
    client.put(client.topic(), [b"there"])
    client.forget()
    broker.stop()
    core = broker.data_dir / "core-0"
    core.chmod(0o500)
    if os.geteuid() == 0:
        # Root may write anywhere; without its capabilities it is as any other owner.
        command = broker.command
        broker.command = lambda: ["setpriv", "--inh-caps=-all", "--bounding-set=-all", *command()]
    broker.launch()
    status, said = broker.wait_end(30), broker.said()
    core.chmod(0o700)
    assert status == 13 and "CAM-0101" in said and str(core) in said, said


@pytest.mark.both_io
@pytest.mark.restarts
def test_a_start_that_one_core_refuses_ends_at_once(serve):
    """Lost otherwise: seconds of every try: a sound core waited out its time for stopping before it was said why."""
    broker = serve(cores=2)
    with killed_after(broker) as client:
        client.put(client.topic(), [b"there"])
        client.forget()
        broker.stop()
        with open(sorted((broker.data_dir / "core-1").glob("*.wal"))[0], "r+b") as file:
            file.seek(100)
            file.write(b"damage")
        begun = time.monotonic()
        broker.launch()
        assert broker.wait_end(30) == 11, broker.said()
        assert time.monotonic() - begun < 4, "it waited for a core that had nothing to finish"


@pytest.mark.restarts
@pytest.mark.parametrize("removed", ["its-first-file", "its-files", "its-directory"])
def test_a_removed_log_stops_the_start(broker, client, removed):
    """Lost otherwise: every record, without a word: the broker starts empty and gives the same offsets again."""
    client.put(client.topic(), [b"there"])
    client.forget()
    broker.stop()
    core = broker.data_dir / "core-0"
    files = sorted(core.glob("*.wal"))
    if removed == "its-directory":
        shutil.rmtree(core)
    for path in {"its-first-file": files[:1], "its-files": files, "its-directory": []}[removed]:
        path.unlink()
    before = digest(broker.data_dir)
    broker.launch()
    assert broker.wait_end(30) == 11, broker.said()
    assert str(core) in broker.said() and "camus ready" not in broker.said(), broker.said()
    assert digest(broker.data_dir) == before, "the refused start changed the data"
    assert camus("wal", "verify", "--data-dir", broker.data_dir).returncode == 11


@pytest.mark.restarts
def test_a_sound_wal_verifies_and_dumps(broker, client):
    """Lost otherwise: trust in `wal verify`: it must say yes to what is whole, also after kill -9."""
    topic = client.topic()
    for i in range(30):
        client.put(topic, [b"%d" % i])
    client.forget()
    broker.kill_9()
    before = digest(broker.data_dir)
    sound = camus("wal", "verify", "--data-dir", broker.data_dir)
    assert sound.returncode == 0, sound.stdout + sound.stderr
    dump = camus("wal", "dump", "--data-dir", broker.data_dir)
    assert dump.returncode == 0 and dump.stdout.count("\n") >= 30, dump.stdout[-2000:] + dump.stderr
    assert digest(broker.data_dir) == before
    broker.start()
    client.when_led(topic)
    assert client.on().end(topic) == 30


@pytest.mark.restarts
def test_a_torn_last_write_is_dropped_and_nothing_else(broker, client):
    """Lost otherwise: the start after a power failure, if the unfinished last write were taken for damage."""
    topic = client.topic()
    marks = [uuid.uuid4().hex.encode() for _ in range(20)]
    for mark in marks:
        client.put(topic, [mark * 300])
    client.forget()
    broker.kill_9()
    # The last group as a torn write leaves it: its later part never arrived.
    path, at = files_with(broker.data_dir, marks[-1])[0]
    with open(path, "r+b") as file:
        block = at // 4096 * 4096 + 4096
        file.seek(block)
        file.write(bytes(4096))
    broker.start()
    client.when_led(topic)
    values = client.values(topic)
    assert values == [mark * 300 for mark in marks[: len(values)]]
    assert len(values) == len(marks) - 1
    assert client.put(topic, [b"next"]) == len(values)


def until_refused(conn, topic, chunk, limit):
    """Appends until a produce is refused; the bytes appended and the refusal."""
    done, appended = None, 0
    while appended < limit:
        done = conn.produce(topic, rb.build([os.urandom(chunk)]), timeout_ms=3000, timeout=60)
        if done.error:
            return appended, done
        appended += chunk
    raise AssertionError(f"{appended} bytes were taken on a disk of {limit}")


@pytest.mark.both_io
@pytest.mark.alone
@pytest.mark.timeout(240)
def test_a_full_disk_refuses_produce_serves_fetch_and_heals(serve, tmp_path):
    """Lost otherwise: the broker (it dies), the readers (they are refused too), or the night (somebody must restart
    it)."""
    with small_ext4(tmp_path, 400) as mount:
        ballast = mount / "ballast"
        ballast.write_bytes(os.urandom(MIB) * 150)
        broker = serve(data_dir=mount / "data")
        with killed_after(broker) as client:
            topic, values_before = client.topic(), [b"a%d" % i for i in range(10)]
            for value in values_before:
                client.put(topic, [value])
            with client.connect() as writer:
                _, refused = until_refused(writer, topic, 900_000, 400 * MIB)
                assert refused.error in wire.RETRIABLE - {wire.CORRUPT_MESSAGE, wire.UNKNOWN_TOPIC}, refused
                # Refused again, in time, and the log keeps what was acknowledged.
                again = writer.produce(topic, rb.build([os.urandom(900_000)]), timeout_ms=3000, timeout=30)
                assert again.error in wire.RETRIABLE, again
                assert client.values(topic)[:10] == values_before
                end = client.on().end(topic)
                status, _ = broker.get("/livez")
                assert status == 200
                ballast.unlink()

                def taken():
                    done = writer.produce(topic, rb.build([b"healed"]), timeout_ms=3000, timeout=30)
                    return done if done.error == 0 else None

                healed = until(taken, 30, "produce works again when there is space")
                assert healed.base_offset >= end
            assert client.values(topic, start=healed.base_offset)[0] == b"healed"
            client.forget()
            broker.kill_9()
            broker.start()
            client.when_led(topic)
            assert client.values(topic, end=10) == values_before
            assert client.values(topic, start=healed.base_offset, end=healed.base_offset + 1) == [b"healed"]


@pytest.mark.alone
def test_a_start_on_a_full_disk_says_so(serve, tmp_path):
    """Lost otherwise: the operator's time: a start without space must end or serve, and say which disk is full."""
    with small_ext4(tmp_path, 64) as mount:
        with open(mount / "ballast", "wb") as ballast:
            try:
                while True:
                    ballast.write(bytes(MIB))
            except OSError:
                pass
        broker = serve(data_dir=mount / "data", start=False).launch()
        time.sleep(5)
        said = broker.said()
        if broker.process.poll() is not None:
            assert broker.wait_end() > 0
        assert any(word in said.lower() for word in ("space", "full", "no room")), said
        assert "panicked" not in said, said
        broker.kill_9()


@pytest.mark.alone
def test_the_wal_limit_refuses_and_a_deleted_topic_frees(serve, tmp_path):
    """Lost otherwise: the disk of the host: the WAL takes no more than its limit, and gives back what nobody needs."""
    broker = serve(env={"CAMUS_WAL_DISK_LIMIT": str(256 * MIB)})
    client = Client(broker)
    try:
        first, second = client.topic(), client.topic()
        with client.connect() as writer:
            taken, refused = until_refused(writer, first, 900_000, 500 * MIB)
            assert refused.error in wire.RETRIABLE, refused
            assert taken >= 90 * MIB
            used = sum(p.stat().st_blocks * 512 for p in broker.data_dir.rglob("*") if p.is_file())
            assert used <= 256 * MIB + 4 * MIB, f"{used} bytes on the disk"
            assert client.on().end(first) * 900_000 == taken
            assert client.on().delete_topic(first) == 0

            def freed():
                return writer.produce(second, rb.build([b"x" * 100_000]), timeout_ms=3000).error == 0

            until(freed, 30, "space of a deleted topic is used again")
    finally:
        client.forget()


@pytest.mark.restarts
def test_a_large_log_over_many_segments_comes_back_whole(serve):
    """Lost otherwise: everything that lies in another segment than the last."""
    broker = serve()
    client = Client(broker)
    try:
        topic, hashes = client.topic(3), {p: [] for p in range(3)}
        for i in range(120):
            value = os.urandom(700_000)
            client.put(topic, [value], i % 3)
            hashes[i % 3].append(hashlib.sha256(value).digest())
        for _ in range(2):
            for p in range(3):
                assert [hashlib.sha256(v).digest() for v in client.values(topic, p)] == hashes[p]
            client.forget()
            broker.kill_9()
            broker.start()
            client.when_led(topic, 3)
    finally:
        client.forget()


@pytest.mark.both_io
def test_idle_clients_leave_descriptors_for_the_log_and_the_http_port(serve):
    """Lost otherwise: whoever is connected: 300 idle clients, and the log can open no file, `/livez` no connection."""
    broker = serve(start=False)
    command = broker.command
    broker.command = lambda: ["prlimit", "--nofile=100:100", *command()]
    broker.start()
    assert "descriptors are allowed" in broker.said(), broker.said()
    with killed_after(broker) as client:
        topic = client.topic()
        client.put(topic, [b"before"])
        host, port = broker.address.rsplit(":", 1)
        idle = [socket.create_connection((host, int(port)), 10) for _ in range(300)]
        for _ in range(3):
            time.sleep(0.3)
            open_now = len(os.listdir(f"/proc/{broker.process.pid}/fd"))
            assert open_now <= 80, f"{open_now} of 100 descriptors are taken"
            assert broker.get("/livez")[0] == 200
        # Over the end of a segment: files are opened and made meanwhile.
        for _ in range(50):
            client.put(topic, [os.urandom(900_000)])
        for conn in idle:
            conn.close()

        def served_again():
            client.forget()
            return client.on().end(topic) == 51

        until(served_again, 10, "a new client is served when the idle ones are gone")


def test_a_data_directory_that_can_not_be_made_is_an_error_not_a_panic(serve, tmp_path):
    """Lost otherwise: a newcomer: the first thing that goes wrong must be understood."""
    (tmp_path / "file").write_text("not a directory")
    broker = serve(data_dir=tmp_path / "file" / fresh(), start=False).launch()
    assert broker.wait_end(15) > 0
    said = broker.said()
    assert "panicked" not in said and str(tmp_path / "file") in said, said
