"""What a build works on, fixed when it starts: parts that appear while it runs are the next build's.

    runs/release_<dataset>/<name>/curate/inputs.json    create-only: the first try of a build writes it, every later one reads it

So a build that was killed ends in the same release as one that was not, whatever has arrived meanwhile. A build without a
name works on what is there now; an ablation on what its base was made of.
"""

from __future__ import annotations

from pydantic import Field

from smalti import objects
from smalti.curation.load import parts_of
from smalti.lake import Lake
from smalti.release.manifest import read_manifest
from smalti.release.optouts import newest_position
from smalti.release.skips import Model, canonical_json, parse
from smalti.settings import ReleaseRun
from smalti.shards.part import Part, read_part


class Inputs(Model):
    """Attributes:
    parts: `source/part`, in the order of supersession.
    missing: sources without a part.
    optouts: position of the opt-outs that apply.
    """

    parts: tuple[str, ...] = Field(min_length=1)
    missing: tuple[str, ...] = ()
    optouts: int = Field(0, ge=0)


def settle_inputs(lake: Lake, run: ReleaseRun) -> Inputs:
    """The inputs of a build.

    Raises:
        InputError: no source has a part.
        MissingObject, CorruptError: the manifest that an ablation is based on.
    """
    if run.base:
        base = read_manifest(run.base)
        parts = tuple(f"{source.name}/{part.name}" for source in base.sources for part in source.parts)
        return Inputs(parts=parts, optouts=max(base.optouts, newest_position(lake)))
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


def _now(lake: Lake, run: ReleaseRun) -> Inputs:
    parts, missing = parts_of(lake, [source.name for source in run.dataset.sources])
    return Inputs(
        parts=tuple(f"{part.source}/{part.name}" for part in parts),
        missing=tuple(missing),
        optouts=newest_position(lake),
    )
