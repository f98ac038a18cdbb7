"""E2B: what a sandbox is made of and what runs in it before its lease is ready; services reached at the provider."""
import http.client
import urllib.parse

import pytest

from e2b_rig import PAID, Standin, gone, ids, server_of
from harness import SLOW, Server, wait_until

PAGE = "mkdir -p w && echo well > w/health && echo $WHO > w/who"
SERVE = "cd w && exec python3 -m http.server 8000"


@pytest.fixture(scope="module")
def standin():
    with Standin("--templates", "base,team/tools:v1") as s:
        yield s


@pytest.fixture(scope="module")
def server(standin):
    with server_of(standin) as s:
        yield s
    gone(standin)


@pytest.fixture
def client(server, standin):
    standin.order()
    c = server.client()
    yield c
    for l in c.get("/leases?state=ready,creating").json()["items"]:
        c.terminate(l["id"])
    gone(standin)


def blackbox(commands, **more):
    return dict({"metadata": {"paddock_mode": "blackbox"}, "services": [{"name": "web", "port": 8000}], "env": {"WHO": "me"}, "acquire_timeout": 20 * SLOW,
                 **({"env_args": {"sandbox_cmd": commands}} if commands else {})}, **more)


def ask(standin, place, path, headers=None):
    """As a caller would, but for the name, which is nowhere."""
    h = http.client.HTTPConnection("127.0.0.1", int(standin.url.rsplit(":", 1)[1]), timeout=20)
    h.request("GET", path, headers={"Host": urllib.parse.urlsplit(place["url"]).netloc, **(place["headers"] if headers is None else headers)})
    r = h.getresponse()
    return r.status, r.read()


def create(c, body):
    return c.post("/leases", body, timeout=60 * SLOW)


# ---- what it is made of ----

def test_the_template_is_what_the_lease_names_or_the_configured_one(client, standin):
    for body, template in (({}, "base"), ({"image": "team/tools:v1"}, "team/tools:v1"), ({"env_args": {"sandbox_image": "team/tools:v1"}}, "team/tools:v1"),
                           ({"image": "base", "env_args": {"sandbox_image": "base"}}, "base")):
        id = client.lease(**body)
        assert [b["template"] for b in standin.state()["sandboxes"]] == [template]
        client.terminate(id)
        gone(standin)


def test_without_a_template_nobody_is_asked(standin):
    standin.order()
    before = standin.state()["counts"].get("create", 0)
    with Server(config={**standin.config(), "e2b": {k: v for k, v in standin.config()["e2b"].items() if k != "template"}}, env=standin.env, policy=PAID) as s:
        r = s.client().post("/leases", {})
        assert r.status == 422 and r.code == "not_supported" and r.json()["field"] == "image" and "e2b.template" in r.json()["detail"], r
        r = s.client().post("/leases", {"env_args": {"sandbox_image": "no name"}})
        assert r.status == 422 and r.json()["field"] == "image", r
        s.client().terminate(s.client().lease(env_args={"sandbox_image": "base"}))
    assert standin.state()["counts"]["create"] == before + 1


# ---- commands ----

@pytest.mark.parametrize("commands, reason", [(["true", "exit 9"], "command_failed"), (["sleep 60"], "command_timed_out")])
def test_commands_that_fail_leave_nothing_at_the_provider(client, standin, commands, reason):
    r = create(client, {"env_args": {"sandbox_cmd": commands, "sandbox_cmd_timeout": 1 * SLOW}})
    assert r.status == 422 and r.code == "sandbox_cmd_failed" and r.json()["reason"] == reason, r
    assert ids(standin) == [], "it was gone before the answer"


def test_the_provider_ends_it_later_by_the_time_that_commands_may_take(client, standin):
    id = client.lease(timeout_sec=600, env_args={"sandbox_cmd": "true", "sandbox_cmd_timeout": 300})
    [box] = standin.state()["sandboxes"]
    assert 900 < box["ends_in"] < 1000
    client.terminate(id)


def test_a_fault_at_the_provider_during_a_command_is_not_a_success(client, standin):
    standin.order({"op": "start", "kind": "drop_after", "skip": 1})  # the first one prepares the sandbox
    r = create(client, {"env_args": {"sandbox_cmd": "true"}})
    assert r.status == 502 and r.code == "outcome_unknown" and (r.json()["stage"], r.json()["index"]) == ("sandbox_cmd", 0), r
    gone(standin)


def test_one_that_vanishes_while_its_commands_run_is_said(client, standin):
    standin.order({"op": "start", "kind": "gone", "skip": 1})
    r = create(client, {"env_args": {"sandbox_cmd": "sleep 30"}})
    assert r.status == 503 and r.json()["reason"] == "sandbox_lost", r


# ---- services ----

@pytest.mark.parametrize("commands", [[PAGE, SERVE], [f"{PAGE}; cd w; python3 -m http.server 8000 >/dev/null 2>&1 &"]], ids=["foreground", "background"])
def test_a_blackbox_is_ready_once_its_service_answers_at_the_provider(client, standin, commands):
    body = blackbox(commands, services=[{"name": "web", "port": 8000, "health_path": "/health"}])
    r = create(client, body)
    assert r.status == 201, r
    lease = r.json()
    place = lease["endpoints"]["web"]
    assert place["url"] == f"https://8000-{lease['sandbox_id']}.local.test/" and list(place["headers"]) == ["e2b-traffic-access-token"]
    assert ask(standin, place, "/who") == (200, b"me\n") and ask(standin, place, "/who", {})[0] == 403
    assert [t["running"] for t in lease["metadata"]["sandbox_cmd"]] == [False] * (len(commands) - 1) + [len(commands) == 2]
    assert client.get(f"/leases/{lease['id']}").json()["endpoints"] == lease["endpoints"]
    assert client.get("/leases?state=ready").json()["items"][0]["endpoints"] == lease["endpoints"]
    assert client.get(f"/leases/{lease['id']}/endpoints/8000").json() == place


def test_a_service_that_ends_or_never_answers_is_said_and_leaves_nothing(client, standin):
    r = create(client, blackbox(["true", "echo trouble >&2; exit 3"]))
    p = r.json()
    assert r.status == 422 and r.code == "sandbox_cmd_failed" and (p["index"], p["returncode"], p["stdout"]) == (1, 3, "trouble\n"), r
    assert ids(standin) == []
    for seconds in (2, 10, 30):  # enough for it to have said something
        r = create(client, blackbox("echo waiting; exec sleep 60", acquire_timeout=seconds * SLOW))
        p = r.json()
        if p.get("stdout"):
            break
        assert ids(standin) == []
    assert r.status == 503 and p["reason"] == "service_not_ready" and '"web"' in p["detail"] and p["stage"] == "services" and p["stdout"] == "waiting\n", r
    assert ids(standin) == []
    r = create(client, blackbox(None, acquire_timeout=1 * SLOW))  # nothing in the template starts one
    assert r.status == 503 and r.json()["reason"] == "service_not_ready" and "index" not in r.json(), r
    assert ids(standin) == []


def test_the_last_command_runs_also_where_something_answers_already(client, standin):
    r = create(client, blackbox([f"{PAGE}; cd w; python3 -m http.server 8000 >/dev/null 2>&1 & while ! python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 8000))'"
                                 " 2>/dev/null; do sleep 0.05; done", "exec sleep 4567"]))
    assert r.status == 201 and r.json()["metadata"]["sandbox_cmd"][1]["running"], r
    assert client.exec(r.json()["id"], "pgrep -x sleep")["returncode"] == 0


def test_who_does_not_wait_for_it_leaves_nothing(client, standin):
    with pytest.raises(OSError):
        client.post("/leases", blackbox("exec sleep 60"), timeout=1 * SLOW)
    gone(standin)


def test_in_a_whitebox_services_are_told_of_and_left_to_the_caller(client, standin):
    r = create(client, {"services": [{"name": "web", "port": 8000}]})
    assert r.status == 201 and ask(standin, r.json()["endpoints"]["web"], "/")[0] == 502, r


def test_a_blackbox_outlives_the_server(standin):
    standin.order()
    with server_of(standin) as s:
        body = blackbox([PAGE, SERVE], services=[{"name": "web", "port": 8000, "health_path": "/health"}])
        first = s.client().post("/leases", body, headers={"Idempotency-Key": "once"}, timeout=60 * SLOW)
        s.kill9()
        s.start()
        c = s.client()
        again = wait_until(lambda: c.get(f"/leases/{first.json()['id']}").json()["endpoints"], 20)
        assert again == first.json()["endpoints"] and ask(standin, again["web"], "/who") == (200, b"me\n")
        replayed = c.post("/leases", body, headers={"Idempotency-Key": "once"})
        assert replayed.status == 200 and replayed.json()["endpoints"] == again
        other = c.post("/leases", {**body, "env_args": {"sandbox_cmd": [PAGE]}}, headers={"Idempotency-Key": "once"})
        assert other.status == 409 and other.code == "idempotency_conflict", other
    gone(standin)


# ---- older deployments ----

@pytest.mark.parametrize("status", [404, 405])
def test_a_deployment_without_v2(status):
    with Standin("--old", str(status)) as standin:
        with server_of(standin) as s:
            c = s.client()
            r = c.post("/leases", {"image": "no-such-template"})
            assert r.status == 422 and r.json()["field"] == "image", r
            id, other = c.lease(timeout_sec=600), c.lease()
            assert c.exec(id, "echo here")["stdout"] == "here\n" and len(ids(standin)) == 2
            assert c.post(f"/leases/{id}/extend", {"timeout_sec": 3600}).status == 200
            assert max(b["ends_in"] for b in standin.state()["sandboxes"]) > 3600
            if status == 404:  # the one that may mean both; here two are asked for at once
                s.kill9()
                s.start()
                for i in (id, other):
                    wait_until(lambda i=i: s.client().exec_response(i, "true").status == 200, 20)
        gone(standin)
