"""The shard stage: one batch of a source's table becomes one part.

Plan -> write -> commit. The plan is made from the table's columns; each shard is a task of its own; index.json,
samples.parquet and at last part.json are made from what the tasks recorded. Killed at any line, the next run takes what
is there and writes what is missing, to the same bytes; a part without part.json is trusted by nobody.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

import smalti
from smalti import objects
from smalti.accounting import Accounted
from smalti.compute import map_tasks
from smalti.errors import ConflictError, InputError
from smalti.lake import Lake
from smalti.optouts.removed import removed_ids
from smalti.profiles import SOURCE, caption_column
from smalti.reasons import DropReason
from smalti.settings import SourceRun
from smalti.shards import mds
from smalti.shards.part import ABANDONED, FailedRow, Part, PartBucket, committed_parts, read_part
from smalti.shards.plan import COLUMNS, ROW, PartPlan, PlanSettings, plan_part, plan_schema
from smalti.shards.replacements import read_log
from smalti.shards.samples import check_thumbnails, encode_samples, schema_with
from smalti.shards.write import ShardFacts, ShardTask, TaskRow, encoders, mds_columns, write_shard
from smalti.sources.inventory import read_inventory
from smalti.table.schema import caption_columns, label_columns
from smalti.table.store import lance_errors, open_table, sql_text

log = logging.getLogger("smalti")


class ShardReport(Accounted):
    """Attributes:
    part: name of the part; None if nothing of the batch can be served.
    part_uri: URI of its part.json.
    shards, bytes: how many shards, and their bytes.
    extra_captions: extra caption column -> samples of the part that have words in it.
    """

    part: str | None = None
    part_uri: str | None = None
    shards: int = 0
    bytes: int = 0
    extra_captions: dict[str, int] = Field({})


@dataclass(frozen=True)
class Batch:
    """The rows of one batch in one version of the table.

    Attributes:
        rows: those to be sharded, with the columns of a plan.
        total: rows of the batch, counted by the table.
        dropped: DropReason -> rows that fingerprint left out.
        version: of the table.
    """

    rows: pa.Table
    total: int
    dropped: dict[str, int]
    version: int


def shard(lake: Lake, run: SourceRun) -> ShardReport:
    """Write the part of a batch. A batch whose newest part has the same plan is left as it is.

    Raises:
        InputError: there is no table or batch, or the stages before have not finished it.
    """
    started = time.monotonic()
    batch = read_batch(lake, run)
    settings = PlanSettings(
        source=run.source.name,
        batch=run.batch,
        captioner=run.captioner.name,
        classifier=run.classifier.name,
        encoding=run.source.encoding,
        extra_captions=_extra_columns(run),
    )
    plan = plan_part(batch.rows, settings)
    log_of_parts = read_log(lake, run.source.name)
    parts = committed_parts(lake, run.source.name, log=log_of_parts)
    sharded = [origin for part in parts for origin in part.sharded] + list(log_of_parts.origins())
    of_batch = sorted((each for each in sharded if each.batch == run.batch), key=lambda each: each.order)
    if of_batch and of_batch[-1].digest == plan.digest:
        log.info("shard: %s has the same plan, nothing to write", of_batch[-1].name)
        holder = log_of_parts.holder(of_batch[-1].name)
        return _report(lake, of_batch[-1].accounting, next((p for p in parts if p.name == holder), None), started)
    sequence = 1 + max([each.sequence for each in sharded], default=0)
    sequence = max(sequence, 1 + log_of_parts.last_sequence())
    return _write(lake, run, batch, plan, sequence, started)


def _extra_columns(run: SourceRun) -> tuple[str, ...]:
    """By name, so that the order in the source's file changes nothing."""
    return tuple(sorted(caption_column(profile) for profile in run.source.extra_captions))


def _delivery(lake: Lake, run: SourceRun) -> int:
    """The place of the batch among the deliveries of its source, pinned when it was staged."""
    if not objects.exists(lake.inventory(run.source.name, run.batch)):
        return 0  # a table that was not filled by ingest
    return len(read_inventory(lake, run.source.name, run.batch).earlier)


def part_name(sequence: int, digest: str, versions: dict[str, str]) -> str:
    """The name of a part that is being written.

    It changes with the versions of the encoders, so that a part begun with one Pillow and resumed with another is begun
    anew instead of clashing with itself.
    """
    told = "\n".join((digest, *(f"{name} {versions[name]}" for name in sorted(versions))))
    return f"{sequence:05d}-{hashlib.sha256(told.encode()).hexdigest()[:12]}"


def read_batch(lake: Lake, run: SourceRun) -> Batch:
    """What the table says of the batch. The version it is read at is the one the images are taken from.

    Raises:
        InputError: there is no table or batch, or the stages before have not finished it.
    """
    source, uri = run.source.name, lake.table(run.source.name)
    table = open_table(uri)
    if table is None:
        raise InputError("the source has no table", uri, "Run ingest first")
    caption, status = caption_columns(run.captioner.name)[:2]
    label, _, labelled, *_ = label_columns(run.classifier.name, run.captioner.name)
    for stage, name in (("fingerprint", "tier"), ("caption", status), ("classify", labelled)):
        if name not in table.schema.names:
            raise InputError(f"the table has no column {name}", uri, f"Run {stage} for batch {run.batch} first")
    extra = _words_of(table.schema.names, run, uri)
    derived = ("caption", "caption_ok", "label")
    columns = [name for name in COLUMNS.names if name not in derived] + ["drop", caption, status, label, labelled]
    columns += [name for pair in extra.items() for name in pair if name is not None and name not in columns]
    where = f"batch = {sql_text(run.batch)}"
    with lance_errors(uri):
        total = table.count_rows(where)
        rows = table.to_table(columns=columns, filter=where, with_row_id=True)
    if total == 0 and not objects.exists(lake.ingested(source, run.batch)):
        raise InputError(f"batch {run.batch!r} was never ingested", uri, "Check its name, or run ingest first")
    _refuse_unfinished(rows["id"], pc.is_null(rows["tier"]), uri, "fingerprint")
    counts = pc.value_counts(rows["drop"].drop_null()).to_pylist()
    rows = rows.filter(pc.is_null(rows["drop"]))
    _refuse_unfinished(rows["id"], pc.is_null(rows[status]), uri, "caption")
    served = pc.and_(pc.equal(rows[status], "ok"), pc.is_valid(rows[caption]))
    _refuse_unfinished(rows["id"], pc.and_(served, pc.is_null(rows[labelled])), uri, "classify")
    check_thumbnails(rows["colour"], uri)
    rows = rows.append_column("caption", pc.if_else(served, rows[caption], ""))
    rows = rows.append_column("caption_ok", served).append_column("label", rows[label])
    for name, state in extra.items():
        words = pc.utf8_trim_whitespace(rows[name])  # a source's caption may be blank
        there = pc.fill_null(pc.not_equal(words, ""), False)
        if state is not None:
            there = pc.and_(there, pc.fill_null(pc.equal(rows[state], "ok"), False))
        rows = rows.set_column(rows.column_names.index(name), name, pc.if_else(there, words, ""))
    schema = plan_schema(sorted(extra))
    rows = rows.select([*schema.names, ROW]).cast(pa.schema([*schema, (ROW, pa.uint64())]))
    dropped = {each["values"]: each["counts"] for each in counts}
    removed = _removed(lake, run, total)
    if removed:
        dropped[DropReason.OPTOUT] = dropped.get(DropReason.OPTOUT, 0) + removed
    return Batch(rows, total + removed, dropped, table.version)


def _removed(lake: Lake, run: SourceRun, total: int) -> int:
    """Rows that ingest has put into the table and opt-outs have removed: they are dropped here, so that the accounting goes on from ingest's.

    A row that is missing for any other reason is not made up for: verify finds it.
    """
    found = objects.read_versioned(lake.ingested(run.source.name, run.batch))
    if found is None:
        return 0
    missing = int(json.loads(found[0]).get("rows_out", total)) - total
    return missing if 0 < missing <= len(removed_ids(lake, run.source.name, run.batch)) else 0


def _words_of(names: Sequence[str], run: SourceRun, uri: str) -> dict[str, str | None]:
    """Column of each extra caption, in the table and in MDS alike -> the column that says whether it counts; None: it does.

    Raises:
        InputError: a profile has never captioned anything of the source. A row that it has not done just has no words.
    """
    found: dict[str, str | None] = {}
    for profile in run.source.extra_captions:
        words, status = caption_columns(profile)[:2]
        if profile != SOURCE and not {words, status} <= set(names):
            source = run.source.name
            raise InputError(
                f"the table has no captions of profile {profile!r}, which `extra_captions` of source {source} names",
                uri,
                f"Run `smalti source run {source} --batch {run.batch} --captioner {profile} --from caption --until caption`, "
                "then shard",
            )
        found[words] = None if profile == SOURCE else status
    return found


def _refuse_unfinished(ids: pa.ChunkedArray, unfinished: pa.ChunkedArray, uri: str, stage: str) -> None:
    waiting = ids.filter(unfinished)
    if len(waiting):
        raise InputError(
            f"{stage} has not finished {len(waiting)} rows of the batch, among them {pc.min(waiting).as_py()!r}",
            uri,
            f"Run {stage} for this batch again, then shard",
        )


def _write(lake: Lake, run: SourceRun, batch: Batch, plan: PartPlan, sequence: int, started: float) -> ShardReport:
    versions = encoders()
    name = part_name(sequence, plan.digest, versions)
    tasks = _Tasks(lake, run, name, batch.version, plan)
    facts: list[ShardFacts] = []
    for written in map_tasks(write_shard, tasks):
        facts.append(written)
        log.info("shard: %s, %d of %d shards", name, len(facts), len(tasks))
    samples, failed = _samples(run, name, plan, facts)
    dropped = dict(batch.dropped)
    if failed:
        dropped[DropReason.DECODE_FAILED] = dropped.get(DropReason.DECODE_FAILED, 0) + len(failed)
    accounting = Accounted(
        stage="shard", rows_in=batch.total, rows_out=samples.num_rows, dropped=dict(sorted(dropped.items()))
    )
    if samples.num_rows == 0:
        return ShardReport(**accounting.model_dump(exclude={"seconds"}), seconds=time.monotonic() - started)
    encoded = encode_samples(samples, plan.extra)
    objects.create_same(lake.samples(run.source.name, name), encoded)
    part = Part(
        source=run.source.name,
        name=name,
        batch=run.batch,
        sequence=sequence,
        delivery=_delivery(lake, run),
        digest=plan.digest,
        encoding=run.source.encoding,
        columns=mds_columns(run.source.encoding, plan.extra),
        encoders=versions,
        engines=(run.captioner, run.classifier, *(e for e in run.extra_captioners if e.name != run.captioner.name)),
        curators=run.source.curators,
        buckets=tuple(_write_indices(lake, run.source.name, name, plan, facts)),
        samples=samples.num_rows,
        samples_sha256=hashlib.sha256(encoded).hexdigest(),
        accounting=accounting,
        failed=failed,
        extra_captions={name: pc.sum(samples[f"{name}_ok"]).as_py() for name in plan.extra},
        provenance={
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "smalti": smalti.__version__,
            "table": lake.table(run.source.name),
            "table_version": batch.version,
        },
    )
    part = commit_part(lake, part)
    return _report(lake, part.accounting, part, started)


class _Tasks(Sequence[ShardTask]):
    """The tasks, each made when it is asked for: a list of them all would hold every caption a second time."""

    def __init__(self, lake: Lake, run: SourceRun, part: str, version: int, plan: PartPlan) -> None:
        self._common: dict[str, Any] = {
            "lake": lake,
            "source": run.source.name,
            "part": part,
            "version": version,
            "encoding": run.source.encoding,
            "extra": plan.extra,
        }
        self._plan = plan

    def __len__(self) -> int:
        return len(self._plan.shards)

    @overload
    def __getitem__(self, index: int) -> ShardTask: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ShardTask]: ...
    def __getitem__(self, index: int | slice) -> ShardTask | Sequence[ShardTask]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        planned = self._plan.shards[index]
        rows = self._plan.rows.slice(planned.start, planned.stop - planned.start)
        columns = [rows[name].to_pylist() for name in ("id", ROW, "sha256", "width", "height", "caption")]
        extra = zip(*(rows[name].to_pylist() for name in self._plan.extra), strict=True)
        words = list(extra) or [()] * rows.num_rows
        return ShardTask(
            **self._common,
            bucket=planned.bucket,
            number=planned.number,
            rows=tuple(map(TaskRow, *columns, words)),
        )


def _samples(
    run: SourceRun, name: str, plan: PartPlan, facts: Sequence[ShardFacts]
) -> tuple[pa.Table, tuple[FailedRow, ...]]:
    """samples.parquet's rows, and the rows that could not be decoded."""
    count = plan.rows.num_rows
    kept = np.ones(count, bool)
    index, sizes = np.zeros(count, np.int32), np.zeros(count, np.int64)
    shards: list[str] = []
    failed: list[FailedRow] = []
    for planned, fact in zip(plan.shards, facts, strict=True):
        for failure in fact.failed:
            kept[planned.start + failure.position] = False
            row = plan.rows["id"][planned.start + failure.position].as_py()
            failed.append(FailedRow(id=row, detail=failure.detail))
        at = planned.start + np.flatnonzero(kept[planned.start : planned.stop])
        index[at], sizes[at] = np.arange(len(at)), fact.bytes
        bucket = planned.bucket
        path = f"{run.source.name}/{name}/{bucket.tier}/{bucket.ar}/{planned.basename}"
        shards += [path] * (planned.stop - planned.start)
    derived: dict[str, pa.Array] = {
        "shard": pa.array(shards, pa.string()),
        "index": pa.array(index),
        "bytes": pa.array(sizes),
    }
    same = {
        "source": run.source.name,
        "batch": run.batch,
        "captioner": run.captioner.name,
        "classifier": run.classifier.name,
    }
    for column, value in same.items():
        derived[column] = pa.repeat(pa.scalar(value), count)
    for column in plan.extra:
        derived[f"{column}_ok"] = pc.not_equal(plan.rows[column], "")
    schema = schema_with(plan.extra)
    columns = [derived[name] if name in derived else plan.rows[name] for name in schema.names]
    table = pa.table(columns, names=schema.names).filter(pa.array(kept))
    return table, tuple(failed)


def _write_indices(
    lake: Lake, source: str, name: str, plan: PartPlan, facts: Sequence[ShardFacts]
) -> Iterator[PartBucket]:
    """index.json of every bucket that has a shard."""
    pairs = zip(plan.shards, facts, strict=True)
    for bucket, written in groupby(pairs, key=lambda pair: pair[0].bucket):
        entries = [fact.entry for _, fact in written if fact.entry is not None]
        if not entries:
            continue
        data = mds.encode_index(entries)
        objects.create_same(lake.bucket_index(source, name, bucket.tier, bucket.ar), data)
        yield PartBucket(
            **bucket._asdict(),
            samples=sum(entry["samples"] for entry in entries),
            shards=len(entries),
            bytes=sum(entry["raw_data"]["bytes"] for entry in entries),
            index_sha256=hashlib.sha256(data).hexdigest(),
        )


def commit_part(lake: Lake, part: Part) -> Part:
    """Create part.json, or find that another attempt has committed the same.

    Raises:
        ConflictError: it was committed with other content, or given up.
    """
    uri = lake.part_commit(part.source, part.name)
    if objects.create_bytes(uri, part.encode()):
        return part
    if objects.read_bytes(uri) == ABANDONED:
        raise ConflictError(
            "the part was collected as garbage while it was written, since nobody had worked on it for long",
            uri,
            "Run it again: it is written under another name",
        )
    found = read_part(lake, part.source, part.name)
    if found.content() != part.content():
        raise ConflictError(
            "another run committed this part with other content",
            uri,
            "Two runs of one batch must not differ: compare part.json with the source's settings",
        )
    return found


def _report(lake: Lake, accounting: Accounted, part: Part | None, started: float) -> ShardReport:
    """What the shard stage counted, and the part that holds the samples now; None: later ones have superseded them all."""
    return ShardReport(
        **accounting.model_dump(include={"stage", "rows_in", "rows_out", "dropped"}),
        seconds=time.monotonic() - started,
        part=part.name if part else None,
        part_uri=lake.part_commit(part.source, part.name) if part else None,
        shards=sum(bucket.shards for bucket in part.buckets) if part else 0,
        bytes=sum(bucket.bytes for bucket in part.buckets) if part else 0,
        extra_captions=part.extra_captions if part else {},
        warnings=tuple(
            f"no sample of part {part.name} has words in {column}: caption was not run for it, or it always failed"
            for column, count in part.extra_captions.items()
            if not count
        )
        if part
        else (),
    )
