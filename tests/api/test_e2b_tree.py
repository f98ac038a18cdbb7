"""Directories of E2B's sandboxes as archives: few trips, whatever is in them, and nothing half done."""
import http.client
import io
import tarfile

import pytest

from e2b_rig import server_of, standin  # noqa: F401
from harness import wait_until
from tars import make_tar


@pytest.fixture(scope="module")
def server(standin):
    with server_of(standin) as s:
        yield s


@pytest.fixture
def lease(server, standin):
    standin.order()
    id = server.client().lease()
    yield id
    server.client().terminate(id)


def put(c, lease, data, path="to", **query):
    more = "".join(f"&{k}={v}" for k, v in query.items())
    return c.put(f"/leases/{lease}/files/tar?path={path}{more}", data, headers={"Content-Type": "application/x-tar"})


def get(c, lease, path="to"):
    r = c.get(f"/leases/{lease}/files/tar?path={path}")
    assert r.status == 200, r
    return {m.name: m for m in tarfile.open(fileobj=io.BytesIO(r.body)).getmembers()}


def names(c, lease):
    return [f["name"] for f in c.get(f"/leases/{lease}/files/list?path=.&recursive=1").json()["items"]]


def test_thousands_of_entries_are_a_handful_of_calls(server, standin, lease):
    c = server.client()
    many = make_tar(*[(f"d{i % 7}/f{i:04}", b"x" * (i % 50)) for i in range(2000)])
    before = standin.state()["counts"]
    assert put(c, lease, many).json()["entries"] == 2000
    assert len(get(c, lease)) == 2007
    after = standin.state()["counts"]
    calls = {k: n - before.get(k, 0) for k, n in after.items() if n - before.get(k, 0) and k not in ("list", "get")}
    assert calls == {"start": 6, "write": 1}, calls
    c.close()


def test_links_modes_and_times(server, lease):
    c = server.client()
    data = make_tar((".", {"type": tarfile.DIRTYPE, "mode": 0o750}), ("closed", {"type": tarfile.DIRTYPE, "mode": 0o555}), ("closed/f", {"data": b"1", "mode": 0o600}), ("a", b"same"),
                    ("b", {"type": tarfile.LNKTYPE, "linkname": "a"}), ("s", {"type": tarfile.SYMTYPE, "linkname": "closed/f"}), ("twice", b"1"), ("twice", b"22"), ("hole", bytes(300000) + b"end"))
    assert put(c, lease, data).status == 201
    seen = c.exec(lease, "cd to; stat -c '%n %a %h %Y' . closed closed/f a b; readlink s; cat twice; wc -c < hole; stat -c %b hole")["stdout"].split("\n")
    assert seen[:6] == [". 750 3 1234567890", "closed 555 2 1234567890", "closed/f 600 1 1234567890", "a 644 2 1234567890", "b 644 2 1234567890", "closed/f"], seen
    assert seen[6].startswith("22300003") and int(seen[7]) < 300, seen
    assert get(c, lease)["closed"].mode == 0o555


@pytest.mark.parametrize("entries, status, code", [
    ([("l", {"type": tarfile.SYMTYPE, "linkname": "/tmp"}), ("l/x", b"1")], 403, "path_refused"),
    ([("f", b"1"), ("f/x", b"1")], 409, "not_a_directory"),
    ([("d", None), ("d", b"1")], 409, "is_a_directory"),
    ([("h", {"type": tarfile.LNKTYPE, "linkname": "none"})], 404, "not_found"),
])
def test_what_cannot_be_made_changes_nothing(server, lease, entries, status, code):
    c = server.client()
    c.exec(lease, "mkdir to; echo kept > to/kept")
    r = put(c, lease, make_tar(("first", b"1"), *entries), outside_links=1)
    assert (r.status, r.code) == (status, code), r
    assert names(c, lease) == ["to", "to/kept"] and c.exec(lease, "ls -A /tmp")["stdout"] == ""


@pytest.mark.parametrize("fault, status", [({"op": "write", "kind": "drop"}, 503), ({"op": "write", "kind": "status", "status": 507}, 507),
                                           ({"op": "start", "kind": "drop", "skip": 2}, 502)])
def test_what_the_provider_does_not_do_changes_nothing(server, standin, lease, fault, status):
    c = server.client()
    c.exec(lease, "mkdir to; echo kept > to/kept")
    standin.order(fault)
    r = put(c, lease, make_tar(("kept", b"new"), ("x", b"1" * 1000000)))
    assert r.status == status, r
    standin.order()
    wait_until(lambda: names(c, lease) == ["to", "to/kept"], 20)
    assert c.get(f"/leases/{lease}/files?path=to/kept").body == b"kept\n"


def test_an_answer_that_is_lost_is_not_taken_for_a_failure(server, standin, lease):
    c = server.client()
    standin.order({"op": "start", "kind": "drop_after", "skip": 3})
    r = put(c, lease, make_tar(("x", b"1")))
    assert r.status == 502 and r.code == "outcome_unknown", r
    wait_until(lambda: names(c, lease) == ["to", "to/x"], 20)


def test_an_archive_that_is_cut_has_no_end(server, standin, lease):
    c = server.client()
    c.exec(lease, "mkdir to; head -c 3000000 /dev/urandom > to/big")
    standin.order({"op": "start", "kind": "cut", "bytes": 1000000, "skip": 1})
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        c.get(f"/leases/{lease}/files/tar?path=to")
    standin.order({"op": "start", "kind": "garbage", "skip": 1})
    r = server.client().get(f"/leases/{lease}/files/tar?path=to")
    assert r.status == 502 and r.json()["provider"] == "e2b", r
    standin.order()
    assert get(server.client(), lease)["big"].size == 3000000


def test_a_reader_that_leaves_ends_the_walk(server, lease):
    c = server.client()
    c.exec(lease, "mkdir to; truncate -s 20G to/big")
    s = server.connect()
    s.sendall(f"GET /leases/{lease}/files/tar?path=to HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert s.recv(1000)
    s.close()
    wait_until(lambda: c.exec(lease, "pgrep -c perl")["stdout"] == "1\n", 20)  # the command's own wrapper
