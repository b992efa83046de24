"""One byte of any object of a release is changed: verify names that object."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from smalti import objects
from smalti.lake import Lake
from smalti.reasons import SkipReason
from smalti.release import verify as verify_module
from smalti.release.publish import publish
from smalti.release.verify import verify, verify_manifest
from tests.release.conftest import build
from tests.release.test_verify import kept_ids, path_of
from tests.support.pictures import release_run

NOT_COVERED = (
    (
        r"releases/set/(v1/streams|skips)/.*\.json\.gz",
        range(4, 10),
        "time, level and system of a gzip header: the content is named, since its gzip differs from one zlib to the next",
    ),
)
"""Name, bytes, and why verify says nothing of them."""

PLACES = {"the first": 0.0, "the sixth": 5, "a third": 1 / 3, "two thirds": 2 / 3, "the last": 1.0}
"""Byte that is changed: its number, or as a share of the object."""


@pytest.fixture(scope="module")
def lake(parts: Path, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A published release with a reason set, a tree, and a cluster that a person may decide about."""
    folder = tmp_path_factory.mktemp("bytes") / "lake"
    shutil.copytree(parts, folder)
    lake = Lake.at(str(folder))
    run = release_run("demo:main", "other:extra", publish="tree", reason_sets=((SkipReason.TEXT,),))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify_module, "read_ids", kept_ids)
        named = run.model_copy(update={"manifest": build(lake, run).manifest})
        verify(lake, named)
        publish(lake, named)
    return lake


def objects_of(lake: Lake) -> list[str]:
    """Everything below the version's folder, its parts, its curation and its skip files, relative to the lake."""
    places = (lake.parts_root(), lake.release("set", "v1"), lake.curations("set"), lake.skips("set"))
    return [info.uri[len(lake.root) + 1 :] for place in places for info in objects.list_objects(place)]


@pytest.mark.parametrize("place", PLACES)
def test_a_changed_byte_of_any_object_is_named(lake: Lake, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_module, "read_ids", kept_ids)
    names = objects_of(lake)
    assert {name.rpartition(".")[2] for name in names} == {"mds", "json", "gz", "parquet", "html", "yaml"}
    said: dict[str, tuple[str, ...]] = {}
    for name in names:
        path = path_of(f"{lake.root}/{name}")
        whole = path.read_bytes()
        at = int(where) if (where := PLACES[place]) > 1 else int(where * (len(whole) - 1))
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        faults = verify_manifest(lake.manifest("set", "v1")).faults
        path.write_bytes(whole)
        short = name.removeprefix("releases/set/v1/").removeprefix("parts/")
        named = any(short in fault for fault in faults)
        if named == any(re.fullmatch(pattern, name) and at in exempt for pattern, exempt, _ in NOT_COVERED):
            said[name] = faults
    assert said == {}
    assert verify_manifest(lake.manifest("set", "v1")).faults == ()
