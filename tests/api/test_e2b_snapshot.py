"""Snapshots that E2B holds: labelled by their names, found again after whatever went wrong, and nothing left that nobody has."""
import http.client
import json
import os
import random
import threading
import time
import urllib.request

import pytest

from e2b_rig import PAID, Standin, ids
from harness import Server, wait_until
from test_snapshots import ask, rows, snapshot


@pytest.fixture(scope="module")
def standin():
    with Standin() as s:
        yield s


@pytest.fixture(scope="module")
def server(standin):
    config = {**standin.config(timeout="4s"), "snapshots": {"sweep_interval": "300ms"}}
    with Server(config=config, env=standin.env, policy=PAID) as s:
        yield s


@pytest.fixture
def c(standin, server):
    standin.order()
    yield server.client()
    standin.order()
    drop_all(server)
    wait_until(lambda: not standin.state()["snapshots"] and not rows(server), 20, "no snapshot is left")


def drop_all(server):
    client = server.client()
    for kept in client.get("/snapshots").json()["items"]:
        assert client.delete("/snapshots/" + kept["id"]).status in (202, 204)


def test_a_lease_begins_with_the_whole_sandbox(standin, c):
    lease = c.lease(env={"A": "old"})
    c.write(lease, "f", b"one")
    c.exec(lease, "sleep 300 </dev/null >/dev/null 2>&1 & echo $! > /tmp/pid; echo elsewhere > /var/tmp/f")
    kept = snapshot(c, lease)
    assert kept["held_by"] == "provider" and kept["provider"] == "e2b" and kept["digest"] is None and kept["bytes"] is None
    name, = standin.state()["snapshots"]
    assert name.startswith("standin/sandgate-") and name.endswith(f"-{kept['id']}:default")
    assert c.exec(lease, "kill -0 $(cat /tmp/pid)")["returncode"] == 0  # it went on
    c.terminate(lease)
    again = c.lease(manifest={"snapshot": kept["id"], "env": {"A": "new"}, "files": [{"path": "n", "content": "n"}]})
    r = c.exec(again, "cat f n /var/tmp/f; echo $A; pwd; exit 3")
    assert r["stdout"] == "onenelsewhere\nnew\n/workspace\n" and r["returncode"] == 3
    # It is labelled as any other, and goes as any other.
    box, = [b for b in standin.state()["sandboxes"] if b["metadata"]["lease"] == again]
    assert box["template"] == name
    c.terminate(again)
    wait_until(lambda: box["id"] not in ids(standin), 20, "it is gone")
    assert c.delete("/snapshots/" + kept["id"]).status == 204 and not standin.state()["snapshots"]


def test_an_answer_that_is_lost_is_looked_for(standin, c, soak):
    lease = c.lease()
    for kind in ("drop_after", "garbage") if soak else ("drop_after",):
        standin.order({"op": "snapshot", "kind": kind})
        if kind == "garbage":  # nothing happened, and nothing is found
            r = c.post(f"/leases/{lease}/snapshots")
            assert r.status == 502 and r.json()["provider"] == "e2b", r
        else:
            kept = snapshot(c, lease)
    assert [s["id"] for s in c.get("/snapshots").json()["items"]] == [kept["id"]] and len(standin.state()["snapshots"]) == 1
    assert c.get("/leases/" + c.lease(manifest={"snapshot": kept["id"]})).json()["state"] == "ready"


def test_a_refusal_is_one(standin, c):
    lease = c.lease()
    for fault, status, code in (({"status": 400, "message": "too old"}, 422, "not_supported"), ({"status": 409}, 409, "conflict")):
        standin.order({"op": "snapshot", "kind": "status", **fault})
        r = c.post(f"/leases/{lease}/snapshots")
        assert r.status == status and r.code == code, r
    standin.order({"op": "snapshot", "kind": "echo", "status": 400})
    assert standin.key not in c.post(f"/leases/{lease}/snapshots").body.decode()
    standin.order({"op": "snapshot", "kind": "gone"})
    r = c.post(f"/leases/{lease}/snapshots")
    assert r.status in (409, 410) and r.code in ("sandbox_lost", "lease_gone"), r


@pytest.mark.parametrize("kind", ["stall_after", "slow"])
def test_a_kill_between_intent_and_answer_leaves_nothing(standin, server, c, kind):
    lease = c.lease()
    standin.order({"op": "snapshot", "kind": kind, "seconds": 1})
    before = standin.state()["counts"].get("snapshot", 0)
    ask(c, lease)
    wait_until(lambda: standin.state()["counts"].get("snapshot", 0) > before, 20, "the provider was asked")
    if kind == "stall_after":
        wait_until(lambda: standin.state()["snapshots"], 20, "it is there")
    server.kill9()
    server.start()
    c = server.client()
    if kind == "slow":  # it comes to be when nobody thinks of it any more
        wait_until(lambda: [e for e in server.log_events() if e["event"] == "orphan_snapshot"], 20, "it was found")
    wait_until(lambda: not standin.state()["snapshots"] and not rows(server), 20, "nothing is left")
    assert c.get("/snapshots").json()["items"] == [] and c.exec(lease, "echo on")["stdout"] == "on\n"


def test_what_is_not_ours_is_not_touched(standin, server, c):
    lease = c.lease()
    sandbox = c.get("/leases/" + lease).json()["sandbox_id"]
    theirs = [None, "theirs", "sandgate-0000-snap_01m8m59j7es6bqx397pkhqsm1j0b6ts2"]
    for name in theirs:
        body = json.dumps({"name": name} if name else {}).encode()
        urllib.request.urlopen(urllib.request.Request(f"{standin.url}/sandboxes/{sandbox}/snapshots", body, {"X-API-Key": standin.key}), timeout=30)
    names = sorted(standin.state()["snapshots"])
    seen = standin.state()["counts"].get("snapshots", 0)
    wait_until(lambda: standin.state()["counts"].get("snapshots", 0) >= seen + 3, 20, "it was looked at")
    assert sorted(standin.state()["snapshots"]) == names and len(names) == 3
    for name in names:
        urllib.request.urlopen(urllib.request.Request(f"{standin.url}/templates/{urllib.request.quote(name, safe='')}", method="DELETE",
                                                      headers={"X-API-Key": standin.key}), timeout=30)


def test_commands_go_on_or_say_that_they_were_lost(standin, c):
    lease = c.lease()
    for kind in ("slow", "disconnect"):
        answers = []
        t = threading.Thread(target=lambda: answers.append(c.exec_response(lease, "echo begun > b; while [ ! -e go ]; do sleep 0.02; done; echo done")))
        t.start()
        wait_until(lambda: c.get(f"/leases/{lease}/files?path=b").status == 200, 20, "it runs")
        standin.order({"op": "snapshot", "kind": kind, "seconds": 0.1})
        snapshot(c, lease)
        c.write(lease, "go", b"")
        t.join(30)
        if kind == "slow":
            assert answers[0].status == 200 and answers[0].json()["stdout"] == "done\n", answers
        else:
            assert answers[0].status == 502, answers
        c.exec(lease, "rm -f go b")


def test_what_cannot_begin_is_refused(standin, c):
    kept = snapshot(c, c.lease())
    r = c.post("/leases", {"manifest": {"snapshot": kept["id"]}, "image": "base"})
    assert r.status == 422 and r.code == "not_supported" and r.json()["field"] == "image", r
    name, = standin.state()["snapshots"]
    urllib.request.urlopen(urllib.request.Request(f"{standin.url}/templates/{urllib.request.quote(name, safe='')}", method="DELETE",
                                                  headers={"X-API-Key": standin.key}), timeout=30)
    r = c.post("/leases", {"manifest": {"snapshot": kept["id"]}})
    assert r.status == 422 and r.code == "snapshot_not_found" and r.json()["field"] == "manifest.snapshot", r
    assert c.delete("/snapshots/" + kept["id"]).status == 204


FAULTS = [{"kind": "drop"}, {"kind": "drop_after"}, {"kind": "stall_after"}, {"kind": "garbage"}, {"kind": "status", "status": 500}, {"kind": "slow", "seconds": 0.2}]


def caller(server, account, rnd):
    """One lease, a snapshot of it, and an end of another; what was answered is on record."""
    c = server.client()
    try:
        kept, gone = account["kept"], account["gone"]
        source = rnd.choice(sorted(kept)) if kept and rnd.random() < 0.5 else None
        r = c.post("/leases", {"timeout_sec": 600, **({"manifest": {"snapshot": source}} if source else {})}, timeout=15)
        assert r.status in (201, 502, 503, 504) or source in gone or source not in kept, r
        if r.status == 201:
            taken = c.post(f"/leases/{r.json()['id']}/snapshots", timeout=rnd.choice([0.3, 15]))
            if taken.status == 201:
                kept.add(taken.json()["id"])
            c.delete(f"/leases/{r.json()['id']}", timeout=15)
        victim = rnd.choice(sorted(kept)) if kept and rnd.random() < 0.4 else None
        if victim:
            kept.discard(victim)
            gone.add(victim)
            if c.delete("/snapshots/" + victim, timeout=rnd.choice([0.3, 15])).status in (202, 204):
                account["ended"].add(victim)
    except (OSError, http.client.HTTPException):
        pass  # an answer that was cut by the kill, or not waited for
    finally:
        c.close()


def test_chaos(standin, server, c, soak):
    """Kills of the server and faults of the provider by chance: afterwards it holds what is listed here, which is what was answered and not ended."""
    rounds = int(os.environ.get("SANDGATE_CHAOS_ROUNDS") or (100 if soak else 2))
    seed = int(os.environ.get("SANDGATE_CHAOS_SEED", "20261129"))
    rnd, account = random.Random(seed), {"kept": set(), "gone": set(), "ended": set()}
    for n in range(rounds):
        standin.order(*[{"op": rnd.choice(["snapshot", "snapshots", "unsnapshot", "create"]), **rnd.choice(FAULTS)} for _ in range(rnd.randint(0, 3))])
        threads = [threading.Thread(target=caller, args=(server, account, random.Random(f"{seed}.{n}.{i}"))) for i in range(3)]
        for t in threads:
            t.start()
        if rnd.random() < 0.6:
            time.sleep(rnd.random() * 0.8)
            server.kill9()
            for t in threads:
                t.join()
            server.start()
        for t in threads:
            t.join()
    standin.order()
    c = server.client()

    def settled():
        """Also what was asked for by a server that was killed has been found."""
        there = {n.rsplit("-", 1)[1].split(":")[0] for n in standin.state()["snapshots"]}
        listed = {k["id"] for k in c.get("/snapshots?limit=1000").json()["items"]}
        return standin.state()["under_way"] == 0 and there == listed == {r[0] for r in rows(server)} and (listed,)
    try:
        listed, = wait_until(settled, 40)
    except AssertionError:
        raise AssertionError((seed, rounds, standin.state()["snapshots"], rows(server)))
    assert account["kept"] <= listed and not account["ended"] & listed, (seed, account, listed)
    for kept in sorted(listed & account["kept"])[:2]:
        lease = c.lease(manifest={"snapshot": kept})
        assert c.exec(lease, "echo on")["stdout"] == "on\n"
        c.terminate(lease)
