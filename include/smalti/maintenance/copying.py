"""Write a part from the bytes of others: no image is decoded, and what a sample's bytes are does not change.

Samples are sorted by (tier, ar, id) as a plan sorts them. Killed at any line, the next run writes the same names and bytes: the
part's name is made of what it holds, every object is create-only, and the part counts only from its step in the log of
replacements, which comes last.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

import smalti
from smalti import objects
from smalti.accounting import Accounted
from smalti.compute import map_tasks
from smalti.errors import CorruptError
from smalti.lake import Lake
from smalti.release.skips import canonical_json, sha256
from smalti.shards import mds
from smalti.shards.part import FailedRow, Part, PartBucket, committed_parts, read_samples_bytes
from smalti.shards.plan import cut
from smalti.shards.replacements import Step, append_step, read_log
from smalti.shards.samples import check_thumbnails, decode_samples, encode_samples, extra_columns, schema_with
from smalti.shards.stage import commit_part, part_name

log = logging.getLogger("smalti")

WRITER = 2
"""Raise it when the same samples would give other bytes."""


@dataclass(frozen=True)
class Erasure:
    """What an erasure leaves out of one part.

    Attributes:
        shards: shard relative to parts/ -> indices in it, ascending.
        gone: shards of which nothing is left.
        ids: that the new part names nowhere.
    """

    shards: dict[str, tuple[int, ...]]
    gone: tuple[str, ...]
    ids: frozenset[str]


@dataclass(frozen=True)
class CopyPlan:
    """A part that is to be written.

    Attributes:
        parts: that it replaces, the oldest first; all of one source, with one encoding, columns and engines.
        why: as the log will say.
        rows: what is kept, as `samples_of` has it, sorted by (tier, ar, id); shard and index are the old ones.
        bounds: begin and end of each new shard in `rows`; none spans two buckets.
        dropped: reason -> samples that are not kept.
        erasure: of a part whose shards keep their numbers; empty: they are counted anew.
    """

    parts: tuple[Part, ...]
    why: Literal["rewritten", "merged", "erased"]
    rows: pa.Table
    bounds: tuple[tuple[int, int], ...]
    dropped: dict[str, int]
    erasure: Erasure | None = None

    @property
    def extra(self) -> tuple[str, ...]:
        """Extra caption columns, the same in all of the parts."""
        return extra_columns(self.parts[0].columns)

    @property
    def failed(self) -> tuple[FailedRow, ...]:
        """Rows that could not be decoded, as the new part names them."""
        gone = frozenset() if self.erasure is None else self.erasure.ids
        return tuple(row for part in self.parts for row in part.failed if row.id not in gone)

    @property
    def digest(self) -> str:
        """sha256 over what it replaces, what it keeps, where its shards end, and why the rest goes: all that part.json will say."""
        held = [[part.name, part.digest, part.samples_sha256] for part in self.parts]
        said: dict[str, Any] = {
            "writer": WRITER,
            "why": self.why,
            "parts": held,
            "bounds": self.bounds,
            "dropped": self.dropped,
        }
        if self.erasure is not None:
            said["failed"] = [each.id for each in self.failed]
        text = canonical_json(said)
        digest = hashlib.sha256(text)
        for name, index in zip(self.rows["shard"].to_pylist(), self.rows["index"].to_pylist(), strict=True):
            digest.update(f"{name} {index}\n".encode())
        return digest.hexdigest()


@dataclass(frozen=True)
class CopyTask:
    """One new shard: where it goes, and which samples of which old shards it is made of.

    `whole`: it is one old shard, all of it. Shards are named relative to parts/.
    """

    lake: Lake
    uri: str
    progress: str
    sha256: Mapping[str, str]
    picks: tuple[tuple[str, int], ...]
    whole: bool


def samples_of(lake: Lake, part: Part) -> pa.Table:
    """The rows of samples.parquet, those of extra captions too, checked against part.json."""
    uri = lake.samples(part.source, part.name)
    rows = decode_samples(read_samples_bytes(lake, part), uri, extra_columns(part.columns))
    check_thumbnails(rows["colour"], uri)
    return rows


def sorted_rows(rows: pa.Table) -> pa.Table:
    """As a plan sorts them."""
    return rows.sort_by([("tier", "ascending"), ("ar", "ascending"), ("id", "ascending")])


def stored_sizes(lake: Lake, parts: Sequence[Part], rows: pa.Table) -> npt.NDArray[np.int64]:
    """Bytes that each row takes in a shard: its picture, and what a sample of its shard takes besides on average."""
    pictures = rows["bytes"].to_numpy().astype(np.int64)
    encoded = rows["shard"].combine_chunks().dictionary_encode()
    known: dict[str, float] = {}
    for part in parts:
        table = samples_of(lake, part)
        held = table.group_by("shard").aggregate([("bytes", "sum")])
        sums = dict(zip(held["shard"].to_pylist(), held["bytes_sum"].to_pylist(), strict=True))
        for folder, entry in entries_of(lake, part):
            shard = f"{folder}/{entry['raw_data']['basename']}"
            known[shard] = max(0.0, (entry["raw_data"]["bytes"] - sums.get(shard, 0)) / entry["samples"])
    besides = np.array([known[shard] for shard in encoded.dictionary.to_pylist()])
    return np.asarray(pictures + np.rint(besides[encoded.indices.to_numpy()]), np.int64) if len(rows) else pictures


def bounds_of(
    rows: pa.Table,
    groups: npt.NDArray[np.int64],
    fixed: npt.NDArray[np.bool_],
    sizes: npt.NDArray[np.int64],
    target: int,
) -> tuple[tuple[int, int], ...]:
    """Where the new shards begin and end.

    Args:
        rows: sorted, tier and ar.
        groups: number of each row's group, ascending: its samples stay together. Each row a group of its own: free packing.
        fixed: for each row, whether its group is a shard by itself.
        sizes: bytes of each row in a shard.
        target: bytes a shard aims at; consecutive groups are joined up to it.
    """
    buckets = list(zip(rows["tier"].to_pylist(), rows["ar"].to_pylist(), strict=True))
    starts = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist()] if len(groups) else []
    ends = [*starts[1:], len(groups)] if starts else []
    total = [int(sizes[a:b].sum()) for a, b in zip(starts, ends, strict=True)]
    bounds: list[tuple[int, int]] = []
    runs = groupby(range(len(starts)), lambda each: (buckets[starts[each]], each if fixed[starts[each]] else -1))
    for _, run in runs:
        members = list(run)
        first = members[0]
        cuts = cut(np.array([total[each] for each in members], np.int64), target)
        for begin, end in zip([0, *cuts[:-1]], cuts, strict=True):
            bounds.append((starts[first + int(begin)], ends[first + int(end) - 1]))
    return tuple(bounds)


def write(lake: Lake, plan: CopyPlan) -> Part | None:
    """Write the part, and put it in the place of those that it replaces.

    Returns: the part; None: another run has replaced one of them meanwhile, and what was written is garbage.
    """
    source = plan.parts[0].source
    steps = read_log(lake, source)
    parts = committed_parts(lake, source, hidden=True, log=steps)
    numbers = [origin.sequence for part in parts for origin in part.sharded] + [o.sequence for o in steps.origins()]
    sequence = 1 + max([*numbers, steps.last_sequence()])
    name = part_name(sequence, plan.digest, {"smalti": str(WRITER), "pyarrow": pa.__version__})
    tasks = _tasks(lake, plan, name)
    entries = []
    for entry in map_tasks(copy_shard, [task for _, task in tasks]):
        entries.append(entry)
        log.info("%s: %s/%s, %d of %d shards", plan.why, source, name, len(entries), len(tasks))
    samples = encode_samples(_renumbered(plan, name, tasks), plan.extra)
    objects.create_same(lake.samples(source, name), samples)
    buckets = tuple(_write_indices(lake, source, name, plan, [bucket for bucket, _ in tasks], entries))
    part = commit_part(lake, _part(plan, name, buckets, sha256(samples)))
    if append_step(lake, source, step_of(plan, name)):
        return part
    log.warning("%s: %s/%s does not count: another run was faster", plan.why, source, name)
    return None


def step_of(plan: CopyPlan, name: str | None) -> Step:
    """What puts a part in the place of those that it replaces. name: empty, nothing of them is left."""
    origins = tuple(sorted((origin for part in plan.parts for origin in part.sharded), key=lambda each: each.order))
    replaces = tuple(part.name for part in plan.parts)
    if plan.erasure is None:
        return Step(why=plan.why, replaces=replaces, by=name, origins=origins)
    gone = plan.erasure
    return Step(why=plan.why, replaces=replaces, by=name, origins=origins, erased=gone.shards, gone=gone.gone)


def copy_shard(task: CopyTask) -> mds.Entry:
    """Write the shard, then its record; what has its record is not made again. Returns its entry for index.json.

    Raises:
        CorruptError: an old shard is not what its index records.
    """
    found = objects.read_versioned(task.progress)
    if found is not None:
        return dict(json.loads(found[0]))
    shards = {}
    for name, wanted in task.sha256.items():
        uri = objects.join_uri(task.lake.parts_root(), name)
        shards[name] = objects.read_bytes(uri)
        if sha256(shards[name]) != wanted:
            raise CorruptError("the shard is not the one that its index records", uri, "Restore it, or shard again")
    data = next(iter(shards.values())) if task.whole else mds.gather_shard(shards, task.picks)
    objects.create_same(task.uri, data)
    entry = mds.shard_entry(task.uri.rpartition("/")[2], data)
    objects.create_same(task.progress, canonical_json(entry))
    return entry


def _tasks(lake: Lake, plan: CopyPlan, name: str) -> list[tuple[tuple[int, str], CopyTask]]:
    """The bucket and the task of each new shard."""
    source = plan.parts[0].source
    digests, counts = _shards_of(lake, plan.parts)
    shards, indices = plan.rows["shard"].to_pylist(), plan.rows["index"].to_pylist()
    tiers, ars = plan.rows["tier"].to_pylist(), plan.rows["ar"].to_pylist()
    numbers: Counter[tuple[int, str]] = Counter()
    tasks = []
    for begin, end in plan.bounds:
        bucket = (tiers[begin], ars[begin])
        picks = tuple(zip(shards[begin:end], indices[begin:end], strict=True))
        used = {shard: digests[shard] for shard in dict.fromkeys(shards[begin:end])}
        number = numbers[bucket] if plan.erasure is None else shard_number(shards[begin])
        numbers[bucket] += 1
        tasks.append((
            bucket,
            CopyTask(
                lake=lake,
                uri=lake.shard(source, name, *bucket, number),
                progress=lake.shard_progress(source, name, *bucket, number),
                sha256=used,
                picks=picks,
                whole=len(used) == 1 and indices[begin:end] == list(range(counts[shards[begin]])),
            ),
        ))
    return tasks


def shard_number(shard: str) -> int:
    """3 of .../shard.00003.mds."""
    return int(shard.rpartition("/")[2].split(".")[1])


def _shards_of(lake: Lake, parts: Sequence[Part]) -> tuple[dict[str, str], dict[str, int]]:
    """Shard -> sha256, and shard -> samples, of everything in these parts."""
    digests, counts = {}, {}
    for part in parts:
        for folder, entry in entries_of(lake, part):
            shard = f"{folder}/{entry['raw_data']['basename']}"
            digests[shard] = entry["raw_data"]["hashes"]["sha256"]
            counts[shard] = entry["samples"]
    return digests, counts


def entries_of(lake: Lake, part: Part) -> Iterator[tuple[str, mds.Entry]]:
    """Folder (relative to parts/) and index entry of every shard of a part. Raises CorruptError."""
    for bucket in part.buckets:
        uri = lake.bucket_index(part.source, part.name, bucket.tier, bucket.ar)
        data = objects.read_bytes(uri)
        if sha256(data) != bucket.index_sha256:
            raise CorruptError("the index is not the one that part.json records", uri, "Restore it")
        for entry in json.loads(data)["shards"]:
            yield f"{part.source}/{part.name}/{bucket.tier}/{bucket.ar}", entry


def _renumbered(plan: CopyPlan, name: str, tasks: Sequence[tuple[tuple[int, str], CopyTask]]) -> pa.Table:
    """samples.parquet's rows: as they were, with their new shards and indices."""
    source = plan.parts[0].source
    shards: list[str] = []
    indices: list[int] = []
    for ((tier, ar), task), (begin, end) in zip(tasks, plan.bounds, strict=True):
        shards += [f"{source}/{name}/{tier}/{ar}/{task.uri.rpartition('/')[2]}"] * (end - begin)
        indices += range(end - begin)
    new = {"shard": pa.array(shards, pa.string()), "index": pa.array(indices, pa.int32())}
    names = schema_with(plan.extra).names
    return pa.table([new.get(each, plan.rows[each]) for each in names], names=names)


def _write_indices(
    lake: Lake, source: str, name: str, plan: CopyPlan, places: Sequence[tuple[int, str]], entries: Sequence[mds.Entry]
) -> Iterator[PartBucket]:
    """index.json of every bucket that has a shard."""
    shapes = {(b.tier, b.ar): (b.width, b.height) for part in plan.parts for b in part.buckets}
    for (tier, ar), group in groupby(zip(places, entries, strict=True), key=lambda pair: pair[0]):
        own = [entry for _, entry in group]
        data = mds.encode_index(own)
        objects.create_same(lake.bucket_index(source, name, tier, ar), data)
        yield PartBucket(
            tier=tier,
            ar=ar,
            width=shapes[tier, ar][0],
            height=shapes[tier, ar][1],
            samples=sum(entry["samples"] for entry in own),
            shards=len(own),
            bytes=sum(entry["raw_data"]["bytes"] for entry in own),
            index_sha256=sha256(data),
        )


def _part(plan: CopyPlan, name: str, buckets: tuple[PartBucket, ...], samples_sha256: str) -> Part:
    origins = sorted((origin for part in plan.parts for origin in part.sharded), key=lambda origin: origin.order)
    newest = origins[-1]
    dropped: Counter[str] = Counter(plan.dropped)
    for part in plan.parts:
        if part.replaces:  # its own accounting begins with what was sharded, and so does this one's
            dropped.update(part.accounting.dropped)
    versions: dict[str, set[str]] = {}
    for part in plan.parts:
        for encoder, version in part.encoders.items():
            versions.setdefault(encoder, set()).update(version.split(", "))
    first: dict[str, Any] = {key: getattr(plan.parts[0], key) for key in ("source", "encoding", "columns", "engines")}
    return Part(
        **first,
        name=name,
        batch=newest.batch,
        sequence=newest.sequence,
        delivery=newest.delivery,
        digest=plan.digest,
        encoders={encoder: ", ".join(sorted(found)) for encoder, found in sorted(versions.items())},
        curators=tuple(dict.fromkeys(each for part in plan.parts for each in part.curators)),
        buckets=buckets,
        samples=plan.rows.num_rows,
        samples_sha256=samples_sha256,
        accounting=Accounted(
            stage="maintenance",
            rows_in=sum(origin.accounting.rows_out for origin in origins),
            rows_out=plan.rows.num_rows,
            dropped=dict(sorted(dropped.items())),
        ),
        failed=plan.failed,
        extra_captions={each: int(pc.sum(plan.rows[f"{each}_ok"]).as_py() or 0) for each in plan.extra},
        replaces=tuple(part.name for part in plan.parts),
        origins=tuple(origins),
        provenance={"created": datetime.now(UTC).isoformat(timespec="seconds"), "smalti": smalti.__version__},
    )
