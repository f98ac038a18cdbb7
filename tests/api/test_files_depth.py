"""Files in depth: conditions, digests, names, paging, moves, and directories as tar."""
import base64
import concurrent.futures
import email.utils
import gzip
import hashlib
import http.client
import io
import os
import socket
import subprocess
import tarfile
import urllib.parse

import pytest

from harness import SLOW, Server, output, wait_until
from tars import make_tar


def stat(client, lease, path):
    return client.get(f"/leases/{lease}/files/stat?" + urllib.parse.urlencode({"path": path}))


def put(client, lease, path, data, headers, **query):
    return client.put(client.file_url(lease, path, **query), data, headers=headers)


def refused(r, status, code, field=None):
    assert r.status == status and r.code == code, r
    assert field is None or r.json()["field"] == field, r


# ---- conditions ----


def test_get_conditions(client, lease):
    client.write(lease, "f", b"0123456789")
    url = client.file_url(lease, "f")
    r = client.get(url)
    tag, date = r.header("ETag"), r.header("Last-Modified")
    assert tag.startswith('"') and email.utils.parsedate_to_datetime(date) and r.header("Cache-Control") == "no-cache"
    for value in (tag, f'"x", {tag}', "W/" + tag, "*", f'{tag}, , "y"'):
        r = client.get(url, headers={"If-None-Match": value})
        assert (r.status, r.body, r.header("ETag"), r.header("Content-Length")) == (304, b"", tag, "10"), (value, r)
    assert client.request("HEAD", url, headers={"If-None-Match": tag}).status == 304
    for value in ('"x"', 'W/"a-b"', '"0' + tag[1:]):
        assert client.get(url, headers={"If-None-Match": value}).status == 200, value
    for value in (tag, "*", f'"x",{tag}'):
        assert client.get(url, headers={"If-Match": value}).status == 200, value
    for value in ('"x"', "W/" + tag):
        refused(client.get(url, headers={"If-Match": value}), 412, "precondition_failed")
    for value in (tag[:-1], "x", f"{tag} {tag}", "", ","):
        refused(client.get(url, headers={"If-Match": value}), 400, "invalid_request", "If-Match")
    refused(client.get(url, headers={"If-None-Match": ",".join(['"1-2-3-4-5"'] * 17)}), 400, "invalid_request", "If-None-Match")
    # Dates count only without tags.
    assert client.get(url, headers={"If-Modified-Since": date}).status == 304
    assert client.get(url, headers={"If-Modified-Since": "Sun, 06 Nov 1994 08:49:37 GMT"}).status == 200
    assert client.get(url, headers={"If-Modified-Since": date, "If-None-Match": '"x"'}).status == 200
    assert client.get(url, headers={"If-Modified-Since": "yesterday"}).status == 200
    assert client.get(url, headers={"If-Unmodified-Since": "Sun, 06 Nov 1994 08:49:37 GMT"}).status == 412
    # A range only of the version that the client has.
    r = client.get(url, headers={"Range": "bytes=2-3", "If-Range": tag})
    assert (r.status, r.body) == (206, b"23")
    for value in ('"x"', "W/" + tag, date):
        r = client.get(url, headers={"Range": "bytes=2-3", "If-Range": value})
        assert (r.status, r.body) == (200, b"0123456789"), value
    client.write(lease, "f", b"0123456789")
    assert client.get(url, headers={"If-None-Match": tag}).status == 200
    assert client.read(lease, "none", headers={"If-Match": "*"}).status == 404


def test_put_conditions(client, lease):
    r = put(client, lease, "a/f", b"one", {"If-None-Match": "*"})
    assert r.status == 201
    tag = r.header("ETag")
    assert tag == r.json()["etag"] == client.read(lease, "a/f").header("ETag")
    refused(put(client, lease, "a/f", b"two", {"If-None-Match": "*"}), 412, "precondition_failed")
    refused(put(client, lease, "a/f", b"two", {"If-Match": '"x"'}), 412, "precondition_failed")
    refused(put(client, lease, "new", b"two", {"If-Match": "*"}), 412, "precondition_failed")
    refused(put(client, lease, "new", b"two", {"If-Match": tag}), 412, "precondition_failed")
    refused(put(client, lease, "a/f", b"two", {"If-None-Match": tag}), 412, "precondition_failed")
    assert client.read(lease, "a/f").body == b"one" and stat(client, lease, "new").status == 404
    r = put(client, lease, "a/f", b"two", {"If-Match": f'"x", {tag}'})
    assert r.status == 200 and r.header("ETag") != tag
    refused(put(client, lease, "a/f", b"three", {"If-Match": tag}), 412, "precondition_failed")
    tag = r.header("ETag")
    # Appends look at the file before them.
    r = put(client, lease, "a/f", b"+", {"If-Match": tag}, append="1")
    assert r.status == 200 and client.read(lease, "a/f").body == b"two+"
    refused(put(client, lease, "a/f", b"+", {"If-Match": tag}, append="1"), 412, "precondition_failed")
    refused(put(client, lease, "a/f", b"+", {"If-None-Match": "*"}, append="1"), 412, "precondition_failed")
    refused(put(client, lease, "none", b"+", {"If-Match": "*"}, append="1"), 412, "precondition_failed")
    assert put(client, lease, "fresh", b"+", {"If-None-Match": "*"}, append="1").status == 201
    refused(put(client, lease, "a/f", b"", {"If-Match": tag, "If-None-Match": "*"}), 400, "invalid_request", "If-None-Match")
    refused(put(client, lease, "a/f", b"", {"If-Unmodified-Since": "Sun, 06 Nov 1994 08:49:37 GMT"}), 400, "invalid_request")
    # What commands write is a new version too.
    tag = client.read(lease, "a/f").header("ETag")
    client.exec(lease, "echo changed >> a/f")
    refused(put(client, lease, "a/f", b"x", {"If-Match": tag}), 412, "precondition_failed")


def test_delete_conditions(client, lease):
    tag = client.write(lease, "f", b"1").header("ETag")
    url = client.file_url(lease, "f")
    refused(client.delete(url, headers={"If-Match": '"x"'}), 412, "precondition_failed")
    refused(client.delete(url, headers={"If-None-Match": "*"}), 412, "precondition_failed")
    assert client.delete(url, headers={"If-Match": tag}).status == 204
    refused(client.delete(url, headers={"If-Match": tag}), 412, "precondition_failed")
    assert client.delete(url).status == 404
    client.exec(lease, "mkdir d; touch d/x")
    tag = stat(client, lease, "d").json()["etag"]
    assert client.delete(client.file_url(lease, "d", recursive="1"), headers={"If-Match": tag}).status == 204


def test_only_one_of_many_creates_or_replaces(server, client, lease):
    def create(i):
        return put(server.client(), lease, "lock", b"%d" % i, {"If-None-Match": "*"}).status

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(create, range(24))) == [201] + [412] * 23

    # Compare and swap: no increment is lost.
    def increment(_):
        c = server.client()
        while True:
            r = c.read(lease, "n")
            if put(c, lease, "n", b"%d" % (int(r.body) + 1), {"If-Match": r.header("ETag")}).status == 200:
                return

    client.write(lease, "n", b"0")
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(increment, range(40)))
    assert client.read(lease, "n").body == b"40"


# ---- digests and what a body may be ----


def digest(data, kind="sha256"):
    return base64.b64encode(hashlib.new(kind, data).digest()).decode()


def test_digests(client, lease):
    data = bytes(range(256)) * 2000
    good256, good512, bad = digest(data), digest(data, "sha512"), digest(b"other")
    for name in ("Repr-Digest", "Content-Digest"):
        for value in (f"sha-256=:{good256}:", f"sha-512=:{good512}:", f"sha-256=:{good256}:, sha-512=:{good512}:",
                      f"md5=:AAAA:,sha-256=:{good256}:;x=1", "md5=:AAAA:"):
            assert put(client, lease, "ok", data, {name: value}).status in (200, 201), value
        for value in (f"sha-256=:{bad}:", f"sha-512=:{digest(b'', 'sha512')}:", f"sha-256=:{good256}:, sha-512=:{digest(b'', 'sha512')}:"):
            r = put(client, lease, "no/bad", data, {name: value})
            refused(r, 400, "invalid_request", "Repr-Digest")
            assert r.json()["reason"] == "digest_mismatch"
        for value in ("sha-256", f"sha-256={good256}", "sha-256=:AAAA:", f"sha-256=:{good256}", f"sha-256=:{good256}:,", "=:AA==:",
                      f"sha-256=:{good256}: sha-512=:{good512}:", f"sha-256=:{good256}:, sha-256=:{bad}:"):
            refused(put(client, lease, "no/bad", data, {name: value}), 400, "invalid_request", name)
    refused(put(client, lease, "no/bad", data, {"Repr-Digest": f"sha-256=:{good256}:", "Content-Digest": f"sha-256=:{bad}:"}), 400,
            "invalid_request", "Content-Digest")
    assert stat(client, lease, "no").status == 404
    # Of an append it is about the bytes sent.
    assert put(client, lease, "ok", b"tail", {"Repr-Digest": f"sha-256=:{digest(b'tail')}:"}, append="1").status == 200
    assert put(client, lease, "ok", b"tail", {"Repr-Digest": f"sha-256=:{bad}:"}, append="1").status == 400
    assert client.read(lease, "ok").body == data + b"tail"


def test_bodies_are_whole_files_as_they_are(client, lease):
    refused(put(client, lease, "f", b"x", {"Content-Encoding": "gzip"}), 415, "unsupported_media_type", "Content-Encoding")
    assert put(client, lease, "f", b"x", {"Content-Encoding": "identity"}).status == 201
    refused(put(client, lease, "f", b"x", {"Content-Range": "bytes 0-0/1"}), 400, "invalid_request", "Content-Range")
    assert client.read(lease, "f").body == b"x"


@pytest.mark.parametrize("path, plain, extended", [
    ("d/a.txt", "a.txt", None), ("d/a b.txt", "a b.txt", None), ("ü\u2603.html", "__.html", "%C3%BC%E2%98%83.html"),
    ('q"\\%.sh', "q___.sh", "q%22%5C%25.sh"), ("new\nline", "new_line", "new%0Aline")])
def test_browsers_save_what_they_get(client, lease, path, plain, extended):
    client.write(lease, path, b"<script>alert(1)</script>")
    r = client.read(lease, path)
    plain = plain if extended is None or "\u2603" not in path else "_" * 5 + ".html"
    assert r.header("Content-Disposition") == f'attachment; filename="{plain}"' + (f"; filename*=UTF-8''{extended}" if extended else "")
    assert r.header("Content-Type") == "application/octet-stream" and r.header("X-Content-Type-Options") == "nosniff"
    assert r.header("Content-Security-Policy") == "sandbox"


# ---- lists and names ----


def pages(client, lease, limit, **query):
    url = f"/leases/{lease}/files/list?" + urllib.parse.urlencode(dict(query, limit=limit))
    items, cursor = [], ""
    while True:
        page = client.get(url + (f"&cursor={cursor}" if cursor else "")).json()
        items += page["items"]
        cursor = page["next_cursor"]
        if not cursor:
            return items, page["truncated"]


def test_names_that_are_not_text(client, lease):
    client.exec(lease, ["perl", "-e", 'for ("n\\xffn", "100%", "%41", "a b&c", "\\xc3\\xbc") { open(F, ">", $_); print F $_; close F } '
                                      'symlink("t\\xff", "link")'])
    items, _ = pages(client, lease, 2)
    names = {i["name"]: i for i in items}
    assert set(names) == {"n%FFn", "100%", "%41", "a b&c", "ü", "link"}
    assert names["n%FFn"]["name_encoding"] == "percent" and "name_encoding" not in names["%41"]
    assert names["link"]["target"] == "t%FF" and names["link"]["target_encoding"] == "percent"
    for i in items:
        if i["type"] == "symlink":
            continue
        quoted = i["name"] if i.get("name_encoding") == "percent" else urllib.parse.quote(i["name"])
        raw = urllib.parse.unquote_to_bytes(quoted)
        assert client.get(f"/leases/{lease}/files?path={quoted}").body == raw, i
        s = client.get(f"/leases/{lease}/files/stat?path={quoted}").json()
        assert s["etag"] == i["etag"] and s.get("path_encoding") == i.get("name_encoding")
    assert client.put(f"/leases/{lease}/files?path=%FEx", b"1").json()["path"] == "%FEx"
    assert client.delete(f"/leases/{lease}/files?path=%FEx").status == 204


def test_paging_has_no_gap_and_no_repeat(client, lease):
    client.exec(lease, "mkdir -p a/b a.c z; for i in $(seq 60); do : > a/b/$i; : > a.c/$i; done; : > a-; : > Z")
    want, _ = pages(client, lease, 1000, recursive="1")
    want = [i["name"] for i in want]
    assert want == sorted(want, key=str.encode) and len(want) == 126
    for limit in (1, 7, 125, 126):
        items, truncated = pages(client, lease, limit, recursive="1")
        assert [i["name"] for i in items] == want and truncated is False
    # Entries that come and go meanwhile move nothing else.
    url = f"/leases/{lease}/files/list?recursive=1&limit=50"
    first = client.get(url).json()
    client.exec(lease, "rm a/b/60 Z; : > A; : > zz")
    seen = [i["name"] for i in first["items"]]
    page = first
    while page["next_cursor"]:
        page = client.get(url + "&cursor=" + page["next_cursor"]).json()
        seen += [i["name"] for i in page["items"]]
    assert seen == sorted(set(seen), key=str.encode)
    assert set(want) - {"Z", "a/b/60"} <= set(seen)


def test_lists_of_any_length(client, lease):
    """Pages of one directory and of a tree: all of it, in order, each once, whatever comes and goes between them."""
    client.exec(lease, ["perl", "-e", "mkdir 'a'; for (1..12050) { open(F, '>', sprintf('f%05d', $_)); } "
                                      "for (1..60) { mkdir 'a/' . $_; for $i (1..100) { open(F, '>', \"a/$_/$i\"); } } open(F, '>', 'a-')"], timeout=120)
    want = sorted(["a", "a-"] + ["f%05d" % i for i in range(1, 12051)])
    items, truncated = pages(client, lease, 1000)
    assert [i["name"] for i in items] == want and truncated is False
    want = sorted(want + [f"a/{i}" for i in range(1, 61)] + [f"a/{i}/{k}" for i in range(1, 61) for k in range(1, 101)], key=str.encode)
    items, truncated = pages(client, lease, 997, recursive="1")
    assert [i["name"] for i in items] == want and truncated is False
    first = client.get(f"/leases/{lease}/files/list?recursive=1&limit=1000").json()
    client.exec(lease, "rm f12050; : > a/0; : > zzz; rm -r a/2")
    seen, page = [i["name"] for i in first["items"]], first
    while page["next_cursor"]:
        page = client.get(f"/leases/{lease}/files/list?recursive=1&limit=1000&cursor=" + page["next_cursor"]).json()
        seen += [i["name"] for i in page["items"]]
    assert seen == sorted(set(seen), key=str.encode) and "zzz" in seen and "f12050" not in seen
    assert {n for n in want if not n.startswith("a/2")} - {"f12050"} <= set(seen)


# ---- moves ----


def move(client, lease, a, b):
    return client.post(f"/leases/{lease}/files/move", {"from": a, "to": b})


def test_moves(client, lease):
    client.exec(lease, "mkdir full empty dir; touch full/x dir/y; echo 1 > f; echo 2 > g; ln -s f l")
    assert move(client, lease, "f", "deep/er/f").status == 204, "parents are made"
    assert client.read(lease, "deep/er/f").body == b"1\n"
    assert move(client, lease, "deep/er/f", "g").status == 204, "a file is replaced"
    assert client.read(lease, "g").body == b"1\n"
    assert move(client, lease, "dir", "empty").status == 204, "an empty directory is replaced"
    assert stat(client, lease, "empty/y").status == 200
    refused(move(client, lease, "empty", "full"), 409, "directory_not_empty")
    refused(move(client, lease, "g", "full"), 409, "is_a_directory")
    refused(move(client, lease, "full", "g"), 409, "not_a_directory")
    refused(move(client, lease, "full", "full/sub/x"), 403, "path_refused")
    assert stat(client, lease, "full/sub").status == 404, "parents of a refused move are taken back"
    refused(move(client, lease, "none", "no/parents"), 404, "not_found")
    assert stat(client, lease, "no").status == 404
    refused(move(client, lease, "g", "g/x"), 409, "not_a_directory")
    refused(move(client, lease, "g", "/usr/g"), 403, "forbidden")
    assert move(client, lease, "g", "g").status == 204
    assert move(client, lease, "l", "l2").status == 204 and stat(client, lease, "l2").json()["type"] == "symlink"
    assert move(client, lease, "full", "/tmp/new/full").status == 204, "also to another file system"
    assert stat(client, lease, "/tmp/new/full/x").status == 200


# ---- directories as tar ----


def tar_url(lease, path, **query):
    return f"/leases/{lease}/files/tar?" + urllib.parse.urlencode(dict(query, path=path))


def names(client, lease, path="."):
    return sorted(i["name"] for i in client.get(f"/leases/{lease}/files/list?recursive=1&limit=1000&path={path}").json()["items"])


def get_tar(client, lease, path):
    r = client.get(tar_url(lease, path))
    assert r.status == 200 and r.header("Content-Type") == "application/x-tar", r
    return tarfile.open(fileobj=io.BytesIO(r.body))


def put_tar(client, lease, path, data, headers=None, **query):
    return client.put(tar_url(lease, path, **query), data, headers=headers, timeout=120)


SETUP = r"""mkdir -p d/empty d/sub/deep; printf hello > d/a; head -c 300000 /dev/urandom > d/sub/big; : > d/zero; chmod 755 d/a; chmod 600 d/sub/big
ln -s sub/big d/link; ln -s /etc/passwd d/out; ln -s . d/self; mkfifo d/fifo; echo x > "d/$(printf 'n\377')"; echo y > d/ü; chmod 700 d/sub
echo l > d/$(head -c 200 /dev/zero | tr '\0' l); mkdir -p d/$(head -c 120 /dev/zero | tr '\0' m)/x/y
touch -d '2001-02-03 04:05:06.789' d/a d/sub; touch -h -d '2002-02-03 04:05:06' d/link; touch -d '2003-02-03 04:05:06' d"""


def test_get_tar(client, lease):
    client.exec(lease, SETUP)
    r = client.get(tar_url(lease, "d"))
    assert r.header("Content-Disposition") == 'attachment; filename="d.tar"' and r.header("Content-Length") is None
    t = get_tar(client, lease, "d")
    m = {i.name: i for i in t.getmembers()}
    assert "fifo" not in m and len(m) == 15, list(m)
    assert [i.name for i in t.getmembers() if "/" not in i.name] == sorted([n for n in m if "/" not in n], key=os.fsencode)
    assert m["a"].mode == 0o755 and m["a"].mtime == pytest.approx(981173106.789, abs=1e-3) and t.extractfile("a").read() == b"hello"
    assert m["sub"].isdir() and m["sub"].mode == 0o700 and m["sub/big"].mode == 0o600 and m["zero"].size == 0
    assert m["link"].issym() and m["link"].linkname == "sub/big" and m["out"].linkname == "/etc/passwd" and m["self"].issym()
    assert t.extractfile("n\udcff").read() == b"x\n" and t.extractfile("ü").read() == b"y\n"
    assert (m["a"].uid, m["a"].gid) == (1000, 1000)
    assert t.extractfile("sub/big").read() == client.read(lease, "d/sub/big").body
    assert [i.name for i in get_tar(client, lease, "d/a").getmembers()] == ["a"]
    assert [i.name for i in get_tar(client, lease, "d/link").getmembers()] == ["big"]
    assert get_tar(client, lease, "d/empty").getmembers() == []
    assert len(get_tar(client, lease, "/workspace").getmembers()) == 16
    r = client.request("HEAD", tar_url(lease, "d"))
    assert (r.status, r.body, r.header("Content-Type")) == (200, b"", "application/x-tar")
    refused(client.get(tar_url(lease, "none")), 404, "not_found")
    refused(client.get(tar_url(lease, "d/fifo")), 409, "not_a_regular_file")
    refused(client.get(tar_url(lease, "d/a/x")), 409, "not_a_directory")
    client.exec(lease, "mkdir -m 0 locked")
    refused(client.get(tar_url(lease, "locked")), 403, "forbidden")
    refused(client.get(f"/leases/{lease}/files/tar"), 400, "invalid_request", "path")
    # What cannot be read in the middle ends the answer early: never an archive that only looks whole.
    with pytest.raises((http.client.HTTPException, OSError)):
        client.get(tar_url(lease, "."))


LOOK = "cd %s && find . -printf '%%P %%y %%m %%l %%T+ %%s\\n' | grep -v fifo | sed -E 's/^(.* d .*) [0-9]+$/\\1/' | sort && find . -type f -exec sha256sum {} + | sort -k2"


def test_tar_round_trip(client, lease):
    client.exec(lease, SETUP)
    data = client.get(tar_url(lease, "d")).body
    r = put_tar(client, lease, "new/copy", data, outside_links="1")
    assert r.status == 201 and r.json() == {"path": "new/copy", "entries": 15, "bytes": 300000 + 5 + 2 + 2 + 2}, r
    before, after = client.exec(lease, LOOK % "d"), client.exec(lease, LOOK % "new/copy")
    assert before["returncode"] == after["returncode"] == 0
    strip = lambda x: [line for line in output(x).splitlines() if not line.startswith(b" d ")]  # the top itself
    assert strip(before) == strip(after)
    assert client.exec(lease, "stat -c %U:%G new/copy/a new/copy/sub new new/copy/link | sort -u")["stdout"] == "sandbox:sandbox\n"
    refused(put_tar(client, lease, "again", data), 400, "invalid_request", "body")
    assert names(client, lease) == sorted(set(names(client, lease))) and stat(client, lease, "again").status == 404
    assert not [n for n in names(client, lease) if ".sandgate" in n]


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("compress", ["", "gz", "zst"])
def test_tar_dialects(client, lease, format, compress):
    long = "/".join(["x" * 50] * 4)
    data = make_tar(("./", None), ("./a", b"1" * 1000), ("b/c/d", b"2"), (long, b"3"), ("s", {"type": tarfile.SYMTYPE, "linkname": "b/../a"}),
                    ("h", {"type": tarfile.LNKTYPE, "linkname": "./a"}), ("su", {"mode": 0o4755, "data": b"#"}), ("a2//./b", b"4"), format=format)
    if compress == "gz":
        data = gzip.compress(data)
    elif compress == "zst":
        data = subprocess.run(["zstd", "-c"], input=data, capture_output=True, check=True).stdout
    r = put_tar(client, lease, "t", data, {"Repr-Digest": f"sha-256=:{digest(data)}:"})
    assert r.status == 201 and r.json()["entries"] == 8, r
    assert client.read(lease, "t/a").body == b"1" * 1000 == client.read(lease, "t/h").body
    assert client.read(lease, "t/" + long).body == b"3" and client.read(lease, "t/a2/b").body == b"4"
    assert stat(client, lease, "t/s").json()["target"] == "b/../a" and client.read(lease, "t/s").body == b"1" * 1000
    assert stat(client, lease, "t/su").json()["mode"] == "0755", "no set-user-id"
    assert client.exec(lease, "stat -c '%h %i' t/a t/h | sort -u | wc -l; stat -c %Y t/a t/b/c/d t/s t | sort -u")["stdout"] == "1\n1234567890\n"


def test_tar_merges(client, lease):
    client.exec(lease, "mkdir -p t/keep t/d; echo old > t/f; echo old > t/keep/x; echo 1 > t/d/mine; ln -s /tmp t/l; chmod 711 t/d; cp t/f before; "
                       "ln t/f other")
    r = put_tar(client, lease, "t", make_tar(("f", b"new"), ("d", {"type": tarfile.DIRTYPE, "mode": 0o700}), ("d/his", b"2"), ("l", b"no link"),
                                             ("ro", {"type": tarfile.DIRTYPE, "mode": 0o555}), ("ro/x", b"3")))
    assert r.status == 200 and r.json()["entries"] == 6, r
    assert client.read(lease, "t/f").body == b"new" and client.read(lease, "other").body == b"old\n", "files are replaced, not written over"
    assert names(client, lease, "t") == ["d", "d/his", "d/mine", "f", "keep", "keep/x", "l", "ro", "ro/x"]
    assert stat(client, lease, "t/d").json()["mode"] == "0711" and stat(client, lease, "t/ro").json()["mode"] == "0555"
    assert stat(client, lease, "t/l").json()["type"] == "file", "a link is replaced, never followed"
    # A directory where a file is, and the reverse: nothing at all is moved.
    for bad in (("f/x", b""), ("d", b"")):
        r = put_tar(client, lease, "t", make_tar(("a-first", b"1"), ("keep/x", b"changed"), bad))
        assert r.status == 409 and r.code in ("not_a_directory", "is_a_directory") and bad[0].split("/")[0] in r.json()["detail"], r
        assert names(client, lease, "t") == ["d", "d/his", "d/mine", "f", "keep", "keep/x", "l", "ro", "ro/x"]
        assert client.read(lease, "t/keep/x").body == b"old\n"
    client.exec(lease, "ln -s keep t/tolink")
    refused(put_tar(client, lease, "t", make_tar(("tolink/x", b"1"))), 409, "not_a_directory")
    assert put_tar(client, lease, "t/tolink", make_tar(("y", b"1"))).status == 200 and client.read(lease, "t/keep/y").body == b"1"
    refused(put_tar(client, lease, "t/f", make_tar(("y", b"1"))), 409, "not_a_directory")
    refused(put_tar(client, lease, "/usr/share", make_tar(("y", b"1"))), 403, "forbidden")
    refused(put_tar(client, lease, "t/ro", make_tar(("y", b"1"))), 403, "forbidden")


HOSTILE = {
    "absolute": ([("/etc/x", b"")], "unsafe_path"),
    "dotdot": ([("a/../../x", b"")], "unsafe_path"),
    "dotdot inside": ([("a/../x", b"")], "unsafe_path"),
    "link absolute": ([("l", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"})], "unsafe_link"),
    "link up": ([("a/l", {"type": tarfile.SYMTYPE, "linkname": "../../x"})], "unsafe_link"),
    "link through": ([("a/l", {"type": tarfile.SYMTYPE, "linkname": "b/../../../x"})], "unsafe_link"),
    "hard absolute": ([("h", {"type": tarfile.LNKTYPE, "linkname": "/etc/passwd"})], "unsafe_link"),
    "hard up": ([("h", {"type": tarfile.LNKTYPE, "linkname": "../x"})], "unsafe_link"),
    "fifo": ([("p", {"type": tarfile.FIFOTYPE})], "unsupported_entry"),
    "block": ([("b", {"type": tarfile.BLKTYPE, "devmajor": 8})], "unsupported_entry"),
    "char": ([("c", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3})], "unsupported_entry"),
    "top is a file": ([(".", b"x")], "unsafe_path"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_tars_leave_nothing(client, lease, what):
    entries, reason = HOSTILE[what]
    r = put_tar(client, lease, "t", make_tar(("first", b"1"), *entries))
    refused(r, 400, "invalid_request", "body")
    assert r.json()["reason"] == reason, r
    assert names(client, lease) == []


def test_links_of_an_archive_are_not_followed(client, lease):
    client.exec(lease, "mkdir victim; echo safe > victim/f")
    for link in ("victim", "/workspace/victim"):
        r = put_tar(client, lease, ".", make_tar(("l", {"type": tarfile.SYMTYPE, "linkname": link}), ("l/f", b"pwned")), outside_links="1")
        assert r.status == 403 and r.code == "path_refused", r
        r = put_tar(client, lease, "t", make_tar(("l", {"type": tarfile.SYMTYPE, "linkname": link}), ("h", {"type": tarfile.LNKTYPE, "linkname": "l/f"})),
                    outside_links="1")
        assert r.status == 403 and r.code == "path_refused", r
    # Written to, a link is replaced.
    assert put_tar(client, lease, "t", make_tar(("l", {"type": tarfile.SYMTYPE, "linkname": "../victim/f"}), ("l", b"own")), outside_links="1").status == 201
    assert client.read(lease, "victim/f").body == b"safe\n" and client.read(lease, "t/l").body == b"own"
    r = put_tar(client, lease, "u", make_tar(("h", {"type": tarfile.LNKTYPE, "linkname": "missing"})))
    refused(r, 404, "not_found")
    assert names(client, lease) == ["t", "t/l", "victim", "victim/f"]


def test_the_first_failure_in_an_archive_counts(client, lease):
    """Orders are given ahead of their answers: one that fails must end it all the same, by its own name."""
    many = [(f"d{i % 7}/f{i}", b"x") for i in range(400)]
    r = put_tar(client, lease, "t", make_tar(*many, ("bad", {"type": tarfile.LNKTYPE, "linkname": "missing"}),
                                             ("worse", {"type": tarfile.LNKTYPE, "linkname": "missing too"}), *many))
    refused(r, 404, "not_found")
    assert r.json()["detail"].startswith("bad"), r
    assert names(client, lease) == []
    assert put_tar(client, lease, "t", make_tar(*many, *many)).status == 201
    assert len(names(client, lease)) == 1 + 7 + 400


def test_what_is_no_tar(client, lease):
    good = make_tar(("a", b"x" * 5000))
    for body in (b"", b"hello", b"\x1f\x8b" + b"junk" * 100, good[:700], gzip.compress(good)[:-20], b"PK\x03\x04" + b"\0" * 2000, good[:512]):
        r = put_tar(client, lease, "t", body)
        refused(r, 400, "invalid_request", "body")
        assert r.json()["reason"] == "malformed_archive", r
    r = put_tar(client, lease, "t", good, {"Repr-Digest": f"sha-256=:{digest(b'')}:"})
    refused(r, 400, "invalid_request", "Repr-Digest")
    refused(put_tar(client, lease, "t", good, {"Content-Encoding": "gzip"}), 415, "unsupported_media_type")
    refused(put_tar(client, lease, "t", good, {"If-None-Match": "*"}), 400, "invalid_request", "If-None-Match")
    assert put_tar(client, lease, "t", make_tar()).status == 201, "an empty archive is an empty directory"
    assert names(client, lease) == ["t"]


def test_archives_that_grow_too_much(client, lease):
    bomb = gzip.compress(make_tar(("zeros", b"\0" * (100 << 20))), 9)
    r = put_tar(client, lease, "t", bomb)
    assert r.status == 413 and r.code == "payload_too_large" and r.json()["reason"] == "expands_too_much", r
    # A sparse file of 1 TiB in a few hundred bytes (GNU 1.0 in pax).
    t = make_tar(("GNUSparseFile.0/s", {"data": b"1\n1099511627775\n1\n".ljust(512, b"\0") + b"x", "pax_headers": {
        "GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "s", "GNU.sparse.realsize": "1099511627776"}}))
    r = put_tar(client, lease, "t", t)
    assert r.status == 413 and r.json()["reason"] in ("too_many_bytes", "expands_too_much"), r
    # One that is harmless stays sparse.
    t = make_tar(("GNUSparseFile.0/s", {"data": b"1\n50000000\n1\n".ljust(512, b"\0") + b"x", "pax_headers": {
        "GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "s", "GNU.sparse.realsize": "50000001"}}))
    assert put_tar(client, lease, "t", t).status == 201
    assert client.exec(lease, "stat -c %s t/s; [ $(stat -c %b t/s) -lt 1000 ] && echo sparse; tail -c1 t/s")["stdout"] == "50000001\nsparse\nx"
    assert names(client, lease) == ["t", "t/s"]


def test_tar_into_a_full_sandbox():
    with Server({"local_bwrap": {"size": 1, "disk_max": "24MiB"}}) as s:
        c = s.client()
        id = c.lease()
        big = make_tar(("d/a", b"x"), ("b", b"z" * (30 << 20)))
        for body in (big, gzip.compress(make_tar(("d/a", b"x"), ("b", os.urandom(1 << 20) + b"z" * (30 << 20))))):
            r = put_tar(c, id, "t", body)
            assert r.status == 507 and r.code == "sandbox_disk_full", r
            assert names(c, id) == []
        # The archive gives its space back while it is unpacked: both together would not fit.
        assert put_tar(c, id, "t", make_tar(*[(f"f{i}", b"z" * (1 << 20)) for i in range(14)])).status == 201
        assert len(names(c, id)) == 15
        c.terminate(id)


def settled(server, client, lease, want):
    wait_until(lambda: names(client, lease) == want, what="nothing left behind")


def test_a_tar_upload_that_is_cut(server, client, lease):
    client.exec(lease, "mkdir t; echo old > t/f")
    data = make_tar(("f", b"new"), ("big", b"y" * 3_000_000))
    for chunked in (False, True):
        s = server.connect()
        head = f"PUT {tar_url(lease, 't')} HTTP/1.1\r\nHost: x\r\n"
        s.sendall((head + ("Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(data) if chunked else f"Content-Length: {len(data)}\r\n\r\n")).encode())
        s.sendall(data[:-1000])
        s.close()
    settled(server, client, lease, ["t", "t/f"])
    assert client.read(lease, "t/f").body == b"old\n"


def test_a_client_that_leaves_during_unpacking(server, client, lease):
    data = make_tar(*[(f"d{i % 50}/f{i}", b"x") for i in range(4000)])
    s = server.connect()
    s.sendall(f"PUT {tar_url(lease, 't')} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    wait_until(lambda: [n for n in names(client, lease) if ".sandgate" in n], what="unpacking")
    s.close()
    # It may have been just done: then all of it is there, else nothing.
    wait_until(lambda: not [n for n in names(client, lease) if ".sandgate" in n], what="the stage is gone")
    assert client.exec(lease, "find t -type f 2>/dev/null | wc -l")["stdout"].strip() in ("0", "4000")


def test_a_lease_that_ends_during_a_tar(server, client):
    id = client.lease()
    client.exec(id, "for i in $(seq 40); do head -c 1000000 /dev/zero > $i; done")
    down, up = server.connect(), server.connect()
    down.sendall(f"GET {tar_url(id, '.')} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert down.recv(100).startswith(b"HTTP/1.1 200")
    up.sendall(f"PUT {tar_url(id, 't')} HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n".encode() + make_tar(("a", b"x" * 50000))[:20000])
    assert client.terminate(id)["terminated"] is True
    up.sendall(b"y" * 80000)  # the answer comes when the body is through
    assert b" 410 " in up.recv(1000).split(b"\r\n")[0]
    got = b""
    down.settimeout(30)
    try:
        while piece := down.recv(1 << 20):
            got += piece
    except ConnectionResetError:
        pass
    assert not got.endswith(b"0\r\n\r\n"), "the client sees that it is not whole"
    server.wait_slots(4)


def test_tar_of_many_and_of_changing_files(server, client, lease, soak):
    client.exec(lease, "mkdir many; cd many; for i in $(seq 3000); do echo $i > f$i; done", timeout=60)
    m = get_tar(client, lease, "many").getmembers()
    assert len(m) == 3000
    client.exec(lease, "(while :; do for i in 1 2 3 4 5; do echo x > many/t$i; done; rm -f many/t*; ln -s /etc many/swap; rm many/swap; mkdir many/swap; "
                       "rmdir many/swap; done) >/dev/null 2>&1 &")
    for _ in range(20 if soak else 2):
        got = {i.name for i in get_tar(client, lease, "many").getmembers()}
        assert {f"f{i}" for i in range(1, 3001)} <= got


def test_a_large_tar_moves_through_constant_memory(soak):
    total = (256 << 20) if soak else (64 << 20) if SLOW == 1 else (32 << 20)
    with Server({"local_bwrap": {"size": 1, "disk_max": "2GiB", "memory_max": "2GiB"}}) as s:
        c = s.client()
        id = c.lease()
        c.exec(id, f"mkdir d; head -c {total} /dev/zero > d/big; echo 1 > d/small")
        get_tar(c, id, "d/small")
        put_tar(c, id, "t", make_tar(("a", b"x" * 1000000)))
        before = s.rss_kib()
        h = http.client.HTTPConnection("127.0.0.1", s.port, timeout=300)
        h.request("GET", tar_url(id, "d"))
        answer, got = h.getresponse(), 0
        while piece := answer.read(1 << 18):
            got += len(piece)
        assert got > total

        def body():
            m = tarfile.TarInfo("big")
            m.size = total
            yield m.tobuf()
            for _ in range(total >> 18):
                yield b"\0" * (1 << 18)
            yield b"\0" * 1024

        r = c.put(tar_url(id, "u"), body(), headers={"Transfer-Encoding": "chunked"}, timeout=300)
        assert r.status == 201 and r.json()["bytes"] == total, r
        if SLOW == 1:
            assert s.rss_kib() - before < 16 * 1024


# ---- who is refused need not send ----

@pytest.mark.parametrize("where, status", [("files?path=/workspace/d", 409), ("files?path=/usr/bin/x", 403), ("files?path=/workspace/plain/x", 409),
                                           ("files/tar?path=/workspace/plain", 409), ("files/tar?path=/usr/lib/x", 403)])
def test_a_refusal_comes_before_the_body(server, client, lease, where, status):
    client.exec(lease, "mkdir d; echo x > plain")
    head = f"PUT /leases/{lease}/{where} HTTP/1.1\r\nHost: h\r\nContent-Type: application/octet-stream\r\nContent-Length: 1000000\r\nExpect: 100-continue\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as c:
        c.sendall(head.encode())
        first = c.makefile("rb").readline()
        assert first.startswith(f"HTTP/1.1 {status} ".encode()), first
    assert client.exec(lease, "cat plain; ls -A d; ls -A /usr/lib/x /usr/bin/x 2>/dev/null; ls -A | grep -v -e '^d$' -e '^plain$'")["stdout"] == "x\n"


@pytest.mark.parametrize("where, body", [("files?path=new", b"x" * 1000), ("files/tar?path=t", None)])
def test_who_is_not_refused_is_asked(server, client, lease, where, body):
    body = body if body is not None else make_tar(("f", b"y"))
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as c:
        c.sendall(f"PUT /leases/{lease}/{where} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n".encode())
        f = c.makefile("rb")
        assert f.readline().startswith(b"HTTP/1.1 100 ") and f.readline() == b"\r\n"
        c.sendall(body)
        assert f.readline()[9:12] in (b"200", b"201")
