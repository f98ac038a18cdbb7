"""Switches of protocol through the proxy, with scripted servers behind it."""
import contextlib
import json
import os
import socket
import struct
import threading
import time

import pytest
import ws
from gateway import Front
from harness import SLOW
from upstream import Rig, Upstream, reply, response, values

TOKEN = "svc-key-0123456789"


def target(up, rest="/"):
    return f"/leases/l1/proxy/{up.port}{rest}"


def opened(c, up, headers="", rest="/"):
    c.send(ws.request(target(up, rest), headers=headers))
    line, fields = c.head()
    assert line.split()[1] == b"101", line
    return fields


def say(c, opcode, data):
    c.send(ws.frame(opcode, data, True))


def counts(rig):
    return json.loads(rig.ask(b"GET /counts HTTP/1.1\r\nHost: h\r\n\r\n")[2])


def settled(rig):
    deadline = time.monotonic() + 20 * SLOW
    while time.monotonic() < deadline:
        if counts(rig)["running"] == 0:
            return True
        time.sleep(0.02)
    return False


# ---- the handshake ----


def test_the_services_own_answer_arrives(direct):
    seen = []

    def serve(conn):
        line, fields = conn.head()
        seen.append((line, fields))
        conn.send(ws.accept(fields, headers="X-Own: 1\r\nX-Own: 2\r\nSet-Cookie: a=b\r\nSandgate-Error: forged\r\nX-Request-Id: theirs\r\n"))
        assert conn.closed()

    with Upstream(serve) as up, direct.client() as c:
        fields = opened(c, up, "Sec-WebSocket-Protocol: chat, super.chat\r\nSec-WebSocket-Extensions: permessage-deflate\r\nOrigin: https://app.example\r\n"
                               "X-Request-Id: mine\r\nX-Forwarded-For: 6.6.6.6\r\n", "/socket?a=%2F")
    assert values(fields, "Sec-WebSocket-Accept") == [ws.accept_of("dGhlIHNhbXBsZSBub25jZQ==")]
    assert values(fields, "Sec-WebSocket-Protocol") == ["super.chat"]
    assert values(fields, "Upgrade") == ["websocket"] and values(fields, "Connection") == ["Upgrade"]
    assert values(fields, "X-Own") == ["1", "2"] and values(fields, "X-Request-Id") == ["mine"]
    for gone in ("Set-Cookie", "Sandgate-Error", "Content-Security-Policy", "Content-Length", "Transfer-Encoding"):
        assert values(fields, gone) == [], gone
    line, got = seen[0]
    assert line == b"GET /socket?a=%2F HTTP/1.1"
    assert values(got, "Connection") == ["Upgrade"] and values(got, "Upgrade") == ["websocket"]
    assert values(got, "Sec-WebSocket-Extensions") == ["permessage-deflate"] and values(got, "X-Forwarded-For") == ["127.0.0.1"]
    assert values(got, "Sec-WebSocket-Version") == ["13"]


def test_host_and_origin_are_those_of_plain_requests(rig):
    seen = []

    def serve(conn):
        line, fields = conn.head()
        seen.append([values(fields, n) for n in ("Host", "Origin", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Prefix", "Cookie")])
        conn.send(ws.accept(fields) if values(fields, "Upgrade") else reply(b"ok"))

    same = "Origin: https://app.example\r\nCookie: a=b\r\n"
    with Upstream(serve) as up, rig.client() as c:
        assert rig.get(up, headers=same)[0] == 200
        opened(c, up, same)
        port = up.port
    assert seen[0] == seen[1] == [[f"127.0.0.1:{port}"], ["https://app.example"], ["public.example"], ["http"], [f"/leases/l1/proxy/{port}"], ["a=b"]]


def test_a_refusal_is_an_ordinary_answer(rig):
    def serve(conn):
        while True:
            conn.head()
            conn.send(reply(b"no", status="426 Upgrade Required", headers="Upgrade: other\r\n"))

    with Upstream(serve) as up, rig.client() as c:
        for _ in range(2):  # the connections on both sides stay usable
            c.send(ws.request(target(up)))
            assert response(c)[::2] == (426, b"no")
        assert up.connections == 1


@pytest.mark.parametrize("kind", [Rig, Front])
def test_who_may_not_come_in(kind):
    with kind("--token", TOKEN) as rig, Upstream(ws.echo) as up:
        for headers in ("", "Authorization: Bearer wrong\r\n", "Sec-WebSocket-Protocol: chat\r\n"):
            status, fields, body = rig.ask(ws.request(target(up), headers=headers))
            assert status == 401 and values(fields, "Sandgate-Error") == ["unauthorized"] and values(fields, "Location") == []
            assert json.loads(body)["code"] == "unauthorized"
        assert up.connections == 0
        with rig.client() as c:
            opened(c, up, f"X-API-Key: {TOKEN}\r\n")
            say(c, ws.CLOSE, b"")
            assert ws.read_frame(c) == (ws.CLOSE, b"")


def test_what_is_not_passed_on_as_a_switch(direct):
    """HTTP/2 over a tunnel would be requests nobody looks at; a body comes first; Connection must say so."""
    seen = []

    def serve(conn):
        while True:
            line, fields = conn.head()
            seen.append((values(fields, "Upgrade"), values(fields, "Connection"), values(fields, "HTTP2-Settings"), conn.body(fields)))
            conn.send(reply(b"plain"))

    with Upstream(serve) as up:
        for head in ("Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n", "Upgrade: websocket\r\n",
                     "Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 2\r\n"):
            body = b"xy" if "Length" in head else b""
            got = direct.ask(f"POST {target(up)} HTTP/1.1\r\nHost: h\r\n{head}\r\n".encode() + body)
            assert got[::2] == (200, b"plain")
        status, _, _ = direct.ask(f"GET {target(up)} HTTP/1.0\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n".encode())
        assert status == 200
    assert seen == [([], [], [], b""), ([], [], [], b""), ([], [], [], b"xy"), ([], [], [], b"")]


def test_a_switch_nobody_named_is_an_error(rig):
    for head in ("", "Upgrade: x\r\n", "Connection: upgrade\r\n", "Upgrade:\r\nConnection: upgrade\r\n"):
        def serve(conn):
            conn.head()
            conn.send(f"HTTP/1.1 101 Switching Protocols\r\n{head}\r\n".encode())
            conn.closed()

        with Upstream(serve) as up:
            status, fields, _ = rig.ask(ws.request(target(up)))
            assert status == 502 and values(fields, "Sandgate-Error") == ["endpoint_failed"], head


# ---- the bytes ----


def test_frames_and_close_codes_are_intact(rig):
    big = os.urandom(1024 * 1024)
    with Upstream(ws.echo) as up, rig.client() as c:
        opened(c, up)
        for opcode, data in ((ws.TEXT, "größer".encode()), (ws.BINARY, bytes(range(256))), (ws.BINARY, big), (ws.TEXT, b"")):
            say(c, opcode, data)
            assert ws.read_frame(c) == (opcode, data)
        say(c, ws.PING, b"are you there")
        assert ws.read_frame(c) == (ws.PONG, b"are you there")
        bye = struct.pack(">H", 4001) + b"enough"
        say(c, ws.CLOSE, bye)
        assert ws.read_frame(c) == (ws.CLOSE, bye)
        assert c.file.read() == b""
    assert settled(rig)


def test_the_services_close_arrives_while_the_client_still_talks(rig):
    """The service closes its connection with the client's bytes unread: what it said before must arrive all the same."""
    def serve(conn):
        _, fields = conn.head()
        conn.send(ws.accept(fields))
        ws.read_frame(conn)
        conn.send(ws.frame(ws.CLOSE, struct.pack(">H", 4002) + b"busy", False))

    for _ in range(20):
        with Upstream(serve) as up, rig.client() as c:
            opened(c, up)
            try:
                for _ in range(50):
                    say(c, ws.BINARY, b"x" * 20000)
            except OSError:
                pass
            assert ws.read_frame(c) == (ws.CLOSE, struct.pack(">H", 4002) + b"busy")
    assert settled(rig)


def test_early_bytes_in_both_directions(rig):
    hello = ws.frame(ws.TEXT, b"hello from the service", False)

    def serve(conn):
        _, fields = conn.head()
        conn.send(ws.accept(fields) + hello)
        opcode, data = ws.read_frame(conn)
        conn.send(ws.frame(opcode, data, False))
        assert conn.closed()

    for early in (b"early", b"e" * 20000):
        with Upstream(serve) as up, rig.client() as c:
            c.send(ws.request(target(up)) + ws.frame(ws.TEXT, early, True))
            assert c.head()[0].split()[1] == b"101"
            assert ws.read_frame(c) == (ws.TEXT, b"hello from the service")
            assert ws.read_frame(c) == (ws.TEXT, early)


def test_other_protocols_and_half_closes(direct):
    def serve(conn):
        _, fields = conn.head()
        assert values(fields, "Upgrade") == ["tally/2, other"]
        conn.send(b"HTTP/1.1 101 Yes\r\nConnection: upgrade\r\nUpgrade: tally/2\r\n\r\n")
        total = 0
        while data := conn.file.read1(65536):
            total += len(data)
        conn.send(str(total).encode())  # after the client's end

    with Upstream(serve) as up, direct.client() as c:
        c.send(f"POST {target(up)} HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: tally/2, h2c\r\nUpgrade: other\r\n\r\n".encode())
        _, fields = c.head()
        assert values(fields, "Upgrade") == ["tally/2"]
        c.send(b"x" * 3000000)
        c.sock.shutdown(socket.SHUT_WR)
        assert c.file.read() == b"3000000"

    def serve_first(conn):
        conn.head()
        conn.send(b"HTTP/1.1 101 Yes\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nall of it")
        conn.sock.shutdown(socket.SHUT_WR)
        got.append(conn.file.read())

    got = []
    with Upstream(serve_first) as up, direct.client() as c:
        c.send(f"GET {target(up)} HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n".encode())
        c.head()
        assert c.file.read() == b"all of it"  # up to the service's end
        c.send(b"still here")
        c.sock.shutdown(socket.SHUT_WR)
    assert got == [b"still here"]
    assert settled(direct)


def test_a_slow_side_holds_the_other_one_back(rig):
    """Nobody reads: the sender is stopped by what fits in sockets, and everything arrives once somebody does."""
    size = 64 * 1024 * 1024
    go = threading.Event()
    got = []

    def serve(conn):
        _, fields = conn.head()
        conn.send(ws.accept(fields))
        assert go.wait(60)
        total = 0
        while total < size:
            total += len(conn.file.read1(1 << 20))
        got.append(total)
        conn.send(b"done")
        assert conn.closed()

    def send_all(c):
        block = b"z" * (1 << 20)
        for _ in range(size // len(block)):
            c.send(block)
            sent[0] += len(block)

    sent = [0]
    with open(f"/proc/{rig.process.pid}/status") as f:
        before = next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))
    with Upstream(serve) as up, rig.client() as c:
        opened(c, up)
        sender = threading.Thread(target=send_all, args=(c,))
        sender.start()
        last = -1
        while last != sent[0]:
            last = sent[0]
            time.sleep(0.3)
        assert 0 <= sent[0] < size, "nobody stopped the sender"
        with open(f"/proc/{rig.process.pid}/status") as f:
            after = next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))
        go.set()
        sender.join(60 * SLOW)
        assert c.exact(4) == b"done" and got == [size]
        if SLOW == 1:
            assert after - before < 2048, f"{before} KiB -> {after} KiB"


# ---- time and ends ----


def test_idle_is_no_reason_to_be_cut_but_standing_still_is():
    def serve(conn):
        _, fields = conn.head()
        conn.send(ws.accept(fields))
        if values(fields, "X-How"):
            seen.append(conn.sock.recv(1))
            stuck.wait(60)
            return
        while True:
            opcode, data = ws.read_frame(conn)
            conn.send(ws.frame(opcode, data, False))

    seen, stuck = [], threading.Event()
    with Rig("--first-byte-ms", "300", "--stall-ms", "600") as rig, Upstream(serve) as up:
        with rig.client() as idle, rig.client() as full:
            opened(idle, up)
            opened(full, up, "X-How: stuck\r\n")
            with pytest.raises(OSError):
                while True:
                    full.send(b"x" * 65536)  # nobody takes it: cut after stall-ms
            time.sleep(1.5 * SLOW)
            say(idle, ws.TEXT, b"still there?")
            assert ws.read_frame(idle) == (ws.TEXT, b"still there?")
            stuck.set()


def test_the_end_of_the_lease_ends_it():
    ended = []

    def serve(conn):
        _, fields = conn.head()
        conn.send(ws.accept(fields))
        ended.append(conn.closed())

    with Rig() as rig, Upstream(serve) as up, rig.client() as c:
        opened(c, up)
        assert counts(rig)["running"] == 1
        rig.end_lease()
        assert c.closed() and settled(rig)
        assert counts(rig) == {"exchanges": 0, "connections": 0, "running": 0}
    assert ended == [True]


def test_the_end_of_the_server_ends_it():
    ended = []

    def serve(conn):
        _, fields = conn.head()
        conn.send(ws.accept(fields))
        ended.append(conn.closed())

    with Upstream(serve) as up, contextlib.ExitStack() as stack:
        with Rig() as rig:
            c = stack.enter_context(rig.client())
            opened(c, up)
        assert c.closed()
    assert ended == [True]


@pytest.mark.parametrize("how", ["close", "reset"])
def test_each_side_sees_the_others_end(rig, how):
    def vanish(conn):
        if how == "reset":
            conn.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        conn.close()

    def serve(conn):
        _, fields = conn.head()
        conn.send(ws.accept(fields))
        if values(fields, "X-Leave"):
            vanish(conn)
        else:
            ended.append(conn.closed())

    ended = []
    with Upstream(serve) as up:
        with rig.client() as c:
            opened(c, up)
            vanish(c)
        with rig.client() as c:
            opened(c, up, "X-Leave: 1\r\n")
            assert c.closed()
        assert settled(rig)
    assert ended == [True]


def test_a_client_that_leaves_before_the_answer(rig):
    def serve(conn):
        conn.head()
        begun.set()
        ended.append(conn.closed())

    begun, ended = threading.Event(), []
    with Upstream(serve) as up:
        with rig.client() as c:
            c.send(ws.request(target(up)))
            assert begun.wait(20)
        assert settled(rig)
    assert ended == [True]


def talk_to_many(rig, up, conns):
    for c in conns:
        c.send(ws.request(target(up)))
    for c in conns:
        assert c.head()[0].split()[1] == b"101"
    for i, c in enumerate(conns):
        say(c, ws.TEXT, str(i).encode())
    for i, c in enumerate(conns):
        assert ws.read_frame(c) == (ws.TEXT, str(i).encode())
    assert counts(rig)["exchanges"] == len(conns)
    assert len(os.listdir(f"/proc/{rig.process.pid}/task")) < 10


def test_many_at_a_time_leave_nothing_behind(rig):
    fds = len(os.listdir(f"/proc/{rig.process.pid}/fd"))
    with Upstream(ws.echo) as up:
        with contextlib.ExitStack() as stack:
            talk_to_many(rig, up, [stack.enter_context(rig.client()) for _ in range(200)])
        assert settled(rig)
    deadline = time.monotonic() + 20
    while len(os.listdir(f"/proc/{rig.process.pid}/fd")) > fds and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(os.listdir(f"/proc/{rig.process.pid}/fd")) <= fds
    assert counts(rig) == {"exchanges": 0, "connections": 0, "running": 0}
