"""Fixtures of the Airflow side: a head of Ray that is not one, and tasks to run against it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tests.support.airflow_home  # noqa: F401  (before anything imports airflow)
from smalti.lake import Lake
from tests.smalti_airflow.fake_ray_jobs import TOKEN, FakeRay, serve_fake_ray

SOURCE = """\
format: parquet
uri: file:///nowhere
columns: {key: id, image: image}
"""


@pytest.fixture
def ray() -> Iterator[FakeRay]:
    with serve_fake_ray() as ray:
        yield ray


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """include/ with one source `quick` and the engines it names."""
    root = tmp_path / "include"
    (root / "sources").mkdir(parents=True)
    (root / "engines").mkdir()
    (root / "datasets").mkdir()
    (root / "sources" / "quick.yaml").write_text(SOURCE)
    (root / "engines" / "rules.yaml").write_text("role: captioner\nkind: rules\n")
    (root / "engines" / "rules-minilm.yaml").write_text("role: classifier\nkind: rules\n")
    monkeypatch.setenv("SMALTI_CONFIG", str(root))
    return root


@pytest.fixture
def airflow_env(ray: FakeRay, lake: Lake, config: Path, monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    """What a worker's environment says: the connection, the lake."""
    host, port = ray.url.removeprefix("http://").split(":")
    connection = {"conn_type": "http", "host": host, "port": int(port), "password": TOKEN}
    monkeypatch.setenv("AIRFLOW_CONN_SMALTI_RAY", json.dumps(connection))
    monkeypatch.setenv("SMALTI_LAKE", lake.root)
    monkeypatch.delenv("SMALTI_JOB_ENV", raising=False)
    return ray


def context(task: str = "ingest", run: str = "manual__1", map_index: int = -1) -> Any:
    """What an operator reads of a task's context."""
    return {"ti": SimpleNamespace(dag_id="source_quick", run_id=run, task_id=task, map_index=map_index)}
