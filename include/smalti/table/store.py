"""Open a source's table, and commit to it so that two writers never lose or double a row.

Every commit names the version it was made from; Lance refuses it if something else was committed that it would undo. A
refused commit is decided again on the newest version.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from smalti import objects
from smalti.errors import ConflictError, InputError, LakeError
from smalti.table.schema import EMBEDDING, RESERVED, embedding_field, table_schema

log = logging.getLogger("smalti")

STORAGE_VERSION = "2.2"
"""Of Lance's files: the first with blob v2."""

TRIES = 10

READ_IMAGES = 16
"""Pictures a task reads from the table at once."""

Result = TypeVar("Result")


def open_table(uri: str, version: int | None = None) -> Any:
    """The table at a version (None: the newest) as a lance.LanceDataset; None if there is no table.

    Raises:
        LakeError: it is there and cannot be read.
    """
    import lance

    with lance_errors(uri):
        try:
            return lance.dataset(uri, version=version, storage_options=objects.lance_options(uri))
        except ValueError as error:
            if "was not found" in str(error) and version is None:
                return None
            raise


def ensure_table(uri: str, embedding: int | None, reserved: bool = False) -> Any:
    """The table, made without rows if there is none, with the columns for embeddings and reservations if they are needed.

    Raises:
        InputError: its embeddings have another size.
    """
    import lance

    table = open_table(uri)
    if table is None:
        with lance_errors(uri):
            try:
                return lance.write_dataset(
                    table_schema(embedding, reserved).empty_table(),
                    uri,
                    mode="create",
                    data_storage_version=STORAGE_VERSION,
                    storage_options=objects.lance_options(uri),
                )
            except OSError as error:
                if "already exists" not in str(error):
                    raise
        table = open_table(uri)  # another driver was faster
    if reserved:
        table = ensure_columns(uri, pa.schema([RESERVED]))
    if embedding:
        table = ensure_columns(uri, pa.schema([embedding_field(embedding)]))
        has = table.schema.field(EMBEDDING).type
        if has != embedding_field(embedding).type:
            raise InputError(
                f"the table holds embeddings of {has.list_size} numbers, and the source now has {embedding}",
                uri,
                "Give the source another name, or leave out `columns.embedding`",
            )
    return table


def ensure_columns(uri: str, fields: pa.Schema) -> Any:
    """The newest version of the table, with these columns added, null throughout, where they were not there."""

    def once() -> Any:
        table = open_table(uri)
        new = [field for field in fields if field.name not in table.schema.names]
        if new:
            table.add_columns(pa.schema(new))
        return table

    return retried(uri, once)


def append_fragments(table: Any, fragments: Sequence[Any]) -> Any:
    """Commit fragments that tasks have written, unless anything at all was committed since `table` was opened.

    An append would go through beside another append of the same rows. A merge does not: it states the whole list of
    fragments, which makes it a compare-and-swap of the version.

    Returns: the new version of the table.
    Raises:
        CommitConflictError (lance.commit): somebody else has committed; look again.
    """
    import lance

    has = [fragment.metadata for fragment in table.get_fragments()]
    # An index may still know a fragment that was deleted whole: under its number the new rows would count as indexed.
    indexed = [number for index in table.describe_indices() for part in index.segments for number in part.fragment_ids]
    for number, fragment in enumerate(fragments, 1 + max([-1, *indexed, *(f.id for f in has)])):
        fragment.id = number
    return lance.LanceDataset.commit(
        table,
        lance.LanceOperation.Merge([*has, *fragments], table.lance_schema),
        read_version=table.version,
        storage_options=objects.lance_options(table.uri),
    )


def read_images(uri: str, version: int, addresses: Sequence[int]) -> Iterator[bytes]:
    """The bytes of the pictures at these row addresses, in their order, a few in memory at a time."""
    table = _pinned(uri, version)
    for start in range(0, len(addresses), READ_IMAGES):
        with lance_errors(uri):
            blobs = table.read_blobs("image", ids=list(addresses[start : start + READ_IMAGES]), preserve_order=True)
        yield from (bytes(data) for _, data in blobs)


@functools.lru_cache(maxsize=4)
def _pinned(uri: str, version: int) -> Any:
    """A version of a table never changes, and opening it costs a task as much as reading a picture or two."""
    return open_table(uri, version)


def retried(uri: str, once: Callable[[], Result], tries: int = TRIES) -> Result:
    """What `once` returns; it is called again when another writer's commit got in its way.

    Raises:
        ConflictError: every try met another commit.
        LakeError: the table cannot be read or written.
    """
    from lance.commit import CommitConflictError

    for number in range(tries):
        try:
            with lance_errors(uri):
                return once()
        except CommitConflictError as error:
            log.info("%s: another commit was first, trying again (%s)", uri, one_line(error))
            time.sleep(random.uniform(0, 0.1 * 2 ** min(number, 5)))
    raise ConflictError(
        f"other writers committed first, {tries} times in a row",
        uri,
        "Run the stage again when fewer runs write this table",
    )


@contextlib.contextmanager
def lance_errors(uri: str) -> Iterator[None]:
    """Turn what Lance raises about a table into one clear line; conflicts of commits pass through."""
    from lance.commit import CommitConflictError

    try:
        yield
    except CommitConflictError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        if type(error) not in (OSError, ValueError, RuntimeError):  # Lance raises these themselves
            raise
        raise LakeError(
            f"the table cannot be read or written ({one_line(error)})",
            uri,
            "Check that the place exists, has room and may be written",
        ) from error


def one_line(error: Exception) -> str:
    """An error of Lance without the places in its source code."""
    return " ".join(re.sub(r",? */\S+\.rs:\d+:\d+", "", str(error)).split())


def sql_text(text: str) -> str:
    """A text as a literal in a filter."""
    return "'" + text.replace("'", "''") + "'"


def sql_texts(texts: Sequence[str]) -> str:
    return ", ".join(sql_text(text) for text in texts)
