"""`puna launch`: stand-ins for the agents record their arguments and environment, and a server checks the context
length."""
import json
import os
import pathlib
import pty
import signal
import subprocess
import sys
import time

import pytest

from conftest import BINARY, GEMMA3, SMOLLM2, Puna, environment, free_port, need, puna

AGENTS = ["claude", "codex", "opencode", "qwen", "pi"]
# Records arguments, environment and the files that they name, says that it is ready, and ends as it is told.
STAND_IN = f"""#!{sys.executable}
import json, os, pathlib, signal, sys, time
ends = lambda number, _: (pathlib.Path(os.environ["RECORD"] + ".signal").write_text(str(number)), os._exit(7))
signal.signal(signal.SIGTERM, ends)
if "INTERRUPTS" in os.environ:
    signal.signal(signal.SIGINT, lambda *_: open(os.environ["INTERRUPTS"], "a").write("x"))
named = [word for word in [*sys.argv, *os.environ.values()] if "puna-launch-" in word and os.path.exists(word)]
record = {{"arguments": sys.argv[1:], "environment": dict(os.environ), "input": sys.stdin.read() if "READ" in os.environ else None,
           "files": {{path: pathlib.Path(path).read_text() for path in named}}}}
partial = pathlib.Path(os.environ["RECORD"] + ".partial")
partial.write_text(json.dumps(record))
partial.rename(os.environ["RECORD"])
if "WAIT" in os.environ:
    time.sleep(60)
if "KILL" in os.environ:
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(int(os.environ.get("STATUS", "0")))
"""


@pytest.fixture(scope="module")
def server():
    server = Puna(OLLAMA_CONTEXT_LENGTH=1500)
    recipes = {"agent": "FROM cria\nPARAMETER num_ctx 777\n", "plain": f"FROM {need(SMOLLM2)}\n"}
    for name, recipe in recipes.items():
        (server.home / "Modelfile").write_text(recipe)
        server.cli("create", name, "-f", server.home / "Modelfile", check=True)
    yield server
    server.stop()


@pytest.fixture
def clients(tmp_path):
    """A folder with a stand-in for each agent."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in AGENTS:
        (folder / name).write_text(STAND_IN)
        (folder / name).chmod(0o755)
    return folder


def variables(server, clients, **extra):
    record = clients.parent / "record.json"
    return {**server.env, "PATH": str(clients), "RECORD": str(record), "ANTHROPIC_API_KEY": "sk-ant-real", **extra}


def launched(server, clients, *args, **extra):
    """What a stand-in recorded."""
    env = variables(server, clients, **extra)
    done = puna("launch", *args, env=env, check=True)
    return json.loads(pathlib.Path(env["RECORD"]).read_text()), done


def windows(agent, record):
    """The windows that an agent was told."""
    environment, arguments = record["environment"], record["arguments"]
    match agent:
        case "claude":
            [settings] = record["files"].values()
            told = json.loads(settings)["env"]
            assert all(environment[name] == value for name, value in told.items() if value), told
            return [int(told["CLAUDE_CODE_MAX_CONTEXT_TOKENS"])]
        case "codex":
            return [int(word.split("=")[1]) for word in arguments if word.startswith("model_context_window=")]
        case "opencode":
            config = json.loads(environment["OPENCODE_CONFIG_CONTENT"])
            return [model["limit"]["context"] for model in config["provider"]["puna"]["models"].values()]
        case "qwen":
            settings = json.loads(record["files"][environment["QWEN_CODE_SYSTEM_SETTINGS_PATH"]])
            return [model["generationConfig"]["contextWindowSize"] for model in settings["modelProviders"]["openai"]]
        case "pi":
            [extension] = record["files"].values()
            provider = json.loads(extension.split("registerProvider(\"puna\", ", 1)[1].rsplit(");", 1)[0])
            return [model["contextWindow"] for model in provider["models"]]


@pytest.mark.parametrize("agent", AGENTS)
def test_an_agent_gets_the_server_the_model_and_its_context_window(server, clients, agent):
    home = sorted(path for path in server.home.rglob("*") if "/.local" not in str(path))
    record, done = launched(server, clients, agent, "--model", "agent", "--", "--flag", "a b")
    everything = json.dumps(record)
    assert record["arguments"][-2:] == ["--flag", "a b"]
    assert server.url in everything and "agent" in everything
    assert windows(agent, record) == [777]
    # cria is no model for agents, and 777 tokens are no window for them.
    assert "cannot call tools" in done.stderr or "needs a context window" in done.stderr, done.stderr
    assert not any(pathlib.Path(path).exists() for path in record["files"]), "files of a run go with it"
    assert sorted(path for path in server.home.rglob("*") if "/.local" not in str(path)) == home
    assert json.loads(server.get("/api/ps")[1])["models"] == [], "nothing was loaded"
    record, _ = launched(server, clients, agent, "--model", "plain")
    assert windows(agent, record) == [1500], "the server's own limit"


def test_the_key_of_another_service_is_not_sent_to_this_server(server, clients):
    record, _ = launched(server, clients, "claude", "--model", "agent")
    assert "ANTHROPIC_API_KEY" not in record["environment"]
    assert record["environment"]["ANTHROPIC_BASE_URL"] == server.url
    assert record["environment"]["ANTHROPIC_AUTH_TOKEN"] == "none"


def test_the_key_of_the_server_is_passed_to_the_agent(server, clients):
    record, _ = launched(server, clients, "codex", "--model", "agent", PUNA_API_KEY="sk-puna-1")
    assert record["environment"]["PUNA_LAUNCH_KEY"] == "sk-puna-1"
    assert not any("sk-puna-1" in word for word in record["arguments"]), "arguments are seen by everybody on the machine"


@pytest.mark.parametrize("agent", AGENTS)
def test_print_shows_the_command_without_running_it(server, clients, agent):
    env = variables(server, clients, PUNA_API_KEY="sk-puna-2")
    done = puna("launch", agent, "--model", "agent", "--print", "--", "-x", env=env, check=True)
    assert "777" in done.stdout and server.url in done.stdout and done.stdout.rstrip().endswith("-x"), done.stdout
    assert "sk-puna-2" not in done.stdout + done.stderr
    assert not pathlib.Path(env["RECORD"]).exists()


def test_the_printed_command_runs_in_a_shell(server, clients):
    env = variables(server, clients, PUNA_API_KEY="sk-puna-3")
    text = puna("launch", "codex", "--model", "agent", "--print", "--", "it's $HOME", env=env, check=True).stdout
    subprocess.run(["/bin/sh", "-c", text.replace("env", "/usr/bin/env", 1)], env=env, check=True, stdin=subprocess.DEVNULL, timeout=60)
    record = json.loads(pathlib.Path(env["RECORD"]).read_text())
    assert record["environment"]["PUNA_LAUNCH_KEY"] == "sk-puna-3"
    assert record["arguments"][-1] == "it's $HOME" and 'model="agent"' in record["arguments"]


def test_print_without_a_server_starts_none(clients, tmp_path):
    port = free_port()
    env = {**environment(tmp_path), "PATH": str(clients), "RECORD": str(tmp_path / "r")}
    done = puna("launch", "codex", "--model", "cria", "--print", env=env, check=True)
    assert "model_context_window=2048" in done.stdout and "http://127.0.0.1:11434" in done.stdout
    refused = puna("launch", "codex", "--model", "cria", "--print", env={**env, "OLLAMA_HOST": f"127.0.0.1:{port}"})
    assert refused.returncode == 1 and "start a server there" in refused.stderr, refused.stderr


def test_the_exit_status_is_that_of_the_agent(server, clients):
    for extra, status in [({}, 0), ({"STATUS": "42"}, 42), ({"KILL": "1"}, 128 + signal.SIGKILL)]:
        done = puna("launch", "pi", "--model", "agent", env=variables(server, clients, **extra))
        assert done.returncode == status, done.stderr


def test_the_agent_reads_standard_input(server, clients):
    env = variables(server, clients, READ="1")
    puna("launch", "claude", "--model", "agent", env=env, input="from a pipe", check=True)
    assert json.loads(pathlib.Path(env["RECORD"]).read_text())["input"] == "from a pipe"


def test_signals_are_forwarded_to_the_agent(server, clients):
    env = variables(server, clients, WAIT="1")
    process = subprocess.Popen([BINARY, "launch", "qwen", "--model", "agent"], env=env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    record = pathlib.Path(env["RECORD"])
    wait_for(record.exists)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 7, process.stderr.read()
    assert (record.parent / f"{record.name}.signal").read_text() == str(int(signal.SIGTERM))
    files = json.loads(record.read_text())["files"]
    assert files and not any(pathlib.Path(path).exists() for path in files)


def test_ctrl_c_reaches_the_agent_once_with_any_standard_streams(server, clients):
    interrupts = clients.parent / "interrupts"
    env = variables(server, clients, WAIT="1", INTERRUPTS=str(interrupts))
    child, terminal = pty.fork()
    if child == 0:
        # The terminal is the one of the session, though the input comes from elsewhere.
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.execve(BINARY, [BINARY, "launch", "qwen", "--model", "agent"], env)
    try:
        wait_for(pathlib.Path(env["RECORD"]).exists)
        interrupts.touch()
        # A signal that comes while the same one is pending is lost, so that one press would not show a second delivery for sure.
        for presses in range(1, 21):
            os.write(terminal, b"\x03")
            wait_for(lambda: len(interrupts.read_text()) >= presses)
            time.sleep(0.05)
        assert interrupts.read_text() == "x" * 20
    finally:
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)
        os.close(terminal)


def test_an_unreadable_opencode_configuration_is_an_error(server, clients):
    env = variables(server, clients, OPENCODE_CONFIG_CONTENT='{"theme": ')
    done = puna("launch", "opencode", "--model", "agent", env=env)
    assert done.returncode == 1 and "cannot use OPENCODE_CONFIG_CONTENT: it is not a JSON object" in done.stderr, done.stderr
    assert not pathlib.Path(env["RECORD"]).exists()


@pytest.mark.parametrize("agent", AGENTS)
def test_print_never_shows_a_key(server, clients, agent):
    config = json.dumps({"provider": {"other": {"options": {"apiKey": "sk-own"}}}})
    env = variables(server, clients, PUNA_API_KEY='sk-"puna\\1', OPENCODE_CONFIG_CONTENT=config)
    text = puna("launch", agent, "--model", "agent", "--print", env=env, check=True).stdout
    assert "$PUNA_API_KEY" in text
    assert "sk-" not in text, text


def test_a_missing_agent_is_named_with_its_install_command(server, tmp_path):
    env = {**server.env, "PATH": str(tmp_path)}
    done = puna("launch", "claude", "--model", "agent", env=env)
    expected = "Claude Code is not installed: no program claude is on PATH; `npm install -g @anthropic-ai/claude-code` installs it"
    assert (done.returncode, expected in done.stderr) == (1, True), done.stderr
    done = puna("launch", "claude", "--model", "agent", "--print", env=env, check=True)
    assert expected in done.stderr and "ANTHROPIC_MODEL=agent" in done.stdout


def test_other_clients_get_instructions(server):
    done = server.cli("launch", "zed", "--model", "agent", "--print", check=True)
    assert "zed is not started by puna" in done.stdout and f"{server.url}/v1" in done.stdout and "777" in done.stdout
    done = server.cli("launch", "zed")
    assert done.returncode == 2 and "print its settings with `puna launch zed --print`" in done.stderr


def test_without_a_terminal_a_missing_model_is_an_error_and_not_a_question(server, clients):
    env = variables(server, clients)
    done = puna("launch", "claude", "--model", "nothing", env=env)
    assert done.returncode == 1 and "fetch it with `puna pull nothing`" in done.stderr, done.stderr
    done = puna("launch", "pi", env={**env, "XDG_STATE_HOME": str(clients.parent)})
    assert done.returncode == 1 and "no stored model can call tools with a context of 32768 tokens, which pi needs" in done.stderr, done.stderr
    assert "puna pull" in done.stderr or "name one with --model" in done.stderr, done.stderr
    assert not pathlib.Path(env["RECORD"]).exists()


def test_on_a_terminal_models_that_fit_are_offered(server, clients):
    env = {**variables(server, clients), "XDG_STATE_HOME": str(clients.parent)}
    ours, theirs = pty.openpty()
    process = subprocess.Popen([BINARY, "launch", "pi"], env=env, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    while b"Pull which one?" not in shown and b"--model" not in shown:
        shown += os.read(ours, 4096)
    if b"Pull which one?" in shown:
        assert b"PURPOSE" in shown and b"fit this machine" in shown, shown
        os.write(ours, b"n\n")
    assert process.wait(60) == 1
    os.close(ours)


def test_the_model_of_the_last_launch_is_used_again(server, clients):
    need(GEMMA3)
    recipe = server.home / "Modelfile"
    template = "{{ .System }}{{ if .Tools }}{{ .Tools }}{{ end }}{{ range .Messages }}{{ .Content }}{{ if .ToolCalls }}{{ .ToolCalls }}{{ end }}{{ end }}"
    for name in ("first", "second"):
        recipe.write_text(f'FROM {GEMMA3}\nTEMPLATE """{template}"""\n')
        server.cli("create", name, "-f", recipe, check=True)
    record, done = launched(server, clients, "codex", XDG_STATE_HOME=str(clients.parent))
    assert any(f'model="{name}:latest"' in record["arguments"] for name in ("first", "second")), "a model that can call tools"
    assert windows("codex", record) == [1500]
    launched(server, clients, "codex", "--model", "first", XDG_STATE_HOME=str(clients.parent))
    record, _ = launched(server, clients, "codex", XDG_STATE_HOME=str(clients.parent))
    assert 'model="first"' in record["arguments"]


def wait_for(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
