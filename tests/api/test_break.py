"""What a hostile caller, a careless operator or a bad day do to a running server: it keeps its word, says so clearly when it cannot, and
is as before once it is over.
"""
import concurrent.futures
import contextlib
import fcntl
import hashlib
import json
import os
import random
import select
import signal
import socket
import subprocess
import threading
import time

import pytest

from conftest import account, server_kinds
from harness import BIN, SLOW, USERS_PER_SERVER, Client, Server, wait_until

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can look at and kill what a server started")


# ---- looking from outside ----

def status_of(pid):
    try:
        with open(f"/proc/{pid}/status") as f:
            return dict(line.rstrip("\n").split(":\t", 1) for line in f if ":\t" in line)
    except OSError:
        return {}


def descendants(pid):
    children = {}
    for p in filter(str.isdigit, os.listdir("/proc")):
        s = status_of(p)
        if s:
            children.setdefault(int(s["PPid"]), []).append((int(p), s))
    found, queue = [], [pid]
    while queue:
        for child in children.get(queue.pop(), []):
            found.append(child)
            queue.append(child[0])
    return found


def agents(server):
    return [p for p, s in descendants(server.pid()) if s["Name"] == "agent" and s["NSpid"].split()[-1] == "1"]


class Leftovers:
    """Everything of one server is told apart by its host uids and its state directory."""

    def __init__(self, server):
        self.uids = range(server.uid_base, server.uid_base + USERS_PER_SERVER)
        self.state = state = os.path.realpath(server.state)
        self.group = "sandgate-" + hashlib.sha256(state.encode()).hexdigest()[:12]

    def processes(self):
        out = []
        for p in filter(str.isdigit, os.listdir("/proc")):
            s = status_of(p)
            if s and s["State"][0] != "Z" and any(int(u) in self.uids for u in s["Uid"].split()):
                out.append((int(p), s["Name"]))
        return out

    def mounts(self):
        with open("/proc/mounts") as f:
            return [line for line in f if self.state in line]

    def groups(self):
        out = []
        for root, dirs, _ in os.walk("/sys/fs/cgroup"):
            out += [os.path.join(root, d) for d in dirs if d == self.group]
            if root.count("/") >= 6:
                dirs.clear()
        return out

    def directories(self):
        with contextlib.suppress(FileNotFoundError):
            return os.listdir(os.path.join(self.state, "slots"))
        return []

    def all(self):
        return [x for x in (self.processes(), self.mounts(), self.groups(), self.directories()) if x]


def private_server(size=4, **config):
    config.setdefault("local_bwrap", {}).update(size=size)
    s = Server(config)
    s.left = Leftovers(s)
    return s


def request(method, path, body=None, headers=""):
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\n{headers}"
    if body is not None:
        head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
    return head.encode() + b"\r\n" + data


def flood(server, requests, seconds=60):
    """One connection per request, all at once; how often each status (and code) came."""
    waiting, counts = {}, {}
    poll = select.epoll()
    for r in requests:
        s = server.connect()
        s.sendall(r)
        poll.register(s, select.EPOLLIN)
        waiting[s.fileno()] = (s, bytearray())
    end = time.monotonic() + seconds * SLOW
    while waiting and time.monotonic() < end:
        for fd, _ in poll.poll(1):
            s, got = waiting[fd]
            piece = s.recv(1 << 16)
            got += piece
            head, _, body = bytes(got).partition(b"\r\n\r\n")
            length = [int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            if piece and not (length and len(body) >= length[0]):
                continue
            key = head.split(b" ")[1].decode() if head else "cut"
            if key[0] in "45":
                key += " " + json.loads(body)["code"]
            counts[key] = counts.get(key, 0) + 1
            poll.unregister(fd)
            s.close()
            del waiting[fd]
    for s, _ in waiting.values():
        counts["no answer"] = counts.get("no answer", 0) + 1
        s.close()
    return counts


# ---- traffic: callers whose every answer is checked ----

class Traffic:
    """Threads that lease, run, write, read and end, and note every answer that is wrong. `down`: the sandbox or the server may die."""

    ALLOWED = {"POST /leases": (200, 201, 503), "exec": (200, 410, 503), "put": (200, 201, 410, 503), "get": (200, 410, 503),
               "delete": (200, 202)}

    def __init__(self, server, threads=4, seed=0, server_dies=False):
        self.server, self.server_dies = server, server_dies
        self.stop, self.wrong, self.leases, self.counts = threading.Event(), [], [], {}
        self.threads = [threading.Thread(target=self.run, args=(random.Random(seed * 100 + i),)) for i in range(threads)]

    def __enter__(self):
        for t in self.threads:
            t.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for t in self.threads:
            t.join()

    def check(self, what, r):
        self.counts[what, r.status] = self.counts.get((what, r.status), 0) + 1
        if r.status not in self.ALLOWED[what]:
            self.wrong.append((what, r))
        return r

    def run(self, rng):
        c = self.server.client()
        while not self.stop.is_set():
            try:
                self.job(c, rng)
            except Exception as e:  # noqa: BLE001 - the server was killed under the call
                c.close()
                if not self.server_dies:
                    self.wrong.append(("exception", repr(e)))
                if self.server_dies or len(self.wrong) > 20:
                    return

    def job(self, c, rng):
        r = self.check("POST /leases", c.post("/leases", {"acquire_timeout": 5}))
        if r.status == 503:
            self.stop.wait(0.05)
            return
        id = r.json()["id"]
        self.leases.append(id)
        word = f"w{rng.randrange(10**9)}"
        for _ in range(rng.randrange(1, 6)):
            what = rng.randrange(4)
            if what == 0:
                r = self.check("put", c.write(id, "f", word.encode() * 100))
            elif what == 1:
                r = self.check("exec", c.exec_response(id, f"(sleep 30 &) ; echo {word}"))
                if r.status == 200 and not r.json()["killed"] and r.json()["stdout"] != word + "\n":
                    self.wrong.append(("output", word, r))
            elif what == 2:
                c.write(id, "g", word.encode())
                r = self.check("get", c.read(id, "g"))
                if r.status == 200 and r.body != word.encode():
                    self.wrong.append(("content", word, r))
            else:
                r = self.check("exec", c.exec_response(id, f"sleep {rng.random() / 10}; exit 7"))
                if r.status == 200 and r.json()["returncode"] != 7 and not r.json()["killed"]:
                    self.wrong.append(("returncode", r))
            if r.status == 410:
                break
        if rng.random() < 0.9:
            self.check("delete", c.delete(f"/leases/{id}"))
        else:
            c.post(f"/leases/{id}/extend", {"timeout_sec": 100})
            c.delete(f"/leases/{id}")


STATES = {"creating", "ready", "releasing", "terminated", "failed", "expired", "lost"}


# ---- kill -9 ----

@only_root
def test_kill_9_at_any_moment_leaves_nothing(soak):
    """After the next start nothing of before runs or lies about, and every lease that was ever answered is known truthfully."""
    rng = random.Random(20260730)
    s = private_server()
    known = []
    try:
        for round in range(10 if soak else 4):
            s.start()
            with Traffic(s, threads=6, seed=round, server_dies=True) as traffic:
                time.sleep(0.2 + rng.random() * 0.8)
                s.kill9()
                traffic.stop.set()
            assert not traffic.wrong, traffic.wrong[:3]
            known += traffic.leases
            wait_until(lambda: not s.left.processes(), 10, "the end of all sandboxes")
            assert not s.left.mounts()
        s.start()
        s.wait_slots(4)
        c = s.client()
        states = {}
        for id in known:
            r = c.get(f"/leases/{id}")
            assert r.status == 200, (id, r)
            state = r.json()["state"]
            states[state] = states.get(state, 0) + 1
            assert state in ("terminated", "lost"), r
            assert state != "lost" or r.json()["reason"] == "server_restarted", r
            assert c.delete(f"/leases/{id}").status == 200
        assert len(known) > 20 and states.get("terminated"), states
        # What runs now are the agents of four empty slots, nothing else.
        assert sorted(n for _, n in s.left.processes()) == ["agent"] * 4 + ["bwrap"] * 4
        assert subprocess.run([BIN, "audit", "verify", "--state-dir", s.state], capture_output=True).returncode == 0
        assert s.stop() == 0
        assert not s.left.all(), s.left.all()
    finally:
        if s.process:
            s.kill9()
        s.clean()


@only_root
def test_kill_9_of_server_and_spawner_together(soak):
    s = private_server()
    try:
        s.start()
        s.wait_slots(4)
        c = s.client()
        id = c.lease()
        c.exec(id, "(sleep 100 &); setsid sleep 100 >/dev/null 2>&1 &")
        spawner = next(p for p, st in descendants(s.pid()) if st["Name"].startswith("sandgate-spawn"))
        os.kill(s.pid(), signal.SIGSTOP)
        os.kill(spawner, signal.SIGKILL)
        s.kill9()
        wait_until(lambda: not s.left.processes(), 10, "the end of all sandboxes")
        s.start()
        s.wait_slots(4)
        assert s.client().get(f"/leases/{id}").json()["state"] == "lost"
        assert s.stop() == 0
        assert not s.left.all(), s.left.all()
    finally:
        if s.process:
            s.kill9()
        s.clean()


# ---- parts that die ----

@only_root
@pytest.mark.parametrize("kind", server_kinds())
def test_agents_and_bwrap_killed_under_traffic(kind, soak):
    rng = random.Random(7)
    with Server({"local_bwrap": {"size": 4}}, user=account(kind)) as s:
        s.wait_slots(4)
        warm = s.client()
        warm.terminate(warm.lease())
        s.wait_slots(4)
        before = s.descriptors()
        with Traffic(s, threads=6, seed=5) as traffic:
            end = time.monotonic() + (20 if soak else 4)
            seen = []
            while time.monotonic() < end:
                time.sleep(rng.random() / 5)
                there = [p for p, st in descendants(s.pid()) if st["Name"] in ("agent", "bwrap")]
                victims = [p for p in there if p in seen]  # who is new may be a command that has not got its own name yet
                seen = there
                with contextlib.suppress(ProcessLookupError, IndexError):
                    os.kill(rng.choice(victims), signal.SIGKILL)
        assert not traffic.wrong, traffic.wrong[:3]
        assert traffic.counts.get(("exec", 200), 0) > 10, traffic.counts
        c = s.client()
        for id in traffic.leases:
            state = c.get(f"/leases/{id}").json()["state"]
            assert state in ("terminated", "lost", "ready"), state
            c.delete(f"/leases/{id}")
        s.wait_slots(4)
        report = c.get("/slots/default").json()
        assert all(slot["state"] == "READY" for slot in report["items"]), report
        # Up to 16 groups of four descriptors are kept per slot for the next commands.
        wait_until(lambda: s.descriptors() <= before + 4 * 64, 10, f"descriptors ({s.descriptors()}, before {before})")
        ours = [st["Name"] for _, st in descendants(s.pid())]
        assert ours.count("agent") == 4 and not ours.count("sleep"), ours


@only_root
def test_a_dead_spawner_is_said_clearly():
    s = private_server()
    try:
        s.start()
        s.wait_slots(4)
        c = s.client()
        id = c.lease()
        spawner = next(p for p, st in descendants(s.pid()) if st["Name"].startswith("sandgate-spawn"))
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            run = pool.submit(Client(s).exec_response, id, "sleep 60")
            time.sleep(0.3)
            os.kill(spawner, signal.SIGKILL)
            assert run.result(timeout=20 * SLOW).status == 410
        wait_until(lambda: c.get("/readyz").status == 503, 10, "not ready")
        r = c.get("/readyz")
        assert "spawner" in r.json()["detail"], r
        r = c.get("/healthz")
        assert r.status == 503 and "spawner" in r.json()["detail"], r  # nothing but a restart helps
        r = c.post("/leases", {"acquire_timeout": 2}, timeout=20)
        assert r.status == 503, r
        assert c.get(f"/leases/{id}").json()["state"] == "lost"
        assert c.delete(f"/leases/{id}").status == 200
        assert any(e.get("event") == "spawner_died" for e in s.log_events())
        wait_until(lambda: not s.left.processes(), 5)
        assert s.stop() == 0
        assert not s.left.processes() and not s.left.mounts()
    finally:
        if s.process:
            s.kill9()
        s.clean()


# ---- resources that run out ----

@only_root
def test_a_full_state_disk_is_503_and_heals():
    s = Server({"local_bwrap": {"size": 2}})
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m,mode=700", "none", s.state], check=True)
    filler = os.path.join(s.state, "filler")
    try:
        s.start()
        s.wait_slots(2)
        c = s.client()
        id = c.lease()
        with open(filler, "wb", buffering=0) as f, contextlib.suppress(OSError):
            while True:
                f.write(b"x" * 4096)

        def create():
            r = c.post("/leases", {"acquire_timeout": 2})
            assert r.status in (201, 503), r
            if r.status == 201:
                c.delete(f"/leases/{r.json()['id']}")
            return r
        wait_until(lambda: create().code == "store_unavailable", 20, "store_unavailable")
        for r in (create(), c.post(f"/leases/{id}/extend", {"timeout_sec": 80000}), c.get("/readyz"),
                  c.post("/leases", {}, headers={"Idempotency-Key": "k"}), c.post("/leases", {}, headers={"Prefer": "respond-async"})):
            assert r.status == 503 and r.code == "store_unavailable" and r.header("Retry-After"), r
        # What is there goes on.
        assert c.get("/healthz").status == 200
        assert c.exec(id, "echo up")["stdout"] == "up\n"
        assert c.write(id, "f", b"x").status == 201 and c.read(id, "f").body == b"x"
        assert c.get("/leases?limit=5").status == 200
        assert c.delete(f"/leases/{id}").json()["terminated"] is True
        s.wait_slots(2)  # nothing that was refused keeps a slot
        os.unlink(filler)
        wait_until(lambda: c.get("/readyz").status == 200, 10, "readiness")
        id = c.lease()
        assert c.exec(id, "echo again")["stdout"] == "again\n"
        c.terminate(id)
        assert s.stop() == 0
        assert subprocess.run([BIN, "audit", "verify", "--state-dir", s.state], capture_output=True).returncode == 0
    finally:
        if s.process:
            s.kill9()
        time.sleep(0.2)
        subprocess.run(["umount", "-l", s.state])
        s.clean()


class FewDescriptors(Server):
    limit = 64

    def command(self):
        return ["bash", "-c", f"ulimit -n {self.limit}; exec \"$@\"", "x", *super().command()]


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("limit", [64, 256])
def test_few_descriptors(limit):
    s = FewDescriptors({"local_bwrap": {"size": 2}})
    s.limit = limit
    with s:
        s.wait_slots(2)
        c = s.client()
        id = c.lease()
        counts = flood(s, [request("POST", f"/leases/{id}/exec", {"command": "sleep 0.2; echo hi"})] * 60)
        assert set(counts) <= {"200", "503 overloaded"} and (counts.get("200") or limit < 100), counts
        # What the flood held is closed soon after its last answer; until then 503 says to come again.
        # (A sanitizer has descriptors of its own: 64 may be too few for any command beside it.)
        wait_until(lambda: c.exec_response(id, "echo up").status in ((200, 503) if SLOW > 1 and limit < 100 else (200,)), what="room for a command")
        idle = []
        with contextlib.suppress(OSError):
            for _ in range(limit + 20):
                idle.append(s.connect(timeout=1))
        used = cpu_seconds(s.pid())
        time.sleep(1)
        assert cpu_seconds(s.pid()) - used < 0.3 * SLOW, "a busy loop"
        r = c.exec_response(id, "echo hi")
        assert r.status in (200, 503), r
        for r in (c.write(id, "f", b"x"), c.read(id, "f")):
            assert r.status in (200, 201, 404, 503), r
        for k in idle:
            k.close()
        wait_until(lambda: Client(s).get("/healthz").status == 200, 10)
        assert c.get(f"/leases/{id}").json()["state"] == "ready"
        assert wait_until(lambda: c.exec_response(id, "echo hi").status == 200, 10)
        c.terminate(id)
        s.wait_slots(2)


# ---- callers that misbehave ----

@pytest.fixture(scope="module")
def busy():
    with Server({"local_bwrap": {"size": 4, "pids_max": 2000, "memory_max": 0}}) as s:
        s.wait_slots(4)
        yield s


def test_floods_of_commands_and_leases(busy, soak):
    s = busy
    n = 1000 if soak else 300
    c = s.client()
    leases = [c.lease() for _ in range(4)]
    c.exec(leases[0], "true")
    threads = s.threads()
    counts = flood(s, [request("POST", f"/leases/{leases[i % 4]}/exec", {"command": "echo hi"}) for i in range(n)])
    assert counts == {"200": n}, counts
    sleeping = [s.connect() for _ in range(n)]
    for i, k in enumerate(sleeping):
        k.sendall(request("POST", f"/leases/{leases[i % 4]}/exec", {"command": ["sleep", "60"]}))
    wait_until(lambda: "sandgate_execs_running %d" % n in c.get("/metrics").body.decode() or
               f"sandgate_execs {n}" in c.get("/metrics").body.decode() or len(c.get(f"/leases/{leases[0]}/exec?limit=1000").json()["items"]) >= n // 4,
               30, "all commands running")
    assert s.threads() == threads
    for k in sleeping:
        k.close()
    # Hung up: all are killed.
    wait_until(lambda: not any(c.get(f"/leases/{x}/exec").json()["items"] for x in leases), 30, "the end of all commands")
    for x in leases:
        c.terminate(x)
    s.wait_slots(4)
    counts = flood(s, [request("POST", "/leases", {"acquire_timeout": 1})] * n)
    assert set(counts) <= {"201", "503 acquire_timeout"} and counts["201"] == 4, counts
    for x in c.get("/leases?state=ready").json()["items"]:
        c.terminate(x["id"])
    s.wait_slots(4)


def test_huge_arguments_and_environments(busy):
    s, c = busy, busy.client()
    id = c.lease()
    word = "x" * 100000
    r = c.exec(id, ["sh", "-c", 'echo $# ${#1}', "sh"] + [word] * 10)
    assert r["stdout"] == "10 100000\n", r["stderr"]
    r = c.exec_response(id, ["true"] + [word] * 11)  # above 1 MiB
    assert r.status == 400 and r.json()["field"].startswith("command"), r
    r = c.exec_response(id, ["true"] * 5000)
    assert r.status == 400, r
    r = c.exec_response(id, ["true", "y" * 200000])  # one argument above the kernel's 128 KiB
    assert r.status == 200 and r.json()["returncode"] in (126, 127), r
    r = c.exec(id, "echo ${#A}", env={"A": "z" * 100000})
    assert r["stdout"] == "100000\n"
    assert c.exec_response(id, "true", env={"A": "z" * 200000}).status == 400
    assert c.exec_response(id, "true", env={f"V{i}": "" for i in range(5000)}).status == 400
    assert c.exec_response(id, "x" * (2 << 20)).status == 400
    assert c.exec(id, "echo up")["stdout"] == "up\n"
    c.terminate(id)


def test_idle_and_slow_connections(busy, soak):
    """Connections that do nothing, send a byte now and then, or never read: the others do not notice."""
    s, c = busy, busy.client()
    id = c.lease()
    c.exec(id, "head -c 50000000 /dev/zero > big")
    rss = s.rss_kib()
    hostile = [s.connect() for _ in range(2000 if soak else 400)]
    assert s.rss_kib() - rss < 64 * 1024 * SLOW
    slow = []
    for head in (b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: ", b"POST /leases HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{",
                 f"PUT /leases/{id}/files?path=slow HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nxx".encode(),
                 f"PUT /leases/{id}/files?path=chunky HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nxx\r\n".encode()):
        k = s.connect()
        k.sendall(head)
        slow.append(k)
    # Never reads: a large file, a large result, many answers to a pipeline of requests.
    for r in (request("GET", f"/leases/{id}/files?path=big"), request("POST", f"/leases/{id}/exec", {"command": "head -c 8000000 /dev/zero"}),
              request("GET", "/openapi.json") * 500):
        for _ in range(5):
            k = s.connect()
            k.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            with contextlib.suppress(OSError):
                k.settimeout(0.2)  # as much of it as goes out
                k.sendall(r)
            slow.append(k)
    for _ in range(50):
        assert c.exec(id, "echo up")["stdout"] == "up\n"
        assert c.get("/healthz").status == 200
    # The end of the lease cuts those that hold something of it; the slot is back at once.
    c.terminate(id)
    s.wait_slots(4)
    for k in hostile + slow:
        k.close()
    assert c.get("/healthz").status == 200


def test_hang_ups_at_any_moment(busy, soak):
    """Callers that leave while the server creates, runs, writes or reads for them: nothing of it stays."""
    s, c = busy, busy.client()
    rng = random.Random(11)
    id = c.lease()
    c.exec(id, "head -c 3000000 /dev/zero > big")
    kinds = [request("POST", "/leases", {"acquire_timeout": 1}), request("POST", f"/leases/{id}/exec", {"command": "sleep 30"}),
             request("POST", f"/leases/{id}/exec", {"command": "head -c 3000000 /dev/zero"}), request("GET", f"/leases/{id}/files?path=big"),
             request("PUT", f"/leases/{id}/files?path=up", b"x" * 300000), request("GET", f"/leases/{id}/files/list?recursive=1"),
             request("GET", f"/leases/{id}/proxy/8000/x"), request("DELETE", f"/leases/{id}x")]
    for _ in range(600 if soak else 200):
        k = s.connect()
        r = rng.choice(kinds)
        k.sendall(r[:rng.randrange(1, len(r))] if rng.random() < 0.3 else r)
        if rng.random() < 0.5:
            time.sleep(rng.random() / 50)
        if rng.random() < 0.3:
            k.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset
        k.close()
    wait_until(lambda: not c.get(f"/leases/{id}/exec").json()["items"], 20, "the end of all commands")
    names = [f["name"] for f in c.get(f"/leases/{id}/files/list").json()["items"]]
    assert set(names) <= {"big", "up"}, names
    assert "up" not in names or c.get(f"/leases/{id}/files/stat?path=up").json()["size"] == 300000
    c.terminate(id)
    for x in c.get("/leases?state=ready").json()["items"]:  # their answers had gone out
        c.terminate(x["id"])
    s.wait_slots(4)
    report = c.get("/slots/default").json()
    assert report["ready"] == 4 and report["waiters"] == 0, report


def test_a_create_that_nobody_hears_of_holds_no_slot(busy):
    s, c = busy, busy.client()
    for _ in range(40):
        k = s.connect()
        k.sendall(request("POST", "/leases", {"acquire_timeout": 1}), socket.MSG_MORE)  # goes out with the end of the connection
        k.close()
    wait_until(lambda: not c.get("/leases?state=ready,creating,releasing").json()["items"], 10, "the end of unheard leases")
    s.wait_slots(4)


def test_an_empty_file_keeps_nothing(busy):
    s, c = busy, busy.client()
    id = c.lease()
    c.write(id, "empty", b"")
    for range in (None, "bytes=0-0"):
        r = c.read(id, "empty", headers={"Range": range} if range else {})
        assert r.status in (200, 416) and (r.status == 416 or r.body == b""), r
    c.terminate(id)
    s.wait_slots(4)


def test_leases_end_under_everything(busy, soak):
    """Commands, uploads, downloads and relayed requests under way when their lease ends are cut at once; the slot is ready again."""
    s = busy
    rng = random.Random(13)
    for _ in range(30 if soak else 8):
        c = s.client()
        id = c.lease()
        c.exec(id, "head -c 20000000 /dev/zero > big; (python3 -m http.server 8000 >/dev/null 2>&1 &)")
        wait_until(lambda: c.get(f"/leases/{id}/proxy/8000/").status == 200, 20, "the service")
        open_ = []
        for r in (request("POST", f"/leases/{id}/exec", {"command": "sleep 30"}), request("POST", f"/leases/{id}/exec", {"command": "yes"}),
                  request("GET", f"/leases/{id}/files?path=big"), request("GET", f"/leases/{id}/proxy/8000/big"),
                  f"PUT /leases/{id}/files?path=up HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\n".encode() + b"x" * 100000,
                  f"PUT /leases/{id}/files?path=up&append=1 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n".encode()):
            k = s.connect()
            k.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            k.sendall(r)
            open_.append(k)
        time.sleep(rng.random() / 10)
        began = time.monotonic()
        assert c.terminate(id)["terminated"] is True
        assert time.monotonic() - began < 5 * SLOW
        s.wait_slots(4)
        assert time.monotonic() - began < 5 * SLOW, "something of the lease was still held"
        for k in open_:
            k.close()


# ---- start and stop ----

def run_serve(*args, env=None, seconds=30):
    return subprocess.run(args, env=dict({"PATH": os.environ["PATH"], "HOME": "/"}, **(env or {})), capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=seconds * SLOW)


def test_a_start_that_fails_says_why_and_leaves_nothing(tmp_path):
    taken = socket.create_server(("127.0.0.1", 0))
    port = taken.getsockname()[1]
    (tmp_path / "file").write_text("x")
    (tmp_path / "db").mkdir()
    (tmp_path / "db" / "sandgate.db").write_bytes(b"nonsense" * 1000)
    (tmp_path / "key").mkdir()
    (tmp_path / "key" / "audit.key").write_bytes(b"short")
    os.chmod(tmp_path / "key" / "audit.key", 0o600)
    (tmp_path / "bin").mkdir()
    lone = tmp_path / "bin" / "sandgate"
    with open(BIN, "rb") as f:
        lone.write_bytes(f.read())
    os.chmod(lone, 0o755)

    def attempt(word, binary=BIN, state="s", listen="127.0.0.1:0", env=None):
        r = run_serve(str(binary), "serve", "--state-dir", str(tmp_path / state), "--listen", listen, env=env)
        assert r.returncode == 1 and word in r.stderr, r
        assert "Sanitizer" not in r.stderr, r.stderr
        assert not any(str(tmp_path) in line for line in open("/proc/mounts"))
        assert not os.path.exists(tmp_path / state / "slots") or not os.listdir(tmp_path / state / "slots")

    attempt("Address already in use", listen=f"127.0.0.1:{port}")
    attempt("Address already in use", env={"SANDGATE_METRICS_LISTEN": f"127.0.0.1:{port}"})
    attempt("HOST:PORT", listen="nonsense")
    attempt("loopback", listen="0.0.0.0:0")
    attempt("state directory", state="file")
    attempt("state directory", state="file/below")
    attempt("sandgate.db is damaged", state="db")
    attempt("audit.key", state="key")
    attempt("bubblewrap", env={"PATH": "/nonexistent"})
    attempt("sandgate-agent", binary=lone)
    attempt("docker", env={"SANDGATE_BACKENDS_ENABLED": "docker"})
    attempt("size", env={"SANDGATE_LOCAL_BWRAP_SIZE": "0"})
    with Server() as s:
        r = run_serve(BIN, "serve", "--state-dir", s.state, "--listen", "127.0.0.1:0")
        assert r.returncode == 1 and "in use by another sandgate server" in r.stderr, r
        assert s.client().get("/readyz").status == 200
    taken.close()


@pytest.mark.parametrize("kind,disk", [(kind, disk) for kind in server_kinds() for disk in ("tmpfs", "dir")])
def test_the_state_directory_may_be_anywhere(kind, disk):
    """Also where /tmp is not on the way to it, as /var/lib/sandgate."""
    with Server({"local_bwrap": {"size": 1, "disk": disk}}, where="/var/tmp", user=account(kind)) as s:
        s.wait_slots(1)
        c = s.client()
        lease = c.lease()
        assert c.exec(lease, "echo x > /tmp/x; cat /tmp/x; ls -A /workspace")["stdout"] == "x\n"
        c.terminate(lease)


def test_a_log_that_nobody_reads_stops_nothing():
    """As docker's or journald's end of the pipe when it hangs, and `sandgate serve 2>&1 | less`."""
    ours, theirs = os.pipe()
    s = without_log()
    try:
        s.process = subprocess.Popen(s.command(), stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env={"PATH": os.environ["PATH"], "HOME": "/"})
        os.close(theirs)
        s.port = listening_port(s.process)
        s.wait_ready()
        fcntl.fcntl(ours, fcntl.F_SETPIPE_SZ, 4096)
        c = s.client()
        for _ in range(60):
            assert c.get("/leases?trajectory_id=" + "x" * 100, timeout=5 * SLOW).status == 200
        assert c.exec(c.lease(), "echo x")["stdout"] == "x\n"
        c.close()
        assert s.stop() == 0
    finally:
        if s.process:
            s.kill9()
        s.clean()
        os.close(ours)


def without_log():
    s = Server({"local_bwrap": {"size": 1}})
    open(s.log_path, "w").close()
    return s


def listening_port(process):
    """Of a server whose log is not to be read."""
    def look():
        assert process.poll() is None, process.returncode
        fds = f"/proc/{process.pid}/fd"
        inodes = set()
        for fd in os.listdir(fds):
            with contextlib.suppress(OSError):
                inodes.add(os.readlink(f"{fds}/{fd}"))
        with open(f"/proc/{process.pid}/net/tcp") as f:
            rows = [line.split() for line in f][1:]
        return next((int(r[1].split(":")[1], 16) for r in rows if r[3] == "0A" and f"socket:[{r[9]}]" in inodes), None)
    return wait_until(look, 20)


def test_closed_standard_descriptors_are_nobodys():
    """Else a file of the server's would be where everybody writes errors."""
    s = without_log()
    try:
        s.process = subprocess.Popen(["sh", "-c", "exec \"$@\" <&- >&- 2>&-", "sh", *s.command()], env={"PATH": os.environ["PATH"], "HOME": "/"})
        s.port = listening_port(s.process)
        s.wait_ready()
        c = s.client()
        assert c.exec(c.lease(), "echo out; echo err >&2; cat")["stdout"] == "out\n"
        assert [os.readlink(f"/proc/{s.process.pid}/fd/{fd}") for fd in range(3)] == ["/dev/null"] * 3
        assert s.stop() == 0
    finally:
        if s.process:
            s.kill9()
        s.clean()


def test_signals_at_any_moment_of_the_start(soak):
    rng = random.Random(17)
    for _ in range(30 if soak else 8):
        s = Server()
        try:
            with open(s.log_path, "ab") as log:
                s.process = subprocess.Popen(s.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                             env={"PATH": os.environ["PATH"], "HOME": "/"}, start_new_session=True)
            time.sleep(rng.random() * 0.3 * SLOW)
            s.process.send_signal(rng.choice([signal.SIGTERM, signal.SIGINT]))
            assert s.process.wait(20 * SLOW) in (0, -signal.SIGTERM, -signal.SIGINT), s.log_text()
            s.process = None
            assert not any(s.dir in line for line in open("/proc/mounts"))
        finally:
            if s.process:
                s.kill9()
            s.clean()


def test_a_half_sent_request_does_not_hold_the_stop():
    with Server({"server": {"drain_timeout": "20s"}, "local_bwrap": {"size": 1}}) as s:
        s.wait_slots(1)
        open_ = []
        for _ in range(5):
            k = s.connect()
            k.sendall(request("POST", "/leases", {"acquire_timeout": 1})[:-3])
            open_.append(k)
            gone = s.connect()
            gone.sendall(request("POST", "/leases", {"acquire_timeout": 1})[:-3])
            gone.close()
        time.sleep(0.2)
        began = time.monotonic()
        assert s.stop() == 0
        assert time.monotonic() - began < 3 * SLOW
        for k in open_:
            k.close()


def test_a_reload_while_draining_and_a_broken_one():
    with Server({"server": {"drain_timeout": "20s"}, "local_bwrap": {"size": 2}}) as s:
        c = s.client()
        id = c.lease()
        with open(os.path.join(s.dir, "config.yaml"), "w") as f:
            f.write("{nonsense: [")
        s.process.send_signal(signal.SIGHUP)
        wait_until(lambda: any(e.get("event") == "reload_failed" for e in s.log_events()), 10)
        assert c.exec(id, "echo up")["stdout"] == "up\n"
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            run = pool.submit(Client(s).exec_response, id, "sleep 2; echo done")
            wait_until(lambda: c.get(f"/leases/{id}/exec").json()["items"], 10)
            s.process.send_signal(signal.SIGTERM)
            wait_until(lambda: c.get("/readyz").status == 503, 10)
            s.process.send_signal(signal.SIGHUP)
            assert c.post("/leases", {}).code == "shutting_down"
            r = run.result()
        assert r.status == 200 and r.json()["stdout"] == "done\n", r
        assert s.process.wait(20 * SLOW) == 0
