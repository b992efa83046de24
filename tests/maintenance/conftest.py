"""Lakes with published releases, made once and copied; a clock that tests set; writers that die."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from smalti import objects
from smalti.lake import Lake
from smalti.release import verify as verify_module
from smalti.release.latest import move_latest
from smalti.release.manifest import Manifest, read_manifest
from smalti.release.summary import samples_of
from smalti.settings import MaintenanceRun, ReleaseRun
from smalti.shards import mds
from smalti.shards.stage import shard
from tests.release.conftest import build
from tests.release.test_verify import kept_ids
from tests.support.pictures import Row, picture, release_run, source_run, stored, write_table

DAY = 86400.0
APPLY = MaintenanceRun(apply=True)


@pytest.fixture(autouse=True)
def without_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing streaming takes many seconds, and the loader has tests of its own."""
    monkeypatch.setattr(verify_module, "read_ids", kept_ids)


def rows_of_a_day(day: int, count: int = 4) -> list[Row]:
    """Pictures that no other day has, one of them a page of text."""
    rows = [Row(f"{day}-{n}.jpg", stored(picture(100 * day + n)), caption=f"day {day}, {n}") for n in range(count)]
    return [*rows, Row(f"{day}-text.jpg", stored(picture(100 * day + 99)), label="text", caption=f"page {day}")]


def deliver(lake: Lake, batch: str, rows: list[Row], **encoding: Any) -> str:
    """A committed part; returns its name."""
    run = source_run(batch=batch, **encoding)
    write_table(lake, run, rows)
    return str(shard(lake, run).part)


def release(lake: Lake, run: ReleaseRun | None = None) -> Manifest:
    """Build and publish."""
    manifest = read_manifest(build(lake, run or release_run()).manifest)
    move_latest(lake, manifest.dataset, manifest.version, manifest.digest)
    return manifest


@pytest.fixture(scope="session")
def delivered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a lake with three days and a release of them; copy it."""
    folder = tmp_path_factory.mktemp("delivered") / "lake"
    lake = Lake.at(str(folder))
    for day in (1, 2, 3):
        deliver(lake, f"b{day}", rows_of_a_day(day))
    release(lake)
    return folder


@pytest.fixture
def lake(delivered: Path, tmp_path: Path) -> Lake:
    """A copy of it."""
    shutil.copytree(delivered, tmp_path / "lake")
    return Lake.at(str(tmp_path / "lake"))


@pytest.fixture
def copies(delivered: Path, tmp_path: Path) -> Callable[[str], Lake]:
    """As many copies as one likes, by name."""

    def copy(name: str) -> Lake:
        shutil.copytree(delivered, tmp_path / name)
        return Lake.at(str(tmp_path / name))

    return copy


def age(lake: Lake, days: float, *, below: str | None = None) -> None:
    """Let everything that is there have been written so long ago."""
    path = objects.local_path(below or lake.root)
    assert path is not None
    then = time.time() - days * DAY
    for each in path.rglob("*"):
        if each.is_file():
            os.utime(each, (then, then))


def served(lake: Lake, manifest: Manifest) -> dict[str, bytes]:
    """id -> stored bytes of every sample that a release serves."""
    uri = lake.manifest(manifest.dataset, manifest.version)
    found: dict[str, bytes] = {}
    shards: dict[str, list[bytes]] = {}
    for name, shard_name, index, reasons in samples_of(uri, manifest):
        if shard_name not in shards:
            shards[shard_name] = mds.read_shard(objects.read_bytes(f"{lake.parts_root()}/{shard_name}"))[1]
        if not reasons:
            assert name not in found
            found[name] = shards[shard_name][index]
    return found


def content(lake: Lake) -> dict[str, str]:
    """Every object below parts/, progress/ and releases/: name -> sha256, without times and without the place of the lake."""
    found = {}
    for top in (lake.parts_root(), f"{lake.root}/progress", lake.releases()):
        for each in objects.list_objects(top):
            data = objects.read_bytes(each.uri).replace(lake.root.encode(), b"LAKE")
            if each.uri.endswith(("part.json", "manifest.json")):
                said = json.loads(data)
                said.pop("provenance", None)
                data = json.dumps(said).encode()
            found[each.uri.removeprefix(lake.root)] = hashlib.sha256(data).hexdigest()
    return found


class Died(BaseException):
    """What a killed process does."""


def dying_after(monkeypatch: pytest.MonkeyPatch, changes: int) -> Callable[[], None]:
    """From now on the change (a creation, a swap, a deletion) after so many fails; returns what ends that."""
    left = iter(range(changes))
    real = {name: getattr(objects, name) for name in ("create_bytes", "swap_bytes", "delete_object")}

    def dying(name: str) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            if next(left, None) is None:
                raise Died
            return real[name](*arguments)

        return call

    for name in real:
        monkeypatch.setattr(objects, name, dying(name))

    def revive() -> None:
        for name, function in real.items():
            monkeypatch.setattr(objects, name, function)

    return revive


def until_done(
    monkeypatch: pytest.MonkeyPatch, copies: Callable[[str], Lake], work: Callable[[Lake], object]
) -> Iterator[Lake]:
    """For each n a copy of the lake in which the work died after n changes; the last one in which it did not."""
    changes = 0
    while True:
        lake = copies(f"after{changes}")
        revive = dying_after(monkeypatch, changes)
        try:
            work(lake)
            return
        except Died:
            pass
        finally:
            revive()
        yield lake
        changes += 1
