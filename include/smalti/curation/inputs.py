"""What a build works on, fixed when it starts: parts that appear while it runs are the next build's.

    runs/release_<dataset>/<name>/curate/inputs.json    create-only: the first try of a build writes it, every later one reads it

So a build that was killed ends in the same release as one that was not, whatever has arrived meanwhile. A build without a
name works on what is there now; an ablation on what its base was made of.
"""

from __future__ import annotations

from pydantic import Field

from smalti import objects
from smalti.config import Dataset
from smalti.curation.load import parts_of
from smalti.errors import InputError
from smalti.lake import Lake
from smalti.release.latest import read_latest
from smalti.release.manifest import Manifest, read_manifest
from smalti.release.optouts import newest_position
from smalti.release.skips import Model, canonical_json, parse
from smalti.settings import ReleaseRun
from smalti.shards.part import Part, read_part


class Inputs(Model):
    """Attributes:
    parts: `source/part`, in the order of supersession.
    missing: sources without a part.
    optouts: position of the opt-outs that apply.
    base: of an ablation, the version that it differs from.
    """

    parts: tuple[str, ...] = Field(min_length=1)
    missing: tuple[str, ...] = ()
    optouts: int = Field(0, ge=0)
    base: str | None = None


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
    return parse(Inputs, found[0], uri)


def read_inputs(lake: Lake, inputs: Inputs) -> list[Part]:
    """The parts of a build.

    Raises:
        MissingObject: one was collected meanwhile.
    """
    return [read_part(lake, *name.split("/")) for name in inputs.parts]


def ablated(lake: Lake, dataset: str, base: str) -> Dataset:
    """The dataset of an ablation: what its base was made with. It has no reason sets of its own."""
    manifest = read_manifest(lake.manifest(dataset, base))
    return Dataset.model_validate(manifest.settings | {"reason_sets": ()})


def _now(lake: Lake, run: ReleaseRun) -> Inputs:
    if run.without:
        base = _base(lake, run)
        names = tuple(f"{source.name}/{part.name}" for source in base.sources for part in source.parts)
        return Inputs(parts=names, optouts=max(base.optouts, newest_position(lake)), base=base.version)
    parts, missing = parts_of(lake, [source.name for source in run.dataset.sources])
    return Inputs(
        parts=tuple(f"{part.source}/{part.name}" for part in parts),
        missing=tuple(missing),
        optouts=newest_position(lake),
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
