"""What copies are looked for by, of every sample: 17 bytes each, read once; and which hashes are near some others."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from smalti.curation.load import ROWS, starts_of
from smalti.curation.near import Ints, Keys, Mask
from smalti.curation.readers import Rows
from smalti.optouts.direct import over_chunks
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


@dataclass(frozen=True)
class Neighbours:
    """Numbers, and which others differ from one of them in a few bits.

    What differs in d bits agrees in at least b - d of b bands (the pigeonhole principle). So what agrees with none of them in the bits of any
    such choice of bands is passed over, and the rest is compared.

    Attributes:
        values: ascending, each once.
        looks: none where each value is compared; else for each choice of bands: its bits, places of the values in the order of these bits, these bits, and slots that they take.
    """

    values: Keys
    distance: int
    looks: tuple[tuple[np.uint64, Ints, Keys, Mask], ...]

    @classmethod
    def of(cls, values: Keys, distance: int) -> Neighbours:
        values = np.unique(values)
        masks = _masks(distance, len(values))
        looks = []
        for mask in masks:
            bits = values & mask
            order = np.argsort(bits, kind="stable")
            taken = np.zeros(1 << _slot_bits(len(values)), np.bool_)
            taken[_slots(bits, len(values))] = True
            looks.append((mask, order, bits[order], taken))
        return cls(values, distance, tuple(looks))

    def places(self, others: Keys) -> Ints:
        """Places of those that are near one of the values, ascending."""
        return np.unique(self.pairs(others)[0])

    def pairs(self, others: Keys) -> tuple[Ints, Ints]:
        """Places in `others` and in the values of all that are near one another, each pair once, sorted."""
        if not self.looks:
            found = [self._compared(others, place) for place in range(len(self.values))]
        else:
            found = [self._looked(others, *look) for look in self.looks]
        ones = np.concatenate([np.empty(0, np.int64), *(each[0] for each in found)])
        twos = np.concatenate([np.empty(0, np.int64), *(each[1] for each in found)])
        code = np.unique(ones * max(len(self.values), 1) + twos)
        return code // max(len(self.values), 1), code % max(len(self.values), 1)

    def _compared(self, others: Keys, place: int) -> tuple[Ints, Ints]:
        value = self.values[place]
        if self.distance == 0:
            near = np.flatnonzero(others == value)
        else:
            near = np.flatnonzero(np.bitwise_count(others ^ value) <= self.distance)
        return near, np.full(len(near), place)

    def _looked(self, others: Keys, mask: np.uint64, order: Ints, ordered: Keys, taken: Mask) -> tuple[Ints, Ints]:
        chunk = 1 << 16  # what is computed of it stays in the processor's cache
        slots = [
            np.flatnonzero(taken[_slots(others[at : at + chunk] & mask, len(ordered))]) + at
            for at in range(0, len(others), chunk)
        ]
        some = np.concatenate([np.empty(0, np.int64), *slots])
        some = some[np.argsort(others[some] & mask)]  # what is looked up in order is looked up in the cache
        bits = others[some] & mask
        low = np.searchsorted(ordered, bits)
        hit = np.flatnonzero(ordered[np.minimum(low, len(ordered) - 1)] == bits)
        some, low = some[hit], low[hit]
        counts = np.searchsorted(ordered, bits[hit], "right") - low
        one = np.repeat(some, counts)
        two = order[np.repeat(low - np.cumsum(counts) + counts, counts) + np.arange(len(one))]
        close = np.bitwise_count(others[one] ^ self.values[two]) <= self.distance
        return one[close], two[close]


def _slot_bits(count: int) -> int:
    return min(26, (count * 32).bit_length())


def _slots(bits: Keys, count: int) -> Ints:
    """Fibonacci hashing (Knuth, TAOCP 3, 6.4)."""
    return (bits * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(64 - _slot_bits(count))).view(np.int64)


_COMPARED = 0.2
"""What it costs to compare one value with another one, as `_cost` counts."""

_INFORMATION = 35.0
"""Bits that a hash tells: 40 are used, half of them ones (`smalti.curation.near`), less what pictures have in common."""


def _masks(distance: int, count: int) -> list[np.uint64]:
    """The bits to agree in, for each choice of bands; the number of bands is what costs least for so many values.

    None where it costs less to compare each value with everything.
    """
    bands = min(range(distance + 1, distance + 5), key=lambda each: _cost(each, distance, count))
    if count * _COMPARED <= _cost(bands, distance, count):
        return []
    edges = [64 * band // bands for band in range(bands + 1)]
    each_band = [(1 << edges[band + 1]) - (1 << edges[band]) for band in range(bands)]
    return [np.uint64(sum(chosen)) for chosen in combinations(each_band, bands - distance)]


def _cost(bands: int, distance: int, count: int) -> float:
    """Of one other: to ask whether its slot is taken for each choice; where it is, a search and comparisons, some twenty times as much."""
    agreeing: float = count / 2.0 ** (_INFORMATION * (bands - distance) / bands)
    return float(comb(bands, distance)) * (1 + 20 * min(agreeing, 1 / 32) + 20 * agreeing)
