"""What a release is made of, put together from its parts and what curate decided; nothing is written here."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from smalti import objects
from smalti.curation.record import Curation, ShardDecisions
from smalti.errors import CorruptError
from smalti.lake import Lake, stream_index
from smalti.reasons import SkipReason
from smalti.release.manifest import Count, PartEntry, SourceEntry, StreamEntry, encode_stream_index, rebase
from smalti.release.skips import SkipFile, sha256
from smalti.shards.part import Part, read_part, read_samples_bytes
from smalti.shards.samples import decode_samples

SHOWN_A_BUCKET = 24
"""Kept samples of a stream that the report may choose from."""

SHOWN_A_REASON = 8
"""Left-out samples that the report shows for each reason."""

_REASONS = tuple(SkipReason)


@dataclass(frozen=True)
class Stream:
    """A stream's entry and the two files that it names."""

    entry: StreamEntry
    index: bytes
    skips: SkipFile


@dataclass(frozen=True, order=True)
class Shown:
    """A sample that the report may show: where it lies, and of which sample it is a copy."""

    sha256: str
    id: str
    shard: str
    index: int
    twin: str = ""


@dataclass
class Tally:
    """Counts over samples, not over streams or shards: what the manifest's accounting states."""

    samples: Counter[str]
    kept: Counter[str]
    skipped: dict[str, Counter[SkipReason]]
    licences: Counter[str]
    labels: Counter[str]
    pixels: int
    kept_shown: dict[tuple[str, int, str], list[Shown]]
    skipped_shown: dict[SkipReason, list[Shown]]


def read_parts(lake: Lake, curation: Curation) -> list[Part]:
    """The parts that were curated.

    Raises:
        CorruptError: a part is not the one that was curated.
    """
    parts = []
    for curated in curation.parts:
        part = read_part(lake, curated.source, curated.name)
        if (part.digest, part.samples_sha256) != (curated.digest, curated.samples_sha256):
            raise CorruptError(
                "the part is not the one that was curated",
                lake.part_commit(part.source, part.name),
                "Curate again; if it happens again, restore the part",
            )
        parts.append(part)
    return parts


def streams_of(lake: Lake, curation: Curation, parts: Sequence[Part], groups: Mapping[str, str]) -> list[Stream]:
    """One stream for each (mix group, tier, ar), over all parts.

    Args:
        groups: source -> mix group.
    """
    entries: dict[tuple[str, int, str], list[dict[str, Any]]] = defaultdict(list)
    shapes: dict[tuple[str, int, str], tuple[int, int]] = {}
    for part in parts:
        for bucket in part.buckets:
            uri = lake.bucket_index(part.source, part.name, bucket.tier, bucket.ar)
            data = objects.read_bytes(uri)
            if hashlib.sha256(data).hexdigest() != bucket.index_sha256:
                raise CorruptError("the index is not the one that part.json records", uri, "Restore it")
            key = (groups[part.source], bucket.tier, bucket.ar)
            folder = f"{part.source}/{part.name}/{bucket.tier}/{bucket.ar}"
            entries[key] += [rebase(entry, folder) for entry in json.loads(data)["shards"]]
            shapes[key] = (bucket.width, bucket.height)
    return [_stream(key, shapes[key], entries[key], curation) for key in sorted(entries)]


def _stream(
    key: tuple[str, int, str], shape: tuple[int, int], entries: list[dict[str, Any]], curation: Curation
) -> Stream:
    group, tier, ar = key
    index = encode_stream_index(entries)
    names = [entry["raw_data"]["basename"] for entry in entries]
    decided = {name: curation.shards[name] for name in names if name in curation.shards}
    skips = SkipFile.of({name: (each.samples, each.skip) for name, each in decided.items()})
    skipped = skips.counts()
    samples = sum(entry["samples"] for entry in entries)
    entry = StreamEntry(
        group=group,
        tier=tier,
        ar=ar,
        width=shape[0],
        height=shape[1],
        samples=samples,
        kept=samples - sum(skipped.values()),
        skipped=skipped,
        bytes=sum(entry["raw_data"]["bytes"] for entry in entries),
        index=stream_index(group, tier, ar),
        index_sha256=sha256(index),
        skip_file=skips.digest() if skips.shards else None,
    )
    return Stream(entry, index, skips)


def tally(lake: Lake, curation: Curation, parts: Sequence[Part], groups: Mapping[str, str]) -> Tally:
    """Count every sample of every part once, part by part."""
    counted = Tally(
        Counter(), Counter(), defaultdict(Counter), Counter(), Counter(), 0, defaultdict(list), defaultdict(list)
    )
    for part in parts:
        table = decode_samples(read_samples_bytes(lake, part), lake.samples(part.source, part.name))
        first = _first_reasons(table, curation)
        kept = first < 0
        counted.samples[part.source] += table.num_rows
        counted.kept[part.source] += int(kept.sum())
        for reason, count in zip(*np.unique(first[~kept], return_counts=True), strict=True):
            counted.skipped[part.source][_REASONS[reason]] += int(count)
        served = table.filter(kept)
        _count(counted.licences, served["licence"])
        _count(counted.labels, table["label"])
        counted.pixels += int(
            pc.sum(pc.multiply(served["width"].cast("int64"), served["height"].cast("int64"))).as_py() or 0
        )
        _choose(counted, table, first, curation, groups[part.source])
    return counted


def source_entries(parts: Sequence[Part], counted: Tally, groups: Mapping[str, str]) -> tuple[SourceEntry, ...]:
    """What each source gave."""
    entries = []
    for source in sorted(groups):
        own = [part for part in parts if part.source == source]
        names = {
            role: tuple(sorted({engine.name for part in own for engine in part.engines if engine.role == role}))
            for role in ("captioner", "classifier")
        }
        entries.append(
            SourceEntry(
                name=source,
                group=groups[source],
                parts=tuple(PartEntry(name=part.name, digest=part.digest, samples=part.samples) for part in own),
                samples=counted.samples[source],
                kept=counted.kept[source],
                skipped=dict(counted.skipped[source]),
                captioners=names["captioner"],
                classifiers=names["classifier"],
                curators=tuple(dict.fromkeys(each for part in own for each in part.curators)),
            )
        )
    return tuple(entries)


def engines_of(parts: Sequence[Part]) -> tuple[dict[str, Any], ...]:
    """The profiles that made captions and labels, as each part recorded them, each once."""
    dumps = [engine.model_dump(mode="json") for part in parts for engine in part.engines]
    once = {json.dumps(dump, sort_keys=True): dump for dump in dumps}
    return tuple(once[key] for key in sorted(once, key=lambda key: (once[key]["role"], once[key]["name"], key)))


def upstream_of(lake: Lake, parts: Sequence[Part]) -> tuple[Count, ...]:
    """The accounting of the stages before, as they recorded it: ingest of each batch, and each part's shard stage."""
    counts: dict[str, Count] = {}
    for part in parts:
        for sharded in part.sharded:
            found = objects.read_versioned(lake.ingested(part.source, sharded.batch))
            if found is not None:
                report = json.loads(found[0])
                what = f"{part.source}, batch {sharded.batch}, ingest"
                counts[what] = Count(what=what, **{key: report[key] for key in ("rows_in", "rows_out", "dropped")})
            what = f"{part.source}, batch {sharded.batch}, shard {sharded.name}"
            counts[what] = Count(what=what, **sharded.accounting.model_dump(include={"rows_in", "rows_out", "dropped"}))
        if part.replaces:
            what = f"{part.source}, maintenance, part {part.name}"
            counts[what] = Count(what=what, **part.accounting.model_dump(include={"rows_in", "rows_out", "dropped"}))
    return tuple(counts.values())


def shard_starts(table: Any) -> Iterator[tuple[str, int, int]]:
    """Shard, first row and number of rows; samples.parquet is sorted by shard and index."""
    encoded = pc.dictionary_encode(table["shard"].combine_chunks())
    codes = encoded.indices.to_numpy()
    bounds = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)]
    for start, stop in pairwise(bounds):
        if stop > start:
            yield encoded.dictionary[int(codes[start])].as_py(), start, stop - start


def _first_reasons(table: Any, curation: Curation) -> npt.NDArray[np.int64]:
    """For each row the place of its first reason in SkipReason, or -1."""
    first = np.full(table.num_rows, -1, np.int64)
    for shard, start, count in shard_starts(table):
        decided = curation.shards.get(shard)
        if decided is None:
            continue
        if decided.samples != count:
            raise CorruptError(
                f"curation saw {decided.samples} samples in {shard}, samples.parquet has {count}",
                curation.dataset,
                "Curate again",
            )
        for place in reversed(range(len(_REASONS))):
            indices = decided.skip.get(_REASONS[place], ())
            first[start + np.array(indices, np.int64)] = place
    return first


def _count(into: Counter[str], column: Any) -> None:
    for each in pc.value_counts(pc.fill_null(column, "")).to_pylist():
        into[each["values"]] += each["counts"]


def _choose(counted: Tally, table: Any, first: npt.NDArray[np.int64], curation: Curation, group: str) -> None:
    """Remember a bounded number of samples to show: those of the smallest sha256, which is as good as chance."""
    import polars as pl

    frame = pl.from_arrow(table.select(["sha256", "id", "shard", "index", "tier", "ar"]))
    frame = frame.with_columns(first=pl.Series(first)).sort("sha256", "id")
    kept = frame.filter(pl.col("first") < 0).group_by("tier", "ar", maintain_order=True).head(SHOWN_A_BUCKET)
    left_out = frame.filter(pl.col("first") >= 0).group_by("first", maintain_order=True).head(SHOWN_A_REASON)
    for row in kept.iter_rows(named=True):
        counted.kept_shown[group, row["tier"], row["ar"]].append(_shown(row, curation))
    for row in left_out.iter_rows(named=True):
        counted.skipped_shown[_REASONS[row["first"]]].append(_shown(row, curation))
    for of_bucket in counted.kept_shown.values():
        of_bucket[:] = sorted(of_bucket)[:SHOWN_A_BUCKET]
    for of_reason in counted.skipped_shown.values():
        of_reason[:] = sorted(of_reason)[:SHOWN_A_REASON]


def _shown(row: Mapping[str, Any], curation: Curation) -> Shown:
    decided = curation.shards.get(row["shard"])
    return Shown(row["sha256"], row["id"], row["shard"], row["index"], _twin(decided, row["index"]) if decided else "")


def _twin(decided: ShardDecisions, index: int) -> str:
    return decided.duplicate_of.get(str(index)) or decided.spread_from.get(str(index), "")
