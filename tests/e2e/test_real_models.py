"""Real models, from the file and from the store."""
import json
import math
import subprocess

from conftest import BINARY, DATA, GEMMA3, SMOLLM2, create, need, puna


def test_smollm2_writes_a_sentence_from_its_file(home):
    # What this small model draws at its own temperature is now and then about something else.
    done = puna("run", "-p", "temperature=0", need(SMOLLM2), "Write one sentence about the sea.", env=home, check=True)
    assert "sea" in done.stdout.lower() or "ocean" in done.stdout.lower(), done.stdout
    assert done.stdout.strip().endswith("."), done.stdout


def test_gemma3_ranks_likely_next_tokens(server):
    # This small base model ranks Paris third, behind "the" and "a"; the exact computation agrees.
    create(server, "gemma", need(GEMMA3))
    body = {"model": "gemma", "prompt": "The capital of France is", "stream": False, "logprobs": True, "top_logprobs": 5, "options": {"temperature": 0, "num_predict": 1}}
    status, got = server.post("/api/generate", body)
    assert status == 200 and got["prompt_eval_count"] == 6, got
    assert " Paris" in [top["token"] for top in got["logprobs"][0]["top_logprobs"]], got


def test_gemma3_runs_from_its_file(home):
    process = subprocess.Popen([BINARY, "run", need(GEMMA3), "The capital of France is"], env=home, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    try:
        assert len(process.stdout.read(40)) == 40
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_smollm2_chats_from_the_store(server, smollm2):
    client = server.client()
    answer = client.chat(smollm2, [{"role": "user", "content": "What is 2 + 2? Answer with a number."}], options={"temperature": 0, "num_predict": 20})
    assert "4" in answer.message.content
    assert client.show(smollm2).details.quantization_level == "Q4_1"


def test_minilm_embeds_like_the_original(server, minilm):
    rows = json.loads((DATA / "reference/minilm.json").read_text())["rows"]
    got = server.client().embed(minilm, [row["text"] for row in rows]).embeddings
    for row, vector in zip(rows, got, strict=True):
        dot = sum(a * b for a, b in zip(row["embedding"], vector))
        norms = math.hypot(*row["embedding"]) * math.hypot(*vector)
        assert dot / norms >= 0.9999, row["text"]
        assert abs(math.hypot(*vector) - 1) < 1e-5
