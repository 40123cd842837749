"""Runs the examples of the crate `puna-api`."""
import json
import re
import shutil
import subprocess

import pytest

from conftest import REPOSITORY, environment


@pytest.fixture(scope="module")
def example(server):
    """Runs an example against the server; its output."""
    if not shutil.which("cargo"):
        pytest.skip("SKIPPED: the examples of puna-api need cargo")
    # Of the whole workspace, so that what other tests compiled serves here, too.
    build = ["cargo", "build", "--quiet", "--workspace", "--message-format", "json"]
    build += [f"--example={name}" for name in ("chat", "create", "embeddings", "generate", "structured", "tools")]
    built = subprocess.run(build, cwd=REPOSITORY, capture_output=True, text=True, timeout=600)
    assert built.returncode == 0, built.stderr
    paths = {}
    for line in built.stdout.splitlines():
        message = json.loads(line)
        if message.get("executable"):
            paths[message["target"]["name"]] = message["executable"]

    def run(name, *args):
        env = environment(server.home, OLLAMA_HOST=server.url.removeprefix("http://"))
        done = subprocess.run([paths[name], *args], env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"{name}: {done.stdout}\n{done.stderr}"
        return done.stdout

    return run


def test_a_conversation_streams(example):
    out = example("chat", "cria")
    assert out.count("tokens, ") == 2 and "> And what can you do?" in out


def test_code_is_filled_in_the_middle(example):
    assert re.search(r"return \[.*\]\n\nprint", example("generate", "cria"), re.S)


def test_an_answer_is_parsed_into_a_type(example):
    assert re.search(r" in .* has \d+ inhabitants", example("structured", "cria"))


def test_a_function_is_called_and_answered(example):
    assert "called get_weather(Paris)" in example("tools", "cria")


def test_embeddings_find_the_nearest_text(example, minilm):
    out = example("embeddings", minilm).splitlines()
    assert max(out).endswith("Hamlet was written by Shakespeare."), out


def test_a_model_is_created_queried_and_removed(example, server):
    out = example("create", "cria")
    assert "success" in out
    assert "puna-api-example" not in server.get("/api/tags")[1].decode()


def test_errors_have_the_message_of_the_server(server, example):
    with pytest.raises(AssertionError, match="model 'nobody' not found"):
        example("chat", "nobody")
