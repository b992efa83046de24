"""Captions and labels of real photographs by the real vLLM: jobs of a Ray whose environment has it, as on GPUs.

The models are tiny and their weights random, so what they say means nothing; who says it, how it is asked, checked and kept is
what runs on a GPU.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance  # noqa: TID253
import pytest
import yaml

from demo.servers import REPOSITORY, RayServer, launch_ray, stop_servers, wait_for_ray
from smalti.config import load_engine
from smalti.jobs.spec import JobSpec, write_spec
from smalti.lake import Lake
from smalti.objects import local_path
from smalti.settings import SourceRun
from smalti.sources.inventory import stage
from smalti.table.fingerprint import fingerprint
from smalti.table.ingest import ingest
from tests.sources.making import Made

PROGRAMS = REPOSITORY / ".venv-vllm" / "bin"
PHOTOS = 6
SMALL = {"revision": None, "dtype": "float32", "gpus": 0, "cpus": 0.1, "engines": 1, "concurrency": 4, "batch_size": 2}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not PROGRAMS.exists():
        pytest.skip("there is no .venv-vllm: `make vllm` makes it")
    folder = tmp_path_factory.mktemp("models")
    subprocess.run(
        [PROGRAMS / "python", "-m", "tests.support.tiny_models", folder], cwd=REPOSITORY, check=True, timeout=500
    )
    return folder


@pytest.fixture(scope="module")
def ray_head(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Iterator[RayServer]:
    home = tmp_path_factory.mktemp("ray")
    try:
        server = launch_ray(home, programs=PROGRAMS)
        wait_for_ray(server)
        yield server
    finally:
        stop_servers(home)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, models: Path) -> tuple[Lake, SourceRun]:
    """Photographs in a table, and profiles as files: those of the GPUs, with another model and less of everything."""
    import interior_photos

    root = tmp_path_factory.mktemp("lake")
    made, lake = Made(f"file://{root}/source"), Lake.at(str(root / "lake"))
    photos = sorted((Path(interior_photos.__file__).parent / "images").glob("*.jpg"))[:PHOTOS]
    for photo in photos:
        made.put(f"images/{photo.name}", photo.read_bytes())
    made.table([{"file": photo.name, "caption": ""} for photo in photos])
    config = root / "config"
    (config / "engines" / "prompts").mkdir(parents=True)
    for prompt in (REPOSITORY / "include/engines/prompts").glob("*.yaml"):
        (config / "engines" / "prompts" / prompt.name).write_bytes(prompt.read_bytes())
    more: dict[str, tuple[str, dict[str, Any]]] = {
        "tiny-captioner": ("qwen3-vl-8b", {"model": str(models / "qwen3-vl"), "checks": None, "max_pixels": 131072}),
        "tiny-classifier": ("qwen3-8b", {"model": str(models / "qwen3")}),
    }
    for name, (like, changes) in more.items():
        profile = yaml.safe_load((REPOSITORY / "include/engines" / f"{like}.yaml").read_text()) | SMALL | changes
        if "checks" in changes:
            profile["sampling"] = {"max_tokens": 24}
        (config / "engines" / f"{name}.yaml").write_text(yaml.safe_dump(profile))
    captioner = load_engine("tiny-captioner", "captioner", config)
    classifier = load_engine("tiny-classifier", "classifier", config)
    told = made.run().model_copy(update={"captioner": captioner, "classifier": classifier})
    for step in (stage, ingest, fingerprint):
        step(lake, told)
    return lake, told


def run_stage(server: RayServer, lake: Lake, told: SourceRun, name: str) -> dict[str, Any]:
    """The report of a stage as a job of the Ray."""
    spec = JobSpec(stage=name, lake=lake.root, dag="d", run="r", task=name, settings=told.model_dump(mode="json"))
    entrypoint = f"python -m smalti.jobs {name} --spec {write_spec(spec)} --attempt 1"
    with server.jobs() as jobs:
        jobs.post("/api/jobs/", json={"entrypoint": entrypoint, "submission_id": name}).raise_for_status()
        until = time.monotonic() + 600
        while (job := jobs.get(f"/api/jobs/{name}").json())["status"] not in ("SUCCEEDED", "FAILED"):
            assert time.monotonic() < until, jobs.get(f"/api/jobs/{name}/logs").json()["logs"][-3000:]
            time.sleep(0.5)
        assert job["status"] == "SUCCEEDED", jobs.get(f"/api/jobs/{name}/logs").json()["logs"][-3000:]
    path = local_path(lake.run_object("d", "r", name, "report.json"))
    assert path is not None
    report: dict[str, Any] = json.loads(path.read_text())
    return report


def test_photographs_get_captions_and_labels(ray_head: RayServer, run: tuple[Lake, SourceRun]) -> None:
    lake, told = run
    captions = run_stage(ray_head, lake, told, "caption")
    labels = run_stage(ray_head, lake, told, "classify")
    assert (captions["rows_out"], captions["computed"], captions["failed"]) == (PHOTOS, PHOTOS, {})
    assert captions["use"]["gpu_hours"] > 0
    assert captions["use"]["tokens"] > PHOTOS
    assert (labels["rows_out"], labels["failed"]) == (PHOTOS, {})

    columns = ["caption_tiny_captioner", "caption_tiny_captioner_status", "caption_tiny_captioner_finish"]
    rows = (
        lance
        .dataset(lake.table("made"))
        .to_table(columns=[*columns, "label_tiny_classifier_of_tiny_captioner"])
        .to_pylist()
    )
    assert {row["caption_tiny_captioner_status"] for row in rows} == {"ok"}
    assert {row["caption_tiny_captioner_finish"] for row in rows} <= {"stop", "length"}
    assert len({row["caption_tiny_captioner"] for row in rows}) > PHOTOS // 2  # it saw the pictures
    assert {row["label_tiny_classifier_of_tiny_captioner"] for row in rows} <= {"visual", "text", "nsfw"}
