"""Scans the tables' files for what a request has erased: those of every version, and those that no version names.

Rows are read through every version that is left, a fragment once. Files of indices, and of data that no version names (a writer has not
committed them, or was killed), are decoded each by itself; so are those of fragments that mark rows as deleted. The raw bytes of all
files are scanned with the other objects (`smalti.optouts.scan`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from smalti import objects
from smalti.compute import Shared, map_tasks, share
from smalti.errors import MissingObject, SmaltiError
from smalti.lake import Lake
from smalti.optouts.needles import Seeker
from smalti.optouts.scan import UNREADABLE, Finding, in_column
from smalti.optouts.tables import sources_with_table
from smalti.table.store import READ_IMAGES, lance_errors, open_table
from smalti.threads import map_threads

_ENDING = ".lance"

_ROWS = 4096
"""Rows that are decoded at a time."""

_FRAGMENTS, _FILES = 8, 64
"""In a task."""

_READERS = 4
"""Files that a task reads at once."""

_ALL = -1
"""Stands for every fragment of a version."""

_IMAGE = "image"

_T = TypeVar("_T")


@dataclass(frozen=True)
class _Fragments:
    """Fragments of a version of a table, by their numbers."""

    seeker: Shared[Seeker]
    table: str
    version: int
    fragments: tuple[int, ...]


@dataclass(frozen=True)
class _Files:
    """Files of a table that are decoded, or read, each by itself."""

    seeker: Shared[Seeker]
    uris: tuple[str, ...]
    names: tuple[str, ...]


def scan_tables(lake: Lake, seeker: Seeker, shared: Shared[Seeker] | None = None) -> Iterator[Finding]:
    """What is left in any table.

    Args:
        shared: the seeker, if the caller has shared it already.
    """
    shared = shared or share(seeker)
    tasks = (task for source in sources_with_table(lake) for task in _tasks(lake.table(source), shared))
    for found in map_tasks(_look, tasks):
        yield from found


def scan_table(uri: str, seeker: Seeker) -> Iterator[Finding]:
    """What is left in one table."""
    for found in map_tasks(_look, _tasks(uri, share(seeker))):
        yield from found


def _tasks(uri: str, seeker: Shared[Seeker]) -> Iterator[_Fragments | _Files]:
    """What has to be read of a table, each fragment and file once."""
    table = open_table(uri)
    names: tuple[str, ...] = ()
    read: set[str] = set()
    if table is not None:
        with lance_errors(uri):
            versions = [each["version"] for each in table.versions()]
        names = tuple(field.name for field in table.schema if field.name != _IMAGE)
        for version in versions:
            for some in _in_pieces(_unread(uri, version, read), _FRAGMENTS):
                yield _Fragments(seeker, uri, version, some)
    files = [info.uri for info in objects.list_objects(uri) if info.uri not in read and not info.uri.endswith(".blob")]
    for piece in _in_pieces(files, _FILES):
        yield _Files(seeker, piece, names)


def _unread(uri: str, version: int, read: set[str]) -> list[int]:
    """Fragments of a version that no other version has shown whole; a version that cannot be opened has them all.

    Args:
        read: files whose rows are all read; those of these fragments are added.
    """
    found = []
    try:
        with lance_errors(uri):
            for fragment in open_table(uri, version).get_fragments():
                files = {f"{uri}/data/{file.path}" for file in fragment.metadata.files}
                if not files <= read:
                    found.append(int(fragment.fragment_id))
                    read |= set() if fragment.num_deletions else files
    except (SmaltiError, pa.ArrowException):
        return [_ALL]
    return found


def _look(task: _Fragments | _Files) -> list[Finding]:
    seeker = task.seeker.get()
    if isinstance(task, _Fragments):
        return [*_in_version(task, seeker)]

    def look(uri: str) -> list[Finding]:
        return [*(_in_file(uri, task.names, seeker) if uri.endswith(_ENDING) else _in_raw(uri, seeker))]

    return [finding for some in map_threads(look, task.uris, threads=_READERS, ahead=_READERS) for finding in some]


def _in_version(task: _Fragments, seeker: Seeker) -> Iterator[Finding]:
    try:
        table = open_table(task.table, task.version)
        with lance_errors(task.table):
            for fragment in table.get_fragments():
                if _ALL in task.fragments or int(fragment.fragment_id) in task.fragments:
                    yield from _in_fragment(task.table, table, fragment, seeker)
    except (SmaltiError, pa.ArrowException):
        yield Finding(task.table, f"version {task.version}", UNREADABLE)


def _in_pieces(things: Sequence[_T], size: int) -> Iterator[tuple[_T, ...]]:
    for start in range(0, len(things), size):
        yield tuple(things[start : start + size])


def _in_fragment(uri: str, table: Any, fragment: Any, seeker: Seeker) -> Iterator[Finding]:
    columns = [name for name in table.schema.names if name != _IMAGE]
    addresses: list[int] = []
    found: set[str] = set()
    scanner = table.scanner(columns=columns, with_row_id=True, fragments=[fragment], batch_size=_ROWS)
    for batch in scanner.to_batches():
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            found |= {f"{what}, column {name}" for what in in_column(seeker, column)}
        rows = (batch[name].to_pylist() for name in ("_rowid", "sha256", "width", "height"))
        for address, sha256, width, height in zip(*rows, strict=True):
            if any(seeker.may_be(size) for size in ((width, height), (height, width))) or any(seeker.text(sha256)):
                addresses.append(address)
    for start in range(0, len(addresses), READ_IMAGES):
        some = addresses[start : start + READ_IMAGES]
        for _, data in table.read_blobs(_IMAGE, ids=some, preserve_order=True):
            found |= {*seeker.whole(bytes(data)), *seeker.picture(bytes(data), smaller=False)}
    yield from (Finding(uri, f"version {table.version}", what) for what in sorted(found))


def _in_file(uri: str, names: Sequence[str], seeker: Seeker) -> Iterator[Finding]:
    """Every value of a file, of data or of an index, but for pictures.

    Args:
        names: columns of the table: a file that has pictures is read column by column (Lance 14 does not read what describes a blob).
    """
    found: set[Finding] = set()
    try:
        with lance_errors(uri):
            for batch in _batches(uri, names):
                for name, column in zip(batch.schema.names, batch.columns, strict=True):
                    found |= {Finding(uri, f"column {name}", what) for what in in_column(seeker, column)}
    except (SmaltiError, pa.ArrowException):
        if objects.exists(uri):
            found.add(Finding(uri, "", UNREADABLE))
    yield from sorted(found)


def _batches(uri: str, names: Sequence[str]) -> Iterator[Any]:
    from lance.file import LanceFileReader

    options = objects.lance_options(uri)
    path = str(objects.local_path(uri) or uri)
    try:
        yield from LanceFileReader(path, options).read_all(batch_size=_ROWS).to_batches()
        return
    except ValueError as error:
        if "more than once" not in str(error):
            raise
    read = 0
    for name in names:
        try:
            yield from LanceFileReader(path, options, columns=[name]).read_all(batch_size=_ROWS).to_batches()
        except ValueError as error:
            if "not found" not in str(error):
                raise
            continue
        read += 1
    if not read:
        raise ValueError("none of the table's columns is in it")


def _in_raw(uri: str, seeker: Seeker) -> Iterator[Finding]:
    """Manifests and transactions: ids between other bytes."""
    try:
        text = objects.read_bytes(uri).decode(errors="replace")
    except MissingObject:
        return
    yield from (Finding(uri, "", what) for what in {*seeker.text(text, "anywhere")})


def unnamed_files(uri: str) -> frozenset[str]:
    """URIs of a table's data files, and what lies beside them, that no version names: a writer has not committed them, or never did."""
    table = open_table(uri)
    if table is None:
        return frozenset()
    with lance_errors(uri):
        named = {
            file.path.removesuffix(_ENDING)
            for each in table.versions()
            for fragment in open_table(uri, each["version"]).get_fragments()
            for file in fragment.metadata.files
        }
    prefix = f"{uri}/data/"
    return frozenset(
        info.uri
        for info in objects.list_objects(prefix.rstrip("/"))
        if info.uri.removeprefix(prefix).split("/")[0].removesuffix(_ENDING) not in named
    )
