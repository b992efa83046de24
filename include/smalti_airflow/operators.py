"""RayStage: one stage of the line as an Airflow task that waits for a Ray job."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseHook, BaseOperator, BaseOperatorLink
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException, TaskDeferralTimeout

from smalti.errors import InputError, SmaltiError
from smalti.jobs.attempts import keep_driver_log, known_attempts, mark_consumed, read_report
from smalti.jobs.spec import JobSpec, read_spec, report_uri, write_spec
from smalti.lake import Lake
from smalti_airflow.engine_keys import engine_key
from smalti_airflow.ray_jobs import AsyncRayJobs, RayJobs, RayJobsError, RayTarget
from smalti_airflow.stage_settings import EMPTY, resolve_settings
from smalti_airflow.submissions import Claimed, claim
from smalti_airflow.waiting import Outcome, Waiter

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

CONNECTION = "smalti_ray"
"""Airflow connection of type http: host and port of Ray's dashboard, the password is the cluster's token."""

JOB_ENV = "SMALTI_JOB_ENV"
"""Names, with commas between, of Airflow's environment variables that every job is given. For places, not for secrets:
Ray shows them. Without it a job has the environment of the Ray head, and can use the workers that Ray has ready."""

WAIT_HERE = 60.0
"""Seconds. A deferral costs a trigger's start and a second start of the worker, 7 s on two busy cores; waiting here costs a
worker's slot. A job that takes hours does not notice, a small one is done by then."""

RESTARTS = 3
"""Times that one try starts anew after a job that it had adopted was stopped by its predecessor's late kill."""

BACKSTOP = 300.0
"""Seconds after the deadline at which Airflow ends a deferral whose trigger did not."""

LAST_LINES = 20
"""Lines of a failed job's output in the task's error."""


class RayJobLink(BaseOperatorLink):
    """The job's page in Ray's dashboard."""

    name = "Ray job"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        return str(getattr(operator, "job_page", ""))


class RayStage(BaseOperator):
    """Run ``python -m smalti.jobs STAGE`` on a Ray cluster; return the job's report.

    The first try submits one job. A later try of the same task adopts that job while it lives, takes its report if it
    has succeeded meanwhile, and starts the next attempt only after it has ended otherwise. A task that is cleared after
    its success does its work again. Killing the task stops the job. Success is the job's report in the lake, nothing else.

    Args:
        stage: a name of smalti.jobs.registry.
        settings: what `resolve_settings` makes the stage's settings of. Templated.
        only_with: a field of `settings`; where it is empty the task is skipped, and Ray is not asked.
        conn_id: Airflow connection of the cluster.
        wait_here: seconds to wait in the worker before the task is deferred; a deferral costs more than a short wait.

    Returns (XCom): the report's fields, and ``report_uri``.
    """

    template_fields = ("settings",)
    operator_extra_links = (RayJobLink(),)
    ui_color = "#d7e3d4"

    def __init__(
        self,
        *,
        stage: str,
        settings: dict[str, Any],
        only_with: str | None = None,
        conn_id: str = CONNECTION,
        wait_here: float = WAIT_HERE,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.stage = stage
        self.settings = settings
        self.only_with = only_with
        self.conn_id = conn_id
        self.wait_here = wait_here
        self.job_page = ""
        self._waiting_for: str | None = None
        self._killed = False

    def execute(self, context: Context) -> dict[str, Any]:
        if self.only_with is not None and self.settings.get(self.only_with) in EMPTY:
            raise AirflowSkipException(f"{self.only_with} is empty: nothing to do")
        limit = self.execution_timeout
        return self._run(context, time.time() + limit.total_seconds() if limit else None, restarts=0)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Go on after the trigger's event."""
        note = event["note"]
        outcome = Outcome(event["state"], event["message"], event["exit_code"])
        claimed = Claimed(note["number"], note["submission"], adopted=note["adopted"])
        with _clear_errors(), self._jobs() as jobs:
            self._now_waiting_for(jobs, claimed.submission)
            report = self._end(jobs, read_spec(note["spec"]), claimed, outcome, note["restarts"])
        return report or self._run(context, note["deadline"], note["restarts"] + 1)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """As BaseOperator's. Where Airflow ended the deferral because the trigger did not, the job is stopped here."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except TaskDeferralTimeout:
            with _clear_errors(), self._jobs() as jobs:
                for attempt in known_attempts(self._spec(context)):
                    job = jobs.get(attempt.submission)
                    if job is not None and not job.state.ended:
                        self._stop(jobs, attempt.submission)
            raise

    def on_kill(self) -> None:
        """The try ends now, by a person's hand or by execution_timeout: its job ends with it.

        Only the job this try waits for. A try that has adopted the same job finds it stopped, and starts the next attempt.
        """
        self._killed = True
        if self._waiting_for is not None:
            with self._jobs(timeout=3.0) as jobs:
                self._stop(jobs, self._waiting_for)

    # One round: claim, wait, end

    def _run(self, context: Context, deadline: float | None, restarts: int) -> dict[str, Any]:
        with _clear_errors(), self._jobs() as jobs:
            while True:
                spec = self._spec(context)
                spec_uri = write_spec(spec)
                claimed = claim(
                    jobs,
                    spec,
                    spec_uri,
                    env=_job_env() | engine_key(spec.stage, spec.settings, self.conn_id),
                    metadata={"dag": spec.dag, "run": spec.run, "task": spec.task, "spec": spec_uri},
                    about_to=lambda submission: self._now_waiting_for(jobs, submission),
                    say=self._say,
                )
                if self._killed:  # while Ray was taking the job: it may not have known it yet
                    self._stop(jobs, claimed.submission)
                    raise AirflowException(f"killed; {claimed.submission} was asked to stop")
                note = {**_note(claimed), "spec": spec_uri, "deadline": deadline, "restarts": restarts}
                outcome = Outcome("SUCCEEDED") if claimed.finished else self._wait(jobs.target, note)
                report = self._end(jobs, spec, claimed, outcome, restarts)
                if report is not None:
                    return report
                restarts += 1

    def _wait(self, target: RayTarget, note: dict[str, Any]) -> Outcome:
        """Wait here for a while, then in the triggerer."""

        async def connect() -> AsyncRayJobs:
            return AsyncRayJobs(target)

        async def here() -> Outcome | None:
            try:
                return await asyncio.wait_for(waiter.wait(), self.wait_here)
            except TimeoutError:
                return None
            finally:
                await waiter.close()

        waiter = Waiter(connect, note["submission"], note["deadline"], self._say)
        outcome = asyncio.run(here()) if self.wait_here > 0 else None
        return outcome or self._defer(note, waiter.tail.seen)

    def _defer(self, note: dict[str, Any], seen: int) -> NoReturn:
        from smalti_airflow.triggers import RayJobTrigger

        now = time.time()
        deadline = note["deadline"]
        self.defer(
            trigger=RayJobTrigger(
                conn_id=self.conn_id,
                submission=note["submission"],
                deadline=deadline,
                since=now,
                seen=seen,
                note=note,
            ),
            method_name="execute_complete",
            timeout=None if deadline is None else timedelta(seconds=max(deadline - now, 0.0) + BACKSTOP),
        )
        raise AssertionError("defer raises")

    def _end(
        self, jobs: RayJobs, spec: JobSpec, claimed: Claimed, outcome: Outcome, restarts: int
    ) -> dict[str, Any] | None:
        """The report; an exception that says what happened; or None: start the next attempt."""
        name = f"{self.stage}: Ray job {claimed.submission}"
        if outcome.state == "UNREACHABLE":
            raise AirflowException(f"{name}: {outcome.message}. It may still run: the next try adopts it.")
        log_uri = self._keep_log(jobs, spec, claimed, outcome)
        if outcome.state == "TIMEOUT":
            self._stop(jobs, claimed.submission)
            raise AirflowException(
                f"{name}: not done after {self.execution_timeout}, {outcome.message}; stopped. Log: {log_uri}"
            )
        if outcome.state in ("SUCCEEDED", "GONE"):
            report = read_report(spec, claimed.number)
            if report is not None:
                mark_consumed(spec, claimed.number)
                return {**report, "report_uri": report_uri(spec, claimed.number)}
            if outcome.state == "GONE":
                raise AirflowException(
                    f"{name}: {outcome.message}, and it left no report. The next try submits it again."
                )
            raise AirflowException(
                f"{name} ended without its report {report_uri(spec, claimed.number)}. Log: {log_uri}"
            )
        if outcome.state == "STOPPED":
            if claimed.adopted and restarts < RESTARTS and not self._killed:
                self._say(f"{claimed.submission} was stopped, and not by this try: starting the next attempt")
                return None
            raise AirflowException(f"{name} was stopped. Log: {log_uri}")
        raise _failure(self.stage, claimed, outcome, log_uri)

    # What a round needs

    def _spec(self, context: Context) -> JobSpec:
        ti = context["ti"]
        map_index = -1 if ti.map_index is None else ti.map_index
        return JobSpec(
            stage=self.stage,
            lake=Lake.from_environment().root,
            dag=ti.dag_id,
            run=ti.run_id,
            task=ti.task_id if map_index < 0 else f"{ti.task_id}@{map_index}",
            settings=resolve_settings(self.stage, self.settings, f"{ti.dag_id}, task {ti.task_id}"),
        )

    def _jobs(self, timeout: float | None = None) -> RayJobs:
        return RayJobs(RayTarget.of(BaseHook.get_connection(self.conn_id)), timeout)

    def _now_waiting_for(self, jobs: RayJobs, submission: str) -> None:
        self._waiting_for = submission
        self.job_page = jobs.target.job_page(submission)

    def _say(self, line: str) -> None:
        self.log.info("%s", line)

    def _stop(self, jobs: RayJobs, submission: str) -> None:
        for _ in range(2):
            try:
                known = jobs.stop(submission)
                self._say(f"{submission}: {'asked Ray to stop it' if known else 'Ray does not know it'}")
                return
            except RayJobsError as error:
                self.log.warning("%s could not be stopped: %s", submission, error)

    def _keep_log(self, jobs: RayJobs, spec: JobSpec, claimed: Claimed, outcome: Outcome) -> str:
        """Copy the job's log to the lake, for a post-mortem. Where Ray has none, its place stays free for who comes later."""
        if outcome.state == "GONE":
            return "none, Ray has lost it"
        try:
            text = jobs.logs(claimed.submission)
            return "none, Ray gave none" if text is None else keep_driver_log(spec, claimed.number, text)
        except RayJobsError as error:
            self.log.warning("the job's log was not had: %s", error)
            return "none, Ray gave none"
        except SmaltiError as error:
            self.log.warning("the job's log was not kept: %s", error)
            return "not kept"


def _note(claimed: Claimed) -> dict[str, Any]:
    return {"number": claimed.number, "submission": claimed.submission, "adopted": claimed.adopted}


def _job_env() -> dict[str, str]:
    names = [name.strip() for name in os.environ.get(JOB_ENV, "").split(",") if name.strip()]
    return {name: os.environ[name] for name in names if name in os.environ}


@contextlib.contextmanager
def _clear_errors() -> Iterator[None]:
    """Ours become Airflow's: a mistake of the user's is not tried again, all else is."""
    try:
        yield
    except InputError as error:
        raise AirflowFailException(str(error)) from None
    except (SmaltiError, RayJobsError) as error:
        raise AirflowException(str(error)) from error


def _failure(stage: str, claimed: Claimed, outcome: Outcome, log_uri: str) -> AirflowException:
    """The error of a failed job: its own clear line first, then where its log is, then the last lines of it.

    Ray's message ends in the last lines of the job's output; without an exit code it was not the job that failed but what
    it ran on.
    """
    lines = [line.rstrip() for line in outcome.message.splitlines() if line.strip()]
    clear = next((line for line in reversed(lines) if line.startswith("smalti: ")), None)
    if outcome.exit_code is None:
        code = re.search(r"exit code (-?\d+)", outcome.message)
        exit_code = int(code[1]) if code else None
    else:
        exit_code = outcome.exit_code
    head = clear or (lines[-1] if lines else "Ray gave no reason")
    what = "was lost with what it ran on" if exit_code is None else f"ended with exit code {exit_code}"
    text = "\n".join((head, f"{stage}: Ray job {claimed.submission} {what}. Log: {log_uri}", *lines[-LAST_LINES:]))[
        :8000
    ]
    return AirflowFailException(text) if exit_code == 2 else AirflowException(text)
