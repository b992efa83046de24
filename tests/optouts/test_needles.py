"""What a request erased is found wherever it stands, and what only looks like it is not."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from smalti import objects
from smalti.errors import ConflictError
from smalti.lake import Lake
from smalti.maintenance.live import References
from smalti.maintenance.marks import refuse_doomed
from smalti.optouts import take_down
from smalti.optouts.heads import BLOCK, Head, condense
from smalti.optouts.keys import key_of
from smalti.optouts.needles import Ids, Removing, Seeker, keep_removing, needle_of, read_removing
from smalti.optouts.remove_small import is_allowed, remove_small
from smalti.optouts.request import Action, Forgotten, Request
from smalti.optouts.scan import scan
from smalti.shards.stage import shard
from smalti.sources.inventory import OBJECTS, Inventory, parquet_bytes, read_inventory
from smalti.table.store import open_table
from tests.conftest import snapshot
from tests.optouts.lakes import NOW
from tests.support.pictures import Row, picture, source_run, stored, write_table

ID = "photos/17"
KEY = key_of("id", ID)
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


def test_what_a_later_run_wants_is_spared_no_more(lake: Lake) -> None:
    """A first run, which was killed, took the picture for a stand-in; the next one knows that it was asked for."""
    picture_, stand_in = (needle_of(stored(picture(n)), "source") for n in (1, 2))
    spared = tuple(sorted({picture_.sha256, picture_.pixels, stand_in.sha256, stand_in.pixels}))
    first = SEEKER.removing.model_copy(update={"spared": spared})
    keep_removing(lake, first)
    now = keep_removing(lake, SEEKER.removing.model_copy(update={"pictures": (picture_,)}))
    assert now == read_removing(lake, now.request)
    assert {*now.spared} == {stand_in.sha256, stand_in.pixels}
    assert {*Seeker(now).whole(stored(picture(1)))} == {"the bytes that were delivered"}
    assert {*Seeker(now).picture(stored(picture(1)), smaller=False)} == {"its pixels"}
    assert keep_removing(lake, first) == now, "whichever is first"


def test_a_reference_may_be_an_id(lake: Lake) -> None:
    """It stands where requests are listed, and in what stays of one."""
    head = Head(id="b" * 16, action=Action.QUERY, reference=ID, submitted=NOW, submitted_by="", keys=1, rejected=0)
    assert condense(lake, [head.model_copy(update={"id": f"{n:016x}"}) for n in range(BLOCK)])
    request = Request(id="b" * 16, action=Action.QUERY, reference=ID, submission="x", submitted=NOW, keys=(KEY,))
    objects.create_bytes(lake.optout_forgotten(request.id), Forgotten.of(request, NOW).encode())
    before = snapshot(lake.root)
    remove_small(lake, SEEKER, References((), ()))
    assert snapshot(lake.root) == before
    found = [each.uri for each in scan(lake, SEEKER).findings]
    assert len(found) == 2
    assert all(is_allowed(lake, uri) for uri in found)


def test_a_curation_goes_whole_and_never_under_a_build(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was known of versions when the removal began is not what counts: a build may have come since."""
    digest = "d" * 64
    uris = [lake.curation("set", digest), lake.curation_rows("set", digest), lake.quarantine_page("set", digest)]
    for uri, data in zip(uris, (b"a header", parquet_bytes(pa.table({"id": [ID]}), {}), b"<p>a page</p>"), strict=True):
        objects.create_bytes(uri, data)
    objects.create_bytes(other := lake.curation("set", "e" * 64), b"another one")
    objects.create_bytes(lake.claim("set", "v1"), b"{}")
    began = References((), ())
    remove_small(lake, SEEKER, began)
    assert all(objects.exists(uri) for uri in uris)
    objects.delete_object(lake.claim("set", "v1"))
    told = []

    def delete(uri: str, generation: str | None = None) -> bool:
        with pytest.raises(ConflictError, match="curate and assemble again"):
            refuse_doomed(lake, uris[:1])
        told.append(uri)
        return deletes(uri, generation)

    deletes = objects.delete_object
    monkeypatch.setattr(objects, "delete_object", delete)
    assert remove_small(lake, SEEKER, began).objects == {"releases": 3}
    assert sorted(told) == sorted(uris)
    refuse_doomed(lake, uris)
    assert [objects.exists(uri) for uri in (*uris, other)] == [False, False, False, True]


def test_what_the_places_hold_is_read_once_however_many_there_are(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of one row is known by its URI from then on; one that holds another row, too, is not."""
    run = source_run("photos")
    write_table(lake, run, [Row(f"{n}", stored(picture(n))) for n in range(4)])
    scans = []

    class Counted:
        def __init__(self, table: Any) -> None:
            self.table = table

        def scanner(self, **asked: Any) -> Any:
            scans.append(asked)
            table = self.table.scanner(**asked).to_table()
            if "uri" in table.schema.names:  # 2 and 3 come from one file
                uris = [f"file:///{min(int(name.rpartition('/')[2]), 2)}" for name in table["id"].to_pylist()]
                table = table.set_column(table.schema.get_field_index("uri"), "uri", pa.array(uris))
            return table_scanner(table)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.table, name)

    def table_scanner(table: pa.Table) -> Any:
        return SimpleNamespace(to_table=lambda: table, to_batches=table.to_batches)

    monkeypatch.setattr(take_down, "open_table", lambda uri: Counted(open_table(uri)))
    places: set[str] = set()
    batches: dict[str, set[str]] = {}
    tasks = [*take_down._delivered(lake, [f"photos/{n}" for n in range(3)], places, batches)]
    assert [len(pictures) for _, _, pictures in tasks] == [3]
    assert places == {hashlib.sha256(f"file:///{n}".encode()).hexdigest() for n in (0, 1)}
    assert batches == {"photos/b1": {"photos/0", "photos/1", "photos/2"}}
    assert len(scans) == 2
