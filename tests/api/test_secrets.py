"""Secrets stay where they are: canaries in every place that holds one, then a look at everything the server says, writes and starts."""
import base64
import hashlib
import json
import os
import resource
import signal
import subprocess
import sys

import pytest

from conftest import account, server_kinds
from harness import BIN, SLOW, Server, wait_until
from sandboxed import start

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "raw"))
from rawhttp import Conn  # noqa: E402

PROVIDERS = ["E2B_API_KEY", "MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET", "DAYTONA_API_KEY", "BLAXEL_API_KEY", "RUNLOOP_API_KEY"]
BY_FILE = "VERCEL_TOKEN"


def canary(what):
    return f"canary.{what}.{hashlib.sha256(what.encode()).hexdigest()[:24]}"


ADMIN, TENANT, WRONG, TYPO = canary("admin"), canary("tenant"), canary("wrong"), canary("typo")
# What tenants give their own commands is theirs: the server passes it on. Only the environment of a lease is kept, with the lease.
THEIRS, KEPT = canary("theirs"), canary("kept")
DOMAIN = "sbx.example"


def forms(secret):
    """As it is, and as it looks in Basic credentials or in a URL."""
    return {secret, base64.b64encode(secret.encode()).decode().rstrip("="), base64.b64encode(b"user:" + secret.encode()).decode().rstrip("="),
            base64.b64encode(b":" + secret.encode()).decode().rstrip("="), secret.replace(".", "%2E"), secret.encode().hex()}


class Look:
    """Fails when one of the secrets is in what it is shown."""

    def __init__(self, *secrets):
        self.secrets = {f.encode() for s in secrets for f in forms(s)}

    def at(self, data, where):
        data = data if isinstance(data, bytes) else data.encode()
        found = [s for s in self.secrets if s in data]
        assert not found, (where, found, data[max(0, data.find(found[0]) - 200):][:500])

    def at_answer(self, r, where):
        self.at(r.body, where)
        self.at(str(r.headers.items()), where)


ECHO = """
import http.server, json
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *a): pass
    def do_GET(self):
        out = json.dumps([self.requestline, self.headers.items()]).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(out))); self.end_headers(); self.wfile.write(out)
s = http.server.ThreadingHTTPServer(("127.0.0.1", 8000), H)
background()
s.serve_forever()
"""


@pytest.fixture(scope="module", params=server_kinds())
def world(request):
    """A server with canaries everywhere, at its most talkative, of each kind."""
    tokens = [{"name": n, "sha256": hashlib.sha256(t.encode()).hexdigest(), "tenant": n, "role": r}
              for n, t, r in (("ops", ADMIN, "admin"), ("one", TENANT, "tenant"))]
    s = Server({"local_bwrap": {"size": 3}, "auth": {"tokens": tokens}, "log": {"level": "debug"}, "server": {"public_domain": DOMAIN}}, user=account(request.param))
    secret = os.path.join(s.dir, "vercel")
    with open(secret, "w") as f:
        f.write(canary(BY_FILE) + "\n")
    s.env = dict({name: canary(name) for name in PROVIDERS}, **{BY_FILE + "_FILE": secret})
    with s:
        s.wait_slots(3, token=ADMIN)
        s.admin, s.one, s.nobody = s.client(ADMIN), s.client(TENANT), s.client()
        s.lease = s.one.lease(services=[{"name": "web", "port": 8000}], trajectory_id="t", metadata={"m": 1})
        s.endpoint = s.one.get(f"/leases/{s.lease}/endpoints/8000").json()["headers"]["Sandgate-Endpoint-Token"]
        s.issued = s.one.post(f"/leases/{s.lease}/endpoints", {"port": 8000, "ttl": 600}).json()["headers"]["Sandgate-Endpoint-Token"]
        s.keys = [open(os.path.join(s.state, f), "rb").read() for f in os.listdir(s.state) if f.endswith(".key")]
        assert len(s.keys) == 3
        yield s


def everything(world):
    return Look(ADMIN, TENANT, WRONG, TYPO, THEIRS, KEPT, world.endpoint, world.issued, *(canary(n) for n in PROVIDERS + [BY_FILE]))


def test_the_canaries_are_where_they_belong(world):
    """Else the rest of this file would prove nothing. The server has its variables, but does not show them to others of its user."""
    with open(f"/proc/{world.pid()}/environ", "rb") as f:
        assert canary("E2B_API_KEY").encode() not in f.read()
    held = {c["name"]: c["held"] for b in world.one.get("/backends").json()["items"] for c in b["credentials"]}
    assert all(held[n] for n in PROVIDERS + [BY_FILE]), held
    assert world.one.get("/leases").status == 200 and world.endpoint.startswith("ept_")


def test_what_the_server_answers(world):
    look = everything(world)
    receipt = world.one.get(f"/leases/{world.lease}").json()["receipt_id"]
    for path in ("/backends", "/pools", "/slots", "/slots/default", "/audit?limit=1000", "/metrics", "/version", "/healthz", "/readyz",
                 f"/receipts/{receipt}", f"/leases/{world.lease}/exec", f"/leases/{world.lease}/files/list", "/openapi.json"):
        r = world.admin.get(path)
        assert r.status == 200, (path, r)
        look.at_answer(r, path)
    for body in ({}, {"policy": {"override": "e2b", "allow_paid": True}}, {"policy": {"required_credentials": PROVIDERS + ["OTHER"]}}):
        r = world.admin.post("/select", body)
        assert r.status in (200, 422) and (r.status == 200 or "E2B_API_KEY" in r.body.decode() or body), r
        look.at_answer(r, body)
    # The lease itself tells its owner the way in, and nothing else.
    r = world.one.get(f"/leases/{world.lease}")
    assert r.json()["endpoints"]["web"]["headers"] == {"Sandgate-Endpoint-Token": world.endpoint}
    Look(ADMIN, TENANT, *(canary(n) for n in PROVIDERS + [BY_FILE])).at_answer(r, "lease")


PLACES = [{"Authorization": "Bearer {}"}, {"Authorization": "bearer  {}"}, {"Authorization": "Basic {b64}"}, {"Authorization": "{}"}, {"Authorization": "Bearer{}"},
          {"Authorization": "Bearer {} {}"}, {"Authorization": "Token {}"}, {"Authorization": 'Digest username="{}"'}, {"X-API-Key": "{}"}, {"X-API-Key": "Bearer {}"},
          {"X-API-Key": "{}", "Authorization": "Bearer {}"}, {"Sandgate-Endpoint-Token": "{}"}, {"Cookie": "token={}"}, {"X-Auth-Token": "{}"},
          {"Proxy-Authorization": "Bearer {}"}, {"X-Request-Id": "a/{}"}, {"Idempotency-Key": "a b {}"}, {"traceparent": "00-{}-01"}, {"Referer": "http://h/?k={}"},
          {"User-Agent": "{}"}, {"Accept": "{}"}, {"Expect": "{}"}, {"Range": "{}"}, {"Content-Type": "{}"}, {"Host": "{} x"}, {"X-Forwarded-For": "{}"}]


def test_wrong_and_right_tokens_in_every_place(world):
    look, of_ours = everything(world), Look(ADMIN, TENANT, WRONG)
    targets = ["/leases", f"/leases/{world.lease}", f"/leases/{world.lease}/proxy/8000/", "/slots", "/metrics", "/nothing", "/version", "/audit"]
    for secret in (WRONG, TENANT, ADMIN):
        b64 = base64.b64encode(b"user:" + secret.encode()).decode()
        for place in PLACES:
            headers = {k: v.replace("{b64}", b64).replace("{}", secret) for k, v in place.items()}
            for target in targets:
                r = world.nobody.get(target, headers=headers)
                # A lease tells those who may see it the way in.
                (of_ours if r.status == 200 and target.startswith("/leases") else look).at_answer(r, (headers, target))
            look.at_answer(world.nobody.post("/leases", {"nope": 1}, headers=headers), headers)
        for target in (f"/leases?token={secret}", f"/leases?{secret}=1", f"/version?api_key={secret}", f"/leases/{world.lease}/proxy/8000/?key={secret}"):
            world.nobody.get(target)  # an answer may repeat to a caller the name it used; what counts is below: the log
    assert WRONG not in world.log_text() and ADMIN not in world.log_text()


def test_requests_that_are_not_even_http(world):
    look = everything(world)
    for data in (f"GET /leases HTTP/1.1\r\nAuthorization: Bearer {ADMIN}\r\nAuthorization: Bearer {ADMIN}\r\nHost: h\r\n\r\n",
                 f"GET /leases HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {ADMIN}\x01\r\n\r\n", f"GET /leases HTTP/1.1\r\nAuthorization: Bearer {ADMIN}\r\n\r\n",
                 f"GET /leases HTTP/1.1\r\nHost: h\r\nAuthorization : Bearer {ADMIN}\r\n\r\n", f"GET /leases HTTP/1.1\r\nHost: h\r\nX-API-Key: {ADMIN}\r\n folded\r\n\r\n",
                 f"GET /leases\r\nX-API-Key: {ADMIN}\r\n\r\n",
                 f"GET /leases HTTP/1.1\r\nHost: h\r\nContent-Length: {ADMIN}\r\n\r\n", f"GET /leases HTTP/9.9\r\nHost: h\r\nX-API-Key: {ADMIN}\r\n\r\n",
                 f"POST /leases HTTP/1.1\r\nHost: h\r\nX-API-Key: {ADMIN}\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"):
        with Conn(world.port, timeout=10 * SLOW) as c:
            c.send(data).half_close()
            look.at(c.rest() or c.buf, data)


def test_what_fails_further_in(world):
    look = everything(world)
    one, l = world.one, f"/leases/{world.lease}"
    for r in (one.post("/leases", {"policy": {"override": "e2b"}}), one.post("/leases", {"trajectory_id": "t"}), one.exec_response(world.lease, ""),
              one.read(world.lease, "none"), one.write(world.lease, "/etc/passwd", b""), one.get("/receipts/none"), one.get("/slots"),
              one.post("/leases", b"{", headers={"Content-Type": "application/json"}), one.get(f"{l}/proxy/9/", headers={"Sandgate-Endpoint-Token": world.endpoint}),
              world.nobody.get(f"{l}/proxy/8000/", headers={"Sandgate-Endpoint-Token": world.endpoint[:-1]}),
              world.nobody.get(f"{l}/endpoints/8000", headers={"Sandgate-Endpoint-Token": world.endpoint}),
              world.nobody.get(f"{l}/proxy/9/", headers={"Authorization": "Bearer " + TENANT}), one.request("BREW", "/leases"), one.get("/%zz")):
        assert r.status >= 400, r
        look.at_answer(r, r)


def test_services_in_the_sandbox_see_none_of_ours(world):
    one = world.one
    start(one, world.lease, ECHO)
    look, url = everything(world), f"/leases/{world.lease}/proxy/8000/x"
    for headers in ({"Authorization": "Bearer " + TENANT}, {"Authorization": "bearer   " + TENANT}, {"X-API-Key": TENANT}, {"Sandgate-Endpoint-Token": world.endpoint},
                    {"Sandgate-Endpoint-Token": world.endpoint, "Authorization": "Bearer " + TENANT}, {"Sandgate-Endpoint-Token": world.endpoint, "X-API-Key": ADMIN},
                    {"X-API-Key": TENANT, "Authorization": "Bearer " + ADMIN}, {"X-API-Key": TENANT, "Authorization": "Bearer theirs"}):
        r = world.nobody.get(url, headers=headers)
        assert r.status == 200, (headers, r)
        look.at_answer(r, headers)
        assert ("theirs" in r.body.decode()) == ("theirs" in str(headers))


def test_commands_in_the_sandbox_find_none(world):
    look = everything(world)
    r = world.one.exec(world.lease, "env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'; cat /proc/self/mountinfo; ps auxe 2>/dev/null; "
                                    "find / -xdev -newer /etc/hostname -type f -size -64k 2>/dev/null | head -200 | xargs cat 2>/dev/null", max_output_bytes=1 << 20)
    look.at(r["stdout"] + r["stderr"], "inside")
    assert "SANDGATE" not in r["stdout"]
    for path in ("/proc/1/environ", "/proc/self/environ", "/proc/1/cmdline", world.state, world.log_path):
        look.at_answer(world.one.read(world.lease, path), path)


def test_tokens_that_open_endpoints(world):
    """In a query, a cookie and a header, right and wrong, on both forms, and after they were revoked."""
    look, host = everything(world), f"8000-{world.lease.removeprefix('lease_')}.{DOMAIN}"
    path = f"/leases/{world.lease}/proxy/8000/"
    for token in (world.issued, world.endpoint, world.issued[:-1] + "x", WRONG, TENANT):
        for headers, target in (({"Host": host}, f"/?sandgate_token={token}&a=b"), ({"Host": host, "Cookie": f"__Host-sandgate={token}"}, "/"),
                                ({"Host": host, "Sandgate-Endpoint-Token": token}, "/"), ({"Host": host, "Sandgate-Endpoint-Token": token, "Origin": "http://evil"}, "/"),
                                ({"Sandgate-Endpoint-Token": token}, path), ({"Sandgate-Endpoint-Token": token}, path.replace("8000", "8001")),
                                ({"Cookie": f"__Host-sandgate={token}"}, path), ({}, f"{path}?sandgate_token={token}")):
            r = world.nobody.get(target, headers=headers)
            if r.status != 303:  # a first visit: its answer sets the cookie
                look.at_answer(r, (headers, target))
    issued = world.one.post(f"/leases/{world.lease}/endpoints", {"port": 8000, "ttl": 600}).json()
    assert world.one.delete(f"/leases/{world.lease}/endpoints/{issued['token_id']}").status in (200, 204)
    token = issued["headers"]["Sandgate-Endpoint-Token"]
    r = world.nobody.get(path, headers={"Sandgate-Endpoint-Token": token})
    assert r.status == 401
    Look(token).at_answer(r, "revoked")
    Look(token).at(world.log_text(), "log")


def test_what_tenants_give_their_commands(world):
    one = world.one
    id = one.lease(env={"THEIR_KEY": KEPT}, manifest={"files": [{"path": "key", "content": THEIRS}]})
    said = one.exec(id, "cat; printenv THEIR_KEY MORE; cat key", env={"MORE": THEIRS}, stdin=THEIRS + "\n")["stdout"]
    assert (said.count(THEIRS), said.count(KEPT)) == (3, 1)
    assert one.exec(id, ["test", THEIRS, "=", THEIRS], exec_id="argv")["returncode"] == 0
    one.write(id, "copy", THEIRS.encode())
    assert one.exec_response(id, "true", env={"A": THEIRS, "": "x"}).status == 400
    for path in (f"/leases/{id}", f"/leases/{id}/events", "/leases", "/audit?limit=1000", "/metrics", f"/leases/{id}/files/list", "/slots/default",
                 f"/receipts/{one.get(f'/leases/{id}').json()['receipt_id']}"):
        r = world.admin.get(path)
        assert r.status == 200, (path, r)
        Look(THEIRS, KEPT).at_answer(r, path)
    other = world.admin.lease()
    Look(THEIRS, KEPT).at(world.admin.exec(other, "env; cat /proc/*/environ; cat /workspace/* /tmp/* /home/sandbox/* 2>/dev/null")["stdout"], "another sandbox")
    world.admin.terminate(other)
    one.terminate(id)


def test_no_core_dump_holds_them(world):
    for pid in descendants(world.pid()):
        try:
            with open(f"/proc/{pid}/limits") as f:
                soft, hard = next(line for line in f if line.startswith("Max core file size")).split()[4:6]
        except OSError:
            continue
        assert {soft, hard} <= {"0", "1"}, (pid, soft, hard)  # 1: not even a program that collects dumps is started


def test_a_crash_leaves_no_core_dump():
    """Whoever starts the server may allow them."""
    limit = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (limit[1], limit[1]))
    try:
        s = Server({"backends": {"enabled": ["fake"]}}, env={"E2B_API_KEY": canary("E2B_API_KEY")}).start()
        try:
            os.kill(s.pid(), signal.SIGABRT)
            ended = os.waitid(os.P_PID, s.pid(), os.WEXITED | os.WNOWAIT)
            assert ended.si_code == os.CLD_KILLED and ended.si_status == signal.SIGABRT, ended
            s.process.wait()
            s.process = None
        finally:
            s.__exit__()
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, limit)


def descendants(pid):
    parents = {}
    for p in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{p}/stat") as f:
                parents[int(p)] = int(f.read().rsplit(")", 1)[1].split()[1])
        except OSError:
            pass
    found, more = {pid}, True
    while more:
        new = {p for p, parent in parents.items() if parent in found} - found
        more, found = bool(new), found | new
    return found


def test_processes_of_the_host_show_none(world):
    if os.geteuid() != 0:
        pytest.skip("only root can look at the environment of other users' processes")
    look = everything(world)
    world.one.exec(world.lease, "(setsid sleep 300 >/dev/null 2>&1 &)")
    family = descendants(world.pid())
    started = 0
    for p in family:
        try:
            with open(f"/proc/{p}/cmdline", "rb") as f:
                look.at(f.read(), f"cmdline of {p}")
            with open(f"/proc/{p}/environ", "rb") as f:
                environ = f.read()
        except OSError:
            continue
        if p != world.pid():  # the process that starts sandboxes began as a copy of the server
            look.at(environ, f"environ of {p}")
            started += 1
    assert started >= 3, family


def test_what_the_server_writes(world):
    """The log last, when everything above has had its say."""
    world.one.terminate(world.one.lease(idle_timeout_sec=60))
    with open(os.path.join(world.dir, "config.yaml"), "a") as f:
        f.write(f"\nauth: {TYPO}\n")
    world.process.send_signal(signal.SIGHUP)
    wait_until(lambda: '"reload_failed"' in world.log_text(), what="the broken settings to be noticed")
    look = everything(world)
    look.at(world.log_text(), "log")
    log = world.log_text().encode()
    for key in world.keys:
        assert key.strip() not in log and key.hex().encode() not in log and base64.b64encode(key).rstrip(b"=") not in log
    kept = Look(ADMIN, TENANT, WRONG, THEIRS, world.issued, *(canary(n) for n in PROVIDERS + [BY_FILE]))
    for root, _, files in os.walk(world.state):
        for name in files:
            path = os.path.join(root, name)
            if os.path.isfile(path):
                assert os.stat(path).st_mode & 0o077 == 0, path
                with open(path, "rb") as f:
                    kept.at(f.read(), path)


def test_settings_and_the_command_line_show_none(tmp_path):
    f = tmp_path / "sandgate.yaml"
    env = dict({name: canary(name) for name in PROVIDERS}, PATH=os.environ["PATH"], SANDGATE_TOKEN=ADMIN, R_TOKEN=WRONG)
    env.update({k: v for k, v in os.environ.items() if k.endswith("SAN_OPTIONS")})
    look = Look(ADMIN, WRONG, TYPO, *(canary(n) for n in PROVIDERS))
    good = {"auth": {"tokens": [{"name": "a", "sha256": hashlib.sha256(ADMIN.encode()).hexdigest(), "tenant": "t", "role": "admin"}]}}
    bad = [{"auth": {"tokens": [{"name": "a", "sha256": TYPO, "tenant": "t", "role": "admin"}]}},
           {"auth": {"tokens": [{"name": "a", "token": TYPO, "tenant": "t", "role": "admin"}]}}, {"auth": {"tokens": TYPO}}, {"auth": {"tokens": [TYPO]}},
           {"auth": TYPO}, {"remotes": [{"name": "r", "url": "http://h", "token": TYPO}]}]
    for config in [good] + bad:
        f.write_text(json.dumps(config))
        for args in (["check-config", "--explain"], ["check-config", "--json"], ["select", "--json"]):
            p = subprocess.run([BIN, *args, "--config", str(f)], capture_output=True, env=env, timeout=60 * SLOW)
            look.at(p.stdout + p.stderr, (args, config))
            assert hashlib.sha256(ADMIN.encode()).hexdigest().encode() not in p.stdout + p.stderr
    for bad_value in (TYPO, f'[{{"name":"{TYPO}"}}]', f'[{{"sha256":"{TYPO}"}}]'):
        p = subprocess.run([BIN, "check-config"], capture_output=True, env=dict(env, SANDGATE_AUTH_TOKENS=bad_value), timeout=60 * SLOW)
        assert p.returncode == 1
        look.at(p.stdout + p.stderr, bad_value)
    for args in (["status"], ["lease", "ls"]):
        p = subprocess.run([BIN, *args, "--url", "http://127.0.0.1:1"], capture_output=True, env=env, timeout=60 * SLOW)
        look.at(p.stdout + p.stderr, args)
