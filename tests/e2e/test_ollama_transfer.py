"""Ollama's client against a Puna with a mirror as its registry. test_mirror.py has the requests of Ollama's
downloader and uploader."""
import json
import re

import ollama
import pytest

from conftest import DATA, Puna
from test_mirror import mirror  # noqa: F401 — a fixture


def received(mirror):
    """Bytes of uploads that a mirror has taken."""
    [line] = re.findall(r"^puna_mirror_received_bytes_total (\d+)$", mirror.get("/metrics")[1].decode(), re.M)
    return int(line)


def test_the_ollama_client_uses_a_mirror_as_its_registry(mirror, tmp_path):
    it = mirror()
    (tmp_path / "office").mkdir()
    server = Puna(tmp_path / "office", PUNA_REGISTRY_DEFAULT=f"http://{it.host}")
    try:
        client = server.client()
        client.copy("cria", "team/cria")
        assert [line.status for line in client.push("team/cria", stream=True)][-1] == "success"
        made = client.create("team/polite", from_="team/cria", system="You are polite.")
        before = received(it)
        assert made.status == "success" and client.push("team/polite").status == "success"
        # What was created of another model is there already, and not sent again: the weights alone are larger.
        assert 0 < received(it) - before < 100_000
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
        assert json.loads(it.get("/v2/_catalog")[1])["repositories"] == ["team/cria", "team/own", "team/polite"]
    finally:
        server.kill()
