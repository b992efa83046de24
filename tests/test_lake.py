"""Names of places in the lake."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smalti.errors import InputError
from smalti.lake import Lake, safe_name

REPOSITORY = Path(__file__).resolve().parents[1]


def test_the_layout_is_the_published_one() -> None:
    lake = Lake.at("gs://bucket/lake/")
    assert lake.inventory("s", "2026-11-20") == "gs://bucket/lake/staging/s/2026-11-20/inventory.parquet"
    assert lake.table("s") == "gs://bucket/lake/tables/s.lance"
    assert (
        lake.shard("s", "00001-abc", 512, "1.000", 7) == "gs://bucket/lake/parts/s/00001-abc/512/1.000/shard.00007.mds"
    )
    assert lake.part_commit("s", "p") == "gs://bucket/lake/parts/s/p/part.json"
    assert lake.manifest("d", "v1") == "gs://bucket/lake/releases/d/v1/manifest.json"
    assert lake.latest("d") == "gs://bucket/lake/releases/d/LATEST"


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", ".hidden", "a b", "a\nb", "-x"])
def test_a_name_that_could_leave_its_place_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="cannot be a name in the lake"):
        Lake.at("gs://b/l").table(name) if name == "" else Lake.at("gs://b/l").inventory(name, "b")


@given(st.text(min_size=1, max_size=60))
def test_any_run_id_becomes_one_name(run: str) -> None:
    uri = Lake.at("gs://b/l").run_object("dag", run, "task", "spec.json")
    assert uri == f"gs://b/l/runs/dag/{safe_name(run)}/task/spec.json"
    assert uri.count("/") == 8


def test_no_environment_no_lake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SMALTI_LAKE", raising=False)
    with pytest.raises(InputError, match="SMALTI_LAKE: no lake is named"):
        Lake.from_environment()


def test_paths_of_the_lake_are_spelled_in_lake_py_alone() -> None:
    """No other module has a text that starts like a path in the lake (docstrings may show one)."""
    spelled = re.compile(r"(staging|tables|progress|parts|releases|optouts|runs)/")
    found = []
    for folder in ("include/smalti", "include/smalti_airflow", "dags"):
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            tree = ast.parse(path.read_text())
            docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            found += [
                f"{path.relative_to(REPOSITORY)}:{node.lineno}: {node.value}"
                for node in ast.walk(tree)
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
                if spelled.match(node.value) and path.name != "lake.py"
            ]
    assert found == []
