"""Ray and Airflow for the demo and for the tests: own ports, own directories, own processes; ended completely.

    servers = start_servers(Path(".demo"), {"SMALTI_LAKE": lake})
    ...
    stop_servers(Path(".demo"))          # also from another process, also when only half of them came up

`<home>/servers.json` says what was started. Neither `ray stop` nor any other broad kill is ever used: they would end the
servers of others on the machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from demo.airflow_api import AirflowApi
from demo.processes import Process, Say, ServerError, Waiting, end, free_ports, spawn, wait_until_ready

REPOSITORY = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent  # of the virtualenv: `ray` and `airflow` of the very environment that runs this

RAY_SECONDS = 300.0  # about 20 s on two idle cores; 22 s of CPU
AIRFLOW_SECONDS = 420.0  # about 33 s alone on two idle cores; 47 s of CPU
OBJECT_STORE_BYTES = 400_000_000
USER = "admin"
RAY_CONNECTION = "smalti_ray"


@dataclass(frozen=True)
class RayServer:
    """A Ray head. `url` is the Jobs API, `address` what `ray.init` takes."""

    process: Process
    url: str
    address: str
    token_file: str
    temp: str

    @property
    def token(self) -> str:
        return Path(self.token_file).read_text()

    @property
    def env(self) -> dict[str, str]:
        """What a process needs to reach it with `ray.init()` or `ray job`."""
        return {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": self.token_file,
            "RAY_ADDRESS": self.address,
            "RAY_API_SERVER_ADDRESS": self.url,
        }

    def jobs(self) -> httpx.Client:
        """A client of the Jobs API (`/api/jobs/`)."""
        return httpx.Client(
            base_url=self.url, headers={"Authorization": f"Bearer {self.token}"}, timeout=30, trust_env=False
        )


@dataclass(frozen=True)
class AirflowServer:
    """Airflow with its API server, scheduler, triggerer and DAG processor. `env` is what an `airflow` command needs."""

    process: Process
    url: str
    user: str
    password_file: str
    env: dict[str, str]

    @property
    def password(self) -> str:
        return str(json.loads(Path(self.password_file).read_text())[self.user])

    def api(self) -> AirflowApi:
        return AirflowApi(self.url, self.user, self.password)


@dataclass(frozen=True)
class Servers:
    """What runs for one home directory."""

    ray: RayServer | None = None
    airflow: AirflowServer | None = None

    @property
    def processes(self) -> list[Process]:
        """Leaders, in the order in which they are ended: Airflow first, so that it sees no job fail."""
        return [server.process for server in (self.airflow, self.ray) if server is not None]


def start_servers(
    home: Path,
    env: Mapping[str, str] | None = None,
    *,
    dags: Path = REPOSITORY / "dags",
    plugins: Path = REPOSITORY / "plugins",
    cpus: int = 2,
    say: Say = print,
) -> Servers:
    """Start Ray and Airflow side by side and wait until both work; servers that run already are taken as they are.

    Args:
        home: state, logs and Airflow's own files; created.
        env: what DAGs and jobs see beside the environment of this process, e.g. SMALTI_LAKE.
        cpus: what Ray may use at once, in cores.

    Raises:
        ServerError: one did not come up. Nothing is left running.
    """
    running = find_servers(home)
    if running is not None and running.ray and running.airflow and all(p.alive for p in running.processes):
        say(f"  servers are running already: {running.airflow.url}")
        return running
    stop_servers(home)
    try:
        ray = launch_ray(home, env, cpus=cpus)
        airflow = launch_airflow(home, env, ray=ray, dags=dags, plugins=plugins)
        with ray.jobs() as jobs, airflow.api() as api:
            wait_until_ready([_ray_waiting(ray, jobs), _airflow_waiting(airflow, api)], say)
    except BaseException:  # also Ctrl-C: leave nothing behind
        stop_servers(home)
        raise
    return Servers(ray, airflow)


def stop_servers(home: Path) -> int:
    """End what runs for `home`, as far as it came up. Gives the number of processes ended."""
    servers = find_servers(home)
    if servers is None:
        return 0
    ended = 0
    for process in servers.processes:
        ended += end([process])
    if servers.ray is not None:
        # The short-lived directory is outside home because of the length of socket paths; its logs are worth keeping.
        with contextlib.suppress(OSError):
            logs = Path(servers.ray.temp, "session_latest", "logs")
            shutil.copytree(logs, home / "ray-logs", dirs_exist_ok=True, ignore=shutil.ignore_patterns("old", "nsight"))
        shutil.rmtree(servers.ray.temp, ignore_errors=True)
    _state_file(home).unlink(missing_ok=True)
    return ended


def find_servers(home: Path) -> Servers | None:
    """What was started for `home` since the machine booted, alive or not; None if nothing."""
    try:
        state = json.loads(_state_file(home).read_text())
    except FileNotFoundError:
        return None
    if state.pop("boot") != _boot():
        _state_file(home).unlink()  # the pids in it name other processes now
        return None
    ray, airflow = state["ray"], state["airflow"]
    return Servers(
        ray and RayServer(**(ray | {"process": Process(**ray["process"])})),
        airflow and AirflowServer(**(airflow | {"process": Process(**airflow["process"])})),
    )


# Ray


def launch_ray(home: Path, env: Mapping[str, str] | None = None, *, cpus: int = 2, programs: Path = BIN) -> RayServer:
    """Start a Ray head without waiting for it (`wait_for_ray` does).

    Args:
        programs: the folder with `ray` and the `python` of its jobs.
    """
    home = _prepared(home)
    token_file = home / "ray-token"
    if not token_file.exists():
        _write_private(token_file, secrets.token_hex(32))
    gcs, dashboard, agent, agent_grpc, runtime_env, agent_metrics, head_metrics = free_ports(7)
    # A Unix socket's path has at most 107 characters, and Ray appends about 65: not below home, which may be deep.
    temp = tempfile.mkdtemp(prefix="smalti-ray-", dir="/tmp")
    command = [str(programs / "ray"), "start", "--head", "--block", "--disable-usage-stats", "--no-monitor"]
    command += ["--port", str(gcs), "--dashboard-host", "127.0.0.1", "--dashboard-port", str(dashboard)]
    # All known beforehand: see the hook.
    command += ["--dashboard-agent-listen-port", str(agent), "--dashboard-agent-grpc-port", str(agent_grpc)]
    command += ["--runtime-env-agent-port", str(runtime_env), "--metrics-export-port", str(agent_metrics)]
    command += ["--min-worker-port", "0", "--max-worker-port", "0"]  # 0: the kernel chooses
    command += ["--num-cpus", str(cpus), "--num-gpus", "0", "--object-store-memory", str(OBJECT_STORE_BYTES)]
    command += ["--temp-dir", temp]
    settings = {
        "RAY_AUTH_MODE": "token",  # some of Ray's ports listen on all interfaces, whatever the flags say
        "RAY_AUTH_TOKEN_PATH": str(token_file),
        "RAY_START_HOOK": "demo.ray_hook.frugal_and_patient",
        # For the hook, which takes it out again.
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *filter(None, [(env or {}).get("PYTHONPATH")])]),
        "DASHBOARD_METRIC_PORT": str(head_metrics),  # 44227 for every head on a machine otherwise
        "RAY_agent_register_timeout_ms": "150000",  # 30 s is too short on a busy machine
    }
    own = _environment(env)
    own["PATH"] = f"{programs}{os.pathsep}{own['PATH']}"
    process = spawn(command, home / "ray.log", own | settings, cwd=home)
    server = RayServer(process, f"http://127.0.0.1:{dashboard}", f"127.0.0.1:{gcs}", str(token_file), temp)
    _record(home, ray=server)
    return server


def wait_for_ray(server: RayServer, *, say: Say = print) -> None:
    """Wait until a trivial job has succeeded. Raises ServerError."""
    with server.jobs() as jobs:
        wait_until_ready([_ray_waiting(server, jobs)], say)


def _ray_waiting(server: RayServer, jobs: httpx.Client) -> Waiting:
    """The API answers long before it can run a job, and the first job is slow: run one."""

    def missing() -> str | None:
        with contextlib.suppress(httpx.HTTPError, ValueError):
            answer = jobs.get("/api/jobs/hello")
            if answer.status_code == 404:
                jobs.post("/api/jobs/", json={"entrypoint": "true", "submission_id": "hello"})
                return "accepting jobs"
            status = answer.json()["status"]
            if status == "FAILED":
                raise ServerError("a trivial job failed", server.process.log, answer.json()["message"])
            return None if status == "SUCCEEDED" else "running a trivial job"
        return "starting"

    return Waiting("Ray", server.process, missing, RAY_SECONDS)


# Airflow


def launch_airflow(
    home: Path,
    env: Mapping[str, str] | None = None,
    *,
    ray: RayServer | None = None,
    dags: Path = REPOSITORY / "dags",
    plugins: Path = REPOSITORY / "plugins",
) -> AirflowServer:
    """Start `airflow standalone` on SQLite without waiting for it (`wait_for_airflow` does)."""
    home = _prepared(home)
    password_file = home / "airflow-password.json"
    if not password_file.exists():
        _write_private(password_file, json.dumps({USER: secrets.token_urlsafe(12)}))
    own = airflow_environment(home, env, ray=ray, dags=dags, plugins=plugins, password_file=password_file)
    process = spawn([str(BIN / "airflow"), "standalone"], home / "airflow.log", _environment(own), cwd=home)
    server = AirflowServer(process, own["AIRFLOW__API__BASE_URL"], USER, str(password_file), own)
    _record(home, airflow=server)
    return server


def airflow_environment(
    home: Path,
    env: Mapping[str, str] | None = None,
    *,
    ray: RayServer | None = None,
    dags: Path = REPOSITORY / "dags",
    plugins: Path = REPOSITORY / "plugins",
    password_file: Path | None = None,
) -> dict[str, str]:
    """The AIRFLOW* variables of a small Airflow in `<home>/airflow`, and `env`, which wins.

    Also what an `airflow` command or `dag.test()` needs.
    """
    airflow_home = home.resolve() / "airflow"
    port, worker_logs, trigger_logs = free_ports(3)
    url = f"http://127.0.0.1:{port}"
    settings = {
        "AIRFLOW_HOME": str(airflow_home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(plugins),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__SENSITIVE_VAR_CONN_NAMES": "keys",  # of the opt-outs' form: *** in the audit log
        "AIRFLOW__CORE__PARALLELISM": "4",  # by default 32 workers, each a process
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",  # does not follow the port by itself
        # 5 s by default: on busy cores the API server's first answer takes longer, and the task's try would be lost.
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
        # A writer waits at most 5 s for another (the default), then its call fails, and whoever asked asks again. With 120 s
        # the whole API server was seen to stand still for over a minute at the very calls that fail after 5 s.
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{airflow_home}/airflow.db",
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(worker_logs),
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(trigger_logs),
        "AIRFLOW__LOGGING__COLORED_CONSOLE_LOG": "False",
        "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
        # Parsing costs seconds of CPU; the DAGs change only when someone edits a file.
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "120",
        "AIRFLOW__DAG_PROCESSOR__STALE_DAG_THRESHOLD": "300",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "NO_COLOR": "1",
    }
    if password_file is not None:
        settings["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"] = str(password_file)
    if ray is not None:
        where = httpx.URL(ray.url)
        connection = {"conn_type": "http", "schema": "http", "host": where.host, "port": where.port}
        settings[f"AIRFLOW_CONN_{RAY_CONNECTION.upper()}"] = json.dumps(connection | {"password": ray.token})
    return settings | dict(env or {})


def wait_for_airflow(server: AirflowServer, *, say: Say = print) -> None:
    """Wait until scheduler, triggerer and DAG processor beat and the API answers. Raises ServerError."""
    with server.api() as api:
        wait_until_ready([_airflow_waiting(server, api)], say)


def _airflow_waiting(server: AirflowServer, api: AirflowApi) -> Waiting:
    return Waiting("Airflow", server.process, api.unhealthy, AIRFLOW_SECONDS)


# Files


def _state_file(home: Path) -> Path:
    return home / "servers.json"


def _record(home: Path, **servers: RayServer | AirflowServer) -> None:
    """Note what was started at once, so that it can be ended whatever happens next."""
    found = find_servers(home) or Servers()
    state: dict[str, Any] = {"boot": _boot()} | asdict(found) | {name: asdict(s) for name, s in servers.items()}
    part = _state_file(home).with_suffix(".part")
    _write_private(part, json.dumps(state, indent=1))
    part.replace(_state_file(home))


def _write_private(path: Path, text: str) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)


def _prepared(home: Path) -> Path:
    home = home.resolve()
    home.mkdir(parents=True, exist_ok=True)
    return home


def _environment(env: Mapping[str, str] | None) -> dict[str, str]:
    """This process's environment without what it says about other Airflows and Rays, and `env`."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "RAY_", "PYTHONPATH"))}
    no_proxy = ",".join(filter(None, [own.get("NO_PROXY"), "127.0.0.1", "localhost"]))
    own |= {
        "PATH": f"{BIN}{os.pathsep}{own.get('PATH', '')}",  # `airflow standalone` starts `airflow` by name
        "HF_HUB_OFFLINE": "1",
        "NO_PROXY": no_proxy,  # Airflow's parts talk to each other, and its tasks to Ray, by HTTP
        "no_proxy": no_proxy,
    }
    # Two dozen interpreters import the same thousands of files; without their bytecode each takes ten seconds longer.
    own.pop("PYTHONDONTWRITEBYTECODE", None)
    return own | dict(env or {})


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
