"""`puna debug media` gives the references' chunks, pixels, rows and logits for every entry of tests/data/vision."""
import hashlib
import json
import os
import struct

import pytest

from conftest import DATA, puna

VISION = DATA / "vision"
ENTRIES = sorted(path.stem for path in VISION.glob("*.json"))


def values(path):
    """The bytes of the values of a .npy file."""
    data = path.read_bytes()
    return data[10 + struct.unpack("<H", data[8:10])[0] :]


def floats(data):
    return struct.unpack(f"<{len(data) // 4}f", data)


def run(entry, case, folder, *options):
    pictures = [case["image"]] if "image" in case else [image["image"] for image in case["images"]]
    rows = sum(chunk.get("n_tokens", 0) for chunk in case["chunks"])
    types = ("--cache-type-k", "f32", "--cache-type-v", "f32", "--num-ctx", "1024" if rows < 900 else "2048")
    done = puna("debug", "media", VISION / entry["text"], *(VISION / name for name in pictures), "--projector", VISION / entry["mmproj"],
                "--prompt", case["prompt"], "--json", "--dump", folder, *types, *options, env=os.environ)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", ENTRIES)
def test_entries_give_the_references_results(name, tmp_path):
    entry = json.loads((VISION / f"{name}.json").read_text())
    for number, case in enumerate(entry["cases"]):
        for split in ("whole", "7", "batch"):
            found = run(entry, case, tmp_path, "--split", split)
            keys = {"text": ("type", "position", "tokens"), "image": ("type", "position", "n_tokens", "n_pos")}
            assert found["chunks"] == [{key: chunk[key] for key in keys[chunk["type"]]} for chunk in case["chunks"]]
            pairs = [(a, b) for own, reference in zip(found["logits"], case["logits"], strict=True) for a, b in zip(own, reference, strict=True)]
            worst = max(abs(a - b) for a, b in pairs) / case["logits_std"]
            assert worst <= case["logits_tolerance"], (name, number, split, worst)
        for at, pixels in enumerate(case["pixels"]):
            assert hashlib.sha256(values(tmp_path / f"input-{at}.npy")).hexdigest() == pixels["sha256"], (name, number, at)
        for at, rows in enumerate(case["embeddings"]):
            own, reference = floats(values(tmp_path / f"rows-{at}.npy")), floats(values(VISION / rows["file"]))
            worst = max(abs(a - b) for a, b in zip(own, reference, strict=True)) / rows["std"]
            assert worst <= case["embeddings_tolerance"], (name, number, at, worst)


def test_wrong_arguments_are_named(tmp_path):
    text, picture, projector = VISION / "gemma3-text.gguf", VISION / "gemma3-0.png", VISION / "gemma3-mmproj.gguf"
    broken = tmp_path / "broken.png"
    broken.write_bytes(picture.read_bytes()[:60])
    for arguments, words in [
        ((text, picture, "--prompt", "<__media__>"), "--projector"),
        ((text, picture, "--projector", projector, "--prompt", "hi"), "0 times <__media__>"),
        ((text, broken, "--projector", projector, "--prompt", "<__media__>"), "broken.png"),
        ((text, picture, "--projector", VISION / "qwen3vl-mmproj.gguf", "--prompt", "<__media__>x"), "rows of 96 values"),
        ((text, picture, "--projector", text, "--prompt", "<__media__>"), "a projector file has clip"),
        ((VISION / "llava-text.gguf", picture, "--projector", VISION / "llava-mmproj.gguf", "--prompt", "x <__media__>"), "ends with a medium"),
        ((text, picture, "--projector", projector, "--prompt", "<__media__> x", "--split", "0"), "--split"),
    ]:
        done = puna("debug", "media", *arguments, env=os.environ)
        assert done.returncode != 0 and words in done.stderr, (arguments, done.stderr)
