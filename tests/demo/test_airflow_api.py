from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from demo import airflow_api
from demo.airflow_api import AirflowApi, AirflowError

LOCKED = {"detail": {"reason": "Database error", "statement": "hidden", "orig_error": "hidden", "message": "See logs"}}


class Airflow:
    """Answers what it is told to, in this order, and keeps what it was asked."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, Any]] = []
        self.asked: list[str] = []
        self.logins = 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/auth/token":
            self.logins += 1
            return httpx.Response(201, json={"access_token": "t"})
        self.asked.append(f"{request.method} {request.url.path}")
        status, body = self.answers.pop(0)
        return httpx.Response(status, json=body)


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> Airflow:
    monkeypatch.setattr(airflow_api, "DATABASE_PAUSES", (0.0, 0.0))
    return Airflow()


@pytest.fixture
def api(airflow: Airflow) -> Iterator[AirflowApi]:
    with AirflowApi("http://airflow", "admin", "x", httpx.MockTransport(airflow)) as api:
        yield api


def test_a_call_that_the_database_rolled_back_is_made_again(airflow: Airflow, api: AirflowApi) -> None:
    airflow.answers = [(500, LOCKED), (500, LOCKED), (200, {"dag_run_id": "r1"})]
    assert api.trigger("probe") == "r1"
    assert airflow.asked == ["POST /api/v2/dags/probe/dagRuns"] * 3


def test_a_database_that_stays_locked_is_told(airflow: Airflow, api: AirflowApi) -> None:
    airflow.answers = [(500, LOCKED)] * 3
    with pytest.raises(AirflowError, match=r"dags/probe/dagRuns: 500 .*Database error"):
        api.trigger("probe")
    assert not airflow.answers


@pytest.mark.parametrize("answer", [(500, {"detail": "oops"}), (500, ["oops"]), (409, LOCKED), (404, {"detail": "no"})])
def test_any_other_failure_is_not_tried_again(airflow: Airflow, api: AirflowApi, answer: tuple[int, Any]) -> None:
    airflow.answers = [answer, (200, {"dag_run_id": "r1"})]
    with pytest.raises(AirflowError, match=str(answer[0])):
        api.trigger("probe")
    assert len(airflow.asked) == 1


def test_a_login_that_has_run_out_is_renewed(airflow: Airflow, api: AirflowApi) -> None:
    airflow.answers = [(401, {}), (200, {"dag_run_id": "r1"})]
    assert api.trigger("probe") == "r1"
    assert airflow.logins == 2
