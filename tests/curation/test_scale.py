"""The benchmark's fabricated lake, small: what was planted is what is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.dedup import check, make_lake, release_run
from smalti.curation.curate import curate


@pytest.mark.parametrize("distance", [0, 2])
def test_no_planted_copy_is_missed_and_nothing_else_is_merged(tmp_path: Path, distance: int) -> None:
    total = 100_000
    lake = make_lake(tmp_path, total, distance)
    report = curate(lake, release_run(distance))
    assert check(lake, report.curation, total, distance) == []
    assert report.dropped["duplicate"] > 0.04 * total
    undone = curate(lake, release_run(4)) if distance == 0 else curate(lake, release_run(0))
    assert (check(lake, undone.curation, total, distance) == []) == (
        distance == 0
    )  # the check sees copies that are missed
