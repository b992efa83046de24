"""Collections of garbage, each a folder of create-only objects: marked, then swept, then done.

    gc/<name>/mark.json       what would go, why, and since when that is known
    gc/<name>/sweep.json      from now on nothing that is listed may be relied upon
    gc/<name>/deleting.json   what goes, object by object, and what was spared
    gc/<name>/done.json       all of it is gone

Why a release never loses what it needs, without a lock: whoever assembles creates the version's claim first and looks for an
open sweep afterwards (`refuse_doomed`); whoever sweeps creates sweep.json first and looks for claims and manifests afterwards.
Both stores show an object to everybody as soon as it is created, so of the two one sees the other: either assemble finds the
sweep and refuses, before anything is written, or the sweep finds the claim or the manifest and spares what it needs. Imports
stay light: assemble reads this.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from pydantic import AwareDatetime, Field, ValidationError

from smalti import objects
from smalti.config import Strict
from smalti.errors import ConflictError, CorruptError
from smalti.lake import Lake

Kind = Literal["attempt", "unfinished part", "part", "version", "skip file", "curation"]


class Doomed(Strict):
    """Something that would be deleted: an object, or (parts and versions) all below a folder."""

    kind: Kind
    uri: str
    why: str
    objects: int = Field(ge=0)
    bytes: int = Field(ge=0)


class Mark(Strict):
    """What was garbage at a time."""

    created: AwareDatetime
    doomed: tuple[Doomed, ...] = Field(min_length=1)

    def encode(self) -> bytes:
        return (self.model_dump_json(indent=1) + "\n").encode()


@dataclass(frozen=True)
class OpenCollection:
    """One collection, and how far it has come."""

    name: str
    steps: frozenset[str]

    @property
    def swept(self) -> bool:
        return "sweep.json" in self.steps

    @property
    def done(self) -> bool:
        return "done.json" in self.steps


def unfinished(lake: Lake) -> list[OpenCollection]:
    """Collections that are marked and not done, the oldest first."""
    steps = defaultdict(set)
    for each in objects.list_objects(lake.collections()):
        name, _, step = each.uri.removeprefix(f"{lake.collections()}/").partition("/")
        steps[name].add(step)
    found = [OpenCollection(name, frozenset(each)) for name, each in sorted(steps.items())]
    return [each for each in found if not each.done and "mark.json" in each.steps]


def read_mark(lake: Lake, name: str) -> Mark:
    """Raises CorruptError."""
    uri = lake.collection(name, "mark.json")
    try:
        return Mark.model_validate_json(objects.read_bytes(uri))
    except ValidationError as error:
        raise CorruptError(f"this is not a mark ({error.errors()[0]['msg']})", uri, "Restore it") from error


def refuse_doomed(lake: Lake, needed: Collection[str]) -> None:
    """To be called after a claim: make sure that all of this is there, and that nobody is about to delete it.

    Args:
        needed: URIs of parts' folders, skip files and curations.
    Raises:
        ConflictError: it is being deleted.
    """
    wanted = set(needed)
    for collection in unfinished(lake):
        if collection.swept:
            for doomed in read_mark(lake, collection.name).doomed:
                if doomed.uri in wanted:
                    raise ConflictError(
                        f"a collection of garbage ({collection.name}) may be deleting this {doomed.kind}",
                        doomed.uri,
                        "Let it end (smalti gc --apply goes on with one that was killed), then curate and assemble again",
                    )
