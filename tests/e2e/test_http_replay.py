"""Replays exchanges recorded from Ollama (tests/data/cases/http-setup.md defines equality)."""
import json
import os
import re
import subprocess
import sys

import pytest

from conftest import BINARY, DATA, GEMMA3, REPOSITORY, SMOLLM2, Puna, need

HTTP = REPOSITORY / "tests/http"
# Fields that we add to what the original answers, as docs/reference/differences.md says.
EXTRA = "prompt_eval_cached_count,prompt_tokens_details,completion_tokens_details,puna,n_prompt_tokens,n_ctx,truncated_messages,truncated_tokens,truncated_inputs"
EXTRA += ",signature,stop_reason,stop_sequence,cache_creation_input_tokens"
EXTRA += ",ngram_draft_count,ngram_accepted_count,model_draft_count,model_accepted_count"
EXTRA += ",context_length,max_model_len,meta,max_input_tokens,sandbox"
CASES = [json.loads(line) for line in (DATA / "cases/http.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def replayed(tmp_path_factory):
    """A server with the models of the recording, and the folder with their files."""
    server = Puna()
    folder = tmp_path_factory.mktemp("models")
    (folder / "smollm2-135m-instruct-q4_1.gguf").symlink_to(need(SMOLLM2))
    (folder / "gemma-3-270m-q4_k_m.gguf").symlink_to(need(GEMMA3))
    minilm(server, folder)
    assert replay(server, folder, "--setup", "--only", "none").returncode == 0
    yield server, folder
    server.kill()


def minilm(server, folder):
    """The recording's all-MiniLM was a converted file: ours is the blob that importing makes."""
    from conftest import MINILM, create

    create(server, "imported", need(MINILM))
    status, shown = server.post("/api/show", {"model": "imported"})
    assert status == 200
    blob = re.search(r"^FROM (/\S+)", shown["modelfile"], re.M)[1]
    (folder / "all-minilm-l6-v2-f16.gguf").symlink_to(blob)


def replay(server, folder, *args):
    command = [sys.executable, HTTP / "http_replay.py", server.url, DATA / "cases/http.jsonl", "--models", folder, "--allow-extra", EXTRA]
    command += ["--expect", REPOSITORY / "docs/reference/differences.md", "--serve", f"{BINARY} serve", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, env={k: v for k, v in os.environ.items() if not k.startswith("OLLAMA_")})


def test_every_listed_difference_belongs_to_a_recorded_exchange():
    table = (REPOSITORY / "docs/reference/differences.md").read_text().split("|---|---|")[1].split("\n## ")[0]
    listed = re.findall(r"`([^`]+)`", table)
    assert len(listed) > 50 and set(listed) <= {case["id"] for case in CASES}


def test_every_field_that_the_replay_ignores_is_listed():
    everywhere = (REPOSITORY / "docs/reference/differences.md").read_text().split("## In every exchange")[1]
    listed = set(re.findall(r"`([^`]+)`", everywhere.split("\n- ", 1)[1]))
    # Fields and events that the code of the replay names beside those that may be there.
    source = (HTTP / "http_replay.py").read_text()
    code = source.split("def as_the_original")[1].split('"""', 2)[2].split("def diff_stream")[0]
    names = set(re.findall(r'"([a-z_.]+)"', code))
    recorded = {"object", "response", "status", "completed", "type", "event", "data", "delta", "utf", "replace", "id", "response.completed"}
    recorded |= {"input_tokens_details", "incomplete_details", "input_tokens"}
    assert set(EXTRA.split(",")) | (names - recorded) <= listed


@pytest.mark.parametrize("group", sorted({case["group"] for case in CASES}))
def test_each_group_of_recorded_exchanges_passes(replayed, group):
    server, folder = replayed
    done = replay(server, folder, "--group", group)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert re.search(r"^[1-9]\d* passed, 0 failed", done.stdout.splitlines()[-1]), done.stdout
