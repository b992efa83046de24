"""A lake with a published release of real pictures, made once and copied."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from smalti.lake import Lake
from tests.maintenance.conftest import release
from tests.release.conftest import add
from tests.support.pictures import Row, picture, release_run, stored

RUN = release_run("demo:main", "other:extra", reason_sets=(("text",),))


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sources, version v1: `other/copy.jpg` is `demo/1.jpg` at another size, which the release leaves out as a copy."""
    folder = tmp_path_factory.mktemp("published") / "lake"
    lake = Lake.at(str(folder))
    rows = [Row(f"{n}.jpg", stored(picture(n)), caption=f"picture {n}") for n in range(6)]
    add(lake, [*rows, Row("text.jpg", stored(picture(20)), label="text")])
    add(lake, [Row("copy.jpg", stored(picture(1, 500, 500))), Row("own.jpg", stored(picture(30, 700, 420)))], "other")
    release(lake, RUN)
    return folder


@pytest.fixture
def released(published: Path, tmp_path: Path) -> Lake:
    """A copy of it."""
    shutil.copytree(published, tmp_path / "released")
    return Lake.at(str(tmp_path / "released"))
