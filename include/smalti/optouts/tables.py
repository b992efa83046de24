"""Opt-outs in the tables of the sources: rows that were never sharded, were dropped, or wait for it, too.

What a row shows may have copies in parts, so its picture counts like that of a sample. A row that was dropped before its picture was
looked at has no fingerprint: where a key names it, its picture is read from the table, and its fingerprint kept with the match.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from smalti import objects
from smalti.compute import map_tasks
from smalti.images.decode import DecodeError, decode
from smalti.images.fingerprint import fingerprint
from smalti.lake import Lake
from smalti.optouts.direct import Direct, gather
from smalti.optouts.indexed import Indexed
from smalti.optouts.ledger_rows import CONTENT, not_in
from smalti.optouts.match import match_rows, table_of
from smalti.optouts.matched import KEY, MATCHED, Matched
from smalti.optouts.request import Request
from smalti.optouts.table_reader import COLUMNS, HeldReader, TableReader
from smalti.reasons import DropReason
from smalti.table.store import lance_errors, open_table, read_images

_ENDING = ".lance"

_PICTURES = 256
"""Pictures of a task that makes fingerprints; it holds one decoded picture at a time."""

_DROPPED = 1 << 17
"""Dropped rows that are compared at a time."""


def match_tables(lake: Lake, requests: Sequence[Request], matched: pa.Table) -> pa.Table:
    """Rows of the tables of all sources that requests match, by the rules of `match_parts`.

    Args:
        matched: MATCHED, what these requests match in parts: copies of that are looked for as well.
    Returns:
        MATCHED with an empty `part`; each id once a request: a row that a key names, else any. What stands in parts is here, too.
    Raises:
        LakeError: a table cannot be read.
    """
    return each_id_once(Tables.open(lake).match(requests, matched).rows)


def each_id_once(rows: pa.Table) -> pa.Table:
    """MATCHED of tables, with one row for each request and id."""
    return _one_of_each(["request", "id"], rows)


def _one_of_each(columns: Sequence[str], rows: pa.Table) -> pa.Table:
    """One of the rows that agree on some columns: one that a key names, else one that was fingerprinted, else by its bytes.

    Which of them is the newest the order of a table does not say: compaction moves old rows behind newer ones.
    """
    import polars as pl

    if not rows.num_rows:
        return MATCHED.empty_table()
    frame = pl.DataFrame(pl.from_arrow(rows.select(["request", "id", "sha256", "how", "phash"]))).with_row_index("at")
    frame = frame.sort(pl.col("how") != KEY, pl.col("phash").is_null(), "sha256", maintain_order=True)
    return rows.take(frame.unique(columns, keep="first", maintain_order=True)["at"].sort().to_arrow())


def sources_with_table(lake: Lake) -> list[str]:
    """Sources that have one, sorted; of one that was begun nothing may be there but a folder."""
    return [each.removesuffix(_ENDING) for each in objects.list_names(lake.tables()) if each.endswith(_ENDING)]


@dataclass(frozen=True)
class Tables:
    """The tables of all sources, each at the version that was the newest when they were opened: lance.LanceDataset by source."""

    tables: Mapping[str, Any]

    @classmethod
    def open(cls, lake: Lake) -> Tables:
        """Raises LakeError if a table is there and cannot be read."""
        found = {source: open_table(lake.table(source)) for source in sources_with_table(lake)}
        return cls({source: table for source, table in found.items() if table is not None})

    @property
    def versions(self) -> dict[str, int]:
        return {source: int(table.version) for source, table in self.tables.items()}

    def match(self, requests: Sequence[Request], known: pa.Table | None) -> Matched:
        """All rows that requests match, with an empty `part`; a request has an id and a sha256 once. What is near is not
        looked for.

        Args:
            known: MATCHED, what these requests match elsewhere: copies of that are looked for as well.
        """
        import polars as pl

        whole = TableReader.of(self.tables)
        if not whole.fragments:
            nothing = MATCHED.empty_table()
            return Matched(nothing, nothing, {each.id: tuple(range(len(each.keys))) for each in requests})
        few: list[Indexed] = [Indexed(self.tables)]

        def reader(known: pa.Table, keys: bool) -> tuple[TableReader | HeldReader, Any]:
            """And what keys name in it, if that was found while the indices were tried."""
            if few and (found := few[0].reach(requests, known, keys=keys)) is not None:
                return found, None
            told = few[0].direct if few and keys else None
            few.clear()
            return whole, told and pl.concat([told[0], Direct.of(requests, told[1]).find(whole)])

        return self._match(reader, requests, known)

    def dropped(self, requests: Sequence[Request], known: pa.Table | None, seen: Mapping[str, int]) -> pa.Table:
        """The same, of those rows alone that were dropped because somebody opted out: what came while a request was in force.

        Args:
            known: rows of any request that has an id and a sha256 in it are not looked at.
            seen: source -> version of its table that is not looked at.
        """
        told = MATCHED.empty_table() if known is None else known
        while True:
            found = [MATCHED.empty_table()]
            for reader in self._dropped(pa.concat_tables([told, *found]), seen):
                more = self._match(functools.partial(_itself, reader), requests, pa.concat_tables([told, *found]))
                found.append(not_in(more.rows, told))
            new = pa.concat_tables(found)
            if not new.num_rows:
                return told.slice(0 if known is None else known.num_rows)
            told = pa.concat_tables([told, new])

    def has_dropped(self, seen: Mapping[str, int]) -> bool:
        """Whether `dropped` has anything to look at."""
        return next(self._dropped(MATCHED.empty_table(), seen, limit=1), None) is not None

    def _dropped(self, known: pa.Table, seen: Mapping[str, int], limit: int | None = None) -> Iterator[HeldReader]:
        told = _contents(known)
        for source, table in self.tables.items():
            if seen.get(source) == table.version:
                continue
            has = [name for name in COLUMNS if name in table.schema.names]
            with lance_errors(source):
                batches = table.scanner(
                    columns=has,
                    filter=f"drop = '{DropReason.OPTOUT.value}'",
                    with_row_id=True,
                    batch_size=_DROPPED,
                    limit=limit,
                ).to_batches()
                for batch in batches:
                    rows = pa.Table.from_batches([batch])
                    rows = rows.filter(pc.invert(pc.is_in(_contents(rows), value_set=told.combine_chunks())))
                    if rows.num_rows:
                        yield HeldReader(((source, rows),))

    def _match(
        self,
        reader_of: Callable[[pa.Table, bool], tuple[TableReader | HeldReader, Any]],
        requests: Sequence[Request],
        known: pa.Table | None,
    ) -> Matched:
        """reader_of: gives a reader of all rows that matter to what is known, and to keys if they count; and what keys name in it, if that
        is known."""
        known = MATCHED.empty_table() if known is None else known
        reader, direct = reader_of(known, True)
        found = match_rows(reader, requests, known, 0, direct=direct)
        labels = [""] * len(reader.sizes)
        rows = _one_of_each(CONTENT, table_of(reader, labels, found.nodes, requests, found.entries))
        unread = _unread(reader, found.entries)
        if not unread.height:
            return Matched(rows, MATCHED.empty_table(), found.unmatched)
        rows = _printed(rows, self._prints(unread))
        known = pa.concat_tables([known, rows])
        reader, _ = reader_of(known, False)
        more = match_rows(reader, requests, known, 0, keys=False)
        labels = [""] * len(reader.sizes)
        more_rows = table_of(reader, labels, more.nodes, requests, more.entries)
        new = not_in(_one_of_each(CONTENT, more_rows), rows)
        return Matched(pa.concat_tables([rows, new]), MATCHED.empty_table(), found.unmatched)

    def _prints(self, unread: Any) -> Any:
        """Fingerprints of pictures, as a polars frame: sha256, phash, colour, flat. unread: source, sha256, _rowid."""
        import polars as pl

        tasks = []
        for (source,), some in unread.unique("sha256", keep="last", maintain_order=True).group_by(
            "source", maintain_order=True
        ):
            table = self.tables[source]
            for start in range(0, some.height, _PICTURES):
                piece = some.slice(start, _PICTURES)
                tasks.append(_Unread(table.uri, table.version, tuple(piece["_rowid"]), tuple(piece["sha256"])))
        rows = [row for found in map_tasks(_prints_of, tasks) for row in found]
        schema = {"sha256": pl.String, "phash": pl.UInt64, "colour": pl.Binary, "flat": pl.Boolean}
        return pl.DataFrame(rows, schema, orient="row")


def _itself(reader: HeldReader, known: pa.Table, keys: bool) -> tuple[HeldReader, None]:
    return reader, None


@dataclass(frozen=True)
class _Unread:
    """Pictures of a table, by the addresses of their rows."""

    table: str
    version: int
    addresses: tuple[int, ...]
    sha256: tuple[str, ...]


def _prints_of(task: _Unread) -> list[tuple[str, int, bytes, bool]]:
    """Of those that can be decoded: the others have copies by their bytes alone."""
    found = []
    for sha256, data in zip(task.sha256, read_images(task.table, task.version, task.addresses), strict=True):
        try:
            its = fingerprint(decode(data))
        except DecodeError:
            continue
        found.append((sha256, its.phash, its.colour, its.flat))
    return found


def _unread(reader: TableReader | HeldReader, entries: Any) -> Any:
    """Rows that a key names and nobody has fingerprinted, as a polars frame: source, sha256, _rowid."""
    import polars as pl

    rows = np.unique(entries.filter(pl.col("how") == KEY)["row"].to_numpy()).astype(np.int64)
    found = [pl.DataFrame(schema={"source": pl.String, "sha256": pl.String, "_rowid": pl.UInt64})]
    for places, part, frame in gather(reader, ["phash"], rows):
        lacking = rows[places][frame["phash"].is_null().to_numpy()]
        for _, _, some in gather(reader, ["sha256", "_rowid"], lacking):
            found.append(some.select(pl.lit(reader.sources[part]).alias("source"), "sha256", pl.col("_rowid")))
    return pl.concat(found)


def _printed(rows: pa.Table, prints: Any) -> pa.Table:
    """MATCHED with the fingerprints of those that had none."""
    import polars as pl

    at = pl.DataFrame(pl.from_arrow(rows.select(["sha256", "phash"]))).with_row_index("at")
    at = at.filter(pl.col("phash").is_null()).drop("phash").join(prints, on="sha256").sort("at")
    for name in ("phash", "colour", "flat"):
        mask = np.zeros(rows.num_rows, np.bool_)
        mask[at["at"].to_numpy()] = True
        kind = MATCHED.field(name).type
        filled = pc.replace_with_mask(rows[name].combine_chunks(), pa.array(mask), at[name].to_arrow().cast(kind))
        rows = rows.set_column(rows.schema.get_field_index(name), MATCHED.field(name), filled)
    return rows


def _contents(rows: pa.Table) -> pa.ChunkedArray:
    """id and sha256 in one text."""
    return pc.binary_join_element_wise(rows["id"], rows["sha256"], "\0")
