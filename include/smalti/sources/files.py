"""Format `files`: images in a folder, and a parquet, csv or jsonl table that lists them. The key is the image's path."""

from __future__ import annotations

import collections
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from smalti import objects
from smalti.config import Source
from smalti.errors import InputError, LakeError, MissingObject
from smalti.lake import Lake
from smalti.optouts.removed import place_digest, removed_places
from smalti.reasons import RejectReason
from smalti.settings import SourceRun
from smalti.sources.inventory import Inventory, read_inventory, read_rejects
from smalti.sources.rows import (
    FIELDS,
    Reject,
    SourcePlan,
    SourceRow,
    check_keys,
    embedding_size,
    map_columns,
    split_evenly,
    to_fields,
)

GROUP_ROWS = 500
GROUP_BYTES = 256 << 20
"""Bounds of what one task reads. A small batch is cut finer, so that there is something to do at once."""


@dataclass(frozen=True)
class FilesGroup:
    """FIELDS and the pinned object (uri, generation, size) of each row."""

    rows: pa.Table

    def read(self) -> Iterator[SourceRow | Reject]:
        for row in self.rows.to_pylist():
            fields = {name: row[name] for name in FIELDS.names}
            data = _read_pinned(row["key"], row["uri"], row["generation"], row["size"])
            yield data if isinstance(data, Reject) else SourceRow(uri=row["uri"], data=data, **fields)


def plan_files(lake: Lake, run: SourceRun, inventory: Inventory) -> SourcePlan:
    """Match the rows of the table with the objects of the batch.

    A row whose image an earlier batch has listed is no part of this one; one that has no image is rejected once.

    Raises:
        InputError: the table cannot be read, was changed since it was staged, or `rows.map_columns` or
            `rows.check_keys` refuse it.
    """
    source, table_uri = run.source, inventory.table
    if table_uri is None:
        raise InputError(
            f"batch {run.batch!r} was staged for another format",
            lake.inventory(source.name, run.batch),
            "Run it under another batch name",
        )
    raw = read_table(_pinned_table(inventory, table_uri), table_uri)
    mapping = map_columns(raw.schema, source.columns, table_uri)
    fields = to_fields(raw, mapping)
    check_keys(fields["key"], table_uri, paths=True)
    size = embedding_size(fields["embedding"], table_uri)

    fields = fields.append_column("uri", image_uris(inventory.images, fields["key"]))
    pictures = inventory.pictures().select(["uri", "generation", "size"])
    found = _with_objects(fields, pictures)
    orphans = pictures.join(fields.select(["uri"]), "uri", join_type="left anti").sort_by("uri")
    lost = _missing(lake, source, inventory, fields) if inventory.limit is None else fields.slice(0, 0)
    rejects = [
        *(Reject(key, uri, RejectReason.MISSING_OBJECT, "the table lists it") for key, uri in _keys_and_uris(lost)),
        *(
            Reject(image_key(inventory.images, uri), uri, RejectReason.NO_TABLE_ROW, "no row has this key")
            for uri in orphans["uri"].to_pylist()
        ),
    ]
    return SourcePlan(
        rows_in=found.num_rows + lost.num_rows + orphans.num_rows,
        groups=tuple(FilesGroup(found.slice(a, b - a).take(list(range(b - a)))) for a, b in _runs(found)),
        rejects=tuple(rejects),
        embedding=size,
    )


def read_table(data: bytes, uri: str) -> pa.Table:
    """A source's table by the end of its name. Texts of a csv stay texts: 007 is not 7.

    Raises:
        InputError: it is empty or cannot be read; names the line where there is one.
    """
    try:
        if uri.endswith(".parquet"):
            return pq.read_table(pa.BufferReader(data))
        return _read_csv(data, uri) if uri.endswith(".csv") else _read_jsonl(data, uri)
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        raise InputError(f"the table cannot be read ({error})", uri, "Mend the table") from error


def image_key(images: str, uri: str) -> str:
    """The path of an object below the image folder."""
    name = uri[len(images.rstrip("/")) + 1 :]
    return unquote(name) if uri.startswith("file://") else name


def image_uris(images: str, keys: pa.ChunkedArray) -> pa.Array:
    """The URI of each key's image."""
    local = images.startswith("file://")
    return pa.array([objects.join_uri(images, quote(key) if local else key) for key in keys.to_pylist()], pa.string())


def _read_csv(data: bytes, uri: str) -> pa.Table:
    import pyarrow.csv as csv

    if not data.strip():
        raise InputError("the table is empty", uri, "Write a line with the column names, and a line for each image")
    parse = csv.ParseOptions(newlines_in_values=True)
    names = csv.open_csv(io.BytesIO(data), parse_options=parse).schema.names
    options = csv.ConvertOptions(
        column_types={name: pa.string() for name in names}, strings_can_be_null=True, null_values=[""]
    )
    return csv.read_csv(io.BytesIO(data), parse_options=parse, convert_options=options)


def _read_jsonl(data: bytes, uri: str) -> pa.Table:
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(data.decode("utf-8").split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line, object_pairs_hook=_once)
        except ValueError as error:
            raise InputError(f"this line is not JSON ({error})", f"{uri}:{number}", "Mend the line") from error
        if not isinstance(row, dict):
            raise InputError("this line is not a JSON object", f"{uri}:{number}", "Write {...} on every line")
        rows.append(row)
    if not rows:
        raise InputError("the table is empty", uri, "Write a line for each image")
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns: dict[str, pa.Array] = {}
    for name in names:
        try:
            columns[name] = pa.array([row.get(name) for row in rows])
        except UnicodeError as error:
            raise InputError(f"field {name!r} holds what is not text ({error})", uri, "Write valid Unicode") from error
        except (pa.ArrowException, OverflowError) as error:
            raise InputError(
                f"field {name!r} holds values of different kinds ({error})", uri, "Give a field one kind of value"
            ) from error
    return pa.table(columns)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    twice = [name for name, n in collections.Counter(name for name, _ in pairs).items() if n > 1]
    if twice:
        raise ValueError(f"the field {twice[0]!r} stands twice")
    return dict(pairs)


def _pinned_table(inventory: Inventory, uri: str) -> bytes:
    pinned = inventory.objects.filter(pc.equal(inventory.objects["uri"], uri)).to_pylist()[0]
    found = objects.read_versioned(uri)
    if found is None or found[1] != pinned["generation"]:
        raise InputError(
            "the source's table was " + ("removed" if found is None else "changed") + " after the batch was staged",
            uri,
            "Start a new batch",
        )
    return found[0]


def _with_objects(fields: pa.Table, pictures: pa.Table) -> pa.Table:
    """The rows that have an object, sorted by key. (Arrow joins no lists: join row numbers, then take.)"""
    numbered = pa.table({
        "uri": fields["uri"],
        "at": pa.array(range(fields.num_rows), pa.int64()),
        "key": fields["key"],
    })
    joined = numbered.join(pictures, "uri", join_type="inner").sort_by("key")
    rows = fields.take(joined["at"])
    return rows.append_column("generation", joined["generation"]).append_column("size", joined["size"])


def _missing(lake: Lake, source: Source, inventory: Inventory, fields: pa.Table) -> pa.Table:
    """Keys and URIs of rows without an object: not here, in no earlier batch, and not rejected for it before.

    Inventories do not name what was removed because somebody opted out: it is not missed.
    """
    lost = fields.select(["key", "uri"]).join(inventory.pictures().select(["uri"]), "uri", join_type="left anti")
    for batch in inventory.earlier:
        if lost.num_rows == 0:
            break
        before = read_inventory(lake, source.name, batch)
        if before.limit is None:
            lost = lost.join(before.pictures().select(["uri"]), "uri", join_type="left anti")
        rejects = read_rejects(lake, source.name, batch)
        if rejects is not None:
            told = rejects.filter(pc.equal(rejects["reason"], RejectReason.MISSING_OBJECT.value))
            lost = lost.join(told.select(["uri"]), "uri", join_type="left anti")
    removed = removed_places(lake) if lost.num_rows else ()
    missed = [place_digest(uri) not in removed for uri in lost["uri"].to_pylist()] if removed else []
    return (lost.filter(pa.array(missed, pa.bool_())) if removed else lost).sort_by("key")


def _keys_and_uris(rows: pa.Table) -> list[tuple[str, str]]:
    return list(zip(rows["key"].to_pylist(), rows["uri"].to_pylist(), strict=True))


def _runs(found: pa.Table) -> list[tuple[int, int]]:
    rows = min(GROUP_ROWS, max(16, -(-found.num_rows // 4)))
    return split_evenly(found["size"].to_pylist(), rows, GROUP_BYTES)


def _read_pinned(key: str, uri: str, generation: str, size: int) -> bytes | Reject:
    """The object's bytes if it is still what was staged."""
    try:
        found = objects.read_versioned(uri)
    except MissingObject:
        found = None
    except LakeError as error:
        if not _is_refusal(error):
            raise  # the store failed, not this object: try the batch again
        return Reject(key, uri, RejectReason.UNREADABLE_OBJECT, error.what)
    if found is None:
        return Reject(key, uri, RejectReason.CHANGED_OBJECT, "it was removed after the batch was staged")
    data, now = found
    if now != generation or len(data) != size:
        return Reject(
            key,
            uri,
            RejectReason.CHANGED_OBJECT,
            f"staged {size} bytes of generation {generation}, found {len(data)} of {now}",
        )
    return data


def _is_refusal(error: LakeError) -> bool:
    """Whether it is this object that may not be read."""
    cause = error.__cause__
    return isinstance(cause, PermissionError | IsADirectoryError) or type(cause).__name__ == "Forbidden"
