"""Unmodified coding agents against scripted models: Puna builds the prompts, streams and errors, and the script
gives the model's output."""
import re

import pytest

from agents import AGENTS, BRIEF_TOKENS, need_agents, refusing_proxy
from conftest import GEMMA3, need, running, wait_for
from scripted import WINDOW, answer, call, calls, playing, text

DONE = "FINISHED-AS-TOLD"
# The template of Gemma's file has no place for tools, and agents send some with every request.
# It takes tools, and does not tell the model of them: so small a one would call them for ever.
QUIET_TEMPLATE = """{{- if .Tools }}{{ end }}{{ range .Messages }}<start_of_turn>{{ if eq .Role "assistant" }}model{{ else }}user{{ end }}
{{ .Content }}{{ range .ToolCalls }}{{ .Function.Name }}{{ end }}<end_of_turn>
{{ end }}<start_of_turn>model
"""
# Told to every prompt that no other answer fits: titles, summaries.
OTHERWISE = answer(text("A title"))


@pytest.fixture(scope="module", autouse=True)
def agents_are_there():
    need_agents()


@pytest.fixture(scope="module")
def proxy():
    with refusing_proxy() as it:
        yield it


@pytest.fixture(scope="module", params=["model", "remote"])
def server(request):
    with playing(request.param) as it:
        yield it
        assert it.process.poll() is None, it.log.read_text()


@pytest.fixture(scope="module")
def model():
    with playing("model") as it:
        yield it


def turns(agent, *steps):
    """Answers to an agent's own prompts by how many answers there were, and to all others a title."""
    numbered = [answer(*(one if isinstance(one, tuple) else (one,)), when={"contains": [agent.offered], "assistant_turns": n}) for n, one in enumerate(steps, agent.seeded)]
    return [*numbered, OTHERWISE]


def metric(server, name, **labels):
    """The sum of a metric of all models, where it has these labels."""
    lines = re.findall(rf"^{name}{{([^}}]*)}} (\S+)$", server.get("/metrics")[1].decode(), re.M)
    return sum(float(value) for found, value in lines if all(f'{label}="{of}"' in found for label, of in labels.items()))


@pytest.mark.parametrize("kind", AGENTS)
def test_a_command_runs_once_and_parallel_calls_all_run(server, proxy, kind, tmp_path):
    agent = AGENTS[kind](tmp_path, server.url, proxy)
    files = [agent.work / name for name in ("once.txt", "a.txt", "b.txt")]
    append = lambda file: agent.run_command(f"echo ONCE >> {file}")
    parallel = calls(append(files[1]), append(files[2]))
    server.play(*turns(agent, ({"thinking": "I run it."}, text("I run it."), append(files[0])), parallel, text(DONE)))
    ran = agent.run("Append a line to the file")
    assert (ran.status, ran.text) == (0, DONE), ran
    assert [file.read_text() for file in files] == ["ONCE\n"] * 3, ran


@pytest.mark.parametrize("kind", AGENTS)
def test_a_tool_of_an_mcp_server_is_called_once(server, proxy, kind, tmp_path):
    agent = AGENTS[kind](tmp_path, server.url, proxy, mcp=True)
    server.play(*turns(agent, *agent.search, call(agent.note, {"note": "buy milk"}), text(DONE)))
    ran = agent.run("Note that I must buy milk")
    assert (ran.status, ran.text) == (0, DONE), ran
    assert agent.notes.exists() and agent.notes.read_text() == "buy milk\n", ran


@pytest.mark.parametrize("kind", AGENTS)
def test_a_long_conversation_uses_the_prefix_cache(model, proxy, kind, tmp_path):
    agent = AGENTS[kind](tmp_path, model.url, proxy)
    steps = [agent.run_command(f"echo {n} >> {agent.work}/steps.txt") for n in range(40)]
    model.play(*turns(agent, *steps, text(DONE)))
    before = len(model.counts())
    ran = agent.run("Count to forty")
    assert (ran.status, ran.text) == (0, DONE), ran
    assert (agent.work / "steps.txt").read_text().split() == [str(n) for n in range(40)], ran
    # Prompts for a title are other ones: answered with fewer tokens, and before the first call or behind the last.
    prompts = [(prompt, cached) for prompt, cached, generated in model.counts()[before:] if generated > 10]
    assert len(prompts) == 41, prompts
    shares = [cached / prompt for prompt, cached in prompts[1:]]
    assert min(shares) >= 0.95, shares


# Tokens of the model in the test of overflow, and windows that clients are told. Claude Code believes in one of its own: it meets
# the refusal. The others go by the counts that they get.
NARROW = 60000
WINDOWS = {"claude": WINDOW, "codex": 30000, "opencode": 30000, "qwen": 50000}


@pytest.fixture(scope="module")
def narrow():
    with playing("model", window=NARROW) as it:
        yield it


@pytest.mark.parametrize("kind", AGENTS)
def test_a_conversation_that_is_too_long_is_compacted_and_continues(narrow, proxy, kind, tmp_path):
    agent = AGENTS[kind](tmp_path, narrow.url, proxy, window=WINDOWS[kind])
    summary = "<state_snapshot>SUMMARY-OF-WORK: numbers were counted</state_snapshot>"
    count = agent.run_command("seq 100000 102500")
    narrow.play(
        answer(text(summary), when=agent.compaction),
        answer(text(DONE), when={"contains": [agent.offered, "SUMMARY-OF-WORK"]}),
        # More than any client has room for.
        answer(count, when={"contains": [agent.offered]}, times=8),
        OTHERWISE,
    )
    before = narrow.log.read_text()
    ran = agent.run("Count until you are told to stop")
    log = narrow.log.read_text()[len(before) :]
    assert (ran.status, ran.text) == (0, DONE), f"{ran}\n{log}"
    assert "answer=0" in log and ("status=400" in log) == (kind == "claude"), log


@pytest.mark.parametrize("kind", AGENTS)
def test_an_interrupted_client_stops_the_model(server, proxy, kind, tmp_path):
    agent = AGENTS[kind](tmp_path, server.url, proxy)
    words = text("and so it goes on and on " * 400)
    server.play(answer(words, when={"contains": [agent.offered]}, pace=50), OTHERWISE)
    cancelled = lambda: metric(server, "puna_model_requests_total", outcome="cancelled")
    before, seen = cancelled(), len(server.script_log.read_text())
    process = agent.start("Tell me a long story")
    begun = wait_for(lambda: "answer=0" in server.script_log.read_text()[seen:], 60)
    agent.interrupt(process)
    assert begun, server.script_log.read_text()
    # The story takes more than a minute.
    assert wait_for(lambda: cancelled() > before, 10), server.log.read_text()
    assert wait_for(lambda: server.is_idle(seen), 10), server.script_log.read_text()


@pytest.mark.parametrize("kind", AGENTS)
def test_a_conversation_is_resumed(model, proxy, kind, tmp_path):
    agent = AGENTS[kind](tmp_path, model.url, proxy)
    model.play(*turns(agent, agent.run_command("echo one >> runs.txt"), text("The word is GRANITE.")))
    first = agent.run("Run it and remember a word")
    assert (first.status, first.text) == (0, "The word is GRANITE."), first
    again = answer(text(DONE), when={"contains": [agent.offered, "GRANITE", "WHAT-WAS-IT"]})
    model.play(again, OTHERWISE)
    second = agent.run("WHAT-WAS-IT, the word?", resumes=True)
    assert (second.status, second.text) == (0, DONE), second
    assert (agent.work / "runs.txt").read_text() == "one\n"


@pytest.mark.parametrize("kind", AGENTS)
def test_a_real_model_answers(proxy, kind, gemma, tmp_path):
    agent = AGENTS[kind](tmp_path, gemma.url, proxy, model="gemma", window=32768, brief=True)
    before = len(gemma.log.read_text())
    ran = agent.run("Say hello")
    log = gemma.log.read_text()[before:]
    assert ran.status == 0 and ran.text.strip(), f"{ran}\n{log}"
    # Status 499: a client that has its answer exits while the model still writes a title for the conversation.
    assert not re.findall(r"status=(?!499)[45]\d\d", log), log


@pytest.fixture(scope="module")
def gemma():
    need(GEMMA3)
    with running() as it:
        # Left alone, so small a model repeats a sentence, or the agent's tags, up to the limit of tokens.
        stops = "".join(f'PARAMETER stop "{mark}"\n' for mark in ".!?>")
        it.cli("create", "gemma", "-f", "-", input=f'FROM {GEMMA3}\nTEMPLATE """{QUIET_TEMPLATE}"""\n{stops}PARAMETER temperature 0\nPARAMETER num_predict {BRIEF_TOKENS}\n', check=True)
        yield it
