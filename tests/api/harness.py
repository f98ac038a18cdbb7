"""A real server for black-box tests, and a small HTTP client.

    with Server() as s:
        lease = s.client().lease()
        r = s.client().exec(lease, "echo hi")

Only the standard library. The binary is $SANDGATE_BIN (default build/sandgate). Every answer a Client sees is appended to
$SANDGATE_OBSERVED (JSON lines) when that is set, so that the contract check can compare it with the API description.
"""
import base64
import contextlib
import copy
import http.client
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.parse

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("SANDGATE_BIN", os.path.join(ROOT, "build", "sandgate"))
START_SECONDS = 30
# Sanitizer builds are several times slower: tests that bound a time scale by this.
SLOW = float(os.environ.get("SANDGATE_TEST_SLOW", "1"))


class Response:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body)

    @property
    def code(self):
        return self.json().get("code") if self.body[:1] == b"{" else None

    def header(self, name):
        return self.headers.get(name)

    def __repr__(self):
        return f"<{self.status} {self.body[:600]!r}>"


def check_answer(method, path, r):
    """What holds for every answer of ours, whatever a test is about."""
    if "/proxy/" in path and not r.header("Sandgate-Error"):
        return  # the service's own
    assert r.header("X-Request-Id"), r
    if r.status < 400:
        return
    assert r.header("Content-Type") == "application/problem+json" and r.header("Cache-Control") == "no-store", (r.headers.items(), r)
    if r.status == 401:
        assert r.header("WWW-Authenticate") == "Bearer"
    if r.status == 405:
        assert r.header("Allow")
    if method == "HEAD":
        return
    p = r.json()
    assert {"type", "title", "status", "detail", "code", "request_id"} <= set(p), p
    assert p["status"] == r.status and p["request_id"] == r.header("X-Request-Id") and p["detail"] and p["title"], p
    assert p["type"] == "urn:sandgate:error:" + p["code"] and re.fullmatch("[a-z][a-z0-9_]*", p["code"]), p
    if r.status in (429, 503):
        assert int(r.header("Retry-After")) == p["retry_after"] >= 1, (r.headers.items(), p)


class Client:
    """One keep-alive connection per thread. Raises OSError/HTTPException when the connection breaks."""

    def __init__(self, server, token=None, prefix=""):
        self.server, self.token, self.prefix = server, token, prefix
        self._local = threading.local()

    def _connection(self, timeout):
        c = getattr(self._local, "c", None)
        if c is None or self._local.port != self.server.port:
            c = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=timeout)
            self._local.c, self._local.port = c, self.server.port
        c.timeout = timeout
        if c.sock:
            c.sock.settimeout(timeout)
        return c

    def request(self, method, path, body=None, headers=None, timeout=60, raw=False):
        """body: bytes are sent as they are, an iterator is sent chunked, anything else becomes JSON."""
        headers = dict(headers or {})
        if method == "POST" and path in ("/leases", "/select") and isinstance(body, dict) and self.server.policy:
            body = {**body, "policy": {**self.server.policy, **(body.get("policy") or {})}}
        if self.token and not any(h.lower() in ("authorization", "x-api-key") for h in headers):
            headers["Authorization"] = "Bearer " + self.token
        if body is not None and not isinstance(body, (bytes, bytearray)) and not hasattr(body, "__next__"):
            body = json.dumps(body).encode()
            headers.setdefault("Content-Type", "application/json")
        c = self._connection(timeout)
        fresh = c.sock is None
        try:
            return self._exchange(c, method, path, body, headers)
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            # A kept connection that the server closed meanwhile: once more on a new one, when that is safe.
            self.close()
            if fresh or hasattr(body, "__next__") or method not in ("GET", "HEAD", "OPTIONS"):
                raise
            return self._exchange(self._connection(timeout), method, path, body, headers)
        except Exception:
            self.close()
            raise

    def _exchange(self, c, method, path, body, headers):
        chunked = hasattr(body, "__next__")
        c.request(method, self.prefix + path, body=body, headers=headers, encode_chunked=chunked and "Content-Length" not in headers)
        r = c.getresponse()
        out = Response(r.status, r.headers, r.read())
        if r.will_close:
            self.close()
        check_answer(method, self.prefix + path, out)
        self.server.observe(method, self.prefix + path, out)
        return out

    def close(self):
        c = getattr(self._local, "c", None)
        if c is not None:
            c.close()
        self._local.c = None

    def get(self, path, **kw):
        return self.request("GET", path, **kw)

    def post(self, path, body=None, **kw):
        return self.request("POST", path, body, **kw)

    def put(self, path, body=b"", **kw):
        return self.request("PUT", path, body, **kw)

    def delete(self, path, **kw):
        return self.request("DELETE", path, **kw)

    # ---- the few words every test needs ----

    def lease(self, **body):
        r = self.post("/leases", body)
        assert r.status in (200, 201), r
        return r.json()["id"]

    def terminate(self, lease):
        r = self.delete(f"/leases/{lease}")
        assert r.status in (200, 202), r
        return r.json()

    def exec_response(self, lease, command, http_timeout=90, **body):
        return self.post(f"/leases/{lease}/exec", dict(body, command=command), timeout=http_timeout)

    def exec(self, lease, command, **body):
        r = self.exec_response(lease, command, **body)
        assert r.status == 200, r
        return r.json()

    def file_url(self, lease, path, **query):
        return f"/leases/{lease}/files?" + urllib.parse.urlencode(dict(query, path=path))

    def read(self, lease, path, **kw):
        return self.get(self.file_url(lease, path), **kw)

    def write(self, lease, path, data, **query):
        return self.put(self.file_url(lease, path, **query), data)


def output(result, name="stdout"):
    """The bytes of an output stream of an exec result."""
    data = result[name]
    return base64.b64decode(data) if result[name + "_encoding"] == "base64" else data.encode()


# What the kernel counts per user (processes, descriptors under way) servers of one user share, so every server here gets users of its
# own, also beside other runs on this machine: a block for its sandboxes, and one to run as if it is not to be ours.
USERS_PER_SERVER = 256
_block = itertools.count()


def users():
    """The first of a block of user ids that nobody else has."""
    return 400000000 + 4096 * (os.getpid() % 400000) + USERS_PER_SERVER * (next(_block) % (4096 // USERS_PER_SERVER))


class Server:
    """config: a dict (YAML is a superset of JSON). user: run as this user id instead of our own. where: a directory for its own."""

    def __init__(self, config=None, env=None, user=None, args=(), binary=None, policy=None, where=None):
        self.policy = policy or {}  # what every selection has in its policy that does not say otherwise
        self.config, self.env, self.user, self.args = copy.deepcopy(config or {}), env or {}, user, list(args)
        self.uid_base = self.config.setdefault("local_bwrap", {}).setdefault("uid_base", users())
        self.binary = binary or BIN
        self.dir = tempfile.mkdtemp(prefix="sandgate-test-", dir=where)
        os.chmod(self.dir, 0o755)
        self.state = os.path.join(self.dir, "state")
        self.log_path = os.path.join(self.dir, "log")
        self.process, self.port = None, None
        os.mkdir(self.state, 0o700)
        if user:
            os.chown(self.state, user, user)

    def __enter__(self):
        try:
            return self.start()
        except BaseException:
            if self.process and self.process.poll() is None:  # it never became ready; nobody else would end it
                self.kill9()
            self.clean()
            raise

    def __exit__(self, *exc):
        self.stop()
        self.clean()

    def command(self):
        path = os.path.join(self.dir, "config.yaml")
        with open(path, "w") as f:
            json.dump(self.config, f)
        cmd = [self.binary, "serve", "--config", path, "--state-dir", self.state, "--listen", "127.0.0.1:0", *self.args]
        if self.user:
            cmd = ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups", "--inh-caps=-all", *cmd]
        return cmd

    def start(self, ready=True):
        env = {"PATH": os.environ["PATH"], "HOME": "/"}
        env.update({k: v for k, v in os.environ.items() if k.endswith("SAN_OPTIONS")})
        env.update(self.env)
        with open(self.log_path, "ab") as log:
            offset = log.tell()
            self.process = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env,
                                            start_new_session=True)
        self.port = self._port(offset)
        if ready:
            self.wait_ready()
        return self

    def _port(self, offset):
        deadline = time.monotonic() + START_SECONDS * SLOW
        while time.monotonic() < deadline:
            with open(self.log_path, "rb") as log:
                log.seek(offset)
                for line in log.read().splitlines():
                    if line.startswith(b"{") and b'"listening"' in line:
                        event = json.loads(line)
                        if event.get("event") == "listening":
                            return urllib.parse.urlsplit(event["url"]).port
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended with {self.process.returncode}:\n{self.log_text()}")
            time.sleep(0.01)
        raise RuntimeError("the server did not listen in time:\n" + self.log_text())

    def wait_ready(self):
        deadline = time.monotonic() + START_SECONDS * SLOW
        c = Client(self)
        while time.monotonic() < deadline:
            if c.get("/readyz").status == 200:
                c.close()
                return
            time.sleep(0.01)
        raise RuntimeError("the server did not become ready:\n" + self.log_text())

    def wait_slots(self, n, pool="default", token=None):
        """Until n slots of the pool are READY."""
        deadline = time.monotonic() + START_SECONDS * SLOW
        c = Client(self, token)
        while time.monotonic() < deadline:
            r = c.get(f"/slots/{pool}")
            if r.status == 200 and r.json()["ready"] >= n:
                c.close()
                return
            time.sleep(0.01)
        raise RuntimeError(f"{n} slots did not become ready: {r}")

    def wait_warm(self, n, seconds=20):
        """Until n warm containers may be taken: one that runs is not ready yet."""
        c = Client(self)
        wait_until(lambda: next(b for b in c.get("/backends").json()["items"] if b["name"] == "docker")["warm"]["ready"] == n, seconds, f"{n} are ready")
        c.close()

    def client(self, token=None, prefix=""):
        return Client(self, token, prefix)

    def log_text(self):
        with open(self.log_path, errors="replace") as f:
            return f.read()

    def log_events(self):
        return [json.loads(line) for line in self.log_text().splitlines() if line.startswith("{")]

    def stop(self, timeout=40):
        """SIGTERM; returns the exit code."""
        if self.process is None:
            return None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout * SLOW)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise RuntimeError("the server did not stop:\n" + self.log_text())
        code = self.process.returncode
        self.process = None
        assert not self.sanitizer_reports(), self.sanitizer_reports()
        return code

    def sanitizer_reports(self):
        """What AddressSanitizer and its like wrote between the lines of the log."""
        text = "\n".join(line for line in self.log_text().splitlines() if not line.startswith("{"))
        found = any(s in text for s in ("ERROR: AddressSanitizer", "runtime error:", "WARNING: ThreadSanitizer",
                                        "ERROR: LeakSanitizer"))
        return text[:20000] if found else ""

    def kill9(self):
        self.process.kill()
        self.process.wait()
        self.process = None

    def clean(self):
        shutil.rmtree(self.dir, ignore_errors=True)

    # ---- looking at the process from outside ----

    def pid(self):
        return self.process.pid

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.pid()}/fd"))

    def open_files(self):
        paths = []
        for fd in os.listdir(f"/proc/{self.pid()}/fd"):
            with contextlib.suppress(FileNotFoundError):
                paths.append(os.readlink(f"/proc/{self.pid()}/fd/{fd}"))
        return paths

    def threads(self):
        return len(os.listdir(f"/proc/{self.pid()}/task"))

    def rss_kib(self):
        with open(f"/proc/{self.pid()}/status") as f:
            for line in f:
                if line.startswith("VmRSS:"):
                    return int(line.split()[1])
        return 0

    def connect(self, timeout=30):
        """A raw socket to the server."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout)

    def observe(self, method, path, response):
        name = os.environ.get("SANDGATE_OBSERVED")
        if not name:
            return
        body = response.body
        entry = {"method": method, "path": path.split("?")[0], "status": response.status,
                 "type": response.headers.get("Content-Type"), "own": response.headers.get("Sandgate-Error")}
        if entry["type"] and "json" in entry["type"] and len(body) < 200000:
            entry["body"] = body.decode(errors="replace")
        os.makedirs(os.path.dirname(name), exist_ok=True)
        with open(name, "a") as f:
            f.write(json.dumps(entry) + "\n")


def wait_until(condition, seconds=10, what="condition"):
    """Polls a condition of the outside world; the bound is generous because it only matters when the test fails."""
    deadline = time.monotonic() + seconds * SLOW
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"{what} did not come true within {seconds * SLOW} s")


# ---- processes, seen from outside ----

class Process:
    """A process of this machine; fields are as of the look."""

    def __init__(self, pid):
        with open(f"/proc/{pid}/stat") as f:
            text = f.read()
        rest = text[text.rindex(")") + 2:].split()
        self.pid, self.comm, self.state, self.parent = pid, text[text.index("(") + 1:text.rindex(")")], rest[0], int(rest[1])
        self.start = rest[19]

    def inside(self):
        """Its pid in each PID namespace it is in, from ours to its own."""
        with open(f"/proc/{self.pid}/status") as f:
            return [int(n) for line in f if line.startswith("NSpid:") for n in line.split()[1:]]

    def is_init(self):
        """First process of a sandbox? (The spawner is that of a namespace too, one level above.)"""
        try:
            inside = self.inside()
        except OSError:
            return False
        return len(inside) > 2 and inside[-1] == 1


def processes_below(pid):
    """All living descendants of a process, nearest first."""
    all = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            p = Process(int(name))
        except OSError:
            continue
        if p.state not in "ZX":
            all.setdefault(p.parent, []).append(p)
    found, at = [], [pid]
    while at:
        children = all.get(at.pop(0), [])
        found += children
        at += [p.pid for p in children]
    return found
