#!/usr/bin/env python3
"""Makes the expected values of the resampling tests: make_vectors.py OUT [VISION_ENTRIES]

OUT/resize.json: results of Pillow's Image.resize for drawn pictures. Needs Pillow before version 13, which resamples
rows first in every case, and NumPy.
OUT/model-pixels.json: hashes of the pixel tensors of vision entries with the steps that make them. VISION_ENTRIES is a
folder of entries as `PUNA_ZOO_DIR` names one; needs the package gguf, too.
"""
import hashlib
import json
import math
import pathlib
import sys

import numpy as np
import PIL
from PIL import Image

FILTERS = {"bilinear": Image.BILINEAR, "bicubic": Image.BICUBIC, "lanczos": Image.LANCZOS}
SOURCES = [(1, 1), (1, 7), (9, 1), (2, 2), (3, 5), (17, 13), (40, 90), (100, 64), (96, 96), (1, 200), (200, 1), (301, 203), (1000, 7), (640, 480)]
TARGETS = [(1, 1), (2, 3), (7, 5), (16, 16), (33, 47), (96, 96), (224, 224), (300, 1), (1, 300), (100, 64), (448, 32)]
LARGE = [((2000, 1500), (896, 896)), ((1500, 2000), (336, 448)), ((30000, 2), (7, 5)), ((40, 4000), (64, 3)), ((5, 4), (1500, 900))]
# Results with at most this many values are stored whole.
MAX_STORED = 48
f32 = np.float32


def draw(formula, w, h, salt):
    y, x = np.mgrid[0:h, 0:w].astype(np.int64)
    if formula == "ramps":
        red = x * 255 // max(1, w - 1)
        rgb = red, y * 255 // max(1, h - 1), np.where((x // 8 + y // 8) % 2 == 0, (x * 3 + y * 5 + salt) % 256, 255 - red)
    else:
        d = (2 * x - w) ** 2 + (2 * y - h) ** 2
        rgb = np.where(d // (200 + salt) % 2 == 0, 255, 20), d // 64 % 256, np.where((x + y + salt) % 13 < 4, 255, x * y % 200)
    return np.stack(rgb, -1).astype(np.uint8)


def resize_cases():
    pairs = [(s, t) for s in SOURCES for t in TARGETS] + LARGE
    for number, ((w, h), target) in enumerate(pairs):
        formula = ("ramps", "rings")[number % 2]
        picture = Image.fromarray(draw(formula, w, h, number))
        for name, method in FILTERS.items():
            result = np.asarray(picture.resize(target, method))
            case = {"formula": formula, "size": [w, h], "salt": number, "target": target, "filter": name, "sha256": hashlib.sha256(result.tobytes()).hexdigest()}
            if result.size <= MAX_STORED:
                case["pixels"] = result.ravel().tolist()
            yield case


def fixed(w, h):
    return {"fixed": [w, h]}


def step(target, filter, place="ceil_pad", padding=(0, 0, 0), crop=None):
    one = {"target": target, "filter": filter, "place": place, "padding": padding}
    return one | ({"crop": crop} if crop else {})


def tiles(w, h, side):
    return [[x, y, side, side] for y in range(0, h, side) for x in range(0, w, side)]


def best_candidate(w, h, candidates):
    best, most, least = None, 0, 1 << 60
    for cw, ch in candidates:
        s = min(f32(cw) / f32(w), f32(ch) / f32(h))
        used = min(int(f32(w) * s) * int(f32(h) * s), w * h)
        waste = cw * ch - used
        if used > most or used == most and waste < least:
            best, most, least = (cw, ch), used, waste
    return best


def pipelines(projector, kv, w, h):
    """For each encoder input the list of steps, or None for projectors with other rules."""
    side, patch = kv["clip.vision.image_size"], kv["clip.vision.patch_size"]
    merge = kv.get("clip.vision.projector.scale_factor") or kv.get("clip.vision.spatial_merge_size")
    if projector == "gemma3":
        return [[step(fixed(side, side), "bilinear")]]
    if projector == "mlp" and "clip.vision.image_grid_pinpoints" not in kv:
        return [[step(fixed(side, side), "bicubic", padding=(122, 116, 104))]]
    if projector == "lightonocr":
        edge = kv.get("clip.vision.preproc_image_size", side)
        return [[step({"longest_edge": {"edge": edge, "alignment": patch * merge}}, "bicubic")]]
    if projector == "paddleocr":
        lo, hi, a = kv["clip.vision.image_min_pixels"], kv["clip.vision.image_max_pixels"], patch * 2
        return [[step({"smart_resize": {"alignment": a, "min": lo, "max": hi}}, "bicubic")]]
    limits = {"qwen2vl_merger": (2, 8, 4096), "qwen2.5vl_merger": (2, 8, 4096), "qwen3vl_merger": (2, 8, 4096), "glm4v": (2, 8, 4096), "pixtral": (1, 8, 1024), "gemma4v": (3, 70, 1120),
              "gemma4uv": (3, 70, 1120), "lfm2": (1, 64, 256)}
    if projector in limits:
        default, lo, hi = limits[projector]
        a = patch * (merge or default)
        target = {"smart_resize": {"alignment": a, "min": lo * a * a, "max": hi * a * a}}
        if projector == "lfm2" and round(w / a) * a * round(h / a) * a > 2 * hi * a * a:
            return None
        return [[step(target, "bilinear", "stretch")]] if projector == "lfm2" else [[step(target, "bicubic")]]
    if projector in ("internvl", "llama4"):
        overview = [step(fixed(side, side), "bicubic", "stretch")]
        if w <= side and h <= side:
            return [overview]
        grids = [(a, b) for a in range(1, 13) for b in range(1, 12 // a + 1)] if projector == "internvl" else [(a, b) for a in (1, 2, 3) for b in (1, 2, 3) if (a, b) != (1, 1)]
        size = best_candidate(w, h, [(a * side, b * side) for a, b in grids])
        return [[step(fixed(*size), "bicubic", crop=crop)] for crop in tiles(*size, side)] + [overview]
    if projector == "idefics3":
        edge = kv["clip.vision.preproc_image_size"]
        long = [edge, int(edge / (w / h))] if w >= h else [int(edge * (w / h)), edge]
        long = [n + n % 2 for n in long]
        grid = [-(-n // side) * side for n in long]
        steps = [step(fixed(*long), "lanczos", "stretch"), step(fixed(*grid), "lanczos", "stretch")]
        parts = [[steps[0], steps[1] | {"crop": crop}] for crop in tiles(*grid, side)]
        return parts + [steps + [step(fixed(side, side), "lanczos", "stretch")]]
    return None


def model_cases(folder):
    import gguf
    for path in sorted(folder.glob("*.json")):
        entry = json.loads(path.read_text())
        if not any("image" in case or "images" in case for case in entry["cases"]):
            continue
        kv = {k: f.contents() for k, f in gguf.GGUFReader(folder / entry["mmproj"]).fields.items() if k.startswith("clip.")}
        for case in entry["cases"]:
            pictures = case.get("images") or [case]
            lists = [pipelines(entry["projector"], kv, p["width"], p["height"]) for p in pictures]
            if None in lists:
                continue
            inputs = [(p, steps) for p, all_steps in zip(pictures, lists) for steps in all_steps]
            assert len(inputs) == len(case["pixels"]), path
            for (picture, steps), pixels in zip(inputs, case["pixels"]):
                one, channels, height, width = pixels["shape"]
                assert (one, channels) == (1, 3)
                yield {
                    "entry": path.stem, "formula": picture["formula"], "size": [picture["width"], picture["height"]], "salt": picture["s"], "steps": steps,
                    "mean": kv["clip.vision.image_mean"], "std": kv["clip.vision.image_std"], "result": [width, height], "sha256": pixels["sha256"],
                }


def write(path, source, cases):
    lines = ",\n".join("  " + json.dumps(case, separators=(",", ":")) for case in cases)
    path.write_text('{"source": %s, "cases": [\n%s\n]}\n' % (json.dumps(source), lines))


def main():
    assert int(PIL.__version__.split(".")[0]) < 13, "Pillow 13 may resample columns first"
    out = pathlib.Path(sys.argv[1])
    write(out / "resize.json", f"Pillow {PIL.__version__}, Image.resize of drawn pictures", resize_cases())
    if len(sys.argv) > 2:
        write(out / "model-pixels.json", "pixel tensors that llama.cpp's libmtmd made for the vision entries", model_cases(pathlib.Path(sys.argv[2])))


main()
