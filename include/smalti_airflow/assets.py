"""The assets that tie source DAGs to release DAGs."""

from __future__ import annotations

from airflow.sdk import Asset


def source_asset(name: str) -> Asset:
    """What a run of `source_<name>` renews: the committed parts of the source.

    Its events carry ``extra = {"part", "batch", "counts"}`` and the batch as partition key.
    """
    return Asset(name=f"source_{name}", uri=f"smalti://sources/{name}", group="smalti")
