"""What a new sandbox holds: all of it when the lease is answered, or there is no lease."""
import base64
from datetime import datetime

import pytest

from box import Box
from harness import output


def made(server, **body):
    r = server.client().post("/leases", body)
    assert r.status == 201, r
    return Box(server, r.json()["id"])


def refused(client, status, code, body, field=None, stage=None):
    """Nothing is left of it, also of one that is not waited for."""
    before = len(client.get("/leases?state=ready,creating").json()["items"])
    r = client.post("/leases", body)
    assert r.status == status and r.code == code and (field is None or r.json()["field"] == field) and (stage is None or r.json()["stage"] == stage), (body, r)
    assert len(client.get("/leases?state=ready,creating").json()["items"]) == before
    return r


def test_files(server):
    noise = bytes(range(256)) * 41
    box = made(server, manifest={"files": [{"path": "deep/er/noise", "content_base64": base64.b64encode(noise).decode()}, {"path": "/tmp/empty", "content": ""},
                                           {"path": "twice", "content": "first"}, {"path": "twice", "content": "é second"}]})
    assert box.read("deep/er/noise").body == noise and box.read("/tmp/empty").body == b"" and box.read("twice").body == "é second".encode()
    box.client.terminate(box.lease)


@pytest.mark.needs("shell")
def test_root_files_env(server):
    box = made(server, env={"B": "lease"}, manifest={"root": "/workspace/app/src", "env": {"A": "manifest", "B": "manifest"}, "files": [
        {"path": "run.sh", "content": "#!/bin/sh\nprintf %s \"$A$B\"\n", "mode": "0755"}, {"path": "x/y", "content": "x"}]})
    assert box.out("./run.sh; cat x/y") == "manifestleasex" and box.out(["./run.sh"], env={"A": "exec-"}) == "exec-lease"
    assert box.out("pwd").endswith("/workspace/app/src\n") and box.out("pwd", cwd="app").endswith("/workspace/app\n")
    assert box.read("app/src/x/y").body == b"x" and box.stat("app/src/run.sh").json()["mode"] == "0755"
    box.client.terminate(box.lease)


def test_the_bodys_timeout_beats_the_manifests(client):
    for body, manifest, lived in (({}, {"timeout_seconds": 100}, 100), ({"timeout_sec": 200}, {"timeout_seconds": 100}, 200)):
        l = client.post("/leases", dict(body, manifest=manifest)).json()
        client.terminate(l["id"])
        begun, ends = (datetime.fromisoformat(l[k].replace("Z", "+00:00")) for k in ("created_at", "expires_at"))
        assert lived - 1 < (ends - begun).total_seconds() < lived + 30, l


def test_bad_manifests_name_the_member(client):
    for manifest, field in (({"nope": 1}, "manifest.nope"), ({"root": "x"}, "manifest.root"), ({"root": "/workspace/../etc"}, "manifest.root"), ({"env": {"1": "x"}}, "manifest.env.1"),
                            ({"files": [{"path": "a"}]}, "manifest.files[0]"), ({"files": [{"path": "a", "content": "x", "mode": "4755"}]}, "manifest.files[0].mode"),
                            ({"timeout_seconds": 0}, "manifest.timeout_seconds"), ({"repo": {"name": "../x"}}, "manifest.repo.name"), ({"repo": {"name": "a", "ref": "-x"}}, "manifest.repo.ref")):
        refused(client, 400, "invalid_request", {"manifest": manifest}, field)


def test_what_does_not_fit_ends_it(client):
    for files in ([{"path": "a", "content": "x"}, {"path": "a/b", "content": "x"}], [{"path": "d/e", "content": "x"}, {"path": "d", "content": "x"}]):
        refused(client, 422, "manifest_failed", {"manifest": {"files": files}}, "manifest.files[1]", "files")


@pytest.mark.needs("links")
def test_nothing_outside(client):
    for path in ("/proc/self/x", "/usr/x", "/etc/passwd"):
        refused(client, 422, "manifest_failed", {"manifest": {"files": [{"path": path, "content": "x"}]}}, "manifest.files[0]", "files")


def test_a_trajectory_whose_manifest_failed_may_try_again(client):
    bad = {"files": [{"path": "a", "content": "x"}, {"path": "a/b", "content": "x"}]}
    refused(client, 422, "manifest_failed", {"trajectory_id": "tried", "manifest": bad})
    r = client.post("/leases", {"trajectory_id": "tried", "manifest": {"files": bad["files"][:1]}})
    assert r.status == 201, r
    client.terminate(r.json()["id"])


@pytest.mark.needs("shell", "repo")
def test_a_repository(server):
    """Named, at a branch; and where there is git, it is one to work in."""
    r = server.client().post("/leases", {"manifest": {"repo": {"name": "proj", "ref": "feature/x"}, "files": [{"path": "new", "content": "n"}]}})
    assert r.status == 201 and r.json()["metadata"]["repo"]["ref"] == "feature/x" and len(r.json()["metadata"]["repo"]["commit"]) == 40, r
    box = Box(server, r.json()["id"])
    assert box.out("cat a.txt c.txt d/b.txt new; readlink link") == "one\nthree\ntwo\nna.txt\n" and box.out(["./run.sh"]) == "ran\n"
    if box.run("command -v git")["returncode"] == 0:
        assert box.out("git rev-parse HEAD").strip() == r.json()["metadata"]["repo"]["commit"] and box.out("git status --short") == "?? new\n"
    box.client.terminate(box.lease)


@pytest.mark.needs("repo")
def test_a_repository_that_is_not_there(client, backend):
    refused(client, 422, "repo_not_found", {"manifest": {"repo": {"name": "other"}}}, "manifest.repo.name")
    refused(client, 422, "ref_not_found", {"manifest": {"repo": {"name": "proj", "ref": "no-such"}}}, "manifest.repo.ref")
    # Who has a network tries; that there is nobody of that name is seen from inside.
    code = "manifest_failed" if "network" in backend.capabilities and backend.isolated else "not_supported"
    refused(client, 422, code, {"manifest": {"repo": {"url": "https://nobody.invalid/x.git"}}}, "manifest.repo.url")


@pytest.mark.needs("shell")
def test_many_files(server):
    box = made(server, manifest={"files": [{"path": f"f/{i:04}", "content": str(i)} for i in range(100)]})
    assert output(box.run("cat f/* | wc -c")).strip() == str(sum(len(str(i)) for i in range(100))).encode()
    box.client.terminate(box.lease)
