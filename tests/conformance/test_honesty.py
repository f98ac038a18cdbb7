"""What a backend declares works (the other files); what it does not declare is refused, typed, and leaves nothing behind."""
import pytest

from box import Box


def declared(client, backend):
    return next(b for b in client.get("/backends").json()["items"] if b["name"] == backend.name)


def test_it_declares_what_the_table_says(client, backend):
    b = declared(client, backend)
    assert set(b["capabilities"]) == backend.capabilities and b["tty"] is backend.tty and b["built"] and b["registered"] and b["healthy"], b


def test_the_selector_believes_it(client, backend):
    """Every capability there is: asked for and declared gives a lease's worth of a pick, not declared a refusal that says so."""
    for what in ("file_rw", "exec", "network", "gpu", "snapshot", "persistent_volumes", "public_url"):
        r = client.post("/select", {"policy": {"required_capabilities": [what]}})
        if what in backend.capabilities:
            assert r.status == 200 and r.json()["backend"] == backend.name, (what, r)
            continue
        assert r.status == 422 and r.code == "no_backend_satisfies_policy", (what, r)
        r = client.post("/leases", {"policy": {"required_capabilities": [what]}})
        assert r.status == 422 and r.code == "no_backend_satisfies_policy", (what, r)
        r = client.post("/leases", {"policy": {"override": backend.name, "required_capabilities": [what]}})
        assert r.status == 422 and r.code == "override_missing_capabilities", (what, r)


def not_supported(r, field=None):
    assert r.status == 422 and r.code == "not_supported" and (field is None or r.json()["field"] == field), r
    assert r.json()["detail"]


def test_no_snapshots(box, backend):
    if "snapshot" not in backend.capabilities:
        before = box.client.get("/snapshots").json()
        not_supported(box.client.post(f"{box.url}/snapshots"))
        assert box.client.get("/snapshots").json() == before


def test_no_terminal(box, backend):
    if not backend.tty:
        for more in ({}, {"detach": True}):
            not_supported(box.ask("true", tty={"rows": 24, "cols": 80}, **more), "tty")
        not_supported(box.ask("true", tty={}, headers={"Accept": "application/x-ndjson"}), "tty")


def test_no_endpoints(box, client, backend):
    """Without them public_url cannot be declared either."""
    assert backend.endpoints or backend.elsewhere or "public_url" not in backend.capabilities
    if not backend.endpoints:
        r = client.get(f"{box.url}/endpoints/8000")
        if backend.elsewhere:
            assert r.status == 200 and r.json()["url"].startswith("https://") and "/proxy/" not in r.json()["url"], r
        else:
            not_supported(r)
        for r in (client.post(f"{box.url}/endpoints", {"port": 8000}), client.get(f"{box.url}/proxy/8000/")):
            not_supported(r)


def test_no_limits(client, backend):
    if not backend.limits:
        for limit in ({"memory_max": "64MiB"}, {"pids_max": 10}, {"cpu_max": 0.5}, {"disk_max": "10MiB"}):
            not_supported(client.post("/leases", {"limits": limit}), "limits")
    for limit in ({"memory_max": -1}, {"pids_max": 0}, {"cpu_max": "x"}, {"nope": 1}):
        assert client.post("/leases", {"limits": limit}).status == 400


def test_classes_of_egress_are_kept_or_refused(client):
    for name in ("none", "loopback", "restricted", "open"):
        r = client.post("/leases", {"network_egress_class": name})
        if r.status == 201:
            client.terminate(r.json()["id"])
        else:
            assert r.status == 422 and r.code and r.json()["detail"], r


@pytest.mark.needs("limits")
def test_limits_that_are_asked_for(client):
    r = client.post("/leases", {"limits": {"memory_max": "500GiB"}})
    assert r.status == 422 and r.code in ("limit_exceeded", "not_supported") and r.json()["field"].startswith("limits"), r
    r = client.post("/leases", {"limits": {"pids_max": 40}})
    assert r.status == 201 or (r.status == 422 and r.code == "not_supported"), r  # what cannot be enforced on this machine is refused
    if r.status == 201:
        client.terminate(r.json()["id"])


def test_a_full_disk_is_said_and_keeps_the_old(client, server):
    """Where a lease may have a disk of its own size."""
    r = client.post("/leases", {"limits": {"disk_max": "8MiB"}})
    if r.status != 201:
        return not_supported(r)
    box = Box(server, r.json()["id"])
    box.write("keep", b"old")
    for path, more in (("keep", {}), ("keep", {"append": "1"}), ("new", {})):
        r = box.write(path, b"z" * (12 << 20), **more)
        assert r.status == 507 and r.code == "sandbox_disk_full", r
    assert box.read("keep").body == b"old" and box.names() == ["keep"] and box.write("fits", b"z" * (2 << 20)).status == 201
    client.terminate(box.lease)


def test_what_belongs_to_other_backends_is_refused(client, backend):
    r = client.post("/leases", {"policy": {"override": "no_such"}})
    assert r.status == 422 and r.code == "override_not_registered", r
    if backend.name != "local_bwrap":
        not_supported(client.post("/leases", {"local_pool": "default"}), "local_pool")
    r = client.post("/leases", {"image": "no-such-image:1"})
    assert r.status == 422 and r.json()["field"] == "image", r
    if not backend.images:
        not_supported(r)


def test_no_archives_of_directories(box, client, backend):
    if not backend.links:
        not_supported(client.get(box.sub("tar")))
        not_supported(client.put(box.sub("tar", "to"), b""))
        assert box.names() == []
