"""E2B over its stand-in: commands, files and ports when its answers break off."""
import http.client
import urllib.parse

import pytest

from e2b_rig import server, standin  # noqa: F401
from harness import wait_until


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


def test_a_command_that_begins_after_it_was_killed_does_not(server, standin):
    c = server.client()
    id = c.lease()
    before = standin.state()["done"].get("start.late.ended", 0)
    standin.order({"op": "start", "kind": "late"})
    r = c.post(f"/leases/{id}/exec", {"command": "echo x >> ran; sleep 30"})
    assert r.status == 502 and r.code == "outcome_unknown", r
    wait_until(lambda: standin.state()["done"].get("start.late.ended", 0) == before + 1, 20)
    assert c.exec(id, "cat ran; pgrep -x sleep")["stdout"] == ""
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
    for fault, size in (({"kind": "drop"}, 300000), ({"kind": "drop"}, 8000000), ({"kind": "status", "status": 500}, 300000)):
        standin.order({"op": "write", **fault}, {"op": "start", "kind": "slow", "seconds": 0.7, "skip": 1})  # the end of the file's other name
        r = c.put(f"/leases/{id}/files?path=f", b"n" * size)  # all of it is on its way when that is known, or not
        assert r.status == 503 and r.json()["provider"] == "e2b", r
        assert [f["name"] for f in c.get(f"/leases/{id}/files/list?path=.").json()["items"]] == ["f"]
    standin.order()
    assert c.get(f"/leases/{id}/files?path=f").body == b"old"
    c.terminate(id)
