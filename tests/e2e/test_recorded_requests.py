"""Recorded client requests (`tests/data/requests`), with only models and addresses replaced, and their expected
answers."""
import http.server
import json
import threading
import urllib.error
import urllib.request

import pytest

from conftest import REPOSITORY, Puna

DATA = REPOSITORY / "tests/data/requests"
CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/api/chat", "/v1/chat/completions", "/v1/responses", "/v1/messages"
# Route, and the keyword of the schema that is checked on the finished answer.
STRUCTURED = {
    "01-integer-runs-away": (CHAT, ""),
    "01b-integer-streamed": (CHAT, ""),
    "02a-pydantic-set": (CHAT, "uniqueItems"),
    "02b-pydantic-decimal": (CHAT, "pattern"),
    "02c-pydantic-ai-tool-set": (COMPLETIONS, "uniqueItems"),
    "02d-required-undeclared": (CHAT, ""),
    "1-propertyNames-anthropic": (MESSAGES, ""),
    "1-propertyNames-format": (CHAT, ""),
    "1-propertyNames-responses": (RESPONSES, ""),
    "1-propertyNames-tool": (COMPLETIONS, ""),
    "1-zod-json": (CHAT, ""),
    "4-zod-duration": (CHAT, "pattern"),
    "4-zod-hostname": (CHAT, "pattern"),
    "5-uniqueItems": (CHAT, "uniqueItems"),
    "10-not-empty": (CHAT, ""),
    "10-recursive-openapi": (CHAT, ""),
}


def of_client(name, **changes):
    return {**json.loads((DATA / "clients" / f"{name}.json").read_text()), **changes}


def of_servers(name):
    """(path, body) of each request in a file."""
    return [(one["path"], one["body"]) for one in json.loads((DATA / "servers" / f"{name}.json").read_text())]


def post(server, path, body):
    """(status, headers, text)"""
    request = urllib.request.Request(f"{server.url}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read().decode()


def json_of(path, text):
    """The JSON that a whole or streamed answer says: its text, or the arguments of its first call."""
    if path == CHAT:
        return "".join(json.loads(line)["message"]["content"] for line in text.splitlines())
    answer = json.loads(text)
    match path:
        case "/v1/chat/completions":
            message = answer["choices"][0]["message"]
            return message["tool_calls"][0]["function"]["arguments"] if "tool_calls" in message else message["content"]
        case "/v1/responses":
            return answer["output"][-1]["content"][0]["text"]
        case "/v1/messages":
            return answer["content"][-1]["text"]


@pytest.mark.parametrize("name", STRUCTURED)
def test_schemas_of_clients_are_accepted_and_their_answers_parse(server, name):
    path, keyword = STRUCTURED[name]
    body = of_client(name, model="cria")
    # The shortest answer has more tokens with the vocabulary of this model.
    if "num_predict" in body.get("options", {}):
        body["options"]["num_predict"] = 100
    if "max_tokens" in body:
        body["max_tokens"] = 200
    status, headers, text = post(server, path, body)
    assert status == 200, text
    json.loads(json_of(path, text))
    unenforced = headers.get("x-puna-schema-unenforced", "")
    assert unenforced.startswith(f"{keyword} at ") if keyword else not unenforced, unenforced


def test_required_and_named_calls_are_not_repeated(server):
    calls_of = lambda text: json.loads(text)["choices"][0]["message"]["tool_calls"]
    status, _, text = post(server, COMPLETIONS, of_client("06-required-many-calls", model="cria"))
    assert status == 200, text
    arguments = [call["function"]["arguments"] for call in calls_of(text)]
    assert 1 <= len(arguments) <= 8 and len(set(arguments)) == len(arguments), arguments
    status, _, text = post(server, COMPLETIONS, of_client("06b-named-no-limit", model="cria"))
    assert status == 200, text
    [call] = calls_of(text)
    assert set(json.loads(call["function"]["arguments"])) == {"age", "name"}


class Upstream(http.server.BaseHTTPRequestHandler):
    """A server of OpenAI's dialect that records its requests and says `ok`."""

    protocol_version = "HTTP/1.1"
    seen = []

    def log_message(self, *_):
        pass

    def do_POST(self):
        type(self).seen.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        chunk = lambda delta, finish=None: {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
        chunks = [chunk({"role": "assistant", "content": "ok"}), chunk({}, "stop")]
        data = "".join(f"data: {json.dumps(one)}\n\n" for one in chunks) + "data: [DONE]\n\n"
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data.encode())


@pytest.fixture(scope="module")
def remote():
    """A server with the remote models of the requests."""
    upstream = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    threading.Thread(target=upstream.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{upstream.server_port}"
    server = Puna(PUNA_REMOTES=url)
    cold = {"from": "big", "remote_host": f"{url}/v1", "parameters": {"temperature": 0.2}, "stream": False}
    for body in [of_client("04-create-remote", remote_host=f"{url}/v1"), {"model": "cold", **cold}, {"model": "rem2", **cold}]:
        status, answer = server.post("/api/create", body)
        assert status == 200, answer
    yield server
    server.stop()
    upstream.shutdown()


def sent(server, path, body):
    """What the other server is asked."""
    before = len(Upstream.seen)
    status, _, text = post(server, path, body)
    assert status == 200, text
    [request] = Upstream.seen[before:]
    return request


def test_a_remote_model_gets_the_temperature_of_its_modelfile_and_no_other_default(remote):
    [(path, body)] = of_servers("09-remote-defaults")
    for path, body in [(path, body), (COMPLETIONS, of_client("03-chat-completions-no-temperature"))]:
        request = sent(remote, path, body)
        assert request["temperature"] == 0.2
        assert not {"top_p", "top_k", "seed", "max_tokens", "presence_penalty", "frequency_penalty"} & set(request), request


def test_a_remote_model_is_shown_with_the_model_info_of_its_modelfile(remote):
    status, shown = remote.post("/api/show", of_client("04-show"))
    assert status == 200, shown
    info = shown["model_info"]
    assert (info["general.architecture"], info["qwen3.context_length"], info["qwen3.embedding_length"]) == ("qwen3", 131072, 1024)


def test_the_name_and_strictness_of_a_schema_are_forwarded(remote):
    schema = sent(remote, COMPLETIONS, of_client("05-strict-false"))["response_format"]["json_schema"]
    assert (schema["name"], schema["strict"]) == ("mine", False)


@pytest.mark.parametrize("name, path", [("07a-allowed-tools-chat", COMPLETIONS), ("07b-allowed-tools-responses", RESPONSES)])
def test_only_allowed_tools_are_offered(remote, name, path):
    tools = sent(remote, path, of_client(name))["tools"]
    assert [tool["function"]["name"] for tool in tools] == ["add"]


def test_adjacent_messages_of_one_role_are_joined_for_remote_servers(remote):
    roles = [message["role"] for message in sent(remote, CHAT, of_client("11-assistants-in-a-row"))["messages"]]
    assert not any(one == next != "tool" for one, next in zip(roles, roles[1:])), roles
    assert roles[0] == "user" and roles.count("tool") == 2, roles


def test_a_prompt_that_is_too_long_is_an_error_that_clients_recognise(server):
    for path, body in of_servers("10-context-error"):
        status, _, text = post(server, path, body)
        assert status == 400, text
        answer = json.loads(text)
        error = answer if path == CHAT else answer["error"]
        assert error["n_prompt_tokens"] > error["n_ctx"] > 0, error
        # The native dialect has no codes.
        assert path == CHAT or error["code"] == "context_length_exceeded", error


def test_arguments_of_earlier_calls_may_be_any_text(server):
    requests = of_servers("11-history-of-calls")
    adapted = []
    for path, body in requests:
        status, headers, text = post(server, path, body)
        assert status == 200, text
        adapted.append("repaired" in headers.get("x-puna-adapted", ""))
    assert adapted == [False, False, False, True], "only what is no JSON is kept as text"


def test_allowed_and_custom_tools_of_chat_completions_are_accepted(server):
    for path, body in of_servers("12-allowed-tools"):
        status, headers, text = post(server, path, body)
        assert status == 200, text
        assert headers.get("x-puna-ignored") is None
        assert json.loads(text)["choices"][0]["finish_reason"] in ("stop", "length", "tool_calls")
