"""Which of its captions a sample is served with."""

from __future__ import annotations

import json
import logging
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streaming import Stream
from torch.utils.data import DataLoader

from smalti.errors import InputError
from smalti.lake import Lake
from smalti.loader import ReleaseDataset, SkipStreamMixin
from smalti.loader.captions import CaptionChoice, choice_of
from tests.loader.releases import SHARDS, Release, build, opt_out
from tests.loader.serving import BATCH, ours

WEIGHTS = {"caption": 0.5, "caption_short": 0.25, "caption_source": 0.25}


def words(sample_id: str) -> Mapping[str, str]:
    """Every third sample has no caption of its source."""
    alt = "" if int(sample_id.rpartition("/")[2]) % 3 == 0 else f"alt of {sample_id}"
    return {"caption_short": f"short {sample_id}", "caption_source": alt}


@pytest.fixture
def release(lake: Lake) -> Release:
    return build(lake, captions=WEIGHTS, words=words)


def captions(dataset: ReleaseDataset, workers: int = 0) -> list[dict[str, tuple[str, str]]]:
    """id -> caption and its column, of each batch of an epoch."""
    loader: Any = DataLoader(dataset, batch_size=BATCH, num_workers=workers, collate_fn=list)
    return [{each["id"]: (each["caption"], each["caption_column"]) for each in batch} for batch in loader]


def all_of(batches: list[dict[str, tuple[str, str]]]) -> dict[str, tuple[str, str]]:
    return {name: said for batch in batches for name, said in batch.items()}


WEIGHT = st.floats(0.01, 100, allow_nan=False)


@settings(max_examples=60)
@given(st.lists(WEIGHT, min_size=1, max_size=5), st.integers(0, 2**32), st.integers(0, 1000))
def test_each_column_is_drawn_as_often_as_its_weight_says(weights: list[float], seed: int, epoch: int) -> None:
    """Binomial: beyond 6 standard deviations (and a half for rounding) one column in a billion would be."""
    choice = CaptionChoice({f"caption_{n}": weight for n, weight in enumerate(weights)})
    draws = 4000
    found = Counter(choice.column(seed, epoch, f"source/{n}") for n in range(draws))
    for n, weight in enumerate(weights):
        share = weight / math.fsum(weights)
        spread = math.sqrt(draws * share * (1 - share))
        assert abs(found[f"caption_{n}"] - draws * share) <= 6 * spread + 5


@given(
    st.dictionaries(st.sampled_from(["caption", "caption_a", "caption_b"]), WEIGHT, min_size=1), st.text(), st.randoms()
)
def test_neither_the_order_nor_the_scale_of_weights_matters(weights: dict[str, float], name: str, random: Any) -> None:
    items = list(weights.items())
    random.shuffle(items)
    one, other = CaptionChoice(weights), CaptionChoice({key: 1024 * weight for key, weight in items})
    assert one.shares == other.shares
    assert one.column(1, 2, name) == other.column(1, 2, name)
    assert choice_of(weights, {}, "here").shares == choice_of(None, weights, "here").shares == one.shares


def test_what_is_drawn_stays_the_same_in_later_versions() -> None:
    """Running checkpoints depend on it: change this only with a reason that the release notes can state."""
    choice = CaptionChoice(WEIGHTS)
    drawn = [choice.column(9176, epoch, f"demo/{n}") for epoch in range(2) for n in range(6)]
    main, short, alt = sorted(WEIGHTS)
    assert drawn == [alt, main, main, short, alt, main, main, main, short, main, short, main]


def test_a_sample_has_one_caption_by_the_releases_weights_and_all_that_are_stored(release: Release) -> None:
    dataset = ours(release)
    seen: Counter[str] = Counter()
    for sample in dataset:
        name = sample["id"]
        stored = {"caption": f"caption of {name}", **words(name)}
        assert sample["captions"] == stored
        assert {column: sample[column] for column in words(name)} == words(name)
        assert sample["caption"] == stored[sample["caption_column"]]
        drawn = CaptionChoice(WEIGHTS).column(dataset.shuffle_seed, 0, name)
        assert sample["caption_column"] == (drawn if stored[drawn] else "caption")
        assert sample["caption"]
        seen[drawn] += 1
    assert set(seen) == set(WEIGHTS)


def test_another_epoch_sees_others_and_another_seed_too(release: Release) -> None:
    dataset = ours(release)
    first, second = all_of(captions(dataset)), all_of(captions(dataset))
    assert first.keys() == second.keys()
    assert first != second
    assert all_of(captions(ours(release, shuffle_seed=5))) != first
    assert all_of(captions(ours(release, shuffle=False))) == first, "of the order it does not depend"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resume_goes_on_with_the_same_captions(release: Release, workers: int) -> None:
    """In the second epoch, for what the first draws is drawn with epoch 0 by mistake, too."""
    undisturbed = ours(release, batching_method="device_per_stream")
    captions(undisturbed, workers)
    wanted = captions(undisturbed, workers)
    dataset = ours(release, batching_method="device_per_stream")
    captions(dataset, workers)
    loader: Any = DataLoader(dataset, batch_size=BATCH, num_workers=workers, collate_fn=list)
    epoch = iter(loader)
    for _ in range(4):
        next(epoch)
    state = json.loads(json.dumps(dataset.state_dict(4 * BATCH, from_beginning=True)))
    del epoch, loader
    assert state["epoch"] == 1
    resumed = ours(release, batching_method="device_per_stream")
    resumed.load_state_dict(state)
    assert captions(resumed, workers) == wanted[4:]


def test_a_substitute_for_what_was_opted_out_has_a_caption_of_its_own(lake: Lake) -> None:
    release = build(lake, captions=WEIGHTS, words=words)
    dataset = ours(release, optouts=0)
    expected = all_of(captions(dataset))
    state = ours(release, optouts=0).state_dict(0, from_beginning=True) | {"epoch": 0}
    gone = release.all_kept[::5]
    opt_out(lake, 1, gone)
    resumed = ours(release)
    resumed.load_state_dict(state)
    found = all_of(captions(resumed))
    assert not set(gone) & found.keys()
    assert found == {name: said for name, said in expected.items() if name not in gone}


def test_one_column_or_other_weights_can_be_asked_for(release: Release) -> None:
    for asked in ("caption_short", {"caption_short": 3}):
        found = all_of(captions(ours(release, captions=asked)))
        assert found == {name: (f"short {name}", "caption_short") for name in release.all_kept}
    only_alt = all_of(captions(ours(release, captions="caption_source")))
    assert {column for _, column in only_alt.values()} == {"caption", "caption_source"}
    for name, (said, column) in only_alt.items():
        assert said == (words(name)["caption_source"] or f"caption of {name}")
        assert (column == "caption") == (not words(name)["caption_source"])
    plain = next(iter(ours(release, captions="caption")))
    assert plain["caption"] == f"caption of {plain['id']}"
    assert "captions" not in plain
    assert {column for _, column in all_of(captions(ours(release, captions=None))).values()} == set(WEIGHTS)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("caption_nope", "has no column caption_nope"),
        ({"caption": 1, "caption_nope": 1}, "Use some of: caption, caption_short, caption_source"),
        ({}, "captions names no column"),
        ({"caption": 0}, "0 is no weight of caption"),
        ({"caption": float("nan")}, "nan is no weight"),
        ({"caption": True}, "True is no weight"),
        ({"caption": "1"}, "'1' is no weight"),
        ({1: 1}, "1 is no caption column"),
        (3, "captions=3 is no choice"),
        (["caption"], "is no choice"),
    ],
)
def test_a_wrong_choice_is_one_line_before_the_first_batch(release: Release, asked: Any, says: str) -> None:
    with pytest.raises(InputError) as caught:
        ours(release, captions=asked)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_column_that_one_part_lacks_is_refused_unless_the_part_is_not_served(lake: Lake) -> None:
    def some(sample_id: str) -> Mapping[str, str]:
        return {"caption_short": "short"} if sample_id.startswith("beta/") else {}

    release = build(lake, words=some)
    with pytest.raises(InputError, match="part alpha/00001-aaaaaaaaaaaa has no column caption_short"):
        ours(release, captions="caption_short")
    only_beta = build(lake, version="v2", shards={"beta": SHARDS["beta"]}, words=some)
    assert {said for said, _ in all_of(captions(ours(only_beta, captions="caption_short"))).values()} == {"short"}


def test_a_checkpoint_of_other_captions_is_refused(release: Release) -> None:
    state = ours(release).state_dict(0, True)
    ours(release, captions={"caption": 2, "caption_source": 1, "caption_short": 1}).load_state_dict(state)  # the same
    with pytest.raises(InputError) as caught:
        ours(release, captions="caption").load_state_dict(state)
    line = str(caught.value)
    assert "made with captions caption 0.5, caption_short 0.25, caption_source 0.25, not caption 1" in line
    assert "start a dataset without the checkpoint's state" in line


def test_a_checkpoint_of_before_there_were_other_captions_goes_on_with_caption(lake: Lake) -> None:
    release = build(lake)
    state = ours(release).state_dict(0, True)
    assert state.pop("captions") == {"caption": 1.0}
    ours(release).load_state_dict(state)
    sample = next(iter(ours(release)))
    assert set(sample) == {"image", "caption", "id", "source", "width", "height"}


class TrainersStream(SkipStreamMixin, Stream):
    pass


def test_a_stream_class_of_the_trainers_own_changes_nothing(release: Release) -> None:
    assert captions(ours(release, stream_class=TrainersStream)) == captions(ours(release))


def test_the_choice_is_logged(release: Release, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="smalti"):
        ours(release)
    assert "captions are drawn as caption 0.5, caption_short 0.25, caption_source 0.25" in caplog.text


def test_a_column_that_only_some_parts_have_is_left_out_so_that_samples_go_into_one_batch(lake: Lake) -> None:
    release = build(lake, words=lambda name: {"caption_source": "alt"} if name.startswith("alpha") else {})
    found = [sample for sample in ours(release) if sample]
    assert {tuple(sorted(sample)) for sample in found} == {tuple(sorted(found[0]))}
    assert "caption_source" not in found[0]


def test_a_column_that_every_part_has_is_there_unasked(lake: Lake) -> None:
    assert all(
        sample["caption_source"] == "alt" for sample in ours(build(lake, words=lambda _: {"caption_source": "alt"}))
    )


@pytest.mark.parametrize("missing", ["epoch", "sample_in_epoch"])
def test_a_state_that_is_not_whole_is_refused(release: Release, missing: str) -> None:
    dataset = ours(release)
    state = dataset.state_dict(0, from_beginning=True)
    del state[missing]
    with pytest.raises(InputError, match=f"the state's {missing} is None"):
        dataset.load_state_dict(state)
