"""Airflow's own processes and a real Ray head: what tasks do when jobs fail, workers die and people interfere.

All tasks of one run are started at once, and each test looks at its own: starting Airflow and Ray costs more than the rest.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from demo.airflow_api import AirflowApi
from demo.processes import family
from demo.servers import Servers, airflow_environment, start_servers, stop_servers
from smalti.lake import Lake
from smalti.objects import list_names, read_bytes
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

    def until(self, true: Callable[[], object], seconds: float = 240) -> None:
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
        "PYTHONPATH": str(PROBE),
        "AIRFLOW_CONN_SMALTI_ALERTS": json.dumps({"conn_type": "http", "password": receiver.url}),
    }
    with contextlib.ExitStack() as stack:
        stack.callback(receiver.server.shutdown)
        stack.callback(stop_servers, tmp)
        servers = start_servers(tmp, env, dags=DAGS, cpus=2)
        assert servers.airflow is not None
        api = stack.enter_context(servers.airflow.api())
        api.wait_for_dags(["probe", "approve", "produce_a", "produce_b", "consume_any", "consume_all"])
        world = World(servers, api, Lake.at(str(tmp / "lake")), receiver, tmp)
        world.run = api.trigger("probe", run_id="r1")
        yield world


@pytest.fixture(scope="module")
def interfered(world: World) -> World:
    """What people and chance do to the run while it is under way."""
    todo: dict[str, Callable[[], bool]] = {
        "adopted": lambda: kill_worker(world, "adopted"),
        "let go": lambda: let_go(world, "adopted"),
        "cleared": lambda: clear(world, "cleared"),
        "marked": lambda: mark(world, "marked", "deferred"),
        "marked_here": lambda: mark(world, "marked_here", "running"),
    }
    end = time.monotonic() + 240
    while todo:
        for name in [name for name, act in todo.items() if act()]:
            del todo[name]
        assert time.monotonic() < end, list(todo)
        time.sleep(0.5)
    return world


def kill_worker(world: World, name: str) -> bool:
    """SIGKILL to the process that runs a task, once its job runs."""
    assert world.servers.airflow is not None
    if "RUNNING" not in world.jobs(name).values():
        return False
    title = f"airflow worker -- {world.task(name)['id']}"
    for pid in family([world.servers.airflow.process]):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_text().startswith(title):
                os.kill(pid, signal.SIGKILL)
                return True
    return False


def let_go(world: World, name: str) -> bool:
    """Let the job end once the second try waits for it."""
    if world.task(name)["try_number"] != 2 or "taking it over" not in world.log(name, 2):
        return False
    (world.home / "go").touch()
    return True


def clear(world: World, name: str) -> bool:
    if world.task(name)["state"] != "deferred" or "RUNNING" not in world.jobs(name).values():
        return False
    body = {"dry_run": False, "dag_run_id": world.run, "task_ids": [name], "only_failed": False}
    world.api.call("POST", "dags/probe/clearTaskInstances", body)
    return True


def mark(world: World, name: str, state: str) -> bool:
    if world.task(name)["state"] != state or "RUNNING" not in world.jobs(name).values():
        return False
    world.api.call("PATCH", f"dags/probe/dagRuns/{world.run}/taskInstances/{name}", {"new_state": "failed"})
    return True


def test_a_task_is_its_job(interfered: World) -> None:
    assert interfered.ended("quick") == "success"
    assert interfered.jobs("quick") == {"1": "SUCCEEDED"}
    report = interfered.xcom("quick")
    assert report["stage"] == "probe"
    assert json.loads(read_bytes(report["report_uri"]))["stage"] == "probe"
    assert "| hello from the job" in interfered.log("quick")
    kept = read_bytes(interfered.lake.run_object("probe", "r1", "quick", "driver.log")).decode()
    assert "hello from the job" in kept
    link = interfered.api.call("GET", f"dags/probe/dagRuns/{interfered.run}/taskInstances/quick/links")
    assert "/#/jobs/smalti-probe-" in link["extra_links"]["Ray job"]


def test_a_deferred_task_is_its_job_too(interfered: World) -> None:
    assert interfered.ended("deferred") == "success"
    assert interfered.jobs("deferred") == {"1": "SUCCEEDED"}
    assert interfered.xcom("deferred")["stage"] == "probe"
    assert interfered.log("deferred").count("is SUCCEEDED") == 1  # said by the trigger, shown in the task's log


def test_a_mistake_fails_the_task_at_once_with_the_clear_line_first(interfered: World) -> None:
    assert interfered.ended("mistake") == "failed"
    assert interfered.task("mistake")["try_number"] == 1
    clear_line = "smalti: probe.yaml:7: the probe was told to find a mistake. Mend it."
    assert f"AirflowFailException: {clear_line}" in interfered.log("mistake")
    [alert] = [each for each in interfered.receiver.got if each["task"] == "mistake"]
    assert alert["error"].splitlines()[0] == clear_line
    assert alert["log"].startswith(interfered.api.url)


def test_a_retry_after_a_failure_is_a_second_job_and_no_alert(interfered: World) -> None:
    assert interfered.ended("once") == "success"
    assert interfered.jobs("once") == {"1": "FAILED", "2": "SUCCEEDED"}
    assert interfered.xcom("once")["report_uri"].endswith("/report.2.json")
    assert [each for each in interfered.receiver.got if each["task"] == "once"] == []


def test_a_retry_after_a_killed_worker_adopts_the_live_job(interfered: World) -> None:
    assert interfered.ended("adopted") == "success"
    assert interfered.task("adopted")["try_number"] == 2
    assert interfered.jobs("adopted") == {"1": "SUCCEEDED"}
    assert "is RUNNING already: taking it over" in interfered.log("adopted", 2)


def test_a_cleared_task_ends_in_success_although_its_old_job_is_stopped(interfered: World) -> None:
    assert interfered.ended("cleared") == "success"
    assert interfered.jobs("cleared") == {"1": "STOPPED", "2": "SUCCEEDED"}


@pytest.mark.parametrize("name", ["marked", "marked_here"])
def test_a_task_that_is_marked_failed_stops_its_job(interfered: World, name: str) -> None:
    assert interfered.ended(name) == "failed"
    interfered.until(lambda: interfered.jobs(name) == {"1": "STOPPED"}, 60)


def test_a_deferred_task_is_held_to_its_time(interfered: World) -> None:
    assert interfered.ended("late") == "failed"
    interfered.until(lambda: interfered.jobs("late") == {"1": "STOPPED"}, 60)
    assert "not done after 0:00:12" in interfered.log("late")
    assert [each["task"] for each in interfered.receiver.got].count("late") == 1


def test_releases_start_when_any_or_all_of_their_sources_have_news(interfered: World) -> None:
    api = interfered.api
    for name, partition in (("a", "2026-11-20"), ("b", None)):
        run = api.trigger(f"produce_{name}", partition_key=partition)
        assert api.wait(f"produce_{name}", run, seconds=120) == "success"
        if name == "a":
            first = api.wait_for_run("consume_any", set())
            assert api.wait("consume_any", first, seconds=120) == "success"
            assert api.xcom("consume_any", first, "parts") == ["of a"]
            assert api.runs("consume_all") == []
    both = api.wait_for_run("consume_all", set())
    assert api.wait("consume_all", both, seconds=120) == "success"
    assert api.xcom("consume_all", both, "parts") == ["of a", "of b"]
    second = api.wait_for_run("consume_any", {first})
    assert api.wait("consume_any", second, seconds=120) == "success"
    assert api.xcom("consume_any", second, "parts") == ["of b"]


def test_a_run_waits_for_a_person_and_does_as_it_is_told(world: World) -> None:
    api = world.api
    run = api.trigger("approve", run_id="a1")
    words = {"yes": "Approve", "no": "Reject"}

    def states() -> dict[str, str]:
        return {task["task_id"]: task["state"] for task in api.tasks("approve", run)}

    def answered() -> bool:
        """Answers whoever asks. Airflow asks again when the answer comes before its scheduler has noticed the wait."""
        now = states()
        for name, word in words.items():
            if now.get(name) == "awaiting_input":
                path = f"dags/approve/dagRuns/{run}/taskInstances/{name}/-1/hitlDetails"
                asked = api.call("GET", path)
                assert asked["subject"] == "Caption batch a1 of quick with p?"
                assert "2 of 9 rows were drawn" in asked["body"]
                time.sleep(4)
                api.call("PATCH", path, {"chosen_options": [word], "params_input": {}})
        return api.run("approve", run)["state"] in ("success", "failed")

    world.until(answered)
    assert states() == {
        "report": "success",
        "yes": "success",
        "yes_after": "success",
        "no": "failed",
        "no_after": "upstream_failed",
        "unasked": "skipped",
        "unasked_approve": "skipped",
        "unasked_after": "success",
    }
    [alert] = [each for each in world.receiver.got if each["task"] == "no"][-1:]
    assert alert["error"].startswith("source quick, batch a1: admin rejected the pilot.")


def test_the_token_is_nowhere(interfered: World) -> None:
    """Not in a log, a rendered field, an XCom, a stored trigger, a spec."""
    assert interfered.servers.ray is not None
    token = interfered.servers.ray.token.encode()
    hook = interfered.receiver.url.encode()
    searched = 0
    for root in (interfered.home / "airflow", interfered.home / "lake", interfered.home / "airflow.log"):
        for path in [root] if root.is_file() else root.rglob("*"):
            if path.is_file():
                data = path.read_bytes()
                assert token not in data, path
                assert hook not in data, path
                searched += 1
    assert searched > 50
    assert list_names(interfered.lake.run("probe", "r1", "quick"))


def test_dag_test_runs_a_stage_and_its_trigger(world: World, tmp_path: Path) -> None:
    """`dag.test()`, with a database of its own."""
    assert world.servers.airflow is not None
    own = airflow_environment(tmp_path, {}, ray=world.servers.ray, dags=DAGS)
    env = {**os.environ, **world.servers.airflow.env, **own, "SMALTI_LAKE": str(tmp_path / "lake")}
    program = (
        "from airflow.dag_processing.dagbag import DagBag\n"
        f"run = DagBag({str(DAGS)!r}).dags['one'].test()\n"
        "import json\nprint('STATES', json.dumps({ti.task_id: str(ti.state) for ti in run.get_task_instances()}))\n"
    )
    airflow = Path(sys.executable).with_name("airflow")
    subprocess.run([airflow, "db", "migrate"], env=env, check=True, capture_output=True)
    done = subprocess.run([sys.executable, "-c", program], env=env, check=True, capture_output=True, text=True)
    [states] = [line for line in done.stdout.splitlines() if line.startswith("STATES")]
    assert json.loads(states.removeprefix("STATES ")) == {"deferred": "success", "quick": "success"}
    assert len(list((tmp_path / "lake" / "runs" / "one").glob("*/*/report.json"))) == 2
