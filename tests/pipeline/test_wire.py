"""What travels between processes arrives as it was."""

from __future__ import annotations

import pyarrow as pa
from PIL import Image

from smalti.engines.asking import Answered
from smalti.engines.base import Question
from smalti.pipeline.plan import Chunk
from smalti.pipeline.wire import (
    chunk_from_arrow,
    chunk_to_arrow,
    done_from_arrow,
    done_to_arrow,
    prepared_from_arrow,
    prepared_to_arrow,
)
from smalti.pipeline.worker import Done, Prepared


def test_a_prepared_chunk() -> None:
    image = Image.effect_noise((31, 17), 60).convert("RGB")
    questions = [Question("a", "say", image), None, Question("c", "read this"), Question("d", "say", image.rotate(180))]
    failed = {1: Answered(None, "failed", "no_picture", "torn")}
    before = Prepared("file:///x", ["a", "b", "c", "d"], ["1", "2", "3", "4"], questions, failed)
    after = prepared_from_arrow(prepared_to_arrow(before))
    assert (after.checkpoint, after.ids, after.sha256, after.answered) == (
        "file:///x",
        before.ids,
        before.sha256,
        failed,
    )
    for one, other in zip(questions, after.questions, strict=True):
        if one is None or other is None:
            assert one is other is None
            continue
        assert (one.id, one.user) == (other.id, other.user)
        if one.image is None or other.image is None:
            assert one.image is other.image is None
        else:
            assert one.image.tobytes() == other.image.tobytes()
            assert one.image.size == other.image.size


def test_a_chunk_and_what_is_said_of_it() -> None:
    chunk = Chunk("file:///x", 3, pa.table({"id": ["a"], "_rowid": pa.array([7], pa.uint64())}), "file:///t", 5)
    assert chunk_from_arrow(chunk_to_arrow(chunk)) == chunk
    said = Done("file:///x", 4, 1, 200, "e", 1.0, 2.0, 3.5, 0.5, False)
    assert done_from_arrow(pa.concat_tables([done_to_arrow(said), done_to_arrow(said._replace(rows=0))])) == [
        said,
        said._replace(rows=0),
    ]
