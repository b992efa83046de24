"""Buckets against an enumeration that shares no code with the module, and against the numbers of the design."""

from __future__ import annotations

import itertools
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from smalti.images.buckets import (
    TIERS,
    Bucket,
    Fit,
    ars_of,
    bucket_of,
    buckets_of,
    reference_table,
    tier_of,
    tiers_of,
    upscale_factor,
)
from smalti.reasons import DropReason

SHAPES_512 = "352x704 384x672 384x640 416x608 448x576 480x544 512x512 544x480 576x448 608x416 640x384 672x384 704x352"
ARS = "0.500 0.571 0.600 0.684 0.778 0.882 1.000 1.133 1.286 1.462 1.667 1.750 2.000"
SIDE = st.integers(1, 20_000)


def enumerated(tier: int) -> list[tuple[int, int]]:
    """Grids of at most 16x16 patches to which no patch can be added on one axis, between 1:2 and 2:1."""
    grids = [
        (w, h)
        for w, h in itertools.product(range(1, 257), repeat=2)
        if w * h <= 256 and (w * (h + 1) > 256 or (w + 1) * h > 256) and Fraction(1, 2) <= Fraction(w, h) <= 2
    ]
    full = [(w, h) for w, h in grids if 256 // w == h or 256 // h == w]
    return sorted(((w * tier // 16, h * tier // 16) for w, h in full), key=lambda s: Fraction(*s))


@pytest.mark.parametrize("tier", TIERS)
def test_the_buckets_are_those_of_an_independent_enumeration(tier: int) -> None:
    assert [(b.width, b.height) for b in buckets_of(tier)] == enumerated(tier)


def test_512_has_the_13_shapes_of_the_design() -> None:
    assert " ".join(f"{b.width}x{b.height}" for b in buckets_of(512)) == SHAPES_512


@pytest.mark.parametrize("tier", TIERS)
def test_every_tier_has_the_same_13_ratios(tier: int) -> None:
    buckets = buckets_of(tier)
    assert " ".join(b.ar for b in buckets) == ARS
    assert [b.ratio for b in buckets] == [b.ratio for b in buckets_of(512)]
    assert all(b.tier == tier and b.width % (tier // 16) == 0 and b.height % (tier // 16) == 0 for b in buckets)


def test_there_is_no_other_tier() -> None:
    with pytest.raises(ValueError, match="no tier 500"):
        buckets_of(500)


@pytest.mark.parametrize(
    ("width", "height", "tier"),
    [
        (384, 384, 512), (383, 385, 0), (147_456, 1, 512), (147_455, 1, 0),
        (768, 768, 1024), (767, 769, 512), (1536, 1536, 2048), (1535, 1537, 1024),
        (3072, 3072, 4096), (3071, 3073, 2048), (100_000, 100_000, 4096), (1, 1, 0),
    ],
)  # fmt: skip
def test_a_tier_begins_at_three_quarters_of_its_side(width: int, height: int, tier: int) -> None:
    assert tier_of(width, height) == tier


@given(SIDE, SIDE)
@example(600, 1200)
@example(600, 1201)
@example(1200, 600)
@example(1201, 600)
@example(1600, 1500)  # 16/15: half-way between 1.000 and 1.133
def test_the_bucket_is_the_nearest_ratio_of_the_largest_tier(width: int, height: int) -> None:
    found = bucket_of(width, height)
    tiers = [tier for tier in TIERS if width * height * 16 >= (tier * 3) ** 2]
    ratio = Fraction(width, height)
    if not tiers:
        assert found == DropReason.TOO_SMALL
    elif not Fraction(1, 2) <= ratio <= 2:
        assert found == DropReason.ASPECT_RATIO
    else:
        tier = max(tiers)
        w, h = min(enumerated_once(tier), key=lambda s: (abs(ratio - Fraction(*s)), Fraction(*s)))
        assert found == Bucket(tier, f"{w / h:.3f}", w, h)


_enumerated: dict[int, list[tuple[int, int]]] = {}


def enumerated_once(tier: int) -> list[tuple[int, int]]:
    return _enumerated.setdefault(tier, enumerated(tier))


def test_a_tie_goes_to_the_smaller_ratio() -> None:
    assert bucket_of(1600, 1500) == Bucket(2048, "1.000", 2048, 2048)
    assert bucket_of(1601, 1500) == Bucket(2048, "1.133", 2176, 1920)


@given(st.lists(st.tuples(SIDE, SIDE), max_size=50))
def test_the_array_forms_agree_with_the_scalar_ones(sizes: list[tuple[int, int]]) -> None:
    widths = np.array([w for w, _ in sizes], np.int32)
    heights = np.array([h for _, h in sizes], np.int32)
    tiers, ars = tiers_of(widths, heights), ars_of(widths, heights)
    assert tiers.tolist() == [tier_of(w, h) for w, h in sizes]
    for tier, ar, (width, height) in zip(tiers.tolist(), ars.tolist(), sizes, strict=True):
        found = bucket_of(width, height)
        if isinstance(found, Bucket):
            assert (tier, ar) == (found.tier, found.ar)
        else:
            assert tier == 0 if found == DropReason.TOO_SMALL else ar == ""


def test_products_beyond_32_bits_do_not_overflow() -> None:
    side = np.array([70_000], np.int32)
    assert tiers_of(side, side).tolist() == [4096]


def test_sizes_that_are_none_are_refused() -> None:
    for call in (tier_of, bucket_of):
        with pytest.raises(ValueError, match="not a picture: 0x5"):
            call(0, 5)
    with pytest.raises(ValueError, match="shapes differ"):
        tiers_of(np.array([1, 2]), np.array([1]))
    with pytest.raises(ValueError, match="below 1"):
        ars_of(np.array([1]), np.array([0]))


@settings(max_examples=300)
@given(SIDE, SIDE, st.sampled_from(["cover", "stretch"]))
@example(3173, 2975, "cover")
def test_no_picture_is_enlarged_by_more_than_the_design_says(width: int, height: int, fit: Fit) -> None:
    found = bucket_of(width, height)
    if isinstance(found, Bucket):
        assert upscale_factor(width, height, found, fit) <= (1.38 if fit == "cover" else 4 / 3 + 1e-9)


def test_the_upscale_factor_of_cover_is_that_of_the_axis_that_needs_more() -> None:
    bucket = buckets_of(512)[6]
    assert upscale_factor(1024, 512, bucket) == 1.0
    assert upscale_factor(1024, 400, bucket) == 1.28
    assert upscale_factor(1024, 1024, bucket, "stretch") == 0.5
    with pytest.raises(ValueError, match="no fit"):
        upscale_factor(1024, 1024, bucket, "contain")  # type: ignore[arg-type]


def test_the_reference_page_holds_the_table_of_the_module() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "buckets.md"
    assert reference_table() in page.read_text(encoding="utf-8")
