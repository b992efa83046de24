"""The trigger that waits for a Ray job. It lives in an installed package: the triggerer has no DAG folder on its path."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from smalti_airflow.ray_jobs import AsyncRayJobs, RayJobsError, RayTarget
from smalti_airflow.waiting import LogTail, Waiter

LATE = 60.0
"""Seconds after the deferral from which on a starting trigger is one that was moved: it does not repeat the log."""

STOP_TRIES = 4
RETRY_PAUSE = 1.0
"""on_kill asks Ray four times to stop the job, with pauses of 1, 2 and 3 seconds; Airflow gives it 30."""


class RayJobTrigger(BaseTrigger):
    """Waits for a job and sends one event: the Outcome as a dict, with `note` beside it.

    Args:
        conn_id: Airflow connection of the cluster. The token is not part of the trigger, which is stored.
        submission: the job.
        deadline: absolute, seconds since the epoch. execution_timeout does not apply while a task is deferred.
        since: when the task was deferred, seconds since the epoch.
        seen: how much of the job's log is in the task's log already, in characters.
        note: handed back in the event as it is.
    """

    def __init__(
        self,
        *,
        conn_id: str,
        submission: str,
        deadline: float | None,
        since: float,
        seen: int = 0,
        note: dict[str, Any],
    ) -> None:
        super().__init__()
        self.conn_id = conn_id
        self.submission = submission
        self.deadline = deadline
        self.since = since
        self.seen = seen
        self.note = note

    def serialize(self) -> tuple[str, dict[str, Any]]:
        fields = ("conn_id", "submission", "deadline", "since", "seen", "note")
        return "smalti_airflow.triggers.RayJobTrigger", {name: getattr(self, name) for name in fields}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        tail = LogTail(self.seen)
        waiter = Waiter(self._connect, self.submission, self.deadline, self._say, tail=tail)
        try:
            if time.time() - self.since > LATE:
                await self._skip_what_was_shown(waiter)
            outcome = await waiter.wait()
        finally:
            await waiter.close()
        yield TriggerEvent({**outcome.as_event(), "note": self.note})

    async def on_kill(self) -> None:
        """A person marked the task, or cleared it: stop the job this trigger waits for, and no other.

        A try that took the job over before this came sees it stopped and starts the next attempt.
        """
        for again in range(STOP_TRIES):
            try:
                async with await self._connect(timeout=5.0) as jobs:
                    known = await jobs.stop(self.submission)
                self.log.info("%s: %s", self.submission, "asked Ray to stop it" if known else "Ray does not know it")
                return
            except RayJobsError as error:
                self.log.warning("%s could not be stopped: %s", self.submission, error)
                await asyncio.sleep(RETRY_PAUSE * (1 + again))

    def _say(self, line: str) -> None:
        self.log.info("%s", line)

    async def _connect(self, timeout: float | None = None) -> AsyncRayJobs:
        from airflow.sdk import BaseHook

        return AsyncRayJobs(RayTarget.of(await BaseHook.aget_connection(self.conn_id)), timeout)

    async def _skip_what_was_shown(self, waiter: Waiter) -> None:
        try:
            async with await self._connect() as jobs:
                waiter.tail.news(await jobs.logs(self.submission))
        except RayJobsError:
            return
        self._say("Another triggerer waited until now: what the job wrote before is not repeated here.")
