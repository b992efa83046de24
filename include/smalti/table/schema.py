"""The columns of a source's table.

Every row has what ingest knows; fingerprint fills its columns later; a profile of a captioner or a classifier adds columns
of its own, so that the words of two profiles never mix.
"""

from __future__ import annotations

import re

import pyarrow as pa

EMBEDDING = "embedding"

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


def table_schema(embedding: int | None) -> pa.Schema:
    """The schema of a new table.

    Args:
        embedding: numbers in an embedding; None: no such column.
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
        text("metadata"),  # JSON
        *FINGERPRINT,
    ])


def embedding_field(size: int) -> pa.Field:
    """A fixed size, which is what a vector index takes."""
    return pa.field(EMBEDDING, pa.list_(pa.float32(), size))


def column_name(prefix: str, profile: str) -> str:
    """The column of a profile, for instance caption_rules: what SQL has no room for in a name becomes _."""
    return f"{prefix}_{re.sub('[^a-z0-9]', '_', profile)}"


def caption_columns(profile: str) -> tuple[str, str]:
    """The caption and its status (ok, failed; null: not asked for yet) of a captioner's profile."""
    name = column_name("caption", profile)
    return name, f"{name}_status"


def label_columns(profile: str) -> tuple[str, str]:
    """The label and its score (0 to 1) of a classifier's profile."""
    name = column_name("label", profile)
    return name, f"{name}_score"
