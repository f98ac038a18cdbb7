"""The disks of a sandbox: what a full one means, on a sized tmpfs and on a directory of the host, and versions of files on both."""
import os
import subprocess
import urllib.parse

import pytest

from conftest import account, one_kind
from harness import SLOW, Server
from tars import make_tar


def url(lease, route, path=None, **query):
    return f"/leases/{lease}/{route}?" + urllib.parse.urlencode(dict(query, **({} if path is None else {"path": path})))


def names(c, lease, path="."):
    return sorted(i["name"] for i in c.get(url(lease, "files/list", path, recursive="1", limit=1000)).json()["items"])


def full(r):
    assert r.status == 507 and r.code == "sandbox_disk_full" and r.json()["detail"], r
    return True


@pytest.fixture(params=["tmpfs", "dir"])
def small(request, tmp_path):
    """(server, client, lease) with some 32 MiB of disk; a directory shares a small file system with the rest of the state directory."""
    if request.param == "tmpfs":
        with Server({"local_bwrap": {"size": 1, "disk_max": "32MiB"}}) as s:
            s.wait_slots(1)
            c = s.client()
            yield s, c, c.lease()
        return
    if os.geteuid() != 0:
        pytest.skip("needs root to mount")
    s = Server({"local_bwrap": {"size": 1, "disk": "dir"}})
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=34m,mode=0700", "small", s.state], check=True)
    try:
        s.start()
        s.wait_slots(1)
        c = s.client()
        yield s, c, c.lease()
    finally:
        s.stop()
        subprocess.run(["umount", s.state], check=True)
        s.clean()


def test_a_full_disk(small):
    """Every route that writes says so, with the old content intact, and the space of what was refused comes back."""
    s, c, id = small
    big = b"z" * (40 << 20)
    c.write(id, "keep", b"old")
    c.exec(id, "mkdir t; echo old > t/f; mkdir /tmp/src; head -c 10000000 /dev/zero > /tmp/src/a")
    before = names(c, id)
    for append in ({}, {"append": "1"}):
        assert full(c.write(id, "keep", big, **append)) and c.read(id, "keep").body == b"old"
    assert full(c.write(id, "new/dir/file", big)) and names(c, id) == before
    assert full(c.put(url(id, "files/tar", "t"), make_tar(("f", b"new"), ("big", big)))) and names(c, id) == before
    assert full(c.put(url(id, "files/tar", "u"), make_tar(("big", big)))) and names(c, id) == before
    # The same with a body that does not say how long it is.
    assert full(c.put(c.file_url(id, "keep"), iter([big[:1 << 20]] * 40), headers={"Transfer-Encoding": "chunked"}))
    # From one file system to the other it is copied first; what does not fit stays where it is.
    c.exec(id, "head -c 18000000 /dev/zero > fill")
    assert full(c.post(url(id, "files/move"), {"from": "/tmp/src", "to": "moved"}))
    assert names(c, id) == sorted(before + ["fill"]) and c.read(id, "keep").body == b"old" and c.read(id, "t/f").body == b"old\n"
    assert names(c, id, "/tmp") == ["src", "src/a"]
    c.exec(id, "rm -r fill /tmp/src")
    assert c.write(id, "fits", b"z" * (20 << 20)).status == 201
    # Appending needs the room twice for a moment.
    assert c.write(id, "keep", b"+", append="1").status == 200 and c.read(id, "keep").body == b"old+"


def test_a_disk_that_commands_have_filled(small):
    s, c, id = small
    c.write(id, "keep", b"old")
    c.exec(id, "cat /dev/zero > hog; :", timeout=60)
    for append in ({}, {"append": "1"}):
        r = c.write(id, "keep", b"x" * 100000, **append)
        assert full(r) and c.read(id, "keep").body == b"old"
    assert full(c.put(url(id, "files/tar", "t"), make_tar(("f", b"x" * 100000))))
    # What takes no room still works.
    assert c.get(url(id, "files/stat", "hog")).json()["size"] > 10_000_000
    assert c.post(url(id, "files/move"), {"from": "keep", "to": "kept"}).status == 204
    assert c.get(url(id, "files/list", ".")).status == 200
    assert c.delete(url(id, "files", "hog")).status == 204
    assert c.write(id, "kept", b"new").status == 200 and names(c, id) == ["kept"]


def test_no_room_for_more_names():
    """A tmpfs also has a number of files."""
    with Server({"local_bwrap": {"size": 1, "disk_max": "1MiB"}}) as s:
        s.wait_slots(1)
        c = s.client()
        id = c.lease()
        c.exec(id, ["python3", "-c", "i = 0\ntry:\n  while True:\n    open('f%d' % i, 'w').close(); i += 1\nexcept OSError: pass"], timeout=120)
        count = len(c.exec(id, "ls | wc -l")["stdout"]) and int(c.exec(id, "ls | wc -l")["stdout"])
        assert full(c.write(id, "one", b"more")) and full(c.post(url(id, "files/mkdir", "d/e")))
        assert full(c.put(url(id, "files/tar", "t"), make_tar(("f", b"")))) and full(c.write(id, "f0", b"x"))
        assert int(c.exec(id, "ls | wc -l")["stdout"]) == count, "nothing is left of what was refused"
        assert c.delete(c.file_url(id, "f1")).status == 204 and c.delete(c.file_url(id, "f2")).status == 204
        assert c.write(id, "one", b"more").status == 201


@pytest.fixture(scope="module", params=[(kind, disk) for kind in one_kind() for disk in ("tmpfs", "dir")], ids=lambda p: "-".join(p))
def disks(request):
    kind, disk = request.param
    with Server({"local_bwrap": {"size": 1, "disk": disk}}, user=account(kind)) as s:
        s.wait_slots(1)
        yield s, disk


@pytest.fixture
def box(disks):
    s, disk = disks
    c = s.client()
    id = c.lease()
    yield c, id, disk
    c.terminate(id)


def test_the_lease_says_how_large_its_disk_is(box):
    c, id, disk = box
    m = c.get(f"/leases/{id}").json()["metadata"]
    assert m["limits_enforced"]["disk"] == ("tmpfs" if disk == "tmpfs" else "none")
    assert m["limits"]["disk_max"] == (1 << 30 if disk == "tmpfs" else None)


def test_no_tag_means_two_versions(box):
    """Numbers of inodes are used again, times can be set: a tag must not come back with other content."""
    c, id, _ = box
    seen = {}

    def look(what, r=None):
        tag, body = (r or c.read(id, "t/f")).header("ETag"), c.read(id, "t/f").body
        assert tag == c.read(id, "t/f").header("ETag") == c.get(url(id, "files/stat", "t/f")).json()["etag"]
        assert tag not in seen, (what, seen[tag], body)
        seen[tag] = (what, body)

    for i in range(100):
        assert c.put(url(id, "files/tar", "t"), make_tar(("f", b"%04d" % i))).status in (200, 201)
        look("archive")
        look("put", c.write(id, "t/f", b"%04d" % i))
    for i in range(10):
        c.exec(id, f"printf {i + 1000} > t/f; touch -d @1000000000 t/f")
        look("command")
        c.exec(id, f"rm t/f; printf {i + 2000} > t/f; touch -d @1000000000 t/f")
        look("command anew")


def test_many_writers_with_one_tag(disks, soak):
    """Compare and swap as fast as it goes: no increment is lost to a tag that came back."""
    import concurrent.futures
    s, _ = disks
    c = s.client()
    id = c.lease()
    rounds = 60 if soak else 15 if SLOW == 1 else 10

    def count(_):
        k, n = s.client(), 0
        while n < rounds:
            r = k.read(id, "n")
            w = k.put(k.file_url(id, "n"), b"%06d" % (int(r.body) + 1), headers={"If-Match": r.header("ETag")})
            assert w.status in (200, 412), w
            n += w.status == 200

    c.write(id, "n", b"000000")
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(count, range(4)))
    assert c.read(id, "n").body == b"%06d" % (4 * rounds)
    c.terminate(id)


def test_what_a_command_makes_is_not_older_than_what_was_uploaded(box):
    """Or make would never be done."""
    c, id, _ = box
    for i in range(30):
        c.write(id, "src", b"%d" % i)
        assert c.exec(id, "cp src out; [ ! src -nt out ] && echo fresh")["stdout"] == "fresh\n"


def test_archives_keep_modes_and_times(box):
    c, id, _ = box
    c.exec(id, "mkdir -p d/e; echo x > d/f; chmod 750 d/e; chmod 640 d/f; touch -d @1111111111.5 d/f; ln -s f d/l; ln d/f d/h; truncate -s 1000000 d/sparse")
    data = c.get(url(id, "files/tar", "d")).body
    assert c.put(url(id, "files/tar", "copy"), data).status == 201
    look = "cd %s; find . -mindepth 1 -type f -printf '%%P %%m %%s %%T@\\n' -o -mindepth 1 -type l -printf '%%P %%l\\n' -o -mindepth 1 -printf '%%P %%m\\n' | sort"
    assert c.exec(id, look % "d")["stdout"] == c.exec(id, look % "copy")["stdout"] != ""
