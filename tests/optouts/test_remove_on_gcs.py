"""An erasure from the first look to the second receipt in a bucket that keeps what was replaced and deleted.

It takes minutes. What it adds to tests/optouts/test_remove.py (on disk) and tests/optouts/test_generations.py (a bucket) is that all of it is one run.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from smalti import objects
from smalti.lake import Lake
from smalti.optouts.erase import erase
from smalti.optouts.receipt_erase import read_erase_receipt
from smalti.optouts.remove import remove
from smalti.optouts.status import State, standings
from tests.conftest import snapshot
from tests.optouts import line
from tests.optouts.line import ERASED, pictures
from tests.optouts.searching import ALLOWED, Search
from tests.support.gcs import Gcs

OLD = "generation-"


def downloaded(lake: Lake, folder: Path) -> Path:
    """Everything that the bucket holds below the lake, and with their number in front the generations that are no longer current."""
    held = {
        info.uri.removeprefix(f"{lake.root}/"): objects.read_bytes(info.uri) for info in objects.list_objects(lake.root)
    }
    for each in objects.list_generations(lake.root):
        data = objects.read_generation(each.uri, each.generation)
        assert data is not None
        held[f"{OLD}{each.generation}/{each.uri.removeprefix(f'{lake.root}/')}"] = data
    for name, data in held.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def found_in(lake: Lake, folder: Path) -> dict[str, set[str]]:
    found = Search(downloaded(lake, folder), ERASED, {pictures()[name] for name in ERASED}).everything()
    named = {path: re.sub(rf"^{OLD}\d+/", "", path) for path in found}
    return {path: what for path, what in found.items() if not ALLOWED.fullmatch(named[path])}


@pytest.mark.prove
def test_what_is_erased_is_found_nowhere_in_a_bucket(
    gcs: Gcs, gcs_lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = gcs_lake
    gcs.front.keeps[lake.root.split("/")[2]] = {"noncurrent"}
    line.make(f"{gcs.new_bucket()}/sources", lake, monkeypatch)
    run = line.ask(lake)
    line.exclude(lake, run)
    erase(lake, run)
    before = found_in(lake, tmp_path / "before")
    assert {path.split("/")[0] for path in before if not path.startswith(OLD)} == {
        "gc", "optouts", "parts", "progress", "releases", "runs", "tables",
    }  # fmt: skip

    report = remove(lake, run)

    assert (report.removed, report.rows) == (True, len(ERASED))
    assert found_in(lake, tmp_path / "after") == {}
    receipt = read_erase_receipt(lake, run.request)
    assert receipt is not None
    assert receipt.noncurrent > 0
    assert standings(lake, [run.request])[0].state == State.PROVEN
    bytes_then = snapshot(lake.root)
    assert remove(lake, run).receipt == report.receipt
    assert snapshot(lake.root) == bytes_then
