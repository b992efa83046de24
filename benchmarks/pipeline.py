"""Does the captioning pipeline keep engines busy? Engines of fixed service time, and real preparation of photographs.

An engine here is a timer: it answers a row `concurrency / rate` seconds after it was asked, and takes `concurrency` rows at a
time, so that it does `rate` rows a second if it is never without one. That is a figure of the pipeline and says nothing of how
fast a GPU is. Preparation is the real one: reading from Lance, decoding, the bucket's crop.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import io
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from benchmarks.measure import Comparison
from smalti.config import Columns, Engine, Source
from smalti.engines.base import Answer, Question
from smalti.lake import Lake
from smalti.objects import list_objects
from smalti.pipeline.executors import EngineWork
from smalti.pipeline.fill import fill
from smalti.pipeline.meter import EngineUse
from smalti.pipeline.plan import Chunk, Place, plan_chunks
from smalti.pipeline.worker import Prepared
from smalti.profiles import Prompt, PromptText, Sampling
from smalti.settings import SourceRun
from smalti.table.caption import caption_target, caption_work, prepare_pictures
from smalti.table.classify import classify_target, classify_work
from smalti.table.schema import caption_columns, table_schema
from smalti.table.store import open_table
from smalti.table.target import read_checkpoint

TEXT = PromptText(user="Caption this image: {caption}")
PROMPT = Prompt(name="bench", sha256=TEXT.sha256, text=TEXT)


class TimerEngine:
    """Answers a row a fixed time after it was asked. The answer is when that was, in UNIX seconds, and the user's turn."""

    def __init__(self, profile: Engine) -> None:
        assert profile.rate is not None
        self._seconds = profile.concurrency / profile.rate
        self._label = "visual" if profile.role == "classifier" else None
        self._log = Path(str(profile.model)).open("a") if self._label else None  # noqa: SIM115 - as long as the engine

    async def ask(self, question: Question, sampling: Sampling) -> Answer:
        asked = time.time()
        if self._log:
            self._log.write(f"{asked!r}\n")
            self._log.flush()
        await asyncio.sleep(self._seconds)
        return Answer(self._label or f"{asked!r} {question.user}", "stop", 120)

    async def close(self) -> None:
        """Nothing is held."""


async def open_timer(profile: Engine) -> TimerEngine:
    """`rate` rows a second with `concurrency` of them at a time. A classifier writes down when it was asked in its `model`."""
    return TimerEngine(profile)


def profile(rate: float, role: Literal["captioner", "classifier"], **changes: Any) -> Engine:
    """A profile of this rate."""
    return Engine(
        name="timer", role=role, kind="openai", base_url="http://nowhere/v1", prompt=PROMPT,
        checks=None, rate=rate, cpus=0.01, engines=1, **{"model": "timer", "concurrency": 16, "batch_size": 8, **changes},
    )  # fmt: skip


def jpegs(width: int = 1280, height: int = 960) -> list[bytes]:
    """Photographs of 1.2 MP."""
    import interior_photos
    from PIL import Image

    found = []
    for path in sorted((Path(interior_photos.__file__).parent / "images").glob("*.jpg"))[:12]:
        out = io.BytesIO()
        with Image.open(path) as image:
            image.convert("RGB").resize((width, height)).save(out, "JPEG", quality=90)
        found.append(out.getvalue())
    return found


def make_table(folder: Path, rows: int, captioned: str = "") -> tuple[Lake, SourceRun]:
    """A lake whose source `bench` has one batch of so many rows, ready to be captioned; and its run.

    Args:
        captioned: a captioner whose captions the rows have already.
    """
    import lance

    source = Source(
        name="bench",
        format="files",
        uri="file:///nowhere",
        table="t.csv",
        columns=Columns(key="file", caption="caption"),
    )
    run = SourceRun(
        source=source, batch="b1", captioner=profile(20, "captioner"), classifier=profile(200, "classifier")
    )
    lake, photos = Lake.at(str(folder)), jpegs()
    columns = caption_columns(captioned).fields({}) if captioned else pa.schema([])
    schema = pa.schema([*table_schema(None), *columns])
    for start in range(0, rows, 500):
        numbers = range(start, min(rows, start + 500))
        images = [b"never read" if captioned else photos[n % len(photos)] for n in numbers]
        values: dict[str, list[Any]] = {
            "id": [f"bench/{n:06d}.jpg" for n in numbers],
            "image": images,
            "sha256": [hashlib.sha256(f"{n}".encode()).hexdigest() for n in numbers],
            "width": [1280] * len(images),
            "height": [960] * len(images),
            "bytes": [len(data) for data in images],
            "tier": [1024] * len(images),
            "batch": ["b1"] * len(images),
            "source": ["bench"] * len(images),
        }
        if captioned:
            values |= {
                captioned_name: ["A photograph of a room."] * len(images) for captioned_name in columns.names[:1]
            }
            values |= {columns.names[1]: ["ok"] * len(images)}
        arrays = [
            lance.blob_array(images)
            if field.name == "image"
            else pa.array(values.get(field.name, [None if field.nullable else ""] * len(images)), field.type)
            for field in schema
        ]
        lance.write_dataset(
            pa.Table.from_arrays(arrays, schema=schema), lake.table("bench"), mode="append", data_storage_version="2.2"
        )
    return lake, run


RATIOS = (0.1, 0.3, 0.5, 0.7, 0.9, 1.1, 1.5, 2.0)
"""Rate of the engine to rate of the preparation."""

SECONDS = 20.0
"""About so long a run takes."""


def timed_preparation(chunk: Chunk, settings: Any) -> Prepared:
    """The real preparation; each row's question says how many seconds it took."""
    began = time.perf_counter()
    prepared = prepare_pictures(chunk, settings)
    seconds = repr((time.perf_counter() - began) / len(prepared.ids))
    questions = [question and dataclasses.replace(question, user=seconds) for question in prepared.questions]
    return dataclasses.replace(prepared, questions=questions)


def preparation_rate(work: EngineWork, chunks: Sequence[Chunk]) -> float:
    """Rows a second of the plain function, on one core, without anything around it."""
    rows, began = 0, time.perf_counter()
    for chunk in chunks:
        rows += len(work.prepare(chunk, work.settings).ids)
    return rows / (time.perf_counter() - began)


def pipeline_rates(lake: Lake, run: SourceRun, only: frozenset[str]) -> tuple[float, float, EngineUse]:
    """Rows a second of the pipeline, between filling the engine's slots and asking about the last row, and of one
    preparation task while it was at work; what the engine did."""
    place = Place(lake, "bench", "b1", caption_target(run))
    work = dataclasses.replace(caption_work(run), opener=open_timer, prepare=timed_preparation)
    use = fill(place, work, only=only).use
    assert use is not None
    answers = [
        tuple(map(float, text.split()))
        for info in list_objects(place.answers)
        for text in read_checkpoint(info.uri)["caption_timer"].to_pylist()
    ]
    assert len(answers) == len(only)
    asked, slots = sorted(at for at, _ in answers), run.captioner.concurrency
    rate = (len(asked) - slots) / (asked[-1] - asked[slots - 1])
    return rate, len(answers) / sum(seconds for _, seconds in answers), use


def captioning(folder: Path, cpus: int) -> Iterator[Comparison]:
    """Engines of several rates against the preparation of this machine, on a Ray of so many CPUs.

    What is compared is the pipeline with the slower of its two sides: the engine as it is set, the preparation as its tasks
    themselves took in this very run.
    """
    import ray

    lake, run = make_table(folder, 1600)
    work = caption_work(run)
    place = Place(lake, "bench", "b1", caption_target(run))
    chunks = plan_chunks(place, open_table(place.table), 8).chunks
    ids = [row for chunk in chunks for row in chunk.rows["id"].to_pylist()]
    ray.init(
        num_cpus=cpus, include_dashboard=False, logging_level="ERROR", log_to_driver=False, object_store_memory=2 << 30
    )
    alone = preparation_rate(work, chunks[:12])

    def measured(rate: float, number: int) -> tuple[float, float, EngineUse]:
        # Another text of the profile each time: what another run has answered is not taken.
        captioner = profile(rate, "captioner", max_pixels=(1 << 20) + number)
        cycles = max(4, round(SECONDS * min(rate, cpus * alone) / captioner.concurrency))
        some = frozenset(ids[: cycles * captioner.concurrency])
        return pipeline_rates(lake, run.model_copy(update={"captioner": captioner}), some)

    try:
        _, one_task, _ = measured(3 * cpus * alone, 0)  # warms up, and says what preparation takes beside all the rest
        for number, ratio in enumerate(RATIOS, 1):
            rate = ratio * cpus * one_task
            got, one_task, use = measured(rate, number)
            bound = min(rate, cpus * one_task)
            name = (
                f"captions, {cpus} CPU: preparation {cpus * one_task:.1f}/s ({cpus * alone:.1f}/s alone), "
                f"engine {rate:.1f}/s, {100 * use.busy:.0f} % busy, waiting for {use.bottleneck}"
            )
            yield Comparison(name, "rows/s", got, bound, got / bound, got / bound, got / bound)
    finally:
        ray.shutdown()


def classifying(folder: Path) -> Iterator[Comparison]:
    """A classifier of 200 captions a second: what the pipeline sustains, once its workers are started.

    From the question that fills its slots for the second time to the last question.
    """
    import ray

    slots, cycles, rate = 512, 14, 200.0
    lake, run = make_table(folder, slots * cycles, captioned="timer")
    asked_at = folder / "asked"
    classifier = profile(rate, "classifier", concurrency=slots, batch_size=slots, model=str(asked_at))
    run = run.model_copy(update={"captioner": profile(20, "captioner"), "classifier": classifier})
    place = Place(lake, "bench", "b1", classify_target(run))
    ray.init(
        num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False, object_store_memory=1 << 30
    )
    try:
        use = fill(place, dataclasses.replace(classify_work(run), opener=open_timer)).use
    finally:
        ray.shutdown()
    assert use is not None
    asked = sorted(map(float, asked_at.read_text().split()))
    assert len(asked) == slots * cycles
    got = (len(asked) - 2 * slots) / (asked[-1] - asked[2 * slots - 1])
    name = f"labels, engine of 200 captions/s (whole run, workers' start included: {use.rows_per_second:.1f}/s)"
    yield Comparison(name, "rows/s", got, rate, got / rate, got / rate, got / rate)


def compare_all(folder: Path) -> Iterator[Comparison]:
    """Both stages."""
    yield from captioning(folder / "captions", 1)
    yield from classifying(folder / "labels")
