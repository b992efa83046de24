"""Pilot: some rows of a batch are captioned before the others, and a page shows them to a person.

The rows are drawn by hash, so that a second run draws the same. Engines that are asked row by row put their answers where the full
run looks for them: it asks about no row again. Captions of kind rules are made for the page alone; they cost next to nothing.
"""

from __future__ import annotations

import base64
import collections
import hashlib
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from smalti import objects
from smalti.accounting import Report
from smalti.compute import map_tasks
from smalti.config import Engine
from smalti.images.decode import DecodeError, decode
from smalti.images.encode import encode
from smalti.lake import Lake
from smalti.pipeline.executors import engines_for
from smalti.pipeline.fill import fill
from smalti.pipeline.meter import EngineUse
from smalti.pipeline.plan import Place, plan_chunks
from smalti.settings import SourceRun
from smalti.table import store
from smalti.table.asked_back import leave_out
from smalti.table.caption import (
    FAILED,
    CaptionSettings,
    caption_chunk,
    caption_settings,
    caption_target,
    caption_work,
    check_fingerprinted,
    shown,
)
from smalti.table.columns import Chunk
from smalti.table.pilot_page import Picture, Row, render
from smalti.table.schema import caption_columns
from smalti.table.target import check_profile, eligible_rows, read_checkpoint

log = logging.getLogger("smalti")

LONGEST = 384
"""Longest side of a picture on the page, px."""

PICTURES = 16
"""Pictures that a task makes for the page."""

Answers = dict[str, dict[str, Any]]
"""id -> the columns of the captioner's profile and `detail`."""


class Estimate(BaseModel):
    """What the rows that wait will take, without the time to load a model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rows_per_second: float = Field(gt=0, description="of one engine; kind rules: of all tasks of the pilot together")
    engines: int = Field(ge=1)
    hours: float = Field(ge=0, description="wall time")
    gpu_hours: float | None = Field(None, ge=0, description="an engine without a GPU counts its own hours")
    cost: float | None = Field(None, ge=0, description="of these hours, at the profile's price")


class PilotReport(Report):
    """What was tried, and where its page is. Without `pilot` nothing was, and there is no page."""

    page: str | None = Field(None, description="URI of the page")
    profile: str
    model: str | None = None
    revision: str | None = None
    prompt: str | None = None
    eligible: int = Field(0, ge=0, description="rows of the batch that are to be captioned, or are")
    rows: int = Field(0, ge=0, description="that the pilot shows")
    computed: int = Field(0, ge=0, description="that this run asked the captioner about")
    failed: dict[str, int] = Field({}, description="why rows of the pilot have no caption -> rows")
    waiting: int = Field(0, ge=0, description="rows that caption will ask about")
    use: EngineUse | None = Field(None, description="what the engines of this run did")
    measured: Estimate | None = Field(None, description="by the rate of this run; None if it asked about nothing")
    stated: Estimate | None = Field(None, description="by the rate that the profile states")


@dataclass(frozen=True)
class _PicturesTask:
    table: str
    version: int
    addresses: tuple[int, ...]
    settings: CaptionSettings


def pilot(lake: Lake, run: SourceRun) -> PilotReport:
    """Caption `run.pilot` random rows of the batch and write their page; fold nothing into the table.

    Raises:
        InputError: the batch is not fingerprinted, or the profile was changed under the same name.
        EngineError: the captioner cannot run; what it has answered stays.
    """
    began, profile, uri = time.monotonic(), run.captioner, lake.table(run.source.name)
    says = {
        "stage": "pilot",
        "profile": profile.name,
        "model": profile.model,
        "revision": profile.revision,
        "prompt": profile.prompt.name if profile.prompt else None,
    }
    if run.pilot is None:
        log.info("pilot: none was asked for")
        return PilotReport(**says)
    check_fingerprinted(uri, run.batch)
    leave_out(lake, run.source.name, run.batch, caption_target(run).marker)
    table = store.open_table(uri)
    target = caption_target(run)
    rows = None if table is None else eligible_rows(table, run.batch, target)
    if rows is None or not rows.num_rows:
        log.info("pilot: batch %s has no rows that are to be captioned", run.batch)
        return PilotReport(**says)
    check_profile(table, target)
    drawn = draw(rows, profile.digest, run.pilot)
    place = Place(lake, run.source.name, run.batch, target)
    if profile.kind == "rules":
        answers, seconds = _by_rules(uri, table.version, drawn, run)
        computed, waiting, use = len(answers), rows[target.marker].null_count, None
        measured = estimate(waiting, computed / max(seconds, 1e-3), 1, None)
    else:
        answers, computed, waiting, use = _by_engines(place, run, drawn)
        measured = None
        if use is not None and use.rows_per_second and use.engines:
            measured = estimate(waiting, use.rows_per_second / use.engines, engines_for(profile), profile)
    states = [each for each in answers.values() if each[target.marker] == FAILED]
    report = PilotReport(
        **says,
        eligible=rows.num_rows,
        rows=len(answers),
        computed=computed,
        failed=dict(sorted(collections.Counter(str(each["reason"]) for each in states).items())),
        waiting=waiting,
        use=use,
        measured=measured,
        stated=estimate(waiting, profile.rate, engines_for(profile), profile) if profile.rate else None,
    )
    pictures = _pictures(uri, table.version, drawn, caption_settings(run))
    page = _write(place, render(run.source.name, run.batch, report.model_dump(), _rows(drawn, answers, pictures)))
    log.info("pilot: %d rows, %d failed; page: %s", report.rows, len(states), page)
    return report.model_copy(update={"page": page, "seconds": round(time.monotonic() - began, 3)})


def draw(rows: pa.Table, digest: str, count: int) -> pa.Table:
    """The rows with the lowest hashes of profile and id, lowest first: random, and the same for the same profile."""
    hashes = [hashlib.sha256(f"{digest}\n{row}".encode()).hexdigest() for row in rows["id"].to_pylist()]
    lowest = sorted(range(len(hashes)), key=hashes.__getitem__)[:count]
    return rows.take(pa.array(lowest, pa.int64())).combine_chunks()


def estimate(rows: int, rate: float, engines: int, profile: Engine | None) -> Estimate:
    """What `rows` will take. `rate`: rows a second of one engine. `profile`: None where no engine is counted by the hour."""
    hours = rows / rate / engines / 3600
    gpu_hours = None if profile is None else max(1, profile.gpus) * engines * hours
    price = None if profile is None else profile.price
    return Estimate(
        rows_per_second=round(rate, 3) or rate,
        engines=engines,
        hours=round(hours, 6),
        gpu_hours=None if gpu_hours is None else round(gpu_hours, 6),
        cost=None if gpu_hours is None or price is None else round(gpu_hours * price, 6),
    )


def _by_engines(place: Place, run: SourceRun, drawn: pa.Table) -> tuple[Answers, int, int, EngineUse | None]:
    """The answers; rows that were asked about now; rows that caption will ask about; what the engines did."""
    only = frozenset(drawn["id"].to_pylist())
    filled = fill(place, caption_work(run), max_gpu_hours=run.max_gpu_hours, only=only)
    table = store.open_table(place.table)
    plan = plan_chunks(place, table, run.captioner.batch_size)
    wanted = set(drawn["id"].to_pylist())
    answers: Answers = {}
    for uri in sorted({plan.answered[row] for row in wanted & plan.answered.keys()}):
        answers |= _named(read_checkpoint(uri).to_pylist(), run, wanted)
    folded = sorted(wanted - answers.keys())
    if folded:
        names = [name for name in place.target.outputs.names if name in table.schema.names]
        where = f"batch = {store.sql_text(place.batch)} AND id IN ({store.sql_texts(folded)})"
        with store.lance_errors(place.table):
            there = table.scanner(columns=["id", *names], filter=where).to_table()
        answers |= _named(there.to_pylist(), run, set(folded))
    return answers, filled.computed, plan.rows, filled.use


def _by_rules(uri: str, version: int, drawn: pa.Table, run: SourceRun) -> tuple[Answers, float]:
    """The answers, and the seconds they took."""
    began, size = time.monotonic(), run.captioner.batch_size
    tasks = []
    for at in range(0, drawn.num_rows, size):
        part = drawn.slice(at, size).combine_chunks()
        tasks.append((Chunk(part, uri, version, tuple(part["_rowid"].to_pylist())), caption_settings(run)))
    answers: Answers = {}
    for (chunk, _), results in zip(tasks, map_tasks(_caption, tasks, cpus=run.captioner.cpus), strict=True):
        ids = chunk.rows["id"].to_pylist()
        answers |= _named([{"id": row, **_at(results, at)} for at, row in enumerate(ids)], run, set(ids))
    return answers, time.monotonic() - began


def _caption(task: tuple[Chunk, CaptionSettings]) -> dict[str, list[Any]]:
    return caption_chunk(*task)


def _at(results: Mapping[str, list[Any]], index: int) -> dict[str, Any]:
    return {name: values[index] for name, values in results.items()}


def _named(rows: list[dict[str, Any]], run: SourceRun, wanted: set[str]) -> Answers:
    """The wanted rows under the names of CaptionColumns' fields, beside their own."""
    columns = caption_columns(run.captioner.name)
    fields = columns._asdict().items()
    return {
        row["id"]: {**row, **{field: row.get(name) for field, name in fields}, "detail": row.get("detail")}
        for row in rows
        if row["id"] in wanted
    }


def _pictures(uri: str, version: int, drawn: pa.Table, settings: CaptionSettings) -> list[Picture | None]:
    """Each row's picture as the captioner is shown it, made smaller."""
    addresses = drawn["_rowid"].to_pylist()
    tasks = [
        _PicturesTask(uri, version, tuple(addresses[at : at + PICTURES]), settings)
        for at in range(0, len(addresses), PICTURES)
    ]
    return [picture for made in map_tasks(_make_pictures, tasks) for picture in made]


def _make_pictures(task: _PicturesTask) -> list[Picture | None]:
    made: list[Picture | None] = []
    for data in store.read_images(task.table, task.version, task.addresses):
        try:
            image = shown(decode(data, task.settings.max_pixels), task.settings.fit, task.settings.engine.max_pixels)
        except DecodeError:
            made.append(None)
            continue
        size = image.size
        image.thumbnail((LONGEST, LONGEST))
        text = base64.b64encode(encode(image, "jpeg", 82)).decode()
        made.append(Picture(f"data:image/jpeg;base64,{text}", *image.size, *size))
    return made


def _rows(drawn: pa.Table, answers: Answers, pictures: list[Picture | None]) -> list[Row]:
    """What the page shows: failures first."""
    rows = []
    for row, picture in zip(drawn.select(["id", "caption_source"]).to_pylist(), pictures, strict=True):
        if row["id"] in answers:
            said = answers[row["id"]]
            fields = ("text", "status", "reason", "detail", "finish", "tokens", "attempts")
            rows.append(Row(row["id"], picture, row["caption_source"], *(said[field] for field in fields)))
    return sorted(rows, key=lambda row: row.status != FAILED)


def _write(place: Place, page: str) -> str:
    data = page.encode("utf-8", "replace")
    uri = place.pilot_page(hashlib.sha256(data).hexdigest())
    objects.create_same(uri, data)
    return uri
