"""Captions by engines on a real Ray, whose driver, engines and readers are killed: each row is captioned once, none twice.

The engine is of kind openai, and the server behind it counts: a picture is known by the bytes that are sent of it.
"""

from __future__ import annotations

import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import lance  # noqa: TID253
import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from demo.processes import family
from demo.servers import REPOSITORY, RayServer, find_servers, launch_ray, stop_servers, wait_for_ray
from smalti.config import load_engine
from smalti.jobs.spec import JobSpec, read_spec, report_uri, write_spec
from smalti.lake import Lake
from smalti.objects import list_objects, local_path
from smalti.pipeline.plan import Place
from smalti.settings import SourceRun
from smalti.sources.inventory import stage
from smalti.table.caption import caption_target
from smalti.table.fingerprint import fingerprint
from smalti.table.ingest import ingest
from smalti.table.target import read_checkpoint
from tests.sources.making import Made
from tests.support.openai_server import Asked, OpenAIServer, serve_openai

KINDS = ("driver", "engine", "reader")


@pytest.fixture(scope="module")
def ray_head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayServer]:
    home = tmp_path_factory.mktemp("ray")
    try:
        server = launch_ray(home, {"PYTHONPATH": str(REPOSITORY / "include")})
        wait_for_ray(server)
        yield server
    finally:
        stop_servers(home)
        assert find_servers(home) is None


@dataclass
class Log:
    """What the server answered, and when: UNIX seconds by picture."""

    delay: float
    asked: dict[str, list[float]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, asked: Asked) -> str:
        assert asked.sha256 is not None
        with self.lock:
            self.asked.setdefault(asked.sha256, []).append(time.time())
        time.sleep(self.delay)
        return f"A picture that was sent as {asked.sha256}."


def small_picture(number: int) -> bytes:
    """A few hundred bytes that no other number has, large enough for a bucket."""
    colours = np.random.default_rng(number).integers(0, 256, (3, 4, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(colours).resize((448, 400), Image.Resampling.NEAREST).save(out, "PNG")
    return out.getvalue()


def add_pictures(lake: Lake, made: Made, batch: str, numbers: range) -> SourceRun:
    """A batch of the source in the table, fingerprinted."""
    for number in numbers:
        made.put(f"images/p{number}.png", small_picture(number))
    made.table([{"file": f"p{number}.png", "caption": ""} for number in range(numbers.stop)])
    run = made.run(batch)
    stage(lake, run)
    ingest(lake, run)
    fingerprint(lake, run)
    return run


def captioned(run: SourceRun, server: OpenAIServer) -> SourceRun:
    """The run with two engines that ask the server: 16 rows at a time each, 4 in a checkpoint."""
    captioner = load_engine("qwen3-vl-8b", "captioner", REPOSITORY / "include").model_copy(
        update={
            "name": "counted",
            "kind": "openai",
            "revision": None,
            "base_url": server.base_url,
            "checks": None,
            "gpus": 0,
            "cpus": 0.1,
            "engines": 2,
            "batch_size": 4,
            "concurrency": 16,
        }
    )
    return run.model_copy(update={"captioner": captioner})


def other_columns(lake: Lake, batch: str) -> pa.Table:
    table = lance.dataset(lake.table("made"))
    names = [name for name in table.schema.names if name != "image" and not name.startswith("caption_counted")]
    return table.to_table(columns=names, filter=f"batch = '{batch}'").sort_by("id")


@dataclass
class Driver:
    """The job's process, started again and again until it has ended by itself."""

    spec: str
    env: dict[str, str]
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0

    def start(self, log: Path) -> None:
        self.starts += 1
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "smalti.jobs", "caption", "--spec", self.spec, "--attempt", "1"],
                env=self.env,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None


def victims(ray: RayServer, driver: Driver) -> dict[str, list[int]]:
    """Process ids by kind. Ray names a worker after what it is at."""
    found: dict[str, list[int]] = {kind: [] for kind in KINDS}
    if driver.running:
        assert driver.process is not None
        found["driver"].append(driver.process.pid)
    for pid in family([ray.process]):
        try:
            name = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if name.startswith("ray::") and "_EngineActor" in name:
            found["engine"].append(pid)
        elif name.startswith("ray::") and "_prepare" in name:
            found["reader"].append(pid)
    return found


def campaign(
    tmp: Path, ray: RayServer, *, rows: int, kills: int, seed: int, delay: float
) -> tuple[dict[str, int], Log, float]:
    """Caption `rows` pictures under `kills` kills at random moments; check all that must hold. Returns kills by kind."""
    lake, made, log = Lake.at(str(tmp / "lake")), Made(f"file://{tmp}/source"), Log(delay)
    with serve_openai(log.answer) as server:
        run = captioned(add_pictures(lake, made, "b1", range(rows)), server)
        before = other_columns(lake, "b1")
        place = Place(lake, "made", "b1", caption_target(run))
        spec = JobSpec(
            stage="caption", lake=lake.root, dag="d", run="r", task="t", settings=run.model_dump(mode="json")
        )
        env = os.environ | ray.env | {"PYTHONPATH": str(REPOSITORY / "include"), "HF_HUB_OFFLINE": "1"}
        driver = Driver(write_spec(spec), env)
        given, chance, appended = dict.fromkeys(KINDS, 0), random.Random(seed), False
        began = time.time()
        while sum(given.values()) < kills:
            if not driver.running:
                assert driver.process is None or driver.process.returncode == -signal.SIGKILL, (
                    tmp / "log"
                ).read_text()[-3000:]
                driver.start(tmp / "log")
            time.sleep(chance.uniform(0.05, 1.0))
            kind = KINDS[sum(given.values()) % 3]
            there = victims(ray, driver)
            if not log.asked or not there[kind]:
                assert time.time() - began < 60 * kills, f"no {kind} to kill; {(tmp / 'log').read_text()[-3000:]}"
                continue
            os.kill(chance.choice(there[kind]), signal.SIGKILL)
            given[kind] += 1
            if kind == "driver":
                assert driver.process is not None
                driver.process.wait(60)
            if not appended:
                add_pictures(lake, made, "b2", range(rows, rows + 3))
                appended = True
        if not driver.running:
            driver.start(tmp / "log")
        assert driver.process is not None
        assert driver.process.wait(900) == 0, (tmp / "log").read_text()[-3000:]
    check(lake, place, log, rows, before)
    assert json.loads(Path(local_path(report_uri(read_spec(driver.spec), 1)) or "").read_text())["rows_out"] == rows
    return given, log, time.time() - began


def check(lake: Lake, place: Place, log: Log, rows: int, before: pa.Table) -> None:
    """Each row has one caption, which is of its own picture; nothing was asked again after its checkpoint was there."""
    table = lance.dataset(lake.table("made"))
    found = table.to_table(columns=["id", "batch", "caption_counted", "caption_counted_status"]).to_pylist()
    captions = {row["id"]: row["caption_counted"] for row in found if row["batch"] == "b1"}
    assert len(captions) == len([row for row in found if row["batch"] == "b1"]) == rows
    assert {row["caption_counted_status"] for row in found if row["batch"] == "b1"} == {"ok"}
    assert [row["caption_counted"] for row in found if row["batch"] == "b2"] == [None] * 3
    assert len(set(captions.values())) == rows
    assert other_columns(lake, "b1").equals(before)

    said: dict[str, str] = {}
    for info in list_objects(place.answers):
        path = local_path(info.uri)
        assert path is not None
        written = path.stat().st_mtime
        for row in read_checkpoint(info.uri).to_pylist():
            assert row["id"] not in said, f"{row['id']} is in two checkpoints"
            said[row["id"]] = row["caption_counted"]
            (sent,) = re.findall(r"[0-9a-f]{64}", row["caption_counted"])
            late = [at for at in log.asked[sent] if at > written]
            assert not late, f"{row['id']} was asked about {late[0] - written:.2f} s after its checkpoint was written"
    assert said == captions


def test_a_few_kills_lose_no_row_and_double_none(tmp_path: Path, ray_head: RayServer) -> None:
    given, log, _ = campaign(tmp_path, ray_head, rows=160, kills=3, seed=1, delay=0.4)
    assert set(given.values()) == {1}
    assert len(log.asked) == 160


@pytest.mark.prove
def test_twenty_kills_lose_no_row_and_double_none(tmp_path: Path, ray_head: RayServer) -> None:
    given, log, seconds = campaign(tmp_path, ray_head, rows=2000, kills=20, seed=2, delay=0.4)
    asked = sum(map(len, log.asked.values()))
    print(f"\n{given} killed, {asked} questions for 2000 rows, {seconds:.0f} s")
    assert len(log.asked) == 2000
