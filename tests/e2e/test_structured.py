"""Structured output through client libraries."""
import json
import re
import typing

import openai
import pydantic
import pytest

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


# The model inside the program is small: left alone inside of a string it rambles on.
Word = typing.Annotated[str, pydantic.Field(max_length=12)]


class City(pydantic.BaseModel):
    name: Word
    country: Word
    population: typing.Annotated[int, pydantic.Field(ge=0, le=10**8)]
    coastal: bool


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def city(text):
    return City.model_validate_json(text)


@pytest.mark.parametrize("think", [None, True, False])
@pytest.mark.parametrize("stream", [False, True])
def test_ollama_answers_follow_a_schema_with_and_without_thinking(server, think, stream):
    options = {"temperature": 0, "num_predict": 300}
    answer = server.client().chat("cria", QUESTION, format=City.model_json_schema(), think=think, stream=stream, options=options)
    parts = list(answer) if stream else [answer]
    city("".join(p.message.content or "" for p in parts))
    thought = "".join(p.message.thinking or "" for p in parts)
    assert bool(thought) == (think is not False), thought
    assert parts[-1].done_reason == "stop"


def test_generate_answers_in_json(server):
    answer = server.client().generate("cria", "Name a city.", format="json", options={"temperature": 0, "num_predict": 300})
    assert isinstance(json.loads(answer.response), dict)


def test_openai_parses_structured_answers(client):
    answer = client.chat.completions.parse(model="cria", messages=QUESTION, response_format=City, temperature=0, max_tokens=300)
    assert isinstance(answer.choices[0].message.parsed, City)


def test_openai_streams_structured_answers(client):
    with client.chat.completions.stream(model="cria", messages=QUESTION, response_format=City, temperature=0, max_tokens=300) as stream:
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, City)


def test_the_json_object_format_gives_an_object(client):
    answer = client.chat.completions.create(model="cria", messages=QUESTION, response_format={"type": "json_object"}, temperature=1, seed=3, max_tokens=300)
    assert isinstance(json.loads(answer.choices[0].message.content), dict)


def test_regular_expressions_and_grammars_are_enforced(client):
    forms: list[tuple[dict, str]] = [
        ({"type": "regex", "pattern": "[A-Z][a-z]{2,8}\\."}, r"[A-Z][a-z]{2,8}\."),
        ({"type": "gbnf", "grammar": 'root ::= "yes" | "no"'}, "yes|no"),
        ({"type": "lark", "grammar": 'start: "(" NUMBER ")"\nNUMBER: /[0-9]{1,3}/'}, r"\([0-9]{1,3}\)"),
    ]
    for form, expected in forms:
        answer = client.chat.completions.create(model="cria", messages=QUESTION, response_format=typing.cast(typing.Any, form), temperature=0)
        text = answer.choices[0].message.content
        assert re.fullmatch(expected, text), (form, text)


def test_a_schema_that_cannot_be_enforced_is_refused_by_keyword(server, client):
    # What is checked on the finished answer is refused where strictness is asked for.
    for schema, word in [({"type": "array", "uniqueItems": True}, "uniqueItems"), ({"type": "strange"}, "strange")]:
        with pytest.raises(openai.BadRequestError, match=word):
            client.chat.completions.create(model="cria", messages=QUESTION, response_format={"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}})
    status, body = server.post("/api/chat", {"model": "cria", "messages": QUESTION, "format": {"type": "strange"}})
    assert status == 400 and body["error"].startswith("invalid JSON schema in format: ")


def test_invalid_grammars_are_refused(server):
    for form in [{"type": "gbnf", "grammar": "root ::= ("}, {"type": "gbnf"}, {"type": "regex", "pattern": "("}, {"type": "lark", "grammar": "start: x"}, "xml", 5]:
        status, body = server.post("/api/generate", {"model": "cria", "prompt": "x", "format": form})
        assert status == 400, (form, body)


def test_tags_in_constrained_answers_are_text(client):
    tool = {"type": "function", "function": {"name": "f", "description": "", "parameters": {"type": "object", "properties": {}}}}
    for text in ["x <tool_call>", "<think>", 'a\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n ', "(ab){40}".replace("(ab){40}", "ab" * 40)]:
        form = {"type": "regex", "pattern": re.escape(text).replace("/", "\\/")}
        for tools in ([], [tool]):
            answer = client.chat.completions.create(model="cria", messages=QUESTION, response_format=typing.cast(typing.Any, form), temperature=0, extra_body={"tools": tools})
            assert answer.choices[0].message.content == text and not answer.choices[0].message.tool_calls, (text, answer)


def test_hostile_constraints_do_not_affect_other_requests(server):
    deep = {"type": "integer"}
    for _ in range(70):
        deep = {"type": "object", "properties": {"a": deep}}
    pid = server.runners()
    forms = [deep, {"type": "gbnf", "grammar": 'root ::= "a"' + "*" * 200_000}, {"type": "gbnf", "grammar": f'a ::= "{"!" * 9000}"\nroot ::= {"a " * 110_000}'}, {"type": "regex", "pattern": "(" * 50_000}]
    for form in forms:
        status, body = server.post("/api/chat", {"model": "cria", "messages": QUESTION, "format": form, "stream": False, "options": {"num_predict": 5}})
        assert status in (200, 400), body
    assert server.runners() == pid or not pid
    status, _ = server.post("/v1/chat/completions", {"model": "cria", "n": 128, "messages": [{"role": "user", "content": "x" * (4 << 20)}]})
    assert status == 400
