"""Tiers and buckets: which shape a picture is trained at (docs/reference/buckets.md is made from this module).

All comparisons are made on integers, so no picture changes its bucket with the machine, the numpy or the dtype.
"""

from __future__ import annotations

import functools
import itertools
import math
from fractions import Fraction
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from smalti.reasons import DropReason

Integers = npt.NDArray[np.integer[Any]]

Fit = Literal["cover", "stretch"]
"""How a picture is made to fill its bucket: scaled to cover and cropped at the centre, or scaled on each axis."""

TIERS = (512, 1024, 2048, 4096)
"""A tier T is named by the side of its square bucket, px."""

PATCHES = 16
"""Every side is a multiple of T/16, so that every tier has the same 13 ratios; a bucket has at most 16x16 patches."""

ASPECT_MIN, ASPECT_MAX = Fraction(1, 2), Fraction(2, 1)

MIN_PIXELS = tuple((tier * 3 // 4) ** 2 for tier in TIERS)
"""Fewest pixels (width*height) that a tier takes: the area of its square bucket upscaled by 4/3 on each side."""


class Bucket(NamedTuple):
    """One shape of one tier; ``ar`` is its directory name, width/height to three digits."""

    tier: int
    ar: str
    width: int
    height: int

    @property
    def ratio(self) -> Fraction:
        """width/height exactly; ``ar`` is only its name."""
        return Fraction(self.width, self.height)


@functools.cache
def buckets_of(tier: int) -> tuple[Bucket, ...]:
    """The 13 buckets of a tier, ascending by width/height.

    Args:
        tier: one of TIERS.
    Raises:
        ValueError: no such tier.
    """
    if tier not in TIERS:
        raise ValueError(f"no tier {tier}: there are {TIERS}")
    patch = tier // PATCHES
    tall = {(w, PATCHES**2 // w) for w in range(1, PATCHES**2 + 1)}
    grid = tall | {(h, w) for w, h in tall}
    kept = (Bucket(tier, f"{w / h:.3f}", w * patch, h * patch) for w, h in grid if _aspect_ok(w, h))
    return tuple(sorted(kept, key=lambda bucket: bucket.ratio))


def tier_of(width: int, height: int) -> int:
    """The largest tier T with width*height >= (3T/4)^2, or 0 for a picture below 384^2 = 147,456 px."""
    _check_size(width, height)
    return max((t for t, least in zip(TIERS, MIN_PIXELS, strict=True) if width * height >= least), default=0)


def bucket_of(width: int, height: int) -> Bucket | DropReason:
    """The bucket of an upright picture, or why it has none.

    The nearest by \\|w/h - ar\\| on the bucket's exact width/height; a tie goes to the smaller ratio. A picture that is both
    too small and too long is counted as `too_small`.
    """
    tier = tier_of(width, height)
    if tier == 0:
        return DropReason.TOO_SMALL
    if not _aspect_ok(width, height):
        return DropReason.ASPECT_RATIO
    index = sum(width * boundary.denominator > height * boundary.numerator for boundary in _boundaries())
    return buckets_of(tier)[index]


def tiers_of(widths: Integers, heights: Integers) -> npt.NDArray[np.int64]:
    """`tier_of` for arrays of equal shape: T in px, 0 below 384^2 px."""
    widths, heights = _check_sizes(widths, heights)
    rank = np.searchsorted(np.array(MIN_PIXELS, np.int64), widths * heights, side="right")
    return np.array((0, *TIERS), np.int64)[rank]


def ars_of(widths: Integers, heights: Integers) -> npt.NDArray[np.str_]:
    """The bucket's ``ar`` for arrays of equal shape; "" where width/height is outside [0.5, 2]. Size is not looked at."""
    widths, heights = _check_sizes(widths, heights)
    names = np.array([bucket.ar for bucket in buckets_of(TIERS[0])])
    index = np.zeros(widths.shape, np.int64)
    for boundary in _boundaries():
        index += widths * boundary.denominator > heights * boundary.numerator
    outside = (2 * widths < heights) | (widths > 2 * heights)
    return np.where(outside, "", names[index])


def upscale_factor(width: int, height: int, bucket: Bucket, fit: Fit = "cover") -> float:
    """How much a picture is enlarged on the way into its bucket; below 1 it is reduced.

    `cover` enlarges both axes alike: the larger of the two ratios, at most 1.38 for the bucket of `bucket_of`. `stretch`
    enlarges each axis on its own: the root of the ratio of the areas, at most 4/3.
    """
    _check_size(width, height)
    if fit == "cover":
        return max(bucket.width / width, bucket.height / height)
    if fit == "stretch":
        return math.sqrt(bucket.width * bucket.height / (width * height))
    raise ValueError(f"no fit {fit!r}: cover or stretch")


def reference_table() -> str:
    """The table of docs/reference/buckets.md, Markdown; a test holds the page equal to it."""
    head = "| ar | " + " | ".join(f"{tier}" for tier in TIERS) + " |"
    rule = "|---:|" + "---:|" * len(TIERS)
    rows = [
        f"| {same_ar[0].ar} | " + " | ".join(f"{bucket.width}x{bucket.height}" for bucket in same_ar) + " |"
        for same_ar in zip(*map(buckets_of, TIERS), strict=True)
    ]
    return "\n".join((head, rule, *rows)) + "\n"


@functools.cache
def _boundaries() -> tuple[Fraction, ...]:
    """Half-way between neighbouring ratios, the same in every tier; a picture exactly on one goes to the smaller."""
    ratios = [bucket.ratio for bucket in buckets_of(TIERS[0])]
    return tuple((low + high) / 2 for low, high in itertools.pairwise(ratios))


def _aspect_ok(width: int, height: int) -> bool:
    return 2 * width >= height and width <= 2 * height


def _check_size(width: int, height: int) -> None:
    if width < 1 or height < 1:
        raise ValueError(f"not a picture: {width}x{height}")


def _check_sizes(widths: Integers, heights: Integers) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    wide, high = np.asarray(widths, np.int64), np.asarray(heights, np.int64)  # products of int32 would overflow
    if wide.shape != high.shape:
        raise ValueError(f"shapes differ: {wide.shape}, {high.shape}")
    if wide.size and min(wide.min(), high.min()) < 1:
        raise ValueError("not a picture: a width or height below 1")
    return wide, high
