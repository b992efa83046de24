"""Which numbers are near some others: hashes that differ in a few bits, or equal ones."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np

from smalti.curation.near import Ints, Keys, Mask


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
