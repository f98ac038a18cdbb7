"""What the tests of E2B share: its stand-in, and servers whose provider that is."""
import os
import sys

import pytest

from harness import Server, wait_until

sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "fakes", "e2b"))
from e2b_standin import Standin  # noqa: E402

PAID = {"allow_paid": True}


@pytest.fixture(scope="module")
def standin():
    with Standin() as s:
        yield s


def server_of(standin, **more):
    # Short times, so that what takes minutes elsewhere is seen here.
    config = standin.config(**{"sweep_interval": "300ms", "orphan_grace": "1s", "timeout": "4s", **more})
    return Server(config=config, env=standin.env, policy=PAID)


@pytest.fixture
def server(standin):
    standin.order()
    with server_of(standin) as s:
        yield s
    standin.order()
    assert wait_until(lambda: not standin.state()["sandboxes"], 20) is not False


def ids(standin):
    return sorted(b["id"] for b in standin.state()["sandboxes"])


def gone(standin):
    wait_until(lambda: not standin.state()["sandboxes"], 20)
