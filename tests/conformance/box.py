"""A sandbox, or a directory in it, in few words."""
import itertools
import json
import os
import urllib.parse

from harness import wait_until
from streams import NDJSON, Stream


_times = itertools.count()


def own_time():
    """Seconds that nobody else on this machine sleeps for."""
    return f"3{os.getpid():07}{next(_times):03}"


def sleeping(seconds):
    """Processes of this machine that sleep for so long, inside of whatever."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                if f.read().split(b"\0")[:2] == [b"sleep", seconds.encode()]:
                    found.append(int(pid))
        except OSError:
            pass
    return found


class Box:
    """Paths, and commands without a cwd of their own, are below `at`, which is below /workspace."""

    def __init__(self, server, lease, at=""):
        self.server, self.lease, self.at, self.client = server, lease, at, server.client()

    @property
    def url(self):
        return f"/leases/{self.lease}"

    def make(self):
        r = self.client.post(f"{self.url}/files/mkdir?path={self.at}")
        assert r.status == 201, r

    def path(self, name):
        return name if name.startswith("/") or not self.at else self.at + "/" + name if name else self.at

    # ---- commands ----

    def body(self, command, more):
        return dict({"cwd": self.at} if self.at else {}, command=command, **more)

    def ask(self, command, headers=None, **more):
        """The answer of an exec, whatever it is."""
        return self.server.client().post(f"{self.url}/exec", self.body(command, more), headers=headers, timeout=90)

    def run(self, command, **more):
        """The result of an exec."""
        r = self.ask(command, **more)
        assert r.status == 200, r
        return r.json()

    def out(self, command, **more):
        """What a command that succeeds writes."""
        r = self.run(command, **more)
        assert r["returncode"] == 0 and r["stderr"] == "", r
        return r["stdout"]

    def stream(self, command, accept=NDJSON, headers=None, **more):
        return Stream(self.server.port, "POST", f"{self.url}/exec", self.body(command, more), accept, headers)

    def detach(self, command, **more):
        r = self.ask(command, detach=True, **more)
        assert r.status == 202 and r.header("Location") == f"{self.url}/exec/{r.json()['exec_id']}", r
        return r.json()["exec_id"]

    def info(self, eid):
        r = self.client.get(f"{self.url}/exec/{eid}")
        assert r.status == 200, r
        return r.json()

    def ended(self, eid, seconds=20):
        return wait_until(lambda: (lambda i: i if i["state"] != "running" else None)(self.info(eid)), seconds, "the end of the command")

    def follow(self, eid, after=0, accept=NDJSON):
        return Stream(self.server.port, "GET", f"{self.url}/exec/{eid}/output?after={after}&follow=1", None, accept)

    def output(self, eid, after=0):
        """The events so far."""
        r = self.client.get(f"{self.url}/exec/{eid}/output?after={after}")
        assert r.status == 200, r
        return [json.loads(line) for line in r.body.splitlines()]

    def kill(self, eid):
        return self.client.delete(f"{self.url}/exec/{eid}")

    # ---- files ----

    def file(self, path, **query):
        return f"{self.url}/files?" + urllib.parse.urlencode(dict(query, path=self.path(path) or "."))

    def sub(self, what, path="", **query):
        return f"{self.url}/files/{what}?" + urllib.parse.urlencode(dict(query, path=self.path(path) or "."))

    def read(self, path, **kw):
        return self.client.get(self.file(path), **kw)

    def write(self, path, data, headers=None, **query):
        return self.client.put(self.file(path, **query), data, headers=headers)

    def delete(self, path, headers=None, **query):
        return self.client.delete(self.file(path, **query), headers=headers)

    def stat(self, path):
        return self.client.get(self.sub("stat", path))

    def size(self, path):
        r = self.stat(path)
        return r.json()["size"] if r.status == 200 else -1

    def names(self, path="", **query):
        """Names of a directory, over all pages."""
        found, cursor = [], {}
        while True:
            r = self.client.get(self.sub("list", path, **query, **cursor))
            assert r.status == 200, r
            found += [i["name"] for i in r.json()["items"]]
            if not r.json()["next_cursor"]:
                return found
            cursor = {"cursor": r.json()["next_cursor"]}

    def move(self, old, new):
        return self.client.post(f"{self.url}/files/move", {"from": self.path(old), "to": self.path(new)})

    def appears(self, path):
        wait_until(lambda: self.stat(path).status == 200, what=path)
