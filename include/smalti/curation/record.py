"""What one curate run decided, named after its content.

    releases/<dataset>/curations/<digest>.json.gz     Curation: the inputs, the settings and the counts
    releases/<dataset>/curations/<digest>.parquet     one row a sample that is left out, in any reason set

It says more than the skip files made from it: which copy was kept for a duplicate, where a label came from, which cluster
a sample is in. The digest is that of the header, which holds a digest of the rows' values; parquet's own bytes may differ
from one pyarrow to the next.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field

from smalti import objects
from smalti.errors import CorruptError, InputError
from smalti.lake import Lake
from smalti.reasons import SkipReason, set_name
from smalti.release.skips import Model, canonical_json, compress, decompress, parse, sha256

ROWS = pa.schema([
    pa.field("tier", pa.int32(), nullable=False),
    pa.field("ar", pa.large_string(), nullable=False),
    pa.field("part", pa.int32(), nullable=False),  # place in the header's parts
    pa.field("shard", pa.large_string(), nullable=False),  # relative to parts/
    pa.field("index", pa.int32(), nullable=False),  # in the shard
    pa.field("id", pa.large_string(), nullable=False),
    pa.field("reasons", pa.uint32(), nullable=False),  # bit k: the k-th of the header's reasons
    pa.field("decided", pa.uint32(), nullable=False),  # bit k: left out as a copy or in quarantine in the k-th set
    pa.field("copy_of", pa.large_string()),  # id of the copy that is kept
    pa.field("spread_from", pa.large_string()),  # id of the copy whose label or opt-out applies
    pa.field("cluster", pa.large_string()),
])
"""Sorted by tier, ar, part, shard and index: what a stream leaves out lies together."""

_ROW_GROUP = 1 << 16


class CuratedPart(Model):
    """A part that was looked at."""

    source: str
    name: str
    digest: str = Field(description="of its plan")
    samples: int = Field(ge=0)
    samples_sha256: str = Field(description="of its samples.parquet")


class TextFile(Model):
    """A denylist, or decisions of a person."""

    uri: str
    sha256: str
    lines: int = Field(ge=0, description="that say something, each once")


class Cluster(Model):
    """Look-alikes that are more than a hash is believed to tell."""

    name: str
    samples: int = Field(ge=0, description="that nothing else leaves out")
    quarantined: int = Field(ge=0)
    decided: Literal["merge", "keep"] | None = None
    examples: tuple[str, ...] = Field((), description="a few ids")


class Curation(Model):
    """Everything follows from the parts, the dataset file, the lists that it names and the opt-outs."""

    version: Literal[2] = 2
    dataset: str
    parts: tuple[CuratedPart, ...]
    settings: dict[str, Any] = Field(description="what was dropped for, and how copies were ranked")
    denylists: tuple[TextFile, ...] = ()
    decisions: tuple[TextFile, ...] = Field((), description="what people decided of clusters")
    optouts: int = Field(0, ge=0, description="position of the snapshot that was applied")
    reasons: tuple[SkipReason, ...] = Field(description="that these settings can skip for")
    reason_sets: tuple[tuple[SkipReason, ...], ...] = Field((), description="sets that a training run may lift")
    without: tuple[SkipReason, ...] = Field((), description="of an ablation: reasons that were not applied")
    base: str | None = Field(None, description="of an ablation: the version that it differs from")
    clusters: tuple[Cluster, ...] = Field((), description="above the limit, the largest first")
    rows: int = Field(ge=0, description="samples that are left out in any set")
    rows_sha256: str = Field(description="of their values, see rows_digest")
    samples: int = Field(ge=0)
    kept: int = Field(ge=0)
    skipped: dict[SkipReason, int] = Field({}, description="each sample under its first reason")
    kept_without: dict[str, int] = Field({}, description="reason set, as `nsfw+text` -> samples kept if it is lifted")
    warnings: tuple[str, ...] = ()

    def encode(self) -> bytes:
        return canonical_json(self.model_dump(mode="json"))

    def digest(self) -> str:
        return sha256(self.encode())


class Explanation(Model):
    """Why a sample is left out. A sample that stands in two parts has two."""

    id: str
    shard: str
    index: int
    reasons: tuple[SkipReason, ...] = Field(
        description="in the order of precedence; none: only other sets leave it out"
    )
    decided: tuple[str, ...] = Field((), description="reason sets that leave it out as a copy or in quarantine")
    copy_of: str | None = None
    spread_from: str | None = None
    cluster: str | None = None


def rows_digest(table: pa.Table) -> str:
    """sha256 over the values, column by column: numbers little-endian, texts as their lengths and their bytes."""
    found = hashlib.sha256()
    for name in ROWS.names:
        chunks = table[name].chunks
        if pa.types.is_large_string(table.schema.field(name).type):
            chunks = [pc.fill_null(chunk, "") for chunk in chunks]
            for chunk in chunks:
                found.update(pc.binary_length(chunk).to_numpy(zero_copy_only=False).astype("<i8").tobytes())
        for chunk in chunks:
            found.update(_values(chunk))
    return found.hexdigest()


def _values(chunk: Any) -> bytes | memoryview:
    """The bytes of an Arrow array without nulls."""
    if not pa.types.is_large_string(chunk.type):
        values = chunk.to_numpy(zero_copy_only=False)
        return bytes(values.astype(values.dtype.newbyteorder("<")).tobytes())
    if not len(chunk):
        return b""
    offsets = np.frombuffer(chunk.buffers()[1], np.int64)[chunk.offset : chunk.offset + len(chunk) + 1]
    data = chunk.buffers()[2]
    return memoryview(data)[int(offsets[0]) : int(offsets[-1])] if data else b""


def write_curation(lake: Lake, curation: Curation, rows: pa.Table) -> str:
    """Store it, the header last, or find that the same was decided before. Returns the header's URI.

    Raises:
        CorruptError: what is there under the name has other content.
    """
    digest = curation.digest()
    where = lake.curation_rows(curation.dataset, digest)
    out = io.BytesIO()
    pq.write_table(rows, out, compression="zstd", row_group_size=_ROW_GROUP)
    if not objects.create_bytes(where, out.getvalue()):
        _check(read_rows(lake, curation), curation, where)
    uri = lake.curation(curation.dataset, digest)
    create_named(uri, curation.encode(), digest)
    return uri


def read_curation(uri: str) -> Curation:
    """What was decided but for the samples, checked against its name.

    Raises:
        MissingObject, CorruptError
        InputError: an older smalti wrote it.
    """
    digest = uri.rpartition("/")[2].removesuffix(".json.gz")
    content = decompress(objects.read_bytes(uri), uri, digest)
    if re.search(rb'"version":1[,}]', content) and b'"shards":{' in content:
        raise InputError("an older smalti decided this", uri, "Curate again")
    return parse(Curation, content, uri)


def read_rows(lake: Lake, curation: Curation, columns: Sequence[str] | None = None, filters: Any = None) -> pa.Table:
    """The samples that are left out: some columns of ROWS, of the rows that pyarrow's filters let through.

    Raises:
        MissingObject, CorruptError
    """
    return _read(lake.curation_rows(curation.dataset, curation.digest()), columns, filters)


def check_rows(lake: Lake, curation: Curation) -> None:
    """Raises CorruptError unless the rows are those that the header names."""
    _check(read_rows(lake, curation), curation, lake.curation_rows(curation.dataset, curation.digest()))


def explain(curation_uri: str, sample_id: str) -> list[Explanation]:
    """Why a sample is left out of what a curation decided, without reading all of it; empty if it is served in every set.

    Raises:
        MissingObject, CorruptError, InputError: as read_curation.
    """
    curation = read_curation(curation_uri)
    where = curation_uri.removesuffix(".json.gz") + ".parquet"
    found = _read(where, None, [("id", "==", sample_id)])
    return [_explanation(row, curation) for row in found.to_pylist()]


def explain_at(lake: Lake, curation: Curation, places: Sequence[tuple[str, int]]) -> dict[tuple[str, int], Explanation]:
    """The same for a few samples by shard and index."""
    if not places:
        return {}
    shards = sorted({shard for shard, _ in places})
    rows = read_rows(lake, curation, filters=[("shard", "in", shards)]).to_pylist()
    wanted = set(places)
    return {
        (row["shard"], row["index"]): _explanation(row, curation)
        for row in rows
        if (row["shard"], row["index"]) in wanted
    }


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


def _explanation(row: dict[str, Any], curation: Curation) -> Explanation:
    return Explanation(
        id=row["id"],
        shard=row["shard"],
        index=row["index"],
        reasons=tuple(reason for bit, reason in enumerate(curation.reasons) if row["reasons"] >> bit & 1),
        decided=tuple(set_name(each) for bit, each in enumerate(curation.reason_sets) if row["decided"] >> bit & 1),
        copy_of=row["copy_of"],
        spread_from=row["spread_from"],
        cluster=row["cluster"],
    )


def _read(where: str, columns: Sequence[str] | None, filters: Any) -> pa.Table:
    names = list(columns or ROWS.names)
    with objects.open_binary(where) as file:
        try:
            table = pq.read_table(file, columns=names, filters=filters)
            return table.select(names).cast(pa.schema([ROWS.field(name) for name in names]))
        except (pa.ArrowException, OSError, KeyError, ValueError) as error:
            raise CorruptError(
                f"these are not the rows of a curation ({error})", where, "Remove the damaged object and curate again"
            ) from error


def _check(rows: pa.Table, curation: Curation, where: str) -> None:
    if rows.num_rows != curation.rows or rows_digest(rows) != curation.rows_sha256:
        raise CorruptError("the rows are not those that the header names", where, "Remove them and curate again")
