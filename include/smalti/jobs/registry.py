"""The stages by name: which settings each takes and where its function is.

A function is named by text, so that reading this table (a DAG file does, at every parse) imports none of the stages.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from smalti.accounting import Report
from smalti.errors import InputError
from smalti.lake import Lake
from smalti.settings import LakeRun, MaintenanceRun, OptoutRun, ReleaseRun, SourceRun

Settings = SourceRun | ReleaseRun | MaintenanceRun | OptoutRun | LakeRun


@dataclass(frozen=True)
class Stage:
    """One step of the line.

    Attributes:
        name: as the command line and the job know it.
        function: ``module:function``, taking (lake, settings) and returning a Report.
        settings: the model of its settings.
        uses_ray: whether it spreads its work with `compute.map_tasks`; others do not pay for joining the cluster.
    """

    name: str
    function: str
    settings: type[SourceRun] | type[ReleaseRun] | type[MaintenanceRun] | type[OptoutRun] | type[LakeRun]
    uses_ray: bool = False

    def run(self, lake: Lake, settings: Settings) -> Report:
        """Call the stage's function."""
        module, _, name = self.function.partition(":")
        function: Callable[[Lake, Any], Report] = getattr(importlib.import_module(module), name)
        return function(lake, settings)


SOURCE_STAGES = (
    Stage("stage", "smalti.sources.inventory:stage", SourceRun),
    Stage("ingest", "smalti.table.ingest:ingest", SourceRun, uses_ray=True),
    Stage("fingerprint", "smalti.table.fingerprint:fingerprint", SourceRun, uses_ray=True),
    Stage("pilot", "smalti.table.pilot:pilot", SourceRun, uses_ray=True),
    Stage("caption", "smalti.table.caption:caption", SourceRun, uses_ray=True),
    Stage("classify", "smalti.table.classify:classify", SourceRun, uses_ray=True),
    Stage("index", "smalti.table.index:index", SourceRun),
    Stage("shard", "smalti.shards.stage:shard", SourceRun, uses_ray=True),
)
RELEASE_STAGES = (
    Stage("curate", "smalti.curation.curate:curate", ReleaseRun),
    Stage("assemble", "smalti.release.assemble:assemble", ReleaseRun),
    Stage("verify", "smalti.release.verify:verify", ReleaseRun, uses_ray=True),
    Stage("publish", "smalti.release.publish:publish", ReleaseRun, uses_ray=True),
)
MAINTENANCE_STAGES = (
    Stage("plan", "smalti.maintenance.plan:plan", MaintenanceRun),
    Stage("rewrite", "smalti.maintenance.rewrite:rewrite", MaintenanceRun, uses_ray=True),
    Stage("merge", "smalti.maintenance.merge:merge", MaintenanceRun, uses_ray=True),
    Stage("gc", "smalti.maintenance.garbage:gc", MaintenanceRun),
)
OPTOUT_STAGES = (
    Stage("optout_preview", "smalti.optouts.preview:preview", OptoutRun),
    Stage("optout_apply", "smalti.optouts.apply:apply", OptoutRun),
    Stage("optout_prove", "smalti.optouts.apply:prove", OptoutRun),
    Stage("optout_erase", "smalti.optouts.erase:erase", OptoutRun, uses_ray=True),
    Stage("optout_remove", "smalti.optouts.remove:remove", OptoutRun, uses_ray=True),
    Stage("optout_look", "smalti.optouts.look:look", LakeRun),
)
STAGES = {stage.name: stage for stage in (*SOURCE_STAGES, *RELEASE_STAGES, *MAINTENANCE_STAGES, *OPTOUT_STAGES)}


def find_stage(name: str) -> Stage:
    """The stage of that name. Raises InputError."""
    if name not in STAGES:
        raise InputError(f"there is no stage {name!r}", "smalti.jobs", f"Use one of: {', '.join(STAGES)}")
    return STAGES[name]
