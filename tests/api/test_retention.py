"""What is remembered, and for how long: audit records by time, ended leases by number in memory and by time in the store."""
import concurrent.futures
import json
import subprocess

from harness import BIN, SLOW, Client, Server, wait_until
from test_events import check, events, scripted, words


def verify(server):
    p = subprocess.run([BIN, "audit", "verify", "--json", "--state-dir", server.state], capture_output=True, text=True, timeout=60)
    assert p.returncode == 0, p
    return json.loads(p.stdout)


def test_audit_records_are_dropped_after_their_time():
    with scripted({}, audit={"retention": "1s"}) as s:
        c = s.client()
        for _ in range(5):
            c.terminate(c.lease())
        wait_until(lambda: verify(s)["dropped"] >= 12, 20, "the end of old records")
        c.terminate(c.lease())
        items = c.get("/audit?limit=1000").json()["items"]
        assert items[0]["seq"] > 12 and [e["event"] for e in items[-2:]] == ["lease.ready", "lease.terminated"], items
        assert s.stop() == 0
        assert verify(s)["ok"]
        s.start()
        assert verify(s)["ok"]


def test_by_default_they_stay():
    with scripted({}) as s:
        s.client().terminate(s.client().lease())
        assert s.client().get("/audit").json()["items"][0]["seq"] == 1
        r = verify(s)
        assert r["ok"] and r["dropped"] == 0 and r["records"] >= 4


def test_ended_leases_beyond_what_memory_keeps():
    """4,096 are kept in memory; older ones are read from the store, and nobody can tell."""
    n = 4200 if SLOW == 1 else 4110
    with scripted({}) as s:
        def some(count):
            c, ids = Client(s), []
            for _ in range(count):
                ids.append(c.lease(trajectory_id="t"))
                c.terminate(ids[-1])
            c.close()
            return ids
        first = some(20)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            made = [id for part in pool.map(lambda _: list(many(s, n // 4)), range(4)) for id in part]
        c = s.client()
        live = c.lease(trajectory_id="live")
        for id in first[:5]:
            l = c.get(f"/leases/{id}").json()
            assert (l["id"], l["state"], l["reason"], l["trajectory_id"]) == (id, "terminated", "deleted", "t"), l
            assert words(check(events(s, id, follow=True).all())) == ["creating", "ready", "releasing", "terminated"]
            assert c.exec_response(id, "true").code == "lease_gone"
            r = c.delete(f"/leases/{id}")
            assert r.status == 200 and r.json() == {"terminated": True, "trajectory_id": "t"}, r
        # A page may span memory and store; each is in the list once, newest first.
        seen, cursor = [], ""
        while cursor is not None:
            page = c.get("/leases?limit=997" + cursor).json()
            seen += [l["id"] for l in page["items"]]
            cursor = page["next_cursor"] and "&cursor=" + page["next_cursor"]
        assert seen == sorted(first + made + [live], reverse=True) and len(seen) == len(set(seen))
        assert [l["id"] for l in c.get("/leases?trajectory_id=t&limit=1000").json()["items"]] == sorted(first, reverse=True)
        assert [l["id"] for l in c.get("/leases?state=ready").json()["items"]] == [live]
        # And memory has reached its level.
        rss = s.rss_kib()
        assert len(list(many(s, 400))) == 400
        assert SLOW > 1 or s.rss_kib() - rss < 4096, (rss, s.rss_kib())


def many(server, count):
    c = Client(server)
    for _ in range(count):
        id = c.lease()
        c.terminate(id)
        yield id
    c.close()
