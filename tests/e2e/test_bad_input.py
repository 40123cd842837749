"""Hostile and malformed input: an error with the specified status or exit code, never a panic; the server keeps
running."""
import math
import os
import re
import shutil
import struct

import pytest

from conftest import REPOSITORY, Puna, environment, free_port, puna

CRIA = REPOSITORY / "models/cria/cria-q8_0.gguf"


def fails(done, *texts):
    """Exit 1, one `Error: …` line at the end of standard error that says what is wrong, and no panic."""
    assert done.returncode == 1, (done.returncode, done.stdout[-500:], done.stderr[-500:])
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("Error: "), done.stderr
    assert "panicked" not in done.stderr
    for text in texts:
        assert text.lower() in done.stderr.lower(), (text, done.stderr)


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def header(*pairs, version=3, tensors=0):
    """A GGUF file of string pairs and no tensors."""
    body = b"".join(string(k) + struct.pack("<I", 8) + string(v) for k, v in pairs)
    return b"GGUF" + struct.pack("<IQQ", version, tensors, len(pairs)) + body


def patched(offset_of, data):
    """cria with some bytes replaced right behind a marker."""
    whole = bytearray(CRIA.read_bytes())
    at = whole.index(offset_of) + len(offset_of)
    whole[at : at + len(data)] = data
    return bytes(whole)


FILES = {
    "empty": (b"", "gguf"),
    "text": (b"hello, I am not a model\n" * 100, "gguf"),
    "magic-only": (b"GGUF", "gguf"),
    "truncated-header": (CRIA.read_bytes()[:10_000], ""),
    "truncated-data": (CRIA.read_bytes()[:3_000_000], ""),
    "huge-counts": (b"GGUF" + struct.pack("<IQQ", 3, 2**62, 2**62), ""),
    "huge-string": (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**63), ""),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "version-99": (header(version=99), "99"),
    "unknown-architecture": (header(("general.architecture", "warpdrive")), "warpdrive"),
    "no-architecture": (header(("general.name", "x")), "general.architecture"),
    "unknown-tensor-type": (patched(b"token_embd.weight" + struct.pack("<IQQ", 2, 256, 4096), struct.pack("<I", 250)), "250"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_broken_file_is_refused_by_every_command(home, tmp_path, name):
    data, text = FILES[name]
    path = tmp_path / f"{name}.gguf"
    path.write_bytes(data)
    fails(puna("run", path, "hello", env=home), text)
    # inspect shows what it can; what it cannot read is an error too.
    done = puna("inspect", path, "--json", env=home)
    assert done.returncode in (0, 1) and "panicked" not in done.stderr
    if name not in ("unknown-architecture", "no-architecture"):
        fails(done, text)


def test_an_unknown_architecture_lists_the_known_ones(home, tmp_path):
    path = tmp_path / "x.gguf"
    path.write_bytes(FILES["unknown-architecture"][0])
    fails(puna("run", path, "hello", env=home), "warpdrive", "llama", "gemma3", "bert")


def test_a_missing_file_is_named(home, tmp_path):
    fails(puna("inspect", tmp_path / "absent.gguf", env=home), "absent.gguf")
    fails(puna("run", f"{tmp_path}/absent.gguf", "x", env=home), "absent.gguf")
    fails(puna("inspect", tmp_path, env=home), str(tmp_path))


def test_create_of_a_broken_file_leaves_nothing_behind(server, tmp_path):
    path = tmp_path / "broken.gguf"
    path.write_bytes(FILES["truncated-data"][0])
    fails(server.cli("create", "broken", "-f", "-", input=f"FROM {path}\n"))
    assert "broken" not in server.cli("list", check=True).stdout


def test_a_bad_modelfile_is_explained(server, tmp_path):
    fails(server.cli("create", "bad", "-f", "-", input="FRUM cria\n"))
    fails(server.cli("create", "bad", "-f", "-", input="# nothing\n"))
    fails(server.cli("create", "bad", "-f", tmp_path / "absent"))


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (b"", 400, "missing request body"),
        (b"{", 400, "unexpected EOF"),
        (b'{"model": 3, "prompt": "x"}', 400, "cannot unmarshal number into Go struct field GenerateRequest.model of type string"),
        (b"[1, 2]", 400, "cannot unmarshal array"),
        (b'{"model": "cria", "prompt": ["x"]}', 400, "GenerateRequest.prompt"),
        (b'{"model": ""}', 404, "model '' not found"),
        (b'{"model": "no such name"}', 400, "invalid model name"),
        (b'{"model": "nothing", "prompt": "x"}', 404, "model 'nothing' not found"),
        (b'{"model": "../../etc/passwd", "prompt": "x"}', 400, "invalid model name"),
        (b'{"model": "cria", "prompt": "x", "options": {"temperature": "hot"}}', 400, 'option "temperature" must be of type float32'),
        (b'{"model": "cria", "prompt": "x", "options": {"stop": 3}}', 400, 'option "stop" must be'),
        (b'{"model": "cria", "prompt": "x", "keep_alive": "10"}', 400, "time: missing unit in duration"),
        (b'{"model": "cria", "prompt": "x", "top_logprobs": 50}', 400, "top_logprobs must be between 0 and 20"),
        (b'{"model": "cria", "prompt": "x", "raw": true, "system": "y"}', 400, "raw mode does not support template, system, or context"),
        (b"\xff\xfe{}", 400, ""),
        (b"[" * 100_000, 400, ""),
    ],
)
def test_a_bad_request_gets_its_status_and_text(server, body, status, text):
    got = server.post("/api/generate", body)
    assert got[0] == status and text in got[1]["error"], got
    assert server.get("/")[0] == 200


@pytest.mark.parametrize(
    "options, status",
    [
        ({"num_predict": -(2**60)}, 200),
        ({"num_predict": 2, "top_k": -(2**31)}, 200),
        ({"num_predict": 2, "num_keep": -(2**31)}, 200),
        ({"num_predict": 2, "repeat_last_n": -5}, 400),
        ({"num_predict": 2, "repeat_penalty": 0}, 400),
        ({"num_predict": 2, "temperature": -1}, 200),
        ({"num_predict": 2, "temperature": 1e308}, 400),
        ({"num_predict": 2, "top_p": 7, "min_p": 7, "typical_p": -3}, 200),
        ({"num_predict": 2, "seed": 2**63 - 1}, 200),
        ({"num_predict": 2, "num_ctx": -7}, 200),
        ({"num_predict": 2, "num_batch": 0}, 400),
        ({"num_predict": 2, "num_thread": 100_000}, 200),
        ({"num_predict": 2, "stop": [""]}, 200),
    ],
)
def test_extreme_options_are_clamped_or_refused(server, options, status):
    got = server.post("/api/generate", {"model": "cria", "prompt": "Hello!", "stream": False, "options": options})
    assert got[0] == status, got
    if status == 400:
        assert any(name in got[1]["error"] for name in options if name != "num_predict"), got
    elif options["num_predict"] == 2:
        assert got[1]["eval_count"] <= 2, got
    assert server.client().generate("cria", "What is the capital of France?", options={"temperature": 0}).response.strip() == "Paris."


def test_a_context_beyond_the_trained_one_is_capped(server):
    status, got = server.post("/api/generate", {"model": "cria", "prompt": "x", "stream": False, "options": {"num_ctx": 2**40, "num_predict": 1}})
    assert status == 200, got


def test_a_model_larger_than_memory_is_refused_before_loading(home, tmp_path):
    path = tmp_path / "huge.gguf"
    sparse_llama(path, 2 * memory_total())
    done = puna("run", path, "x", env=home, timeout=60)
    fails(done, "memory")
    assert re.search(r"\d GiB|\d GB", done.stderr), done.stderr


def memory_total():
    with open("/proc/meminfo") as f:
        return int(re.search(r"MemTotal: +(\d+) kB", f.read())[1]) * 1024


def sparse_llama(path, weights):
    """A well-formed llama whose weights take this many bytes, in a file with almost nothing on disk."""
    u32 = lambda key, value: string(key) + struct.pack("<II", 4, value)
    f32 = lambda key, value: string(key) + struct.pack("<If", 6, value)
    text = lambda key, value: string(key) + struct.pack("<I", 8) + string(value)
    array = lambda key, kind, items: string(key) + struct.pack("<IIQ", 9, kind, len(items)) + b"".join(items)
    width, tokens = 4096, ["<unk>", "<s>", "</s>", *map(chr, range(97, 123)), "\u2581", "x1", "x2"]
    inner = weights // (3 * width * 4) // 256 * 256
    pairs = [
        text("general.architecture", "llama"), u32("general.file_type", 0), u32("llama.context_length", 64), u32("llama.embedding_length", width),
        u32("llama.block_count", 1), u32("llama.feed_forward_length", inner), u32("llama.attention.head_count", 32), u32("llama.attention.head_count_kv", 32),
        f32("llama.attention.layer_norm_rms_epsilon", 1e-5), u32("llama.rope.dimension_count", width // 32), text("tokenizer.ggml.model", "llama"),
        array("tokenizer.ggml.tokens", 8, [string(t) for t in tokens]), array("tokenizer.ggml.scores", 6, [struct.pack("<f", -i) for i in range(len(tokens))]),
        array("tokenizer.ggml.token_type", 5, [struct.pack("<i", 2 if i == 0 else 3 if i < 3 else 1) for i in range(len(tokens))]),
        u32("tokenizer.ggml.bos_token_id", 1), u32("tokenizer.ggml.eos_token_id", 2),
    ]
    square = {f"blk.0.attn_{n}.weight": (width, width) for n in ("q", "k", "v", "output")}
    norms = {n: (width,) for n in ("blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight")}
    wide = {"blk.0.ffn_gate.weight": (width, inner), "blk.0.ffn_up.weight": (width, inner), "blk.0.ffn_down.weight": (inner, width)}
    infos, offset = b"", 0
    for name, shape in {"token_embd.weight": (width, len(tokens)), **square, **norms, **wide}.items():
        infos += string(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", n) for n in shape) + struct.pack("<IQ", 0, offset)
        offset += math.prod(shape) * 4
    head = b"GGUF" + struct.pack("<IQQ", 3, 1 + len(square) + len(norms) + len(wide), len(pairs)) + b"".join(pairs) + infos
    with open(path, "wb") as f:
        f.write(head + b"\0" * (-len(head) % 32))
        f.truncate(f.tell() + offset)


def test_a_store_that_cannot_be_read_is_named(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    env = environment(tmp_path, OLLAMA_HOST=f"127.0.0.1:{free_port()}", OLLAMA_MODELS=blocked)
    done = puna("serve", env=env, timeout=20)
    fails(done, str(blocked))


def test_a_full_store_is_reported(fresh):
    if not os.path.exists("/dev/full") or os.geteuid() != 0:
        pytest.skip("needs root for a small file system")
    server = fresh()
    small = server.home / "small"
    small.mkdir()
    if os.system(f"mount -t tmpfs -o size=2m tmpfs {small} 2>/dev/null") != 0:
        pytest.skip("cannot mount a small file system here")
    try:
        full = Puna(home=small)
        try:
            done = full.cli("create", "x", "-f", "-", input=f"FROM {CRIA}\n")
            fails(done, "space")
            assert full.get("/")[0] == 200
        finally:
            full.kill()
    finally:
        os.system(f"umount {small}")


def test_a_broken_manifest_does_not_hide_the_others(fresh):
    server = fresh()
    server.client().copy("cria", "good")
    [manifest] = server.home.glob(".ollama/models/manifests/**/good/latest")
    broken = manifest.parent.parent / "broken/latest"
    broken.parent.mkdir()
    broken.write_text("{ not json")
    names = [m.model for m in server.client().list().models]
    assert "good:latest" in names and "broken:latest" not in names
    status, got = server.post("/api/generate", {"model": "broken", "prompt": "x"})
    assert status >= 400 and got["error"]
    shutil.rmtree(broken.parent)


def test_an_oversized_body_does_not_end_the_server(server):
    status, _ = server.post("/api/generate", {"model": "cria", "prompt": "x " * 8_000_000, "stream": False, "truncate": False, "options": {"num_predict": 1}})
    assert status in (400, 413)
    assert server.get("/")[0] == 200


def test_usage_errors_are_reported(home):
    for args in (["frobnicate"], ["run"], ["list", "--frobnicate"], ["inspect"]):
        done = puna(*args, env=home)
        assert done.returncode in (1, 2) and "Error" in done.stderr, (args, done)
