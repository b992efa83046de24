"""One engine at work: what it does not ask again, and how busy it says it was."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from smalti import objects
from smalti.engines.asking import Answered
from smalti.engines.base import Question
from smalti.errors import CorruptError
from smalti.lake import Lake
from smalti.pipeline.fill import fill
from smalti.pipeline.plan import plan_chunks
from smalti.pipeline.worker import Prepared, Worker
from smalti.settings import SourceRun
from smalti.sources.inventory import parquet_bytes
from smalti.table.store import open_table
from smalti.table.target import fold, read_checkpoint
from tests.pipeline.conftest import PROFILE, Told, place_of, work_of

OUTPUTS = pa.schema([("text", pa.string())])


def chunk(folder: Path, *names: str) -> Prepared:
    questions = [Question(name, "say") for name in names]
    return Prepared(f"file://{folder}/{names[0]}.parquet", names, ["0"] * len(names), questions)


@pytest.fixture
def told() -> Told:
    return Told(seconds=0.2)


@pytest.fixture
def worker(told: Told) -> Iterator[Worker]:
    one_at_a_time = PROFILE.model_copy(update={"concurrency": 1})
    made = Worker(one_at_a_time, OUTPUTS, lambda answers: {"text": [a.text for a in answers]}, opener=told.open)
    yield made
    made.close()


def test_a_checkpoint_that_comes_while_a_chunk_waits_is_not_worked_out_again(
    worker: Worker, told: Told, tmp_path: Path
) -> None:
    first, second = chunk(tmp_path, "a"), chunk(tmp_path, "b", "c")
    threads = [threading.Thread(target=worker.work, args=(first,))]
    threads[0].start()
    while not told.asked:
        time.sleep(0.01)
    threads.append(threading.Thread(target=worker.work, args=(second,)))
    threads[1].start()
    objects.create_bytes(second.checkpoint, b"another driver's")
    for thread in threads:
        thread.join()
    assert set(told.asked) == {"a"}
    assert objects.read_bytes(second.checkpoint) == b"another driver's"


def test_rows_that_are_answered_for_already_are_kept_and_not_asked_about(
    worker: Worker, told: Told, tmp_path: Path
) -> None:
    mixed = Prepared(
        f"file://{tmp_path}/m.parquet",
        ["a", "b"],
        ["0", "0"],
        [None, Question("b", "say")],
        {0: Answered(None, "failed", "no_picture")},
    )
    done = worker.work(mixed)
    assert (done.rows, done.failed, set(told.asked)) == (2, 1, {"b"})
    assert read_checkpoint(mixed.checkpoint)["text"].to_pylist() == [None, "It is b."]


def test_busy_is_the_share_of_slots_that_were_taken(told: Told, tmp_path: Path) -> None:
    four = PROFILE.model_copy(update={"concurrency": 4})
    worker = Worker(four, OUTPUTS, lambda answers: {"text": [a.text for a in answers]}, opener=told.open)
    done = worker.work(chunk(tmp_path, "a", "b"))
    worker.close()
    assert done.busy / (done.now - done.first) == pytest.approx(0.5, abs=0.1)


def test_what_was_said_of_other_bytes_is_not_said_of_these(lake: Lake, run: SourceRun) -> None:
    place = place_of(lake, run)
    fill(place, work_of(run, Told()), only=frozenset({"made/p0.jpg"}))
    ((row, uri),) = plan_chunks(place, open_table(place.table), 2).answered.items()
    table = read_checkpoint(uri)
    old = table.set_column(table.schema.get_field_index("sha256"), "sha256", pa.array(["0" * 64]))
    other = place.checkpoint("00000000-old")
    objects.create_bytes(other, parquet_bytes(old, {}))
    with pytest.raises(CorruptError, match="1 rows are in no checkpoint"):
        fold(place.table, place.batch, place.target, {row: other})
