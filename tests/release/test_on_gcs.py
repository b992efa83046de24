"""The stages from shard to publish on a GCS: the same release as on disk, byte for byte where bytes are promised."""

from __future__ import annotations

from pathlib import Path

import pytest

from smalti import objects
from smalti.lake import Lake
from smalti.release import verify as verify_module
from smalti.release.latest import read_latest
from smalti.release.publish import publish
from smalti.release.verify import verify
from smalti.settings import ReleaseRun
from tests.release.conftest import build, fill
from tests.release.test_verify import kept_ids


def test_a_release_on_gcs_is_the_one_on_disk(
    gcs_lake: Lake, parts: Path, run: ReleaseRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify_module, "read_ids", kept_ids)
    run = run.model_copy(update={"dataset": run.dataset.model_copy(update={"publish": "tree"})})
    fill(gcs_lake)
    report = build(gcs_lake, run)
    named = run.model_copy(update={"manifest": report.manifest})
    assert verify(gcs_lake, named).faults == ()
    published = publish(gcs_lake, named)
    latest = read_latest(gcs_lake, "set")
    assert latest is not None
    assert (latest.version, latest.digest) == ("v1", report.digest)
    assert published.tree is not None
    assert objects.exists(f"{published.tree}/tree.json")
    before = {each.uri: each for each in objects.list_objects(gcs_lake.root)}
    assert build(gcs_lake, run).manifest == report.manifest
    assert publish(gcs_lake, named).previous == "v1"
    assert {each.uri: each for each in objects.list_objects(gcs_lake.root)} == before
    on_disk = Lake.at(str(parts))
    names = [each.uri.removeprefix(on_disk.root) for each in objects.list_objects(on_disk.parts_root())]
    for name in names:
        if not name.endswith("part.json"):  # its provenance differs
            assert objects.read_bytes(gcs_lake.root + name) == objects.read_bytes(on_disk.root + name)
