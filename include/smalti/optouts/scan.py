"""Scans every object of a lake for what a request has erased: decoded, whatever kind it is of, and raw.

| object | how it is read |
|---|---|
| any | its sha256; every stretch of its bytes |
| gzip | what it holds, in the same way |
| parquet | every value: texts, and bytes as pictures; an id is a value, not a part of one |
| shards (.mds) | every value of every sample, in the same way |
| json, text, html | as text, with what is escaped in it put plain; pictures that a page holds |
| pictures | their pixels |
| tables | see `smalti.optouts.scan_tables` |

What cannot be read is a finding, too: nothing is proved of it.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import html
import io
import json
import logging
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from smalti import objects
from smalti.compute import Shared, map_tasks, share
from smalti.errors import MissingObject, SmaltiError
from smalti.lake import Lake
from smalti.optouts.needles import Ids, Seeker
from smalti.threads import map_threads

log = logging.getLogger("smalti")

UNREADABLE = "it cannot be read"
_TASK = 64
"""Objects in a task."""
_READERS = 4
"""Objects that a task reads at once, and holds."""
_EMBEDDED = re.compile(r"data:image/[a-z+.-]+;base64,([A-Za-z0-9+/=\s]+)")
_IMAGES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"II*\x00", b"MM\x00*", b"BM", b"RIFF")
_PARQUET = b"PAR1"


@dataclass(frozen=True, order=True)
class Finding:
    """Something that is left. `what` never says which id or picture it is.

    Attributes:
        uri: the object.
        where: in it: a column, a sample, a line; empty: anywhere.
    """

    uri: str
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.uri}{f' ({self.where})' if self.where else ''}: {self.what}"


@dataclass(frozen=True)
class Scanned:
    """How many objects and bytes were looked at, by the first name of their path; and what was found."""

    objects: dict[str, int]
    bytes: dict[str, int]
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class _Task:
    seeker: Shared[Seeker]
    infos: tuple[objects.ObjectInfo, ...]


def scan(lake: Lake, seeker: Seeker) -> Scanned:
    """Every object of the lake, attempts that killed writers left among them, in order of URI.

    The places where the ledger and the receipts stand are scanned like all others: the caller says what may be there.
    """
    from smalti.optouts.scan_tables import scan_tables

    counts: dict[str, int] = {}
    sizes: dict[str, int] = {}
    found: list[Finding] = []

    def note(info: objects.ObjectInfo) -> None:
        top = info.uri[len(lake.root) + 1 :].split("/")[0]
        counts[top] = counts.get(top, 0) + 1
        sizes[top] = sizes.get(top, 0) + info.size

    def tasks() -> Iterator[_Task]:
        some: list[objects.ObjectInfo] = []
        for info in every_object(lake):
            note(info)
            some.append(info)
            if len(some) == _TASK:
                yield _Task(shared, tuple(some))
                some = []
        if some:
            yield _Task(shared, tuple(some))

    shared = share(seeker)
    for number, each in enumerate(map_tasks(_look_at_all, tasks()), 1):
        found += each
        if number % 100 == 0:
            log.info("opt-outs: %d objects scanned", number * _TASK)
    found += scan_tables(lake, seeker, shared)
    return Scanned(dict(sorted(counts.items())), dict(sorted(sizes.items())), tuple(sorted({*found})))


def every_object(lake: Lake) -> Iterator[objects.ObjectInfo]:
    """All there are, and what killed writers left."""
    yield from objects.list_objects(lake.root)
    yield from objects.list_attempts(lake.root)


def _look_at_all(task: _Task) -> list[Finding]:
    """Shards may be read: few are held at once, and the next ones come while one is looked at."""
    seeker, uris = task.seeker.get(), [info.uri for info in task.infos]
    read = zip(uris, map_threads(_bytes_of, uris, threads=_READERS, ahead=_READERS), strict=True)
    return [finding for uri, data in read if data is not None for finding in look_into(seeker, uri, data)]


def look_at(seeker: Seeker, uri: str) -> list[Finding]:
    """What is found in an object. An object that is gone meanwhile holds nothing."""
    data = _bytes_of(uri)
    return [] if data is None else look_into(seeker, uri, data)


def _bytes_of(uri: str) -> bytes | None:
    """None: it is gone meanwhile."""
    try:
        return objects.read_bytes(uri)
    except MissingObject:
        return None


def look_into(seeker: Seeker, uri: str, data: bytes) -> list[Finding]:
    """What is found in an object with these bytes."""
    found = {Finding(uri, "", what) for what in seeker.text(unquote(uri))}
    try:
        found |= {Finding(uri, where, what) for where, what in _look(seeker, data, uri, "")}
    except (SmaltiError, OSError, ValueError, EOFError, zlib.error, ArithmeticError) as error:
        if uri.rpartition("/")[2].startswith(objects.ATTEMPT_PREFIX):  # it may be cut off anywhere
            return sorted(found | {Finding(uri, "", what) for what in _in_cut_off(seeker, data)})
        log.warning("opt-outs: %s cannot be read: %s", uri, type(error).__name__)
        found.add(Finding(uri, "", UNREADABLE))
    return sorted(found)


def _in_cut_off(seeker: Seeker, data: bytes) -> Iterator[str]:
    yield from seeker.stretches(data)
    yield from seeker.text(data.decode(errors="replace"), "anywhere")


def _look(seeker: Seeker, data: bytes, name: str, where: str) -> Iterator[tuple[str, str]]:
    """(where, what) in the bytes of an object, or of what it holds."""
    yield from ((where, what) for what in seeker.stretches(data))
    if data[:2] == b"\x1f\x8b":
        yield from _look(seeker, gzip.decompress(data), name.removesuffix(".gz"), where)
    elif data[:4] == _PARQUET and data[-4:] == _PARQUET:
        yield from _in_parquet(seeker, data)
    elif name.endswith(".mds"):
        yield from _in_shard(seeker, data, name)
    elif name.rpartition("/")[2].endswith((".lance", ".blob", ".manifest", ".txn", ".arrow", ".bin")):
        return  # of tables: `smalti.optouts.scan_tables` decodes them
    else:
        yield from ((where, what) for what in _in_value(seeker, data, smaller=False))


def _in_value(seeker: Seeker, value: Any, *, smaller: bool, ids: Ids = "word") -> Iterator[str]:
    """What a value of any kind holds: a text, bytes, a picture, or several of them."""
    if isinstance(value, str):
        yield from _in_text(seeker, value, ids)
    elif isinstance(value, bytes):
        yield from seeker.whole(value)
        if is_picture(value):
            yield from seeker.picture(value, smaller=smaller)
            return
        try:
            yield from _in_text(seeker, value.decode(), ids)
        except UnicodeDecodeError:
            yield from seeker.text(value.decode(errors="replace"), "value" if ids == "value" else "anywhere")
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from _in_value(seeker, name, smaller=smaller, ids=ids)
            yield from _in_value(seeker, each, smaller=smaller, ids=ids)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _in_value(seeker, each, smaller=smaller, ids=ids)


def _in_text(seeker: Seeker, text: str, ids: Ids) -> Iterator[str]:
    yield from seeker.text(text, ids)
    if "%" in text:
        yield from seeker.text(unquote(text), ids)
    if "&" in text:
        yield from seeker.text(html.unescape(text), ids)
    for embedded in _EMBEDDED.finditer(text) if "data:image/" in text else ():
        try:
            picture = base64.b64decode(embedded.group(1))
        except binascii.Error:
            yield UNREADABLE
            continue
        yield from _in_value(seeker, picture, smaller=True)
    if "\\" in text:
        for line in [text, *text.splitlines()]:
            try:
                yield from _in_value(seeker, json.loads(line), smaller=True, ids=ids)
            except ValueError:
                continue


def values_found(seeker: Seeker, value: Any, ids: Ids = "word") -> set[str]:
    """What a value of a row, a line or a document holds."""
    return {*_in_value(seeker, value, smaller=True, ids=ids)}


def _in_parquet(seeker: Seeker, data: bytes) -> Iterator[tuple[str, str]]:
    import pyarrow.parquet as pq

    file = pq.ParquetFile(io.BytesIO(data))
    for key, text in (file.schema_arrow.metadata or {}).items():
        if key != b"ARROW:schema":
            yield from (("metadata", what) for what in _in_value(seeker, text, smaller=False))
    for batch in file.iter_batches(batch_size=4096):
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            yield from ((f"column {name}", what) for what in in_column(seeker, column))


def in_column(seeker: Seeker, column: Any) -> Iterator[str]:
    """What the values of an Arrow column hold: ids that are values (see `needles`). Numbers hold nothing."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind) or pa.types.is_large_list(kind):
        yield from in_column(seeker, column.flatten())
        return
    for value in column.to_pylist():
        yield from _in_value(seeker, value, smaller=False, ids="value")


def _in_shard(seeker: Seeker, data: bytes, name: str) -> Iterator[tuple[str, str]]:
    from smalti.shards import mds

    columns, samples = mds.read_shard(data, name)
    for number, raw in enumerate(samples):
        for value in mds.decode_sample(columns, raw, name).values():
            found = _in_value(seeker, value, smaller=False, ids="value")
            yield from ((f"sample {number}", what) for what in found)


def is_picture(data: bytes) -> bool:
    return data.startswith(_IMAGES) or data[4:8] == b"ftyp"
