"""Escapes: every attempt of the tables here is refused, by a root server's sandboxes and an ordinary user's, and the host and the neighbours are
as they were. What commands try by themselves is in escape_inside.py, what they take more of than is theirs in exhaust_inside.py, what they do
while the API works on the same files here."""
import ctypes
import io
import json
import os
import platform
import shutil
import socket
import stat
import subprocess
import tarfile
import tempfile
import urllib.parse

import pytest

import escape_inside
import exhaust_inside
from conftest import account, server_kinds
from harness import SLOW, Server, wait_until
from tars import make_tar

HERE = os.path.dirname(os.path.abspath(__file__))
LIMITS = {"memory_max": 96 << 20, "pids_max": 48, "disk_max": 24 << 20}
pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the attempts know the system calls of x86-64")
libc = ctypes.CDLL(None, use_errno=True)


# ---- the host, and what of it must not change ----

class Host:
    """Things that a sandbox would find if it got out: a file, a process, sockets, shared memory, a queue."""

    def __init__(self, dir):
        self.secret = os.path.join(dir, "secret")
        self.text = b"of the host alone"
        with open(self.secret, "wb") as f:
            f.write(self.text)
        os.chmod(dir, 0o755)
        os.chmod(self.secret, 0o666)
        self.process = subprocess.Popen(["sleep", "100000"], start_new_session=True)
        self.sockets = [socket.create_server((a, 0), family=f) for f, a in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::1"))]
        self.unix = socket.socket(socket.AF_UNIX)
        self.unix.bind(os.path.join(dir, "unix"))
        self.unix.listen()
        os.chmod(os.path.join(dir, "unix"), 0o777)
        for s in self.sockets + [self.unix]:
            s.setblocking(False)
        self.key = 0x5a0000 | os.getpid() & 0xffff
        self.shm = libc.shmget(self.key, 4096, 0o1666)
        self.msg = libc.msgget(self.key, 0o1666)
        self.shm_name = f"sandgate-{os.getpid()}"
        with open("/dev/shm/" + self.shm_name, "wb") as f:
            f.write(self.text)
        self.watch = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        for path in (self.secret, "/dev/shm/" + self.shm_name):
            assert libc.inotify_add_watch(self.watch, path.encode(), 0xfff) >= 0

    def addresses(self):
        out = subprocess.run(["hostname", "-I"], capture_output=True, text=True).stdout.split()
        return ["127.0.0.1", "::1", *[a for a in out if not a.startswith("fe80")][:4]]

    def facts(self, server):
        with open("/proc/self/cgroup") as f:
            group = f.read().splitlines()[-1].split(":")[2]
        return {"secret": self.secret, "state": server.state, "uid": server.uid_base, "pids": [self.process.pid, server.pid()], "mark": "sleep\0100000",
                "kind": server.kind, "unix": self.unix.getsockname(), "addresses": self.addresses(),
                "ports": [server.port, *[s.getsockname()[1] for s in self.sockets]], "shm": self.key, "msg": self.key, "shm_name": self.shm_name,
                "group": group, "memory": LIMITS["memory_max"], "pids": [self.process.pid, server.pid()]}

    def check(self):
        assert self.process.poll() is None, "the host's process is gone"
        with open(f"/proc/{self.process.pid}/stat") as f:
            assert f.read().split()[2] == "S", "it was stopped"
        assert os.getpriority(os.PRIO_PROCESS, self.process.pid) == os.getpriority(os.PRIO_PROCESS, 0)
        for s in self.sockets + [self.unix]:
            with pytest.raises(BlockingIOError):
                s.accept()
        with pytest.raises(BlockingIOError):  # nobody has so much as opened its files
            os.read(self.watch, 4096)
        assert stat.S_IMODE(os.stat(self.secret).st_mode) == 0o666

    def close(self):
        try:
            with open(self.secret, "rb") as f:
                assert f.read() == self.text
            assert os.read(self.watch, 4096), "the watch would have seen it"
        finally:
            self.process.kill()
            self.process.wait()
            for s in self.sockets + [self.unix]:
                s.close()
            libc.shmctl(self.shm, 0, None)
            libc.msgctl(self.msg, 0, None)
            os.unlink("/dev/shm/" + self.shm_name)
            os.close(self.watch)
            shutil.rmtree(os.path.dirname(self.secret))


def left_behind(s):
    """Processes, shared memory, semaphores and queues of the host that belong to a user of the server or of its sandboxes."""
    ours = {*range(s.uid_base, s.uid_base + 256), *([s.user] if s.user else [])}
    found = [p for p in os.listdir("/proc") if p.isdigit() and owner("/proc/" + p) in ours]
    found += [n for n in os.listdir("/dev/shm") if owner("/dev/shm/" + n) in ours]
    for name in ("shm", "sem", "msg"):
        with open("/proc/sysvipc/" + name) as f:
            head = f.readline().split()
            found += [line for line in f if int(line.split()[head.index("uid")]) in ours or int(line.split()[head.index("cuid")]) in ours]
    return found


@pytest.fixture(scope="module", params=server_kinds())
def world(request):
    """A server, and a lease whose neighbours try to get out."""
    host = Host(tempfile.mkdtemp(prefix="sandgate-host-"))
    try:
        with Server({"local_bwrap": dict(LIMITS, size=3)}, user=account(request.param)) as s:
            s.kind, s.host = request.param, host
            s.wait_slots(3)
            c = s.client()
            s.neighbour = c.lease()
            c.write(s.neighbour, "canary", b"alive")
            assert c.exec_response(s.neighbour, "sleep 100000", detach=True, exec_id="beats").status == 202
            yield s
            still_there(s)
            c.terminate(s.neighbour)
            s.wait_slots(3)
            if os.geteuid() == 0:  # else they share our own user with whatever else runs
                assert left_behind(s), "the sandboxes that wait are seen"
                s.stop()
                assert not left_behind(s)
    finally:
        host.close()


def owner(path):
    try:
        return os.stat(path).st_uid
    except OSError:
        return None


def still_there(s):
    """The host, the server, the neighbour and what runs in it."""
    c = s.client()
    s.host.check()
    assert c.get("/healthz").status == 200
    assert c.read(s.neighbour, "canary").body == b"alive"
    assert c.get(f"/leases/{s.neighbour}/exec/beats").json()["state"] == "running"
    r = c.exec(s.neighbour, "echo fine > f && cat f", timeout=20 * SLOW)
    assert r["stdout"] == "fine\n", r


@pytest.fixture
def lease(world):
    c = world.client()
    id = c.lease()
    yield id
    assert c.exec(id, "echo up")["stdout"] == "up\n", "the agent lives on"
    assert c.delete(f"/leases/{id}").status == 200
    still_there(world)
    world.wait_slots(2)


def outcomes(s, lease, module, **more):
    """What became of each attempt of a module, run in the lease in one go."""
    c = s.client()
    for name in ("escape_inside", module.__name__):
        with open(os.path.join(HERE, name + ".py"), "rb") as f:
            c.write(lease, name + ".py", f.read())
    c.write(lease, "facts.json", json.dumps(dict(s.host.facts(s), **more)).encode())
    r = c.exec(lease, ["python3", module.__name__ + ".py", "facts.json"], timeout=100)
    assert r["returncode"] == 0, (r["stdout"][-3000:], r)
    said = [json.loads(line) for line in r["stdout"].splitlines()]
    assert [name for name, _ in said] == list(module.ATTEMPTS)
    return {name: outcome for name, outcome in said if outcome != "refused"}


# ---- from inside ----

def test_attempts_from_inside(world, lease):
    assert outcomes(world, lease, escape_inside) == {}


def test_exhaustion(world, lease):
    c = world.client()
    means = c.get(f"/leases/{lease}").json()["metadata"]["limits_enforced"]
    counted = means["memory"] in ("cgroup1", "cgroup2")
    terminals = open("/proc/sys/kernel/pty/nr").read()
    said = outcomes(world, lease, exhaust_inside, counted=counted, memory=LIMITS["memory_max"], pids=LIMITS["pids_max"], disk=LIMITS["disk_max"], seconds=3)
    assert said == {}
    with open("/proc/sys/fs/aio-nr") as f:
        assert int(f.read()) < 32768
    assert abs(int(open("/proc/sys/kernel/pty/nr").read()) - int(terminals)) < 50


# ---- while the API works on the same files ----

# A directory and a link change places, as fast as they can, until the file `stop` is there.
SWAP = r"""
import ctypes, os, sys
libc = ctypes.CDLL(None)
os.makedirs("d"); open("d/environ", "w").write("mine"); os.makedirs("d/sub")
os.symlink(sys.argv[1], "l")
if os.fork(): sys.exit()
os.setsid()
for fd in range(3): os.close(fd)
while not os.path.exists("stop"):
    for _ in range(200): libc.renameat2(-100, b"d", -100, b"l", 2)
open("stopped", "w").close()
"""

OTHER = "/tmp/other"


def url(lease, route, **query):
    return f"/leases/{lease}/{route}?" + urllib.parse.urlencode(query)


def tar_names(body):
    try:
        with tarfile.open(fileobj=io.BytesIO(body)) as t:
            return t.getnames()
    except tarfile.TarError:
        return []


# Name: (where the link leads, the call, whether an answer gave away something or put it where it must not be).
def _read(c, l):
    r = c.get(url(l, "files", path="d/environ"))
    return r.status, r.status == 200 and r.body != b"mine"


def _read_range(c, l):
    r = c.get(url(l, "files", path="d/environ"), headers={"Range": "bytes=0-3"})
    return r.status, r.status in (200, 206) and r.body != b"mine"


def _stat(c, l):
    r = c.get(url(l, "files/stat", path="d/environ"))
    return r.status, r.status == 200 and r.json()["size"] not in (0, 4)  # commands see the same of what they cannot read


def _list(c, l):
    r = c.get(url(l, "files/list", path="d", recursive="1"))
    return r.status, r.status == 200 and not {i["name"] for i in r.json()["items"]} <= {"environ", "sub"}


def _tar(c, l):
    r = c.get(url(l, "files/tar", path="d"))
    return r.status, r.status == 200 and not {n.rstrip("/") for n in tar_names(r.body)} <= {".", "environ", "sub", "d", "d/environ", "d/sub"}


def _put(c, l):
    return c.put(url(l, "files", path="d/new"), b"x").status, False


def _append(c, l):
    return c.put(url(l, "files", path="d/log", append="1"), b"x" * 100).status, False


def _untar(c, l):
    return c.put(url(l, "files/tar", path="d"), make_tar(("from-tar", b"x"))).status, False


def _mkdir(c, l):
    return c.post(url(l, "files/mkdir", path="d/made/deeper")).status, False


def _move_out(c, l):
    return c.post(url(l, "files/move"), {"from": "d/environ", "to": "moved"}).status, c.read(l, "moved").body.startswith(b"PATH")


def _remove(c, l):
    return c.delete(url(l, "files", path="d/sub", recursive="1")).status, False


def _cwd(c, l):
    r = c.exec_response(l, "cat environ", cwd="d")
    return r.status, r.status == 200 and r.json()["stdout"] not in ("mine", "")


def _snapshot(c, l):
    target = RACES["snapshot_of_a_link"][0]
    r = c.post(f"/leases/{l}/snapshots")
    if r.status != 201:
        return r.status, False
    copy = c.lease(manifest={"snapshot": r.json()["id"]})
    found = c.exec(copy, "find d l -mindepth 1 -printf '%p %l\\n'; readlink d l")["stdout"].split("\n")  # neither may be there: they changed places meanwhile
    c.terminate(copy)
    return r.status, not {line.strip() for line in found} <= {"", target, "d/environ", "d/sub", "l/environ", "l/sub"}


RACES = {
    "read_of_a_file_below_a_link": ("/proc/1", _read, 150), "range_of_a_file_below_a_link": ("/proc/1", _read_range, 60),
    "stat_of_a_file_below_a_link": ("/proc/1", _stat, 60), "list_of_a_directory_that_is_a_link": ("/proc/1", _list, 60),
    "tar_of_a_directory_that_is_a_link": ("/proc/1", _tar, 40), "move_from_below_a_link": ("/proc/1", _move_out, 40),
    "command_in_a_directory_that_is_a_link": ("/proc/1", _cwd, 20), "write_below_a_link": ("/etc", _put, 60), "append_below_a_link": ("/etc", _append, 60),
    "tar_into_a_link": ("/etc", _untar, 40), "mkdir_below_a_link": ("/etc", _mkdir, 40), "remove_below_a_link": ("/etc", _remove, 40),
    "write_into_the_agents_place": ("/.sandgate", _put, 40), "snapshot_of_a_link": ("/proc/1", _snapshot, 6),
}


def race(s, id, name):
    c = s.client()
    target, call, n = RACES[name]
    c.write(id, "swap.py", SWAP.encode())
    etc = c.exec(id, "ls -laR /etc /.sandgate 2>&1 | cksum")["stdout"]
    assert c.exec(id, ["python3", "swap.py", target])["returncode"] == 0
    seen = {}
    for _ in range(n):
        status, wrong = call(c, id)
        assert not wrong, (name, status)
        seen[status] = seen.get(status, 0) + 1
    c.write(id, "stop", b"")
    wait_until(lambda: c.read(id, "stopped").status == 200, what="the end of the swapping")
    assert c.exec(id, "ls -laR /etc /.sandgate 2>&1 | cksum")["stdout"] == etc, (name, seen)
    assert not set(seen) - {200, 201, 204, 206, 400, 403, 404, 409, 422, 502, 503}, (name, seen)
    c.exec(id, "chmod -R u+rwx .; rm -rf -- ./* /workspace/.[!.]*")
    return seen


def test_races_of_links_through_the_api(world, lease):
    seen = {name: race(world, lease, name) for name in RACES}
    # Both sides of the coin were seen: where it was a directory it worked, where it was a link it did not.
    statuses = [k for each in seen.values() for k in each]
    assert min(statuses) < 300 and max(statuses) >= 400, seen


def test_there_are_enough_of_them():
    names = [*escape_inside.ATTEMPTS, *exhaust_inside.ATTEMPTS, *RACES]
    assert len(set(names)) == len(names) >= 60
    areas = {area for table in (escape_inside.ATTEMPTS, exhaust_inside.ATTEMPTS) for area, _ in table.values()}
    assert {"file system", "/proc", "/sys", "namespaces", "signals", "network", "keyrings", "devices", "setuid", "cgroup", "agent",
            "descriptor passing", "memory", "processes", "disk", "kernel objects"} <= areas
