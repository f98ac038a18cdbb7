"""From create to the end, and what is left then: nothing, but a typed answer."""
import concurrent.futures
import json
import time

import pytest

from box import Box, own_time, sleeping
from harness import wait_until


def state(client, id):
    return client.get(f"/leases/{id}").json()["state"]


def gone(client, id):
    """Every kind of work on the lease is refused, as typed as can be."""
    return [client.exec_response(id, "true"), client.read(id, "a"), client.write(id, "a", b"x"), client.post(f"/leases/{id}/extend", {}),
            client.get(f"/leases/{id}/files/list"), client.get(f"/leases/{id}/files/stat?path=a"), client.post(f"/leases/{id}/files/mkdir?path=a"),
            client.delete(client.file_url(id, "a")), client.get(f"/leases/{id}/files/tar?path=."), client.get(f"/leases/{id}/exec"),
            client.get(f"/leases/{id}/exec/x"), client.get(f"/leases/{id}/endpoints/80"), client.get(f"/leases/{id}/proxy/80/"),
            client.post(f"/leases/{id}/snapshots")]


def test_the_end(client):
    id = client.lease(trajectory_id="again")
    first = client.delete(f"/leases/{id}")
    assert first.status == 200 and first.json() == {"terminated": True, "trajectory_id": "again"}, first
    assert client.delete(f"/leases/{id}").json() == first.json()
    assert state(client, id) == "terminated" and client.get(f"/leases/{id}").json()["reason"]
    for r in gone(client, id):
        assert r.status == 410 and r.code == "lease_gone", r
    assert id not in [l["id"] for l in client.get("/leases?state=ready").json()["items"]]
    for r in (client.get("/leases/lease_none"), client.delete("/leases/lease_none"), client.exec_response("lease_none", "true"), client.read("lease_none", "a")):
        assert r.status == 404 and r.code == "not_found", r


def test_every_lease_is_fresh(client, server):
    for _ in range(2):
        box = Box(server, client.lease())
        assert box.stat("dirt").status == 404 and box.stat("/tmp/dirt").status == 404 and box.client.get(f"{box.url}/exec").json()["items"] == []
        assert box.write("dirt", b"x").status == 201 and box.write("/tmp/dirt", b"x").status == 201
        box.client.terminate(box.lease)


@pytest.mark.needs("shell")
def test_leases_do_not_see_each_other(box, fresh, backend):
    box.write("/workspace/mine", b"x")
    assert fresh.stat("mine").status == 404 and fresh.run("test -e mine")["returncode"] == 1
    fresh.run(f"touch '{box.at}'")
    assert box.names() == []
    box.delete("/workspace/mine")
    if backend.isolated:
        box.run("touch /tmp/mine", cwd="/tmp")
        assert fresh.run("test -e /tmp/mine")["returncode"] == 1


def test_the_same_trajectory(client, server):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        rs = list(pool.map(lambda _: server.client().post("/leases", {"trajectory_id": "same", "env": {"A": "1"}}), range(8)))
    assert {r.json()["id"] for r in rs} == {rs[0].json()["id"]} and sorted(r.status for r in rs) == [200] * 7 + [201]
    r = client.post("/leases", {"trajectory_id": "same", "env": {"A": "2"}})
    assert r.status == 409 and r.code == "trajectory_conflict", r
    client.terminate(rs[0].json()["id"])
    r = client.post("/leases", {"trajectory_id": "same", "env": {"A": "2"}})
    assert r.status == 201 and r.json()["id"] != rs[0].json()["id"]
    client.terminate(r.json()["id"])


def test_the_same_key(client, server):
    head = {"Idempotency-Key": "key"}
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        rs = list(pool.map(lambda _: server.client().post("/leases", {"env": {"A": "1"}}, headers=head), range(8)))
    assert len({r.json()["id"] for r in rs}) == 1 and [r.status for r in rs].count(201) == 1, rs
    id = rs[0].json()["id"]
    r = client.post("/leases", {"env": {"A": "2"}}, headers=head)
    assert r.status == 409 and r.code == "idempotency_conflict", r
    client.terminate(id)
    r = client.post("/leases", {"env": {"A": "1"}}, headers=head)
    assert r.status == 200 and r.json()["id"] == id and state(client, id) == "terminated", r


def test_not_waiting(client):
    r = client.post("/leases", {}, headers={"Prefer": "respond-async"})
    assert r.status == 202 and r.json()["state"] == "creating" and r.header("Location"), r
    assert client.get(r.header("Location") + "?wait=30").json()["state"] == "ready"
    assert client.exec(r.json()["id"], "echo hi")["stdout"] == "hi\n"
    client.terminate(r.json()["id"])


def test_extend(client):
    id = client.lease(timeout_sec=60)
    before = client.get(f"/leases/{id}").json()["expires_at"]
    assert client.post(f"/leases/{id}/extend", {"timeout_sec": 10}).json()["expires_at"] == before
    later = client.post(f"/leases/{id}/extend", {"timeout_sec": 600})
    assert later.status == 200 and later.json()["expires_at"] > before and later.json()["state"] == "ready", later
    for body, status in (({"timeout_sec": 0}, 400), ({"timeout_sec": "60"}, 400), ({"x": 1}, 400), ({"timeout_sec": 1e9}, 422)):
        assert client.post(f"/leases/{id}/extend", body).status == status, body
    assert client.exec(id, "echo hi")["stdout"] == "hi\n"
    client.terminate(id)


def test_expiry_takes_what_runs_along(client, server):
    """Extended once, so that it is the new time that counts."""
    box = Box(server, client.lease(timeout_sec=0.5))
    box.client.post(f"{box.url}/extend", {"timeout_sec": 1})
    with box.stream("sleep 60") as s:
        events = s.all()
    assert events[-1]["type"] in ("exit", "error") and events[-1].get("returncode") != 0, events
    wait_until(lambda: state(client, box.lease) == "expired")
    assert client.get(f"/leases/{box.lease}").json()["reason"] and all(r.status == 410 for r in gone(client, box.lease))


def test_idle_leases_end_and_use_keeps_them(client, server):
    idle, used = client.lease(idle_timeout_sec=0.7), client.lease(idle_timeout_sec=0.7)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        run = pool.submit(server.client().exec, used, "sleep 1.6")
        while state(client, idle) == "ready":  # reading of it is not using it, nor is what fails
            client.read(idle, "missing")
            time.sleep(0.05)
        assert state(client, idle) in ("releasing", "expired") and state(client, used) == "ready" and run.result()["returncode"] == 0
    wait_until(lambda: state(client, idle) == "expired")
    assert client.get(f"/leases/{idle}").json()["reason"].startswith("idle")
    client.terminate(used)


def test_the_end_while_a_command_runs(client, server):
    box = Box(server, client.lease())
    eid = box.detach("echo started; sleep 60")
    with box.stream("sleep 60") as s, concurrent.futures.ThreadPoolExecutor(12) as pool:
        first = next(s.events())
        deletes = [pool.submit(server.client().delete, box.url) for _ in range(6)]
        execs = [pool.submit(server.client().exec_response, box.lease, "true") for _ in range(6)]
        rest = s.all()
        assert first["type"] == "start" and rest[-1]["type"] in ("exit", "error")
        assert rest[-1]["type"] == "error" or (rest[-1]["killed_by"], rest[-1]["returncode"]) == ("lease_end", None), rest
        assert {d.result().status for d in deletes} <= {200, 202} and {e.result().status for e in execs} <= {200, 410}
    wait_until(lambda: state(client, box.lease) == "terminated")
    assert client.get(f"{box.url}/exec/{eid}").status == 410


@pytest.mark.needs("shell", "here")
def test_nothing_survives_the_end(client, server):
    """Whatever a command left behind that had moved away from it."""
    box, mark = Box(server, client.lease()), own_time()
    box.run(f"(setsid sh -c 'trap \"\" TERM HUP INT; while :; do sleep {mark}; done' >/dev/null 2>&1 &) ; (sleep {mark} &)")
    wait_until(lambda: len(sleeping(mark)) >= 2, what="its children, as this machine sees them")
    client.terminate(box.lease)
    wait_until(lambda: sleeping(mark) == [], what="their end")


def test_renewal_against_expiry(client, server):
    """Renewed and alive until the new time, or gone; never neither."""
    def one(i):
        c = server.client()
        id = c.lease(timeout_sec=0.5)
        time.sleep(0.48 + i * 0.01)
        r = c.post(f"/leases/{id}/extend", {"timeout_sec": 30})
        assert r.status in (200, 410), r
        if r.status == 200:
            assert state(c, id) == "ready" and c.exec(id, "true")["returncode"] == 0
        else:
            wait_until(lambda: state(c, id) == "expired")
        c.terminate(id)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(one, range(4)))


def test_lists_page(client):
    ids = [client.lease() for _ in range(2)]
    seen, cursor = [], ""
    while cursor is not None:
        page = client.get("/leases?state=ready&limit=1" + (f"&cursor={cursor}" if cursor else "")).json()
        seen += [l["id"] for l in page["items"]]
        cursor = page["next_cursor"]
    assert len(seen) == len(set(seen)) and set(ids) <= set(seen) and seen == sorted(seen, reverse=True)
    for id in ids:
        client.terminate(id)


def test_an_event_for_every_step(client):
    id = client.lease()
    client.post(f"/leases/{id}/extend", {"timeout_sec": 40000})
    client.terminate(id)
    events = [json.loads(line) for line in client.get(f"/leases/{id}/events?follow=1").body.splitlines()]
    assert [e["type"] for e in events] == ["creating", "ready", "extended", "releasing", "terminated"], events
