"""A small source on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sources.making import Made, simple


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Four pictures with a csv table."""
    return simple(f"file://{tmp_path}/source")
