"""Sandbox code is hostile: what it tries must fail, reach nothing of the host and disturb no other lease.

Every attempt runs against a root server (two host uids per slot) and an ordinary user's server (one uid).
"""
import concurrent.futures
import json
import os
import socket
import subprocess
import textwrap
import threading
import time

import pytest

from conftest import account, server_kinds
from harness import SLOW, Client, Server, output, wait_until

PRELUDE = '''
import ctypes, errno, fcntl, os, signal, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(nr, *args):
    ctypes.set_errno(0)
    r = libc.syscall(nr, *[ctypes.c_long(a) if isinstance(a, int) else a for a in args])
    return r, ctypes.get_errno()
def refused(nr, *args):
    r, e = call(nr, *args)
    assert r == -1 and e in (errno.EPERM, errno.ENOSYS, errno.EACCES, errno.EAFNOSUPPORT, errno.ESRCH), (nr, r, e)
'''


@pytest.fixture(scope="module", params=server_kinds())
def world(request):
    """(server, client, lease, other lease) of each kind of server."""
    config = {"local_bwrap": {"size": 3, "memory_max": "256MiB", "pids_max": 128, "disk_max": "64MiB"}}
    with Server(config, user=account(request.param)) as s:
        s.wait_slots(3)
        s.kind = request.param
        yield s


@pytest.fixture
def pair(world):
    c = world.client()
    a, b = c.lease(), c.lease()
    c.write(b, "canary", b"alive")
    yield world, c, a
    # The neighbour and the server are as before.
    assert c.read(b, "canary").body == b"alive"
    assert c.exec(b, "echo fine")["stdout"] == "fine\n"
    assert c.get("/healthz").status == 200
    c.terminate(a)
    c.terminate(b)
    world.wait_slots(3)


def python(c, lease, code, **kw):
    c.write(lease, "attack.py", (PRELUDE + textwrap.dedent(code)).encode())
    return c.exec(lease, ["python3", "attack.py"], **kw)


def holds(c, lease, code, **kw):
    r = python(c, lease, textwrap.dedent(code) + "\nprint('HELD')\n", **kw)
    assert r["stdout"].endswith("HELD\n"), (r["stdout"], r["stderr"])
    return r


def host_pids(c, lease):
    """Host processes of the lease's sandbox: those in the PID namespace where our marker runs."""
    mark = f"marker{os.getpid()}{time.monotonic_ns()}"
    c.exec(lease, f"(exec -a {mark} sleep 300) >/dev/null 2>&1 & true")
    c.exec(lease, ["sh", "-c", f"cp /usr/bin/sleep /tmp/{mark} && (/tmp/{mark} 300 >/dev/null 2>&1 &)"])
    found = wait_until(lambda: subprocess.run(["pgrep", "-f", mark], capture_output=True, text=True).stdout.split())
    ns = os.readlink(f"/proc/{found[0]}/ns/pid")
    out = []
    for p in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{p}/ns/pid") == ns:
                out.append(int(p))
        except OSError:
            pass
    return out


def test_no_process_has_host_root_or_the_servers_uid(pair):
    s, c, a = pair
    if os.geteuid() != 0:
        pytest.skip("an ordinary user cannot look at other users' processes; the root run covers both servers")
    server_uid = os.stat(f"/proc/{s.pid()}").st_uid
    pids = host_pids(c, a)
    assert pids
    for p in pids:
        with open(f"/proc/{p}/status") as f:
            uids = set(map(int, next(l for l in f if l.startswith("Uid:")).split()[1:]))
        assert 0 not in uids
        if s.kind == "root":
            assert server_uid not in uids and all(u >= 200000 for u in uids)


def test_identity_and_capabilities(pair):
    _, c, a = pair
    r = c.exec(a, "id -u; id -g; grep -E '^(Cap(Inh|Prm|Eff|Bnd|Amb)|NoNewPrivs|Seccomp):' /proc/self/status")
    lines = r["stdout"].split("\n")
    assert lines[:2] == ["1000", "1000"], r
    status = dict(l.split(":\t") for l in lines[2:] if l)
    assert status["NoNewPrivs"] == "1" and status["Seccomp"] == "2"
    assert all(int(status[k], 16) == 0 for k in ("CapInh", "CapPrm", "CapEff", "CapAmb")), status


def test_every_file_below_proc_sys_and_sys_refuses_writes(pair):
    _, c, a = pair
    r = holds(c, a, '''
    bad = []
    for top in ("/proc/sys", "/sys"):
        for root, dirs, files in os.walk(top):
            for f in files:
                p = os.path.join(root, f)
                try:
                    fd = os.open(p, os.O_WRONLY | os.O_NONBLOCK)
                except OSError:
                    continue
                # Some files of the sandbox's own namespaces may open; writing must still fail.
                try:
                    os.write(fd, b"0")
                    bad.append(p)
                except OSError:
                    pass
                os.close(fd)
    for p in ("/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/proc/kcore", "/proc/kmsg", "/proc/kallsyms", "/proc/1/mem"):
        try:
            os.close(os.open(p, os.O_RDWR | os.O_NONBLOCK))
            bad.append(p)
        except OSError:
            pass
    assert not bad, bad
    ''', timeout=60)
    with open("/proc/sys/kernel/core_pattern") as f:
        assert f.read().strip() != "0"


def test_no_host_file_outside_the_system_directories(pair, tmp_path):
    s, c, a = pair
    secret = tmp_path / "host-secret"
    secret.write_text("host")
    os.chmod(secret, 0o644)
    for path in ("/etc/shadow", "/etc/gshadow", "/root", "/home", "/var/lib", "/boot", "/mnt", "/srv", "/opt", "/lost+found", s.dir,
                 s.state, str(secret), "/run/systemd", "/sys/kernel", "/proc/kcore", os.path.abspath(__file__)):
        r = c.exec(a, ["sh", "-c", 'ls -A "$0" 2>/dev/null | head -3; cat "$0" 2>/dev/null | head -c 100', path])
        assert r["stdout"] in ("", "sandbox\n"), (path, r)
        if path not in ("/home",):
            assert c.read(a, path).status in (403, 404, 409), path
    # The files that are there are generated.
    with open("/etc/passwd") as f:
        assert c.exec(a, "cat /etc/passwd")["stdout"] != f.read()
    assert socket.gethostname() != c.exec(a, "cat /etc/hostname; cat /proc/sys/kernel/hostname")["stdout"].split()[-1]


def test_namespaces_and_mounts_are_refused(pair):
    _, c, a = pair
    holds(c, a, '''
    refused(272, 0x80)                                       # unshare of the time namespace
    for flag in (0x10000000, 0x20000, 0x40000000, 0x8000000, 0x4000000, 0x20000000, 0x2000000):
        refused(272, flag)                                   # unshare
        r, e = call(56, flag | 17, 0, 0, 0, 0)               # clone
        if r == 0: os._exit(1)
        assert r == -1, flag
    refused(165, b"none", b"/tmp", b"tmpfs", 0, None)        # mount
    refused(166, b"/proc", 2)                                # umount2
    refused(155, b"/", b"/")                                 # pivot_root
    refused(161, b"/tmp")                                    # chroot
    refused(308, os.open("/proc/self/ns/user", os.O_RDONLY), 0)   # setns
    for nr in (428, 429, 430, 431, 432, 433, 442): refused(nr, 0, 0, 0, 0, 0)  # the new mount calls
    refused(435, 0, 0)                                       # clone3
    ''')
    assert c.exec(a, "unshare -Ur true")["returncode"] != 0
    assert c.exec(a, "mount -t tmpfs none /tmp")["returncode"] != 0


def test_the_agent_cannot_be_touched(pair):
    s, c, a = pair
    holds(c, a, '''
    for sig in (9, 15, 19, 0, 6, 11):
        r, e = call(62, 1, sig)                              # kill
        assert r == -1 or sig != 0 and True, (sig, r, e)
    refused(101, 16, 1, 0, 0)                                # ptrace ATTACH
    refused(101, 0x4206, 1, 0, 0)                            # ptrace SEIZE
    buf = ctypes.create_string_buffer(16)
    refused(302, 1, 7, 0, buf)                               # prlimit64
    refused(302, 1, 7, buf, 0)
    r, e = call(434, 1, 0)                                   # pidfd_open
    if r >= 0:
        refused(438, r, 0, 0)                                # pidfd_getfd
        refused(424, r, 9, None, 0)                          # pidfd_send_signal
    there = ctypes.create_string_buffer(8)
    iov = ctypes.create_string_buffer(struct.pack("QQ", ctypes.addressof(there), 8))
    refused(310, 1, iov, 1, iov, 1, 0)                       # process_vm_readv
    refused(311, 1, iov, 1, iov, 1, 0)
    for p in ("mem", "environ", "maps", "fd", "cwd", "root", "exe", "stack", "syscall", "auxv", "ns/user"):
        try:
            path = "/proc/1/" + p
            os.listdir(path) if p == "fd" else os.readlink(path) if p in ("cwd", "root", "exe", "ns/user") else open(path, "rb").read(1)
        except OSError:
            continue
        assert p == "maps" or p == "auxv" or p == "environ", p
    ''')
    # Whatever a command does to all processes it can see, the agent goes on.
    c.exec(a, "kill -9 -1", timeout=10)
    assert c.exec(a, "echo up")["stdout"] == "up\n"


def test_sockets(pair):
    _, c, a = pair
    host = socket.socket(socket.AF_UNIX)
    name = f"\0sandgate-host-{os.getpid()}"
    host.bind(name)
    host.listen()
    tcp = socket.create_server(("127.0.0.1", 0))
    try:
        holds(c, a, f'''
        for family in range(3, 47):
            if family in (socket.AF_INET6, 16): continue
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
                try:
                    socket.socket(family, kind)
                    raise SystemExit(f"family {{family}} type {{kind}} opened")
                except OSError:
                    pass
        for family in (socket.AF_INET, socket.AF_INET6):
            try:
                socket.socket(family, socket.SOCK_RAW, 1)
                raise SystemExit("raw socket opened")
            except OSError:
                pass
        for proto in range(1, 25):
            try:
                socket.socket(16, socket.SOCK_RAW, proto)
                raise SystemExit(f"netlink {{proto}} opened")
            except OSError:
                pass
        try:
            socket.socket(socket.AF_UNIX).connect("\\0" + {name[1:]!r})
            raise SystemExit("reached the host's abstract socket")
        except OSError:
            pass
        try:
            socket.create_connection(("127.0.0.1", {tcp.getsockname()[1]}), timeout=2)
            raise SystemExit("reached the host's loopback")
        except OSError:
            pass
        try:
            socket.create_connection(("192.0.2.1", 80), timeout=2)
            raise SystemExit("reached the network")
        except OSError:
            pass
        ''', timeout=60)
    finally:
        host.close()
        tcp.close()


def test_dangerous_calls_are_refused(pair):
    _, c, a = pair
    holds(c, a, '''
    refused(248, b"user", b"x", b"y", 1, 0xfffffffd)   # add_key
    refused(249, b"user", b"x", None, 0xfffffffd)      # request_key
    refused(250, 0, 0xfffffffd, 0, 0, 0)               # keyctl
    refused(321, 0, b"\\0" * 64, 64)                   # bpf
    refused(298, b"\\0" * 128, 0, -1, -1, 0)           # perf_event_open
    refused(323, 0)                                    # userfaultfd
    refused(425, 8, b"\\0" * 256)                      # io_uring_setup
    refused(304, -100, b"\\0" * 32, 0)                 # open_by_handle_at
    refused(303, -100, b"/tmp", b"\\0" * 256, b"\\0" * 8, 0)  # name_to_handle_at
    refused(246, 0, 0, None, 0)                        # kexec_load
    refused(313, 0, b"", 0)                            # finit_module
    refused(175, b"", 0, b"")                          # init_module
    refused(169, -1, 0, 0, None)                       # reboot
    refused(167, b"/dev/null", 0)                      # swapon
    refused(163, b"/tmp/x")                            # acct
    refused(170, b"x", 1)                              # sethostname
    refused(133, b"/tmp/dev", 0o20666, 0x101)          # mknod char device
    refused(164, b"\\0" * 16, None)                    # settimeofday
    refused(172, 3)                                    # iopl
    master, slave = os.openpty()
    for request in (0x5412, 0x541C, 0x100005412):      # TIOCSTI, TIOCLINUX, and a high-bits disguise
        r, e = call(16, slave, request, b"x")
        assert r == -1 and e in (errno.EPERM, errno.ENOTTY, errno.EINVAL, errno.EIO), (request, r, e)
    ''')


def test_setuid_binaries_do_nothing(pair):
    _, c, a = pair
    r = c.exec(a, "for f in /usr/bin/su /usr/bin/passwd /usr/bin/mount /usr/bin/newgrp; do [ -u $f ] && echo $f; done | head -1")
    target = r["stdout"].strip()
    c.exec(a, "cp /usr/bin/id /tmp/id; chmod 4755 /tmp/id")
    assert c.exec(a, ["/tmp/id", "-u"])["stdout"] == "1000\n"
    if target:
        r = python(c, a, f'''
        pid = os.fork()
        if pid == 0:
            os.execv({target!r}, [{target!r}, "--version"])
        os.waitpid(pid, 0)
        print("HELD" if os.getuid() == 1000 else "ROOT")
        ''')
        assert "HELD" in r["stdout"]


def test_fork_bomb_is_bounded_and_killed(pair):
    s, c, a = pair
    r = c.exec(a, "b() { b | b & }; b; sleep 30", timeout=3, http_timeout=60 * SLOW)
    assert r["timed_out"] or r["returncode"] is not None
    began = time.monotonic()
    other = Client(s)
    assert other.get("/healthz").status == 200
    c.terminate(a)
    assert time.monotonic() - began < 20 * SLOW
    replaced = c.lease()
    assert c.exec(replaced, "echo ok")["stdout"] == "ok\n"
    c.terminate(replaced)


def test_memory_is_bounded(pair):
    s, c, a = pair
    r = python(c, a, '''
    keep = []
    while True:
        keep.append(bytearray(16 << 20))
    ''', timeout=60)
    assert r["returncode"] != 0, r
    assert c.exec(a, "echo up")["stdout"] == "up\n"


def test_disk_is_bounded(pair):
    _, c, a = pair
    for place in ("/workspace", "/tmp", "/home/sandbox", "/dev/shm"):
        r = c.exec(a, f"head -c 200000000 /dev/zero > {place}/big; stat -c %s {place}/big; rm -f {place}/big", timeout=60)
        assert int(r["stdout"].split()[-1]) <= 64 << 20, (place, r)
    r = c.exec(a, "for d in / /usr /etc /var /run /dev /proc; do echo x > $d/new 2>/dev/null && echo $d; done")
    assert r["stdout"].strip() in ("", "/run"), r
    # Many empty files do not exhaust the host's memory either.
    r = c.exec(a, "i=0; while [ $i -lt 300000 ]; do : > /tmp/f$i || break; i=$((i+1)); done; echo $i", timeout=120, http_timeout=150)
    c.exec(a, "rm -rf /tmp/*", timeout=60)


def test_descriptors_in_flight_are_bounded(pair):
    """Unix sockets full of descriptors: the kernel's limit is per host uid, so a neighbour still gets its files."""
    s, c, a = pair
    c.write(a, "attack.py", (PRELUDE + textwrap.dedent('''
    import array, resource, time
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    out = open("stuffed", "w")
    kept = []
    try:
        while len(kept) < 2000:
            x, y = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
            x.setblocking(False)
            fds = array.array("i", [0] * 250)
            x.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
            kept.append((x, y))
    except OSError as e:
        pass
    out.write(str(len(kept))); out.flush()
    time.sleep(600)
    ''')).encode())
    assert c.exec_response(a, ["python3", "attack.py"], detach=True).status == 202
    wait_until(lambda: c.read(a, "stuffed").body.isdigit(), what="the descriptors to be under way")
    assert int(c.read(a, "stuffed").body) > 3  # 250 each
    b = c.lease()
    c.write(b, "f", b"x")
    assert c.read(b, "f").body == b"x"
    assert c.exec(b, "cat f")["stdout"] == "x"
    c.terminate(b)


def test_fifo_device_and_planted_links_through_the_api(pair):
    s, c, a = pair
    c.exec(a, "mkfifo f; ln -s /dev/zero z; ln -s /proc/self/mem m; ln -s /etc/shadow s; ln -s f lf; ln -s loop loop; mkdir -p d; ln -s / d/host")
    for path, codes in (("f", (409,)), ("z", (409,)), ("m", (403, 404, 409, 422)), ("s", (403, 404)), ("lf", (409,)), ("loop", (403,)),
                        ("d/host/etc/shadow", (403, 404)), ("/dev/tty", (403, 404, 409)), ("/dev/ptmx", (403, 409))):
        r = c.read(a, path, timeout=15 * SLOW)
        assert r.status in codes, (path, r)
    for path in ("f", "z", "lf"):
        r = c.write(a, path, b"x")
        assert r.status in (200, 201, 403, 409), (path, r)


def test_killing_the_agent_ends_only_this_lease(pair):
    s, c, a = pair
    if os.geteuid() != 0:
        pytest.skip("only root can find the agent from outside")
    x = c.lease()
    pids = host_pids(c, x)
    agent = next(p for p in pids if open(f"/proc/{p}/status").read().split("NSpid:")[1].split("\n")[0].split()[-1] == "1")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        run = pool.submit(Client(s).exec_response, x, "sleep 60")
        wait_until(lambda: c.get("/metrics").status in (200, 403) and not run.done())
        os.kill(agent, 9)
        r = run.result()
    assert r.status == 410 and r.code in ("sandbox_lost", "lease_gone"), r
    wait_until(lambda: c.get(f"/leases/{x}").json()["state"] == "lost")
    assert c.get(f"/leases/{x}").json()["reason"]
    assert c.exec_response(x, "true").status == 410
    assert c.delete(f"/leases/{x}").status == 200


def test_server_secrets_are_not_inside(tmp_path):
    canary = "canary-5f2d9c"
    for kind in server_kinds():
        with Server(env={"E2B_API_KEY": canary, "SANDGATE_LOG_LEVEL": "debug", "MODAL_TOKEN_SECRET": canary}, user=account(kind)) as s:
            c = s.client()
            id = c.lease()
            r = c.exec(id, "env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'; ps auxe 2>/dev/null; cat /proc/*/cmdline | tr '\\0' ' '")
            assert canary not in r["stdout"] and "SANDGATE" not in r["stdout"] and "E2B_API_KEY" not in r["stdout"]
            texts = [c.get(p).body.decode() for p in ("/backends", "/metrics", "/version", f"/leases/{id}", "/audit", "/slots/default")]
            texts.append(c.post("/select", {}).body.decode())
            assert all(canary not in t for t in texts)
            assert "E2B_API_KEY" in texts[0]
            c.terminate(id)
            s.stop()
            assert canary not in s.log_text()
            for root, _, files in os.walk(s.state):
                for f in files:
                    if os.path.isfile(os.path.join(root, f)):
                        with open(os.path.join(root, f), "rb") as g:
                            assert canary.encode() not in g.read()
