"""Format parquet: rows that hold the images."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from smalti.config import Columns
from smalti.errors import InputError
from smalti.lake import Lake
from smalti.settings import SourceRun
from smalti.sources.inventory import read_inventory, stage
from smalti.sources.parquet import plan_parquet
from smalti.sources.rows import SourcePlan, SourceRow
from smalti.table.ingest import ingest
from tests.conftest import snapshot
from tests.sources.making import Made, as_parquet, picture, rejects_of, rows_of

COLUMNS = Columns(key="key", image="image", caption="text")


def run_of(made: Made, batch: str = "b1", limit: int | None = None, columns: Columns = COLUMNS) -> SourceRun:
    return made.run(batch, limit, format="parquet", table=None, images="", uri=f"{made.root}/rows", columns=columns)


def put(made: Made, name: str, numbers: list[int], row_group_size: int = 2) -> None:
    rows: list[dict[str, Any]] = [{"key": n, "image": picture(n), "text": f"picture {n}"} for n in numbers]
    made.put(f"rows/{name}.parquet", as_parquet(rows, row_group_size=row_group_size))


def plan(lake: Lake, run: SourceRun) -> SourcePlan:
    stage(lake, run)
    return plan_parquet(run, read_inventory(lake, run.source.name, run.batch))


def read(found: SourcePlan) -> list[SourceRow]:
    return [row for group in found.groups for row in group.read() if isinstance(row, SourceRow)]


def test_rows_of_all_files_come_in_order_with_their_address(lake: Lake, made: Made) -> None:
    put(made, "b", [4, 5])
    put(made, "a", [3, 1, 2])
    rows = read(plan(lake, run_of(made)))
    assert [(row.key, row.data, row.caption) for row in rows] == [
        (str(n), picture(n), f"picture {n}") for n in (3, 1, 2, 4, 5)
    ]
    assert [row.uri.removeprefix(made.root) for row in rows[:3]] == [f"/rows/a.parquet#row={n}" for n in range(3)]


def test_a_limit_takes_the_first_rows(lake: Lake, made: Made) -> None:
    put(made, "a", [1, 2, 3, 4, 5])
    found = plan(lake, run_of(made, limit=3))
    assert [row.key for row in read(found)] == ["1", "2", "3"]
    assert found.rows_in == 3


def test_an_image_may_be_a_struct_with_bytes(lake: Lake, made: Made) -> None:
    rows: list[dict[str, Any]] = [
        {"key": "a", "image": {"bytes": picture(1), "path": "x"}},
        {"key": "b", "image": None},
    ]
    made.put("rows/hf.parquet", as_parquet(rows))
    run = run_of(made, columns=Columns(key="key", image="image"))
    stage(lake, run)
    report = ingest(lake, run)
    assert (report.rows_out, report.dropped) == (1, {"empty": 1})
    assert rejects_of(lake, "made", "b1") == [("b", "empty")]


def test_rows_arrive_in_the_table_with_ids_of_their_source(lake: Lake, made: Made) -> None:
    put(made, "a", [1, 2, 3])
    run = run_of(made)
    stage(lake, run)
    assert ingest(lake, run).rows_out == 3
    rows = rows_of(lake, "made", "uri", "caption_source")
    assert [(row["id"], row["caption_source"]) for row in rows] == [(f"made/{n}", f"picture {n}") for n in (1, 2, 3)]


def test_the_driver_reads_no_picture(lake: Lake, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    put(made, "a", [1, 2, 3])
    run = run_of(made)
    stage(lake, run)
    asked: list[list[str]] = []
    read_columns = pq.ParquetFile.read

    def spy(self: pq.ParquetFile, columns: list[str]) -> pa.Table:
        asked.append(columns)
        return read_columns(self, columns=columns)

    monkeypatch.setattr(pq.ParquetFile, "read", spy)
    plan_parquet(run, read_inventory(lake, "made", "b1"))
    assert asked == [["key"]]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"not parquet at all", "cannot be read as parquet"),
        (as_parquet([{"key": "a", "image": b"x"}]), "no column 'text'"),
        (as_parquet([{"key": "a", "image": "x", "text": "t"}]), "column 'image' cannot be the image"),
        (as_parquet([{"key": "a", "image": b"x", "text": "t", "n": 1}]), "does not name: 'n'"),
        (as_parquet([{"key": "1", "image": b"x", "text": "t"}]), "1 keys stand more than once: '1'"),
    ],
)
def test_a_wrong_file_stops_the_batch_before_anything_is_written(
    lake: Lake, made: Made, data: bytes, message: str
) -> None:
    put(made, "a", [1, 2])
    made.put("rows/wrong.parquet", data)
    run = run_of(made)
    stage(lake, run)
    before = snapshot(lake.root)
    with pytest.raises(InputError, match=message) as raised:
        ingest(lake, run)
    assert made.root in str(raised.value)
    assert snapshot(lake.root) == before


def test_a_file_that_changed_after_staging_is_refused(lake: Lake, made: Made) -> None:
    put(made, "a", [1])
    run = run_of(made)
    stage(lake, run)
    put(made, "a", [2])
    with pytest.raises(InputError, match="changed after the batch was staged"):
        ingest(lake, run)


def test_a_file_without_rows_is_nothing_to_do(lake: Lake, made: Made) -> None:
    out = io.BytesIO()
    pq.write_table(
        pa.table({"key": pa.array([], "string"), "image": pa.array([], "binary"), "text": pa.array([], "string")}), out
    )
    made.put("rows/none.parquet", out.getvalue())
    run = run_of(made)
    stage(lake, run)
    report = ingest(lake, run)
    assert (report.rows_in, report.rows_out) == (0, 0)


def test_embeddings_of_two_lengths_stop_the_batch(lake: Lake, made: Made) -> None:
    rows = [{"key": f"{n}", "image": picture(n), "e": [0.5] * (2 if n < 2 else 3)} for n in range(4)]
    made.put("rows/a.parquet", as_parquet(rows, row_group_size=2))
    run = run_of(made, columns=Columns(key="key", image="image", embedding="e"))
    stage(lake, run)
    with pytest.raises(InputError, match="an embedding of 3 numbers, and others have 2"):
        ingest(lake, run)
    assert rows_of(lake, "made") == []
