"""Files of a sandbox: bytes in and out, and nothing of the host."""
import concurrent.futures
import hashlib
import os
import threading
import urllib.parse

import pytest

from harness import SLOW, Server, wait_until


def stat(client, lease, path):
    return client.get(f"/leases/{lease}/files/stat?" + urllib.parse.urlencode({"path": path}))


def test_binary_round_trip(client, lease):
    data = bytes(range(256)) * 4096
    r = client.write(lease, "bin", data)
    assert r.status == 201 and r.json()["size"] == len(data) and r.json()["path"] == "bin"
    assert client.read(lease, "bin").body == data
    assert client.exec(lease, "sha256sum < bin")["stdout"].split()[0] == hashlib.sha256(data).hexdigest()
    assert client.write(lease, "bin", b"new").status == 200
    assert client.read(lease, "bin").body == b"new"


def test_parents_and_mode(client, lease):
    assert client.write(lease, "a/b/c.sh", b"#!/bin/sh\necho ran\n", mode="0755").status == 201
    assert client.exec(lease, ["a/b/c.sh"])["stdout"] == "ran\n"
    assert stat(client, lease, "a/b/c.sh").json()["mode"] == "0755"
    client.write(lease, "a/b/c.sh", b"#!/bin/sh\necho again\n")
    assert stat(client, lease, "a/b/c.sh").json()["mode"] == "0755"
    assert client.write(lease, "plain", b"").json()["mode"] == "0644"
    assert client.exec(lease, "stat -c %U:%G plain a/b")["stdout"] == "sandbox:sandbox\nsandbox:sandbox\n"


def test_empty_file_and_empty_append(client, lease):
    assert client.write(lease, "empty", b"").status == 201
    assert client.read(lease, "empty").body == b""
    assert client.write(lease, "appended", b"", append="1").status == 201
    r = client.read(lease, "appended")
    assert r.status == 200 and r.body == b"" and r.header("Content-Length") == "0"


def test_empty_downloads_give_the_slot_back():
    with Server({"local_bwrap": {"size": 1}}) as s:
        c = s.client()
        for _ in range(2):  # the second lease gets the slot only when nothing of the first is open
            id = c.lease()
            c.write(id, "empty", b"")
            c.write(id, "full", b"x")
            assert c.read(id, "empty").status == 200
            assert c.request("HEAD", c.file_url(id, "full")).status == 200
            assert c.get(c.file_url(id, "full", max_bytes=0)).header("Sandgate-Truncated") == "true"
            c.terminate(id)


def test_append(client, lease):
    client.write(lease, "log", b"one\n")
    assert client.write(lease, "log", b"two\n", append="true").status == 200
    assert client.read(lease, "log").body == b"one\ntwo\n"


def test_concurrent_appends_stay_whole(server, client, lease):
    lines = [(f"{i:03d}" + chr(65 + i % 26) * 96 + "\n").encode() for i in range(50)]
    with concurrent.futures.ThreadPoolExecutor(50) as pool:
        assert all(r.status in (200, 201) for r in pool.map(lambda l: server.client().write(lease, "app", l, append="1"), lines))
    assert sorted(client.read(lease, "app").body.splitlines(True)) == sorted(lines)


def test_visible_at_once(client, lease):
    for i in range(200 if SLOW == 1 else 40):
        client.write(lease, f"f{i}", b"%d" % i)
        assert client.exec(lease, ["cat", f"f{i}"])["stdout"] == str(i)
        client.exec(lease, f"echo {i} > g{i}")
        assert client.read(lease, f"g{i}").body == b"%d\n" % i


def test_ranges_and_head(client, lease):
    client.write(lease, "r", bytes(range(100)))
    url = client.file_url(lease, "r")
    r = client.get(url, headers={"Range": "bytes=10-19"})
    assert (r.status, r.body, r.header("Content-Range")) == (206, bytes(range(10, 20)), "bytes 10-19/100")
    assert client.get(url, headers={"Range": "bytes=90-"}).body == bytes(range(90, 100))
    assert client.get(url, headers={"Range": "bytes=-5"}).body == bytes(range(95, 100))
    assert client.get(url, headers={"Range": "bytes=95-1000"}).body == bytes(range(95, 100))
    r = client.get(url, headers={"Range": "bytes=100-"})
    assert (r.status, r.header("Content-Range")) == (416, "bytes */100")
    assert client.get(url, headers={"Range": "lines=1-2"}).status == 200
    r = client.request("HEAD", url)
    assert (r.status, r.body, r.header("Content-Length")) == (200, b"", "100")
    assert r.header("ETag") == client.get(url).header("ETag")
    r = client.get(client.file_url(lease, "r", max_bytes=7))
    assert (r.body, r.header("Sandgate-File-Size"), r.header("Sandgate-Truncated")) == (bytes(range(7)), "100", "true")
    assert client.get(client.file_url(lease, "r", max_bytes=100)).header("Sandgate-Truncated") == "false"


def test_missing_things_are_404(client, lease):
    for r in (client.read(lease, "no"), stat(client, lease, "no"), client.delete(client.file_url(lease, "no")),
              client.get(f"/leases/{lease}/files/list?path=no"),
              client.post(f"/leases/{lease}/files/move", {"from": "no", "to": "x"})):
        assert r.status == 404 and r.code == "not_found", r
    assert client.write(lease, "no/such/parent", b"x").status == 201


def test_list_and_mkdir_and_delete(client, lease):
    assert client.post(f"/leases/{lease}/files/mkdir?path=d/e").status == 201
    for n in ("b", "a", "c"):
        client.write(lease, f"d/{n}", b"x")
    client.exec(lease, "ln -s a d/l; mkfifo d/p")
    items = client.get(f"/leases/{lease}/files/list?path=d").json()["items"]
    assert [(i["name"], i["type"]) for i in items] == [("a", "file"), ("b", "file"), ("c", "file"), ("e", "directory"),
                                                       ("l", "symlink"), ("p", "fifo")]
    page = client.get(f"/leases/{lease}/files/list?path=d&limit=2").json()
    names = [i["name"] for i in page["items"]]
    while page["next_cursor"]:
        page = client.get(f"/leases/{lease}/files/list?path=d&limit=2&cursor=" + page["next_cursor"]).json()
        names += [i["name"] for i in page["items"]]
    assert names == ["a", "b", "c", "e", "l", "p"]
    rec = [i["name"] for i in client.get(f"/leases/{lease}/files/list?recursive=1").json()["items"]]
    assert "d/a" in rec and "d" in rec
    assert client.get(f"/leases/{lease}/files/list?path=d/a").status == 409
    r = client.delete(client.file_url(lease, "d"))
    assert r.status == 409 and r.code == "directory_not_empty"
    assert client.delete(client.file_url(lease, "d", recursive="1")).status == 204
    assert stat(client, lease, "d").status == 404
    client.write(lease, "m1", b"1")
    assert client.post(f"/leases/{lease}/files/move", {"from": "m1", "to": "m2"}).status == 204
    assert client.read(lease, "m2").body == b"1" and client.read(lease, "m1").status == 404


def test_what_is_not_a_regular_file(client, lease):
    client.exec(lease, "mkdir dir; mkfifo fifo; ln -s fifo tofifo; perl -MIO::Socket::UNIX -e 'IO::Socket::UNIX->new(Local => \"sock\", Listen => 1)'")
    r = client.read(lease, "dir")
    assert r.status == 409 and r.code == "is_a_directory"
    for path in ("fifo", "tofifo", "sock", "/dev/null", "/dev/zero"):
        r = client.read(lease, path, timeout=10 * SLOW)
        assert r.status == 409 and r.code == "not_a_regular_file", (path, r)
    r = client.write(lease, "dir", b"x")
    assert r.status == 409 and r.code == "is_a_directory"


def test_not_permitted_is_403(client, lease):
    for r in (client.write(lease, "/usr/bin/x", b"x"), client.write(lease, "/etc/passwd", b"x"),
              client.delete(client.file_url(lease, "/usr/bin/env"))):
        assert r.status == 403 and r.code == "forbidden", r
    client.write(lease, "secret", b"x", mode="0000")
    assert client.read(lease, "secret").status == 403


def host_etc_passwd():
    with open("/etc/passwd", "rb") as f:
        return f.read()


@pytest.mark.parametrize("path", ["../../etc/passwd", "/etc/passwd", "a/../../etc/passwd", "/proc/self/root/etc/passwd",
                                  "/proc/1/root/etc/passwd", "/proc/self/cwd/../etc/passwd", "../../../../../../etc/shadow",
                                  "/etc/shadow", "/proc/self/environ", "/proc/1/environ", "/proc/kcore", "/sys/kernel/notes"])
def test_traversal_stays_inside(client, lease, path):
    before = host_etc_passwd()
    r = client.read(lease, path)
    assert r.status in (400, 403, 404, 409, 200), r
    if r.status == 200:  # the sandbox's own generated file
        assert path.endswith("/passwd") and r.body != before and b"sandbox" in r.body
    client.write(lease, path, b"pwned")
    assert host_etc_passwd() == before
    r = client.exec_response(lease, "cat shadow passwd 2>/dev/null", cwd=path)
    assert r.status == 422, r


@pytest.mark.parametrize("raw", ["..%2f..%2fetc%2fpasswd", "%2e%2e/%2e%2e/etc/passwd"])
def test_encoded_traversal_stays_inside(client, lease, raw):
    r = client.get(f"/leases/{lease}/files?path={raw}")
    assert r.status in (200, 400, 403, 404)
    assert r.body != host_etc_passwd()


def test_symlinks_resolve_inside(client, lease):
    host = host_etc_passwd()
    client.exec(lease, "ln -s /etc/passwd leak; ln -s /etc d; ln -s /var/newfile w; mkdir keep; ln -s /etc keep/d; ln -s /proc/1/root r")
    assert client.read(lease, "leak").body != host
    assert client.read(lease, "d/passwd").body != host
    assert client.read(lease, "r/etc/passwd").status in (403, 404, 422)
    listed = client.get(f"/leases/{lease}/files/list?path=d")
    assert "shadow" not in [i["name"] for i in listed.json().get("items", [])]
    client.write(lease, "w", b"x")
    client.write(lease, "d/x", b"x")
    assert not os.path.exists("/var/newfile") and not os.path.exists("/etc/x")
    assert client.delete(client.file_url(lease, "keep", recursive="1")).status == 204
    assert os.path.exists("/etc/passwd") and host_etc_passwd() == host
    assert client.exec(lease, "cat /etc/hostname")["returncode"] == 0


def test_swapping_symlink_race(server, client, lease, soak):
    """A process swaps a file and a link to the sandbox's own world in a loop; reads see one or the other, never the host's."""
    host = host_etc_passwd()
    client.exec(lease, "echo mine > a; ln -s /etc/passwd b; (while :; do mv a x; mv b a; mv x b; done) >/dev/null 2>&1 &")
    n = 10000 if soak else 3000 if SLOW == 1 else 500

    def reads(count):
        c = server.client()
        seen = set()
        for _ in range(count):
            r = c.read(lease, "a")
            assert r.status in (200, 404), r
            seen.add(r.body)
        return seen

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for seen in pool.map(reads, [n // 4] * 4):
            assert host not in seen


def test_upload_cut_half_way_leaves_nothing(server, client, lease):
    client.write(lease, "keep", b"old")
    for path in ("keep", "fresh"):
        s = server.connect()
        s.sendall(f"PUT {client.file_url(lease, path)} HTTP/1.1\r\nHost: x\r\nContent-Length: 50000000\r\n\r\n".encode())
        s.sendall(b"y" * 10_000_000)
        s.close()
    wait_until(lambda: [i["name"] for i in client.get(f"/leases/{lease}/files/list").json()["items"]] == ["keep"],
               what="no leftovers of the cut uploads")
    assert client.read(lease, "keep").body == b"old"


def test_full_disk_is_507_and_keeps_the_old(tmp_path):
    with Server({"local_bwrap": {"size": 1, "disk_max": "16MiB"}}) as s:
        c = s.client()
        id = c.lease()
        c.write(id, "keep", b"old")
        for append in ({}, {"append": "1"}):
            r = c.write(id, "keep", b"z" * (20 << 20), **append)
            assert r.status == 507 and r.code == "sandbox_disk_full", r
            assert c.read(id, "keep").body == b"old"
        r = c.write(id, "new", b"z" * (20 << 20))
        assert r.status == 507
        assert [i["name"] for i in c.get(f"/leases/{id}/files/list").json()["items"]] == ["keep"]
        # The space came back.
        assert c.write(id, "fits", b"z" * (8 << 20)).status == 201


def pieces(total, piece=b"0123456789abcdef" * 4096):
    sent = 0
    while sent < total:
        n = min(len(piece), total - sent)
        yield piece[:n]
        sent += n


def test_large_file_moves_through_constant_memory(soak):
    total = (2 << 30) if soak else (200 << 20)
    with Server({"local_bwrap": {"size": 1, "disk_max": "3GiB", "memory_max": "4GiB"}}) as s:
        c = s.client()
        id = c.lease()
        c.write(id, "small", b"x" * 1000000)
        before = s.rss_kib()
        r = c.put(c.file_url(id, "big"), iter(pieces(total)), headers={"Transfer-Encoding": "chunked"}, timeout=300)
        assert r.status == 201 and r.json()["size"] == total, r
        grown = s.rss_kib() - before
        import http.client
        h = http.client.HTTPConnection("127.0.0.1", s.port, timeout=300)
        h.request("GET", c.file_url(id, "big"))
        got, answer, same = 0, h.getresponse(), True
        expected = pieces(total)
        while True:
            data = answer.read(1 << 16)
            if not data:
                break
            same = same and data == next(expected)
            got += len(data)
        assert got == total and same
        first = 1_000_000_000 if soak else 100_000_000
        r = c.get(c.file_url(id, "big"), headers={"Range": f"bytes={first}-{first + 99}"})
        assert r.status == 206 and len(r.body) == 100 and r.body[:16] == b"0123456789abcdef"
        assert c.get(c.file_url(id, "big"), headers={"Range": f"bytes={total}-"}).status == 416
        if SLOW == 1:
            assert max(grown, s.rss_kib() - before) < 16 * 1024


def test_bad_queries(client, lease):
    for url, field in ((f"/leases/{lease}/files", "path"), (f"/leases/{lease}/files?path=", "path"),
                       (f"/leases/{lease}/files?path=a&nope=1", "nope"), (f"/leases/{lease}/files?path=a&path=b", "path"),
                       (f"/leases/{lease}/files?path=a&max_bytes=-1", "max_bytes"),
                       (f"/leases/{lease}/files/list?limit=0", "limit"), (f"/leases/{lease}/files/list?cursor=zz", "cursor"),
                       (f"/leases/{lease}/files?path=" + "x" * 5000, "path")):
        r = client.get(url)
        assert r.status == 400 and r.json()["field"] == field, (url, r)
    assert client.put(f"/leases/{lease}/files?path=a&mode=999", b"").status == 400
    assert client.get(f"/leases/{lease}/files?path=a%00b").status == 400
