"""One sample's whole story: where it came from, its words, its copies, where it lies, and which releases serve it or why not."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pydantic import Field, JsonValue

from smalti import objects
from smalti.contents import versions_of
from smalti.curation.copies import ratios_close
from smalti.curation.record import explain
from smalti.errors import CorruptError, InputError, MissingObject
from smalti.images.fingerprint import Fingerprint, hamming, same_picture
from smalti.lake import Lake
from smalti.reasons import SkipReason, set_name
from smalti.release.latest import read_latest
from smalti.release.manifest import Manifest, beside, read_manifest, read_skip_file
from smalti.release.optouts import newest_position, read_snapshot
from smalti.release.skips import Model
from smalti.shards.part import Part, batch_orders, committed_parts
from smalti.shards.samples import AGAIN, SCHEMA

_THREADS = 16
"""samples.parquet files looked at at once: a source of a year has hundreds."""

_PRINT = ("phash", "colour", "flat", "unstable")


class Delivery(Model):
    """A row of the source's table, or one that never got there.

    Attributes:
        fell_out: stage and reason; empty: it was eligible.
        captions, labels: by profile (labels: classifier of captioner), the text, or why there is none.
        facts: the other columns, as the table has them.
    """

    batch: str
    fell_out: str | None = None
    captions: dict[str, str] = Field({})
    labels: dict[str, str] = Field({})
    facts: dict[str, JsonValue] = Field({})


class Place(Model):
    """A sample in a part. `replaced`: new releases do not use the part; `opted_out`: the newest snapshot of opt-outs names it."""

    part: str
    replaced: bool
    batch: str
    shard: str
    index: int
    tier: int
    ar: str
    captioner: str
    label: str | None
    sha256: str
    opted_out: bool = False


class Copy(Model):
    """Another sample that shows the same picture. `distance`: bits of the hashes that differ; None: equal bytes."""

    id: str
    width: int
    height: int
    distance: int | None


class Fate(Model):
    """What a release does with it.

    Attributes:
        served: it is, unless opt-outs say otherwise.
        reasons: why not, in the order of precedence.
        served_without: sets of reasons that serve it again if they are lifted.
        copy_of, spread_from: the sample that is served instead, or whose label or opt-out applies.
    cluster: of look-alikes, if it is one that was too large.
    """

    release: str
    latest: bool
    part: str
    served: bool
    reasons: tuple[SkipReason, ...] = ()
    served_without: tuple[str, ...] = ()
    copy_of: str | None = None
    spread_from: str | None = None
    cluster: str | None = None


class Trace(Model):
    """The story, in the order in which it happened."""

    id: str
    deliveries: tuple[Delivery, ...] = ()
    places: tuple[Place, ...] = ()
    copies: tuple[Copy, ...] = ()
    releases: tuple[Fate, ...] = ()


def trace(lake: Lake, sample_id: str) -> Trace:
    """Everything that the lake knows of a sample.

    Raises:
        InputError: it is no sample id, or nothing of that name was ever here.
    """
    source, _, key = sample_id.partition("/")
    if not source or not key:
        raise InputError(f"{sample_id!r} is not a sample id", lake.root, "Write <source>/<key>")
    parts = committed_parts(lake, source, hidden=True)
    places = dict(zip([part.name for part in parts], batch_orders(parts), strict=True))
    rows = sorted(_in_threads(lake, parts, "id", sample_id), key=lambda each: places[each[0].name][each[1]["batch"]])
    in_sight = {part.name for part in committed_parts(lake, source)}
    deliveries = (*_rejected(lake, source, key), *_table_rows(lake, source, sample_id))
    if not deliveries and not rows:
        raise InputError(
            f"nothing here is called {sample_id}", lake.root, f"`smalti source report {source}` shows what there is"
        )
    return Trace(
        id=sample_id,
        deliveries=deliveries,
        places=tuple(_places(lake, rows, in_sight)),
        copies=tuple(_copies(lake, rows[-1][1])) if rows else (),
        releases=tuple(fate for row in rows for fate in _fates(lake, *row)),
    )


Row = tuple[Part, dict[str, Any]]


def _in_threads(lake: Lake, parts: Sequence[Part], column: str, value: str | int) -> list[Row]:
    """Rows of samples.parquet with this value, in the order of the parts."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    wanted = pc.field(column) == pa.scalar(value, SCHEMA.field(column).type)

    def look(part: Part) -> list[Row]:
        uri = lake.samples(part.source, part.name)
        with objects.open_binary(uri) as file:
            try:
                return [(part, row) for row in pq.read_table(file, filters=wanted).to_pylist()]
            except (pa.ArrowException, OSError) as error:
                raise CorruptError(f"this is not a samples.parquet ({error})", uri, "Restore it") from error

    with ThreadPoolExecutor(_THREADS) as pool:
        return [row for found in pool.map(look, parts) for row in found]


def _rejected(lake: Lake, source: str, key: str) -> Iterator[Delivery]:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    for batch in objects.list_names(lake.batches(source)):
        found = objects.read_versioned(lake.rejects(source, batch))
        if found is not None:
            for row in pq.read_table(io.BytesIO(found[0]), filters=pc.field("key") == key).to_pylist():
                yield Delivery(
                    batch=batch,
                    fell_out=f"ingest: {row['reason']}",
                    facts={"detail": row.get("detail") or ""},
                )


def _table_rows(lake: Lake, source: str, sample_id: str) -> Iterator[Delivery]:
    from smalti.table.store import lance_errors, open_table, sql_text

    uri = lake.table(source)
    table = open_table(uri)
    if table is None:
        return
    names = [name for name in table.schema.names if name not in ("image", "colour", "embedding")]
    with lance_errors(uri):
        rows = table.to_table(columns=names, filter=f"id = {sql_text(sample_id)}").to_pylist()
    for row in sorted(rows, key=lambda each: str(each["batch"])):
        yield _delivery(row)


def _delivery(row: dict[str, Any]) -> Delivery:
    """A table's row: what profiles have said of it apart from the rest."""
    said: dict[str, dict[str, str]] = {"caption": {}, "label": {}}
    facts: dict[str, JsonValue] = {}
    spoken = {name for name in row if f"{name}_status" in row}  # the text or label of a profile, and what goes with it
    for name, value in row.items():
        if name in spoken:
            kind, _, profile = name.partition("_")
            why = row.get(f"{name}_reason") or row[f"{name}_status"] or "not asked"
            said[kind][profile] = str(value) if value is not None else f"({why})"
        elif name == "metadata":
            facts[name] = json.loads(value)
        elif name == "phash":
            facts[name] = None if value is None else f"{value:016x}"
        elif not any(name.startswith(f"{each}_") for each in spoken) and name not in ("id", "batch", "drop"):
            facts[name] = value
    dropped = f"fingerprint: {row['drop']}" if row["drop"] else None
    if dropped and row.get("reserved"):
        dropped += f" (reserved: {row['reserved']})"
    return Delivery(batch=row["batch"], fell_out=dropped, captions=said["caption"], labels=said["label"], facts=facts)


def _places(lake: Lake, rows: Sequence[Row], in_sight: Collection[str]) -> Iterator[Place]:
    snapshot = read_snapshot(lake, newest_position(lake))
    for part, row in rows:
        yield Place(
            part=f"{part.source}/{part.name}",
            replaced=part.name not in in_sight,
            **{name: row[name] for name in ("batch", "shard", "index", "tier", "ar", "captioner", "label", "sha256")},
            opted_out=row["index"] in snapshot.shards.get(row["shard"], ()) or row["id"] in snapshot.ids,
        )


def _copies(lake: Lake, row: dict[str, Any]) -> Iterator[Copy]:
    """Samples of any source with the same bytes, or with the same hash and an agreeing fingerprint."""
    parts = [part for source in objects.list_names(lake.parts_root()) for part in committed_parts(lake, source)]
    found: dict[str, Copy] = {}
    for column in ("sha256", "phash"):
        if row[column] is None:
            continue
        for _, other in _in_threads(lake, parts, column, row[column]):
            if other["id"] != row["id"] and (column == "sha256" or _alike(row, other)):
                distance = None if column == "sha256" else hamming(row["phash"], other["phash"])
                copy = Copy(id=other["id"], width=other["width"], height=other["height"], distance=distance)
                found.setdefault(copy.id, copy)
    yield from sorted(found.values(), key=lambda each: each.id)


def _alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    if len(one["colour"]) != len(other["colour"]):
        raise InputError("one of two samples of one hash was fingerprinted by an older smalti", other["shard"], AGAIN)
    a, b = (Fingerprint(**{name: row[name] for name in _PRINT}) for row in (one, other))
    return same_picture(a, b) and ratios_close(one["width"], one["height"], other["width"], other["height"])


def _fates(lake: Lake, part: Part, row: dict[str, Any]) -> Iterator[Fate]:
    """What every release that has the part does with the sample."""
    for dataset in objects.list_names(lake.releases()):
        latest = read_latest(lake, dataset)
        for version in versions_of(lake, dataset):
            uri = lake.manifest(dataset, version)
            manifest = read_manifest(uri)
            if any(
                source.name == part.source and part.name in {p.name for p in source.parts}
                for source in manifest.sources
            ):
                newest = latest is not None and latest.version == version
                yield _fate(uri, manifest, part, row, newest)


def _fate(uri: str, manifest: Manifest, part: Part, row: dict[str, Any], latest: bool) -> Fate:
    index, reasons, sets = row["index"], [], []
    group = next(source.group for source in manifest.sources if source.name == part.source)
    for stream in manifest.streams:
        if (stream.group, stream.tier, stream.ar) == (group, row["tier"], row["ar"]):
            skips = read_skip_file(uri, stream).shards.get(row["shard"])
            reasons = [reason for reason in SkipReason if skips and index in skips.skip.get(reason, ())]
            sets = [
                set_name(s) for s in manifest.reason_sets if s and reasons and skips and index not in skips.left_out(s)
            ]
    why: dict[str, Any] = {}
    if reasons and manifest.provenance.curation:
        with contextlib.suppress(InputError, MissingObject):  # an older smalti wrote it, or it was collected
            for told in explain(beside(uri, manifest.provenance.curation), row["id"]):
                if (told.shard, told.index) == (row["shard"], index):
                    why = {"copy_of": told.copy_of, "spread_from": told.spread_from, "cluster": told.cluster}
    return Fate(
        release=f"{manifest.dataset} {manifest.version}",
        latest=latest,
        part=f"{part.source}/{part.name}",
        served=not reasons,
        reasons=tuple(reasons),
        served_without=tuple(sets),
        **why,
    )
