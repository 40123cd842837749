"""Large, deep and hostile schemas and grammars, with cria and with a real vocabulary."""
import json
import threading
import time

import pytest

QUESTION = [{"role": "user", "content": "Hello, who are you?"}]


def nested(levels):
    """Objects in each other; each is two levels of JSON."""
    schema = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def check(value, schema):
    """Whether a value is what a schema describes, as far as the schemas below go."""
    known = {"type", "enum", "const", "anyOf", "properties", "required", "additionalProperties", "items", "minItems", "maxItems", "maxLength", "minimum", "maximum"}
    assert set(schema) <= known, schema
    if "anyOf" in schema:
        assert any(fits(value, branch) for branch in schema["anyOf"]), (value, schema)
    assert value in schema.get("enum", [value]) and value == schema.get("const", value), (value, schema)
    kinds = schema.get("type", [])
    python = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool, "null": type(None)}
    assert not kinds or type(value) in [python[kind] for kind in ([kinds] if isinstance(kinds, str) else kinds)], (value, schema)
    if isinstance(value, dict):
        assert set(schema.get("required", [])) <= set(value) <= set(schema["properties"]), (value, schema)
        for key, inner in value.items():
            check(inner, schema["properties"][key])
    if isinstance(value, list):
        assert schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)), (value, schema)
        for inner in value:
            check(inner, schema["items"])
    if isinstance(value, str):
        assert len(value) <= schema.get("maxLength", len(value)), (value, schema)
    if type(value) is int:
        assert schema.get("minimum", value) <= value <= schema.get("maximum", value), (value, schema)


def fits(value, schema):
    try:
        check(value, schema)
    except AssertionError:
        return False
    return True


def answer(server, model, form, seconds=30, **options):
    body = {"model": model, "messages": QUESTION, "format": form, "stream": False, "think": False, "options": {"num_predict": 40, "temperature": 0.8, "seed": 1, **options}}
    start = time.monotonic()
    status, said = server.post("/api/chat", body)
    assert time.monotonic() - start < seconds, f"{form!s:.60} took {time.monotonic() - start:.1f} s"
    return status, said


# Fifty functions of an office: what assistants are given by servers of tools.
WORD = {"type": "string", "maxLength": 8}
KINDS = [
    ("search_{}", {"query": WORD, "limit": {"type": "integer", "minimum": 1, "maximum": 50}, "order": {"enum": ["newest", "oldest", "relevance"]}}, ["query"]),
    ("create_{}", {"title": WORD, "labels": {"type": "array", "items": {"enum": ["bug", "idea", "task"]}, "maxItems": 3}, "assignee": {"type": ["string", "null"], "maxLength": 8}}, ["title", "labels"]),
    ("update_{}", {"id": {"type": "integer", "minimum": 0, "maximum": 99999}, "changes": {"type": "object", "properties": {"title": WORD, "done": {"type": "boolean"}}, "required": ["done"]}}, ["id", "changes"]),
    ("delete_{}", {"id": {"type": "integer", "minimum": 0, "maximum": 99999}, "reason": {"anyOf": [{"const": "duplicate"}, {"const": "obsolete"}]}}, ["id", "reason"]),
    ("share_{}", {"id": {"type": "integer", "minimum": 0, "maximum": 99999}, "with": {"type": "array", "items": {"type": "object", "properties": {"user": WORD, "role": {"enum": ["reader", "writer"]}}, "required": ["user", "role"]}, "minItems": 1, "maxItems": 2}}, ["id", "with"]),
]
THINGS = ["issue", "document", "event", "contact", "invoice", "message", "project", "file", "ticket", "report"]
TOOLS = [
    {"type": "function", "function": {"name": name.format(thing), "description": f"{name.split('_')[0].title()} a {thing} in the workspace.", "parameters": {"type": "object", "properties": properties, "required": required, "additionalProperties": False}}}
    for thing in THINGS
    for name, properties, required in KINDS
]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "share_invoice"}}, "auto"])
def test_fifty_tools_are_called_with_valid_arguments(server, choice):
    assert len(TOOLS) == 50
    # The tools are longer than cria's context: this route cuts the prompt.
    body = {"model": "cria", "messages": QUESTION, "tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False, "think": False, "stream": False, "options": {"temperature": 1, "seed": 5, "num_predict": 600}}
    status, said = server.post("/api/chat", body)
    assert status == 200, said
    calls = said["message"].get("tool_calls", [])
    assert choice == "auto" or (len(calls) == 1 and said["done_reason"] == "stop"), said
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
    for call in calls:
        name = call["function"]["name"]
        check(call["function"]["arguments"], schemas[name])
        assert choice in ("required", "auto") or name == "share_invoice"


# Regular expressions and schemas that blow up in other engines. Each is answered, or refused by name.
HOSTILE = {
    "states": {"type": "regex", "pattern": ".*(a|b|c|d| |e).{60}zzzz"},
    "repetitions": {"type": "regex", "pattern": "(a{1,1000}){1,1000}"},
    "repetitions of repetitions": {"type": "regex", "pattern": "(((a{1,1000}){1,1000}){1,1000}){1,1000}"},
    "values": {"enum": [f"value number {i}" for i in range(10_000)]},
    "branches": {"anyOf": [{"type": "object", "properties": {f"k{i}": {"type": "string"}, "kind": {"const": f"t{i}"}}, "required": ["kind", f"k{i}"]} for i in range(500)]},
    "products of branches": {"allOf": [{"anyOf": [{"type": "object", "properties": {f"k{i}_{j}": {"type": "string"}}} for j in range(2)]} for i in range(20)]},
    "recursion": {"$defs": {"n": {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}}, "required": ["v", "next"]}}, "$ref": "#/$defs/n"},
    "nothing but recursion": {"$ref": "#"},
    "lengths": {"type": "string", "minLength": 10**9},
    "readings": {"type": "gbnf", "grammar": 'root ::= a\na ::= a a | [a-z .,A-Z] | a a a'},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schemas_are_answered_or_refused_with_the_reason(server, name):
    status, said = answer(server, "cria", HOSTILE[name])
    assert status in (200, 400), said
    words = {"products of branches": "schema too large", "nothing but recursion": "no finite value matches"}
    assert name not in words or (status == 400 and words[name] in said["error"]), said


def test_hostile_schemas_do_not_delay_other_requests(server, smollm2):
    """A real vocabulary: finding what may come next takes seconds for some of these, and longer the longer the answer."""
    server.post("/api/generate", {"model": smollm2, "prompt": "x", "raw": True, "stream": False, "options": {"num_predict": 1}})
    waits, over = [], threading.Event()

    def others():
        while not over.wait(0.02):
            start = time.monotonic()
            status, _ = server.post("/api/generate", {"model": smollm2, "prompt": "x", "raw": True, "stream": False, "options": {"num_predict": 1}})
            waits.append(time.monotonic() - start)
            assert status == 200

    other = threading.Thread(target=others)
    other.start()
    try:
        for name in ["states", "readings", "repetitions of repetitions", "values"]:
            status, said = answer(server, smollm2, HOSTILE[name], seconds=60, num_predict=300, temperature=1.2)
            assert status in (200, 400), said
            assert status == 200 or "the constraint is too complex" in said["error"], said
    finally:
        over.set()
        other.join()
    # Who waits for such a form does so for all of its steps. A single pause may be the machine's.
    waits.sort()
    assert len(waits) > 20 and waits[int(0.95 * len(waits))] < 0.9 and waits[-1] < 5, waits[-5:]


@pytest.mark.parametrize("levels", [41, 47])
def test_schemas_may_be_nested_as_deep_as_requests(server, levels):
    schema = nested(levels)
    tool = {"type": "function", "function": {"name": "f", "description": "", "parameters": schema}}
    status, said = answer(server, "cria", schema, num_predict=900)
    assert status == 200 and said["done_reason"] == "stop", said
    check(json.loads(said["message"]["content"]), schema)
    status, said = server.post("/v1/chat/completions", {"model": "cria", "messages": QUESTION, "tools": [tool], "tool_choice": "required", "parallel_tool_calls": False, "reasoning_effort": "none", "max_tokens": 900})
    assert status == 200, said
    [call] = said["choices"][0]["message"]["tool_calls"]
    check(json.loads(call["function"]["arguments"]), schema)


def test_schemas_nested_too_deep_are_refused_with_the_limit(server):
    for path, body in [("/api/chat", {"format": nested(50)}), ("/v1/chat/completions", {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": nested(50)}}})]:
        status, said = server.post(path, {"model": "cria", "messages": QUESTION, **body})
        assert status == 400 and "nested more than 100 levels" in str(said), said

