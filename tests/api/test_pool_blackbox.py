"""Blackbox pools: a service in every slot, ready before anybody gets it, and which mode a lease may ask for where."""
import concurrent.futures
import http.client
import http.server
import io
import json
import os
import re
import tarfile
import threading
import time

import pytest

from conftest import account, one_kind
from harness import ROOT, SLOW, Client, Server, wait_until

# Answers with what it was started with; does on request what services do when they go wrong.
SERVICE = r"""
import http.server, json, os, signal, sys, threading, time
well = True
class H(http.server.BaseHTTPRequestHandler):
    def log_message(self, *a): pass
    def do_GET(self):
        global well
        if self.path == "/sick": well = False
        if self.path == "/exit": os._exit(3)
        if self.path == "/kill": os.kill(os.getpid(), signal.SIGKILL)
        out = json.dumps({"argv": sys.argv[1:], "env": dict(os.environ), "uid": os.getuid(), "cwd": os.getcwd(), "pid": os.getpid()}).encode()
        self.send_response(200 if well or self.path != "/health" else 500)
        self.send_header("Content-Length", str(len(out))); self.end_headers(); self.wfile.write(out)
print("serving", *sys.argv[1:], flush=True)
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), H).serve_forever()
"""
BLACKBOX = {"mode": "blackbox", "service_port": 8000,
            "service_command": ["python3", "-c", SERVICE, "{slot}", "{port}", "{work}:{home}:{tmp}:{runtime}", "${port}", "{{port}", "{ port }", "{}"]}
BB = {"metadata": {"paddock_mode": "blackbox"}}


def slots(client, pool="default"):
    return client.get(f"/slots/{pool}").json()


def ask(client, lease, path="/", port=8000):
    return client.get(f"/leases/{lease}/proxy/{port}{path}")


@pytest.fixture(scope="module", params=one_kind())
def server(request):
    config = {"local_bwrap": {"size": 1}, "local_pools": [dict(BLACKBOX, name="bb", size=2)]}
    with Server(config, user=account(request.param)) as s:
        s.wait_slots(2, "bb")
        yield s


def test_the_service_is_there_with_the_lease(server):
    c = server.client()
    id = c.lease(local_pool="bb", **BB)
    lease = c.get(f"/leases/{id}").json()
    assert set(lease["endpoints"]) == {"blackbox"} and lease["endpoints"]["blackbox"]["url"].endswith(f"/leases/{id}/proxy/8000/")
    m = lease["metadata"]
    assert m["paddock_mode"] == "blackbox" and m["mode"] == "blackbox" and m["service"] == {"port": 8000, "health_path": "/health"}
    r = ask(c, id)
    assert r.status == 200, r
    said = r.json()
    assert said["argv"] == [m["slot"], "8000", "/workspace:/home/sandbox:/tmp:/run", "${port}", "{port}", "{ port }", "{}"], said
    assert said["env"]["PORT"] == "8000" and said["env"]["HOME"] == "/home/sandbox" and said["cwd"] == "/workspace" and said["uid"] == 1000
    assert not [k for k in said["env"] if k not in ("PATH", "HOME", "USER", "LANG", "TERM", "PORT", "PWD", "SHLVL", "_", "LC_CTYPE")]
    # It is the sandbox's: commands and files of the lease are beside it.
    assert c.exec(id, f"tr '\\0' ' ' < /proc/{said['pid']}/cmdline")["stdout"].startswith("python3 -c")
    c.terminate(id)


def test_every_lease_has_a_service_of_its_own(server):
    c, seen = server.client(), set()
    for _ in range(4):
        id = c.lease(local_pool="bb", acquire_timeout=60, **BB)
        ask(c, id, "/sick")  # what one lease did to it the next does not see
        m = c.get(f"/leases/{id}").json()["metadata"]
        seen.add((m["slot"], m["generation"]))
        c.terminate(id)
    assert len(seen) == 4


def test_services_are_waited_for_and_listed(server):
    c = server.client()
    web = {"name": "web", "port": 8000, "health_path": "/anything"}
    id = c.lease(local_pool="bb", services=[{"name": "blackbox", "port": 8000}, web])
    lease = c.get(f"/leases/{id}").json()
    assert set(lease["endpoints"]) == {"blackbox", "web"} and lease["metadata"]["paddock_mode"] == "blackbox"
    assert lease["endpoints"]["web"]["url"] == lease["endpoints"]["blackbox"]["url"]
    url = lease["endpoints"]["web"]
    assert c.get(url["url"].split(str(server.port), 1)[1], headers=url["headers"]).status == 200
    c.terminate(id)


def test_a_service_that_is_not_ready_leaves_nothing(server):
    c = server.client()
    server.wait_slots(2, "bb")
    other = [{"name": "other", "port": 9000, "health_path": "/up"}]
    began = time.monotonic()
    r = c.post("/leases", dict(BB, local_pool="bb", services=other, acquire_timeout=1))
    assert time.monotonic() - began < 10 * SLOW
    assert r.status == 503 and r.code == "acquire_timeout" and r.json()["reason"] == "service_not_ready", r
    assert r.json()["stage"] == "services" and '"other"' in r.json()["detail"] and "port 9000: GET /up: nothing listens" in r.json()["detail"], r
    server.wait_slots(2, "bb")
    assert [l for l in c.get("/leases?state=ready").json()["items"]] == []
    # A caller that asked with a name of its own can end the wait.
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(Client(server).post, "/leases", dict(BB, local_pool="bb", services=other, trajectory_id="waits", acquire_timeout=60))
        id = wait_until(lambda: [l["id"] for l in c.get("/leases?trajectory_id=waits&state=creating").json()["items"]], what="the lease")[0]
        c.delete(f"/leases/{id}")
        r = waiting.result()
    assert r.status == 410 and r.code == "lease_gone", r
    server.wait_slots(2, "bb")


def test_a_service_that_comes_later_is_waited_for(server):
    """The port that the lease names is one the service opens some time after its health path answers."""
    late = ("import http.server, os, sys, threading, time\n"
            "class H(http.server.BaseHTTPRequestHandler):\n"
            "  def do_GET(self): self.send_response(200); self.end_headers()\n"
            "  def log_message(self, *a): pass\n"
            "def later():\n"
            "  while not os.path.exists('/workspace/go'): time.sleep(0.02)\n"
            "  http.server.HTTPServer(('127.0.0.1', 9000), H).serve_forever()\n"
            "threading.Thread(target=later).start()\n"
            "def go(): time.sleep(0.5); open('/workspace/go', 'w').close()\n"
            "class First(H):\n"
            "  def do_GET(self): threading.Thread(target=go).start(); super().do_GET()\n"
            "http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), First).serve_forever()\n")
    with Server({"local_bwrap": dict(BLACKBOX, size=1, service_command=["python3", "-c", late, "{port}"])}) as s:
        c = s.client()
        id = c.lease(services=[{"name": "late", "port": 9000}], **BB)
        assert ask(c, id, port=9000).status == 200
        c.terminate(id)


# ---- modes: the combinations of the README, one by one ----

def combinations():
    """The README's table, so that what it says is what is tested."""
    with open(os.path.join(ROOT, "README.md")) as f:
        rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| `(\w+)` \| (.+?) \|$", f.read(), re.M)
    return [(mode, "blackbox" in services, pool, what) for mode, services, pool, what in rows]


@pytest.mark.parametrize("mode,service,pool,what", combinations())
def test_modes(server, mode, service, pool, what):
    c = server.client()
    before = {p: [s["generation"] for s in slots(c, p)["items"]] for p in ("default", "bb")}
    name = {"command_only": "default", "blackbox": "bb"}[pool]
    server.wait_slots(1, name)
    body = {"local_pool": name}
    if mode != "none":
        body["metadata"] = {"paddock_mode": mode}
    if service:
        body["services"] = [{"name": "blackbox", "port": 8000}]
    r = c.post("/leases", body)
    if "`pool_mode_mismatch`" in what:
        p = r.json()
        asked = "blackbox" if mode == "blackbox" or (mode == "none" and service) else "whitebox"
        setting = "local_bwrap.mode" if name == "default" else "local_pools[0].mode"
        assert r.status == 422 and r.code == "pool_mode_mismatch" and p["field"] == "metadata.paddock_mode", r
        assert (p["paddock_mode"], p["pool_mode"], p["setting"]) == (asked, pool, setting), p
        assert all(w in p["detail"] for w in (asked, pool, setting)), p
        assert c.get(f"/receipts/{p['receipt']['id']}").status == 200 if "receipt" in p else True
        now = {q: [s["generation"] for s in slots(c, q)["items"]] for q in before}
        assert all(a <= b for q in before for a, b in zip(before[q], now[q])) and all(s["lease"] is None for q in before for s in slots(c, q)["items"])
        return
    assert r.status == 201, r
    lease = r.json()
    assert lease["metadata"]["mode"] == pool and lease["metadata"]["paddock_mode"] == ("blackbox" if pool == "blackbox" else "whitebox")
    assert ("blackbox" in lease["endpoints"]) == (pool == "blackbox" or service)
    if pool == "blackbox":
        assert ask(c, lease["id"]).status == 200
    else:
        assert c.exec(lease["id"], "echo shell")["stdout"] == "shell\n"
    c.terminate(lease["id"])


def test_the_table_is_whole():
    rows = combinations()
    assert len(rows) == 12 and len({r[:3] for r in rows}) == 12


def test_the_name_blackbox_is_the_pools_own_service(server):
    r = server.client().post("/leases", {"local_pool": "bb", "services": [{"name": "blackbox", "port": 8001}]})
    assert r.status == 422 and r.code == "not_supported" and r.json()["field"] == "services[0].port" and "8000" in r.json()["detail"], r


def test_who_hangs_up_while_services_are_waited_for_has_no_lease(server):
    """Nobody could find it again."""
    c = server.client()
    server.wait_slots(2, "bb")
    body = json.dumps(dict(BB, local_pool="bb", services=[{"name": "other", "port": 9000}], acquire_timeout=600)).encode()
    with server.connect() as raw:
        raw.sendall(b"POST /leases HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        wait_until(lambda: slots(c, "bb")["leased"] == 1, what="the wait")
    server.wait_slots(2, "bb")
    assert [l for l in c.get("/leases?state=creating").json()["items"]] == []


def test_the_end_of_the_server_ends_the_wait():
    with Server({"local_bwrap": dict(BLACKBOX, size=1), "server": {"drain_timeout": "100ms"}}) as s:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(Client(s).post, "/leases", dict(BB, services=[{"name": "other", "port": 9000}], trajectory_id="t", acquire_timeout=600))
            wait_until(lambda: slots(s.client())["leased"] == 1, what="the wait")
            assert s.stop() == 0
            try:
                r = waiting.result()
                assert r.status == 503 and r.code == "shutting_down", r
            except (OSError, http.client.HTTPException):
                pass  # it was cut: nothing is known, and nothing is left


# ---- any backend ----

class Answers(http.server.BaseHTTPRequestHandler):
    """A service of ours that a scripted backend's port leads to: well at the fifth time."""
    asked = []

    def do_GET(self):
        self.asked.append(self.path)
        self.send_response(200 if len(self.asked) >= 5 else 503)
        self.end_headers()

    def log_message(self, *_):
        pass


def test_services_of_other_backends_are_waited_for_too():
    Answers.asked.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        script = {"ports": {"8000": web.server_port}}
        with Server({"backends": {"enabled": ["fake"]}, "fake": {"script": json.dumps(script)}}) as s:
            r = s.client().post("/leases", {"policy": {"override": "fake"}, "services": [{"name": "blackbox", "port": 8000, "health_path": "/well?x=1"}]})
            assert r.status == 201 and set(r.json()["endpoints"]) == {"blackbox"}, r
            assert Answers.asked == ["/well?x=1"] * 5
            # Shell and files: what the caller will start is not there yet.
            r = s.client().post("/leases", {"policy": {"override": "fake"}, "services": [{"name": "web", "port": 9000}]})
            assert r.status == 201 and set(r.json()["endpoints"]) == {"web"}, r
        web.shutdown()


@pytest.mark.parametrize("mode,service,waits", [("blackbox", True, True), (None, True, True), ("whitebox", True, False), ("whitebox", False, False),
                                                (None, False, False), ("blackbox", False, False)])
def test_modes_of_backends_without_pools(mode, service, waits):
    """Any backend but the local pools: with blackbox what was asked for answers before the lease does, with whitebox the caller starts it."""
    Answers.asked.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        script = {"ports": {"8000": web.server_port}}
        with Server({"backends": {"enabled": ["fake"]}, "fake": {"script": json.dumps(script)}}) as s:
            c = s.client()
            r = c.post("/leases", {**({"metadata": {"paddock_mode": mode}} if mode else {}), **({"services": [{"name": "blackbox", "port": 8000}]} if service else {})})
            assert r.status == 201, r
            lease = r.json()
            assert lease["metadata"]["paddock_mode"] == (mode or ("blackbox" if service else "whitebox"))
            assert len(Answers.asked) == (5 if waits else 0) and set(lease["endpoints"]) == ({"blackbox"} if service else set())
            assert c.write(lease["id"], "f", b"shell and files").status == 201 and c.read(lease["id"], "f").body == b"shell and files"
            assert c.exec(lease["id"], "echo shell")["returncode"] is not None
        web.shutdown()


def test_a_sandbox_that_dies_while_its_services_are_waited_for_is_nobodys_lease():
    script = {"create": [{"lost_after_ms": 300}], "ports": {}}
    with Server({"backends": {"enabled": ["fake"]}, "fake": {"script": json.dumps(script)}}) as s:
        c = s.client()
        body = dict(BB, policy={"override": "fake"}, services=[{"name": "web", "port": 8000}], trajectory_id="dies", acquire_timeout=600)
        r = c.post("/leases", body)
        assert r.status == 503 and r.code == "unavailable" and r.json()["reason"] == "sandbox_lost", r
        assert [l["state"] for l in c.get("/leases?trajectory_id=dies").json()["items"]] in (["lost"], ["failed"])


def test_many_slots_start_a_few_at_a_time():
    slow = SERVICE.replace("print(", "time.sleep(0.3)\nprint(", 1)
    with Server({"local_bwrap": dict(BLACKBOX, size=20, service_command=["python3", "-c", slow, "{slot}", "{port}"]),
                 "local_pools": [{"name": "plain", "size": 1}]}) as s:
        c, most = s.client(), 0
        while (at := slots(c))["ready"] < 20:
            most = max(most, sum(r["state"] == "STARTING" for r in at["items"]))
            assert slots(c, "plain")["items"][0]["state"] in ("EMPTY", "STARTING", "READY")
        assert 1 < most <= 12 and all(r["generation"] == 1 for r in at["items"]), most
        log = c.get("/slots/default/default-19/log").json()["data"]
        assert log.endswith("serving default-19 8000\n"), log


# ---- services that go wrong ----

@pytest.mark.parametrize("how,reason", [("/exit", "exit code 3"), ("/kill", "SIGKILL")])
def test_a_leased_service_that_ends_loses_its_lease(server, how, reason):
    c = server.client()
    id = c.lease(local_pool="bb", acquire_timeout=60, **BB)
    run = c.post(f"/leases/{id}/exec", {"command": "sleep 600", "detach": True, "exec_id": "long"})
    assert run.status == 202, run
    try:
        ask(c, id, how)
    except Exception:  # noqa: BLE001: its connection breaks
        c.close()
    lease = wait_until(lambda: next((l for l in [c.get(f"/leases/{id}").json()] if l["state"] == "lost"), None), what="lost")
    assert lease["reason"].startswith("service_ended: ") and reason in lease["reason"], lease["reason"]
    r = c.exec_response(id, "true")
    assert r.status == 410 and r.code == "sandbox_lost", r
    assert ask(c, id).status in (404, 410)
    server.wait_slots(2, "bb")


def test_what_a_service_that_ended_leaves_is_kept():
    with Server({"local_bwrap": dict(BLACKBOX, size=1, archive_enabled=True, archive_dirs=["work"])}) as s:
        c = s.client()
        id = c.lease(acquire_timeout=60, **BB)
        assert c.put(f"/leases/{id}/files?path=diary", b"until now").status == 201
        assert c.post(f"/leases/{id}/exec", {"command": "sleep 600", "detach": True, "exec_id": "long"}).status == 202
        try:
            ask(c, id, "/exit")
        except Exception:  # noqa: BLE001: its connection breaks
            c.close()
        wait_until(lambda: c.get(f"/leases/{id}").json()["state"] == "lost", what="lost")
        item = wait_until(lambda: next(iter(c.get("/archives").json()["items"]), None), what="its archive")
        assert item["lease_id"] == id and item["reason"].startswith("service_ended: "), item
        with tarfile.open(fileobj=io.BytesIO(c.get(f"/archives/{item['id']}").body)) as t:
            assert t.extractfile("work/diary").read() == b"until now"
        s.wait_slots(1)
        assert c.exec(c.lease(acquire_timeout=60, **BB), "ls /workspace; ps | grep -c [s]leep")["stdout"] == "0\n"


def test_a_waiting_service_that_ends_is_replaced():
    script = SERVICE.replace("print(", "threading.Timer(0.5, lambda: os.path.exists('/tmp/x') or (open('/tmp/x', 'w').close(), os._exit(7))).start()\nprint(", 1)
    with Server({"local_bwrap": dict(BLACKBOX, size=1, service_command=["python3", "-c", script, "{slot}", "{port}"])}) as s:
        c = s.client()
        row = wait_until(lambda: next((r for r in slots(c)["items"] if r["generation"] > 1 and r["last_error"]), None), 30, "a rebuild")
        assert "the service ended with exit code 7" in row["last_error"]


def test_a_service_that_is_sick_is_replaced():
    with Server({"local_bwrap": dict(BLACKBOX, size=1, health_interval="50ms", service_command=["python3", "-c", SERVICE.replace(
            'self.path == "/sick"', 'self.path == "/health" and time.time() - began > 1').replace("well = True", "well, began = True, time.time()"), "x", "{port}"])}) as s:
        c = s.client()
        row = wait_until(lambda: next((r for r in slots(c)["items"] if r["generation"] > 1), None), 40, "a rebuild")
        assert "is not well any more: port 8000: GET /health: the answer has status 500" in row["last_error"]


def test_a_service_that_cannot_start_says_why_and_harms_nobody():
    config = {"local_bwrap": {"size": 1}, "local_pools": [
        dict(BLACKBOX, name="broken", size=2, service_command=["sh", "-c", "echo no such luck >&2; exit 4"]),
        dict(BLACKBOX, name="missing", size=1, service_command=["/no/such/program"]),
        dict(BLACKBOX, name="deaf", size=1, service_command=["sleep", "1000"], service_start_timeout="300ms")]}
    with Server(config) as s:
        c = s.client()
        for pool, text in (("broken", "exit code 4 before it was ready: no such luck"), ("missing", "exit code 127"),
                           ("deaf", "did not become ready: port 8000: GET /health: nothing listens")):
            wait_until(lambda: all(r["state"] == "FAILED" for r in slots(c, pool)["items"]), 60, f"{pool} FAILED")
            assert all(text in r["last_error"] for r in slots(c, pool)["items"]), slots(c, pool)
            r = c.post("/leases", dict(BB, local_pool=pool))
            assert r.status == 503 and r.code == "unavailable" and text in r.json()["detail"], r
        assert c.get("/readyz").status == 200  # another pool works
        assert c.exec(c.lease(), "true")["returncode"] == 0


def test_a_loud_service_harms_nobody():
    loud = SERVICE.replace("print(", "threading.Thread(target=lambda: [print('x' * 1000) for _ in iter(int, 1)]).start()\nprint(", 1)
    with Server({"local_bwrap": dict(BLACKBOX, size=2, service_command=["python3", "-c", loud, "{slot}", "{port}"])}) as s:
        c = s.client()
        s.wait_slots(2)
        before = s.rss_kib()
        id = c.lease(**BB)
        for _ in range(20):
            assert ask(c, id).status == 200
        assert SLOW > 1 or s.rss_kib() - before < 20000
        c.terminate(id)
        s.wait_slots(2)


def test_config_says_what_is_wrong():
    for change, says in (({"service_command": []}, "blackbox needs service_command"), ({"service_port": 0}, "blackbox needs service_port"),
                         ({"service_command": ["x", "{prot}"]}, "argument 1: there is no placeholder {prot}"),
                         ({"service_health_path": "/a b"}, "service_health_path")):
        with pytest.raises(RuntimeError) as e:
            with Server({"local_bwrap": dict(BLACKBOX, **change)}):
                pass
        assert says in str(e.value), (change, e.value)
