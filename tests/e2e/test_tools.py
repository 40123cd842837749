"""Tool calls of cria through the unmodified `ollama` and `openai` Python clients: call, result, answer."""
import json
import re

import openai
import pytest

GREEDY = {"temperature": 0}
QUESTION = {"role": "user", "content": "What's the weather like in Cairo?"}
RESULT = "12 degrees, cloudy"
CALL_ID = re.compile(r"call_[a-z0-9]{8}")


def tool(name, description, **properties):
    parameters = {"type": "object", "properties": {k: {"type": t} for k, t in properties.items()}, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


WEATHER = tool("get_weather", "Get the weather in a city", city="string")
TOOLS = [WEATHER, tool("calculator", "Calculate an arithmetic expression", expression="string")]


def answer_after(client, calls, **options):
    messages = [QUESTION, {"role": "assistant", "content": "", "tool_calls": calls}, {"role": "tool", "content": RESULT, "tool_name": "get_weather"}]
    return client.chat("cria", messages, tools=TOOLS, think=False, options=GREEDY, **options).message


def test_the_ollama_client_gets_a_call_and_an_answer_from_its_result(server):
    client = server.client()
    asked = client.chat("cria", [QUESTION], tools=TOOLS, think=False, options=GREEDY)
    assert asked.message.content == "" and asked.done_reason == "stop"
    [call] = asked.message.tool_calls
    assert call.function.name == "get_weather" and call.function.arguments == {"city": "Cairo"}
    answer = answer_after(client, [call])
    assert answer.tool_calls is None and "12" in answer.content and "Cairo" in answer.content


def test_streamed_calls_equal_those_of_the_whole_answer(server):
    parts = list(server.client().chat("cria", [QUESTION], tools=TOOLS, think=False, options=GREEDY, stream=True))
    calls = [call for part in parts for call in part.message.tool_calls or []]
    assert [(c.function.name, c.function.arguments) for c in calls] == [("get_weather", {"city": "Cairo"})]
    assert all(not part.message.content for part in parts) and parts[-1].done and not parts[-1].message.tool_calls


def test_calls_have_ids_and_indices_in_responses(server):
    body = {"model": "cria", "messages": [QUESTION], "tools": TOOLS, "think": False, "options": GREEDY, "stream": False}
    status, answer = server.post("/api/chat", body)
    assert status == 200
    [call] = answer["message"]["tool_calls"]
    assert CALL_ID.fullmatch(call["id"])
    assert call["function"] == {"index": 0, "name": "get_weather", "arguments": {"city": "Cairo"}}


def test_a_question_that_needs_no_tool_is_answered(server):
    question = [{"role": "user", "content": "What is a young eagle called?"}]
    answer = server.client().chat("cria", question, tools=[WEATHER], think=False, options=GREEDY).message
    assert answer.content == "An eaglet." and not answer.tool_calls


def test_without_tools_a_call_in_the_answer_is_text(server):
    body = {"model": "cria", "prompt": "<|im_start|>assistant\n<tool_call>\n{\"name\": \"get_weather\", \"argu", "raw": True, "options": GREEDY, "stream": False}
    status, answer = server.post("/api/generate", body)
    assert status == 200 and "ments" in answer["response"] and not answer.get("tool_calls")


def test_a_truncated_call_is_returned_as_text(server):
    body = {"model": "cria", "messages": [QUESTION], "tools": TOOLS, "think": False, "options": {**GREEDY, "num_predict": 8}, "stream": False}
    status, answer = server.post("/api/chat", body)
    message = answer["message"]
    assert status == 200 and answer["done_reason"] == "length" and not message.get("tool_calls")
    assert message["content"].startswith("<tool_call>\n{\"name\":"), message


@pytest.mark.parametrize("think", [False, True])
def test_a_call_may_replace_a_structured_answer(server, think):
    form = {"type": "object", "properties": {"capital": {"type": "string"}}, "required": ["capital"]}
    body = {"model": "cria", "tools": TOOLS, "format": form, "think": think, "options": GREEDY, "stream": False}
    status, answer = server.post("/api/chat", {**body, "messages": [QUESTION]})
    assert status == 200 and answer["message"]["tool_calls"][0]["function"]["name"] == "get_weather" and answer["message"]["content"] == ""
    # Asked to think, it calls a tool that there is not, and then answers.
    status, answer = server.post("/api/chat", {**body, "messages": [{"role": "user", "content": "What is the capital of France?"}]})
    assert status == 200 and list(json.loads(answer["message"]["content"])) == ["capital"]


def test_thinking_precedes_a_call(server):
    answer = server.client().chat("cria", [QUESTION], tools=TOOLS, think=True, options=GREEDY).message
    assert answer.thinking and "</think>" not in answer.thinking + answer.content
    assert "<tool_call>" not in answer.content


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def ask(client, messages, **options):
    return client.chat.completions.create(model="cria", messages=messages, tools=TOOLS, temperature=0, reasoning_effort="none", **options)


def test_the_openai_client_gets_a_call_and_an_answer_from_its_result(client):
    asked = ask(client, [QUESTION]).choices[0]
    assert asked.finish_reason == "tool_calls"
    [call] = asked.message.tool_calls
    assert call.type == "function" and CALL_ID.fullmatch(call.id)
    assert call.function.name == "get_weather" and json.loads(call.function.arguments) == {"city": "Cairo"}
    result = {"role": "tool", "tool_call_id": call.id, "content": RESULT}
    answer = ask(client, [QUESTION, asked.message, result]).choices[0]
    assert answer.finish_reason == "stop" and answer.message.tool_calls is None
    assert "12" in answer.message.content and "Cairo" in answer.message.content


def test_the_openai_stream_ends_with_tool_calls(client):
    choices = [choice for part in ask(client, [QUESTION], stream=True) for choice in part.choices]
    deltas = [call for choice in choices for call in choice.delta.tool_calls or []]
    assert deltas[0].index == 0 and deltas[0].function.name == "get_weather" and CALL_ID.fullmatch(deltas[0].id)
    assert json.loads("".join(delta.function.arguments for delta in deltas)) == {"city": "Cairo"}
    assert choices[-1].finish_reason == "tool_calls" and not "".join(choice.delta.content or "" for choice in choices)
