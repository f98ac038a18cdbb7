"""Commands that go on by themselves: what is kept of them and followed, their input and signals, and ends that nobody asked for."""
import concurrent.futures
import json
import os
import re
import socket
import threading
import time

import pytest

from harness import SLOW, Server, wait_until
from streams import NDJSON, SSE, Stream, data, detach, ended, follow, info, numbered, run, wait_for


# ---- detached ----

def test_finished_means_that_the_output_is_complete(server, lease, soak):
    """Whenever the state says finished, the log is whole."""
    rounds = 500 if soak else 100 if SLOW > 1 else 200

    def one(i):
        c = clients[threading.get_ident() % 4]
        eid = detach(c, lease, f"echo x{i}")
        while True:
            r = info(c, lease, eid)
            if r["state"] != "running":
                break
        assert r["state"] == "finished" and r["result"]["stdout"] == f"x{i}\n", r
        log = c.get(f"/leases/{lease}/exec/{eid}/output")
        events = numbered([json.loads(line) for line in log.body.splitlines()])
        assert [e["type"] for e in events] == ["start", "stdout", "exit"] and events[1]["data"] == f"x{i}\n", events
    clients = [server.client() for _ in range(4)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(rounds)))


def test_resume_without_loss_or_repetition(server, client, lease):
    command = "for i in $(seq 1000); do echo $i; case $i in *[05]) sleep 0.005;; esac; done"
    seen = {}
    for accept, way in ((NDJSON, "query"), (SSE, "header")):
        with run(server, lease, command, accept, detach=True, exec_id="count-" + way) as s:
            events = seen[way] = []
            for e in s.events():
                events.append(e)
                if "300\n" in e.get("data", ""):
                    break
        # It left: the command goes on, and the rest comes each once.
        after, known = (e["seq"], {}) if way == "query" else (0, {"Last-Event-ID": str(e["seq"])})
        with follow(server, lease, "count-" + way, after, accept, headers=known) as s:
            events += s.all()
        assert events[-1]["type"] == "exit" and events[-1]["seq"] > e["seq"] + 10
        numbered(events)
        assert data(events) == b"".join(b"%d\n" % i for i in range(1, 1001)) and events[-1]["returncode"] == 0
    # The start again, as a stream, from where it was: nothing runs twice.
    body = {"command": command, "detach": True, "exec_id": "count-query"}
    with Stream(server.port, "POST", f"/leases/{lease}/exec", body, headers={"Last-Event-ID": "100"}) as s:
        assert s.all() == seen["query"][100:]
    r = client.post(f"/leases/{lease}/exec", body)
    assert r.status == 202 and r.json()["state"] == "finished" and r.json()["result"]["returncode"] == 0


def test_dropped_history_is_gone_never_a_gap():
    with Server({"local_bwrap": {"size": 1}, "exec": {"history_bytes": "256KiB"}}) as s:
        c = s.client()
        id = c.lease()
        eid = detach(c, id, "head -c 20000000 /dev/zero | tr '\\0' x; echo end")  # a full history blocks nobody
        r = ended(c, id, eid)
        assert r["state"] == "finished" and r["result"]["stdout_bytes_total"] == 20000004 and r["result"]["stdout_truncated"] in (True, False)
        r = c.get(f"/leases/{id}/exec/{eid}/output")
        assert r.status == 410 and r.code == "history_dropped" and r.json()["oldest_seq"] > 100, r
        oldest = r.json()["oldest_seq"]
        assert c.get(f"/leases/{id}/exec/{eid}/output?after={oldest - 2}").status == 410
        events = numbered(follow(s, id, eid, oldest - 1).all(), oldest)
        assert data(events).endswith(b"xxxend\n") and 100000 < len(data(events)) <= 262144 and events[-1]["type"] == "exit"
        assert c.get(f"/leases/{id}/exec/{eid}/output?after={events[-1]['seq'] + 1}").status == 400
        assert follow(s, id, eid, events[-1]["seq"]).all() == []
        # A follower that falls behind is told so, in its stream.
        eid = detach(c, id, "read x; head -c 20000000 /dev/zero")
        with follow(s, id, eid, rcvbuf=4096, step=1024) as st:
            next(st.events())
            assert c.post(f"/leases/{id}/exec/{eid}/stdin", b"go\n").status == 200
            ended(c, id, eid)
            events = st.all()
            assert events[-1]["type"] == "error" and events[-1]["code"] == "history_dropped" and "seq" not in events[-1] and st.complete
            numbered(events[:-1], 2)
            assert all(e["type"] == "stdout" for e in events[:-1])
        assert SLOW > 1 or s.rss_kib() < 120000 * SLOW


def test_states(server, client, lease):
    cases = {"f": ("exit 7", {}, "finished"), "t": ("sleep 60", {"timeout": 0.3}, "timed_out"), "k": ("touch up-k; sleep 60", {}, "killed"),
             "s": ("kill -TERM $$", {}, "finished")}
    for eid, (command, more, _) in cases.items():
        assert detach(client, lease, command, exec_id=eid, **more) == eid
    wait_for("up-k", client, lease)
    assert info(client, lease, "k")["state"] == "running" and info(client, lease, "k")["result"] is None
    assert client.delete(f"/leases/{lease}/exec/k").status == 200
    for eid, (_, _, state) in cases.items():
        r = ended(client, lease, eid)
        assert r["state"] == state and r["result"]["exec_id"] == eid, r
        assert r["result"]["killed_by"] == {"t": "timeout", "k": "caller"}.get(eid)
    assert [(i["exec_id"], i["state"]) for i in client.get(f"/leases/{lease}/exec").json()["items"]] == [(k, v[2]) for k, v in cases.items()]
    assert client.get(f"/leases/{lease}/exec/none").status == 404 and client.get(f"/leases/{lease}/exec/none/output").status == 404


def test_starts_are_idempotent(server, client, lease):
    body = {"command": "echo once >> ran; sleep 0.3; cat ran", "detach": True, "exec_id": "one"}
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        rs = list(pool.map(lambda i: server.client().post(f"/leases/{lease}/exec", body), range(10)))
        streams = list(pool.map(lambda i: Stream(server.port, "POST", f"/leases/{lease}/exec", body).all(), range(10)))
    assert all(r.status == 202 for r in rs) and all(s == streams[0] for s in streams) and data(streams[0]) == b"once\n"
    for other in (dict(body, command="true"), dict(body, detach=False), dict(body, timeout=9)):
        for accept in ("application/json", NDJSON):
            r = client.post(f"/leases/{lease}/exec", other, headers={"Accept": accept})
            assert r.status == 409 and r.code == "exec_id_conflict", r
    # Attached ones too, and a stream may join a synchronous call of the same id.
    body = {"command": "echo twice >> ran2; sleep 1; cat ran2", "exec_id": "two"}
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        plain = pool.submit(client.post, f"/leases/{lease}/exec", body)
        streams = [pool.submit(lambda: Stream(server.port, "POST", f"/leases/{lease}/exec", body).all()) for _ in range(2)]
        assert plain.result().json()["stdout"] == "twice\n"
        for s in streams:
            assert data(s.result()) == b"twice\n"
    assert data(Stream(server.port, "POST", f"/leases/{lease}/exec", body).all()) == b"twice\n"  # kept
    assert client.post(f"/leases/{lease}/exec", body).json()["stdout"] == "twice\n"
    assert data(follow(server, lease, "two", wait=False).all()) == b"twice\n"


def test_only_what_somebody_may_follow_is_followed(server, client, lease):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        plain = pool.submit(server.client().exec, lease, "touch up-plain; sleep 1")
        wait_for("up-plain", client, lease)
        eid = client.get(f"/leases/{lease}/exec").json()["items"][0]["exec_id"]
        r = client.get(f"/leases/{lease}/exec/{eid}/output")
        assert r.status == 409 and r.code == "conflict", r
        plain.result()


def test_five_hundred_followers():
    """Of one command, each gets everything; no thread for any of them."""
    n = 60 if SLOW > 1 else 500
    with Server({"local_bwrap": {"size": 1}}) as s:
        c = s.client()
        id = c.lease()
        eid = detach(c, id, "read x; for i in $(seq 200); do echo $i; done; read x; head -c 100000 /dev/zero; exit 5", exec_id="all")
        streams = [follow(s, id, eid, accept=[NDJSON, SSE][i % 2]) for i in range(n)]
        before = s.rss_kib()
        assert s.threads() <= 32 and all(next(st.events())["type"] == "start" for st in streams)
        assert c.post(f"/leases/{id}/exec/{eid}/stdin", b"x\n").status == 200
        assert c.exec(id, "echo hi")["stdout"] == "hi\n"
        assert c.post(f"/leases/{id}/exec/{eid}/stdin", b"x\n").status == 200
        ended(c, id, eid, 60)
        assert s.threads() <= 32 and (SLOW > 1 or s.rss_kib() < before + n * 128 + 16384)
        for st in streams:
            events = numbered(st.all(), 2)
            assert data(events) == b"".join(b"%d\n" % i for i in range(1, 201)) + b"\0" * 100000 and events[-1]["returncode"] == 5
            st.close()


# ---- input, signals, kills ----

def test_stdin(server, client, lease):
    url = f"/leases/{lease}/exec"
    eid = detach(client, lease, "cat; echo end", exec_id="cat")
    for piece in (b"one\n", b"", b"\xff\0"):
        r = client.post(f"{url}/{eid}/stdin", piece)
        assert r.status == 200 and r.json() == {"exec_id": eid, "bytes": len(piece), "eof": False}, r
    r = client.post(f"{url}/{eid}/stdin?eof=1", iter([b"tw", b"o\n"]))  # chunked
    assert r.status == 200 and r.json()["bytes"] == 4 and r.json()["eof"] is True
    assert data(follow(server, lease, eid).all()) == b"one\n\xff\0two\nend\n"
    r = client.post(f"{url}/{eid}/stdin", b"more")
    assert r.status == 409 and r.code == "conflict", r
    assert client.post(f"{url}/none/stdin", b"x").status == 404
    # Empty and closed at once; given with the start; not left open.
    eid = detach(client, lease, "wc -c")
    assert client.post(f"{url}/{eid}/stdin?eof=1").status == 200 and data(follow(server, lease, eid).all()) == b"0\n"
    eid = detach(client, lease, "cat; sleep 1", stdin="given")
    assert client.post(f"{url}/{eid}/stdin", b"x").status == 409
    assert data(follow(server, lease, eid).all()) == b"given"
    with run(server, lease, "cat; touch up-attached; sleep 1", exec_id="attached") as s:
        wait_for("up-attached", client, lease)  # its input ended at once
        assert client.post(f"{url}/attached/stdin", b"x").status == 409
        s.all()


def test_stdin_of_a_command_that_ends_with_it(client, lease):
    """All of it was read: that the command then ends before the request does is no failure."""
    for _ in range(200):
        eid = detach(client, lease, ["head", "-c", "4"])
        r = client.post(f"/leases/{lease}/exec/{eid}/stdin?eof=1", b"end\n")
        assert r.status == 200 and r.json()["bytes"] == 4, r


def test_stdin_at_the_commands_pace(server, client, lease):
    url = f"/leases/{lease}/exec"
    eid = detach(client, lease, "sleep 1; head -c 20000000 | md5sum; touch read; sleep 0.5; wc -c")
    block = os.urandom(1000000)
    held = server.rss_kib()

    def body():
        for _ in range(20):
            yield block
        assert client2.get(f"/leases/{lease}/files/stat?path=read").status in (200, 404)
    client2 = server.client()
    began = time.monotonic()
    r = client.post(f"{url}/{eid}/stdin", body())
    assert r.status == 200 and r.json()["bytes"] == 20000000 and time.monotonic() - began > 0.9, r
    assert SLOW > 1 or server.rss_kib() < held + 8192
    assert client.post(f"{url}/{eid}/stdin?eof=1", b"abc").status == 200
    import hashlib
    sums = data(follow(server, lease, eid).all()).decode().split()
    assert sums == [hashlib.md5(block * 20).hexdigest(), "-", "3"]


def test_stdin_never_says_yes_for_bytes_not_taken(server, client, lease):
    url = f"/leases/{lease}/exec"
    big = b"x" * 4000000
    for command in ("head -c 10 >/dev/null", "exec <&-; touch closed; sleep 1", "sleep 0.5", "sleep 60"):
        eid = detach(client, lease, command, timeout=1)
        r = client.post(f"{url}/{eid}/stdin?eof=1", big)
        assert r.status == 409 and r.code == "conflict" and r.json().get("bytes_taken", 0) < 200000, r
    # One at a time.
    eid = detach(client, lease, "sleep 1; wc -c")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        first = pool.submit(server.client().post, f"{url}/{eid}/stdin?eof=1", b"x" * 1000000)
        wait_until(lambda: client.post(f"{url}/{eid}/stdin", b"").status == 409)
        assert first.result().status == 200
    assert data(follow(server, lease, eid).all()) == b"1000000\n"
    # A caller that leaves in the middle keeps nobody out; how much of what it had sent was taken by then is not said.
    eid = detach(client, lease, "sleep 1; cat")
    with socket.create_connection(("127.0.0.1", server.port)) as s:
        s.sendall(f"POST {url}/{eid}/stdin HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n".encode() + b"y" * 100000)
        time.sleep(0.1)
    wait_until(lambda: client.post(f"{url}/{eid}/stdin?eof=1", b"z").status == 200)
    assert re.fullmatch(b"y{1,100000}z", data(follow(server, lease, eid).all()))


def test_signals(server, client, lease):
    url = f"/leases/{lease}/exec"
    eid = detach(client, lease, "trap 'echo usr1' USR1; trap 'echo term; exit 4' TERM; touch up-signal; while :; do sleep 0.05; done")
    wait_for("up-signal", client, lease)
    with follow(server, lease, eid) as s:
        events = s.events()
        next(events)
        for name, said in (("SIGUSR1", "usr1\n"), ("USR1", "usr1\n"), ("15", "term\n")):
            assert client.post(f"{url}/{eid}/signal", {"signal": name}).status == 200
            assert next(events)["data"] == said
        assert next(events)["returncode"] == 4
    assert client.post(f"{url}/{eid}/signal", {"signal": "TERM"}).status == 409
    assert client.post(f"{url}/{eid}/signal", {"signal": "NOPE"}).status == 400


def test_kill_takes_the_tree_also_of_a_finished_one(server, client, lease):
    eid = detach(client, lease, "setsid sleep 5432 >/dev/null 2>&1 & sleep 5432 & touch up-tree; exit 0")
    wait_for("up-tree", client, lease)
    assert ended(client, lease, eid)["state"] == "finished"
    assert client.exec(lease, "pgrep -fc '^sleep 5432'")["stdout"] == "2\n"
    r = client.delete(f"/leases/{lease}/exec/{eid}")
    assert r.status == 200 and r.json()["state"] == "finished"
    wait_until(lambda: client.exec(lease, "pgrep -f '^sleep 5432'")["stdout"] == "")


# ---- ends that nobody asked for ----

def agent_of(client, lease):
    """The host's number of the first process in the sandbox."""
    mark = f"90{time.time_ns() % 10**9}"
    detach(client, lease, ["sleep", mark])

    def find():
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as f:
                    if f.read() == b"sleep\0" + mark.encode() + b"\0":
                        return int(pid)
            except OSError:
                pass
        return None
    pid = wait_until(find)
    while pid > 1:
        with open(f"/proc/{pid}/status") as f:
            status = f.read()
        if re.search(r"^NSpid:.*\s1$", status, re.M):
            return pid
        pid = int(re.search(r"^PPid:\s+(\d+)", status, re.M)[1])
    raise AssertionError("no agent found")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can find the agent from outside")
def test_a_lost_sandbox_is_an_error_never_a_made_up_exit(server, client):
    for i in range(10 if SLOW > 1 else 25):
        id = client.lease()
        command = ["sleep 60", "yes", "while :; do echo x; sleep 0.001; done"][i % 3]
        accept = [NDJSON, SSE][i % 2]
        detach(client, id, "while :; do echo x; sleep 0.01; done", exec_id="d")
        with run(server, id, command, accept) as attached, follow(server, id, "d", accept=accept) as follower:
            assert next(attached.events())["type"] == next(follower.events())["type"] == "start"
            os.kill(agent_of(client, id), 9)
            for s in (attached, follower):
                last = None
                for last in s.events():
                    assert last["type"] in ("stdout", "error"), last
                assert s.complete and last["type"] == "error" and last["code"] == "sandbox_lost", last
        r = client.get(f"/leases/{id}/exec/d")
        assert r.status == 410 or r.json()["state"] == "lost", r
        wait_until(lambda: client.get(f"/leases/{id}").json()["state"] == "lost")
        assert client.get(f"/leases/{id}/exec/d/output").status == 410
        client.terminate(id)


def test_the_end_of_the_lease_ends_streams(server, client):
    id = client.lease()
    detach(client, id, "while :; do echo x; sleep 0.01; done", exec_id="d")
    streams = [run(server, id, "sleep 60"), run(server, id, "yes", SSE, rcvbuf=4096), follow(server, id, "d"), follow(server, id, "d", accept=SSE)]
    for s in streams:
        assert next(s.events())["type"] == "start"
    began = time.monotonic()
    client.terminate(id)
    for s in streams:
        last = s.all()[-1]
        assert last["type"] == "exit" and last["killed_by"] == "lease_end" and last["signal"] == "SIGKILL", last
        s.close()
    assert time.monotonic() - began < 10 * SLOW
    assert client.get(f"/leases/{id}/exec/d").status == 410


def test_a_stalled_reader_does_not_hold_the_sandbox(server, client):
    id = client.lease()
    with run(server, id, "yes", rcvbuf=4096) as s:
        assert next(s.events())["type"] == "start"
        time.sleep(0.3)
        client.terminate(id)
        server.wait_slots(4)


def test_results_do_not_outlive_the_server_and_nothing_is_made_up():
    s = Server({"local_bwrap": {"size": 1}}).start()
    try:
        c = s.client()
        id = c.lease()
        detach(c, id, "sleep 60", exec_id="d")
        s.kill9()
        s.start()
        c = s.client()
        for path in (f"/leases/{id}/exec/d", f"/leases/{id}/exec/d/output", f"/leases/{id}/exec"):
            r = c.get(path)
            assert r.status == 410 and r.code == "sandbox_lost" and "server_restarted" in r.json()["detail"], r
    finally:
        s.stop()
        s.clean()


def test_results_are_kept_for_a_while():
    with Server({"local_bwrap": {"size": 1}, "exec": {"history_ttl": "1s"}}) as s:
        c = s.client()
        id = c.lease()
        eid = detach(c, id, "echo hi")
        assert ended(c, id, eid)["result"]["stdout"] == "hi\n"
        wait_until(lambda: c.get(f"/leases/{id}/exec/{eid}").status == 404)
        assert c.get(f"/leases/{id}/exec/{eid}/output").status == 404
