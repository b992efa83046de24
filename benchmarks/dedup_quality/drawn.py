"""Drawn pictures, each its own: pages, screenshots, logos, blobs on white, charts, flat fields, gradients, patterns of two levels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from tests.images.drawn import WORDS, field, page, screenshot, shape_on_white

Drawing = Callable[[], Image.Image]


def all_drawn() -> Iterator[tuple[str, Drawing]]:
    """1,210 pictures from fixed seeds: kind, and what draws it."""
    for seed in range(120):
        yield "page of text", partial(page, seed, font_size=_SIZES[seed % 4])
    for seed in range(40):
        ink, paper = (("#d0d0d0", "#202020"), ("#403020", "#f4ecd8"))[seed % 2]
        yield "page of text, other paper", partial(page, seed + 500, ink=ink, paper=paper)
    for seed in range(60):
        yield "scanned page", partial(_scanned, seed)
    for seed in range(60):
        yield "screenshot", partial(screenshot, seed)
    for kind, draw, count in (
        ("shape on white", shape_on_white, 150),
        ("blobs on white", _blobs, 150),
        ("logo", _logo, 150),
        ("chart", _chart, 80),
        ("pattern of two levels", _pattern, 80),
        ("gradient", _gradient, 200),
    ):
        for seed in range(count):
            yield kind, partial(draw, seed)
    random = np.random.default_rng(11)
    for seed in range(120):
        colour = "#{:02x}{:02x}{:02x}".format(*random.integers(0, 256, 3))
        noise = 6 * (seed % 2)
        yield "flat field with noise" if noise else "flat field", partial(field, colour, noise, seed)


_SIZES = (14, 18, 24, 30)


def _scanned(seed: int) -> Image.Image:
    """A page as a scanner sees it: grey paper lit unevenly, soft ink, noise. No level is pure."""
    image = page(seed + 900, font_size=_SIZES[seed % 4])
    random = np.random.default_rng(seed)
    levels = np.asarray(image.resize(image.size, Image.Resampling.BILINEAR), np.float64)[..., 0]
    y, x = np.mgrid[0 : 1 : levels.shape[0] * 1j, 0 : 1 : levels.shape[1] * 1j]
    light = random.uniform(0.75, 0.9) + random.uniform(-0.12, 0.12) * x + random.uniform(-0.12, 0.12) * y
    noisy = (40 + levels * 0.8) * light + random.normal(0, 4, levels.shape)
    return Image.fromarray(np.rint(np.clip(noisy, 0, 255)).astype(np.uint8)).convert("RGB")


def _blobs(seed: int) -> Image.Image:
    """Many small shapes on white; half of the pictures share their shapes' places with the one before and differ in one."""
    random = np.random.default_rng(seed // 2)
    image = Image.new("RGB", (900, 900), "white")
    draw = ImageDraw.Draw(image)
    count = int(random.integers(4, 40))
    for _ in range(count):
        x, y = random.integers(40, 860, 2).tolist()
        a, b = random.integers(10, 70, 2).tolist()
        colour = tuple(random.integers(0, 220, 3).tolist())
        (draw.ellipse if random.random() < 0.7 else draw.rectangle)((x - a, y - b, x + a, y + b), fill=colour)
    if seed % 2:
        x, y = random.integers(100, 800, 2).tolist()
        draw.ellipse((x - 25, y - 25, x + 25, y + 25), fill=tuple(random.integers(0, 220, 3).tolist()))
    return image


def _logo(seed: int) -> Image.Image:
    """A mark and a name; five brands after another share the mark."""
    mark, own = np.random.default_rng(seed // 5 + 10_000), np.random.default_rng(seed)
    image = Image.new("RGB", (1000, 600), "white")
    draw = ImageDraw.Draw(image)
    colour = tuple(mark.integers(0, 200, 3).tolist())
    for _ in range(int(mark.integers(2, 6))):
        x, y = int(mark.integers(350, 650)), int(mark.integers(120, 320))
        r = int(mark.integers(30, 110))
        draw.ellipse((x - r, y - r, x + r, y + r), outline=colour, width=int(mark.integers(8, 40)))
    name = " ".join(str(word) for word in own.choice(WORDS, 2)).upper()
    draw.text((500, 480), name, font=ImageFont.load_default(80), fill=colour, anchor="mm")
    return image


def _chart(seed: int) -> Image.Image:
    """A line or bars between axes, on white or on a light panel."""
    random = np.random.default_rng(seed)
    image = Image.new("RGB", (1000, 700), "white")
    draw = ImageDraw.Draw(image)
    if seed % 2:
        draw.rectangle((80, 40, 960, 620), fill="#eaeaf2")
    heights = np.clip(np.cumsum(random.normal(0, 60, 30)) + 330, 60, 600)
    places = [(90 + 29 * n, int(h)) for n, h in enumerate(heights)]
    if seed % 4 < 2:
        draw.line(places, fill="#1f77b4", width=4)
    else:
        for x, y in places:
            draw.rectangle((x, y, x + 20, 620), fill="#4c72b0")
    draw.line([(80, 40), (80, 620), (960, 620)], fill="black", width=2)
    draw.text((400, 650), str(random.choice(WORDS)), font=ImageFont.load_default(24), fill="black")
    return image


def _pattern(seed: int) -> Image.Image:
    """Squares of two levels like a matrix code; chessboards and stripes of several widths."""
    random = np.random.default_rng(seed)
    side = int(random.integers(4, 48))
    if seed % 4 == 0:
        cells = np.indices((side, side)).sum(0) % 2
    elif seed % 4 == 1:
        cells = np.broadcast_to(np.arange(side) % 2, (side, side))
    else:
        cells = random.integers(0, 2, (side, side))
    low, high = ((0, 255), (40, 210))[seed % 2]
    image = Image.fromarray(np.where(cells > 0, high, low).astype(np.uint8))
    return image.resize((768, 768), Image.Resampling.NEAREST).convert("RGB")


def _gradient(seed: int) -> Image.Image:
    """From one colour to another along a line or from a point; a third of them with noise, which a camera's sky has."""
    random = np.random.default_rng(seed)
    first, last = random.uniform(0, 255, (2, 3))
    y, x = np.mgrid[0:1:640j, 0:1:640j]
    if seed % 2:
        angle = random.uniform(0, 2 * np.pi)
        way = x * np.cos(angle) + y * np.sin(angle)
    else:
        cx, cy = random.random(2)
        way = np.hypot(x - cx, y - cy)
    way = (way - way.min()) / (way.max() - way.min())
    levels = first + (last - first) * way[..., None]
    if seed % 3 == 0:
        levels = levels + random.normal(0, 3, levels.shape)
    return Image.fromarray(np.rint(np.clip(levels, 0, 255)).astype(np.uint8))
