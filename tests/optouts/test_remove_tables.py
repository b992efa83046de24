"""Rows go from a table with everything that shows they were there, and nobody who writes beside that loses a row."""

from __future__ import annotations

import hashlib
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lance  # noqa: TID253
import pyarrow as pa
import pytest
from lance.commit import CommitConflictError  # noqa: TID253
from lance.file import LanceFileReader  # noqa: TID253
from lance.fragment import write_fragments  # noqa: TID253

from smalti.lake import Lake
from smalti.optouts import remove_tables as module
from smalti.optouts.remove_tables import remove_rows
from smalti.table import store
from smalti.table.fragments import _record_batch
from smalti.table.index import _create, wanted_indices
from smalti.table.schema import table_schema

SCHEMA = table_schema(None)


def rows_of(batch: int, count: int = 8) -> list[dict[str, Any]]:
    """Pictures of every way in which Lance stores one: in the row, in a file with others, in a file of its own."""
    rng = random.Random(batch)
    made = []
    for n in range(count):
        data = rng.randbytes((3_000, 90_000, 5_000_000)[0 if n % 2 else 1 if n or batch else 2])
        said = {
            "id": f"demo/{batch}-{n}.jpg",
            "batch": f"b{batch}",
            "sha256": hashlib.sha256(data).hexdigest(),
            "image": data,
        }
        made.append({
            **said, "source": "demo", "uri": f"file:///of/{batch}-{n}.jpg", "format": "jpeg", "width": 9, "height": 9,
            "bytes": len(data), "caption_source": f"words that are said once {batch}x{n}", "owner": f"owner {batch} {n}",
            "url": f"https://a.org/{batch}/{n}", "url_host": "a.org", "metadata": "{}",
        })  # fmt: skip
    return made


def written(uri: str, rows: list[dict[str, Any]]) -> Any:
    """Fragments that are not committed."""
    batches = pa.RecordBatchReader.from_batches(SCHEMA, [_record_batch(rows, SCHEMA)])
    return write_fragments(batches, uri, schema=SCHEMA, mode="append", data_storage_version=store.STORAGE_VERSION)


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    return [row for batch in range(3) for row in rows_of(batch)]


@pytest.fixture
def uri(tmp_path: Path, rows: list[dict[str, Any]]) -> str:
    """Three fragments with every index."""
    uri = Lake.at(str(tmp_path)).table("demo")
    store.ensure_table(uri, None)
    for batch in range(3):
        store.append_fragments(
            store.open_table(uri), written(uri, [row for row in rows if row["batch"] == f"b{batch}"])
        )
    for column, kind in wanted_indices(store.open_table(uri).schema):
        _create(uri, column, kind)
    return uri


def traces(uri: str, row: dict[str, Any]) -> set[str]:
    """Files of the table that hold anything of a row, looked for in the raw bytes and in the values that they decode to."""
    said = [row[name] for name in ("id", "sha256", "caption_source", "owner", "url", "uri")]
    needles = [each.encode() for each in said] + [row["image"][at : at + 40] for at in (0, 1000, 2500)]
    found = set()
    for path in files(uri):
        data = path.read_bytes()
        if any(needle in data for needle in needles) or any(
            each in values for values in decoded(path) for each in said
        ):
            found.add(str(path))
    return found


def files(uri: str) -> list[Path]:
    return sorted(path for path in Path(uri.removeprefix("file://")).rglob("*") if path.is_file())


def decoded(path: Path) -> Iterator[set[Any]]:
    """The texts of each column, but for a file's pictures: such a file is read a column at a time."""
    if path.suffix != ".lance":
        return
    for names in (None, *([each] for each in SCHEMA.names if each != "image")):
        try:
            table = LanceFileReader(str(path), columns=names).read_all().to_table()
        except ValueError:
            continue
        yield from ({*column.to_pylist()} for column in table.columns if pa.types.is_string(column.type))
        if names is None:
            return


def intact(uri: str, rows: list[dict[str, Any]]) -> None:
    """The table has exactly these rows, with their pictures, and its indices find them."""
    table = store.open_table(uri)
    told = table.to_table(columns=["id", "sha256"]).to_pylist()
    assert sorted(each["id"] for each in told) == sorted(row["id"] for row in rows)
    for at, each in enumerate(told):
        ((_, data),) = table.read_blobs("image", indices=[at])
        assert hashlib.sha256(data).hexdigest() == each["sha256"]
    for row in rows:
        assert table.count_rows(f"id = '{row['id']}'") == 1
        words = table.scanner(columns=["id"], full_text_query=row["caption_source"].split()[-1]).to_table()
        assert words["id"].to_pylist() == [row["id"]]


GONE = {"demo/0-0.jpg", "demo/0-1.jpg", "demo/1-3.jpg", "demo/2-2.jpg"}


@pytest.mark.parametrize("gone", [GONE, {f"demo/1-{n}.jpg" for n in range(8)}], ids=["some", "a whole fragment"])
def test_nothing_of_a_row_is_in_any_file_afterwards(uri: str, rows: list[dict[str, Any]], gone: set[str]) -> None:
    lost = [row for row in rows if row["id"] in gone]
    assert all(traces(uri, row) for row in lost)
    assert remove_rows(uri, sorted(gone)) == len(gone)
    assert [traces(uri, row) for row in lost] == [set()] * len(lost)
    left = [row for row in rows if row["id"] not in gone]
    intact(uri, left)
    before = files(uri)
    assert remove_rows(uri, sorted(gone)) == 0
    assert files(uri) == before


def test_killed_between_any_two_steps_the_next_run_ends_the_same(
    uri: str, rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = [row for row in rows if row["id"] in GONE]
    for step in ("_index_anew", "_compact", "_forget"):
        with monkeypatch.context() as patch:

            def die(*_: object) -> None:
                raise KeyboardInterrupt

            patch.setattr(module, step, die)
            with pytest.raises(KeyboardInterrupt):
                remove_rows(uri, sorted(GONE))
        assert any(traces(uri, row) for row in lost)
    remove_rows(uri, sorted(GONE))
    assert [traces(uri, row) for row in lost] == [set()] * len(lost)
    intact(uri, [row for row in rows if row["id"] not in GONE])


def fold(uri: str, fragment: int) -> Callable[[], None]:
    """A fold that has written its fragment and not committed yet."""
    table = store.open_table(uri)
    some = table.get_fragment(fragment)
    rows = table.scanner(columns=["id"], with_row_id=True, fragments=[some]).to_table()
    after, fields = some.update_columns(
        pa.table([rows["_rowid"], pa.array([512] * rows.num_rows, pa.int32())], names=["_rowid", "tier"])
    )
    change = lance.LanceOperation.Update(updated_fragments=[after], fields_modified=sorted(fields))
    return lambda: lance.LanceDataset.commit(table, change, read_version=table.version)


@pytest.mark.parametrize("later", [False, True])
def test_who_began_before_never_commits_what_brings_a_row_back_or_is_lost(
    uri: str, rows: list[dict[str, Any]], later: bool
) -> None:
    new = rows_of(9)
    table = store.open_table(uri)
    fragments = written(uri, new)
    folds = [fold(uri, 0), fold(uri, 2)]
    remove_rows(uri, sorted(GONE - {"demo/2-2.jpg"}))
    if later:  # another commit after it, so that the last one that they see is harmless
        store.open_table(uri).create_scalar_index("sha256", "BTREE", replace=True)
    writers: list[Callable[[], Any]] = [*folds, lambda: store.append_fragments(table, fragments)]
    for each in writers:
        with pytest.raises(CommitConflictError):
            each()
    store.append_fragments(store.open_table(uri), fragments)  # what it does after the conflict
    left = [row for row in rows if row["id"] not in GONE - {"demo/2-2.jpg"}]
    table = store.open_table(uri)
    assert sorted(table.to_table(columns=["id"])["id"].to_pylist()) == sorted(row["id"] for row in [*left, *new])
    for at in range(table.count_rows()):
        assert table.read_blobs("image", indices=[at])


def test_files_of_a_writer_that_lives_stay_and_what_a_killed_one_left_goes_in_time(
    uri: str, rows: list[dict[str, Any]]
) -> None:
    killed = [row for row in rows if row["id"] in GONE]
    before = {*files(uri)}
    written(uri, killed)
    left = {*files(uri)} - before
    remove_rows(uri, sorted(GONE))
    assert left <= {*files(uri)}
    then = time.time() - 8 * 86400
    for path in left:
        os.utime(path, (then, then))
    remove_rows(uri, sorted(GONE))
    assert not left & {*files(uri)}
