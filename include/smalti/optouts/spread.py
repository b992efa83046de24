"""Every copy of what was matched, and every copy of those: the same bytes, or the same picture by `smalti.images.fingerprint`.

It goes from what was reached last: samples that may be a copy of that are looked up among all (`Prints.candidates`), and compared. What is
compared once is not compared again, so the work is that of the copies that there are and of hashes that are near by chance.

Several requests spread side by side, each over the same samples: an entry is a node that a request has reached, with the key that did.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from smalti.curation.copies import ASPECT_TOLERANCE
from smalti.curation.near import Ints, Keys, Mask
from smalti.images.fingerprint import RECOMMENDED_DISTANCE as DISTANCE
from smalti.optouts.neighbours import Neighbours
from smalti.optouts.nodes import Nodes
from smalti.optouts.prints import HASHED

_STEPS = 16
"""Comparisons with one of a list at a time, before the rest of the list is gone through at once: most are settled by the first."""

_PAIRS = 1 << 22
"""Pairs that are listed at a time: 64 MiB."""


@dataclass
class _Entries:
    """Nodes that requests have reached, each once: code = node * requests + request.

    Attributes:
        own: codes of nodes that are not in the reader (the first `others` of all): what one request has matched before is no bridge for another.
    """

    requests: int
    own: Ints
    others: int
    codes: Ints
    keys: Ints

    def code(self, node: Ints, request: Ints) -> Ints:
        return node.astype(np.int64) * self.requests + request

    def new(self, codes: Ints, keys: Ints) -> tuple[Ints, Ints]:
        """Those that were not reached before, each once with the smallest key; they are now."""
        order = np.lexsort((keys, codes))
        codes, keys = codes[order], keys[order]
        once = np.append(True, codes[1:] != codes[:-1])[: len(codes)] & self.open(codes)
        codes, keys = codes[once], keys[once]
        at = np.searchsorted(self.codes, codes)
        self.codes, self.keys = np.insert(self.codes, at, codes), np.insert(self.keys, at, keys)
        return codes, keys

    def open(self, codes: Ints) -> Mask:
        """Which may be reached, and were not."""
        return ~_among(codes, self.codes) & ((codes >= self.others * self.requests) | _among(codes, self.own))


def _among(codes: Ints, ordered: Ints) -> Mask:
    if not len(ordered):
        return np.zeros(len(codes), np.bool_)
    at = np.minimum(np.searchsorted(ordered, codes), len(ordered) - 1)
    return np.asarray(ordered[at] == codes)


def spread(nodes: Nodes, origins: Any, own: Any, requests: int) -> Any:
    """All entries, the origins too, as a polars frame: node, request, key.

    Args:
        nodes: get more as they are met.
        origins: entries, the same node and request several times if several keys have it.
        own: node and request of what is not in the reader.
        requests: how many there are.
    """
    import polars as pl

    empty = np.empty(0, np.int64)
    owned = own["node"].to_numpy().astype(np.int64) * requests + own["request"].to_numpy()
    reached = _Entries(requests, np.unique(owned), int((nodes.row < 0).sum()), empty, empty)
    node, request = origins["node"].to_numpy(), origins["request"].to_numpy()
    front = reached.new(reached.code(node, request), origins["key"].to_numpy().astype(np.int64))
    bytes_, hashes = np.empty(0, np.uint64), np.empty(0, np.uint64)
    while len(front[0]):
        at = front[0] // requests
        new_bytes = np.setdiff1d(nodes.sha256[at, 0], bytes_)
        new_hashes = np.setdiff1d(nodes.phash[at[nodes.kind[at] == HASHED]], hashes)
        if len(new_bytes) or len(new_hashes):
            nodes.add(nodes.prints.candidates(new_bytes, new_hashes, DISTANCE))
            bytes_, hashes = np.union1d(bytes_, new_bytes), np.union1d(hashes, new_hashes)
        entries = pl.DataFrame({"node": at, "request": front[0] % requests, "key": front[1]})
        table = nodes.frame()
        entries = entries.join(table, on="node")
        twins = _same_bytes(entries, table, reached)
        alike = _same_picture(nodes, entries.filter("hashed"), table.filter("hashed"), reached)
        front = (np.concatenate([twins[0], alike[0]]), np.concatenate([twins[1], alike[1]]))
    return pl.DataFrame({
        "node": reached.codes // requests,
        "request": (reached.codes % requests).astype(np.int32),
        "key": reached.keys.astype(np.int32),
    })


def _same_bytes(entries: Any, table: Any, reached: _Entries) -> tuple[Ints, Ints]:
    import polars as pl

    content = ["first", "second"]
    origins = entries.group_by(*content, "request").agg(pl.col("key").min())
    found = table.select("node", *content).join(origins, on=content)
    return reached.new(reached.code(found["node"].to_numpy(), found["request"].to_numpy()), found["key"].to_numpy())


def _same_picture(nodes: Nodes, entries: Any, table: Any, reached: _Entries) -> tuple[Ints, Ints]:
    """What shows the picture of one of the entries.

    Entries of one hash and request are a list; each node of a near hash is compared with the list until one agrees.
    """
    import polars as pl

    entries = entries.sort("phash", "request", "key", "node")
    lists = entries.with_row_index("place").group_by("phash", "request")
    ratio = pl.col("ratio")
    lists = lists.agg(
        start=pl.col("place").min().cast(pl.Int64), size=pl.len().cast(pl.Int64), low=ratio.min(), high=ratio.max()
    )
    tasks = near_hashes(entries["phash"].to_numpy(), table["phash"].to_numpy())
    tasks = tasks.join(lists, left_on="of", right_on="phash").join(table.select("phash", "node", "ratio"), on="phash")
    tasks = tasks.filter(ratio >= pl.col("low") - ASPECT_TOLERANCE, ratio <= pl.col("high") + ASPECT_TOLERANCE)
    node, request = tasks["node"].to_numpy(), tasks["request"].to_numpy()
    open_ = reached.open(reached.code(node, request))
    tasks = tasks.filter(pl.Series(open_)).sort("node", "request", "start")
    work = _Comparisons(
        nodes,
        entries["node"].to_numpy(),
        entries["key"].to_numpy(),
        reached.code(tasks["node"].to_numpy(), tasks["request"].to_numpy()),
        tasks["node"].to_numpy(),
        tasks["start"].to_numpy(),
        tasks["size"].to_numpy(),
    )
    return reached.new(*work.done())


def near_hashes(of: Keys, others: Keys) -> Any:
    """Pairs of hashes that those of copies may be, as a polars frame: of, phash."""
    import polars as pl

    others = np.unique(others)
    near = Neighbours.of(of, DISTANCE)
    place, value = near.pairs(others)
    return pl.DataFrame({"of": near.values[value], "phash": others[place]})


@dataclass
class _Comparisons:
    """Nodes to compare with the nodes of a list, each until one agrees; by task.

    Attributes:
        listed, keys: nodes of all lists and their keys, list after list.
        code: of the entry that the task decides about; several may decide about one.
        node: to compare; start, size: its list.
    """

    nodes: Nodes
    listed: Ints
    keys: Ints
    code: Ints
    node: Ints
    start: Ints
    size: Ints

    def done(self) -> tuple[Ints, Ints]:
        """Codes of entries that are reached, and keys; some several times."""
        self.nodes.load(np.concatenate([self.node, self.listed[self._in_lists()]]))
        found: list[tuple[Ints, Ints]] = [(np.empty(0, np.int64), np.empty(0, np.int64))]
        open_ = np.arange(len(self.code))
        for step in range(_STEPS):
            open_ = open_[self.size[open_] > step]
            if not len(open_):
                break
            at = self.start[open_] + step
            alike = self.nodes.alike(self.listed[at], self.node[open_])
            found.append((self.code[open_[alike]], self.keys[at[alike]]))
            open_ = open_[~np.isin(self.code[open_], found[-1][0])]
        open_ = open_[self.size[open_] > _STEPS]
        for tasks in batches(open_, self.size[open_] - _STEPS):
            task, at = ranges(tasks, self.start[tasks] + _STEPS, self.size[tasks] - _STEPS)
            alike = self.nodes.alike(self.listed[at], self.node[task])
            found.append((self.code[task[alike]], self.keys[at[alike]]))
        return np.concatenate([each[0] for each in found]), np.concatenate([each[1] for each in found])

    def _in_lists(self) -> Ints:
        starts, first = np.unique(self.start, return_index=True)
        return ranges(starts, starts, self.size[first])[1]


def ranges(of: Ints, start: Ints, size: Ints) -> tuple[Ints, Ints]:
    """For each of some numbers the places of its range: the number, place by place, and the places."""
    before = np.cumsum(size) - size
    return np.repeat(of, size), np.repeat(start - before, size) + np.arange(int(size.sum()))


def batches(of: Ints, size: Ints) -> list[Ints]:
    """Split so that the sizes of each piece add up to _PAIRS or little more."""
    number = (np.cumsum(size) - size) // _PAIRS
    return np.split(of, np.flatnonzero(number[1:] != number[:-1]) + 1) if len(of) else []
