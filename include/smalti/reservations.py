"""Reservations: columns of a source's table that say that a picture may not be used to train on.

A value is read word by word, in any case: `noindex, noimageai` is reserved, and so is a reserving word that stands where it should not,
behind a directive's value or before a colon. What is neither yes nor no counts as reserved, under an origin that says so: rather one
picture too few than one that somebody had reserved. Nothing at all is no reservation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pydantic import Field, model_validator

from smalti.strict import Name, Strict

UNREADABLE = "?"
"""Stands after the kind where a value was neither yes nor no."""

BESIDE = "+"
"""Stands between the kinds where several columns reserve a picture."""


class Words(NamedTuple):
    """What means yes, this is reserved, and what means no."""

    reserved: frozenset[str]
    free: frozenset[str]


KINDS = {
    # X-Robots-Tag and <meta name="robots">: noai and noimageai as DeviantArt defined them, noml as Mojeek did; a search engine's own words are none of them
    "noai": Words(
        frozenset(["noai", "noimageai", "noml", "1", "true", "yes"]),
        frozenset([
            "all",
            "none",
            "index",
            "noindex",
            "follow",
            "nofollow",
            "noarchive",
            "nocache",
            "noimageindex",
            "nosnippet",
            "notranslate",
            "noodp",
            "noydir",
            "indexifembedded",
            "0",
            "false",
            "no",
        ]),
    ),
    # TDM Reservation Protocol (W3C community group report), the values of `tdm-reservation`
    "tdm": Words(frozenset({"1", "true", "yes"}), frozenset({"0", "false", "no"})),
    # what a reader of ai.txt files says of the picture's URL
    "ai.txt": Words(frozenset({"disallow", "disallowed"}), frozenset({"allow", "allowed"})),
}
"""Kind -> its words, where a source names none."""

_NUMBER = re.compile(r"-?[0-9]+")
_SIZE = re.compile("none|standard|large")
_DATE = re.compile(
    r"[0-9tz.+/-]*[0-9][0-9tz.+/-]*|[0-9]{1,2}(?:st|nd|rd|th)"
    r"|(?:mon|tue|tues|wed|wednes|thu|thur|thurs|fri|sat|satur|sun)(?:day)?|may"
    r"|(?:jan|febr?)(?:uary)?|mar(?:ch)?|apr(?:il)?|june?|july?|aug(?:ust)?|sept?|(?:sept|octo?|nov|dec)(?:em)?(?:ber)?"
    r"|am|pm|utc?|z|gmt|[ecmp][sd]t|bst|cest|cet"
)

_VALUES = {
    "max-snippet": _NUMBER,
    "max-video-preview": _NUMBER,
    "max-image-preview": _SIZE,
    "unavailable_after": _DATE,
}
"""Directives of X-Robots-Tag with a value, and what the words of such a value are. A word that is none is read like any other."""

_WORD = re.compile(r"([^\s:]+)\s*(:?)")
_STRAY = re.compile(r"(?:^|:)\s*:|:\s*$")
"""A colon with nothing before or behind it."""


class Reservation(Strict):
    """A column that says whether a picture is reserved."""

    column: str
    kind: Name = Field(
        description="noai (X-Robots-Tag), tdm (tdm-reservation), ai.txt (a verdict), or a name of your own; kept with the row"
    )
    reserved: tuple[str, ...] = Field(
        (), description="texts in quotes that mean reserved, in any case; none: those of the kind"
    )
    free: tuple[str, ...] = Field(
        (), description="texts in quotes that mean not reserved; none: those of the kind. All else counts as reserved"
    )

    @model_validator(mode="after")
    def _says_yes_and_no(self) -> Reservation:
        if self.kind not in KINDS and not self.reserved:
            raise ValueError(
                f"kind {self.kind} is not one of {', '.join(KINDS)}: say in `reserved` which values mean reserved"
            )
        blank = [each for each in (*self.reserved, *self.free) if not _plain(each)]
        if blank:
            raise ValueError("an empty value never means anything: take it out")
        both = {_plain(each) for each in self.reserved} & {_plain(each) for each in self.free}
        if both:
            raise ValueError(f"{min(both)!r} means reserved and free: take it out of one of the two")
        return self

    @property
    def words(self) -> Words:
        """What the file says, beside it what the kind says. Where they differ, the file is right."""
        known = KINDS.get(self.kind, Words(frozenset(), frozenset()))
        reserved = frozenset(map(_plain, self.reserved)) or known.reserved
        free = frozenset(map(_plain, self.free)) or known.free
        return Words(reserved - free, free) if self.free else Words(reserved, free - reserved)

    def origins(self, values: Sequence[str | None]) -> list[str | None]:
        """Who reserves pictures of which the column says this: the kind, the kind and UNREADABLE, or nobody (None)."""
        words = self.words
        return [self._origin(_plain(value or ""), words) for value in values]

    def _origin(self, text: str, words: Words) -> str | None:
        if not text or text in words.free:
            return None
        if text in words.reserved:
            return self.kind
        said, names = _words_of(text, {} if self.kind in ("tdm", "ai.txt") else _VALUES)
        if not words.reserved.isdisjoint([*said, *names]):
            return self.kind
        is_free = (said or names) and words.free.issuperset(said)
        return None if is_free else f"{self.kind}{UNREADABLE}"


def merged(origins: Iterable[str | None]) -> str | None:
    """Every origin of one row, sorted, each once. A kind that was read in one column stands for what could not be in another."""
    found = {each for each in origins if each}
    found -= {f"{each}{UNREADABLE}" for each in found}
    return BESIDE.join(sorted(found)) or None


def unreadable_kinds(origin: str) -> list[str]:
    """The kinds of a row's origin whose column was neither yes nor no."""
    return [each.removesuffix(UNREADABLE) for each in origin.split(BESIDE) if each.endswith(UNREADABLE)]


def warnings_of(origins: Sequence[str], reservations: Sequence[Reservation]) -> list[str]:
    """A line for each kind with values that nobody can read: how many rows, and in which columns to look."""
    lines = []
    for kind in sorted({each.kind for each in reservations}):
        rows = sum(kind in unreadable_kinds(origin) for origin in origins)
        if rows:
            columns = ", ".join(repr(each.column) for each in reservations if each.kind == kind)
            lines.append(
                f"{rows} rows count as reserved ({kind}) because column {columns} says neither yes nor no: "
                "name such values below `columns.reservations`"
            )
    return lines


def _plain(text: str) -> str:
    return " ".join(text.lower().split())


def _words_of(text: str, values: Mapping[str, re.Pattern[str]]) -> tuple[list[str], list[str]]:
    """Words that say something, and names: the words before a colon.

    `googlebot: noindex, noai; max-snippet: 5` -> [noindex, noai], [googlebot, max-snippet]. Only what is surely the value of a directive
    is left out. A name is that of a directive with a value, or a crawler's, which stands first; any other one counts as said, with its
    colon, and so does a colon without a name or with nothing behind it: nobody can read those.
    """
    said: list[str] = []
    names: list[str] = []
    for item in re.split("[,;]", text):
        value = None
        for number, (word, colon) in enumerate(_WORD.findall(item)):
            if value is not None and value.fullmatch(word):
                value = value if value is _DATE else None  # a date has many words, and colons
            elif colon:
                value = values.get(word)
                names.append(word)
                if number and value is None:
                    said.append(f"{word}:")
            else:
                value = None
                said.append(word)
        if _STRAY.search(item):
            said.append(":")
    return said, names
