"""Requests of coding agents that servers often answer wrongly, with the expected answers
(`tests/data/cases/agents.jsonl`)."""
import http.server
import json
import threading
import urllib.request

import pytest

from conftest import REPOSITORY, Puna

CASES = {case["id"]: case for case in map(json.loads, (REPOSITORY / "tests/data/cases/agents.jsonl").read_text().splitlines())}


class Scripted(http.server.BaseHTTPRequestHandler):
    """A server of OpenAI's dialect that streams the deltas of a case."""

    protocol_version = "HTTP/1.1"
    deltas, finish, seen = [], "tool_calls", []

    def log_message(self, *_):
        pass

    def do_POST(self):
        type(self).seen.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        chunk = lambda delta, finish=None: {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
        chunks = [*map(chunk, self.deltas), chunk({}, self.finish)]
        data = "".join(f"data: {json.dumps(one)}\n\n" for one in chunks) + "data: [DONE]\n\n"
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(data.encode())))
        self.end_headers()
        self.wfile.write(data.encode())


@pytest.fixture(scope="module")
def upstream():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture(scope="module")
def agents(upstream, tmp_path_factory):
    """A server with cria, a model of the scripted upstream, and the templates of the cases."""
    server = Puna(PUNA_REMOTES=upstream)
    case = CASES["developer-go"]
    for body in [
        {"model": "scripted", "from": "big", "remote_host": f"{upstream}/v1"},
        {"model": case["id"], "from": "cria", "template": case["setup"]["go_template"]},
    ]:
        status, answer = server.post("/api/create", {**body, "stream": False})
        assert status == 200, answer
    yield server
    server.stop()


def events(data):
    """The objects of a server-sent stream."""
    lines = data.decode().splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: ") and line != "data: [DONE]"]


def ask(server, path, body):
    status, data = server.send("POST", path, body)
    assert status == 200, data
    return data


def calls_of(path, got):
    """Calls as a client puts them together: id, name, text of the arguments; and the text of the answer."""
    calls, text = {}, ""
    for event in got:
        if path == "/v1/messages":
            block, delta = event.get("content_block", {}), event.get("delta", {})
            if block.get("type") == "tool_use":
                assert block["id"] not in calls, "sent once"
                calls[block["id"]] = last = [block["name"], ""]
            if delta.get("type") == "input_json_delta":
                last[1] += delta["partial_json"]
            text += delta.get("text", "")
        elif path == "/v1/responses":
            item = event.get("item", {})
            if event["type"] == "response.output_item.done" and item["type"] == "function_call":
                assert item["call_id"] not in calls and item["status"] == "completed"
                calls[item["call_id"]] = [item["name"], item["arguments"]]
            if event["type"] == "response.output_text.delta":
                text += event["delta"]
        else:
            for choice in event["choices"]:
                text += choice["delta"].get("content") or ""
                for call in choice["delta"].get("tool_calls", []):
                    if "id" in call:
                        assert call["id"] not in calls
                        calls[call["id"]] = last = [call["function"]["name"], ""]
                    last[1] += call["function"]["arguments"]
    return calls, text


TOOL = {"name": "bash", "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}}
ROUTES = {
    "/v1/messages": {"max_tokens": 9, "messages": [{"role": "user", "content": "x"}], "tools": [{"name": "bash", "input_schema": TOOL["parameters"]}]},
    "/v1/responses": {"input": "x", "tools": [{"type": "function", **TOOL}]},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function", "function": TOOL}]},
}


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("case", ["call-then-newline", "call-then-thought", "interleaved"])
def test_a_call_is_sent_once_and_ends_before_the_next_item(agents, path, case):
    part = lambda index, arguments, **more: {"tool_calls": [{"index": index, "function": {"arguments": arguments, **more.pop("function", {})}, **more}]}
    interleaved = [
        part(0, "", id="a", function={"name": "bash"}), part(1, "", id="b", function={"name": "bash"}),
        part(0, '{"command":'), part(1, '{"command": "2"'), part(0, ' "1"}'), part(1, "}"), {"content": "done"},
    ]  # fmt: skip
    Scripted.deltas = interleaved if case == "interleaved" else CASES[case]["setup"]["deltas"]
    got = events(ask(agents, path, {"model": "scripted", "stream": True, **ROUTES[path]}))
    calls, text = calls_of(path, got)
    if case == "interleaved":
        assert calls == {"a": ["bash", '{"command": "1"}'], "b": ["bash", '{"command": "2"}']}
        assert text == "done"
        return
    [(name, arguments)] = calls.values()
    assert name == "bash" and list(json.loads(arguments)) == ["command"]
    if path == "/v1/messages":
        open_blocks = 0
        for event in got:
            open_blocks += {"content_block_start": 1, "content_block_stop": -1}.get(event["type"], 0)
            assert 0 <= open_blocks <= 1, got


def test_usage_that_a_remote_server_omits_is_absent_and_finish_reasons_are_forwarded(agents):
    Scripted.deltas, Scripted.finish = [{"content": [{"type": "text", "text": "so"}]}], "content_filter"
    try:
        whole = json.loads(ask(agents, "/v1/chat/completions", {"model": "scripted", **ROUTES["/v1/chat/completions"]}))
        assert whole["choices"][0]["message"]["content"] == "so"
        assert whole["choices"][0]["finish_reason"] == "content_filter" and "usage" not in whole
        Scripted.finish = "abort"
        status, error = agents.send("POST", "/v1/chat/completions", {"model": "scripted", **ROUTES["/v1/chat/completions"]})
        assert status == 502 and b"aborted" in error, error
    finally:
        Scripted.finish = "tool_calls"


def test_developer_messages_are_in_the_prompt_of_a_go_template(agents):
    case = CASES["developer-go"]
    body = {**case["body"], "model": case["id"], "_debug_render_only": True}
    request = urllib.request.Request(agents.url + case["route"], json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        assert "RULES" in json.load(answer)["_debug_info"]["rendered_template"]
        assert answer.headers["X-Puna-Adapted"] == "renamed"


@pytest.mark.parametrize("case", ["arguments-empty", "arguments-missing", "arguments-cut"])
def test_arguments_of_earlier_calls_may_be_anything(agents, case):
    body = {**CASES[case]["body"], "max_tokens": 4}
    assert json.loads(ask(agents, CASES[case]["route"], body))["choices"]


def test_a_truncated_call_can_be_sent_back(agents):
    case = CASES["cut-call"]
    got = events(ask(agents, case["route"], case["body"]))
    calls, text = calls_of(case["route"], got)
    [(id, (name, arguments))] = calls.items()
    assert text == "" and got[-1]["choices"][0]["finish_reason"] == "length", got
    call = {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
    messages = [*case["body"]["messages"], {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "tool_call_id": id, "content": "Error: the call is incomplete"}]
    assert events(ask(agents, case["route"], {**case["body"], "messages": messages}))


def test_results_of_parallel_calls_have_the_order_of_the_calls(agents):
    case = CASES["results-swapped"]
    data = json.loads(ask(agents, case["route"], {**case["body"], "_debug_render_only": True}))
    prompt = data["_debug_info"]["rendered_template"]
    assert 0 < prompt.index("RESULT-OF-A") < prompt.index("RESULT-OF-B")


def test_a_prompt_that_is_too_long_has_the_error_of_each_dialect(agents):
    case = CASES["overflow-system-last"]
    messages = [case["body"]["messages"][0], {"role": "system", "content": "x y z " * 700}]
    body = {**case["body"], "messages": messages}
    status, data = agents.send("POST", case["route"], body)
    error = json.loads(data)["error"]
    assert status == 400 and error["type"] == "invalid_request_error"
    assert error["message"].startswith("prompt is too long: ") and error["message"].endswith(" tokens > 2048 maximum"), error
    case = CASES["overflow-responses"]
    body = {**case["body"], "instructions": "The cat sat on the mat. " * 600}
    last = events(ask(agents, case["route"], body))[-1]
    assert last["type"] == "response.failed" and last["response"]["error"]["code"] == "context_length_exceeded"
    status, data = agents.send("POST", "/v1/chat/completions", {"model": "cria", "messages": messages})
    error = json.loads(data)["error"]
    assert status == 400 and error["code"] == "context_length_exceeded" and error["n_prompt_tokens"] > error["n_ctx"] == 2048


def test_a_truncated_prompt_keeps_the_task_the_newest_turn_and_every_call(agents):
    case = CASES["overflow-system-last"]
    messages = [case["body"]["messages"][0], {"role": "system", "content": "x y z " * 700}]
    tool = CASES["overflow-tool-last"]["body"]
    results = [*tool["messages"][:2], {**tool["messages"][2], "content": "v " * 2500}]
    for path, body in {
        "/v1/messages": {**case["body"], "messages": messages, "truncate": True},
        "/v1/chat/completions": {**tool, "messages": results, "max_tokens": 5},
        "/v1/responses": {"model": "cria", "truncation": "auto", "max_output_tokens": 5, "input": [
            {"role": "user", "content": "Do the task T."},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "v " * 2500},
        ]},
    }.items():
        request = urllib.request.Request(agents.url + path, json.dumps({**body, "_debug_render_only": True}).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            assert "dropped" in answer.headers["X-Puna-Adapted"], path
            prompt = answer.read().decode()
        assert "bytes were left out, since the context is too small" in prompt, prompt[:500]
        kept = "capital of France" if path == "/v1/messages" else "Do the task T."
        assert kept in prompt
        if path != "/v1/messages":
            assert prompt.index(kept) < prompt.index('\\"name\\": \\"f\\"') < prompt.index("v v v")
    answer = json.loads(ask(agents, "/v1/chat/completions", {**tool, "messages": results, "max_tokens": 5}))
    assert answer["usage"]["truncated_tokens"] > 500 and answer["usage"]["prompt_tokens"] < 2048, answer["usage"]
    # What cannot be cut is refused: the task itself.
    status, data = agents.send("POST", "/v1/chat/completions", {"model": "cria", "truncate": True, "messages": [{"role": "user", "content": "x y z " * 900}]})
    assert status == 400 and json.loads(data)["error"]["code"] == "context_length_exceeded", data


def test_only_allowed_tools_are_offered_and_a_named_tool_is_called_once(agents):
    tool = lambda name: {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]}}}
    body = {"model": "cria", "temperature": 0, "max_tokens": 400, "messages": [{"role": "user", "content": "Call them."}], "tools": [tool("weather"), tool("other")]}
    allowed = lambda mode: {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [{"type": "function", "function": {"name": "weather"}}]}}
    prompt = ask(agents, "/v1/chat/completions", {**body, "tool_choice": allowed("auto"), "_debug_render_only": True}).decode()
    assert "weather" in prompt and "other" not in prompt
    for choice in [allowed("required"), "required", {"type": "function", "function": {"name": "weather"}}]:
        choice_of = json.loads(ask(agents, "/v1/chat/completions", {**body, "tool_choice": choice}))["choices"][0]
        calls = [(call["function"]["name"], call["function"]["arguments"]) for call in choice_of["message"]["tool_calls"]]
        assert choice_of["finish_reason"] == "tool_calls" and calls and len(set(calls)) == len(calls), calls
        if choice != "required":
            assert all(name == "weather" for name, _ in calls)
        if isinstance(choice, dict) and choice["type"] == "function":
            assert len(calls) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_custom_tools_of_chat_completions_are_called_with_text(agents, stream):
    Scripted.finish = "tool_calls"
    Scripted.deltas = [{"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "code", "arguments": '{"input": "x = 1\\ny"}'}}]}]
    history = [{"role": "user", "content": "?"}, {"role": "assistant", "content": None, "tool_calls": [{"id": "c0", "type": "custom", "custom": {"name": "code", "input": "z"}}]}, {"role": "tool", "tool_call_id": "c0", "content": "done"}]
    tools = [{"type": "custom", "custom": {"name": "code", "description": "Runs code.", "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /.+/"}}}}]
    data = ask(agents, "/v1/chat/completions", {"model": "scripted", "stream": stream, "messages": history, "tools": tools})
    if stream:
        calls = [call for event in events(data) for choice in event["choices"] for call in choice["delta"].get("tool_calls", [])]
    else:
        calls = json.loads(data)["choices"][0]["message"]["tool_calls"]
    assert calls == [{"id": "c1", "index": 0, "type": "custom", "custom": {"name": "code", "input": "x = 1\ny"}}], calls
    sent = Scripted.seen[-1]
    assert sent["tools"][0]["function"]["name"] == "code" and "start: /.+/" in sent["tools"][0]["function"]["description"]
    assert json.loads(sent["messages"][1]["tool_calls"][0]["function"]["arguments"]) == {"input": "z"}


def test_the_debug_log_says_where_a_cached_prefix_ended():
    server = Puna(OLLAMA_DEBUG="1")
    try:
        for word in ["first", "second"]:
            ask(server, "/v1/chat/completions", {"model": "cria", "max_tokens": 1, "messages": [{"role": "system", "content": "a b c d e f g h " * 20 + word}, {"role": "user", "content": "Hello."}]})
    finally:
        server.stop()
    lines = [line for line in server.log.read_text().splitlines() if "cache_miss_at" in line]
    assert len(lines) == 2 and "second" in lines[1] and "second" not in lines[0], lines


def test_stop_strings_of_a_request_apply_after_the_reasoning(agents):
    case = CASES["stop-in-thought"]
    messages = case["body"]["messages"]
    for path, body in {
        "/v1/chat/completions": {**case["body"], "temperature": 0},
        "/api/chat": {"model": "cria", "messages": messages, "stream": False, "think": True, "options": {"stop": ["France"], "temperature": 0}},
    }.items():
        answer = json.loads(ask(agents, path, body))
        message = answer["choices"][0]["message"] if "choices" in answer else answer["message"]
        assert "France" in message.get("reasoning", message.get("thinking", "")), answer
        assert message["content"].strip() == "Paris.", answer
    body = {**case["body"], "temperature": 0, "stop": ["ris"]}
    assert json.loads(ask(agents, case["route"], body))["choices"][0]["message"]["content"].strip() == "Pa"


def test_a_remote_server_gets_messages_that_every_template_accepts(agents):
    Scripted.deltas, Scripted.finish = [{"content": "so"}], "stop"
    roles = ["developer", "developer", "user", "user", "system", "assistant", "assistant", "user"]
    messages = [{"role": role, "content": f"text {n}"} for n, role in enumerate(roles)]
    Scripted.seen.clear()
    try:
        ask(agents, "/v1/chat/completions", {"model": "scripted", "messages": messages})
    finally:
        Scripted.finish = "tool_calls"
    [seen] = Scripted.seen
    assert [m["role"] for m in seen["messages"]] == ["system", "user", "assistant", "user"]
    text = "\n".join(m["content"] for m in seen["messages"])
    assert [text.index(f"text {n}") for n in range(len(roles))] == sorted(text.index(f"text {n}") for n in range(len(roles)))
    assert not {"temperature", "top_p"} & set(seen), seen


def test_a_changing_billing_header_does_not_defeat_the_prefix_cache(agents):
    case = CASES["billing-header"]

    def prompt(token):
        system = [{"type": "text", "text": f"x-anthropic-billing-header: cc_version=1.2.3; cch={token};"}, case["body"]["system"][1]]
        body = {**case["body"], "model": "cria", "system": system, "_debug_render_only": True}
        return json.loads(ask(agents, case["route"], body))["_debug_info"]["rendered_template"]

    assert prompt("0a1b2") == prompt("ffff0") and "billing" not in prompt("1") and "careful assistant" in prompt("1")


def test_a_namespaced_tool_is_called_by_namespace_and_name(agents):
    case = CASES["namespace"]
    response = json.loads(ask(agents, case["route"], {**case["body"], "max_output_tokens": 200}))
    [call] = [item for item in response["output"] if item["type"] == "function_call"]
    assert (call["namespace"], call["name"]) == ("mcp__x", "get"), call
    history = [{"role": "user", "content": "Call it"}, {key: call[key] for key in ("type", "call_id", "namespace", "name", "arguments")}, {"type": "function_call_output", "call_id": call["call_id"], "output": "ok"}]
    body = {**case["body"], "input": history, "tool_choice": "auto", "max_output_tokens": 4}
    assert json.loads(ask(agents, case["route"], body))["output"]
