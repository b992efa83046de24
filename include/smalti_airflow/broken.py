"""What a file in include/ that says something wrong looks like in Airflow: it must not take the other DAGs away.

Airflow drops every DAG of a Python file that raises. So a broken file's DAG is replaced by one that is tagged `broken`,
has no schedule, says what is wrong where its manual would be, and fails with that line when it is started; and dags/broken.py,
a file without DAGs, raises the lines of all broken files, so that Airflow's list of import errors names them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from airflow.sdk import dag, task
from airflow.sdk.exceptions import AirflowFailException

from smalti.config import Dataset, Engine, Source, Strict, home, load_file
from smalti.errors import InputError
from smalti.profiles import SOURCE
from smalti_airflow.blocks import DEFAULTS, FIRST_DAY

M = TypeVar("M", bound=Strict)


def config_files(folder: str, model: type[M]) -> Iterator[tuple[Path, M | InputError]]:
    """Every file of a folder in include/, by name: what it says, or what is wrong with it."""
    for path in sorted((home() / folder).glob("*.yaml")):
        try:
            yield path, load_file(path, model)
        except InputError as error:
            yield path, error


def config_errors() -> list[InputError]:
    """What is wrong in any file of include/, including the names by which files refer to each other."""
    found: dict[str, dict[str, Strict]] = {}
    errors: list[InputError] = []
    for folder, model in (("sources", Source), ("datasets", Dataset), ("engines", Engine)):
        found[folder] = {}
        for path, each in config_files(folder, model):
            if isinstance(each, InputError):
                errors.append(each)
                found[folder][path.stem] = Strict()
            else:
                found[folder][path.stem] = each
    return errors + list(_dangling(found))


def add_broken_dag(dag_id: str, error: InputError) -> None:
    """Make the DAG that stands in for the one of a broken file."""

    @task
    def broken() -> None:
        raise AirflowFailException(str(error))

    @dag(
        dag_id,
        description=f"BROKEN: {error}",
        schedule=None,
        start_date=FIRST_DAY,
        catchup=False,
        max_active_runs=1,
        default_args=DEFAULTS,
        tags=["smalti", "broken"],
        doc_md=f"# This DAG's file is broken\n\n    {error}\n\nMend the file; the DAG is back within a minute.",
    )
    def run() -> None:
        broken()

    run()


def _dangling(found: dict[str, dict[str, Strict]]) -> Iterator[InputError]:
    """Names of sources and engines that no file has."""
    wanted = [
        (f"datasets/{dataset.name}.yaml", "sources", each.name)
        for dataset in found["datasets"].values()
        if isinstance(dataset, Dataset)
        for each in dataset.sources
    ] + [
        (f"sources/{source.name}.yaml", "engines", name)
        for source in found["sources"].values()
        if isinstance(source, Source)
        for name in (source.captioner, source.classifier, *(name for name in source.extra_captions if name != SOURCE))
    ]
    for where, folder, name in wanted:
        if name not in found[folder]:
            known = ", ".join(sorted(found[folder])) or "(none is there)"
            yield InputError(f"there is no file {folder}/{name}.yaml", str(home() / where), f"Use one of: {known}")
