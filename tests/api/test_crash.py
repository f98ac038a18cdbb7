"""kill -9 of the server at any moment of mixed traffic: nothing of it runs on, and every lease it ever answered is accounted for."""
import hashlib
import http.client
import os
import random
import subprocess
import threading
import time

import pytest

from conftest import account, server_kinds
from harness import Client, Server, wait_until

SIZE = 4
CALLERS = 6
ENDED = {"terminated", "failed", "expired", "lost"}


class Ledger:
    """What callers were told, under one lock."""

    def __init__(self):
        self.lock = threading.Lock()
        self.leases = {}     # id -> True once its end was answered
        self.snapshots = {}  # id -> digest
        self.wrong = []

    def note(self, r, *good):
        if r.status not in good:
            with self.lock:
                self.wrong.append(repr(r)[:300])
        return r.status


class Caller(threading.Thread):
    """Mixed traffic until the server is gone."""

    def __init__(self, server, ledger, seed):
        super().__init__(daemon=True)
        self.c, self.ledger, self.random = Client(server), ledger, random.Random(seed)

    def run(self):
        try:
            while True:
                self.job()
        except (OSError, http.client.HTTPException):
            return
        except Exception as e:  # whatever else is a finding
            with self.ledger.lock:
                self.ledger.wrong.append(f"{type(e).__name__}: {e}")

    def job(self):
        body = {"acquire_timeout": 5, "timeout_sec": 600}
        if self.random.random() < 0.3:
            body["trajectory_id"] = f"t-{self.random.random()}"
        if self.random.random() < 0.2:
            body["limits"] = {"pids_max": 50}
        with self.ledger.lock:
            known = list(self.ledger.snapshots)
        if known and self.random.random() < 0.2:
            body["manifest"] = {"snapshot": self.random.choice(known)}
        r = self.c.post("/leases", body)
        if self.ledger.note(r, 201, 503) != 201:
            return
        id = r.json()["id"]
        with self.ledger.lock:
            self.ledger.leases[id] = False
        for _ in range(self.random.randrange(4)):
            self.random.choice([self.run_command, self.detach, self.write, self.extend, self.snapshot])(id)
        if self.random.random() < 0.8:
            r = self.c.delete(f"/leases/{id}")
            if self.ledger.note(r, 200, 202) == 200:
                with self.ledger.lock:
                    self.ledger.leases[id] = True

    def run_command(self, id):
        mark = "setsid sleep 7654321 & sh -c 'trap \"\" TERM HUP; sleep 7654321' & head -c 200000 /dev/zero | wc -c"
        r = self.c.exec_response(id, mark, timeout=20)
        if self.ledger.note(r, 200) == 200 and r.json()["stdout"] != "200000\n":
            with self.ledger.lock:
                self.ledger.wrong.append(str(r.json()))

    def detach(self, id):
        self.ledger.note(self.c.post(f"/leases/{id}/exec", {"command": "sleep 7654321", "detach": True}), 202)

    def write(self, id):
        data = os.urandom(self.random.randrange(200000))
        if self.ledger.note(self.c.write(id, "some/file", data), 200, 201) in (200, 201):
            r = self.c.read(id, "some/file")
            if self.ledger.note(r, 200) == 200 and r.body != data:
                with self.ledger.lock:
                    self.ledger.wrong.append("another file came back")

    def extend(self, id):
        self.ledger.note(self.c.post(f"/leases/{id}/extend", {"timeout_sec": 900}), 200)

    def snapshot(self, id):
        r = self.c.post(f"/leases/{id}/snapshots")
        if self.ledger.note(r, 201, 409, 429, 503) == 201:
            with self.ledger.lock:
                self.ledger.snapshots[r.json()["id"]] = r.json()["digest"]


def processes_of(s, uid):
    """Those of the server's sandboxes, or of the server itself."""
    first = s.uid_base if uid is None else uid
    found = []
    for p in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{p}/status") as f:
                owner = next(int(line.split()[1]) for line in f if line.startswith("Uid:"))
            with open(f"/proc/{p}/cmdline", "rb") as f:
                cmdline = f.read().decode(errors="replace")
        except (OSError, StopIteration):
            continue
        if first <= owner < first + 256 or s.state in cmdline or (owner == first and uid is not None):
            found.append((p, owner, cmdline[:80]))
    return found


def groups_of(s):
    """Control groups below the server's own, by their paths."""
    name = "sandgate-" + hashlib.sha256(s.state.encode()).hexdigest()[:12]
    found = []
    for top, dirs, _ in os.walk("/sys/fs/cgroup"):
        if os.path.basename(top) == name:
            found.append(top)
            dirs.clear()
    return found


def account_for(s, c, ledger):
    for id, ended in ledger.leases.items():
        r = c.get(f"/leases/{id}")
        assert r.status == 200, (id, r)
        l = r.json()
        assert l["state"] in ENDED and l["reason"], l
        if ended:
            assert l["state"] == "terminated", l
        gone = c.exec_response(id, "true")
        assert gone.status == 410 and gone.code in ("lease_gone", "sandbox_lost"), gone
    listed, path = set(), "/leases?limit=1000"
    while path:
        page = c.get(path).json()
        listed |= {l["id"] for l in page["items"]}
        assert not [l for l in page["items"] if l["state"] not in ENDED]
        path = page["next_cursor"] and "/leases?limit=1000&cursor=" + page["next_cursor"]
    assert set(ledger.leases) <= listed
    for id, digest in ledger.snapshots.items():
        r = c.get("/snapshots/" + id)
        assert r.status == 200 and r.json()["digest"] == digest, (id, r)
    files = set(os.listdir(os.path.join(s.state, "archives")))
    kept = {a["id"] + ".tar" for p in ("/archives", "/snapshots") for a in c.get(p + "?limit=1000").json()["items"]}
    assert files == kept


def verify_audit(s):
    p = subprocess.run([s.binary, "audit", "verify", "--state-dir", s.state], capture_output=True, text=True, timeout=60)
    assert p.returncode == 0, p.stdout + p.stderr


@pytest.mark.parametrize("kind", server_kinds())
def test_a_kill_at_any_moment(kind, soak):
    rounds = (200 if soak else 10) // len(server_kinds())
    config = {"local_bwrap": {"size": SIZE, "archive_enabled": True, "archive_max_per_slot": 3},
              "local_pools": [{"name": "onhost", "size": 1, "disk": "dir"}], "snapshots": {"max_per_tenant": 100000}}
    user = account(kind)
    ledger = Ledger()
    s = Server(config, user=user).start()
    try:
        for round in range(rounds):
            s.wait_slots(1)
            callers = [Caller(s, ledger, 1000 * round + i) for i in range(CALLERS)]
            for caller in callers:
                caller.start()
            time.sleep(random.Random(round).uniform(0.05, 1.2))  # the moment is what is tried out
            s.kill9()
            for caller in callers:
                caller.join(60)
                assert not caller.is_alive()
            assert not ledger.wrong, ledger.wrong
            wait_until(lambda: not processes_of(s, user), 20, "the end of all processes")
            s.start()
            c = s.client()
            s.wait_slots(SIZE)
            s.wait_slots(1, pool="onhost")
            account_for(s, c, ledger)
            # What an earlier server left is gone, and the new one has what it needs and no more.
            slots = os.path.join(s.state, "slots")
            assert len(os.listdir(slots)) == 1
            with open("/proc/self/mountinfo") as f:
                assert s.dir not in f.read()
            lease = c.lease()
            assert c.exec(lease, "ls -A /workspace /home/sandbox /tmp | grep -v :; true")["stdout"].strip() == ""
            c.terminate(lease)
            ledger.leases[lease] = True
        assert len(ledger.leases) > rounds and sum(ledger.leases.values()) > rounds and (not soak or ledger.snapshots)
        print(f"{kind}: {rounds} rounds, {len(ledger.leases)} leases, {len(ledger.snapshots)} snapshots")
    finally:
        if s.process:
            s.stop()
        left = processes_of(s, user), groups_of(s)
        verify_audit(s)
        s.clean()
    assert left == ([], []), left
