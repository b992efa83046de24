"""Parts are written anew without what is to be erased, until no part that counts holds any of it.

What goes is what requests to erase have matched that are in force: the places that the ledger names, in any part that some release
may use, in sight or not, and their ids among the rows that a part could not decode. A new part has the shards of the old one under
their numbers, each without what is erased of it (`smalti.shards.erasures`).

Others work at the same time. A rewriting or a merge that is slower than an erasure of its part does not count; one that is faster has
made a part that still holds the samples, and so has a shard run that read its rows before: the ledger matches what is new, and it is
looked at again. Of two erasures of a part the first counts, and what the other one would have taken besides is taken of its new part.
Killed at any line, the next run goes on with the same names and bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from smalti import objects
from smalti.errors import CorruptError, MissingObject
from smalti.lake import Lake
from smalti.maintenance.copying import CopyPlan, Erasure, samples_of, step_of, write
from smalti.optouts.digests import take_digests
from smalti.optouts.keys import KeyKind
from smalti.optouts.ledger import all_parts, settle, state
from smalti.optouts.ledger_rows import read_matched
from smalti.optouts.matched import MATCHED
from smalti.optouts.reach import Matcher, read_requests
from smalti.optouts.request import Action
from smalti.optouts.resolution import Ledger
from smalti.optouts.tables import match_tables
from smalti.reasons import SkipReason
from smalti.release.collect import shard_starts
from smalti.shards.part import Part, not_collected
from smalti.shards.replacements import append_step, read_log

log = logging.getLogger("smalti")


@dataclass
class Erased:
    """What one run has erased.

    Attributes:
        position: of the ledger, up to which no part that counts holds anything to be erased.
        parts: `<source>/<part>` -> the one in its place; empty: nothing was left of it.
        samples: places that are no more.
    """

    position: int = 0
    parts: dict[str, str] = field(default_factory=dict)
    samples: int = 0


@dataclass(frozen=True)
class Targets:
    """What requests to erase have matched.

    Attributes:
        shards: part (`<source>/<part>`) -> shard relative to parts/ -> indices.
        ids: of samples, and of rows of tables that no part may name.
    """

    shards: Mapping[str, Mapping[str, frozenset[int]]]
    ids: frozenset[str]

    def of(self, part: Part) -> Erasure | None:
        """What a part holds or names of it; None: nothing. It is not known yet which shards are left."""
        shards = self.shards.get(f"{part.source}/{part.name}", {})
        ids = self.ids & {row.id for row in part.failed}
        if not shards and not ids:
            return None
        return Erasure({name: tuple(sorted(indices)) for name, indices in sorted(shards.items())}, (), ids)


def erase_parts(lake: Lake, *, match: Matcher | None = None, tables: Tables | None = None) -> Erased:
    """Write every part anew that holds what is to be erased. A second run finds nothing to do.

    Args:
        match: see `smalti.optouts.ledger.resolve`.
        tables: what was looked up already.
    Raises:
        CorruptError: a part is not what it was, or the ledger names what it does not have.
    """
    done, tables = Erased(), tables or Tables(lake)
    while True:
        done.position = settle(lake, match=match)
        left = left_over(lake, tables=tables)
        if not left:
            return done
        for part, erasure in left:
            try:
                new = erase_part(lake, part, erasure)
            except MissingObject as error:
                not_collected(lake, {part.name: part}, error)
                continue
            if new is not None:
                done.parts[f"{part.source}/{part.name}"] = new
                done.samples += sum(map(len, erasure.shards.values()))


def left_over(lake: Lake, ledger: Ledger | None = None, *, tables: Tables | None = None) -> list[tuple[Part, Erasure]]:
    """Parts that count and hold what is to be erased, as far as the ledger has compared them; by name.

    Args:
        ledger: as it is now, if the caller has it.
        tables: what was looked up already.
    """
    ledger, tables = ledger or state(lake), tables or Tables(lake)
    requests = tables.erasing(ledger)
    if not requests:
        return []
    old = {
        f"{source}/{name}" for source in objects.list_names(lake.parts_root()) for name in read_log(lake, source).erased
    }
    parts = all_parts(lake, without=old)
    targets = targets_of(ledger, requests, parts.values(), tables)
    found = ((part, targets.of(part)) for _, part in sorted(parts.items()))
    return [(part, erasure) for part, erasure in found if erasure is not None]


def targets_of(ledger: Ledger, requests: Sequence[str], parts: Iterable[Part], tables: Tables) -> Targets:
    """What these requests have matched. parts: whose rows that could not be decoded are looked for in the tables."""
    shards: dict[str, dict[str, frozenset[int]]] = {}
    for request in requests:
        for shard, indices in ledger.places.get(request, {}).items():
            held = shards.setdefault("/".join(shard.split("/", 2)[:2]), {})
            held[shard] = held.get(shard, frozenset()) | indices
    ids = {name for request in requests for name in ledger.ids.get(request, ())}
    if any(part.failed for part in parts):
        ids.update(tables.ids(ledger, requests))
    return Targets(shards, frozenset(ids))


@dataclass
class Tables:
    """Requests to erase, and what they match in the tables of all sources; looked up again only when the ledger has matched more."""

    lake: Lake
    _actions: dict[str, Action] = field(default_factory=dict)
    _known: dict[tuple[tuple[str, ...], int], frozenset[str]] = field(default_factory=dict)

    def erasing(self, ledger: Ledger) -> list[str]:
        """Requests to erase that are in force, sorted. Each is read once."""
        unknown = [name for name in ledger.in_force if name not in self._actions]
        self._actions |= {each.id: each.action for each in read_requests(self.lake, unknown)}
        return [name for name in ledger.in_force if self._actions[name] == Action.ERASE]

    def ids(self, ledger: Ledger, requests: Sequence[str]) -> frozenset[str]:
        """Ids of rows that are in parts or not, and the ids that requests name, which no table may have."""
        key = (tuple(sorted(requests)), len(ledger.matched))
        if key not in self._known:
            asked = read_requests(self.lake, key[0])
            matched = read_matched(self.lake, ledger.matched, [each.id for each in asked])
            rows = match_tables(self.lake, asked, MATCHED.empty_table() if matched is None else matched)
            named = {key.value for each in asked for key in each.keys if key.kind == KeyKind.ID}
            self._known[key] = frozenset(named | set(rows["id"].to_pylist()))
        return self._known[key]


def erase_part(lake: Lake, part: Part, erasure: Erasure) -> str | None:
    """Write a part anew, or find that nothing of it is left.

    Returns: `<source>/<part>` of the new one, "" if nothing is left; None: another run has erased something of it meanwhile.
    """
    plan = plan_erasure(lake, part, erasure)
    take_digests(lake, part.source, part.name, erasure.shards)
    if plan.rows.num_rows:
        made = write(lake, plan)
        return None if made is None else f"{made.source}/{made.name}"
    if not append_step(lake, part.source, step_of(plan, None)):
        return None
    log.info("erased: nothing is left of %s/%s", part.source, part.name)
    return ""


def plan_erasure(lake: Lake, part: Part, erasure: Erasure) -> CopyPlan:
    """The part without what is erased, its shards under their numbers."""
    stored = [(name, "ascending") for name in ("tier", "ar", "shard", "index")]
    rows = samples_of(lake, part).sort_by(stored)
    gone, whole = np.zeros(rows.num_rows, bool), list[str]()
    for shard, start, count in shard_starts(rows):
        indices = np.array(erasure.shards.get(shard, ()), np.int64)
        if len(indices) and indices[-1] < count:
            gone[start + indices] = True
            whole += [shard] if len(indices) == count else []
    if sum(map(len, erasure.shards.values())) != gone.sum():
        raise CorruptError(
            "the ledger of opt-outs names samples that the part does not have",
            lake.samples(part.source, part.name),
            "Restore the part, or optouts/resolved",
        )
    kept = rows.filter(pa.array(~gone))
    bounds = tuple((start, start + count) for _, start, count in shard_starts(kept))
    dropped = {str(SkipReason.OPTOUT): int(gone.sum())} if gone.any() else {}
    return CopyPlan((part,), "erased", kept, bounds, dropped, Erasure(erasure.shards, tuple(whole), erasure.ids))
