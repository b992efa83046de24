"""The opt-out DAG: what the form asks, when a person is asked, and what the stages are told."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException, ParamValidationError

from smalti.errors import LakeError
from smalti.lake import Lake
from smalti.objects import create_bytes, list_objects
from smalti.optouts.keys import KeyKind
from smalti.optouts.lost import Lost
from smalti.optouts.request import Action, read_answer, read_request
from smalti.optouts.status import standings
from smalti_airflow.approval import ApproveOptout, optout_text
from smalti_airflow.optouts import (
    erase_again,
    forget_what_is_over,
    hand_in_form,
    take_in_files,
    take_lost,
    watch_deadlines,
)
from smalti_airflow.stage_settings import EMPTY, resolve_settings
from tests.support.airflow_home import ROOT

FORM = {
    "action": "query",
    "reference": "",
    "keys": None,
    "file": None,
    "withdraws": None,
    "reason": None,
    "ask_above": 1000,
    "grace_days": 7,
    "request": None,
}
ID = "0123456789abcdef"
REPORT = {
    "request": ID,
    "action": "exclude",
    "reference": "T-7",
    "keys": 3,
    "matched": 12,
    "by_key": 5,
    "near": 2,
    "unmatched": 1,
    "digest": "d" * 64,
    "sources": {"cats": 12},
    "ask": "it names a domain or a prefix",
    "page": "gs://bucket/lake/optouts/requests/x/preview.html",
    "warnings": [],
}


@pytest.fixture
def dag(repository: Any) -> Any:
    return repository.dags["optout"]


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    monkeypatch.setenv("SMALTI_LAKE", str(tmp_path / "lake"))
    return Lake.from_environment()


def run_of(run_id: str = "manual__1") -> Any:
    """As a task has it: what it lacks an attribute for raises."""
    from airflow.sdk.api.datamodels._generated import DagRun

    return DagRun.model_construct(
        dag_id="optout", run_id=run_id, run_after=datetime(2026, 11, 30, 12, tzinfo=UTC), triggering_user_name="ada"
    )


def rendered(dag: Any, task_id: str, **reports: Any) -> Any:
    task = dag.task_dict[task_id]
    told = {"preview": REPORT} | reports
    context = {"ti": SimpleNamespace(xcom_pull=lambda task_ids: told.get(task_ids)), "params": dict(dag.params)}
    what = task.settings if hasattr(task, "settings") else {"request": task.request, "ask": task.ask}
    return task.render_template(what, context, dag.get_template_env())


def test_the_steps_follow_each_other_and_a_skipped_confirmation_stops_nothing(dag: Any) -> None:
    order = ["receive", "preview", "confirm", "apply", "prove", "erase", "grace", "remove"]
    assert {(task.task_id, after) for task in dag.tasks for after in task.downstream_task_ids} == set(pairwise(order))
    assert {dag.task_dict[name].trigger_rule for name in order[3:5]} == {"none_failed"}
    assert {dag.task_dict[name].trigger_rule for name in order[5:]} == {"all_success"}, (
        "skipped with what is not erased"
    )


def test_the_form_begins_harmless(dag: Any) -> None:
    assert {name: dag.params[name] for name in dag.params} == FORM


@pytest.mark.parametrize(
    ("field", "wrong"),
    [("action", "delete"), ("ask_above", -1), ("withdraws", "../x"), ("request", "'; --"), ("reference", "x" * 201)],
)
def test_the_form_refuses_what_makes_no_sense(dag: Any, field: str, wrong: Any) -> None:
    with pytest.raises(ParamValidationError):
        dag.params[field] = wrong
    assert dag.params[field] == FORM[field]


def test_what_is_typed_becomes_one_request_however_often_the_task_runs(lake: Lake) -> None:
    form = FORM | {"action": "exclude", "reference": " T-7 ", "keys": "id cats/1.jpg\nowner Ada\nnonsense\n"}
    said = hand_in_form(form, run_of())
    assert said == hand_in_form(form, run_of())
    request = read_request(lake, said["request"])
    assert (request.action, request.reference, request.submitted_by) == (Action.EXCLUDE, "T-7", "airflow:ada")
    erases = hand_in_form(form | {"action": "erase", "grace_days": 30}, run_of())["request"]
    assert read_request(lake, erases).grace_days == 30, "kept for runs that are started for it later"
    assert [(key.kind, key.value) for key in request.keys] == [(KeyKind.ID, "cats/1.jpg"), (KeyKind.OWNER, "Ada")]
    assert said == {"request": request.id, "action": "exclude", "keys": 2, "rejected": 1}
    assert hand_in_form(form, run_of("manual__2"))["request"] != request.id, "another run asks anew"
    assert hand_in_form(FORM | {"request": request.id}, run_of("manual__3")) == said, "goes on with what is there"


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"keys": "id a/b"}, "there is no reference"),
        ({"reference": "T", "keys": "id a/b", "file": "/x.csv"}, "both keys and a file"),
        ({"reference": "T"}, "no key"),
        ({"reference": "T", "file": "/tmp/ada.csv"}, "^the form's file: there is no such file"),
        ({"reference": "T", "keys": "x"}, "none of its 1 rows is a key"),
        ({"reference": "T", "action": "withdraw"}, "withdraw"),
        ({"request": ID}, "no such request"),
    ],
)
def test_a_form_that_asks_for_nothing_fails_at_once(lake: Lake, form: dict[str, Any], message: str) -> None:
    with pytest.raises(AirflowFailException, match=message):
        hand_in_form(FORM | form, run_of())
    assert not [each for each in list_objects(lake.optout_requests()) if each.uri.endswith("request.json.gz")]


@pytest.mark.parametrize(
    "file", ["s3://bucket/ada-lovelace.csv", "/tmp/ada-lovelace.csv", "gs://bucket/x/ada-lovelace.csv"]
)
def test_no_error_of_a_file_names_it(lake: Lake, monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    """People call files by what is in them, and errors are logged."""

    def refused(uri: str) -> bytes:
        raise LakeError(f"GET /o/{uri.split('/', 3)[3].replace('/', '%2F')} failed", uri, f"See {uri}")

    monkeypatch.setattr("smalti_airflow.optouts.read_bytes", refused)
    with pytest.raises(AirflowException) as caught:
        hand_in_form(FORM | {"reference": "T", "file": file}, run_of())
    assert "ada" not in str(caught.value)
    assert str(caught.value).startswith("the form's file: ")
    assert isinstance(caught.value, AirflowFailException) is file.startswith("s3"), "a store may answer the next time"


def test_no_key_leaves_the_worker(dag: Any) -> None:
    """XComs, specs of jobs and what a person is asked are seen by more people than the ledger is."""
    assert rendered(dag, "preview", receive={"request": ID, "action": "exclude"}) == {"request": ID}
    assert set(dag.task_dict["apply"].settings) == {"request", "confirmed_by", "seen"}


@pytest.mark.parametrize(("action", "applies"), [("query", False), ("exclude", True), ("withdraw", True)])
def test_a_query_applies_nothing(dag: Any, action: str, applies: bool) -> None:
    settings = rendered(dag, "apply", receive={"request": ID, "action": action})
    assert dag.task_dict["apply"].only_with == "request"
    assert (settings["request"] not in EMPTY) is applies


@pytest.mark.parametrize(
    ("action", "erases"), [("query", False), ("exclude", False), ("withdraw", False), ("erase", True)]
)
def test_only_a_request_to_erase_is_erased(dag: Any, action: str, erases: bool) -> None:
    for name in ("erase", "remove"):
        settings = rendered(dag, name, receive={"request": ID, "action": action})
        assert dag.task_dict[name].only_with == "request"
        assert (settings["request"] not in EMPTY) is erases


def test_old_parts_stay_for_the_grace_of_the_form(dag: Any) -> None:
    """Counted from when they were erased, not from when the request came."""
    report: dict[str, Any] = {"erased": "2026-11-30T12:00:00.5Z"}
    grace = dag.task_dict["grace"]
    context = {"ti": SimpleNamespace(xcom_pull=lambda task_ids: report), "params": {"grace_days": 1.5}}
    assert (
        grace.render_template(grace.target_time, context, dag.get_template_env()) == "2026-12-02T00:00:00.500000+00:00"
    )
    report["grace_days"] = 3
    assert grace.render_template(grace.target_time, context, dag.get_template_env()).startswith("2026-12-03"), (
        "a run with fewer days waits for those that were asked for"
    )
    assert grace.execution_timeout > timedelta(days=365), "it counts while the task waits, too"
    assert resolve_settings("optout_remove", {"request": ID, "grace_days": "1.5"}, "test")["grace_days"] == 1.5


def test_who_confirmed_reaches_the_ledger(dag: Any) -> None:
    reports = {
        "receive": {"request": ID, "action": "erase"},
        "preview": {"digest": "d" * 64},
        "confirm": {"responded_by_user": {"id": "1", "name": "Ada"}},
    }
    settings = resolve_settings("optout_apply", rendered(dag, "apply", **reports), "test")
    assert settings == {"request": ID, "confirmed_by": "Ada", "seen": REPORT["digest"], "grace_days": 7.0}
    del reports["confirm"]
    assert resolve_settings("optout_apply", rendered(dag, "apply", **reports), "test")["confirmed_by"] is None


def test_a_person_is_asked_only_where_the_preview_says_why(dag: Any) -> None:
    assert rendered(dag, "confirm", preview=REPORT) == {"request": ID, "ask": REPORT["ask"]}
    task = ApproveOptout(task_id="confirm", preview="preview")
    task.ask = ""
    with pytest.raises(AirflowSkipException, match="no more than"):
        task.execute({})


def test_what_applies_and_is_not_proved_is_proved_again(
    lake: Lake, repository: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a run that asks nobody again; one whose own run may still be at it is left alone."""
    from smalti.optouts.apply import apply, prove
    from smalti.optouts.preview import preview
    from smalti.settings import OptoutRun

    form = FORM | {"action": "exclude", "reference": "T-7", "keys": "domain example.org"}
    run = OptoutRun(request=hand_in_form(form, run_of())["request"], confirmed_by="Ada")
    assert preview(lake, run).ask
    with monkeypatch.context() as patch:
        patch.setattr("smalti_airflow.optouts._OWN_RUN", timedelta(0))
        assert take_lost() == [], "it waits for a person"
    apply(lake, run)
    assert take_lost() == []
    monkeypatch.setattr("smalti_airflow.optouts._OWN_RUN", timedelta(0))
    (again,) = take_lost()
    assert (again["conf"], again["run"].startswith(f"prove_{run.request}_")) == ({"request": run.request}, True)
    assert preview(lake, run).ask == ""
    prove(lake, run)
    assert take_lost() == []
    assert repository.dags["optout_watch"].task_dict["lost_runs"].downstream_task_ids == {"prove_again"}


def test_what_is_erased_again_keeps_the_grace_that_was_asked_for(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Lost(ID, 30, removes=True), Lost("f" * 16)]
    monkeypatch.setattr("smalti_airflow.optouts.lost", lambda *_, **__: found)
    first, second = take_lost()
    assert (first["conf"], second["conf"]) == ({"request": ID, "grace_days": 30}, {"request": "f" * 16})
    assert re.fullmatch(rf"remove_{ID}_\d{{8}}", first["run"]), "one a day: it may read the whole lake"
    assert re.fullmatch(r"prove_f{16}_\d{8}T\d\d", second["run"])


def test_what_came_back_is_erased_by_a_run_of_its_own(lake: Lake, repository: Any) -> None:
    form = FORM | {"action": "erase", "reference": "T-7", "keys": "id cats/1.jpg", "grace_days": 30}
    request = hand_in_form(form, run_of())["request"]
    assert erase_again({"again": {}}) == []
    [again] = erase_again({"again": {request: "rows of tables"}})
    assert again["conf"] == {"request": request, "grace_days": 30}
    assert re.fullmatch(rf"again_{request}_\d{{8}}", again["run"]), "one a day: its grace begins anew"
    task = repository.dags["optout_watch"].task_dict["look"]
    assert resolve_settings(task.stage, task.settings, "test") == {}
    [known] = standings(lake)
    assert known.again is None


def test_somebody_is_told_before_a_request_is_late(lake: Lake) -> None:
    form = FORM | {"action": "exclude", "reference": "T-7", "keys": "domain example.org"}
    run = SimpleNamespace(dag_id="optout_watch", run_id="1")
    hours = [(datetime.now(UTC) - timedelta(hours=each), says) for each, says in ((19, "soon"), (30, "are overdue"))]
    for at, says in hours:
        lake_run = run_of(f"run {says}")
        lake_run.run_after = at
        hand_in_form(form, lake_run)
        with pytest.raises(AirflowFailException, match=says):
            watch_deadlines(run)


def test_a_no_is_written_into_the_ledger(lake: Lake) -> None:
    form = FORM | {"action": "exclude", "reference": "T-7", "keys": "domain example.org"}
    request = hand_in_form(form, run_of())["request"]
    from smalti.optouts.preview import preview
    from smalti.settings import OptoutRun

    assert preview(lake, OptoutRun(request=request)).ask == "it names a domain or a prefix"
    task = ApproveOptout(task_id="confirm", preview="preview")
    task.request, task.where = request, f"opt-out {request}"
    event = {
        "chosen_options": ["Reject"],
        "responded_by_user": {"id": "1", "name": "Ada"},
        "params_input": {},
        "responded_at": datetime.now(UTC),
    }
    with pytest.raises(AirflowFailException, match="Ada rejected the request"):
        task.execute_complete({}, event)
    answer = read_answer(lake, request)
    assert answer is not None
    assert (answer.apply, answer.by) == (False, "Ada")


def test_what_a_person_is_told() -> None:
    text = optout_text(REPORT)
    assert f"[The request's page](/smalti/optouts/{ID}/preview.html)" in text, "there, who opens it is recorded"
    assert (
        "3 keys match 12 places in parts (cats 12): 5 by a key, 7 as copies of those. 2 look-alikes would stay" in text
    )
    assert optout_text(None) == "There is no preview."


def test_airflow_served_below_a_path_is_linked_to_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://flow.example.org/team/")
    assert f"(/team/smalti/optouts/{ID}/preview.html)" in optout_text(REPORT)


def test_the_audit_log_holds_no_keys_where_they_are_named_as_sensitive() -> None:
    """As Airflow's API writes down what it was sent (airflow/api_fastapi/logging/decorators.py)."""
    from airflow._shared.secrets_masker import secrets_masker

    masker = secrets_masker.SecretsMasker()
    masker.sensitive_variables_fields = [*secrets_masker.DEFAULT_SENSITIVE_FIELDS]
    sent = {"keys": "owner Ada", "reference": "T-7"}
    assert masker.redact(sent, "conf") == sent
    compose = yaml.safe_load((ROOT / "docker-compose.yaml").read_text())
    named = compose["x-airflow"]["environment"]["AIRFLOW__CORE__SENSITIVE_VAR_CONN_NAMES"]
    masker.sensitive_variables_fields += named.split(",")  # airflow/settings.py
    assert masker.redact(sent, "conf") == {"keys": "***", "reference": "T-7"}


def test_the_watch_forgets_beside_counting_and_either_goes_on_without_the_other(repository: Any) -> None:
    tasks = repository.dags["optout_watch"].tasks
    assert {(task.task_id, *task.downstream_task_ids) for task in tasks} == {
        ("watch",),
        ("forget",),
        ("lost_runs", "prove_again"),
        ("prove_again",),
        ("look", "came_back"),
        ("came_back", "erase_again"),
        ("erase_again",),
    }


def test_what_is_over_is_forgotten(lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SMALTI_CONFIG", str(tmp_path))
    (tmp_path / "optouts.yaml").write_text("rejected_days: 0\n")
    create_bytes(lake.optout_rejected(ID), b"of no request")
    assert forget_what_is_over()["rejected"] == 1
    assert forget_what_is_over()["rejected"] == 0


def test_dropped_files_become_runs_of_their_own(lake: Lake, repository: Any) -> None:
    folder = Path(lake.optout_inbox().removeprefix("file://")) / "exclude" / "T-8"
    folder.mkdir(parents=True)
    (folder / "keys.csv").write_text("kind,value\nid,cats/1.jpg\n")
    (folder / "broken.parquet").write_bytes(b"PAR1 is not enough")
    taken = take_in_files()
    assert [set(each) for each in taken] == [{"request"}], "a broken file is in nobody's way"
    request = read_request(lake, taken[0]["request"])
    assert (request.reference, request.keys[0].value) == ("T-8", "cats/1.jpg")
    assert list(folder.rglob("*.csv")) == []
    assert take_in_files() == taken, "until a run goes on with it: one that was started is found by its name"
    form = {name: repository.dags["optout"].params[name] for name in repository.dags["optout"].params}
    assert hand_in_form(form | taken[0], run_of("inbox_1"))["request"] == request.id
