"""Classify: a classifier's profile reads each caption and says visual, text or nsfw. It sees no picture."""

from __future__ import annotations

import collections
import functools
import logging
import time

import pyarrow.compute as pc
from pydantic import Field

from smalti.accounting import Accounted
from smalti.config import Engine
from smalti.engines.base import Classifier, open_classifier
from smalti.errors import InputError
from smalti.lake import Lake
from smalti.profiles import digest_of
from smalti.settings import SourceRun
from smalti.table.caption import OK, caption_digest
from smalti.table.columns import Chunk, Filling, Results, backfill
from smalti.table.schema import caption_columns, label_columns
from smalti.table.target import PROFILE, batch_table

log = logging.getLogger("smalti")


class ClassifyReport(Accounted):
    """rows_in: rows of the batch with a caption of the captioner's profile; rows_out: those with a label."""

    profile: str
    computed: int = Field(ge=0, description="captions that this run had read")
    labels: dict[str, int] = Field({}, description="label -> rows")


def classify(lake: Lake, run: SourceRun) -> ClassifyReport:
    """Label the batch's captions that this profile has not labelled yet.

    Raises:
        InputError: the batch is not captioned, or the label's column was filled from other captions.
        EngineError: the classifier cannot run.
    """
    began = time.monotonic()
    engine, uri = run.classifier, lake.table(run.source.name)
    text, status = caption_columns(run.captioner.name)[:2]
    columns = label_columns(engine.name)
    rows = batch_table(uri, run.batch, ["drop", status])
    waiting = rows.filter(pc.and_(pc.is_null(rows["drop"]), pc.is_null(rows[status]))).num_rows if rows else 0
    if waiting:
        raise InputError(
            f"{waiting} rows of batch {run.batch!r} have no caption by {run.captioner.name!r}", uri, "Run caption first"
        )
    # The captions are part of what a label says: one column never holds labels of two captioners' words.
    digest = digest_of(engine.digest, caption_digest(run))
    filled = backfill(
        lake,
        run.source.name,
        run.batch,
        Filling(
            stage="classify",
            profile=engine.name,
            digest=digest,
            outputs=columns.fields({PROFILE: digest}),
            marker=columns.status,
            inputs=(text, status),
            eligible=lambda rows: pc.fill_null(pc.equal(rows[status], OK), False),
            compute=classify_chunk,
            settings=(engine, run.captioner.name),
            chunk_rows=lambda _: engine.batch_size,
            cpus=engine.cpus,
        ),
    )
    rows = batch_table(uri, run.batch, [status, columns.label])
    labels = collections.Counter(rows[columns.label].drop_null().to_pylist() if rows else ())
    report = ClassifyReport(
        stage="classify",
        seconds=round(time.monotonic() - began, 3),
        rows_in=rows[status].to_pylist().count(OK) if rows else 0,
        rows_out=labels.total(),
        profile=engine.name,
        computed=filled.computed,
        labels=dict(sorted(labels.items())),
    )
    log.info("classify: %d captions, labels %s", report.rows_in, report.labels)
    return report


def classify_chunk(chunk: Chunk, settings: tuple[Engine, str]) -> Results:
    """Label and score of each row of a chunk of captions."""
    engine, captioner = settings
    columns = label_columns(engine.name)
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
