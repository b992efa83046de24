"""The DAGs as Airflow would load them, from the repository's include/ and from ones made for a test."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import tests.support.airflow_home  # noqa: F401  (before anything imports airflow)
from tests.support.airflow_home import ROOT

DAILY = """\
format: parquet
uri: gs://bucket/daily
columns: {key: id, image: image}
schedule: 0 3 * * *
start: "2026-01-15"
"""
HAND = "format: parquet\nuri: gs://bucket/hand\ncolumns: {key: id, image: image}\n"
BOTH = "sources: [{name: daily}, {name: hand}]\nschedule: all\n"
EITHER = "sources: [{name: daily}, {name: hand}]\nschedule: any\n"


def make_include(root: Path) -> Path:
    """include/ with a daily source, one that people start, and datasets of both; engines as they are in the repository."""
    for folder in ("sources", "datasets"):
        (root / folder).mkdir(parents=True)
    shutil.copytree(ROOT / "include" / "engines", root / "engines")
    (root / "sources" / "daily.yaml").write_text(DAILY)
    (root / "sources" / "hand.yaml").write_text(HAND)
    (root / "datasets" / "both.yaml").write_text(BOTH)
    (root / "datasets" / "either.yaml").write_text(EITHER)
    return root


def load_dags() -> Any:
    """Airflow's own bag of dags/."""
    from airflow.dag_processing.dagbag import DagBag

    return DagBag(dag_folder=str(ROOT / "dags"), bundle_path=ROOT / "dags", bundle_name="dags-folder")


@pytest.fixture(scope="session")
def repository() -> Any:
    """The DAGs of the repository as it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SMALTI_CONFIG", raising=False)
        return load_dags()


@pytest.fixture
def include(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An include/ of the test's own, which DAG files read."""
    root = make_include(tmp_path / "include")
    monkeypatch.setenv("SMALTI_CONFIG", str(root))
    return root
