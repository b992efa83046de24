"""Caption: what a captioner's profile says of each eligible picture, shown as the model will be trained on it.

A captioner sees the bucket's crop, so it never describes what was cut away.
"""

from __future__ import annotations

import collections
import functools
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow.compute as pc
from PIL import Image
from pydantic import Field

from smalti.accounting import Accounted
from smalti.config import Engine
from smalti.engines.asking import Answered
from smalti.engines.base import Captioner, CaptionInput, CaptionResult, Question, open_captioner
from smalti.errors import EngineError, InputError, SmaltiError
from smalti.images.buckets import Bucket, Fit, bucket_of
from smalti.images.decode import DecodeError, decode
from smalti.images.resize import fit_to
from smalti.lake import Lake
from smalti.pipeline.executors import EngineWork
from smalti.pipeline.fill import fill
from smalti.pipeline.meter import EngineUse
from smalti.pipeline.plan import Chunk as EngineChunk
from smalti.pipeline.plan import Place
from smalti.pipeline.worker import Prepared
from smalti.profiles import digest_of
from smalti.reasons import SkipReason, Unanswered
from smalti.settings import SourceRun
from smalti.table import store
from smalti.table.asked_back import leave_out
from smalti.table.columns import Chunk, Filling, Results, backfill
from smalti.table.schema import CaptionColumns, caption_columns
from smalti.table.target import PROFILE, Target, batch_table

log = logging.getLogger("smalti")

OK: Final = "ok"
FAILED: Final = "failed"


class CaptionReport(Accounted):
    """rows_in: the batch's rows in the table; rows_out: those with a caption; dropped: DropReasons and caption_failed."""

    profile: str
    computed: int = Field(ge=0, description="rows that this run asked the captioner about")
    failed: dict[str, int] = Field({}, description="why rows have no caption -> rows")
    use: EngineUse | None = Field(None, description="what the engines of this run did; kind rules: nothing is said")


@dataclass(frozen=True)
class CaptionSettings:
    """What a task needs besides its rows. `max_pixels`: of a source picture."""

    engine: Engine
    fit: Fit
    max_pixels: int


def caption(lake: Lake, run: SourceRun) -> CaptionReport:
    """Caption the batch's eligible rows that have no caption of this profile yet, but those that are asked back by now.

    Raises:
        InputError: the batch is not fingerprinted, the profile was changed under the same name, or the budget is used up.
        EngineError: the captioner cannot run; the chunks that were done stay.
    """
    began = time.monotonic()
    engine, uri = run.captioner, lake.table(run.source.name)
    columns = caption_columns(engine.name)
    check_fingerprinted(uri, run.batch)
    leave_out(lake, run.source.name, run.batch, columns.status)
    computed, use = _fill(lake, run)
    rows = batch_table(uri, run.batch, ["drop", columns.status, columns.reason])
    count = rows.num_rows if rows else 0
    dropped = collections.Counter(rows["drop"].drop_null().to_pylist() if rows else ())
    rows = (
        rows.filter(pc.is_null(rows["drop"])) if rows else None
    )  # another profile may have captioned one before it was dropped
    states = collections.Counter(rows[columns.status].to_pylist() if rows else ())
    if states[FAILED]:
        dropped[SkipReason.CAPTION_FAILED.value] = states[FAILED]
    report = CaptionReport(
        stage="caption",
        seconds=round(time.monotonic() - began, 3),
        rows_in=count,
        rows_out=states[OK],
        dropped=dict(sorted(dropped.items())),
        profile=engine.name,
        computed=computed,
        failed=dict(sorted(collections.Counter(rows[columns.reason].drop_null().to_pylist() if rows else ()).items())),
        use=use,
    )
    log.info("caption: %d rows in, %d captioned, left out %s", report.rows_in, report.rows_out, report.dropped)
    return report


def check_fingerprinted(uri: str, batch: str) -> None:
    """Raises InputError if any row of the batch has no tier yet."""
    rows = batch_table(uri, batch, ["tier"])
    if rows and rows["tier"].null_count:
        raise InputError(
            f"{rows['tier'].null_count} rows of batch {batch!r} are not fingerprinted", uri, "Run fingerprint first"
        )


def caption_settings(run: SourceRun) -> CaptionSettings:
    """What a task that captions needs besides its rows."""
    return CaptionSettings(run.captioner, run.source.encoding.fit, run.source.max_pixels)


def caption_target(run: SourceRun) -> Target:
    """The columns of the run's captioner, and whose rows they are for."""
    columns, digest = caption_columns(run.captioner.name), caption_digest(run)
    return Target(
        stage="caption",
        profile=run.captioner.name,
        digest=digest,
        outputs=columns.fields({PROFILE: digest}),
        marker=columns.status,
        inputs=("width", "height", "caption_source", "drop"),
        eligible=lambda rows: pc.is_null(rows["drop"]),
    )


def caption_work(run: SourceRun) -> EngineWork:
    """How engines of kind vllm and openai caption."""
    columns = caption_columns(run.captioner.name)
    return EngineWork(
        profile=run.captioner,
        prepare=prepare_pictures,
        settings=caption_settings(run),
        columns=functools.partial(answers_to_columns, columns),
        outputs=columns.fields({}),
    )


def _fill(lake: Lake, run: SourceRun) -> tuple[int, EngineUse | None]:
    """Rows that this run asked about, and what its engines did."""
    target = caption_target(run)
    if run.captioner.kind != "rules":
        place = Place(lake, run.source.name, run.batch, target)
        filled = fill(place, caption_work(run), max_gpu_hours=run.max_gpu_hours)
        return filled.computed, filled.use
    filling = Filling(
        **vars(target),
        compute=caption_chunk,
        settings=caption_settings(run),
        chunk_rows=lambda _: run.captioner.batch_size,
        cpus=run.captioner.cpus,
    )
    return backfill(lake, run.source.name, run.batch, filling).computed, None


def caption_digest(run: SourceRun) -> str:
    """Of all that decides the captions of a run: the profile, and how the picture was cut that it was shown."""
    return digest_of(run.captioner.digest, run.source.encoding.fit)


def caption_chunk(chunk: Chunk, settings: CaptionSettings) -> Results:
    """Caption and status of each row of a chunk; a picture that makes trouble fails by itself."""
    rows = chunk.rows.to_pylist()
    results = [CaptionResult(None, FAILED, "not asked") for _ in rows]
    items: dict[int, CaptionInput] = {}
    for index, data in chunk.images(range(len(rows))):
        row = rows[index]
        try:
            image = shown(decode(data, settings.max_pixels), settings.fit, settings.engine.max_pixels)
        except DecodeError as error:
            results[index] = CaptionResult(None, FAILED, str(error))
            continue
        items[index] = CaptionInput(row["id"], image, row["caption_source"], row["width"], row["height"])
    captioner = _captioner(settings.engine)
    for index, result in zip(items, _ask(captioner, list(items.values())), strict=True):
        if result.status != OK:
            log.warning("caption: a picture failed: %s", result.detail)  # the table says which
        results[index] = result
    columns = caption_columns(settings.engine.name)
    return {
        columns.text: [result.text if result.status == OK else None for result in results],
        columns.status: [result.status for result in results],
        columns.finish: [None] * len(results),
        columns.tokens: [None] * len(results),
        columns.attempts: [1] * len(results),
        columns.reason: [None if result.status == OK else Unanswered.ERROR for result in results],
        "detail": [result.detail for result in results],
    }


def prepare_pictures(chunk: EngineChunk, settings: CaptionSettings) -> Prepared:
    """Each picture of a chunk as the captioner is shown it; one that cannot be decoded is answered for here."""
    ids = chunk.rows["id"].to_pylist()
    questions: list[Question | None] = [None] * len(ids)
    answered = {}
    prompt = settings.engine.prompt
    assert prompt is not None
    assert prompt.text is not None
    pictures = store.read_images(chunk.table, chunk.version, chunk.rows["_rowid"].to_pylist())
    for index, data in enumerate(pictures):
        try:
            image = shown(decode(data, settings.max_pixels), settings.fit, settings.engine.max_pixels)
        except DecodeError as error:
            answered[index] = Answered(None, FAILED, Unanswered.NO_PICTURE, str(error))
            continue
        questions[index] = Question(ids[index], prompt.text.user, image)
    return Prepared(chunk.checkpoint, ids, chunk.rows["sha256"].to_pylist(), questions, answered)


def answers_to_columns(columns: CaptionColumns, answers: Sequence[Answered]) -> Results:
    """The columns of a captioner's profile from its answers, and `detail` for the checkpoint."""
    return {
        columns.text: [each.text for each in answers],
        columns.status: [each.status for each in answers],
        columns.finish: [each.finish for each in answers],
        columns.tokens: [each.tokens for each in answers],
        columns.attempts: [each.attempts for each in answers],
        columns.reason: [each.reason for each in answers],
        "detail": [each.detail for each in answers],
    }


def shown(image: Image.Image, fit: Fit, max_pixels: int) -> Image.Image:
    """The bucket's crop of a picture, at most `max_pixels` large: what a captioner is shown.

    A crop that has to be reduced goes there in one resize, as both steps would cut the same box.
    """
    bucket = bucket_of(image.width, image.height)
    if not isinstance(bucket, Bucket):
        raise ValueError(f"{image.width}x{image.height} has no bucket: {bucket.value}")
    scale = math.sqrt(max_pixels / (bucket.width * bucket.height))
    if scale < 1:
        width, height = int(bucket.width * scale), int(bucket.height * scale)
        bucket = bucket._replace(width=max(1, width), height=max(1, height))
    return fit_to(image, bucket, fit)


@functools.lru_cache(maxsize=1)
def _captioner(engine: Engine) -> Captioner:
    """Once a worker process: a model takes seconds to load."""
    return open_captioner(engine)


def _ask(captioner: Captioner, items: Sequence[CaptionInput]) -> list[CaptionResult]:
    """Ask for all at once; if that fails, one by one, so that one picture does not fail the others.

    Raises:
        EngineError: the captioner itself is at fault.
    """
    if not items:
        return []
    try:
        return list(captioner.caption(list(items)))
    except SmaltiError:
        raise
    except Exception as error:
        log.warning("caption: a chunk failed, asking again one by one (%s)", error)
    results: list[CaptionResult] = []
    last: Exception | None = None
    for item in items:
        try:
            results += captioner.caption([item])
        except SmaltiError:
            raise
        except Exception as error:
            last = error
            results.append(CaptionResult(None, FAILED, f"{type(error).__name__}: {error}"))
    if last and len(items) > 1 and not any(result.status == OK for result in results):
        raise EngineError(
            f"it failed on each of {len(items)} pictures ({last})",
            "captioner",
            "Mend the captioner; no caption was recorded",
        ) from last
    return results
