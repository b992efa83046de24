"""What became of every picture, for people: served, left out by the release, or fallen out before it."""

from __future__ import annotations

import heapq
import io
from collections.abc import Iterator

from pydantic import Field

from smalti import objects
from smalti.curation.record import Explanation, explain_at, read_curation
from smalti.errors import InputError, MissingObject
from smalti.lake import Lake
from smalti.reasons import SkipReason
from smalti.release.collect import shard_starts
from smalti.release.manifest import Manifest, beside, read_manifest, read_skip_file
from smalti.release.optouts import lake_of
from smalti.release.skips import Model, ShardSkips
from smalti.shards.part import Part, read_part
from smalti.shards.samples import decode_samples

MOST = 1000
"""Names that are listed for each reason; counts are always whole."""


class Skipped(Model):
    """A sample that is in a part and not served.

    Attributes:
        reasons: all that apply, in the order of precedence; the sample counts under the first.
        duplicate_of: the copy that is served instead.
        spread_from: the copy whose label applies to it.
    """

    id: str
    reasons: tuple[SkipReason, ...]
    duplicate_of: str | None = None
    spread_from: str | None = None


class Dropped(Model):
    """A row that never reached a part: `stage` is where it fell out."""

    id: str
    stage: str
    reason: str
    detail: str = ""


class Summary(Model):
    """Attributes:
    samples, kept: counts.
    kept_ids: ids that are served, ascending, at most MOST.
    counts: first reason -> samples.
    skipped: first reason -> samples with that reason, at most MOST each.
    dropped: what fell out before, at most MOST of each batch and stage.
    """

    dataset: str
    version: str
    digest: str
    samples: int
    kept: int
    kept_ids: tuple[str, ...]
    counts: dict[SkipReason, int]
    skipped: dict[SkipReason, tuple[Skipped, ...]]
    dropped: tuple[Dropped, ...] = Field((), description="ingest, fingerprint, shard")


def summary(manifest_uri: str, most: int = MOST) -> Summary:
    """What a release serves and what it does not, and why.

    Raises:
        MissingObject, CorruptError: something that the manifest names is missing or damaged.
    """
    uri = objects.normalise_uri(manifest_uri)
    manifest = read_manifest(uri)
    kept: list[str] = []
    skipped: dict[SkipReason, list[tuple[str, str, int, tuple[SkipReason, ...]]]] = {}
    for name, shard, index, reasons in samples_of(uri, manifest):
        if not reasons:
            kept.append(name)
        else:
            skipped.setdefault(reasons[0], []).append((name, shard, index, reasons))
    listed = {reason: heapq.nsmallest(most, skipped[reason]) for reason in SkipReason if reason in skipped}
    said = _explained(uri, manifest, [(shard, index) for each in listed.values() for _, shard, index, _ in each])
    return Summary(
        dataset=manifest.dataset,
        version=manifest.version,
        digest=manifest.digest,
        samples=manifest.accounting.samples,
        kept=len(kept),
        kept_ids=tuple(heapq.nsmallest(most, kept)),
        counts={reason: len(skipped[reason]) for reason in listed},
        skipped={
            reason: tuple(_skipped(name, reasons, said.get((shard, index))) for name, shard, index, reasons in each)
            for reason, each in listed.items()
        },
        dropped=tuple(dropped_before(lake_of(uri), manifest, most)),
    )


def _explained(uri: str, manifest: Manifest, places: list[tuple[str, int]]) -> dict[tuple[str, int], Explanation]:
    """What the curation says of some samples; nothing if an older smalti made it, or it is not there any more."""
    if not manifest.provenance.curation or not places:
        return {}
    lake = lake_of(uri)
    try:
        return explain_at(lake, read_curation(beside(uri, manifest.provenance.curation)), places)
    except (InputError, MissingObject):
        return {}


def samples_of(uri: str, manifest: Manifest) -> Iterator[tuple[str, str, int, tuple[SkipReason, ...]]]:
    """Id, shard, index and skip reasons of every sample of a release, part by part."""
    lake = lake_of(uri)
    skips: dict[str, ShardSkips] = {}
    for stream in manifest.streams:
        skips |= read_skip_file(uri, stream).shards
    for part in _parts(lake, manifest):
        where = lake.samples(part.source, part.name)
        table = decode_samples(objects.read_bytes(where), where)
        ids = table["id"].to_pylist()
        for shard, start, count in shard_starts(table):
            by_index: dict[int, list[SkipReason]] = {}
            for reason in SkipReason:
                for index in skips[shard].skip.get(reason, ()) if shard in skips else ():
                    by_index.setdefault(index, []).append(reason)
            for index in range(count):
                yield ids[start + index], shard, index, tuple(by_index.get(index, ()))


def dropped_before(lake: Lake, manifest: Manifest, most: int = MOST) -> Iterator[Dropped]:
    """Rows of the release's batches that ingest rejected, that had no bucket, or that could no longer be decoded."""
    seen: set[tuple[str, str]] = set()
    for part in _parts(lake, manifest):
        for failed in part.failed:
            yield Dropped(id=failed.id, stage="shard", reason="decode_failed", detail=failed.detail)
        for batch in (sharded.batch for sharded in part.sharded):
            if (part.source, batch) not in seen:
                seen.add((part.source, batch))
                yield from _rejected(lake, part.source, batch, most)
                yield from _without_bucket(lake, part.source, batch, most)


def _parts(lake: Lake, manifest: Manifest) -> Iterator[Part]:
    for source in manifest.sources:
        for part in source.parts:
            yield read_part(lake, source.name, part.name)


def _skipped(name: str, reasons: tuple[SkipReason, ...], said: Explanation | None) -> Skipped:
    return Skipped(
        id=name,
        reasons=reasons,
        duplicate_of=said.copy_of if said else None,
        spread_from=said.spread_from if said else None,
    )


def _rejected(lake: Lake, source: str, batch: str, most: int) -> Iterator[Dropped]:
    import pyarrow.parquet as pq

    found = objects.read_versioned(lake.rejects(source, batch))
    if found is None:
        return
    for row in pq.read_table(io.BytesIO(found[0])).slice(0, most).to_pylist():
        yield Dropped(id=f"{source}/{row['key']}", stage="ingest", reason=row["reason"], detail=row.get("detail") or "")


def _without_bucket(lake: Lake, source: str, batch: str, most: int) -> Iterator[Dropped]:
    from smalti.table.store import lance_errors, open_table, sql_text

    uri = lake.table(source)
    table = open_table(uri)
    if table is None:
        return  # erased, or a lake without its tables: the manifest's accounting still has the counts
    with lance_errors(uri):
        rows = table.to_table(
            columns=["id", "drop", "width", "height", *({"reserved"} & set(table.schema.names))],
            filter=f"batch = {sql_text(batch)} AND drop IS NOT NULL",
            limit=most,
        ).to_pylist()
    for row in sorted(rows, key=lambda each: str(each["id"])):
        detail = f"reserved: {row['reserved']}" if row.get("reserved") else f"{row['width']}x{row['height']}"
        yield Dropped(id=row["id"], stage="fingerprint", reason=row["drop"], detail=detail)
