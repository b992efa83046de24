"""Successors: versions that take the places of live ones which hold what was opted out since.

A version never changes. So a live one that must lose samples is built once more, of the same parts and with the same settings but
the newest opt-outs: curated, assembled and verified like any other, its tree written if it has one. One swap of LATEST then
exchanges all of a dataset's touched versions for their successors, each at its place, and gives the old ones up; tombstones say
so beside them, and name the successor.

Killed anywhere, a second run ends in the same: what was assembled is found by its content and by whom it succeeds, and tombstones
that are missing follow from LATEST.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from smalti import objects
from smalti.curation.curate import curate
from smalti.curation.inputs import NothingLeft, made_with
from smalti.errors import ConflictError, SmaltiError
from smalti.lake import Lake
from smalti.loader.skips import served_shards
from smalti.release.assemble import assemble, claimed_versions
from smalti.release.latest import Latest, Past, exchange, give_up, gone_versions, live_versions, stored_latest
from smalti.release.manifest import Manifest, read_manifest
from smalti.release.optouts import newest_position, read_snapshot
from smalti.release.publish import write_tree
from smalti.release.tombstones import bury, read_tombstone
from smalti.release.tree_claims import position_of
from smalti.release.verify import read_verified, verify
from smalti.settings import ReleaseRun
from smalti.threads import map_threads

log = logging.getLogger("smalti")

ROUNDS = 20
"""Times that a dataset is looked at again, because requests or versions came while it was worked on."""

SUCCEEDED = "its tree held samples that were opted out since"
"""Why, where opt-outs alone are the reason."""

Exchanged = Mapping[str, str]
"""`<source>/<part>` that is used -> the one that holds its samples now; empty: none is left of them."""

_NONE: Exchanged = MappingProxyType({})


@dataclass(frozen=True)
class Succeeded:
    """A live version that was exchanged. `new`: empty, nothing was left for a successor."""

    dataset: str
    old: str
    new: str | None


def succeed(
    lake: Lake, datasets: Iterable[str] | None = None, *, why: str, exchanged: Exchanged = _NONE
) -> tuple[Succeeded, ...]:
    """Exchange every live version that uses one of these parts, or whose tree holds what was opted out since.

    Versions that were never published and use one of the parts are given up. A dataset of which that fails keeps no other one waiting.

    Args:
        datasets: empty: all.
        why: for the tombstones, so that people know.
    Raises, when all datasets were tried:
        CorruptError: a successor does not verify: nothing of its dataset is exchanged.
        ConflictError: versions came faster than they could be exchanged, or maintenance took a successor.
    """
    done: list[Succeeded] = []
    failed: list[Exception] = []
    for dataset in objects.list_names(lake.releases()) if datasets is None else sorted(set(datasets)):
        try:
            done += _succeed(lake, dataset, why, exchanged)
        except Exception as error:  # whatever it is: people wait for the others, too
            known = isinstance(error, SmaltiError)
            log.error("succeed: %s may still serve what it must not: %s", dataset, error, exc_info=not known)
            failed.append(error)
    if failed:
        raise _first(failed)
    return tuple(done)


def _first(failed: Sequence[Exception]) -> Exception:
    """The first error, with the number of the others."""
    first, more = failed[0], len(failed) - 1
    if more and type(first).__init__ is SmaltiError.__init__:
        what, where, fix = first.args
        return type(first)(f"{what} (and {more} more datasets failed)", where, fix)
    return first


def _succeed(lake: Lake, dataset: str, why: str, exchanged: Exchanged) -> list[Succeeded]:
    """The same, of one dataset."""
    done: list[Succeeded] = []
    for _ in range(ROUNDS):
        _bury_all(lake, dataset)
        _give_up_unpublished(lake, dataset, exchanged, why)
        touched = touched_versions(lake, dataset, exchanged)
        if not touched:
            return done
        done += _exchange(lake, dataset, touched, exchanged, why)
    raise ConflictError(
        f"after {ROUNDS} rounds some versions still hold what was opted out", lake.latest(dataset), "Run it again"
    )


def touched_versions(lake: Lake, dataset: str, exchanged: Exchanged = _NONE) -> tuple[str, ...]:
    """Live versions that are to be succeeded, newest first, ablations last; an ablation whose base is, too."""
    latest, newest = stored_latest(lake, dataset), newest_position(lake)
    found: list[str] = []
    bases = {each.version: each.base for each in latest.ablations}
    for version in live_versions(lake, dataset):
        manifest = read_manifest(lake.manifest(dataset, version))
        if bases.get(version) in found or uses(manifest, exchanged) or holds_opted_out(lake, manifest, newest):
            found.append(version)
    return tuple(found)


def uses(manifest: Manifest, parts: Collection[str]) -> bool:
    """Whether a version uses any of these parts (`<source>/<part>`)."""
    return any(f"{source.name}/{part.name}" in parts for source in manifest.sources for part in source.parts)


def holds_opted_out(lake: Lake, manifest: Manifest, newest: int) -> bool:
    """Whether a tree of the version holds what is opted out at the newest position: whoever reads a tree reads no snapshot."""
    root = lake.tree(manifest.dataset, manifest.version)
    claimed = position_of(manifest, root)
    if claimed is None and manifest.publish != "tree" and not objects.list_names(root):
        return False
    position = manifest.optouts if claimed is None else claimed
    if position >= newest:
        return False
    known = {} if position == manifest.optouts else read_snapshot(lake, position).shards
    parts = {f"{source.name}/{part.name}" for source in manifest.sources for part in source.parts}
    now = read_snapshot(lake, newest).shards
    since = {name: sorted({*now[name]} - {*known.get(name, ())}) for name in now if _part(name) in parts}
    buckets = {tuple(name.split("/")[2:4]) for name, indices in since.items() if indices}
    uri = lake.manifest(manifest.dataset, manifest.version)
    return any(
        len(shard.numbers_of(since[shard.basename]))
        for stream in manifest.streams
        if (str(stream.tier), stream.ar) in buckets
        for shard in served_shards(uri, stream)
        if shard.basename in since
    )


def _part(shard: str) -> str:
    """`<source>/<part>` of a shard."""
    return "/".join(shard.split("/", 2)[:2])


def _exchange(lake: Lake, dataset: str, touched: Collection[str], exchanged: Exchanged, why: str) -> list[Succeeded]:
    latest = stored_latest(lake, dataset)
    new: dict[str, Past | None] = {}
    for version in touched:
        manifest = read_manifest(lake.manifest(dataset, version))
        base = _base(latest, version)
        if base is None:
            new[version] = _successor(lake, manifest, exchanged)
        elif base not in new:
            new[version] = _successor(lake, manifest, exchanged, base)
        else:  # nothing can be an ablation of nothing
            over = new[base]
            new[version] = _successor(lake, manifest, exchanged, over.version) if over else None
    now = exchange(lake, dataset, new, why)
    done = []
    for version in touched:
        said = now.successor(version)
        if said is not None:  # otherwise maintenance gave it up meanwhile
            bury(lake, dataset, version, now)
            log.info("succeed: %s %s was succeeded by %s", dataset, version, said.by or "nothing: nothing is left")
            done.append(Succeeded(dataset, version, said.by or None))
    return done


def _base(latest: Latest, version: str) -> str | None:
    return next((each.base for each in latest.ablations if each.version == version), None)


def _successor(lake: Lake, old: Manifest, exchanged: Exchanged, base: str | None = None) -> Past | None:
    """A version in the place of another, verified and with its tree; None: nothing is left of it.

    Args:
        base: of an ablation, the version that it differs from.
    """
    run = ReleaseRun(
        dataset=made_with(old),
        sources=(),
        without=old.without,
        base=lake.manifest(old.dataset, base) if base else None,
        succeeds=lake.manifest(old.dataset, old.version),
        exchanged=dict(exchanged),
    )
    try:
        run = run.model_copy(update={"curation": curate(lake, run).curation})
        made = assemble(lake, run)
    except NothingLeft as nothing:
        log.warning("succeed: nothing is left of %s %s: %s", old.dataset, old.version, nothing.what)
        return None
    if read_verified(made.manifest) is None:
        verify(lake, run.model_copy(update={"manifest": made.manifest}))
    manifest = read_manifest(made.manifest)
    if manifest.publish == "tree":
        write_tree(lake, manifest, lake.tree(manifest.dataset, manifest.version), served=False)
    return Past(version=manifest.version, digest=manifest.digest)


def _bury_all(lake: Lake, dataset: str) -> None:
    """Tombstones that a killed run did not come to write."""
    latest = stored_latest(lake, dataset)
    versions = [each.version for each in latest.succeeded]  # as many as there were requests, if there is a tree
    stones = map_threads(lambda version: read_tombstone(lake, dataset, version), versions)
    for version, stone in zip(versions, stones, strict=True):
        if stone is None:
            bury(lake, dataset, version, latest)


def _give_up_unpublished(lake: Lake, dataset: str, exchanged: Exchanged, why: str) -> None:
    """A version that uses a part which is about to go must not be published any more, and no run may begin with it."""
    if not exchanged:
        return
    latest = stored_latest(lake, dataset)
    succeeded = {each.version for each in latest.succeeded}
    known = {*latest.published(), *(each.version for each in latest.ablations), *succeeded}
    found = []
    for version in claimed_versions(lake, dataset):
        uri = lake.manifest(dataset, version)
        if version not in known and objects.exists(uri) and uses(read_manifest(uri), exchanged):
            found.append(version)
    if found:
        given_up = give_up(lake, dataset, found, None)
        collected = gone_versions(lake, dataset)
        for version in found:  # also those whose tombstone a killed run did not come to write
            if version in collected:
                bury(lake, dataset, version, why=why)
        for version in given_up:
            log.info("succeed: gave up %s %s, which was not published", dataset, version)
