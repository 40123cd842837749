"""The unmodified `ollama` Python client against `puna serve`."""
import ollama
import pytest

from conftest import wait_for

QUESTION = "What is the capital of France?"
GREEDY = {"temperature": 0}


def test_list_shows_the_embedded_model(server):
    models = server.client().list().models
    assert [m.model for m in models if m.model.startswith("cria")] == ["cria:latest"]
    cria = next(m for m in models if m.model == "cria:latest")
    assert cria.details.family == "llama" and cria.details.parameter_size == "5.77M"
    assert cria.size > 6_000_000 and len(cria.digest) == 64


def test_show_describes_the_model(server):
    shown = server.client().show("cria")
    assert shown.modelinfo["general.architecture"] == "llama"
    assert shown.modelinfo["llama.block_count"] == 6
    assert shown.modelinfo["general.parameter_count"] == 5_770_496
    assert "completion" in shown.capabilities
    assert "TEMPLATE" in shown.modelfile and "FROM" in shown.modelfile


def test_generate_answers_whole_and_streaming_alike(server):
    client = server.client()
    whole = client.generate("cria", QUESTION, options=GREEDY)
    assert whole.response.strip() == "Paris." and whole.done and whole.done_reason == "stop"
    assert whole.prompt_eval_count > 0 and whole.eval_count > 0 and whole.total_duration > 0
    parts = list(client.generate("cria", QUESTION, options=GREEDY, stream=True))
    assert "".join(p.response for p in parts) == whole.response
    assert [p.done for p in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].eval_count == whole.eval_count and parts[0].eval_count is None


def test_generate_goes_on_from_its_context(server):
    client = server.client()
    first = client.generate("cria", "My name is Rosa.", options=GREEDY)
    assert len(first.context) > 5
    second = client.generate("cria", "What is my name?", context=first.context, options=GREEDY)
    assert "Rosa" in second.response


def test_chat_answers_whole_and_streaming_alike(server):
    client = server.client()
    messages = [{"role": "user", "content": QUESTION}]
    whole = client.chat("cria", messages, options=GREEDY)
    assert whole.message.role == "assistant" and whole.message.content == "Paris."
    parts = list(client.chat("cria", messages, options=GREEDY, stream=True))
    assert "".join(p.message.content for p in parts) == "Paris."
    assert parts[-1].done and parts[-1].done_reason == "stop" and parts[-1].eval_count == whole.eval_count


def test_chat_obeys_system_messages_and_remembers(server):
    client = server.client()
    messages = [
        {"role": "system", "content": "Address the user as Wanda in every answer."},
        {"role": "user", "content": "What is bigger, 698 or 933?"},
    ]
    assert client.chat("cria", messages, options=GREEDY).message.content == "933, Wanda."


def test_a_next_turn_computes_only_its_new_tokens(server):
    client = server.client()
    messages = [{"role": "system", "content": "You are a helpful assistant who knows many things."}, {"role": "user", "content": QUESTION}]
    first = client.chat("cria", messages, options=GREEDY)
    messages += [{"role": "assistant", "content": first.message.content}, {"role": "user", "content": "And the currency?"}]
    status, second = server.post("/api/chat", {"model": "cria", "messages": messages, "options": GREEDY, "stream": False})
    assert status == 200
    # What the first turn left behind, prompt and answer, less a partial page.
    assert second["prompt_eval_cached_count"] >= first.prompt_eval_count // 2, second
    assert second["prompt_eval_cached_count"] < second["prompt_eval_count"]


def test_the_same_seed_draws_the_same_answer(server):
    client = server.client()
    ask = lambda seed: client.generate("cria", "Write me a story about a crocodile.", options={"temperature": 1.2, "seed": seed}).response
    assert ask(7) == ask(7)
    assert len({ask(seed) for seed in range(6)}) > 1


def test_limits_end_an_answer(server):
    client = server.client()
    short = client.generate("cria", "Count to 5.", think=False, options={**GREEDY, "num_predict": 3})
    assert short.eval_count == 3 and short.done_reason == "length"
    stopped = client.generate("cria", "Count to 5.", think=False, options={**GREEDY, "stop": [", 4"]})
    assert stopped.response == "1, 2, 3" and stopped.done_reason == "stop"


def test_ps_shows_what_is_loaded_and_for_how_long(server):
    client = server.client()
    client.generate("cria", "", keep_alive="10m")
    loaded = next(m for m in client.ps().models if m.model == "cria:latest")
    assert loaded.size > 6_000_000 and loaded.size_vram == 0 and loaded.context_length > 0
    client.generate("cria", "", keep_alive=0)
    assert wait_for(lambda: "cria:latest" not in [m.model for m in client.ps().models])


def test_copy_and_delete(server):
    client = server.client()
    client.copy("cria", "me/copy:v1")
    assert "me/copy:v1" in [m.model for m in client.list().models]
    assert client.generate("me/copy:v1", QUESTION, options=GREEDY).response.strip() == "Paris."
    client.delete("me/copy:v1")
    assert "me/copy:v1" not in [m.model for m in client.list().models]


def test_create_from_a_stored_model(server):
    client = server.client()
    client.create("pirate", from_="cria", system="Address the user as Wanda in every answer.", parameters={"temperature": 0})
    assert client.chat("pirate", [{"role": "user", "content": "What is bigger, 698 or 933?"}]).message.content == "933, Wanda."
    assert "Wanda" in client.show("pirate").modelfile
    client.delete("pirate")


def test_embed_takes_one_or_many(server, minilm):
    client = server.client()
    one = client.embed(minilm, "hello").embeddings
    many = client.embed(minilm, ["hello", "world"]).embeddings
    assert len(one) == 1 and len(many) == 2 and len(one[0]) == 384
    assert sum(x * y for x, y in zip(one[0], many[0])) == pytest.approx(1, abs=1e-5)
    assert len(client.embeddings(minilm, "hello").embedding) == 384
    assert len(client.embed(minilm, "hello", dimensions=64).embeddings[0]) == 64


def test_an_unknown_model_is_404(server):
    with pytest.raises(ollama.ResponseError, match="model 'nothing' not found") as error:
        server.client().generate("nothing", "x")
    assert error.value.status_code == 404
