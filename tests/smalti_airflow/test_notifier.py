"""The notifier, with a webhook that really listens."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from smalti_airflow.notifier import LAST_LINES, FailureNotifier, alert_of

ERROR = "smalti: a.yaml:7: no. Mend it.\n" + "\n".join(f"line {n}" for n in range(50))


class Receiver:
    """A webhook: what it was sent, and the status it answers."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.status = 200
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(receiver.status)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook/canary-secret"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.server.shutdown()
    receiver.server.server_close()


@pytest.fixture
def webhook(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> Receiver:
    monkeypatch.setenv("AIRFLOW_CONN_SMALTI_ALERTS", json.dumps({"conn_type": "http", "password": receiver.url}))
    return receiver


def failed(error: str = ERROR) -> Any:
    ti = SimpleNamespace(
        dag_id="source_demo", run_id="r1", task_id="ingest", try_number=3, log_url="http://airflow/log/1", map_index=-1
    )
    return {"ti": ti, "dag_run": SimpleNamespace(partition_key="2026-11-20"), "exception": RuntimeError(error)}


def test_the_message_says_what_where_and_what_to_do(webhook: Receiver) -> None:
    FailureNotifier()(failed())
    [message] = webhook.got
    assert {key: message[key] for key in ("dag", "run", "partition", "task", "tries", "log")} == {
        "dag": "source_demo",
        "run": "r1",
        "partition": "2026-11-20",
        "task": "ingest",
        "tries": 3,
        "log": "http://airflow/log/1",
    }
    expected = "source_demo / ingest for 2026-11-20 failed after 3 tries: smalti: a.yaml:7: no. Mend it."
    assert message["summary"] == expected
    assert message["text"].startswith(expected)
    assert "clear the task" in message["text"]
    assert message["error"].splitlines() == [ERROR.splitlines()[0], *ERROR.splitlines()[-LAST_LINES:]]


def test_without_the_connection_it_is_a_line_in_the_log(receiver: Receiver, capsys: pytest.CaptureFixture[str]) -> None:
    FailureNotifier()(failed())
    assert receiver.got == []
    assert "ALERT source_demo / ingest for 2026-11-20 failed after 3 tries" in capsys.readouterr().out


@pytest.mark.parametrize("trouble", ["status", "refused", "context"])
def test_it_never_raises_and_says_that_it_was_not_sent_without_the_url(
    webhook: Receiver, trouble: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    webhook.status = 500
    if trouble == "refused":
        url = "http://127.0.0.1:9/canary-secret"
        monkeypatch.setenv("AIRFLOW_CONN_SMALTI_ALERTS", json.dumps({"conn_type": "http", "password": url}))
    FailureNotifier()({} if trouble == "context" else failed())
    said = capsys.readouterr().out
    assert "the alert was not sent" in said
    assert "canary-secret" not in said


def test_a_webhook_may_be_given_as_host_and_port(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    port = receiver.server.server_port
    monkeypatch.setenv(
        "AIRFLOW_CONN_SMALTI_ALERTS",
        json.dumps({"conn_type": "http", "schema": "http", "host": "127.0.0.1", "port": port}),
    )
    FailureNotifier()(failed())
    assert len(receiver.got) == 1


def test_an_error_without_words_still_makes_a_message() -> None:
    alert = alert_of({**failed(""), "dag_run": None})
    assert alert.text == "source_demo / ingest failed after 3 tries: no reason given"
