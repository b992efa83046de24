"""A short form of `python -m benchmarks.dedup_quality`: 27 photographs of installed packages, some kinds, smaller pictures."""

from __future__ import annotations

import pytest
from PIL import Image

from benchmarks.dedup_quality import drawn, measure, others
from benchmarks.dedup_quality.copies import COPIES
from benchmarks.dedup_quality.measure import Share
from benchmarks.dedup_quality.photographs import DEBIAN, all_photos
from benchmarks.dedup_quality.pool import ORIGINAL, Item, item
from smalti.images.fingerprint import RECOMMENDED_DISTANCE

LONGEST = 640
KINDS = ("JPEG 75", "AVIF 55", "0.5x area", "turned, 0.5x, JPEG 85")
FRAMES = ("crop of a corner, 5%", "zoom, 5%")


@pytest.fixture(scope="module")
def items(photos: dict[str, Image.Image]) -> list[Item]:
    found = []
    for number, (name, photo) in enumerate(photos.items()):
        image = photo.copy()
        image.thumbnail((LONGEST, LONGEST))
        found.append(item(name, name, ORIGINAL, image))
        found += [item(name, name, kind, COPIES[kind](image, number)) for kind in KINDS]
        frames = [pair for pair in others.frames(image) if pair[0] in FRAMES]
        colours = others.recoloured(image, number) if number % 3 == 0 else ()
        for n, (kind, other) in enumerate((*frames, *colours)):
            found.append(item(f"{name} {n}", name, kind, other))
    quick = [drawing for drawing in drawn.all_drawn() if "page" not in drawing[0] and drawing[0] != "screenshot"]
    for n, (kind, draw) in enumerate(quick[::50]):
        found.append(item(f"drawn {n}", f"drawn {n}", kind, draw()))
    return found


def test_copies_are_found_and_nothing_else_is(items: list[Item]) -> None:
    hashes = [each.print.phash for each in items]
    exact, near = measure.judge(items, hashes, measure.our_guards, (0, RECOMMENDED_DISTANCE))
    assert {kind: share.hits for kind, share in exact.recall.items() if share.value < 0.9} == {}
    assert {kind: share.hits for kind, share in near.recall.items() if share.value < 0.96} == {}
    assert exact.false == []
    assert near.false == []


def test_the_hash_alone_would_not_do(items: list[Item]) -> None:
    alone = measure.judge(items, [each.print.phash for each in items], measure.no_guards, (0,))[0]
    assert alone.precision.value < 0.99
    kinds = set(measure.false_kinds(alone))
    assert any("blue and red" in kind for kind in kinds)


def test_most_photographs_come_from_packages_that_must_be_fetched() -> None:
    photos = all_photos()
    assert len(photos) == len({photo.name for photo in photos}) >= 150
    assert {photo.package for photo in photos if photo.package not in DEBIAN} == {
        "interior_photos", "matplotlib", "skimage", "sklearn",
    }  # fmt: skip


def test_the_interval_is_wilsons() -> None:
    low, high = Share(81, 263).interval()  # Newcombe 1998, table I: 0.2553 to 0.3662
    assert (round(low, 4), round(high, 4)) == (0.2553, 0.3662)
    assert Share(10, 10).interval() == pytest.approx((0.7225, 1.0), abs=1e-4)


def test_pairs_are_counted_without_looking_at_each(items: list[Item]) -> None:
    some = items[:300:7] + items[-20:]
    pairs = [
        (a, b)
        for n, a in enumerate(some)
        for b in some[n + 1 :]
        if a.picture != b.picture and not measure.undecided(a, b)
    ]
    counted: dict[str, int] = {}
    for pair in pairs:
        counted[measure.pair_kind(*pair)] = counted.get(measure.pair_kind(*pair), 0) + 1
    assert {kind: n for kind, n in measure.pair_counts(some).items() if n} == counted
