"""What indices of tables find is what whole tables have."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace

import lance  # noqa: TID253
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from smalti.lake import Lake
from smalti.objects import local_path
from smalti.optouts import indexed
from smalti.optouts.direct import Direct
from smalti.optouts.match import match_parts
from smalti.optouts.matched import MATCHED
from smalti.optouts.request import Request
from smalti.optouts.table_reader import COLUMNS, TableReader
from smalti.optouts.tables import Tables
from smalti.optouts.urls import WHITE
from smalti.shards.samples import SCHEMA
from smalti.table.fragments import url_host
from tests.optouts.making import Sample, request
from tests.optouts.test_match_slowly import PARTS, made, requests


def put_table(lake: Lake, source: str, fragments: Sequence[Sequence[Sample]], indices: bool) -> None:
    """The columns of a table that matching reads, a fragment at a time; the last one comes after the indices."""
    schema = pa.schema([SCHEMA.field(name).with_nullable(True) for name in COLUMNS])
    path = str(local_path(lake.table(source)))
    for number, rows in enumerate(fragments):
        if indices and number and number == len(fragments) - 1:
            for column in ("id", "sha256", "owner"):
                lance.dataset(path).create_scalar_index(column, "BTREE")
        values = [
            {
                "id": f"{source}/{each.key}", "sha256": each.sha256, "phash": each.phash, "colour": each.colour, "flat": each.flat,
                "width": each.size[0], "height": each.size[1], "owner": each.owner, "url": each.url, "url_host": url_host(each.url),
            }
            for each in rows
        ]  # fmt: skip
        lance.write_dataset(pa.Table.from_pylist(values, schema), path, mode="append" if number else "create")


def read_sparingly(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The columns that whole tables are read of from now on."""
    read: list[tuple[str, ...]] = []
    real = TableReader._table

    def table(self: TableReader, part: int, columns: Sequence[str], *given: int, **named: bool) -> pa.Table:
        read.append(tuple(columns))
        return real(self, part, columns, *given, **named)

    monkeypatch.setattr(TableReader, "_table", table)
    return read


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(PARTS, PARTS, requests(), st.booleans(), st.booleans())
def test_it_is_what_whole_tables_have(
    rows: list[tuple[str, list[Sample]]],
    parts: list[tuple[str, list[Sample]]],
    asked: list[Request],
    has_indices: bool,
    deleted: bool,
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        lake = Lake.at(folder)
        for source in ("s1", "s2"):
            hashed = [[replace(each, phash=each.phash or 0) for each in some] for name, some in rows if name == source]
            if hashed:
                put_table(lake, source, hashed, has_indices)
                if deleted:
                    lance.dataset(str(local_path(lake.table(source)))).delete("id LIKE '%k2'")
        known = match_parts(lake, made(lake, parts)[0], asked).rows
        tables = Tables.open(lake)
        few = tables.match(asked, known).rows
        patch.setattr(indexed, "SMALL", 0)
        assert few.equals(tables.match(asked, known).rows)


def test_whole_tables_are_read_for_their_hashes_alone(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    many = [Sample(f"n{n}", n, phash=n * 0x9E3779B97F4A7C15 % 2**64) for n in range(200)]
    again = many[7].phash or 0
    copies = [Sample("copy", 7, phash=again), Sample("again", "encoded", phash=again ^ 1), Sample("k7", 3)]
    put_table(lake, "s1", [many, copies], indices=True)
    read = read_sparingly(monkeypatch)
    for key, expected, columns in (
        (("id", "s1/n7"), {"s1/n7", "s1/copy", "s1/again"}, {"phash", "flat"}),
        (("sha256", many[9].sha256), {"s1/n9"}, {"phash", "flat"}),
        (("owner", "nobody"), set(), set()),
    ):
        found = Tables.open(lake).match([request(key)], None).rows
        assert set(found["id"].to_pylist()) == expected
        assert {column for some in read for column in some} == columns
        read.clear()


def test_an_owner_is_found_as_everywhere_whatever_is_around_the_name(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any character that `str.strip` takes away, one or more, before or behind or both; others are other names."""
    names = ["Ann", *(f"{c}Ann" for c in WHITE), *(f"Ann{c}" for c in WHITE), *(f"{c}\t Ann {c}" for c in WHITE)]
    others = ["Ann\0", "\0Ann", "An", "Ann!", "Anna", "ann", "!Ann", "\u200bAnn", "Ann\u200b", "A nn", " ", "", None]
    rows = [
        Sample(f"n{n}", n, phash=(n + 1) * 0x9E3779B97F4A7C15 % 2**64, owner=name)
        for n, name in enumerate([*names, *others])
    ]
    put_table(lake, "s1", [rows[::2], rows[1::2], [Sample("last", 999, phash=5, owner="\u3000Ann")]], indices=True)
    read = read_sparingly(monkeypatch)
    found = Tables.open(lake).match([request(("owner", "Ann"))], None).rows
    assert set(found["id"].to_pylist()) == {"s1/last", *(f"s1/n{n}" for n in range(len(names)))}
    assert ("owner",) not in read, "by the index"
    monkeypatch.setattr(indexed, "HELD", 40)
    assert Tables.open(lake).match([request(("owner", "Ann"))], None).rows.equals(found)
    assert ("owner",) in read, "too many are held: whole tables are read"


def test_where_too_much_would_be_held_whole_tables_are_read(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    put_table(lake, "s1", [[Sample(f"n{n}", n, phash=5) for n in range(30)]], indices=False)
    monkeypatch.setattr(indexed, "HELD", 10)
    assert indexed.Indexed(Tables.open(lake).tables).reach([request(("id", "s1/n7"))], MATCHED.empty_table()) is None
    found = Tables.open(lake).match([request(("id", "s1/n7"))], None).rows
    assert found.num_rows == 30


def test_keys_of_many_are_no_keys_of_few(lake: Lake) -> None:
    put_table(lake, "s1", [[Sample("n", 1, phash=5)]], indices=False)
    asked = request(*(("id", f"s1/{n}") for n in range(indexed.SMALL + 1)))
    assert Direct.of([asked]).keys.height > indexed.SMALL
    assert indexed.Indexed(Tables.open(lake).tables).reach([asked], MATCHED.empty_table()) is None
