"""Lakes of samples.parquet files with what a test needs in them, and requests."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from smalti.accounting import Accounted
from smalti.config import Encoding
from smalti.images.fingerprint import Fingerprint
from smalti.lake import Lake
from smalti.objects import create_bytes
from smalti.optouts.keys import Key, KeyKind, Print, key_of
from smalti.optouts.request import Action, Request, ordered, request_id
from smalti.shards.part import Part
from smalti.shards.samples import SCHEMA, encode_samples
from smalti.table.fragments import url_host

GREY = bytes([64, 144] * 25)[:49] + bytes([103]) * 25 + bytes([118]) * 25
"""A thumbnail of steep steps."""


def sha256_of(content: object) -> str:
    return hashlib.sha256(repr(content).encode()).hexdigest()


def brighter(levels: int, colour: bytes = GREY) -> bytes:
    """By so many levels, and by twice as many in chroma: only neighbours agree."""
    return bytes(each + levels * (1 + (place >= 49)) for place, each in enumerate(colour))


@dataclass(frozen=True)
class Sample:
    """A row of a part. `content` stands for the bytes."""

    key: str
    content: object
    phash: int | None = None
    colour: bytes = GREY
    flat: bool = False
    size: tuple[int, int] = (600, 600)
    owner: str | None = None
    url: str | None = None

    @property
    def sha256(self) -> str:
        return sha256_of(self.content)

    @property
    def fingerprint(self) -> Fingerprint | None:
        return None if self.phash is None else Fingerprint(self.phash, self.colour, self.flat, 0)


def put_part(lake: Lake, source: str, number: int, samples: Sequence[Sample], shard: int = 4) -> Part:
    """Commit a part of these samples: samples.parquet and part.json, no shards."""
    name = f"{number:05d}-{number:012x}"
    places = [(f"{source}/{name}/512/1.000/shard.{at // shard:05d}.mds", at % shard) for at in range(len(samples))]
    rows = [
        {
            "id": f"{source}/{each.key}", "source": source, "batch": f"b{number}", "sha256": each.sha256, "phash": each.phash,
            "colour": None if each.phash is None else each.colour, "flat": None if each.phash is None else each.flat,
            "width": each.size[0], "height": each.size[1], "tier": 512, "ar": "1.000", "shard": place[0], "index": place[1],
            "caption_ok": True, "captioner": "rules", "classifier": "rules-minilm", "owner": each.owner, "url": each.url,
            "url_host": url_host(each.url), "bytes": 1,
        }
        for each, place in zip(samples, places, strict=True)
    ]  # fmt: skip
    data = encode_samples(pa.Table.from_pylist(rows, SCHEMA))
    create_bytes(lake.samples(source, name), data)
    part = Part(
        source=source, name=name, batch=f"b{number}", sequence=number, digest="0" * 64, encoding=Encoding(), columns={}, encoders={},
        engines=(), buckets=(), samples=len(samples), samples_sha256=hashlib.sha256(data).hexdigest(),
        accounting=Accounted(stage="shard", rows_in=len(samples), rows_out=len(samples)),
    )  # fmt: skip
    create_bytes(lake.part_commit(source, name), part.encode())
    return part


def image_key(sample: Sample, decoded: bool = True) -> Key:
    """A picture handed in that has the bytes and the fingerprint of a sample."""
    print_ = None
    if decoded and sample.phash is not None:
        width, height = sample.size
        print_ = Print(phash=sample.phash, colour=sample.colour.hex(), flat=sample.flat, width=width, height=height)
    return Key(kind=KeyKind.IMAGE, value=sample.sha256, fingerprint=print_)


def request(*keys: Key | tuple[str, str], name: str = "r") -> Request:
    """Of keys, or of kinds and values."""
    found = ordered(key if isinstance(key, Key) else key_of(*key) for key in keys)
    return Request(
        id=request_id(Action.EXCLUDE, name, found, None, name, None),
        action=Action.EXCLUDE,
        reference=name,
        submission=name,
        submitted=datetime(2026, 1, 1, tzinfo=UTC),
        keys=tuple(found),
    )


def named(rows: pa.Table, *columns: str) -> set[Any]:
    """Values of a column of MATCHED, or of several together."""
    values: Iterable[Any] = zip(*(rows[name].to_pylist() for name in columns), strict=True)
    return {each[0] for each in values} if len(columns) == 1 else set(values)
