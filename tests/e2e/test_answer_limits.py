"""Structured output and forced tool calls with small token limits: the answer parses, or the request is rejected
with the length that it needs."""
import json
import re

import pytest

from conftest import GEMMA3, create, need

QUESTION = [{"role": "user", "content": "Tell me all that you know about Paris."}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "population": {"type": "integer"}, "facts": {"type": "array", "items": {"type": "string"}, "minItems": 1}},
    "required": ["city", "population", "facts"],
}
TOOL = {"name": "note", "description": "", "parameters": SCHEMA}
CHAT_TOOL = {"type": "function", "function": TOOL}


def native(limit):
    return "/api/chat", {"format": SCHEMA, "stream": False, "options": {"temperature": 0, "num_predict": limit}}


def native_prompt(limit):
    prompt = {"prompt": "Paris", "messages": None}
    return "/api/generate", {**prompt, "format": SCHEMA, "stream": False, "options": {"temperature": 0, "num_predict": limit}}


def chat(limit):
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}
    return "/v1/chat/completions", {"response_format": form, "max_tokens": limit, "temperature": 0}


def responses(limit):
    form = {"format": {"type": "json_schema", "name": "city", "schema": SCHEMA}}
    return "/v1/responses", {"input": QUESTION, "messages": None, "text": form, "max_output_tokens": limit, "temperature": 0}


def messages(limit):
    form = {"format": {"type": "json_schema", "schema": SCHEMA}}
    return "/v1/messages", {"output_config": form, "max_tokens": limit, "temperature": 0}


def chat_call(limit):
    return "/v1/chat/completions", {"tools": [CHAT_TOOL], "tool_choice": "required", "max_tokens": limit, "temperature": 0}


def responses_call(limit):
    tool = {"type": "function", **TOOL}
    choice = {"tools": [tool], "tool_choice": "required"}
    return "/v1/responses", {"input": QUESTION, "messages": None, **choice, "max_output_tokens": limit, "temperature": 0}


def messages_call(limit):
    tool = {"name": "note", "input_schema": SCHEMA}
    return "/v1/messages", {"tools": [tool], "tool_choice": {"type": "any"}, "max_tokens": limit, "temperature": 0}


ROUTES = [native, native_prompt, chat, responses, messages, chat_call, responses_call, messages_call]


def value_of(route, answer):
    """What the answer of a route comes to, and whether it ended as a whole one does."""
    if route is native:
        return json.loads(answer["message"]["content"]), answer["done_reason"] == "stop"
    if route is native_prompt:
        return json.loads(answer["response"]), answer["done_reason"] == "stop"
    if route is chat:
        [choice] = answer["choices"]
        return json.loads(choice["message"]["content"]), choice["finish_reason"] == "stop"
    if route is chat_call:
        [choice] = answer["choices"]
        return json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]), choice["finish_reason"] == "tool_calls"
    if route is responses:
        [text] = [part["text"] for item in answer["output"] if item["type"] == "message" for part in item["content"]]
        return json.loads(text), answer["status"] == "completed"
    if route is responses_call:
        call = [item for item in answer["output"] if item["type"] == "function_call"][0]
        return json.loads(call["arguments"]), answer["status"] == "completed"
    if route is messages:
        [text] = [block["text"] for block in answer["content"] if block["type"] == "text"]
        return json.loads(text), answer["stop_reason"] == "end_turn"
    call = [block for block in answer["content"] if block["type"] == "tool_use"][0]
    return call["input"], answer["stop_reason"] == "tool_use"


def ask(server, route, limit, **more):
    path, body = route(limit)
    body = {"model": "cria", "messages": QUESTION, **body, **more}
    return server.post(path, {key: value for key, value in body.items() if value is not None})


def refused(server, route, **more):
    """The length that the refusal of a limit of one token tells."""
    status, answer = ask(server, route, 1, **more)
    assert status == 400, answer
    found = re.search(r"the constraint's shortest answer has (\d+) tokens, but the request allows 1: allow at least (\d+)", str(answer))
    assert found and found[1] == found[2], answer
    return int(found[1])


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.__name__)
def test_every_limit_gives_a_complete_answer_or_a_400(server, route):
    least = refused(server, route)
    assert ask(server, route, least - 1)[0] == 400
    for limit in [*range(least, least + 6), least + 17, least + 40]:
        status, answer = ask(server, route, limit)
        assert status == 200, answer
        value, is_whole = value_of(route, answer)
        assert is_whole, answer
        assert set(value) == set(SCHEMA["required"]) and value["facts"] and isinstance(value["population"], int), value


@pytest.mark.parametrize("route", [native, chat, chat_call], ids=lambda route: route.__name__)
def test_reasoning_ends_while_the_answer_still_fits(server, route):
    more = {"think": True} if route is native else {"reasoning_effort": "high"}
    least = refused(server, route, **more)
    for limit in [least, least + 1, least + 5, least + 12, least + 30, least + 60]:
        status, answer = ask(server, route, limit, **more)
        assert status == 200, answer
        value, is_whole = value_of(route, answer)
        assert is_whole and set(value) == set(SCHEMA["required"]), answer


def test_an_answer_is_completed_at_the_end_of_the_context(server):
    path, body = native(-1)
    options = {"temperature": 0, "num_ctx": 160}
    status, answer = server.post(path, {"model": "cria", "messages": QUESTION, **body, "options": options, "shift": False})
    assert status == 200, answer
    assert value_of(native, answer)[1], answer


def test_a_logit_bias_does_not_prevent_the_end_of_an_answer(server):
    least = refused(server, chat)
    plain = ask(server, chat, least)[1]["choices"][0]["message"]["content"]
    _, tokens = server.post("/api/tokenize", {"model": "cria", "text": plain, "add_special": False})
    biases = {str(token): -100 for token in tokens["tokens"]}
    status, answer = ask(server, chat, least, logit_bias=biases)
    assert status == 200 and value_of(chat, answer)[1], answer


@pytest.mark.parametrize("stream", [False, True])
def test_integers_of_a_real_model_end(server, stream):
    create(server, "gem", need(GEMMA3))
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}}, "required": ["name", "age"]}
    body = {"model": "gem", "messages": [{"role": "user", "content": "Bob 5"}], "format": schema, "options": {"seed": 0, "num_ctx": 1024}, "stream": stream}
    status, answer = server.post("/api/chat", body)
    parts = answer if stream else [answer]
    assert status == 200 and parts[-1]["done_reason"] == "stop", answer
    value = json.loads("".join(part["message"]["content"] for part in parts))
    assert abs(value["age"]) < 10**16, value
