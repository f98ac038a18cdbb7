"""Scripted servers for the proxy to talk to, and raw clients for it."""
import contextlib
import os
import socket
import subprocess
import threading

import harness

BUILD = os.path.dirname(harness.BIN)
TIMEOUT = 30


class Upstream:
    """Every connection is handed to serve(conn) on its own thread; what it raises is raised again at the end."""

    def __init__(self, serve):
        self.serve = serve
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.connections, self.conns, self.threads, self.errors = 0, [], [], []
        self.closing = False
        self.acceptor = threading.Thread(target=self._accept, daemon=True)
        self.acceptor.start()

    def _accept(self):
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            t = threading.Thread(target=self._run, args=(sock,), daemon=True)
            self.threads.append(t)
            t.start()

    def _run(self, sock):
        sock.settimeout(TIMEOUT)
        conn = Conn(sock, lambda: self.closing)
        self.conns.append(conn)
        try:
            self.serve(conn)
        except (ConnectionError, EOFError):
            pass
        except BaseException as e:  # noqa: BLE001
            self.errors.append(e)
        finally:
            conn.close()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.acceptor.join(TIMEOUT)
        self.closing = True
        for conn in self.conns:
            if conn.idle:  # kept by the proxy for another request; it would wait for its idle timeout
                conn.shutdown()
        for t in self.threads:
            t.join(TIMEOUT)
        if kind is None and self.errors:
            raise self.errors[0]


class Conn:
    """A connection read by heads, lines and chunks; either side."""

    def __init__(self, sock, ending=lambda: False):
        self.sock, self.ending = sock, ending
        self.file = sock.makefile("rb", buffering=65536)
        self.idle = False

    def send(self, data):
        self.sock.sendall(data)

    def head(self):
        """(first line, [(name, value)]) of the next message; EOFError at the end."""
        self.idle = True
        if self.ending():
            raise EOFError
        first = self.file.readline()
        self.idle = False
        if not first:
            raise EOFError
        fields = []
        while True:
            line = self.file.readline()
            if not line:
                raise EOFError
            if line == b"\r\n":
                return first.rstrip(b"\r\n"), fields
            name, _, value = line.rstrip(b"\r\n").partition(b":")
            fields.append((name.decode("latin-1"), value.strip().decode("latin-1")))

    def exact(self, n):
        data = self.file.read(n)
        if len(data) < n:
            raise EOFError
        return data

    def chunk(self):
        """The next chunk, b"" for the last."""
        size = int(self.file.readline().split(b";")[0], 16)
        data = self.exact(size)
        self.exact(2)
        return data

    def body(self, fields):
        h = {k.lower(): v for k, v in fields}
        if h.get("transfer-encoding") == "chunked":
            return b"".join(iter(self.chunk, b""))
        return self.exact(int(h.get("content-length", 0)))

    def closed(self):
        """Waits for the end of the other side."""
        try:
            while self.file.read1(65536):
                pass
        except ConnectionError:
            pass
        return True

    def shutdown(self):
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def close(self):
        self.file.close()
        self.sock.close()


def reply(body=b"", status="200 OK", headers=""):
    return f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Rig:
    """The proxy alone, in front of the loopback (tests/support/proxy_rig.c)."""

    def __init__(self, *args):
        self.process = subprocess.Popen([os.path.join(BUILD, "proxy_rig"), *args], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.port = int(self.process.stdout.readline())

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        _, err = self.process.communicate(timeout=TIMEOUT)
        assert kind or (self.process.returncode == 0 and not err), err.decode()

    def end_lease(self):
        self.process.stdin.write(b"end\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == b"ended\n"

    @contextlib.contextmanager
    def client(self):
        c = Conn(socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT))
        try:
            yield c
        finally:
            c.close()

    def ask(self, request):
        """Sends a request as it is; (status, fields, body)."""
        with self.client() as c:
            c.send(request)
            return response(c, head=request.startswith(b"HEAD"))

    def get(self, upstream, rest="/", headers="", method="GET"):
        return self.ask(f"{method} /leases/l1/proxy/{upstream.port}{rest} HTTP/1.1\r\nHost: public.example\r\n{headers}\r\n"
                        .encode("latin-1"))


def response(c, head=False):
    first, fields = c.head()
    status = int(first.split()[1])
    h = {k.lower(): v for k, v in fields}
    if head or status in (204, 304):
        body = b""
    elif "content-length" in h or "transfer-encoding" in h:
        body = c.body(fields)
    else:
        body = c.file.read()
    return status, fields, body


def values(fields, name):
    return [v for k, v in fields if k.lower() == name.lower()]
