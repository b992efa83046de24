"""Fill in columns of a table that is being used: the one mechanism of fingerprint, caption and classify.

The rows of a batch are cut into chunks by id. A task works out one chunk and records it as a create-only checkpoint, which
nobody has to work out again; then the checkpoints are folded into the table, fragment by fragment, in one commit. Rows
that others append meanwhile stay, other columns are not touched, and a run that was killed goes on where it was.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from smalti import objects
from smalti.compute import map_tasks
from smalti.lake import Lake
from smalti.sources.inventory import parquet_bytes
from smalti.table import store
from smalti.table.target import Target, check_profile, chunk_digest, eligible_rows, fold

log = logging.getLogger("smalti")

Results = dict[str, list[Any]]


@dataclass(frozen=True)
class Chunk:
    """Rows that are worked out together.

    Attributes:
        rows: id, sha256 and the inputs, sorted by id.
        table, version, addresses: where their pictures are.
    """

    rows: pa.Table
    table: str
    version: int
    addresses: tuple[int, ...]

    def images(self, indices: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """Index and bytes of each picture asked for, in that order, a few in memory at a time."""
        addresses = [self.addresses[index] for index in indices]
        yield from zip(indices, store.read_images(self.table, self.version, addresses), strict=True)


@dataclass(frozen=True)
class Filling(Target):
    """Columns to fill in, and the function that works out a chunk of them.

    Attributes:
        compute: a function at the top of a module: from (chunk, settings) to a list for each output, in the chunk's order.
            A list under another name ("detail") is kept in the checkpoint only.
        settings: picklable.
        chunk_rows: rows in a chunk, given how many there are; must not depend on what is done already.
    """

    compute: Callable[[Chunk, Any], Results]
    settings: Any
    chunk_rows: Callable[[int], int]
    cpus: float = 1.0


@dataclass(frozen=True)
class Filled:
    """Rows that this run worked out, and that it found in checkpoints."""

    computed: int
    resumed: int


@dataclass(frozen=True)
class _ChunkTask:
    chunk: Chunk
    checkpoint: str
    outputs: pa.Schema
    compute: Callable[[Chunk, Any], Results]
    settings: Any


def backfill(lake: Lake, source: str, batch: str, filling: Filling) -> Filled:
    """Fill in the columns for the batch's eligible rows that lack the marker.

    Raises:
        InputError: the columns were filled by a profile of this name that said something else.
        ConflictError: other writers kept changing the table; the checkpoints stay.
        Whatever `compute` raises; the chunks that were done stay.
    """
    uri = lake.table(source)
    table = store.open_table(uri)
    if table is None:
        return Filled(0, 0)
    check_profile(table, filling)
    tasks = _plan(lake, source, table, eligible_rows(table, batch, filling), filling)
    computed = 0
    for number, new in enumerate(map_tasks(_work_out, tasks, cpus=filling.cpus), 1):
        computed += new
        log.info("%s: %d of %d chunks", filling.stage, number, len(tasks))
    # Columns are made when there is something to put in: an engine that cannot start leaves the table as it was.
    check_profile(store.ensure_columns(uri, filling.outputs), filling)
    fold(uri, batch, filling, {row: t.checkpoint for t in tasks for row in t.chunk.rows["id"].to_pylist()})
    return Filled(computed, sum(task.chunk.rows.num_rows for task in tasks) - computed)


def _plan(lake: Lake, source: str, table: Any, rows: pa.Table, filling: Filling) -> list[_ChunkTask]:
    """Chunks over all eligible rows, done or not, so that their boundaries stay; then those with something to do."""
    size = filling.chunk_rows(rows.num_rows)
    tasks = []
    for start in range(0, rows.num_rows, size):
        part = rows.slice(start, size)
        part = part.filter(pc.is_null(part[filling.marker])).combine_chunks()
        if part.num_rows:
            name = chunk_digest(filling.digest, part)
            tasks.append(
                _ChunkTask(
                    chunk=Chunk(
                        rows=part.select(list(dict.fromkeys(["id", "sha256", *filling.inputs]))),
                        table=table.uri,
                        version=table.version,
                        addresses=tuple(part["_rowid"].to_pylist()),
                    ),
                    checkpoint=lake.checkpoint(source, filling.stage, filling.profile, name),
                    outputs=filling.outputs,
                    compute=filling.compute,
                    settings=filling.settings,
                )
            )
    return tasks


def _work_out(task: _ChunkTask) -> int:
    """Make the chunk's checkpoint. Returns how many rows were worked out: none if it was there."""
    if objects.exists(task.checkpoint):
        return 0
    rows = task.chunk.rows
    results = task.compute(task.chunk, task.settings)
    columns = {"id": rows["id"], "sha256": rows["sha256"]}
    for field in task.outputs:
        columns[field.name] = pa.array(results[field.name], field.type)
    for name in results.keys() - columns.keys():
        columns[name] = pa.array(results[name], pa.string())
    objects.create_bytes(
        task.checkpoint, parquet_bytes(pa.table(columns), {})
    )  # two tries at once: the first one counts
    return int(rows.num_rows)
