"""E2B over its stand-in: kills of the server and faults of the provider, by chance, while leases are made, used and ended."""
import os
import random
import threading
import time

from e2b_rig import gone, ids, server_of, standin  # noqa: F401
from harness import SLOW, wait_until

FAULTS = [{"kind": "drop"}, {"kind": "drop_after"}, {"kind": "stall_after"}, {"kind": "stall"}, {"kind": "duplicate"}, {"kind": "garbage"},
          {"kind": "status", "status": 500}, {"kind": "status", "status": 429, "retry_after": 0}, {"kind": "slow", "seconds": 0.3}]
OPS = ["create", "start", "delete", "connect", "list", "get"]
LEASES = 12


class Account:
    """What callers were told."""

    def __init__(self):
        self.lock, self.wanted, self.leaving, self.ended, self.n = threading.Lock(), set(), set(), set(), 0

    def number(self):
        with self.lock:
            self.n += 1
            return self.n

    def made(self, id):
        with self.lock:
            self.wanted.add(id)

    def one(self, rnd):
        with self.lock:
            return rnd.choice(sorted(self.wanted)) if self.wanted else None

    def leave(self, id):
        """True: nobody else has asked for its end."""
        with self.lock:
            found = id in self.wanted
            self.wanted.discard(id)
            self.leaving.add(id)
            return found


def caller(s, account, seed, steps):
    rnd, c = random.Random(seed), s.client()
    for _ in range(steps):
        what, patience = rnd.random(), rnd.choice([0.2, 0.4, 20])
        id = account.one(rnd)
        try:
            if what < 0.45 and len(account.wanted) < LEASES:
                r = c.post("/leases", {"timeout_sec": 600}, timeout=patience)
                if r.status == 201:
                    account.made(r.json()["id"])
                    c.post(f"/leases/{r.json()['id']}/exec", {"command": f"echo {account.number()} >> ran"}, timeout=patience)
            elif what < 0.75 and id:
                c.post(f"/leases/{id}/exec", {"command": f"echo {account.number()} >> ran"}, timeout=patience)
            elif id and account.leave(id):
                if c.delete(f"/leases/{id}", timeout=patience).status in (200, 202):
                    account.ended.add(id)
        except OSError:
            c.close()
        except Exception:  # an answer that was cut by the kill
            c.close()


def leases(c):
    items, cursor = [], ""
    while cursor is not None:
        page = c.get("/leases?limit=100" + (f"&cursor={cursor}" if cursor else "")).json()
        items += page["items"]
        cursor = page["next_cursor"]
    return items


def test_chaos(standin, request):
    """Afterwards the provider has exactly what live leases have, nothing ran twice, and every lease that was answered is accounted for."""
    rounds = int(os.environ.get("SANDGATE_CHAOS_ROUNDS") or (300 if request.config.getoption("--soak", default=False) else 10))
    seed = int(os.environ.get("SANDGATE_CHAOS_SEED", "20261129"))
    rnd, account = random.Random(seed), Account()
    standin.order()
    with server_of(standin, timeout="2s") as s:
        for n in range(rounds):
            standin.order(*[{"op": rnd.choice(OPS), "times": rnd.randint(1, 2), "skip": rnd.randint(0, 1), **rnd.choice(FAULTS)}
                            for _ in range(rnd.randint(0, 3))])
            callers = [threading.Thread(target=caller, args=(s, account, f"{seed}.{n}.{i}", 2)) for i in range(3)]
            for t in callers:
                t.start()
            if rnd.random() < 0.6:
                time.sleep(rnd.random() * 0.4)
                s.kill9()
                for t in callers:
                    t.join()
                s.start()
            for t in callers:
                t.join()
        standin.order()
        c = s.client()

        def settled():
            items = leases(c)
            live = {x["sandbox_id"] for x in items if x["state"] == "ready"}
            at_rest = all(x["state"] not in ("creating", "releasing") for x in items)
            now = standin.state()  # what was asked for by a server that was killed may still be on its way
            return at_rest and now["under_way"] == 0 and live == {b["id"] for b in now["sandboxes"]} and items
        try:
            items = wait_until(settled, 60 * SLOW)
        except AssertionError:
            raise AssertionError((seed, rounds, [(x["id"], x["state"], x["sandbox_id"]) for x in leases(c) if x["state"] != "terminated"], ids(standin)))
        state = {x["id"]: x["state"] for x in items}
        assert {i for i in account.wanted if state.get(i) != "ready"} == set(), (seed, state)
        assert {i for i in account.ended if state.get(i) != "terminated"} == set(), (seed, state)
        assert account.leaving <= set(state), seed
        assert all(n == 1 for tag, n in standin.state()["starts"].items() if tag not in ("", "sandgate")), seed
        left = {x["sandbox_id"]: x for x in items}
        for id in account.wanted:
            ran = c.exec(id, "cat ran || true")["stdout"].split()
            assert len(ran) == len(set(ran)), (seed, ran)
    try:
        gone(standin)
    except AssertionError:
        raise AssertionError((seed, [(b, left.get(b)) for b in ids(standin)]))
