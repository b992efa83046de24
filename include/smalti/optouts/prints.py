"""What copies are looked for by, of every sample: 17 bytes each, read once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from smalti.curation.load import ROWS, starts_of
from smalti.curation.near import Ints, Keys
from smalti.curation.readers import Rows
from smalti.optouts.direct import over_chunks
from smalti.optouts.neighbours import Neighbours
from smalti.shards.samples import KEYS

NONE, FLAT, HASHED = 0, 1, 2
"""A sample has no hash; one that tells nothing; one that may tell that it is a copy."""

Outcome = TypeVar("Outcome")


def as_keys(values: Any) -> Keys:
    """A column of numbers."""
    return np.asarray(values.to_numpy(), np.uint64)


def kind_of(frame: Any) -> npt.NDArray[np.uint8]:
    """NONE, FLAT or HASHED, of a frame with phash and flat."""
    import polars as pl

    flat = pl.when(pl.col("flat").fill_null(True)).then(FLAT).otherwise(HASHED)
    kind = pl.when(pl.col("phash").is_null()).then(NONE).otherwise(flat)
    return np.asarray(frame.select(kind.cast(pl.UInt8)).to_series().to_numpy())


@dataclass(frozen=True)
class Prints:
    """By row.

    Attributes:
        sha256: uint64, the first of KEYS.
        phash: uint64, 0 where there is none.
        kind: NONE, FLAT or HASHED.
    """

    sha256: Keys
    phash: Keys
    kind: npt.NDArray[np.uint8]

    @classmethod
    def read(cls, reader: Rows) -> Prints:
        count = int(starts_of(reader)[-1])
        found = cls(np.empty(count, np.uint64), np.empty(count, np.uint64), np.empty(count, np.uint8))

        def look(part: int, start: int, first: int) -> None:
            frame = reader.read(part, [KEYS[0], "phash", "flat"], start, ROWS)
            rows = slice(first, first + frame.height)
            found.sha256[rows] = as_keys(frame[KEYS[0]])
            found.phash[rows] = as_keys(frame["phash"].fill_null(0))
            found.kind[rows] = kind_of(frame)

        for _ in over_chunks(reader, look):
            pass
        return found

    def candidates(self, sha256: Keys, hashes: Keys, distance: int) -> Ints:
        """Rows that may have the bytes of some samples, or whose hash is near one of theirs; ascending.

        Args:
            sha256: as the column; each once.
            hashes: of those that are HASHED; each once.
        """
        near, bytes_ = Neighbours.of(hashes, distance), Neighbours.of(sha256, 0)

        def look(rows: slice) -> Ints:
            alike = near.places(self.phash[rows])
            alike = alike[self.kind[rows][alike] == HASHED]
            return np.asarray(rows.start + np.union1d(alike, bytes_.places(self.sha256[rows])), np.int64)

        return np.concatenate([np.empty(0, np.int64), *_blocks(len(self.sha256), look)])

    def pairs(self, hashes: Keys, distance: int, of: Callable[[slice, Ints, Ints], Outcome]) -> list[Outcome]:
        """What `of` makes of rows near some hashes: it gets a block of rows, places in it and in the hashes."""
        near = Neighbours.of(hashes, distance)
        return list(_blocks(len(self.phash), lambda rows: of(rows, *near.pairs(self.phash[rows]))))


def _blocks(count: int, look: Callable[[slice], Outcome], size: int = 1 << 20) -> Iterator[Outcome]:
    """On all cores, in their order; numpy computes without Python's lock."""
    slices = [slice(start, min(start + size, count)) for start in range(0, count, size)]
    if len(slices) < 2:
        yield from map(look, slices)
        return
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from pool.map(look, slices)
