"""Services inside real sandboxes, reached through the proxy."""
import hashlib
import http.client
import json
import os
import struct
import threading
import time

import pytest
import ws
from gateway import behind
from test_events import scripted
from harness import SLOW, Server, wait_until
from sandboxed import open_socket, start_service, start_websockets
from upstream import values

TOKENS = {"a": "token-a-0123456789", "b": "token-b-0123456789"}


@pytest.fixture(scope="module", params=["direct", "nginx"])
def server(request):
    auth = [{"name": t, "sha256": hashlib.sha256(v.encode()).hexdigest(), "tenant": t, "role": "tenant"} for t, v in TOKENS.items()]
    with Server({"local_bwrap": {"size": 3}, "auth": {"tokens": auth}}) as s, behind(s, request.param):
        yield s


@pytest.fixture
def client(server):
    return server.client(TOKENS["a"])


@pytest.fixture
def lease(client):
    lease = client.lease()
    yield lease
    client.terminate(lease)


def test_a_service_answers(client, lease):
    start_service(client, lease)
    rest = "/a%2Fb//c/%E9?b=2&a=1&b=3&uploads&sig=%E9%FF&s=1;2&q=hello%20world"
    r = client.get(f"/leases/{lease}/proxy/8000{rest}")
    assert r.status == 200 and r.json()["line"] == f"GET {rest} HTTP/1.1"
    assert r.header("Set-Cookie") is None and r.header("Content-Security-Policy") == "sandbox"
    r = client.post(f"/leases/{lease}/proxy/8000/", b"x" * 1000000)
    assert r.status == 200 and r.json()["body"] == 1000000
    r = client.request("HEAD", f"/leases/{lease}/proxy/8000/")
    assert r.status == 200 and r.body == b"" and int(r.header("Content-Length")) > 0


def test_services_on_ipv6_loopback_and_all_addresses(client, lease):
    start_service(client, lease, 8006, "6", "::1")
    start_service(client, lease, 8004, "4", "0.0.0.0")
    for port in (8006, 8004):
        r = client.get(f"/leases/{lease}/proxy/{port}/")
        assert r.status == 200 and dict(r.json()["headers"])["Host"] == f"127.0.0.1:{port}"


def test_redirects_stay_under_the_public_prefix(client, lease):
    start_service(client, lease)
    public = f"/leases/{lease}/proxy/8000"
    for given, expected in (("/login?next=%2F", public + "/login?next=%2F"), ("http://127.0.0.1:8000/x", public + "/x"), ("next", "next"),
                            ("//evil.example/x", "//evil.example/x"), ("https://example.com/", "https://example.com/")):
        r = client.get(public + "/redirect", headers={"X-To": given})
        assert r.status == 302 and r.header("Location") == expected


def test_callers_credentials_stay_out(server, client, lease):
    start_service(client, lease)
    url = f"/leases/{lease}/proxy/8000/"
    endpoint = client.get(f"/leases/{lease}/endpoints/8000").json()
    assert endpoint["url"].endswith(url)
    token = TOKENS["a"]
    app = "Bearer the-apps-own"
    for headers, arrives in (({"Authorization": "Bearer " + token}, None), ({"X-API-Key": token}, None), ({"X-API-Key": token, "Authorization": app}, app),
                             (dict(endpoint["headers"], Authorization=app), app), (dict(endpoint["headers"], Authorization="Bearer " + token), None),
                             (dict(endpoint["headers"], **{"X-API-Key": token}), None)):
        r = server.client().get(url, headers=dict(headers, **{"X-Forwarded-For": "6.6.6.6"}))
        assert r.status == 200, (headers, r)
        got = {k.lower(): v for k, v in r.json()["headers"]}
        text = json.dumps(got)
        assert token not in text and endpoint["headers"]["Sandgate-Endpoint-Token"] not in text
        assert got.get("authorization") == arrives and got["x-forwarded-for"] == "127.0.0.1"


def test_whom_the_proxy_refuses(server, client, lease):
    start_service(client, lease)
    url = f"/leases/{lease}/proxy/8000/"
    for c, status, code in ((server.client(), 401, "unauthorized"), (server.client("wrong"), 401, "unauthorized"),
                            (server.client(TOKENS["b"]), 404, "not_found")):
        r = c.get(url)
        assert (r.status, r.code, r.header("Sandgate-Error")) == (status, code, code), r
    r = server.client().get(url, headers={"Sandgate-Endpoint-Token": "ept_" + "0" * 64})
    assert r.status == 401
    for port in ("80@169.254.169.254", "0", "65536", "http", "-1"):
        assert client.get(f"/leases/{lease}/proxy/{port}/").status in (400, 404)


def test_no_service_workers_at_the_apis_origin(client, lease):
    start_service(client, lease)
    for headers in ({"Service-Worker": "script"}, {"Sec-Fetch-Dest": "serviceworker"}):
        r = client.get(f"/leases/{lease}/proxy/8000/worker.js", headers=headers)
        assert (r.status, r.code, r.header("Sandgate-Error"), r.json()["reason"]) == (403, "forbidden", "forbidden", "service_worker")
    assert client.get(f"/leases/{lease}/proxy/8000/", headers={"Sec-Fetch-Dest": "worker"}).status == 200


def test_only_the_sandboxs_own_ports(server, client, lease):
    """The server itself listens on the host's loopback, which is not the sandbox's."""
    r = client.get(f"/leases/{lease}/proxy/{server.port}/healthz")
    assert (r.status, r.code, r.header("Sandgate-Error")) == (503, "endpoint_not_listening", "endpoint_not_listening")


def test_two_leases_do_not_share_connections(client, lease):
    other = client.lease()
    try:
        start_service(client, lease)
        assert client.get(f"/leases/{lease}/proxy/8000/").status == 200
        assert client.get(f"/leases/{other}/proxy/8000/").code == "endpoint_not_listening"
    finally:
        client.terminate(other)


def test_the_end_of_a_lease_cuts_its_streams_and_frees_its_slot(server, client):
    token = TOKENS["a"]
    lease = client.lease()
    start_service(client, lease)
    assert client.get(f"/leases/{lease}/proxy/8000/").status == 200  # leaves a kept connection behind
    c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30 * SLOW)
    c.request("GET", f"/leases/{lease}/proxy/8000/stream", headers={"Authorization": "Bearer " + token})
    r = c.getresponse()
    assert r.status == 200 and r.read(9) == b"data: x\n\n"
    ended = []

    def read_on():
        try:
            while r.read(9):
                pass
        except (OSError, http.client.HTTPException):
            pass
        ended.append(True)

    reader = threading.Thread(target=read_on)
    reader.start()
    client.terminate(lease)
    reader.join(20 * SLOW)
    c.close()
    assert ended == [True]
    r = client.get(f"/leases/{lease}/proxy/8000/")
    assert r.status == 410 and r.code == "lease_gone" and r.header("Sandgate-Error") == "lease_gone"
    # every slot comes back although its connections were open
    leases = [client.lease(acquire_timeout=20 * SLOW) for _ in range(3)]
    for each in leases:
        client.terminate(each)


def test_a_websocket_in_a_sandbox(server, client, lease):
    start_websockets(client, lease)
    big = os.urandom(1024 * 1024)
    c, status, fields = open_socket(server, lease, TOKENS["a"], headers="Sec-WebSocket-Protocol: a, b\r\nOrigin: https://app.example\r\n")
    assert status == 101 and values(fields, "Sec-WebSocket-Protocol") == ["b"]
    assert ws.read_frame(c) == (ws.TEXT, b"127.0.0.1:8100 https://app.example")
    for opcode, data in ((ws.TEXT, b"hello"), (ws.BINARY, big)):
        c.send(ws.frame(opcode, data, True))
        assert ws.read_frame(c) == (opcode, data)
    bye = struct.pack(">H", 4001) + b"enough"
    c.send(ws.frame(ws.CLOSE, bye, True))
    assert ws.read_frame(c) == (ws.CLOSE, bye) and c.closed()
    c.close()
    for token, expected in (("wrong", 401), (TOKENS["b"], 404)):
        c, status, fields = open_socket(server, lease, token)
        assert status == expected and values(fields, "Sandgate-Error")
        c.close()
    c, status, fields = open_socket(server, lease, TOKENS["a"], port=8101)
    assert (status, values(fields, "Sandgate-Error")) == (503, ["endpoint_not_listening"])
    c.close()


def test_an_open_websocket_is_use_and_ends_with_its_lease(server, client):
    lease = client.lease(idle_timeout_sec=1)
    start_websockets(client, lease)
    c, status, _ = open_socket(server, lease, TOKENS["a"])
    assert status == 101
    ws.read_frame(c)
    time.sleep(2.5)
    c.send(ws.frame(ws.TEXT, b"still here", True))
    assert ws.read_frame(c) == (ws.TEXT, b"still here")
    client.terminate(lease)
    assert c.closed()
    c.close()
    lease = client.lease(idle_timeout_sec=1)
    start_websockets(client, lease)
    c, status, _ = open_socket(server, lease, TOKENS["a"])
    c.close()  # nobody is there any more: the lease idles away
    wait_until(lambda: client.get(f"/leases/{lease}").json()["state"] == "expired", what="idling")


def test_the_end_of_the_server_ends_websockets():
    with Server({"local_bwrap": {"size": 1}, "server": {"drain_timeout": "0s"}}) as s:
        client = s.client()
        lease = client.lease()
        start_websockets(client, lease)
        c, status, _ = open_socket(s, lease, None)
        assert status == 101
        assert s.stop() == 0
        assert c.closed()
        c.close()


def test_no_endpoints_where_nothing_can_be_connected_to():
    with scripted({"caps": ["file_rw", "exec"]}) as s:
        c = s.client()
        id = c.lease()
        for r in (c.get(f"/leases/{id}/endpoints/80"), c.post(f"/leases/{id}/endpoints", {"port": 80}), c.get(f"/leases/{id}/proxy/80/")):
            assert r.status == 422 and r.code == "not_supported", r
        c.terminate(id)
