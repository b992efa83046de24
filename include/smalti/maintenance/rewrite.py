"""Parts of which releases leave much out are written anew without it.

What may go is a sample of which all of this is true:

1. *Every* release that uses the part leaves it out, whichever of its declared reason sets a training run lifts. Live releases count,
   and versions that may still be published. A part that no live release uses is left as it is: nobody has said yet what of it is wanted.
2. All its reasons are in REMOVABLE: they speak of this sample alone, so that without it nothing else is decided otherwise.
3. No older sample of its id could come back: a newer one is in another part in sight, or the id was delivered once and is in no
   other part in sight. Otherwise the newest picture would be gone, and the one that it replaced would be served again.
4. Its part holds nothing that is opted out: snapshots name samples by place and by id, and such a part stays what it is.

The first is a forecast and no proof: a dataset that is made later may want what all of today's leave out (the pages of
text, say). So nothing is lost for good: today's releases keep the old
part as long as they live, and the source's table keeps every row; sharded anew with another encoding they are all there.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
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
from smalti.release.optouts import newest_position, read_snapshot
from smalti.release.skips import ShardSkips
from smalti.settings import MaintenanceRun
from smalti.shards.part import Part, batch_orders, committed_parts, read_part
from smalti.table.store import lance_errors, open_table

log = logging.getLogger("smalti")


REMOVABLE = frozenset({
    SkipReason.SUPERSEDED,
    SkipReason.LICENCE,
    SkipReason.CAPTION_FAILED,
    SkipReason.LABEL_FAILED,
    SkipReason.TEXT,
    SkipReason.RESOLUTION,
})
"""Not `nsfw` and `optout`: such a sample speaks for its copies, which without it would be served. Not `duplicate`: what is left of
a cluster would be too small for what a person has decided of it, and copies of copies would be served. Not `denylist`: a list is mended by
hand, and curate warns of names that no part has. Not `captioner`: a part of another captioner was made to be chosen one day. A reason
that is added to SkipReason is not here until somebody has thought about it."""


class RewriteReport(Report):
    """Attributes:
    dry_run: nothing was written.
    shares: part (<source>/<part>) -> share of its samples that may go, where any may.
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
    for part in chosen_parts(lake, run, warnings):
        name = f"{part.source}/{part.name}"
        if not skips.is_used(part):
            if run.parts:
                warnings.append(f"{name}: no live release uses it, so nobody has said what of it may go")
            continue
        rows = samples_of(lake, part)
        reasons = skips.reasons(part, rows)
        gone = reasons >= 0
        if not gone.any():
            continue
        shares[name] = round(float(gone.mean()), 6)
        if gone.all():
            warnings.append(f"{name}: every release leaves all of it out; it is kept as it is")
            continue
        if shares[name] <= run.skip_limit:
            continue
        reasons[~never_comes_back(lake, part, rows, gone)] = -1
        shares[name] = round(float((reasons >= 0).mean()), 6)
        if shares[name] <= run.skip_limit:
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


def chosen_parts(lake: Lake, run: MaintenanceRun, warnings: list[str]) -> Iterator[Part]:
    """The parts in sight that a run is about, without those that hold what is opted out.

    Snapshots name samples by their shards, and by id: what was delivered later under such an id speaks for its copies too, even
    when a newer delivery has superseded it. A part that holds any stays what it is until its opt-outs are erased.

    Args:
        warnings: gets a line for each that was asked for by name and is left.
    """
    snapshot = read_snapshot(lake, newest_position(lake))
    named, ids = {"/".join(shard.split("/")[:2]) for shard in snapshot.shards}, pa.array(snapshot.ids, pa.string())
    for part in _parts_of(lake, run):
        if f"{part.source}/{part.name}" not in named and not (len(ids) and _holds(lake, part, ids)):
            yield part
        elif run.parts:
            warnings.append(f"{part.source}/{part.name}: it holds what is opted out, and is left as it is")


def _holds(lake: Lake, part: Part, ids: pa.Array) -> bool:
    return bool(pc.any(pc.is_in(samples_of(lake, part)["id"], value_set=ids)).as_py())


def _parts_of(lake: Lake, run: MaintenanceRun) -> Iterator[Part]:
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


def never_comes_back(lake: Lake, part: Part, rows: pa.Table, gone: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """For each row whether, if it went, no older sample of its id would be served in its place; only asked where `gone`.

    Args:
        rows: of the part's samples.parquet.
    """
    ids = rows["id"].filter(pa.array(gone))
    parts = committed_parts(lake, part.source)
    places = dict(zip((each.name for each in parts), batch_orders(parts), strict=True))
    if part.name not in places:  # another run has replaced it meanwhile
        return np.zeros(rows.num_rows, bool)
    own = dict(zip(ids.to_pylist(), _orders(rows.filter(pa.array(gone)), places[part.name]), strict=True))
    newer: set[str] = set()
    elsewhere: set[str] = set()
    for other in parts:
        if other.name != part.name:
            table = samples_of(lake, other).select(["id", "batch"])
            held = table.filter(pc.is_in(table["id"], value_set=ids.combine_chunks()))
            for name, order in zip(held["id"].to_pylist(), _orders(held, places[other.name]), strict=True):
                (newer if order > own[name] else elsewhere).add(name)
    again = _delivered_again(lake, part.source, ids.combine_chunks())
    stays = [name not in newer and (name in elsewhere or name in again) for name in rows["id"].to_pylist()]
    return ~np.array(stays, bool)


def _orders(rows: pa.Table, places: Mapping[str, int]) -> list[int]:
    return [places[batch] for batch in rows["batch"].to_pylist()]


def _delivered_again(lake: Lake, source: str, ids: pa.Array) -> set[str]:
    """Those of these ids of which the source's table has several rows: shard could write an older one at any time."""
    uri = lake.table(source)
    table = open_table(uri)
    if table is None:
        return set()  # nothing can be sharded any more
    counts: Counter[str] = Counter()
    with lance_errors(uri):
        for batch in table.scanner(columns=["id"]).to_batches():
            counts.update(batch["id"].filter(pc.is_in(batch["id"], value_set=ids)).to_pylist())
    return {name for name, count in counts.items() if count > 1}


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
    """Indices that a release never serves, whichever of its declared reason sets is lifted, for reasons that are REMOVABLE."""
    sets = [shard.left_out(lifted) for lifted in release.manifest.reason_sets]
    stays = {index for reason, indices in shard.skip.items() if reason not in REMOVABLE for index in indices}
    return set.intersection(shard.left_out(), *sets) - stays
