"""Releases that were succeeded: no run begins with one, and their checkpoints go on in the release that succeeds them.

An erasure writes shards anew without some samples, and checkpoints count in the shards of before. Of the version that was succeeded
its manifest, indices and skip files stay. So the order of a checkpoint is made of what it was always made of, and only the bytes
come from elsewhere: from the shards that the open release names, where a sample has another index if some before it were erased.
Others stand in for what was erased, as for everything that was opted out since the checkpoint (smalti.loader.substitutes).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from smalti.errors import CorruptError, InputError, LakeError, MissingObject
from smalti.lake import Lake
from smalti.loader.skips import ServedShard, Stored
from smalti.objects import exists
from smalti.release.manifest import Manifest, StreamEntry, beside, read_manifest, read_stream_index
from smalti.release.optouts import check_of, lake_of, read_check
from smalti.release.tombstones import COLLECTED, read_tombstone, successor_of
from smalti.shards.erasures import Erasures, Moved

log = logging.getLogger("smalti")

_READERS = 16
"""Requests at once."""

_RESTORE = "Restore it; a pulled copy: run `smalti pull MANIFEST DIR` again, with the manifest that is open"


def check_not_succeeded(uri: str, manifest: Manifest) -> None:
    """Whether a run may start with this release. One request if it may; for one rank.

    What maintenance collects may be read until its objects are gone: runs that were begun with it have that long, and it is only said,
    unless samples of it were erased.
    A copy knows of tombstones what `smalti pull` brought. One with parts that are in the lake no more is refused: requests that came since
    were compared with what there is, and no snapshot names its samples. One whose shards hold erased samples is refused like the lake's. If opt-outs are
    all that the successor brought, the copy has its very shards, and leaves out the same samples: then, too, it is only said.

    Raises:
        InputError: the version was given up because of opt-outs, or opt-outs do not reach it.
    """
    lake = lake_of(uri)
    try:
        found = read_tombstone(lake, manifest.dataset, manifest.version)
    except LakeError as error:  # GCS says `forbidden` of what is not there to who may read objects and not list them
        log.warning("%s: it was not looked up whether the version was given up: %s", uri, error.what)
        return
    if found is None:
        _refuse_left_behind(uri, manifest)
        return
    what = f"{manifest.dataset} {manifest.version} was given up ({found.why})"
    by = successor_of(lake, manifest.dataset, manifest.version)
    held = erased_parts(Erasures.read(lake, (source.name for source in manifest.sources)), manifest)
    if found.why == COLLECTED and by is None and not held:
        _refuse_left_behind(uri, manifest)
        log.warning("%s: %s, and goes when the grace of maintenance is over: go on with another version", uri, what)
        return
    if check_of(uri) is None:
        if by is None:
            raise InputError(f"{what}, and no version succeeds it", uri, "Use another version")
        there = lake.manifest(manifest.dataset, by)
        raise InputError(
            f"{what}: {by} succeeds it",
            uri,
            f"Use {there}; checkpoints of {manifest.version} are loaded there as they are",
        )
    if not held:
        _refuse_left_behind(uri, manifest)
        log.warning("%s: %s; its shards and opt-outs are still good", uri, what + (f": {by} succeeds it" if by else ""))
        return
    if by is None:
        raise InputError(
            f"{what}, and this copy holds what was erased", uri, "Remove the copy, and pull another version"
        )
    raise InputError(
        f"{what}: {by} succeeds it, and this copy holds what was erased",
        uri,
        f"Run `smalti pull` on {by} into the same directory, and open that; checkpoints of {manifest.version} are loaded there as "
        "they are",
    )


def _refuse_left_behind(uri: str, manifest: Manifest) -> None:
    check = read_check(lake_of(uri))
    if check is not None and f"{manifest.dataset}/{manifest.version}" in check.left_behind:
        raise InputError(
            f"{manifest.dataset} {manifest.version} was given up, and parts of it are in the lake no more: what was opted out since is "
            "not known of them",
            uri,
            "Run `smalti pull` on the newest version into the same directory, and open that; then remove this version",
        )


def erased_parts(erasures: Erasures, manifest: Manifest) -> list[str]:
    """Parts of a release, <source>/<name>, of which samples were erased since."""
    keys = (f"{source.name}/{part.name}" for source in manifest.sources for part in source.parts)
    return [key for key in keys if key in erasures.steps]


def parts_gone(lake: Lake, manifest: Manifest) -> list[str]:
    """Parts of a release that are not committed in the lake any more. One request a part."""
    keys = [(source.name, part.name) for source in manifest.sources for part in source.parts]
    with ThreadPoolExecutor(_READERS) as pool:
        there = pool.map(lambda key: exists(lake.part_commit(*key)), keys)
        return ["/".join(key) for key, is_there in zip(keys, there, strict=True) if not is_there]


def held_still(erasures: Erasures, manifest: Manifest, parts: Path) -> list[str]:
    """A line, or none, on what a cache or a copy still holds of parts of which samples were erased."""
    held = [str(parts / key) for key in erased_parts(erasures, manifest) if (parts / key).is_dir()]
    return [f"what was erased is still here; remove it as soon as no run reads it: {' '.join(held)}"] if held else []


def succeeded(uri: str, manifest: Manifest) -> Iterator[tuple[str, Manifest]]:
    """URI and manifest of each version that this one succeeds, directly or not; the latest one first.

    Raises:
        MissingObject: one is not there.
        CorruptError: one is not what its successor says.
    """
    while manifest.succeeds is not None:
        was, uri = manifest.succeeds, beside(uri, f"../{manifest.succeeds.version}/manifest.json")
        try:
            before = read_manifest(uri)
        except MissingObject as error:
            raise MissingObject(
                f"the manifest of {was.version} is not here, which {manifest.version} succeeds", uri, _RESTORE
            ) from error
        if before.digest != was.digest:
            raise CorruptError(
                f"its digest is {before.digest}, and {manifest.version} succeeds {was.digest}", uri, _RESTORE
            )
        manifest = before
        yield uri, manifest


@dataclass(frozen=True)
class Successor:
    """Where samples of a release are that another one succeeds: in the shards of that one.

    What the logs say beyond its parts (an erasure that is under way) is left alone: so every rank finds the same.
    """

    uri: str
    manifest: Manifest
    erasures: Erasures

    @classmethod
    def of(cls, uri: str, manifest: Manifest, before: Manifest) -> Successor:
        """The successor at `uri`, for checkpoints of the version before, which may use sources of which nothing is left in it.

        Raises CorruptError if a log of parts is damaged.
        """
        parts = {f"{source.name}/{part.name}" for source in manifest.sources for part in source.parts}
        known = Erasures.read(lake_of(uri), (source.name for each in (before, manifest) for source in each.sources))
        return cls(uri, manifest, Erasures({part: step for part, step in known.steps.items() if part not in parts}))

    def line(self, before: Manifest) -> str:
        """For the log."""
        return (
            f"the checkpoint is of {before.dataset} {before.version}: its order goes on, with the shards of "
            f"{self.manifest.version}, which succeeds it"
        )

    def stored(self, stream: StreamEntry, shards: Sequence[ServedShard]) -> list[ServedShard]:
        """The shards of a stream of the version that was succeeded, with what holds them now.

        Raises:
            CorruptError: log, indices and the successor do not fit each other.
            MissingObject: the successor's index is not there.
        """
        moved = {shard.basename: self.erasures.place(shard.basename) for shard in shards}
        there = self._entries(stream)
        return [replace(shard, stored=self._found(shard, moved[shard.basename], there)) for shard in shards]

    def _found(self, shard: ServedShard, moved: Moved, there: Mapping[str, dict[str, Any]]) -> Stored | None:
        erased = np.array(moved.erased, np.int32)
        if moved.shard is None:
            return Stored(None, erased)
        entry = there.get(moved.shard)
        if entry is None:
            raise CorruptError(
                f"{self.manifest.version} has no shard {moved.shard}, which is to hold what is left",
                shard.basename,
                _RESTORE,
            )
        if int(entry["samples"]) + len(erased) != shard.samples or (len(erased) and erased[-1] >= shard.samples):
            raise CorruptError(
                f"{shard.samples} samples, less {len(erased)} that were erased, are not the {entry['samples']} of {moved.shard}",
                shard.basename,
                _RESTORE,
            )
        return None if moved.shard == shard.basename else Stored(entry, erased)

    def _entries(self, stream: StreamEntry) -> dict[str, dict[str, Any]]:
        """Basename -> entry, of the stream of that name; none if it has none left."""
        found = [each for each in self.manifest.streams if each.name == stream.name]
        return {entry["raw_data"]["basename"]: entry for each in found for entry in read_stream_index(self.uri, each)}
