"""JSON Schemas as client libraries write them: keywords that cannot be enforced are reported and checked afterwards."""
import json
import urllib.error
import urllib.request

import pytest

FLAGS = {"type": "object", "properties": {"flags": {"type": "object", "propertyNames": {"type": "string"}, "maxProperties": 2, "additionalProperties": {"type": "boolean"}}}, "required": ["flags"], "additionalProperties": False}
TAGS = {"type": "object", "properties": {"tags": {"type": "array", "items": {"enum": ["x", "y"]}, "minItems": 1, "uniqueItems": True}}, "required": ["tags"]}
CASES = {
    "a record of zod": (FLAGS, ""),
    "any JSON of zod": ({"anyOf": [{"type": "boolean"}, {"type": "null"}, {"type": "array", "maxItems": 1, "items": {"$ref": "#"}}, {"type": "object", "maxProperties": 1, "propertyNames": {"type": "string", "maxLength": 5}, "additionalProperties": {"$ref": "#"}}]}, ""),
    "a set": (TAGS, "uniqueItems at #/properties/tags"),
    "a duration of zod": ({"type": "object", "properties": {"d": {"type": "string", "format": "duration", "maxLength": 9, "pattern": "^P(?!$)(?:\\d+Y)?(?:\\d+M)?(?:\\d+W)?(?:\\d+D)?(?:T(?=\\d)(?:\\d+H)?(?:\\d+M)?(?:\\d+S)?)?$"}}, "required": ["d"]}, "pattern at #/properties/d"),
    "a name that is not declared": ({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a", "zz"]}, ""),
    "a denied property": ({"type": "object", "properties": {"a": {"not": {}}, "b": {"type": "boolean"}}, "required": ["b"], "additionalProperties": False}, ""),
    "recursion of OpenAPI": ({"type": "object", "properties": {"v": {"$ref": "#/definitions/N"}}, "required": ["v"], "definitions": {"N": {"type": "object", "properties": {"v": {"type": "integer", "minimum": 0, "maximum": 9}, "next": {"nullable": True, "allOf": [{"$ref": "#/definitions/N"}]}}, "required": ["v", "next"]}}}, ""),
}


def post(server, path, body):
    """(status, headers, text)"""
    request = urllib.request.Request(f"{server.url}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read().decode()


@pytest.mark.parametrize("name", CASES)
def test_schemas_of_libraries_are_accepted(server, name):
    schema, keyword = CASES[name]
    status, headers, text = post(server, "/api/chat", {"model": "cria", "stream": False, "messages": [{"role": "user", "content": "go"}], "format": schema, "options": {"num_predict": 60}})
    assert status == 200, text
    assert headers.get("x-puna-schema-unenforced", "") == keyword
    if not keyword:
        assert "x-puna-schema-violations" not in headers


def test_a_stream_names_the_keywords_that_its_answer_violates(server):
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": TAGS}}
    body = {"model": "cria", "stream": True, "messages": [{"role": "user", "content": "go"}], "response_format": form}
    _, _, answer = post(server, "/v1/chat/completions", body)
    chunks = [json.loads(line[6:]) for line in answer.splitlines() if line.startswith("data: {")]
    text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])
    tags = json.loads(text)["tags"]
    last = next(chunk for chunk in chunks if chunk["choices"] and chunk["choices"][0]["finish_reason"])
    assert last["schema_violations"] == ([] if len(set(tags)) == len(tags) else ["uniqueItems at #/properties/tags"])


def test_strict_schemas_refuse_keywords_that_are_only_checked(server):
    form = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": TAGS}}
    body = {"model": "cria", "messages": [{"role": "user", "content": "go"}], "response_format": form}
    status, _, text = post(server, "/v1/chat/completions", body)
    assert status == 400 and "uniqueItems at #/properties/tags" in text, text
