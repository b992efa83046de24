"""What is known of samples that may be copies, as columns, and when two of them are."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from smalti.curation.near import Ints, Keys, Mask
from smalti.images.fingerprint import ColourBounds, colours_agree_pairs

ASPECT_TOLERANCE = 0.02
"""Largest relative difference of width/height between copies. Resizing rounds each side to a pixel, which is 0.4 % for the
smallest pictures that are kept (272x544); the nearest ratios that photographs are cropped to on purpose are 4 % apart (16:9, 1.85:1)."""


_PAIRS = 1 << 16
"""Pairs of thumbnails, the wide part, that are compared at a time: 2 x 6 MiB."""


def ratios_close(width: int, height: int, other_width: int, other_height: int) -> bool:
    """Whether two pictures could be of one shape, but for rounding."""
    return abs(math.log(width * other_height / (height * other_width))) <= ASPECT_TOLERANCE


@dataclass(frozen=True)
class Copies:
    """Columns of n samples.

    Attributes:
        id: polars Series of texts.
        priority: int64 (n,), of the source: the higher is kept rather.
        sha256: uint64 (n, 2), its first 16 bytes (`smalti.shards.samples.KEYS`).
        phash: uint64 (n,).
        hashed: bool (n,), there is a hash and the picture is not flat: the hash may tell that it is a copy.
        thumbnails: gives `colour`; they are most of the bytes, and may still be read while the other columns are worked on.
        width, height: int64 (n,), of the original, px.
    """

    id: Any
    priority: Ints
    sha256: Keys
    phash: Keys
    hashed: Mask
    thumbnails: Callable[[], npt.NDArray[np.uint8]]
    width: Ints
    height: Ints

    def __len__(self) -> int:
        return len(self.phash)

    @property
    def colour(self) -> npt.NDArray[np.uint8]:
        """uint8 (n, THUMBNAIL)."""
        return self.thumbnails()

    @property
    def ratio(self) -> npt.NDArray[np.float64]:
        """log(width / height)."""
        return np.asarray(np.log(self.width / self.height))


@dataclass(frozen=True)
class Rule:
    """When two samples of a table show the same picture. Symmetric, not transitive.

    Equal sha256, or else: hashes within `distance`, close ratios and agreeing colours, neither flat
    (`smalti.images.fingerprint.same_picture`).
    """

    copies: Copies
    distance: int
    ratio: npt.NDArray[np.float64]

    @classmethod
    def of(cls, copies: Copies, distance: int) -> Rule:
        return cls(copies, distance, copies.ratio)

    def same_bytes(self, a: Ints, b: Ints) -> Mask:
        """Rows and rows -> bool."""
        sha256 = self.copies.sha256
        return np.asarray((sha256[a, 0] == sha256[b, 0]) & (sha256[a, 1] == sha256[b, 1]))

    def is_copy(self, a: Ints, b: Ints) -> Mask:
        """Rows and rows -> bool."""
        found = self.same_bytes(a, b)
        rest = np.flatnonzero(~found)
        found[rest] = self.look_alike(a[rest], b[rest])
        return found

    def look_alike(self, a: Ints, b: Ints, scale: int = 1, bounds: ColourBounds | None = None) -> Mask:
        """Whether two differ by no more than `scale` times what copies may; each of these differences is a metric.

        Args:
            bounds: of the pictures among which copies are looked for; wanted for a scale above 1.
        """
        copies = self.copies
        close = copies.hashed[a] & copies.hashed[b]
        close &= np.bitwise_count(copies.phash[a] ^ copies.phash[b]) <= scale * self.distance
        slack = 0.0 if scale == 1 else 1e-9
        close &= np.abs(self.ratio[a] - self.ratio[b]) <= scale * ASPECT_TOLERANCE + slack
        rest = np.flatnonzero(close)
        colour = copies.colour

        def agree(start: int) -> Mask:
            some = rest[start : start + _PAIRS]
            colours = colour[a[some]], colour[b[some]]
            return colours_agree_pairs(*colours) if scale == 1 or bounds is None else bounds.within(*colours, scale)

        for start, agreed in zip(range(0, len(rest), _PAIRS), _on_all_cores(agree, len(rest)), strict=True):
            close[rest[start : start + _PAIRS]] = agreed
        return np.asarray(close)


def _on_all_cores(work: Callable[[int], Mask], count: int) -> Iterator[Mask]:
    """The work on each _PAIRS of `count`, in their order; numpy computes without Python's lock."""
    if count <= _PAIRS:
        yield from map(work, range(0, count, _PAIRS))
        return
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from pool.map(work, range(0, count, _PAIRS))
