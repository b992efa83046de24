"""Ingest: rows into the table, once."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance  # noqa: TID253
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from smalti import objects
from smalti.config import Columns
from smalti.errors import ConflictError, InputError, LakeError
from smalti.lake import Lake
from smalti.sources.inventory import stage
from smalti.stores.faults import lake_errors
from smalti.stores.files import Files
from smalti.table import ingest as module
from smalti.table import store
from smalti.table.ingest import IngestReport, ingest
from tests.conftest import snapshot
from tests.sources.making import Made, picture, rejects_of, rows_of, simple


def run_batch(lake: Lake, made: Made, batch: str = "b1") -> IngestReport:
    stage(lake, made.run(batch))
    return ingest(lake, made.run(batch))


def blobs_of(lake: Lake, source: str = "made") -> dict[str, bytes]:
    table = lance.dataset(lake.table(source))
    rows = table.scanner(columns=["id"], with_row_id=True).to_table()
    blobs = table.read_blobs("image", ids=rows["_rowid"], preserve_order=True)
    return {name: bytes(data) for name, (_, data) in zip(rows["id"].to_pylist(), blobs, strict=True)}


def test_a_row_keeps_the_bytes_as_delivered_and_what_the_source_says(lake: Lake, made: Made) -> None:
    made.put("images/p0.jpg", picture(0, 640, 480, "PNG"))  # the name says jpg
    made.table(
        [
            {
                "file": f"p{n}.jpg",
                "caption": f" picture {n} ",
                "who": "me",
                "url": "https://Example.com:8/x",
                "lic": "",
                "k": n,
            }
            for n in range(4)
        ],
        "jsonl",
    )
    columns = Columns(key="file", caption="caption", owner="who", url="url", licence="lic", metadata=("k",))
    made.config |= {"columns": columns, "licence": "CC0"}
    report = run_batch(lake, made)
    assert (report.rows_in, report.rows_out, report.dropped) == (4, 4, {})
    names = lance.dataset(lake.table("made")).schema.names
    row = rows_of(lake, "made", *(name for name in names if name not in ("image", "id", "batch")))[0]
    data = picture(0, 640, 480, "PNG")
    assert row == {
        "id": "made/p0.jpg", "source": "made", "batch": "b1", "uri": f"{made.root}/images/p0.jpg",
        "format": "png", "width": 640, "height": 480, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(),
        "caption_source": "picture 0", "owner": "me", "licence": "CC0", "url": "https://Example.com:8/x",
        "url_host": "example.com", "metadata": '{"k":0}', "phash": None, "colour": None, "flat": None,
        "unstable": None, "tier": None, "ar": None, "drop": None,
    }  # fmt: skip
    assert blobs_of(lake)["made/p0.jpg"] == data


def test_size_is_that_of_the_upright_picture(lake: Lake, made: Made) -> None:
    tags = Image.Exif()
    tags[0x0112] = 6
    out = io.BytesIO()
    Image.new("RGB", (600, 400)).save(out, "JPEG", exif=tags)
    made.put("images/p0.jpg", out.getvalue())
    run_batch(lake, made)
    row = rows_of(lake, "made", "width", "height")[0]
    assert (row["width"], row["height"]) == (400, 600)


def test_every_input_is_in_the_table_or_rejected_with_its_reason(lake: Lake, made: Made) -> None:
    bad = {
        "cut.jpg": (picture(5)[:-900], "truncated"),
        "text.jpg": (b"just words", "not_an_image"),
        "empty.jpg": (b"", "empty"),
        "x.pdf": (b"%PDF-1.7 ...", "unsupported_format"),
        "huge.png": (picture(6, 700, 700, "PNG"), "too_many_pixels"),
    }
    for name, (data, _) in bad.items():
        made.put(f"images/{name}", data)
    made.put("images/orphan.jpg", picture(7))
    made.table([{"file": f, "caption": ""} for f in [*bad, "gone.jpg", *(f"p{n}.jpg" for n in range(4))]])
    made.config["max_pixels"] = 400_000
    report = run_batch(lake, made)
    expected = {name: reason for name, (_, reason) in bad.items()}
    expected |= {"gone.jpg": "missing_object", "orphan.jpg": "no_table_row"}
    assert dict(rejects_of(lake, "made", "b1")) == expected
    assert report.dropped == dict.fromkeys(sorted(expected.values()), 1)
    assert (report.rows_in, report.rows_out) == (11, 4)
    assert [row["id"] for row in rows_of(lake, "made")] == [f"made/p{n}.jpg" for n in range(4)]


def test_a_second_run_reports_the_same_and_changes_nothing(lake: Lake, made: Made) -> None:
    first, before = run_batch(lake, made), snapshot(lake.root)
    assert run_batch(lake, made) == first
    assert snapshot(lake.root) == before


def test_the_same_batch_gives_the_same_rows_in_the_same_order(tmp_path: Path, made: Made) -> None:
    orders = []
    for name in ("one", "two"):
        lake = Lake.at(str(tmp_path / name))
        run_batch(lake, made)
        orders.append(lance.dataset(lake.table("made")).to_table(columns=["id", "sha256"]).to_pylist())
    assert orders[0] == orders[1]


def test_a_key_delivered_again_is_appended_only_with_other_bytes(lake: Lake, made: Made) -> None:
    run_batch(lake, made)
    made.put("images/p1.jpg", picture(1))  # a new generation of the same bytes
    made.put("images/p2.jpg", picture(77))
    report = run_batch(lake, made, "b2")
    assert (report.rows_in, report.rows_out, report.dropped) == (2, 1, {"unchanged": 1})
    made.put("images/p2.jpg", picture(2))  # back again: what counts is the row that came last
    assert run_batch(lake, made, "b3").rows_out == 1
    hashes = [row["sha256"] for row in rows_of(lake, "made", "sha256") if row["id"] == "made/p2.jpg"]
    assert hashes == [hashlib.sha256(picture(n)).hexdigest() for n in (2, 77, 2)]


def test_nothing_new_leaves_the_table_as_it_is(lake: Lake, made: Made) -> None:
    run_batch(lake, made)
    version = lance.dataset(lake.table("made")).version
    report = run_batch(lake, made, "b2")
    assert (report.rows_in, report.rows_out) == (0, 0)
    assert lance.dataset(lake.table("made")).version == version


def test_a_batch_of_rejects_only_leaves_a_table_without_rows(lake: Lake, made: Made) -> None:
    for n in range(4):
        made.put(f"images/p{n}.jpg", b"no picture")
    report = run_batch(lake, made)
    assert (report.rows_out, report.dropped) == (0, {"not_an_image": 4})
    assert rows_of(lake, "made") == []


@pytest.mark.parametrize("change", ["other", "gone"])
def test_an_object_that_changed_after_staging_is_rejected(lake: Lake, made: Made, change: str) -> None:
    stage(lake, made.run())
    if change == "gone":
        made.remove("images/p1.jpg")
    else:
        made.put("images/p1.jpg", picture(50))
    report = ingest(lake, made.run())
    assert (report.rows_out, report.dropped) == (3, {"changed_object": 1})


def refuse(monkeypatch: pytest.MonkeyPatch, is_refused: Callable[[str], bool]) -> None:
    """Reading such an object fails as on a disk that denies it. (Tests run as root, whom no file mode stops.)"""
    read = Files.read_versioned

    def reading(self: Any, uri: str) -> tuple[bytes, str] | None:
        with lake_errors(uri):
            if is_refused(uri):
                raise PermissionError(13, "Permission denied")
        return read(self, uri)

    monkeypatch.setattr(Files, "read_versioned", reading)


def test_one_object_that_may_not_be_read_is_rejected_and_named(
    lake: Lake, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, lambda uri: uri.endswith("p1.jpg"))
    report = run_batch(lake, made)
    assert report.dropped == {"unreadable_object": 1}
    assert report.warnings == (
        f"1 objects could not be read, the first is {made.root}/images/p1.jpg: Permission denied",
    )


def test_an_object_that_may_be_read_at_last_comes_with_the_next_batch(
    lake: Lake, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as refusing:
        refuse(refusing, lambda uri: uri.endswith("p1.jpg"))
        run_batch(lake, made)
    assert run_batch(lake, made, "b2").rows_out == 1
    assert "p1.jpg" in {row["id"].rsplit("/", 1)[-1] for row in rows_of(lake, "made")}


def test_bytes_that_come_back_are_taken_also_after_a_compaction(
    lake: Lake, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A, then B, then A again under one key: a compaction moves A's old row behind B's, and A is new all the same."""
    first = objects.read_bytes(f"{made.root}/images/p0.jpg")
    names = [f"p{n}.jpg" for n in range(4)]

    def deliver(batch: str, **pictures: bytes) -> int:
        for name, data in pictures.items():
            made.put(f"images/{name}.jpg", data)
            names.extend([f"{name}.jpg"] if f"{name}.jpg" not in names else [])
        made.table([{"file": name, "caption": "x"} for name in names])
        return run_batch(lake, made, batch).rows_out

    run_batch(lake, made, "b1")
    deliver("b2", small=picture(50))
    assert deliver("b3", p0=picture(99), **{f"large{n}": picture(60 + n) for n in range(9)}) == 10
    lance.dataset(lake.table("made")).optimize.compact_files(target_rows_per_fragment=8)
    assert deliver("b4", p0=first) == 1


def test_if_no_object_may_be_read_the_batch_fails_in_one_line(
    lake: Lake, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, lambda uri: uri.endswith(".jpg"))
    with pytest.raises(LakeError, match=r"p0\.jpg: none of the batch's 4 objects can be read \(Permission denied\)"):
        run_batch(lake, made)
    assert not objects.exists(lake.ingested("made", "b1"))
    assert not objects.exists(lake.rejects("made", "b1"))


def test_a_store_that_fails_fails_the_batch(lake: Lake, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(self: Any, uri: str) -> Any:
        if uri.endswith("p2.jpg"):
            raise LakeError("Google Cloud Storage failed: 503", uri, "Try again")
        return read(self, uri)

    read: Any = Files.read_versioned
    stage(lake, made.run())
    monkeypatch.setattr(Files, "read_versioned", failing)
    with pytest.raises(LakeError, match=r"p2\.jpg: Google Cloud Storage failed: 503\. Try again\.$"):
        ingest(lake, made.run())
    monkeypatch.undo()
    assert ingest(lake, made.run()).rows_out == 4


@pytest.mark.parametrize(
    "where",
    [
        "ensure_table",
        "write_group",
        "before rejects",
        "after rejects",
        "before commit",
        "after commit",
        "before report",
    ],
)
def test_a_run_that_dies_anywhere_is_completed_by_the_next(
    lake: Lake, made: Made, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: str
) -> None:
    made.put("images/p3.jpg", b"no picture")
    undisturbed = run_batch(Lake.at(str(tmp_path / "undisturbed")), made)
    stage(lake, made.run())
    with monkeypatch.context() as patch:
        die_at(patch, where, lake)
        with pytest.raises(KeyboardInterrupt):
            ingest(lake, made.run())
    report = ingest(lake, made.run())
    same = {"rows_in", "rows_out", "dropped"}
    assert report.model_dump(include=same) == undisturbed.model_dump(include=same)
    assert [row["id"] for row in rows_of(lake, "made")] == [f"made/p{n}.jpg" for n in range(3)]
    assert rejects_of(lake, "made", "b1") == [("p3.jpg", "not_an_image")]


def die_at(patch: pytest.MonkeyPatch, where: str, lake: Lake) -> None:
    def dying(function: Callable[..., Any], *, after: bool, only: str = "") -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if only and args[0] != only:
                return function(*args, **kwargs)
            if after:
                function(*args, **kwargs)
            raise KeyboardInterrupt

        return call

    after = where.startswith("after")
    if where in ("ensure_table", "write_group"):
        owner = store if where == "ensure_table" else module
        patch.setattr(owner, where, dying(getattr(owner, where), after=False))
    elif where.endswith("rejects"):
        patch.setattr(objects, "create_same", dying(objects.create_same, after=after))
    elif where.endswith("commit"):
        patch.setattr(store, "append_fragments", dying(store.append_fragments, after=after))
    else:
        patch.setattr(
            objects, "create_bytes", dying(objects.create_bytes, after=False, only=lake.ingested("made", "b1"))
        )


def test_two_drivers_of_one_batch_append_it_once(lake: Lake, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    stage(lake, made.run())
    append = store.append_fragments
    raced: list[bool] = []

    def overtaken(table: Any, new: Any) -> Any:
        if not raced:  # between this driver's look at the table and its commit, another one does all of it
            raced.append(True)
            assert ingest(lake, made.run()).rows_out == 4
        return append(table, new)

    monkeypatch.setattr(store, "append_fragments", overtaken)
    assert ingest(lake, made.run()).rows_out == 4
    assert len(rows_of(lake, "made")) == 4


def test_another_writers_commit_in_between_only_makes_it_try_again(
    lake: Lake, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = store.append_fragments
    raced: list[bool] = []

    def overtaken(table: Any, new: Any) -> Any:
        if len(raced) < 3:
            raced.append(True)
            store.ensure_columns(lake.table("made"), pa.schema([(f"caption_{len(raced)}", pa.string())]))
        return append(table, new)

    monkeypatch.setattr(store, "append_fragments", overtaken)
    assert run_batch(lake, made).rows_out == 4
    assert [row["caption_3"] for row in rows_of(lake, "made", "caption_3")] == [None] * 4


def test_writers_that_never_stop_end_in_one_line(lake: Lake, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    append = store.append_fragments
    count = iter(range(100))
    monkeypatch.setattr("smalti.table.store.time.sleep", lambda _: None)

    def overtaken(table: Any, new: Any) -> Any:
        store.ensure_columns(lake.table("made"), pa.schema([(f"c{next(count)}", pa.string())]))
        return append(table, new)

    monkeypatch.setattr(store, "append_fragments", overtaken)
    with pytest.raises(ConflictError, match="other writers committed first, 10 times in a row"):
        run_batch(lake, made)
    monkeypatch.undo()
    assert run_batch(lake, made).rows_out == 4


def test_what_an_earlier_try_rejected_stays_rejected(lake: Lake, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    stage(lake, made.run())
    with monkeypatch.context() as patch:
        refuse(patch, lambda uri: uri.endswith("p1.jpg"))
        patch.setattr(module, "_commit", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            ingest(lake, made.run())
    report = ingest(lake, made.run())  # p1 could be read now
    assert (report.rows_out, report.dropped) == (3, {"unreadable_object": 1})


def test_a_picture_that_only_a_later_try_rejects_stops_it(
    lake: Lake, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage(lake, made.run())
    with monkeypatch.context() as patch:
        patch.setattr(module, "_commit", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            ingest(lake, made.run())
    made.remove("images/p1.jpg")
    with pytest.raises(ConflictError, match=r"p1\.jpg \(changed_object\).*another batch name"):
        ingest(lake, made.run())
    assert rows_of(lake, "made") == []


def test_new_rows_are_found_after_the_last_fragment_was_deleted_and_indexed(lake: Lake, made: Made) -> None:
    run_batch(lake, made)
    made.put("images/p0.jpg", picture(20))
    run_batch(lake, made, "b2")
    lance.dataset(lake.table("made")).create_scalar_index("batch", "BITMAP")
    lance.dataset(lake.table("made")).delete("batch = 'b2'")
    made.put("images/p0.jpg", picture(21))
    assert run_batch(lake, made, "b3").rows_out == 1
    assert lance.dataset(lake.table("made")).count_rows("batch = 'b3'") == 1


def test_an_embedding_of_another_size_is_refused(lake: Lake, made: Made) -> None:
    made.config["columns"] = Columns(key="file", caption="caption", embedding="e")
    made.table([{"file": f"p{n}.jpg", "caption": "x", "e": [n, 0.5]} for n in range(4)], "jsonl")
    run_batch(lake, made)
    assert rows_of(lake, "made", "embedding")[3]["embedding"] == [3.0, 0.5]
    made.put("images/p4.jpg", picture(4))
    made.table([{"file": f"p{n}.jpg", "caption": "x", "e": [n, 0.5, 1]} for n in range(5)], "jsonl")
    with pytest.raises(InputError, match="holds embeddings of 2 numbers, and the source now has 3"):
        run_batch(lake, made, "b2")


def test_an_embedding_that_comes_later_gets_a_column(lake: Lake, made: Made) -> None:
    run_batch(lake, made)
    made.config["columns"] = Columns(key="file", caption="caption", embedding="e")
    made.put("images/p4.jpg", picture(4))
    made.table([{"file": f"p{n}.jpg", "caption": "x", "e": [n, 0.5]} for n in range(5)], "jsonl")
    run_batch(lake, made, "b2")
    assert [row["embedding"] for row in rows_of(lake, "made", "embedding")] == [None] * 4 + [[4.0, 0.5]]


@pytest.mark.parametrize("where", ["tables", "staging/made/b1/rejects.parquet"])
def test_a_lake_that_cannot_be_written_is_one_line(tmp_path: Path, lake: Lake, made: Made, where: str) -> None:
    stage(lake, made.run())
    path = tmp_path / "lake" / where
    if where == "tables":
        path.write_text("a file where the tables should be")
    else:
        path.mkdir()  # a directory where an object should be
    with pytest.raises(LakeError) as raised:
        ingest(lake, made.run())
    assert str(path.parent) in str(raised.value)
    assert "\n" not in str(raised.value)
    assert ".rs:" not in str(raised.value)
    assert not objects.exists(lake.ingested("made", "b1"))


STATES = st.sampled_from(["good", "other", "bad", "row only", "image only", "none"])


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(STATES, min_size=3, max_size=3), min_size=1, max_size=3))
def test_whatever_arrives_the_accounting_balances_and_the_table_has_each_good_picture(
    tmp_path_factory: pytest.TempPathFactory, deliveries: list[list[str]]
) -> None:
    """Three keys over up to three batches: new, changed, broken, without a row, without an image."""
    root = tmp_path_factory.mktemp("any")
    lake, made = Lake.at(str(root / "lake")), simple(f"file://{root}/source", 1)
    latest: dict[str, bytes] = {}
    now: dict[str, bytes | None] = dict.fromkeys("abc")
    for batch, states in enumerate(deliveries):
        listed = ["p0.jpg"]
        for number, (name, state) in enumerate(zip("abc", states, strict=True)):
            data = {"good": picture(number), "other": picture(number + 100 * (batch + 1)), "bad": b"bad%d" % batch}
            now[name] = data.get(state, picture(number) if state == "image only" else now[name])
            if state in data or state == "image only":
                made.put(f"images/{name}.jpg", now[name] or b"")
            if state in (*data, "row only"):
                listed.append(f"{name}.jpg")
        made.table([{"file": name, "caption": ""} for name in listed])
        report = run_batch(lake, made, f"b{batch}")  # Accounted: it balances
        assert report.rows_in == report.rows_out + sum(report.dropped.values())
        for name in listed[1:]:
            data_now = now[name[0]]
            if data_now is not None and not data_now.startswith(b"bad"):
                latest[f"made/{name}"] = data_now
    table = lance.dataset(lake.table("made")).to_table(columns=["id", "sha256"]).to_pylist()
    held = {row["id"]: row["sha256"] for row in table}  # of several rows of an id the last one
    expected = {name: hashlib.sha256(data).hexdigest() for name, data in latest.items()}
    assert {name: sha for name, sha in held.items() if name != "made/p0.jpg"} == expected
