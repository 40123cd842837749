"""Memory for request bodies: one client's large bodies leave room for those of another."""
import contextlib
import json
import socket

import requests
from conftest import running, wait_for
from test_prefix_isolation import add_key

MIB = 1 << 20


@contextlib.contextmanager
def unfinished_body(puna, key, length, sent):
    """A request that has sent `sent` of `length` bytes of its body."""
    head = (
        f"POST /api/generate HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Length: {length}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", puna.port), timeout=60) as stream:
        stream.sendall(head.encode())
        stream.sendall(b" " * sent)
        yield stream


def status_line(stream, seconds=0.5):
    """The start of the response, or nothing if none arrives in time."""
    stream.settimeout(seconds)
    try:
        return stream.recv(4096)
    except TimeoutError:
        return b""


def generate(puna, key, size):
    """The response to a request with a body of `size` bytes that names no model of the server."""
    body = json.dumps({"model": "nothing", "prompt": "x" * size})
    return requests.post(
        f"http://127.0.0.1:{puna.port}/api/generate", body, headers={"Authorization": f"Bearer {key}"}, timeout=120
    )


def test_one_key_cannot_fill_the_memory_for_bodies():
    with running() as puna, contextlib.ExitStack() as stack:
        greedy, other = (add_key(puna, name) for name in ("greedy", "other"))
        # Three bodies that stop before their end hold nearly half of 640 MiB, and more are refused.
        for _ in range(3):
            assert not status_line(stack.enter_context(unfinished_body(puna, greedy, 100 * MIB, 99 * MIB)))
        for _ in range(3):
            line = status_line(stack.enter_context(unfinished_body(puna, greedy, 100 * MIB, 0)), seconds=60)
            assert line.startswith(b"HTTP/1.1 503 ") and b"retry-after: 1\r\n" in line.lower(), line
        # A smaller body of that key is refused too, the same one of another key is read.
        answer = generate(puna, greedy, 30 * MIB)
        assert answer.status_code == 503 and "of this client" in answer.json()["error"], answer.text
        assert answer.headers["Retry-After"] == "1"
        assert generate(puna, other, 30 * MIB).status_code == 404
        # Small requests of the greedy key need no budget.
        assert generate(puna, greedy, 1000).status_code == 404
        stack.close()
        assert wait_for(lambda: generate(puna, greedy, 30 * MIB).status_code == 404)
