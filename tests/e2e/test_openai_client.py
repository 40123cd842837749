"""The unmodified `openai` Python client against `puna serve`."""
import asyncio
import json
import re

import openai
import pydantic
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


def test_max_tokens_and_stop_end_an_answer(client):
    count = [{"role": "user", "content": "Count to 5."}]
    short = client.chat.completions.create(model="cria", messages=count, temperature=0, max_tokens=3)
    assert short.usage.completion_tokens == 3 and short.choices[0].finish_reason == "length"
    stopped = client.chat.completions.create(model="cria", messages=count, temperature=0, stop=", 4", extra_body={"reasoning_effort": "none"})
    assert stopped.choices[0].message.content == "1, 2, 3" and stopped.choices[0].finish_reason == "stop"


def test_errors_have_the_openai_format(client):
    with pytest.raises(openai.NotFoundError) as error:
        client.chat.completions.create(model="nothing", messages=MESSAGES)
    assert "nothing" in error.value.message


@pytest.mark.parametrize("stream", [False, True])
def test_several_choices_compute_their_prompt_once(client, server, stream):
    def computed():
        found = re.search(r'^puna_prompt_tokens_total\{model="cria:latest"\} (\d+)', server.get("/metrics")[1].decode(), re.M)
        return int(found[1]) if found else 0

    messages = [{"role": "user", "content": f"Stream {stream}. " + " ".join(f"{n} is a number." for n in range(60))}]
    options = dict(stream=True, stream_options={"include_usage": True}) if stream else {}
    before = computed()
    answer = client.chat.completions.create(model="cria", messages=messages, n=4, max_tokens=8, seed=3, **options)
    usage = list(answer)[-1].usage if stream else answer.usage
    assert usage.prompt_tokens > 280
    cached = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else 0
    assert cached < 64, "what the answers share is not what was there before"
    # Each wants the logits of the last token for itself.
    assert 0 < computed() - before <= usage.prompt_tokens + 3


def test_several_choices_have_different_seeds():
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


def test_completions_accept_texts_and_tokens(client, server):
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
    scored = client.completions.create(model="cria", prompt=told["tokens"], temperature=0, max_tokens=4, logprobs=1, echo=True).choices[0].logprobs
    assert len(scored.tokens) == len(told["tokens"]) + 4 and scored.token_logprobs[0] is None and max(scored.token_logprobs[1:]) <= 0
    assert scored.token_logprobs[-4:] == pytest.approx(choice.logprobs.token_logprobs, abs=0.05)
    several = client.completions.create(model="cria", prompt=["a", "b"], n=2, max_tokens=2)
    assert [c.index for c in several.choices] == [0, 1, 2, 3] and several.usage.completion_tokens == 8
    assert server.post("/api/detokenize", {"model": "cria", "tokens": told["tokens"]})[1]["text"].endswith(prompt)


def test_embeddings_of_tokens_equal_those_of_their_text(client, server, minilm):
    _, told = server.post("/api/tokenize", {"model": minilm, "text": "hello"})
    texts, tokens = (client.embeddings.create(model=minilm, input=i, encoding_format="float").data[0].embedding for i in ("hello", told["tokens"]))
    assert texts == tokens


def respond(client, **kw):
    return client.responses.create(**{"model": "cria", "input": "What is the capital of France?", "temperature": 0, **kw})


def test_responses_have_reasoning_and_text(client):
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


def test_the_stream_of_a_stored_response_is_replayed(client):
    told = list(respond(client, stream=True))
    id = told[-1].response.id
    assert list(client.responses.retrieve(id, stream=True)) == told
    middle = len(told) // 2
    assert list(client.responses.retrieve(id, stream=True, starting_after=told[middle].sequence_number)) == told[middle + 1 :]


def test_responses_continue_stored_responses(client):
    first = respond(client, reasoning={"effort": "none"})
    again = respond(client, input="And of Italy?", previous_response_id=first.id, reasoning={"effort": "none"})
    assert again.previous_response_id == first.id and again.usage.input_tokens > first.usage.input_tokens
    assert client.responses.retrieve(first.id).output_text == first.output_text
    client.responses.delete(first.id)
    with pytest.raises(openai.BadRequestError, match="not found"):
        respond(client, previous_response_id=first.id)
    with pytest.raises(openai.BadRequestError, match="not found"):
        respond(client, previous_response_id=respond(client, store=False).id)


def test_unknown_fields_are_named(client):
    raw = client.chat.completions.with_raw_response.create(model="cria", messages=MESSAGES, max_tokens=1, user="u", extra_body={"frob": 1})
    assert raw.headers["x-puna-ignored"] == "user, frob" or raw.headers["x-puna-ignored"] == "frob, user"


def test_responses_call_tools_and_accept_their_results(client):
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


class Capital(pydantic.BaseModel):
    capital: str
    country: str


SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Get the weather in a city", "parameters": SCHEMA}}
WEATHER_QUESTION = [{"role": "user", "content": "What's the weather like in Cairo?"}]
BRIEF = {"model": "cria", "temperature": 0, "reasoning_effort": "none"}


def test_the_streaming_helper_returns_events_and_the_whole_answer(client):
    with client.chat.completions.stream(**BRIEF, messages=MESSAGES, logprobs=True, stream_options={"include_usage": True}) as stream:
        events = list(stream)
        completion = stream.get_final_completion()
    assert "".join(e.delta for e in events if e.type == "content.delta") == "Paris."
    assert [e.content for e in events if e.type == "content.done"] == ["Paris."]
    assert len([e for e in events if e.type == "logprobs.content.delta"]) == len(completion.choices[0].logprobs.content)
    assert completion.choices[0].message.content == "Paris." and completion.usage.total_tokens > 0


def test_the_streaming_helper_assembles_calls(client):
    with client.chat.completions.stream(**BRIEF, messages=WEATHER_QUESTION, tools=[{**WEATHER, "function": {**WEATHER["function"], "strict": True}}]) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        completion = stream.get_final_completion()
    assert [(event.name, event.parsed_arguments) for event in done] == [("get_weather", {"city": "Cairo"})]
    [call] = completion.choices[0].message.tool_calls
    assert call.function.parsed_arguments == {"city": "Cairo"} and completion.choices[0].finish_reason == "tool_calls"


def test_parse_accepts_pydantic_classes(client):
    parsed = client.chat.completions.parse(**BRIEF, messages=MESSAGES, response_format=Capital).choices[0].message.parsed
    assert isinstance(parsed, Capital)
    with client.chat.completions.stream(**BRIEF, messages=MESSAGES, response_format=Capital) as stream:
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Capital)
    tool = openai.pydantic_function_tool(Capital, name="tell", description="Tell the capital of a country")
    [call] = client.chat.completions.parse(**BRIEF, messages=MESSAGES, tools=[tool], tool_choice="required").choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Capital)


def test_reasoning_tokens_are_counted(client):
    thoughtful = client.chat.completions.create(model="cria", messages=MESSAGES, temperature=0)
    brief = client.chat.completions.create(**BRIEF, messages=MESSAGES)
    thoughts = thoughtful.usage.completion_tokens_details.reasoning_tokens
    # What is no thought is the answer; a line may be broken between them.
    assert 0 <= thoughtful.usage.completion_tokens - thoughts - brief.usage.completion_tokens <= 1
    assert thoughts > 3 and brief.usage.completion_tokens_details is None
    with client.chat.completions.stream(model="cria", messages=MESSAGES, temperature=0, stream_options={"include_usage": True}) as stream:
        assert stream.get_final_completion().usage.completion_tokens_details.reasoning_tokens == thoughts
    assert respond(client).usage.output_tokens_details.reasoning_tokens == thoughts


def test_conversations_may_contain_every_field_of_the_client(client):
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "content": "Hello!", "name": "rosa"},
        {"role": "assistant", "content": None, "refusal": "I will not say.", "audio": None, "annotations": [], "function_call": None, "tool_calls": None},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "I will not say."}], "reasoning_content": "Hm."},
        *MESSAGES,
    ]
    more = {"max_completion_tokens": 30, "metadata": {"a": "b"}, "store": False, "user": "rosa", "service_tier": "auto", "prompt_cache_key": "x", "verbosity": "low"}
    assert client.chat.completions.create(**BRIEF, messages=messages, **more).choices[0].message.content
    unlimited = client.chat.completions.create(**BRIEF, messages=MESSAGES, max_tokens=-1)
    assert unlimited.choices[0].finish_reason == "stop"


def test_completions_stream(client):
    ask = {"model": "cria", "prompt": "What is the capital of France?", "temperature": 0, "max_tokens": 200}
    whole = client.completions.create(**ask)
    parts = list(client.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.text for p in parts for c in p.choices) == whole.choices[0].text
    assert parts[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_embeddings_have_encoding_formats_and_dimensions(client, embedder):
    ask = lambda **kw: client.embeddings.create(model=embedder, input=["hello", "world"], **kw)
    plain = ask(encoding_format="float")
    # Without a word the client asks for base64 and decodes it itself.
    assert [d.index for d in plain.data] == [0, 1] and plain.usage.prompt_tokens > 0
    for one, other in zip(plain.data, ask().data):
        assert one.embedding == pytest.approx(other.embedding, abs=1e-6)
    assert isinstance(ask(encoding_format="base64").data[0].embedding, str)
    short = ask(dimensions=4).data[0].embedding
    assert len(short) == 4 and sum(x * x for x in short) == pytest.approx(1, abs=1e-5)


def test_responses_parse_pydantic_classes(client):
    answer = client.responses.parse(model="cria", input="What is the capital of France?", temperature=0, reasoning={"effort": "none"}, text_format=Capital)
    assert isinstance(answer.output_parsed, Capital)
    with client.responses.stream(model="cria", input="What is the capital of France?", temperature=0, reasoning={"effort": "none"}, text_format=Capital) as stream:
        kinds = [event.type for event in stream]
        assert isinstance(stream.get_final_response().output_parsed, Capital)
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"


def test_reasoning_summaries_are_streamed_in_parts(client):
    with client.responses.stream(model="cria", input="What is the capital of France?", temperature=0) as stream:
        events = [event for event in stream if event.type.startswith("response.reasoning_summary")]
        [thoughts] = [item for item in stream.get_final_response().output if item.type == "reasoning"]
    assert [event.type.rpartition("summary_")[2] for event in (events[0], *events[-2:])] == ["part.added", "text.done", "part.done"]
    assert "".join(event.delta for event in events[1:-2]) == events[-1].part.text == thoughts.summary[0].text


def test_the_asynchronous_client_is_answered(server, embedder):
    async def drive():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            assert "cria:latest" in [model.id async for model in client.models.list()]
            answers = await asyncio.gather(*(client.chat.completions.create(**BRIEF, messages=MESSAGES) for _ in range(4)))
            assert [answer.choices[0].message.content for answer in answers] == ["Paris."] * 4
            stream = await client.chat.completions.create(**BRIEF, messages=MESSAGES, stream=True)
            assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]) == "Paris."
            async with client.chat.completions.stream(**BRIEF, messages=MESSAGES) as helped:
                assert (await helped.get_final_completion()).choices[0].message.content == "Paris."
            assert (await client.responses.create(model="cria", input="What is the capital of France?", temperature=0)).output_text == "Paris."
            async with client.responses.stream(model="cria", input="What is the capital of France?", temperature=0) as helped:
                assert (await helped.get_final_response()).output_text == "Paris."
            assert (await client.embeddings.create(model=embedder, input="x")).data[0].embedding
            assert (await client.completions.create(model="cria", prompt="Hi", max_tokens=2)).usage.completion_tokens == 2
            with pytest.raises(openai.NotFoundError):
                await client.chat.completions.create(model="nothing", messages=MESSAGES)

    asyncio.run(drive())


@pytest.mark.parametrize(
    "attempt,kind,text",
    [
        (lambda c: c.chat.completions.create(model="cria", messages=[]), openai.BadRequestError, "messages"),
        (lambda c: c.chat.completions.create(model="cria", messages=MESSAGES, temperature="warm"), openai.BadRequestError, "temperature"),
        (lambda c: c.chat.completions.create(model="cria", messages=MESSAGES, n=1000), openai.BadRequestError, "at most 128"),
        (lambda c: c.chat.completions.create(model="cria", messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]}]), openai.BadRequestError, "image URLs"),
        (lambda c: c.chat.completions.create(model="cria", messages=MESSAGES, tools=[WEATHER], tool_choice={"type": "function", "function": {"name": "other"}}), openai.BadRequestError, "other"),
        (lambda c: c.embeddings.create(model="nothing", input="x"), openai.NotFoundError, "nothing"),
        (lambda c: c.embeddings.create(model="cria", input="x"), openai.BadRequestError, "embeddings"),
        (lambda c: c.models.retrieve("nothing"), openai.NotFoundError, "nothing"),
        (lambda c: c.responses.create(model="nothing", input="x"), openai.NotFoundError, "nothing"),
        (lambda c: c.responses.retrieve("resp_nothing"), openai.NotFoundError, "resp_nothing"),
        (lambda c: c.audio.transcriptions.create(model="cria", file=("a.wav", b"RIFF")), openai.BadRequestError, "audio"),
    ],
)
def test_errors_have_the_expected_classes(client, attempt, kind, text):
    with pytest.raises(kind) as error:
        attempt(client)
    assert text in error.value.message and error.value.type in ("invalid_request_error", "not_found_error")
