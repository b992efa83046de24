"""Live versions that hold what was opted out are succeeded: at their places, once, whoever publishes at the same time or dies."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from smalti import objects
from smalti.errors import InputError
from smalti.lake import Lake
from smalti.release import verify as verify_module
from smalti.release.latest import (
    live_versions,
    move_latest,
    stored_latest,
)
from smalti.release.manifest import Manifest, read_manifest
from smalti.release.optouts import OptoutSnapshot
from smalti.release.publish import publish, rollback
from smalti.release.successors import Succeeded, succeed
from smalti.release.summary import samples_of, summary
from smalti.release.tombstones import read_tombstone
from smalti.release.verify import verify
from smalti.settings import ReleaseRun
from tests.conftest import snapshot
from tests.release.conftest import add, build
from tests.release.test_verify import kept_ids
from tests.support.pictures import Row, picture, release_run, stored

WHY = "opted out"


@pytest.fixture(autouse=True)
def without_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing streaming takes many seconds, and the loader has tests of its own."""
    monkeypatch.setattr(verify_module, "read_ids", kept_ids)


def make(lake: Lake, run: ReleaseRun, *, served: bool = True) -> Manifest:
    """A version that was verified and, unless it is not to be served, published."""
    run = run.model_copy(update={"manifest": build(lake, run).manifest})
    verify(lake, run)
    if served:
        publish(lake, run)
    return read_manifest(str(run.manifest))


def opt_out(lake: Lake, *ids: str, position: int = 1) -> None:
    """A snapshot, as the ledger would write it, of these samples wherever they stand."""
    shards: dict[str, list[int]] = {}
    for uri in [each.uri for each in objects.list_objects(lake.releases()) if each.uri.endswith("/manifest.json")]:
        for name, shard, index, _ in samples_of(uri, read_manifest(uri)):
            if name in ids and index not in shards.setdefault(shard, []):
                shards[shard].append(index)
    places = {shard: tuple(sorted(each)) for shard, each in shards.items() if each}
    found = OptoutSnapshot(position=position, shards=places, ids=tuple(sorted(ids)))
    objects.create_same(lake.optout_snapshot(position), found.encode())


def served(lake: Lake, version: str) -> set[str]:
    return set(summary(lake.manifest("set", version)).kept_ids)


@pytest.fixture(scope="module")
def made(parts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """v1 and v2 were served one after the other, both with trees, and an ablation of v2 is kept."""
    folder = tmp_path_factory.mktemp("made") / "lake"
    shutil.copytree(parts, folder)
    lake = Lake.at(str(folder))
    run = trees()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify_module, "read_ids", kept_ids)
        make(lake, run)
        add(lake, [Row("later.jpg", stored(picture(40)))], batch="b2")
        make(lake, run)
        make(lake, run.model_copy(update={"without": ("text",)}))
    return folder


def trees() -> ReleaseRun:
    return release_run("demo:main", "other:extra", groups={"main": 3.0, "extra": 1.0}, publish="tree")


@pytest.fixture
def lake(made: Path, tmp_path: Path) -> Lake:
    shutil.copytree(made, tmp_path / "made")
    return Lake.at(str(tmp_path / "made"))


def test_live_trees_are_succeeded_each_at_its_place(lake: Lake) -> None:
    old = {version: read_manifest(lake.manifest("set", version)) for version in live_versions(lake, "set")}
    before = {version: served(lake, version) for version in old}
    assert list(old) == ["v2", "v1", "v2-without-text"]
    opt_out(lake, "demo/3.jpg")

    done = succeed(lake, why=WHY)

    assert done == (
        Succeeded("set", "v2", "v3"),
        Succeeded("set", "v1", "v4"),
        Succeeded("set", "v2-without-text", "v3-without-text"),
    )
    latest = stored_latest(lake, "set")
    assert latest.published() == ("v3", "v4")
    assert [(each.version, each.base) for each in latest.ablations] == [("v3-without-text", "v3")]
    assert latest.collected == ("v1", "v2", "v2-without-text")
    for each in done:
        new = read_manifest(lake.manifest("set", str(each.new)))
        was = old[each.old]
        assert new.succeeds is not None
        assert (new.succeeds.version, new.succeeds.digest) == (was.version, was.digest)
        assert (new.parent, new.optouts) == ("v3" if new.without else each.old, 1)
        assert (new.settings, new.sources[0].parts, new.without) == (was.settings, was.sources[0].parts, was.without)
        assert served(lake, new.version) == before[each.old] - {"demo/3.jpg"} != before[each.old]
        stone = read_tombstone(lake, "set", each.old)
        assert stone is not None
        assert (stone.why, stone.successor) == (WHY, each.new)
        tree = json.loads(objects.read_bytes(f"{lake.tree('set', new.version)}/tree.json"))
        assert sum(bucket["samples"] for bucket in tree["buckets"].values()) == new.accounting.kept
    content = snapshot(lake.root)
    assert succeed(lake, why=WHY) == ()
    assert snapshot(lake.root) == content, "a second time nothing changes"


def test_what_was_succeeded_is_not_served_again(lake: Lake) -> None:
    opt_out(lake, "demo/3.jpg")
    succeed(lake, why=WHY)
    run = trees().model_copy(update={"manifest": lake.manifest("set", "v1")})
    with pytest.raises(InputError, match="v1 of set was succeeded by v4: opted out"):
        publish(lake, run)
    with pytest.raises(InputError, match="v1 of set was succeeded by v4: opted out"):
        rollback(lake, "set", "v1")
    assert rollback(lake, "set", "v4").previous == "v3"
    with pytest.raises(InputError, match="was succeeded by v4"):
        move_latest(lake, "set", "v1", read_manifest(lake.manifest("set", "v1")).digest)
