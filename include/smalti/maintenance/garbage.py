"""The collection of garbage: what nobody can need any more is marked, and a grace later, if still nobody does, deleted.

| kind | what it is |
|---|---|
| attempt | an uncommitted write that a killed process left (file systems only) |
| unfinished part | a folder below parts/ without part.json, in which nobody has written for longer than the grace |
| part | replaced by maintenance, or superseded sample by sample, and used by no version that counts |
| version | never published and older than the grace, or published and older than the newest `keep_versions` |
| skip file, curation | named by no manifest that counts |
| matched rows | of an opt-out: named by no step of the ledger and by no preview (deleted without a mark, once older than the grace) |

A version counts until it is given up, and that is decided by the same swap of LATEST that publishes one: none is published
after it was given up, or given up while it is served. Its claim and its tombstone stay for ever, so that no other content gets its
name; of a version that was succeeded, what its checkpoints are resumed by (manifest, stream indices, skip files) as long as the last
of its successors is live. Trees and streams are a version's own, and go with it.

A part goes out of sight for new releases first, by a step in the log of replacements; one that is written, by ABANDONED in the
place of its part.json, after which nobody can commit it. Marking and sweeping are two runs, at least a grace apart: readers that
have opened a version have that long to end. That a release which is being assembled loses nothing does not rest on time: see
`smalti.maintenance.marks`. The one assumption about time is that a process which has written nothing for longer than the grace is
dead, and if it is not, its next commit fails.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

from pydantic import Field

from smalti import objects
from smalti.accounting import Report
from smalti.config import Strict
from smalti.errors import CorruptError, MissingObject
from smalti.lake import Lake
from smalti.maintenance.live import References, references
from smalti.maintenance.marks import Doomed, Mark, OpenCollection, read_mark, unfinished
from smalti.maintenance.survey import Survey, survey
from smalti.release.latest import give_up, is_gone
from smalti.release.skips import canonical_json
from smalti.release.tombstones import bury, is_among, stays
from smalti.settings import MaintenanceRun
from smalti.shards.part import ABANDONED, is_abandoned
from smalti.shards.replacements import Step, append_step, read_log

log = logging.getLogger("smalti")

SHOWN = 50
"""Things that a report names; the objects of a collection name them all."""


class GcReport(Report):
    """Attributes:
    dry_run: nothing was written or deleted.
    deleted, deleted_bytes: kind -> objects and bytes that went (with dry_run: that would go now).
    marked, marked_bytes: kind -> objects and bytes that were found to be garbage now, and go a grace later.
    waiting: objects that were marked less than a grace ago.
    given_up: versions (<dataset>/<version>) that will be served no more from now on.
    shown: some of it, one line each.
    logs: URIs of the objects that list everything.
    """

    dry_run: bool
    deleted: dict[str, int] = Field({})
    deleted_bytes: dict[str, int] = Field({})
    marked: dict[str, int] = Field({})
    marked_bytes: dict[str, int] = Field({})
    waiting: int = 0
    given_up: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    logs: tuple[str, ...] = ()


class Item(Strict):
    """What became of something that was marked. `deletes`: objects, in the order in which they go; none: it was spared."""

    kind: str
    uri: str
    why: str
    deletes: tuple[str, ...] = ()
    bytes: int = 0


class Deleting(Strict):
    """deleting.json: decided once, so that a sweep that is killed goes on with it."""

    items: tuple[Item, ...]


class _Counts:
    """What a report adds up."""

    def __init__(self) -> None:
        self.objects: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def add(self, kind: str, number: int, size: int) -> None:
        self.objects[kind] += number
        self.bytes[kind] += size

    def told(self, name: str) -> dict[str, dict[str, int]]:
        return {name: dict(sorted(self.objects.items())), f"{name}_bytes": dict(sorted(self.bytes.items()))}


def gc(lake: Lake, run: MaintenanceRun, now: float | None = None) -> GcReport:
    """Sweep what was marked long enough ago, then mark what is garbage now. Without `apply` only say so.

    Args:
        now: seconds since 1970; empty: the clock's.
    """
    started = time.monotonic()
    now = time.time() if now is None else now
    grace = run.grace_days * 86400
    deleted, marked = _Counts(), _Counts()
    shown: list[str] = []
    logs: list[str] = []
    waiting = 0
    for each in unfinished(lake):
        mark = read_mark(lake, each.name)
        if not each.swept and now - mark.created.timestamp() < grace:
            waiting += sum(doomed.objects for doomed in mark.doomed)
            continue
        items = sweep(lake, each, mark, now, grace) if run.apply else decide(lake, mark, now, grace, touch=False)
        for item in items:
            deleted.add(item.kind, len(item.deletes), item.bytes)
            if item.deletes:
                line = _line(lake, item.kind, item.uri, len(item.deletes), item.bytes)
                shown.append(f"{_did(run, 'deleted')}: {line}: {item.why}")
        if run.apply:
            logs.append(lake.collection(each.name, "deleting.json"))
    rows, warnings = _unnamed_rows(lake, now, grace)
    for info in rows:
        if not run.apply or objects.delete_object(info.uri, info.generation):
            deleted.add("matched rows", 1, info.size)
            line = _line(lake, "matched rows", info.uri, 1, info.size)
            shown.append(f"{_did(run, 'deleted')}: {line}: no step of the ledger names it")
    found = survey(lake, run, now)
    given_up = [each for each in found.given_up if not objects.exists(lake.release_tombstone(*each))]  # by this run
    if run.apply:
        found = hide(lake, run, found)
    known = {doomed.uri for each in unfinished(lake) for doomed in read_mark(lake, each.name).doomed}
    fresh = tuple(doomed for doomed in found.doomed if doomed.uri not in known)
    for doomed in fresh:
        marked.add(doomed.kind, doomed.objects, doomed.bytes)
        line = _line(lake, doomed.kind, doomed.uri, doomed.objects, doomed.bytes)
        shown.append(f"{_did(run, 'marked')}: {line}: {doomed.why}")
    if run.apply and fresh:
        logs.append(write_mark(lake, fresh, now))
    more = [f"and {len(shown) - SHOWN} more"] if len(shown) > SHOWN else []
    counts: dict[str, Any] = deleted.told("deleted") | marked.told("marked")
    return GcReport(
        stage="gc",
        seconds=time.monotonic() - started,
        warnings=found.warnings + warnings,
        dry_run=not run.apply,
        **counts,
        waiting=waiting,
        given_up=tuple(f"{dataset}/{version}" for dataset, version in given_up),
        shown=tuple(shown[:SHOWN] + more),
        logs=tuple(logs),
    )


def _unnamed_rows(lake: Lake, now: float, grace: float) -> tuple[list[objects.ObjectInfo], tuple[str, ...]]:
    """Rows that go, and why they do not: whatever is damaged of the ledger, the other garbage does not wait for it."""
    from smalti.optouts.orphans import unnamed_rows  # opt-outs collect garbage, too

    try:
        return unnamed_rows(lake, now, grace), ()
    except (MissingObject, CorruptError) as error:
        return [], (f"matched rows of opt-outs are not looked at: {error}",)


def write_mark(lake: Lake, doomed: tuple[Doomed, ...], now: float) -> str:
    """Create mark.json. Returns its URI."""
    data = Mark(created=datetime.fromtimestamp(now, UTC), doomed=doomed).encode()
    stamp = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%S")
    uri = lake.collection(f"{stamp}-{hashlib.sha256(data).hexdigest()[:12]}", "mark.json")
    objects.create_same(uri, data)
    return uri


def hide(lake: Lake, run: MaintenanceRun, found: Survey) -> Survey:
    """Take from sight what is about to be marked, so that nothing new comes to depend on it. Returns what that succeeded for."""
    for dataset, unpublished in found.unpublished.items():
        for version in give_up(lake, dataset, unpublished, run.keep_versions):
            log.info("gc: gave up %s %s", dataset, version)
    for dataset, version in found.given_up:  # also those whose tombstone a killed run did not come to write
        if is_gone(lake, dataset, version):
            bury(lake, dataset, version)
    refused = {
        lake.part(source, name)
        for source, step in found.steps
        if not append_step(lake, source, step)
        for name in step.replaces
    }
    doomed = tuple(
        each
        for each in found.doomed
        if each.uri not in refused and (each.kind != "version" or objects.exists(f"{each.uri}/tombstone.json"))
    )
    return Survey(doomed, found.given_up, found.unpublished, found.steps, found.warnings)


def sweep(lake: Lake, collection: OpenCollection, mark: Mark, now: float, grace: float) -> tuple[Item, ...]:
    """Delete what is still garbage of a mark. Killed at any line, the next run goes on."""
    objects.create_bytes(lake.collection(collection.name, "sweep.json"), b"{}\n")
    uri = lake.collection(collection.name, "deleting.json")
    found = objects.read_versioned(uri)
    if found is None:  # whoever is first decides; everybody has announced the sweep before looking at manifests
        items = tuple(decide(lake, mark, now, grace, touch=True))
        objects.create_bytes(uri, (Deleting(items=items).model_dump_json(indent=1) + "\n").encode())
        found = objects.read_versioned(uri)
    assert found is not None
    items = Deleting.model_validate_json(found[0]).items
    for item in items:
        delete_all(item.deletes)
        if item.kind == "unfinished part":
            source, name = item.uri.rsplit("/", 2)[1:]
            if is_abandoned(lake, source, name):  # so that whoever writes the part again does it under another name
                append_step(lake, source, Step(why="abandoned", replaces=(name,)))
    counts = {"objects": sum(len(item.deletes) for item in items), "bytes": sum(item.bytes for item in items)}
    objects.create_bytes(lake.collection(collection.name, "done.json"), canonical_json(counts) + b"\n")
    log.info("gc: %s deleted %d objects, %d bytes", collection.name, counts["objects"], counts["bytes"])
    return items


def delete_all(uris: Iterable[str]) -> None:
    """Delete objects: the first, which is what readers trust, before the others."""
    first, *rest = [*uris] or [""]
    if first:
        objects.delete_object(first)
        with ThreadPoolExecutor(8) as pool:
            for number, _ in enumerate(pool.map(objects.delete_object, rest), 1):
                if number % 10_000 == 0:
                    log.info("gc: %d of %d objects", number, len(rest))


def decide(lake: Lake, mark: Mark, now: float, grace: float, *, touch: bool) -> list[Item]:
    """What of a mark is still garbage, object by object.

    Args:
        touch: let parts without part.json be given up for good.
    """
    refs = references(lake)
    items = []
    for doomed in mark.doomed:
        infos = _deletes(lake, doomed, refs, now, grace, touch)
        uris = tuple(info.uri for info in infos)
        items.append(
            Item(kind=doomed.kind, uri=doomed.uri, why=doomed.why, deletes=uris, bytes=sum(info.size for info in infos))
        )
    return items


def _deletes(
    lake: Lake, doomed: Doomed, refs: References, now: float, grace: float, touch: bool
) -> list[objects.ObjectInfo]:
    """The objects of something doomed, what makes it count first; empty if it is to be spared."""
    if doomed.kind == "version":
        dataset, version = doomed.uri.rsplit("/", 2)[1:]
        if not is_gone(lake, dataset, version):
            return []
        kept = stays(lake, dataset, version)
        held = [info for info in objects.list_objects(doomed.uri) if not is_among(info.uri, kept)]
        return sorted(held, key=lambda info: (not info.uri.endswith("/manifest.json"), info.uri))
    if doomed.kind == "unfinished part":
        return _unfinished(lake, doomed.uri, now, grace, touch)
    if doomed.kind == "part":
        source, name = doomed.uri.rsplit("/", 2)[1:]
        if refs.pending or (source, name) in refs.parts or name not in read_log(lake, source).hidden:
            return []
        held = [*objects.list_objects(doomed.uri), *objects.list_objects(lake.part_progress(source, name))]
        commit = lake.part_commit(source, name)
        if is_abandoned(lake, source, name):
            held = [info for info in held if info.uri != commit]
        return sorted(held, key=lambda info: (info.uri != commit, info.uri))
    info = objects.stat(doomed.uri)
    if info is None or now - info.written < grace:
        return []
    spared = doomed.kind != "attempt" and (refs.pending or doomed.uri in refs.files)
    return [] if spared else [info]


def _unfinished(lake: Lake, folder: str, now: float, grace: float, touch: bool) -> list[objects.ObjectInfo]:
    """The objects of a folder without part.json. With `touch` it can never be committed afterwards."""
    source, name = folder.rsplit("/", 2)[1:]
    commit = lake.part_commit(source, name)
    held = [*objects.list_objects(folder), *objects.list_objects(lake.part_progress(source, name))]
    given_up = is_abandoned(lake, source, name)
    written = max((info.written for info in held if info.uri != commit), default=0.0)
    if not given_up and (objects.exists(commit) or now - written < grace):
        return []  # somebody has gone on with it, or even committed it
    if touch and not given_up and not objects.create_bytes(commit, ABANDONED) and not is_abandoned(lake, source, name):
        return []
    return [info for info in held if info.uri != commit]


def _did(run: MaintenanceRun, verb: str) -> str:
    return verb if run.apply else f"would be {verb}"


def _line(lake: Lake, kind: str, uri: str, number: int, size: int) -> str:
    return f"{kind} {uri.removeprefix(lake.root + '/')} ({number} objects, {size / 1e6:.1f} MB)"
