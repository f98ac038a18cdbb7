"""Terminals over WebSockets: what a browser's terminal needs, several at a time, clients that are slow or rude, and a gateway between."""
import base64
import contextlib
import hashlib
import json
import os
import socket
import struct
import threading
import time

import pytest

import upstream
import ws
from browser import Browser, Page
from conftest import account, one_kind
from gateway import Nginx
from harness import SLOW, Server, wait_until
from upstream import Upstream, reply

TTY = {"rows": 24, "cols": 80}


@pytest.fixture(scope="module", params=one_kind())
def server(request):
    with Server({"local_bwrap": {"size": 3}}, user=account(request.param)) as s:
        s.wait_slots(3)
        yield s


def start(client, lease, command="exec sh -i", **body):
    r = client.post(f"/leases/{lease}/exec", dict({"tty": TTY}, command=command, detach=True, **body))
    assert r.status == 202, r
    return f"/leases/{lease}/exec/{r.json()['exec_id']}"


def attach(server, path, query="", **kw):
    s = ws.Socket(server, path + "/attach" + query, **kw)
    assert s.status == 101, s.problem
    return s


def refusals(s):
    return [t for t in s.texts if t["type"] == "refused"]


# ---- a session ----

def test_a_session(server, client, lease):
    path = start(client, lease, exec_id="shell")
    with attach(server, path) as s:
        assert "sec-websocket-protocol" not in s.headers
        s.until(lambda: s.texts)
        assert s.texts == [{"type": "attached", "exec_id": "shell", "after": 1, "tty": TTY, "input": True}]
        s.sees(r"\$ $")
        s.type("echo sum $((40+2)); stty size; tty\n")
        s.sees("sum 42\r\n24 80\r\n/dev/pts/0\r\n")
        s.say(type="resize", rows=50, cols=132)
        wait_until(lambda: client.get(path).json()["tty"] == {"rows": 50, "cols": 132}, what="the size")
        s.type("stty size\n")
        s.sees("50 132\r\n")
        s.type("sleep 1000\n")
        s.sees("sleep 1000")
        wait_until(lambda: "1000" in client.exec(lease, "cat /proc/[1-9]*/cmdline | tr '\\0' ' '")["stdout"], what="sleep")
        s.type("\x03")
        s.type("echo status $?\n")
        s.sees("status 130\r\n")
        s.type("\x04")
        assert s.end() == 1000 and s.reason == "the command has ended"
        exit = s.texts[-1]
        assert exit["type"] == "exit" and exit["returncode"] == 0 and exit["signal"] is None and exit["exec_id"] == "shell"
        assert exit["stdout_bytes_total"] == len(s.bytes) and exit["seq"] == s.messages + 2 and len(s.texts) == 2
    assert client.get(path).json()["state"] == "finished"


def test_replay_and_resume(server, client, lease):
    path = start(client, lease, "for i in 1 2 3 4 5; do echo line $i; sleep 0.02; done; read x; echo got $x", exec_id="replay")
    with attach(server, path) as s:
        s.sees("line 5")
        seen, messages = bytes(s.bytes), s.messages
    with attach(server, path, f"?after={1 + messages}") as s:  # from where the first one broke off
        s.type("more\n")
        assert s.end() == 1000
        assert s.texts[0]["after"] == 1 + messages
        rest = s.bytes
    whole = b"line 1\r\nline 2\r\nline 3\r\nline 4\r\nline 5\r\nmore\r\ngot more\r\n"
    assert seen + rest == whole
    for query in ("", "?after=0"):
        with attach(server, path, query) as s:  # and once it has ended
            s.type("for nobody\n")
            assert s.end() == 1000 and s.bytes == whole and s.texts[-1]["returncode"] == 0 and s.texts[0]["input"] is False
    last = s.texts[-1]["seq"]
    with attach(server, path, f"?after={last}") as s:
        assert s.end() == 1000 and s.bytes == b"" and len(s.texts) == 1
    s = ws.Socket(server, f"{path}/attach?after={last + 1}")
    assert s.status == 400 and s.problem["field"] == "after"


def test_history_that_is_gone(client, lease):
    with Server({"local_bwrap": {"size": 1}, "exec": {"history_bytes": "64KiB"}}) as s:
        c = s.client()
        lease = c.lease()
        path = start(c, lease, "i=0; while [ $i -lt 3000 ]; do echo line $i xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; i=$((i+1)); done; read x")
        wait_until(lambda: c.get(path + "/output").status == 410, what="dropped history")
        r = ws.Socket(s, path + "/attach?after=0")
        assert r.status == 410 and r.problem["code"] == "history_dropped" and r.problem["oldest_seq"] > 1
        with attach(s, path) as a:
            a.sees("line 2999")
            assert a.texts[0]["after"] >= r.problem["oldest_seq"] - 1 and b"line 0 " not in a.bytes
            a.type("\n")
            assert a.end() == 1000


def test_several_at_a_time(server, client, lease):
    path = start(client, lease, "stty -echo; while read x; do echo got $x; done")
    with attach(server, path) as a, attach(server, path) as b:
        a.type("from-a\n")
        for s in (a, b):
            s.sees("got from-a\r\n")
        b.type("from-b\n")
        for s in (a, b):
            s.sees("got from-b\r\n")
        assert client.post(path + "/stdin", b"from-c\n").json()["bytes"] == 7
        for s in (a, b):
            s.sees("got from-c\r\n")
        b.conn.close()
        a.type("still\n")
        a.sees("got still\r\n")
        assert client.post(path + "/stdin?eof=1", b"").status == 200
        assert a.end() == 1000


def test_lines_of_many_typists_stay_whole(server, client, lease):
    path = start(client, lease, "stty -echo; echo ready; sort | uniq -c | sort -n | head -3; echo done")
    sockets = [attach(server, path) for _ in range(4)]
    for s in sockets:
        s.sees("ready")

    def type(s, name):
        for _ in range(500):
            s.type(f"{name}\n")
    threads = [threading.Thread(target=type, args=(s, "abcd"[i] * 20)) for i, s in enumerate(sockets)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    sockets[0].say(type="resize", rows=10, cols=10)  # handled after what it typed; the others may still be on their way
    wait_until(lambda: client.post(path + "/stdin", b"").status == 200, what="room")
    time.sleep(0.5)
    client.post(path + "/stdin?eof=1", b"")
    for s in sockets:
        assert s.end() == 1000
        assert [line.split()[0] for line in s.bytes.split(b"\r\n") if b"aaaa" in line or b"bbbb" in line or b"cccc" in line] == [b"500"] * 3, s.bytes
        s.conn.close()


def test_a_large_paste_arrives_whole(server, client, lease):
    text = "".join(f"line {i} {'x' * 40}\n" for i in range(20000)).encode()
    path = start(client, lease, "stty -echo; echo ready; head -c %d | sha256sum" % len(text))
    with attach(server, path) as s:
        s.sees("ready")
        s.type(text)  # one message
        s.sees(hashlib.sha256(text).hexdigest())
        assert s.end() == 1000
    path = start(client, lease, "stty -echo; echo ready; sleep 1; head -c 100000 >/dev/null; sleep 1; head -c %d | tail -c 20" % (len(text) - 100000))
    with attach(server, path) as s:  # at its reader's pace
        s.sees("ready")
        for i in range(0, len(text), 1000):
            s.type(text[i:i + 1000])
        s.sees(text[-20:].decode().replace("\n", "\r\n"))


def test_bytes_of_all_kinds(server, client, lease):
    data = bytes(range(256)) * 500
    client.write(lease, "data", data)
    path = start(client, lease, "stty raw -echo; cat data")
    with attach(server, path) as s:
        assert s.end() == 1000 and s.bytes == data
    path = start(client, lease, "stty raw -echo; echo ready; head -c 256 | od -An -v -tu1 | tr -s ' \\n' ' '")
    with attach(server, path) as s:
        s.sees("ready")
        s.type(bytes(range(256)))
        s.sees(" ".join(str(i) for i in range(250, 256)))


def test_a_slow_client_slows_the_command(server, client, lease):
    path = start(client, lease, "head -c 30000000 /dev/zero | tr '\\0' x; echo end", max_output_bytes=1000)
    before = server.rss_kib()
    with attach(server, path, rcvbuf=65536) as s:
        time.sleep(1)
        assert client.get(path).json()["state"] == "running"
        if SLOW == 1:  # sanitizers keep what was freed
            assert server.rss_kib() < before + 8000
        s.until(lambda: len(s.bytes) > 100000)
        assert client.get(path).json()["state"] == "running"
    with attach(server, path) as s:  # one that is not takes over
        assert s.end() == 1000 and s.bytes.endswith(b"xend\r\n")
        assert s.texts[-1]["stdout_bytes_total"] == 30000005
    path = start(client, lease, "yes")
    with attach(server, path, rcvbuf=4096) as s:  # and one that left slows nobody down
        time.sleep(0.3)
    with attach(server, path) as s:
        s.until(lambda: len(s.bytes) > 6000000)
    assert client.delete(path).status == 200


# ---- words ----

def test_signals_and_refusals(server, client, lease):
    path = start(client, lease, "trap 'echo usr' USR1; echo ready; while :; do sleep 0.05; done")
    with attach(server, path) as s:
        s.sees("ready")
        s.say(type="signal", signal="USR1")
        s.sees("usr\r\n")
        for bad, code, field in (({"type": "nope"}, "invalid_request", "type"), ({}, "invalid_request", "type"), ({"type": 1}, "invalid_request", "type"),
                                 ({"type": "resize", "rows": 0, "cols": 1}, "invalid_request", "rows"), ({"type": "resize", "rows": 1}, "invalid_request", "cols"),
                                 ({"type": "resize", "rows": 5000, "cols": 1}, "limit_exceeded", "rows"), ({"type": "signal"}, "invalid_request", "signal"),
                                 ({"type": "signal", "signal": "NOPE"}, "invalid_request", "signal"),
                                 ({"type": "resize", "rows": 1, "cols": 1, "more": 1}, "invalid_request", "more")):
            n = len(refusals(s))
            s.say(**bad)
            s.until(lambda: len(refusals(s)) > n)
            assert refusals(s)[-1]["code"] == code and refusals(s)[-1]["field"] == field and refusals(s)[-1]["detail"], (bad, s.texts)
        for text in (b"", b"{", b"[]", b'{"type":"resize","type":"resize"}', b"null"):
            n = len(refusals(s))
            s.send(ws.TEXT, text)
            s.until(lambda: len(refusals(s)) > n)
        for i in range(300):  # a window that is pulled at
            s.say(type="resize", rows=10 + i, cols=20 + i)
        wait_until(lambda: client.get(path).json()["tty"] == {"rows": 309, "cols": 319}, what="the last size")
        s.say(type="signal", signal="KILL")
        assert s.end() == 1000 and s.texts[-1]["signal"] == "SIGKILL"


def test_a_command_that_takes_no_input_can_be_watched(server, client, lease):
    path = start(client, lease, "echo up; sleep 1; echo down", stdin="given\n")
    with attach(server, path) as s:
        s.sees("up")
        assert s.texts[0]["input"] is False
        s.type("x")
        s.type("y")
        assert s.end() == 1000 and b"down" in s.bytes and len(refusals(s)) == 1 and refusals(s)[0]["code"] == "conflict"


# ---- how it ends ----

def test_the_end_of_the_lease(server, client):
    lease = client.lease()
    path = start(client, lease)
    with attach(server, path) as s:
        s.sees(r"\$ $")
        client.terminate(lease)
        assert s.end() == 4001 and s.texts[-1]["type"] == "exit" and s.texts[-1]["killed_by"] == "lease_end"


def test_a_lost_sandbox():
    with Server({"local_bwrap": {"size": 1}}) as s:
        c = s.client()
        lease = c.lease()
        path = start(c, lease)
        with attach(s, path) as a:
            a.sees(r"[$#] $")
            slot = c.get("/slots/default").json()["items"][0]["slot"]
            children = [int(p) for p in os.listdir("/proc") if p.isdigit() and agent_of(p, s)]
            assert slot and children
            os.kill(max(children), 9)
            assert a.end() == 4002 and a.texts[-1]["type"] == "error" and a.texts[-1]["code"] == "sandbox_lost"


def agent_of(pid, server):
    """Is it the agent of a sandbox of this server? They are its grandchildren or so."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as f:
            if b".sandgate/agent" not in f.read():
                return False
        while int(pid) > 1:
            if int(pid) == server.pid():
                return True
            with open(f"/proc/{pid}/stat") as f:
                pid = f.read().rsplit(")", 1)[1].split()[1]
    except OSError:
        pass
    return False


def test_the_end_of_the_server(client):
    s = Server({"local_bwrap": {"size": 1}, "server": {"drain_timeout": "1s"}}).start()
    try:
        c = s.client()
        path = start(c, c.lease())
        with attach(s, path) as a:
            a.sees(r"[$#] $")
            c.close()
            stopper = threading.Thread(target=s.stop)
            stopper.start()
            assert a.end() in (1001, 4001)
            stopper.join()
    finally:
        s.clean()


def test_the_client_closes(server, client, lease):
    path = start(client, lease)
    for code, answer in ((1000, 1000), (1001, 1001), (4000, 4000), (None, None)):
        with attach(server, path) as s:
            s.sees(r"\$ $")
            s.send(ws.CLOSE, struct.pack(">H", code) + b"bye" if code else b"")
            assert s.end() == answer
    with attach(server, path) as s:
        s.conn.sock.shutdown(socket.SHUT_WR)  # leaves without a word
        s.conn.closed()
    with attach(server, path) as s:  # the command does not care
        s.type("echo alive\n")
        s.sees("alive\r\n")


def test_clients_that_break_the_rules(server, client, lease):
    path = start(client, lease, "stty raw -echo; echo ready; cat > typed")
    long = b"x" * 5000

    def raw(first, second, payload=b"", mask=b"\0\0\0\0"):
        return bytes([first, second]) + (mask if second & 0x80 else b"") + payload
    bad = {
        "no mask": (ws.frame(ws.BINARY, b"x", False), 1002),
        "reserved bit": (raw(0xC2, 0x81, b"x"), 1002),
        "unknown opcode": (raw(0x83, 0x81, b"x"), 1002),
        "unknown control": (raw(0x8B, 0x80), 1002),
        "fragmented ping": (raw(0x09, 0x80), 1002),
        "long ping": (ws.frame(ws.PING, b"x" * 126, True), 1002),
        "continuation of nothing": (raw(0x80, 0x81, b"x"), 1002),
        "new message inside one": (raw(0x02, 0x81, b"x") + raw(0x82, 0x81, b"y"), 1002),
        "overlong length": (raw(0x82, 0xFE, struct.pack(">H", 5), b"") [:4] + b"\0\0\0\0xxxxx", 1002),
        "huge length": (bytes([0x82, 0xFF]) + struct.pack(">Q", 1 << 62) + b"\0\0\0\0x", 1009),
        "negative length": (bytes([0x82, 0xFF]) + struct.pack(">Q", 1 << 63) + b"\0\0\0\0", 1002),
        "bad text": (ws.frame(ws.TEXT, b'{"type":"\xff"}', True), 1007),
        "cut character": (ws.frame(ws.TEXT, b"\xe2\x82", True), 1007),
        "surrogate": (ws.frame(ws.TEXT, b"\xed\xa0\x80", True), 1007),
        "long text": (ws.frame(ws.TEXT, long, True), 1009),
        "long text in pieces": (raw(0x01, 0xFE)[:2] + struct.pack(">H", 4000) + b"\0\0\0\0" + b"x" * 4000 + raw(0x80, 0xFE)[:2] + struct.pack(">H", 200) +
                                b"\0\0\0\0" + b"x" * 200, 1009),
        "close of one byte": (ws.frame(ws.CLOSE, b"\x03", True), (None, 1002)),
        "close code 1005": (ws.frame(ws.CLOSE, struct.pack(">H", 1005), True), 1002),
        "close code 999": (ws.frame(ws.CLOSE, struct.pack(">H", 999), True), 1002),
        "bad close reason": (ws.frame(ws.CLOSE, struct.pack(">H", 1000) + b"\xff", True), (1002, 1007)),
    }
    for name, (data, code) in bad.items():
        with attach(server, path) as s:
            s.sees("ready")
            s.conn.send(data)
            got = s.end()
            assert got == code or (isinstance(code, tuple) and got in code), (name, got, s.reason)
    assert client.exec(lease, "wc -c < typed")["stdout"] in ("0\n", "1\n")  # of a message that began rightly
    with attach(server, path) as s:
        s.sees("ready")
        s.conn.send(raw(0x02, 0x82, b"ab") + raw(0x89, 0x82, b"hi") + raw(0x00, 0x81, b"c") + raw(0x80, 0x80))  # fragments, a ping between
        pongs = []
        while not pongs:
            opcode, data = ws.read_frame(s.conn)
            pongs += [data] if opcode == ws.PONG else []
        assert pongs == [b"hi"]
    wait_until(lambda: client.read(lease, "typed").body.endswith(b"abc"), what="abc")


def test_a_flood_of_pings_costs_nothing(server, client, lease):
    path = start(client, lease)
    before = server.rss_kib()
    with attach(server, path, rcvbuf=4096) as s:
        s.conn.sock.settimeout(2 * SLOW)
        try:
            for _ in range(400):
                s.conn.send(ws.frame(ws.PING, b"x" * 125, True) * 200)
        except socket.timeout:
            pass  # it is not read any more
        assert SLOW > 1 or server.rss_kib() < before + 8000
    assert client.exec(lease, "true")["returncode"] == 0


def test_hundreds_at_a_time(server, client, lease):
    path = start(client, lease, "stty -echo; read x; echo got $x")
    threads = server.threads()
    sockets = [attach(server, path) for _ in range(150)]
    assert server.threads() <= threads + 1
    sockets[0].type("all\n")
    for s in sockets:
        assert s.end() == 1000 and s.bytes.endswith(b"got all\r\n")
        s.conn.close()


def test_nothing_is_left(server, client, lease):
    path = start(client, lease)
    attach(server, path).conn.close()
    before = server.descriptors()
    for _ in range(50):
        s = attach(server, path)
        s.type("x")
        s.conn.close()
    wait_until(lambda: server.descriptors() <= before + 10, what="all connections are closed")  # a few for control groups that are kept


# ---- before it begins ----

def handshake(server, path, lines):
    with contextlib.closing(upstream.Conn(server.connect())) as c:
        c.send((f"GET {path}/attach HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n" + "".join(line + "\r\n" for line in lines) + "\r\n").encode())
        line, fields = c.head()
        status, fields = int(line.split()[1]), {k.lower(): v for k, v in fields}
        return status, fields, b"" if status == 101 else c.body(list(fields.items()))


GOOD = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="]


def test_requests_that_are_no_upgrade(server, client, lease):
    path = start(client, lease)
    for r in (client.get(path + "/attach"), client.request("HEAD", path + "/attach")):
        assert r.status == 426 and r.header("Upgrade") == "websocket" and r.header("Sec-WebSocket-Version") == "13", r
    assert client.get(path + "/attach").code == "upgrade_required"
    for i, status in ((0, 426), (1, 426), (2, 426), (3, 400)):
        assert handshake(server, path, GOOD[:i] + GOOD[i + 1:])[0] == status, i
    for i, line, status in ((2, "Sec-WebSocket-Version: 12", 426), (2, "Sec-WebSocket-Version: 8", 426), (3, "Sec-WebSocket-Key: short", 400),
                            (3, "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=", 400), (1, "Upgrade: h2c", 426)):
        assert handshake(server, path, GOOD[:i] + [line] + GOOD[i + 1:])[0] == status, line
    assert handshake(server, path, ["connection: keep-alive, UPGRADE", "UPGRADE: WebSocket"] + GOOD[2:])[0] == 101
    for offer, status, chosen in ((["chat"], 400, None), (["chat, sandgate.v1"], 101, "sandgate.v1"), (["chat", "sandgate.v1"], 101, "sandgate.v1"),
                                  (["SANDGATE.V1"], 400, None), (["sandgate.v1, bearer.eHh4"], 101, "sandgate.v1")):
        got, fields, _ = handshake(server, path, GOOD + ["Sec-WebSocket-Protocol: " + o for o in offer])
        assert got == status and fields.get("sec-websocket-protocol") == chosen, offer
    client.exec(lease, "true", exec_id="plain")
    for p, status, code in ((f"/leases/{lease}/exec/none", 404, "not_found"), (f"/leases/{lease}/exec/plain", 409, "no_tty")):
        s = ws.Socket(server, p + "/attach")
        assert s.status == status and s.problem["code"] == code, s.problem
    assert ws.Socket(server, path + "/attach?nope=1").status == 400 and ws.Socket(server, path + "/attach?after=-1").status == 400
    other = client.lease()
    ended = start(client, other)
    client.terminate(other)
    s = ws.Socket(server, ended + "/attach")
    assert s.status == 410 and s.problem["code"] == "lease_gone"


def b64(token):
    return base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")


def test_who_may_come_in():
    names = {"a": "~a token?>\u00e9", "b": "token-b"}
    tokens = [{"name": n, "tenant": n, "role": "tenant", "sha256": hashlib.sha256(t.encode()).hexdigest()} for n, t in names.items()]
    with Server({"local_bwrap": {"size": 2}, "auth": {"tokens": tokens}, "server": {"public_url": "https://sandgate.example"}}) as s:
        c = s.client()
        c.token = names["b"]
        path = start(c, c.lease())
        evil, own = "Origin: https://evil.example\r\n", f"Origin: http://127.0.0.1:{s.port}\r\n"

        def status(headers):
            a = ws.Socket(s, path + "/attach", headers=headers)
            if a.status == 101:
                assert "bearer" not in str(a.headers).lower() and a.headers.get("sec-websocket-protocol", "sandgate.v1") == "sandgate.v1"
            a.conn.close()
            return a.status, (a.problem or {}).get("code")
        offer = "Sec-WebSocket-Protocol: sandgate.v1, bearer." + b64(names["b"]) + "\r\n"
        bearer, key = "Authorization: Bearer token-b\r\n", "X-API-Key: token-b\r\n"
        assert status("") == (401, "unauthorized")
        for good in (offer, bearer, key, offer.replace(", ", "\r\nSec-WebSocket-Protocol: "), bearer + own, key + own, offer + own, offer + evil,
                     offer + "Origin: null\r\n", bearer + "Origin: https://sandgate.example\r\n", bearer + "Origin: https://sandgate.example:443\r\n"):
            assert status(good) == (101, None), good
        # A gateway may add the header for its user, whatever page asks.
        for bad in (bearer + evil, key + evil, bearer + "Origin: null\r\n", bearer + "Origin: https://sandgate.example.evil\r\n", bearer + offer + evil,
                    bearer + "Origin: https://sandgate.example:8443\r\n"):
            assert status(bad) == (403, "cross_origin"), bad
        for unknown in ("token-c", names["b"] + "x", ""):
            assert status(f"Sec-WebSocket-Protocol: sandgate.v1, bearer.{b64(unknown)}\r\n") == (401, "unauthorized")
        for malformed in ("dG9rZW4tYg==", "dG9rZW4tYg=", "!!!!", "dG9rZW4tYgA", "dG9", "x" * 5000):
            assert status(f"Sec-WebSocket-Protocol: sandgate.v1, bearer.{malformed}\r\n")[0] in (400, 401, 431), malformed
        # Another tenant's.
        assert status("Sec-WebSocket-Protocol: sandgate.v1, bearer." + b64(names["a"]) + "\r\n") == (404, "not_found")
        # Nowhere else.
        r = c.request("GET", f"{path}", headers={"Authorization": "", "Sec-WebSocket-Protocol": "sandgate.v1, bearer." + b64(names["b"])})
        assert r.status == 401
        assert b64(names["b"]) not in s.log_text() and names["b"] not in s.log_text()


def test_pages_of_other_origins_do_not_reach_an_open_server(server, client, lease):
    path = start(client, lease)
    for headers, status in (("Origin: https://evil.example\r\n", 403), ("Origin: null\r\n", 403), (f"Origin: http://127.0.0.1:{server.port}\r\n", 101),
                            ("Origin: https://evil.example\r\nSec-WebSocket-Protocol: sandgate.v1, bearer.eHh4\r\n", 403)):
        s = ws.Socket(server, path + "/attach", headers=headers)
        assert s.status == status, (headers, s.status)
        s.conn.close()


# ---- behind a gateway ----

def test_through_nginx(server, client, lease):
    path = start(client, lease)
    with Nginx(server.port) as gateway, attach(server, path, port=gateway.port) as s:
        s.sees(r"\$ $")
        for i in range(20):
            s.type(f"echo round $(({i} + 100))\n")
            s.sees(f"round {100 + i}\r\n")
        s.say(type="resize", rows=7, cols=77)
        wait_until(lambda: client.get(path).json()["tty"] == {"rows": 7, "cols": 77}, what="the size")
        s.type("stty -echo; head -c 1000000 | wc -c\n")
        s.sees("wc -c\r\n")
        s.type(b"x" * 99 + b"\n")
        s.type((b"x" * 99 + b"\n") * 9999)
        s.sees("1000000\r\n")
        s.type("exit 3\n")
        assert s.end() == 1000 and s.texts[-1]["returncode"] == 3
    lease = client.lease()
    with Nginx(server.port) as gateway, attach(server, start(client, lease), port=gateway.port) as s:
        s.sees(r"\$ $")
        client.terminate(lease)
        assert s.end() == 4001


def test_silence_does_not_cut_it(server, client, lease, soak, request):
    """nginx gives up on 60 s of silence."""
    if request.node.callspec.params["server"] != one_kind()[0]:
        pytest.skip("has nothing to do with the kind of server, and takes its time")
    seconds = 130 if soak else 19
    path = start(client, lease, "read x; echo got $x")
    with Nginx(server.port) as gateway, attach(server, path, port=gateway.port) as s:
        s.until(lambda: s.texts)
        pings, began = 0, time.monotonic()
        while time.monotonic() - began < seconds:
            s.conn.sock.settimeout(60)
            opcode, data = ws.read_frame(s.conn)
            assert opcode == ws.PING
            pings += 1
            s.send(ws.PONG, data)
        assert pings >= seconds // 21
        s.type("x\n")
        assert s.end() == 1000 and s.bytes.endswith(b"got x\r\n")


# ---- a browser ----

TERMINAL = """new Promise((done, failed) => {
  const s = new WebSocket(URL_, PROTOCOLS), texts = [];
  let screen = "";
  s.binaryType = "arraybuffer";
  s.onmessage = (e) => {
    if (typeof e.data === "string") return texts.push(JSON.parse(e.data));
    screen += new TextDecoder().decode(e.data);
    if (/\\$ $/.test(screen) && !screen.includes("echo")) {
      s.send(JSON.stringify({ type: "resize", rows: 11, cols: 99 }));
      s.send(new TextEncoder().encode("sleep 0.3; stty size; exit 5\\n"));
    }
  };
  s.onclose = (e) => done({ screen, texts, code: e.code, protocol: s.protocol });
})"""


def test_in_a_browser():
    """A page of another origin that knows the token, as the terminal of an orchestrator would be."""
    token = {"name": "a", "tenant": "a", "role": "tenant", "sha256": hashlib.sha256(b"token-a").hexdigest()}
    page_server = Upstream(lambda conn: (conn.head(), conn.send(reply(b"<title>terminal</title>", headers="Content-Type: text/html\r\n"))))
    with Server({"local_bwrap": {"size": 1}, "auth": {"tokens": [token]}}) as s, page_server as ui, Browser(["ui.example", "api.example"]) as browser:
        c = s.client("token-a")
        path = start(c, c.lease(), "PS1='$ ' exec sh -i")
        page = Page(browser)
        page.go(f"http://ui.example:{ui.port}/")

        def run(protocols):
            url = f"ws://api.example:{s.port}{path}/attach"
            return page.run(TERMINAL.replace("URL_", json.dumps(url)).replace("PROTOCOLS", json.dumps(protocols)))
        assert run(["sandgate.v1"])["code"] == run(["sandgate.v1", "bearer." + b64("token-b")])["code"] == 1006  # never opened
        got = run(["sandgate.v1", "bearer." + b64("token-a")])
        assert got["code"] == 1000 and got["protocol"] == "sandgate.v1" and "\r\n11 99\r\n" in got["screen"], got
        assert [t["type"] for t in got["texts"]] == ["attached", "exit"] and got["texts"][1]["returncode"] == 5
