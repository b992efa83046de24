"""Copies of a photograph, each as the line would get it: stored bytes, decoded."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

from smalti.images.decode import UPRIGHT, decode

Copying = Callable[[Image.Image, int], Image.Image]
"""The picture and a number, by which the orientations take turns -> the decoded copy."""

_UNDO = {
    Image.Transpose.ROTATE_90: Image.Transpose.ROTATE_270,
    Image.Transpose.ROTATE_270: Image.Transpose.ROTATE_90,
}


def stored_as(image: Image.Image, kind: str, **options: Any) -> Image.Image:
    """Through the bytes of a file."""
    out = io.BytesIO()
    image.save(out, kind, **options)
    return decode(out.getvalue())


def resized(image: Image.Image, scale: float, how: str) -> Image.Image:
    """To a share of both sides, by LANCZOS or BICUBIC (Pillow), or AREA (OpenCV)."""
    size = (round(image.width * scale), round(image.height * scale))
    if how == "AREA":
        import cv2

        return Image.fromarray(cv2.resize(np.asarray(image), size, interpolation=cv2.INTER_AREA))
    return image.resize(size, Image.Resampling[how])


def turned(image: Image.Image, orientation: int, kind: str = "JPEG", **options: Any) -> Image.Image:
    """Its pixels turned and the EXIF tag set that turns them back."""
    turn = UPRIGHT[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    return stored_as(image.transpose(_UNDO.get(turn, turn)), kind, exif=exif.tobytes(), **options)


def _codec(kind: str, **options: Any) -> Copying:
    return lambda image, number: stored_as(image, kind, **options)


def _resize(scale: float, how: str) -> Copying:
    return lambda image, number: resized(image, scale, how)


def _resize_jpeg(scale: float, quality: int) -> Copying:
    return lambda image, number: stored_as(resized(image, scale, "LANCZOS"), "JPEG", quality=quality)


COPIES: dict[str, Copying] = {
    "PNG": _codec("PNG", compress_level=1),
    "JPEG 95": _codec("JPEG", quality=95),
    "JPEG 85": _codec("JPEG", quality=85),
    "JPEG 75": _codec("JPEG", quality=75),
    "WebP 90": _codec("WEBP", quality=90, method=2),
    "WebP 80": _codec("WEBP", quality=80, method=2),
    "AVIF 75": _codec("AVIF", quality=75, speed=8),
    "AVIF 55": _codec("AVIF", quality=55, speed=8),
    **{
        f"{scale}x {how.lower()}": _resize(scale, how)
        for scale in (0.75, 0.5, 0.25)
        for how in ("LANCZOS", "BICUBIC", "AREA")
    },
    **{
        f"{scale}x, JPEG {quality}": _resize_jpeg(scale, quality) for scale in (0.75, 0.5, 0.25) for quality in (85, 75)
    },
    "turned, JPEG 90": lambda image, number: turned(image, 2 + number % 7, quality=90),
    "turned, WebP 80": lambda image, number: turned(image, 2 + (number + 3) % 7, "WEBP", quality=80, method=2),
    "turned, 0.5x, JPEG 85": lambda image, number: turned(
        resized(image, 0.5, "LANCZOS"), 2 + (number + 5) % 7, quality=85
    ),
}
