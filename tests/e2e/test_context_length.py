"""Context length of requests: the server truncates nothing that fits the model, and `num_ctx` applies to one
request."""
import json
import pathlib


def rss(pid):
    [line] = [line for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) << 10


def generate(server, **options):
    body = {"model": "smollm2", "prompt": "word " * 1500, "raw": True, "stream": False, "options": {"num_predict": 1, **options}}
    status, answer = server.post("/api/generate", body)
    assert status == 200, answer
    return answer


def test_fitting_prompts_are_not_cut_and_client_limits_reload_nothing(server, smollm2):
    server.post("/api/generate", {"model": smollm2, "options": {"num_ctx": 64}})
    [shown] = [m for m in json.loads(server.get("/api/ps")[1])["models"] if m["name"] == "smollm2:latest"]
    assert shown["context_length"] == 64, "as the request had it"
    runners = server.runners()
    whole = generate(server)
    assert whole["prompt_eval_count"] >= 1500 and "truncated_tokens" not in whole, whole
    cut = generate(server, num_ctx=512)
    assert cut["prompt_eval_count"] < 512, cut
    assert cut["prompt_eval_count"] + cut["truncated_tokens"] == whole["prompt_eval_count"], "what is cut is told"
    [shown] = [m for m in json.loads(server.get("/api/ps")[1])["models"] if m["name"] == "smollm2:latest"]
    assert shown["context_length"] == 512
    assert generate(server)["prompt_eval_count"] == whole["prompt_eval_count"]
    assert server.runners() == runners, "one runner for all of them"


def test_an_idle_runner_uses_no_memory_for_unused_context(fresh):
    server = fresh()
    server.post("/api/generate", {"model": "cria"})
    [runner] = server.runners()
    planned = json.loads(server.get("/api/ps")[1])["models"][0]["size"]
    assert rss(runner) < planned // 2 + (16 << 20), (rss(runner), planned)
