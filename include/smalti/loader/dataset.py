"""ReleaseDataset: a StreamingDataset over the streams of a release that leaves out what the release skips.

Only two things differ from StreamingDataset: a shard's reader counts and finds the kept samples only, and a shard is checked
against its sha256 before it appears under its name. Shuffle, partition, mixing and resume are StreamingDataset's own, so
that the order is that of a tree from which the skipped samples were removed.

Opt-outs that are younger than the release. A run that starts leaves them out like everything that is skipped. A run
that resumes keeps the order of its checkpoint, and exchanges what was opted out since (smalti.loader.substitutes). A checkpoint of a
version that was succeeded, because samples of it were erased, goes on in its successor (smalti.loader.successors).

Where bytes lie. Below `local` the layout is that of the lake and of a pulled directory, `parts/<source>/<part>/...`, so
that versions of a dataset share what they have in common, and a directory that `smalti pull` filled can be `local` too.
A manifest on disk without `local` is read in place, and nothing is copied.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from time import time_ns
from typing import Any

from streaming import StreamingDataset
from streaming.base.dataset import _ShardState
from streaming.base.distributed import get_rank
from streaming.base.world import World

from smalti.errors import InputError, SmaltiError
from smalti.loader.arguments import check_arguments, check_choice, is_where_it_lies
from smalti.loader.captions import Captions
from smalti.loader.plan import Plan, Source, Wanted
from smalti.loader.position import Position, look_for
from smalti.loader.small import SmallStreams
from smalti.loader.streams import SkipStream, SkipStreamMixin, check_stream_class
from smalti.loader.substitutes import Exchanger
from smalti.loader.successors import Successor, check_not_succeeded, succeeded
from smalti.loader.together import Asked, Place, agreed, check_same, connected, together
from smalti.objects import normalise_uri
from smalti.release.manifest import Manifest, read_manifest

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
        manifest: what is served; after a resume with a successor, the checkpoint's.
    Raises:
        InputError: an argument does not fit the release, it was succeeded, opt-outs are not known well enough, or ranks cannot agree on them.
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
            release = read_manifest(uri)
            if get_rank() == 0:
                check_not_succeeded(uri, release)
            where = None if here is None else Path(here).absolute()
            wanted = Wanted(where, tiers, groups, without, captions, small_streams, stream_class, batch_size, streaming)
            self._opened = self._source = Source.of(uri, release, wanted)
            position = look_for(uri, release, optouts, max_optout_age)
            return Asked(Place.here(), release.digest, str(where), position)

        with connected():
            self._newest = agreed(together(ask))
            plan = self._together(lambda: Plan.of(self._opened, self._newest, self._newest))
            assert plan is not None
            self._become(plan)

    @property
    def manifest(self) -> Manifest:
        return self._source.manifest

    def _together(self, make: Callable[[], Plan | None]) -> Plan | None:
        """What every rank is to become, if none has anything against it.

        StreamingDataset's own start has barriers: what can fail on one rank only must have happened before.
        """
        made: list[Plan | None] = []

        def prepare() -> tuple[dict[str, str], bytes]:
            made.append(plan := make())
            source, position = (plan.source, plan.position) if plan else (self._source, self.optouts)
            told = {"position of opt-outs": str(position), "release of a checkpoint": source.where}
            if plan is None:
                return told, b""
            wanted = source.wanted
            asked = {"batch_size": wanted.batch_size} | {name: wanted.streaming.get(name) for name in _ORDER}
            return told | {name: repr(value) for name, value in asked.items()} | plan.said(), plan.to_fetch()

        told = together(prepare)
        plan = made[0]
        for what in {what: None for said, _ in told for what in said}:
            check_same(what, [said.get(what) for said, _ in told])
        needed = [needed for _, needed in told if needed]
        if plan is not None and needed:
            fault = together(lambda: plan.fault(needed) if get_rank() == 0 else None)[0]
            if fault is not None:
                raise fault
        return plan

    def _become(self, plan: Plan) -> None:
        self._source, self.optouts, self._selection, self._hidden = (
            plan.source,
            plan.position,
            plan.selection,
            plan.hidden,
        )
        wanted = plan.source.wanted
        super().__init__(streams=plan.streams, batch_size=wanted.batch_size, **wanted.streaming)
        if len(plan.gone):  # whoever asks where a sample is, to fetch or to serve it, is told where its substitute is
            self.spanner = Exchanger(self.spanner, plan.gone, plan.instead)
        if self._unique_rank_world.is_leader:
            for level, line in plan.report:
                log.log(level, line)

    def state_dict(self, num_samples: int, from_beginning: bool) -> dict[str, Any]:
        """StreamingDataset's, with the release's digest, the choice of streams and captions, and the position of the opt-outs."""
        state: dict[str, Any] = super().state_dict(num_samples, from_beginning)
        ours = {"release": self.manifest.digest, "selection": self._selection, "optouts": self.optouts}
        return state | ours | {"captions": self._source.captions.shares}

    def load_state_dict(self, obj: dict[str, Any]) -> None:
        """Resume, on every rank and before the first batch.

        The order is the checkpoint's. What was opted out since then is exchanged for other samples of its stream. The state may be of a
        version that the manifest's succeeds: the dataset then is one of that version, see smalti.loader.successors.

        Raises:
            InputError: the state is of another release, of other streams or captions of this one, or of opt-outs that are not known here;
                or nothing is left of a stream that it needs.
            MissingObject, CorruptError: what is to be there of a version that was succeeded is not, or is damaged.
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

    def _plan_for(self, obj: object) -> Plan | None:
        """What to become for a checkpoint; None: this dataset is it."""
        where = self._opened.where
        if not isinstance(obj, dict):
            raise InputError(f"a {type(obj).__name__} is no checkpoint's state", where, "Pass what state_dict returned")
        source = self._source_of(obj.get("release"), where)
        source.captions.check_state(obj, where)
        position = obj.get("optouts", source.manifest.optouts)
        if type(position) is not int:
            raise InputError(f"the state's optouts={position!r} is no position", where, "Pass what state_dict returned")
        for name in ("epoch", "sample_in_epoch"):
            if type(obj.get(name)) is not int:
                raise InputError(f"the state's {name} is {obj.get(name)!r}", where, "Pass what state_dict returned")
        plan = self._plan_of(source, position, where)
        if obj.get("selection") != (plan.selection if plan else self._selection):
            raise InputError(
                "the checkpoint was made with other tiers, groups, `without` or `small_streams`, or another number of ranks "
                "left other streams without a batch",
                where,
                "Pass what the run was started with",
            )
        return plan

    def _source_of(self, digest: object, where: str) -> Source:
        """The release with this digest: the one that is served or was opened, or one that it succeeds."""
        for source in (self._source, self._opened):
            if digest == source.manifest.digest:
                return source
        opened, names = self._opened, []
        for uri, manifest in succeeded(opened.uri, opened.manifest):
            if digest == manifest.digest:
                return Source.of(uri, manifest, opened.wanted, Successor.of(opened.uri, opened.manifest, manifest))
            names.append(manifest.version)
        known = f", nor to what it succeeds ({', '.join(names)})" if names else ""
        raise InputError(
            f"the checkpoint belongs to the release with digest {digest}, not {opened.manifest.digest}{known}",
            where,
            "Open the manifest that the run was started with",
        )

    def _plan_of(self, source: Source, position: int, where: str) -> Plan | None:
        """What to become for a checkpoint of this release and position; None: this dataset is it."""
        if position > self._newest:
            raise InputError(
                f"the checkpoint knows opt-outs up to position {position}, this dataset up to {self._newest}",
                where,
                "Open it with optouts='newest'; a pulled copy: run `smalti pull MANIFEST DIR --refresh-optouts`",
            )
        if source is self._source and position == self.optouts:
            return None
        if self.next_epoch:
            raise InputError(
                f"the checkpoint has other opt-outs (position {position}) than this dataset ({self.optouts}), which was iterated",
                where,
                "Load the checkpoint before the first batch",
            )
        return Plan.of(source, position, self._newest)

    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        """A sample by its number, with the caption of the epoch that is being read (before the first: of epoch 0)."""
        sample = super().get_item(sample_id, retry)
        for name in self._hidden:
            sample.pop(name, None)
        captions = self._source.captions
        return sample if captions.is_plain else captions.apply(sample, self.shuffle_seed, self._epoch)

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
