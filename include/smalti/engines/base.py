"""What every captioner and classifier is, and how a profile becomes one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from PIL import Image

from smalti.config import Engine
from smalti.errors import InputError
from smalti.reasons import Label


@dataclass(frozen=True)
class CaptionInput:
    """One picture to describe.

    Attributes:
        id: the sample's id.
        image: RGB, the bucket's crop, at most the profile's max_pixels.
        source_caption: what the source says of it.
        width, height: of the upright original, px.
    """

    id: str
    image: Image.Image
    source_caption: str | None
    width: int
    height: int


@dataclass(frozen=True)
class CaptionResult:
    """One answer. `text` is None and `detail` says why where the status is failed."""

    text: str | None
    status: Literal["ok", "failed"]
    detail: str = ""


@dataclass(frozen=True)
class LabelResult:
    """One label; `score` in [0, 1] compares it with the other labels and is no probability of being right."""

    label: Label
    score: float


class Captioner(Protocol):
    """Describes pictures."""

    def caption(self, items: list[CaptionInput]) -> list[CaptionResult]:
        """One result an item, in their order. A picture that makes trouble fails alone."""
        ...


class Classifier(Protocol):
    """Labels captions. It never sees a picture."""

    def classify(self, captions: Sequence[str]) -> list[LabelResult]:
        """One label a caption, in their order."""
        ...


def open_captioner(engine: Engine) -> Captioner:
    """Load the captioner that a profile names. Raises InputError for a kind that is not built."""
    if engine.role != "captioner":
        raise _wrong_role(engine, "captioner")
    if engine.kind == "rules":
        from smalti.engines.captions import RulesCaptioner

        return RulesCaptioner()
    raise _not_built(engine)


def open_classifier(engine: Engine) -> Classifier:
    """Load the classifier that a profile names. Raises InputError for a kind that is not built."""
    if engine.role != "classifier":
        raise _wrong_role(engine, "classifier")
    if engine.kind == "rules":
        from smalti.engines.labels import RulesClassifier

        return RulesClassifier()
    raise _not_built(engine)


def _wrong_role(engine: Engine, role: str) -> InputError:
    return InputError(
        f"the profile is a {engine.role}", f"engines/{engine.name}.yaml", f"Name a profile whose role is {role}"
    )


def _not_built(engine: Engine) -> InputError:
    return InputError(
        f"engines of kind {engine.kind} are not available yet", f"engines/{engine.name}.yaml", "Use kind: rules"
    )
