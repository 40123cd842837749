"""Real models, from the file and from the store."""
import json
import math

from conftest import DATA, GEMMA3, SMOLLM2, need, puna


def test_smollm2_writes_a_sentence_from_its_file(home):
    done = puna("run", need(SMOLLM2), "Write one sentence about the sea.", env=home, check=True)
    assert "sea" in done.stdout.lower() or "ocean" in done.stdout.lower(), done.stdout
    assert done.stdout.strip().endswith("."), done.stdout


def test_gemma3_completes_a_sentence(server):
    # A base model does not stop by itself, and draws another city now and then.
    modelfile = f"FROM {need(GEMMA3)}\nPARAMETER temperature 0\nPARAMETER num_predict 12\n"
    server.cli("create", "gemma", "-f", "-", input=modelfile, check=True)
    assert "Paris" in server.cli("run", "gemma", "The capital of France is", check=True).stdout


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
