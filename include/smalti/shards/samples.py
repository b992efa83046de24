"""samples.parquet: one row a sample of a part, what dedup, opt-outs, trace and audits join on.

A part with extra captions has one more column for each, `<column>_ok`: whether the sample has words of its own there.

Sorted by (tier, ar, shard, index), and its bytes depend on nothing but its rows and the pyarrow that writes them.

Dedup reads the fingerprints of every sample of a lake, so the file holds them in a form that is read without parsing: the first 16
bytes of sha256 as two numbers beside its text, and thumbnails of a fixed width.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from smalti.errors import CorruptError, InputError

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

KEYS = ("sha256_0", "sha256_1")
"""Columns of the file: bytes 0 to 7 and 8 to 15 of sha256, big-endian. 128 bits, which two of 1e8 pictures share by chance in one of
1e22 lakes."""

THUMBNAIL = 99
"""Bytes of `colour` (`smalti.images.fingerprint`)."""

_ROW_GROUP = 1 << 17


def extra_columns(columns: Iterable[str]) -> tuple[str, ...]:
    """The extra captions among the MDS columns of a part or shard, by name."""
    return tuple(sorted(name for name in columns if name.startswith("caption_")))


def schema_with(extra: Iterable[str]) -> pa.Schema:
    """SCHEMA, and whether a sample has words in each of these extra caption columns."""
    return pa.schema([*SCHEMA, *(pa.field(f"{name}_ok", pa.bool_(), nullable=False) for name in sorted(extra))])


def encode_samples(table: pa.Table, extra: Sequence[str] = ()) -> bytes:
    """The file's bytes. `table` has the columns of `schema_with(extra)` and is sorted; `colour` has THUMBNAIL bytes or none.

    Raises:
        ValueError: a sha256 is not 64 hexadecimal digits, or a thumbnail has another size.
    """
    schema = schema_with(extra)
    table = stored(table.select(schema.names).cast(schema).combine_chunks())
    out = io.BytesIO()
    pq.write_table(table, out, compression="zstd", row_group_size=_ROW_GROUP)
    return out.getvalue()


def stored(table: pa.Table) -> pa.Table:
    """Rows as the file holds them: `colour` of a fixed width, and KEYS."""
    place = table.schema.get_field_index("colour")
    table = table.set_column(place, "colour", table["colour"].cast(pa.binary(THUMBNAIL)))
    for name, key in zip(KEYS, keys_of(table["sha256"]), strict=True):
        table = table.append_column(pa.field(name, pa.uint64(), nullable=False), pa.array(key))
    return table


def keys_of(sha256: pa.ChunkedArray, count: int = len(KEYS)) -> tuple[npt.NDArray[np.uint64], ...]:
    """The first of KEYS, so many, of hexadecimal texts.

    Raises:
        ValueError: one is not 64 hexadecimal digits, as far as they are looked at: the first 16 of each of them.
    """
    try:
        column = pa.chunked_array(sha256.cast(pa.binary()).cast(pa.binary(64))).combine_chunks()
    except pa.ArrowInvalid:  # one is shorter or longer
        column = None
    if column is None or column.null_count:
        raise ValueError("a sha256 is not 64 hexadecimal digits")
    start, stop = 64 * column.offset, 64 * (column.offset + len(column))
    digits = np.frombuffer(column.buffers()[1], np.uint8)[start:stop].reshape(-1, 64)
    nibbles = _NIBBLE[digits if count == len(KEYS) else digits[:, : 16 * count]]
    if (nibbles > 15).any():
        raise ValueError("a sha256 is not 64 hexadecimal digits")
    pairs = nibbles[:, : 16 * count].reshape(-1, 8 * count, 2)
    words = np.ascontiguousarray(pairs[..., 0] << 4 | pairs[..., 1]).view(">u8").astype(np.uint64)
    return tuple(words[:, number] for number in range(count))


_NIBBLE = np.full(256, 255, np.uint8)
_NIBBLE[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)


AGAIN = "Ingest the source into a new lake, so that it is fingerprinted and sharded again"


def check_thumbnails(column: pa.ChunkedArray, where: str, fix: str = AGAIN) -> None:
    """Refuse thumbnails that another smalti made: what tells its layout is that it has another size. Null is none.

    Raises:
        InputError: one has not THUMBNAIL bytes.
    """
    if pa.types.is_fixed_size_binary(column.type):
        sizes = [] if column.null_count == len(column) else [column.type.byte_width]
    else:
        sizes = pc.unique(pc.binary_length(column)).drop_null().to_pylist()
    odd = [size for size in sizes if size != THUMBNAIL]
    if odd:
        raise InputError(
            f"fingerprinted by an older smalti: thumbnails of {odd[0]} bytes, which cannot be compared with those of {THUMBNAIL}",
            where,
            fix,
        )


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
