"""Stage: see whether anything that was erased is in the lake again, after its removal was proven.

A removal proves a moment. What began before its request may end after it: an ingest that had loaded what is asked for, a shard run that
had read its rows, a build that had chosen its parts. And what comes later may be a copy that nothing but its picture tells. So this looks
once an hour, and reads as little as it can:

| looked at | how |
|---|---|
| what came since | `settle` compares new parts, and rows that were dropped, with what is in force |
| parts | those that count and hold what the ledger names (`erase_parts.left_over`) |
| tables | rows with an id of a request, in tables that were changed since the proof |
| versions | those that count and use a part that was erased |
| progress | ids in what was written since a removal, for 8 days after it (`smalti.optouts.answers`) |

What is found is erased and removed by another run of the request, which writes a receipt of its own (`smalti.optouts.receipt_erase`). A row of
a batch that nobody has fingerprinted yet is found here once it is, unless it has an id that is known: until then only its picture tells.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import Field

from smalti.accounting import Report
from smalti.lake import Lake
from smalti.maintenance.live import references
from smalti.optouts import erase_parts
from smalti.optouts.answers import answered_since, removed_of
from smalti.optouts.erase_parts import left_over
from smalti.optouts.erasing import Erasing, read_erasing
from smalti.optouts.keys import KeyKind
from smalti.optouts.ledger import settle, state
from smalti.optouts.reach import Matcher, read_requests
from smalti.optouts.receipt_erase import EraseReceipt, read_erase_receipts
from smalti.optouts.remove_tables import rows_of_ids
from smalti.optouts.request import READERS, Action
from smalti.optouts.resolution import Ledger
from smalti.optouts.status import State, standings
from smalti.optouts.tables import Tables
from smalti.settings import LakeRun
from smalti.table.store import lance_errors

log = logging.getLogger("smalti")


class LookReport(Report):
    """Attributes:
    looked: requests whose erasure is proven.
    again: of these, those of which something is in the lake again -> what; nothing of it names a sample.
    """

    looked: int = Field(ge=0)
    again: dict[str, str] = Field({})


def look(lake: Lake, run: LakeRun, *, match: Matcher | None = None) -> LookReport:
    """Look at every request whose erasure is proven. Where nobody ever asked to erase, this lists the ledger and no more.

    Args:
        match: see `smalti.optouts.ledger.resolve`.
    """
    began = time.monotonic()
    proven = [each.id for each in standings(lake) if (each.action, each.state) == (Action.ERASE, State.PROVEN)]
    again = {}
    if proven:
        settle(lake, match=match)
        again = found_again(lake, proven, state(lake))
    for request, what in again.items():
        log.warning("opt-outs: of request %s something is here again: %s", request, what)
    return LookReport(stage="optout_look", seconds=round(time.monotonic() - began, 3), looked=len(proven), again=again)


def found_again(lake: Lake, requests: Sequence[str], ledger: Ledger) -> dict[str, str]:
    """Request -> what of it is here again."""
    parts = left_over(lake, ledger, tables=Known(lake))
    used = {f"{source}/{name}": release.uri for release in references(lake).releases for source, name in release.parts}
    found, looked = {}, list[_Proven]()
    for each in _read(lake, requests, ledger):
        places = ledger.places.get(each.request, {}).keys()
        holding = [part for part, erasure in parts if places & erasure.shards.keys() or each.ids & erasure.ids]
        if each.erasing.erased > each.receipt.erased:
            found[each.request] = "what was erased since is not removed"
        elif holding:
            found[each.request] = f"{len(holding)} parts, the first is {holding[0].source}/{holding[0].name}"
        elif over := sorted({used[part] for part in each.erasing.parts if part in used}):
            found[each.request] = f"{len(over)} versions use a part that was erased, the first is {over[0]}"
        else:
            looked.append(each)
    removed = {each.request: removed_of(each.receipt, each.ids) for each in looked}
    answers = dict.fromkeys(answered_since(lake, removed, datetime.now(UTC)), "answers of engines")
    return found | answers | dict.fromkeys(_in_tables(lake, looked), "rows of tables")


@dataclass(frozen=True)
class _Proven:
    """A request, what was erased for it, its last receipt, and the ids that no table may have."""

    request: str
    erasing: Erasing
    receipt: EraseReceipt
    ids: frozenset[str]


def _read(lake: Lake, requests: Sequence[str], ledger: Ledger) -> Iterator[_Proven]:
    """But for those from before anybody wrote down what was erased."""

    def read(request: str) -> tuple[Erasing | None, list[EraseReceipt]]:
        return read_erasing(lake, request), read_erase_receipts(lake, request)

    with ThreadPoolExecutor(READERS) as pool:
        for request, (erasing, receipts) in zip(requests, pool.map(read, requests), strict=True):
            if erasing is not None and receipts:
                ids = frozenset(ledger.ids.get(request, ())).union(erasing.ids)
                yield _Proven(request, erasing, receipts[-1], ids)


def _in_tables(lake: Lake, proven: Sequence[_Proven]) -> list[str]:
    """Requests of which a table has a row that was changed since their last receipt."""
    found: set[str] = set()
    for source, table in Tables.open(lake).tables.items() if proven else ():
        asked: dict[str, list[str]] = {}
        for each in proven:
            if each.receipt.tables.get(source) != table.version:
                for name in each.ids:
                    if name.startswith(f"{source}/"):
                        asked.setdefault(name, []).append(each.request)
        with lance_errors(source):
            rows = rows_of_ids(table, sorted(asked), ["id"])
        found.update(request for row in rows for request in asked[row["id"]])
    return sorted(found)


@dataclass
class Known(erase_parts.Tables):
    """Requests to erase, and the ids that the ledger has of them: no table is read."""

    def ids(self, ledger: Ledger, requests: Sequence[str]) -> frozenset[str]:
        named = {
            key.value for each in read_requests(self.lake, requests) for key in each.keys if key.kind == KeyKind.ID
        }
        return frozenset(named.union(*(ledger.ids.get(request, ()) for request in requests)))
