"""Creating models on a remote server: the client uploads only blobs that the server lacks."""
import contextlib
import hashlib
import json
import pathlib
import socket
import struct
import threading

import pytest

from conftest import MINILM, REPOSITORY, environment, need, puna, running
from test_adapters import CRIA, F32, Q8_0, adapter, floats, gguf, read, text


@pytest.fixture(scope="module")
def there():
    """A server with a store of its own, and an environment of somebody else who talks with it."""
    with running() as it:
        it.cli("create", "whole", "-f", "-", input=f"FROM {CRIA}\n", check=True)
        yield it


class Relay:
    """A port through which a server is reached, and how many bytes went there."""

    def __init__(self, port):
        self.to, self.sent = port, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                server = socket.create_connection(("127.0.0.1", self.to))
                threading.Thread(target=self.pass_on, args=(client, server, True), daemon=True).start()
                threading.Thread(target=self.pass_on, args=(server, client, False), daemon=True).start()

    def pass_on(self, one, other, counts):
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                self.sent += len(data) if counts else 0
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)

    def sent_by(self, work):
        before = self.sent
        work()
        return self.sent - before


@pytest.fixture
def relay(there):
    it = Relay(there.port)
    yield it
    it.listener.close()


@pytest.fixture
def here(relay, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    return environment(home, OLLAMA_HOST=f"127.0.0.1:{relay.port}")


def digest(path):
    return "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()


def answer(server, model, prompt="Which animal has a long trunk?"):
    options = {"temperature": 0, "num_predict": 12}
    status, body = server.post("/api/generate", {"model": model, "prompt": prompt, "stream": False, "options": options})
    assert status == 200, body
    return body["response"]


def blobs(env):
    return list(pathlib.Path(env["HOME"]).glob("**/blobs/*"))


def test_a_model_with_an_adapter_is_created_on_another_server(there, here, relay, tmp_path):
    (tmp_path / "m.gguf").write_bytes(CRIA.read_bytes() + bytes(32))
    (tmp_path / "lora.gguf").write_bytes(adapter())
    (tmp_path / "Modelfile").write_text("FROM ./m.gguf\nADAPTER ./lora.gguf\nPARAMETER top_k 7\n")
    make = lambda name: puna("create", name, "-f", tmp_path / "Modelfile", env=here, check=True)
    size = CRIA.stat().st_size + len(adapter())
    assert relay.sent_by(lambda: make("sent")) > size
    assert answer(there, "sent") != answer(there, "whole")
    assert blobs(here) == [], "nothing is left on this side"
    # What is there is not sent again.
    assert relay.sent_by(lambda: make("sent-again")) < 20_000
    assert answer(there, "sent-again") == answer(there, "sent")


def split(source, folder):
    """The paths of two files with the tensors of one."""
    (count, keys), tensors = read(source)
    paths = []
    for number, some in enumerate([tensors[:9], tensors[9:]]):
        own = [("split.no", 2, "<H", number), ("split.count", 2, "<H", 2), ("split.tensors.count", 5, "<i", len(tensors))]
        own = b"".join(text(key) + struct.pack("<i", kind) + struct.pack(form, value) for key, kind, form, value in own)
        head = (count + 3, keys + own) if number == 0 else (3, own)
        paths.append(folder / f"parts-{number + 1:05}-of-00002.gguf")
        paths[-1].write_bytes(gguf(head, some))
    return paths


def test_a_split_model_is_created_on_another_server_from_its_first_part(there, here, tmp_path):
    first, second = split(CRIA, tmp_path)
    puna("create", "parts", "-f", "-", env=here, input=f"FROM {first}\n", check=True)
    assert answer(there, "parts") == answer(there, "whole")
    second.unlink()
    failed = puna("create", "parts", "-f", "-", env=here, input=f"FROM {first}\n")
    assert failed.returncode == 1 and f"{first.name} needs {second.name} in" in failed.stderr, failed.stderr


def test_a_folder_of_safetensors_is_converted_by_another_server(there, here):
    folder = need(MINILM)
    puna("create", "minilm", "-f", "-", env=here, input=f"FROM {folder}\n", check=True)
    rows = json.loads((REPOSITORY / "tests/data/reference/minilm.json").read_text())["rows"][:3]
    got = there.client().embed("minilm", [row["text"] for row in rows]).embeddings
    for row, vector in zip(rows, got, strict=True):
        assert sum(a * b for a, b in zip(row["embedding"], vector)) > 0.999


def test_an_importance_matrix_is_uploaded_with_the_model(there, here, tmp_path):
    text, matrix = tmp_path / "text.txt", tmp_path / "imatrix.gguf"
    text.write_text("The sea is wide and blue. " * 20)
    wide = wide_cria(tmp_path / "wide.gguf")
    puna("imatrix", wide, "-f", text, "-o", matrix, "--ctx", "32", "--chunks", "1", env=here, check=True)
    modelfile = f"FROM {wide}\n"
    alone = puna("create", "tiny", "-f", "-", "--imatrix", matrix, env=here, input=modelfile)
    assert alone.returncode == 2 and "--quantize" in alone.stderr, alone.stderr
    without = puna("create", "tiny", "-f", "-", "-q", "IQ3_M", env=here, input=modelfile)
    assert without.returncode == 2 and "with an importance matrix" in without.stderr, without.stderr
    puna("create", "tiny", "-f", "-", "-q", "IQ3_M", "--imatrix", matrix, env=here, input=modelfile, check=True)
    _, shown = there.post("/api/show", {"model": "tiny"})
    assert shown["details"]["quantization_level"] == "IQ3_M"
    assert shown["model_info"]["quantize.imatrix.dataset"] == "text.txt", shown["model_info"]
    # By the API, with the lines of progress.
    body = {"model": "small", "from": "tiny-whole", "quantize": "q4_K_M", "imatrix": digest(matrix)}
    puna("create", "tiny-whole", "-f", "-", env=here, input=modelfile, check=True)
    there.send("POST", f"/api/blobs/{digest(matrix)}", matrix.read_bytes())
    status, lines = there.post("/api/create", body)
    assert status == 200 and lines[-1] == {"status": "success"}, lines
    work = [line for line in lines if line["status"] == "quantizing F32 model to Q4_K_M"]
    assert work[-1]["completed"] == work[-1]["total"] > 0, lines
    status, error = there.post("/api/create", body | {"quantize": ""})
    assert status == 400 and "importance matrix needs a quantization type" in error["error"], error


def wide_cria(path):
    """cria with its weights as F32: they can be quantized."""
    (count, keys), tensors = read(CRIA)
    wide = []
    for name, dims, kind, data in tensors:
        if kind == Q8_0:
            blocks = [struct.unpack_from("<e32b", data, at) for at in range(0, len(data), 34)]
            kind, data = F32, floats([block[0] * code for block in blocks for code in block[1:]])
        wide.append((name, dims, kind, data))
    # The file says what it holds.
    at = keys.index(text("general.file_type")) + len(text("general.file_type")) + 4
    keys = keys[:at] + struct.pack("<I", 0) + keys[at + 4 :]
    path.write_bytes(gguf((count, keys), wide))
    return path


def test_an_unknown_architecture_is_reported_before_its_tokenizer(there, here, tmp_path):
    # Neither is known here; another program on the same folder of models may know both.
    file = tmp_path / "other.gguf"
    file.write_bytes((REPOSITORY / "tests/data/zoo/llama-f16.gguf").read_bytes().replace(b"llama", b"other"))
    done = puna("create", "other", "-f", "-", env=here, input=f"FROM {file}\n", check=True)
    assert "warning" in done.stderr and "other" in done.stderr and "tokenizer" not in done.stderr.replace("wavtokenizer", ""), done.stderr
    assert "other:latest" in [m.model for m in there.client().list().models]


def test_a_file_that_is_no_importance_matrix_is_named(here, tmp_path):
    file = tmp_path / "matrix.dat"
    file.write_bytes(b"none")
    done = puna("create", "bad", "-f", "-", "-q", "Q4_K_M", "--imatrix", file, env=here, input=f"FROM {wide_cria(tmp_path / 'wide.gguf')}\n")
    assert done.returncode == 1 and f"{file}: " in done.stderr and "sha256" not in done.stderr.splitlines()[-1], done.stderr
