"""Commands as streams of events, attached and detached: what a client sees that reads slowly, leaves, comes back, or sits behind a gateway."""
import concurrent.futures
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time

import pytest

from harness import SLOW, Client, Server, wait_until
from streams import NDJSON, SSE, data, detach, ended, follow, numbered, run, wait_for


# ---- what a stream says ----

@pytest.mark.parametrize("accept", [NDJSON, SSE])
def test_events(server, lease, accept):
    with run(server, lease, "echo out; sleep 0.1; echo err >&2; sleep 0.1; echo more; exit 3", accept) as s:
        assert s.status == 200 and s.headers["content-type"] == accept and s.chunked
        assert s.headers["cache-control"] == "no-store" and s.headers["x-accel-buffering"] == "no"
        events = numbered(s.all())
    assert [e["type"] for e in events] == ["start", "stdout", "stderr", "stdout", "exit"]
    assert [e["data"] for e in events[1:4]] == ["out\n", "err\n", "more\n"] and all(e["encoding"] == "utf-8" for e in events[1:4])
    start, end = events[0], events[-1]
    assert start["exec_id"] == end["exec_id"] and s.headers["location"] == f"/leases/{lease}/exec/{start['exec_id']}"
    assert start["timeout"] > 0 and start["cmd"] == end["cmd"] and re.match(r"\d{4}-\d\d-\d\dT", start["started_at"])
    assert (end["returncode"], end["signal"], end["timed_out"], end["killed"], end["killed_by"]) == (3, None, False, False, None)
    assert (end["stdout_bytes_total"], end["stderr_bytes_total"]) == (9, 4) and "stdout" not in end and end["duration_seconds"] >= 0.2


def test_the_result_is_that_of_a_synchronous_exec(server, client, lease):
    for command, more in (("kill -SEGV $$", {}), ("exit 137", {}), (["nosuchcmd"], {}), ("sleep 30", {"timeout": 0.3}), (["/etc/passwd"], {})):
        plain = client.exec(lease, command, **more)
        events = run(server, lease, command, **more).all()
        for key in ("returncode", "signal", "timed_out", "killed", "killed_by", "timeout", "stdout_bytes_total", "stderr_bytes_total", "cmd"):
            assert events[-1][key] == plain[key], (command, key)
        assert data(events, "stderr").decode() == plain["stderr"] and data(events).decode() == plain["stdout"]


def test_bytes_that_are_not_text(server, lease):
    s = run(server, lease, r"printf '\377\376ok\n'; sleep 0.1; printf 'a\0b'; sleep 0.1; head -c 300000 /dev/urandom | tee r; sleep 0.1; md5sum < r")
    events = numbered(s.all())
    outs = [e for e in events if e["type"] == "stdout"]
    assert [e["encoding"] for e in outs[:2]] == ["base64", "base64"] and data(outs[:2]) == b"\xff\xfeok\na\0b"
    import hashlib
    # The last random byte may look like the beginning of a character, which waits for more: so count bytes, not events.
    random, digest = data(outs)[8:300008], data(outs)[300008:]
    assert digest.split()[0].decode() == hashlib.md5(random).hexdigest()


@pytest.mark.parametrize("accept", [NDJSON, SSE])
def test_characters_are_never_split(server, lease, accept):
    text = "é€😀z" * 3
    byte_by_byte = "for b in " + " ".join(f"'\\{b:03o}'" for b in text.encode()) + "; do printf $b; sleep 0.01; done"
    events = run(server, lease, byte_by_byte, accept).all()
    assert all(e["encoding"] == "utf-8" for e in events if e["type"] == "stdout") and data(events).decode() == text
    # Across the borders of pieces, too; and what never becomes one is not lost.
    events = run(server, lease, "printf x; i=0; while [ $i -lt 20000 ]; do echo -n 'é€😀é€😀é€😀'; i=$((i+1)); done; printf '\\360\\237'", accept).all()
    outs = [e for e in events if e["type"] == "stdout"]
    assert all(e["encoding"] == "utf-8" for e in outs[:-1]) and outs[-1]["encoding"] == "base64"
    assert data(outs) == b"x" + "é€😀é€😀é€😀".encode() * 20000 + b"\xf0\x9f"


def test_ten_million_bytes_without_a_newline(server, lease):
    events = numbered(run(server, lease, "head -c 10000000 /dev/zero | tr '\\0' x").all())
    assert data(events) == b"x" * 10000000 and events[-1]["stdout_bytes_total"] == 10000000
    assert all(len(e["data"]) <= 33000 for e in events if e["type"] == "stdout")
    assert data(run(server, lease, "printf 'no newline'").all()) == b"no newline"


def test_both_streams_at_once(server, lease):
    events = numbered(run(server, lease, "head -c 1000000 /dev/zero >&2 & head -c 1000000 /dev/zero; wait").all())
    assert len(data(events)) == len(data(events, "stderr")) == 1000000


def test_what_goes_wrong_before_the_start_is_a_status(server, client, lease):
    for body, status, code in (({"command": "true", "cwd": "/nope"}, 422, "cwd_not_found"), ({"command": ""}, 400, "invalid_request"),
                               ({"command": "true", "timeout": 1e9}, 422, "timeout_above_maximum"),
                               ({"command": "true", "tty": {"rows": 5000}}, 422, "limit_exceeded")):
        for accept in (NDJSON, SSE):
            for more in ({}, {"detach": True}):
                r = client.post(f"/leases/{lease}/exec", dict(body, **more), headers={"Accept": accept})
                assert r.status == status and r.code == code and r.header("Content-Type") == "application/problem+json", r
    r = client.post(f"/leases/{lease}/exec", {"command": "touch never"}, headers={"Accept": "text/html"})
    assert r.status == 406 and r.code == "not_acceptable"
    r = client.post(f"/leases/{lease}/exec", {"command": "touch never"}, headers={"Accept": NDJSON, "Last-Event-ID": "x"})
    assert r.status == 400 and r.json()["field"] == "Last-Event-ID"
    r = client.post(f"/leases/{lease}/exec", {"command": "touch never"}, headers={"Accept": NDJSON, "Last-Event-ID": "7"})
    assert r.status == 400 and r.json()["field"] == "after"
    assert client.exec(lease, "ls never")["returncode"] != 0


def test_head_and_http_1_0(server, client, lease):
    eid = detach(client, lease, "echo hi")
    ended(client, lease, eid)
    with follow(server, lease, eid, version="1.0") as s:
        assert not s.chunked
        assert data(s.all()) == b"hi\n"
    r = client.request("HEAD", f"/leases/{lease}/exec/{eid}/output?follow=1")
    assert r.status == 200 and r.body == b"" and r.header("Content-Type") == NDJSON
    assert client.get("/healthz").status == 200


# ---- clients ----

@pytest.mark.parametrize("accept", [NDJSON, SSE])
def test_seven_bytes_at_a_time_and_a_prompt_end(server, lease, accept):
    with run(server, lease, "for i in 1 2 3 4 5; do echo line $i é; done; sleep 0.3; exit 0", accept, step=7) as s:
        for e in s.events():
            at = time.monotonic()  # of the last event
        assert s.complete and e["type"] == "exit" and time.monotonic() - at < 0.5 * SLOW
        # The connection is as good as new.
        s.sock.sendall(b"GET /version HTTP/1.1\r\nHost: h\r\n\r\n")
        assert s.sock.recv(65536).startswith(b"HTTP/1.1 200")


def test_events_come_as_they_happen(server, lease):
    with run(server, lease, "echo a; sleep 1; echo b") as s:
        stamps = {e.get("data"): time.monotonic() for e in s.events()}
    assert 0.7 < stamps["b\n"] - stamps["a\n"] < 1 + 2 * SLOW


def test_a_slow_reader_slows_the_command_and_costs_nothing(server, client, lease):
    """The command counts what it could write; the reader takes nothing, then a little, then all."""
    command = "i=0; while [ $i -lt 100 ]; do head -c 100000 /dev/zero; i=$((i+1)); echo $i > next; mv next progress; done"

    def progress():
        return int(client.read(lease, "progress").body or 0)

    for kind in (NDJSON, SSE):
        client.exec(lease, "echo 0 > progress")
        with run(server, lease, command, kind, rcvbuf=8192, step=4096) as s:
            last = [-1, 0]

            def stalled():
                now = progress()
                last[:] = [now, last[1] + 1 if now == last[0] else 0]
                return last[1] > 20
            wait_until(stalled, 30)
            assert 0 < progress() < 80, "the command was not slowed down"
            held = server.rss_kib()
            events = s.all()
        assert progress() == 100 and data(events) == b"\0" * 10000000 and events[-1]["returncode"] == 0
        assert SLOW > 1 or server.rss_kib() < held + 8192


@pytest.mark.parametrize("accept", [NDJSON, SSE])
def test_two_outputs_that_wait_for_one_reader(server, lease, accept):
    """The one that has room must not make the other one be forgotten, nor must the end of one."""
    talk = "(while :; do echo err >&2; done) & head -c 30000000 /dev/zero; kill $!"
    leave = "head -c 3000000 /dev/zero | (head -c 2800000; exec 2>&-; cat)"
    for command, size in ((talk, 30000000), *[(leave, 3000000)] * 5):
        with run(server, lease, command, accept, rcvbuf=8192) as s:
            events = s.all()
        assert len(data(events)) == size and events[-1]["stdout_bytes_total"] == size


def test_who_hangs_up_kills_the_command_and_all_its_descendants(server, client, lease):
    for kind in (NDJSON, SSE):
        s = run(server, lease, "setsid sleep 4321 & (sleep 4321 & wait) & touch up; sleep 4321", kind)
        wait_for("up", client, lease)
        s.close()
        wait_until(lambda: client.exec(lease, "pgrep -f '^sleep 4321' || rm up")["stdout"] == "")
        wait_until(lambda: client.get(f"/leases/{lease}/exec").json()["items"] == [])


def test_two_hundred_clients_that_leave():
    """200 attached streams of endless output whose clients go away: memory is flat, others do not notice, nothing is left."""
    n = 50 if SLOW > 1 else 200
    with Server({"local_bwrap": {"size": 2}}) as s:
        s.wait_slots(2)
        c = s.client()
        a, b = c.lease(), c.lease()

        def leave(i):
            with run(s, a, "yes", [NDJSON, SSE][i % 2]) as st:
                assert st.status == 200
                until = time.monotonic() + 0.5
                for e in st.events():
                    if time.monotonic() > until:
                        break

        def wave():
            with concurrent.futures.ThreadPoolExecutor(20) as pool:
                jobs = [pool.submit(leave, i) for i in range(n // 2)]
                while not all(j.done() for j in jobs):
                    began = time.monotonic()
                    assert c.exec(b, "echo hi")["stdout"] == "hi\n"
                    assert time.monotonic() - began < 5 * SLOW
                for j in jobs:
                    j.result()
            wait_until(lambda: c.get(f"/leases/{a}/exec").json()["items"] == [], 30)

        wave()
        before, descriptors = s.rss_kib(), s.descriptors()
        wave()
        assert SLOW > 1 or s.rss_kib() < before + 16384
        wait_until(lambda: s.descriptors() <= descriptors + 4)
        assert s.threads() <= 32
        assert c.exec(a, "pgrep yes")["stdout"] == ""


def test_who_left_is_forgotten_while_others_are_idle():
    """Nobody asks for anything meanwhile; an older connection is open all the time."""
    with Server({"local_bwrap": {"size": 1}}) as s:
        c = s.client()
        id = c.lease()
        detach(c, id, "sleep 60", exec_id="quiet")
        for _ in range(20):
            c.exec(id, "true")
        before = s.descriptors()
        for i in range(24):
            way = i % 4
            with follow(s, id, "quiet") if way == 3 else run(s, id, ["yes", "sleep 60", "echo x; sleep 60"][way], [NDJSON, SSE][i // 4 % 2]) as st:
                next(st.events())
        wait_until(lambda: s.descriptors() <= before, 10, "the end of their connections")


# ---- behind a gateway ----

NGINX = """
daemon off;
pid {dir}/pid;
error_log {dir}/error.log;
worker_processes 1;
events {{ worker_connections 256; }}
http {{
  access_log off;
  client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy; fastcgi_temp_path {dir}/f; uwsgi_temp_path {dir}/u; scgi_temp_path {dir}/s;
  server {{
    listen 127.0.0.1:{port};
    location / {{ proxy_pass http://127.0.0.1:{upstream}; }}
  }}
}}
"""


@pytest.fixture(scope="module")
def gateway(server):
    """An nginx with its default settings in front of the server: buffering, HTTP/1.0 and 60 s to wait for a byte."""
    nginx = shutil.which("nginx") or "/usr/sbin/nginx"
    directory = tempfile.mkdtemp(prefix="sandgate-nginx-")
    os.chmod(directory, 0o755)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with open(directory + "/conf", "w") as f:
        f.write(NGINX.format(dir=directory, port=port, upstream=server.port))
    process = subprocess.Popen([nginx, "-p", directory, "-c", directory + "/conf"], stderr=subprocess.DEVNULL)

    def up():
        assert process.poll() is None, open(directory + "/error.log").read()
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return True
        except OSError:
            return False
    wait_until(up)

    class Gateway:
        pass
    g = Gateway()
    g.port = port
    yield g
    process.terminate()
    process.wait()
    shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.parametrize("accept", [NDJSON, SSE])
def test_gateway_passes_events_on_as_they_come(gateway, server, lease, accept):
    with run(gateway, lease, "echo a; sleep 1; echo b", accept) as s:
        assert s.status == 200 and s.headers["cache-control"] == "no-store"
        stamps = {e.get("data"): time.monotonic() for e in s.events()}
    assert stamps["b\n"] - stamps["a\n"] > 0.7 and s.complete


def test_gateway_follow_and_stdin(gateway, server, client, lease):
    eid = detach(client, lease, "cat")
    with follow(gateway, lease, eid) as s:
        events = s.events()
        assert next(events)["type"] == "start"
        for text in ("one\n", "two\n"):
            assert Client(gateway_client(gateway, server)).post(f"/leases/{lease}/exec/{eid}/stdin", text.encode()).status == 200
            assert next(events)["data"] == text
        assert client.post(f"/leases/{lease}/exec/{eid}/stdin?eof=1").status == 200
        assert [e["type"] for e in events] == ["exit"]


def gateway_client(gateway, server):
    class Front:
        port = gateway.port
        observe = staticmethod(lambda *a: None)
    return Front


def test_gateway_hang_up_reaches_the_command(gateway, server, client, lease):
    s = run(gateway, lease, "touch up-gw; sleep 6543")
    wait_for("up-gw", client, lease)
    s.close()
    wait_until(lambda: client.exec(lease, "pgrep -f '^sleep 6543'")["stdout"] == "")


def test_silence_is_interrupted_by_pings(gateway, server, lease, soak):
    """Both ways at once. What a gateway would cut after 60 s of silence lives on pings at most 15 s apart."""
    silence = 120 if soak else 12

    def watch(front, accept):
        with run(front, lease, f"sleep {silence}; echo done", accept) as s:
            stamps, events = [time.monotonic()], []
            for e in s.events(pings=True):
                stamps.append(time.monotonic())
                events.append(e)
        assert max(b - a for a, b in zip(stamps, stamps[1:])) < 15
        assert [e["type"] for e in events if e["type"] != "ping"] == ["start", "stdout", "exit"]
        pings = [e for e in events if e["type"] == "ping"]
        assert len(pings) >= silence // 15 + (silence < 15) and all("seq" not in e for e in pings)
        numbered([e for e in events if e["type"] != "ping"])
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        for job in [pool.submit(watch, gateway, NDJSON), pool.submit(watch, gateway, SSE), pool.submit(watch, server, SSE)]:
            job.result()
