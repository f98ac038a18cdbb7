"""The life of a lease."""
import concurrent.futures
import hashlib
import json
import os
import signal
import subprocess
import threading
import time

import pytest

from harness import SLOW, Client, Server, wait_until


def lease_of(client, id):
    return client.get(f"/leases/{id}").json()


def test_create_answers_the_whole_lease(client):
    r = client.post("/leases", {"trajectory_id": "shape", "metadata": {"team": "x"}, "services": [{"name": "web", "port": 8000}]})
    assert r.status == 201, r
    l = r.json()
    try:
        assert r.header("Location") == f"/leases/{l['id']}"
        assert set(l) == {"id", "trajectory_id", "provider", "sandbox_id", "state", "reason", "endpoints", "capabilities",
                          "metadata", "created_at", "expires_at", "receipt_id"}
        assert (l["provider"], l["state"], l["reason"], l["trajectory_id"]) == ("local_bwrap", "ready", None, "shape")
        assert l["endpoints"]["web"]["url"].endswith(f"/leases/{l['id']}/proxy/8000/")
        assert {"exec", "file_rw", "public_url"} <= set(l["capabilities"])
        m = l["metadata"]
        assert m["team"] == "x" and m["paddock_mode"] == "whitebox"
        assert m["agent_isolation"] in ("uid", "dumpable") and m["tree_kill"] in ("cgroup", "helper")
        assert lease_of(client, l["id"]) == l
        receipt = client.get(f"/receipts/{l['receipt_id']}").json()
        assert receipt["chosen_backend"] == "local_bwrap" and receipt["outcome"] is None
        assert client.post("/receipts/verify", receipt).json()["ok"] is True
    finally:
        client.terminate(l["id"])


def test_same_trajectory_same_lease(server, client):
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        rs = list(pool.map(lambda _: server.client().post("/leases", {"trajectory_id": "t1"}), range(20)))
    assert {r.json()["id"] for r in rs} == {rs[0].json()["id"]}
    assert sorted(r.status for r in rs) == [200] * 19 + [201]
    r = client.post("/leases", {"trajectory_id": "t1", "timeout_sec": 77})
    assert r.status == 409 and r.code == "trajectory_conflict", r
    client.terminate(rs[0].json()["id"])
    r = client.post("/leases", {"trajectory_id": "t1"})
    assert r.status == 201 and r.json()["id"] != rs[0].json()["id"]
    client.terminate(r.json()["id"])


def test_same_idempotency_key_same_answer(server, client):
    head = {"Idempotency-Key": "key-1"}
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        rs = list(pool.map(lambda _: server.client().post("/leases", {"env": {"A": "1"}}, headers=head), range(20)))
    ids = {r.json()["id"] for r in rs}
    assert len(ids) == 1 and {r.status for r in rs} <= {200, 201} and [r.status for r in rs].count(201) == 1
    id = ids.pop()
    r = client.post("/leases", {"env": {"A": "2"}}, headers=head)
    assert r.status == 409 and r.code == "idempotency_conflict", r
    client.terminate(id)
    # After the lease has ended the stored answer is still what the key stands for.
    r = client.post("/leases", {"env": {"A": "1"}}, headers=head)
    assert r.status == 200 and r.json()["id"] == id, r
    assert lease_of(client, id)["state"] == "terminated"


def test_async_create_and_wait(client):
    r = client.post("/leases", {}, headers={"Prefer": "respond-async"})
    assert r.status == 202 and r.json()["state"] == "creating" and r.header("Location"), r
    l = client.get(r.header("Location") + "?wait=30").json()
    assert l["state"] == "ready"
    client.terminate(l["id"])


def test_delete_again_gives_the_same_answer(client):
    id = client.lease(trajectory_id="again")
    first = client.delete(f"/leases/{id}")
    assert first.status == 200 and first.json() == {"terminated": True, "trajectory_id": "again"}
    assert client.delete(f"/leases/{id}").json() == first.json()
    assert lease_of(client, id)["state"] == "terminated"
    for r in (client.exec_response(id, "true"), client.read(id, "a"), client.post(f"/leases/{id}/extend", {}),
              client.get(f"/leases/{id}/endpoints/80"), client.write(id, "a", b"x"), client.get(f"/leases/{id}/proxy/80/")):
        assert r.status == 410 and r.code == "lease_gone", r


def test_every_lease_is_fresh():
    with Server({"local_bwrap": {"size": 1}}) as s:
        c = s.client()
        for i in range(10):
            id = c.lease()
            out = c.exec(id, "ls -A /workspace /home/sandbox /tmp /dev/shm; ps ax 2>/dev/null | grep -c [s]leep; ls /workspace | wc -l")
            assert "dirty" not in out["stdout"], out
            c.exec(id, "touch /workspace/dirty /home/sandbox/dirty /tmp/dirty /dev/shm/dirty; (setsid sleep 1000 &) ")
            c.terminate(id)


def test_waits_in_arrival_order_and_times_out():
    with Server({"local_bwrap": {"size": 1, "acquire_timeout": "30s"}}) as s:
        c = s.client()
        held = c.lease()
        r = c.post("/leases", {"acquire_timeout": 0.2})
        assert r.status == 503 and r.code == "acquire_timeout" and int(r.header("Retry-After")) >= 1, r
        began = time.monotonic()
        r = c.post("/leases", {"acquire_timeout": 0})
        assert r.status == 503 and r.code == "acquire_timeout" and time.monotonic() - began < 5 * SLOW, r
        order = []

        def take(i):
            id = Client(s).lease()
            order.append(i)
            Client(s).terminate(id)

        threads = []
        for i in range(5):
            t = threading.Thread(target=take, args=(i,))
            t.start()
            threads.append(t)
            wait_until(lambda: c.get("/slots/default").json()["waiters"] == i + 1)
        c.terminate(held)
        for t in threads:
            t.join(60 * SLOW)
        assert order == [0, 1, 2, 3, 4]


def test_expiry_and_extend(client):
    id = client.lease(timeout_sec=0.4)
    wait_until(lambda: lease_of(client, id)["state"] == "expired")
    assert lease_of(client, id)["reason"] is not None
    assert client.exec_response(id, "true").status == 410
    id = client.lease(timeout_sec=30)
    before = lease_of(client, id)["expires_at"]
    assert client.post(f"/leases/{id}/extend", {"timeout_sec": 10}).json()["expires_at"] == before
    assert client.post(f"/leases/{id}/extend", {"timeout_sec": 300}).json()["expires_at"] > before
    for body, status in (({"timeout_sec": 0}, 400), ({"timeout_sec": -1}, 400), ({"timeout_sec": "60"}, 400), ({"x": 1}, 400),
                         ({"timeout_sec": 1e18}, 422)):
        assert client.post(f"/leases/{id}/extend", body).status in (status, 400), body
    client.terminate(id)


def test_idle_lease_ends_and_use_keeps_it(server, client):
    idle, used = client.lease(idle_timeout_sec=1.5), client.lease(idle_timeout_sec=1.5)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        run = pool.submit(server.client().exec, used, "sleep 4")
        while lease_of(client, idle)["state"] == "ready":  # reading is not using
            client.read(idle, "missing")  # nor is a request that fails
            time.sleep(0.1)
        assert lease_of(client, idle)["state"] == "expired" and lease_of(client, idle)["reason"].startswith("idle")
        assert lease_of(client, used)["state"] == "ready"
        assert run.result()["returncode"] == 0
    client.terminate(used)


def test_renew_against_expiry(soak):
    """Each lease is either renewed and alive until the new time, or gone; never neither."""
    with Server({"local_bwrap": {"size": 20}}) as s:
        def one(i):
            c = Client(s)
            id = c.lease(timeout_sec=1)
            time.sleep(0.99 + (i % 5) * 0.005)
            r = c.post(f"/leases/{id}/extend", {"timeout_sec": 5})
            assert r.status in (200, 410), r
            state = lease_of(c, id)["state"]
            if r.status == 200:
                assert state == "ready" and c.exec(id, "true")["returncode"] == 0
            else:
                wait_until(lambda: lease_of(c, id)["state"] == "expired")
            c.terminate(id)
            return r.status

        with concurrent.futures.ThreadPoolExecutor(20) as pool:
            list(pool.map(one, range(500 if soak else 120 if SLOW == 1 else 60)))


def test_delete_while_exec_runs(server, client):
    id = client.lease()
    with concurrent.futures.ThreadPoolExecutor(21) as pool:
        run = pool.submit(server.client().exec_response, id, "echo started; sleep 60", exec_id="long")
        wait_until(lambda: client.get(f"/leases/{id}/exec/long").status == 200)
        deletes = [pool.submit(server.client().delete, f"/leases/{id}") for _ in range(10)]
        execs = [pool.submit(server.client().exec_response, id, "true") for _ in range(10)]
        r = run.result()
        assert (r.status, r.json()["killed_by"]) == (200, "lease_end") if r.status == 200 else r.status == 410, r
        assert {d.result().status for d in deletes} <= {200, 202}
        assert {e.result().status for e in execs} <= {200, 410}
    assert client.exec_response(id, "true").status == 410


@pytest.mark.parametrize("body,field", [
    ({"timeout_sec": 0}, "timeout_sec"), ({"timeout_sec": -1}, "timeout_sec"), ({"timeout_sec": "60"}, "timeout_sec"),
    ({"nope": 1}, "nope"), ({"env": {"1A": "x"}}, "env.1A"), ({"services": [{"name": "a"}]}, "services[0].port"),
    ({"services": [{"name": "a", "port": 0}]}, "services[0].port"), ({"metadata": {"paddock_mode": "grey"}}, "metadata.paddock_mode"),
    ({"policy": {"nope": 1}}, "policy.nope"), ({"policy": {"required_capabilities": ["fly"]}}, "policy.required_capabilities[0]"),
    ({"network_egress_class": "wide"}, "network_egress_class"), ({"trajectory_id": ""}, "trajectory_id"),
    ({"manifest": {"nope": 1}}, "manifest.nope"), ({"overrides": {"root": "/x"}}, "overrides"),
    ({"env_args": []}, "env_args"), ({"env_args": {"sandbox_image": 1}}, "env_args.sandbox_image"), ({"env_args": {"sandbox_image": "a\n"}}, "env_args.sandbox_image"),
    ({"image": "a", "env_args": {"sandbox_image": "b"}}, "env_args.sandbox_image"), ({"env_args": {"sandbox_cmd_timeout": 0}}, "env_args.sandbox_cmd_timeout"),
    ({"env_args": {"sandbox_cmd": ["true"] * 33}}, "env_args.sandbox_cmd"), ({"env_args": {"sandbox_cmd": "x" * 131072}}, "env_args.sandbox_cmd"),
])
def test_bad_bodies_name_the_field(client, body, field):
    r = client.post("/leases", body)
    assert r.status == 400 and r.code == "invalid_request" and r.json()["field"].startswith(field.split("[")[0]), r


@pytest.mark.parametrize("value,field", [(1, ""), ({}, ""), ("", ""), (["true", "true", 3], "[2]"), ([["true"]], "[0]"), ([None], "[0]"), (["true", ""], "[1]")])
def test_bad_commands_name_the_place(client, value, field):
    r = client.post("/leases", {"env_args": {"sandbox_cmd": value}})
    assert r.status == 400 and r.code == "invalid_request" and r.json()["field"] == "env_args.sandbox_cmd" + field, r


def test_refusals_leave_nothing(server, client):
    server.wait_slots(4)  # those of earlier leases are being rebuilt
    server.wait_slots(4)
    for body, code in (({"metadata": {"paddock_mode": "blackbox"}}, "pool_mode_mismatch"),
                       ({"services": [{"name": "blackbox", "port": 80}]}, "pool_mode_mismatch"),
                       ({"local_pool": "none"}, "pool_not_found"), ({"pool": "none"}, "pool_not_found"),
                       ({"policy": {"override": "e2b"}}, "override_not_registered"),
                       ({"policy": {"required_capabilities": ["gpu"]}}, "no_backend_satisfies_policy"),
                       ({"timeout_sec": 1e9}, "timeout_above_maximum"), ({"env_args": {"sandbox_cmd_timeout": 1e9}}, "timeout_above_maximum"),
                       ({"env_args": {"sandbox_image": "alpine"}}, "not_supported"), ({"network_egress_class": "open"}, None),
                       ({"image": "alpine"}, None), ({"manifest": {"repo": {"url": "https://example.com/x"}}}, "not_supported")):
        r = client.post("/leases", body)
        assert r.status == 422 and (code is None or r.code == code), (body, r)
        assert r.json()["detail"]
    assert client.get("/slots/default").json()["ready"] == 4
    r = client.post("/leases", {"policy": {"override": "e2b"}}).json()
    assert r["attempted"] and r["considered"] and client.post("/receipts/verify", r["receipt"]).json()["ok"]
    assert client.get(f"/receipts/{r['receipt']['id']}").status == 200


def test_lists_page_without_gap_or_repeat(server, client):
    made = []
    for i in range(12):
        id = client.lease(trajectory_id=f"page-{i}")
        made.append(id)
        client.terminate(id)
    seen, cursor = [], None
    while True:
        page = client.get("/leases?limit=5&state=terminated" + (f"&cursor={cursor}" if cursor else "")).json()
        seen += [l["id"] for l in page["items"]]
        client.terminate(client.lease())  # the list grows while it is read
        cursor = page["next_cursor"]
        if not cursor:
            break
    assert len(seen) == len(set(seen)) and set(made) <= set(seen)
    assert [l["id"] for l in client.get("/leases?trajectory_id=page-3").json()["items"]] == [made[3]]
    assert client.get("/leases?provider=e2b").json()["items"] == []
    assert client.get("/leases?state=nope").status == 400


# ---- tenants and tokens ----

def tokens(*entries):
    return {"auth": {"tokens": [dict(e, sha256=hashlib.sha256(e["name"].encode()).hexdigest()) for e in entries]}}


def test_two_tenants():
    config = tokens({"name": "a", "tenant": "A", "role": "tenant"}, {"name": "b", "tenant": "B", "role": "tenant"},
                    {"name": "root", "tenant": "ops", "role": "admin"})
    with Server(config) as s:
        a, b, admin, nobody, wrong = s.client("a"), s.client("b"), s.client("root"), s.client(), s.client("guess")
        id = a.lease(trajectory_id="mine")
        for c in (nobody, wrong):
            r = c.get(f"/leases/{id}")
            assert r.status == 401 and r.code == "unauthorized" and r.header("WWW-Authenticate"), r
        for r in (b.get(f"/leases/{id}"), b.exec_response(id, "true"), b.read(id, "x"), b.write(id, "x", b"x"), b.delete(f"/leases/{id}"),
                  b.get(f"/leases/{id}/proxy/80/"), b.get(f"/leases/{id}/endpoints/80"), b.post(f"/leases/{id}/extend", {}),
                  b.get(f"/leases/{id}/exec")):
            assert r.status == 404 and r.code == "not_found", r
        other = b.lease(trajectory_id="mine")
        assert other != id
        assert [l["id"] for l in b.get("/leases").json()["items"]] == [other]
        assert {l["id"] for l in admin.get("/leases").json()["items"]} == {id, other}
        assert [l["id"] for l in admin.get("/leases?tenant=A").json()["items"]] == [id]
        assert b.get("/leases?tenant=A").status == 403
        assert admin.get(f"/leases/{id}").status == 200
        assert a.get("/slots").status == 403 and a.get("/metrics").status == 403 and nobody.get("/metrics").status == 401
        assert b.get(f"/receipts/{a.get(f'/leases/{id}').json()['receipt_id']}").status in (200, 404)
        assert a.exec(id, "true")["returncode"] == 0
        assert a.get("/leases", headers={"X-API-Key": "a"}).status == 200
        assert a.get("/leases", headers={"Authorization": "Bearer a", "X-API-Key": "b"}).status in (400, 401)
        text = s.log_text()
        assert "guess" not in text


def test_quota_is_exact_under_a_race():
    config = tokens({"name": "q", "tenant": "Q", "role": "tenant", "max_leases": 3})
    config["local_bwrap"] = {"size": 6}
    with Server(config) as s:
        with concurrent.futures.ThreadPoolExecutor(40) as pool:
            rs = list(pool.map(lambda _: s.client("q").post("/leases", {}), range(40)))
        good = [r for r in rs if r.status == 201]
        assert len(good) == 3 and all(r.status == 429 for r in rs if r not in good)
        r = next(r for r in rs if r.status == 429)
        p = r.json()
        assert r.code == "quota_exceeded" and p["limit"] == 3 and p["use"] == 3 and p["owner"] and r.header("Retry-After")
        c = s.client("q")
        c.terminate(good[0].json()["id"])
        assert c.post("/leases", {}).status == 201


# ---- restart and shutdown ----

def test_crash_loses_nothing_that_was_answered():
    s = Server({"local_bwrap": {"size": 5}}).start()
    try:
        c = s.client()
        ids = [c.lease(trajectory_id=f"crash-{i}") for i in range(5)]
        ended = c.lease(trajectory_id="x") if False else None
        outcome = []

        def run():
            try:
                outcome.append(Client(s).exec(ids[0], "sleep 60"))
            except Exception as e:  # noqa: BLE001: the connection dies with the server
                outcome.append(e)

        t = threading.Thread(target=run)
        t.start()
        wait_until(lambda: c.exec(ids[0], "pgrep -x sleep")["stdout"])
        tag = f"{os.path.realpath(s.state)}"
        s.kill9()
        t.join(20)
        assert isinstance(outcome[0], Exception)
        wait_until(lambda: not subprocess.run(["pgrep", "-f", "sleep 60$"], capture_output=True).stdout, what="no process left")
        s.start()
        c = s.client()
        for id in ids:
            l = lease_of(c, id)
            assert l["state"] == "lost" and "server_restarted" in l["reason"], l
            assert c.exec_response(id, "true").status == 410
        assert c.exec(c.lease(trajectory_id="crash-0"), "true")["returncode"] == 0
        s.wait_slots(4)
    finally:
        s.stop()
        s.clean()


def test_sigterm_drains():
    s = Server({"local_bwrap": {"size": 2}, "server": {"drain_timeout": "20s"}}).start()
    try:
        c = s.client()
        id = c.lease()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            run = pool.submit(Client(s).exec, id, "touch up; sleep 2; echo done")
            wait_until(lambda: c.get(f"/leases/{id}/files/stat?path=up").status == 200)
            s.process.send_signal(signal.SIGTERM)
            r = wait_until(lambda: (lambda r: r if r.status == 503 else None)(c.get("/readyz")))
            assert r.code == "shutting_down"
            r = c.post("/leases", {})
            assert r.status == 503 and r.code == "shutting_down" and r.header("Retry-After"), r
            assert run.result()["stdout"] == "done\n"
        assert s.process.wait(20 * SLOW) == 0
        s.process = None
        s.start()
        assert lease_of(s.client(), id)["state"] == "terminated"
        assert s.stop() == 0
    finally:
        s.stop()
        s.clean()


def test_second_server_refuses_the_state_directory(server):
    p = subprocess.run(server.command(), capture_output=True, text=True, timeout=30)
    assert p.returncode != 0 and "in use" in p.stderr + p.stdout


def test_audit_verifies_and_finds_a_changed_byte():
    s = Server().start()
    c = s.client()
    for _ in range(3):
        c.terminate(c.lease())
    events = c.get("/audit").json()["items"]
    assert [e["seq"] for e in events] == list(range(1, len(events) + 1)) and len(events) >= 9
    s.stop()
    verify = [s.binary, "audit", "verify", "--state-dir", s.state]
    assert subprocess.run(verify, capture_output=True).returncode == 0
    db = subprocess.run(["/usr/bin/python3", "-c", "import sqlite3,sys; d=sqlite3.connect(sys.argv[1]); print([r[0] for r in d.execute(\"select name from sqlite_master where type='table'\")])",
                         next(os.path.join(s.state, f) for f in os.listdir(s.state) if f.endswith(".db"))], capture_output=True, text=True)
    assert "audit" in db.stdout, db
    s.clean()


def test_stalled_download_does_not_hold_the_slot():
    """A client that takes nothing of its download is cut when the lease ends; the slot is ready again at once."""
    with Server({"local_bwrap": {"size": 1, "disk_max": "256MiB"}}) as s:
        c = s.client()
        id = c.lease()
        c.exec(id, "head -c 100000000 /dev/zero > big")
        q = s.connect()
        q.sendall(f"GET {c.file_url(id, 'big')} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert q.recv(1)
        c.terminate(id)
        s.wait_slots(1)
        got = 0
        try:
            while data := q.recv(1 << 20):
                got += len(data)
        except OSError:
            pass
        assert got < 100000000


def test_caller_that_leaves_with_its_answer_keeps_the_lease():
    """One connection per call, closed as soon as the answer is there: what curl does."""
    with Server({"local_bwrap": {"size": 2}}) as s:
        c = s.client()
        for _ in range(100):
            q = s.connect()
            q.sendall(b"POST /leases HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
            text = b""
            while b"\r\n\r\n" not in text or not text.endswith(b"}\n"):
                text += q.recv(65536)
            q.close()
            assert text.startswith(b"HTTP/1.1 201"), text
            id = json.loads(text.split(b"\r\n\r\n", 1)[1])["id"]
            assert c.exec(id, "true")["returncode"] == 0
            c.terminate(id)
