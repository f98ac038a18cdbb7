"""What a real browser can do with services in sandboxes, and what pages from there cannot do: Chromium, HTTPS by nginx, the real server."""
import contextlib
import hashlib
import json
import os

import pytest
from browser import Browser
from gateway import Nginx
from harness import Server
from sandboxed import start

# A web app with a page, an echo of requests, events, a WebSocket, and a list of whoever asked. Runs inside sandboxes, beside ws.py.
APP = r"""
import json, socket, sys, threading, time, ws
seen = []
PAGE = '''<!doctype html><title>inert</title><body>hello<script>
document.title = "alive"; fetch("/acted?by=script"); fetch("/leases", {method: "POST", headers: {"Content-Type": "application/json"}, body: "{}"})
</script><form id=f method=post action=/leases></form><img src="/acted?by=image" onerror="document.title = 'alive'"></body>'''
class Conn:
    def __init__(self, sock): self.sock, self.file, self.send = sock, sock.makefile("rb"), sock.sendall
    def exact(self, n):
        data = self.file.read(n)
        if len(data) < n: raise EOFError
        return data
def reply(c, body, kind="application/json", more=""):
    c.send(f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode() + body)
def one(c):
    line = c.file.readline().decode()
    if not line: raise EOFError
    h = {}
    while (text := c.file.readline()) not in (b"\r\n", b""):
        k, _, v = text.decode().partition(":"); h[k.lower()] = v.strip()
    method, target, _ = line.split()
    body = c.exact(int(h.get("content-length", 0)))
    path = target.split("?")[0]
    if path != "/seen": seen.append([method, target, h.get("origin"), h.get("cookie"), h.get("referer")])
    if path == "/socket":
        c.send(ws.accept(list(h.items())))
        while True:
            opcode, data = ws.read_message(c)
            c.send(ws.frame(ws.PONG if opcode == ws.PING else opcode, data, False))
            if opcode == ws.CLOSE: raise EOFError
    elif path == "/events":
        c.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        for i in range(3):
            c.send(f"id: {i}\ndata: {i}\n\n".encode()); time.sleep(0.05)
        raise EOFError
    elif path == "/seen": reply(c, json.dumps(seen).encode())
    elif path == "/worker.js": reply(c, b"self.onfetch = null", "text/javascript")
    elif path == "/echo": reply(c, json.dumps({"method": method, "headers": h, "body": body.decode()}).encode())
    else: reply(c, PAGE.encode(), "text/html", "Set-Cookie: sid=from-the-app; Path=/; Domain=" + sys.argv[2] + "\r\nService-Worker-Allowed: /\r\n")
def serve(c):
    try:
        while True: one(c)
    except (EOFError, OSError, ValueError): pass
    finally: c.file.close(); c.sock.close()
s = socket.create_server(("127.0.0.1", int(sys.argv[1])))
background()
while True: threading.Thread(target=serve, args=(Conn(s.accept()[0]),), daemon=True).start()
"""

DOMAIN = "sbx.example"
API = "api.example"
TOKEN = "token-of-the-tests-0123456789"


class World:
    """The server, HTTPS in front, two leases with the app, and a browser. Without tokens everybody may use the API, and nothing but a browser's own rules
    keeps pages from it."""

    def __init__(self, stack, browser, tokens):
        gateway = Nginx(tls=True)
        self.api, self.browser = f"https://{API}:{gateway.port}", browser
        config = {"local_bwrap": {"size": 2}, "server": {"public_url": self.api, "public_domain": DOMAIN, "drain_timeout": "0s"}}
        if tokens:
            config["auth"] = {"tokens": [{"name": "t", "sha256": hashlib.sha256(TOKEN.encode()).hexdigest(), "tenant": "t", "role": "tenant"}]}
        self.server = stack.enter_context(Server(config))
        gateway.upstream = self.server.port
        stack.enter_context(gateway)
        self.client = self.server.client(TOKEN if tokens else None)
        self.a, self.b = self.app(), self.app()

    def app(self):
        lease = self.client.lease()
        with open(os.path.join(os.path.dirname(__file__), "ws.py"), "rb") as f:
            self.client.write(lease, "ws.py", f.read())
        start(self.client, lease, APP, 8000, DOMAIN)
        return lease

    def endpoint(self, lease):
        """(origin, token) of the app of a lease."""
        got = self.client.get(f"/leases/{lease}/endpoints/8000").json()
        return got["url"].rstrip("/"), got["headers"]["Sandgate-Endpoint-Token"]

    def visit(self, lease):
        """A page of the app, opened as a user would: by a link with the token."""
        origin, token = self.endpoint(lease)
        page = self.browser.page()
        page.go(f"{origin}/?sandgate_token={token}")
        assert page.run("location.href") == origin + "/"
        return page, origin, token

    def seen(self, lease):
        return self.client.get(f"/leases/{lease}/proxy/8000/seen").json()

    def leases(self):
        return [(item["id"], item["state"]) for item in self.client.get("/leases").json()["items"]]


@pytest.fixture(scope="module")
def browser():
    with Browser(["*." + DOMAIN, API]) as b:
        yield b


@pytest.fixture(scope="module")
def world(browser):
    with contextlib.ExitStack() as stack:
        yield World(stack, browser, tokens=True)


@pytest.fixture(scope="module")
def open_world(browser):
    with contextlib.ExitStack() as stack:
        yield World(stack, browser, tokens=False)


# ---- the host form ----


def test_an_app_works_at_its_own_host(world):
    page, origin, token = world.visit(world.a)
    assert page.run("document.title") == "alive"
    assert page.run("document.cookie") == "sid=from-the-app"  # ours is out of reach
    got = page.run("document.cookie = 'js=1'; fetch('/echo', {method: 'POST', body: 'größer'}).then(r => r.json())")
    assert got["method"] == "POST" and got["body"] == "größer"
    assert got["headers"]["host"] == "127.0.0.1:8000" and got["headers"]["origin"] == "http://127.0.0.1:8000"
    assert got["headers"]["cookie"] == "sid=from-the-app; js=1" and token not in json.dumps(got)
    assert got["headers"]["x-forwarded-proto"] == "https" and "https://" + got["headers"]["x-forwarded-host"] == origin
    assert page.run("localStorage.x = 1; localStorage.x") == "1"
    assert page.run("navigator.serviceWorker.register('/worker.js').then(r => r.scope)") == origin + "/"
    # a second page needs no link: the cookie of the first visit lets it in
    other = world.browser.page()
    other.go(origin + "/echo")
    assert json.loads(other.run("document.body.innerText"))["headers"]["cookie"] == "sid=from-the-app; js=1"


def test_its_websocket_and_events(world):
    page, _, _ = world.visit(world.a)
    got = page.run("""new Promise(done => {
        const s = new WebSocket('wss://' + location.host + '/socket', ['one', 'two']), said = [];
        s.onopen = () => { s.send('hello'); s.send('x'.repeat(1000000)); };
        s.onmessage = m => { said.push(m.data.length); if (said.length == 2) s.close(4001, 'enough'); };
        s.onclose = c => done([s.protocol, said, c.code, c.reason, c.wasClean]);
    })""")
    assert got == ["two", [5, 1000000], 4001, "enough", True]
    got = page.run("""new Promise(done => {
        const s = new EventSource('/events'), said = [];
        s.onmessage = m => { said.push(m.data); if (said.length == 3) { s.close(); done(said); } };
    })""")
    assert got == ["0", "1", "2"]


def test_without_the_token_a_page_does_not_open(world):
    lease = world.b
    before = world.seen(lease)
    origin, _ = world.endpoint(lease)
    page = world.browser.page()
    for query in ("", f"?sandgate_token=ept_{'0' * 64}"):
        page.go(origin + "/" + query)
        assert json.loads(page.run("document.body.innerText"))["code"] == "unauthorized"
        assert page.run("document.cookie") == ""
        assert page.run("""new Promise(done => { const s = new WebSocket('wss://' + location.host + '/socket'); s.onopen = () => done('open'); s.onclose = c => done(c.code); })""") == 1006
    assert world.seen(lease) == before


def test_another_sandboxs_page_cannot_use_the_visitors_cookie(world):
    """Both are the same site to the browser, and the visitor has been at both."""
    _, victim, _ = world.visit(world.a)
    page, _, _ = world.visit(world.b)
    before = len(world.seen(world.a))
    got = page.run(f"""(async () => {{
        const out = {{}};
        out.read = await fetch('{victim}/echo', {{credentials: 'include'}}).then(r => r.text()).catch(e => 'refused');
        out.post = await fetch('{victim}/echo', {{method: 'POST', mode: 'no-cors', credentials: 'include', body: 'x'}}).then(r => r.type).catch(e => 'refused');
        out.script = await new Promise(done => {{ const s = document.createElement('script'); s.src = '{victim}/worker.js'; s.onload = () => done('loaded');
            s.onerror = () => done('refused'); document.head.append(s); }});
        out.socket = await new Promise(done => {{ const s = new WebSocket('{victim}/socket'.replace('https', 'wss')); s.onopen = () => done('open'); s.onclose = c => done(c.code); }});
        return out;
    }})()""")
    assert got == {"read": "refused", "post": "opaque", "script": "refused", "socket": 1006}  # the post went out, and was refused
    assert [s for s in world.seen(world.a)[before:] if s[1] in ("/echo", "/worker.js", "/socket")] == []


# ---- the path form ----


def test_a_page_of_the_path_form_is_inert(open_world):
    """It shares the API's origin, so it may do nothing."""
    before = open_world.leases()
    page = open_world.browser.page()
    page.go(f"{open_world.api}/leases/{open_world.a}/proxy/8000/")
    assert page.run("document.body.innerText") == "hello" and page.run("document.title") == "inert"  # it came, but its scripts did not run
    assert page.run("window.origin") == "null"
    for script in ("document.cookie", "localStorage.length", "navigator.serviceWorker.register('/leases/x')"):
        with pytest.raises(AssertionError):
            page.run(script)
    # what a script would do if one ran there: not even then
    got = page.run("""Promise.all([
        fetch('/leases').then(r => r.text()), fetch('/leases', {method: 'POST', headers: {'Content-Type': 'application/json'}, body: '{}'}),
        fetch('/leases/x', {method: 'DELETE'})].map(p => p.then(() => 'done', () => 'refused')))""")
    assert got == ["refused"] * 3
    page.run("document.getElementById('f').submit()")
    assert page.run("location.pathname") == f"/leases/{open_world.a}/proxy/8000/"
    assert open_world.leases() == before
    assert [s for s in open_world.seen(open_world.a) if "script" in s[1]] == []


def test_the_path_form_leaves_nothing_at_the_apis_origin(open_world):
    """Seen from a document of that origin: no cookie, and no worker made of what a sandbox says."""
    here = f"/leases/{open_world.a}/proxy/8000"
    page = open_world.browser.page()
    page.go(open_world.api + here + "/")  # sends Set-Cookie
    page.go(open_world.api + "/healthz")
    assert page.run("window.origin") == open_world.api and page.run("document.cookie") == ""
    for options in ("", ", {scope: '/'}"):
        got = page.run(f"navigator.serviceWorker.register('{here}/worker.js'{options}).then(r => r.scope, () => 'refused')")
        assert got == "refused", options
    assert page.run("navigator.serviceWorker.getRegistrations().then(r => r.length)") == 0


def test_a_page_of_the_host_form_is_a_stranger_to_the_api(open_world):
    page, _, _ = open_world.visit(open_world.a)
    before = open_world.leases()
    api, other = open_world.api, open_world.b
    got = page.run(f"""Promise.all([
        fetch('{api}/leases').then(r => r.text()), fetch('{api}/leases', {{method: 'POST', headers: {{'Content-Type': 'application/json'}}, body: '{{}}'}}),
        fetch('{api}/leases/{other}', {{method: 'DELETE'}})].map(p => p.then(() => 'done', () => 'refused')))""")
    assert got == ["refused"] * 3
    got = page.run(f"fetch('{api}/leases', {{method: 'POST', mode: 'no-cors', body: '{{}}'}}).then(r => r.type)")
    assert got == "opaque" and open_world.leases() == before  # went out as text/plain, and was refused
