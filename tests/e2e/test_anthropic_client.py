"""The unmodified `anthropic` Python client against `puna serve`."""
import anthropic
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


def test_a_message_has_thoughts_text_and_figures(client):
    message = ask(client)
    assert [block.type for block in message.content] == ["thinking", "text"] and message.content[0].thinking
    assert texts(message) == ["Paris."] and message.stop_reason == "end_turn" and message.stop_sequence is None
    assert message.usage.output_tokens > 0 and message.usage.input_tokens + message.usage.cache_read_input_tokens > 5


def test_thinking_can_be_switched_off(client):
    message = ask(client, thinking=NO_THINKING)
    assert [block.type for block in message.content] == ["text"]


def test_streams_accumulate_to_the_same_message(client):
    whole = ask(client)
    with client.messages.stream(model="cria", max_tokens=200, messages=QUESTION, extra_body=GREEDY) as stream:
        pieces = list(stream.text_stream)
        message = stream.get_final_message()
    assert "".join(pieces) == "Paris." and [b.model_dump() for b in message.content] == [b.model_dump() for b in whole.content]
    assert message.stop_reason == "end_turn" and message.usage.output_tokens == whole.usage.output_tokens


def test_raw_events_come_in_order(client):
    events = list(ask(client, stream=True))
    kinds = [event.type for event in events]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    starts = [event.index for event in events if event.type == "content_block_start"]
    stops = [event.index for event in events if event.type == "content_block_stop"]
    assert starts == stops == list(range(len(starts))) and len(starts) == 2
    assert events[0].message.usage.input_tokens > 5


def test_limits_and_stop_sequences_are_told_apart(client):
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


def test_the_cache_is_reported(client):
    long = [{"role": "user", "content": "The capital of France is Paris. " * 40 + "What is the capital of France?"}]
    total = client.messages.count_tokens(model="cria", messages=long).input_tokens
    first, second = (ask(client, messages=long, max_tokens=1).usage for _ in range(2))
    for usage in (first, second):
        assert usage.input_tokens + usage.cache_read_input_tokens == total and usage.cache_creation_input_tokens == 0
    assert second.cache_read_input_tokens >= 64


def test_models_have_anthropic_s_shape(client):
    listed = client.models.list()
    assert "cria:latest" in [model.id for model in listed.data] and listed.data[0].type == "model"
    assert client.models.retrieve("cria").display_name == "cria"


def test_errors_have_anthropic_s_shape(client):
    with pytest.raises(anthropic.NotFoundError) as error:
        ask(client, model="nothing")
    assert error.value.body["error"]["type"] == "not_found_error" and error.value.body["request_id"].startswith("req_")
    document = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}}
    with pytest.raises(anthropic.BadRequestError, match="document"):
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
        streamed = stream.get_final_message()
    assert [(b.name, b.input) for b in streamed.content if b.type == "tool_use"] == [(use.name, use.input)]
    result = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "18 degrees, sunny"}]}
    turns = [*question, {"role": "assistant", "content": called.content}, {"role": "user", "content": [result]}]
    answer = ask_weather(client, turns)
    assert answer.stop_reason == "end_turn" and texts(answer), answer


def test_tools_are_not_offered_where_none_may_be_called(client):
    answer = ask_weather(client, [{"role": "user", "content": "What is the weather in Paris?"}], tool_choice={"type": "none"})
    assert answer.stop_reason == "end_turn" and not [block for block in answer.content if block.type == "tool_use"]
