"""Moving and removing trees: within one file system, from one to another, and when something is in the way."""
import urllib.parse

import pytest

from conftest import account, one_kind
from harness import Server


@pytest.fixture(scope="module", params=one_kind())
def world(request):
    with Server({"local_bwrap": {"size": 2, "disk_max": "48MiB"}}, user=account(request.param)) as s:
        s.wait_slots(2)
        yield s


@pytest.fixture
def box(world):
    c = world.client()
    id = c.lease()
    yield c, id
    c.terminate(id)


def url(lease, route, path=None, **query):
    return f"/leases/{lease}/{route}?" + urllib.parse.urlencode(dict(query, **({} if path is None else {"path": path})))


def names(c, lease, path="."):
    return sorted(i["name"] for i in c.get(url(lease, "files/list", path, recursive="1", limit=1000)).json()["items"])


def move(c, lease, a, b):
    return c.post(url(lease, "files/move"), {"from": a, "to": b})


def refused(r, status, code):
    assert r.status == status and r.code == code, r


LOOK = "cd %s && find . -type f -printf '%%P f %%m %%s %%T@\\n' -o -type l -printf '%%P l %%l\\n' -o -type p -printf '%%P p %%m\\n' -o -printf '%%P d %%m %%T@\\n' | sort"
MAKE = ("mkdir -p t/ro t/deep/er t/empty; echo 1 > t/ro/f; echo 22 > t/deep/er/g; ln -s ../nowhere t/dangling; ln -s deep t/link; mkfifo -m 600 t/fifo; "
        "chmod 640 t/deep/er/g; touch -d @1000000000.25 t/deep/er/g t/empty t/deep; printf '\\377' > \"t/$(printf 'n\\377')\"; chmod 555 t/ro")


@pytest.mark.parametrize("to", ["/tmp/x/moved", "moved/x"])
def test_a_tree_moves_whole(box, to):
    c, id = box
    c.exec(id, MAKE)
    before = c.exec(id, LOOK % "t")
    assert move(c, id, "t", to).status == 204
    after = c.exec(id, LOOK % to)
    assert after["stdout"] == before["stdout"] and before["returncode"] == 0 and len(before["stdout"]) > 100
    assert c.exec(id, "ls -A t")["returncode"] != 0, "it is gone from its old place"
    assert move(c, id, to, "back").status == 204
    assert c.exec(id, LOOK % "back")["stdout"] == before["stdout"]
    assert c.exec(id, "ls -A /tmp/x /workspace | grep sandgate || true")["stdout"] == ""


def test_what_is_in_the_way_of_a_move_to_another_file_system(box):
    c, id = box
    c.exec(id, "mkdir -p /tmp/full/x /tmp/empty d; echo 1 > f; echo 2 > /tmp/g; echo 3 > d/y; ln -s /tmp/g /tmp/l; ln -s nowhere /tmp/dangling")
    refused(move(c, id, "d", "/tmp/full"), 409, "directory_not_empty")
    refused(move(c, id, "f", "/tmp/full"), 409, "is_a_directory")
    refused(move(c, id, "d", "/tmp/g"), 409, "not_a_directory")
    refused(move(c, id, "f", "/tmp/g/x"), 409, "not_a_directory")
    assert names(c, id) == ["d", "d/y", "f"] and names(c, id, "/tmp") == ["dangling", "empty", "full", "full/x", "g", "l"]
    assert move(c, id, "d", "/tmp/empty").status == 204 and c.read(id, "/tmp/empty/y").body == b"3\n"
    assert move(c, id, "f", "/tmp/l").status == 204, "a link that has the name is replaced, not followed"
    assert c.read(id, "/tmp/l").body == b"1\n" and c.read(id, "/tmp/g").body == b"2\n"
    c.write(id, "f", b"new")
    assert move(c, id, "f", "/tmp/dangling").status == 204
    assert c.get(url(id, "files/stat", "/tmp/dangling")).json()["type"] == "file"


def test_a_move_that_fails_half_way_leaves_nothing(box):
    c, id = box
    # A socket cannot be copied, and neither can what may not be read.
    read_only = "mkdir /tmp/%s/ro%d; echo 1 > /tmp/%s/ro%d/f; chmod 555 /tmp/%s/ro%d; "
    first_and_last = lambda d, what: f"mkdir /tmp/{d}; " + read_only % (d, 1, d, 1, d, 1) + what + "; " + read_only % (d, 2, d, 2, d, 2)
    c.exec(id, first_and_last("s", "python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('/tmp/s/z')\"") +
           first_and_last("u", "echo 1 > /tmp/u/secret; chmod 0 /tmp/u/secret") + first_and_last("b", "head -c 20000000 /dev/zero > /tmp/b/big") +
           "head -c 20000000 /dev/zero > fill")
    before = names(c, id, "/tmp")
    refused(move(c, id, "/tmp/s", "x/moved"), 409, "not_a_regular_file")
    refused(move(c, id, "/tmp/u", "x/moved"), 403, "forbidden")
    refused(move(c, id, "/tmp/b", "x/moved"), 507, "sandbox_disk_full")
    assert c.exec(id, "ls -A")["stdout"] == "fill\n", "nothing is left of the copies, read-only directories included"
    assert names(c, id, "/tmp") == before


def test_hard_links_and_holes(box):
    c, id = box
    c.exec(id, "echo 1 > a; ln a b; truncate -s 30000000000 hole; echo end >> hole")
    assert move(c, id, "a", "b").status == 204
    assert c.exec(id, "stat -c %h b; cat b")["stdout"] in ("1\n1\n", "2\n1\n")
    # 30 GB that take no room go to another file system without any.
    assert move(c, id, "hole", "/tmp/hole").status == 204
    assert c.exec(id, "stat -c %s /tmp/hole; tail -c 4 /tmp/hole; [ $(stat -c %b /tmp/hole) -lt 1000 ] && echo sparse")["stdout"] == "30000000004\nend\nsparse\n"


def test_trees_with_read_only_directories_are_removed(box):
    """As the caches of some package managers are."""
    c, id = box
    c.exec(id, "mkdir -p t/a/b t/c; echo 1 > t/a/b/f; echo 2 > t/a/g; chmod 555 t/a/b t/a; chmod 0 t/c")
    refused(c.delete(url(id, "files", "t")), 409, "directory_not_empty")
    assert c.delete(url(id, "files", "t", recursive="1")).status == 204
    c.exec(id, "mkdir -p ro/sub; echo 1 > ro/sub/f; chmod 555 ro")
    refused(c.delete(url(id, "files", "ro/sub", recursive="1")), 403, "forbidden")
    assert names(c, id) == ["ro", "ro/sub", "ro/sub/f"], "what may not go is not emptied"
    assert c.delete(url(id, "files", "ro", recursive="1")).status == 204 and names(c, id) == []


def test_into_itself(box):
    c, id = box
    c.exec(id, "mkdir -p d/e; ln -s . d/self; ln -s /workspace/d l")
    for to in ("d/x", "d/e/x", "d/e", "d/self/x", "l/x", "d/self/self/e/x"):
        r = move(c, id, "d", to)
        assert r.status in (403, 409), (to, r)
    assert names(c, id) == ["d", "d/e", "d/self", "l"]
    assert move(c, id, "d", "d").status == 204 and move(c, id, "d", "./d/").status == 204
    assert move(c, id, "l", "d/l").status == 204, "a link is no directory"
    assert names(c, id) == ["d", "d/e", "d/l", "d/self"]
