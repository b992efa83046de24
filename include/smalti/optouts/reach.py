"""What a step of the ledger has to compare, and what of that is left to do when another step was faster.

A request reaches what its keys name, every copy of that, copies of copies, and whatever has the id of one of these. So a new
part is compared with the requests in force, and old parts once more only if the new one brought a request a picture or an id
that it did not have: those may have copies anywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from smalti.lake import Lake
from smalti.optouts.ledger_rows import READERS, in_order, not_in, read_matched, requests_with_news, together
from smalti.optouts.request import Request, read_request
from smalti.optouts.resolution import Ledger
from smalti.shards.part import Part


class Found(Protocol):
    """What a matcher returns, see `smalti.optouts.match.Matched`."""

    @property
    def rows(self) -> pa.Table:
        """One row for each request and place."""

    @property
    def unmatched(self) -> Mapping[str, Sequence[int]]:
        """request -> places of its keys that matched nothing."""


class Matcher(Protocol):
    """`smalti.optouts.match.match_parts`: the places in some parts that requests reach.

    `known`: rows of earlier calls, of other parts or of these: parts are compared with what they show and with their ids, too.
    They may be in the result again.
    """

    def __call__(
        self, lake: Lake, parts: Sequence[Part], requests: Sequence[Request], known: pa.Table | None = None
    ) -> Found: ...


@dataclass
class Reach:
    """The matching of one step, kept while it is tried under one number after another."""

    lake: Lake
    match: Matcher
    rows: pa.Table | None = None
    held: dict[str, Request] = field(default_factory=dict)
    looked: dict[str, set[str]] = field(default_factory=dict)
    unmatched: dict[str, set[int]] = field(default_factory=dict)

    def of(
        self, ledger: Ledger, fresh: Mapping[str, Request], force: Collection[str], parts: Mapping[str, Part]
    ) -> pa.Table | None:
        """Rows that the next step adds, in their order; None: there are none.

        Args:
            fresh: requests that it brings in force: compared with every part.
            force: those in force already: compared with the parts that are not covered.
            parts: every committed part, by `<source>/<part>`.
        """
        uncovered = parts.keys() - ledger.parts
        wanted = dict.fromkeys(force, uncovered) | {name: set(parts) for name in fresh}
        todo: dict[frozenset[str], list[str]] = {}
        for name, names in wanted.items():
            left = frozenset(names - self.looked.get(name, set()))
            if left:
                todo.setdefault(left, []).append(name)
                self.looked.setdefault(name, set()).update(left)
        self.held |= fresh
        unread = [name for each in todo.values() for name in each if name not in self.held]
        self.held |= {each.id: each for each in read_requests(self.lake, unread)}
        compared = [name for name in force if name in self.looked]
        told = read_matched(self.lake, ledger.matched, compared) if compared else None
        for left, each in todo.items():
            self._add([self.held[name] for name in each], told, parts, left)
        return self._new(wanted, told)

    def _add(
        self, requests: Sequence[Request], told: pa.Table | None, parts: Mapping[str, Part], left: Collection[str]
    ) -> None:
        """Compare requests with the parts in `left`, and with all as far as what is found there may have copies."""
        for names in (sorted(left), sorted(parts)):
            known = _of(together([told, self.rows]), requests)
            found = self.match(self.lake, [parts[name] for name in names], requests, known=known)
            for request in requests:
                without = set(found.unmatched.get(request.id, ()))
                self.unmatched[request.id] = self.unmatched.get(request.id, without) & without
            new = not_in(found.rows, known)
            self.rows = together([self.rows, new])
            news = requests_with_news(new, known)
            requests = [request for request in requests if request.id in news]
            if not requests or len(names) == len(parts):
                return

    def _new(self, asked: Collection[str], told: pa.Table | None) -> pa.Table | None:
        """What was found and the ledger does not have, of requests that the step is about."""
        if self.rows is None:
            return None
        mine = self.rows.filter(pc.is_in(self.rows["request"], value_set=pa.array(sorted(asked), pa.string())))
        new = not_in(mine, told)
        return in_order(new) if new.num_rows else None


def _of(rows: pa.Table | None, requests: Sequence[Request]) -> pa.Table | None:
    if rows is None:
        return None
    wanted = pa.array([request.id for request in requests], pa.string())
    found = rows.filter(pc.is_in(rows["request"], value_set=wanted))
    return found if found.num_rows else None


def read_requests(lake: Lake, names: Sequence[str]) -> list[Request]:
    """Requests of the ledger, side by side. Raises InputError, CorruptError."""
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(lambda name: read_request(lake, name), names))
