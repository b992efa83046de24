"""Every reason of every sample that is left out, in each set of reasons that a training run may lift."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from smalti.config import Drops
from smalti.curation.dedup import Choice, Found, aside, candidates, choose, search, spread
from smalti.curation.load import Reader
from smalti.curation.near import Ints, Mask
from smalti.curation.scan import BIT, Bits, Scan, read_copies, scan
from smalti.reasons import Label, SkipReason

Set = tuple[SkipReason, ...]

_ENGINES = (SkipReason.CAPTIONER, SkipReason.CLASSIFIER)
"""Who lifts these may serve another sample of an id than the current one."""


@dataclass(frozen=True)
class Decisions:
    """By row of all samples, or by place among the candidates, the samples that may be copies.

    Attributes:
        reasons: uint16 by row, every reason with nothing lifted.
        rows: of the candidates, ascending.
        without: reason set -> bool by candidate, left out as a copy or in quarantine if the set is lifted.
        copy_of, spread_from: by candidate the row that is kept, or whose label or opt-out applies; -1.
        found: over the candidates.
        eligible: bool by candidate, that nothing but copies leaves out.
    """

    scanned: Scan
    reasons: Bits
    rows: Ints
    without: dict[Set, Mask]
    copy_of: Ints
    spread_from: Ints
    found: Found
    eligible: Mask


def decide(
    reader: Reader,
    drops: Drops,
    *,
    denied: frozenset[str] = frozenset(),
    priorities: Mapping[str, int] | None = None,
    optouts: Mapping[str, Sequence[int]] | None = None,
    reason_sets: Sequence[Set] = (),
    lifted: Set = (),
    decided: Mapping[str, str] | None = None,
) -> Decisions:
    """Look at every sample once, at those that may be copies more closely.

    Args:
        denied: sample ids.
        priorities: source -> priority among copies of one resolution.
        optouts: shard -> indices that are opted out.
        lifted: an ablation: reasons that are not applied.
        decided: cluster -> what a person decided.
    """
    scanned = scan(reader, drops, denied, shards=bool(optouts))
    reasons = scanned.reasons
    marked = scanned.row_of(optouts or {})
    rows = _candidates(scanned, drops.duplicates.distance, opted_out=len(marked) > 0)
    reasons[marked] |= np.uint16(BIT[SkipReason.OPTOUT])
    found = search(
        read_copies(reader, scanned, rows, priorities or {}), drops.duplicates.distance, drops.duplicates.cluster_limit
    )
    origin = _spread(scanned, found, rows, drops)
    current = scanned.current[rows]
    eligible = current & (reasons[rows] == 0)
    choice = choose(found, eligible, decided or {})
    if lifted:
        choice = _without(found, reasons[rows], current, lifted, decided or {})
        reasons &= _all_but(lifted)
    copy_of = choice.copy_of
    without = {}
    for each in reason_sets:
        other = _without(found, reasons[rows], current, each, decided or {})
        without[each] = (other.copy_of >= 0) | other.quarantined
        copy_of = np.where(copy_of < 0, other.copy_of, copy_of)
    reasons[rows[choice.copy_of >= 0]] |= np.uint16(BIT[SkipReason.DUPLICATE])
    reasons[rows[choice.quarantined]] |= np.uint16(BIT[SkipReason.QUARANTINE])
    return Decisions(scanned, reasons, rows, without, copy_of, origin, found, eligible)


def _candidates(scanned: Scan, distance: int, opted_out: bool) -> Ints:
    """Rows that may be copies. What was superseded matters only to opt-outs: a person's picture stays theirs."""

    def of(rows: Any) -> Mask:
        return candidates(scanned.sha256[rows, 0], scanned.phash[rows], scanned.hashed[rows], distance)

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


def _spread(scanned: Scan, found: Found, rows: Ints, drops: Drops) -> Ints:
    """Mark the copies of what is opted out, and of what is labelled nsfw. Returns by candidate where it came from, or -1."""
    reasons, current = scanned.reasons, scanned.current[rows]
    origin = np.full(len(rows), -1)
    for reason, among in ((SkipReason.OPTOUT, np.ones(len(rows), np.bool_)), (SkipReason.NSFW, current)):
        if reason == SkipReason.NSFW and Label.NSFW not in drops.labels:
            continue
        reached = spread(found, (reasons[rows] & np.uint16(BIT[reason]) > 0) & among, among)
        reasons[rows[reached >= 0]] |= np.uint16(BIT[reason])
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
