"""What is garbage now, and why. Nothing is written here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from smalti import objects
from smalti.errors import MissingObject
from smalti.lake import Lake
from smalti.maintenance.live import References, references
from smalti.maintenance.marks import Doomed, Kind
from smalti.release.assemble import claimed_versions
from smalti.release.latest import expired, is_gone, stored_latest
from smalti.release.tombstones import is_among, stays
from smalti.settings import MaintenanceRun
from smalti.shards.part import Part, batch_orders, committed_parts, is_abandoned, part_names, read_part
from smalti.shards.replacements import Log, Step, read_log


@dataclass(frozen=True)
class Survey:
    """Attributes:
    doomed: what is garbage.
    given_up: (dataset, version) that are or will be given up, and have no tombstone yet or more objects than that.
    unpublished: dataset -> versions that were never published, older than the grace.
    steps: (source, step of the log) that take parts out of sight first.
    """

    doomed: tuple[Doomed, ...]
    given_up: tuple[tuple[str, str], ...]
    unpublished: dict[str, tuple[str, ...]]
    steps: tuple[tuple[str, Step], ...]
    warnings: tuple[str, ...] = ()


def survey(lake: Lake, run: MaintenanceRun, now: float) -> Survey:
    """Look at everything but the tables, which Lance keeps tidy itself."""
    grace = run.grace_days * 86400
    doomed: list[Doomed] = []
    given_up: list[tuple[str, str]] = []
    unpublished: dict[str, tuple[str, ...]] = {}
    for dataset in objects.list_names(lake.releases()):
        old, gone = _versions(lake, dataset, run, now, grace)
        unpublished[dataset] = old
        for version, why in gone.items():
            found = _folder(lake, "version", lake.release(dataset, version), why, stays(lake, dataset, version))
            if found is not None or not objects.exists(lake.release_tombstone(dataset, version)):
                given_up.append((dataset, version))
            doomed += [found] if found else []
    refs = references(lake, without=given_up)
    doomed += _attempts(lake, now, grace)
    steps: list[tuple[str, Step]] = []
    for source in objects.list_names(lake.parts_root()):
        for found, step in _parts(lake, source, refs, now, grace):
            doomed.append(found)
            steps += [(source, step)] if step else []
    for dataset in objects.list_names(lake.releases()):
        doomed += _files(lake, dataset, refs, now, grace)
    warnings = [f"{each} is claimed and not assembled: as long as it is, no part is deleted" for each in refs.pending]
    return Survey(tuple(doomed), tuple(given_up), unpublished, tuple(steps), tuple(warnings))


def _versions(
    lake: Lake, dataset: str, run: MaintenanceRun, now: float, grace: float
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Versions that were never published, older than the grace; and those that are or are to be given up, with the reason."""
    latest = stored_latest(lake, dataset)
    published = {*latest.published(), *(each.version for each in latest.ablations)}
    old = []
    why: dict[str, str] = {}
    for version in claimed_versions(lake, dataset):
        if is_gone(lake, dataset, version):
            said = latest.successor(version)
            why[version] = f"{said.by or 'nothing'} has succeeded it" if said else "it was given up"
        elif version not in published:
            written = [info.written for info in objects.list_objects(lake.release(dataset, version))]
            if written and now - max(written) >= grace:
                old.append(version)
                why[version] = f"never published, {_days(now - max(written))} old"
    for version in expired(latest, (), run.keep_versions):
        why[version] = f"published, and not among the newest {run.keep_versions} or their ablations"
    return tuple(old), why


def _attempts(lake: Lake, now: float, grace: float) -> Iterator[Doomed]:
    """Below everything but the tables, whose files are Lance's."""
    for top in objects.list_names(lake.root):
        prefix = objects.join_uri(lake.root, top)
        if prefix != lake.tables():
            for info in objects.list_attempts(prefix):
                if now - info.written >= grace:
                    why = f"a write that was not finished {_days(now - info.written)} ago"
                    yield Doomed(kind="attempt", uri=info.uri, why=why, objects=1, bytes=info.size)


def _parts(lake: Lake, source: str, refs: References, now: float, grace: float) -> Iterator[tuple[Doomed, Step | None]]:
    """Parts that nothing needs, and the step that must take them out of sight, if none has."""
    log = read_log(lake, source)
    seen = {part.name: part for part in committed_parts(lake, source, hidden=True, log=log)}
    in_sight = [part for part in seen.values() if part.name not in log.hidden]
    superseded = _superseded(lake, [p for p in in_sight if _old(lake, p, now, grace)], in_sight, refs)
    for name in part_names(lake, source):
        folder, part = lake.part(source, name), seen.get(name)
        if (source, name) in refs.parts:
            continue
        step, why = None, ""
        if name in log.hidden:
            why = _told(log, name)
        elif name in superseded and part is not None:
            why = "a later part has a newer sample of each of its ids"
            step = Step(why="superseded", replaces=(name,), origins=part.sharded)
        elif part is None:
            found, step = _without_commit(lake, source, name, now, grace)
            if found is not None:
                yield found, step
            continue
        if why:
            stays = (lake.part_commit(source, name),) if is_abandoned(lake, source, name) else ()
            found = _folder(lake, "part", folder, why, stays, lake.part_progress(source, name))
            if found is not None:
                yield found, step


def _without_commit(lake: Lake, source: str, name: str, now: float, grace: float) -> tuple[Doomed | None, Step | None]:
    """A part that was begun and never committed, or that maintenance wrote and no step of the log names."""
    folder = lake.part(source, name)
    written = max((info.written for info in objects.list_objects(folder)), default=now)
    if now - written < grace:
        return None, None
    age = _days(now - written)
    try:
        part = read_part(lake, source, name)
    except MissingObject:
        why = f"it has no part.json, and nobody has written to it for {age}"
        return _folder(lake, "unfinished part", folder, why, (lake.part_commit(source, name),)), None
    step = Step(why="abandoned", replaces=(name,), origins=part.sharded)
    why = f"maintenance wrote it {age} ago, and was killed or overtaken"
    return _folder(lake, "part", folder, why, (), lake.part_progress(source, name)), step


def _superseded(lake: Lake, candidates: Sequence[Part], parts: Sequence[Part], refs: References) -> set[str]:
    """Parts in which no sample can be served by any release over `parts`.

    A sample can never be served if the newest sample of its id has other bytes, or a newer one with its bytes was described and
    labelled by the same engines: the rule of smalti.curation.scan, for every list of accepted engines at once.
    """
    unused = {part.name for part in candidates if (part.source, part.name) not in refs.parts}
    if not unused or len(parts) < 2:
        return set()
    import polars as pl

    frames = []
    for places, part in zip(batch_orders(parts), parts, strict=True):
        with objects.open_binary(lake.samples(part.source, part.name)) as file:
            frame = pl.read_parquet(file, columns=["id", "sha256", "captioner", "classifier", "batch"])
        order = pl.col("batch").replace_strict(places, return_dtype=pl.Int64)
        frames.append(frame.with_columns(order=order, part=pl.lit(part.name)).drop("batch"))
    frame = pl.concat(frames)
    other = pl.col("sha256") != pl.col("sha256").sort_by("order").last().over("id")
    again = pl.col("order") < pl.col("order").max().over("id", "sha256", "captioner", "classifier")
    served = frame.filter(~(other | again))["part"].unique().to_list()
    return unused - set(served)


def _files(lake: Lake, dataset: str, refs: References, now: float, grace: float) -> Iterator[Doomed]:
    """Skip files and curations that no manifest names."""
    kinds: tuple[tuple[Kind, str], ...] = (("skip file", lake.skips(dataset)), ("curation", lake.curations(dataset)))
    for kind, folder in kinds:
        for info in objects.list_objects(folder):
            if info.uri not in refs.files and now - info.written >= grace:
                why = f"no manifest that counts names it, {_days(now - info.written)} old"
                yield Doomed(kind=kind, uri=info.uri, why=why, objects=1, bytes=info.size)


def _folder(lake: Lake, kind: Kind, folder: str, why: str, kept: Sequence[str], *others: str) -> Doomed | None:
    """Everything below a folder (and others) but what is kept; None: there is nothing."""
    infos = [
        info for place in (folder, *others) for info in objects.list_objects(place) if not is_among(info.uri, kept)
    ]
    if not infos:
        return None
    return Doomed(kind=kind, uri=folder, why=why, objects=len(infos), bytes=sum(info.size for info in infos))


def _old(lake: Lake, part: Part, now: float, grace: float) -> bool:
    info = objects.stat(lake.part_commit(part.source, part.name))
    return info is not None and now - info.written >= grace


def _told(log: Log, name: str) -> str:
    step = log.hidden[name]
    return f"{step.why}, {step.by} holds its samples" if step.by else step.why


def _days(seconds: float) -> str:
    return f"{seconds / 86400:.1f} days"
