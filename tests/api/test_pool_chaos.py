"""Processes of sandboxes killed at random from outside, under load: nobody gets a wrong answer, the pools are whole again, nothing is left.

20 rounds; 200 with --soak. A failure prints the seed (SANDGATE_CHAOS_SEED repeats the choices, though not the timing)."""
import glob
import http.client
import os
import random
import re
import signal
import threading
import time

import pytest

from conftest import account, server_kinds
from harness import SLOW, Client, Server, processes_below, wait_until
from test_pool_blackbox import BLACKBOX

CONFIG = {"local_bwrap": {"size": 4, "health_interval": "1s"},
          "local_pools": [dict(BLACKBOX, name="bb", size=2), {"name": "disk", "size": 2, "disk": "dir"}]}
SIZES = {"default": 4, "bb": 2, "disk": 2}
# What a caller may be told of a sandbox that was killed, or is being rebuilt; anything else is a fault.
HONEST = {410: {"sandbox_lost", "lease_gone"}, 409: {"lease_not_ready"}, 502: {"outcome_unknown", "endpoint_failed"},
          503: {"unavailable", "acquire_timeout", "overloaded", "endpoint_not_listening"}, 504: {"endpoint_timeout"}}


class Load(threading.Thread):
    """Leases, uses and ends sandboxes until it is told to stop."""

    def __init__(self, s, seed, pools):
        super().__init__(daemon=True)
        self.client, self.random, self.pools = Client(s), random.Random(seed), pools
        self.stopping, self.faults, self.done, self.lost, self.leases = threading.Event(), [], 0, 0, []

    def run(self):
        while not self.stopping.is_set():
            try:
                self.one()
            except Exception as e:  # noqa: BLE001: reported by the test
                self.faults.append(repr(e))
        self.client.close()

    def good(self, r, what):
        if r.status < 400:
            return True
        self.lost += 1
        if r.code not in HONEST.get(r.status, ()):
            self.faults.append(f"{what}: {r}")
        elif r.code == "sandbox_lost":  # then its lease says so too
            wait_until(lambda: self.client.get(f"/leases/{self.id}").json()["state"] == "lost", what="the lease lost")
        return False

    def one(self):
        pool = self.random.choice(self.pools)
        body = {"local_pool": pool, "acquire_timeout": 30 * SLOW}
        if pool == "default" and self.random.random() < 0.5:
            body["limits"] = {"pids_max": 50}
        if pool == "bb":
            body["metadata"] = {"paddock_mode": "blackbox"}
        r = self.client.post("/leases", body)
        if not self.good(r, "create"):
            return
        id = self.id = r.json()["id"]
        self.leases.append(id)
        for _ in range(self.random.randrange(1, 4)):
            self.use(id, pool)
        r = self.client.delete(f"/leases/{id}")
        if r.status not in (200, 202):
            self.faults.append(f"delete: {r}")
        self.done += 1

    def use(self, id, pool):
        token = f"token-{self.random.getrandbits(64):x}"
        r = self.client.exec_response(id, f"cat f 2>/dev/null; echo {token} > f; echo {token}; exit 7", env={"T": token})
        if self.good(r, "exec"):
            v = r.json()
            whole = v["stdout"].endswith(token + "\n") and v["returncode"] == 7
            # The command itself may have been what was killed.
            if not (whole or v["signal"] == "SIGKILL" or v["returncode"] == 137):
                self.faults.append(f"exec: {v}")
            if whole:
                r = self.cut_only_by_the_end(id, lambda: self.client.read(id, "f"))
                if r and self.good(r, "read") and r.body != token.encode() + b"\n":
                    self.faults.append(f"read: {r}")
        if pool == "bb":
            r = self.cut_only_by_the_end(id, lambda: self.client.get(f"/leases/{id}/proxy/8000/"))
            if r and (r.header("Sandgate-Error") or r.status != 200):
                self.good(r, "proxy")
            elif r and r.json()["argv"][1] != "8000":
                self.faults.append(f"proxy: {r}")

    def cut_only_by_the_end(self, id, request):
        """The answer; None when its connection broke, which it may when the sandbox dies in the middle of it."""
        try:
            return request()
        except (http.client.HTTPException, OSError):
            self.client.close()
            wait_until(lambda: self.client.get(f"/leases/{id}").json()["state"] != "ready", what="the end of a lease whose answer was cut")
            return None


def groups(s):
    """Control groups of the server's sandboxes, in all hierarchies."""
    names = set()
    for p in processes_below(s.pid()):
        try:
            with open(f"/proc/{p.pid}/cgroup") as f:
                names |= {part for line in f for part in line.strip().split("/") if part.startswith("sandgate-")}
        except OSError:
            pass
    found = [os.path.basename(d) for n in names for top in glob.glob(f"/sys/fs/cgroup/**/{n}", recursive=True) for d, _, _ in os.walk(top)]
    return found, sum(re.fullmatch(r"x\d+", d) is not None for d in found)


# Empty groups of ended commands are kept for the next ones, so many in a slot and no more, each with four descriptors.
KEPT_GROUPS, KEPT_DESCRIPTORS = 16, 4


def left(s):
    """What must be the same before and after, but for what is kept for the next commands."""
    spawner = next(p.pid for p in processes_below(s.pid()) if p.parent == s.pid())
    with open(f"/proc/{spawner}/mountinfo") as f:
        mounts = len(f.readlines())
    found, kept = groups(s)
    slots = len({g for g in found if g.startswith("slot-")})
    return {"processes": len(processes_below(s.pid())), "mounts": mounts, "groups": len(found) - kept,
            "too many kept": max(0, kept - KEPT_GROUPS * slots), "descriptors": s.descriptors() - KEPT_DESCRIPTORS * kept,
            "spawner's descriptors": len(os.listdir(f"/proc/{spawner}/fd")), "directories": len(glob.glob(s.state + "/slots/*")), "threads": s.threads()}


def more(now, before):
    """What there is more of: {name: (before, now)}."""
    return {k: (before[k], now[k]) for k in before if now[k] > before[k]}


def settle(s):
    for name, n in SIZES.items():
        s.wait_slots(n, name)


def victims(s):
    """Everything but the spawner, whose death is not survived, and what it runs for a moment."""
    return [p for p in processes_below(s.pid()) if p.parent != s.pid()]


@pytest.mark.parametrize("kind", server_kinds())
def test_killing_at_random(kind, soak):
    seed = int(os.environ.get("SANDGATE_CHAOS_SEED", random.getrandbits(32)))
    print("SANDGATE_CHAOS_SEED =", seed)
    choice = random.Random(seed)
    with Server(CONFIG, user=account(kind)) as s:
        settle(s)
        loads = [Load(s, seed + i, list(SIZES)) for i in range(3)]
        before = left(s)
        for l in loads:
            l.start()
        killed = {}
        for _ in range(200 if soak else 20):
            time.sleep(choice.uniform(0, 0.6))
            there = victims(s)
            for p in choice.sample(there, min(len(there), choice.randrange(1, 3))):
                try:
                    os.kill(p.pid, signal.SIGKILL)
                    killed[p.comm] = killed.get(p.comm, 0) + 1
                except ProcessLookupError:
                    pass
        for l in loads:
            l.stopping.set()
        for l in loads:
            l.join(120 * SLOW)
        faults = [f for l in loads for f in l.faults]
        print("killed", killed, "done", sum(l.done for l in loads), "refused or lost", sum(l.lost for l in loads))
        assert not faults, (seed, faults[:5])
        assert all(not l.is_alive() and l.done > 0 for l in loads) and sum(killed.values()) >= 20
        began = time.monotonic()
        settle(s)
        print("whole again after", round(time.monotonic() - began, 2), "s")
        c = s.client()
        assert all(p["waiters"] == 0 and p["leased"] == 0 for p in c.get("/slots").json()["items"])
        c.close()
        try:
            wait_until(lambda: not more(left(s), before), 20, "the same as before")
        except AssertionError:
            raise AssertionError(f"seed {seed}: left over {more(left(s), before)}") from None
        ended = {c.get(f"/leases/{id}").json()["state"] for l in loads for id in l.leases}
        assert ended <= {"terminated", "lost"}, ended
        for pool in ("default", "disk"):  # and every slot is as good as new
            ids = [c.lease(local_pool=pool) for _ in range(SIZES[pool])]
            assert all(c.exec(id, "ls -A /workspace /tmp | grep -v :; echo ok")["stdout"].split() == ["ok"] for id in ids)
            for id in ids:
                c.terminate(id)
