"""Pictures that are no copies of a photograph though they are made from it: other frames, crops, colours, cut-outs, silhouettes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

Named = tuple[str, Image.Image]

COLOURS_AT = 1024
"""Pixels a side at most of a colour variant; the photograph is reduced to it, which its hash does not notice."""

SEEN, SEEN_SHARE = 10.0, 0.1
"""A colour variant counts where at least this share of the pixels is this much away (CIE76; 2.3 can just be seen)."""


def frames(image: Image.Image) -> Iterator[Named]:
    """Neighbouring frames and crops: what a camera that moved a little would have taken."""
    for share in (0.03, 0.05, 0.1):
        dx, dy = max(1, round(image.width * share)), max(1, round(image.height * share))
        w, h = image.width, image.height
        yield f"crop of a corner, {share:.0%}", image.crop((0, 0, w - dx, h - dy))
        yield f"zoom, {share:.0%}", image.crop((dx // 2, dy // 2, w - dx + dx // 2, h - dy + dy // 2))
        yield f"shift of the frame, {share:.0%}", image.crop((dx, 0, w, h))
    for degrees in (1.5, 3.0):
        yield f"rotation, {degrees:g} degrees", _rotated(image, degrees)
    for share in (0.03, 0.06):
        yield f"perspective, {share:.0%}", _leaning(image, share)


def shifted_back(image: Image.Image, share: float) -> Image.Image:
    """The other frame of "shift of the frame": as large, and begun that much further left."""
    dx = max(1, round(image.width * share))
    return image.crop((0, 0, image.width - dx, image.height))


def _rotated(image: Image.Image, degrees: float) -> Image.Image:
    """About the centre, cropped to what holds no corner, ratio kept."""
    t = math.radians(degrees)
    longer, shorter = max(image.size), min(image.size)
    keep = 1 / (math.cos(t) + longer / shorter * math.sin(t))
    w, h = image.width * keep, image.height * keep
    left, top = (image.width - w) / 2, (image.height - h) / 2
    whole = image.rotate(degrees, Image.Resampling.BICUBIC)
    return whole.crop((round(left), round(top), round(left + w), round(top + h)))


def _leaning(image: Image.Image, share: float) -> Image.Image:
    """Seen from a little further right: the left side's ends come nearer."""
    w, h = image.size
    corners = (0, h * share, 0, h * (1 - share), w, h, w, 0)
    return image.transform(image.size, Image.Transform.QUAD, corners, Image.Resampling.BICUBIC)


def recoloured(image: Image.Image, seed: int) -> Iterator[Named]:
    """Other colours of the same lightness, where there is colour to change; and one thing in another colour."""
    small = image.copy()
    small.thumbnail((COLOURS_AT, COLOURS_AT), Image.Resampling.LANCZOS)
    lab = _lab(small)
    for degrees in (30, 60, 180):
        t = math.radians(degrees)
        turn = np.array([[math.cos(t), -math.sin(t)], [math.sin(t), math.cos(t)]], np.float32)
        changed = _from_lab(np.dstack([lab[..., :1], lab[..., 1:] @ turn.T]))
        if _seen(lab, changed):
            yield f"hue turned by {degrees} degrees", changed
    grey = small.convert("L").convert("RGB")
    if _seen(lab, grey):
        yield "grey", grey
    luma, blue, red = small.convert("YCbCr").split()
    swapped = Image.merge("YCbCr", (luma, red, blue)).convert("RGB")
    if _seen(lab, swapped):
        yield "blue and red swapped, equal luminance", swapped
    random = np.random.default_rng(seed)
    for share in (0.2, 0.1):
        size = share * min(small.size)
        x, y = random.random() * (small.width - size), random.random() * (small.height - size)
        mask = Image.new("L", small.size)
        ImageDraw.Draw(mask).ellipse((x, y, x + size, y + size), fill=255)
        away = 60 if random.random() < 0.5 else -60
        chroma = [luma, *(band.point(lambda v, away=away: v + away) for band in (blue, red))]
        thing = Image.composite(Image.merge("YCbCr", chroma).convert("RGB"), small, mask)
        yield f"a thing of {share:g} of the side recoloured", thing


def _lab(image: Image.Image) -> npt.NDArray[np.float32]:
    """CIE L*a*b*, shape (height, width, 3)."""
    import cv2

    found: Any = cv2.cvtColor(np.asarray(image, np.float32) / 255, cv2.COLOR_RGB2LAB)
    return np.asarray(found, np.float32)


def _from_lab(lab: npt.NDArray[np.float32]) -> Image.Image:
    import cv2

    rgb: Any = cv2.cvtColor(lab.astype(np.float32), cv2.COLOR_LAB2RGB)
    return Image.fromarray(np.rint(np.clip(rgb, 0, 1) * 255).astype(np.uint8))


def _seen(lab: npt.NDArray[np.float32], other: Image.Image) -> bool:
    away = np.linalg.norm(_lab(other) - lab, axis=2)
    return bool((away >= SEEN).mean() >= SEEN_SHARE)


def two_levels(image: Image.Image) -> Iterator[Named]:
    """Silhouettes and dithered pictures: black and white."""
    small = image.copy()
    small.thumbnail((900, 900), Image.Resampling.LANCZOS)
    grey = np.asarray(small.convert("L"))
    for share in (0.3, 0.5, 0.7):
        level = np.quantile(grey, share)
        yield "silhouette", Image.fromarray(np.where(grey > level, 255, 0).astype(np.uint8)).convert("RGB")
    yield "dithered", small.convert("1").convert("RGB")


def cut_out_on_white(image: Image.Image, seed: int) -> Iterator[Named]:
    """A round piece of the photograph on white, as a shop shows a thing; and again at another place and size."""
    random = np.random.default_rng(seed)
    side = min(image.size)
    piece = image.crop(((image.width - side) // 2, (image.height - side) // 2, *_far(image, side)))
    for _ in range(2):
        size = int(random.integers(250, 620))
        mask = Image.new("L", (size, size))
        ImageDraw.Draw(mask).ellipse((0, 0, size - 1, size - 1), fill=255)
        canvas = Image.new("RGB", (900, 900), "white")
        at = (int(random.integers(0, 900 - size)), int(random.integers(0, 900 - size)))
        canvas.paste(piece.resize((size, size), Image.Resampling.LANCZOS), at, mask)
        yield "cut-out of a photograph on white", canvas


def _far(image: Image.Image, side: int) -> tuple[int, int]:
    return (image.width - side) // 2 + side, (image.height - side) // 2 + side


def object_on_white(stamp: Image.Image, seed: int) -> Iterator[Named]:
    """A cut-out thing (RGBA) as shops show it: small and large on white, in a studio, and in another colour."""
    random = np.random.default_rng(seed)
    stamp = stamp.crop(stamp.getchannel("A").getbbox())
    for kind, room in (("small", 0.5), ("large", 0.92)):
        yield f"object on white, {kind}", _placed(stamp, Image.new("RGB", (800, 800), "white"), room)
    studio = _placed(stamp, _backdrop(random), 0.7)
    yield "object in a studio", studio
    hue, saturation, value = stamp.convert("RGB").convert("HSV").split()
    other = Image.merge("HSV", (hue.point(lambda v: (v + 90) % 256), saturation, value)).convert("RGB")
    other.putalpha(stamp.getchannel("A"))
    if _seen(_lab(stamp.convert("RGB")), other.convert("RGB")):
        yield "object on white, another colour", _placed(other, Image.new("RGB", (800, 800), "white"), 0.92)


def _placed(stamp: Image.Image, canvas: Image.Image, room: float) -> Image.Image:
    scale = room * canvas.width / max(stamp.size)
    size = (max(1, round(stamp.width * scale)), max(1, round(stamp.height * scale)))
    thing = stamp.resize(size, Image.Resampling.BICUBIC)
    canvas.paste(thing, ((canvas.width - size[0]) // 2, (canvas.height - size[1]) // 2), thing.getchannel("A"))
    return canvas


def _backdrop(random: np.random.Generator) -> Image.Image:
    """Nearly white, darker towards the edges, with a camera's noise."""
    y, x = np.mgrid[-1:1:800j, -1:1:800j]
    level = random.uniform(238, 252) - random.uniform(4, 20) * (x**2 + y**2) / 2
    noisy = level[..., None] + random.normal(0, 1.2, (800, 800, 3))
    return Image.fromarray(np.rint(np.clip(noisy, 0, 255)).astype(np.uint8))
