"""`smalti pull`, killed again and again, ends in every byte; the next version brings what is new and nothing else."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from smalti.lake import Lake
from smalti.loader.skips import served_shards
from smalti.objects import read_bytes
from tests.conftest import snapshot
from tests.loader.releases import Release, Shards, build, skip_share

OLD: Shards = {"alpha": {"00001-aaaaaaaaaaaa": {(512, "1.000"): (6,) * 450, (1024, "0.778"): (5,) * 150}}}
"""More than the kills wait for: on a busy machine a pull brings dozens until its killer has counted them."""
NEW: Shards = {**OLD, "beta": {"00001-bbbbbbbbbbbb": {(512, "1.000"): (7,) * 20}}}


def pull_command(manifest: str, folder: Path) -> list[str]:
    return [sys.executable, "-m", "smalti.cli", "pull", manifest, str(folder), "--json"]


def shards_here(folder: Path) -> int:
    return sum(1 for _ in folder.glob("parts/*/*/*/*/shard.*.mds"))


def killed_after(manifest: str, folder: Path, more: int) -> bool:
    """Pull; SIGKILL once so many more shards are here. False: it had ended by itself."""
    before = shards_here(folder)
    process = subprocess.Popen(pull_command(manifest, folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        if shards_here(folder) >= before + more:
            process.send_signal(signal.SIGKILL)
            process.wait()
            return True
        time.sleep(0.0005)
    return False


def pulled(manifest: str, folder: Path) -> dict[str, Any]:
    done = subprocess.run(pull_command(manifest, folder), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def check_every_byte(release: Release, lake: Lake, folder: Path) -> None:
    names = [s.basename for stream in release.manifest.streams for s in served_shards(release.uri, stream)]
    for name in names:
        assert (folder / "parts" / name).read_bytes() == read_bytes(f"{lake.parts_root()}/{name}")
    assert shards_here(folder) == len(names)


@pytest.mark.parametrize("kills", [3, pytest.param(10, marks=pytest.mark.prove)])
def test_a_pull_that_is_killed_goes_on_and_the_next_version_brings_only_what_is_new(
    lake: Lake, tmp_path: Path, kills: int
) -> None:
    first = build(lake, version="v1", shards=OLD, skips=skip_share(0.1))
    second = build(lake, version="v2", shards=NEW, skips=skip_share(0.2, seed=1))
    folder = tmp_path / "pulled"

    killed = sum(killed_after(first.uri, folder, random.randint(1, 180 // kills)) for _ in range(kills))
    report = pulled(first.uri, folder)

    print(
        f"{killed} of {kills} pulls were killed; the last one fetched {report['fetched']} of {report['shards']} shards"
    )
    assert killed == kills
    assert report["fetched"] < report["shards"]
    check_every_byte(first, lake, folder)
    before = {name: digest for name, digest in snapshot(folder.as_uri()).items() if name.endswith(".mds")}
    more = pulled(second.uri, folder)
    new = sum(len(served_shards(second.uri, stream)) for stream in second.manifest.streams) - report["shards"]
    assert more["fetched"] == new == 20
    after = snapshot(folder.as_uri())
    assert {name: after[name] for name in before} == before
