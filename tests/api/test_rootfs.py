"""Root file systems of local pools: a directory or a tar archive instead of the host's system, and several that leases choose from."""
import concurrent.futures
import gzip
import hashlib
import io
import json
import os
import random
import shutil
import socket
import stat
import subprocess
import tarfile
import tempfile

import pytest

from conftest import account, one_kind
from harness import SLOW, Server, wait_until
from tars import make_tar

BUSYBOX = "/bin/busybox"
pytestmark = pytest.mark.skipif(not os.path.exists(BUSYBOX), reason="needs the package busybox-static")


def tar_of(*entries):
    """Of files that may be run."""
    return make_tar(*entries, attributes={"mode": 0o755})


def link(to):
    return {"type": tarfile.SYMTYPE, "linkname": to}


def busybox():
    with open(BUSYBOX, "rb") as f:
        return f.read()


DIRECTORY = {"type": tarfile.DIRTYPE}


def small(name):
    """A whole system of busybox that knows its name; with what must not have an effect."""
    return [("bin", DIRECTORY), ("bin/busybox", busybox()), *((f"bin/{n}", link("busybox")) for n in ("sh", "cat", "ls", "id", "touch", "httpd", "stat", "test")),
            ("etc", DIRECTORY), ("etc/passwd", b"evil:x:0:0::/:/bin/sh\n"), ("etc/motd", name.encode() + b"\n"), ("etc/issue", link("/etc/motd")),
            ("usr/share/tool/data", b"tool\n"), ("usr/bin/own", {"type": tarfile.LNKTYPE, "linkname": "bin/busybox"}), ("usr/bin/up", link("../../../../../etc/motd")),
            ("root", dict(DIRECTORY, mode=0o700)), ("root/hidden", {"mode": 0o600}), ("usr/bin/ping", {"mode": 0o4755, "uid": 0}), ("var/lib/x", {"mode": 0o666})]


def unpack(entries, to):
    with tarfile.open(fileobj=io.BytesIO(tar_of(*entries))) as t:
        t.extractall(to)
    os.chmod(os.path.join(to, "root"), 0o755)


def public_dir():
    """Where every server gets to (pytest's own directories are for one user)."""
    top = tempfile.mkdtemp(prefix="sandgate-images-")
    os.chmod(top, 0o755)
    return top


@pytest.fixture
def place():
    top = public_dir()
    yield top
    shutil.rmtree(top)


@pytest.fixture(scope="module")
def images():
    top = public_dir()
    unpack(small("dir"), os.path.join(top, "dir"))
    for name, write in (("plain.tar", lambda d: d), ("packed.tar.gz", gzip.compress)):
        with open(os.path.join(top, name), "wb") as f:
            f.write(write(tar_of(*small(name.split(".")[0]))))
    with open(os.path.join(top, "dense.tar"), "wb") as f:
        f.write(tar_of(*small("dense")))
    subprocess.run(["zstd", "-q", "--rm", os.path.join(top, "dense.tar"), "-o", os.path.join(top, "dense.tar.zst")], check=True)
    yield lambda name: os.path.join(top, name)
    shutil.rmtree(top)


@pytest.fixture(params=one_kind())
def user(request):
    return account(request.param)


def unpacked(s):
    d = os.path.join(s.state, "images")
    return sorted(os.listdir(d)) if os.path.isdir(d) else []


def is_small(c, id, name):
    """The lease's root file system is that of the name, and behaves."""
    assert c.exec(id, "cat /etc/motd /etc/issue /usr/bin/up; cat /usr/share/tool/data")["stdout"] == f"{name}\n" * 3 + "tool\n"
    r = c.exec(id, "cat /etc/passwd; id -un; cat /etc/hostname")
    assert "evil" not in r["stdout"] and r["stdout"].endswith("\nsandbox\nsandbox\n" if name != "dir" else "\nsandbox\n"), r
    for path in ("/usr/bin/python3", "/bin/bash", "/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu"):
        assert c.exec(id, ["test", "-e", path])["returncode"] == 1
        assert c.read(id, path).status == 404
    r = c.exec(id, "for d in / /bin /etc /usr /usr/share/tool /var /var/lib /root /opt; do touch $d/new 2>/dev/null && echo $d; done; "
                   "for f in /bin/busybox /etc/motd /etc/passwd /var/lib/x /usr/share/tool/data; do (echo x >> $f) 2>/dev/null && echo $f; done; true")
    assert r["stdout"] == "", r
    assert c.write(id, "/usr/share/tool/data", b"x").status == 403 and c.write(id, "/usr/share/tool/new", b"x").status == 403
    assert c.exec(id, "echo mine > f && cat f > /tmp/g && cat /tmp/g")["stdout"] == "mine\n"
    assert c.read(id, "/etc/motd").body == f"{name}\n".encode()


@pytest.mark.parametrize("name", ["dir", "plain.tar", "packed.tar.gz", "dense.tar.zst"])
def test_a_root_file_system_of_its_own(images, user, name):
    with Server({"local_bwrap": {"size": 1, "rootfs": images(name)}}, user=user) as s:
        s.wait_slots(1)
        c = s.client()
        for _ in range(2):
            id = c.lease()
            is_small(c, id, name.split(".")[0])
            assert c.get(f"/leases/{id}").json()["metadata"]["image"] is None
            c.terminate(id)
        assert len(unpacked(s)) == (name != "dir")


def test_what_is_unpacked(images, user):
    """Once, whole, to be read by everybody and written by nobody, without set-user-id bits; and not kept for longer than it is named."""
    with Server({"local_bwrap": {"size": 1, "rootfs": images("packed.tar.gz")}}, user=user) as s:
        s.wait_slots(1)
        (digest,) = unpacked(s)
        top = os.path.join(s.state, "images", digest)
        with open(images("packed.tar.gz"), "rb") as f:
            assert hashlib.sha256(f.read()).hexdigest() == digest
        seen = 0
        for d, dirs, files in os.walk(top):
            for n in dirs + files:
                st = os.lstat(os.path.join(d, n))
                seen += 1
                if not stat.S_ISLNK(st.st_mode):
                    mode = stat.S_IMODE(st.st_mode)
                    assert mode == (0o755 if stat.S_ISDIR(st.st_mode) else mode & 0o555) and mode & 0o444 == 0o444, (d, n, oct(mode))
                    assert st.st_uid == os.stat(s.state).st_uid
        assert seen > 20
        before = os.stat(top)
        left = os.path.join(s.state, "images", ".new")  # as of a server that was killed at it
        os.makedirs(os.path.join(left, "half"))
        for d in (left, os.path.join(left, "half")):
            os.chown(d, before.st_uid, before.st_gid)
        s.stop()
        s.start()
        s.wait_slots(1)
        assert unpacked(s) == [digest]
        after = os.stat(top)
        assert (before.st_ino, before.st_ctime_ns) == (after.st_ino, after.st_ctime_ns)
        s.stop()
        s.config["local_bwrap"]["rootfs"] = images("plain.tar")
        s.start()
        s.wait_slots(1)
        assert len(unpacked(s)) == 1 and unpacked(s) != [digest]
        s.stop()
        del s.config["local_bwrap"]["rootfs"]
        s.start()
        s.wait_slots(1)
        assert unpacked(s) == []
        assert c_python(s)


def c_python(s):
    c = s.client()
    id = c.lease()
    found = c.exec(id, "test -e /usr/bin/python3 && ! test -e /usr/share/tool/data")["returncode"] == 0
    c.terminate(id)
    return found


@pytest.fixture(scope="module", params=one_kind())
def world(request, images):
    """One slot with images to choose from, further ones, and a pool that runs a service."""
    config = {"local_bwrap": {"size": 1, "images": {"packed": images("packed.tar.gz"), "dir": images("dir")}},
              "local_pools": [{"name": "two", "size": 2, "rootfs": images("dir"), "images": {"plain": images("plain.tar"), "packed": images("packed.tar.gz")}},
                              {"name": "bare", "size": 1},
                              {"name": "shop", "size": 1, "mode": "blackbox", "service_command": ["/bin/sh", "-c", "cd {work}; cat /etc/motd /etc/debian_version "
                               "> motd 2>/dev/null; exec $(test -x /bin/httpd && echo httpd || echo busybox httpd) -f -p {port} -h {work}"], "service_port": 8000,
                               "service_health_path": "/motd", "images": {"packed": images("packed.tar.gz")}}]}
    with Server(config, user=account(request.param)) as s:
        for pool, n in (("default", 1), ("two", 2), ("bare", 1), ("shop", 1)):
            s.wait_slots(n, pool=pool)
        yield s


def generation(c, pool="default"):
    return sum(slot["generation"] for slot in c.get(f"/slots/{pool}").json()["items"])


def test_a_lease_chooses_and_the_next_is_back_on_the_default(world):
    c = world.client()
    for image in ("packed", None, "dir", "packed", None):
        r = c.post("/leases", {"image": image} if image else {})
        assert r.status == 201, r
        lease = r.json()
        assert lease["metadata"]["image"] == image
        if image:
            is_small(c, lease["id"], image)
        else:
            assert c.exec(lease["id"], "test -e /usr/bin/python3 && ! test -e /usr/share/tool")["returncode"] == 0
        c.terminate(lease["id"])
    assert len(unpacked(world)) == 2, "two archives, one of them named twice"


def test_pools_have_images_of_their_own(world):
    c = world.client()
    for pool, image, name in (("two", None, "dir"), ("two", "plain", "plain"), ("two", "packed", "packed")):
        id = c.lease(local_pool=pool, **({"image": image} if image else {}))
        is_small(c, id, name)
        c.terminate(id)


def test_a_service_runs_in_the_image(world):
    c = world.client()
    for image, text in (("packed", b"packed\n"), (None, None)):
        r = c.post("/leases", {"local_pool": "shop", "metadata": {"paddock_mode": "blackbox"}, **({"image": image} if image else {})})
        assert r.status == 201, r
        r = c.get(f"/leases/{r.json()['id']}/proxy/8000/motd"), c.terminate(r.json()["id"])
        assert r[0].status == 200 and (r[0].body == text if text else r[0].body != b"packed\n"), r


@pytest.mark.parametrize("pool, image, names", [("default", "nosuch", ["packed", "dir"]), ("two", "dir", ["plain", "packed"]), ("bare", "packed", []),
                                                ("default", "../dir", ["packed", "dir"]), ("default", "/bin", ["packed", "dir"])])
def test_an_unknown_image_is_refused_before_anything_is_touched(world, pool, image, names):
    c = world.client()
    world.wait_slots(1, pool=pool)
    before = generation(c, pool)
    r = c.post("/leases", {"local_pool": pool, "image": image})
    assert (r.status, r.code) == (422, "not_supported") and r.json()["field"] == "image" and r.json()["reason"] == "unknown_image", r
    assert r.json()["images"] == names and all(n in r.json()["detail"] for n in names), r
    assert generation(c, pool) == before and c.get(f"/slots/{pool}").json()["ready"] >= 1


def test_the_image_is_part_of_the_request(world):
    c = world.client()
    body = {"trajectory_id": "t", "local_pool": "two", "image": "plain"}
    first = c.post("/leases", body)
    assert first.status == 201
    again = c.post("/leases", body)
    assert again.status == 200 and again.json()["id"] == first.json()["id"]
    for other in ({"image": "packed"}, {"image": None}):
        r = c.post("/leases", {k: v for k, v in dict(body, **other).items() if v})
        assert (r.status, r.code) == (409, "trajectory_conflict"), r
    c.terminate(first.json()["id"])
    # A key replays what it was answered for, and nothing else.
    made = c.post("/leases", {"local_pool": "two", "image": "plain"}, headers={"Idempotency-Key": "k"})
    r = c.post("/leases", {"local_pool": "two", "image": "packed"}, headers={"Idempotency-Key": "k"})
    assert r.status in (409, 422) and r.code != "not_supported", r
    c.terminate(made.json()["id"])


def test_waiting_is_bounded_and_in_order(world):
    c = world.client()
    held = c.lease()
    r = c.post("/leases", {"image": "packed", "acquire_timeout": 0.2})
    assert (r.status, r.code) == (503, "acquire_timeout"), r
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        first = pool.submit(lambda: world.client().post("/leases", {"image": "packed"}))
        wait_until(lambda: c.get("/slots/default").json()["waiters"] == 1)
        second = pool.submit(lambda: world.client().post("/leases", {}))
        wait_until(lambda: c.get("/slots/default").json()["waiters"] == 2)
        c.terminate(held)
        a = first.result()
        assert a.status == 201 and a.json()["metadata"]["image"] == "packed" and not second.done()
        is_small(c, a.json()["id"], "packed")
        c.terminate(a.json()["id"])
        b = second.result()
        assert b.status == 201 and b.json()["metadata"]["image"] is None
        c.terminate(b.json()["id"])
    # A slot that is there is worth the time that its rebuild takes.
    world.wait_slots(1)
    r = c.post("/leases", {"image": "packed", "acquire_timeout": 0})
    assert r.status == 201, r
    c.terminate(r.json()["id"])


def test_many_with_different_images(world):
    images = ["plain", "packed", None]

    def job(i):
        c = world.client()
        image = images[i % 3]
        r = c.post("/leases", {"local_pool": "two", **({"image": image} if image else {})})
        assert r.status == 201, r
        motd = c.exec(r.json()["id"], "cat /etc/motd")["stdout"]
        c.terminate(r.json()["id"])
        return r.json()["metadata"]["image"] == image and motd == (image or "dir") + "\n"

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        assert all(pool.map(job, range(30)))
    world.wait_slots(2, pool="two")
    assert world.client().get("/slots/two").json()["waiters"] == 0


def test_some_that_do_not_wait_long_enough(world, soak):
    """Who hangs up, or whose time is over, leaves nobody with another image than it asked for, and no slot behind."""
    images = ["plain", "packed", None]

    def job(i):
        dice, c = random.Random(i), world.client()
        body = {"local_pool": "two", "acquire_timeout": dice.choice([0, 0.005, 0.02, 10])}
        if images[i % 3]:
            body["image"] = images[i % 3]
        if dice.random() < 0.4:
            data = json.dumps(body).encode()
            with world.connect() as k:
                k.sendall(b"POST /leases HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data))
                k.settimeout(dice.choice([0.001, 0.01, 0.03]))
                try:
                    answer = k.recv(65536)
                except TimeoutError:
                    k.shutdown(socket.SHUT_WR)
                    k.settimeout(20)
                    answer = k.recv(65536)  # what was answered just before that is a lease, too; else it ended with the wait
                    if not answer or b'"lease_gone"' in answer:
                        return True
            if not answer.startswith(b"HTTP/1.1 201"):
                return b"acquire_timeout" in answer
            lease = json.loads(answer.split(b"\r\n\r\n", 1)[1])
        else:
            r = c.post("/leases", body)
            if r.status != 201:
                return (r.status, r.code) == (503, "acquire_timeout")
            lease = r.json()
        motd = c.exec(lease["id"], "cat /etc/motd")["stdout"]
        c.terminate(lease["id"])
        return motd == (images[i % 3] or "dir") + "\n"

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(job, range(3000 if soak else 90)))
    c = world.client()
    wait_until(lambda: c.get("/slots/two").json()["waiters"] == 0, what="the end of all waits")
    world.wait_slots(2, pool="two")
    assert not [l for l in c.get("/leases?limit=1000").json()["items"] if l["state"] in ("creating", "ready", "releasing")]
    for _ in range(2):
        id = c.lease(local_pool="two")
        is_small(c, id, "dir")
        c.terminate(id)


def test_a_caller_that_gives_up_leaves_the_slot_as_it_was(world):
    c = world.client()
    for _ in range(10):
        k = world.connect()
        k.sendall(b"POST /leases HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 18\r\n\r\n{\"image\":\"packed\"}")
        k.close()
    world.wait_slots(1)
    wait_until(lambda: c.get("/slots/default").json()["waiters"] == 0)
    for l in c.get("/leases?limit=1000").json()["items"]:
        if l["state"] in ("creating", "ready"):
            c.terminate(l["id"])
    world.wait_slots(1)
    id = c.lease()
    assert c.exec(id, "test -e /usr/bin/python3")["returncode"] == 0
    c.terminate(id)


def test_drained_while_it_is_waited_for(world):
    c = world.client()
    held = c.lease()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: world.client().post("/leases", {"image": "packed"}))
        wait_until(lambda: c.get("/slots/default").json()["waiters"] == 1)
        assert c.post("/slots/default/drain").status == 200
        r = waiting.result()
        assert r.status == 503, r
    c.terminate(held)
    assert c.post("/slots/default/undrain").status == 200
    world.wait_slots(1)
    assert c_python(world)


def test_an_image_that_breaks_harms_no_other_lease(images, place, user):
    """Gone from under a running server: who asks for it hears why, and the slot works on."""
    copy = os.path.join(place, "copy")
    shutil.copytree(images("dir"), copy, symlinks=True)
    with Server({"local_bwrap": {"size": 1, "images": {"copy": copy}}}, user=user) as s:
        s.wait_slots(1)
        c = s.client()
        os.rename(os.path.join(copy, "usr"), os.path.join(copy, "moved"))
        for _ in range(2):
            r = c.post("/leases", {"image": "copy"})
            assert (r.status, r.code) == (503, "unavailable") and "the image copy" in r.json()["detail"], r
            s.wait_slots(1)
            assert c_python(s)
        s.wait_slots(1)
        os.rename(os.path.join(copy, "moved"), os.path.join(copy, "usr"))
        id = c.lease(image="copy")
        is_small(c, id, "dir")
        c.terminate(id)
        s.wait_slots(1)
        assert c_python(s)


def test_an_image_without_a_shell(place, user):
    """Commands as lists need none, and shell text says what is missing."""
    path = os.path.join(place, "bare.tar")
    with open(path, "wb") as f:
        f.write(tar_of(("tools/busybox", busybox())))
    with Server({"local_bwrap": {"size": 1, "rootfs": path}}, user=user) as s:
        s.wait_slots(1)
        c = s.client()
        id = c.lease()
        r = c.exec(id, ["/tools/busybox", "cat", "/etc/hostname"])
        assert (r["returncode"], r["stdout"]) == (0, "sandbox\n"), r
        r = c.exec(id, "echo $0")
        assert r["returncode"] == 127 and "/bin/sh" in r["stderr"], r
        assert c.write(id, "f", b"x").status == 201 and c.read(id, "f").body == b"x"
        # A shell of one's own is one.
        assert c.exec(id, ["/tools/busybox", "sh", "-c", "echo $0; cd /workspace; busybox ls 2>/dev/null; /tools/busybox ls"])["stdout"].split()[-1] == "f"
        c.terminate(id)


# ---- what is refused at the start ----

HOSTILE = {
    "absolute": (tar_of(("/tmp/sandgate-escaped", b"x")), "absolute"),
    "dotdot": (tar_of(("a/../../../sandgate-escaped", b"x")), ".."),
    "hard_link_out": (tar_of(("bin", DIRECTORY), ("bin/x", {"type": tarfile.LNKTYPE, "linkname": "../../etc/passwd"})), "link to outside"),
    "hard_link_absolute": (tar_of(("x", {"type": tarfile.LNKTYPE, "linkname": "/etc/passwd"})), "link to outside"),
    "hard_link_to_nothing": (tar_of(("x", {"type": tarfile.LNKTYPE, "linkname": "nothing"})), "x cannot be unpacked"),
    "through_a_link": (tar_of(("out", link("/tmp")), ("out/sandgate-escaped", b"x")), "cannot be unpacked"),
    "through_two_links": (tar_of(("a", link("..")), ("b", link("a/..")), ("b/sandgate-escaped", b"x")), "cannot be unpacked"),
    "hard_link_through_a_link": (tar_of(("out", link("/etc")), ("x", {"type": tarfile.LNKTYPE, "linkname": "out/passwd"})), "cannot be unpacked"),
    "etc_elsewhere": (tar_of(("etc", link("/etc"))), "etc that is no directory"),
    "block_device": (tar_of(("disk", {"type": tarfile.BLKTYPE, "devmajor": 8, "devminor": 0})), "device"),
    "char_device": (tar_of(("dev/mem", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 1})), "device"),
    "fifo": (tar_of(("pipe", {"type": tarfile.FIFOTYPE})), "device, FIFO or socket"),
    "bomb": (gzip.compress(tar_of(("zeros", bytes(4 << 20)))), "more than 1048576 bytes"),
    "many_small_bombs": (gzip.compress(tar_of(*((f"f{i}", bytes(1 << 16)) for i in range(40)))), "more than 1048576 bytes"),
    "cut": (gzip.compress(tar_of(("f", os.urandom(50000))))[:20000], "not an archive that can be read"),
    "nothing": (tar_of(), "archive of nothing"),
    "text": (b"#!/bin/sh\necho hello\n" * 100, "not an archive that can be read"),
    "empty": (b"", "archive"),
}


def refused_start(s, *words):
    p = subprocess.run(s.command(), capture_output=True, text=True, timeout=30 * SLOW, cwd=s.dir)
    assert p.returncode not in (0, None) and p.returncode > 0, p
    assert all(w in p.stderr for w in words), p.stderr
    assert unpacked(s) == [], unpacked(s)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archives_stop_the_start(tmp_path, name):
    data, why = HOSTILE[name]
    path = tmp_path / "image.tar"
    path.write_bytes(data)
    s = Server({"local_bwrap": {"size": 1, "image_max_bytes": "1MiB", "images": {"bad": str(path)}}})
    try:
        refused_start(s, "local_bwrap.images.bad", str(path), why)
        assert not os.path.exists("/tmp/sandgate-escaped") and not os.path.exists(os.path.join(s.dir, "sandgate-escaped"))
        assert not [f for _, _, files in os.walk(s.state) for f in files if "escaped" in f]
    finally:
        s.clean()


@pytest.mark.parametrize("phase", ["read", "unpacked"])
def test_a_start_that_takes_long_is_stopped(tmp_path, phase):
    """Gigabytes to hash, or to write: SIGTERM does not wait for that, and nothing is left."""
    head = tarfile.TarInfo("zeros")
    head.size = 64 << 30
    path = tmp_path / "large"
    if phase == "read":
        path.write_bytes(head.tobuf())
        os.truncate(path, head.size + 2048)
    else:
        member = gzip.compress(bytes(64 << 20), 1)
        path.write_bytes(gzip.compress(head.tobuf()) + member * 100)
    s = Server({"local_bwrap": {"size": 1, "rootfs": str(path), "image_max_bytes": "65GiB"}})
    p = subprocess.Popen(s.command(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        if phase == "read":
            wait_until(lambda: any(os.path.realpath(f"/proc/{p.pid}/fd/{n}") == str(path) for n in os.listdir(f"/proc/{p.pid}/fd")), what="the digest")
        else:
            wait_until(lambda: os.path.exists(os.path.join(s.state, "images", ".new", "zeros")), what="the unpacking")
        p.terminate()
        _, said = p.communicate(timeout=10 * SLOW)
        assert p.returncode == 1 and "local_bwrap.rootfs" in said and "told to stop" in said, (p.returncode, said)
        assert unpacked(s) == []
    finally:
        if p.poll() is None:
            p.kill()
            p.wait()
        s.clean()


def test_settings_that_lead_nowhere_stop_the_start(tmp_path, images):
    os.mkfifo(tmp_path / "fifo")
    bad = os.path.join(tmp_path, "dir")
    shutil.copytree(images("dir"), bad, symlinks=True)
    shutil.rmtree(os.path.join(bad, "etc"))
    os.symlink("/etc", os.path.join(bad, "etc"))
    many = {f"i{i}": os.path.join(tmp_path, f"d{i}") for i in range(17)}
    for d in many.values():
        os.mkdir(d)
    for config, words in (({"local_bwrap": {"rootfs": "/nowhere"}}, ("local_bwrap.rootfs", "/nowhere")),
                          ({"local_bwrap": {"rootfs": str(tmp_path / "fifo")}}, ("local_bwrap.rootfs", "neither a directory nor a tar archive")),
                          ({"local_bwrap": {"rootfs": "/"}}, ("local_bwrap.rootfs", "the host's own")),
                          ({"local_bwrap": {"rootfs": "relative"}}, ("local_bwrap.rootfs",)),
                          ({"local_bwrap": {"images": {"a b": "/bin"}}}, ("local_bwrap.images", "not a name")),
                          ({"local_bwrap": {"images": ["/bin"]}}, ("local_bwrap.images", "map")),
                          ({"local_bwrap": {"images": {"x": bad}}}, (bad, "etc is not a directory")),
                          ({"local_bwrap": {"images": many}}, ("local_bwrap.images.i16", "16 root file systems")),
                          ({"local_pools": [{"name": "p", "images": {"x": "/nowhere"}}]}, ("local_pools[0].images.x", "/nowhere"))):
        s = Server(config)
        try:
            refused_start(s, *words)
        finally:
            s.clean()
