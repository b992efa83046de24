"""Write a release as plain MDS directories, without the skipped samples: <tree>/<tier>/<ar>/{index.json,shard.NNNNN.mds}.

For readers that know only StreamingDataset. Shard boundaries stay those of the parts: a shard that loses samples is
rewritten from its bytes (nothing is decoded), one that loses none is copied, one that loses all is left away, and what
is left is numbered in the order of the streams. Streams of several mix groups share the directory of their bucket, in the order of the
manifest.

Opt-outs that are younger than the release can be left out too. A tree is of the position that its claim names; a later
position that touches any of its samples is another tree, and one that touches none changes nothing.

Killed at any line, the next run ends in the same bytes: objects are create-only, a bucket's index.json comes after its
shards, and tree.json comes last.

A run that finds a finished bucket looks at it: a shard that is missing is written again. One that has another size is an error
in a lake, where nothing is replaced and verify reads every byte; a pulled tree (`notes`) is a copy, and what is damaged
in it is written anew.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from smalti.accounting import Accounted
from smalti.compute import map_tasks
from smalti.errors import ConflictError, CorruptError
from smalti.loader.skips import Optouts, ServedShard, served_shards
from smalti.objects import (
    copy_object,
    create_same,
    delete_object,
    join_uri,
    list_objects,
    local_path,
    read_bytes,
    read_versioned,
)
from smalti.reasons import SkipReason
from smalti.release.manifest import Manifest, parts_uri, read_manifest
from smalti.release.notes import Notes
from smalti.release.optouts import check_not_behind, lake_of
from smalti.release.skips import canonical_json, sha256
from smalti.release.tree_claims import claim_tree, commit_name, identity, opted_out
from smalti.shards import mds

log = logging.getLogger("smalti")

_NOTE_EVERY = 10.0
"""Seconds between two lines of progress."""

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


class Runner(Protocol):
    """`smalti.compute.map_tasks`, or something like it: outcomes in the order of the items."""

    def __call__(self, function: Callable[[Item], Outcome], items: Sequence[Item]) -> Iterable[Outcome]: ...


class MaterializeReport(Accounted):
    """Attributes:
    tree: URI of the tree.
    shards, bytes: what it holds.
    rewritten: shards of it that lost samples.
    new, new_bytes: shards that were not there, or not as an earlier run had left them.
    optouts: position of the opt-outs that it leaves out.
    """

    tree: str
    shards: int
    bytes: int
    rewritten: int
    new: int
    new_bytes: int
    optouts: int


@dataclass(frozen=True)
class ShardTask:
    """One shard of a tree: what it is made of, and its name below the tree. `replace`: a damaged one makes room."""

    source: str
    target: str
    name: str
    shard: ServedShard
    replace: bool

    @property
    def basename(self) -> str:
        return self.name.rpartition("/")[2]


@dataclass(frozen=True)
class _Bucket:
    """One directory of the tree.

    Attributes:
        index: if an earlier run finished it.
        there: of each shard its entry in the index, or None if it is to be written.
    """

    uri: str
    name: str
    tasks: tuple[ShardTask, ...]
    index: bytes | None
    there: tuple[mds.Entry | None, ...]


def materialize(
    manifest_uri: str,
    tree_uri: str,
    tiers: Iterable[int] | None = None,
    *,
    optouts: int | None = None,
    run: Runner = map_tasks,
    notes: Notes | None = None,
) -> MaterializeReport:
    """Write the tree of a release. A second run finds it, writes what is missing of it, and reports the same.

    Args:
        tiers: only these; empty: all. More can be added later.
        optouts: position up to which opt-outs are left out; empty: the release's own.
        run: how the shards are worked on: Ray tasks if Ray is up, else one after another.
        notes: of a tree on a disk: what is damaged there is written anew. Empty: nothing is replaced.
    Raises:
        ConflictError: the place holds the tree of another release, or one with samples that are opted out by now.
        InputError: the position is behind the release's own.
        CorruptError: a shard, an index or a skip file is not what was recorded; without `notes` of the tree itself too.
    """
    started = time.monotonic()
    manifest = read_manifest(manifest_uri)
    tiers = None if tiers is None else sorted(set(tiers))
    position = manifest.optouts if optouts is None else optouts
    check_not_behind(position, manifest.optouts, lake_of(manifest_uri).optout_snapshots())
    position, ours = claim_tree(manifest, manifest_uri, tree_uri, position)
    gone = opted_out(manifest, manifest_uri, position)
    look = _Look(ours, notes, run)
    buckets = _plan(manifest, manifest_uri, tree_uri, tiers, gone, look)
    todo = [task for b in buckets for task, entry in zip(b.tasks, b.there, strict=True) if entry is None]
    written = _with_progress(_noted(todo, run(_write_shard, todo), notes), len(todo))
    indices = {bucket.name: _commit(bucket, written, look.replace) for bucket in buckets}
    shards = {name: json.loads(index)["shards"] for name, index in indices.items()}
    listing = listing_of(indices)
    said = {**identity(manifest, position), "buckets": listing}
    _create(join_uri(tree_uri, commit_name(tiers)), canonical_json(said), look.replace)
    streams = [stream for stream in manifest.streams if tiers is None or stream.tier in tiers]
    dropped: Counter[str] = Counter()
    for stream in streams:
        dropped.update({str(reason): n for reason, n in stream.skipped.items()})
    rows = sum(bucket["samples"] for bucket in listing.values())
    since = sum(stream.kept for stream in streams) - rows if gone else 0
    if since:
        dropped[SkipReason.OPTOUT] += since
    return MaterializeReport(
        stage="materialize",
        seconds=time.monotonic() - started,
        rows_in=sum(stream.samples for stream in streams),
        rows_out=rows,
        dropped=dict(dropped),
        tree=tree_uri,
        shards=sum(bucket["shards"] for bucket in listing.values()),
        bytes=sum(bucket["bytes"] for bucket in listing.values()),
        new=len(todo),
        new_bytes=sum(
            entry["raw_data"]["bytes"]
            for bucket in buckets
            for entry, there in zip(shards[bucket.name], bucket.there, strict=True)
            if there is None
        ),
        rewritten=sum(len(task.shard.left_out) > 0 for bucket in buckets for task in bucket.tasks),
        optouts=position,
    )


@dataclass(frozen=True)
class _Look:
    """How to look at what an earlier run has left. `ours`: the place was claimed for this tree before."""

    ours: bool
    notes: Notes | None
    run: Runner

    @property
    def replace(self) -> bool:
        """Whether what is damaged is written anew."""
        return self.ours and self.notes is not None

    def index(self, tasks: Sequence[ShardTask], where: str) -> bytes | None:
        """The index of a bucket, if it lists what this run would write.

        Raises:
            CorruptError: it does not, and nothing is replaced.
        """
        found = read_versioned(where)
        if found is None:
            return None
        try:
            entries = json.loads(found[0])["shards"]
            listed = [(entry["raw_data"]["basename"], entry["samples"]) for entry in entries]
            whole = mds.encode_index(entries) == found[0] or not self.replace
        except (ValueError, KeyError, TypeError, RecursionError):
            listed, whole = [], False
        if whole and listed == [(task.basename, task.shard.kept) for task in tasks]:
            return found[0] if self.ours else None  # a place that nobody has claimed: all is compared
        if self.replace:
            log.warning("%s is damaged, and is written anew", where)
            return None
        raise CorruptError("the index lists other shards than the release", where, "Write into another directory")

    def there(self, bucket: str, tasks: Sequence[ShardTask], index: bytes | None) -> tuple[mds.Entry | None, ...]:
        """The entries of the shards that are there.

        Raises:
            CorruptError: one has another size, and nothing is replaced.
        """
        if index is None:
            return (None,) * len(tasks)
        entries = json.loads(index)["shards"]
        if self.notes is not None:
            held = self.run(partial(_holds, self.notes), list(zip(tasks, entries, strict=True)))
            return tuple(entry if here else None for entry, here in zip(entries, held, strict=True))
        sizes = {info.uri: info.size for info in list_objects(bucket)}
        for task, entry in zip(tasks, entries, strict=True):
            size = entry["raw_data"]["bytes"]
            if sizes.get(task.target, size) != size:
                raise CorruptError(
                    f"the shard has {sizes[task.target]} bytes, its index says {size}",
                    task.target,
                    "Remove it, and run again: it is written anew",
                )
        return tuple(entry if task.target in sizes else None for task, entry in zip(tasks, entries, strict=True))


def listing_of(indices: Mapping[str, bytes]) -> dict[str, dict[str, Any]]:
    """What a commit object says of its directories. indices: directory -> its index.json."""
    listing = {}
    for name, index in indices.items():
        entries = json.loads(index)["shards"]
        listing[name] = {
            "samples": sum(entry["samples"] for entry in entries),
            "shards": len(entries),
            "bytes": sum(entry["raw_data"]["bytes"] for entry in entries),
            "index_sha256": sha256(index),
        }
    return listing


def _plan(
    manifest: Manifest, manifest_uri: str, tree_uri: str, tiers: Sequence[int] | None, optouts: Optouts, look: _Look
) -> list[_Bucket]:
    """The directories, in the order of the manifest, with what is to be done for each shard."""
    buckets = []
    for name, tasks in shard_tasks(manifest, manifest_uri, tree_uri, tiers, optouts, look.replace).items():
        folder = join_uri(tree_uri, name)
        index = look.index(tasks, join_uri(folder, "index.json"))
        buckets.append(_Bucket(folder, name, tasks, index, look.there(folder, tasks, index)))
    return buckets


def shard_tasks(
    manifest: Manifest,
    manifest_uri: str,
    tree_uri: str,
    tiers: Sequence[int] | None,
    optouts: Optouts,
    replace: bool = False,
) -> dict[str, tuple[ShardTask, ...]]:
    """Directory (`512/1.000`) -> its shards in their order, directories in the order of the manifest."""
    root = parts_uri(manifest_uri, manifest)
    shards: dict[str, list[ServedShard]] = {}
    for stream in manifest.select(tiers):
        shards.setdefault(f"{stream.tier}/{stream.ar}", []).extend(served_shards(manifest_uri, stream, optouts=optouts))
    return {
        name: tuple(
            ShardTask(join_uri(root, shard.basename), join_uri(tree_uri, target), target, shard, replace)
            for number, shard in enumerate(served)
            for target in [f"{name}/shard.{number:05d}.mds"]
        )
        for name, served in shards.items()
        if served  # else all of it was opted out
    }


def _commit(bucket: _Bucket, written: Iterator[mds.Entry], replace: bool) -> bytes:
    """The index of a bucket, once all of its shards are there."""
    index = mds.encode_index([next(written) if entry is None else entry for entry in bucket.there])
    where = join_uri(bucket.uri, "index.json")
    if bucket.index is None or bucket.index != index:
        _create(where, index, replace)
    return index


def _create(uri: str, data: bytes, replace: bool) -> None:
    """Create an object, or find that it is there. With `replace` one that is damaged makes room."""
    try:
        create_same(uri, data)
    except ConflictError:
        if not replace:
            raise
        log.warning("%s is damaged, and is written anew", uri)
        delete_object(uri)
        create_same(uri, data)


def _holds(notes: Notes, item: tuple[ShardTask, mds.Entry]) -> bool:
    """Whether a shard on the disk is what the index says; the index may be what is wrong, so that all of it is compared."""
    task, entry = item
    path = local_path(task.target)
    assert path is not None  # who has notes has files

    def found(path: Path) -> str:
        with contextlib.suppress(CorruptError, ValueError, KeyError, TypeError):
            return _digest(mds.shard_entry(task.basename, path.read_bytes()))
        return ""

    return notes.holds(task.name, path, entry["raw_data"]["bytes"], _digest(entry), found)


def _digest(entry: mds.Entry) -> str:
    return sha256(canonical_json(entry))


def _noted(tasks: Sequence[ShardTask], entries: Iterable[mds.Entry], notes: Notes | None) -> Iterator[mds.Entry]:
    for task, entry in zip(tasks, entries, strict=True):
        path = local_path(task.target)
        if notes is not None and path is not None:
            notes.note(task.name, path, _digest(entry))
        yield entry


def _write_shard(task: ShardTask) -> mds.Entry:
    """Copy or rewrite one shard. Returns its entry in the tree's index."""
    shard = task.shard
    if (
        not len(shard.left_out)
        and _one_bucket_store(task.source, task.target)
        and copy_object(task.source, task.target)
    ):
        return _renamed(shard.entry, task.basename)  # inside the store: GCS checks the copy itself
    data = _read_source(task)
    if not len(shard.left_out):
        _create(task.target, data, task.replace)
        return _renamed(shard.entry, task.basename)
    rewritten = mds.rewrite_shard(data, shard.kept_indices(), task.source)
    _create(task.target, rewritten, task.replace)
    return mds.shard_entry(task.basename, rewritten)


def expected_entry(task: ShardTask) -> mds.Entry:
    """What the tree's index must say of a shard. One that loses samples is made of its source once more."""
    if not len(task.shard.left_out):
        return _renamed(task.shard.entry, task.basename)
    return mds.shard_entry(task.basename, mds.rewrite_shard(_read_source(task), task.shard.kept_indices(), task.source))


def _read_source(task: ShardTask) -> bytes:
    data = read_bytes(task.source)
    if sha256(data) != task.shard.sha256:
        raise CorruptError(
            f"the bytes have the sha256 {sha256(data)}, not {task.shard.sha256}",
            task.source,
            "Run smalti verify on the release; restore the object, or use another version",
        )
    return data


def _one_bucket_store(source: str, target: str) -> bool:
    return source.startswith("gs://") and target.startswith("gs://")


def _renamed(entry: mds.Entry, basename: str) -> mds.Entry:
    raw: dict[str, Any] = entry["raw_data"]
    return {**entry, "raw_data": {**raw, "basename": basename}}


def _with_progress(entries: Iterable[mds.Entry], total: int) -> Iterator[mds.Entry]:
    noted = time.monotonic()
    for number, entry in enumerate(entries, 1):
        if time.monotonic() - noted >= _NOTE_EVERY or number == total:
            log.info("materialize: %d of %d shards", number, total)
            noted = time.monotonic()
        yield entry
