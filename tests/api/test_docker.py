"""Containers of a real engine: what they are made of, and what becomes of them when the server, the engine or they themselves die.

What commands and files are like in them is the conformance suite's matter (row docker).
"""
import concurrent.futures
import errno
import http.client
import os
import signal
import socket
import tempfile
import threading
import time

import pytest

import engine as engines
from harness import BIN, SLOW, Server, users, wait_until

why = engines.why_not()
pytestmark = pytest.mark.skipif(why is not None, reason=str(why))
PODMAN = engines.KIND is engines.Podman


@pytest.fixture(scope="module")
def engine():
    with engines.engine() as e:
        yield e


def serve(e, user=None, **docker):
    return Server({"backends": {"enabled": ["docker"]},
                   "docker": dict({"host": e.host, "image": engines.IMAGE, "images_allowed": ["sandgate-test:missing"], "pull": False}, **docker)}, user=user)


@pytest.fixture(scope="module")
def server(engine):
    with serve(engine) as s:
        yield s
    wait_until(lambda: ours(engine) == [], what="no container left after the server")


@pytest.fixture
def client(server):
    return server.client()


def ours(e):
    return [n for n in e.containers() if n.startswith("sandgate-")]


def name(lease):
    return "sandgate-" + lease


def state(client, lease):
    return client.get(f"/leases/{lease}").json()


def lost(client, lease):
    return wait_until(lambda: (lambda l: l if l["state"] == "lost" else None)(state(client, lease)), 20, "the lease is lost")


# ---- what they are made of ----

def kernels_limits(pid):
    """Memory, processes and CPUs, as the kernel has them for a container's first process."""
    found = {}
    for line in open(f"/proc/{pid}/cgroup"):
        _, controllers, path = line.rstrip("\n").split(":", 2)
        for base in (controllers, "", "unified"):
            for f in ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.max", "pids.max", "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.max"):
                try:
                    with open(os.path.join("/sys/fs/cgroup", base, path.lstrip("/"), f)) as text:
                        found[f] = [int(n) for n in text.read().split()]
                except OSError:
                    pass
    quota, period = found.get("cpu.max") or found["cpu.cfs_quota_us"] + found["cpu.cfs_period_us"]
    return (found.get("memory.max") or found["memory.limit_in_bytes"])[0], found["pids.max"][0], quota / period


AGENTS = 1 << 5 | 1 << 6 | 1 << 7  # capabilities: KILL, SETGID, SETUID
BOUND = AGENTS | 1 << 0 | 1 << 1   # and before it listens: CHOWN, DAC_OVERRIDE
WRITABLE = r"""for d in / /var /run /etc $(awk '{print $5}' /proc/self/mountinfo | sort -u); do touch $d/probe 2>/dev/null && echo $d; done"""


def test_hardened(engine, client):
    lease = client.lease(limits={"memory_max": 200 << 20, "pids_max": 60, "cpu_max": 0.5})
    c = engine.inspect(name(lease))
    h = c["HostConfig"]
    assert h["ReadonlyRootfs"] and h["NetworkMode"] == "none" and h["SecurityOpt"][0] == "no-new-privileges", h
    assert [o.partition("=")[0] for o in h["SecurityOpt"][1:]] == ["seccomp"], h
    assert not h["Privileged"] and h["RestartPolicy"]["Name"] in ("", "no") and h["LogConfig"]["Type"] == "none", h
    assert (h["Memory"], h["MemorySwap"], h["PidsLimit"], h["NanoCpus"]) == (200 << 20, 200 << 20, 60, 500000000), h
    assert kernels_limits(c["State"]["Pid"]) == (200 << 20, 60, 0.5)
    first = open(f"/proc/{c['State']['Pid']}/status").read().replace("\t", " ")
    assert f"CapPrm: {AGENTS:016x}\nCapEff: {AGENTS:016x}\nCapBnd: {BOUND:016x}\nCapAmb: {0:016x}\nNoNewPrivs: 1\nSeccomp: 2\n" in first, first
    assert c["Config"]["Labels"]["sandgate.lease"] == lease and c["Config"]["Labels"]["sandgate.instance"], c["Config"]
    m = state(client, lease)["metadata"]
    assert m["isolation"] == "container" and m["limits"]["pids_max"] == 60 and m["egress"] == "none", m
    assert m["limits_enforced"] == {"memory": "engine", "pids": "engine", "cpu": "engine", "disk": "tmpfs", "open_files": "rlimit"}, m
    r = client.exec(lease, "id -u; id -g; grep -E 'CapEff|NoNewPrivs|Seccomp:' /proc/self/status; touch /x; ls -A /.sandgate/run; ls /sys/class/net; "
                           "kill -9 1; echo $?; touch /workspace/f /tmp/f $HOME/f && echo written")
    assert r["stdout"].split() == ["1000", "1000", "CapEff:", "0000000000000000", "NoNewPrivs:", "1", "Seccomp:", "2", "lo", "1", "written"], r
    assert "Read-only file system" in r["stderr"] and "Permission denied" in r["stderr"] and "not permitted" in r["stderr"], r
    assert set(client.exec(lease, WRITABLE)["stdout"].split()) == {"/workspace", "/home/sandbox", "/tmp", "/dev/shm", "/dev/mqueue"}
    assert client.exec(lease, "cat /proc/keys /proc/timer_list; ls /sys/firmware; echo x > /proc/sys/kernel/domainname; ls /proc/1/root")["stdout"] == ""
    client.terminate(lease)
    assert name(lease) not in engine.containers()


# ---- their system calls ----

CALLS = os.path.join(os.path.dirname(BIN), "conformance-calls")  # which sanitizer builds do not make
REFUSED = {"clone_newuser", "clone_newnet", "clone_newns", "unshare_user", "unshare_files", "io_uring_setup", "name_to_handle_at", "fanotify_mark", "userfaultfd",
           "keyctl", "bpf", "perf_event_open", "personality_read_implies_exec", "socket_audit", "socket_nftables", "socket_packet", "socket_vsock", "socket_alg",
           "socket_mptcp", "socket_sctp"}
ALLOWED = {"personality_question", "socket_unix", "socket_tcp", "socket_tcp6", "socket_udp", "socket_routes"}


def calls(client):
    """{number or name: errno} as conformance-calls says it in a new container."""
    lease = client.lease()
    assert client.write(lease, "calls", open(CALLS, "rb").read(), mode="0755").status == 201
    r = client.exec(lease, "./calls")
    assert r["returncode"] == 0, r
    client.terminate(lease)
    return {k: int(v) for k, v in (line.split() for line in r["stdout"].splitlines())}


@pytest.mark.skipif(not os.path.exists(CALLS), reason="this build has no conformance-calls")
def test_system_calls(engine, client):
    """Whatever the engine's own profile refuses, ours does, and more; what programs need it lets through."""
    with serve(engine, seccomp="engine") as s:
        theirs = calls(s.client())
    ours_ = calls(client)
    assert len(ours_) == len(theirs) > 450
    more = {k for k in theirs if theirs[k] == errno.EPERM and ours_[k] not in (errno.EPERM, errno.ENOSYS)}
    assert more <= ({"278"} if PODMAN else set()), more  # vmsplice, of which Docker thinks no ill either
    assert {k: ours_[k] for k in REFUSED} == dict.fromkeys(REFUSED, errno.EPERM)
    assert {k: ours_[k] for k in ALLOWED} == dict.fromkeys(ALLOWED, 0)
    assert ours_["clone3"] == ours_["io_setup"] == errno.ENOSYS, ours_
    assert ours_["469"] == errno.ENOSYS, "a call of a newer kernel does not exist"
    assert sum(1 for e in ours_.values() if e not in (errno.EPERM, errno.ENOSYS)) > 270
    if os.uname().machine == "x86_64":
        assert ours_["getpid_of_i386"] == -signal.SIGSYS and theirs["getpid_of_i386"] == 0, (ours_, theirs)


def test_images_and_limits_are_the_operators(engine, client):
    before = engine.containers()
    r = client.post("/leases", {"image": "alpine:latest"})
    assert r.status == 422 and r.code == "not_supported" and r.json()["field"] == "image" and r.json()["reason"] == "unknown_image" and r.json()["images"] == [engines.IMAGE, "sandgate-test:missing"], r
    r = client.post("/leases", {"image": "sandgate-test:missing"})
    assert r.status == 503 and r.json()["reason"] == "image_missing" and r.json()["image"] == "sandgate-test:missing", r
    for limits, field in (({"memory_max": 2 << 30}, "limits.memory_max"), ({"pids_max": 1000}, "limits.pids_max"), ({"disk_max": 2 << 30}, "limits.disk_max")):
        r = client.post("/leases", {"limits": limits})
        assert r.status == 422 and r.code == "limit_exceeded" and r.json()["field"] == field and r.json()["limit"], r
    for limits, field, code in (({"memory_max": 4096}, "limits.memory_max", "not_supported"), ({"pids_max": 2}, "limits.pids_max", "not_supported"),
                                ({"cpu_max": 0.001}, "limits.cpu_max", "not_supported"), ({"cpu_max": 1000}, "limits.cpu_max", "limit_exceeded")):
        if PODMAN and limits.get("cpu_max") == 1000:  # which it has no objection to: it is no limit
            continue
        r = client.post("/leases", {"limits": limits})
        assert r.status == 422 and r.code == code and r.json()["field"] == field, r
    for egress in ("open", "restricted"):
        r = client.post("/leases", {"network_egress_class": egress})
        assert r.status == 422 and r.code == "pool_refused" and r.json()["field"] == "network_egress_class" and r.json()["reason"] == "egress_widened", r
    assert engine.containers() == before


def test_an_image_that_no_sandbox_can_be_made_of(engine):
    """Its /workspace is a link to where the agent must not go; whether it ends before or after it is connected to."""
    engine.load("sandgate-test:odd", links={"workspace": "/etc"})
    with serve(engine, images_allowed=["sandgate-test:odd"]) as s:
        for _ in range(2):
            r = s.client().post("/leases", {"image": "sandgate-test:odd"})
            assert r.status == 502 and r.code == "provider_failed" and r.json()["reason"] == "agent_not_ready", r
    wait_until(lambda: [n for n in ours(engine) if "lease" in n] == [])


def test_a_pull_that_fails_is_said(engine):
    with serve(engine, image="127.0.0.1:1/nothing:here", pull=True) as s:
        r = s.client().post("/leases", {})
        assert r.status == 503 and r.json()["reason"] == "image_missing" and "127.0.0.1:1" in r.json()["detail"], r
    assert ours(engine) == [] or all("lease" in n for n in ours(engine))


def test_pulls(engine):
    """From a private registry, with the login that is in the server's environment; one that never comes has a deadline."""
    with engines.Registry() as r:
        box, hangs = f"{r.address}/private/box:1", f"{r.address}/other:1"
        login = '{"username": "puller", "password": "p4ssw0rd", "serveraddress": "http://%s"}' % r.address
        with serve(engine, image=box, images_allowed=[hangs], pull=True, pull_timeout="1s") as s:
            a = s.client().post("/leases", {})
            assert a.status == 503 and a.json()["reason"] == "image_missing", a  # no login
            s.stop()
            s.env["DOCKER_REGISTRY_AUTH"] = login
            s.config["docker"]["pull_timeout"] = "30s"
            s.start()
            c = s.client()
            assert c.exec(c.lease(), "echo $FROM_IMAGE")["stdout"] == "yes\n"
            assert r.expected in r.seen and "p4ssw0rd" not in s.log_text()
            s.stop()
            s.config["docker"]["pull_timeout"] = "1s"
            s.start()
            begun = time.monotonic()
            a = s.client().post("/leases", {"image": hangs})
            assert a.status == 503 and a.json()["reason"] == "image_missing" and "in time" in a.json()["detail"], a
            assert time.monotonic() - begun < 10 * SLOW
    s = Server({"backends": {"enabled": ["docker"]}, "docker": {"host": engine.host, "image": "a:b"}}, env={"DOCKER_REGISTRY_AUTH": "{}"})
    with pytest.raises(RuntimeError, match="DOCKER_REGISTRY_AUTH"):
        s.__enter__()


def test_limits_hold_and_the_sandbox_survives(client):
    lease = client.lease(limits={"memory_max": 64 << 20, "pids_max": 40})
    r = client.exec(lease, "head -c 120000000 /dev/zero | tail -c 110000000 | wc -c; exit 0", timeout=60)
    assert r["stdout"].strip() != "110000000", r
    r = client.exec(lease, ["sh", "-c", "x=$(head -c 200000000 /dev/zero | tr '\\0' a); echo ${#x}"], timeout=60)
    assert r["killed_by"] == "oom" and r["signal"] == "SIGKILL", r
    r = client.exec(lease, "f() { f | f & }; f 2>/dev/null; i=0; while [ $i -lt 60 ]; do sleep 5 & i=$((i+1)); done; wait", timeout=1)
    assert r["timed_out"] or r["returncode"] is not None, r

    def alive():
        """Until the kernel has taken them away there may be no place for another: not even for what starts it (503), or for itself."""
        r = client.exec_response(lease, "echo alive")
        assert r.status == 200 or (r.status, r.code) == (503, "overloaded"), r
        return r.status == 200 and r.json()["stdout"] == "alive\n"
    assert wait_until(alive, 20)
    client.terminate(lease)


def test_files_leave_some_memory(client):
    """Whatever is filled, commands and files go on; and where the memory ends after all commands end before what leads them."""
    lease = client.lease(limits={"memory_max": 24 << 20})
    r = client.exec(lease, "for d in /workspace /tmp $HOME /dev/shm; do cat /dev/zero > $d/big; done 2>/dev/null; cat /proc/self/oom_score_adj /proc/1/oom_score_adj", timeout=60)
    assert r["killed_by"] is None and r["stdout"] == "500\n0\n", r
    assert client.write(lease, "more", b"x").code == "sandbox_disk_full"
    if PODMAN:  # it cannot bound how many files there are: enough empty ones, and the sandbox is lost
        client.terminate(lease)
        return
    r = client.exec(lease, "rm /workspace/big; mkdir d; i=0; while true 2>/dev/null > d/$i; do i=$((i+1)); done; echo $i", timeout=60)
    assert 2000 < int(r["stdout"]) < 3100 and client.write(lease, "more", b"x").code == "sandbox_disk_full", r
    assert client.delete(client.file_url(lease, "d", recursive="1")).status == 204 and client.write(lease, "more", b"x").status == 201
    assert client.exec(lease, "cat more")["stdout"] == "x"
    client.terminate(lease)


def test_a_disk_of_next_to_nothing(client):
    lease = client.lease(limits={"disk_max": 1})
    r = client.exec(lease, "ulimit -Hn; for d in /workspace /tmp $HOME /dev/shm; do dd if=/dev/zero of=$d/f bs=4k count=64 2>/dev/null; stat -c %s $d/f; done")
    files, *sizes = map(int, r["stdout"].split())
    assert 256 <= files <= 65536 and state(client, lease)["metadata"]["limits_enforced"]["open_files"] == "rlimit"
    assert sizes == [4096] * 4, r  # a page
    client.terminate(lease)


def test_a_full_disk(client):
    lease = client.lease(limits={"memory_max": 256 << 20, "disk_max": 8 << 20})
    r = client.write(lease, "big", b"x" * (9 << 20))
    assert r.status == 507 and r.code == "sandbox_disk_full", r
    assert client.read(lease, "big").status == 404 and client.write(lease, "small", b"y").status == 201
    client.terminate(lease)


def test_many_at_once_and_none_left(engine, server):
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        leases = list(pool.map(lambda _: server.client().lease(), range(6)))
        assert {server.client().exec(l, "echo $((1+1))")["stdout"] for l in leases} == {"2\n"}
        list(pool.map(lambda l: server.client().terminate(l), leases))
    assert not set(map(name, leases)) & set(engine.containers())


def test_who_hangs_up_leaves_nothing(engine, server):
    before, client = set(engine.containers()), server.client()
    for delay in (0.0, 0.05, 0.12, 0.2):
        c = socket.create_connection(("127.0.0.1", server.port))
        c.sendall(b"POST /leases HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
        threading.Event().wait(delay)  # somewhere on its way
        c.close()

    def at_rest():
        leases = client.get("/leases?state=creating,ready,releasing").json()["items"]
        heard = {name(l["id"]) for l in leases if l["state"] == "ready"}  # its answer had gone out: engines take as long as they like
        return len(heard) == len(leases) < 3 and set(engine.containers()) <= before | heard
    wait_until(at_rest, 20, "what nobody waits for is gone")
    for l in client.get("/leases?state=ready").json()["items"]:
        client.terminate(l["id"])


# ---- deaths of containers ----

def test_a_container_that_is_killed_is_a_lost_lease(engine, client):
    a, b = client.lease(), client.lease()
    assert engine.call("POST", f"/containers/{name(a)}/kill?signal=KILL")[0] == 204
    assert "container_died" in lost(client, a)["reason"] and "137" in state(client, a)["reason"]
    assert engine.call("DELETE", f"/containers/{name(b)}?force=1")[0] == 204
    assert lost(client, b)["reason"].split(":")[0] in ("container_removed", "container_died")
    r = client.exec_response(a, "true")
    assert r.status == 410 and r.code == "sandbox_lost", r
    wait_until(lambda: not {name(a), name(b)} & set(engine.containers()), what="what is lost is removed")


def test_a_container_with_another_name_goes_with_its_lease(engine, client):
    lease = client.lease()
    assert engine.call("POST", f"/containers/{name(lease)}/rename?name=somebody")[0] == 204
    assert client.exec(lease, "echo on")["stdout"] == "on\n"
    client.terminate(lease)
    wait_until(lambda: "somebody" not in engine.containers(), what="it is gone, too")


def test_a_running_command_ends_with_its_container(engine, server):
    client = server.client()
    lease = client.lease()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        r = pool.submit(server.client().exec_response, lease, "touch up; sleep 60")
        wait_until(lambda: client.get(f"/leases/{lease}/files/stat?path=up").status == 200)
        engine.call("POST", f"/containers/{name(lease)}/kill")
        assert r.result(30).status == 410, r.result()


# ---- blackboxes ----

SERVICE = "mkdir -p /tmp/www; echo up > /tmp/www/health; echo $WHO > /tmp/www/who; echo begun; exec busybox httpd -f -p 127.0.0.1:8080 -h /tmp/www"


def blackbox(command, **more):
    return dict({"metadata": {"paddock_mode": "blackbox"}, "services": [{"name": "blackbox", "port": 8080, "health_path": "/health"}],
                 "env": {"WHO": "me"}, "acquire_timeout": 10, **({"env_args": {"sandbox_cmd": command}} if command else {})}, **more)


def test_a_blackbox_serves_and_outlives_the_server(engine):
    engine.load("sandgate-test:serving", changes=[
        'ENTRYPOINT ["/bin/sh", "-c"]', 'CMD ["mkdir /tmp/w; echo of $PWD > /tmp/w/health; exec httpd -f -p 8080 -h /tmp/w"]', "WORKDIR /etc"])
    with serve(engine, images_allowed=["sandgate-test:serving"]) as s:
        c = s.client()
        lease = c.lease(**blackbox(None, image="sandgate-test:serving"))
        assert c.get(f"/leases/{lease}/proxy/8080/health").body == b"of /etc\n"
        c.terminate(lease)
        r = s.client().post("/leases", blackbox(SERVICE))
        assert r.status == 201, r
        lease, url = r.json()["id"], f"/leases/{r.json()['id']}/proxy/8080/who"
        assert "blackbox" in r.json()["endpoints"] and s.client().get(url).body == b"me\n"
        wait_until(lambda: s.client().read(lease, "/tmp/service.log").body == b"begun\n")
        s.kill9()
        s.start()
        wait_until(lambda: s.client().get(url).body == b"me\n", 20)
        r = s.client().post("/leases", blackbox(None))
        assert r.status == 503 and r.json()["reason"] == "service_not_ready", r
        assert [n for n in ours(engine) if "lease" in n] == [name(lease)]


def test_commands_come_before_the_service_which_may_go_into_the_background(server, client):
    before = "mkdir /tmp/www; echo up > /tmp/www/health; echo prepared"
    for last, running in (("echo begun; exec busybox httpd -f -p 127.0.0.1:8080 -h /tmp/www", True), ("busybox httpd -p 127.0.0.1:8080 -h /tmp/www", False)):
        r = client.post("/leases", blackbox([before, last]))
        assert r.status == 201, r
        first, second = r.json()["metadata"]["sandbox_cmd"]
        assert first["stdout"] == "prepared\n" and first["returncode"] == 0 and (second["running"] or not running), (first, second)
        assert second["returncode"] == (None if second["running"] else 0)  # what goes into the background may serve before it has gone there
        assert client.get(f"/leases/{r.json()['id']}/proxy/8080/health").body == b"up\n"
        assert client.exec(r.json()["id"], "cat /tmp/service.log")["stdout"] == ("begun\n" if running else "")
        client.terminate(r.json()["id"])


def test_a_service_that_does_not_come_up_is_said_and_leaves_nothing(engine, server, client):
    r = client.post("/leases", blackbox(["true", "echo no; echo way >&2; exit 3"], acquire_timeout=60))
    p = r.json()
    assert r.status == 422 and r.code == "sandbox_cmd_failed" and (p["index"], p["returncode"], p["stdout"]) == (1, 3, "no\nway\n"), r
    r = client.post("/leases", blackbox("echo waiting; exec sleep 3456", acquire_timeout=1))
    p = r.json()
    assert r.status == 503 and p["reason"] == "service_not_ready" and '"blackbox"' in p["detail"] and p["stage"] == "services", r
    assert (p["index"], p["running"], p["stdout"]) == (0, True, "waiting\n"), r
    wait_until(lambda: ours(engine) == [], what="no container is left")


# ---- the server dies ----

def test_kill_9_of_the_server_mid_traffic(engine):
    s = serve(engine)
    with s:
        c = s.client()
        keep = [c.lease(trajectory_id=f"t{i}") for i in range(2)]
        for lease in keep:
            c.write(lease, "kept", lease.encode())
        c.exec(keep[0], "(setsid sleep 4321 >/dev/null 2>&1 &)")
        stop, made = threading.Event(), []

        def traffic():
            k = s.client()
            while not stop.is_set():
                try:
                    lease = k.lease()
                    made.append(lease)
                    k.exec(lease, "sleep 0.05; echo x")
                    k.exec(keep[1], "echo y > z; cat z")
                    if k.delete(f"/leases/{lease}").status == 200:
                        made.remove(lease)
                except (OSError, http.client.HTTPException):
                    return

        threads = [threading.Thread(target=traffic) for _ in range(3)]
        for t in threads:
            t.start()
        running = threading.Thread(target=lambda: s.client().exec_response(keep[0], "touch run; exec sleep 9876") if True else None, daemon=True)
        threading.excepthook = lambda a: None  # it is cut off
        running.start()
        wait_until(lambda: c.get(f"/leases/{keep[0]}/files/stat?path=run").status == 200 and len(made) >= 1)
        time.sleep(0.3)
        s.kill9()
        stop.set()
        for t in threads:
            t.join()
        # Somebody else's container, one of a lease that there never was, and one with our words on another instance.
        instance = open(f"{s.state}/docker/instance").read()
        for n, labels in (("bystander", {}), ("sandgate-lease_nobody", {"sandgate.instance": instance, "sandgate.lease": "lease_nobody"}),
                          ("sandgate-lease_else", {"sandgate.instance": "inst_other", "sandgate.lease": "lease_else"})):
            assert engine.call("POST", f"/containers/create?name={n}", {"Image": engines.IMAGE, "Cmd": ["sleep", "1"], "Labels": labels})[0] == 201
        s.start()
        c = s.client()
        for lease in keep:
            wait_until(lambda: c.read(lease, "kept").status == 200, 20)
            assert c.read(lease, "kept").body == lease.encode() and c.exec(lease, "echo on")["stdout"] == "on\n"
        ps = c.exec(keep[0], "ps -o args")["stdout"]
        assert "sleep 4321" in ps and "sleep 9876" not in ps, ps  # the background lives on, the command of the old server does not
        wait_until(lambda: c.get("/leases?state=creating").json()["items"] == [], 20)
        live = {name(l["id"]) for l in c.get("/leases?state=ready").json()["items"]}
        expected = live | {"bystander", "sandgate-lease_else"}
        def there():
            return {n for n in engine.containers() if n in expected or instance_of(engine, n) == instance}

        wait_until(lambda: there() == expected, 20, f"exactly the containers of live leases, not {there() ^ expected}")
        assert "sandgate-lease_nobody" not in engine.containers() and {name(l) for l in keep} <= live
        assert c.lease(trajectory_id="t0") == keep[0]
        s.kill9()  # and once more
        s.start()
        c = s.client()
        wait_until(lambda: c.exec_response(keep[1], "true").status == 200, 20)
        assert s.stop() == 0
        wait_until(lambda: [n for n in engine.containers() if instance_of(engine, n) == instance] == [], what="a server that stops ends its leases")
    for n in ("bystander", "sandgate-lease_else"):
        assert engine.call("DELETE", f"/containers/{n}?force=1")[0] == 204


def instance_of(e, n):
    labels = (e.inspect(n).get("Config") or {}).get("Labels") or {}
    return labels.get("sandgate.instance")


def test_a_container_that_died_without_a_server_is_a_lost_lease(engine):
    with serve(engine) as s:
        dead, other, alive = (s.client().lease() for _ in range(3))
        s.kill9()
        engine.call("POST", f"/containers/{name(dead)}/kill")
        assert engine.call("POST", f"/containers/{name(other)}/restart?t=0")[0] == 204
        s.start()
        c = s.client()
        assert "does not run any more" in lost(c, dead)["reason"] and lost(c, other)["reason"]
        wait_until(lambda: c.exec_response(alive, "true").status == 200)
        wait_until(lambda: not {name(dead), name(other)} & set(engine.containers()))


def test_an_orphan_ends_by_itself(engine):
    with serve(engine, orphan_grace="1s") as s:
        lease = s.client().lease()
        s.kill9()
        wait_until(lambda: engine.inspect(name(lease))["State"]["Status"] == "exited", 20, "it ends without a server")
        assert engine.inspect(name(lease))["State"]["ExitCode"] == 0
        s.start()
        lost(s.client(), lease)
        wait_until(lambda: name(lease) not in engine.containers())


def test_nobody_can_stand_in_for_the_agent(engine):
    """Whoever listens in its place, even with the right of the host's root to put a socket there, is not taken for it."""
    with serve(engine) as s:
        lease, c = s.client().lease(), s.client()
        r = c.exec(lease, "rm -f /.sandgate/run/agent.sock; ls /.sandgate/run; mv /.sandgate /x; cd /.sandgate/run")
        assert r["returncode"] != 0 and c.exec(lease, "true")["returncode"] == 0, r
        run = engine.inspect(name(lease))["Config"]["Labels"]["sandgate.run"]
        path = f"{s.state}/docker/run/{run}/agent.sock"
        s.kill9()
        os.unlink(path)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as impostor:
            impostor.bind(path)
            impostor.listen(8)
            s.start()
            assert f"process {os.getpid()} listens" in lost(s.client(), lease)["reason"]
            wait_until(lambda: name(lease) not in engine.containers())


# ---- the engine dies ----

def backend(client):
    return next(b for b in client.get("/backends").json()["items"] if b["name"] == "docker")


@pytest.mark.parametrize("live_restore", [False, True] if SLOW == 1 and not engines.KIND.outlived else [True])
def test_kill_9_of_the_engine(live_restore):
    with engines.engine(*(["--live-restore"] if live_restore else [])) as e, serve(e) as s:
        c = s.client()
        lease = c.lease()
        e.kill()
        wait_until(lambda: backend(c)["healthy"] is False, what="its absence is known")
        assert e.socket in backend(c)["detail"], backend(c)
        assert c.exec(lease, "echo still here")["stdout"] == "still here\n"
        r = c.post("/leases", {})
        assert r.status == 503 and r.code == "unavailable" and r.json()["provider"] == "docker", r
        assert c.get("/readyz").status == 503
        e.start()
        wait_until(lambda: backend(c)["healthy"], 20, "its return is known")
        if live_restore:
            assert c.exec(lease, "echo again")["stdout"] == "again\n" and state(c, lease)["state"] == "ready"
        else:
            assert lost(c, lease)["reason"]
        other = c.lease()
        assert c.exec(other, "echo new")["stdout"] == "new\n"
        # What is deleted while the engine is away is gone when it is back.
        e.kill()
        wait_until(lambda: backend(c)["healthy"] is False)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            r = pool.submit(s.client().delete, f"/leases/{other}")
            wait_until(lambda: state(c, other)["state"] == "releasing")
            e.start()
            assert r.result().status in (200, 202)
        wait_until(lambda: state(c, other)["state"] != "releasing", 40)
        # Without live-restore it has died with the engine, before anybody could end it.
        assert state(c, other)["state"] == "terminated" and name(other) not in e.containers(), state(c, other)


def test_no_engine_at_all():
    s = Server({"backends": {"enabled": ["docker"]}, "docker": {"host": "unix:///nowhere/at/all.sock", "image": "x:y"}})
    try:
        s.start(ready=False)
        c = s.client()
        begun = time.monotonic()
        r = c.post("/leases", {})
        assert r.status == 503 and r.json()["reason"] == "unreachable" and time.monotonic() - begun < 5 * SLOW, r
        assert wait_until(lambda: "nowhere" in (backend(c)["detail"] or "")) and c.get("/readyz").status == 503
        assert s.stop() == 0
    finally:
        s.clean()


# ---- other servers ----

def test_a_server_of_an_ordinary_user(engine):
    os.chmod(engine.dir, 0o711)
    os.chmod(engine.socket, 0o666)
    with serve(engine) as s:
        s.stop()
        s.user = users()
        os.chown(s.state, s.user, s.user)
        for path, dirs, files in os.walk(s.state):
            for f in dirs + files:
                os.chown(os.path.join(path, f), s.user, s.user)
        s.start()
        lease = s.client().lease()
        assert s.client().exec(lease, "id -u")["stdout"] == "1000\n"
        s.kill9()
        s.start()
        wait_until(lambda: s.client().exec_response(lease, "true").status == 200)


@pytest.mark.skipif(not PODMAN or engines.who_maps() is None, reason="of Podman, where a user has a range in /etc/subuid and newuidmap is installed")
def test_an_engine_of_an_ordinary_user():
    """It may be unable to set limits, as under control groups of version 1: then that is said."""
    e = engines.Podman(user=engines.who_maps())
    try:
        e.start().load()
        with serve(e, user=e.user) as s:
            c = s.client()
            lease = c.lease()
            c.write(lease, "f", b"kept")
            r = c.exec(lease, "id -u; grep -E 'CapEff|NoNewPrivs|Seccomp:' /proc/self/status; kill -9 1")
            assert r["stdout"].split() == ["1000", "CapEff:", "0000000000000000", "NoNewPrivs:", "1", "Seccomp:", "2"] and "not permitted" in r["stderr"], r
            m, h = state(c, lease)["metadata"], e.inspect(name(lease))["HostConfig"]
            assert m["limits"]["memory_max"] and m["limits_enforced"]["memory"] == ("engine" if h["Memory"] else "none"), (m, h)
            assert m["limits"]["pids_max"] and m["limits_enforced"]["pids"] == ("engine" if h["PidsLimit"] else "none"), (m, h)
            s.kill9()
            s.start()
            wait_until(lambda: s.client().read(lease, "f").body == b"kept")
        wait_until(lambda: ours(e) == [], what="no container left after the server")
    finally:
        e.stop()


def test_a_server_in_a_container(engine):
    """It has process numbers of its own, and sees its directory elsewhere than the engine's host does."""
    with tempfile.TemporaryDirectory(prefix="sandgate-host-", dir="/tmp") as host:
        s = serve(engine, agent_host_dir=host + "/docker")
        wrapper = os.path.join(s.dir, "contained")
        with open(wrapper, "w") as f:
            f.write(f'#!/bin/sh\nexec unshare --mount --pid --fork --mount-proc --kill-child sh -c \'mount --bind {host} {s.state} && exec {s.binary} "$@"\' sh "$@"\n')
        os.chmod(wrapper, 0o755)
        s.binary = wrapper
        try:
            s.start()
            lease = s.client().lease()
            assert s.client().exec(lease, "echo in")["stdout"] == "in\n" and os.listdir(host + "/docker/run")
            source = [m["Source"] for m in engine.inspect(name(lease))["Mounts"] if m["Destination"] == "/.sandgate/run"]
            assert source[0].startswith(host), source
            s.kill9()
            s.start()
            wait_until(lambda: s.client().exec_response(lease, "true").status == 200)
            s.client().terminate(lease)
        finally:
            s.kill9()
            s.clean()


# ---- warm ones ----

def test_warm_containers(engine):
    with serve(engine, warm=2) as s:
        c = s.client()

        def warm():
            return [n for n in engine.containers() if n.startswith("sandgate-warm")]

        s.wait_warm(2)
        before = set(warm())
        ready = {engine.inspect(n)["Id"] for n in before}
        lease = c.lease()
        assert engine.inspect(name(lease))["Id"] in ready and len(before & set(engine.containers())) == 1
        assert c.exec(lease, "pwd")["stdout"] == "/workspace\n"
        other = c.lease(limits={"pids_max": 50})  # not what the warm ones are
        assert engine.inspect(name(other))["HostConfig"]["PidsLimit"] == 50
        s.wait_warm(2)
        dead, left = warm()
        assert engine.call("POST", f"/containers/{dead}/kill?signal=KILL")[0] == 204
        wait_until(lambda: len(warm()) == 2 and dead not in warm() and left in warm(), 20, "another one in place of one that died")
        s.wait_warm(2)
        before = set(warm())
        s.kill9()
        s.start()
        c = s.client()
        wait_until(lambda: c.exec_response(lease, "true").status == 200)
        wait_until(lambda: len(warm()) == 2 and not before & set(warm()), 20, "new ones, and the old ones are gone")
        c.terminate(lease)
        assert s.stop() == 0
        wait_until(lambda: ours(engine) == [] or not any("warm" in n for n in ours(engine)), 20)


# ---- configuration ----

@pytest.mark.parametrize("docker,word", [({"egress": "restricted"}, "docker.egress: restricted needs egress_allow"), ({"egress_allow": ["x"]}, "docker.egress_allow"), ({"user": "0:0"}, "docker.user"), ({"image": None}, "docker.image"),
                                         ({"host": "tcp://127.0.0.1:1", "agent": "share"}, "agent_host_dir"), ({"host": "nonsense"}, "docker.host")])
def test_settings_that_cannot_be(docker, word):
    config = {k: v for k, v in {"host": "unix:///x", "image": "a:b", **docker}.items() if v is not None}
    s = Server({"backends": {"enabled": ["docker"]}, "docker": config})
    try:
        with pytest.raises(RuntimeError) as e:
            s.start(ready=False)
        assert word in str(e.value)
    finally:
        s.clean()
