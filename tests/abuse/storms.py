"""The storms: `python3 storms.py NAME HOST:PORT SECONDS TOPIC ROUND` says "up" when it is in full swing, goes on for
its time or its number, and prints what it did. `dummy` is a server that takes everything and answers nothing."""

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


STORMS = {f.__name__: f for f in (idle, connects, resets, deaf, halves, garbage)}

if __name__ == "__main__":
    cpu = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpu})
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    if sys.argv[1] == "dummy":
        dummy()
    name, address, seconds, topic = sys.argv[1:5]
    print(STORMS[name](address, float(seconds), topic), flush=True)
