#!/usr/bin/env python3
"""Tokenizes text with Hugging Face `tokenizers`: the reference of tests/hugging_face.rs.

    pip install tokenizers
    hf.py live KIND FILE CHARACTERS     texts and ids as JSON lines, to standard output
    hf.py live published NAME CHARACTERS  the same for the pre-tokenizer NAME; prints a small vocabulary first
    hf.py fixture NAME=KIND=FILE...          fixtures/hugging-face.json, to standard output

KIND: `json` (a tokenizer.json), `smollm` and `gemma` (a GGUF file; rebuilds the tokenizer from its vocabulary by the
publisher's description). Uses CHARACTERS characters of random Unicode and as many of source code.
"""

import json
import pathlib
import random
import struct
import sys
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

ROOT = pathlib.Path(__file__).resolve().parents[4]

# Characters of Unicode 3.2, which every Python supports, and emoji. BERT's normalizer uses Unicode 8.
# Excludes three characters whose category has changed since.
CHARACTERS = [
    chr(c)
    for c in range(1, 0x30000)
    if not 0xD800 <= c < 0xE000
    and c not in (0x166D, 0x1734, 0x180E)
    and (unicodedata.ucd_3_2_0.category(chr(c)) != "Cn" or 0x1F300 <= c < 0x1F600)
    and unicodedata.category(chr(c))[0] == unicodedata.ucd_3_2_0.category(chr(c))[0]
]
SPACES = [c for c in CHARACTERS if c.isspace()]
ASCII = [c for c in CHARACTERS if c < "\x7f"]


def random_text(rng, length):
    """Short runs of one script, one character, ASCII or white space."""
    out = []
    while len(out) < length:
        kind, run = rng.random(), rng.randrange(1, 8)
        if kind < 0.35:
            at = rng.randrange(len(CHARACTERS))
            near = CHARACTERS[at : at + 60]
            out += [rng.choice(near) for _ in range(run)]
        elif kind < 0.45:
            out += rng.choice(CHARACTERS) * run
        elif kind < 0.6:
            out += [rng.choice(CHARACTERS) for _ in range(run)]
        elif kind < 0.9:
            out += [rng.choice(ASCII) for _ in range(run)]
        else:
            out += [rng.choice(SPACES) for _ in range(run)]
    return "".join(out[:length])


def random_texts(seed, characters):
    rng = random.Random(seed)
    while characters > 0:
        text = random_text(rng, min(characters, rng.randrange(1, 2000)))
        characters -= len(text)
        yield text


def source_texts(characters):
    """Files of this repository, in the order of their names, in parts of some kilobytes."""
    names = [p for pattern in ("crates/**/*.rs", "**/*.md", "crates/**/*.py") for p in sorted(ROOT.glob(pattern))]
    for path in names:
        if any(part.startswith(".") or part == "target" for part in path.relative_to(ROOT).parts):
            continue
        text = path.read_text(encoding="utf-8")
        for start in range(0, len(text), 5000):
            part = text[start : start + min(5000, characters)]
            characters -= len(part)
            if part:
                yield part


def read_gguf(path):
    """The metadata of a GGUF file."""
    data = open(path, "rb")
    formats = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

    def scalar(code):
        return struct.unpack("<" + code, data.read(struct.calcsize(code)))[0]

    def value(kind):
        if kind == 8:
            return data.read(scalar("Q")).decode("utf-8", "surrogateescape")
        if kind == 9:
            inner, count = scalar("I"), scalar("Q")
            return [value(inner) for _ in range(count)]
        return scalar(formats[kind])

    assert data.read(4) == b"GGUF" and scalar("I") in (2, 3)
    _, count = scalar("Q"), scalar("Q")
    return {value(8): value(scalar("I")) for _ in range(count)}


def added(meta):
    """Unknown, control and user-defined tokens: Hugging Face always reads them in text."""
    kinds = meta["tokenizer.ggml.token_type"]
    tokens = meta["tokenizer.ggml.tokens"]
    return [AddedToken(t, normalized=False, special=k != 4) for t, k in zip(tokens, kinds) if k in (2, 3, 4)]


def smollm(path):
    meta = read_gguf(path)
    vocab = {t: i for i, t in enumerate(meta["tokenizer.ggml.tokens"])}
    merges = [tuple(m.split(" ", 1)) for m in meta["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
    tokenizer.add_tokens(added(meta))
    return tokenizer


def gemma(path):
    """SentencePiece as `transformers` converts it: every split of a token in two tokens is a merge of its score."""
    meta = read_gguf(path)
    tokens, scores = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.scores"]
    vocab = {t: i for i, t in enumerate(tokens)}
    merges = []
    for i, token in enumerate(tokens):
        local = []
        for at in range(1, len(token)):
            left, right = token[:at], token[at:]
            if left in vocab and right in vocab:
                local.append((left, right, scores[i]))
        merges += sorted(local, key=lambda m: (vocab[m[0]], vocab[m[1]]))
    merges.sort(key=lambda m: m[2], reverse=True)
    pairs = [(left, right) for left, right, _ in merges]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=pairs, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.add_tokens(added(meta))
    return tokenizer


def from_json(path):
    tokenizer = Tokenizer.from_file(path)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


# The expressions that publishers' tokenizers split by, one after the other, by the name that files have for them.
CASE = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CASE + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + TAIL
QWEN2 = CASE + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + TAIL
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
KANA = r"[一-龥぀-ゟ゠-ヿ]+"
MARKED = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"""
WIDE = r"[一-龥ࠀ-一가-\x{d7ff}]+"
BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
LONG_BLANKS = "".join(r"|\s{%d}(?!\S)" % n for n in (512, 256, 128, 64, 32, 16, 8, 4))


def cased(case, digits, han="", slash="/"):
    upper, lower = rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{han}]", rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{han}]"
    lead = r"[^\r\n\p{L}\p{N}]?"
    words = f"{lead}{upper}*{lower}+{case}|{lead}{upper}+{lower}*{case}|{digits}"
    return words + rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n{slash}]*|\s*[\r\n]+|\s+(?!\S)|\s+"


PUBLISHED = {
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano dbrx smaug-bpe chatglm-bpe glm4 glm5": [LLAMA3],
    "minicpm5": [r"\p{N}{1,3}", CASE + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+|" + TAIL],
    "jais-2": [CASE + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+" + LONG_BLANKS + r"|\s{1,2}(?!\S)|\s{1}"],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", WIDE, r"\p{N}"],
    "deepseek-v3 hunyuan-dense hy_v4 joyai-llm": [r"\p{N}{1,3}", KANA, MARKED + r"[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"],
    "spark2_5": [r"\p{N}{1,3}", KANA, MARKED + r"|[\r\n]|\s+(?!\S)|\s+", r"\p{N}"],
    "youtu": [r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+", cased(CASE + "?", r"\p{N}")],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]"],
    "starcoder refact codeshell exaone minerva-7b mellum2 command-r smollm": [r"\p{N}", GPT2],
    "mpt gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert olmo jais exaone4 jina-v1-en jina-v2-code roberta-bpe trillion granite-docling": [GPT2],
    "qwen2 deepseek-r1-qwen kormo f2llmv2 hunyuan grok-2 solar-open stablelm2 megrez": [QWEN2],
    "qwen35": [CASE + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"],
    "poro-chat bloom gpt3-finnish": [BLOOM],
    "viking": [BLOOM, r"\p{N}"],
    "tekken": [cased("", r"\p{N}")],
    "chameleon": [r"<sentinel:[0-9]+>", r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"([\t\n]|    |  )", r"\p{N}", r"[\p{P}!-/:-@\[-`{-~]", GPT2],
    "gpt-4o llama4 kanana2 talkie minimax-m2 granite-embed-multi-97m": [cased(CASE + "?", r"\p{N}{1,3}")],
    "bailingmoe bailingmoe2 llada-moe": [r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"],
    "seed-coder": [CASE + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"],
    "kimi-k2": [r"[\p{Han}]+|" + cased(CASE + "?", r"\p{N}{1,3}", r"&&[^\p{Han}]", "")],
    "ufakzeka": [r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + TAIL],
    "laguna": [r"[^\n]+|[\n]+", QWEN2],
    "exaone-moe": [CASE + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"],
}


def published(name, training):
    """A small byte-level vocabulary whose merges cross all word borders, and the publisher's pre-tokenizer."""
    steps = next(steps for names, steps in PUBLISHED.items() if name in names.split())
    spelt = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = spelt
    trainer = trainers.BpeTrainer(vocab_size=16000, initial_alphabet=spelt.alphabet(), show_progress=False)
    parts = (text[at : at + 16] for text in training for at in range(0, len(text), 16))
    tokenizer.train_from_iterator(parts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    print(json.dumps({"tokens": sorted(model["vocab"], key=model["vocab"].get), "merges": [" ".join(pair) for pair in model["merges"]]}))
    splits = [pre_tokenizers.Split(Regex(step), "isolated") for step in steps]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, spelt])
    return tokenizer


KINDS = {"json": from_json, "smollm": smollm, "gemma": gemma}


def ids_of(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False).ids


def live(kind, path, characters):
    if kind == "published":
        tokenizer = published(path, [*random_texts(5, 200000), *source_texts(200000)])
    else:
        tokenizer = KINDS[kind](path)
    for texts in (random_texts(int(characters), int(characters)), source_texts(int(characters))):
        for text in map(spellable(tokenizer), texts):
            print(json.dumps({"text": text, "ids": ids_of(tokenizer, text)}))


def spellable(tokenizer):
    """Removes characters without tokens in a byte-level vocabulary: SmolLM2 lacks some control bytes. Both this library
    and llama.cpp drop them, but only here may their neighbours merge."""
    if not isinstance(tokenizer.model, models.BPE) or tokenizer.model.byte_fallback:
        return lambda text: text
    shown = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    known = {}

    def keep(c):
        if c not in known:
            spelt = shown.pre_tokenize_str(c)[0][0]
            known[c] = all(tokenizer.token_to_id(byte) is not None for byte in spelt)
        return known[c]

    return lambda text: "".join(filter(keep, text))


def fnv(ids):
    """FNV-1a of the ids as 32-bit little-endian numbers."""
    state = 0xCBF29CE484222325
    for byte in b"".join(struct.pack("<I", i) for i in ids):
        state = (state ^ byte) * 0x100000001B3 % 2**64
    return f"{state:016x}"


def fixture(models_by_name):
    specs = [spec.split("=", 2) for spec in models_by_name]
    tokenizers = {name: KINDS[kind](path) for name, kind, path in specs}
    texts = [*random_texts(1, 12000), *source_texts(12000)]
    for tokenizer in tokenizers.values():
        texts = list(map(spellable(tokenizer), texts))
    out = {"texts": texts, "hashes": {}}
    for name, tokenizer in tokenizers.items():
        out["hashes"][name] = [fnv(ids_of(tokenizer, text)) for text in texts]
    json.dump(out, sys.stdout, ensure_ascii=True, indent=0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["live"] and len(sys.argv) == 5:
        live(*sys.argv[2:])
    elif sys.argv[1:2] == ["fixture"]:
        fixture(sys.argv[2:])
    else:
        sys.exit(__doc__)
