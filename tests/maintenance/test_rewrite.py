"""Rewriting: what every release leaves out goes, nothing else changes, and whatever dies or hurries in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from smalti import objects
from smalti.errors import InputError
from smalti.lake import Lake
from smalti.maintenance import copying
from smalti.maintenance.rewrite import RewriteReport, rewrite
from smalti.reasons import Label, SkipReason
from smalti.release.assemble import assemble
from smalti.release.manifest import Manifest, read_manifest
from smalti.release.verify import verify_manifest
from smalti.settings import MaintenanceRun, ReleaseRun
from smalti.shards.part import Part, committed_parts, part_names, read_part
from smalti.shards.replacements import Step, append_step, read_log
from smalti.shards.samples import decode_samples
from smalti.shards.stage import shard
from tests.maintenance.conftest import (
    APPLY,
    Died,
    content,
    deliver,
    dying_after,
    release,
    rows_of_a_day,
    served,
    until_done,
)
from tests.release.conftest import build
from tests.support.pictures import Row, picture, release_run, source_run, stored


def keeping_text(name: str = "all") -> ReleaseRun:
    return release_run("demo", name=name, drops={"labels": (Label.NSFW,)})


def first(lake: Lake) -> Part:
    return committed_parts(lake, "demo")[0]


def rows_of(lake: Lake, part: Part) -> list[dict[str, Any]]:
    uri = lake.samples(part.source, part.name)
    return list(decode_samples(objects.read_bytes(uri), uri).to_pylist())


def rewritten(lake: Lake, **settings: Any) -> RewriteReport:
    return rewrite(lake, APPLY.model_copy(update=settings))


def test_what_all_releases_leave_out_is_written_no_more_and_the_rest_keeps_its_bytes(lake: Lake) -> None:
    old = release_of(lake)
    before, parts = served(lake, old), committed_parts(lake, "demo")
    report = rewritten(lake)
    assert list(report.rewritten) == [f"demo/{part.name}" for part in parts]
    assert (report.samples, report.kept, report.dropped) == (15, 12, {"text": 3})
    after = committed_parts(lake, "demo")
    assert [part.samples for part in after] == [4, 4, 4]
    assert [part.replaces for part in after] == [(part.name,) for part in parts]
    assert [part.batch for part in after] == ["b1", "b2", "b3"]
    new = release(lake)
    assert new.digest != old.digest
    assert new.accounting.skipped == {}
    assert served(lake, new) == before == served(lake, old)
    assert verify_manifest(lake.manifest("set", new.version)).faults == ()
    assert verify_manifest(lake.manifest("set", old.version)).faults == ()


def release_of(lake: Lake, version: str = "v1") -> Manifest:
    return read_manifest(lake.manifest("set", version))


def test_the_accounting_goes_from_ingest_through_the_old_part_to_the_new_one(lake: Lake) -> None:
    rewritten(lake)
    counts = {count.what: count for count in release(lake).accounting.upstream}
    origin = first(lake).origins[0]
    new = first(lake).name
    assert counts["demo, batch b1, ingest"].rows_out == 5
    assert counts[f"demo, batch b1, shard {origin.name}"].rows_out == 5
    said = counts[f"demo, maintenance, part {new}"]
    assert (said.rows_in, said.rows_out, said.dropped) == (5, 4, {"text": 1})


def test_a_sample_that_any_release_serves_under_any_of_its_sets_stays(lake: Lake) -> None:
    release(lake, keeping_text())
    assert set(rewrite(lake, MaintenanceRun(skip_limit=0.5)).shares.values()) == set()
    assert rewritten(lake).rewritten == {}


def test_a_declared_reason_set_that_lifts_the_reason_keeps_the_sample(lake: Lake) -> None:
    manifest = release_of(lake)
    streams = tuple(each.model_copy(update={"kept_without": {"text": each.kept + 1}}) for each in manifest.streams)
    lifting = manifest.model_copy(update={"reason_sets": ((), (SkipReason.TEXT,)), "streams": streams})
    path = objects.local_path(lake.manifest("set", "v1"))
    assert path is not None
    path.write_bytes(Manifest.model_validate(lifting.model_dump(mode="json")).with_digest().encode())
    assert rewritten(lake).rewritten == {}


def test_a_version_that_may_still_be_published_counts_and_an_old_one_does_not(lake: Lake) -> None:
    build(lake, keeping_text())
    assert rewritten(lake).rewritten == {}, "it has not been published, and it may be"
    other = read_manifest(lake.manifest("all", "v1"))
    release(lake, keeping_text())
    release(lake, release_run("demo", name="all", drops={"labels": (Label.NSFW, Label.TEXT)}))
    assert rewritten(lake).rewritten == {}, "rollback may go back to it"
    assert len(rewritten(lake, keep_versions=1).rewritten) == 3
    assert len(served(lake, other)) == 15, "the old version reads the old parts"


def test_below_the_limit_and_in_no_live_release_a_part_stays_as_it_is(lake: Lake) -> None:
    report = rewritten(lake, skip_limit=0.2)
    assert (report.rewritten, list(report.shares.values())) == ({}, [0.2, 0.2, 0.2])
    name = deliver(lake, "b4", rows_of_a_day(4))
    report = rewritten(lake, parts=(f"demo/{name}",))
    assert report.rewritten == {}
    assert report.warnings == (f"demo/{name}: no live release uses it, so nobody has said what of it may go",)


def test_a_part_of_which_nothing_would_be_left_is_kept(lake: Lake) -> None:
    name = deliver(lake, "b4", [Row("page.jpg", stored(picture(500)), label="text")])
    release(lake)
    report = rewritten(lake, parts=(f"demo/{name}",))
    assert report.rewritten == {}
    assert report.warnings == (f"demo/{name}: every release leaves all of it out; it is kept as it is",)


def test_shards_that_lose_nothing_are_the_old_bytes_and_neighbours_that_lose_some_are_joined(lake: Lake) -> None:
    """Four pictures a shard, as shard estimates them; the first of each of the first two shards is a page of text."""
    text = {"0.jpg", "4.jpg"}
    rows = [
        Row(f"{n}.jpg", stored(picture(600 + n)), label="text" if f"{n}.jpg" in text else "visual") for n in range(9)
    ]
    name = deliver(lake, "b4", rows, shard_bytes=300_000)
    part = next(part for part in committed_parts(lake, "demo") if part.name == name)
    old = shards_of(lake, part)
    assert [len(ids) for ids, _ in old] == [4, 4, 1]
    release(lake)
    rewritten(lake, parts=(f"demo/{name}",))
    new = shards_of(lake, committed_parts(lake, "demo")[-1])
    assert [[each[5:-4] for each in ids] for ids, _ in new] == [["1", "2", "3", "5", "6", "7"], ["8"]]
    assert new[1][1] == old[2][1]


def shards_of(lake: Lake, part: Part) -> list[tuple[list[str], bytes]]:
    """Ids and bytes of each shard of a part, in the order of samples.parquet."""
    ids: dict[str, list[str]] = {}
    for row in rows_of(lake, part):
        ids.setdefault(row["shard"], []).append(row["id"])
    return [(found, objects.read_bytes(f"{lake.parts_root()}/{shard}")) for shard, found in ids.items()]


def test_rewriting_twice_changes_nothing_and_replaced_parts_stay_for_old_releases(lake: Lake) -> None:
    rewritten(lake)
    before = {each.uri: each for each in objects.list_objects(lake.root)}
    release_of(lake)
    assert rewritten(lake).rewritten == {}
    assert {each.uri: each for each in objects.list_objects(lake.root)} == before
    assert len(committed_parts(lake, "demo")) == 3
    assert len(committed_parts(lake, "demo", hidden=True)) == 6


def test_a_rewritten_part_is_rewritten_again(lake: Lake) -> None:
    rows = [Row(f"{n}.jpg", stored(picture(600 + n)), licence="CC0-1.0" if n else "none") for n in range(4)]
    name = deliver(lake, "b4", [*rows, Row("x.jpg", stored(picture(604)), label="text")])
    old = committed_parts(lake, "demo")[-1].sharded[0]
    release(lake)
    rewritten(lake)
    release(lake, release_run("demo", drops={"licences": ("CC0-1.0",)}))
    report = rewritten(lake, keep_versions=1)
    assert report.dropped == {"licence": 1}
    part = committed_parts(lake, "demo")[-1]
    assert part.origins == (old,)
    assert old.name == name
    assert (part.samples, part.accounting.rows_in, part.accounting.dropped) == (3, 5, {"licence": 1, "text": 1})
    assert read_log(lake, "demo").holder(old.name) == part.name
    assert verify_manifest(lake.manifest("set", release(lake).version)).faults == ()


def test_the_shard_stage_knows_a_batch_whose_part_was_replaced(lake: Lake) -> None:
    run = source_run(batch="b1")
    asked = shard(lake, run)
    rewritten(lake)
    before = {each.uri: each for each in objects.list_objects(lake.root)}
    again = shard(lake, run)
    assert (again.rows_in, again.rows_out, again.dropped) == (asked.rows_in, asked.rows_out, asked.dropped)
    assert again.part == first(lake).name
    assert {each.uri: each for each in objects.list_objects(lake.root)} == before
    later = deliver(lake, "b9", rows_of_a_day(9))
    assert later.startswith("00007-"), "three parts of shard, three of maintenance"


def test_killed_at_any_change_the_next_run_ends_in_the_same_bytes(
    copies: Callable[[str], Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = copies("undisturbed")
    only = APPLY.model_copy(update={"parts": (f"demo/{first(undisturbed).name}",)})
    report = rewrite(undisturbed, only)
    wanted = content(undisturbed)
    killed = 0
    for lake in until_done(monkeypatch, copies, lambda lake: rewrite(lake, only)):
        assert first(lake).replaces == (), "it counts when all of it is there"
        build(lake, release_run())
        assert rewrite(lake, only).model_copy(update={"seconds": report.seconds}) == report
        assert content(lake) == wanted
        killed += 1
    assert killed >= 6


def test_what_was_begun_for_another_reason_is_begun_anew(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before the step; then the release leaves the same sample out, and states another reason first."""
    rows = [Row(f"{n}.jpg", stored(picture(600 + n))) for n in range(4)]
    name = deliver(lake, "b4", [*rows, Row("x.jpg", stored(picture(604)), label="text", licence="none")])
    only = APPLY.model_copy(update={"parts": (f"demo/{name}",), "keep_versions": 1})
    release(lake)
    revive = dying_after(monkeypatch, 11)
    with pytest.raises(Died):
        rewrite(lake, only)
    revive()
    [begun] = set(part_names(lake, "demo")) - {part.name for part in committed_parts(lake, "demo")}
    assert objects.exists(lake.part_commit("demo", begun))
    release(lake, release_run("demo", drops={"licences": ("CC0-1.0",)}))
    assert rewrite(lake, only).dropped == {"licence": 1}
    assert committed_parts(lake, "demo")[-1].name != begun


def test_of_two_that_replace_one_part_only_one_counts(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slower one has written all of its part when the faster one begins."""
    old = first(lake)
    real = append_step

    def overtaken(lake: Lake, source: str, step: Step) -> bool:
        monkeypatch.setattr(copying, "append_step", real)
        assert real(lake, source, Step(why="superseded", replaces=step.replaces, origins=step.origins))
        return real(lake, source, step)

    monkeypatch.setattr(copying, "append_step", overtaken)
    report = rewritten(lake, parts=(f"demo/{old.name}",))
    assert report.rewritten == {}
    assert report.warnings == (f"demo/{old.name}: another run has replaced it meanwhile",)
    assert len(read_log(lake, "demo").steps) == 1
    assert [part.batch for part in committed_parts(lake, "demo")] == ["b2", "b3"]


def test_who_loses_the_number_of_a_step_takes_the_next(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [part.name for part in committed_parts(lake, "demo")]
    steps = [Step(why="superseded", replaces=(name,)) for name in names]
    create = objects.create_bytes

    def somebody_is_faster(uri: str, data: bytes) -> bool:
        monkeypatch.setattr(objects, "create_bytes", create)
        create(uri, steps[1].encode())
        return create(uri, data)

    monkeypatch.setattr(objects, "create_bytes", somebody_is_faster)
    assert append_step(lake, "demo", steps[0])
    assert append_step(lake, "demo", steps[0]), "a second time it is found"
    assert not append_step(lake, "demo", Step(why="merged", replaces=(names[2], names[0]), by="00009-0123456789ab"))
    assert read_log(lake, "demo").steps == (steps[1], steps[0])
    assert [part.name for part in committed_parts(lake, "demo")] == names[2:]


def test_a_release_that_was_curated_before_is_assembled_over_the_old_part(lake: Lake) -> None:
    """Nothing is collected yet: what was decided of the old part stays true."""
    from smalti.curation.curate import curate

    run = keeping_text("other")
    curated = curate(lake, run).curation
    rewritten(lake)
    report = assemble(lake, run.model_copy(update={"curation": curated}))
    assert len(served(lake, read_manifest(report.manifest))) == 15


def test_what_speaks_for_its_copies_stays(lake: Lake) -> None:
    """An nsfw picture and its copy, which its own captioner thought harmless: without the first the second would be served."""
    image = picture(700)
    deliver(
        lake,
        "b4",
        [
            Row("bad.jpg", stored(image), label="nsfw"),
            Row("fine.jpg", stored(picture(701))),
            Row("text.jpg", stored(picture(702)), label="text"),
        ],
    )
    deliver(lake, "b5", [Row("copy.jpg", stored(image, quality=80)), Row("other.jpg", stored(picture(703)))])
    assert release(lake).accounting.skipped[SkipReason.NSFW] == 2
    report = rewritten(lake)
    assert report.dropped == {"text": 4}
    assert {f"demo/{n}.jpg" for n in ("bad", "copy")} & set(served(lake, release(lake))) == set()


@pytest.mark.parametrize("first_sharded", ["b1", "again"])
def test_a_picture_that_was_replaced_never_comes_back(lake: Lake, first_sharded: str) -> None:
    """1-0 is delivered again as a page of text: were the page gone, the old picture would be the newest that there is."""
    deliver(
        lake,
        "b1x",
        [Row("1-0.jpg", stored(picture(800)), label="text"), Row("y.jpg", stored(picture(801)), label="text")]
        + [Row(f"z{n}.jpg", stored(picture(802 + n))) for n in range(2)],
    )
    assert "demo/1-0.jpg" not in served(lake, release(lake))
    report = rewritten(lake, keep_versions=1)
    assert report.dropped == {"superseded": 1, "text": 4}, (
        "the old picture goes, three pages and y do, the new page stays"
    )
    assert "demo/1-0.jpg" not in served(lake, release(lake))
    if first_sharded == "again":  # the batch of the old picture, in other shards
        shard(lake, source_run(batch="b1", quality=80))
        assert "demo/1-0.jpg" not in served(lake, release(lake))
        assert "demo/1-1.jpg" in served(lake, release(lake))


def test_of_a_batch_that_was_sharded_twice_the_older_sample_goes_first(lake: Lake) -> None:
    shard(lake, source_run(batch="b1", quality=80))
    release(lake)
    report = rewritten(lake, keep_versions=1)
    assert report.warnings == (f"{next(iter(report.shares))}: every release leaves all of it out; it is kept as it is",)
    newest = [part for part in committed_parts(lake, "demo") if part.encoding.quality == 80]
    assert [part.samples for part in newest] == [5], "the page in it has an older one behind it, in the other part"


def test_dry_run_says_the_same_and_writes_nothing(lake: Lake) -> None:
    before = {each.uri: each for each in objects.list_objects(lake.root)}
    told = rewrite(lake, MaintenanceRun())
    assert {each.uri: each for each in objects.list_objects(lake.root)} == before
    done = rewritten(lake)
    assert told.dry_run
    assert (list(told.rewritten), told.samples, told.kept) == (list(done.rewritten), done.samples, done.kept)


def test_a_part_that_is_not_there_or_not_any_more_is_said(lake: Lake) -> None:
    old = first(lake).name
    with pytest.raises(InputError, match="part demo/00009-0123456789ab: there is no such part"):
        rewritten(lake, parts=("demo/00009-0123456789ab",))
    rewritten(lake)
    with pytest.raises(InputError, match=f"part demo/{old}: the part was replaced already"):
        rewritten(lake, parts=(f"demo/{old}",))
    assert read_part(lake, "demo", old).samples == 5
