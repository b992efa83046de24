"""Which pairs of the set are merged, how many of those are copies, and how many of the copies are merged."""

from __future__ import annotations

import collections
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from benchmarks.dedup_quality.pool import ORIGINAL, Item
from smalti.curation.copies import ASPECT_TOLERANCE
from smalti.images.fingerprint import colours_agree_pairs

Pairs = npt.NDArray[np.intp]
"""Two columns of indices, the first one smaller."""

UNDECIDED = "dithered"
"""A picture dithered to two levels is neither counted as a copy of its grey original nor as none; pairs of the two are left out."""

FARTHEST = 4
"""Bits; no larger radius is measured."""


@dataclass(frozen=True)
class Share:
    """So many of so many."""

    hits: int
    of: int

    @property
    def value(self) -> float:
        return self.hits / self.of if self.of else math.nan

    def interval(self) -> tuple[float, float]:
        """95 %, Wilson's score interval (Wilson 1927; Brown, Cai and DasGupta 2001, section 3.1.1)."""
        if not self.of:
            return math.nan, math.nan
        z, n, p = 1.959964, self.of, self.value
        middle = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return max(0.0, middle - half), min(1.0, middle + half)


@dataclass
class Outcome:
    """What one rule did at one distance.

    recall: kind of copy -> share of the photographs whose copy is merged with the photograph itself.
    precision: share of copies among all pairs that are merged. strictly: the same without the pairs that only repeat others: a
        copy counts with its photograph alone, whatever is no copy with the photographs and with one another.
    false: the merged pairs that are none.
    """

    recall: dict[str, Share] = field(default_factory=dict)
    all_copies: Share = Share(0, 0)
    by_photo: tuple[float, float] = (math.nan, math.nan)
    precision: Share = Share(0, 0)
    strictly: Share = Share(0, 0)
    false: list[tuple[Item, Item]] = field(default_factory=list)


Rule = Callable[[Sequence[Item], Pairs], npt.NDArray[np.bool_]]
"""Which pairs it would merge, whatever their distance."""


def our_guards(items: Sequence[Item], pairs: Pairs) -> npt.NDArray[np.bool_]:
    """Everything in the rule but the distance: neither flat, close ratios, agreeing colours."""
    flat = np.array([each.print.flat for each in items])
    ratio = np.log([each.width / each.height for each in items])
    colours = np.frombuffer(b"".join(each.print.colour for each in items), np.uint8).reshape(len(items), -1)
    a, b = pairs.T
    close = np.abs(ratio[a] - ratio[b]) <= ASPECT_TOLERANCE
    return np.asarray(~flat[a] & ~flat[b] & close & colours_agree_pairs(colours[a], colours[b]), np.bool_)


def no_guards(items: Sequence[Item], pairs: Pairs) -> npt.NDArray[np.bool_]:
    """The hash alone."""
    return np.ones(len(pairs), np.bool_)


def near_pairs(hashes: npt.NDArray[np.uint64], farthest: int = FARTHEST) -> tuple[Pairs, npt.NDArray[np.uint8]]:
    """All pairs that are so near, and their distances."""
    found, distances = [], []
    for first in range(0, len(hashes), 256):
        apart = np.bitwise_count(hashes[first : first + 256, None] ^ hashes[None, first:])
        rows, columns = np.nonzero(apart <= farthest)
        later = columns > rows
        found.append(np.column_stack([rows[later], columns[later]]) + first)
        distances.append(apart[rows[later], columns[later]])
    return np.concatenate(found), np.concatenate(distances)


def judge(items: Sequence[Item], hashes: Sequence[int], guards: Rule, distances: Sequence[int]) -> list[Outcome]:
    """One Outcome for each distance."""
    pairs, apart = near_pairs(np.array(hashes, np.uint64))
    kept = guards(items, pairs)
    pairs, apart = pairs[kept], apart[kept]
    return [_outcome(items, pairs[apart <= distance]) for distance in distances]


def _outcome(items: Sequence[Item], merged: Pairs) -> Outcome:
    photographs = {each.picture for each in items if each.kind == ORIGINAL}
    wanted: collections.Counter[str] = collections.Counter()
    met: collections.Counter[str] = collections.Counter()
    of_photo: dict[str, list[int]] = {name: [0, 0] for name in sorted(photographs)}
    for each in items:
        if each.picture in photographs and each.kind != ORIGINAL:
            wanted[each.kind] += 1
            of_photo[each.picture][1] += 1
    true = strict = strictly_false = 0
    false: list[tuple[Item, Item]] = []
    for a, b in merged.tolist():
        one, other = items[a], items[b]
        kinds = [each.kind for each in (one, other) if each.kind != ORIGINAL and each.picture in photographs]
        if one.picture == other.picture:
            true += 1
            if len(kinds) == 1:  # one of them is the photograph itself
                strict += 1
                met[kinds[0]] += 1
                of_photo[one.picture][0] += 1
        elif undecided(one, other):
            continue
        else:
            false.append((one, other))
            strictly_false += not kinds
    return Outcome(
        recall={kind: Share(met[kind], wanted[kind]) for kind in wanted},
        all_copies=Share(met.total(), wanted.total()),
        by_photo=_resampled(list(of_photo.values())),
        precision=Share(true, true + len(false)),
        strictly=Share(strict, strict + strictly_false),
        false=false,
    )


def _resampled(counts: Sequence[Sequence[int]]) -> tuple[float, float]:
    """95 % interval of the recall when photographs, not pairs, are drawn: those of one photograph fail together."""
    hits, of = np.array(counts).T
    draws = np.random.default_rng(1).integers(0, len(counts), (4000, len(counts)))
    shares = hits[draws].sum(1) / of[draws].sum(1)
    low, high = np.quantile(shares, (0.025, 0.975))
    return float(low), float(high)


def group_of(each: Item) -> str:
    """photo, stamp or drawn."""
    start = each.origin.split(" ")[0]
    return start if start in ("stamp", "drawn") else "photo"


def undecided(one: Item, other: Item) -> bool:
    """Whether a pair counts for nothing."""
    return one.origin == other.origin and UNDECIDED in (one.kind, other.kind)


def pair_kind(one: Item, other: Item) -> str:
    """What a pair of different pictures is counted as."""
    if one.origin == other.origin:
        return max((one, other), key=lambda each: (each.picture != each.origin, each.kind)).kind
    groups = sorted((group_of(one), group_of(other)))
    return _apart(groups[0], groups[1], one.kind if one.kind == other.kind else "")


def _apart(group: str, other_group: str, kind: str) -> str:
    """What a pair of different origins is counted as; `kind` is that of both, or empty."""
    if group == other_group == "drawn":
        return f"drawn, two of one kind: {kind}" if kind else "drawn, of two kinds"
    return f"different origin: {group} and {other_group}"


def pair_counts(items: Sequence[Item]) -> dict[str, int]:
    """Kind of pair -> how many pairs of different pictures of that kind there are."""
    counts: collections.Counter[str] = collections.Counter()
    by_origin: dict[str, list[Item]] = collections.defaultdict(list)
    for each in items:
        by_origin[each.origin].append(each)
    for family in by_origin.values():
        for one, other in itertools.combinations(family, 2):
            if one.picture != other.picture and not undecided(one, other):
                counts[pair_kind(one, other)] += 1
    sizes: dict[tuple[str, str], list[int]] = collections.defaultdict(list)
    for family in by_origin.values():
        group = group_of(family[0])
        sizes[group, family[0].kind if group == "drawn" else ""].append(len(family))
    for (a, kind), (b, other_kind) in itertools.combinations_with_replacement(sorted(sizes), 2):
        same = (a, kind) == (b, other_kind)
        first, second = sizes[a, kind], sizes[b, other_kind]
        pairs = (sum(first) ** 2 - sum(n * n for n in first)) // 2 if same else sum(first) * sum(second)
        counts[_apart(a, b, kind if same else "")] += pairs
    return dict(counts)


def false_kinds(outcome: Outcome) -> dict[str, int]:
    """Kind of pair -> how many were merged."""
    return dict(collections.Counter(pair_kind(*pair) for pair in outcome.false))


def halves(items: Sequence[Item]) -> Iterator[tuple[str, list[Item]]]:
    """The half that constants were chosen on, the half that they were not, and both."""
    yield "tuned on", [each for each in items if not each.reporting]
    yield "held out", [each for each in items if each.reporting]
    yield "both", list(items)
