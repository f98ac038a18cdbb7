"""E2B over its stand-in: what is asked of it, and what comes of a create that fails, whose answer does not come, or that it has no room for."""
import concurrent.futures
import time

import pytest

from e2b_rig import gone, ids, server, server_of, standin  # noqa: F401
from harness import SLOW, wait_until


def test_what_is_asked_of_the_provider(server, standin):
    c = server.client()
    id = c.lease(timeout_sec=600, env={"A": "1"})
    [box] = standin.state()["sandboxes"]
    lease = c.get(f"/leases/{id}").json()
    assert lease["sandbox_id"] == box["id"] and lease["provider"] == "e2b"
    assert box["metadata"]["lease"] == id and box["metadata"]["sandgate"] and box["envs"] == {"A": "1"} and box["template"] == "base"
    assert 600 < box["ends_in"] < 700, "the provider's own end is a safety net behind ours"
    assert c.post(f"/leases/{id}/extend", {"timeout_sec": 3600}).status == 200
    assert 3600 < standin.state()["sandboxes"][0]["ends_in"] < 3700
    c.terminate(id)
    gone(standin)


@pytest.mark.parametrize("body, field", [({"limits": {"memory_max": "1GiB"}}, "limits"), ({"image": "no-such-template"}, "image"),
                                         ({"network_egress_class": "restricted"}, "network_egress_class")])
def test_what_it_cannot_do_is_refused(server, standin, body, field):
    r = server.client().post("/leases", body)
    assert r.status == 422 and r.json()["field"] == field, r
    assert ids(standin) == []


def test_a_create_that_fails_says_so_and_leaves_nothing(server, standin):
    standin.order(*[{"op": "create", **f} for f in ({"kind": "status", "status": 500}, {"kind": "status", "status": 401}, {"kind": "garbage"},
                                                    {"kind": "echo"}, {"kind": "drop"})])
    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        answers = list(pool.map(lambda _: server.client().post("/leases", {}, timeout=60 * SLOW), range(5)))
    assert sorted((r.status, r.code) for r in answers) == [(502, "provider_failed")] * 4 + [(503, "unavailable")], answers
    for r in answers:
        assert r.json()["provider"] == "e2b", r
        assert standin.key[4:] not in r.body.decode() and standin.key[6:20] not in r.body.decode()
    standin.order()
    gone(standin)


def test_a_provider_that_is_full_says_when_to_come_again(server, standin):
    standin.order({"op": "create", "kind": "status", "status": 429, "retry_after": 30})
    r = server.client().post("/leases", {}, timeout=60 * SLOW)
    assert r.status == 503 and r.json()["provider_status"] == 429 and r.json()["retry_after"] == 30, r


@pytest.mark.parametrize("kind", ["drop_after", "stall_after", "duplicate"])
def test_an_answer_that_does_not_come_is_looked_up_and_never_asked_for_again(server, standin, kind):
    before = standin.state()["counts"].get("create", 0)
    standin.order({"op": "create", "kind": kind})
    c = server.client()
    r = c.post("/leases", {}, timeout=60 * SLOW)
    assert r.status == 201, r
    assert standin.state()["counts"]["create"] == before + 1
    id = r.json()["id"]
    assert c.exec(id, "echo here")["stdout"] == "here\n"
    wait_until(lambda: ids(standin) == [r.json()["sandbox_id"]], 20)
    c.terminate(id)


def test_a_limit_is_waited_for(server, standin):
    standin.order({"op": "create", "kind": "status", "status": 429, "retry_after": 1})
    begun = time.monotonic()
    id = server.client().lease()
    assert time.monotonic() - begun >= 1
    server.client().terminate(id)


@pytest.mark.parametrize("kind, status, reason, timeout", [("huge", 502, "response_too_large", "40s"), ("trickle", 504, "deadline", "1s")])
def test_an_answer_without_an_end_has_one(standin, kind, status, reason, timeout):
    standin.order()
    with server_of(standin, timeout=timeout, sweep_interval="60s") as s:
        c = s.client()
        id = c.lease()
        standin.order({"op": "connect", "kind": kind, "times": 0})
        r = c.post(f"/leases/{id}/extend", {"timeout_sec": 7200})
        assert r.status == status and r.json()["reason"] == reason and r.json()["provider"] == "e2b", r
        standin.order()
        c.terminate(id)
    gone(standin)
