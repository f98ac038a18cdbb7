"""E2B over its stand-in: nothing is paid for that nobody has, and a lease has what it says it has."""
import json
import urllib.request

import pytest

from e2b_rig import gone, ids, server, server_of, standin  # noqa: F401
from harness import wait_until


def test_a_delete_is_repeated_until_the_provider_confirms(server, standin):
    c = server.client()
    id = c.lease()
    standin.order({"op": "delete", "kind": "status", "status": 500, "times": 6})
    assert c.delete(f"/leases/{id}").status in (200, 202)
    gone(standin)
    wait_until(lambda: c.get(f"/leases/{id}").json()["state"] == "terminated", 20)


def test_a_sandbox_that_vanishes_is_lost_soon(server, standin):
    c = server.client()
    idle, used = c.lease(), c.lease()
    for id in (idle, used):
        standin.vanish(c.get(f"/leases/{id}").json()["sandbox_id"])
    r = c.post(f"/leases/{used}/exec", {"command": "true"})
    assert r.status == 410 and r.code in ("sandbox_lost", "lease_gone"), r
    for id in (idle, used):
        wait_until(lambda i=id: c.get(f"/leases/{i}").json()["state"] == "lost", 20)


def test_what_is_ours_and_nobodys_is_removed_and_what_is_not_ours_stays(server, standin):
    c = server.client()
    id = c.lease()
    [mine] = standin.state()["sandboxes"]

    def make(metadata):
        q = urllib.request.Request(standin.url + "/v2/sandboxes", json.dumps({"templateID": "base", "timeout": 60, "metadata": metadata}).encode(),
                                   {"X-API-Key": standin.key, "Content-Type": "application/json"})
        return json.load(urllib.request.urlopen(q))["sandboxID"]
    orphan = make({"sandgate": mine["metadata"]["sandgate"], "lease": "lease_nobody"})
    twin = make(mine["metadata"])
    others = make({"sandgate": "another", "lease": id}), make({})
    wait_until(lambda: not {orphan, twin} & set(ids(standin)), 20)
    assert set(ids(standin)) == {mine["id"], *others}
    assert c.exec(id, "true")["returncode"] == 0
    for other in others:
        standin.vanish(other)
    c.terminate(id)


def test_leases_are_found_again_after_a_kill(standin):
    standin.order()
    with server_of(standin) as s:
        c = s.client()
        kept, ended = c.lease(timeout_sec=600), c.lease(timeout_sec=4)
        c.exec(kept, "echo still > here")
        standin.order({"op": "create", "kind": "stall_after"})
        try:
            c.post("/leases", {}, timeout=1)
        except OSError:
            pass
        wait_until(lambda: len(ids(standin)) == 3, 20)
        s.kill9()
        standin.order({"op": "connect", "kind": "status", "status": 500, "times": 5})
        s.config["leases"] = {"at_shutdown": "keep"}
        s.start()
        c = s.client()

        def alive():
            r = s.client().post(f"/leases/{kept}/exec", {"command": "cat here"})
            assert r.status in (200, 503), r
            return r.status == 200 and r.json()["stdout"] == "still\n"
        wait_until(alive, 30)
        wait_until(lambda: c.get(f"/leases/{ended}").json()["state"] == "expired", 20)
        sandbox = c.get(f"/leases/{kept}").json()["sandbox_id"]
        wait_until(lambda: ids(standin) == [sandbox], 20)
        # The same when a server is stopped that is to keep them: it kills what runs, and leaves the rest.
        assert c.post(f"/leases/{kept}/exec", {"command": "sleep 600", "detach": True}).status == 202
        assert s.stop() == 0 and ids(standin) == [sandbox]
        s.start()
        wait_until(alive, 30)
        c = s.client()
        assert not c.exec(kept, "pgrep -x sleep")["stdout"]
        c.terminate(kept)
    gone(standin)


def test_a_delete_that_is_not_confirmed_outlives_the_server(standin):
    standin.order()
    with server_of(standin, timeout="1s") as s:
        c = s.client()
        kept, left = c.lease(), c.lease()
        standin.order({"op": "delete", "kind": "status", "status": 500, "times": 0})
        with pytest.raises(OSError):
            c.delete(f"/leases/{left}", timeout=0.3)  # it would wait for 10 s
        c.close()
        wait_until(lambda: next(b for b in c.get("/backends").json()["items"] if b["name"] == "e2b")["provider"]["removals_pending"] == 1)
        assert c.get(f"/leases/{left}").json()["state"] == "releasing" and len(ids(standin)) == 2
        s.kill9()
        s.start()
        standin.order()
        c = s.client()
        wait_until(lambda: c.get(f"/leases/{left}").json()["state"] == "terminated", 20)
        assert ids(standin) == [c.get(f"/leases/{kept}").json()["sandbox_id"]]
        c.terminate(kept)
    gone(standin)


def test_what_a_lease_did_holds_nothing_of_it_once_it_has_ended(server, standin):
    c = server.client()
    id = c.lease()
    assert c.put(f"/leases/{id}/files?path=f", b"x" * 100000).status == 201
    assert c.get(f"/leases/{id}/files?path=f").status == 200
    assert c.post(f"/leases/{id}/exec", {"command": "cat f", "timeout": 3000}).json()["returncode"] == 0
    c.terminate(id)
    wait_until(lambda: next(b for b in c.get("/backends").json()["items"] if b["name"] == "e2b")["provider"]["sandboxes"] == 0, 10)
