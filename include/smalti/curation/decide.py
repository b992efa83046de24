"""Every reason of every sample that is left out, in each set of reasons that a training run may lift.

All samples are scanned once, narrowly. What may be a copy is then split into partitions by hash, so that copies are in one, and
each partition is resolved by itself: one after another, or as tasks of the Ray that runs the job. The outcome does not depend on how many there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from smalti.compute import connect_ray, map_tasks
from smalti.config import Drops
from smalti.curation.copies import Copies
from smalti.curation.dedup import Choice, Found, aside, candidates, choose, coarse_groups, equal_bytes, search, spread
from smalti.curation.near import Ints, Mask, order_of
from smalti.curation.readers import Reader
from smalti.curation.scan import BIT, Bits, Keyed, Scan, reading_copies, scan
from smalti.reasons import Label, SkipReason
from smalti.shards.samples import THUMBNAIL

Set = tuple[SkipReason, ...]

AT_ONCE = 12_000_000
"""Samples that may be copies in one partition: 1.2 GB of thumbnails."""

_ENGINES = (SkipReason.CAPTIONER, SkipReason.CLASSIFIER)
"""Who lifts these may serve another sample of an id than the current one."""


@dataclass(frozen=True)
class Resolved:
    """Samples that may be copies, n of them.

    Attributes:
        rows: which, ascending, int64 (n,).
        id: polars Series.
        reasons: uint16, every reason with nothing lifted.
        without: for each reason set bool, left out as a copy or in quarantine if it is lifted.
        copy_of, spread_from: row that is kept, or whose label or opt-out applies; -1.
        cluster: number of the cluster in `names`, or -1.
        eligible: bool, that nothing but copies leaves out.
    """

    rows: Ints
    id: Any
    reasons: Bits
    without: tuple[Mask, ...]
    copy_of: Ints
    spread_from: Ints
    cluster: Ints
    names: tuple[str, ...]
    eligible: Mask


@dataclass(frozen=True)
class Decisions:
    """reasons: uint16 by row of all samples, every reason with nothing lifted; denied: ids of the denylists that were met."""

    reasons: Bits
    copies: Resolved
    reason_sets: tuple[Set, ...]
    denied: frozenset[str]


@dataclass(frozen=True)
class _Task:
    reader: Reader
    keyed: Keyed
    reasons: Bits
    current: Mask
    drops: Drops
    priorities: Mapping[str, int]
    reason_sets: tuple[Set, ...]
    lifted: Set
    decided: Mapping[str, str]


def decide(
    reader: Reader,
    drops: Drops,
    *,
    denied: frozenset[str] = frozenset(),
    priorities: Mapping[str, int] | None = None,
    optouts: Mapping[str, Sequence[int]] | None = None,
    opted_out: frozenset[str] = frozenset(),
    reason_sets: Sequence[Set] = (),
    lifted: Set = (),
    decided: Mapping[str, str] | None = None,
    partitions: int | None = None,
) -> Decisions:
    """Look at every sample once, at those that may be copies more closely.

    Args:
        denied: sample ids.
        priorities: source -> priority among copies of one resolution.
        optouts: shard -> indices that are opted out.
        opted_out: sample ids: what was sharded again since, or delivered again, has other places.
        lifted: an ablation: reasons that are not applied.
        decided: cluster -> what a person decided.
        partitions: how many to resolve what may be a copy in; empty: as few as AT_ONCE allows.
    """
    scanned = scan(reader, drops, denied, shards=bool(optouts), opted_out=opted_out)
    marked = scanned.row_of(optouts or {})
    rows = _candidates(scanned, drops.duplicates.distance, opted_out=len(marked) > 0 or bool(opted_out))
    reasons, current, keyed = scanned.reasons, scanned.current, scanned.keyed(rows)
    reasons[marked] |= np.uint16(BIT[SkipReason.OPTOUT])
    met = scanned.denied
    del scanned  # its hashes: most of the memory
    count = partitions or -(-len(rows) // AT_ONCE) or 1
    tasks = [
        _Task(
            reader,
            part,
            reasons[part.rows],
            current[part.rows],
            drops,
            priorities or {},
            tuple(reason_sets),
            lifted,
            decided or {},
        )
        for part in _split(keyed, drops.duplicates.distance, count)
    ]
    if len(tasks) > 1:
        connect_ray()  # takes seconds, which a lake of one partition would not win back
    copies = _merged(list(map_tasks(_resolve, tasks)))
    reasons &= _all_but(lifted)
    reasons[copies.rows] = copies.reasons
    return Decisions(reasons, copies, tuple(reason_sets), met)


def _candidates(scanned: Scan, distance: int, opted_out: bool) -> Ints:
    """Rows that may be copies. What was superseded matters only to opt-outs: a person's picture stays theirs."""

    def of(rows: Any) -> Mask:
        return candidates(scanned.sha256[rows], scanned.phash[rows], distance)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(scanned.supersede, scanned.current) if scanned.supersede else None
        rows = np.flatnonzero(of(slice(None)))
        if waiting:
            waiting.result()
    superseded = scanned.reasons[rows] & np.uint16(BIT[SkipReason.SUPERSEDED]) > 0
    if opted_out or not superseded.any():
        return rows
    rows = rows[~superseded]
    return np.asarray(rows[of(rows)])


def _split(keyed: Keyed, distance: int, count: int) -> list[Keyed]:
    """Partitions in which whatever may be a copy of something is together with it."""
    if count == 1 or not len(keyed.rows):
        return [keyed]
    nothing = np.zeros(len(keyed.rows), np.int64)
    none = np.empty((0, THUMBNAIL), np.uint8)
    sha256 = np.stack([
        keyed.sha256,
        nothing.astype(np.uint64),
    ]).T  # equal bytes are together; so may be two that only begin alike
    light = Copies(None, nothing, sha256, keyed.phash, keyed.hashed, lambda: none, nothing, nothing)
    group = coarse_groups(light, equal_bytes(light), distance)
    return [keyed.take(np.flatnonzero(group % count == number)) for number in range(count)]


def _resolve(task: _Task) -> Resolved:
    """Everything about the samples of one partition."""
    with reading_copies(task.reader, task.keyed, task.priorities) as copies:
        return _resolved(task, copies)


def _resolved(task: _Task, copies: Copies) -> Resolved:
    drops, reasons, current = task.drops, task.reasons.copy(), task.current
    found = search(copies, drops.duplicates.distance, drops.duplicates.cluster_limit)
    origin = _spread(found, reasons, current, drops)
    eligible = current & (reasons == 0)
    choice = choose(found, eligible, task.decided)
    if task.lifted:
        choice = _without(found, reasons, current, task.lifted, task.decided)
        reasons &= _all_but(task.lifted)
    copy_of, without = choice.copy_of, []
    for each in task.reason_sets:
        other = _without(found, reasons, current, each, task.decided)
        without.append((other.copy_of >= 0) | other.quarantined)
        copy_of = np.where(copy_of < 0, other.copy_of, copy_of)
    reasons[choice.copy_of >= 0] |= np.uint16(BIT[SkipReason.DUPLICATE])
    reasons[choice.quarantined] |= np.uint16(BIT[SkipReason.QUARANTINE])
    rows = np.append(task.keyed.rows, -1)  # place -1 is row -1
    return Resolved(
        task.keyed.rows,
        copies.id,
        reasons,
        tuple(without),
        rows[copy_of],
        rows[origin],
        found.cluster,
        found.names,
        eligible,
    )


def _merged(parts: Sequence[Resolved]) -> Resolved:
    """Partitions as one."""
    import polars as pl

    if len(parts) == 1:
        return parts[0]
    order = order_of(np.concatenate([part.rows for part in parts]))
    before = np.cumsum([0, *(len(part.names) for part in parts)])

    def all_of(columns: Sequence[Any]) -> Any:
        return np.concatenate(columns)[order]

    return Resolved(
        rows=all_of([part.rows for part in parts]),
        id=pl.concat([part.id for part in parts]).gather(order),
        reasons=all_of([part.reasons for part in parts]),
        without=tuple(all_of(each) for each in zip(*(part.without for part in parts), strict=True)),
        copy_of=all_of([part.copy_of for part in parts]),
        spread_from=all_of([part.spread_from for part in parts]),
        cluster=all_of([
            np.where(part.cluster < 0, -1, part.cluster + start) for part, start in zip(parts, before[:-1], strict=True)
        ]),
        names=tuple(name for part in parts for name in part.names),
        eligible=all_of([part.eligible for part in parts]),
    )


def _spread(found: Found, reasons: Bits, current: Mask, drops: Drops) -> Ints:
    """Mark the copies of what is opted out, and of what is labelled nsfw. Returns where it came from, or -1."""
    origin = np.full(len(reasons), -1)
    for reason, among in ((SkipReason.OPTOUT, np.ones(len(reasons), np.bool_)), (SkipReason.NSFW, current)):
        if reason == SkipReason.NSFW and Label.NSFW not in drops.labels:
            continue
        reached = spread(found, (reasons & np.uint16(BIT[reason]) > 0) & among, among)
        reasons[reached >= 0] |= np.uint16(BIT[reason])
        origin = np.where(origin < 0, reached, origin)
    return origin


def _all_but(lifted: Set) -> np.uint16:
    return np.uint16(0xFFFF - sum(BIT[reason] for reason in lifted))


def _without(found: Found, reasons: Bits, current: Mask, lifted: Set, decided: Mapping[str, str]) -> Choice:
    """Who is left out as a copy or in quarantine if a set is lifted, by candidate."""
    eligible = reasons & _all_but(lifted) == 0
    if not set(lifted) & set(_ENGINES):
        eligible &= current
    twice = _same_id(found, eligible, current)
    eligible &= twice < 0
    copy_of, quarantined = np.full(len(eligible), -1), np.zeros(len(eligible), np.bool_)
    if SkipReason.DUPLICATE not in lifted:
        choice = choose(found, eligible, decided)
        copy_of, quarantined = choice.copy_of, choice.quarantined
    elif SkipReason.QUARANTINE not in lifted:
        quarantined = aside(found, eligible, decided)
    copy_of = np.where(copy_of < 0, twice, copy_of)
    if SkipReason.QUARANTINE in lifted:
        quarantined = np.zeros(len(eligible), np.bool_)
    return Choice(copy_of, quarantined)


def _same_id(found: Found, eligible: Mask, current: Mask) -> Ints:
    """Of several samples of an id one is served, the current one or else the last: for the others its place, or -1."""
    import polars as pl

    served = np.full(len(eligible), -1)
    if not (eligible & ~current).any():
        return served
    places = np.flatnonzero(eligible)
    frame = pl.DataFrame({
        "id": found.rule.copies.id.gather(places),
        "place": places,
        "rank": np.where(current[places], len(eligible), 0) + places,
    })
    frame = frame.filter(pl.col("id").is_duplicated())
    best = pl.col("place").sort_by("rank").last().over("id")
    frame = frame.with_columns(best=best).filter(pl.col("best") != pl.col("place"))
    served[frame["place"].to_numpy()] = frame["best"].to_numpy()
    return served
