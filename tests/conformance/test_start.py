"""What a lease asks to be run in its new sandbox before it is ready: env_args.sandbox_cmd."""
import pytest

from box import own_time, sleeping
from harness import SLOW, wait_until


def refused(client, body, index, **members):
    r = client.post("/leases", body, timeout=60 * SLOW)
    p = r.json()
    assert r.status == 422 and r.code == "sandbox_cmd_failed" and p["stage"] == "sandbox_cmd", r
    assert p["index"] == index and p["field"] == f"env_args.sandbox_cmd[{index}]", p
    assert {k: p[k] for k in members} == members, p
    return p


@pytest.mark.needs("shell")
def test_commands_run_in_order_and_are_told_of(client):
    commands = ["pwd; echo $A > a; echo err >&2", "cat a a > b; exit 0", "printf x%.0s $(seq 4094); printf é; printf 'more %.0s' $(seq 2000)", "printf '\\377'",
                "printf x%.0s $(seq 4095); printf éé", "sh go.sh"]
    body = {"trajectory_id": "set up", "env": {"A": "of the lease"}, "manifest": {"files": [{"path": "go.sh", "content": "echo of the manifest\n"}]}, "env_args": {"sandbox_cmd": commands, "other": 1}}
    r = client.post("/leases", body, timeout=60 * SLOW)
    assert r.status == 201, r
    told = r.json()["metadata"]["sandbox_cmd"]
    assert [t["cmd"] for t in told] == commands
    assert all((t["returncode"], t["signal"], t["timed_out"], t["running"]) == (0, None, False, False) for t in told), told
    assert told[0]["stdout"].startswith("/") and told[0]["stderr"] == "err\n" and not told[0]["stdout_truncated"]
    assert told[2]["stdout"] == "x" * 4094 + "é" and told[2]["stdout_truncated"] and told[2]["stdout_encoding"] == "utf-8"
    assert told[3]["stdout_encoding"] == "base64" and told[3]["stdout"] == "/w=="
    assert told[4]["stdout"] == "x" * 4095 and told[4]["stdout_truncated"] and told[4]["stdout_encoding"] == "utf-8", "a character at the cut is left out whole"
    assert told[5]["stdout"] == "of the manifest\n"
    assert client.exec(r.json()["id"], "cat b")["stdout"] == "of the lease\nof the lease\n"
    again = client.post("/leases", body)
    assert again.status == 200 and again.json()["id"] == r.json()["id"]
    other = client.post("/leases", {**body, "env_args": {"sandbox_cmd": commands[:1]}})
    assert other.status == 409 and other.code == "trajectory_conflict", other
    client.terminate(r.json()["id"])


@pytest.mark.needs("shell")
def test_one_that_fails_ends_the_create(client):
    before = len(client.get("/leases?state=ready,creating&limit=100").json()["items"])
    refused(client, {"env_args": {"sandbox_cmd": ["true", "echo out; echo err >&2; exit 7", "touch never"]}}, 1, reason="command_failed", returncode=7,
            signal=None, timed_out=False, stdout="out\n", stderr="err\n", cmd="echo out; echo err >&2; exit 7")
    refused(client, {"env_args": {"sandbox_cmd": "kill -SEGV $$"}}, 0, returncode=None, signal="SIGSEGV", timed_out=False)
    refused(client, {"env_args": {"sandbox_cmd": ["echo begun; sleep 60", "true"], "sandbox_cmd_timeout": 1}}, 0, reason="command_timed_out", returncode=None,
            timed_out=True, stdout="begun\n")
    assert len(client.get("/leases?state=ready,creating&limit=100").json()["items"]) == before
    newest = client.get("/leases?limit=1").json()["items"][0]
    assert newest["state"] == "failed" and "sandbox_cmd" in newest["reason"], newest


@pytest.mark.needs("shell")
def test_a_lease_that_is_ended_meanwhile_ends_its_commands(client):
    nap = own_time()
    id = client.post("/leases", {"env_args": {"sandbox_cmd": f"sleep {nap}"}}, headers={"Prefer": "respond-async"}).json()["id"]
    wait_until(lambda: sleeping(nap), 20 * SLOW, "the command")
    assert client.delete(f"/leases/{id}").status in (200, 202)
    l = wait_until(lambda: (lambda l: l if l["state"] == "terminated" else None)(client.get(f"/leases/{id}").json()), 20 * SLOW, "the end")
    assert "sandbox_cmd" not in l["metadata"] and sleeping(nap) == []
