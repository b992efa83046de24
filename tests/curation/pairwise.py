"""The rule of duplicates pair by pair, slow and plain: what the columns are held against."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from smalti.curation.copies import ASPECT_TOLERANCE, Copies
from smalti.images.fingerprint import Fingerprint, same_picture
from smalti.shards.samples import THUMBNAIL

STEEP = bytes([64, 144] * 25)[:49] + bytes([110] * 50)
"""A thumbnail of steep steps."""


def brighter(levels: int) -> bytes:
    """STEEP by so many levels, and by twice as many in chroma: only neighbours agree."""
    return bytes(each + levels * (1 + (place >= 49)) for place, each in enumerate(STEEP))


@dataclass(frozen=True)
class Copy:
    """What is known of a sample."""

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


def is_copy(one: Copy, other: Copy, distance: int = 0) -> bool:
    """Whether two samples show the same picture. Symmetric, not transitive."""
    if one.sha256 == other.sha256:
        return True
    if one.fingerprint is None or other.fingerprint is None:
        return False
    close = abs(math.log(one.width / one.height) - math.log(other.width / other.height)) <= ASPECT_TOLERANCE
    return close and same_picture(one.fingerprint, other.fingerprint, distance)


def find_duplicates(samples: Iterable[Copy], distance: int = 0) -> dict[str, str]:
    """id -> id of the kept sample it is a copy of. What is kept does not appear."""
    kept: list[Copy] = []
    duplicates = {}
    for sample in sorted(samples, key=lambda each: each.rank):
        twin = next((other for other in kept if is_copy(other, sample, distance)), None)
        if twin is None:
            kept.append(sample)
        else:
            duplicates[sample.id] = twin.id
    return duplicates


def components(samples: Sequence[Copy], distance: int = 0) -> list[list[Copy]]:
    """Samples that hang together by copies of copies."""
    left, found = list(samples), []
    while left:
        waiting = [left.pop()]
        members = []
        while waiting:
            sample = waiting.pop()
            members.append(sample)
            near = [other for other in left if is_copy(sample, other, distance)]
            left = [other for other in left if other not in near]
            waiting += near
        found.append(members)
    return found


def spread(samples: Sequence[Copy], marked: Iterable[str], distance: int = 0) -> dict[str, str]:
    """What is reached from a marked sample, by id -> the smallest id of a marked one; marked ones are not named."""
    reached: dict[str, str] = {}
    wanted = set(marked)
    for members in components(samples, distance):
        sources = sorted(wanted & {each.id for each in members})
        if sources:
            reached |= {each.id: sources[0] for each in members if each.id not in wanted}
    return reached


def decide(
    samples: Sequence[Copy], eligible: set[str], distance: int, limit: int, decided: Mapping[int, str]
) -> tuple[dict[str, str], set[str]]:
    """Duplicates and quarantined ids among the eligible samples; `decided` by the smallest hash of a cluster."""
    duplicates: dict[str, str] = {}
    quarantined: set[str] = set()
    for members in components(samples, distance):
        inside = [each for each in members if each.id in eligible]
        word = decided.get(_least_hash(members), "")
        if _distinct(members) <= limit or (not word and _distinct(inside) <= limit):
            duplicates |= find_duplicates(inside, distance)
            continue
        ordered = sorted(inside, key=lambda each: each.rank)
        if word == "merge" and ordered:
            duplicates |= {each.id: ordered[0].id for each in ordered[1:]}
            continue
        of_bytes: dict[str, str] = {}
        for each in ordered:
            if of_bytes.setdefault(each.sha256, each.id) != each.id:
                duplicates[each.id] = of_bytes[each.sha256]
            elif word != "keep":
                quarantined.add(each.id)
    return duplicates, quarantined


def _least_hash(samples: Sequence[Copy]) -> int:
    prints = [each.fingerprint for each in samples if each.fingerprint and not each.fingerprint.flat]
    return min(each.phash for each in prints) if prints else -1


def _distinct(samples: Sequence[Copy]) -> int:
    """Equal bytes with equal fingerprints count once."""
    return len({(each.sha256, each.fingerprint, each.width, each.height) for each in samples})


def columns(samples: Sequence[Copy]) -> Copies:
    """The same samples as columns."""
    import polars as pl

    sha256 = {each: number for number, each in enumerate(dict.fromkeys(sample.sha256 for sample in samples))}
    prints = [sample.fingerprint for sample in samples]
    colour = np.array([list(each.colour) if each else [0] * THUMBNAIL for each in prints], np.uint8).reshape(
        -1, THUMBNAIL
    )
    return Copies(
        id=pl.Series("id", [sample.id for sample in samples], pl.String),
        priority=np.array([sample.priority for sample in samples], np.int64),
        sha256=np.array([(7, sha256[sample.sha256]) for sample in samples], np.uint64).reshape(-1, 2),
        phash=np.array([each.phash if each else 0 for each in prints], np.uint64),
        hashed=np.array([each is not None and not each.flat for each in prints], np.bool_),
        thumbnails=lambda: colour,
        width=np.array([sample.width for sample in samples], np.int64),
        height=np.array([sample.height for sample in samples], np.int64),
    )
