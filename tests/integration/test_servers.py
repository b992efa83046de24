"""The demo's servers: both come up side by side, work, are found by another process, and leave nothing behind."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from demo.airflow_api import AirflowApi, AirflowError
from demo.processes import ServerError, family, memory
from demo.servers import REPOSITORY, Servers, find_servers, launch_airflow, launch_ray, start_servers, stop_servers

DAG = '''
import os
from airflow.sdk import dag, task

@dag("hello", schedule=None, catchup=False)
def hello():
    @task
    def greet(dag_run=None):
        """Says what it sees."""
        print("the lake is", os.environ["SMALTI_LAKE"])
        if (dag_run.conf or {}).get("fail"):
            raise RuntimeError("as asked")
        return {"lake": os.environ["SMALTI_LAKE"], "whom": (dag_run.conf or {}).get("whom")}
    greet()

hello()
'''


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("servers")
    home.joinpath("dags").mkdir()
    home.joinpath("plugins").mkdir()
    home.joinpath("dags", "hello.py").write_text(DAG)
    yield home
    stop_servers(home)


@pytest.fixture(scope="module")
def servers(home: Path) -> Servers:
    return start_servers(home, {"SMALTI_LAKE": "file:///lake"}, dags=home / "dags", plugins=home / "plugins")


@pytest.fixture(scope="module")
def api(servers: Servers) -> Iterator[AirflowApi]:
    assert servers.airflow is not None
    with servers.airflow.api() as api:
        api.wait_for_dags(["hello"])
        yield api


def run_job(servers: Servers, name: str, entrypoint: str) -> tuple[str, str]:
    """State and log of a job that has ended."""
    assert servers.ray is not None
    with servers.ray.jobs() as client:
        client.post("/api/jobs/", json={"entrypoint": entrypoint, "submission_id": name}).raise_for_status()
        until = time.monotonic() + 400
        while (state := client.get(f"/api/jobs/{name}").json()["status"]) not in ("SUCCEEDED", "FAILED"):
            assert time.monotonic() < until, state
            time.sleep(0.3)
        return state, client.get(f"/api/jobs/{name}/logs").json()["logs"]


def test_a_job_runs_in_the_environment_that_was_given(servers: Servers) -> None:
    script = "import ray, os; ray.init(); f = ray.remote(lambda x: x * 2); print(ray.get(f.remote(21)), os.environ['SMALTI_LAKE'])"
    state, log = run_job(servers, "twice", f'{sys.executable} -c "{script}"')
    assert (state, "42 file:///lake" in log) == ("SUCCEEDED", True), log


def test_ray_wants_its_token(servers: Servers) -> None:
    assert servers.ray is not None
    assert httpx.get(f"{servers.ray.url}/api/jobs/").status_code in (401, 403)
    assert oct(Path(servers.ray.token_file).stat().st_mode)[-3:] == "600"


def test_a_run_that_is_triggered_is_shown_and_ends(api: AirflowApi) -> None:
    said: list[str] = []
    run = api.trigger("hello", conf={"whom": "world"})
    assert api.wait("hello", run, say=said.append) == "success"
    assert api.xcom("hello", run, "greet") == {"lake": "file:///lake", "whom": "world"}
    assert "the lake is file:///lake" in api.log("hello", run, "greet")
    states = [line.rsplit(" ", 1)[1] for line in said]
    assert states[-1] == "success"
    assert len(set(states)) == len(states), "a state is said once"


def test_a_run_that_fails_says_why(api: AirflowApi) -> None:
    known = {run["dag_run_id"] for run in api.runs("hello")}
    api.trigger("hello", conf={"fail": True})
    run = api.wait_for_run("hello", known)
    assert api.wait("hello", run, say=lambda line: None) == "failed"
    assert "as asked" in api.failures("hello", run)


def test_what_airflow_refuses_is_one_clear_error(api: AirflowApi, servers: Servers) -> None:
    with pytest.raises(AirflowError, match="POST dags/absent/dagRuns: 404"):
        api.trigger("absent")
    with pytest.raises(AirflowError, match="no DAG absent"):
        api.wait_for_dags(["absent"], seconds=1)
    assert servers.airflow is not None
    with pytest.raises(AirflowError, match="login answered 401"):
        AirflowApi(servers.airflow.url, "admin", "wrong").runs("hello")


def test_both_together_leave_room_for_the_jobs(servers: Servers) -> None:
    used = sum(memory(servers.processes).values())
    assert used < 2.5 * 2**30, f"{used / 2**30:.2f} GiB"  # 1.7 when it was written; the demo has 6 for everything


def test_starting_again_takes_what_runs(servers: Servers, home: Path) -> None:
    assert start_servers(home) == servers


def test_another_process_ends_them_and_leaves_nothing(servers: Servers, api: AirflowApi, home: Path) -> None:
    assert servers.ray is not None
    api.trigger("hello")  # also in the middle of work
    before = family(servers.processes)
    assert len(before) > 10
    program = "import sys; from pathlib import Path; from demo.servers import stop_servers; print(stop_servers(Path(sys.argv[1])))"
    ended = subprocess.run([sys.executable, "-c", program, str(home)], cwd=REPOSITORY, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) >= len(before)
    assert family(servers.processes) == {}
    assert find_servers(home) is None
    assert not Path(servers.ray.temp).exists()
    assert home.joinpath("ray-logs", "raylet.out").exists()
    for url in (servers.ray.url, api.url):
        with socket.socket() as probe:
            assert probe.connect_ex((httpx.URL(url).host, httpx.URL(url).port)) != 0


def test_what_came_up_half_is_ended_too(tmp_path: Path) -> None:
    ray = launch_ray(tmp_path)
    airflow = launch_airflow(tmp_path, ray=ray)
    time.sleep(1)
    assert stop_servers(tmp_path) >= 2
    assert family([ray.process, airflow.process]) == {}
    assert not Path(ray.temp).exists()


def test_a_server_that_cannot_start_leaves_nothing_and_says_why(tmp_path: Path) -> None:
    broken = {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "sqlite:///relative.db"}
    said: list[str] = []
    try:
        with pytest.raises(ServerError) as caught:
            start_servers(tmp_path, broken, say=said.append)
        assert "airflow.log" in str(caught.value)
        assert find_servers(tmp_path) is None
    finally:
        stop_servers(tmp_path)
