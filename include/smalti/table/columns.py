"""Fill in columns of a table that is being used: the one mechanism of fingerprint, caption and classify.

The rows of a batch are cut into chunks by id. A task works out one chunk and records it as a create-only checkpoint, which
nobody has to work out again; then the checkpoints are folded into the table, fragment by fragment, in one commit. Rows
that others append meanwhile stay, other columns are not touched, and a run that was killed goes on where it was.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from smalti import objects
from smalti.compute import map_tasks
from smalti.errors import CorruptError, InputError
from smalti.lake import Lake
from smalti.sources.inventory import parquet_bytes, parquet_table
from smalti.table import store

log = logging.getLogger("smalti")

PROFILE = b"smalti:profile"
"""In the metadata of a profile's columns: the digest of all that decides their values."""

READ_IMAGES = 16
"""Pictures a task reads from the table at once."""

READ_CHECKPOINTS = 16
"""Checkpoints a task reads at once."""

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
        table = store.open_table(self.table, self.version)
        for start in range(0, len(indices), READ_IMAGES):
            some = indices[start : start + READ_IMAGES]
            with store.lance_errors(self.table):
                blobs = table.read_blobs("image", ids=[self.addresses[i] for i in some], preserve_order=True)
            yield from zip(some, (bytes(data) for _, data in blobs), strict=True)


@dataclass(frozen=True)
class Filling:
    """Columns to fill in, and how.

    Attributes:
        stage, profile: where the checkpoints are.
        digest: of all that decides the values; another digest never uses these checkpoints.
        outputs: the columns; made if they are not there.
        marker: the output that is null until a row is done.
        inputs: columns that `compute` or `eligible` needs.
        eligible: which of the batch's rows are to be done; a mask over id, sha256 and the inputs.
        compute: a function at the top of a module: from (chunk, settings) to a list for each output, in the chunk's order.
            A list under another name ("detail") is kept in the checkpoint only.
        settings: picklable.
        chunk_rows: rows in a chunk, given how many there are; must not depend on what is done already.
    """

    stage: str
    profile: str
    digest: str
    outputs: pa.Schema
    marker: str
    inputs: tuple[str, ...]
    eligible: Callable[[pa.Table], pa.ChunkedArray]
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


@dataclass(frozen=True)
class _FoldTask:
    """`rows`: _rowid and id of the fragment's rows; `checkpoints` have the values for these ids."""

    table: str
    version: int
    fragment: int
    outputs: pa.Schema
    rows: pa.Table
    checkpoints: tuple[str, ...]


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
    _check_profile(table, filling)
    tasks = _plan(lake, source, table, _eligible_rows(table, batch, filling), filling)
    computed = 0
    for number, new in enumerate(map_tasks(_work_out, tasks, cpus=filling.cpus), 1):
        computed += new
        log.info("%s: %d of %d chunks", filling.stage, number, len(tasks))
    # Columns are made when there is something to put in: an engine that cannot start leaves the table as it was.
    _check_profile(store.ensure_columns(uri, filling.outputs), filling)
    _fold(uri, batch, filling, {row: t.checkpoint for t in tasks for row in t.chunk.rows["id"].to_pylist()})
    return Filled(computed, sum(task.chunk.rows.num_rows for task in tasks) - computed)


def chunk_digest(profile: str, rows: pa.Table) -> str:
    """The name of a chunk's checkpoint: the rows (id, sha256) and the digest of what was done with them."""
    digest = hashlib.sha256(profile.encode())
    for row, sha256 in zip(rows["id"].to_pylist(), rows["sha256"].to_pylist(), strict=True):
        digest.update(f"\n{row}\0{sha256}".encode())
    return digest.hexdigest()


def batch_table(uri: str, batch: str, columns: Sequence[str]) -> pa.Table | None:
    """Columns of a batch's rows in the newest version, without order; None without a table, null where a column lacks."""
    table = store.open_table(uri)
    return None if table is None else _scan(table, batch, columns)


def _scan(table: Any, batch: str, columns: Sequence[str], *, addresses: bool = False) -> pa.Table:
    """Columns of a batch's rows, in the order of the table; nulls for a column that it does not have yet."""
    has = [name for name in columns if name in table.schema.names]
    with store.lance_errors(table.uri):
        rows = table.scanner(
            columns=has or ["id"], filter=f"batch = {store.sql_text(batch)}", with_row_id=addresses
        ).to_table()
    for name in columns:
        if name not in has:
            rows = rows.append_column(name, pa.nulls(rows.num_rows))
    return rows


def _eligible_rows(table: Any, batch: str, filling: Filling) -> pa.Table:
    """The batch's rows that are to be done, or are, sorted by id."""
    columns = list(dict.fromkeys(["id", "sha256", filling.marker, *filling.inputs]))
    rows = _scan(table, batch, columns, addresses=True)
    return rows.filter(filling.eligible(rows)).sort_by([("id", "ascending"), ("sha256", "ascending")])


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


def _fold(uri: str, batch: str, filling: Filling, checkpoints: dict[str, str]) -> None:
    """Put the checkpoints' values into the table, in one commit.

    Fragments that another writer's commit has left as they were keep what was written for them when the commit has to
    be tried again.
    """
    import lance

    if not checkpoints:
        return
    written: dict[int, tuple[Any, Any, list[int]]] = {}  # fragment -> as it was, as it will be, fields

    def once() -> None:
        table = store.open_table(uri)
        rows = _scan(table, batch, ["id", filling.marker], addresses=True)
        rows = rows.filter(pc.is_null(rows[filling.marker]))
        rows = rows.filter(pc.is_in(rows["id"], value_set=pa.array(list(checkpoints), pa.string())))
        if rows.num_rows == 0:
            return  # another driver was faster
        fragments = pc.shift_right(rows["_rowid"], pa.scalar(32, pa.uint64()))
        wanted = {number: table.get_fragment(number).metadata for number in pc.unique(fragments).to_pylist()}
        tasks = []
        for number, now in wanted.items():
            if number not in written or written[number][0] != now:
                some = rows.filter(pc.equal(fragments, number)).select(["_rowid", "id"]).combine_chunks()
                needed = tuple(sorted({checkpoints[row] for row in some["id"].to_pylist()}))
                tasks.append(_FoldTask(uri, table.version, number, filling.outputs, some, needed))
        for task, (after, fields) in zip(tasks, map_tasks(_fold_fragment, tasks), strict=True):
            written[task.fragment] = (wanted[task.fragment], after, fields)
        lance.LanceDataset.commit(
            table,
            lance.LanceOperation.Update(
                updated_fragments=[written[number][1] for number in wanted],
                fields_modified=sorted({field for number in wanted for field in written[number][2]}),
            ),
            read_version=table.version,
            storage_options=objects.lance_options(uri),
        )

    store.retried(uri, once)


def _fold_fragment(task: _FoldTask) -> tuple[Any, list[int]]:
    """Write the columns of one fragment anew. Returns its metadata, which nobody sees before it is committed, and fields."""
    with concurrent.futures.ThreadPoolExecutor(READ_CHECKPOINTS) as pool:
        parts = list(pool.map(_checkpoint, task.checkpoints))
    columns = ["id", *task.outputs.names]
    values = pa.concat_tables([part.select(columns) for part in parts])
    at = pc.index_in(task.rows["id"], value_set=values["id"].combine_chunks())
    if at.null_count:
        raise CorruptError(
            f"{at.null_count} rows are in no checkpoint",
            task.checkpoints[0],
            "Remove the checkpoints, and run the stage again",
        )
    found = values.take(at)
    update = pa.table(
        [task.rows["_rowid"], *(found[field.name].cast(field.type) for field in task.outputs)],
        names=["_rowid", *task.outputs.names],
    )
    table = store.open_table(task.table, task.version)
    with store.lance_errors(task.table):
        after, fields = table.get_fragment(task.fragment).update_columns(update)
    return after, list(fields)


def _checkpoint(uri: str) -> pa.Table:
    return parquet_table(objects.read_bytes(uri), uri)[0]


def _check_profile(table: Any, filling: Filling) -> None:
    """A column holds what one profile says: a prompt that was changed under the same name would be mixed in."""
    for field in filling.outputs:
        stated = (field.metadata or {}).get(PROFILE)
        if stated is None or field.name not in table.schema.names:
            continue
        if (table.schema.field(field.name).metadata or {}).get(PROFILE) != stated:
            raise InputError(
                f"column {field.name} was filled by profile {filling.profile!r} as it was before the profile, or what it reads, "
                "was changed",
                table.uri,
                "Undo the change, or save the changed profile under another name",
            )
