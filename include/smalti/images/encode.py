"""A picture as the bytes that a shard holds."""

from __future__ import annotations

import io
from typing import Literal

from PIL import Image

Encoding = Literal["jpeg", "png"]
Chroma = Literal["420", "444"]

QUALITY = 92


def encode(image: Image.Image, encoding: Encoding = "jpeg", quality: int = QUALITY, chroma: Chroma = "420") -> bytes:
    """JPEG (baseline) or PNG of an RGB picture: no metadata, and the same bytes each time.

    Args:
        quality: 1 to 100, JPEG only.
        chroma: 420 halves the colour resolution, 444 does not; JPEG only.
    Raises:
        ValueError: another mode, encoding, quality or chroma.
    """
    if image.mode != "RGB":
        raise ValueError(f"mode {image.mode}: only RGB is encoded")
    bare = image.copy()
    bare.info = {}  # Pillow would write an ICC profile or a comment that is left here
    out = io.BytesIO()
    if encoding == "png":
        bare.save(out, "PNG", compress_level=6, optimize=False)
        return out.getvalue()
    if encoding != "jpeg":
        raise ValueError(f"no encoding {encoding!r}: jpeg or png")
    if not 1 <= quality <= 100:
        raise ValueError(f"quality {quality}: 1 to 100")
    if chroma not in ("420", "444"):
        raise ValueError(f"no chroma {chroma!r}: 420 or 444")
    subsampling = ":".join(chroma)
    bare.save(out, "JPEG", quality=quality, subsampling=subsampling, optimize=False, progressive=False)
    return out.getvalue()


# ITU-T T.81 (JPEG), tables K.1 and K.2, row by row.
_LUMINANCE = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
_CHROMINANCE = (
    (17, 18, 24, 47, 99, 99, 99, 99),
    (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99),
    (47, 66, 99, 99, 99, 99, 99, 99),
    *((99,) * 8 for _ in range(4)),
)

Tables = tuple[tuple[int, ...], ...]


def quality_tables(quality: int) -> Tables:
    """The quantisation tables, luminance and chrominance, that libjpeg's quality stands for: 64 numbers each, by rows.

    From the standard's tables and libjpeg's scaling (jpeg_quality_scaling), not from an encoder: `verify` compares what was
    published with this.
    """
    if not 1 <= quality <= 100:
        raise ValueError(f"quality {quality}: 1 to 100")
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality
    return tuple(
        tuple(min(255, max(1, (base * scale + 50) // 100)) for row in table for base in row)
        for table in (_LUMINANCE, _CHROMINANCE)
    )


def read_tables(data: bytes) -> Tables:
    """The quantisation tables of a JPEG, in `quality_tables`' order; header only.

    Raises:
        ValueError: the bytes are not a JPEG.
    """
    try:
        with Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
            tables: dict[int, list[int]] = image.quantization  # type: ignore[attr-defined]
    except OSError as error:
        raise ValueError(f"not a JPEG: {error}") from error
    return tuple(tuple(tables[index]) for index in sorted(tables))
