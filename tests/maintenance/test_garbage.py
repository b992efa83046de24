"""Garbage: marked first, deleted a grace later, and never while a release needs it or may come to need it."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from smalti import objects
from smalti.curation.curate import curate
from smalti.errors import ConflictError, InputError, MissingObject
from smalti.lake import Lake
from smalti.maintenance import garbage
from smalti.maintenance.garbage import GcReport, gc
from smalti.maintenance.marks import read_mark, unfinished
from smalti.maintenance.merge import merge
from smalti.release import assemble as assemble_module
from smalti.release import verify as verify_module
from smalti.release.assemble import assemble, claim_version, claimed_versions
from smalti.release.latest import live_versions, move_latest, read_latest
from smalti.release.manifest import read_manifest
from smalti.release.publish import rollback
from smalti.release.verify import verify_manifest
from smalti.settings import MaintenanceRun
from smalti.shards.part import committed_parts, read_part
from smalti.shards.stage import shard
from tests.maintenance.conftest import (
    APPLY,
    DAY,
    Died,
    age,
    content,
    deliver,
    dying_after,
    release,
    rows_of_a_day,
    served,
    until_done,
)
from tests.release.conftest import build
from tests.release.test_verify import kept_ids
from tests.support.pictures import Row, picture, release_run, source_run, stored, write_table


def collect(lake: Lake, days: float = 0.0, **settings: Any) -> GcReport:
    """`smalti gc --apply`, so many days from now."""
    return gc(lake, APPLY.model_copy(update=settings), time.time() + days * DAY)


def everything(lake: Lake) -> dict[str, objects.ObjectInfo]:
    return {each.uri: each for each in objects.list_objects(lake.root)}


def gone(lake: Lake, before: dict[str, objects.ObjectInfo]) -> set[str]:
    return {uri.removeprefix(lake.root + "/") for uri in set(before) - set(everything(lake))}


def merged_and_released(lake: Lake) -> None:
    """The three parts are replaced, and LATEST names a release over the new one."""
    merge(lake, APPLY)
    release(lake)


def two_days(lake: Lake) -> Lake:
    """A small lake with a release, for tests that need many of them or pay for each request."""
    for day in (1, 2):
        deliver(lake, f"b{day}", rows_of_a_day(day, 1))
    release(lake)
    return lake


def test_a_tidy_lake_has_no_garbage(lake: Lake) -> None:
    age(lake, 30)
    before = everything(lake)
    report = collect(lake)
    assert (report.deleted, report.marked, report.shown) == ({}, {}, ())
    assert everything(lake) == before


def test_replaced_parts_go_when_the_last_release_that_uses_them_is_given_up(lake: Lake) -> None:
    old = [part.name for part in committed_parts(lake, "demo")]
    merged_and_released(lake)
    age(lake, 30)
    assert collect(lake).marked == {}, "v1 is live, and it uses them"
    before = everything(lake)
    report = collect(lake, keep_versions=1)
    assert report.given_up == ("set/v1",)
    assert report.marked["part"] > 3 * 3
    assert gone(lake, before) == set(), "first it is only marked"
    assert collect(lake, 6.9, keep_versions=1).waiting == sum(report.marked.values())
    assert gone(lake, before) == set()
    done = collect(lake, 7.1, keep_versions=1)
    assert done.deleted == report.marked
    assert done.deleted_bytes == report.marked_bytes
    away = gone(lake, before)
    assert {name.split("/")[2] for name in away if name.startswith("parts/")} == set(old)
    assert "releases/set/v1/manifest.json" in away
    kept = [each.uri.rpartition("/")[2] for each in objects.list_objects(lake.release("set", "v1"))]
    assert kept == ["claim.json", "tombstone.json"]
    assert {name.split("/")[3] for name in away if name.startswith("progress/")} == set(old)
    assert verify_manifest(lake.manifest("set", "v2")).faults == ()
    listed = {
        uri
        for log in done.logs
        for item in json.loads(objects.read_bytes(log)).get("items", ())
        for uri in item["deletes"]
    }
    assert listed == {f"{lake.root}/{name}" for name in away}, "every object is in the log"
    assert collect(lake, 30, keep_versions=1).marked == {}


def test_a_version_that_was_given_up_is_never_served_again_and_its_name_stays_taken(lake: Lake) -> None:
    first = read_manifest(lake.manifest("set", "v1"))
    merged_and_released(lake)
    age(lake, 30)
    collect(lake, keep_versions=1)
    assert live_versions(lake, "set") == ("v2",)
    with pytest.raises(InputError, match="v1 of set was given up"):
        rollback(lake, "set", "v1")
    with pytest.raises(InputError, match="version v1 of set was given up"):
        move_latest(lake, "set", "v1", first.digest)
    assert claim_version(lake, "set", first.digest, None).version == "v3", "the same content gets another name"
    age(lake, 30)
    collect(lake, 8, keep_versions=1)
    assert claimed_versions(lake, "set") == ["v1", "v2", "v3"]
    assert objects.exists(lake.release_tombstone("set", "v1"))
    assert not objects.exists(lake.manifest("set", "v1"))


def test_the_newest_versions_stay_live_in_the_order_in_which_they_were_served(lake: Lake) -> None:
    merged_and_released(lake)
    deliver(lake, "b4", rows_of_a_day(4))
    release(lake)
    first = read_manifest(lake.manifest("set", "v1"))
    move_latest(lake, "set", "v1", first.digest)
    assert live_versions(lake, "set") == ("v1", "v3", "v2")
    assert live_versions(lake, "set", 2) == ("v1", "v3")
    age(lake, 30)
    assert collect(lake, keep_versions=2).given_up == ("set/v2",)
    assert live_versions(lake, "set") == ("v1", "v3")


def test_a_part_that_a_release_could_still_serve_stays_without_any_release(lake: Lake) -> None:
    """Whatever is in sight belongs to the next release, however old it is."""
    deliver(lake, "b4", rows_of_a_day(4))
    age(lake, 300)
    assert collect(lake).marked == {}
    assert len(committed_parts(lake, "demo")) == 4


def test_a_part_all_of_whose_samples_are_superseded_goes_and_shard_does_not_make_it_again(lake: Lake) -> None:
    name = deliver(lake, "b4", rows_of_a_day(4))
    again = str(shard(lake, source_run(batch="b4", quality=80)).part)
    other = deliver(lake, "b5", rows_of_a_day(4)[:2])
    assert collect(lake).marked == {}, "it is young"
    age(lake, 30)
    report = collect(lake)
    assert report.marked.keys() == {"part"}
    assert {part.name for part in committed_parts(lake, "demo")} >= {again, other}
    assert name not in {part.name for part in committed_parts(lake, "demo")}
    collect(lake, 8)
    with pytest.raises(MissingObject):
        read_part(lake, "demo", name)
    before = everything(lake)
    assert shard(lake, source_run(batch="b4", quality=80)).part == again
    assert everything(lake) == before
    assert shard(lake, source_run(batch="b4")).part not in (name, again), "the newest plan of the batch is another"


def test_a_batch_whose_only_part_was_superseded_is_not_written_again(lake: Lake) -> None:
    """All that b4 had came again, with other bytes, in b5: b4's part is gone, and its plan is still known."""
    deliver(lake, "b4", [Row("x.jpg", stored(picture(700)))])
    deliver(lake, "b5", [Row("x.jpg", stored(picture(701)))])
    age(lake, 30)
    collect(lake)
    collect(lake, 8)
    before = everything(lake)
    report = shard(lake, source_run(batch="b4"))
    assert (report.part, report.rows_in, report.rows_out) == (None, 1, 1)
    assert everything(lake) == before


def test_what_another_captioner_described_is_not_superseded(lake: Lake) -> None:
    """A dataset may accept the one or the other; of each the newest part stays."""
    run = source_run(batch="b1")
    other = run.model_copy(update={"captioner": run.captioner.model_copy(update={"name": "vlm"})})
    both = Lake.at(f"{lake.root}-captioned")
    for each in (run, other):
        at = Lake.at(f"{both.root}-{each.captioner.name}")
        write_table(at, each, [Row("x.jpg", stored(picture(700)))])
        shard(at, each)
        for info in objects.list_objects(at.parts_root()):
            objects.create_bytes(info.uri.replace(at.root, both.root), objects.read_bytes(info.uri))
    parts = committed_parts(both, "demo")
    assert [part.engines[0].name for part in parts] in (["rules", "vlm"], ["vlm", "rules"])
    age(both, 30)
    assert collect(both).marked == {}


def test_attempts_and_parts_that_nobody_went_on_with_go(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    run = source_run(batch="b4")
    write_table(lake, run, rows_of_a_day(4))
    revive = dying_after(monkeypatch, 5)
    with pytest.raises(Died):
        shard(lake, run)
    revive()
    left = Path(lake.parts_root().removeprefix("file://")) / "demo" / ".attempt-shard-x"
    left.write_bytes(b"half")
    assert collect(lake).marked == {}, "somebody may be at it"
    age(lake, 30)
    report = collect(lake)
    assert report.marked == {"attempt": 1, "unfinished part": 3}
    before = everything(lake)
    assert collect(lake, 8).deleted == {"attempt": 1, "unfinished part": 5}, "its records of progress too"
    assert not left.exists()
    assert len(gone(lake, before)) == 5
    assert collect(lake, 30).marked == {}
    made = str(shard(lake, run).part)
    assert made.startswith("00005-"), "its first name can no longer be committed"
    assert release(lake).accounting.kept == 16


def test_a_part_that_somebody_goes_on_with_is_spared(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    run = source_run(batch="b4")
    write_table(lake, run, rows_of_a_day(4))
    revive = dying_after(monkeypatch, 5)
    with pytest.raises(Died):
        shard(lake, run)
    revive()
    age(lake, 30)
    collect(lake)
    name = shard(lake, run).part
    before = everything(lake)
    assert collect(lake, 8).deleted == {"unfinished part": 0}
    assert gone(lake, before) == set()
    assert name in {part.name for part in committed_parts(lake, "demo")}


def test_of_a_writer_that_comes_back_and_a_collection_exactly_one_has_the_part(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer slept through two graces right before its commit; the collection is between looking and deleting."""
    run = source_run(batch="b4")
    write_table(lake, run, rows_of_a_day(4))
    create = objects.create_bytes

    def asleep(uri: str, data: bytes) -> bool:
        if uri.endswith("part.json"):
            monkeypatch.setattr(objects, "create_bytes", create)
            age(lake, 30)
            collect(lake)
            assert collect(lake, 8).deleted["unfinished part"] > 5
        return create(uri, data)

    monkeypatch.setattr(objects, "create_bytes", asleep)
    with pytest.raises(ConflictError, match="the part was collected as garbage while it was written"):
        shard(lake, run)
    assert len(committed_parts(lake, "demo")) == 3
    assert str(shard(lake, run).part).startswith("00005-")


def test_what_maintenance_wrote_and_no_step_names_goes(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    revive = dying_after(monkeypatch, 9)
    with pytest.raises(Died):
        merge(lake, APPLY)
    revive()
    age(lake, 30)
    report = collect(lake)
    assert report.marked.keys() == {"part"}
    collect(lake, 8)
    assert collect(lake, 30).marked == {}
    assert len(committed_parts(lake, "demo")) == 3
    merge(lake, APPLY)
    assert len(committed_parts(lake, "demo")) == 1


def test_versions_that_nobody_published_go_after_the_grace(lake: Lake) -> None:
    build(lake, release_run("demo", name="other"))
    claim_version(lake, "set", "a" * 64, None)
    assert collect(lake).marked == {}
    age(lake, 30)
    report = collect(lake)
    assert report.given_up == ("other/v1", "set/v2")
    assert report.marked["version"] > 2
    collect(lake, 8)
    assert read_latest(lake, "other") is None
    assert not objects.exists(lake.manifest("other", "v1"))
    assert [str(each.uri).rpartition("/")[2] for each in objects.list_objects(lake.release("other", "v1"))] == [
        "claim.json",
        "tombstone.json",
    ]
    assert build(lake, release_run("demo", name="other")).version == "v2"
    assert verify_manifest(lake.manifest("set", "v1")).faults == ()


def test_skip_files_and_curations_that_no_manifest_names_go(lake: Lake) -> None:
    age(lake, 30)
    orphan = curate(lake, release_run("demo", name="set", drops={"labels": ("nsfw",)})).curation
    assert collect(lake).marked == {}
    age(lake, 30)
    stray = lake.skip_file("set", "0" * 64)
    objects.create_bytes(stray, b"x")
    age(lake, 30)
    assert collect(lake).marked == {"curation": 2, "skip file": 1}
    before = everything(lake)
    collect(lake, 8)
    rows = orphan.removesuffix(".json.gz") + ".parquet"
    assert gone(lake, before) == {each.removeprefix(lake.root + "/") for each in (orphan, rows, stray)}
    assert verify_manifest(lake.manifest("set", "v1")).faults == ()


def test_dry_run_says_what_would_go_and_changes_nothing(lake: Lake) -> None:
    merged_and_released(lake)
    age(lake, 30)
    before = everything(lake)
    told = gc(lake, MaintenanceRun(keep_versions=1))
    assert everything(lake) == before
    assert told.dry_run
    done = collect(lake, keep_versions=1)
    assert (told.marked, told.marked_bytes, told.given_up) == (done.marked, done.marked_bytes, done.given_up)
    assert any("would be marked: part demo/" in line.replace("parts/", "") for line in told.shown)
    later = gc(lake, MaintenanceRun(keep_versions=1), time.time() + 8 * DAY)
    assert later.deleted == done.marked
    assert any(line.startswith("would be deleted: version releases/set/v1 (") for line in later.shown)
    assert not objects.exists(lake.collection(unfinished(lake)[0].name, "sweep.json"))


def test_killed_at_any_change_the_next_runs_end_in_the_same_lake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Marking and sweeping, each killed at every creation, swap and deletion."""

    def tidy(lake: Lake) -> None:
        collect(lake, keep_versions=1)
        collect(lake, 8, keep_versions=1)

    first = two_days(Lake.at(str(tmp_path / "first")))
    merged_and_released(first)
    age(first, 30)

    def prepared(name: str) -> Lake:
        shutil.copytree(tmp_path / "first", tmp_path / name)  # times too
        return Lake.at(str(tmp_path / name))

    undisturbed = prepared("undisturbed")
    tidy(undisturbed)
    wanted = content(undisturbed)
    killed = 0
    for lake in until_done(monkeypatch, prepared, tidy):
        assert verify_manifest(lake.manifest("set", "v2")).faults == ()
        tidy(lake)
        collect(lake, 16, keep_versions=1)
        assert content(lake) == wanted
        assert unfinished(lake) == []
        killed += 1
    assert killed > 20, "the mark and what goes before it, the sweep, every deletion, and the end"


# Races: assemble and gc at every place where the one could stand when the other runs


def waiting_for_sweep(lake: Lake, dataset: str = "late") -> Any:
    """A lake whose old parts are marked and due, and a curation that still names them. Returns the run that assembles it.

    Of dataset `set` it is the content of v1, which was given up: its skip files and its curation are due as well.
    """
    run = release_run("demo", name=dataset)
    curated = curate(lake, run).curation
    merged_and_released(lake)
    age(lake, 30)
    collect(lake, -8, keep_versions=1)
    return run.model_copy(update={"curation": curated})


SAME_FILES = [("claim_version", "after"), ("refuse_doomed", "before"), ("refuse_doomed", "after"), ("_write", "after")]
STEPS = ("read_curation", "read_parts", "streams_of", "claim_version", "refuse_doomed", "_write", "_commit", "is_gone")


@pytest.mark.parametrize(
    ("dataset", "version", "step", "when"),
    [("late", "v1", step, when) for step in STEPS for when in ("before", "after")]
    + [("set", "v3", step, when) for step, when in SAME_FILES],
)
def test_a_sweep_that_runs_in_the_middle_of_an_assembly_never_takes_what_the_release_needs(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, dataset: str, version: str, step: str, when: str
) -> None:
    """Either the assembly fails, or its release is whole."""
    run = waiting_for_sweep(lake, dataset)
    real = getattr(assemble_module, step)
    swept: list[GcReport] = []

    def interrupted(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(assemble_module, step, real)
        if when == "before":
            swept.append(collect(lake, keep_versions=1))
        result = real(*arguments, **named)
        if when == "after":
            swept.append(collect(lake, keep_versions=1))
        return result

    monkeypatch.setattr(assemble_module, step, interrupted)
    try:
        manifest = assemble(lake, run).manifest
    except (ConflictError, MissingObject):
        manifest = None
    assert len(swept) == 1
    if manifest is None:
        assert swept[0].deleted["part"] > 0
        assert not objects.exists(lake.manifest(dataset, version))
    else:
        assert manifest == lake.manifest(dataset, version)
        assert swept[0].deleted["part"] == 0
        assert verify_manifest(manifest).faults == ()
    claimed_first = STEPS.index(step) > STEPS.index("claim_version") or (step, when) == ("claim_version", "after")
    assert (manifest is not None) == claimed_first


@pytest.mark.parametrize("moment", ["announced", "decided", "deleted some"])
def test_an_assembly_in_the_middle_of_a_sweep_is_refused_or_found(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    run = waiting_for_sweep(lake)
    outcome: list[Exception | str] = []

    def assembling() -> None:
        monkeypatch.undo()
        monkeypatch.setattr(verify_module, "read_ids", kept_ids)
        try:
            outcome.append(assemble(lake, run).manifest)
        except (ConflictError, MissingObject) as error:
            outcome.append(error)

    def first_assembling(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            assembling()
            return function(*arguments, **named)

        return call

    def then_assembling(uri: str) -> bool:
        removed = remove(uri)
        assembling()
        return removed

    remove = objects.delete_object
    if moment == "announced":
        monkeypatch.setattr(garbage, "decide", first_assembling(garbage.decide))
    elif moment == "decided":
        monkeypatch.setattr(garbage, "delete_all", first_assembling(garbage.delete_all))
    else:
        monkeypatch.setattr(objects, "delete_object", then_assembling)
    report = collect(lake, keep_versions=1)
    assert isinstance(outcome[0], ConflictError | MissingObject)
    if moment != "deleted some":
        assert "may be deleting this" in str(outcome[0])
    assert not objects.exists(lake.manifest("late", "v1"))
    if moment == "announced":
        assert report.deleted["part"] == 0, "the claim was found, and nobody knew yet what it needs"
    assert verify_manifest(lake.manifest("set", "v2")).faults == ()
    again = release_run("demo", name="late")
    assert verify_manifest(build(lake, again).manifest).faults == ()


def test_a_claim_without_a_manifest_holds_all_parts_until_it_is_given_up(lake: Lake) -> None:
    waiting_for_sweep(lake)
    claim_version(lake, "late", "b" * 64, None)
    report = collect(lake, keep_versions=1)
    assert report.deleted["part"] == 0
    assert report.warnings == (
        f"{lake.root}/releases/late/v1 is claimed and not assembled: as long as it is, no part is deleted",
    )
    assert collect(lake, 8, keep_versions=1).given_up == ("late/v1",)
    assert collect(lake, 16, keep_versions=1).deleted["part"] > 0
    assert not [part for part in committed_parts(lake, "demo", hidden=True) if not part.replaces]


def test_publishing_and_giving_up_are_decided_by_one_swap(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version is published between the look of the collection and its swap, and the other way round."""
    late = read_manifest(build(lake, release_run("demo", drops={"labels": ("nsfw",)})).manifest)
    age(lake, 30)
    swap = objects.swap_bytes

    def published_meanwhile(uri: str, data: bytes, expected: str | None) -> bool:
        monkeypatch.setattr(objects, "swap_bytes", swap)
        move_latest(lake, "set", late.version, late.digest)
        return swap(uri, data, expected)

    monkeypatch.setattr(objects, "swap_bytes", published_meanwhile)
    collect(lake)
    assert live_versions(lake, "set") == ("v2", "v1")
    collect(lake, 8)
    assert verify_manifest(lake.manifest("set", "v2")).faults == ()

    other = read_manifest(build(lake, release_run("demo", drops={"labels": ("text",)})).manifest)
    age(lake, 30)

    def given_up_meanwhile(uri: str, data: bytes, expected: str | None) -> bool:
        monkeypatch.setattr(objects, "swap_bytes", swap)
        collect(lake, 16)
        return swap(uri, data, expected)

    monkeypatch.setattr(objects, "swap_bytes", given_up_meanwhile)
    with pytest.raises(InputError, match="version v3 of set was given up"):
        move_latest(lake, "set", other.version, other.digest)
    assert live_versions(lake, "set") == ("v2", "v1")


def test_an_assembly_whose_version_was_given_up_meanwhile_says_so(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    real = assemble_module._commit

    def slept(uri: str, manifest: Any) -> None:
        age(lake, 30)
        collect(lake)
        real(uri, manifest)

    monkeypatch.setattr(assemble_module, "_commit", slept)
    with pytest.raises(ConflictError, match="the version was given up while it was written"):
        build(lake, release_run("demo", name="slow"))
    monkeypatch.undo()
    assert build(lake, release_run("demo", name="slow")).version == "v2"


def test_a_damaged_manifest_stops_everything(lake: Lake) -> None:
    from smalti.errors import CorruptError

    merged_and_released(lake)
    age(lake, 30)
    collect(lake, keep_versions=1)
    path = objects.local_path(lake.manifest("set", "v2"))
    assert path is not None
    path.write_bytes(path.read_bytes().replace(b'"kept": 12', b'"kept": 11'))
    with pytest.raises(CorruptError):
        collect(lake, 8, keep_versions=1)
    assert len(committed_parts(lake, "demo", hidden=True)) == 4


def test_everything_works_on_gcs_as_on_disk(tmp_path: Path, gcs_lake: Lake) -> None:
    lake = two_days(Lake.at(str(tmp_path / "small")))
    for each in objects.list_objects(lake.root):
        if not each.uri.startswith(lake.tables()):
            objects.create_bytes(each.uri.replace(lake.root, gcs_lake.root), objects.read_bytes(each.uri))
    before = served(gcs_lake, read_manifest(gcs_lake.manifest("set", "v1")))
    merged_and_released(gcs_lake)
    none = {"grace_days": 0.0, "keep_versions": 1}
    marked = collect(gcs_lake, 0.01, **none).marked
    assert marked["part"] > 6
    assert collect(gcs_lake, 0.02, **none).deleted == marked
    assert served(gcs_lake, read_manifest(gcs_lake.manifest("set", "v2"))) == before
    assert len(committed_parts(gcs_lake, "demo", hidden=True)) == 1
    assert read_mark(gcs_lake, objects.list_names(gcs_lake.collections())[0]).doomed
