"""A lake with a published release of real pictures, made once and copied."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from smalti.lake import Lake
from smalti.shards.stage import shard
from tests.maintenance.conftest import release
from tests.support.pictures import Row, picture, release_run, source_run, stored, write_table

RUN = release_run("demo:main", "other:extra", reason_sets=(("text",),))


def deliver(lake: Lake, source: str, rows: list[Row]) -> None:
    """A committed part with several samples a shard."""
    run = source_run(source, shard_bytes=1 << 20)
    write_table(lake, run, rows)
    shard(lake, run)


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sources, version v1: `other/copy.jpg` is `demo/1.jpg` at another size, which the release leaves out as a copy."""
    folder = tmp_path_factory.mktemp("published") / "lake"
    lake = Lake.at(str(folder))
    rows = [Row(f"{n}.jpg", stored(picture(n)), caption=f"picture {n}") for n in range(6)]
    deliver(lake, "demo", [*rows, Row("text.jpg", stored(picture(20)), label="text")])
    deliver(
        lake, "other", [Row("copy.jpg", stored(picture(1, 500, 500))), Row("own.jpg", stored(picture(30, 700, 420)))]
    )
    release(lake, RUN)
    return folder


@pytest.fixture
def released(published: Path, tmp_path: Path) -> Lake:
    """A copy of it."""
    shutil.copytree(published, tmp_path / "released")
    return Lake.at(str(tmp_path / "released"))
