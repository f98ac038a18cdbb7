"""A server without tokens trusts everybody on its machine, but not the web pages they look at."""
import hashlib

import pytest

from harness import Server
from test_events import scripted


def tokens(name="t"):
    return [{"name": name, "sha256": hashlib.sha256(name.encode()).hexdigest(), "tenant": name, "role": "admin"}]


@pytest.fixture(scope="module")
def open_server():
    with scripted({}, server={"public_domain": "sbx.localhost"}) as s:
        yield s


CROSS = [{"Origin": "https://evil.example"}, {"Origin": "null"}, {"Origin": "http://localhost:3000"}, {"Sec-Fetch-Site": "cross-site"},
         {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"}]


@pytest.mark.parametrize("method,path", [("POST", "/leases"), ("DELETE", "/leases/{id}"), ("POST", "/leases/{id}/extend"), ("PUT", "/leases/{id}/files?path=x"),
                                         ("DELETE", "/leases/{id}/exec/x"), ("POST", "/slots/default/drain"), ("GET", "/leases"), ("GET", "/audit"), ("POST", "/v1/leases/"),
                                         ("POST", "/leases/{id}/exec/x/stdin")])
def test_pages_of_other_origins_do_nothing(open_server, method, path):
    c = open_server.client()
    id = c.lease()
    path = path.replace("{id}", id)
    before = c.get("/leases?limit=1000").json()
    for head in CROSS:
        # As a browser sends it without asking first: no body, or one of a harmless type.
        for body in (None, b"{}"):
            r = c.request(method, path, body, headers={**head, "Content-Type": "text/plain"} if body else head)
            assert r.status == 403 and r.code == "cross_origin" and r.json()["field"] in head, (head, r)
    assert c.get("/leases?limit=1000").json() == before
    c.terminate(id)


def test_names_that_resolve_to_this_address(open_server):
    c = open_server.client()
    for host in ("evil.example", f"evil.example:{open_server.port}", "127.0.0.1.nip.io", "localhost.evil.example"):
        for head in ({}, {"Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}):
            r = c.get("/leases", headers={"Host": host, **head})
            assert r.status == 421 and r.code == "misdirected_request" and r.json()["field"] == "Host", (host, r)
    for host in ("localhost", f"localhost:{open_server.port}", "127.0.0.1", "[::1]:8080", "sandgate", "x.localhost"):
        assert c.get("/leases", headers={"Host": host}).status == 200, host


def test_the_servers_own_origin_and_links_are_fine(open_server):
    c = open_server.client()
    own = f"localhost:{open_server.port}"
    r = c.post("/leases", {}, headers={"Host": own, "Origin": f"http://{own}", "Sec-Fetch-Site": "same-origin"})
    assert r.status == 201, r
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert c.get("/leases", headers=link).status == 200
    assert c.delete("/leases/" + r.json()["id"], headers=link).status == 403
    assert c.get("/version", headers={"Origin": "https://evil.example", "Host": "evil.example"}).status == 200  # says nothing of anybody
    c.terminate(r.json()["id"])


def test_services_in_sandboxes_are_reached_from_anywhere(open_server):
    """By whoever was told the lease's id; nothing listens here, which is an answer of the way there."""
    c = open_server.client()
    id = c.lease()
    host = f"8000-{id.removeprefix('lease_')}.sbx.localhost"
    for path, head in ((f"/leases/{id}/proxy/8000/", {}), (f"/leases/{id}/proxy/8000/", {"Origin": "https://app.example"}), ("/", {"Host": host}),
                       ("/", {"Host": host, "Origin": "https://app.example", "Sec-Fetch-Site": "cross-site"})):
        r = c.get(path, headers=head)
        assert r.status == 503 and r.code == "endpoint_not_listening", (path, head, r)
    # But a page that one of them serves cannot act on the API.
    r = c.post("/leases", {}, headers={"Host": "localhost", "Origin": f"http://{host}", "Sec-Fetch-Site": "same-site"})
    assert r.status == 403 and r.code == "cross_origin", r
    c.terminate(id)


def test_a_public_url_is_an_origin_of_its_own():
    with scripted({}, server={"public_url": "https://sandgate.example/api"}) as s:
        c = s.client()
        assert c.get("/leases", headers={"Host": "sandgate.example", "Origin": "https://sandgate.example"}).status == 200
        assert c.get("/leases", headers={"Host": "other.example"}).status == 421


def test_with_tokens_a_page_would_need_one():
    with scripted({}, auth={"tokens": tokens()}) as s:
        r = s.client("t").get("/leases", headers={"Host": "sandgate.example", "Origin": "https://app.example", "Sec-Fetch-Site": "cross-site"})
        assert r.status == 200, r
        assert s.client().get("/leases", headers={"Origin": "https://app.example"}).status == 401
