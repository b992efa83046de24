"""A table with pictures that wait for captions, and an engine that does as it is told."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any

import lance  # noqa: TID253
import pytest

from smalti.config import Engine
from smalti.engines.base import Answer, Question
from smalti.lake import Lake
from smalti.pipeline.executors import EngineWork
from smalti.pipeline.plan import Place
from smalti.profiles import Prompt, PromptText, Sampling
from smalti.settings import SourceRun
from smalti.sources.inventory import stage
from smalti.table.caption import caption_target, caption_work
from smalti.table.fingerprint import fingerprint
from smalti.table.ingest import ingest
from tests.sources.making import Made, simple

TEXT = PromptText(system="You are told what to do.", user="Caption this image.")
PROFILE = Engine(
    name="told", role="captioner", kind="openai", model="told", base_url="http://127.0.0.1:1/v1",
    prompt=Prompt(name="told", sha256=TEXT.sha256, text=TEXT), checks=None, concurrency=4, batch_size=2, engines=1,
    price=2.0,
)  # fmt: skip


class Told:
    """Answers with what `say` returns, or raises; counts what it was asked about."""

    def __init__(self, say: Callable[[Question, Sampling], Answer | str] | None = None, seconds: float = 0.0) -> None:
        self.say = say or (lambda question, _: f"It is {question.id}.")
        self.seconds = seconds
        self.asked: Counter[str] = Counter()
        self.at_once = self.most = self.opened = self.closed = 0

    async def open(self, profile: Engine) -> Told:
        self.opened += 1
        return self

    async def ask(self, question: Question, sampling: Sampling) -> Answer:
        self.asked[question.id] += 1
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        try:
            await asyncio.sleep(self.seconds)
            said = self.say(question, sampling)
        finally:
            self.at_once -= 1
        return said if isinstance(said, Answer) else Answer(said, "stop", len(said.split()))

    async def close(self) -> None:
        self.closed += 1


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def made(tmp_path: Any) -> Made:
    """Eight pictures."""
    return simple(f"file://{tmp_path}/source", 8)


@pytest.fixture
def run(lake: Lake, made: Made) -> SourceRun:
    """Eight rows in three fragments, fingerprinted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("smalti.sources.files.GROUP_ROWS", 3)
        return add_batch(lake, made, "b1")


def add_batch(lake: Lake, made: Made, batch: str) -> SourceRun:
    """What the table gets from a batch, up to fingerprint; the run has the profile `told`."""
    run = made.run(batch).model_copy(update={"captioner": PROFILE})
    stage(lake, run)
    ingest(lake, run)
    fingerprint(lake, run)
    return run


def place_of(lake: Lake, run: SourceRun) -> Place:
    return Place(lake, run.source.name, run.batch, caption_target(run))


def work_of(run: SourceRun, told: Told) -> EngineWork:
    return dataclasses.replace(caption_work(run), opener=told.open)


def column(lake: Lake, name: str, batch: str = "b1") -> dict[str, Any]:
    """Key -> value of a batch's rows."""
    table = lance.dataset(lake.table("made")).to_table(columns=["id", name], filter=f"batch = '{batch}'")
    return {row["id"].removeprefix("made/").removesuffix(".jpg"): row[name] for row in table.to_pylist()}
