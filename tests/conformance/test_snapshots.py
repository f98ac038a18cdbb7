"""Snapshots and leases that begin with one, where the backend has them."""
import pytest

from box import Box

pytestmark = pytest.mark.needs("snapshot", "shell")


def test_a_lease_begins_with_a_snapshot(server, client, fresh):
    fresh.run("mkdir -p d/e; echo one > d/e/f; chmod 700 d/e/f; ln -s d/e/f l; printf '\\377' > b; echo tmp > /tmp/t; echo home > $HOME/h; sleep 60 >/dev/null 2>&1 &")
    r = client.post(f"{fresh.url}/snapshots")
    assert r.status == 201 and r.header("Location") == "/snapshots/" + r.json()["id"], r
    kept = r.json()
    assert client.get("/snapshots/" + kept["id"]).json() == kept and kept["id"] in [s["id"] for s in client.get("/snapshots").json()["items"]]
    fresh.run("echo two > d/e/f")
    other = client.post(f"{fresh.url}/snapshots").json()
    assert other["id"] != kept["id"] and (other["digest"] is None or other["digest"] != kept["digest"])
    again = Box(server, client.lease(manifest={"snapshot": kept["id"], "files": [{"path": "d/new", "content": "n"}]}))
    assert again.out("cat d/e/f d/new l /tmp/t $HOME/h; stat -c %a d/e/f") == "one\nnone\ntmp\nhome\n700\n" and again.read("b").body == b"\xff"
    assert fresh.read("d/e/f").body == b"two\n" and again.stat("l").json()["type"] == "symlink"
    assert client.delete("/snapshots/" + kept["id"]).status in (202, 204)  # a provider may keep what a sandbox still needs
    assert client.get("/snapshots/" + kept["id"]).status == 404
    assert again.read("d/new").body == b"n"
    client.terminate(again.lease)


def test_a_snapshot_outlives_its_lease(server, client):
    box = Box(server, client.lease())
    box.write("f", b"kept")
    kept = client.post(f"{box.url}/snapshots").json()
    client.terminate(box.lease)
    again = Box(server, client.lease(manifest={"snapshot": kept["digest"] or kept["id"]}))
    assert again.read("f").body == b"kept"
    client.terminate(again.lease)


def test_what_is_no_snapshot(client):
    r = client.post("/leases", {"manifest": {"snapshot": "snap_none"}})
    assert r.status == 422 and r.code == "snapshot_not_found" and r.json()["field"] == "manifest.snapshot", r
