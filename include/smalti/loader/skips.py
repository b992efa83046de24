"""Which samples of which shards a release serves: a stream's index and its skip file, put together and checked.

A release of 100M samples may skip 10M. Their indices go from text into one array; no Python object is made for each.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smalti.errors import CorruptError, InputError
from smalti.objects import read_bytes
from smalti.reasons import ALWAYS_SKIPPED, DEDUP_REASONS, SkipReason, set_name
from smalti.release.manifest import Manifest, StreamEntry, beside, read_stream_index, skip_file_uri
from smalti.release.skips import damaged, decompress
from smalti.shards.erasures import before

_LIST = re.compile(rb"\[([^\[\]]*)\]")
_INDEX_BITS = 32

Optouts = Mapping[str, Sequence[int]]
"""basename relative to parts/ -> indices, ascending"""

_NOTHING = np.array((), np.int32)
_NO_NUMBERS = np.array((), np.int64)


@dataclass(frozen=True, slots=True)
class Stored:
    """What holds a shard that was written anew without some of its samples.

    Attributes:
        entry: as in index.json; None: nothing is left.
        erased: indices in the shard of before, ascending; shape (erased,).
    """

    entry: dict[str, Any] | None
    erased: NDArray[np.int32]

    def gone(self, optouts: Optouts) -> NDArray[np.int64]:
        """Indices in the shard of before, ascending, that were erased, or are opted out under the name of now: what is opted out when the
        shard of before is no more is opted out under that name alone."""
        indices = optouts.get(self.entry["raw_data"]["basename"], ()) if self.entry is not None else ()
        return np.union1d(self.erased, np.array(before(self.erased.tolist(), indices), np.int64)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class ServedShard:
    """A shard of which a release serves at least one sample.

    Attributes:
        entry: as in index.json; the basename is relative to parts/.
        left_out: indices of samples that are skipped, ascending; shape (skipped,).
        stored: where its samples are, if not under its own name.
        unread: others stand in for all its samples, so that it need not be there.
    """

    entry: dict[str, Any]
    left_out: NDArray[np.int32]
    stored: Stored | None = None
    unread: bool = False

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

    def numbers_of(self, indices: Sequence[int]) -> NDArray[np.int64]:
        """Where those of these samples that are kept stand among the kept ones, counted from 0; ascending.

        Raises:
            CorruptError: an index is outside the shard.
        """
        _check_inside(self, indices)
        kept = np.setdiff1d(np.array(indices, np.int64), self.left_out)
        return kept - np.searchsorted(self.left_out, kept)

    def numbers_gone(self, optouts: Optouts) -> NDArray[np.int64]:
        """Numbers, as `numbers_of`, of what may be served no more: opted out under the shard's name or under that of what holds it now,
        or erased (which is opted out, but could not be served in any case)."""
        indices: Sequence[int] = optouts.get(self.basename, ())
        if self.stored is not None:
            indices = np.union1d(np.array(indices, np.int64), self.stored.gone(optouts)).tolist()
        return self.numbers_of(indices) if indices else _NO_NUMBERS


def served_shards(
    manifest_uri: str, stream: StreamEntry, lifted: Collection[SkipReason] = (), optouts: Optouts | None = None
) -> list[ServedShard]:
    """Shards of a stream in their order, without those of which nothing is kept.

    Args:
        lifted: reasons whose samples are served again, a set that the release declares; a sample with another reason too
            stays out.
        optouts: samples that are left out besides; of shards of other streams too.
    Raises:
        MissingObject: the index or the skip file is not there.
        CorruptError: one of them is not what the manifest promises, or they do not fit each other.
    """
    entries = read_stream_index(manifest_uri, stream)
    skips = _read_skips(manifest_uri, stream, lifted)
    where = beside(manifest_uri, stream.index)
    sizes = {entry["raw_data"]["basename"]: int(entry["samples"]) for entry in entries}
    for basename, (samples, _) in skips.items():
        if sizes.get(basename) != samples:
            raise _unfit(
                f"the skip file counts {samples} samples in {basename}, the index {sizes.get(basename)}", where
            )
    shards = [
        ServedShard(entry, skips[name][1] if name in skips else _NOTHING)
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
    if optouts:
        shards = [_without(shard, optouts.get(shard.basename, ())) for shard in shards]
    return [shard for shard in shards if shard.kept]


def _without(shard: ServedShard, indices: Sequence[int]) -> ServedShard:
    if not indices:
        return shard
    _check_inside(shard, indices)
    return replace(shard, left_out=np.union1d(shard.left_out, np.array(indices, np.int32)))


def _check_inside(shard: ServedShard, indices: Sequence[int]) -> None:
    if len(indices) and indices[-1] >= shard.samples:
        raise _unfit(f"sample {indices[-1]} is opted out, the shard has {shard.samples}", shard.basename)


def _read_skips(
    manifest_uri: str, stream: StreamEntry, lifted: Collection[SkipReason]
) -> dict[str, tuple[int, NDArray[np.int32]]]:
    """Basename -> (samples in the shard, indices that are skipped, ascending), of shards that lose any."""
    if stream.skip_file is None:
        return {}
    uri = skip_file_uri(manifest_uri, stream.skip_file)
    return skipped_indices(decompress(read_bytes(uri), uri, stream.skip_file), uri, lifted)


def skipped_indices(
    content: bytes, where: str, lifted: Collection[SkipReason] = ()
) -> dict[str, tuple[int, NDArray[np.int32]]]:
    """What a skip file (`SkipFile`, uncompressed) says if these reasons are lifted.

    Returns:
        basename -> (samples in the shard, indices that are skipped, ascending), in the order of the file.
    Raises:
        CorruptError: it is no skip file.
    """
    outline, values, counts = _numbers_apart(content, where)
    names: list[str] = []
    samples: list[int] = []
    owners: list[int] = []  # of each list: its shard
    chosen: list[bool] = []  # of each list: whether what it names is skipped
    try:
        if outline.keys() != {"version", "shards"} or outline["version"] != 1:
            raise ValueError("the version or a field is another one")
        for name, shard in outline["shards"].items():
            if not shard.keys() <= {"decided", "samples", "skip"} or type(shard["samples"]) is not int:
                raise ValueError(f"shard {name} has other fields")
            for kind in ("decided", "skip"):
                for key, number in shard.get(kind, {}).items():
                    if type(number) is not int or number != len(owners):
                        raise ValueError(f"{key} of {name} is no list")
                    owners.append(len(names))
                    chosen.append(_counts(kind, key, lifted))
            names.append(name)
            samples.append(shard["samples"])
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise damaged(where, f"this is not a skip file ({error})") from error
    if len(owners) != len(counts):
        raise damaged(where, "this is not a skip file (a list stands where none should)")
    owner = np.array(owners, np.int64)
    of_list = np.repeat(np.arange(len(counts)), counts)
    same = of_list[1:] == of_list[:-1]
    if not (np.diff(values)[same] > 0).all():
        raise damaged(where, "indices are not ascending")
    if (values >= np.array(samples, np.int64)[owner[of_list]]).any():
        raise damaged(where, "an index is outside its shard")
    # One sorted array of (shard, index): a sample with two reasons is in it once.
    taken = np.array(chosen, bool)[of_list]
    keys = np.unique((owner[of_list[taken]] << _INDEX_BITS) | values[taken])
    bounds = np.searchsorted(keys, np.arange(len(names) + 1, dtype=np.int64) << _INDEX_BITS)
    flat = (keys & ((1 << _INDEX_BITS) - 1)).astype(np.int32)
    return {name: (samples[number], flat[bounds[number] : bounds[number + 1]]) for number, name in enumerate(names)}


def _numbers_apart(content: bytes, where: str) -> tuple[Any, NDArray[np.int64], NDArray[np.int64]]:
    """A skip file as (JSON in which each list is replaced by its number, all lists one after the other, their lengths)."""
    lists: list[bytes] = []

    def take(match: re.Match[bytes]) -> bytes:
        lists.append(match[1])
        return b"%d" % (len(lists) - 1)

    try:
        outline = json.loads(_LIST.sub(take, content))
    except ValueError as error:
        raise damaged(where, f"this is not a skip file ({error})") from error
    text = b",".join(lists)
    counts = np.array([each.count(b",") + 1 for each in lists], np.int64)
    wrong = text.translate(None, b"0123456789,") or b",," in text or text[:1] == b"," or text[-1:] == b","
    if wrong or any(not each for each in lists):
        raise damaged(where, "a list holds something else than indices, or nothing")
    values = np.fromstring(text, np.int64, sep=",") if text else np.array((), np.int64)
    if len(values) != counts.sum():
        raise damaged(where, "a list holds something else than indices")
    return outline, values, counts


def _counts(kind: str, key: str, lifted: Collection[SkipReason]) -> bool:
    """Whether the samples of a list are skipped; as `ShardSkips.left_out`, which tests hold it against."""
    if kind == "decided":
        return bool(lifted) and key == set_name(lifted)
    reason = SkipReason(key)  # ValueError: no such reason
    return not lifted or (reason not in lifted and reason not in DEDUP_REASONS)


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
