"""Whether the lake has the shards, before the first batch."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from smalti import objects
from smalti.errors import CorruptError, LakeError, MissingObject
from smalti.lake import Lake
from smalti.loader import presence
from tests.loader.releases import Release, build
from tests.loader.serving import SKIPS, WHOLE_SHARD, flat, ids, ours
from tests.support.gcs import Gcs

NAME = "beta/00001-cccccccccccc/512/1.000/shard.00001.mds"
OTHER = "beta/00001-cccccccccccc/1024/1.286/shard.00002.mds"


def remove(lake: Lake, name: str) -> bytes:
    uri = f"{lake.parts_root()}/{name}"
    data = objects.read_bytes(uri)
    assert objects.delete_object(uri)
    return data


def test_a_missing_or_cut_shard_of_a_lake_elsewhere_is_named_before_the_first_batch(
    any_lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, local = build(any_lake), str(tmp_path / "cache")
    monkeypatch.setattr("smalti.loader.streams.fetch", lambda *_: pytest.fail("a shard was fetched"))
    ours(release, local=local)
    data = remove(any_lake, NAME)
    with pytest.raises(MissingObject, match=rf"^{any_lake.parts_root()}/{NAME}: the shard is not there\. "):
        ours(release, local=local)
    remove(any_lake, OTHER)
    with pytest.raises(MissingObject, match=rf"^{any_lake.parts_root()}/{OTHER}: .* \(and 1 more shards\)"):
        ours(release, local=local)
    objects.create_bytes(f"{any_lake.parts_root()}/{NAME}", data[:-1])
    with pytest.raises(CorruptError, match=rf"/{NAME}: the shard has {len(data) - 1} bytes instead of {len(data)}\. "):
        ours(release, local=local, tiers=[512])


def test_what_nobody_will_fetch_is_not_looked_for(lake: Lake, tmp_path: Path) -> None:
    release = build(lake, skips=SKIPS["much"])
    skipped = Path(lake.root.removeprefix("file://")) / "parts" / WHOLE_SHARD.rsplit("/", 1)[0] / "shard.00001.mds"
    skipped.unlink()
    assert ours(release, local=str(tmp_path)).size == len(release.all_kept)
    assert ours(release, local=str(tmp_path), tiers=[512]).size < len(release.all_kept)


def test_what_is_here_is_not_looked_for_unless_it_may_be_evicted(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, local = build(lake), str(tmp_path / "cache")
    assert len(flat(ids(ours(release, local=local)))) == len(release.all_kept)
    remove(lake, NAME)
    with pytest.raises(MissingObject, match=NAME):
        ours(release, local=local, cache_limit="1gb")
    asked: list[Any] = []
    monkeypatch.setattr(presence, "sizes_of", lambda *given: asked.append(given))
    assert len(flat(ids(ours(release, local=local)))) == len(release.all_kept)
    assert not asked


def test_who_may_not_list_is_warned_and_trains(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuses(root: str, _: object) -> list[int | None]:
        raise LakeError("Google Cloud Storage refused access", root, "Ask")

    release: Release = build(lake)
    monkeypatch.setattr(presence, "sizes_of", refuses)
    with caplog.at_level(logging.WARNING, "smalti"):
        assert len(flat(ids(ours(release, local=str(tmp_path))))) == len(release.all_kept)
    assert f"{lake.parts_root()}: it was not looked up whether all shards are there" in caplog.text


@pytest.mark.parametrize("run", [1, 3, 4_900])
def test_however_the_names_are_cut_each_shard_is_found_by_few_requests(
    gcs_lake: Lake, gcs: Gcs, run: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = build(gcs_lake)
    root = gcs_lake.parts_root()
    shards = [
        (info.uri.removeprefix(f"{root}/"), info.size) for info in objects.list_objects(root) if ".mds" in info.uri
    ]
    assert len(shards) == sum(map(len, release.shards.values()))
    monkeypatch.setattr(presence, "_RUN", run)
    before = gcs.front.requests
    assert presence.fault_of_shards(root, shards[::-1]) is None
    assert gcs.front.requests - before == -(-len(shards) // run)
    for number, (name, size) in enumerate(shards):
        wrong = [*shards[:number], (name, size + 1), *shards[number + 1 :]]
        assert str(presence.fault_of_shards(root, wrong)).startswith(f"{root}/{name}: the shard has {size} bytes")
    absent = presence.fault_of_shards(root, [*shards, ("beta/00009-x/512/1.000/shard.00000.mds", 5)])
    assert isinstance(absent, MissingObject)
    assert absent.where == f"{root}/beta/00009-x/512/1.000/shard.00000.mds"
