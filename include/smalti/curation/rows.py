"""Decisions as the record keeps them: a row a sample that is left out, and counts over all samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from smalti.curation.decide import Decisions
from smalti.curation.load import read_rows
from smalti.curation.near import Ints
from smalti.curation.readers import Reader
from smalti.curation.record import ROWS, Cluster
from smalti.curation.scan import BIT, Bits
from smalti.reasons import DEDUP_REASONS, SkipReason, set_name

EXAMPLES = 6
"""Samples of a cluster that are named."""


def rows_of(reader: Reader, decisions: Decisions, declared: Sequence[SkipReason]) -> pa.Table:
    """The rows of the record, in its order."""
    import polars as pl

    decided = _decided(decisions)
    out = decisions.reasons > 0
    out[decisions.copies.rows[decided > 0]] = True
    rows = np.flatnonzero(out)
    frames: list[Any] = []
    read_rows(
        reader,
        ["tier", "ar", "shard", "index", "id"],
        rows,
        lambda _, part, frame: frames.append(frame.with_columns(part=pl.lit(part, pl.Int32))),
    )
    if not frames:
        return ROWS.empty_table()
    copies, place = decisions.copies, _places(decisions.copies.rows, rows)
    names = pl.Series("cluster", list(copies.names), pl.String)
    frame = pl.concat(frames).with_columns(
        reasons=pl.Series(_declared_bits(decisions.reasons[rows], declared)),
        decided=pl.Series(np.append(decided, np.uint32(0))[place]),
        cluster=_texts(names, np.append(copies.cluster, -1)[place]),
        copy_of=_texts(copies.id, _places(copies.rows, np.append(copies.copy_of, -1)[place])),
        spread_from=_texts(copies.id, _places(copies.rows, np.append(copies.spread_from, -1)[place])),
    )
    order = ["tier", "ar", "part", "shard", "index"]
    return frame.sort(order).select(ROWS.names).to_arrow(compat_level=pl.CompatLevel.oldest()).cast(ROWS)


def _decided(decisions: Decisions) -> npt.NDArray[np.uint32]:
    """By candidate, bit k: left out as a copy or in quarantine in the k-th set."""
    decided = np.zeros(len(decisions.copies.rows), np.uint32)
    for bit, left_out in enumerate(decisions.copies.without):
        decided |= left_out.astype(np.uint32) << np.uint32(bit)
    return decided


def _places(candidates: Ints, rows: Ints) -> Ints:
    """Places of rows among the candidates, or -1."""
    if not len(candidates):
        return np.full(len(rows), -1)
    place = np.minimum(np.searchsorted(candidates, rows), len(candidates) - 1)
    return np.where(candidates[place] == rows, place, -1)


def _texts(texts: Any, at: Ints) -> Any:
    """texts[at], null where that is -1."""
    import polars as pl

    found = pl.Series([None] * 0, dtype=pl.String).extend_constant(None, len(at))
    inside = np.flatnonzero(at >= 0)
    return found.scatter(inside, texts.gather(at[inside])) if len(inside) else found


def _declared_bits(reasons: Bits, declared: Sequence[SkipReason]) -> npt.NDArray[np.uint32]:
    """Bits in the order of the header's reasons."""
    found = np.zeros(len(reasons), np.uint32)
    for bit, reason in enumerate(declared):
        found |= (reasons & np.uint16(BIT[reason]) > 0).astype(np.uint32) << np.uint32(bit)
    return found


def first_reasons(reasons: Bits) -> dict[SkipReason, int]:
    """Samples under their first reason."""
    values, counts = np.unique(reasons, return_counts=True)
    found: dict[SkipReason, int] = {}
    for value, count in zip(values.tolist(), counts.tolist(), strict=True):
        first = next((reason for reason in SkipReason if value & BIT[reason]), None)
        if first is not None:
            found[first] = found.get(first, 0) + count
    return {reason: found[reason] for reason in SkipReason if reason in found}


def kept_without(decisions: Decisions) -> dict[str, int]:
    """Reason set -> samples that are served if it is lifted."""
    kept = {}
    for each, left_out in zip(decisions.reason_sets, decisions.copies.without, strict=True):
        lifted = sum(BIT[reason] for reason in {*each, *DEDUP_REASONS})
        out = decisions.reasons & np.uint16(0xFFFF - lifted) > 0
        out[decisions.copies.rows[left_out]] = True
        kept[set_name(each)] = len(out) - int(out.sum())
    return kept


def clusters_of(decisions: Decisions, decided: dict[str, str]) -> tuple[Cluster, ...]:
    """Clusters above the limit, the largest first; what is opted out is no example of one."""
    found = decisions.copies
    may_be_shown = _may_be_shown(decisions)
    sizes = np.bincount(found.cluster[found.eligible] + 1, minlength=len(found.names) + 1)[1:]
    aside = found.reasons & np.uint16(BIT[SkipReason.QUARANTINE]) > 0
    quarantined = np.bincount(found.cluster[aside] + 1, minlength=len(found.names) + 1)[1:]
    order = np.argsort(found.cluster, kind="stable")
    starts = np.searchsorted(found.cluster[order], np.arange(len(found.names) + 1))
    clusters = []
    for number, name in enumerate(found.names):
        members = order[starts[number] : starts[number + 1]]
        clusters.append(
            Cluster(
                name=name,
                samples=int(sizes[number]),
                quarantined=int(quarantined[number]),
                decided=decided.get(name),
                examples=tuple(sorted(_some(found.id, members[may_be_shown[members]]))[:EXAMPLES]),
            )
        )
    return tuple(sorted(clusters, key=lambda each: (-each.samples, each.name)))


def _may_be_shown(decisions: Decisions) -> npt.NDArray[np.bool_]:
    """Which of those that may be copies are not opted out."""
    shown: npt.NDArray[np.bool_] = decisions.copies.reasons & np.uint16(BIT[SkipReason.OPTOUT]) == 0
    return shown


def _some(ids: Any, members: Ints) -> list[str]:
    return [str(each) for each in ids.gather(members).bottom_k(EXAMPLES)]


def places_of(reader: Reader, rows: Ints) -> list[tuple[str, str, int]]:
    """Id, shard and index of some rows (ascending)."""
    found: list[tuple[str, str, int]] = []
    read_rows(reader, ["id", "shard", "index"], rows, lambda _, __, frame: found.extend(frame.iter_rows()))
    return found


def members_of(decisions: Decisions, cluster: str, most: int) -> Ints:
    """A few rows of a cluster, spread over its members but for those that are opted out, which nobody is shown; ascending."""
    copies = decisions.copies
    members = np.flatnonzero((copies.cluster == copies.names.index(cluster)) & _may_be_shown(decisions))
    if len(members) > most:
        members = members[np.linspace(0, len(members) - 1, most).astype(np.int64)]
    return copies.rows[members]
