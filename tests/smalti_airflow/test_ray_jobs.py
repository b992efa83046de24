"""The client, against a head that loses answers, restarts, and answers nonsense."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from smalti_airflow import ray_jobs
from smalti_airflow.ray_jobs import AsyncRayJobs, JobState, RayJobs, RayJobsError, RayTarget, Submission
from tests.smalti_airflow.fake_ray_jobs import TOKEN, FakeJob, FakeRay

WHAT = Submission("job-1", "true", {}, {})


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)


@pytest.fixture
def jobs(ray: FakeRay) -> Iterator[RayJobs]:
    with RayJobs(RayTarget(ray.url, TOKEN)) as jobs:
        yield jobs


def known(ray: FakeRay, *states: str) -> FakeJob:
    """A job that is there, through with these states."""
    ray.lives[0] = states
    ray.prepare = lambda job: setattr(job, "report", False)
    ray.submit(WHAT.body())
    for _ in states:
        ray.jobs["job-1"].step()
    return ray.jobs["job-1"]


@pytest.mark.parametrize("state", list(JobState))
def test_each_of_rays_states_is_read(ray: FakeRay, jobs: RayJobs, state: JobState) -> None:
    known(ray, state)
    job = jobs.get("job-1")
    assert job is not None
    assert job.state is state


def test_the_list_of_states_is_rays_own() -> None:
    from ray.job_submission import JobStatus

    assert {state.value for state in JobStatus} == {state.value for state in JobState}
    assert {state.value for state in JobStatus if state.is_terminal()} == {s.value for s in JobState if s.ended}


def test_an_unknown_job_is_none_and_an_unknown_state_is_an_error(ray: FakeRay, jobs: RayJobs) -> None:
    assert jobs.get("job-1") is None
    known(ray, "LEVITATING")
    with pytest.raises(RayJobsError, match="LEVITATING"):
        jobs.get("job-1")


def test_exit_code_and_message_come_with_the_job(ray: FakeRay, jobs: RayJobs) -> None:
    job = known(ray, "FAILED")
    job.exit_code, job.message = 2, "why"
    found = jobs.get("job-1")
    assert found is not None
    assert (found.exit_code, found.message) == (2, "why")


FAULTS = st.lists(
    st.sampled_from(["500", "400", "accept+500", "accept+400", "accept+drop", "drop", "garbage"]), max_size=2
)
LOOKS = st.lists(st.sampled_from(["500", "503", "drop", "garbage"]), max_size=2)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(posts=FAULTS, looks=LOOKS)
def test_whatever_goes_wrong_with_a_submission_there_is_one_job(
    ray: FakeRay, jobs: RayJobs, posts: list[str], looks: list[str]
) -> None:
    """Five requests fail at most; whether the call raises or not, asking again ends in the one job."""
    ray.restart()
    accepted: list[FakeJob] = []
    ray.prepare = accepted.append
    ray.faults.clear()
    ray.fail("POST", *posts)
    ray.fail("GET", *looks)
    try:
        jobs.submit(WHAT)
    except RayJobsError:
        jobs.submit(WHAT)
    assert len(accepted) == 1
    assert list(ray.jobs) == ["job-1"]


def test_a_job_that_is_there_is_not_submitted_again(ray: FakeRay, jobs: RayJobs) -> None:
    known(ray, "RUNNING")
    ray.requests.clear()
    assert jobs.submit(WHAT).state is JobState.RUNNING
    assert ray.requests == ["GET"]


def test_a_refused_submission_says_why(ray: FakeRay, jobs: RayJobs) -> None:
    ray.fail("POST", *["500"] * ray_jobs.POST_TRIES)
    with pytest.raises(RayJobsError, match="HTTP 500, Traceback: the agent is not there"):
        jobs.submit(WHAT)
    assert ray.jobs == {}


def test_the_environment_is_sent_only_where_there_is_one() -> None:
    assert "runtime_env" not in WHAT.body()
    body = Submission("job-1", "true", {"dag": "d"}, {"A": "b"}).body()
    assert body["runtime_env"] == {"env_vars": {"A": "b"}}
    assert body["entrypoint_num_cpus"] == 0


def test_stop_says_whether_there_was_a_job(ray: FakeRay, jobs: RayJobs) -> None:
    assert jobs.stop("job-1") is False
    job = known(ray, "RUNNING")
    assert jobs.stop("job-1") is True
    assert job.state == "STOPPED"


def test_a_log_over_the_limit_is_not_read_to_its_end(
    ray: FakeRay, jobs: RayJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = known(ray, "RUNNING")
    job.log = "a line\n" * 1000
    assert jobs.logs("job-1") == job.log
    monkeypatch.setattr(ray_jobs, "LOG_LIMIT", 1000)
    assert jobs.logs("job-1") is None


def test_the_client_of_the_event_loop_says_the_same(ray: FakeRay, jobs: RayJobs) -> None:
    async def look() -> tuple[object, ...]:
        async with AsyncRayJobs(RayTarget(ray.url, TOKEN)) as client:
            return (
                await client.get("job-1"),
                await client.logs("job-1"),
                await client.get("no"),
                await client.logs("no"),
            )

    known(ray, "RUNNING")
    assert asyncio.run(look()) == (jobs.get("job-1"), jobs.logs("job-1"), None, None)


def test_a_wrong_token_is_said_without_the_token(ray: FakeRay) -> None:
    target = RayTarget(ray.url, "canary-wrong")
    with RayJobs(target) as jobs, pytest.raises(RayJobsError, match="refuses the token") as caught:
        jobs.get("job-1")
    assert "canary" not in f"{caught.value!r} {caught.value} {target!r}"


def test_nobody_there_is_a_ray_jobs_error() -> None:
    with RayJobs(RayTarget("http://127.0.0.1:9")) as jobs, pytest.raises(RayJobsError, match="does not answer"):
        jobs.get("job-1")


@pytest.mark.parametrize(
    ("fields", "url"),
    [
        ({"host": "ray", "port": 8265}, "http://ray:8265"),
        ({"host": "ray.example.com", "schema": "https"}, "https://ray.example.com"),
        ({"host": "https://ray.example.com/", "port": None}, "https://ray.example.com"),
        ({}, "http://127.0.0.1"),
    ],
)
def test_the_target_is_read_from_the_connection(fields: dict[str, object], url: str) -> None:
    from airflow.sdk import Connection

    target = RayTarget.of(Connection(conn_id="c", conn_type="http", password="p", **fields))
    assert (target.url, target.token) == (url, "p")
    assert target.job_page("a/b") == f"{url}/#/jobs/a%2Fb"


def test_the_dashboard_may_have_an_address_of_its_own() -> None:
    from airflow.sdk import Connection

    connection = Connection(
        conn_id="c", conn_type="http", host="ray", extra='{"dashboard": "https://see.example.com/"}'
    )
    assert RayTarget.of(connection).job_page("j") == "https://see.example.com/#/jobs/j"
