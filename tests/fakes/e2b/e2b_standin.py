"""The stand-in as a process of a test: `with Standin() as s:` and then s.url, s.key, s.order(faults), s.state()."""
import json
import os
import secrets
import subprocess
import sys
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))


class Standin:
    def __init__(self, *args):
        self.key = "e2b_" + secrets.token_hex(20)
        self.args = args

    def __enter__(self):
        env = {**os.environ, "E2B_STANDIN_KEY": self.key}
        self.process = subprocess.Popen([sys.executable, os.path.join(HERE, "standin.py"), *self.args], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, env=env)
        self.url = f"http://127.0.0.1:{json.loads(self.process.stdout.readline())['port']}"
        return self

    def __exit__(self, *exc):
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()

    def _ask(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(self.url + "/_standin/" + path, data), timeout=30) as r:
            text = r.read()
        return json.loads(text) if text else None

    def order(self, *faults):
        self._ask("faults", list(faults))

    def vanish(self, sandbox):
        self._ask("vanish", {"id": sandbox})

    def rekey(self):
        self.key = "e2b_" + secrets.token_hex(20)
        self._ask("key", {"key": self.key})

    def state(self):
        return self._ask("state")

    def config(self, **more):
        """Of a server whose E2B this is."""
        return {"backends": {"enabled": ["e2b"]}, "e2b": {"api_url": self.url, "sandbox_url": self.url, "port_url": self.url, "domain": "local.test", "template": "base", **more}}

    @property
    def env(self):
        return {"E2B_API_KEY": self.key}
