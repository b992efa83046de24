"""Which submission answers a task's spec: its live job, its finished but unread one, or a new one."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from smalti.jobs.attempts import claim_attempt, has_report, is_consumed
from smalti.jobs.spec import JobSpec
from smalti_airflow.ray_jobs import Job, JobState, RayJobs, Submission


@dataclass(frozen=True)
class Claimed:
    """The attempt that a task goes on with.

    Attributes:
        number: of the attempt.
        submission: its job.
        adopted: the job was there already.
        finished: its report is there, and has not been handed on.
    """

    number: int
    submission: str
    adopted: bool = False
    finished: bool = False


def entrypoint(stage: str, spec_uri: str, number: int) -> str:
    """The command of a job; `python` is the cluster's."""
    return shlex.join(["python", "-m", "smalti.jobs", stage, "--spec", spec_uri, "--attempt", str(number)])


def claim(
    jobs: RayJobs,
    spec: JobSpec,
    spec_uri: str,
    *,
    env: Mapping[str, str],
    metadata: Mapping[str, str],
    about_to: Callable[[str], None] = lambda submission: None,
    say: Callable[[str], None] = lambda line: None,
) -> Claimed:
    """Find the attempt to go on with, and submit it where there is none.

    In order of their numbers:
    - of another spec: not ours; if its job still runs it works to settings that were changed since, and is stopped;
    - consumed: the task was cleared after it succeeded, the work is asked for again;
    - live: adopted, it is what an earlier try of this task started;
    - succeeded with a report: taken over; also when Ray has forgotten the job, since the report is written last;
    - ended in any other way: over, the next number;
    - unknown to Ray, without a report: submitted. Either it never was, or the cluster lost it.

    Args:
        about_to: called with the submission before Ray may know it, for whoever might have to stop it.

    Raises:
        RayJobsError: Ray cannot be asked, or does not take the job.
        SmaltiError: the lake cannot be read or written.
    """
    for number in itertools.count(1):
        attempt = claim_attempt(spec, spec_uri, number)
        if attempt.digest != spec.digest:
            _stop_if_live(jobs, attempt.submission, say)
            continue
        if is_consumed(spec, number):
            continue
        about_to(attempt.submission)
        job = jobs.get(attempt.submission)
        if job is None and not has_report(spec, number):
            command = entrypoint(spec.stage, spec_uri, number)
            say(f"submitting {attempt.submission}: {command}")
            jobs.submit(Submission(attempt.submission, command, metadata, env))
            return Claimed(number, attempt.submission)
        if job is not None and not job.state.ended:
            say(f"{attempt.submission} is {job.state} already: taking it over")
            return Claimed(number, attempt.submission, adopted=True)
        if _succeeded(job) and has_report(spec, number):
            say(f"{attempt.submission} has succeeded already: taking its report")
            return Claimed(number, attempt.submission, adopted=True, finished=True)
    raise AssertionError("count never ends")


def _succeeded(job: Job | None) -> bool:
    return job is None or job.state is JobState.SUCCEEDED


def _stop_if_live(jobs: RayJobs, submission: str, say: Callable[[str], None]) -> None:
    job = jobs.get(submission)
    if job is not None and not job.state.ended:
        say(f"{submission} works to settings that were changed since: stopping it")
        jobs.stop(submission)
