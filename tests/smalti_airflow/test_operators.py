"""RayStage without Airflow's processes: every try of a task is a new operator object, as it is on a worker."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections import deque
from dataclasses import replace
from datetime import timedelta
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    TaskDeferralError,
    TaskDeferralTimeout,
    TaskDeferred,
)
from airflow.sdk.serde import deserialize, serialize
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from smalti.jobs.spec import read_spec
from smalti.lake import Lake
from smalti.objects import exists, list_names, read_bytes
from smalti_airflow import operators, waiting
from smalti_airflow.operators import RayJobLink, RayStage
from smalti_airflow.submissions import claim
from smalti_airflow.triggers import RayJobTrigger
from tests.smalti_airflow.conftest import context
from tests.smalti_airflow.fake_ray_jobs import HELD, TOKEN, FakeJob, FakeRay, write_report

pytestmark = pytest.mark.usefixtures("airflow_env", "quickly")
GIVEN = {"source": "quick", "batch": "2026-11-20", "limit": ""}


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "pauses", lambda: repeat(0.001))
    monkeypatch.setattr(waiting, "TOLERATED_ERRORS", 2)

    async def no_pause(self: waiting.Waiter, seconds: float) -> None:
        await asyncio.sleep(0.001)

    monkeypatch.setattr(waiting.Waiter, "_pause", no_pause)
    monkeypatch.setattr("smalti_airflow.ray_jobs.time.sleep", lambda seconds: None)


def stage(**more: Any) -> RayStage:
    given: dict[str, Any] = {"task_id": "ingest", "stage": "ingest", "settings": GIVEN, "wait_here": 10.0}
    return RayStage(**{**given, **more})


def run(**more: Any) -> dict[str, Any]:
    """One try of the task, to its end."""
    found: dict[str, Any] = stage(**more).execute(context())
    return found


def written(lake: Lake) -> list[str]:
    return list_names(lake.run("source_quick", "manual__1", "ingest"))


def failing(exit_code: int | None, message: str) -> Any:
    def prepare(job: FakeJob) -> None:
        job.exit_code, job.message = exit_code, message

    return prepare


# Success


def test_success_is_the_jobs_report(ray: FakeRay, lake: Lake) -> None:
    report = run()
    assert report["stage"] == "ingest"
    assert report["seconds"] == 1.5
    assert report["report_uri"] == lake.run_object("source_quick", "manual__1", "ingest", "report.json")
    assert written(lake) == ["attempt.json", "consumed.json", "driver.log", "report.json", "spec.json"]
    [job] = ray.jobs.values()
    spec_uri = lake.run_object("source_quick", "manual__1", "ingest", "spec.json")
    assert job.body["entrypoint"] == f"python -m smalti.jobs ingest --spec {spec_uri} --attempt 1"
    assert job.body["metadata"] == {"dag": "source_quick", "run": "manual__1", "task": "ingest", "spec": spec_uri}
    spec = read_spec(spec_uri)
    assert (spec.settings["batch"], spec.settings["limit"]) == ("2026-11-20", None)
    assert spec.settings["source"]["name"] == "quick"
    assert spec.settings["captioner"]["kind"] == "rules"


def test_a_job_that_succeeds_without_its_report_has_failed(ray: FakeRay, lake: Lake) -> None:
    ray.prepare = lambda job: setattr(job, "report", False)
    with pytest.raises(AirflowException, match=r"ended without its report .*/report\.json"):
        run()
    ray.prepare = lambda job: None
    assert run()["report_uri"].endswith("/report.2.json")


def test_form_fields_arrive_as_what_they_are(lake: Lake) -> None:
    run(settings={**GIVEN, "limit": "5"})
    spec = read_spec(lake.run_object("source_quick", "manual__1", "ingest", "spec.json"))
    assert spec.settings["limit"] == 5


def test_names_of_variables_that_are_listed_are_given_to_the_job(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMALTI_JOB_ENV", "PLACE, NOT_SET ,")
    monkeypatch.setenv("PLACE", "/here")
    run()
    [job] = ray.jobs.values()
    assert job.body["runtime_env"] == {"env_vars": {"PLACE": "/here"}}


def test_mapped_tasks_have_jobs_of_their_own(ray: FakeRay) -> None:
    for index in (0, 1):
        stage().execute(context(map_index=index))
    assert len(ray.jobs) == 2


def test_the_link_leads_to_the_job(ray: FakeRay) -> None:
    operator = stage()
    operator.execute(context())
    [name] = ray.jobs
    assert RayJobLink().get_link(operator, ti_key=None) == f"{ray.url}/#/jobs/{name}"


# Failure


def test_a_failed_job_fails_the_task_with_its_clear_line_first(ray: FakeRay, lake: Lake) -> None:
    ray.lives[0] = ("RUNNING", "FAILED")
    ray.prepare = failing(
        1, "Job failed with exit code 1, last logs:\nreading\nsmalti: gs://b/t: refused. Give rights.\n"
    )
    with pytest.raises(AirflowException) as caught:
        run()
    assert not isinstance(caught.value, AirflowFailException)
    lines = str(caught.value).splitlines()
    assert lines[0] == "smalti: gs://b/t: refused. Give rights."
    assert re.search(r"ended with exit code 1\. Log: file://.*/driver\.log", lines[1])
    assert "reading" in lines
    assert read_bytes(lake.run_object("source_quick", "manual__1", "ingest", "driver.log")) == b"Running entrypoint\n"
    assert "consumed.json" not in written(lake)


@pytest.mark.parametrize("exit_code", [2, None])
def test_a_mistake_of_the_users_is_not_tried_again(ray: FakeRay, exit_code: int | None) -> None:
    ray.lives[0] = ("FAILED",)
    ray.prepare = failing(exit_code, "command failed with exit code 2, last logs:\nsmalti: a.yaml:7: no. Mend it.")
    with pytest.raises(AirflowFailException, match=r"\Asmalti: a.yaml:7: no"):
        run()


def test_a_job_without_an_exit_code_was_lost(ray: FakeRay) -> None:
    ray.lives[0] = ("RUNNING", "FAILED")
    ray.prepare = failing(None, "Job supervisor actor died: the node was lost")
    with pytest.raises(AirflowException, match="was lost with what it ran on"):
        run()


def test_a_very_long_output_is_cut_to_its_last_lines(ray: FakeRay) -> None:
    ray.lives[0] = ("FAILED",)
    ray.prepare = failing(1, "\n".join(f"line {n} {'x' * 80}" for n in range(500)))
    with pytest.raises(AirflowException) as caught:
        run()
    assert len(str(caught.value)) <= 8000
    assert "line 499" in str(caught.value)
    assert "line 400" not in str(caught.value)


def test_after_a_failure_the_next_try_is_the_next_attempt(ray: FakeRay, lake: Lake) -> None:
    ray.lives = deque([("FAILED",), ("RUNNING", "SUCCEEDED")])
    with pytest.raises(AirflowException):
        run()
    assert run()["report_uri"].endswith("/report.2.json")
    assert [job.body["entrypoint"][-1] for job in ray.jobs.values()] == ["1", "2"]
    assert {"driver.log", "driver.2.log"} <= set(written(lake))


def test_a_stopped_job_fails_the_task(ray: FakeRay) -> None:
    ray.lives[0] = ("RUNNING", "STOPPED")
    with pytest.raises(AirflowException, match="was stopped"):
        run()
    assert len(ray.jobs) == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"source": "nobody", "batch": "b"}, "there is no source 'nobody'.*Use one of: quick"),
        ({"source": "quick", "batch": "a b"}, "batch is wrong"),
        ({"source": "quick", "batch": "b", "limit": "0"}, "limit is wrong"),
        ({"source": "quick", "batch": "b", "colour": "red"}, "colour is wrong"),
    ],
)
def test_wrong_settings_end_the_task_before_anything_is_submitted(
    ray: FakeRay, given: dict[str, str], message: str
) -> None:
    with pytest.raises(AirflowFailException, match=message):
        run(settings=given)
    assert ray.requests == []


def test_a_lake_that_is_not_named_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SMALTI_LAKE")
    with pytest.raises(AirflowFailException, match="SMALTI_LAKE"):
        run()


def test_a_cluster_that_is_not_there_is_said_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SMALTI_RAY", "http://:secret-1@127.0.0.1:9")
    with pytest.raises(AirflowException, match="does not answer") as caught:
        run()
    assert not isinstance(caught.value, AirflowFailException)
    assert "secret-1" not in str(caught.value)


# A later try


def in_background(operator: RayStage) -> tuple[threading.Thread, list[Any]]:
    """A try that waits, in another thread; its report or error."""
    ends: list[Any] = []

    def go() -> None:
        try:
            ends.append(operator.execute(context()))
        except AirflowException as error:
            ends.append(error)

    thread = threading.Thread(target=go)
    thread.start()
    return thread, ends


def until(true: Any) -> None:
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


def let_go(ray: FakeRay) -> None:
    for job in ray.jobs.values():
        job.states = deque(["SUCCEEDED"])


def test_a_retry_adopts_the_live_job(ray: FakeRay) -> None:
    ray.lives[0] = (HELD,)
    with pytest.raises(TaskDeferred):
        run(wait_here=0.05)
    with pytest.raises(TaskDeferred):
        run(wait_here=0.05)
    assert ray.requests.count("POST") == 1
    let_go(ray)
    assert run()["report_uri"].endswith("/report.json")
    assert ray.requests.count("POST") == 1


def test_a_job_that_succeeded_unseen_is_taken_over(ray: FakeRay) -> None:
    with pytest.raises(TaskDeferred):
        run(wait_here=0)
    [job] = ray.jobs.values()
    while job.state != "SUCCEEDED":
        job.step()
    assert run()["report_uri"].endswith("/report.json")
    assert len(ray.jobs) == 1


def test_a_report_outlives_the_head_that_knew_its_job(ray: FakeRay) -> None:
    with pytest.raises(TaskDeferred):
        run(wait_here=0)
    [job] = ray.jobs.values()
    write_report(job.body["entrypoint"])
    ray.restart()
    assert run()["report_uri"].endswith("/report.json")
    assert ray.jobs == {}


def test_a_task_that_is_cleared_after_success_does_its_work_again(ray: FakeRay) -> None:
    reports = [run()["report_uri"].rpartition("/")[2] for _ in range(3)]
    assert reports == ["report.json", "report.2.json", "report.3.json"]
    assert len(ray.jobs) == 3


def test_changed_settings_are_another_attempt_and_end_the_old_job(ray: FakeRay, config: Path, lake: Lake) -> None:
    ray.lives[0] = (HELD,)
    with pytest.raises(TaskDeferred):
        run(wait_here=0.05)
    old = next(iter(ray.jobs.values()))
    file = config / "sources" / "quick.yaml"
    file.write_text(file.read_text() + "priority: 3\n")
    ray.lives[0] = ("RUNNING", "SUCCEEDED")
    assert run()["report_uri"].endswith("/report.2.json")
    assert old.state == "STOPPED"
    assert len(ray.jobs) == 2


def test_an_adopted_job_that_its_predecessor_stops_late_is_started_anew(ray: FakeRay) -> None:
    """Clear: the new try adopts the job about a second before the old try's kill arrives."""
    ray.lives = deque([(HELD,), ("RUNNING", "SUCCEEDED")])
    old = stage(wait_here=0.05)
    with pytest.raises(TaskDeferred):
        old.execute(context())
    thread, ends = in_background(stage())
    first = next(iter(ray.jobs.values()))
    until(lambda: ray.requests.count("GET") > 5)
    old.on_kill()
    thread.join(20)
    assert first.state == "STOPPED"
    assert ends[0]["report_uri"].endswith("/report.2.json")
    assert len(ray.jobs) == 2


def test_a_job_that_is_stopped_over_and_over_is_not_started_for_ever(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray.lives[0] = ("STOPPED",)
    monkeypatch.setattr(operators, "claim", lambda *a, **k: replace(claim(*a, **k), adopted=True))
    with pytest.raises(AirflowException, match="was stopped"):
        run()
    assert len(ray.jobs) == 1 + operators.RESTARTS


# Killing


@pytest.mark.parametrize("adopted", [False, True])
def test_a_kill_stops_the_job_and_starts_no_other(ray: FakeRay, adopted: bool) -> None:
    ray.lives[0] = (HELD,)
    if adopted:
        with pytest.raises(TaskDeferred):
            run(wait_here=0)
    ray.requests.clear()
    operator = stage()
    thread, ends = in_background(operator)
    until(lambda: ray.requests.count("GET") > 3)  # more than claiming asks: it waits
    operator.on_kill()
    thread.join(20)
    assert "was stopped" in str(ends[0])
    assert ray.live() == []
    assert len(ray.jobs) == 1


def test_a_kill_before_it_waits_touches_nothing(ray: FakeRay) -> None:
    stage().on_kill()
    assert ray.requests == []


def test_a_kill_while_ray_takes_the_job_leaves_none_running(ray: FakeRay) -> None:
    ray.lives[0] = (HELD,)
    operator = stage()
    ray.prepare = lambda job: setattr(operator, "_killed", True)  # in the middle of the POST, when Ray knows no job yet
    with pytest.raises(AirflowException, match="killed"):
        operator.execute(context())
    assert ray.live() == []


def test_a_kill_is_tried_twice(ray: FakeRay) -> None:
    ray.lives[0] = (HELD,)
    operator = stage(wait_here=0.05)
    with pytest.raises(TaskDeferred):
        operator.execute(context())
    ray.fail("STOP", "500")
    operator.on_kill()
    assert ray.live() == []


# The head dies, or is not reached


def test_a_job_lost_with_its_head_is_submitted_again_by_the_next_try(ray: FakeRay) -> None:
    ray.lives = deque([(HELD,), ("RUNNING", "SUCCEEDED")])
    thread, ends = in_background(stage())
    until(lambda: ray.requests.count("GET") > 3)
    ray.restart()
    thread.join(20)
    assert isinstance(ends[0], AirflowException)
    assert "Ray no longer knows" in str(ends[0])
    assert run()["report_uri"].endswith("/report.json")


def test_a_head_that_dies_after_the_report_was_written_does_not_matter(ray: FakeRay) -> None:
    ray.lives[0] = (HELD,)
    thread, ends = in_background(stage())
    until(lambda: ray.requests.count("GET") > 3)
    write_report(next(iter(ray.jobs.values())).body["entrypoint"])
    ray.restart()
    thread.join(20)
    assert ends[0]["report_uri"].endswith("/report.json")


def test_an_unreachable_head_fails_the_try_and_leaves_the_job(ray: FakeRay) -> None:
    ray.lives[0] = (HELD,)
    ray.fail("GET", "", "", *["500"] * 3)
    with pytest.raises(AirflowException, match="the next try adopts it"):
        run()
    assert len(ray.live()) == 1
    let_go(ray)
    assert run()["report_uri"].endswith("/report.json")
    assert len(ray.jobs) == 1


def test_a_log_that_cannot_be_had_does_not_change_the_outcome(ray: FakeRay, lake: Lake) -> None:
    ray.fail("LOGS", *["500"] * 10)
    assert run()["stage"] == "ingest"
    assert not exists(lake.run_object("source_quick", "manual__1", "ingest", "driver.log")), "free for a later try"


# Time


def test_a_job_over_its_time_is_stopped_and_its_log_kept(ray: FakeRay, lake: Lake) -> None:
    ray.lives[0] = (HELD,)
    with pytest.raises(AirflowException, match=r"not done after 0:00:00\.3"):
        run(execution_timeout=timedelta(seconds=0.3))
    assert ray.live() == []
    assert "driver.log" in written(lake)


def defer(**more: Any) -> tuple[RayJobTrigger, TaskDeferred]:
    """Run a try to its deferral; the trigger as the triggerer gets it."""
    with pytest.raises(TaskDeferred) as caught:
        run(**{"wait_here": 0, **more})
    deferred = caught.value
    kwargs = deserialize(json.loads(json.dumps(serialize(deferred.trigger.serialize()[1]))))
    assert isinstance(kwargs, dict)
    return RayJobTrigger(**kwargs), deferred


def fire(trigger: RayJobTrigger) -> dict[str, Any]:
    async def first() -> Any:
        async for event in trigger.run():
            return event.payload
        raise AssertionError("the trigger ended without an event")

    payload: dict[str, Any] = json.loads(json.dumps(asyncio.run(first())))
    return payload


def test_a_deferred_task_ends_as_one_that_waited(ray: FakeRay, lake: Lake) -> None:
    trigger, deferred = defer()
    event = fire(trigger)
    operator = stage()
    report = operator.execute_complete(context(), event)
    assert report["report_uri"].endswith("/report.json")
    assert operator.job_page.endswith(trigger.submission)
    assert deferred.method_name == "execute_complete"
    assert "consumed.json" in written(lake)
    assert ray.requests.count("POST") == 1


def test_the_stored_trigger_holds_no_token() -> None:
    trigger, deferred = defer()
    assert TOKEN not in f"{trigger.serialize()} {trigger!r} {deferred.trigger.serialize()}"


def test_a_deferred_failure_is_the_same_failure(ray: FakeRay) -> None:
    ray.lives[0] = ("RUNNING", "FAILED")
    ray.prepare = failing(2, "smalti: a.yaml:7: no. Mend it.")
    trigger, _ = defer()
    event = fire(trigger)
    with pytest.raises(AirflowFailException, match=r"\Asmalti: a.yaml:7"):
        stage().execute_complete(context(), event)


def test_the_deadline_holds_while_deferred(ray: FakeRay) -> None:
    ray.lives[0] = (HELD,)
    trigger, deferred = defer(execution_timeout=timedelta(seconds=0.4))
    assert deferred.timeout is not None
    assert timedelta(seconds=operators.BACKSTOP) <= deferred.timeout <= timedelta(seconds=operators.BACKSTOP + 0.4)
    event = fire(trigger)
    assert event["state"] == "TIMEOUT"
    with pytest.raises(AirflowException, match="not done after"):
        stage(execution_timeout=timedelta(seconds=0.4)).execute_complete(context(), event)
    assert ray.live() == []


def test_the_backstop_stops_the_job_too_and_a_crashed_trigger_does_not(ray: FakeRay) -> None:
    ray.lives[0] = (HELD,)
    defer()
    with pytest.raises(TaskDeferralError):
        stage().resume_execution("__fail__", {"error": "Trigger failure", "traceback": ["why"]}, context())
    assert len(ray.live()) == 1
    with pytest.raises(TaskDeferralTimeout):
        stage().resume_execution("__fail__", {"error": "Trigger timeout"}, context())
    assert ray.live() == []


def test_a_deferred_and_adopted_job_that_is_stopped_late_is_started_anew(ray: FakeRay) -> None:
    ray.lives = deque([(HELD,), ("RUNNING", "SUCCEEDED")])
    old, _ = defer()
    new, _ = defer()  # the cleared task's next try: adopts
    asyncio.run(old.on_kill())
    event = fire(new)
    assert event["state"] == "STOPPED"
    report = stage().execute_complete(context(), event)
    assert report["report_uri"].endswith("/report.2.json")


def test_a_trigger_is_killed_with_patience(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    ray.lives[0] = (HELD,)
    trigger, _ = defer()
    monkeypatch.setattr("smalti_airflow.triggers.RETRY_PAUSE", 0.01)
    ray.fail("STOP", "drop", "500", "garbage")
    asyncio.run(trigger.on_kill())
    assert ray.live() == []


def test_a_trigger_that_was_moved_does_not_repeat_the_log(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(RayJobTrigger, "_say", lambda self, line: said.append(line))
    trigger, _ = defer()
    next(iter(ray.jobs.values())).log = "said before\n"
    trigger.since -= 3600
    fire(trigger)
    assert "not repeated" in said[0]
    assert "| said before" not in said
    trigger.since += 3600
    fire(trigger)
    assert "| said before" in said


# Anything, in any order

LIFE = st.lists(st.sampled_from(["PENDING", "RUNNING"]), max_size=3).flatmap(
    lambda first: st.sampled_from(["SUCCEEDED", "FAILED", "STOPPED"]).map(lambda end: (*first, end))
)
FAULTS = st.lists(
    st.tuples(
        st.sampled_from(["GET", "POST", "LOGS", "STOP"]),
        st.sampled_from(["", "500", "400", "drop", "garbage", "accept+500", "accept+drop", "restart"]),
    ),
    max_size=8,
)
ROUND = st.tuples(FAULTS, st.sampled_from([0.0, 10.0]), st.booleans())


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lives=st.lists(LIFE, min_size=1, max_size=5), rounds=st.lists(ROUND, min_size=1, max_size=5), number=st.uuids())
def test_there_is_one_live_job_at_most_and_success_is_a_report(
    ray: FakeRay, lake: Lake, lives: list[tuple[str, ...]], rounds: list[Any], number: Any
) -> None:
    """Tries that are deferred, lost and repeated, against a cluster that fails and forgets."""
    ray.restart()
    ray.lives = deque([*lives, ("RUNNING", "SUCCEEDED")])

    def alone(job: FakeJob) -> None:
        assert ray.live() == []
        job.message, job.exit_code = "m", 1

    ray.prepare = alone
    here = context(run=f"r{number}")
    for faults, wait_here, lost in [*rounds, *[([], 10.0, False)] * 8]:
        ray.faults.clear()
        for kind, fault in faults:
            if fault == "restart":
                ray.restart()
            else:
                ray.fail(kind, fault)
        try:
            try:
                report = stage(wait_here=wait_here).execute(here)
            except TaskDeferred as deferred:
                event = fire(deferred.trigger)
                if lost:
                    continue  # the task's worker is gone: a retry follows
                report = stage().execute_complete(here, event)
        except AirflowException:
            continue
        assert json.loads(read_bytes(report["report_uri"]))["stage"] == "ingest"
        return
    raise AssertionError("eight undisturbed tries did not end in success")
