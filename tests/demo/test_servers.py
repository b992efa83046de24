"""What is known about servers without starting them."""

from __future__ import annotations

import json
from pathlib import Path

from demo.processes import Process
from demo.servers import RayServer, Servers, airflow_environment, find_servers, stop_servers

RAY = {
    "process": {"pid": 1, "started": 0, "log": "log"},
    "url": "http://127.0.0.1:20001",
    "address": "127.0.0.1:20002",
    "token_file": "token",
    "temp": "temp",
}


def state(home: Path, boot: str) -> None:
    home.joinpath("servers.json").write_text(json.dumps({"boot": boot, "ray": RAY, "airflow": None}))


def test_nothing_is_found_and_nothing_ended_where_nothing_was_started(tmp_path: Path) -> None:
    assert find_servers(tmp_path) is None
    assert stop_servers(tmp_path) == 0


def test_what_was_started_is_found_by_another_process(tmp_path: Path) -> None:
    state(tmp_path, Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    server = RayServer(Process(1, 0, "log"), "http://127.0.0.1:20001", "127.0.0.1:20002", "token", "temp")
    assert find_servers(tmp_path) == Servers(ray=server)


def test_pids_from_before_a_reboot_mean_nothing(tmp_path: Path) -> None:
    state(tmp_path, "another boot")
    assert find_servers(tmp_path) is None
    assert stop_servers(tmp_path) == 0
    assert not tmp_path.joinpath("servers.json").exists()


def test_airflow_reaches_ray_by_its_connection(tmp_path: Path) -> None:
    tmp_path.joinpath("token").write_text("secret")
    ray = RayServer(Process(1, 0, "log"), "http://127.0.0.1:20001", "127.0.0.1:20002", str(tmp_path / "token"), "temp")
    settings = airflow_environment(tmp_path, {}, ray=ray)
    connection = json.loads(settings["AIRFLOW_CONN_SMALTI_RAY"])
    assert connection == {
        "conn_type": "http",
        "schema": "http",
        "host": "127.0.0.1",
        "port": 20001,
        "password": "secret",
    }
