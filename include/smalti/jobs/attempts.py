"""What a task has already asked for: one create-only record for each attempt, beside its spec and its reports.

An attempt is one submission to a cluster. Its record is written before the submission, so that whoever runs the task
again finds it, whatever was killed in between; a mark says that its report was handed on, so that a task that is cleared
later does its work again instead of finding its old answer.

    runs/<dag>/<run>/<task>/attempt.json  attempt.2.json ...    the claim: which spec, which submission
                            report.json   report.2.json ...     written by the job when it is done
                            consumed.json consumed.2.json ...   the report was handed on
                            driver.log    driver.2.log ...      the job's output, kept for a post-mortem
"""

from __future__ import annotations

import itertools
import json
from typing import Any

from pydantic import Field, ValidationError

from smalti.config import Strict
from smalti.errors import CorruptError, MissingObject
from smalti.jobs.spec import JobSpec, report_uri
from smalti.lake import Lake
from smalti.objects import create_bytes, exists, read_bytes


class Attempt(Strict):
    """One submission, as it was claimed.

    Attributes:
        number: from 1; the report of this attempt carries it.
        submission: what the cluster knows the job by: the same for everybody who asks for the same work.
        spec: URI of the spec.
        digest: of the spec's content. A later attempt may be for another spec.
    """

    number: int = Field(ge=1)
    submission: str
    spec: str
    digest: str


def submission_id(spec: JobSpec, number: int) -> str:
    """The deterministic name of an attempt: of dag, run, task, settings and lake (all in the digest), and the number."""
    return f"smalti-{spec.stage}-{spec.digest[:24]}-{number}"


def claim_attempt(spec: JobSpec, spec_uri: str, number: int) -> Attempt:
    """Claim a number for this spec, or read who has it (another spec's claim keeps it for ever).

    Raises:
        CorruptError: the record there is not one.
    """
    mine = Attempt(number=number, submission=submission_id(spec, number), spec=spec_uri, digest=spec.digest)
    uri = _uri(spec, "attempt", number, "json")
    if create_bytes(uri, (mine.model_dump_json(indent=1) + "\n").encode()):
        return mine
    try:
        return Attempt.model_validate_json(read_bytes(uri))
    except ValidationError:
        raise CorruptError("this is not the record of an attempt", uri, "Delete it, and clear the task") from None


def known_attempts(spec: JobSpec) -> list[Attempt]:
    """Every attempt that was claimed for the task, whichever spec it was for."""
    found = []
    for number in itertools.count(1):
        try:
            found.append(Attempt.model_validate_json(read_bytes(_uri(spec, "attempt", number, "json"))))
        except MissingObject:
            return found
    raise AssertionError("count never ends")


def read_report(spec: JobSpec, number: int) -> dict[str, Any] | None:
    """The report of an attempt; None if it has written none."""
    try:
        found = json.loads(read_bytes(report_uri(spec, number)))
    except MissingObject:
        return None
    return dict(found)


def has_report(spec: JobSpec, number: int) -> bool:
    return exists(report_uri(spec, number))


def mark_consumed(spec: JobSpec, number: int) -> None:
    """Note that the report of this attempt was handed on: whoever asks from now on wants the work done again."""
    create_bytes(_uri(spec, "consumed", number, "json"), b"{}\n")


def is_consumed(spec: JobSpec, number: int) -> bool:
    return exists(_uri(spec, "consumed", number, "json"))


def keep_driver_log(spec: JobSpec, number: int, text: str) -> str:
    """Keep a job's output. Whoever comes first has kept it. Returns the URI."""
    uri = _uri(spec, "driver", number, "log")
    create_bytes(uri, text.encode(errors="replace"))
    return uri


def _uri(spec: JobSpec, kind: str, number: int, suffix: str) -> str:
    name = f"{kind}.{suffix}" if number == 1 else f"{kind}.{number}.{suffix}"
    return Lake.at(spec.lake).run_object(spec.dag, spec.run, spec.task, name)
