"""The unmodified `ollama` Python client against `puna serve`."""
import asyncio
import hashlib
import json
import re

import ollama
import pydantic
import pytest

from conftest import DATA, wait_for

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


def test_generate_gives_the_same_answer_whole_and_streamed(server):
    client = server.client()
    whole = client.generate("cria", QUESTION, options=GREEDY)
    assert whole.response.strip() == "Paris." and whole.done and whole.done_reason == "stop"
    assert whole.prompt_eval_count > 0 and whole.eval_count > 0 and whole.total_duration > 0
    parts = list(client.generate("cria", QUESTION, options=GREEDY, stream=True))
    assert "".join(p.response for p in parts) == whole.response
    assert [p.done for p in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].eval_count == whole.eval_count and parts[0].eval_count is None


def test_generate_continues_from_its_context(server):
    client = server.client()
    first = client.generate("cria", "My name is Rosa.", options=GREEDY)
    assert len(first.context) > 5
    second = client.generate("cria", "What is my name?", context=first.context, options=GREEDY)
    assert "Rosa" in second.response


def test_chat_gives_the_same_answer_whole_and_streamed(server):
    client = server.client()
    messages = [{"role": "user", "content": QUESTION}]
    whole = client.chat("cria", messages, options=GREEDY)
    assert whole.message.role == "assistant" and whole.message.content == "Paris."
    parts = list(client.chat("cria", messages, options=GREEDY, stream=True))
    assert "".join(p.message.content for p in parts) == "Paris."
    assert parts[-1].done and parts[-1].done_reason == "stop" and parts[-1].eval_count == whole.eval_count


def test_chat_follows_system_messages_and_earlier_turns(server):
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


def test_ps_shows_loaded_models_and_their_expiry(server):
    client = server.client()
    client.generate("cria", "", keep_alive="10m")
    loaded = next(m for m in client.ps().models if m.model == "cria:latest")
    assert loaded.size > 6_000_000 and loaded.size_vram == 0 and loaded.context_length > 0
    client.generate("cria", "", keep_alive=0)
    assert wait_for(lambda: "cria:latest" not in [m.model for m in client.ps().models])


def test_models_are_copied_and_deleted(server):
    client = server.client()
    client.copy("cria", "me/copy:v1")
    assert "me/copy:v1" in [m.model for m in client.list().models]
    assert client.generate("me/copy:v1", QUESTION, options=GREEDY).response.strip() == "Paris."
    client.delete("me/copy:v1")
    assert "me/copy:v1" not in [m.model for m in client.list().models]


def test_a_model_is_created_from_a_stored_model(server):
    client = server.client()
    client.create("pirate", from_="cria", system="Address the user as Wanda in every answer.", parameters={"temperature": 0})
    assert client.chat("pirate", [{"role": "user", "content": "What is bigger, 698 or 933?"}]).message.content == "933, Wanda."
    assert "Wanda" in client.show("pirate").modelfile
    client.delete("pirate")


def test_embed_accepts_one_or_many_texts(server, minilm):
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


class Capital(pydantic.BaseModel):
    capital: str


def get_weather(city: str) -> str:
    """
    Get the weather in a city

    Args:
      city: The city
    """
    return "12 degrees, cloudy"


def test_thinking_has_its_own_field(server):
    client = server.client()
    messages = [{"role": "user", "content": QUESTION}]
    thoughtful = client.chat("cria", messages, think=True, options=GREEDY)
    assert thoughtful.message.thinking and thoughtful.message.content == "Paris."
    assert client.chat("cria", messages, think=False, options=GREEDY).message.thinking is None
    parts = list(client.chat("cria", messages, think="low", options=GREEDY, stream=True))
    assert "".join(p.message.thinking or "" for p in parts) and "".join(p.message.content for p in parts) == "Paris."
    generated = client.generate("cria", QUESTION, think=True, options=GREEDY)
    assert generated.thinking == thoughtful.message.thinking and generated.response == "Paris."


def test_a_python_function_is_a_tool(server):
    client = server.client()
    messages = [{"role": "user", "content": "What's the weather like in Cairo?"}]
    [call] = client.chat("cria", messages, tools=[get_weather], think=False, options=GREEDY).message.tool_calls
    assert (call.function.name, call.function.arguments) == ("get_weather", {"city": "Cairo"})


def test_answers_follow_the_schema_of_a_class(server):
    client = server.client()
    answer = client.chat("cria", [{"role": "user", "content": QUESTION}], format=Capital.model_json_schema(), think=False, options=GREEDY)
    assert Capital.model_validate_json(answer.message.content)
    assert isinstance(json.loads(client.generate("cria", "Name a color as JSON.", format="json", think=False, options={**GREEDY, "num_predict": 100}).response), dict)


def test_logprobs_are_returned_with_every_token(server):
    client = server.client()
    ask = {"think": False, "logprobs": True, "top_logprobs": 3, "options": {**GREEDY, "num_predict": 3}}
    answers = [client.chat("cria", [{"role": "user", "content": "Hi"}], **ask), client.generate("cria", "Hi", **ask)]
    for answer in answers:
        assert len(answer.logprobs) == 3 and all(len(one.top_logprobs) == 3 for one in answer.logprobs)
        assert answer.logprobs[0].logprob == answer.logprobs[0].top_logprobs[0].logprob <= 0
    streamed = [one for part in client.chat("cria", [{"role": "user", "content": "Hi"}], stream=True, **ask) for one in part.logprobs or []]
    assert [one.token for one in streamed] == [one.token for one in answers[0].logprobs]


def test_raw_prompts_templates_and_suffixes_are_applied(server):
    client = server.client()
    short = {**GREEDY, "num_predict": 3}
    assert "Rome" in client.generate("cria", "The capital of Italy is", raw=True, options=short).response
    assert "Rome" in client.generate("cria", "The capital of Italy is", template="{{ .Prompt }}", think=False, options=short).response
    assert client.generate("cria", "def add(a, b):", suffix="    return c", options=short).eval_count == 3
    with pytest.raises(ollama.ResponseError, match="raw mode") as error:
        client.generate("cria", "x", raw=True, system="y")
    assert error.value.status_code == 400


def test_a_model_is_created_from_an_uploaded_file(server):
    client = server.client()
    file = DATA / "zoo/bert-mean.gguf"
    digest = client.create_blob(file)
    assert digest == f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}" == client.create_blob(file)
    states = [part.status for part in client.create("uploaded", files={"model.gguf": digest}, stream=True)]
    assert states[-1] == "success" and client.show("uploaded").capabilities == ["embedding"]
    assert len(client.embed("uploaded", "x").embeddings[0]) > 0
    client.delete("uploaded")


def test_create_accepts_every_part_of_a_model(server):
    client = server.client()
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]
    client.create("full", from_="cria", template="{{ .Prompt }}", license=["MIT"], system="Say little.", parameters={"top_k": 3, "stop": ["x"]}, messages=messages)
    shown = client.show("full")
    assert (shown.template, shown.license.endswith("MIT")) == ("{{ .Prompt }}", True)
    assert "top_k" in shown.parameters and 'stop                           "x"' in shown.parameters
    assert "MESSAGE assistant Hello!" in shown.modelfile
    client.delete("full")


def test_pull_and_push_fail_with_a_reason(server):
    client = server.client()
    for attempt in (
        lambda: client.pull("127.0.0.1:9/library/nothing", insecure=True),
        lambda: list(client.pull("127.0.0.1:9/library/nothing", insecure=True, stream=True)),
        lambda: client.push("me/nothing"),
        lambda: list(client.push("me/nothing", stream=True)),
    ):
        with pytest.raises(ollama.ResponseError, match="."):
            attempt()


@pytest.mark.parametrize(
    "attempt,status,text",
    [
        (lambda c: c.chat("nothing", [{"role": "user", "content": "x"}]), 404, "model 'nothing' not found"),
        (lambda c: list(c.chat("nothing", [{"role": "user", "content": "x"}], stream=True)), 404, "model 'nothing' not found"),
        (lambda c: c.embed("nothing", "x"), 404, "try pulling it first"),
        (lambda c: c.show("nothing"), 404, "model 'nothing:latest' not found"),
        (lambda c: c.delete("nothing"), 404, "model 'nothing' not found"),
        (lambda c: c.copy("nothing", "else"), 404, "not found"),
        (lambda c: c.generate("cria", "x", options={"temperature": "warm"}), 400, "temperature"),
        (lambda c: c.generate("cria", "x", keep_alive="5x"), 400, "unknown unit"),
        (lambda c: c.generate("cria", "x", images=[b"GIF89a"]), 400, "image"),
        (lambda c: c.chat("cria", format={"type": "nonsense"}, messages=[{"role": "user", "content": "x"}]), 400, "nonsense"),
        (lambda c: c.chat("no good", [{"role": "user", "content": "x"}]), 400, "invalid model name"),
    ],
)
def test_errors_have_the_message_and_status_of_the_server(server, attempt, status, text):
    with pytest.raises(ollama.ResponseError) as error:
        attempt(server.client())
    assert error.value.status_code == status and text in error.value.error


def test_the_asynchronous_client_has_every_method(server, embedder):
    async def drive():
        client = ollama.AsyncClient(host=server.url)
        assert "cria:latest" in [m.model for m in (await client.list()).models]
        assert (await client.show("cria")).modelinfo["general.architecture"] == "llama"
        messages = [{"role": "user", "content": QUESTION}]
        chats = await asyncio.gather(*(client.chat("cria", messages, options=GREEDY) for _ in range(4)))
        assert [chat.message.content for chat in chats] == ["Paris."] * 4
        parts = [part async for part in await client.chat("cria", messages, options=GREEDY, stream=True)]
        assert "".join(part.message.content for part in parts) == "Paris."
        parts = [part async for part in await client.generate("cria", QUESTION, options=GREEDY, stream=True)]
        assert "".join(part.response for part in parts).strip() == "Paris."
        assert len((await client.embed(embedder, ["a", "b"])).embeddings) == 2
        assert (await client.embeddings(embedder, "a")).embedding
        digest = await client.create_blob(DATA / "zoo/bert-mean.gguf")
        assert (await client.create("async-made", files={"model.gguf": digest})).status == "success"
        await client.copy("async-made", "async-copied")
        for name in ("async-made", "async-copied"):
            await client.delete(name)
        assert (await client.ps()).models
        with pytest.raises(ollama.ResponseError, match="not found"):
            await client.chat("nothing", messages)
        with pytest.raises(ollama.ResponseError):
            await client.pull("127.0.0.1:9/library/nothing", insecure=True)

    asyncio.run(drive())


def test_closing_a_stream_stops_its_generation(server):
    client = server.client()
    stream = client.chat("cria", [{"role": "user", "content": "Write me a long story."}], options={"ignore_eos": True, "num_predict": 4000}, stream=True)
    next(stream)
    stream.close()
    running = lambda: re.findall(r"^puna_running_sequences\{.*\} [1-9]", server.get("/metrics")[1].decode(), re.M)
    assert wait_for(lambda: not running())
