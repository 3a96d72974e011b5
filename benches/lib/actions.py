"""The rows that are more than one call of `camus bench`.

An action is a function of the row's context (runner.Context) and a started broker. It leaves the JSON of its steps and
what else it found in the context. A system that can not do a part of it says so by `context.skip`.
"""

import threading
import time

from . import host, rows, wire

MIB = 1 << 20
#: What a topic of many partitions may take to be there.
MANY_S = 120.0
#: Records of 1 KiB in one request of our own filling: below Kafka's 1 MiB a batch.
FILL_RECORDS = 960


def run(context, broker, row):
    action = row.action if callable(row.action) else ACTIONS[row.action]
    action(context, broker, row.settings)


def fetch_tail(context, broker, settings):
    fill = context.scaled(settings["fill_mb"])
    context.bench(broker, rows.Step("steady", "fetch", ("--fill-mb", fill, "--partitions", 1)))


def fetch_cold(context, broker, settings):
    size = context.scaled(settings["bytes"])
    topic = "cold"
    fill(broker, topic, size)
    broker.stop()
    context.extra["forgotten_by"] = host.forget(broker.data_dir)
    context.extra["floor_read_mb_per_s"] = host.sequential_read(broker.data_dir, min(size, 2048 * MIB))
    broker.start(seconds=300)
    context.extra["start_s"] = round(broker.start_s, 3)
    wait_for_leaders(broker, topic)
    # The start itself reads the log.
    host.forget(broker.data_dir)
    words = ("--topic", topic, "--no-fill", "--once", "--keep-topic", "--partitions", 1)
    # One pass: the next one would find in memory what this one read.
    context.bench(broker, rows.Step("steady", "fetch", words, most_s=60, warm=False))
    context.extra["bytes"] = size


def idle(context, broker, settings):
    seconds = context.scaled(settings["seconds"])
    context.extra["empty"] = at_rest(broker, seconds)
    partitions = context.scaled(settings["partitions"])
    begun = time.monotonic()
    try:
        wire.make_topic(broker.address, "idle", partitions, MANY_S)
    except (wire.Broken, OSError) as error:
        context.skip("many", f"{partitions:,} partitions within {MANY_S:.0f} s: {error}")
        return
    context.extra["create_s"] = round(time.monotonic() - begun, 3)
    context.extra["partitions"] = partitions
    context.extra["many"] = at_rest(broker, seconds)


def at_rest(broker, seconds, settle_s=3.0):
    time.sleep(settle_s)
    cpu, begun = host.cpu_seconds(broker.pid), time.monotonic()
    time.sleep(seconds)
    spent = host.cpu_seconds(broker.pid) - cpu
    return {
        "rss_bytes": host.rss_bytes(broker.pid),
        "cpu_percent": round(100 * spent / (time.monotonic() - begun), 3),
        "seconds": seconds,
    }


def rss_after_load(context, broker, _):
    """The work of the rows above in short: load, many partitions, a fetch; each on a topic of its own."""
    for row, share in [(rows.BY_NAME["load_8"], 0.5), (rows.BY_NAME["load_256"], 0.5), (rows.BY_NAME["open_256"], 0.5)]:
        step = row.steps[-1]
        words = step.args
        context.bench(broker, rows.Step(row.name, step.mode, words, share=share, most_s=6, warm=False), floor=False)
    time.sleep(5.0)
    context.extra["rss_bytes"] = host.rss_bytes(broker.pid)
    context.extra["rss_max_bytes"] = host.rss_max_bytes(broker.pid)
    if hasattr(context.system, "memory_bytes"):
        context.extra["memory_bytes"] = context.system.memory_bytes()


def restart(context, broker, settings):
    topic, size = "restart", context.scaled(settings["bytes"])
    fill(broker, topic, size)
    broker.kill()
    host.forget(broker.data_dir)
    begun = time.monotonic()
    broker.launch()
    context.extra["first_ack_s"] = round(first_ack(broker, topic, begun), 3)
    while not broker.is_ready(broker) and time.monotonic() - begun < 60:
        time.sleep(0.005)
    context.extra["ready_s"] = round(time.monotonic() - begun, 3)
    context.extra["bytes"] = size


def first_ack(broker, topic, begun, seconds=300.0):
    """Seconds from `begun` to the first acknowledged record, asked for again every 5 ms."""
    value = b"x" * 1024
    while time.monotonic() - begun < seconds:
        try:
            with wire.Conn(broker.address, timeout=10) as conn:
                while True:
                    if conn.produce(topic, value) == 0:
                        return time.monotonic() - begun
                    time.sleep(0.005)
        except (wire.Broken, OSError):
            if broker.process.poll() is not None:
                raise wire.Broken(f"the broker ended at its restart:\n{broker.said()}") from None
            time.sleep(0.005)
    raise wire.Broken(f"nothing was acknowledged within {seconds:.0f} s of the restart")


def churn(context, broker, settings):
    step = ("produce", settings["args"])
    context.bench(broker, rows.Step("alone", *step))
    ended, counts = threading.Event(), {"cycles": 0, "failed": 0, "error": ""}

    def make_and_delete():
        while not ended.is_set():
            try:
                with wire.Conn(broker.address) as conn:
                    make_and_delete_on(conn)
            except (wire.Broken, OSError) as error:
                again_after(str(error))

    def make_and_delete_on(conn):
        """On one connection: a process for each topic would be a load of its own."""
        while not ended.is_set():
            topic = f"churn-{counts['cycles'] + counts['failed']}"
            made = conn.create_topic(topic, settings["partitions"])
            gone = conn.delete_topic(topic)
            if made or gone:
                again_after(f"CreateTopics ended with error {made}, DeleteTopics with {gone}")
            else:
                counts["cycles"] += 1

    def again_after(why):
        counts["failed"] += 1
        counts["error"] = why[:300]
        ended.wait(0.2)

    worker = threading.Thread(target=make_and_delete)
    worker.start()
    try:
        context.bench(broker, rows.Step("beside", *step))
    finally:
        ended.set()
        worker.join()
    context.extra.update(counts)
    if not counts["cycles"]:
        context.skip("beside", f"no topic could be made and deleted: {counts['error']}")


def fill(broker, topic, size):
    """Appends so many bytes of 1 KiB records to partition 0, four requests in flight, each acknowledged."""
    wire.make_topic(broker.address, topic, 1, 30)
    request = wire.produce_frame(topic, 0, wire.batch(b"f" * 1024, FILL_RECORDS))
    total = -(-size // (FILL_RECORDS * 1024))
    with wire.Conn(broker.address, timeout=60) as conn:
        sent = answered = 0
        while answered < total:
            while sent < total and sent - answered < 4:
                conn.sock.sendall(wire.again(request, sent))
                sent += 1
            (length,) = wire.struct.unpack(">i", conn.exactly(4))
            error = wire.produce_error(conn.exactly(length))
            if error:
                raise wire.Broken(f"filling was refused with error {error} after {answered} of {total} requests")
            answered += 1


def wait_for_leaders(broker, topic, seconds=60.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            with wire.Conn(broker.address) as conn:
                found = conn.partitions(topic)
            if found and all(code == 0 and leader >= 0 for code, leader in found.values()):
                return
        except (wire.Broken, OSError):
            pass
        time.sleep(0.05)
    raise wire.Broken(f"topic {topic} has no leader {seconds:.0f} s after the start")


ACTIONS = {
    "fetch_tail": fetch_tail,
    "fetch_cold": fetch_cold,
    "idle": idle,
    "rss_after_load": rss_after_load,
    "restart": restart,
    "churn": churn,
}

