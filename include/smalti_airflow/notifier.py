"""The one notifier of failures: a line in the log, and a message to a webhook where the connection `smalti_alerts` is set."""

from __future__ import annotations

import contextlib
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook, BaseNotifier

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

CONNECTION = "smalti_alerts"
"""Airflow connection whose password is the webhook's whole URL (it holds the secret), or whose host is its address."""

LAST_LINES = 10
TIMEOUT = 10.0


@dataclass(frozen=True)
class Alert:
    """What a person is told. `text` is what chat systems show (Slack, Mattermost, Teams' and Google's compatible hooks)."""

    dag: str
    run: str
    partition: str | None
    task: str
    tries: int
    error: str
    log: str
    what_to_do: str

    @property
    def text(self) -> str:
        where = f"{self.dag} / {self.task}" + (f" for {self.partition}" if self.partition else "")
        return f"{where} failed after {_tries(self.tries)}: {self.error.splitlines()[0] if self.error else 'no reason given'}"

    def body(self) -> dict[str, Any]:
        """The JSON that is posted."""
        details = f"{self.text}\nRun: {self.run}\nLog: {self.log}\n{self.what_to_do}\n```\n{self.error}\n```"
        return {**asdict(self), "summary": self.text, "text": details}


class FailureNotifier(BaseNotifier):
    """on_failure_callback of every task: runs when a task has failed for good, not for a try that is followed by another.

    It never raises: a broken alert must not hide the failure that it is about.
    """

    def notify(self, context: Context) -> None:
        try:
            alert = alert_of(context)
            self.log.error("ALERT %s. %s Log: %s", alert.text, alert.what_to_do, alert.log)
            url = self._webhook()
            if url is not None:
                self._post(url, alert)
        except Exception as error:
            self.log.error("the alert was not sent: %s: %s", type(error).__name__, error)

    def _webhook(self) -> str | None:
        try:
            connection = BaseHook.get_connection(CONNECTION)
        except Exception:  # not set up: nobody asked for a webhook
            return None
        if connection.password and "://" in connection.password:
            return str(connection.password)
        host = connection.host or ""
        url = host if "://" in host else f"{connection.schema or 'https'}://{host}"
        return f"{url}:{connection.port}" if connection.port else url

    def _post(self, url: str, alert: Alert) -> None:
        import httpx

        try:
            answer = httpx.post(url, json=alert.body(), timeout=TIMEOUT)
        except httpx.HTTPError as error:  # its text may hold the URL, which is a secret
            self.log.error("the alert was not sent: the webhook does not answer (%s)", type(error).__name__)
            return
        if not answer.is_success:
            self.log.error("the alert was not sent: the webhook answered HTTP %s", answer.status_code)


def alert_of(context: Context) -> Alert:
    """The alert for a failed task, from what Airflow hands to a callback (not all of it is there in every process)."""
    ti: Any = context.get("ti") or context.get("task_instance")
    dag_run: Any = context.get("dag_run")
    lines = [line.rstrip() for line in str(context.get("exception") or "").splitlines() if line.strip()]
    clear = lines[:1]  # an error of ours says the clear thing first, and the job's last lines after it
    log = ""
    with contextlib.suppress(Exception):
        log = str(ti.log_url)
    return Alert(
        dag=ti.dag_id,
        run=ti.run_id,
        partition=getattr(dag_run, "partition_key", None),
        task=ti.task_id,
        tries=ti.try_number,
        error="\n".join(clear + lines[1:][-LAST_LINES:]),
        log=log
        or f"{os.environ.get('AIRFLOW__API__BASE_URL', '')}/dags/{ti.dag_id}/runs/{ti.run_id}/tasks/{ti.task_id}",
        what_to_do="Read the first line; mend it; then clear the task. What was done stays done.",
    )


def _tries(count: int) -> str:
    return "one try" if count == 1 else f"{count} tries"
