"""How things end: leases under work, the server's own end, and what is left afterwards (nothing)."""
import concurrent.futures
import contextlib
import http.client
import http.server
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from harness import BIN, SLOW, Client, Server, wait_until
from sandboxed import start

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "raw"))
from rawhttp import Conn  # noqa: E402


def scripted(script, **config):
    return Server(dict(config, backends={"enabled": ["fake"]}, fake={"script": json.dumps(script)}))


@contextlib.contextmanager
def closing(s):
    """Whatever happens, the server is gone afterwards."""
    try:
        yield s
    finally:
        s.stop()
        s.clean()


def exits(s):
    """The exit code of a server that was told to stop."""
    code = s.process.wait(40 * SLOW)
    s.process = None
    return code


def running(mark):
    """Processes of this machine that have the mark in their command line."""
    found = []
    for p in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{p}/cmdline", "rb") as f:
                if mark.encode() in f.read() and int(p) != os.getpid():
                    found.append(int(p))
        except OSError:
            pass
    return found


def mark_of(s, what):
    return f"mark-{os.path.basename(s.dir)}-{what}"


def marked(mark):
    """A command that runs for ever under a name we can find from outside."""
    return f"cp /bin/sleep /tmp/{mark}; setsid /tmp/{mark} 6000 & /tmp/{mark} 6000"


@contextlib.contextmanager
def service(answer):
    """A server of our own that a scripted backend's port leads to. answer(handler) does a GET."""
    class H(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            answer(self)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), H) as s:
        s.daemon_threads = True
        threading.Thread(target=s.serve_forever, daemon=True).start()
        yield s.server_port
        s.shutdown()


# ---- a lease that ends under work ----

def test_delete_kills_what_runs_and_answers_everybody():
    with Server({"local_bwrap": {"size": 1}}) as s:
        c, mark = s.client(), mark_of(s, "delete")
        id = c.lease()
        with concurrent.futures.ThreadPoolExecutor(22) as pool:
            run = pool.submit(Client(s).exec_response, id, "echo begun; " + marked(mark), exec_id="long")
            wait_until(lambda: len(running(mark)) >= 2, what="the command to run")
            deletes = [pool.submit(Client(s).delete, f"/leases/{id}") for _ in range(10)]
            execs = [pool.submit(Client(s).exec_response, id, "true") for _ in range(10)]
            r = run.result()
            assert r.status == 200 and r.json()["killed_by"] == "lease_end" and r.json()["stdout"] == "begun\n" and r.json()["returncode"] is None, r
            assert [d.result().status for d in deletes] == [200] * 10
            assert all(d.result().json() == {"terminated": True, "trajectory_id": None} for d in deletes)
            for e in execs:
                e = e.result()
                assert e.status == 410 or (e.status == 200 and e.json()["killed_by"] in (None, "lease_end")), e
        assert running(mark) == []  # at the answer already, not some time later
        assert c.exec(c.lease(), "ls /tmp")["stdout"] == ""


def test_expiry_kills_what_runs():
    with Server({"local_bwrap": {"size": 1}}) as s:
        c, mark = s.client(), mark_of(s, "expiry")
        id = c.lease(timeout_sec=1.5 * SLOW)
        r = c.exec_response(id, marked(mark))
        assert r.status == 200 and r.json()["killed_by"] == "lease_end", r
        wait_until(lambda: c.get(f"/leases/{id}").json()["state"] == "expired" and running(mark) == [])


def test_an_upload_under_way_when_its_lease_ends_is_told():
    with Server({"local_bwrap": {"size": 1}}) as s:
        c = s.client()
        id = c.lease()
        with Conn(s.port, timeout=30 * SLOW) as raw:
            raw.get(c.file_url(id, "big"), "Content-Length: 1000000", method="PUT").send(b"x" * 500000)
            wait_until(lambda: c.get(f"/leases/{id}").status == 200)
            assert c.delete(f"/leases/{id}").status == 200
            raw.send(b"x" * 500000)
            r = raw.reply()
            assert r.status == 410 and r.problem()["code"] == "lease_gone"
        c.terminate(c.lease())


# ---- SIGTERM ----

def test_a_download_under_way_at_sigterm_is_finished():
    go = threading.Event()

    def answer(h):
        h.send_response(200)
        h.send_header("Content-Length", str(2 << 20))
        h.end_headers()
        h.wfile.write(b"a" * (1 << 20))
        assert go.wait(60 * SLOW)
        h.wfile.write(b"b" * (1 << 20))

    with service(answer) as port, closing(scripted({"ports": {"80": port}}, server={"drain_timeout": "60s"}).start()) as s:
        c = s.client()
        id = c.lease()
        down = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60 * SLOW)
        down.request("GET", f"/leases/{id}/proxy/80/")
        r = down.getresponse()
        assert r.read(1 << 20) == b"a" * (1 << 20)
        s.process.send_signal(signal.SIGTERM)
        # Not ready at once, nothing new, but what is there is still answered.
        wait_until(lambda: c.get("/readyz").status == 503)
        for p in (c.get("/readyz"), c.post("/leases", {}), c.post("/leases", {}, headers={"Prefer": "respond-async"})):
            assert p.status == 503 and p.code == "shutting_down", p
        assert c.get("/healthz").status == 200 and c.get(f"/leases/{id}").json()["state"] == "ready"
        assert c.exec(id, "echo still")["stdout"] == "still\n"
        go.set()
        assert r.read() == b"b" * (1 << 20)
        down.close()
        c.close()
        assert exits(s) == 0


def test_what_does_not_end_is_cut_after_the_drain_timeout():
    with closing(Server({"local_bwrap": {"size": 2}, "server": {"drain_timeout": "500ms"}}).start()) as s:
        c, mark = s.client(), mark_of(s, "drain")
        a, b = c.lease(), c.lease()
        code = ("import http.server\nclass H(http.server.BaseHTTPRequestHandler):\n"
                " def do_GET(self):\n  self.send_response(200); self.end_headers()\n  while True: self.wfile.write(b'tick\\n')\n"
                "s = http.server.HTTPServer(('127.0.0.1', 8000), H); background(); s.serve_forever()\n")
        start(c, b, code)

        def endless():
            try:
                return Client(s).exec_response(a, marked(mark))
            except (OSError, http.client.HTTPException) as e:
                return e

        with concurrent.futures.ThreadPoolExecutor(1) as pool, Conn(s.port, timeout=60 * SLOW) as down, Conn(s.port) as up, Conn(s.port) as idle:
            run = pool.submit(endless)
            down.get(f"/leases/{b}/proxy/8000/")
            assert down.head().status == 200
            up.get(c.file_url(b, "half"), "Content-Length: 1000", method="PUT").send(b"x" * 500)
            idle.get("/version").reply()
            wait_until(lambda: running(mark))
            began = time.monotonic()
            s.process.send_signal(signal.SIGTERM)
            assert exits(s) == 0
            assert time.monotonic() - began < 20 * SLOW
            r = run.result()
            assert isinstance(r, Exception) or r.status >= 400 or r.json()["killed_by"] in ("lease_end", "hangup"), r
        assert running(mark) == [] and running(s.state) == []
        p = subprocess.run([BIN, "audit", "verify", "--state-dir", s.state], capture_output=True, text=True, timeout=60)
        assert p.returncode == 0, p
        # The next server knows how they ended.
        s.start()
        for id in (a, b):
            l = s.client().get(f"/leases/{id}").json()
            assert l["state"] == "terminated" and l["reason"], l


def test_waiting_for_a_slot_ends_with_the_server():
    with closing(Server({"local_bwrap": {"size": 1}, "server": {"drain_timeout": "300ms"}}).start()) as s:
        c = s.client()
        c.lease()

        def take():
            try:
                return Client(s).post("/leases", {"acquire_timeout": 60})
            except (OSError, http.client.HTTPException) as e:
                return e

        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            waiting = [pool.submit(take) for _ in range(3)]
            wait_until(lambda: c.get("/slots/default").json()["waiters"] == 3)
            s.process.send_signal(signal.SIGTERM)
            assert exits(s) == 0
            for w in waiting:
                r = w.result()
                assert isinstance(r, Exception) or (r.status, r.code) == (503, "shutting_down"), r


def test_a_second_signal_ends_the_drain_at_once_and_cleanly():
    """And keeping leases means those that outlive their server: not of this backend."""
    with closing(Server({"local_bwrap": {"size": 1}, "server": {"drain_timeout": "120s"}, "leases": {"at_shutdown": "keep"}}).start()) as s:
        s.wait_slots(1)
        c, mark = s.client(), mark_of(s, "hurry")
        id = c.lease()

        def endless():
            return Client(s).exec_response(id, marked(mark))

        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            run = pool.submit(endless)
            wait_until(lambda: running(mark))
            s.process.send_signal(signal.SIGTERM)
            wait_until(lambda: c.get("/readyz").status == 503)
            with pytest.raises(concurrent.futures.TimeoutError):
                run.result(1)
            began = time.monotonic()
            s.process.send_signal(signal.SIGTERM)
            r = run.result()
            assert r.status >= 400 or r.json()["killed_by"] in ("lease_end", "hangup"), r
            assert exits(s) == 0 and time.monotonic() - began < 15 * SLOW
        assert running(mark) == [] and running(s.state) == []
        assert any(e["event"] == "drain_cut_short" for e in s.log_events()) and any(e["event"] == "stopped" for e in s.log_events())
        p = subprocess.run([BIN, "audit", "verify", "--state-dir", s.state], capture_output=True, text=True, timeout=60)
        assert p.returncode == 0, p
        s.start()
        l = s.client().get(f"/leases/{id}").json()
        assert (l["state"], l["reason"]) == ("terminated", "server_shutdown"), l


def test_sigint_is_sigterm_and_signals_while_leases_end_change_nothing():
    with closing(scripted({}).start()) as s:
        s.client().lease()
        s.process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):
            s.process.send_signal(signal.SIGTERM)
        assert exits(s) == 0


# ---- kill -9 ----

def test_a_create_that_a_crash_cuts_is_not_creating_for_ever():
    with closing(scripted({"create": [{"stall": True}]}).start()) as s:
        c = s.client()
        r = c.post("/leases", {"trajectory_id": "cut"}, headers={"Prefer": "respond-async", "Idempotency-Key": "k"})
        assert r.status == 202
        id = r.json()["id"]
        s.kill9()
        s.config["fake"]["script"] = "{}"
        s.start()
        c = s.client()
        l = c.get(f"/leases/{id}").json()
        assert l["state"] in ("failed", "lost") and l["reason"], l
        r = c.post("/leases", {"trajectory_id": "cut"})
        assert r.status == 201 and r.json()["id"] != id, r


def test_expiry_goes_on_after_a_crash():
    with closing(Server({"local_bwrap": {"size": 2}}).start()) as s:
        c, mark = s.client(), mark_of(s, "crash")
        id = c.lease(timeout_sec=3600)
        gone = c.lease()
        c.terminate(gone)
        c.exec(id, f"(exec 2>&- >&-; {marked(mark)}) &")
        wait_until(lambda: running(mark))
        s.kill9()
        wait_until(lambda: running(mark) == [] and running(s.state) == [], what="the sandboxes to end with their server")
        s.start()
        c = s.client()
        l = c.get(f"/leases/{id}").json()
        assert (l["state"], l["reason"]) == ("lost", "server_restarted") and c.get(f"/leases/{gone}").json()["state"] == "terminated"
        # Deleting what was lost is fine; exec says what happened, and never that it went well.
        assert c.delete(f"/leases/{id}").json() == {"terminated": True, "trajectory_id": None}
        r = c.exec_response(id, "true")
        assert r.status == 410 and r.code == "sandbox_lost", r
        assert [e["event"] for e in c.get("/audit?limit=1000").json()["items"]].count("lease_lost") <= 1
        again = c.lease(timeout_sec=0.5)
        wait_until(lambda: c.get(f"/leases/{again}").json()["state"] == "expired")


# ---- a real client ----

def curl(*args):
    p = subprocess.run(["curl", "-sS", "-v", "--max-time", str(60 * SLOW), *args], capture_output=True, text=True, timeout=90 * SLOW)
    assert p.returncode == 0, p
    return p.stdout, p.stderr


def test_curl_with_a_body_it_asks_leave_for(tmp_path):
    """curl sends `Expect: 100-continue` before a body of this size, and waits a second when nobody answers."""
    body = tmp_path / "body"
    body.write_text(json.dumps({"command": ["wc", "-c"], "stdin": "x" * (2 << 20)}))
    raw = tmp_path / "raw"
    raw.write_bytes(b"y" * (2 << 20))
    with Server({"local_bwrap": {"size": 1}}) as s:
        c = s.client()
        id = c.lease()
        url = f"http://127.0.0.1:{s.port}/leases/{id}"
        json_type = ["-H", "Content-Type: application/json", "-H", "Expect: 100-continue"]
        for more in ([], ["-H", "Transfer-Encoding: chunked"]):
            out, err = curl(*json_type, *more, "--data-binary", f"@{body}", url + "/exec")
            assert json.loads(out)["stdout"].strip() == str(2 << 20) and re.search("< HTTP/1.1 100 Continue", err, re.I), err
            out, err = curl("-H", "Expect: 100-continue", *more, "-T", str(raw), url + "/files?path=raw")
            assert json.loads(out)["size"] == 2 << 20 and re.search("< HTTP/1.1 100 Continue", err, re.I), err
        # Refused without the body having been sent.
        for args, status in ((["-T", str(raw), url + "/files?path="], 400), (["-T", str(raw), url + "x/files?path=raw"], 404),
                             (["--data-binary", f"@{body}", url + "/nothing"], 404), (["--data-binary", f"@{body}", url + "/exec?nope"], 400),
                             (["--data-binary", f"@{body}", "-H", "Accept: image/png", url + "/exec"], 406)):
            out, err = curl(*json_type, *args)
            assert json.loads(out)["status"] == status and "HTTP/1.1 100" not in err, err
        assert c.read(id, "raw").body == raw.read_bytes()
