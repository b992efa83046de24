"""Write one shard: rows of the table in, one MDS object out, and a record of it. Every shard is retried by itself."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from pydantic import Field

from smalti import objects
from smalti.config import Encoding, Strict
from smalti.errors import CorruptError
from smalti.images.buckets import Bucket
from smalti.images.decode import DecodeError, decode
from smalti.images.encode import encode
from smalti.images.resize import fit_to
from smalti.lake import Lake
from smalti.shards import mds
from smalti.table.store import lance_errors, open_table

WRITER = 2
"""Raise it when the same row would give other bytes: a part that was begun before is then begun anew."""

_READ_AT_ONCE = 16
"""Originals in memory at a time; the encoded pictures of one shard are kept besides."""


class TaskRow(NamedTuple):
    """One planned sample: `row` is its id in the pinned version, width and height are the original's, upright, px.

    `extra`: its words in each extra caption column of the task.
    """

    id: str
    row: int
    sha256: str
    width: int
    height: int
    caption: str
    extra: tuple[str, ...] = ()


@dataclass(frozen=True)
class ShardTask:
    """All that a worker needs to write a shard, wherever it runs."""

    lake: Lake
    source: str
    part: str
    version: int
    bucket: Bucket
    number: int
    encoding: Encoding
    rows: tuple[TaskRow, ...]
    extra: tuple[str, ...] = ()

    @cached_property
    def uri(self) -> str:
        return self.lake.shard(self.source, self.part, self.bucket.tier, self.bucket.ar, self.number)

    @property
    def basename(self) -> str:
        return self.uri.rpartition("/")[2]

    @cached_property
    def progress(self) -> str:
        return self.lake.shard_progress(self.source, self.part, self.bucket.tier, self.bucket.ar, self.number)


class Failure(Strict):
    """A planned row that could not be decoded; `position` counts in the task's rows."""

    position: int
    detail: str


class ShardFacts(Strict):
    """What the writer of a shard recorded: the rest of the part is made from these, without reading the shard again."""

    entry: dict[str, Any] | None = Field(description="for index.json; null if no row could be decoded")
    bytes: tuple[int, ...] = Field(description="of each encoded picture, in the order of the shard")
    failed: tuple[Failure, ...] = ()


def mds_columns(encoding: Encoding, extra: Sequence[str] = ()) -> dict[str, str]:
    """MDS column -> encoding. `extra`: caption columns beside `caption`."""
    return {
        "image": encoding.format,
        "caption": "str",
        "id": "str",
        "source": "str",
        "width": "int",
        "height": "int",
        "original_width": "int",
        "original_height": "int",
        **dict.fromkeys(extra, "str"),
    }


def encoders() -> dict[str, str]:
    """What the bytes of a part depend on besides its rows and settings."""
    import PIL
    import pyarrow
    from PIL import features

    return {
        "jpeg": str(features.version("libjpeg_turbo") or features.version("jpg")),
        "pillow": PIL.__version__,
        "pyarrow": pyarrow.__version__,
        "smalti": str(WRITER),
        "zlib": str(features.version("zlib")),
    }


def write_shard(task: ShardTask) -> ShardFacts:
    """Write the shard, then its record; what has its record is not made again.

    Raises:
        CorruptError: the table holds other bytes than were ingested.
        ConflictError: the shard is there with other content.
    """
    found = objects.read_versioned(task.progress)
    if found is not None:
        return ShardFacts.model_validate_json(found[0])
    samples: list[mds.Sample] = []
    sizes: list[int] = []
    failed: list[Failure] = []
    for position, (row, original) in enumerate(zip(task.rows, _originals(task), strict=True)):
        try:
            picture = _picture(task, row, original)
        except DecodeError as error:
            failed.append(Failure(position=position, detail=str(error)))
            continue
        samples.append(_sample(task, row, picture))
        sizes.append(len(picture))
    entry = None
    if samples:
        data = mds.encode_shard(mds_columns(task.encoding, task.extra), samples, size_limit=task.encoding.shard_bytes)
        entry = mds.shard_entry(task.basename, data)
        objects.create_same(task.uri, data)
    facts = ShardFacts(entry=entry, bytes=tuple(sizes), failed=tuple(failed))
    objects.create_same(task.progress, json.dumps(facts.model_dump(mode="json"), sort_keys=True).encode())
    return facts


def _originals(task: ShardTask) -> Iterator[bytes]:
    """The source's bytes of each row, a few at a time."""
    uri = task.lake.table(task.source)
    table = open_table(uri, task.version)
    for start in range(0, len(task.rows), _READ_AT_ONCE):
        rows = task.rows[start : start + _READ_AT_ONCE]
        with lance_errors(uri):
            blobs = table.read_blobs("image", ids=[row.row for row in rows], preserve_order=True)
        for row, (_, data) in zip(rows, blobs, strict=True):
            if data is None or hashlib.sha256(data).hexdigest() != row.sha256:
                raise CorruptError(
                    f"the image of {row.id} is not the one that was ingested",
                    uri,
                    "Restore the table from an earlier version, or ingest the source again",
                )
            yield data


def _picture(task: ShardTask, row: TaskRow, original: bytes) -> bytes:
    """Decoded, cut to the bucket's shape and encoded."""
    image = decode(original, max_pixels=row.width * row.height)  # ingest has applied the source's limit
    if image.size != (row.width, row.height):
        raise CorruptError(
            f"{row.id} is {image.width}x{image.height}, and the table says {row.width}x{row.height}",
            task.lake.table(task.source),
            "Ingest the source again: its pictures are decoded otherwise than they were",
        )
    encoding = task.encoding
    return encode(fit_to(image, task.bucket, encoding.fit), encoding.format, encoding.quality, encoding.chroma)


def _sample(task: ShardTask, row: TaskRow, picture: bytes) -> mds.Sample:
    return {
        "image": picture,
        "caption": row.caption,
        "id": row.id,
        "source": task.source,
        "width": task.bucket.width,
        "height": task.bucket.height,
        "original_width": row.width,
        "original_height": row.height,
        **dict(zip(task.extra, row.extra, strict=True)),
    }
