"""Why a row or a sample is not served. Three enums, one for each place where something can fall out."""

from __future__ import annotations

from enum import StrEnum


class Label(StrEnum):
    """What a classifier says of a caption: would you look at this picture, or read it?"""

    VISUAL = "visual"
    TEXT = "text"
    NSFW = "nsfw"


class RejectReason(StrEnum):
    """Ingest: the row never enters the table; rejects.parquet keeps it."""

    NOT_AN_IMAGE = "not_an_image"
    TRUNCATED = "truncated"
    UNSUPPORTED_FORMAT = "unsupported_format"
    TOO_MANY_PIXELS = "too_many_pixels"
    EMPTY = "empty"
    MISSING_OBJECT = "missing_object"
    UNREADABLE_OBJECT = "unreadable_object"
    CHANGED_OBJECT = "changed_object"
    NO_TABLE_ROW = "no_table_row"


class DropReason(StrEnum):
    """Eligibility: the row stays in the table, is never captioned and never reaches a shard."""

    TOO_SMALL = "too_small"
    ASPECT_RATIO = "aspect_ratio"
    DECODE_FAILED = "decode_failed"


class SkipReason(StrEnum):
    """Release: the sample is in a part, and a release leaves it out.

    The order is the precedence in which a sample with several reasons is counted.
    """

    OPTOUT = "optout"
    SUPERSEDED = "superseded"
    DENYLIST = "denylist"
    LICENCE = "licence"
    CAPTION_FAILED = "caption_failed"
    CAPTIONER = "captioner"
    NSFW = "nsfw"
    TEXT = "text"
    RESOLUTION = "resolution"
    DUPLICATE = "duplicate"


ALWAYS_SKIPPED = frozenset({SkipReason.OPTOUT, SkipReason.DENYLIST, SkipReason.SUPERSEDED})
"""Reasons that no ablation can lift (docs/reference)."""
