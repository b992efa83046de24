"""The rows of tables that a small request can reach, by the tables' indices: so that one key does not read every row.

What is reached by an id, by equal bytes or by an owner is looked up; hashes are compared with the column of all hashes, 8 bytes a row; URLs, which
sources spell as they like, are looked at one by one, as everywhere. What that gives is matched as a whole table would be, and looked up again
for what it has reached, until nothing new is: then the rows that are held are all that matter, and some that do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from smalti.curation.load import ROWS
from smalti.curation.near import Ints, Keys
from smalti.images.fingerprint import RECOMMENDED_DISTANCE
from smalti.optouts.direct import Direct, as_rows, gather, over_chunks
from smalti.optouts.keys import KeyKind
from smalti.optouts.match import match_rows
from smalti.optouts.matched import MATCHED
from smalti.optouts.neighbours import Neighbours
from smalti.optouts.owner_index import FEW, Addresses, has_index, rows_of_owners
from smalti.optouts.prints import HASHED, as_keys, kind_of
from smalti.optouts.request import Request
from smalti.optouts.table_reader import COLUMNS, HeldReader, TableReader
from smalti.table.store import lance_errors, sql_texts

SMALL = 1000
"""Keys, and then texts that are looked up at a time, up to which indices are asked. Lance looks some 10,000 up in the time in which it reads 1M rows."""

HELD = 200_000
"""Rows that are held at most: 100 MB. Where more may matter, the tables are read."""

_LOOKED_UP = {KeyKind.ID: "id", KeyKind.SHA256: "sha256", KeyKind.IMAGE: "sha256"}
"""Kinds whose values stand in a column just so."""


class _TooMany(Exception):
    """To read the tables takes less."""


@dataclass
class Indexed:
    """Tables, each at one version, and what of them is held so far.

    Attributes:
        tables: lance.LanceDataset by source.
        asked: column -> texts that were looked up.
        rows: by source, what is held: COLUMNS as far as there are, and `_rowid`.
        direct: what `Direct` has found in whole tables, and the kinds of keys that it was not asked for.
    """

    tables: Mapping[str, Any]
    asked: dict[str, set[str]] = field(default_factory=lambda: {"id": set(), "sha256": set()})
    hashes: set[int] = field(default_factory=set)
    rows: dict[str, pa.Table] = field(default_factory=dict)
    direct: tuple[Any, frozenset[KeyKind]] | None = None

    def reach(self, requests: Sequence[Request], known: pa.Table, *, keys: bool = True) -> HeldReader | None:
        """All rows that matter to requests, and some others; None: too many may.

        Args:
            known: as `match_rows` has it.
            keys: whether the keys count, or what is known alone.
        """
        if sum(len(request.keys) for request in requests) > SMALL or known.num_rows > SMALL:
            return None
        try:
            if keys:
                self._by_keys(requests)
            self._from(known)
            while True:
                found = match_rows(self._held(), requests, known, 0, keys=keys)
                if not self._from(self._rows_at(as_rows(found.entries))):
                    return self._held()
        except _TooMany:
            return None

    def _held(self) -> HeldReader:
        return HeldReader(tuple((source, self.rows[source]) for source in sorted(self.rows)))

    def _rows_at(self, rows: Ints) -> pa.Table:
        """id, sha256, phash and flat of some of the rows that are held, numbered through."""
        columns = ["id", "sha256", "phash", "flat"]
        frames = [frame.to_arrow() for _, _, frame in gather(self._held(), columns, rows)]
        return pa.concat_tables(frames, promote_options="permissive") if frames else MATCHED.empty_table()

    def _by_keys(self, requests: Sequence[Request]) -> None:
        wanted: dict[str, set[str]] = {column: set() for column in self.asked}
        hashes = set()
        for key in (key for request in requests for key in request.keys):
            if key.kind in _LOOKED_UP:
                wanted[_LOOKED_UP[key.kind]].add(key.value)
            if key.fingerprint is not None and not key.fingerprint.flat:
                hashes.add(key.fingerprint.phash)
        self._look_up(wanted)
        self._look_near(hashes)
        by_index = {*_LOOKED_UP, KeyKind.OWNER} if self._by_owners(requests) else {*_LOOKED_UP}
        others = Direct.of(requests, {*KeyKind} - by_index)
        if others.keys.height:
            found = others.find(self._all)
            self.direct = found, frozenset(by_index)
            self._hold(as_rows(found))

    def _by_owners(self, requests: Sequence[Request]) -> bool:
        """Hold the rows of all owners; False: their index does not help, and nothing is held."""
        owners = {key.value for request in requests for key in request.keys if key.kind == KeyKind.OWNER}
        if not 0 < len(owners) <= FEW:
            return not owners
        found: dict[str, Addresses] = {}
        for source, table in self.tables.items():
            if "owner" not in table.schema.names:
                continue
            with lance_errors(source):
                rows = rows_of_owners(table, owners, HELD) if has_index(table) else None
            if rows is None:
                return False
            found[source] = rows
        for source, rows in found.items():
            self._hold_at(source, rows)
        return True

    def _from(self, rows: pa.Table) -> bool:
        """Look up what has something of some rows; whether that had not been done."""
        import polars as pl

        frame = pl.DataFrame(pl.from_arrow(rows.select(["id", "sha256", "phash", "flat"])))
        hashed = frame.filter(pl.Series(kind_of(frame) == HASHED))
        new = self._look_up({"id": set(frame["id"]), "sha256": set(frame["sha256"])})
        return self._look_near(set(hashed["phash"])) or new

    def _look_up(self, wanted: Mapping[str, set[str]]) -> bool:
        new = {column: sorted(texts - self.asked[column]) for column, texts in wanted.items()}
        if sum(len(texts) for texts in new.values()) > SMALL:
            raise _TooMany
        for column, texts in new.items():
            self.asked[column].update(texts)
            for source, table in self.tables.items():
                if texts and column in table.schema.names:
                    self._add(source, self._read(source, f"{column} IN ({sql_texts(texts)})"))
        return any(new.values())

    def _look_near(self, hashes: set[int]) -> bool:
        new = hashes - self.hashes
        if not new:
            return False
        self.hashes |= new
        near = Neighbours.of(np.array(sorted(new), np.uint64), RECOMMENDED_DISTANCE)
        hashed, rows = self._hashes
        self._hold(rows[near.places(hashed)])
        return True

    @cached_property
    def _all(self) -> TableReader:
        return TableReader.of(self.tables)

    @cached_property
    def _hashes(self) -> tuple[Keys, Ints]:
        """Every hash that tells something, and its row."""

        def look(part: int, start: int, first: int) -> tuple[Keys, Ints]:
            frame = self._all.read(part, ["phash", "flat"], start, ROWS)
            places = np.flatnonzero(kind_of(frame) == HASHED)
            return as_keys(frame["phash"].gather(places)), first + places

        found = list(over_chunks(self._all, look))
        hashes = [np.empty(0, np.uint64), *(each for each, _ in found)]
        return np.concatenate(hashes), np.concatenate([np.empty(0, np.int64), *(each for _, each in found)])

    def _hold(self, rows: Ints) -> None:
        """Hold rows of the whole tables, numbered through."""
        if len(rows) > HELD:
            raise _TooMany
        by_source: dict[str, list[npt.NDArray[np.uint64]]] = {}
        for _, part, frame in gather(self._all, ["_rowid"], rows):
            by_source.setdefault(self._all.sources[part], []).append(as_keys(frame["_rowid"]))
        for source, found in by_source.items():
            self._hold_at(source, np.concatenate(found))

    def _hold_at(self, source: str, addresses: Addresses) -> None:
        held = self.rows[source]["_rowid"].to_numpy() if source in self.rows else np.empty(0, np.uint64)
        wanted = np.setdiff1d(addresses, held)
        for start in range(0, len(wanted), SMALL):
            some = ", ".join(str(each) for each in wanted[start : start + SMALL])
            self._add(source, self._read(source, f"_rowid IN ({some})"))

    def _read(self, source: str, filter_: str) -> pa.Table:
        table = self.tables[source]
        columns = [name for name in COLUMNS if name in table.schema.names]
        with lance_errors(source):
            return table.to_table(columns=columns, filter=filter_, with_row_id=True)

    def _add(self, source: str, rows: pa.Table) -> None:
        """In the order of the table, each once."""
        held = self.rows.get(source)
        both = rows if held is None else pa.concat_tables([held, rows])
        _, first = np.unique(both["_rowid"].to_numpy(), return_index=True)
        self.rows[source] = both.take(pa.array(first))
        if sum(each.num_rows for each in self.rows.values()) > HELD:
            raise _TooMany
