"""Refused, large, slow and chunked bodies."""
import contextlib
import socket
import threading
import time

import pytest

JSON = "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"


def put(path, *headers):
    return "\r\n".join([f"PUT {path} HTTP/1.1", "Host: h", *headers, "", ""])


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


# ---- refusals ----

def test_413_declared(conn):
    conn.send(JSON + "Content-Length: 10000000\r\n\r\n")
    r = conn.reply()
    assert r.status == 413 and r.one("Connection") == "close" and r.problem()["code"] == "payload_too_large"
    assert conn.closed()


def test_413_declared_and_sent(shared):
    """The answer arrives although the client never stops sending."""
    for _ in range(5):
        with shared.conn() as c:
            c.send(JSON + "Content-Length: 10000000\r\n\r\n")
            try:
                c.send(b"x" * 4000000)
            except (ConnectionResetError, BrokenPipeError):
                pytest.fail("reset before the answer was read")
            assert c.reply().status == 413


def test_413_declared_little_too_much_keeps_the_connection(conn):
    conn.send(JSON + "Content-Length: 100001\r\n\r\n" + "x" * 100001)
    assert conn.reply().status == 413
    assert conn.usable()


def test_413_discovered_small(conn):
    conn.send(JSON + "Transfer-Encoding: chunked\r\n\r\n")
    for _ in range(12):
        conn.send(chunk(b"x" * 10000))
    conn.send("0\r\n\r\n")
    assert conn.reply().status == 413
    assert conn.usable()


def test_413_discovered_endless(shared):
    with shared.conn() as c:
        c.send(JSON + "Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(200):
            c.send(chunk(b"x" * 10000))
        r = c.reply()
        assert r.status == 413 and r.one("Connection") == "close"
        r.problem()
        c.half_close()
        assert c.closed()


def test_413_streamed(conn):
    conn.send(put("/capped", "Content-Length: 100001") + "x" * 100001)
    assert conn.reply().status == 413
    assert conn.usable()
    conn.send(put("/capped", "Content-Length: 1000001"))
    assert conn.reply().status == 413
    assert conn.closed()


def test_413_streamed_discovered(conn):
    conn.send(put("/capped", "Transfer-Encoding: chunked"))
    for _ in range(15):
        conn.send(chunk(b"x" * 10000))
    conn.send("0\r\n\r\n")
    assert conn.reply().status == 413
    assert conn.usable()


def test_401_before_upload(shared):
    with shared.conn() as c:
        c.send(put("/private", "Content-Length: 1000000000"))
        r = c.reply()
        assert r.status == 401 and r.one("Connection") == "close"
        assert c.closed()


def test_small_refused_body_keeps_the_connection(conn):
    conn.send(put("/private", "Content-Length: 10") + "0123456789")
    assert conn.reply().status == 401
    conn.send("POST /nothing HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nGET /")
    assert conn.reply().status == 404
    assert conn.usable()


NEVER_THERE = [
    ("POST /nothing HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n", 404),
    (put("/private", "Content-Length: 5000") + "x" * 4000, 401),
    (put("/refuse?ms=50", "Content-Length: 1000") + "x", 404),
    (JSON + "Transfer-Encoding: chunked\r\n\r\n20000\r\n" + "x" * 0x20000 + "\r\n", 413),
]


def test_a_refusal_does_not_wait_for_a_body_that_does_not_come(shared):
    """It would for 60 s here. It is told all the same, and the connection ends; what comes late is no reason for a reset."""
    with contextlib.ExitStack() as stack:
        conns = [stack.enter_context(shared.conn()) for _ in NEVER_THERE * 2]
        began = time.monotonic()
        for c, (request, _) in zip(conns, NEVER_THERE * 2):
            c.send(request)
        for i, (c, (_, status)) in enumerate(zip(conns, NEVER_THERE * 2)):
            assert c.reply().status == status
            if i < len(NEVER_THERE):
                c.send("x" * 10)
            assert c.rest() == b""
        assert time.monotonic() - began < 10


@pytest.mark.parametrize("ms", [0, 50])
def test_stream_handler_refuses_first(conn, ms):
    """Also when it took a while to find out, and the body is there already."""
    conn.send(put(f"/refuse?ms={ms}", "Content-Length: 1000") + "x" * 1000)
    assert conn.reply().status == 404
    assert conn.usable()
    conn.send(put(f"/refuse?ms={ms}", "Content-Length: 1000000") + "x" * 5000)
    assert conn.reply().status == 404
    assert conn.closed()


# ---- Expect ----

def test_expect_continue(conn):
    conn.send(JSON + "Expect: 100-continue\r\nContent-Length: 2\r\n\r\n")
    assert conn.head().status == 100
    conn.send("{}")
    assert conn.reply().status == 200
    assert conn.usable()


def test_expect_continue_waits_for_the_handler(conn):
    began = time.monotonic()
    conn.send(put("/upload?think_ms=200", "Expect: 100-continue", "Content-Length: 5"))
    assert conn.head().status == 100
    assert time.monotonic() - began >= 0.15
    conn.send("12345")
    assert conn.reply().json() == {"bytes": 5}
    assert conn.usable()


@pytest.mark.parametrize("request_", [
    JSON.replace("/echo", "/nothing") + "Expect: 100-continue\r\nContent-Length: 2\r\n\r\n",
    JSON.replace("application/json", "text/plain") + "Expect: 100-continue\r\nContent-Length: 2\r\n\r\n",
    JSON + "Expect: 100-continue\r\nContent-Length: 200000\r\n\r\n",
    put("/private", "Expect: 100-continue", "Content-Length: 2"),
    put("/refuse?ms=50", "Expect: 100-continue", "Content-Length: 2"),
    put("/refuse", "Expect: 100-continue", "Content-Length: 2"),
    put("/refuse", "Expect: 100-continue", "Transfer-Encoding: chunked"),
])
def test_expect_refused(conn, request_):
    """No 100 comes, and the connection ends: nobody knows whether the body follows."""
    conn.send(request_)
    r = conn.head()
    assert r.status in (401, 404, 413, 415)
    r.body = conn.exactly(int(r.one("Content-Length")))
    r.problem()
    assert conn.closed()


def test_expect_without_body(conn):
    conn.get("/hello", "Expect: 100-continue")
    assert conn.reply().status == 200
    assert conn.usable()


# ---- streamed uploads ----

@pytest.mark.parametrize("size", [0, 1, 4096, 4097, 100000, 3000000])
@pytest.mark.parametrize("chunked", [False, True])
def test_upload(conn, size, chunked):
    conn.send(put("/upload", "Transfer-Encoding: chunked" if chunked else f"Content-Length: {size}"))
    data = b"x" * size
    if chunked:
        for i in range(0, size, 50000):
            conn.send(chunk(data[i:i + 50000]))
        conn.send("0\r\n\r\n")
    else:
        conn.send(data)
    r = conn.reply()
    assert r.status == 201 and r.json() == {"bytes": size}
    assert conn.usable()


def test_many_chunks_in_one_segment_into_a_slow_consumer(shared):
    with shared.conn(timeout=20) as c:
        body = b"".join(chunk(b"abc") for _ in range(4000)) + b"0\r\n\r\n"
        c.send(put("/upload?each=500&every_ms=5", "Transfer-Encoding: chunked").encode() + body)
        assert c.reply().json() == {"bytes": 12000}
        assert c.usable()


def test_body_there_while_the_handler_thinks(conn):
    body = b"".join(chunk(b"abc") for _ in range(1000)) + b"0\r\n\r\n"
    conn.send(put("/upload?think_ms=100", "Transfer-Encoding: chunked").encode() + body)
    assert conn.reply().json() == {"bytes": 3000}
    assert conn.usable()
    conn.send(put("/upload?think_ms=100", "Content-Length: 3000") + "x" * 3000)
    assert conn.reply().json() == {"bytes": 3000}
    assert conn.usable()


def test_back_pressure(shared):
    """A slow consumer slows the sender down: what is under way stays small."""
    with shared.conn(timeout=20) as c:
        c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        c.send(put("/upload?each=1000&every_ms=20", "Content-Length: 50000000"))
        c.sock.setblocking(False)
        sent = 0
        until = time.monotonic() + 1
        while time.monotonic() < until:
            try:
                sent += c.sock.send(b"x" * 65536)
            except BlockingIOError:
                time.sleep(0.02)
        assert sent < 12000000, sent
        c.reset()


def test_handler_stops_a_long_upload(shared):
    """Disk full after the first bytes: the answer arrives while the client still sends."""
    for headers in (["Content-Length: 20000000"], ["Transfer-Encoding: chunked"]):
        with shared.conn() as c:
            c.send(put("/upload?stop_after=10000", *headers))
            for _ in range(100):
                c.send(chunk(b"x" * 20000) if "chunked" in headers[0] else b"x" * 20000)
            r = c.reply()
            assert r.status == 507 and r.one("Connection") == "close"
            assert r.problem()["code"] == "sandbox_disk_full"


def test_handler_stops_a_short_upload(conn):
    conn.send(put("/upload?stop_after=10000", "Content-Length: 50000") + "x" * 50000)
    assert conn.reply().status == 507
    assert conn.usable()


def test_both_ways(conn):
    data = bytes(range(256)) * 20  # less than both pipes: the answer begins when all of it is here
    conn.send(b"POST /cat HTTP/1.1\r\nHost: h\r\nContent-Length: 3000\r\n\r\n" + data[:3000])
    r = conn.reply()
    assert r.status == 200 and r.body == data[:3000]
    assert conn.usable()


def test_malformed_chunk(shared):
    for bad in (b"zz\r\nabc\r\n", b"3\r\nabcd\r\n", b"fffffffffffffffff\r\n", b"-1\r\n"):
        with shared.conn() as c:
            before = shared.stats()["hangups"]
            c.send(put("/upload", "Transfer-Encoding: chunked").encode() + chunk(b"abc") + bad)
            rest = c.rest()
            assert rest is not None and b"201" not in rest.split(b"\r\n")[0]
            shared.wait_stat("hangups", before + 1)


def test_uploads_in_parallel(shared):
    errors = []

    def one(i):
        try:
            with shared.conn(timeout=30) as c:
                for k in range(5):
                    size = 20000 + i * 1000 + k
                    c.send(put("/upload", "Transfer-Encoding: chunked"))
                    for at in range(0, size, 777):
                        c.send(chunk(b"y" * min(777, size - at)))
                    c.send("0\r\n\r\n")
                    assert c.reply().json() == {"bytes": size}
        except Exception as e:  # noqa: BLE001
            errors.append(e)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(16)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not errors
