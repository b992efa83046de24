"""Tombstones: what a version that is served no more says of itself, and where whoever trained on it goes on.

    releases/<dataset>/<version>/tombstone.json     Tombstone, create-only

LATEST decides what is given up; the tombstone says it beside the version, for ever, also after LATEST's object was restored from an
older copy. A version that was succeeded keeps what a checkpoint of it resumes by (see `resumed_by`) as long as the last of its
successors is live. Imports stay light: training runs may read these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from smalti import objects
from smalti.errors import InputError
from smalti.lake import Lake
from smalti.release.latest import Latest, Succession, gone_error, live_versions, stored_latest
from smalti.release.manifest import read_manifest, skip_file_uri
from smalti.release.optouts import lake_of
from smalti.release.skips import Model, canonical_json, parse

COLLECTED = "collected as garbage"


class Tombstone(Model):
    """tombstone.json. `successor`: the version that took its place; empty: none did."""

    why: str
    successor: str | None = None

    def encode(self) -> bytes:
        return canonical_json(self.model_dump(mode="json", exclude_none=True)) + b"\n"


def read_tombstone(lake: Lake, dataset: str, version: str) -> Tombstone | None:
    """None: the version has none. Raises CorruptError."""
    uri = lake.release_tombstone(dataset, version)
    found = objects.read_versioned(uri)
    return None if found is None else parse(Tombstone, found[0], uri)


def bury(lake: Lake, dataset: str, version: str, latest: Latest | None = None, why: str = COLLECTED) -> Tombstone:
    """Write the tombstone of a version that LATEST has given up, as LATEST says; the first that is written counts.

    Args:
        why: of a version of which LATEST says no more than that.
    """
    said = (latest or stored_latest(lake, dataset)).successor(version)
    stone = Tombstone(why=why) if said is None else Tombstone(why=said.why, successor=said.by or None)
    objects.create_bytes(lake.release_tombstone(dataset, version), stone.encode())
    return stone


def successor_of(lake: Lake, dataset: str, version: str, latest: Latest | None = None) -> str | None:
    """The last of a version's successors; None: it has none, or nothing was left of one.

    Args:
        latest: what LATEST says, if it was read: a killed run may have left it ahead of the tombstones.
    """
    latest = latest or stored_latest(lake, dataset)
    seen, now = {version}, version
    while True:
        said = latest.successor(now)
        stone = None if said else read_tombstone(lake, dataset, now)
        following = said.by if said else stone.successor if stone else None
        if not following:
            return now if said is None and stone is None and now != version else None
        if following in seen:
            return None
        seen.add(following)
        now = following


def refuse_gone(lake: Lake, dataset: str, version: str, where: str) -> None:
    """Raises InputError, naming the successor if there is one, for a version that was given up or has a tombstone."""
    latest = stored_latest(lake, dataset)
    stone = read_tombstone(lake, dataset, version)
    if version not in latest.collected and stone is None:
        return
    if latest.successor(version) is None and stone is not None and stone.why != COLLECTED:
        if stone.successor is None:
            what = f"version {version} of {dataset} was given up: {stone.why}"
            raise InputError(what, where, "Use another version, or build one")
        said = Succession(version=version, by=stone.successor, why=stone.why)
        latest = latest.model_copy(update={"succeeded": (*latest.succeeded, said)})
    raise gone_error(latest, dataset, version, where)


def refuse_succeeded(manifest_uri: str) -> None:
    """Raises InputError, naming the successor, if another version took the place of the one of this manifest, there or not.

    What else was given up may be looked at as long as its objects are there.
    """
    folder, _, _ = manifest_uri.rpartition("/")
    dataset, _, version = folder.rpartition("/releases/")[2].partition("/")
    if version and "/" not in version:
        lake = lake_of(manifest_uri)
        stone = read_tombstone(lake, dataset, version)
        if stone is not None and stone.why != COLLECTED:
            refuse_gone(lake, dataset, version, manifest_uri)


def is_resumable(lake: Lake, dataset: str, version: str) -> bool:
    """Whether checkpoints of a version that was given up may go on, with its last successor: as long as that one is live."""
    successor = successor_of(lake, dataset, version)
    return successor is not None and successor in live_versions(lake, dataset)


def resumed_by(lake: Lake, dataset: str, version: str) -> Iterator[str]:
    """URIs of what a checkpoint of a version needs to be resumed with its successor; folders end with `/`. They hold no ids."""
    uri = lake.manifest(dataset, version)
    yield uri
    yield f"{lake.release(dataset, version)}/streams/"
    if objects.exists(uri):
        for stream in read_manifest(uri).streams:
            if stream.skip_file is not None:
                yield skip_file_uri(uri, stream.skip_file)


def stays(lake: Lake, dataset: str, version: str) -> tuple[str, ...]:
    """URIs of what stays of a version that was given up, in its folder; folders end with `/`.

    Its claim and its tombstone stay for ever: no other content gets its name. The rest stays as long as checkpoints may need it.
    """
    for_ever = (lake.claim(dataset, version), lake.release_tombstone(dataset, version))
    if not is_resumable(lake, dataset, version):
        return for_ever
    folder = f"{lake.release(dataset, version)}/"
    return (*for_ever, *(uri for uri in resumed_by(lake, dataset, version) if uri.startswith(folder)))


def is_among(uri: str, kept: Iterable[str]) -> bool:
    """Whether an object is one of these, or below one of these folders."""
    return any(uri == each or (each.endswith("/") and uri.startswith(each)) for each in kept)


def resumable_versions(lake: Lake, dataset: str) -> frozenset[str]:
    """Versions that were given up and that checkpoints may still be of, see `is_resumable`."""
    latest = stored_latest(lake, dataset)
    live = frozenset(live_versions(lake, dataset))
    return frozenset(each for each in latest.collected if successor_of(lake, dataset, each, latest) in live)
