"""What a dataset is to become: a release as it was asked for, its streams at a position of the opt-outs, and what there is to say of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from streaming.base.world import World

from smalti.errors import InputError, SmaltiError
from smalti.loader.captions import CaptionChoice, Captions, choice_of, in_some_shards
from smalti.loader.presence import fault_of_shards
from smalti.loader.skips import Optouts, ServedShard, lift, served_shards
from smalti.loader.small import Chosen, SmallStreams, that_fill_a_batch
from smalti.loader.streams import SkipStreamMixin, unused_transport
from smalti.loader.substitutes import substitutes
from smalti.loader.successors import Successor, held_still
from smalti.objects import local_path
from smalti.reasons import SkipReason
from smalti.release.manifest import Manifest, StreamEntry, parts_uri
from smalti.release.optouts import lake_of, read_snapshot
from smalti.release.skips import canonical_json, sha256

_READERS = 16
"""Requests at once for indices and skip files: a release of 52 streams a group has about a hundred, of 50 ms each."""

_NONE = np.array((), np.int64)


@dataclass(frozen=True)
class Wanted:
    """Arguments of a dataset. They hold for its release, and for one that this release succeeds."""

    local: Path | None
    tiers: Collection[int] | None
    groups: Collection[str] | None
    without: Collection[str]
    captions: Captions
    small: SmallStreams
    stream_class: Callable[..., SkipStreamMixin]
    batch_size: int
    streaming: dict[str, Any]


@dataclass(frozen=True)
class Source:
    """A release as it was asked for.

    Attributes:
        by: where its shards are now, if it was succeeded.
    """

    uri: str
    manifest: Manifest
    wanted: Wanted
    entries: tuple[StreamEntry, ...]
    lifted: frozenset[SkipReason]
    captions: CaptionChoice
    by: Successor | None = None

    @classmethod
    def of(cls, uri: str, manifest: Manifest, wanted: Wanted, by: Successor | None = None) -> Source:
        """Raises InputError if the release has not what is wanted."""
        captions = choice_of(wanted.captions, manifest.captions, uri)
        lifted = lift(manifest, wanted.without)
        entries = tuple(manifest.select(wanted.tiers or None, wanted.groups or None, lifted))
        return cls(uri, manifest, wanted, entries, lifted, captions, by)

    @property
    def where(self) -> str:
        return f"{self.manifest.dataset} {self.manifest.version}"

    def opted_out(self, position: int) -> Optouts:
        """What must not be served besides what the release skips."""
        if position == self.manifest.optouts:
            return {}
        return read_snapshot(lake_of(self.uri), position).shards


@dataclass(frozen=True)
class Plan:
    """A release at a position of the opt-outs.

    Attributes:
        gone, instead: sample numbers, and those of their substitutes.
        hidden: columns that only some samples have.
        report: level and line.
    """

    source: Source
    position: int
    selection: str
    streams: list[SkipStreamMixin]
    gone: NDArray[np.int64]
    instead: NDArray[np.int64]
    hidden: tuple[str, ...]
    report: list[tuple[int, str]]

    @classmethod
    def of(cls, source: Source, position: int, newest: int) -> Plan:
        """The dataset of this position, with substitutes for what was opted out up to the newest, or erased.

        Raises:
            InputError: nothing is left of a stream, or no stream fills a batch. Nothing has changed then.
        """
        wanted = source.wanted
        applied = source.opted_out(position)
        # Of a version that was succeeded, the position may name fewer than it opts out: what its parts have become has other names.
        since = {} if position == newest and source.by is None else source.opted_out(newest)
        streams, shares, report = that_fill_a_batch(
            source.manifest, _choose(source, applied), wanted.small, wanted.batch_size, wanted.streaming
        )
        source.captions.check_columns(streams, source.uri)
        if not source.captions.is_plain:
            report.append((logging.INFO, source.captions.line()))
        if source.by is not None:
            report.append((logging.WARNING, source.by.line(source.manifest)))
            if wanted.local is not None:
                held = held_still(source.by.erasures, source.manifest, wanted.local / "parts")
                report += [(logging.WARNING, line) for line in held]
        streams, gone, instead = _exchanged(source, streams, since)
        if len(gone):
            report.append((
                logging.WARNING,
                f"{len(gone)} samples were opted out since the checkpoint: others stand in",
            ))
        names = [stream.name for stream in streams]
        selection = sha256(canonical_json([names, sorted(source.lifted)]))[:16]
        made = [_stream(source, stream, share) for stream, share in zip(streams, shares, strict=True)]
        unused = unused_transport(type(made[0]))
        if unused:
            report.append((logging.WARNING, f"{', '.join(unused)}: not called for a release; override fetch_shard"))
        return cls(source, position, selection, made, gone, instead, in_some_shards(streams), report)

    def said(self) -> dict[str, str]:
        """What must be the same on every rank, besides arguments, release and position, so that they serve parts of one order."""
        kept = [[stream.name, stream.kept] for stream in self.streams]
        exchanged = sha256(self.gone.tobytes() + self.instead.tobytes())
        files = [reader.raw_data for stream in self.streams for reader in stream.open()] if self.source.by else []
        return {
            "choice of streams": self.selection,
            "captions": repr(self.source.captions.shares),
            "set of samples": sha256(canonical_json([kept, exchanged]))[:16],
            "set of shards": sha256(canonical_json([[file.basename, file.hashes["sha256"]] for file in files]))[:16],
        }

    def to_fetch(self) -> bytes:
        """Which shards of all streams this node will have to fetch, a bit each; b"" if none, or another rank of the node looks."""
        readers = [reader for stream in self.streams for reader in stream.open()]
        if not World.detect().is_local_leader:
            return b""
        needed = np.concatenate([stream.look_around() for stream in self.streams])
        if self.source.wanted.local is not None and self.source.wanted.streaming.get("cache_limit"):
            # what is here may be evicted, and is fetched again
            needed = np.array([not reader.unread for reader in readers], bool)
        return np.packbits(needed).tobytes() if needed.any() else b""

    def fault(self, needed: Sequence[bytes]) -> SmaltiError | None:
        """What is wrong with the shards that some node has to fetch."""
        bits = np.bitwise_or.reduce([np.frombuffer(each, np.uint8) for each in needed])
        readers = [reader.raw_data for stream in self.streams for reader in stream.open()]
        wanted = np.flatnonzero(np.unpackbits(bits, count=len(readers)))
        return fault_of_shards(
            parts_uri(self.source.uri, self.source.manifest),
            [(readers[number].basename, readers[number].bytes) for number in wanted],
        )


def _choose(source: Source, optouts: Optouts) -> list[Chosen]:
    """The streams that keep anything."""

    def shards_of(entry: StreamEntry) -> list[ServedShard]:
        shards = served_shards(source.uri, entry, source.lifted, optouts)
        return shards if source.by is None else source.by.stored(entry, shards)

    with ThreadPoolExecutor(_READERS) as pool:
        shards = pool.map(shards_of, source.entries)
        return [Chosen.of(entry, each) for entry, each in zip(source.entries, shards, strict=True) if each]


def _stream(source: Source, stream: Chosen, share: float | None) -> SkipStreamMixin:
    root, local = parts_uri(source.uri, source.manifest), source.wanted.local
    parts = local_path(root) if local is None else local / "parts"
    assert parts is not None  # check_arguments
    made = source.wanted.stream_class(
        entries=stream.entries,
        shards=stream.shards,
        source=root,
        parts=parts,
        in_place=local is None,
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
    source: Source, streams: Sequence[Chosen], since: Optouts
) -> tuple[list[Chosen], NDArray[np.int64], NDArray[np.int64]]:
    """The streams, of which shards need not be read whose samples are all gone; sample numbers that may no longer be served,
    ascending, and what is served instead."""
    left, gone, instead, start = [], [_NONE], [_NONE], 0
    for stream in streams:
        kept = np.array([shard.kept for shard in stream.shards], np.int64)
        numbers = {
            number: found for number, shard in enumerate(stream.shards) if len(found := shard.numbers_gone(since))
        }
        pair = substitutes(kept, numbers)
        if pair is None:
            raise InputError(
                f"everything that the checkpoint serves of stream {stream.name} was opted out since",
                source.where,
                "Start a new run, with a newer version or without the stream",
            )
        empty = {number for number, found in numbers.items() if len(found) == kept[number]}
        shards = tuple(
            replace(shard, unread=True) if number in empty else shard for number, shard in enumerate(stream.shards)
        )
        left.append(replace(stream, shards=shards) if empty else stream)
        gone.append(pair[0] + start)
        instead.append(pair[1] + start)
        start += int(kept.sum())
    return left, np.concatenate(gone), np.concatenate(instead)
