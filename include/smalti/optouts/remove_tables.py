"""Removes rows from a source's table so that neither their pictures nor their ids are in any file of it.

delete -> indices anew -> fragments without what was deleted -> a barrier -> the versions before it

The order matters. Indices are made before the compaction, which maps them, and after the deletion, so that none knows the rows. The
barrier is a commit that changes nothing and states every fragment: whoever began on an older version and commits now is in conflict
with it, and decides again on the newest. Without it a writer's conflict with a version that is gone is not seen (measured: a fold
was committed and had no effect; a merge would have brought fragments back whose files are deleted).

What no version names is left to Lance, which deletes it after 7 days: `delete_unverified` would take the files of a writer that has not
committed yet, whose commit then succeeds and breaks the table (measured). So a table in which a killed writer left such a picture is
proved when these are over.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

from smalti.table import store
from smalti.table.index import check_blobs, fragment_rows, wanted_indices

log = logging.getLogger("smalti")

_NEVER = timedelta(days=36500)

_IDS = 2000
"""Ids in one filter."""


def _filters(ids: Sequence[str]) -> Iterator[str]:
    """Filters that together let the rows of these ids through."""
    for start in range(0, len(ids), _IDS):
        yield f"id IN ({store.sql_texts(ids[start : start + _IDS])})"


def rows_of_ids(table: Any, ids: Sequence[str], columns: Sequence[str]) -> list[dict[str, Any]]:
    """Every row with one of these ids, with its `_rowid`; an id may have several."""
    found: list[dict[str, Any]] = []
    for where in _filters(ids):
        found += table.scanner(columns=list(columns), filter=where, with_row_id=True).to_table().to_pylist()
    return found


def remove_rows(uri: str, ids: Sequence[str]) -> int:
    """Remove the rows with these ids and everything that shows they were there. A second time nothing changes.

    Returns: rows that this call deleted.
    Raises:
        ConflictError: other writers kept changing the table; the rows are out of its newest version, perhaps.
        CorruptError: pictures that are to stay are not what they were.
    """
    table = store.open_table(uri)
    if table is None:
        return 0
    deleted = store.retried(uri, functools.partial(_delete, uri, ids))
    table = store.open_table(uri)
    stale = _knows_what_is_gone(table) or _marks_deletions(table)
    if stale:
        for column, kind in wanted_indices(table.schema):
            store.retried(uri, functools.partial(_index_anew, uri, column, kind))
        store.retried(uri, functools.partial(_compact, uri))
    if stale or _shows_in_an_old_version(uri, ids):
        _forget(uri)
    with store.lance_errors(uri):  # no version, but what no version names and is old enough
        store.open_table(uri).cleanup_old_versions(older_than=_NEVER)
    return deleted


def _delete(uri: str, ids: Sequence[str]) -> int:
    table = store.open_table(uri)
    before = table.count_rows()
    for where in _filters(ids):
        if table.count_rows(where):
            table.delete(where)
    return int(before - table.count_rows())


def _marks_deletions(table: Any) -> bool:
    """Whether there are rows that are only marked as deleted."""
    return any(fragment.num_deletions for fragment in table.get_fragments())


def _knows_what_is_gone(table: Any) -> bool:
    """Whether an index still knows a fragment that was deleted whole."""
    there = {fragment.fragment_id for fragment in table.get_fragments()}
    return any(
        number not in there
        for index in table.describe_indices()
        for segment in index.segments
        for number in segment.fragment_ids
    )


def _index_anew(uri: str, column: str, kind: str) -> None:
    """Make an index anew that is there; it is used until the new one is."""
    table = store.open_table(uri)
    if any(list(each.field_names) == [column] for each in table.describe_indices()):
        table.create_scalar_index(column, kind, replace=True)


def _compact(uri: str) -> None:
    """Write every fragment anew that marks a row as deleted."""
    import pyarrow.compute as pc

    table = store.open_table(uri)
    if not _marks_deletions(table):
        return
    size = pc.sum(table.to_table(columns=["bytes"])["bytes"]).as_py() or 0
    table.optimize.compact_files(
        target_rows_per_fragment=fragment_rows(table.count_rows(), size),
        materialize_deletions=True,
        materialize_deletions_threshold=0.0,
        batch_size=64,
    )
    check_blobs(store.open_table(uri))


def _shows_in_an_old_version(uri: str, ids: Sequence[str]) -> bool:
    """Whether a version that can still be opened has one of the rows, or marks rows as deleted."""
    newest = store.open_table(uri)
    for each in newest.versions()[:-1]:
        table = store.open_table(uri, each["version"])
        if _marks_deletions(table) or _knows_what_is_gone(table) or any(map(table.count_rows, _filters(ids))):
            return True
    return False


def _forget(uri: str) -> None:
    """Delete every version before now. A task that reads one fails, and its stage is run again."""
    barrier = store.retried(uri, lambda: store.append_fragments(store.open_table(uri), []))
    table = store.open_table(uri)
    old = [each["version"] for each in table.versions() if each["version"] < barrier.version]
    with store.lance_errors(uri):
        done = table.cleanup_old_versions(versions=old, delete_unverified=False)
    log.info("opt-outs: %s: %d versions removed", uri, done.old_versions)
