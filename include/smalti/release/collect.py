"""What a release is made of, put together from its parts and what curate decided; nothing is written here."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from smalti import objects
from smalti.curation.record import Curation, check_rows, explain_at, read_rows
from smalti.errors import CorruptError
from smalti.lake import Lake, stream_index
from smalti.profiles import caption_column
from smalti.reasons import DEDUP_REASONS, SkipReason, set_name
from smalti.release.manifest import Count, PartEntry, SourceEntry, StreamEntry, encode_stream_index, rebase
from smalti.release.skips import SkipFile, sha256
from smalti.shards.part import Part, read_part, read_samples_bytes
from smalti.shards.samples import decode_samples, extra_columns

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
    """Counts over samples, not over streams or shards: what the manifest's accounting states.

    Attributes:
        words: caption column -> samples that are served and have words in it.
        servable: (source, part) -> samples that are served, or may be if a declared set of reasons is lifted.
    """

    samples: Counter[str]
    kept: Counter[str]
    skipped: dict[str, Counter[SkipReason]]
    licences: Counter[str]
    labels: Counter[str]
    pixels: int
    kept_shown: dict[tuple[str, int, str], list[Shown]]
    skipped_shown: dict[SkipReason, list[Shown]]
    words: Counter[str] = field(default_factory=Counter)
    servable: Counter[tuple[str, str]] = field(default_factory=Counter)


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
    return [_stream(lake, key, shapes[key], entries[key], curation) for key in sorted(entries)]


def _stream(
    lake: Lake, key: tuple[str, int, str], shape: tuple[int, int], entries: list[dict[str, Any]], curation: Curation
) -> Stream:
    group, tier, ar = key
    index = encode_stream_index(entries)
    samples = {entry["raw_data"]["basename"]: int(entry["samples"]) for entry in entries}
    rows = _rows_of_stream(lake, curation, tier, ar, samples)
    skips = _skip_file(rows, curation, samples)
    skipped = skips.counts()
    total = sum(samples.values())
    entry = StreamEntry(
        group=group,
        tier=tier,
        ar=ar,
        width=shape[0],
        height=shape[1],
        samples=total,
        kept=total - sum(skipped.values()),
        skipped=skipped,
        kept_without={
            set_name(each): total - int(_left_out(rows, curation, place).sum())
            for place, each in enumerate(curation.reason_sets)
        },
        bytes=sum(entry["raw_data"]["bytes"] for entry in entries),
        index=stream_index(group, tier, ar),
        index_sha256=sha256(index),
        skip_file=skips.digest() if skips.shards else None,
    )
    return Stream(entry, index, skips)


def _rows_of_stream(lake: Lake, curation: Curation, tier: int, ar: str, samples: Mapping[str, int]) -> Any:
    """What a stream leaves out: polars, shard, index, reasons and decided.

    Raises:
        CorruptError: a sample is outside its shard.
    """
    import polars as pl

    columns = ["tier", "ar", "shard", "index", "reasons", "decided"]
    table = read_rows(lake, curation, columns, filters=[("tier", "==", tier), ("ar", "==", ar)])
    frame = pl.from_arrow(table).select(columns[2:])
    sizes = pl.DataFrame(
        {"shard": list(samples), "samples": list(samples.values())}, schema_overrides={"shard": pl.String}
    )
    frame = frame.join(sizes, on="shard", maintain_order="left")
    wrong = frame.filter((pl.col("index") < 0) | (pl.col("index") >= pl.col("samples")))
    if wrong.height:
        raise CorruptError(
            f"curation saw sample {wrong['index'][0]} in {wrong['shard'][0]}, which has {wrong['samples'][0]}",
            curation.dataset,
            "Curate again",
        )
    return frame


def _skip_file(rows: Any, curation: Curation, samples: Mapping[str, int]) -> SkipFile:
    import polars as pl

    skip: dict[str, dict[SkipReason, list[int]]] = defaultdict(dict)
    decided: dict[str, dict[str, list[int]]] = defaultdict(dict)
    bits: list[tuple[Any, str, int, Any]] = [
        *((skip, "reasons", bit, reason) for bit, reason in enumerate(curation.reasons)),
        *((decided, "decided", bit, set_name(each)) for bit, each in enumerate(curation.reason_sets)),
    ]
    for into, column, bit, key in bits:
        of_bit = rows.filter(pl.col(column) & (1 << bit) > 0)
        for shard, indices in of_bit.group_by("shard", maintain_order=True).agg("index").iter_rows():
            into[shard][key] = indices
    shards = {name: (samples[name], skip.get(name, {})) for name in samples if name in skip or name in decided}
    return SkipFile.of(shards, decided)


def _left_out(rows: Any, curation: Curation, place: int) -> npt.NDArray[np.bool_]:
    """Of these rows those that are not served if a set is lifted."""
    gone = {*curation.reason_sets[place], *DEDUP_REASONS}
    others = sum(1 << bit for bit, reason in enumerate(curation.reasons) if reason not in gone)
    reasons, decided = rows["reasons"].to_numpy(), rows["decided"].to_numpy()
    return np.asarray((reasons & np.uint32(others) > 0) | (decided >> np.uint32(place) & np.uint32(1) > 0))


def tally(lake: Lake, curation: Curation, parts: Sequence[Part], groups: Mapping[str, str]) -> Tally:
    """Count every sample of every part once, part by part."""
    counted = Tally(
        Counter(), Counter(), defaultdict(Counter), Counter(), Counter(), 0, defaultdict(list), defaultdict(list)
    )
    check_rows(lake, curation)
    left_out = _left_out_of_parts(lake, curation)
    liftable = {reason for each in curation.reason_sets for reason in (*each, *DEDUP_REASONS)}
    for place, part in enumerate(parts):
        extra = extra_columns(part.columns)
        table = decode_samples(read_samples_bytes(lake, part), lake.samples(part.source, part.name), extra)
        first = _first_reasons(table, left_out, place, curation)
        kept = first < 0
        counted.samples[part.source] += table.num_rows
        counted.kept[part.source] += int(kept.sum())
        for reason, count in zip(*np.unique(first[~kept], return_counts=True), strict=True):
            counted.skipped[part.source][_REASONS[reason]] += int(count)
        may = [-1, *(_REASONS.index(reason) for reason in liftable)]
        counted.servable[part.source, part.name] = int(np.isin(first, may).sum())
        served = table.filter(kept)
        for column in ("caption", *extra):
            counted.words[column] += int(pc.sum(served[f"{column}_ok"]).as_py() or 0)
        _count(counted.licences, served["licence"])
        _count(counted.labels, table["label"])
        counted.pixels += int(
            pc.sum(pc.multiply(served["width"].cast("int64"), served["height"].cast("int64"))).as_py() or 0
        )
        _choose(counted, table, first, groups[part.source])
    _name_twins(lake, curation, counted)
    return counted


def _main_engines(part: Part, role: str) -> list[str]:
    """Who gave a part's captions or labels; not who gave its extra captions."""
    return [
        each.name for each in part.engines if each.role == role and caption_column(each.name) not in part.extra_captions
    ]


def source_entries(parts: Sequence[Part], counted: Tally, groups: Mapping[str, str]) -> tuple[SourceEntry, ...]:
    """What each source gave."""
    entries = []
    for source in sorted(groups):
        own = [part for part in parts if part.source == source]
        names = {
            role: tuple(sorted({name for part in own for name in _main_engines(part, role)}))
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


def _left_out_of_parts(lake: Lake, curation: Curation) -> Any:
    """Where what is left out with nothing lifted lies, and its first reason: 14 bytes a sample, and shards by number."""
    import polars as pl

    table = read_rows(lake, curation, ["part", "shard", "index", "reasons"])
    frame = pl.from_arrow(table).with_columns(pl.col("shard").cast(pl.Categorical))
    bits = frame["reasons"].to_numpy()
    first = np.full(len(bits), -1, np.int8)
    for bit, reason in reversed(list(enumerate(curation.reasons))):
        first[bits >> np.uint32(bit) & np.uint32(1) > 0] = _REASONS.index(reason)
    return frame.with_columns(first=pl.Series(first)).drop("reasons").filter(pl.col("first") >= 0)


def _first_reasons(table: Any, left_out: Any, place: int, curation: Curation) -> npt.NDArray[np.int64]:
    """For each row of a part the place of its first reason in SkipReason, or -1.

    Raises:
        CorruptError: a sample that was left out is not there.
    """
    import polars as pl

    first = np.full(table.num_rows, -1, np.int64)
    of_part = left_out.filter(pl.col("part") == place).with_columns(pl.col("shard").cast(pl.String))
    starts = pl.DataFrame(
        list(shard_starts(table)), schema={"shard": pl.String, "start": pl.Int64, "count": pl.Int64}, orient="row"
    )
    of_part = of_part.join(starts, on="shard", how="left")
    wrong = of_part.filter(pl.col("count").is_null() | (pl.col("index") >= pl.col("count")))
    if wrong.height:
        raise CorruptError(
            f"curation saw sample {wrong['index'][0]} in {wrong['shard'][0]}, samples.parquet does not have it",
            curation.dataset,
            "Curate again",
        )
    first[(of_part["start"] + of_part["index"]).to_numpy()] = of_part["first"].to_numpy()
    return first


def _count(into: Counter[str], column: Any) -> None:
    for each in pc.value_counts(pc.fill_null(column, "")).to_pylist():
        into[each["values"]] += each["counts"]


def _choose(counted: Tally, table: Any, first: npt.NDArray[np.int64], group: str) -> None:
    """Remember a bounded number of samples to show: those of the smallest sha256, which is as good as chance. None that is opted out."""
    import polars as pl

    frame = pl.from_arrow(table.select(["sha256", "id", "shard", "index", "tier", "ar"]))
    frame = frame.with_columns(first=pl.Series(first)).sort("sha256", "id")
    kept = frame.filter(pl.col("first") < 0).group_by("tier", "ar", maintain_order=True).head(SHOWN_A_BUCKET)
    may_be_shown = (pl.col("first") >= 0) & (pl.col("first") != _REASONS.index(SkipReason.OPTOUT))
    left_out = frame.filter(may_be_shown).group_by("first", maintain_order=True).head(SHOWN_A_REASON)
    for row in kept.iter_rows(named=True):
        counted.kept_shown[group, row["tier"], row["ar"]].append(_shown(row))
    for row in left_out.iter_rows(named=True):
        counted.skipped_shown[_REASONS[row["first"]]].append(_shown(row))
    for of_bucket in counted.kept_shown.values():
        of_bucket[:] = sorted(of_bucket)[:SHOWN_A_BUCKET]
    for of_reason in counted.skipped_shown.values():
        of_reason[:] = sorted(of_reason)[:SHOWN_A_REASON]


def _shown(row: Mapping[str, Any]) -> Shown:
    return Shown(row["sha256"], row["id"], row["shard"], row["index"])


def _name_twins(lake: Lake, curation: Curation, counted: Tally) -> None:
    """Say of which sample those that are shown are copies. Copies of what is opted out are opted out, and not shown either."""
    places = [(each.shard, each.index) for of_reason in counted.skipped_shown.values() for each in of_reason]
    said = explain_at(lake, curation, places)
    for of_reason in counted.skipped_shown.values():
        of_reason[:] = [
            replace(each, twin=why.copy_of or why.spread_from or "")
            if (why := said.get((each.shard, each.index)))
            else each
            for each in of_reason
        ]
