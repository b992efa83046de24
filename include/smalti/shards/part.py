"""part.json: what commits a part, and what a release may know of it without opening a shard."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from pydantic import Field, ValidationError

from smalti import objects
from smalti.accounting import Accounted
from smalti.config import Encoding, Engine, Strict
from smalti.errors import CorruptError, MissingObject
from smalti.lake import Lake

_PART = re.compile(r"\d{5,}-[0-9a-f]{12}")


class PartBucket(Strict):
    """One directory <tier>/<ar> of a part; width and height in px."""

    tier: int
    ar: str
    width: int
    height: int
    samples: int
    shards: int
    bytes: int = Field(description="of the shards")
    index_sha256: str = Field(description="of index.json")


class FailedRow(Strict):
    """A row that was planned and could not be decoded."""

    id: str
    detail: str


class Part(Strict):
    """Everything but `provenance` is the same for the same rows, settings and encoders."""

    schema_version: int = 1
    source: str
    name: str
    batch: str
    sequence: int = Field(ge=1, description="counts the parts of a source as they were written")
    delivery: int = Field(0, ge=0, description="batches that were ingested before this one was staged")
    digest: str = Field(description="of the plan: rows and settings")
    encoding: Encoding
    columns: dict[str, str] = Field(description="MDS column -> encoding")
    encoders: dict[str, str] = Field(description="versions that the bytes depend on")
    engines: tuple[Engine, ...]
    curators: tuple[str, ...] = Field((), description="what whoever made the collection did to it")
    buckets: tuple[PartBucket, ...]
    samples: int
    samples_sha256: str = Field(description="of samples.parquet")
    accounting: Accounted
    failed: tuple[FailedRow, ...] = ()
    provenance: dict[str, Any] = Field({}, description="how this came about")

    def encode(self) -> bytes:
        """The object that is stored."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, indent=1, ensure_ascii=False).encode() + b"\n"

    def content(self) -> dict[str, Any]:
        """What two runs over the same rows agree on."""
        return self.model_dump(mode="json", exclude={"provenance"})


def read_part(lake: Lake, source: str, name: str) -> Part:
    """A committed part.

    Raises:
        MissingObject: it is not committed.
        CorruptError: part.json is not one.
    """
    uri = lake.part_commit(source, name)
    try:
        return Part.model_validate_json(objects.read_bytes(uri))
    except ValidationError as error:
        raise CorruptError(f"this is not a part.json ({error.errors()[0]['msg']})", uri, "Restore it") from error


def committed_parts(lake: Lake, source: str) -> list[Part]:
    """Every committed part of a source, the oldest delivery first; what a killed writer left is not among them.

    A later one supersedes the samples of an earlier one. It is the delivery that decides, not when it was sharded: a batch whose
    shard stage is repeated after that of a newer batch brings no old picture back.
    """
    parts = []
    for name in objects.list_names(lake.parts(source)):
        if _PART.fullmatch(name):
            try:
                parts.append(read_part(lake, source, name))
            except MissingObject:
                continue
    return sorted(parts, key=lambda part: (part.delivery, part.batch, part.sequence, part.name))


def read_samples_bytes(lake: Lake, part: Part) -> bytes:
    """samples.parquet of a part, as recorded. Raises CorruptError if it has other bytes."""
    uri = lake.samples(part.source, part.name)
    data = objects.read_bytes(uri)
    if hashlib.sha256(data).hexdigest() != part.samples_sha256:
        raise CorruptError("the file is not the one that part.json records", uri, "Restore it, or shard again")
    return data
