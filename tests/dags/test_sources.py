"""Source DAGs: their shape, when they start, what they tell, and what a broken file does."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import CronPartitionTimetable, PartitionedAtRuntime

from smalti_airflow.assets import source_asset
from smalti_airflow.blocks import BATCH, batch_name
from tests.dags.conftest import load_dags

pytestmark = pytest.mark.usefixtures("include")
LINE = ["stage", "ingest", "fingerprint", "pilot", "approve_pilot", "caption", "classify"]


def edges(dag: Any) -> set[tuple[str, str]]:
    return {(task.task_id, after) for task in dag.tasks for after in task.downstream_task_ids}


def test_the_line_is_in_order_and_what_is_independent_is_side_by_side() -> None:
    dag = load_dags().dags["source_hand"]
    line = set(pairwise(LINE))
    assert edges(dag) == line | {
        ("classify", "index"),
        ("classify", "shard"),
        ("index", "done"),
        ("shard", "done"),
    }


def test_each_profile_of_the_extra_captions_is_a_task_after_the_other(include: Path) -> None:
    file = include / "sources" / "hand.yaml"
    file.write_text(file.read_text() + "extra_captions: [source, qwen3-vl-8b, qwen3.5-9b]\n")
    dag = load_dags().dags["source_hand"]
    tasks = [*LINE[:-1], "caption_qwen3-vl-8b", "caption_qwen3.5-9b", LINE[-1]]
    assert set(pairwise(tasks)) <= edges(dag)
    assert len(dag.tasks) == len(tasks) + 3
    task = dag.task_dict["caption_qwen3.5-9b"]
    assert (task.stage, task.settings["captioner"]) == ("caption", "qwen3.5-9b")
    assert task.settings["max_gpu_hours"] == dag.task_dict["caption"].settings["max_gpu_hours"]
    assert task.execution_timeout == dag.task_dict["caption"].execution_timeout


def test_a_cron_source_works_on_the_day_that_has_ended() -> None:
    dag = load_dags().dags["source_daily"]
    assert isinstance(dag.timetable, CronPartitionTimetable)
    assert (dag.timetable.run_offset, dag.timetable.key_format) == (-1, "%Y-%m-%d")
    assert dag.start_date == datetime(2026, 1, 15, tzinfo=UTC)


def test_a_source_without_cron_waits_for_people() -> None:
    assert isinstance(load_dags().dags["source_hand"].timetable, PartitionedAtRuntime)


@pytest.mark.parametrize("limit", [0, -1, "many", 1.5])
def test_the_form_refuses_a_wrong_limit(limit: Any) -> None:
    from airflow.sdk.exceptions import ParamValidationError

    params = load_dags().dags["source_hand"].params
    params["limit"] = 3
    with pytest.raises(ParamValidationError):
        params["limit"] = limit


@pytest.mark.parametrize(
    ("field", "right", "wrong"),
    [("pilot", (1, 1000), (0, -1, 1001, "many", 1.5)), ("max_gpu_hours", (0.5, 3), (0, -1, "much"))],
)
def test_the_form_refuses_a_wrong_pilot_and_a_wrong_budget(field: str, right: Any, wrong: Any) -> None:
    from airflow.sdk.exceptions import ParamValidationError

    params = load_dags().dags["source_hand"].params
    assert params[field] is None
    for value in right:
        params[field] = value
    for value in wrong:
        with pytest.raises(ParamValidationError):
            params[field] = value


def rendered(dag: Any, task_id: str, **params: Any) -> dict[str, Any]:
    task = dag.task_dict[task_id]
    form = {"limit": None, "captioner": None, "pilot": None, "max_gpu_hours": None, **params}
    context = {"params": form, "dag_run": SimpleNamespace(partition_key="2026-11-20", run_id="r")}
    return dict(task.render_template(task.settings, context, dag.get_template_env()))


def test_a_pilot_is_the_pilots_and_a_budget_is_its_and_captions() -> None:
    from smalti_airflow.stage_settings import resolve_settings

    dag = load_dags().dags["source_hand"]
    stages = [task.task_id for task in dag.tasks if hasattr(task, "stage")]
    assert len(stages) == 8
    for name in stages:
        given = rendered(dag, name, pilot=7, max_gpu_hours=0.25)
        found = resolve_settings(name, given, name)
        assert found["pilot"] == (7 if name == "pilot" else None)
        assert found["max_gpu_hours"] == (0.25 if name in ("pilot", "caption") else None)
    assert rendered(dag, "pilot")["pilot"] == ""
    assert resolve_settings("caption", rendered(dag, "caption"), "caption")["max_gpu_hours"] is None


def test_another_captioner_is_that_of_every_stage() -> None:
    from smalti_airflow.stage_settings import resolve_settings

    dag = load_dags().dags["source_hand"]
    for task in dag.tasks:
        if hasattr(task, "stage"):
            found = resolve_settings(task.stage, rendered(dag, task.task_id, captioner="qwen3-vl-8b"), task.task_id)
            assert found["captioner"]["name"] == "qwen3-vl-8b"
            assert (
                resolve_settings(task.stage, rendered(dag, task.task_id), task.task_id)["captioner"]["name"] == "rules"
            )


def test_without_a_pilot_both_of_its_tasks_are_skipped_and_caption_is_not() -> None:
    from airflow.sdk.exceptions import AirflowSkipException

    dag = load_dags().dags["source_hand"]
    pilot = dag.task_dict["pilot"]
    pilot.settings = rendered(dag, "pilot")
    with pytest.raises(AirflowSkipException):
        pilot.execute({})
    rules = {task.task_id: task.trigger_rule.value for task in dag.tasks}
    assert rules.pop("caption") == "none_failed"  # runs after skipped ones, never after failed ones
    assert set(rules.values()) == {"all_success"}  # so approve_pilot is skipped with pilot, and fails with fingerprint
    assert dag.task_dict["caption"].upstream_task_ids == {"approve_pilot"}


def test_a_person_has_at_least_a_week() -> None:
    from datetime import timedelta

    task = load_dags().dags["source_hand"].task_dict["approve_pilot"]
    assert task.response_timeout >= timedelta(days=7)
    assert task.fail_on_reject


def test_a_person_is_told_what_the_pilots_report_says() -> None:
    dag = load_dags().dags["source_hand"]
    task = dag.task_dict["approve_pilot"]
    report = {
        "page": "gs://b/progress/hand/caption/p/0/2026-11-20/pilot/1.html",
        "profile": "served",
        "model": "m",
        "revision": None,
        "prompt": "plain",
        "eligible": 90,
        "rows": 9,
        "failed": {"refusal": 2},
        "waiting": 81,
        "measured": {"rows_per_second": 3.0, "engines": 1, "hours": 7.5, "gpu_hours": 7.5, "cost": 22.5},
        "stated": None,
    }
    context = {
        "ti": SimpleNamespace(xcom_pull=lambda task_ids: {"pilot": report}[task_ids]),
        "dag_run": SimpleNamespace(partition_key="2026-11-20", run_id="r"),
    }
    task.render_template_fields(context, dag.get_template_env())
    assert task.subject == "Caption batch 2026-11-20 of hand with served?"
    for said in (
        "(https://storage.cloud.google.com/b/progress/hand/caption/p/0/2026-11-20/pilot/1.html)",
        "9 of 90 rows",
        "2 failed (refusal 2)",
        "81 rows wait",
        "7.50 GPU hours, 22.50",
        "At the rate in the profile: not known",
    ):
        assert said in task.body


def test_the_batch_is_the_partition_or_the_run(include: Path) -> None:
    dag = load_dags().dags["source_hand"]
    template = dag.get_template_env().from_string(BATCH)
    run = SimpleNamespace(partition_key=None, run_id="manual__2026-11-30T01:45:00+00:00")
    assert template.render(dag_run=run) == "manual__2026-11-30T01_45_00_00_00"
    run.partition_key = "2026-11-20"
    assert template.render(dag_run=run) == "2026-11-20"


@pytest.mark.parametrize("text", ["manual__2026-11-30T01:45:00.5+00:00", "../x", "ümlaut", "-a", ".a", "x" * 300])
def test_any_run_id_becomes_a_batch_that_settings_allow(text: str) -> None:
    from smalti.settings import source_run

    assert source_run("hand", batch_name(text)).batch == batch_name(text)


class Events(dict[Any, Any]):
    """outlet_events, as far as `done` uses it."""

    def __missing__(self, asset: Any) -> Any:
        event = SimpleNamespace(extra=None, partitions=[])
        event.add_partitions = event.partitions.append
        self[asset] = event
        return event


@pytest.mark.parametrize(("partition", "added"), [("2026-11-20", []), (None, ["b"])])
def test_done_tells_which_part_is_new_and_never_without_a_partition(partition: str | None, added: list[str]) -> None:
    done = load_dags().dags["source_hand"].task_dict["done"]
    assert [asset.uri for asset in done.outlets] == ["smalti://sources/hand"]
    counts = {"rows_in": 3, "rows_out": 2, "dropped": {"truncated": 1}}
    reports = {name: {**counts, "stage": name, "part": "00001-abc"} for name in ("ingest", "fingerprint", "shard")}
    events = Events()
    told = done.python_callable(
        "b",
        ti=SimpleNamespace(xcom_pull=lambda task_ids: reports[task_ids]),
        dag_run=SimpleNamespace(partition_key=partition),
        outlet_events=events,
    )
    event = events[source_asset("hand")]
    assert event.extra == told == {"part": "00001-abc", "batch": "b", "counts": dict.fromkeys(reports, counts)}
    assert event.partitions == added


# Broken files


def test_a_broken_file_takes_only_its_own_dag_away(include: Path) -> None:
    file = include / "sources" / "hand.yaml"
    file.write_text(file.read_text() + "shedule: daily\n")
    bag = load_dags()
    made = {"source_daily", "source_hand", "release_both", "release_either"}
    assert set(bag.dags) == made | {"maintenance", "optout", "optout_inbox", "optout_watch"}
    assert list(bag.import_errors) == ["broken.py"]
    assert f"{file}:4: there is no field 'shedule'. Did you mean schedule?" in bag.import_errors["broken.py"]
    stand_in = bag.dags["source_hand"]
    assert stand_in.tags == {"smalti", "broken"}
    assert not stand_in.timetable.can_be_scheduled
    assert f"{file}:4" in stand_in.doc_md
    assert f"{file}:4" in stand_in.description


def test_a_started_stand_in_fails_with_the_line_and_is_not_tried_again(include: Path) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    (include / "sources" / "hand.yaml").write_text("")
    [task] = load_dags().dags["source_hand"].tasks
    with pytest.raises(AirflowFailException, match=r"hand\.yaml: the file holds no fields"):
        task.python_callable()


def test_every_broken_file_is_named(include: Path) -> None:
    for folder, name in (("sources", "a"), ("datasets", "b"), ("engines", "c")):
        (include / folder / f"{name}.yaml").write_text("nonsense: 1\n")
    [text] = load_dags().import_errors.values()
    assert [name for name in ("a.yaml:1", "b.yaml:1", "c.yaml:1") if name in text] == [
        "a.yaml:1",
        "b.yaml:1",
        "c.yaml:1",
    ]


def test_names_that_lead_nowhere_are_named(include: Path) -> None:
    file = include / "sources" / "hand.yaml"
    file.write_text(file.read_text() + "captioner: rule\nextra_captions: [source, shorter]\n")
    (include / "datasets" / "either.yaml").write_text("sources: [{name: handy}]\n")
    bag = load_dags()
    [text] = bag.import_errors.values()
    engines = ", ".join(sorted(path.stem for path in (include / "engines").glob("*.yaml")))
    assert f"hand.yaml: there is no file engines/rule.yaml. Use one of: {engines}." in text
    assert f"hand.yaml: there is no file engines/shorter.yaml. Use one of: {engines}." in text
    assert "engines/source.yaml" not in text
    assert "either.yaml: there is no file sources/handy.yaml. Use one of: daily, hand" in text
    assert set(bag.dags) >= {"source_hand", "source_daily", "release_both"}
