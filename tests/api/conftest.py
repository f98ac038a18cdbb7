import os
import resource
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from gateway import Front  # noqa: E402
from harness import Server, users  # noqa: E402
from upstream import Rig  # noqa: E402


# Thousands of connections have an end here, too; shells often allow 1024 descriptors.
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)


def pytest_addoption(parser):
    parser.addoption("--soak", action="store_true", help="the long counts")
    parser.addoption("--minutes", type=float, default=10, help="with --soak: of everything at once, for each kind of server")


@pytest.fixture(scope="session")
def soak(request):
    return request.config.getoption("--soak")


BACKEND = os.environ.get("SANDGATE_TEST_BACKEND")

# What depends on isolation, on slots, or on an empty /workspace: the names of tests of files that also run over another backend.
NOT_OVER = {"worktree": {
    "test_not_executable_is_126", "test_timeout_kills_the_whole_tree", "test_hang_up_kills_the_command", "test_cwd", "test_environment_values_are_exact",
    "test_parents_and_mode", "test_what_is_not_a_regular_file", "test_not_permitted_is_403", "test_upload_cut_half_way_leaves_nothing",
    "test_list_and_mkdir_and_delete", "test_a_lost_sandbox_is_an_error_never_a_made_up_exit", "test_a_stalled_reader_does_not_hold_the_sandbox",
    "test_create_answers_the_whole_lease", "test_refusals_leave_nothing",
}}


def pytest_collection_modifyitems(items):
    for item in items:
        if item.originalname in NOT_OVER.get(BACKEND, ()):
            item.add_marker(pytest.mark.skip(reason=f"not over {BACKEND}"))


def server_kinds():
    """As root both kinds of server are tested (a sanitizer's build tests the one of SANDGATE_TEST_KIND); an ordinary user tests its own."""
    if os.geteuid() != 0:
        return ["user"]
    one = os.environ.get("SANDGATE_TEST_KIND")
    return [one] if one else ["root", "user"]


def one_kind():
    """For what behaves alike in both: ASan's build has one kind of server, this one the other. ./dev soak has both."""
    kinds = server_kinds()
    return kinds if "--soak" in sys.argv else kinds[-1:]


def account(kind):
    """The user to start a server of that kind as; None: ourselves."""
    return None if kind == "root" or os.geteuid() != 0 else users()


@pytest.fixture(scope="session")
def server():
    """One server on the embedded default, shared by tests that leave it as it was. With SANDGATE_TEST_BACKEND=worktree its leases are worktrees,
    which behave alike wherever isolation does not matter."""
    if BACKEND == "worktree":
        from repos import Repo
        with Repo(empty=True) as repo, Server(repo.config()) as s:
            yield s
        return
    with Server({"local_bwrap": {"size": 4}}) as s:
        s.wait_slots(4)
        yield s


@pytest.fixture
def client(server):
    return server.client()


@pytest.fixture
def lease(client):
    """A fresh lease of the shared server."""
    id = client.lease()
    yield id
    client.terminate(id)


# ---- the proxy alone ----


@pytest.fixture(scope="module")
def direct():
    """For what a gateway that buffers requests, or speaks for itself, does not let through as it is."""
    with Rig() as r:
        yield r


@pytest.fixture(scope="module", params=["direct", "nginx"])
def rig(request):
    """The proxy as clients reach it: itself, and through nginx with its default buffering."""
    with Rig() if request.param == "direct" else Front() as r:
        yield r
