"""Open egress, and restricted egress to the outside: in a network of the tests' own, whose Internet is a namespace, too."""
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time

import pytest

from conftest import account, server_kinds
from harness import SLOW, wait_until
from test_egress import PORT, connect, python, raw, status
from world import HOST, METADATA, NAMES, OTHER, PRIVATE, SITE, World, WorldServer

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/net/tun"), reason="makes network namespaces and devices")


@pytest.fixture(scope="module")
def world():
    with World() as w:
        w.hits = []
        w.names.update({"site.example": [SITE], "inner.example": [PRIVATE], "loop.example": ["127.0.0.1"], "own.example": [HOST], "mixed.example": ["127.0.0.1", SITE],
                        "meta.example": [METADATA]})
        for where, address, name in ((True, "0.0.0.0", "internet"), (False, "0.0.0.0", "host")):
            s = w.socket(socket.SOCK_STREAM, (address, 8080), where)
            threading.Thread(target=accept, args=(w, s, name), daemon=True).start()
            if name == "host":
                local = w.socket(socket.SOCK_STREAM, ("127.0.0.1", 8081), False)
                threading.Thread(target=accept, args=(w, local, "loopback"), daemon=True).start()
            u = w.socket(socket.SOCK_DGRAM, (address, 8080), where)
            threading.Thread(target=datagrams, args=(w, u, name), daemon=True).start()
        yield w


def accept(w, listener, name):
    while True:
        try:
            s, _ = listener.accept()
        except OSError:
            return
        w.hits.append(name)
        threading.Thread(target=speak, args=(s, name), daemon=True).start()


def speak(s, name):
    """Says who it is, then says back what it hears."""
    try:
        s.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhere is " + name.encode() + b"\n")
        while True:
            b = s.recv(1 << 20)
            if not b or b.startswith(b"GET "):
                break
            s.sendall(b)
    except OSError:
        pass
    s.close()


def datagrams(w, u, name):
    while True:
        try:
            _, who = u.recvfrom(100)
        except OSError:
            return
        w.hits.append(name)
        u.sendto(name.encode(), who)


@pytest.fixture(scope="module", params=server_kinds())
def server(request, world):
    config = {"local_bwrap": {"size": 2, "egress": "open", "egress_allow": ["site.example:8080"]},
              "local_pools": [{"name": "listed", "size": 1, "egress": "restricted",
                               "egress_allow": [f"{n}.example:8080" for n in ("site", "inner", "loop", "own", "mixed", "meta")]},
                              {"name": "plain", "size": 1, "egress": "open"}],
              "metrics": {"public": True}}
    with WorldServer(world, config, user=account(request.param), tun=request.param == "user") as s:
        s.wait_slots(2)
        yield s


@pytest.fixture
def c(server):
    return server.client()


@pytest.fixture
def lease(c):
    id = c.lease()
    yield id
    c.terminate(id)


TRY = r"""
import errno, json, socket, sys
out = []
for kind, address, port in json.load(sys.stdin):
    s = socket.socket(socket.AF_INET, socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM)
    s.settimeout(1.5 if kind == "tcp" else 0.3)
    try:
        if kind == "udp":
            s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            s.sendto(b"x", (address, port))
            out.append(s.recv(100).decode())
        else:
            s.connect((address, port))
            data = b""
            while not data.endswith(b"\n"):
                b = s.recv(1000)
                if not b:
                    raise OSError(0, "closed")
                data += b
            out.append(data.split()[-1].decode())
    except OSError as e:
        out.append(errno.errorcode.get(e.errno, "nothing"))
    s.close()
print(json.dumps(out))
"""


def attempts(c, lease, what):
    return json.loads(python(c, lease, TRY, json.dumps(what).encode()))


def helpers(server):
    """The helpers of this server's sandboxes that run."""
    found = subprocess.run(["pgrep", "-f", "slirp4netns --configure"], capture_output=True, text=True).stdout.split()
    return [int(p) for p in found if descends(int(p), server.pid())]


def descends(pid, top):
    while pid > 1:
        if pid == top:
            return True
        try:
            with open(f"/proc/{pid}/stat") as f:
                pid = int(f.read().rsplit(")", 1)[1].split()[1])
        except OSError:
            return False
    return False


def test_the_outside_is_reached(c, lease, world):
    l = c.get(f"/leases/{lease}").json()
    assert l["metadata"]["egress"] == "open" and "network" in l["capabilities"]
    assert attempts(c, lease, [["tcp", SITE, 8080], ["udp", SITE, 8080], ["tcp", PRIVATE, 8080]]) == ["internet"] * 3
    r = c.exec(lease, "curl -sS -m 10 http://site.example:8080/; cat /etc/resolv.conf; env")
    assert "here is internet" in r["stdout"] and "nameserver 10.0.2.3\n" in r["stdout"] and "PROXY" not in r["stdout"].upper(), r
    # Much, both ways.
    text = f"""
import os, socket, threading
s = socket.create_connection(("{SITE}", 8080))
f = s.makefile("rb")
while f.readline().split()[:1] != [b"here"]: pass
data = os.urandom(1 << 20) * 4
threading.Thread(target=lambda: (s.sendall(data), s.shutdown(socket.SHUT_WR))).start()
print(f.read() == data)
"""
    assert python(c, lease, text, timeout=60).split() == [b"True"]


def test_the_host_is_not(c, lease, world):
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind("\0sandgate-test-open")
    abstract.listen(1)
    del world.hits[:]
    what = [["tcp", a, p] for a in (HOST, OTHER, "10.0.2.2", "10.0.2.3", "127.0.0.1", "0.0.0.0", "10.0.2.100", METADATA) for p in (8080, 8081)]
    what += [["udp", a, 8080] for a in (HOST, OTHER, "10.0.2.2", "10.0.2.3", "127.0.0.1", METADATA, "255.255.255.255", "203.0.113.255", "10.0.2.255", "224.0.0.1")]
    got = dict(zip((" ".join(map(str, w)) for w in what), attempts(c, lease, what)))
    assert not {"host", "internet", "loopback"} & set(got.values()) and world.hits == [], (got, world.hits)
    assert got[f"tcp {METADATA} 8080"] == got[f"tcp {HOST} 8080"] == "EHOSTUNREACH", got
    r = c.exec(lease, ["python3", "-c", "import socket; socket.socket(socket.AF_UNIX).connect('\\0sandgate-test-open')"])
    assert r["returncode"] == 1 and "ConnectionRefused" in r["stderr"], r
    # Nor does a command change its routes, or send what it likes.
    r = c.exec(lease, ["python3", "-c", f"""
import socket, struct
for f, k, p in ((socket.AF_PACKET, socket.SOCK_RAW, 0), (socket.AF_INET, socket.SOCK_RAW, 1)):
    try:
        socket.socket(f, k, p)
        print("made", f)
    except OSError:
        pass
try:
    s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    s.send(struct.pack("IHHII", 36, 25, 5, 1, 0) + struct.pack("BBBBBBBBI", 2, 32, 0, 0, 254, 0, 0, 7, 0) + struct.pack("HH", 8, 1) + socket.inet_aton("{HOST}"))
    answer = s.recv(1000)
    print("route", struct.unpack("i", answer[16:20])[0])
except OSError:
    pass
try:
    open("/dev/net/tun")
    print("tun")
except OSError:
    pass
"""])
    assert r["returncode"] == 0 and r["stdout"] in ("", "route -1\n"), r
    abstract.close()


def test_services_inside_are_reached_as_ever(c, lease):
    c.exec(lease, "cd /workspace && echo hello > index.html")
    assert c.post(f"/leases/{lease}/exec", {"command": ["python3", "-m", "http.server", "8000"], "detach": True}).status == 202
    deadline = time.monotonic() + 20 * SLOW
    while c.get(f"/leases/{lease}/proxy/8000/").status != 200 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert c.get(f"/leases/{lease}/proxy/8000/index.html").body == b"hello\n"


@pytest.mark.parametrize("narrow", ["none", "loopback", "restricted"])
def test_a_lease_may_have_less(server, c, world, narrow):
    l = c.post("/leases", {"network_egress_class": narrow, "limits": {"pids_max": 100}}).json()
    assert l["metadata"]["egress"] == narrow and ("network" in l["capabilities"]) == (narrow == "restricted"), l
    del world.hits[:]
    assert attempts(c, l["id"], [["tcp", SITE, 8080], ["udp", SITE, 8080], ["tcp", NAMES, 53]]) == ["ENETUNREACH"] * 3 and world.hits == []
    if narrow == "restricted":
        assert "here is internet" in c.exec(l["id"], "curl -sS -m 10 http://site.example:8080/")["stdout"]
        assert raw(c, l["id"], [connect(SITE.encode() + b":8080")])[0].startswith(b"HTTP/1.1 403")
    c.terminate(l["id"])
    assert attempts(c, c.lease(), [["tcp", SITE, 8080]]) == ["internet"]  # and the next one is as the pool
    for x in c.get("/leases?state=ready").json()["items"]:
        c.terminate(x["id"])


def test_restricted_needs_a_list_here_too(c):
    r = c.post("/leases", {"local_pool": "plain", "network_egress_class": "restricted"})
    assert r.status == 422 and r.code == "not_supported" and r.json()["field"] == "network_egress_class", r


def test_names_lead_to_public_addresses_only(c, world):
    l = c.lease(local_pool="listed")
    del world.hits[:]
    names = ["site", "mixed", "inner", "loop", "own", "meta"]
    got = raw(c, l, [b"GET http://" + n.encode() + b".example:8080/ HTTP/1.1\r\n\r\n" for n in names])
    assert [status(a) for a in got] == [200, 200, 403, 403, 403, 403], got
    assert world.hits == ["internet", "internet"]
    # A name whose address changes is judged by the one that is connected to.
    world.names["site.example"] = ["127.0.0.1"]
    try:
        assert status(raw(c, l, [connect(b"site.example:8080")])[0]) == 403
    finally:
        world.names["site.example"] = [SITE]
    assert world.hits == ["internet", "internet"]
    c.terminate(l)


def test_the_helper_is_nobody_and_goes_with_its_sandbox(server, c, lease):
    wait_until(lambda: len(helpers(server)) >= 3, 20 * SLOW, "three slots")  # one that was leased is being rebuilt
    pids = helpers(server)
    for pid in pids:
        with open(f"/proc/{pid}/status") as f:
            s = dict(line.rstrip("\n").split(":\t", 1) for line in f if ":\t" in line)
        uids = set(map(int, s["Uid"].split()))
        assert 0 not in uids and int(s["CapEff"], 16) == 0 and int(s["CapPrm"], 16) == 0 and s["Seccomp"] == "2" and s["NoNewPrivs"] == "1", s
        if not server.user:
            assert all(server.uid_base <= u < server.uid_base + 2048 for u in uids), s
    slot = c.get(f"/leases/{lease}").json()["metadata"]["slot"]
    r = c.post(f"/slots/default/recycle?slot={slot}&reset=hard")
    assert r.status in (200, 202), r
    deadline = time.monotonic() + 20 * SLOW
    while set(pids) <= set(helpers(server)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(set(pids) - set(helpers(server))) == 1


def test_without_its_helper_a_sandbox_is_lost_and_rebuilt(server, c, world):
    server.wait_slots(1, "plain")
    l = c.lease(local_pool="plain")
    before = set(helpers(server))
    assert attempts(c, l, [["tcp", SITE, 8080]]) == ["internet"]
    for p in before:
        os.kill(p, signal.SIGKILL)
    deadline = time.monotonic() + 20 * SLOW
    while c.get(f"/leases/{l}").json()["state"] != "lost" and time.monotonic() < deadline:
        time.sleep(0.02)
    lost = c.get(f"/leases/{l}").json()
    assert lost["state"] == "lost" and lost["reason"].startswith("network_lost"), lost
    r = c.exec_response(l, "true")
    assert r.status == 410, r
    c.delete(f"/leases/{l}")
    server.wait_slots(1, "plain")
    server.wait_slots(2)
    assert not set(helpers(server)) & before
    l = c.lease(local_pool="plain")
    assert attempts(c, l, [["tcp", SITE, 8080]]) == ["internet"]
    c.terminate(l)


def test_a_name_server_on_the_host_is_its_port_only(world):
    """What listens beside it on the host's loopback is not reached through its address."""
    names = world.socket(socket.SOCK_DGRAM, ("127.0.0.1", 53), False)
    threading.Thread(target=world.answer, args=(names,), daemon=True).start()
    far, world.resolv = world.resolv, world.write("resolv.local", "nameserver 127.0.0.1\n")
    try:
        with WorldServer(world, {"local_bwrap": {"size": 1, "egress": "open"}}, tun=False) as s:
            c = s.client()
            lease = c.lease()
            assert "here is internet" in c.exec(lease, "curl -sS -m 10 http://site.example:8080/")["stdout"]
            del world.hits[:]
            got = attempts(c, lease, [["tcp", "10.0.2.3", 8080], ["tcp", "10.0.2.3", 8081], ["udp", "10.0.2.3", 8080], ["tcp", "10.0.2.2", 8080]])
            assert not {"host", "loopback"} & set(got) and world.hits == [], (got, world.hits)
    finally:
        world.resolv = far


@pytest.mark.parametrize("kind", server_kinds())
def test_nothing_is_left(world, kind):
    with WorldServer(world, {"local_bwrap": {"size": 2, "egress": "open"}}, user=account(kind), tun=kind == "user") as s:
        s.wait_slots(2)
        c = s.client()
        c.terminate(c.lease())
        s.wait_slots(2)
        idle = s.descriptors()
        for _ in range(5):
            c.terminate(c.lease(network_egress_class="none"))
            c.terminate(c.lease())
        s.wait_slots(2)
        deadline = time.monotonic() + 10 * SLOW
        while s.descriptors() > idle and time.monotonic() < deadline:
            time.sleep(0.05)
        assert s.descriptors() <= idle
        running = helpers(s)
        assert len(running) == 2
        lease = c.lease()
        s.process.send_signal(signal.SIGKILL)
        s.process.wait()
        s.process = None
        assert lease
        deadline = time.monotonic() + 20 * SLOW
        while any(os.path.exists(f"/proc/{p}") for p in running) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(os.path.exists(f"/proc/{p}") for p in running)
        s.start()
        s.wait_slots(2)


def test_images_are_told_of_the_name_server_where_they_have_the_file(world, tmp_path):
    os.chmod(tmp_path, 0o755)
    images = {}
    for name, files in (("without", None), ("empty", []), ("file", ["resolv.conf"])):
        root = tmp_path / name
        (root / "bin").mkdir(parents=True)
        shutil.copy("/bin/busybox", root / "bin/busybox")
        for tool in ("sh", "cat", "nc", "tail"):
            (root / "bin" / tool).symlink_to("busybox")
        if files is not None:
            (root / "etc").mkdir()
            for f in files:
                (root / "etc" / f).write_text("nameserver 192.0.2.1\n")
        images[name] = str(root)
    with WorldServer(world, {"local_bwrap": {"size": 1, "egress": "open", "images": images}}, tun=False) as s:
        c = s.client()
        for name, says in (("without", "nameserver 10.0.2.3\n"), ("empty", ""), ("file", "nameserver 10.0.2.3\n")):
            lease = c.lease(image=name)
            r = c.exec(lease, f"cat /etc/resolv.conf; nc -w 5 {SITE} 8080 </dev/null | tail -n 1")
            assert r["stdout"] == says + "here is internet\n", (name, r["stdout"], r["stderr"])
            c.terminate(lease)


def test_a_helper_that_fails_says_why(world):
    programs = os.path.join(world.dir, "broken")
    os.mkdir(programs)
    with open(os.path.join(programs, "slirp4netns"), "w") as f:
        f.write("#!/bin/sh\necho 'no luck today' >&2\nexit 3\n")
    os.chmod(os.path.join(programs, "slirp4netns"), 0o755)
    with WorldServer(world, {"local_bwrap": {"size": 1, "egress": "open"}}, tun=False, ready=False, env={"PATH": f"{programs}:{os.environ['PATH']}"}) as s:
        c = s.client()
        deadline = time.monotonic() + 20 * SLOW
        slot = c.get("/slots/default").json()["items"][0]
        while slot["state"] != "FAILED" and time.monotonic() < deadline:
            time.sleep(0.05)
            slot = c.get("/slots/default").json()["items"][0]
        assert slot["state"] == "FAILED" and "the helper of its network ended: no luck today" in slot["last_error"], slot
        assert c.get("/readyz").status == 503 and helpers(s) == []


def refused_start(server):
    server.command_line = server.command()
    r = subprocess.run(server.command_line, capture_output=True, text=True, timeout=60, env={"PATH": server.env.get("PATH", os.environ["PATH"])})
    server.clean()
    assert r.returncode != 0, r
    return r.stderr


def test_without_the_device_or_the_program_nothing_starts(world):
    config = {"local_bwrap": {"size": 1, "egress": "open"}}
    if "user" in server_kinds():
        text = refused_start(WorldServer(world, config, user=account("user"), tun=False))
        assert "/dev/net/tun" in text and "egress open" in text, text
    few = os.path.join(world.dir, "bin")
    os.mkdir(few)
    for name in ("bwrap", "sh", "unshare", "mount", "setpriv"):
        os.symlink(subprocess.run(["which", name], capture_output=True, text=True, check=True).stdout.strip(), os.path.join(few, name))
    text = refused_start(WorldServer(world, config, tun=False, env={"PATH": few}))
    assert "slirp4netns is not in PATH" in text and "install" in text, text
