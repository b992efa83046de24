"""What one request matches in all parts and tables, as a step of the ledger would find it, and what only looks much alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from smalti.errors import MissingObject
from smalti.lake import Lake
from smalti.optouts.ledger_rows import in_order, not_in
from smalti.optouts.match import match_parts
from smalti.optouts.matched import MATCHED, Matched
from smalti.optouts.reach import Reach
from smalti.optouts.request import Request
from smalti.optouts.resolution import Ledger
from smalti.optouts.tables import Tables, each_id_once
from smalti.shards.part import Part, not_collected


@dataclass(frozen=True)
class Everywhere:
    """Attributes:
    rows: MATCHED, places in parts.
    tables: MATCHED with an empty `part`, each id once; what stands in parts is here, too.
    near: MATCHED; near_found, near_unseen: see `smalti.optouts.matched.Matched`.
    unmatched: places of keys that no row has.
    reached: MATCHED, what a step of the ledger would have; None: nothing.
    versions: source -> version of its table.
    parts: `<source>/<part>` that were compared: not those that were collected meanwhile.
    """

    rows: pa.Table
    tables: pa.Table
    near: pa.Table
    near_found: int
    near_unseen: int
    unmatched: tuple[int, ...]
    reached: pa.Table | None
    versions: Mapping[str, int]
    parts: frozenset[str]


def match_everywhere(lake: Lake, parts: Mapping[str, Part], request: Request) -> Everywhere:
    """Match one request with parts (by `<source>/<part>`) and with the tables of all sources.

    Raises:
        MissingObject, CorruptError, LakeError: something cannot be read.
    """
    left = dict(parts)
    while True:
        try:
            return _match_everywhere(lake, left, request)
        except MissingObject as error:
            left = not_collected(lake, left, error)


def _match_everywhere(lake: Lake, parts: Mapping[str, Part], request: Request) -> Everywhere:
    seen: list[Matched] = []

    def match(lake: Lake, parts: Sequence[Part], requests: Sequence[Request], known: pa.Table | None = None) -> Matched:
        found = match_parts(lake, parts, requests, known, near=0) if seen else match_parts(lake, parts, requests, known)
        seen.append(found)
        return found

    reach = Reach(lake, match, Tables.open(lake))
    reach.of(Ledger(), {request.id: request}, (), parts)
    rows = MATCHED.empty_table() if reach.rows is None else in_order(reach.rows)
    placed = pc.not_equal(rows["part"], "")
    near = seen[0].near if seen else MATCHED.empty_table()
    return Everywhere(
        rows.filter(placed),
        each_id_once(rows.filter(pc.invert(placed))),
        not_in(near, rows),  # a look-alike may turn out to be a copy over a chain
        seen[0].near_found.get(request.id, 0) if seen else 0,
        seen[0].near_unseen.get(request.id, 0) if seen else 0,
        reach.without_match(request),
        reach.found(request),
        reach.tables.versions,
        frozenset(parts),
    )
