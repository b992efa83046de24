"""Ablations: the parts and settings of a version, some reasons not applied, duplicates decided among what is then left."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from smalti.errors import InputError
from smalti.lake import Lake
from smalti.loader.skips import served_shards
from smalti.objects import exists, list_objects, read_bytes
from smalti.reasons import SkipReason
from smalti.release.latest import give_up, live_versions, read_latest
from smalti.release.manifest import Manifest, read_manifest
from smalti.release.publish import publish, rollback
from smalti.release.summary import summary
from smalti.release.verify import Verified
from smalti.settings import ReleaseRun
from tests.release.conftest import add, build
from tests.support.pictures import Row, picture, stored

TEXT = (SkipReason.TEXT,)


@pytest.fixture
def lake(filled: Lake) -> Lake:
    """With a text page that is the best copy of a visual sample: who is a duplicate depends on what is lifted."""
    add(filled, [Row("poster.jpg", stored(picture(2, 900, 900)), label="text")], "other", batch="b2")
    return filled


def served(uri: str, lifted: tuple[SkipReason, ...] = ()) -> set[tuple[str, int]]:
    """Shard and index of every sample that is served."""
    manifest = read_manifest(uri)
    shards = [s for stream in manifest.select(lifted=lifted) for s in served_shards(uri, stream, lifted)]
    return {(shard.basename, index) for shard in shards for index in shard.kept_indices()}


def with_sets(run: ReleaseRun, *sets: tuple[SkipReason, ...], **fields: Any) -> ReleaseRun:
    dataset = run.dataset.model_copy(update={"reason_sets": sets, **fields})
    return run.model_copy(update={"dataset": dataset})


def published(lake: Lake, run: ReleaseRun, monkeypatch: pytest.MonkeyPatch) -> Manifest:
    """A version that LATEST names, without the reading back, which is verify's."""

    def verified(uri: str) -> Verified:
        digest = hashlib.sha256(read_bytes(uri)).hexdigest()
        return Verified(digest="", manifest_sha256=digest, samples=0, kept=0)

    monkeypatch.setattr("smalti.release.publish.read_verified", verified)
    uri = build(lake, run).manifest
    publish(lake, run.model_copy(update={"manifest": uri}))
    return read_manifest(uri)


@pytest.mark.parametrize(
    "without", [TEXT, (SkipReason.DUPLICATE,), (SkipReason.DUPLICATE, SkipReason.TEXT), (SkipReason.CAPTION_FAILED,)]
)
def test_an_ablation_serves_what_its_base_serves_with_the_set_lifted(
    lake: Lake, run: ReleaseRun, without: tuple[SkipReason, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    base = published(lake, with_sets(run, without), monkeypatch)
    parts = {each.uri: each for each in list_objects(lake.parts_root())}
    made = build(lake, run.model_copy(update={"without": without}))
    assert made.version == "-".join(("v1", "without", *without))
    assert served(made.manifest) == served(lake.manifest("set", "v1"), without) != served(lake.manifest("set", "v1"))
    assert {each.uri: each for each in list_objects(lake.parts_root())} == parts  # no new shards
    ablation = read_manifest(made.manifest)
    assert (ablation.parent, ablation.without) == ("v1", without)
    assert ablation.accounting.kept == sum(stream.kept_if(without) for stream in base.streams)


def test_duplicates_are_decided_anew_among_what_is_left(
    lake: Lake, run: ReleaseRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(lake, run, monkeypatch)
    assert "demo/2.jpg" in summary(lake.manifest("set", "v1")).kept_ids  # its better copy is a page of text
    told = summary(build(lake, run.model_copy(update={"without": TEXT})).manifest)
    assert {"demo/text.jpg", "other/poster.jpg"} <= set(told.kept_ids)
    copies = {each.id: each.duplicate_of for each in told.skipped[SkipReason.DUPLICATE]}
    assert copies["demo/2.jpg"] == "other/poster.jpg"


def test_an_ablation_is_of_the_parts_and_settings_of_its_base(
    lake: Lake, run: ReleaseRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(lake, run, monkeypatch)
    add(lake, [Row("late.jpg", stored(picture(50)))], batch="b2")
    changed = with_sets(run, description="changed since", expected={})
    ablation = read_manifest(build(lake, changed.model_copy(update={"without": TEXT})).manifest)
    assert ablation.settings["description"] == run.dataset.description
    assert ablation.accounting.samples == read_manifest(lake.manifest("set", "v1")).accounting.samples
    again = build(lake, changed.model_copy(update={"without": TEXT}))
    assert (again.version, again.digest) == (ablation.version, ablation.digest)


def test_latest_never_points_to_an_ablation(lake: Lake, run: ReleaseRun, monkeypatch: pytest.MonkeyPatch) -> None:
    published(lake, with_sets(run, publish="tree"), monkeypatch)
    made = build(lake, run.model_copy(update={"without": TEXT}))
    report = publish(lake, run.model_copy(update={"manifest": made.manifest}))
    latest = read_latest(lake, "set")
    assert latest is not None
    assert latest.version == "v1"
    assert report.warnings == ("v1-without-text is an ablation (without text): LATEST stays at v1",)
    assert report.tree is not None
    assert exists(f"{report.tree}/tree.json")
    later = build(lake, with_sets(run, description="next", min_tier=512))
    assert read_manifest(later.manifest).parent == "v1"


def test_an_ablation_is_kept_as_long_as_its_base(lake: Lake, run: ReleaseRun, monkeypatch: pytest.MonkeyPatch) -> None:
    published(lake, run, monkeypatch)
    made = build(lake, run.model_copy(update={"without": TEXT}))
    ablation = run.model_copy(update={"manifest": made.manifest})
    for _ in range(2):
        publish(lake, ablation)
    assert live_versions(lake, "set") == ("v1", "v1-without-text")
    with pytest.raises(InputError, match="v1-without-text of set was never published"):
        rollback(lake, "set", "v1-without-text")
    later = published(
        lake,
        with_sets(run, description="next", drops=run.dataset.drops.model_copy(update={"min_tier": 1024, "labels": ()})),
        monkeypatch,
    )
    assert live_versions(lake, "set") == (later.version, "v1", "v1-without-text")
    assert live_versions(lake, "set", keep=1) == (later.version,)
    assert give_up(lake, "set", ("v1-without-text",), None) == ()
    assert give_up(lake, "set", (), 1) == ("v1", "v1-without-text")
    with pytest.raises(InputError, match="v1-without-text of set was given up"):
        publish(lake, ablation)


def test_what_cannot_be_an_ablation_is_said(lake: Lake, run: ReleaseRun, monkeypatch: pytest.MonkeyPatch) -> None:
    ablation = run.model_copy(update={"without": TEXT})
    with pytest.raises(InputError, match="there is no version that an ablation could differ from"):
        build(lake, ablation)
    published(lake, run, monkeypatch)
    with pytest.raises(InputError, match="without licence, which the dataset never skips for, changes nothing"):
        build(lake, run.model_copy(update={"without": (SkipReason.LICENCE,)}))
    with pytest.raises(InputError, match="the base is itself an ablation"):
        build(lake, ablation.model_copy(update={"base": build(lake, ablation).manifest}))


def test_a_name_stands_for_one_kind_of_build(lake: Lake, run: ReleaseRun, monkeypatch: pytest.MonkeyPatch) -> None:
    published(lake, run, monkeypatch)
    whole, ablation = (run.model_copy(update={"build": "nightly", "without": each}) for each in ((), TEXT))
    build(lake, whole)
    with pytest.raises(InputError, match="nightly was begun as a whole release, not as an ablation without text"):
        build(lake, ablation)


def test_an_ablation_ranks_copies_as_its_base_did(lake: Lake, run: ReleaseRun, monkeypatch: pytest.MonkeyPatch) -> None:
    add(lake, [Row("twin.jpg", stored(picture(2, 700, 700)))])
    add(lake, [Row("twin.jpg", stored(picture(2, 700, 700), quality=80))], "other", batch="b3")
    base = published(lake, with_sets(run, TEXT), monkeypatch)
    sources = tuple(each.model_copy(update={"priority": 9 * (each.name == "other")}) for each in run.sources)
    made = build(lake, run.model_copy(update={"without": TEXT, "sources": sources}))
    assert served(made.manifest) == served(lake.manifest("set", base.version), TEXT)


def test_an_ablation_that_was_given_up_can_be_built_anew(
    lake: Lake, run: ReleaseRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(lake, run, monkeypatch)
    ablation = run.model_copy(update={"without": TEXT})
    build(lake, ablation)
    assert give_up(lake, "set", ("v1-without-text",), None) == ("v1-without-text",)
    assert build(lake, ablation).version == "v1-without-text-2"
