"""E2B over its stand-in: nothing is paid for that nobody has, whatever the provider and the server do; and its key stays where it is."""
import concurrent.futures
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.parse

import pytest

from harness import SLOW, Server, wait_until

sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "fakes", "e2b"))
from e2b_standin import Standin  # noqa: E402

PAID = {"allow_paid": True}


@pytest.fixture(scope="module")
def standin():
    with Standin() as s:
        yield s


def server_of(standin, **more):
    # Short times, so that what takes minutes elsewhere is seen here.
    config = standin.config(**{"sweep_interval": "300ms", "orphan_grace": "1s", "timeout": "4s", **more})
    return Server(config=config, env=standin.env, policy=PAID)


@pytest.fixture
def server(standin):
    standin.order()
    with server_of(standin) as s:
        yield s
    standin.order()
    assert wait_until(lambda: not standin.state()["sandboxes"], 20) is not False


def ids(standin):
    return sorted(b["id"] for b in standin.state()["sandboxes"])


def gone(standin):
    wait_until(lambda: not standin.state()["sandboxes"], 20)


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


def test_a_port_is_reached_at_the_provider_with_its_token(server, standin):
    c = server.client()
    id = c.lease()
    c.exec(id, "cd /tmp && echo hi > page && (python3 -m http.server 8000 >/dev/null 2>&1 &)")
    r = c.get(f"/leases/{id}/endpoints/8000")
    place = r.json()
    host = urllib.parse.urlsplit(place["url"]).netloc
    assert r.status == 200 and host == f"8000-{c.get(f'/leases/{id}').json()['sandbox_id']}.local.test", r

    def ask(headers):
        h = http.client.HTTPConnection("127.0.0.1", int(standin.url.rsplit(":", 1)[1]), timeout=10)
        h.request("GET", "/page", headers={"Host": host, **headers})
        r = h.getresponse()
        return r.status, r.read()
    assert ask({})[0] == 403, "nobody else gets there"
    wait_until(lambda: ask(place["headers"]) == (200, b"hi\n"), 20)
    for r in (c.post(f"/leases/{id}/endpoints", {"port": 8000}), c.get(f"/leases/{id}/proxy/8000/")):
        assert r.status == 422 and r.code == "not_supported", r
    c.terminate(id)


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


def test_a_delete_is_repeated_until_the_provider_confirms(server, standin):
    c = server.client()
    id = c.lease()
    standin.order({"op": "delete", "kind": "status", "status": 500, "times": 6})
    assert c.delete(f"/leases/{id}").status in (200, 202)
    gone(standin)
    wait_until(lambda: c.get(f"/leases/{id}").json()["state"] == "terminated", 20)


def test_a_sandbox_that_vanishes_is_lost_soon(server, standin):
    c = server.client()
    idle, used = c.lease(), c.lease()
    for id in (idle, used):
        standin.vanish(c.get(f"/leases/{id}").json()["sandbox_id"])
    r = c.post(f"/leases/{used}/exec", {"command": "true"})
    assert r.status == 410 and r.code in ("sandbox_lost", "lease_gone"), r
    for id in (idle, used):
        wait_until(lambda i=id: c.get(f"/leases/{i}").json()["state"] == "lost", 20)


def test_what_is_ours_and_nobodys_is_removed_and_what_is_not_ours_stays(server, standin):
    import urllib.request
    c = server.client()
    id = c.lease()
    [mine] = standin.state()["sandboxes"]

    def make(metadata):
        q = urllib.request.Request(standin.url + "/v2/sandboxes", json.dumps({"templateID": "base", "timeout": 60, "metadata": metadata}).encode(),
                                   {"X-API-Key": standin.key, "Content-Type": "application/json"})
        return json.load(urllib.request.urlopen(q))["sandboxID"]
    orphan = make({"sandgate": mine["metadata"]["sandgate"], "lease": "lease_nobody"})
    twin = make(mine["metadata"])
    others = make({"sandgate": "another", "lease": id}), make({})
    wait_until(lambda: not {orphan, twin} & set(ids(standin)), 20)
    assert set(ids(standin)) == {mine["id"], *others}
    assert c.exec(id, "true")["returncode"] == 0
    for other in others:
        standin.vanish(other)
    c.terminate(id)


def test_leases_are_found_again_after_a_kill(standin):
    standin.order()
    with server_of(standin) as s:
        c = s.client()
        kept, ended = c.lease(timeout_sec=600), c.lease(timeout_sec=4)
        c.exec(kept, "echo still > here")
        standin.order({"op": "create", "kind": "stall_after"})
        try:
            c.post("/leases", {}, timeout=1)
        except OSError:
            pass
        wait_until(lambda: len(ids(standin)) == 3, 20)
        s.kill9()
        standin.order({"op": "connect", "kind": "status", "status": 500, "times": 5})
        s.start()
        c = s.client()

        def alive():
            r = c.post(f"/leases/{kept}/exec", {"command": "cat here"})
            assert r.status in (200, 503), r
            return r.status == 200 and r.json()["stdout"] == "still\n"
        wait_until(alive, 30)
        wait_until(lambda: c.get(f"/leases/{ended}").json()["state"] == "expired", 20)
        wait_until(lambda: ids(standin) == [c.get(f"/leases/{kept}").json()["sandbox_id"]], 20)
    gone(standin)


@pytest.mark.parametrize("fault, began", [({"op": "start", "kind": "drop_after"}, True), ({"op": "start", "kind": "status", "status": 500}, False)])
def test_a_command_whose_fate_is_unknown_is_not_run_twice(server, standin, fault, began):
    c = server.client()
    id = c.lease()
    standin.order(fault)
    r = c.post(f"/leases/{id}/exec", {"command": "echo x >> ran; sleep 30"})
    assert r.status == 502 and r.code == "outcome_unknown" and r.json()["provider"] == "e2b", r
    standin.order()
    assert c.exec(id, "cat ran || true")["stdout"] in (("", "x\n") if began else ("",))
    wait_until(lambda: c.exec(id, "pgrep -x sleep || true")["stdout"] == "", 20)
    c.terminate(id)


def test_a_stream_that_breaks_has_no_end_and_its_command_is_killed(server, standin):
    c = server.client()
    id = c.lease()
    standin.order({"op": "start", "kind": "cut", "bytes": 900})
    r = c.post(f"/leases/{id}/exec", {"command": "while :; do echo 0123456789; sleep 0.01; done"})
    assert r.status == 502 and r.code == "outcome_unknown", r
    standin.order()
    wait_until(lambda: c.exec(id, "pgrep -f 012345678[9] || true")["stdout"] == "", 20)
    c.terminate(id)


def test_files_that_could_not_be_sent_change_nothing(server, standin):
    c = server.client()
    id = c.lease()
    assert c.put(f"/leases/{id}/files?path=f", b"old").status == 201
    for fault in ({"kind": "drop"}, {"kind": "status", "status": 500}):
        standin.order({"op": "write", **fault})
        r = c.put(f"/leases/{id}/files?path=f", b"new" * 100000)
        assert r.status == 503 and r.json()["provider"] == "e2b", r
    standin.order()
    assert c.get(f"/leases/{id}/files?path=f").body == b"old"
    assert [f["name"] for f in c.get(f"/leases/{id}/files/list?path=.").json()["items"]] == ["f"]
    c.terminate(id)


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


def test_chaos(standin, request):
    """Kills of the server and faults of the provider, by chance: afterwards the provider has exactly what live leases have, nothing ran
    twice, and every lease that was answered is accounted for."""
    rounds = 300 if request.config.getoption("--soak", default=False) else 10
    seed = int(os.environ.get("SANDGATE_CHAOS_SEED", "20261129"))
    rnd = random.Random(seed)
    standin.order()
    known, counted = {}, 0
    with server_of(standin, timeout="2s") as s:
        for _ in range(rounds):
            c = s.client()
            standin.order(*[{"op": rnd.choice(["create", "start", "delete", "connect", "list", "get"]), "times": rnd.randint(1, 2),
                             "skip": rnd.randint(0, 1), **rnd.choice([{"kind": "drop"}, {"kind": "drop_after"}, {"kind": "stall_after"},
                                                                      {"kind": "status", "status": 500}, {"kind": "slow", "seconds": 0.3}])}
                            for _ in range(rnd.randint(0, 3))])
            for _ in range(3):
                try:
                    r = c.post("/leases", {"timeout_sec": 600}, timeout=rnd.choice([0.3, 20]))
                    if r.status == 201:
                        known[r.json()["id"]] = True
                        counted += 1
                        c.post(f"/leases/{r.json()['id']}/exec", {"command": f"echo {counted} >> ran"}, timeout=rnd.choice([0.2, 20]))
                    if known and rnd.random() < 0.4:
                        victim = rnd.choice(sorted(known))
                        known[victim] = False
                        c.delete(f"/leases/{victim}", timeout=rnd.choice([0.2, 20]))
                except OSError:
                    pass
                c.close()
            if rnd.random() < 0.6:
                s.kill9()
                s.start()
        standin.order()
        c = s.client()

        def settled():
            items, cursor = [], ""
            while cursor is not None:
                page = c.get("/leases?limit=100" + (f"&cursor={cursor}" if cursor else "")).json()
                items += page["items"]
                cursor = page["next_cursor"]
            live = {x["sandbox_id"] for x in items if x["state"] in ("creating", "ready", "releasing")}
            at_rest = all(x["state"] not in ("creating", "releasing") for x in items)
            return at_rest and live == set(ids(standin)) and items
        items = wait_until(settled, 60)
        by_id = {x["id"]: x for x in items}
        assert set(known) <= set(by_id), (seed, set(known) - set(by_id))
        for id, wanted in known.items():
            assert by_id[id]["state"] == ("ready" if wanted else "terminated") or by_id[id]["state"] in ("ready", "lost"), (seed, by_id[id])
        assert all(n == 1 for tag, n in standin.state()["starts"].items() if tag not in ("", "sandgate")), seed
    gone(standin)
