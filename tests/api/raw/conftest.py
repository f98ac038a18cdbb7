import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
sys.dont_write_bytecode = True

from rawhttp import Server  # noqa: E402


@pytest.fixture(scope="session")
def shared():
    with Server() as s:
        yield s


@pytest.fixture
def conn(shared):
    with shared.conn() as c:
        yield c
