"""Format `parquet`: rows that hold the images' bytes, in a binary column or in a struct with a field `bytes`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from smalti import objects
from smalti.config import Columns
from smalti.errors import InputError, LakeError
from smalti.settings import SourceRun
from smalti.sources.inventory import Inventory
from smalti.sources.rows import (
    FIELDS,
    Reject,
    SourcePlan,
    SourceRow,
    as_text,
    check_keys,
    embedding_size,
    map_columns,
    split_evenly,
    to_fields,
)

GROUP_ROWS = 2000
GROUP_BYTES = 256 << 20
"""Bounds of what one task reads, in whole row groups; it holds READ_ROWS rows at a time."""

READ_ROWS = 32


@dataclass(frozen=True)
class ParquetGroup:
    """Some row groups of one object; `first` is the number of their first row in it, `rows` how many are taken."""

    uri: str
    generation: str
    columns: Columns
    row_groups: tuple[int, ...]
    first: int
    rows: int

    def read(self) -> Iterator[SourceRow | Reject]:
        with _opened(self.uri, self.generation) as file:
            mapping = map_columns(file.schema_arrow, self.columns, self.uri)
            image = mapping.get("image")
            assert image is not None  # config: format parquet needs it
            at = 0
            names = list(dict.fromkeys([*mapping.columns, image]))
            for batch in file.iter_batches(READ_ROWS, row_groups=list(self.row_groups), columns=names):
                table = pa.Table.from_batches([batch])
                fields = to_fields(table, mapping).to_pylist()
                for row, data in zip(fields, _pictures(table[image]), strict=True):
                    if at == self.rows:
                        return
                    yield SourceRow(uri=f"{self.uri}#row={self.first + at}", data=data, **row)
                    at += 1


def plan_parquet(run: SourceRun, inventory: Inventory) -> SourcePlan:
    """Check every file of the batch by its footer and its keys, and cut it into groups.

    Raises:
        InputError: a file cannot be read, was changed since it was staged, or `rows.map_columns` or `rows.check_keys`
            refuse it.
    """
    groups: list[ParquetGroup] = []
    keys: list[pa.Array] = []
    size: int | None = None
    for pinned in inventory.objects.to_pylist():
        with _opened(pinned["uri"], pinned["generation"]) as file:
            mapping = map_columns(file.schema_arrow, run.source.columns, pinned["uri"])
            column = run.source.columns.key
            keys += as_text(file.read(columns=[column])[column]).chunks
            size = size or _embedding(file, mapping.get("embedding"), pinned["uri"])
            groups += _groups(file.metadata, pinned, run.source.columns)
    check_keys(pa.chunked_array(keys, pa.string()), inventory.root, paths=False)
    if run.limit is not None:
        groups = _first_rows(groups, run.limit)
    return SourcePlan(sum(group.rows for group in groups), tuple(groups), (), size)


def _groups(meta: Any, pinned: dict[str, Any], columns: Columns) -> list[ParquetGroup]:
    counts = [meta.row_group(i).num_rows for i in range(meta.num_row_groups)]
    most = max(1, GROUP_ROWS // max([1, *counts]))
    runs = split_evenly([meta.row_group(i).total_byte_size for i in range(len(counts))], most, GROUP_BYTES)
    return [
        ParquetGroup(
            pinned["uri"], pinned["generation"], columns, tuple(range(a, b)), sum(counts[:a]), sum(counts[a:b])
        )
        for a, b in runs
    ]


def _first_rows(groups: list[ParquetGroup], limit: int) -> list[ParquetGroup]:
    taken: list[ParquetGroup] = []
    for group in groups:
        left = limit - sum(each.rows for each in taken)
        if left <= 0:
            break
        taken.append(
            ParquetGroup(
                group.uri, group.generation, group.columns, group.row_groups, group.first, min(left, group.rows)
            )
        )
    return taken


def _embedding(file: pq.ParquetFile, column: str | None, where: str) -> int | None:
    """The size of the embeddings, from the first row group that has one; the table's column refuses others."""
    if column is None:
        return None
    kind = FIELDS.field("embedding").type
    for number in range(file.num_row_groups):
        found = embedding_size(file.read_row_group(number, columns=[column])[column].cast(kind), where)
        if found:
            return found
    return None


def _pictures(column: pa.ChunkedArray) -> list[bytes]:
    """The bytes of each row's picture; none where there is no picture."""
    values = column.combine_chunks()
    if pa.types.is_struct(values.type):
        values = values.field("bytes") if values.null_count == 0 else pa.compute.struct_field(values, "bytes")
    return [value or b"" for value in values.to_pylist()]


@contextlib.contextmanager
def _opened(uri: str, generation: str) -> Iterator[pq.ParquetFile]:
    info = objects.stat(uri)
    if info is None or info.generation != generation:
        raise InputError(
            "the file was " + ("removed" if info is None else "changed") + " after the batch was staged",
            uri,
            "Start a new batch",
        )
    with objects.open_binary(uri) as raw:
        try:
            yield pq.ParquetFile(raw)
        except pa.ArrowInvalid as error:
            raise InputError(f"the file cannot be read as parquet ({error})", uri, "Mend or remove the file") from error
        except OSError as error:
            raise LakeError(
                f"the file cannot be read ({error})", uri, "Try again; if it stays, check the file"
            ) from error
