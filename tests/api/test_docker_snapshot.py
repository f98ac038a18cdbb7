"""Snapshots that a container engine holds: images with our labels, removed with their snapshots, and nobody else's ever touched."""
import hashlib
import io
import os
import tarfile
import urllib.parse

import pytest

import engine as engines
from harness import Server, wait_until
from test_snapshots import ask, rows, snapshot

why = engines.why_not()
pytestmark = pytest.mark.skipif(why is not None, reason=str(why))
TENANT = "token-of-alpha"


@pytest.fixture(scope="module")
def engine():
    with engines.engine() as e:
        yield e


def serve(e, **docker):
    tokens = [{"name": "alpha", "sha256": hashlib.sha256(TENANT.encode()).hexdigest(), "tenant": "alpha", "role": "tenant"}]
    return Server({"backends": {"enabled": ["docker"]}, "snapshots": {"sweep_interval": "300ms", "max_bytes": "64MiB"}, "auth": {"tokens": tokens},
                   "docker": dict({"host": e.host, "image": engines.IMAGE, "pull": False}, **docker)})


@pytest.fixture(scope="module")
def server(engine):
    with serve(engine) as s:
        yield s
        drop_all(s)
        wait_until(lambda: images(engine) == [] and rows(s) == [], 30, "no image is left")
    assert [n for n in engine.containers() if "snap" in n] == []


@pytest.fixture
def c(server):
    return server.client(TENANT)


def drop_all(server):
    c = server.client(TENANT)
    for lease in c.get("/leases?state=ready").json()["items"]:
        c.terminate(lease["id"])
    for kept in c.get("/snapshots").json()["items"]:
        assert c.delete("/snapshots/" + kept["id"]).status in (202, 204)


def kept_files(server):
    return os.listdir(os.path.join(server.state, "archives"))


def images(e):
    """Those of snapshots: [(name, labels)]"""
    def listed():
        status, all_ = e.call("GET", "/images/json")
        return status == 200 and [[(t.split("/")[-1], i["Labels"]) for i in all_ for t in i["RepoTags"] or [] if "sandgate-snapshot" in t]]
    return wait_until(listed, what="Podman does not list images while one goes")[0]


FILL = "mkdir -p d/e && echo one > d/e/f && chmod 700 d/e/f && ln -s e/f d/l && echo h > ~/h && echo t > /tmp/t && head -c 3000000 /dev/urandom > big"
TREE = "find /workspace ~ /tmp -type f -o -type l | sort | xargs ls -ln | awk '{print $1, $NF}'; cat d/e/f d/l ~/h /tmp/t; md5sum big"


def test_a_lease_begins_with_an_image_of_the_engine(engine, server, c):
    lease = c.lease()
    assert c.exec(lease, FILL)["returncode"] == 0
    before = c.exec(lease, TREE)["stdout"]
    kept = snapshot(c, lease)
    assert kept["held_by"] == "provider" and kept["provider"] == "docker" and kept["dirs"] == ["home", "work", "tmp"]
    (name, labels), = images(engine)
    assert name == "sandgate-snapshot:" + kept["id"]
    assert labels["sandgate.snapshot"] == kept["id"] and labels["sandgate.tenant"] == "alpha" and labels["sandgate.digest"] == kept["digest"]
    assert labels["sandgate.instance"].startswith("inst_") and labels["sandgate.image"] == engines.IMAGE and not labels["sandgate.lease"]
    assert kept_files(server) == []
    c.terminate(lease)
    again = c.lease(manifest={"snapshot": kept["digest"], "files": [{"path": "n", "content": "n"}]}, image=engines.IMAGE)
    assert c.exec(again, "rm n; " + TREE)["stdout"] == before
    box = engine.inspect("sandgate-" + again)
    assert box["Config"]["Image"].split("/")[-1] == name and box["Config"]["Labels"]["sandgate.lease"] == again
    assert c.exec(again, "cat /.sandgate-snapshot; ls /.sandgate-snapshot")["stdout"] in ("", "/.sandgate-snapshot\n")
    # A snapshot of it is of the first image again, and the same tree is the same snapshot.
    other = snapshot(c, again)
    assert other["digest"] == kept["digest"]
    layers = [len(engine.call("GET", f"/images/sandgate-snapshot:{k['id']}/json")[1]["RootFS"]["Layers"]) for k in (kept, other)]
    assert layers[0] == layers[1]
    # The image goes when nobody needs it any more.
    r = c.delete("/snapshots/" + kept["id"])
    assert r.status == 202 and r.json()["state"] == "removing" and c.get("/snapshots/" + kept["id"]).status == 404
    c.terminate(again)
    wait_until(lambda: [n for n, _ in images(engine)] == ["sandgate-snapshot:" + other["id"]], 20, "it is gone")
    assert c.delete("/snapshots/" + other["id"]).status == 204 and images(engine) == []


def outer(data):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as t:
        i = tarfile.TarInfo(".sandgate-snapshot")
        i.size = len(data)
        t.addfile(i, io.BytesIO(data))
    return out.getvalue()


def test_what_the_engine_gives_back_is_checked(engine, c, soak):
    lease = c.lease()
    kept = snapshot(c, lease)
    tag = "sandgate-snapshot:" + kept["id"]
    # Somebody puts other bytes under its name, more or fewer.
    assert engine.call("POST", "/containers/create?name=forger", {"Image": tag, "Cmd": ["x"], "Labels": {"sandgate.instance": ""}})[0] == 201  # else it would be one of ours
    for data in (b"x" * 300000, b"other bytes")[:2 if soak else 1]:
        assert engine.call("PUT", "/containers/forger/archive?path=/", outer(data), "application/x-tar")[0] == 200
        assert engine.call("POST", f"/commit?container=forger&repo=sandgate-snapshot&tag={kept['id']}", {})[0] == 201
        r = c.post("/leases", {"manifest": {"snapshot": kept["id"]}})
        assert r.status == 422 and r.code == "manifest_failed" and r.json()["reason"] == "snapshot_damaged" and r.json()["stage"] == "snapshot", r
    assert engine.call("DELETE", "/containers/forger")[0] == 204
    # And somebody removes it.
    assert engine.call("DELETE", f"/images/{tag}?force=1")[0] == 200
    r = c.post("/leases", {"manifest": {"snapshot": kept["id"]}})
    assert r.status == 422 and r.code == "snapshot_not_found" and r.json()["field"] == "manifest.snapshot", r
    r = c.post("/leases", {"manifest": {"snapshot": kept["id"]}, "image": "another"})
    assert r.status == 422 and r.json()["field"] == "image", r
    assert c.delete("/snapshots/" + kept["id"]).status == 204
    c.terminate(lease)
    # Layers of what was overwritten have no name, but our label: they are not ours to touch.
    for i in engine.call("GET", "/images/json?filters=" + '{"dangling":["true"]}')[1]:
        engine.call("DELETE", f"/images/{i['Id']}?force=1")


def commit_stranger(engine, name, labels):
    repo, tag = name.split(":")
    query = urllib.parse.urlencode({"container": "stranger", "repo": repo, "tag": tag, "changes": [f"LABEL {k}={v}" for k, v in labels.items()]}, doseq=True)
    assert engine.call("POST", "/commit?" + query, {})[0] == 201


def test_images_of_others_stay(engine, server, c):
    lease = c.lease()
    kept = snapshot(c, lease)
    instance = images(engine)[0][1]["sandgate.instance"]
    # With our name, with our label, and with both but of another server.
    strangers = {"sandgate-snapshot:theirs": {}, "theirs:1": {"sandgate.instance": instance},
                 "sandgate-snapshot:snap_01m8m59j7es6bqx397pkhqsm1j0b6ts2": {"sandgate.instance": "inst_other", "sandgate.snapshot": "snap_01m8m59j7es6bqx397pkhqsm1j0b6ts2"}}
    assert engine.call("POST", "/containers/create?name=stranger", {"Image": engines.IMAGE, "Cmd": ["x"]})[0] == 201
    for name, labels in strangers.items():
        commit_stranger(engine, name, labels)
    # One with our label that no row is about is nobody's.
    orphan = "snap_01m8m59j7es6bqx397pkhqsm1j0b6ts3"
    ours = {"sandgate.instance": instance, "sandgate.snapshot": orphan}
    commit_stranger(engine, f"sandgate-snapshot:{orphan}", ours)
    wait_until(lambda: [e for e in server.log_events() if e["event"] == "orphan_snapshot" and e["snapshot_id"] == orphan], 20, "it was found")
    wait_until(lambda: orphan not in str(images(engine)), 20, "it is gone")
    assert c.delete("/snapshots/" + kept["id"]).status == 204
    for name in strangers:
        assert engine.call("DELETE", f"/images/{name}")[0] == 200, name
    assert "stranger" in engine.containers() and engine.call("DELETE", "/containers/stranger")[0] == 204
    c.terminate(lease)


def test_a_kill_in_between_leaves_nothing(engine, server, c):
    lease = c.lease()
    assert c.exec(lease, "head -c 30000000 /dev/urandom > big")["returncode"] == 0
    ask(c, lease)
    wait_until(lambda: [r for r in rows(server) if r[1] == 1], 20, "the intent")
    wait_until(lambda: [n for n in engine.containers() if "snap" in n], 20, "the engine was asked")
    server.kill9()
    server.start()
    c = server.client(TENANT)
    wait_until(lambda: rows(server) == [] and images(engine) == [] and not [n for n in engine.containers() if "snap" in n], 30,
               "nothing is left")
    assert kept_files(server) == [] and c.exec(lease, "echo on")["stdout"] == "on\n"
    snapshot(c, lease)
    c.terminate(lease)
    drop_all(server)


def test_limits_hold(engine, server, c, soak):
    if not soak:
        pytest.skip("as of other snapshots; ./dev soak has it")
    lease = c.lease()
    assert c.exec(lease, "head -c 70000000 /dev/zero > big")["returncode"] == 0
    r = c.post(f"/leases/{lease}/snapshots")
    assert r.status == 422 and r.code == "limit_exceeded", r
    assert images(engine) == [] and rows(server) == [] and kept_files(server) == []
    c.terminate(lease)


def test_files_of_the_server_instead(engine):
    with serve(engine) as s:
        c = s.client(TENANT)
        lease = c.lease()
        c.write(lease, "f", b"one")
        held = snapshot(c, lease)
        s.stop()
        s.config["docker"]["snapshots"] = "tar"
        s.start()
        c = s.client(TENANT)
        lease = c.lease(manifest={"snapshot": held["id"]})  # as before
        assert c.read(lease, "f").body == b"one"
        kept = snapshot(c, lease)
        assert kept["held_by"] == "server" and kept["digest"] == held["digest"] and kept_files(s) == [kept["id"] + ".tar"]
        c.terminate(lease)
        assert c.delete("/snapshots/" + held["id"]).status == 204 and images(engine) == []
        assert c.delete("/snapshots/" + kept["id"]).status == 204
