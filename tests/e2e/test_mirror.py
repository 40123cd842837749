"""The mirror with other clients: the OCI conformance suite, skopeo, oras, and recorded requests of Ollama."""
import contextlib
import hashlib
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess

import pytest

from conftest import BINARY, REPOSITORY, Puna, environment, free_port, puna, wait_for

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
def test_skopeo_copies_to_and_from_a_mirror(mirror, tmp_path, name):
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


def test_every_request_of_an_ollama_pull_is_answered(mirror):
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


def test_every_request_of_an_ollama_push_is_answered(mirror):
    # By another name than the machine's, as behind a proxy.
    it = mirror(PUNA_MIRROR_PUSH=1, PUNA_MIRROR_NAMES="models.example:8080")
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


def test_an_upload_resumes_after_a_killed_mirror(mirror):
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


def test_serve_is_a_mirror_if_configured(fresh):
    server = fresh(PUNA_MIRROR_SERVE=1)
    assert server.get("/v2/") == (200, b"{}")
    assert server.get("/api/version")[0] == 200
    assert fresh().get("/v2/")[0] == 404


def test_an_occupied_address_is_reported_with_its_program_and_the_setting(mirror):
    it = mirror()
    done = subprocess.run([BINARY, "mirror"], env=it.env, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1 and "a Puna mirror is running there already" in done.stderr, done
    assert "PUNA_MIRROR_HOST" in done.stderr and "OLLAMA_HOST" not in done.stderr, done.stderr


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


def figures(it, **kw):
    status, headers, body = it.ask("GET", "/metrics", **kw)
    assert status == 200 and headers["Content-Type"].startswith("text/plain; version=0.0.4")
    lines = [line.rpartition(" ") for line in body.decode().splitlines() if not line.startswith("#")]
    assert len({name for name, _, _ in lines}) == len(lines), "a figure stands there twice"
    return {name: float(value) for name, _, value in lines}


def test_a_server_with_a_mirror_reports_the_metrics_of_both(fresh):
    server = fresh(PUNA_MIRROR_SERVE=1)
    assert server.get("/v2/")[0] == 200
    body = server.get("/metrics")[1].decode()
    assert 'puna_mirror_requests_total{route="ping",method="GET",status="200"} 1' in body and "puna_build_info" in body


