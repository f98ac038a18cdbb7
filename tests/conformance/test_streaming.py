"""Streams of commands and their replay, with a real shell at the other end."""
import concurrent.futures
import time

import pytest

from harness import wait_until
from streams import NDJSON, SSE, data, numbered

pytestmark = pytest.mark.needs("shell")


@pytest.mark.parametrize("accept", [NDJSON, SSE])
def test_both_outputs_in_order(box, accept):
    with box.stream("echo out; sleep 0.1; echo err >&2; sleep 0.1; echo more; exit 3", accept) as s:
        events = numbered(s.all())
    assert [(e["type"], e.get("data")) for e in events[:-1]] == [("start", None), ("stdout", "out\n"), ("stderr", "err\n"), ("stdout", "more\n")]
    end = events[-1]
    assert (end["type"], end["returncode"], end["stdout_bytes_total"], end["stderr_bytes_total"]) == ("exit", 3, 9, 4)


def test_the_end_says_what_a_plain_exec_says(box):
    for command, more in (("kill -SEGV $$", {}), ("exit 137", {}), (["nosuchcmd"], {}), ("sleep 30", {"timeout": 0.2}), ("echo x >&2; exit 1", {})):
        plain = box.run(command, **more)
        with box.stream(command, **more) as s:
            events = s.all()
        for key in ("returncode", "signal", "timed_out", "killed", "killed_by", "timeout", "stdout_bytes_total", "stderr_bytes_total"):
            assert events[-1][key] == plain[key], (command, key)
        assert data(events, "stderr").decode() == plain["stderr"]


@pytest.mark.parametrize("accept", [NDJSON, SSE])
def test_characters_are_never_split(box, accept):
    text = "é€😀z"
    with box.stream("for b in " + " ".join(f"'\\{b:03o}'" for b in text.encode()) + "; do printf $b; sleep 0.01; done", accept) as s:
        events = s.all()
    assert all(e["encoding"] == "utf-8" for e in events if e["type"] == "stdout") and data(events).decode() == text
    with box.stream("printf '\\377\\376'; sleep 0.05; printf 'a\\0b'", accept) as s:
        events = s.all()
    assert events[1]["encoding"] == "base64" and data(events) == b"\xff\xfea\0b"


def test_much_output(box):
    with box.stream("head -c 4000000 /dev/zero | tr '\\0' x; head -c 500000 /dev/zero >&2") as s:
        events = numbered(s.all())
    assert data(events) == b"x" * 4000000 and len(data(events, "stderr")) == 500000 and events[-1]["stdout_bytes_total"] == 4000000


def test_a_slow_reader_slows_the_command(box):
    """It takes nothing until the command stands still, then everything. How much the kernel keeps on the way is its own affair (megabytes, more
    on a busy machine), so the command writes until it is told."""
    with box.stream("i=0; while [ $i -lt 2000 ] && [ ! -e enough ]; do head -c 100000 /dev/zero; i=$((i+1)); printf x >> progress; done") as s:
        seen = []

        def still():
            seen.append(box.size("progress"))
            return len(seen) > 8 and len(set(seen[-8:])) == 1 and seen[-1] > 0
        wait_until(still, 30, "the command standing still")
        assert seen[-1] < 2000, "it was not slowed down"
        box.run("touch enough")
        events = s.all()
    assert len(data(events)) == 100000 * box.size("progress") and events[-1]["returncode"] == 0


def test_what_goes_wrong_before_the_start_is_a_status(box):
    for accept in (NDJSON, SSE):
        for more in ({}, {"detach": True}):
            for body, status, code in (({"command": "true", "cwd": "/nope"}, 422, "cwd_not_found"), ({"command": ""}, 400, "invalid_request"), ({"command": "true", "timeout": 1e9}, 422, "timeout_above_maximum")):
                r = box.client.post(f"{box.url}/exec", dict(body, **more), headers={"Accept": accept})
                assert r.status == status and r.code == code, (body, r)
    r = box.ask("touch never", headers={"Accept": "text/html"})
    assert r.status == 406 and box.names() == [], r


def test_reading_on_after_a_break_has_no_gap(box):
    eid = box.detach("i=0; while [ $i -lt 200 ]; do echo $i; i=$((i+1)); [ $((i % 20)) = 0 ] && sleep 0.02; done")
    first = []
    with box.follow(eid) as s:
        for e in s.events():
            first.append(e)
            if len(first) == 4:
                break
    with box.follow(eid, after=first[-1]["seq"]) as s:
        events = numbered(first + s.all())
    assert data(events) == b"".join(b"%d\n" % i for i in range(200)) and events[-1]["type"] == "exit"
    with box.follow(eid, after=0, accept=SSE) as s:
        assert data(s.all()) == data(events)
    assert box.client.get(f"{box.url}/exec/{eid}/output?after=99999").status in (200, 400)
    assert box.client.get(f"{box.url}/exec/none/output").status == 404


def test_a_detached_stream_may_be_left(box):
    name = "left-" + box.at
    with box.stream("echo one; sleep 0.4; echo two; touch done", detach=True, exec_id=name) as s:
        assert next(s.events())["type"] == "start"
    assert box.ended(name)["result"]["stdout"] == "one\ntwo\n" and box.stat("done").status == 200


def test_many_followers(box):
    eid = box.detach("i=0; while [ $i -lt 20 ]; do echo $i; sleep 0.01; i=$((i+1)); done")

    def one(i):
        with box.follow(eid, accept=[NDJSON, SSE][i % 2]) as s:
            return data(numbered(s.all()))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert set(pool.map(one, range(8))) == {b"".join(b"%d\n" % i for i in range(20))}


def test_a_finished_command_has_its_whole_output(box):
    for i in range(8):
        eid = box.detach(f"echo {i}; echo e >&2")
        began = time.monotonic()
        while box.info(eid)["state"] == "running":
            assert time.monotonic() - began < 30
        events = box.output(eid)
        assert data(events) == b"%d\n" % i and data(events, "stderr") == b"e\n" and events[-1]["type"] == "exit"
