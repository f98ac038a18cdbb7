"""An HTTP proxy that only makes tunnels (CONNECT), as a thread of a test: `with ConnectProxy(auth="user:pass") as p:` and then p.url, p.asked (what was
asked for, refused or not) and p.seen (the first bytes of everything that passed)."""
import base64
import socket
import threading

SEEN_MAX = 1 << 20


class ConnectProxy:
    def __init__(self, auth=None):
        """auth: "user:password" it insists on."""
        self.auth, self.asked, self.seen = auth, [], bytearray()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def _accept(self):
        while True:
            try:
                s, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(s,), daemon=True).start()

    def _serve(self, s):
        head = b""
        while b"\r\n\r\n" not in head:
            data = s.recv(4096)
            if not data:
                return s.close()
            head += data
        self.seen += head
        line, *fields = head.split(b"\r\n\r\n")[0].decode().split("\r\n")
        method, target, _ = line.split(" ")
        given = dict(f.split(": ", 1) for f in fields).get("Proxy-Authorization")
        ok = method == "CONNECT" and (not self.auth or given == "Basic " + base64.b64encode(self.auth.encode()).decode())
        self.asked.append((method, target, ok))
        if not ok:
            s.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm=\"x\"\r\nContent-Length: 0\r\n\r\n")
            return s.close()
        host, _, port = target.rpartition(":")
        try:
            peer = socket.create_connection((host.strip("[]"), int(port)))
        except OSError:
            s.sendall(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
            return s.close()
        s.sendall(b"HTTP/1.1 200 Connection established\r\nX-Proxy: here\r\n\r\n")
        threading.Thread(target=self._copy, args=(peer, s), daemon=True).start()
        self._copy(s, peer)

    def _copy(self, source, to):
        try:
            while data := source.recv(65536):
                if len(self.seen) < SEEN_MAX:
                    self.seen += data
                to.sendall(data)
        except OSError:
            pass
        for s in (source, to):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
