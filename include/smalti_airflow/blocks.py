"""What the DAG files are put together from."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import (
    CronPartitionTimetable,
    FixedKeyMapper,
    Param,
    PartitionedAssetTimetable,
    PartitionedAtRuntime,
)

from smalti.config import Dataset, Source
from smalti.lake import safe_name
from smalti_airflow.assets import source_asset
from smalti_airflow.notifier import FailureNotifier
from smalti_airflow.operators import RayStage

OWNER = "smalti"

DEFAULTS: dict[str, Any] = {
    "owner": OWNER,
    "retries": 2,
    "retry_delay": timedelta(seconds=30),
    "retry_exponential_backoff": True,
    "max_retry_delay": timedelta(minutes=10),
    "execution_timeout": timedelta(hours=6),
    "on_failure_callback": [FailureNotifier()],
}
"""default_args of every DAG. A stage keeps what it has done, so that a retry goes on where the last try ended."""

LONGER = {
    "caption": timedelta(days=7),
    "classify": timedelta(days=2),
    "ingest": timedelta(days=2),
    "merge": timedelta(days=2),
    "optout_erase": timedelta(days=2),
    "optout_remove": timedelta(days=2),
    "rewrite": timedelta(days=2),
    "shard": timedelta(days=2),
}
"""Stages that may take longer than the default: they read or write every image."""

FIRST_DAY = datetime(2024, 1, 1, tzinfo=UTC)
"""start_date of DAGs without one of their own. Nothing is caught up from it."""

BATCH = "{{ dag_run.partition_key or dag_run.run_id | batch_name }}"
"""The batch of a source's run: its partition, or the run's id where a person started it without one."""

SOURCE_FORM = {
    "limit": Param(
        None,
        type=["null", "integer"],
        minimum=1,
        title="Only the first rows",
        description="Take only so many rows of the inventory, to try things out. Empty: all.",
    ),
    "captioner": Param(
        None,
        type=["null", "string"],
        pattern="^[a-z0-9][a-z0-9_.-]{0,62}$",
        title="Captioner",
        description="Another profile than the source file names; the batch gets a part of its own. Empty: as the file says.",
    ),
    "pilot": Param(
        None,
        type=["null", "integer"],
        minimum=1,
        maximum=1000,
        title="Pilot",
        description="Caption so many random rows first, and wait for a person. Empty: no pilot.",
    ),
    "max_gpu_hours": Param(
        None,
        type=["null", "number"],
        exclusiveMinimum=0,
        title="GPU hours at most",
        description="That captioning this batch may cost, over all its runs. Empty: no limit.",
    ),
}
RELEASE_FORM = {
    "version": Param(
        None,
        type=["null", "string"],
        pattern="^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$",
        title="Version",
        description="Name of the new version: letters, digits, _ . - . Empty: the next number.",
    ),
    "without": Param(
        None,
        type=["null", "string"],
        pattern="^[a-z_, ]{1,200}$",
        title="Ablation without",
        description="Reasons that are not applied, with commas between, for instance: text, nsfw. Makes an ablation of the "
        "version that LATEST names, over the same parts; LATEST does not move. Empty: no ablation.",
    ),
}
MAINTENANCE_FORM = {
    "dry_run": Param(
        True,
        type="boolean",
        title="Dry run",
        description="Only say what would be done. The weekly run does not look here.",
    ),
    "approve": Param(False, type="boolean", title="Ask first", description="Wait for a person after the plan."),
    "skip_limit": Param(
        0.10,
        type="number",
        minimum=0,
        exclusiveMaximum=1,
        title="Skip limit",
        description="Share of a part's samples that all live releases leave out; above it the part is rewritten.",
    ),
    "small_part_mb": Param(
        1000, type="integer", minimum=0, title="Small part", description="MB of shards below which a part is merged."
    ),
    "grace_days": Param(
        7,
        type="number",
        minimum=0,
        title="Grace",
        description="Days: what is younger stays, and what is marked goes after them.",
    ),
    "keep_versions": Param(
        None,
        type=["null", "integer"],
        minimum=1,
        title="Keep versions",
        description="Published versions of a dataset that stay live, the newest ones. Empty: all.",
    ),
}

OPTOUT_FORM = {
    "action": Param(
        "query",
        type="string",
        enum=["query", "exclude", "erase", "withdraw"],
        title="Action",
        description="query: say what is held. exclude: never serve it again. erase: also remove the bytes. withdraw: take a request back.",
    ),
    "reference": Param(
        "",
        type="string",
        maxLength=200,
        title="Reference",
        description="By which whoever asks knows the request. It stands in the receipt: no name, no address.",
    ),
    "keys": Param(
        None,
        type=["null", "string"],
        format="multiline",
        title="Keys",
        description="One a line: id, url, owner, sha256, domain or prefix, a space, and the key.",
    ),
    "file": Param(
        None,
        type=["null", "string"],
        title="File",
        description="URI of a csv, jsonl, parquet or text file with keys, or of a picture.",
    ),
    "withdraws": Param(
        None,
        type=["null", "string"],
        pattern="^[0-9a-f]{16}$",
        title="Withdraws",
        description="Action withdraw: the id of the request that is taken back.",
    ),
    "reason": Param(None, type=["null", "string"], maxLength=2000, title="Reason", description="For the ledger."),
    "ask_above": Param(
        1000,
        type="integer",
        minimum=0,
        title="Ask above",
        description="Matched samples above which a person confirms. A domain or a prefix is always confirmed.",
    ),
    "grace_days": Param(
        7,
        type="number",
        minimum=0,
        maximum=365,
        title="Grace",
        description="Action erase: days that training runs have to end before the old parts are removed.",
    ),
    "request": Param(
        None,
        type=["null", "string"],
        pattern="^[0-9a-f]{16}$",
        title="Request",
        description="Go on with a request that is in the ledger: its id. Of the other fields Grace alone counts then, if it is longer than "
        "the one that the request was handed in with.",
    ),
}


def batch_name(text: str) -> str:
    """A run id as the name of a batch: what a name may not have becomes ``_``."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", safe_name(text))[:100]


def stage_task(stage: str, settings: dict[str, Any], **kwargs: Any) -> RayStage:
    """The task of a stage, named after it unless `task_id` says otherwise."""
    if stage in LONGER:
        kwargs.setdefault("execution_timeout", LONGER[stage])
    return RayStage(**{"task_id": stage, "stage": stage, "settings": settings} | kwargs)


def days_after(moment: str, days: float) -> str:
    """A time (ISO) so many days after another one."""
    return (datetime.fromisoformat(moment) + timedelta(days=float(days))).isoformat()


def report_field(task_id: str, field: str) -> str:
    """A template: a field of the report that a task before this one returned."""
    return f"{{{{ ti.xcom_pull(task_ids={task_id!r})[{field!r}] }}}}"


def source_schedule(source: Source) -> Any:
    """Daily partitions for a source with a cron line; otherwise runs that a person starts, with or without a partition.

    A cron run works on the partition that has just ended.
    """
    if source.schedule is None:
        return PartitionedAtRuntime()
    return CronPartitionTimetable(source.schedule, timezone="UTC", run_offset=-1, key_format="%Y-%m-%d")


def source_start(source: Source) -> datetime:
    """start_date: the source's first day."""
    return datetime.fromisoformat(source.start).replace(tzinfo=UTC) if source.start else FIRST_DAY


def release_schedule(dataset: Dataset) -> Any:
    """A release starts when any of its sources, or all of them, have a new batch, whatever their partitions are called.

    All keys are mapped to one, `latest`, since sources of different cadence share none, and a plain schedule of assets never
    fires on partitioned events.
    """
    assets = [source_asset(source.name) for source in dataset.sources]
    condition: Any = assets[0]
    for asset in assets[1:]:
        condition = condition | asset if dataset.schedule == "any" else condition & asset
    return PartitionedAssetTimetable(assets=condition, default_partition_mapper=FixedKeyMapper("latest"))
