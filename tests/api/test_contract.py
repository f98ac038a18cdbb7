"""The API is what its description says: rules that hold for every operation, and every documented status at least once.

The operations come from the description the server itself answers, so a new one is covered as soon as it is described. What the tests of
this directory saw is compared with the description afterwards (tests/openapi/check.mjs).
"""
import concurrent.futures
import hashlib
import http.client
import http.server
import json
import os
import re
import sys
import threading
import time
import urllib.parse

import pytest

from harness import SLOW, Client, Server, wait_until
from sandboxed import start

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "raw"))
from rawhttp import Conn  # noqa: E402

TENANTS = {"ops": "admin", "a": "tenant", "b": "tenant", "few": "tenant"}
UNKNOWN_LEASE = "lease_00000000000000000000000000"

# What a probe of an operation sends: its answer has no effect that another test would notice. {lease} is a live lease of tenant a.
BODIES = {"select": {}, "createLease": {"nope": 1}, "extendLease": {"nope": 1}, "exec": {"nope": 1}, "signalExec": {"signal": "CONT"},
          "resizeExec": {"rows": 24, "cols": 80},
          "writeExecStdin": b"", "moveFile": {"from": "no-such", "to": "there"}, "issueEndpoint": {"port": 8000}, "verifyReceipt": {}, "putFile": b"",
          "putTar": bytes(1024)}
QUERIES = {"getFile": "path=kept.txt", "statFile": "path=kept.txt", "putFile": "path=probe.txt", "deleteFile": "path=no-such",
           "makeDirectory": "path=probe-dir", "getTar": "path=kept.txt", "putTar": "path=probe-tar"}
PARAMETERS = {"eid": "kept", "port": "8000", "endpoint": "8000", "rest": "x", "pool": "default", "name": "no-such-pool"}


def token_entry(name, role, **more):
    return dict(more, name=name, sha256=hashlib.sha256(("token-" + name).encode()).hexdigest(), tenant="tenant-" + name, role=role)


@pytest.fixture(scope="module")
def server():
    tokens = [token_entry(n, role, **({"max_leases": 1, "max_execs": 1} if n == "few" else {})) for n, role in TENANTS.items()]
    with Server({"local_bwrap": {"size": 3, "disk_max": "16MiB"}, "auth": {"tokens": tokens}}) as s:
        s.wait_slots(3, token="token-ops")
        s.admin, s.a, s.b, s.few = (s.client("token-" + n) for n in TENANTS)
        yield s


@pytest.fixture(scope="module")
def lease(server):
    """A live lease of tenant a with a file, a kept exec and a service on port 8000 that echoes."""
    id = server.a.lease()
    server.a.write(id, "kept.txt", b"kept")
    assert server.a.exec(id, "echo kept", exec_id="kept")["stdout"] == "kept\n"
    serve(server.a, id, 8000, ECHO)
    yield id
    server.a.terminate(id)


@pytest.fixture(scope="module")
def ended(server):
    id = server.a.lease()
    server.a.terminate(id)
    return id


ECHO = """
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *a): pass
    def answer(self):
        out = json.dumps({"line": self.requestline, "headers": self.headers.items()}).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(out))); self.end_headers()
        if self.command != "HEAD": self.wfile.write(out)
    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = do_OPTIONS = do_PATCH = answer
"""
MUTE = """
class H(http.server.BaseHTTPRequestHandler):
    def handle(self): self.rfile.readline()
"""


def serve(client, lease, port, handler):
    start(client, lease, "import http.server, json\n" + handler + f"\ns = http.server.ThreadingHTTPServer(('127.0.0.1', {port}), H)\n"
                         "background()\ns.serve_forever()\n")


class Operation:
    def __init__(self, path, method, spec):
        self.path, self.method, self.spec, self.id = path, method.upper(), spec, spec["operationId"]
        self.is_proxy = self.id == "proxy"

    def documents(self, status):
        return str(status) in self.spec["responses"]

    def target(self, lease, query=None):
        """lease: what {id} becomes where a lease is meant."""
        p = self.path
        p = p.replace("{id}", lease if p.startswith("/leases") else "0" * 64)
        for name, value in PARAMETERS.items():
            p = p.replace("{%s}" % name, value)
        q = "&".join(x for x in (QUERIES.get(self.id), query) if x)
        return p + ("?" + q if q else "")

    def request(self, client, lease, query=None, target=None, **kw):
        return client.request(self.method, target or self.target(lease, query), BODIES.get(self.id), **kw)


@pytest.fixture(scope="module")
def operations(server):
    api = server.client().get("/openapi.json").json()
    ops = [Operation(path, method, spec) for path, item in api["paths"].items() for method, spec in item.items() if method != "parameters"]
    assert len(ops) > 30
    return ops


def each(operations, only=lambda op: True):
    chosen = [op for op in operations if only(op)]
    assert chosen
    return chosen


def by_lease(op):
    return op.path.startswith("/leases/{id}")


# ---- rules for every operation ----

def test_unknown_query_parameters_are_named(server, operations, lease):
    for op in each(operations, lambda op: not op.is_proxy):
        r = op.request(server.admin, UNKNOWN_LEASE, "nope=1")
        assert r.status == 400 and r.code == "invalid_request" and r.json()["field"] == "nope", (op.id, r)
    # Of a service's own query nothing is known.
    assert server.a.get(f"/leases/{lease}/proxy/8000/x?nope=1").status == 200


def test_repeated_query_parameters_are_named(server, operations):
    for op in each(operations, lambda op: op.id in QUERIES):
        r = op.request(server.admin, UNKNOWN_LEASE, "path=again")
        assert r.status == 400 and r.json()["field"] == "path", (op.id, r)


def test_head_is_get_without_a_body(server, operations, lease):
    for op in each(operations, lambda op: op.method == "GET"):
        for auth in ("Authorization: Bearer token-a", "X-Nothing: 1"):
            with Conn(server.port, timeout=30 * SLOW) as c:
                c.get(op.target(lease), auth, method="HEAD")
                head = c.reply(head_only=True)
                get = c.get(op.target(lease), auth).reply()
                # Had the first answer had a body, the second would not have parsed, nor would a third.
                third = c.get("/version").reply()
            assert head.status == get.status and third.status == 200 and third.json()["name"] == "sandgate", op.id
            assert head.all("Content-Type") == get.all("Content-Type"), op.id
            if op.id not in ("metrics", "proxy"):  # whose figures change meanwhile, and that tells the method
                assert head.all("Content-Length") == get.all("Content-Length") or get.all("Transfer-Encoding"), op.id


def allowed(operations, path):
    methods = {op.method for op in operations if op.path == path}
    return methods | {"OPTIONS"} | ({"HEAD"} if "GET" in methods else set())


def test_options_and_wrong_methods_name_the_allowed_ones(server, operations, lease):
    nobody = server.client()
    for op in each(operations, lambda op: not op.is_proxy):
        expected = allowed(operations, op.path)
        r = nobody.request("OPTIONS", op.target(lease))
        assert r.status == 204 and r.body == b"" and set(r.header("Allow").split(", ")) == expected, (op.id, r)
        for method in {"GET", "POST", "PUT", "DELETE", "PATCH"} - expected:
            r = server.admin.request(method, op.target(lease))
            assert r.status == 405 and r.code == "method_not_allowed" and set(r.header("Allow").split(", ")) == expected, (method, op.id, r)
        assert server.admin.request("BREW", op.target(lease)).status == 501
    # The service has the say about its own methods.
    assert server.a.request("OPTIONS", f"/leases/{lease}/proxy/8000/").json()["line"].startswith("OPTIONS / ")


def comparable(r):
    p = r.json() if r.body[:1] == b"{" else {}
    return r.status, r.header("Content-Type"), p.get("code"), p.get("detail"), p.get("field")


def test_one_trailing_slash_and_v1_make_no_difference(server, operations, lease):
    for op in each(operations):
        path, _, query = op.target(lease if op.is_proxy else UNKNOWN_LEASE).partition("?")
        query = "?" + query if query else ""
        plain = op.request(server.admin, None, target=path + query)
        assert comparable(op.request(server.admin, None, target="/v1" + path + query)) == comparable(plain), op.id
        if op.is_proxy:
            continue
        assert comparable(op.request(server.admin, None, target=path + "/" + query)) == comparable(plain), op.id
        assert comparable(op.request(server.admin, None, target="/v1" + path + "/" + query)) == comparable(plain), op.id
        for wrong in (path + "//", "/v2" + path, "/v1/v1" + path, path + "/x/y/z/w/v/u"):
            r = op.request(server.admin, None, target=wrong + query)
            assert r.status == 404 and "there is nothing at" in r.json()["detail"], (wrong, r)


def test_request_ids_are_echoed_or_made(server, operations, lease):
    made = set()
    for op in each(operations, lambda op: not op.is_proxy):
        for token in ("token-a", None):
            c = server.client(token)
            r = op.request(c, lease if op.method == "GET" else UNKNOWN_LEASE, headers={"X-Request-Id": "Mine-1._x"})
            assert r.header("X-Request-Id") == "Mine-1._x", op.id
            assert "Mine-1._x" in r.body.decode() or r.status < 400
    for bad in ("", "a b", "a/b", "x" * 129, "é", "<script>", "a\tb"):
        r = server.a.get("/version", headers={"X-Request-Id": bad.encode()})
        id = r.header("X-Request-Id")
        assert re.fullmatch(r"req_[0-9a-z]+", id) and id not in made, (bad, id)
        made.add(id)
    assert server.a.get("/version", headers={"X-Request-Id": "y" * 128}).header("X-Request-Id") == "y" * 128


def media_types(op, api):
    """Of its successful answers."""
    found = set()
    for status, response in op.spec["responses"].items():
        if "$ref" in response:
            response = api["components"]["responses"][response["$ref"].rsplit("/", 1)[1]]
        if status.startswith("2"):
            found |= set(response.get("content", {}))
    return found


def test_accept(server, operations, lease):
    """What answers JSON refuses those who do not take JSON, before it does anything."""
    api = server.client().get("/openapi.json").json()
    anything = ("attachExec", "getFile", "getTar", "deleteFile", "getArchive", "deleteArchive", "deleteSnapshot", "moveFile", "proxy", "health", "ready", "metrics", "openapiYaml")
    for op in each(operations):
        for unwanted in ("image/png", "text/event-stream", "application/x-ndjson;q=0.5", "application/json;q=0"):
            r = op.request(server.admin, lease, headers={"Accept": unwanted})
            if op.id in anything or unwanted.split(";")[0] in media_types(op, api) - {"application/json"}:
                assert r.status != 406, (op.id, r)
            else:
                assert r.status == 406 and r.code == "not_acceptable" and r.json()["field"] == "Accept", (op.id, unwanted, r)
        for taken in ("*/*", "application/json", "application/*", "text/html, */*;q=0.1", "application/json;charset=utf-8", "nonsense"):
            if op.id in ("getExecOutput", "getLeaseEvents"):
                taken = taken.replace("/json", "/x-ndjson")
            assert op.request(server.admin, UNKNOWN_LEASE, headers={"Accept": taken}).status != 406, (op.id, taken)
    # Told before it runs.
    r = server.a.exec_response(lease, "touch ran")
    assert r.status == 200
    for kind in ("text/plain", "application/json;q=0, text/event-stream;q=0, application/x-ndjson;q=0"):
        r = server.a.post(f"/leases/{lease}/exec", {"command": "touch not-run"}, headers={"Accept": kind})
        assert r.status == 406
    assert server.a.exec(lease, "rm ran; ls not-run")["returncode"] != 0


WRONG = ({}, {"Authorization": "Bearer guess"}, {"Authorization": "Bearer "}, {"Authorization": "Basic dTpw"}, {"Authorization": "token-a"},
         {"X-API-Key": "guess"}, {"X-API-Key": ""}, {"Sandgate-Endpoint-Token": "token-a"}, {"Cookie": "token=token-a"})


def test_without_a_known_token_nothing_is_answered(server, operations, lease):
    nobody = server.client()
    for op in each(operations, lambda op: op.documents(401)):
        for headers in WRONG:
            r = op.request(nobody, lease, headers=headers)
            assert r.status == 401 and r.code == "unauthorized", (op.id, headers, r)
    for op in each(operations, lambda op: not op.documents(401)):
        assert op.spec["security"] == [] and op.request(nobody, lease).status < 400, op.id


def test_both_places_for_a_token_work_and_not_both_at_once(server, operations, lease):
    for op in each(operations, lambda op: op.documents(401) and not op.is_proxy):
        statuses = {op.request(server.client(), UNKNOWN_LEASE, headers=h).status
                    for h in ({"Authorization": "Bearer token-ops"}, {"authorization": "bearer token-ops"}, {"X-API-Key": "token-ops"})}
        assert len(statuses) == 1 and statuses.isdisjoint({401, 403}), (op.id, statuses)
        r = op.request(server.client(), UNKNOWN_LEASE, headers={"Authorization": "Bearer token-ops", "X-API-Key": "token-ops"})
        assert r.status == 400 and r.json()["field"] == "Authorization", (op.id, r)


def test_what_is_for_administrators(server, operations):
    for op in each(operations, lambda op: op.path.startswith("/slots") or op.id == "metrics"):
        r = op.request(server.a, UNKNOWN_LEASE)
        assert r.status == 403 and r.code == "forbidden", (op.id, r)
    for path in ("/leases?tenant=tenant-a", "/audit?tenant=tenant-a"):
        r = server.b.get(path)
        assert r.status == 403 and r.code == "forbidden" and r.json()["field"] == "tenant", r
        assert server.admin.get(path).status == 200 and server.a.get(path).status == 200


def test_another_tenants_lease_does_not_exist(server, operations, lease):
    """Same answer as for one that never was, so that nobody can tell."""
    for op in each(operations, by_lease):
        theirs, never = (op.request(server.b, id) for id in (lease, UNKNOWN_LEASE))
        body_first = op.id in ("exec", "extendLease")
        assert theirs.status == never.status == 404 and comparable(theirs) == comparable(never), (op.id, body_first, theirs, never)
        assert lease not in theirs.body.decode()
        for id in ("x", "lease_", "lease_" + "z" * 200, "%2e%2e%2f", "exec_00000000000000000000000000", lease.upper(), lease + "0"):
            assert op.request(server.a, id).status in (400, 404), (op.id, id)
    receipt = server.a.get(f"/leases/{lease}").json()["receipt_id"]
    assert server.a.get(f"/receipts/{receipt}").status == 200 and server.admin.get(f"/receipts/{receipt}").status == 200
    assert server.b.get(f"/receipts/{receipt}").status == 404
    assert server.b.get("/leases").json()["items"] == [] and server.b.get("/leases?trajectory_id=x").json()["items"] == []
    assert all(e["tenant"] != "tenant-a" for e in server.b.get("/audit?limit=1000").json()["items"])
    # And a is as before.
    assert server.a.read(lease, "kept.txt").body == b"kept" and server.a.get(f"/leases/{lease}").json()["state"] == "ready"
    assert server.a.get(f"/leases/{lease}/files/list").json()["items"][0]["name"] == "kept.txt"


def test_work_on_an_ended_lease_is_gone(server, operations, ended):
    for op in each(operations, lambda op: by_lease(op) and op.documents(410) and op.id != "getLeaseEvents"):
        body = {"exec": {"command": "true"}, "extendLease": {}, "signalExec": {"signal": "TERM"}}.get(op.id, BODIES.get(op.id))
        r = server.a.request(op.method, op.target(ended), body)
        assert r.status == 410 and r.code == "lease_gone" and r.json()["reason"] == "terminated", (op.id, r)
    assert server.a.get(f"/leases/{ended}").json()["state"] == "terminated"
    assert server.a.delete(f"/leases/{ended}").status == 200


# ---- request bodies ----

def json_operations(operations):
    return each(operations, lambda op: "application/json" in op.spec.get("requestBody", {}).get("content", {}))


def nested(depth):
    return '{"a":' * (depth - 1) + "{}" + "}" * (depth - 1)


def test_bodies_that_are_not_json(server, operations, lease):
    head = {"Content-Type": "application/json"}
    bad = [b"{", b"null", b"[]", b'"x"', b"7", b"{}{}", b'{"a":1,"a":2}', b'{"a":{"b":1,"b":2}}', nested(64).encode(), nested(33).encode(),
           b"[" * 100000, b'{"a":"\xff"}', b'{"a":"\\u0000"}', b'{"a":"\\ud800"}', b'{"a":NaN}', b'{"a":1e999}', b"\xef\xbb\xbf{}", b"{'a':1}", b"{\"a\":1,}"]
    for op in json_operations(operations):
        for body in bad:
            r = server.a.request(op.method, op.target(lease), body, headers=head)
            assert r.status == 400 and r.code == "invalid_request", (op.id, body[:40], r)
        r = server.a.request(op.method, op.target(lease), b'{"nope":1}', headers=head)
        assert r.status == 400 if op.id != "verifyReceipt" else r.status in (200, 400), (op.id, r)
        for type in ("text/plain", "application/x-www-form-urlencoded", "application/jsonp", ""):
            r = server.a.request(op.method, op.target(lease), b"{}", headers={"Content-Type": type})
            assert r.status == 415 and r.code == "unsupported_media_type" and r.json()["field"] == "Content-Type", (op.id, type, r)
        required = op.spec["requestBody"].get("required", False)
        if required:
            r = server.a.request(op.method, op.target(lease), b"", headers=head)
            assert r.status == 400 and r.code == "invalid_request", (op.id, r)


def test_deep_but_not_too_deep(server, lease):
    r = server.b.post("/leases", ('{"metadata":' + nested(31) + "}").encode(), headers={"Content-Type": "application/json"})
    assert r.status == 201, r
    server.b.terminate(r.json()["id"])
    r = server.b.post("/leases", ('{"metadata":' + nested(32) + "}").encode(), headers={"Content-Type": "application/json"})
    assert r.status == 400 and "32" in r.json()["detail"], r


def declared(server, method, target, length, token="token-a"):
    """A request that says how long its body will be, and waits for the answer before sending it."""
    c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30 * SLOW)
    c.putrequest(method, target)
    for name, value in (("Authorization", "Bearer " + token), ("Content-Type", "application/json"), ("Content-Length", str(length))):
        c.putheader(name, value)
    c.endheaders()
    return c


def test_too_large_bodies(server, operations, lease):
    for op in json_operations(operations):
        c = declared(server, op.method, op.target(lease), 100 << 20)
        r = c.getresponse()
        body = r.read()
        assert r.status == 413 and json.loads(body)["code"] == "payload_too_large" and r.will_close, op.id
        server.observe(op.method, op.target(lease), type("R", (), {"status": r.status, "headers": r.headers, "body": body}))
        c.close()


def test_100_megabytes_that_are_really_sent(server, lease):
    c = declared(server, "POST", f"/leases/{lease}/exec", 100 << 20)
    block = b"[" * (1 << 20)
    try:
        for _ in range(100):
            c.send(block)
    except OSError:
        pass  # the server need not read on
    r = c.getresponse()
    assert r.status == 413 and json.loads(r.read())["code"] == "payload_too_large"
    c.close()
    assert server.a.exec(lease, "true")["returncode"] == 0


def chunks(data, size=7):
    for i in range(0, len(data), size):
        yield data[i:i + size]


CHUNKED = {"Transfer-Encoding": "chunked", "Content-Type": "application/json"}


def test_chunked_bodies_are_bodies(server, operations, lease):
    r = server.b.request("POST", "/leases", chunks(b'{"metadata":{"sent":"in chunks"}}'), headers=CHUNKED)
    assert r.status == 201 and r.json()["metadata"]["sent"] == "in chunks", r
    id = r.json()["id"]
    r = server.b.request("POST", f"/leases/{id}/exec", chunks(b'{"command":"echo chunked"}', 1), headers=CHUNKED)
    assert r.status == 200 and r.json()["stdout"] == "chunked\n", r
    r = server.b.request("POST", f"/leases/{id}/extend", chunks(b'{"timeout_sec":7200}'), headers=CHUNKED)
    assert r.status == 200
    server.b.terminate(id)
    # Chunked and empty is like Content-Length: 0.
    r = server.b.request("POST", "/leases", chunks(b""), headers=CHUNKED)
    assert r.status == 201, r
    server.b.terminate(r.json()["id"])
    for op in json_operations(operations):
        if op.spec["requestBody"].get("required"):
            r = server.a.request(op.method, op.target(lease), chunks(b""), headers=CHUNKED)
            assert r.status == 400 and r.code == "invalid_request", (op.id, r)
            assert comparable(r) == comparable(server.a.request(op.method, op.target(lease), b"", headers={"Content-Type": "application/json"}))
    # Too large without having said so.
    r = server.a.request("POST", "/leases", chunks(b'{"metadata":"' + b"x" * (9 << 20) + b'"}', 65536), headers=CHUNKED)
    assert r.status == 413, r


def test_refused_bodies_leave_the_connection_usable(server, lease):
    """Everything below on one connection."""
    with Conn(server.port, timeout=30 * SLOW) as c:
        for body in (b"{", b'{"command":1}', b'{"command":"true","command":"true"}', nested(64).encode(), b""):
            for framing in ("Content-Length: %d" % len(body), "Transfer-Encoding: chunked"):
                sent = body if "Length" in framing else (b"%x\r\n%s\r\n" % (len(body), body) if body else b"") + b"0\r\n\r\n"
                c.get(f"/leases/{lease}/exec", "Authorization: Bearer token-a", "Content-Type: application/json", framing, method="POST").send(sent)
                r = c.reply()
                assert r.status == 400 and r.problem()["code"] == "invalid_request", (framing, body[:20])
        body = b'{"command":"echo still here"}'
        c.get(f"/leases/{lease}/exec", "Authorization: Bearer token-a", "Content-Type: application/json", f"Content-Length: {len(body)}",
              method="POST").send(body)
        assert c.reply().json()["stdout"] == "still here\n"


def test_an_upload_cut_in_the_middle_of_its_chunks_leaves_nothing(server, lease):
    for tail in (b"5\r\nhello\r\n", b"5\r\nhel", b"5\r\nhello\r\n0\r\n"):
        with Conn(server.port) as c:
            c.get(server.a.file_url(lease, "cut"), "Authorization: Bearer token-a", "Transfer-Encoding: chunked", method="PUT").send(tail)
        # The next request comes in after it on the lease; whatever is left of the upload is over soon.
    wait_until(lambda: [i["name"] for i in server.a.get(f"/leases/{lease}/files/list").json()["items"] if "cut" in i["name"] or i["name"].startswith(".")]
               == [], what="no leftovers of the cut uploads")
    assert server.a.get(f"/leases/{lease}/files/stat?path=cut").status == 404


# ---- statuses that need a situation of their own ----

def refused(r, status, code, field=None):
    assert r.status == status and r.code == code and (field is None or r.json().get("field") == field), r
    return r.json()


def test_bad_requests_name_the_place(server, lease):
    a, l = server.a, f"/leases/{lease}"
    for r, field in ((a.post("/select", {"policy": {"nope": 1}}), "policy.nope"), (a.get(f"{l}?wait=x"), "wait"),
                     (a.get(f"{l}/exec?limit=0"), "limit"), (a.get(f"{l}/exec?limit=1001"), "limit"), (a.get(f"{l}/exec?cursor=x"), "cursor"),
                     (a.get("/leases?limit=-1"), "limit"), (a.get("/leases?cursor=c1zz"), "cursor"), (a.get("/audit?cursor=c1zz"), "cursor"),
                     (a.get("/audit?limit=0"), "limit"), (a.get("/leases?state=ready,nope"), "state"),
                     (a.post(f"{l}/extend", {"timeout_sec": 0}), "timeout_sec"), (a.post(f"{l}/exec/kept/signal", {}), "signal"),
                     (a.delete(f"{l}/files"), "path"), (a.delete(f"{l}/files?path=x&recursive=maybe"), "recursive"), (a.get(f"{l}/files/stat?path="), "path"),
                     (a.get(f"{l}/files/list?recursive=2"), "recursive"), (a.post(f"{l}/files/mkdir?path=x&mode=8"), "mode"),
                     (a.post(f"{l}/files/move", {"from": "", "to": "x"}), "from"), (a.post(f"{l}/files/move", {"from": "x"}), "to"),
                     (a.put(f"{l}/files?path=x&append=2", b""), "append"), (a.get(f"{l}/endpoints/0"), "port"), (a.get(f"{l}/endpoints/65536"), "port"),
                     (a.get(f"{l}/proxy/0/"), "port"), (a.get(f"{l}/proxy/080/"), "port")):
        refused(r, 400, "invalid_request", field)
    for key in ("", "a b", "x" * 256, "é"):
        refused(a.post("/leases", {}, headers={"Idempotency-Key": key.encode()}), 400, "invalid_request", "Idempotency-Key")


def test_refused_by_policy(server, lease):
    p = refused(server.a.post("/select", {"policy": {"override": "e2b"}}), 422, "override_not_registered")
    assert p["attempted"] == ["local_bwrap"] and p["considered"] and p["receipt"]["chosen_backend"] is None
    refused(server.a.post("/leases", {"policy": {"required_capabilities": ["gpu"]}}), 422, "no_backend_satisfies_policy")
    refused(server.a.post(f"/leases/{lease}/extend", {"timeout_sec": 1e9}), 422, "timeout_above_maximum", "timeout_sec")
    refused(server.a.exec_response(lease, "true", timeout=1e9), 422, "timeout_above_maximum", "timeout")
    refused(server.a.exec_response(lease, "true", tty={"rows": 24, "cols": 4097}), 422, "limit_exceeded", "tty.cols")
    refused(server.a.exec_response(lease, "true", cwd="none"), 422, "cwd_not_found")


def test_what_does_not_exist(server, lease):
    a, l = server.a, f"/leases/{lease}"
    for r in (a.get(f"{l}/exec/none"), a.delete(f"{l}/exec/none"), a.post(f"{l}/exec/none/signal", {"signal": "TERM"}),
              a.post(f"{l}/exec/none/resize", {"rows": 1, "cols": 1}), a.read(lease, "none"),
              a.get(f"{l}/files/stat?path=none"), a.get(f"{l}/files/list?path=none"),
              a.delete(f"{l}/files?path=none"), a.post(f"{l}/files/move", {"from": "none", "to": "x"}), a.get("/pools/none"),
              a.get("/receipts/none"), a.get("/receipts/" + "0" * 64), server.admin.get("/slots/none"), server.admin.post("/slots/none/drain"),
              server.admin.post("/slots/none/undrain"), server.admin.post("/slots/none/recycle"),
              server.admin.post("/slots/default/recycle?slot=none"), a.get("/nothing/here"), a.get("/")):
        refused(r, 404, "not_found")


def test_files_that_are_in_the_way(server, lease):
    a, l = server.a, f"/leases/{lease}"
    a.exec(lease, "mkdir -p way/full/x way/shut way/empty; touch way/file; ln -s none/deep way/dangling; chmod 0 way/shut; rm -f way/fifo; mkfifo way/fifo")
    try:
        refused(a.post(f"{l}/files/mkdir?path=way/file"), 409, "not_a_directory")
        refused(a.post(f"{l}/files/mkdir?path=way/file/x"), 409, "not_a_directory")
        refused(a.post(f"{l}/files/move", {"from": "way/empty", "to": "way/full"}), 409, "directory_not_empty")
        refused(a.get(f"{l}/files/list?path=way/file"), 409, "not_a_directory")
        refused(a.delete(f"{l}/files?path=way/full"), 409, "directory_not_empty")
        refused(a.read(lease, "way/full"), 409, "is_a_directory")
        refused(a.read(lease, "way/fifo"), 409, "not_a_regular_file")
        refused(a.write(lease, "way/full", b""), 409, "is_a_directory")
        for r in (a.get(f"{l}/files/list?path=way/shut"), a.get(f"{l}/files/stat?path=way/shut/x"), a.post(f"{l}/files/mkdir?path=way/shut/x"),
                  a.read(lease, "way/shut/x"), a.write(lease, "way/shut/x", b""), a.delete(f"{l}/files?path=way/shut/x"),
                  a.post(f"{l}/files/move", {"from": "way/file", "to": "way/shut/x"}), a.post(f"{l}/files/mkdir?path=/usr/x")):
            refused(r, 403, "forbidden")
        for r in (a.post(f"{l}/files/mkdir?path=way/dangling/x"), a.write(lease, "way/dangling", b"")):
            assert r.status in (201, 404), r
    finally:
        a.exec(lease, "chmod 755 way/shut; rm -rf way none")


def test_ranges_outside(server, lease):
    r = server.a.get(server.a.file_url(lease, "kept.txt"), headers={"Range": "bytes=4-"})
    refused(r, 416, "range_not_satisfiable")
    assert r.header("Content-Range") == "bytes */4"


def test_limits_of_a_token(server):
    few = server.few
    id = few.lease()
    try:
        p = refused(few.post("/leases", {}), 429, "quota_exceeded")
        assert (p["limit"], p["use"]) == (1, 1) and p["owner"]
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            run = pool.submit(server.client("token-few").exec, id, "touch up; sleep 60", exec_id="long", timeout=60)
            wait_until(lambda: few.get(f"/leases/{id}/files/stat?path=up").status == 200 or run.done())
            if run.done():
                raise AssertionError(run.result())
            p = refused(few.exec_response(id, "true"), 429, "quota_exceeded")
            assert p["limit"] == 1 and p["use"] == 1 and p["owner"]
            assert few.delete(f"/leases/{id}/exec/long").status == 200
            assert run.result()["killed_by"] == "caller"
        assert few.exec(id, "true")["returncode"] == 0  # given back
    finally:
        few.terminate(id)


def test_endpoints_and_what_may_be_wrong_with_them(server, lease):
    r = server.a.get(f"/leases/{lease}/endpoints/8000")
    assert r.status == 200 and r.json()["url"].endswith(f"/leases/{lease}/proxy/8000/")
    assert server.client().get(f"/leases/{lease}/proxy/8000/", headers=r.json()["headers"]).status == 200
    serve(server.a, lease, 8001, MUTE)
    for port, status, code in ((8001, 502, "endpoint_failed"), (8002, 503, "endpoint_not_listening")):
        r = server.a.post(f"/leases/{lease}/proxy/{port}/", b"x")
        refused(r, status, code)
        assert r.header("Sandgate-Error") == code
    # The endpoint token of one lease opens no other, and nothing but endpoints.
    other = server.a.lease()
    token = server.a.get(f"/leases/{lease}/endpoints/8000").json()["headers"]
    try:
        assert server.client().get(f"/leases/{other}/proxy/8000/", headers=token).status == 401
        assert server.client().get(f"/leases/{lease}", headers=token).status == 401
        assert server.client().get(f"/leases/{lease}/proxy/22/", headers=token).status == 503
    finally:
        server.a.terminate(other)


def test_not_an_open_proxy(server, lease):
    """Whatever target a request names, it reaches this lease's loopback or nothing."""
    auth = "Authorization: Bearer token-a"
    for line in (f"GET http://127.0.0.1:{server.port}/version HTTP/1.1", f"GET http://127.0.0.1:8000/ HTTP/1.1", "CONNECT 127.0.0.1:8000 HTTP/1.1",
                 f"CONNECT 127.0.0.1:{server.port} HTTP/1.1", f"GET //127.0.0.1:{server.port}/version HTTP/1.1",
                 f"GET /leases/{lease}/proxy/80@169.254.169.254/ HTTP/1.1", f"GET /leases/{lease}/proxy/8000@127.0.0.1/ HTTP/1.1",
                 f"GET /leases/{lease}/proxy/127.0.0.1:8000/ HTTP/1.1", f"GET /leases/{lease}/proxy/8000%40h/ HTTP/1.1",
                 f"GET /leases/{lease}/proxy/%38000/../{server.port}/ HTTP/1.0x"):
        with Conn(server.port) as c:
            c.send(f"{line}\r\nHost: h\r\n{auth}\r\n\r\n")
            assert c.head().status in (400, 404, 405, 501, 505), line
    r = server.a.get(f"/leases/{lease}/proxy/{server.port}/version")
    refused(r, 503, "endpoint_not_listening")
    for host in ("169.254.169.254", f"127.0.0.1:{server.port}", "evil.example"):
        got = dict(server.a.get(f"/leases/{lease}/proxy/8000/", headers={"Host": host, "X-Forwarded-Host": "other"}).json()["headers"])
        assert got["Host"] == "127.0.0.1:8000" and got["X-Forwarded-Host"] == host
    # A doubtful Host is refused, not passed on.
    assert server.a.get(f"/leases/{lease}/proxy/8000/", headers={"Host": "a b"}).status == 400


def test_slots_are_drained_and_rebuilt(server, lease):
    ops = server.admin
    try:
        r = ops.post("/slots/default/drain")
        assert r.status == 200 and r.json()["draining"] is True
        p = refused(server.b.post("/leases", {}), 503, "unavailable")
        assert p["reason"] == "pool_draining"
        # Leases that are there go on.
        assert server.a.exec(lease, "true")["returncode"] == 0
    finally:
        r = ops.post("/slots/default/undrain")
    assert r.status == 200 and r.json()["draining"] is False
    slots = ops.get("/slots/default").json()["items"]
    held = next(s for s in slots if s["lease"] == lease)
    refused(ops.post(f"/slots/default/recycle?slot={held['slot']}"), 409, "conflict")
    before = {s["slot"]: s["generation"] for s in slots}
    assert ops.post("/slots/default/recycle").status == 200
    wait_until(lambda: all((s["generation"] > before[s["slot"]]) != (s["slot"] == held["slot"]) and s["state"] in ("READY", "LEASED")
                           for s in ops.get("/slots/default").json()["items"]), 30, "every free slot to be rebuilt")
    assert ops.get("/slots").json()["items"][0]["ready"] == 2


def test_documents(server):
    c = server.client()
    r = c.get("/openapi.yaml")
    assert r.status == 200 and r.header("Content-Type") == "application/yaml" and b"\nopenapi: 3.1" in b"\n" + r.body
    assert c.get("/openapi.json").json()["openapi"].startswith("3.1")
    assert c.get("/version").json()["name"] == "sandgate"
    r = server.admin.get("/metrics")
    assert r.status == 200 and r.header("Content-Type").startswith("text/plain") and b"sandgate_requests_total" in r.body
    assert server.a.get("/pools").json() == {"items": [], "next_cursor": None}
    items = server.a.get("/backends").json()["items"]
    local = next(b for b in items if b["name"] == "local_bwrap")
    assert local["registered"] and local["healthy"] and local["free"] and not any(c["held"] for b in items for c in b["credentials"])


# ---- with a scripted backend: failures that real sandboxes do not have on demand ----

def scripted(script, **config):
    return Server(dict(config, backends={"enabled": ["fake"]}, fake={"script": json.dumps(script)}))


@pytest.fixture(scope="module", autouse=True)
def slow_delete():
    """A delete whose sandbox takes longer than a caller is kept waiting. It runs beside everything else here."""
    with scripted({"terminate": [{"delay_ms": 12000}]}) as s:
        c = s.client()
        id = c.lease(trajectory_id="slow")
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            yield s, id, pool.submit(c.delete, f"/leases/{id}")


def test_failures_of_a_provider(operations):
    steps = [{"error": "provider_failed", "message": "no machine"}, {"error": "provider_timeout"}, {"error": "unavailable", "retry_after": 7},
             {"error": "acquire_timeout"}]
    with scripted({"create": steps}) as s:
        c = s.client()
        for status, code in ((502, "provider_failed"), (504, "provider_timeout"), (503, "unavailable"), (503, "acquire_timeout")):
            p = refused(c.post("/leases", {}), status, code)
            assert p.get("provider") == ("fake" if status != 503 else None), p
        # Each is on record as failed, with the reason, and holds nothing.
        failed = c.get("/leases?state=failed").json()["items"]
        assert [l["state"] for l in failed] == ["failed"] * 4 and all(l["reason"] and l["sandbox_id"] is None for l in failed)
        assert c.get("/leases?state=creating,ready,releasing").json()["items"] == []
        assert c.exec(c.lease(), "echo ok")["stdout"] == "ok\n"


def test_a_failed_create_can_be_repeated_under_its_key():
    """503 says that nothing happened: the key and the trajectory are free again, and so is the quota."""
    tokens = {"tokens": [token_entry("few", "tenant", max_leases=1)]}
    with scripted({"create": [{"error": "unavailable"}] * 3}, auth=tokens) as s:
        c = s.client("token-few")
        for body, head in (({"metadata": {"n": 1}}, {"Idempotency-Key": "k"}), ({"trajectory_id": "t"}, {}), ({"trajectory_id": "t"}, {"Idempotency-Key": "k2"})):
            refused(c.post("/leases", body, headers=head), 503, "unavailable")
        r = c.post("/leases", {"metadata": {"n": 1}}, headers={"Idempotency-Key": "k"})
        assert r.status == 201, r
        again = c.post("/leases", {"metadata": {"n": 1}}, headers={"Idempotency-Key": "k"})
        assert again.status == 200 and again.json()["id"] == r.json()["id"] and again.header("Idempotency-Replayed") == "true"
        c.terminate(r.json()["id"])
        r = c.post("/leases", {"trajectory_id": "t"})
        assert r.status == 201, r


def test_a_caller_that_gives_up_during_the_create_leaves_nothing():
    """Without a key or a trajectory nobody could ever find that lease."""
    with scripted({"create": [{"stall": True}]}) as s:
        c = s.client()
        with Conn(s.port) as raw:
            raw.get("/leases", "Content-Length: 0", method="POST")
            wait_until(lambda: c.get("/leases?state=creating").json()["items"] or c.get("/metrics").body.find(b'sandgate_leases{state="creating"} 1') >= 0,
                       what="the create to be under way")
        wait_until(lambda: b'sandgate_leases{state="creating"} 0' in c.get("/metrics").body, what="the reservation to be given back")
        assert c.get("/leases?state=ready").json()["items"] == []
        assert c.exec(c.lease(), "echo ok")["stdout"] == "ok\n"


def test_a_lease_that_is_not_ready(operations):
    with scripted({"create": [{"stall": True}]}) as s:
        c = s.client()
        r = c.post("/leases", {"trajectory_id": "one"}, headers={"Prefer": "respond-async"})
        assert r.status == 202 and r.json()["state"] == "creating" and r.header("Preference-Applied") == "respond-async", r
        id = r.json()["id"]
        for r in (c.exec_response(id, "true"), c.read(id, "x"), c.get(f"/leases/{id}/endpoints/80"), c.get(f"/leases/{id}/proxy/80/"),
                  c.post(f"/leases/{id}/endpoints", {"port": 80})):
            refused(r, 409, "lease_not_ready")
        again = c.post("/leases", {"trajectory_id": "one"}, headers={"Prefer": "respond-async"})
        assert again.status == 202 and again.json()["id"] == id, again
        began = time.monotonic()
        assert c.get(f"/leases/{id}?wait=1").json()["state"] == "creating" and time.monotonic() - began > 0.9
        # Somebody who waits for the same lease is told that it was ended.
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            other = pool.submit(Client(s).post, "/leases", {"trajectory_id": "one"})
            with pytest.raises(concurrent.futures.TimeoutError):
                other.result(0.5)
            assert c.delete(f"/leases/{id}").status == 200
            refused(other.result(), 410, "lease_gone")
        assert c.get(f"/leases/{id}").json()["state"] == "terminated"


def test_not_ready():
    """A server without a usable backend answers, but is not ready."""
    s = scripted({"health": {"error": "unavailable", "message": "no machine"}})
    s.start(ready=False)
    try:
        c = s.client()
        p = refused(c.get("/readyz"), 503, "unavailable")
        assert "no machine" in p["detail"] and c.get("/healthz").status == 200
        fake = next(b for b in c.get("/backends").json()["items"] if b["name"] == "fake")
        assert fake["healthy"] is False and "no machine" in fake["detail"]
    finally:
        s.stop()
        s.clean()


def test_a_slow_delete_is_accepted(slow_delete):
    s, id, first = slow_delete
    r = first.result(60 * SLOW)
    assert r.status == 202 and r.json() == {"terminated": False, "trajectory_id": "slow"}, r
    c = s.client()
    r = c.delete(f"/leases/{id}")  # waits for the rest of it
    assert r.status == 200 and r.json() == {"terminated": True, "trajectory_id": "slow"}, r


def test_where_no_token_is_configured_authorization_is_the_applications():
    class Echo(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            out = json.dumps(self.headers.items()).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(out)))
            self.end_headers()
            self.wfile.write(out)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo) as service:
        threading.Thread(target=service.serve_forever, daemon=True).start()
        with scripted({"ports": {"80": service.server_port}}) as s:
            c = s.client()
            id = c.lease()
            for app in ("Basic dXNlcjpwYXNz", "Bearer the-apps-own", "Digest x=1", "odd"):
                r = c.get(f"/leases/{id}/proxy/80/", headers={"Authorization": app, "X-API-Key": "also-theirs"})
                assert r.status == 200 and dict(r.json())["Authorization"] == app and dict(r.json())["X-API-Key"] == "also-theirs", r
                assert c.get(f"/leases/{id}", headers={"Authorization": app}).status == 200
        service.shutdown()
