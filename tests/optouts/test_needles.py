"""What a request erased is found wherever it stands, and what only looks like it is not."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from smalti import objects
from smalti.lake import Lake
from smalti.maintenance.live import References
from smalti.optouts.needles import Ids, Removing, Seeker
from smalti.optouts.remove_small import remove_small
from smalti.optouts.scan import scan
from smalti.shards.stage import shard
from smalti.sources.inventory import OBJECTS, Inventory, read_inventory
from tests.support.pictures import Row, picture, source_run, stored, write_table

ID = "photos/17"
SEEKER = Seeker(Removing(request="a" * 16, begun=datetime(2026, 1, 1, tzinfo=UTC), ids=(ID, "photos/a b.jpg")))

TEXTS = [
    (ID, "value"),
    (f"{ID}: odd", "word"),
    (f"see ({ID}), and go on.", "word"),
    (f"https://example.org/{ID}", "word"),
    (f"cannot read gs://bucket/raw/{ID} at 3", "word"),
    (f"/data/{ID}", "word"),
    (f"<a href='{ID}'>", "word"),
    ("of photos/a b.jpg or so", "word"),
    (f"web/{ID}", "anywhere"),
    (f"in web/2026/{ID} it is", "anywhere"),
    (f"my{ID}", "anywhere"),
    (f"{ID}0", "anywhere"),
    (f"{ID}.png", "anywhere"),
    (f"{ID}/0", "anywhere"),
    ("photos/18", None),
]
"""A text, and the strictest way to look at it by which it names one."""


@pytest.mark.parametrize(("text", "strictest"), TEXTS)
def test_an_id_counts_where_it_is_one(text: str, strictest: Ids | None) -> None:
    ways: list[Ids] = ["value", "word", "anywhere"]
    expected = ways[ways.index(strictest) :] if strictest else []
    assert [way for way in ways if {*SEEKER.text(text, way)}] == expected


def test_rows_of_other_pictures_whose_url_ends_with_an_id_stay_and_hold_up_nothing(lake: Lake) -> None:
    run = source_run("web")
    url = f"https://example.org/{ID}"
    write_table(lake, run, [Row(ID, stored(picture(1)), url=url, source_caption=f"see {ID}", owner=url)])
    shard(lake, run)
    uri = lake.inventory("web", "b1")
    rows = [{"uri": url, "generation": "1", "size": 1, "crc32c": ""}]
    listed = Inventory(OBJECTS.empty_table().from_pylist(rows, OBJECTS), "https://example.org", None, "", None, 1, ())
    objects.create_bytes(uri, listed.encoded())
    removed = remove_small(lake, SEEKER, References((), ()))
    assert (removed.objects, removed.rewritten) == ({}, {})
    assert read_inventory(lake, "web", "b1") == listed
    assert scan(lake, SEEKER).findings == ()


def test_an_id_that_is_a_value_of_a_row_is_found(lake: Lake) -> None:
    run = source_run("photos")
    write_table(lake, run, [Row("17", stored(picture(1))), Row("18", stored(picture(2)))])
    shard(lake, run)
    found = {each.uri.removeprefix(f"{lake.root}/").split("/")[0] for each in scan(lake, SEEKER).findings}
    assert found == {"parts", "tables"}
