"""Stage: what a batch takes notice of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from smalti import objects
from smalti.config import Columns
from smalti.errors import InputError, LakeError
from smalti.lake import Lake
from smalti.sources.inventory import read_inventory, stage
from smalti.table.ingest import ingest
from tests.conftest import snapshot
from tests.sources.making import Made, picture, simple


def names(lake: Lake, batch: str) -> list[str]:
    return [uri.rsplit("/", 1)[1] for uri in read_inventory(lake, "made", batch).objects["uri"].to_pylist()]


def test_the_inventory_pins_every_object_of_the_source(lake: Lake, made: Made) -> None:
    report = stage(lake, made.run())
    assert (report.objects, report.new) == (5, 5)
    rows = pq.read_table(pa.BufferReader(objects.read_bytes(report.inventory))).to_pylist()
    assert [set(row) for row in rows] == [{"uri", "generation", "size", "crc32c"}] * 5
    for row in rows:
        info = objects.stat(row["uri"])
        assert info is not None
        assert (row["generation"], row["size"]) == (info.generation, info.size)
    assert report.bytes == sum(row["size"] for row in rows)


def test_a_second_run_reads_the_inventory_and_lists_nothing(lake: Lake, made: Made) -> None:
    first, before = stage(lake, made.run()), snapshot(lake.root)
    made.put("images/later.jpg", picture(9))
    second = stage(lake, made.run())
    assert second.model_dump(exclude={"seconds"}) == first.model_dump(exclude={"seconds"})
    assert snapshot(lake.root) == before


def test_the_same_listing_gives_the_same_bytes(tmp_path: Path, made: Made) -> None:
    lakes = [Lake.at(str(tmp_path / name)) for name in ("one", "two")]
    first, second = (objects.read_bytes(stage(lake, made.run()).inventory) for lake in lakes)
    assert first == second


def test_a_later_batch_lists_the_table_and_what_is_new_or_changed(lake: Lake, made: Made) -> None:
    stage(lake, made.run())
    ingest(lake, made.run())
    made.put("images/p4.jpg", picture(4))
    made.put("images/p2.jpg", picture(99))
    stage(lake, made.run("b2"))
    assert names(lake, "b2") == ["p2.jpg", "p4.jpg", "table.csv"]


def test_a_batch_that_was_never_ingested_hides_nothing_from_later_ones(lake: Lake, made: Made) -> None:
    stage(lake, made.run())
    assert stage(lake, made.run("b2")).new == 5


def test_a_batch_with_a_limit_takes_the_first_and_hides_nothing(lake: Lake, made: Made) -> None:
    stage(lake, made.run("try", limit=2))
    assert names(lake, "try") == ["p0.jpg", "p1.jpg", "table.csv"]
    ingest(lake, made.run("try", limit=2))
    assert stage(lake, made.run("b1")).new == 5


def test_an_image_without_a_row_is_listed_again_until_it_has_one(lake: Lake, made: Made) -> None:
    made.put("images/orphan.jpg", picture(7))
    stage(lake, made.run())
    ingest(lake, made.run())
    stage(lake, made.run("b2"))
    assert names(lake, "b2") == ["orphan.jpg", "table.csv"]


def test_nothing_new_is_an_inventory_of_the_table_alone(lake: Lake, made: Made) -> None:
    stage(lake, made.run())
    ingest(lake, made.run())
    assert stage(lake, made.run("b2")).new == 1
    assert names(lake, "b2") == ["table.csv"]


def test_another_limit_or_place_under_the_same_batch_is_refused(lake: Lake, made: Made, tmp_path: Path) -> None:
    stage(lake, made.run())
    with pytest.raises(InputError, match="was staged with limit None, and this run has 2"):
        stage(lake, made.run(limit=2))
    moved = simple(f"file://{tmp_path}/moved")
    with pytest.raises(InputError, match="the source is now at"):
        stage(lake, moved.run())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"uri": "file:///nowhere/at/all"}, "source 'made' is missing"),
        ({"images": "nothing"}, "source 'made' is missing"),
        ({"images": "empty"}, "source 'made' is empty: it holds no images"),
        ({"table": "other.csv"}, "has no table other.csv"),
        ({"format": "parquet", "table": None, "images": ""}, "is empty: it holds no parquet files"),
    ],
)
def test_a_missing_or_empty_source_is_one_line_and_leaves_nothing(
    lake: Lake, made: Made, change: dict[str, Any], message: str
) -> None:
    folder = objects.local_path(objects.join_uri(made.root, "empty"))
    assert folder is not None
    folder.mkdir()
    if change.get("format") == "parquet":
        change = {**change, "columns": Columns(key="file", image="image")}
    with pytest.raises(InputError, match=message) as raised:
        stage(lake, made.run(**change))
    assert "\n" not in str(raised.value)
    assert snapshot(lake.root) == {}


def test_a_source_that_is_a_file_is_one_line(lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    made = Made(f"file://{tmp_path}/file", {"table": "t.csv"})
    with pytest.raises((InputError, LakeError), match="file"):
        stage(lake, made.run())


def test_a_lake_that_cannot_be_written_is_one_line(tmp_path: Path, made: Made) -> None:
    (tmp_path / "lake").write_text("a file where the lake should be")
    with pytest.raises(LakeError, match="may be written") as raised:
        stage(Lake.at(str(tmp_path / "lake")), made.run())
    assert "\n" not in str(raised.value)


def test_names_with_blanks_and_signs_are_listed_and_found(lake: Lake, made: Made) -> None:
    made.put("images/sub/ä b#1%20?.jpg", picture(5))
    made.table([{"file": "sub/ä b#1%20?.jpg", "caption": "awkward"}, {"file": "p0.jpg", "caption": ""}])
    stage(lake, made.run())
    report = ingest(lake, made.run())
    assert report.rows_out == 2


def test_only_parquet_files_belong_to_a_parquet_source(lake: Lake, made: Made) -> None:
    made.put("parts/a.parquet", b"not looked at yet")
    made.put("parts/README.md", b"hello")
    columns = Columns(key="file", image="image")
    run = made.run(format="parquet", table=None, images="", uri=f"{made.root}/parts", columns=columns)
    assert stage(lake, run).new == 1
    single = made.run(
        "b2", format="parquet", table=None, images="", uri=f"{made.root}/parts/a.parquet", columns=columns
    )
    assert stage(lake, single).new == 1
