#!/usr/bin/env python3
"""Files of known models' shapes with random weights: for speed and memory, never for quality.

    benches/synth.py SHAPE TYPE OUT.gguf [--layers N]

SHAPE is one of llama-3.2-1b, llama-3.1-8b, qwen3-4b, qwen3-30b-a3b; TYPE a weight type, or Q4_K_M (Q4_K, with Q6_K for
the output and, in every other layer, for values and the way down). Blocks are filled with random codes under scales that
give weights a standard deviation near 0.02, so 8 B parameters take a minute. Needs gguf and numpy.
"""
import argparse
import pathlib
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    arch: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    context: int
    experts: int = 0
    used: int = 0
    expert_ffn: int = 0


SHAPES = {
    "llama-3.2-1b": Shape("llama", 16, 2048, 8192, 32, 8, 64, 128256, True, 131072),
    "llama-3.1-8b": Shape("llama", 32, 4096, 14336, 32, 8, 128, 128256, False, 131072),
    "qwen3-4b": Shape("qwen3", 36, 2560, 9728, 32, 8, 128, 151936, True, 40960),
    "qwen3-30b-a3b": Shape("qwen3moe", 48, 2048, 6144, 32, 4, 128, 151936, False, 40960, 128, 8, 768),
}

# Block format: values and bytes of a block, and its 16-bit scales (offset, value). The rest of a
# block is random.
BLOCKS = {
    "Q8_0": (32, 34, [(0, 0.02 / 74)]),
    "Q4_0": (32, 18, [(0, 0.02 / 4.6)]),
    "Q4_1": (32, 20, [(0, 0.02 / 4.6), (2, -7.5 * 0.02 / 4.6)]),
    "Q5_0": (32, 22, [(0, 0.02 / 9.2)]),
    "Q5_1": (32, 24, [(0, 0.02 / 9.2), (2, -15.5 * 0.02 / 9.2)]),
    "MXFP4": (32, 17, []),
    "Q2_K": (256, 84, [(80, 0.02 / 9.8), (82, 1.5 * 0.02 / 9.8)]),
    "Q3_K": (256, 110, [(108, 0.02 / 42)]),
    "Q4_K": (256, 144, [(0, 0.02 / 163), (2, 7.5 * 0.02 / 163)]),
    "Q5_K": (256, 176, [(0, 0.02 / 330), (2, 15.5 * 0.02 / 330)]),
    "Q6_K": (256, 210, [(208, 0.02 / 1370)]),
    "IQ4_NL": (32, 18, [(0, 0.02 / 70)]),
    "IQ4_XS": (256, 136, [(0, 0.02 / 1290)]),
    "IQ3_XXS": (256, 98, [(0, 0.02 / 140)]),
    "IQ3_S": (256, 110, [(0, 0.02 / 155)]),
    "IQ2_XXS": (256, 66, [(0, 0.02 / 37)]),
    "IQ2_XS": (256, 74, [(0, 0.02 / 42)]),
    "IQ2_S": (256, 82, [(0, 0.02 / 46)]),
    "IQ1_S": (256, 50, [(0, 0.02 / 7.6)]),
    "IQ1_M": (256, 56, []),
    "TQ1_0": (256, 54, [(52, 0.02 / 0.82)]),
    "TQ2_0": (256, 66, [(64, 0.02 / 0.82)]),
}
FLOATS = {"F32": 4, "F16": 2, "BF16": 2}
TYPES = [*BLOCKS, "F16", "BF16", "Q4_K_M"]


def tensors(shape, kind, layers=None):
    """Name, rows, columns, type and experts of every tensor except norms."""
    s = SHAPES[shape]
    base = "Q4_K" if kind == "Q4_K_M" else kind
    fine = "Q6_K" if kind == "Q4_K_M" else base
    yield "token_embd.weight", s.vocab, s.hidden, fine if s.tied else base, 0
    if not s.tied:
        yield "output.weight", s.vocab, s.hidden, fine, 0
    for i in range(layers or s.layers):
        p, more = f"blk.{i}.", fine if i % 2 == 0 else base
        yield p + "attn_q.weight", s.heads * s.head_dim, s.hidden, base, 0
        yield p + "attn_k.weight", s.kv_heads * s.head_dim, s.hidden, base, 0
        yield p + "attn_v.weight", s.kv_heads * s.head_dim, s.hidden, more, 0
        yield p + "attn_output.weight", s.hidden, s.heads * s.head_dim, base, 0
        if s.experts:
            yield p + "ffn_gate_inp.weight", s.experts, s.hidden, "F32", 0
            yield p + "ffn_gate_exps.weight", s.expert_ffn, s.hidden, base, s.experts
            yield p + "ffn_up_exps.weight", s.expert_ffn, s.hidden, base, s.experts
            yield p + "ffn_down_exps.weight", s.hidden, s.expert_ffn, more, s.experts
        else:
            yield p + "ffn_gate.weight", s.ffn, s.hidden, base, 0
            yield p + "ffn_up.weight", s.ffn, s.hidden, base, 0
            yield p + "ffn_down.weight", s.hidden, s.ffn, more, 0


def stored_as(kind, cols):
    """Type in which a row of this length can be stored."""
    return "Q8_0" if kind in BLOCKS and cols % BLOCKS[kind][0] else kind


def size(shape, kind, layers=None):
    """Bytes of a file, without vocabulary and norms."""
    total = 0
    for _, rows, cols, kind_, experts in tensors(shape, kind, layers):
        kind_ = stored_as(kind_, cols)
        row = cols * FLOATS[kind_] if kind_ in FLOATS else cols // BLOCKS[kind_][0] * BLOCKS[kind_][1]
        total += row * rows * max(experts, 1)
    return total


def write(shape, kind, out, layers=None):
    """Writes the file under a temporary name and renames it at the end."""
    import gguf
    import numpy as np

    s = SHAPES[shape]
    part = pathlib.Path(f"{out}.part")
    w = gguf.GGUFWriter(str(part), s.arch)
    header(w, s, shape, layers or s.layers)
    fill = Filler(np, gguf)
    norms = [("output_norm.weight", s.hidden)]
    for i in range(layers or s.layers):
        norms += [(f"blk.{i}.attn_norm.weight", s.hidden), (f"blk.{i}.ffn_norm.weight", s.hidden)]
        if s.arch.startswith("qwen3"):
            norms += [(f"blk.{i}.attn_q_norm.weight", s.head_dim), (f"blk.{i}.attn_k_norm.weight", s.head_dim)]
    # All tensors are declared before the first byte is written; each is generated when it is
    # written.
    plan = []
    for name, n in norms:
        w.add_tensor_info(name, (n,), np.dtype(np.float32), n * 4)
        plan.append(lambda n=n: np.ones(n, np.float32))
    for name, rows, cols, kind_, experts in tensors(shape, kind, layers):
        kind_ = stored_as(kind_, cols)
        shape_, dtype, raw = fill.described(kind_, rows, cols, experts)
        w.add_tensor_info(name, shape_, dtype, fill.bytes(kind_, rows * max(experts, 1), cols), raw)
        plan.append(lambda k=kind_, r=rows * max(experts, 1), c=cols: fill.tensor(k, r, c))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    for make in plan:
        w.write_tensor_data(make())
    w.close()
    part.replace(out)


def header(w, s, shape, layers):
    w.add_name(f"{shape} (random weights)")
    w.add_block_count(layers)
    w.add_context_length(s.context)
    w.add_embedding_length(s.hidden)
    w.add_feed_forward_length(s.ffn)
    w.add_head_count(s.heads)
    w.add_head_count_kv(s.kv_heads)
    w.add_key_length(s.head_dim)
    w.add_value_length(s.head_dim)
    w.add_rope_dimension_count(s.head_dim)
    w.add_rope_freq_base(500000.0)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_vocab_size(s.vocab)
    if s.experts:
        w.add_expert_count(s.experts)
        w.add_expert_used_count(s.used)
        w.add_expert_feed_forward_length(s.expert_ffn)
    # The vocabulary has a token per byte, and numbered words for the rest.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(c) for c in printable] + [chr(256 + i) for i in range(256 - len(printable))]
    words = [t.encode() for t in letters]
    words += [b"<word%d>" % i for i in range(len(words), s.vocab)]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("llama-bpe")
    w.add_token_list(words)
    w.add_token_types([1] * s.vocab)
    w.add_token_merges(["a b"])
    w.add_bos_token_id(s.vocab - 2)
    w.add_eos_token_id(s.vocab - 1)


class Filler:
    """Cuts tensors out of one pool of random blocks per type. This is fast, and no two tensors are
    equal."""

    POOL = 1 << 14

    def __init__(self, np, gguf, seed=1):
        self.np, self.types, self.rng, self.pools = np, gguf.GGMLQuantizationType, np.random.default_rng(seed), {}

    def bytes(self, kind, rows, cols):
        if kind in FLOATS:
            return rows * cols * FLOATS[kind]
        values, size_, _ = BLOCKS[kind]
        return rows * (cols // values) * size_

    def described(self, kind, rows, cols, experts):
        """Shape in elements or bytes, element type and GGUF type for the writer."""
        np = self.np
        lead = (experts, rows) if experts else (rows,)
        if kind in ("F32", "F16"):
            return (*lead, cols), np.dtype(np.float32 if kind == "F32" else np.float16), None
        return (*lead, self.bytes(kind, 1, cols)), np.dtype(np.uint8), self.types[kind]

    def tensor(self, kind, rows, cols):
        np = self.np
        if kind in FLOATS:
            pool = self.pool("float", lambda: self.rng.standard_normal(1 << 16, dtype=np.float32) * np.float32(0.02))
            x = np.resize(np.roll(pool, int(self.rng.integers(0, len(pool)))), rows * cols)
            if kind == "BF16":
                return ((x.view(np.uint32) + 0x8000) >> 16).astype(np.uint16)
            return x if kind == "F32" else x.astype(np.float16)
        values, _, _ = BLOCKS[kind]
        pool = self.pool(kind, lambda: self.blocks(kind, self.POOL))
        n, start = rows * cols // values, int(self.rng.integers(0, self.POOL))
        return pool[np.arange(start, start + n) % self.POOL]

    def pool(self, key, make):
        if key not in self.pools:
            self.pools[key] = make()
        return self.pools[key]

    def blocks(self, kind, n):
        """Generates n random blocks, one per row of bytes."""
        np = self.np
        _, size_, scales = BLOCKS[kind]
        b = self.rng.integers(0, 256, (n, size_), dtype=np.uint8)
        for at, value in scales:
            b[:, at : at + 2] = np.frombuffer(np.float16(value).tobytes(), np.uint8)
        if kind == "MXFP4":
            # The format has an exponent instead of a scale.
            b[:, 0] = 127 - 7
        elif kind == "IQ1_M":
            # The four hexadecimal digits of the scale are the top digits of the four scale words.
            bits = int(np.float16(0.02 / 7.6).view(np.uint16))
            words = b[:, 48:56].view(np.uint16)
            for i in range(4):
                words[:, i] = (words[:, i] & 0x0FFF) | (((bits >> (4 * i)) & 0xF) << 12)
        elif kind == "TQ2_0":
            # Valid codes are 0, 1 and 2.
            codes = self.rng.integers(0, 3, (n, 64, 4), dtype=np.uint8)
            b[:, :64] = codes[:, :, 0] | codes[:, :, 1] << 2 | codes[:, :, 2] << 4 | codes[:, :, 3] << 6
        return b


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("type", choices=TYPES)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--layers", type=int)
    args = parser.parse_args()
    write(args.shape, args.type, args.out, args.layers)
    print(f"{args.out}: {args.out.stat().st_size / 1e9:.2f} GB", file=sys.stderr)


if __name__ == "__main__":
    main()
