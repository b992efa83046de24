"""A release that is killed while it is built, while parts arrive and tables are compacted, is the release of an undisturbed build."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from smalti.lake import Lake
from smalti.objects import list_objects
from smalti.release.latest import read_latest
from smalti.release.manifest import Manifest, read_manifest
from smalti.release.verify import verify_manifest
from smalti.table.index import index
from tests.release.conftest import add
from tests.support.pictures import Row, picture, source_run, stored, write_table

SOURCE = "format: files\nuri: file:///nowhere\ntable: t.csv\ncolumns: { key: file }\n"
DATASET = """\
sources: [{ name: demo }, { name: other, group: extra }]
groups: { main: 3, extra: 1 }
reason_sets: [[text]]
expected: {}
"""
BUILD = ("release", "build", "set", "--name", "nightly")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sources and a dataset of both."""
    root = tmp_path_factory.mktemp("config")
    for folder in ("sources", "datasets"):
        (root / folder).mkdir()
    shutil.copytree(Path(__file__).resolve().parents[2] / "include/engines", root / "engines")
    for name in ("demo", "other"):
        (root / f"sources/{name}.yaml").write_text(SOURCE)
    (root / "datasets/set.yaml").write_text(DATASET)
    return root


def command(config: Path, lake: Lake, *arguments: str) -> subprocess.Popen[bytes]:
    env = os.environ | {"SMALTI_LAKE": lake.root, "SMALTI_CONFIG": str(config)}
    return subprocess.Popen(
        [sys.executable, "-m", "smalti.cli", *arguments], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def ended(process: subprocess.Popen[bytes]) -> None:
    errors = process.communicate(timeout=120)[1]
    assert process.returncode == 0, errors.decode()[-2000:]


def objects_written(lake: Lake) -> int:
    """The first is the note of what the build works on: before it, nothing has begun."""
    return sum(1 for root in (lake.releases(), f"{lake.root}/runs") for _ in list_objects(root))


def killed_after(config: Path, lake: Lake, writes: int, arguments: Sequence[str]) -> bool:
    """Run a command; SIGKILL it once it has written so many objects. False: it had ended by itself."""
    before, process = objects_written(lake), command(config, lake, *arguments)
    while process.poll() is None:
        if objects_written(lake) >= before + writes:
            time.sleep(random.random() / 50)  # somewhere in or after the next write
            process.send_signal(signal.SIGKILL)
            process.communicate()
            return True
        time.sleep(0.0005)
    process.communicate()
    return False


def compact_without_end(lake: Lake, stop: threading.Event) -> None:
    """Tables grow by a fragment and are compacted, again and again."""
    for number in itertools.count():
        if stop.is_set():
            return
        run = source_run("demo", f"later{number}")
        write_table(lake, run, [Row(f"later{number}.jpg", stored(picture(900 + number)))])
        index(lake, run)
        stop.wait(0.5)


def disturbed_build(config: Path, lake: Lake, kills: int) -> tuple[int, Manifest]:
    """Build under kills, new parts and compaction. Returns how many builds were killed, and what they ended in."""
    stop, killed = threading.Event(), 0
    compaction = threading.Thread(target=compact_without_end, args=(lake, stop))
    compaction.start()
    try:
        for number in range(kills):
            killed += killed_after(config, lake, random.randint(0, 1) if number else 1, BUILD)
            add(lake, [Row(f"late{number}.jpg", stored(picture(500 + number)))], "other", batch=f"late{number}")
    finally:
        stop.set()
        compaction.join()
    ended(command(config, lake, *BUILD))
    return killed, read_manifest(lake.manifest("set", "v1"))


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.prove)])
def test_a_build_under_kills_new_parts_and_compaction_ends_in_the_same_digest(
    config: Path, filled: Lake, tmp_path: Path, kills: int
) -> None:
    shutil.copytree(tmp_path / "lake", tmp_path / "undisturbed")
    quiet = Lake.at(str(tmp_path / "undisturbed"))
    ended(command(config, quiet, *BUILD))
    expected = read_manifest(quiet.manifest("set", "v1"))

    killed, found = disturbed_build(config, filled, kills)

    print(f"{killed} of {kills} builds were killed")
    assert killed >= kills // 2
    assert found.digest == expected.digest
    assert found.accounting == expected.accounting
    if kills > 3:  # it reads back through the loader, which takes long to import
        assert verify_manifest(filled.manifest("set", "v1")).faults == ()
    assert read_latest(filled, "set") is None
    ended(command(config, filled, "release", "build", "set"))  # a build without a name sees what arrived
    later = read_manifest(filled.manifest("set", "v2"))
    assert later.accounting.samples == expected.accounting.samples + kills
