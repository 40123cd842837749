"""Requests of coding agents, editors and chat front ends, recorded on the wire."""
import json

import pytest

CITY = {"type": "object", "properties": {"city": {"type": "string", "description": "The city"}}, "required": ["city"], "additionalProperties": False, "$schema": "http://json-schema.org/draft-07/schema#"}
CACHED = {"cache_control": {"type": "ephemeral"}}


def events(data):
    """Decoded events of a server-sent stream, with their names."""
    found = []
    for block in data.decode().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if lines.get("data", "[DONE]") != "[DONE]":
            found.append((lines.get("event"), json.loads(lines["data"])))
    return found


def ask(server, path, body, headers=None):
    status, data = server.send("POST", path, body, headers=headers)
    assert status == 200, data
    return data


# A coding agent of Anthropic's ------------------------------------------------------------------------------------------

AGENT = {"anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,fine-grained-tool-streaming-2025-05-14", "x-app": "cli", "authorization": "Bearer none", "anthropic-dangerous-direct-browser-access": "true"}


def agent_s_request(**kw):
    tools = [
        {"name": "get_weather", "description": "Get the weather in a city", "input_schema": CITY, "eager_input_streaming": True},
        {"name": "Edit", "description": "Edits a file", "input_schema": {"type": "object", "properties": {"path": {"type": "string"}, "all": {"type": "boolean", "default": False}}}, **CACHED},
    ]
    system = [{"type": "text", "text": "You are a coding agent.", **CACHED}, {"type": "text", "text": "\nBe brief.", **CACHED}]
    content = [{"type": "text", "text": "<system-reminder>\nBe kind.\n</system-reminder>"}, {"type": "text", "text": "What's the weather like in Cairo?", **CACHED}]
    return {
        "model": "cria", "max_tokens": 2000, "temperature": 0, "stream": True, "system": system, "tools": tools,
        "messages": [{"role": "user", "content": content}], "thinking": {"type": "disabled"}, "metadata": {"user_id": "user_1"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}, "output_config": {"effort": "medium"}, **kw,
    }  # fmt: skip


def test_a_coding_agent_streams_a_call_and_continues_after_its_failure(server):
    got = events(ask(server, "/v1/messages?beta=true", agent_s_request(), AGENT))
    kinds = [kind for kind, _ in got if kind != "ping"]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    [start] = [data for kind, data in got if kind == "content_block_start" and data["content_block"]["type"] == "tool_use"]
    assert start["content_block"]["name"] == "get_weather" and start["content_block"]["input"] == {}
    pieces = [data["delta"]["partial_json"] for kind, data in got if kind == "content_block_delta" and data["delta"]["type"] == "input_json_delta"]
    assert json.loads("".join(pieces)) == {"city": "Cairo"}
    assert got[-2][1]["delta"]["stop_reason"] == "tool_use"

    body = agent_s_request()
    use = {"type": "tool_use", "id": start["content_block"]["id"], "name": "get_weather", "input": {"city": "Cairo"}}
    result = {"type": "tool_result", "tool_use_id": use["id"], "is_error": True, "content": "no such city", **CACHED}
    thoughts = {"type": "thinking", "thinking": "Hm.", "signature": ""}
    body["messages"] += [{"role": "assistant", "content": [thoughts, use]}, {"role": "user", "content": [result, {"type": "text", "text": "Try again."}]}]
    got = events(ask(server, "/v1/messages?beta=true", body, AGENT))
    assert got[-1][0] == "message_stop"


def test_a_coding_agent_counts_tokens_and_checks_its_quota(server):
    body = agent_s_request()
    counted = {key: body[key] for key in ("model", "messages", "tools", "system")}
    told = json.loads(ask(server, "/v1/messages/count_tokens?beta=true", {**counted, "thinking": {"type": "disabled"}}, AGENT))
    start = events(ask(server, "/v1/messages?beta=true", {**body, "max_tokens": 1}, AGENT))[0][1]["message"]
    assert told["input_tokens"] == start["usage"]["input_tokens"] > 50
    quota = {"model": "cria", "max_tokens": 1, "messages": [{"role": "user", "content": "quota"}], "metadata": {"user_id": "user_1"}}
    assert json.loads(ask(server, "/v1/messages?beta=true", quota, AGENT))["usage"]["output_tokens"] == 1
    assert server.send("HEAD", "/")[0] == 200


def test_a_coding_agent_reads_files_as_documents(server):
    text = {"type": "document", "title": "notes.txt", "source": {"type": "text", "media_type": "text/plain", "data": "The code word is Wanda."}, **CACHED}
    blocks = {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "The code word is Rosa."}]}}
    found = {"type": "search_result", "title": "Words", "source": "https://example.com", "content": [{"type": "text", "text": "The code word is Otto."}]}
    use = {"type": "tool_use", "id": "t1", "name": "Read", "input": {}}
    messages = [
        {"role": "user", "content": [text, found, {"type": "text", "text": "What is the code word?"}]},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [blocks]}]},
    ]
    body = {"model": "cria", "max_tokens": 9, "messages": messages, "_debug_render_only": True}
    prompt = json.loads(ask(server, "/v1/messages", body, AGENT))["_debug_info"]["rendered_template"]
    for part in ("notes.txt", "Wanda", "Words", "Otto", "Rosa"):
        assert part in prompt
    pdf = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}}
    status, answer = server.post("/v1/messages", {**body, "messages": [{"role": "user", "content": [pdf]}]})
    assert status == 400 and "application/pdf" in answer["error"]["message"]


def test_hosted_web_search_is_accepted_and_returns_no_result(server):
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
    body = {**agent_s_request(stream=False), "tools": [search], "messages": [{"role": "user", "content": "What is the capital of France?"}]}
    answer = json.loads(ask(server, "/v1/messages?beta=true", body, AGENT))
    assert answer["stop_reason"] == "end_turn" and answer["content"][-1]["type"] in ("text", "web_search_tool_result")


# A coding agent of OpenAI's ---------------------------------------------------------------------------------------------

PATCH = {
    "type": "custom", "name": "apply_patch", "description": "Applies a patch. The input is free text, not JSON.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch" LF\nLF: /\\n/'},
}  # fmt: skip
SHELL = {"type": "function", "name": "shell", "description": "Runs a command", "strict": False, "parameters": {"type": "object", "properties": {"command": {"type": "array", "items": {"type": "string"}}}, "required": ["command"], "additionalProperties": False}}
WEATHER = {"type": "function", "name": "get_weather", "description": "Get the weather in a city", "strict": True, "parameters": CITY}


def other_agent_s_request(text="What's the weather like in Cairo?", **kw):
    message = lambda role, text: {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}
    return {
        "model": "cria", "instructions": "You are a coding agent.", "stream": True, "store": False, "parallel_tool_calls": False, "tool_choice": "auto",
        "input": [message("developer", "<permissions>\nAll.\n</permissions>"), message("user", "<environment_context>\n<cwd>/</cwd>\n</environment_context>"), message("user", text)],
        "tools": [WEATHER, SHELL, PATCH, {"type": "local_shell"}, {"type": "web_search", "external_web_access": False}, {"type": "image_generation", "output_format": "png"}],
        "reasoning": {"effort": "none", "summary": "auto"}, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "0199", "text": {"verbosity": "low"},
        "client_metadata": {"x": "y"}, "temperature": 0, **kw,
    }  # fmt: skip


def output(data):
    """The items of a streamed response, and that each was begun, filled and ended."""
    got = events(data)
    assert [data["sequence_number"] for _, data in got] == list(range(len(got)))
    assert got[0][0] == "response.created" and got[-1][0] in ("response.completed", "response.incomplete"), got[-1]
    done = [data["item"] for kind, data in got if kind == "response.output_item.done"]
    assert done == got[-1][1]["response"]["output"]
    return done, got


def test_an_agent_calls_a_function_through_the_responses_api(server):
    body = other_agent_s_request()
    # So many tools are too much for so small a model.
    demanded = {**body, "tool_choice": {"type": "function", "name": "get_weather"}}
    items, _ = output(ask(server, "/v1/responses", demanded, {"openai-beta": "responses=experimental", "originator": "codex_cli_rs", "session_id": "0199"}))
    [call] = [item for item in items if item["type"] == "function_call"]
    assert (call["name"], json.loads(call["arguments"])) == ("get_weather", {"city": "Cairo"})
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": json.dumps({"output": "12 degrees, cloudy", "metadata": {"exit_code": 0}})}
    items, _ = output(ask(server, "/v1/responses", {**body, "tools": [WEATHER], "input": [body["input"][-1], *items, result]}))
    assert "12" in items[-1]["content"][0]["text"]


def test_unsupported_tools_are_named(server):
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", "/v1/responses", json.dumps(other_agent_s_request(stream=False, max_output_tokens=1)))
    response = connection.getresponse()
    ignored = response.getheader("x-puna-ignored", "")
    assert response.status == 200 and "tools.web_search" in ignored and "tools.image_generation" in ignored, ignored
    connection.close()
    status, answer = server.post("/v1/responses", other_agent_s_request(tool_choice={"type": "web_search"}))
    assert status == 400 and "web_search" in answer["error"]["message"]
    status, answer = server.post("/v1/responses", other_agent_s_request(tools=[{"type": "file_search", "vector_store_ids": ["x"]}]))
    assert status == 400 and "file_search" in answer["error"]["message"]


def test_custom_tools_get_free_text(server):
    body = other_agent_s_request("Apply a patch.", tools=[PATCH], tool_choice={"type": "custom", "name": "apply_patch"}, max_output_tokens=60)
    body["tools"][0] = {**PATCH, "format": {"type": "text"}}
    items, got = output(ask(server, "/v1/responses", body))
    [call] = [item for item in items if item["type"] == "custom_tool_call"]
    assert call["name"] == "apply_patch" and isinstance(call["input"], str) and call["call_id"]
    deltas = [data["delta"] for kind, data in got if kind == "response.custom_tool_call_input.delta"]
    assert "".join(deltas) == call["input"] == next(data["input"] for kind, data in got if kind == "response.custom_tool_call_input.done")
    result = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "Done!"}
    body = {**body, "input": [*body["input"], *items, result], "tool_choice": "auto", "_debug_render_only": True, "stream": False}
    prompt = json.loads(ask(server, "/v1/responses", body))["_debug_info"]["rendered_template"]
    assert "apply_patch" in prompt and "Done!" in prompt


def test_local_shell_calls_have_a_command(server):
    items, _ = output(ask(server, "/v1/responses", other_agent_s_request("List the files.", tools=[{"type": "local_shell"}], tool_choice={"type": "local_shell"}, max_output_tokens=60)))
    calls = [item for item in items if item["type"] == "local_shell_call"]
    for call in calls:
        assert call["action"]["type"] == "exec" and isinstance(call["action"]["command"], list)
    call = {"type": "local_shell_call", "call_id": "c1", "status": "completed", "action": {"type": "exec", "command": ["ls", "-l"], "timeout_ms": 1000, "working_directory": None, "env": {}}}
    said = {"type": "local_shell_call_output", "call_id": "c1", "output": "a.txt"}
    body = other_agent_s_request(tools=[{"type": "local_shell"}], stream=False, _debug_render_only=True)
    prompt = json.loads(ask(server, "/v1/responses", {**body, "input": [*body["input"], call, said]}))["_debug_info"]["rendered_template"]
    assert '"ls"' in prompt and "a.txt" in prompt


def test_reasoning_items_can_be_sent_back(server):
    body = other_agent_s_request("What is the capital of France?", tools=[], reasoning={"effort": "low", "summary": "auto"})
    items, _ = output(ask(server, "/v1/responses", body))
    assert [item["type"] for item in items] == ["reasoning", "message"] and items[0]["encrypted_content"]
    more = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "And of Italy?"}]}
    items, _ = output(ask(server, "/v1/responses", {**body, "input": [*body["input"], *items, more]}))
    assert items[-1]["type"] == "message"


def test_items_can_be_referenced_by_id(server):
    base = {"model": "cria", "temperature": 0, "reasoning": {"effort": "none"}}
    first = json.loads(ask(server, "/v1/responses", {**base, "input": "My name is Rosa."}))
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    second = [{"role": "user", "content": "My name is Rosa."}, reference, {"role": "user", "content": "What is my name?"}]
    answer = json.loads(ask(server, "/v1/responses", {**base, "input": second}))
    assert "Rosa" in answer["output"][-1]["content"][0]["text"]
    status, answer = server.post("/v1/responses", {**base, "input": [{"type": "item_reference", "id": "msg_nothing"}]})
    assert status == 400 and "msg_nothing" in answer["error"]["message"]


def test_input_tokens_of_a_response_are_counted(server):
    body = {"model": "cria", "input": "What is the capital of France?", "instructions": "Be brief.", "reasoning": {"effort": "none"}}
    counted = json.loads(ask(server, "/v1/responses/input_tokens", body))
    answered = json.loads(ask(server, "/v1/responses", {**body, "max_output_tokens": 1}))
    assert counted == {"object": "response.input_tokens", "input_tokens": answered["usage"]["input_tokens"]}


# Editors ----------------------------------------------------------------------------------------------------------------


def test_an_editor_lists_models_and_their_capabilities(server):
    status, version = server.post("/api/show", {"model": "cria:latest"}, headers={"User-Agent": "GitHubCopilotChat/0.30.0"})
    assert status == 200
    architecture = version["model_info"]["general.architecture"]
    assert version["model_info"]["general.basename"] == "cria:latest" and version["model_info"][f"{architecture}.context_length"] > 0
    assert {"completion", "tools"} <= set(version["capabilities"])
    number = json.loads(server.get("/api/version")[1])["version"]
    assert tuple(map(int, number.split(".")[:3])) >= (0, 6, 4)
    tags = json.loads(server.get("/api/tags")[1])["models"]
    assert all(key in model for model in tags for key in ("name", "model", "modified_at", "size", "digest", "details"))


def test_an_editor_chats_through_the_openai_api(server):
    body = {
        "model": "cria:latest", "stream": True, "n": 1, "temperature": 0, "top_p": 1, "max_tokens": 4096, "intent": True, "reasoning_effort": "none",
        "tools": [{"type": "function", "function": {"name": "get_weather", "description": "Get the weather in a city", "parameters": CITY}}], "tool_choice": "auto",
        "messages": [
            {"role": "system", "content": "You are an assistant.", "copilot_cache_control": {"type": "ephemeral"}},
            {"role": "user", "content": [{"type": "text", "text": "What's the weather like in Cairo?"}]},
        ],
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    got = [data for _, data in events(ask(server, "/v1/chat/completions", body))]
    calls = [call for data in got for choice in data["choices"] for call in choice["delta"].get("tool_calls", [])]
    assert calls[0]["index"] == 0 and calls[0]["id"] and json.loads("".join(call["function"]["arguments"] for call in calls)) == {"city": "Cairo"}
    assert got[-1]["choices"] == [] and got[-1]["usage"]["prompt_tokens"] > 0


def test_an_editor_chats_through_the_native_api(server):
    tools = [{"type": "function", "function": {"name": "get_weather", "description": "Get the weather in a city", "parameters": CITY}}]
    body = {
        "model": "cria:latest", "stream": True, "keep_alive": -1, "think": False, "tools": tools,
        "options": {"num_ctx": 2048, "num_predict": None, "stop": [], "temperature": 0.0, "top_p": None},
        "messages": [
            {"role": "user", "content": "What's the weather like in Cairo?", "images": None},
            {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "function": {"name": "get_weather", "arguments": {"city": "Cairo"}}}], "images": None, "thinking": None},
            {"role": "tool", "tool_name": "get_weather", "content": "12 degrees, cloudy"},
        ],
    }  # fmt: skip
    status, lines = server.post("/api/chat", body)
    assert status == 200 and "12" in "".join(line["message"]["content"] for line in lines)
    server.post("/api/generate", {"model": "cria", "keep_alive": "5m"})


def test_an_editor_completes_code(server):
    options = {"temperature": 0.01, "num_predict": 8, "stop": ["<fim_prefix>", "\n\n"], "num_ctx": 2048, "mirostat": 0, "num_thread": None, "use_mmap": True, "repeat_penalty": 1}
    body = {"model": "cria", "prompt": "def add(a, b):\n    ", "raw": True, "stream": True, "keep_alive": 1800, "options": options}
    status, lines = server.post("/api/generate", body)
    assert status == 200 and lines[-1]["done"]
    status, answer = server.post("/v1/completions", {"model": "cria", "prompt": "def add(a, b):\n", "suffix": "\n    return c", "max_tokens": 8, "stop": ["\n\n"]})
    assert status == 200 and answer["usage"]["completion_tokens"] > 0


# Chat fronts ------------------------------------------------------------------------------------------------------------


def test_a_chat_front_end_queries_the_server_and_chats(server):
    headers = {"X-OpenWebUI-User-Name": "Rosa", "X-OpenWebUI-Chat-Id": "1", "Authorization": "Bearer "}
    assert server.send("GET", "/api/tags", headers=headers)[0] == server.send("GET", "/api/ps", headers=headers)[0] == 200
    assert server.send("GET", "/api/version", headers=headers)[0] == server.send("GET", "/", headers=headers)[0] == 200
    body = {"model": "cria:latest", "messages": [{"role": "user", "content": "What is the capital of France?"}], "options": {"temperature": 0}, "stream": True, "metadata": {"chat_id": "1"}, "think": None, "format": None, "keep_alive": None}
    status, lines = server.post("/api/chat", body, headers=headers)
    assert status == 200 and "".join(line["message"]["content"] for line in lines) == "Paris." and lines[-1]["eval_duration"] > 0


def test_a_chat_front_end_unloads_a_model(server):
    status, answer = server.post("/api/generate", {"model": "cria:latest", "prompt": "", "keep_alive": 0})
    assert status == 200 and answer["done_reason"] == "unload"


@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions"])
def test_messages_without_content_are_empty(server, path):
    messages = [{"role": "user", "content": "Hello!"}, {"role": "assistant", "content": None}, {"role": "user", "content": "What is the capital of France?"}]
    body = {"model": "cria", "messages": messages, "stream": False, "options": {"temperature": 0, "num_predict": 3}, "max_tokens": 3}
    status, answer = server.post(path, body)
    assert status == 200, answer


# Clients of other open servers ------------------------------------------------------------------------------------------


def test_chat_template_variables_reach_the_template(fresh):
    # The template that stands in the file is the one that reads them.
    it = fresh(OLLAMA_GO_TEMPLATE="0")

    def prompt(**variables):
        body = {"model": "cria", "messages": [{"role": "user", "content": "Hi"}], "chat_template_kwargs": variables, "_debug_render_only": True}
        return json.loads(ask(it, "/v1/chat/completions", body))["_debug_info"]["rendered_template"]

    thinking, direct = prompt(enable_thinking=True), prompt(enable_thinking=False)
    assert thinking == direct + "<think>\n"
    assert direct == prompt(enable_thinking=False, add_generation_prompt=False) + "<|im_start|>assistant\n"
