#!/usr/bin/python3
"""A stand-in for E2B: its lifecycle API and, behind an edge as theirs, the daemons of real sandboxes (bwrap).

usage: standin.py [--port N] [--key-file FILE] [--templates base,other] [--max N] [--max-timeout SECONDS] [--old STATUS]
Writes one line of JSON {"port": N} to stdout once it listens on 127.0.0.1; the key may also come from E2B_STANDIN_KEY.
Ends with its standard input. --old: a deployment of before POST /v2/sandboxes..., which is answered with that status.

Faults and figures are had from /_standin/... without a key (tests only):
  POST /_standin/faults   [{"op": OP, "kind": KIND, "times": N, "skip": N, ...}]  replaces the list; times 0: for ever
  GET  /_standin/state    sandboxes, all ids ever made, requests per op, starts per tag, faults done, failures of authentication
  POST /_standin/vanish   {"id": ID}      the sandbox is gone, by itself
  POST /_standin/key      {"key": KEY}    no other is good any more
OP: create get list delete timeout connect pause snapshot snapshots unsnapshot start input close signal update processes read write
    fs_stat fs_list fs_mkdir fs_remove fs_move, or "*".
KIND: status (status, body?, headers?, retry_after?; nothing happens), echo (500 that repeats the key it was sent), stall (no answer;
    nothing happens), stall_after (done, but no answer), drop (connection cut; nothing happens), drop_after (done, then cut), slow
    (seconds; then as usual), late (start: connection cut; done once a later start has come to its end), cut (bytes: of a streamed answer, then the connection ends), garbage (200 that is no JSON), huge (200 whose body does not
    end), trickle (the same, a byte at a time), redirect
    (status 302 or another, to url), duplicate (create: two of them, one told), gone (the sandbox is removed first), disconnect (snapshot: calls to the sandbox's daemon are cut, as by a pause)."""
import argparse
import http.server
import json
import os
import re
import resource
import secrets
import shutil
import socket
import socketserver
import sys
import tempfile
import threading
import time
import urllib.parse

import sandboxes

PATHS = [("POST", r"/(?:v2/)?sandboxes", "create"), ("GET", r"/v2/sandboxes", "list"), ("GET", r"/sandboxes/([\w-]+)", "get"),
         ("DELETE", r"/sandboxes/([\w-]+)", "delete"), ("POST", r"/sandboxes/([\w-]+)/timeout", "timeout"),
         ("POST", r"/(?:v2/)?sandboxes/([\w-]+)/connect", "connect"), ("POST", r"/sandboxes/([\w-]+)/pause", "pause"),
         ("POST", r"/sandboxes/([\w-]+)/snapshots", "snapshot"), ("GET", r"/snapshots", "snapshots"),
         ("DELETE", r"/templates/([^/]+)", "unsnapshot")]
ENVD = {"/process.Process/Start": "start", "/process.Process/Connect": "attach", "/process.Process/SendInput": "input",
        "/process.Process/CloseStdin": "close", "/process.Process/SendSignal": "signal", "/process.Process/Update": "update",
        "/process.Process/List": "processes", "/filesystem.Filesystem/Stat": "fs_stat", "/filesystem.Filesystem/ListDir": "fs_list",
        "/filesystem.Filesystem/MakeDir": "fs_mkdir", "/filesystem.Filesystem/Remove": "fs_remove",
        "/filesystem.Filesystem/Move": "fs_move", "/health": "health"}


class World:
    """All that the provider knows."""

    def __init__(self, args, key):
        self.args, self.key, self.lock = args, key, threading.Lock()
        self.dir = tempfile.mkdtemp(prefix="e2b.")
        self.boxes, self.snapshots, self.ever = {}, {}, []
        self.under_way = 0  # calls of the API
        self.counts, self.starts, self.faults, self.done, self.unauthorized = {}, {}, [], {}, 0
        self.ended_starts, self.ended = 0, threading.Condition(self.lock)
        self.templates = set(args.templates.split(","))

    def take_fault(self, op):
        with self.lock:
            self.counts[op] = self.counts.get(op, 0) + 1
            for f in self.faults:
                if f["op"] not in (op, "*"):
                    continue
                if f.get("skip", 0) > 0:
                    f["skip"] -= 1
                    continue
                if f.get("times", 1) != 0:
                    f["times"] = f.get("times", 1) - 1
                    if f["times"] == 0:
                        self.faults.remove(f)
                name = op + "." + f["kind"]
                self.done[name] = self.done.get(name, 0) + 1
                return dict(f)
        return None

    def start_ended(self, late):
        with self.ended:
            self.ended_starts += 1
            if late:
                self.done["start.late.ended"] = self.done.get("start.late.ended", 0) + 1
            self.ended.notify_all()

    def await_other_start(self):
        with self.ended:
            n = self.ended_starts
            self.ended.wait_for(lambda: self.ended_starts > n, 60)

    def find(self, sandbox):
        found = self.boxes.get(sandbox.split("-")[0])
        if found and found.popen.poll() is not None:
            self.remove(found)
        return found if found and found.state != "gone" else None

    def make(self, spec, timeout):
        source = self.snapshots.get(spec["templateID"])
        made = sandboxes.Box(self.dir, spec, source["root"] if source else None)
        if (spec.get("network") or {}).get("allowPublicTraffic") is False:
            made.traffic = secrets.token_hex(16)
        with self.lock:
            self.boxes[made.id] = made
            self.ever.append(made.id)
        made.expire_at(time.time() + timeout, self.expire)
        return made

    def expire(self, b):
        if b.spec.get("autoPause") and b.state == "running":
            b.freeze(True)
        else:
            self.remove(b)

    def remove(self, b):
        with self.lock:
            self.boxes.pop(b.id, None)
        b.destroy()

    def close(self):
        for b in list(self.boxes.values()):
            self.remove(b)
        shutil.rmtree(self.dir, ignore_errors=True)

    def report(self):
        with self.lock:
            boxes = [{"id": b.id, "metadata": b.spec.get("metadata") or {}, "state": b.state, "template": b.spec["templateID"],
                      "ends_in": b.end_at - time.time(), "envs": b.spec.get("envVars") or {}} for b in self.boxes.values()]
            return {"sandboxes": boxes, "ever": list(self.ever), "counts": dict(self.counts), "starts": dict(self.starts),
                    "snapshots": list(self.snapshots), "done": dict(self.done), "unauthorized": self.unauthorized,
                    "faults": list(self.faults), "under_way": self.under_way}


class Refused(Exception):
    def __init__(self, status, message, **more):
        super().__init__(message)
        self.status, self.body = status, {"code": status, "message": message, **more}


def stamp(t):
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(t)) + f".{int(t % 1 * 1000):03d}Z"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    world = None

    def setup(self):
        super().setup()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32768)  # what nobody reads is to be felt soon

    def log_message(self, *_):
        pass

    # ---- the request

    def pieces(self):
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            while True:
                size = int(self.rfile.readline().split(b";")[0], 16)
                if not size:
                    while self.rfile.readline().strip():
                        pass
                    return
                while size:
                    data = self.rfile.read1(min(size, 65536))
                    if not data:
                        raise ConnectionError("cut body")
                    size -= len(data)
                    yield data
                self.rfile.readline()
        left = int(self.headers.get("Content-Length") or 0)
        while left:
            data = self.rfile.read1(min(left, 65536))
            if not data:
                raise ConnectionError("cut body")
            left -= len(data)
            yield data

    def json_body(self):
        raw = b"".join(self.pieces())
        try:
            return json.loads(raw) if raw else {}
        except ValueError as e:
            raise Refused(400, "Error parsing request body") from e

    def answer(self, status, body=None, headers=(), kind="application/json"):
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for k, v in headers:
            self.send_header(k, v)
        if self.close_connection:
            self.send_header("Connection", "close")
        if status != 204:
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if status != 204 and self.command != "HEAD":
            self.wfile.write(data)

    def cut(self):
        self.close_connection = True
        try:
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def serve(self):
        try:
            port = re.match(r"(\d+)-([a-z0-9]+)\.", self.headers.get("Host", ""))
            url = urllib.parse.urlsplit(self.path)
            if url.path.startswith("/_standin/"):
                return self.control(url.path)
            if port and int(port[1]) != 49983:
                return self.port(int(port[1]), port[2])
            op, found = ENVD.get(url.path), None
            if url.path == "/files":
                op = "read" if self.command == "GET" else "write"
            if op:
                return self.edge(op, self.headers.get("E2b-Sandbox-Id") or port and port[2])
            if self.world.args.old and self.command == "POST" and url.path.startswith("/v2/"):
                b"".join(self.pieces())
                raise Refused(self.world.args.old, "no matching operation was found")
            self.v2 = url.path.startswith("/v2/")
            for method, pattern, name in PATHS:
                found = re.fullmatch(pattern, url.path)
                if found and method == self.command:
                    return self.lifecycle(name, found.groups(), dict(urllib.parse.parse_qsl(url.query)), url.query)
            self.answer(404, {"code": 404, "message": "no matching operation was found"})
            self.close_connection = True
        except Refused as e:
            self.answer(e.status, e.body)
        except (ConnectionError, BrokenPipeError):
            self.cut()

    do_GET = do_POST = do_DELETE = do_PUT = do_HEAD = do_PATCH = serve

    # ---- faults

    def fault_before(self, op, sandbox):
        """(fault, whether it was all)."""
        f = self.world.take_fault(op)
        if not f:
            return None, False
        kind = f["kind"]
        if kind == "status":
            b"".join(self.pieces())
            headers = list((f.get("headers") or {}).items())
            if "retry_after" in f:
                headers.append(("Retry-After", str(f["retry_after"])))
            self.answer(f["status"], f.get("body", {"code": f["status"], "message": f.get("message", "fault by order")}), headers)
            return f, True
        if kind == "echo":
            b"".join(self.pieces())
            key = self.headers.get("X-API-Key") or self.headers.get("X-Access-Token") or ""
            self.answer(f.get("status", 500), {"code": 500, "message": f"could not handle request of key {key}"})
            return f, True
        if kind == "stall":
            self.hold()
            return f, True
        if kind == "drop":
            self.cut()
            return f, True
        if kind == "garbage":
            b"".join(self.pieces())
            self.answer(200, b"<html>upstream request timeout</html>", kind="text/html")
            return f, True
        if kind == "redirect":
            b"".join(self.pieces())
            self.answer(f.get("status", 302), b"", [("Location", f["url"])])
            return f, True
        if kind in ("huge", "trickle"):
            b"".join(self.pieces())
            self.pour(b"x" if kind == "trickle" else b"x" * 65536, 0.1 if kind == "trickle" else 0)
            return f, True
        if kind == "slow":
            time.sleep(f["seconds"])
        if kind == "gone" and sandbox and self.world.find(sandbox):
            self.world.remove(self.world.find(sandbox))
        return f, False

    def pour(self, piece, pause):
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while True:  # until nobody takes it any more
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            time.sleep(pause)

    def hold(self):
        """Until the caller gives up."""
        self.connection.settimeout(120)
        try:
            while self.connection.recv(65536):
                pass
        except OSError:
            pass
        self.cut()

    # ---- lifecycle

    def lifecycle(self, op, ids, query, raw_query):
        w = self.world
        with w.lock:
            w.under_way += 1
        try:
            self.do_lifecycle(w, op, ids, query, raw_query)
        finally:
            with w.lock:
                w.under_way -= 1

    def do_lifecycle(self, w, op, ids, query, raw_query):
        f, over = self.fault_before(op, ids[0] if ids else None)
        if over:
            return
        if self.headers.get("X-API-Key") != w.key:
            w.unauthorized += 1
            b"".join(self.pieces())
            raise Refused(401, "Invalid API key, please visit the documentation for more information.")
        kind = f["kind"] if f else None
        try:
            status, body, headers = getattr(self, "op_" + op)(*ids, query=query, raw=raw_query, kind=kind)
        except Refused as e:
            status, body, headers = e.status, e.body, ()
        if kind == "drop_after":
            self.cut()
        elif kind == "stall_after":
            self.hold()
        else:
            self.answer(status, body, headers)

    def known(self, sandbox):
        found = self.world.find(sandbox)
        if not found:
            raise Refused(404, f'Sandbox "{sandbox}" doesn\'t exist or you don\'t have access to it')
        return found

    @staticmethod
    def told(b):
        return {"templateID": b.spec["templateID"], "sandboxID": b.id, "clientID": "6532622b", "alias": b.spec["templateID"],
                "envdVersion": "0.6.13", "envdAccessToken": None if b.open else b.token, "trafficAccessToken": b.traffic, "domain": None}

    @staticmethod
    def details(b):
        return {"templateID": b.spec["templateID"], "alias": b.spec["templateID"], "sandboxID": b.id, "clientID": "6532622b",
                "startedAt": stamp(b.started), "endAt": stamp(b.end_at), "cpuCount": 2, "memoryMB": 512, "diskSizeMB": 1024,
                "metadata": b.spec.get("metadata") or {}, "state": b.state, "envdVersion": "0.6.13"}

    def seconds(self, value, default=None):
        if value is None and default is not None:
            value = default
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise Refused(400, "timeout must be a positive number of seconds")
        if value > self.world.args.max_timeout:
            raise Refused(400, f"Timeout cannot be greater than {self.world.args.max_timeout // 3600} hours")
        return value

    def op_create(self, kind=None, **_):
        spec, w = self.json_body(), self.world
        name = spec.get("templateID")
        if not isinstance(name, str):
            raise Refused(400, "templateID is required")
        timeout = self.seconds(spec.get("timeout"), 300)
        for field in ("metadata", "envVars"):
            if not all(isinstance(v, str) for v in (spec.get(field) or {}).values()):
                raise Refused(400, f"{field} must be a map of strings")
        if name not in w.templates and name not in w.snapshots:
            raise Refused(404, f"template '{name}' not found")
        if len(w.boxes) >= w.args.max:
            raise Refused(429, f"You have reached the maximum number of concurrent E2B sandboxes ({w.args.max}).")
        made = w.make(spec, timeout)
        made.open = not self.v2 and not spec.get("secure")
        if kind == "duplicate":
            made = w.make(spec, timeout)
        if kind == "gone":
            w.remove(made)
        return 201, self.told(made), ()

    def op_get(self, sandbox, **_):
        b = self.known(sandbox)
        return 200, {**self.details(b), "envdAccessToken": b.token, "domain": None}, ()

    def op_list(self, query=None, raw="", **_):
        wanted = {}
        for pair in raw.split("&"):
            if pair.startswith("metadata="):
                once = urllib.parse.unquote(pair[len("metadata="):])
                for kv in filter(None, once.split("&")):
                    k, _, v = kv.partition("=")
                    wanted[urllib.parse.unquote(urllib.parse.unquote(k))] = urllib.parse.unquote(urllib.parse.unquote(v))
        states = query.get("state", "running,paused").split(",")
        with self.world.lock:
            found = [b for b in self.world.boxes.values() if b.state in states and
                     all((b.spec.get("metadata") or {}).get(k) == v for k, v in wanted.items())]
        found.sort(key=lambda b: (b.started, b.id), reverse=query.get("order", "desc") == "desc")
        limit = int(query.get("limit", 100))
        if not 1 <= limit <= 100:
            raise Refused(400, "limit must be between 1 and 100")
        after = query.get("nextToken")
        if after:
            ids = [b.id for b in found]
            found = found[ids.index(after) + 1:] if after in ids else []
        headers = [("X-Next-Token", found[limit - 1].id)] if len(found) > limit else []
        return 200, [self.details(b) for b in found[:limit]], headers

    def op_delete(self, sandbox, **_):
        self.world.remove(self.known(sandbox))
        return 204, None, ()

    def op_timeout(self, sandbox, **_):
        seconds = self.seconds(self.json_body().get("timeout"))
        b = self.known(sandbox)
        if b.state != "running":
            raise Refused(404, f"Sandbox {sandbox} is not running")
        b.expire_at(time.time() + seconds, self.world.expire)
        return 204, None, ()

    def op_connect(self, sandbox, **_):
        seconds = self.seconds(self.json_body().get("timeout"), 300)
        b, status = self.known(sandbox), 200
        if b.state == "paused":
            b.freeze(False)
            status = 201
        b.expire_at(max(b.end_at if status == 200 else 0, time.time() + seconds), self.world.expire)
        return status, self.told(b), ()

    def op_pause(self, sandbox, **_):
        self.json_body()
        b = self.known(sandbox)
        if b.state == "paused":
            raise Refused(409, f"Sandbox {sandbox} is already paused")
        b.freeze(True)
        b.expire_at(time.time() + 30 * 86400, self.world.expire)
        return 204, None, ()

    def op_snapshot(self, sandbox, kind=None, **_):
        name = self.json_body().get("name")
        if name is not None and not (isinstance(name, str) and re.fullmatch(r"[a-z0-9_-]{1,128}", name)):
            raise Refused(400, f"Invalid snapshot name: {name}")
        b, snap = self.known(sandbox), (f"standin/{name}" if name else "s" + secrets.token_hex(9)) + ":default"
        if b.state != "running":
            raise Refused(409, f"Sandbox {sandbox} is not running")
        root = os.path.join(self.world.dir, "s" + secrets.token_hex(9))
        b.hold(True)
        if kind == "disconnect":
            b.disconnect()
        sandboxes.subprocess.run(["cp", "-a", b.root, root], check=True)
        b.hold(False)
        with self.world.lock:
            old = self.world.snapshots.get(snap)  # a name that is taken: another build of it
            self.world.snapshots[snap] = {"root": root, "names": [snap] if name else [], "sandbox": b.id}
        if old:
            shutil.rmtree(old["root"], ignore_errors=True)
        return 201, {"snapshotID": snap, "names": [snap] if name else []}, ()

    def op_snapshots(self, query=None, **_):
        wanted = query.get("name")
        with self.world.lock:
            found = [{"snapshotID": k, "names": v["names"]} for k, v in sorted(self.world.snapshots.items())
                     if query.get("sandboxID", v["sandbox"]) == v["sandbox"] and
                     (wanted is None or wanted in (k, k.split(":")[0], k.split("/")[-1], k.split("/")[-1].split(":")[0]))]
        limit, after = int(query.get("limit", 100)), query.get("nextToken")
        if after:
            found = [x for x in found if x["snapshotID"] > after]
        headers = [("X-Next-Token", found[limit - 1]["snapshotID"])] if len(found) > limit else []
        return 200, found[:limit], headers

    def op_unsnapshot(self, name, **_):
        snap = self.world.snapshots.pop(urllib.parse.unquote(name), None)
        if not snap:
            raise Refused(404, "template not found")
        shutil.rmtree(snap["root"], ignore_errors=True)
        return 204, None, ()

    # ---- the edge: what goes to a sandbox's own daemon

    def edge(self, op, sandbox):
        f, over = self.fault_before(op, sandbox)
        if over:
            return
        if not sandbox or not self.headers.get("E2b-Sandbox-Port"):
            b"".join(self.pieces())
            raise Refused(400, "invalid host or missing routing headers")
        b = self.world.find(sandbox)
        if not b or not b.alive():
            b"".join(self.pieces())
            return self.answer(502, {"sandboxId": sandbox, "message": "The sandbox was not found", "code": 502})
        body, late = None if self.command == "GET" else self.pieces(), f is not None and f["kind"] == "late"
        if op == "start":
            raw = b"".join(body)
            self.count_start(raw)
            body = [raw]
            if late:
                self.cut()
                self.world.await_other_start()
        headers = {k: v for k, v in self.headers.items()
                   if k.lower() not in ("host", "content-length", "transfer-encoding", "connection", "expect")}
        conn = b.connect()
        b.connections.add(conn)
        try:
            if body is None:
                conn.request(self.command, self.path, headers=headers)
            else:
                conn.request(self.command, self.path, body=body, headers={**headers, "Transfer-Encoding": "chunked"},
                             encode_chunked=True)
            self.relay(conn.getresponse(), f)
        except (OSError, sandboxes.http.client.HTTPException):
            self.cut()  # the sandbox went away under it
        finally:
            b.connections.discard(conn)
            conn.close()
            if op == "start":
                self.world.start_ended(late)

    def count_start(self, raw):
        try:
            a = json.loads(raw[5:])
            tag = a.get("tag") or ""
            with self.world.lock:
                self.world.starts[tag] = self.world.starts.get(tag, 0) + 1
        except ValueError:
            pass

    def relay(self, resp, f):
        kind, sent = f["kind"] if f else None, 0
        if kind == "drop_after":
            if resp.length is not None:
                resp.read()
            return self.cut()
        if kind == "stall_after":
            return self.hold()
        if kind == "late":
            resp.read()
            return None
        self.send_response(resp.status)
        for k, v in resp.getheaders():
            if k.lower() not in ("connection", "transfer-encoding", "server", "date"):
                self.send_header(k, v)
        framed = resp.length is None and resp.status != 204
        if framed:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while data := resp.read1(65536):
            if kind == "cut" and sent + len(data) > f["bytes"]:
                data = data[:f["bytes"] - sent]
            sent += len(data)
            if data:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data) if framed else data)
            if kind == "cut" and sent >= f["bytes"]:
                return self.cut()
        if framed:
            self.wfile.write(b"0\r\n\r\n")

    def port(self, port, sandbox):
        """A public URL: PORT-SANDBOX.DOMAIN. The connection belongs to that port from here on."""
        b = self.world.find(sandbox)
        self.close_connection = True
        if not b or not b.alive():
            return self.answer(502, {"sandboxId": sandbox, "message": "The sandbox was not found", "code": 502})
        if b.traffic and self.headers.get("e2b-traffic-access-token") != b.traffic:
            return self.answer(403, {"sandboxId": sandbox, "message": "traffic access token is missing or wrong", "code": 403})
        conn = sandboxes.UnixConnection(b.socket)
        conn.connect()
        inner = conn.sock
        inner.sendall(b"CONNECT sandbox:%d HTTP/1.1\r\nX-Access-Token: %s\r\n\r\n" % (port, b.token.encode()))
        head = b""
        while b"\r\n\r\n" not in head:
            data = inner.recv(1)
            if not data:
                break
            head += data
        if b" 200 " not in head.split(b"\r\n")[0]:
            conn.close()
            return self.answer(502, {"sandboxId": sandbox, "message": "The sandbox is running but port is not open",
                                     "port": port, "code": 502})
        lines = [self.requestline.encode()] + [f"{k}: {v}".encode() for k, v in self.headers.items()]
        inner.sendall(b"\r\n".join(lines) + b"\r\n\r\n")

        def up():
            try:
                while data := self.rfile.read1(65536):
                    inner.sendall(data)
                inner.shutdown(socket.SHUT_WR)
            except OSError:
                pass
        threading.Thread(target=up, daemon=True).start()
        try:
            while data := inner.recv(65536):
                self.wfile.write(data)
        except OSError:
            pass
        conn.close()
        self.cut()

    # ---- orders of a test

    def control(self, path):
        body = self.json_body() if self.command == "POST" else None
        if path == "/_standin/faults":
            with self.world.lock:
                self.world.faults = list(body)
            return self.answer(204)
        if path == "/_standin/key":
            self.world.key = body["key"]
            return self.answer(204)
        if path == "/_standin/vanish":
            self.world.remove(self.known(body["id"]))
            return self.answer(204)
        if path == "/_standin/state":
            return self.answer(200, self.world.report())
        return self.answer(404)


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


def main():
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)  # shells often allow 1024
    p = argparse.ArgumentParser()
    p.add_argument("--port", type=int, default=0)
    p.add_argument("--key-file")
    p.add_argument("--templates", default="base")
    p.add_argument("--max", type=int, default=100)
    p.add_argument("--max-timeout", type=int, default=86400)
    p.add_argument("--old", type=int)
    args = p.parse_args()
    key = open(args.key_file).read().strip() if args.key_file else os.environ["E2B_STANDIN_KEY"]
    Handler.world = World(args, key)
    server = Server(("127.0.0.1", args.port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(json.dumps({"port": server.server_address[1]}), flush=True)
    try:
        sys.stdin.buffer.read()
    except KeyboardInterrupt:
        pass
    Handler.world.close()


if __name__ == "__main__":
    main()
