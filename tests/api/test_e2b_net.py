"""E2B over its stand-in: the way there. TLS with a CA of its own, HTTP/2, a proxy, and how many calls go at a time."""
import concurrent.futures
import http.client
import json
import os
import subprocess
import sys

import pytest

from e2b_rig import PAID, gone, ids, standin  # noqa: F401
from gateway import Nginx
from harness import BIN, SLOW, Server, wait_until

sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "fakes"))
from connect_proxy import ConnectProxy  # noqa: E402

# What other programs take for a proxy, and for what needs none, is nothing to the server.
MISLEADING = {"HTTPS_PROXY": "http://127.0.0.1:1", "https_proxy": "http://127.0.0.1:1", "ALL_PROXY": "http://127.0.0.1:1", "NO_PROXY": "*", "no_proxy": "*"}


@pytest.fixture(scope="module")
def tls(standin):
    """The stand-in behind TLS, as the provider is."""
    with Nginx(int(standin.url.rsplit(":", 1)[1]), tls=True, provider=True) as n:
        n.url = f"https://localhost:{n.port}"
        yield n


def server_over(standin, tls, **more):
    standin.order()
    config = standin.config(**{"api_url": tls.url, "sandbox_url": tls.url, "timeout": "4s", **more})
    return Server(config=config, env={**standin.env, **MISLEADING}, policy=PAID)


def provider(c):
    return next(b for b in c.get("/backends").json()["items"] if b["name"] == "e2b")


def unread(server, path, body):
    h = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    h.request("POST", path, json.dumps(body), {"Content-Type": "application/json", "Accept": "application/x-ndjson"})
    return h


def test_tls_with_a_ca_of_its_own_and_one_connection_for_many_calls(standin, tls):
    with server_over(standin, tls, ca_file=tls.cert) as s:
        c = s.client()
        before = len(tls.requests())
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            leases = list(pool.map(lambda _: c.lease(), range(3)))
            # One whose reader does not read holds up no other, and takes no memory, however much it writes.
            memory = s.rss_kib()
            blocked = [unread(s, f"/leases/{leases[0]}/exec", {"command": "yes 0123456789"}) for _ in range(2)]
            wait_until(lambda: provider(c)["provider"]["calls"]["stream"]["running"] >= 2)
            got = list(pool.map(lambda i: c.exec(leases[i % 3], f"echo {i}; cat", stdin="x" * 1000)["stdout"], range(30)))
            assert got == [f"{i}\n" + "x" * 1000 for i in range(30)]
            assert c.put(f"/leases/{leases[1]}/files?path=f", b"y" * 3000000).status == 201
            assert c.get(f"/leases/{leases[1]}/files?path=f").body == b"y" * 3000000
            assert SLOW > 1 or s.rss_kib() - memory < 24 * 1024
            for b in blocked:
                b.close()
        for id in leases:
            c.terminate(id)
        seen = tls.requests()[before:]
        api = [x for x in seen if "sandboxes" in x[3]]
        assert {x[0] for x in api} == {"HTTP/2.0"} and len({x[1] for x in api}) <= 2, api
        streams = [x for x in seen if x[3].endswith("/Start")]
        assert len(streams) >= 32 and len({x[1] for x in streams}) < len(streams) / 2, "connections of commands are kept too"
    gone(standin)


def test_without_trust_nothing_is_sent(standin, tls):
    before = len(tls.requests())
    with server_over(standin, tls) as s:
        r = s.client().post("/leases", {}, timeout=60 * SLOW)
        assert r.status == 503 and r.json()["reason"] == "tls_failed" and r.json()["provider"] == "e2b", r
    assert len(tls.requests()) == before
    with pytest.raises(RuntimeError, match="no/such/file"):
        with server_over(standin, tls, ca_file="/no/such/file"):
            pass


def test_through_a_proxy(standin, tls, tmp_path):
    with ConnectProxy("us er:p@ss/word") as proxy:
        url = proxy.url.replace("//", "//us%20er:p%40ss%2Fword@")
        with server_over(standin, tls, ca_file=tls.cert, proxy=url) as s:
            c = s.client()
            id = c.lease()
            assert c.exec(id, "echo through")["stdout"] == "through\n"
            assert c.put(f"/leases/{id}/files?path=f", b"abc").status == 201 and c.get(f"/leases/{id}/files?path=f").body == b"abc"
            c.terminate(id)
            shown = subprocess.run([BIN, "check-config", "--explain", "--config", os.path.join(s.dir, "config.yaml")], capture_output=True, text=True, env=standin.env)
            for text in (shown.stdout + shown.stderr, s.log_text(), c.get("/metrics").body.decode(), c.get("/backends").body.decode()):
                assert "p%40ss" not in text and "p@ss" not in text and standin.key not in text
        assert {a for a in proxy.asked} == {("CONNECT", f"localhost:{tls.port}", True)}
        assert b"X-Proxy" not in proxy.seen and standin.key.encode() not in proxy.seen and b"X-API-Key" not in proxy.seen
    gone(standin)


def test_a_proxy_that_refuses_is_told_apart(standin, tls):
    before = len(tls.requests())
    with ConnectProxy("user:right") as proxy:
        with server_over(standin, tls, ca_file=tls.cert, proxy=proxy.url.replace("//", "//user:wr0ng-password@")) as s:
            r = s.client().post("/leases", {}, timeout=60 * SLOW)
            assert r.status == 503 and r.json()["reason"] == "unreachable" and "wr0ng" not in r.body.decode(), r
            assert "wr0ng" not in s.log_text()
        assert proxy.asked and not any(ok for *_, ok in proxy.asked) and len(tls.requests()) == before
    for bad in ("https://proxy:1", "http://user:secr3t@", "socks5://secr3t:1", "http://h/secr3t"):
        with pytest.raises(RuntimeError, match="e2b.proxy") as e:
            with server_over(standin, tls, proxy=bad):
                pass
        assert "secr3t" not in str(e.value)


def test_how_many_calls_go_at_a_time_is_a_setting_and_is_seen(standin):
    standin.order()
    with Server(config=standin.config(max_concurrent=1), env=standin.env, policy=PAID) as s:
        c = s.client()
        c.terminate(c.lease())  # so that it knows which of the provider's paths are there
        wait_until(lambda: provider(c)["provider"]["sweeps"] == 1)
        standin.order({"op": "create", "kind": "slow", "seconds": 1.5 * SLOW})

        def create(_=None):
            return s.client().post("/leases", {"image": "no-such-template"}, timeout=60 * SLOW)

        def api():
            return provider(c)["provider"]["calls"]["api"]
        with concurrent.futures.ThreadPoolExecutor(17) as pool:
            all = [pool.submit(create)]
            wait_until(lambda: api()["running"] == 1)
            all += [pool.submit(create) for _ in range(16)]
            wait_until(lambda: api()["waiting"] == 16)
            r = create()
            assert r.status == 503 and r.code == "overloaded" and r.header("Retry-After"), r
            now = api()
            assert (now["running"], now["waiting"], now["max_concurrent"], now["refused"]) == (1, 16, 1, 1)
            text = c.get("/metrics").body.decode()
            for line in ('calls{provider="e2b",kind="api",state="waiting"} 16', 'calls_max{provider="e2b",kind="api"} 1', 'breaker_open{provider="e2b"} 0',
                         'calls_total{provider="e2b",kind="api",outcome="refused"} 1', 'sweeps_total{provider="e2b",outcome="ok"} 1'):
                assert f"\nsandgate_provider_{line}\n" in text, text
            assert [x.result().status for x in all] == [422] * 17
        assert (api()["running"], api()["waiting"]) == (0, 0) and api()["answered"] >= now["answered"] + 17
    gone(standin)


def test_a_provider_that_does_not_work_is_not_asked_and_that_is_seen(standin):
    standin.order({"op": "*", "kind": "status", "status": 500, "times": 0})
    with Server(config=standin.config(sweep_interval="100ms", timeout="4s"), env=standin.env, policy=PAID) as s:
        c = s.client()
        wait_until(lambda: provider(c)["provider"]["breaker"]["state"] == "open", 30)
        seen = provider(c)
        assert seen["healthy"] is False and "500" in seen["detail"] and seen["provider"]["breaker"]["opened"] == 1 and seen["provider"]["calls"]["api"]["repeated"] > 0
        creates = standin.state()["counts"].get("create", 0)
        r = c.post("/leases", {})
        assert r.status == 503 and r.json()["reason"] == "provider_circuit_open" and r.header("Retry-After"), r
        assert standin.state()["counts"].get("create", 0) == creates
        assert '\nsandgate_provider_breaker_open{provider="e2b"} 1\n' in c.get("/metrics").body.decode()
        standin.order()
        wait_until(lambda: provider(c)["provider"]["breaker"]["state"] == "closed", 30)  # what has to be done some time goes on
        assert provider(c)["healthy"] is True
        c.terminate(c.lease())
    gone(standin)


def test_figures_of_the_whole_server_are_its_administrators(standin):
    import hashlib
    standin.order()
    tokens = [{"name": n, "sha256": hashlib.sha256(n.encode()).hexdigest(), "tenant": n, "role": r} for n, r in (("ops", "admin"), ("team", "tenant"))]
    with Server(config={**standin.config(), "auth": {"tokens": tokens}}, env=standin.env) as s:
        assert "provider" in provider(s.client("ops")) and "provider" not in provider(s.client("team"))
        assert json.loads(s.client("team").get("/backends").body)["items"]
