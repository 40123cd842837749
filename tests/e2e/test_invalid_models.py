"""Models with invalid content: each request gets status 400 with the reason, and no path of the server."""
import hashlib
import json
import socket
import struct
import time

import pytest

from conftest import running, wait_for
from test_adapters import CRIA, text

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
WEIGHTS = CRIA.read_bytes()


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


@pytest.fixture(scope="module")
def it():
    with running(PUNA_MIRROR_SERVE=1) as server:
        yield server


def push(it, name, layers):
    """Stores a model through `/v2`."""
    described = []
    for kind, data in [(CONFIG, b"{}"), *((f"application/vnd.ollama.image.{kind}", data) for kind, data in layers)]:
        assert it.send("POST", f"/v2/{name}/blobs/uploads/?digest={digest(data)}", data)[0] == 201
        described.append({"mediaType": kind, "digest": digest(data), "size": len(data)})
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": described[0], "layers": described[1:]}
    status, body = it.send("PUT", f"/v2/{name}/manifests/latest", json.dumps(manifest).encode(), headers={"Content-Type": MANIFEST})
    assert status == 201, body


def requests(name):
    once = {"model": name, "stream": False, "options": {"num_predict": 1}}
    return {
        "/api/show": {"model": name},
        "/api/chat": once | {"messages": [{"role": "user", "content": "hi"}]},
        "/api/generate": once | {"prompt": "hi"},
        "/api/tokenize": {"model": name, "text": "hi"},
        "/api/embed": {"model": name, "input": "hi"},
        "/api/create": {"model": "made", "from": name, "stream": False},
    }


def answers(it, name):
    found = {}
    for path, body in requests(name).items():
        status, answer = it.send("POST", path, body)
        # As in Ollama, the Modelfile of `show` has the path of the weights.
        assert status == 200 or (str(it.home) not in answer.decode() and "/blobs/" not in answer.decode()), answer
        found[path] = (status, json.loads(answer).get("error", ""))
    return found


BAD = {
    "junk": ([("model", b"{}")], "model", "the file ends at byte 2"),
    "truncated": ([("model", WEIGHTS[:200_000])], "model", "the file is truncated or incomplete"),
    "projector": ([("model", WEIGHTS), ("projector", b"xx")], "projector", "the file ends at byte 2"),
    "params": ([("model", WEIGHTS), ("params", b"\xff\x00")], "params", "not the expected JSON"),
    "messages": ([("model", WEIGHTS), ("messages", b"{}")], "messages", "not the expected JSON"),
    "template": ([("model", WEIGHTS), ("template", b"\xff\xfe{{")], "template", "not UTF-8"),
    "system": ([("model", WEIGHTS), ("system", b"\xff\xfe\x00")], "system", "not UTF-8"),
}


@pytest.mark.parametrize("case", BAD)
def test_an_invalid_layer_is_named_with_its_reason(it, case):
    layers, kind, reason = BAD[case]
    push(it, f"bad/{case}", layers)
    short = digest(dict(layers)[kind]).removeprefix("sha256:")[:12]
    for path, (status, error) in answers(it, f"bad/{case}").items():
        assert status == 400, (path, status, error)
        assert f"cannot use bad/{case}:latest: its {kind} layer {short} is invalid: " in error and reason in error, (path, error)
    if kind == "model":
        assert f"sha256-{short}" in it.log.read_text(), "the log has the path"


def test_a_manifest_without_weights_is_refused(it):
    push(it, "bad/empty", [("license", b"x")])
    for path, (status, error) in answers(it, "bad/empty").items():
        assert status == 400 and "cannot use bad/empty:latest: its manifest has no model layer" in error, (path, error)


@pytest.mark.parametrize("kind", ["adapter", "draft"])
def test_a_file_that_only_the_runner_reads_is_named(it, kind):
    name = f"bad/{kind}"
    push(it, name, [("model", WEIGHTS), (kind, b"not a file")])
    short = digest(b"not a file").removeprefix("sha256:")[:12]
    for path in ("/api/chat", "/api/generate"):
        status, error = answers(it, name)[path]
        assert status == 400 and f"the model {name}:latest could not be loaded: " in error, (path, status, error)
        assert short in error and "not a GGUF file" in error, error


def with_architecture(name):
    old = text("general.architecture") + struct.pack("<i", 8) + text("llama")
    assert WEIGHTS.count(old) == 1
    file = WEIGHTS.replace(old, text("general.architecture") + struct.pack("<i", 8) + text(name))
    # The data starts at a multiple of the alignment, so a name of another length moves it.
    return file if len(name) == len("llama") else None


@pytest.mark.parametrize("architecture", ["mambo", "../xx"])
def test_an_unknown_architecture_is_named_without_a_runner(it, architecture):
    name = "bad/unknown-" + hashlib.sha256(architecture.encode()).hexdigest()[:6]
    push(it, name, [("model", with_architecture(architecture))])
    before = len(it.log.read_text())
    for path in ("/api/chat", "/api/generate", "/api/tokenize"):
        status, error = answers(it, name)[path]
        assert status == 400 and f"this version does not support its architecture `{architecture}`" in error, (path, error)
    log = it.log.read_text()[before:]
    assert "unexpectedly" not in log and "ERROR" not in log, log
    assert log.count("does not support the architecture") == 1, log


def test_weights_that_do_not_fit_their_keys_are_refused(it):
    old, new = (text("llama.feed_forward_length") + struct.pack("<iI", 4, n) for n in (768, 800))
    assert WEIGHTS.count(old) == 1
    push(it, "bad/shapes", [("model", WEIGHTS.replace(old, new))])
    before = len(it.log.read_text())
    status, error = answers(it, "bad/shapes")["/api/chat"]
    assert status == 400 and "the model bad/shapes:latest could not be loaded: " in error, (status, error)
    log = it.log.read_text()[before:]
    assert "WARN" in log and "cannot load the model" in log and "unexpectedly" not in log, log


@pytest.mark.parametrize("mirror", ["a b", "ftp://x", "http://u@h", "x\u001b[31m", "http://"])
def test_a_bad_mirror_is_refused_with_an_example(it, mirror):
    status, answer = it.send("POST", "/api/pull", {"model": "me/none", "mirror": mirror, "stream": False})
    error = json.loads(answer)["error"]
    assert status == 400 and error.startswith("invalid mirror ") and "https://registry.example.com:5000" in error, (status, error)


def test_an_upload_beyond_the_quota_is_refused_before_its_body():
    with running(PUNA_MIRROR_SERVE=1, PUNA_MIRROR_QUOTAS="team*=100KB") as it:
        key = it.cli("key", "add", "team", "--scope", "models", "--scope", "inference", "--namespace", "team*", check=True).stdout.strip()
        assert wait_for(lambda: it.knows(key))
        head = f"POST /api/blobs/{digest(b'x')} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\nContent-Length: {1 << 30}\r\n"
        for extra in ("", "Expect: 100-continue\r\n"):
            with socket.create_connection(("127.0.0.1", it.port), timeout=30) as s:
                started = time.monotonic()
                s.sendall((head + extra + "\r\n").encode())
                answer = s.recv(1 << 16).decode()
            assert answer.startswith("HTTP/1.1 413") and time.monotonic() - started < 5, answer
            assert "quota of namespace team* exceeded" in answer and "1 object," in answer, answer
