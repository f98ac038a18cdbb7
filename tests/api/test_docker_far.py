"""An engine that shares no directory with the server: what leads to the agents is a relay in each container, which may die, be cut off or lie.

What commands and files are like there is the conformance suite's matter (row docker_engine).
"""
import base64
import concurrent.futures
import contextlib
import hashlib
import http.client
import os
import random
import signal
import socket
import struct
import threading
import time

import pytest

import engine as engines
from harness import Server, wait_until

why = engines.why_not()
pytestmark = pytest.mark.skipif(why is not None, reason=str(why))


@pytest.fixture(scope="module")
def engine():
    with engines.engine() as e:
        yield e


def serve(host, **docker):
    return Server({"backends": {"enabled": ["docker"]}, "docker": dict({"host": host, "image": engines.IMAGE, "pull": False, "agent": "engine"}, **docker)})


@pytest.fixture(scope="module")
def server(engine):
    with serve(engine.host) as s:
        yield s
    assert engine.containers() == [] and volumes(engine) == []


@pytest.fixture(scope="module")
def rough():
    """An engine for a test that may leave it with something to do: a container that it was asked for comes, whoever has gone meanwhile."""
    with engines.engine("--live-restore") as e:
        yield e


@pytest.fixture
def client(server):
    return server.client()


def volumes(e):
    return [v["Name"] for v in e.call("GET", "/volumes")[1]["Volumes"] or []]


def relay_of(engine, lease):
    """The relay's process, as this machine sees it."""
    space = os.readlink(f"/proc/{engine.inspect('sandgate-' + lease)['State']['Pid']}/ns/pid")
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline") as f:
            if f.read().split("\0")[:2] == ["/.sandgate/agent", "relay"] and os.readlink(f"/proc/{pid}/ns/pid") == space:
                return int(pid)
    raise AssertionError("there is no relay")


def state(client, lease):
    return client.get(f"/leases/{lease}").json()


# ---- what is in there ----

def test_commands_gain_nothing_over_the_relay(client):
    lease = client.lease()
    r = client.exec(lease, "p=$(ps -o pid,args | awk '$2 == \"/.sandgate/agent\" && $3 == \"relay\" {print $1}'); test -n \"$p\" && echo found; kill -9 $p; kill -STOP 1; ls /proc/$p/fd; "
                           "cat /proc/$p/mem; echo x > /proc/$p/fd/1; ls /.sandgate/run; /.sandgate/agent relay /.sandgate/run; echo $?; cp /bin/sh /.sandgate/agent")
    assert r["stdout"].split() == ["found", "71"], r  # none of the rest wrote anything there
    assert r["stderr"].count("ermission denied") >= 4 and r["stderr"].count("not permitted") == 2, r
    assert client.exec(lease, "echo on")["stdout"] == "on\n"
    client.terminate(lease)


def test_memory_that_is_not_there(client):
    lease = client.lease(limits={"memory_max": 24 << 20})
    r = client.exec(lease, ["sh", "-c", "x=$(head -c 60000000 /dev/zero | tr '\\0' a); echo ${#x}"], timeout=60)
    assert r["killed_by"] == "oom" and r["signal"] == "SIGKILL", r
    assert client.exec(lease, "kill -9 $$")["killed_by"] is None
    client.terminate(lease)


def test_much_at_once(server):
    """Large streams both ways, uploads and downloads at the same time, one with a reader that does not read: the others go on."""
    client = server.client()
    lease = client.lease(limits={"memory_max": 512 << 20, "disk_max": 200 << 20})
    data = os.urandom(8 << 20)

    def job(i):
        c = server.client()
        name = f"f{i}"
        assert c.write(lease, name, data).status == 201 and c.read(lease, name).body == data
        r = c.exec(lease, f"cat {name} | wc -c; head -c 3000000 /dev/zero", max_output_bytes=1 << 23)
        assert r["stdout_bytes_total"] == 3000000 + 8, r
        return c.exec(lease, "wc -c", stdin="x" * 500000)["stdout"].strip()

    with socket.create_connection(("127.0.0.1", server.port)) as stuck:
        body = b'{"command": "yes"}'
        stuck.sendall(b"POST /leases/%s/exec HTTP/1.1\r\nHost: x\r\nAccept: application/x-ndjson\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
                      % (lease.encode(), len(body), body))
        assert stuck.recv(12) == b"HTTP/1.1 200"
        with concurrent.futures.ThreadPoolExecutor(5) as pool:
            assert set(pool.map(job, range(5))) == {"500000"}
    client.terminate(lease)


# ---- files as they come ----

BIG = 24 << 20


def begun(server, lease, path="big", **headers):
    """A download of which the head has come, and nothing is read."""
    h = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    h.connect()
    h.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    h.request("GET", f"/leases/{lease}/files?path={path}", headers=headers)
    r = h.getresponse()
    assert r.status in (200, 206) and int(r.getheader("Content-Length")) > 1 << 20, (r.status, r.getheaders())
    return r


def cut(r):
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        r.read()
    r.close()


def test_files_come_as_they_are_read(server, client, engine):
    lease = client.lease(limits={"memory_max": 256 << 20, "disk_max": 100 << 20})
    assert client.exec(lease, f"yes 0123456789abcde | head -c {BIG} > big")["returncode"] == 0
    whole = (b"0123456789abcde\n" * (BIG // 16))
    before = server.rss_kib()
    slow = [begun(server, lease) for _ in range(8)]
    assert slow[0].read(16) == whole[:16]
    # Those wait where they are, on no disk of ours; nobody else waits for them.
    assert server.rss_kib() - before < 32 << 10 and not [p for p in server.open_files() if p.endswith(" (deleted)")]
    assert client.exec(lease, "echo on")["stdout"] == "on\n"
    assert client.read(lease, "big").body == whole
    r = begun(server, lease, Range=f"bytes={BIG - 5000000}-")
    assert r.status == 206 and r.getheader("Content-Range") == f"bytes {BIG - 5000000}-{BIG - 1}/{BIG}" and r.read() == whole[-5000000:]
    r = client.get(f"/leases/{lease}/files?path=big", headers={"Want-Repr-Digest": "sha-256=1"})
    assert base64.b64encode(hashlib.sha256(whole).digest()).decode() in r.headers["Repr-Digest"] and r.body == whole

    client.exec(lease, "truncate -s 15000000 big")
    cut(slow[0])
    pid = relay_of(engine, lease)
    os.kill(pid, signal.SIGKILL)
    cut(slow[1])
    wait_until(lambda: client.exec_response(lease, "true").status == 200, what="another relay")
    assert len(client.read(lease, "big").body) == 15000000
    late = begun(server, lease)
    for r in slow:
        r.close()
    client.terminate(lease)
    cut(late)


# ---- deaths ----

def test_a_relay_that_dies_is_replaced(engine, client):
    lease = client.lease()
    client.write(lease, "f", b"kept")
    client.exec(lease, "(setsid sleep 4711 >/dev/null 2>&1 &)")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        r = pool.submit(client.exec_response, lease, "touch up; sleep 60")
        first = relay_of(engine, lease)
        wait_until(lambda: engine.call("GET", f"/containers/sandgate-{lease}/top")[1] and "sleep 60" in str(engine.call("GET", f"/containers/sandgate-{lease}/top")[1]))
        os.kill(first, signal.SIGKILL)
        r = r.result(30)
        assert r.status == 502 and r.code == "outcome_unknown", r
    wait_until(lambda: client.exec_response(lease, "true").status == 200, what="another relay")
    assert client.read(lease, "f").body == b"kept" and state(client, lease)["state"] == "ready" and relay_of(engine, lease) != first
    ps = client.exec(lease, "ps -o args")["stdout"]
    assert "sleep 4711" in ps and "sleep 60" not in ps, ps
    client.terminate(lease)


def test_a_container_that_dies_is_a_lost_lease(engine, client):
    lease, other = client.lease(), client.lease()
    engine.call("POST", f"/containers/sandgate-{lease}/kill")
    assert engine.call("POST", f"/containers/sandgate-{other}/restart?t=0")[0] == 204  # with none of the files that its lease knows of
    l = wait_until(lambda: (lambda l: l if l["state"] == "lost" else None)(state(client, lease)), 20)
    assert "container_died" in l["reason"], l
    wait_until(lambda: state(client, other)["state"] == "lost", 20)
    wait_until(lambda: engine.containers() == [] and volumes(engine) == [])


def test_an_engine_that_is_killed(soak, rough):
    """What runs on without it is reached again; what has ended with it is lost. ./dev soak has both."""
    for live_restore in (True, False) if soak and not engines.KIND.outlived else (True,):
        with contextlib.nullcontext(rough) if live_restore else engines.engine() as e, serve(e.host) as s:
            c = s.client()
            lease = c.lease()
            c.write(lease, "f", b"kept")
            e.kill()
            r = wait_until(lambda: (lambda r: r if r.status not in (200, 502) else None)(c.exec_response(lease, "true")))  # 502: one that was on its way
            assert r.status == 503 and r.json()["reason"] == "reconnecting", r
            e.start()
            if live_restore:
                wait_until(lambda: c.exec_response(lease, "true").status == 200, 20, "it is reached again")
                assert c.read(lease, "f").body == b"kept" and state(c, lease)["state"] == "ready"
            else:
                l = wait_until(lambda: (lambda l: l if l["state"] == "lost" else None)(state(c, lease)), 20)
                assert l["reason"], l
            c.delete(f"/leases/{lease}")
            wait_until(lambda: e.containers() == [], 20)  # noqa: B023


def test_an_engine_that_stands_still(soak, rough):
    """As long as it does nobody knows, and nothing is lost. Agents are taken to be silent after 10 s."""
    if not soak:
        pytest.skip("takes half a minute: ./dev soak")
    with serve(rough.host) as s:
        c = s.client()
        lease = c.lease()
        c.write(lease, "f", b"kept")
        c.exec(lease, "(setsid sleep 4712 >/dev/null 2>&1 &)")
        rough.process.send_signal(signal.SIGSTOP)
        try:
            r = c.get(f"/leases/{lease}/files/stat?path=f")
            assert r.status == 502 and r.code == "outcome_unknown", r
            assert wait_until(lambda: c.exec_response(lease, "true")).json()["reason"] == "reconnecting"
            time.sleep(12)
            assert state(c, lease)["state"] == "ready"
        finally:
            rough.process.send_signal(signal.SIGCONT)
        wait_until(lambda: c.exec_response(lease, "true").status == 200, 30, "it is reached again")
        assert c.read(lease, "f").body == b"kept" and "sleep 4712" in c.exec(lease, "ps -o args")["stdout"]
        c.terminate(lease)


def test_kill_9_of_the_server_mid_traffic(rough):
    engine = rough
    with serve(engine.host, warm=1) as s:
        c = s.client()
        keep = c.lease()
        c.write(keep, "kept", b"kept")
        stop = threading.Event()

        def traffic():
            k = s.client()
            try:
                while not stop.is_set():
                    lease = k.lease()
                    k.write(lease, "big", b"x" * (4 << 20))
                    k.exec(keep, "echo y > z; cat z")
                    k.delete(f"/leases/{lease}")
            except Exception:  # noqa: BLE001 - it is cut off somewhere
                return

        threads = [threading.Thread(target=traffic) for _ in range(2)]
        for t in threads:
            t.start()
        wait_until(lambda: len(c.get("/leases").json()["items"]) >= 4)
        s.kill9()
        stop.set()
        for t in threads:
            t.join()
        s.start()
        c = s.client()
        wait_until(lambda: c.read(keep, "kept").body == b"kept", 20)
        wait_until(lambda: c.get("/leases?state=creating").json()["items"] == [], 20)

        def there():
            live = {"sandgate-" + l["id"] for l in c.get("/leases?state=ready").json()["items"]}
            return live == {n for n in engine.containers() if "warm" not in n} and len(volumes(engine)) == len(engine.containers())
        wait_until(there, 20, "the containers of live leases, and no other")
        assert c.exec(keep, "echo on")["stdout"] == "on\n"
    wait_until(lambda: [n for n in engine.containers() if "warm" in n] == [], 20)


# ---- an engine that lies ----

class Liar:
    """A socket that leads to the engine's, and says something else than the relay once that is reached: what `lie` makes of it."""

    def __init__(self, path, dir):
        self.engine, self.path, self.lie = path, str(dir) + "/liar", None
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen(64)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                a, _ = self.listener.accept()
            except OSError:
                return
            b = socket.socket(socket.AF_UNIX)
            b.connect(self.engine)
            threading.Thread(target=self.serve, args=(a, b), daemon=True).start()

    def serve(self, a, b):
        try:
            first = a.recv(65536)
            self.ask(b, first)
            relay = b"/exec/" in first and b"/start" in first.split(b"\r\n")[0]
            threading.Thread(target=self.copy, args=(a, b, self.ask), daemon=True).start()
            if relay and self.lie:
                head = b""
                while b"\r\n\r\n" not in head:
                    head += b.recv(1)
                a.sendall(head)
                self.lie(a, b)
            self.copy(b, a)
        except OSError:
            pass

    def ask(self, engine, data):
        engine.sendall(data)

    @staticmethod
    def copy(x, y, send=socket.socket.sendall):
        try:
            while data := x.recv(65536):
                send(y, data)
            y.shutdown(socket.SHUT_WR)
        except OSError:
            pass


class Slow(Liar):
    """Containers are made once `go` is set, whoever still waits for them."""

    def __init__(self, path, dir):
        self.asked, self.go = threading.Event(), threading.Event()
        super().__init__(path, dir)

    def ask(self, engine, data):
        if b"/containers/create" in data.partition(b"\r\n")[0]:
            self.asked.set()
            self.go.wait(60)
        super().ask(engine, data)


class Cutter(Liar):
    """Ways to relays break after a number of bytes from there."""

    def __init__(self, path, dir):
        self.budget, self.ways = None, []
        super().__init__(path, dir)
        self.lie = self.serve_some

    def cut(self):
        for s in self.ways.pop():
            s.shutdown(socket.SHUT_RDWR)

    def serve_some(self, a, b):
        self.ways.append((a, b))
        while data := b.recv(65536):
            if self.budget is not None:
                data, self.budget = data[:self.budget], self.budget - len(data)
            a.sendall(data)
            if self.budget is not None and self.budget <= 0:
                self.budget = None
                self.cut()
                return


def wrapped(data, which=1):
    return struct.pack(">BxxxI", which, len(data)) + data


def frame(channel, kind, data):
    return struct.pack("=III", channel, kind, len(data)) + data


def hello(version):
    return wrapped(frame(0, 1, struct.pack("=BBHIQ", version, 64, 0, 44, 0) + bytes(44)))


LIES = {
    "no frames of the engine's": lambda a, b: a.sendall(b"\x07garbage" * 10),
    "no frames of the relay's": lambda a, b: a.sendall(wrapped(b"\xff" * 64)),
    "a channel that there is not": lambda a, b: a.sendall(wrapped(frame(77, 3, b"data"))),
    "an agent that is no agent": lambda a, b: a.sendall(hello(2)),
    "an agent of another version": lambda a, b: a.sendall(hello(1)),
    "an end": lambda a, b: (a.sendall(wrapped(b"out of order", 2)), a.shutdown(socket.SHUT_RDWR)),
}


def test_an_engine_that_lies(engine, tmp_path):
    liar = Liar(engine.socket, tmp_path)
    with serve("unix://" + liar.path) as s:
        c = s.client()
        for what, lie in LIES.items():
            liar.lie = lie
            r = c.post("/leases", {})
            assert r.status == 502 and r.code == "provider_failed" and r.json()["provider"] == "docker", (what, r)
            reasons = ("agent_version",) if what == "an agent of another version" else ("agent_protocol", "relay_gone")
            assert r.json()["reason"] in reasons and (what != "an end" or "out of order" in r.json()["detail"]), (what, r)
            wait_until(lambda: engine.containers() == [], what="nothing is left")
        liar.lie = None
        lease = c.lease()
        assert c.exec(lease, "echo true")["stdout"] == "true\n"
        c.terminate(lease)
    liar.listener.close()


def test_a_container_that_comes_after_all(engine, tmp_path):
    """The engine had been asked for it by a server that was killed, and the next one had not found it."""
    slow = Slow(engine.socket, tmp_path)
    with serve("unix://" + slow.path) as s:
        lease = s.client().post("/leases", {}, headers={"Prefer": "respond-async"}).json()["id"]
        assert slow.asked.wait(20)
        s.kill9()
        s.start()
        c = s.client()
        l = wait_until(lambda: (lambda l: l if l["state"] == "failed" else None)(state(c, lease)))
        assert l["reason"], l
        slow.go.set()
        wait_until(lambda: engine.has_made("sandgate-" + lease), what="it comes")
        wait_until(lambda: engine.containers() == [], what="and goes")
    slow.listener.close()


def test_a_way_that_breaks_anywhere(engine, tmp_path, soak):
    """What is said of what was asked is so, or it is said that nobody knows; and then it goes on."""
    cutter = Cutter(engine.socket, tmp_path)
    rng = random.Random(5)
    data = rng.randbytes(1 << 20)
    with serve("unix://" + cutter.path) as s:
        c = s.client()
        lease = c.lease(limits={"memory_max": 256 << 20, "disk_max": 64 << 20})
        assert c.write(lease, "f", data).status == 201
        told = set()
        for n in range(200 if soak else 12):
            cutter.budget = rng.randrange(1, 40) if n % 2 else rng.randrange(1, 1 << 20)
            what = n // 2 % 4
            try:
                if what == 0:
                    r = c.read(lease, "f")
                    good = r.body == data
                elif what == 1:
                    r = c.exec_response(lease, "cat f", max_output_bytes=1 << 21)
                    good = r.status != 200 or base64.b64decode(r.json()["stdout"]) == data
                elif what == 2:
                    r = c.write(lease, "g", data)
                    good = True
                else:
                    r = c.get(f"/leases/{lease}/files/tar?path=f")
                    good = data in r.body
            except (http.client.HTTPException, ConnectionError):
                told.add("cut")
            else:
                assert good if r.status in (200, 201) else r.status in (502, 503), (n, r.status, r.code)
                told.add(r.status)
            cutter.budget = None
            wait_until(lambda: c.exec_response(lease, "true").status == 200, 20, "another relay")
            g = c.read(lease, "g")
            assert g.status == 404 or g.body == data, "whole, or not there"
            assert c.read(lease, "f").body == data and not [x for x in c.exec(lease, "ls -A")["stdout"].split() if x not in ("f", "g")]
        assert {"cut", 502} <= told, told
        assert engine.call("POST", f"/containers/sandgate-{lease}/pause")[0] == 204  # nobody gets in, but it is all there
        cutter.cut()
        r = wait_until(lambda: (lambda r: r if r.status != 502 else None)(c.exec_response(lease, "true")))
        assert r.status == 503 and r.json()["reason"] == "reconnecting", r
        time.sleep(0.5)  # for a few tries
        assert state(c, lease)["state"] == "ready"
        assert engine.call("POST", f"/containers/sandgate-{lease}/unpause")[0] == 204
        wait_until(lambda: c.exec_response(lease, "true").status == 200, 20, "another relay")
        assert c.read(lease, "f").body == data
        c.terminate(lease)
    cutter.listener.close()
