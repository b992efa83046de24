"""What a run is told: one model for the stages of a source, one for those of a release, one for maintenance, one for opt-outs.

A stage is a plain function ``stage(lake, settings) -> Report``. The DAG's tasks, the Ray jobs and the command line all
call it with the same model, so that they cannot differ.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from smalti.config import Dataset, Engine, Source, Strict, load_dataset, load_engine, load_source
from smalti.errors import InputError
from smalti.profiles import SOURCE
from smalti.reasons import ALWAYS_SKIPPED, SkipReason

RUN_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$"
"""Batches and versions: each is a directory in the lake."""


class SourceRun(Strict):
    """One batch of one source on its way from inventory to part."""

    source: Source
    batch: str = Field(pattern=RUN_NAME, description="the partition, for instance a day")
    captioner: Engine
    classifier: Engine
    extra_captioners: tuple[Engine, ...] = Field(
        (), description="the profiles among the source's `extra_captions`: caption is run for each of them as well"
    )
    limit: int | None = Field(None, ge=1, description="take only the first rows of the inventory, to try things out")
    pilot: int | None = Field(
        None, ge=1, le=1000, description="stage pilot: caption so many random rows, and show them on a page"
    )
    max_gpu_hours: float | None = Field(
        None, gt=0, description="GPU hours that captioning a batch may cost, over all runs"
    )


class ReleaseRun(Strict):
    """One version of a dataset on its way from parts to LATEST."""

    dataset: Dataset
    sources: tuple[Source, ...]
    engines: tuple[Engine, ...] = Field((), description="every profile that the sources name")
    version: str | None = Field(None, pattern=RUN_NAME, description="empty: the next one")
    build: str | None = Field(
        None,
        description="curate: under one name always the parts that were there when it was first used; empty: those of now",
    )
    base: str | None = Field(None, description="curate, assemble: URI of the manifest that an ablation differs from")
    without: tuple[SkipReason, ...] = Field((), description="an ablation: reasons that are not applied")
    succeeds: str | None = Field(
        None, description="curate, assemble: URI of the manifest of a live version that this one takes the place of"
    )
    exchanged: dict[str, str] = Field(
        {}, description="curate, with `succeeds`: part that it used -> part in its place, <source>/<part>; empty: none"
    )
    curation: str | None = Field(None, description="assemble: URI of what curate decided")
    manifest: str | None = Field(None, description="verify, publish: URI of manifest.json")

    @field_validator("without", mode="before")
    @classmethod
    def _names_with_commas(cls, without: Any) -> Any:
        """A form gives one text."""
        return reasons_to_lift(without) if isinstance(without, str) else without


class MaintenanceRun(Strict):
    """What maintenance may do to a lake. Without `apply` it only says what it would do."""

    apply: bool = Field(False, description="do it; otherwise it is only said")
    sources: tuple[str, ...] = Field((), description="rewrite, merge: only parts of these; empty: all")
    parts: tuple[str, ...] = Field((), description="rewrite, merge: only these, <source>/<part>; empty: all")
    skip_limit: float = Field(
        0.10, ge=0, lt=1, description="rewrite: a part of which all releases leave out more than this share"
    )
    small_part_bytes: int = Field(1 << 30, ge=0, description="merge: parts with fewer bytes in their shards")
    grace_days: float = Field(
        7.0, ge=0, description="gc: what is younger stays, and what is marked goes after this time"
    )
    keep_versions: int | None = Field(
        None, ge=1, description="published versions of a dataset that stay live, the newest ones; empty: all"
    )


class LakeRun(Strict):
    """A look at the whole lake: there is nothing to set."""


class OptoutRun(Strict):
    """One request of the ledger on its way from preview to receipt."""

    request: str = Field(pattern="^[0-9a-f]{16}$", description="its id")
    confirmed_by: str | None = Field(None, max_length=200, description="apply: the person who has confirmed it")
    seen: str | None = Field(
        None,
        pattern="^[0-9a-f]{64}$",
        description="apply: digest of the preview that they have seen; empty: the newest",
    )
    grace_days: float = Field(
        7.0,
        ge=0,
        description="remove: days between the erasure of parts and the removal of the old ones, for runs to end; more, if the "
        "request was handed in with more",
    )


def source_run(
    name: str, batch: str, limit: int | None = None, root: Path | None = None, *, captioner: str | None = None
) -> SourceRun:
    """The settings of a source run from the files below `root` (default: smalti.config.home()).

    Args:
        captioner: another profile than the source file names.
    """
    source = load_source(name, root)
    _check_name(batch, "batch")
    return SourceRun(
        source=source,
        batch=batch,
        captioner=load_engine(captioner or source.captioner, "captioner", root),
        classifier=load_engine(source.classifier, "classifier", root),
        extra_captioners=tuple(
            load_engine(name, "captioner", root) for name in sorted(source.extra_captions) if name != SOURCE
        ),
        limit=limit,
    )


def release_run(
    name: str,
    version: str | None = None,
    root: Path | None = None,
    *,
    build: str | None = None,
    without: tuple[SkipReason, ...] = (),
    base: str | None = None,
) -> ReleaseRun:
    """The settings of a release run from the files below `root` (default: smalti.config.home())."""
    dataset = load_dataset(name, root)
    if version:
        _check_name(version, "version")
    sources = tuple(load_source(each.name, root) for each in dataset.sources)
    engines = {
        engine.name: engine
        for source in sources
        for engine in (
            load_engine(source.captioner, "captioner", root),
            load_engine(source.classifier, "classifier", root),
            *(load_engine(name, "captioner", root) for name in source.extra_captions if name != SOURCE),
        )
    }
    return ReleaseRun(
        dataset=dataset,
        sources=sources,
        engines=tuple(engines[k] for k in sorted(engines)),
        version=version or None,
        build=build,
        without=without,
        base=base,
    )


def reasons_to_lift(text: str) -> tuple[SkipReason, ...]:
    """Reasons that an ablation does not apply, from their names with commas between.

    Raises:
        InputError: no such reason, or one whose samples are never served.
    """
    names = sorted({each.strip() for each in text.split(",")} - {""})
    may = sorted(set(SkipReason) - ALWAYS_SKIPPED)
    for name in names:
        if name not in may:
            what = (
                "samples skipped for it are never served" if name in ALWAYS_SKIPPED else "there is no such skip reason"
            )
            raise InputError(f"{name!r} cannot be left out: {what}", "without", f"Use some of: {', '.join(may)}")
    return tuple(SkipReason(name) for name in names)


def _check_name(name: str, what: str) -> None:
    if not re.fullmatch(RUN_NAME, name):
        raise InputError(f"{name!r} cannot be a {what}", f"--{what}", "Use at most 100 letters, digits, _ . -")
