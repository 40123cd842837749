"""Commands and the interactive chat on a terminal: input, safe output, and the state of the terminal at exit."""
import contextlib
import http.server
import json
import os
import pty
import select
import signal
import subprocess
import termios
import threading
import time

import pytest

from conftest import BINARY, environment, puna

PROMPT = b">>> "
MODES = 3  # the local modes among what tcgetattr gives


class Conversation:
    """`puna run` on a terminal of its own."""

    def __init__(self, *args, env):
        self.screen, self.terminal = pty.openpty()
        self.modes = termios.tcgetattr(self.terminal)[MODES]
        self.seen = b""
        self.process = subprocess.Popen(
            [BINARY, "run", *map(str, args)],
            env={**env, "TERM": "xterm"},
            stdin=self.terminal, stdout=self.terminal, stderr=self.terminal, start_new_session=True,
        )

    def until(self, text, seconds=60):
        """What is written up to and with a text, which must come."""
        end = time.monotonic() + seconds
        while text not in self.seen:
            ready = select.select([self.screen], [], [], max(0, end - time.monotonic()))[0]
            assert ready, f"{text!r} does not come: {self.seen!r}"
            self.seen += os.read(self.screen, 4096)
        before, _, self.seen = self.seen.partition(text)
        return before + text

    def type(self, keys):
        os.write(self.screen, keys)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)
        os.close(self.screen)
        os.close(self.terminal)


@pytest.fixture
def talk(server):
    open_ones = []

    def start(*args, home=None, **env):
        environ = environment(home or server.home, OLLAMA_HOST=f"127.0.0.1:{server.port}", **env)
        open_ones.append(Conversation("cria", "--think=false", *args, env=environ))
        return open_ones[-1]

    yield start
    for it in open_ones:
        it.close()


def test_invalid_utf_8_does_not_end_the_session(talk):
    chat = talk()
    chat.until(PROMPT)
    chat.type(b"What is the capital of France")
    chat.until(b"France")
    chat.type(b"\xffx")
    chat.until(b"not UTF-8")
    chat.until(PROMPT)
    chat.type(b"?\r")
    chat.until(b"Paris")
    chat.until(PROMPT)


def test_a_paste_with_invalid_utf_8_is_not_sent(talk):
    chat = talk()
    chat.until(PROMPT)
    chat.type(b"\x1b[200~one \xe9\n" + b"another line\n" * 200 + b"\x1b[201~")
    chat.until(b"not UTF-8")
    chat.until(PROMPT)
    chat.type(b"/show parameters\r")
    assert b"another" not in chat.until(b"Model defined parameters")


def test_server_errors_are_shown_and_the_session_continues(talk):
    chat = talk("--format", '{"type":"nonsense"}')
    chat.until(PROMPT)
    chat.type(b"hello\r")
    chat.until(b"error: ")
    chat.until(PROMPT)
    chat.type(b"/set noformat\r")
    chat.until(b"Disabled format.")
    chat.type(b"What is the capital of France?\r")
    chat.until(b"Paris")


def test_a_truncated_prompt_is_reported(talk):
    chat = talk()
    chat.until(PROMPT)
    chat.type(b"/set parameter num_ctx 64\r")
    chat.until(b"Set parameter")
    chat.until(PROMPT)
    chat.type(b"word " * 200 + b"\r")
    said = chat.until(b"/set parameter num_ctx N")
    assert b"the context is too short" in said and b"left out" in said, said


def test_a_damaged_history_does_not_end_the_session(talk, tmp_path):
    (tmp_path / ".ollama/history").mkdir(parents=True)
    chat = talk(home=tmp_path)
    chat.until(b"continuing without it")
    chat.until(PROMPT)
    chat.type(b"What is the capital of France?\r")
    assert b"warning" not in chat.until(b"Paris")


def test_the_terminal_is_restored_when_the_program_is_terminated(talk):
    chat = talk()
    chat.until(PROMPT)
    chat.type(b"half a line")
    chat.until(b"line")
    assert termios.tcgetattr(chat.terminal)[MODES] != chat.modes
    chat.process.send_signal(signal.SIGTERM)
    chat.until(b"\x1b[?2004l")
    assert chat.process.wait(10) == 128 + signal.SIGTERM
    assert termios.tcgetattr(chat.terminal)[MODES] == chat.modes


# Sets the title of a window, clears it, copies to the clipboard, and reorders text.
HOSTILE = "\x1b]0;PWNED\x07\x1b[2J\u009b31m\x1b]52;c;ZXZpbA==\x07\b\r\u202eRTL\u2066\x7f"
ESCAPED = "\\u{1b}]0;PWNED\\u{7}\\u{1b}[2J\\u{9b}31m\\u{1b}]52;c;ZXZpbA==\\u{7}\\u{8}\\u{d}\\u{202e}RTL\\u{2066}\\u{7f}"
# Parts that Puna's own output on a terminal never has.
FORBIDDEN = ("\x1b]", "\x1b[2J", "\x07", "\u009b", "\b", "\u202e", "\u2066", "\x7f")


class HostileServer(http.server.BaseHTTPRequestHandler):
    """Answers every request of the native dialect with control characters in every text."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        details = dict.fromkeys(("format", "family", "parameter_size", "quantization_level"), HOSTILE)
        model = {"name": "x" + HOSTILE, "model": "x", "digest": HOSTILE, "size": 5, "details": details, "sandbox": HOSTILE}
        texts = dict.fromkeys(("license", "modelfile", "parameters", "template", "system"), HOSTILE + "\n")
        lines = [{"status": "pulling " + HOSTILE, "total": 9, "completed": 1}, {"status": HOSTILE}, {"error": HOSTILE}]
        body = {
            "/api/version": [{"version": "1" + HOSTILE, "puna": "1" + HOSTILE}],
            "/api/tags": [{"models": [model]}],
            "/api/ps": [{"models": [model]}],
            "/api/show": [{**texts, "details": details, "capabilities": [HOSTILE], "model_info": {HOSTILE: HOSTILE}}],
            **dict.fromkeys(("/api/pull", "/api/push", "/api/verify"), lines),
        }.get(self.path)
        data = "".join(json.dumps(line) + "\n" for line in body or [{"error": HOSTILE}]).encode()
        self.send_response(200 if body else 500)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_POST = do_DELETE = do_GET


@pytest.fixture
def hostile(tmp_path):
    """The environment of commands that use a hostile server."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), HostileServer) as listener:
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        yield environment(tmp_path, OLLAMA_HOST=f"127.0.0.1:{listener.server_port}")
        listener.shutdown()


def on_terminal(*args, env):
    """All that a command writes to a terminal."""
    screen, terminal = pty.openpty()
    process = subprocess.Popen(
        [BINARY, *args], env={**env, "TERM": "xterm"}, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True,
    )
    os.close(terminal)
    seen = b""
    # The end of a terminal is an error of reading.
    with contextlib.suppress(OSError):
        while piece := os.read(screen, 65536):
            seen += piece
    os.close(screen)
    process.wait(30)
    return seen.decode()


@pytest.mark.parametrize("command", [
    "list", "ps", "show x", "show x --verbose", "show x --license", "show x --modelfile", "show x --template",
    "show x --system", "show x --parameters", "pull x", "push me/x", "verify x", "cp x y", "rm x", "stop x", "run x hello",
    "--version",
])
def test_texts_of_a_server_do_not_control_the_terminal(hostile, command):
    seen = on_terminal(*command.split(), env=hostile)
    assert ESCAPED in seen, seen
    assert not [part for part in FORBIDDEN if part in seen], repr(seen)


def test_json_on_a_terminal_has_escapes_of_json(hostile):
    seen = on_terminal("list", "--json", env=hostile)
    assert not [part for part in FORBIDDEN if part in seen], repr(seen)
    assert json.loads(seen)["models"][0]["name"] == "x" + HOSTILE


def test_pipes_get_content_unchanged_and_errors_escaped(hostile):
    shown = subprocess.run([BINARY, "show", "x", "--license"], env=hostile, capture_output=True, timeout=60)
    assert shown.stdout.decode() == HOSTILE + "\n\n"
    for command in ("cp x y", "pull x", "rm x"):
        failed = puna(*command.split(), env=hostile)
        assert failed.returncode == 1 and ESCAPED in failed.stderr, failed.stderr
        assert not [part for part in FORBIDDEN if part in failed.stderr], repr(failed.stderr)
