"""What a lease request puts into its new sandbox: all of it, or there is no lease."""
import base64

import pytest

from harness import Server, output


def create(client, manifest, **body):
    return client.post("/leases", dict(body, manifest=manifest))


def test_files_and_env_are_there_when_the_lease_is(client):
    noise = bytes(range(256)) * 41
    r = create(client, {"env": {"A": "manifest", "B": "manifest"}, "files": [
        {"path": "run.sh", "content": "#!/bin/sh\nprintf %s \"$A$B\"\n", "mode": "0755"},
        {"path": "deep/er/noise.bin", "content_base64": base64.b64encode(noise).decode()},
        {"path": "/home/sandbox/empty", "content": "", "mode": 0o600},
        {"path": "twice", "content": "first"}, {"path": "twice", "content": "é second"},
    ]}, env={"B": "lease"})
    assert r.status == 201, r
    id = r.json()["id"]
    try:
        assert client.exec(id, "./run.sh")["stdout"] == "manifestlease"
        assert client.exec(id, "./run.sh", env={"A": "exec-"})["stdout"] == "exec-lease"
        assert client.read(id, "/workspace/deep/er/noise.bin").body == noise
        assert output(client.exec(id, "cat twice")) == "é second".encode()
        out = client.exec(id, "stat -c '%a %s %U' run.sh deep/er/noise.bin /home/sandbox/empty; id -un")["stdout"].split("\n")
        me = out[3]
        assert out[:3] == [f"755 27 {me}", f"644 {len(noise)} {me}", f"600 0 {me}"]
    finally:
        client.terminate(id)


def test_root_is_where_relative_files_and_commands_start(client):
    r = create(client, {"root": "/workspace/app/src", "files": [{"path": "a/x.txt", "content": "x"}]})
    assert r.status == 201, r
    id = r.json()["id"]
    try:
        assert client.exec(id, "pwd; cat a/x.txt")["stdout"] == "/workspace/app/src\nx"
        # Paths of the API start where they always do.
        assert client.exec(id, "pwd", cwd="app")["stdout"] == "/workspace/app\n"
        assert client.read(id, "app/src/a/x.txt").body == b"x"
    finally:
        client.terminate(id)


def test_the_bodys_timeout_beats_the_manifests(client):
    for body, manifest, seconds in (({}, {"timeout_seconds": 100}, 100), ({"timeout_sec": 200}, {"timeout_seconds": 100}, 200)):
        r = create(client, manifest, **body)
        l = r.json()
        client.terminate(l["id"])
        at = [t.replace("Z", "").split("T")[1].split(":") for t in (l["created_at"], l["expires_at"])]
        lived = sum((float(b) - float(a)) * k for a, b, k in zip(at[0], at[1], (3600, 60, 1))) % 86400
        assert seconds - 1 < lived < seconds + 30, (l, lived)


BAD = [
    ({"files": [{"content": "x"}]}, "manifest.files[0].path"), ({"files": [{"path": "", "content": "x"}]}, "manifest.files[0].path"),
    ({"files": [{"path": "a"}]}, "manifest.files[0]"), ({"files": [{"path": "a", "content": "x", "content_base64": "eA=="}]}, "manifest.files[0]"),
    ({"files": [{"path": "a", "content_base64": "e"}]}, "manifest.files[0].content_base64"),
    ({"files": [{"path": "a", "content": "x"}, {"path": "b", "content": "x", "mode": "0888"}]}, "manifest.files[1].mode"),
    ({"files": [{"path": "a", "content": "x", "mode": 755}]}, "manifest.files[0].mode"), ({"files": [{"path": "a", "content": "x", "mode": "4755"}]}, "manifest.files[0].mode"),
    ({"files": [{"path": "a", "content": 7}]}, "manifest.files[0].content"), ({"files": [{"path": "a", "content": "x", "owner": "root"}]}, "manifest.files[0].owner"),
    ({"files": {}}, "manifest.files"), ({"files": ["a"]}, "manifest.files[0]"), ({"files": [{"path": "a", "content": "x"}] * 1025}, "manifest.files"),
    ({"root": "workspace"}, "manifest.root"), ({"root": "/"}, "manifest.root"), ({"root": "/workspace/../etc"}, "manifest.root"), ({"root": "/a//b"}, "manifest.root"),
    ({"root": 7}, "manifest.root"), ({"env": {"1": "x"}}, "manifest.env.1"), ({"timeout_seconds": 0}, "manifest.timeout_seconds"), ({"repo": {}}, "manifest.repo"),
    ({"repo": {"name": "a", "url": "b"}}, "manifest.repo"), ({"repo": {"name": "../x"}}, "manifest.repo.name"), ({"repo": "x"}, "manifest.repo"),
    ({"repo": {"name": "a", "branch": "b"}}, "manifest.repo.branch"), ({"nope": 1}, "manifest.nope"),
] + [({"repo": {"name": "a", "ref": ref}}, "manifest.repo.ref") for ref in
     ("", "-x", "--upload-pack=touch /tmp/x", "a..b", "a/../b", "HEAD@{1}", "HEAD^", "HEAD~1", ":/fix", "HEAD:README", "a b", "a\nb", "$(x)", "`x`", "a;b", "/a", "a/",
      "a/-x", ".a", "a/.b", "x" * 256, "a\\b", "a*", "a?", "a[b]", "a|b", "a>b")]


@pytest.mark.parametrize("manifest,field", BAD)
def test_bad_manifests_name_the_place(client, manifest, field):
    r = create(client, manifest)
    assert r.status == 400 and r.code == "invalid_request" and r.json()["field"] == field, r


def test_what_does_not_fit_the_sandbox_ends_it():
    with Server({"local_bwrap": {"size": 1, "disk_max": "1MiB"}}) as s:
        c = s.client()
        for manifest, status, code, stage, field, reason in (
                ({"files": [{"path": "a", "content": "x"}, {"path": "a/b", "content": "x"}]}, 422, "manifest_failed", "files", "manifest.files[1]", "not_a_directory"),
                ({"files": [{"path": "d/e", "content": "x"}, {"path": "d", "content": "x"}]}, 422, "manifest_failed", "files", "manifest.files[1]", "is_a_directory"),
                ({"files": [{"path": "../etc/passwd", "content": "x"}]}, 422, "manifest_failed", "files", "manifest.files[0]", "forbidden"),
                ({"files": [{"path": "/proc/self/x", "content": "x"}]}, 422, "manifest_failed", "files", "manifest.files[0]", None),
                ({"root": "/usr/there"}, 422, "manifest_failed", "root", "manifest.root", "forbidden"),
                ({"files": [{"path": f"{i}", "content": "x" * 400000} for i in range(5)]}, 507, "sandbox_disk_full", "files", None, None)):
            r = create(c, manifest)
            assert r.status == status and r.code == code, r
            p = r.json()
            assert p["stage"] == stage and (field is None or p["field"] == field) and (reason is None or p["reason"] == reason), r
            listed = c.get("/leases").json()["items"]
            assert all(l["state"] == "failed" and l["sandbox_id"] is None for l in listed), listed
        # The slot is free and nothing is left in it.
        id = c.lease()
        assert c.exec(id, "ls -A /workspace /home/sandbox")["stdout"].split() == ["/home/sandbox:", "/workspace:"]
        c.terminate(id)


def test_a_failed_trajectory_can_be_tried_again(client):
    r = create(client, {"files": [{"path": "/usr/x", "content": "x"}]}, trajectory_id="again-1")
    assert r.status == 422, r
    r = create(client, {"files": [{"path": "x", "content": "x"}]}, trajectory_id="again-1")
    assert r.status == 201, r
    client.terminate(r.json()["id"])


def test_many_files(client):
    r = create(client, {"files": [{"path": f"f/{i:04}", "content": str(i)} for i in range(1024)]})
    assert r.status == 201, r
    id = r.json()["id"]
    assert client.exec(id, "cat f/* | wc -c")["stdout"].strip() == str(sum(len(str(i)) for i in range(1024)))
    client.terminate(id)
