"""What sandgate adds to a cloud: the same command, create and bytes through it and straight from the stand-in for E2B, by the same client."""
import http.client
import json
import os
import statistics
import struct
import sys
import time

from harness import Server

sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "fakes", "e2b"))
from e2b_standin import Standin  # noqa: E402

PIECE = 1 << 16


def timed(run, n):
    out = []
    for _ in range(n):
        begun = time.perf_counter()
        run()
        out.append((time.perf_counter() - begun) * 1e6)
    return out


def p99(v):
    return sorted(v)[min(len(v) - 1, round(len(v) * 0.99))]


class Direct:
    """The provider's own client, in as few lines."""

    def __init__(self, standin):
        self.key = standin.key
        self.conn = http.client.HTTPConnection("127.0.0.1", int(standin.url.rsplit(":", 1)[1]), timeout=120)
        self.ids = []

    def call(self, method, path, body=None):
        self.conn.request(method, path, json.dumps(body) if body is not None else None, {"X-API-Key": self.key, "Content-Type": "application/json"})
        r = self.conn.getresponse()
        data = r.read()
        assert r.status < 300, (r.status, data)
        return json.loads(data) if data else None

    def create(self):
        box = self.call("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 3600, "network": {"allowPublicTraffic": False}})
        self.ids.append(box["sandboxID"])
        return box

    def delete_all(self):
        while self.ids:
            self.call("DELETE", "/sandboxes/" + self.ids.pop())

    def run(self, box, command):
        """Bytes of the answer's body, all read; the stream ends with the command."""
        message = json.dumps({"process": {"cmd": "/bin/sh", "args": ["-c", command]}, "stdin": False}).encode()
        self.conn.request("POST", "/process.Process/Start", struct.pack(">BI", 0, len(message)) + message,
                          {"E2b-Sandbox-Id": box["sandboxID"], "E2b-Sandbox-Port": "49983", "X-Access-Token": box["envdAccessToken"],
                           "Content-Type": "application/connect+json", "Connect-Protocol-Version": "1"})
        return drain(self.conn.getresponse())


def drain(r):
    assert r.status == 200, r.read()
    n = 0
    while data := r.read1(PIECE):
        n += len(data)
    return n


def stream(conn, lease, command):
    conn.request("POST", f"/leases/{lease}/exec", json.dumps({"command": command}), {"Content-Type": "application/json", "Accept": "application/x-ndjson"})
    return drain(conn.getresponse())


def figures(b, figure, direct, ours, clean, n, compared, us, row):
    """Rounds of both; ratio of the medians, and what is added at the median and at the 99th percentile of all."""
    mine, theirs, rounds = [], [], []
    for i in range(b.rounds + 1):
        a, d = timed(ours, n), timed(direct, n)
        clean()
        if i:
            mine, theirs = mine + a, theirs + d
            rounds.append((statistics.median(a), statistics.median(d)))
    added = us(statistics.median(mine) - statistics.median(theirs))
    return [compared(f"{figure}, p50 | the stand-in's own", rounds, us), row(f"... added to it, p50", added),
            row("... added to it, p99", us(p99(mine) - p99(theirs)), us(p99(theirs)))]


def clouds(b, compared, us, row, binary):
    rows, size = [], (16 if b.quick else 64) << 20
    with Standin() as standin, Server(config=standin.config(), env=standin.env, policy={"allow_paid": True}, binary=binary) as s:
        direct, c, made = Direct(standin), s.client(), []

        def clean():
            direct.delete_all()
            while made:
                c.terminate(made.pop())
        rows += figures(b, "create", direct.create, lambda: made.append(c.lease()), clean, 5 if b.quick else 20, compared, us, row)
        box, lease = direct.create(), c.lease(timeout_sec=3600)
        rows += figures(b, "exec of `true`", lambda: direct.run(box, "true"), lambda: c.exec(lease, "true"), lambda: None, 30 if b.quick else 100, compared, us, row)
        raw, command = http.client.HTTPConnection("127.0.0.1", s.port, timeout=120), f"head -c {size} /dev/zero"
        rate = lambda run: size / (timed(run, 1)[0] / 1e6)  # noqa: E731
        rounds = b.interleave(lambda: rate(lambda: stream(raw, lease, command)), lambda: rate(lambda: direct.run(box, command)))
        rows.append(compared("streamed output | the stand-in's own", rounds, lambda v: f"{v / 1e6:.0f} MB/s"))
        raw.close()
        c.terminate(lease)
        clean()
    return rows
