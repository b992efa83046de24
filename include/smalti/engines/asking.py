"""Ask an engine about one row until the answer is what it must be, or the profile's attempts are used up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from smalti.config import Engine
from smalti.engines.base import AsyncEngine, Question, RowError
from smalti.engines.checks import check_caption
from smalti.engines.sampling import sampling_of
from smalti.reasons import CaptionFault, Label, Unanswered

DETAIL = 300
"""Characters of a refused answer that its checkpoint keeps."""

Fault = CaptionFault | Unanswered
Judge = Callable[[str, str], tuple[str, Fault | None]]
"""From an answer's text and finish to what is kept of it, and what is wrong with it."""


@dataclass(frozen=True)
class Answered:
    """What became of one row.

    Attributes:
        text: the caption or label; None where the status is failed.
        reason: why it failed (a Fault); None where it is ok.
        detail: the refused answer's beginning, or the error; in the checkpoint only.
        finish: why the model stopped at the last attempt; None if there was no answer.
        tokens: of all its answers together.
        attempts: how often it was asked about.
    """

    text: str | None
    status: Literal["ok", "failed"]
    reason: str | None = None
    detail: str | None = None
    finish: str | None = None
    tokens: int = 0
    attempts: int = 0


async def answer(engine: AsyncEngine, profile: Engine, question: Question) -> Answered:
    """Ask about one row, at most `profile.attempts` times.

    Raises:
        EngineError: the engine cannot answer at all.
    """
    judge = _judge(profile)
    tokens, failed = 0, Answered(None, "failed", Unanswered.ERROR, "not asked")
    for attempt in range(1, profile.attempts + 1):
        try:
            got = await engine.ask(question, sampling_of(profile.sampling, attempt))
        except RowError as error:
            return Answered(None, "failed", Unanswered.ERROR, str(error)[:DETAIL], None, tokens, attempt)
        tokens += got.tokens
        text, fault = judge(got.text, got.finish)
        if fault is None:
            return Answered(text, "ok", None, None, got.finish, tokens, attempt)
        failed = Answered(None, "failed", fault.value, got.text[:DETAIL], got.finish, tokens, attempt)
    return failed


def _judge(profile: Engine) -> Judge:
    if profile.role == "classifier":
        return _judge_label
    rules = profile.checks

    def judge(text: str, finish: str) -> tuple[str, Fault | None]:
        if rules is None:
            return text.strip(), None if text.strip() else CaptionFault.EMPTY
        return text.strip(), check_caption(text, finish, rules)

    return judge


def _judge_label(text: str, finish: str) -> tuple[str, Fault | None]:
    word = text.strip().strip("\"'.").lower()
    return word, None if word in set(Label) else Unanswered.NO_LABEL
