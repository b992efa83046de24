"""Which samples show the same picture, and which of them is kept.

Two samples are copies if their bytes are equal, or if their fingerprints agree (`smalti.images.fingerprint.same_picture`) and
their aspect ratios are close. "Copy" is not transitive, so a chain of look-alikes could merge what nobody would call the
same: duplicates are therefore decided against kept samples only. Samples are taken in the order of their rank, and each
becomes a duplicate of the first kept sample it is a copy of, or is kept. The rank is a total order, so neither the
order in which parts arrive nor chance decides anything.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from smalti.images.fingerprint import Fingerprint, same_picture

ASPECT_TOLERANCE = 0.02
"""Largest relative difference of width/height between copies. Resizing rounds each side to a pixel, which is 0.4 % for the
smallest pictures that are kept (272x544); the nearest ratios that photographs are cropped to on purpose are 4 % apart (16:9, 1.85:1)."""


@dataclass(frozen=True)
class Copy:
    """What is known of a sample; width and height are the original's, px; a higher priority is kept rather."""

    id: str
    sha256: str
    fingerprint: Fingerprint | None
    width: int
    height: int
    priority: int = 0

    @property
    def rank(self) -> tuple[int, int, str]:
        """The most pixels first, then the source's priority, then the id."""
        return (-self.width * self.height, -self.priority, self.id)


def is_copy(one: Copy, other: Copy) -> bool:
    """Whether two samples show the same picture. Symmetric, not transitive."""
    if one.sha256 == other.sha256:
        return True
    if one.fingerprint is None or other.fingerprint is None or not _close(one, other):
        return False
    return same_picture(one.fingerprint, other.fingerprint)


def find_duplicates(samples: Iterable[Copy]) -> dict[str, str]:
    """id -> id of the kept sample it is a copy of. Ids are unique; what is kept does not appear."""
    leaders: dict[object, list[Copy]] = defaultdict(list)
    duplicates: dict[str, str] = {}
    for sample in sorted(samples, key=lambda each: each.rank):
        near = {leader.id: leader for key in _keys(sample) for leader in leaders[key]}
        ranked = sorted(near.values(), key=lambda each: each.rank)
        kept = next((leader for leader in ranked if is_copy(leader, sample)), None)
        if kept is not None:
            duplicates[sample.id] = kept.id
            continue
        for key in _keys(sample):
            leaders[key].append(sample)
    return duplicates


def spread(samples: Sequence[Copy], marked: Iterable[str]) -> dict[str, str]:
    """Every copy of a marked sample, and every copy of those: id -> id of a marked one (a marked one: itself).

    Unlike duplicates this does follow chains: what must not be served is better left out once too often.
    """
    groups: dict[object, list[Copy]] = defaultdict(list)
    for sample in samples:
        for key in _keys(sample):
            groups[key].append(sample)
    by_id = {sample.id: sample for sample in samples}
    reached: dict[str, str] = {}
    for start in sorted(marked):
        reached[start] = start  # a marked one names itself, also if a smaller id reached it first
        waiting = [by_id[start]] if start in by_id else []
        while waiting:
            sample = waiting.pop()
            found = [
                other
                for key in _keys(sample)
                for other in groups[key]
                if other.id not in reached and is_copy(sample, other)
            ]
            reached |= {other.id: start for other in found}
            waiting += found
    return reached


def _keys(sample: Copy) -> Iterator[object]:
    """Copies share at least one of these."""
    yield sample.sha256
    if sample.fingerprint is not None and not sample.fingerprint.flat:
        yield sample.fingerprint.phash


def _close(one: Copy, other: Copy) -> bool:
    return abs(math.log(one.width * other.height / (one.height * other.width))) <= ASPECT_TOLERANCE
