"""Release DAGs: what starts them, their form, and what a task hands to the next."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import AssetAll, AssetAny, PartitionedAssetTimetable
from airflow.sdk.exceptions import ParamValidationError

from smalti.errors import InputError
from tests.dags.conftest import load_dags

pytestmark = pytest.mark.usefixtures("include")


def test_a_release_waits_for_all_or_any_of_its_sources() -> None:
    dags = load_dags().dags
    for name, kind in (("both", AssetAll), ("either", AssetAny)):
        timetable = dags[f"release_{name}"].timetable
        assert isinstance(timetable, PartitionedAssetTimetable)
        assert isinstance(timetable.asset_condition, kind)
        assert sorted(asset.uri for asset in timetable.asset_condition.objects) == [
            "smalti://sources/daily",
            "smalti://sources/hand",
        ]


def test_keys_of_any_cadence_start_it() -> None:
    mapper = load_dags().dags["release_both"].timetable.default_partition_mapper
    assert {mapper.to_downstream(key) for key in ("2026-11-20", "2026-W47", "manual__x")} == {"latest"}


def test_the_steps_follow_each_other() -> None:
    dag = load_dags().dags["release_both"]
    order = ["curate", "assemble", "verify", "publish"]
    assert {(task.task_id, after) for task in dag.tasks for after in task.downstream_task_ids} == set(pairwise(order))


def test_a_person_is_asked_where_the_dataset_says_so(include: Path) -> None:
    (include / "datasets" / "asked.yaml").write_text("sources: [{name: daily}]\napprove: true\n")
    dag = load_dags().dags["release_asked"]
    order = ["curate", "assemble", "verify", "approve", "publish"]
    assert {(task.task_id, after) for task in dag.tasks for after in task.downstream_task_ids} == set(pairwise(order))


@pytest.mark.parametrize("version", ["a b", "", "../x", "x" * 101, 7])
def test_the_form_refuses_a_wrong_version(version: Any) -> None:
    params = load_dags().dags["release_both"].params
    params["version"] = "v3.1-rc"
    params["version"] = None
    with pytest.raises(ParamValidationError):
        params["version"] = version


def rendered(
    dag: Any, task_id: str, version: str | None, reports: dict[str, Any], without: str | None = None
) -> dict[str, Any]:
    task = dag.task_dict[task_id]
    context = {
        "params": {"version": version, "without": without},
        "ti": SimpleNamespace(xcom_pull=lambda task_ids: reports[task_ids]),
        "dag_run": SimpleNamespace(partition_key=None, run_id="r"),
    }
    settings = task.render_template(task.settings, context, dag.get_template_env())
    return dict(settings)


def test_uris_go_from_task_to_task() -> None:
    dag = load_dags().dags["release_both"]
    reports = {"curate": {"curation": "gs://b/c.json.gz"}, "assemble": {"manifest": "gs://b/manifest.json"}}
    curate = {"dataset": "both", "version": "", "build": "r", "without": ""}
    assert rendered(dag, "curate", None, reports) == curate
    assert rendered(dag, "assemble", "v2", reports) == {
        **curate,
        "version": "v2",
        "curation": "gs://b/c.json.gz",
    }
    for task in ("verify", "publish"):
        assert rendered(dag, task, "v2", reports) == {"dataset": "both", "manifest": "gs://b/manifest.json"}


def test_what_is_rendered_are_settings_that_the_stages_take() -> None:
    from smalti_airflow.stage_settings import resolve_settings

    dag = load_dags().dags["release_both"]
    reports = {"curate": {"curation": "gs://b/c.json.gz"}, "assemble": {"manifest": "gs://b/manifest.json"}}
    for task in ("curate", "assemble", "verify", "publish"):
        settings = resolve_settings(task, rendered(dag, task, "v2", reports), "test")
        assert settings["dataset"]["name"] == "both"
        assert [source["name"] for source in settings["sources"]] == ["daily", "hand"]
    settings = resolve_settings("curate", rendered(dag, "curate", "", reports, "text, nsfw"), "test")
    assert settings["without"] == ["nsfw", "text"]
    with pytest.raises(InputError, match="'optout' cannot be left out"):
        resolve_settings("curate", rendered(dag, "curate", "", reports, "optout"), "test")


def test_a_broken_dataset_takes_only_its_own_dag_away(include: Path) -> None:
    (include / "datasets" / "both.yaml").write_text("sources: []\n")
    bag = load_dags()
    assert bag.dags["release_both"].tags == {"smalti", "broken"}
    assert "release" in bag.dags["release_either"].tags
    assert "both.yaml:1: sources is wrong" in bag.import_errors["broken.py"]
