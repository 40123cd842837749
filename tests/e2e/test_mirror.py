"""The mirror, with clients of others: the conformance suite of the OCI rules, skopeo, oras, and the very requests of Ollama."""
import contextlib
import hashlib
import http.client
import http.server
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import threading
import time

import pytest

from conftest import BINARY, REPOSITORY, Puna, environment, free_port, puna, wait_for
from test_registry import Registry

TOOLS = REPOSITORY / ".cache/go"
DOCKER = "application/vnd.docker.distribution.manifest.v2+json"
OCI = "application/vnd.oci.image.manifest.v1+json"
AGENT = "ollama/0.33.2 (amd64 linux) Go/go1.26.8"


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


class Mirror(Puna):
    """A `puna mirror` on a free port of the loopback address."""

    def __init__(self, home, **env):
        self.listen = free_port()
        super().__init__(home, PUNA_MIRROR_HOST=f"127.0.0.1:{self.listen}", **env)
        self.port = self.listen
        # A mirror is no server that commands could ask: they work on its folder of models themselves.
        self.env["OLLAMA_HOST"] = "127.0.0.1:0"

    def start(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([BINARY, "mirror"], env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.port = self.listen
        assert wait_for(self.is_up, 30), self.log.read_text()

    def is_up(self):
        with contextlib.suppress(OSError):
            return self.get("/v2/")[0] in (200, 401)

    @property
    def host(self):
        return f"127.0.0.1:{self.port}"

    def ask(self, method, path, body=None, key=None):
        """(status, headers, body) of a request with a key."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        with contextlib.closing(connection):
            connection.request(method, path, body, {"x-api-key": key} if key else {})
            response = connection.getresponse()
            return response.status, response.headers, response.read()

    def location(self, method, path):
        """The path that an answer without a body leads to."""
        return self.ask(method, path)[1]["Location"].removeprefix(f"http://{self.host}")

    def model(self, name, layers):
        """Puts a model of (media type, bytes) layers, the last of which is the config, into the store by hand."""
        root = self.home / ".ollama/models"
        (root / "blobs").mkdir(parents=True, exist_ok=True)
        entries = [{"mediaType": kind, "digest": digest(data), "size": len(data)} for kind, data in layers]
        for _, data in layers:
            (root / "blobs" / digest(data).replace(":", "-")).write_bytes(data)
        manifest = json.dumps({"schemaVersion": 2, "mediaType": DOCKER, "config": entries[-1], "layers": entries[:-1]}).encode()
        path = root / "manifests/registry.ollama.ai" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(manifest)
        return manifest


@pytest.fixture
def mirror(tmp_path):
    """Starts mirrors: `mirror(PUNA_MIRROR_DELETE=1)`."""
    with contextlib.ExitStack() as stack:
        def start(**env):
            home = tmp_path / f"mirror{len(list(tmp_path.iterdir()))}"
            home.mkdir()
            it = Mirror(home, **env)
            stack.callback(it.kill)
            return it
        yield start


def tool(path):
    if not (found := shutil.which(path)):
        pytest.skip(f"SKIPPED: {path} is not there; ./test builds it where Go and a network are, and packages of the system bring the rest")
    return found


def call(*command, **kw):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=120, **kw)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


class Storage:
    """A service that speaks S3, with a bucket for mirrors. PUNA_TEST_S3=ADDRESS,BUCKET,KEY,SECRET names another one."""

    def __init__(self, folder):
        self.process, (self.port, self.bucket, self.key, self.secret) = None, (free_port(), "models", "testkey", "testsecret")
        self.address = f"http://127.0.0.1:{self.port}"
        if other := os.environ.get("PUNA_TEST_S3"):
            self.address, self.bucket, self.key, self.secret = other.split(",")
            return
        command = [tool(str(TOOLS / "storage")), f"127.0.0.1:{self.port}", self.bucket, self.key, self.secret]
        with open(folder / "storage.log", "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        assert wait_for(lambda: not socket.socket().connect_ex(("127.0.0.1", self.port)), 10)

    def env(self, **other):
        prefix = f"s3://{self.bucket}/office-{self.port}"
        here = {"PUNA_MIRROR_STORAGE": prefix, "PUNA_MIRROR_STORAGE_ENDPOINT": self.address, "AWS_ACCESS_KEY_ID": self.key, "AWS_SECRET_ACCESS_KEY": self.secret}
        return {**here, **other}

    def stop(self):
        if self.process:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def storage(tmp_path):
    it = Storage(tmp_path)
    yield it
    it.stop()


@pytest.mark.parametrize("where", ["folder", "bucket"])
def test_the_conformance_suite_passes(mirror, tmp_path, where, request):
    suite = tool(str(TOOLS / "conformance"))
    env = request.getfixturevalue("storage").env() if where == "bucket" else {}
    it = mirror(PUNA_MIRROR_DELETE=1, **env)
    settings = {
        "REGISTRY": it.host,
        "TLS": "disabled",
        "RESULTS_DIR": str(tmp_path / "results"),
        # Digests are SHA-256 in everything that models are kept in.
        "DATA_SHA512": "false",
        "API_BLOBS_DIGEST_HEADER": "true",
        "API_MANIFESTS_DIGEST_HEADER": "true",
        "API_BLOBS_UPLOAD_CANCEL": "true",
    }
    env = {**environment(tmp_path), **{f"OCI_{key}": value for key, value in settings.items()}}
    done = subprocess.run([suite], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    count = {word: int(n) for word, n in re.findall(r"^ +(\w+)\.+: +(\d+)$", done.stdout, re.M)}
    assert done.returncode == 0 and count["FAIL"] == 0 == count["Error"] and count["Pass"] > 100, done.stdout


def artifact(folder, kind="application/vnd.cncf.model.manifest.v1+json"):
    """A model as others package it, as a folder of skopeo's."""
    folder.mkdir()
    weights, config = os.urandom(3 << 20), b'{"descriptor":{},"modelfs":{"type":"layers"}}'
    (folder / "version").write_text("Directory Transport Version: 1.1\n")
    for data in (weights, config):
        (folder / digest(data).removeprefix("sha256:")).write_bytes(data)
    manifest = {
        "schemaVersion": 2,
        "mediaType": OCI,
        "artifactType": kind,
        "config": {"mediaType": "application/vnd.cncf.model.config.v1+json", "digest": digest(config), "size": len(config)},
        "layers": [{"mediaType": "application/vnd.cncf.model.weight.v1.raw", "digest": digest(weights), "size": len(weights)}],
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1))
    return folder


@pytest.mark.parametrize("name", ["team/thing:v1", "thing", "a/b/c/d:x"])
def test_skopeo_copies_there_and_back(mirror, tmp_path, name):
    skopeo, it = tool("skopeo"), mirror()
    there, back = artifact(tmp_path / "there"), tmp_path / "back"
    call(skopeo, "copy", "--dest-tls-verify=false", f"dir:{there}", f"docker://{it.host}/{name}")
    call(skopeo, "copy", "--src-tls-verify=false", f"docker://{it.host}/{name}", f"dir:{back}")
    assert {p.name: p.read_bytes() for p in there.iterdir()} == {p.name: p.read_bytes() for p in back.iterdir()}
    # Nothing of it is where an Ollama looks.
    assert not list(it.home.glob(".ollama/models/manifests/**/*")) and not list(it.home.glob(".ollama/models/blobs/*"))
    repository = name.partition(":")[0]
    assert json.loads(it.get("/v2/_catalog")[1]) == {"repositories": [repository]}


def test_oras_copies_a_model_between_mirrors_where_puna_runs_it(mirror, tmp_path):
    oras, one, other = tool(str(TOOLS / "oras")), mirror(), mirror()
    one.cli("cp", "cria", "me/cria", check=True)
    call(oras, "cp", "--from-plain-http", "--to-plain-http", f"{one.host}/me/cria:latest", f"{other.host}/me/cria:latest")
    assert one.get("/v2/me/cria/manifests/latest") == other.get("/v2/me/cria/manifests/latest")
    assert "me/cria:latest" in other.cli("list", check=True).stdout
    assert other.cli("run", "me/cria", "What is the capital of France?", check=True).stdout.strip().endswith("Paris.")
    stop_servers(other)


def stop_servers(it):
    """`run` leaves a server in the background."""
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command, env = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
            if b"serve" in command and f"HOME={it.home}".encode() in env.split(b"\0"):
                os.kill(int(folder.name), signal.SIGTERM)


def test_puna_pushes_and_pulls(mirror, home):
    it = mirror()
    puna("cp", "cria", f"{it.host}/me/cria", env=home, check=True)
    puna("push", "--insecure", f"{it.host}/me/cria", env=home, check=True)
    puna("rm", f"{it.host}/me/cria", env=home, check=True)
    puna("pull", "--insecure", f"{it.host}/me/cria", env=home, check=True)
    assert f"{it.host}/me/cria:latest" in puna("list", env=home, check=True).stdout
    # On the mirror it is a model like any other.
    assert "me/cria:latest" in it.cli("list", check=True).stdout


def raw(it, text, body=b""):
    """The head and the body that answer a request sent as it stands."""
    with socket.create_connection(("127.0.0.1", it.port), timeout=30) as s:
        s.sendall(text.replace("\n", "\r\n").encode() + b"\r\n" + body)
        data = b""
        while b"\r\n\r\n" not in data:
            data += s.recv(1 << 16)
        head, _, rest = data.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines[1:])}
        status = int(lines[0].split()[1])
        length = 0 if text.startswith("HEAD") or status in (204, 304) else int(headers.get("content-length", 0))
        while len(rest) < length:
            rest += s.recv(1 << 16)
        return status, headers, rest


def test_ollamas_pull_request_by_request(mirror):
    it = mirror()
    weights = os.urandom(3_000_001)
    manifest = it.model("test/m/latest", [("application/vnd.ollama.image.model", weights), ("application/vnd.docker.container.image.v1+json", b"{}")])
    host = f"Host: {it.host}\n"
    status, headers, body = raw(it, f"GET /v2/test/m/manifests/latest HTTP/1.1\n{host}User-Agent: {AGENT}\nAccept: {DOCKER}\nAccept-Encoding: gzip\n")
    assert (status, body, headers["content-type"]) == (200, manifest, DOCKER)
    blob = f"/v2/test/m/blobs/{digest(weights)}"
    status, headers, _ = raw(it, f"HEAD {blob} HTTP/1.1\n{host}User-Agent: {AGENT}\n")
    assert (status, headers["content-length"]) == (200, str(len(weights)))
    # Without a range, to learn where the bytes are; the connection is dropped after the headers.
    with socket.create_connection(("127.0.0.1", it.port)) as s:
        s.sendall(f"GET {blob} HTTP/1.1\r\nHost: {it.host}\r\nUser-Agent: {AGENT}\r\nAccept-Encoding: gzip\r\n\r\n".encode())
        head = s.recv(4096).partition(b"\r\n\r\n")[0].decode()
    assert head.startswith("HTTP/1.1 200 ") and re.search(rf"^location: {re.escape(blob)}\r?$", head, re.M | re.I), head
    assert "content-encoding" not in head.lower()
    got = b""
    for first in range(0, len(weights), 1_000_000):
        last = min(first + 1_000_000, len(weights)) - 1
        status, headers, part = raw(it, f"GET {blob} HTTP/1.1\n{host}User-Agent: Go-http-client/1.1\nRange: bytes={first}-{last}\nAccept-Encoding: gzip\n")
        assert (status, headers["content-range"]) == (206, f"bytes {first}-{last}/{len(weights)}")
        got += part
    assert got == weights


def test_ollamas_push_request_by_request(mirror):
    # By another name than the machine's, as behind a proxy.
    it = mirror(PUNA_MIRROR_PUSH=1)
    weights, config = os.urandom(2_500_000), b'{"model_format":"gguf"}'
    host = f"Host: models.example:8080\nUser-Agent: {AGENT}\n"
    for data in (weights, config):
        assert raw(it, f"HEAD /v2/push/copy/blobs/{digest(data)} HTTP/1.1\n{host}")[0] == 404
        status, headers, _ = raw(it, f"POST /v2/push/copy/blobs/uploads/ HTTP/1.1\n{host}Content-Length: 0\n")
        session = headers["location"]
        assert status == 202 and session.startswith("http://models.example:8080/v2/push/copy/blobs/uploads/")
        for first in range(0, len(data), 1_000_000):
            part = data[first : first + 1_000_000]
            last = first + len(part) - 1
            path = session.removeprefix("http://models.example:8080")
            head = f"PATCH {path} HTTP/1.1\n{host}Content-Length: {len(part)}\nContent-Range: {first}-{last}\nContent-Type: application/octet-stream\nX-Redirect-Uploads: 1\n"
            status, headers, _ = raw(it, head, part)
            assert (status, headers["range"]) == (202, f"0-{last}")
            session = headers["location"]
        path = session.removeprefix("http://models.example:8080")
        put = f"PUT {path}?digest={digest(data).replace(':', '%3A')}&etag=f33b44865beed593affe332d1bcbff0b-3 HTTP/1.1\n{host}Content-Length: 0\n"
        assert raw(it, put)[0] == 201
        assert raw(it, f"HEAD /v2/push/copy/blobs/{digest(data)} HTTP/1.1\n{host}")[0] == 200
    layers = [{"mediaType": "application/vnd.ollama.image.model", "digest": digest(weights), "size": len(weights)}]
    entry = {"mediaType": "application/vnd.docker.container.image.v1+json", "digest": digest(config), "size": len(config)}
    manifest = json.dumps({"schemaVersion": 2, "mediaType": DOCKER, "config": entry, "layers": layers}).encode()
    head = f"PUT /v2/push/copy/manifests/latest HTTP/1.1\n{host}Content-Type: {DOCKER}\nContent-Length: {len(manifest)}\n"
    assert raw(it, head, manifest)[0] == 201
    # An Ollama on the same store has it, whole.
    root = it.home / ".ollama/models"
    assert (root / "manifests/registry.ollama.ai/push/copy/latest").read_bytes() == manifest
    assert {p.name: p.read_bytes() for p in (root / "blobs").iterdir()} == {digest(d).replace(":", "-"): d for d in (weights, config)}
    # Ollama's newer client asks with an empty body that names a digest: a question, and no blob.
    other = digest(b"other")
    assert raw(it, f"POST /v2/push/copy/blobs/uploads/?digest={other} HTTP/1.1\n{host}Content-Length: 0\nX-Redirect-Uploads: 2\n")[0] == 202
    assert raw(it, f"POST /v2/push/copy/blobs/uploads/?digest={digest(config)} HTTP/1.1\n{host}Content-Length: 0\n")[0] == 201


def test_an_upload_goes_on_after_a_killed_mirror(mirror):
    it = mirror()
    data = os.urandom(4 << 20)
    host = f"Host: {it.host}\n"
    path = raw(it, f"POST /v2/me/thing/blobs/uploads/ HTTP/1.1\n{host}Content-Length: 0\n")[1]["location"].removeprefix(f"http://{it.host}")
    half = len(data) // 2
    assert raw(it, f"PATCH {path} HTTP/1.1\n{host}Content-Length: {half}\nContent-Range: 0-{half - 1}\n", data[:half])[0] == 202
    with socket.create_connection(("127.0.0.1", it.port)) as s:
        s.sendall(f"PATCH {path} HTTP/1.1\r\nHost: {it.host}\r\nContent-Length: {half}\r\n\r\n".encode() + data[half : half + (1 << 20)])
        uploads = it.home / ".ollama/models/puna-registry/uploads"
        assert wait_for(lambda: any(p.stat().st_size > half for p in uploads.iterdir() if not p.suffix))
        it.kill()
    it.start()
    status, headers, _ = raw(it, f"GET {path} HTTP/1.1\n{host}")
    have = int(headers["range"].removeprefix("0-")) + 1
    assert status == 204 and half < have < len(data)
    # From where it broke off, or from the last part's end, but not from elsewhere.
    assert raw(it, f"PATCH {path} HTTP/1.1\n{host}Content-Length: 1\nContent-Range: 7-7\n", b"x")[0] == 416
    rest = data[half:]
    assert raw(it, f"PATCH {path} HTTP/1.1\n{host}Content-Length: {len(rest)}\nContent-Range: {half}-{len(data) - 1}\n", rest)[0] == 202
    assert raw(it, f"PUT {path}?digest={digest(data)} HTTP/1.1\n{host}Content-Length: 0\n")[0] == 201
    assert it.get(f"/v2/me/thing/blobs/{digest(data)}") == (200, data)
    assert not list(uploads.iterdir())


def test_serve_is_a_mirror_where_that_is_switched_on(fresh):
    server = fresh(PUNA_MIRROR_SERVE=1)
    assert server.get("/v2/") == (200, b"{}")
    assert server.get("/api/version")[0] == 200
    assert fresh().get("/v2/")[0] == 404


@pytest.fixture
def upstream():
    """A registry that stands for Ollama's."""
    server = Registry()
    yield server
    server.shutdown()
    server.server_close()


def through(mirror, upstream, **env):
    return mirror(PUNA_MIRROR_UPSTREAMS="registry.ollama.ai", PUNA_REGISTRY_DEFAULT=f"http://{upstream.host}", PUNA_MIRROR_PRIVATE="me,team-*", **env)


def test_what_is_fetched_once_is_handed_to_many_while_it_arrives(mirror, upstream):
    data = os.urandom(6 << 20)
    upstream.put("library/big:latest", [("application/vnd.ollama.image.model", data), ("application/vnd.docker.container.image.v1+json", b"{}")])
    upstream.pace = 0.02
    it = through(mirror, upstream)
    status, manifest = it.get("/v2/library/big/manifests/latest")
    assert (status, manifest) == (200, upstream.manifests["library/big:latest"])
    blob, got, sent = f"/v2/library/big/blobs/{digest(data)}", [], {}

    def fetch(first, last):
        status, body = it.send("GET", blob, headers={} if last is None else {"Range": f"bytes={first}-{last}"})
        sent[first, last] = upstream.sent
        got.append((status, body == data[first : None if last is None else last + 1]))

    asked = [(0, None), (0, None), (0, 65535), (1 << 20, (3 << 20) - 1), (5 << 20, len(data) - 1)]
    readers = [threading.Thread(target=fetch, args=part) for part in asked]
    for reader in readers:
        reader.start()
    page = it.get("/mirror")[1].decode()
    assert re.search(r"Being fetched.*library/big:latest<td>[^<]+ of 6\.3 MB", page) and "There is nothing here yet" in page
    for reader in readers:
        reader.join()
    assert sorted(got) == [(200, True)] * 2 + [(206, True)] * 3
    assert sent[0, 65535] < len(data), "the first bytes waited for the last ones"
    # Those who fetch halves of a part may meet.
    assert upstream.sent < len(data) + (1 << 20), "it came once"
    assert wait_for(lambda: "big:latest" in it.cli("list", check=True).stdout)
    page = it.get("/mirror")[1].decode()
    assert "Being fetched" not in page and "library/big:latest<td>6.3 MB" in page and "Last pulls" in page
    assert f"puna pull --insecure {it.host}/library/" in page and not re.search(r"(src|href)=|https?://", page)
    # Nothing is asked for again while it is fresh.
    upstream.asked.clear()
    assert it.get("/v2/library/big/manifests/latest")[1] == manifest and not upstream.asked


def test_a_pull_outlives_the_mirror_that_it_goes_through(mirror, upstream):
    data = os.urandom(6 << 20)
    upstream.put("library/big:latest", [("application/vnd.ollama.image.model", data), ("application/vnd.docker.container.image.v1+json", b"{}")])
    upstream.pace = 0.02  # 96 pieces
    it = through(mirror, upstream, OLLAMA_MAX_TRANSFER_STREAMS=1)
    assert it.get("/v2/library/big/manifests/latest")[0] == 200
    partial = it.home / f".ollama/models/blobs/{digest(data).replace(':', '-')}-partial-0"
    assert wait_for(lambda: partial.exists() and json.loads(partial.read_text())["Completed"]) and upstream.sent < len(data)
    it.kill()
    it.start()
    upstream.asked.clear()
    assert it.get(f"/v2/library/big/blobs/{digest(data)}") == (200, data)
    # It went on, after it had asked how large the blob is.
    assert min(first for of, first, last in upstream.asked if of == digest(data) and last > 0) > 0
    assert it.get(f"/v2/library/big/blobs/{digest(b'another')}")[0] == 404
    assert it.get("/v2/library/big/manifests/latest")[0] == 200
    assert wait_for(lambda: "big:latest" in it.cli("list", check=True).stdout)


def test_mirrors_over_one_bucket_hand_on_what_the_other_has_begun(mirror, storage, upstream):
    data = os.urandom(6 << 20)
    upstream.put("library/big:latest", [("application/vnd.ollama.image.model", data), ("application/vnd.docker.container.image.v1+json", b"{}")])
    upstream.pace = 0.02
    one, other = through(mirror, upstream, **storage.env()), through(mirror, upstream, **storage.env())
    assert one.get("/v2/library/big/manifests/latest")[0] == 200
    for blob in (data, b"{}"):
        assert other.get(f"/v2/library/big/blobs/{digest(blob)}") == (200, blob)


def test_a_manifest_waits_for_blobs_that_are_still_arriving(mirror, upstream):
    data = os.urandom(6 << 20)
    upstream.put("library/big:latest", [("application/vnd.ollama.image.model", data), ("application/vnd.docker.container.image.v1+json", b"{}")])
    upstream.pace = 0.02  # 96 pieces
    it = through(mirror, upstream, OLLAMA_MAX_TRANSFER_STREAMS=1)
    status, manifest = it.get("/v2/library/big/manifests/latest")
    assert status == 200
    # Who pushes a copy of it is told that this is here, and does not send it.
    for blob in (data, b"{}"):
        assert it.send("HEAD", f"/v2/me/copy/blobs/{digest(blob)}")[0] == 200
    assert upstream.sent < len(data), "the test is too slow to tell"
    put = it.send("PUT", "/v2/me/copy/manifests/latest", manifest, headers={"Content-Type": DOCKER})
    assert put[0] == 201 and upstream.sent >= len(data), put
    assert it.get(f"/v2/me/copy/blobs/{digest(data)}") == (200, data)


def test_a_range_far_ahead_does_not_wait_for_what_is_before_it(mirror, upstream):
    data = os.urandom(24 << 20)
    upstream.put("library/big:latest", [("application/vnd.ollama.image.model", data), ("application/vnd.docker.container.image.v1+json", b"{}")])
    upstream.pace = 0.05  # 384 pieces
    it = through(mirror, upstream, OLLAMA_MAX_TRANSFER_STREAMS=1)
    assert it.get("/v2/library/big/manifests/latest")[0] == 200
    blob = f"/v2/library/big/blobs/{digest(data)}"
    for first in (20 << 20, 9 << 20):
        assert it.send("GET", blob, headers={"Range": f"bytes={first}-{first + 99_999}"}) == (206, data[first : first + 100_000])
        assert upstream.sent < 6 << 20, "most of what is before it came first"
    upstream.pace = 0
    assert it.get(blob) == (200, data)
    # What was under way where a part was cut, up to a socket's buffers each time, comes again.
    assert upstream.sent < len(data) * 1.5, "it came once"


def test_what_is_here_is_served_while_the_upstream_is_away(mirror, upstream):
    layers = [("application/vnd.ollama.image.model", b"weights"), ("application/vnd.docker.container.image.v1+json", b"{}")]
    upstream.put("library/m:latest", layers)
    it = through(mirror, upstream, PUNA_MIRROR_FRESH="1ns")
    manifest = upstream.manifests["library/m:latest"]
    assert it.get("/v2/library/m/manifests/latest") == (200, manifest)
    assert wait_for(lambda: "m:latest" in it.cli("list", check=True).stdout)
    # It moves there, and here with it.
    upstream.put("library/m:latest", [("application/vnd.ollama.image.model", b"other weights"), layers[1]])
    # As soon as the fetching has ended, which is a moment after the model is listed.
    moved = (200, upstream.manifests["library/m:latest"])
    assert wait_for(lambda: it.get("/v2/library/m/manifests/latest") == moved, 5)
    assert it.get("/v2/library/absent/manifests/latest")[0] == 404
    assert wait_for(lambda: it.get(f"/v2/library/m/blobs/{digest(b'other weights')}")[0] == 200)
    time.sleep(0.2)
    upstream.manifests.clear()
    assert it.get("/v2/library/m/manifests/latest")[0] == 200
    it.kill()
    it.env["PUNA_REGISTRY_DEFAULT"] = "http://127.0.0.1:9"
    it.start()
    assert it.get("/v2/library/m/manifests/latest")[0] == 200
    status, body = it.get("/v2/library/other/manifests/latest")
    assert status == 502 and b"the upstream registry" in body


def test_a_taken_address_says_by_whom_and_what_to_set(mirror):
    it = mirror()
    done = subprocess.run([BINARY, "mirror"], env=it.env, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1 and "a mirror of Puna's is running there already" in done.stderr, done
    assert "PUNA_MIRROR_HOST" in done.stderr and "OLLAMA_HOST" not in done.stderr, done.stderr


def test_two_mirrors_over_one_bucket_are_one_library(mirror, storage, home, tmp_path):
    one, other = mirror(**storage.env()), mirror(**storage.env(PUNA_MIRROR_DELETE="1"))
    # A model, from a client of the one to a client of the other.
    puna("cp", "cria", f"{one.host}/anna/cria", env=home, check=True)
    puna("push", "--insecure", f"{one.host}/anna/cria", env=home, check=True)
    puller = tmp_path / "puller"
    puller.mkdir()
    puna("pull", "--insecure", f"{other.host}/anna/cria", env=environment(puller), check=True)
    assert other.get("/v2/anna/cria/manifests/latest") == one.get("/v2/anna/cria/manifests/latest")
    assert "anna/cria:latest" in other.get("/mirror")[1].decode()
    # An upload that goes on at the other, behind a balancer that knows of no sessions, and after both were killed.
    data, at, mirrors = os.urandom(40 << 20), 0, [one, other]
    path = one.location("POST", "/v2/team/thing/blobs/uploads/")
    while at < len(data):
        piece = data[at : at + (15 << 20)]
        status, _ = mirrors[0].send("PATCH", path, piece, headers={"Content-Range": f"{at}-{at + len(piece) - 1}"})
        assert status == 202
        at += len(piece)
        mirrors[0].kill()
        mirrors[0].start()
        mirrors.reverse()
    blob = f"/v2/team/thing/blobs/{digest(data)}"
    assert one.get(blob)[0] == 404
    assert one.send("PUT", f"{path}?digest={digest(data)}", b"")[0] == 201
    assert other.get(blob) == (200, data)
    assert other.send("GET", blob, headers={"Range": "bytes=33554000-33555000"}) == (206, data[33554000:33555001])
    assert other.send("GET", blob, headers={"If-None-Match": f'"{digest(data)}"'})[0] == 304
    assert one.send("HEAD", "/v2/anna/cria/manifests/latest")[0] == 200
    assert other.send("DELETE", "/v2/anna/cria/manifests/latest")[0] == 202
    assert one.get("/v2/anna/cria/manifests/latest")[0] == 404
    # Nothing of it lies on the machines, and nothing tells the key.
    for it in (one, other):
        assert not [p for p in it.home.glob(".ollama/models/**/*") if p.is_file() and p.stat().st_size > 1000]
        settings = it.cli("config", check=True).stdout
        assert storage.bucket in settings and storage.secret not in settings + it.log.read_text()


def test_what_is_fetched_from_others_lands_in_the_bucket(mirror, storage, upstream):
    data = os.urandom(3 << 20)
    upstream.put("library/big:latest", [("application/vnd.ollama.image.model", data), ("application/vnd.docker.container.image.v1+json", b"{}")])
    one, other = through(mirror, upstream, **storage.env()), mirror(**storage.env())
    manifest, blob = "/v2/library/big/manifests/latest", f"/v2/library/big/blobs/{digest(data)}"
    assert one.get(manifest) == (200, upstream.manifests["library/big:latest"])
    assert one.get(blob) == (200, data)
    assert wait_for(lambda: other.get(manifest)[0] == 200)
    upstream.manifests.clear()
    assert other.get(blob) == (200, data)
    passing = one.home / ".ollama/models/puna-registry/passing"
    assert wait_for(lambda: not [p for p in passing.glob("*/**/*") if p.is_file() and p.stat().st_size > 1000])


def test_a_bucket_that_is_not_there_is_said_at_start(mirror, storage, tmp_path):
    def refusal(**env):
        env = {**environment(tmp_path), "PUNA_MIRROR_HOST": f"127.0.0.1:{free_port()}", **storage.env(**env)}
        done = subprocess.run([BINARY, "mirror"], env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 1, done.stderr
        return done.stderr

    assert "s3://nowhere/x" in (text := refusal(PUNA_MIRROR_STORAGE="s3://nowhere/x")) and "bucket" in text, text
    text = refusal(AWS_SECRET_ACCESS_KEY="wrong-secret")
    assert "credentials" in text and "mirror.storage_secret" in text and "wrong-secret" not in text, text
    assert "must be s3://BUCKET" in refusal(PUNA_MIRROR_STORAGE="models")
    text = refusal(PUNA_MIRROR_STORAGE_ENDPOINT=f"http://127.0.0.1:{free_port()}")
    assert "mirror.storage_endpoint" in text, text
@pytest.mark.parametrize("format", ["docker", "modelpack"])
def test_other_packagings_pass_as_they_are_and_become_models_at_the_client(format, mirror, upstream, home, tmp_path):
    name = f"{upstream.host}/ai/cria"
    puna("cp", "cria", name, env=home, check=True)
    puna("push", "--insecure", "--format", format, name, env=home, check=True)
    manifest = upstream.manifests["ai/cria:latest"]
    it = through(mirror, upstream)
    status, served = it.get("/v2/ai/cria/manifests/latest")
    assert (status, served) == (200, manifest)
    layers = json.loads(manifest)
    for layer in [*layers["layers"], layers["config"]]:
        status, body = it.get(f"/v2/ai/cria/blobs/{layer['digest']}")
        assert (status, digest(body)) == (200, layer["digest"])
    models = it.home / ".ollama/models"
    assert wait_for(lambda: list(models.glob("puna-registry/repositories/*/tags/latest")))
    # No Ollama on this store finds a manifest that it does not know.
    assert not list(models.glob("manifests/*/*/*/*"))
    if skopeo := shutil.which("skopeo"):
        call(skopeo, "copy", "--src-tls-verify=false", f"docker://{it.host}/ai/cria:latest", f"dir:{tmp_path / 'copy'}")
        assert (tmp_path / "copy/manifest.json").read_bytes() == manifest
    upstream.manifests.clear()
    it.kill()
    it.start()
    assert it.get("/v2/ai/cria/manifests/latest") == (200, manifest), "it is served while the upstream is away"
    puna("pull", "--mirror", f"http://{it.host}", "ai/cria", env=home, check=True)
    assert puna("run", "ai/cria", "What is the capital of France?", env=home, check=True).stdout.strip().endswith("Paris.")


class Hub(http.server.BaseHTTPRequestHandler):
    """A hub that refuses what comes in several files where it plays a registry, and lists them."""

    protocol_version, commit = "HTTP/1.1", "0123456789abcdef0123456789abcdef01234567"

    def log_message(self, *_):
        pass

    def do_GET(self):
        path, files = self.path.partition("?")[0], self.server.files
        if path.startswith("/v2/"):
            return self.answer(400, b'{"error":"The specified repository contains sharded GGUF."}')
        if path.endswith("/refs"):
            return self.answer(200, json.dumps({"branches": [{"name": "main", "targetCommit": self.commit}]}).encode())
        if path.endswith(f"/tree/{self.commit}"):
            entry = lambda name, data: {"type": "file", "path": name, "size": len(data), "lfs": {"oid": hashlib.sha256(data).hexdigest(), "size": len(data)}}
            return self.answer(200, json.dumps([entry(*file) for file in files.items()]).encode())
        data = files[path.rsplit("/", 1)[-1]]
        first, last = map(int, re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"]).groups())
        time.sleep(self.server.pause)
        self.server.asked += 1
        self.answer(206, data[first : last + 1], **{"Content-Range": f"bytes {first}-{last}/{len(data)}"})

    def answer(self, status, body, **headers):
        self.send_response(status)
        for name, value in {**headers, "Content-Length": len(body)}.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)


@pytest.mark.parametrize("where", ["folder", "bucket"])
def test_what_a_hub_has_in_files_is_made_into_a_model(mirror, tmp_path, where, request):
    env = request.getfixturevalue("storage").env() if where == "bucket" else {}
    hub = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    hub.files, hub.pause, hub.asked = {"m-Q8_0.gguf": (REPOSITORY / "models/cria/cria-q8_0.gguf").read_bytes()}, 1, 0
    hub.host, settings = f"127.0.0.1:{hub.server_port}", tmp_path / "puna.toml"
    settings.write_text(f'[registry.hosts."{hub.host}"]\nhttp = true\nhub = true\n')
    try:
        it, answers = through(mirror, hub, PUNA_CONFIG=settings, PUNA_MIRROR_FRESH="1ns", **env), []
        askers = [threading.Thread(target=lambda: answers.append(it.get("/v2/you/m/manifests/Q8_0"))) for _ in range(3)]
        [asker.start() for asker in askers]
        [asker.join() for asker in askers]
        assert [status for status, _ in answers] == [200] * 3 and len({body for _, body in answers}) == 1, answers
        asked = hub.asked
        for layer in json.loads(answers[0][1])["layers"]:
            assert digest(it.get(f"/v2/you/m/blobs/{layer['digest']}")[1]) == layer["digest"]
        for _ in range(3):
            assert it.get("/v2/you/m/manifests/Q8_0") == answers[0]
        assert figures(it)["puna_mirror_fetching"] == 0 and hub.asked == asked, "it was fetched again"
        assert figures(it)["puna_mirror_misses_total"] == 1 and figures(it)["puna_mirror_fetched_bytes_total"] == len(*hub.files.values())
        assert it.get("/v2/you/m/manifests/IQ1_S")[0] in (404, 502)
    finally:
        hub.shutdown()
        hub.server_close()


def test_nobody_pushes_where_an_upstream_speaks(mirror, upstream):
    it = through(mirror, upstream)
    status, body = it.send("POST", "/v2/library/m/blobs/uploads/", b"")
    assert status == 403 and json.loads(body)["errors"][0]["code"] == "DENIED"
    assert it.send("PUT", "/v2/library/m/manifests/latest", b'{"layers":[]}')[0] == 403
    for name in ("me/m", "team-a/m", "one", "a/b/c"):
        assert it.send("POST", f"/v2/{name}/blobs/uploads/", b"")[0] == 202, name


def test_keys_open_namespaces_to_ollamas_key_and_to_passwords(mirror, home, tmp_path):
    it = mirror()
    skopeo = shutil.which("skopeo")
    puna("cp", "cria", f"{it.host}/anna/cria", env=home, check=True)
    # Without a key there is one now that nobody has shown.
    other = it.cli("key", "add", "ci", "--scope", "models", "--namespace", "team-*", check=True).stdout.strip()
    assert wait_for(lambda: it.get("/v2/")[0] == 401)
    refused = puna("push", "--insecure", f"{it.host}/anna/cria", env=home)
    assert refused.returncode == 1 and "not authorized" in refused.stderr
    public = pathlib.Path(home["HOME"]) / ".ollama/id_ed25519.pub"
    it.cli("key", "add", "anna", "--scope", "models", "--namespace", "anna", "--public-key", public, check=True)
    assert wait_for(lambda: puna("push", "--insecure", f"{it.host}/anna/cria", env=home).returncode == 0, 5)
    puna("rm", f"{it.host}/anna/cria", env=home, check=True)
    puna("pull", "--insecure", f"{it.host}/anna/cria", env=home, check=True)
    puna("cp", "cria", f"{it.host}/bert/cria", env=home, check=True)
    assert puna("push", "--insecure", f"{it.host}/bert/cria", env=home).returncode == 1
    # The other one sees its own namespace alone.
    shown = it.send("GET", "/v2/_catalog", headers={"Authorization": f"Bearer {other}"})
    assert shown == (200, b'{"repositories":[]}')
    assert it.send("GET", "/v2/anna/cria/tags/list", headers={"x-api-key": other})[0] == 403
    if skopeo:
        there = artifact(tmp_path / "there")
        to = ("copy", "--dest-tls-verify=false", "--dest-creds", f"anybody:{other}", f"dir:{there}")
        call(skopeo, *to, f"docker://{it.host}/team-a/thing:v1")
        assert subprocess.run([skopeo, *to, f"docker://{it.host}/anna/thing:v1"], capture_output=True).returncode != 0
    log = it.log.read_text()
    assert other not in log


def image(it, name, layers, tag="v1", **kw):
    """Pushes blobs and a manifest that names them: the last status."""
    statuses = []
    for data in layers:
        # As clients do: what is there is not sent again.
        if it.ask("HEAD", f"/v2/{name}/blobs/{digest(data)}", **kw)[0] == 200:
            continue
        status, headers, _ = it.ask("POST", f"/v2/{name}/blobs/uploads/", **kw)
        statuses.append(status)
        if status == 202:
            path = headers["Location"].removeprefix(f"http://{it.host}")
            statuses.append(it.ask("PUT", f"{path}?digest={digest(data)}", data, **kw)[0])
    if statuses and statuses[-1] != 201:
        return statuses[-1]
    return it.ask("PUT", f"/v2/{name}/manifests/{tag}", listing(layers), **kw)[0]


def listing(layers, **sizes):
    entries = [{"mediaType": "application/octet-stream", "digest": digest(data), "size": sizes.get("size", len(data))} for data in layers]
    return json.dumps({"schemaVersion": 2, "mediaType": OCI, "config": entries[0], "layers": entries}).encode()


@pytest.mark.parametrize("where", ["folder", "bucket"])
def test_blobs_of_others_are_not_to_be_had_by_their_digest(mirror, where, request):
    env = request.getfixturevalue("storage").env() if where == "bucket" else {}
    it = mirror(**env)
    secret, own = os.urandom(5000), os.urandom(6000)
    key = lambda name, *scope: it.cli("key", "add", name, "--scope", "models", *scope, check=True).stdout.strip()
    anna, bert, all_of_them = key("anna", "--namespace", "anna"), key("bert", "--namespace", "bert"), key("all")
    assert wait_for(lambda: (it.ask("GET", "/v2/")[0], it.ask("GET", "/v2/", key=all_of_them)[0]) == (401, 200))
    assert image(it, "anna/model", [secret], key=anna) == 201
    blob = lambda of, data: f"/v2/{of}/blobs/{digest(data)}"
    assert it.ask("GET", blob("anna/model", secret), key=anna)[2] == secret
    # Through his own repository, mounted there, asked about, and named in a manifest.
    assert image(it, "bert/mine", [own], key=bert) == 201
    for method in ("GET", "HEAD"):
        assert it.ask(method, blob("bert/mine", secret), key=bert)[0] == 404
        assert it.ask(method, blob("anna/model", secret), key=bert)[0] == 403
    assert it.ask("POST", f"/v2/bert/mine/blobs/uploads/?mount={digest(secret)}&from=anna/model", key=bert)[0] == 202
    assert it.ask("POST", f"/v2/bert/mine/blobs/uploads/?digest={digest(secret)}", key=bert)[0] == 202
    status, _, body = it.ask("PUT", "/v2/bert/mine/manifests/theft", listing([secret]), key=bert)
    assert (status, json.loads(body)["errors"][0]["code"]) == (400, "MANIFEST_BLOB_UNKNOWN")
    assert it.ask("GET", blob("bert/mine", own), key=bert)[2] == own
    # Who has the bytes may bring them, and keys without namespaces see all.
    assert image(it, "bert/mine", [secret], "same", key=bert) == 201
    assert it.ask("GET", blob("bert/mine", secret), key=bert)[2] == secret
    assert it.ask("POST", f"/v2/other/x/blobs/uploads/?mount={digest(own)}&from=bert/mine", key=all_of_them)[0] == 201


@pytest.mark.parametrize("where", ["folder", "bucket"])
def test_a_namespace_has_no_more_than_its_quota(mirror, where, request):
    env = request.getfixturevalue("storage").env() if where == "bucket" else {}
    it = mirror(PUNA_MIRROR_QUOTAS="team-*=10KB, other=1TB", PUNA_MIRROR_DELETE=1, **env)
    one, two, three = os.urandom(6000), os.urandom(3000), os.urandom(2000)
    assert image(it, "team-a/x", [one, two]) == 201
    assert image(it, "team-a/y", [one]) == 201, "a blob counts once"
    path = it.location("POST", "/v2/team-a/x/blobs/uploads/")
    status, _, body = it.ask("PUT", f"{path}?digest={digest(three)}", three)
    error = json.loads(body)["errors"][0]
    assert (status, error["code"]) == (413, "DENIED") and all(part in error["message"] for part in ("team-a", "10000", "9000", "2000")), error
    # Without a length, and in a manifest that lies about it.
    assert image(it, "team-b/x", [three]) == 201 == image(it, "free/x", [three])
    assert it.ask("PUT", "/v2/team-a/x/manifests/v2", listing([three]))[0] == 413
    assert it.ask("PUT", "/v2/team-a/x/manifests/v2", listing([three], size=1))[0] == 400
    assert "team-a<td>9.0 kB of 10.0 kB<td>90 %" in it.get("/mirror")[1].decode()
    assert it.ask("DELETE", f"/v2/team-a/x/manifests/{digest(listing([one, two]))}")[0] == 202
    assert it.ask("PUT", "/v2/team-a/x/manifests/v2", listing([three]))[0] == 201


def figures(it, **kw):
    status, headers, body = it.ask("GET", "/metrics", **kw)
    assert status == 200 and headers["Content-Type"].startswith("text/plain; version=0.0.4")
    lines = [line.rpartition(" ") for line in body.decode().splitlines() if not line.startswith("#")]
    assert len({name for name, _, _ in lines}) == len(lines), "a figure stands there twice"
    return {name: float(value) for name, _, value in lines}


def test_figures_say_what_was_served_and_fetched(mirror, upstream):
    data, config = os.urandom(100_000), b"{}"
    upstream.put("library/m:latest", [("application/vnd.ollama.image.model", data), ("application/vnd.docker.container.image.v1+json", config)])
    it = through(mirror, upstream, PUNA_MIRROR_QUOTAS="me=1MB")
    for _ in range(3):
        assert it.get("/v2/library/m/manifests/latest")[0] == 200
    assert it.send("GET", f"/v2/library/m/blobs/{digest(data)}", headers={"Range": "bytes=0-999"})[0] == 206
    assert wait_for(lambda: figures(it)["puna_mirror_fetching"] == 0)
    assert it.get("/v2/library/none/manifests/latest")[0] == 404
    assert image(it, "me/x", [data[:500]]) == 201
    assert wait_for(lambda: figures(it)["puna_mirror_manifests"] == 2, 15)
    found = figures(it)
    counted = lambda route, method, status: found.get(f'puna_mirror_requests_total{{route="{route}",method="{method}",status="{status}"}}')
    assert counted("manifest", "GET", 200) == 3 and counted("manifest", "GET", 404) == 1 == counted("blob", "GET", 206) == counted("upload", "POST", 202)
    assert found["puna_mirror_sent_bytes_total"] == 1000 and found["puna_mirror_received_bytes_total"] == 500
    assert found["puna_mirror_fetched_bytes_total"] == 100_002 and found["puna_mirror_misses_total"] == 1 and found["puna_mirror_hits_total"] == 2
    assert found["puna_mirror_library_bytes"] == 100_502 and found["puna_mirror_fetch_failures_total"] == 0
    assert found['puna_mirror_quota_used_bytes{namespace="me"}'] == 500 and found['puna_mirror_quota_bytes{namespace="me"}'] == 1e6
    it.cli("key", "add", "team", "--scope", "admin", "--namespace", "me", check=True)
    boss = it.cli("key", "add", "boss", "--scope", "admin", check=True).stdout.strip()
    assert wait_for(lambda: it.ask("GET", "/metrics")[0] == 401)
    assert figures(it, key=boss)["puna_mirror_manifests"] == 2


def test_figures_of_a_server_that_is_a_mirror_too_stand_among_its_own(fresh):
    server = fresh(PUNA_MIRROR_SERVE=1)
    assert server.get("/v2/")[0] == 200
    body = server.get("/metrics")[1].decode()
    assert 'puna_mirror_requests_total{route="ping",method="GET",status="200"} 1' in body and "puna_build_info" in body


def chunked(it, method, path, pieces):
    """The status of a request whose body does not say how long it is."""
    with socket.create_connection(("127.0.0.1", it.port), timeout=30) as s:
        s.sendall(f"{method} {path} HTTP/1.1\r\nHost: {it.host}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        for piece in pieces:
            s.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
        answer = s.recv(1 << 16)
    return int(answer.split()[1])


@pytest.mark.parametrize("where", ["folder", "bucket"])
def test_a_quota_holds_for_uploads_that_do_not_say_how_long_they_are(mirror, where, request):
    env = request.getfixturevalue("storage").env() if where == "bucket" else {}
    it = mirror(PUNA_MIRROR_QUOTAS="team=10KB", **env)
    path = it.location("POST", "/v2/team/x/blobs/uploads/")
    assert chunked(it, "PATCH", path, [os.urandom(3000)] * 4) == 413
    assert it.ask("GET", path)[0] == 404
    assert not [p for p in it.home.glob(".ollama/models/puna-registry/uploads/*")]


@pytest.mark.parametrize("others", [0, 1])
def test_a_circle_of_mirrors_is_noticed_at_once(mirror, others):
    all_of_them = [mirror(PUNA_MIRROR_UPSTREAMS="registry.ollama.ai") for _ in range(1 + others)]
    for it, upstream in zip(all_of_them, all_of_them[1:] + all_of_them[:1]):
        it.kill()
        it.env["PUNA_REGISTRY_DEFAULT"] = f"http://{upstream.host}"
        it.start()
    begun = time.monotonic()
    status, body = all_of_them[0].get("/v2/library/m/manifests/latest")
    assert (status, time.monotonic() - begun < 5) == (508, True), body
    assert "asked by itself" in (said := json.loads(body)["errors"][0]["message"]) and "mirror.upstreams" in said


def test_a_registry_with_a_port_is_an_upstream_like_others(mirror, upstream, home, tmp_path):
    data, config = os.urandom(200_000), b"{}"
    upstream.put("library/m:latest", [("application/vnd.ollama.image.model", data), ("application/vnd.docker.container.image.v1+json", config)])
    settings = tmp_path / "puna.toml"
    settings.write_text(f'[mirror]\nupstreams = ["{upstream.host}"]\n[registry.hosts."{upstream.host}"]\nhttp = true\n')
    it = mirror(PUNA_CONFIG=settings)
    manifest = upstream.manifests["library/m:latest"]
    assert it.get(f"/v2/library/m/manifests/latest?ns={upstream.host}") == (200, manifest)
    assert it.get(f"/v2/library/m/blobs/{digest(data)}?ns={upstream.host}") == (200, data)
    name = f"{upstream.host}/library/m"
    assert it.get(f"/v2/{name}/manifests/latest") == (200, manifest)
    assert wait_for(lambda: name in json.loads(it.get("/v2/_catalog")[1])["repositories"])
    # As a client has it that takes this for the mirror of that registry.
    upstream.manifests.clear()
    client = tmp_path / "client.toml"
    client.write_text(f'[registry.hosts."{upstream.host}"]\nhttp = true\nmirrors = ["http://{it.host}"]\n')
    puna("pull", name, env={**home, "PUNA_CONFIG": str(client)}, check=True)


@pytest.mark.parametrize("where", ["own folder", "folder that is only read"])
def test_a_damaged_blob_is_fetched_again(mirror, upstream, tmp_path, where):
    data, config = os.urandom(300_000), b"{}"
    upstream.put("library/m:latest", [("application/vnd.ollama.image.model", data), ("application/vnd.docker.container.image.v1+json", config)])
    it = through(mirror, upstream)
    blob, manifest = f"/v2/library/m/blobs/{digest(data)}", "/v2/library/m/manifests/latest"
    assert it.get(manifest)[0] == 200
    assert wait_for(lambda: "m:latest" in it.cli("list", check=True).stdout)
    it.kill()
    models = it.home / ".ollama/models"
    if where == "folder that is only read":
        models, it.env["PUNA_SEARCH_PATHS"] = tmp_path / "shared", str(tmp_path / "shared")
        models.mkdir()
        for part in ("blobs", "manifests"):
            (it.home / ".ollama/models" / part).rename(models / part)
    place = models / "blobs" / digest(data).replace(":", "-")
    place.chmod(0o644)
    with place.open("r+b") as file:
        file.seek(1000)
        file.write(b"other bytes")
    it.start()
    assert it.get(manifest)[0] == 200, "the tag is fresh"
    # Who is first finds out, and is the only one.
    status, first = it.send("GET", blob, headers={"Range": "bytes=0-99"})
    assert (status, first) == (206, data[:100])
    assert wait_for(lambda: "is damaged on the disk" in it.log.read_text())
    # It is put away, and who asks next is given the upstream's.
    assert it.get(blob) == (200, data)
    assert it.get(manifest)[0] == 200
    assert it.get(blob) == (200, data)
    assert digest(data) in it.log.read_text()
    if where == "own folder":
        assert list(models.glob("puna-registry/damaged/*"))
    else:
        assert b"other bytes" in place.read_bytes()
    # It lies here now, and is what is found after a restart.
    it.kill()
    it.start()
    assert it.get(blob) == (200, data)


def test_signatures_for_other_names_count_for_nothing(mirror, home):
    it = mirror()
    it.kill()
    it.env["PUNA_MIRROR_NAMES"] = f"models.example, {it.host}"
    it.start()
    puna("cp", "cria", f"{it.host}/anna/cria", env=home, check=True)
    # The key is made when a registry first wants proof.
    it.cli("key", "add", "other", "--scope", "models", check=True)
    assert wait_for(lambda: it.get("/v2/")[0] == 401)
    assert puna("push", "--insecure", f"{it.host}/anna/cria", env=home).returncode == 1
    public = pathlib.Path(home["HOME"]) / ".ollama/id_ed25519.pub"
    it.cli("key", "add", "anna", "--scope", "models", "--namespace", "anna", "--public-key", public, check=True)
    assert wait_for(lambda: puna("push", "--insecure", f"{it.host}/anna/cria", env=home).returncode == 0, 5)
    it.kill()
    it.env["PUNA_MIRROR_NAMES"] = "models.example"
    it.start()
    puna("cp", "cria", f"{it.host}/anna/other", env=home, check=True)
    refused = puna("push", "--insecure", f"{it.host}/anna/other", env=home)
    assert refused.returncode == 1 and "mirror.names" in refused.stderr, refused.stderr


def test_keys_are_for_namespaces_that_can_be(mirror):
    it = mirror()
    for bad in ("../x", "a//b", "a b", "*x", ""):
        refused = it.cli("key", "add", "k", "--namespace", bad)
        assert refused.returncode == 1 and "is no namespace" in refused.stderr, refused
    assert it.get("/v2/")[0] == 200, "no key was made"


def test_a_registry_beside_a_server_says_why_it_lets_nobody_in(fresh):
    server = fresh(PUNA_MIRROR_SERVE=1)
    for headers in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}):
        status, body = server.send("GET", "/v2/", headers=headers)
        assert status == 403 and json.loads(body)["errors"][0]["code"] == "DENIED", body
        assert server.send("GET", "/api/version", headers=headers) == (403, b"")
