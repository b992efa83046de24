"""Erase what a request names: of every part, and with it of every version that is live. What is left behind goes after the grace.

1. Every part that counts and holds any of it is written anew without it (`erase_parts`).
2. Every live version that uses such a part is exchanged for a successor over the new parts (`smalti.release.successors`), and one that was
   never published is given up.
3. `Erasing` says so. The old parts and versions stay for the grace: training runs that read them go on.

A request is applied first: from then on nobody is served what it names. Twice is once, and killed at any line the next run goes on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import AwareDatetime, Field

from smalti import objects
from smalti.accounting import Report
from smalti.compute import map_tasks
from smalti.errors import ConflictError, InputError, MissingObject
from smalti.lake import Lake
from smalti.optouts.answers import answered_since, removed_of
from smalti.optouts.digests import digests_of, pair_of
from smalti.optouts.erase_parts import Tables, erase_parts, left_over
from smalti.optouts.erasing import Erasing, OldVersion, add_erasing, read_erasing
from smalti.optouts.ledger import settle, state
from smalti.optouts.ledger_rows import read_matched
from smalti.optouts.reach import Matcher
from smalti.optouts.receipt_erase import read_erase_receipts
from smalti.optouts.request import Action, Request, read_request
from smalti.optouts.resolution import Ledger
from smalti.release.assemble import claimed_versions
from smalti.release.latest import is_gone
from smalti.release.manifest import read_manifest
from smalti.release.successors import succeed, uses
from smalti.release.tombstones import read_tombstone
from smalti.settings import OptoutRun
from smalti.shards.erasures import Erasures
from smalti.shards.part import read_part
from smalti.table.store import lance_errors, open_table, read_images, sql_text

log = logging.getLogger("smalti")

ROUNDS = 20
"""Times that parts and versions are looked at again, because others came while they were worked on."""

IDS_AT_ONCE = 500
"""Rows of a table that are asked for at a time."""


class EraseReport(Report):
    """Attributes:
    position: of the ledger, up to which nothing that counts holds what was erased.
    parts: that hold or name samples of the request, `<source>/<part>` -> the one in its place; empty: nothing is left of it.
    versions: `<dataset>/<version>` that used them -> the version in its place; empty: there is none.
    ids: samples, in parts or only in tables.
    erased: the grace begins.
    grace_days: that were asked for with the request.
    erasing: URI of what was written down.
    """

    request: str
    position: int
    parts: dict[str, str] = Field({})
    versions: dict[str, str] = Field({})
    ids: int
    erased: AwareDatetime
    grace_days: float = 0
    erasing: str


def erase(lake: Lake, run: OptoutRun, *, match: Matcher | None = None) -> EraseReport:
    """Erase the samples of a request. A second run finds nothing to do, or what has come since.

    Args:
        match: see `smalti.optouts.ledger.resolve`.
    Raises:
        InputError: the request does not ask for it, was not applied, or was taken back.
        CorruptError: a part or a successor is not what it has to be.
        ConflictError: parts or versions came faster than they could be erased.
    """
    began = time.monotonic()
    _refuse(lake, run.request, state(lake))
    tables = Tables(lake)
    for _ in range(ROUNDS):
        erase_parts(lake, match=match, tables=tables)
        moved = Erasures.read(lake, objects.list_names(lake.parts_root()))
        why = f"samples of it were erased, as opt-out {run.request} asks"
        succeed(lake, why=why, exchanged={part: moved.part(part) for part in moved.steps})
        settle(lake, match=match)
        ledger = state(lake)
        versions = versions_over(lake, moved.steps)
        if not left_over(lake, ledger, tables=tables) and all(is_gone(lake, *each) for each in versions):
            break
    else:
        what = f"after {ROUNDS} rounds there still are parts or versions with what is to be erased"
        raise ConflictError(what, f"request {run.request}", "Run it again")
    request = _refuse(lake, run.request, ledger)
    erasing = written_down(lake, run.request, ledger, moved, versions, tables)
    return EraseReport(
        stage="optout_erase",
        seconds=round(time.monotonic() - began, 3),
        request=run.request,
        position=ledger.position,
        parts=erasing.parts,
        versions={f"{each.dataset}/{each.version}": each.successor or "" for each in erasing.versions},
        ids=len(erasing.ids),
        erased=erasing.erased,
        grace_days=request.grace_days or 0,
        erasing=lake.optout_erasing(run.request, 1),
    )


def _refuse(lake: Lake, request: str, ledger: Ledger) -> Request:
    """The request. Raises InputError unless it is to be erased."""
    found = read_request(lake, request)
    if found.action != Action.ERASE:
        raise InputError(f"request {request} does not ask to erase", "opt-outs", "Hand in another one, with erase")
    if request in ledger.withdrawn:
        raise InputError(f"request {request} was taken back", "opt-outs", "Hand it in again if it is to be erased")
    if request not in ledger.resolved:
        raise InputError(f"request {request} was not applied", "opt-outs", "Run `smalti optout apply` for it first")
    return found


def versions_over(lake: Lake, parts: Mapping[str, object]) -> dict[tuple[str, str], frozenset[str]]:
    """(dataset, version) of each that has a manifest and uses any of these parts -> those that it uses."""
    found = {}
    for dataset in objects.list_names(lake.releases()):
        for version in claimed_versions(lake, dataset):
            try:
                manifest = read_manifest(lake.manifest(dataset, version))
            except MissingObject:
                continue  # not assembled yet, or collected
            if uses(manifest, parts.keys()):
                used = {f"{source.name}/{part.name}" for source in manifest.sources for part in source.parts}
                found[dataset, version] = frozenset(used & parts.keys())
    return found


def written_down(
    lake: Lake,
    request: str,
    ledger: Ledger,
    moved: Erasures,
    versions: Mapping[tuple[str, str], frozenset[str]],
    tables: Tables,
) -> Erasing:
    """Take down what must go after the grace, and how it is known then, as far as that was not done."""
    found = read_erasing(lake, request)
    ids = {*ledger.ids.get(request, ()), *tables.ids(ledger, [request])}
    parts = {part: moved.part(part) for part in old_parts(lake, request, ledger, moved, ids)}
    stones = {
        (dataset, version): read_tombstone(lake, dataset, version)
        for (dataset, version), used in versions.items()
        if used & parts.keys()
    }
    now = Erasing(
        request=request,
        erased=datetime.now(UTC),
        position=ledger.position,
        parts=parts,
        versions=tuple(
            OldVersion(dataset=dataset, version=version, successor=stone.successor if stone else None)
            for (dataset, version), stone in sorted(stones.items())
        ),
        ids=tuple(sorted(ids)),
        files=(),
        pictures=(),
        pixels=(),
    )
    back = _came_back(lake, found, ids)
    if found is not None and found.holds(now) and not back:
        return found
    known = frozenset() if found is None else frozenset(found.parts)
    shards = {name: at for name, at in ledger.places.get(request, {}).items() if _part_of(name) not in known}
    files, pictures, pixels = set[str](), set[str](), set[str]()
    rows = read_matched(lake, ledger.matched, [request])
    files.update(() if rows is None else rows["sha256"].to_pylist())
    taken = [*digests_of(lake, {name: sorted(at) for name, at in shards.items()})]
    pictures.update(each for each, _ in taken)
    pixels.update(each for _, each in taken if each)
    asked = sorted(ids - (set() if found is None or back else {*found.ids}))
    for told, decoded in map_tasks(table_digests, [*_of_tables(lake, asked)]):
        files |= told
        pixels |= decoded
    digests = {"files": files, "pictures": pictures, "pixels": pixels}
    now = now.model_copy(update={name: tuple(sorted(each)) for name, each in digests.items()})
    return add_erasing(lake, now, again=back)


def _came_back(lake: Lake, found: Erasing | None, ids: set[str]) -> bool:
    """Whether tables have rows of these ids again, or an engine has answered for one, though it is proven that all that was written down
    is removed."""
    receipts = read_erase_receipts(lake, found.request) if found is not None else []
    if found is None or not receipts or found.erased > receipts[-1].erased:
        return False
    every = ids.union(found.ids)
    removed = {found.request: removed_of(receipts[-1], frozenset(every))}
    return bool(answered_since(lake, removed, datetime.now(UTC))) or any(True for _ in _of_tables(lake, sorted(every)))


def old_parts(lake: Lake, request: str, ledger: Ledger, moved: Erasures, ids: set[str]) -> Iterator[str]:
    """Parts of which something was erased, and that hold samples of the request or name them among what they could not decode."""
    holding = {_part_of(shard) for shard in ledger.places.get(request, {})}
    for key in sorted(moved.steps):
        if key in holding:
            yield key
            continue
        try:
            part = read_part(lake, *key.split("/", 1))
        except MissingObject:
            continue
        if ids & {row.id for row in part.failed}:
            yield key


@dataclass(frozen=True)
class _Rows:
    """Rows of one version of a table."""

    uri: str
    version: int
    rows: tuple[int, ...]


def _of_tables(lake: Lake, ids: list[str]) -> Iterator[_Rows]:
    """Where the rows of these ids are, some at a time."""
    by_source: dict[str, list[str]] = {}
    for name in ids:
        by_source.setdefault(name.partition("/")[0], []).append(name)
    for source, names in by_source.items():
        uri = lake.table(source)
        table = open_table(uri)
        for start in range(0, len(names) if table is not None else 0, IDS_AT_ONCE):
            where = f"id IN ({', '.join(map(sql_text, names[start : start + IDS_AT_ONCE]))})"
            with lance_errors(uri):
                found = table.to_table(columns=["id"], filter=where, with_row_id=True)["_rowid"].to_pylist()
            if found:
                yield _Rows(uri, int(table.version), tuple(sorted(found)))


def table_digests(task: _Rows) -> tuple[set[str], set[str]]:
    """sha256 of the files of some rows, and of their pixels."""
    pairs = [pair_of(picture) for picture in read_images(task.uri, task.version, task.rows)]
    return {encoded for encoded, _ in pairs}, {decoded for _, decoded in pairs if decoded}


def _part_of(shard: str) -> str:
    """`<source>/<part>` of a shard."""
    return "/".join(shard.split("/", 2)[:2])
