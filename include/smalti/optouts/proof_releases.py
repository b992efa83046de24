"""What live releases serve of the samples of a request: nothing, as the training loader selects and as it serves."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from smalti import objects
from smalti.errors import SmaltiError
from smalti.lake import Lake
from smalti.loader.skips import ServedShard, served_shards
from smalti.optouts.places import Places
from smalti.optouts.readback import EPOCH, Reading
from smalti.optouts.receipt import Replaced, Touched, Unreachable
from smalti.release.latest import Succession, is_gone, live_versions, stored_latest
from smalti.release.manifest import Manifest, StreamEntry, read_manifest
from smalti.release.optouts import OptoutSnapshot, read_snapshot
from smalti.release.skips import sha256
from smalti.release.tree_claims import COMMIT, commit_tiers, position_of

Indices = Mapping[int, str]
"""index in a shard -> id"""

_Version = tuple[str, str]
"""(dataset, version)"""

log = logging.getLogger("smalti")


@dataclass(frozen=True)
class _Looked:
    """What one live version holds of the samples.

    Attributes:
        counts: see `smalti.optouts.receipt.Checks`.
        tree: what is to be said of its tree, if that holds any of them.
        faults: samples that the loader would serve, each by its place.
    """

    touched: Touched
    counts: Counter[str]
    readings: tuple[Reading, ...]
    tree: Unreachable | None
    faults: tuple[str, ...]


@dataclass
class Releases:
    """A look at all live versions of a lake. A version that is succeeded or given up meanwhile counts no more; what has come in its
    place is looked at as well.

    Attributes:
        replaced: versions that held any of the samples, had a tree, and were succeeded.
    """

    lake: Lake
    snapshot: OptoutSnapshot
    places: Places
    replaced: list[Replaced] = field(default_factory=list)
    _looked: dict[_Version, _Looked | None] = field(default_factory=dict)
    _read: Counter[str] = field(default_factory=Counter)

    @property
    def touched(self) -> list[Touched]:
        """Live versions that hold any of the samples."""
        return [each.touched for each in self._looked.values() if each]

    @property
    def counts(self) -> Counter[str]:
        """See `smalti.optouts.receipt.Checks`."""
        return sum((each.counts for each in self._looked.values() if each), Counter(self._read))

    def trees(self) -> tuple[Unreachable, ...]:
        """Live trees that hold any of the samples."""
        return tuple(each.tree for each in self._looked.values() if each and each.tree)

    def look(self, read: Callable[[Reading], Iterable[str]]) -> list[str]:
        """Look at what the loader selects, and have it serve. Returns a line for each sample that it would serve, or has served, by its
        place: ids stand in no log.

        Args:
            read: what the training loader serves.
        """
        faults: list[str] = []
        while new := self._versions() - self._looked.keys():
            for version in sorted(new):
                faults += self._version(version, read)
        for gone in self._looked.keys() - self._versions():
            del self._looked[gone]
        for dataset in objects.list_names(self.lake.releases()):
            for said in stored_latest(self.lake, dataset).succeeded:
                self._look_back(dataset, said)
        return faults

    def _versions(self) -> set[_Version]:
        datasets = objects.list_names(self.lake.releases())
        return {(dataset, version) for dataset in datasets for version in live_versions(self.lake, dataset)}

    def _version(self, version: _Version, read: Callable[[Reading], Iterable[str]]) -> list[str]:
        """The same, of one version."""
        try:
            self._looked[version] = looked = self._look(self.lake.manifest(*version))
            return [*looked.faults, *self._read_back(looked, read)] if looked else []
        except SmaltiError as error:
            if not is_gone(self.lake, *version):
                raise
            log.info("opt-outs: %s %s was given up while it was looked at: %s", *version, error.what)
            self._looked[version] = None
            return []

    def _read_back(self, looked: _Looked, read: Callable[[Reading], Iterable[str]]) -> list[str]:
        faults = []
        for reading in looked.readings:
            self._read["shards_read"] += len(reading.chosen)
            for name in read(reading):
                self._read["samples_read"] += 1
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

    def _look(self, uri: str) -> _Looked | None:
        """What the loader selects of a version; None: it holds none of the samples."""
        manifest = read_manifest(uri)
        streams = self._streams(manifest)
        if not streams:
            return None
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
        tree = self._tree(manifest, [place for each in held.values() for place in each])
        touched = Touched(
            dataset=manifest.dataset,
            version=manifest.version,
            digest=manifest.digest,
            streams=tuple(sorted(held)),
            samples=skipped + since,
            skipped=skipped,
            since=since,
            tree=tree is not None,
        )
        counts = {"releases": 1, "streams": len(held), "places": skipped + since}
        counts["shards"] = sum(map(len, concerned.values()))
        readings = tuple(self._to_read(uri, manifest, concerned))
        return _Looked(touched, Counter(counts), readings, tree, tuple(faults))

    def _to_read(
        self, uri: str, manifest: Manifest, concerned: Mapping[tuple[str, int], list[str]]
    ) -> Iterable[Reading]:
        for (group, tier), shards in sorted(concerned.items()):
            entries = [each for each in manifest.streams if (each.group, each.tier) == (group, tier)]
            position = max(self.snapshot.position, manifest.optouts)  # one that has just come may know more
            kept = sum(entry.kept for entry in entries)
            if kept <= EPOCH:
                kept = sum(self._kept(uri, entry) for entry in entries)
            if kept and (shards or kept <= EPOCH):
                yield Reading(uri, group, tier, position, kept, tuple(shards))

    def _kept(self, uri: str, entry: StreamEntry) -> int:
        return sum(shard.kept for shard in served_shards(uri, entry, (), self.snapshot.shards))

    def _tree(self, manifest: Manifest, held: list[tuple[str, int]]) -> Unreachable | None:
        """What is to be said of a tree of the release that holds any of the places which the release itself serves."""
        root = self.lake.tree(manifest.dataset, manifest.version)
        names = objects.list_names(root)
        if not names and manifest.publish != "tree":
            return None
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
        if not there:
            return None
        return Unreachable(
            where=f"the tree of {manifest.dataset} {manifest.version}",
            why=f"it was written before, and holds {len(there)} of these samples: they are in effect when a version without "
            "them has succeeded it and it has a tombstone",
        )


def _served(served: Iterable[ServedShard], places: Mapping[str, Indices]) -> Iterable[tuple[str, int]]:
    """Which of the places are served: (shard, index)."""
    for shard in served:
        if shard.basename in places:
            wanted = np.array(sorted(places[shard.basename]), np.int64)
            for index in np.setdiff1d(wanted, shard.left_out):
                yield shard.basename, int(index)
