"""Streams and their shares of an epoch, what becomes of those that fill no batch, and what there is to say of it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from streaming import Stream
from streaming.base.util import number_abbrev_to_int
from streaming.base.world import World

from smalti.errors import InputError
from smalti.loader.batching import Epoch
from smalti.loader.skips import ServedShard
from smalti.release.manifest import Manifest, StreamEntry

SmallStreams = Literal["leave_out", "merge", "refuse"]

Report = list[tuple[int, str]]
"""Log level and line."""


@dataclass(frozen=True)
class Chosen:
    """A stream as it will be served: one of the manifest, or those of several groups that have one shape.

    Attributes:
        entries: of the manifest.
        kept: samples served of each entry.
        shards: of all of them, in their order.
    """

    entries: tuple[StreamEntry, ...]
    kept: tuple[int, ...]
    shards: tuple[ServedShard, ...]

    @staticmethod
    def of(entry: StreamEntry, shards: Sequence[ServedShard]) -> Chosen:
        return Chosen((entry,), (sum(shard.kept for shard in shards),), tuple(shards))

    def with_samples_of(self, other: Chosen) -> Chosen:
        return Chosen(self.entries + other.entries, self.kept + other.kept, self.shards + other.shards)

    @property
    def name(self) -> str:
        """As the manifest spells it: group/tier/ar; of several groups, a+b/tier/ar."""
        return stream_name(self.entries)

    @property
    def bucket(self) -> tuple[int, str]:
        return self.entries[0].tier, self.entries[0].ar


def stream_name(entries: Sequence[StreamEntry]) -> str:
    """How a stream of these entries, which have one bucket, is called."""
    return f"{'+'.join(entry.group for entry in entries)}/{entries[0].tier}/{entries[0].ar}"


def that_fill_a_batch(
    manifest: Manifest, streams: list[Chosen], small: SmallStreams, batch_size: int, streaming: dict[str, Any]
) -> tuple[list[Chosen], list[float | None], Report]:
    """Streams that can be served, their shares of an epoch, and what there is to say before the first batch.

    With a method that builds batches of one stream, one that fills none would end the run in a worker.

    Args:
        small: what becomes of it; see ReleaseDataset.
        streaming: StreamingDataset's arguments.
    Raises:
        InputError: nothing is left, or `small` is `refuse` and there is such a stream.
    """
    where, method = f"{manifest.dataset} {manifest.version}", streaming.get("batching_method", "random")
    report: Report = []
    if not streams:
        raise InputError("no sample is left", where, "Choose other tiers, groups or another version")
    while streams:
        shares = _shares(manifest, streams)
        epoch = _epoch(streams, shares, batch_size, streaming)
        fills = epoch.batches()
        if all(fills):
            return streams, shares, [*report, *_losses(where, streams, epoch)]
        poor = [stream for stream, batches in zip(streams, fills, strict=True) if not batches]
        said = {
            stream.name: f"stream {stream.name}: its {n} samples fill no batch of {epoch.global_batch} ({method})"
            for stream, n in zip(streams, epoch.choose, strict=True)
        }
        if small == "refuse":
            raise InputError(
                said[poor[0].name], where, "Use a smaller batch_size, or small_streams='leave_out' or 'merge'"
            )
        pair = _pair(streams, poor) if small == "merge" else None
        if pair is not None:
            first, second = pair
            joined = first.with_samples_of(second)
            report.append((logging.WARNING, f"{said[second.name]}; put together with {first.name}"))
            streams = [joined if stream is first else stream for stream in streams if stream is not second]
            continue
        fate = "left out" + ("; no stream of another group has its shape" if small == "merge" else "")
        report += [(logging.WARNING, f"{said[stream.name]}; {fate}") for stream in poor]
        streams = [stream for stream in streams if stream not in poor]
    raise InputError(
        f"no stream fills a batch with batch_size {batch_size} and batching_method {method}",
        where,
        "Use a smaller batch_size, fewer ranks, or batching_method='random'",
    )


def _pair(streams: Sequence[Chosen], poor: Sequence[Chosen]) -> tuple[Chosen, Chosen] | None:
    """The first poor stream that another one can take, the largest of its bucket: a batch keeps one shape."""
    for stream in poor:
        others = [other for other in streams if other is not stream and other.bucket == stream.bucket]
        if others:
            return max(others, key=lambda other: sum(other.kept)), stream
    return None


def _shares(manifest: Manifest, streams: Sequence[Chosen]) -> list[float | None]:
    """Each stream's share of an epoch: its group's proportion, by kept samples. One group is taken as it is."""
    kept: Counter[str] = Counter()
    for stream in streams:
        for entry, n in zip(stream.entries, stream.kept, strict=True):
            kept[entry.group] += n
    if len(kept) == 1:
        return [None] * len(streams)
    total = sum(manifest.mixing[group] for group in kept)
    return [
        sum(
            manifest.mixing[entry.group] / total * n / kept[entry.group]
            for entry, n in zip(stream.entries, stream.kept, strict=True)
        )
        for stream in streams
    ]


def _epoch(
    streams: Sequence[Chosen], shares: Sequence[float | None], batch_size: int, streaming: dict[str, Any]
) -> Epoch:
    """What StreamingDataset will do with these streams and arguments."""
    drafts = [Stream(local=stream.name, proportion=share) for stream, share in zip(streams, shares, strict=True)]
    size = streaming.get("epoch_size")
    kept = np.array([sum(stream.kept) for stream in streams], np.int64)
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


def _losses(where: str, streams: Iterable[Chosen], epoch: Epoch) -> Iterator[tuple[int, str]]:
    served = epoch.served()
    lost = [max(0, choose - n) for choose, n in zip(epoch.choose, served, strict=True)]
    yield (
        logging.INFO,
        f"{where}: an epoch draws {sum(epoch.choose)} samples from {len(served)} streams; "
        f"{epoch.method} batches of {epoch.global_batch} ({epoch.batch_size} x {epoch.nodes * epoch.ranks} ranks) "
        f"leave {sum(lost)} of them out",
    )
    for stream, choose, n in zip(streams, epoch.choose, lost, strict=True):
        if n:
            yield logging.INFO, f"stream {stream.name}: {choose} samples, {n} ({n / choose:.1%}) fill no batch"
