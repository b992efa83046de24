"""Scans the tables' files for what a request has erased: those of every version, and those that no version names.

Lance's files are decoded each by itself, so that what a killed writer left, and what a deletion only marked, is seen like all others. What
pictures are in the rows is seen through every version that is left. The raw bytes of all files are scanned with the other objects
(`smalti.optouts.scan`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from smalti import objects
from smalti.errors import MissingObject, SmaltiError
from smalti.lake import Lake
from smalti.optouts.needles import Seeker
from smalti.optouts.scan import UNREADABLE, Finding, _in_column
from smalti.table.store import READ_IMAGES, lance_errors, open_table

_ENDING = ".lance"


def scan_tables(lake: Lake, seeker: Seeker) -> Iterator[Finding]:
    """What is left in any table."""
    for name in objects.list_names(lake.tables()):
        uri = f"{lake.tables()}/{name}"
        if name.endswith(_ENDING):
            yield from scan_table(uri, seeker)


def scan_table(uri: str, seeker: Seeker) -> Iterator[Finding]:
    """What is left in one table."""
    table = open_table(uri)
    names = [] if table is None else [field.name for field in table.schema if field.name != "image"]
    for info in objects.list_objects(uri):
        if info.uri.endswith(_ENDING):
            yield from _in_file(info.uri, names, seeker)
        elif not info.uri.endswith(".blob"):
            yield from _in_raw(info.uri, seeker)
    if table is None:
        return
    with lance_errors(uri):
        versions = [each["version"] for each in table.versions()]
    seen: set[str] = set()
    for version in versions:
        try:
            yield from _in_version(uri, version, seeker, seen)
        except SmaltiError:
            yield Finding(uri, f"version {version}", UNREADABLE)


def _in_file(uri: str, names: Sequence[str], seeker: Seeker) -> Iterator[Finding]:
    """Every value of a file, of data or of an index, but for pictures.

    Args:
        names: columns of the table: a file that has pictures is read column by column (Lance 14 does not read what describes a blob).
    """
    found: set[Finding] = set()
    try:
        with lance_errors(uri):
            for reader in _readers(uri, names):
                for batch in reader.read_all().to_batches():
                    for name, column in zip(batch.schema.names, batch.columns, strict=True):
                        found |= {Finding(uri, f"column {name}", what) for what in _in_column(seeker, column)}
    except SmaltiError:
        if objects.exists(uri):
            found.add(Finding(uri, "", UNREADABLE))
    yield from sorted(found)


def _readers(uri: str, names: Sequence[str]) -> Iterator[Any]:
    from lance.file import LanceFileReader

    options = objects.lance_options(uri)
    path = str(objects.local_path(uri) or uri)
    try:
        yield LanceFileReader(path, options)
        return
    except ValueError as error:
        if "more than once" not in str(error):
            raise
    read = 0
    for name in names:
        try:
            reader = LanceFileReader(path, options, columns=[name])
        except ValueError as error:
            if "not found" not in str(error):
                raise
            continue
        read += 1
        yield reader
    if not read:
        raise ValueError("none of the table's columns is in it")


def _in_raw(uri: str, seeker: Seeker) -> Iterator[Finding]:
    """Manifests and transactions: ids between other bytes."""
    try:
        text = objects.read_bytes(uri).decode(errors="replace")
    except MissingObject:
        return
    yield from (Finding(uri, "", what) for what in {*seeker.text(text, whole=False)})


def _in_version(uri: str, version: int, seeker: Seeker, seen: set[str]) -> Iterator[Finding]:
    """The pictures of a version's rows.

    Args:
        seen: files of fragments that an earlier version was looked at with; added to.
    """
    table = open_table(uri, version)
    with lance_errors(uri):
        for fragment in table.get_fragments():
            name = ",".join(sorted(file.path for file in fragment.metadata.files)) + str(fragment.num_deletions)
            if name not in seen and "image" in table.schema.names:
                seen.add(name)
                yield from _in_fragment(uri, table, fragment, seeker)


def _in_fragment(uri: str, table: Any, fragment: Any, seeker: Seeker) -> Iterator[Finding]:
    rows = table.scanner(columns=["sha256", "width", "height"], with_row_id=True, fragments=[fragment]).to_table()
    wanted = [
        row
        for row in rows.to_pylist()
        if any(seeker.text(row["sha256"]))
        or any(seeker.may_be(size) for size in ((row["width"], row["height"]), (row["height"], row["width"])))
    ]
    for start in range(0, len(wanted), READ_IMAGES):
        addresses = [row["_rowid"] for row in wanted[start : start + READ_IMAGES]]
        for _, data in table.read_blobs("image", ids=addresses, preserve_order=True):
            found = {*seeker.whole(bytes(data)), *seeker.picture(bytes(data), smaller=False)}
            yield from (Finding(uri, f"version {table.version}", what) for what in found)


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
