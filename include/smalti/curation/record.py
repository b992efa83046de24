"""The curation object: what one curate run decided, sample by sample, named after its content.

    releases/<dataset>/curations/<sha256>.json.gz

It says more than the skip files made from it: which copy was kept for a duplicate, and where a label came from.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from smalti import objects
from smalti.errors import CorruptError
from smalti.lake import Lake
from smalti.reasons import SkipReason
from smalti.release.skips import Model, canonical_json, compress, decompress, parse, sha256


class CuratedPart(Model):
    """A part that was looked at."""

    source: str
    name: str
    digest: str = Field(description="of its plan")
    samples: int = Field(ge=0)
    samples_sha256: str = Field(description="of its samples.parquet")


class ShardDecisions(Model):
    """The samples of one shard that are left out, by index. A sample may stand under several reasons."""

    samples: int = Field(gt=0, description="in the shard")
    skip: dict[SkipReason, tuple[int, ...]]
    duplicate_of: dict[str, str] = Field({}, description="index -> id of the copy that is kept")
    spread_from: dict[str, str] = Field({}, description="index -> id of the copy whose label applies to it")


class Denylist(Model):
    uri: str
    sha256: str
    ids: int = Field(ge=0)


class Curation(Model):
    """Everything follows from the parts, the dataset file and the denylists."""

    version: int = 1
    dataset: str
    parts: tuple[CuratedPart, ...]
    settings: dict[str, Any] = Field(description="what was dropped for, and how copies were ranked")
    denylists: tuple[Denylist, ...] = ()
    reasons: tuple[SkipReason, ...] = Field(description="that these settings can skip for")
    shards: dict[str, ShardDecisions] = Field(
        description="basename relative to parts/; shards that lose nothing are not here"
    )
    samples: int = Field(ge=0)
    kept: int = Field(ge=0)
    skipped: dict[SkipReason, int] = Field({}, description="each sample under its first reason")
    warnings: tuple[str, ...] = ()

    def encode(self) -> bytes:
        return canonical_json(self.model_dump(mode="json"))

    def digest(self) -> str:
        return sha256(self.encode())


def write_curation(lake: Lake, curation: Curation) -> str:
    """Store it, or find that the same was decided before. Returns its URI."""
    digest = curation.digest()
    uri = lake.curation(curation.dataset, digest)
    create_named(uri, curation.encode(), digest)
    return uri


def read_curation(uri: str) -> Curation:
    """What was decided, checked against its name.

    Raises:
        MissingObject, CorruptError
    """
    digest = uri.rpartition("/")[2].removesuffix(".json.gz")
    return parse(Curation, decompress(objects.read_bytes(uri), uri, digest), uri)


def create_named(uri: str, content: bytes, digest: str) -> bool:
    """Create an object that is named after the sha256 of its content and stored as gzip.

    gzip may differ from one zlib to the next, so an object that is there already is compared by its content.

    Returns: whether this call created it.
    Raises:
        CorruptError: what is there has other content.
    """
    if objects.create_bytes(uri, compress(content)):
        return True
    if decompress(objects.read_bytes(uri), uri, digest) != content:
        raise CorruptError("the object is not what its name promises", uri, "Remove the damaged object and run again")
    return False
