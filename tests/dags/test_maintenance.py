"""The maintenance DAG: what the weekly run does, what the form asks, and what the stages are told."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, ParamValidationError

from smalti.lake import Lake
from smalti.maintenance.plan import plan
from smalti.settings import MaintenanceRun
from smalti_airflow.approval import ApproveMaintenance, maintenance_text
from smalti_airflow.stage_settings import EMPTY, resolve_settings

FORM = {
    "dry_run": True,
    "approve": False,
    "skip_limit": 0.1,
    "small_part_mb": 1000,
    "grace_days": 7,
    "keep_versions": None,
}


@pytest.fixture
def dag(repository: Any) -> Any:
    return repository.dags["maintenance"]


def rendered(dag: Any, task_id: str, run_type: str, **form: Any) -> Any:
    """A task's settings, or what approve is told, as a run of this kind with this form has them."""
    task = dag.task_dict[task_id]
    context = {"params": FORM | form, "dag_run": SimpleNamespace(run_type=run_type)}
    what = task.asked if task_id == "approve" else task.settings
    return task.render_template(what, context, dag.get_template_env())


def test_the_steps_follow_each_other_and_a_skipped_approval_stops_nothing(dag: Any) -> None:
    order = ["plan", "approve", "rewrite", "merge", "gc"]
    assert {(task.task_id, after) for task in dag.tasks for after in task.downstream_task_ids} == set(pairwise(order))
    assert {dag.task_dict[name].trigger_rule for name in order[2:]} == {"none_failed"}


def test_the_form_begins_as_the_settings_do(dag: Any) -> None:
    assert {name: dag.params[name] for name in dag.params} == FORM
    run = MaintenanceRun()
    assert (FORM["skip_limit"], FORM["grace_days"], FORM["keep_versions"], run.apply) == (
        run.skip_limit,
        run.grace_days,
        run.keep_versions,
        False,
    )


@pytest.mark.parametrize(
    ("now", "first"),
    [
        ("2026-11-29T01:59", "2026-11-29T02:00"),
        ("2026-11-29T02:01", "2026-11-29T02:00"),  # a scheduler that is a little late
        ("2026-11-29T03:30", "2026-12-06T02:00"),
        ("2026-12-02T12:00", "2026-12-06T02:00"),
    ],
)
def test_a_new_airflow_waits_for_the_next_sunday(
    dag: Any, now: str, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It deletes: it must not run as soon as somebody installs it."""
    from airflow.serialization.serialized_objects import DagSerialization
    from airflow.timetables import trigger
    from airflow.timetables.base import TimeRestriction

    kept = DagSerialization.from_dict(DagSerialization.to_dict(dag))  # as the scheduler has it
    monkeypatch.setattr(trigger, "utcnow", lambda: datetime.fromisoformat(f"{now}:00+00:00"))
    restriction = TimeRestriction(earliest=kept.start_date, latest=kept.end_date, catchup=kept.catchup)
    run = kept.timetable.next_dagrun_info(last_automated_data_interval=None, restriction=restriction)
    assert run.run_after == datetime.fromisoformat(f"{first}:00+00:00")


@pytest.mark.parametrize(
    ("run_type", "dry_run", "does"),
    [("scheduled", True, True), ("manual", True, False), ("manual", False, True), ("backfill", True, False)],
)
def test_only_the_weekly_run_and_a_form_that_says_so_do_anything(
    dag: Any, run_type: str, dry_run: bool, does: bool
) -> None:
    for name in ("rewrite", "merge", "gc"):
        settings = rendered(dag, name, run_type, dry_run=dry_run)
        assert (settings["apply"] not in EMPTY) is does
        assert dag.task_dict[name].only_with == "apply", "skipped without it"
        assert resolve_settings(name, settings, "test")["apply"] is does


def test_the_plan_never_does_anything(dag: Any) -> None:
    assert resolve_settings("plan", rendered(dag, "plan", "scheduled", dry_run=False), "test")["apply"] is False


def test_what_the_form_says_reaches_the_stages(dag: Any) -> None:
    form = {"skip_limit": 0.25, "small_part_mb": 5, "grace_days": 14, "keep_versions": 3, "dry_run": False}
    assert resolve_settings("gc", rendered(dag, "gc", "manual", **form), "test") == MaintenanceRun(
        apply=True, skip_limit=0.25, small_part_bytes=5_000_000, grace_days=14, keep_versions=3
    ).model_dump(mode="json")


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("dry_run", "perhaps"),
        ("skip_limit", 1),
        ("skip_limit", -0.1),
        ("small_part_mb", 1.5),
        ("grace_days", -1),
        ("keep_versions", 0),
    ],
)
def test_the_form_refuses_what_makes_no_sense(dag: Any, field: str, wrong: Any) -> None:
    before = dag.params[field]
    with pytest.raises(ParamValidationError):
        dag.params[field] = wrong
    assert dag.params[field] == before


@pytest.mark.parametrize(
    ("approve", "dry_run", "asks"), [(True, False, True), (False, False, False), (True, True, False)]
)
def test_a_person_is_asked_where_the_form_says_so(dag: Any, approve: bool, dry_run: bool, asks: bool) -> None:
    assert bool(rendered(dag, "approve", "manual", approve=approve, dry_run=dry_run)) is asks
    task = ApproveMaintenance(task_id="approve", plan="plan", asked="")
    with pytest.raises(AirflowSkipException, match="does not ask"):
        task.execute({})


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (
            {"chosen_options": ["Reject"], "responded_by_user": {"id": "1", "name": "Ada"}},
            r"maintenance: Ada rejected the plan\. Nothing was changed",
        ),
        ({"error": "late", "error_type": "timeout"}, "maintenance: nobody looked at the plan in 14 days"),
    ],
)
def test_a_no_fails_and_says_what_follows(event: dict[str, Any], message: str) -> None:
    task = ApproveMaintenance(task_id="approve", plan="plan", asked="yes")
    whole = {"params_input": {}, "responded_at": datetime.now(UTC)} | event
    with pytest.raises(AirflowFailException, match=message):
        task.execute_complete({}, whole)


def test_what_a_person_is_told_of_a_plan(lake: Lake) -> None:
    report = plan(lake, MaintenanceRun()).model_dump(mode="json")
    assert "**Delete** 0 objects (0.0 GB)" in maintenance_text(report)
    report["gc"] |= {"deleted": {"part": 7}, "deleted_bytes": {"part": 2_500_000_000}, "given_up": ["set/v1"]}
    report["merge"]["merged"] = {"a/1": ["a/1", "a/2"], "b/1": ["b/1", "b/2", "b/3"]}
    text = maintenance_text(report)
    assert "**Delete** 7 objects (part 7) (2.5 GB)" in text
    assert "**Merge** 5 parts into 2." in text
    assert "**give up** 1 versions (set/v1)." in text
    assert maintenance_text(None) == "There is no plan."
