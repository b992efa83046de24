"""Opt-outs that are younger than the release: left out by a run that starts, replaced in one that resumes."""

from __future__ import annotations

import json
import logging
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from smalti.errors import CorruptError, InputError, MissingObject
from smalti.lake import Lake
from smalti.objects import create_bytes
from smalti.release.manifest import Manifest, read_manifest
from smalti.release.materialize import materialize
from smalti.release.optouts import OptoutCheck, OptoutSnapshot, write_check
from smalti.release.pull import pull
from tests.loader.releases import Release, build, opt_out, skip_share, stand_in
from tests.loader.serving import flat, ids, ours, path_of, plain

SKIPS = skip_share(0.2)


def some(release: Release) -> set[str]:
    """Samples to opt out: every fifth that is kept, a whole shard, and one that is skipped anyway."""
    shard = next(ids for ids in release.shards["main/512/1.000"] if ids)
    return {*release.all_kept[::5], *shard, min(release.skipped)}


def applied(release: Release, position: int) -> Release:
    """The same release under another version, that has applied the opt-outs up to a position."""
    fields = release.manifest.model_dump() | {"version": f"at{position}", "optouts": position}
    manifest = Manifest.model_validate(fields).with_digest()
    uri = release.uri.replace("/v1/", f"/at{position}/")
    for stream in manifest.streams:
        source, target = (path_of(each).parent / stream.index for each in (release.uri, uri))
        target.parent.mkdir(parents=True)
        target.write_bytes(source.read_bytes())
    create_bytes(uri.replace("manifest.json", "claim.json"), b"{}")
    create_bytes(uri, manifest.encode())
    return Release(uri, manifest, release.shards, release.skipped, release.images)


@pytest.mark.parametrize("method", ["random", "per_stream", "device_per_stream"])  # stratified serves no small stream
def test_a_run_that_starts_leaves_them_out_as_a_tree_without_them(lake: Lake, method: str) -> None:
    release = build(lake, skips=SKIPS)
    gone = some(release) | set(release.kept["main/1024/1.000"])
    opt_out(lake, 4, gone)
    materialize(release.uri, lake.tree("demo", "v1"), optouts=4)

    dataset = ours(release, batching_method=method, batch_size=2)
    served = ids(dataset, batch_size=2)

    assert dataset.optouts == 4
    assert dataset.size == len(set(release.all_kept) - gone)
    assert "main/1024/1.000" not in [stream.name for stream in dataset.streams]
    assert served == ids(plain(release, batching_method=method, batch_size=2), batch_size=2)
    assert not set(flat(served)) & gone


def test_the_newest_snapshot_applies_or_the_one_that_is_asked_for(lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    release = build(lake, skips=SKIPS)
    opt_out(lake, 9, release.all_kept[:3])
    opt_out(lake, 10, release.all_kept[:5])
    total = len(release.all_kept)

    assert [ours(release).size, ours(release, optouts=10).size] == [total - 5, total - 5]
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert [ours(release, optouts=9).size, ours(release, optouts=0).size] == [total - 3, total]
    assert "known up to position 10, and those after 9 are not applied" in caplog.text
    with pytest.raises(MissingObject, match=r"00000008\.json\.gz: the opt-outs of position 8 are not here"):
        ours(release, optouts=8)
    with pytest.raises(InputError, match="optouts=-1 is no position"):
        ours(release, optouts=-1)


def test_all_opted_out_is_one_clear_error(lake: Lake) -> None:
    release = build(lake)
    opt_out(lake, 1, release.all_kept)
    with pytest.raises(InputError, match="no sample is left"):
        ours(release)


def test_a_release_is_not_read_with_opt_outs_that_are_older_than_its_own(lake: Lake) -> None:
    release = applied(build(lake, skips=SKIPS), 6)
    with pytest.raises(InputError, match="known up to position 0, the release has them up to 6"):
        ours(release)
    opt_out(lake, 6, release.all_kept[:3])
    assert ours(release).size == len(release.all_kept)  # they are among its skips already
    with pytest.raises(InputError, match="up to position 5, the release"):
        ours(release, optouts=5)


def test_a_snapshot_that_is_damaged_or_does_not_fit_is_named(lake: Lake) -> None:
    release = build(lake)
    create_bytes(lake.optout_snapshot(2), OptoutSnapshot(position=1, shards={}).encode())
    with pytest.raises(CorruptError, match=r"00000002\.json\.gz: it says that it is the snapshot of position 1"):
        ours(release)
    name = "alpha/00001-aaaaaaaaaaaa/512/1.000/shard.00000.mds"
    create_bytes(lake.optout_snapshot(3), OptoutSnapshot(position=3, shards={name: (11,)}).encode())
    with pytest.raises(CorruptError, match=rf"{name}: sample 11 is opted out, the shard has 11"):
        ours(release)
    create_bytes(lake.optout_snapshot(4), b"nothing")
    with pytest.raises(CorruptError, match=r"00000004\.json\.gz: the object is damaged"):
        ours(release)


# A run that resumes


def state_at(release: Release, done: int, **arguments: Any) -> dict[str, Any]:
    dataset = ours(release, **arguments)
    next(iter(dataset))  # the epoch has begun
    state = dataset.state_dict(done, from_beginning=True)
    assert len(json.dumps(state)) < 4096
    return dict(json.loads(json.dumps(state)))


def exchanged(release: Release, gone: set[str], batches: list[list[str]]) -> list[list[str]]:
    return [[stand_in(release, gone, each) if each in gone else each for each in batch] for batch in batches]


def test_a_resumed_run_keeps_its_order_and_is_served_others_instead(
    lake: Lake, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    release = build(lake, skips=SKIPS)
    whole = ids(ours(release))
    state = state_at(release, 18)
    gone = some(release)
    opt_out(lake, 2, gone)

    dataset = ours(release, local=str(tmp_path / "cache"))
    dataset.load_state_dict(state)

    assert ids(dataset) == exchanged(release, gone, whole[3:])
    assert f"{len(gone & set(release.all_kept))} samples were opted out since the checkpoint" in caplog.text
    assert dataset.optouts == 0
    assert {dataset[number]["id"] for number in range(dataset.size)} == set(release.all_kept) - gone


def test_a_shard_that_is_opted_out_whole_is_not_even_fetched(lake: Lake, tmp_path: Path) -> None:
    release = build(lake)
    state = state_at(release, 0)
    gone = set(release.shards["main/512/1.000"][0])
    opt_out(lake, 1, gone)
    dataset = ours(release, local=str(tmp_path))
    dataset.load_state_dict(state)
    assert len(flat(ids(dataset))) == len(release.all_kept)
    assert not (tmp_path / "parts/alpha/00001-aaaaaaaaaaaa/512/1.000/shard.00000.mds").exists()
    assert (tmp_path / "parts/alpha/00001-aaaaaaaaaaaa/512/1.000/shard.00001.mds").exists()


def test_a_run_may_be_resumed_again_and_again(lake: Lake) -> None:
    release = build(lake, skips=SKIPS)
    whole = ids(ours(release))
    state, gone = state_at(release, 0), set(release.all_kept[::7])
    for position in (1, 2, 3):
        gone |= {stand_in(release, gone, each) for each in list(gone)[:4]}  # those that stood in are opted out too
        opt_out(lake, position, gone)
        dataset = ours(release)
        dataset.load_state_dict(state)
        assert ids(dataset) == exchanged(release, gone, whole[position - 1 :])
        state = json.loads(json.dumps(dataset.state_dict(position * 6, from_beginning=True)))
        assert state["optouts"] == 0


def test_a_run_that_started_after_them_resumes_without_exchange(lake: Lake) -> None:
    release = build(lake, skips=SKIPS)
    opt_out(lake, 1, some(release))
    whole = ids(ours(release))
    state = state_at(release, 12)
    assert state["optouts"] == 1
    resumed = ours(release)
    resumed.load_state_dict(state)
    assert ids(resumed) == whole[2:]


def test_a_state_from_before_there_were_positions_is_that_of_the_release(lake: Lake) -> None:
    release = build(lake, skips=SKIPS)
    whole, state = ids(ours(release)), state_at(release, 6)
    del state["optouts"]
    gone = some(release)
    opt_out(lake, 1, gone)
    dataset = ours(release)
    dataset.load_state_dict(state)
    assert ids(dataset) == exchanged(release, gone, whole[1:])


def test_a_checkpoint_that_knows_more_opt_outs_is_refused(lake: Lake) -> None:
    release = build(lake, skips=SKIPS)
    opt_out(lake, 5, some(release))
    state = state_at(release, 0)
    with pytest.raises(InputError, match="the checkpoint knows opt-outs up to position 5, this dataset up to 0"):
        ours(release, optouts=0).load_state_dict(state)


def test_other_opt_outs_are_not_loaded_into_an_epoch_that_runs(lake: Lake) -> None:
    release = build(lake, skips=SKIPS)
    state = state_at(release, 0)
    opt_out(lake, 1, some(release))
    dataset = ours(release)
    next(iter(dataset))
    with pytest.raises(InputError, match="Load the checkpoint before the first batch"):
        dataset.load_state_dict(state)


def test_other_streams_are_refused_whatever_was_opted_out(lake: Lake) -> None:
    release = build(lake, skips=SKIPS)
    state = state_at(release, 0, tiers=[512])
    opt_out(lake, 1, some(release))
    with pytest.raises(InputError, match="other tiers, groups"):
        ours(release).load_state_dict(state)


def test_a_resume_needs_the_snapshot_of_its_checkpoint(lake: Lake) -> None:
    release = build(lake, skips=SKIPS)
    opt_out(lake, 1, release.all_kept[:1])
    state = state_at(release, 0)
    opt_out(lake, 2, release.all_kept[:2])
    path_of(lake.optout_snapshot(1)).unlink()
    with pytest.raises(MissingObject, match=r"position 1 are not here.*--refresh-optouts --positions 1"):
        ours(release).load_state_dict(state)


# A pulled copy


def aged(folder: Path, **age: float) -> None:
    """Let the copy's last check be this old."""
    write_check(folder, OptoutCheck(position=0, checked=datetime.now(UTC) - timedelta(**age)))


def test_a_copy_is_refused_when_its_check_is_too_old(lake: Lake, tmp_path: Path) -> None:
    release = build(lake)
    disk = tmp_path / "disk"
    copy = Release(pull(release.uri, disk).manifest, release.manifest, {}, set(), {})
    assert ours(copy).size == 118
    aged(disk, days=6, hours=23)
    assert ours(copy).size == 118
    aged(disk, days=7, minutes=1)
    for arguments in ({}, {"optouts": 0}):
        with pytest.raises(
            InputError, match=r"compared with the lake's at 20.*an age of 7 days.*pull MANIFEST DIR --refresh-optouts"
        ):
            ours(copy, **arguments)
    assert ours(copy, max_optout_age=None).size == ours(copy, max_optout_age=timedelta(days=8)).size == 118
    (disk / ".smalti" / "optouts.json").unlink()
    with pytest.raises(InputError, match="compared with the lake's never"):
        ours(copy)
    shutil.rmtree(disk / ".smalti")
    more: dict[str, Any]
    for more in ({}, {"optouts": 0}, {"max_optout_age": None}):
        with pytest.raises(InputError, match=r"neither a claim\.json.*nor \.smalti, as in a pulled copy"):
            ours(copy, **more)

    opt_out(lake, 1, release.all_kept[:8])
    pull(release.uri, disk, refresh_optouts=True)
    assert ours(copy).size == 110
    assert read_manifest(release.uri) == read_manifest(f"file://{copy.uri}")


def test_a_lake_is_never_too_old(lake: Lake) -> None:
    assert ours(build(lake), max_optout_age=timedelta(0)).size == 118


def test_a_check_in_the_future_is_no_check(lake: Lake, tmp_path: Path) -> None:
    """A clock that was far off would let the copy never get old."""
    disk = tmp_path / "disk"
    copy = Release(pull(build(lake).uri, disk).manifest, build(lake).manifest, {}, set(), {})
    aged(disk, days=-400, hours=0)
    with pytest.raises(InputError, match="compared with the lake's at 20"):
        ours(copy)


def test_a_refused_checkpoint_changes_nothing(lake: Lake) -> None:
    release = build(lake, skips=SKIPS)
    state = state_at(release, 0, tiers=[512])
    opt_out(lake, 1, some(release))
    dataset = ours(release)
    before = (dataset.optouts, dataset.size, dataset.state_dict(0, from_beginning=True))
    with pytest.raises(InputError, match="other tiers, groups"):
        dataset.load_state_dict(state)
    assert (dataset.optouts, dataset.size, dataset.state_dict(0, from_beginning=True)) == before
