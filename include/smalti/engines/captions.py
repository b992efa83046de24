"""The captioner of kind `rules`: it states what it measures, beside the source's caption, and nothing else.

Its rows say so: captioner "rules". A dataset can refuse them (`drops.captioners`).
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from smalti.engines.base import CaptionInput, CaptionResult

QUOTED = 200
"""Characters of found text that a caption quotes at most."""

SURE = 0.6
"""Recognition score from which on text counts as found."""

COLOURS: tuple[tuple[str, tuple[int, int, int]], ...] = (
    ("black", (20, 20, 20)),
    ("dark grey", (75, 75, 75)),
    ("grey", (130, 130, 130)),
    ("light grey", (190, 190, 190)),
    ("white", (245, 245, 245)),
    ("red", (200, 40, 40)),
    ("dark red", (110, 30, 30)),
    ("orange", (230, 130, 40)),
    ("brown", (120, 80, 50)),
    ("beige", (215, 195, 165)),
    ("yellow", (235, 210, 60)),
    ("olive", (120, 120, 50)),
    ("green", (60, 150, 70)),
    ("dark green", (35, 75, 45)),
    ("turquoise", (70, 190, 190)),
    ("light blue", (150, 195, 230)),
    ("blue", (50, 100, 200)),
    ("dark blue", (30, 40, 100)),
    ("purple", (120, 60, 150)),
    ("pink", (235, 150, 180)),
)
"""Names for colours, by the nearest of these in sRGB."""


@dataclass(frozen=True)
class FoundText:
    """Text in a picture: in reading order, and the share of the picture that its lines cover, 0 to 1."""

    text: str
    share: float


class RulesCaptioner:
    """No model but the OCR's."""

    def caption(self, items: list[CaptionInput]) -> list[CaptionResult]:
        """One paragraph a picture; the same picture always gets the same."""
        return [CaptionResult(describe(item, read_text(item.image)), "ok") for item in items]


def describe(item: CaptionInput, found: FoundText) -> str:
    """The caption: the source's, then what was measured."""
    sentences = []
    if item.source_caption and item.source_caption.strip():
        sentences.append(" ".join(item.source_caption.split()).rstrip(".") + ".")
    pixels = np.asarray(item.image.convert("RGB").resize((64, 64), Image.Resampling.BOX))
    sentences.append(f"The picture is {_orientation(item.width, item.height)}, {item.width} by {item.height} pixels.")
    sentences.append(f"It is {_brightness(pixels)}, mainly {_listed(main_colours(pixels))}.")
    if found.text:
        share = f"{found.share:.0%}" if found.share >= 0.01 else "less than 1%"
        sentences.append(f"{_amount(found.share)} covers {share} of it and reads: “{_shortened(found.text)}”.")
    return " ".join(sentences)


def main_colours(pixels: NDArray[np.uint8]) -> list[str]:
    """Names of the colours that cover at least 15 % of the pixels, most first; at least one, at most three.

    Args:
        pixels: RGB, shape (h, w, 3).
    """
    names = [name for name, _ in COLOURS]
    palette = np.array([rgb for _, rgb in COLOURS], np.int32)
    flat = pixels.reshape(-1, 3).astype(np.int32)
    nearest = ((flat[:, None, :] - palette[None, :, :]) ** 2).sum(axis=2).argmin(axis=1)
    counts = np.bincount(nearest, minlength=len(names))
    order = sorted(range(len(names)), key=lambda index: (-int(counts[index]), index))
    return [names[index] for index in order[:3] if counts[index] >= 0.15 * len(flat)] or [names[order[0]]]


def read_text(image: Image.Image) -> FoundText:
    """Find and read the text in a picture."""
    lines, _ = _ocr()(np.asarray(image.convert("RGB"))[:, :, ::-1])  # it takes BGR
    sure = [(np.array(box), str(text)) for box, text, score in lines or [] if float(score) >= SURE and _is_text(text)]
    area = sum(_area(box) for box, _ in sure)
    text = " ".join(text.strip() for _, text in sure)
    return FoundText(re.sub(r"[\x00-\x1f]+|[“”]", " ", text).strip(), min(1.0, area / (image.width * image.height)))


@functools.cache
def _ocr() -> Any:
    """One reader a process: its models take a second to load.

    The picture is never enlarged before lines are looked for, as it is by default (shorter side to 736 px), which costs
    two to four times the time. One thread: the tasks of a stage share the cores.
    """
    from rapidocr_onnxruntime import RapidOCR

    return RapidOCR(
        det_limit_type="max", det_limit_side_len=736, use_cls=False, intra_op_num_threads=1, inter_op_num_threads=1
    )


def _is_text(line: str) -> bool:
    """Texture is now and then read as a letter or a sign: two letters or digits are the least that counts."""
    return sum(character.isalnum() for character in line) >= 2


def _area(box: NDArray[Any]) -> float:
    """Of a quadrilateral, px^2 (shoelace formula)."""
    x, y = box[:, 0].astype(float), box[:, 1].astype(float)
    return float(abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1))) / 2)


def _orientation(width: int, height: int) -> str:
    if abs(width - height) <= 0.02 * max(width, height):
        return "square"
    return "landscape" if width > height else "portrait"


def _brightness(pixels: NDArray[np.uint8]) -> str:
    """By mean luma (ITU-R BT.601) and its standard deviation."""
    luma = pixels.astype(np.float64) @ np.array([0.299, 0.587, 0.114])
    mean, spread = float(luma.mean()), float(luma.std())
    light = "dark" if mean < 80 else "bright" if mean > 175 else "of medium brightness"
    contrast = "almost no" if spread < 8 else "low" if spread < 35 else "high" if spread > 70 else "medium"
    return f"{light}, with {contrast} contrast"


def _amount(share: float) -> str:
    return "A lot of text" if share >= 0.15 else "Text" if share >= 0.04 else "A little text"


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _shortened(text: str) -> str:
    return text if len(text) <= QUOTED else text[:QUOTED].rsplit(" ", 1)[0] + " …"
