"""Labels by an engine: one of three words, asked about the caption alone; what it cannot say is kept and skipped."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from smalti.config import load_engine
from smalti.engines.base import Question
from smalti.lake import Lake
from smalti.profiles import Sampling
from smalti.settings import SourceRun
from smalti.shards.stage import read_batch
from smalti.table import classify as module
from smalti.table.caption import caption
from smalti.table.classify import classify, classify_work
from tests.pipeline.conftest import Told, column
from tests.pipeline.conftest import made as made
from tests.pipeline.conftest import run as run


@pytest.fixture
def labelled(lake: Lake, run: SourceRun, monkeypatch: pytest.MonkeyPatch) -> tuple[SourceRun, Told]:
    """Rows with captions, and a classifier that says `text` of p1, nonsense of p2 and `Visual.` of the others."""

    def say(question: Question, _: Sampling) -> str:
        return {"made/p1.jpg": "text", "made/p2.jpg": "a picture"}.get(question.id, " Visual.\n")

    told = Told(say)
    classifier = load_engine("qwen3-8b", "classifier").model_copy(update={"name": "told", "gpus": 0, "batch_size": 3})
    both = run.model_copy(update={"classifier": classifier})
    from smalti.table import caption as caption_module

    captions = dataclasses.replace(caption_module.caption_work(both), opener=Told().open)
    monkeypatch.setattr(caption_module, "caption_work", lambda _: captions)
    caption(lake, both)
    labels = dataclasses.replace(classify_work(both), opener=told.open)
    monkeypatch.setattr(module, "classify_work", lambda _: labels)
    return both, told


def test_labels_are_one_of_three_or_there_is_none(lake: Lake, labelled: tuple[SourceRun, Told]) -> None:
    both, told = labelled
    report = classify(lake, both)
    assert (report.rows_in, report.rows_out, report.dropped) == (8, 7, {"label_failed": 1})
    assert (report.labels, report.failed) == ({"text": 1, "visual": 6}, {"no_label": 1})
    assert column(lake, "label_told_of_told")["p2"] is None
    attempts = column(lake, "label_told_of_told_attempts")
    assert attempts == {name: 3 if name == "p2" else 1 for name in attempts}
    assert told.asked["made/p2.jpg"] == both.classifier.attempts
    again: Any = classify(lake, both)
    assert (again.computed, again.dropped) == (0, report.dropped)


def test_a_batch_with_a_row_that_has_no_label_can_be_sharded(lake: Lake, labelled: tuple[SourceRun, Told]) -> None:
    both, _ = labelled
    classify(lake, both)
    rows = read_batch(lake, both).rows
    assert sorted(map(str, rows["label"].to_pylist())) == ["None", "text", *["visual"] * 6]
    assert set(rows["caption_ok"].to_pylist()) == {True}
