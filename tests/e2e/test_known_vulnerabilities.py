"""Published vulnerabilities of other servers, tried on the running server. docs/guide/security.md lists them."""
import base64
import contextlib
import hashlib
import http.client
import json
import os
import pathlib
import socket
import struct
import time

import pytest

from conftest import REPOSITORY, alive
from test_bad_input import string

CRIA = REPOSITORY / "models/cria/cria-q8_0.gguf"
WHOLE = CRIA.read_bytes()
ASK = {"prompt": "hi", "stream": False, "options": {"num_predict": 2}}


def upload(server, data):
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    assert server.send("POST", f"/api/blobs/{digest}", data)[0] in (200, 201)
    return digest


def create(server, data, name="hostile", **extra):
    """(status, text) of making a model of a file, and of using it where that went well."""
    status, answer = server.send("POST", "/api/create", {"model": name, "files": {"m.gguf": upload(server, data)}, "stream": False, **extra}, timeout=60)
    if status == 200:
        status, answer = server.send("POST", "/api/generate", {"model": name, **ASK}, timeout=60)
        server.send("DELETE", "/api/delete", {"model": name})
    return status, answer.decode()


def is_well(server):
    """Nothing of it has ended, and it answers."""
    assert alive(server.process.pid)
    status, answer = server.post("/api/generate", {"model": "cria", **ASK})
    assert status == 200, answer
    assert "panicked" not in server.log.read_text()


def patched(marker, data, whole=WHOLE):
    changed = bytearray(whole)
    at = changed.index(marker) + len(marker)
    changed[at : at + len(data)] = data
    return bytes(changed)


def gguf(*pairs, tensors=()):
    """A file of values that are bytes with their type in front, and of descriptions of tensors without data."""
    body = b"".join(string(k) + v for k, v in pairs)
    infos = b"".join(string(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", n) for n in shape) + struct.pack("<IQ", kind, offset) for name, shape, kind, offset in tensors)
    return b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)) + body + infos


def text(value):
    return struct.pack("<I", 8) + string(value)


def u32(value):
    return struct.pack("<II", 4, value)


def array(kind, length, data=b""):
    return struct.pack("<IIQ", 9, kind, length) + data


LLAMA = ("general.architecture", text("llama"))

TRAVERSALS = ["../../../../etc/passwd", "sha256:../../../../../etc/passwd", "sha256-../../x", "..%2f..%2fetc%2fpasswd", "sha256:" + "0" * 63 + "/", "sha256:" + "0" * 65, "/etc/passwd"]


def test_cve_2024_37032_a_digest_is_never_a_path(server):
    """Also CVE-2025-44779 and CVE-2026-7020: digests of manifests, uploads and requests."""
    for digest in TRAVERSALS:
        for method in ("HEAD", "POST"):
            status, _ = server.send(method, f"/api/blobs/{digest}", b"x" if method == "POST" else None)
            assert status in (307, 400, 404), (method, digest, status)
        status, answer = server.post("/api/create", {"model": "x", "files": {"m.gguf": digest}, "stream": False})
        assert status == 400 and "root:" not in str(answer), (digest, answer)


def test_cve_2024_37032_a_manifest_that_names_other_files_reads_and_removes_none(fresh):
    """Also CVE-2025-44779: such a manifest may come by any way into the folder."""
    server = fresh()
    server.client().copy("cria", "trap")
    victim = server.home / "victim"
    victim.write_text("a secret of the user")
    [path] = server.home.glob(".ollama/models/manifests/**/trap/latest")
    # From the folder of blobs, with either spelling of its names.
    escape = "sha256:/../../../../victim"
    manifest = json.loads(path.read_text())
    kinds = ["application/vnd.ollama.image.system", "application/vnd.ollama.image.template", "application/vnd.ollama.image.license"]
    for changed in (
        {**manifest, "layers": manifest["layers"] + [{"mediaType": kind, "digest": escape, "size": 20} for kind in kinds]},
        {**manifest, "config": {**manifest["config"], "digest": escape}},
        {**manifest, "layers": [{**layer, "digest": escape} for layer in manifest["layers"]]},
    ):
        path.write_text(json.dumps(changed))
        for method, route, body in [
            ("POST", "/api/show", {"model": "trap", "verbose": True}),
            ("POST", "/api/generate", {"model": "trap", "prompt": "hi", "stream": False}),
            ("POST", "/api/copy", {"source": "trap", "destination": "trap2"}),
            ("POST", "/api/push", {"model": "trap", "stream": False}),
            ("DELETE", "/api/delete", {"model": "trap"}),
        ]:
            _, answer = server.send(method, route, body)
            assert b"a secret" not in answer, route
        assert victim.read_text() == "a secret of the user"
        path.parent.mkdir(parents=True, exist_ok=True)
    is_well(server)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:11434", "localhost.evil.example", "8.8.8.8", "169.254.169.254"])
def test_cve_2024_28224_foreign_host_names_are_forbidden(server, host):
    for path in ("/", "/api/tags", "/v1/models", "/metrics", "/api/nothing"):
        assert server.send("GET", path, headers={"Host": host}) == (403, b""), path
    status, _ = server.send("DELETE", "/api/delete", {"model": "cria"}, headers={"Host": host})
    assert status == 403


def test_cve_2024_39719_creating_a_model_does_not_reveal_which_files_exist(server):
    def answer(field, path):
        status, answer = server.post("/api/create", {"model": "probe", field: f"FROM {path}" if field == "modelfile" else path, "stream": False})
        assert status >= 400, answer
        return status, str(answer).replace(path, "PATH")

    for field in ("from", "path", "modelfile"):
        for path, absent in (("/etc/passwd", "/etc/passwx"), ("/root", "/roox"), ("/proc/self/environ", "/proc/self/environx"), (str(CRIA), f"{CRIA}x")):
            assert answer(field, path) == answer(field, absent), field


def test_cve_2024_39720_a_truncated_gguf_file_is_refused(server):
    for length in (0, 1, 3, 4, 5, 8, 16, 23, 24, 25, 32, 100, 1000):
        status, answer = create(server, WHOLE[:length])
        assert status == 400, (length, answer)
    is_well(server)


@pytest.mark.parametrize("device", ["/dev/random", "/dev/zero", "/dev/null"])
def test_cve_2024_39721_a_device_is_refused_as_a_model(server, device):
    start = time.monotonic()
    assert server.post("/api/create", {"model": "x", "from": device, "stream": False})[0] >= 400
    done = server.cli("create", "x", "-f", "-", input=f"FROM {device}\n", timeout=20)
    assert done.returncode == 1 and "panicked" not in done.stderr, done
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("name", ["../../../etc/passwd", "a/../../b", "..", "x:../../y", "/etc/passwd", "a/b/c/d/e", "host/../n/m:t", "n\u0000m", "a\\..\\b", "C:\\x"])
def test_cve_2024_39722_a_name_is_never_a_path(server, name):
    for method, path, body in [
        ("POST", "/api/push", {"model": name, "stream": False}),
        ("POST", "/api/pull", {"model": name, "stream": False}),
        ("POST", "/api/show", {"model": name}),
        ("POST", "/api/copy", {"source": "cria", "destination": name}),
        ("POST", "/api/create", {"model": name, "from": "cria", "stream": False}),
        ("DELETE", "/api/delete", {"model": name}),
        ("POST", "/v1/chat/completions", {"model": name, "messages": [{"role": "user", "content": "x"}]}),
        ("POST", "/v1/messages", {"model": name, "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}),
    ]:
        status, answer = server.send(method, path, body)
        assert status in (400, 404), (path, status, answer)
        assert b"No such file" not in answer and b"os error" not in answer, (path, answer)


COUNTS = {
    "tensors": b"GGUF" + struct.pack("<IQQ", 3, 2**61, 0),
    "tensors-negative": b"GGUF" + struct.pack("<IQQ", 3, 2**64 - 1, 0),
    "keys": b"GGUF" + struct.pack("<IQQ", 3, 0, 2**61),
    "string": gguf(LLAMA, ("x", struct.pack("<IQ", 8, 2**64 - 8) + b"abc")),
    "key": b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**64 - 1) + b"abc",
    "array-times-8": gguf(LLAMA, ("x", array(10, 2**61, b"\0" * 64))),
    "array-of-strings": gguf(LLAMA, ("x", array(8, 2**60, b"\0" * 64))),
    "array-of-arrays": gguf(LLAMA, ("x", array(9, 2**32, b"\0" * 64))),
    "shape-overflows": gguf(LLAMA, tensors=[("t", (2**33, 2**33), 0, 0)]),
    "shape-of-nothing": gguf(LLAMA, tensors=[("t", (0, 4), 0, 0)]),
    "shape-times-size": gguf(LLAMA, tensors=[("t", (2**62,), 0, 0)]),
    "dimensions": gguf(LLAMA, tensors=[("t", (1,) * 200, 0, 0)]),
    "offset": gguf(LLAMA, tensors=[("t", (4, 4), 0, 2**64 - 32)]) + b"\0" * 4096,
    "type": gguf(LLAMA, tensors=[("t", (32, 4), 2**32 - 1, 0)]) + b"\0" * 4096,
}


@pytest.mark.parametrize("name", COUNTS)
def test_cve_2025_53630_counts_and_sizes_that_overflow_are_refused(server, name):
    """Also CVE-2024-21802, -21825, -21836, -23496, -23605, -32878, -41130, CVE-2026-27940, and o#17042 (lengths of arrays and strings)."""
    before = memory(server)
    status, answer = create(server, COUNTS[name])
    assert status == 400, answer
    assert peak_memory(server) - before < 64 << 20
    is_well(server)


def memory(server):
    """Bytes that it has now; what it had before is forgotten."""
    pathlib.Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")
    return peak_memory(server)


def peak_memory(server):
    [line] = [line for line in open(f"/proc/{server.process.pid}/status") if line.startswith("VmHWM")]
    return int(line.split()[1]) << 10


def llama_of(**changed):
    """The keys of a small llama with some of them changed, and no tensors."""
    keys = {"block_count": 1, "context_length": 64, "embedding_length": 64, "feed_forward_length": 64, "attention.head_count": 4, "attention.head_count_kv": 4, "rope.dimension_count": 16} | changed
    tokens = b"".join(string(t) for t in ("<unk>", "<s>", "</s>"))
    pairs = [(f"llama.{k}", u32(v)) for k, v in keys.items()] + [("llama.attention.layer_norm_rms_epsilon", struct.pack("<If", 6, 1e-5))]
    vocabulary = [("tokenizer.ggml.model", text("llama")), ("tokenizer.ggml.tokens", array(8, 3, tokens)), ("tokenizer.ggml.scores", array(6, 3, b"\0" * 12)), ("tokenizer.ggml.token_type", array(5, 3, struct.pack("<iii", 2, 3, 3)))]
    return gguf(LLAMA, *pairs, *vocabulary)


@pytest.mark.parametrize("key", ["block_count", "embedding_length", "attention.head_count", "attention.head_count_kv", "context_length", "feed_forward_length", "rope.dimension_count"])
@pytest.mark.parametrize("value", [0, 2**31, 2**32 - 1])
def test_cve_2024_8063_extreme_numbers_in_a_file_are_refused(server, key, value):
    """Also CVE-2024-12055, CVE-2025-0312, -0315, -0317: division by zero, reads out of bounds, memory without a limit."""
    before = memory(server)
    status, answer = create(server, llama_of(**{key: value}))
    assert status >= 400 and answer, answer
    assert peak_memory(server) - before < 64 << 20
    is_well(server)


@pytest.mark.parametrize("alignment", [0, 1, 3, 2**31])
def test_cve_2025_0317_an_invalid_alignment_is_refused(server, alignment):
    status, answer = create(server, gguf(LLAMA, ("general.alignment", u32(alignment)), tensors=[("t", (32,), 0, 0)]) + b"\0" * 4096)
    assert status >= 400 and "panicked" not in answer, answer
    is_well(server)


@pytest.mark.parametrize("quantize", [None, "q4_K_M", "q8_0"])
def test_cve_2026_7482_weights_beyond_the_end_of_a_file_are_never_read(server, quantize):
    extra = {"quantize": quantize} if quantize else {}
    token_embd = b"token_embd.weight" + struct.pack("<IQQI", 2, 256, 4096, 8)
    for data in (WHOLE[:-1], WHOLE[: len(WHOLE) // 2], patched(token_embd, struct.pack("<Q", len(WHOLE) - 32)), patched(token_embd, struct.pack("<Q", 2**63))):
        status, answer = create(server, data, **extra)
        assert status == 400, answer
    is_well(server)


def test_cve_2025_63389_remote_clients_need_a_key_to_manage_models(fresh):
    server = fresh()
    server.stop()
    server.env["OLLAMA_HOST"] = f"0.0.0.0:{server.port}"
    server.start()
    assert "everyone who can reach this address" in server.log.read_text()
    managing = [
        ("POST", "/api/create", {"model": "x", "from": "cria"}),
        ("POST", "/api/copy", {"source": "cria", "destination": "x"}),
        ("POST", "/api/pull", {"model": "x"}),
        ("POST", "/api/push", {"model": "x"}),
        ("DELETE", "/api/delete", {"model": "cria"}),
        ("POST", "/api/blobs/sha256:" + "0" * 64, b"x"),
        ("GET", "/metrics", None),
    ]
    address = own_address()
    for method, path, body in managing:
        for headers in ({"X-Forwarded-For": "203.0.113.9"}, {"Forwarded": "for=203.0.113.9"}, {"Host": "evil.example"}):
            status, answer = server.send(method, path, body, headers=headers)
            assert status == 403 and b"puna key add" in answer, (path, headers, answer)
        if address:
            connection = http.client.HTTPConnection(address, server.port, timeout=10)
            with contextlib.closing(connection):
                connection.request(method, path, json.dumps(body) if isinstance(body, dict) else body)
                assert connection.getresponse().status == 403, path
                connection.request("GET", "/api/tags")
    assert server.send("GET", "/metrics")[0] == 200, "this machine may"


def own_address():
    """This machine's address in its network, if it has one."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("203.0.113.1", 9))
        address = probe.getsockname()[0]
        return None if address.startswith("127.") else address


def test_cve_2025_49847_tokens_of_any_length_are_handled(server):
    """Its length was taken for a smaller number."""
    for more in (1 << 10, 1 << 20, 20 << 20):
        # What follows the header stays aligned, so that nothing else is wrong.
        changed = WHOLE.replace(string("!"), string("!" + "x" * more), 1)
        assert len(changed) == len(WHOLE) + more
        status, answer = create(server, changed)
        assert answer and status in (200, 400, 500), answer
        is_well(server)


def test_cve_2025_52566_prompts_of_any_length_are_answered_or_refused(server):
    for size in (1 << 20, 40 << 20):
        start = time.monotonic()
        status, answer = server.post("/api/generate", {"model": "cria", "prompt": "x" * size, "stream": False, "truncate": False, "options": {"num_predict": 1}})
        assert status in (200, 400, 413), answer
        assert time.monotonic() - start < 60
    is_well(server)


@pytest.mark.parametrize("keep", [-1, -5, -(2**31), 0, 63, 64, 2**31 - 1])
def test_cve_2026_21869_num_keep_outside_the_context_corrupts_nothing(server, keep):
    """A negative number moved the cache out of its memory when a context was full."""
    for extra in ({}, {"n_discard": -5, "n_keep": keep}):
        options = {"num_ctx": 64, "num_predict": 150, "num_keep": keep, "temperature": 2.0, "seed": 1} | extra
        status, answer = server.post("/api/generate", {"model": "cria", "prompt": "a b c " * 8, "raw": True, "stream": False, "options": options})
        assert status in (200, 400), answer
    is_well(server)


def nested(depth):
    """A schema as text: deep ones are more than Python's own writer takes."""
    return '{"type": "object", "properties": {"a": ' * depth + '{"type": "string"}' + "}}" * depth


FORMS = {
    "schema-deep": nested(20),
    "schema-too-deep": nested(5000),
    "schema-of-itself": {"format": {"$ref": "#"}},
    "schema-around": {"format": {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}},
    "pattern-nested": {"format": {"type": "string", "pattern": "(" * 3000 + "a" + ")" * 3000}},
    "pattern-stars": {"format": {"type": "string", "pattern": "^((((a*)*)*)*)*$"}},
    "pattern-counts": {"format": {"type": "string", "pattern": "((a{1,1000}){1,1000}){1,1000}"}},
    "pattern-broken": {"format": {"type": "string", "pattern": "(["}},
    "grammar-of-itself": {"grammar": "root ::= root"},
    "grammar-left": {"grammar": 'root ::= root "a" | "a"'},
    "grammar-nested": {"grammar": "root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000},
    "grammar-empty": {"grammar": ""},
    "grammar-nothing": {"grammar": 'root ::= ""'},
    "grammar-no-root": {"grammar": 'toor ::= "a"'},
    "grammar-unknown": {"grammar": "root ::= nobody"},
    "grammar-counts": {"grammar": 'root ::= ((("a"{1,999}){1,999}){1,999}){1,999}'},
    "grammar-long": {"grammar": "root ::= " + " | ".join(f'"x{i}"' for i in range(50_000))},
}


@pytest.mark.parametrize("name", FORMS)
def test_l_26600_hostile_constraints_take_bounded_time(server, name):
    """Also l#25283, l#25284, l#27619: nested grammars and patterns, and grammars without a way on."""
    start = time.monotonic()
    form = FORMS[name]
    body = json.dumps({"model": "cria", **ASK} | ({} if isinstance(form, str) else form))
    body = body if isinstance(form, dict) else f'{body[:-1]}, "format": {form}}}'
    status, answer = server.post("/api/generate", body.encode(), timeout=60)
    assert status in (200, 400), answer
    assert time.monotonic() - start < 30
    is_well(server)


TEMPLATES = {
    "python": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "modules": "{% for x in ().__class__.__base__.__subclasses__() %}{{ x.__init__.__globals__['os'].system('touch /tmp/puna-was-here') }}{% endfor %}",
    "globals": "{{ cycler.__init__.__globals__.os.popen('touch /tmp/puna-was-here').read() }}{{ self.__dict__ }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import '/etc/passwd' as x %}{{ x }}",
    "endless": "{% for a in range(99999999) %}{% for b in range(99999999) %}{% for c in range(99999999) %}{% endfor %}{% endfor %}{% endfor %}",
    "memory": "{% set ns = namespace(x='aaaaaaaaaaaaaaaa') %}{% for i in range(64) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x }}",
    "repeat": "{{ 'a' * 99999999999 }}",
    "list": "{{ ([0] * 9999999999) | length }}",
    "macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "deep": "{{ " + "(" * 50_000 + "1" + ")" * 50_000 + " }}",
    "padding": "{{ '%99999999999d' % 1 }}{{ 'x'.center(99999999999) }}",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_cve_2024_34359_a_template_of_a_file_accesses_nothing_and_terminates(server, name):
    template = TEMPLATES[name].encode()
    start = time.monotonic()
    data = with_template(template)
    status, answer = create(server, data, parameters={"num_predict": 1})
    assert status in (200, 400, 500) and "root:" not in answer and "subclass" not in answer, answer
    assert time.monotonic() - start < 30
    assert not os.path.exists("/tmp/puna-was-here")
    is_well(server)


def with_template(template):
    """cria with another template; its place is padded so that everything else stays where it was."""
    key = string("tokenizer.chat_template") + struct.pack("<I", 8)
    at = WHOLE.index(key) + len(key)
    [length] = struct.unpack_from("<Q", WHOLE, at)
    # Blanks to the next multiple of the alignment.
    template += b" " * ((length - len(template)) % 32)
    return WHOLE[:at] + struct.pack("<Q", len(template)) + template + WHOLE[at + 8 + length :]


@pytest.mark.parametrize("image", [b"", b"\x89PNG\r\n\x1a\n", b"x" * 100, b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\xff\xff\x08\2\0\0\0"])
def test_cve_2026_22773_images_of_odd_sizes_do_not_end_the_server(server, image):
    """(of vLLM) No model takes images so far: the answer is that, whatever they are."""
    data = base64.b64encode(image).decode()
    status, answer = server.post("/api/chat", {"model": "cria", "messages": [{"role": "user", "content": "x", "images": [data]}], "stream": False})
    assert status in (200, 400), answer
    is_well(server)
