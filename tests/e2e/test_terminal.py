"""The interactive chat on a terminal: input, and the state of the terminal at exit."""
import os
import pty
import select
import signal
import subprocess
import termios
import time

import pytest

from conftest import BINARY, environment

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
