"""An Airflow with a Ray, and the jobs that its tasks run."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from demo.airflow_api import AirflowApi
from demo.servers import Servers, start_servers, stop_servers
from smalti.lake import Lake
from tests.smalti_airflow.test_notifier import Receiver
from tests.support.airflow_home import ROOT

DAGS = Path(__file__).parent / "airflow_dags"
PROBE = ROOT / "tests" / "smalti_airflow" / "probe"
PROGRAMS = {
    "quick": "print hello from the job; sleep 1",
    "deferred": "sleep 2",
    "mistake": "print before; input_error",
    "once": "once {tmp}/once",
    "adopted": "wait {tmp}/go",
    "cleared": "first {tmp}/first",
    "marked": "sleep 300",
    "marked_here": "sleep 300",
    "late": "sleep 300",
}


@dataclass
class World:
    """The servers, and the run with every task in it."""

    servers: Servers
    api: AirflowApi
    lake: Lake
    receiver: Receiver
    home: Path
    run: str = ""

    def task(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.api.call("GET", f"dags/probe/dagRuns/{self.run}/taskInstances/{name}")
        return found

    def jobs(self, name: str) -> dict[str, str]:
        """Number of the attempt -> state, of the task's jobs as Ray knows them."""
        assert self.servers.ray is not None
        with self.servers.ray.jobs() as client:
            jobs = client.get("/api/jobs/").raise_for_status().json()
        mine = [job for job in jobs if (job["metadata"] or {}).get("task") == name]
        return {job["submission_id"].rpartition("-")[2]: job["status"] for job in mine}

    def until(self, true: Callable[[], object], seconds: float = 600) -> None:
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, {name: (self.task(name)["state"], self.jobs(name)) for name in PROGRAMS}
            time.sleep(0.5)

    def ended(self, name: str) -> str:
        self.until(lambda: self.task(name)["state"] in ("success", "failed"))
        return str(self.task(name)["state"])

    def log(self, name: str, attempt: int = 1) -> str:
        return self.api.log("probe", self.run, name, attempt)

    def xcom(self, name: str) -> Any:
        return self.api.xcom("probe", self.run, name)

    def states(self, dag: str, run: str) -> dict[str, str]:
        """Of a run's tasks."""
        return {task["task_id"]: task["state"] for task in self.api.tasks(dag, run)}

    def answer(self, dag: str, run: str, name: str, word: str) -> dict[str, Any]:
        """Answer a task that waits for a person; gives what the person was asked.

        Airflow asks again when the answer comes before its scheduler has noticed the wait.
        """
        path = f"dags/{dag}/dagRuns/{run}/taskInstances/{name}/-1/hitlDetails"
        asked: dict[str, Any] = self.api.call("GET", path)
        time.sleep(4)
        self.api.call("PATCH", path, {"chosen_options": [word], "params_input": {}})
        return asked

    def answer_until_ended(self, dag: str, run: str, name: str, word: str) -> tuple[str, dict[str, Any]]:
        """The run's state at its end, and what the person was asked first; answers as often as Airflow asks."""
        asked: list[dict[str, Any]] = []

        def has_ended() -> bool:
            if self.states(dag, run).get(name) == "awaiting_input":
                asked.append(self.answer(dag, run, name, word))
            return self.api.run(dag, run)["state"] in ("success", "failed")

        self.until(has_ended)
        return str(self.api.run(dag, run)["state"]), asked[0]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    tmp = tmp_path_factory.mktemp("airflow_ray")
    include = tmp / "include"
    for folder in ("sources", "engines", "datasets"):
        (include / folder).mkdir(parents=True)
    for name, program in PROGRAMS.items():
        text = json.dumps(program.format(tmp=tmp))
        columns = "columns: {key: id, image: image}"
        (include / "sources" / f"{name}.yaml").write_text(
            f"description: {text}\nformat: parquet\nuri: file:///nowhere\n{columns}\n"
        )
    (include / "engines" / "rules.yaml").write_text("role: captioner\nkind: rules\n")
    (include / "engines" / "rules-minilm.yaml").write_text("role: classifier\nkind: rules\n")
    receiver = Receiver()
    env = {
        "SMALTI_LAKE": str(tmp / "lake"),
        "SMALTI_CONFIG": str(include),
        "SMALTI_PROBE": "1",
        "SMALTI_JOB_ENV": "PYTHONPATH,SMALTI_PROBE",
        "PYTHONPATH": f"{PROBE}{os.pathsep}{ROOT / 'include'}",  # the code of this checkout, wherever it was installed from
        "AIRFLOW_CONN_SMALTI_ALERTS": json.dumps({"conn_type": "http", "password": receiver.url}),
    }
    dags = shutil.copytree(DAGS, tmp / "dags")
    for name in ("maintenance.py", "optout.py"):
        shutil.copy(ROOT / "dags" / name, dags)
    with contextlib.ExitStack() as stack:
        stack.callback(receiver.server.shutdown)
        stack.callback(stop_servers, tmp)
        servers = start_servers(tmp, env, dags=dags, cpus=2)
        assert servers.airflow is not None
        api = stack.enter_context(servers.airflow.api())
        api.wait_for_dags([
            "probe",
            "approve",
            "produce_a",
            "produce_b",
            "consume_any",
            "consume_all",
            "maintenance",
            "optout",
        ])
        world = World(servers, api, Lake.at(str(tmp / "lake")), receiver, tmp)
        world.run = api.trigger("probe", run_id="r1")
        yield world
