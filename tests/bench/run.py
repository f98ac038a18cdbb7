#!/usr/bin/python3
"""./dev bench [--quick | --full] [--realtime] [--json FILE] [NAME...]: what sandgate costs, as ratios.

Absolute times say more about a machine and its neighbours than about a server. So each figure is measured in rounds: ours, then its
baseline, in the same second, with the same client; the figure is the median of the rounds' ratios. Everything is loopback, each server
and nginx started here is stopped here, nothing is left behind. Exit status 1 when a target is missed.
"""
import argparse
import datetime
import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "api"))
import clouds  # noqa: E402
import containers  # noqa: E402
from harness import ROOT, Server, processes_below, wait_until  # noqa: E402

BUILD = os.environ.get("SANDGATE_BUILD", os.path.join(ROOT, "build"))
MIB = 1024 * 1024


class Row:
    """One line of the table. ok is None when the figure has no target."""

    def __init__(self, figure, ours, baseline="", ratio=None, target="", ok=None, ratios=()):
        self.figure, self.ours, self.baseline, self.ratio = figure, ours, baseline, ratio
        self.target, self.ok, self.ratios = target, ok, list(ratios)


def compared(figure, rounds, show, target=None, at_most=False):
    """rounds: (ours, baseline) pairs. The ratio is ours / baseline, its median over the rounds."""
    ratios = [ours / base for ours, base in rounds]
    ratio = statistics.median(ratios)
    ok = None if target is None else (ratio <= target if at_most else ratio >= target)
    text = "" if target is None else f"{'<=' if at_most else '>='} {target:g}x"
    ours, base = (statistics.median(v) for v in zip(*rounds))
    return Row(figure, show(ours), show(base), ratio, text, ok, ratios)


def bounded(figure, value, limit, show, at_most=True, baseline=""):
    ok = value <= limit if at_most else value >= limit
    return Row(figure, show(value), baseline, None, f"{'<=' if at_most else '>='} {show(limit)}", ok)


def us(v):
    return f"{v / 1000:.2f} ms" if v >= 1000 else f"{v:.0f} us"


def per_s(v):
    return f"{v:.0f}/s"


def gib_s(v):
    return f"{v / 1024 ** 3:.2f} GiB/s"


def mib(v):
    return f"{v:.1f} MB"


class Bench:
    def __init__(self, quick, full=False):
        self.quick, self.full = quick, full
        self.rounds = 3 if quick else 5
        self.dir = tempfile.mkdtemp(prefix="sandgate-bench-")
        self.processes = []

    def clean(self):
        for p in self.processes:
            if p.poll() is None:
                p.terminate()
                p.wait(10)
        shutil.rmtree(self.dir, ignore_errors=True)

    def ms(self, full, quick):
        return str(quick if self.quick else full)

    def tool(self, *args, timeout=180):
        r = subprocess.run([os.path.join(BUILD, "sgbench"), *map(str, args)], capture_output=True, text=True, timeout=timeout)
        if r.returncode != 0:
            raise RuntimeError(f"sgbench {' '.join(map(str, args))}: {r.stderr.strip()}")
        return json.loads(r.stdout)

    def interleave(self, ours, base):
        """Rounds of (ours, base); the first of each warms up and is not counted. Who goes first changes from round to round."""
        ours(), base()
        out = []
        for i in range(self.rounds):
            if i % 2:
                b = base()
                out.append((ours(), b))
            else:
                a = ours()
                out.append((a, base()))
        return out

    def request_file(self, name, method, target, body=b""):
        path = os.path.join(self.dir, name)
        head = f"{method} {target} HTTP/1.1\r\nHost: bench\r\n"
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        with open(path, "wb") as f:
            f.write(head.encode() + b"\r\n" + body)
        return path

    def nginx(self, locations, extra=""):
        """One worker, no access log, keep-alive without end. Returns the port."""
        port = free_port()
        conf = os.path.join(self.dir, f"nginx-{port}.conf")
        temp = "".join(f"{kind}_temp_path {self.dir}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        with open(conf, "w") as f:
            f.write(f"worker_processes 1; daemon off; pid {self.dir}/nginx-{port}.pid; error_log {self.dir}/nginx.log;\n"
                    f"events {{ worker_connections 4096; }}\n"
                    f"http {{ access_log off; keepalive_requests 1000000000; client_body_buffer_size 64k; {temp} {extra}\n"
                    f"server {{ listen 127.0.0.1:{port}; {locations} }} }}\n")
        nginx = shutil.which("nginx") or "/usr/sbin/nginx"
        self.processes.append(subprocess.Popen([nginx, "-c", conf, "-p", self.dir, "-e", f"{self.dir}/nginx.log"], stderr=subprocess.DEVNULL))
        wait_until(lambda: listening(port), what="nginx")
        return port


def free_port():
    import socket
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def listening(port):
    import socket
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    except OSError:
        return False


def server(slots, **local):
    config = {"local_bwrap": dict(local, size=slots)}
    return Server(config=config, binary=os.path.join(BUILD, "sandgate"))


def leases(s, n):
    s.wait_slots(n)
    c = s.client()
    ids = [c.lease(timeout_sec=3600) for _ in range(n)]
    return c, ids


# ---- the figures ----

def exec_warm(b):
    """One caller, one lease, keep-alive: the shell and nothing else."""
    n = 60 if b.quick else 300
    with server(1) as s:
        _, (lease,) = leases(s, 1)
        f = b.request_file("exec", "POST", f"/leases/{lease}/exec", b'{"command":"true"}')
        rounds = b.interleave(lambda: b.tool("http", s.port, 1, 60000, n, "sleep", f)["latency_p50_us"],
                              lambda: b.tool("spawn", 1, 60000, n, "/bin/sh", "-c", "true")["latency_p50_us"])
    return [compared("warm exec of `true`, p50 | bare posix_spawn", rounds, us, 1.5, at_most=True)]


def exec_rate(b):
    t = b.ms(2000, 600)
    with server(8) as s:
        _, ids = leases(s, 8)
        files = [b.request_file(f"exec{i}", "POST", f"/leases/{x}/exec", b'{"command":"true"}') for i, x in enumerate(ids)]
        rounds = b.interleave(lambda: b.tool("http", s.port, 8, t, 0, "sleep", *files)["per_s"],
                              lambda: b.tool("spawn", 8, t, 0, "/bin/sh", "-c", "true")["per_s"])
    return [compared("execs, 8 callers, 8 leases | 8 threads of spawns", rounds, per_s, 0.6)]


SELECT = {
    "manifest": {"root": "/workspace", "repo": {"url": "https://git.example.com/team/project.git", "ref": "main"},
                 "env": {"CI": "1", "LANG": "C.UTF-8"}, "timeout_seconds": 1800},
    "policy": {"allow_paid": True, "required_capabilities": ["file_rw", "exec", "network", "public_url"],
               "precedence": ["local_bwrap", "docker", "e2b", "daytona", "modal"]},
    "environment": {"available_credentials": ["E2B_API_KEY", "DAYTONA_API_KEY", "MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET"],
                    "budget_remaining_usd": 12.5},
}


def select(b):
    """A realistic body against the registered backends; nginx answers the same bytes from its configuration."""
    t = b.ms(1500, 500)
    body = json.dumps(SELECT).encode()
    with server(1) as s:
        r = s.client().post("/select", SELECT)
        if r.status not in (200, 422):
            raise RuntimeError(f"/select: {r}")
        if r.status == 422:
            SELECT["policy"]["required_capabilities"] = ["file_rw", "exec", "public_url"]
            body = json.dumps(SELECT).encode()
            r = s.client().post("/select", SELECT)
        names = [f"$p{i}" for i in range(0, len(r.body), 2000)]
        parts = "".join(f"set {n} '{'x' * min(2000, len(r.body) - 2000 * i)}'; " for i, n in enumerate(names))
        port = b.nginx(f"location / {{ default_type application/json; {parts} return 200 {''.join(names)}; }}")
        f = b.request_file("select", "POST", "/select", body)
        rounds = b.interleave(lambda: b.tool("http", s.port, 32, t, 0, "spin", f)["per_s"],
                              lambda: b.tool("http", port, 32, t, 0, "spin", f)["per_s"])
    return [compared(f"POST /select, {len(body)} B in, {len(r.body)} B out | nginx return", rounds, per_s, 0.5)]


def pairs_paced(b):
    count = 100 if b.quick else 500
    with server(4) as s:
        s.wait_slots(4)
        sustained = b.tool("pairs", s.port, 4, 0, b.ms(3000, 1500), 0, 0)["per_s"]
        rate = max(1, int(sustained / 2))
        parts = []
        for _ in range(b.rounds):
            s.wait_slots(4)
            f1 = b.tool("fsync", s.state, 4096, 40)
            p = b.tool("pairs", s.port, 4, rate, 60000, count // b.rounds, 0)
            f2 = b.tool("fsync", s.state, 4096, 40)
            parts.append((p, (f1["fsync_p50_us"] + f2["fsync_p50_us"]) / 2))
    beyond = statistics.median(p["pair_p50_us"] - fsync for p, fsync in parts)
    med = {k: statistics.median(p[k] for p, _ in parts) for k in parts[0][0]}
    fsync = statistics.median(f for _, f in parts)
    return [bounded(f"create+terminate at {rate}/s, p50 beyond one fsync", beyond, 2000, us, baseline=f"fsync {us(fsync)}"),
            Row("  p50, p99", us(med["pair_p50_us"]), us(med["pair_p99_us"])),
            Row("  create p50, terminate p50", us(med["create_p50_us"]), us(med["terminate_p50_us"])),
            Row("  unpaced, 4 callers, pool of 4", per_s(sustained))]


BWRAP = ["bwrap", "--unshare-all", "--ro-bind", "/usr", "/usr", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64",
         "--symlink", "usr/bin", "/bin", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/workspace", "/bin/true"]


def cpu_ms(pid):
    """Processor time of a process and of all that it has waited for, and likewise of each of its children: a server, its spawner, and every
    sandbox that has ended."""
    total = 0
    for p in [pid, *(c.pid for c in processes_below(pid) if c.parent == pid)]:
        with open(f"/proc/{p}/stat") as f:
            text = f.read()
        total += sum(map(int, text[text.rindex(")") + 2:].split()[11:15]))
    return total * 1000 / os.sysconf("SC_CLK_TCK")


def bare_sandboxes(b):
    """Bare sandboxes per second, as many at a time as there are callers, and the processor time of each in ms."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    r = b.tool("spawn", 8, 1000, 0, *BWRAP)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return r["per_s"], 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / r["n"]


def pairs_on(b, disk, target):
    with server(8, disk=disk) as s:
        s.wait_slots(8)
        bare = [bare_sandboxes(b)]
        used = cpu_ms(s.pid())
        p = b.tool("pairs", s.port, 8, 0, b.ms(30000, 4000), 0, 16)
        used = cpu_ms(s.pid()) - used
        bare.append(bare_sandboxes(b))
    rate, cpu = (statistics.mean(v) for v in zip(*bare))
    figure = f"create+terminate, {p['seconds']:.0f} s, 8 callers, 8 slots on {disk}"
    row = bounded(figure, p["per_s"], target, per_s, at_most=False) if target else Row(figure, per_s(p["per_s"]))
    row.baseline, row.ratio = f"{per_s(rate)} bare bwrap", p["per_s"] / rate
    return [row, Row("  processor time of a pair", us(1000 * used / p["n"]), us(1000 * cpu), used / p["n"] / cpu),
            Row("  p50, p99", us(p["pair_p50_us"]), us(p["pair_p99_us"])),
            Row("  leases, each a sandbox of its own; of them looked into", str(p["n"]), str(p["looked_at"]))]


def pairs_rate(b):
    """The baseline is what builds and ends a bare sandbox of the same kind: bwrap itself, as many at a time."""
    return pairs_on(b, "tmpfs", 200) + pairs_on(b, "dir", None)


def rebuilds(log):
    """us from the release of each slot to its next sandbox, of the server's own log."""
    at, out = {}, []
    for e in log:
        when = datetime.datetime.fromisoformat(e["time"].replace("Z", "+00:00")).timestamp() * 1e6
        if e["event"] == "slot_released":
            at[e["slot"]] = when
        elif e["event"] == "slot_built" and e["slot"] in at:
            out.append(when - at.pop(e["slot"]))
    return out


def rebuild(b):
    """Wipe and rebuild of a slot, at a rate that leaves it the machine; one bwrap by itself is the baseline."""
    out = []
    for disk, target in (("tmpfs", 8000), ("dir", None)):
        with server(4, disk=disk) as s:
            s.stop()
            s.env["SANDGATE_LOG_LEVEL"] = "debug"
            s.start()
            s.wait_slots(4)
            bare = b.tool("spawn", 1, 1000, 0, *BWRAP)["latency_p50_us"]
            b.tool("pairs", s.port, 2, 25, 60000, 75 if b.quick else 300, 0)
            s.wait_slots(4)
            times = sorted(rebuilds(s.log_events()))
        p50, figure = statistics.median(times), f"wipe and rebuild of a slot on {disk}, p50 of {len(times)}"
        row = bounded(figure, p50, target, us) if target else Row(figure, us(p50))
        row.baseline, row.ratio = f"{us(bare)} bare bwrap", p50 / bare
        out += [row, Row("  p90", us(times[len(times) * 9 // 10]))]
    return out


def peak_growth(s, before, run):
    """What run() gives, and by how many MB the server's RSS was above `before` at its highest."""
    with open(f"/proc/{s.pid()}/clear_refs", "w") as f:
        f.write("5")
    result = run()
    with open(f"/proc/{s.pid()}/status") as f:
        peak = next(int(line.split()[1]) for line in f if line.startswith("VmHWM:"))
    return result, (peak - before) / 1024


def files_large(b):
    """One file that is larger than memory likes, to and from `disk: dir`: what the server takes for it must not depend on its size."""
    size = (10 if b.full else 1) * 1024 * MIB
    name = f"{size // MIB // 1024} GiB on disk: dir"
    with server(1, disk="dir") as s:
        free = os.statvfs(s.state).f_bavail * os.statvfs(s.state).f_frsize
        if free < size + size // 4:
            return [Row(f"{name}: skipped, {s.state} has {free // MIB} MiB free", "-")]
        c, (lease,) = leases(s, 1)
        c.write(lease, "small", b"x" * MIB)
        c.read(lease, "small")
        before = s.rss_kib()
        target = f"/leases/{lease}/files?path=big"
        up, more_up = peak_growth(s, before, lambda: b.tool("bulk", "put", s.port, target, size, timeout=1800)["per_s"])
        down, more_down = peak_growth(s, before, lambda: b.tool("bulk", "get", s.port, target, timeout=1800)["per_s"])
    return [bounded(f"RSS for {name}, up", more_up, 16, mib, baseline=f"{before / 1024:.1f} MB before"),
            bounded(f"RSS for {name}, down", more_down, 16, mib, baseline=f"{before / 1024:.1f} MB before"),
            Row("  up, down", gib_s(up), gib_s(down))]


def files(b):
    """256 MiB to and from a file on a tmpfs. The other end is this client through a socket, or through a pipe with `cat`."""
    size = (64 if b.quick else 256) * MIB
    beside = tempfile.mkdtemp(prefix="sandgate-bench-", dir="/dev/shm")
    path = os.path.join(beside, "file")
    try:
        with server(1) as s:
            _, (lease,) = leases(s, 1)
            target = f"/leases/{lease}/files?path=big"
            put = b.interleave(lambda: b.tool("bulk", "put", s.port, target, size)["per_s"],
                               lambda: b.tool("bulk", "catput", path, size)["per_s"])
            get = b.interleave(lambda: b.tool("bulk", "get", s.port, target)["per_s"],
                               lambda: b.tool("bulk", "catget", path)["per_s"])
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return [compared(f"GET of a file of {size // MIB} MiB | cat", get, gib_s, 0.5),
            compared(f"PUT of a file of {size // MIB} MiB | cat", put, gib_s)]


def stream(b):
    """Zeros that `dd` writes. The third way is what any server between a command and its caller has to do, without a thought spent on
    it: the ceiling for the first. Then how soon what a command says is here."""
    size = (256 if b.quick else 1024) * MIB
    n = 60 if b.quick else 300
    with server(1) as s:
        _, (lease,) = leases(s, 1)
        rounds, of_ceiling = [], []
        for i in range(b.rounds + 1):
            ours = b.tool("stream", "exec", s.port, lease, size)["per_s"]
            pipe = b.tool("stream", "pipe", size)["per_s"]
            tcp = b.tool("stream", "tcp", size)["per_s"]
            if i > 0:  # the first warms up
                rounds.append((ours, pipe))
                of_ceiling.append((ours, tcp))
        f = b.request_file("hi", "POST", f"/leases/{lease}/exec", b'{"command":"echo hi"}')
        first = b.interleave(lambda: b.tool("stream", "first", s.port, lease, n)["output_p50_us"],
                             lambda: b.tool("http", s.port, 1, 60000, n, "sleep", f)["latency_p50_us"])
    return [compared(f"{size // MIB} MiB of zeros as events | through a pipe", rounds, gib_s, 0.6),
            compared("  the same | pipe, process, TCP with 4/3 of the bytes", of_ceiling, gib_s),
            compared("first output of a stream, p50 | a synchronous exec", first, us, 1.3, at_most=True)]


def read_lines(socks, marker):
    """All of them at once, until each has had the marker."""
    import selectors
    tails = {k: b"" for k in socks}
    with selectors.DefaultSelector() as sel:
        for k in socks:
            sel.register(k, selectors.EVENT_READ)
        while sel.get_map():
            ready = sel.select(60)
            if not ready:
                raise RuntimeError("followers wait for ever")
            for key, _ in ready:
                data = key.fileobj.recv(65536)
                tails[key.fileobj] = (tails[key.fileobj] + data)[-4096 - len(data):]
                if not data:
                    raise RuntimeError("a follower was cut")
                if marker in tails[key.fileobj]:
                    sel.unregister(key.fileobj)


def followers(b):
    """Of four detached commands; every one gets every line, a thousand at a time."""
    n, slots = (100 if b.quick else 500), 4
    lines = "read x; for i in $(seq 1000); do echo line $i; done; echo; echo wave=$((7+%d)); "
    command = "".join(lines % w for w in range(3)) + "read x"
    with server(slots) as s:
        c, ids = leases(s, slots)
        for x in ids:
            c.post(f"/leases/{x}/exec", {"command": command, "detach": True, "exec_id": "all"})
        before, threads = s.rss_kib(), s.threads()
        socks, seen = [], []
        try:
            for i in range(n):
                k = s.connect()
                k.sendall(b"GET /leases/%s/exec/all/output?follow=1 HTTP/1.1\r\nHost: b\r\n\r\n" % ids[i % slots].encode())
                socks.append(k)
            read_lines(socks, b'"start"')
            for w in range(3):
                for x in ids:
                    c.post(f"/leases/{x}/exec/all/stdin", b"go\n")
                read_lines(socks, b"wave=%d" % (7 + w))
                seen.append(s.rss_kib() / 1024)
            most = s.threads()
        finally:
            for k in socks:
                k.close()
    return [bounded(f"threads with {n} followers", most, 32, str, baseline=f"{threads} before"),
            bounded("  RSS after 3,000 lines for each, beyond after 1,000", seen[2] - seen[0], 2, mib, baseline=f"{before / 1024:.1f} MB alone"),
            Row("  RSS for them", mib(seen[0] - before / 1024))]


# What sandgate does for every relayed request, in nginx's words: it says how it was reached, gives it an id, shields the origin, writes a line of JSON.
GATEWAY = ("proxy_set_header X-Request-Id $request_id; proxy_set_header X-Forwarded-For $remote_addr; proxy_set_header X-Forwarded-Proto $scheme; "
           "proxy_set_header X-Forwarded-Host $host; proxy_set_header X-Forwarded-Prefix /; "
           "add_header X-Request-Id $request_id; add_header Content-Security-Policy sandbox;")
LINE = ("""log_format line escape=json '{"time":"$time_iso8601","level":"info","event":"request","method":"$request_method","path":"$uri","status":$status,"""
        """"duration":$request_time,"bytes_in":$request_length,"bytes_out":$bytes_sent,"request_id":"$request_id","peer":"$remote_addr"}';""")


def proxy_baselines(b, up):
    """nginx that does the same for a request, and nginx that does nothing but relay it; one worker each, as sandgate has one HTTP thread."""
    relay = "proxy_pass http://up; proxy_http_version 1.1; proxy_set_header Connection ''; proxy_max_temp_file_size 0;"
    kept = f"upstream up {{ server 127.0.0.1:{up}; keepalive 64; keepalive_requests 1000000000; }}"
    return (b.nginx(f"access_log {b.dir}/access.log line; location / {{ {relay} {GATEWAY} }}", LINE + kept), b.nginx(f"location / {{ {relay} }}", kept))


def proxy(b):
    """The same upstream twice: in a sandbox behind sandgate, on the host's loopback behind nginx."""
    t = b.ms(1500, 500)
    up = free_port()
    program = os.path.join(BUILD, "sgbench-upstream")
    b.processes.append(subprocess.Popen([program, str(up)], stdout=subprocess.DEVNULL))
    port, bare = proxy_baselines(b, up)
    with server(1) as s:
        c, (lease,) = leases(s, 1)
        with open(program, "rb") as f:
            r = c.write(lease, "upstream", f.read(), mode="755")
        if r.status not in (200, 201):
            raise RuntimeError(f"upload: {r}")
        c.exec(lease, "./upstream 8000 >ready 2>&1 & until grep -q ready ready; do sleep 0.02; done")
        prefix = f"/leases/{lease}/proxy/8000"
        rows = []
        for n in (1, 32):
            ours = b.request_file("small-ours", "GET", prefix + "/small")
            theirs = b.request_file("small-nginx", "GET", "/small")
            for what, other, target in (("", port, 0.7), (" that only relays", bare, None)):
                rounds = b.interleave(lambda: b.tool("http", s.port, n, t, 0, "spin", ours)["per_s"],
                                      lambda: b.tool("http", other, n, t, 0, "spin", theirs)["per_s"])
                rows.append(compared(f"proxy, small, {n} connection{'s' * (n > 1)} | nginx{what}", rounds, per_s, target))
        big = b.interleave(lambda: b.tool("bulk", "get", s.port, prefix + "/big")["per_s"],
                           lambda: b.tool("bulk", "get", port, "/big")["per_s"])
        rows.append(compared("proxy, a body of 100 MB | nginx", big, gib_s, 0.8))
    return rows


def idle(b):
    """2,000 connections that have had one answer each and say nothing more."""
    n = 500 if b.quick else 2000
    with server(1) as s:
        s.client().get("/healthz")
        before, threads = s.rss_kib(), s.threads()
        socks = []
        try:
            for _ in range(n):
                c = s.connect()
                c.sendall(b"GET /healthz HTTP/1.1\r\nHost: b\r\n\r\n")
                socks.append(c)
                if not c.recv(4096).startswith(b"HTTP/1.1 200"):
                    raise RuntimeError("no answer")
            more, threads_then = (s.rss_kib() - before) / 1024, s.threads()
        finally:
            for c in socks:
                c.close()
    return [bounded(f"RSS for {n} idle connections", more, 64, mib, baseline=f"{before / 1024:.1f} MB before"),
            Row("  threads", str(threads_then), f"{threads} before")]


def sleepers(b):
    """500 commands that sleep, each waited for by its caller."""
    n, slots = (100 if b.quick else 500), 8
    with server(slots) as s:
        c, ids = leases(s, slots)
        c.exec(ids[0], "true")
        before, threads = s.rss_kib(), s.threads()
        socks = []
        try:
            for i in range(n):
                k = s.connect()
                body = b'{"command":["sleep","600"]}'
                k.sendall(b"POST /leases/%s/exec HTTP/1.1\r\nHost: b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
                          % (ids[i % slots].encode(), len(body), body))
                socks.append(k)

            def all_run():
                running = sum(int(c.exec(x, "ps -e -o comm= 2>/dev/null | grep -c '^sleep$' || true")["stdout"]) for x in ids)
                return running >= n
            wait_until(all_run, 60, f"{n} sleeping commands")
            most, rss = s.threads(), (s.rss_kib() - before) / 1024
        finally:
            for k in socks:
                k.close()
    return [bounded(f"threads with {n} sleeping execs", most, 32, str, baseline=f"{threads} before"),
            Row("  RSS for them", mib(rss), f"{before / 1024:.1f} MB before")]


def endurance(b):
    """What 20,000 execs leave behind, compared with 2,000."""
    first, last = (500, 3000) if b.quick else (2000, 20000)
    with server(8) as s:
        c, ids = leases(s, 8)
        files = [b.request_file(f"exec{i}", "POST", f"/leases/{x}/exec", b'{"command":"true"}') for i, x in enumerate(ids)]
        c.get("/healthz")

        def after(count):
            t = b.tool("http", s.port, 8, 170000, count, "sleep", *files)
            if t["n"] != count:
                raise RuntimeError(f"{t['n']} of {count} execs in time")
            fds = s.descriptors()
            for _ in range(40):  # the last connections are closing
                time.sleep(0.05)
                fds, was = s.descriptors(), fds
                if fds == was:
                    break
            return s.rss_kib() / 1024, fds
        rss1, fds1 = after(first)
        rss2, fds2 = after(last - first)
    return [bounded(f"RSS after {last} execs, beyond after {first}", rss2 - rss1, 2, mib, baseline=f"{rss1:.1f} MB"),
            bounded(f"descriptors after {last} execs, beyond", fds2 - fds1, 0, str, baseline=str(fds1))]


def docker(b):
    why = containers.why_not()
    if why:
        print(f"docker: not measured: {why}", file=sys.stderr)
        return []
    return containers.containers(b, compared, us, os.path.join(BUILD, "sandgate"))


def e2b(b):
    return clouds.clouds(b, compared, us, Row, os.path.join(BUILD, "sandgate"))


FIGURES = {"exec": exec_warm, "exec-rate": exec_rate, "select": select, "pairs": pairs_paced, "pairs-rate": pairs_rate, "rebuild": rebuild, "files": files,
           "files-large": files_large, "stream": stream, "followers": followers, "proxy": proxy, "idle": idle, "sleepers": sleepers, "endurance": endurance,
           "docker": docker, "e2b": e2b}


def line(r):
    """The ratio's extremes over the rounds say how quiet the machine was."""
    ratio = "" if r.ratio is None else f"{r.ratio:.2f}x"
    spread = f"{min(r.ratios):.2f}-{max(r.ratios):.2f}" if r.ratios else ""
    ok = {None: "", True: "ok", False: "MISS"}[r.ok]
    return f"{r.figure:<58} {r.ours:>12} {r.baseline:>18} {ratio:>7} {spread:>10} {r.target:>11} {ok}".rstrip()


def heading(realtime):
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} processors, load {load:.1f}, Linux {os.uname().release}")
    if load > os.cpu_count() / 2 and not realtime:
        print("Others are busy on this machine: figures that need many processes to take turns look worse than they are (--realtime).")
    print(f"{'figure':<58} {'ours':>12} {'baseline':>18} {'ratio':>7} {'from-to':>10} {'target':>11}", flush=True)


def main():
    parser = argparse.ArgumentParser(prog="./dev bench", description="ratios against baselines measured in the same run")
    parser.add_argument("--quick", action="store_true", help="shorter and rougher")
    parser.add_argument("--full", action="store_true", help="files-large with 10 GiB, where the disk has room for that, instead of 1")
    parser.add_argument("--realtime", action="store_true", help="as root: everything measured runs at real-time priority, so that "
                        "others on the machine do not count (and hardly run)")
    parser.add_argument("--json", metavar="FILE", help="also write the rows there")
    parser.add_argument("names", nargs="*", metavar="NAME", help=" ".join(FIGURES))
    args = parser.parse_args()
    unknown = [n for n in args.names if n not in FIGURES]
    if unknown:
        parser.error(f"no figure {unknown[0]}; there are {' '.join(FIGURES)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
    if args.realtime:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(10))
    heading(args.realtime)
    bench, rows, failed = Bench(args.quick, args.full), [], False
    try:
        for name in args.names or FIGURES:
            try:
                made = FIGURES[name](bench)
            except (RuntimeError, AssertionError, OSError, subprocess.TimeoutExpired) as e:
                print(f"{name}: {e}", file=sys.stderr)
                failed = True
                continue
            for r in made:
                print(line(r), flush=True)
            rows += made
    finally:
        bench.clean()
    if args.json:
        with open(args.json, "w") as f:
            json.dump([vars(r) for r in rows], f, indent=1)
    missed = [r.figure for r in rows if r.ok is False]
    print(f"\n{len(missed)} of {sum(r.ok is not None for r in rows)} targets missed")
    return 1 if missed or failed else 0


if __name__ == "__main__":
    sys.exit(main())
