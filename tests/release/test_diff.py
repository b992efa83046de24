"""Two releases compared: every sample that only one of them serves is named, with the reason of the other."""

from __future__ import annotations

from typing import Any

import pytest

from smalti.config import Drops
from smalti.lake import Lake
from smalti.objects import create_bytes
from smalti.release.diff import GONE, Diff, diff
from smalti.release.manifest import read_manifest
from smalti.release.optouts import OptoutSnapshot
from smalti.release.summary import samples_of, summary
from smalti.settings import ReleaseRun
from tests.release.conftest import add, build
from tests.support.pictures import Row, picture, release_run, stored


def settled(lake: Lake, run: ReleaseRun) -> str:
    return build(lake, run).manifest


def with_drops(run: ReleaseRun, **drops: Any) -> ReleaseRun:
    return run.model_copy(update={"dataset": run.dataset.model_copy(update={"drops": Drops(**drops)})})


def named(found: Diff) -> tuple[dict[str, str], dict[str, str]]:
    """id -> why, of what was gained and lost."""
    gained, lost = ({each.id: each.why for each in some} for some in (found.gained_samples, found.lost_samples))
    return gained, lost


def test_a_release_is_no_different_from_itself(filled: Lake, run: ReleaseRun) -> None:
    uri = settled(filled, run)
    found = diff(uri, uri)
    assert (found.gained, found.lost, found.replaced, found.settings) == ({}, {}, {}, ())
    assert found.before == found.after


def test_other_drops_bring_samples_back_and_take_others_away(filled: Lake, run: ReleaseRun) -> None:
    first = settled(filled, run)
    second = settled(filled, with_drops(run, labels=(), licences=("CC0-1.0",)))
    found = diff(first, second)
    assert named(found) == ({"demo/text.jpg": "text"}, {"other/own.jpg": "licence"})
    assert (found.gained, found.lost, found.replaced) == ({"text": 1}, {"licence": 1}, {})
    assert found.new_parts == found.gone_parts == ()
    assert set(found.settings) == {
        "drops.labels: ['text', 'nsfw'] -> []",
        "drops.licences: None -> ['CC0-1.0']",
    }
    back = diff(second, first)
    assert named(back) == ({"other/own.jpg": "licence"}, {"demo/text.jpg": "text"})


def test_a_new_part_brings_new_samples_and_a_better_copy_takes_a_place(filled: Lake, run: ReleaseRun) -> None:
    first = settled(filled, run)
    rows = [
        Row("new.jpg", stored(picture(60))),
        Row("2.jpg", stored(picture(61))),  # the key with another picture
        Row("larger.jpg", stored(picture(3, 900, 900))),  # of 3.jpg
    ]
    add(filled, rows, batch="b2")
    found = diff(first, settled(filled, run))
    assert named(found) == (
        {"demo/larger.jpg": GONE, "demo/new.jpg": GONE},
        {"demo/3.jpg": "duplicate"},
    )
    assert found.replaced == {"picture": 1}
    assert len(found.new_parts) == 1
    assert found.gone_parts == ()


def test_what_is_opted_out_by_now_is_counted_and_not_named(filled: Lake, run: ReleaseRun) -> None:
    first = settled(filled, run)
    second = settled(filled, with_drops(run, labels=(), licences=("CC0-1.0",)))
    before = diff(first, second)
    assert named(before) == ({"demo/text.jpg": "text"}, {"other/own.jpg": "licence"})
    places = {name: (shard, index) for name, shard, index, _ in samples_of(first, read_manifest(first))}
    shard, index = places["demo/text.jpg"]
    create_bytes(filled.optout_snapshot(1), OptoutSnapshot(position=1, shards={shard: (index,)}).encode())
    after = diff(first, second)
    assert named(after) == ({}, {"other/own.jpg": "licence"})
    assert (after.gained, after.lost) == (before.gained, before.lost)
    assert named(diff(second, first)) == ({"other/own.jpg": "licence"}, {})


def test_a_source_that_is_taken_out_takes_its_samples_along(filled: Lake, run: ReleaseRun) -> None:
    found = diff(settled(filled, run), settled(filled, release_run("demo:main", groups={"main": 3.0})))
    assert found.lost == {GONE: 1}
    assert named(found)[1] == {"other/own.jpg": GONE}
    assert len(found.gone_parts) == 1


@pytest.mark.parametrize("labels", [(), ("nsfw",), ("text", "nsfw")])
def test_the_difference_is_that_of_the_two_summaries(filled: Lake, run: ReleaseRun, labels: tuple[str, ...]) -> None:
    first = settled(filled, run)
    add(filled, [Row("text2.jpg", stored(picture(70)), label="text"), Row("1.jpg", stored(picture(71)))], batch="b2")
    second = settled(filled, with_drops(run, labels=labels, min_tier=512))
    before, after = (set(summary(uri).kept_ids) for uri in (first, second))
    gained, lost = named(diff(first, second))
    assert set(gained) == after - before
    assert set(lost) == before - after


def test_long_lists_are_cut_and_counts_are_not(filled: Lake, run: ReleaseRun) -> None:
    first = settled(filled, run)
    add(filled, [Row(f"n{n}.jpg", stored(picture(80 + n))) for n in range(5)], batch="b2")
    found = diff(first, settled(filled, run), most=2)
    assert found.gained == {GONE: 5}
    assert [each.id for each in found.gained_samples] == ["demo/n0.jpg", "demo/n1.jpg"]
