"""The unmodified `openai` Python client against `puna serve`."""
import json

import openai
import pytest

from conftest import running

MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_models_are_listed(client):
    assert "cria:latest" in [m.id for m in client.models.list()]
    assert client.models.retrieve("cria").object == "model"


def test_chat_completions_answer(client):
    answer = client.chat.completions.create(model="cria", messages=MESSAGES, temperature=0)
    assert answer.object == "chat.completion" and answer.model == "cria"
    assert answer.choices[0].message.content == "Paris." and answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_chat_completions_stream(client):
    parts = list(client.chat.completions.create(model="cria", messages=MESSAGES, temperature=0, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.delta.content or "" for p in parts for c in p.choices) == "Paris."
    assert [c.finish_reason for p in parts for c in p.choices][-1] == "stop"
    assert parts[-1].choices == [] and parts[-1].usage.completion_tokens > 0


def test_max_tokens_and_stop(client):
    count = [{"role": "user", "content": "Count to 5."}]
    short = client.chat.completions.create(model="cria", messages=count, temperature=0, max_tokens=3)
    assert short.usage.completion_tokens == 3 and short.choices[0].finish_reason == "length"
    stopped = client.chat.completions.create(model="cria", messages=count, temperature=0, stop=", 4", extra_body={"reasoning_effort": "none"})
    assert stopped.choices[0].message.content == "1, 2, 3" and stopped.choices[0].finish_reason == "stop"


def test_errors_have_openai_s_shape(client):
    with pytest.raises(openai.NotFoundError) as error:
        client.chat.completions.create(model="nothing", messages=MESSAGES)
    assert "nothing" in error.value.message


def test_several_answers_have_their_own_seeds():
    # Whether the beginning comes from the cache must not matter here.
    with running(PUNA_DETERMINISTIC="1") as server:
        several_answers(openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0))


def several_answers(client):
    ask = lambda **kw: client.chat.completions.create(model="cria", messages=[{"role": "user", "content": "Write a sentence."}], temperature=1.5, seed=7, max_tokens=30, **kw)
    answers = [(c.index, c.message.content, c.message.model_extra) for c in ask(n=3).choices]
    assert [index for index, _, _ in answers] == [0, 1, 2] and len({str(answer[1:]) for answer in answers}) > 1
    streamed = ["", "", ""]
    for chunk in ask(n=3, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == [content for _, content, _ in answers]


def test_completions_of_texts_and_tokens(client, server):
    prompt = "The capital of Italy is"
    # Tokens are the model's input as it stands, texts go through its template.
    _, told = server.post("/api/tokenize", {"model": "cria", "text": prompt})
    answer = client.completions.create(model="cria", prompt=told["tokens"], temperature=0, max_tokens=4, logprobs=2, echo=False)
    [choice] = answer.choices
    assert choice.text.strip().startswith("Rome") and answer.usage.prompt_tokens == len(told["tokens"])
    assert choice.logprobs.text_offset[0] == 0 and "".join(choice.logprobs.tokens).startswith(choice.text[:4])
    assert len(choice.logprobs.tokens) == len(choice.logprobs.token_logprobs) == len(choice.logprobs.top_logprobs)
    echoed = client.completions.create(model="cria", prompt=told["tokens"], temperature=0, max_tokens=4, echo=True)
    assert echoed.choices[0].text.endswith(prompt + choice.text)
    several = client.completions.create(model="cria", prompt=["a", "b"], n=2, max_tokens=2)
    assert [c.index for c in several.choices] == [0, 1, 2, 3] and several.usage.completion_tokens == 8
    assert server.post("/api/detokenize", {"model": "cria", "tokens": told["tokens"]})[1]["text"].endswith(prompt)


def test_embeddings_of_tokens_are_those_of_their_text(client, server, minilm):
    _, told = server.post("/api/tokenize", {"model": minilm, "text": "hello"})
    texts, tokens = (client.embeddings.create(model=minilm, input=i, encoding_format="float").data[0].embedding for i in ("hello", told["tokens"]))
    assert texts == tokens


def respond(client, **kw):
    return client.responses.create(**{"model": "cria", "input": "What is the capital of France?", "temperature": 0, **kw})


def test_responses_answer_with_thoughts_and_text(client):
    answer = respond(client)
    assert answer.output_text == "Paris." and answer.status == "completed" and answer.object == "response"
    assert [item.type for item in answer.output] == ["reasoning", "message"] and answer.output[0].summary[0].text
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    short = respond(client, max_output_tokens=2)
    assert short.status == "incomplete" and short.incomplete_details.reason == "max_output_tokens"


def test_responses_stream(client):
    events = list(respond(client, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created" and events[-1].type == "response.completed"
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "Paris."
    with client.responses.stream(model="cria", input="What is the capital of France?", temperature=0) as stream:
        assert stream.until_done().get_final_response().output_text == "Paris."


def test_responses_go_on_from_kept_ones(client):
    first = respond(client, reasoning={"effort": "none"})
    again = respond(client, input="And of Italy?", previous_response_id=first.id, reasoning={"effort": "none"})
    assert again.previous_response_id == first.id and again.usage.input_tokens > first.usage.input_tokens
    assert client.responses.retrieve(first.id).output_text == first.output_text
    client.responses.delete(first.id)
    with pytest.raises(openai.BadRequestError, match="not found"):
        respond(client, previous_response_id=first.id)
    with pytest.raises(openai.BadRequestError, match="not found"):
        respond(client, previous_response_id=respond(client, store=False).id)


def test_fields_that_are_not_understood_are_named(client):
    raw = client.chat.completions.with_raw_response.create(model="cria", messages=MESSAGES, max_tokens=1, user="u", extra_body={"frob": 1})
    assert raw.headers["x-puna-ignored"] == "user, frob" or raw.headers["x-puna-ignored"] == "frob, user"


def test_responses_call_tools_and_take_their_results(client):
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tools = [{"type": "function", "name": "get_weather", "description": "Get the weather in a city", "parameters": schema}]
    ask = lambda **kw: respond(client, tools=tools, reasoning={"effort": "none"}, **kw)
    called = ask(input="What is the weather in Paris?")
    [call] = [item for item in called.output if item.type == "function_call"]
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})
    streamed = [event for event in ask(input="What is the weather in Paris?", stream=True) if event.type == "response.function_call_arguments.done"]
    assert [json.loads(event.arguments) for event in streamed] == [{"city": "Paris"}]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "18 degrees, sunny"}
    answer = ask(input=[result], previous_response_id=called.id)
    assert answer.output_text and not [item for item in answer.output if item.type == "function_call"]
