from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from smalti.images.buckets import Bucket, Fit, bucket_of, buckets_of
from smalti.images.resize import crop_box, fit_to

SQUARE = buckets_of(512)[6]


def gradient(width: int, height: int) -> Image.Image:
    """Red is the x position, green the y position, 0-255 from edge to edge."""
    x = np.broadcast_to((np.arange(width) + 0.5) / width * 255, (height, width))
    y = np.broadcast_to(((np.arange(height) + 0.5) / height * 255)[:, None], (height, width))
    return Image.fromarray(np.rint(np.dstack([x, y, np.full_like(x, 128)])).astype(np.uint8))


@settings(max_examples=30, deadline=None)
@given(st.integers(280, 1400), st.integers(280, 1400), st.sampled_from(["cover", "stretch"]))
def test_the_result_has_exactly_the_buckets_shape(width: int, height: int, fit: Fit) -> None:
    bucket = bucket_of(width, height)
    if isinstance(bucket, Bucket):
        image = fit_to(gradient(width, height), bucket, fit)
        assert (image.mode, image.size) == ("RGB", (bucket.width, bucket.height))


@given(st.integers(1, 30_000), st.integers(1, 30_000), st.sampled_from([b for t in (512, 4096) for b in buckets_of(t)]))
def test_the_crop_is_centred_inside_and_of_the_buckets_ratio(width: int, height: int, bucket: Bucket) -> None:
    left, top, right, bottom = crop_box(width, height, bucket)
    assert left >= 0
    assert top >= 0
    assert right <= width
    assert bottom <= height
    assert left == pytest.approx(width - right, abs=1e-6)
    assert top == pytest.approx(height - bottom, abs=1e-6)
    assert (right - left) / (bottom - top) == pytest.approx(bucket.width / bucket.height)
    assert min(left, top) == 0  # nothing more is cut than must be


def test_cover_cuts_both_sides_alike_and_stretch_cuts_nothing() -> None:
    wide = gradient(1024, 512)
    cover, stretch = (np.asarray(fit_to(wide, SQUARE, fit))[:, [0, -1], 0].mean(0) for fit in ("cover", "stretch"))
    assert cover == pytest.approx([255 / 4, 255 * 3 / 4], abs=1)
    assert stretch == pytest.approx([0, 255], abs=1.5)


def test_reducing_is_antialiased() -> None:
    board = (np.indices((2048, 2048)).sum(0) % 2 * 255).astype(np.uint8)
    image = fit_to(Image.fromarray(np.dstack([board] * 3)), SQUARE)
    assert np.ptp(np.asarray(image)[8:-8, 8:-8]) <= 2
    assert np.asarray(image)[100, 100, 0] in (127, 128)


def test_a_picture_of_the_buckets_shape_is_not_touched() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (512, 512, 3), dtype=np.uint8)
    assert np.array_equal(np.asarray(fit_to(Image.fromarray(noise), SQUARE)), noise)


def test_only_rgb_is_resized() -> None:
    with pytest.raises(ValueError, match="mode L"):
        fit_to(Image.new("L", (600, 600)), SQUARE)
    with pytest.raises(ValueError, match="no fit"):
        fit_to(gradient(600, 600), SQUARE, "contain")  # type: ignore[arg-type]
