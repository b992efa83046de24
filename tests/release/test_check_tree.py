"""A published tree is exactly what its release has there: whatever else is in it, or is not, is named."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from smalti.lake import Lake
from smalti.release import verify as verify_module
from smalti.release.materialize import materialize
from smalti.release.publish import publish
from smalti.release.verify import verify, verify_manifest
from tests.conftest import snapshot
from tests.release.conftest import build
from tests.release.test_verify import kept_ids, path_of
from tests.support.pictures import release_run


@pytest.fixture(scope="module")
def published(parts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake with a published tree; copy it."""
    folder = tmp_path_factory.mktemp("published") / "lake"
    shutil.copytree(parts, folder)
    lake, run = Lake.at(str(folder)), release_run("demo:main", "other:extra", publish="tree")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify_module, "read_ids", kept_ids)
        named = run.model_copy(update={"manifest": build(lake, run).manifest})
        verify(lake, named)
        publish(lake, named)
    return folder


@pytest.fixture
def lake(published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    monkeypatch.setattr(verify_module, "read_ids", kept_ids)
    shutil.copytree(published, tmp_path / "lake")
    return Lake.at(str(tmp_path / "lake"))


def replaced(path: Path) -> None:
    """An index of the same shards that says something else of one."""
    said = json.loads(path.read_text())
    said["shards"][0]["size_limit"] = 1
    path.write_text(json.dumps(said, sort_keys=True))


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def beside_it(path: Path) -> None:
    shutil.copyfile(path, path.with_name("shard.00007.mds"))


HARM: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "no tree.json": ("tree.json", Path.unlink, r"tree/tree\.json: there is no such object"),
    "a damaged tree.json": ("tree.json", flipped, r"tree/tree\.json: it is not what the release has there: remove it"),
    "no release.json": ("release.json", Path.unlink, r"tree/release\.json: there is no such object"),
    "a damaged release.json": ("release.json", flipped, r"tree/release\.json: it is not what the release has there"),
    "no tree at all": (".", shutil.rmtree, r"tree: it is gone .*publishing the version again writes it"),
    "another index": ("512/1.000/index.json", replaced, r"tree/512/1\.000/index\.json: it is not what the release has"),
    "no index": ("512/1.000/index.json", Path.unlink, r"tree/512/1\.000/index\.json: there is no such object"),
    "a damaged shard": ("512/1.000/shard.00000.mds", flipped, r"tree/512/1\.000/shard\.00000\.mds: it is not what"),
    "no shard": ("512/1.000/shard.00000.mds", Path.unlink, r"tree/512/1\.000/shard\.00000\.mds: there is no such"),
    "a stray shard": ("512/1.000/shard.00000.mds", beside_it, r"tree/512/1\.000/shard\.00007\.mds: nothing of the release"),
    "a stray bucket": (
        "512/1.000",
        lambda path: shutil.copytree(path, path.with_name("0.500")),
        r"tree/512/0\.500: nothing of the release belongs there: remove it \(file:///.*/tree/512/0\.500\)",
    ),
    "a stray tier": ("512", lambda path: shutil.copytree(path, path.with_name("4096")), r"tree/4096: nothing of the rel"),
    "an empty directory": ("512/1.000", lambda path: (path / "new").mkdir(), r"tree/512/1\.000/new: nothing of the rele"),
}  # fmt: skip


@pytest.mark.parametrize("harm", HARM)
def test_harm_to_a_tree_is_named_and_publishing_again_mends_it(lake: Lake, harm: str) -> None:
    name, do, line = HARM[harm]
    manifest = lake.manifest("set", "v1")
    assert verify_manifest(manifest).faults == ()
    before = snapshot(lake.root)
    do(path_of(lake.tree("set", "v1")) / name)

    (fault,) = verify_manifest(manifest).faults

    assert re.match(line, fault), fault
    if "remove it" in fault:
        place = path_of(fault.rpartition("(")[2].partition(")")[0])
        place.unlink() if place.is_file() else shutil.rmtree(place)
    publish(lake, release_run("demo:main", "other:extra", publish="tree").model_copy(update={"manifest": manifest}))
    assert snapshot(lake.root) == before


def test_a_tree_that_publish_has_yet_to_finish_is_no_fault(lake: Lake) -> None:
    path_of(lake.latest("set")).unlink()
    path_of(lake.tree("set", "v1")).joinpath("tree.json").unlink()
    assert verify_manifest(lake.manifest("set", "v1")).faults == ()


def test_a_tree_of_some_tiers_is_looked_at_too(lake: Lake) -> None:
    path_of(lake.latest("set")).unlink()
    shutil.rmtree(path_of(lake.tree("set", "v1")))
    materialize(lake.manifest("set", "v1"), lake.tree("set", "v1"), tiers=[512])
    assert verify_manifest(lake.manifest("set", "v1")).faults == ()
    flipped(path_of(lake.tree("set", "v1")) / "512/1.000/shard.00000.mds")
    (fault,) = verify_manifest(lake.manifest("set", "v1")).faults
    assert fault.startswith("tree/512/1.000/shard.00000.mds: it is not what the release has there")
