"""Image files made byte by byte or sample by sample, so that the right pixels are known without a decoder."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

Pixels = npt.NDArray[np.uint8]

# Bradford-adapted to D50, as ICC profiles store them.
SRGB_D50 = np.array([[0.43607, 0.38515, 0.14307], [0.22249, 0.71687, 0.06061], [0.01392, 0.09708, 0.71410]])
P3_D50 = np.array([[0.51512, 0.29198, 0.15710], [0.24120, 0.69225, 0.06657], [-0.00105, 0.04189, 0.78407]])


def quadrants(width: int = 96, height: int = 64) -> Pixels:
    """Red, green / blue, yellow: no turn or mirror image of it equals it. Sides are multiples of 16, for JPEG's sake."""
    picture = np.zeros((height, width, 3), np.uint8)
    picture[: height // 2, : width // 2] = (220, 30, 30)
    picture[: height // 2, width // 2 :] = (30, 200, 40)
    picture[height // 2 :, : width // 2] = (40, 50, 210)
    picture[height // 2 :, width // 2 :] = (230, 220, 60)
    return picture


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def png(
    width: int, height: int, depth: int, colour: int, samples: npt.ArrayLike, *chunks: tuple[bytes, bytes]
) -> bytes:
    """A PNG of any bit depth and colour type; ``samples`` are the raw rows without filter bytes, as bytes a row."""
    rows = np.asarray(samples).reshape(height, -1)
    raw = b"".join(b"\0" + row.tobytes() for row in rows)
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    parts = [(b"IHDR", header), *chunks, (b"IDAT", zlib.compress(raw)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in parts
    )


def tiff_12_bit_grey(samples: list[int]) -> bytes:
    """One row of packed 12-bit samples, an even number of them."""
    packed = b"".join(((a << 12) | b).to_bytes(3, "big") for a, b in zip(samples[::2], samples[1::2], strict=True))
    tags = {256: len(samples), 257: 1, 258: 12, 259: 1, 262: 1, 273: 8, 277: 1, 278: 1, 279: len(packed)}
    entries = b"".join(struct.pack("<HHII", tag, 3, 1, value) for tag, value in tags.items())
    return struct.pack("<2sHI", b"II", 42, 8 + len(packed)) + packed + struct.pack("<H", len(tags)) + entries + bytes(4)


def exif(orientation: int) -> bytes:
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags.tobytes()


def ycck_jpeg(cmyk: Pixels) -> bytes:
    """What Photoshop writes: APP14 with transform 2, and inks inverted before YCCK is made of them.

    YCCK is YCbCr of (255-C, 255-M, 255-Y) with K as it is (jdcolor.c), so that of inverted inks is YCbCr of the inks.
    """
    ycc = np.asarray(Image.fromarray(np.ascontiguousarray(cmyk[..., :3])).convert("YCbCr"))
    stored = np.dstack([ycc, 255 - cmyk[..., 3]])
    data = saved(Image.fromarray(255 - stored, "CMYK"), "JPEG", quality=100, subsampling=0)  # Pillow inverts again
    at = data.index(b"Adobe")
    assert data[at + 11] == 0
    return data[: at + 11] + b"\x02" + data[at + 12 :]


def rgb_profile(to_xyz_d50: npt.NDArray[np.float64], gamma: float) -> bytes:
    """An RGB profile of three primaries and one power curve."""
    columns = {name: _xyz(*to_xyz_d50[:, i]) for i, name in enumerate((b"rXYZ", b"gXYZ", b"bXYZ"))}
    curves = dict.fromkeys((b"rTRC", b"gTRC", b"bTRC"), _curve(gamma))
    return _profile(b"mntr", b"RGB ", b"XYZ ", {**columns, **curves, b"wtpt": _xyz(0.9642, 1.0, 0.8249)})


def grey_profile(gamma: float) -> bytes:
    return _profile(b"mntr", b"GRAY", b"XYZ ", {b"kTRC": _curve(gamma), b"wtpt": _xyz(0.9642, 1.0, 0.8249)})


def cmyk_profile(lab_of_corner: dict[tuple[int, int, int, int], tuple[float, float, float]]) -> bytes:
    """A CMYK profile (lut8, 2^4 corners) that says outright which Lab colour each full ink mixture has."""
    identity = bytes(range(256))
    grid = b""
    for index in range(16):
        corner = (index >> 3 & 1, index >> 2 & 1, index >> 1 & 1, index & 1)
        lightness, a, b = lab_of_corner.get(corner, (0.0, 0.0, 0.0))
        grid += bytes((round(lightness * 2.55), round(a + 128), round(b + 128)))
    unit = struct.pack(">9I", *(65536 if i % 4 == 0 else 0 for i in range(9)))
    lut = b"mft1" + bytes(4) + bytes((4, 3, 2, 0)) + unit + identity * 4 + grid + identity * 3
    return _profile(b"prtr", b"CMYK", b"Lab ", {b"A2B0": lut, b"A2B1": lut, b"wtpt": _xyz(0.9642, 1.0, 0.8249)})


def srgb_encoded(linear: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """IEC 61966-2-1, 0-1 in, 0-255 out."""
    linear = np.clip(linear, 0, 1)
    encoded = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return np.asarray(255 * encoded, np.float64)


def srgb_of_lab(lightness: float, a: float, b: float) -> npt.NDArray[np.float64]:
    """CIE 15: L*a*b* of D50 to sRGB, 0-255."""
    y = (lightness + 16) / 116
    cubes = [f**3 if f > 6 / 29 else 3 * (6 / 29) ** 2 * (f - 4 / 29) for f in (y + a / 500, y, y - b / 200)]
    return srgb_encoded(np.linalg.inv(SRGB_D50) @ (np.array([0.9642, 1.0, 0.8249]) * cubes))


def _xyz(*values: float) -> bytes:
    return b"XYZ " + bytes(4) + struct.pack(">3i", *(round(v * 65536) for v in values))


def _curve(gamma: float) -> bytes:
    return b"curv" + bytes(4) + struct.pack(">IH", 1, round(gamma * 256))


def _profile(device: bytes, space: bytes, connection: bytes, tags: dict[bytes, bytes]) -> bytes:
    text = b"made for a test\0"
    tags = {
        b"desc": b"desc" + bytes(4) + struct.pack(">I", len(text)) + text + bytes(78),
        b"cprt": b"text" + bytes(4) + text,
        **tags,
    }
    table, body = b"", b""
    start = 128 + 4 + 12 * len(tags)
    for name, value in tags.items():
        table += name + struct.pack(">II", start + len(body), len(value))
        body += value + bytes(-len(value) % 4)
    size = start + len(body)
    header = struct.pack(">I4sI4s4s4s", size, b"lcms", 0x02400000, device, space, connection)
    header += struct.pack(">6H", 2026, 1, 1, 0, 0, 0) + b"acsp" + bytes(28) + _xyz(0.9642, 1.0, 0.8249)[8:]
    return header + bytes(128 - len(header)) + struct.pack(">I", len(tags)) + table + body
