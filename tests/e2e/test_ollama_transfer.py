"""Ollama's own downloader and uploader, compiled from its module, against the mirror; and its client against a Puna whose registry
that mirror is."""
import json
import os
import shutil
import subprocess

import ollama
import pytest

from conftest import DATA, Puna, environment, puna, wait_for
from test_mirror import TOOLS, digest, mirror, through, tool, upstream  # noqa: F401 — fixtures

MODEL, CONFIG = "application/vnd.ollama.image.model", ("application/vnd.docker.container.image.v1+json", b'{"model_format":"gguf"}')


def transfer(home, work, name):
    """What it says, line by line."""
    program = tool(str(TOOLS / "ollama-transfer"))
    done = subprocess.run([program, work, name], env=environment(home), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def stored(home, name):
    """A model in a store: its manifest, and whether its blobs are whole."""
    models = home / ".ollama/models"
    manifest = (models / "manifests" / name / "latest").read_bytes()
    for layer in [*json.loads(manifest)["layers"], json.loads(manifest)["config"]]:
        blob = models / "blobs" / layer["digest"].replace(":", "-")
        assert digest(blob.read_bytes()) == layer["digest"] and blob.stat().st_size == layer["size"]
    return manifest


@pytest.fixture
def theirs(tmp_path):
    """The home of an Ollama, with a key."""
    home = tmp_path / "theirs"
    (home / ".ollama").mkdir(parents=True)
    call = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", home / ".ollama/id_ed25519"]
    if not shutil.which("ssh-keygen") or subprocess.run(call).returncode:
        pytest.skip("SKIPPED: ssh-keygen makes no key")
    return home


def test_ollamas_code_pulls_in_parts_and_pushes_with_its_key(mirror, theirs):
    it = mirror()
    # Its parts are of a hundred million bytes.
    weights = os.urandom(1 << 20) + bytes(100_000_000)
    manifest = it.model("anna/m/latest", [(MODEL, weights), ("application/vnd.ollama.image.params", b'{"seed":1}'), CONFIG])
    it.cli("key", "add", "anna", "--scope", "models", "--namespace", "anna", "--public-key", theirs / ".ollama/id_ed25519.pub", check=True)
    assert wait_for(lambda: it.get("/v2/")[0] == 401)
    lines = transfer(theirs, "pull", f"{it.host}/anna/m")
    assert lines[0]["status"] == "pulling manifest" and lines[-1]["status"] == "success"
    assert json.loads(stored(theirs, f"{it.host}/anna/m")) == json.loads(manifest)

    # Back under another name, without what is there already.
    folder = theirs / f".ollama/models/manifests/{it.host}/anna"
    own = json.loads(manifest)
    extra = os.urandom(1 << 20)
    (theirs / ".ollama/models/blobs" / digest(extra).replace(":", "-")).write_bytes(extra)
    own["layers"].append({"mediaType": "application/vnd.ollama.image.license", "digest": digest(extra), "size": len(extra)})
    (folder / "own").mkdir()
    (folder / "own/latest").write_text(json.dumps(own))
    assert transfer(theirs, "push", f"{it.host}/anna/own")[-1]["status"] == "success"
    assert json.loads(stored(it.home, "registry.ollama.ai/anna/own"))["layers"] == own["layers"]
    (folder.parent / "bert/own").mkdir(parents=True)
    (folder.parent / "bert/own/latest").write_text(json.dumps(own))
    with pytest.raises(AssertionError, match="403"):
        transfer(theirs, "push", f"{it.host}/bert/own")


def test_ollamas_code_pulls_what_the_mirror_fetches_meanwhile(mirror, upstream, theirs):
    weights = os.urandom(6 << 20)
    upstream.put("library/big:latest", [(MODEL, weights), CONFIG])
    upstream.pace = 0.01
    it = through(mirror, upstream)
    assert transfer(theirs, "pull", f"{it.host}/library/big")[-1]["status"] == "success"
    assert json.loads(stored(theirs, f"{it.host}/library/big")) == json.loads(upstream.manifests["library/big:latest"])
    assert upstream.sent < len(weights) + (1 << 20), "it came once"
    # The store is one that Puna goes on with.
    assert f"{it.host}/library/big:latest" in puna("list", env=environment(theirs, OLLAMA_HOST="127.0.0.1:9"), check=True).stdout


def test_a_client_of_ollamas_has_a_mirror_as_its_registry(mirror, tmp_path):
    it = mirror()
    (tmp_path / "office").mkdir()
    server = Puna(tmp_path / "office", PUNA_REGISTRY_DEFAULT=f"http://{it.host}")
    try:
        client = server.client()
        client.copy("cria", "team/cria")
        assert [line.status for line in client.push("team/cria", stream=True)][-1] == "success"
        made = client.create("team/polite", from_="team/cria", system="You are polite.")
        assert made.status == "success" and client.push("team/polite").status == "success"
        for name in ("team/cria", "team/polite"):
            client.delete(name)
            with pytest.raises(ollama.ResponseError):
                client.show(name)
            assert client.pull(name).status == "success"
        assert client.show("team/polite").modelfile.count("You are polite.") == 1
        assert {"team/cria:latest", "team/polite:latest"} <= {m.model for m in client.list().models}
        answer = client.chat("team/cria", [{"role": "user", "content": "What is the capital of France?"}], think=False)
        assert answer.message.content == "Paris."
        blob = client.create_blob(DATA / "zoo/llama-f16.gguf")
        assert client.create("team/own", files={"m.gguf": blob}).status == "success" and client.push("team/own").status == "success"
        with pytest.raises(ollama.ResponseError, match="file does not exist"):
            client.pull("team/absent")
        # What was created of another model is mounted there, not sent again.
        assert json.loads(it.get("/v2/_catalog")[1])["repositories"] == ["team/cria", "team/own", "team/polite"]
    finally:
        server.kill()
