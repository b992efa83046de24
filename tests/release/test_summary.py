"""What became of every picture, also of releases that are older than the record of rows."""

from __future__ import annotations

import json

import pytest

from smalti import objects
from smalti.lake import Lake
from smalti.reasons import SkipReason
from smalti.release.skips import canonical_json, compress, sha256
from smalti.release.summary import summary
from smalti.settings import ReleaseRun
from tests.release.conftest import build


def test_a_summary_names_the_copies_that_are_served_instead(filled: Lake, run: ReleaseRun) -> None:
    found = summary(build(filled, run).manifest)
    assert {each.id: each.duplicate_of for each in found.skipped[SkipReason.DUPLICATE]} == {
        "demo/0.jpg": "demo/large.jpg",
        "other/copy.jpg": "demo/1.jpg",
    }
    assert found.counts == {SkipReason.CAPTION_FAILED: 1, SkipReason.TEXT: 1, SkipReason.DUPLICATE: 2}
    few = summary(build(filled, run).manifest, most=1)
    assert few.counts == found.counts
    assert [each.id for each in few.skipped[SkipReason.DUPLICATE]] == ["demo/0.jpg"]


@pytest.mark.parametrize("there", [True, False])
def test_without_a_record_that_can_be_read_there_are_no_twins(filled: Lake, run: ReleaseRun, there: bool) -> None:
    uri = build(filled, run).manifest
    old = canonical_json({"version": 1, "dataset": "set", "shards": {}})
    if there:
        objects.create_bytes(filled.curation("set", sha256(old)), compress(old))
    path = objects.local_path(uri)
    assert path is not None
    manifest = json.loads(path.read_text())
    manifest["provenance"]["curation"] = f"../curations/{sha256(old)}.json.gz"
    del manifest["checksum"]
    path.write_text(json.dumps(manifest))
    found = summary(uri)
    assert found.counts[SkipReason.DUPLICATE] == 2
    assert {each.duplicate_of for each in found.skipped[SkipReason.DUPLICATE]} == {None}
