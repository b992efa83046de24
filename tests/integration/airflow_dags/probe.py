"""DAGs for tests/integration/test_airflow_ray.py: each task is a job that does what its source's description says."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import PartitionedAtRuntime, chain, dag, task

from smalti.config import Dataset
from smalti.jobs import registry
from smalti.settings import SourceRun
from smalti_airflow.approval import ApprovePilot, pilot_text
from smalti_airflow.assets import source_asset
from smalti_airflow.blocks import BATCH, DEFAULTS, batch_name, release_schedule
from smalti_airflow.operators import RayStage

registry.STAGES["probe"] = registry.Stage("probe", "smalti_probe_stage:run", SourceRun)

COMMON: dict[str, Any] = {
    "start_date": datetime(2024, 1, 1),
    "catchup": False,
    "default_args": {**DEFAULTS, "retries": 1, "retry_delay": timedelta(seconds=1), "retry_exponential_backoff": False},
    "tags": ["test"],
}
TASKS: dict[str, dict[str, Any]] = {
    "quick": {},
    "deferred": {"wait_here": 0},
    "mistake": {},
    "once": {},
    "adopted": {},
    "cleared": {"wait_here": 0},
    "marked": {"wait_here": 0},
    "marked_here": {},
    "late": {"wait_here": 0, "execution_timeout": timedelta(seconds=12), "retries": 0},
}


@dag("probe", schedule=None, user_defined_filters={"batch_name": batch_name}, **COMMON)
def probe() -> None:
    """Every task by itself."""
    for name, more in TASKS.items():
        RayStage(task_id=name, stage="probe", settings={"source": name, "batch": BATCH}, **more)


@dag("one", schedule=None, user_defined_filters={"batch_name": batch_name}, **COMMON)
def one() -> None:
    """For dag.test(): waits in the worker, then in a trigger."""
    for name, wait in (("quick", 60.0), ("deferred", 0.0)):
        RayStage(task_id=name, stage="probe", settings={"source": name, "batch": BATCH}, wait_here=wait)


@dag("approve", schedule=None, user_defined_filters={"batch_name": batch_name, "pilot_text": pilot_text}, **COMMON)
def approve() -> None:
    """One pilot that nobody asked for, and one that a person approves and another rejects."""

    @task(multiple_outputs=False)
    def report() -> dict[str, Any]:
        numbers = {"rows": 2, "eligible": 9, "waiting": 7, "failed": {}, "measured": None, "stated": None}
        return {"page": "file:///p.html", "profile": "p", "model": None, "revision": None, "prompt": None} | numbers

    @task(trigger_rule="none_failed")
    def go_on() -> None:
        pass

    def ask(name: str, pilot: str) -> ApprovePilot:
        return ApprovePilot(task_id=name, pilot=pilot, source="quick", batch=BATCH)

    settings = {"source": "quick", "batch": BATCH, "pilot": ""}
    unasked = RayStage(task_id="unasked", stage="probe", settings=settings, only_with="pilot")
    chain(unasked, ask("unasked_approve", "unasked"), go_on.override(task_id="unasked_after")())
    told = report()
    for name in ("yes", "no"):
        chain(told, ask(name, "report"), go_on.override(task_id=f"{name}_after")())


def make_producer(name: str) -> None:
    asset = source_asset(name)

    @task(outlets=[asset], multiple_outputs=False)
    def done(dag_run: Any = None, outlet_events: Any = None) -> None:
        outlet_events[asset].extra = {"part": f"of {name}"}
        if dag_run.partition_key is None:
            outlet_events[asset].add_partitions(batch_name(dag_run.run_id))

    @dag(f"produce_{name}", schedule=PartitionedAtRuntime(), **COMMON)
    def produce() -> None:
        done()

    produce()


def make_consumer(name: str, schedule: Any) -> None:
    dataset = Dataset.model_validate({"name": name, "sources": [{"name": "a"}, {"name": "b"}], "schedule": schedule})

    @task
    def parts(triggering_asset_events: Any = None) -> list[str]:
        return sorted(event.extra["part"] for events in triggering_asset_events.values() for event in events)

    @dag(f"consume_{name}", schedule=release_schedule(dataset), **COMMON)
    def consume() -> None:
        parts()

    consume()


probe()
one()
approve()
for source in ("a", "b"):
    make_producer(source)
for kind in ("any", "all"):
    make_consumer(kind, kind)
