"""What every backend does, however little of a machine it is: the words used here are all that the smallest one knows."""
import concurrent.futures
import time

import pytest

from harness import SLOW, output, wait_until
from streams import NDJSON, SSE, data, numbered


def test_the_lease_says_what_it_is(client, backend):
    r = client.post("/leases", {"trajectory_id": "shape", "metadata": {"team": "x"}})
    assert r.status == 201 and r.header("Location") == f"/leases/{r.json()['id']}", r
    l = r.json()
    try:
        assert set(l) == {"id", "trajectory_id", "provider", "sandbox_id", "state", "reason", "endpoints", "capabilities", "metadata",
                          "created_at", "expires_at", "receipt_id"}
        assert (l["provider"], l["state"], l["reason"], l["trajectory_id"]) == (backend.name, "ready", None, "shape") and l["sandbox_id"]
        assert set(l["capabilities"]) == backend.capabilities and l["metadata"]["team"] == "x" and l["metadata"]["paddock_mode"] == "whitebox"
        assert client.get(f"/leases/{l['id']}").json() == l
        assert l["id"] in [i["id"] for i in client.get(f"/leases?provider={backend.name}&state=ready").json()["items"]]
        receipt = client.get(f"/receipts/{l['receipt_id']}").json()
        assert receipt["chosen_backend"] == backend.name and client.post("/receipts/verify", receipt).json()["ok"] is True
        events = [e.split(b'"type":"')[1].split(b'"')[0] for e in client.get(f"/leases/{l['id']}/events").body.splitlines()]
        assert events == [b"creating", b"ready"], events
    finally:
        client.terminate(l["id"])


# Command, more of the body, and members of the result.
RESULTS = [
    ("true", {}, {"returncode": 0, "stdout": "", "stderr": "", "signal": None, "killed": False, "killed_by": None, "timed_out": False}),
    ("false", {}, {"returncode": 1}),
    ("exit 7", {}, {"returncode": 7, "signal": None}),
    ("exit 124", {}, {"returncode": 124, "timed_out": False, "killed": False}),
    ("exit 137", {}, {"returncode": 137, "signal": None, "killed": False}),
    ("exit 255", {}, {"returncode": 255}),
    ("echo a; echo b; exit 3", {}, {"stdout": "a\nb\n", "returncode": 3, "stdout_bytes_total": 4, "stdout_truncated": False, "stdout_encoding": "utf-8"}),
    (["echo", "a  b", "$HOME;`id`"], {}, {"stdout": "a  b $HOME;`id`\n"}),
    (["echo", "grüße €"], {}, {"stdout": "grüße €\n", "stdout_encoding": "utf-8"}),
    ("nosuchcmd", {}, {"returncode": 127, "signal": None}),
    (["nosuchcmd", "x"], {}, {"returncode": 127, "signal": None}),
    ("cat", {}, {"returncode": 0, "stdout": ""}),
    ("cat", {"stdin": ""}, {"returncode": 0, "stdout": ""}),
    ("cat", {"stdin": "grüße\n"}, {"stdout": "grüße\n", "returncode": 0}),
    (["cat"], {"stdin_base64": "AP+A"}, {"stdout": "AP+A", "stdout_encoding": "base64", "stdout_bytes_total": 3}),
    ("true", {"timeout": 60.0}, {"timeout": 60}),
    ("true", {"timeout": 0.5}, {"timeout": 0.5}),
    ("echo before; sleep 30", {"timeout": 0.5}, {"timed_out": True, "killed": True, "killed_by": "timeout", "stdout": "before\n", "returncode": None}),
    ("echo 123456789", {"max_output_bytes": 4}, {"stdout": "1234", "stdout_truncated": True, "stdout_bytes_total": 10, "returncode": 0}),
    ("echo 123", {"max_output_bytes": 4}, {"stdout": "123\n", "stdout_truncated": False}),
]


@pytest.mark.parametrize("command,more,expected", RESULTS, ids=lambda v: str(v)[:24] if not isinstance(v, dict) else "")
def test_results(box, command, more, expected):
    r = box.run(command, **more)
    assert {k: r[k] for k in expected} == expected, r
    if expected.get("returncode") == 127:
        assert r["stderr"] != "", "a missing program must be said"


def test_environment_from_narrow_to_wide(server, client, backend):
    def value(name, **more):
        return client.exec(id, f"echo \"${name}\"" if backend.shell else f"printenv {name}", **more)["stdout"]
    r = client.post("/leases", {"env": {"A": "lease", "B": "lease"}, "manifest": {"env": {"A": "manifest", "B": "manifest", "C": "manifest"}}})
    assert r.status == 201, r
    id = r.json()["id"]
    try:
        assert [value(name, env={"A": "e x"}) for name in "ABC"] == ["e x\n", "lease\n", "manifest\n"]
        assert value("A") == "lease\n"  # and nothing of the exec before is left
    finally:
        client.terminate(id)


def test_files_and_commands_see_the_same(box):
    assert box.write("f", b"written\n").status == 201
    assert box.out(["cat", box.path("f")], cwd=".") == "written\n"
    noise = bytes(range(256)) * 300
    r = box.write("d/e/noise", noise)
    assert r.status == 201 and r.json()["size"] == len(noise) and r.json()["path"] == box.path("d/e/noise"), r
    assert box.read("d/e/noise").body == noise and box.write("d/e/noise", b"new").status == 200 and box.read("d/e/noise").body == b"new"
    assert box.write("d/e/noise", b"er", append="1").status == 200 and box.read("d/e/noise").body == b"newer"
    assert box.names() == ["d", "f"] and box.names(recursive="1") == ["d", "d/e", "d/e/noise", "f"]


def test_commands_run_side_by_side(box):
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        runs = [pool.submit(box.run, "sleep 0.5; echo done") for _ in range(12)]
        assert box.run("echo quick")["stdout"] == "quick\n" and box.client.get("/healthz").status == 200
        assert [r.result()["stdout"] for r in runs] == ["done\n"] * 12
    assert time.monotonic() - began < 4 * SLOW, "in series"


@pytest.mark.parametrize("accept", [NDJSON, SSE])
def test_streams(box, accept):
    with box.stream("echo one; sleep 0.1; echo two; exit 3", accept) as s:
        assert s.status == 200 and s.headers["content-type"] == accept and s.headers["cache-control"] == "no-store"
        assert s.headers["x-accel-buffering"] == "no"
        events = numbered(s.all())
    assert [e["type"] for e in events] == ["start", "stdout", "stdout", "exit"] and data(events) == b"one\ntwo\n"
    assert events[-1]["returncode"] == 3 and events[-1]["exec_id"] == events[0]["exec_id"] and events[-1]["stdout_bytes_total"] == 8
    with box.stream("sleep 30", accept, timeout=0.2) as s:
        assert s.all()[-1]["timed_out"] is True


def test_a_stream_is_as_early_as_the_command(box):
    with box.stream("echo a; sleep 0.5; echo b") as s:
        stamps = {e.get("data"): time.monotonic() for e in s.events()}
    assert stamps["b\n"] - stamps["a\n"] > 0.3


def test_detached_replayed_followed_and_fed(box):
    eid = box.detach("cat", exec_id="fed-" + box.at)
    assert box.info(eid)["state"] == "running" and box.info(eid)["result"] is None
    with box.follow(eid) as s:
        events = s.events()
        assert next(events)["type"] == "start"
        r = box.client.post(f"{box.url}/exec/{eid}/stdin", b"one\n")
        assert r.status == 200 and r.json() == {"exec_id": eid, "bytes": 4, "eof": False}, r
        assert next(events)["data"] == "one\n"
        assert box.client.post(f"{box.url}/exec/{eid}/stdin?eof=1", b"two\n").status == 200
        rest = list(events)
    assert data(rest) == b"two\n" and rest[-1]["type"] == "exit" and rest[-1]["returncode"] == 0
    assert box.ended(eid)["result"]["stdout"] == "one\ntwo\n"
    for after in (0, 1, 2):
        assert [e["seq"] for e in numbered(box.output(eid, after), after + 1)][-1] == rest[-1]["seq"]
    assert box.client.post(f"{box.url}/exec/{eid}/stdin", b"late").status == 409


def test_an_exec_id_starts_one_command(box):
    name = "one-" + box.at
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        runs = [pool.submit(box.run, "sleep 0.3; echo x", exec_id=name) for _ in range(6)]
        assert {r.result()["exec_id"] for r in runs} == {name} and {r.result()["duration_seconds"] for r in runs} == {box.info(name)["result"]["duration_seconds"]}
    r = box.ask("echo other", exec_id=name)
    assert r.status == 409 and r.code == "exec_id_conflict", r
    assert [i["exec_id"] for i in box.client.get(f"{box.url}/exec").json()["items"]].count(name) == 1


def test_kill_by_the_caller(box):
    name = "victim-" + box.at
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        run = pool.submit(box.run, "echo up; sleep 60", exec_id=name)
        wait_until(lambda: box.client.get(f"{box.url}/exec/{name}").status == 200)
        assert box.kill(name).status == 200
        r = run.result()
    assert (r["killed"], r["killed_by"], r["timed_out"], r["returncode"]) == (True, "caller", False, None)
    assert box.info(name)["state"] == "killed" and box.kill(name).status == 200


def test_signals(box):
    eid = box.detach(["sleep", "60"])
    assert box.client.post(f"{box.url}/exec/{eid}/signal", {"signal": "TERM"}).status == 200
    r = box.ended(eid)["result"]
    assert (r["signal"], r["returncode"], r["killed"], r["killed_by"]) == ("SIGTERM", None, False, None)
    for signal, status in (("TERM", 409), ("NOPE", 400)):
        assert box.client.post(f"{box.url}/exec/{eid}/signal", {"signal": signal}).status == status
    assert box.client.post(f"{box.url}/exec/none/signal", {"signal": "TERM"}).status == 404


def test_who_hangs_up_kills_the_command(box):
    """Also at once, when it has hardly begun."""
    for accept in (NDJSON, SSE) * 3:
        with box.stream("sleep 60", accept) as s:
            eid = next(s.events())["exec_id"]
        wait_until(lambda: (lambda r: r.status == 404 or r.json()["state"] != "running")(box.client.get(f"{box.url}/exec/{eid}")), what="the end of it")


def test_more_output_than_is_kept(box):
    r = box.run(["yes", "0123456"], timeout=0.5, max_output_bytes=8000)
    assert r["timed_out"] and r["stdout"] == "0123456\n" * 1000 and r["stdout_truncated"] and r["stdout_bytes_total"] > 8000


# What is wrong with a body, and the member that says so.
BAD = [
    ({"command": ""}, "command"), ({"command": []}, "command"), ({"command": 5}, "command"), ({}, "command"), ({"command": ["a", 1]}, "command[1]"),
    ({"command": "true", "nope": 1}, "nope"), ({"command": "true", "env": {"A": 1}}, "env.A"), ({"command": "true", "env": {"A=B": "x"}}, "env.A=B"),
    ({"command": "true", "timeout": 0}, "timeout"), ({"command": "true", "timeout": -1}, "timeout"), ({"command": "true", "timeout": "60"}, "timeout"),
    ({"command": "true", "stdin": "a", "stdin_base64": "YQ=="}, "stdin_base64"), ({"command": "true", "stdin_base64": "!"}, "stdin_base64"),
    ({"command": "true", "max_output_bytes": 0}, "max_output_bytes"), ({"command": "true", "exec_id": "a/b"}, "exec_id"),
]


def test_bad_bodies_name_the_member_and_start_nothing(box):
    before = len(box.client.get(f"{box.url}/exec?limit=1000").json()["items"])
    for body, field in BAD:
        r = box.client.post(f"{box.url}/exec", body)
        assert r.status == 400 and r.code == "invalid_request" and r.json()["field"] == field, (body, r)
    assert box.ask("true", timeout=1e9).code == "timeout_above_maximum"
    assert len(box.client.get(f"{box.url}/exec?limit=1000").json()["items"]) == before
    assert output(box.run("echo still here")) == b"still here\n"
