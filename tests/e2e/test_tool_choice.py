"""Forced and forbidden tool calls through client libraries."""
import json

import anthropic
import openai
import pytest

QUESTION = [{"role": "user", "content": "Hello, who are you?"}]


def function(name, properties, required):
    return {"type": "function", "function": {"name": name, "description": "", "parameters": {"type": "object", "properties": properties, "required": required}}}


TOOLS = [
    function("get_weather", {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["celsius", "fahrenheit"]}}, ["city", "unit"]),
    function("add", {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"type": "integer", "minimum": 0, "maximum": 99}}, ["a", "b"]),
]


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def check(call):
    name, arguments = call.function.name, json.loads(call.function.arguments)
    if name == "add":
        assert all(0 <= arguments[key] <= 99 for key in "ab"), arguments
    else:
        assert name == "get_weather" and arguments["unit"] in ("celsius", "fahrenheit"), (name, arguments)


@pytest.mark.parametrize("effort", ["none", "high"])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
def test_a_forced_call_has_valid_arguments(client, choice, effort):
    for seed in range(4):
        answer = client.chat.completions.create(
            model="cria", messages=QUESTION, tools=TOOLS, tool_choice=choice, reasoning_effort=effort, temperature=1.5, seed=seed, max_tokens=400
        ).choices[0]
        assert answer.finish_reason == "tool_calls" and answer.message.tool_calls, answer
        assert not (answer.message.content or "").strip(), answer
        for call in answer.message.tool_calls:
            check(call)
            assert choice == "required" or call.function.name == "add"


def test_a_forced_call_is_streamed(client):
    wish = {"model": "cria", "messages": QUESTION, "tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "temperature": 0, "max_tokens": 400}
    parts = list(client.chat.completions.create(**wish, stream=True))
    [first, *rest] = [call for part in parts for choice in part.choices for call in choice.delta.tool_calls or []]
    # The head first, then pieces of the arguments.
    assert first.id and first.index == 0 and first.function.name and first.function.arguments == ""
    assert len(rest) > 2 and all(call.index == 0 and call.id is None and call.function.name is None for call in rest)
    json.loads("".join(call.function.arguments for call in rest))
    # The client's own accumulation comes to the call.
    with client.chat.completions.stream(**wish) as stream:
        for _ in stream:
            pass
        answer = stream.get_final_completion().choices[0]
    assert answer.finish_reason == "tool_calls"
    [call] = answer.message.tool_calls
    check(call)
    assert call.function.arguments == "".join(call.function.arguments for call in rest)


def test_tool_choice_none_prevents_calls(client):
    weather = [{"role": "user", "content": "What is the weather in Paris?"}]
    answer = client.chat.completions.create(model="cria", messages=weather, tools=TOOLS, tool_choice="none", temperature=0, max_tokens=100)
    assert not answer.choices[0].message.tool_calls


def test_anthropic_tool_choices_are_followed(server):
    client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
    tools = [{"name": t["function"]["name"], "description": "", "input_schema": t["function"]["parameters"]} for t in TOOLS]
    for choice in ({"type": "any"}, {"type": "tool", "name": "add"}):
        answer = client.messages.create(model="cria", messages=QUESTION, tools=tools, tool_choice=choice, max_tokens=400)
        used = [block for block in answer.content if block.type == "tool_use"]
        assert answer.stop_reason == "tool_use" and used, answer
        assert choice["type"] == "any" or {block.name for block in used} == {"add"}


def test_a_tool_with_an_unenforceable_schema_is_named(client):
    bad = function("odd", {"list": {"type": "array", "uniqueItems": True}}, ["list"])
    bad["function"]["strict"] = True
    with pytest.raises(openai.BadRequestError, match="uniqueItems"):
        client.chat.completions.create(model="cria", messages=QUESTION, tools=[bad], tool_choice="required")
