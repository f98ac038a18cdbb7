"""What happens to a lease, as events: whole, in order, numbered for good, and at each follower's own pace."""
import concurrent.futures
import json
import os
import signal
import time

import pytest

from gateway import Nginx
from harness import SLOW, Server, wait_until
from streams import NDJSON, SSE, Stream

GAP = 17  # what a number jumps by when a server died


def scripted(script, **config):
    return Server(dict(config, backends={"enabled": ["fake"]}, fake={"script": json.dumps(script)}))


def events(server, lease, after=0, follow=False, accept=NDJSON, **kw):
    return Stream(server.port, "GET", f"/leases/{lease}/events?after={after}" + ("&follow=1" if follow else ""), None, accept, **kw)


def words(list_of_events):
    return [e["type"] for e in list_of_events]


def check(seen, first=1):
    """Numbered without a gap, in the order of time."""
    assert [e["seq"] for e in seen] == list(range(first, first + len(seen))), seen
    assert [e["at"] for e in seen] == sorted(e["at"] for e in seen), seen
    return seen


# ---- what they say ----

@pytest.mark.parametrize("accept", [NDJSON, SSE])
def test_a_whole_life(client, server, accept):
    id = client.lease(timeout_sec=100)
    l = client.get(f"/leases/{id}").json()
    later = client.post(f"/leases/{id}/extend", {"timeout_sec": 500}).json()["expires_at"]
    client.terminate(id)
    with events(server, id, accept=accept) as s:
        seen = check(s.all())
        assert s.complete and s.headers["content-type"] == accept and s.headers["cache-control"] == "no-store"
        assert s.headers["x-accel-buffering"] == "no"
    assert words(seen) == ["creating", "ready", "extended", "releasing", "terminated"]
    assert [e["state"] for e in seen] == ["creating", "ready", "ready", "releasing", "terminated"]
    assert [e["reason"] for e in seen] == [None, None, None, "deleted", "deleted"]
    assert [e["expires_at"] for e in seen] == [None, l["expires_at"], later, later, later]
    assert seen[0]["at"] == l["created_at"] and {seen[0][k] for k in ("provider", "sandbox_id", "slot")} == {None}
    m = l["metadata"]
    for e in seen[1:]:
        assert (e["provider"], e["sandbox_id"]) == ("local_bwrap", l["sandbox_id"])
        assert e["slot"] == {"name": m["slot"], "local_pool": m["local_pool"], "generation": m["generation"]}


def test_an_extension_that_changes_nothing_is_none(client, server, lease):
    assert client.post(f"/leases/{lease}/extend", {"timeout_sec": 1}).status == 200
    assert words(events(server, lease).all()) == ["creating", "ready"]


def test_reading_on(client, server, lease):
    assert words(events(server, lease, after=1).all()) == ["ready"]
    assert events(server, lease, after=2).all() == []
    # A client that connects again says where it was by header, with the address it began with.
    assert words(events(server, lease, after=0, headers={"Last-Event-ID": "1"}).all()) == ["ready"]
    for query, head in (("after=3", {}), ("after=-1", {}), ("after=x", {}), ("follow=maybe", {}), ("", {"Last-Event-ID": "x"})):
        r = client.get(f"/leases/{lease}/events?{query}", headers=head)
        assert r.status == 400 and r.json()["field"] in ("after", "follow", "Last-Event-ID"), (query, r)
    r = client.get(f"/leases/{lease}/events", headers={"Accept": "application/json"})
    assert r.status == 406, r
    r = client.request("HEAD", f"/leases/{lease}/events?follow=1", headers={"Accept": SSE})
    assert r.status == 200 and r.header("Content-Type") == SSE and r.body == b""
    assert client.get("/version").status == 200


# ---- as it happens ----

def test_followers_hear_of_each_step_at_once(client, server):
    id = client.lease(timeout_sec=100)
    with events(server, id, follow=True) as s:
        it = s.events()
        assert [next(it)["type"], next(it)["type"]] == ["creating", "ready"]
        client.post(f"/leases/{id}/extend", {"timeout_sec": 500})
        assert next(it)["type"] == "extended"
        began = time.monotonic()
        client.terminate(id)
        assert words(it) == ["releasing", "terminated"] and s.complete
        assert time.monotonic() - began < 5 * SLOW
    with events(server, id, after=5, follow=True) as s:
        assert s.all() == [] and s.complete


def test_a_create_that_takes_time():
    with scripted({"create": [{"delay_ms": 300}, {"delay_ms": 300, "error": "provider_failed", "message": "no machine"}]}) as s:
        c = s.client()
        id = c.post("/leases", {}, headers={"Prefer": "respond-async"}).json()["id"]
        with events(s, id, follow=True) as e:
            it = e.events()
            assert next(it)["type"] == "creating"
            ready = next(it)
            assert ready["type"] == "ready" and ready["provider"] == "fake" and ready["slot"] is None
        id = c.post("/leases", {}, headers={"Prefer": "respond-async"}).json()["id"]
        seen = check(events(s, id, follow=True).all())
        assert words(seen) == ["creating", "failed"] and "no machine" in seen[-1]["reason"], seen


def test_ends_that_nobody_asked_for():
    with scripted({"exec": [{"delay_ms": 10, "lost_after_ms": 50}]}) as s:
        c = s.client()
        ids = [c.lease(timeout_sec=1), c.lease(idle_timeout_sec=0.5), c.lease()]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            followers = [pool.submit(lambda i=i: check(events(s, i, follow=True).all())) for i in ids]
            c.exec_response(ids[2], "sleep 5")
            expired, idle, lost = [f.result() for f in followers]
        for seen, why in ((expired, "timeout"), (idle, "idle_timeout")):
            assert words(seen) == ["creating", "ready", "releasing", "expired"] and {e["reason"] for e in seen[2:]} == {why}, seen
        assert words(lost) == ["creating", "ready", "lost"] and lost[-1]["reason"], lost


def test_many_followers_and_one_that_stands_still(client, server):
    id = client.lease()
    threads = server.threads()
    stuck = events(server, id, follow=True, rcvbuf=1024)
    many = [events(server, id, follow=True) for _ in range(100)]
    assert server.threads() == threads
    for i in range(20):
        assert client.post(f"/leases/{id}/extend", {"timeout_sec": 4000 + i}).status == 200
    client.terminate(id)
    for s in many:
        assert words(check(s.all())) == ["creating", "ready", *["extended"] * 20, "releasing", "terminated"]
        s.close()
    stuck.close()


@pytest.mark.parametrize("accept", [NDJSON, SSE])
def test_through_a_gateway(client, server, accept):
    """nginx with its defaults: each step comes when it happens, and the end is an end."""
    with Nginx(server.port) as gateway:
        id = client.lease(timeout_sec=100)
        with events(gateway, id, follow=True, accept=accept) as s:
            it = s.events()
            assert [next(it)["type"], next(it)["type"]] == ["creating", "ready"]
            client.post(f"/leases/{id}/extend", {"timeout_sec": 500})
            assert next(it)["type"] == "extended"
            client.terminate(id)
            assert words(it) == ["releasing", "terminated"] and s.complete


# ---- what is kept ----

def test_history_is_bounded_and_dropped_history_is_gone(client, server):
    id = client.lease()
    with events(server, id, follow=True) as live:
        for i in range(80):
            assert client.post(f"/leases/{id}/extend", {"timeout_sec": 4000 + i}).status == 200
        r = client.get(f"/leases/{id}/events?after=0")
        assert r.status == 410 and r.code == "history_dropped" and r.json()["oldest_seq"] == 82 - 63, r
        assert client.get(f"/leases/{id}/events?after={82 - 65}").status == 410
        assert len(check(events(server, id, after=82 - 64).all(), 82 - 63)) == 64
        client.terminate(id)
        assert len(check(live.all())) == 84  # who kept up has missed nothing


def test_other_tenants_see_nothing():
    import hashlib
    tokens = [{"name": n, "sha256": hashlib.sha256(n.encode()).hexdigest(), "tenant": n, "role": role}
              for n, role in (("a", "tenant"), ("b", "tenant"), ("ops", "admin"))]
    with scripted({}, auth={"tokens": tokens}) as s:
        id = s.client("a").lease()
        assert s.client("a").get(f"/leases/{id}/events").status == s.client("ops").get(f"/leases/{id}/events").status == 200
        theirs, never = (s.client("b").get(f"/leases/{i}/events") for i in (id, "lease_00000000000000000000000000"))
        assert theirs.status == never.status == 404 and theirs.json()["detail"] == never.json()["detail"]
        assert s.client().get(f"/leases/{id}/events").status == 401


# ---- over the end of a server ----

def test_a_number_is_never_used_twice():
    """What a server told and did not write down any more, the one after it cannot know."""
    with scripted({"terminate": [{"delay_ms": 60000}]}) as s:
        c = s.client()
        ended, dying, live = c.lease(), c.lease(), c.lease()
        with events(s, dying, follow=True) as told:
            it = told.events()
            assert [next(it)["type"], next(it)["type"]] == ["creating", "ready"]
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                deleting = pool.submit(c.delete, f"/leases/{dying}")
                last = next(it)
                assert last["type"] == "releasing"
                c2 = s.client()
                c2.terminate(ended)
                s.kill9()
                with pytest.raises(Exception):
                    deleting.result()
        s.start()
        with events(s, dying, after=last["seq"], follow=True) as e:
            seen = e.all()
        assert words(seen) == ["lost"] and seen[0]["reason"] == "server_restarted" and seen[0]["seq"] > last["seq"], seen
        seen = events(s, live).all()
        assert words(seen) == ["creating", "ready", "lost"] and [e["seq"] for e in seen] == [1, 2, 2 + GAP], seen
        # What was over before is what it was.
        assert words(check(events(s, ended).all())) == ["creating", "ready", "releasing", "terminated"]


def test_followers_do_not_hold_up_a_stop_and_are_told():
    with Server({"local_bwrap": {"size": 1}, "server": {"drain_timeout": "60s"}}) as s:
        s.wait_slots(1)
        id = s.client().lease()
        with events(s, id, follow=True) as e:
            it = e.events()
            assert [next(it)["type"], next(it)["type"]] == ["creating", "ready"]
            began = time.monotonic()
            s.process.send_signal(signal.SIGTERM)
            rest = list(it)
            assert e.complete and words(rest) == ["error"] and rest[0]["code"] == "shutting_down" and "seq" not in rest[0], rest
        assert s.stop() == 0 and time.monotonic() - began < 20 * SLOW
        s.start()
        seen = check(events(s, id, after=2, follow=True).all(), 3)
        assert words(seen) == ["releasing", "terminated"] and seen[-1]["reason"] == "server_shutdown", seen


def test_silence_is_interrupted_by_pings(server, lease):
    with events(server, lease, after=2, follow=True) as s:
        began = time.monotonic()
        ping = next(s.events(pings=True))
        assert ping == {"type": "ping"} and 5 < time.monotonic() - began < 15
