"""Whole directories as archives, both ways."""
import gzip
import io
import tarfile

import pytest

pytestmark = pytest.mark.needs("links")


def made(entries, format=tarfile.PAX_FORMAT):
    """A tar of {name: bytes, None for a directory, or the text of a link}."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as tar:
        for name, what in entries.items():
            info = tarfile.TarInfo(name)
            info.mtime = 1700000000
            info.mode = 0o755 if what is None or name.endswith(".sh") else 0o644
            if what is None:
                info.type = tarfile.DIRTYPE
            elif isinstance(what, str):
                info.type, info.linkname = tarfile.SYMTYPE, what
            else:
                info.size = len(what)
            tar.addfile(info, io.BytesIO(what) if isinstance(what, bytes) else None)
    return out.getvalue()


def put(box, path, data, **query):
    return box.client.put(box.sub("tar", path, **query), data, headers={"Content-Type": "application/x-tar"})


def got(box, path):
    r = box.client.get(box.sub("tar", path))
    assert r.status == 200 and r.header("Content-Type") == "application/x-tar", r
    return tarfile.open(fileobj=io.BytesIO(r.body))


TREE = {"d": None, "d/run.sh": b"#!/bin/sh\necho ran\n", "d/noise": bytes(range(256)) * 1000, "d/empty": b"", "d/link": "noise", "d/e": None, "x" * 90 + "/" + "y" * 90: b"deep", "ü\nñ": b"odd"}


def test_round_trip(box):
    r = put(box, "to", made(TREE))
    assert r.status == 201, r
    tar = got(box, "to")
    names = {m.name.rstrip("/") for m in tar.getmembers()} - {".", ""}
    assert {n.removeprefix("./") for n in names} >= set(TREE), names
    for m in tar.getmembers():
        name = m.name.removeprefix("./").rstrip("/")
        what = TREE.get(name)
        if isinstance(what, bytes):
            assert tar.extractfile(m).read() == what and m.mtime == 1700000000 and m.mode == (0o755 if name.endswith(".sh") else 0o644), name
        elif isinstance(what, str):
            assert m.issym() and m.linkname == what
    assert box.read("to/d/noise").body == TREE["d/noise"] and box.stat("to/d/link").json()["type"] == "symlink"


@pytest.mark.needs("shell")
def test_commands_see_what_came(box):
    assert put(box, "to", made(TREE)).status == 201
    assert box.out(["./to/d/run.sh"]) == "ran\n" and box.out("readlink to/d/link; touch to/d/new to/new; ls -A to/d | wc -l").split() == ["noise", "6"]
    box.run("mkfifo to/pipe; ln -s /etc to/etc; printf new > to/d/new")
    members = {m.name.removeprefix("./"): m for m in got(box, "to").getmembers()}
    assert members["etc"].issym() and "pipe" not in members and members["d/new"].size == 3


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_dialects_and_compression(box, format):
    data = made({"a": b"1", "b/c": b"2"}, format)
    assert put(box, "plain", data).status == 201 and put(box, "zipped", gzip.compress(data)).status == 201
    assert box.read("plain/b/c").body == b"2" == box.read("zipped/b/c").body


def test_merges(box):
    box.write("to/kept", b"kept")
    box.write("to/d/old", b"old")
    box.write("to/d/noise", b"other")
    r = put(box, "to", made(TREE))
    assert r.status == 200, r
    assert box.read("to/kept").body == b"kept" and box.read("to/d/old").body == b"old" and box.read("to/d/noise").body == TREE["d/noise"]
    before = box.names(recursive="1")
    r = put(box, "to", made({"new": b"n", "kept/x": b"x"}))
    assert r.status == 409 and r.code == "not_a_directory" and box.names(recursive="1") == before, r


# What is refused, as one entry and its reason.
HOSTILE = [({"../x": b""}, "unsafe_path"), ({"/etc/x": b""}, "unsafe_path"), ({"a/../../x": b""}, "unsafe_path"), ({"l": "../../x"}, "unsafe_link"), ({"l": "/etc/passwd"}, "unsafe_link")]


def test_hostile_archives_change_nothing(box):
    for entries, reason in HOSTILE:
        r = put(box, "to", made({"first": b"1", **entries}))
        assert r.status == 400 and r.json()["reason"] == reason, (entries, r)
    for data in (b"no tar at all", made(TREE)[:3000], b"\0" * 100):
        r = put(box, "to", data)
        assert r.status == 400 and r.json()["reason"] == "malformed_archive", r
    assert put(box, "to", made({"first": b"1", "d/l": "x", "d/l/y": b"2"}), outside_links="1").status in (400, 403, 409)
    assert box.names() == []


def test_what_is_not_there(box):
    r = box.client.get(box.sub("tar", "no"))
    assert r.status == 404 and r.code == "not_found", r
    box.write("f", b"one file")
    member, = got(box, "f").getmembers()
    assert member.size == 8
    r = put(box, "f", made({"x": b""}))
    assert r.status == 409 and r.code == "not_a_directory", r
