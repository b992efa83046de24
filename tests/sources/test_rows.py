"""How a source's columns become the common row, and what is refused before anything is written."""

from __future__ import annotations

import datetime
import json

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smalti.config import Columns
from smalti.errors import InputError
from smalti.sources.rows import check_keys, embedding_size, map_columns, split_evenly, to_fields

TABLE = pa.table({"file": ["a", "b"], "text": ["x", " "], "n": [1, 2], "v": [[1.0, 2.0], [3.0, 4.0]]})


def keys(*values: str | None) -> pa.ChunkedArray:
    return pa.chunked_array([values], pa.string())


def test_mapped_columns_become_fields_and_blank_texts_null() -> None:
    columns = Columns(key="file", caption="text", embedding="v", metadata=("n",))
    rows = to_fields(TABLE, map_columns(TABLE.schema, columns, "t")).to_pylist()
    assert [row["caption"] for row in rows] == ["x", None]
    assert [row["metadata"] for row in rows] == ['{"n":1}', '{"n":2}']
    assert rows[0]["embedding"] == [1.0, 2.0]
    assert rows[0]["owner"] is None


def test_a_column_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(InputError, match=r"t\.csv: the table has no column 'captoin'.*the table has 'file', 'text'"):
        map_columns(TABLE.schema, Columns(key="file", caption="captoin"), "t.csv")


@pytest.mark.parametrize(
    ("others", "kept"), [("keep", {"n": 1, "v": [1.0, 2.0]}), ("ignore", {})], ids=["keep", "ignore"]
)
def test_columns_nobody_named_are_kept_or_ignored_as_told(others: str, kept: dict[str, object]) -> None:
    columns = Columns.model_validate({"key": "file", "caption": "text", "others": others})
    rows = to_fields(TABLE, map_columns(TABLE.schema, columns, "t")).to_pylist()
    assert json.loads(rows[0]["metadata"]) == kept


def test_columns_nobody_named_are_refused_by_default() -> None:
    with pytest.raises(InputError, match="does not name: 'n', 'v'"):
        map_columns(TABLE.schema, Columns(key="file", caption="text"), "t")


@pytest.mark.parametrize("field", ["caption", "key", "image"])
def test_a_column_of_the_wrong_type_is_refused(field: str) -> None:
    columns = Columns.model_validate({"key": "file", "others": "ignore", field: "v"})
    with pytest.raises(InputError, match=f"column 'v' cannot be the {field}: it holds list<"):
        map_columns(TABLE.schema, columns, "t")


def test_a_key_is_never_a_float() -> None:
    with pytest.raises(InputError, match="cannot be the key: it holds double"):
        map_columns(pa.schema([("k", pa.float64())]), Columns(key="k"), "t")


def test_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(InputError, match="two columns 'file'"):
        map_columns(pa.schema([("file", pa.string()), ("file", pa.string())]), Columns(key="file"), "t")


def test_metadata_says_in_json_what_json_cannot() -> None:
    table = pa.table({
        "file": ["a"],
        "when": [datetime.datetime(2020, 1, 2, 3, 4, 5)],
        "nan": [float("nan")],
        "raw": [b"\x00\xff"],
        "deep": [{"x": [1, None]}],
    })
    columns = Columns(key="file", others="keep")
    row = to_fields(table, map_columns(table.schema, columns, "t")).to_pylist()[0]
    assert json.loads(row["metadata"]) == {
        "when": "2020-01-02T03:04:05", "nan": None, "raw": "AP8=", "deep": {"x": [1, None]},
    }  # fmt: skip


def test_duplicate_keys_are_counted_and_named() -> None:
    with pytest.raises(InputError, match="2 keys stand more than once: 'a', 'b'"):
        check_keys(keys("b", "a", "a", "b", "b", "c"), "t", paths=False)


def test_rows_without_a_key_are_counted() -> None:
    with pytest.raises(InputError, match="2 rows have no key"):
        check_keys(keys("a", None, None), "t", paths=False)


@pytest.mark.parametrize("key", ["", " a", "a\n", "a\x00b", "x" * 513])
def test_keys_that_cannot_name_a_row_are_refused(key: str) -> None:
    with pytest.raises(InputError, match="1 keys cannot be used"):
        check_keys(keys("fine", key), "t", paths=False)


@pytest.mark.parametrize("key", ["../up.jpg", "/abs.jpg", "a//b.jpg", "./a.jpg", "a/..", "a/"])
def test_keys_that_leave_the_image_folder_are_refused(key: str) -> None:
    with pytest.raises(InputError, match="below the image folder"):
        check_keys(keys("fine.jpg", key), "t", paths=True)
    if not key.startswith(" "):
        check_keys(keys(key), "t", paths=False)  # elsewhere a key is only a name


def test_embeddings_of_two_lengths_are_refused() -> None:
    assert embedding_size(pa.array([[1.0, 2.0], None], pa.list_(pa.float32())), "t") == 2
    assert embedding_size(pa.array([None], pa.list_(pa.float32())), "t") is None
    with pytest.raises(InputError, match="different lengths: 1, 2"):
        embedding_size(pa.array([[1.0, 2.0], [1.0]], pa.list_(pa.float32())), "t")


@settings(deadline=None)
@given(st.lists(st.integers(0, 100)), st.integers(1, 5), st.integers(1, 200))
def test_groups_hold_every_row_once_and_keep_their_bounds(sizes: list[int], rows: int, limit: int) -> None:
    runs = split_evenly(sizes, rows, limit)
    assert [i for a, b in runs for i in range(a, b)] == list(range(len(sizes)))
    assert all(b - a == 1 or (b - a <= rows and sum(sizes[a:b]) <= limit) for a, b in runs)
