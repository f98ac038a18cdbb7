"""Commands on a terminal, where the backend has that."""
import re

import pytest

import ws
from harness import SLOW, wait_until
from upstream import Conn

pytestmark = pytest.mark.needs("tty", "shell")
TTY = {"rows": 33, "cols": 101}


def test_what_a_program_sees(box):
    r = box.run("test -t 0 && test -t 1 && test -t 2 && stty size && echo $TERM && echo err >&2", tty=TTY)
    assert (r["stdout"], r["stderr"], r["returncode"]) == ("33 101\r\nxterm-256color\r\nerr\r\n", "", 0)
    assert box.run("test -t 0 || test -t 1")["returncode"] == 1
    assert box.run("exit 7", tty=TTY)["returncode"] == 7 and box.run("kill -SEGV $$", tty=TTY)["signal"] == "SIGSEGV"
    r = box.run(["nosuchprogram"], tty=TTY)
    assert r["returncode"] == 127 and r["stdout"] != ""


def test_what_is_typed(box):
    assert box.run("cat", tty=TTY)["stdout"] == ""
    assert box.run("stty -echo; read a; echo \"got $a\"", tty=TTY, stdin="hi\n")["stdout"].endswith("got hi\r\n")
    assert box.run(["sleep", "30"], tty=TTY, stdin="\x03")["signal"] == "SIGINT"


def test_an_interactive_shell_that_is_resized_and_attached(box):
    eid = box.detach("exec sh -i", tty=TTY)

    def screen():
        return "".join(e["data"] for e in box.output(eid) if e["type"] == "stdout")

    def types(text):
        assert box.client.post(f"{box.url}/exec/{eid}/stdin", text).status == 200
    types(b"echo a$((40+2))z\n")
    wait_until(lambda: "a42z" in screen())
    r = box.client.post(f"{box.url}/exec/{eid}/resize", {"rows": 50, "cols": 132})
    assert r.status == 200, r
    types(b"stty size\n")
    wait_until(lambda: "50 132" in screen())
    c = Conn(box.server.connect(timeout=30 * SLOW))
    c.send(ws.request(f"{box.url}/exec/{eid}/attach", host="localhost"))
    assert c.head()[0].split()[1] == b"101"
    c.send(ws.frame(ws.BINARY, b"echo b$((50+5))z; exit 3\n", True))
    seen, end = b"", None
    while end is None:
        opcode, data = ws.read_frame(c)
        if opcode == ws.BINARY:
            seen += data
        end = data if opcode == ws.TEXT and b'"exit"' in data else None
    assert b"b55z" in seen and b'"returncode":3' in end.replace(b" ", b""), (seen, end)
    c.close()
    r = box.client.post(f"{box.url}/exec/{eid}/resize", {"rows": 50, "cols": 132})
    assert r.status == 409, r


def test_timeouts_take_everything(box):
    r = box.run("trap '' INT HUP TERM; (setsid sh -c 'while :; do echo x >> t; sleep 0.02; done' &); echo up; while :; do sleep 1; done", tty=TTY, timeout=0.3)
    assert r["timed_out"] and re.search("up", r["stdout"])
    size = box.size("t")
    box.run("sleep 0.15")
    assert box.size("t") == size > 0
