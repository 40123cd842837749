"""A diffusion model on every route: the answer starts as mask tokens."""
import json

import pytest

from conftest import DATA, running

ZOO = DATA / "zoo"
PLAIN = {"temperature": 0, "num_predict": 40, "ignore_eos": True}
QUICK = {"diffusion_steps": 5, "diffusion_block_length": 8, "diffusion_algorithm": "entropy"}


@pytest.fixture(scope="module")
def server():
    with running() as it:
        for name in ("llada", "dream", "llama"):
            file = it.home / f"Modelfile.{name}"
            file.write_text(f"FROM {ZOO / name}.gguf\nTEMPLATE {{{{ .Prompt }}}}\n")
            it.cli("create", name, "-f", file, check=True)
        yield it
        assert it.stop() == 0, it.log.read_text()


def generate(server, model="llada", **fields):
    body = {"model": model, "prompt": "the quick brown fox", "stream": False, "options": PLAIN, **fields}
    return server.post("/api/generate", body)


def test_a_stream_has_tokens_in_order_and_joins_to_the_whole_answer(server):
    status, whole = generate(server)
    assert status == 200 and whole["response"], whole
    assert (whole["eval_count"], whole["done_reason"]) == (40, "length")
    status, lines = generate(server, stream=True)
    assert status == 200 and len(lines) > 5
    assert "".join(line["response"] for line in lines) == whole["response"]
    assert lines[-1]["eval_count"] == 40 and lines[-1]["context"] == whole["context"]
    # The length is that of the beginning: another one is another text.
    assert generate(server, options={**PLAIN, "num_predict": 20})[1]["eval_count"] == 20
    # Drawn, as an answer that says the same over and over is ended.
    unsaid = generate(server, options={**QUICK, "temperature": 1.5, "seed": 3, "ignore_eos": True})[1]
    assert (unsaid["eval_count"], unsaid["done_reason"]) == (256, "length")


def test_every_dialect_serves_a_diffusion_model(server):
    whole = generate(server, options={**PLAIN, **QUICK})[1]["response"]
    message = [{"role": "user", "content": "the quick brown fox"}]
    options = {k: v for k, v in {**PLAIN, **QUICK}.items() if k != "num_predict"}
    chat = server.post("/api/chat", {"model": "llada", "messages": message, "stream": False, "options": {**PLAIN, **QUICK}})[1]
    assert chat["message"]["content"] == whole
    named = {"model": "llada", **options, "max_tokens": 40}
    openai = server.post("/v1/chat/completions", {**named, "messages": message})[1]
    assert openai["choices"][0]["message"]["content"] == whole
    assert openai["usage"]["completion_tokens"] == 40
    completion = server.post("/v1/completions", {**named, "prompt": "the quick brown fox"})[1]
    assert completion["choices"][0]["text"] == whole
    # Here options are an object of their own.
    anthropic = server.post("/v1/messages", {"model": "llada", "max_tokens": 40, "options": options, "messages": message})[1]
    assert anthropic["content"][0]["text"] == whole
    responses = server.post("/v1/responses", {"model": "llada", **options, "max_output_tokens": 40, "input": "the quick brown fox"})[1]
    assert responses["output"][0]["content"][0]["text"] == whole


def test_the_command_line_runs_a_diffusion_model(server):
    args = [word for name, value in {**PLAIN, **QUICK}.items() if name != "ignore_eos" for word in ("--parameter", f"{name}={value}")]
    done = server.cli("run", "dream", *args, "the quick brown fox", check=True)
    options = {k: v for k, v in {**PLAIN, **QUICK}.items() if k != "ignore_eos"}
    assert done.stdout.strip() == generate(server, "dream", options=options)[1]["response"].strip()


def test_seeds_stop_strings_and_log_probabilities_apply(server):
    drawn = {**PLAIN, **QUICK, "temperature": 1.3}
    text = lambda seed: generate(server, options={**drawn, "seed": seed})[1]["response"]
    assert text(1) == text(1) != text(2)
    whole = generate(server)[1]["response"]
    stop = whole[6:9]
    cut = generate(server, options={**PLAIN, "stop": [stop]})[1]
    assert (cut["response"], cut["done_reason"]) == (whole[: whole.find(stop)], "stop")
    told = generate(server, logprobs=True, top_logprobs=2)[1]["logprobs"]
    assert len(told) == 40 and all(one["logprob"] < 0 and len(one["top_logprobs"]) == 2 for one in told)


@pytest.mark.parametrize(
    "fields, told",
    [
        ({"format": "json"}, "constrained output"),
        ({"prompt_logprobs": 1}, "log-probabilities of the prompt"),
        ({"options": {"speculate": "always"}}, "speculative decoding"),
        ({"options": {"dry_multiplier": 0.8}}, "DRY"),
        ({"options": {"think_budget": 8}}, "do not support think_budget"),
        ({"options": {"diffusion_steps": 0}}, "diffusion_steps is 0"),
        ({"options": {"diffusion_block_length": 5000}}, "allows at most 512"),
        ({"options": {"diffusion_algorithm": "best"}}, "use one of confidence, entropy, margin, random, origin"),
        ({"options": {"speculate": "llama"}}, "draft"),
    ],
)
def test_unsupported_fields_are_refused_by_name(server, fields, told):
    status, answer = generate(server, **fields)
    assert status >= 400 and told in answer["error"], (status, answer)


def test_other_models_refuse_diffusion_options(server):
    for name, value in QUICK.items():
        status, answer = generate(server, "llama", options={**PLAIN, name: value})
        assert status == 400 and "architecture llama is not a diffusion model" in answer["error"], json.dumps(answer)
