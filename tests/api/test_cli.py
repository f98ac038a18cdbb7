"""The command line: against a real server, and on its own."""
import hashlib
import json
import os
import socket
import sqlite3
import subprocess

import pytest

from harness import BIN, SLOW, Server, wait_until

TOKEN = "cli-token-0123456789"


def run(*args, input=None, env=None, code=0):
    """stdout; the exit code must be the one expected, and what goes wrong is told on stderr."""
    clean = {"PATH": os.environ["PATH"], "HOME": "/"}
    clean.update({k: v for k, v in os.environ.items() if k.endswith("SAN_OPTIONS")})
    clean.update(env or {})
    p = subprocess.run([BIN, *args], input=input, capture_output=True, text=True, env=clean, timeout=60 * SLOW)
    assert p.returncode == code, (args, p)
    assert bool(p.stderr) == (code != 0), (args, p)
    return p.stdout if code == 0 else p.stdout + p.stderr


@pytest.fixture(scope="module")
def server():
    tokens = [{"name": "cli", "sha256": hashlib.sha256(TOKEN.encode()).hexdigest(), "tenant": "T", "role": "admin"}]
    with Server({"local_bwrap": {"size": 2}, "auth": {"tokens": tokens}}) as s:
        s.wait_slots(2, token=TOKEN)
        s.c = s.client(TOKEN)
        yield s


@pytest.fixture
def ask(server):
    """A subcommand of that server."""
    def go(*args, code=0, token=TOKEN):
        return run(*args, code=code, env={"SANDGATE_URL": f"http://127.0.0.1:{server.port}", "SANDGATE_TOKEN": token})
    return go


# ---- help and usage ----

COMMANDS = ["serve", "check-config", "select", "receipt verify", "status", "slots status", "slots drain", "slots undrain", "slots recycle",
            "pool ls", "pool show", "lease ls", "lease show", "lease rm", "audit verify", "version"]


def test_every_command_has_help():
    everything = run("--help")
    for command in COMMANDS:
        assert f"  {command} " in everything, command
        assert run(*command.split(), "--help").startswith(f"usage: sandgate {command}")
    for wrong in ([], ["nope"], ["lease"], ["lease", "nope"], ["status", "--nope"], ["lease", "show"], ["status", "x"], ["version", "--json=1"],
                  ["lease", "show", ""]):
        run(*wrong, code=2)


def test_version():
    v = json.loads(run("version", "--json"))
    assert v["name"] == "sandgate" and run("version") == f"sandgate {v['version']}\n"


# ---- against a server ----

def test_status(server, ask):
    assert ask("status").startswith("sandgate ") and ": ready\n" in ask("status")
    v = json.loads(ask("status", "--json"))
    assert v["ready"]["status"] == "ready" and v["version"]["name"] == "sandgate"
    assert any(b["name"] == "local_bwrap" and b["healthy"] for b in v["backends"]["items"])
    assert json.loads(run("status", "--json", "--url", f"http://127.0.0.1:{server.port}/v1/", env={"SANDGATE_TOKEN": TOKEN})) == v


@pytest.mark.parametrize("token", ["", "wrong"])
def test_status_without_a_right_token(ask, token):
    """What a health check needs, and why there is no more."""
    first, second = ask("status", token=token).splitlines()
    assert first.endswith(": ready") and "token" in second and "SANDGATE_TOKEN" in second


def test_leases(server, ask):
    id = server.c.lease(trajectory_id="from-a-test")
    listed = json.loads(ask("lease", "ls", "--json"))
    assert [l["id"] for l in listed if l["state"] == "ready"] == [id]
    text = ask("lease", "ls", "--state", "ready", "--provider", "local_bwrap", "--tenant", "T")
    assert text.splitlines()[0].split() == ["ID", "STATE", "PROVIDER", "TRAJECTORY", "CREATED", "EXPIRES"]
    assert text.splitlines()[1].split()[:4] == [id, "ready", "local_bwrap", "from-a-test"] and len(text.splitlines()) == 2
    assert json.loads(ask("lease", "ls", "--json", "--state=terminated", "--provider", "e2b")) == []
    shown = json.loads(ask("lease", "show", id, "--json"))
    assert shown == server.c.get(f"/leases/{id}").json() and id in ask("lease", "show", id)
    assert json.loads(ask("lease", "rm", "--json", id)) == {"terminated": True, "trajectory_id": "from-a-test"}
    assert json.loads(ask("lease", "show", id, "--json"))["state"] == "terminated"
    assert "terminated" in ask("lease", "rm", id)  # again: the same answer
    for command in ("show", "rm"):
        for unknown in ("lease_00000000000000000000000000", "no/such?lease", "..", "%"):
            text = ask("lease", command, unknown, code=1)
            assert text.startswith("sandgate: ") and text.count("\n") == 1, text
    assert "400" in ask("lease", "ls", "--state", "nope", code=1)


def test_a_long_list_is_read_to_its_end(server, ask):
    have = len(json.loads(ask("lease", "ls", "--json")))
    made = []
    for i in range(105 if SLOW == 1 else 101):  # a page has 100
        id = server.c.lease(trajectory_id=f"long-{i}")
        server.c.terminate(id)
        made.append(id)
    listed = [l["id"] for l in json.loads(ask("lease", "ls", "--json"))]
    assert len(listed) == len(set(listed)) == have + len(made) and set(made) <= set(listed)


def test_slots(server, ask):
    server.wait_slots(2, token=TOKEN)
    (pool,) = json.loads(ask("slots", "status", "--json"))
    assert (pool["pool"], pool["size"], pool["ready"], pool["draining"]) == ("default", 2, 2, False)
    assert ask("slots", "status").splitlines()[1].split() == ["default", "command_only", "2", "2", "0", "0", "false"]
    slots = json.loads(ask("slots", "status", "default", "--json"))["items"]
    assert [s["state"] for s in slots] == ["READY", "READY"] and slots[0]["slot"] in ask("slots", "status", "default")
    assert json.loads(ask("slots", "drain", "default", "--json"))["draining"] is True
    assert server.c.post("/leases", {}).status == 503
    assert json.loads(ask("slots", "undrain", "default", "--json"))["draining"] is False
    ask("slots", "recycle", "default", "--slot", slots[0]["slot"])
    wait_until(lambda: [s["generation"] - t["generation"] for s, t in zip(server.c.get("/slots/default").json()["items"], slots)] == [1, 0] and
               server.c.get("/slots/default").json()["ready"] == 2, 30, "that slot to be rebuilt")
    for wrong in (["status", "none"], ["drain", "none"], ["recycle", "default", "--slot", "none"]):
        assert "404" in ask("slots", *wrong, code=1)
    assert ask("pool", "ls", "--json") == "[]\n" and "404" in ask("pool", "show", "none", code=1)


def test_what_may_stand_in_the_way(server, ask):
    assert "401" in ask("lease", "ls", code=1, token="wrong") and "wrong" not in ask("lease", "ls", code=1, token="wrong")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{s.getsockname()[1]}"
        for args in (["status"], ["lease", "ls"], ["slots", "status"]):
            assert "no server at" in run(*args, "--url", nobody, code=1)
    for url in ("https://x", "x", "http://", "http://h:99999x", "http://h/?q", "ftp://h"):
        run("status", "--url", url, code=1)


def test_a_server_that_is_not_ready_is_exit_code_1():
    s = Server({"backends": {"enabled": ["fake"]}, "fake": {"script": json.dumps({"health": {"error": "unavailable", "message": "no machine"}})}})
    s.start(ready=False)
    try:
        url = f"http://127.0.0.1:{s.port}"
        p = subprocess.run([BIN, "status", "--json", "--url", url], capture_output=True, text=True, timeout=60)
        assert p.returncode == 1 and json.loads(p.stdout)["ready"]["code"] == "unavailable"
        p = subprocess.run([BIN, "status", "--url", url], capture_output=True, text=True, timeout=60)
        assert p.returncode == 1 and "not ready" in p.stdout and "no machine" in p.stdout
    finally:
        s.stop()
        s.clean()


# ---- the selector, offline ----

WORLD = {"environment": {"available_credentials": ["MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET"], "budget_remaining_usd": 1.5},
         "backends": [{"name": "local_bwrap", "capabilities": ["file_rw", "exec"], "free": True},
                      {"name": "modal", "capabilities": ["file_rw", "exec", "gpu"], "credentials": ["MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET"]}]}


def test_select_is_what_the_server_says(server, tmp_path):
    for policy in ({}, {"allow_paid": True, "required_capabilities": ["gpu"]}, {"override": "modal"}):
        body = dict(WORLD, policy=policy)
        f = tmp_path / "body.json"
        f.write_text(json.dumps(body))
        answered = server.c.post("/select", body)
        assert answered.status == 200
        assert run("select", "--json", "--file", str(f)).rstrip("\n") == answered.body.decode().rstrip("\n")
        assert run("select", "--json", "--file", "-", input=json.dumps(body)).rstrip("\n") == answered.body.decode().rstrip("\n")
        assert "chosen   " + answered.json()["backend"] in run("select", "--file", str(f))


def test_select_refusals(server, tmp_path):
    body = dict(WORLD, policy={"required_capabilities": ["gpu"]})
    p = subprocess.run([BIN, "select", "--json", "--file", "-"], input=json.dumps(body), capture_output=True, text=True, timeout=60)
    told, served = json.loads(p.stdout), server.c.post("/select", body).json()
    assert p.returncode == 1 and p.stderr
    for member in ("code", "attempted", "considered", "receipt"):
        assert told[member] == served[member], member
    for bad, what in (("{", ""), ('{"nope":1}', "nope"), ('{"policy":{"allow_paid":1}}', "policy.allow_paid"), ("", "")):
        assert what in run("select", "--file", "-", input=bad, code=1)
    run("select", "--file", str(tmp_path / "none"), code=1)
    assert "chosen   local_bwrap" in run("select")


def test_receipts(server, tmp_path):
    good = server.c.post("/select", WORLD).json()["receipt"]
    f = tmp_path / "receipt.json"
    f.write_text(json.dumps(good, indent=3))
    assert run("receipt", "verify", str(f)) == f"ok {good['id']}\n"
    assert json.loads(run("receipt", "verify", "--json", "-", input=json.dumps(good)))["ok"] is True
    for change in ({"chosen_backend": "modal"}, {"id": "0" * 64}, {"schema_version": 99}, {"more": 1}):
        forged = json.dumps(dict(good, **change))
        told = subprocess.run([BIN, "receipt", "verify", "--json", "-"], input=forged, capture_output=True, text=True, timeout=60)
        assert told.returncode == 1, change
        verdict = json.loads(told.stdout)
        assert verdict["ok"] is False and verdict["reason"] and verdict == server.c.post("/receipts/verify", forged.encode(),
                                                                                        headers={"Content-Type": "application/json"}).json()
        assert verdict["reason"] in run("receipt", "verify", "-", input=forged, code=1)
    run("receipt", "verify", "-", input="[]", code=1)
    run("receipt", "verify", str(tmp_path / "none"), code=1)


# ---- settings ----

@pytest.mark.parametrize("text,line,key", [
    ("local_bwrap:\n  size: 4\n  sise: 4\n", 3, "local_bwrap.sise"), ("nope: 1\n", 1, "nope"), ("local_bwrap:\n  size: many\n", 2, "local_bwrap.size"),
    ("exec:\n  timeout_max: -3s\n", 2, "exec.timeout_max"), ("server:\n  listen: 0.0.0.0:80\n", 2, "server.listen"),
    ("# comment\n\nlocal_bwrap:\n  size: 4\n  size: 5\n", 5, "size"), ("local_bwrap:\n  disk_max: 3 parsecs\n", 2, "local_bwrap.disk_max"),
    ("auth:\n  tokens:\n    - {name: a, sha256: zz, tenant: t, role: admin}\n", 3, "auth.tokens[0].sha256"), ("local_bwrap: [\n", 2, ""),
    ("backends:\n  enabled: [local_bwrap, nope]\n", 2, "backends.enabled"), ("local_bwrap:\n  cpu_max: 1025\n", 2, "from 0 to 1024\n"),
    ("backends:\n  enabled: [docker]\n", 2, "docker.image"), ("docker:\n  user: root\n", 2, "docker.user"), ("docker:\n  user: '1000:0'\n", 2, "docker.user"), ("docker:\n  host: ftp://x\n", 2, "docker.host"),
    ("docker:\n  host: unix://relative\n", 2, "docker.host"), ("docker:\n  images_allowed: [a, 'b c']\n", 2, "docker.images_allowed"),
    ("docker:\n  tls_cert: /x\n  tls_key: /y\n  image: a\nbackends:\n  enabled: [docker]\n", 2, "docker.tls_cert: is for tcp://"),
    ("docker:\n  host: https://x\n  image: a\n  tls_key: /y\nbackends:\n  enabled: [docker]\n", 4, "docker.tls_key"),
])
def test_mistakes_in_the_settings_are_located(tmp_path, text, line, key):
    f = tmp_path / "sandgate.yaml"
    f.write_text(text)
    for command in (["check-config"], ["serve", "--state-dir", str(tmp_path / "state")]):
        told = run(*command, "--config", str(f), code=1)
        assert told.startswith(f"sandgate: {f}:{line}: ") and key in told and told.count("\n") == 1, told


def test_settings_that_are_right(tmp_path):
    f = tmp_path / "sandgate.yaml"
    f.write_text("local_bwrap: {size: 7}\nlog: {level: warn}\n")
    assert run("check-config", "--config", str(f)) == "the configuration is good\n"
    rows = {r["key"]: r for r in json.loads(run("check-config", "--json", "--config", str(f), env={"SANDGATE_LOG_LEVEL": "debug"}))}
    assert rows["local_bwrap.size"]["value"] == 7 and str(f) in rows["local_bwrap.size"]["origin"]
    assert rows["log.level"]["value"] == "debug" and "SANDGATE_LOG_LEVEL" in rows["log.level"]["origin"]
    assert "local_bwrap.size" in run("check-config", "--explain", "--config", str(f))
    assert "SANDGATE_LOCAL_BWRAP_SIZE" in run("check-config", env={"SANDGATE_LOCAL_BWRAP_SIZE": "x"}, code=1)
    run("check-config", "--config", str(tmp_path / "none"), code=1)


# ---- the audit log ----

@pytest.fixture
def audited(tmp_path):
    """A state directory with a dozen audit records or so, and its database."""
    with Server({"local_bwrap": {"size": 1}}) as s:
        for _ in range(3):
            s.client().terminate(s.client().lease())
        # Beside the running server too.
        assert json.loads(run("audit", "verify", "--json", "--state-dir", s.state))["ok"] is True
        s.stop()
        yield s.state, next(os.path.join(s.state, f) for f in os.listdir(s.state) if f.endswith(".db"))


def alter(database, statement):
    with sqlite3.connect(database) as db:
        assert db.execute(statement).rowcount > 0
    db.close()


def test_a_sound_log(audited):
    state, _ = audited
    v = json.loads(run("audit", "verify", "--json", "--state-dir", state))
    assert v["ok"] is True and v["at_seq"] is None and v["records"] >= 9
    assert run("audit", "verify", "--state-dir", state) == f"the audit log is sound: {v['records']} records\n"


@pytest.mark.parametrize("statement,at", [
    ("update audit set tenant = 'someone' where seq = 4", 4),
    ("update audit set kind = kind || 'x' where seq = 5", 5),
    ("delete from audit where seq = 3", 3),
    ("delete from audit where seq >= 6", 6),
    ("delete from audit", None),
])
def test_tampering_is_found_and_located(audited, statement, at):
    state, database = audited
    alter(database, statement)
    p = subprocess.run([BIN, "audit", "verify", "--json", "--state-dir", state], capture_output=True, text=True, timeout=60)
    v = json.loads(p.stdout)
    assert p.returncode == 1 and v["ok"] is False and v["problem"] and v["detail"], v
    if at:
        assert v["at_seq"] == at, v
    told = subprocess.run([BIN, "audit", "verify", "--state-dir", state], capture_output=True, text=True, timeout=60)
    assert told.returncode == 1 and "damaged" in told.stdout and v["detail"] in told.stdout


def test_no_log_at_all(tmp_path):
    run("audit", "verify", "--state-dir", str(tmp_path / "none"), code=1)
