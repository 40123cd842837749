"""Scripted models (`puna debug script`): one that Puna computes, and one behind a remote model."""
import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile

from conftest import BINARY, Puna, environment, free_port, wait_for

MODEL = "script"
WINDOW = 131072


def text(words):
    return {"text": words}


def call(name, arguments, id=None):
    made = {"name": name, "arguments": arguments}
    return {"call": made if id is None else {**made, "id": id}}


def calls(*parallel):
    return {"calls": [one["call"] for one in parallel]}


def answer(*steps, when=None, **more):
    return {"when": when or {}, "steps": list(steps), **more}


class Script:
    """A script's file. A player reads it again when it changes."""

    def __init__(self, folder, window):
        self.path = pathlib.Path(folder) / "script.json"
        self.window = window
        self.play()

    def play(self, *answers):
        """Replaces the script."""
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps({"window": self.window, "answers": answers}))
        os.replace(new, self.path)


class ScriptedModel(Puna):
    """A server whose model `script` computes prompts and generates what the script says."""

    def __init__(self, window=WINDOW, **env):
        self.folder = tempfile.TemporaryDirectory(prefix="puna-script-")
        self.script = Script(self.folder.name, window)
        self.play = self.script.play
        super().__init__(**env)

    @property
    def script_log(self):
        return self.log

    def is_idle(self, _):
        """Whether the model generates nothing."""
        return b'puna_running_sequences{model="script:latest"} 0' in self.get("/metrics")[1]

    def counts(self):
        """(prompt tokens, cached ones, generated ones) of every answer so far that came to its end."""
        figures = r"scripted answer prompt_tokens=(\d+) cached_tokens=(\d+) generated_tokens=(\d+)"
        return [tuple(map(int, found)) for found in re.findall(figures, self.log.read_text())]

    def start(self):
        with open(self.log, "ab") as log:
            command = [BINARY, "debug", "script", self.script.path]
            self.process = subprocess.Popen(command, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.wait_until_up()


class ScriptedUpstream:
    """A server of OpenAI's dialect that streams what the script says."""

    def __init__(self, window=WINDOW):
        self.folder = tempfile.TemporaryDirectory(prefix="puna-script-")
        self.script = Script(self.folder.name, window)
        self.port = free_port()
        env = environment(self.folder.name, OLLAMA_HOST=f"127.0.0.1:{self.port}")
        self.log = pathlib.Path(self.folder.name) / "upstream.log"
        with open(self.log, "ab") as log:
            command = [BINARY, "debug", "script", "--upstream", self.script.path]
            self.process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        assert wait_for(self.is_up), self.log.read_text()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def is_up(self):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)


class RemoteModel(Puna):
    """A server whose model `script` is that of a scripted upstream."""

    def __init__(self, window=WINDOW):
        self.upstream = ScriptedUpstream(window)
        self.play = self.upstream.script.play
        super().__init__(PUNA_REMOTES=self.upstream.url)
        info = {"context_length": window, "capabilities": ["completion", "tools", "thinking"]}
        body = {"model": MODEL, "from": MODEL, "remote_host": f"{self.upstream.url}/v1", "info": info, "stream": False}
        status, created = self.post("/api/create", body)
        assert status == 200, created

    @property
    def script_log(self):
        return self.upstream.log

    def is_idle(self, seen):
        """Whether the upstream was left, by what stands in its log behind so many characters."""
        return "client of a scripted answer disconnected" in self.script_log.read_text()[seen:]

    def stop(self):
        self.upstream.stop()
        return super().stop()

    def kill(self):
        self.upstream.stop()
        super().kill()


@contextlib.contextmanager
def playing(kind, **more):
    server = {"model": ScriptedModel, "remote": RemoteModel}[kind](**more)
    try:
        yield server
    finally:
        server.kill()
