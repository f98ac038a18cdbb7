"""The figures of the backend `docker`, against a bare spawn, the engine's own exec and `docker run`, on an engine that is started here."""
import contextlib
import os
import statistics
import subprocess
import time

import engine as engines
from harness import Server

POOL = 4  # warm containers


class AsInstalled(engines.KIND):
    environment = None  # the tests' are hurried


@contextlib.contextmanager
def serving(binary, e, **docker):
    with Server(config={"backends": {"enabled": ["docker"]}, "docker": dict({"host": e.host, "image": engines.IMAGE, "pull": False}, **docker)},
                binary=binary) as s:
        yield s


def timed(run):
    begun = time.perf_counter()
    run()
    return (time.perf_counter() - begun) * 1e6


def engine_exec(e, name):
    """One command by the engine's own calls: made, started, its output read to the end, its exit code asked for."""
    status, made = e.call("POST", f"/containers/{name}/exec", {"Cmd": ["/bin/sh", "-c", "true"], "AttachStdout": True, "AttachStderr": True})
    assert status == 201, made
    assert e.call("POST", f"/exec/{made['Id']}/start", {"Detach": False, "Tty": False})[0] == 200
    assert e.call("GET", f"/exec/{made['Id']}/json")[1]["ExitCode"] == 0


def docker_run(e):
    subprocess.run(["docker", "-H", e.host, "run", "--rm", "--network", "none", engines.IMAGE, "/bin/sh", "-c", "true"], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def first_exec(s, made):
    """A new lease and its first command; the lease's end is nobody's business here."""
    c = s.client()
    lease = c.lease()
    made.append(lease)
    assert c.exec(lease, "true")["returncode"] == 0
    c.close()


def median_of(run, n):
    return statistics.median(timed(run) for _ in range(n))


def containers(b, compared, us, binary):
    rows = []
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))  # the kernel lets no process at real-time priority into a container's groups
    with engines.engine(kind=AsInstalled) as e:
        with serving(binary, e) as s:
            lease = s.client().lease(timeout_sec=3600)
            n = 60 if b.quick else 300
            f = b.request_file("exec", "POST", f"/leases/{lease}/exec", b'{"command":"true"}')
            ours = lambda: b.tool("http", s.port, 1, 60000, n, "sleep", f)["latency_p50_us"]  # noqa: E731
            rounds = b.interleave(ours, lambda: b.tool("spawn", 1, 60000, n, "/bin/sh", "-c", "true")["latency_p50_us"])
            rows.append(compared("warm exec in a container, p50 | bare posix_spawn", rounds, us, 1.8, at_most=True))
            rounds = b.interleave(lambda: median_of(lambda: engine_exec(e, "sandgate-" + lease), 5), ours)
            rows.append(compared("the engine's own exec, p50 | ours", rounds, us, 20))
            made = []
            rounds = b.interleave(lambda: median_of(lambda: docker_run(e), 3), lambda: median_of(lambda: first_exec(s, made), 3))
            rows.append(compared("docker run, p50 | create and first exec, cold", rounds, us, 1.3))
            for lease in made:
                s.client().terminate(lease)
        with serving(binary, e, warm=POOL) as s:
            def from_warm():
                s.wait_warm(POOL, 60)
                made = []
                took = timed(lambda: first_exec(s, made))
                s.client().terminate(made[0])
                return took

            rounds = b.interleave(lambda: median_of(lambda: docker_run(e), 3), lambda: statistics.median(from_warm() for _ in range(3)))
            rows.append(compared(f"docker run, p50 | create and first exec, {POOL} warm", rounds, us, 20))
    return rows


def why_not():
    if engines.why_not():
        return engines.why_not()
    return None if os.path.exists("/usr/bin/docker") else "there is no docker client to compare with"
