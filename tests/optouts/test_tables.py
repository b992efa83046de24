"""Opt-outs in tables: what was never sharded is found as well."""

from __future__ import annotations

import pytest

from smalti.lake import Lake
from smalti.optouts import indexed
from smalti.optouts.match import match_parts
from smalti.optouts.matched import MATCHED
from smalti.optouts.tables import Tables, each_id_once, match_tables
from smalti.shards.part import committed_parts
from smalti.shards.stage import shard
from smalti.table.index import index
from tests.optouts.making import named, request
from tests.support.pictures import Row, picture, source_run, stored, write_table


@pytest.fixture(params=["by index", "whole"], autouse=True)
def _how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked by index where it is little is asked of whole tables where it is much."""
    if request.param == "whole":
        monkeypatch.setattr(indexed, "SMALL", 0)


def filled(lake: Lake) -> None:
    """Two sources: one is sharded; the other has a copy in other bytes, one that is too small for any bucket, and a stranger."""
    one, two = source_run("one"), source_run("two")
    write_table(lake, one, [Row("a.jpg", stored(picture(1, 900, 900))), Row("b.jpg", stored(picture(2)))])
    shard(lake, one)
    small = stored(picture(3, 200, 200))
    write_table(
        lake, two, [Row("copy.jpg", stored(picture(1))), Row("small.jpg", small), Row("other.jpg", stored(picture(4)))]
    )
    write_table(lake, source_run("two", "b2"), [Row("other.jpg", stored(picture(5))), Row("again.jpg", small)])


def test_rows_that_are_in_no_part_are_found_with_their_copies(lake: Lake) -> None:
    filled(lake)
    parts = committed_parts(lake, "one")
    asked = [request(("id", "one/a.jpg"), name="a"), request(("url", "https://example.org/small.jpg"), name="b")]
    in_parts = match_parts(lake, parts, asked)
    assert named(in_parts.rows, "request", "id") == {(asked[0].id, "one/a.jpg")}
    rows = match_tables(lake, asked, in_parts.rows)
    assert rows.schema.equals(MATCHED)
    assert named(rows, "request", "id", "how", "part") == {
        (asked[0].id, "one/a.jpg", "key", ""),
        (asked[0].id, "two/copy.jpg", "copy", ""),
        (asked[1].id, "two/small.jpg", "key", ""),
        (asked[1].id, "two/again.jpg", "copy", ""),
    }
    index(lake, source_run("two"))
    assert match_tables(lake, asked, in_parts.rows).equals(rows)


def test_what_matches_in_parts_alone_has_its_copies_found_in_tables(lake: Lake) -> None:
    filled(lake)
    asked = request(("id", "gone/a.jpg"))
    known = match_parts(lake, committed_parts(lake, "one"), [request(("id", "one/a.jpg"))]).rows
    known = known.set_column(0, "request", [[asked.id] * known.num_rows])
    assert named(match_tables(lake, [asked], known), "id", "how") == {("one/a.jpg", "copy"), ("two/copy.jpg", "copy")}


def test_an_id_that_was_delivered_twice_is_there_once(lake: Lake) -> None:
    filled(lake)
    rows = match_tables(lake, [request(("id", "two/other.jpg"))], MATCHED.empty_table())
    assert named(rows, "id") == {"two/other.jpg"}
    assert rows.num_rows == 1


def test_which_row_of_an_id_is_kept_does_not_depend_on_their_order(lake: Lake) -> None:
    """Compaction moves old rows behind newer ones."""
    filled(lake)
    rows = Tables.open(lake).match([request(("id", "two/other.jpg"))], None).rows
    assert rows.num_rows == 2
    assert each_id_once(rows.take([1, 0])).equals(each_id_once(rows))


def test_a_lake_without_tables_has_none(lake: Lake) -> None:
    assert match_tables(lake, [request(("id", "two/other.jpg"))], MATCHED.empty_table()).num_rows == 0
