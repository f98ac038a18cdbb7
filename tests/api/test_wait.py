"""`?wait=`: the answer comes when there is something to say, or when the time is over."""
import concurrent.futures
import json
import socket
import time

import pytest

from harness import SLOW, Server, wait_until
from test_events import scripted

WAIT = "/leases?wait="


def timed(fn, *a, **kw):
    began = time.monotonic()
    r = fn(*a, **kw)
    return r, time.monotonic() - began


@pytest.mark.parametrize("method,path", [("GET", "/leases/{id}"), ("POST", "/leases")])
def test_bounds(client, lease, method, path):
    path = path.replace("{id}", lease)
    for bad in ("", "-1", "x", "1e3", "5s", ".", "1.2.3", "NaN", "0x10", "%20", "1,5"):
        r = client.request(method, f"{path}?wait={bad}", {} if method == "POST" else None)
        assert r.status == 400 and r.code == "invalid_request" and r.json()["field"] == "wait", (bad, r)
    for much in ("60.001", "61", "1000000", "9" * 30):
        r = client.request(method, f"{path}?wait={much}", {} if method == "POST" else None)
        assert r.status == 422 and r.code == "timeout_above_maximum" and r.json()["field"] == "wait" and r.json()["limit"] == 60, (much, r)
    assert client.get("/leases?state=creating").json()["items"] == []
    for good in ("0", "0.5", "60", "60.0"):
        r = client.get(f"/leases/{lease}?wait={good}")
        assert r.status == 200 and r.json()["state"] == "ready", (good, r)


def test_get_waits_for_the_create_and_no_longer():
    with scripted({"create": [{"delay_ms": 600}, {"delay_ms": 600, "error": "provider_failed", "message": "no machine"}, {"stall": True}]}) as s:
        c = s.client()
        made = [c.post("/leases", {}, headers={"Prefer": "respond-async"}).json()["id"] for _ in range(3)]
        with concurrent.futures.ThreadPoolExecutor(20) as pool:
            waits = [pool.submit(timed, s.client().get, f"/leases/{id}?wait=30") for id in made[:2] for _ in range(10)]
            for w, state in zip(waits, ["ready"] * 10 + ["failed"] * 10):
                r, took = w.result()
                assert r.status == 200 and r.json()["state"] == state and took < 10 * SLOW, (r, took)
        r, took = timed(c.get, f"/leases/{made[2]}?wait=0.5")
        assert r.json()["state"] == "creating" and took >= 0.49
        # An end is an answer, too.
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(timed, s.client().get, f"/leases/{made[2]}?wait=60")
            time.sleep(0.2)
            assert c.delete(f"/leases/{made[2]}").status == 200
            r, took = waiting.result()
            assert r.json()["state"] == "terminated" and took < 20 * SLOW, r
        # Of a lease that is at rest there is nothing to wait for.
        assert timed(c.get, f"/leases/{made[0]}?wait=60")[1] < 5 * SLOW


def test_get_waits_for_the_end():
    with scripted({"terminate": [{"delay_ms": 11000}]}) as s:
        c = s.client()
        id = c.lease()
        assert c.delete(f"/leases/{id}").status == 202
        assert c.get(f"/leases/{id}?wait=0").json()["state"] == "releasing"
        assert c.get(f"/leases/{id}?wait=30").json()["state"] == "terminated"


def test_create_waits_as_long_as_it_is_told():
    steps = [{"delay_ms": 300}, {"delay_ms": 300, "error": "provider_failed", "message": "no machine"}, {"delay_ms": 1500}, {"delay_ms": 1500, "error": "provider_failed"}]
    with scripted({"create": steps}) as s:
        c = s.client()
        # In time: as without it, success and failure.
        r = c.post(WAIT + "20", {"trajectory_id": "a"})
        assert r.status == 201 and r.json()["state"] == "ready" and r.header("Location") == "/leases/" + r.json()["id"], r
        r = c.post(WAIT + "20", {})
        assert r.status == 502 and r.code == "provider_failed", r
        # Later: where to look.
        r, took = timed(c.post, WAIT + "0.3", {"trajectory_id": "b"})
        assert r.status == 202 and r.json()["state"] == "creating" and 0.29 <= took < 1.4 * SLOW, (r, took)
        id = r.json()["id"]
        again = c.post(WAIT + "0", {"trajectory_id": "b"})
        assert again.status == 202 and again.json()["id"] == id, again
        again, took = timed(c.post, WAIT + "30", {"trajectory_id": "b"})
        assert again.status == 200 and again.json()["id"] == id and again.json()["state"] == "ready" and took < 10 * SLOW, again
        r = c.post(WAIT + "0", {})
        assert r.status == 202 and c.get(r.header("Location") + "?wait=20").json()["state"] == "failed", r
        # Together with the preference it is a limit all the same.
        r = c.post(WAIT + "20", {}, headers={"Prefer": "respond-async"})
        assert r.status == 201 and r.header("Preference-Applied") == "respond-async", r


def hang_up(server, method, path, body=b""):
    """Leaves in the middle of a wait; returns when the server has noticed."""
    before = left(server)
    with socket.create_connection(("127.0.0.1", server.port)) as c:
        c.sendall(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        time.sleep(0.2)
    wait_until(lambda: left(server) > before, what="the end of the wait")


def left(server):
    """Requests whose client went away."""
    return sum(e["event"] == "request" and not e["complete"] for e in server.log_events())


def test_who_hangs_up_does_not_wait():
    with scripted({"create": [{"stall": True}] * 3}) as s:
        c = s.client()
        id = c.post("/leases", {"trajectory_id": "kept"}, headers={"Prefer": "respond-async"}).json()["id"]
        hang_up(s, "GET", f"/leases/{id}?wait=60")
        assert c.get(f"/leases/{id}").json()["state"] == "creating"
        # A create nobody could find again ends with its caller, one with a trajectory goes on.
        hang_up(s, "POST", WAIT + "60", b"{}")
        hang_up(s, "POST", WAIT + "60", b'{"trajectory_id":"also-kept"}')
        wait_until(lambda: len(c.get("/leases?state=creating").json()["items"]) == 2, what="the end of the create")
        assert sorted(l["trajectory_id"] for l in c.get("/leases?state=creating").json()["items"]) == ["also-kept", "kept"]
        began = time.monotonic()
        for l in c.get("/leases?state=creating").json()["items"]:
            assert c.delete("/leases/" + l["id"]).status == 200
        assert time.monotonic() - began < 20 * SLOW


def test_waits_are_no_load():
    """Two hundred of them need no thread and no processor."""
    with scripted({"create": [{"stall": True}]}) as s:
        c = s.client()
        id = c.post("/leases", {}, headers={"Prefer": "respond-async"}).json()["id"]
        threads = s.threads()
        with concurrent.futures.ThreadPoolExecutor(200) as pool:
            waits = [pool.submit(s.client().get, f"/leases/{id}?wait=50") for _ in range(200)]
            wait_until(lambda: s.descriptors() > 400, 30)
            spent = cpu(s)
            time.sleep(1)
            assert s.threads() == threads and cpu(s) - spent < 0.3 * SLOW
            began = time.monotonic()
            assert c.delete(f"/leases/{id}").status == 200
            assert {w.result().json()["state"] for w in waits} == {"terminated"} and time.monotonic() - began < 20 * SLOW


def cpu(server):
    with open(f"/proc/{server.pid()}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100
