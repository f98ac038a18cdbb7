"""The proxy behind a real nginx with default buffering."""
import gzip
import json
import os
import struct
import threading
import time

import pytest
import ws
from gateway import Front, Nginx
from harness import SLOW, Server
from sandboxed import start_service, start_websockets
from upstream import Conn, Upstream, reply, response, values


@pytest.fixture(scope="module")
def front():
    with Front() as f:
        yield f


def recorder(seen, answer=reply(b"ok")):
    def serve(conn):
        while True:
            line, fields = conn.head()
            seen.append((line, fields, conn.body(fields)))
            conn.send(answer)
    return serve


def test_requests_pass_unchanged(front):
    rest = "/a%2Fb//c/%E9?b=2&a=1&b=3&uploads&sig=%E9%FF&s=1;2&q=hello%20world"
    seen = []
    with Upstream(recorder(seen)) as up:
        for method in ("GET", "POST", "PATCH", "DELETE", "OPTIONS", "PROPFIND"):
            assert front.get(up, rest, method=method, headers="Content-Length: 0\r\n" if method in ("POST", "PATCH") else "")[::2] == (200, b"ok")
        with front.client() as c:
            c.send(f"POST /leases/l1/proxy/{up.port}/ HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n".encode() +
                   b"".join(b"10000\r\n" + b"x" * 65536 + b"\r\n" for _ in range(40)) + b"0\r\n\r\n")
            assert response(c)[::2] == (200, b"ok")
    assert [line.decode() for line, _, _ in seen[:6]] == [f"{m} {rest} HTTP/1.1" for m in ("GET", "POST", "PATCH", "DELETE", "OPTIONS", "PROPFIND")]
    assert len(seen[6][2]) == 40 * 65536
    assert all(values(fields, "X-Forwarded-Host") == ["public.example"] for _, fields, _ in seen[:6])


def test_answers_pass_unchanged(front):
    big = os.urandom(3000000)
    packed = gzip.compress(b"hello" * 1000)
    for answer, expected, encoding in ((reply(big), big, []), (reply(packed, headers="Content-Encoding: gzip\r\n"), packed, ["gzip"]),
                                       (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"%x\r\n" % len(big) + big + b"\r\n0\r\n\r\n", big, []),
                                       (reply(status="404 Not Found"), b"", [])):
        with Upstream(recorder([], answer)) as up:
            status, fields, body = front.get(up, headers="Accept-Encoding: gzip\r\n")
            assert status == int(answer.split()[1]) and body == expected and values(fields, "Content-Encoding") == encoding


@pytest.mark.parametrize("kind", ["text/event-stream", "text/plain"])
def test_what_comes_piece_by_piece_arrives_piece_by_piece(front, kind):
    """The next piece is sent only once the one before it has arrived: whoever collects them would wait for ever."""
    arrived = threading.Semaphore(0)
    late = []

    def serve(conn):
        conn.head()
        conn.send(f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        for i in range(10):
            began = time.monotonic()
            conn.send(b"9\r\ndata: %d\n\n\r\n" % i)
            assert arrived.acquire(timeout=20)
            late.append(time.monotonic() - began)
        conn.send(b"0\r\n\r\n")

    with Upstream(serve) as up, front.client() as c:
        c.send(f"GET /leases/l1/proxy/{up.port}/ HTTP/1.1\r\nHost: h\r\n\r\n".encode())
        c.head()
        for i in range(10):
            assert c.chunk() == b"data: %d\n\n" % i
            arrived.release()
        assert c.chunk() == b""
    assert max(late) < 0.2 * SLOW, late


def test_a_service_does_not_command_the_gateway(front):
    """nginx obeys X-Accel-Redirect of whatever it forwards to."""
    for header in ("X-Accel-Redirect: /internal/secret", "x-accel-redirect: /internal/secret", "X-Accel-Expires: 3600", "X-Accel-Limit-Rate: 1",
                   "X-Accel-Charset: utf-16", "X-Sendfile: /etc/passwd", "X-Reproxy-URL: http://127.0.0.1/"):
        with Upstream(recorder([], reply(b"mine", headers=header + "\r\n"))) as up:
            assert front.get(up)[::2] == (200, b"mine"), header


def test_errors_of_ours_arrive_as_such(front):
    status, fields, body = front.ask(b"GET /leases/l1/proxy/1/ HTTP/1.1\r\nHost: h\r\n\r\n")
    assert status == 503 and values(fields, "Sandgate-Error") == ["endpoint_not_listening"] and json.loads(body)["code"] == "endpoint_not_listening"


def test_websockets(front):
    big = os.urandom(1024 * 1024)
    with Upstream(ws.echo) as up, front.client() as c:
        c.send(ws.request(f"/leases/l1/proxy/{up.port}/", headers="Sec-WebSocket-Protocol: a, b\r\n"))
        line, fields = c.head()
        assert line.split()[1] == b"101" and values(fields, "Sec-WebSocket-Protocol") == ["b"]
        assert values(fields, "Sec-WebSocket-Accept") == [ws.accept_of("dGhlIHNhbXBsZSBub25jZQ==")]
        for opcode, data in ((ws.TEXT, b"hello"), (ws.BINARY, big), (ws.PING, b"p")):
            c.send(ws.frame(opcode, data, True))
            assert ws.read_frame(c) == (ws.PONG if opcode == ws.PING else opcode, data)
        bye = struct.pack(">H", 4001) + b"enough"
        c.send(ws.frame(ws.CLOSE, bye, True))
        assert ws.read_frame(c) == (ws.CLOSE, bye) and c.closed()


def test_a_client_that_leaves_is_seen_through_the_gateway(front):
    seen = []

    def serve(conn):
        line, fields = conn.head()
        if b"socket" in line:
            conn.send(ws.accept(fields))
        begun.set()
        seen.append(conn.closed())

    for path in ("/socket", "/plain"):
        begun = threading.Event()
        with Upstream(serve) as up:
            with front.client() as c:
                c.send(ws.request(f"/leases/l1/proxy/{up.port}{path}") if path == "/socket" else
                       f"GET /leases/l1/proxy/{up.port}{path} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
                assert begun.wait(20)
    assert seen == [True, True]


def test_a_sandbox_behind_the_gateway():
    """Both forms of a real server's endpoints, by the URLs that it gives out."""
    with Server({"local_bwrap": {"size": 1}, "server": {"public_domain": "sbx.example", "drain_timeout": "0s"}}) as s, Nginx(s.port) as gateway:
        client = s.client()
        lease = client.lease()
        start_service(client, lease)
        start_websockets(client, lease)
        host = f"8000-{lease.removeprefix('lease_')}.sbx.example:{gateway.port}"

        def ask(target, host, headers=""):
            c = connect(gateway)
            c.send(f"GET {target} HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n".encode())
            answer = response(c)
            c.close()
            return answer

        def connect(gateway):
            import socket
            return Conn(socket.create_connection(("127.0.0.1", gateway.port), timeout=30 * SLOW))

        status, _, body = ask(f"/leases/{lease}/endpoints/8000", f"127.0.0.1:{gateway.port}")
        endpoint = json.loads(body)
        assert status == 200 and endpoint["url"] == f"http://{host}/"
        token = endpoint["headers"]["Sandgate-Endpoint-Token"]
        status, fields, body = ask("/x?sandgate_token=" + token, host)
        assert status == 303 and values(fields, "Location") == ["/x"] and values(fields, "Set-Cookie")[0].startswith("__Host-sandgate=" + token)
        status, fields, body = ask("/x", host, f"Cookie: __Host-sandgate={token}\r\n")
        assert status == 200 and values(fields, "Set-Cookie") == ["a=b"] and json.loads(body)["line"] == "GET /x HTTP/1.1"
        status, fields, body = ask(f"/leases/{lease}/proxy/8000/x", f"127.0.0.1:{gateway.port}")
        assert status == 200 and values(fields, "Set-Cookie") == [] and json.loads(body)["line"] == "GET /x HTTP/1.1"
        status, fields, body = ask("/stream", host.replace("8000-", "8001-"))
        assert status == 503 and values(fields, "Sandgate-Error") == ["endpoint_not_listening"]
        c = connect(gateway)
        c.send(ws.request("/", host=host.replace("8000-", "8100-"), headers=f"Origin: http://{host.replace('8000-', '8100-')}\r\n"))
        assert c.head()[0].split()[1] == b"101" and ws.read_frame(c) == (ws.TEXT, b"127.0.0.1:8100 http://127.0.0.1:8100")
        client.terminate(lease)
        assert c.closed()  # with its lease, through nginx
        c.close()
