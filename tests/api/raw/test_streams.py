"""Answers that come piece by piece, files, upgrades."""
import threading
import time

import pytest


# How the server gets at the bytes: from a pipe through the parser library, or from a source and past it.
WAYS = pytest.mark.parametrize("way", ["", "&source=1"])


@WAYS
@pytest.mark.parametrize("size", [0, 1, 16384, 16385, 5000000])
def test_stream(conn, size, way):
    r = conn.get(f"/stream?bytes={size}{way}").reply()
    assert r.status == 200 and r.one("Transfer-Encoding") == "chunked" and r.body == b"x" * size
    assert conn.usable()


@pytest.mark.parametrize("size", [0, 1, 16385, 5000000])
def test_stream_of_known_length(conn, size):
    r = conn.get(f"/stream?bytes={size}&length={size}").reply()
    assert r.one("Content-Length") == str(size) and not r.all("Transfer-Encoding") and r.body == b"x" * size
    assert conn.usable()


@WAYS
def test_headers_and_pieces_come_at_once(conn, way):
    began = time.monotonic()
    conn.get("/stream?bytes=20&every_ms=150" + way)
    assert conn.head().status == 200
    assert conn.chunk() == b"x"
    assert time.monotonic() - began < 2.5  # all of it takes 2.85 s
    rest = b""
    while data := conn.chunk():
        rest += data
    assert rest == b"x" * 19 and time.monotonic() - began > 2
    assert conn.usable()


@WAYS
def test_http_1_0_stream_ends_with_the_connection(conn, way):
    conn.send(f"GET /stream?bytes=100000{way} HTTP/1.0\r\n\r\n")
    r = conn.reply()
    assert not r.all("Transfer-Encoding") and r.body == b"x" * 100000


@pytest.mark.parametrize("target", ["/stream?bytes=100&fail=1", "/stream?bytes=100&fail=1&source=1", "/stream?bytes=100000&fail=1&source=1", "/stream?bytes=100&length=200",
                                    "/stream?bytes=100000&fail=1&length=200000"])
def test_failed_stream_is_cut(conn, target):
    conn.get(target)
    with pytest.raises((EOFError, ConnectionResetError)):
        conn.reply()


def test_stream_longer_than_promised(conn):
    assert conn.get("/stream?bytes=1000&length=500").reply().body == b"x" * 500
    assert conn.usable()


@pytest.mark.parametrize("hold", [0, 1])
@pytest.mark.parametrize("size", [0, 10, 1000000, 10000000])
def test_file(shared, conn, size, hold):
    r = conn.get(f"/file?bytes={size}&hold={hold}").reply()
    assert r.body == b"0123456789" * (size // 10) and r.one("Content-Length") == str(size)
    if size > 15:
        assert conn.get(f"/file?bytes={size}&offset=15&hold={hold}").reply().body == r.body[15:]
    assert conn.usable()
    until = time.monotonic() + 5
    while shared.stats()["holds"]:
        assert time.monotonic() < until


@pytest.mark.parametrize("hold", [0, 1])
def test_shrunk_file_is_cut(conn, hold):
    conn.get(f"/file?bytes=100000&short=1&hold={hold}")
    with pytest.raises((EOFError, ConnectionResetError)):
        conn.reply()


@WAYS
def test_slow_reader(shared, way):
    with shared.conn(timeout=30) as c:
        c.get("/stream?bytes=3000000" + way)
        time.sleep(0.5)
        r = c.reply()
        assert len(r.body) == 3000000
        assert c.usable()


def test_many_at_once_take_turns(shared):
    """Endless ones that are read as fast as they come, and small ones beside them."""
    loud = [shared.conn(timeout=30).get("/stream?bytes=100000000000&source=1") for _ in range(4)]
    stop = threading.Event()

    def read(c):
        while not stop.is_set():
            c.sock.recv(1 << 18)
    threads = [threading.Thread(target=read, args=[c]) for c in loud]
    for t in threads:
        t.start()
    try:
        for _ in range(50):
            with shared.conn(timeout=30) as c:
                assert c.get("/stream?bytes=10&source=1").reply().body == b"x" * 10 and c.usable()
    finally:
        stop.set()
        for t in threads:
            t.join()
        for c in loud:
            c.sock.close()


def test_pipelined_requests_behind_a_stream(conn):
    """They wait in the socket while the answer is written past the parser."""
    conn.get("/stream?bytes=100000&source=1").get("/hello").get("/stream?bytes=50000&source=1").get("/hello")
    assert conn.reply().body == b"x" * 100000 and conn.reply().json() == {"hello": "world"}
    assert conn.reply().body == b"x" * 50000 and conn.reply().json() == {"hello": "world"}
    assert conn.usable()


def test_upgrade_with_early_data(shared):
    with shared.conn() as c:
        c.send("GET /upgrade HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nearly")
        r = c.head()
        assert r.status == 101 and r.one("Upgrade") == "echo" and r.one("Connection") == "Upgrade"
        assert c.exactly(5) == b"early"
        c.send("more")
        assert c.exactly(4) == b"more"
        c.half_close()
        assert c.closed()
    assert "complete=1" in shared.log("GET /upgrade op=upgrade status=101")


def test_upgrade_refused_for_1_0(shared):
    with shared.conn() as c:
        c.send("GET /upgrade HTTP/1.0\r\nHost: h\r\n\r\n")
        assert c.rest() is not None
