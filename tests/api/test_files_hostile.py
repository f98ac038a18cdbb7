"""Files while the sandbox works against it: whatever a command plants, swaps, fills or kills, nothing of the host is read, written or
removed, nothing hangs, and the next call works. Against a root server and an ordinary user's."""
import concurrent.futures
import io
import os
import tarfile
import time
import urllib.parse

import pytest

from conftest import account, one_kind
from harness import SLOW, Server, wait_until
from tars import make_tar


@pytest.fixture(scope="module", params=one_kind())
def world(request):
    config = {"local_bwrap": {"size": 2, "memory_max": "512MiB", "pids_max": 256, "disk_max": "128MiB"}}
    with Server(config, user=account(request.param)) as s:
        s.wait_slots(2)
        s.kind = request.param
        yield s


@pytest.fixture
def box(world):
    """(server, client, lease); afterwards the sandbox must still be at our service, and so must the host be as before."""
    c = world.client()
    id = c.lease()
    with open("/etc/passwd", "rb") as f:
        passwd = f.read()
    yield world, c, id
    assert c.exec(id, "echo alive")["stdout"] == "alive\n"
    assert c.write(id, "/tmp/after", b"x").status == 201 and c.read(id, "/tmp/after").body == b"x"
    assert c.get("/healthz").status == 200
    c.terminate(id)
    with open("/etc/passwd", "rb") as f:
        assert f.read() == passwd


def url(lease, route, path=None, **query):
    return f"/leases/{lease}/{route}?" + urllib.parse.urlencode(dict(query, **({} if path is None else {"path": path})))


def names(c, lease, path="."):
    r = c.get(url(lease, "files/list", path, recursive="1", limit=1000))
    assert r.status == 200, r
    return sorted(i["name"] for i in r.json()["items"])


SECRET = "/var/sandgate-test-secret"


@pytest.fixture
def secret():
    """A file of the host where sandboxes have nothing."""
    if os.geteuid() != 0:
        pytest.skip("needs root to put a file there")
    with open(SECRET, "w") as f:
        f.write("secret of the host")
    os.chmod(SECRET, 0o644)
    yield SECRET
    with open(SECRET) as f:
        assert f.read() == "secret of the host"
    os.unlink(SECRET)


WAYS = ["{0}", "../../../../../../../..{0}", "a/../../..{0}", "./..//..{0}", "/proc/self/root{0}", "/proc/1/root{0}", "/proc/self/cwd/../..{0}",
        "/proc/thread-self/root{0}", "/proc/self/task/1/root{0}", "/dev/fd/../root{0}", "abs", "rel", "dir/sandgate-test-secret", "proc{0}",
        "/workspace/../..{0}", "/tmp/../../..{0}"]


@pytest.mark.parametrize("way", WAYS)
def test_no_way_to_the_host(box, secret, way):
    """The same path by every route, escaped and not."""
    s, c, id = box
    c.exec(id, f"mkdir a; ln -s {secret} abs; ln -s ../../../..{secret} rel; ln -s /var dir; ln -s /proc/1/root proc")
    path = way.format(secret)
    for raw in {urllib.parse.quote(path), urllib.parse.quote(path, safe=""), "".join(f"%{b:02x}" for b in path.encode())}:
        for r in (c.get(f"/leases/{id}/files?path={raw}"), c.get(f"/leases/{id}/files/tar?path={raw}"),
                  c.get(f"/leases/{id}/files/list?path={raw}"), c.request("HEAD", f"/leases/{id}/files?path={raw}")):
            assert r.status in (400, 403, 404, 409), (raw, r)
        r = c.get(f"/leases/{id}/files/stat?path={raw}")
        assert r.status in (403, 404) or (r.status == 200 and r.json()["type"] == "symlink"), r
    for r in (c.write(id, path, b"pwned"), c.write(id, path, b"pwned", append="1"), c.put(url(id, "files/tar", path), make_tar(("x", b"pwned"))),
              c.put(url(id, "files/tar", os.path.dirname(path) or "."), make_tar((os.path.basename(path), b"pwned"))),
              c.post(url(id, "files/mkdir", path)), c.post(url(id, "files/move"), {"from": path, "to": "stolen"}),
              c.exec_response(id, "cat sandgate-test-secret", cwd=os.path.dirname(path) or "."), c.exec_response(id, "true", cwd=path)):
        assert b"secret of the host" not in r.body, r
    assert b"secret of the host" not in c.read(id, "stolen").body
    r = c.delete(url(id, "files", path, recursive="1"))
    assert r.status in (204, 403, 404, 409), r


def test_a_tree_with_links_out_of_it_is_removed_and_packed_alone(box, secret):
    s, c, id = box
    c.exec(id, f"mkdir -p t/sub /tmp/other; echo keep > /tmp/other/f; ln -s {secret} t/a; ln -s /var t/b; ln -s /tmp/other t/sub/c; ln -s / t/root; "
               "ln /tmp/other/f /tmp/other/g; mkfifo t/p")
    r = c.get(url(id, "files/tar", "t"))
    with tarfile.open(fileobj=io.BytesIO(r.body)) as t:
        assert {m.name: m.type for m in t.getmembers()} == {"a": tarfile.SYMTYPE, "b": tarfile.SYMTYPE, "root": tarfile.SYMTYPE, "sub": tarfile.DIRTYPE,
                                                          "sub/c": tarfile.SYMTYPE}
    assert b"secret of the host" not in r.body and b"keep" not in r.body
    assert names(c, id, "t") == ["a", "b", "p", "root", "sub", "sub/c"]
    assert c.delete(url(id, "files", "t", recursive="1")).status == 204
    assert c.read(id, "/tmp/other/f").body == b"keep\n"


SWAP = "(while :; do ln -sfn {0} n; mv -T n x; mkdir d 2>/dev/null; echo mine > d/f; mv -T x old 2>/dev/null; mv -T d x 2>/dev/null; rm -rf old; done) >/dev/null 2>&1 &"


def test_directories_that_become_links(box, secret):
    """x is a directory, or a link to a directory of the host's name, in turns; every route goes through it."""
    s, c, id = box
    c.exec(id, SWAP.format("/var"))
    until = time.monotonic() + (6 if SLOW == 1 else 10)
    calls = [lambda k: k.read(id, "x/sandgate-test-secret"), lambda k: k.write(id, "x/sandgate-test-secret", b"pwned"),
             lambda k: k.write(id, "x/sandgate-test-secret", b"pwned", append="1"), lambda k: k.delete(url(id, "files", "x", recursive="1")),
             lambda k: k.get(url(id, "files/list", "x")), lambda k: k.put(url(id, "files/tar", "x"), make_tar(("sandgate-test-secret", b"pwned"))),
             lambda k: k.post(url(id, "files/move"), {"from": "x/sandgate-test-secret", "to": "stolen"}), lambda k: k.read(id, "stolen"),
             lambda k: k.post(url(id, "files/mkdir", "x/sandgate-test-secret/d"))]

    def attack(call):
        k, n = s.client(), 0
        while time.monotonic() < until:
            r = call(k)
            assert r.status < 500 or r.status == 503, r
            assert b"secret of the host" not in r.body
            n += 1
        return n

    with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
        assert min(pool.map(attack, calls)) > 0


def test_a_file_that_is_a_link_every_other_time(box, secret, soak):
    """Thousands of reads while a process swaps a file and a link."""
    s, c, id = box
    c.exec(id, f"echo mine > a; ln -s {secret} b; (while :; do mv a t; mv b a; mv t b; done) >/dev/null 2>&1 &")
    n = 10000 if soak else 3000 if SLOW == 1 else 500

    def reads(count):
        k = s.client()
        for _ in range(count):
            r = k.read(id, "a")
            assert (r.status == 200 and r.body == b"mine\n") or r.status == 404, r

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(reads, [n // 4] * 4))


def test_a_directory_that_is_filled_while_it_is_removed(box):
    """It may never become empty: then it says so, soon."""
    s, c, id = box
    c.exec(id, "mkdir -p d/e; (i=0; while :; do i=$((i+1)); : > d/e/$i; : > d/$i; done) 2>/dev/null >/dev/null &")
    for _ in range(3):
        r = c.delete(url(id, "files", "d", recursive="1"), timeout=60 * SLOW)
        assert r.status in (204, 404) or (r.status, r.code) == (409, "directory_not_empty"), r
        c.post(url(id, "files/mkdir", "d/e"))


def test_tars_into_a_place_that_is_fought_over(box):
    s, c, id = box
    c.exec(id, "(while :; do mkdir -p t; ln -sfn /tmp t/l; rm -f t/a; mkdir -p t/a; rm -rf t/b t/.sandgate*; done) >/dev/null 2>&1 &")
    for i in range(30):
        r = c.put(url(id, "files/tar", "t"), make_tar(("a", b"file"), ("b/c", b"1"), ("l/x", b"through")))
        assert r.status in (200, 201, 403, 404, 409, 507), r
    assert [n for n in names(c, id, "/tmp") if n != "after"] == [], "nothing went through the planted link"


def test_workers_that_are_killed(box):
    """Where commands have the agent's uid they can kill what works on trees for it; the outcome is then unknown, and the sandbox stays."""
    s, c, id = box
    c.exec(id, "mkdir m; cd m; for i in $(seq 40); do mkdir $i; (cd $i; seq 60 | xargs touch); done", timeout=60)
    c.exec(id, ["python3", "-c", """
import os, signal, subprocess, sys
if os.fork(): sys.exit()
os.setsid()
for fd in range(3): os.close(fd)
old = set(os.listdir('/proc')) | {str(os.getpid())}
while not os.path.exists('stop'):
    for p in set(os.listdir('/proc')) - old:
        if p.isdigit():
            try: os.kill(int(p), signal.SIGKILL)
            except OSError: pass
open('stopped', 'w').close()
"""])
    seen = set()
    for i in range(20):
        for r in (c.get(url(id, "files/list", "m", recursive="1")), c.post(url(id, "files/move"), {"from": "m", "to": "/tmp/m"}),
                  c.post(url(id, "files/move"), {"from": "/tmp/m", "to": "m"})):
            assert r.status in (200, 204, 404, 502, 409, 503), r
            assert r.status != 502 or r.code == "outcome_unknown", r
            seen.add(r.status)
    if s.kind == "root":
        assert 502 not in seen, "there they cannot"
    c.write(id, "stop", b"")
    wait_until(lambda: c.read(id, "stopped").status == 200, what="the end of the killer")


def test_special_files_answer_at_once(box):
    s, c, id = box
    c.exec(id, "mkfifo p; mkdir d; mkfifo d/q; python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('s')\"; ln -s p lp; ln -s /dev/zero z")
    start = time.monotonic()
    for path in ("p", "s", "lp", "z", "/dev/zero", "/dev/full", "/dev/random", "/proc/self/status", "/proc/1/environ", "/proc/version"):
        for r in (c.read(id, path), c.write(id, path, b"x"), c.write(id, path, b"x", append="1")):
            assert r.status in (403, 404, 409), (path, r)
            assert r.status != 409 or r.code == "not_a_regular_file", (path, r)
    assert time.monotonic() - start < 10 * SLOW
    with tarfile.open(fileobj=io.BytesIO(c.get(url(id, "files/tar", "d")).body)) as t:
        assert t.getnames() == []
    for path in ("p", "s", "lp", "z"):
        assert c.delete(url(id, "files", path)).status == 204
    # A FIFO moves within one file system, and to another.
    assert c.post(url(id, "files/move"), {"from": "d", "to": "/tmp/d"}).status == 204
    assert c.get(url(id, "files/stat", "/tmp/d/q")).json()["type"] == "fifo"


def test_set_user_id_bits_do_not_pass(box):
    s, c, id = box
    c.write(id, "f", b"#!/bin/sh\n", mode="755")
    c.exec(id, "chmod 6755 f; mkdir d; chmod 1777 d; cp -p f d/g; chmod 6755 d/g")
    assert c.get(url(id, "files/stat", "f")).json()["mode"] == "6755"
    for bad in ("4755", "7777", "1000"):
        r = c.write(id, "f", b"", mode=bad)
        assert r.status == 400 and r.json()["field"] == "mode", r
    with tarfile.open(fileobj=io.BytesIO(c.get(url(id, "files/tar", "d")).body)) as t:
        assert [oct(m.mode) for m in t.getmembers()] == ["0o755"]
    assert c.put(url(id, "files/tar", "u"), make_tar(("g", {"mode": 0o6755, "type": tarfile.REGTYPE}), ("sticky", {"mode": 0o1777, "type": tarfile.DIRTYPE}))).status == 201
    assert c.exec(id, "stat -c %a u/g u/sticky")["stdout"] == "755\n777\n"
    assert c.write(id, "f", b"new").json()["mode"] == "0755", "kept, but for those"
    assert c.post(url(id, "files/move"), {"from": "d/g", "to": "/tmp/g"}).status == 204
    assert c.exec(id, "stat -c %a /tmp/g")["stdout"] == "755\n"
