"""What callers can make the server hold is bounded for all of them together, and what is beyond is told so."""
import base64
import http.client
import json
import select
import socket

import pytest

from harness import SLOW, Server, wait_until

MIB = 1 << 20
REST = 100000


def request(lease, body, chunked=False):
    head = f"POST /leases/{lease}/exec HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    if chunked:
        return (head + "Transfer-Encoding: chunked\r\n\r\n").encode() + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    return (head + f"Content-Length: {len(body)}\r\n\r\n").encode() + body


def answer(c):
    r = http.client.HTTPResponse(c)
    r.begin()
    return r.status, json.loads(r.read())


def cat(n):
    return json.dumps({"command": "wc -c", "stdin": "x" * n}).encode()


@pytest.fixture(scope="module")
def small():
    with Server({"local_bwrap": {"size": 2}, "server": {"body_memory": "2MiB"}, "exec": {"memory_max": "4MiB"}}) as s:
        s.wait_slots(2)
        yield s


def held(server, part, probe):
    """A connection whose half-sent body the server holds, and the refusal that another one got for it. Which of the two came first is seen
    only by who is refused: when it is the slow one, it tries again."""
    for _ in range(50):
        slow = socket.create_connection(("127.0.0.1", server.port), timeout=60)
        slow.sendall(part)
        while not select.select([slow], [], [], 0)[0]:
            r = probe()
            if r.status == 503:
                return slow, r
        slow.close()
    raise AssertionError("nobody was refused")


@pytest.mark.parametrize("chunked", [False, True])
def test_bodies_share_what_there_is(small, chunked):
    c = small.client()
    id = c.lease()
    whole = request(id, cat(1500000), chunked)
    for leaves in (False, True, False):
        slow, r = held(small, whole[:-REST], lambda: c.exec_response(id, "wc -c", stdin="y" * 1300000))
        with slow:
            assert r.code == "overloaded" and int(r.header("Retry-After")) >= 1, r
            assert c.exec(id, "wc -c", stdin="z" * 10000)["stdout"] == "10000\n"
            assert c.get("/healthz").status == 200
            if not leaves:
                slow.sendall(whole[-REST:])
                status, body = answer(slow)
                assert status == 200 and body["stdout"] == "1500000\n", body
        # And it is given back, whatever became of it.
        wait_until(lambda: c.exec_response(id, "wc -c", stdin="y" * 1300000).status == 200, what="room")
    c.terminate(id)


def test_a_body_that_never_fits_is_too_large(small):
    c = small.client()
    id = c.lease()
    r = c.exec_response(id, "wc -c", stdin="x" * (2 * MIB))
    assert r.status == 413 and r.code == "payload_too_large", r
    assert c.exec(id, "true")["returncode"] == 0
    c.terminate(id)


def test_stdin_that_waits_counts(small):
    c = small.client()
    id = c.lease()
    for round in range(3):
        running = [c.exec_response(id, "sleep 100", stdin="x" * 1500000, detach=True).json()["exec_id"] for _ in range(2)]
        r = c.exec_response(id, "sleep 100", stdin="x" * 1500000, detach=True)
        assert r.status == 503 and r.code == "overloaded" and int(r.header("Retry-After")) >= 1, r
        r = c.exec_response(id, "true", stdin="x" * 1500000)
        assert r.status == 503 and r.code == "overloaded", r
        assert c.exec(id, "wc -c", stdin="x" * 30000)["stdout"] == "30000\n"
        for eid in running:
            assert c.delete(f"/leases/{id}/exec/{eid}").status == 200
        wait_until(lambda: c.exec_response(id, "wc -c", stdin="x" * 1500000).status == 200, what="room")
    c.terminate(id)


PROGRAM = """
import sys
for i in range(1, %d + 1): sys.stdout.write("%%08d\\n" %% i)
sys.stderr.buffer.write(bytes(range(256)) * 4096)
"""


@pytest.fixture(scope="module")
def large():
    with Server({"local_bwrap": {"size": 2}, "exec": {"history_bytes": "64MiB"}}) as s:
        s.wait_slots(2)
        yield s


def check_large(result, lines):
    assert result["stdout"] == "".join("%08d\n" % i for i in range(1, lines + 1)) and result["stdout_encoding"] == "utf-8"
    assert base64.b64decode(result["stderr"]) == bytes(range(256)) * 4096 and result["stderr_encoding"] == "base64"
    assert (result["stdout_bytes_total"], result["stderr_bytes_total"]) == (9 * lines, MIB) and not result["stdout_truncated"]
    assert result["returncode"] == 0 and result["cmd"][0] == "python3"


def test_a_large_answer_says_what_a_small_one_says(large):
    c = large.client()
    id = c.lease()
    keys = set(c.exec(id, "true"))
    for lines in (10, 7000, 500000):
        r = c.exec_response(id, ["python3", "-c", PROGRAM % lines], exec_id=f"e{lines}")
        assert r.status == 200 and r.header("Content-Type") == "application/json", r
        assert set(r.json()) == keys
        check_large(r.json(), lines)
        kept = c.get(f"/leases/{id}/exec/e{lines}").json()
        assert kept["state"] == "finished" and set(kept) == {"exec_id", "state", "started_at", "tty", "result"}
        assert kept["result"] == r.json()
        again = c.exec_response(id, ["python3", "-c", PROGRAM % lines], exec_id=f"e{lines}")
        assert again.json() == r.json()
        head = c.request("HEAD", f"/leases/{id}/exec/e{lines}")
        assert head.status == 200 and head.body == b""
    cut = c.exec(id, "yes é", max_output_bytes=100000, timeout=1)
    assert cut["stdout_truncated"] and cut["stdout_encoding"] == "utf-8" and 99997 <= len(cut["stdout"].encode()) <= 100000 and cut["timed_out"]
    c.terminate(id)


def test_clients_that_do_not_take_their_large_answers_cost_its_output_and_no_more(large):
    c = large.client()
    id = c.lease()
    command = json.dumps({"command": "head -c 8388608 /dev/zero | tr '\\0' '\\001'"}).encode()  # each byte needs six in JSON
    with socket.create_connection(("127.0.0.1", large.port), timeout=60) as first:  # whatever is only made once
        first.sendall(request(id, command))
        assert answer(first)[0] == 200
    before = large.rss_kib()
    stuck = [socket.create_connection(("127.0.0.1", large.port), timeout=120) for _ in range(4)]
    for s in stuck:
        s.sendall(request(id, command))
        assert s.recv(12) == b"HTTP/1.1 200"
    grown = large.rss_kib() - before
    assert SLOW > 1 or grown < 4 * 8 * 1024 + 8 * 1024, f"{grown} KiB for 4 times 8 MiB"  # sanitizers keep what was freed
    for s in stuck:
        data = bytearray()
        while data[-5:] != b"0\r\n\r\n":
            piece = s.recv(1 << 20)
            assert piece
            data += piece
        assert 6 * 8388608 < len(data) < 6.1 * 8388608
        s.close()
    wait_until(lambda: SLOW > 1 or large.rss_kib() - before < 8 * 1024, what="the memory's return")
    c.terminate(id)
