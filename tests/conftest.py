"""Fixtures that every test may use: a lake on disk, a lake on a GCS, and what a lake holds."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Generator, Iterator
from pathlib import Path

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


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """With SMALTI_DEMAND (CI sets it) a skipped test is a failure: everything that tests need was to be installed."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("SMALTI_DEMAND") and reporter is not None and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
