"""part.json: what commits a part, and what a release may know of it without opening a shard."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field, ValidationError, model_validator

from smalti import objects
from smalti.accounting import Accounted
from smalti.config import Encoding, Engine, Strict
from smalti.errors import CorruptError, MissingObject
from smalti.lake import Lake
from smalti.shards.replacements import Log, Order, Origin, read_log

_PART = re.compile(r"\d{5,}-[0-9a-f]{12}")

ABANDONED = b'{"abandoned":true}\n'
"""part.json of a folder whose writer never came back: create-only, so that it can no longer be committed, and may be emptied."""


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
    """Everything but `provenance` is the same for the same rows, settings and encoders.

    A part that maintenance wrote says whose samples it holds (`replaces`) and which shard runs they come from (`origins`); its
    batch, delivery and sequence are those of the newest of them, and its accounting counts from what the shard runs wrote.
    """

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
    extra_captions: dict[str, int] = Field({}, description="extra caption column -> samples that have words in it")
    replaces: tuple[str, ...] = Field((), description="parts of the source whose samples this one holds")
    origins: tuple[Origin, ...] = Field((), description="what shard runs wrote of them; one a batch")
    provenance: dict[str, Any] = Field({}, description="how this came about")

    @model_validator(mode="after")
    def _holds_what_was_sharded(self) -> Part:
        if bool(self.replaces) != bool(self.origins):
            raise ValueError("`replaces` and `origins` go together")
        if len({origin.batch for origin in self.origins}) != len(self.origins):
            raise ValueError("`origins` names a batch twice")
        written = sum(origin.accounting.rows_out for origin in self.origins)
        if self.origins and (self.accounting.rows_in, self.accounting.rows_out) != (written, self.samples):
            raise ValueError(f"the accounting does not begin with the {written} samples that were sharded")
        return self

    @property
    def sharded(self) -> tuple[Origin, ...]:
        """The shard runs whose samples are here: this part's own, or those of the parts that it replaces."""
        own = {name: getattr(self, name) for name in ("name", "batch", "sequence", "delivery", "digest", "accounting")}
        return self.origins or (Origin(**own),)

    @property
    def order(self) -> Order:
        """Of its newest samples; which of two samples is newer is decided row by row, see `batch_orders`."""
        return max(origin.order for origin in self.sharded)

    def encode(self) -> bytes:
        """The object that is stored."""
        return json.dumps(self._dump(), sort_keys=True, indent=1, ensure_ascii=False).encode() + b"\n"

    def content(self) -> dict[str, Any]:
        """What two runs over the same rows agree on."""
        return {name: value for name, value in self._dump().items() if name != "provenance"}

    def _dump(self) -> dict[str, Any]:
        """Without the fields of maintenance and of extra captions where they are empty: such a part is spelled as it always was."""
        empty = {name for name in ("replaces", "origins", "extra_captions") if not getattr(self, name)}
        return self.model_dump(mode="json", exclude=empty)


def read_part(lake: Lake, source: str, name: str) -> Part:
    """A part that has its part.json, in sight or not.

    Raises:
        MissingObject: it is not committed, or was collected.
        CorruptError: part.json is not one.
    """
    uri = lake.part_commit(source, name)
    data = objects.read_bytes(uri)
    if data == ABANDONED:
        raise MissingObject("the part was never committed, and was collected as garbage", uri, "Shard the batch again")
    try:
        return Part.model_validate_json(data)
    except ValidationError as error:
        raise CorruptError(f"this is not a part.json ({error.errors()[0]['msg']})", uri, "Restore it") from error


def committed_parts(lake: Lake, source: str, *, hidden: bool = False, log: Log | None = None) -> list[Part]:
    """Every committed part of a source, the oldest delivery first; what a killed writer left is not among them.

    A later one supersedes the samples of an earlier one. It is the delivery that decides, not when it was sharded: a batch whose
    shard stage is repeated after that of a newer batch brings no old picture back.

    Args:
        hidden: also those that maintenance has replaced, or found to be superseded; a new release does not use them.
        log: `read_log` of the source, if the caller has it.
    """
    log = log or read_log(lake, source)
    parts = []
    for name in part_names(lake, source):
        if name in log.hidden and not hidden:
            continue
        try:
            part = read_part(lake, source, name)
        except MissingObject:
            continue
        if not part.replaces or name in log.made:
            parts.append(part)
    return sorted(parts, key=lambda part: part.order)


def not_collected(lake: Lake, parts: Mapping[str, Part], error: MissingObject) -> dict[str, Part]:
    """What is left of parts where an object of one was missing: maintenance takes part.json away first. Raises `error` if all are there."""
    left = {name: part for name, part in parts.items() if objects.exists(lake.part_commit(part.source, part.name))}
    if len(left) == len(parts):
        raise error
    return left


def is_abandoned(lake: Lake, source: str, name: str) -> bool:
    """Whether a part was given up before it was committed, and never can be."""
    found = objects.read_versioned(lake.part_commit(source, name))
    return found is not None and found[0] == ABANDONED


def part_names(lake: Lake, source: str) -> list[str]:
    """Names of the folders that are, were or may become a part."""
    return [name for name in objects.list_names(lake.parts(source)) if _PART.fullmatch(name)]


def batch_orders(parts: Sequence[Part]) -> list[dict[str, int]]:
    """For each part: batch of a row of its samples.parquet -> place of the row among all that was delivered.

    Of two samples of one id the one with the larger place is the newer. A part that was merged of several batches holds rows of
    several places; what a shard run wrote in between (a batch that was sharded again) goes in between.
    """
    orders = sorted({(part.source, *origin.order) for part in parts for origin in part.sharded})
    places = {order: place for place, order in enumerate(orders)}
    return [{origin.batch: places[(part.source, *origin.order)] for origin in part.sharded} for part in parts]


def read_samples_bytes(lake: Lake, part: Part) -> bytes:
    """samples.parquet of a part, as recorded. Raises CorruptError if it has other bytes."""
    uri = lake.samples(part.source, part.name)
    data = objects.read_bytes(uri)
    if hashlib.sha256(data).hexdigest() != part.samples_sha256:
        raise CorruptError("the file is not the one that part.json records", uri, "Restore it, or shard again")
    return data
