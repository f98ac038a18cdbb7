"""A Docker engine of the tests' own: its data, its socket and its containers are nobody else's, and gone with it.

No network, no registry: the one image has busybox and what is put beside it.
"""
import base64
import contextlib
import hashlib
import http.client
import http.server
import io
import json
import os
import pathlib
import pwd
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile
import threading
import time
import urllib.parse

BUSYBOX = "/usr/bin/busybox"  # Debian's busybox-static has it in /bin on some releases
START_SECONDS = 60


class Connection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=60)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(self.path)


def image_tar(files=(), links=()):
    """A root file system of busybox with all its names; files: {path: bytes}, executable; links: {path: target}."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as t:
        busybox = next(p for p in (BUSYBOX, "/bin/busybox") if os.path.exists(p))
        files = {"bin/busybox": open(busybox, "rb").read(), "etc/passwd": b"root:x:0:0::/:/bin/sh\n", **dict(files)}
        parents = {str(p) for name in files for p in pathlib.PurePath(name).parents} - {"."}
        for d in sorted(parents | {"bin", "etc", "tmp", "usr", "usr/bin", "var"}):
            i = tarfile.TarInfo(d)
            i.type, i.mode = tarfile.DIRTYPE, 0o755
            t.addfile(i)
        for name, data in files.items():
            i = tarfile.TarInfo(name)
            i.size, i.mode = len(data), 0o755
            t.addfile(i, io.BytesIO(data))
        for name, target in dict(links).items():
            i = tarfile.TarInfo(name)
            i.type, i.linkname = tarfile.SYMTYPE, target
            t.addfile(i)
        for name in subprocess.run([busybox, "--list"], check=True, capture_output=True, text=True).stdout.split():
            if "bin/" + name not in files:
                i = tarfile.TarInfo("bin/" + name)
                i.type, i.linkname = tarfile.SYMTYPE, "busybox"
                t.addfile(i)
    return out.getvalue()


class Engine:
    # Every container costs the engine several processes of its own that live for a moment: no time is to be spent on collecting their garbage.
    environment = dict(os.environ, GOGC="400")

    image = "sandgate-test:busybox"
    programs = ("dockerd",)
    outlived = False  # containers go on without it though not asked to

    def __init__(self, *options):
        self.dir = tempfile.mkdtemp(prefix="sgd-", dir="/tmp")  # short: socket paths lie below it
        self.socket = self.dir + "/s"
        self.options = options
        self.process = None
        self.drivers = ("overlay2", "vfs")

    @property
    def host(self):
        return "unix://" + self.socket

    def start(self):
        for driver in self.drivers:
            log = open(f"{self.dir}/log", "ab")
            self.process = subprocess.Popen(
                ["dockerd", "--data-root", f"{self.dir}/data", "--exec-root", f"{self.dir}/exec", "-H", self.host, "--pidfile", f"{self.dir}/pid",
                 "--iptables=false", "--ip6tables=false", "--bridge=none", "--storage-driver", driver, "--shutdown-timeout", "1", *self.options],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=self.environment)
            log.close()
            if self.up():
                self.drivers = (driver,)
                return self
            self.halt()
        raise RuntimeError("dockerd does not start: " + self.log()[-600:])

    def up(self):
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until and self.process.poll() is None:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self.call("GET", "/_ping")[0] == 200:
                    return True
            time.sleep(0.05)
        return False

    def log(self):
        with open(f"{self.dir}/log", errors="replace") as f:
            return f.read()

    def call(self, method, path, body=None, kind="application/json"):
        """(status, JSON or text)"""
        c = Connection(self.socket)
        data = body if isinstance(body, bytes) else json.dumps(body) if body is not None else None
        try:
            c.request(method, path, data, {"Content-Type": kind} if data is not None else {})
            r = c.getresponse()
            text = r.read()
        finally:
            c.close()
        try:
            return r.status, json.loads(text)
        except ValueError:
            return r.status, text.decode(errors="replace")

    def load(self, image=None, files=(), changes=(), links=()):
        """changes: as in a Dockerfile."""
        image = image or self.image
        repo, tag = image.split(":")
        query = urllib.parse.urlencode({"fromSrc": "-", "repo": repo, "tag": tag, "changes": changes}, doseq=True)
        status, answer = self.call("POST", f"/images/create?{query}", image_tar(files, links), "application/x-tar")
        assert status == 200 and "error" not in str(answer), answer

    def containers(self):
        """Names of all there are."""
        status, all_ = self.call("GET", "/containers/json?all=1")
        assert status == 200, all_
        return sorted(c["Names"][0].lstrip("/") for c in all_)

    def has_made(self, name):
        """Of late: engines remember the last 256 events."""
        filters = urllib.parse.quote(json.dumps({"container": [name], "event": ["create"]}))
        return bool(self.call("GET", f"/events?since=0&until={int(time.time())}&filters={filters}")[1])

    def inspect(self, name):
        return self.call("GET", f"/containers/{name}/json")[1]

    def kill(self):
        """The engine alone, at once; its containers go on. Its helper goes with it, and may stay a zombie where nobody reaps it, which the next
        engine would take for alive."""
        path = f"{self.dir}/exec/containerd/containerd.pid"
        with open(path) as f:
            helper = int(f.read())
        self.process.kill()
        self.process.wait()
        until = time.monotonic() + 10
        while time.monotonic() < until and self.alive(helper):
            time.sleep(0.02)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    @staticmethod
    def alive(pid):
        try:
            with open(f"/proc/{pid}/stat") as f:
                return f.read().rpartition(")")[2].split()[0] not in "ZX"
        except OSError:
            return False

    def halt(self):
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def stop(self):
        """With everything that belongs to it."""
        if self.process and self.process.poll() is None:
            with contextlib.suppress(OSError, AssertionError, http.client.HTTPException):
                for name in self.containers():
                    self.call("DELETE", f"/containers/{name}?force=1&v=1")
        self.halt()
        for pid in self.leftovers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for path in self.mounts():
            subprocess.run(["umount", "-l", path], check=False, stderr=subprocess.DEVNULL)
        shutil.rmtree(self.dir, ignore_errors=True)

    def leftovers(self):
        """Processes that were started with our directory in their arguments: the engine's own helpers."""
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                with open(f"/proc/{pid}/cmdline", "rb") as f:
                    if self.dir.encode() + b"/" in f.read() and int(pid) != os.getpid():
                        yield int(pid)

    def mounts(self):
        with open("/proc/self/mounts") as f:
            return [line.split()[1] for line in f if line.split()[1].startswith(self.dir + "/")][::-1]


class Podman(Engine):
    """Podman's engine with the same API. It has a process of its own beside each container, so containers outlive it always."""
    programs = ("podman", "runc")
    outlived = True

    def __init__(self, *options, user=None):
        """user: whose it is, who needs numbers of other users in /etc/subuid; None: root's."""
        super().__init__(*options)
        self.user = user

    def start(self):
        pathlib.Path(self.dir, "containers.conf").touch()
        pathlib.Path(self.dir, "registries.conf").write_text('[[registry]]\nlocation = "127.0.0.1"\ninsecure = true\n')
        env = dict(os.environ, CONTAINERS_CONF=f"{self.dir}/containers.conf", CONTAINERS_REGISTRIES_CONF=f"{self.dir}/registries.conf")
        become = []
        if self.user is not None:
            os.makedirs(f"{self.dir}/home", 0o700, exist_ok=True)
            for path in (self.dir, f"{self.dir}/home"):
                os.chown(path, self.user, self.user)
            env.update(HOME=f"{self.dir}/home", XDG_RUNTIME_DIR=f"{self.dir}/home")
            become = ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--init-groups"]
        with open(f"{self.dir}/log", "ab") as log:
            self.process = subprocess.Popen([*become, *self.command, "system", "service", "-t", "0", self.host], stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=log, start_new_session=True, env=env, cwd=self.dir)
        if not self.up():
            raise RuntimeError("podman does not start: " + self.log()[-600:])
        return self

    @property
    def command(self):
        return ["podman", "--root", f"{self.dir}/data", "--runroot", f"{self.dir}/run", "--tmpdir", f"{self.dir}/tmp", "--storage-driver", "vfs",
                "--network-config-dir", f"{self.dir}/net", "--cgroup-manager", "cgroupfs", "--events-backend", "file", "--runtime", "runc"]

    def load(self, image=None, files=(), changes=(), links=()):
        """An import has no tag but latest, so it gets its name afterwards."""
        repo, tag = (image or self.image).split(":")
        super().load("imported:latest", files, changes, links)
        status, answer = self.call("POST", f"/images/imported/tag?repo={repo}&tag={tag}")
        assert status == 201, answer
        assert self.call("DELETE", "/images/imported")[0] == 200

    def has_made(self, name):
        """From where it writes its events down: asked for those until now it often stops before it has told of all."""
        with open(f"{self.dir}/tmp/events/events.log") as f:
            return any((e.get("Name"), e.get("Status")) == (name, "create") for e in map(json.loads, f))

    def kill(self):
        self.process.kill()
        self.process.wait()


def who_maps():
    """The number of a user who may have containers of Podman's; None: there is none here."""
    with contextlib.suppress(OSError, KeyError), open("/etc/subuid") as f:
        for line in f if shutil.which("newuidmap") else ():
            return pwd.getpwnam(line.split(":")[0]).pw_uid
    return None


KINDS = {"docker": Engine, "podman": Podman}
KIND = KINDS[os.environ.get("SANDGATE_TEST_ENGINE", "docker")]  # of the files test_docker*.py
IMAGE = KIND.image


def why_not(kind=KIND):
    """Why there is no such engine here; None: there is one."""
    if os.geteuid() != 0:
        return "an engine of its own needs root"
    for program in kind.programs:
        if not shutil.which(program):
            return f"{program} is not installed"
    if not os.path.exists(BUSYBOX) and not os.path.exists("/bin/busybox"):
        return "busybox-static is not installed"
    return None


@contextlib.contextmanager
def engine(*options, kind=KIND):
    e = kind(*options)
    try:
        e.start()
        e.load()
        yield e
    finally:
        e.stop()


class Registry(http.server.ThreadingHTTPServer):
    """A registry for who has the password. `private/box` is an image; `private/slow` one with a further layer, of which the second half comes
    once `go` is set; of `private/broken` a layer is not what it is said to be; whatever else is asked for hangs until the end."""
    daemon_threads = True
    KIND = "application/vnd.docker.distribution.manifest.v2+json"

    def __init__(self, user="puller", password="p4ssw0rd"):
        self.expected = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        self.seen, self.paths, self.over, self.go = [], [], threading.Event(), threading.Event()
        self.blobs, self.manifests = {}, {}
        layer, slow, wrong = image_tar(), noise_tar(SLOW_BYTES), noise_tar(1 << 16)
        self.slow = digest(slow)
        self.add("private/box", [layer])
        self.add("private/slow", [layer, slow])
        self.add("private/broken", [layer, wrong])
        self.blobs[digest(wrong)] = bytes(len(wrong))
        registry = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def do_GET(self):
                registry.seen.append(self.headers.get("Authorization"))
                registry.paths.append(self.path)
                last = self.path.rsplit("/", 1)[-1]
                manifest = registry.manifests.get(self.path.rpartition("/manifests/")[0])
                if self.headers.get("Authorization") != registry.expected:
                    self.answer(401, b"{}", [("WWW-Authenticate", 'Basic realm="test"')])
                elif self.path == "/v2/":
                    self.answer(200, b"{}")
                elif manifest:
                    self.answer(200, manifest, [("Content-Type", registry.KIND), ("Docker-Content-Digest", digest(manifest))])
                elif last in registry.blobs:
                    self.answer(200, registry.blobs[last], pause=last == registry.slow)
                else:
                    registry.over.wait(60)

            do_HEAD = do_GET

            def answer(self, status, body, headers=(), pause=False):
                self.send_response(status)
                for k, v in [*headers, ("Content-Length", str(len(body))), ("Docker-Distribution-Api-Version", "registry/2.0")]:
                    self.send_header(k, v)
                self.end_headers()
                if self.command != "HEAD":
                    half = len(body) // 2 if pause else 0
                    for at in range(0, half, half // 4 + 1):  # engines tell of progress ten times a second, and of half a MiB at least
                        self.wfile.write(body[at:min(half, at + half // 4 + 1)])
                        registry.go.wait(0.12)
                    if pause:
                        registry.go.wait(60)
                    self.wfile.write(body[half:])

            def handle(self):
                with contextlib.suppress(ConnectionError):  # a pull that is given up
                    super().handle()

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def add(self, name, layers):
        config = json.dumps({"architecture": "amd64", "os": "linux", "config": {"Env": ["FROM_IMAGE=yes"]},
                             "rootfs": {"type": "layers", "diff_ids": [digest(l) for l in layers]}}).encode()
        self.manifests["/v2/" + name] = json.dumps({
            "schemaVersion": 2, "mediaType": self.KIND,
            "config": {"mediaType": "application/vnd.docker.container.image.v1+json", "size": len(config), "digest": digest(config)},
            "layers": [{"mediaType": "application/vnd.docker.image.rootfs.diff.tar", "size": len(l), "digest": digest(l)} for l in layers]}).encode()
        self.blobs.update({digest(b): b for b in (*layers, config)})

    def __exit__(self, *exc):
        self.go.set()
        self.over.set()
        self.shutdown()
        super().__exit__(*exc)

    @property
    def address(self):
        return f"127.0.0.1:{self.server_address[1]}"


SLOW_BYTES = 4 << 20


def noise_tar(n):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as t:
        i = tarfile.TarInfo(f"noise-{n}")
        i.size = n
        t.addfile(i, io.BytesIO(os.urandom(n)))
    return out.getvalue()


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()
