"""Names and paths: any bytes, any length that the kernel takes, and every route under the same name."""
import http.client
import io
import tarfile
import urllib.parse

import pytest

from harness import output


def percent(raw):
    """Everything escaped, as the most careful of clients does."""
    return "".join(f"%{b:02X}" for b in raw)


def url(lease, route, raw, **query):
    return f"/leases/{lease}/{route}?" + urllib.parse.urlencode(query) + ("&" if query else "") + "path=" + percent(raw)


def listed(client, lease, path=".", **query):
    items, cursor, truncated = [], "", False
    while True:
        page = client.get(f"/leases/{lease}/files/list?" + urllib.parse.urlencode(dict(query, path=path)) + cursor).json()
        items += page["items"]
        truncated = truncated or page["truncated"]
        if not page["next_cursor"]:
            return items, truncated
        cursor = "&cursor=" + page["next_cursor"]


def refused(r, status, code, field=None):
    assert r.status == status and r.code == code, r
    assert field is None or r.json()["field"] == field, r


NAMES = [b"plain", b"a b", b"new\nline", b"tab\tcr\r", b'q"u\'o`t$e\\', b"%41%", b"a+b&c=d?e#f", "ü☃".encode(), b"\xff\xfe", b"\xc3", b"half\xe2\x98",
         b"-rf", b"*", b"~", b"...", b"\x01\x7f", b"\xed\xa0\x80", b"n" * 255, "ü".encode() * 127, b"\xff" * 255]


@pytest.mark.parametrize("raw", NAMES, ids=lambda n: ascii(n)[:30])
def test_every_route_takes_every_name(client, lease, raw):
    data = b"data of " + raw
    assert client.put(url(lease, "files", raw), data).status == 201
    assert client.get(url(lease, "files", raw)).body == data
    assert client.put(url(lease, "files", raw, append="1"), b"+").status == 200
    s = client.get(url(lease, "files/stat", raw)).json()
    assert s["size"] == len(data) + 1
    items, _ = listed(client, lease)
    assert len(items) == 1 and items[0]["etag"] == s["etag"]
    encoded = items[0].get("name_encoding")
    shown = items[0]["name"]
    assert (urllib.parse.unquote_to_bytes(shown) if encoded else shown.encode()) == raw
    assert (encoded == "percent") == (s.get("path_encoding") == "percent") and shown == s["path"]
    # What the list shows is enough to move it.
    move = {"from": shown, "to": "d/" + shown}
    if encoded:
        move.update(from_encoding="percent", to_encoding="percent")
    assert client.post(f"/leases/{lease}/files/move", move).status == 204
    assert client.get(url(lease, "files", b"d/" + raw)).body == data + b"+"
    assert output(client.exec(lease, ["find", "d", "-type", "f", "-printf", "%f"])) == raw
    # And through an archive.
    tar = client.get(url(lease, "files/tar", b"d")).body
    with tarfile.open(fileobj=io.BytesIO(tar), encoding="utf-8", errors="surrogateescape") as t:
        assert [m.name.encode("utf-8", "surrogateescape") for m in t.getmembers()] == [raw]
    assert client.put(url(lease, "files/tar", b"e"), tar).status == 201
    assert client.get(url(lease, "files", b"e/" + raw)).body == data + b"+"
    assert client.delete(url(lease, "files", b"e/" + raw)).status == 204
    assert client.post(url(lease, "files/mkdir", raw)).status == 201
    assert client.delete(url(lease, "files", raw)).status == 204
    assert output(client.exec(lease, ["find", "d", "e", "-mindepth", "1", "-printf", "%f"])) == raw


def test_encodings_of_a_move(client, lease):
    client.write(lease, "a%41", b"1")
    for body, field in (({"from": "a%41", "from_encoding": "base64", "to": "b"}, "from_encoding"), ({"from": "%zz", "from_encoding": "percent", "to": "b"}, "from"),
                        ({"from": "%00", "from_encoding": "percent", "to": "b"}, "from"), ({"from": "", "from_encoding": "percent", "to": "b"}, "from"),
                        ({"from": "a%41", "to": "%", "to_encoding": "percent"}, "to"), ({"from": "a%41", "to": 1}, "to"),
                        ({"from_encoding": "percent", "to": "b"}, "from"), ({"from": "a\0b", "to": "b"}, None)):
        refused(client.post(f"/leases/{lease}/files/move", body), 400, "invalid_request", field)
    refused(client.post(f"/leases/{lease}/files/move", {"from": "a%41", "from_encoding": "percent", "to": "b"}), 404, "not_found")
    assert client.post(f"/leases/{lease}/files/move", {"from": "a%41", "to": "%FF+", "to_encoding": "percent"}).status == 204
    assert client.get(url(lease, "files", b"\xff+")).body == b"1"


def test_names_that_are_too_long(client, lease):
    for raw in (b"n" * 256, b"d/" + b"n" * 256, b"n" * 256 + b"/x", b"/tmp/" + b"n" * 256):
        for r in (client.put(url(lease, "files", raw), b""), client.get(url(lease, "files", raw)), client.get(url(lease, "files/stat", raw)),
                  client.delete(url(lease, "files", raw)), client.post(url(lease, "files/mkdir", raw)), client.get(url(lease, "files/list", raw)),
                  client.get(url(lease, "files/tar", raw)), client.post(f"/leases/{lease}/files/move", {"from": "x", "to": raw.decode()})):
            assert r.code in ("path_refused", "not_found"), (raw[:5], r)
    assert listed(client, lease) == ([], False)


def test_the_longest_paths(client, lease):
    raw = b"/tmp/" + b"/".join([b"x" * 255] * 15) + b"/"
    raw += b"y" * (4095 - len(raw))
    assert len(raw) == 4095
    assert client.put(url(lease, "files", raw), b"deep").status == 201
    assert client.get(url(lease, "files", raw)).body == b"deep"
    assert client.get(url(lease, "files/stat", raw)).json()["path"] == raw.decode()
    items, truncated = listed(client, lease, "/tmp", recursive="1", limit=1)
    assert len(items) == 16 and not truncated and items[-1]["name"] == raw[5:].decode()
    other = raw[:-1] + b"z"
    assert client.post(f"/leases/{lease}/files/move", {"from": raw.decode(), "to": other.decode()}).status == 204
    tar = client.get(url(lease, "files/tar", b"/tmp")).body
    r = client.put(url(lease, "files/tar", b"/tmp"), tar)
    refused(r, 400, "invalid_request", "body")
    assert r.json()["reason"] == "unsafe_path", "what is unpacked needs room for the name of the stage"
    shorter = raw[:3900].rstrip(b"/")
    tar = client.get(url(lease, "files/tar", shorter[:3600].rpartition(b"/")[0])).body
    assert client.put(url(lease, "files/tar", b"/tmp"), tar).status == 200
    assert client.put(url(lease, "files", raw), b"again").status == 201
    assert client.delete(url(lease, "files", raw)).status == 204
    assert client.delete(url(lease, "files", b"/tmp/" + b"x" * 255, recursive="1")).status == 204
    for longer in (raw + b"z", b"z" * 4096):
        for r in (client.put(url(lease, "files", longer), b""), client.get(url(lease, "files/stat", longer)), client.post(url(lease, "files/mkdir", longer)),
                  client.put(url(lease, "files/tar", longer), b"")):
            refused(r, 400, "invalid_request", "path")
        refused(client.post(f"/leases/{lease}/files/move", {"from": longer.decode(), "to": "x"}), 400, "invalid_request", "from")
    # Relative, it becomes too long only with what it starts at.
    refused(client.put(url(lease, "files", b"a/" * 2045 + b"b"), b""), 403, "path_refused")
    assert listed(client, lease) == ([], False)
    assert client.get("/" + "x" * 20000).status == 414


def test_trees_deeper_than_any_path(client, lease):
    """A command can make what no path reaches; it is listed in part and says so, and it can be removed."""
    client.exec(lease, ["python3", "-c", "import os\nfor i in range(300):\n os.mkdir('d' * 50); open('f', 'w').close(); os.chdir('d' * 50)"])
    items, truncated = listed(client, lease, recursive="1")
    assert truncated and len(items) >= 100
    with pytest.raises(http.client.IncompleteRead):  # an archive has all of it, or no end
        client.get(url(lease, "files/tar", b"."))
    assert client.delete(url(lease, "files", b"d" * 50, recursive="1")).status == 204
    assert [i["name"] for i in listed(client, lease)[0]] == ["f"]


def test_loops_of_links(client, lease):
    client.exec(lease, "mkdir -p a/b; ln -s .. a/b/up; ln -s . a/self; ln -s loop loop; ln -s y x; ln -s x y; echo 1 > a/f")
    items, truncated = listed(client, lease, recursive="1")
    assert sorted(i["name"] for i in items) == ["a", "a/b", "a/b/up", "a/f", "a/self", "loop", "x", "y"] and not truncated
    assert client.read(lease, "a/b/up/self/b/up/f").body == b"1\n"
    for r in (client.read(lease, "loop"), client.read(lease, "x/f"), client.write(lease, "loop", b""), client.write(lease, "x", b"", append="1"),
              client.post(url(lease, "files/mkdir", b"x/y")), client.get(url(lease, "files/list", b"loop")), client.get(url(lease, "files/tar", b"loop"))):
        refused(r, 403, "path_refused")
    assert client.get(url(lease, "files/stat", b"loop")).json()["type"] == "symlink"
    with tarfile.open(fileobj=io.BytesIO(client.get(url(lease, "files/tar", b".")).body)) as t:
        assert {m.name: m.issym() for m in t.getmembers()} == {"a": False, "a/b": False, "a/b/up": True, "a/f": False, "a/self": True, "loop": True,
                                                             "x": True, "y": True}
    assert client.delete(url(lease, "files", b"loop")).status == 204
    assert client.delete(url(lease, "files", b"a", recursive="1")).status == 204


def test_a_slash_at_the_end_means_a_directory(client, lease):
    client.exec(lease, "mkdir d; echo 1 > f; ln -s d l; ln -s f lf")
    for r in (client.read(lease, "f/"), client.get(url(lease, "files/stat", b"f/")), client.delete(url(lease, "files", b"f/")),
              client.delete(url(lease, "files", b"f//")), client.delete(url(lease, "files", b"lf/")), client.post(url(lease, "files/mkdir", b"f/")),
              client.post(f"/leases/{lease}/files/move", {"from": "f/", "to": "g"}), client.post(f"/leases/{lease}/files/move", {"from": "f", "to": "g/"})):
        refused(r, 409, "not_a_directory")
    refused(client.write(lease, "new/", b""), 409, "is_a_directory")
    assert client.read(lease, "f").body == b"1\n"
    assert client.post(url(lease, "files/mkdir", b"e/")).status == 201
    assert client.post(f"/leases/{lease}/files/move", {"from": "e/", "to": "d/e/"}).status == 204
    assert client.delete(url(lease, "files", b"d/e/")).status == 204
    assert sorted(i["name"] for i in listed(client, lease)[0]) == ["d", "f", "l", "lf"]


@pytest.mark.parametrize("path", ["/", "//", ".", "..", "d/.", "d/..", "./", "/workspace", "/tmp", "/home/sandbox"])
def test_the_places_themselves_stay(client, lease, path):
    client.exec(lease, "mkdir d; touch d/x")
    for r in (client.delete(client.file_url(lease, path)), client.delete(client.file_url(lease, path, recursive="1")),
              client.post(f"/leases/{lease}/files/move", {"from": path, "to": "/tmp/other"}),
              client.post(f"/leases/{lease}/files/move", {"from": "d", "to": path})):
        assert r.status in (403, 409), r
    refused(client.write(lease, path, b""), 409, "is_a_directory")
    assert client.get(url(lease, "files/stat", b"d/x")).status == 200
    assert client.post(url(lease, "files/mkdir", path.encode())).status == 201, "it is there already"


def test_directories_made_twice(client, lease):
    r = client.post(url(lease, "files/mkdir", b"a/b", mode="0700"))
    assert r.status == 201 and r.json()["mode"] == "0700" and client.get(url(lease, "files/stat", b"a")).json()["mode"] == "0755"
    client.write(lease, "a/b/keep", b"1")
    r = client.post(url(lease, "files/mkdir", b"a/b", mode="0755"))
    assert r.status == 201 and r.json()["mode"] == "0700", "one that is there is left as it is"
    assert client.read(lease, "a/b/keep").body == b"1"
    for path in (b"a/b/keep", b"a/b/keep/x"):
        refused(client.post(url(lease, "files/mkdir", path)), 409, "not_a_directory")
