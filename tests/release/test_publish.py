"""Publishing: LATEST moves to what was verified, once, and back when somebody asks for it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from smalti import objects
from smalti.errors import CorruptError, InputError
from smalti.lake import Lake
from smalti.release import verify as verify_module
from smalti.release.latest import Latest, read_latest
from smalti.release.manifest import Manifest, read_manifest
from smalti.release.publish import publish, rollback
from smalti.release.verify import verify
from smalti.settings import ReleaseRun
from tests.conftest import snapshot
from tests.release.conftest import add, build
from tests.release.test_verify import kept_ids
from tests.support.pictures import Row, picture, release_run, stored


@pytest.fixture(scope="module")
def two(parts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake with two verified versions; copy it."""
    folder = tmp_path_factory.mktemp("two") / "lake"
    shutil.copytree(parts, folder)
    lake, run = Lake.at(str(folder)), release_run("demo:main", "other:extra")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify_module, "read_ids", kept_ids)
        for batch in ("", "b2"):
            if batch:
                add(lake, [Row("later.jpg", stored(picture(40)))], batch=batch)
            verify(lake, run.model_copy(update={"manifest": build(lake, run).manifest}))
    return folder


@pytest.fixture
def lake(two: Path, tmp_path: Path) -> Lake:
    shutil.copytree(two, tmp_path / "lake")
    return Lake.at(str(tmp_path / "lake"))


def of(lake: Lake, version: str, run: ReleaseRun) -> ReleaseRun:
    return run.model_copy(update={"manifest": lake.manifest("set", version)})


def latest(lake: Lake) -> Latest:
    found = read_latest(lake, "set")
    assert found is not None
    return found


def test_latest_moves_and_remembers_what_it_pointed_to(lake: Lake, run: ReleaseRun) -> None:
    assert read_latest(lake, "set") is None
    first = publish(lake, of(lake, "v1", run))
    assert (first.version, first.previous, first.tree) == ("v1", None, None)
    second = publish(lake, of(lake, "v2", run))
    assert (second.version, second.previous) == ("v2", "v1")
    now = latest(lake)
    assert (now.version, now.digest) == ("v2", read_manifest(lake.manifest("set", "v2")).digest)
    assert [past.version for past in now.history] == ["v1"]
    assert json.loads(objects.read_bytes(lake.latest("set")))["version"] == "v2"


def test_publishing_the_same_version_again_changes_nothing(lake: Lake, run: ReleaseRun) -> None:
    publish(lake, of(lake, "v1", run))
    before = {each.uri: each for each in objects.list_objects(lake.root)}
    again = publish(lake, of(lake, "v1", run))
    assert (again.version, again.previous, again.warnings) == ("v1", "v1", ())
    assert {each.uri: each for each in objects.list_objects(lake.root)} == before


def test_a_lost_race_for_latest_is_run_again(lake: Lake, run: ReleaseRun, monkeypatch: pytest.MonkeyPatch) -> None:
    swap = objects.swap_bytes

    def somebody_is_faster(uri: str, data: bytes, expected: str | None) -> bool:
        monkeypatch.setattr(objects, "swap_bytes", swap)
        publish(lake, of(lake, "v1", run))
        return swap(uri, data, expected)

    monkeypatch.setattr(objects, "swap_bytes", somebody_is_faster)
    publish(lake, of(lake, "v2", run))
    assert latest(lake).version == "v2"
    assert [past.version for past in latest(lake).history] == ["v1"]


def test_rollback_and_forward_keep_every_version_in_the_history(lake: Lake, run: ReleaseRun) -> None:
    for version in ("v1", "v2"):
        publish(lake, of(lake, version, run))
    assert rollback(lake, "set", "v1").previous == "v2"
    assert (latest(lake).version, [past.version for past in latest(lake).history]) == ("v1", ["v2"])
    assert rollback(lake, "set", "v1").previous == "v1"
    forward = publish(lake, of(lake, "v2", run))
    assert forward.warnings == ("v2 was published before: LATEST went back to it from v1",)
    assert (latest(lake).version, [past.version for past in latest(lake).history]) == ("v2", ["v1"])


def test_only_what_was_published_can_be_rolled_back_to(lake: Lake, run: ReleaseRun) -> None:
    with pytest.raises(InputError, match="nothing was published yet"):
        rollback(lake, "set", "v1")
    publish(lake, of(lake, "v1", run))
    with pytest.raises(InputError, match=r"version v2 of set was never published\. Use one of: v1\."):
        rollback(lake, "set", "v2")
    assert latest(lake).version == "v1"


def test_what_was_not_verified_is_not_published(lake: Lake, run: ReleaseRun) -> None:
    path = objects.local_path(lake.verified("set", "v1"))
    assert path is not None
    path.unlink()
    with pytest.raises(InputError, match="the release has not been verified"):
        publish(lake, of(lake, "v1", run))
    assert read_latest(lake, "set") is None


def test_a_manifest_that_does_not_balance_or_has_changed_is_not_published(lake: Lake, run: ReleaseRun) -> None:
    publish(lake, of(lake, "v1", run))
    path = objects.local_path(lake.manifest("set", "v2"))
    assert path is not None
    said = json.loads(path.read_bytes())
    said["accounting"]["kept"] += 1
    path.write_bytes(Manifest.model_validate(said).encode())
    with pytest.raises(CorruptError, match="the accounting does not balance"):
        publish(lake, of(lake, "v2", run))
    said["accounting"]["kept"] -= 1
    said["warnings"] = ["all is well"]
    path.write_bytes(Manifest.model_validate(said).encode())
    with pytest.raises(CorruptError, match="the manifest has changed since it was verified"):
        publish(lake, of(lake, "v2", run))
    assert latest(lake).version == "v1"


def test_what_is_no_version_of_the_dataset_is_refused(lake: Lake, run: ReleaseRun) -> None:
    with pytest.raises(InputError, match="no manifest is named"):
        publish(lake, run)
    with pytest.raises(InputError, match="there is no manifest"):
        publish(lake, of(lake, "v7", run))
    other = release_run("demo", name="another")
    with pytest.raises(InputError, match="this is not a version of another in this lake"):
        publish(lake, of(lake, "v1", other))


def test_a_tree_is_written_before_latest_moves_and_only_once(
    lake: Lake, run: ReleaseRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify_module, "read_ids", kept_ids)
    wants = run.model_copy(update={"dataset": run.dataset.model_copy(update={"publish": "tree"})})
    report = build(lake, wants)
    named = wants.model_copy(update={"manifest": report.manifest})
    verify(lake, named)
    with monkeypatch.context() as broken:
        broken.setattr("smalti.release.publish.tree_faults", lambda *_: ["tree: it is broken"])
        with pytest.raises(CorruptError, match="tree: it is broken"):
            publish(lake, named)
    assert read_latest(lake, "set") is None
    published = publish(lake, named)
    assert published.tree == lake.tree("set", report.version)
    listing = json.loads(objects.read_bytes(f"{published.tree}/tree.json"))
    assert sum(bucket["samples"] for bucket in listing["buckets"].values()) == report.kept
    before = {each.uri: each for each in objects.list_objects(lake.root)}
    assert publish(lake, named).tree == published.tree
    assert {each.uri: each for each in objects.list_objects(lake.root)} == before
    whole = snapshot(lake.root)
    shard = objects.local_path(next(uri for uri in sorted(before) if "/tree/" in uri and uri.endswith(".mds")))
    assert shard is not None
    shard.unlink()
    publish(lake, named)
    assert snapshot(lake.root) == whole
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(CorruptError, match=rf"{shard.name}: the shard has \d+ bytes, its index says"):
        publish(lake, named)
