"""Format files: images with a table."""

from __future__ import annotations

import pytest

from smalti.config import Columns
from smalti.errors import InputError
from smalti.lake import Lake
from smalti.sources.files import plan_files, read_table
from smalti.sources.inventory import read_inventory, stage
from smalti.sources.rows import SourcePlan, SourceRow
from smalti.table.ingest import ingest
from tests.conftest import snapshot
from tests.sources.making import Made, picture


def plan(lake: Lake, made: Made, batch: str = "b1", limit: int | None = None) -> SourcePlan:
    run = made.run(batch, limit)
    stage(lake, run)
    return plan_files(lake, run, read_inventory(lake, "made", batch))


def keys(found: SourcePlan) -> list[str]:
    return [row.key for group in found.groups for row in group.read()]


def rejected(found: SourcePlan) -> list[tuple[str, str]]:
    return [(reject.key, reject.reason.value) for reject in found.rejects]


def finish(lake: Lake, made: Made, batch: str) -> None:
    ingest(lake, made.run(batch))


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_every_kind_of_table_gives_the_same_rows_sorted_by_key(lake: Lake, made: Made, kind: str) -> None:
    made.table([{"file": f"p{n}.jpg", "caption": f'Zwölf, "{n}"\nlines'} for n in (3, 1, 0, 2)], kind)
    found = plan(lake, made)
    rows = [row for group in found.groups for row in group.read()]
    assert [(row.key, row.caption, row.data) for row in rows if isinstance(row, SourceRow)] == [
        (f"p{n}.jpg", f'Zwölf, "{n}"\nlines', picture(n)) for n in range(4)
    ]


def test_numbers_in_a_csv_stay_as_they_are_written() -> None:
    table = read_table(b"file,n\n007,1.50\n", "t.csv")
    assert table.to_pylist() == [{"file": "007", "n": "1.50"}]


def test_a_csv_from_a_spreadsheet_with_a_byte_order_mark_is_read() -> None:
    assert read_table("\ufefffile,n\r\na,1\r\n".encode(), "t.csv").column_names == ["file", "n"]


def test_rows_without_an_image_and_images_without_a_row_are_rejected(lake: Lake, made: Made) -> None:
    made.table([{"file": f"p{n}.jpg", "caption": ""} for n in (1, 2, 3, 4)])
    found = plan(lake, made)
    assert keys(found) == ["p1.jpg", "p2.jpg", "p3.jpg"]
    assert rejected(found) == [("p4.jpg", "missing_object"), ("p0.jpg", "no_table_row")]
    assert found.rows_in == 5


def test_a_later_batch_has_only_what_is_new_and_rejects_a_missing_image_once(lake: Lake, made: Made) -> None:
    made.table([{"file": f"p{n}.jpg", "caption": ""} for n in range(6)])
    assert rejected(plan(lake, made)) == [("p4.jpg", "missing_object"), ("p5.jpg", "missing_object")]
    finish(lake, made, "b1")
    made.put("images/p5.jpg", picture(5))
    made.table([{"file": f"p{n}.jpg", "caption": ""} for n in range(7)])
    found = plan(lake, made, "b2")
    assert keys(found) == ["p5.jpg"]
    assert rejected(found) == [("p6.jpg", "missing_object")]


def test_an_image_gets_in_when_its_row_arrives_later(lake: Lake, made: Made) -> None:
    made.put("images/late.jpg", picture(8))
    assert rejected(plan(lake, made)) == [("late.jpg", "no_table_row")]
    finish(lake, made, "b1")
    made.table([{"file": f, "caption": ""} for f in ("late.jpg", "p0.jpg", "p1.jpg", "p2.jpg", "p3.jpg")])
    found = plan(lake, made, "b2")
    assert (keys(found), rejected(found)) == (["late.jpg"], [])
    finish(lake, made, "b2")
    assert keys(plan(lake, made, "b3")) == []


def test_with_a_limit_rows_that_were_not_listed_are_not_missing(lake: Lake, made: Made) -> None:
    found = plan(lake, made, limit=2)
    assert (keys(found), rejected(found), found.rows_in) == (["p0.jpg", "p1.jpg"], [], 2)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("t.csv", b"", "the table is empty"),
        ("t.csv", b"file,caption\na\n", "cannot be read"),
        ("t.csv", b"file,caption\n\xff\xfe,b\n", "cannot be read"),
        ("t.jsonl", b"\n", "the table is empty"),
        ("t.jsonl", b'{"file": "a"}\n{"file": \n', "t.jsonl:2: this line is not JSON"),
        ("t.jsonl", b'{"file": "a"}\n["a"]\n', "t.jsonl:2: this line is not a JSON object"),
        ("t.jsonl", b'{"file": "a", "file": "b"}\n', "t.jsonl:1: .* stands twice"),
        ("t.jsonl", b'{"file": "a"}\n{"file": [1]}\n', "field 'file' holds values of different kinds"),
        ("t.parquet", b"PAR1 no", "cannot be read"),
    ],
)
def test_a_table_that_cannot_be_read_is_one_line(name: str, data: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        read_table(data, name)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"file": "p0.jpg", "caption": "a"}] * 2, "1 keys stand more than once: 'p0.jpg'"),
        ([{"file": "p0.jpg", "caption": "a", "surprise": "b"}], "does not name: 'surprise'"),
        ([{"file": "p0.jpg", "text": "a"}], "no column 'caption'"),
        ([{"file": "../p0.jpg", "caption": "a"}], "1 keys cannot be used: '../p0.jpg'"),
    ],
)
def test_a_wrong_table_stops_the_batch_before_anything_is_written(
    lake: Lake, made: Made, rows: list[dict[str, str]], message: str
) -> None:
    made.table(rows)
    stage(lake, made.run())
    before = snapshot(lake.root)
    with pytest.raises(InputError, match=message) as raised:
        ingest(lake, made.run())
    assert "table.csv" in str(raised.value)
    assert "\n" not in str(raised.value)
    assert snapshot(lake.root) == before


def test_a_table_that_changed_after_staging_is_refused(lake: Lake, made: Made) -> None:
    stage(lake, made.run())
    made.table([{"file": "p0.jpg", "caption": "other"}])
    with pytest.raises(InputError, match="table was changed after the batch was staged"):
        ingest(lake, made.run())


def test_a_batch_that_is_not_staged_is_named(lake: Lake, made: Made) -> None:
    with pytest.raises(InputError, match=r"batch 'b1' of source 'made' is not staged"):
        ingest(lake, made.run())


def test_an_embedding_in_the_table_goes_along(lake: Lake, made: Made) -> None:
    made.table([{"file": f"p{n}.jpg", "caption": "x", "e": [n, 0.5]} for n in range(4)], "jsonl")
    made.config["columns"] = Columns(key="file", caption="caption", embedding="e")
    found = plan(lake, made)
    assert found.embedding == 2
    first = next(iter(found.groups[0].read()))
    assert isinstance(first, SourceRow)
    assert first.embedding == [0.0, 0.5]
