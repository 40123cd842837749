"""The stream helpers of the official SDKs assemble every scripted answer correctly, in every order of events."""
import json
import subprocess

import anthropic
import openai
import pytest

from conftest import REPOSITORY
from scripted import answer, call, calls, playing, text

TOOL = {
    "name": "save",
    "description": "Saves a value",
    "parameters": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"], "additionalProperties": False},
}
ONE, TWO = call("save", {"key": "one"}, "call_one"), call("save", {"key": "two – a longer value"}, "call_two")
THOUGHT = {"thinking": "I should save it."}

# By name: the steps, the text, the arguments of the calls in order.
ORDERS = {
    "text": ([text("Hello "), text("you.")], "Hello you.", []),
    "thought": ([THOUGHT, text("Hello.")], "Hello.", []),
    "call": ([ONE], "", ["one"]),
    "text-call": ([text("I save."), ONE], "I save.", ["one"]),
    "thought-text-call": ([THOUGHT, text("I save."), ONE], "I save.", ["one"]),
    "call-newline": ([ONE, text("\n")], "", ["one"]),
    "parallel": ([calls(ONE, TWO)], "", ["one", "two – a longer value"]),
    "text-parallel": ([text("Both."), calls(TWO, ONE)], "Both.", ["two – a longer value", "one"]),
}
# What only an upstream server can say: behind the calls of this model, as in Ollama, nothing counts.
DELTAS = {
    "call-text": ([ONE, text("Saved.")], "Saved.", ["one"]),
    "call-text-call": ([ONE, text("And "), TWO], "And", ["one", "two – a longer value"]),
    "thought-parallel-text": ([THOUGHT, calls(ONE, TWO), text("Done.")], "Done.", ["one", "two – a longer value"]),
    "call-thought": ([ONE, THOUGHT], "", ["one"]),
    "thought-text-thought-text": ([THOUGHT, text("a"), THOUGHT, text("b")], "ab", []),
    "content-list": ([{"delta": {"content": [{"type": "text", "text": "so"}, {"type": "text", "text": " it is"}]}}], "so it is", []),
    "call-at-once": ([{"delta": {"tool_calls": [{"index": 0, "id": "call_one", "type": "function", "function": {"name": "save", "arguments": '{"key": "one"}'}}]}}], "", ["one"]),
    "text-between-parts": (
        [
            {"delta": {"tool_calls": [{"index": 0, "id": "call_one", "type": "function", "function": {"name": "save", "arguments": '{"key":'}}]}},
            text("meanwhile"),
            {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": ' "one"}'}}]}},
        ],
        "meanwhile",
        ["one"],
    ),
    "null-content": ([{"delta": {"content": None}}, text("x"), {"delta": {"content": None, "tool_calls": None}}], "x", []),
    "empty": ([], "", []),
}
ALL = {**ORDERS, **DELTAS}
FAILURES = {"fail": [text("some "), {"fail": "the disk is gone"}], "fail-in-call": [ONE, {"fail": "the disk is gone"}], "crash": [text("some "), "crash"]}


def script_of(orders):
    return [answer(*steps, when={"contains": [f"ORDER {name}."]}) for name, steps in orders.items()]


@pytest.fixture(scope="module", params=["model", "remote"])
def server(request):
    with playing(request.param) as it:
        it.kind = request.param
        it.orders = ORDERS if request.param == "model" else ALL
        # A runner that has crashed is another test's.
        failing = {name: steps for name, steps in FAILURES.items() if name != "crash" or it.kind == "remote"}
        it.play(*script_of({name: order[0] for name, order in it.orders.items()} | failing))
        yield it


def question(order):
    return [{"role": "user", "content": f"ORDER {order}."}]


def chat(server, order):
    tools = [{"type": "function", "function": {**TOOL, "strict": True}}]
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    with client.chat.completions.stream(model="script", messages=question(order), tools=tools, stream_options={"include_usage": True}) as stream:
        for _ in stream:
            pass
        done = stream.get_final_completion()
    [choice] = done.choices
    found = [[made.id, made.function.name, made.function.arguments] for made in choice.message.tool_calls or []]
    usage = done.usage and [done.usage.prompt_tokens, done.usage.completion_tokens]
    return {"text": choice.message.content or "", "calls": found, "finish": choice.finish_reason, "usage": usage}


def responses(server, order):
    tools = [{"type": "function", **TOOL, "strict": True}]
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    with client.responses.stream(model="script", input=question(order), tools=tools) as stream:
        for _ in stream:
            pass
        done = stream.get_final_response()
    found = [[item.call_id, item.name, item.arguments] for item in done.output if item.type == "function_call"]
    usage = done.usage and [done.usage.input_tokens, done.usage.output_tokens]
    return {"text": done.output_text, "calls": found, "finish": done.status, "usage": usage}


def messages(server, order):
    tools = [{"name": TOOL["name"], "input_schema": TOOL["parameters"]}]
    client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
    with client.messages.stream(model="script", max_tokens=1000, messages=question(order), tools=tools) as stream:
        for _ in stream:
            pass
        done = stream.get_final_message()
    found = [[block.id, block.name, json.dumps(block.input)] for block in done.content if block.type == "tool_use"]
    words = "".join(block.text for block in done.content if block.type == "text")
    return {"text": words, "calls": found, "finish": done.stop_reason, "usage": [done.usage.input_tokens, done.usage.output_tokens]}


HELPERS = {"chat": chat, "responses": responses, "messages": messages}
ENDS = {"chat": ("stop", "tool_calls"), "responses": ("completed", "completed"), "messages": ("end_turn", "tool_use")}


def check(server, helper, order, got):
    """That a helper has put together what the script said."""
    _, words, keys = server.orders[order]
    assert "error" not in got, got
    # White space around calls is no text.
    assert (got["text"].strip() if keys else got["text"]) == words, got
    assert [name for _, name, _ in got["calls"]] == ["save"] * len(keys), got
    assert [json.loads(arguments) for _, _, arguments in got["calls"]] == [{"key": key} for key in keys], got
    ids = [id for id, _, _ in got["calls"]]
    assert all(ids) and len(set(ids)) == len(ids), got
    assert got["finish"] == ENDS[helper][bool(keys)], got
    assert got["usage"] and got["usage"][0] > 0 and (got["usage"][1] > 0 or order == "empty"), got


@pytest.mark.parametrize("helper", HELPERS)
def test_python_helpers_assemble_events_in_any_order(server, helper):
    for order in server.orders:
        check(server, helper, order, HELPERS[helper](server, order))


def test_call_ids_of_an_upstream_are_preserved_and_local_ones_are_unique(server):
    for helper in HELPERS.values():
        ids = [id for id, _, _ in helper(server, "parallel")["calls"]]
        assert ids == ["call_one", "call_two"] if server.kind == "remote" else len(set(ids)) == 2, ids


@pytest.mark.parametrize("helper", HELPERS)
def test_python_helpers_report_a_failure_in_the_middle(server, helper):
    failing = ["fail", "fail-in-call", *(["crash"] if server.kind == "remote" else [])]
    for order in failing:
        if helper == "responses":
            # This helper ends with the failed response.
            with pytest.raises((openai.APIError, RuntimeError)):
                HELPERS[helper](server, order)
            continue
        with pytest.raises((openai.APIError, anthropic.APIError)) as error:
            HELPERS[helper](server, order)
        assert order == "crash" or "the disk is gone" in str(error.value), error.value


@pytest.fixture(scope="module")
def node(server):
    """What the helpers of Node put together, by helper and order."""
    folder = REPOSITORY / "tests/clients/node"
    if not (folder / "node_modules/openai").exists():
        pytest.skip("SKIPPED: the clients of Node are not there; ./test fetches them")
    asked = json.dumps({"orders": [*server.orders, "fail"], "tool": TOOL})
    done = subprocess.run(["node", "orders.mjs"], cwd=folder, env={**server.env, "PUNA_URL": server.url}, input=asked, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("helper", HELPERS)
def test_node_helpers_assemble_events_in_any_order(server, node, helper):
    for order in server.orders:
        check(server, helper, order, node[f"{helper} {order}"])
    assert "error" in node[f"{helper} fail"] or node[f"{helper} fail"]["finish"] == "failed", node[f"{helper} fail"]
