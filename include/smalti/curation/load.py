"""The samples of every committed part of a dataset's sources, read column by column; and the lists that people write."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from smalti import objects
from smalti.config import expand
from smalti.curation.dedup import KEEP, MERGE
from smalti.curation.near import Ints, Mask
from smalti.curation.readers import Rows, Thumbnails
from smalti.curation.record import TextFile
from smalti.errors import InputError, MissingObject
from smalti.lake import Lake
from smalti.shards.part import Part, committed_parts
from smalti.shards.samples import THUMBNAIL

ROWS = 1 << 20
"""Rows that are read at a time: eight row groups of samples.parquet."""

AHEAD = 2
"""Chunks that are read while one is worked on: one waits for the disk while the other is decoded."""

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


def starts_of(reader: Rows) -> Ints:
    """The number of each part's first row, and of all rows at the end."""
    return np.append(0, np.cumsum(np.asarray(reader.sizes, np.int64))).astype(np.int64)


def chunks(
    reader: Rows, columns: Sequence[str], look: Callable[[int, int, Any], Outcome]
) -> Iterator[tuple[slice, Outcome]]:
    """Rows, and what `look` found in some columns of them; at most ROWS at a time, all rows in their order.

    Args:
        look: gets the part, the number of the first row and a frame; chunks are looked at side by side.
    """
    starts = starts_of(reader)
    wanted = [(part, start) for part, size in enumerate(reader.sizes) for start in range(0, size, ROWS)]

    def read(each: tuple[int, int]) -> tuple[slice, Outcome]:
        part, start = each
        frame, first = reader.read(part, columns, start, ROWS), int(starts[part]) + start
        return slice(first, first + frame.height), look(part, first, frame)

    for _, found in _read_ahead(read, wanted):
        yield found


def read_rows(reader: Rows, columns: Sequence[str], rows: Ints, use: Callable[[slice, int, Any], None]) -> None:
    """Some columns of some rows (ascending): `use` gets their places in `rows`, their part, and their frame."""
    import polars as pl

    def read(chunk: _Chunk) -> Any:
        return reader.read(chunk.part, columns, chunk.start, ROWS).filter(pl.Series(chunk.taken(rows)))

    for chunk, frame in _read_ahead(read, _chunks_with(reader, rows)):
        use(chunk.places, chunk.part, frame)


def read_thumbnails(reader: Rows, rows: Ints) -> Thumbnails:
    """`colour` of some rows (ascending): uint8 (rows, THUMBNAIL).

    Raises:
        InputError: they are those of an older smalti.
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


def _chunks_with(reader: Rows, rows: Ints) -> list[_Chunk]:
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
