"""A small client of Airflow's REST API: what the demo and the end-to-end tests need to drive runs and watch them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

import httpx

from smalti.errors import SmaltiError

Say = Callable[[str], None]

COMPONENTS = ("metadatabase", "scheduler", "triggerer", "dag_processor")
FINISHED = frozenset({"success", "failed"})
POLL_SECONDS = 1.0
DATABASE_PAUSES = (0.5, 2.0, 5.0, 10.0, 15.0)  # seconds between tries of a call that Airflow's database rolled back


class AirflowError(SmaltiError):
    """Airflow refused a call, or did not do in time what was waited for."""


class AirflowApi:
    """One user at one Airflow. Logs in by itself, and again when the token has run out."""

    def __init__(self, url: str, user: str, password: str, transport: httpx.BaseTransport | None = None) -> None:
        self.url = url
        self._login = {"username": user, "password": password}
        # httpx tries only connecting again; on SQLite and busy cores Airflow is slow to answer at times.
        transport = transport or httpx.HTTPTransport(retries=3)
        self._client = httpx.Client(base_url=url, timeout=180, transport=transport, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    # Calls

    def token(self) -> str:
        """A fresh bearer token."""
        answer = self._client.post("/auth/token", json=self._login)
        if answer.status_code != 201:
            raise AirflowError(
                f"login answered {answer.status_code}: {answer.text[:200]}", self.url, "Check the password"
            )
        return str(answer.json()["access_token"])

    def call(self, method: str, path: str, body: Any = None, **params: Any) -> Any:
        """One call of `/api/v2/<path>`; gives the decoded JSON, None where there is none.

        A call that failed in Airflow's database did nothing and is made again: on SQLite, a lost race of two writers.

        Raises:
            AirflowError: any status of 400 and above, with what Airflow says about it.
        """
        for pause in (*DATABASE_PAUSES, None):
            answer = self._request(method, path, body, params)
            if pause is None or not _rolled_back(answer):
                break
            time.sleep(pause)
        if answer.status_code >= 400:
            raise AirflowError(f"{answer.status_code} {answer.text[:500]}", f"{method} {path}", "See Airflow's API log")
        return answer.json() if answer.content else None

    def _request(self, method: str, path: str, body: Any, params: Mapping[str, Any]) -> httpx.Response:
        for attempt in (1, 2):
            if "Authorization" not in self._client.headers:
                self._client.headers["Authorization"] = f"Bearer {self.token()}"
            answer = self._client.request(method, f"/api/v2/{path}", json=body, params=params)
            if answer.status_code != 401 or attempt == 2:
                break
            del self._client.headers["Authorization"]
        return answer

    def unhealthy(self) -> str | None:
        """What is not up yet, in words; None when everything is."""
        try:
            health = self._client.get("/api/v2/monitor/health", timeout=10).raise_for_status().json()
        except (httpx.HTTPError, ValueError):
            return "starting"
        bad = [name for name in COMPONENTS if (health.get(name) or {}).get("status") != "healthy"]
        return f"waiting for {', '.join(bad)}" if bad else None

    # DAGs

    def import_errors(self) -> dict[str, str]:
        """File -> traceback of what could not be parsed."""
        found = self.call("GET", "importErrors")["import_errors"]
        return {each["filename"]: each["stack_trace"] for each in found}

    def wait_for_dags(self, dags: list[str], *, seconds: float = 300) -> None:
        """Wait until the DAG processor has found `dags`.

        Raises:
            AirflowError: one is not there in time; import errors are quoted.
        """
        until = time.monotonic() + seconds
        while True:
            there = {each["dag_id"] for each in self.call("GET", "dags", limit=100)["dags"]}
            absent = [dag for dag in dags if dag not in there]
            if not absent:
                return
            errors = self.import_errors()
            if errors or time.monotonic() > until:
                why = "; ".join(f"{file}: {text.strip().splitlines()[-1]}" for file, text in errors.items())
                raise AirflowError(
                    f"no DAG {', '.join(absent)}: {why or 'not parsed in time'}", self.url, "Fix the file"
                )
            time.sleep(POLL_SECONDS)

    def unpause(self, dag: str) -> None:
        self.call("PATCH", f"dags/{dag}", {"is_paused": False})

    def trigger(
        self,
        dag: str,
        *,
        partition_key: str | None = None,
        conf: Mapping[str, Any] | None = None,
        run_id: str | None = None,
    ) -> str:
        """Start a run and give its id."""
        body: dict[str, Any] = {"logical_date": None}  # required, and null: these DAGs know batches, not dates
        given = {"partition_key": partition_key, "conf": conf and dict(conf), "dag_run_id": run_id}
        body |= {name: value for name, value in given.items() if value is not None}
        return str(self.call("POST", f"dags/{dag}/dagRuns", body)["dag_run_id"])

    # Runs

    def runs(self, dag: str) -> list[dict[str, Any]]:
        """The latest 100 runs, newest first: dag_run_id, state, partition_key, ..."""
        runs: list[dict[str, Any]] = self.call("GET", f"dags/{dag}/dagRuns", order_by="-run_after", limit=100)[
            "dag_runs"
        ]
        return runs

    def run(self, dag: str, run_id: str) -> dict[str, Any]:
        run: dict[str, Any] = self.call("GET", f"dags/{dag}/dagRuns/{run_id}")
        return run

    def tasks(self, dag: str, run_id: str) -> list[dict[str, Any]]:
        """The run's task instances: task_id, map_index, state, try_number, start_date, ..."""
        path = f"dags/{dag}/dagRuns/{run_id}/taskInstances"
        tasks: list[dict[str, Any]] = self.call("GET", path, limit=100, order_by="start_date")["task_instances"]
        return tasks

    def log(self, dag: str, run_id: str, task: str, attempt: int = 1) -> str:
        """The log of one try, as text."""
        path = f"dags/{dag}/dagRuns/{run_id}/taskInstances/{task}/logs/{attempt}"
        lines = self.call("GET", path)["content"]
        return "\n".join(_line(each) for each in lines)

    def xcom(self, dag: str, run_id: str, task: str, key: str = "return_value") -> Any:
        """What a task returned."""
        path = f"dags/{dag}/dagRuns/{run_id}/taskInstances/{task}/xcomEntries/{key}"
        return self.call("GET", path, deserialize=False, stringify=False)["value"]

    def wait(self, dag: str, run_id: str, *, seconds: float = 1200, say: Say = print) -> str:
        """Wait until the run has ended, saying each change of a task's state; gives success or failed.

        Raises:
            AirflowError: it still runs after `seconds`.
        """
        began = time.monotonic()
        shown: dict[str, str] = {}
        while True:
            state = str(self.run(dag, run_id)["state"])  # first: tasks that end in between are then shown below
            for task in self.tasks(dag, run_id):
                name, now = _name(task), str(task["state"])
                if task["state"] and shown.get(name) != now:
                    again = f" (try {task['try_number']})" if task["try_number"] > 1 else ""
                    say(f"  {time.monotonic() - began:4.0f} s  {dag}.{name}: {now}{again}")
                    shown[name] = now
            if state in FINISHED:
                return state
            if time.monotonic() - began > seconds:
                raise AirflowError(f"run {run_id} is still {state} after {seconds:.0f} s", dag, f"Look at {self.url}")
            time.sleep(POLL_SECONDS)

    def wait_for_run(self, dag: str, known: set[str], *, seconds: float = 300) -> str:
        """Wait for a run that is not in `known`, e.g. one that an asset starts; gives its id."""
        until = time.monotonic() + seconds
        while True:
            new = [run["dag_run_id"] for run in self.runs(dag) if run["dag_run_id"] not in known]
            if new:
                return str(new[-1])
            if time.monotonic() > until:
                raise AirflowError(f"no new run after {seconds:.0f} s", dag, "Is it paused? Did its assets get events?")
            time.sleep(POLL_SECONDS)

    def failures(self, dag: str, run_id: str, lines: int = 20) -> str:
        """The ends of the logs of the tasks that failed."""
        parts = []
        for task in self.tasks(dag, run_id):
            if task["state"] == "failed":
                text = self.log(dag, run_id, task["task_id"], task["try_number"])
                parts.append(
                    f"--- {dag}.{_name(task)}, try {task['try_number']}\n" + "\n".join(text.splitlines()[-lines:])
                )
        return "\n".join(parts)


def _rolled_back(answer: httpx.Response) -> bool:
    """Whether Airflow says that its database failed: the transaction, and with it the whole call, was rolled back."""
    if answer.status_code != 500:
        return False
    try:
        detail = answer.json().get("detail")
    except (ValueError, AttributeError):
        return False
    return isinstance(detail, dict) and detail.get("reason") == "Database error"


def _name(task: Mapping[str, Any]) -> str:
    return task["task_id"] if task["map_index"] < 0 else f"{task['task_id']}[{task['map_index']}]"


def _line(entry: Any) -> str:
    if isinstance(entry, str):
        return entry
    text = f"{entry.get('timestamp') or ''} {entry.get('level') or ''} {entry.get('event') or ''}".strip()
    for error in entry.get("error_detail") or []:
        text += f"\n{error.get('exc_type')}: {error.get('exc_value')}"
    return text
