"""A sandbox of the stand-in: one bwrap with a root directory of its own, and the daemon in it."""
import concurrent.futures
import http.client
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
# bwrap dies with the thread that started it: this one stays.
STARTER = concurrent.futures.ThreadPoolExecutor(1, "starter")


def skeleton(root):
    for name in ("home/user", "tmp", "var/tmp", "etc", "usr", "proc", "dev", "run", "opt/standin", "root"):
        os.makedirs(os.path.join(root, name))
    os.chmod(os.path.join(root, "tmp"), 0o1777)
    for name in ("bin", "sbin", "lib", "lib64"):
        os.symlink("usr/" + name, os.path.join(root, name))
    files = {"etc/passwd": f"root:x:0:0::/root:/bin/sh\nuser:x:{os.getuid() or 1000}:{os.getgid() or 1000}::/home/user:/bin/bash\n",
             "etc/group": f"root:x:0:\nuser:x:{os.getgid() or 1000}:\n", "etc/hosts": "127.0.0.1 localhost\n::1 localhost\n"}
    for name, text in files.items():
        with open(os.path.join(root, name), "w") as f:
            f.write(text)


def descendants(pid):
    """All processes below pid, by the host's numbers."""
    found, left = [], [pid]
    while left:
        p = left.pop()
        found.append(p)
        try:
            for task in os.listdir(f"/proc/{p}/task"):
                with open(f"/proc/{p}/task/{task}/children") as f:
                    left += [int(x) for x in f.read().split()]
        except OSError:
            pass
    return found


def running(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("sandbox", timeout=None)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32768)
        self.sock.connect(self.path)


class Box:
    def __init__(self, directory, spec, source=None):
        """directory: short, for its sockets. source: the root directory of a snapshot."""
        self.id = "i" + secrets.token_hex(9)
        self.token, self.traffic, self.open = secrets.token_hex(16), None, False
        self.spec, self.started, self.state = spec, time.time(), "running"
        self.end_at, self.timer, self.lock = 0.0, None, threading.Lock()
        self.connections = set()  # of calls that are under way
        self.dir = os.path.join(directory, self.id)
        self.root = os.path.join(self.dir, "root")
        os.makedirs(self.dir)
        if source:
            subprocess.run(["cp", "-a", source, self.root], check=True)
        else:
            os.makedirs(self.root)
            skeleton(self.root)
        self.socket = os.path.join(self.dir, "s", "envd")
        os.makedirs(os.path.dirname(self.socket))
        self.popen = STARTER.submit(self.start).result()
        deadline = time.monotonic() + 20
        while not self.listens():
            if self.popen.poll() is not None or time.monotonic() > deadline:
                self.destroy()
                raise RuntimeError("the sandbox's daemon does not start")
            time.sleep(0.005)

    def start(self):
        argv = ["bwrap", "--unshare-all", "--die-with-parent", "--uid", str(os.getuid() or 1000), "--gid", str(os.getgid() or 1000),
                "--bind", self.root, "/", "--ro-bind", os.path.join(self.root, "etc"), "/etc", "--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev",
                "--ro-bind", HERE, "/opt/standin", "--bind", os.path.dirname(self.socket), "/run", "--chdir", "/home/user",
                "--new-session", "--clearenv", "--setenv", "STANDIN_TOKEN", self.token,
                "--setenv", "STANDIN_ENVS", json.dumps(self.spec.get("envVars") or {}),
                "/usr/bin/python3", "-I", "/opt/standin/envd.py", "/run/envd"]
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, env={"PATH": os.environ["PATH"]})  # its own is seen inside

    def connect(self):
        return UnixConnection(self.socket)

    def listens(self):
        try:
            c = self.connect()
            c.connect()
            c.close()
            return True
        except OSError:
            return False

    def alive(self):
        return self.state == "running" and self.popen.poll() is None

    def expire_at(self, when, what):
        with self.lock:
            if self.timer:
                self.timer.cancel()
            self.end_at = when
            self.timer = threading.Timer(max(0, when - time.time()), what, [self])
            self.timer.daemon = True
            self.timer.start()

    def hold(self, on):
        for pid in descendants(self.popen.pid):
            try:
                os.kill(pid, signal.SIGSTOP if on else signal.SIGCONT)
            except ProcessLookupError:
                pass

    def freeze(self, on):
        self.hold(on)
        self.state = "paused" if on else "running"

    def disconnect(self):
        for c in list(self.connections):
            try:
                c.sock.shutdown(socket.SHUT_RDWR)
            except (AttributeError, OSError):
                pass

    def destroy(self):
        with self.lock:
            if self.timer:
                self.timer.cancel()
            self.state = "gone"
        inside = descendants(self.popen.pid)
        for pid in inside:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.popen.wait()
        deadline = time.monotonic() + 5
        while any(running(p) for p in inside) and time.monotonic() < deadline:
            time.sleep(0.002)
        shutil.rmtree(self.dir, ignore_errors=True)
