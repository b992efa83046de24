"""Duplicates: who is kept never depends on who came first, and columns say what the pairwise rule says."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smalti.curation import clusters
from smalti.curation.copies import Copies, Rule
from smalti.curation.dedup import aside, candidates, choose, search, spread
from smalti.curation.near import may_repeat
from smalti.images.fingerprint import Fingerprint, fingerprint
from smalti.shards.samples import THUMBNAIL
from tests.curation import pairwise
from tests.curation.pairwise import STEEP, Copy, brighter, columns, is_copy
from tests.support.pictures import picture

BASE = fingerprint(picture(1))
OTHER = fingerprint(picture(2))
FLAT = replace(BASE, flat=True)
NO_LIMIT = 10**6


def copy(name: str, sha256: str = "", print_: Fingerprint | None = BASE, **fields: int) -> Copy:
    return Copy(id=name, sha256=sha256 or name, fingerprint=print_, **({"width": 600, "height": 600} | fields))


def duplicates(samples: list[Copy], distance: int = 0) -> dict[str, str]:
    """What the columns say, as the pairwise rule says it."""
    ids = [each.id for each in samples]
    twins = choose(search(columns(samples), distance, NO_LIMIT), np.ones(len(ids), np.bool_), {}).copy_of
    return {ids[row]: ids[twin] for row, twin in enumerate(twins) if twin >= 0}


def reached(samples: list[Copy], marked: list[str], distance: int = 0) -> dict[str, str]:
    ids = [each.id for each in samples]
    origins = spread(
        search(columns(samples), distance, NO_LIMIT),
        np.array([each in marked for each in ids], np.bool_),
        np.ones(len(ids), np.bool_),
    )
    return {ids[row]: ids[origin] for row, origin in enumerate(origins) if origin >= 0}


def test_the_most_pixels_win_then_the_priority_of_the_source_then_the_id() -> None:
    samples = [
        copy("a", width=600, height=600),
        copy("b", width=1200, height=1200),
        copy("c", width=1200, height=1200, priority=5),
        copy("d", width=1200, height=1200, priority=5),
    ]
    assert duplicates(samples) == {"a": "c", "b": "c", "d": "c"}


def same(a: Copy, b: Copy) -> bool:
    """Both ways to say it, and both ways round."""
    said = {is_copy(a, b), is_copy(b, a), bool(duplicates([a, b])), bool(duplicates([b, a]))}
    assert len(said) == 1
    return said.pop()


def test_copies_agree_in_hash_colours_and_ratio() -> None:
    assert same(copy("a"), copy("b", width=300, height=300))
    assert not same(copy("a"), copy("b", print_=OTHER))
    assert not same(copy("a"), copy("b", width=600, height=500))
    assert not same(copy("a"), copy("b", print_=None))


@pytest.mark.parametrize(("width", "height"), [(272, 544), (273, 544), (272, 543), (1360, 2720)])
def test_a_side_that_was_rounded_while_resizing_is_no_other_ratio(width: int, height: int) -> None:
    assert same(copy("a", width=2721, height=5441), copy("b", width=width, height=height))


def test_ratios_that_people_crop_to_are_told_apart() -> None:
    assert not same(copy("a", width=1850, height=1000), copy("b", width=1778, height=1000))


def test_flat_pictures_are_copies_only_if_their_bytes_are_equal() -> None:
    assert not same(copy("a", print_=FLAT), copy("b", print_=FLAT))
    assert same(copy("a", "same", print_=FLAT), copy("b", "same", print_=FLAT))
    assert duplicates([copy("a", print_=FLAT), copy("b", print_=FLAT), copy("c", "a", print_=FLAT)]) == {"c": "a"}


def lighter(levels: int) -> Fingerprint:
    """BASE with other colours: neighbours agree."""
    return replace(BASE, colour=brighter(levels))


def test_a_chain_of_look_alikes_is_not_merged_but_a_label_follows_it() -> None:
    samples = [
        copy("a", print_=lighter(0), width=900, height=900),
        copy("b", print_=lighter(1), width=800, height=800),
        copy("c", print_=lighter(2), width=700, height=700),
    ]
    assert duplicates(samples) == {"b": "a"}
    assert reached(samples, ["c"]) == {"a": "c", "b": "c"}


def test_a_label_reaches_copies_and_nobody_else() -> None:
    samples = [copy("a"), copy("b"), copy("c", print_=OTHER), copy("d", "a", print_=None)]
    assert reached(samples, ["b"]) == {"a": "b", "d": "b"}
    assert reached(samples, []) == {}


HASHES = (0x0123456789ABCDEF, 0x0123456789ABCDEF ^ (1 << 63), 0xFFFF0000FFFF0000)


def print_of(base: int, flips: list[int], level: int, spot: int, flat: bool) -> Fingerprint:
    phash = HASHES[base]
    for bit in flips:
        phash ^= 1 << bit
    colour = bytearray(brighter(level))
    colour[7] += spot
    return Fingerprint(phash, bytes(colour), flat, 0)


PRINTS = st.none() | st.builds(
    print_of,
    st.integers(0, 2),
    st.lists(st.sampled_from([0, 1, 5, 17, 30, 33, 47, 62]), max_size=3, unique=True),
    st.sampled_from([0, 1, 2, 3, 4, 6, 9]),
    st.sampled_from([0, 0, 0, 4, 20]),
    st.sampled_from([False] * 9 + [True]),
)
COPIES = st.lists(
    st.builds(
        lambda name, sha256, print_, scale, wide, priority: Copy(
            f"s/{name}", f"{sha256}", print_, scale * wide, scale * 100, priority
        ),
        st.integers(0, 99),
        st.integers(0, 20),
        PRINTS,
        st.integers(4, 6),
        st.sampled_from([100, 100, 101, 103, 150]),
        st.integers(0, 1),
    ),
    unique_by=lambda each: each.id,
    max_size=40,
)
CHANCE = st.randoms(use_true_random=False)


@settings(deadline=None, max_examples=200)
@given(COPIES, st.integers(0, 4), CHANCE)
def test_columns_and_pairs_agree_on_duplicates_clusters_and_labels(
    samples: list[Copy], distance: int, chance: random.Random
) -> None:
    ids = [each.id for each in samples]
    limit = chance.choice([2, 4, NO_LIMIT])
    eligible = {each for each in ids if chance.random() < 0.7}
    found = search(columns(samples), distance, limit)
    mask = np.array([each in eligible for each in ids], np.bool_)
    word = chance.choice(["merge", "keep", ""])
    decided = {int(name[:16], 16): word for name in found.names if "-" not in name}
    choice = choose(found, mask, {name: word for name in found.names if "-" not in name})
    twins = {ids[row]: ids[twin] for row, twin in enumerate(choice.copy_of) if twin >= 0}
    expected, quarantined = pairwise.decide(samples, eligible, distance, limit, decided)
    if len(decided) == len(found.names) and found.rule.copies.hashed[found.cluster >= 0].all():
        # else two clusters have one hash, or one has none, which the pairwise rule has no names for
        assert twins == expected
        assert {ids[row] for row in np.flatnonzero(choice.quarantined)} == quarantined
        assert {ids[row] for row in np.flatnonzero(aside(found, mask, dict.fromkeys(found.names, word)))} >= quarantined
    marked = [each for each in ids if chance.random() < 0.1]
    origins = spread(found, np.array([each in marked for each in ids], np.bool_), np.ones(len(ids), np.bool_))
    assert {ids[row]: ids[origin] for row, origin in enumerate(origins) if origin >= 0} == pairwise.spread(
        samples, marked, distance
    )


@settings(deadline=None, max_examples=60)
@given(COPIES, st.integers(0, 4))
def test_stars_and_bridges_find_what_all_pairs_find(samples: list[Copy], distance: int) -> None:
    rule = Rule.of(columns(samples), distance)
    rows, one_group = np.arange(len(samples)), np.zeros(len(samples), np.int64)
    small, clusters.SMALL = clusters.SMALL, 0
    try:
        by_stars = clusters.connected(rule, rows, one_group)
    finally:
        clusters.SMALL = small
    by_pairs = clusters.connected(rule, rows, one_group)
    assert len(set(zip(by_stars, by_pairs, strict=True))) == len(set(by_stars)) == len(set(by_pairs))
    assert len(set(by_pairs)) == len(pairwise.components(samples, distance))


@settings(deadline=None)
@given(COPIES, st.integers(0, 4), CHANCE)
def test_order_of_arrival_never_decides_which_copy_is_kept(
    samples: list[Copy], distance: int, chance: random.Random
) -> None:
    first, shuffled = duplicates(samples, distance), samples[:]
    chance.shuffle(shuffled)
    assert duplicates(shuffled, distance) == first


@settings(deadline=None)
@given(COPIES, st.integers(0, 4))
def test_candidates_leave_out_no_copy(samples: list[Copy], distance: int) -> None:
    table = columns(samples)
    kept = candidates(table.sha256[:, 1], np.where(table.hashed, table.phash, table.sha256[:, 1]), distance)
    alone = [each for each, candidate in zip(samples, kept, strict=True) if not candidate]
    assert not any(is_copy(a, b, distance) for a in alone for b in samples if a is not b)


def crowd(count: int, colour: Any, seed: int) -> Copies:
    """Samples of one hash."""
    import polars as pl

    chance = np.random.default_rng(seed)
    sha256 = chance.integers(0, 1 << 63, (count, 2)).astype(np.uint64)
    thumbnails = colour(chance).astype(np.uint8)
    return Copies(
        id=pl.Series("id", [f"s/{n:06d}" for n in range(count)]),
        priority=np.zeros(count, np.int64),
        sha256=sha256,
        phash=np.full(count, 5, np.uint64),
        hashed=np.ones(count, np.bool_),
        thumbnails=lambda: thumbnails,
        width=np.full(count, 600),
        height=np.full(count, 600),
    )


@pytest.mark.parametrize("kind", ["one picture", "nothing in common", "nearly one picture"])
def test_many_equal_hashes_are_no_quadratic_work(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All pairs of 100,000 would be 5e9 comparisons of 99 bytes: hours."""
    count = {"one picture": 100_000, "nearly one picture": 20_000, "nothing in common": 8_000}[kind]
    monkeypatch.setattr("smalti.curation.clusters.WORK", 2_000_000)  # a second
    shape = (count, THUMBNAIL)
    steep = np.frombuffer(STEEP, np.uint8)
    drawn = {
        "one picture": lambda chance: steep + chance.integers(0, 2, shape),
        "nearly one picture": lambda chance: steep + chance.integers(0, 4, shape),
        "nothing in common": lambda chance: np.repeat(chance.integers(0, 256, (count, 11)), 9, axis=1),
    }
    started = time.process_time()
    found = search(crowd(count, drawn[kind], 1), 0, 100)
    choice = choose(found, np.ones(count, np.bool_), {})
    seconds = time.process_time() - started
    if kind != "nothing in common":
        assert found.names == ("0000000000000005",)
        assert choice.quarantined.all()
        merged = choose(found, np.ones(count, np.bool_), {found.names[0]: "merge"})
        assert (merged.copy_of[1:] == 0).all()
    else:
        assert found.names == ()
        assert not choice.quarantined.any()
        assert (choice.copy_of == -1).all()
    assert seconds < 60


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1])
def test_every_key_that_repeats_is_taken_and_hardly_another(share: float) -> None:
    chance = np.random.default_rng(3)
    keys = chance.integers(0, 1 << 63, 300_000).astype(np.uint64)
    again = chance.random(len(keys)) < share
    keys[again] = keys[chance.integers(0, len(keys), int(again.sum()))]
    distinct, counts = np.unique(keys, return_counts=True)
    repeats = np.isin(keys, distinct[counts > 1])
    taken = may_repeat(keys)
    assert taken[repeats].all()
    assert taken[~repeats].sum() <= 0.002 * len(keys)
