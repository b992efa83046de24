"""What a step of the ledger has to compare, and what of that is left to do when another step was faster.

A request reaches what its keys name, every copy of that, copies of copies, and whatever has the id of one of these. So a new
part is compared with the requests in force, and old parts once more only if the new one brought a request a picture or an id
that it did not have: those may have copies anywhere.

A row of a table that is in no part counts as well: what was dropped, or waits to be sharded, may have copies that are served. A new request is
compared with all rows. What comes later is dropped by `smalti.optouts.watch` as it comes, so that of a request in force dropped rows alone
are compared.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from smalti.lake import Lake
from smalti.optouts.ledger_rows import (
    in_order,
    not_in,
    read_matched,
    requests_with_news,
    together,
    without_doubles,
)
from smalti.optouts.reached import Reached, read_reached
from smalti.optouts.request import READERS, Request, read_request
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


class Tables(Protocol):
    """`smalti.optouts.tables.Tables`: the tables of all sources as they were at one moment."""

    @property
    def versions(self) -> Mapping[str, int]:
        """By source."""

    def match(self, requests: Sequence[Request], known: pa.Table | None) -> Found:
        """Rows that requests reach; they have no place."""

    def dropped(self, requests: Sequence[Request], known: pa.Table | None, seen: Mapping[str, int]) -> pa.Table:
        """Those alone that were dropped because of an opt-out, in tables that are not at a version that was seen."""

    def has_dropped(self, seen: Mapping[str, int]) -> bool:
        """Whether there may be any."""


@dataclass
class Reach:
    """The matching of one step, kept while it is tried under one number after another."""

    lake: Lake
    match: Matcher
    tables: Tables
    rows: pa.Table | None = None
    held: dict[str, Request] = field(default_factory=dict)
    looked: dict[str, set[str]] = field(default_factory=dict)
    tabled: set[str] = field(default_factory=set)
    unmatched: dict[str, set[int]] = field(default_factory=dict)

    def of(
        self, ledger: Ledger, fresh: Mapping[str, Request], force: Collection[str], parts: Mapping[str, Part]
    ) -> pa.Table | None:
        """Rows that the next step adds, in their order; None: there are none.

        Args:
            fresh: requests that it brings in force: compared with every part and every row of a table.
            force: those in force already: compared with the parts that are not covered, and with what their watch has dropped since.
            parts: every committed part, by `<source>/<part>`.
        """
        uncovered = parts.keys() - ledger.parts
        wanted = dict.fromkeys(force, uncovered) | {name: set(parts) for name in fresh}
        news = self.tables.has_dropped(ledger.tables) if set(force) - self.tabled else False
        groups: dict[tuple[frozenset[str], bool], list[str]] = {}
        for name, names in wanted.items():
            left = frozenset(names - self.looked.get(name, set()))
            if left or (name not in self.tabled and (name in fresh or news)):
                groups.setdefault((left, name in fresh), []).append(name)
                self.looked.setdefault(name, set()).update(left)
        self.held |= fresh
        unread = [name for each in groups.values() for name in each if name not in self.held]
        self.held |= {each.id: each for each in read_requests(self.lake, unread)}
        compared = [name for name in force if name in self.looked]
        told = read_matched(self.lake, ledger.matched, compared) if compared else None
        for (left, is_fresh), each in groups.items():
            self._add([self.held[name] for name in each], told, parts, left, None if is_fresh else ledger.tables)
        return self._new(wanted, told)

    def take_over(self, found: Mapping[str, Reached], parts: Collection[str]) -> None:
        """Go on from what requests were found to reach before, where that holds: what came since is left to compare.

        Args:
            found: by request.
            parts: every committed part, by `<source>/<part>`.
        """
        for name, each in found.items():
            if not each.holds(parts):
                continue
            rows = read_reached(self.lake, each, name)
            if rows is None:
                continue
            self.rows = together([self.rows, rows])
            self.looked[name], self.unmatched[name] = set(each.parts), set(each.unmatched)
            if each.tables == self.tables.versions:
                self.tabled.add(name)

    def found(self, request: Request) -> pa.Table | None:
        """What a request reaches, as a step has it; None: nothing."""
        return self._new([request.id], None)

    def _add(
        self,
        requests: Sequence[Request],
        told: pa.Table | None,
        parts: Mapping[str, Part],
        left: Collection[str],
        seen: Mapping[str, int] | None,
    ) -> None:
        """Compare requests with tables and with the parts in `left`, and with all as far as what is found may have copies.

        Tables come first: parts are made of them, so that what parts show then is hardly ever new.

        Args:
            seen: versions of the tables in which dropped rows were compared with these requests; None: all rows are.
        """
        left, every = sorted(left), sorted(parts)
        first = True
        while requests:
            news = self._in_tables(requests, told, seen)
            wide = requests if len(left) == len(every) and first else [each for each in requests if each.id in news]
            again = self._in_parts(wide, told, parts, every)
            if first and len(wide) < len(requests):
                rest = [each for each in requests if each.id not in news]
                found = self._in_parts(rest, told, parts, left)
                again |= found
                self._in_parts([each for each in rest if each.id in found], told, parts, every)
            requests = [each for each in requests if each.id in again]
            first = False

    def _in_tables(
        self, requests: Sequence[Request], told: pa.Table | None, seen: Mapping[str, int] | None
    ) -> Collection[str]:
        """Requests of which tables have a picture or an id that is new."""
        self.tabled.update(each.id for each in requests)
        known = _of(together([told, self.rows]), requests)
        tables = self.tables
        if seen is not None:
            return self._keep(tables.dropped(requests, known, seen), known)
        found = tables.match(requests, known)
        self._note(requests, found)
        return self._keep(found.rows, known)

    def _in_parts(
        self, requests: Sequence[Request], told: pa.Table | None, parts: Mapping[str, Part], names: Sequence[str]
    ) -> set[str]:
        """Requests of which these parts have a picture or an id that is new."""
        if not (requests and names):
            return set()
        known = _of(together([told, self.rows]), requests)
        found = self.match(self.lake, [parts[name] for name in names], requests, known=known)
        self._note(requests, found)
        return self._keep(found.rows, known)

    def _note(self, requests: Sequence[Request], found: Found) -> None:
        for request in requests:
            without = set(found.unmatched.get(request.id, ()))
            self.unmatched[request.id] = self.unmatched.get(request.id, without) & without

    def _keep(self, rows: pa.Table, known: pa.Table | None) -> set[str]:
        new = not_in(rows, known)
        self.rows = together([self.rows, new])
        return requests_with_news(new, known)

    def without_match(self, request: Request) -> tuple[int, ...]:
        """Keys that name nothing, in parts or in tables."""
        return tuple(sorted(self.unmatched.get(request.id, range(len(request.keys)))))

    def _new(self, asked: Collection[str], told: pa.Table | None) -> pa.Table | None:
        """What was found and the ledger does not have, of requests that the step is about."""
        if self.rows is None:
            return None
        mine = self.rows.filter(pc.is_in(self.rows["request"], value_set=pa.array(sorted(asked), pa.string())))
        new = without_doubles(not_in(mine, told))
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
