"""What live releases serve of the samples of a request: nothing, as the training loader selects and as it serves."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from smalti import objects
from smalti.lake import Lake
from smalti.loader.skips import ServedShard, served_shards
from smalti.optouts.places import Places
from smalti.optouts.readback import EPOCH, Reading
from smalti.optouts.receipt import Replaced, Touched, Unreachable
from smalti.release.latest import Succession, live_versions, stored_latest
from smalti.release.manifest import Manifest, StreamEntry, read_manifest
from smalti.release.optouts import OptoutSnapshot, read_snapshot
from smalti.release.skips import sha256
from smalti.release.tree_claims import COMMIT, commit_tiers, position_of

Indices = Mapping[int, str]
"""index in a shard -> id"""


@dataclass
class Releases:
    """One look at all live versions of a lake.

    Attributes:
        touched: those that hold any of the samples.
        replaced: those that did, had a tree, and were succeeded.
        counts: see `smalti.optouts.receipt.Checks`.
    """

    lake: Lake
    snapshot: OptoutSnapshot
    places: Places
    touched: list[Touched] = field(default_factory=list)
    replaced: list[Replaced] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    _readings: list[Reading] = field(default_factory=list)
    _trees: list[Unreachable] = field(default_factory=list)

    def look(self) -> list[str]:
        """Look at what the loader selects. Returns a line for each sample that it would serve, by its place: ids stand in no log."""
        faults: list[str] = []
        for dataset in objects.list_names(self.lake.releases()):
            for version in live_versions(self.lake, dataset):
                uri = self.lake.manifest(dataset, version)
                manifest = read_manifest(uri)
                streams = self._streams(manifest)
                if streams:
                    faults += self._release(uri, manifest, streams)
            for said in stored_latest(self.lake, dataset).succeeded:
                self._look_back(dataset, said)
        return faults

    def read_back(self, read: Callable[[Reading], Iterable[str]]) -> list[str]:
        """Have the loader serve. Returns a line for each sample that it must not have served."""
        faults = []
        for reading in self._readings:
            self.counts["shards_read"] += len(reading.chosen)
            for name in read(reading):
                self.counts["samples_read"] += 1
                if name in self.places.ids:
                    which = f"a matched sample (sha256 of its id: {sha256(name.encode())[:12]}...)"
                    faults.append(f"{which} is served by {reading.manifest} from {reading.group}/{reading.tier}")
        return faults

    def _look_back(self, dataset: str, said: Succession) -> None:
        """What became of a version that was succeeded, if its tree held any of the samples."""
        uri = self.lake.manifest(dataset, said.version)
        if not objects.exists(uri):
            return  # collected: nothing is left of it
        manifest = read_manifest(uri)
        held = self._held(uri, manifest, self._streams(manifest))
        there = bool(objects.list_names(self.lake.tree(dataset, said.version)))
        if held and (there or manifest.publish == "tree"):
            self.replaced.append(Replaced(dataset=dataset, version=said.version, successor=said.by or None, tree=there))

    def _held(self, uri: str, manifest: Manifest, streams: Mapping[str, Mapping[str, Indices]]) -> bool:
        """Whether a release itself serves any of the samples."""
        return any(
            True
            for entry in manifest.streams
            if entry.name in streams
            for _ in _served(served_shards(uri, entry), streams[entry.name])
        )

    def replaced_at(self) -> float:
        """When the last of the trees was served no more; 0: none was."""
        stones = [objects.stat(self.lake.release_tombstone(each.dataset, each.version)) for each in self.replaced]
        return max((stone.written for stone in stones if stone), default=0.0)

    def remains(self) -> tuple[Unreachable, ...]:
        """Trees that are served no more, and whose files are still there."""
        return tuple(
            Unreachable(
                where=f"the tree of {each.dataset} {each.version}",
                why=f"{each.successor or 'nothing'} has succeeded it, and it is served no more; its files go when maintenance "
                "collects them, a grace after that",
            )
            for each in self.replaced
            if each.tree
        )

    def trees(self) -> tuple[Unreachable, ...]:
        """Live trees that hold any of the samples."""
        return tuple(self._trees)

    def _streams(self, manifest: Manifest) -> dict[str, dict[str, Indices]]:
        """Stream -> shard -> indices of matched samples that a release holds."""
        groups = {source.name: source.group for source in manifest.sources}
        parts = {f"{source.name}/{part.name}" for source in manifest.sources for part in source.parts}
        found: dict[str, dict[str, Indices]] = defaultdict(dict)
        for shard, indices in self.places.shards.items():
            source, part, tier, ar, _ = shard.split("/")
            if f"{source}/{part}" in parts:
                found[f"{groups[source]}/{tier}/{ar}"][shard] = indices
        return found

    def _release(self, uri: str, manifest: Manifest, streams: Mapping[str, Mapping[str, Indices]]) -> list[str]:
        faults: list[str] = []
        held: dict[str, list[tuple[str, int]]] = {}  # stream -> places that the release itself serves
        concerned: dict[tuple[str, int], list[str]] = defaultdict(list)
        skipped = 0
        for entry in (each for each in manifest.streams if each.name in streams):
            shards = streams[entry.name]
            held[entry.name] = kept = list(_served(served_shards(uri, entry), shards))
            skipped += sum(map(len, shards.values())) - len(kept)
            for lifted in {(), *manifest.reason_sets}:
                now = served_shards(uri, entry, frozenset(lifted), self.snapshot.shards)
                for shard, index in _served(now, shards):
                    faults.append(f"a matched sample is served by {uri} from {shard} at {index}")
                if not lifted:
                    concerned[entry.group, entry.tier] += [each.basename for each in now if each.basename in shards]
        since = sum(map(len, held.values()))
        self.counts.update(
            releases=1, streams=len(held), places=skipped + since, shards=sum(map(len, concerned.values()))
        )
        self._readings += self._to_read(uri, manifest, concerned)
        self.touched.append(
            Touched(
                dataset=manifest.dataset,
                version=manifest.version,
                digest=manifest.digest,
                streams=tuple(sorted(held)),
                samples=skipped + since,
                skipped=skipped,
                since=since,
                tree=self._tree(uri, manifest, [place for each in held.values() for place in each]),
            )
        )
        return faults

    def _to_read(
        self, uri: str, manifest: Manifest, concerned: Mapping[tuple[str, int], list[str]]
    ) -> Iterable[Reading]:
        for (group, tier), shards in sorted(concerned.items()):
            entries = [each for each in manifest.streams if (each.group, each.tier) == (group, tier)]
            kept = sum(entry.kept for entry in entries)
            if kept <= EPOCH:
                kept = sum(self._kept(uri, entry) for entry in entries)
            if kept and (shards or kept <= EPOCH):
                yield Reading(uri, group, tier, self.snapshot.position, kept, tuple(shards))

    def _kept(self, uri: str, entry: StreamEntry) -> int:
        return sum(shard.kept for shard in served_shards(uri, entry, (), self.snapshot.shards))

    def _tree(self, uri: str, manifest: Manifest, held: list[tuple[str, int]]) -> bool:
        """Whether a tree of the release holds any of the places that the release itself serves."""
        root = self.lake.tree(manifest.dataset, manifest.version)
        names = objects.list_names(root)
        if not names and manifest.publish != "tree":
            return False
        tiers = [commit_tiers(name) for name in names if COMMIT.fullmatch(name)]
        claimed = position_of(manifest, root)
        position = manifest.optouts if claimed is None else claimed
        left_out = {} if position == manifest.optouts else read_snapshot(self.lake, position).shards
        there = [
            (shard, index)
            for shard, index in held
            if index not in left_out.get(shard, ())
            and (not tiers or any(each is None or int(shard.split("/")[2]) in each for each in tiers))
        ]
        if there:
            why = (
                f"it was written before, and holds {len(there)} of these samples: they are in effect when a version without "
                "them has succeeded it and it has a tombstone"
            )
            self._trees.append(Unreachable(where=f"the tree of {manifest.dataset} {manifest.version}", why=why))
        return bool(there)


def _served(served: Iterable[ServedShard], places: Mapping[str, Indices]) -> Iterable[tuple[str, int]]:
    """Which of the places are served: (shard, index)."""
    for shard in served:
        if shard.basename in places:
            wanted = np.array(sorted(places[shard.basename]), np.int64)
            for index in np.setdiff1d(wanted, shard.left_out):
                yield shard.basename, int(index)
