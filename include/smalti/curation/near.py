"""Which keys are alike: equal ones, and 64-bit hashes that differ in a few bits. Exact, over whole columns."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from math import comb
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]

_SLOT_BITS = 26
"""Of a filter of `may_repeat` at most: 64 MiB. More slots would let fewer others through, and each look would take longer."""


def may_repeat(keys: Keys, chunk: int = 1 << 14) -> Mask:
    """Which keys may occur more than once: all that do, and one of some thousand others. uint64 (n,) -> bool (n,).

    Beside the keys it takes 8 bytes a key. They are first looked at by 32 bits of a hash, which sort in less than half of the time; that leaves
    what occurs twice and a few others (2 % of 1e8), among which whole keys are compared.

    Args:
        chunk: keys that are looked at together: 128 KiB, so that what is computed of them stays in the processor's cache.
    """
    mixed = np.empty(len(keys), np.uint32)
    for start in range(0, len(keys), 16 * chunk):
        some = slice(start, start + 16 * chunk)
        mixed[some] = keys[some] * _FACTORS[0] >> np.uint64(32)
    rows = _among(mixed, _repeated(mixed), chunk)
    del mixed
    few = _repeated(keys[rows])
    for factor in _FACTORS[1:]:
        rows = rows[_among(keys[rows], few, chunk, factor)]
    found = np.zeros(len(keys), np.bool_)
    found[rows] = True
    return found


_FACTORS = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0x165667B19E3779F9))
"""2^64 / golden ratio (Knuth, TAOCP 3, 6.4), and two other odd numbers of about half ones (the second and third prime of xxHash64). The
top bits of a product with one of them are a hash (Fibonacci hashing)."""


def _repeated(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Values that occur more than once; some of them twice."""
    ordered = np.sort(values)
    return np.asarray(ordered[1:][ordered[1:] == ordered[:-1]])


def _among(values: npt.NDArray[Any], few: npt.NDArray[Any], chunk: int, factor: np.uint64 = _FACTORS[1]) -> Ints:
    """Places of the values that are among a few, and of some others: those that share a slot with one of them.

    To look all of them up among the few would take as long as everything else. With bits in place of bytes eight times as many slots would
    fit, and it takes twice as long to ask.
    """
    if not len(few):
        return np.empty(0, np.int64)
    bits = min(_SLOT_BITS, int(len(few) * 32).bit_length())
    taken = np.zeros(1 << bits, np.bool_)
    taken[_slots(few, bits, factor)] = True
    found = [
        np.flatnonzero(taken[_slots(values[at : at + chunk], bits, factor)]) + at for at in range(0, len(values), chunk)
    ]
    return np.concatenate(found)


def _slots(values: npt.NDArray[Any], bits: int, factor: np.uint64) -> Ints:
    if values.dtype == np.uint32:  # a hash already
        return (values >> np.uint32(32 - bits)).astype(np.int64)
    return (values * factor >> np.uint64(64 - bits)).view(np.int64)  # numpy would convert other indices first


def order_of(values: npt.NDArray[Any]) -> Ints:
    """The places of values in ascending order, equal ones in any order that depends on the values alone."""
    import polars as pl

    return np.asarray(pl.Series(values).arg_sort().to_numpy(), np.int64)  # on all cores


def runs(ordered: npt.NDArray[Any]) -> Ints:
    """Where each run of equal values of a sorted array begins, and its length at the end: int64 (runs + 1,)."""
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])) if len(ordered) else np.empty(0, np.int64)
    return np.append(starts, len(ordered)).astype(np.int64)


def pairs_in_runs(bounds: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Every pair of places of one run, the smaller first, in batches of at most one pair a place."""
    ends = np.repeat(bounds[1:], np.diff(bounds))
    step = 1
    at = np.flatnonzero(np.arange(len(ends)) + step < ends)
    while at.size:
        yield at, at + step
        step += 1
        at = at[at + step < ends[at]]


def near_pairs(hashes: Keys, distance: int) -> tuple[Ints, Ints]:
    """Pairs (i < j) of distinct hashes that differ in at most `distance` bits, each once, sorted.

    Two hashes that differ in d bits agree in at least b - d of b bands (the pigeonhole principle), so all pairs are among
    those that share the bits of some b - d bands: sort by these bits, compare within equal ones, for every choice of bands.
    """
    if distance == 0 or len(hashes) < 2:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    found = [near_within(hashes, mask, distance) for mask in band_masks(distance, len(hashes))]
    lower, upper = np.concatenate([each[0] for each in found]), np.concatenate([each[1] for each in found])
    once = np.unique(np.stack([lower, upper], 1), axis=0) if len(lower) else np.empty((0, 2), np.int64)
    return once[:, 0], once[:, 1]


def near_within(hashes: Keys, mask: np.uint64, distance: int) -> tuple[Ints, Ints]:
    """Those pairs that agree in the bits of a mask."""
    key = hashes & mask
    order = order_of(key)
    lower, upper = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    ordered = hashes[order]
    for i, j in pairs_in_runs(runs(key[order])):
        close = np.bitwise_count(ordered[i] ^ ordered[j]) <= distance
        one, other = order[i[close]], order[j[close]]
        lower.append(np.minimum(one, other))
        upper.append(np.maximum(one, other))
    return np.concatenate(lower), np.concatenate(upper)


def band_masks(distance: int, count: int) -> list[np.uint64]:
    """The bits to agree in, for each choice of bands; the number of bands is what costs least for so many hashes.

    Sorting costs about 10 comparisons of a pair for each hash; pairs are those of hashes that have nothing in common.
    """
    bands = min(range(distance + 1, 2 * distance + 5), key=lambda each: _cost(each, distance, count))
    edges = [64 * band // bands for band in range(bands + 1)]
    each_band = [(1 << edges[band + 1]) - (1 << edges[band]) for band in range(bands)]
    return [np.uint64(sum(chosen)) for chosen in combinations(each_band, bands - distance)]


_INFORMATION = 37.0
"""Bits that a hash tells, spread evenly over its 64: 40 are used and 20 of them are ones, log2 C(40, 20)."""


def _cost(bands: int, distance: int, count: int) -> float:
    pairs = count * count / 2 / float(2.0 ** (_INFORMATION * (bands - distance) / bands))
    return comb(bands, distance) * (10.0 * count + pairs)
