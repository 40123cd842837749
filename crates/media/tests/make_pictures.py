#!/usr/bin/env python3
"""Makes small pictures of the variants that cases.json does not have: make_pictures.py OUT

OUT gets the files and cases.json, in the form of the cases one folder above. Pillow makes the files and the expected
pixels: orientation applied, transparent pixels over white, 16 bits reduced by dropping the low byte.
"""
import hashlib
import io
import json
import pathlib
import struct
import sys
import zlib

import numpy as np
from PIL import Image, ImageOps

WIDTH, HEIGHT = 21, 13
CASES = []


def draw():
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    smooth = np.stack([x * 255 // (WIDTH - 1), y * 255 // (HEIGHT - 1), 255 - (x + y) * 255 // (WIDTH + HEIGHT - 2)], -1)
    return smooth.astype(np.uint8)


def over_white(rgba):
    rgba = rgba.astype(np.int64)
    alpha = rgba[..., 3:]
    return ((rgba[..., :3] * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)


def decoded(data):
    picture = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    if picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info:
        return over_white(np.asarray(picture.convert("RGBA")))
    return np.asarray(picture.convert("RGB"))


def put(name, data, expected=None, tolerance=0, note=None, error=None):
    (OUT / name).write_bytes(data)
    case = {"file": name, "bytes": len(data)}
    if error:
        case["error"] = error
    else:
        pixels = decoded(data) if expected is None else expected
        case |= {"width": pixels.shape[1], "height": pixels.shape[0], "sha256": hashlib.sha256(pixels.tobytes()).hexdigest(), "tolerance": tolerance}
        if tolerance:
            np.save(OUT / (name + ".npy"), np.ascontiguousarray(pixels))
            case["pixels"] = name + ".npy"
    CASES.append(case | ({"note": note} if note else {}))


def encode(picture, format, **options):
    out = io.BytesIO()
    picture.save(out, format, **options)
    return out.getvalue()


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(depth, color, rows, extra=b""):
    raw = b"".join(b"\0" + row.tobytes() for row in rows)
    header = struct.pack(">IIBBBBB", rows.shape[1], rows.shape[0], depth, color, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + extra + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")


def jpeg(base):
    cmyk = encode(base.convert("CMYK"), "JPEG", quality=95, subsampling=0)
    adobe = cmyk.index(b"Adobe")
    put("ycck.jpg", cmyk[: adobe + 11] + b"\2" + cmyk[adobe + 12 :], tolerance=4, note="the values of a CMYK file, declared as YCCK")
    put("cmyk-progressive.jpg", encode(base.convert("CMYK"), "JPEG", quality=95, progressive=True), tolerance=4)
    put("rgb.jpg", encode(base, "JPEG", quality=95, keep_rgb=True), tolerance=3, note="stored as RGB")
    put("restart.jpg", encode(base, "JPEG", quality=90, restart_marker_blocks=1), tolerance=3)
    put("422.jpg", encode(base, "JPEG", quality=90, subsampling=1), tolerance=3)
    put("grey-progressive.jpg", encode(base.convert("L"), "JPEG", quality=90, progressive=True), tolerance=3)
    plain = encode(base, "JPEG", quality=90)
    put("padded.jpg", plain[:2] + b"\xff\xff\xff" + plain[3:] + b"trailing bytes", expected=decoded(plain), tolerance=3, note="fill bytes before a marker, bytes behind the end")
    frame = plain.index(b"\xff\xc0")
    put("arithmetic.jpg", plain[:frame] + b"\xff\xc9" + plain[frame + 2 :], error="unsupported format")
    put("12-bit.jpg", plain[: frame + 4] + b"\x0c" + plain[frame + 5 :], error="unsupported format")


def pngs(base, pixels):
    grey = np.asarray(base.convert("L"))
    alpha = np.linspace(0, 255, WIDTH).astype(np.uint8)[None].repeat(HEIGHT, 0)
    put("grey-alpha.png", encode(Image.merge("LA", [Image.fromarray(grey), Image.fromarray(alpha)]), "PNG"))
    wide = (grey.astype(np.uint16) << 8 | 0xFF).astype(">u2")
    put("grey-16bit.png", png(16, 0, wide), expected=np.repeat(grey[..., None], 3, -1))
    rgba = np.dstack([pixels, alpha])
    wide = (rgba.astype(np.uint16) << 8 | 0x80).astype(">u2")
    put("rgba-16bit.png", png(16, 6, wide), expected=over_white(rgba))
    put("palette-transparent.png", encode(base.quantize(8), "PNG", transparency=bytes([0, 128, 255])))
    for depth in (2, 4):
        values = (grey >> (8 - depth)).astype(np.uint8)
        bits = np.unpackbits(values[..., None], axis=-1)[..., -depth:].reshape(HEIGHT, -1)
        rows = np.packbits(bits, axis=-1)
        data = png(depth, 0, rows)
        data = data[:16] + struct.pack(">I", WIDTH) + data[20:]
        data = data[:29] + struct.pack(">I", zlib.crc32(data[12:29])) + data[33:]
        expected = values.astype(np.int64) * 255 // (2**depth - 1)
        put(f"grey-{depth}bit.png", data, expected=np.repeat(expected[..., None], 3, -1).astype(np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 8
    late = encode(base, "PNG")
    put("exif-behind-data.png", late[:-12] + chunk(b"eXIf", exif.tobytes()[6:]) + late[-12:], expected=np.asarray(base.transpose(Image.Transpose.ROTATE_90)))


def gifs(base):
    few = base.quantize(8)
    put("transparent.gif", encode(few, "GIF", transparency=3), note="one color is transparent")
    put("interlaced.gif", encode(few, "GIF", interlace=1))
    whole = encode(few, "GIF", interlace=0)
    at = whole.index(b"\x2c\0\0\0\0")
    moved = whole[:6] + struct.pack("<HH", WIDTH + 4, HEIGHT + 3) + whole[10 : at + 1] + struct.pack("<HH", 3, 2) + whole[at + 5 :]
    canvas = np.full((HEIGHT + 3, WIDTH + 4, 3), 255, np.uint8)
    canvas[2 : 2 + HEIGHT, 3 : 3 + WIDTH] = np.asarray(few.convert("RGB"))
    put("small-frame.gif", moved, expected=canvas, note="the first frame covers a part of the canvas")


def others(base, pixels):
    alpha = np.linspace(0, 255, HEIGHT).astype(np.uint8)[:, None].repeat(WIDTH, 1)
    rgba = Image.fromarray(np.dstack([pixels, alpha]), "RGBA")
    put("alpha-lossy.webp", encode(rgba, "WEBP", quality=90), tolerance=4)
    put("palette.bmp", encode(base.quantize(64), "BMP"))
    put("1bit.bmp", encode(base.convert("1"), "BMP"))
    put("grey.bmp", encode(base.convert("L"), "BMP"))
    grey = base.convert("L")
    put("grey.tif", encode(grey, "TIFF"))
    put("packbits.tif", encode(base, "TIFF", compression="packbits"))
    put("deflate.tif", encode(base, "TIFF", compression="tiff_adobe_deflate"))
    put("fax.tif", encode(base.convert("1"), "TIFF", compression="group4"))
    put("rgba.tif", encode(rgba, "TIFF"), expected=over_white(np.asarray(rgba)))
    put("cmyk.tif", encode(base.convert("CMYK"), "TIFF"), tolerance=2)
    wide = (np.asarray(grey).astype(np.uint16) << 8) | 0xFF
    put("grey-16bit.tif", encode(Image.fromarray(wide), "TIFF"), expected=np.repeat(np.asarray(grey)[..., None], 3, -1))
    put("big-endian.tif", encode(Image.fromarray(wide.astype(">u2")), "TIFF"), expected=np.repeat(np.asarray(grey)[..., None], 3, -1))
    for value in (3, 6):
        put(f"orientation-{value}.tif", encode(base, "TIFF", tiffinfo={274: value}))
    put("jpeg.tif", encode(base, "TIFF", compression="jpeg", quality=95), tolerance=4)
    put("palette.tif", encode(base.quantize(16), "TIFF"), error="unsupported format")


OUT = pathlib.Path(sys.argv[1])
OUT.mkdir(exist_ok=True)
PIXELS = draw()
BASE = Image.fromarray(PIXELS)
jpeg(BASE)
pngs(BASE, PIXELS)
gifs(BASE)
others(BASE, PIXELS)
lines = ",\n".join(" " + json.dumps(case) for case in CASES)
(OUT / "cases.json").write_text(f"[\n{lines}\n]\n")
