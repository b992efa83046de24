"""An engine's key: from the Airflow connection to the job, readable by nobody on the way."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskDeferred

from smalti.engines import openai
from smalti.engines.sealing import PREFIX, unseal
from smalti.lake import Lake
from smalti.objects import list_objects, read_bytes
from smalti.profiles import PromptText
from smalti_airflow import engine_keys
from smalti_airflow.operators import RayStage
from tests.smalti_airflow.conftest import context
from tests.smalti_airflow.fake_ray_jobs import HELD, TOKEN, FakeRay

pytestmark = pytest.mark.usefixtures("airflow_env")

SECRET = "sk-do-not-show-0123456789"
PROMPT = PromptText(user="Describe it: {caption}")
SERVED = """\
role: {role}
kind: openai
model: m
base_url: http://127.0.0.1:9/v1
prompt: {{ name: plain, sha256: {sha256} }}
key: {{ {key} }}
"""


@pytest.fixture(autouse=True)
def served(config: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Source `quick` has a captioner and a classifier that need the key of connection `server`."""
    (config / "engines" / "prompts").mkdir()
    (config / "engines" / "prompts" / "plain.yaml").write_text(f"user: {json.dumps(PROMPT.user)}\n")
    for role in ("captioner", "classifier"):
        write(config, role)
    file = config / "sources" / "quick.yaml"
    file.write_text(file.read_text() + "captioner: served-captioner\nclassifier: served-classifier\n")
    monkeypatch.setenv("AIRFLOW_CONN_SERVER", json.dumps({"conn_type": "http", "password": SECRET}))
    monkeypatch.delenv("SMALTI_ENGINE_KEY", raising=False)
    return config


def write(config: Path, role: str, key: str = "connection: server") -> None:
    text = SERVED.format(role=role, sha256=PROMPT.sha256, key=key)
    (config / "engines" / f"served-{role}.yaml").write_text(text)


def stage(name: str, **more: Any) -> RayStage:
    given = {"source": "quick", "batch": "b", "limit": "", "pilot": "2"}
    return RayStage(**{"task_id": name, "stage": name, "settings": given, "wait_here": 10.0, **more})


def env_of(ray: FakeRay) -> dict[str, str]:
    [job] = ray.jobs.values()
    return dict(job.body.get("runtime_env", {}).get("env_vars", {}))


def test_both_sides_name_one_variable() -> None:
    assert engine_keys.KEY_VARIABLE == openai.KEY_VARIABLE


@pytest.mark.parametrize("name", ["pilot", "caption", "classify"])
def test_the_key_reaches_the_job_and_nobody_else(
    name: str, ray: FakeRay, lake: Lake, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    operator = stage(name)
    report = operator.execute(context(name))
    sealed = env_of(ray)["SMALTI_ENGINE_KEY"]
    assert sealed.startswith(PREFIX)
    assert unseal(sealed, TOKEN) == SECRET
    [job] = ray.jobs.values()
    in_lake = [read_bytes(info.uri).decode(errors="replace") for info in list_objects(lake.root)]
    assert len(in_lake) >= 4
    shown = [json.dumps(job.body), json.dumps(report), caplog.text, repr(vars(operator)), repr(operator), *in_lake]
    assert not [text for text in shown if SECRET in text or TOKEN in text]
    # what the worker makes of it
    monkeypatch.setenv("SMALTI_ENGINE_KEY", sealed)
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    from smalti.config import load_engine

    assert openai.read_key(load_engine("served-captioner", "captioner")) == SECRET


def test_a_deferred_task_carries_no_key(ray: FakeRay) -> None:
    ray.lives[0] = (HELD,)
    with pytest.raises(TaskDeferred) as caught:
        stage("caption", wait_here=0).execute(context("caption"))
    assert env_of(ray)["SMALTI_ENGINE_KEY"].startswith(PREFIX)
    for text in (repr(caught.value.trigger.serialize()), repr(caught.value.kwargs)):
        assert SECRET not in text
        assert PREFIX not in text


@pytest.mark.parametrize("name", ["stage", "ingest", "fingerprint", "index", "shard"])
def test_a_stage_without_an_engine_gets_no_key(name: str, ray: FakeRay) -> None:
    stage(name).execute(context(name))
    assert env_of(ray) == {}


@pytest.mark.parametrize("key", ["env: MY_KEY", ""])
def test_a_profile_without_a_connection_gets_no_key(key: str, ray: FakeRay, served: Path) -> None:
    write(served, "captioner", key)
    stage("caption").execute(context("caption"))
    assert env_of(ray) == {}


def test_a_job_keeps_the_rest_of_its_environment(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMALTI_JOB_ENV", "PLACE")
    monkeypatch.setenv("PLACE", "/here")
    stage("caption").execute(context("caption"))
    assert set(env_of(ray)) == {"PLACE", "SMALTI_ENGINE_KEY"}


def refused(ray: FakeRay) -> str:
    with pytest.raises(AirflowFailException) as caught:
        stage("caption").execute(context("caption"))
    assert ray.jobs == {}
    assert SECRET not in str(caught.value)
    return str(caught.value)


def test_a_missing_connection_is_named(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_SERVER")
    monkeypatch.setattr(BaseHook, "get_connection", classmethod(_from_environment))
    assert "engines/served-captioner.yaml: there is no Airflow connection 'server'" in refused(ray)


def _from_environment(cls: Any, conn_id: str) -> Any:
    """BaseHook's, without the database of connections that a worker would ask next."""
    import os

    from airflow.sdk import Connection
    from airflow.sdk.exceptions import AirflowNotFoundException

    text = os.environ.get(f"AIRFLOW_CONN_{conn_id.upper()}")
    if text is None:
        raise AirflowNotFoundException(f"The conn_id `{conn_id}` isn't defined")
    return Connection.from_json(text, conn_id=conn_id)


@pytest.mark.parametrize("password", [None, "", " \n"])
def test_a_connection_without_a_password_is_named(
    ray: FakeRay, password: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SERVER", json.dumps({"conn_type": "http", "password": password}))
    assert "Airflow connection 'server' has no password" in refused(ray)


def test_a_cluster_without_a_token_gets_no_key(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    host, port = ray.url.removeprefix("http://").split(":")
    connection = {"conn_type": "http", "host": host, "port": int(port)}
    monkeypatch.setenv("AIRFLOW_CONN_SMALTI_RAY", json.dumps(connection))
    assert "name it as `key.env`" in refused(ray)


# A task that is skipped where a field of the form is empty


@pytest.mark.parametrize("empty", ["", "None", None])
def test_a_task_without_its_field_is_skipped_and_ray_is_not_asked(ray: FakeRay, empty: str | None) -> None:
    operator = stage("pilot", only_with="pilot", settings={"source": "quick", "batch": "b", "pilot": empty})
    with pytest.raises(AirflowSkipException):
        operator.execute(context("pilot"))
    assert ray.requests == []


def test_a_task_with_its_field_is_run(ray: FakeRay) -> None:
    assert stage("pilot", only_with="pilot").execute(context("pilot"))["stage"] == "pilot"
