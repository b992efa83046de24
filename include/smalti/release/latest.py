"""LATEST: the version of a dataset that is served, and those that were before."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from smalti import objects
from smalti.errors import ConflictError, InputError
from smalti.lake import Lake
from smalti.release.skips import Model, canonical_json, parse
from smalti.threads import map_threads


class Past(Model):
    """A version that was LATEST once."""

    version: str
    digest: str


class Ablation(Model):
    """A version that is kept beside the one that it differs from, and never served as the dataset."""

    version: str
    digest: str
    base: str


class Succession(Model):
    """A version that was live, and the one that took its place.

    Attributes:
        by: empty: nothing was left for a successor.
        why: for people.
    """

    version: str
    by: str = ""
    why: str


class Latest(Model):
    """The object's content. `history` holds each former version once, the last one served at its end.

    `collected` names the versions that are served no more and never will be. It stands here, and not beside the versions, so
    that publishing a version and giving it up are decided by the same swap. `succeeded` says of those among them that were live what
    took their places. `version` is empty before the first is published, and after all that the served one held was opted out.
    """

    version: str
    digest: str
    history: tuple[Past, ...] = ()
    collected: tuple[str, ...] = ()
    ablations: tuple[Ablation, ...] = ()
    succeeded: tuple[Succession, ...] = ()

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

    def with_successors(self, successors: Mapping[str, Past | None], why: str) -> Latest:
        """What LATEST says after live versions were exchanged for their successors (None: nothing is left), each at its place.

        A version that is not live any more is passed over; ablations go where their base goes.
        """
        live = {*self.published(), *(each.version for each in self.ablations)}
        old = {version: new for version, new in successors.items() if version in live}
        now: Past | None = Past(version=self.version, digest=self.digest) if self.version else None
        now = old.get(self.version, now)
        history: list[Past] = []
        for past in self.history:
            new = old.get(past.version, past)
            if new is not None and new != now:
                history = [*(each for each in history if each != new), new]
        published = {past.version for past in (*history, *filter(None, [now]))}
        ablations: dict[str, Ablation] = {}
        for each in self.ablations:
            base = old.get(each.base, Past(version=each.base, digest=""))
            new = old.get(each.version, Past(version=each.version, digest=each.digest))
            if base is None or base.version not in published:
                old[each.version] = None
            elif new is not None:
                ablations[new.version] = Ablation(version=new.version, digest=new.digest, base=base.version)
        said = [
            Succession(version=version, by=new.version if new else "", why=why) for version, new in sorted(old.items())
        ]
        return Latest(
            version=now.version if now else "",
            digest=now.digest if now else "",
            history=tuple(history),
            collected=tuple(sorted({*self.collected, *old})),
            ablations=tuple(ablations.values()),
            succeeded=(*self.succeeded, *said),
        )

    def successor(self, version: str) -> Succession | None:
        """What took a version's place; None: nothing did."""
        return next((each for each in self.succeeded if each.version == version), None)

    def encode(self) -> bytes:
        """The object that is stored; without what is empty of `collected`, `ablations` and `succeeded`."""
        empty = {name for name in ("collected", "ablations", "succeeded") if not getattr(self, name)}
        return canonical_json(self.model_dump(mode="json", exclude=empty)) + b"\n"


def read_latest(lake: Lake, dataset: str) -> Latest | None:
    """The version that is served; None before the first one is published, and if nothing is left of it. Raises CorruptError."""
    latest = stored_latest(lake, dataset)
    return latest if latest.version else None


def stored_latest(lake: Lake, dataset: str) -> Latest:
    """All that LATEST says, even if it names no version now. Raises CorruptError."""
    found = objects.read_versioned(lake.latest(dataset))
    return Latest(version="", digest="") if found is None else parse(Latest, found[0], lake.latest(dataset))


def live_versions(lake: Lake, dataset: str, keep: int | None = None) -> tuple[str, ...]:
    """Versions that LATEST's history keeps and no tombstone marks, newest first, and then their ablations.

    Args:
        keep: only so many of those that were published.
    """
    kept = stored_latest(lake, dataset).kept(keep)
    stones = map_threads(lambda each: objects.exists(lake.release_tombstone(dataset, each)), kept)
    return tuple(each for each, stone in zip(kept, stones, strict=True) if not stone)


def gone_versions(lake: Lake, dataset: str) -> frozenset[str]:
    """Versions that were given up, whether or not their objects are still there; some have a tombstone besides."""
    return frozenset(stored_latest(lake, dataset).collected)


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
        if any(each.version == ablation.version for each in before.ablations):
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
            raise gone_error(before, dataset, version, uri)
        if before is not None and (before.version, before.digest) == (version, digest):
            return before, before
        after = before.followed_by(version, digest) if before else Latest(version=version, digest=digest)
        if objects.swap_bytes(uri, after.encode(), None if found is None else found[1]):
            return after, before if before and before.version else None


def exchange(lake: Lake, dataset: str, successors: Mapping[str, Past | None], why: str) -> Latest:
    """Let successors take the places of live versions, all by one swap, whoever else moves LATEST at the same time.

    Args:
        successors: version -> what takes its place; None: nothing is left of it.
    Returns: what LATEST says now; `successor` tells which versions were live and were exchanged.
    Raises:
        ConflictError: a successor was given up meanwhile.
    """
    uri = lake.latest(dataset)
    while True:
        found = objects.read_versioned(uri)
        before = Latest(version="", digest="") if found is None else parse(Latest, found[0], uri)
        for new in successors.values():
            if new is not None and new.version in before.collected:
                raise ConflictError(
                    f"version {new.version} was given up before it succeeded another", uri, "Run it again"
                )
        after = before.with_successors(successors, why)
        if after == before or objects.swap_bytes(uri, after.encode(), None if found is None else found[1]):
            return after


def gone_error(latest: Latest, dataset: str, version: str, where: str) -> InputError:
    """Why a version that was given up is not served again, and what to use."""
    said, now = latest.successor(version), version
    while (more := latest.successor(now)) is not None:
        now = more.by
    if said is None:
        return InputError(
            f"version {version} of {dataset} was given up: maintenance collects it, or has done so",
            where,
            "Build a new version; its content may be the same",
        )
    if not now:
        return InputError(
            f"nothing is left of version {version} of {dataset}: {said.why}",
            where,
            "Build a new version, of other samples",
        )
    return InputError(f"version {version} of {dataset} was succeeded by {now}: {said.why}", where, f"Use {now}")
