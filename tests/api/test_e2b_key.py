"""E2B over its stand-in: its key goes to the provider and nowhere else."""
import signal
import subprocess

import pytest

from e2b_rig import PAID, Standin, gone, server, server_of, standin  # noqa: F401
from harness import SLOW, Server, wait_until


def test_redirects_are_not_followed_with_the_key(server, standin):
    with Standin() as other:
        standin.order({"op": "create", "kind": "redirect", "url": other.url + "/v2/sandboxes"})
        r = server.client().post("/leases", {}, timeout=60 * SLOW)
        assert r.status == 502 and other.state()["counts"] == {} and other.state()["unauthorized"] == 0, r


def test_without_its_key_the_server_does_not_start(standin):
    with pytest.raises(RuntimeError, match="E2B_API_KEY"):
        with Server(config=standin.config()):
            pass


def test_a_new_key_is_taken_at_a_sighup(standin, tmp_path):
    standin.order()
    path = tmp_path / "key"
    path.write_text("e2b_wrong_key_of_yesterday\n")
    with Server(config=standin.config(), env={"E2B_API_KEY_FILE": str(path)}, policy=PAID) as s:
        c = s.client()
        r = c.post("/leases", {})
        assert r.status == 503 and r.json()["provider_status"] == 401 and "yesterday" not in r.body.decode(), r
        path.write_text(standin.key + "\n")
        s.process.send_signal(signal.SIGHUP)
        wait_until(lambda: c.post("/leases", {}).status == 201)
    gone(standin)


def test_the_key_is_nowhere(standin):
    standin.order()
    seen = []
    with server_of(standin) as s:
        c = s.client()
        id = c.lease()
        seen.append(c.exec(id, "env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'")["stdout"])
        for op in ("create", "start", "list", "delete"):
            standin.order({"op": op, "kind": "echo", "times": 2})
            for r in (c.post("/leases", {}, timeout=60 * SLOW), c.post(f"/leases/{id}/exec", {"command": "true"})):
                seen.append(r.body.decode())
                if r.status == 201:
                    c.terminate(r.json()["id"])
        standin.order()
        for path in ("/metrics", "/backends", "/audit", "/leases", f"/leases/{id}", "/healthz"):
            seen.append(c.get(path).body.decode())
        with open(f"/proc/{s.process.pid}/cmdline") as f:
            seen.append(f.read())
        c.terminate(id)
        log = s.log_path
        state = subprocess.run(["grep", "-rlaF", standin.key[4:24], s.state, log], capture_output=True, text=True)
        assert state.stdout == ""
    for text in seen:
        for part in (standin.key, standin.key[:16], standin.key[-16:]):
            assert part not in text
    gone(standin)
