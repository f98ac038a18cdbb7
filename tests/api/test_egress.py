"""What of the network a sandbox reaches: nothing, or what the allow-list names, through a proxy on its own loopback."""
import base64
import json
import socket
import subprocess
import threading
import time

import pytest

from conftest import account, server_kinds
from harness import BIN, SLOW, Server, output

PORT = 61080
HOST = "127.0.0.2"  # an upstream's: what is on 127.0.0.1 is left out by NO_PROXY

# Sends each payload to the proxy on a connection of its own and prints what came back.
RAW = r"""
import base64, json, socket, sys
out = []
for payload in json.load(sys.stdin):
    s = socket.create_connection(("127.0.0.1", 61080), timeout=30)
    data = b""
    try:
        s.sendall(base64.b64decode(payload))
        while True:
            b = s.recv(65536)
            if not b:
                break
            data += b
    except ConnectionError:
        data += b"!reset"
    out.append(base64.b64encode(data).decode())
    s.close()
print(json.dumps(out))
"""


def python(c, lease, text, stdin=b"", **kw):
    r = c.exec(lease, ["python3", "-c", text], stdin_base64=base64.b64encode(stdin).decode(), **kw)
    assert r["returncode"] == 0, r
    return output(r)


def raw(c, lease, payloads):
    answers = json.loads(python(c, lease, RAW, json.dumps([base64.b64encode(p).decode() for p in payloads]).encode()))
    return [base64.b64decode(a) for a in answers]


def status(answer):
    assert answer.startswith(b"HTTP/1.1 "), answer[:200]
    return int(answer[9:12])


def problem(answer):
    head, body = answer.split(b"\r\n\r\n", 1)
    p = json.loads(body)
    assert b"Content-Type: application/problem+json\r\n" in head and p["status"] == status(answer), answer
    assert ("Sandgate-Error: " + p["code"] + "\r\n").encode() in head + b"\r\n", answer
    assert p["type"] == "urn:sandgate:error:" + p["code"] and p["detail"], p
    return p


def connect(target, rest=b"", headers=b""):
    return b"CONNECT " + target + b" HTTP/1.1\r\nHost: " + target + b"\r\n" + headers + b"\r\n" + rest


class Site:
    """A TCP server on 127.0.0.2; each connection is handed to serve(sock) on its own thread."""

    def __init__(self, serve, address=HOST, family=socket.AF_INET):
        self.serve, self.connections = serve, 0
        self.listener = socket.socket(family)
        self.listener.bind((address, 0))
        self.listener.listen(256)
        self.port = self.listener.getsockname()[1]
        self.name = f"{address}:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                s, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._run, args=(s,), daemon=True).start()

    def _run(self, s):
        s.settimeout(60)
        try:
            self.serve(s)
        except OSError:
            pass
        finally:
            s.close()

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


def read_head(s):
    data = b""
    while b"\r\n\r\n" not in data:
        b = s.recv(65536)
        if not b:
            raise OSError("no head")
        data += b
    head, rest = data.split(b"\r\n\r\n", 1)
    return head + b"\r\n\r\n", rest


def mirror(s):
    """HTTP: the head comes back as the body, then the number of bytes that came with it."""
    head, rest = read_head(s)
    n = len(rest)
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            while n < int(line[15:]):
                n += len(s.recv(1 << 20))
    body = head + b"BODY %d" % n
    s.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    s.shutdown(socket.SHUT_WR)
    while s.recv(65536):
        pass


def echo(s):
    while True:
        b = s.recv(1 << 20)
        if not b:
            return
        s.sendall(b)


@pytest.fixture(scope="module")
def sites():
    """web and tunnel are allowed, secret is not."""
    s = {"web": Site(mirror), "tunnel": Site(echo), "secret": Site(mirror), "local": Site(mirror, "127.0.0.1")}
    yield s
    for x in s.values():
        x.close()


def rules(sites):
    return [sites["web"].name, sites["tunnel"].name, f"localhost:{sites['secret'].port}", f"localhost:{sites['local'].port}",
            f"127.0.0.1:{sites['local'].port}", "*.example.invalid:443", "host.invalid:443", "[::1]:9"]


@pytest.fixture(scope="module", params=server_kinds())
def server(request, sites):
    config = {"local_bwrap": {"size": 4, "egress": "restricted", "egress_allow": rules(sites)},
              "local_pools": [{"name": "alone", "size": 1}], "metrics": {"public": True}}
    with Server(config, user=account(request.param)) as s:
        s.wait_slots(4)
        yield s


SLOWLY = """
import socket, time
slow = [socket.create_connection(("127.0.0.1", 61080), timeout=60) for _ in range(50)]
for s in slow: s.sendall(b"GET http://")
t = time.monotonic()
s = socket.create_connection(("127.0.0.1", 61080), timeout=60)
s.sendall(b"GET http://%s/ HTTP/1.1\\r\\n\\r\\n")
assert b" 200 " in s.makefile("rb").readline()
quick = time.monotonic() - t
answer = slow[0].recv(1000)
print(quick, time.monotonic() - t, answer.split()[1].decode())
"""


@pytest.fixture(scope="module")
def slow(server, sites):
    """A lease whose command takes its time with its requests, beside all the other tests."""
    c = server.client()
    lease = c.lease()
    r = c.post(f"/leases/{lease}/exec", {"command": ["python3", "-c", SLOWLY % sites["web"].name], "detach": True, "exec_id": "slow", "timeout": 120})
    assert r.status == 202, r
    return lease


@pytest.fixture
def c(server, slow):
    return server.client()


@pytest.fixture
def lease(server, c):
    id = c.lease()
    yield id
    c.terminate(id)


def refusals(server, lease):
    return [e for e in server.log_events() if e["event"] == "egress_refused" and e["lease_id"] == lease]


def metric(c, name, **labels):
    want = name + "{" + ",".join(f'{k}="{v}"' for k, v in labels.items()) + "} "
    for line in c.get("/metrics").body.decode().splitlines():
        if line.startswith(want):
            return float(line.split()[-1])
    raise AssertionError(want)


# ---- what is allowed ----


def test_commands_find_the_proxy_by_themselves(c, lease, sites):
    r = c.exec(lease, f"curl -sS -m 20 http://{sites['web'].name}/a?b=c")
    assert r["returncode"] == 0 and "GET /a?b=c HTTP/1.1" in r["stdout"], r
    assert f"Host: {sites['web'].name}" in r["stdout"] and "Connection: close" in r["stdout"] and "Proxy-Connection" not in r["stdout"], r
    env = c.exec(lease, "env")["stdout"]
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        assert f"{name}=http://127.0.0.1:{PORT}\n" in env
    assert "NO_PROXY=localhost,127.0.0.1,::1\n" in env and "no_proxy=localhost,127.0.0.1,::1\n" in env
    out = python(c, lease, f"import urllib.request; print(urllib.request.urlopen('http://{sites['web'].name}/py', timeout=20).read().decode())")
    assert b"GET /py HTTP/1.1" in out
    assert "GET /bb HTTP/1." in c.exec(lease, f"busybox wget -q -O - http://{sites['web'].name}/bb")["stdout"]
    assert "GET /old HTTP/1.0" in c.exec(lease, f"curl -sS -0 -m 20 http://{sites['web'].name}/old")["stdout"]


def test_the_lease_and_the_backend_say_so(server, c, lease):
    l = c.get(f"/leases/{lease}").json()
    assert l["metadata"]["egress"] == "restricted" and "network" in l["capabilities"], l
    assert "network" in [b for b in c.get("/backends").json()["items"] if b["name"] == "local_bwrap"][0]["capabilities"]
    pools = {p["pool"]: p["egress"] for p in c.get("/slots").json()["items"]}
    assert pools == {"default": "restricted", "alone": "none"}
    r = c.post("/select", {"policy": {"required_capabilities": ["network", "exec"], "override": "local_bwrap"}})
    assert r.status == 200 and r.json()["backend"] == "local_bwrap", r


def test_the_offline_selector_agrees(tmp_path):
    f = tmp_path / "request.json"
    f.write_text(json.dumps({"policy": {"required_capabilities": ["network", "exec"]}}))
    for pools, want in (([], 1), ([{"name": "p", "egress": "restricted", "egress_allow": ["a.example:1"]}], 0)):
        config = tmp_path / "config.yaml"
        config.write_text(json.dumps({"local_pools": pools}))
        r = subprocess.run([BIN, "select", "--config", str(config), "--file", str(f)], capture_output=True, text=True)
        assert (r.returncode != 0) == bool(want), (pools, r)


def test_bodies_go_up_whole(c, lease, sites):
    big = c.exec(lease, f"head -c 5000000 /dev/zero | curl -sS -m 30 -H Expect: --data-binary @- http://{sites['web'].name}/up")
    assert "BODY 5000000" in big["stdout"], big


def test_a_tunnel_carries_megabytes_both_ways_at_once(c, lease, sites):
    text = f"""
import hashlib, os, socket, threading
s = socket.create_connection(("127.0.0.1", {PORT}))
s.sendall(b"CONNECT {sites['tunnel'].name} HTTP/1.1\\r\\n\\r\\n")
f = s.makefile("rb")
assert b" 200 " in f.readline()
while f.readline() != b"\\r\\n": pass
data = os.urandom(1 << 20) * 8
threading.Thread(target=lambda: (s.sendall(data), s.shutdown(socket.SHUT_WR))).start()
got = f.read()
print(len(got), hashlib.sha256(got).digest() == hashlib.sha256(data).digest())
"""
    before = metric(c, "sandgate_egress_bytes_total", pool="default", direction="out")
    assert python(c, lease, text, timeout=60).split() == [b"8388608", b"True"]
    assert metric(c, "sandgate_egress_bytes_total", pool="default", direction="out") - before >= 8 << 20


def sizes(s):
    """Sends as many bytes as it is told, and closes."""
    n = int(s.makefile("rb").readline())
    s.sendall(b"x" * n)


def test_the_end_of_a_download_comes_at_once_whatever_its_size():
    site = Site(sizes)
    with Server({"local_bwrap": {"size": 1, "egress": "restricted", "egress_allow": [site.name]}}) as s:
        c = s.client()
        text = f"""
import socket, time
for n in [*range(0, 1 << 20, 32768), *range(262144, 1 << 20, 1000), 50000000]:
    s = socket.create_connection(("127.0.0.1", {PORT}), timeout=5)
    s.sendall(b"CONNECT {site.name} HTTP/1.1\\r\\n\\r\\n%d\\n" % n)
    got = 0
    while True:
        b = s.recv(1 << 20)
        if not b: break
        got += len(b)
    assert got == n + 39, (n, got)
print("all")
"""
        assert python(c, c.lease(), text, timeout=60) == b"all\n"
    site.close()


def test_a_server_that_says_nothing_is_an_error():
    site = Site(lambda s: read_head(s))
    with Server({"local_bwrap": {"size": 1, "egress": "restricted", "egress_allow": [site.name]}}) as s:
        c = s.client()
        p = problem(raw(c, c.lease(), [b"GET http://" + site.name.encode() + b"/ HTTP/1.1\r\n\r\n"])[0])
        assert p["status"] == 502 and p["code"] == "egress_unreachable" and site.name in p["detail"], p
    site.close()


def test_bytes_behind_a_connect_belong_to_the_tunnel(c, lease, sites):
    text = f"""
import socket
s = socket.create_connection(("127.0.0.1", {PORT}))
s.sendall(b"CONNECT {sites['tunnel'].name} HTTP/1.1\\r\\n\\r\\nearly")
data = b""
while not data.endswith(b"early"):
    data += s.recv(100)
print(data)
"""
    assert b"200 Connection established" in python(c, lease, text)


def test_a_name_reaches_an_address_that_is_an_entry_too(c, lease, sites):
    port = sites["local"].port
    r = c.exec(lease, f"curl -sS -m 20 --noproxy '' http://localhost:{port}/ ; curl -sS -m 20 --noproxy '' http://127.0.0.1:{port}/")
    assert r["stdout"].count("GET / HTTP/1.1") == 2, r


# ---- what is not ----


def refused_cases(sites):
    web, secret = sites["web"].port, sites["secret"].port
    yield b"GET http://%s/ HTTP/1.1\r\n\r\n" % sites["secret"].name.encode(), 403, "egress_port_not_allowed"  # the host, with another port
    yield b"GET http://other.invalid/ HTTP/1.1\r\n\r\n", 403, "egress_host_not_allowed"
    yield connect(b"example.invalid:443"), 403, "egress_host_not_allowed"  # *.example.invalid is below it
    yield connect(b"badexample.invalid:443"), 403, "egress_host_not_allowed"
    yield connect(b"host.invalid:444"), 403, "egress_port_not_allowed"
    yield connect(b"%s:22" % HOST.encode()), 403, "egress_port_not_allowed"
    yield connect(b"169.254.169.254:80"), 403, "egress_host_not_allowed"
    yield b"GET http://169.254.169.254/latest/meta-data/ HTTP/1.1\r\n\r\n", 403, "egress_host_not_allowed"
    # The name is allowed, the address that it leads to is not.
    yield connect(b"localhost:%d" % secret), 403, "egress_address_not_allowed"
    yield connect(b"LOCALHOST.:%d" % secret), 403, "egress_address_not_allowed"
    # Names of nothing.
    yield connect(b"host.invalid:443"), 502, "egress_name_not_found"
    yield connect(b"HOST.Invalid.:443"), 502, "egress_name_not_found"
    yield connect(b"a.b.example.invalid:443"), 502, "egress_name_not_found"
    yield connect(b"[::1]:9"), 502, "egress_unreachable"
    # Other ways to write an address that is allowed, or is not.
    for host in (b"127.2", b"0x7f.0.0.2", b"0x7f000002", b"2130706434", b"0177.0.0.2", b"127.0.0.02", b"127.0.0.2.0x0", b"127.0.0.256",
                 b"[::ffff:127.0.0.2%251]", b"[127.0.0.2]", b"::ffff:127.0.0.2", b"[]", b"", b".", b"a..b", b"*.example.invalid", b"127.0.0.2\t",
                 b"a" * 64, b".".join([b"a" * 60] * 5), b"example.invalid\x00.host.invalid"[:15] + b"\x7f", "ex\u00e4mple.invalid".encode()):
        yield connect(host + b":%d" % web), 400, "egress_malformed"
    yield connect(b"[::ffff:127.0.0.3]:%d" % web), 403, "egress_host_not_allowed"
    yield connect(b"[::127.0.0.2]:%d" % web), 403, "egress_host_not_allowed"
    yield connect(b"[64:ff9b::7f00:2]:%d" % web), 403, "egress_host_not_allowed"
    yield connect(b"0.0.0.0:%d" % web), 403, "egress_host_not_allowed"
    for port in (b"", b":", b":0", b":65536", b":+80", b":0x50", b":99999999999999999999", b":80:80"):
        yield connect(HOST.encode() + port), 400, "egress_malformed"
    # Somebody else's name in front, or behind.
    for target in (b"http://host.invalid@%s/", b"http://%s@host.invalid/", b"http://user:pw@%s/", b"https://%s/", b"ftp://%s/", b"//%s/", b"http:///%s",
                   b"http://%s#x/", b"http://%s\\@host.invalid/", b"/", b"*"):
        yield b"GET " + target.replace(b"%s", sites["web"].name.encode()) + b" HTTP/1.1\r\n\r\n", 400, "egress_malformed"


def test_refusals_say_why(server, c, lease, sites):
    cases = list(refused_cases(sites))
    before = sites["secret"].connections, sites["web"].connections
    for (payload, want, code), answer in zip(cases, raw(c, lease, [p for p, _, _ in cases])):
        p = problem(answer)
        assert (p["status"], p["code"]) == (want, code), (payload, answer)
    assert (sites["secret"].connections, sites["web"].connections) == before
    assert metric(c, "sandgate_egress_requests_total", pool="default", outcome="malformed") >= 20


def test_an_address_in_its_other_usual_forms_is_itself(c, lease, sites):
    port = sites["web"].port
    answers = raw(c, lease, [b"GET http://[::ffff:127.0.0.2]:%d/ HTTP/1.1\r\n\r\n" % port, b"GET http://[::ffff:7f00:2]:%d/ HTTP/1.1\r\n\r\n" % port,
                             b"GET HTTP://127.0.0.2.:%d/ HTTP/1.1\r\n\r\n" % port])
    for a in answers:
        assert status(a) == 200 and b"Host: 127.0.0.2:%d\r\n" % port in a, a


SMUGGLED = [
    b"GET http://@/ HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"GET http://@/ HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    b"GET http://@/ HTTP/1.1\r\nContent-Length: 3, 3\r\n\r\nabc",
    b"GET http://@/ HTTP/1.1\r\nContent-Length: +3\r\n\r\nabc",
    b"GET http://@/ HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\nabc",
    b"GET http://@/ HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"GET http://@/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"GET http://@/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"GET http://@/ HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    b"GET http://@/ HTTP/1.1\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    b"GET http://@/ HTTP/1.1\r\nA: b\r\n c: d\r\n\r\n",
    b"GET http://@/ HTTP/1.1\nA: b\r\n\r\n",
    b"GET http://@/ HTTP/1.1\r\nA: b\rC: d\r\n\r\n",
    b"GET http://@/ HTTP/1.1\r\nA: b\0c\r\n\r\n",
    b"GET http://@/ HTTP/1.1\r\nA\r\n\r\n",
    b"GET http://@/ HTTP/1.1\r\n: b\r\n\r\n",
    b"GET  http://@/ HTTP/1.1\r\n\r\n",
    b"GET http://@/ HTTP/1.1 \r\n\r\n",
    b"GET http://@/ HTTP/2.0\r\n\r\n",
    b"GET http://@/\r\n\r\n",
    b"G(T http://@/ HTTP/1.1\r\n\r\n",
    b"\r\nGET http://@/ HTTP/1.1\r\n\r\n",
    b"GET http://@/ HTTP/1.1\r\n" + b"A: b\r\n" * 129 + b"\r\n",
    b"CONNECT @ HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
    b"CONNECT @ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"connect @ HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    b"\x05\x01\x00",  # SOCKS
]


def test_what_could_be_read_in_two_ways_is_refused(c, lease, sites):
    before = sites["web"].connections
    answers = raw(c, lease, [p.replace(b"@", sites["web"].name.encode()) for p in SMUGGLED[:-1]])
    for payload, a in zip(SMUGGLED, answers):
        assert problem(a)["code"] == "egress_malformed", (payload, a)
    a, = raw(c, lease, [b"\x05\x01\x00"])
    assert problem(a)["code"] in ("egress_malformed", "egress_too_slow"), a
    a, = raw(c, lease, [b"GET http://" + sites["web"].name.encode() + b"/ HTTP/1.1\r\nA: " + b"b" * 20000 + b"\r\n\r\n"])
    assert problem(a)["status"] == 431, a
    assert sites["web"].connections == before


def test_a_connection_is_one_request(c, lease, sites):
    web = sites["web"].name.encode()
    second = b"GET http://" + sites["secret"].name.encode() + b"/second HTTP/1.1\r\n\r\n"
    answers = raw(c, lease, [b"GET http://" + web + b"/first HTTP/1.1\r\n\r\n" + second,
                             b"POST http://" + web + b"/first HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc" + second,
                             b"GET http://" + web + b"/first HTTP/1.1\r\nHost: elsewhere\r\nConnection: close, X-A, Content-Length\r\nX-A: 1\r\n"
                             b"Proxy-Authorization: Basic eA==\r\nUpgrade: x\r\nX-B: 2\r\n\r\n"])
    for a in answers:
        assert status(a) == 200 and a.count(b"HTTP/1.1") == 2 and b"/second" not in a, a  # the answer and the request in it
        assert b"Host: " + web + b"\r\n" in a and b"elsewhere" not in a
    assert b"BODY 3" in answers[1] and b"X-A" not in answers[2] and b"X-B: 2" in answers[2] and b"Upgrade" not in answers[2]
    assert b"Proxy-Auth" not in answers[2]


def chunked_site(got):
    def serve(s):
        head, rest = read_head(s)
        while b"0\r\n\r\n" not in rest:
            rest += s.recv(65536)
        s.settimeout(0.3)
        try:
            rest += s.recv(65536)
        except TimeoutError:
            pass
        got.append(rest)
        s.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
    return serve


def test_a_chunked_body_ends_where_it_ends(sites):
    got = []
    site = Site(chunked_site(got))
    with Server({"local_bwrap": {"size": 1, "egress": "restricted", "egress_allow": [site.name]}}) as s:
        c = s.client()
        lease = c.lease()
        head = b"POST http://" + site.name.encode() + b"/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        a, b = raw(c, lease, [head + b"3;x=y\r\nabc\r\n0\r\n\r\nGET http://a/ HTTP/1.1\r\n\r\n", head + b"3\r\nabcd\r\n0\r\n\r\n"])
        assert status(a) == 204 and got == [b"3;x=y\r\nabc\r\n0\r\n\r\n"], (a, got)
        assert b == b"" or b == b"!reset", b  # malformed: nothing comes of it
    site.close()


def test_one_line_per_refusal_but_no_flood(server, c, lease, sites):
    raw(c, lease, [connect(b"first.invalid:1")])
    line, = refusals(server, lease)
    assert line["reason"] == "host_not_allowed" and line["target"] == "first.invalid:1" and line["pool"] == "default" and line["level"] == "warn"
    raw(c, lease, [connect(b"n%d.invalid:1" % i) for i in range(200)])
    assert 5 < len(refusals(server, lease)) < 60
    deadline = time.monotonic() + 10 * SLOW
    while "refusals_not_logged" not in json.dumps(refusals(server, lease)) and time.monotonic() < deadline:
        raw(c, lease, [connect(b"late.invalid:1")])
    assert any(e.get("refusals_not_logged", 0) > 50 for e in refusals(server, lease))


# ---- nothing else gets out ----


DIRECT = r"""
import errno, json, socket, sys
web, host_port = json.load(sys.stdin)
out = {}
def attempt(name, f):
    try:
        f()
        out[name] = "reached"
    except OSError as e:
        out[name] = errno.errorcode.get(e.errno, str(e))
def tcp(family, address):
    s = socket.socket(family, socket.SOCK_STREAM)
    s.settimeout(0.5)
    s.connect(address)
def udp(address):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(0.5)
    s.sendto(b"x", address)
    if address[0].startswith("127."):
        s.recv(1)
attempt("host loopback", lambda: tcp(socket.AF_INET, ("127.0.0.1", host_port)))
attempt("upstream", lambda: tcp(socket.AF_INET, (web[0], web[1])))
attempt("outside", lambda: tcp(socket.AF_INET, ("203.0.113.9", 80)))
attempt("metadata", lambda: tcp(socket.AF_INET, ("169.254.169.254", 80)))
attempt("slirp", lambda: tcp(socket.AF_INET, ("10.0.2.2", host_port)))
attempt("outside6", lambda: tcp(socket.AF_INET6, ("2001:db8::9", 80)))
attempt("udp", lambda: udp(("203.0.113.9", 53)))
attempt("udp host", lambda: udp(("127.0.0.1", host_port)))
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
attempt("ping", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP).sendto(b"\x08\0\0\0\0\0\0\0", ("203.0.113.9", 0)))
attempt("packet", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
attempt("abstract", lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM).connect("\0sandgate-test-egress"))
attempt("name", lambda: socket.getaddrinfo("localhost.example.invalid", 80))
attempt("proxy address", lambda: socket.create_connection(("127.0.0.1", 61080), 5))
print(json.dumps(out))
"""


def test_direct_ways_out_lead_nowhere(c, lease, sites):
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind("\0sandgate-test-egress")
    abstract.listen(1)
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(("127.0.0.1", sites["local"].port))
    before = sites["local"].connections, sites["web"].connections
    got = json.loads(python(c, lease, DIRECT, json.dumps([[HOST, sites["web"].port], sites["local"].port]).encode()))
    assert got.pop("proxy address") == "reached"
    assert "reached" not in got.values(), got
    assert got["outside"] == got["metadata"] == got["udp"] == "ENETUNREACH" and got["host loopback"] == "ECONNREFUSED", got
    assert (sites["local"].connections, sites["web"].connections) == before
    abstract.close()
    datagrams.close()


# ---- bounds ----


def test_a_hundred_connections_at_once_and_too_many(c, lease, sites):
    text = f"""
import socket, threading
lines = []
def one():
    s = socket.create_connection(("127.0.0.1", {PORT}), timeout=60)
    s.sendall(b"CONNECT {sites['tunnel'].name} HTTP/1.1\\r\\n\\r\\n")
    line = s.makefile("rb").readline()
    return s, line
hundred = [one() for _ in range(100)]
assert all(b" 200 " in l for _, l in hundred), hundred
for s, _ in hundred: s.sendall(b"x" * 1000)
more = [one() for _ in range(40)]
print(sum(b" 200 " in l for _, l in more), sum(b" 503 " in l for _, l in more))
for s, _ in hundred + more: s.close()
"""
    assert python(c, lease, text, timeout=60).split() == [b"28", b"12"]
    assert status(raw(c, lease, [b"GET http://" + sites["web"].name.encode() + b"/ HTTP/1.1\r\n\r\n"])[0]) == 200


def test_slow_clients_hold_nobody_up_and_are_cut(c, slow):
    """They have been there since the server was: see the fixture."""
    r = c.get(f"/leases/{slow}/exec/slow").json()
    deadline = time.monotonic() + 20 * SLOW
    while r["state"] == "running" and time.monotonic() < deadline:
        time.sleep(0.1)
        r = c.get(f"/leases/{slow}/exec/slow").json()
    quick, cut, answer = r["result"]["stdout"].split()
    assert float(quick) < 3 * SLOW and 4 < float(cut) < 9 * SLOW and answer == "408", r
    c.terminate(slow)


# ---- the end ----


def test_connections_end_with_the_lease():
    ended = threading.Event()

    def serve(s):
        while s.recv(1000):
            pass
        ended.set()

    site = Site(serve)
    with Server({"local_bwrap": {"size": 1, "egress": "restricted", "egress_allow": [site.name]}, "metrics": {"public": True}}) as s:
        s.wait_slots(1)
        c = s.client()
        first = c.lease()
        raw(c, first, [connect(b"nowhere.invalid:1")])
        c.terminate(first)
        s.wait_slots(1)
        idle = s.descriptors()
        lease = c.lease()
        r = c.post(f"/leases/{lease}/exec", {"command": ["python3", "-c", f"""
import socket, time
s = socket.create_connection(("127.0.0.1", {PORT}))
s.sendall(b"CONNECT {site.name} HTTP/1.1\\r\\n\\r\\n")
s.recv(100)
open("/workspace/up", "w").close()
time.sleep(1000)
"""], "detach": True})
        assert r.status == 202
        deadline = time.monotonic() + 20 * SLOW
        while c.read(lease, "up").status != 200 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert metric(c, "sandgate_egress_connections", pool="default") == 1
        c.terminate(lease)
        assert ended.wait(10 * SLOW)
        s.wait_slots(1)
        assert metric(c, "sandgate_egress_connections", pool="default") == 0
        deadline = time.monotonic() + 10 * SLOW
        while s.descriptors() > idle and time.monotonic() < deadline:
            time.sleep(0.05)
        assert s.descriptors() <= idle
    site.close()


EVERYTHING = """
import os, socket, sys
def to(payload):
    s = socket.create_connection(("127.0.0.1", 61080), timeout=60)
    s.sendall(payload)
    return s
web, tunnel, deaf = sys.argv[1:]
keep = []
for i in range(12):
    keep.append(to(b""))
    keep.append(to(b"GET http://half"))
    keep.append(to(b"CONNECT host.invalid:443 HTTP/1.1\\r\\n\\r\\n"))
    keep.append(to(b"CONNECT a%d.example.invalid:443 HTTP/1.1\\r\\n\\r\\n" % i))
    keep.append(to(b"CONNECT %s HTTP/1.1\\r\\n\\r\\n" % deaf.encode()))
    keep.append(to(b"POST http://%s/ HTTP/1.1\\r\\nContent-Length: 1000000\\r\\n\\r\\n" % web.encode() + b"x" * 1000))
    s = to(b"CONNECT %s HTTP/1.1\\r\\n\\r\\n" % tunnel.encode())
    s.setblocking(False)
    try:
        while True: s.send(b"x" * 65536)
    except BlockingIOError:
        pass
    keep.append(s)
    keep.append(to(b"CONNECT refused.invalid:1 HTTP/1.1\\r\\n\\r\\n"))
print("all", flush=True)
os.read(0, 1)
"""


def test_leases_end_in_the_middle_of_everything(sites, soak):
    """Heads half sent, names half looked up, connections half made, bytes nobody reads: the end of the lease is the end of them all."""
    deaf = socket.socket()
    deaf.bind((HOST, 0))
    deaf.listen(0)
    port = deaf.getsockname()[1]
    full = [socket.socket() for _ in range(4)]
    for s in full:
        s.setblocking(False)
        s.connect_ex((HOST, port))
    config = {"size": 2, "egress": "restricted", "egress_allow": [*rules(sites), f"{HOST}:{port}"]}
    with Server({"local_bwrap": config, "metrics": {"public": True}}) as s:
        c = s.client()
        idle = None
        for n in range(60 if soak else 5):
            lease = c.lease()
            r = c.post(f"/leases/{lease}/exec", {"command": ["python3", "-c", EVERYTHING, sites["web"].name, sites["tunnel"].name, f"{HOST}:{port}"],
                                                 "detach": True, "exec_id": "all"})
            assert r.status == 202, r
            deadline = time.monotonic() + 30 * SLOW
            while b"all" not in c.get(f"/leases/{lease}/exec/all/output").body and time.monotonic() < deadline:
                time.sleep(0.01 * (n % 4))
            c.terminate(lease)
            s.wait_slots(2)
            idle = idle or s.descriptors()
        deadline = time.monotonic() + 30 * SLOW
        while (s.descriptors() > idle or metric(c, "sandgate_egress_connections", pool="default")) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert s.descriptors() <= idle and metric(c, "sandgate_egress_connections", pool="default") == 0
    for s in (deaf, *full):
        s.close()


# ---- narrower than the pool ----


@pytest.mark.parametrize("narrow", ["none", "loopback"])
def test_a_lease_may_have_less(c, sites, narrow):
    l = c.post("/leases", {"network_egress_class": narrow}).json()
    assert l["metadata"]["egress"] == narrow and "network" not in l["capabilities"], l
    env = c.exec(l["id"], "env")["stdout"]
    assert "PROXY" not in env.upper()
    r = c.exec(l["id"], f"curl -sS -m 5 -x http://127.0.0.1:{PORT} http://{sites['web'].name}/")
    assert r["returncode"] == 7, r  # nothing listens
    c.terminate(l["id"])


def test_and_not_more(c):
    r = c.post("/leases", {"network_egress_class": "open"})
    assert r.status == 422 and r.code == "pool_refused" and r.json()["reason"] == "egress_widened" and r.json()["field"] == "network_egress_class", r
    r = c.post("/leases", {"local_pool": "alone", "network_egress_class": "restricted"})
    assert r.status == 422 and r.json()["reason"] == "egress_widened", r


def test_the_capability_is_not_made_up(c):
    network = {"required_capabilities": ["exec", "network"]}
    r = c.post("/leases", {"local_pool": "alone", "policy": network})
    assert r.status == 422 and r.code == "not_supported" and r.json()["field"] == "policy.required_capabilities", r
    r = c.post("/leases", {"network_egress_class": "none", "policy": network})
    assert r.status == 422 and r.code == "not_supported" and r.json()["field"] == "network_egress_class", r
    l = c.post("/leases", {"policy": network})
    assert l.status == 201 and "network" in l.json()["capabilities"], l
    c.terminate(l.json()["id"])
    l = c.post("/leases", {"local_pool": "alone"}).json()
    assert l["metadata"]["egress"] == "none" and "network" not in l["capabilities"]
    assert "PROXY" not in c.exec(l["id"], "env")["stdout"]
    c.terminate(l["id"])


def test_the_service_of_a_blackbox_slot_has_it_too(sites):
    with Server({"local_bwrap": {"size": 1, "mode": "blackbox", "egress": "restricted", "egress_allow": [sites["web"].name], "service_port": 8000,
                                 "service_health_path": "/",
                                 "service_command": ["sh", "-c", f"curl -sS -m 20 http://{sites['web'].name}/service > got; exec python3 -m http.server 8000"]}}) as s:
        c = s.client()
        l = c.post("/leases", {"metadata": {"paddock_mode": "blackbox"}}).json()
        assert b"GET /service HTTP/1.1" in c.get(f"/leases/{l['id']}/proxy/8000/got").body


# ---- settings ----


@pytest.mark.parametrize("egress, allow, says", [
    ("restricted", None, "restricted needs egress_allow"),
    ("restricted", ["example.com"], '"example.com" is not HOST:PORT'),
    ("restricted", ["example.com:0"], "is not HOST:PORT"),
    ("restricted", ["*:443"], "is not HOST:PORT"),
    ("restricted", ["*.10.0.0.1:443"], "is not HOST:PORT"),
    ("restricted", ["a.*.com:443"], "is not HOST:PORT"),
    ("restricted", ["http://example.com:80"], "is not HOST:PORT"),
    ("restricted", ["::1:80"], "is not HOST:PORT"),
    ("none", ["0x7f.1:80"], "is not HOST:PORT"),
])
def test_bad_settings_are_named(tmp_path, egress, allow, says):
    for config, key in (({"local_bwrap": {"egress": egress, "egress_allow": allow}}, "local_bwrap."),
                        ({"local_pools": [{"name": "p", "egress": egress, "egress_allow": allow}]}, "local_pools")):
        if allow is None:
            for section in [config.get("local_bwrap"), *config.get("local_pools", [])]:
                if section:
                    section.pop("egress_allow")
        f = tmp_path / "c.yaml"
        f.write_text(json.dumps(config))
        r = subprocess.run([BIN, "check-config", "--config", str(f)], capture_output=True, text=True)
        assert r.returncode != 0 and key in r.stderr and says in r.stderr and "egress" in r.stderr, r
