"""Clients that leave: while waiting, streaming, sending; and those that only stop sending."""
import signal
import time

import pytest


def put(path, *headers):
    return "\r\n".join([f"PUT {path} HTTP/1.1", "Host: h", *headers, "", ""])


@pytest.fixture
def before(shared):
    return shared.stats()["hangups"]


@pytest.mark.parametrize("how", ["close", "reset"])
def test_while_waiting(shared, before, how):
    began = time.monotonic()
    with shared.conn() as c:
        c.get("/slow?ms=20000&obey=1")
        time.sleep(0.1)
        c.reset() if how == "reset" else c.sock.close()
    shared.wait_stat("hangups", before + 1)
    assert time.monotonic() - began < 5


def test_while_waiting_on_a_kept_connection(shared, before):
    """The watch is set once per connection, and works for the third request too."""
    with shared.conn() as c:
        for _ in range(2):
            assert c.get("/slow?ms=20").reply().status == 200
        c.get("/slow?ms=20000&obey=1")
        time.sleep(0.1)
    shared.wait_stat("hangups", before + 1)


def test_while_waiting_with_a_body(shared, before):
    with shared.conn() as c:
        c.send("POST /slow?ms=20000&obey=1 HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
        time.sleep(0.1)
    shared.wait_stat("hangups", before + 1)


def test_an_answer_for_nobody(shared, before):
    with shared.conn() as c:
        c.get("/slow?ms=300")
        time.sleep(0.1)
    shared.wait_stat("hangups", before + 1)
    time.sleep(0.5)
    with shared.conn() as c:
        assert c.usable()


@pytest.mark.parametrize("how", ["close", "reset", "half"])
@pytest.mark.parametrize("target", ["/stream?bytes=100000&every_ms=20", "/stream?bytes=100000000000", "/stream?bytes=100000&every_ms=20&source=1",
                                    "/stream?bytes=100000000000&source=1"])
def test_while_streaming(shared, before, how, target):
    with shared.conn() as c:
        c.get(target)
        c.head()
        c.chunk()
        if how == "reset":
            c.reset()
        elif how == "half":
            c.half_close()
            if "every_ms" in target:
                with pytest.raises((EOFError, ConnectionResetError)):
                    while c.chunk():
                        pass
        else:
            c.sock.close()
        if how != "half" or "every_ms" in target:
            shared.wait_stat("hangups", before + 1)
    shared.wait_stat("hangups", before + 1)


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("headers", [["Content-Length: 100000"], ["Transfer-Encoding: chunked"]])
@pytest.mark.parametrize("target", ["/upload", "/upload?each=100&every_ms=1000"])
def test_while_uploading(shared, before, how, headers, target):
    began = time.monotonic()
    with shared.conn() as c:
        c.send(put(target, *headers))
        c.send(b"1000\r\n" + b"x" * 4096 + b"\r\n" if "chunked" in headers[0] else b"x" * 4096)
        time.sleep(0.1)
        c.reset() if how == "reset" else c.sock.close()
    if target == "/upload":
        shared.wait_stat("hangups", before + 1)
        assert time.monotonic() - began < 5


@pytest.mark.parametrize("how", ["close", "reset"])
def test_while_uploading_faster_than_it_is_taken(shared, before, how):
    """Standing still for a full pipe, the server still hears of it when the rest can never come."""
    with shared.conn() as c:
        c.send(put("/upload?each=1&every_ms=10", "Content-Length: 100000"))
        c.send(b"x" * 50000)
        time.sleep(0.1)
        c.reset() if how == "reset" else c.sock.close()
    assert "complete=0" in shared.log("PUT /upload?each=1&every_ms=10 op=upload", seconds=5)


def test_while_the_upload_handler_thinks(shared, before):
    with shared.conn() as c:
        c.send(put("/upload?think_ms=300", "Content-Length: 100000"))
        time.sleep(0.1)
    shared.wait_stat("hangups", before + 1)


def test_half_close_of_a_plain_request(shared):
    for target in ["/hello", "/file?bytes=1000000"]:
        with shared.conn() as c:
            r = c.get(target).half_close().reply()
            assert r.status == 200, target


def test_half_close_while_waiting_counts_as_leaving(shared, before):
    with shared.conn() as c:
        assert c.get("/slow?ms=20000&obey=1").half_close().rest() is not None
    shared.wait_stat("hangups", before + 1)


@pytest.mark.parametrize("think", ["", "?think_ms=100"])
@pytest.mark.parametrize("size", [3, 3000, 30000])
def test_whole_body_then_half_close(shared, size, think):
    """Answered, or cancelled and cut as one that left; never stuck."""
    for _ in range(10):
        with shared.conn() as c:
            c.send(put(f"/upload{think}", f"Content-Length: {size}") + "x" * size).half_close()
            rest = c.rest() or c.buf
            assert rest == b"" or b'{"bytes":%d}' % size in rest or b"no room" in rest


@pytest.mark.parametrize("headers", [["Content-Length: 100000"], ["Transfer-Encoding: chunked"]])
def test_end_in_the_same_segment_as_the_last_bytes(shared, before, headers):
    """The parser may read the bytes and never hear of the end."""
    for i in range(10):
        with shared.conn() as c:
            c.send(put("/upload", *headers) + ("400\r\n" + "x" * 300 if "chunked" in headers[0] else "x" * 300))
        shared.wait_stat("hangups", before + 1 + i)


def test_half_close_in_the_middle_of_a_body(shared, before):
    with shared.conn() as c:
        c.send(put("/upload", "Content-Length: 30000") + "x" * 3000).half_close()
        assert c.rest() == b""
    shared.wait_stat("hangups", before + 1)


@pytest.mark.parametrize("request_line", ["POST /echo", "POST /maybe", "DELETE /things/x", "POST /private", "POST /nowhere"])
@pytest.mark.parametrize("headers,body", [(["Content-Length: 30000"], b"x" * 3000), (["Content-Length: 30000"], b""), (["Transfer-Encoding: chunked"], b"400\r\n{"),
                                          (["Transfer-Encoding: chunked"], b"")], ids=["length", "length-none", "chunked", "chunked-none"])
@pytest.mark.parametrize("at_once", [True, False])
def test_half_close_in_the_middle_of_a_buffered_body(shared, request_line, headers, body, at_once):
    """Nobody sends the rest: that is noticed now, not when the time for a body is over (60 s here)."""
    refused = request_line in ("POST /private", "POST /nowhere")
    with shared.conn() as c:
        if at_once:
            shared.proc.send_signal(signal.SIGSTOP)  # so that the parser finds bytes and end together
        try:
            c.send("\r\n".join([f"{request_line} HTTP/1.1", "Host: h", "Content-Type: application/json", *headers, "", ""]).encode() + body)
            if not at_once:
                time.sleep(0.1)
            c.half_close()
        finally:
            shared.proc.send_signal(signal.SIGCONT)
        began = time.monotonic()
        rest = c.rest()
        assert rest == b"" or (refused and rest.startswith(b"HTTP/1.1 40")), rest
        assert time.monotonic() - began < 5


@pytest.mark.parametrize("size", [2, 3000, 30000])
@pytest.mark.parametrize("chunked", [False, True])
def test_whole_buffered_body_then_half_close(shared, size, chunked):
    """A client that has said everything and listens gets its answer."""
    data = b'"' + b"x" * (size - 2) + b'"'
    body = b"%x\r\n%s\r\n0\r\n\r\n" % (size, data) if chunked else data
    how = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {size}"
    for _ in range(10):
        with shared.conn() as c:
            c.send("\r\n".join(["POST /maybe HTTP/1.1", "Host: h", "Content-Type: application/json", how, "", ""]).encode() + body).half_close()
            assert c.reply().status == 200


def test_completion_is_told_once(shared):
    with shared.conn() as c:
        c.get("/things/once-only", "X-Request-Id: count-me").reply()
        c.get("/hello").reply()
    shared.log("count-me")
    assert shared.err.decode(errors='replace').count("count-me") == 1
