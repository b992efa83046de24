"""Why a row or a sample is not served. One enum for each place where something can fall out."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class Label(StrEnum):
    """What a classifier says of a caption: would you look at this picture, or read it?"""

    VISUAL = "visual"
    TEXT = "text"
    NSFW = "nsfw"


class _Reason(StrEnum):
    """A value and, for people, what it means."""

    meaning: str

    def __new__(cls, value: str, meaning: str = "") -> _Reason:  # the default lets mypy see a lookup by value
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member


class RejectReason(_Reason):
    """Ingest: the row never enters the table; rejects.parquet keeps it."""

    NOT_AN_IMAGE = "not_an_image", "the bytes are no picture, whatever the name says"
    TRUNCATED = "truncated", "the file ends, or breaks, before its picture is complete"
    UNSUPPORTED_FORMAT = "unsupported_format", "a picture in a format that is not read here"
    TOO_MANY_PIXELS = "too_many_pixels", "larger than the source's max_pixels; refused before it is decoded"
    EMPTY = "empty", "there are no bytes"
    MISSING_OBJECT = "missing_object", "the table names an image that is not there"
    UNREADABLE_OBJECT = "unreadable_object", "the store would not hand the bytes out"
    CHANGED_OBJECT = "changed_object", "the bytes are not those that were staged"
    NO_TABLE_ROW = "no_table_row", "an image that the table does not name"


class DropReason(_Reason):
    """Eligibility: the row stays in the table, is never captioned and never reaches a shard."""

    OPTOUT = "optout", "its owner asked for it, in a request or in a column of the source's table"
    TOO_SMALL = "too_small", "fewer than 384 x 384 pixels"
    ASPECT_RATIO = "aspect_ratio", "width / height is outside 0.5 to 2"
    DECODE_FAILED = "decode_failed", "the bytes could be decoded at ingest and no longer can"


class CaptionFault(_Reason):
    """Caption: what a captioner answered is no caption.

    The order is the precedence in which an answer with several faults is counted.
    """

    EMPTY = "empty", "no letter and no digit"
    LEAKED_TOKENS = "leaked_tokens", "special tokens, roles, JSON, broken bytes or other scraps of the conversation"
    REFUSAL = "refusal", "the model says that it cannot or will not describe the picture"
    MARKUP = "markup", "headings, lists, labels, tables, emphasis, code or HTML instead of prose"
    LOOPING = "looping", "the same words again and again"
    CUT_OFF = "cut_off", "it ran into the token limit, or ends in mid-sentence"
    WRONG_LANGUAGE = "wrong_language", "its prose, or a part of it, is not English; quoted text may be in any language"
    TOO_SHORT = "too_short", "fewer words than the profile's min_words"


class Unanswered(_Reason):
    """Caption and classify: there is no answer that could be checked."""

    NO_LABEL = "no_label", "a classifier answered something else than visual, text or nsfw"
    NO_PICTURE = "no_picture", "the picture could not be decoded, and nobody was asked"
    ERROR = "error", "the engine could not answer about this row; its checkpoint has the error"


class SkipReason(_Reason):
    """Release: the sample is in a part, and a release leaves it out.

    The order is the precedence in which a sample with several reasons is counted.
    """

    OPTOUT = "optout", "its owner asked for it"
    SUPERSEDED = "superseded", "the source delivered the key again, or a later part has it"
    DENYLIST = "denylist", "a denylist of the dataset names it"
    LICENCE = "licence", "its licence is not on the dataset's list"
    CAPTION_FAILED = "caption_failed", "no captioner described it"
    LABEL_FAILED = "label_failed", "no classifier could say what it is"
    CAPTIONER = "captioner", "its captioner is not on the dataset's list"
    CLASSIFIER = "classifier", "its classifier is not on the dataset's list"
    NSFW = "nsfw", "its caption, or that of a copy, was labelled nsfw"
    TEXT = "text", "a picture to read, not to look at"
    RESOLUTION = "resolution", "below the dataset's min_tier"
    DUPLICATE = "duplicate", "a copy of a sample that is served"
    QUARANTINE = "quarantine", "one of too many look-alikes for a hash to decide; a person may"


LABELS = {Label.NSFW: SkipReason.NSFW, Label.TEXT: SkipReason.TEXT}
"""The reason that a label gives, where a dataset drops it."""

ALWAYS_SKIPPED = frozenset({SkipReason.OPTOUT, SkipReason.DENYLIST, SkipReason.SUPERSEDED})
"""Reasons that no ablation can lift."""

DEDUP_REASONS = frozenset({SkipReason.DUPLICATE, SkipReason.QUARANTINE})
"""Reasons that depend on what the other reasons leave: they are decided anew for each reason set."""


def set_name(reasons: Iterable[str]) -> str:
    """How a reason set is spelled where it is a key: `nsfw+text`."""
    return "+".join(sorted(reasons))


def reason_set(name: str) -> frozenset[SkipReason]:
    """The set of that name."""
    return frozenset(SkipReason(reason) for reason in name.split("+"))
