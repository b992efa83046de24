"""Requests, a publication, a delivery and maintenance at once, killed again and again: all is in force, and nothing is lost."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from smalti.lake import Lake
from smalti.loader.skips import served_shards
from smalti.optouts.ledger import all_parts, settle, state
from smalti.optouts.match import match_parts
from smalti.optouts.proof import prove
from smalti.optouts.request import read_request, request_ids
from smalti.optouts.status import State, standings
from smalti.release.latest import live_versions
from smalti.release.manifest import read_manifest
from smalti.release.optouts import newest_position, read_snapshot
from smalti.release.summary import samples_of
from tests.optouts import campaign
from tests.optouts.lakes import ledger_of
from tests.optouts.test_ledger import steps
from tests.optouts.test_proof import selected


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The lake before; copy it."""
    folder = tmp_path_factory.mktemp("campaign") / "lake"
    campaign.make(folder)
    return folder


def served(lake: Lake, version: str, position: int | None = None) -> list[str]:
    """Ids that the loader would serve of a version, with the opt-outs up to a position."""
    uri = lake.manifest("set", version)
    manifest = read_manifest(uri)
    ids = {(shard, index): name for name, shard, index, _ in samples_of(uri, manifest)}
    optouts = read_snapshot(lake, manifest.optouts if position is None else position).shards
    shards = [shard for entry in manifest.streams for shard in served_shards(uri, entry, (), optouts)]
    return [ids[shard.basename, index] for shard in shards for index in shard.kept_indices()]


@pytest.mark.parametrize(
    ("seed", "kills"), [(1, 2), *(pytest.param(seed, 8, marks=pytest.mark.prove) for seed in range(2, 22))]
)
def test_all_requests_are_in_force_and_nothing_else_is_lost(begun: Path, tmp_path: Path, seed: int, kills: int) -> None:
    lake = campaign.copy(begun, tmp_path / "lake")
    before = served(lake, "v1")

    killed = campaign.run(lake, random.Random(seed), kills)
    print(f"{killed.total()} processes were killed; {len(steps(lake))} steps of the ledger")
    assert killed.total() >= len(campaign.TASKS) * kills // 4

    campaign.without_loader()
    last = read_manifest(campaign.publish_build(lake, "last")).version
    assert state(lake).parts >= all_parts(lake).keys(), "the build has compared every part"
    requests = request_ids(lake)
    assert len(requests) == 10
    assert {each.state for each in standings(lake)} == {State.PROVEN}
    assert set(state(lake).in_force) == set(requests)
    the_ledger_follows(lake)

    gone = campaign.matched()
    newest = settle(lake)
    assert set(read_snapshot(lake, newest).ids) == gone
    versions = live_versions(lake, "set")
    assert {"v1", last} <= set(versions)
    for version in versions:
        assert sorted(served(lake, version, newest)) == sorted({*served(lake, version)} - gone)
    assert sorted({*before} - gone) == sorted(served(lake, "v1", newest))
    serves_every_picture_once(served(lake, last), gone)
    for request in requests:
        assert prove(lake, request, read=selected).effective is not None


def the_ledger_follows(lake: Lake) -> None:
    """No step is missing, each snapshot is that of the steps up to it, and the newest one is what a single look finds."""
    made = steps(lake)
    assert newest_position(lake) == len(made)
    for position in range(1, len(made) + 1):
        assert read_snapshot(lake, position) == ledger_of(made[:position]).snapshot()
    requests = [read_request(lake, name) for name in request_ids(lake)]
    rows = match_parts(lake, [*all_parts(lake).values()], requests).rows
    places: dict[str, set[int]] = {}
    for shard, index in zip(rows["shard"].to_pylist(), rows["index"].to_pylist(), strict=True):
        places.setdefault(shard, set()).add(index)
    assert {shard: set(found) for shard, found in read_snapshot(lake, len(made)).shards.items()} == places


def serves_every_picture_once(ids: list[str], gone: frozenset[str]) -> None:
    now = campaign.last()
    numbers = {each.number for each in now.values() if each.id not in gone and each.label == "visual"}
    assert not {*ids} & gone
    assert sorted(now[name].number for name in ids) == sorted(numbers)
