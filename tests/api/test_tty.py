"""Commands on a terminal: what programs see of it, what can be typed, its size, and how it ends."""
import hashlib
import json
import re
import time

import pytest

from conftest import account, one_kind
from harness import SLOW, Server, wait_until

TTY = {"rows": 24, "cols": 80}


@pytest.fixture(scope="module", params=one_kind())
def server(request):
    with Server({"local_bwrap": {"size": 2}}, user=account(request.param)) as s:
        s.wait_slots(2)
        yield s


def ndjson(client, lease, command, **body):
    r = client.post(f"/leases/{lease}/exec", dict({"tty": TTY}, command=command, **body), headers={"Accept": "application/x-ndjson"})
    assert r.status == 200, r
    return [json.loads(line) for line in r.body.splitlines()]


class Shell:
    """An interactive sh, driven with plain requests."""

    def __init__(self, client, lease, command="exec sh -i", **body):
        r = client.post(f"/leases/{lease}/exec", dict({"tty": TTY}, command=command, detach=True, **body))
        assert r.status == 202, r
        self.client, self.path = client, f"/leases/{lease}/exec/{r.json()['exec_id']}"

    def type(self, text, status=200, **query):
        r = self.client.post(self.path + "/stdin" + ("?eof=1" if query.get("eof") else ""), text.encode() if isinstance(text, str) else text)
        assert r.status == status, r
        return r

    def info(self):
        return self.client.get(self.path).json()

    def screen(self):
        events = [json.loads(line) for line in self.client.get(self.path + "/output").body.splitlines()]
        return "".join(e["data"] for e in events if e["type"] == "stdout")

    def sees(self, pattern, seconds=10):
        """What came out up to the pattern."""
        return wait_until(lambda: re.search(pattern, self.screen(), re.S), seconds, pattern)

    def ended(self, seconds=20):
        return wait_until(lambda: self.info()["result"], seconds, "the end")


# ---- at once, streaming, detached ----

def test_what_a_program_sees(client, lease):
    r = client.exec(lease, "test -t 0 && test -t 1 && test -t 2 && tty && stty size && echo $TERM && echo err >&2 && echo own >/dev/tty", tty={"rows": 33, "cols": 101})
    assert r["stdout"] == "/dev/pts/0\r\n33 101\r\nxterm-256color\r\nerr\r\nown\r\n" and r["stderr"] == "" and r["returncode"] == 0
    assert client.exec(lease, "stty size", tty={})["stdout"] == "24 80\r\n"
    assert client.exec(lease, ["tty", "-s"])["returncode"] == 1
    assert client.exec(lease, "echo $TERM", tty=TTY, env={"TERM": "vt100"})["stdout"] == "vt100\r\n"
    assert client.exec(lease, "echo $TERM")["stdout"] == "dumb\n"
    assert client.exec(lease, ["python3", "-c", "import os; print(os.get_terminal_size(), os.tcgetpgrp(0) == os.getpgid(0) == os.getsid(0) == os.getpid())"],
                       tty=TTY)["stdout"] == "os.terminal_size(columns=80, lines=24) True\r\n"
    assert client.exec(lease, "exit 7", tty=TTY)["returncode"] == 7
    assert client.exec(lease, "kill -SEGV $$", tty=TTY)["signal"] == "SIGSEGV"
    r = client.exec(lease, ["nosuchprogram"], tty=TTY)
    assert r["returncode"] == 127 and "not found" in r["stdout"]


def test_streams(client, lease):
    events = ndjson(client, lease, "echo one; echo two >&2; exit 3")
    assert [e["type"] for e in events] == ["start"] + ["stdout"] * (len(events) - 2) + ["exit"]
    assert "".join(e["data"] for e in events[1:-1]) == "one\r\ntwo\r\n" and events[-1]["returncode"] == 3 and events[-1]["stderr_bytes_total"] == 0


def test_input_of_the_request(client, lease):
    assert client.exec(lease, "cat", tty=TTY)["stdout"] == ""
    assert client.exec(lease, "cat; cat; echo end", tty=TTY)["stdout"] == "end\r\n"
    assert client.exec(lease, "read x; echo $?", tty=TTY)["stdout"] == "1\r\n"
    assert client.exec(lease, "stty -echo; cat", tty=TTY, stdin="hi\n")["stdout"] in ("hi\r\n", "hi\r\nhi\r\n")
    assert client.exec(lease, "cat", tty=TTY, stdin="begun")["stdout"] == "begunbegun"
    assert client.exec(lease, ["sleep", "30"], tty=TTY, stdin="\x03")["signal"] == "SIGINT"
    r = client.exec(lease, ["head", "-c", "1"], tty=TTY, stdin="y\n" * 1000000, max_output_bytes=10)
    assert r["returncode"] == 0


def test_all_output_arrives(client, lease):
    for n in (1, 4095, 4096, 30000, 3000000):
        for _ in range(3):
            assert client.exec(lease, f"head -c {n} /dev/zero | tr '\\0' x", tty=TTY, max_output_bytes=10)["stdout_bytes_total"] == n


def test_the_end_does_not_wait_for_who_holds_it(client, lease):
    began = time.monotonic()
    assert client.exec(lease, "setsid sleep 60 & echo hi", tty=TTY)["stdout"] == "hi\r\n"
    assert client.exec(lease, "trap '' HUP; (while :; do echo x; done) & echo hi", tty=TTY, max_output_bytes=100)["returncode"] == 0
    assert time.monotonic() - began < 10 * SLOW
    assert client.exec(lease, "exec >/dev/null 2>&1 </dev/null; sleep 0.2; echo late >/dev/tty", tty=TTY)["stdout"] == "late\r\n"
    # The terminal is hung up, the background lives on.
    client.exec(lease, "trap '' HUP; (while echo x; do sleep 0.01; done; echo over > hung) & echo hi", tty=TTY)
    wait_until(lambda: client.read(lease, "hung").body == b"over\n", what="the background's own end")


def test_timeouts_and_kills_take_everything(client, lease):
    r = client.exec(lease, "setsid sleep 1234 & trap '' INT HUP TERM; echo up; cat; sleep 60", tty=TTY, timeout=1, stdin="x\n")
    assert r["timed_out"] and r["killed_by"] == "timeout" and "up\r\n" in r["stdout"]
    shell = Shell(client, lease, "setsid sleep 1234 & trap '' INT HUP TERM; echo up; while :; do sleep 1; done")
    shell.sees("up")
    assert client.delete(shell.path).status == 200
    assert shell.ended()["killed_by"] == "caller"
    assert client.exec(lease, "! grep -as 'sleep.[1]234' /proc/[1-9]*/cmdline")["returncode"] == 0


# ---- interactive ----

def test_an_interactive_shell(client, lease):
    shell = Shell(client, lease)
    shell.sees(r"\$ ")
    shell.type("echo sum $((40+2)); test -t 0 && echo yes-a-tty\n")
    shell.sees("sum 42\r\nyes-a-tty\r\n")
    assert "echo sum $((40+2))" in shell.screen()  # the echo
    shell.type("sleep 1000\n")
    wait_until(lambda: b"1000" in client.exec(lease, "cat /proc/[1-9]*/cmdline | tr '\\0' ' '")["stdout"].encode(), what="sleep")
    shell.type("\x03")
    shell.type("echo status $?\n")
    shell.sees("status 130\r\n")
    shell.type("cat\n")
    shell.type("copied\n\x04echo after $?\n")
    shell.sees("copied\r\n.*after 0\r\n")
    assert shell.info()["state"] == "running"
    shell.type("\x04")
    r = shell.ended()
    assert r["returncode"] == 0 and r["signal"] is None and shell.info()["state"] == "finished"
    assert shell.type("x", status=409).code == "conflict"


def test_jobs_left_in_the_background_live_on(client, lease):
    shell = Shell(client, lease, "exec bash --norc -i")
    shell.type("(trap '' TTOU; while :; do date >> alive; sleep 0.05; done) >/dev/null 2>&1 &\n")
    wait_until(lambda: client.read(lease, "alive").status == 200, what="the job")
    shell.type("exit\n")
    shell.ended()
    size = len(client.read(lease, "alive").body)
    wait_until(lambda: len(client.read(lease, "alive").body) > size, what="the job goes on")
    assert client.delete(shell.path).status == 200

    def still():
        before = len(client.read(lease, "alive").body)
        time.sleep(0.3)
        return len(client.read(lease, "alive").body) == before
    wait_until(still, what="the end of the job")


def test_the_end_of_input_can_be_sent(client, lease):
    shell = Shell(client, lease, "cat; echo done")
    shell.type("partial", eof=True)
    assert shell.ended()["stdout"] == "partialpartialdone\r\n"
    shell = Shell(client, lease, "cat; echo done")
    r = shell.type("", eof=True)
    assert r.json()["eof"] is True and shell.ended()["stdout"] == "done\r\n"


def test_a_large_paste_arrives_whole(client, lease):
    text = "".join(f"line {i} {'x' * 40}\n" for i in range(20000)).encode()
    assert len(text) > 1000000
    shell = Shell(client, lease, "stty -echo; echo ready; sha256sum > sum; echo done")
    shell.sees("ready")
    assert shell.type(text, eof=True).json()["bytes"] == len(text)
    assert shell.ended(60)["returncode"] == 0
    assert client.read(lease, "sum").body.split()[0].decode() == hashlib.sha256(text).hexdigest()


def test_what_was_not_taken_is_not_claimed(client, lease):
    shell = Shell(client, lease, "stty -echo; echo ready; exec sleep 2")
    shell.sees("ready")
    r = shell.type(b"y\n" * 500000, status=409)
    assert r.code == "conflict" and 0 < r.json()["bytes_taken"] < 1000000


# ---- its size ----

def test_resize(client, lease):
    shell = Shell(client, lease, "trap 'stty size' WINCH; echo ready; while :; do sleep 0.05; done")
    shell.sees("ready")
    assert shell.info()["tty"] == TTY
    r = client.post(shell.path + "/resize", {"rows": 50, "cols": 132})
    assert r.status == 200 and r.json() == {"exec_id": shell.info()["exec_id"], "rows": 50, "cols": 132}
    assert shell.info()["tty"] == {"rows": 50, "cols": 132}
    shell.sees("50 132\r\n")
    client.delete(shell.path)
    shell.ended()
    r = client.post(shell.path + "/resize", {"rows": 50, "cols": 132})
    assert r.status == 409 and r.code == "conflict"
    assert [e["tty"] for e in client.get(f"/leases/{lease}/exec").json()["items"] if e["exec_id"] == shell.info()["exec_id"]] == [{"rows": 50, "cols": 132}]


def test_sizes_that_are_none(client, lease):
    shell = Shell(client, lease, "sleep 60")
    for bad, field in (({}, "rows"), ({"rows": 1}, "cols"), ({"rows": 0, "cols": 1}, "rows"), ({"rows": 1, "cols": -1}, "cols"),
                       ({"rows": "1", "cols": 1}, "rows"), ({"rows": 1.5, "cols": 1}, "rows"), ({"rows": 1, "cols": 1, "depth": 1}, "depth")):
        r = client.post(shell.path + "/resize", bad)
        assert r.status == 400 and r.code == "invalid_request" and r.json()["field"] == field, (bad, r)
        if bad and len(bad) > 1:
            r = client.exec_response(lease, "true", tty=bad)
            assert r.status == 400 and r.json()["field"] == "tty." + field, (bad, r)
    for tty in (True, [24, 80], "24x80", 1):
        r = client.exec_response(lease, "true", tty=tty)
        assert r.status == 400 and r.json()["field"] == "tty", r
    for big in ({"rows": 4097, "cols": 1}, {"rows": 1, "cols": 1000000}):
        field = max(big, key=big.get)
        r = client.post(shell.path + "/resize", big)
        assert r.status == 422 and r.code == "limit_exceeded" and r.json()["field"] == field, r
        r = client.exec_response(lease, "true", tty=big)
        assert r.status == 422 and r.code == "limit_exceeded" and r.json()["field"] == "tty." + field, r
    client.exec(lease, "true", exec_id="plain")
    r = client.post(f"/leases/{lease}/exec/plain/resize", TTY)
    assert r.status == 409 and r.code == "no_tty"
    assert client.get(f"/leases/{lease}/exec/plain").json()["tty"] is None
    assert client.post(f"/leases/{lease}/exec/none/resize", TTY).status == 404


# ---- what it costs, and what it must not open ----

def test_nothing_is_left(server, client, lease):
    client.exec(lease, "true", tty=TTY)
    before = server.descriptors()
    for _ in range(100):
        client.exec(lease, "true", tty=TTY)
    wait_until(lambda: server.descriptors() <= before + 10, what="all descriptors are closed")  # a few for control groups that are kept
    assert client.exec(lease, "ls /dev/pts")["stdout"] == "ptmx\n"


def test_slots_come_back_with_terminals_open(server):
    client = server.client()
    for _ in range(4):
        lease = client.lease()
        shell = Shell(client, lease, "setsid sleep 1000 & exec cat")
        client.exec(lease, "trap '' HUP; setsid sleep 1000 & true", tty=TTY)
        assert shell.info()["state"] == "running"
        client.terminate(lease)
    server.wait_slots(2)


def test_nobody_types_for_others(client, lease):
    code = "import fcntl, termios\ntry:\n  fcntl.ioctl(0, termios.TIOCSTI, b'x')\n  print('typed')\nexcept OSError as e:\n  print(e.errno)"
    assert client.exec(lease, ["python3", "-c", code], tty=TTY)["stdout"] == "1\r\n"


def test_a_backend_without_terminals_says_so():
    with Server({"backends": {"enabled": ["fake"]}, "fake": {"script": "{}"}}) as s:
        c = s.client()
        rows = {b["name"]: b for b in c.get("/backends").json()["items"]}
        assert rows["fake"]["tty"] is False and rows["local_bwrap"]["tty"] is True
        lease = c.lease(policy={"override": "fake"})
        for more in ({}, {"detach": True}):
            r = c.exec_response(lease, "echo hi", tty=TTY, **more)
            assert r.status == 422 and r.code == "not_supported" and r.json()["field"] == "tty", r
        assert c.exec(lease, "echo hi")["stdout"] == "hi\n"
