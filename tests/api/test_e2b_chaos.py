"""E2B over its stand-in: kills of the server and faults of the provider, by chance."""
import os
import random

from e2b_rig import gone, ids, server_of, standin  # noqa: F401
from harness import wait_until


def test_chaos(standin, request):
    """Kills of the server and faults of the provider, by chance: afterwards the provider has exactly what live leases have, nothing ran
    twice, and every lease that was answered is accounted for."""
    rounds = 300 if request.config.getoption("--soak", default=False) else 10
    seed = int(os.environ.get("SANDGATE_CHAOS_SEED", "20261129"))
    rnd = random.Random(seed)
    standin.order()
    known, counted = {}, 0
    with server_of(standin, timeout="2s") as s:
        for _ in range(rounds):
            c = s.client()
            standin.order(*[{"op": rnd.choice(["create", "start", "delete", "connect", "list", "get"]), "times": rnd.randint(1, 2),
                             "skip": rnd.randint(0, 1), **rnd.choice([{"kind": "drop"}, {"kind": "drop_after"}, {"kind": "stall_after"},
                                                                      {"kind": "status", "status": 500}, {"kind": "slow", "seconds": 0.3}])}
                            for _ in range(rnd.randint(0, 3))])
            for _ in range(3):
                try:
                    r = c.post("/leases", {"timeout_sec": 600}, timeout=rnd.choice([0.3, 20]))
                    if r.status == 201:
                        known[r.json()["id"]] = True
                        counted += 1
                        c.post(f"/leases/{r.json()['id']}/exec", {"command": f"echo {counted} >> ran"}, timeout=rnd.choice([0.2, 20]))
                    if known and rnd.random() < 0.4:
                        victim = rnd.choice(sorted(known))
                        known[victim] = False
                        c.delete(f"/leases/{victim}", timeout=rnd.choice([0.2, 20]))
                except OSError:
                    pass
                c.close()
            if rnd.random() < 0.6:
                s.kill9()
                s.start()
        standin.order()
        c = s.client()

        def settled():
            items, cursor = [], ""
            while cursor is not None:
                page = c.get("/leases?limit=100" + (f"&cursor={cursor}" if cursor else "")).json()
                items += page["items"]
                cursor = page["next_cursor"]
            live = {x["sandbox_id"] for x in items if x["state"] in ("creating", "ready", "releasing")}
            at_rest = all(x["state"] not in ("creating", "releasing") for x in items)
            return at_rest and live == set(ids(standin)) and items
        items = wait_until(settled, 60)
        by_id = {x["id"]: x for x in items}
        assert set(known) <= set(by_id), (seed, set(known) - set(by_id))
        for id, wanted in known.items():
            assert by_id[id]["state"] == ("ready" if wanted else "terminated") or by_id[id]["state"] in ("ready", "lost"), (seed, by_id[id])
        assert all(n == 1 for tag, n in standin.state()["starts"].items() if tag not in ("", "sandgate")), seed
    gone(standin)
