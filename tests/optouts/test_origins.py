"""What is in a table alone counts like a sample: its copies in parts are opted out, whichever of them comes first."""

from __future__ import annotations

from typing import Any

import lance  # noqa: TID253
import pytest

from smalti.curation.readers import Rows
from smalti.images.fingerprint import fingerprint
from smalti.lake import Lake
from smalti.optouts import match, tables
from smalti.optouts.ledger import resolve, settle, state
from smalti.optouts.ledger_rows import read_matched
from smalti.optouts.preview import preview, read_preview
from smalti.optouts.request import Action
from smalti.optouts.watch import load_watch
from smalti.release.optouts import newest_position, read_snapshot
from smalti.settings import OptoutRun
from smalti.shards.stage import shard
from tests.optouts.lakes import ask, take_back
from tests.support.pictures import Row, picture, source_run, stored, write_table


def deliver(lake: Lake, source: str, *rows: Row, batch: str = "b1", sharded: bool = True) -> None:
    run = source_run(source, batch)
    write_table(lake, run, rows)
    if sharded:
        shard(lake, run)


def drop(lake: Lake, source: str, key: str, *, unread: bool = True) -> None:
    """As the fingerprint stage leaves a row that is asked back: by a key, unread, or because of its picture."""
    prints = {"phash": "NULL", "colour": "NULL", "flat": "NULL"} if unread else {}
    lance.dataset(lake.table(source)).update(
        {"drop": "'optout'", "tier": "0", **prints}, where=f"id = '{source}/{key}'"
    )


def opted_out(lake: Lake) -> tuple[set[str], int]:
    """Ids, and places."""
    found = read_snapshot(lake, newest_position(lake))
    return set(found.ids), sum(map(len, found.shards.values()))


def small(seed: int) -> bytes:
    """Too small for any bucket: in no part, and never fingerprinted."""
    return stored(picture(seed, 300, 300))


def test_a_copy_of_what_is_in_a_table_alone_is_opted_out(lake: Lake) -> None:
    deliver(lake, "one", Row("small.jpg", small(1)), Row("own.jpg", stored(picture(2))))
    deliver(lake, "two", Row("copy.jpg", stored(picture(1))), Row("other.jpg", stored(picture(3))))
    request = ask(lake, ("id", "one/small.jpg"))
    run = OptoutRun(request=request)
    preview(lake, run)
    seen = read_preview(lake, request)
    assert seen is not None
    assert (seen.matched, seen.by_key, seen.unmatched, seen.sources) == (1, 0, 0, {"two": 1})

    step = resolve(lake, [request])
    assert step is not None
    assert (step.unmatched, set(step.tables)) == ({request: ()}, {"one", "two"})
    assert opted_out(lake) == ({"one/small.jpg", "two/copy.jpg"}, 1)
    rows = read_matched(lake, state(lake).matched, [request])
    assert rows is not None
    by_id = {row["id"]: row for row in rows.to_pylist()}
    assert (by_id["one/small.jpg"]["part"], by_id["one/small.jpg"]["shard"]) == ("", None)
    assert by_id["one/small.jpg"]["phash"] == by_id["two/copy.jpg"]["phash"]
    assert settle(lake) == step.position, "a second time nothing is new"

    deliver(lake, "three", Row("late.jpg", stored(picture(1, 640, 640))), Row("x.jpg", stored(picture(4))))
    settle(lake)
    assert opted_out(lake) == ({"one/small.jpg", "two/copy.jpg", "three/late.jpg"}, 2)
    resolve(lake, [take_back(lake, request)])
    assert opted_out(lake) == (set(), 0)


def test_an_id_that_waits_to_be_sharded_is_out_of_the_part_that_is_written_later(lake: Lake) -> None:
    deliver(lake, "one", Row("a.jpg", stored(picture(1))), Row("b.jpg", stored(picture(2))), sharded=False)
    resolve(lake, [ask(lake, ("owner", "somebody"), submission="all"), ask(lake, ("id", "one/a.jpg"))])
    assert opted_out(lake) == ({"one/a.jpg", "one/b.jpg"}, 0)
    shard(lake, source_run("one"))
    settle(lake)
    assert opted_out(lake) == ({"one/a.jpg", "one/b.jpg"}, 2)


@pytest.mark.parametrize("unread", [True, False])
def test_what_is_dropped_as_it_comes_has_its_copies_in_older_parts_opted_out(lake: Lake, unread: bool) -> None:
    deliver(lake, "old", Row("copy.jpg", stored(picture(1, 640, 640))), Row("other.jpg", stored(picture(2))))
    request = ask(lake, ("id", "new/a.jpg"))
    resolve(lake, [request])
    assert opted_out(lake) == (set(), 0)
    deliver(lake, "new", Row("a.jpg", stored(picture(1))), Row("b.jpg", stored(picture(3))), sharded=False)
    drop(lake, "new", "a.jpg", unread=unread)
    position = settle(lake)
    assert opted_out(lake) == ({"new/a.jpg", "old/copy.jpg"}, 1)
    assert settle(lake) == position
    watch = load_watch(lake)
    assert watch is not None
    again = fingerprint(picture(1, 900, 900))
    assert watch.knows(again, 900, 900)


def test_a_chain_goes_over_tables_and_parts(lake: Lake) -> None:
    """id -> bytes in a part -> picture of another table -> its bytes in a part."""
    deliver(lake, "one", Row("named.jpg", small(1)))
    deliver(lake, "two", Row("large.jpg", stored(picture(1, 700, 700))))
    deliver(lake, "three", Row("middle.jpg", stored(picture(1), quality=70)), sharded=False)
    deliver(lake, "four", Row("again.jpg", stored(picture(1), quality=70)), Row("no.jpg", stored(picture(5))))
    resolve(lake, [ask(lake, ("url", "https://example.org/named.jpg"), action=Action.ERASE)])
    assert opted_out(lake) == ({"one/named.jpg", "two/large.jpg", "three/middle.jpg", "four/again.jpg"}, 2)


def test_a_key_that_names_what_another_key_names_is_not_said_to_name_nothing(lake: Lake) -> None:
    deliver(lake, "one", Row("a.jpg", small(1), url="https://a.org/1"), sharded=False)
    request = ask(lake, ("id", "one/a.jpg"), ("url", "https://a.org/1"), ("url", "https://a.org/2"))
    preview(lake, OptoutRun(request=request))
    seen = read_preview(lake, request)
    assert seen is not None
    assert seen.unmatched == 1
    step = resolve(lake, [request])
    assert step is not None
    assert step.unmatched == {request: (2,)}


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of tables that were compared, a number for each time."""
    found: list[int] = []
    real = match.match_rows

    def noted(reader: Rows, *arguments: Any, **keywords: Any) -> Any:
        found.append(sum(reader.sizes))
        return real(reader, *arguments, **keywords)

    monkeypatch.setattr(tables, "match_rows", noted)
    return found


def test_what_is_reserved_and_nobody_asked_for_stays_out_of_the_ledger(lake: Lake, compared: list[int]) -> None:
    deliver(lake, "one", Row("a.jpg", stored(picture(1))), Row("b.jpg", stored(picture(2))), sharded=False)
    resolve(lake, [ask(lake, ("id", "one/none.jpg"))])
    drop(lake, "one", "a.jpg")
    compared.clear()
    position = settle(lake)
    assert opted_out(lake) == (set(), 0)
    assert (position, compared) == (2, [1])
    assert (settle(lake), compared) == (2, [1]), "it was compared once"
    drop(lake, "one", "b.jpg")
    assert (settle(lake), compared) == (3, [1, 2])
    assert (settle(lake), len(read_snapshot(lake, 3).ids)) == (3, 0)


def test_tables_that_change_all_the_time_hold_nobody_up(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    deliver(lake, "one", Row("a.jpg", stored(picture(1))), Row("b.jpg", stored(picture(2))), sharded=False)
    resolve(lake, [ask(lake, ("id", "one/none.jpg"))])
    drop(lake, "one", "a.jpg")
    real, looked = tables.Tables.dropped, []

    def changing(self: Any, *arguments: Any) -> Any:
        looked.append(1)
        assert len(looked) < 5
        drop(lake, "one", "a.jpg")
        return real(self, *arguments)

    monkeypatch.setattr(tables.Tables, "dropped", changing)
    assert settle(lake) == 2


def test_who_was_slower_to_find_nothing_leaves_no_step(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    deliver(lake, "one", Row("a.jpg", stored(picture(1))), Row("b.jpg", stored(picture(2))), sharded=False)
    resolve(lake, [ask(lake, ("id", "one/none.jpg"))])
    drop(lake, "one", "a.jpg")
    real, looked = tables.Tables.dropped, []

    def overtaken(self: Any, *arguments: Any) -> Any:
        looked.append(1)
        if len(looked) == 1:
            drop(lake, "one", "b.jpg")
            assert settle(lake) == 2
        return real(self, *arguments)

    monkeypatch.setattr(tables.Tables, "dropped", overtaken)
    assert (settle(lake), len(looked)) == (2, 2)
    assert state(lake).tables == tables.Tables.open(lake).versions


def test_a_picture_that_cannot_be_read_has_copies_by_its_bytes_alone(lake: Lake) -> None:
    broken = small(1)[:600]
    deliver(lake, "one", Row("a.jpg", broken, size=(300, 300)))
    deliver(lake, "two", Row("same.jpg", broken, size=(300, 300)), Row("x.jpg", stored(picture(1))))
    resolve(lake, [ask(lake, ("id", "one/a.jpg"))])
    assert opted_out(lake) == ({"one/a.jpg", "two/same.jpg"}, 0)
