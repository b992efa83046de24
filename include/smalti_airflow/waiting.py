"""Wait for a Ray job to end: one coroutine, which a worker runs for a few seconds and a trigger for as long as it takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from smalti_airflow.ray_jobs import AsyncRayJobs, Job, JobState, RayJobsError

TOLERATED_ERRORS = 10
"""Requests in a row that may fail before waiting is given up; with the pauses below that is about two minutes."""

GONE_AFTER = 3
"""Answers in a row that the job is unknown before it counts as lost."""

FIRST_LOG_LOOK, LOG_LOOK_FACTOR, LONGEST_LOG_PAUSE = 5.0, 1.5, 60.0
"""Seconds: /logs gives the whole log each time, so it is asked for seldom, and ever more seldom."""

LINES_A_LOOK = 40
"""Lines of the job's log that one look puts into the task's log at most: the newest."""


@dataclass(frozen=True)
class Outcome:
    """How waiting ended.

    Attributes:
        state: a job's final state, or GONE (Ray no longer knows the job), TIMEOUT (the deadline passed and the job still
            runs) or UNREACHABLE (too many errors in a row; the job may well still run).
        message: of Ray, or the last error.
        exit_code: of the job's entrypoint, if Ray knows it.
    """

    state: str
    message: str = ""
    exit_code: int | None = None

    def as_event(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class LogTail:
    """Gives each line of a growing log once."""

    seen: int = 0

    def news(self, text: str | None, *, final: bool = False) -> list[str]:
        """Whole lines that were not there before (at the end also a line without its end); the newest of many."""
        if text is None:
            return []
        if len(text) < self.seen:  # another log: the cluster was restarted
            self.seen = 0
        end = len(text) if final else text.rfind("\n") + 1
        lines = text[self.seen : max(end, self.seen)].splitlines()
        self.seen = max(end, self.seen)
        left_out = len(lines) - LINES_A_LOOK
        if left_out > 0:
            return [f"... {left_out} lines left out, the job's own log has them ...", *lines[left_out:]]
        return lines


def pauses() -> Iterator[float]:
    """Seconds between two looks at a job: one at first, ten in the end."""
    pause = 1.0
    for look in range(1_000_000_000):
        yield pause
        if look >= 20:
            pause = min(pause * 1.25, 10.0)


@dataclass
class Waiter:
    """Waits for one job.

    Attributes:
        connect: makes a client; called again after an error, since tokens expire and addresses move.
        submission: the job.
        deadline: absolute, in seconds since the epoch; None waits for ever.
        say: where lines for a person go.
        sleep: asyncio.sleep, but for tests.
    """

    connect: Callable[[], Awaitable[AsyncRayJobs]]
    submission: str
    deadline: float | None
    say: Callable[[str], None]
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    tail: LogTail = field(default_factory=LogTail)
    _client: AsyncRayJobs | None = None
    _log_pause: float = FIRST_LOG_LOOK
    _log_due: float = field(default_factory=lambda: time.monotonic() + FIRST_LOG_LOOK)

    async def wait(self) -> Outcome:
        """Look until the job has ended, is lost, is late, or cannot be asked for."""
        errors = unknown = 0
        last: JobState | None = None
        for pause in pauses():
            if self.deadline is not None and time.time() >= self.deadline:
                return Outcome("TIMEOUT", f"last seen {last or 'nowhere'}")
            try:
                async with self._jobs() as jobs:
                    job = await jobs.get(self.submission)
                    if job is not None:
                        await self._show_log(jobs, job)
            except RayJobsError as error:
                errors += 1
                if errors > TOLERATED_ERRORS:
                    return Outcome("UNREACHABLE", str(error))
                self.say(f"{error}; looking again ({errors} of {TOLERATED_ERRORS})")
                await self._pause(min(2.0**errors, 15.0))
                continue
            errors = 0
            unknown = unknown + 1 if job is None else 0
            if unknown >= GONE_AFTER:
                return Outcome(
                    "GONE", f"Ray no longer knows {self.submission}: its head was restarted, or it was deleted"
                )
            if job is not None:
                if job.state is not last:
                    self.say(f"{self.submission} is {job.state}")
                    last = job.state
                if job.state.ended:
                    return Outcome(job.state.value, job.message, job.exit_code)
            await self._pause(pause)
        raise AssertionError("pauses never end")

    async def close(self) -> None:
        """Close the client, whatever state it is in."""
        client, self._client = self._client, None
        if client is not None:
            await client.__aexit__()

    @asynccontextmanager
    async def _jobs(self) -> AsyncIterator[AsyncRayJobs]:
        if self._client is None:
            self._client = await self.connect()
        try:
            yield self._client
        except RayJobsError:
            await self.close()
            raise

    async def _pause(self, seconds: float) -> None:
        if self.deadline is not None:
            seconds = min(seconds, max(self.deadline - time.time(), 0.0))
        await self.sleep(seconds)

    async def _show_log(self, jobs: AsyncRayJobs, job: Job) -> None:
        """Put what is new in the job's log into ours; a log that cannot be had is no reason to stop waiting."""
        if job.state is JobState.PENDING or (not job.state.ended and time.monotonic() < self._log_due):
            return
        try:
            text = await jobs.logs(self.submission)
        except RayJobsError as error:
            text = None
            self.say(f"the log cannot be shown: {error}")
        for line in self.tail.news(text, final=job.state.ended):
            self.say(f"| {line}")
        self._log_pause = min(self._log_pause * LOG_LOOK_FACTOR, LONGEST_LOG_PAUSE)
        self._log_due = time.monotonic() + self._log_pause
