"""Waiting: every way a job can end, and every way in which one cannot be asked."""

from __future__ import annotations

import asyncio
import time
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smalti_airflow import waiting
from smalti_airflow.ray_jobs import AsyncRayJobs, RayTarget
from smalti_airflow.waiting import LogTail, Outcome, Waiter, pauses
from tests.smalti_airflow.fake_ray_jobs import HELD, TOKEN, FakeJob, FakeRay


class Watch:
    """A waiter without pauses, what it said, and how often it connected."""

    def __init__(self, ray: FakeRay, deadline: float | None = None) -> None:
        self.said: list[str] = []
        self.connected = 0
        self.paused = 0.0
        self.waiter = Waiter(self._connect, "job-1", deadline, self.said.append, sleep=self._sleep)
        self._ray = ray

    async def _connect(self) -> AsyncRayJobs:
        self.connected += 1
        return AsyncRayJobs(RayTarget(self._ray.url, TOKEN))

    async def _sleep(self, seconds: float) -> None:
        self.paused += seconds

    def wait(self) -> Outcome:
        async def whole() -> Outcome:
            try:
                return await self.waiter.wait()
            finally:
                await self.waiter.close()

        return asyncio.run(whole())


def submitted(ray: FakeRay, *states: str) -> FakeJob:
    ray.lives[0] = states
    ray.prepare = lambda job: setattr(job, "report", False)
    ray.submit({"submission_id": "job-1", "entrypoint": "true"})
    return ray.jobs["job-1"]


@pytest.mark.parametrize("end", ["SUCCEEDED", "FAILED", "STOPPED"])
def test_each_end_is_an_outcome(ray: FakeRay, end: str) -> None:
    job = submitted(ray, "PENDING", "PENDING", "RUNNING", "RUNNING", end)
    job.message, job.exit_code = "words", 3
    watch = Watch(ray)
    assert watch.wait() == Outcome(end, "words", 0 if end == "SUCCEEDED" else 3)
    assert [line for line in watch.said if line.startswith("job-1 is")] == [
        f"job-1 is {state}" for state in ("PENDING", "RUNNING", end)
    ]


def test_a_job_that_ray_forgets_is_gone_and_not_failed(ray: FakeRay) -> None:
    submitted(ray, HELD)
    ray.restart()
    assert Watch(ray).wait().state == "GONE"


def test_one_look_that_finds_nothing_is_not_the_end(ray: FakeRay) -> None:
    submitted(ray, "RUNNING", "SUCCEEDED")
    ray.fail("GET", "404")
    assert Watch(ray).wait().state == "SUCCEEDED"


def test_as_many_errors_as_are_tolerated_change_nothing(ray: FakeRay) -> None:
    submitted(ray, "RUNNING", "SUCCEEDED")
    faults = ["drop", "500", "garbage", "503", "401"] * 2
    assert len(faults) == waiting.TOLERATED_ERRORS
    ray.fail("GET", *faults)
    watch = Watch(ray)
    assert watch.wait().state == "SUCCEEDED"
    assert watch.connected == 1 + len(faults)  # each with a fresh client: tokens expire


def test_one_error_more_gives_up_without_judging_the_job(ray: FakeRay) -> None:
    submitted(ray, HELD)
    ray.fail("GET", *["500"] * (waiting.TOLERATED_ERRORS + 1))
    watch = Watch(ray)
    assert watch.wait().state == "UNREACHABLE"
    assert 60 < watch.paused < 180
    assert ray.live() == ["job-1"]


def test_errors_between_answers_are_not_added_up(ray: FakeRay) -> None:
    submitted(ray, *["RUNNING"] * 5, "SUCCEEDED")
    for _ in range(5):
        ray.fail("GET", *["500"] * waiting.TOLERATED_ERRORS, "")
    assert Watch(ray).wait().state == "SUCCEEDED"


def test_an_unknown_state_is_not_waited_for_for_ever(ray: FakeRay) -> None:
    submitted(ray, "LEVITATING")
    assert Watch(ray).wait().state == "UNREACHABLE"


def test_the_deadline_ends_waiting_also_while_nobody_answers(ray: FakeRay) -> None:
    submitted(ray, HELD)
    assert Watch(ray, deadline=time.time() - 1).wait().state == "TIMEOUT"
    watch = Watch(ray, deadline=time.time() + 0.3)
    ray.fail("GET", "500", "500")
    watch.waiter.sleep = asyncio.sleep
    assert watch.wait().state == "TIMEOUT"


def test_the_whole_log_is_shown_once_and_its_absence_is_no_reason_to_stop(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "FIRST_LOG_LOOK", -1.0)
    monkeypatch.setattr(waiting, "LONGEST_LOG_PAUSE", -1.0)
    job = submitted(ray, *["RUNNING"] * 6, "SUCCEEDED")
    job.log = "one\ntwo\nthr"
    ray.fail("LOGS", "", "500", "drop", "garbage")
    watch = Watch(ray)
    watch.waiter._log_due = 0
    assert watch.wait().state == "SUCCEEDED"
    assert [line for line in watch.said if line.startswith("| ")] == ["| one", "| two", "| thr"]
    assert sum("the log cannot be shown" in line for line in watch.said) == 3


def test_the_log_is_asked_for_seldom(ray: FakeRay) -> None:
    submitted(ray, *["RUNNING"] * 50, "SUCCEEDED")
    Watch(ray).wait()
    assert ray.requests.count("LOGS") == 1  # at the end: less than five seconds have passed


@given(st.lists(st.text(alphabet="ab\n", max_size=30), max_size=12))
def test_a_growing_log_is_given_line_by_line_and_nothing_twice(pieces: list[str]) -> None:
    tail, text, shown = LogTail(), "", []
    for piece in pieces:
        text += piece
        shown += tail.news(text)
    shown += tail.news(text, final=True)
    assert shown == text.splitlines()


def test_of_many_new_lines_the_newest_are_shown() -> None:
    news = LogTail().news("".join(f"{number}\n" for number in range(1000)))
    assert len(news) == waiting.LINES_A_LOOK + 1
    assert "960 lines left out" in news[0]
    assert news[-1] == "999"


def test_looks_become_fewer() -> None:
    first = list(islice(pauses(), 60))
    assert first[:20] == [1.0] * 20
    assert first == sorted(first)
    assert first[-1] == 10.0
