"""Attempts: who has claimed which number, and whose report has been handed on."""

from __future__ import annotations

import pytest

from smalti.errors import CorruptError
from smalti.jobs.attempts import (
    claim_attempt,
    has_report,
    is_consumed,
    keep_driver_log,
    known_attempts,
    mark_consumed,
    read_report,
    submission_id,
)
from smalti.jobs.spec import JobSpec, report_uri
from smalti.lake import Lake
from smalti.objects import create_bytes, list_names, read_bytes


def spec_of(lake: Lake, run: str = "r", **settings: str) -> JobSpec:
    return JobSpec(stage="ingest", lake=lake.root, dag="d", run=run, task="t", settings=dict(settings))


def test_a_claim_is_found_again_and_kept_from_other_settings(any_lake: Lake) -> None:
    first, other = spec_of(any_lake, a="1"), spec_of(any_lake, a="2")
    mine = claim_attempt(first, "u1", 1)
    assert claim_attempt(first, "u1", 1) == mine
    assert claim_attempt(other, "u2", 1) == mine
    assert claim_attempt(other, "u2", 2).digest == other.digest
    assert [(each.number, each.spec) for each in known_attempts(first)] == [(1, "u1"), (2, "u2")]


def test_the_submission_is_the_same_for_the_same_work_only(lake: Lake) -> None:
    ids = {
        submission_id(spec, number)
        for spec in (spec_of(lake), spec_of(lake, run="r2"), spec_of(lake, a="1"))
        for number in (1, 2)
    }
    assert len(ids) == 6
    assert submission_id(spec_of(lake, a="1"), 1) == submission_id(spec_of(lake, a="1"), 1)
    assert all(len(each) <= 47 for each in ids)  # fits into the names that Kubernetes allows


def test_a_report_is_consumed_once_and_for_its_attempt(any_lake: Lake) -> None:
    spec = spec_of(any_lake)
    assert (read_report(spec, 1), has_report(spec, 1)) == (None, False)
    create_bytes(report_uri(spec, 1), b'{"stage": "ingest"}')
    assert (read_report(spec, 1), has_report(spec, 1)) == ({"stage": "ingest"}, True)
    assert not is_consumed(spec, 1)
    mark_consumed(spec, 1)
    mark_consumed(spec, 1)
    assert (is_consumed(spec, 1), is_consumed(spec, 2)) == (True, False)


def test_a_driver_log_is_kept_once(any_lake: Lake) -> None:
    spec = spec_of(any_lake)
    uri = keep_driver_log(spec, 2, "first \udcff")
    assert keep_driver_log(spec, 2, "second") == uri
    assert read_bytes(uri) == b"first ?"
    assert list_names(any_lake.run("d", "r", "t")) == ["driver.2.log"]


def test_what_is_not_a_record_is_named(lake: Lake) -> None:
    create_bytes(lake.run_object("d", "r", "t", "attempt.json"), b"{}")
    with pytest.raises(CorruptError, match=r"attempt\.json"):
        claim_attempt(spec_of(lake), "u", 1)
