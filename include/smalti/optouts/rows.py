"""What was handed in, row by row: the keys, and the rows that are none."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from smalti.errors import InputError
from smalti.optouts.keys import Key, KeyKind, key_of

MOST_KEYS = 1_000_000
"""Of one file: more than that is another kind of work than a request, and one object of the ledger holds them all."""

_SHOWN = 80
_LOGIN = re.compile(r"(?<=://)[^/?#@\s]*@")


@dataclass(frozen=True)
class RejectedRow:
    """A row that is no key.

    row: from 1, as a person counts lines in an editor or rows in a spreadsheet; 0 is the file itself. value: its text, shortened, without the user and password of a URL.
    reason: what is wrong and what to write; never the text itself, so that it may be shown and logged.
    """

    row: int
    value: str
    reason: str


@dataclass(frozen=True)
class Parsed:
    """What a file or a text holds.

    keys: in their order, each once. notes: what whoever hands it in should know of keys that are taken.
    """

    keys: tuple[Key, ...] = ()
    rejected: tuple[RejectedRow, ...] = ()
    notes: tuple[str, ...] = ()

    def encode_rejected(self) -> bytes:
        """The object in optouts/rejected: one line of JSON a row."""
        return "".join(
            json.dumps({"row": each.row, "value": each.value, "reason": each.reason}) + "\n" for each in self.rejected
        ).encode()


class Rows:
    """Gathers keys and rejected rows.

    Args:
        where: what an error names.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self._keys: dict[tuple[KeyKind, str], Key] = {}
        self._rejected: list[RejectedRow] = []

    def add(self, row: int, kind: str, value: str, column: str = "") -> None:
        """A key as it is written, or a rejected row. One that was there before is one key.

        Raises:
            InputError: there are more than MOST_KEYS.
        """
        try:
            key = key_of(kind, value)
        except ValueError as error:
            self.reject(row, value, f"{column}: {error}" if column else str(error))
            return
        self._keys.setdefault((key.kind, key.value), key)
        if len(self._keys) > MOST_KEYS:
            raise InputError(
                f"there are more than {MOST_KEYS:,} keys in it", self.where, "Divide it into several files"
            )

    def reject(self, row: int, value: str, reason: str) -> None:
        """A row that is no key."""
        self._rejected.append(RejectedRow(row, shortened(value), reason))

    def parsed(self) -> Parsed:
        """All of it."""
        return Parsed(tuple(self._keys.values()), tuple(self._rejected))


def shortened(value: str) -> str:
    """The beginning of a text, without the user and password of a URL."""
    value = _LOGIN.sub("", value[: 4 * _SHOWN])
    return value if len(value) <= _SHOWN else value[:_SHOWN] + "…"


def as_text(data: bytes, where: str) -> str:
    """A text file. Raises InputError if it is not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"it is not UTF-8 (byte {error.start + 1})", where, "Save it as UTF-8; a spreadsheet calls it `CSV UTF-8`"
        ) from None
