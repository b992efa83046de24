"""The ledger of opt-outs: requests come in force one step at a time, and nothing that is in force is ever lost.

A step takes the next free number, which only one writer can create, and only after it has read all the steps before it and seen
to it that the snapshot of the last one is there. So there are no gaps, every snapshot follows from the steps up to its number, and
a writer that is killed between any two writes blocks nobody: what it left out, the next one writes. Who was slower reads what
came in between, compares what that left to compare, and takes the next number.

After every step: each request in force has been compared with every part that the ledger calls covered. Parts come without
asking the ledger, so whoever relies on it calls `settle` after it has listed its parts: builds of releases do. Rows of tables that are in no
part have no places, but ids, and pictures that may have copies in parts: see `smalti.optouts.reach`.

Parts that hold what is opted out are neither rewritten nor merged (`smalti.maintenance.rewrite.chosen_parts`), so places in
snapshots stay true; one that was rewritten at the same moment has a new name, and is a new part.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from smalti import objects
from smalti.errors import ConflictError, CorruptError, InputError, MissingObject
from smalti.lake import Lake
from smalti.optouts.ledger_rows import places_and_ids, read_matched, write_matched
from smalti.optouts.reach import Matcher, Reach, Tables, read_requests
from smalti.optouts.reached import Reached
from smalti.optouts.request import READERS, Action, Request, read_answer
from smalti.optouts.resolution import BLOCK, Block, Ledger, Resolution
from smalti.release.optouts import newest_position, read_snapshot
from smalti.release.skips import M, decompress, parse
from smalti.shards.part import Part, not_collected, part_names, read_part
from smalti.shards.replacements import read_log

log = logging.getLogger("smalti")


class TooMany(InputError):
    """A request would match more places in parts than it may. Nothing was applied.

    Attributes:
        request, matched: its id, and how many.
    """

    def __init__(self, request: str, matched: int, limit: int) -> None:
        super().__init__(
            f"request {request} matches {matched} places now, and at most {limit} may be applied without asking again",
            "opt-outs",
            "Look at its preview again, and confirm it",
        )
        self.request, self.matched = request, matched


def resolve(
    lake: Lake,
    request_ids: Sequence[str],
    *,
    match: Matcher | None = None,
    limits: Mapping[str, int] | None = None,
    looked: Mapping[str, Reached] | None = None,
) -> Resolution | None:
    """Bring requests in force, or take others back, in one step; then see to parts that came meanwhile.

    A request that is in the ledger already changes nothing. One that was taken back before it was in force never will be, so
    that the order of the two does not matter. Taking back twice is taking back once.

    Args:
        match: compares parts with requests; empty: `smalti.optouts.match`.
        limits: new request -> places in parts that it may match.
        looked: new request -> what it was found to reach before.
    Returns: the step; None: nothing was left to do.
    Raises:
        TooMany: one would match more than its limit.
        InputError: there is no such request, nobody has answered that it is to be applied, it is a query, or it takes back
            what is no request to exclude or erase.
    """
    asked = read_requests(lake, sorted(set(request_ids)))
    _refuse(lake, asked)
    new = {each.id: each for each in asked if each.withdraws is None}
    back = {each.id: each.withdraws for each in asked if each.withdraws is not None}
    made = _step(lake, new, back, match, limits, looked)
    settle(lake, match=match)
    return made


def settle(lake: Lake, *, match: Matcher | None = None) -> int:
    """Compare parts that came since with what is in force. Returns the position that holds then.

    A lake in which nothing was ever asked is left as it is.
    """
    if not objects.exists(lake.optout_resolution(1)):
        return newest_position(lake)
    while True:
        while (step := _step(lake, {}, {}, match)) is not None and not step.is_idle:
            pass  # others may have come while this was done; of tables that change all the time no more than this once
        ledger = state(lake)  # another writer may have made a step since, of which there is no snapshot yet
        complete(lake, ledger)
        if not (ledger.in_force and all_parts(lake, ledger.parts)):
            return ledger.position


def state(lake: Lake) -> Ledger:
    """What the ledger comes to now. Nothing is written.

    Raises:
        MissingObject: a step is gone.
        CorruptError: one is damaged.
    """
    ledger = Ledger()
    _advance(lake, ledger, _newest(lake))
    return ledger


def all_parts(lake: Lake, without: Iterable[str] = ()) -> dict[str, Part]:
    """Every committed part that some release may use, in sight or not, by `<source>/<part>`.

    Args:
        without: names that are not read.
    """
    known, wanted = frozenset(without), []
    for source in objects.list_names(lake.parts_root()):
        made = read_log(lake, source).made
        wanted += [(source, name, made) for name in part_names(lake, source) if f"{source}/{name}" not in known]

    def read(each: tuple[str, str, frozenset[str]]) -> Part | None:
        source, name, made = each
        try:
            part = read_part(lake, source, name)
        except MissingObject:
            return None  # not committed yet, or collected
        return part if not part.replaces or name in made else None

    with ThreadPoolExecutor(READERS) as pool:
        found = [part for part in pool.map(read, wanted) if part is not None]
    return {f"{part.source}/{part.name}": part for part in found}


def _step(
    lake: Lake,
    new: Mapping[str, Request],
    back: Mapping[str, str],
    match: Matcher | None,
    limits: Mapping[str, int] | None = None,
    looked: Mapping[str, Reached] | None = None,
) -> Resolution | None:
    """One step, under the first number that is free; None: there is nothing to do.

    Dropped rows that were compared with what is in force and are nobody's are a step as well: it says so, or each call would compare
    them again.

    Args:
        new: requests to bring in force.
        back: request that takes another one back -> the other one.
        limits, looked: see `resolve`.
    """
    ledger = Ledger()
    reach: Reach | None = None
    overtaken = False
    while True:
        _advance(lake, ledger, _newest(lake))
        complete(lake, ledger)
        gone = ledger.withdrawn.keys() | set(back.values())
        fresh = {name: each for name, each in new.items() if name not in gone and name not in ledger.resolved}
        taken = {name: other for name, other in back.items() if other not in ledger.withdrawn}
        if (new or back) and not (fresh or taken):
            return None
        force = [name for name in ledger.in_force if name not in gone]
        look = bool(fresh or (force and not taken))
        parts = all_parts(lake, () if fresh else ledger.parts) if look else {}
        uncovered = sorted(parts.keys() - ledger.parts)
        if look and reach is None:
            reach = Reach(lake, match or the_matcher(), the_tables(lake))
            reach.take_over({name: each for name, each in (looked or {}).items() if name in fresh}, parts)
        if not (fresh or taken or uncovered or (reach is not None and reach.tables.has_dropped(ledger.tables))):
            return None
        rows = None
        if reach is not None and look:
            parts = parts if fresh else all_parts(lake)
            try:
                rows = reach.of(ledger, fresh, force, parts)
            except MissingObject as error:
                not_collected(lake, parts, error)
                reach = None  # what is left counts
                continue
            if limits is not None:
                _check_limits(rows, {name: limits[name] for name in fresh if name in limits})
        if overtaken and not (fresh or taken or uncovered or rows is not None):
            return None  # whoever was faster has looked at tables that are as new
        step = _made(lake, ledger.position + 1, fresh, taken, uncovered, rows, reach if look else None)
        if objects.create_bytes(lake.optout_resolution(step.position), step.encode()):
            ledger.add(step.as_block())
            complete(lake, ledger)
            counts = [len(each) for each in (step.requests, step.withdrawn, step.parts)]
            log.info("opt-outs: step %d, %d requests, %d taken back, %d parts", step.position, *counts)
            return step
        overtaken = True


def _made(
    lake: Lake,
    position: int,
    fresh: Mapping[str, Request],
    taken: Mapping[str, str],
    parts: Sequence[str],
    rows: pa.Table | None,
    reach: Reach | None,
) -> Resolution:
    """A step, whose rows are stored."""
    places, ids = ({}, {}) if rows is None else places_and_ids(rows)
    return Resolution(
        position=position,
        requests=tuple(sorted(fresh)),
        withdrawn=tuple(sorted(set(taken.values()))),
        withdrawals=tuple(sorted(taken)),
        parts=tuple(parts),
        matched=None if rows is None else write_matched(lake, rows),
        places=places,
        ids=ids,
        unmatched={name: reach.without_match(fresh[name]) for name in sorted(fresh)} if reach else {},
        tables=dict(sorted(reach.tables.versions.items())) if reach else {},
        resolved=datetime.now(UTC),
    )


def complete(lake: Lake, ledger: Ledger) -> None:
    """Write what follows from the steps so far and is not there: the snapshot of the last one, and its block.

    Raises:
        ConflictError: another snapshot is there.
    """
    if not ledger.position:
        return
    uri = lake.optout_snapshot(ledger.position)
    if not objects.exists(uri):
        made = ledger.snapshot()
        if not objects.create_bytes(uri, made.encode()) and read_snapshot(lake, ledger.position) != made:
            raise ConflictError(
                "the snapshot does not follow from the steps of the ledger", uri, "Restore optouts/resolved"
            )
    if ledger.position % BLOCK == 0 and not objects.exists(lake.optout_block(ledger.position)):
        _write_block(lake, ledger.position)


def _write_block(lake: Lake, position: int) -> None:
    """The last steps as one. Whoever is first counts: two may store the same rows in other bytes."""
    first = position - BLOCK + 1
    some = Ledger()
    for step in _read_steps(lake, first, position):
        some.add(step)
    held = (
        some.places.keys() | some.ids.keys()
    )  # of requests of earlier blocks, too, whose new places are in these steps
    rows = read_matched(lake, some.matched, held)
    matched = None if rows is None else write_matched(lake, rows)
    objects.create_bytes(lake.optout_block(position), some.as_block(first, matched).encode())


def _newest(lake: Lake) -> int:
    """The last step. Its snapshot may be missing, that of the one before it is there."""
    position = newest_position(lake)
    while objects.exists(lake.optout_resolution(position + 1)):
        position += 1
    return position


def _advance(lake: Lake, ledger: Ledger, position: int) -> None:
    """Add the steps up to a position, those that stand in blocks at once."""
    blocks: list[int] = []
    while ledger.position % BLOCK == 0 and ledger.position + BLOCK * (len(blocks) + 1) < position:
        blocks.append(ledger.position + BLOCK * (len(blocks) + 1))
    start = blocks[-1] if blocks else ledger.position
    with ThreadPoolExecutor(READERS) as pool:
        for block in pool.map(lambda each: _read(lake.optout_block(each), Block), blocks):
            ledger.add(block)
    for step in _read_steps(lake, start + 1, position):
        ledger.add(step)


def _read_steps(lake: Lake, first: int, last: int) -> Iterable[Block]:
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(lambda position: read_step(lake, position).as_block(), range(first, last + 1)))


def read_step(lake: Lake, position: int) -> Resolution:
    """One step. Raises MissingObject or CorruptError."""
    uri = lake.optout_resolution(position)
    step = _read(uri, Resolution)
    if step.position != position:
        raise CorruptError(f"it says that it is step {step.position}", uri, "Restore it")
    return step


def _read(uri: str, kind: type[M]) -> M:
    try:
        return parse(kind, decompress(objects.read_bytes(uri), uri), uri)
    except MissingObject as error:
        raise MissingObject("a step of the ledger of opt-outs is gone", uri, "Restore it") from error


def _refuse(lake: Lake, asked: Sequence[Request]) -> None:
    """Raises InputError for what must not be applied."""
    with ThreadPoolExecutor(READERS) as pool:
        answers = list(pool.map(lambda each: read_answer(lake, each.id), asked))
    for request, answer in zip(asked, answers, strict=True):
        uri = lake.optout_request(request.id)
        if request.action == Action.QUERY:
            raise InputError("a query is never applied", uri, "Submit a request to exclude or to erase")
        if answer is None or not answer.apply:
            what = "nobody has answered it yet" if answer is None else f"it was refused by {answer.by}"
            raise InputError(f"the request is not to be applied: {what}", uri, "Confirm it, or submit another one")
    targets = sorted({each.withdraws for each in asked if each.withdraws is not None})
    for other in read_requests(lake, targets):
        if other.action not in (Action.EXCLUDE, Action.ERASE):
            raise InputError(
                f"a request to {other.action} is nothing that can be taken back",
                lake.optout_request(other.id),
                "Name a request to exclude or to erase",
            )


def _check_limits(rows: pa.Table | None, limits: Mapping[str, int]) -> None:
    """Raises TooMany if some request has more places in rows than it may."""
    if rows is None or not limits:
        return
    counts = pc.value_counts(rows.filter(pc.is_valid(rows["shard"]))["request"]).to_pylist()
    for each in counts:
        if each["counts"] > limits.get(each["values"], each["counts"]):
            raise TooMany(each["values"], each["counts"], limits[each["values"]])


def the_tables(lake: Lake) -> Tables:
    """`smalti.optouts.tables`: imported when a request is in force."""
    from smalti.optouts.tables import Tables

    return Tables.open(lake)


def the_matcher() -> Matcher:
    """`smalti.optouts.match`, which imports polars and what dedup compares pictures with; near matches are for previews."""
    from smalti.optouts.match import match_parts

    return functools.partial(match_parts, near=0)
