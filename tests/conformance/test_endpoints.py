"""Services in a sandbox, reached from outside."""
import os

import pytest

import ws
from box import Box
from harness import BIN, SLOW, wait_until
from upstream import Conn, response

pytestmark = pytest.mark.needs("endpoints")

SERVICE = os.path.join(os.path.dirname(BIN), "conformance-service")


def start(box, *more, port=0):
    """Starts the service in the background and answers its port: when the command has ended, it listens."""
    if box.stat("service").status != 200:
        with open(SERVICE, "rb") as f:
            assert box.write("service", f.read(), mode="0755").status == 201
    return int(box.out(["./service", str(port), *more]))


class Web:
    """A port of the sandbox, on the path form."""

    def __init__(self, box, port):
        self.box, self.port = box, port
        self.url = f"{box.url}/proxy/{port}"

    def ask(self, rest="/", method="GET", headers="", body=b""):
        """(status, fields, body) of a request that goes out exactly like this."""
        c = Conn(self.box.server.connect(timeout=30 * SLOW))
        try:
            c.send(f"{method} {self.url}{rest} HTTP/1.1\r\nHost: h\r\n{headers}\r\n".encode("latin-1") + body)
            return response(c, head=method == "HEAD")
        finally:
            c.close()


@pytest.fixture
def web(box):
    return Web(box, start(box))


@pytest.mark.needs("shell")
def test_a_service_answers(web):
    status, _, body = web.ask()
    assert status == 200 and body.startswith(b"GET / HTTP/1.1\r\n") and f"Host: 127.0.0.1:{web.port}\r\n".encode() in body, body


@pytest.mark.needs("shell")
def test_path_and_query_pass_byte_for_byte(web):
    for rest in ("/a%2Fb//c/%E9?b=2&a=1&b=3&uploads&sig=%E9%FF&s=1;2&q=hello%20world", "/", "/?", "//x/./y/../z", "/%00%0A"):
        status, _, body = web.ask(rest)
        assert status == 200 and body.split(b"\r\n")[0] == f"GET {rest} HTTP/1.1".encode(), (rest, body)


@pytest.mark.needs("shell")
def test_methods_and_bodies(web):
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        status, _, body = web.ask("/x", method, "Content-Length: 5\r\n", b"\x00\xffabc")
        assert status == 200 and body.startswith(method.encode() + b" /x ") and body.endswith(b"\r\n\r\n\x00\xffabc"), body
    status, _, body = web.ask("/c", "POST", "Transfer-Encoding: chunked\r\n", b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n")
    assert status == 200 and body.endswith(b"hello world"), body
    status, fields, body = web.ask("/h", "HEAD")
    assert status == 200 and body == b"" and int(dict(fields)["Content-Length"]) > 0
    big = b"x" * 2000000
    status, _, body = web.ask("/big", "POST", f"Content-Length: {len(big)}\r\n", big)
    assert status == 200 and body.endswith(b"\r\n\r\n" + big)


@pytest.mark.needs("shell")
def test_credentials_of_ours_stay_out_and_the_services_own_arrive(web, box):
    endpoint = box.client.get(f"{box.url}/endpoints/{web.port}").json()
    token, = endpoint["headers"].values()
    assert endpoint["url"].endswith(f"{box.url}/proxy/{web.port}/")
    _, _, body = web.ask("/", headers=f"Sandgate-Endpoint-Token: {token}\r\nX-Own: kept\r\nConnection: X-Hop\r\nX-Hop: gone\r\n")
    assert token.encode() not in body and b"X-Own: kept\r\n" in body and b"X-Hop" not in body, body


@pytest.mark.needs("shell")
def test_events_come_as_they_are_sent(web):
    c = Conn(web.box.server.connect(timeout=30 * SLOW))
    c.send(f"GET {web.url}/stream HTTP/1.1\r\nHost: h\r\n\r\n".encode())
    _, fields = c.head()
    pieces = []
    while (piece := c.chunk()):
        pieces.append(piece)
    c.close()
    assert b"".join(pieces) == b"".join(b"data: %d\n\n" % i for i in range(5)) and len(pieces) >= 3, pieces


@pytest.mark.needs("shell")
def test_websockets(web):
    c = Conn(web.box.server.connect(timeout=30 * SLOW))
    c.send(ws.request(f"{web.url}/socket", host="localhost"))
    line, fields = c.head()
    assert line.split()[1] == b"101" and dict(fields)["Sec-WebSocket-Accept"] == ws.accept_of("dGhlIHNhbXBsZSBub25jZQ=="), (line, fields)
    for opcode, payload in ((ws.TEXT, "grüße".encode()), (ws.BINARY, bytes(range(256)) * 4000), (ws.BINARY, b""), (ws.TEXT, b"x" * 300)):
        c.send(ws.frame(opcode, payload, True))
        assert ws.read_frame(c) == (opcode, payload)
    c.send(ws.frame(ws.PING, b"p", True))
    assert ws.read_frame(c) == (ws.PONG, b"p")
    c.send(ws.frame(ws.CLOSE, b"\x0f\xa1bye", True))
    assert ws.read_frame(c) == (ws.CLOSE, b"\x0f\xa1bye") and c.closed()
    c.close()


@pytest.mark.needs("shell", "isolated")
def test_ports_of_two_sandboxes_do_not_meet(box, fresh):
    port = start(box)
    assert start(fresh, port=port) == port
    for b in (box, fresh):
        b.run("touch here")
        assert Web(b, port).ask()[0] == 200


@pytest.mark.needs("shell", "isolated")
def test_ipv6_loopback(box):
    if box.run("test -e /proc/net/if_inet6 && grep -q ' lo$' /proc/net/if_inet6")["returncode"] == 0:
        assert Web(box, start(box, "6")).ask()[0] == 200


def test_nothing_listens(box):
    r = box.client.get(f"{box.url}/proxy/9/")
    assert r.status == 503 and r.code == "endpoint_not_listening" and r.header("Sandgate-Error") == "endpoint_not_listening", r
    for port in ("0", "65536", "x"):
        assert box.client.get(f"{box.url}/proxy/{port}/").status in (400, 404)


@pytest.mark.needs("isolated")
def test_only_the_sandboxs_own_ports(box, server):
    r = box.client.get(f"{box.url}/proxy/{server.port}/healthz")
    assert r.status == 503 and r.code == "endpoint_not_listening", r


def test_issued_tokens(box, server):
    r = box.client.post(f"{box.url}/endpoints", {"port": 8000, "ttl": 60})
    assert r.status == 201 and r.json()["token_id"] and r.json()["expires_at"] and r.json()["headers"], r
    assert box.client.delete(f"{box.url}/endpoints/{r.json()['token_id']}").status == 204


@pytest.mark.needs("shell")
def test_the_end_of_a_lease_ends_its_connections(server):
    c = server.client()
    own = Box(server, c.lease())
    web = Web(own, start(own))
    conn = Conn(server.connect(timeout=30 * SLOW))
    conn.send(ws.request(f"{web.url}/socket", host="localhost"))
    assert conn.head()[0].split()[1] == b"101"
    c.terminate(own.lease)
    assert conn.closed()
    conn.close()
    r = c.get(f"{web.url}/")
    assert r.status == 410 and r.code == "lease_gone" and r.header("Sandgate-Error") == "lease_gone", r


@pytest.mark.needs("shell")
def test_services_of_the_lease_have_endpoints(server):
    c = server.client()
    r = c.post("/leases", {"services": [{"name": "web", "port": 8123}]})
    assert r.status == 201 and r.json()["endpoints"]["web"]["url"].endswith("/proxy/8123/"), r
    c.terminate(r.json()["id"])


@pytest.mark.needs("shell")
def test_a_service_that_dies_is_said(web, box):
    assert web.ask()[0] == 200
    box.run("kill -9 $(cat /proc/[0-9]*/stat 2>/dev/null | sed -n 's/^\\([0-9]*\\) (service).*/\\1/p') 2>/dev/null")
    wait_until(lambda: web.ask()[0] == 503, what="nothing listening")
