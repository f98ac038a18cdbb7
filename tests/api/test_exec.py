"""Commands: their end, their tree, their output, their environment."""
import concurrent.futures
import os
import time

import pytest

from harness import SLOW, output, wait_until


# ---- the end of a command, background children, stdin ----

def test_background_child_does_not_hold_the_answer(client, lease):
    began = time.monotonic()
    r = client.exec(lease, "echo hi; sleep 30 &")
    assert time.monotonic() - began < 5 * SLOW
    assert (r["returncode"], r["stdout"]) == (0, "hi\n")
    assert client.exec(lease, "true")["returncode"] == 0
    # The child lives on until the lease ends: the documented policy.
    assert client.exec(lease, "pgrep -x sleep || ps | grep '[s]leep 30'")["returncode"] == 0


def test_late_output_within_the_grace_is_not_lost(client, lease):
    assert client.exec(lease, "(sleep 0.05; echo late) & exit 0")["stdout"] == "late\n"


def test_everything_the_leader_wrote_is_there(client, lease):
    r = client.exec(lease, "head -c 8000000 /dev/zero | tr '\\0' x")
    assert r["stdout_bytes_total"] == 8000000 and len(r["stdout"]) == 8000000 and not r["stdout_truncated"]


def test_a_running_command_blocks_no_other(client, lease, server):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        other = pool.submit(server.client().exec, lease, "sleep 2")
        began = time.monotonic()
        assert client.exec(lease, "echo quick")["stdout"] == "quick\n"
        assert client.get(f"/leases/{lease}/files/list").status == 200
        assert time.monotonic() - began < 2 * SLOW and not other.done()
        other.result()


def test_stdin_absent_is_end_of_file(client, lease):
    r = client.exec(lease, ["cat"])
    assert (r["returncode"], r["stdout"]) == (0, "")
    assert client.exec(lease, "cat > f.py; wc -c < f.py")["stdout"].strip() == "0"
    r = client.exec(lease, ["python3", "-c", "input()"])
    assert r["returncode"] == 1 and "EOFError" in r["stderr"]


def test_stdin_text_and_bytes(client, lease):
    assert client.exec(lease, ["cat"], stdin="grüße\n")["stdout"] == "grüße\n"
    assert output(client.exec(lease, ["cat"], stdin_base64="AP+A"))  == b"\x00\xff\x80"
    assert client.exec(lease, ["wc", "-c"], stdin="")["stdout"].strip() == "0"


def test_reader_that_closes_stdin_early(client, lease):
    big = "x" * (10 << 20)
    r = client.exec(lease, ["true"], stdin=big)
    assert r["returncode"] == 0
    r = client.exec(lease, ["head", "-c", "1"], stdin=big)
    assert (r["returncode"], r["stdout"]) == (0, "x")
    assert client.get("/healthz").status == 200


def test_heredoc_twice(client, lease):
    for _ in range(2):
        assert client.exec(lease, "cat <<'EOF' > a.txt\nhello\nEOF")["returncode"] == 0
        assert client.read(lease, "a.txt").body == b"hello\n"


def test_argv_passes_unchanged(client, lease):
    for arg in ["a\nb", "x \"$HOME\" `id` $(id)", "*", "-n", "é", "", " ", "\\", "'"]:
        r = client.exec(lease, ["printf", "[%s]", arg])
        assert r["stdout"] == f"[{arg}]", arg


def test_nul_in_argv_is_refused(client, lease):
    r = client.exec_response(lease, ["printf", "a\0b"])
    assert r.status == 400 and r.code == "invalid_request", r


def test_health_answers_during_many_execs(server, client):
    n = 50 if SLOW == 1 else 10
    ids = [client.lease() for _ in range(2)]
    try:
        with concurrent.futures.ThreadPoolExecutor(n) as pool:
            began = time.monotonic()
            runs = [pool.submit(server.client().exec, ids[i % 2], "sleep 3") for i in range(n)]
            took = []
            while not all(r.done() for r in runs):
                for path in ("/healthz", f"/leases/{ids[0]}"):
                    asked = time.monotonic()
                    assert client.get(path).status == 200
                    took.append(time.monotonic() - asked)
                time.sleep(0.1)
            assert sorted(took)[len(took) // 2] < 0.1 * SLOW  # most of them: this machine has other work, too
            took = time.monotonic() - began
            assert all(r.result()["returncode"] == 0 for r in runs)
            assert took < 3 * n / 4  # side by side, not in series
    finally:
        for id in ids:
            client.terminate(id)


def test_shell_is_sh(client, lease):
    assert client.exec(lease, "echo $0")["stdout"].strip() in ("/bin/sh", "sh")


# ---- exit status, signals, timeouts, trees ----

@pytest.mark.parametrize("command", ["nosuchcmd", ["nosuchcmd"], ["/no/such/file"]])
def test_missing_program_is_127(client, lease, command):
    r = client.exec(lease, command)
    assert r["returncode"] == 127 and r["stderr"] != "" and r["signal"] is None


@pytest.mark.parametrize("command", ["./plain", ["./plain"], ["/workspace"]])
def test_not_executable_is_126(client, lease, command):
    client.write(lease, "plain", b"#!/bin/sh\necho no\n", mode="0644")
    r = client.exec(lease, command)
    assert r["returncode"] == 126 and r["stderr"] != ""


def test_death_by_signal_is_not_an_exit_code(client, lease):
    r = client.exec(lease, "kill -SEGV $$")
    assert (r["returncode"], r["signal"], r["killed"]) == (None, "SIGSEGV", False)
    r = client.exec(lease, "kill -KILL $$")
    assert (r["returncode"], r["signal"], r["killed"]) == (None, "SIGKILL", False)
    r = client.exec(lease, "exit 137")
    assert (r["returncode"], r["signal"]) == (137, None)


def test_nonzero_exit_is_a_result(client, lease):
    r = client.exec(lease, "echo out; echo 'timed out after' >&2; exit 7")
    assert (r["returncode"], r["stdout"], r["stderr"], r["timed_out"]) == (7, "out\n", "timed out after\n", False)


def test_timeout_kill_and_natural_124_differ(client, lease, server):
    r = client.exec(lease, "echo before; sleep 30", timeout=1)
    assert r["timed_out"] and r["killed_by"] == "timeout" and r["stdout"] == "before\n" and r["timeout"] == 1
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        run = pool.submit(server.client().exec, lease, "sleep 30", exec_id="victim")
        wait_until(lambda: client.get(f"/leases/{lease}/exec/victim").status == 200)
        assert client.delete(f"/leases/{lease}/exec/victim").status == 200
        r = run.result()
    assert r["killed"] and r["killed_by"] == "caller" and not r["timed_out"] and r["returncode"] is None
    assert client.get(f"/leases/{lease}/exec/victim").json()["state"] == "killed"
    r = client.exec(lease, "exit 124")
    assert (r["returncode"], r["timed_out"], r["killed"], r["killed_by"]) == (124, False, False, None)


def growing(client, lease, path):
    return client.get(f"/leases/{lease}/files/stat?path={path}").json()["size"]


@pytest.mark.parametrize("child", [
    "(sh -c 'while :; do echo x >> t; sleep 0.05; done') &",
    "setsid nohup sh -c 'while :; do echo x >> t; sleep 0.05; done' >/dev/null 2>&1 &",
    "(setsid sh -c 'trap \"\" TERM INT HUP; (while :; do echo x >> t; sleep 0.05; done) & wait' &) &",
    "sh -c 'while :; do echo x >> t; sleep 0.05; done' | sleep 60 &",
])
def test_timeout_kills_the_whole_tree(client, lease, child):
    r = client.exec(lease, f"touch t; {child} sleep 60", timeout=1)
    assert r["timed_out"]
    size = growing(client, lease, "t")
    client.exec(lease, "sleep 0.5")
    assert growing(client, lease, "t") == size > 0
    assert client.exec(lease, "pgrep -x sleep; ps ax 2>/dev/null | grep -c '[w]hile :'")["stdout"].strip() in ("", "0")


def test_hang_up_kills_the_command(server, client, lease):
    import json
    body = json.dumps({"command": "setsid sh -c 'while :; do echo x >> h; sleep 0.05; done' & sleep 60"}).encode()
    s = server.connect()
    s.sendall(b"POST /leases/%s/exec HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" %
              (lease.encode(), len(body)) + body)
    wait_until(lambda: client.get(f"/leases/{lease}/files/stat?path=h").status == 200)
    s.close()
    wait_until(lambda: client.exec(lease, "pgrep -x sleep >/dev/null && echo yes")["stdout"] == "", what="death of the command")
    size = growing(client, lease, "h")
    client.exec(lease, "sleep 0.3")
    assert growing(client, lease, "h") == size


@pytest.mark.parametrize("value,status", [(0, 400), (-1, 400), ("60", 400), (True, 400), ([], 400), (1e18, 422), (10**30, 400)])
def test_timeout_values_refused(client, lease, value, status):
    r = client.exec_response(lease, "true", timeout=value)
    assert r.status in ((status,) if status == 422 else (400, 422)), r
    assert r.json().get("field") == "timeout" or value == 10**30


def test_timeout_values_accepted(client, lease):
    assert client.exec(lease, "true", timeout=60.0)["timeout"] == 60
    assert client.exec(lease, "true", timeout=None)["timeout"] > 0
    assert client.exec(lease, "true")["timeout"] > 0
    assert client.exec(lease, "true", timeout=0.5)["timeout"] == 0.5


def test_descriptors_do_not_leak(server, client, lease, soak):
    n = 5000 if soak else 500 if SLOW == 1 else 300
    with concurrent.futures.ThreadPoolExecutor(4) as pool:  # what is kept for reuse is there before we count
        list(pool.map(lambda _: server.client().exec(lease, ["true"]), range(400)))
    fds, threads = server.descriptors(), server.threads()
    for _ in range(n):
        assert client.exec(lease, ["nosuchcmd"])["returncode"] == 127
    for _ in range(n):
        assert client.exec(lease, ["true"])["returncode"] == 0
    wait_until(lambda: server.descriptors() <= fds and server.threads() <= threads, what="descriptors going back")


def test_chosen_exec_id_is_idempotent(server, client, lease):
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        runs = [pool.submit(server.client().exec, lease, "echo x >> once; sleep 0.3; cat once", exec_id="one") for _ in range(10)]
        results = [r.result() for r in runs]
    assert {r["stdout"] for r in results} == {"x\n"} and {r["exec_id"] for r in results} == {"one"}
    assert client.exec(lease, "echo x >> once; sleep 0.3; cat once", exec_id="one")["stdout"] == "x\n"
    r = client.exec_response(lease, "other", exec_id="one")
    assert r.status == 409 and r.code == "exec_id_conflict"
    assert [i["exec_id"] for i in client.get(f"/leases/{lease}/exec").json()["items"]] == ["one"]


def test_signal_by_name(server, client, lease):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        run = pool.submit(server.client().exec, lease, "trap 'echo got; exit 3' USR1; touch up; while :; do sleep 0.05; done",
                          exec_id="sig")
        wait_until(lambda: client.get(f"/leases/{lease}/files/stat?path=up").status == 200)
        assert client.post(f"/leases/{lease}/exec/sig/signal", {"signal": "SIGUSR1"}).status == 200
        r = run.result()
    assert (r["stdout"], r["returncode"]) == ("got\n", 3)
    assert client.post(f"/leases/{lease}/exec/sig/signal", {"signal": "TERM"}).status == 409
    assert client.post(f"/leases/{lease}/exec/sig/signal", {"signal": "NOPE"}).status == 400
    assert client.post(f"/leases/{lease}/exec/none/signal", {"signal": "TERM"}).status == 404


# ---- output ----

def test_no_deadlock_above_the_pipe_buffer(client, lease):
    for first, second in ((2, 1), (1, 2)):
        r = client.exec(lease, f"head -c 1000000 /dev/zero | tr '\\0' e >&{first}; head -c 1000000 /dev/zero | tr '\\0' o >&{second}")
        assert len(r["stdout"]) == len(r["stderr"]) == 1000000


def test_one_long_line(client, lease):
    r = client.exec(lease, "head -c 10000000 /dev/zero | tr '\\0' x")
    assert len(r["stdout"]) == 10000000 and r["stdout"].strip("x") == ""
    assert client.exec(lease, "printf 'no newline'")["stdout"] == "no newline"


def test_bytes_that_are_not_text(client, lease):
    r = client.exec(lease, "printf '\\377\\376ok\\n'")
    assert r["stdout_encoding"] == "base64" and output(r) == b"\xff\xfeok\n"
    r = client.exec(lease, "head -c 65536 /dev/urandom | tee r")
    assert output(r) == client.read(lease, "r").body
    r = client.exec(lease, "printf 'a\\0b'")
    assert output(r) == b"a\0b"
    assert b"\0" in output(client.exec(lease, ["env", "-0"]))


@pytest.mark.parametrize("n,truncated", [(9999, False), (10000, False), (10001, True), (16384, True)])
def test_output_cap(client, lease, n, truncated):
    r = client.exec(lease, f"head -c {n} /dev/zero | tr '\\0' y; exit 5", max_output_bytes=10000)
    assert (r["stdout_truncated"], r["stdout_bytes_total"], r["returncode"]) == (truncated, n, 5)
    assert r["stdout"] == "y" * min(n, 10000)
    assert not r["stderr_truncated"]


def test_cut_inside_a_character_stays_text(client, lease):
    r = client.exec(lease, "printf 'ééé'", max_output_bytes=3)
    assert (r["stdout"], r["stdout_encoding"], r["stdout_truncated"], r["stdout_bytes_total"]) == ("é", "utf-8", True, 6)


# ---- bodies ----

@pytest.mark.parametrize("body,field", [
    ({"command": ""}, "command"), ({"command": []}, "command"), ({"command": 5}, "command"), ({}, "command"),
    ({"command": ["a", 1]}, "command[1]"), ({"command": "true", "nope": 1}, "nope"), ({"command": "true", "env": []}, "env"),
    ({"command": "true", "env": {"A": 1}}, "env.A"), ({"command": "true", "cwd": 3}, "cwd"),
    ({"command": "true", "stdin": 3}, "stdin"), ({"command": "true", "stdin": "a", "stdin_base64": "YQ=="}, "stdin_base64"),
    ({"command": "true", "stdin_base64": "!"}, "stdin_base64"), ({"command": "true", "max_output_bytes": 0}, "max_output_bytes"),
    ({"command": "true", "exec_id": "a/b"}, "exec_id"), ({"command": "true", "env": {"A=B": "x"}}, "env.A=B"),
])
def test_bad_bodies_name_the_field(client, lease, body, field):
    r = client.post(f"/leases/{lease}/exec", body)
    assert r.status == 400 and r.code == "invalid_request" and r.json()["field"] == field, r
    assert client.exec(lease, "true")["returncode"] == 0


@pytest.mark.parametrize("text", [b'{"command":"a","command":"b"}', b"[" * 64 + b"]" * 64, b"{", b"null", b"[]", b'"x"', b"",
                                  b'{"command":"a"} x', b'{"command":"\xff"}', b'{"command":"a\\u0000b"}'])
def test_bad_json(client, lease, text):
    r = client.post(f"/leases/{lease}/exec", text, headers={"Content-Type": "application/json"})
    assert r.status == 400 and r.code == "invalid_request", r
    assert client.exec(lease, "true")["returncode"] == 0


def test_cwd(client, lease):
    client.exec(lease, "mkdir -p sub/dir; echo x > file")
    assert client.exec(lease, ["pwd"], cwd="sub/dir")["stdout"] == "/workspace/sub/dir\n"
    assert client.exec(lease, ["pwd"], cwd="/tmp")["stdout"] == "/tmp\n"
    assert client.exec(lease, ["pwd"])["stdout"] == "/workspace\n"
    for cwd in ("missing", "file", "sub/missing/x"):
        r = client.exec_response(lease, ["pwd"], cwd=cwd)
        assert r.status == 422 and r.code == "cwd_not_found", r


# ---- environment ----

def test_environment_values_are_exact(client):
    env = {"A": "x\ny", "B": "it's \"$HOME\"", "C": "", "D": "é"}
    id = client.lease(env={"A": "lease", "E": "from lease", "B": env["B"]})
    try:
        out = output(client.exec(id, ["env", "-0"], env=env)).decode()
        seen = dict(v.split("=", 1) for v in out.split("\0") if v)
        assert {k: seen[k] for k in "ABCDE"} == dict(env, E="from lease")
        assert set(seen) == {"PATH", "HOME", "USER", "LANG", "TERM", *"ABCDE"}
        assert client.exec(id, ["printenv", "A", "B", "C", "D"], env=env)["stdout"] == "x\ny\nit's \"$HOME\"\n\né\n"
    finally:
        client.terminate(id)
