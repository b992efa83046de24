"""A stage's settings from what a DAG says: names of files in include/, and what the run's form and XComs hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smalti.jobs.registry import find_stage
from smalti.jobs.spec import validate_settings
from smalti.settings import LakeRun, MaintenanceRun, OptoutRun, SourceRun, release_run, source_run

EMPTY = ("", "None", None)
"""What a template renders of a field of the form that was left empty."""


def resolve_settings(stage: str, given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The settings of a stage, complete and checked, as JSON.

    A field that a template left empty ("", "None") is one that was not given. A source or dataset is given by its name;
    the files are read now, on the worker, so that a task runs with what they say when it starts.

    Args:
        given: of a source's stage `source` and `batch`, of a release's `dataset`; further fields of the model as they are.
        where: named by errors.

    Raises:
        InputError: a file, or a field.
    """
    fields = {key: value for key, value in given.items() if value not in EMPTY}
    if find_stage(stage).settings in (MaintenanceRun, OptoutRun, LakeRun):
        return validate_settings(stage, fields, where).model_dump(mode="json")
    if find_stage(stage).settings is SourceRun:
        whole = source_run(fields.pop("source"), "unnamed", captioner=fields.pop("captioner", None)).model_dump(
            mode="json"
        ) | {"batch": None}
    else:
        whole = release_run(fields.pop("dataset")).model_dump(mode="json")
    return validate_settings(stage, whole | fields, where).model_dump(mode="json")
