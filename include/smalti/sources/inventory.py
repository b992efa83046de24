"""Stage: write down which objects of a source a batch takes notice of, pinned by generation. Nothing is copied.

An object is listed once: what a batch that was ingested has listed is left out of later ones, unless it was changed since
(another generation) or had no row in the source's table and so was not used. A batch with a limit is a try-out: what it
listed counts as not yet seen. What was removed because somebody opted out is listed no more, unless its owner changes it.
"""

from __future__ import annotations

import io
import json
import logging
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field

from smalti import objects
from smalti.accounting import Report
from smalti.config import Source
from smalti.errors import CorruptError, InputError, MissingObject
from smalti.lake import Lake
from smalti.optouts.removed import object_digest, removed_objects
from smalti.reasons import RejectReason
from smalti.settings import SourceRun

log = logging.getLogger("smalti")

OBJECTS = pa.schema([("uri", pa.string()), ("generation", pa.string()), ("size", pa.int64()), ("crc32c", pa.string())])
REJECTS = pa.schema([("key", pa.string()), ("uri", pa.string()), ("reason", pa.string()), ("detail", pa.string())])

_META = b"smalti"


class StageReport(Report):
    """Attributes: inventory: its URI; objects: in the source now; new: listed in this batch, `bytes` together."""

    inventory: str
    objects: int = Field(ge=0)
    new: int = Field(ge=0)
    bytes: int = Field(ge=0)


_LOOKED_AT_AGAIN = pa.array([RejectReason.NO_TABLE_ROW.value, RejectReason.UNREADABLE_OBJECT.value])
"""Rejects whose cause goes away without the object changing: a row is added to the table, a right is granted."""


@dataclass(frozen=True)
class Inventory:
    """What one batch takes notice of.

    Attributes:
        objects: OBJECTS, sorted by URI; format files: the table is among them.
        root: where the source was; table: URI of its table, or None; images: prefix of the images.
        limit: of the run that made it.
        listed: objects that the source held.
        earlier: batches that were ingested before this one was staged.
    """

    objects: pa.Table
    root: str
    table: str | None
    images: str
    limit: int | None
    listed: int
    earlier: tuple[str, ...]

    def encoded(self) -> bytes:
        """The file's bytes: the same for the same listing."""
        meta = {
            "root": self.root,
            "table": self.table,
            "images": self.images,
            "limit": self.limit,
            "listed": self.listed,
            "earlier": self.earlier,
        }
        return parquet_bytes(self.objects, meta)

    @staticmethod
    def decoded(data: bytes, uri: str) -> Inventory:
        table, meta = parquet_table(data, uri)
        return Inventory(table.cast(OBJECTS), **{**meta, "earlier": tuple(meta["earlier"])})

    def pictures(self) -> pa.Table:
        """The objects without the source's table."""
        return self.objects.filter(pc.not_equal(self.objects["uri"], self.table or ""))


def stage(lake: Lake, run: SourceRun) -> StageReport:
    """List the source into the batch's inventory; a second run finds it there and lists nothing.

    Raises:
        InputError: the source is missing or empty, or the batch was staged with other settings.
        LakeError: the source cannot be read, or the lake cannot be written.
    """
    began = time.monotonic()
    uri = lake.inventory(run.source.name, run.batch)
    found = objects.read_versioned(uri)
    if found is None:
        inventory = _list_source(lake, run)
        if not objects.create_bytes(uri, inventory.encoded()):
            inventory = Inventory.decoded(objects.read_bytes(uri), uri)  # another try was faster
    else:
        inventory = Inventory.decoded(found[0], uri)
    _check_same(inventory, run, uri)
    report = StageReport(
        stage="stage",
        seconds=round(time.monotonic() - began, 3),
        inventory=uri,
        objects=inventory.listed,
        new=inventory.objects.num_rows,
        bytes=pc.sum(inventory.objects["size"]).as_py() or 0,
    )
    log.info("stage: %d of %d objects are new, %d bytes", report.new, report.objects, report.bytes)
    return report


def read_inventory(lake: Lake, source: str, batch: str) -> Inventory:
    """The inventory of a batch. Raises InputError if it was not staged."""
    uri = lake.inventory(source, batch)
    try:
        return Inventory.decoded(objects.read_bytes(uri), uri)
    except MissingObject:
        raise InputError(
            f"batch {batch!r} of source {source!r} is not staged", uri, "Run its stage `stage` first"
        ) from None


def read_rejects(lake: Lake, source: str, batch: str) -> pa.Table | None:
    """REJECTS of a batch, with `rows_in` in its metadata; None before its ingest came that far."""
    uri = lake.rejects(source, batch)
    found = objects.read_versioned(uri)
    return None if found is None else parquet_table(found[0], uri)[0]


def parquet_bytes(table: pa.Table, meta: dict[str, Any]) -> bytes:
    """A parquet file with `meta` as JSON in its schema's metadata; the same bytes for the same content."""
    out = io.BytesIO()
    text = json.dumps(meta, sort_keys=True).encode()
    pq.write_table(table.combine_chunks().replace_schema_metadata({_META: text}), out, compression="zstd")
    return out.getvalue()


def parquet_table(data: bytes, uri: str) -> tuple[pa.Table, dict[str, Any]]:
    """What `parquet_bytes` wrote. Raises CorruptError."""
    try:
        table = pq.read_table(pa.BufferReader(data))
        return table, json.loads(table.schema.metadata[_META])
    except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise CorruptError(
            f"this is not a file that smalti wrote ({error})", uri, "Remove it, and run the stage again"
        ) from error


def _list_source(lake: Lake, run: SourceRun) -> Inventory:
    source = run.source
    root = objects.normalise_uri(source.location())
    earlier = tuple(_ingested_batches(lake, source.name, run.batch))
    if source.format == "files":
        table, pictures = _list_files(source, root)
        listed = [table, *pictures] if table else pictures
    else:
        table, pictures = None, _list_parquet(source, root)
        listed = pictures
    fresh = _not_seen(lake, source.name, earlier, _table(pictures))
    if run.limit is not None and source.format == "files":  # a parquet object holds many rows: ingest counts them
        fresh = fresh.slice(0, run.limit)
    if table:
        fresh = pa.concat_tables([fresh, _table([table])]).sort_by("uri")
    return Inventory(
        objects=fresh,
        root=root,
        table=table.uri if table else None,
        images=_images(source, root),
        limit=run.limit,
        listed=len(listed),
        earlier=earlier,
    )


def _list_files(source: Source, root: str) -> tuple[objects.ObjectInfo | None, list[objects.ObjectInfo]]:
    images = _images(source, root)
    found = list(_walk(source, images))
    at = objects.join_uri(root, *_quoted(root, source.table or ""))
    table = objects.stat(at)
    pictures = [info for info in found if info.uri != at]
    if not pictures:
        raise _nothing(source, images, "images")
    if table is None:
        raise InputError(
            f"source {source.name!r} has no table {source.table}",
            at,
            "Put the table there, or mend `table` of the source",
        )
    return table, pictures


def _list_parquet(source: Source, root: str) -> list[objects.ObjectInfo]:
    single = objects.stat(root) if root.endswith(".parquet") else None
    found = [single] if single else [info for info in _walk(source, root) if info.uri.endswith(".parquet")]
    if not found:
        raise _nothing(source, root, "parquet files")
    return found


def _walk(source: Source, prefix: str) -> list[objects.ObjectInfo]:
    try:
        return list(objects.list_objects(prefix))
    except MissingObject:
        raise _nothing(source, prefix, "bucket") from None


def _nothing(source: Source, where: str, what: str) -> InputError:
    path = objects.local_path(where)
    if what == "bucket" or (path is not None and not path.exists()):
        return InputError(
            f"source {source.name!r} is missing: there is no such place",
            where,
            "Mend `uri` of the source, or put it there",
        )
    return InputError(
        f"source {source.name!r} is empty: it holds no {what}", where, "Put them there, or mend the source's paths"
    )


def _images(source: Source, root: str) -> str:
    return objects.join_uri(root, *_quoted(root, source.images.strip("/"))) if source.images.strip("/") else root


def _quoted(root: str, path: str) -> list[str]:
    return [quote(step) if root.startswith("file://") else step for step in path.split("/")]


def _ingested_batches(lake: Lake, source: str, batch: str) -> list[str]:
    """Batches whose ingest is done, but this one."""
    suffix = lake.ingested(source, batch).rsplit("/", 1)[1]
    names = {
        info.uri.split("/")[-2]
        for info in objects.list_objects(lake.batches(source))
        if info.uri.endswith(f"/{suffix}")
    }
    return sorted(names - {batch})


def _not_seen(lake: Lake, source: str, earlier: tuple[str, ...], pictures: pa.Table) -> pa.Table:
    """The objects that no earlier batch has used, by (uri, generation), and that are not removed because somebody opted out."""
    for batch in earlier:
        inventory = read_inventory(lake, source, batch)
        if inventory.limit is not None:
            continue
        used = inventory.pictures()
        rejects = read_rejects(lake, source, batch)
        if rejects is not None:
            waiting = rejects.filter(pc.is_in(rejects["reason"], value_set=_LOOKED_AT_AGAIN))
            used = used.join(waiting.select(["uri"]), "uri", join_type="left anti")
        pictures = pictures.join(used.select(["uri", "generation"]), ["uri", "generation"], join_type="left anti")
    removed = removed_objects(lake)
    if removed:
        named = zip(pictures["uri"].to_pylist(), pictures["generation"].to_pylist(), strict=True)
        stays = [object_digest(uri, generation) not in removed for uri, generation in named]
        pictures = pictures.filter(pa.array(stays, pa.bool_()))
    return pictures.sort_by("uri").select(OBJECTS.names)


def _check_same(inventory: Inventory, run: SourceRun, uri: str) -> None:
    root = objects.normalise_uri(run.source.location())
    if inventory.root != root:
        raise InputError(
            f"batch {run.batch!r} was staged from {inventory.root}, and the source is now at {root}",
            uri,
            "Run it under another batch name",
        )
    if inventory.limit != run.limit:
        raise InputError(
            f"batch {run.batch!r} was staged with limit {inventory.limit}, and this run has {run.limit}",
            uri,
            "Run it with the same limit, or under another batch name",
        )


def _table(infos: list[objects.ObjectInfo]) -> pa.Table:
    rows = sorted(infos)
    return pa.table(
        {
            "uri": [info.uri for info in rows],
            "generation": [info.generation for info in rows],
            "size": [info.size for info in rows],
            "crc32c": [info.crc32c for info in rows],
        },
        schema=OBJECTS,
    )
