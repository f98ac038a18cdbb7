#!/usr/bin/env python3
"""An HTTP origin that behaves well and badly on demand, for the tests of HTTP calls.

origin.py [--unix PATH] [--tls CERT KEY]: prints its port (or "unix") on a line, then serves until its standard input ends.
What a path does: see Handler.
"""

import argparse
import http.server
import os
import socket
import socketserver
import ssl
import sys
import threading
import urllib.parse

connections = 0
requests = {}
lock = threading.Lock()
gates = {}


def gate(name):
    with lock:
        return gates.setdefault(name, threading.Event())


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def setup(self):
        global connections
        super().setup()
        with lock:
            connections += 1

    def log_message(self, *args):
        pass

    def address_string(self):
        return "peer"

    def body(self):
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            out = b""
            while True:
                n = int(self.rfile.readline().split(b";")[0], 16)
                out += self.rfile.read(n)
                self.rfile.readline()
                if n == 0:
                    return out
        return self.rfile.read(int(self.headers.get("Content-Length", "0")))

    def answer(self, status, body=b"", headers=()):
        self.send_response(status)
        for k, v in headers:
            self.send_header(k, v)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def run(self):
        url = urllib.parse.urlsplit(self.path)
        q = dict(urllib.parse.parse_qsl(url.query))
        with lock:
            requests[url.path] = requests.get(url.path, 0) + 1
        what = getattr(self, "do" + url.path.replace("/", "_"), None)
        if what is None:
            self.body()
            return self.answer(404, b"no such thing\n")
        return what(q)

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = do_PATCH = run

    # what was asked for: method, body length and the fields named X-* and Content-Type, a line each
    def do_echo(self, q):
        body = self.body()
        lines = [self.command, self.path, str(len(body)), str(sum(body) % 65536)]
        lines += [f"{k}: {v}" for k, v in self.headers.items() if k.lower().startswith("x-") or k in ("Content-Type", "Expect")]
        self.answer(int(q.get("status", "200")), "\n".join(lines).encode(), [("X-Origin", "here"), ("Retry-After", q.get("retry_after", "7"))])

    # n bytes, in chunks
    def do_big(self, q):
        self.body()
        self.send_response(int(q.get("status", "200")))
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        left, at = int(q["n"]), 0
        while left > 0:
            n = min(left, 60000)
            self.chunk(bytes((at + i) % 251 for i in range(n)) if n < 60000 else block(at))
            at, left = at + n, left - n
        self.chunk(b"")

    # answers once the gate of that name is opened by /open
    def do_wait(self, q):
        self.body()
        gate(q["gate"]).wait(20)
        self.answer(200, b"waited")

    def do_open(self, q):
        gate(q["gate"]).set()
        self.answer(200)

    # a head and a first byte, and then nothing until the gate opens
    def do_half(self, q):
        self.body()
        self.send_response(200)
        self.send_header("Content-Length", "10")
        self.end_headers()
        self.wfile.write(b"h")
        self.wfile.flush()
        gate(q["gate"]).wait(20)
        self.close_connection = True

    # closes without an answer, after having read the request
    def do_drop(self, q):
        self.body()
        self.close_connection = True

    def do_garbage(self, q):
        self.body()
        self.wfile.write(b"\x00\x01\x02 what is this\r\n\r\n")
        self.close_connection = True

    def do_heads(self, q):
        self.body()
        self.answer(200, b"", [(f"X-{i}", "y" * 1000) for i in range(int(q["n"]))])

    def do_moved(self, q):
        self.body()
        self.answer(302, b"", [("Location", "/echo")])

    # answers, and closes the connection a moment later without having said so
    def do_fickle(self, q):
        self.body()
        self.answer(200, b"fickle")
        self.close_connection = True

    # stops being HTTP: what comes is sent back, each byte plus one, up to the end of it, then "end"; the body of the request comes first.
    # as=200: without a change of protocol; deaf=n: reads no more than n bytes and ends; split: the head comes byte by byte
    def do_upgrade(self, q):
        body = self.body()
        how = b"200 OK" if q.get("as") == "200" else b"101 Switching Protocols"
        head = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 " + how + b"\r\nX-Origin: " + self.headers["Upgrade"].encode() + b"\r\n\r\n"
        for piece in ([head[i:i + 1] for i in range(len(head))] if "split" in q else [head + body]):
            self.wfile.write(piece)
            self.wfile.flush()
        left = int(q.get("deaf", 1 << 40))
        while left > 0:
            data = self.connection.recv(min(65536, left))
            if not data:
                break
            left -= len(data)
            self.connection.sendall(bytes((b + 1) % 256 for b in data))
        self.connection.sendall(b"end")
        self.close_connection = True

    def do_counts(self, q):
        with lock:
            text = f"{connections} " + " ".join(f"{k}={v}" for k, v in sorted(requests.items()))
        self.answer(200, text.encode())


blocks = {}


def block(at):
    k = at % 251
    if k not in blocks:
        blocks[k] = bytes((k + i) % 251 for i in range(60000))
    return blocks[k]


class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 256

    def handle_error(self, request, client_address):
        pass


class UnixServer(Server):
    address_family = socket.AF_UNIX

    def get_request(self):
        s, _ = super().get_request()
        return s, ("unix", 0)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--unix")
    p.add_argument("--tls", nargs=2)
    a = p.parse_args()
    s = UnixServer(a.unix, Handler) if a.unix else Server(("127.0.0.1", 0), Handler)
    if a.tls:
        ctx = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        ctx.load_cert_chain(*a.tls)
        s.socket = ctx.wrap_socket(s.socket, server_side=True)
    threading.Thread(target=s.serve_forever, daemon=True).start()
    print("unix" if a.unix else s.server_address[1], flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
