"""What every DAG of this project keeps to, whatever it does."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tomllib
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from smalti_airflow.notifier import FailureNotifier
from tests.dags.conftest import load_dags, make_include
from tests.support.airflow_home import ROOT

KINDS = {"source", "release", "maintenance", "optout", "broken"}
OPTOUTS = {"optout", "optout_inbox", "optout_watch"}
TAGS = {"smalti", *KINDS}
BUILDERS = [*sorted((ROOT / "dags").glob("*.py")), ROOT / "include" / "smalti_airflow" / "broken.py"]


@pytest.fixture(scope="module", params=["repository", "made"])
def bag(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The repository's own files, and ones of every kind that there is, a broken one too."""
    if request.param == "repository":
        return request.getfixturevalue("repository")
    root = make_include(tmp_path_factory.mktemp("made") / "include")
    (root / "sources" / "wrong.yaml").write_text("format: tapestry\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SMALTI_CONFIG", str(root))
        return load_dags()


def test_every_file_has_its_dag_and_nothing_is_broken(repository: Any) -> None:
    assert repository.import_errors == {}
    sources = {f"source_{path.stem}" for path in (ROOT / "include" / "sources").glob("*.yaml")}
    datasets = {f"release_{path.stem}" for path in (ROOT / "include" / "datasets").glob("*.yaml")}
    assert set(repository.dags) == sources | datasets | {"maintenance", *OPTOUTS}
    assert "source_demo" in sources


def test_tags_are_known_ones(bag: Any) -> None:
    for dag in bag.dags.values():
        assert "smalti" in dag.tags
        assert dag.tags <= TAGS
        assert len(dag.tags & KINDS) == 1


def test_everything_has_an_owner_and_a_manual(bag: Any) -> None:
    for dag in bag.dags.values():
        assert {task.owner for task in dag.tasks} == {"smalti"}
        assert dag.doc_md.strip()
        if "broken" not in dag.tags:
            for word in (
                "Starts",
                "Fails",
                "Needs",
                *(f"| {task.task_id.partition('@')[0]}" for task in dag.tasks[:1]),
            ):
                assert word in dag.doc_md


def test_every_task_is_tried_again_ends_in_time_and_tells_when_it_does_not(bag: Any) -> None:
    for dag in bag.dags.values():
        for task in dag.tasks:
            assert task.retries >= 1
            assert task.retry_delay >= timedelta(seconds=5)
            assert task.execution_timeout is not None
            assert any(isinstance(callback, FailureNotifier) for callback in task.on_failure_callback)


def test_catchup_and_active_runs_are_decided_where_a_dag_is_made() -> None:
    made = 0
    for path in BUILDERS:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("dag", "DAG"):
                given = {keyword.arg for keyword in node.keywords}
                assert {"catchup", "max_active_runs", "schedule", "start_date", "doc_md", "tags"} <= given, path
                made += 1
    assert made == 7


def test_runs_do_not_overlap_and_nothing_is_caught_up_unasked(bag: Any) -> None:
    for dag in bag.dags.values():
        assert (dag.catchup, dag.max_active_runs) == (False, 1000 if dag.dag_id == "optout" else 1)


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Two parses by two processes that hash differently."""
    root = make_include(tmp_path_factory.mktemp("parsed") / "include")
    answers = []
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "SMALTI_CONFIG": str(root)}
        done = subprocess.run(
            [sys.executable, "-m", "tests.dags.parse"], cwd=ROOT, env=env, capture_output=True, text=True, check=True
        )
        answers.append(json.loads(done.stdout.splitlines()[-1]))
    return answers


def test_each_dag_serialises_to_the_same_bytes_twice(parsed: list[dict[str, Any]]) -> None:
    first, second = parsed
    assert first["errors"] == {}
    assert set(first["dags"]) == {
        "source_daily",
        "source_hand",
        "release_both",
        "release_either",
        "maintenance",
        *OPTOUTS,
    }
    assert first["dags"] == second["dags"]


def test_parsing_imports_nothing_heavy(parsed: list[dict[str, Any]]) -> None:
    lint = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    banned = {name.partition(".")[0] for name in lint["flake8-tidy-imports"]["banned-module-level-imports"]}
    heavy = (banned - {"google"}) | {"numpy", "pyarrow", "pandas", "PIL", "httpx"}
    assert set(parsed[0]["modules"]) & heavy == set()
    assert "smalti_airflow" in parsed[0]["modules"]  # so the list says something


def test_parsing_is_quick(parsed: list[dict[str, Any]]) -> None:
    """CPU seconds beyond Airflow's own imports; issue budget 2."""
    assert min(each["seconds"] for each in parsed) < 2.0


def test_two_hundred_sources_are_two_hundred_dags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    root = make_include(tmp_path / "include")
    for number in range(200):
        (root / "sources" / f"s{number:03}.yaml").write_text((root / "sources" / "daily.yaml").read_text())
    monkeypatch.setenv("SMALTI_CONFIG", str(root))
    started = time.process_time()
    bag = load_dags()
    assert len([dag for dag in bag.dags if dag.startswith("source_s")]) == 200
    assert time.process_time() - started < 10
