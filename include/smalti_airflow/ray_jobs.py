"""Ray's Jobs API over plain HTTP, without importing Ray: a client for a worker, and one for a trigger's event loop.

Three rules, each the scar of somebody's outage:

- Ask before asking for more: a job is looked up first, then submitted, and after *any* error looked up again. Ray may
  have taken a submission whose answer was lost, and refuses a second one with a status that says nothing reliable.
- A job that Ray does not know is `None`, an answer that cannot be understood is `RayJobsError`: never the same thing.
- The token is sent in a header and stands nowhere else: not in a repr, an error, a log or a serialised trigger.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    import httpx

TIMEOUT = 30.0
"""Seconds for one request; Ray answers a submission when the job's supervisor is placed, which takes seconds."""

POST_TRIES = 3
"""Submissions that are sent before giving up; each is preceded and followed by a look."""

LOG_LIMIT = 16 << 20
"""Bytes of a driver's log that are read at most: the API knows no ranges and gives the whole of it each time."""


class JobState(StrEnum):
    """The states of a Ray job. Any other word is an error: better to fail than to wait for ever."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"

    @property
    def ended(self) -> bool:
        return self in (JobState.STOPPED, JobState.SUCCEEDED, JobState.FAILED)


@dataclass(frozen=True)
class Job:
    """A job as Ray describes it.

    Attributes:
        submission: its submission id.
        state: where it is.
        message: Ray's own words; of a failed job they end in the last lines of its output.
        exit_code: of the entrypoint; None while it runs, and where Ray lost it.
    """

    submission: str
    state: JobState
    message: str = ""
    exit_code: int | None = None


class RayJobsError(Exception):
    """Ray was not reached, or its answer cannot be used. Says nothing about any job."""


@dataclass(frozen=True)
class RayTarget:
    """Where a cluster's Jobs API is.

    Attributes:
        url: of the dashboard, without a slash at its end.
        token: for a cluster with RAY_AUTH_MODE=token.
        dashboard: what a person's browser reaches; usually the same.
    """

    url: str
    token: str | None = field(default=None, repr=False)
    dashboard: str = ""

    @staticmethod
    def of(connection: Any) -> RayTarget:
        """From an Airflow connection of type http: host, port, schema (https), password = token, extra.dashboard."""
        host = connection.host or "127.0.0.1"
        url = host if "://" in host else f"{connection.schema or 'http'}://{host}"
        if connection.port:
            url = f"{url}:{connection.port}"
        extra = connection.extra_dejson
        return RayTarget(url.rstrip("/"), connection.password or None, str(extra.get("dashboard", "")).rstrip("/"))

    def job_page(self, submission: str) -> str:
        """The dashboard's page about a job, for a person."""
        return f"{self.dashboard or self.url}/#/jobs/{quote(submission, safe='')}"

    def client_options(self) -> dict[str, Any]:
        """For httpx.Client and AsyncClient alike."""
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        secure = self.url.startswith("https://")  # building a TLS context costs 40 ms, which http need not pay
        return {"base_url": self.url, "headers": headers, "timeout": TIMEOUT, "verify": secure}


@dataclass(frozen=True)
class Submission:
    """What is submitted: the command, what the dashboard shows about it, the environment it is given."""

    submission: str
    entrypoint: str
    metadata: Mapping[str, str]
    env: Mapping[str, str]

    def body(self) -> dict[str, Any]:
        """The driver takes no CPU of the cluster's: it waits for its tasks, which take theirs."""
        body: dict[str, Any] = {
            "submission_id": self.submission,
            "entrypoint": self.entrypoint,
            "metadata": dict(self.metadata),
            "entrypoint_num_cpus": 0,
        }
        if self.env:  # a runtime_env, even an empty one, keeps Ray from using the workers it has ready
            body["runtime_env"] = {"env_vars": dict(self.env)}
        return body


class RayJobs:
    """The client that blocks. Use as a context manager."""

    def __init__(self, target: RayTarget, timeout: float | None = None) -> None:
        import httpx

        self.target = target
        self._http = httpx.Client(**{**target.client_options(), **({"timeout": timeout} if timeout else {})})

    def __enter__(self) -> RayJobs:
        return self

    def __exit__(self, *error: object) -> None:
        self._http.close()

    def get(self, submission: str) -> Job | None:
        """The job; None if Ray knows none of that name. Raises RayJobsError."""
        with _unreachable(self.target):
            return _job(self._http.get(_path(submission)), submission)

    def submit(self, what: Submission) -> Job:
        """The job of that name, which exists once afterwards, whoever made it. Raises RayJobsError."""
        problem: RayJobsError | None = None
        for again in range(POST_TRIES):
            if again:
                time.sleep(2.0**again)
            try:
                found = self.get(what.submission)
                if found is not None:
                    return found
                with _unreachable(self.target):
                    taken = _checked(self._http.post("/api/jobs/", json=what.body())).json()["submission_id"]
                if taken != what.submission:
                    raise RayJobsError(f"{self.target.url} took {what.submission} as {taken}")
                return Job(what.submission, JobState.PENDING)
            except RayJobsError as error:
                problem = error
        found = self.get(what.submission)
        if found is not None:
            return found
        assert problem is not None
        raise problem

    def stop(self, submission: str) -> bool:
        """Ask for the end of a job. False if Ray does not know it. Raises RayJobsError."""
        with _unreachable(self.target):
            return _stopped(self._http.post(f"{_path(submission)}/stop"))

    def logs(self, submission: str) -> str | None:
        """The driver's whole log; None if there is none, or it is larger than LOG_LIMIT. Raises RayJobsError."""
        with _unreachable(self.target), self._http.stream("GET", f"{_path(submission)}/logs") as answer:
            data = bytearray()
            for chunk in answer.iter_bytes():
                data += chunk
                if len(data) > LOG_LIMIT:
                    return None
            return _logs(answer, bytes(data))


class AsyncRayJobs:
    """The client for an event loop: what a trigger needs. Use as an async context manager."""

    def __init__(self, target: RayTarget, timeout: float | None = None) -> None:
        import httpx

        self.target = target
        self._http = httpx.AsyncClient(**{**target.client_options(), **({"timeout": timeout} if timeout else {})})

    async def __aenter__(self) -> AsyncRayJobs:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._http.aclose()

    async def get(self, submission: str) -> Job | None:
        """As RayJobs.get."""
        with _unreachable(self.target):
            return _job(await self._http.get(_path(submission)), submission)

    async def stop(self, submission: str) -> bool:
        """As RayJobs.stop."""
        with _unreachable(self.target):
            return _stopped(await self._http.post(f"{_path(submission)}/stop"))

    async def logs(self, submission: str) -> str | None:
        """As RayJobs.logs."""
        with _unreachable(self.target):
            async with self._http.stream("GET", f"{_path(submission)}/logs") as answer:
                data = bytearray()
                async for chunk in answer.aiter_bytes():
                    data += chunk
                    if len(data) > LOG_LIMIT:
                        return None
                return _logs(answer, bytes(data))


def _path(submission: str) -> str:
    return f"/api/jobs/{quote(submission, safe='')}"


@contextlib.contextmanager
def _unreachable(target: RayTarget) -> Iterator[None]:
    """Everything that a broken network, a proxy or a restarting head can do becomes a RayJobsError."""
    import httpx

    try:
        yield
    except httpx.HTTPError as error:
        raise RayJobsError(f"{target.url} does not answer ({type(error).__name__}: {error})") from None
    except (ValueError, KeyError, TypeError) as error:
        raise RayJobsError(f"{target.url} answered what is not the Jobs API's ({error!r})") from None


def _checked(answer: httpx.Response) -> httpx.Response:
    if answer.is_success:
        return answer
    if answer.status_code in (401, 403):
        raise RayJobsError(
            f"{answer.request.url.copy_with(path='/')} refuses the token (HTTP {answer.status_code}): "
            "set the password of the Airflow connection to the cluster's token"
        )
    last = (answer.text.strip().splitlines() or ["no reason given"])[-1]
    raise RayJobsError(f"{answer.request.method} {answer.request.url}: HTTP {answer.status_code}, {last[:500]}")


def _job(answer: httpx.Response, submission: str) -> Job | None:
    if answer.status_code == 404:
        return None
    data = _checked(answer).json()
    return Job(submission, JobState(data["status"]), data.get("message") or "", data.get("driver_exit_code"))


def _stopped(answer: httpx.Response) -> bool:
    if answer.status_code == 404:
        return False
    _checked(answer).json()["stopped"]  # false where it had ended already; a proxy's page has none
    return True


def _logs(answer: httpx.Response, data: bytes) -> str | None:
    import json

    if answer.status_code == 404:
        return None
    if not answer.is_success:
        raise RayJobsError(f"{answer.request.url}: HTTP {answer.status_code}")
    return str(json.loads(data)["logs"])
