"""Chunks as Arrow tables of one row: how they travel between the driver, the tasks that prepare and the engines.

Pictures go as raw pixels in a binary column, which is read without a copy where it arrives.
"""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
from PIL import Image

from smalti.engines.base import Question
from smalti.pipeline.plan import Chunk
from smalti.pipeline.worker import Done, Prepared

_PREPARED = pa.schema([
    ("head", pa.large_binary()),  # all but the pixels, pickled
    ("pixels", pa.large_list(pa.large_binary())),
])


def chunk_to_arrow(chunk: Chunk) -> pa.Table:
    """One row."""
    return pa.table({"chunk": pa.array([pickle.dumps(chunk, protocol=5)], pa.large_binary())})


def chunk_from_arrow(table: pa.Table) -> Chunk:
    chunk: Chunk = pickle.loads(_only(table, "chunk"))
    return chunk


def prepared_to_arrow(prepared: Prepared) -> pa.Table:
    """One row."""
    pixels, heads = [], []
    for question in prepared.questions:
        image = question.image if question else None
        pixels.append(None if image is None else image.tobytes())
        heads.append(None if question is None else (question.id, question.user, image and image.size))
    head = (prepared.checkpoint, prepared.ids, prepared.sha256, heads, prepared.answered)
    return pa.table({"head": [pickle.dumps(head)], "pixels": [pixels]}, schema=_PREPARED)


def prepared_from_arrow(table: pa.Table) -> Prepared:
    checkpoint, ids, sha256, heads, answered = pickle.loads(_only(table, "head"))
    pixels = table["pixels"].combine_chunks()[0].values
    questions = [
        None
        if head is None
        else Question(head[0], head[1], None if head[2] is None else _image(head[2], pixels[index].as_buffer()))
        for index, head in enumerate(heads)
    ]
    return Prepared(checkpoint, ids, sha256, questions, answered)


def done_to_arrow(done: Done) -> pa.Table:
    """One row."""
    return pa.table({name: [value] for name, value in done._asdict().items()})


def done_from_arrow(table: pa.Table) -> list[Done]:
    return [Done(**row) for row in table.to_pylist()]


def _image(size: tuple[int, int], pixels: Any) -> Image.Image:
    return Image.frombuffer("RGB", size, pixels, "raw", "RGB", 0, 1)


def _only(table: pa.Table, column: str) -> bytes:
    data: bytes = table[column][0].as_py()
    return data
