"""A lake with a published release of real pictures, made once and copied."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from smalti.lake import Lake
from smalti.settings import SourceRun
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


RELEASE = release_run("demo:main", "other:extra")
DEMO = source_run("demo", shard_bytes=300_000)
OTHER = source_run("other", extra_captions=("source",), shard_bytes=300_000)


def deliver_run(lake: Lake, run: SourceRun, rows: list[Row]) -> None:
    """A committed part with as many samples a shard as the run says."""
    write_table(lake, run, rows)
    shard(lake, run)


@pytest.fixture(scope="session")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`demo`: shards 0-3, 4-7 and 8-9 of b1, which could not decode a row, and 10-11 of b2; `other`: a copy of 1, with an extra caption."""
    folder = tmp_path_factory.mktemp("sharded") / "lake"
    lake = Lake.at(str(folder))
    rows = [Row(f"{n}.jpg", stored(picture(n)), caption=f"picture {n}") for n in range(10)]
    deliver_run(lake, DEMO, [*rows, Row("broken.jpg", stored(picture(22))[:3000], size=(520, 520))])
    late = [Row(f"{n}.jpg", stored(picture(n)), label="text" if n == 11 else "visual") for n in (10, 11)]
    deliver_run(lake, DEMO.model_copy(update={"batch": "b2"}), late)
    copies = [
        Row("copy.jpg", stored(picture(1, 500, 500)), source_caption="a copy"),
        Row("own.jpg", stored(picture(30, 520, 520)), source_caption=None),
    ]
    deliver_run(lake, OTHER, copies)
    return folder


@pytest.fixture
def erasable(sharded: Path, tmp_path: Path) -> Lake:
    """A copy of it."""
    shutil.copytree(sharded, tmp_path / "erasable")
    return Lake.at(str(tmp_path / "erasable"))
