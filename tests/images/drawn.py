"""Pictures drawn from a seed: pages, screenshots, shapes on white, flat fields."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw, ImageFont

WORDS = (
    "the", "of", "and", "a", "to", "in", "he", "have", "it", "that", "for", "they", "with", "as", "not", "on", "she",
    "at", "by", "this", "we", "you", "do", "but", "from", "or", "which", "one", "would", "all", "will", "there", "say",
    "who", "make", "when", "can", "more", "if", "no", "man", "out", "other", "so", "what", "time", "about", "than",
)  # fmt: skip


def page(
    seed: int, size: tuple[int, int] = (850, 1100), font_size: int = 18, ink: str = "black", paper: str = "white"
) -> Image.Image:
    """Paragraphs of words between margins."""
    random = np.random.default_rng(seed)
    image = Image.new("RGB", size, paper)
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(font_size)
    for y in range(70, size[1] - 70, font_size * 3 // 2):
        line = ""
        while draw.textlength(line, font=font) < size[0] - 190:
            line += str(random.choice(WORDS)) + " "
        if random.random() < 0.12:
            line = line[: len(line) // 2]
        draw.text((80, y), line, font=font, fill=ink)
    return image


def screenshot(seed: int, size: tuple[int, int] = (1280, 800)) -> Image.Image:
    """A window with a title bar, a side bar and rows of text."""
    random = np.random.default_rng(seed)
    image = Image.new("RGB", size, "#f4f5f7")
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(16)

    def words(count: int) -> str:
        return " ".join(str(word) for word in random.choice(WORDS, count))

    draw.rectangle((0, 0, size[0], 56), fill="#24292f")
    draw.text((20, 18), "Settings   Projects   Issues   Help", font=font, fill="white")
    draw.rectangle((0, 56, 240, size[1]), fill="#e8eaee")
    for y in range(80, size[1] - 40, 36):
        draw.text((20, y), words(2), font=font, fill="#333333")
    for y in range(90, size[1] - 50, 56):
        draw.rectangle((270, y, size[0] - 40, y + 44), fill="white", outline="#d0d0d0")
        draw.text((286, y + 12), words(int(random.integers(4, 18))), font=font, fill="#222222")
    return image


def shape_on_white(seed: int) -> Image.Image:
    """One coloured ellipse or rectangle: a logo, or a product shot without its details."""
    random = np.random.default_rng(seed)
    image = Image.new("RGB", (900, 900), "white")
    draw = ImageDraw.Draw(image)
    x, y = (int(v) for v in random.integers(300, 600, 2))
    a, b = (int(v) for v in random.integers(60, 280, 2))
    colour = tuple(int(v) for v in random.integers(0, 200, 3))
    shape = draw.ellipse if random.random() < 0.5 else draw.rectangle
    shape((x - a, y - b, x + a, y + b), fill=colour)
    return image


def field(colour: str, noise: float = 0.0, seed: int = 0) -> Image.Image:
    """One colour, with a camera's noise of so many levels."""
    flat = np.asarray(Image.new("RGB", (640, 640), colour), np.float64)
    noisy = flat + np.random.default_rng(seed).normal(0, noise, flat.shape)
    return Image.fromarray(np.rint(np.clip(noisy, 0, 255)).astype(np.uint8))


def gradient(low: int, high: int) -> Image.Image:
    ramp = np.linspace(low, high, 640).astype(np.uint8)
    return Image.fromarray(np.broadcast_to(ramp[None, :, None], (640, 640, 3)).copy())
