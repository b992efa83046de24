"""Small parts of a source are merged into one, so that a hundred daily batches are not a hundred times 52 small shards.

Parts are taken in the order of delivery, as long as they share encoding, columns and engines and hold one shard run of a batch
each. Samples are sorted by id and packed into shards of the usual size. Of an id that several of them hold only the newest
sample is kept: a release would leave the others out as superseded. Which sample is newer than one outside is decided by the shard run
that it comes from (`smalti.shards.part.batch_orders`), so that it does not matter what is merged with what.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from pydantic import Field

from smalti.accounting import Report
from smalti.lake import Lake
from smalti.maintenance.copying import CopyPlan, bounds_of, samples_of, sorted_rows, stored_sizes, write
from smalti.maintenance.rewrite import chosen_parts
from smalti.reasons import SkipReason
from smalti.settings import MaintenanceRun
from smalti.shards.part import Part, batch_orders

log = logging.getLogger("smalti")


class MergeReport(Report):
    """Attributes:
    dry_run: nothing was written.
    merged: the new part (<source>/<part>) or, with dry_run, the first of the old ones -> the parts that it replaces.
    samples, kept, dropped: of the merged parts.
    shards_before, shards_after: 0 after with dry_run.
    """

    dry_run: bool
    merged: dict[str, tuple[str, ...]] = Field({})
    samples: int = 0
    kept: int = 0
    dropped: dict[str, int] = Field({})
    shards_before: int = 0
    shards_after: int = 0


def merge(lake: Lake, run: MaintenanceRun) -> MergeReport:
    """Merge small parts. A second run finds nothing to do, or only what has come since."""
    started = time.monotonic()
    merged: dict[str, tuple[str, ...]] = {}
    dropped: Counter[str] = Counter()
    warnings: list[str] = []
    samples = kept = before = after = 0
    small = [part for part in chosen_parts(lake, run, warnings) if bytes_of(part) < run.small_part_bytes]
    for group in groups_of(small, run.small_part_bytes):
        names = tuple(f"{part.source}/{part.name}" for part in group)
        plan = plan_merge(lake, group)
        made = None
        if run.apply:
            made = write(lake, plan)
            if made is None:
                warnings.append(f"{names[0]} and {len(names) - 1} more: another run has replaced one of them meanwhile")
                continue
        merged[f"{made.source}/{made.name}" if made else names[0]] = names
        samples, kept = samples + sum(part.samples for part in group), kept + plan.rows.num_rows
        dropped.update(plan.dropped)
        before += sum(bucket.shards for part in group for bucket in part.buckets)
        after += sum(bucket.shards for bucket in made.buckets) if made else 0
    return MergeReport(
        stage="merge",
        seconds=time.monotonic() - started,
        warnings=tuple(warnings),
        dry_run=not run.apply,
        merged=merged,
        samples=samples,
        kept=kept,
        dropped=dict(dropped),
        shards_before=before,
        shards_after=after,
    )


def bytes_of(part: Part) -> int:
    return sum(bucket.bytes for bucket in part.buckets)


def groups_of(parts: Sequence[Part], small: int) -> Iterator[list[Part]]:
    """Parts to be merged with each other: of one kind, in their order, until a group is no longer small.

    A batch that was sharded twice gives one part to a group: whose sample is whose must stay clear.
    """
    kinds: dict[str, list[Part]] = {}
    for part in parts:
        kind = part.model_dump_json(include={"source", "encoding", "columns", "engines"})
        kinds.setdefault(kind, []).append(part)
    for alike in kinds.values():
        group: list[Part] = []
        for part in alike:
            batches = {origin.batch for each in group for origin in each.sharded}
            full = sum(map(bytes_of, group)) >= small
            if full or batches & {origin.batch for origin in part.sharded}:
                if len(group) > 1:
                    yield group
                group = []
            group.append(part)
        if len(group) > 1:
            yield group


def plan_merge(lake: Lake, parts: Sequence[Part]) -> CopyPlan:
    """One part of several, each id once."""
    tables = []
    for places, part in zip(batch_orders(parts), parts, strict=True):
        rows = samples_of(lake, part)
        order = [places[batch] for batch in rows["batch"].to_pylist()]
        tables.append(rows.append_column("order", pa.array(order, pa.int64())))
    rows = pa.concat_tables(tables)
    newest = rows.group_by("id").aggregate([("order", "max")])
    largest = dict(zip(newest["id"].to_pylist(), newest["order_max"].to_pylist(), strict=True))
    ids, orders = rows["id"].to_pylist(), rows["order"].to_pylist()
    kept = [largest[each] == order for each, order in zip(ids, orders, strict=True)]
    superseded = len(kept) - sum(kept)
    rows = sorted_rows(rows.filter(pa.array(kept, pa.bool_())).drop_columns(["order"]))
    count = rows.num_rows
    sizes = stored_sizes(lake, parts, rows)
    bounds = bounds_of(rows, np.arange(count), np.zeros(count, bool), sizes, parts[0].encoding.shard_bytes)
    dropped = {str(SkipReason.SUPERSEDED): superseded} if superseded else {}
    return CopyPlan(tuple(parts), "merged", rows, bounds, dropped)
