"""The shard stage: a batch becomes one committed part, the same one after any crash."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from smalti import objects
from smalti.errors import InputError
from smalti.lake import Lake
from smalti.settings import SourceRun
from smalti.shards import mds
from smalti.shards.part import committed_parts, read_part
from smalti.shards.samples import decode_samples
from smalti.shards.stage import ShardReport, shard
from smalti.sources.inventory import OBJECTS, Inventory
from smalti.table.store import open_table
from tests.support.pictures import Row, picture, source_run, stored, write_table


@pytest.fixture
def run() -> SourceRun:
    return source_run()


def some_rows() -> list[Row]:
    """Two buckets, several shards, one of each trouble."""
    rows = [Row(f"{n:02d}.jpg", stored(picture(n))) for n in range(5)]
    rows += [Row(f"wide{n}.jpg", stored(picture(10 + n, 720, 400))) for n in range(2)]
    rows.append(Row("failed.jpg", stored(picture(20)), caption=None, status="failed", label=None))
    rows.append(Row("broken.jpg", stored(picture(21))[:3000], size=(520, 520)))
    rows.append(Row("small.png", stored(picture(22, 100, 100), "PNG")))
    rows.append(Row("long.png", stored(picture(23, 1500, 500), "PNG")))
    return rows


def content(lake: Lake) -> dict[str, str]:
    """What the stage has written, without provenance."""
    found = {}
    for prefix in (lake.parts_root(), f"{lake.root}/progress"):
        for each in objects.list_objects(prefix):
            data = objects.read_bytes(each.uri)
            if each.uri.endswith("part.json"):
                part = json.loads(data)
                del part["provenance"]
                data = json.dumps(part).encode()
            found[each.uri.removeprefix(lake.root)] = hashlib.sha256(data).hexdigest()
    return found


def same(one: ShardReport, other: ShardReport) -> bool:
    return one.model_copy(update={"seconds": 0.0}) == other.model_copy(update={"seconds": 0.0})


def dying_after(monkeypatch: pytest.MonkeyPatch, writes: int) -> Callable[[], None]:
    """From now on the write after so many fails, as if the process had been killed; returns what ends that."""
    create, left = objects.create_bytes, iter(range(writes))

    def create_or_die(uri: str, data: bytes) -> bool:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return create(uri, data)

    monkeypatch.setattr(objects, "create_bytes", create_or_die)
    return lambda: monkeypatch.setattr(objects, "create_bytes", create)


def test_a_part_holds_every_row_that_can_be_served_and_accounts_for_the_rest(lake: Lake, run: SourceRun) -> None:
    write_table(lake, run, some_rows())
    report = shard(lake, run)
    assert report.part is not None
    assert (report.rows_in, report.rows_out) == (11, 8)
    assert report.dropped == {"aspect_ratio": 1, "decode_failed": 1, "too_small": 1}
    part = read_part(lake, "demo", report.part)
    assert [failed.id for failed in part.failed] == ["demo/broken.jpg"]
    assert part.accounting.dropped == report.dropped
    assert [(bucket.tier, bucket.ar, bucket.samples) for bucket in part.buckets] == [
        (512, "1.000", 6),
        (512, "1.750", 2),
    ]
    assert part.encoders.keys() >= {"pillow", "jpeg", "pyarrow"}


def test_samples_parquet_and_the_indices_say_what_is_in_the_shards(lake: Lake, run: SourceRun) -> None:
    write_table(lake, run, some_rows())
    report = shard(lake, run)
    part = read_part(lake, "demo", str(report.part))
    data = objects.read_bytes(lake.samples("demo", part.name))
    assert hashlib.sha256(data).hexdigest() == part.samples_sha256
    rows = decode_samples(data, "here").to_pylist()
    order = [(row["tier"], row["ar"], row["shard"], row["index"]) for row in rows]
    assert order == sorted(order)
    assert len({row["shard"] for row in rows}) == report.shards > 2
    entries = {}
    for bucket in part.buckets:
        index = objects.read_bytes(lake.bucket_index("demo", part.name, bucket.tier, bucket.ar))
        assert hashlib.sha256(index).hexdigest() == bucket.index_sha256
        for entry in json.loads(index)["shards"]:
            entries[f"demo/{part.name}/{bucket.tier}/{bucket.ar}/{entry['raw_data']['basename']}"] = entry
    assert sum(entry["samples"] for entry in entries.values()) == len(rows)
    assert sum(entry["raw_data"]["bytes"] for entry in entries.values()) == report.bytes
    for row in rows:
        stored_shard = objects.read_bytes(f"{lake.parts_root()}/{row['shard']}")
        assert entries[row["shard"]]["raw_data"]["hashes"]["sha256"] == hashlib.sha256(stored_shard).hexdigest()
        columns, raw = mds.read_shard(stored_shard)
        sample = mds.decode_sample(columns, raw[row["index"]])
        assert (sample["id"], len(sample["image"])) == (row["id"], row["bytes"])  # type: ignore[arg-type]
        assert (sample["original_width"], sample["original_height"]) == (row["width"], row["height"])


def test_a_failed_caption_stays_in_without_words(lake: Lake, run: SourceRun) -> None:
    write_table(
        lake, run, [Row("a.jpg", stored(picture(1)), caption="words of a failure", status="failed", label=None)]
    )
    report = shard(lake, run)
    (row,) = decode_samples(objects.read_bytes(lake.samples("demo", str(report.part))), "here").to_pylist()
    assert (row["caption_ok"], row["label"], row["captioner"], row["classifier"]) == (
        False,
        None,
        "rules",
        "rules-minilm",
    )
    columns, raw = mds.read_shard(objects.read_bytes(f"{lake.parts_root()}/{row['shard']}"))
    assert mds.decode_sample(columns, raw[0])["caption"] == ""


def test_a_second_run_changes_no_object_and_reports_the_same(lake: Lake, run: SourceRun) -> None:
    write_table(lake, run, some_rows())
    first, before = shard(lake, run), {each.uri: each for each in objects.list_objects(lake.root)}
    assert same(shard(lake, run), first)
    assert {each.uri: each for each in objects.list_objects(lake.root)} == before


def test_killed_at_any_write_the_next_run_ends_in_the_same_bytes(
    tmp_path: Path, run: SourceRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = Lake.at(str(tmp_path / "undisturbed"))
    write_table(undisturbed, run, some_rows())
    shutil.copytree(tmp_path / "undisturbed", tmp_path / "ingested")
    report = shard(undisturbed, run)
    wanted = content(undisturbed)
    assert len(wanted) > 8
    for writes in range(len(wanted)):
        shutil.copytree(tmp_path / "ingested", tmp_path / f"after{writes}")
        lake = Lake.at(str(tmp_path / f"after{writes}"))
        revive = dying_after(monkeypatch, writes)
        with pytest.raises(KeyboardInterrupt):
            shard(lake, run)
        revive()
        assert committed_parts(lake, "demo") == []
        before = {each.uri: each for each in objects.list_objects(lake.root)}
        assert shard(lake, run).part == report.part
        assert content(lake) == wanted
        after = {each.uri: each for each in objects.list_objects(lake.root)}
        assert {uri: after[uri] for uri in before} == before  # only what was missing has been written


def test_a_table_that_was_compacted_in_between_gives_the_same_part(
    tmp_path: Path, run: SourceRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    lakes = [Lake.at(str(tmp_path / name)) for name in ("one", "other")]
    for lake in lakes:
        write_table(lake, run, some_rows())
    shard(lakes[0], run)
    revive = dying_after(monkeypatch, 3)
    with pytest.raises(KeyboardInterrupt):
        shard(lakes[1], run)
    revive()
    open_table(lakes[1].table("demo")).optimize.compact_files()
    shard(lakes[1], run)
    assert content(lakes[1]) == content(lakes[0])


def test_a_part_begun_with_another_encoder_is_begun_anew(
    lake: Lake, run: SourceRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_table(lake, run, some_rows())
    revive = dying_after(monkeypatch, 3)
    with pytest.raises(KeyboardInterrupt):
        shard(lake, run)
    revive()
    left = {each.uri for each in objects.list_objects(lake.parts_root())}
    monkeypatch.setattr("smalti.shards.stage.encoders", lambda: {"pillow": "99"})
    report = shard(lake, run)
    assert not any(f"/{report.part}/" in uri for uri in left)
    assert read_part(lake, "demo", str(report.part)).encoders == {"pillow": "99"}


def test_parts_are_numbered_and_a_later_setting_makes_a_later_part(lake: Lake, run: SourceRun) -> None:
    write_table(lake, run, some_rows())
    later = run.model_copy(update={"batch": "b2"})
    write_table(lake, later, [Row("next.jpg", stored(picture(30)))])
    other = source_run(quality=80)
    names = [shard(lake, each).part for each in (run, later, other)]
    assert [str(name)[:6] for name in names] == ["00001-", "00002-", "00003-"]
    assert [part.batch for part in committed_parts(lake, "demo")] == ["b1", "b1", "b2"], "by delivery, not by writing"
    again = shard(lake, run)  # the newest part of the batch is `other`'s: an older one does not count as done
    assert str(again.part).startswith("00004-")


def test_a_batch_that_is_sharded_late_keeps_its_place_among_the_deliveries(lake: Lake, run: SourceRun) -> None:
    """The names say nothing: batch `a` was delivered after batch `b`, and is sharded before it."""
    for batch, earlier in (("b", ()), ("a", ("b",))):
        uri = lake.inventory("demo", batch)
        objects.create_bytes(uri, Inventory(OBJECTS.empty_table(), "file:///x", None, "", None, 0, earlier).encoded())
        write_table(lake, run.model_copy(update={"batch": batch}), [Row("same.jpg", stored(picture(ord(batch))))])
    for batch in ("a", "b"):
        shard(lake, run.model_copy(update={"batch": batch}))
    assert [(part.batch, part.sequence) for part in committed_parts(lake, "demo")] == [("b", 2), ("a", 1)]


def test_a_batch_with_nothing_to_serve_makes_no_part(lake: Lake, run: SourceRun) -> None:
    write_table(lake, run, [Row("small.png", stored(picture(22, 100, 100), "PNG"))])
    report = shard(lake, run)
    assert (report.part, report.part_uri, report.rows_in, report.rows_out) == (None, None, 1, 0)
    assert report.dropped == {"too_small": 1}
    broken = run.model_copy(update={"batch": "b2"})
    write_table(lake, broken, [Row("broken.jpg", stored(picture(21))[:3000], size=(520, 520))])
    assert shard(lake, broken).dropped == {"decode_failed": 1}
    assert committed_parts(lake, "demo") == []


def test_a_batch_whose_rows_were_all_there_before_makes_no_part(lake: Lake, run: SourceRun) -> None:
    write_table(lake, run, some_rows())
    objects.create_bytes(lake.ingested("demo", "b2"), b"{}")
    assert shard(lake, run.model_copy(update={"batch": "b2"})).part is None


@pytest.mark.parametrize(
    ("row", "stage"),
    [
        ({"status": None, "caption": None, "label": None}, "caption"),
        ({"label": None}, "classify"),
    ],
)
def test_a_row_that_an_earlier_stage_has_not_finished_is_named(
    lake: Lake, run: SourceRun, row: dict[str, Any], stage: str
) -> None:
    write_table(lake, run, [Row("a.jpg", stored(picture(1))), Row("b.jpg", stored(picture(2)), **row)])
    with pytest.raises(InputError, match=rf"{stage} has not finished 1 rows of the batch, among them 'demo/b\.jpg'"):
        shard(lake, run)
    assert not list(objects.list_objects(lake.parts_root()))


def test_what_is_missing_is_said(lake: Lake, run: SourceRun) -> None:
    with pytest.raises(InputError, match="the source has no table"):
        shard(lake, run)
    write_table(lake, run, [Row("a.jpg", stored(picture(1)))])
    with pytest.raises(InputError, match="batch 'b7' was never ingested"):
        shard(lake, run.model_copy(update={"batch": "b7"}))
    other = run.captioner.model_copy(update={"name": "vlm"})
    with pytest.raises(
        InputError, match=r"the table has no column caption_vlm_status\. Run caption for batch b1 first"
    ):
        shard(lake, run.model_copy(update={"captioner": other}))
