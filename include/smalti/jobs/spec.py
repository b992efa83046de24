"""A job's specification and its reports, as objects below runs/<dag>/<run>/<task>/.

Whoever submits a job writes spec.json first and hands the job nothing but its URI. An attempt (a submission to Ray) writes
one report, create-only; the first is report.json, the n-th report.n.json. Specs hold settings and names, never a secret.
"""

from __future__ import annotations

import hashlib
from typing import Any

from pydantic import Field, ValidationError

from smalti.config import Strict
from smalti.errors import CorruptError, InputError
from smalti.jobs.registry import Settings, find_stage
from smalti.lake import Lake
from smalti.objects import create_bytes, exists, read_bytes


class JobSpec(Strict):
    """Everything a job is told."""

    stage: str
    lake: str = Field(description="file:// or gs://")
    dag: str
    run: str
    task: str
    settings: dict[str, Any]

    def typed_settings(self) -> Settings:
        """The settings as the stage's own model. Raises InputError."""
        return validate_settings(self.stage, self.settings, f"settings of {self.dag}/{self.run}/{self.task}")

    def encoded(self) -> bytes:
        return (self.model_dump_json(indent=1) + "\n").encode()

    @property
    def digest(self) -> str:
        """sha256 of the encoded spec, in hex."""
        return hashlib.sha256(self.encoded()).hexdigest()


def validate_settings(stage: str, settings: dict[str, Any], where: str) -> Settings:
    """Settings as the stage's model; a mistake is one InputError line."""
    try:
        return find_stage(stage).settings.model_validate(settings)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(step) for step in first["loc"])
        raise InputError(
            f"{field} is wrong: {first['msg']}", where, "Start the run again with settings that are allowed"
        ) from None


def write_spec(spec: JobSpec) -> str:
    """Put the spec into the lake and return its URI; the same spec again finds itself there.

    A task that was cleared after its settings changed has another spec: it goes beside the first under its digest.
    """
    lake = Lake.at(spec.lake)
    for name in ("spec.json", f"spec-{spec.digest[:12]}.json"):
        uri = lake.run_object(spec.dag, spec.run, spec.task, name)
        if create_bytes(uri, spec.encoded()) or read_bytes(uri) == spec.encoded():
            return uri
    raise CorruptError("the spec is not what its name says", uri, "Delete this object, nothing else refers to it")


def read_spec(uri: str) -> JobSpec:
    """The spec at a URI. Raises MissingObject, InputError."""
    try:
        return JobSpec.model_validate_json(read_bytes(uri))
    except ValidationError as error:
        raise InputError(
            f"this is not a job's spec ({error.error_count()} mistakes)", uri, "Name a spec.json below runs/"
        ) from None


def report_uri(spec: JobSpec, attempt: int) -> str:
    """Where attempt number `attempt` (from 1) writes its report."""
    name = "report.json" if attempt == 1 else f"report.{attempt}.json"
    return Lake.at(spec.lake).run_object(spec.dag, spec.run, spec.task, name)


def next_attempt(spec: JobSpec) -> int:
    """The first attempt number without a report."""
    attempt = 1
    while exists(report_uri(spec, attempt)):
        attempt += 1
    return attempt
