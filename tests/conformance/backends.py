"""The table of backends the suite runs over: one row each.

A row says how the configuration of its server is made (a context manager, which may start an engine or a stand-in around it) and what must hold
for it. `python3 backends.py` prints the names of the rows.
"""
import contextlib
import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "api"))
import engine  # noqa: E402
from harness import users  # noqa: E402
from repos import Repo  # noqa: E402

sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "fakes", "e2b"))
from e2b_standin import Standin  # noqa: E402

BUSYBOX = "/usr/bin/busybox"  # static, of Debian's busybox-static
BASICS = frozenset({"file_rw", "exec"})
LOCAL = BASICS | {"snapshot", "public_url"}


@dataclasses.dataclass(frozen=True)
class Backend:
    row: str                # name of the row, of the ctest and of --backend
    name: str               # of the backend in the product
    setup: object           # () -> context manager of the arguments of harness.Server
    capabilities: frozenset  # exactly what it declares
    tty: bool = False       # commands may have a terminal
    isolated: bool = True   # sandboxes see neither the host nor each other
    shell: bool = True      # commands are real ones; else only the words of backends/fake/fake.h
    links: bool = True      # files have links, modes that bind, and archives
    repo: bool = True       # manifest.repo works
    endpoints: bool = True  # services in a sandbox are reached through the server; public_url promises that to the selector
    elsewhere: bool = False  # ... or at the provider, whose place for a port is told
    limits: bool = True     # limits may be asked for; else they are refused
    images: bool = False    # an image may be asked for; else that is refused
    here: bool = True       # its processes are on this machine
    outlives: bool = False  # a lease goes on after the server was killed; else it is lost
    # Whether this machine can run the row at all: None, or why not.
    missing: object = lambda: None
    # Tests that cannot hold here: name -> why. Every other skip is a failure, and so is a name that is no test.
    skips: dict = dataclasses.field(default_factory=dict)


@contextlib.contextmanager
def serving(name, user=None, **sections):
    """Nothing but the backend itself, and a repository `proj` for manifest.repo. user: whom the server runs as, ourselves if None."""
    with Repo(user) as repo:
        config = dict(repo.config((name,)), **sections)
        if user:
            config["worktree"] = {"repos": config["worktree"]["repos"]}  # such a server can be nobody else
        yield {"config": config, "user": user}


def as_user():
    return serving("local_bwrap", user=users(), local_bwrap={"size": 3})


@contextlib.contextmanager
def on_busybox():
    """Sandboxes on the server's disk that have nothing but busybox, which is what images of containers may be like."""
    with tempfile.TemporaryDirectory(prefix="sandgate-rootfs-") as root:
        for name in ("bin", "etc", "proc", "dev", "tmp", "workspace", "home/sandbox", "usr/bin"):
            os.makedirs(os.path.join(root, name))
        shutil.copy(BUSYBOX, os.path.join(root, "bin", "busybox"))
        for applet in subprocess.run([BUSYBOX, "--list"], check=True, stdout=subprocess.PIPE, text=True).stdout.split():
            if applet != "busybox":
                os.symlink("busybox", os.path.join(root, "bin", applet))
        os.chmod(root, 0o755)
        with serving("local_bwrap", local_bwrap={"size": 3, "rootfs": root, "disk": "dir"}) as arguments:
            yield arguments


@contextlib.contextmanager
def in_containers(kind=engine.Engine, **more):
    with engine.engine(kind=kind) as e, serving("docker", docker={"host": e.host, "image": e.image, "images_allowed": [], "pull": False, **more}) as s:
        yield s


def in_podman():
    return in_containers(engine.Podman)


def by_engine_calls(**more):
    """No directory is shared with the engine: its own calls lead to the agents."""
    return in_containers(agent="engine", **more)


def by_podmans_calls():
    return by_engine_calls(kind=engine.Podman)


@contextlib.contextmanager
def e2b():
    """Over a stand-in of the provider, which is held to the vendor's own client."""
    with Standin() as standin, serving("e2b") as arguments:
        arguments["config"].update(standin.config())
        yield {**arguments, "env": standin.env, "policy": {"allow_paid": True}}


def needs_root():
    return None if os.geteuid() == 0 else "only root can start a server as somebody else; the row local_bwrap is such a server already"


def no_docker():
    return engine.why_not(engine.Engine)


def no_podman():
    return engine.why_not(engine.Podman)


TABLE = [
    Backend("local_bwrap", "local_bwrap", lambda: serving("local_bwrap", local_bwrap={"size": 3}), LOCAL, tty=True),
    Backend("local_bwrap_user", "local_bwrap", as_user, LOCAL, tty=True, missing=needs_root),
    Backend("local_bwrap_busybox", "local_bwrap", on_busybox, LOCAL, tty=True),
    Backend("worktree", "worktree", lambda: serving("worktree"), BASICS | {"network"}, isolated=False, limits=False),
    Backend("docker", "docker", in_containers, LOCAL, tty=True, images=True, outlives=True, missing=no_docker),
    Backend("podman", "docker", in_podman, LOCAL, tty=True, images=True, outlives=True, missing=no_podman),
    Backend("docker_engine", "docker", by_engine_calls, LOCAL, tty=True, images=True, outlives=True, missing=no_docker),
    Backend("podman_engine", "docker", by_podmans_calls, LOCAL, tty=True, images=True, outlives=True, missing=no_podman),
    Backend("e2b", "e2b", e2b, BASICS | {"network", "snapshot", "public_url"}, tty=True, endpoints=False, elsewhere=True, limits=False, images=True,
            here=False, outlives=True),
    Backend("fake", "fake", lambda: serving("fake"), BASICS | {"public_url"}, shell=False, links=False, repo=False, limits=False, here=False),
]

# Backends with a driver that need no row, and why.
WITHOUT_ROW = {}


def row(name):
    return next(b for b in TABLE if b.row == name)


if __name__ == "__main__":
    print("\n".join(b.row for b in TABLE))
