"""What was asked back after it was fingerprinted is left out before a captioner is shown it.

The fingerprint stage drops what is asked for as it comes. A request that came since, and a copy of a row that was dropped in the same batch, are
found here: the ledger looks at what was dropped (`smalti.optouts.ledger.settle`), and the watch then knows that, too.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from smalti import objects
from smalti.compute import Shared, map_tasks, share
from smalti.lake import Lake
from smalti.optouts.ledger import settle
from smalti.optouts.watch import KEY_COLUMNS, Watch, load_watch
from smalti.reasons import DropReason
from smalti.shards.samples import check_thumbnails
from smalti.table import store
from smalti.table.target import fragments_of

log = logging.getLogger("smalti")

_ROWS = 1 << 16
"""Rows that a task looks at at a time: 12 MiB of thumbnails."""

_COLUMNS = ("id", "sha256", *KEY_COLUMNS, "phash", "colour", "flat", "width", "height")


@dataclass(frozen=True)
class _Task:
    """One fragment's rows of a batch."""

    table: str
    version: int
    fragment: int
    waiting: str
    watch: Shared[Watch]


def leave_out(lake: Lake, source: str, batch: str, marker: str) -> int:
    """Drop as `optout`, in the table, the batch's rows that are asked back by now. Returns how many there were.

    Args:
        marker: the column that says which rows are done: those stay, and the ledger has them out of the parts they get into.
    """
    found = 0
    while load_watch(lake) is not None:
        settle(lake)
        watch = load_watch(lake)
        dropped = _drop(lake.table(source), batch, marker, share(watch)) if watch else 0
        if not dropped:
            break
        found += dropped  # copies of these may be in the batch, too
    if found:
        log.info("%d rows of batch %s are asked back since they were fingerprinted", found, batch)
    return found


def _drop(uri: str, batch: str, marker: str, watch: Shared[Watch]) -> int:
    table = store.open_table(uri)
    if table is None:
        return 0
    waiting = f"batch = {store.sql_text(batch)} AND drop IS NULL"
    waiting += f" AND {marker} IS NULL" if marker in table.schema.names else ""
    tasks = [_Task(uri, table.version, fragment.fragment_id, waiting, watch) for fragment in table.get_fragments()]
    asked = {row for rows in map_tasks(_look, tasks) for row in rows}
    return _write(uri, waiting, asked) if asked else 0


def _look(task: _Task) -> list[tuple[str, str]]:
    """id and sha256 of rows that are asked back."""
    watch = task.watch.get()
    found: list[tuple[str, str]] = []
    table = store.open_table(task.table, task.version)
    with store.lance_errors(task.table):
        batches = table.scanner(
            columns=list(_COLUMNS),
            filter=task.waiting,
            fragments=[table.get_fragment(task.fragment)],
            batch_size=_ROWS,
        ).to_batches()
        for each in batches:
            rows = pa.Table.from_batches([each])
            check_thumbnails(rows["colour"], task.table)
            asked = pc.or_(pa.array(watch.asks(rows), pa.bool_()), pa.array(watch.knows_of(rows)))
            some = rows.filter(asked)
            found += zip(some["id"].to_pylist(), some["sha256"].to_pylist(), strict=True)
    return found


def _write(uri: str, waiting: str, asked: set[tuple[str, str]]) -> int:
    """Fill in what the fingerprint stage says of a row that is asked back."""
    import lance

    ids = pa.array(sorted({row for row, _ in asked}), pa.string())
    count = 0

    def once() -> None:
        nonlocal count
        table = store.open_table(uri)
        with store.lance_errors(uri):
            rows = table.scanner(columns=["id", "sha256"], filter=waiting, with_row_id=True).to_table()
        rows = rows.filter(pc.is_in(rows["id"], value_set=ids))
        pairs = zip(rows["id"].to_pylist(), rows["sha256"].to_pylist(), strict=True)
        rows = rows.filter(pa.array([pair in asked for pair in pairs], pa.bool_()))
        count = rows.num_rows
        if not count:
            return
        home, fields, fragments = fragments_of(rows), set[int](), []
        for number in sorted(pc.unique(home).to_pylist()):
            some = rows.filter(pc.equal(home, number))
            with store.lance_errors(uri):
                after, modified = table.get_fragment(number).update_columns(_dropped(some))
            fragments.append(after)
            fields.update(modified)
        lance.LanceDataset.commit(
            table,
            lance.LanceOperation.Update(updated_fragments=fragments, fields_modified=sorted(fields)),
            read_version=table.version,
            storage_options=objects.lance_options(uri),
        )

    store.retried(uri, once)
    return count


def _dropped(rows: pa.Table) -> Any:
    reason = DropReason.OPTOUT.value
    return pa.table({
        "_rowid": rows["_rowid"],
        "tier": pa.array([0] * rows.num_rows, pa.int32()),
        "ar": pa.nulls(rows.num_rows, pa.string()),
        "drop": pa.array([reason] * rows.num_rows, pa.string()),
    })
