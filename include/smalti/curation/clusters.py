"""Which samples hang together by copies of copies, without comparing all pairs of a large group.

Each difference that the rule looks at is a metric, or bounded by one (bits, log ratio, largest difference of
thumbnails and its spread). So a group is first covered by stars: a centre, and what is within the rule of it. Two stars can be joined by a pair of their members
only if their centres are within three times the rule, and by a member only if it is within twice the rule of the other centre.
What may be near is looked up by the sums over twelve regions of the thumbnail, four of each plane (a k-d tree): these differ by no more in all than
the thumbnails do. So a cluster of n costs about n comparisons, and n pictures of one hash that have nothing else in common cost
about n look-ups.
"""

from __future__ import annotations

import numpy as np

from smalti.curation.copies import Rule
from smalti.curation.near import Ints, pairs_in_runs, runs
from smalti.images.fingerprint import ColourBounds, colour_regions

WORK = 20_000_000
"""Comparisons of thumbnails in one group, some 10 s, after which it is taken for one cluster. Only thousands of pictures of one
hash that all but agree, as of a camera that never moves, come here; a person decides about them, not a hash."""

SMALL = 48
"""Samples of a group up to which all pairs are compared."""


def connected(rule: Rule, rows: Ints, group: Ints) -> Ints:
    """Connected components of the relation "is a copy of" within groups.

    Args:
        rows: of the rule's table, int64 (n,).
        group: of each row, int64 (n,); copies are in one group.
    Returns:
        int64 (n,): numbers from 0, the same for rows that hang together.
    """
    order = np.lexsort((rows, group))
    bounds = runs(group[order])
    large = np.flatnonzero(np.diff(bounds) > SMALL)
    edges = [np.empty((2, 0), np.int64)]
    for each in large:
        members = order[bounds[each] : bounds[each + 1]]
        joined = _large(rule, rows[members])
        edges.append(np.stack([members, members[joined]]))
    small = order[np.repeat(np.diff(bounds) <= SMALL, np.diff(bounds))]
    for i, j in pairs_in_runs(runs(group[small])):
        alike = rule.is_copy(rows[small[i]], rows[small[j]])
        edges.append(np.stack([small[i[alike]], small[j[alike]]]))
    return join(len(rows), np.concatenate(edges, 1))


def join(count: int, edges: Ints) -> Ints:
    """Connected components of `count` nodes: a number from 0 to count for each node. edges: int64 (2, m)."""
    label = np.arange(count)
    if not edges.shape[1]:
        return label
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    nodes, place = np.unique(edges, return_inverse=True)  # most nodes have no edge
    ones, twos = place.reshape(2, -1)
    graph = coo_array((np.ones(len(ones), np.bool_), (ones, twos)), shape=(len(nodes), len(nodes)))
    found = connected_components(graph, directed=False)[1]
    least = np.empty(int(found.max()) + 1, np.int64)
    least[found[::-1]] = nodes[::-1]
    label[nodes] = least[found]
    return label


def _large(rule: Rule, rows: Ints) -> Ints:
    """For each of the rows of one group the place of a row that it hangs together with: a parent of a forest."""
    group = _Group(rule, rows)
    star = group.stars()
    edges = [np.stack([np.arange(len(rows)), star]), group.bridges(star)]
    sha256 = rule.copies.sha256[rows]
    order = np.lexsort((sha256[:, 1], sha256[:, 0]))
    equal = rule.same_bytes(rows[order[1:]], rows[order[:-1]])
    edges.append(np.stack([order[1:][equal], order[:-1][equal]]))
    label = join(len(rows), np.concatenate(edges, 1))
    first = np.empty(int(label.max()) + 1, np.int64)
    first[label[::-1]] = np.arange(len(rows))[::-1]  # the first place of each component
    return np.asarray(first[label])


class _Group:
    """Rows of one group, to be found by sums over twelve regions of their thumbnails."""

    def __init__(self, rule: Rule, rows: Ints) -> None:
        self.rule, self.rows, self.work = rule, rows, 0
        thumbnails = rule.copies.colour[rows]
        self.bounds, self.regions = ColourBounds.of(thumbnails), colour_regions(thumbnails)

    def stars(self) -> Ints:
        """For each row the place of its centre; centres name themselves."""
        from scipy.spatial import cKDTree

        tree = cKDTree(self.regions)
        centre = np.full(len(self.rows), -1)
        for place in range(len(self.rows)):
            if centre[place] < 0:
                near = np.array(tree.query_ball_point(self.regions[place], self.bounds.regions, p=1), np.int64)
                centre[place] = place
                near = near[centre[near] < 0]
                if len(near):
                    centre[self._within(place, near, 1)] = place
                if self.work > WORK:
                    return np.zeros_like(centre)
        return centre

    def bridges(self, star: Ints) -> Ints:
        """Edges between members of stars, enough of them to join all stars that hang together: int64 (2, m)."""
        from scipy.spatial import cKDTree

        centres = np.flatnonzero(star == np.arange(len(star)))
        order = np.argsort(star, kind="stable")
        members = np.split(order, np.searchsorted(star[order], centres[1:]))
        wide = np.array([len(each) > 1 for each in members])
        tree = cKDTree(self.regions[centres])
        parent = list(range(len(centres)))
        edges = []
        self.work = 0
        for one in np.flatnonzero(wide):  # two stars of one member each are none of one another's copies
            place = int(centres[one])
            if self.work > WORK:
                return np.stack([np.full(len(centres), place), centres])
            near = np.array(tree.query_ball_point(self.regions[place], 3 * self.bounds.regions, p=1), np.int64)
            near = near[(near > one) | ~wide[near]]
            for other in np.searchsorted(centres, self._within(place, centres[near], 3)):
                if _root(parent, int(one)) == _root(parent, int(other)):
                    continue
                edge = self._bridge(place, int(centres[other]), members[one], members[other])
                if edge is not None:
                    parent[_root(parent, int(other))] = _root(parent, int(one))
                    edges.append(edge)
        return np.array(edges, np.int64).reshape(-1, 2).T

    def _bridge(self, one: int, two: int, ones: Ints, twos: Ints) -> tuple[int, int] | None:
        """A pair of copies, one a member of each star."""
        ones, twos = self._within(two, ones, 2), self._within(one, twos, 2)
        if len(ones) > len(twos):
            ones, twos = twos, ones
        for place in ones:
            found = self._within(int(place), twos, 1)
            if len(found):
                return int(place), int(found[0])
        return None

    def _within(self, place: int, others: Ints, scale: int) -> Ints:
        """Those of the other places that are within `scale` times the rule, in their order."""
        self.work += len(others)
        rows = self.rows[others]
        alike = self.rule.look_alike(np.full(len(rows), self.rows[place]), rows, scale, self.bounds)
        return np.asarray(others[alike])


def _root(parent: list[int], node: int) -> int:
    while parent[node] != node:
        parent[node] = parent[parent[node]]
        node = parent[node]
    return node
