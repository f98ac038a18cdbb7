"""Promises that every operation they are about keeps, on every way to the server: bodies as they are, lists in pages, times within their bounds,
streams that a gateway passes on whole."""
import datetime
import gzip
import json
import os
import socket
import sys
import time

import pytest

from gateway import Nginx
from harness import SLOW, Client, output, wait_until
from streams import NDJSON, SSE, data, detach, ended, follow, numbered, run
from test_detached import agent_of

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "raw"))
from rawhttp import Conn  # noqa: E402

HASH = "0" * 64


@pytest.fixture(scope="module")
def box(server):
    """A lease with a file, a directory and two commands that are kept."""
    c = server.client()
    id = c.lease()
    c.write(id, "d/one", b"1")
    c.write(id, "two", b"2")
    for eid in ("first", "second"):
        c.exec(id, "true", exec_id=eid)
    yield id
    c.terminate(id)


@pytest.fixture(scope="module")
def operations(server):
    paths = server.client().get("/openapi.json").json()["paths"]
    return [(method.upper(), path, spec) for path, item in paths.items() for method, spec in item.items() if method != "parameters"]


def target(path, lease):
    known = {"{eid}": "first", "{port}": "8000", "{pool}": "default", "{slot}": "default-0", "{endpoint}": "x", "{name}": "x", "{rest}": "x"}
    path = path.replace("{id}", lease if path.startswith("/leases") else HASH)
    for name, value in known.items():
        path = path.replace(name, value)
    return path


# ---- bodies ----

def test_packed_bodies_are_refused_and_nothing_is_done(client, box, operations):
    """They would be taken for what they are not."""
    seen = 0
    for method, path, spec in operations:
        if "requestBody" not in spec or spec["operationId"] == "proxy":
            continue
        kind = next(iter(spec["requestBody"]["content"]))
        query = "?path=packed" if "/files" in path and "move" not in path else ""
        for coding in ("gzip", "GZIP", "br", "identity, gzip", "x"):
            r = client.request(method, target(path, box) + query, gzip.compress(b"{}"), headers={"Content-Type": kind, "Content-Encoding": coding})
            assert (r.status, r.code, r.json().get("field")) == (415, "unsupported_media_type", "Content-Encoding"), (path, coding, r)
        for coding in ("identity", "Identity"):
            r = client.request(method, target(path, box) + query, b'{"nope":1}', headers={"Content-Type": kind, "Content-Encoding": coding})
            assert r.status != 415, (path, coding, r)
            client.delete(client.file_url(box, "packed", recursive="1"))
        seen += 1
    assert seen >= 10
    assert client.exec(box, ["ls"])["stdout"] == "d\ntwo\n"


def test_a_connect_reaches_no_service(server, box):
    """Its answer would have no end that the next request could begin after."""
    for path in (f"/leases/{box}/proxy/8000", f"/v1/leases/{box}/proxy/8000/x?y", "/leases"):
        with Conn(server.port, timeout=10 * SLOW) as c:
            c.get(path, method="CONNECT")
            r = c.reply()
            assert r.status == 501 and r.problem()["code"] == "not_implemented", r
            assert c.get("/version").reply().json()["name"] == "sandgate"


# ---- lists ----

def one_of(item):
    return next(item[k] for k in ("id", "exec_id", "name", "pool", "path", "seq") if k in item)


def test_every_list_has_pages(server, client, box, operations):
    found = set()
    for method, path, spec in operations:
        if method != "GET" or spec["operationId"] in ("attachExec", "getLeaseEvents", "proxy"):
            continue
        url = target(path, box)
        r = client.get(url)
        whole = r.json() if r.status == 200 and r.header("Content-Type") == "application/json" else {}
        if "next_cursor" not in whole:
            continue
        found.add(path)
        for query, field in (("limit=0", "limit"), ("limit=1001", "limit"), ("limit=x", "limit"), ("limit=", "limit"), ("limit=1.0", "limit"),
                             ("cursor=", "cursor"), ("cursor=c1", "cursor"), ("cursor=c1zz", "cursor"), ("cursor=nonsense", "cursor")):
            r = client.get(url + "?" + query)
            assert r.status == 400 and r.code == "invalid_request" and r.json()["field"] == field, (url, query, r)
        assert client.get(url + "?limit=1000").status == 200
        pages, cursor = [], ""
        while cursor is not None and len(pages) < 20:
            page = client.get(url + "?limit=1" + cursor).json()
            assert len(page["items"]) <= 1
            pages += page["items"]
            cursor = page["next_cursor"] and "&cursor=" + page["next_cursor"]
        assert [one_of(i) for i in pages] == [one_of(i) for i in whole["items"]][:len(pages)] and len(pages) == min(20, len(whole["items"])), url
    assert {"/leases", "/backends", "/pools", "/slots", "/snapshots", "/archives", "/audit", "/leases/{id}/exec", "/leases/{id}/files/list"} <= found


# ---- times ----

def seconds(lease):
    stamps = [datetime.datetime.fromisoformat(lease[k].replace("Z", "+00:00")) for k in ("created_at", "expires_at")]
    return (stamps[1] - stamps[0]).total_seconds()


# What is given, and what becomes of it: seconds, or the status that refuses it.
TIMES = [(60, 60), (60.0, 60), (0.5, 0.5), (None, None), (0, 400), (-1, 400), (-0.5, 400), ("60", 400), (True, 400), ([], 400), ({}, 400),
         (1e18, 422), (10**18, 422), (86401, 422)]


@pytest.mark.parametrize("value, becomes", TIMES)
def test_times_are_taken_or_refused_by_name(client, box, value, becomes):
    made = []

    def lease(body):
        r = client.post("/leases", body)
        if r.status == 201:
            made.append(r.json()["id"])
        return r
    ways = [("timeout", lambda: client.exec_response(box, "true", timeout=value), lambda r: r["timeout"]),
            ("timeout", lambda: client.post(f"/leases/{box}/exec", {"command": "true", "timeout": value, "detach": True}), None),
            ("timeout_sec", lambda: lease({"timeout_sec": value}), seconds),
            ("timeout_seconds", lambda: lease({"manifest": {"timeout_seconds": value}}), seconds),
            ("idle_timeout_sec", lambda: lease({"idle_timeout_sec": value}), None),
            ("timeout_sec", lambda: client.post(f"/leases/{box}/extend", {"timeout_sec": value}), None)]
    try:
        for field, ask, effective in ways:
            r = ask()
            if becomes in (400, 422):
                named = ("timeout_sec", field) if becomes == 422 else (field,)
                assert r.status == becomes and r.json()["field"].split(".")[-1] in named, (field, r)
                assert r.code == ("invalid_request" if becomes == 400 else "timeout_above_maximum")
            else:
                assert r.status in (200, 201, 202), (field, r)
                if effective and becomes is not None:
                    assert abs(effective(r.json()) - becomes) < 2 * SLOW, (field, r)
    finally:
        for id in made:
            client.terminate(id)


# ---- commands ----

def test_a_bound_of_the_result_keeps_nothing_from_the_history(server, client, box):
    for n, truncated in ((10000, False), (10001, True), (16384, True)):
        eid = detach(client, box, f"head -c {n} /dev/zero | tr '\\0' z; exit 5", max_output_bytes=10000)
        r = ended(client, box, eid)["result"]
        assert (r["stdout_truncated"], r["stdout_bytes_total"], r["stdout"], r["returncode"]) == (truncated, n, "z" * min(n, 10000), 5)
        with follow(server, box, eid) as s:
            assert data(s.all()) == b"z" * n


TICK = "while :; do echo x >> $T; sleep 0.02; done"
TREES = {"child": f"(sh -c '{TICK}') & sleep 60", "session": f"setsid nohup sh -c '{TICK}' >/dev/null 2>&1 & sleep 60", "pipeline": f"sh -c '{TICK}' | sleep 60",
         "deaf": f"(setsid sh -c 'trap \"\" TERM INT HUP; ({TICK}) & wait' &) & sleep 60", "leader gone": f"(setsid sh -c '{TICK}' >/dev/null 2>&1 &); exit 0"}


def test_a_kill_takes_every_kind_of_tree(client, box):
    eids = {name: detach(client, box, command, env={"T": "tick-" + name.replace(" ", "-")}) for name, command in TREES.items()}

    def sizes():
        return client.exec(box, "cd /workspace; for f in tick-*; do wc -c < $f; done")["stdout"].split()
    wait_until(lambda: len(sizes()) == len(TREES) and "0" not in sizes(), what="all of them to tick")
    for eid in eids.values():
        assert client.delete(f"/leases/{box}/exec/{eid}").status == 200
    for name, eid in eids.items():
        r = ended(client, box, eid)
        assert r["state"] == ("finished" if name == "leader gone" else "killed") and not r["result"]["timed_out"], (name, r)

    def still():
        before = sizes()
        client.exec(box, "sleep 0.15")
        return before == sizes()
    wait_until(still, what="the end of every tree")
    assert client.exec(box, "rm tick-*; pgrep -x sleep")["stdout"] == ""


ENV = {"A": "x\ny", "B": "it's \"$HOME\" `id` $(id) \\n", "C": "", "D": "é€😀", "E": " a\tb ", "F": "\x01\x7f", "G": "=;&|"}


@pytest.mark.parametrize("level", ["exec", "lease", "manifest"])
def test_values_of_variables_are_exact_wherever_they_are_given(server, client, level):
    id = client.lease(**({"env": ENV} if level == "lease" else {"manifest": {"env": ENV}} if level == "manifest" else {}))
    given = {"env": ENV} if level == "exec" else {}
    expected = "".join(v + "\n" for v in ENV.values()).encode()
    try:
        assert output(client.exec(id, ["printenv", *ENV], **given)) == expected
        assert output(client.exec(id, f"printenv {' '.join(ENV)}", **given)) == expected
        assert output(ended(client, id, detach(client, id, ["printenv", *ENV], **given))["result"]) == expected
        with run(server, id, ["printenv", *ENV], **given) as s:
            assert data(s.all()) == expected
    finally:
        client.terminate(id)


@pytest.mark.parametrize("cwd", ["../../etc", "/etc", "d/../../../etc", "/proc/self/root/etc", "/proc/1/root/etc", "/proc/self/cwd/../../../etc", "out"])
def test_a_working_directory_is_the_sandboxs_own(client, box, cwd):
    with open("/etc/passwd", "rb") as f:
        host = f.read()
    client.exec(box, "ln -sfn /proc/self/root/etc out")
    r = client.exec_response(box, "cat passwd", cwd=cwd)
    assert (r.status == 422 and r.code == "cwd_not_found") or output(r.json()) != host, r
    client.exec(box, "rm out")


# ---- through a gateway ----

@pytest.fixture(scope="module")
def front(server):
    """What the server is to a client behind nginx."""
    class Front:
        observe = staticmethod(lambda *_: None)

    with Nginx(server.port) as gateway:
        Front.port = gateway.port
        yield Front


@pytest.mark.parametrize("accept", [NDJSON, SSE])
def test_seven_bytes_at_a_time_through_a_gateway(front, box, accept):
    with run(front, box, "for i in 1 2 3; do echo line $i é; done; sleep 0.3; exit 4", accept, step=7) as s:
        for e in s.events():
            at = time.monotonic()
        assert s.complete and (e["type"], e["returncode"]) == ("exit", 4) and time.monotonic() - at < 0.5 * SLOW


def test_reading_on_through_a_gateway(front, box):
    command = "for i in $(seq 300); do echo $i; case $i in *0) sleep 0.01;; esac; done"
    for accept, eid in ((NDJSON, "gate-ndjson"), (SSE, "gate-sse")):
        events = []
        with run(front, box, command, accept, detach=True, exec_id=eid) as s:
            for e in s.events():
                events.append(e)
                if "90\n" in e.get("data", ""):
                    break
        known = {"Last-Event-ID": str(e["seq"])} if accept == SSE else {}
        with follow(front, box, eid, 0 if known else e["seq"], accept, headers=known) as s:
            events += s.all()
        assert data(numbered(events)) == b"".join(b"%d\n" % i for i in range(1, 301)) and events[-1]["type"] == "exit"


@pytest.mark.parametrize("accept", [NDJSON, SSE])
def test_the_end_of_a_lease_through_a_gateway(front, server, client, accept):
    id = client.lease()
    detach(client, id, "while :; do echo x; sleep 0.01; done", exec_id="d")
    with run(front, id, "sleep 60", accept) as a, follow(front, id, "d", accept=accept) as b:
        assert next(a.events())["type"] == next(b.events())["type"] == "start"
        assert Client(front).delete(f"/leases/{id}").status == 200
        for s in (a, b):
            last = s.all()[-1]
            assert s.complete and (last["type"], last["killed_by"], last["returncode"]) == ("exit", "lease_end", None), last


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can find the agent from outside")
@pytest.mark.parametrize("accept", [NDJSON, SSE])
def test_a_lost_sandbox_through_a_gateway(front, client, accept):
    """A typed end, nothing behind it, and no success."""
    id = client.lease()
    with run(front, id, "while :; do echo x; sleep 0.01; done", accept) as s:
        events = s.events()
        assert next(events)["type"] == "start"
        os.kill(agent_of(client, id), 9)
        rest = list(events)
        assert s.complete and rest[-1]["type"] == "error" and rest[-1]["code"] == "sandbox_lost" and {e["type"] for e in rest[:-1]} <= {"stdout"}
    client.terminate(id)


def test_an_upload_cut_through_a_gateway_leaves_the_old(front, client, box):
    client.write(box, "kept", b"old")
    for framing, sent in (("Content-Length: 3000000", b"y" * 1000000), ("Transfer-Encoding: chunked", b"f4240\r\n" + b"y" * 1000000 + b"\r\n")):
        with socket.create_connection(("127.0.0.1", front.port)) as s:
            s.sendall(f"PUT {client.file_url(box, 'kept')} HTTP/1.1\r\nHost: h\r\n{framing}\r\n\r\n".encode() + sent)
    assert Client(front).write(box, "after", b"x").status == 201
    assert client.read(box, "kept").body == b"old" and client.exec(box, ["ls", "-A"])["stdout"] == "after\nd\nkept\ntwo\n"
    for name in ("kept", "after"):
        client.delete(client.file_url(box, name))


def test_bodies_in_chunks_through_a_gateway(front, box):
    c = Client(front)
    body = json.dumps({"command": "wc -c", "stdin": "x" * 1500000}).encode()
    for headers in ({}, {"Expect": "100-continue"}):
        r = c.request("POST", f"/leases/{box}/exec", iter([body[i:i + 65536] for i in range(0, len(body), 65536)]),
                      headers={"Transfer-Encoding": "chunked", "Content-Type": "application/json", **headers})
        assert r.status == 200 and r.json()["stdout"].strip() == "1500000", r
