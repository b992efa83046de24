"""What becomes of a run whose pilot a person has judged."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

import tests.support.airflow_home  # noqa: F401  (before anything imports airflow)
from smalti.config import Engine
from smalti.release.assemble import AssembleReport
from smalti.table.pilot import PilotReport, estimate
from smalti_airflow.approval import ApprovePilot, ApproveRelease, link, pilot_text, release_text


def answered(option: str | None) -> Any:
    task = ApprovePilot(task_id="approve_pilot", pilot="pilot", source="cats", batch="b1")
    event: dict[str, Any] = {"error": "late", "error_type": "timeout"}
    return task.execute_complete({}, event if option is None else answer(option))


def answer(option: str) -> dict[str, Any]:
    return {
        "chosen_options": [option],
        "params_input": {},
        "responded_at": datetime.now(UTC),
        "responded_by_user": {"id": "1", "name": "Ada"},
    }


def test_a_yes_goes_on() -> None:
    assert answered("Approve")["chosen_options"] == ["Approve"]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("Reject", "source cats, batch b1: Ada rejected the pilot. .* under a new name"),
        (None, "source cats, batch b1: nobody looked at the pilot in 14 days"),
    ],
)
def test_a_no_fails_at_once_with_a_clear_line_and_is_not_asked_again(option: str | None, message: str) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    with pytest.raises(AirflowFailException, match=message):
        answered(option)


def test_every_report_of_a_pilot_can_be_told() -> None:
    profile = Engine(name="rules", role="captioner", kind="rules")
    bare = PilotReport(stage="pilot", profile="rules", page="file:///lake/p.html", rows=2, eligible=3, waiting=3)
    whole = bare.model_copy(update={"measured": estimate(3, 2.0, 1, None), "stated": estimate(3, 2.0, 4, profile)})
    assert "not known" in pilot_text(bare.model_dump(mode="json"))
    text = pilot_text(whole.model_dump(mode="json"))
    assert "`file:///lake/p.html`" in text
    assert "not known" not in text
    assert "nothing to look at" in pilot_text(PilotReport(stage="pilot", profile="rules").model_dump(mode="json"))
    assert "nothing to look at" in pilot_text(None)


def test_a_link_is_made_only_where_a_browser_could_follow_it() -> None:
    assert link("gs://b/a/p.html", "The pilot").startswith(
        "[The pilot's page](https://storage.cloud.google.com/b/a/p.html)"
    )
    assert "](" not in link("file:///lake/p.html", "The pilot")


def test_a_release_is_told_with_what_changed_and_every_warning() -> None:
    first = AssembleReport(
        stage="assemble", rows_in=9, rows_out=7, dropped={"text": 2}, warnings=("text: 2 of 9 are 22 %",),
        manifest="file:///m", version="v1", digest="d", streams=3, page="file:///lake/report.html",
    )  # fmt: skip
    text = release_text(first.model_dump(mode="json"))
    assert "`file:///lake/report.html`" in text
    assert "7 of 9 samples are served, in 3 streams. Left out: text 2." in text
    assert "Warning: text: 2 of 9 are 22 %" in text
    assert "Since" not in text
    later = first.model_copy(update={"parent": "v0", "gained": {"in no part": 4}, "lost": {}})
    assert "Since v0: 4 gained (in no part 4) and 0 lost." in release_text(later.model_dump(mode="json"))


def test_a_release_that_is_rejected_says_what_to_do() -> None:
    from airflow.sdk.exceptions import AirflowFailException

    task = ApproveRelease(task_id="approve", assemble="assemble", dataset="pets")
    task.where = "dataset pets, version v3"  # as rendered
    with pytest.raises(
        AirflowFailException, match=r"dataset pets, version v3: Ada rejected the release\. LATEST has not"
    ):
        task.execute_complete({}, answer("Reject"))
