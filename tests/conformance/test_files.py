"""Files through the API, in every form, and as commands see them."""
import base64
import concurrent.futures
import hashlib

import pytest

from harness import SLOW, wait_until


def etag(box, path):
    return box.read(path).header("ETag")


def test_bytes_are_exact(box):
    for name, data in (("all", bytes(range(256)) * 4096), ("empty", b""), ("line", b"no newline"), ("dos", b"\xef\xbb\xbfa\r\nb\r\n")):
        r = box.write(name, data)
        assert r.status == 201 and (r.json()["size"], r.json()["type"]) == (len(data), "file"), r
        got = box.read(name)
        assert got.body == data and got.header("Content-Length") == str(len(data)) and got.header("ETag") == r.json()["etag"]


@pytest.mark.needs("shell")
def test_commands_see_the_same_bytes(box):
    data = bytes(range(256)) * 4096
    box.write("all", data)
    assert box.out("sha256sum < all").split()[0] == hashlib.sha256(data).hexdigest()
    box.run("tr '\\0-\\377' '\\1-\\377\\0' < all > turned")
    assert box.read("turned").body == data[1:] + b"\0"


@pytest.mark.needs("shell")
def test_visible_at_once_both_ways(box):
    for i in range(15):
        box.write(f"f{i}", b"%d" % i)
        assert box.out(f"cat f{i}; echo {i} > g{i}") == str(i)
        assert box.read(f"g{i}").body == b"%d\n" % i


def test_chunked_uploads(box):
    r = box.client.put(box.file("c"), iter([b"ab", b"c" * 100000, b"d"]), headers={"Transfer-Encoding": "chunked"})
    assert r.status == 201 and r.json()["size"] == 100003 and box.read("c").body == b"ab" + b"c" * 100000 + b"d"
    assert box.client.put(box.file("e"), iter([]), headers={"Transfer-Encoding": "chunked"}).status == 201 and box.read("e").body == b""


def test_append(box):
    assert box.write("new", b"", append="1").status == 201 and box.read("new").body == b""
    assert box.write("new", b"one\n", append="1").status == 200
    r = box.write("new", b"two\n", append="true")
    assert r.status == 200 and r.json()["size"] == 8 and box.read("new").body == b"one\ntwo\n"


def test_appends_at_once_stay_whole(box, server):
    lines = [(f"{i:03d}" + chr(65 + i % 26) * 96 + "\n").encode() for i in range(40)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(r.status in (200, 201) for r in pool.map(lambda l: server.client().put(box.file("app", append="1"), l), lines))
    assert sorted(box.read("app").body.splitlines(True)) == sorted(lines)


@pytest.mark.needs("shell", "links")
def test_modes(box):
    assert box.write("a/run.sh", b"#!/bin/sh\necho ran\n", mode="0755").json()["mode"] == "0755"
    assert box.out(["./a/run.sh"]) == "ran\n"
    box.write("a/run.sh", b"#!/bin/sh\necho again\n")
    assert box.out(["./a/run.sh"]) == "again\n" and box.stat("a/run.sh").json()["mode"] == "0755"  # a replaced file keeps its mode
    assert box.write("plain", b"").json()["mode"] == "0644" and box.write("own", b"", mode="600").json()["mode"] == "0600"
    assert box.out("stat -c %a plain own a/run.sh; touch made; test -O plain && test -O a && echo mine") == "644\n600\n755\nmine\n"
    box.write("secret", b"x", mode="0000")
    assert box.read("secret").status == 403


def test_ranges(box):
    box.write("r", bytes(range(100)))
    for spec, body, header in (("bytes=10-19", bytes(range(10, 20)), "bytes 10-19/100"), ("bytes=90-", bytes(range(90, 100)), "bytes 90-99/100"),
                               ("bytes=-5", bytes(range(95, 100)), "bytes 95-99/100"), ("bytes=95-1000", bytes(range(95, 100)), "bytes 95-99/100")):
        r = box.read("r", headers={"Range": spec})
        assert (r.status, r.body, r.header("Content-Range")) == (206, body, header), (spec, r)
    r = box.read("r", headers={"Range": "bytes=100-"})
    assert (r.status, r.header("Content-Range")) == (416, "bytes */100")
    r = box.client.get(box.file("r", max_bytes=7))
    assert (r.body, r.header("Sandgate-File-Size"), r.header("Sandgate-Truncated")) == (bytes(range(7)), "100", "true")
    r = box.client.request("HEAD", box.file("r"))
    assert (r.status, r.body, r.header("Content-Length"), r.header("ETag")) == (200, b"", "100", etag(box, "r"))


def test_conditions(box):
    first = box.write("f", b"one", headers={"If-None-Match": "*"})
    assert first.status == 201
    for headers in ({"If-None-Match": "*"}, {"If-Match": '"other"'}):
        r = box.write("f", b"lost", headers=headers)
        assert r.status == 412 and r.code == "precondition_failed", r
    tag = first.json()["etag"]
    assert box.read("f", headers={"If-None-Match": tag}).status == 304 and box.read("f", headers={"If-Match": tag}).body == b"one"
    second = box.write("f", b"two", headers={"If-Match": tag})
    assert second.status == 200 and second.json()["etag"] != tag
    assert box.write("f", b"three", headers={"If-Match": tag}).status == 412 and box.read("f").body == b"two"
    assert box.read("f", headers={"If-Match": tag}).status == 412 and box.delete("f", headers={"If-Match": tag}).status == 412
    assert box.delete("f", headers={"If-Match": second.json()["etag"]}).status == 204
    assert box.write("f", b"x", headers={"If-Match": "*"}).status == 412 and box.stat("f").status == 404


@pytest.mark.needs("shell")
def test_a_commands_change_is_a_new_version(box):
    tag = box.write("f", b"one").json()["etag"]
    box.run("sleep 0.02; echo two > f")
    assert etag(box, "f") != tag and box.write("f", b"three", headers={"If-Match": tag}).status == 412


def test_of_many_writers_with_one_tag_one_wins(box, server):
    tag = box.write("f", b"0").json()["etag"]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda i: server.client().put(box.file("f"), b"%d" % i, headers={"If-Match": tag}).status, range(1, 17)))
        made = list(pool.map(lambda i: server.client().put(box.file("g"), b"%d" % i, headers={"If-None-Match": "*"}).status, range(16)))
    assert sorted(found) == [200] + [412] * 15 and sorted(made) == [201] + [412] * 15


def test_digests(box):
    def digest(data, name="sha256"):
        return base64.b64encode(hashlib.new(name, data).digest()).decode()
    assert box.write("f", b"right", headers={"Repr-Digest": f"sha-256=:{digest(b'right')}:"}).status == 201
    r = box.write("f", b"wrong", headers={"Repr-Digest": f"sha-256=:{digest(b'right')}:"})
    assert r.status == 400 and r.json()["reason"] == "digest_mismatch" and box.read("f").body == b"right"
    r = box.read("f", headers={"Want-Repr-Digest": "sha-512=1"})
    assert r.header("Repr-Digest") == f"sha-512=:{digest(b'right', 'sha512')}:", r.headers.items()


def test_an_upload_that_is_cut_leaves_nothing(box, server):
    box.write("keep", b"old")
    for path in ("keep", "fresh"):
        s = server.connect()
        s.sendall(f"PUT {box.file(path)} HTTP/1.1\r\nHost: x\r\nContent-Length: 3000000\r\n\r\n".encode() + b"y" * 1000000)
        s.close()
    wait_until(lambda: box.names() == ["keep"], what="no leftovers of the cut uploads")
    assert box.read("keep").body == b"old"


# ---- directories ----

def test_lists(box):
    for name in ("b", "a", "c/x", "c/y/z", "c/y-"):
        box.write(name, b"12345")
    items = box.client.get(box.sub("list")).json()["items"]
    assert [(i["name"], i["type"]) for i in items] == [("a", "file"), ("b", "file"), ("c", "directory")] and items[0]["size"] == 5
    assert box.names(recursive="1") == ["a", "b", "c", "c/x", "c/y", "c/y-", "c/y/z"] == box.names(recursive="1", limit=2)
    assert box.names(limit=1) == ["a", "b", "c"]
    r = box.client.get(box.sub("list", "a"))
    assert r.status == 409 and r.code == "not_a_directory", r


def test_stat(box):
    box.write("f", b"12345")
    s = box.stat("f").json()
    assert (s["type"], s["size"], s["path"]) == ("file", 5, box.path("f")) and s["etag"] == etag(box, "f") and s["mtime"]
    assert box.stat("").json()["type"] == "directory"


def test_mkdir(box):
    for _ in range(2):
        assert box.client.post(box.sub("mkdir", "d/e/f")).status == 201
    assert box.names(recursive="1") == ["d", "d/e", "d/e/f"]
    box.write("file", b"")
    for path, code in (("file", "not_a_directory"), ("file/x", "not_a_directory")):
        r = box.client.post(box.sub("mkdir", path))
        assert r.status == 409 and r.code in (code, "already_exists"), r


def test_moves(box):
    box.write("a", b"1")
    box.write("d/x", b"2")
    assert box.move("a", "new/dir/b").status == 204 and box.read("new/dir/b").body == b"1" and box.stat("a").status == 404
    assert box.move("d", "e").status == 204 and box.read("e/x").body == b"2"
    box.write("over", b"3")
    assert box.move("over", "e/x").status == 204 and box.read("e/x").body == b"3"
    for old, new, status, code in (("no", "x", 404, "not_found"), ("e/x", "new", 409, "is_a_directory"), ("new", "e/x", 409, "not_a_directory"), ("new", "e", 409, "directory_not_empty")):
        r = box.move(old, new)
        assert (r.status, r.code) == (status, code), (old, new, r)
    assert box.names(recursive="1") == ["e", "e/x", "new", "new/dir", "new/dir/b"]


@pytest.mark.needs("links")
def test_moves_between_places(box):
    other = f"/tmp/{box.at}"
    box.write("d/x", b"1" * 100000, mode="0750")
    assert box.move("d", other).status == 204 and box.stat("d").status == 404
    assert box.read(other + "/x").body == b"1" * 100000 and box.stat(other + "/x").json()["mode"] == "0750"
    assert box.move(other, "back").status == 204 and box.names(recursive="1") == ["back", "back/x"]


def test_removals(box):
    box.write("d/e/f", b"x")
    r = box.delete("d")
    assert r.status == 409 and r.code == "directory_not_empty"
    assert box.delete("d/e/f").status == 204 and box.delete("d/e").status == 204
    box.write("d/1/2/3", b"x")
    assert box.delete("d", recursive="1").status == 204 and box.names() == []


# ---- errors ----

def test_what_is_missing_is_404(box):
    for r in (box.read("no"), box.read("no/no"), box.stat("no"), box.delete("no"), box.client.get(box.sub("list", "no")), box.move("no", "x")):
        assert r.status == 404 and r.code == "not_found", r
    assert box.write("no/such/parent", b"x").status == 201


def test_kinds_that_do_not_fit_are_409(box):
    box.write("d/f", b"x")
    for r, code in ((box.read("d"), "is_a_directory"), (box.write("d", b"x"), "is_a_directory"), (box.read("d/f/x"), "not_a_directory"),
                    (box.write("d/f/x", b"x"), "not_a_directory"), (box.stat("d/f/x"), "not_a_directory")):
        assert r.status == 409 and r.code == code, (code, r)


@pytest.mark.needs("shell", "links")
def test_pipes_and_devices_are_answered_at_once(box):
    box.run("mkfifo fifo; ln -s fifo tofifo")
    for path in ("fifo", "tofifo"):
        r = box.read(path, timeout=10 * SLOW)
        assert r.status == 409 and r.code == "not_a_regular_file", (path, r)
    r = box.read("/dev/zero", timeout=10 * SLOW)
    assert r.status in (403, 404, 409), r
    assert [(i["name"], i["type"]) for i in box.client.get(box.sub("list")).json()["items"]] == [("fifo", "fifo"), ("tofifo", "symlink")]


@pytest.mark.needs("links")
def test_what_is_not_permitted_is_403(box):
    """What is outside of the places of a sandbox is read-only, or not there at all."""
    for r in (box.write("/usr/bin/x", b"x"), box.write("/etc/passwd", b"x"), box.delete("/usr/bin/env"), box.client.post(box.sub("mkdir", "/usr/x")),
              box.move("/usr/bin", "x")):
        assert (r.status, r.code) in ((403, "forbidden"), (404, "not_found")), r
    box.write("f", b"x")
    r = box.move("f", "/usr/bin/f")
    assert r.status in (403, 404) and box.read("f").body == b"x", r


def test_bad_queries_name_the_member(box):
    for url, field in ((f"{box.url}/files", "path"), (f"{box.url}/files?path=", "path"), (box.file("a", nope=1), "nope"), (box.file("a") + "&path=b", "path"),
                       (box.file("a", max_bytes=-1), "max_bytes"), (box.sub("list", limit=0), "limit"), (box.sub("list", cursor="zz"), "cursor"),
                       (f"{box.url}/files?path=" + "x" * 5000, "path")):
        r = box.client.get(url)
        assert r.status == 400 and r.json()["field"] == field, (url, r)
    assert box.client.get(f"{box.url}/files?path=a%00b").status == 400
    assert box.write("a", b"", mode="999").status == 400 and box.stat("a").status == 404


# ---- names ----

NAMES = ["a b", "ünïcödé", "日本語", "-rf", "*", "a'b\"c", "$HOME", "new\nline", "tab\t", "%41", "a+b&c=d", "#x?y", ".hidden", "..x", "x..", "~", "back\\slash", "x" * 200]


def test_odd_names(box):
    for i, name in enumerate(NAMES):
        assert box.write(name, b"%d" % i).status == 201, name
    for i, name in enumerate(NAMES):
        assert box.read(name).body == b"%d" % i and box.stat(name).json()["path"] == box.path(name), name
    assert sorted(box.names()) == sorted(NAMES)
    for name in NAMES:
        assert box.move(name, "d/" + name).status == 204, name
        assert box.delete("d/" + name).status == 204, name


@pytest.mark.needs("shell")
def test_commands_see_odd_names(box):
    for i, name in enumerate(NAMES):
        box.write("./" + name, b"%d" % i)
        assert box.out(["cat", "./" + name]) == str(i), name
    made = [n for n in NAMES if "\n" not in n]
    assert box.out("for f in .[!.]* ..?* *; do [ -e \"$f\" ] && echo x; done | wc -l").strip() == str(len(NAMES)) and made


@pytest.mark.needs("shell", "links")
def test_names_that_are_no_text(box):
    box.run("printf x > \"$(printf '\\377\\376')\"")
    item, = box.client.get(box.sub("list")).json()["items"]
    assert (item["name"], item["name_encoding"]) == ("%FF%FE", "percent"), item
    assert box.client.get(f"{box.url}/files?path={box.at}/%FF%FE").body == b"x"


# ---- nothing outside ----

@pytest.mark.needs("links")
@pytest.mark.parametrize("path", ["../../../etc/passwd", "/etc/passwd", "a/../../../../../etc/passwd", "/proc/self/root/etc/passwd", "/proc/1/root/etc/passwd", "/etc/shadow",
                                  "/proc/self/environ", "/proc/1/environ", "/proc/kcore"])
def test_paths_do_not_lead_outside(box, path):
    with open("/etc/passwd", "rb") as f:
        host = f.read()
    r = box.read(path)
    assert r.status in (200, 400, 403, 404, 409, 422) and r.body != host, r
    if r.status == 200:
        assert path.endswith("/passwd"), r  # the sandbox's own
    assert box.write(path, b"pwned").status in (400, 403, 404, 409, 422)
    with open("/etc/passwd", "rb") as f:
        assert f.read() == host


@pytest.mark.needs("shell", "links")
def test_links_do_not_lead_outside(box):
    with open("/etc/passwd", "rb") as f:
        host = f.read()
    box.run("ln -s /etc/passwd leak; ln -s /etc d; ln -s /var/newfile w; ln -s /proc/1/root r; ln -s loop loop")
    assert box.read("leak").body != host and box.read("d/passwd").body != host and box.read("r/etc/passwd").body != host
    assert box.write("w", b"x").status in (201, 403, 404, 409, 422) and box.write("d/x", b"x").status in (403, 404, 409, 422)
    r = box.read("loop")
    assert r.status == 403 and r.code == "path_refused", r
    assert box.stat("leak").json()["type"] == "symlink"
    box.run("mkdir keep; ln -s ../target keep/l; mkdir target; echo x > target/f")
    assert box.delete("keep", recursive="1").status == 204 and box.read("target/f").body == b"x\n"  # links go, what they point at stays
    assert box.read("target/f").status == 200
