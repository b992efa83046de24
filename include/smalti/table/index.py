"""Index: fewer, larger fragments where that helps, and indices for whoever searches the table.

It may run at any time after ingest, also beside another stage: a commit that comes in between makes it try again.
"""

from __future__ import annotations

import collections
import functools
import hashlib
import logging
import random
import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from smalti import objects
from smalti.accounting import Report
from smalti.config import Source
from smalti.errors import CorruptError
from smalti.lake import Lake
from smalti.settings import SourceRun
from smalti.sources.inventory import read_rejects
from smalti.table import store
from smalti.table.schema import RESERVED

log = logging.getLogger("smalti")

BTREE = ("id", "sha256", "phash", "owner", "url")
BITMAP = ("batch", "tier", "ar", "drop")

FRAGMENT_ROWS = 1_000_000
FRAGMENT_BYTES = 32 << 30
"""What a fragment grows to. Lance's advice is 1M rows, and 10 to 100 GB at most."""

SMALL_FRAGMENTS = 32
"""So many fragments of less than half that size are merged. With a batch a day a row is copied about
log2(rows of a fragment / rows of 32 batches) times in its life, not every day."""

CHECKED_BLOBS = 64
"""Pictures whose sha256 is compared after a compaction."""


class IndexReport(Report):
    """The table as it is now."""

    table: str = Field(description="URI of the table")
    rows: int = Field(0, ge=0)
    fragments: int = Field(0, ge=0)
    unindexed: int = Field(0, ge=0, description="rows that the least complete index lacks")
    indices: tuple[str, ...] = Field((), description="columns that have one")
    compacted: int = Field(0, ge=0, description="fragments that were merged into others")


def index(lake: Lake, run: SourceRun) -> IndexReport:
    """Compact and index the source's table.

    Raises:
        CorruptError: pictures are not what they were before the compaction.
        ConflictError: other writers kept changing the table.
    """
    began = time.monotonic()
    uri = lake.table(run.source.name)
    table = store.open_table(uri)
    if table is None or table.count_rows() == 0:
        return IndexReport(stage="index", seconds=round(time.monotonic() - began, 3), table=uri)
    for column, kind in wanted_indices(table.schema):
        store.retried(uri, functools.partial(_create, uri, column, kind))
    store.retried(uri, functools.partial(_optimize, uri))
    compacted = store.retried(uri, functools.partial(_compact, uri))  # last: only fragments of one index are merged
    table = store.open_table(uri)
    found = table.describe_indices()
    rows = table.count_rows()
    report = IndexReport(
        stage="index",
        seconds=round(time.monotonic() - began, 3),
        table=uri,
        rows=rows,
        fragments=len(table.get_fragments()),
        unindexed=rows - min((each.num_rows_indexed for each in found), default=0),
        indices=tuple(sorted({name for each in found for name in each.field_names})),
        compacted=compacted,
    )
    log.info("index: %d rows in %d fragments, %d unindexed", rows, report.fragments, report.unindexed)
    return report


def describe(lake: Lake, source: Source) -> dict[str, Any]:
    """What a source holds: rows by batch, tier and drop, by who reserves them, by label of each profile, captions by state; rejects by reason.

    All zeros for a source that no run has ingested.
    """
    uri = lake.table(source.name)
    table = store.open_table(uri)
    names = table.schema.names if table is not None else []
    states = [name for name in names if name.startswith("caption_") and name.endswith("_status")]
    labels = profile_columns(names, "label_")
    reserved = [name for name in names if name == RESERVED.name]
    with store.lance_errors(uri):
        rows = (
            table.to_table(columns=["batch", "tier", "drop", *reserved, *states, *labels])
            if table is not None
            else None
        )
    rejects: collections.Counter[str] = collections.Counter()
    for batch in objects.list_names(lake.batches(source.name)):
        found = read_rejects(lake, source.name, batch)
        rejects.update(found["reason"].to_pylist() if found is not None else ())
    return {
        "source": source.name,
        "table": uri,
        "rows": rows.num_rows if rows is not None else 0,
        "fragments": len(table.get_fragments()) if table is not None else 0,
        "batches": _counts(rows, "batch"),
        "tiers": {tier: count for tier, count in _counts(rows, "tier").items() if tier != "0"},
        "drops": _counts(rows, "drop"),
        "reserved": _counts(rows, RESERVED.name) if reserved else {},
        "captions": {name.removesuffix("_status"): _counts(rows, name) for name in states},
        "labels": {name: _counts(rows, name) for name in labels},
        "rejects": dict(sorted(rejects.items())),
    }


def wanted_indices(schema: pa.Schema) -> list[tuple[str, str]]:
    """Column and kind of each index the table should have: words of captions, exact values of the rest."""
    kinds = dict.fromkeys(BTREE, "BTREE") | dict.fromkeys(BITMAP, "BITMAP")
    kinds["caption_source"] = "INVERTED"
    for prefix, kind in (("caption_", "INVERTED"), ("label_", "BITMAP")):
        for name in profile_columns(schema.names, prefix):
            kinds |= {name: kind, f"{name}_status": "BITMAP", f"{name}_reason": "BITMAP"}
    return [(name, kind) for name, kind in kinds.items() if name in schema.names]


def profile_columns(names: Sequence[str], prefix: str) -> list[str]:
    """The columns that hold what profiles say, without those that say how they came to it."""
    return [name for name in names if name.startswith(prefix) and f"{name}_status" in names]


def fragment_rows(rows: int, size: int) -> int:
    """Rows that a fragment of this table should have, given how many it has and their bytes."""
    return max(1, min(FRAGMENT_ROWS, FRAGMENT_BYTES * max(rows, 1) // max(size, 1)))


def _counts(rows: pa.Table | None, column: str) -> dict[str, int]:
    """Value -> rows, without nulls."""
    if rows is None:
        return {}
    counts = collections.Counter(rows[column].drop_null().to_pylist())
    return {str(value): counts[value] for value in sorted(counts)}


def _compact(uri: str) -> int:
    """Merge small fragments if there are many. Returns how many were merged."""
    table = store.open_table(uri)
    size = pc.sum(table.to_table(columns=["bytes"])["bytes"]).as_py() or 0
    target = fragment_rows(table.count_rows(), size)
    small = [fragment for fragment in table.get_fragments() if fragment.count_rows() * 2 < target]
    if len(small) < SMALL_FRAGMENTS:
        return 0
    before = {fragment.fragment_id for fragment in table.get_fragments()}
    table.optimize.compact_files(target_rows_per_fragment=target, batch_size=64)
    table = store.open_table(uri)
    check_blobs(table)
    return len(before - {fragment.fragment_id for fragment in table.get_fragments()})


def check_blobs(table: Any) -> None:
    """Compare the sha256 of some pictures with what the table says. Raises CorruptError."""
    count = table.count_rows()
    chosen = sorted(random.Random(table.version).sample(range(count), min(CHECKED_BLOBS, count)))
    rows = table.take(chosen, columns=["id", "sha256"]).to_pylist()
    for start in range(0, len(chosen), 8):
        blobs = table.read_blobs("image", indices=chosen[start : start + 8], preserve_order=True)
        for row, (_, data) in zip(rows[start : start + 8], blobs, strict=True):
            if hashlib.sha256(data or b"").hexdigest() != row["sha256"]:
                raise CorruptError(
                    f"the picture of {row['id']} is not the one that was ingested",
                    table.uri,
                    f"Restore the table from a version before {table.version}",
                )


def _create(uri: str, column: str, kind: str) -> None:
    table = store.open_table(uri)
    if not any(list(each.field_names) == [column] for each in table.describe_indices()):
        table.create_scalar_index(column, kind, replace=False)


def _optimize(uri: str) -> None:
    """Bring the rows into the indices that were appended or filled in since."""
    table = store.open_table(uri)
    rows = table.count_rows()
    if any(each.num_rows_indexed < rows for each in table.describe_indices()):
        table.optimize.optimize_indices()
