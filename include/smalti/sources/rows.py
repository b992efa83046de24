"""The common row, and how the columns of a source's table become its fields.

What is checked here is checked before anything is written: a mistake in the mapping or in the keys stops the batch with
one line. What is wrong with a single picture only rejects that row.
"""

from __future__ import annotations

import base64
import datetime
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from smalti.config import Columns
from smalti.errors import InputError
from smalti.reasons import RejectReason
from smalti.reservations import Reservation, merged

TEXTS = ("caption", "owner", "licence", "url")

FIELDS = pa.schema([
    pa.field("key", pa.string(), nullable=False),
    *(pa.field(name, pa.string()) for name in TEXTS),
    pa.field("reserved", pa.string()),
    pa.field("metadata", pa.string(), nullable=False),
    pa.field("embedding", pa.list_(pa.float32())),
])
"""What a source says of a picture, besides its bytes. `reserved`: by whom (`smalti.reservations`), null if by nobody; `metadata` is JSON,
`embedding` null where none is mapped."""

_LONGEST_KEY = 512


@dataclass(frozen=True)
class SourceRow:
    """One picture as a source delivers it: bytes that nobody has looked at yet."""

    key: str
    uri: str
    data: bytes
    caption: str | None
    owner: str | None
    licence: str | None
    url: str | None
    reserved: str | None
    metadata: str
    embedding: list[float] | None


@dataclass(frozen=True)
class Reject:
    """A row or an object that does not enter the table. `key` is empty only if nobody can tell it."""

    key: str
    uri: str
    reason: RejectReason
    detail: str


class Group(Protocol):
    """Rows that one task reads: a small picklable description, without the pictures."""

    def read(self) -> Iterator[SourceRow | Reject]:
        """The rows, always in the same order; a picture that cannot be had is a Reject in its place."""


@dataclass(frozen=True)
class SourcePlan:
    """What a batch is made of.

    Attributes:
        rows_in: rows of the table and objects without a row, each counted once.
        groups: rows to read.
        rejects: what is decided without reading a picture.
        embedding: numbers in an embedding; None if the source has none.
    """

    rows_in: int
    groups: tuple[Group, ...]
    rejects: tuple[Reject, ...]
    embedding: int | None


@dataclass(frozen=True)
class Mapping:
    """Which column of a table is which field, and which columns are kept as metadata; made by `map_columns`."""

    fields: tuple[tuple[str, str], ...]
    kept: tuple[str, ...]
    reservations: tuple[Reservation, ...] = ()

    @property
    def columns(self) -> list[str]:
        """Every column that has to be read, but the picture's."""
        fields = (column for field, column in self.fields if field != "image")
        return list(dict.fromkeys([*fields, *(each.column for each in self.reservations), *self.kept]))

    def get(self, field: str) -> str | None:
        return dict(self.fields).get(field)


def map_columns(schema: pa.Schema, columns: Columns, where: str) -> Mapping:
    """Match a table's columns with those the source file names.

    Args:
        where: the table, for messages.
    Raises:
        InputError: a column is named twice or not there, nobody said what to do with one, or its type does not fit.
    """
    has = schema.names
    twice = sorted({name for name in has if has.count(name) > 1})
    if twice:
        raise InputError(f"the table has two columns {_few(twice)}", where, "Give every column a name of its own")
    mapped = columns.mapped()
    named = {*mapped.values(), *(each.column for each in columns.reservations), *columns.metadata}
    missing = sorted(named - set(has))
    if missing:
        raise InputError(
            f"the table has no column {_few(missing)}",
            where,
            f"Mend `columns` of the source; the table has {_few(has)}",
        )
    unnamed = [name for name in has if name not in named]
    if unnamed and columns.others == "refuse":
        raise InputError(
            f"the table has columns that the source does not name: {_few(unnamed)}",
            where,
            "Name them in `columns` of the source, or set `columns.others` to keep or ignore",
        )
    for field, column in mapped.items():
        _check_type(field, column, schema.field(column).type, where)
    for each in columns.reservations:
        _check_type("reservation", each.column, schema.field(each.column).type, where)
    kept = columns.metadata + (tuple(unnamed) if columns.others == "keep" else ())
    return Mapping(tuple(mapped.items()), kept, columns.reservations)


def to_fields(table: pa.Table, mapping: Mapping) -> pa.Table:
    """A table with the mapped columns as FIELDS, in the same order of rows. Blank texts are null."""
    fields: dict[str, pa.Array] = {"key": as_text(table[_column(mapping, "key")])}
    for field in TEXTS:
        column = mapping.get(field)
        if column is None:
            fields[field] = pa.nulls(table.num_rows, pa.string())
        else:
            text = pc.utf8_trim_whitespace(as_text(table[column]))
            fields[field] = pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text)
    fields["reserved"] = _reserved(table, mapping.reservations)
    fields["metadata"] = _metadata(table, mapping.kept)
    embedding = mapping.get("embedding")
    kind = FIELDS.field("embedding").type
    fields["embedding"] = pa.nulls(table.num_rows, kind) if embedding is None else table[embedding].cast(kind)
    return pa.table([fields[name] for name in FIELDS.names], names=FIELDS.names)


def as_text(column: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """A column of texts or whole numbers as strings."""
    return column.cast(pa.string())


def check_keys(keys: pa.ChunkedArray, where: str, *, paths: bool) -> None:
    """Refuse keys that cannot name a row for ever.

    Args:
        keys: strings.
        paths: they are paths of images below a folder too.
    Raises:
        InputError: null, unfit or duplicate keys; says how many and names the first.
    """
    if keys.null_count:
        raise InputError(f"{keys.null_count} rows have no key", where, "Give every row a key")
    # Letters, digits and signs of any script; no control characters, and no blank at an end.
    unfit = [k for k in keys.to_pylist() if not _fits(k, paths)]
    if unfit:
        rule = f"Use 1-{_LONGEST_KEY} characters without control characters or blanks at the ends"
        if paths:
            rule += ", and paths below the image folder without . or .. or empty steps"
        raise InputError(f"{len(unfit)} keys cannot be used: {_few(sorted(unfit))}", where, rule)
    counts = pc.value_counts(keys)
    twice = sorted(counts.filter(pc.greater(counts.field("counts"), 1)).field("values").to_pylist())
    if twice:
        raise InputError(
            f"{len(twice)} keys stand more than once: {_few(twice)}", where, "Leave one row for each key in the table"
        )


def embedding_size(embeddings: pa.ChunkedArray | pa.Array, where: str) -> int | None:
    """Numbers in each embedding; None if every one is null. Raises InputError where they differ."""
    sizes = pc.unique(pc.list_value_length(embeddings.drop_null())).to_pylist()
    if len(sizes) > 1 or 0 in sizes:
        raise InputError(
            f"embeddings have different lengths: {', '.join(str(size) for size in sorted(sizes)[:5])}",
            where,
            "Give every row an embedding of one model, or none",
        )
    return int(sizes[0]) if sizes else None


def split_evenly(sizes: Sequence[int], rows: int, limit: int) -> list[tuple[int, int]]:
    """Cut a list into runs of at most `rows` entries and `limit` bytes (one entry may be larger): start, stop."""
    runs: list[tuple[int, int]] = []
    start = used = 0
    for at, size in enumerate(sizes):
        if at > start and (at - start >= rows or used + size > limit):
            runs.append((start, at))
            start, used = at, 0
        used += size
    return [*runs, (start, len(sizes))] if sizes else []


def _column(mapping: Mapping, field: str) -> str:
    column = mapping.get(field)
    assert column is not None  # Columns.key is required
    return column


def _fits(key: str, path: bool) -> bool:
    if not 0 < len(key) <= _LONGEST_KEY or key != key.strip() or re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", key):
        return False
    return not path or not {"", ".", ".."}.intersection(key.split("/"))


def _check_type(field: str, column: str, kind: pa.DataType, where: str) -> None:
    while pa.types.is_dictionary(kind):
        kind = kind.value_type
    if field == "image":
        inner = kind.field("bytes").type if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0 else kind
        good = pa.types.is_binary(inner) or pa.types.is_large_binary(inner)
        allowed = "binary, or a struct with a binary field `bytes`"
    elif field == "embedding":
        is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
        good = pa.types.is_null(kind) or (
            is_list and (pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type))
        )
        allowed = "a list of numbers"
    elif field == "reservation":
        text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        number = pa.types.is_integer(kind) or pa.types.is_floating(kind)  # what pandas makes of 0, 1 and nothing
        good = text or number or pa.types.is_boolean(kind) or pa.types.is_null(kind)
        allowed = "text, true or false, or numbers"
    else:
        # A column that is empty throughout has the type null in what some writers make. A key may be a whole number,
        # never a float: it would change its spelling with the writer.
        text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        good = text or pa.types.is_integer(kind) or pa.types.is_null(kind)
        allowed = "text or whole numbers"
    if not good:
        raise InputError(
            f"column {column!r} cannot be the {field}: it holds {kind}", where, f"Name a column that is {allowed}"
        )


def _reserved(table: pa.Table, reservations: Sequence[Reservation]) -> pa.Array:
    """Who reserves each row; null: nobody."""
    found = []
    for each in reservations:
        column = table[each.column]
        if pa.types.is_floating(column.type):
            column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
        said = as_text(column).combine_chunks().dictionary_encode()
        origins = pa.array(each.origins(said.dictionary.to_pylist()), pa.string())
        found.append(origins.take(said.indices).to_pylist())
    if not found:
        return pa.nulls(table.num_rows, pa.string())
    return pa.array(map(merged, zip(*found, strict=True)), pa.string())


def _metadata(table: pa.Table, kept: Sequence[str]) -> pa.Array:
    if not kept:
        return pa.array(["{}"] * table.num_rows, pa.string())
    names = sorted(set(kept))
    return pa.array([_json(row) for row in table.select(names).to_pylist()], pa.string())


def _json(row: dict[str, Any]) -> str:
    return json.dumps(_plain(row), sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _plain(value: Any) -> Any:
    """What JSON can say: times as ISO 8601, binary as base64, NaN and infinities as null."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _few(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(repr(name) for name in names[:most]) + more
