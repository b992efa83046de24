"""ReleaseDataset: a StreamingDataset over the streams of a release that leaves out what the release skips.

Only two things differ from StreamingDataset: a shard's reader counts and finds the kept samples only, and a shard is checked
against its sha256 before it appears under its name. Shuffle, partition, mixing and resume are StreamingDataset's own, so
that the order is that of a tree from which the skipped samples were removed.

Where bytes lie. Below `local` the layout is that of the lake and of a pulled directory, `parts/<source>/<part>/...`, so
that versions of a dataset share what they have in common, and a directory that `smalti pull` filled can be `local` too.
A manifest on disk without `local` is read in place, and nothing is copied.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from streaming import Stream, StreamingDataset
from streaming.base.dataset import _ShardState
from streaming.base.format.mds import MDSReader
from streaming.base.util import number_abbrev_to_int
from streaming.base.world import World

from smalti.errors import CorruptError, InputError, LakeError, MissingObject, SmaltiError
from smalti.loader.batching import Epoch
from smalti.loader.fetch import fetch
from smalti.loader.skips import ServedShard, lift, served_shards
from smalti.objects import join_uri, local_path, normalise_uri
from smalti.release.manifest import Manifest, StreamEntry, parts_uri, read_manifest
from smalti.release.skips import canonical_json, sha256

log = logging.getLogger("smalti")

_OURS = ("keep_zip", "remote", "split", "stream_config", "stream_name", "streams", "validate_hash")
"""Arguments of StreamingDataset that a release decides."""

_READERS = 16
"""Requests at once for indices and skip files: a release of 52 streams a group has about a hundred, of 50 ms each."""


class KeptReader(MDSReader):  # type: ignore[misc]  # streaming is untyped
    """A shard that shows its kept samples only, numbered from 0."""

    _before: NDArray[np.int32] | None = None
    """For each skipped sample, ascending: how many kept ones come before it."""

    def leave_out(self, indices: NDArray[np.int32]) -> None:
        """Hide these samples (ascending indices)."""
        self.samples -= len(indices)
        self._before = indices - np.arange(len(indices), dtype=np.int32) if len(indices) else None

    def get_sample_data(self, idx: int) -> bytes:
        if self._before is not None:
            idx += int(np.searchsorted(self._before, idx, side="right"))
        return bytes(super().get_sample_data(idx))


class SkipStream(Stream):  # type: ignore[misc]  # streaming is untyped
    """One stream of a release.

    Args:
        entry: what the manifest says of it.
        shards: what it serves.
        source: URI of parts/ of the release.
        parts: where shards lie, or are to lie, on this machine.
        in_place: `parts` is where the release itself is: nothing is fetched, nothing removed.
        proportion: share of an epoch, when groups are mixed.
    """

    def __init__(
        self,
        entry: StreamEntry,
        shards: Sequence[ServedShard],
        source: str,
        parts: Path,
        in_place: bool,
        proportion: float | None = None,
    ) -> None:
        # StreamingDataset wants a directory a stream that no other stream uses, and takes it for a name only: all that
        # would be done in it is overridden below. No `remote`: it would have StreamingDataset refuse a second dataset
        # over one cache, also one whose process is long dead. Shards are immutable and appear whole, so sharing is safe.
        super().__init__(local=str(parts / ".streams" / entry.name), proportion=proportion)
        self.entry = entry
        self.kept = sum(shard.kept for shard in shards)
        self._served = shards
        self._source = source
        self._parts = parts
        self._in_place = in_place

    def get_shards(self, world: World, allow_unsafe_types: bool) -> list[KeptReader]:
        readers = []
        for shard in self._served:
            reader = KeptReader.from_json(str(self._parts), None, shard.entry)
            reader.validate(allow_unsafe_types)
            reader.leave_out(shard.left_out)
            readers.append(reader)
        self._served = ()  # the readers know it all; a hundred million samples are held once
        return readers

    def set_up_local(self, shards: Sequence[KeptReader], cache_usage_per_shard: NDArray[np.int64]) -> None:
        """Note which shards are here. Called on one rank of each node."""
        for number, shard in enumerate(shards):
            path, size = self._parts / shard.raw_data.basename, shard.raw_data.bytes
            there = path.stat().st_size if path.exists() else None
            if there == size:
                cache_usage_per_shard[number] = size
            elif self._in_place:
                raise _incomplete(path, size, there)
            elif there is not None:
                log.warning("%s has %d bytes instead of %d and is fetched anew", path, there, size)
                path.unlink()

    def prepare_shard(self, shard: KeptReader) -> int:
        """Bring a shard here if it is not. Returns the bytes that were added."""
        info = shard.raw_data
        path = self._parts / info.basename
        if path.exists():
            return 0
        if self._in_place:
            raise _incomplete(path, info.bytes, None)
        tries = 1 + self.download_retry
        for left in reversed(range(tries)):
            try:
                fetch(join_uri(self._source, info.basename), path, info.hashes["sha256"])
                break
            except (CorruptError, LakeError):
                if not left:
                    raise
        return int(info.bytes)

    def get_index_size(self) -> int:
        return 0  # indices are not cached


class ReleaseDataset(StreamingDataset):  # type: ignore[misc]  # streaming is untyped
    """The kept samples of a release.

    A sample is a dict: `image` (PIL), `caption` and `id` (str), sizes (int), as the release's columns are.

    Args:
        manifest: path or URI of manifest.json: gs://, a lake on disk, or a directory that `smalti pull` made.
        local: directory for fetched shards; may be shared by datasets and versions. Empty: read in place (on disk only).
        tiers, groups: only these; empty: all.
        without: reasons whose samples are served again, for an ablation, as a set that the release declares.
        batch_size: samples a rank takes at once; the DataLoader's too.
        **streaming: StreamingDataset's arguments (shuffle, batching_method, num_canonical_nodes, cache_limit, ...).
    Raises:
        InputError: an argument does not fit the release.
        MissingObject: manifest, index, skip file or (in place) shard is not there.
        CorruptError: one of them is not what the manifest promises.
    """

    def __init__(
        self,
        manifest: str,
        *,
        local: str | None = None,
        tiers: Collection[int] | None = None,
        groups: Collection[str] | None = None,
        without: Collection[str] = (),
        batch_size: int,
        **streaming: Any,
    ) -> None:
        uri = normalise_uri(str(manifest))
        _check_arguments(uri, local, streaming)
        self.manifest = read_manifest(uri)
        self._failure: BaseException | None = None
        lifted = lift(self.manifest, without)
        parts = local_path(parts_uri(uri, self.manifest)) if local is None else Path(local).absolute() / "parts"
        assert parts is not None  # _check_arguments
        entries = self.manifest.select(tiers, groups, lifted)
        with ThreadPoolExecutor(_READERS) as pool:
            shards = list(pool.map(lambda entry: served_shards(uri, entry, lifted), entries))
        streams = [
            SkipStream(entry, each, parts_uri(uri, self.manifest), parts, in_place=local is None)
            for entry, each in zip(entries, shards, strict=True)
            if each
        ]
        streams, report = _that_fill_a_batch(self.manifest, streams, batch_size, streaming)
        self._selection = sha256(canonical_json([[s.entry.name for s in streams], sorted(lifted)]))[:16]
        super().__init__(streams=streams, batch_size=batch_size, **streaming)
        if self._unique_rank_world.is_leader:
            for level, line in report:
                log.log(level, line)

    def state_dict(self, num_samples: int, from_beginning: bool) -> dict[str, Any]:
        """StreamingDataset's, with the release's digest and the choice of streams."""
        state: dict[str, Any] = super().state_dict(num_samples, from_beginning)
        return state | {"release": self.manifest.digest, "selection": self._selection}

    def load_state_dict(self, obj: dict[str, Any]) -> None:
        """Resume. Raises InputError for a state of another release, or of other streams of this one."""
        where = f"{self.manifest.dataset} {self.manifest.version}"
        if obj.get("release") != self.manifest.digest:
            raise InputError(
                f"the checkpoint belongs to the release with digest {obj.get('release')}, not {self.manifest.digest}",
                where,
                "Open the manifest that the run was started with",
            )
        if obj.get("selection") != self._selection:
            raise InputError(
                "the checkpoint was made with other tiers, groups or `without`, or another number of ranks left other "
                "streams without a batch",
                where,
                "Pass what the run was started with",
            )
        super().load_state_dict(obj)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """An epoch, or what is left of one. What a background thread ran into is raised here, and never ends it early."""
        try:
            yield from super().__iter__()
        except RuntimeError as error:
            raise (self._failure or error) from error
        if self._failure is not None:
            raise self._failure

    def prepare_shard(self, shard_id: int, blocking: bool = True) -> None:
        """Bring a shard here.

        One that cannot be fetched is marked as if it were here: workers that wait for it go on, miss the file, try it
        themselves, and end with the same error. Left as `preparing`, it would have them wait for ever.
        """
        try:
            super().prepare_shard(shard_id, blocking)
        except (SmaltiError, OSError):
            self._shard_states[shard_id] = _ShardState.LOCAL
            raise

    def on_exception(self, future: Future[None]) -> None:
        """Called with each background thread that ended: remember why, and stop the others."""
        error = future.exception()
        if error is not None:
            self._failure = self._failure or error
            self._event.set()


def _check_arguments(uri: str, local: str | None, streaming: dict[str, Any]) -> None:
    taken = sorted(set(_OURS) & set(streaming))
    if taken:
        raise InputError(f"ReleaseDataset takes no {', '.join(taken)}", uri, "Leave it away: the release decides it")
    if local is None and local_path(uri) is None:
        raise InputError("no directory is named for the shards", uri, "Pass local=DIRECTORY")
    if local is None and streaming.get("cache_limit"):
        raise InputError(
            "a release that is read in place is not evicted from", uri, "Pass local=DIRECTORY, or no cache_limit"
        )


def _incomplete(path: Path, size: int, there: int | None) -> MissingObject | CorruptError:
    if there is None:
        return MissingObject("the shard is not here", str(path), "Pull it, or choose tiers and groups that are here")
    return CorruptError(f"the shard has {there} bytes instead of {size}", str(path), "Pull it again")


def _mix(manifest: Manifest, streams: Sequence[SkipStream]) -> None:
    """Give each stream its share of an epoch: its group's proportion, by kept samples. One group is taken as it is."""
    groups = {stream.entry.group for stream in streams}
    total = sum(manifest.mixing[group] for group in groups)
    for stream in streams:
        if len(groups) == 1:
            stream.__dict__.pop("proportion", None)
            continue
        kept = sum(each.kept for each in streams if each.entry.group == stream.entry.group)
        stream.proportion = manifest.mixing[stream.entry.group] / total * stream.kept / kept


def _epoch(streams: Sequence[SkipStream], batch_size: int, streaming: dict[str, Any]) -> Epoch:
    """What StreamingDataset will do with these streams and arguments."""
    drafts = [copy.copy(stream) for stream in streams]  # weights are written into them
    size = streaming.get("epoch_size")
    kept = np.array([stream.kept for stream in streams], np.int64)
    Stream.apply_weights(
        drafts, kept, number_abbrev_to_int(size) if size else None, streaming.get("shuffle_seed", 9176)
    )
    world = World.detect()
    if streaming.get("replication") is not None:
        world = world.replicate(streaming["replication"])
    slow = streaming.get("shuffle_algo", "py1e") in ("py1s", "py2s")
    canonical = streaming.get("num_canonical_nodes") or world.num_nodes * (64 if slow else 1)
    block = streaming.get("shuffle_block_size") or max(4_000_000 // canonical, 1 << 18)
    return Epoch(
        method=streaming.get("batching_method", "random"),
        choose=[int(stream.choose) for stream in drafts],
        proportions=[float(stream.proportion) for stream in drafts],
        nodes=world.num_nodes,
        ranks=world.ranks_per_node,
        canonical=canonical,
        batch_size=batch_size,
        shuffle_block=block if streaming.get("shuffle") else None,
    )


def _that_fill_a_batch(
    manifest: Manifest, streams: list[SkipStream], batch_size: int, streaming: dict[str, Any]
) -> tuple[list[SkipStream], list[tuple[int, str]]]:
    """Streams that can be served, with their shares of an epoch, and what there is to say of it before the first batch.

    With a method that builds batches of one stream, one that fills no batch would end the run: it is left out, and said so.
    """
    report: list[tuple[int, str]] = []
    while streams:
        _mix(manifest, streams)
        epoch = _epoch(streams, batch_size, streaming)
        fills = epoch.batches()
        if all(fills):
            return streams, [*report, *_losses(manifest, streams, epoch)]
        for stream, choose, batches in zip(streams, epoch.choose, fills, strict=True):
            if not batches:
                line = f"stream {stream.entry.name}: its {choose} samples fill no batch of {epoch.global_batch} ({epoch.method}); left out"
                report.append((logging.WARNING, line))
        streams = [stream for stream, batches in zip(streams, fills, strict=True) if batches]
    raise InputError(
        f"no stream fills a batch with batch_size {batch_size} and batching_method {streaming.get('batching_method')}",
        f"{manifest.dataset} {manifest.version}",
        "Use a smaller batch_size, fewer ranks, or batching_method='random'",
    )


def _losses(manifest: Manifest, streams: Iterable[SkipStream], epoch: Epoch) -> Iterator[tuple[int, str]]:
    served = epoch.served()
    lost = [max(0, choose - n) for choose, n in zip(epoch.choose, served, strict=True)]
    yield (
        logging.INFO,
        f"{manifest.dataset} {manifest.version}: an epoch draws {sum(epoch.choose)} samples from {len(served)} streams; "
        f"{epoch.method} batches of {epoch.global_batch} ({epoch.batch_size} x {epoch.nodes * epoch.ranks} ranks) "
        f"leave {sum(lost)} of them out",
    )
    for stream, choose, n in zip(streams, epoch.choose, lost, strict=True):
        if n:
            yield logging.INFO, f"stream {stream.entry.name}: {choose} samples, {n} ({n / choose:.1%}) fill no batch"
