"""Coding agents of npm, run without a terminal: an empty home, a folder to work in, and no way but loopback."""
import contextlib
import http.server
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading

import pytest

from conftest import REPOSITORY
from scripted import MODEL, WINDOW, call

SUITE = REPOSITORY / "tests/clients/agents"
BIN = REPOSITORY / ".cache/agents/node_modules/.bin"
# Nobody waits longer for a loop, however slow the machine is.
TIMEOUT = 300
BRIEF = "You answer in one sentence."
# Tokens of a brief answer at most.
BRIEF_TOKENS = 200


class Proxy(http.server.BaseHTTPRequestHandler):
    """Refuses everything, and remembers which hosts were asked for."""

    def log_message(self, *_):
        pass

    def refuse(self):
        self.server.hosts.append(self.path)
        self.send_error(502)

    do_CONNECT = do_GET = do_POST = do_HEAD = refuse


@contextlib.contextmanager
def refusing_proxy():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    server.hosts = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


class Ran:
    """What came of a run."""

    def __init__(self, agent, status, output, errors):
        self.status, self.output, self.errors = status, output, errors
        self.text = agent.answer(output)

    def __repr__(self):
        return f"exit {self.status}\n{self.output[-6000:]}\n{self.errors[-3000:]}"


class Agent:
    """An agent with a home of its own. `url` is the server's, `window` the model's context."""

    name, binary = "", ""
    # The tool that runs a command, as the prompt has it.
    shell = ""
    # What the tool `add` of the MCP server `notes` is called.
    note = ""
    # Answers of the model that stand in a new conversation.
    seeded = 0
    # What only a request for a summary of the conversation is like.
    compaction = {}
    # Calls by which it finds the tools of MCP servers.
    search = ()

    def __init__(self, folder, url, proxy, model=MODEL, window=WINDOW, mcp=False, brief=False):
        self.url, self.proxy, self.model, self.window = url, proxy, model, window
        # With a short instruction and few tools: a real model reads the usual ones for minutes on a slow machine.
        self.brief = brief
        self.home, self.work = pathlib.Path(folder) / "home", pathlib.Path(folder) / "work"
        self.notes, self.connections = pathlib.Path(folder) / "notes.txt", pathlib.Path(folder) / "connections.txt"
        self.home.mkdir()
        self.work.mkdir()
        self.mcp = [sys.executable, str(SUITE / "notes.py")] if mcp else None
        self.configure()

    def configure(self):
        """Writes the client's files."""

    def environment(self):
        """The client's variables."""
        return {}

    def command(self, prompt, resumes):
        """The client's command line."""
        raise NotImplementedError

    def answer(self, output):
        """The answer in what the client printed."""
        raise NotImplementedError

    def run_command(self, command):
        """A call of the tool that runs commands."""
        return call(self.shell, {"command": command, "description": "Run it"})

    @property
    def offered(self):
        """What only prompts with the agent's tools contain, and not those for a title."""
        return f'"name":"{self.shell}"'

    def env(self):
        proxy = f"http://127.0.0.1:{self.proxy.server_port}"
        proxies = {name: proxy for name in ("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy")}
        exceptions = {name: "127.0.0.1,localhost,::1" for name in ("NO_PROXY", "no_proxy")}
        return {"PATH": os.environ["PATH"], "HOME": str(self.home), "TERM": "dumb", "LANG": "C.UTF-8", "PUNA_NOTES": str(self.notes), **proxies, **exceptions, **self.environment()}

    def start(self, prompt, resumes=False):
        command = [BIN / self.binary, *self.command(prompt, resumes)]
        # A shell starts programs in the background with SIGINT ignored, and children inherit that.
        heed_interrupts = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
        return subprocess.Popen(command, cwd=self.work, env=self.env(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=heed_interrupts)

    def finish(self, process):
        try:
            output, errors = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, errors = process.communicate()
            raise AssertionError(f"{self.name} did not end in {TIMEOUT} s\n{output[-4000:]}\n{errors[-4000:]}") from None
        hosts = [*self.proxy.hosts, *(self.connections.read_text().split() if self.connections.exists() else [])]
        assert not hosts, f"{self.name} wanted to leave this machine: {hosts}"
        return Ran(self, process.returncode, output, errors)

    def interrupt(self, process):
        """As Ctrl-C in a terminal does, which every process of the client gets; it must end."""
        try:
            os.killpg(process.pid, signal.SIGINT)
            process.communicate(timeout=30)
        finally:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)

    def run(self, prompt, resumes=False):
        """Runs it to its end."""
        return self.finish(self.start(prompt, resumes))


def events(output):
    """The JSON lines of an output."""
    found = []
    for line in output.splitlines():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found


class Claude(Agent):
    name, binary, shell, note = "Claude Code", "claude", "Bash", "mcp__notes__add"
    compaction = {"last": "create a detailed summary of"}

    def environment(self):
        return {
            "ANTHROPIC_BASE_URL": self.url, "ANTHROPIC_AUTH_TOKEN": "none", "ANTHROPIC_MODEL": self.model, "ANTHROPIC_SMALL_FAST_MODEL": self.model,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1", "DISABLE_TELEMETRY": "1",
            # It runs as root in a container, where all permissions are fine.
            "IS_SANDBOX": "1",
            **({"CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(BRIEF_TOKENS)} if self.brief else {}),
            **({"CLAUDE_CODE_AUTO_COMPACT_WINDOW": str(self.window)} if self.window < WINDOW else {}),
        }  # fmt: skip

    def command(self, prompt, resumes):
        options = ["-p", "--output-format", "stream-json", "--verbose", "--dangerously-skip-permissions"]
        if self.mcp:
            [command, *args] = self.mcp
            servers = {"notes": {"command": command, "args": args, "env": {"PUNA_NOTES": str(self.notes)}}}
            options += ["--strict-mcp-config", "--mcp-config", json.dumps({"mcpServers": servers})]
        if self.brief:
            options += ["--system-prompt", BRIEF, "--tools", "Bash"]
        return [*options, *(["--continue"] if resumes else []), "--", prompt]

    def answer(self, output):
        results = [event for event in events(output) if event.get("type") == "result"]
        return results[-1].get("result", "") if results else ""


class Codex(Agent):
    name, binary, shell, note = "Codex", "codex", "exec_command", "mcp__notes.add"
    compaction = {"last": "CONTEXT CHECKPOINT COMPACTION"}

    def configure(self):
        folder = self.home / ".codex"
        folder.mkdir()
        lines = [
            f'model = "{self.model}"', 'model_provider = "puna"', f"model_context_window = {self.window}", "check_for_update_on_startup = false",
            *([f'model_instructions_file = "{folder}/brief.md"'] if self.brief else []),
            "[analytics]", "enabled = false",
            "[features]", "plugins = false", "apps = false",
            "[model_providers.puna]", 'name = "puna"', f'base_url = "{self.url}/v1"', 'wire_api = "responses"',
        ]  # fmt: skip
        if self.mcp:
            [command, *args] = self.mcp
            lines += ["[mcp_servers.notes]", f"command = {json.dumps(command)}", f"args = {json.dumps(args)}", "[mcp_servers.notes.env]", f'PUNA_NOTES = "{self.notes}"']
        (folder / "brief.md").write_text(BRIEF + "\n")
        (folder / "config.toml").write_text("\n".join(lines) + "\n")

    def command(self, prompt, resumes):
        options = ["--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
        return ["exec", *options, *(["resume", "--last"] if resumes else []), prompt]

    def answer(self, output):
        items = [event.get("item", {}) for event in events(output) if event.get("type") == "item.completed"]
        texts = [item["text"] for item in items if item.get("type") == "agent_message"]
        return texts[-1] if texts else ""

    def run_command(self, command):
        return call(self.shell, {"cmd": command})


class Opencode(Agent):
    name, binary, shell, note = "opencode", "opencode", "bash", "notes_add"
    compaction = {"contains": ["anchored summary"]}

    def configure(self):
        output = BRIEF_TOKENS if self.brief else 8192 if self.window > 40000 else 2048
        models = {self.model: {"name": self.model, "limit": {"context": self.window, "output": output}}}
        provider = {"npm": "@ai-sdk/openai-compatible", "name": "Puna", "options": {"baseURL": f"{self.url}/v1", "apiKey": "none"}, "models": models}
        config = {"model": f"puna/{self.model}", "small_model": f"puna/{self.model}", "autoupdate": False, "share": "disabled", "provider": {"puna": provider}}
        if self.brief:
            config["agent"] = {"build": {"prompt": BRIEF, "tools": {"*": False, "bash": True}}}
        if self.mcp:
            config["mcp"] = {"notes": {"type": "local", "command": self.mcp, "environment": {"PUNA_NOTES": str(self.notes)}}}
        (self.work / "opencode.json").write_text(json.dumps(config))
        # Otherwise it installs the types of plug-ins there, and waits for that.
        version = json.loads((SUITE / "package.json").read_text())["dependencies"]["opencode-ai"]
        folder, plugin = self.home / ".config/opencode", "@opencode-ai/plugin"
        (folder / "node_modules" / plugin).mkdir(parents=True)
        (folder / "node_modules" / plugin / "package.json").write_text(json.dumps({"name": plugin, "version": version}))
        (folder / "package.json").write_text(json.dumps({"dependencies": {plugin: version}}))
        packages = {"": {"dependencies": {plugin: version}}, f"node_modules/{plugin}": {"version": version}}
        (folder / "package-lock.json").write_text(json.dumps({"name": "opencode", "lockfileVersion": 3, "packages": packages}))

    def environment(self):
        return {f"OPENCODE_{name}": "1" for name in ("DISABLE_AUTOUPDATE", "DISABLE_MODELS_FETCH", "DISABLE_LSP_DOWNLOAD", "DISABLE_DEFAULT_PLUGINS", "PURE")}

    def command(self, prompt, resumes):
        return ["run", "--format", "json", "--auto", *(["--continue"] if resumes else []), prompt]

    def answer(self, output):
        texts = [event["part"]["text"] for event in events(output) if event.get("type") == "text"]
        return texts[-1] if texts else ""


class Qwen(Agent):
    name, binary, shell, note = "Qwen Code", "qwen", "run_shell_command", "mcp__notes__add"
    compaction = {"last": "state_snapshot"}
    search = (call("tool_search", {"query": "select:mcp__notes__add"}),)
    # "Got it. Thanks for the context!"
    seeded = 1

    def configure(self):
        folder = self.home / ".qwen"
        folder.mkdir()
        settings = {
            "privacy": {"usageStatisticsEnabled": False}, "telemetry": {"enabled": False},
            "general": {"enableAutoUpdate": False, "disableAutoUpdate": True, "disableUpdateNag": True},
            "model": {"generationConfig": {"contextWindowSize": self.window, **({"samplingParams": {"max_tokens": BRIEF_TOKENS}} if self.brief else {})}},
        }  # fmt: skip
        if self.mcp:
            [command, *args] = self.mcp
            settings["mcpServers"] = {"notes": {"command": command, "args": args, "env": {"PUNA_NOTES": str(self.notes)}, "trust": True}}
        (folder / "settings.json").write_text(json.dumps(settings))

    def env(self):
        # It asks a proxy for loopback addresses too, so its connections are watched from within.
        inherited = {name: value for name, value in super().env().items() if "proxy" not in name.lower()}
        watched = {"NODE_OPTIONS": f"--require {SUITE / 'loopback.cjs'}", "PUNA_CONNECTIONS": str(self.connections)}
        return {**inherited, **watched, "OPENAI_API_KEY": "none", "OPENAI_BASE_URL": f"{self.url}/v1", "OPENAI_MODEL": self.model}

    def command(self, prompt, resumes):
        brief = ["--system-prompt", BRIEF, "--core-tools", "run_shell_command"] if self.brief else []
        return ["--auth-type", "openai", "--yolo", *brief, "--output-format", "stream-json", *(["--continue"] if resumes else []), "-p", prompt]

    def answer(self, output):
        results = [event for event in events(output) if event.get("type") == "result"]
        return results[-1].get("result", "") if results else ""

    def run_command(self, command):
        return call(self.shell, {"command": command, "is_background": False, "description": "Run it"})


AGENTS = {kind.binary: kind for kind in (Claude, Codex, Opencode, Qwen)}


def need_agents():
    """Skips the test, visibly, where the agents could not be fetched."""
    missing = [kind.name for kind in AGENTS.values() if not (BIN / kind.binary).exists()]
    if missing:
        pytest.skip(f"SKIPPED: {', '.join(missing)} not in .cache/agents; ./test fetches them where there is a network and Node")
