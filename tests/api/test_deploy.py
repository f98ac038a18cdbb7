"""The files of deploy/ as they are: what they set there is, and what they put in front works."""
import hashlib
import os
import re
import shutil
import subprocess

import pytest

from gateway import Nginx
from harness import BIN, ROOT, Client, Server

COMPOSE = os.path.join(ROOT, "deploy", "compose")
TOKEN = "a-token-of-the-operator"


def read(*path):
    with open(os.path.join(*path)) as f:
        return f.read()


def settings(tmp_path):
    """compose/sandgate.yaml once the operator's token is in it."""
    f = tmp_path / "sandgate.yaml"
    f.write_text(re.sub("REPLACE_WITH_\\w+", hashlib.sha256(TOKEN.encode()).hexdigest(), read(COMPOSE, "sandgate.yaml")))
    return str(f)


def check(config, **variables):
    return subprocess.run([BIN, "check-config", "--config", config], capture_output=True, text=True, env={"PATH": os.environ["PATH"], "HOME": "/", **variables})


def test_settings_are_good_once_there_is_a_token(tmp_path):
    r = check(os.path.join(COMPOSE, "sandgate.yaml"))
    assert r.returncode == 1 and "auth.tokens[0].sha256" in r.stderr, r
    r = check(settings(tmp_path))
    assert r.returncode == 0, r


@pytest.mark.parametrize("name", ["compose.yaml", "docker.yaml"])
def test_variables_are_settings(tmp_path, name):
    variables = dict(re.findall(r"^\s+(SANDGATE_\w+): (\S+)", read(COMPOSE, name), re.M))
    assert bool(variables) == (name == "docker.yaml")
    assert check(settings(tmp_path), **variables).returncode == 0


def test_the_image_starts_what_there_is():
    text = read(ROOT, "Dockerfile")
    assert re.search(r'CMD \["serve", "--listen", "127.0.0.1:8080"\]', text)
    assert check("/dev/null", **dict(re.findall(r"^ENV (SANDGATE_\w+)=(\S+)", text, re.M))).returncode == 0
    assert "/build*/" in read(ROOT, ".dockerignore").split()


def test_the_unit_is_one(tmp_path):
    tool = shutil.which("systemd-analyze")
    unit = read(ROOT, "deploy", "systemd", "sandgate.service")
    command = re.search(r"^ExecStart=\S+ (.*)$", unit, re.M).group(1).split()
    assert command[0] == "serve" and set(command[1::2]) <= set(re.findall(r"--[\w-]+", subprocess.run([BIN, "serve", "--help"], capture_output=True, text=True).stdout))
    if tool:
        f = tmp_path / "sandgate.service"
        f.write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={BIN}", unit, flags=re.M))
        r = subprocess.run([tool, "verify", "--man=no", str(f)], capture_output=True, text=True, timeout=60)
        assert not [line for line in r.stderr.splitlines() if "sandgate.service" in line], r


class Shipped(Nginx):
    """compose/nginx.conf, with its files and addresses where a test may have them."""

    def _configure(self):
        text = read(COMPOSE, "nginx.conf")
        assert text.count("server sandgate:8080;") == 1 and text.count("listen 8080;") == 1
        text = text.replace("sandgate:8080", f"127.0.0.1:{self.upstream}").replace("listen 8080;", f"listen 127.0.0.1:{self.port};").replace("worker_processes auto;", "")
        temp = " ".join(f"{what}_temp_path {self.dir}/{what};" for what in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        text = text.replace("http {", f"http {{ access_log off; {temp}", 1)
        with open(os.path.join(self.dir, "conf"), "w") as f:
            f.write(f"daemon off; master_process off; pid {self.dir}/pid; error_log {self.dir}/error.log warn;\n{text}")


def test_behind_the_gateway():
    tokens = [{"name": "orchestrator", "tenant": "team-a", "role": "tenant", "sha256": hashlib.sha256(TOKEN.encode()).hexdigest()}]
    with Server({"auth": {"tokens": tokens}, "local_bwrap": {"size": 1}}) as s, Shipped(s.port) as front:
        s.port, own = front.port, s.port
        c = Client(s, TOKEN)
        lease = c.lease()
        assert c.exec(lease, "cat", stdin="x" * 2000000)["stdout_bytes_total"] == 2000000
        assert c.put(f"/leases/{lease}/files?path=big", b"y" * 3000000).status == 201 and c.get(f"/leases/{lease}/files?path=big").body == b"y" * 3000000
        assert c.get(f"/leases/{lease}/endpoints/8000").json()["url"] == f"http://127.0.0.1:{front.port}/leases/{lease}/proxy/8000/"
        assert c.get(f"/leases/{lease}/proxy/8000/").code == "endpoint_not_listening"
        assert Client(s).get("/leases").status == 401
        c.terminate(lease)
        s.port = own
