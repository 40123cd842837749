#!/usr/bin/env python3
"""Makes fixtures/llama-cpp.json: the hashes of llama.cpp's ids on the vocabularies of tests/data/zoo.

    llama.py LLAMA > ../fixtures/llama-cpp.json

LLAMA: the program of llama.c, built against llama.cpp of August 2026. Texts are random Unicode and source code; for
WordPiece only characters that llama.cpp normalises as BERT does: those that do not decompose in several, no marks
with room of their own, no vertical tab, form feed or U+0085. Characters are of Unicode 15.1, as llama.cpp's tables.
"""

import json
import subprocess
import sys
import unicodedata

from hf import ROOT, fnv, random_texts, source_texts

FILES = ["bert-mean", "bert-rank", "gemma3", "gpt-oss", "llama-q8_0", "llama", "phi3", "qwen2"]


def simple(c):
    left = [x for x in unicodedata.normalize("NFD", c) if unicodedata.category(x) != "Mn"]
    return len(left) <= 1 and unicodedata.category(c) not in ("Mc", "Me") and c not in "\x0b\x0c\x85"


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
    json.dump(out, sys.stdout, ensure_ascii=True, indent=0)


if __name__ == "__main__":
    main(*sys.argv[1:]) if len(sys.argv) == 2 else sys.exit(__doc__)
