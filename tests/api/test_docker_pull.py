"""Images that the engine lacks: how a pull goes is seen while it does, one serves all who wait, and it fails as what it is."""
import contextlib
import os
import subprocess
import time

import pytest

import engine as engines
from harness import SLOW, Server, wait_until

why = engines.why_not()
pytestmark = pytest.mark.skipif(why is not None, reason=str(why))
ASYNC = {"Prefer": "respond-async"}
PODMAN = engines.KIND is engines.Podman
WRONG = "Digest did not match" if PODMAN else "verification failed"


@pytest.fixture(scope="module")
def engine():
    with engines.engine() as e:
        yield e


@pytest.fixture
def registry():
    with engines.Registry() as r:
        yield r


def serve(e, r, image, **docker):
    login = '{"username": "puller", "password": "p4ssw0rd", "serveraddress": "http://%s"}' % r.address
    return Server({"backends": {"enabled": ["docker"]},
                   "docker": dict({"host": e.host, "image": f"{r.address}/{image}:1", "images_allowed": [f"{r.address}/nothing:1"]}, **docker)},
                  env={"DOCKER_REGISTRY_AUTH": login})


def begin(c, **body):
    r = c.post("/leases", body, headers=ASYNC)
    assert r.status == 202, r
    return r.json()["id"]


def pulls(s):
    return [e for e in s.log_events() if e["event"].startswith("image_pull")]


def look(c, lease, condition):
    """The pull of a lease that is being created, once it is as it should be."""
    def now():
        l = c.get(f"/leases/{lease}").json()
        assert l["state"] == "creating", l
        p = l["metadata"].get("pull")
        return p if p and condition(p) else None

    return wait_until(now, 20)


def test_two_leases_share_a_pull_and_see_how_it_goes(engine, registry):
    with serve(engine, registry, "private/slow", warm=1) as s:
        c = s.client()
        one = begin(c)
        # The first layer is there or not; half of the second has been sent. Its size is known once its first bytes have come, which may be later than those
        # of the first. Podman says little of what stands still.
        p = look(c, one, lambda p: p["layers"] == 2 and (PODMAN or (p["total_bytes"] > engines.SLOW_BYTES and p["current_bytes"] > engines.SLOW_BYTES // 4)))
        assert p["image"].endswith("/private/slow:1") and p["status"] in ("downloading", "extracting") and p["layers_done"] <= 1, p
        assert PODMAN or p["current_bytes"] < p["total_bytes"], p
        two = begin(c)
        look(c, two, lambda p: p == look(c, one, lambda p: True))  # as it is, although nothing moves
        gone = begin(c)
        assert c.delete(f"/leases/{gone}").status == 200  # one that does not want it any more ends nothing
        registry.go.set()
        for lease in (one, two):
            l = c.get(f"/leases/{lease}?wait=30").json()
            assert l["state"] == "ready" and "pull" not in l["metadata"] and c.exec(lease, "echo $FROM_IMAGE")["stdout"] == "yes\n", l
        assert len([x for x in registry.paths if x.endswith(registry.slow)]) == 1, registry.paths
        wait_until(lambda: any("warm" in n for n in engine.containers()))
        begun, ended = pulls(s)  # that for the warm one is the same
        assert (begun["event"], ended["event"]) == ("image_pull_begun", "image_pulled"), pulls(s)
        assert ended["current_bytes"] == ended["total_bytes"] >= (0 if PODMAN else engines.SLOW_BYTES + 1) and ended["waiting"] == 3 and ended["duration_ms"] > 0, ended
        assert "p4ssw0rd" not in s.log_text()


def test_a_failure_in_the_middle_is_told(engine, registry):
    with serve(engine, registry, "private/broken") as s:
        c = s.client()
        r = c.post("/leases", {})
        assert r.status == 503 and r.json()["reason"] == "image_missing" and r.json()["stage"] == "pull" and r.json()["provider"] == "docker", r
        assert WRONG in r.json()["detail"], r
        lease = begin(c)
        l = c.get(f"/leases/{lease}?wait=30").json()
        assert l["state"] == "failed" and (PODMAN or WRONG in l["reason"]) and "pull" not in l["metadata"], l
        assert [e["event"] for e in pulls(s)] == ["image_pull_begun", "image_pull_failed"] * 2 and WRONG in pulls(s)[1]["error"], pulls(s)
    assert engine.containers() == []


def test_one_that_stands_still(engine, registry):
    with serve(engine, registry, "nothing", pull_timeout="1s") as s:
        c = s.client()
        lease = begin(c)
        assert look(c, lease, lambda p: True) == {"image": f"{registry.address}/nothing:1", "status": "resolving", "current_bytes": 0, "total_bytes": 0,
                                                  "layers": 0, "layers_done": 0}
        begun = time.monotonic()
        assert c.delete(f"/leases/{lease}").status == 200 and time.monotonic() - begun < 1 * SLOW  # nobody waits for it any more: it is ended
        wait_until(lambda: [e for e in pulls(s) if e["event"] == "image_pull_failed"])
        begun, leases = time.monotonic(), [begin(c) for _ in range(3)]
        for lease in leases:
            l = c.get(f"/leases/{lease}?wait=30").json()
            assert l["state"] == "failed" and "in time" in l["reason"], l
        assert 0.7 < time.monotonic() - begun < 8 * SLOW and len([e for e in pulls(s) if e["event"] == "image_pull_begun"]) == 2
        lease = begin(c)
        look(c, lease, lambda p: True)
        assert s.stop() == 0  # with one under way
    assert engine.containers() == []


@pytest.mark.skipif(SLOW != 1, reason="an engine of its own, for what is said alike in every build")
def test_the_engines_disk_is_full(registry):
    e = engines.KIND()
    os.mkdir(e.dir + "/data")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "sandgate-test", e.dir + "/data"], check=True)
    try:
        e.start()
        e.load()
        with serve(e, registry, "private/slow", images_allowed=[engines.IMAGE]) as s:
            c = s.client()
            with open(e.dir + "/data/ballast", "wb") as f, contextlib.suppress(OSError):
                while f.write(bytes(65536)):
                    f.flush()
            before = e.containers()
            for body in ({}, {"image": engines.IMAGE}):  # a pull, a create
                registry.go.set()
                r = c.post("/leases", body)
                assert r.status == 503 and r.json()["reason"] == "engine_disk_full" and "no space left" in r.json()["detail"], r
                assert e.containers() == before, e.containers()
            assert c.get("/readyz").status == 200
            os.unlink(e.dir + "/data/ballast")
            assert c.exec(c.lease(image=engines.IMAGE), "echo again")["stdout"] == "again\n"
    finally:
        e.stop()
