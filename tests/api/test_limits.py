"""Limits of a sandbox: the pool's, a lease's own below them, what enforces them, and what shows of it in a command's result."""
import threading

import pytest

from conftest import account, server_kinds
from harness import Server, wait_until

MIB = 1024 * 1024


@pytest.fixture(scope="module", params=server_kinds())
def limited(request):
    config = {"local_bwrap": {"size": 2, "memory_max": "256MiB", "pids_max": 200, "disk_max": "64MiB"},
              "local_pools": [{"name": "onhost", "size": 1, "disk": "dir"}]}
    with Server(config, user=account(request.param)) as s:
        s.wait_slots(2)
        yield s


@pytest.fixture
def client(limited):
    return limited.client()


def of(client, lease):
    m = client.get(f"/leases/{lease}").json()["metadata"]
    return m["limits"], m["limits_enforced"]


def test_a_lease_says_what_holds_for_it(client):
    lease = client.lease()
    limits, means = of(client, lease)
    assert limits == {"memory_max": 256 * MIB, "pids_max": 200, "cpu_max": None, "disk_max": 64 * MIB}
    assert means["disk"] == "tmpfs" and means["cpu"] == "none" and means["memory"] in ("cgroup1", "cgroup2", "rlimit")
    assert means["open_files"] == "rlimit" and 256 <= int(client.exec(lease, "ulimit -Hn")["stdout"]) <= 65536
    client.terminate(lease)


def test_memory_of_its_own(client):
    lease = client.lease(limits={"memory_max": "48MiB"})
    limits, means = of(client, lease)
    assert limits["memory_max"] == 48 * MIB and limits["pids_max"] == 200
    r = client.exec(lease, ["python3", "-c", "x = bytearray(120 * 1024 * 1024)\nprint(len(x))"])
    if means["memory"] == "rlimit":
        assert r["returncode"] == 1 and "MemoryError" in r["stderr"]
    else:
        assert r["signal"] == "SIGKILL" and r["killed"] and r["killed_by"] == "oom" and r["returncode"] is None
    assert client.exec(lease, "echo still here")["stdout"] == "still here\n"
    client.terminate(lease)
    # The next lease of the slot has the pool's again.
    for _ in range(3):
        lease = client.lease()
        assert of(client, lease)[0]["memory_max"] == 256 * MIB
        r = client.exec(lease, ["python3", "-c", "x = bytearray(120 * 1024 * 1024)\nprint(len(x))"])
        assert r["stdout"] == f"{120 * MIB}\n", r
        client.terminate(lease)


def test_processes_of_its_own(client):
    lease = client.lease(limits={"pids_max": 12})
    assert of(client, lease)[0]["pids_max"] == 12
    r = client.exec(lease, "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32; do sleep 2 & done; wait")
    assert "ork" in r["stderr"], r  # cannot fork
    # Those that were started live on until they end, and count.
    wait_until(lambda: client.exec(lease, "echo ok", timeout=20)["stdout"] == "ok\n", 20, "room for a command")
    client.terminate(lease)


def test_cpu_of_its_own(client):
    r = client.post("/leases", {"limits": {"cpu_max": 0.2}})
    if r.status == 422:
        assert r.code == "not_supported" and r.json()["field"] == "limits.cpu_max"
        return
    lease = r.json()["id"]
    limits, means = of(client, lease)
    assert limits["cpu_max"] == 0.2 and means["cpu"] in ("cgroup1", "cgroup2")
    # One second of work takes about five; half of what it would without a limit is proof enough.
    used = client.exec(lease, ["python3", "-c", "import time\nt = time.monotonic()\nwhile time.process_time() < 0.4: pass\nprint(time.monotonic() - t)"])
    assert float(used["stdout"]) > 0.8, used
    client.terminate(lease)


def test_disk_of_its_own(client):
    lease = client.lease(limits={"disk_max": "16MiB"})
    assert of(client, lease)[0]["disk_max"] == 16 * MIB
    r = client.exec(lease, "head -c 30000000 /dev/zero > big; stat -c %s big")
    assert "No space left" in r["stderr"] and int(r["stdout"]) <= 16 * MIB
    assert client.put(client.file_url(lease, "more"), b"x" * MIB).status == 507
    client.terminate(lease)
    for _ in range(3):
        lease = client.lease()
        assert client.exec(lease, "head -c 30000000 /dev/zero > big && stat -c %s big")["stdout"] == "30000000\n"
        client.terminate(lease)


@pytest.mark.parametrize("field,value", [("memory_max", "257MiB"), ("pids_max", 201), ("disk_max", 65 * MIB)])
def test_nothing_above_the_pools_own(client, field, value):
    r = client.post("/leases", {"limits": {field: value}})
    assert r.status == 422 and r.code == "limit_exceeded" and r.json()["field"] == "limits." + field and r.json()["limit"] > 0


@pytest.mark.parametrize("field,value", [("memory_max", 0), ("memory_max", -1), ("pids_max", 1.5), ("pids_max", "many"), ("cpu_max", 0),
                                         ("cpu_max", "1"), ("disk_max", "1 elephant"), ("other", 1)])
def test_what_is_no_limit_is_refused(client, field, value):
    r = client.post("/leases", {"limits": {field: value}})
    assert r.status == 400 and r.json()["field"] == "limits." + field


def test_a_disk_that_nobody_limits_is_said_and_cannot_be_asked_for(client):
    r = client.post("/leases", {"local_pool": "onhost", "limits": {"disk_max": "16MiB"}})
    assert r.status == 422 and r.code == "not_supported" and r.json()["field"] == "limits.disk_max"
    lease = client.lease(local_pool="onhost", limits={"pids_max": 50})
    limits, means = of(client, lease)
    assert limits["disk_max"] is None and means["disk"] == "none" and limits["pids_max"] == 50
    client.terminate(lease)


def test_callers_that_wait_get_their_own_limits_too(client):
    held = [client.lease(), client.lease()]
    got = []
    t = threading.Thread(target=lambda: got.append(client.lease(limits={"pids_max": 33}, acquire_timeout=20)))
    t.start()
    client.terminate(held[0])
    t.join()
    assert of(client, got[0])[0]["pids_max"] == 33
    for lease in (held[1], got[0]):
        client.terminate(lease)
