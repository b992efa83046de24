"""Random histories of a lake: deliveries of two sources with copies, releases, opt-outs, maintenance, kills and time; and what must
be true after each of them."""

from __future__ import annotations

import hashlib
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from smalti import objects
from smalti.lake import Lake
from smalti.loader.skips import served_shards
from smalti.maintenance.garbage import gc
from smalti.maintenance.merge import merge
from smalti.maintenance.rewrite import rewrite
from smalti.release.latest import live_versions
from smalti.release.manifest import Manifest, read_manifest
from smalti.release.optouts import OptoutSnapshot, read_snapshot
from smalti.settings import MaintenanceRun
from smalti.shards import mds
from smalti.shards.part import committed_parts
from smalti.shards.samples import decode_samples
from smalti.shards.stage import shard
from tests.maintenance.conftest import DAY, Died, dying_after, release, served
from tests.support.pictures import Row, picture, release_run, source_run, stored, write_table

KEEP = 2
SOURCES = ("demo", "other")
REQUESTS = 4
"""Opt-outs of a history: with each there is less left."""
RUN = MaintenanceRun(apply=True, skip_limit=0.05, keep_versions=KEEP)


@dataclass(frozen=True)
class Delivered:
    """One row as it was delivered last. picture: its number; of two copies the larger one is served."""

    caption: str
    label: str
    picture: int
    size: int


class Place(NamedTuple):
    """A sample in a shard, and the number of its picture."""

    id: str
    picture: int


class History:
    """A lake, a clock of its own, and what it must hold: id -> the newest delivery, and what is opted out."""

    def __init__(self, lake: Lake, chance: random.Random) -> None:
        self.lake = lake
        self.chance = chance
        self.newest: dict[str, Delivered] = {}
        self.batches: list[tuple[str, str]] = []
        self.pictures: dict[str, int] = {}  # sha256 -> number
        self.promised: dict[str, dict[str, bytes]] = {}
        self.opted_out: set[str] = set()
        self.banned: set[int] = set()  # every picture that was in sight under an id that is opted out
        self.named: set[int] = set()  # those whose copies the newest snapshot names,
        self.listed: set[str] = set()  # in these shards: it was written when there were no others
        self.requests = 0
        self.now = time.time()
        self.stamped: set[Path] = set()
        self.done: Counter[str] = Counter()
        self._shards: dict[str, dict[str, list[Place]]] = {}

    def step(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """One thing happens, or is killed on the way."""
        names = [
            "deliver",
            "deliver",
            "reshard",
            "release",
            "release",
            "rewrite",
            "merge",
            "gc",
            "gc",
            "wait",
            "opt_out",
        ]
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

    def deliver(self, source: str | None = None) -> None:
        source = source or self.chance.choice(SOURCES)
        batch = f"b{len(self.batches):03}"
        run = source_run(source, batch)
        keys = self.chance.sample([f"{n}.jpg" for n in range(10)], self.chance.randint(1, 4))
        rows = []
        for key in keys:
            known = sorted(set(self.pictures.values()))
            copied = known and self.chance.random() < 0.3
            number = self.chance.choice(known) if copied else len(self.batches) * 100 + int(key.partition(".")[0])
            size = self.chance.choice([520, 520, 600])
            label = self.chance.choice(["visual", "visual", "text"])
            image = stored(picture(number, size, size))
            self.pictures[hashlib.sha256(image).hexdigest()] = number
            self.newest[f"{source}/{key}"] = Delivered(f"{batch} {key}", label, number, size)
            rows.append(Row(key, image, caption=f"{batch} {key}", label=label))
        self.batches.append((source, batch))
        write_table(self.lake, run, rows)
        shard(self.lake, run)
        self._ban()

    def reshard(self) -> None:
        source, batch = self.chance.choice(self.batches)
        shard(self.lake, source_run(source, batch, quality=self.chance.choice([92, 92, 90])))

    def opt_out(self) -> None:
        """A request for one id: it and its copies are named by place, wherever they are, and by id."""
        left = sorted(self.newest.keys() - self.opted_out)
        if self.requests == REQUESTS or not left:
            return
        self.requests += 1
        wanted = self.chance.choice(left)
        held = [place for part in self._parts(hidden=True) for places in part.values() for place in places]
        pictures = {place.picture for place in held if place.id == wanted}
        self.opted_out |= {wanted} | {place.id for place in held if place.picture in pictures}
        self._ban()
        self.named = {place.picture for place in held if place.id in self.opted_out}
        shards: dict[str, tuple[int, ...]] = {}
        for part in self._parts(hidden=True):
            self.listed |= part.keys()
            for name, places in part.items():
                gone = [n for n, each in enumerate(places) if each.id in self.opted_out or each.picture in self.named]
                shards |= {name: tuple(gone)} if gone else {}
        snapshot = OptoutSnapshot(position=self.requests, shards=shards, ids=tuple(sorted(self.opted_out)))
        assert objects.create_bytes(self.lake.optout_snapshot(self.requests), snapshot.encode())

    def release(self) -> None:
        if self.expected():
            self.promise(release(self.lake, release_run(*SOURCES)))

    def expected(self) -> dict[str, str]:
        """id -> caption of what a release over all parts must serve.

        The newest delivery of each id, and not if it is a page of text, is opted out, or is a copy of what is or was opted out in
        whatever delivery; of copies one, the largest, of the first source, with the first id.
        """
        best: dict[int, str] = {}
        for name, each in self.newest.items():
            if each.label == "visual" and name not in self.opted_out and each.picture not in self.banned:
                best[each.picture] = min(best.get(each.picture, name), name, key=self._rank)
        return {name: self.newest[name].caption for name in best.values()}

    def _rank(self, name: str) -> tuple[int, int, str]:
        return -self.newest[name].size, SOURCES.index(name.split("/")[0]), name

    def promise(self, manifest: Manifest) -> None:
        found = served(self.lake, manifest)
        assert {name: caption_of(raw) for name, raw in found.items()} == self.expected()
        assert self._ids(manifest) == found.keys()  # an older version is returned where younger opt-outs change nothing
        self.promised[manifest.version] = found

    def _ids(self, manifest: Manifest) -> set[str]:
        """What a run that starts now is served."""
        uri, optouts = self.lake.manifest("set", manifest.version), read_snapshot(self.lake, self.requests).shards
        shards = [each for stream in manifest.streams for each in served_shards(uri, stream, (), optouts)]
        return {self._shard(each.basename)[index].id for each in shards for index in each.kept_indices()}

    def rewrite(self) -> None:
        rewrite(self.lake, RUN)

    def merge(self) -> None:
        merge(self.lake, RUN)

    def gc(self) -> None:
        gc(self.lake, RUN, self.now)

    def wait(self) -> None:
        self.now += self.chance.choice([1, 5, 8]) * DAY

    def check(self) -> None:
        """Whatever is live is whole, serves what it served on its first day, and to a run that starts nothing opted out."""
        optouts = read_snapshot(self.lake, self.requests).shards
        for version in live_versions(self.lake, "set", KEEP):
            uri = self.lake.manifest("set", version)
            manifest = read_manifest(uri)
            found = served(self.lake, manifest)
            assert self.promised.setdefault(version, found) == found
            shards = [each for stream in manifest.streams for each in served_shards(uri, stream, (), optouts)]
            places = [(self._shard(each.basename)[index], each) for each in shards for index in each.kept_indices()]
            ids = [place.id for place, _ in places]
            assert len(set(ids)) == len(ids)
            assert len({place.picture for place, _ in places}) == len(places)
            assert not set(ids) & self.opted_out
            assert not {place.picture for place, each in places if each.basename in self.listed} & self.named
            assert set(ids) <= found.keys()

    def _ban(self) -> None:
        for part in self._parts(hidden=False):
            self.banned |= {each.picture for places in part.values() for each in places if each.id in self.opted_out}

    def _parts(self, *, hidden: bool) -> Iterator[dict[str, list[Place]]]:
        for source in SOURCES:
            for part in committed_parts(self.lake, source, hidden=hidden):
                yield self._part(part.source, part.name)

    def _shard(self, basename: str) -> list[Place]:
        source, part = basename.split("/")[:2]
        return self._part(source, part)[basename]

    def _part(self, source: str, name: str) -> dict[str, list[Place]]:
        """Shard -> its samples. A part never changes."""
        if f"{source}/{name}" not in self._shards:
            uri = self.lake.samples(source, name)
            found: dict[str, list[Place]] = {}
            for row in (
                decode_samples(objects.read_bytes(uri), uri).select(["id", "sha256", "shard", "index"]).to_pylist()
            ):
                places = found.setdefault(row["shard"], [])
                assert row["index"] == len(places)
                sha256 = row["sha256"] if isinstance(row["sha256"], str) else row["sha256"].hex()
                places.append(Place(row["id"], self.pictures[sha256]))
            self._shards[f"{source}/{name}"] = found
        return self._shards[f"{source}/{name}"]

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
    for source in SOURCES:
        history.deliver(source)
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
    left, in_sight = (
        {(part.source, part.name) for source in SOURCES for part in committed_parts(lake, source, hidden=hidden)}
        for hidden in (True, False)
    )
    assert used <= left
    assert left <= used | in_sight
    return history.done


def test_whatever_happens_live_releases_serve_what_they_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: Counter[str] = Counter()
    for seed in (1, 2):
        done += campaign(Lake.at(str(tmp_path / str(seed))), monkeypatch, seed, steps=40)
    assert {"deliver", "reshard", "release", "rewrite", "merge", "gc", "wait", "opt_out"} <= set(done)
    assert sum(count for what, count in done.items() if what.startswith("killed")) >= 3


@pytest.mark.prove
def test_forty_longer_histories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: Counter[str] = Counter()
    for seed in range(100, 140):
        done += campaign(Lake.at(str(tmp_path / str(seed))), monkeypatch, seed, steps=60)
    print(done)
    assert {"killed gc", "killed merge", "killed rewrite", "killed release", "killed reshard"} <= set(done)
