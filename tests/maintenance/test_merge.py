"""Merging: fewer and fuller shards, the same samples, and of every id still the one that was newest."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from smalti import objects
from smalti.lake import Lake
from smalti.maintenance.merge import MergeReport, merge
from smalti.maintenance.rewrite import rewrite
from smalti.release.manifest import read_manifest
from smalti.release.optouts import OptoutSnapshot
from smalti.release.summary import summary
from smalti.release.verify import verify_manifest
from smalti.settings import MaintenanceRun
from smalti.shards import mds
from smalti.shards.part import Part, batch_orders, committed_parts
from smalti.shards.samples import decode_samples, extra_columns
from smalti.shards.stage import shard
from smalti.sources.inventory import OBJECTS, Inventory
from smalti.table import store
from smalti.table.schema import caption_columns
from smalti.trace import trace
from tests.maintenance.conftest import APPLY, content, deliver, release, rows_of_a_day, served, until_done
from tests.maintenance.test_rewrite import shards_of
from tests.release.conftest import build
from tests.support.pictures import Row, picture, release_run, source_run, stored, write_table


def merged(lake: Lake, **settings: Any) -> MergeReport:
    return merge(lake, APPLY.model_copy(update=settings))


def staged(lake: Lake, batch: str, earlier: tuple[str, ...]) -> None:
    """The inventory of a batch, which says what was delivered before it."""
    data = Inventory(OBJECTS.empty_table(), "file:///x", None, "", None, 0, earlier).encoded()
    objects.create_bytes(lake.inventory("demo", batch), data)


def test_small_parts_become_one_with_full_shards_and_a_release_serves_the_same(lake: Lake) -> None:
    old = read_manifest(lake.manifest("set", "v1"))
    before, parts = served(lake, old), committed_parts(lake, "demo")
    report = merged(lake)
    [part] = committed_parts(lake, "demo")
    assert report.merged == {f"demo/{part.name}": tuple(f"demo/{each.name}" for each in parts)}
    assert (report.samples, report.kept, report.dropped, report.shards_before) == (15, 15, {}, 15)
    shards = shards_of(lake, part)
    assert report.shards_after == len(shards) == 3
    assert max(len(data) for _, data in shards) <= part.encoding.shard_bytes
    assert [name for ids, _ in shards for name in ids] == sorted(name for ids, _ in shards for name in ids)
    new = release(lake)
    assert served(lake, new) == before == served(lake, old)
    assert len(before) == 12
    for version in ("v1", "v2"):
        assert verify_manifest(lake.manifest("set", version)).faults == ()


def test_the_accounting_and_the_story_of_dropped_rows_cover_all_batches(lake: Lake) -> None:
    deliver(lake, "b4", [*rows_of_a_day(4), Row("small.png", stored(picture(1, 90, 90), "PNG"))])
    merged(lake)
    new = release(lake)
    counts = {count.what: (count.rows_in, count.rows_out) for count in new.accounting.upstream}
    [part] = committed_parts(lake, "demo")
    assert {origin.batch for origin in part.origins} == {"b1", "b2", "b3", "b4"}
    for origin in part.origins:
        rows = 6 if origin.batch == "b4" else 5
        assert counts[f"demo, batch {origin.batch}, ingest"] == (rows, rows)
        assert counts[f"demo, batch {origin.batch}, shard {origin.name}"] == (rows, 5)
    assert counts[f"demo, maintenance, part {part.name}"] == (20, 20)
    assert [each.id for each in summary(lake.manifest("set", "v2")).dropped] == ["demo/small.png"]


def test_of_an_id_the_newest_sample_is_kept_whatever_was_sharded_first(lake: Lake) -> None:
    """Batch `late` was delivered after `new`, and sharded before it."""
    staged(lake, "new", ("b1", "b2", "b3"))
    staged(lake, "late", ("b1", "b2", "b3", "new"))
    deliver(lake, "late", [Row("1-0.jpg", stored(picture(900)))])
    deliver(lake, "new", [Row("1-0.jpg", stored(picture(901))), Row("1-1.jpg", stored(picture(902)))])
    before = served(lake, release(lake))
    report = merged(lake)
    assert report.dropped == {"superseded": 3}
    after = release(lake)
    assert after.accounting.skipped == {"text": 3}
    assert served(lake, after) == before


def test_a_batch_that_is_sharded_again_later_comes_in_between(lake: Lake) -> None:
    """b2x had a picture of b1 again, and all are merged. b1 is then sharded anew: its pictures are newer, but for that one."""
    deliver(lake, "b2x", [Row("1-0.jpg", stored(picture(910)), caption="delivered again")])
    merged(lake)
    merged_part = committed_parts(lake, "demo")[-1]
    run = source_run(batch="b1", quality=80)
    again = shard(lake, run).part
    parts = committed_parts(lake, "demo")
    assert {part.name for part in parts} == {merged_part.name, again}
    orders = dict(zip((part.name for part in parts), batch_orders(parts), strict=True))
    assert orders[merged_part.name]["b1"] < orders[str(again)]["b1"] < orders[merged_part.name]["b2"]
    new = release(lake)
    found = served(lake, new)
    assert b"delivered again" in found["demo/1-0.jpg"]
    sharded_anew = {name for ids, _ in shards_of(lake, next(p for p in parts if p.name == again)) for name in ids}
    assert sharded_anew == {*(f"demo/1-{n}.jpg" for n in range(4)), "demo/1-text.jpg"}
    old = served(lake, read_manifest(lake.manifest("set", "v1")))
    assert all(found[f"demo/1-{n}.jpg"] != old[f"demo/1-{n}.jpg"] for n in range(4)), "quality 80, or delivered again"
    assert all(found[f"demo/2-{n}.jpg"] == old[f"demo/2-{n}.jpg"] for n in range(4))


def test_only_parts_of_one_kind_and_one_shard_run_a_batch_are_merged(lake: Lake) -> None:
    other = source_run(batch="b4", quality=80)
    write_table(lake, other, rows_of_a_day(4))
    first = shard(lake, other).part
    assert shard(lake, source_run(batch="b4")).part != first
    merged(lake)
    parts = committed_parts(lake, "demo")
    assert [len(part.replaces) for part in parts if part.encoding.quality == 92] == [4]
    assert [part.name for part in parts if part.encoding.quality == 80] == [first]
    assert merged(lake).merged == {}


def test_large_parts_stay_and_a_group_ends_when_it_is_large(lake: Lake) -> None:
    deliver(lake, "b4", rows_of_a_day(4))
    sizes = [sum(bucket.bytes for bucket in part.buckets) for part in committed_parts(lake, "demo")]
    assert merged(lake, small_part_bytes=min(sizes)).merged == {}
    report = merged(lake, small_part_bytes=max(sizes) + 1)
    assert [len(names) for names in report.merged.values()] == [2, 2]
    assert merged(lake, small_part_bytes=max(sizes) + 1).merged == {}


def test_a_merged_part_is_merged_and_rewritten_again_and_shard_knows_every_batch(lake: Lake) -> None:
    merged(lake)
    release(lake)
    deliver(lake, "b4", rows_of_a_day(4))
    merged(lake)
    release(lake)
    report = rewrite(lake, APPLY.model_copy(update={"keep_versions": 1}))
    assert report.dropped == {"text": 4}
    [part] = committed_parts(lake, "demo")
    assert (part.samples, part.accounting.rows_in, len(part.origins)) == (16, 20, 4)
    before = {each.uri: each for each in objects.list_objects(lake.root)}
    for batch in ("b1", "b2", "b3", "b4"):
        assert shard(lake, source_run(batch=batch)).part == part.name
    assert {each.uri: each for each in objects.list_objects(lake.root)} == before
    assert verify_manifest(build(lake, release_run()).manifest).faults == ()


def test_killed_at_any_change_the_next_run_ends_in_the_same_bytes(
    copies: Callable[[str], Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = copies("undisturbed")
    report = merge(undisturbed, APPLY)
    wanted = content(undisturbed)
    killed = 0
    for lake in until_done(monkeypatch, copies, lambda lake: merge(lake, APPLY)):
        assert len(committed_parts(lake, "demo")) == 3
        assert merge(lake, APPLY).model_copy(update={"seconds": report.seconds}) == report
        assert content(lake) == wanted
        killed += 1
    assert killed == 10, "three shards and their records, samples.parquet, index.json, part.json, the step"


def test_dry_run_says_the_same_and_writes_nothing(lake: Lake) -> None:
    before = {each.uri: each for each in objects.list_objects(lake.root)}
    told = merge(lake, MaintenanceRun())
    assert {each.uri: each for each in objects.list_objects(lake.root)} == before
    done = merged(lake)
    assert list(told.merged.values()) == list(done.merged.values())
    assert (told.samples, told.kept) == (done.samples, done.kept)


def test_a_part_that_holds_what_is_opted_out_stays_and_the_next_release_leaves_it_out(lake: Lake) -> None:
    """Snapshots name samples by their shards: written anew, they would be served again."""
    first, *others = committed_parts(lake, "demo")
    (place,) = trace(lake, "demo/1-0.jpg").places
    snapshot = OptoutSnapshot(position=1, shards={place.shard: (place.index,)})
    objects.create_bytes(lake.optout_snapshot(1), snapshot.encode())
    report = merged(lake)
    assert list(report.merged.values()) == [tuple(f"demo/{each.name}" for each in others)]
    assert rewrite(lake, APPLY.model_copy(update={"skip_limit": 0.0, "parts": (f"demo/{first.name}",)})).rewritten == {}
    new = release(lake)
    assert (new.optouts, new.accounting.skipped["optout"]) == (1, 1)  # type: ignore[index]
    assert "demo/1-0.jpg" not in summary(lake.manifest("set", new.version)).kept_ids
    assert verify_manifest(lake.manifest("set", new.version)).faults == ()


def test_parts_with_other_caption_columns_are_not_merged_and_what_is_written_anew_keeps_them(lake: Lake) -> None:
    """The three days of the lake have none; days 4 and 5 have the source's captions, day 6 those of a profile."""
    store.ensure_columns(lake.table("demo"), caption_columns("short").fields({}))
    names = {}
    for day, extra in ((4, "source"), (5, "source"), (6, "short")):
        rows = rows_of_a_day(day)
        said = [dataclasses.replace(row, source_caption=f"alt of {row.key}") for row in rows[2:]]
        run = source_run(batch=f"b{day}", extra_captions=[extra])
        write_table(lake, run, [dataclasses.replace(row, extra=(("short", None, None),)) for row in (*rows[:2], *said)])
        names[day] = str(shard(lake, run).part)

    def parts() -> dict[tuple[str, ...], Part]:
        return {extra_columns(part.columns): part for part in committed_parts(lake, "demo")}

    report = merged(lake)
    assert sorted(len(olds) for olds in report.merged.values()) == [2, 3]
    assert sorted(parts()) == [(), ("caption_short",), ("caption_source",)]
    assert parts()["caption_short",].name == names[6]
    assert set(parts()["caption_source",].replaces) == {names[4], names[5]}
    for written, count in ((parts()["caption_source",], 6), (rewritten(lake), 4)):  # the pages of text are dropped
        assert written.extra_captions == {"caption_source": count}
        words: dict[str, str] = {}
        for shard_bytes in (data for _, data in shards_of(lake, written)):
            columns, raw = mds.read_shard(shard_bytes)
            samples = [mds.decode_sample(columns, each) for each in raw]
            words |= {str(sample["id"]): str(sample["caption_source"]) for sample in samples}
        data = objects.read_bytes(lake.samples("demo", written.name))
        flags = decode_samples(data, "here", ("caption_source",)).to_pylist()
        assert {row["id"]: row["caption_source_ok"] for row in flags} == {
            name: bool(said) for name, said in words.items()
        }
        assert sorted(filter(None, words.values()))[0] == "alt of 4-2.jpg"


def rewritten(lake: Lake) -> Part:
    """The part with the source's captions, after a release that leaves out its pages of text."""
    release(lake)
    rewrite(lake, APPLY)
    return next(part for part in committed_parts(lake, "demo") if "caption_source" in part.columns)


def test_what_was_delivered_later_under_an_id_that_is_opted_out_speaks_for_its_copies_too(lake: Lake) -> None:
    """No snapshot names its place. Superseded and merged away, it would let its copies be served again."""
    (place,) = trace(lake, "demo/1-0.jpg").places
    snapshot = OptoutSnapshot(position=1, shards={place.shard: (place.index,)}, ids=("demo/1-0.jpg",))
    objects.create_bytes(lake.optout_snapshot(1), snapshot.encode())
    deliver(lake, "b4", [Row("1-0.jpg", stored(picture(900))), Row("4-0.jpg", stored(picture(902)))])
    deliver(lake, "b5", [Row("1-0.jpg", stored(picture(901))), Row("copy.jpg", stored(picture(900)))])
    before = summary(lake.manifest("set", release(lake).version)).kept_ids
    assert {"demo/1-0.jpg", "demo/copy.jpg"}.isdisjoint(before)
    _, second, third, *later = committed_parts(lake, "demo")
    report = merged(lake)
    assert list(report.merged.values()) == [(f"demo/{second.name}", f"demo/{third.name}")]
    assert (
        rewrite(lake, APPLY.model_copy(update={"skip_limit": 0.0}))
        .rewritten.keys()
        .isdisjoint(f"demo/{part.name}" for part in later)
    )
    assert sorted(summary(lake.manifest("set", release(lake).version)).kept_ids) == sorted(before)
