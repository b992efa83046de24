"""LATEST: the version of a dataset that is served, and those that were before."""

from __future__ import annotations

from collections.abc import Collection

from smalti import objects
from smalti.errors import InputError
from smalti.lake import Lake
from smalti.release.skips import Model, canonical_json, parse


class Past(Model):
    """A version that was LATEST once."""

    version: str
    digest: str


class Latest(Model):
    """The object's content. `history` holds each former version once, the last one served at its end.

    `collected` names the versions that are served no more and never will be. It stands here, and not beside the versions, so
    that publishing a version and giving it up are decided by the same swap. `version` is empty before the first is published.
    """

    version: str
    digest: str
    history: tuple[Past, ...] = ()
    collected: tuple[str, ...] = ()

    def followed_by(self, version: str, digest: str) -> Latest:
        """What LATEST says after it has moved to another version."""
        others = [past for past in self.history if past.version not in (version, self.version)]
        now = [Past(version=self.version, digest=self.digest)] if self.version else []
        return Latest(version=version, digest=digest, history=(*others, *now), collected=self.collected)

    def published(self) -> tuple[str, ...]:
        """The version that is served and those that were, newest first."""
        return tuple(filter(None, (self.version, *(past.version for past in reversed(self.history)))))

    def encode(self) -> bytes:
        """The object that is stored; without `collected` where it is empty."""
        return canonical_json(self.model_dump(mode="json", exclude=set() if self.collected else {"collected"})) + b"\n"


def read_latest(lake: Lake, dataset: str) -> Latest | None:
    """The version that is served; None before the first one is published. Raises CorruptError."""
    found = objects.read_versioned(lake.latest(dataset))
    latest = None if found is None else parse(Latest, found[0], lake.latest(dataset))
    return latest if latest and latest.version else None


def live_versions(lake: Lake, dataset: str, keep: int | None = None) -> tuple[str, ...]:
    """Versions that LATEST's history keeps and no tombstone marks, newest first.

    Args:
        keep: only so many of them.
    """
    latest = read_latest(lake, dataset)
    published = latest.published() if latest else ()
    live = [each for each in published if not objects.exists(lake.release_tombstone(dataset, each))]
    return tuple(live if keep is None else live[:keep])


def gone_versions(lake: Lake, dataset: str) -> frozenset[str]:
    """Versions that were given up, whether or not their objects are still there; some have a tombstone besides."""
    found = objects.read_versioned(lake.latest(dataset))
    return frozenset() if found is None else frozenset(parse(Latest, found[0], lake.latest(dataset)).collected)


def is_gone(lake: Lake, dataset: str, version: str) -> bool:
    """Whether a version was given up, or a tombstone marks it."""
    return version in gone_versions(lake, dataset) or objects.exists(lake.release_tombstone(dataset, version))


def give_up(lake: Lake, dataset: str, unpublished: Collection[str], keep: int | None) -> tuple[str, ...]:
    """Let versions be served never again: those of `unpublished` that still are, and all but the newest `keep` published ones.

    Returns: the versions that this call gave up.
    """
    uri = lake.latest(dataset)
    while True:
        found = objects.read_versioned(uri)
        before = Latest(version="", digest="") if found is None else parse(Latest, found[0], uri)
        gone = expired(before, unpublished, keep)
        if not gone:
            return ()
        history = tuple(past for past in before.history if past.version not in gone)
        collected = tuple(sorted({*before.collected, *gone}))
        after = before.model_copy(update={"history": history, "collected": collected})
        if objects.swap_bytes(uri, after.encode(), None if found is None else found[1]):
            return gone


def expired(latest: Latest, unpublished: Collection[str], keep: int | None) -> tuple[str, ...]:
    """What `give_up` would give up."""
    published = latest.published()
    old = published[max(keep, 1) :] if keep is not None else ()
    never = [each for each in unpublished if each not in published and each not in latest.collected]
    return tuple(sorted({*old, *never}))


def move_latest(lake: Lake, dataset: str, version: str, digest: str) -> tuple[Latest, Latest | None]:
    """Let LATEST point to a version, whoever else moves it at the same time. No-op if it does already.

    Returns: what it says now, and what it said before (None: there was none).
    Raises:
        InputError: the version was given up.
    """
    uri = lake.latest(dataset)
    while True:
        found = objects.read_versioned(uri)
        before = None if found is None else parse(Latest, found[0], uri)
        if before is not None and version in before.collected:
            raise InputError(
                f"version {version} of {dataset} was given up: maintenance collects it, or has done so",
                uri,
                "Build a new version; its content may be the same",
            )
        if before is not None and (before.version, before.digest) == (version, digest):
            return before, before
        after = before.followed_by(version, digest) if before else Latest(version=version, digest=digest)
        if objects.swap_bytes(uri, after.encode(), None if found is None else found[1]):
            return after, before if before and before.version else None
