from __future__ import annotations

import io
import itertools
import math
import statistics
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from smalti.images.decode import decode
from smalti.images.fingerprint import (
    ColourBounds,
    Fingerprint,
    colour_regions,
    colours_agree,
    colours_agree_pairs,
    fingerprint,
    hamming,
    same_picture,
)
from tests.images import drawn

Photos = dict[str, Image.Image]


def saved_as(image: Image.Image, kind: str, quality: int) -> Image.Image:
    out = io.BytesIO()
    image.save(out, kind, quality=quality)
    return decode(out.getvalue())


def half(image: Image.Image) -> Image.Image:
    return image.resize((image.width // 2, image.height // 2), Image.Resampling.LANCZOS)


COPIES: dict[str, tuple[float, Callable[[Image.Image], Image.Image]]] = {
    "jpeg 92": (0.95, lambda image: saved_as(image, "JPEG", 92)),
    "jpeg 75": (0.90, lambda image: saved_as(image, "JPEG", 75)),
    "webp 80": (0.90, lambda image: saved_as(image, "WEBP", 80)),
    "half size": (0.93, half),
    "half size, jpeg 75": (0.90, lambda image: saved_as(half(image), "JPEG", 75)),
}


@pytest.fixture(scope="module")
def prints(photos: Photos) -> dict[str, Fingerprint]:
    return {name: fingerprint(image) for name, image in photos.items()}


@pytest.mark.parametrize("kind", COPIES)
def test_copies_of_photographs_are_recognised(kind: str, photos: Photos, prints: dict[str, Fingerprint]) -> None:
    share, copy = COPIES[kind]
    copies = {name: fingerprint(copy(image)) for name, image in photos.items()}
    assert sum(same_picture(copies[name], prints[name]) for name in photos) >= share * len(photos)
    assert max(hamming(copies[name].phash, prints[name].phash) for name in photos) <= 5
    assert all(colours_agree(copies[name].colour, prints[name].colour) for name in photos)


def test_no_photograph_is_flat_and_no_two_are_near(prints: dict[str, Fingerprint]) -> None:
    assert [name for name, found in prints.items() if found.flat] == []
    for a, b in itertools.combinations(prints.values(), 2):
        assert hamming(a.phash, b.phash) >= 6
        assert not colours_agree(a.colour, b.colour)


def test_a_colour_variant_of_equal_luminance_is_another_picture(photos: Photos) -> None:
    original = photos["chelsea.png"]
    luma, red, blue = original.convert("YCbCr").split()
    variant = Image.merge("YCbCr", (luma, blue, red)).convert("RGB")
    a, b = fingerprint(original), fingerprint(variant)
    assert hamming(a.phash, b.phash) <= 2  # the hash alone would take them for copies
    assert not colours_agree(a.colour, b.colour)
    assert not same_picture(a, b)


def test_one_recoloured_thing_makes_another_picture(photos: Photos) -> None:
    original = photos["coffee.png"]
    thing = (200, 150, 280, 230)  # 80 px of 600: as large as a cell of chroma
    variants = []
    for colour in ((200, 60, 60), (20, 144, 63)):  # equal in BT.601 luma
        variant = original.copy()
        variant.paste(colour, thing)
        variants.append(fingerprint(variant))
    assert variants[0].phash == variants[1].phash
    assert not same_picture(variants[0], variants[1])


FLAT = {
    "white": drawn.field("white"),
    "black": drawn.field("black"),
    "green": drawn.field("#5a781e"),
    "grey of equal luminance": drawn.field("#656565"),
    "near-flat": drawn.field("#5a781e", noise=8),
    "gradient": drawn.gradient(40, 220),
    "faint gradient": drawn.gradient(120, 130),
    "page": drawn.page(0),
    "page in large type": drawn.page(1, font_size=30),
    "light on dark": drawn.page(2, ink="#d0d0d0", paper="#202020"),
    "screenshot": drawn.screenshot(0),
    "logo": drawn.shape_on_white(3),
}


@pytest.mark.parametrize("name", FLAT)
def test_a_picture_with_too_little_in_it_is_flat_and_stays_so_in_a_copy(name: str) -> None:
    image = FLAT[name]
    found, copy = fingerprint(image), fingerprint(saved_as(image, "JPEG", 75))
    assert found.flat
    assert copy.flat
    assert not same_picture(found, found)
    assert not same_picture(found, copy)


def test_a_product_on_white_is_flat(photos: Photos) -> None:
    canvas = Image.new("RGB", (1000, 1000), "white")
    canvas.paste(photos["coffee.png"].resize((500, 400)), (250, 300))
    assert fingerprint(canvas).flat


def test_flat_fields_share_a_hash_and_are_told_apart_by_colour() -> None:
    green, grey = fingerprint(FLAT["green"]), fingerprint(FLAT["grey of equal luminance"])
    assert green.phash == grey.phash
    assert not colours_agree(green.colour, grey.colour)


def test_shapes_on_white_never_merge() -> None:
    found = [fingerprint(drawn.shape_on_white(seed)) for seed in range(60)]
    assert all(shape.flat for shape in found)
    assert not any(same_picture(a, b) for a, b in itertools.combinations(found, 2))


def test_the_rule_needs_hash_and_colour_and_content() -> None:
    colour = bytes(range(99))
    one = Fingerprint(0xF0F0, colour, flat=False, unstable=0)
    assert same_picture(one, Fingerprint(0xF0F0, colour, flat=False, unstable=9))
    assert not same_picture(one, Fingerprint(0xF0F1, colour, flat=False, unstable=0))
    assert not same_picture(one, Fingerprint(0xF0F0, colour, flat=True, unstable=0))
    assert not same_picture(one, Fingerprint(0xF0F0, bytes(99), flat=False, unstable=0))


def test_a_distance_forgives_bits_and_nothing_else() -> None:
    colour = bytes(range(99))
    one = Fingerprint(0xF0F0, colour, flat=False, unstable=0)
    two_bits = Fingerprint(0xF0F3, colour, flat=False, unstable=0)
    assert [same_picture(one, two_bits, distance=d) for d in range(4)] == [False, False, True, True]
    assert not same_picture(one, Fingerprint(0xF0F3, colour, flat=True, unstable=0), distance=2)
    assert not same_picture(one, Fingerprint(0xF0F3, bytes(99), flat=False, unstable=0), distance=2)


def test_many_pairs_of_thumbnails_are_judged_like_each() -> None:
    rng = np.random.default_rng(7)
    count = 9000
    a = rng.integers(0, 256, (count, 99))
    a[::2] = 100 + (a[::2] - 128) // 8  # smoother ones
    shift = rng.integers(-12, 13, (count, 99)) * (rng.random((count, 1)) < 0.3) + rng.integers(-3, 4, (count, 99))
    shift[:, 49:] = rng.integers(-2, 3, (count, 50)) + (rng.random((count, 50)) < 0.003)
    shift = np.where(rng.random((count, 99)) < rng.random((count, 1)), shift, 0)
    ones, others = a.astype(np.uint8), np.clip(a + shift, 0, 255).astype(np.uint8)
    expected = [_agree(one.tolist(), other.tolist()) for one, other in zip(ones, others, strict=True)]
    assert 1000 < sum(expected) < 8000
    assert colours_agree_pairs(ones, others).tolist() == colours_agree_pairs(others, ones).tolist() == expected
    assert all(colours_agree(ones[i].tobytes(), others[i].tobytes()) == expected[i] for i in range(0, count, 90))
    assert colours_agree_pairs(ones[:0], others[:0]).shape == (0,)


def _agree(one: list[int], other: list[int]) -> bool:
    """The rule, a cell after another."""
    step = min(_step(one), _step(other))
    luma = [abs(x - y) for x, y in zip(one[:49], other[:49], strict=True)]
    chroma = [abs(x - y) for x, y in zip(one[49:], other[49:], strict=True)]
    spread = statistics.pstdev(x - y for x, y in zip(one[:49], other[:49], strict=True))
    return max(luma) <= 1.2 + 0.04 * step and spread <= 0.4 + 0.008 * step and max(chroma) <= 2


def _step(colour: list[int]) -> float:
    down = [(colour[place + 7] - colour[place]) ** 2 for place in range(42)]
    right = [(colour[place + 1] - colour[place]) ** 2 for place in range(49) if place % 7 < 6]
    return math.sqrt(sum(down) / 42 + sum(right) / 42)


def test_what_is_near_is_within_the_bounds_and_their_regions() -> None:
    """What agrees is within the bounds, and what is two or three times as far within as many of them: a metric's triangle."""
    rng = np.random.default_rng(3)
    first = np.clip(128 + np.cumsum(rng.normal(0, 6, (4000, 99)), 1), 20, 235).astype(np.uint8)
    chain = [first]
    for _ in range(3):
        chance = rng.integers(-1, 2, first.shape) * (rng.random(first.shape) < 0.2)
        chain.append((chain[-1].astype(int) + chance).astype(np.uint8))
    kept = np.all([colours_agree_pairs(one, other) for one, other in itertools.pairwise(chain)], 0)
    chain = [each[kept] for each in chain]
    assert len(chain[0]) > 100
    bounds = ColourBounds.of(np.concatenate(chain))
    for scale in (1, 2, 3):
        assert bounds.within(chain[0], chain[scale], scale).all()
        apart = np.abs(colour_regions(chain[0]) - colour_regions(chain[scale])).sum(1)
        assert (apart <= scale * bounds.regions).all()
    assert not bounds.within(chain[0], chain[0][::-1], 1).all()


def test_unstable_bits_are_counted(prints: dict[str, Fingerprint]) -> None:
    assert fingerprint(FLAT["white"]).unstable == 40  # all of them
    assert max(found.unstable for found in prints.values()) < 16
    assert len({found.unstable for found in prints.values()}) >= 3


def test_the_fields_have_their_sizes(prints: dict[str, Fingerprint]) -> None:
    for found in prints.values():
        assert 0 <= found.phash < 1 << 64
        assert len(found.colour) == 99


def test_the_hash_is_the_sign_of_scipys_lowest_frequencies_against_their_median(photos: Photos) -> None:
    from scipy.fft import dctn

    image = photos["chelsea.png"]
    reduced = np.asarray(image.resize((256, 256), Image.Resampling.BILINEAR), np.float64)
    cells = reduced.reshape(32, 8, 32, 8, 3).mean((1, 3)) @ np.array([0.299, 0.587, 0.114])
    amplitudes = dctn(cells, norm="ortho")
    lowest = sorted(itertools.product(range(32), repeat=2), key=lambda uv: uv[0] ** 2 + uv[1] ** 2)[1:41]
    values = np.array([amplitudes[uv] for uv in lowest])
    places = {63 - n * 64 // 40 for n in range(40)}
    expected = sum(1 << 63 - n * 64 // 40 for n in range(40) if values[n] > np.median(values))
    assert fingerprint(image).phash == expected
    assert len(places) == 40
    assert expected.bit_count() == 20


def test_the_thumbnail_holds_luma_then_cb_then_cr_row_by_row() -> None:
    image = Image.new("RGB", (700, 700), (10, 20, 30))
    image.paste((200, 100, 50), (0, 500, 200, 700))  # more than the last row's first cell
    colour = np.frombuffer(fingerprint(image).colour, np.uint8)
    luma, blue, red = colour[:49].reshape(7, 7), colour[49:74].reshape(5, 5), colour[74:].reshape(5, 5)
    for place, expected in (((-1, 0), (124, 86, 182)), ((0, 0), (18, 135, 122)), ((-1, -1), (18, 135, 122))):
        found = [int(plane[place]) for plane in (luma, blue, red)]
        assert np.abs(np.subtract(found, expected)).max() <= 1


def test_a_cell_takes_a_pixel_that_it_shares_by_its_share() -> None:
    """256 pixels are 7 cells of 36.57: as if each pixel were 7 x 7 smaller ones."""
    pixels = np.random.default_rng(5).integers(0, 256, (256, 256)).astype(np.uint8)
    colour = np.frombuffer(fingerprint(Image.fromarray(pixels).convert("RGB")).colour, np.uint8)
    smaller = pixels.repeat(7, 0).repeat(7, 1).reshape(7, 256, 7, 256)
    assert (colour[:49].reshape(7, 7) == np.rint(smaller.mean((1, 3)))).all()
    assert (colour[49:] == 128).all()


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_hamming_counts_the_differing_bits(a: int, b: int) -> None:
    assert hamming(a, b) == sum((a >> i & 1) != (b >> i & 1) for i in range(64))


def test_what_is_no_fingerprint_is_refused() -> None:
    with pytest.raises(ValueError, match="mode L"):
        fingerprint(Image.new("L", (600, 600)))
    with pytest.raises(ValueError, match="99 bytes"):
        colours_agree(bytes(99), bytes(64))
    with pytest.raises(ValueError, match="thumbnails come as"):
        colours_agree_pairs(np.zeros((3, 99), np.uint8), np.zeros((2, 99), np.uint8))
