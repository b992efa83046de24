"""Index: what searching needs, at any time after ingest."""

from __future__ import annotations

from typing import Any

import lance  # noqa: TID253
import pyarrow as pa
import pytest

from smalti.errors import CorruptError
from smalti.lake import Lake
from smalti.sources.inventory import stage
from smalti.table import index as module
from smalti.table import store
from smalti.table.columns import Filling, backfill
from smalti.table.index import fragment_rows, index, wanted_indices
from smalti.table.ingest import ingest
from tests.sources.making import Made, picture
from tests.table.test_columns import filling, hashes


def deliver(lake: Lake, made: Made, count: int, batch: str) -> None:
    for n in range(count):
        made.put(f"images/p{n}.jpg", picture(n))
    made.table([{"file": f"p{n}.jpg", "caption": f"picture number{n} of a house"} for n in range(count)])
    stage(lake, made.run(batch))
    ingest(lake, made.run(batch))


def test_a_source_can_be_searched_right_after_ingest(lake: Lake, made: Made) -> None:
    deliver(lake, made, 4, "b1")
    report = index(lake, made.run())
    assert (report.rows, report.unindexed, report.compacted) == (4, 0, 0)
    assert {"id", "sha256", "phash", "owner", "url", "batch", "tier", "caption_source"} <= set(report.indices)
    table = lance.dataset(lake.table("made"))
    found = table.to_table(columns=["id"], full_text_query="number2")
    assert found["id"].to_pylist() == ["made/p2.jpg"]
    plan = table.scanner(filter="id = 'made/p1.jpg'").explain_plan()
    assert "ScalarIndexQuery" in plan


def test_a_second_run_commits_nothing(lake: Lake, made: Made) -> None:
    deliver(lake, made, 4, "b1")
    first = index(lake, made.run())
    version = lance.dataset(lake.table("made")).version
    second = index(lake, made.run())
    assert second.model_dump(exclude={"seconds"}) == first.model_dump(exclude={"seconds"})
    assert lance.dataset(lake.table("made")).version == version


def test_rows_that_arrive_later_and_new_captions_are_indexed_too(lake: Lake, made: Made) -> None:
    deliver(lake, made, 4, "b1")
    index(lake, made.run())
    deliver(lake, made, 6, "b2")
    backfill(lake, "made", "b1", captions())
    report = index(lake, made.run("b2"))
    assert (report.rows, report.unindexed) == (6, 0)
    table = lance.dataset(lake.table("made"))
    assert table.to_table(columns=["id"], full_text_query="number5")["id"].to_pylist() == ["made/p5.jpg"]
    query = lance.query.MatchQuery("p3", "caption_x")
    assert table.to_table(columns=["id"], full_text_query=query)["id"].to_pylist() == ["made/p3.jpg"]


def captions() -> Filling:
    one = filling()
    object.__setattr__(
        one, "outputs", pa.schema([pa.field("caption_x", pa.string()), pa.field("caption_x_status", pa.string())])
    )
    object.__setattr__(one, "marker", "caption_x_status")
    object.__setattr__(one, "compute", words)
    return one


def words(chunk: Any, _: Any) -> dict[str, list[Any]]:
    ids = chunk.rows["id"].to_pylist()
    return {
        "caption_x": [f"this is {name.split('/')[1].split('.')[0]}" for name in ids],
        "caption_x_status": ["ok"] * len(ids),
    }


def test_many_small_fragments_are_merged_and_pictures_stay(
    lake: Lake, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SMALL_FRAGMENTS", 3)
    deliver(lake, made, 3, "b1")
    deliver(lake, made, 6, "b2")
    assert index(lake, made.run()).compacted == 0
    deliver(lake, made, 9, "b3")
    before = hashes(lake.table("made"))
    report = index(lake, made.run())
    assert (report.rows, report.fragments, report.unindexed) == (9, 1, 0)
    assert report.compacted == 3
    assert hashes(lake.table("made")) == before
    assert lance.dataset(lake.table("made")).count_rows("batch = 'b2'") == 3


def test_a_picture_that_changed_is_found_out(lake: Lake, made: Made) -> None:
    deliver(lake, made, 4, "b1")
    table = lance.dataset(lake.table("made"))
    module.check_blobs(table)
    table.update({"sha256": "'0000'"}, where="id = 'made/p2.jpg'")
    with pytest.raises(CorruptError, match=r"picture of made/p2\.jpg is not the one that was ingested"):
        module.check_blobs(lance.dataset(lake.table("made")))


def test_another_writer_in_between_only_makes_it_try_again(
    lake: Lake, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver(lake, made, 4, "b1")
    uri, real = lake.table("made"), store.open_table
    raced: list[str] = []

    def opened(uri: str, version: int | None = None) -> Any:
        table = real(uri, version)
        if len(raced) < 12:  # whatever index opens is out of date at once
            raced.append("x")
            store.retried(uri, lambda: real(uri).add_columns(pa.schema([pa.field(f"c{len(raced)}", pa.string())])))
        return table

    monkeypatch.setattr(store, "open_table", opened)
    monkeypatch.setattr("smalti.table.store.time.sleep", lambda _: None)
    assert index(lake, made.run()).unindexed == 0
    assert len(raced) == 12
    assert real(uri).count_rows("batch = 'b1'") == 4


def test_an_index_never_hides_values_filled_in_beside_it(
    lake: Lake, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Index after ingest runs side by side with fingerprint, which writes columns that are indexed."""
    deliver(lake, made, 4, "b1")
    tier = filling()
    object.__setattr__(tier, "outputs", pa.schema([pa.field("tier", pa.int32())]))
    object.__setattr__(tier, "marker", "tier")
    object.__setattr__(tier, "compute", lambda chunk, _: {"tier": [512] * chunk.rows.num_rows})
    real = lance.LanceDataset.create_scalar_index

    def slowly(self: Any, column: str, *args: Any, **kwargs: Any) -> Any:
        if column == "tier":
            backfill(lake, "made", "b1", tier)
        return real(self, column, *args, **kwargs)

    monkeypatch.setattr(lance.LanceDataset, "create_scalar_index", slowly)
    assert index(lake, made.run()).unindexed == 0
    assert lance.dataset(lake.table("made")).count_rows("tier = 512") == 4


def test_without_rows_or_a_table_there_is_nothing_to_index(lake: Lake, made: Made) -> None:
    assert index(lake, made.run()).rows == 0
    for n in range(4):
        made.put(f"images/p{n}.jpg", b"no picture")
    stage(lake, made.run())
    ingest(lake, made.run())
    assert index(lake, made.run()).rows == 0


def test_every_caption_column_is_searched_by_word() -> None:
    schema = pa.schema([
        (name, pa.string())
        for name in (
            "id",
            "caption_source",
            "caption_x",
            "caption_x_status",
            "label_y",
            "label_y_score",
            "label_y_status",
            "label_y_attempts",
        )
    ])
    assert dict(wanted_indices(schema)) == {
        "id": "BTREE",
        "caption_source": "INVERTED",
        "caption_x": "INVERTED",
        "caption_x_status": "BITMAP",
        "label_y": "BITMAP",
        "label_y_status": "BITMAP",
    }


def test_rows_of_a_fragment_are_bounded_by_their_bytes() -> None:
    assert fragment_rows(1000, 1000 * 10_000) == 1_000_000
    assert fragment_rows(1000, 1000 * (1 << 20)) == 32 << 10
    assert fragment_rows(0, 0) == 1_000_000
