"""Local pools: several on one server, who gets which slot, what operators see and do."""
import concurrent.futures
import os
import re
import shutil
import subprocess

import pytest

from conftest import account, server_kinds
from harness import Client, Server, output, wait_until


def metadata(client, lease):
    return client.get(f"/leases/{lease}").json()["metadata"]


def slots(client, pool="default"):
    r = client.get(f"/slots/{pool}")
    assert r.status == 200, r
    return r.json()


# ---- several pools ----

POOLS = {
    "local_bwrap": {"size": 2, "memory_max": "256MiB", "pids_max": 100},
    "local_pools": [
        {"name": "small", "size": 1, "memory_max": "64MiB", "pids_max": 40, "disk_max": "8MiB", "acquire_timeout": "100ms"},
        {"name": "disk", "size": 1, "disk": "dir", "memory_max": "0", "pids_max": 0},
    ],
}


@pytest.fixture(scope="module", params=server_kinds())
def pools(request):
    with Server(POOLS, user=account(request.param)) as s:
        for name, n in (("default", 2), ("small", 1), ("disk", 1)):
            s.wait_slots(n, name)
        yield s


def test_pools_differ_in_size_and_limits(pools):
    c = pools.client()
    listed = {p["pool"]: p for p in c.get("/slots").json()["items"]}
    assert list(listed) == ["default", "small", "disk"] and [p["size"] for p in listed.values()] == [2, 1, 1]
    seen = {}
    for name in listed:
        id = c.lease(local_pool=name)
        m = metadata(c, id)
        assert m["local_pool"] == name and m["slot"] == f"{name}-0" or name == "default" and m["slot"] in ("default-0", "default-1"), m
        inside = c.exec(id, "df -B1 --output=size /workspace | tail -1; ls /proc | grep -c '^[0-9]'; id -u")["stdout"].split()
        seen[name] = (m, int(inside[0]))
        receipt = c.get("/receipts/" + c.get(f"/leases/{id}").json()["receipt_id"]).json()
        assert receipt["selector_inputs"]["local_pool"] == name and receipt["pool_name"] is None
        assert c.post("/receipts/verify", receipt).json()["ok"]
        c.terminate(id)
    assert seen["default"][1] == 1 << 30 and seen["small"][1] == 8 << 20 and seen["disk"][1] != 1 << 30
    assert seen["disk"][0]["limits_enforced"]["memory"] == "none" and seen["small"][0]["limits_enforced"]["disk"] == "tmpfs"
    assert seen["default"][0]["limits_enforced"]["memory"] != "none"


def test_a_full_pool_does_not_borrow_from_another(pools):
    c = pools.client()
    pools.wait_slots(1, "small")
    id = c.lease(local_pool="small")
    r = c.post("/leases", {"local_pool": "small"})
    assert r.status == 503 and r.code == "acquire_timeout" and '"small"' in r.json()["detail"], r
    assert slots(c)["ready"] + slots(c)["leased"] <= 2 and slots(c, "small")["leased"] == 1
    c.terminate(id)
    other = c.lease(acquire_timeout=30, local_pool="small")
    assert other != id and metadata(c, other)["generation"] > 1
    c.terminate(other)


def test_a_pools_ceiling_is_its_own(pools):
    c = pools.client()
    r = c.post("/leases", {"local_pool": "small", "limits": {"memory_max": "65MiB"}})
    assert r.status == 422 and r.code == "limit_exceeded" and r.json()["field"] == "limits.memory_max" and r.json()["limit"] == 64 << 20, r
    r = c.post("/leases", {"local_pool": "nowhere"})
    assert r.status == 422 and r.code == "pool_not_found" and r.json()["field"] == "local_pool", r


@pytest.mark.parametrize("kind", server_kinds())
def test_pools_differ_in_their_root_file_systems(kind, tmp_path):
    root = tmp_path / "root"
    for d in ("bin", "proc", "dev", "etc", "tmp", "run", "workspace", "home/sandbox", "usr/bin"):
        (root / d).mkdir(parents=True)
    for program in ("/bin/sh", "/bin/cat"):
        needs = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
        for lib in re.findall(r"(/\S+)", needs):
            (root / lib[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(lib, root / lib[1:])
        shutil.copy(program, root / program[1:])
    (root / "usr/mark").write_text("another world\n")
    for at in (tmp_path, *tmp_path.parents[:2]):
        os.chmod(at, 0o755)
    pools = [{"name": f"p{i}", "size": 1, "rootfs": str(root)} for i in range(2)]
    with Server({"local_bwrap": {"size": 1}, "local_pools": pools}, user=account(kind)) as s:
        c = s.client()
        for name in ("default", "p0", "p1"):
            id = c.lease(local_pool=name, acquire_timeout=30)
            r = c.exec(id, "cat /usr/mark 2>/dev/null; test -e /usr/bin/env && echo host; echo x > f && cat f; (echo y > /usr/mark) 2>/dev/null && echo written")
            assert r["stdout"] == ("host\nx\n" if name == "default" else "another world\nx\n"), (name, r)
            c.terminate(id)
    assert (root / "usr/mark").read_text() == "another world\n"


def test_the_same_choice_every_time(pools):
    """Pools are no part of the pick: what is asked of which pool changes nothing about the backend, and the record says it."""
    c = pools.client()
    picks = [c.post("/select", {"policy": {"required_capabilities": ["exec"]}}).json() for _ in range(20)]
    assert all(p == picks[0] for p in picks) and picks[0]["backend"] == "local_bwrap"
    assert picks[0]["receipt"]["selector_inputs"]["local_pool"] is None


@pytest.mark.parametrize("config,where", [
    ({"local_pools": [{"name": "a"}, {"name": "a"}]}, "two local pools"),
    ({"local_pools": [{"name": "default"}]}, "two local pools"),
    ({"local_pools": [{"name": "a", "sizes": 3}]}, "local_pools[0].sizes"),
    ({"local_pools": [{"name": "a", "mode": "blackbox"}]}, "service_command"),
    ({"local_bwrap": {"size": 1000}, "local_pools": [{"name": "a", "size": 100}]}, "1100"),
])
def test_a_bad_pool_stops_the_start(config, where):
    with pytest.raises(RuntimeError) as e:
        with Server(config):
            pass
    assert where in str(e.value), e.value


# ---- who gets which slot ----

def test_the_longest_unused_slot_is_next():
    with Server({"local_bwrap": {"size": 3}}) as s:
        c = s.client()
        s.wait_slots(3)
        order = []
        for _ in range(9):
            id = c.lease()
            order.append(metadata(c, id)["slot"])
            c.terminate(id)
            s.wait_slots(3)
        assert sorted(order[:3]) == ["default-0", "default-1", "default-2"]
        assert order == order[:3] * 3, order


def test_waiters_are_served_in_their_order():
    with Server({"local_bwrap": {"size": 1}}) as s:
        c = s.client()
        first, order = c.lease(), []

        def wait_for_one(i):
            mine = Client(s)
            id = mine.lease(trajectory_id=f"w{i}")
            order.append(i)
            mine.terminate(id)

        with concurrent.futures.ThreadPoolExecutor(5) as pool:
            jobs = []
            for i in range(5):
                jobs.append(pool.submit(wait_for_one, i))
                wait_until(lambda: slots(c)["waiters"] == i + 1, what="one more waiter")
            c.terminate(first)
            for j in jobs:
                j.result()
        assert order == [0, 1, 2, 3, 4]


# ---- what a lease leaves behind ----

# Each hides in its own way; all carry the mark in their command line.
RESIDUE = r"""
import os, signal, sys, time
mark = sys.argv[1]
def stay():
    for s in range(1, 65):
        try: signal.signal(s, signal.SIG_IGN)
        except (OSError, ValueError): pass
    for fd in range(3): os.close(fd)
    os.execv("/bin/sh", [mark, "-c", "trap '' HUP INT TERM QUIT; while :; do sleep 1000; done # " + mark])
def double_fork():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0: stay()
        os._exit(0)
for n in range(5): double_fork()
if os.fork() == 0:
    os.setpgid(0, 0)
    stay()
if os.fork() == 0:
    if os.fork() == 0: stay()          # its parent stops and is never heard of again
    os.kill(os.getpid(), signal.SIGSTOP)
if os.fork() == 0:
    while True:                        # one that is never the same process for long
        if os.fork(): os._exit(0)
        os.setsid(); time.sleep(0.001)
time.sleep(0.3)
print("left")
"""


def marked(mark):
    found = []
    for p in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{p}/cmdline", "rb") as f:
                if mark.encode() in f.read():
                    found.append(int(p))
        except OSError:
            pass
    return found


def everything(c):
    """What a new lease finds: files, processes, System V objects, sockets."""
    id = c.lease()
    look = "set -- /proc/[0-9]*; echo $#; ls -AR /workspace /home/sandbox /tmp /run /dev/shm; cat /proc/sysvipc/* /proc/net/unix /proc/net/tcp | wc -l"
    text = c.exec(id, look)["stdout"]
    c.terminate(id)
    return text


@pytest.mark.parametrize("kind", server_kinds())
def test_nothing_of_a_lease_survives_it(kind):
    with Server({"local_bwrap": {"size": 1, "pids_max": 0 if kind == "user" else 200}}, user=account(kind)) as s:
        c, mark = s.client(), "residue-" + s.dir.rsplit("-", 1)[1]
        fresh = everything(c)
        for _ in range(5):
            id = c.lease()
            c.write(id, "residue.py", RESIDUE.encode())
            c.exec(id, "ipcmk -S 1 -Q -M 10 >/dev/null; echo x > /dev/shm/x; touch /run/x /tmp/x ~/x")
            r = c.exec(id, ["python3", "residue.py", mark], timeout=20)
            assert output(r) == b"left\n", r
            assert len(marked(mark)) >= 7
            assert c.terminate(id)["terminated"]
            assert marked(mark) == []  # at the answer already
        assert everything(c) == fresh
