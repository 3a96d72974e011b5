"""The storms: `python3 storms.py NAME HOST:PORT SECONDS TOPIC ROUND` says "up" when it is in full swing, goes on for
its time or its number, and prints what it did. `dummy` is a server that takes everything and answers nothing.

Those of `HOSTILE` are for `tests/abuse/hostile`: with `COUNT` behind the round, and they end with their standard input
as well.
"""

import os
import select
import socket
import struct
import sys
import time

import kit

CONNECTS = 20_000
IDLE = 1_500
DEAF = 16
HALVES = 200
#: Of `HOSTILE`: connections of each kind, and connections a second.
IDLERS = 2_000
HALF_OPEN = 200
LORIS = 50
HURRY = 1_000


def up():
    print("up", flush=True)


def source(number):
    """Connections that are closed keep their port for a minute: each few thousand come from another address."""
    return f"127.0.{10 + int(sys.argv[5])}.{1 + number // 4000}"


def idle(address, seconds, topic):
    """Open connections, of which every third sends a request byte by byte, and takes its answers."""
    conns = [kit.connect(address, source=source(n)) for n in range(IDLE)]
    trickling, request = conns[::3], kit.produce(topic, kit.batch(100))
    at = [n * 7 % len(request) for n in range(len(trickling))]
    for sock, done in zip(trickling, at, strict=True):
        sock.sendall(request[:done])
        sock.setblocking(False)
    up()
    end, sent = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        for n, sock in enumerate(trickling):
            sent += sock.send(request[at[n] : at[n] + 1])
            at[n] = (at[n] + 1) % len(request)
            if at[n] == 0:
                try:
                    sock.recv(4096)
                except BlockingIOError:
                    pass
        time.sleep(0.05)
    return f"{len(conns)} open, {sent} single bytes"


def connects(address, seconds, _topic):
    up()
    end, made = time.monotonic() + 4 * seconds, 0
    while made < CONNECTS and time.monotonic() < end:
        kit.connect(address, source=source(made)).close()
        made += 1
    return f"{made} connections"


def resets(address, seconds, topic):
    """Each with half of a request under way, so that something has to be forgotten."""
    up()
    half = kit.produce(topic, kit.batch(500))[:300]
    end, made = time.monotonic() + 4 * seconds, 0
    while made < CONNECTS and time.monotonic() < end:
        sock = kit.connect(address, source=source(made))
        sock.send(half)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
        made += 1
    return f"{made} resets"


def flood(address, seconds, count, frames, **options):
    """Sends the frames again and again on each connection, as far as the broker takes them, and reads nothing."""
    conns, sent, lost = {}, 0, 0
    up()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for n in range(count):
            if n not in conns:
                try:
                    sock = kit.connect(address, source=source(n), **options)
                    sock.setblocking(False)
                    conns[n] = [sock, b""]
                except OSError:
                    continue
            conn = conns[n]
            try:
                for _ in range(8):
                    conn[1] = conn[1] or frames[n % len(frames)]
                    took = conn[0].send(conn[1])
                    sent += took
                    conn[1] = conn[1][took:]
            except BlockingIOError:
                pass
            except OSError:
                lost += 1
                conn[0].close()
                del conns[n]
        time.sleep(0.005)
    return f"{sent / kit.MIB:.1f} MiB sent on {count} connections, {lost} closed by the broker"


def deaf(address, seconds, topic):
    """Half of them ask for 50 MiB with each request, half produce; none reads an answer."""
    frames = [kit.fetch(topic), kit.produce(topic, kit.batch(1000))]
    return flood(address, seconds, DEAF, frames, receive_buffer=4096)


def halves(address, seconds, topic):
    """Half of a request of 1 MiB on each connection, then a byte now and then."""
    request = kit.produce(topic, kit.batch(kit.MIB - 2000))
    conns, half = [], len(request) // 2
    for n in range(HALVES):
        sock = kit.connect(address, source=source(n))
        sock.settimeout(0.05)
        conns.append(sock)
    up()
    at, begun, lost = [0] * len(conns), time.monotonic(), 0
    while time.monotonic() - begun < seconds:
        for n, sock in enumerate(conns):
            if at[n] is None:
                continue
            to = half if at[n] < half else at[n] + 1
            try:
                sock.setblocking(False)
                at[n] += sock.send(request[at[n] : to])
            except BlockingIOError:
                pass
            except OSError:
                at[n], lost = None, lost + 1
        time.sleep(0.05)
    whole = sum(1 for n in at if n is not None and n >= half)
    return f"{whole} of {HALVES} halves were taken, {lost} closed by the broker"


def garbage(address, seconds, _topic):
    """Lengths that can not be, HTTP, TLS, noise: each connection sends one and begins again when it is closed."""
    hello = bytes.fromhex("16030100c8010000c40303") + os.urandom(194)
    kinds = [
        struct.pack(">i", 0x7FFFFFFF) + b"x" * 100,
        struct.pack(">i", -1) + b"x" * 100,
        struct.pack(">i", 100 * kit.MIB) + os.urandom(2000),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        hello,
        struct.pack(">ihhi", 50, 0, 3, 1) + os.urandom(46),
        struct.pack(">ihhi", 50, 999, 3, 1) + os.urandom(46),
        os.urandom(5000),
    ]
    up()
    end, made = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        conns = []
        for _ in range(16):
            sock = kit.connect(address, source=source(made))
            try:
                sock.sendall(kinds[made % len(kinds)])
            except OSError:
                pass
            conns.append(sock)
            made += 1
        time.sleep(0.002)
        for sock in conns:
            sock.close()
    return f"{made} connections with garbage"


def dummy():
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print(f"127.0.0.1:{listener.getsockname()[1]}", flush=True)
    listener.setblocking(False)
    poll, conns, buffer = select.epoll(), {}, bytearray(1 << 18)
    poll.register(listener, select.EPOLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == listener.fileno():
                try:
                    while True:
                        sock, _ = listener.accept()
                        sock.setblocking(False)
                        conns[sock.fileno()] = sock
                        poll.register(sock, select.EPOLLIN)
                except OSError:
                    continue
            try:
                if conns[fd].recv_into(buffer):
                    continue
            except BlockingIOError:
                continue
            except OSError:
                pass
            poll.unregister(fd)
            conns.pop(fd).close()


# all at once: tests/abuse/hostile


def going(seconds):
    """Turns for so long, or until standard input ends: whoever started us has enough, or is gone."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not select.select([sys.stdin], [], [], 0)[0]:
        yield


def opened(address, count):
    conns = [kit.connect(address, source=source(n)) for n in range(count)]
    for sock in conns:
        sock.setblocking(False)
    return conns


def still_open(conns):
    """How many of these the broker has not closed."""
    count = 0
    for sock in conns:
        try:
            count += sock.recv(1, socket.MSG_PEEK) != b""
        except BlockingIOError:
            count += 1
        except OSError:
            pass
    return count


def asked(count):
    return int(sys.argv[6]) if len(sys.argv) > 6 else count


def idlers(address, seconds, _topic):
    """Connections that say nothing at all."""
    conns = opened(address, asked(IDLERS))
    up()
    for _ in going(seconds):
        time.sleep(0.1)
    return f"{len(conns)} idle connections, {still_open(conns)} of them open at the end"


def half_open(address, seconds, topic):
    """A part of a frame, from half of its length to all but the last byte, and then silence."""
    request = kit.produce(topic, kit.batch(20_000))
    parts = 2, 4, 9, 20, len(request) // 2, len(request) - 1
    conns = opened(address, asked(HALF_OPEN))
    for n, sock in enumerate(conns):
        sock.send(request[: parts[n % len(parts)]])
    up()
    for _ in going(seconds):
        time.sleep(0.1)
    return f"{len(conns)} with a part of a frame, {still_open(conns)} of them open at the end"


def loris(address, seconds, topic):
    """A byte of a request every quarter of a second; who is closed comes again."""
    request = kit.produce(topic, kit.batch(100))
    conns = opened(address, asked(LORIS))
    at, sent, closed = [n * 7 % len(request) for n in range(len(conns))], 0, 0
    for sock, done in zip(conns, at, strict=True):
        sock.send(request[:done])
    up()
    for _ in going(seconds):
        for n, sock in enumerate(conns):
            try:
                sent += sock.send(request[at[n] : at[n] + 1])
                at[n] = (at[n] + 1) % len(request)
                if at[n] == 0:
                    sock.recv(4096)
            except BlockingIOError:
                pass
            except OSError:
                closed += 1
                sock.close()
                conns[n], at[n] = kit.connect(address, source=source(n)), 0
                conns[n].setblocking(False)
        time.sleep(0.25)
    return f"{len(conns)} that send a byte now and then, {sent} bytes, {closed} times closed by the broker"


def uvarint(n):
    out = bytearray()
    while n >= 0x80:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes([*out, n])


def tags(count, size=0):
    """Tagged fields that nobody knows."""
    return uvarint(count) + b"".join(uvarint(100 + tag) + uvarint(size) + bytes(size) for tag in range(count))


def flexible(key, version, header_tags, body):
    rest = struct.pack(">hhi", key, version, 1) + kit.text("abuse") + header_tags + body
    return struct.pack(">i", len(rest)) + rest


def create_with_tags(each):
    """CreateTopics 5, only to be validated, with tagged fields in each struct of each level."""
    replicas = uvarint(2) + struct.pack(">i", 0) + uvarint(2) + struct.pack(">i", 1) + each
    config = uvarint(2) + uvarint(2) + b"k" + uvarint(2) + b"v" + each
    topic = uvarint(2) + b"t" + struct.pack(">ih", -1, -1) + replicas + config + each
    return flexible(19, 5, each, uvarint(2) + topic + struct.pack(">i?", 1000, True) + each)


def lies(topic):
    """Frames that are wrong, each in a way of its own. None: noise, another one each time."""

    def raw(length, body):
        return struct.pack(">i", length) + body

    long_name = struct.pack(">h", 0x7FFF) + b"x"
    return [
        None,
        # lengths
        raw(0x7FFFFFFF, b"x" * 100),
        raw(100 * kit.MIB, os.urandom(2000)),
        raw(-1, b"x" * 100),
        raw(-0x80000000, b""),
        raw(0, b""),
        raw(3, b"xxx"),
        # keys and versions
        kit.frame(0x7FFF, 0, 1, b""),
        kit.frame(-1, 0, 1, b""),
        kit.frame(1000, 3, 1, os.urandom(50)),
        kit.frame(0, 99, 1, os.urandom(50)),
        kit.frame(3, -1, 1, b""),
        # arrays and texts that say more than there is: Metadata 1, Produce 3, Fetch 4
        kit.frame(3, 1, 1, struct.pack(">i", 0x7FFFFFFF)),
        kit.frame(3, 1, 1, struct.pack(">i", 100) + kit.text("one")),
        kit.frame(3, 1, 1, struct.pack(">i", 1) + long_name),
        kit.frame(3, 1, 1, struct.pack(">ih", 1, -2)),
        kit.frame(0, 3, 1, struct.pack(">hhii", -1, -1, 30_000, 1_000_000)),
        kit.frame(0, 3, 1, struct.pack(">hhii", -1, -1, 30_000, -2)),
        kit.frame(1, 4, 1, struct.pack(">iiiibi", -1, 0, 1, 1 << 20, 0, 1) + kit.text(topic) + struct.pack(">i", -5)),
        kit.produce(topic, b"")[:-4] + struct.pack(">i", 0x7FFFFFFF),
        # a whole request with noise for a batch, and a batch whose length lies
        kit.produce(topic, os.urandom(500)),
        kit.produce(topic, struct.pack(">qi", 0, 0x7FFFFFFF) + os.urandom(100)),
        # tagged fields: a count and a length that lie, many, in every struct, a number without an end (Metadata 12)
        flexible(3, 12, uvarint(0xFFFFFFFF), b""),
        flexible(3, 12, uvarint(1) + uvarint(0) + uvarint(1 << 30) + b"xx", b""),
        flexible(3, 12, tags(500_000), b"\1\0\0\0"),
        flexible(3, 12, tags(60, 100), b"\1\0\0" + tags(60, 100)),
        flexible(3, 12, b"\xff" * 100, b""),
        flexible(3, 12, b"\0", b"\xff" * 100),
        create_with_tags(tags(60, 10)),
        create_with_tags(tags(2000, 10)),
    ]


def noise(address, seconds, topic):
    """One client that sends what is no request, or lies about itself; each time on a new connection."""
    frames = lies(topic)
    up()
    made, closed, answered = 0, 0, 0
    for _ in going(seconds):
        with kit.connect(address, source=source(made)) as sock:
            sock.settimeout(0.05)
            try:
                sock.sendall(frames[made % len(frames)] or os.urandom(5000))
                if sock.recv(4096):
                    answered += 1
                else:
                    closed += 1
            except TimeoutError:
                pass
            except OSError:
                closed += 1
        made += 1
        time.sleep(0.002)
    silent = made - closed - answered
    return f"{made} frames of garbage: {closed} closed their connection, {answered} answered, {silent} neither in 50 ms"


def hurry(address, seconds, _topic):
    """Connections at a rate, closed at once."""
    rate = asked(HURRY)
    up()
    begun, made, failed = time.monotonic(), 0, 0
    for _ in going(seconds):
        due = int((time.monotonic() - begun) * rate)
        for _ in range(min(due - made, 100)):
            try:
                kit.connect(address, timeout=2, source=source(made)).close()
            except OSError:
                failed += 1
            made += 1
        time.sleep(0.001)
    return f"{made / (time.monotonic() - begun):.0f} connections a second (of {rate}), {failed} of {made} failed"


STORMS = {f.__name__: f for f in (idle, connects, resets, deaf, halves, garbage)}
HOSTILE = {f.__name__: f for f in (idlers, half_open, loris, noise, hurry)}

if __name__ == "__main__":
    cpu = int(os.environ.get("ABUSE_CPU") or max(os.sched_getaffinity(0)))
    os.sched_setaffinity(0, {cpu})
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    if sys.argv[1] == "dummy":
        dummy()
    name, address, seconds, topic = sys.argv[1:5]
    print((STORMS | HOSTILE)[name](address, float(seconds), topic), flush=True)
