"""What a lake holds, told from committed objects only."""

from __future__ import annotations

from typing import Any

from smalti.lake import BESIDE_VERSIONS, Lake
from smalti.objects import exists, list_names
from smalti.release.latest import gone_versions, read_latest
from smalti.shards.part import committed_parts


def contents(lake: Lake) -> dict[str, Any]:
    """Sources with their staged batches and committed parts; datasets with their versions and the one LATEST names."""
    sources = sorted({*list_names(lake.staging()), *list_names(lake.parts_root())})
    return {
        "lake": lake.root,
        "sources": [
            {
                "name": name,
                "batches": len([b for b in list_names(lake.batches(name)) if exists(lake.inventory(name, b))]),
                "parts": len(committed_parts(lake, name)),
            }
            for name in sources
        ],
        "datasets": [
            {"name": name, "versions": versions_of(lake, name), "latest": latest_of(lake, name)}
            for name in list_names(lake.releases())
        ],
    }


def versions_of(lake: Lake, dataset: str) -> list[str]:
    """Committed versions: those with a manifest, and not given up."""
    away = {*BESIDE_VERSIONS, *gone_versions(lake, dataset)}
    return [
        name for name in list_names(lake.versions(dataset)) if name not in away and exists(lake.manifest(dataset, name))
    ]


def latest_of(lake: Lake, dataset: str) -> str | None:
    """The version that LATEST names; None before the first publish."""
    found = read_latest(lake, dataset)
    return found.version if found else None
