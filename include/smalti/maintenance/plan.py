"""What maintenance would do to a lake, told and not done."""

from __future__ import annotations

import time

from smalti.accounting import Report
from smalti.lake import Lake
from smalti.maintenance.garbage import GcReport, gc
from smalti.maintenance.merge import MergeReport, merge
from smalti.maintenance.rewrite import RewriteReport, rewrite
from smalti.settings import MaintenanceRun


class PlanReport(Report):
    """The reports of rewrite, merge and gc as they are now: rewriting leaves less to merge, and both leave more to collect."""

    rewrite: RewriteReport
    merge: MergeReport
    gc: GcReport


def plan(lake: Lake, run: MaintenanceRun) -> PlanReport:
    """Ask each stage what it would do. Nothing is written."""
    started = time.monotonic()
    only = run.model_copy(update={"apply": False})
    rewriting, merging, collecting = rewrite(lake, only), merge(lake, only), gc(lake, only)
    warnings = (*rewriting.warnings, *merging.warnings, *collecting.warnings)
    seconds = time.monotonic() - started
    return PlanReport(stage="plan", seconds=seconds, warnings=warnings, rewrite=rewriting, merge=merging, gc=collecting)
