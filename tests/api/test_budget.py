"""What leases cost: reserved for their whole time before a provider is asked, settled when they end, never more than a tenant's budget."""
import concurrent.futures
import hashlib
import json
import time

import pytest

from harness import SLOW, Server, wait_until

PRICE = 36.0  # an hour: a cent a second


def server(budget=1.0, script=None, **config):
    tokens = [{"name": "poor", "sha256": hashlib.sha256(b"token-of-poor").hexdigest(), "tenant": "poor", "role": "tenant", "allow_paid": True, "budget_usd": budget},
              {"name": "modest", "sha256": hashlib.sha256(b"token-of-modest").hexdigest(), "tenant": "modest", "role": "tenant", "allow_paid": True, "budget_usd": 0.45},
              {"name": "rich", "sha256": hashlib.sha256(b"token-of-rich").hexdigest(), "tenant": "rich", "role": "tenant", "allow_paid": True},
              {"name": "ops", "sha256": hashlib.sha256(b"token-of-ops").hexdigest(), "tenant": "ops", "role": "admin", "allow_paid": True}]
    return Server(dict(config, backends={"enabled": ["fake"]}, fake={"script": json.dumps(dict({"free": False}, **(script or {})))}, prices={"fake": PRICE},
                       auth={"tokens": tokens}))


PAID = {"policy": {"allow_paid": True}}


def create(c, seconds, **more):
    return c.post("/leases", dict(PAID, timeout_sec=seconds, **more))


def left(c):
    """As the selector sees it, in dollars."""
    r = c.post("/select", {"policy": {"allow_paid": True}})
    return json.loads(r.body)["receipt"]["selector_inputs"]["budget_remaining_microusd"] / 1e6


def test_the_whole_time_is_reserved_and_what_was_used_is_paid():
    with server() as s:
        c = s.client("token-of-poor")
        assert left(c) == 1.0
        r = create(c, 60)
        assert r.status == 201 and r.json()["metadata"]["cost"]["usd_per_hour"] == PRICE, r
        id = r.json()["id"]
        assert left(c) == pytest.approx(0.4)
        refused = create(c, 60)
        assert refused.status == 429 and refused.code == "quota_exceeded" and refused.json()["reason"] == "budget_exhausted", refused
        assert (refused.json()["limit"], refused.json()["use"], refused.json()["owner"]) == (1.0, 0.6, "poor") and refused.header("Retry-After")
        assert create(s.client("token-of-rich"), 3600).status == 201  # others are not meant
        second = create(c, 30).json()["id"]
        assert left(c) == pytest.approx(0.1)
        time.sleep(1)
        for i in (id, second):
            assert c.delete(f"/leases/{i}").status == 200
        cost = sum(c.get(f"/leases/{i}").json()["metadata"]["cost"]["usd"] for i in (id, second))
        assert 0.02 <= cost < 0.4 and left(c) == pytest.approx(1 - cost, abs=1e-5)
        assert c.get(f"/leases/{id}").json()["metadata"]["cost"] == c.get(f"/leases/{id}").json()["metadata"]["cost"]


def test_nothing_is_left_nothing_is_chosen():
    with server(budget=0.01) as s:
        c = s.client("token-of-poor")
        id = create(c, 1).json()["id"]
        r = create(c, 1)
        assert r.status == 422 and r.code == "no_backend_satisfies_policy", r
        assert [x["code"] for x in r.json()["considered"][0]["reasons"]] == ["budget_exhausted"], r
        # Who names the backend is not asked for its price by the selector, but the money is not there all the same.
        r = c.post("/leases", {"policy": {"override": "fake"}, "timeout_sec": 1})
        assert r.status == 429 and r.json()["reason"] == "budget_exhausted", r
        c.delete(f"/leases/{id}")


def test_extensions_are_reserved_too():
    with server() as s:
        c = s.client("token-of-poor")
        id = create(c, 50).json()["id"]
        assert left(c) == pytest.approx(0.5)
        before = c.get(f"/leases/{id}").json()["expires_at"]
        r = c.post(f"/leases/{id}/extend", {"timeout_sec": 200})
        assert r.status == 429 and r.json()["reason"] == "budget_exhausted", r
        assert c.get(f"/leases/{id}").json()["expires_at"] == before and left(c) == pytest.approx(0.5)
        assert c.post(f"/leases/{id}/extend", {"timeout_sec": 90}).status == 200
        assert 0.05 < left(c) < 0.2
        c.delete(f"/leases/{id}")
        assert left(c) > 0.8


def test_failures_cost_nothing():
    with server(script={"create": [{"error": "provider_failed", "message": "no machine"}] * 3}) as s:
        c = s.client("token-of-poor")
        for _ in range(3):
            assert create(c, 90).status == 502
        assert left(c) == 1.0 and create(c, 90).status == 201


def test_it_cannot_be_raced_past():
    with server(script={"create": [{"delay_ms": 100}] * 100}) as s:
        who = ["token-of-poor", "token-of-modest", "token-of-rich"] * 10
        with concurrent.futures.ThreadPoolExecutor(30) as pool:
            got = list(pool.map(lambda t: (t, create(s.client(t), 20).status), who))
        assert {x for _, x in got} <= {201, 429, 422}, got
        for token, leases, rest in (("token-of-poor", 5, 0), ("token-of-modest", 2, 0.05), ("token-of-rich", 10, None)):
            assert got.count((token, 201)) == leases, got
            assert rest is None or left(s.client(token)) == pytest.approx(rest), token


@pytest.mark.parametrize("outlives", [False, True])
def test_what_was_spent_survives_the_server(outlives):
    with server(script={"outlives_server": outlives}) as s:
        c = s.client("token-of-poor")
        done, running = create(c, 30).json()["id"], create(c, 50).json()["id"]
        time.sleep(0.5)
        assert c.delete(f"/leases/{done}").status == 200
        cost = c.get(f"/leases/{done}").json()["metadata"]["cost"]["usd"]
        assert cost >= 0.005 and left(c) == pytest.approx(0.5 - cost, abs=1e-5)
        s.kill9()
        s.start()
        c = s.client("token-of-poor")
        wait_until(lambda: c.get(f"/leases/{running}").json()["state"] in ("lost", "ready"), 20 * SLOW, "the lease")
        # It died with the server, or with its provider's memory of it: what it had cost until then is spent.
        wait_until(lambda: left(c) > 0.6, 20 * SLOW, "what it had cost until then instead of what was reserved")
        total = sum(c.get(f"/leases/{i}").json()["metadata"]["cost"]["usd"] for i in (done, running))
        assert left(c) == pytest.approx(1 - total, abs=0.02)


def test_the_answer_of_a_repetition_is_the_first_ones():
    with server() as s:
        c = s.client("token-of-poor")
        first = c.post("/leases", dict(PAID, timeout_sec=60), headers={"Idempotency-Key": "k"})
        again = c.post("/leases", dict(PAID, timeout_sec=60), headers={"Idempotency-Key": "k"})
        assert again.json() == first.json() and left(c) == pytest.approx(0.4)
