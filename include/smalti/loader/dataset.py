"""ReleaseDataset: a StreamingDataset over the streams of a release that leaves out what the release skips.

Only two things differ from StreamingDataset: a shard's reader counts and finds the kept samples only, and a shard is checked
against its sha256 before it appears under its name. Shuffle, partition, mixing and resume are StreamingDataset's own, so
that the order is that of a tree from which the skipped samples were removed.

Opt-outs that are younger than the release. A run that starts leaves them out like everything that is skipped. A run
that resumes keeps the order of its checkpoint, and exchanges what was opted out since (smalti.loader.substitutes).

Where bytes lie. Below `local` the layout is that of the lake and of a pulled directory, `parts/<source>/<part>/...`, so
that versions of a dataset share what they have in common, and a directory that `smalti pull` filled can be `local` too.
A manifest on disk without `local` is read in place, and nothing is copied.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from time import time_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray
from streaming import StreamingDataset
from streaming.base.dataset import _ShardState
from streaming.base.distributed import get_rank
from streaming.base.world import World

from smalti.errors import InputError, SmaltiError
from smalti.loader.arguments import check_arguments, check_choice, is_where_it_lies
from smalti.loader.captions import Captions, choice_of, in_some_shards
from smalti.loader.position import Position, look_for
from smalti.loader.presence import fault_of_shards
from smalti.loader.skips import Optouts, lift, served_shards
from smalti.loader.small import Chosen, SmallStreams, that_fill_a_batch
from smalti.loader.streams import SkipStream, SkipStreamMixin, check_stream_class, unused_transport
from smalti.loader.substitutes import Exchanger, substitutes
from smalti.loader.together import Asked, Place, agreed, check_same, connected, together
from smalti.objects import local_path, normalise_uri
from smalti.reasons import SkipReason
from smalti.release.manifest import Manifest, StreamEntry, parts_uri, read_manifest
from smalti.release.optouts import lake_of, read_snapshot
from smalti.release.skips import canonical_json, sha256

log = logging.getLogger("smalti")

_ORDER = (
    "batching_method",
    "epoch_size",
    "num_canonical_nodes",
    "partition_algo",
    "replication",
    "sampling_granularity",
    "sampling_method",
    "shuffle",
    "shuffle_algo",
    "shuffle_block_size",
    "shuffle_seed",
)
"""Arguments of StreamingDataset that decide the order of samples."""

_READERS = 16
"""Requests at once for indices and skip files: a release of 52 streams a group has about a hundred, of 50 ms each."""

_NONE = np.array((), np.int64)


@dataclass(frozen=True)
class _Source:
    """What a dataset was asked for; it may have to be set up a second time, for a checkpoint."""

    uri: str
    local: Path | None
    entries: tuple[StreamEntry, ...]
    lifted: frozenset[SkipReason]
    small: SmallStreams
    stream_class: Callable[..., SkipStreamMixin]
    batch_size: int
    streaming: dict[str, Any]


@dataclass(frozen=True)
class _Plan:
    """What a dataset is to become.

    Attributes:
        gone, instead: sample numbers, and those of their substitutes.
        hidden: columns that only some samples have.
        report: level and line.
    """

    position: int
    selection: str
    streams: list[SkipStreamMixin]
    gone: NDArray[np.int64]
    instead: NDArray[np.int64]
    hidden: tuple[str, ...]
    report: list[tuple[int, str]]


class ReleaseDataset(StreamingDataset):  # type: ignore[misc]  # streaming is untyped
    """The kept samples of a release.

    A sample is a dict: `image` (PIL), `caption` and `id` (str), sizes (int), as the release's columns are. Where a release weighs
    several caption columns, `caption` is one of them, see CaptionChoice.apply.

    Args:
        manifest: path or URI of manifest.json: gs://, a lake on disk, or a directory that `smalti pull` made.
        local: directory for fetched shards; may be shared by datasets and versions. Empty: read in place (on disk only).
        tiers, groups: only these; empty: all.
        without: reasons whose samples are served again, for an ablation, as a set that the release declares.
        optouts: position up to which opt-outs apply; `newest` is found by rank 0 and shared.
        max_optout_age: a pulled copy whose opt-outs were last compared with the lake's longer ago is refused; None: never.
        small_streams: what becomes of a stream that cannot fill a batch of `batching_method`: `leave_out`, `merge` (with
            the largest stream of the same tier and ratio of another group; left out if there is none) or `refuse`.
            The first two are logged as warnings.
        captions: the one column that captions are taken from, or column -> weight; empty: as the release weighs them.
        stream_class: a subclass of SkipStream, or of SkipStreamMixin and a Stream of yours.
        batch_size: samples a rank takes at once; the DataLoader's too.
        **streaming: StreamingDataset's arguments (shuffle, batching_method, num_canonical_nodes, cache_limit, ...).
    Attributes:
        optouts: position of the opt-outs that are left out; after a resume, the checkpoint's.
    Raises:
        InputError: an argument does not fit the release, opt-outs are not known well enough, or ranks cannot agree on them.
        MissingObject: manifest, index, skip file, snapshot or (in place) shard is not there.
        CorruptError: one of them is not what the manifest promises.
    """

    optouts: int
    spanner: Any
    _epoch = 0

    def __init__(
        self,
        manifest: str,
        *,
        local: str | None = None,
        tiers: Collection[int] | None = None,
        groups: Collection[str] | None = None,
        without: Collection[str] = (),
        optouts: Position = "newest",
        max_optout_age: timedelta | None = timedelta(days=7),
        small_streams: SmallStreams = "leave_out",
        captions: Captions = None,
        stream_class: Callable[..., SkipStreamMixin] = SkipStream,
        batch_size: int,
        **streaming: Any,
    ) -> None:
        self._failure: BaseException | None = None

        def ask() -> Asked:
            uri = normalise_uri(str(manifest))
            here = local
            if isinstance(here, str | os.PathLike) and is_where_it_lies(uri, Path(here)):
                here = None  # in place: nothing there is fetched, evicted or replaced
            check_arguments(uri, here, small_streams, batch_size, max_optout_age, streaming)
            check_stream_class(stream_class, uri)
            check_choice(uri, {"tiers": tiers, "groups": groups, "without": without}, optouts)
            self.manifest = read_manifest(uri)
            self._captions = choice_of(captions, self.manifest.captions, uri)
            lifted = lift(self.manifest, without)
            self._source = _Source(
                uri,
                None if here is None else Path(here).absolute(),
                tuple(self.manifest.select(tiers or None, groups or None, lifted)),
                lifted,
                small_streams,
                stream_class,
                batch_size,
                streaming,
            )
            position = look_for(uri, self.manifest, optouts, max_optout_age)
            return Asked(Place.here(), self.manifest.digest, str(self._source.local), position)

        with connected():
            self._newest = agreed(together(ask))
            plan = self._together(lambda: self._plan(self._newest))
            assert plan is not None
            self._become(plan)

    def _together(self, make: Callable[[], _Plan | None]) -> _Plan | None:
        """What every rank is to become, if none has anything against it.

        StreamingDataset's own start has barriers: what can fail on one rank only must have happened before.
        """
        made: list[_Plan | None] = []

        def prepare() -> tuple[dict[str, str], bytes]:
            made.append(plan := make())
            said = {"position of opt-outs": str(plan.position if plan else self.optouts)}
            return (said | self._said_of(plan), _to_fetch(plan, self._source)) if plan else (said, b"")

        told = together(prepare)
        plan = made[0]
        for what in {what: None for said, _ in told for what in said}:
            check_same(what, [said.get(what) for said, _ in told])
        needed = [needed for _, needed in told if needed]
        if plan is not None and needed:
            fault = together(lambda: _fault(plan, self._source, self.manifest, needed) if get_rank() == 0 else None)[0]
            if fault is not None:
                raise fault
        return plan

    def _said_of(self, plan: _Plan) -> dict[str, str]:
        """What must be the same on every rank, so that they serve parts of one order."""
        source = self._source
        asked = {"batch_size": source.batch_size} | {name: source.streaming.get(name) for name in _ORDER}
        kept = [[stream.name, stream.kept] for stream in plan.streams]
        exchanged = sha256(plan.gone.tobytes() + plan.instead.tobytes())
        return {
            **{name: repr(value) for name, value in asked.items()},
            "choice of streams": plan.selection,
            "captions": repr(self._captions.shares),
            "set of samples": sha256(canonical_json([kept, exchanged]))[:16],
        }

    def _plan(self, position: int) -> _Plan:
        """The dataset of this position, with substitutes for what was opted out up to the newest.

        Raises:
            InputError: nothing is left of a stream, or no stream fills a batch. Nothing has changed then.
        """
        source = self._source
        applied = self._opted_out(position)
        since = {} if position == self._newest else self._opted_out(self._newest)
        streams, shares, report = that_fill_a_batch(
            self.manifest, _choose(source, applied), source.small, source.batch_size, source.streaming
        )
        self._captions.check_columns(streams, source.uri)
        if not self._captions.is_plain:
            report.append((logging.INFO, self._captions.line()))
        gone, instead = _exchanged(self.manifest, streams, since)
        if len(gone):
            report.append((
                logging.WARNING,
                f"{len(gone)} samples were opted out since the checkpoint: others stand in",
            ))
        names = [stream.name for stream in streams]
        selection = sha256(canonical_json([names, sorted(source.lifted)]))[:16]
        made = [_stream(source, self.manifest, stream, share) for stream, share in zip(streams, shares, strict=True)]
        unused = unused_transport(type(made[0]))
        if unused:
            report.append((logging.WARNING, f"{', '.join(unused)}: not called for a release; override fetch_shard"))
        return _Plan(position, selection, made, gone, instead, in_some_shards(streams), report)

    def _become(self, plan: _Plan) -> None:
        source = self._source
        self.optouts, self._selection, self._hidden = plan.position, plan.selection, plan.hidden
        super().__init__(streams=plan.streams, batch_size=source.batch_size, **source.streaming)
        if len(plan.gone):  # whoever asks where a sample is, to fetch or to serve it, is told where its substitute is
            self.spanner = Exchanger(self.spanner, plan.gone, plan.instead)
        if self._unique_rank_world.is_leader:
            for level, line in plan.report:
                log.log(level, line)

    def _opted_out(self, position: int) -> Optouts:
        """What must not be served besides what the release skips."""
        if position == self.manifest.optouts:
            return {}
        return read_snapshot(lake_of(self._source.uri), position).shards

    def state_dict(self, num_samples: int, from_beginning: bool) -> dict[str, Any]:
        """StreamingDataset's, with the release's digest, the choice of streams and captions, and the position of the opt-outs."""
        state: dict[str, Any] = super().state_dict(num_samples, from_beginning)
        ours = {"release": self.manifest.digest, "selection": self._selection, "optouts": self.optouts}
        return state | ours | {"captions": self._captions.shares}

    def load_state_dict(self, obj: dict[str, Any]) -> None:
        """Resume, on every rank and before the first batch.

        The order is the checkpoint's. What was opted out since then is exchanged for other samples of its stream.

        Raises:
            InputError: the state is of another release, of other streams or captions of this one, or of opt-outs that are not known here;
                or nothing is left of a stream that it needs.
        """
        with connected():
            plan = self._together(lambda: self._plan_for(obj))
            if plan:
                self._become(plan)
            # StreamingDataset puts it into memory that the ranks of a node share, and that whoever comes first makes: whoever came
            # at the same moment would find it empty, and fail.
            first, load = World.detect().is_local_leader, super().load_state_dict
            together(lambda: load(obj) if first else None)
            together(lambda: None if first else load(obj))

    def _plan_for(self, obj: object) -> _Plan | None:
        """What to become for a checkpoint; None: this dataset is it."""
        where = f"{self.manifest.dataset} {self.manifest.version}"
        if not isinstance(obj, dict):
            raise InputError(f"a {type(obj).__name__} is no checkpoint's state", where, "Pass what state_dict returned")
        if obj.get("release") != self.manifest.digest:
            raise InputError(
                f"the checkpoint belongs to the release with digest {obj.get('release')}, not {self.manifest.digest}",
                where,
                "Open the manifest that the run was started with",
            )
        self._captions.check_state(obj, where)
        position = obj.get("optouts", self.manifest.optouts)
        if type(position) is not int:
            raise InputError(f"the state's optouts={position!r} is no position", where, "Pass what state_dict returned")
        for name in ("epoch", "sample_in_epoch"):
            if type(obj.get(name)) is not int:
                raise InputError(f"the state's {name} is {obj.get(name)!r}", where, "Pass what state_dict returned")
        plan = self._plan_of(position, where)
        if obj.get("selection") != (plan.selection if plan else self._selection):
            raise InputError(
                "the checkpoint was made with other tiers, groups, `without` or `small_streams`, or another number of ranks "
                "left other streams without a batch",
                where,
                "Pass what the run was started with",
            )
        return plan

    def _plan_of(self, position: int, where: str) -> _Plan | None:
        """What to become for a checkpoint of this position; None: this dataset is it."""
        if position > self._newest:
            raise InputError(
                f"the checkpoint knows opt-outs up to position {position}, this dataset up to {self._newest}",
                where,
                "Open it with optouts='newest'; a pulled copy: run `smalti pull MANIFEST DIR --refresh-optouts`",
            )
        if position == self.optouts:
            return None
        if self.next_epoch:
            raise InputError(
                f"the checkpoint has other opt-outs (position {position}) than this dataset ({self.optouts}), which was iterated",
                where,
                "Load the checkpoint before the first batch",
            )
        return self._plan(position)

    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        """A sample by its number, with the caption of the epoch that is being read (before the first: of epoch 0)."""
        sample = super().get_item(sample_id, retry)
        for name in self._hidden:
            sample.pop(name, None)
        return sample if self._captions.is_plain else self._captions.apply(sample, self.shuffle_seed, self._epoch)

    def _resume_incr_epoch(self) -> tuple[int, int]:
        self._epoch, sample_in_epoch = super()._resume_incr_epoch()
        return self._epoch, sample_in_epoch

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

        It is asked for each sample that lies ahead. One that is here is only noted as used, without the lock that
        StreamingDataset takes: if it is evicted in the meantime, get_item misses the file and asks again.
        One that cannot be fetched is marked as if it were here: workers that wait for it go on, miss the file, try it
        themselves, and end with the same error. Left as `preparing`, it would have them wait for ever.
        """
        shard = self.shards[shard_id]
        path = os.path.join(shard.dirname, shard.raw_data.basename)
        if self._shard_states[shard_id] == _ShardState.LOCAL and os.path.isfile(path):
            self._shard_access_times[shard_id] = time_ns()
            return
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
            self._iterator.on_exit()  # it can no longer say so itself, and the end of the epoch waits for it


def _to_fetch(plan: _Plan, source: _Source) -> bytes:
    """Which shards of all streams this node will have to fetch, a bit each; b"" if none, or another rank of the node looks."""
    for stream in plan.streams:
        stream.open()
    if not World.detect().is_local_leader:
        return b""
    needed = np.concatenate([stream.look_around() for stream in plan.streams])
    if source.local is not None and source.streaming.get("cache_limit"):
        needed[:] = True  # what is here may be evicted, and is fetched again
    return np.packbits(needed).tobytes() if needed.any() else b""


def _fault(plan: _Plan, source: _Source, manifest: Manifest, needed: Sequence[bytes]) -> SmaltiError | None:
    """What is wrong with the shards that some node has to fetch."""
    bits = np.bitwise_or.reduce([np.frombuffer(each, np.uint8) for each in needed])
    readers = [reader.raw_data for stream in plan.streams for reader in stream.open()]
    wanted = np.flatnonzero(np.unpackbits(bits, count=len(readers)))
    return fault_of_shards(
        parts_uri(source.uri, manifest), [(readers[number].basename, readers[number].bytes) for number in wanted]
    )


def _choose(source: _Source, optouts: Optouts) -> list[Chosen]:
    """The streams that keep anything."""
    with ThreadPoolExecutor(_READERS) as pool:
        shards = pool.map(lambda entry: served_shards(source.uri, entry, source.lifted, optouts), source.entries)
        return [Chosen.of(entry, each) for entry, each in zip(source.entries, shards, strict=True) if each]


def _stream(source: _Source, manifest: Manifest, stream: Chosen, share: float | None) -> SkipStreamMixin:
    root = parts_uri(source.uri, manifest)
    parts = local_path(root) if source.local is None else source.local / "parts"
    assert parts is not None  # check_arguments
    made = source.stream_class(
        entries=stream.entries,
        shards=stream.shards,
        source=root,
        parts=parts,
        in_place=source.local is None,
        **({} if share is None else {"proportion": share}),
    )
    if not isinstance(made, SkipStreamMixin):
        raise InputError(f"stream_class made a {type(made).__name__}", source.uri, "Use a class with SkipStreamMixin")
    if share is not None and getattr(made, "proportion", None) != share:  # all groups would be drawn by their size
        raise InputError(
            f"{type(made).__name__} does not hand its proportion on to Stream",
            source.uri,
            "Have its __init__ pass the arguments that it does not know to super().__init__",
        )
    return made


def _exchanged(
    manifest: Manifest, streams: Sequence[Chosen], since: Optouts
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sample numbers that may no longer be served, ascending, and what is served instead."""
    gone, instead, start = [_NONE], [_NONE], 0
    for stream in streams:
        kept = np.array([shard.kept for shard in stream.shards], np.int64)
        numbers = {
            number: found
            for number, shard in enumerate(stream.shards)
            if (indices := since.get(shard.basename)) and len(found := shard.numbers_of(indices))
        }
        pair = substitutes(kept, numbers)
        if pair is None:
            raise InputError(
                f"everything that the checkpoint serves of stream {stream.name} was opted out since",
                f"{manifest.dataset} {manifest.version}",
                "Start a new run, with a newer version or without the stream",
            )
        gone.append(pair[0] + start)
        instead.append(pair[1] + start)
        start += int(kept.sum())
    return np.concatenate(gone), np.concatenate(instead)
