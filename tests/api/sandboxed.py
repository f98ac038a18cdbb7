"""Services to run inside sandboxes, and sockets to them."""
import os

import ws
from harness import SLOW
from upstream import Conn

# What listens goes on in the background from here; its command ends, so nobody has to ask whether it is up.
BACKGROUND = r"""
def background():
    import os
    if os.fork():
        os._exit(0)
    os.setsid()
    for fd in 0, 1, 2:
        os.dup2(os.open("/dev/null" if fd == 0 else "/tmp/log", os.O_RDWR | os.O_CREAT | os.O_APPEND), fd)
"""


def start(client, lease, code, *args):
    """Runs Python code, which calls background() once it listens, before any thread."""
    name = f"/tmp/service-{abs(hash(code))}.py"
    assert client.write(lease, name, (BACKGROUND + code).encode()).status in (200, 201)
    r = client.exec(lease, ["python3", name, *map(str, args)], env={"PYTHONPATH": "/workspace"})
    assert r["returncode"] == 0, r


# A service that says what it got, redirects, streams, and closes when told so.
SERVICE = r"""
import http.server, json, os, sys, time
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *a): pass
    def do(self):
        n = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(n)
        path = self.path.split("?")[0]
        if path == "/redirect":
            self.send_response(302); self.send_header("Location", self.headers["X-To"]); self.send_header("Content-Length", "0"); self.end_headers()
            return
        if path == "/stream":
            self.send_response(200); self.send_header("Content-Type", "text/event-stream"); self.send_header("Connection", "close"); self.end_headers()
            while True:
                self.wfile.write(b"data: x\n\n"); self.wfile.flush(); time.sleep(0.05)
        out = json.dumps({"line": self.requestline, "headers": self.headers.items(), "body": len(body)}).encode()
        self.send_response(200); self.send_header("Content-Type", "application/json"); self.send_header("Content-Length", str(len(out)))
        for cookie in self.headers.get_all("X-Set") or ["a=b"]: self.send_header("Set-Cookie", cookie)
        self.end_headers()
        if self.command != "HEAD": self.wfile.write(out)
    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = do_PATCH = do
class S(http.server.ThreadingHTTPServer):
    if sys.argv[2] == "6": import socket; address_family = socket.AF_INET6
s = S((sys.argv[3], int(sys.argv[1])), H)
background()
s.serve_forever()
"""

# A WebSocket server on ws.py, which lies beside it; it says its Host and Origin first.
WEBSOCKETS = r"""
import socket, sys, threading, ws
class Conn:
    def __init__(self, sock): self.sock, self.file, self.send = sock, sock.makefile("rb"), sock.sendall
    def exact(self, n): 
        data = self.file.read(n)
        if len(data) < n: raise EOFError
        return data
    def head(self):
        first, fields = self.file.readline(), []
        while (line := self.file.readline()) not in (b"\r\n", b""):
            k, _, v = line.decode().partition(":"); fields.append((k, v.strip()))
        h = dict(fields)
        self.hello = ws.frame(ws.TEXT, f"{h['Host']} {h.get('Origin')}".encode(), False)
        return first, fields
def serve(c):
    try:
        _, fields = c.head()
        c.send(ws.accept(fields) + c.hello)
        while True:
            opcode, data = ws.read_frame(c)
            c.send(ws.frame(ws.PONG if opcode == ws.PING else opcode, data, False))
            if opcode == ws.CLOSE: return
    except (EOFError, OSError): pass
    finally: c.file.close(); c.sock.close()
s = socket.create_server(("127.0.0.1", int(sys.argv[1])))
background()
while True: threading.Thread(target=serve, args=(Conn(s.accept()[0]),), daemon=True).start()
"""


def start_websockets(client, lease, port=8100):
    with open(os.path.join(os.path.dirname(__file__), "ws.py"), "rb") as f:
        client.write(lease, "ws.py", f.read())
    start(client, lease, WEBSOCKETS, port)


def open_socket(server, lease, token, port=8100, headers=""):
    """(connection, status, fields) of a WebSocket on the path form."""
    c = Conn(server.connect(timeout=30 * SLOW))
    auth = f"Authorization: Bearer {token}\r\n" if token else ""
    c.send(ws.request(f"/leases/{lease}/proxy/{port}/", headers=auth + headers))
    line, fields = c.head()
    return c, int(line.split()[1]), fields


def start_service(client, lease, port=8000, family="4", address="127.0.0.1"):
    start(client, lease, SERVICE, port, family, address)
