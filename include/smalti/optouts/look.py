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

What is found is erased and removed by another run of the request, which writes a receipt of its own (`smalti.optouts.receipt_erase`). A row of
a batch that nobody has fingerprinted yet is found here once it is, unless it has an id that is known: until then only its picture tells.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from smalti.accounting import Report
from smalti.lake import Lake
from smalti.maintenance.live import references
from smalti.optouts import erase_parts
from smalti.optouts.erase import rows_of_tables
from smalti.optouts.erase_parts import left_over
from smalti.optouts.erasing import read_erasing
from smalti.optouts.keys import KeyKind
from smalti.optouts.ledger import settle, state
from smalti.optouts.reach import Matcher, read_requests
from smalti.optouts.receipt_erase import EraseReceipt, read_erase_receipts
from smalti.optouts.request import Action
from smalti.optouts.resolution import Ledger
from smalti.optouts.status import State, standings
from smalti.settings import LakeRun

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
    found = {}
    for request in requests:
        erasing, receipts = read_erasing(lake, request), read_erase_receipts(lake, request)
        if erasing is None or not receipts:
            continue  # from before anybody wrote that down
        ids = {*ledger.ids.get(request, ()), *erasing.ids}
        places = ledger.places.get(request, {}).keys()
        holding = [part for part, erasure in parts if places & erasure.shards.keys() or ids & erasure.ids]
        if erasing.erased > receipts[-1].erased:
            found[request] = "what was erased since is not removed"
        elif holding:
            found[request] = f"{len(holding)} parts, the first is {holding[0].source}/{holding[0].name}"
        elif over := sorted({used[part] for part in erasing.parts if part in used}):
            found[request] = f"{len(over)} versions use a part that was erased, the first is {over[0]}"
        elif _in_tables(lake, ids, receipts[-1]):
            found[request] = "rows of tables"
    return found


def _in_tables(lake: Lake, ids: set[str], receipt: EraseReceipt) -> bool:
    return any(True for _ in rows_of_tables(lake, sorted(ids), seen=receipt.tables))


@dataclass
class Known(erase_parts.Tables):
    """Requests to erase, and the ids that the ledger has of them: no table is read."""

    def ids(self, ledger: Ledger, requests: Sequence[str]) -> frozenset[str]:
        named = {
            key.value for each in read_requests(self.lake, requests) for key in each.keys if key.kind == KeyKind.ID
        }
        return frozenset(named.union(*(ledger.ids.get(request, ()) for request in requests)))
