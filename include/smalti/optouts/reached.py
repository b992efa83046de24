"""What a request was found to reach when it was looked at, kept so that to apply it is to look at what came since.

To match a request with 1e8 samples takes from seconds to minutes, and its preview has done that. Parts never change, so what it matched in a
part holds as long as that part is there. The rows are stored as the ledger stores those of a step, and are the step's own if nothing came
in between. Whoever cannot use them compares everything again: nothing depends on them but time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import pyarrow as pa
from pydantic import Field

from smalti.errors import MissingObject
from smalti.lake import Lake
from smalti.optouts.ledger_rows import read_matched, write_matched
from smalti.optouts.matched import MATCHED
from smalti.release.skips import Model

RULE = 1
"""The rule by which keys and pictures match. Whoever changes what a request reaches counts it up: what was found by another is not used."""


class Reached(Model):
    """What one request reached in some parts and tables."""

    rule: int
    rows: str | None = Field(description="sha256 of the stored rows; null: there are none")
    parts: tuple[str, ...] = Field(description="<source>/<part>, what it was compared with, ascending")
    tables: dict[str, int] = Field(description="source -> version of its table")
    unmatched: tuple[int, ...] = Field(description="places of the keys that nothing has")

    def holds(self, parts: Collection[str]) -> bool:
        """Whether it is true still: by the same rule, and all of its parts are among these."""
        return self.rule == RULE and set(self.parts) <= set(parts)


def store_reached(
    lake: Lake, rows: pa.Table | None, parts: Collection[str], tables: Mapping[str, int], unmatched: Sequence[int]
) -> Reached:
    """Store the rows, and say where they are."""
    return Reached(
        rule=RULE,
        rows=None if rows is None else write_matched(lake, rows),
        parts=tuple(sorted(parts)),
        tables=dict(sorted(tables.items())),
        unmatched=tuple(unmatched),
    )


def read_reached(lake: Lake, found: Reached, request: str) -> pa.Table | None:
    """The rows; None: they are gone.

    Raises:
        CorruptError: they are damaged.
    """
    if found.rows is None:
        return MATCHED.empty_table()
    try:
        return read_matched(lake, [found.rows], [request])
    except MissingObject:  # nothing in force names them: they may have been collected
        return None
