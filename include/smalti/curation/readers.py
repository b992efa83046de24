"""Some columns of some rows of the parts that a curation looks at: from samples.parquet, or from memory."""

from __future__ import annotations

import contextlib
import errno
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from smalti import objects
from smalti.curation.near import Ints, Mask
from smalti.errors import CorruptError, LakeError, MissingObject
from smalti.lake import Lake
from smalti.shards.part import Part, batch_orders
from smalti.shards.samples import KEYS, SCHEMA, THUMBNAIL, check_thumbnails, keys_of, stored

Thumbnails = npt.NDArray[np.uint8]


class Rows(Protocol):
    """Rows in parts, numbered through: part after part."""

    @property
    def sources(self) -> Sequence[str]:
        """Of each part."""

    @property
    def sizes(self) -> Sequence[int]:
        """Samples of each part."""

    def read(self, part: int, columns: Sequence[str], start: int, rows: int, taken: Ints | None = None) -> Any:
        """A polars frame of some columns of the rows `start` to `start + rows` of a part.

        Args:
            taken: of these, by their place from `start` on; empty: all.
        """

    def thumbnails(self, part: int, start: int, taken: Mask) -> Thumbnails:
        """`colour` of some of the rows from `start` on, as `taken` says by row: uint8 (taken, THUMBNAIL), any bytes where there is none."""


class Reader(Rows, Protocol):
    """Rows of samples that are delivered again and again: each part is sorted by shard and index."""

    def places(self, part: int) -> Mapping[str, int]:
        """Batch of a row of a part -> its place among all that was delivered: of two samples of one id the larger is newer."""


@dataclass(frozen=True)
class PartReader:
    """Reads samples.parquet of committed parts. Bytes are not hashed here: assemble reads each file whole, and does."""

    lake: Lake
    parts: tuple[Part, ...]

    @property
    def sources(self) -> Sequence[str]:
        return [part.source for part in self.parts]

    @property
    def sizes(self) -> Sequence[int]:
        return [part.samples for part in self.parts]

    def places(self, part: int) -> Mapping[str, int]:
        return self._places[part]

    @functools.cached_property
    def _places(self) -> list[dict[str, int]]:
        return batch_orders(self.parts)

    def read(self, part: int, columns: Sequence[str], start: int, rows: int, taken: Ints | None = None) -> Any:
        """See Reader.

        Raises:
            MissingObject: there is no such file.
            CorruptError: it is not a samples.parquet, or has other rows than part.json says.
        """
        import polars as pl

        of = self.parts[part]
        uri = self.lake.samples(of.source, of.name)
        with _samples_errors(uri):
            frame = _read(uri, columns, start, rows)
            kinds = pl.from_arrow(stored(SCHEMA.empty_table()).select(list(columns))).schema
            frame = frame.cast(kinds)
        _check_rows(frame.height, rows, start, of, uri)
        return frame if taken is None else frame[taken]

    def thumbnails(self, part: int, start: int, taken: Mask) -> Thumbnails:
        """See Reader.

        Raises:
            MissingObject, CorruptError: as `read`.
            InputError: the thumbnails are those of an older smalti.
        """
        of = self.parts[part]
        uri = self.lake.samples(of.source, of.name)
        with _samples_errors(uri):
            return _read_thumbnails(uri, start, taken)


_OF_THE_MACHINE = (errno.EACCES, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors that say nothing of the file. Arrow and polars raise OSError, without a number, for what they cannot parse."""


@contextlib.contextmanager
def _samples_errors(uri: str) -> Iterator[None]:
    import polars as pl
    import pyarrow as pa

    try:
        yield
    except (pl.exceptions.PolarsError, pa.ArrowException, OSError, KeyError, ValueError) as error:
        if not objects.exists(uri):
            raise MissingObject("there is no such object", uri, "Restore it, or shard again") from error
        if isinstance(error, OSError) and error.errno in _OF_THE_MACHINE:
            raise LakeError(
                error.strerror or str(error), uri, "Try again; if it stays, check the disk and its limits"
            ) from error
        raise CorruptError(f"this is not a samples.parquet ({error})", uri, "Restore it, or shard again") from error


def _check_rows(found: int, rows: int, start: int, part: Part, uri: str) -> None:
    if found != min(rows, part.samples - start):
        raise CorruptError(f"it does not have {part.samples} rows", uri, "Restore it, or shard again")


def _read(uri: str, columns: Sequence[str], start: int, rows: int) -> Any:
    import polars as pl
    import pyarrow.parquet as pq

    path = objects.local_path(uri)
    try:
        if path is not None:
            return pl.scan_parquet(path).select(columns).slice(start, rows).collect()
        with objects.open_binary(uri) as file:
            found = pq.ParquetFile(file)
            groups, skip = _row_groups(found, start, rows)
            table = found.read_row_groups([number for number, _ in groups], columns=list(columns))
        return pl.from_arrow(table).select(columns).slice(skip, rows)
    except pl.exceptions.ColumnNotFoundError:
        if not set(KEYS) & set(columns):
            raise
    return _with_keys(uri, columns, start, rows)


def _with_keys(uri: str, columns: Sequence[str], start: int, rows: int) -> Any:
    """Of a file that was written before there were KEYS."""
    import polars as pl

    frame = _read(uri, sorted({*columns} - {*KEYS} | {"sha256"}), start, rows)
    keys = keys_of(frame["sha256"].to_arrow())
    return frame.with_columns(pl.Series(name, key) for name, key in zip(KEYS, keys, strict=True)).select(columns)


def _read_thumbnails(uri: str, start: int, taken: Mask) -> Thumbnails:
    import pyarrow as pa
    import pyarrow.parquet as pq

    found = []
    path = objects.local_path(uri)
    with contextlib.nullcontext(path) if path is not None else objects.open_binary(uri) as file:
        parquet = pq.ParquetFile(file)  # a path is read without Python's help
        groups, skip = _row_groups(parquet, start, len(taken))
        at = -skip
        for number, size in groups:  # one at a time: 13 MB
            some = np.flatnonzero(taken[max(at, 0) : at + size]) + max(-at, 0)
            if len(some):
                chunk = parquet.read_row_group(number, columns=["colour"], use_threads=False)["colour"]
                check_thumbnails(chunk, uri)
                found.append(_fixed(chunk.cast(pa.binary(THUMBNAIL)).combine_chunks())[some])
            at += size
    return np.concatenate([np.empty((0, THUMBNAIL), np.uint8), *found])


def _fixed(column: Any) -> Thumbnails:
    """An Arrow array of fixed-size binaries as uint8 (n, size), without a copy."""
    start, stop = column.offset * THUMBNAIL, (column.offset + len(column)) * THUMBNAIL
    return np.frombuffer(column.buffers()[1], np.uint8)[start:stop].reshape(-1, THUMBNAIL)


def _row_groups(parquet: Any, start: int, rows: int) -> tuple[list[tuple[int, int]], int]:
    """Number and rows of the row groups that hold some of these rows, and how many rows of the first come before."""
    groups: list[tuple[int, int]] = []
    at = first = 0
    for number in range(parquet.num_row_groups):
        size = parquet.metadata.row_group(number).num_rows
        if at < start + rows and at + size > start:
            first = at if not groups else first
            groups.append((number, size))
        at += size
    return groups, start - first


@dataclass(frozen=True)
class FrameReader:
    """Parts that are in memory: one polars frame each, of one batch, the newest last."""

    frames: tuple[Any, ...]

    def places(self, part: int) -> Mapping[str, int]:
        return {f"{part}": part}

    @property
    def sources(self) -> Sequence[str]:
        return [frame["source"][0] if frame.height else "" for frame in self.frames]

    @property
    def sizes(self) -> Sequence[int]:
        return [frame.height for frame in self.frames]

    def read(self, part: int, columns: Sequence[str], start: int, rows: int, taken: Ints | None = None) -> Any:
        import polars as pl

        keys = {name: pl.col("sha256").hash(seed) for seed, name in enumerate(KEYS)}
        frame = self.frames[part].with_columns(batch=pl.lit(f"{part}"), **keys).select(columns).slice(start, rows)
        return frame if taken is None else frame[taken]

    def thumbnails(self, part: int, start: int, taken: Mask) -> Thumbnails:
        column = self.frames[part]["colour"].slice(start, len(taken)).filter(taken)
        return np.frombuffer(b"".join(column.fill_null(bytes(THUMBNAIL))), np.uint8).reshape(-1, THUMBNAIL)
