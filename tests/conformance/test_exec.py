"""Commands that need a real shell: their ends, their bytes, their environment, where they run."""
import concurrent.futures
import contextlib
import hashlib
import os
import time

import pytest

from box import Box
from conftest import SECRET
from harness import SLOW, output, processes_below, wait_until

pytestmark = pytest.mark.needs("shell")


# Command, more of the body, and members of the result.
RESULTS = {
    "segv": ("kill -SEGV $$", {}, {"returncode": None, "signal": "SIGSEGV", "killed": False, "killed_by": None}),
    "kills itself": ("kill -KILL $$", {}, {"returncode": None, "signal": "SIGKILL", "killed": False}),
    "term": ("kill -TERM $$", {}, {"returncode": None, "signal": "SIGTERM"}),
    "both streams": ("echo out; echo 'timed out after' >&2; exit 7", {}, {"stdout": "out\n", "stderr": "timed out after\n", "returncode": 7, "timed_out": False}),
    "child's code": ("(exit 5)", {}, {"returncode": 5}),
    "child's signal": ("sh -c 'kill -KILL $$'; echo $?", {}, {"stdout": "137\n", "returncode": 0}),
    "shell syntax": ("if", {}, {"returncode": 2}),
    "shell": ("echo $0", {}, {"stdout": "/bin/sh\n"}),
    "no newline": ("printf 'no newline'", {}, {"stdout": "no newline"}),
    "heredoc": ("cat <<'EOF' > h\n$HOME `id`\nEOF\ncat h", {}, {"stdout": "$HOME `id`\n", "returncode": 0}),
    "loops": ("for i in 1 2 3; do echo $i; done", {}, {"stdout": "1\n2\n3\n"}),
    "late output": ("(sleep 0.05; echo late) & exit 0", {}, {"stdout": "late\n", "returncode": 0}),
    "bytes": ("printf '\\377\\376ok\\n'", {}, {"stdout": "//5vawo=", "stdout_encoding": "base64", "stdout_bytes_total": 5}),
    "bytes on stderr": ("printf '\\377' >&2; echo text", {}, {"stderr": "/w==", "stderr_encoding": "base64", "stdout": "text\n", "stdout_encoding": "utf-8"}),
    "nul": ("printf 'a\\0b'", {}, {"stdout_bytes_total": 3}),
    "cut in a character": ("printf 'ééé'", {"max_output_bytes": 3}, {"stdout": "é", "stdout_encoding": "utf-8", "stdout_truncated": True, "stdout_bytes_total": 6}),
    "python's own kind": (["sh", "-c", "echo \"$1\" \"$#\"", "name", "a b", "c"], {}, {"stdout": "a b 2\n"}),
    "many arguments": (["sh", "-c", "echo $#", "name"] + ["x"] * 2000, {}, {"stdout": "2000\n"}),
    "a long argument": (["sh", "-c", "echo ${#1}", "name", "x" * 100000], {}, {"stdout": "100000\n"}),
    "a long text": ("echo " + "x" * 100000 + " | wc -c", {}, {"returncode": 0}),
    "wait for stdin": ("read a; read b || echo \"$a end\"", {"stdin": "one\n"}, {"stdout": "one end\n"}),
    "cat to file": ("cat > f; wc -c < f", {}, {"returncode": 0}),
    "closes stdout": ("exec >&- 2>&-; sleep 0.05; exit 4", {}, {"returncode": 4, "stdout": "", "stderr": ""}),
    "group signal": ("trap '' TERM; kill -TERM 0; echo alive", {}, {"stdout": "alive\n", "returncode": 0}),
}


@pytest.mark.parametrize("name", RESULTS)
def test_results(box, name):
    command, more, expected = RESULTS[name]
    r = box.run(command, **more)
    assert {k: r[k] for k in expected} == expected, {k: v for k, v in r.items() if k != "cmd"}


ARGUMENTS = ["a\nb", "x \"$HOME\" `id` $(id)", "*", "-n", "é", "", " ", "\\", "'", "%s", "\t", "\x01\x7f", "a;b|c&d", "#", "~"]


def test_arguments_are_exact(box):
    for arg in ARGUMENTS:
        assert box.run(["printf", "[%s]", arg])["stdout"] == f"[{arg}]"
    assert box.run(["printf", "[%s]", *ARGUMENTS])["stdout"] == "".join(f"[{a}]" for a in ARGUMENTS)


def test_what_cannot_be_run(box):
    box.write("plain", b"#!/bin/sh\necho no\n", mode="0644")
    box.write("bad", b"#!/no/such/interpreter\n", mode="0755")
    for command, code in (("nosuchcmd", 127), (["nosuchcmd"], 127), (["/no/such/file"], 127), (["./missing"], 127), (["./plain"], 126), ("./plain", 126),
                          (["."], 126), (["./plain/x"], (126, 127)), (["./bad"], (126, 127))):
        r = box.run(command)
        assert r["returncode"] in (code if isinstance(code, tuple) else (code,)) and r["stderr"] and r["signal"] is None, (command, r)
    for argv in (["printf", "a\0b"], [""]):
        assert box.ask(argv).code == "invalid_request"


def test_where_commands_run(box, fresh):
    box.run("mkdir -p sub/dir; echo x > file; ln -s sub link")
    home = box.out("pwd").strip()
    assert home.endswith("/" + box.at)
    for cwd, tail in ((box.at + "/sub/dir", "/sub/dir"), (box.at + "/sub/../sub/./dir/", "/sub/dir"), (home + "/sub", "/sub")):
        r = box.run(["pwd"], cwd=cwd)
        assert r["stdout"] == home + tail + "\n", (cwd, r)
    assert box.out("cat dir/../../file", cwd=box.at + "/link") == "x\n"
    place = f"/tmp/{box.at}"
    box.write(place, b"in tmp")
    assert box.out(["cat", box.at], cwd="/tmp") == "in tmp"  # paths of commands' cwd and of files are the same
    assert box.out("pwd", cwd=".") + box.at == home.replace("/" + box.at, "\n") + box.at and "/workspace\n" in fresh.out("pwd")
    for cwd in ("missing", box.at + "/file", box.at + "/sub/missing/x"):
        r = box.ask(["pwd"], cwd=cwd)
        assert r.status == 422 and r.code == "cwd_not_found", (cwd, r)


def test_the_environment_is_exact(server, backend):
    env = {"A": "x\ny", "B": "it's \"$HOME\"", "C": "", "D": "é", "_under": "1", "LONG": "v" * 20000}
    c = server.client()
    id = c.lease(env={"A": "lease", "E": "from lease"})
    try:
        seen = dict(v.split("=", 1) for v in output(c.exec(id, ["env", "-0"], env=env)).decode().split("\0") if v)
        assert {k: seen[k] for k in ["E", *env]} == dict(env, E="from lease")
        assert {"PATH", "HOME", "USER", "LANG", "TERM"} <= set(seen)
        allowed = {"PATH", "HOME", "USER", "LANG", "TERM", "E", *env} | (set() if backend.isolated else {"TMPDIR"})
        assert set(seen) <= allowed, set(seen) - allowed
        assert c.exec(id, "test -d \"$HOME\" && test -w \"$HOME\" && cd \"$HOME\" && echo x > f && cat f")["stdout"] == "x\n"
        assert "v" * 100 not in output(c.exec(id, ["env", "-0"])).decode(), "what an exec sets must not stay"
    finally:
        c.terminate(id)


def test_secrets_of_the_server_stay_out(server, box, backend):
    """Its variables, which it has, but does not show to others of its user either; its state."""
    held = [c for b in box.client.get("/backends").json()["items"] for c in b["credentials"] if c["name"] == "RUNLOOP_API_KEY"]
    assert held == [{"name": "RUNLOOP_API_KEY", "held": True}] and server.env["RUNLOOP_API_KEY"] == SECRET
    for pid in (server.pid(), *(p.pid for p in processes_below(server.pid()))):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as f:
            assert SECRET.encode() not in f.read(), pid
    assert box.run(["env"])["stdout"].count(SECRET) == 0
    assert SECRET not in box.run("cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'", max_output_bytes=1 << 20)["stdout"]
    if backend.isolated or os.geteuid() == 0:  # commands on the host of a server that is no root are its own user
        assert box.run(["ls", server.state])["returncode"] != 0


# ---- input ----

def test_input_of_any_size(box):
    for n in (1, 4096, 65536, 65537, 1000000):
        text = "0123456789abcdef"[:n] * (n // 16 or 1)
        assert box.run("sha256sum", stdin=text)["stdout"].split()[0] == hashlib.sha256(text.encode()).hexdigest(), n


def test_who_reads_too_little(box):
    big = "x" * (1 << 20)
    assert box.run(["true"], stdin=big)["returncode"] == 0
    r = box.run(["head", "-c", "1"], stdin=big)
    assert (r["returncode"], r["stdout"]) == (0, "x")
    assert box.run("exec <&-; sleep 0.1; echo over", stdin=big)["stdout"] == "over\n"
    assert box.client.get("/healthz").status == 200


def test_input_in_pieces(box):
    eid = box.detach("while read -r line; do echo \"got $line\"; done; echo end")
    for i in range(5):
        assert box.client.post(f"{box.url}/exec/{eid}/stdin", b"%d\n" % i).status == 200
    whole = b"".join(b"%06d\n" % i for i in range(20000))
    assert box.client.post(f"{box.url}/exec/{eid}/stdin?eof=1", whole[:70]).status == 200
    assert box.ended(eid)["result"]["stdout"].split("\n")[:6] == [f"got {i}" for i in range(5)] + ["got 000000"]
    eid = box.detach("sha256sum")
    for at in range(0, len(whole), 50000):
        assert box.client.post(f"{box.url}/exec/{eid}/stdin", whole[at:at + 50000]).json()["bytes"] == len(whole[at:at + 50000])
    assert box.client.post(f"{box.url}/exec/{eid}/stdin?eof=1", b"").status == 200
    assert box.ended(eid)["result"]["stdout"].split()[0] == hashlib.sha256(whole).hexdigest()
    r = box.client.post(f"{box.url}/exec/{eid}/stdin", b"more")
    assert r.status == 409, r


# ---- output ----

def test_everything_a_command_wrote_is_there(box):
    for n in (1, 65536, 65537, 3000000):
        r = box.run(f"head -c {n} /dev/zero | tr '\\0' x")
        assert r["stdout"] == "x" * n and r["stdout_bytes_total"] == n and not r["stdout_truncated"], n


def test_no_deadlock_beyond_a_pipes_buffer(box):
    for first, second in ((2, 1), (1, 2)):
        r = box.run(f"head -c 600000 /dev/zero | tr '\\0' e >&{first}; head -c 600000 /dev/zero | tr '\\0' o >&{second}")
        assert len(r["stdout"]) == len(r["stderr"]) == 600000


def test_bytes_are_exact(box):
    r = box.run("head -c 200000 /dev/urandom > r; cat r")
    assert r["stdout_encoding"] == "base64" and output(r) == box.read("r").body
    assert output(box.run("printf 'a\\0b'")) == b"a\0b"


@pytest.mark.parametrize("n,truncated", [(9999, False), (10000, False), (10001, True), (163840, True)])
def test_output_above_the_bound_is_counted(box, n, truncated):
    r = box.run(f"head -c {n} /dev/zero | tr '\\0' y; head -c {n} /dev/zero | tr '\\0' z >&2; exit 5", max_output_bytes=10000)
    assert r["returncode"] == 5
    for name, letter in (("stdout", "y"), ("stderr", "z")):
        assert (r[name + "_truncated"], r[name + "_bytes_total"], r[name]) == (truncated, n, letter * min(n, 10000))


def test_code_and_output_belong_together(box):
    """Whenever a command is said to be over all it wrote is there; and what ran before or beside does not mix in."""
    def one(i):
        r = box.run(f"echo {i}; echo e{i} >&2; exit {i % 200}")
        assert (r["stdout"], r["stderr"], r["returncode"]) == (f"{i}\n", f"e{i}\n", i % 200), r
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(40)))
    for i in range(5):
        eid = box.detach(f"echo {i}; echo x")
        assert box.ended(eid)["result"]["stdout"] == f"{i}\nx\n"


# ---- ends ----

def test_a_command_that_handles_its_signal(box):
    eid = box.detach("trap 'echo got; exit 3' USR1; touch up; while :; do sleep 0.02; done")
    box.appears("up")
    assert box.client.post(f"{box.url}/exec/{eid}/signal", {"signal": "SIGUSR1"}).status == 200
    r = box.ended(eid)["result"]
    assert (r["stdout"], r["returncode"], r["signal"], r["killed"]) == ("got\n", 3, None, False)


def test_a_timeout_keeps_what_was_written(box):
    r = box.run("trap '' TERM INT HUP; echo before; while :; do sleep 0.05; done", timeout=0.3)
    assert r["timed_out"] and r["killed_by"] == "timeout" and r["stdout"] == "before\n" and r["returncode"] is None and r["duration_seconds"] < 10 * SLOW


def test_background_children_do_not_hold_the_answer_and_live_on(box):
    began = time.monotonic()
    r = box.run("echo hi; (while :; do echo x >> alive; sleep 0.05; done) &")
    assert time.monotonic() - began < 5 * SLOW and (r["returncode"], r["stdout"]) == (0, "hi\n")
    size = box.size("alive")
    wait_until(lambda: box.size("alive") > max(size, 0), what="the child's further life")
    assert box.kill(r["exec_id"]).status in (200, 404)


def test_killing_a_finished_command_kills_its_children(box):
    eid = box.detach("(while :; do echo x >> alive; sleep 0.02; done) & exit 0")
    assert box.ended(eid)["state"] == "finished"
    box.appears("alive")
    assert box.kill(eid).status == 200
    wait_until(lambda: stays(box, "alive"), what="the end of the child")


TICK = "while :; do echo x >> t; sleep 0.02; done"
CHILDREN = {
    "child": f"(sh -c '{TICK}') &",
    "session": f"setsid sh -c 'trap \"\" HUP; {TICK}' >/dev/null 2>&1 &",
    "orphan of an orphan": f"(setsid sh -c 'trap \"\" TERM INT HUP; ({TICK}) & wait' &) &",
    "pipeline": f"sh -c '{TICK}' | sleep 60 &",
}


def stays(box, path):
    """The file does not grow while a command of the sandbox waits for a while."""
    size = box.size(path)
    box.run("sleep 0.15", cwd=".")
    return size == box.size(path) and size > 0


def ticking(box, child):
    """The same box one directory further down, for a child of its own."""
    own = Box(box.server, box.lease, box.path(child.replace(" ", "-")))
    own.make()
    own.write("t", b"")
    return own


def test_a_timeout_kills_the_whole_tree(box):
    boxes = {child: ticking(box, child) for child in CHILDREN}
    with concurrent.futures.ThreadPoolExecutor(len(CHILDREN)) as pool:
        results = list(pool.map(lambda c: boxes[c].run(f"{CHILDREN[c]} sleep 60", timeout=0.4), CHILDREN))
    assert all(r["timed_out"] for r in results), results
    sizes = {c: b.size("t") for c, b in boxes.items()}
    box.run("sleep 0.2", cwd=".")
    assert sizes == {c: b.size("t") for c, b in boxes.items()} and min(sizes.values()) > 0


def test_who_hangs_up_kills_the_whole_tree(box):
    for child in ("session", "pipeline"):
        own = ticking(box, child)
        with own.stream(f"{CHILDREN[child]} sleep 60") as s:
            assert next(s.events())["type"] == "start"
            wait_until(lambda: own.size("t") > 0)
        wait_until(lambda: stays(own, "t"), what="the end of the tree")


def test_a_kill_of_many_processes(box):
    eid = box.detach("i=0; while [ $i -lt 40 ]; do (setsid sh -c 'while :; do sleep 1; done' &); i=$((i+1)); done; touch up; sleep 60")
    box.appears("up")
    assert box.kill(eid).status == 200
    assert box.ended(eid)["result"]["killed_by"] == "caller"
    assert box.run("echo usable")["stdout"] == "usable\n"
