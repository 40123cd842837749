"""Hostile requests in every dialect: an error in the dialect's format within bounded time; the server keeps running."""
import contextlib
import copy
import http.client
import json
import re
import socket
import struct
import time

import pytest

from conftest import wait_for

CHAT = [{"role": "user", "content": "hi"}]
FEW = {"num_predict": 2}

# A small request of every route that takes one.
REQUESTS = {
    "/api/generate": {"model": "cria", "prompt": "hi", "stream": False, "options": FEW},
    "/api/chat": {"model": "cria", "messages": CHAT, "stream": False, "options": FEW, "tools": [], "think": False},
    "/api/embed": {"model": "cria", "input": ["hi"]},
    "/api/embeddings": {"model": "cria", "prompt": "hi"},
    "/api/show": {"model": "cria", "verbose": False},
    "/api/tokenize": {"model": "cria", "text": "hi"},
    "/api/detokenize": {"model": "cria", "tokens": [1, 2]},
    "/api/rerank": {"model": "cria", "query": "q", "documents": ["a", {"text": "b"}], "top_n": 1},
    "/v1/rerank": {"model": "cria", "query": "q", "documents": ["a", "b"], "return_documents": True},
    "/api/copy": {"source": "nobody", "destination": "x"},
    "/api/create": {"model": "x", "from": "cria", "stream": False, "parameters": {"seed": 1}},
    "/v1/chat/completions": {"model": "cria", "messages": CHAT, "max_tokens": 2, "temperature": 0.5, "stop": ["x"]},
    "/v1/completions": {"model": "cria", "prompt": "hi", "max_tokens": 2, "logprobs": 1},
    "/v1/responses": {"model": "cria", "input": "hi", "max_output_tokens": 2, "store": False},
    "/v1/embeddings": {"model": "cria", "input": "hi"},
    "/v1/messages": {"model": "cria", "messages": CHAT, "max_tokens": 2, "system": "s"},
    "/v1/messages/count_tokens": {"model": "cria", "messages": CHAT},
}
GENERATING = ["/api/generate", "/api/chat", "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"]


def has_form(path, body):
    """Whether an error is one that the clients of the route understand."""
    answer = json.loads(body)
    if path.startswith("/v1/messages"):
        error = answer["error"]
        return answer["type"] == "error" and isinstance(error["type"], str) and error["message"]
    if path.startswith("/v1/"):
        error = answer["error"]
        return isinstance(error["type"], str) and error["message"]
    return isinstance(answer["error"], str) and answer["error"]


class Wire:
    """Requests over one connection."""

    def __init__(self, server):
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)

    def ask(self, path, body, allowed):
        self.connection.request("POST", path, body)
        response = self.connection.getresponse()
        data = response.read()
        if path == "/api/create" and b"file does not exist" in data:
            # As Ollama says that there is no model of a name.
            assert response.status == 500
            return response.status, data
        assert response.status in allowed, (path, body[:300], response.status, data[:500])
        if response.status >= 400:
            assert has_form(path, data), (path, body[:300], data)
        else:
            data.decode()
        return response.status, data


@pytest.fixture(scope="module")
def wire(server):
    it = Wire(server)
    with contextlib.closing(it.connection):
        yield it
    assert "panicked" not in server.log.read_text()


def encoded(value):
    return json.dumps(value).encode()


@pytest.mark.parametrize("path", REQUESTS)
def test_truncated_json_is_refused_at_every_length(wire, path):
    whole = encoded(REQUESTS[path])
    for end in range(len(whole)):
        wire.ask(path, whole[:end], {400})


@pytest.mark.parametrize("path", REQUESTS)
@pytest.mark.parametrize("byte", [b"\0", b"\xff", b"\xc3", b"{", b'"', b"\\"])
def test_a_changed_byte_anywhere_is_an_error_or_text(wire, path, byte):
    whole = encoded(REQUESTS[path])
    for at in range(0, len(whole), 3):
        wire.ask(path, whole[:at] + byte + whole[at + 1 :], {200, 400, 404})


def places(value, path=()):
    """Where in a request there is a value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def put(value, path, other):
    if not path:
        return other
    changed = copy.deepcopy(value)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = other
    return changed


OTHERS = [None, True, -1, 2**31, 2**63, -(2**63), 2**64, 1e308, 0.5, "", "\0", "x" * 5000, [], {}, [[]], [None], [{}], {"": ""}, {"a": {"b": []}}]


@pytest.mark.parametrize("path", REQUESTS)
def test_values_of_other_types_are_accepted_or_refused(wire, path):
    for place in places(REQUESTS[path]):
        for other in OTHERS:
            body = put(REQUESTS[path], place, other)
            if isinstance(body, dict) and place and place[0] == "stream":
                continue
            wire.ask(path, encoded(body), {200, 400, 404})


NUMBERS = ["1e999", "-1e999", "1" * 400, "-" + "9" * 400, "1e-999", "-0", "0." + "0" * 400 + "1", "01", "0x10", "NaN", "Infinity", "+1", "1.", ".5", "1e", "--1"]


@pytest.mark.parametrize("path", GENERATING)
def test_extreme_numbers_are_refused_or_bounded(wire, path):
    whole = json.dumps(REQUESTS[path] | {"seed": 12321, "temperature": 12321, "max_tokens": 12321, "options": {"num_predict": 2, "seed": 12321}})
    whole = whole.replace('"max_tokens": 12321', '"max_tokens": 2') if path.startswith("/v1/") else whole
    for number in NUMBERS:
        wire.ask(path, whole.replace("12321", number).encode(), {200, 400})


@pytest.mark.parametrize("path", REQUESTS)
def test_deep_nesting_is_refused(wire, path):
    for opening, closing in (("[", "]"), ('{"a":', "}")):
        for depth in (101, 10_000, 1_000_000):
            body = (opening * depth).encode()
            # Requests without long texts have a limit of 1 MiB.
            wire.ask(path, body, {400, 413} if len(body) > 1 << 20 else {400})
        bottom = opening * 5000 + "1" + closing * 5000
        fields = json.dumps(REQUESTS[path])[:-1]
        for field in ("model", "extra", "format", "options", "tools", "messages", "metadata"):
            wire.ask(path, f'{fields}, "{field}": {bottom}}}'.encode(), {400})


TEXTS = [rb"\ud800", rb"\udfff", rb"\ud800\ud800", rb"\udc00\ud800", rb"\ud83d", b"\xff\xfe", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", rb"\u0000", b"\xef\xbf\xbf", "\U0010ffff\u202e\u200f".encode(), b"\xf0\x9f\x98"]


@pytest.mark.parametrize("path", GENERATING)
def test_invalid_unicode_is_accepted_or_refused(wire, path):
    whole = encoded(REQUESTS[path])
    for text in TEXTS:
        status, answer = wire.ask(path, whole.replace(b'"hi"', b'"a' + text + b'b"'), {200, 400})
        answer.decode()
        wire.ask(path, whole.replace(b'"cria"', b'"' + text + b'"'), {400, 404})
        wire.ask(path, whole.replace(b'"model"', b'"' + text + b'"'), {400, 404})


@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions", "/v1/messages"])
def test_bodies_of_100_megabytes_are_refused_and_their_memory_is_freed(server, path):
    size = 100 << 20
    for body in (b" " * size, b"[" + b"0," * (size // 2), b'{"model": "' + b"x" * size + b'"}', b'{"' + b"x" * size):
        status, data = server.send("POST", path, body)
        assert status in (400, 404) and has_form(path, data), (status, data[:200])
    status, data = server.send("POST", path, b" " * (129 << 20))
    assert status == 413 and has_form(path, data)
    [peak] = [line for line in open(f"/proc/{server.process.pid}/status") if line.startswith("VmHWM")]
    assert int(peak.split()[1]) < 1200 << 10, peak


def test_concurrent_large_bodies_share_one_limit(server):
    """Each is half sent; those beyond half of the budget are refused, ordinary requests are answered meanwhile."""
    size, held, refused = 127 << 20, [], 0
    with contextlib.ExitStack() as stack:
        for _ in range(8):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=30))
            head = b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % size
            sock.sendall(head + b'{"x": "')
            for _ in range(110):
                sock.sendall(b"x" * (1 << 20))
            sock.settimeout(0.5)
            try:
                answer = sock.recv(4096)
                assert answer.startswith(b"HTTP/1.1 503 ") and b"\r\nretry-after: " in answer.lower(), answer
                refused += 1
            except TimeoutError:
                held.append(sock)
        assert len(held) == 2 and refused == 6, (len(held), refused)
        assert server.post("/api/generate", REQUESTS["/api/generate"])[0] == 200
    # They are gone, and so is what they took.
    whole = b'{"model": "' + b"x" * (100 << 20) + b'"}'
    assert wait_for(lambda: server.send("POST", "/api/chat", whole)[0] in (400, 404))


def raw(server, data):
    sock = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    sock.sendall(data)
    return sock


@pytest.mark.parametrize("path", GENERATING)
@pytest.mark.parametrize("reset", [False, True])
def test_clients_that_disconnect_at_any_moment_leave_no_state(server, path, reset):
    long = REQUESTS[path] | {"stream": True, "max_tokens": 500, "max_output_tokens": 500, "options": {"num_predict": 500}}
    body = encoded(long)
    whole = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (path.encode(), len(body), body)
    head = whole.index(b"\r\n\r\n") + 4
    moments = [1, 10, head - 2, head, head + 1, head + len(body) // 2, len(whole) - 1]
    for length in moments:
        leave(raw(server, whole[:length]), reset)
    for received in (0, 1, 500, 2000):
        sock = raw(server, whole)
        sock.settimeout(1)
        with contextlib.suppress(TimeoutError):
            while received > 0 and (data := sock.recv(received)):
                received -= len(data)
        leave(sock, reset)
    assert wait_for(lambda: idle(server)), server.get("/metrics")[1].decode()
    assert server.post("/api/generate", REQUESTS["/api/generate"])[0] == 200


def leave(sock, reset):
    if reset:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def idle(server):
    """Whether nothing runs or waits, and no page is held for a sequence."""
    figures = server.get("/metrics")[1].decode()
    busy = re.findall(r'^(puna_(?:running|waiting)_sequences|puna_kv_pages_in_use\S*by="running")\S* ([0-9.]+)$', figures, re.M)
    return all(float(value) == 0 for _, value in busy)


def test_a_client_that_half_closes_its_connection_gets_its_answer(server):
    body = encoded(REQUESTS["/api/generate"])
    sock = raw(server, b"POST /api/generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    sock.shutdown(socket.SHUT_WR)
    answer = b""
    while data := sock.recv(65536):
        answer += data
    # Many servers take this for a client that left; either way nothing is left over.
    assert answer == b"" or answer.startswith(b"HTTP/1.1 200 ")
    assert wait_for(lambda: idle(server))


MALFORMED = [
    b"GET / HTTP/9.9\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 200,
    b"GET  / HTTP/1.1\r\n\r\n",
    b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999999\r\n\r\n",
    b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nZZZ\r\n",
    b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n{}",
    b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n",
    b"GET /\0 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: local\0host\r\n\r\n",
    b"GET / HTTP/1.1\r\n: empty\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\r\n" * 1000,
]


@pytest.mark.parametrize("data", MALFORMED)
def test_invalid_http_is_refused(server, data):
    sock = raw(server, data)
    sock.shutdown(socket.SHUT_WR)
    with contextlib.suppress(ConnectionError):
        answer = sock.recv(65536)
        assert answer == b"" or re.match(rb"HTTP/1\.[01] [45]", answer), answer
    assert server.get("/")[0] == 200


def test_conflicting_lengths_do_not_smuggle_a_request(server):
    """Smuggling: what one program takes for a body, another takes for a request."""
    hidden = b"DELETE /api/delete HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"
    data = b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n%s" % (5 + len(hidden), hidden)
    sock = raw(server, data)
    sock.settimeout(3)
    answer = b""
    with contextlib.suppress(TimeoutError, ConnectionError):
        while part := sock.recv(65536):
            answer += part
    assert answer.count(b"HTTP/1.1 ") <= 1, answer


TEMPLATES = [
    '{{ define "a" }}{{ template "a" . }}{{ end }}{{ template "a" . }}',
    '{{ define "a" }}{{ template "b" . }}{{ end }}{{ define "b" }}{{ template "a" . }}{{ end }}{{ template "a" . }}',
    "{{ range .Messages }}" * 30 + "x" * 1000 + "{{ end }}" * 30,
    '{{ printf "%999999999d" 1 }}',
    "{{ " + "(" * 20_000 + "1" + ")" * 20_000 + " }}",
    "{{ if " * 20_000,
    "{{ $x := .Prompt }}" + "{{ $x = print $x $x }}" * 64 + "{{ $x }}",
    "{{/*" * 1000,
    "{{ .Prompt.Prompt.Prompt }}{{ index .Messages 99999 }}",
]


@pytest.mark.parametrize("template", TEMPLATES)
def test_endless_templates_are_stopped(server, template):
    start = time.monotonic()
    for body in ({"template": template}, {"template": template, "system": "x" * 10_000, "messages": CHAT * 50}):
        status, answer = server.post("/api/generate", REQUESTS["/api/generate"] | body)
        assert status in (200, 400, 500) and (status == 200 or answer["error"]), answer
    assert time.monotonic() - start < 20
    assert server.post("/api/generate", REQUESTS["/api/generate"])[0] == 200
