"""The samples of every committed part of a dataset's sources, read column by column; and the lists that people write."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from smalti import objects
from smalti.config import expand
from smalti.curation.dedup import KEEP, MERGE
from smalti.curation.near import Ints
from smalti.curation.record import TextFile
from smalti.errors import CorruptError, InputError, MissingObject
from smalti.lake import Lake
from smalti.shards.part import Part, batch_orders, committed_parts
from smalti.shards.samples import SCHEMA

ROWS = 1 << 20
"""Rows that are read at a time: eight row groups of samples.parquet."""


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
        import pyarrow as pa

        of = self.parts[part]
        uri = self.lake.samples(of.source, of.name)
        try:
            frame = _read(uri, columns, start, rows)
            kinds = pl.from_arrow(SCHEMA.empty_table().select(list(columns))).schema
            frame = frame.cast(kinds)
        except (pl.exceptions.PolarsError, pa.ArrowException, FileNotFoundError, OSError, KeyError) as error:
            if not objects.exists(uri):
                raise MissingObject("there is no such object", uri, "Restore it, or shard again") from error
            raise CorruptError(f"this is not a samples.parquet ({error})", uri, "Restore it, or shard again") from error
        if frame.height != min(rows, of.samples - start):
            raise CorruptError(f"it does not have {of.samples} rows", uri, "Restore it, or shard again")
        return frame


def _read(uri: str, columns: Sequence[str], start: int, rows: int) -> Any:
    import polars as pl
    import pyarrow.parquet as pq

    path = objects.local_path(uri)
    if path is not None:
        return pl.scan_parquet(path).select(columns).slice(start, rows).collect()
    with objects.open_binary(uri) as file:
        found = pq.ParquetFile(file)
        groups: list[int] = []
        at = first = 0
        for number in range(found.num_row_groups):
            size = found.metadata.row_group(number).num_rows
            if at < start + rows and at + size > start:
                first = at if not groups else first
                groups.append(number)
            at += size
        table = found.read_row_groups(groups, columns=list(columns))
    return pl.from_arrow(table).select(columns).slice(start - first, rows)


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

        return self.frames[part].with_columns(batch=pl.lit(f"{part}")).select(columns).slice(start, rows)


def starts_of(reader: Reader) -> Ints:
    """The number of each part's first row, and of all rows at the end."""
    return np.append(0, np.cumsum(np.asarray(reader.sizes, np.int64))).astype(np.int64)


def chunks(reader: Reader, columns: Sequence[str]) -> Iterator[tuple[int, int, Any]]:
    """Part, number of the first row, and some columns of at most ROWS rows; all rows in their order."""
    starts = starts_of(reader)
    wanted = [(part, start) for part, size in enumerate(reader.sizes) for start in range(0, size, ROWS)]
    for (part, start), frame in zip(wanted, _read_ahead(reader, columns, wanted), strict=True):
        yield part, int(starts[part]) + start, frame


def read_rows(reader: Reader, columns: Sequence[str], rows: Ints, use: Callable[[slice, int, Any], None]) -> None:
    """Some columns of some rows (ascending): `use` gets their places in `rows`, their part, and their frame."""
    import polars as pl

    starts = starts_of(reader)
    wanted, places = [], []
    for part, size in enumerate(reader.sizes):
        for start in range(0, size, ROWS):
            first = int(starts[part]) + start
            low, high = np.searchsorted(rows, (first, first + min(ROWS, size - start)))
            if low < high:
                wanted.append((part, start))
                places.append((slice(int(low), int(high)), first))
    for (part, _), (some, first), frame in zip(wanted, places, _read_ahead(reader, columns, wanted), strict=True):
        taken = np.zeros(frame.height, np.bool_)
        taken[rows[some] - first] = True
        use(some, part, frame.filter(pl.Series(taken)))


def _read_ahead(reader: Reader, columns: Sequence[str], wanted: Sequence[tuple[int, int]]) -> Iterator[Any]:
    """The chunk of each part and first row. While one is worked on, the next is read."""
    with ThreadPoolExecutor(1) as pool:
        waiting: Future[Any] | None = None
        for part, start in wanted:
            following = pool.submit(reader.read, part, columns, start, ROWS)
            if waiting is not None:
                yield waiting.result()
            waiting = following
        if waiting is not None:
            yield waiting.result()


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
