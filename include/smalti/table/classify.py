"""Classify: a classifier's profile reads each caption and says visual, text or nsfw. It sees no picture."""

from __future__ import annotations

import collections
import functools
import logging
import time
from collections.abc import Sequence

import pyarrow.compute as pc
from pydantic import Field

from smalti.accounting import Accounted
from smalti.config import Engine
from smalti.engines.asking import Answered
from smalti.engines.base import Classifier, Question, open_classifier
from smalti.errors import InputError
from smalti.lake import Lake
from smalti.pipeline.executors import EngineWork
from smalti.pipeline.fill import fill
from smalti.pipeline.meter import EngineUse
from smalti.pipeline.plan import Chunk as EngineChunk
from smalti.pipeline.plan import Place
from smalti.pipeline.worker import Prepared
from smalti.profiles import digest_of
from smalti.reasons import SkipReason
from smalti.settings import SourceRun
from smalti.table.caption import FAILED, OK, caption_digest
from smalti.table.columns import Chunk, Filling, Results, backfill
from smalti.table.schema import LabelColumns, caption_columns, label_columns
from smalti.table.target import PROFILE, Target, batch_table

log = logging.getLogger("smalti")


class ClassifyReport(Accounted):
    """rows_in: rows of the batch with a caption of the captioner's profile; rows_out: those with a label;

    dropped: label_failed.
    """

    profile: str
    computed: int = Field(ge=0, description="captions that this run had read")
    labels: dict[str, int] = Field({}, description="label -> rows")
    failed: dict[str, int] = Field({}, description="why rows have no label -> rows")
    use: EngineUse | None = Field(None, description="what the engines of this run did; kind rules: nothing is said")


def classify(lake: Lake, run: SourceRun) -> ClassifyReport:
    """Label the batch's captions that this profile has not labelled yet.

    Raises:
        InputError: the batch is not captioned, or the label's column was filled from other captions.
        EngineError: the classifier cannot run.
    """
    began = time.monotonic()
    engine, uri = run.classifier, lake.table(run.source.name)
    status = caption_columns(run.captioner.name).status
    columns = label_columns(engine.name, run.captioner.name)
    rows = batch_table(uri, run.batch, ["drop", status])
    waiting = rows.filter(pc.and_(pc.is_null(rows["drop"]), pc.is_null(rows[status]))).num_rows if rows else 0
    if waiting:
        raise InputError(
            f"{waiting} rows of batch {run.batch!r} have no caption by {run.captioner.name!r}", uri, "Run caption first"
        )
    computed, use = _fill(lake, run)
    rows = batch_table(uri, run.batch, [status, columns.label, columns.status, columns.reason])
    labels = collections.Counter(rows[columns.label].drop_null().to_pylist() if rows else ())
    reasons = collections.Counter(rows[columns.reason].drop_null().to_pylist() if rows else ())
    failed = rows[columns.status].to_pylist().count(FAILED) if rows else 0
    report = ClassifyReport(
        stage="classify",
        seconds=round(time.monotonic() - began, 3),
        rows_in=rows[status].to_pylist().count(OK) if rows else 0,
        rows_out=labels.total(),
        profile=engine.name,
        dropped={SkipReason.LABEL_FAILED.value: failed} if failed else {},
        computed=computed,
        failed=dict(sorted(reasons.items())),
        use=use,
        labels=dict(sorted(labels.items())),
    )
    log.info("classify: %d captions, labels %s", report.rows_in, report.labels)
    return report


def classify_target(run: SourceRun) -> Target:
    """The columns of the run's classifier, and whose rows they are for."""
    columns, (text, status, *_) = (
        label_columns(run.classifier.name, run.captioner.name),
        caption_columns(run.captioner.name),
    )
    # The captions are part of what a label says: one column never holds labels of two captioners' words.
    digest = digest_of(run.classifier.digest, caption_digest(run))
    return Target(
        stage="classify",
        profile=run.classifier.name,
        digest=digest,
        outputs=columns.fields({PROFILE: digest}),
        marker=columns.status,
        inputs=(text, status),
        eligible=lambda rows: pc.fill_null(pc.equal(rows[status], OK), False),
    )


def classify_work(run: SourceRun) -> EngineWork:
    """How engines of kind vllm and openai classify."""
    columns = label_columns(run.classifier.name, run.captioner.name)
    return EngineWork(
        profile=run.classifier,
        prepare=prepare_captions,
        settings=(run.classifier, run.captioner.name),
        columns=functools.partial(answers_to_columns, columns),
        outputs=columns.fields({}),
    )


def _fill(lake: Lake, run: SourceRun) -> tuple[int, EngineUse | None]:
    """Rows that this run asked about, and what its engines did."""
    engine, target = run.classifier, classify_target(run)
    if engine.kind != "rules":
        filled = fill(Place(lake, run.source.name, run.batch, target), classify_work(run))
        return filled.computed, filled.use
    filling = Filling(
        **vars(target),
        compute=classify_chunk,
        settings=(engine, run.captioner.name),
        chunk_rows=lambda _: engine.batch_size,
        cpus=engine.cpus,
    )
    return backfill(lake, run.source.name, run.batch, filling).computed, None


def prepare_captions(chunk: EngineChunk, settings: tuple[Engine, str]) -> Prepared:
    """The user's turn about each caption of a chunk."""
    engine, captioner = settings
    assert engine.prompt is not None
    assert engine.prompt.text is not None
    ids, user = chunk.rows["id"].to_pylist(), engine.prompt.text.user
    captions = chunk.rows[caption_columns(captioner).text].to_pylist()
    questions = [Question(row, user.replace("{caption}", caption)) for row, caption in zip(ids, captions, strict=True)]
    return Prepared(chunk.checkpoint, ids, chunk.rows["sha256"].to_pylist(), questions)


def answers_to_columns(columns: LabelColumns, answers: Sequence[Answered]) -> Results:
    """The columns of a classifier's profile from its answers, and `detail` for the checkpoint. It states no score."""
    return {
        columns.label: [each.text for each in answers],
        columns.score: [None] * len(answers),
        columns.status: [each.status for each in answers],
        columns.attempts: [each.attempts for each in answers],
        columns.reason: [each.reason for each in answers],
        "detail": [each.detail for each in answers],
    }


def classify_chunk(chunk: Chunk, settings: tuple[Engine, str]) -> Results:
    """Label and score of each row of a chunk of captions."""
    engine, captioner = settings
    columns = label_columns(engine.name, captioner)
    results = _classifier(engine).classify(chunk.rows[caption_columns(captioner).text].to_pylist())
    return {
        columns.label: [result.label.value for result in results],
        columns.score: [result.score for result in results],
        columns.status: [OK] * len(results),
        columns.attempts: [1] * len(results),
        columns.reason: [None] * len(results),
    }


@functools.lru_cache(maxsize=1)
def _classifier(engine: Engine) -> Classifier:
    """Once a worker process: a model takes seconds to load."""
    return open_classifier(engine)
