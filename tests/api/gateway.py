"""A real nginx in front of a server, with nginx's own defaults (buffering both ways, 60 s timeouts) but for what a gateway must say."""
import contextlib
import os
import shutil
import socket
import subprocess
import tempfile

from harness import wait_until
from upstream import Rig

CONFIG = """
daemon off; master_process off; pid {dir}/pid; error_log {dir}/error.log warn;
events {{ worker_connections 1024; }}
http {{
  {log}
  client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy; fastcgi_temp_path {dir}/fastcgi; uwsgi_temp_path {dir}/uwsgi; scgi_temp_path {dir}/scgi;
  map $http_upgrade $connection_upgrade {{ default upgrade; "" ""; }}
  {certificate}
  server {{
    listen 127.0.0.1:{port}{ssl};
    client_max_body_size 0; {more}
    location / {{
      proxy_pass http://127.0.0.1:{upstream};
      proxy_http_version 1.1;
      proxy_set_header Host $http_host;
      proxy_set_header Connection $connection_upgrade;
      proxy_set_header Upgrade $http_upgrade;
    }}
    location /internal/ {{ internal; alias {dir}/; }}
  }}
}}
"""


class Nginx:
    def __init__(self, upstream=None, tls=False, provider=False):
        """upstream: a port of the loopback, also to be set later, but before it starts. tls: HTTPS with a certificate of its own (`cert`).
        provider: HTTP/2 too, nothing is held back, and `requests()` tells what came."""
        self.dir = tempfile.mkdtemp(prefix="sandgate-nginx-")
        os.chmod(self.dir, 0o755)
        with open(os.path.join(self.dir, "secret"), "w") as f:
            f.write("only the gateway's own")
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        self.upstream, self.tls, self.provider, self.process = upstream, tls, provider, None
        self.cert = os.path.join(self.dir, "cert")

    def _configure(self):
        certificate = f"ssl_certificate {self.dir}/cert; ssl_certificate_key {self.dir}/key;" if self.tls else ""
        with open(os.path.join(self.dir, "conf"), "w") as f:
            f.write(CONFIG.format(dir=self.dir, port=self.port, upstream=self.upstream, ssl=" ssl http2" if self.provider else " ssl" if self.tls else "",
                                  certificate=certificate, more="proxy_buffering off; proxy_request_buffering off; proxy_read_timeout 300s;" if self.provider else "",
                                  log=f"log_format seen '$server_protocol $connection $request_method $uri'; access_log {self.dir}/seen seen;"
                                  if self.provider else "access_log off;"))

    def __enter__(self):
        self._configure()
        if self.tls:
            subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=gateway", "-addext", "subjectAltName=DNS:localhost",
                            "-keyout", f"{self.dir}/key", "-out", f"{self.dir}/cert"], check=True, capture_output=True)
        self.process = subprocess.Popen([shutil.which("nginx") or "/usr/sbin/nginx", "-p", self.dir, "-c", f"{self.dir}/conf"], stderr=subprocess.DEVNULL)
        wait_until(self._up, what="nginx")
        return self

    def _up(self):
        assert self.process.poll() is None, self.errors()
        try:
            socket.create_connection(("127.0.0.1", self.port)).close()
            return True
        except OSError:
            return False

    def errors(self):
        try:
            with open(f"{self.dir}/error.log") as f:
                return f.read()
        except FileNotFoundError:
            return ""

    def requests(self):
        """[(protocol, connection, method, path)] of those that are over."""
        try:
            with open(f"{self.dir}/seen") as f:
                return [tuple(line.split()) for line in f]
        except FileNotFoundError:
            return []

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(20)
        shutil.rmtree(self.dir, ignore_errors=True)


class Front(Rig):
    """The proxy alone, and nginx in front of it: clients connect to nginx."""

    def __init__(self, *args):
        super().__init__(*args)
        self.gateway = Nginx(self.port).__enter__()
        self.own_port, self.port = self.port, self.gateway.port

    def __exit__(self, *error):
        self.gateway.__exit__()
        super().__exit__(*error)


@contextlib.contextmanager
def behind(server, kind):
    """A running server as its clients reach it: "direct", or through "nginx"."""
    if kind == "direct":
        yield server
        return
    own = server.port
    with Nginx(own) as gateway:
        server.port = gateway.port
        yield server
        server.port = own
