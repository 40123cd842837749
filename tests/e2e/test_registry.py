"""Pull and push of the `puna` command with a small registry: Ollama's protocol and all address formats."""
import hashlib
import http.server
import json
import os
import pathlib
import re
import signal
import subprocess
import threading
import time
import urllib.parse

import ollama
import pytest

from conftest import BINARY, puna, running, wait_for

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


class Registry(http.server.ThreadingHTTPServer):
    """Blobs and manifests in memory. `pace` is a pause before every 64 KiB of a blob; `spoil` changes what is sent."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.blobs, self.manifests, self.uploads = {}, {}, {}
        self.asked, self.sent, self.pace, self.spoil = [], 0, 0.0, None
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def host(self):
        return f"127.0.0.1:{self.server_port}"

    def put(self, name, layers):
        """A model of (media type, bytes) layers, the last of which is the config."""
        entries = [{"mediaType": kind, "digest": digest(data), "size": len(data)} for kind, data in layers]
        self.blobs.update({digest(data): data for _, data in layers})
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": entries[-1], "layers": entries[:-1]}
        self.manifests[name] = json.dumps(manifest).encode()
        return digest(self.manifests[name])

    def handle_error(self, request, address):
        pass  # clients that go away


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def parts(self):
        url = urllib.parse.urlsplit(self.path)
        return url.path.split("/"), dict(urllib.parse.parse_qsl(url.query))

    def do_GET(self):
        path, _ = self.parts()
        if path[-2] == "manifests":
            body = self.server.manifests.get("/".join(path[2:4]) + ":" + path[-1])
            return self.answer(200, body, Content_Type=MANIFEST) if body else self.answer(404, b"{}")
        blob = self.server.blobs.get(path[-1])
        if blob is None:
            return self.answer(404, b"{}")
        first, last = 0, len(blob) - 1
        if wanted := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")):
            first, last = int(wanted[1]), min(int(wanted[2]), last)
        self.server.asked.append((path[-1], first, last))
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(blob)}")
        self.send_header("Content-Length", str(last + 1 - first))
        self.end_headers()
        for at in range(first, last + 1, 1 << 16):
            time.sleep(self.server.pace)
            piece = blob[at : min(at + (1 << 16), last + 1)]
            self.wfile.write(self.server.spoil(piece) if self.server.spoil else piece)
            with self.server.lock:
                self.server.sent += len(piece)

    def do_HEAD(self):
        self.answer(200 if self.parts()[0][-1] in self.server.blobs else 404)

    def body(self):
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def do_POST(self):
        self.body()
        session = str(len(self.server.uploads))
        self.server.uploads[session] = b""
        self.answer(202, Location=f"{self.path.split('?')[0]}{session}", Range="0-0")

    def do_PATCH(self):
        session = self.parts()[0][-1]
        data = self.body()
        first = int(self.headers["Content-Range"].split("-")[0])
        if first != len(self.server.uploads[session]):
            return self.answer(416)
        self.server.uploads[session] += data
        self.answer(202, Location=f"http://{self.server.host}{self.path}", Range=f"0-{first + len(data) - 1}")

    def do_PUT(self):
        path, query = self.parts()
        data = self.body()
        if path[-2] == "manifests":
            self.server.manifests["/".join(path[2:4]) + ":" + path[-1]] = data
            return self.answer(201)
        data = self.server.uploads.pop(path[-1]) + data
        if digest(data) != query["digest"]:
            return self.answer(400, b'{"errors":[{"code":"DIGEST_INVALID"}]}')
        self.server.blobs[digest(data)] = data
        self.answer(201)


@pytest.fixture
def registry():
    server = Registry()
    yield server
    server.shutdown()
    server.server_close()


def of_cria(server, registry):
    """The model inside the program, pushed: a model that answers."""
    name = f"{registry.host}/me/cria"
    server.client().copy("cria", name)
    statuses = [line.status for line in server.client().push(name, insecure=True, stream=True)]
    assert statuses[0] == "retrieving manifest" and statuses[-2:] == ["pushing manifest", "success"]
    return name


def test_a_model_that_is_pushed_deleted_and_pulled_answers_as_before(registry, fresh):
    server = fresh()
    client = server.client()
    name = of_cria(server, registry)
    before = {m.model: m.digest for m in client.list().models}[f"{name}:latest"]
    assert registry.manifests["me/cria:latest"] and len(registry.blobs) >= 2
    client.delete(name)
    with pytest.raises(ollama.ResponseError):
        client.show(name)

    lines = list(client.pull(name, insecure=True, stream=True))
    statuses = [line.status for line in lines]
    order = [s for i, s in enumerate(statuses) if i == 0 or statuses[i - 1] != s]
    layers = json.loads(registry.manifests["me/cria:latest"])
    blobs = [layer["digest"] for layer in [*layers["layers"], layers["config"]]]
    pulling = [f"pulling {d.removeprefix('sha256:')[:12]}" for d in dict.fromkeys(blobs)]
    assert order == ["pulling manifest", *pulling, "verifying sha256 digest", "writing manifest", "success"]
    assert all(line.total and line.digest for line in lines if line.status in pulling)
    assert {m.model: m.digest for m in client.list().models}[f"{name}:latest"] == before
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    assert client.chat(name, messages, think=False).message.content == "Paris."
    assert client.pull(name, insecure=True).status == "success"


def test_a_killed_server_resumes_its_pull(registry, fresh):
    part = 16 << 20
    data = os.urandom(8 * part)
    registry.put("me/big:latest", [("application/vnd.ollama.image.model", data), ("x/config", b"{}")])
    registry.pace = 0.06
    server = fresh()
    name = f"{registry.host}/me/big"
    for kill in (server.kill, server.kill, server.stop):
        before = registry.sent
        threading.Thread(target=give_up, args=(server, name), daemon=True).start()
        assert wait_for(lambda: registry.sent > before, 30)
        # Every two seconds it is noted what has arrived.
        time.sleep(2.6)
        kill()
        server.start()
    registry.pace, registry.asked = 0.0, []
    assert server.client().pull(name, insecure=True).status == "success"
    blob = server.home / ".ollama/models/blobs" / digest(data).replace(":", "-")
    assert blob.read_bytes() == data
    assert not list(blob.parent.glob("*-partial*"))
    begun = [first for asked, first, _ in registry.asked if asked == digest(data)]
    assert begun and not [first for first in begun if first % part == 0], "a part was begun anew"


def give_up(server, name):
    try:
        for _ in server.client().pull(name, insecure=True, stream=True):
            pass
    except Exception:
        pass  # the server was killed


def test_a_disconnected_client_ends_its_pull(registry, fresh):
    data = os.urandom(32 << 20)
    registry.put("me/big:latest", [("application/vnd.ollama.image.model", data), ("x/config", b"{}")])
    registry.pace = 0.01
    server = fresh()
    lines = server.client().pull(f"{registry.host}/me/big", insecure=True, stream=True)
    for line in lines:
        if line.completed:
            break
    lines.close()
    assert wait_for(lambda: quiet(registry), 10), "it goes on without anybody"
    assert registry.sent < len(data)


def quiet(registry):
    before = registry.sent
    time.sleep(0.3)
    return registry.sent == before


def test_corrupt_blobs_are_refused_with_the_error_of_ollama(registry, fresh):
    data = os.urandom(1 << 20)
    registry.put("me/bad:latest", [("application/vnd.ollama.image.model", data), ("x/config", b"{}")])
    registry.spoil = lambda piece: piece[:-1] + bytes([piece[-1] ^ 1])
    server = fresh()
    name = f"{registry.host}/me/bad"
    with pytest.raises(ollama.ResponseError, match="digest mismatch, file must be downloaded again: want sha256:"):
        server.client().pull(name, insecure=True)
    lines = server.post("/api/pull", {"model": name, "insecure": True})[1]
    assert "digest mismatch" in lines[-1]["error"] and lines[0] == {"status": "pulling manifest"}
    assert not list((server.home / ".ollama/models/blobs").iterdir())
    with pytest.raises(ollama.ResponseError, match="file does not exist"):
        server.client().pull(f"{registry.host}/me/absent", insecure=True)


def test_commands_pull_push_and_run_from_a_registry(registry, fresh):
    server = fresh()
    name = of_cria(server, registry)
    server.client().delete(name)
    done = server.cli("pull", "--insecure", name, check=True)
    assert done.stderr.splitlines()[0] == "pulling manifest" and done.stderr.splitlines()[-1] == "success"
    assert re.search(r"^pulling [0-9a-f]{12}:", done.stderr, re.M)
    done = server.cli("push", "--insecure", name, check=True)
    assert done.stdout == f"\nYou can find your model at:\n\n\t{name}:latest\n"
    server.client().delete(name)
    done = server.cli("run", "--insecure", name, "What is the capital of France?", check=True)
    assert done.stdout.strip().endswith("Paris.")
    done = server.cli("pull", "--insecure", f"{registry.host}/me/absent")
    assert done.returncode == 1 and done.stderr.splitlines()[-1] == "Error: pull model manifest: file does not exist"


def test_a_pull_needs_no_server(registry, fresh, home):
    other = fresh()
    name = of_cria(other, registry)
    puna("pull", "--insecure", name, env=home, check=True)
    assert name in puna("list", env=home, check=True).stdout


def test_a_pull_completes_while_another_one_is_suspended(registry, home):
    data = os.urandom(12 << 20)
    registry.put("me/big:latest", [("application/vnd.ollama.image.model", data), ("application/vnd.docker.container.image.v1+json", b"{}")])
    registry.pace = 0.02  # 192 pieces
    name = f"{registry.host}/me/big"
    models = pathlib.Path(home["HOME"]) / ".ollama/models"
    noted = lambda: [json.loads(note.read_text()) for note in models.glob(f"blobs/{digest(data).replace(':', '-')}-partial-*")]
    stopped = subprocess.Popen([BINARY, "pull", "--insecure", name], env=home, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        assert wait_for(lambda: sum(note["Completed"] for note in noted()) > 1 << 20)
        os.kill(stopped.pid, signal.SIGSTOP)
        time.sleep(0.5)
        registry.pace, registry.asked = 0, []
        here = [(note["Offset"], note["Offset"] + note["Completed"]) for note in noted()]
        assert 0 < sum(end - begin for begin, end in here) < len(data)
        puna("pull", "--insecure", name, env=home, check=True)
        blob = models / "blobs" / digest(data).replace(":", "-")
        assert blob.read_bytes() == data
        again = [(first, last) for of, first, last in registry.asked if of == digest(data) and any(first < end and begin <= last for begin, end in here)]
        assert not again, f"{again} came twice, of {here}"
        # It goes on, to the same end.
        os.kill(stopped.pid, signal.SIGCONT)
        assert stopped.wait(60) == 0, stopped.stdout.read()
        assert blob.read_bytes() == data and not noted() and not list(models.glob("puna-tmp/*-beside*"))
        puna("verify", name, env=home, check=True)
    finally:
        stopped.kill()
        stopped.wait()


def test_a_pull_gives_and_tells_nothing_of_blobs_in_other_namespaces(registry, fresh):
    server = fresh(PUNA_OUTGOING_HOSTS=registry.host)
    namespaces = {"ann": "ann", "eve": f"{registry.host}/eve"}
    keys = {name: server.cli("key", "add", name, "--scope", "inference,models", "--namespace", namespace, check=True).stdout.strip() for name, namespace in namespaces.items()}
    assert wait_for(lambda: server.knows(keys["eve"]))
    auth = {name: {"Authorization": f"Bearer {key}"} for name, key in keys.items()}
    secret, absent = b"The code of ann is 4711.", b"The code of ann is 4712."
    assert server.post("/api/create", {"model": "ann/notes", "from": "cria", "system": secret.decode(), "stream": False}, headers=auth["ann"])[0] == 200

    def pull(guess):
        """Error, requests for blobs and reports of a pull of eve that names a digest. Her registry does not have the content."""
        registry.asked.clear()
        registry.put("eve/guess:latest", [("application/vnd.ollama.image.system", guess), ("x/config", b"{}")])
        registry.blobs[digest(guess)] = b"-" * len(guess)
        status, lines = server.post("/api/pull", {"model": f"{registry.host}/eve/guess", "insecure": True}, headers=auth["eve"])
        assert status == 200 and isinstance(lines, list), lines
        hide = lambda text: text.replace(digest(guess), "DIGEST").replace(digest(guess)[7:19], "DIGEST")
        # Whether a line comes before the first byte depends on time.
        told = {(hide(line["status"]), line.get("completed")) for line in lines[:-1] if "completed" in line or "total" not in line}
        return hide(lines[-1].get("error", "")), [(hide(blob), first, last) for blob, first, last in registry.asked], told

    found = {guess: pull(guess) for guess in (absent, secret)}
    assert "digest mismatch" in found[absent][0], found
    assert found[absent] == found[secret]
    assert server.post("/api/show", {"model": f"{registry.host}/eve/guess"}, headers=auth["eve"])[0] == 404


def test_a_pull_shares_no_download_with_a_key_of_another_namespace(registry, fresh):
    slow = Registry()
    server = fresh(PUNA_OUTGOING_HOSTS=f"{registry.host},{slow.host}")
    names = {"ann": f"{slow.host}/ann/m", "eve": f"{registry.host}/eve/m"}
    keys = {who: server.cli("key", "add", who, "--scope", "inference,models", "--namespace", name.removesuffix("/m"), check=True).stdout.strip() for who, name in names.items()}
    assert wait_for(lambda: server.knows(keys["eve"]))
    pull = lambda who: server.post("/api/pull", {"model": names[who], "insecure": True}, headers={"Authorization": f"Bearer {keys[who]}"})[1]
    data = os.urandom(6 << 20)
    layers = [("application/vnd.ollama.image.license", data), ("x/config", b"{}")]
    slow.put("ann/m:latest", layers)
    slow.pace = 0.1
    registry.put("eve/m:latest", layers)
    # eve's registry has only the end of the blob.
    registry.blobs[digest(data)] = b"-" * (5 << 20) + data[5 << 20 :]
    try:
        ann = threading.Thread(target=pull, args=("ann",))
        ann.start()
        assert wait_for(lambda: slow.sent > 1 << 18)
        lines = pull("eve")
        assert "digest mismatch" in lines[-1]["error"], lines[-3:]
        assert registry.asked[0][1] == 0, "it asks for all of the blob"
        slow.pace = 0
        ann.join(60)
        assert not ann.is_alive(), "a failed pull of another key does not stop it"
        listed = json.loads(server.send("GET", "/api/tags", headers={"Authorization": f"Bearer {keys['ann']}"})[1])["models"]
        assert f"{names['ann']}:latest" in [model["name"] for model in listed]
    finally:
        slow.pace = 0
        slow.shutdown()
        slow.server_close()
