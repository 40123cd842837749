#!/usr/bin/env python3
"""Makes fixtures/llama-cpp.json: hashes of llama.cpp's ids on the vocabularies of tests/data/zoo, and on
artificial vocabularies for models without a file there. The fixture contains the artificial ones.

    pip install tokenizers gguf
    llama.py LLAMA > ../fixtures/llama-cpp.json

LLAMA: the program of llama.c, built against llama.cpp of August 2026. Texts are random Unicode and source code. For
WordPiece they have only characters that llama.cpp normalizes like BERT: no multi-character decompositions, no spacing
marks, no vertical tab, form feed or U+0085. Characters are those of Unicode 15.1, like llama.cpp's tables.
"""

import json
import pathlib
import random
import subprocess
import sys
import tempfile
import unicodedata

from gguf import GGUFWriter
from hf import ROOT, fnv, random_texts, source_texts

FILES = ["bert-mean", "bert-rank", "gemma3", "gpt-oss", "llama-q8_0", "llama", "phi3", "qwen2"]


def simple(c):
    left = [x for x in unicodedata.normalize("NFD", c) if unicodedata.category(x) != "Mn"]
    return len(left) <= 1 and unicodedata.category(c) not in ("Mc", "Me") and c not in "\x0b\x0c\x85"


BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6


def pieces_of(texts, rng, count, most):
    """Pieces of the texts, at most `most` characters long."""
    found = set()
    while len(found) < count:
        text = rng.choice(texts)
        at = rng.randrange(len(text))
        found.add(text[at : at + rng.randrange(1, most + 1)])
        found -= {"<s>", "</s>", "<unk>", "<pad>"}
    return sorted(found)


def vocabularies(texts):
    """Tokens, kinds, scores and merges of a vocabulary for each model."""
    rng = random.Random(7)
    texts = [text for text in texts if text]
    pieces = pieces_of(texts, rng, 1500, 8)
    scores = [-round(0.001 + rng.random() * 15, 3) for _ in pieces]
    out = {}

    special = ["<|plamo:unk|>", "<|plamo:bos|>", "<|plamo:eos|>", "<|plamo:pad|>"]
    out["plamo2"] = {
        "tokens": special + BYTES + pieces,
        "types": [UNKNOWN, *[CONTROL] * 3, *[BYTE] * 256, *[NORMAL] * len(pieces)],
        # Some tokens are unused, some have equal scores.
        "scores": [0.0] * 260 + [-3000.0 if at % 50 == 0 else float(round(score)) if at % 3 == 0 else score for at, score in enumerate(scores)],
    }

    words = sorted({piece.replace(" ", "▁") for piece in pieces})
    out["t5"] = {
        "tokens": ["<pad>", "</s>", "<unk>", *words],
        # No user-defined tokens: llama.cpp takes the start of such a token for the whole token.
        "types": [CONTROL, CONTROL, UNKNOWN, *[NORMAL] * len(words)],
        "scores": [0.0, 0.0, 0.0, *scores[: len(words)]],
    }

    escapes = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "'": "\\'"}
    escaped = ["".join(escapes.get(c, c) for c in piece) for piece in pieces if len(piece) > 1]
    tokens = [f"\\x{byte:02x}" for byte in range(1, 256)] + escaped
    out["rwkv"] = {"tokens": ["<s>", *tokens], "types": [CONTROL, *[NORMAL] * len(tokens)]}

    mers = ["".join(rng.choice("ACGT") for _ in range(6)) + "\ue000" for _ in range(400)]
    letters = [chr(c) for c in (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100), *range(0x100, 0x144))]
    tokens = [*letters, "AC", "ACG", "Ġa", "th", "the", "<dna>", "</dna>", "<oov>", *sorted(set(mers))]
    out["hybriddna"] = {"tokens": tokens, "types": [NORMAL] * len(tokens), "merges": ["A C", "AC G", "Ġ a", "t h", "th e"], "pre": "gpt-2"}
    return out


def dna_texts(tokens):
    rng = random.Random(8)
    mers = [token[:-1] for token in tokens if token.endswith("\ue000")]
    for length in range(40):
        inside = "".join(rng.choice(mers) if rng.random() < 0.7 else rng.choice("ACGTacgtNé") for _ in range(length))
        yield f"the ACG <dna>{inside}{rng.choice(['</dna>', '</dna> and <dna>acg', '', '</dna></dna>'])} {rng.choice(mers)}\ue000"


def write(path, model, vocabulary):
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(vocabulary.get("pre", "default"))
    writer.add_token_list([token.encode() for token in vocabulary["tokens"]])
    writer.add_token_types(vocabulary["types"])
    if "scores" in vocabulary:
        writer.add_token_scores(vocabulary["scores"])
    if "merges" in vocabulary:
        writer.add_token_merges(vocabulary["merges"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def ids(program, vocabulary, texts):
    records = b"".join(b"3 %d\n" % len(t.encode()) + t.encode() for t in texts)
    out = subprocess.run([program, vocabulary], input=records, capture_output=True, check=True).stdout
    return [[int(i) for i in line.split()] for line in out.decode().splitlines()]


def main(program):
    texts = ["", " ", "<s>a</s> b", "[CLS] a [SEP]", "<|im_start|>user\nHi<|im_end|>\n"]
    texts += [*random_texts(2, 12000), *source_texts(12000)]
    plain = ["".join(filter(simple, text)) for text in texts]
    out = {"texts": texts, "wordpiece_texts": plain, "hashes": {}}
    for name in FILES:
        vocabulary = ROOT / "tests/data/zoo" / f"{name}.gguf"
        wanted = plain if name == "bert-mean" else texts
        out["hashes"][name] = [fnv(i) for i in ids(program, vocabulary, wanted)]
    out["vocabularies"] = vocabularies(texts)
    out["dna_texts"] = [*dna_texts(out["vocabularies"]["hybriddna"]["tokens"])]
    with tempfile.TemporaryDirectory() as folder:
        for model, vocabulary in out["vocabularies"].items():
            path = pathlib.Path(folder) / f"{model}.gguf"
            write(path, model, vocabulary)
            wanted = out["dna_texts"] if model == "hybriddna" else texts
            vocabulary["hashes"] = [fnv(i) for i in ids(program, path, wanted)]
    json.dump(out, sys.stdout, ensure_ascii=True, indent=0)


if __name__ == "__main__":
    main(*sys.argv[1:]) if len(sys.argv) == 2 else sys.exit(__doc__)
