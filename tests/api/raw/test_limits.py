"""Deadlines, limits, draining, stopping."""
import random
import socket
import threading
import time

import pytest

from rawhttp import Server


# ---- slow clients ----

def test_slow_loris():
    with Server(header_ms=500) as s:
        began = time.monotonic()
        with s.conn() as c:
            c.send("GET /hello HTTP/1.1\r\nHost: h\r\n")
            closed = False
            while not closed and time.monotonic() - began < 5:
                try:
                    c.send("X")
                    time.sleep(0.1)
                    closed = not c.silent(0.01)
                except (BrokenPipeError, ConnectionResetError):
                    closed = True
            assert closed and time.monotonic() - began < 3
        with s.conn() as c:
            assert c.usable()


def test_slow_first_byte_and_idle():
    with Server(header_ms=1500, idle_ms=1500) as s:
        with s.conn() as c:
            assert c.closed()
        with s.conn() as c:
            assert c.usable()
            assert c.closed()
        with s.conn() as c:
            for _ in range(4):
                assert c.usable()
                time.sleep(0.5)


def test_waiting_is_not_idle():
    with Server(header_ms=700, idle_ms=700, body_ms=700) as s:
        with s.conn() as c:
            assert c.get("/slow?ms=2000").reply().status == 200
            assert c.get("/stream?bytes=5&every_ms=300").reply().body == b"xxxxx"
            c.send("PUT /upload?each=1000&every_ms=200 HTTP/1.1\r\nHost: h\r\nContent-Length: 9000\r\n\r\n" + "x" * 9000)
            assert c.reply().json() == {"bytes": 9000}


@pytest.mark.parametrize("head", [
    "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n",
    "PUT /upload HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n",
    "POST /nothing HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n",
])
def test_slow_body(head):
    with Server(body_ms=500) as s:
        began = time.monotonic()
        with s.conn() as c:
            c.send(head)
            closed = False
            while not closed and time.monotonic() - began < 5:
                try:
                    c.send(" ")
                    time.sleep(0.1)
                    closed = not c.silent(0.01)
                except (BrokenPipeError, ConnectionResetError):
                    closed = True
            assert closed and time.monotonic() - began < 3


def test_slow_but_moving_upload_goes_on():
    with Server(body_ms=1000) as s:
        with s.conn() as c:
            c.send("PUT /upload HTTP/1.1\r\nHost: h\r\nContent-Length: 20000\r\n\r\n")
            for _ in range(10):
                c.send("x" * 2000)
                time.sleep(0.25)
            assert c.reply().json() == {"bytes": 20000}


@pytest.mark.parametrize("way", ["", "&source=1"])
def test_client_that_takes_nothing(way):
    with Server(stall_ms=1000, idle_ms=1000) as s:
        c = s.conn()
        c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        c.get("/stream?bytes=100000000000" + way)
        assert "complete=0" in s.log("GET /stream", seconds=15)
        c.sock.close()


@pytest.mark.parametrize("way", ["", "&source=1"])
def test_client_that_takes_little_at_a_time(way):
    """What counts is the time in which it takes nothing (some of what it has not taken yet is on its way), not the time for all."""
    with Server(stall_ms=2000, idle_ms=1000) as s:
        c = s.conn(timeout=30)
        c.get("/stream?bytes=20000000" + way)
        c.head()
        began, got = time.monotonic(), 0
        while data := c.chunk():
            got += len(data)
            time.sleep(len(data) / 5e6)
        assert got == 20000000 and time.monotonic() > began + 3


# ---- limits ----

def test_request_limit_answers_503():
    with Server(max_requests=3) as s:
        waiting = [s.conn().get("/slow?ms=1500") for _ in range(3)]
        time.sleep(0.2)
        with s.conn() as c:
            r = c.get("/hello").reply()
            assert r.status == 503 and r.one("Retry-After") == "1"
            assert r.problem()["code"] == "overloaded" and r.json()["retry_after"] == 1
            assert c.get("/health").reply().status == 200
            for w in waiting:
                assert w.reply().status == 200
            assert c.usable()


def test_connection_limit_answers_503():
    with Server(max_connections=5) as s:
        held = [s.conn() for _ in range(5)]
        for c in held:
            assert c.usable()
        for _ in range(10):
            with s.conn() as c:
                r = c.get("/hello").reply()
                assert r.status == 503 and r.one("Connection") == "close" and r.problem()["code"] == "overloaded"
                assert c.closed()
        held.pop().sock.close()
        until = time.monotonic() + 5
        while True:
            with s.conn() as c:
                if c.get("/hello").reply().status == 200:
                    break
            assert time.monotonic() < until


# ---- the end ----

def test_drain():
    with Server() as s:
        kept, slow, stream = s.conn(), s.conn(), s.conn()
        assert kept.usable()
        slow.get("/slow?ms=800")
        direct = s.conn().get("/stream?bytes=8&every_ms=100&source=1")
        stream.get("/stream?bytes=8&every_ms=100")
        assert stream.head().status == direct.head().status == 200
        time.sleep(0.1)
        s.drain()
        with pytest.raises(ConnectionRefusedError):
            s.conn()
        r = kept.get("/hello").reply()
        assert r.status == 503 and r.one("Connection") == "close" and r.problem()["code"] == "shutting_down"
        assert kept.closed()
        r = slow.reply()
        assert r.status == 200 and r.one("Connection") == "close"
        for c in (stream, direct):
            while c.chunk():
                pass
        assert s.stop(grace=2000) == 0


def test_health_while_draining():
    with Server() as s:
        c = s.conn()
        assert c.usable()
        s.drain()
        assert c.get("/health").reply().status == 200
        assert c.closed()


def test_stop_waits_for_grace_and_no_longer():
    with Server() as s:
        c = s.conn().get("/slow?ms=600")
        time.sleep(0.1)
        assert s.stop(grace=5000) == 0
        assert c.reply().status == 200 and s.took < 3


def test_stop_cancels():
    with Server() as s:
        c = s.conn().get("/slow?ms=20000&obey=1")
        time.sleep(0.1)
        assert s.stop(grace=100, cancel=5000) == 0
        assert c.reply().problem()["code"] == "unavailable" and s.took < 4


def test_stop_with_everything_open():
    """Waiting for a handler that does not obey, streaming, uploading, thinking, upgraded, idle, half a request."""
    with Server(daemons=2) as s:
        stubborn = s.conn().get("/slow?ms=3000")
        stream = s.conn().get("/stream?bytes=1000000&every_ms=50")
        endless = s.conn().get("/stream?bytes=1000000000000")
        direct = s.conn().get("/stream?bytes=1000000&every_ms=50&source=1")
        endless_direct = s.conn().get("/stream?bytes=1000000000000&source=1")
        upload = s.conn().send("PUT /upload?each=1&every_ms=50 HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\n" + "x" * 50000)
        thinking = s.conn().send("PUT /upload?think_ms=2000 HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\n" + "x" * 500)
        upgraded = s.conn().send("GET /upgrade HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
        idle, half = s.conn(), s.conn().send("GET /hello HT")
        assert idle.usable() and upgraded.head().status == 101 and stream.head().status == direct.head().status == 200
        time.sleep(0.2)
        assert s.stop(grace=100, cancel=200) == 0, s.err.decode(errors='replace')[-5000:]
        assert stubborn.reply().problem()["code"] == "shutting_down"
        for c in (stream, direct):
            with pytest.raises((EOFError, ConnectionResetError)):
                while c.chunk():
                    pass
        for c in (endless, endless_direct, upload, thinking, upgraded, idle, half):
            assert c.rest() is not None
        assert b"stopped" in s.err


def load(server, stop):
    rng = random.Random()
    targets = ["/hello", "/worker", "/slow?ms=5", "/slow?ms=50&obey=1", "/stream?bytes=20000", "/stream?bytes=3&every_ms=5",
               "/stream?bytes=20000&source=1", "/stream?bytes=3&every_ms=5&source=1", "/stream?bytes=3000000&source=1",
               "/file?bytes=5000", "/file?bytes=5000&hold=1"]
    while not stop.is_set():
        try:
            with server.conn(timeout=5) as c:
                for _ in range(rng.randint(1, 4)):
                    if rng.random() < 0.2:
                        c.send("PUT /upload HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" + "3\r\nabc\r\n" * 50 + "0\r\n\r\n")
                    elif rng.random() < 0.1:
                        c.send("GET /upgrade HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
                        c.head()
                        break
                    else:
                        c.get(rng.choice(targets))
                    if rng.random() < 0.2:
                        break
                    c.reply()
        except (OSError, EOFError):
            pass


@pytest.mark.parametrize("daemons", [1, 3])
def test_many_starts_and_stops_under_load(daemons):
    """Suspended, streaming and upgraded clients at every one of them; nothing crashes, nothing is left open."""
    with Server(daemons=daemons, quiet=1) as s:
        stop = threading.Event()
        threads = [threading.Thread(target=load, args=(s, stop)) for _ in range(6)]
        [t.start() for t in threads]
        try:
            for i in range(60):
                time.sleep(random.uniform(0, 0.1))
                s.again(grace=random.choice([0, 20]), cancel=random.choice([0, 50]))
        finally:
            stop.set()
            [t.join() for t in threads]
        s.again()
        first = s.descriptors()
        s.again()
        assert s.descriptors() <= first
