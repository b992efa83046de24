"""Filling in columns: once for each row, whatever dies, beside whoever else writes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import lance  # noqa: TID253
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smalti import objects
from smalti.errors import ConflictError, InputError, LakeError
from smalti.lake import Lake
from smalti.sources.inventory import stage
from smalti.table import columns, store, target
from smalti.table.columns import Chunk, Filled, Filling, Results, backfill
from smalti.table.ingest import ingest
from smalti.table.target import PROFILE, batch_table, chunk_digest
from tests.sources.making import Made, picture, rows_of, simple

asked: list[str] = []
"""Ids that `measure` was asked about."""


def measure(chunk: Chunk, factor: int) -> Results:
    """The number of bytes of each picture, times a factor."""
    ids = chunk.rows["id"].to_pylist()
    asked.extend(ids)
    sizes: list[int | None] = [None] * len(ids)
    for index, data in chunk.images(range(len(ids))):
        sizes[index] = len(data) * factor
    return {
        "size": sizes,
        "word": [f"{name} is {n}" for name, n in zip(ids, sizes, strict=True)],
        "detail": ["x"] * len(ids),
    }


def filling(
    digest: str = "one", factor: int = 1, only: Callable[[pa.Table], Any] | None = None, size: int = 3
) -> Filling:
    meta = {PROFILE: digest}
    return Filling(
        stage="measure",
        profile="ruler",
        digest=digest,
        outputs=pa.schema([pa.field("size", pa.uint64(), metadata=meta), pa.field("word", pa.string(), metadata=meta)]),
        marker="size",
        inputs=("width",),
        eligible=only or (lambda rows: pc.is_valid(rows["id"])),
        compute=measure,
        settings=factor,
        chunk_rows=lambda _: size,
    )


@pytest.fixture
def made(tmp_path: Any) -> Made:
    """Eight pictures."""
    return simple(f"file://{tmp_path}/source", 8)


@pytest.fixture
def table(lake: Lake, made: Made) -> str:
    """Their table, whose rows are in several fragments."""
    asked.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("smalti.sources.files.GROUP_ROWS", 3)
        add(lake, made, "b1")
    assert len(lance.dataset(lake.table("made")).get_fragments()) == 3
    return lake.table("made")


def add(lake: Lake, made: Made, batch: str) -> None:
    stage(lake, made.run(batch))
    ingest(lake, made.run(batch))


def sizes(lake: Lake) -> dict[str, int | None]:
    return {row["id"]: row["size"] for row in rows_of(lake, "made", "size")}


def expected(count: int = 8) -> dict[str, int]:
    return {f"made/p{n}.jpg": len(picture(n)) for n in range(count)}


def hashes(uri: str) -> dict[str, str]:
    found = lance.dataset(uri)
    rows = found.scanner(columns=["id"], with_row_id=True).to_table()
    blobs = found.read_blobs("image", ids=rows["_rowid"], preserve_order=True)
    return {
        name: hashlib.sha256(data).hexdigest() for name, (_, data) in zip(rows["id"].to_pylist(), blobs, strict=True)
    }


def other_columns(uri: str) -> pa.Table:
    found = lance.dataset(uri)
    names = [name for name in found.schema.names if name not in ("image", "size", "word")]
    return found.to_table(columns=names).sort_by([("batch", "ascending"), ("id", "ascending")])


def test_rows_are_filled_in_and_nothing_else_is_touched(lake: Lake, table: str) -> None:
    before = (hashes(table), other_columns(table))
    assert backfill(lake, "made", "b1", filling()) == Filled(computed=8, resumed=0)
    assert sizes(lake) == expected()
    assert (hashes(table), other_columns(table)) == before


def test_a_second_run_asks_nothing_and_commits_nothing(lake: Lake, table: str) -> None:
    backfill(lake, "made", "b1", filling())
    version = lance.dataset(table).version
    assert backfill(lake, "made", "b1", filling()) == Filled(0, 0)
    assert (len(asked), lance.dataset(table).version) == (8, version)


def test_a_chunk_holds_so_many_rows_and_one_commit_folds_them(lake: Lake, table: str) -> None:
    backfill(lake, "made", "b1", filling())
    kept = [info.uri for info in objects.list_objects(f"{lake.root}/progress/made/measure/ruler")]
    assert len(kept) == 3
    operations = [t.operation for t in lance.dataset(table).get_transactions(recent_transactions=10)]
    assert sum(isinstance(each, lance.LanceOperation.Update) for each in operations if each) == 1


def test_only_eligible_rows_of_the_batch_are_done(lake: Lake, made: Made, table: str) -> None:
    made.put("images/p8.jpg", picture(8))
    made.table([{"file": f"p{n}.jpg", "caption": ""} for n in range(9)])
    add(lake, made, "b2")
    backfill(lake, "made", "b1", filling(only=lambda rows: pc.not_equal(rows["id"], "made/p5.jpg")))
    assert {name for name, size in sizes(lake).items() if size is None} == {"made/p5.jpg", "made/p8.jpg"}


def test_without_a_table_there_is_nothing_to_do(lake: Lake) -> None:
    assert backfill(lake, "made", "b1", filling()) == Filled(0, 0)
    assert batch_table(lake.table("made"), "b1", ["id"]) is None


DEATHS = [
    ("before add_columns", store, "ensure_columns", False, 0),
    ("after add_columns", store, "ensure_columns", True, 0),
    ("in the second chunk", columns, "_work_out", False, 1),
    ("after the second chunk", columns, "_work_out", True, 1),
    ("before the second checkpoint", objects, "create_bytes", False, 1),
    ("after the second checkpoint", objects, "create_bytes", True, 1),
    ("before the fold", columns, "fold", False, 0),
    ("in the second fragment", target, "_fold_fragment", False, 1),
    ("after the last fragment", target, "_fold_fragment", True, 2),
    ("before the commit", lance.LanceDataset, "commit", False, 0),
    ("after the commit", lance.LanceDataset, "commit", True, 0),
]


@pytest.mark.parametrize(("owner", "name", "after", "nth"), [d[1:] for d in DEATHS], ids=[d[0] for d in DEATHS])
def test_a_run_that_dies_anywhere_is_completed_and_asks_no_recorded_row_again(
    lake: Lake, table: str, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, after: bool, nth: int
) -> None:
    real, calls = getattr(owner, name), []

    def dying(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        dies = len(calls) == nth + 1
        if dies and not after:
            raise KeyboardInterrupt
        result = real(*args, **kwargs)
        if dies:
            raise KeyboardInterrupt
        return result

    before = hashes(table)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, staticmethod(dying) if owner is lance.LanceDataset else dying)
        with pytest.raises(KeyboardInterrupt):
            backfill(lake, "made", "b1", filling())
    recorded = recorded_rows(lake)
    filled = backfill(lake, "made", "b1", filling())
    assert sizes(lake) == expected()
    assert hashes(table) == before
    assert all(asked.count(row) == 1 for row in recorded)
    assert filled.computed == 8 - len(recorded)


def recorded_rows(lake: Lake) -> list[str]:
    uris = [info.uri for info in objects.list_objects(f"{lake.root}/progress/made/measure/ruler")]
    return [row for uri in uris for row in target.read_checkpoint(uri)["id"].to_pylist()]


def test_a_compute_that_fails_keeps_what_was_done(lake: Lake, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(chunk: Chunk, factor: int) -> Results:
        if "made/p4.jpg" in chunk.rows["id"].to_pylist():
            raise LakeError("the engine is gone", "engine", "Start it")
        return measure(chunk, factor)

    broken = filling()
    object.__setattr__(broken, "compute", failing)
    with pytest.raises(LakeError, match="the engine is gone"):
        backfill(lake, "made", "b1", broken)
    assert backfill(lake, "made", "b1", filling()) == Filled(computed=5, resumed=3)
    assert sorted(asked) == sorted(expected())


def race(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], Any], times: int = 1) -> None:
    """Do something after the fragments were written and before they are committed."""
    real = target._fold_fragment
    raced: list[bool] = []

    def fold(task: Any) -> Any:
        written = real(task)
        if task.fragment == 2 and len(raced) < times:
            raced.append(True)
            meanwhile()
        return written

    monkeypatch.setattr(target, "_fold_fragment", fold)


def test_rows_appended_meanwhile_are_kept(lake: Lake, made: Made, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made.put("images/p8.jpg", picture(8))
    made.table([{"file": f"p{n}.jpg", "caption": ""} for n in range(9)])
    written: list[int] = []
    real = target._fold_fragment

    def counted(task: Any) -> Any:
        written.append(task.fragment)
        return real(task)

    monkeypatch.setattr(target, "_fold_fragment", counted)
    race(monkeypatch, lambda: add(lake, made, "b2"))
    backfill(lake, "made", "b1", filling())
    assert sizes(lake) == {**expected(), "made/p8.jpg": None}
    assert sorted(written) == [0, 1, 2]  # the append left these as they were: nothing was written twice
    backfill(lake, "made", "b2", filling())
    assert sizes(lake) == expected(9)


def test_a_compaction_meanwhile_only_makes_it_fold_again(
    lake: Lake, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = hashes(table)
    race(monkeypatch, lambda: lance.dataset(table).optimize.compact_files(target_rows_per_fragment=100))
    backfill(lake, "made", "b1", filling())
    assert sizes(lake) == expected()
    assert len(lance.dataset(table).get_fragments()) == 1
    assert hashes(table) == before
    assert len(asked) == 8


def test_two_runs_at_once_fill_in_once(lake: Lake, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    race(monkeypatch, lambda: backfill(lake, "made", "b1", filling()))
    assert backfill(lake, "made", "b1", filling()) == Filled(computed=8, resumed=0)
    assert sizes(lake) == expected()
    assert len(asked) == 8


def test_another_column_filled_in_meanwhile_is_kept(lake: Lake, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    other = filling()
    meta = {PROFILE: "two"}
    object.__setattr__(other, "outputs", pa.schema([pa.field("length", pa.int64(), metadata=meta)]))
    object.__setattr__(other, "marker", "length")
    object.__setattr__(other, "stage", "other")
    object.__setattr__(other, "digest", "two")
    object.__setattr__(other, "compute", lambda chunk, _: {"length": [7] * chunk.rows.num_rows})
    race(monkeypatch, lambda: backfill(lake, "made", "b1", other))
    backfill(lake, "made", "b1", filling())
    assert sizes(lake) == expected()
    assert {row["length"] for row in rows_of(lake, "made", "length")} == {7}


def test_writers_that_never_stop_end_in_one_line_and_keep_the_checkpoints(
    lake: Lake, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smalti.table.store.time.sleep", lambda _: None)
    numbers = iter(range(100))
    real = target._scan

    def scan(*args: Any, **kwargs: Any) -> pa.Table:
        rows = real(*args, **kwargs)
        if len(asked) == 8:
            store.ensure_columns(table, pa.schema([(f"c{next(numbers)}", pa.string())]))
        return rows

    with monkeypatch.context() as patch:
        patch.setattr(target, "_scan", scan)
        with pytest.raises(ConflictError, match="other writers committed first"):
            backfill(lake, "made", "b1", filling())
    assert backfill(lake, "made", "b1", filling()) == Filled(computed=0, resumed=8)
    assert sizes(lake) == expected()


def test_a_profile_that_changed_under_its_name_is_refused(lake: Lake, table: str) -> None:
    backfill(lake, "made", "b1", filling())
    with pytest.raises(InputError, match=r"column size was filled by profile 'ruler' as it was before") as raised:
        backfill(lake, "made", "b1", filling("two"))
    assert "another name" in str(raised.value)


def test_checkpoints_of_another_digest_are_not_used(lake: Lake, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(columns, "fold", lambda *_: None)
        backfill(lake, "made", "b1", filling())
    lance.dataset(table).drop_columns(["size", "word"])
    assert backfill(lake, "made", "b1", filling("two", factor=2)).computed == 8
    assert sizes(lake) == {name: 2 * size for name, size in expected().items()}


ROWS = st.lists(st.tuples(st.text("ab", min_size=1, max_size=2), st.text("01", min_size=1, max_size=2)), max_size=3)


@settings(deadline=None)
@given(ROWS, ROWS, st.sampled_from(["p", "q"]), st.sampled_from(["p", "q"]))
def test_a_chunk_is_named_by_its_rows_bytes_and_profile(
    one: list[tuple[str, str]], two: list[tuple[str, str]], p: str, q: str
) -> None:
    def table(rows: list[tuple[str, str]]) -> pa.Table:
        return pa.table({
            "id": pa.array([r[0] for r in rows], "string"),
            "sha256": pa.array([r[1] for r in rows], "string"),
        })

    same = (one, p) == (two, q)
    assert (chunk_digest(p, table(one)) == chunk_digest(q, table(two))) == same


def test_lake_errors_are_one_line(lake: Lake, table: str) -> None:
    path = objects.local_path(f"{lake.root}/progress")
    assert path is not None
    path.write_text("a file where the checkpoints should be")
    with pytest.raises(LakeError) as raised:
        backfill(lake, "made", "b1", filling())
    assert "\n" not in str(raised.value)
    assert "size" not in lance.dataset(table).schema.names
