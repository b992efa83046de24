"""What a build works on, fixed when it starts: parts that appear while it runs are the next build's.

    runs/release_<dataset>/<name>/curate/inputs.json    create-only: the first try of a build writes it, every later one reads it

So a build that was killed ends in the same release as one that was not, whatever has arrived meanwhile. A build without a
name works on what is there now; an ablation on what its base was made of, a successor on what the version before was made of.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from pydantic import Field

from smalti import objects
from smalti.config import Dataset
from smalti.curation.load import parts_of
from smalti.curation.record import read_curation
from smalti.errors import InputError, MissingObject
from smalti.lake import Lake
from smalti.optouts.ledger import settle
from smalti.reasons import SkipReason
from smalti.release.latest import read_latest
from smalti.release.manifest import Manifest, beside, read_manifest
from smalti.release.skips import Model, canonical_json, parse
from smalti.settings import ReleaseRun
from smalti.shards.part import Part, read_part


class Inputs(Model):
    """Attributes:
    parts: `source/part`, in the order of supersession.
    missing: sources without a part.
    optouts: position of the opt-outs that apply.
    base: of an ablation, the version that it differs from.
    without: of an ablation, what is not applied.
    asked: the base that was asked for by name.
    succeeds: the version that this one takes the place of.
    """

    parts: tuple[str, ...] = Field(min_length=1)
    missing: tuple[str, ...] = ()
    optouts: int = Field(0, ge=0)
    base: str | None = None
    without: tuple[SkipReason, ...] = ()
    asked: str | None = None
    succeeds: str | None = None


class NothingLeft(InputError):
    """Everything that a release could serve is left out, or is not there any more."""


def settle_inputs(lake: Lake, run: ReleaseRun) -> Inputs:
    """The inputs of a build.

    Raises:
        InputError: no source has a part, or there is no version that an ablation could differ from.
    """
    if not run.build:
        return _now(lake, run)
    uri = lake.build(run.dataset.name, run.build)
    found = objects.read_versioned(uri)
    if found is None:
        objects.create_bytes(uri, canonical_json(_now(lake, run).model_dump(mode="json")) + b"\n")
        found = (objects.read_bytes(uri), "")  # another try of the same build may have been faster
    inputs = parse(Inputs, found[0], uri)
    begun = _told(inputs.without, inputs.asked, inputs.succeeds)
    asked = _told(run.without, run.base, _succeeded(lake, run).version if run.succeeds else None)
    if begun != asked:
        raise InputError(
            f"build {run.build} was begun {begun}, not {asked}",
            uri,
            "Begin another build under another name",
        )
    return inputs


def _told(without: Sequence[SkipReason], base: str | None, succeeds: str | None) -> str:
    what = f"as an ablation without {', '.join(without)}" if without else "as a whole release"
    return f"{what}{f' of {base}' if base else ''}{f' in the place of {succeeds}' if succeeds else ''}"


def read_inputs(lake: Lake, inputs: Inputs) -> list[Part]:
    """The parts of a build.

    Raises:
        InputError: one was collected meanwhile: a name holds as long as maintenance lets its parts be.
    """
    try:
        return [read_part(lake, *name.split("/")) for name in inputs.parts]
    except MissingObject as error:
        raise InputError(
            "a part that this build was begun with is not there any more",
            error.where,
            "Begin another build, under another name",
        ) from error


def made_with(manifest: Manifest) -> Dataset:
    """The dataset as a version was made with it."""
    return Dataset.model_validate(manifest.settings)


def ablated(lake: Lake, dataset: str, base: str) -> Dataset:
    """The dataset of an ablation: what its base was made with. It has no reason sets of its own."""
    manifest = read_manifest(lake.manifest(dataset, base))
    return Dataset.model_validate(manifest.settings | {"reason_sets": ()})


def priorities_of(lake: Lake, dataset: str, base: str) -> dict[str, int] | None:
    """How the base of an ablation ranked copies of its sources; None: its curation cannot be read any more."""
    uri = lake.manifest(dataset, base)
    curation = read_manifest(uri).provenance.curation
    with contextlib.suppress(InputError, MissingObject):
        return dict(read_curation(beside(uri, curation)).settings["priorities"]) if curation else None
    return None


def _now(lake: Lake, run: ReleaseRun) -> Inputs:
    if run.without:
        base = _base(lake, run)
        return Inputs(
            parts=parts_in(base),
            optouts=max(base.optouts, settle(lake)),
            base=base.version,
            without=run.without,
            asked=run.base,
            succeeds=_succeeded(lake, run).version if run.succeeds else None,
        )
    if run.succeeds:
        return _succeeding(lake, run)
    parts, missing = parts_of(lake, [source.name for source in run.dataset.sources])
    return Inputs(
        parts=tuple(f"{part.source}/{part.name}" for part in parts),
        missing=tuple(missing),
        optouts=settle(lake),  # after the listing: what is in force has been compared with every part of it
    )


def _base(lake: Lake, run: ReleaseRun) -> Manifest:
    """The version that an ablation differs from: the one that is named, or else the one that is served."""
    uri, dataset = run.base, run.dataset.name
    if uri is None:
        latest = read_latest(lake, dataset)
        if latest is None:
            raise InputError(
                "there is no version that an ablation could differ from",
                lake.latest(dataset),
                "Publish one first, or name a manifest with --base",
            )
        uri = lake.manifest(dataset, latest.version)
    base = read_manifest(uri)
    if uri != lake.manifest(dataset, base.version) or base.without:
        what = "itself an ablation" if base.without else f"no version of {dataset} in this lake"
        raise InputError(f"the base is {what}", uri, f"Name a whole version of {dataset}")
    return base


def parts_in(manifest: Manifest, exchanged: Mapping[str, str] = MappingProxyType({})) -> tuple[str, ...]:
    """`source/part` of a version's parts, in its order, with what has taken their places (empty: nothing, they go)."""
    found = []
    for source in manifest.sources:
        for part in source.parts:
            name = f"{source.name}/{part.name}"
            while name in exchanged:
                name = exchanged[name]
            found.append(name)
    return tuple(filter(None, dict.fromkeys(found)))


def _succeeding(lake: Lake, run: ReleaseRun) -> Inputs:
    old = _succeeded(lake, run)
    parts = parts_in(old, run.exchanged)
    if not parts:
        raise NothingLeft(
            f"nothing is left of {old.dataset} {old.version}: no part of it", str(run.succeeds), "Build a new version"
        )
    sources = {name.partition("/")[0] for name in parts}
    return Inputs(
        parts=parts,
        missing=tuple(sorted(source.name for source in run.dataset.sources if source.name not in sources)),
        optouts=max(old.optouts, settle(lake)),
        succeeds=old.version,
    )


def _succeeded(lake: Lake, run: ReleaseRun) -> Manifest:
    uri = str(run.succeeds)
    old = read_manifest(uri)
    if uri != lake.manifest(run.dataset.name, old.version):
        raise InputError(
            f"this is not a version of {run.dataset.name} in this lake", uri, "Name one that is live, by its manifest"
        )
    return old
