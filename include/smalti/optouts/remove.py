"""Stage: remove the bytes of what a request erased, wherever they are in the lake, and prove it.

After the grace, in this order: rows of the tables; the old parts; what versions that were given up hold; what checkpoints, inventories,
pages, reports and logs say; former generations of all that. Then every object of the lake is scanned (`smalti.optouts.scan`). Only the
ledger and the receipts may name a sample, and nothing may hold a byte of its picture. Whatever is killed, the next run goes on: what
is to be found nowhere was taken down first (`smalti.optouts.needles`).
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime

from pydantic import Field

from smalti import objects
from smalti.accounting import Report
from smalti.errors import CorruptError, InputError
from smalti.lake import Lake
from smalti.maintenance.live import References, files_of, references
from smalti.optouts.erasing import Erasing, read_erasing
from smalti.optouts.generations import Kept, remove_generations
from smalti.optouts.ledger import state
from smalti.optouts.needles import Removing, Seeker
from smalti.optouts.receipt_erase import (
    EraseReceipt,
    Place,
    Rewritten,
    Succeeded,
    kind_of,
    read_erase_receipts,
    still_elsewhere,
    store_erase_receipt,
)
from smalti.optouts.remove_small import is_allowed, remove_small
from smalti.optouts.remove_tables import remove_rows
from smalti.optouts.remove_unfinished import remove_unfinished
from smalti.optouts.request import Action, Request, read_request
from smalti.optouts.scan import UNREADABLE, Finding, Scanned, scan
from smalti.optouts.scan_tables import unnamed_files
from smalti.optouts.tables import Tables, sources_with_table
from smalti.optouts.take_down import take_down
from smalti.release.assemble import claimed_versions
from smalti.release.latest import is_gone
from smalti.release.manifest import read_manifest
from smalti.settings import OptoutRun
from smalti.shards.replacements import read_log

log = logging.getLogger("smalti")


class RemoveReport(Report):
    """What a removal did.

    Attributes:
        removed: nothing is left, and the receipt says so. False: see the warnings, and run it again.
        objects: removed, by the first name of their path; rewritten: replaced by ones without the samples.
        rows: that the tables lost.
        scanned: objects that were read for the proof.
    """

    request: str
    removed: bool
    objects: dict[str, int] = Field({})
    rewritten: dict[str, int] = Field({})
    rows: int = 0
    scanned: int = 0
    receipt: str = ""
    page: str = ""


@dataclass
class _Done:
    """What was removed so far."""

    objects: Counter[str] = field(default_factory=Counter)
    rewritten: Counter[str] = field(default_factory=Counter)
    rows: int = 0
    folders: list[str] = field(default_factory=list)
    kept: set[str] = field(default_factory=set)


def remove(lake: Lake, run: OptoutRun, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> RemoveReport:
    """Remove what a request erased, and prove it. A second time the receipt that is there is reported, unless more was erased since:
    that is removed as well, and has a receipt of its own.

    Raises:
        InputError: the request does not erase, was taken back, its parts are not erased yet, its grace is not over, or something
            that counts uses an old part: nothing was removed.
        CorruptError: something is left that nothing here may remove; the first such place is named.
    """
    began = time.monotonic()
    request = read_request(lake, run.request)
    receipts = read_erase_receipts(lake, request.id)
    if receipts and not _is_more(lake, receipts[-1]):
        receipt = store_erase_receipt(lake, receipts[-1])  # its page may be missing
        return _report(lake, request, began, _Done(), sum(each.objects for each in receipt.places), receipt.number)
    erasing = _ready(lake, request, run, now())
    refs = references(lake)
    removing = take_down(lake, request, erasing)
    _refuse_used(lake, removing, refs)
    seeker, done = Seeker(removing, erasing), _Done()
    _tables(lake, seeker, done)
    _parts(lake, removing, done)
    _unfinished(lake, seeker, done, now().timestamp(), run.grace_days * 86400)
    _versions(lake, removing, erasing, refs, done)
    small = remove_small(lake, seeker, refs)
    done.objects.update(small.objects)
    done.rewritten.update(small.rewritten)
    kept = remove_generations(lake, seeker, done.folders, frozenset(done.kept))
    tables = Tables.open(lake).versions
    scanned = scan(lake, seeker)
    left = [each for each in scanned.findings if not is_allowed(lake, each.uri)]
    waiting = _waiting(lake, left)
    number = len(receipts) + 1
    if waiting:
        return _report(lake, request, began, done, sum(scanned.objects.values()), number, waiting)
    _refuse_left(lake, request, left)
    named = len({each.uri for each in scanned.findings})
    receipt = _receipt(request, removing, erasing, done, kept, scanned, named, now())
    store_erase_receipt(lake, receipt.model_copy(update={"number": number, "tables": tables}))
    log.info("opt-outs: request %s (%s): erased, and found nowhere", request.id, request.reference)
    return _report(lake, request, began, done, sum(scanned.objects.values()), number)


def _is_more(lake: Lake, receipt: EraseReceipt) -> bool:
    """Whether anything was erased after what a receipt is about."""
    erasing = read_erasing(lake, receipt.request)
    return erasing is not None and erasing.erased > receipt.erased


def _ready(lake: Lake, request: Request, run: OptoutRun, now: datetime) -> Erasing:
    """What was erased. Raises InputError as long as nothing may be removed."""
    uri = lake.optout_request(request.id)
    if request.action != Action.ERASE:
        raise InputError(f"it asks to {request.action}", uri, "Hand in another request, with erase")
    ledger = state(lake)
    if request.id in ledger.withdrawn or request.id not in ledger.resolved:
        what = "it was taken back" if request.id in ledger.withdrawn else "it was not applied"
        raise InputError(f"the request is not in force: {what}", uri, "There is nothing to remove")
    erasing = read_erasing(lake, request.id)
    if erasing is None:
        raise InputError("its parts are not erased yet", uri, f"Run `smalti optout erase {request.id}` first")
    over = erasing.erased + request.grace(run.grace_days)
    if now < over:
        raise InputError(
            f"its grace is not over: training runs that read the old parts may end until {over:%Y-%m-%d %H:%M} UTC",
            uri,
            "Run it again then, or with fewer --grace-days, but no fewer than the request itself says",
        )
    return erasing


def _refuse_used(lake: Lake, removing: Removing, refs: References) -> None:
    """Raises InputError while anything that counts uses an old part, or may."""
    again = f"Run `smalti optout erase {removing.request}` again, then remove"
    old = {tuple(part.split("/", 1)) for part in removing.parts}
    for release in refs.releases:
        if used := sorted(old & release.parts):
            source, name = used[0]
            what = f"{release.manifest.dataset} {release.manifest.version} uses part {source}/{name}, which holds what was erased"
            raise InputError(what, release.uri, again)
    if refs.pending:
        raise InputError(
            "a version is claimed and not assembled: it may use a part that holds what was erased",
            refs.pending[0],
            "Let its build end, or give it up with `smalti gc --apply`; then remove",
        )
    for source in sorted({source for source, _ in old}):
        hidden = read_log(lake, source).hidden
        for name in sorted(name for each, name in old if each == source):
            if name not in hidden and objects.exists(lake.part_commit(source, name)):
                raise InputError("a part that holds what was erased is still in sight", lake.part(source, name), again)


def _tables(lake: Lake, seeker: Seeker, done: _Done) -> None:
    ids = sorted(seeker.ids)
    for source in sources_with_table(lake):
        mine = [each for each in ids if each.startswith(f"{source}/")]
        if mine:
            done.rows += remove_rows(lake.table(source), mine)
            done.folders.append(lake.table(source))


def _parts(lake: Lake, removing: Removing, done: _Done) -> None:
    """The old parts, part.json first: from then on nobody takes one for a part."""
    for part in removing.parts:
        source, name = part.split("/", 1)
        commit = lake.part_commit(source, name)
        held = [info.uri for info in objects.list_objects(lake.part(source, name))]
        held += [info.uri for info in objects.list_objects(lake.part_progress(source, name))]
        _delete(lake, sorted(held, key=lambda uri: (uri != commit, uri)), done)
        done.folders += [lake.part(source, name), lake.part_progress(source, name)]


def _unfinished(lake: Lake, seeker: Seeker, done: _Done, now: float, grace: float) -> None:
    gone, folders = remove_unfinished(lake, seeker, now, grace)
    done.objects.update({"parts": gone} if gone else {})
    done.folders += folders


def _versions(lake: Lake, removing: Removing, erasing: Erasing, refs: References, done: _Done) -> None:
    """Of versions that were given up and used an old part: all but what names them and what checkpoints of them are resumed by."""
    old = {tuple(part.split("/", 1)) for part in removing.parts}
    told = {(each.dataset, each.version) for each in erasing.versions}
    for dataset in objects.list_names(lake.releases()):
        for version in claimed_versions(lake, dataset):
            if not is_gone(lake, dataset, version):
                continue
            uri, files = lake.manifest(dataset, version), []
            if objects.exists(uri):
                manifest = read_manifest(uri)
                used = {(source.name, part.name) for source in manifest.sources for part in source.parts}
                if not used & old and (dataset, version) not in told:
                    continue
                skips = f"{lake.skips(dataset)}/"
                files = [
                    each for each in files_of(uri, manifest) if each not in refs.files and not each.startswith(skips)
                ]
            elif (dataset, version) not in told:
                continue
            folder = lake.release(dataset, version)
            stays = {uri, lake.claim(dataset, version), lake.release_tombstone(dataset, version)}
            held = [info.uri for info in objects.list_objects(folder)]
            streams = {each for each in held if each.startswith(f"{folder}/streams/")}
            _delete(lake, [each for each in (*files, *held) if each not in stays | streams], done)
            done.folders.append(folder)
            done.kept |= stays | streams


def _delete(lake: Lake, uris: Iterable[str], done: _Done) -> None:
    first, *rest = [*uris] or [""]
    if not first:
        return
    gone = [first] if objects.delete_object(first) else []
    with ThreadPoolExecutor(8) as pool:
        gone += [uri for uri, was in zip(rest, pool.map(objects.delete_object, rest), strict=True) if was]
    for uri in gone:
        done.objects[uri.removeprefix(f"{lake.root}/").split("/")[0]] += 1


def _waiting(lake: Lake, left: list[Finding]) -> list[str]:
    """Why to run it again later, if everything that is left lies in files of tables that no version names; empty: something else is."""
    unnamed: set[str] = set()
    for table in {uri.split(".lance/")[0] + ".lance" for each in left if ".lance/" in (uri := each.uri)}:
        unnamed |= unnamed_files(table)
    if not left or not all(each.uri in unnamed for each in left):
        return []
    files = sorted({each.uri for each in left})
    return [
        f"{len(files)} files that a writer has not committed, and perhaps never will, hold what was erased, the first is {files[0]}: "
        "they go by themselves when they are 7 days old, and with the next removal; run it again then"
    ]


def _refuse_left(lake: Lake, request: Request, left: list[Finding]) -> None:
    if not left:
        return
    for each in left:
        log.error("opt-outs: request %s: left: %s", request.id, each)
    more = f" (and {len(left) - 1} more)" if len(left) > 1 else ""
    if left[0].what == UNREADABLE:
        raise CorruptError(
            f"{UNREADABLE}: nothing shows whether it holds what was erased{more}",
            left[0].uri,
            "Restore it, or remove it if nothing needs it; then remove again",
        )
    is_part = left[0].uri.startswith(f"{lake.parts_root()}/")
    raise CorruptError(
        f"{left[0].what} was found that may not be there{more}",
        f"{left[0].uri}{f' ({left[0].where})' if left[0].where else ''}",
        "If it is of a part that is being written, or was not long ago, remove again once the grace is over since"
        if is_part
        else "If it is a file in the inbox, let it be handed in; otherwise find out what wrote it; then remove again",
    )


def _receipt(
    request: Request,
    removing: Removing,
    erasing: Erasing,
    done: _Done,
    kept: Kept,
    scanned: Scanned,
    named: int,
    proved: datetime,
) -> EraseReceipt:
    tops = sorted({*scanned.objects, *done.objects, *done.rewritten})
    until = f"{kept.until:%Y-%m-%d %H:%M} UTC" if kept.until else "an unknown time"
    return EraseReceipt(
        request=request.id,
        reference=request.reference,
        action=request.action,
        submitted=request.submitted,
        erased=erasing.erased,
        removing=removing.begun,
        proved=proved,
        ids=len(removing.ids),
        pictures=len({each.sha256 for each in removing.pictures}.union(erasing.files, erasing.pictures)),
        parts=tuple(Rewritten(old=old, new=new) for old, new in sorted(erasing.parts.items())),
        releases=tuple(
            Succeeded(dataset=each.dataset, version=each.version, successor=each.successor or "")
            for each in erasing.versions
        ),
        rows=done.rows,
        noncurrent=kept.removed,
        soft_deleted=kept.soft_deleted,
        allowed=named,
        places=tuple(
            Place(
                where=top,
                objects=scanned.objects.get(top, 0),
                bytes=scanned.bytes.get(top, 0),
                removed=done.objects[top],
                rewritten=done.rewritten[top],
            )
            for top in tops
        ),
        unreachable=still_elsewhere(request, kept.soft_deleted, until, kept.forbidden),
    )


def _report(
    lake: Lake,
    request: Request,
    began: float,
    done: _Done,
    scanned: int,
    number: int,
    waiting: list[str] | None = None,
) -> RemoveReport:
    return RemoveReport(
        stage="optout_remove",
        seconds=round(time.monotonic() - began, 3),
        warnings=tuple(waiting or ()),
        request=request.id,
        removed=not waiting,
        objects=dict(sorted(done.objects.items())),
        rewritten=dict(sorted(done.rewritten.items())),
        rows=done.rows,
        scanned=scanned,
        receipt="" if waiting else lake.optout_receipt(request.id, kind_of(number)),
        page="" if waiting else lake.optout_receipt_page(request.id, kind_of(number)),
    )
