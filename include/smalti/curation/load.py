"""The samples of every committed part of a dataset's sources, read column by column; and the lists that people write."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from smalti import objects
from smalti.config import expand
from smalti.curation.dedup import KEEP, MERGE
from smalti.curation.near import Ints, Mask
from smalti.curation.record import TextFile
from smalti.errors import CorruptError, InputError, MissingObject
from smalti.lake import Lake
from smalti.shards.part import Part, batch_orders, committed_parts
from smalti.shards.samples import KEYS, SCHEMA, THUMBNAIL, keys_of, stored

ROWS = 1 << 20
"""Rows that are read at a time: eight row groups of samples.parquet."""

AHEAD = 2
"""Chunks that are read while one is worked on: one waits for the disk while the other is decoded."""

Thumbnails = npt.NDArray[np.uint8]
Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


class Reader(Protocol):
    """Rows in parts, numbered through: part after part, each sorted by shard and index."""

    @property
    def sources(self) -> Sequence[str]:
        """Of each part."""

    @property
    def sizes(self) -> Sequence[int]:
        """Samples of each part."""

    def places(self, part: int) -> Mapping[str, int]:
        """Batch of a row of a part -> its place among all that was delivered: of two samples of one id the larger is newer."""

    def read(self, part: int, columns: Sequence[str], start: int, rows: int) -> Any:
        """A polars frame of some columns of the rows `start` to `start + rows` of a part."""

    def thumbnails(self, part: int, start: int, taken: Mask) -> Thumbnails:
        """`colour` of some of the rows from `start` on, as `taken` says by row: uint8 (taken, THUMBNAIL), any bytes where there is none."""


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

    def read(self, part: int, columns: Sequence[str], start: int, rows: int) -> Any:
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
        return frame

    def thumbnails(self, part: int, start: int, taken: Mask) -> Thumbnails:
        """See Reader.

        Raises:
            MissingObject, CorruptError: as `read`; or a thumbnail has another size.
        """
        of = self.parts[part]
        uri = self.lake.samples(of.source, of.name)
        with _samples_errors(uri):
            return _read_thumbnails(uri, start, taken)


@contextlib.contextmanager
def _samples_errors(uri: str) -> Iterator[None]:
    import polars as pl
    import pyarrow as pa

    try:
        yield
    except (pl.exceptions.PolarsError, pa.ArrowException, FileNotFoundError, OSError, KeyError, ValueError) as error:
        if not objects.exists(uri):
            raise MissingObject("there is no such object", uri, "Restore it, or shard again") from error
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
        for number, size in groups:  # one at a time: 25 MB
            some = np.flatnonzero(taken[max(at, 0) : at + size]) + max(-at, 0)
            if len(some):
                chunk = parquet.read_row_group(number, columns=["colour"], use_threads=False)["colour"]
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

    def read(self, part: int, columns: Sequence[str], start: int, rows: int) -> Any:
        import polars as pl

        keys = {name: pl.col("sha256").hash(seed) for seed, name in enumerate(KEYS)}
        return self.frames[part].with_columns(batch=pl.lit(f"{part}"), **keys).select(columns).slice(start, rows)

    def thumbnails(self, part: int, start: int, taken: Mask) -> Thumbnails:
        column = self.frames[part]["colour"].slice(start, len(taken)).filter(taken)
        return np.frombuffer(b"".join(column.fill_null(bytes(THUMBNAIL))), np.uint8).reshape(-1, THUMBNAIL)


def starts_of(reader: Reader) -> Ints:
    """The number of each part's first row, and of all rows at the end."""
    return np.append(0, np.cumsum(np.asarray(reader.sizes, np.int64))).astype(np.int64)


def chunks(reader: Reader, columns: Sequence[str]) -> Iterator[tuple[int, int, Any]]:
    """Part, number of the first row, and some columns of at most ROWS rows; all rows in their order."""
    starts = starts_of(reader)
    wanted = [(part, start) for part, size in enumerate(reader.sizes) for start in range(0, size, ROWS)]
    for (part, start), frame in _read_ahead(lambda each: reader.read(each[0], columns, each[1], ROWS), wanted):
        yield part, int(starts[part]) + start, frame


def read_rows(reader: Reader, columns: Sequence[str], rows: Ints, use: Callable[[slice, int, Any], None]) -> None:
    """Some columns of some rows (ascending): `use` gets their places in `rows`, their part, and their frame."""
    import polars as pl

    def read(chunk: _Chunk) -> Any:
        return reader.read(chunk.part, columns, chunk.start, ROWS).filter(pl.Series(chunk.taken(rows)))

    for chunk, frame in _read_ahead(read, _chunks_with(reader, rows)):
        use(chunk.places, chunk.part, frame)


def read_thumbnails(reader: Reader, rows: Ints) -> Thumbnails:
    """`colour` of some rows (ascending): uint8 (rows, THUMBNAIL).

    Raises:
        CorruptError: one has another size.
    """
    found = np.empty((len(rows), THUMBNAIL), np.uint8)

    def read(chunk: _Chunk) -> Thumbnails:
        return reader.thumbnails(chunk.part, chunk.start, chunk.taken(rows))

    for chunk, thumbnails in _read_ahead(read, _chunks_with(reader, rows)):
        found[chunk.places] = thumbnails
    return found


@dataclass(frozen=True)
class _Chunk:
    """Rows of a part from `start` on, `size` of them; `first` is the first one's number, `places` where the rows that are wanted of
    them stand among all that are."""

    part: int
    start: int
    size: int
    first: int
    places: slice

    def taken(self, rows: Ints) -> Mask:
        """Which of its rows are wanted."""
        taken = np.zeros(self.size, np.bool_)
        taken[rows[self.places] - self.first] = True
        return taken


def _chunks_with(reader: Reader, rows: Ints) -> list[_Chunk]:
    starts, found = starts_of(reader), []
    for part, size in enumerate(reader.sizes):
        for start in range(0, size, ROWS):
            first, height = int(starts[part]) + start, min(ROWS, size - start)
            low, high = np.searchsorted(rows, (first, first + height))
            if low < high:
                found.append(_Chunk(part, start, height, first, slice(int(low), int(high))))
    return found


def _read_ahead(read: Callable[[Item], Outcome], wanted: Sequence[Item]) -> Iterator[tuple[Item, Outcome]]:
    """What was read of each, in their order. While one is worked on, the next two are read."""
    with ThreadPoolExecutor(AHEAD) as pool:
        waiting: deque[Future[Outcome]] = deque()
        try:
            for place, each in enumerate(wanted):
                while len(waiting) < AHEAD and place + len(waiting) < len(wanted):
                    waiting.append(pool.submit(read, wanted[place + len(waiting)]))
                yield each, waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def parts_of(lake: Lake, sources: Sequence[str]) -> tuple[list[Part], list[str]]:
    """Every committed part, by source and sequence; and the sources that have none.

    Raises:
        InputError: none of them has any.
    """
    parts, missing = [], []
    for source in sorted(sources):
        found = committed_parts(lake, source)
        parts += found
        if not found:
            missing.append(source)
    if not parts:
        raise InputError(
            f"no part is there to release of {', '.join(missing)}", lake.parts_root(), "Run the sources' DAGs first"
        )
    return parts, missing


def load_denylists(uris: Sequence[str], dataset: str) -> tuple[frozenset[str], tuple[TextFile, ...]]:
    """Sample ids that must not be served, one a line, and what the lists were.

    Raises:
        InputError: a list is not there or is not text.
    """
    denied: set[str] = set()
    read = []
    for written in uris:
        uri, lines, said = _lines(written, "denylist", "one sample id a line", dataset)
        odd = sorted(each for each in lines if "/" not in each)
        if odd:
            raise InputError(
                f"{odd[0]!r} is not a sample id", uri, "Write <source>/<key>, one a line, and nothing else"
            )
        denied |= lines
        read.append(said)
    return frozenset(denied), tuple(read)


def load_decided(uris: Sequence[str], dataset: str) -> tuple[dict[str, str], tuple[TextFile, ...]]:
    """What a person decided of clusters, name -> MERGE or KEEP, and what the files were.

    Raises:
        InputError: a file is not there or is not text, a line is not a decision, or two contradict each other.
    """
    decided: dict[str, str] = {}
    read = []
    for written in uris:
        uri, lines, said = _lines(written, "file of decisions", "`merge CLUSTER` or `keep CLUSTER`", dataset)
        for line in sorted(lines):
            words = line.split()
            if len(words) != 2 or words[0] not in (MERGE, KEEP):
                raise InputError(
                    f"{line!r} decides nothing", uri, "Write `merge CLUSTER` or `keep CLUSTER`, one a line"
                )
            if decided.setdefault(words[1], words[0]) != words[0]:
                raise InputError(f"cluster {words[1]} is to be merged and to be kept", uri, "Take one of the two out")
        read.append(said)
    return decided, tuple(read)


def _lines(written: str, field: str, wanted: str, dataset: str) -> tuple[str, set[str], TextFile]:
    """A text file that a dataset names: its URI, the lines that are not empty, and what it was."""
    uri = objects.normalise_uri(expand(written, f"dataset {dataset}, {field}"))
    try:
        data = objects.read_bytes(uri)
        lines = {line.strip() for line in data.decode("utf-8").split("\n")} - {""}
    except (MissingObject, UnicodeDecodeError) as error:
        raise InputError(
            f"the {field} cannot be read ({type(error).__name__})",
            uri,
            f"Write a text file with {wanted}, or take it out of dataset {dataset}",
        ) from error
    return uri, lines, TextFile(uri=written, sha256=hashlib.sha256(data).hexdigest(), lines=len(lines))
