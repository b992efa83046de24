"""Which sample goes into which shard, decided from metadata alone.

A plan depends on the rows and the settings and on nothing else: not on the order in which rows arrive, their address in
the table, a URI, a time or chance. So two runs over the same rows write the same shards, whatever happened in between.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from smalti.config import Encoding, Name, Strict
from smalti.errors import InputError
from smalti.images.buckets import TIERS, Bucket, buckets_of

ROW = "_rowid"
"""Where a row is in the pinned version of the table: what a task takes it by. Not part of a plan's digest."""

COLUMNS = pa.schema([
    ("id", pa.string()),
    ("sha256", pa.string()),
    ("width", pa.int32()),
    ("height", pa.int32()),
    ("tier", pa.int32()),
    ("ar", pa.string()),
    ("caption", pa.string()),
    ("caption_ok", pa.bool_()),
    ("label", pa.string()),
    ("phash", pa.uint64()),
    ("colour", pa.binary()),
    ("flat", pa.bool_()),
    ("unstable", pa.int16()),
    ("owner", pa.string()),
    ("url", pa.string()),
    ("url_host", pa.string()),
    ("licence", pa.string()),
])
"""What a plan knows of a row: everything of it that ends up in the part; the words of extra captions besides."""


class PlanSettings(Strict):
    """What a part depends on besides its rows. `extra_captions`: MDS columns with further words, by name."""

    layout: int = 1
    source: Name
    batch: str
    captioner: Name
    classifier: Name
    encoding: Encoding
    extra_captions: tuple[str, ...] = ()

    def dump(self) -> dict[str, Any]:
        """As it is digested. A part without extra captions has the digest that it had when there were none."""
        return self.model_dump(mode="json", exclude=set() if self.extra_captions else {"extra_captions"})


def plan_schema(extra: Sequence[str] = ()) -> pa.Schema:
    """COLUMNS, and the words in these extra caption columns; "" where a row has none."""
    return pa.schema([*COLUMNS, *((name, pa.string()) for name in extra)])


@dataclass(frozen=True)
class PlannedShard:
    """Rows start..stop of the plan, which share a bucket; `number` counts within the bucket."""

    bucket: Bucket
    number: int
    start: int
    stop: int

    @property
    def basename(self) -> str:
        return f"shard.{self.number:05d}.mds"


@dataclass(frozen=True)
class PartPlan:
    """Attributes:
    rows: plan_schema(extra) and ROW, sorted by (tier, ar, id).
    extra: caption columns beside `caption`, by name.
    shards: in the order of their rows; every row is in one.
    digest: sha256 of settings, rows and boundaries, hex.
    """

    rows: pa.Table
    shards: tuple[PlannedShard, ...]
    digest: str
    extra: tuple[str, ...] = ()


def plan_part(rows: pa.Table, settings: PlanSettings) -> PartPlan:
    """Assign every row to a shard of its bucket.

    Args:
        rows: plan_schema(settings.extra_captions) and ROW, in any order.
    Raises:
        InputError: an id stands twice.
        ValueError: a row without a bucket.
    """
    extra = settings.extra_captions
    rows = rows.select([*plan_schema(extra).names, ROW])
    rows = rows.sort_by([("tier", "ascending"), ("ar", "ascending"), ("id", "ascending")])
    _refuse_twins(rows["id"], settings.source)
    known = {(bucket.tier, bucket.ar): bucket for tier in TIERS for bucket in buckets_of(tier)}
    sizes = estimated_bytes(rows, settings.encoding, extra)
    shards: list[PlannedShard] = []
    for (tier, ar), start, stop in _runs(rows):
        if (tier, ar) not in known:
            raise ValueError(f"{rows['id'][start]}: there is no bucket {tier}/{ar}")
        ends = start + cut(sizes[start:stop], settings.encoding.shard_bytes)
        starts = [start, *ends[:-1]]
        shards += [
            PlannedShard(known[tier, ar], number, int(a), int(b))
            for number, (a, b) in enumerate(zip(starts, ends, strict=True))
        ]
    return PartPlan(rows, tuple(shards), _digest(rows, shards, settings), extra)


_BYTES_A_PIXEL = ((50, 0.10), (75, 0.15), (85, 0.21), (92, 0.28), (98, 0.50), (100, 0.80))
"""JPEG quality -> bytes a pixel, 4:2:0: means over 14 photographs at tier 512 (0.15, 0.21, 0.28, 0.50 for 75, 85, 92, 98);
at tier 2048 soft photographs take half of that. 4:4:4 takes 1.2 times as much; PNG 1.2 bytes a pixel."""


def estimated_bytes(rows: pa.Table, encoding: Encoding, extra: Sequence[str] = ()) -> npt.NDArray[np.int64]:
    """Bytes that each sample will take in a shard, as far as metadata can tell; shape (n,).

    Only the boundaries of shards depend on it: a shard of unusual pictures is smaller or larger than was aimed at.
    """
    if encoding.format == "png":
        rate = 1.2
    else:
        qualities, rates = zip(*_BYTES_A_PIXEL, strict=True)
        rate = float(np.interp(encoding.quality, qualities, rates)) * (1.2 if encoding.chroma == "444" else 1.0)
    area = {(b.tier, b.ar): b.width * b.height for tier in TIERS for b in buckets_of(tier)}
    pixels = np.zeros(rows.num_rows, np.int64)
    for key, start, stop in _runs(rows):
        pixels[start:stop] = area.get(key, 0)
    text = pc.add(pc.binary_length(rows["caption"]), pc.binary_length(rows["id"])).to_numpy()
    for name in extra:
        text = text + pc.binary_length(rows[name]).to_numpy() + 4  # the column's length
    other = 64  # four numbers, the lengths, an offset
    return np.asarray(np.rint(pixels * rate) + text + other, np.int64)


def cut(sizes: npt.NDArray[np.int64], target: int) -> npt.NDArray[np.int64]:
    """Where each shard ends: as many samples as fit into `target` bytes, and at least one."""
    total = np.cumsum(sizes)
    ends, begin, used = [], 0, 0
    while begin < len(sizes):
        end = max(begin + 1, int(np.searchsorted(total, used + target, side="right")))
        ends.append(end)
        begin, used = end, int(total[end - 1])
    return np.array(ends, np.int64)


def _runs(rows: pa.Table) -> Iterator[tuple[tuple[int, str], int, int]]:
    """(tier, ar), start and stop of each run of rows in one bucket; the rows are sorted."""
    if rows.num_rows == 0:
        return
    tiers = rows["tier"].to_numpy()
    encoded = pc.dictionary_encode(rows["ar"].combine_chunks())
    ars = encoded.indices.to_numpy()
    changes = np.flatnonzero((np.diff(tiers) != 0) | (np.diff(ars) != 0)) + 1
    bounds = [0, *changes.tolist(), rows.num_rows]
    for start, stop in pairwise(bounds):
        yield (int(tiers[start]), encoded.dictionary[int(ars[start])].as_py()), start, stop


def _refuse_twins(ids: pa.ChunkedArray, source: str) -> None:
    counts = pc.value_counts(ids)
    twins = counts.filter(pc.greater(counts.field("counts"), 1))
    if len(twins):
        first = min(twin["values"] for twin in twins.to_pylist())
        raise InputError(
            f"{len(twins)} sample ids stand more than once in the batch, among them {first!r}",
            f"source {source}",
            "Find out which ingest wrote a key twice, and ingest the batch again under another name",
        )


def _digest(rows: pa.Table, shards: list[PlannedShard], settings: PlanSettings) -> str:
    """Over columns rather than rows, so that a hundred million of them take seconds."""
    digest = hashlib.sha256(json.dumps(settings.dump(), sort_keys=True).encode())
    digest.update(np.array([(shard.start, shard.stop) for shard in shards], "<i8").tobytes())
    for field in plan_schema(settings.extra_captions):
        digest.update(f"\n{field.name}:{rows.num_rows}\n".encode())
        column = rows[field.name].cast(field.type)
        valid = column.is_valid().to_numpy()
        digest.update(valid.tobytes())
        if pa.types.is_string(field.type) or pa.types.is_binary(field.type):
            lengths = pc.fill_null(pc.binary_length(column), 0).to_numpy()
            digest.update(lengths.astype("<i4").tobytes())
            for chunk in column.chunks:
                digest.update(_packed(chunk.drop_null()))
        else:
            digest.update(pc.fill_null(column, False if pa.types.is_boolean(field.type) else 0).to_numpy().tobytes())
    return digest.hexdigest()


def _packed(values: pa.Array) -> pa.Buffer | bytes:
    """The bytes of strings or binaries without nulls, one after another."""
    if len(values) == 0 or values.buffers()[2] is None:
        return b""
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
    return values.buffers()[2][int(offsets[0]) : int(offsets[-1])]
