"""One shard: what is in it, what is recorded of it, and what happens when its writer dies."""

from __future__ import annotations

import io
import pickle
from dataclasses import replace
from typing import Any

import pytest
from PIL import Image

from smalti import objects
from smalti.errors import ConflictError, CorruptError
from smalti.images.buckets import buckets_of
from smalti.images.encode import quality_tables, read_tables
from smalti.lake import Lake
from smalti.settings import SourceRun
from smalti.shards import mds
from smalti.shards.write import ShardTask, TaskRow, mds_columns, write_shard
from smalti.table.store import open_table
from tests.support.pictures import Row, picture, source_run, stored, write_table

SQUARE = next(bucket for bucket in buckets_of(512) if bucket.ar == "1.000")


@pytest.fixture
def run() -> SourceRun:
    return source_run()


def task(lake: Lake, run: SourceRun, rows: list[Row]) -> ShardTask:
    """The task of one shard with all rows of the table."""
    write_table(lake, run, rows)
    table = open_table(lake.table(run.source.name))
    read = table.to_table(columns=["id", "sha256", "width", "height", "caption_rules"], with_row_id=True).to_pylist()
    return ShardTask(
        lake=lake,
        source=run.source.name,
        part="00001-0123456789ab",
        version=table.version,
        bucket=SQUARE,
        number=3,
        encoding=run.source.encoding,
        rows=tuple(
            TaskRow(each["id"], each["_rowid"], each["sha256"], each["width"], each["height"], each["caption_rules"])
            for each in read
        ),
    )


def samples(made: ShardTask) -> list[dict[str, Any]]:
    columns, raw = mds.read_shard(objects.read_bytes(made.uri))
    return [mds.decode_sample(columns, each) for each in raw]


def test_every_row_is_a_sample_of_the_buckets_shape_and_quality(lake: Lake, run: SourceRun) -> None:
    rows = [Row(f"{n}.jpg", stored(picture(n, 700, 690)), caption=f"picture {n}") for n in range(3)]
    made = task(lake, run, rows)
    facts = write_shard(made)
    found = samples(made)
    assert [(each["id"], each["caption"], each["source"]) for each in found] == [
        (f"demo/{n}.jpg", f"picture {n}", "demo") for n in range(3)
    ]
    for each in found:
        assert (each["width"], each["height"], each["original_width"], each["original_height"]) == (512, 512, 700, 690)
        assert Image.open(io.BytesIO(each["image"])).size == (512, 512)
        assert read_tables(each["image"]) == quality_tables(92)
    assert facts.bytes == tuple(len(each["image"]) for each in found)
    assert facts.entry == mds.shard_entry("shard.00003.mds", objects.read_bytes(made.uri))
    assert facts.entry["column_names"] == sorted(mds_columns(run.source.encoding))


def test_the_stored_picture_is_the_original_seen_through_its_bucket(lake: Lake, run: SourceRun) -> None:
    original = picture(1, 600, 600)
    made = task(lake, run, [Row("a.png", stored(original, "PNG"))])
    write_shard(made)
    shown = Image.open(io.BytesIO(samples(made)[0]["image"])).resize((6, 6), Image.Resampling.BOX)
    wanted = original.resize((6, 6), Image.Resampling.BOX)
    pairs = zip(shown.tobytes(), wanted.tobytes(), strict=True)
    assert max(abs(a - b) for a, b in pairs) <= 3


def test_png_is_stored_without_loss(lake: Lake) -> None:
    run = source_run(format="png")
    original = picture(1, 512, 512)
    made = task(lake, run, [Row("a.png", stored(original, "PNG"))])
    write_shard(made)
    assert Image.open(io.BytesIO(samples(made)[0]["image"])).tobytes() == original.tobytes()
    assert mds.read_shard(objects.read_bytes(made.uri))[0]["image"] == "png"


def test_a_row_that_cannot_be_decoded_leaves_the_others_and_is_named(lake: Lake, run: SourceRun) -> None:
    broken = stored(picture(1))[:2000]
    made = task(
        lake,
        run,
        [Row("a.jpg", stored(picture(0))), Row("b.jpg", broken, size=(520, 520)), Row("c.jpg", stored(picture(2)))],
    )
    facts = write_shard(made)
    assert [each["id"] for each in samples(made)] == ["demo/a.jpg", "demo/c.jpg"]
    assert [failure.position for failure in facts.failed] == [1]
    assert facts.failed[0].detail.startswith("truncated")


def test_a_shard_of_nothing_but_broken_rows_is_not_written(lake: Lake, run: SourceRun) -> None:
    made = task(lake, run, [Row("b.jpg", stored(picture(1))[:2000], size=(520, 520))])
    assert write_shard(made).entry is None
    assert not objects.exists(made.uri)
    assert write_shard(made).entry is None


def test_a_shard_with_its_record_is_not_made_again(lake: Lake, run: SourceRun, monkeypatch: pytest.MonkeyPatch) -> None:
    made = task(lake, run, [Row("a.jpg", stored(picture(0)))])
    facts = write_shard(made)
    monkeypatch.setattr("smalti.shards.write.encode", lambda *_: pytest.fail("encoded again"))
    assert write_shard(made) == facts


def test_a_shard_without_its_record_is_made_again_to_the_same_bytes(
    lake: Lake, run: SourceRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = task(lake, run, [Row("a.jpg", stored(picture(0)))])
    with monkeypatch.context() as dying:
        create = objects.create_bytes
        dying.setattr(objects, "create_bytes", lambda uri, data: create(uri, data) if uri == made.uri else 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write_shard(made)
    first = objects.read_bytes(made.uri)
    assert not objects.exists(made.progress)
    write_shard(made)
    assert objects.read_bytes(made.uri) == first


def test_a_task_travels_to_another_process(lake: Lake, run: SourceRun) -> None:
    made = task(lake, run, [Row("a.jpg", stored(picture(0)))])
    assert made.uri  # computed on the way
    there: ShardTask = pickle.loads(pickle.dumps(made))
    assert there == made
    assert pickle.loads(pickle.dumps(write_shard(there))) == write_shard(made)


def test_a_shard_that_is_there_with_other_bytes_is_never_overwritten(lake: Lake, run: SourceRun) -> None:
    made = task(lake, run, [Row("a.jpg", stored(picture(0)))])
    objects.create_bytes(made.uri, b"somebody else's")
    with pytest.raises(ConflictError, match="exists with other content"):
        write_shard(made)
    assert objects.read_bytes(made.uri) == b"somebody else's"


def test_bytes_that_are_not_the_ingested_ones_stop_the_run(lake: Lake, run: SourceRun) -> None:
    made = task(lake, run, [Row("a.jpg", stored(picture(0)))])
    wrong = replace(made, rows=(made.rows[0]._replace(sha256="0" * 64),))
    with pytest.raises(CorruptError, match=r"the image of demo/a\.jpg is not the one that was ingested"):
        write_shard(wrong)


def test_a_size_that_is_not_the_tables_stops_the_run(lake: Lake, run: SourceRun) -> None:
    made = task(lake, run, [Row("a.jpg", stored(picture(0)), size=(530, 530))])
    with pytest.raises(CorruptError, match=r"demo/a\.jpg is 520x520, and the table says 530x530"):
        write_shard(made)
