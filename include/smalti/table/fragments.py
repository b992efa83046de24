"""What one task of ingest does: read a group of rows, look at every picture, write what is new as uncommitted fragments."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from smalti import objects
from smalti.compute import Shared
from smalti.errors import InputError
from smalti.images.decode import DecodeError, decode, probe
from smalti.images.fingerprint import fingerprint
from smalti.optouts.watch import KEY_COLUMNS, Watch
from smalti.reasons import RejectReason
from smalti.sources.rows import Group, Reject, SourceRow
from smalti.table import store
from smalti.table.schema import EMBEDDING, RESERVED, table_schema

BATCH_ROWS = 64
BATCH_BYTES = 64 << 20
"""What a task holds before it hands it to the writer."""


@dataclass(frozen=True)
class FragmentTask:
    """One group of rows on its way into the table.

    Attributes:
        version: of the table, to find rows that it holds already; None: it holds none.
        licence: of rows that state none.
        reserved: whether the source says of each picture if it is reserved.
        settled: keys that an earlier try has rejected.
        erased: what is asked to be erased, None: nothing; a row that its keys name, or that shows such a picture, does not enter the table.
    """

    table: str
    version: int | None
    source: str
    batch: str
    licence: str | None
    max_pixels: int
    embedding: int | None
    reserved: bool
    group: Group
    settled: frozenset[str]
    erased: Shared[Watch] | None = None


@dataclass(frozen=True)
class FragmentOutcome:
    """Fragments (lance.FragmentMetadata) that nobody sees before the driver commits them, and what was left out."""

    fragments: tuple[Any, ...]
    unchanged: int
    rejects: tuple[Reject, ...]
    erased: int = 0


def write_group(task: FragmentTask) -> FragmentOutcome:
    """Read, check and write one group, a bounded number of bytes at a time."""
    from lance.fragment import write_fragments

    rejects: list[Reject] = []
    unchanged: list[str] = []
    erased: list[int] = []
    failures: list[Exception] = []
    schema = table_schema(task.embedding, task.reserved)

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            for gathered in _gathered(task, rejects, erased):
                rows = _not_named(task, gathered)
                erased.append(len(gathered) - len(rows))
                new = _new_rows(task, rows)
                unchanged.extend({row["id"] for row in rows} - {row["id"] for row in new})
                if new:
                    yield _record_batch(new, schema)
        except Exception as error:  # Lance would raise it as its own
            failures.append(error)
            raise

    stream = batches()
    first = next(stream, None)
    fragments: Sequence[Any] = ()
    if first is not None:
        try:
            with store.lance_errors(task.table):
                fragments = write_fragments(
                    pa.RecordBatchReader.from_batches(schema, itertools.chain([first], stream)),
                    task.table,
                    schema=schema,
                    mode="append",
                    data_storage_version=store.STORAGE_VERSION,
                    storage_options=objects.lance_options(task.table),
                )
        except Exception:
            if failures:
                raise failures[0] from None
            raise
    return FragmentOutcome(tuple(fragments), len(unchanged), tuple(rejects), sum(erased))


def check_picture(row: SourceRow, max_pixels: int, erased: Watch | None = None) -> dict[str, Any] | Reject | None:
    """Format, upright size and hash of a picture that decodes to its end; otherwise why it does not. None: it is asked to be erased.

    Args:
        erased: what is; a picture is compared with its pictures while it is decoded, not with its keys.
    """
    if not row.data:
        return Reject(row.key, row.uri, RejectReason.EMPTY, "it has no bytes")
    try:
        header = probe(row.data, max_pixels)
        picture = decode(row.data, max_pixels)
    except DecodeError as error:
        return Reject(row.key, row.uri, error.reason, error.detail)
    width, height = picture.size
    if erased is not None and len(erased.phash) and erased.knows(fingerprint(picture), width, height):
        return None
    return {
        "format": header.format,
        "width": width,
        "height": height,
        "bytes": len(row.data),
        "sha256": hashlib.sha256(row.data).hexdigest(),
    }


def url_host(url: str | None) -> str | None:
    """The host of a URL in lower case; None if it has none."""
    try:
        return urlsplit(url).hostname if url else None
    except ValueError:
        return None


def _gathered(task: FragmentTask, rejects: list[Reject], erased: list[int]) -> Iterator[list[dict[str, Any]]]:
    """The rows of the group that hold a picture, some at a time; the others go to `rejects`, or are counted by `erased`."""
    watch = task.erased.get() if task.erased is not None else None
    rows: list[dict[str, Any]] = []
    size = 0
    for row in task.group.read():
        if row.key in task.settled:
            continue
        if isinstance(row, Reject):
            rejects.append(row)
            continue
        checked = check_picture(row, task.max_pixels, watch)
        if isinstance(checked, Reject):
            rejects.append(checked)
            continue
        if checked is None:
            erased.append(1)
            continue
        rows.append(_table_row(task, row, checked))
        size += len(row.data)
        if len(rows) >= BATCH_ROWS or size >= BATCH_BYTES:
            yield rows
            rows, size = [], 0
    if rows:
        yield rows


def _table_row(task: FragmentTask, row: SourceRow, picture: dict[str, Any]) -> dict[str, Any]:
    if row.embedding is not None and len(row.embedding) != task.embedding:
        raise InputError(
            f"row {row.key!r} has an embedding of {len(row.embedding)} numbers, and others have {task.embedding}",
            row.uri,
            "Give every row an embedding of one model, or none",
        )
    return {
        "id": f"{task.source}/{row.key}",
        "source": task.source,
        "batch": task.batch,
        "uri": row.uri,
        **picture,
        "image": row.data,
        "caption_source": row.caption,
        EMBEDDING: row.embedding,
        "owner": row.owner,
        "licence": row.licence or task.licence,
        "url": row.url,
        "url_host": url_host(row.url),
        RESERVED.name: row.reserved,
        "metadata": row.metadata,
    }


def _not_named(task: FragmentTask, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without the rows that a request to erase names: their bytes are to be nowhere in the lake."""
    if task.erased is None:
        return rows
    columns = pa.schema([(name, pa.string()) for name in ("id", "sha256", *KEY_COLUMNS)])
    asked = task.erased.get().asks(pa.Table.from_pylist(rows, columns))
    return [row for row, is_asked in zip(rows, asked, strict=True) if not is_asked]


def _new_rows(task: FragmentTask, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without the rows whose id the table holds with these bytes and no others.

    An id that the table holds with several bytes is taken again: which of them came last does not show in the table (a
    compaction moves old rows behind newer ones), and an unneeded row does no harm where a missing one would.
    """
    if task.version is None or not rows:
        return rows
    with store.lance_errors(task.table):
        table = store.open_table(task.table, task.version)
        ids = store.sql_texts([row["id"] for row in rows])
        held = table.scanner(columns=["id", "sha256"], filter=f"id IN ({ids})").to_table()
    known: dict[str, set[str]] = {}
    for each in held.to_pylist():
        known.setdefault(each["id"], set()).add(each["sha256"])
    return [row for row in rows if known.get(row["id"]) != {row["sha256"]}]


def _record_batch(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    import lance

    return pa.RecordBatch.from_arrays(
        [
            lance.blob_array([row["image"] for row in rows])
            if field.name == "image"
            else pa.array([row.get(field.name) for row in rows], field.type)
            for field in schema
        ],
        schema=schema,
    )
