from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from demo import airflow_api
from demo.airflow_api import AirflowApi, AirflowError

LOCKED = {"detail": {"reason": "Database error", "statement": "hidden", "orig_error": "hidden", "message": "See logs"}}


class Airflow:
    """Answers what it is told to, in this order, and keeps what it was asked."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, Any]] = []
        self.asked: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, body = 201, {"access_token": "t"}
                if self.path != "/auth/token":
                    outer.asked.append(f"{self.command} {self.path}")
                    status, body = outer.answers.pop(0)
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Airflow]:
    monkeypatch.setattr(airflow_api, "DATABASE_PAUSES", (0.0, 0.0))
    server = Airflow()
    yield server
    server.server.shutdown()
    server.server.server_close()


@pytest.fixture
def api(airflow: Airflow) -> Iterator[AirflowApi]:
    with AirflowApi(airflow.url, "admin", "x") as api:
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
