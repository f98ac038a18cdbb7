"""Routes, parameters, methods, identities, bodies: what stays on one connection."""
import json

import pytest


def test_methods(conn):
    r = conn.get("/hello", method="DELETE").reply()
    assert r.status == 405 and r.one("Allow") == "GET, HEAD, OPTIONS"
    assert r.problem()["code"] == "method_not_allowed"
    r = conn.get("/things/x", method="OPTIONS").reply()
    assert r.status == 204 and set(r.one("Allow").split(", ")) == {"GET", "HEAD", "DELETE", "OPTIONS"}
    r = conn.get("/hello", method="BREW").reply()
    assert r.status == 501 and r.problem()["code"] == "not_implemented"
    r = conn.get("/hello", method="get").reply()
    assert r.status == 501
    r = conn.get("/nothing").reply()
    assert r.status == 404 and r.problem()["code"] == "not_found"
    assert conn.usable()


@pytest.mark.parametrize("target,status", [
    ("/things/a%2Fb", 400), ("/things/..", 400), ("/things/%2e%2E", 400), ("/things/.", 400), ("/things/%ff", 400),
    ("/things//", 404), ("//hello", 404), ("/hello//", 404), ("/Hello", 404), ("/v1", 200), ("/v1/", 200), ("/", 200),
    ("/v1/v1/hello", 404), ("/v1hello", 404), ("/things/a?x=1", 400), ("/things/a?q=1&q=1", 400), ("/things/a?q=%zz", 400),
    ("/things/a?q", 200), ("/things/a?&&q=1&", 200), ("/hello?x", 400), ("/hello?", 200),
])
def test_targets(conn, target, status):
    r = conn.get(target).reply()
    assert r.status == status, r.body
    if status == 400 and "%zz" not in target:
        assert r.problem()["field"]
        assert conn.usable()


def test_decoding(conn):
    d = conn.get("/things/a%20b%C3%A9?q=1+2%2B%26").reply().json()
    assert d["id"] == "a b\u00e9" and d["q"] == "1 2+&"
    assert d["target"] == "/things/a%20b%C3%A9?q=1+2%2B%26" and d["peer"] == "127.0.0.1"


def test_tail_is_raw(conn):
    for rest in ["", "a/../b", "%2e%2e/x", "a//b/", "%41;x=/"]:
        d = conn.get(f"/proxy/80/{rest}?b=%zz&b".replace("%zz", "%20"), method="PATCH").reply().json()
        assert d["rest"] == rest and d["raw_query"] == "b=%20&b"
    assert conn.get("/proxy/80", method="OPTIONS").reply().json()["rest"] == ""


def test_host_route(conn):
    conn.send("GET /hello/x?y HTTP/1.1\r\nHost: sandbox.example\r\n\r\n")
    assert conn.reply().json()["rest"] == "hello/x"


def test_request_id_and_trace(conn):
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    r = conn.get("/things/x", "X-Request-Id: my-id.1_2", f"traceparent: {trace}").reply()
    assert r.one("X-Request-Id") == "my-id.1_2" and r.json()["traceparent"] == trace
    for bad in ["a b", "x" * 129, "a\"b", ""]:
        r = conn.get("/things/x", f"X-Request-Id: {bad}", "traceparent: 00-0-0-0").reply()
        assert r.one("X-Request-Id").startswith("req_") and r.json()["traceparent"] is None
    ids = {conn.get("/nothing").reply().one("X-Request-Id") for _ in range(50)}
    assert len(ids) == 50


def test_duplicate_headers_are_listed(conn):
    d = conn.get("/things/x", "Accept: a", "accept: b").reply().json()
    assert ["Accept", "a"] in d["headers"] and ["accept", "b"] in d["headers"]


def test_answer_headers(conn):
    r = conn.get("/headers").reply()
    assert r.all("Set-Cookie") == ["a=1", "b=2"] and r.one("Content-Length") == "4"
    assert not r.all("X-Evil") and not r.all("X-Injected") and r.one("Content-Type") == "text/plain"


def test_forgotten_request_is_500(conn):
    r = conn.get("/forget").reply()
    assert r.status == 500 and r.problem()["code"] == "internal_error"
    assert conn.usable()


# ---- who ----

def test_auth(conn):
    r = conn.get("/private").reply()
    assert r.status == 401 and r.one("WWW-Authenticate") == "Bearer"
    for header in ["Authorization: Bearer wrong", "Authorization: Basic dDp0", "Authorization: Bearer", "X-API-Key: wrong",
                   "Authorization: tenant-token"]:
        assert conn.get("/private", header).reply().status == 401, header
    for header in ["Authorization: Bearer tenant-token", "authorization: bearer tenant-token", "X-API-Key: tenant-token"]:
        assert conn.get("/private", header).reply().json()["who"] == "t"
    r = conn.get("/private", "Authorization: Bearer tenant-token", "X-API-Key: tenant-token").reply()
    assert r.status == 400 and r.problem()["field"] == "Authorization"
    assert conn.get("/admin", "X-API-Key: tenant-token").reply().status == 403
    assert conn.get("/admin", "X-API-Key: admin-token").reply().json()["who"] == "a"
    assert conn.usable()


# ---- JSON bodies ----

def post(conn, body, *headers, path="/echo", kind="application/json"):
    data = body if isinstance(body, bytes) else body.encode()
    head = [f"POST {path} HTTP/1.1", "Host: h", f"Content-Length: {len(data)}"]
    if kind:
        head.append(f"Content-Type: {kind}")
    conn.send("\r\n".join([*head, *headers, "", ""]).encode() + data)
    return conn


def test_json_bodies(conn):
    assert post(conn, '{"a": [1,2]}').reply().body == b'{"a":[1,2]}\n'
    assert post(conn, "{}", kind="application/json; charset=utf-8").reply().status == 200
    assert post(conn, "{").reply().problem()["code"] == "invalid_request"
    for kind in ["text/plain", None, "application/jsonx"]:
        assert post(conn, "{}", kind=kind).reply().status == 415
    assert post(conn, "").reply().status == 400
    assert post(conn, "", path="/maybe", kind=None).reply().status == 200
    conn.send("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
    assert conn.reply().status == 400
    big = json.dumps({"a": "x" * 90000})
    assert len(post(conn, big).reply().body) > 90000
    assert conn.usable()


def test_body_on_a_route_without(conn):
    conn.send("DELETE /things/x HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}")
    assert conn.reply().status == 200
    assert conn.usable()
    conn.send("GET /hello HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
    assert conn.reply().status == 200
    assert conn.usable()


@pytest.mark.parametrize("target", ["/hello", "/slow?ms=10", "/worker", "/stream?bytes=1000", "/file?bytes=1000",
                                    "/file?bytes=1000&hold=1", "/stream?bytes=1000&length=1000", "/nothing", "/private",
                                    "/stream?bytes=100000", "/health", "/headers"])
def test_head_then_another(conn, target):
    """HEAD has the headers of GET and not one byte more."""
    full = conn.get(target).reply()
    r = conn.get(target, method="HEAD").reply(head_only=True)
    assert r.status == full.status and r.all("Content-Type") == full.all("Content-Type")
    if full.all("Content-Length"):
        assert r.one("Content-Length") == full.one("Content-Length")
    assert conn.silent(0.05)
    assert conn.usable()
    # and with the next request already behind it
    conn.get(target, method="HEAD").get("/hello")
    conn.reply(head_only=True)
    assert conn.reply().json() == {"hello": "world"}
    assert conn.silent(0.05)
