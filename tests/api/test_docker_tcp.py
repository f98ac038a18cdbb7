"""An engine that is reached over TCP, with and without TLS, and that shares a directory with the server, or does not."""
import http.server
import json
import socket
import subprocess
import threading

import pytest

import engine as engines
from harness import Server, wait_until

why = engines.why_not()
pytestmark = pytest.mark.skipif(why is not None, reason=str(why))
needs_tls = pytest.mark.skipif(engines.KIND is engines.Podman, reason="Podman has no TLS of its own")


def serve(host, shared=True, **docker):
    s = Server({"backends": {"enabled": ["docker"]}, "log": {"level": "debug"}, "docker": dict({"host": host, "image": engines.IMAGE, "pull": False}, **docker)})
    if shared:
        s.config["docker"]["agent_host_dir"] = s.state + "/docker"
    return s


def backend(client):
    return next(b for b in client.get("/backends").json()["items"] if b["name"] == "docker")


# ---- TLS ----

class Certificates:
    """PEM files below dir, made by openssl."""

    def __init__(self, dir):
        self.dir = str(dir)

    def run(self, *args):
        subprocess.run(["openssl", *args], cwd=self.dir, check=True, capture_output=True)

    def path(self, name):
        return f"{self.dir}/{name}"

    def authority(self, name):
        self.run("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.pem",
                 "-subj", f"/CN={name}", "-days", "2")

    def issue(self, name, by, days=2, extensions="extendedKeyUsage=clientAuth"):
        with open(self.path(f"{name}.ext"), "w") as f:
            f.write(extensions + "\n")
        self.run("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        self.run("x509", "-req", "-in", f"{name}.csr", "-CA", f"{by}.pem", "-CAkey", f"{by}.key", "-CAcreateserial", "-out", f"{name}.pem",
                 "-days", str(days), "-extfile", f"{name}.ext")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    c = Certificates(tmp_path_factory.mktemp("tls"))
    c.authority("ca")
    c.authority("stranger")
    c.issue("engine", "ca", extensions="extendedKeyUsage=serverAuth\nsubjectAltName=IP:127.0.0.1")
    c.issue("client", "ca")
    c.issue("expired", "ca", days=-1)
    c.issue("other", "stranger")
    with open(c.path("garbage.key"), "w") as f:
        f.write("-----BEGIN PRIVATE KEY-----\nnothing\n-----END PRIVATE KEY-----\n")
    return c


@pytest.fixture(scope="module")
def engine(certificates):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    c = certificates
    with engines.engine("-H", f"tcp://127.0.0.1:{port}", "--tlsverify", "--tlscacert", c.path("ca.pem"), "--tlscert", c.path("engine.pem"), "--tlskey",
                        c.path("engine.key")) as e:
        e.port = port
        yield e


def keys(c, ca="ca", client="client", key=None):
    own = {"tls_cert": c.path(client + ".pem"), "tls_key": c.path((key or client) + ".key")} if client else {}
    return {"tls_ca": c.path(ca + ".pem"), **own}


@needs_tls
def test_who_shows_the_right_certificate_is_served(engine, certificates):
    with serve(f"tcp://127.0.0.1:{engine.port}", **keys(certificates)) as s:
        c = s.client()
        lease = c.lease()
        assert c.exec(lease, "echo in")["stdout"] == "in\n" and backend(c)["healthy"] and c.get("/readyz").status == 200
        s.kill9()
        s.config["docker"]["host"] = f"https://127.0.0.1:{engine.port}"  # the same
        s.start()
        wait_until(lambda: s.client().exec_response(lease, "true").status == 200)
        with open(certificates.path("client.key")) as f:
            secret = f.read().split("\n")[1]
        assert secret not in s.log_text() and secret not in str(s.client().get("/backends").json())


@needs_tls
def test_a_whole_job_on_an_engine_that_shares_nothing(engine, certificates):
    with serve(f"tcp://127.0.0.1:{engine.port}", shared=False, **keys(certificates)) as s:
        c = s.client()
        r = c.post("/leases", {"timeout_sec": 600})
        assert r.status == 201 and r.json()["metadata"]["agent_path"] == "engine", r
        lease = r.json()["id"]
        m = engine.inspect("sandgate-" + lease)["Mounts"]
        assert [(x["Type"], x["Destination"]) for x in m if x["Destination"].startswith("/.sandgate")] == [("volume", "/.sandgate")], m
        data = bytes(range(256)) * 20000  # 5 MB
        assert c.write(lease, "a/f", data).status == 201 and c.read(lease, "a/f").body == data
        assert c.exec(lease, ["cat"], stdin="typed")["stdout"] == "typed" and c.exec(lease, "wc -c < a/f")["stdout"].strip() == str(len(data))
        assert c.exec(lease, "(busybox httpd -p 127.0.0.1:8081 -h /workspace/a)")["returncode"] == 0
        assert c.get(f"/leases/{lease}/proxy/8081/f").body == data
        assert c.exec(lease, "stty size", tty={"rows": 33, "cols": 101})["stdout"] == "33 101\r\n"
        r = c.post("/leases", {"network_egress_class": "restricted"})
        assert r.status == 422 and r.json()["field"] == "network_egress_class" and "wider" in r.json()["detail"], r
        s.kill9()
        s.start()
        wait_until(lambda: s.client().read(lease, "a/f").body == data)
        s.client().terminate(lease)
        assert engine.containers() == [] and not engine.call("GET", "/volumes")[1]["Volumes"]


WRONG = {
    "another authority": (dict(ca="stranger"), "certificate"),
    "an authority that is no file": (dict(ca="nowhere"), "nowhere.pem"),
    "a certificate of another authority": (dict(client="other"), "certificate"),
    "an expired one": (dict(client="expired"), "certificate"),
    "none": (dict(client=None), "certificate"),
    "a key of another certificate": (dict(key="other"), "key"),
    "a key that is none": (dict(key="garbage"), "garbage.key"),
}


TURNED_AWAY = ("a certificate of another authority", "an expired one", "none")


@needs_tls
def test_who_shows_a_wrong_one_is_told(engine, certificates):
    s = serve(f"tcp://127.0.0.1:{engine.port}", **keys(certificates))
    host, before = s.config["docker"]["host"], engine.containers()
    cases = [(what, host, keys(certificates, **files), word) for what, (files, word) in WRONG.items()]
    cases.append(("another name", f"https://localhost:{engine.port}", keys(certificates), "localhost"))
    try:
        for what, host, files, word in cases:
            s.config["docker"] = {k: v for k, v in s.config["docker"].items() if not k.startswith("tls_")} | files | {"host": host}
            s.start(ready=False)
            c = s.client()
            r = c.post("/leases", {})
            assert r.status == 503 and r.code == "unavailable", (what, r)
            # Whoever turns a certificate away may close before it is heard.
            assert r.json()["reason"] in ("tls_failed",) + (("connection_lost",) if what in TURNED_AWAY else ()), (what, r)
            assert word in r.json()["detail"] and str(engine.port) in r.json()["detail"] and r.json()["provider"] == "docker", (what, r)
            b = wait_until(lambda: (lambda b: b if word in b["detail"] else None)(backend(c)), what=what)  # noqa: B023
            assert not b["healthy"], (what, b)
            assert c.get("/readyz").status == 503, what
            assert s.stop() == 0
        assert "nothing" not in s.log_text() and engine.containers() == before
    finally:
        s.clean()


# ---- without ----

class Relay:
    """A TCP port that leads to the engine's socket, until it is closed; it may be opened again."""

    def __init__(self, path):
        self.path, self.port, self.open_ = path, 0, []
        self.open()

    def open(self):
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind(("127.0.0.1", self.port))
        self.listener.listen(64)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, args=(self.listener,), daemon=True).start()

    def accept(self, listener):
        while True:
            try:
                a, _ = listener.accept()
            except OSError:
                return
            b = socket.socket(socket.AF_UNIX)
            b.connect(self.path)
            self.open_ += [a, b]
            for x, y in ((a, b), (b, a)):
                threading.Thread(target=self.copy, args=(x, y), daemon=True).start()

    @staticmethod
    def copy(x, y):
        try:
            while data := x.recv(65536):
                y.sendall(data)
        except OSError:
            pass
        for s in (x, y):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for s in self.open_:
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            s.close()
        self.open_ = []


def test_plain_tcp_and_a_network_that_fails(engine):
    relay = Relay(engine.socket)
    with serve(f"tcp://127.0.0.1:{relay.port}") as s:
        c = s.client()
        lease = c.lease()
        source = [m["Source"] for m in engine.inspect("sandgate-" + lease)["Mounts"] if m["Destination"] == "/.sandgate/run"]
        assert source[0].startswith(s.state) and c.exec(lease, "echo in")["stdout"] == "in\n"
        relay.close()
        b = wait_until(lambda: (lambda b: None if b["healthy"] else b)(backend(c)), what="it is known to be away")
        assert f"127.0.0.1:{relay.port}" in b["detail"] and c.get("/readyz").status == 503, b
        assert c.exec(lease, "echo still")["stdout"] == "still\n" and c.post("/leases", {}).status == 503
        relay.open()
        wait_until(lambda: backend(c)["healthy"], 20, "it is known to be back")
        c.terminate(lease)
        assert "sandgate-" + lease not in engine.containers()
    relay.close()


@pytest.mark.parametrize("docker,word", [({"host": "tcp://127.0.0.1:1", "tls_cert": "/a.pem"}, "docker.tls_key"),
                                         ({"host": "unix:///x", "tls_ca": "/a.pem"}, "docker.tls_ca"), ({"host": "http://127.0.0.1:1", "tls_ca": "/a.pem"}, "docker.tls_ca")])
def test_settings_that_cannot_be(docker, word):
    s = serve(**docker)
    try:
        with pytest.raises(RuntimeError) as e:
            s.start(ready=False)
        assert word in str(e.value)
    finally:
        s.clean()


# ---- engines that a real one cannot be made to be ----

class Standin(http.server.ThreadingHTTPServer):
    """Speaks enough of the API to be asked for a container, which it refuses with `refusal`. What it was asked is in `asked`."""
    daemon_threads = True

    def __init__(self, version, refusal=(409, "the name is already in use by container abc")):
        self.asked, self.over = [], threading.Event()
        standin = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def do(self):
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                path = self.path.split("?")[0]
                standin.asked.append((self.command, path))
                if path.endswith("/events"):
                    self.send_response(200)
                    self.end_headers()
                    self.wfile.flush()
                    standin.over.wait(60)
                    self.close_connection = True
                    return
                status, body = {"_ping": (200, "OK"), "json": (200, [])}.get(path.rpartition("/")[2], (404, {"message": "no such thing"}))
                if path.endswith("/containers/create"):
                    status, body = refusal[0], {"message": refusal[1]}
                data = json.dumps(body).encode()
                self.send_response(status)
                for k, v in (("Api-Version", version), ("Content-Type", "application/json"), ("Content-Length", str(len(data)))):
                    self.send_header(k, v)
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_DELETE = do

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def __exit__(self, *exc):
        self.over.set()
        self.shutdown()
        super().__exit__(*exc)

    @property
    def host(self):
        return f"tcp://127.0.0.1:{self.server_address[1]}"


def test_a_container_of_that_name_is_not_ours():
    """The newest version that both know is spoken; who is refused a name neither has the container nor removes it."""
    for version, spoken in (("1.41", "1.41"), ("1.99", "1.44")):
        with Standin(version) as e, serve(e.host) as s:
            r = s.client().post("/leases", {})
            assert r.status == 502 and r.json()["provider_status"] == 409 and "already in use" in r.json()["detail"] and r.json()["provider"] == "docker", r
            assert ("POST", f"/v{spoken}/containers/create") in e.asked and not [a for a in e.asked if a[0] == "DELETE"], e.asked


def test_an_engine_that_is_too_old():
    with Standin("1.40") as e:
        s = serve(e.host)
        try:
            s.start(ready=False)
            c = s.client()
            r = c.post("/leases", {})
            assert r.status == 503 and r.json()["reason"] == "engine_version" and "1.40" in r.json()["detail"], r
            assert wait_until(lambda: "1.40" in backend(c)["detail"]) and not backend(c)["healthy"] and c.get("/readyz").status == 503
            assert {path for _, path in e.asked} == {"/_ping"}, e.asked
            assert s.stop() == 0
        finally:
            s.clean()
