"""Rows of an owner by the index of a table, whatever white space stands around the name: so that one name does not read every row.

An index keeps texts in order. So the names with white space in front are some ranges of it, one for each run of such characters, and those with
white space behind a name are the same ranges behind it. What the ranges give is stripped and compared.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from smalti.optouts.urls import WHITE
from smalti.table.store import sql_text, sql_texts

FEW = 16
"""Owners up to which an index is asked: each has a dozen ranges."""

Addresses = npt.NDArray[np.uint64]


def has_index(table: Any) -> bool:
    """Whether a table's owners are indexed, all or some: rows that are not are read."""
    return any(list(each.field_names) == ["owner"] for each in table.describe_indices())


def rows_of_owners(table: Any, owners: Collection[str], most: int) -> Addresses | None:
    """Addresses of the rows of these owners, ascending; None: more than `most` rows begin with white space, or have such a name.

    Args:
        table: lance.LanceDataset.
        owners: without white space around them.
    """
    import polars as pl

    filters = [f"owner IN ({sql_texts(sorted(owners))})"]
    filters += [_between(low, high) for before in ("", *sorted(owners)) for low, high in _behind(before)]
    rows = table.to_table(columns=["owner"], filter=" OR ".join(filters), with_row_id=True, limit=most + 1)
    if rows.num_rows > most:
        return None
    frame = pl.DataFrame(pl.from_arrow(rows))
    frame = frame.filter(pl.col("owner").str.strip_chars(WHITE).is_in(sorted(owners)))
    return np.sort(frame["_rowid"].to_numpy().astype(np.uint64))


def _between(low: str, high: str) -> str:
    return f"(owner >= {sql_text(low)} AND owner < {sql_text(high)})"


def _behind(text: str) -> Iterator[tuple[str, str]]:
    """Ranges of the texts in which white space follows this text."""
    for first, last in _runs():
        yield text + chr(first), text + chr(last + 1)


@cache
def _runs() -> tuple[tuple[int, int], ...]:
    """First and last of each run of white characters."""
    codes = sorted(map(ord, WHITE))
    ends = [at for at, (one, two) in enumerate(pairwise(codes)) if two != one + 1] + [len(codes) - 1]
    return tuple((codes[start], codes[end]) for start, end in zip([0, *(end + 1 for end in ends)], ends, strict=False))
