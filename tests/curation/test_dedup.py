"""Duplicates: who is kept never depends on who came first."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smalti.curation.dedup import Copy, find_duplicates, is_copy, spread
from smalti.images.fingerprint import Fingerprint, fingerprint
from tests.support.pictures import picture

BASE = fingerprint(picture(1))
OTHER = fingerprint(picture(2))
FLAT = replace(BASE, flat=True)


def copy(name: str, sha256: str = "", print_: Fingerprint | None = BASE, **fields: int) -> Copy:
    return Copy(id=name, sha256=sha256 or name, fingerprint=print_, **({"width": 600, "height": 600} | fields))


def test_the_most_pixels_win_then_the_priority_of_the_source_then_the_id() -> None:
    samples = [
        copy("a", width=600, height=600),
        copy("b", width=1200, height=1200),
        copy("c", width=1200, height=1200, priority=5),
        copy("d", width=1200, height=1200, priority=5),
    ]
    assert find_duplicates(samples) == {"a": "c", "b": "c", "d": "c"}


def test_copies_agree_in_hash_colours_and_ratio() -> None:
    assert is_copy(copy("a"), copy("b", width=300, height=300))
    assert not is_copy(copy("a"), copy("b", print_=OTHER))
    assert not is_copy(copy("a"), copy("b", width=600, height=500))
    assert not is_copy(copy("a"), copy("b", print_=None))


@pytest.mark.parametrize(("width", "height"), [(272, 544), (273, 544), (272, 543), (1360, 2720)])
def test_a_side_that_was_rounded_while_resizing_is_no_other_ratio(width: int, height: int) -> None:
    assert is_copy(copy("a", width=2721, height=5441), copy("b", width=width, height=height))


def test_ratios_that_people_crop_to_are_told_apart() -> None:
    assert not is_copy(copy("a", width=1850, height=1000), copy("b", width=1778, height=1000))


def test_flat_pictures_are_copies_only_if_their_bytes_are_equal() -> None:
    assert not is_copy(copy("a", print_=FLAT), copy("b", print_=FLAT))
    assert is_copy(copy("a", "same", print_=FLAT), copy("b", "same", print_=FLAT))
    assert find_duplicates([copy("a", print_=FLAT), copy("b", print_=FLAT), copy("c", "a", print_=FLAT)]) == {"c": "a"}


def test_a_chain_of_look_alikes_is_not_one_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """b looks like a and like c, a does not look like c: the largest decides, and both ends stay."""
    monkeypatch.setattr("smalti.curation.dedup.is_copy", lambda a, b: {a.id, b.id} in ({"a", "b"}, {"b", "c"}))
    samples = [copy("a", width=900, height=900), copy("b", width=800, height=800), copy("c", width=700, height=700)]
    assert find_duplicates(samples) == {"b": "a"}
    assert spread(samples, ["c"]) == {"a": "c", "b": "c", "c": "c"}  # a label does follow the chain


def test_a_label_reaches_copies_and_nobody_else() -> None:
    samples = [copy("a"), copy("b"), copy("c", print_=OTHER), copy("d", "a", print_=None)]
    assert spread(samples, ["b"]) == {"a": "b", "b": "b", "d": "b"}
    assert spread(samples, ["elsewhere"]) == {"elsewhere": "elsewhere"}


PRINTS = st.sampled_from([BASE, OTHER, FLAT, None])
COPIES = st.lists(
    st.builds(
        lambda name, sha256, print_, scale, wide, priority: Copy(
            f"s/{name}",
            f"{sha256}{print_ and print_.phash}",
            print_,
            scale * (150 if wide else 100),
            scale * 100,
            priority,
        ),
        st.integers(0, 99),
        st.integers(0, 9),
        PRINTS,
        st.integers(4, 6),
        st.booleans(),
        st.integers(0, 1),
    ),
    unique_by=lambda each: each.id,
    max_size=25,
)


@settings(deadline=None)
@given(COPIES, st.randoms(use_true_random=False))
def test_order_of_arrival_never_decides_which_copy_is_kept(samples: list[Copy], chance: random.Random) -> None:
    first, shuffled = find_duplicates(samples), samples[:]
    chance.shuffle(shuffled)
    assert find_duplicates(shuffled) == first


@settings(deadline=None)
@given(COPIES)
def test_what_is_kept_outranks_its_copies_and_no_two_kept_are_copies(samples: list[Copy]) -> None:
    by_id = {sample.id: sample for sample in samples}
    duplicates = find_duplicates(samples)
    for sample, kept in duplicates.items():
        assert kept not in duplicates
        assert is_copy(by_id[kept], by_id[sample])
        assert by_id[kept].rank < by_id[sample].rank
    left = [sample for sample in samples if sample.id not in duplicates]
    assert not any(is_copy(a, b) for a in left for b in left if a.id < b.id)


@settings(deadline=None)
@given(COPIES, st.randoms(use_true_random=False))
def test_a_label_spreads_to_the_same_samples_in_any_order(samples: list[Copy], chance: random.Random) -> None:
    marked = [sample.id for sample in samples if chance.random() < 0.2]
    first, shuffled = spread(samples, marked), samples[:]
    chance.shuffle(shuffled)
    assert spread(shuffled, marked[::-1]) == first
    assert set(marked) <= set(first)
    for a in samples:
        if a.id in first:
            assert all(b.id in first for b in samples if is_copy(a, b))
