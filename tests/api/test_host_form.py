"""Endpoints with an origin of their own, and the tokens that open endpoints."""
import hashlib
import http.client
import json
import re
import time
import urllib.parse

import pytest
import ws
from gateway import behind
from harness import SLOW, Server, wait_until
from sandboxed import start_service, start_websockets
from upstream import Conn, values

DOMAIN = "sbx.example"
TOKEN = "token-a-0123456789"
OTHER = "token-b-0123456789"
HEADER = "Sandgate-Endpoint-Token"


@pytest.fixture(scope="module", params=["direct", "nginx"])
def server(request):
    auth = [{"name": n, "sha256": hashlib.sha256(v.encode()).hexdigest(), "tenant": n, "role": "tenant"} for n, v in (("a", TOKEN), ("b", OTHER))]
    with Server({"local_bwrap": {"size": 3}, "auth": {"tokens": auth}, "server": {"public_domain": DOMAIN}}) as s, behind(s, request.param):
        yield s


@pytest.fixture(scope="module")
def client(server):
    return server.client(TOKEN)


@pytest.fixture(scope="module")
def lease(client):
    lease = client.lease()
    start_service(client, lease)
    start_websockets(client, lease)
    yield lease
    client.terminate(lease)


class Answer:
    def __init__(self, r):
        self.status, self.body, self.fields = r.status, r.read(), r.getheaders()

    def all(self, name):
        return values(self.fields, name)

    def one(self, name):
        got = self.all(name)
        assert len(got) <= 1, got
        return got[0] if got else None

    def json(self):
        return json.loads(self.body)

    def __repr__(self):
        return f"{self.status} {self.fields} {self.body[:300]}"


def ask(server, host, target="/", headers=(), method="GET", body=None):
    """headers: pairs, so that one can come twice."""
    c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30 * SLOW)
    c.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
    c.putheader("Host", host)
    for k, v in list(headers) + ([("Content-Length", str(len(body)))] if body is not None else []):
        c.putheader(k, v)
    c.endheaders(body)
    answer = Answer(c.getresponse())
    c.close()
    return answer


def host_of(lease, port=8000, domain=DOMAIN):
    return f"{port}-{lease.removeprefix('lease_')}.{domain}"


def own_token(client, lease, port=8000):
    return client.get(f"/leases/{lease}/endpoints/{port}").json()["headers"][HEADER]


def issue(client, lease, **body):
    r = client.post(f"/leases/{lease}/endpoints", body)
    assert r.status == 201, r
    return r.json()


def refused(answer, status, code, reason=None):
    assert answer.status == status and answer.one("Sandgate-Error") == code, answer
    assert answer.json()["code"] == code and answer.json().get("reason") == reason, answer


# ---- host names ----


def test_urls_are_those_of_the_host_form(server, client, lease):
    url = client.get(f"/leases/{lease}/endpoints/8000").json()["url"]
    assert url == f"http://{host_of(lease)}:{server.port}/"
    label = url.split("/")[2].split(".")[0]
    assert len(label) <= 63 and re.fullmatch("[0-9a-z-]+", label)
    with_services = client.lease(services=[{"name": "web", "port": 8123}])
    assert client.get(f"/leases/{with_services}").json()["endpoints"]["web"]["url"] == f"http://{host_of(with_services, 8123)}:{server.port}/"
    client.terminate(with_services)


def test_scheme_and_port_are_those_of_the_public_url():
    for public, expected in (("https://gw.example", "https://%s/"), ("https://gw.example:8443/sand", "https://%s:8443/"), ("http://[::1]:81", "http://%s:81/")):
        with Server({"local_bwrap": {"size": 1}, "server": {"public_domain": DOMAIN, "public_url": public}}) as s:
            c = s.client()
            lease = c.lease()
            assert c.get(f"/leases/{lease}/endpoints/80").json()["url"] == expected % host_of(lease, 80)


@pytest.mark.parametrize("change", [str, str.upper, lambda h: h + ":443", lambda h: h + "."])
def test_a_service_answers_at_its_host(server, client, lease, change):
    rest = "/a%2Fb//c/%E9?b=2&a=1&b=3&uploads&sig=%E9%FF&s=1;2&q=hello%20world"
    host = change(host_of(lease))
    for target in (rest, "/", "/healthz", "/v1/leases", "//x", "/leases/l/proxy/80/x"):  # none of it is the API's
        r = ask(server, host, target, [("Authorization", "Bearer " + TOKEN), ("X-Forwarded-Prefix", "/evil")])
        assert r.status == 200 and r.json()["line"] == f"GET {target} HTTP/1.1", r
        got = {k.lower(): v for k, v in r.json()["headers"]}
        assert got["host"] == "127.0.0.1:8000" and got["x-forwarded-host"] == host and "x-forwarded-prefix" not in got and "authorization" not in got
        assert r.one("Content-Security-Policy") is None
    r = ask(server, host, "/", [("X-API-Key", TOKEN)], "POST", b"x" * 100000)
    assert r.status == 200 and r.json()["body"] == 100000


def test_hosts_that_name_nothing(server, client, lease):
    auth = [("Authorization", "Bearer " + TOKEN)]
    bare = lease.removeprefix("lease_")
    for host in (DOMAIN, "x." + DOMAIN, f"0-{bare}.{DOMAIN}", f"65536-{bare}.{DOMAIN}", f"8000-{lease}.{DOMAIN}", f"a.8000-{bare}.{DOMAIN}", f"8000-{bare[1:]}.{DOMAIN}"):
        refused(ask(server, host, "/healthz", auth), 404, "not_found")
    refused(ask(server, host_of("lease_" + "0" * 32), "/", auth), 404, "not_found")
    refused(ask(server, host_of(lease), "/", [("Authorization", "Bearer " + OTHER)]), 404, "not_found")
    refused(ask(server, host_of(lease, 8001), "/", auth), 503, "endpoint_not_listening")
    assert ask(server, "other.example", "/healthz").status == 200  # the API's
    assert ask(server, f"8000-{bare}.{DOMAIN}.evil.example", "/healthz").status == 200


def test_the_domain_must_not_cover_the_apis():
    for url, domain in (("https://api.example", "api.example"), ("https://api.example", "example"), ("https://x.api.example:99/y", "API.example")):
        with pytest.raises(RuntimeError, match="public_domain"):
            Server({"server": {"public_url": url, "public_domain": domain}}).start()
    long = ".".join(["a" * 60] * 4)[:230]
    with pytest.raises(RuntimeError, match="public_domain"):
        Server({"server": {"public_domain": long}}).start()


# ---- redirects and cookies ----


def test_every_cookie_arrives_by_itself(server, client, lease):
    """Joined they would be one, with an expiry that has a comma in it."""
    many = [f"c{i}={i}; Expires=Wed, 21 Oct 2026 07:28:00 GMT; Path=/" for i in range(20)]
    r = ask(server, host_of(lease), "/", [("X-API-Key", TOKEN)] + [("X-Set", cookie) for cookie in many])
    assert r.status == 200 and r.all("Set-Cookie") == many


def test_redirects(server, client, lease):
    host = host_of(lease)
    for given, expected in (("/login?next=%2F", "/login?next=%2F"), ("http://127.0.0.1:8000/x?y#z", f"http://{host}/x?y#z"), ("http://localhost:8000", f"http://{host}/"),
                            ("http://127.0.0.1:8000//evil.example/", f"http://{host}//evil.example/"), ("next", "next"), ("//other.example/x", "//other.example/x"),
                            ("https://example.com/", "https://example.com/")):
        r = ask(server, host, "/redirect", [("X-API-Key", TOKEN), ("X-To", given)])
        assert r.status == 302 and r.one("Location") == expected, given


def test_cookies_are_the_services_own_host(server, client, lease):
    given = ["sid=1; Path=/; HttpOnly", f"wide=2; Domain={DOMAIN}; Secure", f"wider=3; domain=.{DOMAIN}", "__Host-app=4; Secure; Path=/", "__Host-sandgate=stolen; Secure; Path=/"]
    r = ask(server, host_of(lease), "/", [("X-API-Key", TOKEN)] + [("X-Set", c) for c in given])
    assert r.all("Set-Cookie") == ["sid=1; Path=/; HttpOnly", "wide=2; Secure", "wider=3", "__Host-app=4; Secure; Path=/"]
    r = ask(server, "127.0.0.1", f"/leases/{lease}/proxy/8000/", [("X-API-Key", TOKEN), ("X-Set", "a=b")])
    assert r.status == 200 and r.all("Set-Cookie") == [] and r.one("Content-Security-Policy") == "sandbox"


def test_a_first_visit_turns_the_token_into_a_cookie(server, client, lease):
    host, token = host_of(lease), own_token(client, lease)
    for method in ("GET", "HEAD"):
        r = ask(server, host, f"/a%2Fb//?x=1&sandgate_token={token}&y=%E9", method=method)
        assert r.status == 303 and r.one("Location") == "/a%2Fb//?x=1&y=%E9" and r.one("Cache-Control") == "no-store"
        assert r.one("Referrer-Policy") == "no-referrer" and token not in r.one("Location")
        assert r.one("Set-Cookie") == f"__Host-sandgate={token}; Path=/; Secure; HttpOnly; SameSite=Lax"
    assert ask(server, host, f"/?sandgate_token={token}").one("Location") == "/"
    # never to another host
    for target in ("//evil.example/", "/\\evil.example/"):
        location = ask(server, host, f"{target}?sandgate_token={token}").one("Location")
        assert location == "/." + target and urllib.parse.urljoin(f"https://{host}/", location.replace("\\", "/")).startswith(f"https://{host}/")
    for wrong in ("", "x", token[:-1], token + "0"):
        r = ask(server, host, f"/?sandgate_token={wrong}", [("X-API-Key", TOKEN)])
        refused(r, 401, "unauthorized")
        assert r.one("Set-Cookie") is None
    # what cannot be redirected goes on without the token
    r = ask(server, host, f"/?a&sandgate_token={token}&b", method="POST", body=b"xy")
    assert r.status == 200 and r.json()["line"] == "POST /?a&b HTTP/1.1" and r.json()["body"] == 2
    # the log knows nothing of it
    assert token not in server.log_text()


def test_the_cookie_opens_the_host_and_never_reaches_the_service(server, client, lease):
    host, token = host_of(lease), own_token(client, lease)
    r = ask(server, host, "/", [("Cookie", f"a=b; __Host-sandgate={token}; c=d")])
    assert r.status == 200
    got = {k.lower(): v for k, v in r.json()["headers"]}
    assert got["cookie"] == "a=b; c=d" and token not in json.dumps(got)
    r = ask(server, host, "/", [("Cookie", f"__Host-sandgate={token}")])
    assert r.status == 200 and "cookie" not in {k.lower() for k, _ in r.json()["headers"]}
    refused(ask(server, host, "/", [("Cookie", "__Host-sandgate=ept_" + "0" * 64)]), 401, "unauthorized")
    refused(ask(server, host), 401, "unauthorized")
    # it is nothing on the path form, nor for another lease
    refused(ask(server, "127.0.0.1", f"/leases/{lease}/proxy/8000/", [("Cookie", f"__Host-sandgate={token}")]), 401, "unauthorized")
    other = client.lease()
    refused(ask(server, host_of(other), "/", [("Cookie", f"__Host-sandgate={token}")]), 401, "unauthorized")
    client.terminate(other)


def test_pages_of_other_origins_do_not_use_the_cookie(server, client, lease):
    host, token = host_of(lease), own_token(client, lease)
    cookie = ("Cookie", f"__Host-sandgate={token}")
    stranger = host_of("lease_" + "0" * 32)
    for said, good in (([("Origin", f"https://{host}")], True), ([("Origin", f"https://{host_of(lease, 3000)}:8443")], True), ([("Origin", "null")], False),
                       ([("Origin", f"https://{stranger}")], False), ([("Origin", "https://api.example")], False), ([("Origin", f"https://{DOMAIN}")], False),
                       ([("Sec-Fetch-Site", "same-origin")], True), ([("Sec-Fetch-Site", "none"), ("Sec-Fetch-Mode", "navigate")], True),
                       ([("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "navigate")], True), ([("Sec-Fetch-Site", "same-site"), ("Sec-Fetch-Mode", "no-cors")], False),
                       ([("Sec-Fetch-Site", "same-site"), ("Sec-Fetch-Mode", "no-cors"), ("Referer", f"https://{stranger}/x")], False),
                       ([("Sec-Fetch-Site", "same-site"), ("Sec-Fetch-Mode", "no-cors"), ("Referer", f"https://{host_of(lease, 3000)}/x")], True)):
        r = ask(server, host, "/", [cookie, *said])
        if good:
            assert r.status == 200, (said, r)
        else:
            refused(r, 401, "unauthorized")
        # whoever can set headers is no page that abuses a cookie
        assert ask(server, host, "/", [(HEADER, token), *said]).status == 200


def test_a_page_of_its_own_has_the_origin_that_host_names(server, client, lease):
    host, token = host_of(lease), own_token(client, lease)
    for origin, arrives in ((f"http://{host}", "http://127.0.0.1:8000"), (f"https://{host.upper()}", "http://127.0.0.1:8000"), ("https://app.example", "https://app.example"),
                            (f"https://{host_of(lease, 3000)}", f"https://{host_of(lease, 3000)}")):
        got = dict(ask(server, host, "/", [(HEADER, token), ("Origin", origin)]).json()["headers"])
        assert got["Origin"] == arrives and got["Host"] == "127.0.0.1:8000"


def open_socket(server, host, target, headers):
    c = Conn(server.connect(timeout=30 * SLOW))
    c.send(ws.request(target, host=host, headers=headers))
    line, fields = c.head()
    return c, int(line.split()[1]), fields


def test_websockets_at_a_host(server, client, lease):
    host, token = host_of(lease, 8100), own_token(client, lease)
    for target, headers, hello in (("/x", f"{HEADER}: {token}\r\n", b"127.0.0.1:8100 None"), ("/x?sandgate_token=" + token, "", b"127.0.0.1:8100 None"),
                                   ("/x", f"Cookie: __Host-sandgate={token}\r\nOrigin: https://{host}\r\n", b"127.0.0.1:8100 http://127.0.0.1:8100"),
                                   ("/x", f"X-API-Key: {TOKEN}\r\nOrigin: https://app.example\r\n", b"127.0.0.1:8100 https://app.example")):
        c, status, fields = open_socket(server, host, target, headers)
        assert status == 101, fields
        assert ws.read_frame(c) == (ws.TEXT, hello)
        c.close()
    for headers in ("", f"Cookie: __Host-sandgate={token}\r\nOrigin: https://evil.example\r\n"):
        c, status, fields = open_socket(server, host, "/x", headers)
        assert status == 401 and values(fields, "Sandgate-Error") == ["unauthorized"]
        c.close()


# ---- issued tokens ----


def test_a_token_for_one_port_and_a_limited_time(server, client, lease):
    got = issue(client, lease, port=8000, ttl=60)
    assert set(got) == {"token_id", "url", "headers", "expires_at"} and got["url"] == client.get(f"/leases/{lease}/endpoints/8000").json()["url"]
    token = got["headers"][HEADER]
    assert 55 < calendar(got["expires_at"]) - time.time() <= 61
    path = f"/leases/{lease}/proxy/8000/"
    for headers, host, target in (([(HEADER, token)], "127.0.0.1", path), ([(HEADER, token)], host_of(lease), "/"), ([("Cookie", "__Host-sandgate=" + token)], host_of(lease), "/")):
        r = ask(server, host, target, headers)
        assert r.status == 200 and token not in r.body.decode(), r
        refused(ask(server, host.replace("8000-", "8100-"), target.replace("8000", "8100"), headers), 401, "unauthorized")
    r = ask(server, host_of(lease), "/?sandgate_token=" + token)
    assert r.status == 303 and re.search(r"; Max-Age=(5\d|60)$", r.one("Set-Cookie"))
    # it opens the endpoint and nothing of the API
    assert server.client().get(f"/leases/{lease}", headers={"Authorization": "Bearer " + token}).status == 401
    refused(ask(server, "127.0.0.1", path, [("Authorization", "Bearer " + token)]), 401, "unauthorized")


def calendar(text):
    import datetime
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def test_a_token_expires(server, client, lease):
    got = issue(client, lease, port=8000, ttl=0.5)
    token = got["headers"][HEADER]
    assert ask(server, host_of(lease), "/", [(HEADER, token)]).status == 200
    wait_until(lambda: ask(server, host_of(lease), "/", [(HEADER, token)]).status == 401, what="expiry")
    assert time.time() >= calendar(got["expires_at"])
    for headers, host, target in (([(HEADER, token)], "127.0.0.1", f"/leases/{lease}/proxy/8000/"), ([("Cookie", "__Host-sandgate=" + token)], host_of(lease), "/"),
                                  ([], host_of(lease), "/?sandgate_token=" + token)):
        refused(ask(server, host, target, headers), 401, "unauthorized", "token_expired")
    assert client.delete(f"/leases/{lease}/endpoints/{got['token_id']}").status == 404
    assert ask(server, host_of(lease), "/", [(HEADER, token), ("X-API-Key", TOKEN)]).status == 200  # there is another way in


def test_a_token_is_revoked(server, client, lease):
    got, stays = issue(client, lease, port=8000), issue(client, lease, port=8000, ttl=60)
    token = got["headers"][HEADER]
    url = f"/leases/{lease}/endpoints/{got['token_id']}"
    assert server.client(OTHER).delete(url).status == 404
    assert ask(server, host_of(lease), "/", [(HEADER, token)]).status == 200
    for _ in range(2):
        r = client.delete(url)
        assert r.status == 204 and r.body == b""
    for headers, host, target in (([(HEADER, token)], "127.0.0.1", f"/leases/{lease}/proxy/8000/"), ([("Cookie", "__Host-sandgate=" + token)], host_of(lease), "/"),
                                  ([], host_of(lease), "/?sandgate_token=" + token), ([], host_of(lease), "/x?sandgate_token=" + token)):
        refused(ask(server, host, target, headers), 401, "unauthorized", "token_revoked")
    assert ask(server, host_of(lease), "/", [(HEADER, stays["headers"][HEADER])]).status == 200
    for unknown in ("token_00000000000000000000000000000000", "8000", "x"):
        assert client.delete(f"/leases/{lease}/endpoints/{unknown}").status == 404


def test_what_is_refused(server, client, lease):
    for body, field in (({}, "port"), ({"ttl": 5}, "port"), ({"port": 0}, "port"), ({"port": 65536}, "port"), ({"port": "80"}, "port"), ({"port": 80, "ttl": 0}, "ttl"),
                        ({"port": 80, "ttl": -1}, "ttl"), ({"port": 80, "ttl": "1h"}, "ttl"), ({"port": 80, "x": 1}, "x")):
        r = client.post(f"/leases/{lease}/endpoints", body)
        assert r.status == 400 and r.code == "invalid_request" and r.json()["field"] == field, (body, r)
    r = client.post(f"/leases/{lease}/endpoints", {"port": 80, "ttl": 10 ** 9})
    assert r.status == 422 and r.code == "timeout_above_maximum" and r.json()["field"] == "ttl"
    assert server.client().post(f"/leases/{lease}/endpoints", {"port": 80}).status == 401
    assert server.client(OTHER).post(f"/leases/{lease}/endpoints", {"port": 80}).status == 404
    for port in ("0", "08", "65536", "x"):
        r = client.get(f"/leases/{lease}/endpoints/{port}")
        assert r.status == 400 and r.json()["field"] == "port"


def test_tokens_end_with_their_lease(server, client):
    lease = client.lease()
    got = issue(client, lease, port=8000)
    own = own_token(client, lease)
    client.terminate(lease)
    for token in (own, got["headers"][HEADER]):
        for headers, target in (([(HEADER, token)], "/"), ([], "/?sandgate_token=" + token)):
            refused(ask(server, host_of(lease), target, headers), 410, "lease_gone", ask(server, host_of(lease), target, headers).json().get("reason"))
    r = client.post(f"/leases/{lease}/endpoints", {"port": 80})
    assert r.status == 410 and r.code == "lease_gone"
    assert client.delete(f"/leases/{lease}/endpoints/{got['token_id']}").status == 404


def test_too_many_tokens(client):
    lease = client.lease()
    for _ in range(1000):
        issue(client, lease, port=80)
    r = client.post(f"/leases/{lease}/endpoints", {"port": 80})
    assert r.status == 429 and r.code == "quota_exceeded" and r.json()["limit"] == 1000 and r.header("Retry-After")
    client.terminate(lease)
