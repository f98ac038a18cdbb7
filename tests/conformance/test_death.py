"""What dies by itself: a sandbox, and the server. Never a made-up success, nothing left behind."""
import os
import signal
import time

import pytest

from box import Box, own_time, sleeping
from harness import SLOW, Process, Server, wait_until

pytestmark = pytest.mark.needs("shell", "here")


def init_of(box, backend, seconds):
    """The process, as this machine sees it, with which the sandbox of that sleeping command ends."""
    p = Process(wait_until(lambda: sleeping(seconds))[0])
    while backend.isolated and p.inside()[-1] != 1:
        p = Process(p.parent)
    while not backend.isolated and Process(p.parent).parent != box.server.pid():
        p = Process(p.parent)
    return p.pid


def gone(box):
    """What work on its lease is answered with from then on."""
    for r in (box.ask("true"), box.read("f"), box.write("f", b"x"), box.stat("f"), box.client.post(f"{box.url}/extend", {})):
        assert r.status == 410 and r.code in ("sandbox_lost", "lease_gone"), r
    assert box.client.delete(box.url).json()["terminated"] is True


def test_a_sandbox_that_dies(server, client, backend):
    box, seconds = Box(server, client.lease()), own_time()
    eid = box.detach(f"setsid sleep {seconds} & sleep 60")
    with box.stream("echo up; sleep 60") as s:
        events = s.events()
        assert next(events)["type"] == "start" and next(events)["data"] == "up\n"
        os.kill(init_of(box, backend, seconds), signal.SIGKILL)
        last = list(events)[-1]
        assert last["type"] == "error" and last["code"] in ("sandbox_lost", "outcome_unknown"), last
    l = wait_until(lambda: (lambda l: l if l["state"] == "lost" else None)(client.get(box.url).json()), what="the lease lost")
    assert l["reason"]
    gone(box)
    assert client.get(f"{box.url}/exec/{eid}").status in (404, 410)
    wait_until(lambda: sleeping(seconds) == [], what="nothing left of it")
    again = Box(server, client.lease())
    assert again.out("echo fresh") == "fresh\n"
    client.terminate(again.lease)


def on_with_the_next_server(s, box, seconds):
    """leases.at_shutdown keep: an upgrade takes no lease along, only what runs in it."""
    eid = box.detach(f"(setsid sleep {seconds} &); sleep {seconds}")
    wait_until(lambda: len(sleeping(seconds)) >= 2)
    began = time.monotonic()
    assert s.stop() == 0 and time.monotonic() - began < 4 * SLOW
    [event] = [e for e in s.log_events() if e["event"] == "leases_left"]
    assert event["leases"] == 1
    s.start()
    box = Box(s, box.lease)
    l = box.client.get(box.url).json()
    assert (l["state"], l["reason"]) == ("ready", None), l
    r = wait_until(lambda: (lambda r: r if r.status != 503 else None)(box.client.get(f"{box.url}/exec/{eid}")), what="the sandbox found again")
    assert r.status == 404, r
    assert box.read("f").body == b"kept" and box.out("echo usable") == "usable\n"
    assert any(e["event"] == "lease.ready" and e["lease_id"] == box.lease for e in box.client.get("/audit?limit=1000").json()["items"])
    return box


def test_a_server_that_is_killed(arguments, backend):
    arguments = {**arguments, "config": {**arguments["config"], "leases": {"at_shutdown": "keep"}}}
    with Server(**arguments) as s:
        box, seconds = Box(s, s.client().lease()), own_time()
        box.write("f", b"kept")
        eid = box.detach(f"(setsid sleep {seconds} &); sleep {seconds}")
        wait_until(lambda: len(sleeping(seconds)) == 2)
        s.kill9()
        s.start()
        box = Box(s, box.lease)
        l = wait_until(lambda: (lambda l: l if l["state"] != "creating" else None)(box.client.get(box.url).json()))
        assert l["state"] == ("ready" if backend.outlives else "lost") and (l["state"] == "ready" or l["reason"]), l
        r = wait_until(lambda: (lambda r: r if r.status != 503 else None)(box.client.get(f"{box.url}/exec/{eid}")), what="the sandbox found again")
        assert r.status in (404, 410) or r.json()["state"] in ("lost", "killed", "running"), r
        if backend.outlives:
            assert box.read("f").body == b"kept" and box.out("echo usable; cat f") == "usable\nkept"
            box = on_with_the_next_server(s, box, seconds)
            box.client.terminate(box.lease)
        else:
            gone(box)
        wait_until(lambda: sleeping(seconds) == [], what="nothing left of it")
        again = Box(s, s.client().lease())
        assert again.stat("f").status == 404 and again.out("echo fresh") == "fresh\n"
        s.client().terminate(again.lease)
