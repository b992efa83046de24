from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from smalti import objects
from smalti.errors import ConflictError, CorruptError, MissingObject
from smalti.lake import Lake
from smalti.objects import create_bytes, join_uri, local_path, read_bytes
from smalti.release import materialize as module
from smalti.release import tree_claims
from smalti.release.materialize import materialize
from smalti.shards import mds
from tests.conftest import snapshot
from tests.loader.releases import SHARDS, Release, build, kept, picture, skip_share

SKIPS = skip_share(0.2, shards=["alpha/00001-aaaaaaaaaaaa/512/1.000/1"], streams=["512/0.778"])


def tree_ids(tree: str) -> dict[str, list[list[str]]]:
    """Bucket -> ids of each shard, read from the bytes; every index entry is checked against its shard."""
    found: dict[str, list[list[str]]] = {}
    for bucket in ("512/0.778", "512/1.000", "1024/1.000", "1024/1.286"):
        try:
            entries = json.loads(read_bytes(f"{tree}/{bucket}/index.json"))["shards"]
        except MissingObject:
            continue
        found[bucket] = []
        for number, entry in enumerate(entries):
            data = read_bytes(f"{tree}/{bucket}/shard.{number:05d}.mds")
            assert entry == mds.shard_entry(f"shard.{number:05d}.mds", data)
            columns, raw = mds.read_shard(data)
            samples = [mds.decode_sample(columns, each) for each in raw]
            assert all(sample["image"] == picture(str(sample["id"])) for sample in samples)
            found[bucket].append([str(sample["id"]) for sample in samples])
    return found


def expected_ids(release: Release) -> dict[str, list[list[str]]]:
    """Bucket -> ids of each shard that keeps any, groups one after the other."""
    found: dict[str, list[list[str]]] = {}
    for stream in release.manifest.streams:
        shards = [ids for ids in release.shards[stream.name] if ids]
        if shards:
            found.setdefault(f"{stream.tier}/{stream.ar}", []).extend(shards)
    return found


def path_of(uri: str) -> Path:
    path = local_path(uri)
    assert path is not None
    return path


@pytest.mark.parametrize("groups", [{}, {"alpha": "photos"}])
def test_tree_holds_the_kept_samples_in_the_shards_of_the_parts(lake: Lake, groups: dict[str, str]) -> None:
    release = build(lake, skips=SKIPS, groups=groups)
    tree = lake.tree("demo", "v1")

    report = materialize(release.uri, tree)

    assert tree_ids(tree) == expected_ids(release)
    assert "512/0.778" not in tree_ids(tree)
    assert (report.rows_in, report.rows_out) == (118, len(release.all_kept))
    assert sum(report.dropped.values()) == len(release.skipped)
    assert report.shards == sum(map(len, expected_ids(release).values()))


def test_a_shard_that_loses_nothing_keeps_its_bytes(lake: Lake) -> None:
    release = build(lake, skips=kept)
    tree = lake.tree("demo", "v1")

    report = materialize(release.uri, tree)

    assert report.rewritten == 0
    part = lake.bucket_index("alpha", "00002-bbbbbbbbbbbb", 1024, "1.000").removesuffix("/index.json")
    for number in (0, 1):
        name = f"shard.{number:05d}.mds"
        assert read_bytes(f"{tree}/1024/1.000/{name}") == read_bytes(f"{part}/{name}")


def test_a_second_run_writes_nothing_and_reports_the_same(any_lake: Lake) -> None:
    release = build(any_lake, skips=SKIPS)
    tree = any_lake.tree("demo", "v1")
    first = materialize(release.uri, tree)
    before = snapshot(any_lake.root)

    second = materialize(release.uri, tree)

    assert snapshot(any_lake.root) == before
    assert second.new == 0 < first.new
    assert second.model_copy(update={"new": first.new, "new_bytes": first.new_bytes, "seconds": first.seconds}) == first


class Killed(BaseException):
    pass


def dies_after(monkeypatch: pytest.MonkeyPatch, writes: int) -> None:
    """Let this many objects be written, and no more."""
    left = iter(range(writes))

    def counted(function: Callable[..., bool]) -> Callable[..., bool]:
        def call(*args: Any) -> bool:
            if next(left, None) is None:
                raise Killed
            return function(*args)

        return call

    same = counted(objects.create_same)
    monkeypatch.setattr(module, "create_same", same)
    monkeypatch.setattr(tree_claims, "create_same", same)
    monkeypatch.setattr(module, "copy_object", counted(objects.copy_object))


def test_killed_before_any_object_it_ends_in_the_same_bytes(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    release = build(lake, skips=SKIPS)
    whole = join_uri(lake.root, "whole")
    materialize(release.uri, whole)
    objects_of_a_tree = len(snapshot(whole))
    assert objects_of_a_tree > 10

    for writes in range(objects_of_a_tree):
        tree = join_uri(lake.root, f"tree{writes}")
        with monkeypatch.context() as patch:
            dies_after(patch, writes)
            with pytest.raises(Killed):
                materialize(release.uri, tree)
        assert len(snapshot(tree)) == writes
        assert "/tree.json" not in snapshot(tree)

        materialize(release.uri, tree)
        assert snapshot(tree) == snapshot(whole)


def test_killed_on_gcs_it_ends_in_the_same_bytes(gcs_lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    release = build(gcs_lake, skips=skip_share(0.02))
    whole, tree = join_uri(gcs_lake.root, "whole"), join_uri(gcs_lake.root, "again")
    assert materialize(release.uri, whole).rewritten < 4  # most are copied inside the store
    with monkeypatch.context() as patch:
        dies_after(patch, 8)
        with pytest.raises(Killed):
            materialize(release.uri, tree)

    materialize(release.uri, tree)

    assert snapshot(tree) == snapshot(whole)


def test_tiers_can_be_added_one_by_one(lake: Lake) -> None:
    release = build(lake, skips=SKIPS)
    tree = join_uri(lake.root, "tree")

    small = materialize(release.uri, tree, tiers=[512])
    assert set(tree_ids(tree)) == {"512/1.000"}
    assert small.rows_in == 81
    large = materialize(release.uri, tree, tiers=[1024])

    assert tree_ids(tree) == expected_ids(release)
    assert small.rows_out + large.rows_out == len(release.all_kept)


def test_another_release_never_mixes_with_the_tree(lake: Lake) -> None:
    first = build(lake, skips=SKIPS)
    second = build(lake, version="v2", skips=skip_share(0.1, seed=1))
    tree = join_uri(lake.root, "tree")
    materialize(first.uri, tree)
    before = snapshot(tree)

    with pytest.raises(ConflictError, match=r"does not hold a tree of demo v2.*another directory"):
        materialize(second.uri, tree)
    assert snapshot(tree) == before


@pytest.mark.parametrize("skips", [SKIPS, kept])
def test_a_damaged_shard_is_named_and_not_handed_on(lake: Lake, skips: Any) -> None:
    release = build(lake, skips=skips)
    shard = path_of(lake.shard("alpha", "00002-bbbbbbbbbbbb", 1024, "1.000", 1))
    os.chmod(shard, 0o644)
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(bytes(data))
    tree = join_uri(lake.root, "tree")

    with pytest.raises(CorruptError, match=r"00002-bbbbbbbbbbbb/1024/1\.000/shard\.00001\.mds: .*sha256"):
        materialize(release.uri, tree)
    assert not [name for name in snapshot(tree) if name.startswith(("/tree", "/1024/1.000/index"))]


def test_a_missing_shard_is_named(lake: Lake) -> None:
    release = build(lake)
    path_of(lake.shard("beta", "00001-cccccccccccc", 512, "0.778", 0)).unlink()
    with pytest.raises(MissingObject, match=r"00001-cccccccccccc/512/0\.778/shard\.00000\.mds"):
        materialize(release.uri, lake.tree("demo", "v1"))


def test_a_file_of_someone_else_in_the_way_is_not_overwritten(lake: Lake) -> None:
    release = build(lake)
    target = f"{lake.tree('demo', 'v1')}/1024/1.000/shard.00001.mds"
    create_bytes(target, b"something else")
    with pytest.raises(ConflictError, match=r"shard\.00001\.mds"):
        materialize(release.uri, lake.tree("demo", "v1"))
    assert read_bytes(target) == b"something else"


def test_an_index_that_lists_other_shards_is_refused(lake: Lake) -> None:
    release = build(lake)
    create_bytes(f"{lake.tree('demo', 'v1')}/1024/1.000/index.json", b'{"version": 2, "shards": []}')
    with pytest.raises(CorruptError, match=r"1024/1\.000/index\.json"):
        materialize(release.uri, lake.tree("demo", "v1"))


def test_layout_used_here_has_several_sources_parts_and_shards_a_stream() -> None:
    assert len(SHARDS) == 2
    assert {len(sizes) for parts in SHARDS.values() for p in parts.values() for sizes in p.values()} == {1, 2, 3}
