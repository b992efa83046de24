"""What every engine is, and how a profile becomes one.

Kind `rules` takes a list of rows at once, on a CPU (Captioner, Classifier). Kinds `vllm` and `openai` are asked row by row, many
rows at a time (AsyncEngine): what is done with an answer, and when to ask again, is the same for both (`smalti.engines.asking`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from PIL import Image

from smalti.config import Engine
from smalti.errors import InputError
from smalti.profiles import Sampling
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


class RowError(Exception):
    """The engine cannot answer about this one row (its prompt is too long, its picture is refused); the others go on."""


@dataclass(frozen=True)
class Question:
    """What an engine is asked about one row. The system prompt is the profile's.

    Attributes:
        id: the sample's id.
        user: the user's turn.
        image: RGB, at most the profile's max_pixels; None for a classifier.
    """

    id: str
    user: str
    image: Image.Image | None = None


class Answer(NamedTuple):
    """What an engine says.

    Attributes:
        text: as the model gave it, special tokens that were not its end included.
        finish: why it stopped: "stop", "length", or what a server calls it.
        tokens: of the answer.
    """

    text: str
    finish: str
    tokens: int


class AsyncEngine(Protocol):
    """A model that works on many rows at a time. Made, used and closed in one event loop."""

    async def ask(self, question: Question, sampling: Sampling) -> Answer:
        """One answer. Many calls run at once, as many as the profile's `concurrency`.

        Raises:
            RowError: this row cannot be answered, however often it is asked about.
            EngineError: the engine cannot answer at all.
        """
        ...

    async def close(self) -> None:
        """Give back what the engine holds."""
        ...


async def open_engine(profile: Engine) -> AsyncEngine:
    """Load the engine of a profile of kind vllm or openai.

    Raises:
        InputError: the profile lacks something (a revision, a key).
        EngineError: the engine cannot be loaded.
    """
    if profile.kind == "openai":
        from smalti.engines.openai import open_openai

        return await open_openai(profile)
    if profile.kind == "vllm":
        from smalti.engines.vllm import open_vllm

        return await open_vllm(profile)
    raise InputError("kind rules is not asked row by row", f"engines/{profile.name}.yaml", "Use kind: vllm or openai")


def open_captioner(engine: Engine) -> Captioner:
    """Load the captioner that a profile names. Raises InputError for a kind that is asked row by row."""
    if engine.role != "captioner":
        raise _wrong_role(engine, "captioner")
    if engine.kind == "rules":
        from smalti.engines.captions import RulesCaptioner

        return RulesCaptioner()
    raise _not_rules(engine)


def open_classifier(engine: Engine) -> Classifier:
    """Load the classifier that a profile names. Raises InputError for a kind that is asked row by row."""
    if engine.role != "classifier":
        raise _wrong_role(engine, "classifier")
    if engine.kind == "rules":
        from smalti.engines.labels import RulesClassifier

        return RulesClassifier()
    raise _not_rules(engine)


def _wrong_role(engine: Engine, role: str) -> InputError:
    return InputError(
        f"the profile is a {engine.role}", f"engines/{engine.name}.yaml", f"Name a profile whose role is {role}"
    )


def _not_rules(engine: Engine) -> InputError:
    return InputError(
        f"engines of kind {engine.kind} are asked row by row", f"engines/{engine.name}.yaml", "Use kind: rules"
    )
