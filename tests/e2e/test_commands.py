"""Commands: output, JSON and exit codes."""
import json
import pathlib
import re
import signal
import subprocess

import pytest

from conftest import BINARY, DATA, REPOSITORY, SMOLLM2, free_port, need, puna, wait_for

CRIA = REPOSITORY / "models/cria/cria-q8_0.gguf"


def as_json(*args, env, **kw):
    """The one JSON document that a command prints."""
    return json.loads(puna(*args, "--json", env=env, check=True, **kw).stdout)


def test_run_answers_once(server):
    done = server.cli("run", "cria", "--think=false", "What is the capital of France?", check=True)
    assert done.stdout == "Paris.\n\n"


def test_run_shows_thinking_separately_from_the_answer(server):
    done = server.cli("run", "cria", "What is the capital of France?", check=True)
    assert done.stdout.startswith("Thinking...\n") and done.stdout.endswith("...done thinking.\n\nParis.\n\n"), done.stdout


def test_run_puts_piped_input_before_the_prompt(server):
    answer = lambda *args, **kw: server.cli("run", "cria", "--think=false", *args, check=True, **kw).stdout
    assert answer("4", input="9 - ") == answer("9 -  4") == "5.\n\n"
    # It can be told from the other order and from either part alone.
    assert "5.\n\n" not in (answer("9 - ", input="4"), answer("4"), answer("", input="9 - "))


def test_run_accepts_parameters(server):
    ask = ["run", "cria", "--think=false", "What is the capital of France?"]
    assert len(server.cli(*ask, "-p", "temperature=0", "-p", "num_predict=2", check=True).stdout.split()) <= 2
    cut = server.cli(*ask, "--parameter", "stop=Paris", "--parameter", "stop=no such word", check=True).stdout
    assert "Paris" not in cut
    for wrong, told in (
        ("temperature", "NAME=VALUE"),
        ("temperatur=0", "unknown parameter 'temperatur'"),
        ("num_predict=many", "many"),
    ):
        done = server.cli(*ask, "-p", wrong)
        assert done.returncode == 2 and told in done.stderr, done.stderr


def test_run_verbose_prints_statistics_on_standard_error(server):
    done = server.cli("run", "cria", "--think=false", "--verbose", "What is the capital of France?", check=True)
    assert done.stdout.strip() == "Paris."
    for line in (r"total duration: +\S+s$", r"prompt eval count: +\d+ token\(s\)$", r"eval rate: +\d+\.\d\d tokens/s$"):
        assert re.search(line, done.stderr, re.M), (line, done.stderr)


def test_run_of_an_unknown_model_fails(server):
    # It is looked for where its name says, and nobody is there.
    done = server.cli("run", "127.0.0.1:1/library/nothing-like-this", "x")
    assert done.returncode == 1 and "Error: pull model manifest: " in done.stderr, done


def test_models_are_copied_listed_shown_stopped_and_removed(server):
    assert server.cli("cp", "cria", "twin", check=True).stdout == "copied 'cria' to 'twin'\n"
    listing = server.cli("list", check=True).stdout.splitlines()
    assert listing[0].startswith("NAME") and re.split(r" {2,}", listing[0].strip()) == ["NAME", "ID", "SIZE", "MODIFIED"]
    assert any(re.match(r"twin:latest +[0-9a-f]{12} +6\.3 MB +\S", line) for line in listing), listing
    server.cli("run", "twin", "Hello!", check=True)
    loaded = server.cli("ps", check=True).stdout.splitlines()
    assert re.split(r" {2,}", loaded[0].strip()) == ["NAME", "ID", "SIZE", "PROCESSOR", "CONTEXT", "UNTIL"]
    assert any("100% CPU" in line for line in loaded[1:]), loaded
    assert server.cli("stop", "twin", check=True).stdout == ""
    assert server.cli("rm", "twin", check=True).stdout == "deleted 'twin'\n"
    again = server.cli("rm", "twin")
    assert again.returncode == 1 and "model 'twin' not found" in again.stderr


def test_show_prints_its_sections(server):
    shown = server.cli("show", "cria", check=True).stdout
    assert shown.startswith("  Model\n    architecture "), shown
    for text in ("5.77M", "Q8_0", "  Capabilities\n    completion"):
        assert text in shown, shown
    assert "<|im_start|>" in server.cli("show", "cria", "--template", check=True).stdout
    assert "FROM" in server.cli("show", "cria", "--modelfile", check=True).stdout
    missing = server.cli("show", "nothing")
    assert missing.returncode == 1 and missing.stderr == "Error: model 'nothing:latest' not found\n"


def test_create_accepts_a_gguf_file_and_a_modelfile(server, tmp_path):
    (tmp_path / "Modelfile").write_text(f'FROM {CRIA}\nPARAMETER temperature 0\nTEMPLATE """{{{{ .Prompt }}}}"""\n')
    server.cli("create", "plain", "-f", tmp_path / "Modelfile", check=True)
    assert server.client().generate("plain", "The capital of Italy is", raw=True, options={"num_predict": 4}).response.strip().startswith("Rome")
    assert "temperature 0" in server.cli("show", "plain", "--modelfile", check=True).stdout
    server.cli("rm", "plain", check=True)


def test_create_adds_the_stop_strings_of_a_known_template(server, smollm2):
    parameters = server.cli("show", smollm2, "--parameters", check=True).stdout
    assert '"<|im_start|>"' in parameters and '"<|im_end|>"' in parameters, parameters
    # The system text of the file's own template is still there.
    _, shown = server.post("/api/chat", {"model": smollm2, "messages": [{"role": "user", "content": "Hi"}], "stream": False, "_debug_render_only": True})
    assert "named SmolLM" in json.dumps(shown), shown


def test_a_file_that_is_no_adapter_is_refused(server, tmp_path):
    (tmp_path / "Modelfile").write_text(f"FROM cria\nADAPTER {CRIA}\n")
    done = server.cli("create", "adapted", "-f", tmp_path / "Modelfile")
    assert done.returncode == 1 and "which is not an adapter: name a GGUF file" in done.stderr, done
    assert "adapted" not in server.cli("list", check=True).stdout


def test_debug_parse_runs_a_parser_and_manual_writes_pages(home, tmp_path):
    chunks = tmp_path / "chunks.json"
    chunks.write_text(json.dumps(["<think>", "so", "</think>", "Yes"]))
    told = as_json("debug", "parse", "--parser", "thinking", "--chunks", chunks, env=home)
    assert told == {"content": "Yes", "thinking": "so", "tool_calls": []}
    puna("manual", tmp_path / "man", env=home, check=True)
    assert (tmp_path / "man/puna-run.1").read_text().startswith(".ie")


@pytest.mark.parametrize("command", [["list"], ["ps"], ["show", "cria"], ["cp", "cria", "mine"], ["rm", "mine"], ["verify"], ["prune"]], ids=" ".join)
def test_a_configured_address_without_a_server_is_an_error(alone, command):
    done = puna(*command, env=alone)
    assert done.returncode == 1 and done.stdout == "", done
    assert f"http://{alone['OLLAMA_HOST']}" in done.stderr and "set by OLLAMA_HOST" in done.stderr, done.stderr
    assert not (pathlib.Path(alone["HOME"]) / ".ollama").exists()


def test_inspect_describes_a_file(home):
    told = as_json("inspect", CRIA, "--tensors", "--kv", env=home)
    assert told["architecture"] == "llama" and told["parameters"] == 5_770_496 and told["context_length"] == 2048
    assert told["tokenizer"] == {"model": "gpt2", "pre": "llama-bpe", "tokens": 4096}
    assert told["kv"]["llama.block_count"] == 6 and len(told["tensors"]) == 56
    embd = next(t for t in told["tensors"] if t["name"] == "token_embd.weight")
    assert embd["type"] == "Q8_0" and embd["shape"] == [256, 4096]
    assert "cria" in puna("inspect", "cria", env=home, check=True).stdout.lower()


def test_inspect_lists_the_translation_of_published_files(home):
    told = as_json("inspect", DATA / "compat/full-gemma3.gguf", env=home)
    translated = told["translated"]
    assert (translated["from"], translated["renamed"], translated["dropped"]) == ("gemma3 as published by Ollama", 0, 3)
    assert translated["added"] == ["gemma3.rope.freq_base", "gemma3.rope.freq_base_swa", "tokenizer.chat_template"]
    told = as_json("inspect", DATA / "compat/full-gptoss.gguf", env=home)["translated"]
    assert told["architecture"] == {"from": "gptoss", "to": "gpt-oss"}, told
    # Four tensors in each of its two blocks have other names than in llama.cpp's form.
    assert told["renamed"] == 8, told


def test_tokenize_and_detokenize_round_trip(home):
    text = "What is the capital of France?"
    told = as_json("tokenize", CRIA, text, env=home)
    assert len(told["tokens"]) == len(told["pieces"]) > 3
    ids = ",".join(map(str, told["tokens"]))
    assert text in as_json("detokenize", CRIA, "--tokens", ids, env=home)["text"]
    assert as_json("tokenize", CRIA, env=home, input=text)["tokens"] == told["tokens"]
    special = as_json("tokenize", CRIA, "<|im_end|>", "--no-bos", env=home)["tokens"]
    plain = as_json("tokenize", CRIA, "<|im_end|>", "--no-bos", "--no-special", env=home)["tokens"]
    assert len(special) == 1 and len(plain) > 1


def test_bench_reports_speed_as_a_share_of_the_machines_limit(home):
    told = as_json("bench", CRIA, "-p", 64, "-n", 16, "-r", 2, env=home)
    assert told["machine"]["read_gbs"] > 0 and told["machine"]["threads"] >= 1 and told["machine"]["kernels"]
    assert [r["test"] for r in told["results"]] == ["pp64", "tg16"]
    for result in told["results"]:
        assert result["tokens_per_second"] > 0 and len(result["runs"]) == 2 and result["limit"] in ("bandwidth", "compute")
        assert 0 < result["limit_share"]


def test_the_perplexity_of_a_text_is_plausible(home, tmp_path):
    text = tmp_path / "text"
    text.write_text("The capital of France is Paris. The capital of Italy is Rome. " * 20)
    told = as_json("perplexity", CRIA, "--file", text, "--ctx", 128, env=home)
    assert told["tokens"] > 100 and 1 < told["perplexity"] < 4096


def test_an_importance_matrix_is_computed_and_used(home, tmp_path):
    text, matrix, small = tmp_path / "text.txt", tmp_path / "matrix.gguf", tmp_path / "small.gguf"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 40)
    told = puna("imatrix", str(CRIA), "-f", str(text), "-o", str(matrix), "--ctx", "128", "--chunks", "2", env=home, check=True)
    assert "[2/2]" in told.stderr
    assert b"blk.5.ffn_down.weight.in_sum2" in matrix.read_bytes()
    # This type cannot be made without.
    without = puna("quantize", str(CRIA), str(small), "IQ2_XS", env=home)
    assert without.returncode != 0 and "importance" in without.stderr, without.stderr
    puna("quantize", str(CRIA), str(small), "IQ2_XS", "--imatrix", str(matrix), env=home, check=True)
    assert small.stat().st_size < CRIA.stat().st_size // 2


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_a_terminated_command_leaves_no_unfinished_file(home, tmp_path, end):
    text, out = tmp_path / "text.txt", tmp_path / "out"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 40_000)
    out.mkdir()
    command = [BINARY, "imatrix", CRIA, "-f", text, "-o", out / "matrix.gguf", "--ctx", "128"]
    process = subprocess.Popen([*map(str, command)], env=home, stderr=subprocess.DEVNULL)
    assert wait_for(lambda: list(out.iterdir()))
    process.send_signal(end)
    assert process.wait(20) == 128 + end and list(out.iterdir()) == []


@pytest.mark.parametrize("split", ["whole", "one", "7"])
def test_debug_logits_agree_with_the_zoo(home, split):
    case = json.loads((DATA / "zoo/llama.json").read_text())
    ids = case.get("tokens") or case["cases"][0]["tokens"]
    told = as_json("debug", "logits", DATA / "zoo/llama.gguf", "--tokens", ",".join(map(str, ids)), "--positions", "all", "--split", split, "--kernels", "portable", env=home)
    assert told["architecture"] == "llama" and len(told["logits"]) == len(told["positions"]) == len(ids)
    assert all(len(row) == told["n_vocab"] for row in told["logits"])


def test_debug_render_shows_the_prompt(home, tmp_path):
    request = tmp_path / "request.json"
    request.write_text(json.dumps({"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello!"}]}))
    told = as_json("debug", "render", "cria", "--request", request, env=home)
    assert told["prompt"] == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n"
    assert told["tokens"] and not told["truncated"]


def test_debug_dequantizes_blocks_and_measures_errors(home):
    told = as_json("debug", "dequantize", "--type", "Q8_0", "--hex", "003c" + "01" * 32, env=home)
    assert told["values"] == [1.0] * 32
    assert as_json("debug", "quantize-error", "--type", "Q4_K", env=home)["rmse"] < 0.1


def test_debug_lists_graph_nodes_and_kernels(home):
    graph = as_json("debug", "graph", CRIA, env=home)
    assert graph["nodes"] and graph["scratch_bytes"] > 0
    assert as_json("debug", "kernels", env=home)


def test_an_unknown_kernel_level_lists_the_available_ones(home):
    done = puna("debug", "logits", CRIA, "--tokens", "1,2", "--kernels", "abacus", "--json", env=home)
    assert done.returncode in (1, 2) and "portable" in done.stderr, done


def test_settings_are_read_from_file_environment_and_command_line(home):
    file = pathlib.Path(home["HOME"]) / ".config/puna/puna.toml"
    file.parent.mkdir(parents=True)
    file.write_text('keep_alive = "30m"\nmax_queue = 7\nhost = "127.0.0.1:1"\n')
    env = home | {"OLLAMA_MAX_QUEUE": "9"}
    found = as_json("config", "--host", "127.0.0.1:2", "--set", "threads=1", env=env)
    settings = {s["key"]: (s["value"], s["source"]) for s in found["settings"]}
    assert found["file"] == str(file)
    assert settings["keep_alive"] == ('"30m0s"', f"{file}, line 1")
    assert settings["max_queue"] == ("9", "OLLAMA_MAX_QUEUE")
    assert settings["host"] == ('"127.0.0.1:2"', "command line") and settings["threads"][1] == "command line"
    assert settings["load_timeout"] == ('"5m0s"', "default")
    text = puna("config", env=env, check=True).stdout
    file.write_text(text)
    again = as_json("config", env=home)["settings"]
    assert [s["value"] for s in again] == [s["value"] for s in as_json("config", env=env)["settings"]]
    file.write_text('registry.mirrors = ["m:1"]\n[registry.hosts."r.intra:5000"]\nhttp = true\nusername = "ci"\npassword = "s3cret"\nstreams = 2\n[registry.hosts.h]\ntoken_env = "TOKEN"\nlimit_rate = "2MB"\n')
    env |= {"TOKEN": "t0ken"}
    found = as_json("config", env=env)["hosts"]
    assert [s["key"] for s in found[0]["settings"]] == ["http", "username", "password", "streams"] and found[0]["host"] == "r.intra:5000"
    assert found[0]["settings"][2] == {"key": "password", "value": None, "source": f"{file}, line 5"}
    text = puna("config", env=env, check=True).stdout
    assert "# password: set, not shown" in text and "s3cret" not in text and "t0ken" not in text
    file.write_text(text)
    again = as_json("config", env=env)["hosts"]
    assert [s["key"] for s in again[0]["settings"]] == ["http", "streams"], "a user without a password is none"
    assert [(s["key"], s["value"]) for s in again[1]["settings"]] == [("token_env", '"TOKEN"'), ("limit_rate", '"2MB"')]
    file.write_text("max_queu = 7\n")
    for command in (["config"], ["serve"], ["list"]):
        done = puna(*command, env=home)
        assert done.returncode == 1 and f'{file}, line 1: unknown setting "max_queu": did you mean "max_queue"?' in done.stderr, done


def test_a_server_listens_at_the_address_of_the_command_line(home):
    port = free_port()
    server = subprocess.Popen([BINARY, "serve", "--host", f"127.0.0.1:{port}"], env=home, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    line = server.stderr.readline()
    server.terminate()
    assert server.wait(30) == 0 and f"127.0.0.1:{port}" in line, line


def test_commands_have_help_and_shells_have_completions(home):
    for shell in ("bash", "zsh", "fish"):
        assert "puna" in puna("completion", shell, env=home, check=True).stdout
    for command in ("serve", "run", "list", "show", "ps", "stop", "cp", "rm", "create", "inspect", "tokenize", "detokenize", "bench", "perplexity", "debug"):
        assert len(puna(command, "--help", env=home, check=True).stdout) > 200, command
    assert puna("--version", env=home, check=True).stdout.strip()


def test_inspect_reads_a_published_file(home):
    assert as_json("inspect", need(SMOLLM2), env=home)["tokenizer"]["pre"] == "smollm"
