"""What of the network containers reach: in a network of the tests' own, with an engine of its own in it, and an Internet behind it."""
import os
import signal
import socket
import threading

import pytest

import engine as engines
from harness import Server, wait_until
from test_docker_far import relay_of
from world import HOST, NAMES, PRIVATE, SITE, World, WorldServer

why = engines.why_not()
pytestmark = pytest.mark.skipif(why is not None, reason=str(why))

PORT = 61080
NETWORK, SUBNET = "outside", "172.31.77.0/24"
RULES = ["site.example:8080", "inner.example:8080"]


@pytest.fixture(scope="module")
def world():
    with World() as w:
        w.names.update({"site.example": [SITE], "inner.example": [PRIVATE]})
        w.hits = []
        w.inside(lambda: w.run(f"ip route add {SUBNET} via {HOST}"))
        s = w.socket(socket.SOCK_STREAM, ("0.0.0.0", 8080))
        threading.Thread(target=accept, args=(w, s), daemon=True).start()
        yield w


def accept(w, listener):
    while True:
        try:
            s, who = listener.accept()
        except OSError:
            return
        w.hits.append(who[0])
        threading.Thread(target=answer, args=(s,), daemon=True).start()


def answer(s):
    with s:
        data = b""
        while b"\r\n\r\n" not in data:
            b = s.recv(65536)
            if not b:
                return
            data += b
        s.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 9\r\n\r\ninternet\n")


@pytest.fixture(scope="module")
def engine(world):
    with engines.engine() as e:
        status, r = e.call("POST", "/networks/create", {"Name": NETWORK, "Driver": "bridge", "IPAM": {"Config": [{"Subnet": SUBNET}]}})
        assert status == 201, r
        with open("/proc/sys/net/ipv4/ip_forward", "w") as f:
            f.write("1")
        yield e


def serve(world, e, **docker):
    return WorldServer(world, {"backends": {"enabled": ["docker"]}, "metrics": {"public": True},
                               "docker": dict({"host": e.host, "image": engines.IMAGE, "pull": False, "network": NETWORK}, **docker)}, tun=False)


@pytest.fixture(scope="module", params=["share", "engine"])
def way(request):
    """How agents are reached: through a directory, or through the engine alone."""
    return request.param


@pytest.fixture(scope="module")
def server(world, engine, way):
    with serve(world, engine, egress="open", egress_allow=RULES, agent=way) as s:
        yield s


def ask(c, lease, target, address=SITE, port=8080):
    """What whoever listens there answers to a GET of target (busybox's wget cannot do without name services); "": nobody does."""
    r = c.exec(lease, rf"printf 'GET {target} HTTP/1.0\r\n\r\n' | nc -w 5 {address} {port}", timeout=30)
    return r["stdout"] + r["stderr"]


def through(c, lease, target):
    return ask(c, lease, f"http://{target}/", "127.0.0.1", PORT)


def test_each_class_reaches_what_it_says(world, engine, server):
    c = server.client()
    leases = {e: c.lease(network_egress_class=e) for e in ("none", "loopback", "restricted", "open")}
    for e, lease in leases.items():
        l = c.get(f"/leases/{lease}").json()
        assert l["metadata"]["egress"] == e and ("network" in l["capabilities"]) == (e in ("restricted", "open")), l
        inspect = engine.inspect("sandgate-" + lease)
        assert set(inspect["NetworkSettings"]["Networks"] or {}) - {"none"} == ({NETWORK} if e == "open" else set()), inspect["NetworkSettings"]
        devices = c.exec(lease, "ls /sys/class/net")["stdout"].split()
        assert devices == (["eth0", "lo"] if e == "open" else ["lo"]), devices
        assert ("HTTP_PROXY" in c.exec(lease, "env")["stdout"]) == (e == "restricted")
    assert "internet" in ask(c, leases["open"], "/") and (world.hits[-1].startswith("172.31.77.") or world.hits[-1] == HOST), world.hits
    before = len(world.hits)
    for e in ("none", "loopback", "restricted"):
        assert "unreachable" in ask(c, leases[e], "/"), e
    assert len(world.hits) == before
    assert "internet" in ask(c, leases["open"], "/", PRIVATE)  # private networks, too
    for lease in leases.values():
        c.terminate(lease)


def refusals(server, lease):
    return [e for e in server.log_events() if e["event"] == "egress_refused" and e["lease_id"] == lease]


def test_a_restricted_one_has_its_list_and_nothing_else(world, server):
    c = server.client()
    lease = c.lease(network_egress_class="restricted")
    assert "internet" in through(c, lease, "site.example:8080") and world.hits[-1] == HOST, world.hits
    before = len(world.hits)
    for target, word in ((SITE + ":8080", "host_not_allowed"), ("other.example:8080", "host_not_allowed"), ("site.example:8081", "port_not_allowed"),
                         ("inner.example:8080", "address_not_allowed")):
        assert " 403 " in through(c, lease, target), target
        assert wait_until(lambda: [e for e in refusals(server, lease) if (e["reason"], e["target"]) == (word, target)]), target
    told = refusals(server, lease)[0]
    assert told["provider"] == "docker" and told["slot"] == "sandgate-" + lease and "pool" not in told, told
    assert len(world.hits) == before
    figures = c.get("/metrics").body.decode()
    assert 'sandgate_egress_requests_total{provider="docker",outcome="allowed"} 1\n' in figures, figures
    assert 'sandgate_egress_requests_total{provider="docker",outcome="host_not_allowed"} 2\n' in figures
    assert 'sandgate_egress_connections{provider="docker"} 0\n' in figures
    assert c.exec(lease, f"nslookup site.example {NAMES}", timeout=30)["returncode"] != 0  # no name service
    c.terminate(lease)


def test_after_a_restart_it_has_its_way_out_again(world, engine, server, way):
    c = server.client()
    lease, taken = c.lease(network_egress_class="restricted"), c.lease(network_egress_class="restricted")
    c.exec(lease, "(setsid sh -c 'sleep 100 | nc 127.0.0.1 61080' >/dev/null 2>&1 &)")  # a connection that is open meanwhile
    c.exec(taken, "(setsid sh -c 'while ! httpd -f -p 127.0.0.1:61080 -h /tmp; do sleep 0.05; done' >/dev/null 2>&1 &)")
    wait_until(lambda: at_the_port(engine, lease, "01"), what="it is connected")
    server.kill9()
    if way == "share":
        wait_until(lambda: at_the_port(engine, taken, "0A"), what="what is inside takes the port")
    server.start()
    c = server.client()
    wait_until(lambda: c.exec_response(lease, "true").status == 200)
    assert "internet" in through(c, lease, "site.example:8080")
    if way == "share":
        l = wait_until(lambda: (lambda l: l if l["state"] == "lost" else None)(c.get(f"/leases/{taken}").json()))
        assert "port 61080" in l["reason"], l
    else:  # the agent keeps the port
        assert "internet" in through(c, taken, "site.example:8080")
        c.terminate(taken)
    c.terminate(lease)


def test_another_relay_has_it_again(engine, server, way):
    """Who asks meanwhile waits; connections through the one before are over."""
    if way == "share":
        pytest.skip("there is no relay")
    c = server.client()
    lease = c.lease(network_egress_class="restricted")
    assert "internet" in through(c, lease, "site.example:8080")
    c.write(lease, "loop", b"while :; do printf 'GET http://site.example:8080/ HTTP/1.0\\r\\n\\r\\n' | nc -w 9 127.0.0.1 61080 >> got; sleep 0.01; done")
    c.exec(lease, "(setsid sh loop >/dev/null 2>&1 &)")
    wait_until(lambda: b"internet" in c.read(lease, "got").body)
    os.kill(relay_of(engine, lease), signal.SIGKILL)
    wait_until(lambda: c.exec_response(lease, ": > got").status == 200)
    wait_until(lambda: b"internet" in c.read(lease, "got").body, what="what goes on inside has its way out")
    assert "internet" in through(c, lease, "site.example:8080") and c.get(f"/leases/{lease}").json()["state"] == "ready"
    c.terminate(lease)


def test_too_many_connections_are_answered(server):
    """More than one sandbox may have: those above are told so, and once there is room again the next is served."""
    c = server.client()
    lease = c.lease(network_egress_class="restricted")
    c.exec(lease, "mkfifo p; (setsid sh -c 'sleep 100 > p & for i in $(seq 140); do nc 127.0.0.1 61080 < p > out$i & done; wait' >/dev/null 2>&1 &)")
    wait_until(lambda: int(c.exec(lease, "cat out* | grep -c 'egress_too_many'")["stdout"] or 0) > 0, 30)
    c.exec(lease, "killall nc sleep")
    wait_until(lambda: "internet" in through(c, lease, "site.example:8080"))
    c.terminate(lease)


def at_the_port(engine, lease, state):
    """Has a socket of a container the proxy's address and this state, as the kernel writes it (01: connected, 0A: listens)?"""
    with open(f"/proc/{engine.inspect('sandgate-' + lease)['State']['Pid']}/net/tcp") as f:
        return any(line.split()[1] == f"0100007F:{PORT:04X}" and line.split()[3] == state for line in f)


SERVICE = (f"mkdir -p /tmp/www; printf 'GET http://site.example:8080/ HTTP/1.0\\r\\n\\r\\n' | nc -w 5 127.0.0.1 {PORT} | tail -n 1 > /tmp/www/health; "
           "exec httpd -f -p 127.0.0.1:8080 -h /tmp/www")


def test_a_warm_one_and_a_service_have_it_from_the_beginning(world, engine, way):
    with serve(world, engine, egress="restricted", egress_allow=RULES, warm=1, agent=way) as s:
        c = s.client()
        s.wait_warm(1)
        warm = lambda: {engine.inspect(n).get("Id") for n in engine.containers() if n.startswith("sandgate-warm")}  # noqa: E731
        before = warm()
        lease = c.lease(policy={"required_capabilities": ["network"]})
        assert engine.inspect("sandgate-" + lease)["Id"] in before and "internet" in through(c, lease, "site.example:8080")
        assert c.get(f"/leases/{lease}").json()["metadata"]["egress"] == "restricted"
        served = c.lease(metadata={"paddock_mode": "blackbox"}, services=[{"name": "blackbox", "port": 8080, "health_path": "/health"}],
                         env_args={"sandbox_cmd": SERVICE}, acquire_timeout=10)
        assert c.get(f"/leases/{served}/proxy/8080/health").body == b"internet\n"
        none = c.lease(network_egress_class="none")
        assert "unreachable" in ask(c, none, "/")
        r = c.post("/leases", {"network_egress_class": "open"})
        assert r.status == 422 and r.code == "pool_refused" and r.json()["reason"] == "egress_widened", r
        r = c.post("/leases", {"network_egress_class": "none", "policy": {"required_capabilities": ["network"]}})
        assert r.status == 422 and r.json()["field"] == "network_egress_class", r
