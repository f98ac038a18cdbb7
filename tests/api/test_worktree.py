"""The backend worktree: a git worktree per lease, commands on the host as one user."""
import concurrent.futures
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
import uuid

import pytest

from conftest import server_kinds
from harness import SLOW, Server, wait_until
from repos import ENV, Repo, processes_with


IDENTITY = {"GIT_AUTHOR_NAME": "x", "GIT_AUTHOR_EMAIL": "x@y", "GIT_COMMITTER_NAME": "x", "GIT_COMMITTER_EMAIL": "x@y"}


@pytest.fixture(scope="module")
def repo():
    with Repo() as r:
        yield r


@pytest.fixture(scope="module")
def server(repo):
    with Server(repo.config()) as s:
        yield s


@pytest.fixture
def client(server):
    return server.client()


@pytest.fixture
def lease(client):
    id = client.lease()
    yield id
    client.terminate(id)


def directory(client, id):
    return client.get(f"/leases/{id}").json()["metadata"]["directory"]


def test_the_lease_says_what_it_is(client, repo):
    before = repo.state()
    r = client.post("/leases", {"manifest": {"repo": {"name": "proj", "ref": "feature/x"}}})
    assert r.status == 201, r
    l = r.json()
    id, m = l["id"], l["metadata"]
    assert l["provider"] == "worktree" and set(l["capabilities"]) == {"file_rw", "exec", "network"}
    assert m["isolation"] == "none" and m["repo"] == {"name": "proj", "ref": "feature/x", "commit": repo.commit("feature/x")}
    assert m["user"] == repo.user_name and set(m["limits_enforced"].values()) == {"none"}
    out = client.exec(id, "pwd; id -un 2>/dev/null || :; git rev-parse HEAD; git rev-parse --abbrev-ref HEAD; git status --short; cat c.txt; ./run.sh; readlink link")["stdout"].split("\n")
    assert out[:1] + out[2:] == [m["directory"], repo.commit("feature/x"), m["branch"], "three", "ran", "a.txt", ""]
    assert m["directory"] in repo.git("worktree", "list", "--porcelain")
    assert client.delete(f"/leases/{id}").json()["terminated"] is True
    assert repo.state() == before


def test_facts():
    with Repo() as repo, Server(repo.config(("worktree", "local_bwrap"))) as s:
        b = {b["name"]: b for b in s.client().get("/backends").json()["items"]}["worktree"]
        assert set(b["capabilities"]) == {"file_rw", "exec", "network"} and b["free"] is True, b
        assert s.client().post("/select", {}).json()["backend"] == "worktree"
        assert s.client().post("/select", {"policy": {"override": "local_bwrap"}}).json()["backend"] == "local_bwrap"


def test_it_is_not_there_unless_configured():
    with Server({"local_bwrap": {"size": 1}}) as s:
        r = s.client().post("/leases", {"policy": {"override": "worktree"}})
        assert r.status == 422 and r.code == "override_not_registered", r


@pytest.mark.parametrize("ref", [None, "HEAD", "main", "v1", "refs/heads/main"])
def test_refs(client, repo, ref):
    r = client.post("/leases", {"manifest": {"repo": {"name": "proj", **({"ref": ref} if ref else {})}}})
    assert r.status == 201 and r.json()["metadata"]["repo"] == {"name": "proj", "ref": ref or "HEAD", "commit": repo.commit(ref or "HEAD")}, r
    client.terminate(r.json()["id"])


def test_commit_ids(client, repo):
    for ref in (repo.commit("v1"), repo.commit("feature/x")[:12]):
        r = client.post("/leases", {"manifest": {"repo": {"name": "proj", "ref": ref}}})
        assert r.status == 201 and r.json()["metadata"]["repo"]["commit"] == repo.commit(ref), r
        client.terminate(r.json()["id"])


def test_refusals_make_nothing(client, repo):
    before, leases = repo.state(), len(client.get("/leases").json()["items"])
    blob = repo.git("rev-parse", "HEAD:a.txt")
    for body, code, field in (({"manifest": {"repo": {"name": "proj", "ref": "no-such"}}}, "ref_not_found", "manifest.repo.ref"),
                              ({"manifest": {"repo": {"name": "proj", "ref": "f" * 40}}}, "ref_not_found", "manifest.repo.ref"),
                              ({"manifest": {"repo": {"name": "proj", "ref": blob}}}, "ref_not_found", "manifest.repo.ref"),
                              ({"manifest": {"repo": {"name": "other"}}}, "repo_not_found", "manifest.repo.name"),
                              ({"manifest": {"repo": {"url": "https://example.com/x.git"}}}, "not_supported", "manifest.repo.url"),
                              ({"manifest": {"root": "/elsewhere"}}, "not_supported", "manifest.root"),
                              ({"image": "x"}, "not_supported", "image"), ({"limits": {"memory_max": "1GiB"}}, "not_supported", "limits"),
                              ({"network_egress_class": "none"}, "not_supported", "network_egress_class"),
                              ({"local_pool": "default"}, "not_supported", "local_pool")):
        r = client.post("/leases", body)
        assert r.status == 422 and r.code == code and r.json()["field"] == field, (body, r)
        assert client.post("/leases", body, headers={"Prefer": "respond-async"}).status == 422
    assert repo.state() == before and len(client.get("/leases").json()["items"]) == leases


def test_which_repository_must_be_said_when_there_are_several():
    with Repo() as one, Repo(one.user) as two:
        config = one.config()
        config["worktree"]["repos"] = {"one": one.path, "two": two.path}
        with Server(config) as s:
            c = s.client()
            r = c.post("/leases", {})
            assert r.status == 422 and r.code == "repo_not_found" and r.json()["field"] == "manifest.repo.name", r
            r = c.post("/leases", {"manifest": {"repo": {"name": "two"}}})
            assert r.status == 201 and r.json()["metadata"]["repo"]["name"] == "two", r


def test_root_and_files(client):
    r = client.post("/leases", {"manifest": {"root": "/workspace/deep/er", "files": [{"path": "new", "content": "x"}]}})
    assert r.status == 201, r
    id = r.json()["id"]
    assert client.exec(id, "git status --short; cat a.txt new")["stdout"] == "?? new\none\nx"
    assert client.read(id, "deep/er/a.txt").body == b"one\n"
    client.terminate(id)
    r = client.post("/leases", {"manifest": {"files": [{"path": "a.txt/x", "content": "x"}]}})
    assert r.status == 422 and r.code == "manifest_failed" and r.json()["stage"] == "files", r


def test_a_blackbox_has_its_output_in_its_own_place(client, repo):
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    body = {"metadata": {"paddock_mode": "blackbox"}, "services": [{"name": "web", "port": port, "health_path": "/a.txt"}],
            "env_args": {"sandbox_cmd": ["touch set-up", f"echo begun; exec python3 -m http.server --bind 127.0.0.1 {port}"]}}
    r = client.post("/leases", body)
    assert r.status == 201 and r.json()["metadata"]["sandbox_cmd"][1]["running"], r
    id = r.json()["id"]
    out = client.exec(id, "ls set-up; head -n 1 $TMPDIR/service.log; echo $TMPDIR")["stdout"].split("\n")
    assert out[:2] == ["set-up", "begun"] and id in out[2], out
    assert [n for n in processes_with(f"127.0.0.1 {port}")] != []
    client.terminate(id)
    assert processes_with(f"127.0.0.1 {port}") == []


def test_leases_of_one_repository_do_not_see_each_other(server, client, repo):
    a, b = client.lease(), client.lease()
    client.exec(a, "echo changed > a.txt; git commit -qam mine; touch $HOME/mine $TMPDIR/mine",
                env=IDENTITY)
    assert client.exec(b, "cat a.txt; git status --short; ls -A $HOME $TMPDIR | grep mine")["stdout"] == "one\n"
    assert client.exec(a, "git log --format=%s -1")["stdout"] == "mine\n"
    client.terminate(a)
    client.terminate(b)
    assert repo.commit("main") == repo.commit("v1")


def test_many_at_once(server, repo):
    before = repo.state()
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        ids = list(pool.map(lambda _: server.client().lease(), range(16)))
        outs = list(pool.map(lambda id: server.client().exec(id, "git rev-parse HEAD; pwd")["stdout"], ids))
        assert len({o.split()[1] for o in outs}) == 16 and {o.split()[0] for o in outs} == {repo.commit()}
        list(pool.map(lambda id: server.client().terminate(id), ids))
    assert repo.state() == before


def test_a_lock_of_somebody_else_is_waited_for(client, repo):
    """Commands hold the locks that making and removing a worktree need, again and again."""
    busy = client.lease()
    client.post(f"/leases/{busy}/exec", {"command": "while :; do git pack-refs --all; git update-ref refs/heads/busy HEAD; git update-ref -d refs/heads/busy; done",
                                         "detach": True, "exec_id": "busy"})
    for _ in range(10):
        client.terminate(client.lease())
    client.delete(f"/leases/{busy}/exec/busy")
    client.terminate(busy)
    repo.sh("git update-ref -d refs/heads/busy || true")
    assert "sandgate/" not in repo.git("for-each-ref")


def locks(repo):
    return [os.path.join(dir, f) for dir, _, files in os.walk(os.path.join(repo.path, ".git")) for f in files if f.endswith((".lock", ".new"))]


def test_git_is_asked_to_end_before_it_is_killed(client):
    id = client.lease()
    client.post(f"/leases/{id}/exec", {"command": "cp $(readlink -f /bin/sh) git; ./git -c 'trap \"touch asked; exit\" TERM; touch up; while :; do sleep 0.02; done'",
                                       "detach": True, "exec_id": "git"})
    wait_until(lambda: client.read(id, "up").status == 200)
    client.delete(f"/leases/{id}/exec/git")
    wait_until(lambda: client.get(f"/leases/{id}/exec/git").json()["state"] == "killed")
    assert client.read(id, "asked").status == 200
    client.terminate(id)


def test_git_that_is_killed_leaves_no_lock(client, repo):
    """Killed while one git follows the other, each with locks of what all worktrees share. One that was being made at that moment, or whose git
    did not get round to ending in time, goes after the lease: later while any other git runs on this machine that could be its owner."""
    loop = "for i in 1 2 3 4; do (while :; do git update-ref refs/heads/b$i HEAD; git pack-refs --all; git update-ref -d refs/heads/b$i; git commit -q --allow-empty -m x; done) & done; wait"
    for how in ("timeout", "delete", "end"):
        id = client.lease(env=IDENTITY)
        if how == "timeout":
            assert client.exec(id, loop, timeout=0.4)["killed_by"] == "timeout"
        else:
            client.post(f"/leases/{id}/exec", {"command": loop, "detach": True, "exec_id": "busy"})
            wait_until(lambda: "b1" in repo.git("for-each-ref"))
            if how == "delete":
                client.delete(f"/leases/{id}/exec/busy")
                wait_until(lambda: client.get(f"/leases/{id}/exec/busy").json()["state"] == "killed")
        client.terminate(id)
        wait_until(lambda: locks(repo) == [] and "sandgate/" not in repo.git("for-each-ref"), 60, f"the end of all locks after {how}")
    repo.sh("for i in 1 2 3 4; do git update-ref -d refs/heads/b$i; done")


HOLD = "(printf 'start\\ncreate refs/heads/%s HEAD\\nprepare\\n'; exec sleep 100) | git update-ref --stdin > held-%s"


def test_locks_of_git_that_was_killed_go_and_no_others(client, repo):
    kept = os.path.join(repo.path, ".git", "refs/heads/kept.lock")  # as whoever freezes a ref would
    repo.sh(f"touch {kept}")
    id = client.lease()
    client.exec(id, f"({HOLD % ('held', 'held')}) >/dev/null 2>&1 & until grep -q prepare held-held; do sleep 0.02; done; touch $(git rev-parse --git-common-dir)/packed-refs.lock; "
                    "kill -KILL $(pgrep -x git -u $(id -u))")
    assert sorted(map(os.path.basename, locks(repo))) == ["held.lock", "kept.lock", "packed-refs.lock"]
    client.terminate(id)
    wait_until(lambda: locks(repo) == [kept] and "sandgate/" not in repo.git("for-each-ref"), 15, "the end of its locks")
    # Of a git that runs, nobody's are taken: neither its own nor those that could be.
    theirs = subprocess.Popen(repo.as_user(HOLD % ("theirs", "theirs")), cwd=repo.path, env=ENV, start_new_session=True)
    try:
        wait_until(lambda: os.path.exists(os.path.join(repo.path, ".git/refs/heads/theirs.lock")))
        id = client.lease()
        client.exec(id, "touch $(git rev-parse --git-common-dir)/refs/heads/doubt.lock")
        client.terminate(id)
        wait_until(lambda: "sandgate/" not in repo.git("for-each-ref"), 5)
        time.sleep(3)  # the second look
        assert sorted(map(os.path.basename, locks(repo))) == ["doubt.lock", "kept.lock", "theirs.lock"]
    finally:
        os.killpg(theirs.pid, signal.SIGTERM)
        theirs.wait()
        os.unlink(kept)
        os.unlink(kept.replace("kept", "doubt"))


def test_git_that_is_asked_to_end_was_killed(client, lease):
    """Also one that waits for what it began, and one that does not want to."""
    r = client.exec(lease, ["git", "-c", "alias.x=!sleep 1000", "x"], timeout=0.2)
    assert (r["killed_by"], r["timed_out"], r["returncode"]) == ("timeout", True, None) and r["duration_seconds"] < 2 * SLOW, r
    client.exec(lease, "printf '#!/bin/sh\\ntrap \"\" TERM\\nwhile :; do sleep 0.1; done\\n' > gitty && chmod +x gitty")
    r = client.exec(lease, ["./gitty"], timeout=0.2)
    assert (r["killed_by"], r["signal"]) == ("timeout", "SIGKILL"), r


# ---- the end ----

def test_nothing_that_a_command_started_survives(client, lease):
    mark = uuid.uuid4().hex
    id = client.lease()
    client.exec(id, f"setsid sh -c 'sleep 1000; : {mark}' & (setsid sh -c 'trap \"\" TERM HUP INT; sleep 1001; : {mark}' &) ; nohup sh -c 'setsid setsid sleep 1002; : {mark}' >/dev/null 2>&1 & :",
                timeout=20)
    r = client.post(f"/leases/{id}/exec", {"command": f"sleep 1003; : {mark}", "detach": True, "exec_id": "d"})
    assert r.status == 202, r
    wait_until(lambda: len(processes_with(mark)) >= 3)
    client.terminate(id)
    assert processes_with(mark) == []
    assert client.exec(lease, "echo still")["stdout"] == "still\n"


def test_a_killed_command_takes_all_it_started(client, lease):
    mark = uuid.uuid4().hex
    r = client.exec(lease, f"(setsid sh -c 'sleep 1000; : {mark}' &) ; setsid setsid sh -c 'sleep 1001; : {mark}' & sleep 1002; : {mark}", timeout=1)
    assert r["timed_out"] is True and r["killed_by"] == "timeout", r
    wait_until(lambda: processes_with(mark) == [])
    assert client.exec(lease, "echo still")["stdout"] == "still\n"


def test_a_bomb_ends_with_its_lease(client):
    mark = uuid.uuid4().hex
    id = client.lease()
    script = "import os,sys\nn = int(sys.argv[2])\nwhile n > 0:\n  n -= 1\n  if os.fork() == 0:\n    os.setsid()\n  else:\n    os.wait() if n % 7 == 0 else None\nimport time\ntime.sleep(1000)\n"
    client.write(id, "bomb.py", script.encode())
    client.post(f"/leases/{id}/exec", {"command": ["python3", "bomb.py", mark, "6"], "detach": True, "exec_id": "bomb"})
    wait_until(lambda: len(processes_with(mark)) > 20)
    client.terminate(id)
    assert processes_with(mark) == []


def test_a_command_that_kills_its_agent_loses_the_lease_and_nothing_else(client, lease):
    mark = uuid.uuid4().hex
    id = client.lease()
    # As the same user it can. Its parents: a helper, the agent.
    client.exec_response(id, f"setsid sh -c 'sleep 1000; : {mark}' & p=$(awk '{{print $4}}' /proc/$PPID/stat); kill -KILL $p; sleep 5")
    wait_until(lambda: client.get(f"/leases/{id}").json()["state"] == "lost")
    wait_until(lambda: processes_with(mark) == [])
    wait_until(lambda: id not in client.get("/leases?state=ready").body.decode())
    assert client.exec(lease, "echo still")["stdout"] == "still\n"
    assert client.exec_response(id, "true").status == 410


def test_expired_and_idle_leases_leave_nothing(client, repo):
    wait_until(lambda: "sandgate/" not in repo.git("for-each-ref") and os.listdir(repo.trees) == [])  # that of the test before
    before = repo.state()
    id = client.lease(timeout_sec=0.5)
    wait_until(lambda: client.get(f"/leases/{id}").json()["state"] == "expired")
    wait_until(lambda: repo.state() == before)


@pytest.mark.parametrize("kind", server_kinds())
def test_a_killed_servers_worktrees_go_with_the_next_start(kind):
    mark = uuid.uuid4().hex
    with Repo() as repo:
        before = repo.state()
        config = repo.config()
        if kind == "user":
            config["worktree"].pop("user", None)
            del config["worktree"]["dir"]  # in its own state directory
        s = Server(config, user=repo.user if kind == "user" else None)
        try:
            c = s.start().client()
            ids = [c.lease() for _ in range(3)]
            for id in ids:
                c.exec(id, f"echo work > changed.txt; mkdir closed; touch closed/f; chmod 0 closed; (setsid sh -c 'sleep 1000; : {mark}' &)")
            assert len(processes_with(mark)) >= 3
            s.kill9()
            s.start()
            assert processes_with(mark) == []
            c = s.client()
            wait_until(lambda: repo.state() == before)
            wait_until(lambda: os.listdir(os.path.join(s.state, "worktree")) == ["lock"])
            for id in ids:
                l = c.get(f"/leases/{id}").json()
                assert l["state"] == "lost" and l["reason"], l
            id = c.lease()
            assert c.exec(id, "cat a.txt")["stdout"] == "one\n"
            assert s.stop() == 0
            assert repo.state() == before and processes_with(mark) == []
        finally:
            if s.process:
                s.kill9()
            s.clean()


def test_a_stop_leaves_nothing():
    mark = uuid.uuid4().hex
    with Repo() as repo:
        before = repo.state()
        with Server(repo.config()) as s:
            c = s.client()
            for _ in range(3):
                c.exec(c.lease(), f"(setsid sh -c 'sleep 1000; : {mark}' &)")
            assert s.stop() == 0
            assert processes_with(mark) == [] and repo.state() == before


def keepers_of(server):
    return [p for p in processes_with("keeper") if open(f"/proc/{p}/stat").read().rsplit(")", 1)[1].split()[1] == str(server.pid())]


def test_a_killed_keeper_is_replaced():
    mark = uuid.uuid4().hex
    with Repo() as repo, Server(repo.config()) as s:
        before = repo.state()
        c = s.client()
        id = c.lease()
        c.exec(id, f"(setsid sh -c 'sleep 1000; : {mark}' &)")
        os.kill(keepers_of(s)[0], signal.SIGKILL)
        wait_until(lambda: c.get(f"/leases/{id}").json()["state"] == "lost")
        assert "keeper" in c.get(f"/leases/{id}").json()["reason"]
        wait_until(lambda: processes_with(mark) == [])
        id = wait_until(lambda: (lambda r: r.json()["id"] if r.status == 201 else None)(c.post("/leases", {})))
        assert c.exec(id, "echo again")["stdout"] == "again\n"
        c.terminate(id)
        wait_until(lambda: repo.state() == before)


# ---- what was changed is kept ----

def archive(server, id):
    path = os.path.join(server.state, "worktree-archives", id)
    return path if os.path.isdir(path) else None


def check_archive(path, repo, lease):
    """Applied to what it began with, the patch gives what the worktree was; the tar holds the changed files."""
    about = json.load(open(path + "/archive.json"))
    assert about["lease_id"] == lease and about["commit"] == repo.commit("main") and about["patch"] and about["tar"] and about["repo"] == "proj"
    with tempfile.TemporaryDirectory() as d:
        sh = lambda text: subprocess.run(["sh", "-ec", text], cwd=d, check=True, stdout=subprocess.PIPE, text=True, env=dict(os.environ, **IDENTITY)).stdout
        sh(f"git -c safe.directory='*' clone -q {repo.path} clone 2>/dev/null || cp -a {repo.path} clone")
        sh(f"cd clone && git -c safe.directory='*' checkout -qf {about['commit']} && git -c safe.directory='*' apply --binary {path}/changes.patch")
        out = sh("cd clone && cat a.txt committed.txt && ls -a && readlink new-link && wc -c < bin")
        assert out.startswith("changed\ncommitted\n") and "gone" not in out and "-rf" in out and "deep" in out and out.endswith("/etc/passwd\n262144\n"), out
        sh(f"mkdir t && tar xf {path}/changes.tar -C t")
        assert sh("cd t && cat a.txt committed.txt && readlink new-link && ls deep && wc -c < bin") == "changed\ncommitted\n/etc/passwd\nf\n262144\n"
        assert not os.path.exists(d + "/t/x.o") and not os.path.exists(d + "/t/run.sh")


CHANGES = ("echo changed > a.txt; echo committed > committed.txt; git add committed.txt; git commit -qm c; rm d/b.txt; mkdir deep; echo f > deep/f; touch -- -rf 'odd\nname'; "
           "head -c 262144 /dev/urandom > bin; ln -s /etc/passwd new-link; echo ignored > x.o; touch closed; chmod 0 closed; mkfifo pipe")


def test_changes_are_kept(repo):
    with Server(repo.config()) as s:
        c = s.client()
        before = repo.state(), repo.git("count-objects", "-v")
        id = c.lease()
        c.terminate(id)
        assert archive(s, id) is None  # nothing was changed
        assert (repo.state(), repo.git("count-objects", "-v")) == before
        id = c.lease()
        assert c.exec(id, CHANGES, env=IDENTITY)["returncode"] == 0
        c.terminate(id)
        check_archive(archive(s, id), repo, id)
        # Of one whose server is killed, too.
        id = c.lease()
        c.exec(id, CHANGES, env=IDENTITY)
        s.kill9()
        s.start()
        wait_until(lambda: os.listdir(os.path.join(s.state, "worktree")) == ["lock"])
        check_archive(archive(s, id), repo, id)
        assert all(os.stat(os.path.join(s.state, "worktree-archives", id, f)).st_mode & 0o077 == 0 for f in ("changes.tar", "changes.patch", "archive.json"))
        assert os.listdir(repo.trees) == []


def test_archives_that_are_too_large_and_none_at_all(repo):
    with Server(repo.config(archive_max_bytes=100000)) as s:
        c = s.client()
        id = c.lease()
        c.exec(id, "head -c 1000000 /dev/urandom > big")
        c.terminate(id)
        path = archive(s, id)
        assert os.listdir(path) == ["archive.json"] and json.load(open(path + "/archive.json"))["tar"] is False
    with Server(repo.config(archive_enabled=False)) as s:
        c = s.client()
        id = c.lease()
        c.write(id, "x", b"x")
        c.terminate(id)
        assert not os.path.exists(os.path.join(s.state, "worktree-archives"))


# ---- files stay inside ----

def test_paths_cannot_leave_the_worktree(client, lease):
    client.exec(lease, "ln -s /etc/passwd leak; ln -s /etc d; ln -s ../../../../../../etc up; ln -s /proc/self/root magic; ln -s /var/newfile w")
    for path in ("../../etc/passwd", "/etc/passwd", "a/../../../../etc/passwd", "..%2f..%2fetc/passwd", "/proc/self/root/etc/passwd", "leak", "d/passwd", "up/passwd",
                 "magic/etc/passwd", "/workspace/../../../etc/passwd", "/proc/1/cmdline", "/dev/null"):
        r = client.read(lease, path)
        assert r.status in (403, 404, 409) and b"root:" not in r.body, (path, r)
        assert client.get(f"/leases/{lease}/files/list?path={path}").status in (403, 404, 409), path
    mark = "sandgate-" + uuid.uuid4().hex
    for path in (f"/etc/{mark}", f"../../../../etc/{mark}", f"d/{mark}", f"up/{mark}"):
        r = client.write(lease, path, b"x")
        assert r.status in (200, 201, 403, 404), (path, r)
        assert not os.path.exists(f"/etc/{mark}")
    # Beside its places nothing can be made, which no command would find.
    for path in ("/usr/bin/x", "/x", "/etc/passwd", "/home/x/y"):
        r = client.write(lease, path, b"x")
        assert r.status == (201 if path.startswith("/home") else 403), (path, r)
    client.write(lease, "w", b"inside")
    assert not os.path.exists("/var/newfile")
    for cwd in ("/etc", "d", "up", "../../..", "/proc/self/cwd"):
        r = client.exec_response(lease, "pwd", cwd=cwd)
        assert r.status == 422 or directory(client, lease).rsplit("/", 1)[0] in r.json()["stdout"], (cwd, r)
    r = client.get(f"/leases/{lease}/files/tar?path=.")
    assert r.status == 200 and b"root:x:0" not in r.body
    assert client.delete(client_path(lease, "d", recursive="true")).status == 204 and os.path.exists("/etc/passwd")


def client_path(lease, path, **query):
    return f"/leases/{lease}/files?path={path}" + "".join(f"&{k}={v}" for k, v in query.items())


def test_where_commands_see_it_is_a_path_too(client, lease):
    d = client.exec(lease, "pwd; echo hi > x.txt")["stdout"].strip()
    assert client.read(lease, d + "/x.txt").body == b"hi\n" and client.read(lease, "/workspace/x.txt").body == b"hi\n"
    assert client.exec(lease, "pwd", cwd=d + "/d")["stdout"].strip() == d + "/d"
    assert client.exec(lease, "pwd", cwd="/workspace/d")["stdout"].strip() == d + "/d"
    # Another lease's is not.
    other = client.lease()
    assert client.read(lease, directory(client, other) + "/a.txt").status == 404
    client.terminate(other)


def test_a_race_of_links_leads_nowhere_else(client, lease):
    client.exec(lease, "mkdir real; echo inside > real/passwd; ln -s real here")
    client.post(f"/leases/{lease}/exec", {"command": ["python3", "-c", "import os\nwhile True:\n for t in ('/etc', 'real'):\n  os.symlink(t, 'n'); os.rename('n', 'here')"],
                                          "detach": True, "exec_id": "race"})
    seen = {client.read(lease, "here/passwd").body for _ in range(300)}
    assert all(b == b"inside\n" or b.startswith(b"{") for b in seen), seen
    client.delete(f"/leases/{lease}/exec/race")


# ---- services ----

SERVE = """
import http.server, socket, sys
class H(http.server.BaseHTTPRequestHandler):
    def log_message(self, *a): pass
    def do_GET(self):
        out = sys.argv[3].encode()
        self.send_response(200); self.send_header("Content-Length", str(len(out))); self.end_headers(); self.wfile.write(out)
class S(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6 if ":" in sys.argv[2] else socket.AF_INET
    def server_bind(self):
        if len(sys.argv) > 4: self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        super().server_bind()
s = S((sys.argv[2], int(sys.argv[1])), H)
open("up", "w").close()
s.serve_forever()
"""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as s:
        return s.getsockname()[1]


def serve(client, lease, port, word, address="127.0.0.1", *more):
    client.write(lease, "serve.py", SERVE.encode())
    r = client.exec(lease, f"rm -f up; (setsid python3 serve.py {port} {address} {word} {' '.join(more)} >log 2>&1 &); for i in $(seq 500); do test -e up && exit 0; sleep 0.02; done; cat log; exit 1")
    assert r["returncode"] == 0, r


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::1", "::"])
def test_endpoints_lead_to_services_of_the_lease(client, lease, address):
    port = free_port()
    assert client.get(f"/leases/{lease}/proxy/{port}/").status == 503
    serve(client, lease, port, "mine", address)
    r = client.get(f"/leases/{lease}/proxy/{port}/")
    assert r.status == 200 and r.body == b"mine", r
    e = client.get(f"/leases/{lease}/endpoints/{port}").json()
    assert e["url"].endswith(f"/leases/{lease}/proxy/{port}/")
    # Whatever else listens on the host is nobody's endpoint: not for another lease, and not what another lease listens on.
    other = client.lease()
    r = client.get(f"/leases/{other}/proxy/{port}/")
    assert r.status == 503 and r.code == "endpoint_not_listening", r
    client.terminate(other)


def test_ports_of_the_host_are_no_endpoints(server, client, lease):
    with socket.create_server(("127.0.0.1", 0)) as mine, socket.create_server(("0.0.0.0", 0)) as any:
        for port in (server.port, mine.getsockname()[1], any.getsockname()[1]):
            r = client.get(f"/leases/{lease}/proxy/{port}/healthz")
            assert r.status == 503 and r.code == "endpoint_not_listening", r


def test_a_port_that_two_leases_share_is_neither_ones(client, lease):
    other, port = client.lease(), free_port()
    serve(client, lease, port, "first", "127.0.0.1", "reuse")
    assert client.get(f"/leases/{lease}/proxy/{port}/").body == b"first"
    serve(client, other, port, "second", "127.0.0.1", "reuse")
    for id in (lease, other):
        for _ in range(5):
            r = client.get(f"/leases/{id}/proxy/{port}/", headers={"Connection": "close"})
            assert r.body == (b"first" if id == lease else b"second") or r.code == "endpoint_not_listening", r
    assert client.get(f"/leases/{other}/proxy/{port}/").code == "endpoint_not_listening"
    client.terminate(other)


def test_a_blackbox_lease_waits_for_its_service(client):
    """Here nothing brings one along, so it is the manifest's files that a command must start: there is none, and the lease says so."""
    r = client.post("/leases", {"services": [{"name": "blackbox", "port": free_port()}], "acquire_timeout": 1})
    assert r.status == 503 and r.json()["reason"] == "service_not_ready", r


# ---- hostile repositories ----

def test_nothing_that_a_repository_names_is_run():
    with Repo() as repo:
        mark = os.path.join(repo.dir, "ran")
        os.mkdir(mark)
        os.chmod(mark, 0o777)
        ran = f"touch {mark}/"
        repo.sh(f"""
for h in post-checkout post-commit pre-commit reference-transaction post-index-change pre-auto-gc fsmonitor-watchman; do
  printf '#!/bin/sh\\n{ran}hook-'$h'\\ncat >/dev/null\\n' > .git/hooks/$h; chmod +x .git/hooks/$h
done
git config core.fsmonitor '{ran}fsmonitor'
git config core.hooksPath "$PWD/.git/hooks"
git config filter.evil.smudge '{ran}smudge; cat'
git config filter.evil.clean '{ran}clean; cat'
git config filter.evil.required true
git config 'filter.e.v"i=l 2.process' '{ran}process'
git config 'filter.e.v"i=l 2.required' true
git config core.sshCommand '{ran}ssh'
git config core.pager '{ran}pager'
git config core.editor '{ran}editor'
git config diff.external '{ran}diff'
git config diff.evil.textconv '{ran}textconv'
git config diff.evil.command '{ran}diffcommand'
git config credential.helper '!{ran}credential'
git config gpg.program '{ran}gpg'
git config core.alternateRefsCommand '{ran}alternate'
git config alias.worktree '!{ran}alias'
git config include.path "$PWD/.git/more"
printf '[core]\\n\\tfsmonitor = {ran}included\\n[filter "inc"]\\n\\tsmudge = {ran}included-filter\\n' > .git/more
printf '*.txt filter=evil diff=evil\\n*.sh filter=inc\\nc.* filter=e.v\\n' > .git/info/attributes
""")
        repo.sh("printf '* filter=evil\\n' > .gitattributes; printf '[submodule \"s\"]\\n\\tpath = s\\n\\turl = ext::%s\\n' > .gitmodules; "
                "git -c core.fsmonitor=false -c core.hooksPath=/dev/null -c filter.evil.clean= -c filter.evil.required=false add .gitattributes .gitmodules && "
                "git -c core.fsmonitor=false -c core.hooksPath=/dev/null commit -qm hostile")
        for f in os.listdir(mark):
            os.unlink(os.path.join(mark, f))
        with Server(dict(repo.config(("worktree", "local_bwrap")), local_bwrap={"size": 1})) as s:
            c = s.client()
            id = c.lease()
            assert c.read(id, "a.txt").body == b"one\n"
            c.write(id, "a.txt", b"changed\n")
            c.terminate(id)
            r = c.post("/leases", {"policy": {"override": "local_bwrap"}, "manifest": {"repo": {"name": "proj"}}})
            assert r.status == 201 and c.read(r.json()["id"], "a.txt").body == b"one\n", r
            c.terminate(r.json()["id"])
        assert os.listdir(mark) == []


def test_commands_that_break_their_own_worktree(client, repo):
    before = repo.state()
    for text in ("rm -rf .git", "echo 'gitdir: /nonexistent' > .git", "git worktree lock .", "git checkout -q -b other-$$ && git branch -D other-x 2>/dev/null", "rm -rf ../workspace ../home ../tmp",
                 "git worktree remove --force .", "chmod -R 0 .. || :", "mkdir -p $(printf 'd/%.0s' $(seq 1500))", "rm -rf $(git rev-parse --absolute-git-dir)",
                 "mv ../workspace ../elsewhere", "ln -s /etc ../home/sandbox/etc; rm -rf ../tmp; ln -s / ../tmp"):
        id = client.lease()
        client.exec(id, text)
        client.terminate(id)
        wait_until(lambda: repo.state()[2] == before[2], what=text)
        wait_until(lambda: f"sandgate/{id}" not in repo.git("for-each-ref"), what=text)
        assert id not in repo.git("worktree", "list", "--porcelain"), text
    repo.sh("git for-each-ref --format='%(refname)' refs/heads/other-* | xargs -r -n1 git update-ref -d; git worktree prune")
    assert repo.state() == before and os.path.exists("/etc/passwd")


def test_a_repository_that_breaks_is_said_so():
    with Repo() as repo, Server(repo.config()) as s:
        c = s.client()
        id = c.lease()
        os.rename(repo.path + "/.git/objects", repo.path + "/.git/o")
        r = c.post("/leases", {})
        assert r.status == 503 and r.code == "unavailable" and "git" in r.json()["detail"], r
        os.rename(repo.path + "/.git/o", repo.path + "/.git/objects")
        assert c.post("/leases", {}).status == 201
        subprocess.run(["rm", "-rf", repo.path], check=True)
        c.terminate(id)  # there is nothing to take it out of any more
        wait_until(lambda: id not in os.listdir(repo.trees))


# ---- starting ----

def failing_start(config, **kw):
    s = Server(config, **kw)
    try:
        s.start()
    except RuntimeError:
        return s.log_text()
    finally:
        if s.process and s.process.poll() is None:
            s.kill9()
        s.clean()
    raise AssertionError("it started")


def test_bad_settings_stop_the_start(repo):
    assert "there is no user nobody-of-that-name" in failing_start(repo.config(user="nobody-of-that-name"))
    broken = repo.config()
    broken["worktree"]["repos"] = {"x": "/usr"}
    assert "not a git repository" in failing_start(broken)
    if os.geteuid() == 0:
        c = repo.config()
        del c["worktree"]["user"]
        assert "worktree.user is needed" in failing_start(c)
        assert "never run as root" in failing_start(repo.config(user="root"))
        c = repo.config()
        c["worktree"]["dir"] = "/root/sandgate-trees-" + uuid.uuid4().hex
        try:
            assert "cannot get to" in failing_start(c)
        finally:
            os.rmdir(c["worktree"]["dir"])
        assert "only a server that runs as root" in failing_start(repo.config(user="nobody"), user=repo.user)
