"""WebSocket framing (RFC 6455), either side, over a Conn; only as much of it as tests need."""
import base64
import hashlib
import json
import os
import re
import socket
import struct


GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


def accept_of(key):
    return base64.b64encode(hashlib.sha1((key + GUID).encode()).digest()).decode()


def frame(opcode, payload, mask):
    n = len(payload)
    head = bytes([0x80 | opcode])
    bit = 0x80 if mask else 0
    if n < 126:
        head += bytes([bit | n])
    elif n < 65536:
        head += bytes([bit | 126]) + struct.pack(">H", n)
    else:
        head += bytes([bit | 127]) + struct.pack(">Q", n)
    if not mask:
        return head + payload
    key = os.urandom(4)
    masked = int.from_bytes(payload, "big") ^ int.from_bytes((key * (n // 4 + 1))[:n], "big")
    return head + key + masked.to_bytes(n, "big")


def read_message(conn):
    """(opcode, payload) of the next message, put together from its fragments, or of a control frame, which must not be between them."""
    whole = None
    while True:
        last, opcode, data = read_part(conn)
        if opcode >= CLOSE:
            assert whole is None
            return opcode, data
        whole = (opcode, data) if opcode else (whole[0], whole[1] + data)
        if last:
            return whole


def read_frame(conn):
    """(opcode, payload) of the next frame."""
    return read_part(conn)[1:]


def read_part(conn):
    """(is the last of its message, opcode, payload) of the next frame."""
    first, second = conn.exact(2)
    n = second & 0x7f
    if n == 126:
        n, = struct.unpack(">H", conn.exact(2))
    elif n == 127:
        n, = struct.unpack(">Q", conn.exact(8))
    key = conn.exact(4) if second & 0x80 else None
    data = conn.exact(n)
    if key:
        data = (int.from_bytes(data, "big") ^ int.from_bytes((key * (n // 4 + 1))[:n], "big")).to_bytes(n, "big")
    return first & 0x80 != 0, first & 0x0f, data


def request(target, host="public.example", headers="", key="dGhlIHNhbXBsZSBub25jZQ=="):
    return (f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            f"Sec-WebSocket-Key: {key}\r\n{headers}\r\n").encode()


def accept(fields, headers=""):
    """The 101 of a server that got these fields; it takes the last subprotocol offered."""
    h = {k.lower(): v for k, v in fields}
    chosen = h.get("sec-websocket-protocol", "").split(",")[-1].strip()
    protocol = f"Sec-WebSocket-Protocol: {chosen}\r\n" if chosen else ""
    return (f"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Accept: {accept_of(h['sec-websocket-key'])}\r\n{protocol}{headers}\r\n").encode()


def echo(conn):
    """Serves one connection: says back what comes, answers pings, echoes the close and ends."""
    _, fields = conn.head()
    conn.send(accept(fields))
    while True:
        opcode, data = read_frame(conn)
        conn.send(frame(PONG if opcode == PING else opcode, data, False))
        if opcode == CLOSE:
            return


class Socket:
    """A client of the API's own WebSockets: what binary messages brought so far, and the text messages in order."""

    def __init__(self, server, target, headers="", port=None, rcvbuf=None, timeout=60):
        sock = socket.socket()
        if rcvbuf:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        sock.settimeout(timeout)
        sock.connect(("127.0.0.1", port or server.port))
        from upstream import Conn  # not at the top: this file also goes into sandboxes, alone

        self.conn, self.bytes, self.texts, self.code, self.reason = Conn(sock), bytearray(), [], None, None
        self.messages = 0
        self.conn.send(request(target, host=f"127.0.0.1:{port or server.port}", headers=headers))
        line, fields = self.conn.head()
        self.status = int(line.split()[1])
        self.headers = {k.lower(): v for k, v in fields}
        body = b"" if self.status == 101 else self.conn.body(fields)
        answer = Answer(self.status, {k.title(): v for k, v in self.headers.items()}, body)
        server.observe("GET", target, answer)
        self.problem = json.loads(body) if body else None
        if self.status == 101:
            assert self.headers["sec-websocket-accept"] == accept_of("dGhlIHNhbXBsZSBub25jZQ=="), fields
            assert self.headers["upgrade"].lower() == "websocket" and self.headers["connection"].lower() == "upgrade"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.conn.close()

    def step(self):
        """Takes the next frame; answers pings. False once it was closed."""
        opcode, data = read_message(self.conn)
        if opcode == BINARY:
            self.bytes += data
            self.messages += 1
        elif opcode == TEXT:
            self.texts.append(json.loads(data))
        elif opcode == PING:
            self.send(PONG, data)
        elif opcode == CLOSE:
            self.code, self.reason = struct.unpack(">H", data[:2])[0] if data else None, data[2:].decode()
            try:
                self.send(CLOSE, data[:2])
            except OSError:  # it is gone already, as it may be after an error of ours
                pass
            return False
        return True

    def until(self, condition):
        """Steps until the condition holds of what has come."""
        while not condition():
            assert self.step(), (self.code, self.reason, self.texts, self.bytes[-2000:])
        return self

    def sees(self, pattern):
        return self.until(lambda: re.search(pattern.encode(), self.bytes, re.S))

    def end(self):
        """To the close; its code."""
        while self.step():
            pass
        assert self.conn.closed()
        return self.code

    def send(self, opcode, payload=b""):
        self.conn.send(frame(opcode, payload, True))

    def type(self, text):
        self.send(BINARY, text.encode() if isinstance(text, str) else text)

    def say(self, **message):
        self.send(TEXT, json.dumps(message).encode())


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body
