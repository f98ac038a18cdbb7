"""A fixture server and a socket on which every byte is ours."""
import json
import os
import select
import socket
import struct
import subprocess
import tempfile
import time

FIXTURE = os.environ.get("HTTP_FIXTURE", "build/http_fixture")


class Reply:
    def __init__(self, status, headers, body, raw_head):
        self.status, self.headers, self.body, self.raw_head = status, headers, body, raw_head

    def all(self, name):
        return [v for k, v in self.headers if k.lower() == name.lower()]

    def one(self, name):
        values = self.all(name)
        assert len(values) == 1, (name, self.headers)
        return values[0]

    def json(self):
        return json.loads(self.body)

    def problem(self):
        assert self.one("Content-Type") == "application/problem+json", self.headers
        doc = self.json()
        assert doc["status"] == self.status and doc["request_id"] == self.one("X-Request-Id")
        assert self.one("Cache-Control") == "no-store"
        return doc


class Conn:
    def __init__(self, port, timeout=10):
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buf = b""

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.sock.close()

    def send(self, data):
        self.sock.sendall(data.encode("latin-1") if isinstance(data, str) else data)
        return self

    def get(self, target, *headers, method="GET"):
        lines = [f"{method} {target} HTTP/1.1", "Host: h", *headers, "", ""]
        return self.send("\r\n".join(lines))

    def more(self):
        data = self.sock.recv(65536)
        self.buf += data
        return len(data) > 0

    def head(self):
        while b"\r\n\r\n" not in self.buf:
            if not self.more():
                raise EOFError(self.buf)
        raw, self.buf = self.buf.split(b"\r\n\r\n", 1)
        lines = raw.decode("latin-1").split("\r\n")
        version, status, _ = lines[0].split(" ", 2)
        assert version == "HTTP/1.1"
        headers = [tuple(part.strip() for part in line.split(":", 1)) for line in lines[1:]]
        return Reply(int(status), headers, b"", raw)

    def exactly(self, n):
        while len(self.buf) < n:
            if not self.more():
                raise EOFError("cut after %d of %d" % (len(self.buf), n))
        out, self.buf = self.buf[:n], self.buf[n:]
        return out

    def line(self):
        while b"\r\n" not in self.buf:
            if not self.more():
                raise EOFError("cut in a chunk head")
        out, self.buf = self.buf.split(b"\r\n", 1)
        return out

    def chunk(self):
        data = self.exactly(int(self.line(), 16))
        assert self.exactly(2) == b"\r\n"
        return data

    def reply(self, head_only=False):
        r = self.head()
        while r.status == 100:
            r = self.head()
        if head_only or r.status in (204, 304):
            return r
        if r.all("Transfer-Encoding"):
            while True:
                data = self.chunk()
                if not data:
                    return r
                r.body += data
        if r.all("Content-Length"):
            r.body = self.exactly(int(r.one("Content-Length")))
            return r
        while self.more():
            pass
        r.body, self.buf = self.buf, b""
        return r

    def rest(self):
        """What still comes until the server closes; None: it does not close."""
        self.sock.settimeout(3)
        try:
            while self.more():
                pass
        except socket.timeout:
            return None
        except ConnectionResetError:
            pass
        return self.buf

    def closed(self):
        return self.rest() == b""

    def silent(self, seconds=0.2):
        """Nothing comes and the connection stays open."""
        return not self.buf and not select.select([self.sock], [], [], seconds)[0]

    def usable(self):
        """A next request on it is answered, with nothing in between."""
        r = self.get("/hello").reply()
        return r.status == 200 and r.json() == {"hello": "world"} and self.silent(0.05)

    def half_close(self):
        self.sock.shutdown(socket.SHUT_WR)
        return self

    def reset(self):
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


class Server:
    def __init__(self, **options):
        self.args = [f"{k}={v}" for k, v in options.items()]
        self.proc = subprocess.Popen([FIXTURE, *self.args], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                     stderr=(log := tempfile.TemporaryFile()))
        self.log_file = log
        self.err = b""
        self.read_port()

    def read_port(self):
        port, version = self.proc.stdout.readline().split()
        self.port, self.old_parser = int(port), version.startswith(b"0.")

    def again(self, grace=0, cancel=0):
        """Stops the server and starts another one in the same process."""
        self.command(f"again {grace} {cancel}")
        self.read_port()

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.proc.pid}/fd"))

    def __enter__(self):
        return self

    def __exit__(self, kind, *exc):
        if self.proc.poll() is None:
            self.stop()
        self.read_log()
        assert kind or self.proc.returncode == 0, self.err.decode(errors='replace')[-4000:]

    def conn(self, **kw):
        return Conn(self.port, **kw)

    def command(self, line):
        self.proc.stdin.write(line.encode() + b"\n")
        self.proc.stdin.flush()

    def drain(self):
        self.command("drain")
        assert self.proc.stdout.readline() == b"draining\n"

    def stop(self, grace=0, cancel=500, timeout=30):
        began = time.monotonic()
        self.command(f"stop {grace} {cancel}")
        self.proc.communicate(timeout=timeout)
        self.read_log()
        self.took = time.monotonic() - began
        return self.proc.returncode

    def read_log(self):
        """At our own offset: the descriptor is shared with the server."""
        self.err += os.pread(self.log_file.fileno(), 1 << 30, len(self.err))

    def stats(self):
        with self.conn() as c:
            return c.get("/stats").reply().json()

    def wait_stat(self, name, value, seconds=10):
        until = time.monotonic() + seconds
        while self.stats()[name] < value:
            assert time.monotonic() < until, (name, self.stats())
            time.sleep(0.02)

    def log(self, text, seconds=10):
        """The completion line that contains text."""
        until = time.monotonic() + seconds
        while True:
            self.read_log()
            for line in self.err.decode(errors='replace').splitlines():
                if text in line:
                    return line
            assert time.monotonic() < until, self.err.decode(errors='replace')
            time.sleep(0.02)
