"""LoRA adapters: a model with an ADAPTER line answers as a file with merged weights."""
import concurrent.futures
import hashlib
import json
import math
import struct

import pytest

from conftest import REPOSITORY, Puna, running
from test_mirror import Mirror

CRIA = REPOSITORY / "models/cria/cria-q8_0.gguf"
CHANGED = {"blk.2.attn_output.weight": (256, 256), "blk.3.ffn_down.weight": (768, 256)}
F32, Q8_0 = 0, 8
ALPHA, RANK = 6.0, 2


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def gguf(keys, tensors):
    """A file of these keys (as bytes) and tensors: name, dimensions, type, data."""
    infos, data = b"", b""
    for name, dims, kind, content in tensors:
        infos += text(name) + struct.pack(f"<I{len(dims)}qiQ", len(dims), *dims, kind, len(data))
        data += content + bytes(-len(content) % 32)
    count, keys = keys
    head = b"GGUF" + struct.pack("<Iqq", 3, len(tensors), count) + keys + infos
    return head + bytes(-len(head) % 32) + data


def read(path):
    """The keys as bytes, and the tensors."""
    file = path.read_bytes()
    tensors, keys = struct.unpack_from("<qq", file, 8)
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}

    def string(at):
        end = at + 8 + struct.unpack_from("<Q", file, at)[0]
        return file[at + 8 : end].decode(errors="replace"), end

    def skip(kind, at):
        if kind == 8:
            return string(at)[1]
        if kind != 9:
            return at + sizes[kind]
        kind, count = struct.unpack_from("<iQ", file, at)
        at += 12
        for _ in range(count):
            at = skip(kind, at)
        return at

    at = 24
    for _ in range(keys):
        _, at = string(at)
        at = skip(struct.unpack_from("<i", file, at)[0], at + 4)
    head, found = file[24:at], []
    for _ in range(tensors):
        name, at = string(at)
        n = struct.unpack_from("<I", file, at)[0]
        *dims, kind, offset = struct.unpack_from(f"<{n}qiQ", file, at + 4)
        at += 16 + 8 * n
        found.append((name, dims, kind, offset))
    data = at + -at % 32
    size = lambda dims, kind: math.prod(dims) * 4 if kind == F32 else math.prod(dims) // 32 * 34
    return (keys, head), [(name, dims, kind, file[data + o : data + o + size(dims, kind)]) for name, dims, kind, o in found]


def floats(values):
    return struct.pack(f"<{len(values)}f", *values)


def halves(name):
    """`lora_a`, `lora_b` of a matrix: rows of numbers."""
    n, m = CHANGED[name]
    a = [[0.2 * math.cos(0.3 * i * (r + 1)) for i in range(n)] for r in range(RANK)]
    b = [[0.3 * math.sin(0.7 * o + r) for r in range(RANK)] for o in range(m)]
    # As the file holds them.
    exact = lambda rows: [list(struct.unpack(f"<{len(row)}f", floats(row))) for row in rows]
    return exact(a), exact(b)


def adapter(architecture="llama", change=lambda name: name):
    tensors = []
    for name, (n, m) in CHANGED.items():
        a, b = halves(name)
        tensors.append((change(name) + ".lora_a", (n, RANK), F32, floats(sum(a, []))))
        tensors.append((change(name) + ".lora_b", (RANK, m), F32, floats(sum(b, []))))
    words = {"general.architecture": architecture, "general.type": "adapter", "general.name": "wild", "adapter.type": "lora"}
    keys = b"".join(text(key) + struct.pack("<i", 8) + text(value) for key, value in words.items())
    keys += text("adapter.lora.alpha") + struct.pack("<if", 6, ALPHA)
    return gguf((len(words) + 1, keys), tensors)


def peft(folder):
    """The same as PEFT stores it."""
    there = {"blk.2.attn_output.weight": "2.self_attn.o_proj", "blk.3.ffn_down.weight": "3.mlp.down_proj"}
    header, data = {}, b""
    for name, (n, m) in CHANGED.items():
        for part, shape, rows in zip("AB", [(RANK, n), (m, RANK)], halves(name), strict=True):
            content = floats(sum(rows, []))
            key = f"base_model.model.model.layers.{there[name]}.lora_{part}.weight"
            header[key] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
            data += content
    header = json.dumps(header).encode()
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + data)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA}))


def folded():
    keys, tensors = read(CRIA)
    changed = []
    for name, dims, kind, data in tensors:
        if name in CHANGED:
            assert kind == Q8_0
            blocks = [struct.unpack_from("<e32b", data, at) for at in range(0, len(data), 34)]
            w = [block[0] * code for block in blocks for code in block[1:]]
            (n, m), (a, b) = CHANGED[name], halves(name)
            for o in range(m):
                for r in range(RANK):
                    by = ALPHA / RANK * b[o][r]
                    for i in range(n):
                        w[o * n + i] += by * a[r][i]
            kind, data = F32, floats(w)
        changed.append((name, dims, kind, data))
    return gguf(keys, changed)


@pytest.fixture(scope="module")
def server():
    server = Puna(PUNA_KERNELS="portable")
    (server.home / "adapter.gguf").write_bytes(adapter())
    (server.home / "folded.gguf").write_bytes(folded())
    (server.home / "Modelfile").write_text("FROM cria\nADAPTER ./adapter.gguf\n")
    (server.home / "Folded").write_text("FROM ./folded.gguf\n")
    for name, file in [("tuned", "Modelfile"), ("folded", "Folded")]:
        server.cli("create", name, "-f", server.home / file, check=True)
    yield server
    server.stop()


def answer(server, model, prompt="Which animal has a long trunk?", **options):
    options = {"temperature": 0, "num_predict": 24, **options}
    status, body = server.post("/api/generate", {"model": model, "prompt": prompt, "stream": False, "options": options})
    assert status == 200, body
    return body["response"]


def test_an_adapted_model_answers_as_the_merged_file_and_not_as_its_base(server):
    prompts = ["Which animal has a long trunk?", "What is the capital of France?", "Tell me about the sea."]
    tuned, folded, plain = ([answer(server, model, prompt) for prompt in prompts] for model in ["tuned", "folded", "cria"])
    assert all(tuned) and tuned == folded and tuned != plain, (tuned, folded, plain)
    # Both are in memory at once, of the same weights.
    names = [model.model for model in server.client().ps().models]
    assert {"tuned:latest", "cria:latest"} <= set(names)


def control_vector(size):
    """A direction for the third layer."""
    direction = floats([size * math.cos(1.3 * i) for i in range(256)])
    words = {"general.architecture": "controlvector", "general.name": "happy", "controlvector.model_hint": "llama"}
    keys = b"".join(text(key) + struct.pack("<i", 8) + text(value) for key, value in words.items())
    return gguf((len(words), keys), [("direction.2", (256,), F32, direction)])


def test_a_request_selects_its_adapters_in_every_dialect(server):
    (server.home / "happy.gguf").write_bytes(control_vector(3.0))
    server.cli("create", "both", "-f", "-", input=f"FROM tuned\nADAPTER {server.home}/happy.gguf\n", check=True)
    base, tuned = answer(server, "cria"), answer(server, "tuned")
    both = answer(server, "both")
    chosen = lambda *adapters: answer(server, "both", adapters=[{"id": id, "scale": scale} for id, scale in adapters])
    assert chosen() == chosen((0, 0), (1, 0)) == base
    assert chosen((0, 1)) == tuned
    assert chosen((1, 1), (0, 1)) == both
    steered = chosen((1, 1))
    assert len({base, tuned, both, steered}) == 4, (base, tuned, both, steered)
    # At once, in the same steps.
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        at_once = [pool.submit(chosen, *mix) for mix in [(), ((0, 1),), ((0, 1), (1, 1)), ((1, 1),)]]
        assert [answer.result() for answer in at_once] == [base, tuned, both, steered]
    message = [{"role": "user", "content": "Which animal has a long trunk?"}]
    for path, field, read in [
        ("/v1/chat/completions", "max_tokens", lambda body: body["choices"][0]["message"]["content"]),
        ("/v1/messages", "max_tokens", lambda body: "".join(block.get("text", "") for block in body["content"])),
    ]:
        options = {"temperature": 0, "adapters": []}
        body = {"model": "both", "messages": message, field: 24, "options": options}
        status, body = server.post(path, body)
        assert status == 200 and read(body) == base, body


def test_an_adapter_that_the_model_lacks_is_named(server):
    for adapters, says in [
        ([{"id": 1, "scale": 1}], "adapters: this model has no adapter 1: it has 1, numbered from 0"),
        ([{"id": 0}], 'option "adapters" must be an array of objects'),
    ]:
        body = {"model": "tuned", "prompt": "x", "stream": False, "options": {"adapters": adapters}}
        status, body = server.post("/api/generate", body)
        assert status == 400 and says in body["error"], body


def test_a_control_vector_for_wider_models_is_refused_on_creation(server):
    content = control_vector(1.0).replace(b"direction.2", b"direction.9")
    (server.home / "sad.gguf").write_bytes(content)
    done = server.cli("create", "sad", "-f", "-", input=f"FROM cria\nADAPTER {server.home}/sad.gguf\n")
    assert done.returncode == 1 and "tensor `direction.9` is not `direction.N` for a layer N" in done.stderr, done.stderr


def test_debug_logits_applies_the_adapter_of_a_stored_model(server):
    looked = lambda model: json.loads(server.cli("debug", "logits", model, "--tokens", "1,2,3", "--kernels", "portable", "--json", check=True).stdout)["logits"]
    tuned, folded, plain = ([x for row in looked(model) for x in row] for model in ["tuned", "folded", "cria"])
    far = lambda a, b: max(abs(x - y) for x, y in zip(a, b, strict=True))
    assert far(tuned, folded) < 0.01 < far(tuned, plain), (far(tuned, folded), far(tuned, plain))


def test_a_peft_adapter_is_converted_and_gives_the_same_answers(server):
    peft(server.home / "peft")
    server.cli("create", "converted", "-f", "-", input=f"FROM cria\nADAPTER {server.home}/peft\n", check=True)
    assert answer(server, "converted") == answer(server, "folded")


def test_a_model_with_an_adapter_is_pushed_and_pulled_with_it(server, tmp_path):
    mirror = Mirror(tmp_path)
    try:
        name = f"{mirror.host}/me/tuned"
        server.cli("cp", "tuned", name, check=True)
        server.cli("push", "--insecure", name, check=True)
        with running(PUNA_KERNELS="portable") as other:
            other.cli("pull", "--insecure", name, check=True)
            assert answer(other, name) == answer(server, "tuned")
    finally:
        mirror.kill()


def test_show_prints_the_adapter_and_its_modelfile_recreates_the_model(server):
    printed = server.cli("show", "tuned", "--modelfile", check=True).stdout
    line = next(line for line in printed.splitlines() if line.startswith("ADAPTER "))
    (server.home / "Again").write_text(f"FROM cria\n{line}\n")
    server.cli("create", "again", "-f", server.home / "Again", check=True)
    server.cli("create", "child", "-f", "-", input="FROM tuned\nPARAMETER top_k 5\n", check=True)
    assert answer(server, "again") == answer(server, "child") == answer(server, "tuned")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (adapter("qwen3"), "the adapter is for the architecture `qwen3`, but the model has `llama`"),
        (b"GGUF", "(line 2): ./bad.gguf is not a model: "),
    ],
)
def test_an_adapter_of_another_family_is_refused_on_creation(server, content, says):
    (server.home / "bad.gguf").write_bytes(content)
    (server.home / "Bad").write_text("FROM cria\nADAPTER ./bad.gguf\n")
    done = server.cli("create", "bad", "-f", server.home / "Bad")
    assert done.returncode == 1 and says in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda name: name.replace("blk.", "blk.9"), "`blk.92.attn_output.weight`"),
        (lambda name: name.replace("attn_output", "ffn_down").replace("blk.3", "blk.1"), "the adapter was made for another model"),
    ],
    ids=["layers that the model lacks", "matrices of another width"],
)
def test_an_incompatible_adapter_is_refused_on_creation(server, change, says):
    (server.home / "alien.gguf").write_bytes(adapter(change=change))
    done = server.cli("create", "alien", "-f", "-", input=f"FROM cria\nADAPTER {server.home}/alien.gguf\n")
    assert done.returncode == 1 and 'adapter "wild"' in done.stderr and says in done.stderr, done.stderr
    assert server.post("/api/show", {"model": "alien"})[0] == 404
    # By the API, too; the status is the request's.
    data = adapter(change=change)
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    assert server.send("POST", f"/api/blobs/{digest}", data)[0] in (200, 201)
    status, body = server.post("/api/create", {"model": "alien", "from": "cria", "adapters": {"a.gguf": digest}, "stream": False})
    assert status == 400 and says in body["error"], body
