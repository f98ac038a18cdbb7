"""Repositories by their URL: the sandbox fetches them with what it reaches itself."""
import functools
import http.server
import os
import shutil
import socket
import threading
import time

import pytest

from conftest import account, server_kinds
from harness import SLOW, Server, wait_until
from repos import Repo

HOST = "127.0.0.2"  # 127.0.0.1 is the sandbox's own


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


class Origin:
    """Serves a repository's files over HTTP, and at another port takes requests that it never answers."""

    def __init__(self):
        self.repo = Repo()
        self.repo.sh("git clone -q --bare . served/proj.git && git -C served/proj.git update-server-info")
        self.http = http.server.ThreadingHTTPServer((HOST, 0), functools.partial(Quiet, directory=os.path.join(self.repo.path, "served")))
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.silent = socket.create_server((HOST, 0), backlog=64)
        self.url = f"http://{HOST}:{self.http.server_port}/proj.git"
        self.silent_url = f"http://{HOST}:{self.silent.getsockname()[1]}/proj.git"
        self.allowed = [f"{HOST}:{self.http.server_port}", f"{HOST}:{self.silent.getsockname()[1]}"]

    def close(self):
        self.http.shutdown()
        self.http.server_close()
        self.silent.close()
        shutil.rmtree(self.repo.dir)


@pytest.fixture(scope="module")
def origin():
    o = Origin()
    yield o
    o.close()


@pytest.fixture(scope="module", params=server_kinds())
def server(request, origin):
    config = {"local_bwrap": {"size": 2, "egress": "restricted", "egress_allow": origin.allowed}, "local_pools": [{"name": "alone", "size": 1}]}
    with Server(config, user=account(request.param)) as s:
        s.wait_slots(2)
        yield s


@pytest.fixture
def client(server):
    return server.client()


def create(client, url, ref=None, **more):
    repo = {"url": url} if ref is None else {"url": url, "ref": ref}
    manifest = dict({"repo": repo}, **more.pop("manifest", {}))
    return client.post("/leases", dict({"manifest": manifest}, **more))


@pytest.mark.parametrize("ref", [None, "main", "feature/x", "v1", "commit"])
def test_what_the_ref_is(client, origin, ref):
    commit = origin.repo.commit("feature/x" if ref in ("feature/x", "commit") else "main")
    r = create(client, origin.url, commit if ref == "commit" else ref)
    assert r.status == 201, r
    id = r.json()["id"]
    out = client.exec(id, "git rev-parse HEAD; git status --porcelain; cat a.txt d/b.txt; stat -c %U a.txt; ./run.sh; git log --oneline | wc -l")
    assert out["stdout"] == f"{commit}\none\ntwo\nsandbox\nran\n{2 if ref in ('feature/x', 'commit') else 1}\n", out
    branch = client.exec(id, "git symbolic-ref --short HEAD")["stdout"].strip()
    assert branch == {None: "main", "main": "main", "feature/x": "feature/x"}.get(ref, ""), branch
    client.terminate(id)


def test_root_and_files_come_with_it(client, origin):
    r = create(client, origin.url, manifest={"root": "/workspace/deep/in", "files": [{"path": "a.txt", "content": "mine"}]})
    assert r.status == 201, r
    id = r.json()["id"]
    assert client.exec(id, "pwd; cat a.txt; git status --porcelain")["stdout"] == "/workspace/deep/in\nmine M a.txt\n"
    client.terminate(id)


def test_what_cannot_be_fetched_leaves_nothing(server, client, origin):
    for url, ref, word in ((origin.url, "no-such-branch", "no-such-branch"), (origin.url + "x", None, "not found"),
                           ("http://127.0.0.3:9/x.git", None, "403"), (origin.url.replace("http:", "https:"), None, "")):
        r = create(client, url, ref)
        p = r.json()
        assert r.status == 422 and r.code == "manifest_failed" and (p["reason"], p["stage"], p["field"]) == ("clone_failed", "repo", "manifest.repo.url"), r
        assert word in p["detail"], r
    server.wait_slots(2)
    id = client.lease()
    assert client.exec(id, "ls -A")["stdout"] == ""
    client.terminate(id)


@pytest.mark.parametrize("url", ["file:///etc", "ext::sh -c id", "ssh://h/x", "git@h:x", "/etc", "--upload-pack=id", "git://h/x", ""])
def test_only_what_is_fetched_over_http(client, url):
    r = create(client, url)
    assert r.status == 400 and r.code == "invalid_request" and r.json()["field"] == "manifest.repo.url", r


def test_no_network_no_clone(client, origin):
    for more in ({"local_pool": "alone"}, {"network_egress_class": "none"}, {"network_egress_class": "loopback"}):
        r = create(client, origin.url, **more)
        assert r.status == 422 and "network" in r.json()["detail"], r
    with Server({"local_bwrap": {"size": 1}}) as s:
        r = create(s.client(), origin.url)
        assert r.status == 422 and r.code == "not_supported" and r.json()["field"] == "manifest.repo.url", r


def test_a_clone_ends_with_its_lease(server, client, origin):
    r = client.post("/leases", {"manifest": {"repo": {"url": origin.silent_url}}}, headers={"Prefer": "respond-async"})
    assert r.status == 202, r
    path = r.header("Location")
    time.sleep(0.2)
    began = time.monotonic()
    assert client.delete(path).status in (200, 202)
    wait_until(lambda: client.get(path).json()["state"] in ("failed", "terminated"), 20 * SLOW, "the end of the lease")
    assert time.monotonic() - began < 10 * SLOW
    server.wait_slots(2)


def test_a_caller_that_leaves_ends_its_clone(server, client, origin):
    body = b'{"manifest":{"repo":{"url":"%s"}}}' % origin.silent_url.encode()
    with socket.create_connection(("127.0.0.1", server.port)) as c:
        c.sendall(b"POST /leases HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        wait_until(lambda: client.get("/slots/default").json()["leased"] == 1, 20 * SLOW, "the lease")
    server.wait_slots(2)
