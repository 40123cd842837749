"""Remote models: two Puna servers in both protocols and a stand-in for vLLM's server, driven by three client
libraries."""
import contextlib
import datetime
import http.server
import json
import threading
import time

import anthropic
import httpx
import ollama
import openai
import pytest

from conftest import Puna, free_port

KEY = "sk-upstream-6f1d2c"
HOSTILE = "\x1b]0;PWNED\x07\u009b31m \u202ekey: " + KEY[:5] + "\x1b" + KEY[5:]
CALL = {"name": "weather", "arguments": '{"city": "Oslo"}'}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]


class Vllm(http.server.BaseHTTPRequestHandler):
    """What vLLM's documentation and answers have: a first delta with the role alone, thoughts as `reasoning_content`, calls in pieces
    with the id once, a chunk of usage without choices, `stop_reason`, errors as `{"error": {...}}`."""

    protocol_version = "HTTP/1.1"
    seen, behaviour, cancelled = [], "answer", threading.Event()
    listed = 0

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).seen.append((self.path, dict(self.headers), body))
        if self.headers.get("Authorization") != f"Bearer {KEY}":
            return self.whole(401, {"error": "Unauthorized"})
        answer = getattr(self, type(self).behaviour)
        if self.path == "/v1/embeddings":
            data = [{"object": "embedding", "index": i, "embedding": [float(len(text)), 0.0]} for i, text in enumerate(body["input"])]
            return self.whole(200, {"object": "list", "data": data[::-1], "model": body["model"], "usage": {"prompt_tokens": 7, "total_tokens": 7}})
        answer(body)

    def do_GET(self):
        if self.headers.get("Authorization") != f"Bearer {KEY}":
            return self.whole(401, {"error": "Unauthorized"})
        type(self).listed += 1
        self.whole(200, {"object": "list", "data": [{"id": "org/Big-8B", "object": "model", "max_model_len": 40960}]})

    def whole(self, status, body, **headers):
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def begin(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def data(self, text):
        data = f"data: {text}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def chunk(self, delta=None, finish=None, **more):
        choices = [] if delta is None else [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, **more}]
        self.data(json.dumps({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "big", "choices": choices}))

    def usage(self, completion):
        usage = {"prompt_tokens": 11, "total_tokens": 11 + completion, "completion_tokens": completion, "prompt_tokens_details": {"cached_tokens": 4}}
        self.data(json.dumps({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "big", "choices": [], "usage": usage}))
        self.data("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def answer(self, body):
        self.begin()
        self.chunk({"role": "assistant", "content": ""})
        if body.get("tools"):
            self.chunk({"tool_calls": [{"index": 0, "id": "chatcmpl-tool-9", "type": "function", "function": {"name": CALL["name"]}}]})
            for at in range(0, len(CALL["arguments"]), 5):
                self.chunk({"tool_calls": [{"index": 0, "function": {"arguments": CALL["arguments"][at : at + 5]}}]})
            self.chunk({"content": ""}, "tool_calls", stop_reason=None)
        elif body.get("response_format"):
            self.chunk({"content": '{"n": 1}'})
            self.chunk({"content": ""}, "stop")
        else:
            self.chunk({"reasoning_content": "Let me "})
            self.chunk({"reasoning_content": "see."})
            for text in ["Hello", ", ", "world"]:
                self.chunk({"content": text})
            self.chunk({"content": ""}, "stop", stop_reason=None)
        self.usage(9)

    def cut(self, _):
        self.begin()
        self.chunk({"role": "assistant", "content": "Hel"})
        self.close_connection = True

    def garbage(self, _):
        self.begin()
        self.data("{not json")
        self.wfile.write(b"0\r\n\r\n")

    def fails_late(self, _):
        self.begin()
        self.chunk({"role": "assistant", "content": "Hel"})
        self.data(json.dumps({"error": {"message": "EngineDeadError", "type": "InternalServerError", "code": 500}}))
        self.wfile.write(b"0\r\n\r\n")

    def hostile(self, _):
        self.whole(500, {"error": {"message": HOSTILE}})

    def hostile_late(self, _):
        self.begin()
        self.chunk({"role": "assistant", "content": "Hel"})
        self.data(json.dumps({"error": {"message": HOSTILE}}))
        self.wfile.write(b"0\r\n\r\n")

    def busy(self, _):
        self.whole(429, {"error": {"message": f"slow down, {KEY}", "type": "rate_limit_error"}}, Retry_After="17")

    def elsewhere(self, _):
        self.whole(307, {}, Location=f"http://127.0.0.1:{free_port()}/v1/chat/completions")

    def endless(self, _):
        self.begin()
        with contextlib.suppress(OSError):
            for _ in range(2000):
                self.chunk({"content": "more "})
                time.sleep(0.01)
        type(self).cancelled.set()
        self.close_connection = True


@pytest.fixture(scope="module")
def vllm():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Vllm)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture(scope="module")
def far():
    server = Puna()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def near(vllm, far):
    """The server that is asked; its models are on the others."""
    away = f"127.0.0.1:{free_port()}"
    server = Puna(PUNA_REMOTES=f"{far.url},{away}", PUNA_REMOTE_KEYS=f"{vllm}={KEY}", OLLAMA_DEBUG=1)
    recipes = {
        "big": f"FROM {vllm}/v1/org/Big-8B\nSYSTEM Be kind.\nPARAMETER temperature 0.5\n",
        "native": f"FROM {far.url}/api/cria\n",
        "openai": f"FROM {far.url}/v1/cria\n",
        "pair": f"FROM http://{away}/v1/cria\nFROM {far.url}/v1/cria\n",
        "nowhere": f"FROM http://{away}/v1/cria\n",
    }
    for name, recipe in recipes.items():
        server.cli("create", name, "-f", "-", input=recipe, check=True)
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def fresh():
    Vllm.behaviour = "answer"
    Vllm.seen.clear()
    Vllm.cancelled.clear()
    yield


def chat(server, model, text="Say hello.", **more):
    # Enough for thoughts, too.
    options = {"temperature": 0, "num_predict": 300}
    return server.post("/api/chat", {"model": model, "stream": False, "messages": [{"role": "user", "content": text}], "options": options, **more})


def test_clients_of_three_dialects_use_one_remote_model(near):
    said = ollama.Client(host=near.url).chat(model="big", messages=[{"role": "user", "content": "Hi"}], stream=True)
    parts = list(said)
    assert "".join(p.message.content or "" for p in parts) == "Hello, world"
    assert "".join(p.message.thinking or "" for p in parts) == "Let me see."
    assert parts[-1].done_reason == "stop" and (parts[-1].prompt_eval_count, parts[-1].eval_count) == (11, 9)

    whole = openai.OpenAI(base_url=f"{near.url}/v1", api_key="x").chat.completions.create(model="big", messages=[{"role": "user", "content": "Hi"}])
    assert whole.choices[0].message.content == "Hello, world" and whole.usage.completion_tokens == 9

    message = anthropic.Anthropic(base_url=near.url, api_key="x").messages.create(model="big", max_tokens=50, messages=[{"role": "user", "content": "Hi"}])
    assert [block.text for block in message.content if block.type == "text"] == ["Hello, world"]

    path, headers, body = Vllm.seen[0]
    assert path == "/v1/chat/completions" and body["model"] == "org/Big-8B" and body["stream"]
    assert body["messages"] == [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
    # What nobody said is the other server's to choose.
    assert body["temperature"] == 0.5 and not {"top_p", "top_k", "seed", "max_tokens", "stop"} & set(body)
    assert Vllm.seen[2][2]["max_tokens"] == 50


def test_context_windows_of_remote_models_are_those_of_their_servers(near, far):
    far.cli("create", "narrow", "-f", "-", input="FROM cria\nPARAMETER num_ctx 700\n", check=True)
    near.cli("create", "narrow", "-f", "-", input=f"FROM {far.url}/api/narrow\n", check=True)
    near.cli("create", "narrower", "-f", "-", input=f"FROM {far.url}/api/cria\nPARAMETER num_ctx 600\n", check=True)
    models = {model["id"].removesuffix(":latest"): model for model in json.loads(near.get("/v1/models")[1])["data"]}
    expected = {"big": 40960, "native": 2048, "openai": 2048, "pair": 2048, "nowhere": None, "narrow": 700, "narrower": 600, "cria": 2048}
    assert {name: models[name].get("context_length") for name in expected} == expected
    assert models["native"]["meta"]["n_ctx_train"] == 2048
    times = Vllm.listed
    near.get("/v1/models/big")
    assert Vllm.listed == times, "an answer is kept for some minutes"


def test_a_remote_model_is_shown_with_the_details_of_its_server(near):
    info = near.post("/api/show", {"model": "native"})[1]["model_info"]
    assert info["general.architecture"] == "llama"
    assert info["llama.context_length"] == 2048 and info["llama.embedding_length"] > 0
    assert near.post("/api/show", {"model": "nowhere"})[1]["model_info"] == {}


def test_request_loops_between_servers_end(vllm):
    port = free_port()
    server = Puna(PUNA_REMOTES=f"127.0.0.1:{port}")
    server.stop()
    server.port = port
    server.env |= {"OLLAMA_HOST": f"127.0.0.1:{port}"}
    server.start()
    server.cli("create", "self", "-f", "-", input=f"FROM {server.url}/api/self\n", check=True)
    begun = time.monotonic()
    models = json.loads(server.get("/v1/models")[1])["data"]
    assert {model["id"] for model in models} == {"self:latest", "cria:latest"} and time.monotonic() - begun < 10
    server.stop()


def test_tools_are_forwarded_in_both_directions(near):
    client = openai.OpenAI(base_url=f"{near.url}/v1", api_key="x")
    messages = [{"role": "user", "content": "Weather in Oslo?"}]
    pieces, name, call_id = "", None, None
    for chunk in client.chat.completions.create(model="big", messages=messages, tools=TOOLS, tool_choice="required", stream=True):
        for call in chunk.choices[0].delta.tool_calls or [] if chunk.choices else []:
            name, call_id = call.function.name or name, call.id or call_id
            pieces += call.function.arguments or ""
    assert (name, json.loads(pieces), call_id) == ("weather", {"city": "Oslo"}, "chatcmpl-tool-9")
    assert Vllm.seen[0][2]["tool_choice"] == "required" and Vllm.seen[0][2]["tools"] == TOOLS
    status, body = chat(near, "big", tools=TOOLS)
    call = body["message"]["tool_calls"][0]
    assert call["function"]["arguments"] == {"city": "Oslo"}
    # Ollama's clients answer without the call's id.
    history = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Oslo"}}}]}, {"role": "tool", "tool_name": "weather", "content": "rain"}]
    assert near.post("/api/chat", {"model": "big", "messages": history, "stream": False})[0] == 200
    sent = Vllm.seen[-1][2]["messages"]
    assert sent[-1]["tool_call_id"] == sent[-2]["tool_calls"][0]["id"] and json.loads(sent[-2]["tool_calls"][0]["function"]["arguments"]) == {"city": "Oslo"}


def test_schemas_images_thinking_and_embeddings_are_forwarded(near):
    pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    message = {"role": "user", "content": "Look.", "images": [pixel]}
    status, body = near.post("/api/chat", {"model": "big", "messages": [message], "stream": False, "format": schema, "think": "low"})
    assert status == 200 and json.loads(body["message"]["content"]) == {"n": 1}, body
    sent = Vllm.seen[0][2]
    assert sent["response_format"]["json_schema"]["schema"] == schema and sent["reasoning_effort"] == "low"
    assert sent["messages"][-1]["content"][1]["image_url"]["url"] == f"data:image/png;base64,{pixel}"
    vectors = openai.OpenAI(base_url=f"{near.url}/v1", api_key="x").embeddings.create(model="big", input=["a", "bcd"], encoding_format="float")
    assert len(vectors.data) == 2 and vectors.usage.prompt_tokens == 7 and Vllm.seen[1][2]["input"] == ["a", "bcd"]


@pytest.mark.parametrize("model", ["native", "openai", "pair"])
def test_a_remote_puna_gives_the_same_answers_as_a_direct_request(near, far, model):
    here, there = chat(near, model), chat(far, "cria")
    said = lambda answer: [answer[1]["message"].get(part, "") for part in ("thinking", "content")]
    assert here[0] == 200 and said(here) == said(there) != ["", ""]
    assert (here[1]["prompt_eval_count"], here[1]["eval_count"], here[1]["done_reason"]) == (there[1]["prompt_eval_count"], there[1]["eval_count"], there[1]["done_reason"])
    here, there = chat(near, model, think=False), chat(far, "cria", think=False)
    assert said(here) == said(there) and not here[1]["message"].get("thinking")
    status, lines = near.post("/api/generate", {"model": model, "prompt": "Say hello.", "options": {"temperature": 0, "num_predict": 300}})
    assert status == 200 and "".join(line.get("thinking", "") + line["response"] for line in lines) and lines[-1]["done"]
    status, body = chat(near, model, format={"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]})
    assert isinstance(json.loads(body["message"]["content"])["a"], bool)


def test_supported_fields_are_forwarded_and_the_others_are_named(near, far):
    def ask(model, **more):
        body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "stream": False, "options": {"num_predict": 1, "num_ctx": 512}, **more}
        answer = httpx.post(f"{near.url}/api/chat", json=body, timeout=120)
        assert answer.status_code == 200, answer.text
        return answer.headers.get("x-puna-ignored", "")

    assert ask("native", keep_alive="42m", truncate=True, shift=True) == ""
    (loaded,) = httpx.get(f"{far.url}/api/ps").json()["models"]
    left = datetime.datetime.fromisoformat(loaded["expires_at"][:19]) - datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
    assert 40 * 60 < left.total_seconds() <= 42 * 60 and loaded["context_length"] <= 512, loaded
    assert ask("big", keep_alive="42m", shift=True) == "keep_alive, shift, options.num_ctx"
    (_, _, body) = Vllm.seen[-1]
    assert body["max_tokens"] == 1 and not body.keys() & {"keep_alive", "shift", "num_ctx", "options"}


def test_run_uses_a_remote_model_without_a_description(near, far):
    there = near.cli("run", "openai", "-p", "temperature=0", "--think=false", "Say hello.", check=True).stdout
    assert there.strip()
    assert near.cli("run", "big", "Hi", check=True).stdout.strip().endswith("Hello, world")


@pytest.mark.parametrize("model", ["u:SECRET@", "x?key=SECRET", "../x"])
def test_invalid_addresses_are_refused_without_showing_their_secrets(near, vllm, model):
    address = vllm.replace("//", f"//{model}") + "/v1/x" if "@" in model else f"{vllm}/v1/{model}"
    done = near.cli("create", "odd", "-f", "-", input=f"FROM {address}\n")
    assert done.returncode == 1 and "https://host:8000/v1" in done.stderr, done
    assert "@" not in model or "SECRET" not in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("behaviour", "status", "says"),
    [
        ("cut", 502, "the connection to the remote server failed"),
        ("garbage", 502, "invalid response from the remote server"),
        ("fails_late", 502, "EngineDeadError"),
        ("busy", 429, "slow down"),
        ("elsewhere", 502, "redirects to"),
    ],
)
def test_errors_of_a_remote_server_are_reported_without_the_key(near, behaviour, status, says):
    Vllm.behaviour = behaviour
    answer = httpx.post(f"{near.url}/v1/chat/completions", json={"model": "big", "messages": [{"role": "user", "content": "Hi"}]})
    assert (answer.status_code, says in answer.text) == (status, True), answer.text
    assert KEY not in answer.text
    assert answer.headers.get("retry-after") == ("17" if behaviour == "busy" else None)
    assert len(Vllm.seen) == 1


@pytest.mark.parametrize("behaviour", ["hostile", "hostile_late"])
def test_errors_of_a_remote_server_have_no_control_characters(near, behaviour):
    Vllm.behaviour = behaviour
    answer = httpx.post(f"{near.url}/v1/chat/completions", json={"model": "big", "messages": [{"role": "user", "content": "Hi"}]})
    message = answer.json()["error"]["message"]
    assert answer.status_code == 502 and "]0;PWNED31m key: " in message, message
    assert message.isprintable() and KEY not in message, message


@pytest.mark.parametrize("path", ["/a/../../b/v1", "/a/%2e%2E/v1", "/./v1", "/x#/v1", "/v1#", "/v1?x", "/a\\..\\v1"])
def test_addresses_with_dot_segments_fragments_or_queries_are_refused(near, vllm, path):
    body = {"model": "odd", "from": "x", "remote_host": vllm + path, "stream": False}
    answer = httpx.post(f"{near.url}/api/create", json=body)
    assert answer.status_code == 400 and "without a query, a fragment (#) or the path segments" in answer.text, answer.text
    assert "odd" not in near.cli("list", check=True).stdout


def test_a_disconnected_client_ends_the_remote_request(near):
    Vllm.behaviour = "endless"
    with httpx.stream("POST", f"{near.url}/api/chat", json={"model": "big", "messages": [{"role": "user", "content": "Hi"}]}) as answer:
        next(answer.iter_lines())
    assert Vllm.cancelled.wait(5)


def test_unreachable_and_disallowed_servers_are_errors(near, far):
    status, body = chat(near, "nowhere")
    assert status == 502 and "cannot reach any remote server" in body["error"]
    done = near.cli("create", "evil", "-f", "-", input="FROM https://evil.example/v1/m\n")
    assert done.returncode == 1 and "is not allowed" in done.stderr, done.stderr


def test_a_model_that_refers_back_to_its_server_is_an_error():
    one, two = Puna(PUNA_REMOTES="127.0.0.1"), Puna(PUNA_REMOTES="127.0.0.1")
    try:
        for server, to in [(one, two), (two, one)]:
            server.cli("create", "ring", "-f", "-", input=f"FROM {to.url}/api/ring\n", check=True)
        one.cli("create", "self", "-f", "-", input=f"FROM {one.url}/v1/self\n", check=True)
        for model in ["ring", "self"]:
            status, body = chat(one, model)
            assert status == 508 and "forwards back to this server" in body["error"], body
        assert two.log.read_text().count("POST /api/chat") == 1
    finally:
        one.stop(), two.stop()


def test_listings_show_the_remote_host_and_no_key(near, vllm):
    listed = {m["name"]: m for m in json.loads(near.get("/api/tags")[1])["models"]}
    entry = listed["big:latest"]
    assert (entry["remote_model"], entry["remote_host"]) == ("org/Big-8B", f"{vllm}/v1")
    shown = near.post("/api/show", {"model": "big"})[1]
    assert f"FROM {vllm}/v1/org/Big-8B" in shown["modelfile"] and shown["remote_model"] == "org/Big-8B"
    near.cli("cp", "big", "big2", check=True)
    assert chat(near, "big2")[1]["message"]["content"] == "Hello, world"
    again = near.cli("show", "big2", "--modelfile", check=True).stdout
    near.cli("create", "big3", "-f", "-", input=again, check=True)
    assert chat(near, "big3")[1]["message"]["content"] == "Hello, world"
    near.cli("rm", "big2", check=True)
    rows = [" ".join(line.split()) for line in near.cli("show", "big", check=True).stdout.splitlines()]
    assert "Remote model org/Big-8B" in rows and f"Remote URL {vllm}/v1" in rows, rows
    [row] = [line.split() for line in near.cli("list", "big:", check=True).stdout.splitlines()[1:]]
    assert (row[0], row[2]) == ("big:latest", "-"), row
    texts = [near.cli(*words).stdout for words in (["list"], ["ps"], ["show", "big"], ["config"])] + [near.log.read_text(), json.dumps(listed), json.dumps(shown)]
    stored = b"".join(path.read_bytes() for path in (near.home / ".ollama/models").rglob("*") if path.is_file())
    assert not any(KEY in text for text in texts) and KEY.encode() not in stored
