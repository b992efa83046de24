"""Releases that tests of the loader share, and an end to what StreamingDataset leaves behind."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from smalti.lake import Lake
from smalti.release.materialize import materialize
from tests.loader.releases import Release, build


@pytest.fixture(scope="session")
def releases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Release]:
    """A release for each amount of skipping, in one lake, with its tree."""
    from tests.loader.serving import SKIPS

    lake = Lake.at(str(tmp_path_factory.mktemp("lake")))
    made = {name: build(lake, version=f"v{n}", skips=skips) for n, (name, skips) in enumerate(SKIPS.items())}
    for release in made.values():
        materialize(release.uri, lake.tree("demo", release.manifest.version))
    return made


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path: Path) -> Iterator[None]:
    """Give back what the test's datasets hold, where there can be any."""
    if "streaming" not in sys.modules:
        yield
        return
    from tests.loader.serving import apart

    with apart(tmp_path):
        yield
