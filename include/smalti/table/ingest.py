"""Ingest: the rows of a batch into the source's table, once, each with the bytes it was delivered with.

Tasks read groups of rows, look at every picture and write fragments that no reader sees; the driver commits them together.
What does not enter is written down with its reason before that. A try that was killed leaves fragments nobody lists and,
at most, the rejects that the next try honours; a try that was killed after the commit finds its batch in the table.
"""

from __future__ import annotations

import collections
import logging
import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pydantic import Field

from smalti import objects
from smalti.accounting import Accounted
from smalti.compute import map_tasks, share
from smalti.errors import ConflictError, LakeError
from smalti.lake import Lake
from smalti.optouts.request import Action
from smalti.optouts.watch import load_watch
from smalti.reasons import DropReason, RejectReason
from smalti.reservations import warnings_of
from smalti.settings import SourceRun
from smalti.sources.files import plan_files
from smalti.sources.inventory import REJECTS, parquet_bytes, parquet_table, read_inventory
from smalti.sources.parquet import plan_parquet
from smalti.sources.rows import Reject, SourcePlan
from smalti.table import store
from smalti.table.fragments import FragmentTask, write_group
from smalti.table.schema import RESERVED
from smalti.table.target import batch_table

log = logging.getLogger("smalti")

UNCHANGED = "unchanged"
"""Reported beside the reject reasons: the table holds the key with the same bytes already."""


class IngestReport(Accounted):
    """rows_in: rows and objects of the batch; rows_out: its rows in the table; dropped: reject reasons, `unchanged`, and `optout`: asked
    to be erased, so that it never enters the table."""

    table: str = Field(description="URI of the table")
    rejects: str = Field(description="URI of rejects.parquet")


def ingest(lake: Lake, run: SourceRun) -> IngestReport:
    """Append the batch's new rows to the table; a second run reports the same and changes nothing.

    Raises:
        InputError: the batch is not staged, or the source's table does not fit its file; nothing was written.
        ConflictError: pictures have changed since an earlier try of this batch recorded its rejects.
        LakeError: the source cannot be read or the lake cannot be written.
    """
    began = time.monotonic()
    source, batch, uri = run.source.name, run.batch, lake.table(run.source.name)
    done = objects.read_versioned(lake.ingested(source, batch))
    if done is not None:
        return IngestReport.model_validate_json(done[0])
    rows, unchanged, erased = _batch_rows(uri, batch), None, 0
    if rows == 0:
        unchanged, erased = _append(lake, run)
        rows = _batch_rows(uri, batch)
    rows_in, rejects = _read_rejects(lake.rejects(source, batch))
    if (
        unchanged is None
    ):  # committed by a try that was killed before it could report; what is asked to be erased counts here as well
        unchanged = rows_in - rows - len(rejects)
    dropped = dict(sorted(collections.Counter(reject.reason.value for reject in rejects).items()))
    if erased:
        dropped[DropReason.OPTOUT.value] = erased
    report = IngestReport(
        stage="ingest",
        seconds=round(time.monotonic() - began, 3),
        warnings=(*_warnings(rejects), *_reservation_warnings(lake, run)),
        rows_in=rows_in,
        rows_out=rows,
        dropped={**dropped, UNCHANGED: unchanged} if unchanged else dropped,
        table=uri,
        rejects=lake.rejects(source, batch),
    )
    log.info("ingest: %d rows in, %d into the table, left out %s", rows_in, rows, report.dropped)
    if objects.create_bytes(lake.ingested(source, batch), report.model_dump_json().encode()):
        return report
    return IngestReport.model_validate_json(objects.read_bytes(lake.ingested(source, batch)))


def _append(lake: Lake, run: SourceRun) -> tuple[int, int]:
    """Check, read, write and commit. Returns how many rows were unchanged, and how many are asked to be erased."""
    source, batch, uri = run.source.name, run.batch, lake.table(run.source.name)
    inventory = read_inventory(lake, source, batch)
    plan = plan_files(lake, run, inventory) if run.source.format == "files" else plan_parquet(run, inventory)
    reserved = bool(run.source.columns.reservations)
    table = store.ensure_table(uri, plan.embedding, reserved)
    version = table.version if table.count_rows() else None
    at = lake.rejects(source, batch)
    settled = _read_rejects(at)[1] if objects.exists(at) else None
    keys = frozenset(reject.key for reject in settled or ())
    watch = load_watch(lake, Action.ERASE)
    shared = share(watch) if watch else None
    tasks = [
        FragmentTask(
            table=uri,
            version=version,
            source=source,
            batch=batch,
            licence=run.source.licence,
            max_pixels=run.source.max_pixels,
            embedding=plan.embedding,
            reserved=reserved,
            group=group,
            settled=keys,
            erased=shared,
        )
        for group in plan.groups
    ]
    fragments: list[Any] = []
    rejects: list[Reject] = []
    unchanged = erased = 0
    for number, outcome in enumerate(map_tasks(write_group, tasks), 1):
        fragments += outcome.fragments
        rejects += outcome.rejects
        unchanged += outcome.unchanged
        erased += outcome.erased
        log.info("ingest: %d of %d groups, %d rejected", number, len(tasks), len(rejects))
    if not fragments and not unchanged and not erased:
        _refuse_if_nothing_is_readable(rejects)
    _write_rejects(at, plan, rejects, settled)
    _commit(uri, batch, fragments)
    return unchanged, erased


def _commit(uri: str, batch: str, fragments: Sequence[Any]) -> None:
    """Make the fragments part of the table, unless another driver has committed the batch."""

    def once() -> None:
        table = store.open_table(uri)
        if fragments and not _rows_of(table, batch):
            store.append_fragments(table, fragments)

    store.retried(uri, once)


def _batch_rows(uri: str, batch: str) -> int:
    table = store.open_table(uri)
    if table is None:
        return 0
    with store.lance_errors(uri):
        return _rows_of(table, batch)


def _rows_of(table: Any, batch: str) -> int:
    return int(table.count_rows(filter=f"batch = {store.sql_text(batch)}"))


def _refuse_if_nothing_is_readable(rejects: Sequence[Reject]) -> None:
    """One picture that may not be read is a reject; none that may is somebody's mistake with the whole source."""
    if rejects and all(reject.reason is RejectReason.UNREADABLE_OBJECT for reject in rejects):
        first = rejects[0]
        raise LakeError(
            f"none of the batch's {len(rejects)} objects can be read ({first.detail})",
            first.uri,
            "Give whoever runs smalti the right to read them",
        )


def _write_rejects(uri: str, plan: SourcePlan, rejects: Sequence[Reject], settled: Sequence[Reject] | None) -> None:
    """Record what is left out, before the commit; what an earlier try has recorded stands."""
    every = sorted([*plan.rejects, *rejects], key=lambda reject: (reject.key, reject.uri))
    if settled is not None:
        known = {reject.key for reject in settled}
        new = [reject for reject in every if reject.key not in known]
        if new:
            raise ConflictError(
                f"{len(new)} pictures can no longer be taken that an earlier try of this batch could: "
                f"{new[0].uri} ({new[0].reason.value})",
                uri,
                "Run the source under another batch name",
            )
        return
    rows = [{**vars(reject), "reason": reject.reason.value} for reject in every]
    objects.create_same(uri, parquet_bytes(pa.Table.from_pylist(rows, REJECTS), {"rows_in": plan.rows_in}))


def _read_rejects(uri: str) -> tuple[int, list[Reject]]:
    """rows_in of the batch, and what of it was rejected."""
    table, meta = parquet_table(objects.read_bytes(uri), uri)
    return int(meta["rows_in"]), [
        Reject(row["key"], row["uri"], RejectReason(row["reason"]), row["detail"]) for row in table.to_pylist()
    ]


def _warnings(rejects: Sequence[Reject]) -> tuple[str, ...]:
    refused = [reject for reject in rejects if reject.reason is RejectReason.UNREADABLE_OBJECT]
    if not refused:
        return ()
    return (f"{len(refused)} objects could not be read, the first is {refused[0].uri}: {refused[0].detail}",)


def _reservation_warnings(lake: Lake, run: SourceRun) -> list[str]:
    """From the table, so that a try that was killed after its commit says the same."""
    reservations = run.source.columns.reservations
    if not reservations:
        return []
    rows = batch_table(lake.table(run.source.name), run.batch, [RESERVED.name])
    return warnings_of(rows[RESERVED.name].drop_null().to_pylist() if rows else [], reservations)
