"""What the server keeps of sandboxes: archives of leases that ended, and snapshots that new leases begin with."""
import base64
import collections
import datetime
import hashlib
import io
import json
import os
import tarfile
import threading

import pytest

from harness import Server, wait_until

TENANTS = {"alpha": "token-of-alpha", "beta": "token-of-beta"}


def tokens():
    rows = [{"name": n, "sha256": hashlib.sha256(t.encode()).hexdigest(), "tenant": n, "role": "tenant"} for n, t in TENANTS.items()]
    rows.append({"name": "root", "sha256": hashlib.sha256(b"token-of-root").hexdigest(), "tenant": "ops", "role": "admin"})
    return {"tokens": rows}


def items(client, path):
    r = client.get(path)
    assert r.status == 200, r
    return r.json()["items"]


def files(server):
    return sorted(os.listdir(os.path.join(server.state, "archives")))


def content(r):
    return tarfile.open(fileobj=io.BytesIO(r.body))


@pytest.fixture(scope="module")
def keeper():
    config = {"local_bwrap": {"size": 2, "archive_enabled": True, "archive_dirs": ["home", "work"], "archive_max_per_slot": 2,
                              "archive_max_bytes": "4MiB"},
              "auth": tokens(), "snapshots": {"max_per_tenant": 3, "max_bytes": "8MiB"}}
    with Server(config) as s:
        s.wait_slots(2, token="token-of-root")
        yield s


@pytest.fixture
def alpha(keeper):
    return keeper.client(TENANTS["alpha"])


@pytest.fixture
def beta(keeper):
    return keeper.client(TENANTS["beta"])


def archived(client, lease):
    """The archives of a lease, once there is one."""
    found = []

    def there():
        found[:] = [a for a in items(client, "/archives") if a["lease_id"] == lease]
        return found

    wait_until(there, 20, "an archive")
    return found


def test_what_a_lease_leaves_is_an_archive_of_its_tenant(alpha, beta):
    lease = alpha.lease(trajectory_id="t-archive")
    alpha.write(lease, "notes/a.txt", b"kept\n", mode="0640")
    alpha.exec(lease, "echo home > ~/h; ln -s a.txt notes/l; echo gone > /tmp/t")
    alpha.terminate(lease)
    one, = archived(alpha, lease)
    assert one["trajectory_id"] == "t-archive" and one["provider"] == "local_bwrap" and one["dirs"] == ["home", "work"]
    assert one["local_pool"] == "default" and one["slot"] and one["generation"] >= 1 and one["reason"]
    r = alpha.get(f"/archives/{one['id']}")
    assert r.status == 200 and r.header("Content-Type") == "application/x-tar"
    digest = hashlib.sha256(r.body).digest()
    assert one["digest"] == "sha256:" + digest.hex() and one["bytes"] == len(r.body)
    assert r.header("Repr-Digest") == f"sha-256=:{base64.b64encode(digest).decode()}:"
    tar = content(r)
    assert tar.extractfile("work/notes/a.txt").read() == b"kept\n" and tar.getmember("work/notes/a.txt").mode == 0o640
    assert tar.extractfile("home/h").read() == b"home\n" and tar.getmember("work/notes/l").linkname == "a.txt"
    assert not [n for n in tar.getnames() if n.startswith("tmp")]
    # Another tenant sees nothing of it, and neither does the next lease of the slot.
    assert not [a for a in items(beta, "/archives") if a["lease_id"] == lease]
    for method in ("get", "delete"):
        assert getattr(beta, method)(f"/archives/{one['id']}").status == 404
    other = beta.lease()
    assert beta.exec(other, "ls -A /workspace ~ | tr '\\n' ' '")["stdout"].split() == ["/home/sandbox:", "/workspace:"]
    beta.terminate(other)
    assert alpha.delete(f"/archives/{one['id']}").status == 204
    assert alpha.get(f"/archives/{one['id']}").status == 404
    assert not [a for a in items(alpha, "/archives") if a["id"] == one["id"]]


def pruned(client):
    by_slot = collections.Counter(a["slot"] for a in items(client, "/archives"))
    return by_slot and max(by_slot.values()) <= 2


def test_the_oldest_archives_of_a_slot_go(keeper, alpha):
    leases = []
    for i in range(8):
        lease = alpha.lease()
        alpha.write(lease, "n", b"%d" % i)
        alpha.terminate(lease)
        archived(alpha, lease) if i == 7 else None
        leases.append(lease)

    wait_until(lambda: pruned(alpha), 20, "two archives a slot")
    assert leases[7] in [a["lease_id"] for a in items(alpha, "/archives")]
    admin = keeper.client("token-of-root")
    # A row goes before its file does.
    wait_until(lambda: len(files(keeper)) == len(items(admin, "/archives")) + len(items(admin, "/snapshots")), 20, "one file a row")


def test_an_archive_beyond_the_bound_is_not_kept_and_the_lease_ends_all_the_same(keeper, alpha):
    lease = alpha.lease()
    alpha.exec(lease, "head -c 6000000 /dev/urandom > big")
    alpha.terminate(lease)
    assert alpha.get(f"/leases/{lease}").json()["state"] == "terminated"
    wait_until(lambda: [e for e in keeper.log_events() if e["event"] == "archive_failed" and e.get("lease_id") == lease], 20, "the log line")
    assert not [a for a in items(alpha, "/archives") if a["lease_id"] == lease]


def test_an_archive_goes_when_its_time_is_up():
    with Server({"local_bwrap": {"size": 1, "archive_enabled": True, "archive_ttl": "3s"}, "snapshots": {"sweep_interval": "200ms"}}) as s:
        s.wait_slots(1)
        c = s.client()
        lease = c.lease()
        c.terminate(lease)
        (kept,) = archived(c, lease)
        made, goes = (datetime.datetime.fromisoformat(kept[k].replace("Z", "+00:00")) for k in ("created_at", "expires_at"))
        assert (goes - made).total_seconds() == pytest.approx(3, abs=0.01)
        wait_until(lambda: not files(s), 20, "its file is gone")
        assert datetime.datetime.now(datetime.timezone.utc) >= goes
        assert items(c, "/archives") == [] and c.get("/archives/" + kept["id"]).status == 404


def test_archives_page_by_page(alpha):
    for _ in range(3):
        alpha.terminate(alpha.lease())
    wait_until(lambda: pruned(alpha) and len(items(alpha, "/archives")) >= 3, 20, "archives, and nothing more to go")
    whole = [a["id"] for a in items(alpha, "/archives")]
    seen, path = [], "/archives?limit=1"
    for _ in range(len(whole) + 1):
        page = alpha.get(path).json()
        seen += [a["id"] for a in page["items"]]
        if not page["next_cursor"]:
            break
        path = "/archives?limit=1&cursor=" + page["next_cursor"]
    assert seen == whole
    assert alpha.get("/archives?limit=0").status == 400 and alpha.get("/archives?cursor=x").status == 400
    assert alpha.get("/archives?tenant=beta").status == 403 and alpha.get("/archives/nonsense").status == 404


# ---- snapshots ----


def snapshot(client, lease):
    r = client.post(f"/leases/{lease}/snapshots")
    assert r.status == 201, r
    assert r.header("Location") == "/snapshots/" + r.json()["id"]
    return r.json()


def drop_all(client):
    for s in items(client, "/snapshots"):
        assert client.delete("/snapshots/" + s["id"]).status == 204
    assert items(client, "/snapshots") == []


FILL = """mkdir -p sub/deep && echo one > sub/deep/f && printf 'two' > 'sub/n ew' && chmod 750 sub && ln -s /etc/passwd out && ln -s deep/f sub/l
echo rc > ~/.rc && echo t > /tmp/x && chmod 700 sub/deep/f && mkdir empty"""


def test_the_same_tree_has_the_same_digest(alpha):
    drop_all(alpha)
    a, b = alpha.lease(), alpha.lease()
    for lease in (a, b):
        assert alpha.exec(lease, FILL)["returncode"] == 0
    first, second = snapshot(alpha, a), snapshot(alpha, b)
    assert first["digest"] == second["digest"] and first["id"] != second["id"] and first["dirs"] == ["home", "work", "tmp"]
    alpha.exec(b, "echo more >> sub/deep/f")
    assert snapshot(alpha, b)["digest"] != first["digest"]
    for lease in (a, b):
        alpha.terminate(lease)
    drop_all(alpha)


@pytest.mark.parametrize("by", ["id", "digest"])
def test_a_lease_begins_with_a_snapshot(alpha, by):
    drop_all(alpha)
    lease = alpha.lease()
    assert alpha.exec(lease, FILL)["returncode"] == 0
    listing = "find /workspace ~ /tmp -printf '%p %y %m %l\\n' | sort; cat sub/deep/f 'sub/n ew' ~/.rc /tmp/x"
    before = alpha.exec(lease, listing)
    kept = snapshot(alpha, lease)
    alpha.terminate(lease)
    again = alpha.lease(manifest={"snapshot": kept[by], "files": [{"path": "sub/deep/f", "content": "one\n", "mode": "0700"}]})
    after = alpha.exec(again, listing)
    assert after["returncode"] == 0 and after["stdout"] == before["stdout"]
    # The files belong to the commands, and times are those of the restoring.
    assert alpha.exec(again, "echo x > sub/deep/f && find . -type f -not -newermt 2020-01-01")["stdout"] == ""
    alpha.terminate(again)
    drop_all(alpha)


def test_a_snapshot_is_its_tenants(alpha, beta):
    drop_all(alpha)
    lease = alpha.lease()
    kept = snapshot(alpha, lease)
    assert alpha.get("/snapshots/" + kept["id"]).json() == kept
    for id in (kept["id"], kept["digest"]):
        assert beta.get("/snapshots/" + id).status == 404 and beta.delete("/snapshots/" + id).status == 404
        r = beta.post("/leases", {"manifest": {"snapshot": id}})
        assert r.status == 422 and r.code == "snapshot_not_found" and r.json()["field"] == "manifest.snapshot"
    assert items(beta, "/snapshots") == [] and beta.get("/snapshots?tenant=alpha").status == 403
    assert beta.post(f"/leases/{lease}/snapshots").status == 404
    alpha.terminate(lease)
    assert alpha.post(f"/leases/{lease}/snapshots").status == 410
    drop_all(alpha)


def test_nobody_has_more_snapshots_than_allowed(alpha):
    drop_all(alpha)
    lease = alpha.lease()
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(alpha.post(f"/leases/{lease}/snapshots"))) for _ in range(12)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(r.status for r in answers) == [201] * 3 + [429] * 9
    refused = next(r for r in answers if r.status == 429)
    assert refused.code == "quota_exceeded" and refused.json()["limit"] == 3 and refused.json()["owner"] == "alpha"
    assert refused.header("Retry-After")
    drop_all(alpha)
    snapshot(alpha, lease)
    alpha.terminate(lease)
    drop_all(alpha)


def test_a_snapshot_beyond_the_bound_leaves_nothing(keeper, alpha):
    drop_all(alpha)
    lease = alpha.lease()
    alpha.exec(lease, "head -c 9000000 /dev/zero > big")
    r = alpha.post(f"/leases/{lease}/snapshots")
    assert r.status == 422 and r.code == "limit_exceeded"
    assert items(alpha, "/snapshots") == []
    # Archives of earlier leases may still come and go; a file that nobody lists would stay.
    admin = keeper.client("token-of-root")
    wait_until(lambda: files(keeper) == sorted(k["id"] + ".tar" for k in items(admin, "/archives") + items(admin, "/snapshots")), 20,
               "no file but those that are listed")
    alpha.terminate(lease)


def test_a_damaged_snapshot_is_noticed_and_nothing_is_left(keeper, alpha):
    drop_all(alpha)
    lease = alpha.lease()
    alpha.write(lease, "f", b"x" * 5000)
    kept = snapshot(alpha, lease)
    alpha.terminate(lease)
    path = os.path.join(keeper.state, "archives", kept["id"] + ".tar")
    with open(path, "r+b") as f:
        f.seek(2048)
        f.write(b"y")
    r = alpha.post("/leases", {"manifest": {"snapshot": kept["id"]}})
    assert r.status == 422 and r.code == "manifest_failed" and r.json()["reason"] == "snapshot_damaged" and r.json()["stage"] == "snapshot"
    os.unlink(path)
    r = alpha.post("/leases", {"manifest": {"snapshot": kept["id"]}})
    assert r.status == 422 and r.code == "snapshot_not_found"
    keeper.wait_slots(2, token="token-of-root")
    assert not [x for x in items(alpha, "/leases?state=ready")]


@pytest.mark.parametrize("bad", [7, "", "x" * 200, {"id": "x"}])
def test_what_is_no_snapshot_is_refused(alpha, bad):
    r = alpha.post("/leases", {"manifest": {"snapshot": bad}})
    assert r.status == 400 and r.json()["field"] == "manifest.snapshot"


def test_what_is_kept_survives_a_kill_and_what_was_half_written_does_not():
    with Server({"local_bwrap": {"size": 1, "archive_enabled": True, "archive_dirs": ["runtime", "tmp"]}}) as s:
        s.wait_slots(1)
        c = s.client()
        lease = c.lease()
        c.write(lease, "f", b"survives")
        c.exec(lease, "echo r > /run/r; echo t > /tmp/t")
        kept = snapshot(c, lease)
        c.terminate(lease)
        wait_until(lambda: len(items(c, "/archives")) == 1, 20, "the archive")
        directory = os.path.join(s.state, "archives")
        s.kill9()
        for junk in (".part-k_1", "archive_00000000000000000000000000000000.tar"):
            with open(os.path.join(directory, junk), "w") as f:
                f.write("half")
        s.start()
        s.wait_slots(1)
        c = s.client()
        archive, = items(c, "/archives")
        assert files(s) == sorted([kept["id"] + ".tar", archive["id"] + ".tar"])
        tar = content(c.get("/archives/" + archive["id"]))
        assert sorted(m.name for m in tar if m.isfile()) == ["runtime/r", "tmp/t"] and archive["dirs"] == ["runtime", "tmp"]
        again = c.lease(manifest={"snapshot": kept["id"]})
        assert c.read(again, "f").body == b"survives"
        assert json.loads(json.dumps(c.get("/snapshots/" + kept["id"]).json())) == kept
        c.terminate(again)


def test_all_snapshots_together_have_a_bound():
    with Server({"local_bwrap": {"size": 1}, "snapshots": {"total_bytes": "2MiB"}}) as s:
        s.wait_slots(1)
        c = s.client()
        lease = c.lease()
        c.write(lease, "f", os.urandom(1200000))
        kept = snapshot(c, lease)
        r = c.post(f"/leases/{lease}/snapshots")  # what is left is too little for it
        assert r.status == 422 and r.code == "limit_exceeded"
        assert c.delete("/snapshots/" + kept["id"]).status == 204
        snapshot(c, lease)
        c.terminate(lease)
        other = c.lease()
        snapshot(c, other)
        c.write(other, "f", os.urandom(700000))
        snapshot(c, other)
        r = c.post(f"/leases/{other}/snapshots")
        assert r.status in (422, 429)
        c.terminate(other)
