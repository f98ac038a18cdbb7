"""What breaks reverse proxies elsewhere: messages two parsers would read differently, and connections that end at the wrong moment. Each directly and,
where that lets it through, behind nginx."""
import json
import os
import socket
import threading
import time

import pytest
from harness import SLOW
from upstream import Rig, Upstream, reply, response, values


def recorder(seen, answer=reply(b"ok")):
    def serve(conn):
        while True:
            line, fields = conn.head()
            seen.append((line.decode("latin-1"), fields, conn.body(fields)))
            conn.send(answer)
    return serve


def target(up, rest="/"):
    return f"/leases/l1/proxy/{up.port}{rest}"


def is_direct(rig):
    return not hasattr(rig, "gateway")


def rss_kib(rig):
    with open(f"/proc/{rig.process.pid}/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))


def counts(rig):
    return json.loads(rig.ask(b"GET /counts HTTP/1.1\r\nHost: h\r\n\r\n")[2])


def raw(rig, data):
    """Everything that comes back until the other side closes; b"" after the answer when it does not."""
    with rig.client() as c:
        c.send(data)
        c.sock.settimeout(1)
        out = b""
        try:
            while piece := c.file.read1(65536):
                out += piece
        except TimeoutError:
            return out, False
        except ConnectionError:
            pass
        return out, True


# ---- which message is it ----

NEXT = b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n"
DISPUTED = {
    "both lengths": (b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n", NEXT),
    "both lengths, the other way": (b"Transfer-Encoding: chunked\r\nContent-Length: 6\r\n", NEXT),
    "two lengths": (b"Content-Length: 5\r\nContent-Length: 50\r\n", NEXT),
    "one length twice": (b"Content-Length: 5\r\nContent-Length: 5\r\n", NEXT),
    "list of lengths": (b"Content-Length: 5, 5\r\n", NEXT),
    "signed length": (b"Content-Length: +5\r\n", NEXT),
    "negative length": (b"Content-Length: -5\r\n", NEXT),
    "hexadecimal length": (b"Content-Length: 0x5\r\n", NEXT),
    "endless length": (b"Content-Length: 99999999999999999999\r\n", NEXT),
    "no length": (b"Content-Length:\r\n", NEXT),
    "length with a blank": (b"Content-Length: 5 5\r\n", NEXT),
    "another coding": (b"Transfer-Encoding: gzip, chunked\r\n", NEXT),
    "chunked twice": (b"Transfer-Encoding: chunked, chunked\r\n", NEXT),
    "two codings": (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", NEXT),
    "nearly chunked": (b"Transfer-Encoding: xchunked\r\n", NEXT),
    "quoted": (b'Transfer-Encoding: "chunked"\r\n', NEXT),
    "vertical tab": (b"Transfer-Encoding: \x0bchunked\r\nContent-Length: 5\r\n", NEXT),
    "identity": (b"Transfer-Encoding: identity\r\nContent-Length: 5\r\n", NEXT),
    "blank before the colon": (b"Transfer-Encoding : chunked\r\nContent-Length: 5\r\n", NEXT),
    "folded": (b"X: a\r\n Transfer-Encoding: chunked\r\n", NEXT),
    "folded coding": (b"Transfer-Encoding:\r\n chunked\r\n", NEXT),
    "NUL": (b"X: a\x00\r\n", b""),
    "CR alone": (b"X: a\rContent-Length: 5\r\n", b""),
    "two hosts": (b"Host: other\r\n", b""),
    "no size": (b"Transfer-Encoding: chunked\r\n", b"\r\nhello\r\n" + NEXT),
    "0x size": (b"Transfer-Encoding: chunked\r\n", b"0x5\r\nhello\r\n" + NEXT),
    "negative size": (b"Transfer-Encoding: chunked\r\n", b"-5\r\nhello\r\n" + NEXT),
    "endless size": (b"Transfer-Encoding: chunked\r\n", b"FFFFFFFFFFFFFFFFF\r\nhello\r\n" + NEXT),
    "size that wraps": (b"Transfer-Encoding: chunked\r\n", b"10000000000000005\r\nhello\r\n" + NEXT),
    "longer than its size": (b"Transfer-Encoding: chunked\r\n", b"5\r\nhelloXX\r\n" + NEXT),
}


@pytest.mark.parametrize("name", DISPUTED)
def test_disputed_requests_are_refused(rig, name):
    """With a 4xx or 501 and the end of the connection; nothing that could be read as a request reaches the service, not even half."""
    head, body = DISPUTED[name]
    seen, broken = [], []

    def serve(conn):
        try:
            recorder(seen)(conn)
        except ValueError:
            broken.append(True)  # a body that has not come to its end

    with Upstream(serve) as up:
        out, closed = raw(rig, f"POST {target(up)} HTTP/1.1\r\nHost: h\r\n".encode() + head + b"\r\n" + body)
    status = int(out.split()[1])
    assert (400 <= status < 500 or status == 501) and closed, out
    assert b" 200 " not in out and seen == [], (seen, out)


H = b"HTTP/1.1 200 OK\r\n"
MALFORMED = {
    "both lengths": H + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "one length twice": H + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    "list of lengths": H + b"Content-Length: 5, 5\r\n\r\nhello",
    "signed length": H + b"Content-Length: +5\r\n\r\nhello",
    "hexadecimal length": H + b"Content-Length: 0x5\r\n\r\nhello",
    "endless length": H + b"Content-Length: 99999999999999999999\r\n\r\nhello",
    "no length": H + b"Content-Length:\r\n\r\nhello",
    "another coding": H + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "two codings": H + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks in HTTP/1.0": b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "folded": H + b"X: a\r\n b\r\nContent-Length: 0\r\n\r\n",
    "blank before the colon": H + b"X : a\r\nContent-Length: 0\r\n\r\n",
    "no colon": H + b"nonsense\r\nContent-Length: 0\r\n\r\n",
    "no name": H + b": x\r\nContent-Length: 0\r\n\r\n",
    "NUL": H + b"X: a\x00b\r\nContent-Length: 0\r\n\r\n",
    "CR alone": H + b"X: a\rSet-Cookie: x=y\r\nContent-Length: 0\r\n\r\n",
    "HTTP/2": b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n",
    "HTTP/0.9": b"<html>hello</html>",
    "short status": b"HTTP/1.1 20 OK\r\n\r\n",
    "long status": b"HTTP/1.1 2000 OK\r\n\r\n",
    "status 099": b"HTTP/1.1 099 OK\r\n\r\n",
    "status 600": b"HTTP/1.1 600 OK\r\n\r\n",
    "line before": b"\r\n" + H + b"Content-Length: 2\r\n\r\nok",
    "too many interim": b"HTTP/1.1 100 Continue\r\n\r\n" * 20 + H + b"Content-Length: 0\r\n\r\n",
    "nothing but interim": b"HTTP/1.1 100 Continue\r\n\r\n",
    "unasked switch": b"HTTP/1.1 101 Yes\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    "no size": H + b"Transfer-Encoding: chunked\r\n\r\n\r\n",
    "0x size": H + b"Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
    "endless size": H + b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n",
    "sizes by LF": H + b"Transfer-Encoding: chunked\r\n\r\n5\nhello\n0\n\n",
    "longer than its size": H + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhelloXX0\r\n\r\n",
    "bad trailer": H + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX\r\n\r\n",
    "half a head": H + b"X: y\r\n",
    "nothing": b"",
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_answers_are_502(rig, name):
    def serve(conn):
        conn.head()
        conn.send(MALFORMED[name])

    with Upstream(serve) as up:
        status, fields, body = rig.get(up)
        assert (status, values(fields, "Sandgate-Error"), json.loads(body)["code"]) == (502, ["endpoint_failed"], "endpoint_failed")
        assert up.connections == 1


def test_odd_but_sound_answers(rig):
    for answer, status, body in ((b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok", 200, b"ok"), (b"HTTP/1.1 299 \r\nContent-Length: 2\r\n\r\nok", 299, b"ok"),
                                 (b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok", 200, b"ok"), (b"HTTP/1.0 200 OK\r\n\r\nup to the end", 200, b"up to the end"),
                                 (H + b"\r\nup to the end", 200, b"up to the end"), (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", 200, b"ok"),
                                 (b"HTTP/1.1 204 None\r\nContent-Length: 5\r\n\r\nhello", 204, b""),
                                 (b"HTTP/1.1 204 None\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 204, b""),
                                 (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nSet-Cookie: a=b\r\n\r\n" + reply(b"ok"), 200, b"ok"),
                                 (H + b"Content-Length: 2\r\n\r\nok and more", 200, b"ok"), (H + b"Upgrade: h2\r\nConnection: upgrade\r\nContent-Length: 2\r\n\r\nok", 200, b"ok"),
                                 (H + b"Transfer-Encoding: Chunked\r\n\r\n2;a=\"b\"\r\nok\r\n00;z\r\n\r\n", 200, b"ok"),
                                 (reply(b"", status="416 No", headers="Content-Range: bytes */10\r\n"), 416, b""),
                                 (reply(b"abc", status="206 Some", headers="Content-Range: bytes 0-2/10\r\n"), 206, b"abc")):
        def serve(conn):
            conn.head()
            conn.send(answer)

        with Upstream(serve) as up:
            got = rig.get(up)
            assert got[::2] == (status, body), (answer, got)
            assert values(got[1], "Set-Cookie") == [] and len(values(got[1], "Date")) == 1


# ---- bytes that mean something elsewhere ----


def test_targets_pass_whatever_they_say(rig):
    """Browsers and scripts send lone percent signs and bytes that are no ASCII; what only passes through is not ours to judge."""
    rests = [b"/?q=100%", b"/?q=%zz&r=%", b"/?q=caf\xc3\xa9", b"/caf\xc3\xa9/\xff", b"/a|b{}<>^`\\?x=|{}<>^`\\[]", b"/%0d%0aX-Injected:%20y?z=%0d%0aX:y", b"/?", b"/??a?b", b"/?q=%00"]
    if is_direct(rig):
        rests += [b"/%00", b"/100%", b"/%"]  # nginx refuses these itself
    seen = []
    with Upstream(recorder(seen)) as up:
        for rest in rests:
            assert rig.ask(b"GET " + target(up, "").encode() + rest + b" HTTP/1.1\r\nHost: h\r\n\r\n")[0] == 200, rest
        for bad in (target(up, "%00/"), target(up, "%0d%0aX:y/"), target(up, "%/"), target(up, "/a#b"), f"/leases/%zz/proxy/{up.port}/", "/leases/l1/proxy/\xff/"):
            assert rig.ask(f"GET {bad} HTTP/1.1\r\nHost: h\r\n\r\n".encode("latin-1"))[0] in (400, 404) or not is_direct(rig), bad
    assert [line.encode("latin-1") for line, _, _ in seen][:len(rests)] == [b"GET " + rest + b" HTTP/1.1" for rest in rests]
    assert not any(values(fields, "X-Injected") or values(fields, "X") for _, fields, _ in seen)


def test_header_bytes_pass_and_inject_nothing(rig):
    answer = b"HTTP/1.1 302 Found\r\nX-Latin: caf\xe9 \xff\r\nX-Tab: a\tb\r\nLocation: /x%0d%0aSet-Cookie:%20a=b\r\nContent-Length: 0\r\n\r\n"
    seen = []
    with Upstream(recorder(seen, answer)) as up:
        status, fields, _ = rig.get(up, headers="X-Latin: caf\xe9 \xff\r\nX-Tab: a\tb\r\nX-Request-Id: a b\r\nConnection: close, X-Forwarded-For, X-Request-Id, X-Drop\r\nX-Drop: 1\r\n")
        assert status == 302 and values(fields, "X-Latin") == ["caf\xe9 \xff"] and values(fields, "X-Tab") == ["a b"]
        assert values(fields, "Location") == [target(up, "/x%0d%0aSet-Cookie:%20a=b")] and values(fields, "Set-Cookie") == []
    got = seen[0][1]
    assert values(got, "X-Latin") == ["caf\xe9 \xff"] and values(got, "X-Tab") == ["a\tb"] and len(values(got, "X-Request-Id")) == 1
    assert values(got, "X-Forwarded-For") == ["127.0.0.1"]  # named in Connection or not: this one is ours
    if is_direct(rig):
        assert values(got, "X-Drop") == [] and " " not in values(got, "X-Request-Id")[0]


def headers_of(size, n=100):
    return "".join(f"X-{i:04}: {'v' * (size // n - 10)}\r\n" for i in range(n))


def test_huge_heads(rig):
    """Passed on, or said to be too large: never a connection that just ends."""
    for size, n in ((4000, 50), (20000, 100), (30000, 100), (60000, 190), (40000, 1), (200000, 100)):
        with Upstream(recorder([], reply(b"ok", headers=headers_of(size, n)))) as up, rig.client() as c:
            c.send(f"GET {target(up)} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
            status, fields, body = response(c)
            if status == 200:
                assert len(values(fields, "X-0000")) == 1 and body == b"ok" and size <= 30000
            elif is_direct(rig) or values(fields, "Sandgate-Error"):  # nginx has a limit of its own
                assert status == 502 and json.loads(body)["reason"] == ("headers_too_large" if size < 65000 else "malformed_response") and size > 20000
            c.send(f"GET {target(up)} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
            assert response(c)[0] == status  # both connections go on
    with Upstream(recorder([])) as up:
        for size, n, expected in ((4000, 50, 200), (7000, 1, 200), (30000, 50, 431), (60000, 1, 431), (2000, 130, 431)):
            got = rig.get(up, headers=headers_of(size, n))
            assert got[0] == expected or (not is_direct(rig) and got[0] in (400, 431)), (size, n, got)


def test_a_large_answer_to_a_large_request(direct):
    """The request's head and the answer's share the connection's memory, cookies twice: wherever the limit is, it is told."""
    cookies = "Cookie: " + "; ".join(f"c{i}={'v' * 40}" for i in range(60)) + "\r\n"
    for asked in ("", headers_of(9000, 1), headers_of(7000, 90), cookies, "Cookie: a=" + "v" * 7000 + "\r\n"):
        statuses = []
        for size in range(1000, 33000, 800):
            with Upstream(recorder([], reply(b"ok", headers=headers_of(size, 1 + size // 2000)))) as up:
                status, _, body = direct.get(up, headers=asked)
                assert (status, body) == (200, b"ok") or json.loads(body)["reason"] == "headers_too_large"
                statuses.append(status)
        assert statuses == sorted(statuses) and statuses[0] == 200 and statuses[-1] == 502


# ---- connections that end at the wrong moment ----


def test_a_service_that_closes_its_kept_connections(rig):
    """Without a word. What was not sent is sent over a new one, and nobody notices."""
    seen = []

    def serve(conn):
        line, fields = conn.head()
        seen.append((line.split()[0].decode(), conn.body(fields)))
        conn.send(reply(b"ok"))

    with Upstream(serve) as up, rig.client() as c:
        for i in range(30):
            method = ("GET", "POST", "HEAD", "PUT", "DELETE")[i % 5]
            body = b"x" * i if method in ("POST", "PUT") else b""
            deadline = time.monotonic() + 20 * SLOW
            while method not in ("GET", "HEAD") and counts(rig)["connections"] > 0 and time.monotonic() < deadline:
                time.sleep(0.01)  # until the end has been seen; before that the outcome of what is not idempotent is open
            c.send(f"{method} {target(up)} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            assert response(c, head=method == "HEAD")[0] == 200, method
    assert [(m, len(b)) for m, b in seen] == [(("GET", "POST", "HEAD", "PUT", "DELETE")[i % 5], i if i % 5 in (1, 3) else 0) for i in range(30)]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_what_is_not_idempotent_is_sent_once(rig, method):
    """On a kept connection that the service closes, or resets, when it has read the request."""
    lines = []

    def serve(conn):
        for i in range(2):
            line, fields = conn.head()
            lines.append(line.decode().split()[0])
            conn.body(fields)
            if i == 0:
                conn.send(reply(b"1"))

    with Upstream(serve) as up:
        assert rig.get(up)[0] == 200
        status, fields, body = rig.get(up, method=method, headers="Content-Length: 0\r\n")
        assert status == 502 and json.loads(body)["reason"] == "closed_without_answer"
    assert lines.count(method) == 1


@pytest.mark.parametrize("framing", ["chunked", "length"])
def test_an_upload_to_a_slow_reader_that_is_aborted(direct, framing):
    """The service sees that it is not whole, nothing is sent a second time, and all the while no memory grows."""
    size = 256 * 1024 * 1024
    seen = []
    reading, left = threading.Event(), threading.Event()

    def serve(conn):
        conn.head()
        conn.exact(100000)
        reading.set()
        assert left.wait(60 * SLOW)
        total = 0
        try:
            while data := conn.file.read1(65536):
                total += len(data)
        except ConnectionError:
            pass
        seen.append(total)

    block = b"x" * (1 << 20)
    with Upstream(serve) as up:
        before = rss_kib(direct)
        with direct.client() as c:
            how = "Transfer-Encoding: chunked" if framing == "chunked" else f"Content-Length: {size}"
            c.send(f"POST {target(up)} HTTP/1.1\r\nHost: h\r\n{how}\r\n\r\n".encode())
            c.sock.settimeout(0.5)
            sent = 0
            with pytest.raises(TimeoutError):  # nobody reads: what fits in sockets and pipes is taken, and no more
                while sent < size:
                    c.send(b"100000\r\n" + block + b"\r\n" if framing == "chunked" else block)
                    sent += len(block)
            assert reading.wait(20)
            grown = rss_kib(direct) - before
        left.set()
    assert len(seen) == 1 and seen[0] < size and up.connections == 1
    if SLOW == 1:
        assert SLOW > 1 or grown < 2048, grown


def test_a_client_that_does_not_read_holds_the_service_back(rig):
    size, sent = 512, [0]

    def serve(conn):
        conn.head()
        conn.send(f"HTTP/1.1 200 OK\r\nContent-Length: {size << 20}\r\n\r\n".encode())
        conn.sock.settimeout(60 * SLOW)
        for _ in range(size):
            conn.send(b"z" * (1 << 20))
            sent[0] += 1

    with Upstream(serve) as up, rig.client() as c:
        before = rss_kib(rig)
        c.send(f"GET {target(up)} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
        c.head()
        last = -1
        while last != sent[0]:
            last = sent[0]
            time.sleep(0.3)
        if is_direct(rig):
            assert 0 < last < 64, last  # nginx goes on into a file
        assert rss_kib(rig) - before < (2048 if SLOW == 1 else 1 << 20)


def test_a_client_that_leaves_a_silent_stream(rig):
    """The service hears of it although it sends nothing that could fail."""
    ended = []

    def serve(conn):
        conn.head()
        conn.send(H + b"Content-Type: text/event-stream\r\n\r\ndata: 1\n\n")
        ended.append(conn.closed())

    with Upstream(serve) as up:
        with rig.client() as c:
            c.send(f"GET {target(up)} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
            _, fields = c.head()
            assert values(fields, "X-Accel-Buffering") == (["no"] if is_direct(rig) else [])
            assert c.chunk() == b"data: 1\n\n"
    assert ended == [True]


def test_reset_is_no_end(rig):
    """An answer without a length ends with its connection; but a reset is not that."""
    import struct

    def serve(conn):
        conn.head()
        conn.send(b"HTTP/1.0 200 OK\r\n\r\nhalf of it")
        time.sleep(0.2)
        conn.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with Upstream(serve) as up, rig.client() as c:
        c.send(f"GET {target(up)} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
        c.head()
        with pytest.raises((EOFError, ConnectionError, ValueError)):
            while c.chunk():
                pass


# ---- 100-continue ----


def test_expect(direct):
    seen = []
    with Upstream(recorder(seen)) as up:
        with direct.client() as c:
            c.send(f"POST {target(up)} HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n".encode())
            assert c.head()[0].split()[1] == b"100"
            c.send(b"hello")
            assert response(c)[::2] == (200, b"ok")
        assert values(seen[0][1], "Expect") == [] and seen[0][2] == b"hello"
        with Rig("--token", "t0123456789") as locked, locked.client() as c:  # a refusal comes instead of the 100
            c.send(f"POST {target(up)} HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n".encode())
            assert response(c)[0] == 401
    assert len(seen) == 1


def test_expect_behind_a_gateway(rig):
    seen = []
    data = os.urandom(2000000)
    with Upstream(recorder(seen)) as up, rig.client() as c:
        c.send(f"POST {target(up)} HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: {len(data)}\r\n\r\n".encode())
        assert c.head()[0].split()[1] == b"100"
        c.send(data)
        assert response(c)[::2] == (200, b"ok")
    assert seen[0][2] == data
