"""Opt-outs in the tables of the sources: rows that were never sharded, were dropped, or wait for it, too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from smalti import objects
from smalti.curation.near import Mask
from smalti.curation.readers import Thumbnails
from smalti.lake import Lake
from smalti.optouts.match import match_rows, table_of
from smalti.optouts.matched import KEY, MATCHED
from smalti.optouts.request import Request
from smalti.shards.samples import KEYS, SCHEMA, THUMBNAIL, check_thumbnails, keys_of
from smalti.table.store import lance_errors, open_table

_ENDING = ".lance"


def match_tables(lake: Lake, requests: Sequence[Request], matched: pa.Table) -> pa.Table:
    """Rows of the tables of all sources that requests match, by the rules of `match_parts`.

    Args:
        matched: MATCHED, what these requests match in parts: copies of that are looked for as well.
    Returns:
        MATCHED with an empty `part`; each id once a request: the row that a key names, else the newest. What stands in parts is here, too.
    Raises:
        LakeError: a table cannot be read.
    """
    import polars as pl

    reader = TableReader.of(lake)
    found = match_rows(reader, requests, matched, 0)
    rows = table_of(reader, [""] * len(reader.sizes), found.nodes, requests, found.entries)
    frame = pl.DataFrame(pl.from_arrow(rows.select(["request", "id", "how"]))).with_row_index("at")
    frame = (
        frame
        .with_columns(key=pl.col("how") == KEY)
        .sort("request", "id", "key", "at")
        .unique(["request", "id"], keep="last")
    )
    return rows.take(frame.sort("at")["at"].to_arrow()) if rows.num_rows else MATCHED.empty_table()


@dataclass(frozen=True)
class TableReader:
    """The rows of tables as a Reader: a fragment is a part, the oldest of a source first. It has the columns that matching asks for."""

    fragments: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, lake: Lake) -> TableReader:
        """Of the newest version of each table."""
        found = []
        for name in objects.list_names(lake.tables()):
            source = name.removesuffix(_ENDING)
            table = open_table(lake.table(source)) if name.endswith(_ENDING) else None
            if table is not None:
                with lance_errors(lake.table(source)):
                    fragments = sorted(table.get_fragments(), key=lambda fragment: int(fragment.fragment_id))
                found += [(source, fragment) for fragment in fragments]
        return cls(tuple(found))

    @property
    def sources(self) -> Sequence[str]:
        return [source for source, _ in self.fragments]

    @cached_property
    def sizes(self) -> Sequence[int]:
        return [self._reading(part, lambda fragment: int(fragment.count_rows())) for part in range(len(self.fragments))]

    def places(self, part: int) -> Mapping[str, int]:
        """Nothing asks a table which of two rows is newer."""
        raise NotImplementedError

    def read(self, part: int, columns: Sequence[str], start: int, rows: int) -> Any:
        """See Reader."""
        import polars as pl

        asked = [name for name in columns if name not in (*KEYS, "shard", "index")]
        asked += ["sha256"] if {*KEYS} & {*columns} and "sha256" not in asked else []
        table = self._table(part, asked, start, rows)
        frame = pl.DataFrame(pl.from_arrow(table)) if asked else pl.DataFrame()
        if {*KEYS} & {*columns}:
            keys = keys_of(table["sha256"])
            frame = frame.with_columns(pl.Series(name, key) for name, key in zip(KEYS, keys, strict=True))
        kinds = pl.from_arrow(SCHEMA.empty_table())
        frame = frame.with_columns(
            pl.lit(None, kinds[name].dtype).alias(name) for name in ("shard", "index") if name in columns
        )
        return frame.select(columns)

    def thumbnails(self, part: int, start: int, taken: Mask) -> Thumbnails:
        """See Reader."""
        import polars as pl

        found = [np.empty((0, THUMBNAIL), np.uint8)]
        step = 1 << 17
        for at in range(0, len(taken), step):
            some = taken[at : at + step]
            if some.any():
                table = self._table(part, ["colour"], start + at, len(some))
                check_thumbnails(table["colour"], self.fragments[part][0])
                column = pl.DataFrame(pl.from_arrow(table))["colour"]
                data = b"".join(column.filter(pl.Series(some)).fill_null(bytes(THUMBNAIL)))
                found.append(np.frombuffer(data, np.uint8).reshape(-1, THUMBNAIL))
        return np.concatenate(found)

    def _table(self, part: int, columns: Sequence[str], start: int, rows: int) -> pa.Table:
        return self._reading(part, lambda fragment: fragment.to_table(columns=list(columns), offset=start, limit=rows))

    def _reading(self, part: int, look: Callable[[Any], Any]) -> Any:
        source, fragment = self.fragments[part]
        with lance_errors(source):
            return look(fragment)
