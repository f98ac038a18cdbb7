"""Commands on a terminal in containers: what is so in local sandboxes is so there, too, whichever way leads to the agent. Through the engine alone a relay in
the container has the terminals."""
import os
import signal
import socket

import pytest

import engine as engines
import test_tty
import ws
from harness import Server, wait_until
from test_attach import test_replay_and_resume, test_several_at_a_time  # noqa: F401 - these and the next are collected here once more
from test_docker_far import relay_of
from test_tty import (  # noqa: F401
    TTY, Shell, test_a_large_paste_arrives_whole, test_all_output_arrives, test_input_of_the_request, test_nothing_is_left, test_resize, test_streams,
    test_the_end_of_input_can_be_sent, test_timeouts_and_kills_take_everything)

why = engines.why_not()
pytestmark = pytest.mark.skipif(why is not None, reason=str(why))


@pytest.fixture(scope="module")
def engine():
    with engines.engine() as e:
        yield e


@pytest.fixture(scope="module", params=["engine", "share"])
def server(request, engine, soak):
    if request.param == "share" and not soak:
        pytest.skip("what leads there is the code of local sandboxes: ./dev soak")
    with Server({"backends": {"enabled": ["docker"]}, "docker": {"host": engine.host, "image": engines.IMAGE, "pull": False, "agent": request.param}}) as s:
        s.far = request.param == "engine"
        yield s


@pytest.fixture(scope="module")
def lease(server):
    client = server.client()
    id = client.lease()
    yield id
    client.terminate(id)


def only_far(server):
    if not server.far:
        pytest.skip("there is no relay")


def test_it_is_declared(server, client):
    assert [b["tty"] for b in client.get("/backends").json()["items"] if b["name"] == "docker"] == [True]


def test_a_caller_that_hangs_up_takes_the_command_along(server, client, lease):
    body = b'{"command": "trap \'\' HUP INT; echo up; while :; do date >> alive; sleep 0.05; done", "tty": {}}'
    with socket.create_connection(("127.0.0.1", server.port)) as s:
        s.sendall(b"POST /leases/%s/exec HTTP/1.1\r\nHost: x\r\nAccept: application/x-ndjson\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
                  % (lease.encode(), len(body), body))
        assert s.recv(12) == b"HTTP/1.1 200"
        wait_until(lambda: client.read(lease, "alive").status == 200, what="it runs")
    wait_until(lambda: client.exec(lease, "ps -o args | grep -c '[d]ate >> alive'")["stdout"] == "0\n", what="its end")


def test_a_reader_that_is_slow_slows_the_command(client, lease):
    """More than anything in between holds, for one that reads nothing for a while: all of it arrives."""
    r = client.post(f"/leases/{lease}/exec", {"command": "head -c 3000000 /dev/zero | tr '\\0' x; echo end", "tty": TTY, "detach": True, "max_output_bytes": 4000000})
    path = f"/leases/{lease}/exec/{r.json()['exec_id']}"
    result = wait_until(lambda: client.get(path).json()["result"], 30)
    assert result["stdout_bytes_total"] == 3000005 and result["stdout"].endswith("xend\r\n")


def test_the_relay_keeps_nothing_of_terminals_that_ended(engine, server, client, lease):
    only_far(server)
    client.exec(lease, "true", tty=TTY)
    pid = relay_of(engine, lease)
    before = sorted(os.readlink(f"/proc/{pid}/fd/{n}").split(":")[0] for n in os.listdir(f"/proc/{pid}/fd"))
    for command in ("true", "setsid sleep 30 &", "exec nosuchprogram", "trap '' HUP; (while echo x; do sleep 0.01; done; touch over) &"):
        client.exec(lease, command, tty=TTY)
    client.exec_response(lease, "true", tty=TTY, cwd="/nowhere")
    wait_until(lambda: client.read(lease, "over").status == 200)

    def nothing():
        now = sorted(os.readlink(f"/proc/{pid}/fd/{n}").split(":")[0] for n in os.listdir(f"/proc/{pid}/fd"))
        with open(f"/proc/{pid}/task/{pid}/children") as f:
            return now == before and f.read() == ""
    wait_until(nothing, what="its descriptors and children of before")


def test_a_relay_that_dies_with_a_terminal_open(engine, server, client, lease):
    only_far(server)
    shell = Shell(client, lease)
    shell.sees(r"\$ ")
    s = ws.Socket(server, shell.path + "/attach")
    os.kill(relay_of(engine, lease), signal.SIGKILL)
    assert s.end() == 4002 and s.texts[-1]["type"] == "error" and s.texts[-1]["reason"] == "relay_gone", s.texts
    assert wait_until(lambda: shell.info()["state"] != "running") and shell.info()["state"] == "lost", shell.info()
    wait_until(lambda: client.exec_response(lease, "true").status == 200, what="another relay")
    assert client.post(shell.path + "/resize", TTY).status == 409
    shell = Shell(client, lease)
    shell.type("echo a$((40+2))z; exit\n")
    shell.sees("a42z")
    assert shell.ended()["returncode"] == 0


test_the_end_does_not_wait_for_who_holds_it = test_tty.test_the_end_does_not_wait_for_who_holds_it  # the last one: what it leaves behind is loud
