"""samples.parquet: one row a sample of a part, what dedup, opt-outs, trace and audits join on.

A part with extra captions has one more column for each, `<column>_ok`: whether the sample has words of its own there.

Sorted by (tier, ar, shard, index), and its bytes depend on nothing but its rows and the pyarrow that writes them.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from smalti.errors import CorruptError

SCHEMA = pa.schema([
    pa.field("id", pa.string(), nullable=False),  # "<source>/<key>"
    pa.field("source", pa.string(), nullable=False),
    pa.field("batch", pa.string(), nullable=False),
    pa.field("sha256", pa.string(), nullable=False),  # of the source's bytes, hex
    pa.field("phash", pa.uint64()),
    pa.field("colour", pa.binary()),
    pa.field("flat", pa.bool_()),
    pa.field("unstable", pa.int16()),
    pa.field("width", pa.int32(), nullable=False),  # of the original, upright, px
    pa.field("height", pa.int32(), nullable=False),
    pa.field("tier", pa.int32(), nullable=False),
    pa.field("ar", pa.string(), nullable=False),
    pa.field("shard", pa.string(), nullable=False),  # relative to parts/
    pa.field("index", pa.int32(), nullable=False),  # in the shard
    pa.field("label", pa.string()),
    pa.field("caption_ok", pa.bool_(), nullable=False),
    pa.field("captioner", pa.string(), nullable=False),
    pa.field("classifier", pa.string(), nullable=False),
    pa.field("owner", pa.string()),
    pa.field("url", pa.string()),
    pa.field("url_host", pa.string()),
    pa.field("licence", pa.string()),
    pa.field("bytes", pa.int64(), nullable=False),  # of the encoded image in the shard
])

_ROW_GROUP = 1 << 17


def extra_columns(columns: Iterable[str]) -> tuple[str, ...]:
    """The extra captions among the MDS columns of a part or shard, by name."""
    return tuple(sorted(name for name in columns if name.startswith("caption_")))


def schema_with(extra: Iterable[str]) -> pa.Schema:
    """SCHEMA, and whether a sample has words in each of these extra caption columns."""
    return pa.schema([*SCHEMA, *(pa.field(f"{name}_ok", pa.bool_(), nullable=False) for name in sorted(extra))])


def encode_samples(table: pa.Table, extra: Sequence[str] = ()) -> bytes:
    """The file's bytes. `table` has the columns of `schema_with(extra)` and is sorted."""
    out = io.BytesIO()
    schema = schema_with(extra)
    pq.write_table(
        table.select(schema.names).cast(schema).combine_chunks(), out, compression="zstd", row_group_size=_ROW_GROUP
    )
    return out.getvalue()


def decode_samples(data: bytes, where: str, extra: Sequence[str] = ()) -> pa.Table:
    """The rows, with the columns of `schema_with(extra)`. `where` names the file in an error.

    Raises:
        CorruptError: not a parquet file, or not with these columns.
    """
    schema = schema_with(extra)
    try:
        return pq.read_table(pa.BufferReader(data)).select(schema.names).cast(schema)
    except (pa.ArrowException, KeyError) as error:
        raise CorruptError(f"this is not a samples.parquet ({error})", where, "Restore it, or shard again") from error
