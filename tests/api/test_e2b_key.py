"""E2B over its stand-in: its key goes to the provider and nowhere else."""
import os
import signal
import subprocess

import pytest

from e2b_rig import PAID, Standin, gone, server_of, standin  # noqa: F401
from harness import SLOW, Server, processes_below, wait_until


def test_redirects_are_not_followed_with_the_key(standin):
    """Neither its key nor a sandbox's goes anywhere but where it belongs."""
    standin.order()
    with Standin() as other, server_of(standin, timeout="1s", sweep_interval="60s") as s:
        c = s.client()
        id = c.lease()
        for status in (302, 307):
            for op in ("connect", "start", "read", "write"):
                standin.order({"op": op, "kind": "redirect", "status": status, "url": other.url + "/v2/sandboxes", "times": 0})
                r = {"connect": lambda: c.post(f"/leases/{id}/extend", {"timeout_sec": 7200}), "start": lambda: c.post(f"/leases/{id}/exec", {"command": "true"}),
                     "read": lambda: c.get(f"/leases/{id}/files?path=/etc/passwd"), "write": lambda: c.put(f"/leases/{id}/files?path=f", b"x")}[op]()
                assert r.status in (502, 503), (op, r)
        assert other.state()["counts"] == {} and other.state()["unauthorized"] == 0
        standin.order()
        c.terminate(id)
    gone(standin)


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


def known_to_others(pid):
    """What the process list shows of the server and of what it has started."""
    for p in [pid, *processes_below(pid)]:
        for what in ("cmdline", "environ"):
            try:
                with open(f"/proc/{p}/{what}") as f:
                    yield f.read()
            except OSError:
                pass


def test_the_key_is_nowhere(standin, tmp_path):
    """Before and after it was replaced, with every log line there is."""
    standin.order()
    seen, keys, path = [], [standin.key], tmp_path / "key"
    path.write_text(standin.key)
    config = {**standin.config(timeout="1s", sweep_interval="300ms", orphan_grace="1s"), "log": {"level": "debug"}}
    with Server(config=config, env={"E2B_API_KEY_FILE": str(path)}, policy=PAID) as s:
        c = s.client()
        for again in (False, True):
            if again:
                standin.rekey()
                keys.append(standin.key)
                seen.append(c.post("/leases", {}).body.decode())  # with the old one
                path.write_text(standin.key)
                s.process.send_signal(signal.SIGHUP)
                wait_until(lambda: c.post("/leases", {}).status == 201)
            r = c.post("/leases", {})
            id = r.json()["id"]
            seen += [r.body.decode(), c.exec(id, "env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'")["stdout"]]
            for op in ("create", "start", "connect") if again else ("create", "start", "delete", "connect", "read", "write"):
                standin.order({"op": op, "kind": "echo", "times": 2, "status": 400})
                for r in (c.post("/leases", {}, timeout=60 * SLOW), c.post(f"/leases/{id}/exec", {"command": "true"}), c.get(f"/leases/{id}/files?path=f"),
                          c.put(f"/leases/{id}/files?path=f", b"x"), c.post(f"/leases/{id}/extend", {"timeout_sec": 7200})):
                    seen += [r.body.decode(), str(r.headers.items())]
            standin.order()
            receipt = c.get(f"/leases/{id}").json()["receipt_id"]
            for where in ("/metrics", "/backends", "/audit", "/leases", f"/leases/{id}", f"/receipts/{receipt}", f"/leases/{id}/exec", "/healthz"):
                r = c.get(where)
                assert r.status == 200, r
                seen.append(r.body.decode())
            seen += known_to_others(s.process.pid)
        for lease in c.get("/leases?limit=100").json()["items"]:
            c.delete(f"/leases/{lease['id']}")
        gone(standin)
        os.kill(s.process.pid, signal.SIGABRT)
        s.process.wait(30)
        for key in keys:  # what is stored and logged, and no core file
            found = subprocess.run(["grep", "-rlaF", key[4:24], s.dir, s.log_path], capture_output=True, text=True)
            assert found.stdout == ""
        s.start()
    for text in seen:
        for key in keys:
            for part in (key, key[:16], key[-16:]):
                assert part not in text
