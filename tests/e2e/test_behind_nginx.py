"""A mirror behind nginx, with the configuration in docs/guide/mirror.md and the certificate in docs/guide/serve.md."""
import contextlib
import http.client
import json
import os
import re
import subprocess
import time

import pytest

from conftest import REPOSITORY, free_port, puna, wait_for
from test_mirror import artifact, call, digest, mirror, tool
from test_tls import certify, trusting

pytestmark = pytest.mark.skipif(not os.path.exists("/usr/sbin/nginx"), reason="SKIPPED: no nginx")

# What a configuration has around a server, with nothing outside the folder.
AROUND = """
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
events {{}}
http {{
    access_log {folder}/access.log;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
{server}
}}
"""


def documented(folder, listen, upstream):
    """The manual's server, at addresses of this test."""
    [server] = re.findall(r"```nginx\n(server \{.*?\n\})\n```", (REPOSITORY / "docs/guide/mirror.md").read_text(), re.S)
    changes = {
        "listen 443 ssl;": f"listen 127.0.0.1:{listen} ssl; ssl_certificate {folder}/puna.pem; ssl_certificate_key {folder}/puna.key;",
        "http://127.0.0.1:5000": f"http://127.0.0.1:{upstream}",
    }
    for what, instead in changes.items():
        assert what in server, server
        server = server.replace(what, instead)
    return AROUND.format(folder=folder, server=server)


class Proxy:
    """nginx before a mirror."""

    def __init__(self, folder, mirror):
        self.folder, self.port = folder, free_port()
        certify(folder)
        (folder / "nginx.conf").write_text(documented(folder, self.port, mirror.port))
        self.process = subprocess.Popen(["/usr/sbin/nginx", "-p", folder, "-c", folder / "nginx.conf", "-e", folder / "error.log"])
        assert wait_for(self.is_up, 10), (folder / "error.log").read_text()

    @property
    def host(self):
        return f"127.0.0.1:{self.port}"

    def is_up(self):
        with contextlib.suppress(OSError):
            return self.ask("GET", "/v2/")[0]

    def ask(self, method, path, body=None, **headers):
        """(status, headers, body) of a request."""
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=10, context=trusting(self.folder))
        with contextlib.closing(connection):
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, response.headers, response.read()

    def stop(self):
        self.process.terminate()
        self.process.wait()


@pytest.fixture
def behind(mirror, tmp_path):
    """A mirror with a key for everything, and nginx before it."""
    it, folder = mirror(), tmp_path / "nginx"
    folder.mkdir()
    key = it.cli("key", "add", "office", "--scope", "models", check=True).stdout.strip()
    proxy = Proxy(folder, it)
    assert wait_for(lambda: proxy.ask("GET", "/v2/")[0] == 401)
    yield it, proxy, key
    proxy.stop()


def test_clients_push_and_pull_through_nginx(behind, home, tmp_path):
    it, proxy, key = behind
    settings = tmp_path / "puna.toml"
    # The authority is trusted for this host alone.
    settings.write_text(f'[registry.hosts."{proxy.host}"]\nca = "{proxy.folder}/ca.pem"\nusername = "office"\npassword = "{key}"\n')
    ours = home | {"PUNA_CONFIG": str(settings)}
    name = f"{proxy.host}/team/cria"
    puna("cp", "cria", name, env=ours, check=True)
    begun = time.monotonic()
    refused = puna("push", name, env=home)
    assert refused.returncode == 1 and f'ca = "FILE.pem" in [registry.hosts."{proxy.host}"]' in refused.stderr, refused.stderr
    assert time.monotonic() - begun < 10, "it was tried again"
    puna("push", name, env=ours, check=True)
    puna("rm", name, env=ours, check=True)
    puna("pull", name, env=ours, check=True)
    there = artifact(tmp_path / "there")
    skopeo = tool("skopeo")
    certificates = tmp_path / "certificates"
    certificates.mkdir()
    (certificates / "ca.crt").write_bytes((proxy.folder / "ca.pem").read_bytes())
    call(skopeo, "copy", "--dest-cert-dir", certificates, "--dest-creds", f"office:{key}", f"dir:{there}", f"docker://{proxy.host}/team/thing:v1")
    call(skopeo, "copy", "--src-cert-dir", certificates, "--src-creds", f"office:{key}", f"docker://{proxy.host}/team/thing:v1", f"dir:{tmp_path / 'back'}")
    log = it.log.read_text()
    assert key not in log


def test_locations_have_the_prefix_of_the_proxy_which_buffers_no_large_body(behind):
    it, proxy, key = behind
    shown = {"Authorization": f"Bearer {key}"}
    status, headers, _ = proxy.ask("POST", "/v2/team/m/blobs/uploads/", **shown)
    assert status == 202 and headers["Location"].startswith(f"https://{proxy.host}/v2/team/m/blobs/uploads/"), headers["Location"]
    data = os.urandom(20 << 20)
    path = headers["Location"].removeprefix(f"https://{proxy.host}")
    assert proxy.ask("PUT", f"{path}?digest={digest(data)}", data, **shown)[0] == 201
    blob = f"/v2/team/m/blobs/{digest(data)}"
    status, headers, body = proxy.ask("GET", blob, Range="bytes=1000-1999", **shown)
    assert (status, body) == (206, data[1000:2000])
    status, headers, body = proxy.ask("HEAD", blob, **shown)
    assert (status, headers["Content-Length"], headers["Docker-Content-Digest"]) == (200, str(len(data)), digest(data))
    # What it buffers on the disk it says.
    assert "temporary file" not in (proxy.folder / "error.log").read_text()


def test_clients_behind_the_proxy_do_not_count_as_local(mirror, tmp_path):
    it, folder = mirror(), tmp_path / "nginx"
    folder.mkdir()
    proxy = Proxy(folder, it)
    try:
        assert it.ask("POST", "/v2/team/m/blobs/uploads/")[0] == 202
        status, _, body = proxy.ask("POST", "/v2/team/m/blobs/uploads/")
        assert status in (401, 403), json.loads(body)
    finally:
        proxy.stop()
