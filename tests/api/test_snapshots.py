"""Snapshots that the provider holds: a row before it is asked, and none left over once it has nothing more of them."""
import contextlib
import hashlib
import http.client
import json
import os
import sqlite3
import threading

from harness import Server, wait_until

TENANTS = {"alpha": "token-of-alpha", "beta": "token-of-beta"}
CAPS = ["file_rw", "exec", "snapshot"]


def scripted(script=None, enabled=("fake",), **config):
    tokens = [{"name": n, "sha256": hashlib.sha256(t.encode()).hexdigest(), "tenant": n, "role": "tenant"} for n, t in TENANTS.items()]
    config.setdefault("snapshots", {})["sweep_interval"] = "200ms"
    return Server(dict(config, backends={"enabled": list(enabled)}, fake={"script": json.dumps({"caps": CAPS, **(script or {})})},
                       auth={"tokens": tokens}))


def rows(server):
    """(id, state, ref) of all that is written down, whatever its state."""
    with contextlib.closing(sqlite3.connect(os.path.join(server.state, "sandgate.db"), timeout=30)) as db:
        return db.execute("SELECT id, state, ref FROM kept").fetchall()


def snapshot(client, lease):
    r = client.post(f"/leases/{lease}/snapshots")
    assert r.status == 201 and r.header("Location") == "/snapshots/" + r.json()["id"], r
    return r.json()


def ask(client, lease):
    """For a snapshot whose answer is never to come."""
    def run():
        with contextlib.suppress(OSError, http.client.HTTPException):
            client.post(f"/leases/{lease}/snapshots")
    threading.Thread(target=run, daemon=True).start()


def events(server, name):
    return [e for e in server.log_events() if e["event"] == name]


def test_a_lease_begins_with_what_the_provider_holds():
    with scripted() as s:
        c, other = s.client(TENANTS["alpha"]), s.client(TENANTS["beta"])
        lease = c.lease()
        c.write(lease, "d/f", b"one")
        kept = snapshot(c, lease)
        assert kept["held_by"] == "provider" and kept["provider"] == "fake" and kept["dirs"] == []
        assert kept["digest"] is None and kept["bytes"] is None
        assert c.get("/snapshots/" + kept["id"]).json() == kept and c.get("/snapshots").json()["items"] == [kept]
        assert c.get("/archives/" + kept["id"]).status == 404  # the server has no tar of it
        c.write(lease, "d/f", b"two")
        c.terminate(lease)
        again = c.lease(manifest={"snapshot": kept["id"], "files": [{"path": "new", "content": "n"}]})
        assert c.read(again, "d/f").body == b"one" and c.read(again, "new").body == b"n"
        # Another tenant has nothing of it.
        assert other.get("/snapshots/" + kept["id"]).status == 404 and other.delete("/snapshots/" + kept["id"]).status == 404
        assert other.get("/snapshots").json()["items"] == []
        r = other.post("/leases", {"manifest": {"snapshot": kept["id"]}})
        assert r.status == 422 and r.code == "snapshot_not_found"
        assert c.delete("/snapshots/" + kept["id"]).status == 204 and c.delete("/snapshots/" + kept["id"]).status == 404
        assert c.read(again, "d/f").body == b"one"
        wait_until(lambda: rows(s) == [], 20, "nothing written down")


def test_no_other_backend_begins_with_it():
    with scripted(enabled=("fake", "local_bwrap"), local_bwrap={"size": 1}) as s:
        c = s.client(TENANTS["alpha"])
        lease = c.lease(policy={"override": "fake"})
        held, = [snapshot(c, lease)]
        local = c.lease(policy={"override": "local_bwrap"})
        tar = snapshot(c, local)
        assert tar["held_by"] == "server"
        c.terminate(local)
        for kept, elsewhere in ((held, "local_bwrap"), (tar, "fake")):
            r = c.post("/leases", {"manifest": {"snapshot": kept["id"]}, "policy": {"override": elsewhere}})
            assert r.status == 422 and r.code == "override_not_registered", r
            assert r.json()["reason"] == "snapshot_backend" and r.json()["field"] == "manifest.snapshot"
            assert kept["provider"] in r.json()["detail"] and kept["id"] in r.json()["detail"]
        # The selector would rather have the other one, and is not given it.
        assert c.get("/leases/" + c.lease(manifest={"snapshot": held["id"]})).json()["provider"] == "fake"
        # The backend is still there, and has no snapshots of its provider any more.
        s.stop()
        s.config["fake"]["script"] = json.dumps({"caps": ["file_rw", "exec"]})
        s.start()
        r = s.client(TENANTS["alpha"]).post("/leases", {"manifest": {"snapshot": held["id"]}})
        assert r.status == 422 and r.code == "not_supported" and r.json()["reason"] == "snapshot_backend", r


def test_a_snapshot_that_fails_leaves_nothing():
    with scripted({"snapshot": [{"error": "provider_failed", "message": "no room"}, {"error": "unavailable", "retry_after": 3}],
                   "drop": [{"error": "provider_timeout"}]}) as s:
        c = s.client(TENANTS["alpha"])
        lease = c.lease()
        r = c.post(f"/leases/{lease}/snapshots")
        assert r.status == 502 and r.code == "provider_failed", r
        r = c.post(f"/leases/{lease}/snapshots")
        assert r.status == 503 and r.header("Retry-After") == "3", r
        assert c.get("/snapshots").json()["items"] == []
        wait_until(lambda: rows(s) == [], 20, "nothing written down")  # the removal that failed is repeated
        assert len(events(s, "snapshot_not_removed")) == 1
        snapshot(c, lease)


def test_what_the_provider_does_not_let_go_is_asked_for_again():
    with scripted({"drop": [{"error": "conflict", "message": "in use"}] * 2}) as s:
        c = s.client(TENANTS["alpha"])
        kept = snapshot(c, c.lease())
        r = c.delete("/snapshots/" + kept["id"])
        assert r.status == 202 and r.json() == {"id": kept["id"], "state": "removing"}, r
        assert c.get("/snapshots/" + kept["id"]).status == 404 and c.get("/snapshots").json()["items"] == []
        assert c.post("/leases", {"manifest": {"snapshot": kept["id"]}}).code == "snapshot_not_found"
        wait_until(lambda: rows(s) == [], 20, "the provider has let go")
        assert len(events(s, "snapshot_not_removed")) == 1


def test_it_expires_at_the_provider_too():
    with scripted(snapshots={"ttl": "1s"}) as s:
        c = s.client(TENANTS["alpha"])
        kept = snapshot(c, c.lease())
        wait_until(lambda: rows(s) == [], 20, "it has expired")
        assert c.get("/snapshots/" + kept["id"]).status == 404 and not events(s, "snapshot_not_removed")


def test_nobody_has_more_of_them_than_allowed():
    with scripted({"snapshot": [{"delay_ms": 300}] * 3}, snapshots={"max_per_tenant": 2, "total_bytes": 1}) as s:
        c, other = s.client(TENANTS["alpha"]), s.client(TENANTS["beta"])
        lease, answers = c.lease(), []
        threads = [threading.Thread(target=lambda: answers.append(c.post(f"/leases/{lease}/snapshots"))) for _ in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert sorted(r.status for r in answers) == [201] * 2 + [429] * 4  # what the provider holds takes none of our room
        snapshot(other, other.lease())
        assert len(rows(s)) == 3


def test_a_kill_before_the_provider_answers_leaves_nothing_written_down():
    with scripted({"snapshot": [{"stall": True}]}) as s:
        c = s.client(TENANTS["alpha"])
        lease = c.lease()
        ask(c, lease)
        wait_until(lambda: [r[1] for r in rows(s)] == [1], 20, "the intent")
        assert c.get("/snapshots").json()["items"] == []
        s.kill9()
        s.start()
        assert s.client(TENANTS["alpha"]).get("/snapshots").json()["items"] == []
        wait_until(lambda: rows(s) == [], 20, "nothing written down")


def test_what_the_provider_has_lost_is_said_so():
    with scripted() as s:
        c = s.client(TENANTS["alpha"])
        kept = snapshot(c, c.lease())
        s.kill9()  # and the memory of the fake with it
        s.start()
        c = s.client(TENANTS["alpha"])
        r = c.post("/leases", {"manifest": {"snapshot": kept["id"]}})
        assert r.status == 422 and r.code == "snapshot_not_found" and r.json()["field"] == "manifest.snapshot", r
        assert c.delete("/snapshots/" + kept["id"]).status == 204


def test_none_goes_while_it_becomes_ready():
    """Turns of what is old, one after the other, beside snapshots that are being made."""
    with scripted(enabled=("fake", "local_bwrap"), local_bwrap={"size": 1}, snapshots={"max_per_tenant": 10000}) as s:
        made, over = [], threading.Event()

        def turns():
            c = s.client(TENANTS["beta"])
            lease = c.lease(policy={"override": "local_bwrap"})
            while not over.is_set():
                c.delete("/snapshots/" + snapshot(c, lease)["id"])

        def takes():
            c = s.client(TENANTS["alpha"])
            lease = c.lease(policy={"override": "fake"})
            made.extend(snapshot(c, lease)["id"] for _ in range(30))

        threads = [threading.Thread(target=takes) for _ in range(4)]
        beside = threading.Thread(target=turns)
        for t in [beside, *threads]:
            t.start()
        for t in threads:
            t.join()
        over.set()
        beside.join()
        c = s.client(TENANTS["alpha"])
        assert len(made) == 120 and [i for i in made if c.get("/snapshots/" + i).status != 200] == []
