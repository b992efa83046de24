"""LATEST: the version of a dataset that is served, and those that were before."""

from __future__ import annotations

from smalti import objects
from smalti.lake import Lake
from smalti.release.skips import Model, canonical_json, parse


class Past(Model):
    """A version that was LATEST once."""

    version: str
    digest: str


class Latest(Model):
    """The object's content. `history` holds each former version once, the last one served at its end."""

    version: str
    digest: str
    history: tuple[Past, ...] = ()

    def followed_by(self, version: str, digest: str) -> Latest:
        """What LATEST says after it has moved to another version."""
        others = [past for past in self.history if past.version not in (version, self.version)]
        return Latest(version=version, digest=digest, history=(*others, Past(version=self.version, digest=self.digest)))


def read_latest(lake: Lake, dataset: str) -> Latest | None:
    """The version that is served; None before the first one is published. Raises CorruptError."""
    found = objects.read_versioned(lake.latest(dataset))
    return None if found is None else parse(Latest, found[0], lake.latest(dataset))


def move_latest(lake: Lake, dataset: str, version: str, digest: str) -> tuple[Latest, Latest | None]:
    """Let LATEST point to a version, whoever else moves it at the same time. No-op if it does already.

    Returns: what it says now, and what it said before (None: there was none).
    """
    uri = lake.latest(dataset)
    while True:
        found = objects.read_versioned(uri)
        before = None if found is None else parse(Latest, found[0], uri)
        if before is not None and (before.version, before.digest) == (version, digest):
            return before, before
        after = before.followed_by(version, digest) if before else Latest(version=version, digest=digest)
        data = canonical_json(after.model_dump(mode="json")) + b"\n"
        if objects.swap_bytes(uri, data, None if found is None else found[1]):
            return after, before
