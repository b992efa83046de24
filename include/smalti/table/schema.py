"""The columns of a source's table.

Every row has what ingest knows; fingerprint fills its columns later; a profile of a captioner or a classifier adds columns
of its own, so that the words of two profiles never mix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from smalti.profiles import caption_column, column_name

EMBEDDING = "embedding"

RESERVED = pa.field("reserved", pa.string())
"""Who reserves the picture, as its source's table says (`smalti.reservations`); null: nobody. Only sources with such columns have it."""

FINGERPRINT = pa.schema([
    pa.field("phash", pa.uint64()),
    pa.field("colour", pa.binary()),
    pa.field("flat", pa.bool_()),
    pa.field("unstable", pa.int16()),
    pa.field("tier", pa.int32()),
    pa.field("ar", pa.string()),
    pa.field("drop", pa.string()),
])
"""`tier` is null until the row has been fingerprinted, and 0 where `drop` (a DropReason) says why it has no bucket."""


def table_schema(embedding: int | None, reserved: bool = False) -> pa.Schema:
    """The schema of a new table.

    Args:
        embedding: numbers in an embedding; None: no such column.
        reserved: whether it has the column RESERVED.
    """
    import lance

    def text(name: str, nullable: bool = False) -> pa.Field:
        return pa.field(name, pa.string(), nullable=nullable)

    return pa.schema([
        text("id"),
        text("source"),
        text("batch"),
        text("uri"),
        text("format"),
        pa.field("width", pa.int32(), nullable=False),  # upright, px
        pa.field("height", pa.int32(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        text("sha256"),  # of the image's bytes as delivered, hex
        lance.blob_field("image", nullable=False),  # those bytes
        text("caption_source", nullable=True),
        *([embedding_field(embedding)] if embedding else []),
        text("owner", nullable=True),
        text("licence", nullable=True),
        text("url", nullable=True),
        text("url_host", nullable=True),
        *([RESERVED] if reserved else []),
        text("metadata"),  # JSON
        *FINGERPRINT,
    ])


def embedding_field(size: int) -> pa.Field:
    """A fixed size, which is what a vector index takes."""
    return pa.field(EMBEDDING, pa.list_(pa.float32(), size))


class CaptionColumns(NamedTuple):
    """The columns of a captioner's profile, in the order of `fields`."""

    text: str
    status: str
    finish: str
    tokens: str
    attempts: str
    reason: str

    def fields(self, metadata: dict[bytes, str]) -> pa.Schema:
        """text; ok or failed, null until the row is done; why the model stopped; tokens and attempts; a fault."""
        return _fields(self, (pa.string(), pa.string(), pa.string(), pa.int32(), pa.int16(), pa.string()), metadata)


class LabelColumns(NamedTuple):
    """The columns of a classifier's profile, in the order of `fields`."""

    label: str
    score: str
    status: str
    attempts: str
    reason: str

    def fields(self, metadata: dict[bytes, str]) -> pa.Schema:
        """A Label; 0 to 1, null if the classifier states none; ok or failed, null until the row is done; attempts; a fault."""
        return _fields(self, (pa.string(), pa.float32(), pa.string(), pa.int16(), pa.string()), metadata)


def caption_columns(profile: str) -> CaptionColumns:
    """The names of the columns of a captioner's profile."""
    name = caption_column(profile)
    return CaptionColumns(name, *(f"{name}_{field}" for field in CaptionColumns._fields[1:]))


def label_columns(classifier: str, captioner: str) -> LabelColumns:
    """The names of the columns for what a classifier says of a captioner's captions: other words, other labels."""
    name = f"{column_name('label', classifier)}_of_{column_name('', captioner)[1:]}"
    return LabelColumns(name, *(f"{name}_{field}" for field in LabelColumns._fields[1:]))


def _fields(names: Sequence[str], types: Sequence[pa.DataType], metadata: dict[bytes, str]) -> pa.Schema:
    return pa.schema([pa.field(name, kind, metadata=metadata) for name, kind in zip(names, types, strict=True)])
