"""Fixtures that every test may use: a lake on disk, a lake on a GCS, and what a lake holds; and in which order tests run."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from smalti.lake import Lake
from smalti.objects import list_objects, read_bytes
from tests.support.gcs import Gcs, environment, serve_gcs

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing may be fetched while testing
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
hypothesis.settings.register_profile("busy", deadline=None)  # a busy machine is no fault of the code
hypothesis.settings.load_profile("busy")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """An empty lake on disk."""
    return Lake.at(str(tmp_path / "lake"))


@pytest.fixture(scope="session")
def gcs_server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Gcs]:
    """One GCS a test process; each test gets buckets of its own."""
    with serve_gcs(tmp_path_factory.mktemp("gcs")) as server:
        yield server


@pytest.fixture
def gcs(gcs_server: Gcs) -> Iterator[Gcs]:
    """The GCS, with this process's environment pointing at it."""
    from smalti import objects

    with environment(gcs_server.environment):
        objects.forget_clients()
        yield gcs_server
    objects.forget_clients()


@pytest.fixture
def gcs_lake(gcs: Gcs) -> Lake:
    """An empty lake in a bucket of its own."""
    return Lake.at(f"{gcs.new_bucket()}/team/lake")


@pytest.fixture(params=["file", "gs"])
def any_lake(request: pytest.FixtureRequest) -> Lake:
    """The same test on disk and on GCS."""
    lake: Lake = request.getfixturevalue("lake" if request.param == "file" else "gcs_lake")
    return lake


def snapshot(root: str) -> dict[str, str]:
    """Every committed object below a root: name -> sha256. Two equal snapshots hold the same bytes."""
    return {o.uri.removeprefix(root): hashlib.sha256(read_bytes(o.uri)).hexdigest() for o in list_objects(root)}


WITH_AIRFLOW = (
    "tests/e2e/",
    "tests/integration/test_airflow_ray.py",
    "tests/integration/test_servers.py",
)
"""Run by one worker of pytest-xdist, one after another: fixtures are shared, and two Airflows at once are slow on two cores."""

EARLY = (
    *WITH_AIRFLOW,
    "tests/engines/test_vllm.py",
    "tests/integration/",
    "tests/loader/test_ranks.py",
    "tests/prove/",
    "tests/smalti_airflow/test_operators.py",
    "tests/maintenance/",
    "tests/release/",
)
"""The longest first, so that no worker is still at one of them when the other has nothing left."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort."""

    def turn(item: pytest.Item) -> int:
        return next((n for n, start in enumerate(EARLY) if item.nodeid.startswith(start)), len(EARLY))

    items.sort(key=turn)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Of `--dist loadfile`. (`loadgroup` is no use: pytest-xdist 3.8 does not know how pytest 9.2 keeps a test's id.)"""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Together(LoadFileScheduling):
        """A worker gets a file at a time, or all of WITH_AIRFLOW."""

        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return "airflow" if file.startswith(WITH_AIRFLOW) else file

    return Together(config, log)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """With SMALTI_DEMAND (CI sets it) a skipped test is a failure: everything that tests need was to be installed."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("SMALTI_DEMAND") and reporter is not None and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
