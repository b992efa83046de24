"""Which samples of which shards a release serves: a stream's index and its skip file, put together and checked."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smalti.errors import CorruptError, InputError
from smalti.reasons import ALWAYS_SKIPPED, SkipReason
from smalti.release.manifest import Manifest, StreamEntry, beside, read_skip_file, read_stream_index


@dataclass(frozen=True, slots=True)
class ServedShard:
    """A shard of which a release serves at least one sample.

    Attributes:
        entry: as in index.json; the basename is relative to parts/.
        left_out: indices of samples that are skipped, ascending; shape (skipped,).
    """

    entry: dict[str, Any]
    left_out: NDArray[np.int32]

    @property
    def basename(self) -> str:
        return str(self.entry["raw_data"]["basename"])

    @property
    def bytes(self) -> int:
        return int(self.entry["raw_data"]["bytes"])

    @property
    def sha256(self) -> str:
        return str(self.entry["raw_data"]["hashes"]["sha256"])

    @property
    def samples(self) -> int:
        """In the shard, skipped ones too."""
        return int(self.entry["samples"])

    @property
    def kept(self) -> int:
        return self.samples - len(self.left_out)

    def kept_indices(self) -> list[int]:
        """Indices that are served, ascending."""
        served = np.ones(self.samples, bool)
        served[self.left_out] = False
        return [int(index) for index in np.flatnonzero(served)]


def served_shards(manifest_uri: str, stream: StreamEntry, lifted: Collection[SkipReason] = ()) -> list[ServedShard]:
    """Shards of a stream in their order, without those of which nothing is kept.

    Args:
        lifted: reasons whose samples are served again, a set that the release declares; a sample with another reason too
            stays out.
    Raises:
        MissingObject: the index or the skip file is not there.
        CorruptError: one of them is not what the manifest promises, or they do not fit each other.
    """
    entries = read_stream_index(manifest_uri, stream)
    skips = read_skip_file(manifest_uri, stream).shards
    where = beside(manifest_uri, stream.index)
    sizes = {entry["raw_data"]["basename"]: int(entry["samples"]) for entry in entries}
    for basename, skip in skips.items():
        if sizes.get(basename) != skip.samples:
            raise _unfit(
                f"the skip file counts {skip.samples} samples in {basename}, the index {sizes.get(basename)}", where
            )
    shards = [
        ServedShard(entry, np.array(sorted(skips[name].left_out(lifted)) if name in skips else (), np.int32))
        for name, entry in zip(sizes, entries, strict=True)
    ]
    counts = {
        "samples": (sum(shard.samples for shard in shards), stream.samples),
        "bytes": (sum(shard.bytes for shard in shards), stream.bytes),
        "kept samples": (sum(shard.kept for shard in shards), stream.kept_if(lifted)),
    }
    for what, (found, promised) in counts.items():
        if found != promised:
            raise _unfit(f"index and skip file come to {found} {what}, the manifest to {promised}", where)
    return [shard for shard in shards if shard.kept]


def lift(manifest: Manifest, without: Iterable[str]) -> frozenset[SkipReason]:
    """The reasons that `without` asks to serve again.

    Raises:
        InputError: no such reason, one that is never lifted, or a set that the release does not declare.
    """
    where = f"without, {manifest.dataset} {manifest.version}"
    wanted = frozenset(without)
    declared = [frozenset(each) for each in manifest.reason_sets]
    unknown = sorted(wanted - set(SkipReason))
    if unknown:
        raise InputError(f"there is no skip reason {unknown[0]!r}", where, f"Use one of: {', '.join(SkipReason)}")
    never = sorted(wanted & ALWAYS_SKIPPED)
    if never:
        raise InputError(f"samples skipped as {', '.join(never)} are never served", where, "Leave the reason away")
    if wanted not in declared:
        sets = ", ".join(f"({', '.join(sorted(each))})" for each in declared)
        raise InputError(
            f"the release does not declare the set ({', '.join(sorted(wanted))})",
            where,
            f"Duplicates were decided for these sets only: {sets}",
        )
    return frozenset(reason for reason in SkipReason if reason in wanted)


def _unfit(what: str, where: str) -> CorruptError:
    return CorruptError(what, where, "Use another version of the dataset; a pulled copy: pull it again")
