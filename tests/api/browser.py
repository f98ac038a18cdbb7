"""A headless Chromium, driven over its debugging protocol."""
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time

import ws
from harness import SLOW
from upstream import Conn

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update",
         "--disable-sync", "--disable-default-apps", "--disable-domain-reliability", "--disable-dev-shm-usage", "--ignore-certificate-errors",
         "--remote-debugging-port=0", "--remote-allow-origins=*"]
SECONDS = 30 * SLOW


class Page:
    def __init__(self, browser):
        self.browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")
        self.call("Page.setLifecycleEventsEnabled", enabled=True)

    def call(self, method, **params):
        return self.browser.call(method, self.session, **params)

    def go(self, url):
        """Opens url and waits until all of it is there."""
        got = self.call("Page.navigate", url=url)
        assert "errorText" not in got, got
        self.browser.event("Page.lifecycleEvent", self.session, name="load", loaderId=got["loaderId"])

    def run(self, script):
        """The value of an expression in the page; promises are waited for. Also in pages that may not run scripts of their own."""
        got = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in got, got["exceptionDetails"]
        return got["result"].get("value")


class Browser:
    """hosts: patterns that are this machine; every other name leads nowhere."""

    def __init__(self, hosts):
        self.home = tempfile.mkdtemp(prefix="sandgate-browser-")
        self.rules = ",".join([f"MAP {h} 127.0.0.1" for h in hosts] + ["MAP * ~NOTFOUND", "EXCLUDE 127.0.0.1"])
        self.n, self.events = 0, []

    def __enter__(self):
        program = shutil.which("chromium")
        assert program, "no chromium: ./dev test installs it"
        self.log = os.path.join(self.home, "log")
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([program, *FLAGS, f"--user-data-dir={self.home}/profile", f"--host-resolver-rules={self.rules}", "about:blank"],
                                            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                                            env={"PATH": os.environ["PATH"], "HOME": self.home, "XDG_RUNTIME_DIR": self.home})
        port, path = self._address()
        self.conn = Conn(socket.create_connection(("127.0.0.1", port), timeout=SECONDS))
        self.conn.send(ws.request(path, host=f"127.0.0.1:{port}"))
        assert self.conn.head()[0].split()[1] == b"101"
        return self

    def _address(self):
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            with open(self.log, errors="replace") as f:
                text = f.read()
            found = re.search(r"DevTools listening on ws://127\.0\.0\.1:(\d+)(/\S+)", text)
            if found:
                return int(found[1]), found[2]
            assert self.process.poll() is None, text
            time.sleep(0.05)
        raise AssertionError("chromium did not start: " + text)

    def __exit__(self, *_):
        self.conn.close()
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        shutil.rmtree(self.home, ignore_errors=True)

    def page(self):
        return Page(self)

    def _next(self):
        while True:
            opcode, data = ws.read_frame(self.conn)
            if opcode == ws.TEXT:
                return json.loads(data)

    def call(self, method, session=None, **params):
        self.n += 1
        message = {"id": self.n, "method": method, "params": params, **({"sessionId": session} if session else {})}
        self.conn.send(ws.frame(ws.TEXT, json.dumps(message).encode(), True))
        while True:
            m = self._next()
            if m.get("id") == self.n:
                assert "error" not in m, (method, m["error"])
                return m["result"]
            self.events.append(m)

    def event(self, method, session, **params):
        """Waits for an event with these parameters."""
        while True:
            for m in self.events:
                if m.get("method") == method and m.get("sessionId") == session and params.items() <= m["params"].items():
                    self.events.clear()
                    return
            self.events.append(self._next())
