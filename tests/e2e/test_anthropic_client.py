"""The unmodified `anthropic` Python client against `puna serve`."""
import asyncio

import anthropic
import pydantic
import pytest

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
NO_THINKING = {"type": "disabled"}
# The client has no argument for it any more.
GREEDY = {"temperature": 0}


@pytest.fixture(scope="module")
def client(server):
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)


def ask(client, **kw):
    return client.messages.create(**{"model": "cria", "max_tokens": 200, "messages": QUESTION, "extra_body": GREEDY, **kw})


def texts(message):
    return [block.text for block in message.content if block.type == "text"]


def test_a_message_has_thinking_text_and_usage(client):
    message = ask(client)
    assert [block.type for block in message.content] == ["thinking", "text"] and message.content[0].thinking
    assert texts(message) == ["Paris."] and message.stop_reason == "end_turn" and message.stop_sequence is None
    assert message.usage.output_tokens > 0 and message.usage.input_tokens + message.usage.cache_read_input_tokens > 5


def test_thinking_can_be_switched_off(client):
    message = ask(client, thinking=NO_THINKING)
    assert [block.type for block in message.content] == ["text"]


def test_thinking_stays_within_its_token_budget(client):
    sums = [{"role": "user", "content": "What's 13 + 8 + 34?"}]
    whole = ask(client, messages=sums, thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=2000)
    short = ask(client, messages=sums, thinking={"type": "enabled", "budget_tokens": 4}, max_tokens=2000)
    assert texts(whole) == ["55."] and len(whole.content[0].thinking) > 20
    assert short.content[0].type == "thinking" and 0 < len(short.content[0].thinking.strip()) < 15 and texts(short)[0]
    assert short.usage.output_tokens < whole.usage.output_tokens


def test_streams_accumulate_to_the_same_message(client):
    whole = ask(client)
    with client.messages.stream(model="cria", max_tokens=200, messages=QUESTION, extra_body=GREEDY) as stream:
        pieces = list(stream.text_stream)
        message = stream.get_final_message()
    assert "".join(pieces) == "Paris." and [b.model_dump() for b in message.content] == [b.model_dump() for b in whole.content]
    assert message.stop_reason == "end_turn" and message.usage.output_tokens == whole.usage.output_tokens


def test_raw_events_are_in_order(client):
    events = list(ask(client, stream=True))
    kinds = [event.type for event in events]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    starts = [event.index for event in events if event.type == "content_block_start"]
    stops = [event.index for event in events if event.type == "content_block_stop"]
    assert starts == stops == list(range(len(starts))) and len(starts) == 2
    assert events[0].message.usage.input_tokens > 5


def test_stop_reasons_distinguish_limits_and_stop_sequences(client):
    count = [{"role": "user", "content": "Count to 5."}]
    short = ask(client, messages=count, max_tokens=3)
    assert short.stop_reason == "max_tokens" and short.usage.output_tokens == 3
    stopped = ask(client, messages=count, thinking=NO_THINKING, stop_sequences=[", 9", ", 4"])
    assert texts(stopped) == ["1, 2, 3"] and (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", ", 4")


def test_a_system_text_is_a_part_of_the_prompt(client):
    count = lambda **kw: client.messages.count_tokens(model="cria", messages=QUESTION, **kw).input_tokens
    plain, told = count(), count(system="Be brief.")
    assert told > plain == count(system="")
    message = ask(client, thinking=NO_THINKING)
    # Of a thinking model the switch is a part of the prompt.
    assert message.usage.input_tokens + message.usage.cache_read_input_tokens == count(thinking=NO_THINKING)


def test_cached_tokens_are_reported(client):
    long = [{"role": "user", "content": "The capital of France is Paris. " * 40 + "What is the capital of France?"}]
    total = client.messages.count_tokens(model="cria", messages=long).input_tokens
    first, second = (ask(client, messages=long, max_tokens=1).usage for _ in range(2))
    for usage in (first, second):
        assert usage.input_tokens + usage.cache_read_input_tokens == total and usage.cache_creation_input_tokens == 0
    assert second.cache_read_input_tokens >= 64


def test_models_have_the_anthropic_format(client):
    listed = client.models.list()
    assert "cria:latest" in [model.id for model in listed.data] and listed.data[0].type == "model"
    assert client.models.retrieve("cria").display_name == "cria"


def test_errors_have_the_anthropic_format(client):
    with pytest.raises(anthropic.NotFoundError) as error:
        ask(client, model="nothing")
    assert error.value.body["error"]["type"] == "not_found_error" and error.value.body["request_id"].startswith("req_")
    document = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}}
    with pytest.raises(anthropic.BadRequestError, match="application/pdf"):
        ask(client, messages=[{"role": "user", "content": [document]}])


WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def ask_weather(client, messages, **kw):
    tool = {"name": "get_weather", "description": "Get the weather in a city", "input_schema": WEATHER}
    return ask(client, messages=messages, tools=[tool], thinking=NO_THINKING, **kw)


def test_a_tool_is_called_and_its_result_answered(client):
    question = [{"role": "user", "content": "What is the weather in Paris?"}]
    called = ask_weather(client, question)
    [use] = [block for block in called.content if block.type == "tool_use"]
    assert called.stop_reason == "tool_use" and use.name == "get_weather" and use.input == {"city": "Paris"}
    with client.messages.stream(model="cria", max_tokens=200, messages=question, tools=[{"name": "get_weather", "description": "Get the weather in a city", "input_schema": WEATHER}], thinking=NO_THINKING, extra_body=GREEDY) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        streamed = stream.get_final_message()
    assert len(pieces) > 2
    assert [(b.name, b.input) for b in streamed.content if b.type == "tool_use"] == [(use.name, use.input)]
    result = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "18 degrees, sunny"}]}
    turns = [*question, {"role": "assistant", "content": called.content}, {"role": "user", "content": [result]}]
    answer = ask_weather(client, turns)
    assert answer.stop_reason == "end_turn" and texts(answer), answer


def test_tool_choice_none_prevents_calls(client):
    answer = ask_weather(client, [{"role": "user", "content": "What is the weather in Paris?"}], tool_choice={"type": "none"})
    assert answer.stop_reason == "end_turn" and not [block for block in answer.content if block.type == "tool_use"]


def test_events_of_the_streaming_helper_have_snapshots(client):
    with client.messages.stream(model="cria", max_tokens=200, messages=QUESTION, extra_body=GREEDY) as stream:
        events = list(stream)
        message = stream.get_final_message()
    kinds = [event.type for event in events]
    texts, thoughts = [e for e in events if e.type == "text"], [e for e in events if e.type == "thinking"]
    assert texts[-1].snapshot == "Paris." == stream.get_final_text() and thoughts[-1].snapshot == message.content[0].thinking
    assert [e.content_block.type for e in events if e.type == "content_block_stop"] == ["thinking", "text"]
    assert "signature" in kinds and kinds[-1] == "message_stop"
    raw = [event for event in ask(client, stream=True) if event.type == "message_delta"]
    assert raw[0].usage.output_tokens == message.usage.output_tokens


def test_a_streamed_call_has_json_deltas(client):
    question = [{"role": "user", "content": "What is the weather in Paris?"}]
    with client.messages.stream(model="cria", max_tokens=200, messages=question, tools=[WEATHER_TOOL], thinking=NO_THINKING, extra_body=GREEDY) as stream:
        pieces = [event for event in stream if event.type == "input_json"]
        message = stream.get_final_message()
    assert pieces[-1].snapshot == {"city": "Paris"} and message.stop_reason == "tool_use"


WEATHER_TOOL = {"name": "get_weather", "description": "Get the weather in a city", "input_schema": WEATHER}


def test_the_tool_runner_calls_functions_until_there_is_an_answer(client):
    asked = []

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """Get the weather in a city"""
        asked.append(city)
        return "12 degrees, cloudy"

    messages = [{"role": "user", "content": "What's the weather like in Cairo?"}]
    ask = {"model": "cria", "max_tokens": 200, "tools": [get_weather], "thinking": NO_THINKING, "messages": messages, "extra_body": GREEDY}
    *_, answer = client.beta.messages.tool_runner(**ask)
    assert asked == ["Cairo"] and "12" in answer.content[-1].text
    *_, streamed = client.beta.messages.tool_runner(**ask, stream=True)
    assert asked == ["Cairo", "Cairo"] and "12" in streamed.get_final_message().content[-1].text


def test_a_failed_call_is_reported_to_the_model(client, server):
    call = {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Cairo"}}
    def rendered(**result):
        result = {"type": "tool_result", "tool_use_id": "t1", **result}
        messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
        body = {"model": "cria", "max_tokens": 9, "messages": messages, "tools": [WEATHER_TOOL], "_debug_render_only": True}
        return server.post("/v1/messages", body)[1]["_debug_info"]["rendered_template"]

    assert "Error: no such city" in rendered(content="no such city", is_error=True)
    assert "Error" not in rendered(content="no such city")


def test_thinking_can_be_enabled_adaptive_or_disabled(client):
    for switch in ({"type": "enabled", "budget_tokens": 1024}, {"type": "adaptive"}):
        assert [block.type for block in ask(client, thinking=switch, max_tokens=2000).content] == ["thinking", "text"]
    thoughtful = ask(client)
    turns = [*QUESTION, {"role": "assistant", "content": thoughtful.content}, {"role": "user", "content": "And of Italy?"}]
    assert texts(ask(client, messages=turns, thinking=NO_THINKING))


class Capital(pydantic.BaseModel):
    capital: str


def test_parse_accepts_pydantic_classes(client):
    answer = client.messages.parse(model="cria", max_tokens=200, messages=QUESTION, thinking=NO_THINKING, output_format=Capital, extra_body=GREEDY)
    assert isinstance(answer.parsed_output, Capital)


def test_the_asynchronous_client_is_answered(server):
    async def drive():
        async with anthropic.AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0) as client:
            ask = {"model": "cria", "max_tokens": 200, "messages": QUESTION, "extra_body": GREEDY}
            messages = await asyncio.gather(*(client.messages.create(**ask) for _ in range(4)))
            assert [texts(message) for message in messages] == [["Paris."]] * 4
            async with client.messages.stream(**ask) as stream:
                assert "".join([text async for text in stream.text_stream]) == "Paris."
                assert (await stream.get_final_message()).stop_reason == "end_turn"
            assert (await client.messages.count_tokens(model="cria", messages=QUESTION)).input_tokens > 5
            assert "cria:latest" in [model.id async for model in client.models.list()]
            with pytest.raises(anthropic.NotFoundError):
                await client.messages.create(**{**ask, "model": "nothing"})

    asyncio.run(drive())


@pytest.mark.parametrize(
    "wrong,text",
    [
        ({"messages": []}, "messages is required"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://x"}}]}]}, "base64"),
        ({"tools": [{"name": "x", "input_schema": "bad"}]}, "input_schema"),
        ({"tool_choice": {"type": "tool", "name": "other"}, "tools": [WEATHER_TOOL]}, "other"),
        ({"extra_body": {"temperature": "warm"}}, "temperature"),
    ],
)
def test_errors_of_bad_requests_state_the_cause(client, wrong, text):
    for stream in (False, True):
        with pytest.raises(anthropic.BadRequestError, match=text) as error:
            ask(client, **wrong, stream=stream)
        assert error.value.body["error"]["type"] == "invalid_request_error"
