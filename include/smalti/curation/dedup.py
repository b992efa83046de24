"""Which samples show the same picture, and which of them is kept. Functions over columns; nothing is read here.

Two samples are copies if their bytes are equal, or if their fingerprints agree (`smalti.images.fingerprint.same_picture`) and
their aspect ratios are close. "Copy" is not transitive, so a chain of look-alikes could merge what nobody would call the
same: duplicates are therefore decided against kept samples only. Samples are taken in the order of their rank (the most
pixels, then the source's priority, then the id), and each becomes a duplicate of the first kept sample it is a copy of, or is
kept. The rank is a total order, so neither the order in which parts arrive nor chance decides anything.

Where more look alike than a person would believe (a cluster: samples that hang together by copies of copies, equal bytes
counted once), a hash does not decide: they are set aside until a person has. What has the same bytes stays a duplicate.

`search` does what depends on the pictures alone, once; `choose` decides among any of the samples; `spread` follows copies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from smalti.curation.clusters import connected, join
from smalti.curation.copies import Copies, Rule
from smalti.curation.near import Ints, Keys, Mask, may_repeat, near_pairs, order_of, runs

MERGE, KEEP = "merge", "keep"
"""What a person may decide of a cluster: it is one picture, or each is a picture of its own."""


@dataclass(frozen=True)
class Found:
    """What `search` found; all by row of the table.

    Attributes:
        rule: when two rows are copies.
        node: a row with the same bytes and fingerprint, the same one for all of them.
        group: copies are in one group.
        order: all rows, by group, then by rank.
        cluster: number of the cluster, or -1 where it is small enough.
        names: of the clusters.
        limit: above which a cluster is set aside.
    """

    rule: Rule
    node: Ints
    group: Ints
    order: Ints
    cluster: Ints
    names: tuple[str, ...]
    limit: int


@dataclass(frozen=True)
class Choice:
    """copy_of: row that is kept in its place, or -1. quarantined: bool, set aside. Both by row."""

    copy_of: Ints
    quarantined: Mask


def candidates(sha256: Keys, phash: Keys, distance: int) -> Mask:
    """Which samples can be a copy of another one: bool (n,).

    Args:
        sha256: uint64 (n,), the first of the two hashes of `Copies`.
        phash: as in `Copies`; where there is none, something that only equal bytes have in common.
    """
    with ThreadPoolExecutor(1) as pool:  # numpy sorts without holding the lock
        waiting = pool.submit(may_repeat, sha256)
        alike = may_repeat(phash)
        if distance:
            alike |= _near(phash, distance)
        return np.asarray(waiting.result() | alike)


def _near(prints: Keys, distance: int) -> Mask:
    """Which hashes have another hash near."""
    distinct = np.unique(prints)
    near = np.zeros(len(distinct), np.bool_)
    for side in near_pairs(distinct, distance):
        near[side] = True
    return near[np.searchsorted(distinct, prints)] if near.any() else np.zeros(len(prints), np.bool_)


def search(copies: Copies, distance: int, limit: int) -> Found:
    """Find everything that may be a copy of something.

    Args:
        distance: bits in which the hashes of copies may differ.
        limit: samples of a cluster, equal bytes counted once, above which it is set aside.
    """
    rule = Rule.of(copies, distance)
    equal = equal_bytes(copies)
    group = coarse_groups(copies, equal, distance)
    order = _ranked(copies, group, np.arange(len(copies)))
    node = _nodes(copies, equal)  # from here on thumbnails are needed
    heads = node == np.arange(len(copies))
    crowded = (np.bincount(group[heads]) > limit)[group] if len(copies) else heads
    members = np.flatnonzero(heads & crowded)
    cluster = np.full(len(copies), -1)
    names: tuple[str, ...] = ()
    if len(members):
        part = connected(rule, members, group[members])
        group[members] = int(group.max()) + 1 + part
        group = group[node]
        order = np.concatenate([order[~crowded[order]], _ranked(copies, group, np.flatnonzero(crowded))])
        over = np.flatnonzero(np.bincount(part) > limit)
        place = np.full(int(part.max()) + 1, -1)
        place[over] = np.arange(len(over))
        cluster[members] = place[part]
        cluster = cluster[node]
        names = _names(copies, members, place[part], len(over)) if len(over) else ()
    return Found(rule, node, group, order, cluster, names, limit)


def choose(found: Found, eligible: Mask, decided: Mapping[str, str]) -> Choice:
    """Decide among the eligible rows who is kept, who is a copy, and who is set aside.

    Args:
        decided: name of a cluster -> MERGE or KEEP.
    """
    copy_of, mode = np.full(len(eligible), -1), np.zeros(len(eligible), np.int64)
    rows = found.order[eligible[found.order]]
    first = np.full(len(eligible), -1)
    first[found.node[rows[::-1]]] = rows[::-1]  # of equal ones the best comes last and stays
    best = first[found.node[rows]]
    active = rows[best == rows]
    if found.names:
        mode = _modes(found, active, decided)[found.cluster]
    waiting = active
    apart = active[mode[active] >= _ASIDE]
    if len(apart):
        copy_of[apart] = _of_equal_bytes(found.rule, apart)
        waiting = active[mode[active] < _ASIDE]
    while len(waiting):
        starts = runs(found.group[waiting])
        leader = np.repeat(waiting[starts[:-1]], np.diff(starts))
        rest = np.flatnonzero(leader != waiting)
        waiting, leader = waiting[rest], leader[rest]
        same = mode[waiting] == _MERGED
        open_ = np.flatnonzero(~same)
        same[open_] = found.rule.is_copy(leader[open_], waiting[open_])
        copy_of[waiting[same]] = leader[same]
        waiting = waiting[~same]
    others = best != rows
    copy_of[rows[others]] = np.where(copy_of[best[others]] >= 0, copy_of[best[others]], best[others])
    quarantined = np.zeros(len(eligible), np.bool_)
    quarantined[active] = (mode[active] == _ASIDE) & (copy_of[active] < 0)
    return Choice(copy_of, quarantined)


def aside(found: Found, eligible: Mask, decided: Mapping[str, str]) -> Mask:
    """Every eligible row of the clusters that are set aside, copies of the same bytes too: bool (n,)."""
    if not found.names:
        return np.zeros(len(eligible), np.bool_)
    first = np.full(len(eligible), -1)
    rows = np.flatnonzero(eligible)
    first[found.node[rows]] = rows
    modes = _modes(found, first[first >= 0], decided)
    return np.asarray(eligible & (modes[found.cluster] == _ASIDE))


def spread(found: Found, marked: Mask, among: Mask) -> Ints:
    """Every copy of a marked row, and every copy of those, among some rows: the marked row of the smallest id, or -1.

    Unlike duplicates this does follow chains: what must not be served is better left out once too often. A marked row has -1.
    """
    import polars as pl

    origin = np.full(len(marked), -1)
    sources = np.flatnonzero(marked & among)
    touched = np.zeros(int(found.group.max(initial=-1)) + 1, np.bool_)
    touched[found.group[sources]] = True
    rows = np.flatnonzero(among & touched[found.group]) if len(sources) else sources
    if not len(rows):
        return origin
    nodes, place = np.unique(found.node[rows], return_inverse=True)
    part = connected(found.rule, nodes, found.group[nodes])[place]
    label = np.full(len(marked), -1)
    label[rows] = part
    ids = found.rule.copies.id.gather(sources)
    ordered = pl.DataFrame({"part": label[sources], "id": ids, "row": sources}).sort("part", "id", "row")
    least = np.full(int(part.max()) + 1, -1)
    least[ordered["part"].to_numpy()[::-1]] = ordered["row"].to_numpy()[::-1]
    origin[rows] = least[part]
    origin[marked] = -1
    return origin


_MERGED, _ASIDE, _KEPT = 1, 2, 3


def _modes(found: Found, active: Ints, decided: Mapping[str, str]) -> Ints:
    """What happens to each cluster; one entry more, 0, for rows of none (cluster -1)."""
    clusters = found.cluster[active]
    sizes = np.bincount(clusters[clusters >= 0], minlength=len(found.names))
    said = np.array([{MERGE: _MERGED, KEEP: _KEPT}.get(decided.get(name, ""), 0) for name in found.names], np.int64)
    undecided = np.where(sizes > found.limit, _ASIDE, 0)  # what a person has said holds for what is left of it, too
    return np.append(np.where(said > 0, said, undecided), 0)


def _of_equal_bytes(rule: Rule, rows: Ints) -> Ints:
    """For each row the first one before it with the same bytes, or -1."""
    sha256 = rule.copies.sha256[rows]
    order = np.lexsort((np.arange(len(rows)), sha256[:, 1], sha256[:, 0]))
    equal = rule.same_bytes(rows[order[1:]], rows[order[:-1]])
    bounds = np.append(np.flatnonzero(np.append(True, ~equal)), len(rows))
    first = np.empty(len(rows), np.int64)
    first[order] = np.repeat(order[bounds[:-1]], np.diff(bounds))
    return np.asarray(np.where(first == np.arange(len(rows)), -1, rows[first]))


def equal_bytes(copies: Copies) -> Ints:
    """Rows with equal bytes as pairs of neighbours, int64 (2, m): the rows of one content make a chain, ascending."""
    first, second = copies.sha256[:, 0], copies.sha256[:, 1]
    rows = np.flatnonzero(may_repeat(first))
    rows = rows[np.argsort(first[rows], kind="stable")]
    equal = _equal((first, second), rows)
    if (_equal((first,), rows) & ~equal).any():  # once in 1e5 lakes of 1e7 samples
        rows = rows[np.lexsort((second[rows], first[rows]))]
        equal = _equal((first, second), rows)
    return np.stack([rows[:-1][equal], rows[1:][equal]])


def _nodes(copies: Copies, equal: Ints) -> Ints:
    """Rows that nothing can tell apart have one node, the first of them: they have the same copies, so that one of them decides
    for all. Almost all rows of one content are told apart by nothing; the others stay nodes of their own."""
    node = np.arange(len(copies))
    head = _heads(equal, len(copies))
    rows = np.flatnonzero(head != node)
    same = np.ones(len(rows), np.bool_)
    for column in (copies.phash, copies.hashed, copies.width, copies.height):
        same &= column[rows] == column[head[rows]]
    rows = rows[same]
    colour = copies.colour
    for start in range(0, len(rows), 1 << 16):
        some = rows[start : start + (1 << 16)]
        twin = (colour[some] == colour[head[some]]).all(1)
        node[some[twin]] = head[some[twin]]
    return node


def _heads(equal: Ints, count: int) -> Ints:
    """The first row of the content of each row. equal: as `equal_bytes` gives them."""
    head = np.arange(count)
    lower, upper = equal
    if len(upper):
        begins = np.append(True, lower[1:] != upper[:-1])
        head[upper] = lower[begins][np.cumsum(begins) - 1]
    return head


def _equal(columns: Sequence[npt.NDArray[Any]], rows: Ints) -> Mask:
    """Whether each row but the first has the values of the one before it."""
    equal = np.ones(max(len(rows) - 1, 0), np.bool_)
    for column in columns:
        values = column[rows]
        equal &= values[1:] == values[:-1]
    return equal


def coarse_groups(copies: Copies, equal: Ints, distance: int) -> Ints:
    """Rows that share a hash, are near one, or share their bytes, and whatever hangs together by these: numbers, by row.

    Args:
        equal: as `equal_bytes` gives them.
    """
    hashed = np.flatnonzero(copies.hashed)
    hashed = hashed[order_of(copies.phash[hashed])]
    bounds = runs(copies.phash[hashed])
    distinct = copies.phash[hashed[bounds[:-1]]]
    group = np.empty(len(copies), np.int64)
    group[hashed] = np.repeat(np.arange(len(distinct)), np.diff(bounds))
    flat = np.flatnonzero(~copies.hashed)
    group[flat] = len(distinct) + np.arange(len(flat))
    bytes_ = group[equal]
    edges = [bytes_[:, bytes_[0] != bytes_[1]], np.stack(near_pairs(distinct, distance))]
    return join(len(distinct) + len(flat), np.concatenate(edges, 1))[group]


def _ranked(copies: Copies, group: Ints, rows: Ints) -> Ints:
    """Some rows by group; within it the most pixels first, then the source's priority, then the id."""
    import polars as pl

    group, pixels = group[rows], (copies.width * copies.height)[rows]
    most = int(pixels.max(initial=0))
    if (int(group.max(initial=0)) + 1) * (most + 1) < 1 << 63:
        order = order_of(group * (most + 1) + (most - pixels))
    else:
        order = np.lexsort((-pixels, group))
    tie = _equal((group, pixels), order)
    places = np.flatnonzero(np.append(tie, False) | np.append(False, tie)) if len(order) else order
    if len(places):
        run = np.cumsum(np.append(True, ~tie))[places]
        tied = rows[order[places]]
        frame = pl.DataFrame({
            "run": run,
            "priority": -copies.priority[tied],
            "id": copies.id.gather(tied),
            "row": order[places],
        })
        order[places] = frame.sort("run", "priority", "id", "row")["row"].to_numpy()
    return rows[order]


def _names(copies: Copies, rows: Ints, cluster: Ints, count: int) -> tuple[str, ...]:
    """The smallest hash of each cluster in hex; with something of its first id if that is another cluster's too.

    So a decision about one of two clusters is never taken for one about the other after they have grown.
    """
    hashes, least = [], []
    order = np.lexsort((copies.phash[rows], ~copies.hashed[rows], cluster))
    order = order[np.searchsorted(cluster[order], 0) :]
    for members in np.split(rows[order], np.searchsorted(cluster[order], np.arange(1, count))):
        hashes.append(f"{copies.phash[members[0]]:016x}")
        least.append(hashlib.sha256(str(copies.id.gather(members).min()).encode()).hexdigest()[:8])
    return tuple(
        name if hashes.count(name) == 1 else f"{name}-{more}" for name, more in zip(hashes, least, strict=True)
    )
