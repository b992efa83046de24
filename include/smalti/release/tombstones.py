"""Tombstones: what a version that is served no more says of itself, and where whoever trained on it goes on.

    releases/<dataset>/<version>/tombstone.json     Tombstone, create-only

LATEST decides what is given up; the tombstone says it beside the version, for ever, also after LATEST's object was restored from an
older copy. A version that was succeeded keeps what a checkpoint of it resumes by (see `resumed_by`) as long as the last of its
successors is live. Imports stay light: training runs may read these.
"""

from __future__ import annotations

from collections.abc import Iterator

from smalti import objects
from smalti.lake import Lake
from smalti.release.latest import Latest, Succession, gone_error, live_versions, stored_latest
from smalti.release.manifest import read_manifest, skip_file_uri
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


def bury(lake: Lake, dataset: str, version: str, latest: Latest | None = None) -> Tombstone:
    """Write the tombstone of a version that LATEST has given up, as LATEST says; the first that is written counts."""
    said = (latest or stored_latest(lake, dataset)).successor(version)
    stone = Tombstone(why=COLLECTED) if said is None else Tombstone(why=said.why, successor=said.by or None)
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
        said = Succession(version=version, by=stone.successor or "", why=stone.why)
        latest = latest.model_copy(update={"succeeded": (*latest.succeeded, said)})
    raise gone_error(latest, dataset, version, where)


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


def resumable_versions(lake: Lake, dataset: str) -> frozenset[str]:
    """Versions that were given up and that checkpoints may still be of, see `is_resumable`."""
    latest = stored_latest(lake, dataset)
    live = frozenset(live_versions(lake, dataset))
    return frozenset(each for each in latest.collected if successor_of(lake, dataset, each, latest) in live)
