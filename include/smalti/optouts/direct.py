"""Which samples the keys themselves name: column by column, and no column that no key asks for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from smalti.curation.load import AHEAD, ROWS, starts_of
from smalti.curation.near import Ints
from smalti.curation.readers import Rows
from smalti.optouts.keys import KeyKind
from smalti.optouts.neighbours import Neighbours
from smalti.optouts.request import Request
from smalti.optouts.urls import WHITE, Prefixes, Tails, below, spelled_hosts, spelled_urls
from smalti.shards.samples import KEYS

_FEW = 64
"""Texts that polars looks for in one pass (Aho, Corasick 1975) in a third of the time in which it cuts off and compares the ends."""

Outcome = TypeVar("Outcome")

_TEXTS = {KeyKind.ID: "id", KeyKind.OWNER: "owner"}
"""Kinds whose keys are compared with a column, but for white space around it."""


def over_chunks(reader: Rows, work: Callable[[int, int, int], Outcome]) -> Iterator[Outcome]:
    """What `work` finds in each ROWS rows, in their order: it gets a part, the first row in it and that row's number."""
    starts = starts_of(reader)
    chunks = [
        (part, start, int(starts[part]) + start)
        for part, size in enumerate(reader.sizes)
        for start in range(0, size, ROWS)
    ]
    with ThreadPoolExecutor(AHEAD) as pool:
        yield from pool.map(lambda each: work(*each), chunks)


_GROUP = 1 << 17
"""Rows of a row group of samples.parquet: what is read for a single row."""


def gather(reader: Rows, columns: Sequence[str], rows: Ints) -> Iterator[tuple[slice, int, Any]]:
    """Some columns of some rows (ascending): their places in `rows`, their part and a polars frame; in their order.

    Where few rows are asked for no more is read than the row groups that they are in.
    """
    starts = starts_of(reader)
    part = np.searchsorted(starts, rows, "right") - 1
    groups = np.unique(part * (1 << 40) + (rows - starts[part]) // _GROUP)
    step = _GROUP if 2 * len(groups) * _GROUP < int(starts[-1]) else ROWS
    at = (rows - starts[part]) // step
    bounds = np.append(np.flatnonzero(np.append(True, (np.diff(part) != 0) | (np.diff(at) != 0))), len(rows))

    def read(low: int, high: int) -> tuple[slice, int, Any]:
        number, start = int(part[low]), int(at[low]) * step
        return (
            slice(low, high),
            number,
            reader.read(number, columns, start, step, rows[low:high] - int(starts[number]) - start),
        )

    if len(rows):
        with ThreadPoolExecutor(AHEAD) as pool:
            yield from pool.map(lambda each: read(*each), zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True))


@dataclass(frozen=True)
class Direct:
    """The keys of some requests; requests are named by their place.

    Attributes:
        keys: polars frame: kind, value, request, key.
    """

    keys: Any

    @classmethod
    def of(cls, requests: Sequence[Request], kinds: Collection[KeyKind] = tuple(KeyKind)) -> Direct:
        """The keys of these kinds."""
        import polars as pl

        rows = [
            (str(key.kind), key.value, number, place)
            for number, request in enumerate(requests)
            for place, key in enumerate(request.keys)
            if key.kind in kinds
        ]
        schema = {"kind": pl.String, "value": pl.String, "request": pl.Int32, "key": pl.Int32}
        return cls(pl.DataFrame(rows, schema=schema, orient="row"))

    def find(self, reader: Rows) -> Any:
        """Rows that keys name, as a polars frame: row, request, key; not sorted, and a row may stand under several keys."""
        import polars as pl

        found = [_hits(pl.DataFrame(schema={"row": pl.Int64, "value": pl.String}), self._of(KeyKind.ID))]
        if self.keys.height:
            found += over_chunks(reader, lambda part, start, first: self._look(reader, part, start, first))
        return pl.concat(found)

    def _of(self, *kinds: KeyKind) -> Any:
        import polars as pl

        return self.keys.filter(pl.col("kind").is_in([str(kind) for kind in kinds])).select("value", "request", "key")

    @cached_property
    def _texts(self) -> dict[str, tuple[Any, Any]]:
        """Column -> its keys, and their values."""
        wanted = {column: self._of(kind) for kind, column in _TEXTS.items()}
        return {column: (keys, keys["value"].unique()) for column, keys in wanted.items() if keys.height}

    @cached_property
    def _sources(self) -> frozenset[str]:
        """Of the sample ids that are asked for."""

        ids = self._of(KeyKind.ID)
        return frozenset(ids["value"].str.splitn("/", 2).struct.field("field_0").unique())

    @cached_property
    def _sha256(self) -> tuple[Any, Any]:
        """Keys by sha256; and the first of KEYS of each."""
        import polars as pl

        keys = self._of(KeyKind.SHA256, KeyKind.IMAGE)
        first = [int(value[:16], 16) for value in keys["value"].unique()]
        return keys, pl.Series(first, dtype=pl.UInt64)

    @cached_property
    def _domains(self) -> tuple[Any, Any]:
        keys = self._of(KeyKind.DOMAIN)
        return keys, keys["value"].unique()

    @cached_property
    def _urls(self) -> tuple[Any, Any]:
        """Keys by URL, and by prefix."""
        return self._of(KeyKind.URL), self._of(KeyKind.PREFIX)

    @cached_property
    def _may_be(self) -> tuple[Tails | Prefixes, Prefixes]:
        """By URL and by prefix: others need not be spelled. Few URLs are looked for as prefixes are, which one pass does for all of them."""
        urls, prefixes = (tuple(keys["value"].unique().sort()) for keys in self._urls)
        return Prefixes(urls) if len(urls) <= _FEW else Tails.of(urls), Prefixes(prefixes)

    def _look(self, reader: Rows, part: int, start: int, first: int) -> Any:
        """Of one chunk."""
        import polars as pl

        columns = [name for name in self._texts if name != "id" or reader.sources[part] in self._sources]
        columns += [KEYS[0]] if self._sha256[0].height else []
        columns += ["url_host"] if self._domains[0].height else []
        columns += ["url"] if any(keys.height for keys in self._urls) else []
        none = pl.DataFrame(schema={"row": pl.Int64, "value": pl.String})
        found = [_hits(none, self._of(KeyKind.ID))]
        if not columns:
            return found[0]
        frame = reader.read(part, columns, start, ROWS)
        frame = frame.with_columns(row=pl.int_range(first, first + frame.height, dtype=pl.Int64))
        for name in {*columns} & {*self._texts}:
            keys, values = self._texts[name]
            text = pl.col(name).str.strip_chars(WHITE) if name == "owner" else pl.col(name)  # an id has none around it
            found.append(_hits(frame.select("row", value=text), keys, values))

        if KEYS[0] in columns:
            keys, values = self._sha256
            rows = frame.filter(pl.col(KEYS[0]).is_in(values.implode()))["row"]
            for places, _, whole in gather(reader, ["sha256"], rows.to_numpy()):
                found.append(_hits(pl.DataFrame({"row": rows[places], "value": whole["sha256"]}), keys, keys["value"]))
        if "url_host" in columns:
            found.append(self._by_host(frame.select("row", host="url_host")))
        if "url" in columns:
            found += self._by_url(frame.select("row", "url"))
        return pl.concat(found)

    def _by_host(self, frame: Any) -> Any:
        """frame: row, host."""
        import polars as pl

        domains, values = self._domains
        inside = below(spelled_hosts(frame["host"]), values)
        some = frame.filter(pl.col("host").is_in(inside["host"].implode()))
        return _hits(some.join(inside, on="host").select("row", "value"), domains)

    def _by_url(self, frame: Any) -> Iterator[Any]:
        """frame: row, url."""
        urls, prefixes = self._urls
        mine, cuts = self._may_be
        if urls.height:
            some = spelled_urls(mine.among(frame))
            yield _hits(some.select("row", value="spelled"), urls, urls["value"])
        if prefixes.height:
            yield _hits(cuts.find(spelled_urls(cuts.among(frame))), prefixes)


def _hits(found: Any, keys: Any, values: Any = None) -> Any:
    """found: row, value. keys: value, request, key. values: those of the keys, if most of what was found is none of them."""
    import polars as pl

    if values is not None:
        found = found.filter(pl.col("value").is_in(values.implode()))
    return found.join(keys, on="value").select("row", "request", "key")


def rows_of(ids: Any, reader: Rows) -> Any:
    """Rows with one of these ids (polars Series), as a polars frame: row, id."""
    import polars as pl

    sources = set(ids.str.splitn("/", 2).struct.field("field_0").unique())
    wanted = ids.unique()
    asked = Neighbours.of(
        wanted.hash().to_numpy(), 0
    )  # made once: of a million texts each chunk would make a table anew

    def look(part: int, start: int, first: int) -> Any:
        if reader.sources[part] not in sources:
            return pl.DataFrame(schema={"row": pl.Int64, "id": pl.String})
        found = reader.read(part, ["id"], start, ROWS)["id"]
        places = asked.places(found.hash().to_numpy())
        return pl.DataFrame({"row": first + places, "id": found.gather(places)})

    found = pl.concat([pl.DataFrame(schema={"row": pl.Int64, "id": pl.String}), *over_chunks(reader, look)])
    return found.filter(pl.col("id").is_in(wanted.implode()))


def as_rows(frame: Any) -> Ints:
    """The column `row`, ascending, each once."""
    return np.asarray(np.unique(frame["row"].to_numpy()), np.int64)
