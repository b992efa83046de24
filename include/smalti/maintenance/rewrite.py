"""Parts of which releases leave much out are written anew without it.

What may go: a sample that *every* release using the part leaves out, whichever of its declared reason sets a training run lifts.
Live releases count, and versions that may still be published. A part that no live release uses is left as it is: nobody has
said yet what of it is wanted.

This is a forecast and no proof: a dataset that is made later may want what all of today's leave out (the pages of text, say, or
a copy whose other copy comes from a source that it does not use). So nothing is lost for good: today's releases keep the old
part as long as they live, and the source's table keeps every row: sharded anew (with another encoding, or after the
part's batch is ingested again under a new name) they are all there.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import Field

from smalti.accounting import Report
from smalti.errors import InputError, MissingObject
from smalti.lake import Lake
from smalti.maintenance.copying import CopyPlan, bounds_of, samples_of, sorted_rows, stored_sizes, write
from smalti.maintenance.live import Release, references
from smalti.objects import list_names
from smalti.reasons import SkipReason
from smalti.release.collect import shard_starts
from smalti.release.manifest import read_skip_file
from smalti.release.skips import ShardSkips
from smalti.settings import MaintenanceRun
from smalti.shards.part import Part, committed_parts, read_part

log = logging.getLogger("smalti")


class RewriteReport(Report):
    """Attributes:
    dry_run: nothing was written.
    shares: part (<source>/<part>) -> share of its samples that may go; the parts that a live release uses.
    rewritten: part -> the one in its place; with dry_run: -> "".
    samples, kept, dropped: of the rewritten parts.
    """

    dry_run: bool
    shares: dict[str, float] = Field({})
    rewritten: dict[str, str] = Field({})
    samples: int = 0
    kept: int = 0
    dropped: dict[str, int] = Field({})


def rewrite(lake: Lake, run: MaintenanceRun) -> RewriteReport:
    """Rewrite the parts whose share of samples that may go is above the limit. A second run finds nothing to do.

    Raises:
        InputError: a part is named that is not there, or was replaced.
    """
    started = time.monotonic()
    skips = LeftOut(references(lake, keep=run.keep_versions).releases)
    shares: dict[str, float] = {}
    rewritten: dict[str, str] = {}
    dropped: Counter[str] = Counter()
    warnings: list[str] = []
    samples = kept = 0
    for part in chosen_parts(lake, run):
        name = f"{part.source}/{part.name}"
        if not skips.is_used(part):
            if run.parts:
                warnings.append(f"{name}: no live release uses it, so nobody has said what of it may go")
            continue
        rows = samples_of(lake, part)
        reasons = skips.reasons(part, rows)
        gone = reasons >= 0
        shares[name] = round(float(gone.mean()), 6)
        if gone.all():
            warnings.append(f"{name}: every release leaves all of it out; it is kept as it is")
            continue
        if not gone.any() or shares[name] <= run.skip_limit:
            continue
        plan = plan_rewrite(lake, part, rows, reasons)
        made = None
        if run.apply:
            made = write(lake, plan)
            if made is None:
                warnings.append(f"{name}: another run has replaced it meanwhile")
                continue
        rewritten[name] = f"{made.source}/{made.name}" if made else ""
        samples, kept = samples + part.samples, kept + plan.rows.num_rows
        dropped.update(plan.dropped)
    return RewriteReport(
        stage="rewrite",
        seconds=time.monotonic() - started,
        warnings=tuple(warnings),
        dry_run=not run.apply,
        shares=shares,
        rewritten=rewritten,
        samples=samples,
        kept=kept,
        dropped=dict(sorted(dropped.items())),
    )


def chosen_parts(lake: Lake, run: MaintenanceRun) -> Iterator[Part]:
    """The parts in sight that a run is about."""
    if run.parts:
        for each in run.parts:
            source, _, name = each.partition("/")
            found = next((part for part in committed_parts(lake, source) if part.name == name), None)
            if found is None:
                raise InputError(
                    _why_not(lake, source, name), f"part {each}", "Name <source>/<part> as `parts` holds it"
                )
            yield found
        return
    for source in list_names(lake.parts_root()):
        if not run.sources or source in run.sources:
            yield from committed_parts(lake, source)


def _why_not(lake: Lake, source: str, name: str) -> str:
    try:
        read_part(lake, source, name)
    except (MissingObject, InputError):
        return "there is no such part"
    return "the part was replaced already"


def plan_rewrite(lake: Lake, part: Part, rows: pa.Table, reasons: npt.NDArray[np.int64]) -> CopyPlan:
    """The part without the samples that have a reason.

    Shards that lose nothing stay as they are; neighbours that lose some are joined while they fit into one shard.

    Args:
        rows: of samples.parquet.
        reasons: for each row its place in SkipReason, or -1: it is kept.
    """
    places, counts = np.unique(reasons[reasons >= 0], return_counts=True)
    lost = rows.append_column("lost", pa.array(reasons >= 0))
    per_shard = lost.group_by("shard").aggregate([("lost", "any")])
    touched = dict(zip(per_shard["shard"].to_pylist(), per_shard["lost_any"].to_pylist(), strict=True))
    kept = sorted_rows(rows.filter(pa.array(reasons < 0)))
    shards = kept["shard"].to_pylist()
    groups = np.cumsum([a != b for a, b in zip(shards, ["", *shards[:-1]], strict=True)]).astype(np.int64)
    fixed = np.array([not touched[shard] for shard in shards], bool)
    bounds = bounds_of(kept, groups, fixed, stored_sizes(lake, [part], kept), part.encoding.shard_bytes)
    names = list(SkipReason)
    dropped = {str(names[place]): int(count) for place, count in zip(places, counts, strict=True)}
    return CopyPlan((part,), "rewritten", kept, bounds, dropped)


class LeftOut:
    """What the releases leave out, each under all of its declared reason sets."""

    def __init__(self, releases: Sequence[Release]) -> None:
        self._releases = releases
        self._skips: dict[str, dict[str, ShardSkips]] = {}

    def is_used(self, part: Part) -> bool:
        """Whether a live release uses the part."""
        return any(release.live and (part.source, part.name) in release.parts for release in self._releases)

    def reasons(self, part: Part, rows: pa.Table) -> npt.NDArray[np.int64]:
        """For each row the place in SkipReason of a reason, if every release leaves it out; else -1.

        It is the first reason that the first release (the newest of a dataset) gives.
        """
        users = [release for release in self._releases if (part.source, part.name) in release.parts]
        found = np.full(rows.num_rows, -1, np.int64)
        for shard, start, _ in shard_starts(rows):
            told = [self._of(release).get(shard) for release in users]
            if not told or any(each is None for each in told):
                continue
            entries = [each for each in told if each is not None]
            gone = set.intersection(*(left_out(r, each) for r, each in zip(users, entries, strict=True)))
            for place, why in reversed(list(enumerate(SkipReason))):  # the first one of a sample is written last
                at = [start + index for index in entries[0].skip.get(why, ()) if index in gone]
                found[at] = place
        return found

    def _of(self, release: Release) -> Mapping[str, ShardSkips]:
        if release.uri not in self._skips:
            shards: dict[str, ShardSkips] = {}
            for stream in release.manifest.streams:
                shards |= read_skip_file(release.uri, stream).shards
            self._skips[release.uri] = shards
        return self._skips[release.uri]


def left_out(release: Release, shard: ShardSkips) -> set[int]:
    """Indices that a release never serves, whichever of its declared reason sets is lifted."""
    sets = [shard.left_out(lifted) for lifted in release.manifest.reason_sets]
    return set.intersection(shard.left_out(), *sets)
