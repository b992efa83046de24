"""RAY_START_HOOK of the demo's Ray head: what `ray start` (2.60) has no option for.

Frugal: by itself a head starts the Ray client server and a dashboard of nine processes, together about 280 MB and several
seconds of CPU on two cores. Nothing here uses more of them than the Jobs API.

Patient: the raylet aborts when its agents have not written their ports to a file within 15 s, and `ray start` gives up on
the raylet after 30 s. Both happen where Airflow starts at the same time on busy cores. The ports are known beforehand, so
the files are written beforehand; whether the agents really work, `wait_for_ray` finds out by running a job.
"""

from __future__ import annotations

import inspect
import os
import time
from typing import Any

DASHBOARD_MODULES = "JobHead,NodeHead"  # NodeHead notes which node is the head, and there jobs are started
RAYLET_SECONDS = 150.0


def frugal_and_patient(ray_params: Any, head: bool) -> None:
    """Change the parameters, and three functions of Ray, in the `ray start` process only."""
    from ray._private import services

    # Its first entry was for finding this module; jobs import what is installed.
    os.environ["PYTHONPATH"] = os.environ.get("PYTHONPATH", "").partition(os.pathsep)[2]
    ray_params.ray_client_server_port = None
    services.start_ray_process = _with_fewer_modules(services.start_ray_process)
    services.start_raylet = _with_known_ports(services.start_raylet)
    services.get_node = _with_patience(services.get_node)


def _with_fewer_modules(start_ray_process: Any) -> Any:
    from ray._private import ray_constants

    def start(command: list[str], process_type: str, *args: Any, **kwargs: Any) -> Any:
        if process_type == ray_constants.PROCESS_TYPE_DASHBOARD:
            command = [*command, f"--modules-to-load={DASHBOARD_MODULES}"]
        return start_ray_process(command, process_type, *args, **kwargs)

    return start


def _with_known_ports(start_raylet: Any) -> Any:
    import ray._raylet

    names: Any = ray._raylet  # compiled, and its stubs are not complete

    def start(*args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(start_raylet).bind(*args, **kwargs).arguments
        for name, port in (
            (names.METRICS_AGENT_PORT_NAME, given["metrics_agent_port"]),
            (names.METRICS_EXPORT_PORT_NAME, given["metrics_export_port"]),
            (names.DASHBOARD_AGENT_LISTEN_PORT_NAME, given["dashboard_agent_listen_port"]),
            (names.RUNTIME_ENV_AGENT_PORT_NAME, given["runtime_env_agent_port"]),
        ):
            names.persist_port(given["session_dir"], given["node_id"], name, port)
        return start_raylet(*args, **kwargs)

    return start


def _with_patience(get_node: Any) -> Any:
    def get(*args: Any, **kwargs: Any) -> Any:
        until = time.monotonic() + RAYLET_SECONDS
        while True:
            try:
                return get_node(*args, **kwargs)
            except RuntimeError:  # not registered yet
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)

    return get
