"""Which versions of all datasets count, and what they use."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from smalti import objects
from smalti.lake import Lake
from smalti.release.assemble import claimed_versions
from smalti.release.latest import gone_versions, live_versions
from smalti.release.manifest import Manifest, beside, read_manifest, skip_file_uri
from smalti.release.tombstones import resumable_versions, resumed_by
from smalti.shards.erasures import Erasures


@dataclass(frozen=True)
class Release:
    """A version with a manifest. `live`: it is, or was, what LATEST pointed to; otherwise it may still be published."""

    uri: str
    manifest: Manifest
    live: bool

    @cached_property
    def parts(self) -> frozenset[tuple[str, str]]:
        """(source, name) of every part that it uses."""
        return frozenset((source.name, part.name) for source in self.manifest.sources for part in source.parts)


@dataclass(frozen=True)
class References:
    """What may not go.

    Attributes:
        releases: every version that was not given up and has no tombstone, published or not; by dataset, live ones first, the
            newest first.
        pending: versions that are claimed and have no manifest: what they will use is not known.
        resumed: URIs of what checkpoints of succeeded versions are resumed by, see `smalti.release.tombstones.resumed_by`.
        erased: (source, name) of parts that hold what erasures left of a part in `releases`: successors are about to use them.
    """

    releases: tuple[Release, ...]
    pending: tuple[str, ...]
    resumed: frozenset[str] = frozenset()
    erased: frozenset[tuple[str, str]] = frozenset()

    @cached_property
    def parts(self) -> frozenset[tuple[str, str]]:
        return self.erased.union(*(release.parts for release in self.releases))

    @cached_property
    def files(self) -> frozenset[str]:
        """URIs of skip files and curations."""
        return self.resumed.union(uri for release in self.releases for uri in files_of(release.uri, release.manifest))


def files_of(uri: str, manifest: Manifest) -> Iterator[str]:
    """URIs of what a manifest names outside its version's folder and its parts."""
    for stream in manifest.streams:
        if stream.skip_file is not None:
            yield skip_file_uri(uri, stream.skip_file)
    if manifest.provenance.curation:
        curation = beside(uri, manifest.provenance.curation)
        lake, digest = Lake(beside(uri, "../../..")), curation.rpartition("/")[2].removesuffix(".json.gz")
        yield curation
        yield lake.curation_rows(manifest.dataset, digest)
        yield lake.quarantine_page(manifest.dataset, digest)


def references(lake: Lake, *, keep: int | None = None, without: Collection[tuple[str, str]] = ()) -> References:
    """Read every manifest that counts.

    Args:
        keep: of each dataset's published versions only so many, the newest.
        without: (dataset, version) that are taken for given up.
    Raises:
        CorruptError: a manifest is damaged: as long as that is so, nothing can be said.
    """
    releases, pending, resumed = [], [], set()
    for dataset in objects.list_names(lake.releases()):
        published = live_versions(lake, dataset)
        live = live_versions(lake, dataset, keep)
        gone = gone_versions(lake, dataset)
        unpublished = [each for each in claimed_versions(lake, dataset) if each not in published]
        for version in (*live, *unpublished):
            if version in gone or (dataset, version) in without:
                continue
            if objects.exists(lake.release_tombstone(dataset, version)):
                continue
            uri = lake.manifest(dataset, version)
            if objects.exists(uri):
                releases.append(Release(uri, read_manifest(uri), version in live))
            elif objects.exists(lake.claim(dataset, version)):
                pending.append(lake.release(dataset, version))
        for version in resumable_versions(lake, dataset):
            resumed.update(resumed_by(lake, dataset, version))
    return References(tuple(releases), tuple(pending), frozenset(resumed), _erased(lake, releases))


def _erased(lake: Lake, releases: Sequence[Release]) -> frozenset[tuple[str, str]]:
    used = {part for release in releases for part in release.parts}
    erasures = Erasures.read(lake, {source for source, _ in used})
    moved = (erasures.part(f"{source}/{name}").partition("/") for source, name in used)
    return frozenset((source, name) for source, _, name in moved if name) - used
