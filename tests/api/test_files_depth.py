"""Files in depth: conditions, digests, names, paging, moves, and directories as tar."""
import base64
import concurrent.futures
import email.utils
import hashlib
import urllib.parse

import pytest

from harness import SLOW, Server, wait_until


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
        assert (r.status, r.body, r.header("ETag")) == (304, b"", tag), (value, r)
    assert client.request("HEAD", url, headers={"If-None-Match": tag}).status == 304
    for value in ('"x"', 'W/"a-b"', '"0' + tag[1:]):
        assert client.get(url, headers={"If-None-Match": value}).status == 200, value
    for value in (tag, "*", f'"x",{tag}'):
        assert client.get(url, headers={"If-Match": value}).status == 200, value
    for value in ('"x"', "W/" + tag):
        refused(client.get(url, headers={"If-Match": value}), 412, "precondition_failed")
    for value in (tag[:-1], "x", f"{tag} {tag}", "", ","):
        refused(client.get(url, headers={"If-Match": value}), 400, "invalid_request", "If-Match")
    refused(client.get(url, headers={"If-None-Match": ",".join(['"1-2-3-4"'] * 17)}), 400, "invalid_request", "If-None-Match")
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


def test_lists_are_bounded(client, lease):
    client.exec(lease, ["perl", "-e", "for (1..10050) { open(F, '>', sprintf('f%05d', $_)); }"], timeout=60)
    items, truncated = pages(client, lease, 1000)
    names = [i["name"] for i in items]
    assert truncated is True and len(names) == 10000 and names == sorted(set(names))


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
