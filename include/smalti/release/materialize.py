"""Write a release as plain MDS directories, without the skipped samples: <tree>/<tier>/<ar>/{index.json,shard.NNNNN.mds}.

For readers that know only StreamingDataset. Shard boundaries stay those of the parts: a shard that loses samples is
rewritten from its bytes (nothing is decoded), one that loses none is copied, one that loses all is left away, and what
is left is numbered in the order of the streams. Streams of several mix groups share the directory of their bucket, in the order of the
manifest.

Opt-outs that are younger than the release can be left out too. A tree is of the position that its claim names; a later
position that touches any of its samples is another tree, and one that touches none changes nothing.

Killed at any line, the next run ends in the same bytes: objects are create-only, a bucket's index.json comes after its
shards and is taken as it is by the next run, and tree.json comes last.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol, TypeVar

from smalti.accounting import Accounted
from smalti.compute import map_tasks
from smalti.errors import ConflictError, CorruptError
from smalti.loader.skips import Optouts, ServedShard, served_shards
from smalti.objects import copy_object, create_same, join_uri, read_bytes, read_versioned
from smalti.reasons import SkipReason
from smalti.release.manifest import Manifest, parts_uri, read_manifest
from smalti.release.optouts import check_not_behind, lake_of, read_snapshot
from smalti.release.skips import canonical_json, sha256
from smalti.shards import mds

log = logging.getLogger("smalti")

CLAIM = "release.json"
"""Below a tree: the release that it is of. The first object of a tree."""

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
    new, new_bytes: shards of directories that an earlier run had not finished.
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
class _ShardTask:
    source: str
    target: str
    basename: str
    shard: ServedShard


@dataclass(frozen=True)
class _Bucket:
    """One directory of the tree. `index` is there if an earlier run finished it."""

    uri: str
    name: str
    tasks: tuple[_ShardTask, ...]
    index: bytes | None


def materialize(
    manifest_uri: str,
    tree_uri: str,
    tiers: Iterable[int] | None = None,
    *,
    optouts: int | None = None,
    run: Runner = map_tasks,
) -> MaterializeReport:
    """Write the tree of a release. A second run finds it and reports the same.

    Args:
        tiers: only these; empty: all. More can be added later.
        optouts: position up to which opt-outs are left out; empty: the release's own.
        run: how the shards are worked on: Ray tasks if Ray is up, else one after another.
    Raises:
        ConflictError: the place holds the tree of another release, or one with samples that are opted out by now.
        InputError: the position is behind the release's own.
        CorruptError: a shard, an index or a skip file is not what was recorded.
    """
    started = time.monotonic()
    manifest = read_manifest(manifest_uri)
    tiers = None if tiers is None else sorted(set(tiers))
    position = manifest.optouts if optouts is None else optouts
    check_not_behind(position, manifest.optouts, lake_of(manifest_uri).optout_snapshots())
    position = _claim(manifest, manifest_uri, tree_uri, position)
    gone = _opted_out(manifest, manifest_uri, position)
    buckets = _plan(manifest, manifest_uri, tree_uri, tiers, gone)
    todo = [task for bucket in buckets if bucket.index is None for task in bucket.tasks]
    written = _with_progress(run(_write_shard, todo), len(todo))
    indices = {bucket.name: bucket.index or _commit(bucket, written) for bucket in buckets}
    shards = {name: json.loads(index)["shards"] for name, index in indices.items()}
    listing = {
        name: {
            "samples": sum(entry["samples"] for entry in shards[name]),
            "shards": len(shards[name]),
            "bytes": sum(entry["raw_data"]["bytes"] for entry in shards[name]),
            "index_sha256": sha256(index),
        }
        for name, index in indices.items()
    }
    create_same(
        join_uri(tree_uri, _commit_name(tiers)), canonical_json({**_identity(manifest, position), "buckets": listing})
    )
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
        new_bytes=sum(listing[bucket.name]["bytes"] for bucket in buckets if bucket.index is None),
        rewritten=sum(len(task.shard.left_out) > 0 for bucket in buckets for task in bucket.tasks),
        optouts=position,
    )


def _identity(manifest: Manifest, position: int) -> dict[str, Any]:
    """What a tree is of. The release's own position goes without saying."""
    named = {"dataset": manifest.dataset, "version": manifest.version, "digest": manifest.digest}
    return named if position == manifest.optouts else {**named, "optouts": position}


def _opted_out(manifest: Manifest, manifest_uri: str, position: int) -> Optouts:
    """What is left out besides what the release skips."""
    return {} if position == manifest.optouts else read_snapshot(lake_of(manifest_uri), position).shards


def _commit_name(tiers: Sequence[int] | None) -> str:
    """The last object of a tree: it is whole, or its directories of these tiers are."""
    return "tree.json" if tiers is None else f"tree-{'-'.join(map(str, tiers))}.json"


def _claim(manifest: Manifest, manifest_uri: str, tree_uri: str, position: int) -> int:
    """Nothing of another release may get into the tree. Returns the position of opt-outs that the tree is of."""
    where = join_uri(tree_uri, CLAIM)
    with contextlib.suppress(ConflictError):
        create_same(where, canonical_json(_identity(manifest, position)))
        return position
    claim = read_bytes(where)
    try:
        there = int(json.loads(claim).get("optouts", manifest.optouts))
    except (ValueError, TypeError, AttributeError):
        there = -1
    if claim != canonical_json(_identity(manifest, there)):
        raise ConflictError(
            f"the place does not hold a tree of {manifest.dataset} {manifest.version} ({manifest.digest[:12]})",
            where,
            "Write into another directory: trees are not changed, and not mixed",
        )
    if there != position and _touched(manifest, manifest_uri, there, position):
        raise ConflictError(
            f"the tree is of the opt-outs up to position {there}, and those up to {position} touch its samples",
            where,
            "Remove it, and write it anew: trees are not changed",
        )
    return there


def _touched(manifest: Manifest, manifest_uri: str, first: int, second: int) -> bool:
    """Whether the release serves other samples at one position than at the other."""
    one, other = (_opted_out(manifest, manifest_uri, position) for position in (first, second))
    changed = {name for name in {*one, *other} if one.get(name, ()) != other.get(name, ())}
    if not changed:
        return False
    for stream in manifest.select():
        for shard in served_shards(manifest_uri, stream):
            name = shard.basename
            if name in changed and len(shard.numbers_of(one.get(name, ()))) != len(
                shard.numbers_of(other.get(name, ()))
            ):
                return True
    return False


def _plan(
    manifest: Manifest, manifest_uri: str, tree_uri: str, tiers: Sequence[int] | None, optouts: Optouts
) -> list[_Bucket]:
    """The directories, in the order of the manifest, with what is to be done for each shard."""
    root = parts_uri(manifest_uri, manifest)
    shards: dict[str, list[ServedShard]] = {}
    for stream in manifest.select(tiers):
        shards.setdefault(f"{stream.tier}/{stream.ar}", []).extend(served_shards(manifest_uri, stream, optouts=optouts))
    buckets = []
    for name, served in shards.items():
        if not served:
            continue  # all of it was opted out
        folder = join_uri(tree_uri, name)
        tasks = tuple(
            _ShardTask(join_uri(root, shard.basename), join_uri(folder, basename), basename, shard)
            for number, shard in enumerate(served)
            for basename in [f"shard.{number:05d}.mds"]
        )
        there = read_versioned(join_uri(folder, "index.json"))
        index = None if there is None else there[0]
        if index is not None:
            _check_index(index, tasks, join_uri(folder, "index.json"))
        buckets.append(_Bucket(folder, name, tasks, index))
    return buckets


def _check_index(index: bytes, tasks: Sequence[_ShardTask], where: str) -> None:
    """An index that an earlier run committed lists what this one would write."""
    try:
        found = [(entry["raw_data"]["basename"], entry["samples"]) for entry in json.loads(index)["shards"]]
    except (ValueError, KeyError, TypeError):
        found = []
    if found != [(task.basename, task.shard.kept) for task in tasks]:
        raise CorruptError("the index lists other shards than the release", where, "Write into another directory")


def _commit(bucket: _Bucket, written: Iterator[mds.Entry]) -> bytes:
    index = mds.encode_index(list(islice(written, len(bucket.tasks))))
    create_same(join_uri(bucket.uri, "index.json"), index)
    return index


def _write_shard(task: _ShardTask) -> mds.Entry:
    """Copy or rewrite one shard. Returns its entry in the tree's index."""
    shard = task.shard
    if (
        not len(shard.left_out)
        and _one_bucket_store(task.source, task.target)
        and copy_object(task.source, task.target)
    ):
        return _renamed(shard.entry, task.basename)  # inside the store: GCS checks the copy itself
    data = read_bytes(task.source)
    if sha256(data) != shard.sha256:
        raise CorruptError(
            f"the bytes have the sha256 {sha256(data)}, not {shard.sha256}",
            task.source,
            "Run smalti verify on the release; restore the object, or use another version",
        )
    if not len(shard.left_out):
        create_same(task.target, data)
        return _renamed(shard.entry, task.basename)
    rewritten = mds.rewrite_shard(data, shard.kept_indices(), task.source)
    create_same(task.target, rewritten)
    return mds.shard_entry(task.basename, rewritten)


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
