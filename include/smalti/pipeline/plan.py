"""Which rows an engine has to be asked about, and which it has answered in a run before this one.

The rows of a fragment that wait are cut into chunks; the answers of a chunk are one create-only checkpoint, named by fragment and
rows. A run lists what is there and plans the rest. A fragment that was compacted meanwhile has other chunks: then the
checkpoints that no chunk accounts for are read, so that no row is asked about again.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from smalti import objects
from smalti.lake import Lake
from smalti.table.target import Target, chunk_digest, eligible_rows, fragments_of, read_checkpoint

READERS = 16
"""Checkpoints that are read at once."""


@dataclass(frozen=True)
class Place:
    """Where the checkpoints of one batch's rows are."""

    lake: Lake
    source: str
    batch: str
    target: Target

    @property
    def table(self) -> str:
        return self.lake.table(self.source)

    @property
    def answers(self) -> str:
        return self.lake.answers(*self._names())

    def checkpoint(self, name: str) -> str:
        return self.lake.answer(*self._names(), name)

    @property
    def spent(self) -> str:
        return self.lake.spent(*self._names())

    def spent_note(self, name: str) -> str:
        return self.lake.spent_note(*self._names(), name)

    def pilot_page(self, sha256: str) -> str:
        return self.lake.pilot_page(*self._names(), sha256)

    def _names(self) -> tuple[str, str, str, str, str]:
        return self.source, self.target.stage, self.target.profile, self.target.digest, self.batch


@dataclass(frozen=True)
class Chunk:
    """Rows of one fragment that are asked about together.

    Attributes:
        checkpoint: URI that will hold the answers.
        fragment: of the rows, when they were planned.
        rows: id, sha256, _rowid (the address of the picture) and the target's inputs.
        table, version: what the addresses belong to.
    """

    checkpoint: str
    fragment: int
    rows: pa.Table
    table: str
    version: int


@dataclass(frozen=True)
class Plan:
    """What is to be asked, and what was answered before and is not yet in the table.

    Attributes:
        chunks: in the order of the table.
        answered: id -> URI of the checkpoint that has it.
        fragments: id of each of the answered -> its fragment.
        in_table: rows whose answers are in the table.
    """

    chunks: list[Chunk]
    answered: dict[str, str]
    fragments: dict[str, int]
    in_table: int = 0

    @property
    def answered_before(self) -> bool:
        """Engines of this profile have answered rows of this batch before."""
        return bool(self.answered or self.in_table)

    @property
    def rows(self) -> int:
        """Rows that are to be asked about."""
        return sum(chunk.rows.num_rows for chunk in self.chunks)


def plan_chunks(place: Place, table: Any, size: int, only: frozenset[str] | None = None) -> Plan:
    """Cut the eligible rows that wait into chunks of at most `size` rows of one fragment.

    Args:
        table: a version of the source's table.
        only: ids; other rows are left for later.
    """
    target = place.target
    rows = eligible_rows(table, place.batch, target)
    rows = rows.append_column("fragment", fragments_of(rows)).sort_by([
        ("fragment", "ascending"),
        ("_rowid", "ascending"),
    ])
    if only is not None:
        rows = rows.filter(pc.is_in(rows["id"], value_set=pa.array(sorted(only), pa.string())))
    there = {info.uri for info in objects.list_objects(place.answers)}
    chunks = list(_cut(place, table, rows, size))
    answered: dict[str, str] = {}
    fragments: dict[str, int] = {}
    todo = []
    for chunk in chunks:
        if chunk.checkpoint not in there:
            todo.append(chunk)
            continue
        for row in chunk.rows["id"].to_pylist():
            answered[row], fragments[row] = chunk.checkpoint, chunk.fragment
    unaccounted = _unaccounted(there - set(answered.values()), todo, {f.fragment_id for f in table.get_fragments()})
    if unaccounted:
        known = _answered_rows(unaccounted)
        todo = [left for chunk in todo if (left := _without(place, chunk, known, answered, fragments)) is not None]
    return Plan(todo, answered, fragments, rows.num_rows - rows[target.marker].null_count)


def _cut(place: Place, table: Any, rows: pa.Table, size: int) -> Iterator[Chunk]:
    """Chunks over all rows of a fragment, done or not, so that their boundaries stay; then what waits of each."""
    target = place.target
    columns = list(dict.fromkeys(["id", "sha256", "_rowid", *target.inputs]))
    counts = pc.value_counts(rows["fragment"]).to_pylist()
    start = 0
    for each in counts:  # in the order in which they come: sorted
        for at in range(start, start + each["counts"], size):
            part = rows.slice(at, min(size, start + each["counts"] - at))
            part = part.filter(pc.is_null(part[target.marker])).combine_chunks()
            if part.num_rows:
                name = f"{each['values']:08d}-{chunk_digest(target.digest, part)[:32]}"
                yield Chunk(place.checkpoint(name), each["values"], part.select(columns), place.table, table.version)
        start += each["counts"]


def _unaccounted(uris: set[str], todo: list[Chunk], fragments: set[int]) -> list[str]:
    """Checkpoints that may hold rows of `todo`: of a fragment that still has some, or that is no more.

    All rows of any other fragment are in the table.
    """
    waiting = {chunk.fragment for chunk in todo}
    if not waiting:
        return []
    homes = {uri: int(uri.rsplit("/", 1)[1].split("-")[0]) for uri in uris}
    return sorted(uri for uri, home in homes.items() if home in waiting or home not in fragments)


def _answered_rows(uris: list[str]) -> dict[tuple[str, str], str]:
    """(id, sha256) -> the first checkpoint that has an answer."""
    with concurrent.futures.ThreadPoolExecutor(READERS) as pool:
        tables = pool.map(read_checkpoint, uris)
        found: dict[tuple[str, str], str] = {}
        for uri, table in zip(uris, tables, strict=True):
            for row in zip(table["id"].to_pylist(), table["sha256"].to_pylist(), strict=True):
                found.setdefault(row, uri)
    return found


def _without(
    place: Place,
    chunk: Chunk,
    known: dict[tuple[str, str], str],
    answered: dict[str, str],
    fragments: dict[str, int],
) -> Chunk | None:
    """The chunk without rows that were answered, which are noted; None if nothing is left."""
    mask = []
    for row in zip(chunk.rows["id"].to_pylist(), chunk.rows["sha256"].to_pylist(), strict=True):
        mask.append(row not in known)
        if row in known:
            answered[row[0]], fragments[row[0]] = known[row], chunk.fragment
    if all(mask):
        return chunk
    left = chunk.rows.filter(pa.array(mask)).combine_chunks()
    if left.num_rows == 0:
        return None
    name = f"{chunk.fragment:08d}-{chunk_digest(place.target.digest, left)[:32]}"
    return Chunk(place.checkpoint(name), chunk.fragment, left, chunk.table, chunk.version)
