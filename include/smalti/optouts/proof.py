"""The proof that a request is in force: nothing is believed, everything is looked at, and what cannot be seen from here is named.

1. The request's keys are matched with every part anew, and every part's samples.parquet is searched for the pictures and the ids that the ledger
   says it reached: each place must be in the newest snapshot. So what a step missed, or a snapshot lost, is found.
2. In every live version of every dataset, what the training loader selects must have none of these places, whichever declared
   reasons a run lifts.
3. The training loader itself serves what else there is in the shards concerned; none of it may be a matched sample.
4. Trees hold copies of samples. A live one that still holds some is stated, and until it is gone nothing is in effect. One of a
   version that was succeeded is served no more; as long as its files are there, that is stated.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from smalti import objects
from smalti.errors import CorruptError, InputError, MissingObject
from smalti.lake import Lake
from smalti.optouts.ledger import all_parts, complete, read_step, settle, state, the_matcher
from smalti.optouts.ledger_rows import read_matched
from smalti.optouts.places import Places
from smalti.optouts.proof_releases import Releases
from smalti.optouts.reach import Matcher
from smalti.optouts.readback import Reading, read_ids
from smalti.optouts.receipt import LISTED, Checks, Matched, Receipt, Unreachable, read_receipt, store_receipt
from smalti.optouts.request import Action, Request, read_request
from smalti.optouts.resolution import Ledger
from smalti.release.optouts import read_snapshot
from smalti.shards.part import Part, not_collected

log = logging.getLogger("smalti")

Read = Callable[[Reading], Iterable[str]]


def prove(lake: Lake, request_id: str, *, match: Matcher | None = None, read: Read = read_ids) -> Receipt:
    """Prove that a request is in force, and store the receipt. If there is one already, that is it, after everything was looked at again.

    As long as a live tree holds matched samples the receipt says so (`effective` is empty), and is not stored.

    Args:
        match: see `smalti.optouts.ledger.resolve`: parts that came since are compared first.
        read: what the training loader serves.
    Raises:
        InputError: the request is not in force: never applied, or taken back.
        CorruptError: something is served that must not be, or may be; the first such place is named.
    """
    request = read_request(lake, request_id)
    found = read_receipt(lake, request_id)
    ledger, parts = _settled(lake, request_id, match)
    snapshot = read_snapshot(lake, ledger.position)
    matched = read_matched(lake, ledger.matched, [request_id])
    places = Places.of(matched)
    faults = places.again(_anew(lake, request, parts, matched, match or the_matcher()), snapshot)
    faults += places.search(lake, parts, snapshot)
    releases = Releases(lake, snapshot, places)
    faults += releases.look(read)
    _raise(faults, request_id, lake)
    if found is not None:
        return store_receipt(lake, found)  # its page may be missing
    trees = releases.trees()
    position = ledger.resolved[request_id]
    written = objects.stat(lake.optout_snapshot(position))
    assert written is not None
    receipt = Receipt(
        request=request.id,
        reference=request.reference,
        action=request.action,
        submitted=request.submitted,
        resolved=read_step(lake, position).resolved,
        effective=None if trees else datetime.fromtimestamp(max(written.written, releases.replaced_at()), UTC),
        proved=datetime.now(UTC),
        position=position,
        snapshot=ledger.position,
        snapshot_sha256=hashlib.sha256(objects.read_bytes(lake.optout_snapshot(ledger.position))).hexdigest(),
        keys=len(request.keys),
        unmatched=len(set(ledger.unmatched.get(request.id, ())) - places.keys),
        ids=len(places.ids),
        in_tables=len(places.ids - {row["id"] for row in places.rows}),
        found=len(places.rows),
        samples=tuple(Matched(**row) for row in places.rows[:LISTED]),
        releases=tuple(releases.touched),
        replaced=tuple(releases.replaced),
        checks=Checks(parts=places.parts, rows=places.searched, **releases.counts),
        unreachable=(*trees, *releases.remains(), *out_of_reach(request)),
    )
    log.info("opt-outs: request %s (%s): %d places proved", request.id, request.reference, receipt.found)
    return receipt if trees else store_receipt(lake, receipt)


def _anew(
    lake: Lake, request: Request, parts: Mapping[str, Part], matched: pa.Table | None, match: Matcher
) -> pa.Table:
    """Places in parts that the keys reach, and those of the copies of what they name in tables, whatever the ledger says of parts."""
    known = None if matched is None else matched.filter(pc.equal(matched["part"], ""))
    some = dict(parts)
    while True:
        try:
            return match(lake, [some[name] for name in sorted(some)], [request], known=known).rows
        except MissingObject as error:
            some = not_collected(lake, some, error)


def _settled(lake: Lake, request: str, match: Matcher | None) -> tuple[Ledger, dict[str, Part]]:
    """The ledger, and the parts, all of which it covers."""
    while True:
        settle(lake, match=match)
        ledger, parts = state(lake), all_parts(lake)
        complete(lake, ledger)  # a step may have come since, of which there is no snapshot yet
        if request in ledger.withdrawn or request not in ledger.resolved:
            what = "it was taken back" if request in ledger.withdrawn else "it was not applied"
            raise InputError(
                f"the request is not in force: {what}", lake.optout_request(request), "There is nothing to prove"
            )
        if parts.keys() <= ledger.parts:
            return ledger, parts  # otherwise some came while others were compared


def _raise(faults: Sequence[str], request: str, lake: Lake) -> None:
    faults = list(dict.fromkeys(faults))  # a sample is served once under each set of reasons
    if faults:
        log.error("opt-outs: request %s: %d faults", request, len(faults))
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise CorruptError(
            f"{faults[0]}{more}",
            lake.optout_request(request),
            "Restore optouts/ if it was damaged, and prove again; until then train on nothing that holds the sample",
        )


def out_of_reach(request: Request) -> tuple[Unreachable, ...]:
    """Where the samples may still be, whatever is done here."""
    later = "; a second receipt will say when they are gone" if request.action == Action.ERASE else ""
    return tuple(
        Unreachable(where=where, why=why)
        for where, why in (
            (
                "where the pictures were delivered from",
                "it is only read from here: whoever owns the place removes them",
            ),
            (
                "training runs that go on",
                "a run leaves out what was known when it started or resumed; from its next start on it leaves these out",
            ),
            (
                "pulled copies",
                "they know of it when they are refreshed; the loader refuses a copy that was not for 7 days, unless it is told otherwise",
            ),
            (
                "trees that were made elsewhere",
                "a copy of a release that is read without our loader is checked by nobody: whoever has one makes it anew",
            ),
            (
                "models and checkpoints that were trained before",
                "what they have learned stays in them",
            ),
            (
                "parts, tables and reports of this lake",
                "the samples are left out; their bytes are still there" + later,
            ),
        )
    )
