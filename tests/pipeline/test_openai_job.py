"""The whole caption job against a server that fails in every way that goes away: all rows done, none doubled, the key nowhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from smalti.config import load_engine
from smalti.jobs.spec import JobSpec, write_spec
from smalti.lake import Lake
from smalti.objects import list_objects
from smalti.settings import SourceRun
from tests.pipeline.conftest import column
from tests.pipeline.conftest import made as made
from tests.pipeline.conftest import run as run
from tests.support.openai_server import always, seeded, serve_openai

SECRET = "sk-4f1c9a7e-never-to-be-seen"


def run_job(lake: Lake, run: SourceRun, base_url: str, tries: int = 8) -> subprocess.CompletedProcess[str]:
    """The caption job as a process of its own; pauses between tries are short."""
    captioner = load_engine("qwen3-vl-8b", "captioner").model_copy(
        update={
            "name": "told",
            "kind": "openai",
            "revision": None,
            "gpus": 0,
            "checks": None,
            "base_url": base_url,
            "key": run.captioner.key.model_copy(update={"env": "THE_KEY"}),
            "timeout": 1.0,
            "batch_size": 2,
            "concurrency": 8,
        }
    )
    told = run.model_copy(update={"captioner": captioner})
    spec = JobSpec(stage="caption", lake=lake.root, dag="d", run="r", task="t", settings=told.model_dump(mode="json"))
    code = (
        "import sys, smalti.engines.openai as o; from smalti.jobs.__main__ import main; "
        f"o.FIRST_PAUSE, o.LONGEST_PAUSE, o.TRIES = 0.01, 0.05, {tries}; sys.exit(main(sys.argv[1:]))"
    )
    return subprocess.run(
        [sys.executable, "-X", "dev", "-W", "ignore", "-c", code, "caption", "--spec", write_spec(spec)],
        env=os.environ | {"THE_KEY": SECRET, "PYTHONASYNCIODEBUG": "0"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def everything_written(folder: Path) -> bytes:
    return b"\n".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def test_every_row_is_done_once_and_the_key_is_nowhere(lake: Lake, run: SourceRun, tmp_path: Path) -> None:
    with serve_openai(lambda asked: f"A picture {asked.row}.", faults=seeded(5, share=0.6)) as server:
        done = run_job(lake, run, server.base_url)
        assert done.returncode == 0, done.stderr[-3000:]
    assert server.failed.total() > 4
    assert {asked.headers["authorization"] for asked in server.last} == {f"Bearer {SECRET}"}
    captions = column(lake, "caption_told")
    assert len(set(captions.values())) == 8
    assert set(column(lake, "caption_told_status").values()) == {"ok"}
    assert set(server.answered.values()) == {1}
    for text in (done.stdout, done.stderr, everything_written(tmp_path).decode("latin-1")):
        assert SECRET not in text
    assert any(info.uri.endswith("report.json") for info in list_objects(lake.root))


@pytest.mark.parametrize("fault", ["500", "reset", "html"])
def test_a_server_that_never_answers_ends_the_job_in_one_line(
    lake: Lake, run: SourceRun, tmp_path: Path, fault: str
) -> None:
    with serve_openai(faults=always(fault)) as server:
        done = run_job(lake, run, server.base_url, tries=3)
    assert done.returncode == 1
    (line,) = [each for each in done.stderr.splitlines() if each.startswith("smalti: ")]
    assert "127.0.0.1" in line
    assert SECRET not in done.stdout + done.stderr + everything_written(tmp_path).decode("latin-1")
    assert not [info for info in list_objects(f"{lake.root}/progress") if "/answers/" in info.uri]
