"""One row of the table at a time: `pytest --backend ROW`.

A test says what it needs with `@needs("shell", "snapshot", ...)`: members of the row, or capabilities. Such skips, those of the row and those of
a machine that cannot run the row are counted and printed with their reasons; any other skip is a failure.
"""
import collections
import os
import time

import pytest

import backends
from box import Box
from harness import Server

# Tests of the table itself, which know nothing of a backend.
TABLE_ONLY = "test_table"
# In every server's environment, and nowhere else.
SECRET = "sekret-53b1cf"
MEMBERS = {"tty", "isolated", "shell", "links", "repo", "endpoints", "limits", "images", "here"}


def pytest_addoption(parser):
    parser.addoption("--backend", default=os.environ.get("SANDGATE_TEST_BACKEND", "local_bwrap"), help="row of backends.py")


def pytest_configure(config):
    config.addinivalue_line("markers", "needs(*what): members or capabilities of the row without which a test means nothing")
    config.backend = backends.row(config.getoption("--backend"))
    config.skipped = collections.Counter()
    config.shared = None  # id of the lease that stays


def lacks(backend, what):
    has = getattr(backend, what) if what in MEMBERS else what in backend.capabilities
    return None if has else f"{backend.row} has no {what}"


def why_skipped(backend, item):
    name = getattr(item, "originalname", item.name)
    if name in backend.skips:
        return backend.skips[name]
    for mark in item.iter_markers("needs"):
        for what in mark.args:
            if lacks(backend, what):
                return lacks(backend, what)
    return None


def pytest_collection_modifyitems(config, items):
    backend = config.backend
    missing = backend.missing()
    names = {getattr(i, "originalname", i.name) for i in items}
    for item in items:
        if item.module.__name__ == TABLE_ONLY:
            continue
        why = missing or why_skipped(backend, item)
        if why:
            item.add_marker(pytest.mark.skip(reason=why))
            item.declared_skip = True
    unknown = set(backend.skips) - names
    if unknown and len({i.module for i in items}) > 5:  # not when a single file is run
        raise pytest.UsageError(f"{backend.row} skips what is no test: {sorted(unknown)}")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if report.skipped and not hasattr(report, "wasxfail"):
        if getattr(item, "declared_skip", False):
            item.config.skipped[report.longrepr[2].removeprefix("Skipped: ")] += 1
        else:
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid}: skipped without being declared: {report.longrepr[2]}"


def pytest_terminal_summary(terminalreporter, config):
    total = sum(config.skipped.values())
    terminalreporter.write_line(f"conformance of {config.backend.row}: {total} skipped")
    for why, n in config.skipped.most_common():
        terminalreporter.write_line(f"  {n} because {why}")


@pytest.fixture(scope="session")
def backend(request):
    return request.config.backend


@pytest.fixture(scope="session")
def arguments(backend):
    """What a server of the row is made with; the engine or stand-in around it runs."""
    with backend.setup() as made:
        yield dict(made, env={"RUNLOOP_API_KEY": SECRET, **made.get("env", {})})


@pytest.fixture(scope="session")
def server(arguments):
    with Server(**arguments) as s:
        yield s


@pytest.fixture
def client(server):
    return server.client()


@pytest.fixture(scope="session")
def shared(server, request):
    """The one lease that tests share who leave it alive."""
    c = server.client()
    id = request.config.shared = c.lease(trajectory_id="shared", timeout_sec=3600)
    yield id
    request.config.shared = None
    server.client().terminate(id)  # not c: its connection has long been idle, and may be closed


@pytest.fixture(autouse=True)
def nothing_left(request):
    """What a test that failed forgot to end must not be missed by the next one."""
    yield
    if "server" in request.fixturenames:
        client, keep = request.getfixturevalue("server").client(), request.session.config.shared
        for l in client.get("/leases?state=ready,creating&limit=100").json()["items"]:
            if l["id"] != keep:
                client.delete(f"/leases/{l['id']}")


@pytest.fixture
def box(server, shared):
    """A directory of its own in the shared sandbox, which must be alive afterwards."""
    box = Box(server, shared, f"t{time.monotonic_ns()}")
    box.make()
    yield box
    assert box.client.get(f"/leases/{shared}").json()["state"] == "ready", "the sandbox did not survive this test"


@pytest.fixture
def fresh(server):
    """A sandbox of its own."""
    box = Box(server, server.client().lease())
    yield box
    box.client.terminate(box.lease)
