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


class Ablation(Model):
    """A version that is kept beside the one that it differs from, and never served as the dataset."""

    version: str
    digest: str
    base: str


class Latest(Model):
    """The object's content. `history` holds each former version once, the last one served at its end.

    `collected` names the versions that are served no more and never will be. It stands here, and not beside the versions, so
    that publishing a version and giving it up are decided by the same swap. `version` is empty before the first is published.
    """

    version: str
    digest: str
    history: tuple[Past, ...] = ()
    collected: tuple[str, ...] = ()
    ablations: tuple[Ablation, ...] = ()

    def followed_by(self, version: str, digest: str) -> Latest:
        """What LATEST says after it has moved to another version."""
        others = [past for past in self.history if past.version not in (version, self.version)]
        now = [Past(version=self.version, digest=self.digest)] if self.version else []
        return self.model_copy(update={"version": version, "digest": digest, "history": (*others, *now)})

    def published(self) -> tuple[str, ...]:
        """The version that is served and those that were, newest first."""
        return tuple(filter(None, (self.version, *(past.version for past in reversed(self.history)))))

    def kept(self, keep: int | None = None) -> tuple[str, ...]:
        """Published versions, only so many if `keep` says so, newest first; then their ablations."""
        published = self.published() if keep is None else self.published()[: max(keep, 1)]
        return (*published, *(each.version for each in self.ablations if each.base in published))

    def encode(self) -> bytes:
        """The object that is stored; without `collected` and `ablations` where they are empty."""
        empty = {name for name in ("collected", "ablations") if not getattr(self, name)}
        return canonical_json(self.model_dump(mode="json", exclude=empty)) + b"\n"


def read_latest(lake: Lake, dataset: str) -> Latest | None:
    """The version that is served; None before the first one is published. Raises CorruptError."""
    found = objects.read_versioned(lake.latest(dataset))
    latest = None if found is None else parse(Latest, found[0], lake.latest(dataset))
    return latest if latest and latest.version else None


def live_versions(lake: Lake, dataset: str, keep: int | None = None) -> tuple[str, ...]:
    """Versions that LATEST's history keeps and no tombstone marks, newest first, and then their ablations.

    Args:
        keep: only so many of those that were published.
    """
    latest = read_latest(lake, dataset)
    kept = latest.kept(keep) if latest else ()
    return tuple(each for each in kept if not objects.exists(lake.release_tombstone(dataset, each)))


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
        ablations = tuple(each for each in before.ablations if each.version not in gone)
        after = before.model_copy(update={"history": history, "collected": collected, "ablations": ablations})
        if objects.swap_bytes(uri, after.encode(), None if found is None else found[1]):
            return gone


def expired(latest: Latest, unpublished: Collection[str], keep: int | None) -> tuple[str, ...]:
    """What `give_up` would give up."""
    known, kept = {*latest.published(), *(each.version for each in latest.ablations)}, latest.kept(keep)
    old = [each for each in known if each not in kept]
    never = [each for each in unpublished if each not in known and each not in latest.collected]
    return tuple(sorted({*old, *never}))


def keep_ablation(lake: Lake, dataset: str, ablation: Ablation) -> Latest:
    """Keep an ablation as long as its base, whoever else moves LATEST at the same time. No-op if it is kept.

    Raises:
        InputError: it was given up, or its base is none that was published.
    """
    uri = lake.latest(dataset)
    while True:
        found = objects.read_versioned(uri)
        before = Latest(version="", digest="") if found is None else parse(Latest, found[0], uri)
        if ablation.version in before.collected or ablation.base not in before.published():
            raise InputError(
                f"ablation {ablation.version} of {dataset} cannot be kept: it, or {ablation.base}, was given up or never published",
                uri,
                "Build it anew, of a version that is served or was",
            )
        if ablation in before.ablations:
            return before
        after = before.model_copy(update={"ablations": (*before.ablations, ablation)})
        if objects.swap_bytes(uri, after.encode(), None if found is None else found[1]):
            return after


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
