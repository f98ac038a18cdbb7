"""The table against what the server says of itself."""
import backends
from harness import Server


def test_every_backend_with_a_driver_has_a_row():
    with Server({"backends": {"enabled": ["fake"]}}) as s:
        items = s.client().get("/backends").json()["items"]
    built = {b["name"] for b in items if b["built"]}
    rows = {b.name for b in backends.TABLE}
    assert built - rows - set(backends.WITHOUT_ROW) == set(), "a driver that no row of backends.py runs the suite over"
    assert rows | set(backends.WITHOUT_ROW) <= built, "a row of what this build has no driver for"
    assert all(backends.WITHOUT_ROW.values()), "without a row there is a reason"


def test_rows_are_told_apart():
    assert len({b.row for b in backends.TABLE}) == len(backends.TABLE)
    assert all(why for b in backends.TABLE for why in b.skips.values()), "a skip without a reason"
