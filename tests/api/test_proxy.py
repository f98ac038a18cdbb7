"""The reverse proxy with scripted servers behind it."""
import gzip
import json
import os
import socket
import threading
import time

import pytest
from gateway import Front
from harness import SLOW
from upstream import Rig, Upstream, reply, response, values

TOKEN = "svc-key-0123456789"


@pytest.fixture(scope="module", params=["direct", "nginx"])
def locked(request):
    with (Rig if request.param == "direct" else Front)("--token", TOKEN) as r:
        yield r


class Recorder:
    """Answers every request and keeps what it got."""

    def __init__(self, answer=reply(b"ok")):
        self.answer, self.requests = answer, []

    def __call__(self, conn):
        while True:
            line, fields = conn.head()
            self.requests.append((line, fields, conn.body(fields)))
            conn.send(self.answer)


# ---- requests ----


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_path_and_query_pass_byte_for_byte(rig, prefix):
    rest = "/a%2Fb//c/%E9?b=2&a=1&b=3&uploads&sig=%E9%FF&s=1;2&q=hello%20world"
    seen = Recorder()
    with Upstream(seen) as up:
        for r in (rest, "", "?", "?q=1", "/", "//", "/../x/./y", "/x/"):
            status, _, body = rig.ask(f"GET {prefix}/leases/l1/proxy/{up.port}{r} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
            assert (status, body) == (200, b"ok"), r
    assert [line.decode() for line, _, _ in seen.requests] == [
        f"GET {r} HTTP/1.1" for r in (rest, "/", "/?", "/?q=1", "/", "//", "/../x/./y", "/x/")]


def test_methods_and_bodies_pass(direct):
    seen = Recorder()
    with Upstream(seen) as up:
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND", "X-ODD"):
            status, _, body = direct.get(up, method=method)
            assert (status, body) == (200, b"ok"), method
        with direct.client() as c:  # a body with its length, one in chunks, none; on one connection
            for framing, sent in (("Content-Length: 5\r\n", b"hello"), ("Transfer-Encoding: chunked\r\n", b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"),
                                  ("Content-Length: 0\r\n", b"")):
                c.send(f"POST /leases/l1/proxy/{up.port}/ HTTP/1.1\r\nHost: h\r\n{framing}\r\n".encode() + sent)
                assert response(c)[0] == 200
    assert [line.split()[0].decode() for line, _, _ in seen.requests[:8]] == [
        "GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND", "X-ODD"]
    (_, with_length, b1), (_, chunked, b2), (_, empty, b3) = seen.requests[8:]
    assert (b1, b2, b3) == (b"hello", b"hello", b"")
    assert values(with_length, "Content-Length") == ["5"] and values(chunked, "Transfer-Encoding") == ["chunked"]
    assert values(empty, "Content-Length") == ["0"]


def test_headers_to_the_service(direct):
    seen = Recorder()
    sent = ("X-App: 1\r\nX-App: 2\r\nCookie: a=b\r\nX-Empty:\r\nAccept: a/b\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\n"
            "TE: trailers\r\nTrailer: X\r\nProxy-Authorization: Basic x\r\nProxy-Connection: keep-alive\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"
            "Forwarded: for=6.6.6.6\r\nX-Forwarded-For: 6.6.6.6\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: evil\r\nX-Forwarded-Port: 1\r\n"
            "X-Real-IP: 6.6.6.6\r\nX-Request-Id: my-id\r\nSandgate-Endpoint-Token: secret\r\n"
            "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n")
    with Upstream(seen) as up:
        assert direct.get(up, headers=sent)[0] == 200
    fields = seen.requests[0][1]
    assert values(fields, "X-App") == ["1", "2"]
    assert values(fields, "Host") == [f"127.0.0.1:{up.port}"]
    assert values(fields, "X-Forwarded-For") == ["127.0.0.1"]
    assert values(fields, "X-Forwarded-Proto") == ["http"]
    assert values(fields, "X-Forwarded-Host") == ["public.example"]
    assert values(fields, "X-Forwarded-Prefix") == [f"/leases/l1/proxy/{up.port}"]
    assert values(fields, "X-Request-Id") == ["my-id"] and values(fields, "TE") == ["trailers"] and values(fields, "Connection") == ["TE"]
    assert sorted(k.lower() for k, _ in fields) == sorted([
        "host", "x-app", "x-app", "cookie", "x-empty", "accept", "traceparent", "te", "connection", "x-request-id", "x-forwarded-for", "x-forwarded-proto",
        "x-forwarded-host", "x-forwarded-prefix"])


@pytest.mark.parametrize("ours, app", [
    (f"Authorization: Bearer {TOKEN}", {}),
    (f"authorization: bearer   {TOKEN}", {}),
    (f"X-API-Key: {TOKEN}", {}),
    (f"X-API-Key: {TOKEN}", {"Authorization": "Basic dXNlcjpwYXNz"}),
    (f"X-API-Key: {TOKEN}", {"Authorization": "Bearer the-apps-own"}),
    (f"X-API-Key: {TOKEN}\r\nAuthorization: Bearer {TOKEN}", {}),
    (f"X-API-Key: {TOKEN}\r\nAuthorization: Bearer\t{TOKEN}", {}),
    (f"X-API-Key: {TOKEN}\r\nAuthorization: Token {TOKEN}", {}),
    (f"X-API-Key: {TOKEN}\r\nAuthorization: {TOKEN}", {}),
    (f"X-API-Key: {TOKEN}\r\nCookie: a=b; __Host-sandgate={TOKEN}; c=d", {"Cookie": "a=b; c=d"}),
    (f"X-API-Key: {TOKEN}\r\nCookie: __Host-sandgate={TOKEN}", {}),
    (f"X-API-Key: {TOKEN}\r\nReferer: https://h/?sandgate_token={TOKEN}", {}),
])
def test_our_credentials_stay_out(locked, ours, app):
    seen = Recorder()
    with Upstream(seen) as up:
        headers = ours + "\r\n" + "".join(f"{k}: {v}\r\n" for k, v in app.items() if k != "Cookie")
        assert locked.get(up, headers=headers)[0] == 200
    line, fields, _ = seen.requests[0]
    assert TOKEN not in repr((line, fields))
    assert {k: v for k, v in fields if k in ("Authorization", "Cookie")} == app


def test_who_may_not_come_in_is_told_so_by_us(locked):
    with Upstream(Recorder()) as up:
        for headers in ("", "Authorization: Bearer wrong\r\n", "X-API-Key: wrong\r\n"):
            status, fields, body = locked.get(up, headers=headers)
            assert status == 401 and values(fields, "Sandgate-Error") == ["unauthorized"]
            assert json.loads(body)["code"] == "unauthorized"
        assert up.connections == 0


@pytest.mark.parametrize("port", ["80@169.254.169.254", "0", "65536", "99999999999", "-1", "+80", "0x50", "80%00", "80:80", "%38%30%40x", "127.0.0.1", " 80", "８０"])
def test_only_plain_ports(rig, port):
    status, _, _ = rig.ask(f"GET /leases/l1/proxy/{port}/ HTTP/1.1\r\nHost: h\r\n\r\n".encode())
    assert status in (400, 404)


def test_not_an_open_proxy(rig):
    seen = Recorder()
    with Upstream(seen) as up, Upstream(Recorder()) as other:
        assert rig.ask(f"GET http://127.0.0.1:{other.port}/ HTTP/1.1\r\nHost: h\r\n\r\n".encode())[0] in (400, 404)
        assert rig.ask(f"CONNECT 127.0.0.1:{other.port} HTTP/1.1\r\nHost: h\r\n\r\n".encode())[0] in (400, 404, 405, 501)
        status, _, _ = rig.ask(f"GET /leases/l1/proxy/{up.port}/ HTTP/1.1\r\nHost: 127.0.0.1:{other.port}\r\n\r\n".encode())
        assert status == 200
        status, _, _ = rig.ask(f"GET /leases/l1/proxy/{up.port}/@127.0.0.1:{other.port}/ HTTP/1.1\r\nHost: h\r\n\r\n".encode())
        assert status == 200
        assert other.connections == 0
    assert all(values(fields, "Host") == [f"127.0.0.1:{up.port}"] for _, fields, _ in seen.requests)


# ---- responses ----


def test_redirects(rig):
    def serve(conn):
        while True:
            conn.head()
            conn.send(reply(status="302 Found", headers=f"Location: {locations[-1]}\r\n"))

    locations = []
    with Upstream(serve) as up:
        p, public = up.port, f"/leases/l1/proxy/{up.port}"
        for given, expected in (
            ("/login?next=%2F", public + "/login?next=%2F"), (f"http://127.0.0.1:{p}/x", public + "/x"),
            (f"http://localhost:{p}/x?y#z", public + "/x?y#z"), (f"HTTP://LOCALHOST:{p}", public + "/"), (f"http://[::1]:{p}?q", public + "/?q"),
            ("/", public + "/"), (public + "/x", public + "/x"), ("next", "next"), ("?q", "?q"), ("../up", "../up"),
            ("//evil.example/x", "//evil.example/x"), ("https://example.com/", "https://example.com/"),
            (f"http://127.0.0.1:{p}0/x", f"http://127.0.0.1:{p}0/x"), ("http://127.0.0.1/x", "http://127.0.0.1/x"),
            (f"http://127.0.0.1:{p}@evil/", f"http://127.0.0.1:{p}@evil/"), (f"http://127.0.0.1.evil:{p}/", f"http://127.0.0.1.evil:{p}/"),
            (f"https://127.0.0.1:{p}/", f"https://127.0.0.1:{p}/"),
        ):
            locations.append(given)
            status, fields, _ = rig.get(up)
            assert status == 302 and values(fields, "Location") == [expected], given
        assert up.connections <= 3


def test_public_url_counts_in_redirects_and_forwarding():
    seen = Recorder(reply(status="302 Found", headers="Location: /x\r\n"))
    with Rig("--public-url", "https://gw.example/sand") as rig, Upstream(seen) as up:
        _, fields, _ = rig.get(up)
        assert values(fields, "Location") == [f"/sand/leases/l1/proxy/{up.port}/x"]
    assert values(seen.requests[0][1], "X-Forwarded-Proto") == ["https"]
    assert values(seen.requests[0][1], "X-Forwarded-Prefix") == [f"/sand/leases/l1/proxy/{up.port}"]


def test_headers_to_the_client(rig):
    headers = ("Content-Type: text/html\r\nX-A: 1\r\nX-A: 2\r\nETag: \"x\"\r\nX-Tab: a\tb\r\nSet-Cookie: sid=1\r\nSet-Cookie: t=2\r\n"
               "Service-Worker-Allowed: /\r\nClear-Site-Data: \"*\"\r\nContent-Security-Policy: default-src 'self'\r\nConnection: X-Hop\r\nX-Hop: 1\r\n"
               "Keep-Alive: timeout=9\r\nSandgate-Error: forged\r\nX-Request-Id: theirs\r\nProxy-Authenticate: x\r\nVary: Accept\r\n")
    with Upstream(Recorder(reply(b"<p>", headers=headers))) as up:
        status, fields, body = rig.get(up, headers="X-Request-Id: mine\r\n")
    assert (status, body) == (200, b"<p>")
    assert values(fields, "X-A") == ["1", "2"] and values(fields, "X-Tab") == ["a b"] and values(fields, "ETag") == ['"x"']
    assert values(fields, "Content-Security-Policy") == ["default-src 'self'", "sandbox"]
    assert values(fields, "X-Request-Id") == ["mine"] and values(fields, "Vary") == ["Accept"]
    for gone in ("Set-Cookie", "Service-Worker-Allowed", "Clear-Site-Data", "X-Hop", "Keep-Alive", "Sandgate-Error", "Proxy-Authenticate"):
        assert values(fields, gone) == [], gone


@pytest.mark.parametrize("status", ["200 OK", "201 Created", "404 Not Found", "418 Teapot", "500 Oops", "503 Busy"])
def test_status_codes_pass(rig, status):
    with Upstream(Recorder(reply(b"x", status=status))) as up:
        got, fields, body = rig.get(up)
        assert got == int(status[:3]) and body == b"x" and values(fields, "Sandgate-Error") == []


def test_interim_responses_are_skipped(rig):
    with Upstream(Recorder(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + reply(b"x"))) as up:
        assert rig.get(up)[::2] == (200, b"x")


def test_compressed_bodies_stay_as_they_are(rig):
    data = gzip.compress(b"hello" * 1000)
    half = len(data) // 2
    chunked = (f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n{half:x};ext=1\r\n".encode() + data[:half] +
               f"\r\n{len(data) - half:X}\r\n".encode() + data[half:] + b"\r\n0\r\nX-Trailer: t\r\n\r\n")
    for answer in (reply(data, headers="Content-Encoding: gzip\r\n"), chunked):
        with Upstream(Recorder(answer)) as up:
            with rig.client() as c:
                for _ in range(2):
                    c.send(f"GET /leases/l1/proxy/{up.port}/ HTTP/1.1\r\nHost: h\r\nAccept-Encoding: gzip\r\n\r\n".encode())
                    status, fields, body = response(c)
                    assert status == 200 and values(fields, "Content-Encoding") == ["gzip"] and body == data
            assert up.connections <= 2  # the kept one is used again if it is back in time for the next request; no request is sent twice


def trailers(c):
    """The fields behind the last chunk, which has been read."""
    fields = []
    while (line := c.file.readline()) not in (b"\r\n", b""):
        name, _, value = line.rstrip(b"\r\n").partition(b":")
        fields.append((name.decode(), value.strip().decode()))
    assert line == b"\r\n"
    return fields


def chunked(c):
    """A chunked body and its trailers."""
    data = b""
    while size := int(c.file.readline().split(b";")[0], 16):
        data += c.exact(size)
        c.exact(2)
    return data, trailers(c)


@pytest.mark.parametrize("gap", [0, 0.2])
def test_trailers_of_the_answer(direct, gap):
    """To clients that take them; what must be known before the body, or proves who somebody is, is left out."""
    def serve(conn):
        while True:
            _, fields = conn.head()
            te.append(values(fields, "TE"))
            conn.send(b"HTTP/1.1 200 OK\r\nTrailer: Grpc-Status, X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
            time.sleep(gap)
            conn.send(b"0\r\nGrpc-Status: 0\r\nX-Sum:\t a b \t\r\nX-Sum: 2\r\nSet-Cookie: a=b\r\nContent-Length: 7\r\nSandgate-Error: x\r\nX-Empty:\r\n\r\n")

    te = []
    with Upstream(serve) as up, direct.client() as c:
        for wanted, version in ((True, 1), (False, 1), (True, 1), (True, 0)):
            c.send(f"GET /leases/l1/proxy/{up.port}/ HTTP/1.{version}\r\nHost: h\r\n{'TE: gzip;q=1, trailers' if wanted else 'X: y'}\r\n\r\n".encode())
            _, fields = c.head()
            if version == 0:
                assert c.file.read() == b"hello" and values(fields, "Trailer") == []
            elif wanted:
                assert chunked(c) == (b"hello", [("Grpc-Status", "0"), ("X-Sum", "a b"), ("X-Sum", "2")]) and values(fields, "Trailer") == ["Grpc-Status, X-Sum"]
            else:
                assert c.body(fields) == b"hello" and values(fields, "Trailer") == []
        assert up.connections < 4
    assert te == [["trailers"], [], ["trailers"], []]


def test_trailers_of_a_request(direct):
    got = []

    def serve(conn):
        while True:
            _, fields = conn.head()
            got.append((values(fields, "Trailer"), *chunked(conn)))
            conn.send(reply(b"ok"))

    sent = b"5\r\nhello\r\n0\r\nX-Sum: 1\r\nX-Sum: 2\r\nAuthorization: Bearer x\r\nX-Forwarded-For: 6.6.6.6\r\nHost: evil\r\nTransfer-Encoding: chunked\r\nX-Y: z\r\n\r\n"
    with Upstream(serve) as up, direct.client() as c:
        for trailer in (sent, b"2\r\nhi\r\n0\r\n\r\n"):
            c.send(f"POST /leases/l1/proxy/{up.port}/ HTTP/1.1\r\nHost: h\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n".encode() + trailer)
            assert response(c)[::2] == (200, b"ok")
        assert up.connections <= 2
    assert got == [(["X-Sum"], b"hello", [("X-Sum", "1"), ("X-Sum", "2"), ("X-Y", "z")]), (["X-Sum"], b"hi", [])]


def test_head_and_304_have_no_body(rig):
    def serve(conn):
        while True:
            line, _ = conn.head()
            if b"HEAD /length" in line:
                conn.send(b"HTTP/1.1 200 OK\r\nContent-Length: 12345\r\nContent-Encoding: gzip\r\n\r\n")
            elif b"HEAD" in line:
                conn.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            elif b"304" in line:
                conn.send(b"HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\nContent-Length: 99\r\n\r\n")
            elif b"204" in line:
                conn.send(b"HTTP/1.1 204 No Content\r\n\r\n")
            else:
                conn.send(reply(b"end"))

    with Upstream(serve) as up, rig.client() as c:
        for method, path, status in (("HEAD", "/length", 200), ("HEAD", "/chunked", 200), ("GET", "/304", 304), ("GET", "/204", 204)):
            c.send(f"{method} /leases/l1/proxy/{up.port}{path} HTTP/1.1\r\nHost: h\r\n\r\n"
                   f"GET /leases/l1/proxy/{up.port}/end HTTP/1.1\r\nHost: h\r\n\r\n".encode())
            got, fields, _ = response(c, head=True)
            assert got == status
            if path == "/length":
                assert values(fields, "Content-Length") == ["12345"] and values(fields, "Content-Encoding") == ["gzip"]
            if path == "/304":
                assert values(fields, "Content-Length") in (["99"],) if not hasattr(rig, "gateway") else ([], ["99"])
            assert response(c)[::2] == (200, b"end"), path  # nothing stray in between
        assert up.connections < 4


def test_events_arrive_one_by_one(rig):
    go = threading.Semaphore(0)

    def serve(conn):
        conn.head()
        conn.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for i in range(10):
            conn.send(f"{len(str(i)) + 8:x}\r\ndata: {i}\n\n\r\n".encode())
            assert go.acquire(timeout=20)
        conn.send(b"0\r\n\r\n")

    with Upstream(serve) as up, rig.client() as c:
        c.send(f"GET /leases/l1/proxy/{up.port}/ HTTP/1.1\r\nHost: h\r\n\r\n".encode())
        c.head()
        for i in range(10):
            assert c.chunk() == f"data: {i}\n\n".encode()
            go.release()  # the next one is sent only after this one arrived
        assert c.chunk() == b""


def test_big_download(rig):
    size = 100 * 1024 * 1024

    def serve(conn):
        while True:
            line, _ = conn.head()
            block = bytes(range(256)) * 4096
            if b"chunked" in line:
                conn.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                for _ in range(size // len(block)):
                    conn.send(b"100000\r\n" + block + b"\r\n")
                conn.send(b"0\r\n\r\n")
            else:
                conn.send(f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n".encode())
                for _ in range(size // len(block)):
                    conn.send(block)

    with Upstream(serve) as up, rig.client() as c:
        for path in ("/plain", "/chunked"):
            c.send(f"GET /leases/l1/proxy/{up.port}{path} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
            _, fields, body = response(c)
            assert len(body) == size and body[-256:] == bytes(range(256))
        assert up.connections <= 2


# ---- uploads ----


def rss_kib(pid):
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))


@pytest.mark.parametrize("framing", ["chunked", "length"])
def test_big_upload_keeps_memory_flat(rig, framing):
    size = (500 if SLOW == 1 and not hasattr(rig, "gateway") else 50) * 1024 * 1024  # nginx writes it all to a file first
    got = []

    def serve(conn):
        _, fields = conn.head()
        total = 0
        if values(fields, "Transfer-Encoding"):
            for chunk in iter(conn.chunk, b""):
                total += len(chunk)
        else:
            total = len(conn.file.read(1))
            time.sleep(0.3)  # a reader that is slow to begin
            while total < size:
                total += len(conn.file.read1(65536))
        got.append(total)
        conn.send(reply(b"thanks"))

    block = os.urandom(1024 * 1024)
    with Upstream(serve) as up, rig.client() as c:
        before = rss_kib(rig.process.pid)
        most = before
        how = "Transfer-Encoding: chunked" if framing == "chunked" else f"Content-Length: {size}"
        c.send(f"POST /leases/l1/proxy/{up.port}/ HTTP/1.1\r\nHost: h\r\n{how}\r\n\r\n".encode())
        for i in range(size // len(block)):
            c.send(b"100000\r\n" + block + b"\r\n" if framing == "chunked" else block)
            if i % 10 == 0:
                most = max(most, rss_kib(rig.process.pid))
        if framing == "chunked":
            c.send(b"0\r\n\r\n")
        assert response(c)[::2] == (200, b"thanks")
        assert got == [size]
        assert up.connections == 1
        if SLOW == 1:
            assert most - before < 4096, f"{before} KiB -> {most} KiB"


def test_the_service_sees_an_aborted_upload(direct):
    seen = []

    def serve(conn):
        conn.head()
        conn.exact(5)
        begun.set()
        seen.append(conn.closed())

    begun = threading.Event()
    with Upstream(serve) as up:
        with direct.client() as c:
            c.send(f"POST /leases/l1/proxy/{up.port}/ HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\nhello".encode())
            assert begun.wait(20)
    assert seen == [True] and up.connections == 1


def test_the_service_sees_a_hang_up(rig):
    seen = []

    def serve(conn):
        conn.head()
        begun.set()
        seen.append(conn.closed())

    begun = threading.Event()
    with Upstream(serve) as up:
        with rig.client() as c:
            c.send(f"GET /leases/l1/proxy/{up.port}/ HTTP/1.1\r\nHost: h\r\n\r\n".encode())
            assert begun.wait(20)
    assert seen == [True]


def test_an_early_answer_gets_through(rig):
    """A service that refuses an upload without reading it."""

    def serve(conn):
        conn.head()
        conn.send(reply(b"no", status="413 Too Large", headers="Connection: close\r\n"))
        conn.closed()

    with Upstream(serve) as up, rig.client() as c:
        c.send(f"POST /leases/l1/proxy/{up.port}/ HTTP/1.1\r\nHost: h\r\nContent-Length: 3000000\r\n\r\n".encode())
        try:
            c.send(b"x" * 3000000)
        except ConnectionError:
            pass
        assert response(c)[::2] == (413, b"no")


def test_both_directions_at_once(direct):
    def serve(conn):
        conn.head()
        conn.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for chunk in iter(conn.chunk, b""):
            conn.send(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
        conn.send(b"0\r\n\r\n")

    with Upstream(serve) as up, direct.client() as c:
        c.send(f"POST /leases/l1/proxy/{up.port}/ HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        c.send(b"5\r\nhello\r\n5\r\nworld\r\n0\r\n\r\n")
        assert response(c)[::2] == (200, b"helloworld")


# ---- failures ----


def refused(answer, status, code):
    got, fields, body = answer
    assert (got, values(fields, "Sandgate-Error")) == (status, [code]), (got, fields, body)
    assert values(fields, "Content-Type") == ["application/problem+json"]
    problem = json.loads(body)
    assert problem["code"] == code and problem["status"] == status
    return problem


def test_nothing_listens(rig):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
        answer = rig.ask(f"GET /leases/l1/proxy/{port}/ HTTP/1.1\r\nHost: h\r\n\r\n".encode())
    refused(answer, 503, "endpoint_not_listening")
    assert values(answer[1], "Retry-After")


@pytest.mark.parametrize("answer", [
    b"SSH-2.0-x\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx", b"HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", b"HTTP/1.1 200 OK\r\nA\x00: b\r\n\r\n", b"",
    b"HTTP/1.1 200 OK\r\nA: b\r\n", b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70000 + b"\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 300 + b"\r\n", b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
])
def test_bad_answers(rig, answer):
    def serve(conn):
        conn.head()
        conn.send(answer)

    with Upstream(serve) as up:
        refused(rig.get(up), 502, "endpoint_failed")
        assert up.connections == 1


def test_an_answer_that_is_cut_off_is_cut_off(rig):
    def serve(conn):
        line, _ = conn.head()
        conn.send(b"HTTP/1.1 200 OK\r\n" + (b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n" if b"chunked" in line
                                             else b"Content-Length: 10\r\n\r\nhello"))

    with Upstream(serve) as up:
        for path in ("/chunked", "/length"):
            with pytest.raises((EOFError, ConnectionError, ValueError)):
                rig.get(up, path)


def test_no_answer_in_time():
    def serve(conn):
        conn.head()
        assert conn.closed()

    with Rig("--first-byte-ms", "200") as rig, Upstream(serve) as up:
        refused(rig.get(up), 504, "endpoint_timeout")


def test_nothing_is_sent_twice(rig):
    """The service reads a request on a kept connection and closes without an answer."""
    lines = []

    def serve(conn):
        line, _ = conn.head()
        lines.append(line)
        conn.send(reply(b"1"))
        line, _ = conn.head()
        lines.append(line)

    for method, expected in (("POST", 502), ("GET", 200)):
        lines.clear()
        with Upstream(serve) as up:
            assert rig.get(up)[0] == 200
            assert rig.get(up, method=method)[0] == expected
        assert sum(line.startswith(method.encode()) for line in lines) == (1 if method == "POST" else 3)


def test_the_end_of_the_lease_cuts_relays():
    def serve(conn):
        line, _ = conn.head()
        if b"stream" in line:
            conn.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
        begun.release()
        assert conn.closed()

    begun = threading.Semaphore(0)
    with Rig() as rig, Upstream(serve) as up, rig.client() as streaming, rig.client() as waiting:
        streaming.send(f"GET /leases/l1/proxy/{up.port}/stream HTTP/1.1\r\nHost: h\r\n\r\n".encode())
        waiting.send(f"GET /leases/l1/proxy/{up.port}/wait HTTP/1.1\r\nHost: h\r\n\r\n".encode())
        streaming.head()
        assert begun.acquire(timeout=20) and begun.acquire(timeout=20)
        rig.end_lease()
        refused(response(waiting), 410, "lease_gone")
        with pytest.raises((EOFError, ConnectionError, ValueError)):
            while streaming.chunk():
                pass


def test_nothing_is_left_behind(rig):
    """Runs last in this file: after all of the above no relay is still open."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        counts = json.loads(rig.ask(b"GET /counts HTTP/1.1\r\nHost: h\r\n\r\n")[2])
        if counts == {"exchanges": 0, "connections": 0, "running": 0}:
            return
        time.sleep(0.05)
    raise AssertionError(counts)
