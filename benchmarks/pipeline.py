"""Does the captioning pipeline keep engines busy? Engines of fixed service time, and real preparation of photographs.

An engine here is a timer: it answers a row `concurrency / rate` seconds after it was asked, and takes `concurrency` rows at a
time, so that it does `rate` rows a second if it is never without one. That is a figure of the pipeline and says nothing of how
fast a GPU is. Preparation is the real one: reading from Lance, decoding, the bucket's crop.
"""

from __future__ import annotations

import asyncio
import dataclasses
import io
import time
from pathlib import Path
from typing import Any

from smalti.config import Engine
from smalti.engines.base import Answer, Question
from smalti.profiles import Prompt, PromptText, Sampling

TEXT = PromptText(user="Caption this image: {caption}")
PROMPT = Prompt(name="bench", sha256=TEXT.sha256, text=TEXT)


class TimerEngine:
    """Answers a row a fixed time after it was asked."""

    def __init__(self, seconds: float, text: str) -> None:
        self._seconds, self._text = seconds, text

    async def ask(self, question: Question, sampling: Sampling) -> Answer:
        await asyncio.sleep(self._seconds)
        return Answer(self._text, "stop", 120)

    async def close(self) -> None:
        """Nothing is held."""


async def open_timer(profile: Engine) -> TimerEngine:
    """`rate` rows a second with `concurrency` of them at a time."""
    assert profile.rate is not None
    return TimerEngine(
        profile.concurrency / profile.rate, "visual" if profile.role == "classifier" else "A photograph."
    )


def profile(rate: float, concurrency: int = 32, batch_size: int = 8, **changes: Any) -> Engine:
    """A captioner of this rate."""
    return Engine(
        name="timer",
        role="captioner",
        kind="openai",
        model="timer",
        base_url="http://nowhere/v1",
        prompt=PROMPT,
        checks=None,
        rate=rate,
        concurrency=concurrency,
        batch_size=batch_size,
        cpus=0.01,
        **changes,
    )


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


def make_table(folder: Path, rows: int, captioned: str = "") -> tuple[Any, Any]:
    """A lake whose source `bench` has one batch of so many rows, ready to be captioned; and its run.

    Args:
        captioned: a captioner whose captions the rows have already.
    """
    import hashlib

    import lance
    import pyarrow as pa

    from smalti.config import Columns, Source
    from smalti.lake import Lake
    from smalti.settings import SourceRun
    from smalti.table.schema import caption_columns, table_schema

    source = Source(
        name="bench",
        format="files",
        uri="file:///nowhere",
        table="t.csv",
        columns=Columns(key="file", caption="caption"),
    )
    run = SourceRun(source=source, batch="b1", captioner=profile(20), classifier=profile(200))
    lake, photos = Lake.at(str(folder)), jpegs()
    columns = caption_columns(captioned).fields({}) if captioned else pa.schema([])
    schema = pa.schema([*table_schema(None), *columns])
    for start in range(0, rows, 500):
        numbers = range(start, min(rows, start + 500))
        images = [photos[n % len(photos)] for n in numbers]
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
