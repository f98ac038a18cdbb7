"""A network of its own for a test, with an Internet behind it: two network namespaces joined by a veth pair. Root only.

    with World() as w:
        ... this thread, and the servers it starts, are in the first; w.listen(...) makes sockets in the second
"""
import ctypes
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import threading

from harness import Server

CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)

HOST = "203.0.113.2"    # the server's machine
OTHER = "198.51.100.7"  # a second address of it
SITE = "203.0.113.9"    # somebody in the Internet
NAMES = "203.0.113.1"   # who knows the names
PRIVATE = "10.77.0.5"   # somebody who is reached by the same way and is not public
METADATA = "169.254.169.254"


def _call(name, *args):
    if getattr(_libc, name)(*args) != 0:
        raise OSError(ctypes.get_errno(), name)


def _here():
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


class World:
    def __enter__(self):
        self.dir = tempfile.mkdtemp(prefix="sandgate-world-")
        os.chmod(self.dir, 0o755)
        self.home = _here()
        self.sockets = []
        _call("unshare", CLONE_NEWNET)
        self.internet = _here()
        self.run("ip link set lo up")
        _call("unshare", CLONE_NEWNET)
        self.run("ip link set lo up", f"ip link add h0 type veth peer name i0 netns /proc/{os.getpid()}/fd/{self.internet}",
                 f"ip addr add {HOST}/24 dev h0", f"ip addr add {OTHER}/32 dev lo", "ip link set h0 up")
        self.inside(lambda: self.run(*(f"ip addr add {a} dev i0" for a in (f"{NAMES}/24", f"{SITE}/24", f"{PRIVATE}/32", f"{METADATA}/32")),
                                     "ip link set i0 up", f"ip route add {OTHER}/32 via {HOST}"))
        self.run(f"ip route add default via {NAMES}")
        self.names = {}
        names = self.socket(socket.SOCK_DGRAM, (NAMES, 53))
        threading.Thread(target=self.answer, args=(names,), daemon=True).start()
        self.resolv = self.write("resolv.conf", f"nameserver {NAMES}\n")
        return self

    def __exit__(self, *exc):
        for s in self.sockets:
            s.close()
        _call("setns", self.home, CLONE_NEWNET)
        os.close(self.home)
        os.close(self.internet)
        shutil.rmtree(self.dir)

    @staticmethod
    def run(*commands):
        for c in commands:
            subprocess.run(c.split(), check=True, pass_fds=())

    def write(self, name, text):
        path = os.path.join(self.dir, name)
        with open(path, "w") as f:
            f.write(text)
        os.chmod(path, 0o644)
        return path

    def inside(self, f):
        """f(), in the Internet."""
        out = []

        def go():
            _call("setns", self.internet, CLONE_NEWNET)
            try:
                out.append(f())
            except BaseException as e:  # noqa: BLE001
                out.append(e)
        t = threading.Thread(target=go)
        t.start()
        t.join()
        if isinstance(out[0], BaseException):
            raise out[0]
        return out[0]

    def socket(self, kind, address, where=True):
        """A bound socket in the Internet, or on the server's machine."""
        def make():
            s = socket.socket(socket.AF_INET, kind)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind(address)
            if kind == socket.SOCK_STREAM:
                s.listen(64)
            return s
        s = self.inside(make) if where else make()
        self.sockets.append(s)
        return s

    def answer(self, names):
        """A records of self.names; what is not there does not exist."""
        while True:
            try:
                q, who = names.recvfrom(2048)
            except OSError:
                return
            labels, at = [], 12
            while q[at]:
                labels.append(q[at + 1:at + 1 + q[at]].decode().lower())
                at += 1 + q[at]
            kind, = struct.unpack("!H", q[at + 1:at + 3])
            known = self.names.get(".".join(labels))
            found = known if known and kind == 1 else []
            head = q[:2] + struct.pack("!HHHHH", 0x8180 if known else 0x8183, 1, len(found), 0, 0)
            rest = b"".join(b"\xc0\x0c" + struct.pack("!HHIH", 1, 1, 0, 4) + socket.inet_aton(a) for a in found)
            names.sendto(head + q[12:at + 5] + rest, who)


class WorldServer(Server):
    """A server that asks the world's name server. tun: the device is there for everybody, as on ordinary machines."""

    def __init__(self, world, config, user=None, tun=True, ready=True, **kw):
        super().__init__(config, user=user, **kw)
        self.world, self.tun, self.ready = world, tun, ready

    def start(self, ready=True):
        return super().start(ready and self.ready)

    def command(self):
        script = f"mount --bind {self.world.resolv} /etc/resolv.conf && "
        if self.tun:
            script += "mount -t tmpfs -o mode=0755 tmpfs /dev/net && mknod -m 0666 /dev/net/tun c 10 200 && "
        return ["unshare", "-m", "--propagation", "private", "sh", "-c", script + 'exec "$@"', "sh", *super().command()]
