"""Runner processes: their lifetime, and the effect of a crash of runner or server on the other."""
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time

import pytest

from conftest import BINARY, DATA, Puna, alive, children, cpu_seconds, create, free_port, puna, wait_for

# An answer that does not end while a test looks: the end token is never drawn, a full context shifts, it does not repeat
# itself for long, and the limit of ten contexts is 20480 tokens away.
LONG = {
    "model": "cria",
    "raw": True,
    "prompt": "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,",
    "options": {"temperature": 1, "seed": 1, "ignore_eos": True, "num_predict": -1, "num_ctx": 2048},
}


def start_answer(server, body=LONG):
    """A streaming request on a raw socket, read up to its first line."""
    s = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    data = json.dumps(body).encode()
    s.sendall(b"POST /api/generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data))
    got = b""
    while b'"response"' not in got:
        block = s.recv(65536)
        assert block, got
        got += block
    return s, got


def read_all(s):
    got = b""
    while block := s.recv(65536):
        got += block
        if got.endswith(b"0\r\n\r\n"):
            break
    return got


def test_keep_alive_unloads_after_its_time(fresh):
    server = fresh(OLLAMA_KEEP_ALIVE="300ms")
    server.client().generate("cria", "Hello!")
    assert len(server.runners()) == 1
    assert wait_for(lambda: not server.runners() and not server.client().ps().models, 10), "still loaded"


def test_keep_alive_forever_never_unloads(fresh):
    server = fresh(OLLAMA_KEEP_ALIVE="100ms")
    server.client().generate("cria", "Hello!", keep_alive=-1)
    time.sleep(0.6)
    assert len(server.client().ps().models) == 1
    assert server.cli("stop", "cria").returncode == 0
    assert wait_for(lambda: not server.runners())


def test_a_killed_runner_gives_its_request_an_error_and_the_next_one_works(fresh):
    server = fresh()
    stream, _ = start_answer(server)
    [runner] = server.runners()
    os.kill(runner, signal.SIGKILL)
    rest = read_all(stream).decode()
    errors = [json.loads(line)["error"] for line in rest.splitlines() if line.startswith('{"error"')]
    assert len(errors) == 1, rest[-400:]
    assert "signal" in errors[0] or "killed" in errors[0], errors
    assert server.client().generate("cria", "What is the capital of France?", options={"temperature": 0}).response.strip() == "Paris."
    assert server.runners() != [runner]


LONG_CHAT = [{"role": "user", "content": LONG["prompt"]}]
LONG_OPTIONS = {**LONG["options"], "num_predict": 8000}
STREAMS = {
    "/api/generate": LONG,
    "/api/chat": {"messages": LONG_CHAT, "options": LONG_OPTIONS},
    "/v1/chat/completions": {"messages": LONG_CHAT, "options": LONG_OPTIONS},
    "/v1/completions": {"prompt": LONG["prompt"], "options": LONG_OPTIONS},
    "/v1/responses": {"input": LONG["prompt"], "options": LONG_OPTIONS},
    "/v1/messages": {"messages": LONG_CHAT, "max_tokens": 8000, "options": LONG_OPTIONS},
}


@pytest.mark.parametrize("path", STREAMS)
def test_an_interrupted_stream_has_an_error_and_an_end_in_its_dialect(broken, path):
    rest = broken(path)
    if path.startswith("/api"):
        last = json.loads(rest.splitlines()[-1])
        assert "error" in last, rest[-400:]
        return
    events = [block for block in rest.split("\n\n") if block]
    data = [json.loads(line[6:]) for line in rest.splitlines() if line.startswith("data: {")]
    if path == "/v1/responses":
        assert data[-1]["type"] == "response.failed" and data[-1]["response"]["error"]["message"], events[-2:]
    elif path == "/v1/messages":
        assert data[-1]["type"] == "error" and data[-1]["error"]["message"], events[-2:]
    else:
        assert events[-1] == "data: [DONE]" and data[-1]["error"]["message"], events[-2:]


@pytest.fixture
def broken(fresh):
    """The stream of a request whose runner is killed in the middle."""
    server = fresh()

    def stream(path):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.request("POST", path, json.dumps({"model": "cria", "stream": True, **STREAMS[path]}))
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        got = b"".join(answer.read1() for _ in range(8))
        [runner] = server.runners()
        os.kill(runner, signal.SIGKILL)
        return (got + answer.read()).decode()

    return stream


@pytest.mark.parametrize("then", ["goes on", "is killed", "is left"])
def test_a_suspended_runner_does_not_delay_other_models(fresh, then):
    server = fresh()
    create(server, "other", DATA / "zoo/bert-mean.gguf")
    stream, _ = start_answer(server)
    [runner] = server.runners()
    os.kill(runner, signal.SIGSTOP)
    try:
        # What it had sent before is read; then nothing comes.
        stream.settimeout(1)
        with pytest.raises(TimeoutError):
            while stream.recv(65536):
                pass
        assert len(server.client().embed("other", "Hello!").embeddings) == 1
        assert len(server.runners()) == 2 and {m.model for m in server.client().ps().models} == {"cria:latest", "other:latest"}
        stream.settimeout(30)
        if then == "goes on":
            os.kill(runner, signal.SIGCONT)
            assert b'"response"' in stream.recv(65536)
            stream.close()
        elif then == "is killed":
            os.kill(runner, signal.SIGKILL)
            assert b'{"error"' in read_all(stream)
        else:
            # Whoever unloads it needs no answer from it.
            stream.close()
            assert server.cli("stop", "cria").returncode == 0
            assert wait_for(lambda: not alive(runner), 10), "a stopped runner is never unloaded"
        assert server.client().generate("cria", "What is the capital of Japan?", options={"temperature": 0}).response.strip() == "Tokyo."
        assert (runner in server.runners()) == (then == "goes on")
    finally:
        if alive(runner):
            os.kill(runner, signal.SIGCONT)
    assert server.stop() == 0


def test_a_runner_killed_while_idle_is_replaced(fresh):
    server = fresh()
    server.client().generate("cria", "Hello!")
    [runner] = server.runners()
    os.kill(runner, signal.SIGKILL)
    assert server.client().generate("cria", "What is the capital of France?", options={"temperature": 0}).response.strip() == "Paris."


def test_a_disconnected_client_stops_its_generation(fresh):
    server = fresh()
    stream, got = start_answer(server)
    [runner] = server.runners()
    seen = got.count(b'"response"')
    while seen < 200:
        block = stream.recv(65536)
        assert block, "the answer must be going on for this test to mean anything"
        assert b'"done":true' not in block, block
        seen += block.count(b'"response"')
    before = cpu_seconds(runner)
    assert wait_for(lambda: cpu_seconds(runner) > before, 10), "the answer must be going on for this test to mean anything"
    stream.close()

    def rests():
        used = cpu_seconds(runner)
        time.sleep(0.5)
        return cpu_seconds(runner) - used < 0.1

    assert wait_for(rests, 10), "the runner still computes for nobody"
    assert server.client().generate("cria", "Hello!").done


def test_each_request_is_logged_without_its_content(fresh):
    server = fresh(NO_COLOR="1")
    key = server.cli("key", "add", "laptop", check=True).stdout.split()[-1]
    assert wait_for(lambda: server.send("POST", "/api/chat", {})[0] == 401)
    ask = {"model": "cria", "messages": [{"role": "user", "content": "a secret word"}], "stream": False}
    status, _ = server.send("POST", "/api/chat", ask, {"Authorization": f"Bearer {key}", "X-Request-Id": "mine"})
    assert status == 200
    server.send("GET", "/health")
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", "/api/generate", json.dumps(LONG), {"x-api-key": key, "X-Request-Id": "given-up"})
    connection.getresponse().read1()
    connection.close()

    def line(word):
        return next((line for line in server.log.read_text().splitlines() if word in line), "")

    assert wait_for(lambda: line("given-up")), server.log.read_text()
    answered, refused, left = line("id=\"mine\""), line("status=401"), line("given-up")
    assert re.search(r"POST /api/chat status=200 ms=\d+ first_ms=\d+ bytes=\d+ client=127.0.0.1 key=\"laptop\"", answered), answered
    assert "left" not in answered and "left=true" in left and "status=200" in left, left
    assert "POST /api/chat" in refused and "key" not in refused.replace("puna", ""), refused
    assert not line("/health") and "secret" not in server.log.read_text() and key not in server.log.read_text()


def test_runners_end_when_the_server_is_killed(fresh):
    server = fresh()
    server.client().generate("cria", "Hello!")
    runners = server.runners()
    assert runners
    server.process.kill()
    server.process.wait()
    assert wait_for(lambda: not any(map(alive, runners)), 10), "a runner outlived its server"


def test_a_terminated_server_ends_cleanly(fresh):
    server = fresh()
    server.client().generate("cria", "Hello!")
    runners = server.runners()
    assert server.stop() == 0
    assert not any(map(alive, runners))


def test_a_server_terminated_at_any_moment_ends_cleanly(home):
    """Before the first connection, after one, with one; with nobody reading its log."""
    for moment in range(24):
        env = {**home, "OLLAMA_HOST": f"127.0.0.1:{free_port()}", "OLLAMA_DEBUG": "1"}
        server = subprocess.Popen([BINARY, "serve"], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        [server.stdout, server.stderr][moment % 2].close()
        connection = wait_for(lambda: connected(env))
        if moment % 3 == 1:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert connection.recv(12) == b"HTTP/1.1 200"
        elif moment % 3 == 2:
            connection.close()
        server.send_signal(signal.SIGTERM)
        text = b"" if moment % 2 else server.communicate(timeout=30)[1]
        assert server.wait(30) == 0, (moment, text.decode())
        connection.close()


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_server_terminated_twice_ends_at_once(fresh, second):
    server = fresh()
    stream, _ = start_answer(server)
    runners = server.runners()
    server.process.send_signal(signal.SIGTERM)
    assert wait_for(lambda: "shutting down; running requests" in server.log.read_text(), 10)
    server.process.send_signal(second)
    began = time.monotonic()
    assert server.process.wait(10) == 128 + second
    assert time.monotonic() - began < 2, "an answer was waited for"
    assert "second signal received; exiting now" in server.log.read_text()
    assert wait_for(lambda: not any(map(alive, runners)), 10), "a runner outlived its server"
    stream.close()


def test_the_exit_status_is_the_same_with_standard_error_closed(home):
    for args, status in ((["show", "no-such-model"], 1), (["no-such-command"], 2)):
        process = subprocess.Popen([BINARY, *args], env=home, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        process.stderr.close()
        assert process.wait(30) == status
        process.stdout.close()


def connected(env):
    host, _, port = env["OLLAMA_HOST"].partition(":")
    try:
        return socket.create_connection((host, int(port)), timeout=10)
    except OSError:
        return None


def test_requests_run_concurrently(fresh):
    server = fresh()
    server.client().generate("cria", "Hello!")
    questions = {"What is the capital of France?": "Paris.", "What is the capital of Japan?": "Tokyo.", "What is the capital of Peru?": "Lima.", "What is the capital of Kenya?": "Nairobi."}
    answers = {}

    def ask(question):
        answers[question] = server.client().generate("cria", question, options={"temperature": 0}).response.strip()

    threads = [threading.Thread(target=ask, args=(q,)) for q in questions]
    [t.start() for t in threads]
    [t.join(60) for t in threads]
    assert answers == questions
    assert len(server.runners()) == 1


def test_a_port_in_use_is_named(server):
    done = puna("serve", env=server.env, timeout=20)
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("Error: listen tcp"), done.stderr
    assert "address already in use" in done.stderr and "Puna" in done.stderr, done.stderr


def test_run_starts_a_server_where_none_listens(alone):
    done = puna("run", "cria", "--think=false", "What is the capital of France?", env=alone, check=True)
    assert done.stdout.strip() == "Paris."
    assert puna("ps", env=alone, check=True).stdout.splitlines()[1].startswith("cria")
