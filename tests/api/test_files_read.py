"""Reading files: ranges, limits, conditions over several lines, digests of what is sent, and files that change meanwhile."""
import base64
import hashlib

import pytest

from harness import SLOW, Server


def raw(server, method, url, *lines, body=b""):
    """One exchange over a socket of its own: headers exactly as given. Returns (status, headers, body)."""
    with server.connect() as s:
        head = [f"{method} {url} HTTP/1.1", "Host: x", "Connection: close", *lines]
        if body:
            head.append(f"Content-Length: {len(body)}")
        s.sendall("\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body)
        got = b""
        while piece := s.recv(1 << 16):
            got += piece
    head, _, rest = got.partition(b"\r\n\r\n")
    first, *fields = head.decode("latin-1").split("\r\n")
    return int(first.split()[1]), {k.lower(): v for k, v in (f.split(": ", 1) for f in fields)}, rest


def digest(data, kind="sha256"):
    return base64.b64encode(hashlib.new(kind, data).digest()).decode()


DATA = bytes(range(100))


@pytest.fixture
def url(client, lease):
    client.write(lease, "r", DATA)
    return client.file_url(lease, "r")


@pytest.mark.parametrize("text, first, last", [
    ("bytes=0-0", 0, 0), ("bytes=10-19", 10, 19), ("bytes=90-", 90, 99), ("bytes=-5", 95, 99), ("bytes=-1000", 0, 99),
    ("bytes=95-1000", 95, 99), ("BYTES=1-2", 1, 2), ("bytes=5-99999999999999999999999999", 5, 99),
    ("bytes=-99999999999999999999999999", 0, 99), ("bytes=0000000000000000000000001-2", 1, 2)])
def test_ranges(client, url, text, first, last):
    r = client.get(url, headers={"Range": text})
    assert (r.status, r.body, r.header("Content-Range")) == (206, DATA[first:last + 1], f"bytes {first}-{last}/100"), r
    # For HEAD there are no ranges.
    r = client.request("HEAD", url, headers={"Range": text})
    assert (r.status, r.header("Content-Length"), r.header("Content-Range")) == (200, "100", None)


@pytest.mark.parametrize("text", ["bytes=100-", "bytes=100-200", "bytes=-0", "bytes=99999999999999999999999999-"])
def test_ranges_outside(client, url, text):
    r = client.get(url, headers={"Range": text})
    assert (r.status, r.code, r.header("Content-Range")) == (416, "range_not_satisfiable", "bytes */100"), r


@pytest.mark.parametrize("text", ["lines=1-2", "bytes=5-2", "bytes=", "bytes=-", "bytes=a-b", "bytes=1-2x", "bytes= 1-2", "bytes=0-1,3-4", "bytes 0-1"])
def test_what_is_no_single_range_is_ignored(client, url, text):
    r = client.get(url, headers={"Range": text})
    assert (r.status, r.body) == (200, DATA), r


def test_ranges_of_an_empty_file(client, lease):
    client.write(lease, "empty", b"")
    for text in ("bytes=0-", "bytes=0-0", "bytes=-1"):
        r = client.get(client.file_url(lease, "empty"), headers={"Range": text})
        assert (r.status, r.header("Content-Range")) == (416, "bytes */0"), text


def test_at_most_so_many_bytes(client, lease, url):
    for n, want, cut in ((0, b"", "true"), (7, DATA[:7], "true"), (99, DATA[:99], "true"), (100, DATA, "false"), (2 ** 63 - 1, DATA, "false")):
        r = client.get(client.file_url(lease, "r", max_bytes=n))
        assert (r.status, r.body, r.header("Sandgate-File-Size"), r.header("Sandgate-Truncated")) == (200, want, "100", cut), n
    # Of a range too, and the answer says which part it is.
    r = client.get(client.file_url(lease, "r", max_bytes=3), headers={"Range": "bytes=10-19"})
    assert (r.status, r.body, r.header("Content-Range"), r.header("Sandgate-Truncated")) == (206, DATA[10:13], "bytes 10-12/100", "true"), r
    r = client.get(client.file_url(lease, "r", max_bytes=10), headers={"Range": "bytes=10-19"})
    assert (r.status, r.body, r.header("Sandgate-Truncated")) == (206, DATA[10:20], "false")
    r = client.get(client.file_url(lease, "r", max_bytes=0), headers={"Range": "bytes=10-19"})
    assert (r.status, r.body, r.header("Content-Range"), r.header("Sandgate-Truncated")) == (200, b"", None, "true")


def test_lists_in_several_lines_are_one_list(server, client, lease, url):
    tag = client.get(url).header("ETag")
    assert raw(server, "GET", url, 'If-None-Match: "x"', f"If-None-Match: {tag}")[0] == 304
    assert raw(server, "GET", url, 'If-None-Match: "x"', 'If-None-Match: "y"')[0] == 200
    assert raw(server, "GET", url, 'If-Match: "x"', 'If-Match: "y"')[0] == 412
    assert raw(server, "GET", url, 'If-Match: "x"', f"if-match: {tag}")[0] == 200
    assert raw(server, "GET", url, "If-Match: *", f"If-Match: {tag}")[0] == 400
    assert raw(server, "PUT", url, 'If-Match: "x"', 'If-Match: "y"', body=b"n")[0] == 412
    assert raw(server, "PUT", url, f"Repr-Digest: sha-256=:{digest(b'n')}:", f"Repr-Digest: sha-512=:{digest(b'x', 'sha512')}:", body=b"n")[0] == 400
    assert raw(server, "PUT", url, f"Repr-Digest: sha-256=:{digest(b'n')}:", "Repr-Digest: nope", body=b"n")[0] == 400
    assert raw(server, "PUT", url, f"Repr-Digest: sha-256=:{digest(b'n')}:", f"Repr-Digest: sha-512=:{digest(b'n', 'sha512')}:", 'If-Match: "x"',
               f"If-Match: {tag}", body=b"n")[0] == 200
    assert client.get(url).body == b"n"


@pytest.mark.parametrize("wish, kind", [("sha-256=1", "sha256"), ("sha-512=1", "sha512"), ("sha-256=1, sha-512=10", "sha512"),
                                        ("sha-512=3,sha-256=5;x=1", "sha256"), ("md5=10, sha-256=1", "sha256")])
def test_digests_of_what_is_sent(client, url, wish, kind):
    want = f"sha-{kind[3:]}=:{digest(DATA, kind)}:"
    r = client.get(url, headers={"Want-Repr-Digest": wish})
    assert (r.status, r.body, r.header("Repr-Digest")) == (200, DATA, want)
    r = client.request("HEAD", url, headers={"Want-Repr-Digest": wish})
    assert (r.status, r.header("Repr-Digest"), r.header("Content-Length")) == (200, want, "100")
    # It is about the whole, whichever part of it is sent.
    r = client.get(url, headers={"Want-Repr-Digest": wish, "Range": "bytes=1-2"})
    assert (r.status, r.body, r.header("Repr-Digest")) == (206, DATA[1:3], want)


@pytest.mark.parametrize("wish", ["", "sha-256", "sha-256=0", "sha-256=11", "sha-256=x", "md5=5", "sha-256=1 sha-512=2", "=1", "sha-256=:x:",
                                  "sha-256=-1", "sha-256=99999999999999999999", "SHA-256=1"])
def test_wishes_that_mean_nothing(client, url, wish):
    r = client.get(url, headers={"Want-Repr-Digest": wish})
    assert (r.status, r.body, r.header("Repr-Digest")) == (200, DATA, None)


def test_digest_of_a_large_file(client, lease):
    size = (300 << 20) if SLOW == 1 else (30 << 20)
    inside = client.exec(lease, f"head -c {size} /dev/zero | tr '\\0' z > big; sha256sum < big", timeout=120)["stdout"].split()[0]
    r = client.request("HEAD", client.file_url(lease, "big"), headers={"Want-Repr-Digest": "sha-256=1"}, timeout=120)
    assert base64.b64decode(r.header("Repr-Digest")[9:-1]).hex() == inside


def test_a_file_that_is_being_written_has_no_digest(client, lease):
    """Rather none than one of a mixture."""
    client.exec(lease, "head -c 50000000 /dev/zero > f; (while :; do echo x >> f; done) >/dev/null 2>&1 &")
    r = client.request("HEAD", client.file_url(lease, "f"), headers={"Want-Repr-Digest": "sha-256=1"}, timeout=120)
    assert r.status == 200 and r.header("Repr-Digest") is None


def test_a_client_or_lease_that_goes_during_the_digest():
    size = (700 << 20) if SLOW == 1 else (200 << 20)
    with Server({"local_bwrap": {"size": 1, "disk_max": "1GiB", "memory_max": "2GiB"}}) as s:
        c = s.client()
        id = c.lease()
        c.exec(id, f"head -c {size} /dev/zero > big", timeout=120)
        for _ in range(3):
            k = s.connect()
            k.sendall(f"GET {c.file_url(id, 'big')} HTTP/1.1\r\nHost: x\r\nWant-Repr-Digest: sha-512=1\r\n\r\n".encode())
            k.close()
        k = s.connect()
        k.sendall(f"GET {c.file_url(id, 'big')} HTTP/1.1\r\nHost: x\r\nWant-Repr-Digest: sha-512=1\r\n\r\n".encode())
        c.get("/healthz")
        assert c.terminate(id)["terminated"] is True
        first = k.recv(100).split(b"\r\n")[0]
        assert b" 410 " in first or b" 200 " in first, first
        k.close()
        c.terminate(c.lease())  # the slot is free: nothing is held


def test_a_file_that_shrinks_while_it_is_sent(server, client, lease):
    """The client must notice: what was promised does not come."""
    size = 40 << 20
    client.exec(lease, f"head -c {size} /dev/zero > f")
    with server.connect() as s:
        s.sendall(f"GET {client.file_url(lease, 'f')} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        got = len(s.recv(1000))
        client.exec(lease, ": > f")
        s.settimeout(30 * SLOW)
        try:
            while piece := s.recv(1 << 20):
                got += len(piece)
        except ConnectionResetError:
            pass
        assert got < size
    assert client.get("/healthz").status == 200


def test_a_file_that_is_replaced_or_removed_while_it_is_sent(server, client, lease):
    size = 40 << 20
    client.exec(lease, f"head -c {size} /dev/zero | tr '\\0' a > f")
    with server.connect() as s:
        s.sendall(f"GET {client.file_url(lease, 'f')} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        got = s.recv(1000)
        client.write(lease, "f", b"new")
        client.delete(client.file_url(lease, "f"))
        while piece := s.recv(1 << 20):
            got += piece
    body = got.partition(b"\r\n\r\n")[2]
    assert len(body) == size and set(body) == {ord("a")}, "a reader has the version that it opened"
