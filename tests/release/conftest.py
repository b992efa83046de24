"""A lake with committed parts of two sources, made once and copied for each test."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from smalti.curation.curate import curate
from smalti.lake import Lake
from smalti.release.assemble import AssembleReport, assemble
from smalti.settings import ReleaseRun
from smalti.shards.stage import shard
from tests.support.pictures import Row, picture, release_run, source_run, stored, write_table


def add(lake: Lake, rows: list[Row], name: str = "demo", batch: str = "b1") -> None:
    """A committed part of a batch."""
    run = source_run(name, batch)
    write_table(lake, run, rows)
    shard(lake, run)


def build(lake: Lake, run: ReleaseRun) -> AssembleReport:
    """Curate and assemble."""
    return assemble(lake, run.model_copy(update={"curation": curate(lake, run).curation}))


def fill(lake: Lake) -> None:
    """Committed parts of two sources, with one of each trouble."""
    add(
        lake,
        [
            *(Row(f"{n}.jpg", stored(picture(n)), caption=f"picture <{n}>") for n in range(4)),
            Row("large.jpg", stored(picture(0, 820, 820))),
            Row("text.jpg", stored(picture(20)), label="text"),
            Row("failed.jpg", stored(picture(21)), caption=None, status="failed", label=None),
            Row("broken.jpg", stored(picture(22))[:3000], size=(520, 520)),
            Row("small.png", stored(picture(23, 90, 90), "PNG")),
        ],
    )
    add(
        lake,
        [
            Row("copy.jpg", stored(picture(1, 500, 500))),
            Row("own.jpg", stored(picture(30, 700, 420)), licence=None),
        ],
        "other",
    )


@pytest.fixture(scope="session")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of such a lake; copy it."""
    folder = tmp_path_factory.mktemp("parts") / "lake"
    fill(Lake.at(str(folder)))
    return folder


@pytest.fixture
def filled(parts: Path, tmp_path: Path) -> Lake:
    """A copy of it."""
    shutil.copytree(parts, tmp_path / "lake")
    return Lake.at(str(tmp_path / "lake"))


@pytest.fixture
def run() -> ReleaseRun:
    """Both sources, each in a group of its own."""
    return release_run("demo:main", "other:extra", groups={"main": 3.0, "extra": 1.0}, description="Made for <tests>")
