"""Attacks of a key with a namespace on others that share its server: their blobs, the disk, memory and time."""
import hashlib
import json

import pytest

from conftest import running, wait_for

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
LIST = "application/vnd.ollama.manifest.list.v2+json"
IMAGE = "application/vnd.ollama.image."


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


class Office:
    """A server with keys of the namespaces `ann` and `eve`."""

    def __init__(self, server):
        self.server = server
        self.keys = {name: server.cli("key", "add", name, "--scope", "inference,models", "--namespace", pattern, check=True).stdout.strip() for name, pattern in (("ann", "ann"), ("eve", "eve*"))}
        assert wait_for(lambda: server.knows(self.keys["eve"]))

    def send(self, who, method, path, body=None, timeout=300, **headers):
        """Status and content of an answer."""
        headers = {"Authorization": f"Bearer {self.keys[who]}", **{name.replace("_", "-"): value for name, value in headers.items()}}
        body = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        return self.server.send(method, path, body, headers=headers, timeout=timeout)[:2]

    def create(self, who, model, **fields):
        return self.send(who, "POST", "/api/create", {"model": model, "from": "cria", "stream": False, **fields})

    def upload(self, who, data):
        assert self.send(who, "POST", f"/v2/{who}/x/blobs/uploads/?digest={digest(data)}", data)[0] == 201
        return {"digest": digest(data), "size": len(data)}

    def push(self, who, manifest, tag="latest", kind=MANIFEST):
        manifest = manifest if isinstance(manifest, bytes) else json.dumps(manifest).encode()
        return self.send(who, "PUT", f"/v2/{who}/pushed/manifests/{tag}", manifest, Content_Type=kind)


@pytest.fixture(scope="module")
def office():
    with running(PUNA_MIRROR_SERVE=1, PUNA_MIRROR_QUOTAS="eve*=60MB") as server:
        yield Office(server)


def manifest_of(office, *layers, **fields):
    """A manifest that eve may push, with further layers and fields."""
    office.create("eve", "eve/base")
    own = json.loads(office.send("eve", "GET", "/v2/eve/base/manifests/latest")[1])
    return {**own, "layers": own["layers"] + list(layers), **fields}


def test_a_layer_with_urls_gives_no_blob_of_another_namespace(office):
    secret = b"The code of ann is 4711."
    assert office.create("ann", "ann/notes", system=secret.decode())[0] == 200
    told = {}
    for guess in (secret, b"The code of ann is 4712."):
        layer = {"mediaType": IMAGE + "system", "digest": digest(guess), "size": len(guess), "urls": ["http://x/"]}
        pushed = office.push("eve", manifest_of(office, layer))
        shown = office.send("eve", "POST", "/api/show", {"model": "eve/pushed"})
        assert guess not in shown[1] and not (shown[0] == 200 and json.loads(shown[1]).get("system"))
        blobs = [office.send("eve", method, path + digest(guess))[0] for method, path in (("GET", "/v2/eve/pushed/blobs/"), ("HEAD", "/api/blobs/"))]
        told[guess] = (pushed[0], shown[0], blobs)
        assert blobs == [404, 404]
    assert len(set(map(str, told.values()))) == 1, told


def test_no_manifest_stops_garbage_collection_for_others(office):
    for spoiled in ({"manifests": None}, {"schemaVersion": "x"}, {"schemaVersion": 7}, {"mediaType": "text/x"}):
        status, said = office.push("eve", manifest_of(office, **spoiled))
        assert status == 400, (spoiled, status, said)
    # A list that is valid until the content of a missing child is uploaded.
    text = b'{"mediaType": "text/unknown", "layers": []}'
    inline = {**manifest_of(office), "runner": "ggml", "format": "gguf"}
    child = {"mediaType": MANIFEST, "digest": digest(text), "runner": "mlx", "format": "safetensors"}
    office.push("eve", {"schemaVersion": 2, "mediaType": LIST, "manifests": [inline, child]}, tag="list", kind=LIST)
    office.send("eve", "POST", f"/api/blobs/{digest(text)}", text)
    assert office.create("ann", "ann/gone", license="x" * 100_000)[0] == 200
    layers = json.loads(office.send("ann", "GET", "/v2/ann/gone/manifests/latest")[1])["layers"]
    license = next(layer["digest"] for layer in layers if layer["size"] == 100_000)
    status, said = office.send("ann", "DELETE", "/api/delete", {"model": "ann/gone"})
    assert (status, b"warning" in said) == (200, False), said
    blobs = office.server.home / ".ollama/models/blobs"
    assert not (blobs / license.replace(":", "-")).exists()


def test_a_manifest_with_millions_of_values_is_refused(office):
    status, said = office.push("eve", manifest_of(office, annotations={"k": [[]] * 1_000_000}))
    assert (status, b"JSON values" in said) == (400, True), said


def test_creation_does_not_tell_which_layers_others_have(office):
    secret = "The code of ann is 815."
    assert office.create("ann", "ann/told", system=secret)[0] == 200
    told = {}
    for guess in (secret, "The code of ann is 816."):
        status, lines = office.send("eve", "POST", "/api/create", {"model": "eve/guess", "from": "cria", "system": guess})
        assert status == 200
        told[guess] = [line.replace(digest(guess.encode()).encode(), b"DIGEST") for line in lines.splitlines() if b"existing layer" in line or b"DIGEST" in line or digest(guess.encode()).encode() in line]
        # An upload whose model is removed tells nothing either.
        assert office.send("eve", "POST", f"/api/blobs/{digest(guess.encode())}", guess.encode())[0] in (200, 201)
        assert office.create("eve", "eve/guess", system=guess)[0] == 200
        assert office.send("eve", "DELETE", "/api/delete", {"model": "eve/guess"})[0] == 200
        assert office.send("eve", "HEAD", f"/api/blobs/{digest(guess.encode())}")[0] == 404
    one, other = told.values()
    assert one == other and any(b"creating new layer DIGEST" in line for line in one), told


def test_a_name_that_counts_to_no_quota_is_refused(office):
    big = "x" * 1_000_000
    status, said = office.create("eve", "evehost/ns/a", license=big)
    assert (status, b"quota" in said) == (413, True), said
    assert office.create("eve", "evelyn/a", license=big)[0] == 200
    assert office.send("eve", "DELETE", "/api/delete", {"model": "evelyn/a"})[0] == 200


def test_an_escaped_path_is_no_page_for_other_sites(office):
    for path in ("/api/tags", "/%61pi/tags", "/%76%32/_catalog", "/v1%2fmodels"):
        status, _ = office.send("ann", "GET", path, Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate")
        assert status in (403, 404), (path, status)
    assert office.send("ann", "GET", "/%61pi/tags")[0] == 200


def test_fields_that_responses_repeat_are_limited(office):
    ask = lambda **fields: office.send("eve", "POST", "/v1/responses", {"model": "cria", "input": "hi", "max_output_tokens": 2, **fields})
    tool = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
    for fields in ({"metadata": {"a": "b" * 100_000}}, {"metadata": {str(i): "" for i in range(17)}}, {"tools": [{**tool, "name": f"f{i}"} for i in range(3000)]}, {"tools": [{**tool, "description": "d" * (2 << 20)}]}):
        status, said = ask(**fields)
        assert (status, next(iter(fields)) in json.loads(said)["error"]["message"]) == (400, True), said[:300]
    assert ask(metadata={"a": "b" * 512, "n": 3})[0] == 200


def test_layers_of_text_take_no_memory_of_many_times_their_size(office):
    params = b'{"stop":[' + b"[]," * 1_000_000 + b"[]]}"
    layer = {"mediaType": IMAGE + "params", **office.upload("eve", params)}
    manifest = manifest_of(office)
    manifest["layers"] = [one for one in manifest["layers"] if not one["mediaType"].endswith("params")] + [layer]
    office.push("eve", manifest, tag="large")
    before = peak(office)
    for path, body in (("/api/show", {"model": "eve/pushed:large"}), ("/api/generate", {"model": "eve/pushed:large", "prompt": "x"})):
        assert office.send("eve", "POST", path, body)[0] >= 400
    assert office.send("eve", "GET", "/api/tags")[0] == 200
    assert peak(office) - before < 64 << 20
    assert office.send("eve", "DELETE", "/api/delete", {"model": "eve/pushed:large"})[0] == 200


def peak(office):
    """Largest memory of the server so far."""
    status = open(f"/proc/{office.server.process.pid}/status").read()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10
