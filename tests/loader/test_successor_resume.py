"""Checkpoints of a version whose samples were erased go on in the version that succeeds it."""

from __future__ import annotations

import json
import random
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smalti import objects
from smalti.errors import CorruptError, InputError, LakeError, MissingObject
from smalti.lake import Lake
from smalti.loader import ReleaseDataset
from smalti.loader.skips import ServedShard, Stored
from smalti.loader.streams import KeptReader
from smalti.objects import create_bytes
from smalti.optouts.erase import erase as erase_request
from smalti.optouts.ledger import resolve
from smalti.optouts.request import Action
from smalti.reasons import SkipReason
from smalti.release import verify as verify_module
from smalti.release.latest import give_up
from smalti.release.optouts import read_check, read_snapshot
from smalti.release.pull import pull
from smalti.release.tombstones import COLLECTED, Tombstone, bury
from smalti.settings import OptoutRun
from smalti.shards import mds
from tests.loader.erasing import erase, erase_parts, places, succeed
from tests.loader.ranks import Ranks, World
from tests.loader.releases import SHARDS, Release, Skips, build, opt_out, skip_share, stand_in
from tests.loader.serving import METHODS, flat, ids, ours, path_of
from tests.loader.test_ranks import shards_of
from tests.maintenance.conftest import release as make_release
from tests.optouts.conftest import DEMO, OTHER, RELEASE, deliver_run
from tests.optouts.lakes import ask, match
from tests.release.test_verify import kept_ids
from tests.support.pictures import Row, picture, stored

SKIPS = skip_share(0.2)
BATCH = 2
SEEDS = 12

FEW = 2
"""Samples left to a rank, up to which StreamingDataset may repeat others than in the whole epoch (see test_ranks)."""

Batches = list[list[str]]


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    pool = Ranks()
    yield pool
    pool.close()


def begun(uri: str, method: str, done: int) -> tuple[Batches, dict[str, Any]]:
    """The batches of an epoch, and the state after some of them."""
    dataset = ReleaseDataset(uri, batch_size=BATCH, shuffle=True, batching_method=method)
    batches = ids(dataset, batch_size=BATCH)
    state = state_of(ReleaseDataset(uri, batch_size=BATCH, shuffle=True, batching_method=method), done)
    return batches, state


def state_of(dataset: ReleaseDataset, done: int) -> dict[str, Any]:
    """As a trainer saves it, after so many batches of the epoch."""
    next(iter(dataset))  # the epoch has begun
    size = BATCH * dataset._unique_rank_world.num_ranks
    return dict(json.loads(json.dumps(dataset.state_dict(done * size, from_beginning=True))))


def went_on(uri: str, method: str, state: dict[str, Any]) -> tuple[Batches, Batches, str]:
    """The rest of the epoch from a state, the next epoch, and whose dataset it has become."""
    dataset = ReleaseDataset(uri, batch_size=BATCH, shuffle=True, batching_method=method)
    dataset.load_state_dict(state)
    return ids(dataset, 0, BATCH), ids(dataset, 0, BATCH), dataset.manifest.version


def exchanged(release: Release, gone: set[str], batches: Batches) -> Batches:
    return [[stand_in(release, gone, each) if each in gone else each for each in batch] for batch in batches]


def others(gone: set[str]) -> Skips:
    """What a successor leaves out: other samples than before, and what was opted out."""
    some = skip_share(0.3, seed=8)
    return lambda name: (SkipReason.OPTOUT,) if name in gone else some(name)


def some_of(release: Release, seed: int, share: float) -> set[str]:
    """Samples of all sorts, kept or not, a whole shard, and never all of a stream."""
    rng = random.Random(seed)
    gone = {each for each in sorted(release.skipped) if rng.random() < share}
    for kept, shards in zip(release.kept.values(), release.shards.values(), strict=True):
        gone |= {each for each in kept[1:] if rng.random() < share}
        if len(shards) > 1 and shards[-1] and rng.random() < 0.5:
            gone |= set(shards[-1])
    return gone


def last_source(release: Release) -> set[str]:
    """All samples of the last source, if others are left of each stream."""
    source = release.manifest.sources[-1].name
    of_it = {each for each in release.images if each.startswith(f"{source}/")}
    return of_it if all(not kept or set(kept) - of_it for kept in release.kept.values()) else set()


def check(method: str, world: World, seed: int, pool: Ranks, lake: Lake, folder: Path) -> None:
    """An epoch is interrupted; samples are opted out; then most of them are erased, and the parts of before removed.

    What is served after the erasure must be what was served before it: the order of the epoch, with others in the places of what was
    opted out.
    """
    rng = random.Random(seed)
    skips = skip_share(rng.choice([0.0, 0.2, 0.6]), seed=seed)
    release = build(lake, shards=shards_of(seed % 6) if seed else SHARDS, skips=skips)
    done = rng.choice([0, 1, 2])
    begin = pool.run(world, folder, begun, release.uri, method, done)
    if isinstance(begin[0], InputError):
        assert seed, begin[0]
        assert {"fills a batch" in str(each) or "no sample is left" in str(each) for each in begin} == {True}
        return
    whole, (state, *_) = zip(*begin, strict=True)
    gone = some_of(release, seed, rng.choice([0.1, 0.25, 0.5]))
    erased = set(rng.sample(sorted(gone), len(gone) * 2 // 3))
    if seed % 3 == 2:
        erased |= last_source(release)
        gone |= erased
    opt_out(lake, 1, gone)
    unerased = pool.run(world, folder, went_on, release.uri, method, state)
    second = erase(lake, release, "v2", erased, others(gone), optouts=1)
    resumed = pool.run(world, folder, went_on, second.uri, method, state)
    if isinstance(unerased[0], InputError):  # what is left would not do for a run that starts: nothing is opened
        assert seed, unerased[0]
        assert {"fills a batch" in str(each) for each in (*unerased, *resumed)} == {True}
        return
    if isinstance(resumed[0], InputError):  # the successor leaves out others, and cannot be opened by itself
        assert seed, resumed[0]
        assert {"fills a batch" in str(each) for each in resumed} == {True}
        return
    assert resumed == unerased
    for epoch, (rest, following, version) in zip(whole, resumed, strict=True):
        if len(flat(rest)) > FEW:
            assert rest == exchanged(release, gone, epoch[done:])
        assert not set(flat(rest + following)) & gone
        assert version == "v1"


@pytest.mark.parametrize("world", [World(), World(1, 2)], ids=["1 rank", "2 ranks"])
@pytest.mark.parametrize("method", METHODS)
def test_an_erasure_within_an_epoch_changes_nothing_but_what_was_erased(
    method: str, world: World, ranks: Ranks, lake: Lake, tmp_path: Path
) -> None:
    check(method, world, 0, ranks, lake, tmp_path)


@pytest.mark.prove
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("method", METHODS)
def test_so_it_is_in_many_releases(method: str, ranks: Ranks, tmp_path: Path) -> None:
    for seed in range(1, 1 + SEEDS):
        world = (World(), World(1, 2), World(2, 1), World(2, 2))[seed % 4]
        check(method, world, seed, ranks, Lake.at(str(tmp_path / f"lake{seed}")), tmp_path)


@pytest.mark.parametrize("world", [World(), World(1, 2), World(2, 1)], ids=str)
def test_others_stand_in_for_a_source_of_which_nothing_is_left(
    world: World, ranks: Ranks, lake: Lake, tmp_path: Path
) -> None:
    """The successor does not even name it. Nor does one that succeeds that. In a copy it is the same."""
    release = build(lake, shards=dict.fromkeys(("alpha", "own"), SHARDS["alpha"]), skips=SKIPS)
    whole, (state, *_) = zip(*ranks.run(world, tmp_path, begun, release.uri, "random", 1), strict=True)

    def check_rest(latest: Release, gone: set[str]) -> None:
        for uri in (latest.uri, pull(latest.uri, tmp_path / latest.manifest.version).manifest):
            resumed = ranks.run(world, tmp_path, went_on, uri, "random", state)
            for epoch, (rest, _, version) in zip(whole, resumed, strict=True):
                assert rest == exchanged(release, gone, epoch[1:])
                assert version == "v1"

    gone = last_source(release)
    assert gone
    opt_out(lake, 1, gone)
    second = erase(lake, release, "v2", gone, others(gone), optouts=1)
    assert [source.name for source in second.manifest.sources] == ["alpha"]
    check_rest(second, gone)
    gone |= some_of(release, 4, 0.1)
    opt_out(lake, 2, gone)
    check_rest(erase(lake, second, "v3", gone, others(gone), optouts=2), gone)


@pytest.mark.parametrize("world", [World(), World(1, 2), World(2, 1)], ids=str)
def test_what_is_opted_out_when_the_parts_of_before_are_gone_is_not_served(
    world: World, ranks: Ranks, lake: Lake, tmp_path: Path
) -> None:
    """Snapshots name it in the parts of now alone. In a copy it is the same."""
    release = build(lake, skips=SKIPS)
    whole, (state, *_) = zip(*ranks.run(world, tmp_path, begun, release.uri, "random", 1), strict=True)
    first, more = some_of(release, 3, 0.2), some_of(release, 4, 0.2)
    opt_out(lake, 1, first)
    second = erase(lake, release, "v2", first, others(first), optouts=1)
    gone = first | more
    opt_out(lake, 2, gone)
    named = {name.split("/")[1] for name in read_snapshot(lake, 2).shards} - {
        name.split("/")[1] for name in read_snapshot(lake, 1).shards
    }
    assert named
    copied = pull(second.uri, tmp_path / "copy").manifest
    for uri in (second.uri, copied):
        resumed = ranks.run(world, tmp_path, went_on, uri, "random", state)
        for epoch, (rest, following, version) in zip(whole, resumed, strict=True):
            assert not set(flat(rest + following)) & gone
            assert rest == exchanged(release, gone, epoch[1:])
            assert version == "v1"


def test_a_checkpoint_goes_on_through_erasure_after_erasure(lake: Lake, tmp_path: Path) -> None:
    """Also with one that the successor itself has written, and with what was erased of the same shard twice."""
    release = build(lake, skips=SKIPS)
    whole, state, latest, gone = *begun(release.uri, "per_stream", 1), release, set[str]()
    for number in (2, 3, 4):
        gone |= some_of(release, number, 0.15)
        gone |= {stand_in(release, gone, each) for each in sorted(gone - release.skipped)[:3]}
        opt_out(lake, 2 * number, gone)
        erased = {each for each in gone if int(each[-1]) % 2}
        erase_parts(lake, places(lake, latest.manifest, latest.uri), erased, remove=True)
        opt_out(lake, 2 * number + 1, gone)  # as every build settles: in the new parts, too
        latest = succeed(lake, latest, f"v{number}", others(gone), optouts=2 * number + 1)
        dataset = ours(latest, batching_method="per_stream", batch_size=BATCH, local=str(tmp_path))
        dataset.load_state_dict(state)
        assert ids(dataset, 0, BATCH) == exchanged(release, gone, whole[number - 1 :])
        state = json.loads(json.dumps(dataset.state_dict(number * BATCH, from_beginning=True)))
        assert (state["release"], state["optouts"]) == (release.manifest.digest, 0)
    assert latest.manifest.version == "v4"


def test_the_successor_s_own_checkpoints_are_its_own(lake: Lake) -> None:
    release = build(lake, skips=SKIPS)
    _, old = begun(release.uri, "random", 1)
    opt_out(lake, 1, release.all_kept[:9])
    second = erase(lake, release, "v2", release.all_kept[:9], others(set(release.all_kept[:9])), optouts=1)
    whole, state = begun(second.uri, "random", 1)
    dataset = ours(second, batch_size=BATCH)
    dataset.load_state_dict(old)
    assert dataset.manifest == release.manifest
    dataset.load_state_dict(state)  # whoever has loaded the wrong one may load the right one
    assert dataset.manifest.version == "v2"
    assert ids(dataset, 0, BATCH) == whole[1:]


# Where the bytes come from


def cached(folder: Path) -> set[str]:
    return {str(path.relative_to(folder / "parts")) for path in (folder / "parts").rglob("*.mds")}


def test_only_new_shards_are_fetched_and_old_ones_are_not_even_read(
    lake: Lake, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What lies in the cache of before is junk here: whatever was read of it would end the run."""
    release = build(lake, skips=SKIPS)
    whole, state = begun(release.uri, "random", 1)
    assert flat(ids(ours(release, local=str(tmp_path))))
    old = cached(tmp_path)
    for name in old:
        (tmp_path / "parts" / name).write_bytes(b"junk of the right kind")
    shard = set(release.shards["main/512/1.000"][0])
    gone = shard | {"alpha/00001-aaaaaaaaaaaa/512/1.000/0/0", "beta/00001-cccccccccccc/1024/1.286/1/3"}
    gone |= {f"alpha/00002-bbbbbbbbbbbb/1024/1.000/1/{index}" for index in range(8)} | set(release.skipped)
    gone |= {f"alpha/00001-aaaaaaaaaaaa/512/1.000/0/{index}" for index in range(11)}
    opt_out(lake, 1, gone)
    second = erase(lake, release, "v2", gone, others(gone), optouts=1)
    assert path_of(second.uri).exists()

    dataset = ours(second, batch_size=BATCH, local=str(tmp_path))
    dataset.load_state_dict(state)
    assert ids(dataset, 0, BATCH) == exchanged(release, gone, whole[1:])
    new = cached(tmp_path) - old
    assert new
    assert {name.split("/")[1] for name in new}.isdisjoint({name.split("/")[1] for name in old})
    assert not [name for name in new if name.endswith("512/1.000/shard.00000.mds") and name.startswith("alpha/00001")]
    assert all((tmp_path / "parts" / name).read_bytes() == b"junk of the right kind" for name in old)
    assert f"remove it as soon as no run reads it: {tmp_path}/parts/alpha/00001-aaaaaaaaaaaa" in caplog.text


def test_a_shard_that_is_not_what_the_successor_says_is_not_served(lake: Lake, tmp_path: Path) -> None:
    release = build(lake, skips=SKIPS)
    _, state = begun(release.uri, "random", 0)
    opt_out(lake, 1, release.all_kept[:3])
    second = erase(lake, release, "v2", release.all_kept[:3], others(set(release.all_kept[:3])), optouts=1)
    part = next(iter(second.manifest.sources)).parts[0].name
    path = path_of(lake.shard("alpha", part, 512, "0.778", 0))
    path.chmod(0o644)
    path.write_bytes(bytes(path.stat().st_size))
    dataset = ours(second, local=str(tmp_path), batch_size=BATCH, download_retry=0)
    dataset.load_state_dict(state)
    with pytest.raises(CorruptError, match=f"{part}/512/0.778/shard.00000.mds: the bytes have the sha256"):
        ids(dataset, 0, BATCH)


def test_an_erasure_that_is_under_way_is_left_alone(lake: Lake) -> None:
    """Its new parts are no release's yet: ranks that look before and after it must find the same."""
    release = build(lake, skips=SKIPS)
    whole, state = begun(release.uri, "random", 1)
    gone = set(release.all_kept[::6])
    opt_out(lake, 1, gone)
    second = erase(lake, release, "v2", gone, others(gone), optouts=1)
    more = gone | set(release.all_kept[1::6])
    opt_out(lake, 2, more)
    erase_parts(lake, places(lake, second.manifest, second.uri), more, remove=False)
    dataset = ours(second, batch_size=BATCH)
    dataset.load_state_dict(state)
    parts = {part.name for source in second.manifest.sources for part in source.parts}
    assert {reader.raw_data.basename.split("/")[1] for reader in dataset.shards if not reader.unread} <= parts
    assert ids(dataset, 0, BATCH) == exchanged(release, more, whole[1:])


def test_a_tree_s_successor_has_the_same_parts(lake: Lake) -> None:
    release = build(lake, skips=SKIPS)
    whole, state = begun(release.uri, "stratified", 1)
    gone = set(release.all_kept[::5])
    opt_out(lake, 1, gone)
    second = succeed(lake, release, "v2", others(gone), optouts=1)
    dataset = ours(second, batch_size=BATCH, batching_method="stratified")
    dataset.load_state_dict(state)
    assert ids(dataset, 0, BATCH) == exchanged(release, gone, whole[1:])


def test_what_was_erased_is_not_served_even_if_no_snapshot_names_it(lake: Lake) -> None:
    release = build(lake, skips=SKIPS)
    whole, state = begun(release.uri, "random", 0)
    gone = set(release.all_kept[::4])
    second = erase(lake, release, "v2", gone, others(gone), optouts=0)
    dataset = ours(second, batch_size=BATCH)
    dataset.load_state_dict(state)
    assert ids(dataset, 0, BATCH) == exchanged(release, gone, whole)


# What is refused


def test_no_run_begins_with_a_version_that_was_given_up(lake: Lake) -> None:
    release = build(lake, skips=SKIPS)
    gone = set(release.all_kept[:3])
    opt_out(lake, 1, gone)
    second = erase(lake, release, "v2", gone, others(gone), optouts=1)
    third = erase(lake, second, "v3", release.all_kept[:5], others(gone), optouts=1)
    for old, version in ((release, "v1"), (second, "v2")):
        with pytest.raises(InputError) as error:
            ours(old)
        assert str(error.value) == (
            f"{old.uri}: demo {version} was given up (samples were erased): v3 succeeds it. "
            f"Use {third.uri}; checkpoints of {version} are loaded there as they are."
        )
    assert ours(third).size == len(third.all_kept)
    create_bytes(lake.release_tombstone("demo", "v3"), Tombstone(why="nothing is left").encode())
    with pytest.raises(InputError, match=r"demo v3 was given up \(nothing is left\), and no version succeeds it"):
        ours(third)


def test_what_maintenance_collects_may_be_read_to_its_end(lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    release = build(lake)
    create_bytes(lake.release_tombstone("demo", "v1"), Tombstone(why=COLLECTED).encode())
    assert ours(release).size == len(release.all_kept)
    assert "demo v1 was given up (collected as garbage), and goes when the grace of maintenance is over" in caplog.text


@pytest.mark.parametrize("world", [World(), World(1, 2)], ids=str)
def test_what_was_erased_of_a_collected_version_is_no_more_begun_with(
    world: World, ranks: Ranks, lake: Lake, tmp_path: Path
) -> None:
    """In the lake, where the parts may still be, and in a copy, which has them."""
    release = build(lake, skips=SKIPS)
    newer = build(lake, version="v2", shards={"gamma": SHARDS["beta"]})
    copy = copy_of(release, tmp_path / "copy")
    create_bytes(lake.release_tombstone("demo", "v1"), Tombstone(why=COLLECTED).encode())
    erase_parts(lake, places(lake, release.manifest, release.uri), release.all_kept[:3], remove=False)
    pull(newer.uri, tmp_path / "copy", refresh_optouts=True)
    for uri, message in (
        (release.uri, "and no version succeeds it"),
        (copy.uri, "and this copy holds what was erased"),
    ):
        errors = ranks.run(world, tmp_path, begun, uri, "random", 0)
        assert [message in str(each) for each in errors] == [True] * world.size


def test_who_may_not_ask_is_told(lake: Lake, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> None:
        raise LakeError("access is refused", lake.root, "Ask its owner")

    release = build(lake)
    monkeypatch.setattr("smalti.loader.successors.read_tombstone", forbidden)
    assert ours(release).size == len(release.all_kept)
    assert "it was not looked up whether the version was given up: access is refused" in caplog.text


def test_it_is_asked_once_and_by_one_rank(ranks: Ranks, lake: Lake, tmp_path: Path) -> None:
    release = build(lake)
    assert ranks.run(World(1, 2), tmp_path, asked_for_tombstones, release.uri) == [1, 0]
    opt_out(lake, 1, release.all_kept[:3])
    erase(lake, release, "v2", release.all_kept[:3], others(set()), optouts=1)
    errors = ranks.run(World(1, 2), tmp_path, asked_for_tombstones, release.uri)
    assert ["v2 succeeds it" in str(each) for each in errors] == [True, True]


def asked_for_tombstones(uri: str) -> int:
    asked, read = [], objects.read_versioned

    def noted(uri: str) -> tuple[bytes, str] | None:
        asked.append(uri)
        return read(uri)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("smalti.objects.read_versioned", noted)
        ReleaseDataset(uri, batch_size=1)
    assert all(each.endswith("tombstone.json") for each in asked)
    return len(asked)


def test_a_checkpoint_of_something_else_is_refused(lake: Lake) -> None:
    release = build(lake, skips=SKIPS)
    _, state = begun(release.uri, "random", 1)
    opt_out(lake, 1, release.all_kept[:3])
    second = erase(lake, release, "v2", release.all_kept[:3], others(set()), optouts=1)
    dataset = ours(second, batch_size=BATCH)
    digests = rf"digest {'0' * 64}, not {second.manifest.digest}, nor to what it succeeds \(v1\)"
    with pytest.raises(InputError, match=digests):
        dataset.load_state_dict(state | {"release": "0" * 64})
    assert dataset.manifest.version == "v2"
    next(iter(dataset))
    with pytest.raises(InputError, match="Load the checkpoint before the first batch"):
        dataset.load_state_dict(state)
    with pytest.raises(InputError, match="other tiers, groups"):
        ours(second, batch_size=BATCH, tiers=[512]).load_state_dict(state)


def test_what_a_resume_lacks_is_named(lake: Lake) -> None:
    release = build(lake, skips=SKIPS)
    _, state = begun(release.uri, "random", 1)
    opt_out(lake, 1, release.all_kept[:3])
    second = erase(lake, release, "v2", release.all_kept[:3], others(set(release.all_kept[:3])), optouts=1)
    log = path_of(lake.replacement("alpha", 1))
    log.rename(log.with_name("aside"))
    with pytest.raises(CorruptError, match=r"000001\.json: this is not a step of the log of parts"):
        ours(second, batch_size=BATCH).load_state_dict(state)
    log.with_name("aside").rename(lake_aside := path_of(lake.root) / "aside")
    with pytest.raises(CorruptError, match=r"alpha/\S+: v2 has no shard alpha/\S+, which is to hold what is left"):
        ours(second, batch_size=BATCH).load_state_dict(state)
    lake_aside.rename(log)
    ours(second, batch_size=BATCH).load_state_dict(state)
    path_of(release.uri).unlink()
    with pytest.raises(MissingObject, match="the manifest of v1 is not here, which v2 succeeds"):
        ours(second, batch_size=BATCH).load_state_dict(state)


# A pulled copy


def copy_of(release: Release, folder: Path, **arguments: Any) -> Release:
    return Release(pull(release.uri, folder, **arguments).manifest, release.manifest, {}, set(), {})


def test_a_copy_of_the_successor_has_what_checkpoints_need(
    lake: Lake, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    release = build(lake, skips=SKIPS)
    whole, state = begun(release.uri, "random", 1)
    disk = tmp_path / "disk"
    pull(release.uri, disk)
    gone = some_of(release, 5, 0.3)
    opt_out(lake, 1, gone)
    second = erase(lake, release, "v2", {each for each in gone if int(each[-1]) % 3}, others(gone), optouts=1)
    third = erase(lake, second, "v3", gone, others(gone), optouts=1)
    pull(third.uri, disk)
    assert f"remove it as soon as no run reads it: {disk}/parts/alpha/00001-aaaaaaaaaaaa" in caplog.text
    for old in release.manifest.sources:
        for part in old.parts:
            shutil.rmtree(disk / "parts" / old.name / part.name)
    path_of(lake.root).rename(tmp_path / "away")
    for folder in (disk, tmp_path / "fresh"):
        if folder != disk:
            (tmp_path / "away").rename(path_of(lake.root))
            pull(third.uri, folder)
        copy = Release(str(folder / "releases/demo/v3/manifest.json"), third.manifest, {}, set(), {})
        dataset = ours(copy, batch_size=BATCH)
        dataset.load_state_dict(state)
        assert ids(dataset, 0, BATCH) == exchanged(release, gone, whole[1:])
    with pytest.raises(InputError, match=r"v3 succeeds it, and this copy holds what was erased"):
        ours(Release(str(disk / "releases/demo/v1/manifest.json"), release.manifest, {}, set(), {}))


def test_a_copy_has_shards_that_checkpoints_alone_read(lake: Lake, tmp_path: Path) -> None:
    """The successor may have come to leave all of a shard out that the version before served."""
    release = build(lake)
    whole, state = begun(release.uri, "random", 1)
    gone = {f"alpha/00001-aaaaaaaaaaaa/512/1.000/1/{index}" for index in (0, 1)}
    opt_out(lake, 1, gone)
    shard = "alpha/00001-aaaaaaaaaaaa/512/1.000/1/"
    skips: Skips = lambda name: (SkipReason.DUPLICATE,) if name.startswith(shard) else ()  # noqa: E731
    copy = copy_of(erase(lake, release, "v2", gone, skips, optouts=1), tmp_path)
    dataset = ours(copy, batch_size=BATCH)
    dataset.load_state_dict(state)
    assert ids(dataset, 0, BATCH) == exchanged(release, gone, whole[1:])


def test_damage_in_the_version_before_keeps_nobody_from_its_successor(
    lake: Lake, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    release = build(lake, skips=SKIPS)
    gone = set(release.all_kept[:4])
    opt_out(lake, 1, gone)
    second = erase(lake, release, "v2", gone, others(gone), optouts=1)
    index = path_of(release.uri).parent / release.manifest.streams[0].index
    index.chmod(0o644)
    index.write_bytes(b"damaged")
    copy = copy_of(second, tmp_path)
    assert "checkpoints of older versions cannot go on in this copy" in caplog.text
    assert ours(copy).size == len(second.all_kept)


def test_a_copy_learns_that_it_holds_what_was_erased(lake: Lake, tmp_path: Path) -> None:
    release = build(lake, skips=SKIPS)
    copy = copy_of(release, tmp_path)
    gone = set(release.all_kept[:4])
    opt_out(lake, 1, gone)
    second = erase(lake, release, "v2", gone, others(gone), optouts=1)
    assert ours(copy).size == len(release.all_kept)  # it cannot know yet
    with pytest.raises(InputError, match=r"^\S+/v1/manifest.json: demo v1 was given up .*: v2 succeeds it"):
        pull(release.uri, tmp_path)
    with pytest.raises(InputError, match="v2 succeeds it"):
        pull(release.uri, tmp_path / "tree", materialize=True)
    assert pull(release.uri, tmp_path, refresh_optouts=True).optouts == 1
    with pytest.raises(
        InputError, match=r"v2 succeeds it, and this copy holds what was erased.*into the same directory"
    ):
        ours(copy)
    assert ours(copy_of(second, tmp_path)).size == len(second.all_kept)


@pytest.mark.parametrize("buried", [True, False], ids=["buried", "killed before the tombstone"])
def test_a_copy_whose_parts_left_the_lake_is_refused_as_later_requests_do_not_name_them(
    ranks: Ranks, lake: Lake, tmp_path: Path, buried: bool
) -> None:
    release = build(lake, skips=SKIPS)
    newer = build(lake, version="v2", shards={"gamma": SHARDS["beta"]})
    copy, folder = copy_of(release, tmp_path / "copy"), tmp_path / "copy"
    give_up(lake, "demo", ["v1"], None)
    if buried:
        bury(lake, "demo", "v1")
    pull(newer.uri, folder, refresh_optouts=True)
    assert ours(copy).size == len(release.all_kept)  # within the grace every request is compared with its parts
    path_of(lake.part_commit("beta", "00001-cccccccccccc")).unlink()
    opt_out(lake, 1, newer.all_kept[:1])  # and copies of it in v1, of which nothing is known any more
    pull(newer.uri, folder, refresh_optouts=True)
    pull(newer.uri, folder)  # what is known once stays known
    message = r"demo v1 was given up, and parts of it are in the lake no more: .*pull` on the newest version"
    errors = ranks.run(World(1, 2), tmp_path, begun, copy.uri, "random", 0)
    assert [bool(re.search(message, str(each))) for each in errors] == [True, True]
    with pytest.raises(InputError, match=message):
        ours(copy, optouts=0)
    with pytest.raises(InputError, match=message):
        pull(copy.uri, tmp_path / "copy of the copy")
    assert ours(Release(str(folder / "releases/demo/v2/manifest.json"), newer.manifest, {}, set(), {})).size > 0


def test_a_copy_of_a_copy_knows_whose_parts_left_the_lake(lake: Lake, tmp_path: Path) -> None:
    release, newer = build(lake), build(lake, version="v2", shards={"gamma": SHARDS["beta"]})
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        copy_of(release, folder)
    there = copy_of(newer, first)
    create_bytes(lake.release_tombstone("demo", "v1"), Tombstone(why=COLLECTED).encode())
    path_of(lake.part_commit("beta", "00001-cccccccccccc")).unlink()
    pull(newer.uri, first, refresh_optouts=True)
    pull(there.uri, second, refresh_optouts=True)
    with pytest.raises(InputError, match="parts of it are in the lake no more"):
        ours(Release(str(second / "releases/demo/v1/manifest.json"), release.manifest, {}, set(), {}))


def test_a_refresh_that_ends_early_has_not_been_one(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = build(lake)
    copy_of(release, tmp_path)
    before = read_check(Lake.at(str(tmp_path)))
    opt_out(lake, 1, release.all_kept[:1])

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("smalti.release.succession.read_tombstone", dies)
    with pytest.raises(KeyboardInterrupt):
        pull(release.uri, tmp_path, refresh_optouts=True)
    assert read_check(Lake.at(str(tmp_path))) == before
    monkeypatch.undo()
    pull(release.uri, tmp_path, refresh_optouts=True)
    assert read_check(Lake.at(str(tmp_path))) != before


def test_a_copy_whose_tree_was_succeeded_is_still_good(
    lake: Lake, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    release = build(lake, skips=SKIPS)
    copy = copy_of(release, tmp_path)
    opt_out(lake, 1, release.all_kept[:4])
    succeed(lake, release, "v2", others(set(release.all_kept[:4])), optouts=1)
    pull(release.uri, tmp_path, refresh_optouts=True)
    caplog.clear()
    assert ours(copy).size == len(release.all_kept) - 4
    assert "v2 succeeds it; its shards and opt-outs are still good" in caplog.text


# The reader


@given(
    samples=st.integers(1, 12),
    left_out=st.sets(st.integers(0, 11)),
    erased=st.sets(st.integers(0, 11), min_size=1),
)
def test_a_shard_without_the_erased_serves_the_others_under_their_numbers(
    samples: int, left_out: set[int], erased: set[int]
) -> None:
    left_out, erased = ({each for each in some if each < samples} for some in (left_out, erased))
    columns = {"id": "str"}
    stays = [index for index in range(samples) if index not in erased]
    with tempfile.TemporaryDirectory() as folder:
        entry = mds.shard_entry("a", mds.encode_shard(columns, [{"id": str(index)} for index in range(samples)]))
        now = None
        if stays:
            data = mds.encode_shard(columns, [{"id": str(index)} for index in stays])
            Path(folder, "b").write_bytes(data)
            now = mds.shard_entry("b", data)
        stored = Stored(now, np.array(sorted(erased), np.int32))
        shard = ServedShard(entry, np.array(sorted(left_out), np.int32), stored)
        reader = KeptReader.of(folder, shard, {})
        assert reader.samples == shard.kept
        for number, index in enumerate(shard.kept_indices()):
            if index in erased:
                with pytest.raises(CorruptError, match=f"sample {index} of before was erased"):
                    reader[number]
            else:
                assert reader[number] == {"id": str(index)}


# An erasure that the optout stages make


def test_a_real_erasure(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_module, "read_ids", kept_ids)
    rows = [Row(f"{n}.jpg", stored(picture(n)), caption=f"picture {n}") for n in range(10)]
    deliver_run(lake, DEMO, rows)
    deliver_run(lake, OTHER, [Row("copy.jpg", stored(picture(1, 500, 500))), Row("own.jpg", stored(picture(30)))])
    old = make_release(lake, RELEASE)
    uri, method = lake.manifest("set", old.version), "random"
    whole, state = begun(uri, method, 2)
    request = ask(lake, *(("id", f"demo/{n}.jpg") for n in (1, 4, 5, 6, 7)), action=Action.ERASE)
    resolve(lake, [request], match=match)
    unerased, _, _ = went_on(uri, method, state)
    report = erase_request(lake, OptoutRun(request=request), match=match)
    for part in report.parts:
        shutil.rmtree(path_of(f"{lake.parts_root()}/{part}"))

    resumed, following, version = went_on(lake.manifest("set", report.versions[f"set/{old.version}"]), method, state)
    assert (resumed, version) == (unerased, old.version)
    gone = {f"demo/{n}.jpg" for n in (1, 4, 5, 6, 7)} | {"other/copy.jpg"}
    assert not set(flat(resumed + following)) & gone
    assert {len(batch) for batch in resumed} == {len(batch) for batch in whole[2:]}
    assert set(flat(whole[2:])) & gone
    same = [(a, b) for a, b in zip(flat(whole[2:]), flat(resumed), strict=True) if a not in gone]
    assert all(a == b for a, b in same)
    with pytest.raises(InputError, match=f"set {old.version} was given up .samples of it were erased"):
        ReleaseDataset(uri, batch_size=1)
