"""The one entry point of every job: spec in, report out, exit code as the mistake's owner."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from smalti.accounting import Report
from smalti.config import Engine, Source
from smalti.errors import InputError, LakeError
from smalti.jobs import __main__ as jobs
from smalti.jobs.registry import STAGES, Stage
from smalti.jobs.spec import JobSpec, next_attempt, read_spec, report_uri, write_spec
from smalti.lake import Lake
from smalti.objects import read_bytes
from smalti.settings import SourceRun

SOURCE = Source.model_validate({
    "name": "cats",
    "format": "files",
    "uri": "file:///nowhere",
    "table": "t.csv",
    "columns": {"key": "file"},
})
RUN = SourceRun(
    source=SOURCE,
    batch="b1",
    captioner=Engine(name="rules", role="captioner", kind="rules"),
    classifier=Engine(name="rules-minilm", role="classifier", kind="rules"),
)


def spec_for(lake: Lake, **changes: object) -> JobSpec:
    fields = {
        "stage": "stage",
        "lake": lake.root,
        "dag": "d",
        "run": "manual__1",
        "task": "stage",
        "settings": RUN.model_dump(mode="json"),
    }
    return JobSpec.model_validate(fields | changes)


@pytest.fixture
def outcome(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What the stand-in stage does: return a report or raise."""
    does: dict[str, object] = {"report": Report(stage="stage")}

    def run(self: Stage, lake: Lake, settings: object) -> Report:
        if "error" in does:
            raise does["error"]  # type: ignore[misc]
        report = does["report"]
        assert isinstance(report, Report)
        return report

    monkeypatch.setattr(Stage, "run", run)
    return does


def test_the_report_is_written_beside_the_spec_and_named_last(
    any_lake: Lake, outcome: object, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = write_spec(spec_for(any_lake))
    assert jobs.main(["stage", "--spec", uri]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"report: {any_lake.run('d', 'manual__1', 'stage')}/report.json"
    assert json.loads(read_bytes(last.removeprefix("report: ")))["stage"] == "stage"


def test_each_attempt_has_a_report_of_its_own(lake: Lake, outcome: object) -> None:
    spec = spec_for(lake)
    uri = write_spec(spec)
    first, second = jobs.run_job("stage", uri), jobs.run_job("stage", uri)
    assert (first, second) == (report_uri(spec, 1), report_uri(spec, 2))
    assert next_attempt(spec) == 3


@pytest.mark.parametrize(("error", "code"), [(InputError("w", "x", "f"), 2), (LakeError("w", "x", "f"), 1)])
def test_an_error_is_one_line_and_its_own_exit_code(
    lake: Lake, outcome: dict[str, object], capsys: pytest.CaptureFixture[str], error: Exception, code: int
) -> None:
    outcome["error"] = error
    assert jobs.main(["stage", "--spec", write_spec(spec_for(lake))]) == code
    assert capsys.readouterr().err == "smalti: x: w. f.\n"


def test_the_same_spec_is_written_once_and_another_goes_beside_it(lake: Lake) -> None:
    first = write_spec(spec_for(lake))
    assert write_spec(spec_for(lake)) == first
    other = spec_for(lake, settings=RUN.model_copy(update={"batch": "b2"}).model_dump(mode="json"))
    beside = write_spec(other)
    assert beside != first
    assert read_spec(beside) == other
    assert write_spec(other) == beside


def test_a_spec_of_another_stage_is_refused(lake: Lake, outcome: object) -> None:
    with pytest.raises(InputError, match="the spec is for stage 'stage'"):
        jobs.run_job("ingest", write_spec(spec_for(lake)))


def test_wrong_settings_are_named_by_field(lake: Lake) -> None:
    settings = RUN.model_dump(mode="json") | {"batch": "../b"}
    with pytest.raises(InputError, match="settings of d/manual__1/stage: batch is wrong"):
        spec_for(lake, settings=settings).typed_settings()


def test_what_is_no_spec_is_refused(lake: Lake) -> None:
    from smalti.objects import create_bytes

    create_bytes(lake.root + "/x", b"{}")
    with pytest.raises(InputError, match=r"this is not a job's spec \(6 mistakes\)"):
        read_spec(lake.root + "/x")


def test_every_stage_can_be_imported_and_says_what_it_does() -> None:
    import importlib

    for stage in STAGES.values():
        module, _, name = stage.function.partition(":")
        assert getattr(importlib.import_module(module), name).__doc__


def test_a_missing_source_ends_a_real_job_with_one_line(lake: Lake, tmp_path: Path) -> None:
    """As a process, the way Ray starts it."""
    uri = write_spec(spec_for(lake))
    done = subprocess.run(
        [sys.executable, "-m", "smalti.jobs", "stage", "--spec", uri], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if line.startswith("smalti: ")]
    assert len(lines) == 1
    assert "file:///nowhere" in lines[0]
