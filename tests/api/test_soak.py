"""Everything at once, for as long as wanted: leases come and go, commands run, stream, are followed, killed and left alone, files and
directories move, services are reached, clients hang up, sandboxes die. In rounds: after each all is at rest, and nothing is more than
it was after the first one, of processes, mounts, control groups, descriptors, threads, slots in use, memory.

Two short rounds; with --soak and --minutes (./dev soak MINUTES) as many of half a minute as fit."""
import hashlib
import json
import os
import random
import signal
import sys
import time
import traceback

import pytest

import ws
from conftest import account, server_kinds
from harness import SLOW, Server, processes_below, wait_until
from sandboxed import open_socket, start
from test_files_depth import get_tar, make_tar, put_tar
from test_pool_chaos import Load, left, more
from streams import NDJSON, SSE, data, detach, follow, numbered, run

SLOTS = 6
# Ended leases and commands are remembered, which is memory; here only for a moment.
CONFIG = {"local_bwrap": {"size": SLOTS, "health_interval": "1s"}, "leases": {"lease_retention": "2s"},
          "exec": {"history_ttl": "1s", "history_bytes": "256KiB"}, "server": {"public_domain": "sbx.example"}}
LOADS = 5
MEMORY_KIB = 24 * 1024  # more than after the second round

ECHO = """
import http.server
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *a): pass
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers(); self.wfile.write(body)
s = http.server.ThreadingHTTPServer(("127.0.0.1", 8000), H)
background()
s.serve_forever()
"""

# One WebSocket after the other, each echoed frame by frame.
SOCKETS = """
import socket, ws
class Conn:
    def __init__(self, sock): self.file = sock.makefile("rwb", 0)
    def exact(self, n):
        out = b""
        while len(out) < n:
            piece = self.file.read(n - len(out))
            if not piece: raise EOFError
            out += piece
        return out
s = socket.create_server(("127.0.0.1", 8100))
background()
while True:
    k = s.accept()[0]
    try:
        c, fields = Conn(k), []
        line = b""
        while not line.endswith(b"\\r\\n\\r\\n"): line += c.exact(1)
        for l in line.decode().split("\\r\\n")[1:]:
            n, _, v = l.partition(":")
            fields.append((n, v.strip()))
        k.sendall(ws.accept(fields))
        while True:
            opcode, data = ws.read_frame(c)
            k.sendall(ws.frame(opcode, data, False))
            if opcode == ws.CLOSE: break
    except (EOFError, OSError): pass
    k.close()
"""


class Everything(Load):
    """Each turn is a lease with a few uses out of all there are."""

    def __init__(self, s, seed):
        super().__init__(s, seed, ["default"])
        self.server, self.uses = s, {}

    def pick(self, *choices):
        return self.random.choice(choices)

    def bytes(self, most):
        return self.random.randbytes(self.random.randrange(most))

    def one(self):
        short = self.random.random() < 0.1
        r = self.client.post("/leases", {"acquire_timeout": 60 * SLOW, "timeout_sec": 1 if short else 600, "env": {"A": "b"}})
        if not self.good(r, "create"):
            return
        id = self.id = r.json()["id"]
        self.leases.append(id)
        for _ in range(self.random.randrange(1, 6)):
            use = self.pick(self.command, self.streamed, self.hung_up, self.detached, self.killed, self.file, self.directory, self.service, self.sockets,
                            self.tokens, self.terminal, self.refused, self.descendants)
            try:
                use(id)
                self.uses[use.__name__] = self.uses.get(use.__name__, 0) + 1
            except Exception as e:  # noqa: BLE001
                # Fine only when the lease has ended meanwhile, by its time or with its sandbox: that is then what it says.
                if not self.over(id, short):
                    self.faults.append(f"{use.__name__}: {e!r}")
                break
        if not short:
            r = self.client.delete(f"/leases/{id}")
            assert r.status in (200, 202), r
        self.done += 1

    def over(self, id, short):
        self.client.close()

        def state():
            r = self.client.get(f"/leases/{id}")
            return "forgotten" if r.status == 404 else r.json()["state"]

        try:
            wait_until(lambda: state() != "ready", seconds=5 if not short else 10, what="its end")
        except AssertionError:
            return False
        self.lost += state() == "lost"
        return state() == "lost" or short

    # ---- what is done in a lease ----

    def command(self, id):
        n = self.random.randrange(200000)
        r = self.client.exec(id, f"head -c {n} /dev/zero | tr '\\0' x; cat >&2; exit 3", stdin="in")
        assert (len(r["stdout"]), r["stderr"], r["returncode"]) == (n, "in", 3), r

    def streamed(self, id):
        n = self.random.randrange(1, 300000)
        with run(self.server, id, f"head -c {n} /dev/urandom | tee f; md5sum < f >&2; rm f", self.pick(NDJSON, SSE)) as s:
            events = numbered(s.all())
        assert hashlib.md5(data(events)).hexdigest() == data(events, "stderr").split()[0].decode() and events[-1]["returncode"] == 0

    def hung_up(self, id):
        command, events = self.pick(("yes", 20), ("sleep 600", 1), ("cat /dev/zero", 20), ("while :; do echo x; sleep 0.01; done", 5))
        with run(self.server, id, command, step=4096) as s:
            for _, e in zip(range(self.random.randrange(events) + 1), s.events()):
                assert e["type"] in ("start", "stdout"), e
        wait_until(lambda: not self.running(id), what="a command whose caller has left to end")

    def running(self, id):
        r = self.client.get(f"/leases/{id}/exec")
        return [i for i in r.json()["items"] if i["state"] == "running"]

    def detached(self, id):
        eid = detach(self.client, id, "for i in $(seq 50); do echo $i; done; read x; echo $x", stdin=None)
        with follow(self.server, id, eid) as s:
            seen = 0
            for e in s.events():
                seen = e["seq"]
                if e["type"] == "stdout":
                    break
        assert self.client.post(f"/leases/{id}/exec/{eid}/stdin?eof=1", b"end\n").status == 200
        with follow(self.server, id, eid, seen) as s:
            events = numbered(s.all(), seen + 1)
        assert events[-1]["type"] == "exit" and events[-1]["returncode"] == 0, events[-1]

    def killed(self, id):
        eid = detach(self.client, id, "trap '' TERM; echo up; (setsid sleep 600 & sleep 600) & sleep 600")
        with follow(self.server, id, eid) as s:
            next(e for e in s.events() if e["type"] == "stdout")
        assert self.client.post(f"/leases/{id}/exec/{eid}/signal", {"signal": "TERM"}).status == 200
        assert self.client.delete(f"/leases/{id}/exec/{eid}").status == 200
        with follow(self.server, id, eid) as s:
            assert s.all()[-1]["killed_by"] == "caller"

    def file(self, id):
        content, name = self.bytes(1 << 20), f"dir/{self.random.randrange(5)}"
        assert self.client.write(id, name, content).status in (200, 201)
        r = self.client.read(id, name, headers={"Range": "bytes=10-"} if len(content) > 10 else {})
        assert r.body == (content[10:] if len(content) > 10 else content)
        assert self.client.exec(id, ["md5sum", name])["stdout"].split()[0] == hashlib.md5(content).hexdigest()
        k = self.server.connect()  # an upload that is left alone
        k.sendall(f"PUT /leases/{id}/files?path=cut HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\nxx".encode())
        k.close()

    def directory(self, id):
        files = {f"f{i}": self.bytes(20000) for i in range(self.random.randrange(1, 30))}
        r = put_tar(self.client, id, "t", make_tar(*files.items()))
        assert r.status == 201, r
        t = get_tar(self.client, id, "t")
        got = {m.name: t.extractfile(m).read() for m in t.getmembers() if m.isfile()}
        assert {n: got[n] for n in files} == files
        assert self.client.delete(self.client.file_url(id, "t", recursive="true")).status in (200, 204)

    def service(self, id):
        if not self.client.get(f"/leases/{id}/files/stat?path=/tmp/echo").status == 200:
            start(self.client, id, ECHO)
            self.client.write(id, "/tmp/echo", b"")
        for _ in range(3):
            body = self.bytes(300000)
            r = self.client.post(f"/leases/{id}/proxy/8000/x", body, headers={"Content-Type": "application/octet-stream"})
            assert r.status == 200 and r.body == body, r
        k = self.server.connect()
        k.sendall(f"POST /leases/{id}/proxy/8000/ HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\nxx".encode())
        k.close()

    def sockets(self, id):
        if not self.client.get(f"/leases/{id}/files/stat?path=/tmp/sockets").status == 200:
            with open(os.path.join(os.path.dirname(__file__), "ws.py"), "rb") as f:
                self.client.write(id, "ws.py", f.read())
            start(self.client, id, SOCKETS)
            self.client.write(id, "/tmp/sockets", b"")
        c, status, _ = open_socket(self.server, id, None)
        try:
            assert status == 101, status
            for _ in range(5):
                message = self.bytes(70000)
                c.send(ws.frame(ws.BINARY, message, True))
                assert ws.read_frame(c) == (ws.BINARY, message)
        finally:
            c.close()

    def tokens(self, id):
        r = self.client.post(f"/leases/{id}/endpoints", {"port": 9, "ttl": 60})
        assert r.status in (200, 201), r
        assert self.client.get(f"/leases/{id}/proxy/9/", headers=r.json()["headers"]).status == 503
        assert self.client.delete(f"/leases/{id}/endpoints/{r.json()['token_id']}").status in (200, 204)

    def terminal(self, id):
        r = self.client.exec(id, "stty size", tty={"rows": 11, "cols": 22})
        assert r["stdout"] == "11 22\r\n", r

    def refused(self, id):
        for path, body in ((f"/leases/{id}/exec", {"command": ""}), (f"/leases/{id}/exec", {"command": "true", "cwd": "/none"}),
                           ("/leases", {"nope": 1}), (f"/leases/{id}/endpoints", {"port": 0})):
            assert self.client.post(path, body).status in (400, 404, 410, 422)
        assert self.client.exec(id, ["nosuchcmd"])["returncode"] == 127
        assert self.client.read(id, "none").status == 404 and self.client.get(f"/leases/{id}/exec/none").status == 404

    def descendants(self, id):
        r = self.client.exec(id, "for i in $(seq 20); do setsid sleep 600 >/dev/null 2>&1 & done; echo ok")
        assert r["stdout"] == "ok\n", r


def strike(server, choice):
    """A process of a sandbox dies; not the spawner, nor what it runs for a moment."""
    victims = [p for p in processes_below(server.pid()) if p.parent != server.pid() and p.is_init()]
    if victims:
        try:
            os.kill(choice.choice(victims).pid, signal.SIGKILL)
        except OSError:
            pass


def play(server, seed, seconds):
    """One round; its loads, which have ended."""
    choice = random.Random(seed)
    loads = [Everything(server, seed + i) for i in range(LOADS)]
    end = time.monotonic() + seconds
    for l in loads:
        l.start()
    while time.monotonic() < end:
        time.sleep(min(choice.uniform(0.5, 4), max(0, end - time.monotonic())))
        if choice.random() < 0.5:
            strike(server, choice)
    for l in loads:
        l.stopping.set()
    end = time.monotonic() + 120 * SLOW
    for l in loads:
        l.join(max(0, end - time.monotonic()))
    hanging = ["".join(traceback.format_stack(sys._current_frames()[l.ident])) for l in loads if l.is_alive()]
    assert not hanging, hanging[0]
    return loads


def at_rest(server):
    """Every slot is free and fresh, nothing is being done, ended leases are forgotten."""
    server.wait_slots(SLOTS)
    c = server.client()

    def idle():
        slots = c.get("/slots").json()["items"]
        return all(p["waiters"] == 0 and p["leased"] == 0 for p in slots) and not c.get("/leases?limit=1").json()["items"]

    wait_until(idle, 30, "rest")
    c.close()


@pytest.mark.parametrize("kind", server_kinds())
def test_everything_at_once(kind, soak, request):
    seed = int(os.environ.get("SANDGATE_SOAK_SEED", random.getrandbits(32)))
    print("SANDGATE_SOAK_SEED =", seed)
    seconds = 60 * float(request.config.getoption("--minutes")) if soak else 6
    rounds = max(2, int(seconds / 30)) + 1
    with Server(CONFIG, user=account(kind)) as s:
        s.wait_slots(SLOTS)
        before = memory = None
        for n in range(rounds):
            loads = play(s, seed + 100 * n, seconds / rounds)
            faults = [f for l in loads for f in l.faults]
            assert not faults, (seed, n, faults[:5])
            at_rest(s)
            uses = {}
            for l in loads:
                for k, v in l.uses.items():
                    uses[k] = uses.get(k, 0) + v
            print(f"round {n}: {sum(l.done for l in loads)} leases, {sum(l.lost for l in loads)} lost, {s.rss_kib()} KiB,", json.dumps(uses))
            assert sum(l.done for l in loads) > 0
            if before is None:
                before = left(s)
                continue
            try:
                wait_until(lambda: not more(left(s), before), 20, "the same as before")
            except AssertionError:
                raise AssertionError(f"seed {seed}, round {n}: left over {more(left(s), before)}") from None
            memory = memory or s.rss_kib()
            assert SLOW > 1 or s.rss_kib() < memory + MEMORY_KIB, (seed, n, memory, s.rss_kib())
