"""Streaming answers as a client reads them, and the few words for commands that stream or run detached."""
import base64
import json
import socket

from harness import SLOW, wait_until

NDJSON, SSE = "application/x-ndjson", "text/event-stream"


class Stream:
    """One streaming answer, read byte by byte from a socket of its own: status, headers, then events as they come."""

    def __init__(self, port, method, path, body=None, accept=NDJSON, headers=None, step=65536, rcvbuf=None, version="1.1", timeout=60 * SLOW):
        self.sock = socket.socket()
        if rcvbuf:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        self.sock.settimeout(timeout)
        self.sock.connect(("127.0.0.1", port))
        self.step, self.raw, self.text, self.complete, self.accept = step, b"", b"", False, accept
        data = b"" if body is None else json.dumps(body).encode()
        head = {"Host": "h", "Accept": accept, "Content-Type": "application/json", "Content-Length": str(len(data)), **(headers or {})}
        self.sock.sendall(f"{method} {path} HTTP/{version}\r\n".encode() + b"".join(f"{k}: {v}\r\n".encode() for k, v in head.items()) + b"\r\n" + data)
        while b"\r\n\r\n" not in self.raw:
            assert self._more(), self.raw
        head, self.raw = self.raw.split(b"\r\n\r\n", 1)
        lines = head.decode().split("\r\n")
        self.status = int(lines[0].split()[1])
        self.headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines[1:])}
        self.chunked = self.headers.get("transfer-encoding") == "chunked"

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def close(self):
        self.sock.close()

    def _more(self):
        data = self.sock.recv(self.step)
        self.raw += data
        return len(data) > 0

    def _need(self, n):
        while len(self.raw) < n:
            if not self._more():
                raise EOFError("cut")
        out, self.raw = self.raw[:n], self.raw[n:]
        return out

    def _line(self):
        while b"\r\n" not in self.raw:
            if not self._more():
                raise EOFError("cut")
        out, self.raw = self.raw.split(b"\r\n", 1)
        return out

    def _chunk(self):
        """The next piece of the body; b"" at its proper end."""
        if not self.chunked:
            if not self.raw and not self._more():
                return b""
            out, self.raw = self.raw, b""
            return out
        out = self._need(int(self._line(), 16))
        assert self._need(2) == b"\r\n"
        return out

    def events(self, pings=False):
        """Every event until the body's proper end; EOFError when it is cut."""
        assert self.status == 200, (self.status, self.raw)
        end = b"\n\n" if self.accept == SSE else b"\n"
        while True:
            while end in self.text:
                frame, self.text = self.text.split(end, 1)
                e = self._parse(frame.decode())
                if pings or e["type"] != "ping":
                    yield e
            piece = self._chunk()
            if not piece:
                break
            self.text += piece
        assert self.text == b"", self.text
        self.complete = True

    def _parse(self, frame):
        if self.accept != SSE:
            return json.loads(frame)
        fields = dict(line.split(": ", 1) for line in frame.split("\n"))
        e = json.loads(fields["data"])
        assert fields["event"] == e["type"] and fields.get("id") == (str(e["seq"]) if "seq" in e else None), frame
        return e

    def all(self):
        return list(self.events())


def run(server, lease, command, accept=NDJSON, headers=None, **body):
    known = {k: body.pop(k) for k in ("step", "rcvbuf", "version") if k in body}
    return Stream(server.port, "POST", f"/leases/{lease}/exec", dict(body, command=command), accept, headers, **known)


def follow(server, lease, eid, after=0, accept=NDJSON, wait=True, headers=None, **kw):
    return Stream(server.port, "GET", f"/leases/{lease}/exec/{eid}/output?after={after}" + ("&follow=1" if wait else ""), None, accept, headers, **kw)


def detach(client, lease, command, **body):
    r = client.post(f"/leases/{lease}/exec", dict(body, command=command, detach=True))
    assert r.status == 202 and r.header("Location") == f"/leases/{lease}/exec/{r.json()['exec_id']}", r
    return r.json()["exec_id"]


def info(client, lease, eid):
    r = client.get(f"/leases/{lease}/exec/{eid}")
    assert r.status == 200, r
    return r.json()


def ended(client, lease, eid, seconds=20):
    return wait_until(lambda: (lambda i: i if i["state"] != "running" else None)(info(client, lease, eid)), seconds)


def data(events, kind="stdout"):
    return b"".join(base64.b64decode(e["data"]) if e["encoding"] == "base64" else e["data"].encode() for e in events if e["type"] == kind)


def numbered(events, first=1):
    """Without gap or repetition."""
    assert [e["seq"] for e in events] == list(range(first, first + len(events))), events
    return events


def wait_for(path_exists, client, lease):
    wait_until(lambda: client.get(f"/leases/{lease}/files/stat?path={path_exists}").status == 200)
