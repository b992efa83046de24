"""The columns that a stage fills in: which rows they lack, and how checkpoints get into the table.

A checkpoint holds the values of some rows under their ids. It is folded into the table fragment by fragment: rows that others
append meanwhile stay, and other columns are not touched.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from smalti import objects
from smalti.compute import map_tasks
from smalti.errors import CorruptError, InputError
from smalti.sources.inventory import parquet_table
from smalti.table import store

PROFILE = b"smalti:profile"
"""In the metadata of a profile's columns: the digest of all that decides their values."""

FOLD_CPUS = 0.05
"""CPUs of a fold task: it must find room beside preparation tasks that are always at work."""

READ_CHECKPOINTS = 16
"""Checkpoints a task reads at once."""


@dataclass(frozen=True)
class Target:
    """Columns, and whose rows they are for.

    Attributes:
        stage, profile: where the checkpoints are.
        digest: of all that decides the values; another digest never uses these checkpoints.
        outputs: the columns; made if they are not there.
        marker: the output that is null until a row is done.
        inputs: columns that working out a row, or `eligible`, needs.
        eligible: which of the batch's rows are to be done; a mask over id, sha256 and the inputs.
    """

    stage: str
    profile: str
    digest: str
    outputs: pa.Schema
    marker: str
    inputs: tuple[str, ...]
    eligible: Callable[[pa.Table], pa.ChunkedArray]


@dataclass(frozen=True)
class _FoldTask:
    """`rows`: _rowid, id and sha256 of the fragment's rows; `checkpoints` have the values for these ids."""

    table: str
    version: int
    fragment: int
    outputs: pa.Schema
    rows: pa.Table
    checkpoints: tuple[str, ...]


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


def fragments_of(rows: pa.Table) -> pa.ChunkedArray:
    """The fragment of each row, from its address."""
    return pc.shift_right(rows["_rowid"], pa.scalar(32, pa.uint64()))


def _scan(
    table: Any,
    batch: str,
    columns: Sequence[str],
    *,
    addresses: bool = False,
    fragments: Sequence[int] | None = None,
) -> pa.Table:
    """Columns of a batch's rows, in the order of the table; nulls for a column that it does not have yet."""
    has = [name for name in columns if name in table.schema.names]
    with store.lance_errors(table.uri):
        some = None if fragments is None else [f for n in fragments if (f := table.get_fragment(n)) is not None]
        rows = table.scanner(
            columns=has or ["id"],
            filter=f"batch = {store.sql_text(batch)}",
            with_row_id=addresses,
            fragments=some,
        ).to_table()
    for name in columns:
        if name not in has:
            rows = rows.append_column(name, pa.nulls(rows.num_rows))
    return rows


def eligible_rows(table: Any, batch: str, target: Target) -> pa.Table:
    """The batch's rows that are to be done, or are, sorted by id."""
    columns = list(dict.fromkeys(["id", "sha256", target.marker, *target.inputs]))
    rows = _scan(table, batch, columns, addresses=True)
    return rows.filter(target.eligible(rows)).sort_by([("id", "ascending"), ("sha256", "ascending")])


def fold(
    uri: str, batch: str, target: Target, checkpoints: Mapping[str, str], fragments: Sequence[int] | None = None
) -> None:
    """Put the checkpoints' values into the table, in one commit.

    Args:
        checkpoints: id -> URI of the checkpoint with the row's values.
        fragments: where these rows are looked for; None: everywhere.

    Fragments that another writer's commit has left as they were keep what was written for them when the commit has to
    be tried again.
    """
    import lance

    if not checkpoints:
        return
    written: dict[int, tuple[Any, Any, list[int]]] = {}  # fragment -> as it was, as it will be, fields

    def once() -> None:
        table = store.open_table(uri)
        rows = _scan(table, batch, ["id", "sha256", target.marker], addresses=True, fragments=fragments)
        rows = rows.filter(pc.is_null(rows[target.marker]))
        rows = rows.filter(pc.is_in(rows["id"], value_set=pa.array(list(checkpoints), pa.string())))
        if rows.num_rows == 0:
            return  # another driver was faster
        home = fragments_of(rows)
        wanted = {number: table.get_fragment(number).metadata for number in pc.unique(home).to_pylist()}
        tasks = []
        for number, now in wanted.items():
            if number not in written or written[number][0] != now:
                some = rows.filter(pc.equal(home, number)).select(["_rowid", "id", "sha256"]).combine_chunks()
                needed = tuple(sorted({checkpoints[row] for row in some["id"].to_pylist()}))
                tasks.append(_FoldTask(uri, table.version, number, target.outputs, some, needed))
        for task, (after, fields) in zip(tasks, map_tasks(_fold_fragment, tasks, cpus=FOLD_CPUS), strict=True):
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
        parts = list(pool.map(read_checkpoint, task.checkpoints))
    columns = ["id", "sha256", *task.outputs.names]
    values = pa.concat_tables([part.select(columns) for part in parts])
    # By id and bytes: what was said of another picture under the same id is never said of this one.
    at = pc.index_in(_keys(task.rows), value_set=_keys(values).combine_chunks())
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


def _keys(rows: pa.Table) -> pa.ChunkedArray:
    return pc.binary_join_element_wise(rows["id"], rows["sha256"], "\0")


def read_checkpoint(uri: str) -> pa.Table:
    """The rows of a checkpoint: id, sha256, the outputs and what else it keeps. Raises CorruptError, MissingObject."""
    return parquet_table(objects.read_bytes(uri), uri)[0]


def check_profile(table: Any, target: Target) -> None:
    """A column holds what one profile says: a prompt that was changed under the same name would be mixed in."""
    for field in target.outputs:
        stated = (field.metadata or {}).get(PROFILE)
        if stated is None or field.name not in table.schema.names:
            continue
        if (table.schema.field(field.name).metadata or {}).get(PROFILE) != stated:
            raise InputError(
                f"column {field.name} was filled by profile {target.profile!r} as it was before the profile, or what it reads, "
                "was changed",
                table.uri,
                "Undo the change, or save the changed profile under another name",
            )
