"""What happens to slots that die, and what operators see of slots and do to them."""
import json
import os
import re
import signal
import subprocess
import time

import pytest

from conftest import account, one_kind
from harness import BIN, SLOW, Client, Process, Server, processes_below, wait_until
from test_pool_blackbox import BB, BLACKBOX


def slots(client, pool="default"):
    r = client.get(f"/slots/{pool}")
    assert r.status == 200, r
    return r.json()


def slot(client, name):
    return next(s for s in slots(client, name.rsplit("-", 1)[0])["items"] if s["slot"] == name)


def events(s, name):
    return [e for e in s.log_events() if e.get("event") == "slot_" + name]


def counted(client, event, pool="default"):
    text = client.get("/metrics").body.decode()
    return int(re.search(rf'^sandgate_slot_events_total{{pool="{pool}",event="{event}"}} (\d+)$', text, re.M)[1])


def inits(s):
    return [p for p in processes_below(s.pid()) if p.is_init()]


@pytest.fixture(scope="module", params=one_kind())
def server(request):
    config = {"local_bwrap": {"size": 2}, "local_pools": [dict(BLACKBOX, name="bb", size=1)]}
    with Server(config, user=account(request.param)) as s:
        yield s


@pytest.fixture
def full(server):
    """The client of a server whose slots are all READY."""
    server.wait_slots(2)
    server.wait_slots(1, "bb")
    yield server.client()


# ---- deaths ----

def init_of(s, client, lease):
    """The first process of a lease's sandbox: above a command of it."""
    mark = f"mark-{lease}"
    run = client.post(f"/leases/{lease}/exec", {"command": ["bash", "-c", f"exec -a {mark} sleep 600"], "detach": True, "exec_id": "mark"})
    assert run.status == 202, run

    def look():
        below = {p.pid: p for p in processes_below(s.pid())}
        for p in below.values():
            try:
                with open(f"/proc/{p.pid}/cmdline", "rb") as f:
                    if mark.encode() not in f.read():
                        continue
            except OSError:
                continue
            while p is not None and not p.is_init():
                p = below.get(p.parent)
            return p
        return None
    return wait_until(look, what="the command to run")


def test_a_waiting_slot_that_dies_is_rebuilt_at_once(server, full):
    before = {r["slot"]: r["generation"] for r in slots(full)["items"]}
    died, logged = counted(full, "died") + counted(full, "died", "bb"), len(events(server, "died"))
    victim = inits(server)[0]
    os.kill(victim.pid, signal.SIGKILL)
    wait_until(lambda: counted(full, "died") + counted(full, "died", "bb") == died + 1, what="the death to be counted")
    server.wait_slots(2)
    server.wait_slots(1, "bb")
    e = wait_until(lambda: events(server, "died")[logged:], what="a log line")[0]
    row = slot(full, e["slot"])
    assert e["level"] == "warn" and e["reason"] == "agent_gone" and e["generation"] == row["generation"] - 1, (e, row)
    assert row["state"] == "READY" and row["last_error"], row
    if e["slot"] in before:
        assert row["generation"] == before[e["slot"]] + 1


def test_a_leased_slot_that_dies_is_lost_with_a_reason(server, full):
    c = full
    id = c.lease()
    name = c.get(f"/leases/{id}").json()["metadata"]["slot"]
    init = init_of(server, c, id)
    lost = counted(c, "lost")
    stream = server.connect()
    body = json.dumps({"command": "echo begun; sleep 600"}).encode()
    stream.sendall(b"POST /leases/%s/exec HTTP/1.1\r\nHost: x\r\nAccept: application/x-ndjson\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
                   % (id.encode(), len(body), body))
    seen = b""
    while b"begun" not in seen:
        seen += stream.recv(65536)
    os.kill(init.pid, signal.SIGKILL)
    stream.settimeout(20 * SLOW)
    while b"0\r\n\r\n" not in seen:
        piece = stream.recv(65536)
        assert piece, seen
        seen += piece
    stream.close()
    last = json.loads([l for l in seen.splitlines() if l.startswith(b'{"seq"')][-1])
    assert last["type"] == "error" and last["code"] == "sandbox_lost", last
    lease = wait_until(lambda: next((l for l in [c.get(f"/leases/{id}").json()] if l["state"] == "lost"), None), what="lost")
    assert lease["reason"].startswith("agent_gone: "), lease
    r = c.get(f"/leases/{id}/exec/mark")
    assert r.status == 410 and r.code == "sandbox_lost", r
    r = c.exec_response(id, "true")
    assert r.status == 410 and r.code == "sandbox_lost" and "agent_gone" in r.json()["detail"], r
    e = [e for e in events(server, "lost") if e["lease_id"] == id]
    assert len(e) == 1 and e[0]["slot"] == name and e[0]["reason"] == "agent_gone" and e[0]["code"] == "sandbox_lost", e
    assert counted(c, "lost") == lost + 1
    assert c.delete(f"/leases/{id}").status == 200
    server.wait_slots(2)


def test_an_agent_that_hangs_is_found_by_the_checks():
    with Server({"local_bwrap": {"size": 1, "health_interval": "100ms"}}) as s:
        c = s.client()
        s.wait_slots(1)
        os.kill(inits(s)[0].pid, signal.SIGSTOP)
        row = wait_until(lambda: next((r for r in slots(c)["items"] if r["generation"] == 2 and r["state"] == "READY"), None), 40, "a rebuild")
        assert row["last_error"], row
        id = c.lease()
        os.kill(inits(s)[0].pid, signal.SIGSTOP)  # nobody uses the lease: its owner is told all the same
        wait_until(lambda: c.get(f"/leases/{id}").json()["state"] == "lost", 40, "the lease lost")


def test_a_slot_that_dies_again_and_again_is_given_time():
    with Server({"local_bwrap": {"size": 1}}) as s:
        c = s.client()
        for i in range(4):
            s.wait_slots(1)
            os.kill(inits(s)[0].pid, signal.SIGKILL)
            wait_until(lambda: counted(c, "died") == i + 1, what="the death")
        row = wait_until(lambda: next((r for r in slots(c)["items"] if r["state"] == "FAILED"), None), what="FAILED")
        assert row["last_error"] and len(events(s, "failed")) == 1 and events(s, "failed")[0]["level"] == "error"
        r = c.post("/leases", {})
        assert r.status == 503 and r.code == "unavailable" and r.header("Retry-After"), r
        assert c.get("/readyz").status == 503
        # An operator need not wait for the next attempt; otherwise it comes by itself.
        assert c.post("/slots/default/recycle").status == 200
        s.wait_slots(1)
        wait_until(lambda: events(s, "recovered"), what="a log line")
        assert c.get("/readyz").status == 200 and c.exec(c.lease(), "true")["returncode"] == 0


# ---- operators ----

def test_a_drained_slot_gets_no_lease_and_the_others_do(server, full):
    c = full
    r = c.post("/slots/default/drain?slot=default-0")
    assert r.status == 200 and [s["draining"] for s in r.json()["items"]] == [True, False] and not r.json()["draining"] and r.json()["ready"] == 1, r
    for _ in range(3):
        id = c.lease(acquire_timeout=30)
        assert c.get(f"/leases/{id}").json()["metadata"]["slot"] == "default-1"
        c.terminate(id)
    id = c.lease(acquire_timeout=30)
    r = c.post("/leases", {"acquire_timeout": 0})
    assert r.status == 503 and r.code == "acquire_timeout", r
    assert slot(c, "default-0")["state"] == "READY"
    assert c.post("/slots/default/undrain?slot=default-0").json()["items"][0]["draining"] is False
    other = c.lease(acquire_timeout=30)
    assert c.get(f"/leases/{other}").json()["metadata"]["slot"] == "default-0"
    # A leased one is drained too: its lease goes on, the slot is kept back afterwards.
    c.post("/slots/default/drain?slot=default-0")
    assert c.exec(other, "echo on")["stdout"] == "on\n"
    c.terminate(other)
    wait_until(lambda: slot(c, "default-0")["state"] == "READY", what="READY")
    assert slots(c)["ready"] == 0
    # All of them one by one is the pool; the pool's undrain is all of them.
    c.post("/slots/default/drain?slot=default-1")
    r = c.post("/leases", {})
    assert r.status == 503 and r.code == "unavailable" and r.json()["reason"] == "pool_draining", r
    c.terminate(id)
    assert [s["draining"] for s in c.post("/slots/default/undrain").json()["items"]] == [False, False]
    server.wait_slots(2)


def test_whoever_waits_for_the_last_slot_is_told_that_it_is_drained():
    import concurrent.futures
    with Server({"local_bwrap": {"size": 1}}) as s:
        c = s.client()
        id = c.lease()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(Client(s).post, "/leases", {})
            wait_until(lambda: slots(c)["waiters"] == 1, what="a waiter")
            c.post("/slots/default/drain?slot=default-0")
            r = waiting.result()
        assert r.status == 503 and r.json()["reason"] == "pool_draining", r
        assert c.exec(id, "echo on")["stdout"] == "on\n"


def test_soft_reset_leaves_leases_alone_and_hard_takes_them(server, full):
    c = full
    id = c.lease()
    mine = c.get(f"/leases/{id}").json()["metadata"]["slot"]
    other = next(s["slot"] for s in slots(c)["items"] if s["slot"] != mine)
    generation = slot(c, other)["generation"]
    assert c.post("/slots/default/recycle").status == 200
    wait_until(lambda: slot(c, other)["generation"] == generation + 1 and slot(c, other)["state"] == "READY", what="a rebuild")
    assert c.exec(id, "echo on")["stdout"] == "on\n" and slot(c, mine)["lease"] == id
    r = c.post(f"/slots/default/recycle?slot={mine}")
    assert r.status == 409 and r.code == "conflict", r
    r = c.post(f"/slots/default/recycle?slot={mine}&reset=hard")
    assert r.status == 200, r
    lease = wait_until(lambda: next((l for l in [c.get(f"/leases/{id}").json()] if l["state"] == "lost"), None), what="lost")
    assert lease["reason"].startswith("slot_recycled: ") and "operator" in lease["reason"], lease
    server.wait_slots(2)
    assert slot(c, other)["generation"] == generation + 1
    # Of the whole pool.
    ids = [c.lease(acquire_timeout=30) for _ in range(2)]
    assert c.post("/slots/default/recycle?reset=hard").status == 200
    for id in ids:
        wait_until(lambda: c.get(f"/leases/{id}").json()["state"] == "lost", what="lost")
    server.wait_slots(2)


def test_an_old_reset_does_not_touch_a_newer_generation(server, full):
    """Ends of one lease that come late, and often, while the slot serves the next one."""
    c = full
    c.post("/slots/default/drain?slot=default-1")
    old = c.lease()
    c.terminate(old)
    new = c.lease(acquire_timeout=30)
    m = c.get(f"/leases/{new}").json()["metadata"]
    assert m["slot"] == "default-0"
    c.write(new, "f", b"mine")
    for _ in range(20):
        assert c.delete(f"/leases/{old}").status == 200
        assert c.exec_response(old, "true").status == 410
    assert c.read(new, "f").body == b"mine" and slot(c, "default-0")["generation"] == m["generation"]
    c.terminate(new)
    c.post("/slots/default/undrain")


@pytest.mark.parametrize("method,path,status", [
    ("POST", "/slots/default/drain?slot=default-9", 404), ("POST", "/slots/default/undrain?slot=bb-0", 404),
    ("POST", "/slots/nowhere/drain", 404), ("POST", "/slots/default/recycle?slot=default-9", 404),
    ("POST", "/slots/default/recycle?reset=medium", 400), ("POST", "/slots/default/drain?slots=default-0", 400),
    ("GET", "/slots/nowhere", 404), ("GET", "/slots/nowhere/default-0/log", 404), ("GET", "/slots/bb/bb-7/log", 404),
    ("GET", "/slots/default/default-0/log", 422), ("GET", "/slots/bb/bb-0/log?bytes=-1", 400), ("GET", "/slots/bb/bb-0/log?bytes=x", 400),
])
def test_what_is_not_there_is_refused(server, full, method, path, status):
    r = full.request(method, path)
    assert r.status == status, r


def test_the_log_of_a_service(server, full):
    c = full
    r = c.get("/slots/bb/bb-0/log")
    assert r.status == 200, r
    v = r.json()
    assert v["pool"] == "bb" and v["slot"] == "bb-0" and v["encoding"] == "utf-8" and v["bytes_total"] >= len(v["data"])
    assert re.search(r"\[sandgate\] generation \d+: the service starts\nserving bb-0 8000", v["data"]), v
    assert c.get("/slots/bb/bb-0/log?bytes=5").json()["data"] == v["data"][-5:]
    assert c.get("/slots/bb/bb-0/log?bytes=0").json()["data"] == ""
    # Why it died can be read when the next one runs.
    id = c.lease(local_pool="bb", **BB)
    try:
        c.get(f"/leases/{id}/proxy/8000/exit")
    except Exception:  # noqa: BLE001: its connection breaks
        c.close()
    wait_until(lambda: c.get(f"/leases/{id}").json()["state"] == "lost", what="lost")
    server.wait_slots(1, "bb")
    assert "the service ended with exit code 3\n" in c.get("/slots/bb/bb-0/log").json()["data"]


def test_the_log_is_a_ring_and_bytes_are_bytes():
    noisy = ["sh", "-c", "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done; printf 'end\\377\\n'; "
             "exec python3 -m http.server {port} --bind 127.0.0.1 2>/dev/null"]
    with Server({"local_bwrap": dict(BLACKBOX, size=1, service_command=noisy, service_health_path="/")}) as s:
        c = s.client()
        s.wait_slots(1)
        v = wait_until(lambda: next((v for v in [c.get("/slots/default/default-0/log?bytes=65536").json()] if v["encoding"] == "base64"), None), what="the end")
        import base64
        data = base64.b64decode(v["data"])
        whole = b"".join(b"line %d\n" % i for i in range(20000)) + b"end\xff\n"
        assert len(data) == 65536 and whole.endswith(data) and v["bytes_total"] > len(whole)
        out = subprocess.run([BIN, "slots", "log", "--url", f"http://127.0.0.1:{s.port}", "default", "default-0"], capture_output=True, check=True)
        assert out.stdout.endswith(b"line 19999\nend?\n")


def test_command_line(server, full):
    def run(*args, code=0):
        p = subprocess.run([BIN, "slots", *args, "--url", f"http://127.0.0.1:{server.port}"], capture_output=True, text=True)
        assert p.returncode == code, p
        return p.stdout if code == 0 else p.stderr

    assert re.search(r"^bb +blackbox +1 +1 ", run("status"), re.M)
    assert re.search(r"^default-0 +READY +true ", run("drain", "default", "--slot", "default-0"), re.M)
    assert json.loads(run("undrain", "default", "--slot", "default-0", "--json"))["items"][0]["draining"] is False
    id = full.lease()
    name = full.get(f"/leases/{id}").json()["metadata"]["slot"]
    assert "has a lease" in run("recycle", "default", "--slot", name, code=1)
    run("recycle", "default", "--slot", name, "--hard")
    wait_until(lambda: full.get(f"/leases/{id}").json()["state"] == "lost", what="lost")
    server.wait_slots(2)
    run("recycle", "default")
    server.wait_slots(2)
    run("recycle", "bb", "--hard")
    assert "serving bb-0 8000" in run("log", "bb", "bb-0")
    assert "no slot" in run("log", "bb", "bb-1", code=1)
    assert json.loads(run("status", "default", "--json"))["size"] == 2


def test_figures(server, full):
    text = full.get("/metrics").body.decode()
    for name, kind in (("sandgate_slots", "gauge"), ("sandgate_slot_waiters", "gauge"), ("sandgate_slot_events_total", "counter")):
        assert f"# TYPE {name} {kind}\n" in text and f'{name}{{pool="bb"' in text
    states = dict(re.findall(r'^sandgate_slots{pool="default",state="(\w+)"} (\d+)$', text, re.M))
    assert set(states) == {"EMPTY", "STARTING", "READY", "LEASED", "RELEASING", "RESETTING", "RESTARTING", "FAILED", "DEAD", "LOST"}
    assert sum(map(int, states.values())) == 2
    before = counted(full, "released")
    full.terminate(full.lease())
    assert counted(full, "released") == before + 1 and counted(full, "built") > 0
