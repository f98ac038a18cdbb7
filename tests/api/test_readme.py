"""README, followed by somebody who types what it prints: every block of commands in order, over a server as the section says, every answer a good one."""
import os
import pty
import re
import select
import shlex
import signal
import subprocess

import pytest

import engine
from harness import BIN, ROOT, SLOW, Server, users
from repos import Repo


def sections():
    """{heading: [(kind of fence, text)]}"""
    found, heading, fence = {}, "", None
    with open(os.path.join(ROOT, "README.md")) as f:
        for line in f:
            if fence is None and line.startswith("#"):
                heading = line.strip("# \n")
            elif line.startswith("```"):
                fence = [line[3:].strip(), ""] if fence is None else found.setdefault(heading, []).append(tuple(fence))
            elif fence:
                fence[1] += line
    return found


SECTIONS = sections()


# Sections with commands that nothing here types, and why.
NOT_FOLLOWED = {"Containers: the backend `docker`": "needs an engine and its images; the same request is made in test_docker and by the conformance suite",
                "A cloud: the backend `e2b`": "needs an account there; the same is done in test_e2b_create over a stand-in"}


def block(heading, kind):
    """All blocks of that kind, one after the other."""
    return "".join(text for k, text in SECTIONS[heading] if k == kind)


def commands(text):
    """One by one, each with all its lines."""
    whole = ""
    for line in text.splitlines():
        whole += line + "\n"
        if not line.endswith("\\") and subprocess.run(["bash", "-n"], input=whole, text=True, capture_output=True).returncode == 0:
            if whole.strip() and not whole.startswith("#"):
                yield whole
            whole = ""
    assert not whole, whole


# Says every status it gets, which -s hides from who reads only the answer.
CURL = '#!/bin/sh\nexec /usr/bin/curl "$@" --write-out "%{stderr}HTTP %{http_code}\\n"\n'
PLACEHOLDER = re.compile(r"\b(lease|snap|token|eps|ept|archive)_\.\.\.")


class Reader:
    """In a directory with the files that one has: follows blocks, and fills in what the answers before said."""

    def __init__(self, server, where):
        self.server, self.where, self.seen, self.vars = server, str(where), {}, os.path.join(where, "vars")
        os.makedirs(os.path.join(where, "bin"))
        os.makedirs(os.path.join(where, "src/deep"))
        for name, data in (("bin/curl", CURL), ("model.bin", "model"), ("a.txt", "mine\n"), ("src/deep/f", "source\n"), ("vars", "")):
            with open(os.path.join(where, name), "w") as f:
                f.write(data)
        os.chmod(os.path.join(where, "bin/curl"), 0o755)
        self.env = {"PATH": self.where + "/bin:" + os.environ["PATH"], "HOME": self.where, "SANDGATE_URL": f"http://127.0.0.1:{server.port}"}
        self.env.update({k: v for k, v in os.environ.items() if k.endswith("SAN_OPTIONS")})

    def filled(self, text):
        text = text.replace("localhost:8080", f"localhost:{self.server.port}").replace("/tmp/results", self.where + "/results").replace("build/sandgate", shlex.quote(BIN))
        text = re.sub(r"01jd8m\.\.\.", lambda _: self.seen["lease"][len("lease_"):], text)
        return PLACEHOLDER.sub(lambda m: self.seen.get(m[1], m[0]), text)

    def note(self, out):
        for value, kind in re.findall(r'"(?:id|token_id|Sandgate-Endpoint-Token)": ?"((lease|snap|token|eps|ept|archive)_[A-Za-z0-9_.]+)"', out):
            self.seen[kind] = value

    def follow(self, text):
        for command in commands(text):
            if " serve " not in command:  # that one is running already
                self.type(command)

    def type(self, command):
        script = f"set -o pipefail; . {self.vars}\n{self.filled(command)}\ncode=$?; declare -p L ETAG >{self.vars} 2>/dev/null; exit $code"
        if "/events?" in command or "Upgrade:" in command:
            return self.look(command, script)
        p = subprocess.run(["bash", "-c", script], cwd=self.where, env=self.env, stdin=subprocess.DEVNULL, capture_output=True, timeout=30 * SLOW)
        out, err = p.stdout, p.stderr
        status = re.findall(rb"HTTP (\d+)", err)
        assert p.returncode == 0 and all(s[:1] in b"23" for s in status) and (status or "curl" not in command), (command, out[-2000:], err[-2000:])
        self.note(out.decode(errors="replace"))

    def look(self, command, script):
        """What goes on until somebody ends it: on a terminal, until the first line is there."""
        ours, its = pty.openpty()
        p = subprocess.Popen(["bash", "-c", script], cwd=self.where, env=self.env, stdin=subprocess.DEVNULL, stdout=its, stderr=subprocess.PIPE, start_new_session=True)
        out = b""
        try:
            os.close(its)
            while b"\n" not in out:
                assert select.select([ours], [], [], 30 * SLOW)[0], (command, out)
                out += os.read(ours, 4096)
        finally:
            os.killpg(p.pid, signal.SIGKILL)
            p.communicate()
            os.close(ours)
        assert out.startswith(b"HTTP/1.1 101" if "Upgrade:" in command else b'{"seq":1'), (command, out)


@pytest.fixture
def yaml_file(tmp_path):
    """A server's --config with this text in it."""
    def write(text):
        path = tmp_path / "readme.yaml"
        path.write_text(text)
        os.chmod(path, 0o644)
        return str(path)
    return write


def serving(path):
    """A server on exactly that file."""
    class Plain(Server):
        def command(self):
            cmd = super().command()
            cmd[cmd.index("--config") + 1] = path
            return cmd
    return Plain(env={"SANDGATE_LOCAL_BWRAP_UID_BASE": str(users())})


def test_the_two_commands_exist():
    text = subprocess.run([os.path.join(ROOT, "dev"), "help"], check=True, stdout=subprocess.PIPE, text=True).stdout
    for command in commands(block("Two commands", "sh")):
        assert command.split()[1] in text, command


def test_the_job(tmp_path):
    with Server({"local_bwrap": {"archive_enabled": True}}) as s:
        s.wait_slots(4)
        Reader(s, tmp_path).follow(block("The job, in curl", "sh"))


@pytest.fixture
def image(tmp_path):
    """An archive of a root file system."""
    path = tmp_path / "image.tar"
    path.write_bytes(engine.image_tar())
    return str(path)


def test_pools_with_a_service_and_images(tmp_path, yaml_file, image):
    text = re.sub("(?m)^ *rootfs:.*\n", "", block("Pools and modes", "yaml"))
    with serving(yaml_file(re.sub(r"/srv/images/[\w.]+", image, text))) as s:
        s.wait_slots(2, "shop")
        reader = Reader(s, tmp_path)
        reader.follow(block("Pools and modes", "sh"))
        reader.follow(block("Commands before the lease is ready", "sh"))
        reader.follow(block("Operating it", "sh"))


def test_worktrees(tmp_path, yaml_file):
    with Repo() as repo:
        text = block("Worktrees: the backend without isolation", "yaml")
        text = text.replace("/srv/git/project", repo.path).replace("/srv/worktrees", repo.trees)
        text = text.replace("builder", repo.user_name) if repo.user else re.sub(".*builder.*\n", "", text)
        with serving(yaml_file(text)) as s:
            Reader(s, tmp_path).follow(block("Worktrees: the backend without isolation", "sh"))


def test_a_domain_for_services(tmp_path):
    service = os.path.join(os.path.dirname(BIN), "conformance-service")
    with Server(env={"SANDGATE_SERVER_PUBLIC_DOMAIN": "sbx.localhost"}) as s, open(service, "rb") as f:
        reader, c = Reader(s, tmp_path), s.client()
        id = c.lease()
        assert c.write(id, "service", f.read(), mode="0755").status == 201 and c.exec(id, ["./service", "8000"])["returncode"] == 0
        reader.note('{"id":"%s"}' % id)
        reader.type("L=lease_...")
        reader.follow(block("Services inside a sandbox", "sh"))


def test_nothing_is_left_out():
    with open(__file__) as f:
        source = f.read()
    for heading, blocks in SECTIONS.items():
        if any(kind == "sh" for kind, _ in blocks):
            assert f'block("{heading}", "sh")' in source or NOT_FOLLOWED.get(heading), f"nobody follows {heading}"


@pytest.mark.parametrize("heading", [h for h, blocks in SECTIONS.items() if any(kind == "yaml" for kind, _ in blocks)])
def test_configurations_are_good_ones(heading, yaml_file, image):
    for kind, text in SECTIONS[heading]:
        if kind == "yaml":
            text = re.sub(r"/srv/images/\S+\.tar[.\w]*", image, text.replace("user: builder", "user: nobody").replace("/srv/images/debian ", "/ "))
            r = subprocess.run([BIN, "check-config", "--config", yaml_file(text)], capture_output=True, text=True, env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"})
            assert r.returncode == 0, (text, r)
