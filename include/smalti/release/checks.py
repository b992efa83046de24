"""What verify looks at in one shard: every byte, every sample, every picture. Faults are lines for a person."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from PIL import Image

from smalti import objects
from smalti.errors import CorruptError, MissingObject
from smalti.images.encode import quality_tables, read_tables
from smalti.release.skips import sha256
from smalti.shards import mds

_MOST = 20
"""Faults of one shard that are listed."""


class Expected(NamedTuple):
    """What samples.parquet says of a sample; width and height are the original's, px, bytes the encoded picture's.

    `extra_ok`: whether it has words in each of the shard's extra caption columns.
    """

    id: str
    width: int
    height: int
    bytes: int
    caption_ok: bool
    label: str | None
    captioner: str
    classifier: str
    licence: str | None
    extra_ok: tuple[bool, ...] = ()


@dataclass(frozen=True)
class ShardCheck:
    """One shard, and what must be true of it.

    Attributes:
        basename: how faults call it.
        entry: from the stream's index.
        width, height: of the bucket, px.
        quality: of the JPEGs; None for PNG.
        rows: in the order of the shard; None: samples.parquet does not know this shard.
        extra: caption columns beside `caption`.
    """

    uri: str
    basename: str
    entry: dict[str, Any]
    source: str
    width: int
    height: int
    quality: int | None
    rows: tuple[Expected, ...] | None
    extra: tuple[str, ...] = ()


def check_shard(check: ShardCheck) -> list[str]:
    """Faults of a shard, one line each; empty: none."""
    faults = []
    for fault in _faults(check):
        faults.append(f"{check.basename}: {fault}")
        if len(faults) == _MOST:
            faults.append(f"{check.basename}: and perhaps more")
            break
    return faults


def _faults(check: ShardCheck) -> Iterator[str]:
    try:
        data = objects.read_bytes(check.uri)
        recorded = check.entry["raw_data"]
        if sha256(data) != recorded["hashes"]["sha256"]:
            yield f"its {len(data)} bytes have the sha256 {sha256(data)}, the index says {recorded['hashes']['sha256']}"
            return
        columns, samples = mds.read_shard(data, check.basename)
    except (MissingObject, CorruptError) as error:
        yield error.what
        return
    if mds.shard_entry(recorded["basename"], data) != check.entry:
        yield "the index says something else of it than the shard itself"
    if check.rows is None:
        yield "samples.parquet of its part does not name it"
        return
    if len(samples) != len(check.rows):
        yield f"it holds {len(samples)} samples, samples.parquet says {len(check.rows)}"
        return
    for number, (raw, row) in enumerate(zip(samples, check.rows, strict=True)):
        try:
            sample = mds.decode_sample(columns, raw, check.basename)
        except CorruptError as error:
            yield f"sample {number} ({row.id}): {error.what}"
            continue
        for fault in _sample_faults(check, sample, row):
            yield f"sample {number} ({row.id}): {fault}"


def _sample_faults(check: ShardCheck, sample: dict[str, Any], row: Expected) -> Iterator[str]:
    told = {
        "id": row.id,
        "source": check.source,
        "width": check.width,
        "height": check.height,
        "original_width": row.width,
        "original_height": row.height,
    }
    for name, value in told.items():
        if sample.get(name) != value:
            yield f"{name} is {sample.get(name)!r}, not {value!r}"
    if bool(sample.get("caption")) != row.caption_ok:
        yield "it has no caption" if row.caption_ok else "it has a caption though captioning failed"
    for name, there in zip(check.extra, row.extra_ok, strict=True):
        if name not in sample or bool(sample[name]) != there:
            yield f"samples.parquet says that it has {'' if there else 'no '}words in {name}"
    picture = sample["image"]
    if len(picture) != row.bytes:
        yield f"its picture has {len(picture)} bytes, samples.parquet says {row.bytes}"
    try:
        with Image.open(io.BytesIO(picture), formats=("JPEG" if check.quality else "PNG",)) as image:
            if (image.size, image.mode) != ((check.width, check.height), "RGB"):
                yield f"its picture is {image.width}x{image.height} {image.mode}, the bucket {check.width}x{check.height} RGB"
        if check.quality and read_tables(picture) != quality_tables(check.quality):
            yield f"its picture was not encoded at quality {check.quality}"
    except (OSError, ValueError) as error:
        yield f"its picture cannot be opened ({error})"
