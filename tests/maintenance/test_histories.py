"""Random histories of a lake: deliveries, releases, maintenance, kills and time; and what must be true after each of them."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from smalti import objects
from smalti.lake import Lake
from smalti.maintenance.garbage import gc
from smalti.maintenance.merge import merge
from smalti.maintenance.rewrite import rewrite
from smalti.release.latest import live_versions
from smalti.release.manifest import Manifest, read_manifest
from smalti.settings import MaintenanceRun
from smalti.shards import mds
from smalti.shards.part import committed_parts
from smalti.shards.stage import shard
from tests.maintenance.conftest import DAY, Died, dying_after, release, served
from tests.support.pictures import Row, picture, release_run, source_run, stored, write_table

KEEP = 2
RUN = MaintenanceRun(apply=True, skip_limit=0.05, keep_versions=KEEP)


class History:
    """A lake, a clock of its own, and what it must hold: id -> caption and label of the newest delivery."""

    def __init__(self, lake: Lake, chance: random.Random) -> None:
        self.lake = lake
        self.chance = chance
        self.newest: dict[str, tuple[str, str]] = {}
        self.batches: list[str] = []
        self.promised: dict[str, dict[str, bytes]] = {}
        self.now = time.time()
        self.stamped: set[Path] = set()
        self.done: Counter[str] = Counter()

    def step(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """One thing happens, or is killed on the way."""
        names = ["deliver", "reshard", "release", "rewrite", "merge", "gc", "gc", "wait"]
        name = self.chance.choice(names)
        killed = name in ("reshard", "release", "rewrite", "merge", "gc") and self.chance.random() < 0.4
        revive = dying_after(monkeypatch, self.chance.randrange(8)) if killed else lambda: None
        try:
            getattr(self, name)()
            self.done[name] += 1
        except Died:
            self.done[f"killed {name}"] += 1
        finally:
            revive()
        self._stamp()
        self.check()

    def deliver(self) -> None:
        batch = f"b{len(self.batches):03}"
        run = source_run(batch=batch)
        keys = self.chance.sample([f"{n}.jpg" for n in range(12)], self.chance.randint(1, 4))
        rows = []
        for key in keys:
            number = len(self.batches) * 100 + int(key.partition(".")[0])
            label = self.chance.choice(["visual", "visual", "text"])
            self.newest[f"demo/{key}"] = (f"{batch} {key}", label)
            rows.append(Row(key, stored(picture(number)), caption=f"{batch} {key}", label=label))
        self.batches.append(batch)
        write_table(self.lake, run, rows)
        shard(self.lake, run)

    def reshard(self) -> None:
        batch = self.chance.choice(self.batches)
        shard(self.lake, source_run(batch=batch, quality=self.chance.choice([92, 92, 90])))

    def release(self) -> None:
        if any(label == "visual" for _, label in self.newest.values()):
            self.promise(release(self.lake, release_run()))

    def promise(self, manifest: Manifest) -> None:
        """A release over all parts serves the newest delivery of each id, and not if it is a page of text."""
        found = served(self.lake, manifest)
        assert {name: caption_of(raw) for name, raw in found.items()} == {
            name: caption for name, (caption, label) in self.newest.items() if label == "visual"
        }
        self.promised[manifest.version] = found

    def rewrite(self) -> None:
        rewrite(self.lake, RUN)

    def merge(self) -> None:
        merge(self.lake, RUN)

    def gc(self) -> None:
        gc(self.lake, RUN, self.now)

    def wait(self) -> None:
        self.now += self.chance.choice([1, 5, 8]) * DAY

    def check(self) -> None:
        """Whatever is live is whole, and serves what it served on its first day."""
        for version in live_versions(self.lake, "set", KEEP):
            found = served(self.lake, read_manifest(self.lake.manifest("set", version)))
            assert self.promised.setdefault(version, found) == found

    def _stamp(self) -> None:
        """What is new was written at the time of this history."""
        root = objects.local_path(self.lake.root)
        assert root is not None
        for path in {path for path in root.rglob("*") if path.is_file()} - self.stamped:
            os.utime(path, (self.now, self.now))
            self.stamped.add(path)


def caption_of(raw: bytes) -> str:
    columns = {
        "caption": "str",
        "height": "int",
        "id": "str",
        "image": "jpeg",
        "original_height": "int",
        "original_width": "int",
        "source": "str",
        "width": "int",
    }
    return str(mds.decode_sample(columns, raw)["caption"])


def campaign(lake: Lake, monkeypatch: pytest.MonkeyPatch, seed: int, steps: int) -> Counter[str]:
    """One history; at its end everything is tidied up, and only what is needed is left."""
    history = History(lake, random.Random(seed))
    history.deliver()
    history.release()
    for _ in range(steps):
        history.step(monkeypatch)
    history.release()
    for _ in range(4):
        history.now += 8 * DAY
        history.gc()
        history.check()
    used = {
        (source.name, part.name)
        for version in live_versions(lake, "set")
        for source in read_manifest(lake.manifest("set", version)).sources
        for part in source.parts
    }
    left = {(part.source, part.name) for part in committed_parts(lake, "demo", hidden=True)}
    in_sight = {(part.source, part.name) for part in committed_parts(lake, "demo")}
    assert used <= left
    assert left <= used | in_sight
    return history.done


def test_whatever_happens_live_releases_serve_what_they_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: Counter[str] = Counter()
    for seed in (1, 2):
        done += campaign(Lake.at(str(tmp_path / str(seed))), monkeypatch, seed, steps=40)
    assert {"deliver", "reshard", "release", "rewrite", "merge", "gc", "wait"} <= set(done)
    assert sum(count for what, count in done.items() if what.startswith("killed")) >= 3


@pytest.mark.prove
def test_forty_longer_histories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: Counter[str] = Counter()
    for seed in range(100, 140):
        done += campaign(Lake.at(str(tmp_path / str(seed))), monkeypatch, seed, steps=60)
    print(done)
    assert {"killed gc", "killed merge", "killed rewrite", "killed release", "killed reshard"} <= set(done)
