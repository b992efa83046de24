"""Rows of the sources' tables as matching reads those of parts: of whole tables, or of some rows that are held in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from smalti.curation.near import Ints, Mask
from smalti.curation.readers import Thumbnails
from smalti.shards.samples import KEYS, SCHEMA, THUMBNAIL, check_thumbnails, keys_of
from smalti.table.store import lance_errors

COLUMNS = ("id", "sha256", "phash", "colour", "flat", "width", "height", "tier", "ar", "owner", "url", "url_host")
"""What matching may ask of a row."""


def _shaped(table: pa.Table, columns: Sequence[str]) -> Any:
    """Columns of a table's rows as a Reader gives them, in a polars frame."""
    import polars as pl

    frame = pl.DataFrame(pl.from_arrow(table))
    if {*KEYS} & {*columns}:
        names = KEYS[: max(KEYS.index(name) for name in columns if name in KEYS) + 1]
        keys = keys_of(table["sha256"], len(names))
        frame = frame.with_columns(pl.Series(name, key) for name, key in zip(names, keys, strict=True))
    kinds = pl.from_arrow(SCHEMA.empty_table())
    lacking = [name for name in columns if name not in frame.columns]
    return frame.with_columns(pl.lit(None, kinds[name].dtype).alias(name) for name in lacking).select(columns)


def _taken(table: pa.Table, taken: Ints | None) -> pa.Table:
    return table if taken is None else table.take(pa.array(taken))


def _asked(columns: Sequence[str]) -> list[str]:
    """Columns of a table that these are made of."""
    found = [name for name in columns if name not in (*KEYS, "shard", "index", "_rowid")]
    return found + (["sha256"] if {*KEYS} & {*columns} and "sha256" not in found else [])


def _thumbnails(column: pa.ChunkedArray, taken: Mask) -> Thumbnails:
    data = b"".join(value or bytes(THUMBNAIL) for value in column.filter(pa.array(taken)).to_pylist())
    return np.frombuffer(data, np.uint8).reshape(-1, THUMBNAIL)


@dataclass(frozen=True)
class HeldReader:
    """Rows of tables that are in memory, as a Reader: a part is rows of one source. They have COLUMNS, as far as their table has them, and
    `_rowid`."""

    parts: tuple[tuple[str, pa.Table], ...]

    @property
    def sources(self) -> Sequence[str]:
        return [source for source, _ in self.parts]

    @property
    def sizes(self) -> Sequence[int]:
        return [rows.num_rows for _, rows in self.parts]

    def read(self, part: int, columns: Sequence[str], start: int, rows: int, taken: Ints | None = None) -> Any:
        """See Reader."""
        held = self.parts[part][1]
        asked = [*_asked(columns), *({"_rowid"} & {*columns})]
        asked = [name for name in asked if name in held.schema.names]
        return _shaped(_taken(held.select(asked or ["id"]).slice(start, rows), taken), columns)

    def thumbnails(self, part: int, start: int, taken: Mask) -> Thumbnails:
        """See Reader."""
        source, rows = self.parts[part]
        column = rows["colour"].slice(start, len(taken))
        check_thumbnails(column, source)
        return _thumbnails(column, taken)


@dataclass(frozen=True)
class TableReader:
    """The rows of tables as a Reader: a fragment is a part, the oldest of a source first. It has the columns that matching asks for,
    and `_rowid`."""

    fragments: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, tables: Mapping[str, Any]) -> TableReader:
        found = []
        for source, table in tables.items():
            with lance_errors(source):
                fragments = sorted(table.get_fragments(), key=lambda fragment: int(fragment.fragment_id))
            found += [(source, fragment) for fragment in fragments]
        return cls(tuple(found))

    @property
    def sources(self) -> Sequence[str]:
        return [source for source, _ in self.fragments]

    @cached_property
    def sizes(self) -> Sequence[int]:
        return [self._reading(part, lambda fragment: int(fragment.count_rows())) for part in range(len(self.fragments))]

    def read(self, part: int, columns: Sequence[str], start: int, rows: int, taken: Ints | None = None) -> Any:
        """See Reader."""
        table = self._table(part, _asked(columns), start, rows, addresses="_rowid" in columns)
        return _shaped(_taken(table, taken), columns)

    def thumbnails(self, part: int, start: int, taken: Mask) -> Thumbnails:
        """See Reader."""
        found = [np.empty((0, THUMBNAIL), np.uint8)]
        step = 1 << 17
        for at in range(0, len(taken), step):
            some = taken[at : at + step]
            if some.any():
                column = self._table(part, ["colour"], start + at, len(some))["colour"]
                check_thumbnails(column, self.fragments[part][0])
                found.append(_thumbnails(column, some))
        return np.concatenate(found)

    def _table(self, part: int, columns: Sequence[str], start: int, rows: int, *, addresses: bool = False) -> pa.Table:
        def look(fragment: Any) -> pa.Table:
            return fragment.to_table(columns=list(columns) or ["id"], offset=start, limit=rows, with_row_id=addresses)

        return self._reading(part, look)

    def _reading(self, part: int, look: Callable[[Any], Any]) -> Any:
        source, fragment = self.fragments[part]
        with lance_errors(source):
            return look(fragment)
