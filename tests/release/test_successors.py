"""Live versions that hold what was opted out are succeeded: at their places, once, whoever publishes at the same time or dies."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from smalti import objects
from smalti.config import Drops
from smalti.curation.record import ROWS, Cluster, Curation, read_curation
from smalti.curation.recorded import Recorded
from smalti.errors import ConflictError, CorruptError, InputError
from smalti.lake import Lake
from smalti.maintenance.garbage import gc
from smalti.maintenance.live import references
from smalti.release import publish as publish_module
from smalti.release import successors
from smalti.release import verify as verify_module
from smalti.release.assemble import claimed_versions
from smalti.release.diff import diff
from smalti.release.latest import (
    Ablation,
    Latest,
    Past,
    give_up,
    is_gone,
    live_versions,
    move_latest,
    read_latest,
    stored_latest,
)
from smalti.release.manifest import Manifest, beside, read_manifest, read_skip_file, read_stream_index
from smalti.release.materialize import materialize
from smalti.release.optouts import OptoutSnapshot
from smalti.release.publish import publish, rollback, write_tree
from smalti.release.successors import Succeeded, succeed, touched_versions
from smalti.release.summary import samples_of, summary
from smalti.release.tombstones import COLLECTED, Tombstone, read_tombstone, resumed_by, successor_of
from smalti.release.tree_claims import position_of
from smalti.release.verify import read_verified, verify, verify_manifest
from smalti.settings import ReleaseRun
from smalti.shards.part import committed_parts
from tests.conftest import snapshot
from tests.maintenance.conftest import APPLY, Died, content
from tests.release.conftest import add, build
from tests.release.test_verify import kept_ids, path_of
from tests.support.pictures import Row, picture, release_run, stored

WHY = "opted out"


@pytest.fixture(autouse=True)
def without_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing streaming takes many seconds, and the loader has tests of its own."""
    monkeypatch.setattr(verify_module, "read_ids", kept_ids)


def make(lake: Lake, run: ReleaseRun, *, served: bool = True) -> Manifest:
    """A version that was verified and, unless it is not to be served, published."""
    run = run.model_copy(update={"manifest": build(lake, run).manifest})
    verify(lake, run)
    if served:
        publish(lake, run)
    return read_manifest(str(run.manifest))


def opt_out(lake: Lake, *ids: str, position: int = 1) -> None:
    """A snapshot, as the ledger would write it, of these samples wherever they stand."""
    shards: dict[str, list[int]] = {}
    for uri in [each.uri for each in objects.list_objects(lake.releases()) if each.uri.endswith("/manifest.json")]:
        for name, shard, index, _ in samples_of(uri, read_manifest(uri)):
            if name in ids and index not in shards.setdefault(shard, []):
                shards[shard].append(index)
    places = {shard: tuple(sorted(each)) for shard, each in shards.items() if each}
    found = OptoutSnapshot(position=position, shards=places, ids=tuple(sorted(ids)))
    objects.create_same(lake.optout_snapshot(position), found.encode())


def served(lake: Lake, version: str) -> set[str]:
    return set(summary(lake.manifest("set", version)).kept_ids)


@pytest.fixture(scope="module")
def made(parts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """v1 and v2 were served one after the other, both with trees, and an ablation of v2 is kept."""
    folder = tmp_path_factory.mktemp("made") / "lake"
    shutil.copytree(parts, folder)
    lake = Lake.at(str(folder))
    run = trees()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify_module, "read_ids", kept_ids)
        make(lake, run)
        add(lake, [Row("later.jpg", stored(picture(40)))], batch="b2")
        make(lake, run)
        make(lake, run.model_copy(update={"without": ("text",)}))
    return folder


def trees() -> ReleaseRun:
    return release_run("demo:main", "other:extra", groups={"main": 3.0, "extra": 1.0}, publish="tree")


@pytest.fixture
def lake(made: Path, tmp_path: Path) -> Lake:
    shutil.copytree(made, tmp_path / "made")
    return Lake.at(str(tmp_path / "made"))


def test_live_trees_are_succeeded_each_at_its_place(lake: Lake) -> None:
    old = {version: read_manifest(lake.manifest("set", version)) for version in live_versions(lake, "set")}
    before = {version: served(lake, version) for version in old}
    assert list(old) == ["v2", "v1", "v2-without-text"]
    opt_out(lake, "demo/3.jpg")

    done = succeed(lake, why=WHY)

    assert done == (
        Succeeded("set", "v2", "v3"),
        Succeeded("set", "v1", "v4"),
        Succeeded("set", "v2-without-text", "v3-without-text"),
    )
    latest = stored_latest(lake, "set")
    assert latest.published() == ("v3", "v4")
    assert [(each.version, each.base) for each in latest.ablations] == [("v3-without-text", "v3")]
    assert latest.collected == ("v1", "v2", "v2-without-text")
    for each in done:
        new = read_manifest(lake.manifest("set", str(each.new)))
        was = old[each.old]
        assert new.succeeds is not None
        assert (new.succeeds.version, new.succeeds.digest) == (was.version, was.digest)
        assert (new.parent, new.optouts) == ("v3" if new.without else each.old, 1)
        assert (new.settings, new.sources[0].parts, new.without) == (was.settings, was.sources[0].parts, was.without)
        assert served(lake, new.version) == before[each.old] - {"demo/3.jpg"} != before[each.old]
        stone = read_tombstone(lake, "set", each.old)
        assert stone is not None
        assert (stone.why, stone.successor) == (WHY, each.new)
        tree = json.loads(objects.read_bytes(f"{lake.tree('set', new.version)}/tree.json"))
        assert sum(bucket["samples"] for bucket in tree["buckets"].values()) == new.accounting.kept
    content = snapshot(lake.root)
    assert succeed(lake, why=WHY) == ()
    assert snapshot(lake.root) == content, "a second time nothing changes"


def test_what_was_succeeded_is_not_served_again(lake: Lake) -> None:
    opt_out(lake, "demo/3.jpg")
    succeed(lake, why=WHY)
    run = trees().model_copy(update={"manifest": lake.manifest("set", "v1")})
    with pytest.raises(InputError, match="v1 of set was succeeded by v4: opted out"):
        publish(lake, run)
    with pytest.raises(InputError, match="v1 of set was succeeded by v4: opted out"):
        rollback(lake, "set", "v1")
    assert rollback(lake, "set", "v4").previous == "v3"
    with pytest.raises(InputError, match="was succeeded by v4"):
        move_latest(lake, "set", "v1", read_manifest(lake.manifest("set", "v1")).digest)


@pytest.fixture
def small(tmp_path: Path) -> Lake:
    """v1 of one part, with a text page and a pair of copies, and v1 without text pages."""
    lake = Lake.at(str(tmp_path / "small"))
    add(lake, rows(0, 1, 2))
    return lake


def rows(*numbers: int) -> list[Row]:
    found = [Row(f"{n}.jpg", stored(picture(n))) for n in numbers]
    return [*found, Row("copy.jpg", stored(picture(2, 500, 500))), Row("text.jpg", stored(picture(20)), label="text")]


def exchange_part(lake: Lake, *numbers: int, batch: str = "again") -> dict[str, str]:
    """A part with other pictures in the place of the first one, as if the others had been erased."""
    add(lake, rows(*numbers), batch=batch)
    old, new = sorted(each.name for each in committed_parts(lake, "demo"))
    return {f"demo/{old}": f"demo/{new}"}


def test_parts_are_exchanged_and_what_was_decided_stays(small: Lake, tmp_path: Path) -> None:
    denied = tmp_path / "denied.txt"
    denied.write_text("demo/0.jpg\n")
    run = release_run("demo", drops={"denylist": (denied.as_uri(),)}, reason_sets=(("text",),), expected={})
    old = make(small, run)
    ablation = make(small, run.model_copy(update={"without": ("text",)}))
    unpublished = make(small, release_run("demo", drops={"labels": ("nsfw",)}), served=False)
    denied.write_text("demo/2.jpg\n")
    exchanged = exchange_part(small, 0, 2)

    done = succeed(small, why="erased", exchanged=exchanged)

    assert [(each.old, each.new) for each in done] == [("v1", "v3"), ("v1-without-text", "v3-without-text")]
    new = read_manifest(small.manifest("set", "v3"))
    assert [f"{s.name}/{part.name}" for s in new.sources for part in s.parts] == list(exchanged.values())
    assert served(small, "v1") == {"demo/1.jpg", "demo/2.jpg"}
    assert served(small, "v3") == {"demo/2.jpg"}
    assert served(small, "v3-without-text") == {"demo/2.jpg", "demo/text.jpg"}
    assert new.accounting.skipped == {"denylist": 1, "duplicate": 1, "text": 1}
    assert (new.reason_sets, new.settings) == (old.reason_sets, old.settings)
    assert new.warnings == (
        f"denylist: {denied.as_uri()} has changed since the version before was curated; what it said then holds",
    )
    assert read_manifest(small.manifest("set", "v3-without-text")).without == ablation.without
    assert is_gone(small, "set", unpublished.version)
    assert read_tombstone(small, "set", "v2") == Tombstone(why="erased")
    path_of(small.release_tombstone("set", "v2")).unlink()  # as if the run had been killed before it came to it
    assert succeed(small, why="erased", exchanged=exchanged) == ()
    assert read_tombstone(small, "set", "v2") == Tombstone(why="erased")
    with pytest.raises(InputError, match=r"version v2 of set was given up: erased"):
        publish(small, run.model_copy(update={"manifest": small.manifest("set", "v2")}))
    assert "demo/1.jpg" not in objects.read_bytes(small.release_report("set", "v3")).decode()
    denied.unlink()
    assert succeed(small, why="erased", exchanged=exchanged) == ()
    with pytest.raises(InputError, match="v1 of set was succeeded by v3: erased"):
        verify_manifest(small.manifest("set", "v1"))


def test_a_successor_that_is_decided_by_other_rules_says_so(
    small: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The record may be of an older smalti, or gone. People's requests do not wait for it."""
    run = release_run("demo", publish="tree")
    old = make(small, run)
    record = objects.normalise_uri(beside(small.manifest("set", "v1"), str(old.provenance.curation)))
    path_of(record).unlink()
    opt_out(small, "demo/1.jpg")
    monkeypatch.setattr("smalti.curation.curate.load_source", lambda _: SimpleNamespace(priority=7))
    assert succeed(small, why=WHY) == (Succeeded("set", "v1", "v2"),)
    new = read_manifest(small.manifest("set", "v2"))
    said = "what was decided for v1 cannot be read any more: this successor of it is decided by the lists, decisions"
    assert [line for line in new.warnings if said in line]
    assert said in caplog.text
    made = read_curation(beside(small.manifest("set", "v2"), str(new.provenance.curation)))
    assert made.settings["priorities"] == {"demo": 7}


def test_copies_of_what_was_erased_stay_left_out(small: Lake) -> None:
    """`copy.jpg` was a duplicate of what is gone now: nobody asked for it to be served instead."""
    make(small, release_run("demo"))
    exchanged = exchange_part(small, 0, 1)
    opt_out(small, "demo/2.jpg")
    succeed(small, why="erased", exchanged=exchanged)
    assert served(small, "v2") == {"demo/0.jpg", "demo/1.jpg"}
    assert read_manifest(small.manifest("set", "v2")).accounting.skipped == {"optout": 1, "text": 1}


def test_a_successor_with_the_content_of_another_version_is_a_version_of_its_own(small: Lake) -> None:
    """It says whose checkpoints it resumes."""
    run = release_run("demo", publish="tree")
    make(small, run)
    opt_out(small, "demo/1.jpg")
    newer = make(small, run)
    assert succeed(small, why=WHY) == (Succeeded("set", "v1", "v3"),)
    found = read_manifest(small.manifest("set", "v3"))
    assert (found.digest, found.succeeds and found.succeeds.version) == (newer.digest, "v1")
    assert stored_latest(small, "set").published() == ("v2", "v3")
    assert build(small, run).version == "v2"


def test_nothing_is_left(small: Lake) -> None:
    """LATEST names no version then, rather than an older one that nobody asked for."""
    run = release_run("demo", publish="tree")
    make(small, run)
    add(small, [Row("late.jpg", stored(picture(9)))], batch="b2")
    make(small, run.model_copy(update={"dataset": run.dataset.model_copy(update={"drops": Drops(denylist=())})}))
    make(small, run.model_copy(update={"without": ("text",)}))
    opt_out(small, "demo/0.jpg", "demo/1.jpg", "demo/2.jpg", "demo/copy.jpg", "demo/late.jpg")

    done = succeed(small, why=WHY)

    assert [(each.old, each.new) for each in done] == [("v2", None), ("v1", None), ("v2-without-text", None)]
    assert (read_latest(small, "set"), live_versions(small, "set")) == (None, ())
    for version in ("v1", "v2", "v2-without-text"):
        stone = read_tombstone(small, "set", version)
        assert (stone and stone.why, stone and stone.successor) == (WHY, None)
    with pytest.raises(InputError, match="nothing is left of version v1 of set: opted out"):
        rollback(small, "set", "v1")
    assert succeed(small, why=WHY) == ()
    add(small, [Row("new.jpg", stored(picture(12)))], batch="b3")
    assert make(small, run).version == "v3"
    assert stored_latest(small, "set").published() == ("v3",)


def test_what_is_left_in_the_history_stays_live_when_nothing_is_left_of_latest(small: Lake) -> None:
    run = release_run("demo")
    make(small, run)
    add(small, [Row("late.jpg", stored(picture(9)))], "other")
    make(small, release_run("other"))
    part = next(iter(committed_parts(small, "other")))
    assert succeed(small, why="erased", exchanged={f"other/{part.name}": ""}) == (Succeeded("set", "v2", None),)
    assert (read_latest(small, "set"), live_versions(small, "set")) == (None, ("v1",))
    assert {(each.manifest.version, each.live) for each in references(small).releases} == {("v1", True)}
    assert gc(small, APPLY.model_copy(update={"grace_days": 0})).given_up == ()
    assert rollback(small, "set", "v1").version == "v1"
    assert live_versions(small, "set") == ("v1",)


def test_a_tree_s_claim_that_is_lost_or_damaged(small: Lake) -> None:
    """A commit object says the same as a claim that is lost: here that the tree was written with a later position, and without the
    sample."""
    run = release_run("demo", publish="tree")
    make(small, run)
    opt_out(small, "demo/1.jpg")
    root, manifest = small.tree("set", "v1"), read_manifest(small.manifest("set", "v1"))
    shutil.rmtree(path_of(root))
    materialize(small.manifest("set", "v1"), root, optouts=1)
    assert touched_versions(small, "set") == ()
    claim = path_of(f"{root}/release.json")
    claim.unlink()
    assert position_of(manifest, root) == 1
    assert touched_versions(small, "set") == ()
    for damaged in (b"no JSON", b"[]"):
        claim.write_bytes(damaged)
        with pytest.raises(CorruptError, match=r"tree/release\.json: this does not say what the place holds"):
            succeed(small, why=WHY)
    claim.unlink()
    path_of(f"{root}/tree.json").unlink()
    assert touched_versions(small, "set") == ("v1",)


def test_a_dataset_that_cannot_be_succeeded_keeps_no_other_one_waiting(small: Lake) -> None:
    run = release_run("demo", publish="tree")
    for name in ("broken", "odd", "set"):
        make(small, run.model_copy(update={"dataset": run.dataset.model_copy(update={"name": name})}))
    opt_out(small, "demo/1.jpg")
    for name in ("broken", "odd"):
        path = path_of(small.manifest(name, "v1"))
        path.chmod(0o644)
        path.write_bytes(b"{}")
    for _ in range(2):
        with pytest.raises(CorruptError, match=r"broken/v1/manifest\.json: .* \(and 1 more datasets failed\)"):
            succeed(small, why=WHY)
    assert live_versions(small, "set") == ("v2",)
    assert served(small, "v2") == {"demo/0.jpg", "demo/2.jpg"}


def test_a_version_that_is_published_at_the_same_time_is_not_lost(small: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    run = release_run("demo", publish="tree")
    make(small, run)
    add(small, [Row("late.jpg", stored(picture(9)))], batch="b2")
    later = run.model_copy(update={"manifest": make(small, run, served=False) and small.manifest("set", "v2")})
    opt_out(small, "demo/1.jpg")
    swap = objects.swap_bytes

    def somebody_is_faster(uri: str, data: bytes, expected: str | None) -> bool:
        monkeypatch.setattr(objects, "swap_bytes", swap)
        monkeypatch.setattr(publish_module, "_refuse_opted_out", lambda *_: None)  # it looked before the request came
        monkeypatch.setattr(
            publish_module, "_look_again", lambda *given: given[-1]
        )  # and is killed before it looks again
        publish(small, later)
        return swap(uri, data, expected)

    monkeypatch.setattr(objects, "swap_bytes", somebody_is_faster)
    done = succeed(small, why=WHY)
    assert [(each.old, each.new) for each in done] == [("v1", "v3"), ("v2", "v4")]
    assert stored_latest(small, "set").published() == ("v4", "v3")
    assert served(small, "v4") == {"demo/0.jpg", "demo/2.jpg", "demo/late.jpg"}


@pytest.mark.parametrize("move", ["move_latest", "keep_ablation"])
@pytest.mark.parametrize("killed", [False, True], ids=["at once", "killed, and run again"])
def test_what_is_opted_out_as_a_tree_goes_live_is_succeeded_by_whoever_published_it(
    small: Lake, monkeypatch: pytest.MonkeyPatch, move: str, killed: bool
) -> None:
    """The request found no live tree, and was proved: nobody else will look."""
    run = release_run("demo", publish="tree")
    make(small, run)
    if move == "move_latest":
        add(small, [Row("late.jpg", stored(picture(9)))], batch="b2")
        later = make(small, run, served=False)
    else:
        later = make(small, run.model_copy(update={"without": ("text",)}), served=False)
    name, uri = later.version, small.manifest("set", later.version)
    goes_live = getattr(publish_module, move)

    def somebody_asks(*arguments: object) -> object:
        opt_out(small, "demo/1.jpg")
        done = goes_live(*arguments)
        if killed:
            raise Died
        return done

    monkeypatch.setattr(publish_module, move, somebody_asks)
    again = run.model_copy(update={"manifest": uri})
    if killed:
        with pytest.raises(Died):
            publish(small, again)
        monkeypatch.setattr(publish_module, move, goes_live)
    report = publish(small, again)
    latest = stored_latest(small, "set")
    said = latest.successor(name)
    assert said is not None
    assert f"it was succeeded by {said.by}" in report.warnings[-1]
    assert (report.version, report.digest) == (latest.version if move == "move_latest" else name, report.digest)
    assert report.tree == small.tree("set", said.by)
    assert touched_versions(small, "set") == ()
    for version in live_versions(small, "set"):
        assert "demo/1.jpg" not in served(small, version)


@pytest.mark.parametrize("most", [10, pytest.param(1, marks=pytest.mark.prove)])
def test_killed_at_every_write_a_rerun_ends_in_the_same(
    small: Lake, tmp_path: Path, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = release_run("demo", publish="tree")
    make(small, run)
    make(small, run.model_copy(update={"without": ("text",)}))
    exchanged = exchange_part(small, 0, 2)
    opt_out(small, "demo/1.jpg")
    shutil.copytree(str(objects.local_path(small.root)), tmp_path / "undisturbed")
    quiet = Lake.at(str(tmp_path / "undisturbed"))
    succeed(quiet, why=WHY, exchanged=exchanged)

    killed = 0
    while True:
        revive = dying_after_writing(monkeypatch, random.randint(1, most))
        try:
            succeed(small, why=WHY, exchanged=exchanged)
            break
        except Died:
            killed += 1
            assert len(live_versions(small, "set")) == 2
        finally:
            revive()
    print(f"killed {killed} times")
    assert killed >= 2
    assert lasting(small) == lasting(quiet)


def lasting(lake: Lake) -> dict[str, object]:
    """Everything but the times at which versions were made, sums over them, and names of the lake that v1 was made in."""
    found: dict[str, object] = {
        name: value
        for name, value in content(lake).items()
        if not name.endswith(("/manifest.json", "/verified.json")) and not ("/v1" in name and "streams.yaml" in name)
    }
    for version in claimed_versions(lake, "set"):
        manifest = read_manifest(lake.manifest("set", version))
        provenance = manifest.provenance.model_copy(update={"created": "", "files": {}})
        found[version] = manifest.model_copy(update={"provenance": provenance})
        assert read_verified(lake.manifest("set", version)) is not None
    return found


def dying_after_writing(monkeypatch: pytest.MonkeyPatch, writes: int) -> Callable[[], None]:
    """From now on the process dies instead of writing once more than so many times; returns what ends that."""
    left = [writes]
    real = {name: getattr(objects, name) for name in ("create_bytes", "swap_bytes")}

    def dying(name: str) -> Callable[..., bool]:
        def call(uri: str, *arguments: object) -> bool:
            if not left[0] and (name == "swap_bytes" or not objects.exists(uri)):
                raise Died
            done = bool(real[name](uri, *arguments))
            left[0] -= done
            return done

        return call

    for name in real:
        monkeypatch.setattr(objects, name, dying(name))

    def revive() -> None:
        for name, function in real.items():
            monkeypatch.setattr(objects, name, function)

    return revive


def test_what_checkpoints_resume_by_stays_as_long_as_the_last_successor_is_live(small: Lake) -> None:
    run = release_run("demo", publish="tree")
    make(small, run)
    opt_out(small, "demo/1.jpg")
    succeed(small, why=WHY)
    opt_out(small, "demo/1.jpg", "demo/0.jpg", position=2)
    assert succeed(small, why=WHY) == (Succeeded("set", "v2", "v3"),)
    assert successor_of(small, "set", "v1") == "v3"
    needed = {version: {*resumed_by(small, "set", version)} for version in ("v1", "v2")}
    now = APPLY.model_copy(update={"grace_days": 0, "keep_versions": 1})

    for _ in range(2):
        gc(small, now)

    for version, uris in needed.items():
        there = {each.uri for each in objects.list_objects(small.release("set", version))}
        names = {uri.removeprefix(small.release("set", version) + "/").partition("/")[0] for uri in there}
        assert names == {"claim.json", "tombstone.json", "manifest.json", "streams"}
        assert {*resumed_by(small, "set", version)} == uris
        for stream in read_manifest(small.manifest("set", version)).streams:
            read_stream_index(small.manifest("set", version), stream)
            read_skip_file(small.manifest("set", version), stream)
    assert diff(small.manifest("set", "v1"), small.manifest("set", "v3")).lost == {"optout": 2}

    add(small, [Row("late.jpg", stored(picture(9)))], batch="b2")
    make(small, run)
    for _ in range(3):
        gc(small, now)
    for version in ("v1", "v2", "v3"):
        left = {each.uri.rpartition("/")[2] for each in objects.list_objects(small.release("set", version))}
        assert left == {"claim.json", "tombstone.json"}
    for look in (verify_manifest, lambda uri: diff(uri, small.manifest("set", "v4"))):
        with pytest.raises(InputError, match="v1 of set was succeeded by v3"):
            look(small.manifest("set", "v1"))


def test_latest_exchanges_versions_at_their_places() -> None:
    def past(*versions: str) -> tuple[Past, ...]:
        return tuple(Past(version=each, digest=each) for each in versions)

    a, b = (Ablation(version=name, digest=name, base=base) for name, base in (("v1-a", "v1"), ("v3-b", "v3")))
    latest = Latest(version="v3", digest="v3", history=past("v1", "v2"), collected=("v0",), ablations=(a, b))
    new = dict(zip(("v1", "v3-b", "v9"), past("v4", "v4-b", "v8"), strict=True))
    after = latest.with_successors(new, WHY)
    assert after.published() == ("v3", "v2", "v4")
    assert [(each.version, each.base) for each in after.ablations] == [("v1-a", "v4"), ("v4-b", "v3")]
    assert after.collected == ("v0", "v1", "v3-b"), "v9 was not live"
    assert after.with_successors(new, WHY) == after

    same = latest.with_successors({"v1": Past(version="v3", digest="v3"), "v2": None}, WHY)
    assert (same.published(), [(each.version, each.by) for each in same.succeeded]) == (
        ("v3",),
        [("v1", "v3"), ("v2", "")],
    )
    gone = latest.with_successors({"v3": None}, WHY)
    assert (gone.version, gone.published(), gone.collected) == ("", ("v2", "v1"), ("v0", "v3", "v3-b"))
    assert gone.followed_by("v5", "v5").published() == ("v5", "v2", "v1")


def test_a_successor_that_maintenance_took_is_made_anew(small: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    make(small, release_run("demo", publish="tree"))
    opt_out(small, "demo/1.jpg")
    tree = write_tree

    def and_meanwhile(*arguments: object, **more: object) -> None:
        give_up(small, "set", ["v2"], None)
        monkeypatch.setattr(successors, "write_tree", tree)

    monkeypatch.setattr(successors, "write_tree", and_meanwhile)
    with pytest.raises(ConflictError, match="v2 was given up before it succeeded another"):
        succeed(small, why=WHY)
    assert live_versions(small, "set") == ("v1",)
    assert succeed(small, why=WHY) == (Succeeded("set", "v1", "v3"),)


def test_a_tombstone_without_a_successor_is_read_as_it_was_written_before(small: Lake) -> None:
    stone = b'{"why":"collected as garbage"}\n'
    objects.create_bytes(small.release_tombstone("set", "v1"), stone)
    found = read_tombstone(small, "set", "v1")
    assert found == Tombstone(why=COLLECTED)
    assert found.encode() == stone
    assert successor_of(small, "set", "v1") is None


def test_a_decision_of_a_person_follows_its_cluster_to_another_name() -> None:
    import polars as pl

    cluster = Cluster(name="00", samples=3, quarantined=0, decided="keep", examples=("demo/0", "demo/1", "demo/2"))
    other = Cluster(name="77", samples=3, quarantined=0, decided="merge", examples=("demo/7",))
    curation = Curation(
        dataset="set",
        parts=(),
        settings={},
        reasons=(),
        clusters=(cluster, other),
        rows=0,
        rows_sha256="",
        samples=0,
        kept=0,
    )
    ids, number = pl.Series(["demo/1", "demo/2", "demo/5", "demo/7"]), np.array([0, 0, -1, 1])
    assert Recorded(curation, ROWS.empty_table()).renamed(("11", "77"), ids, number) == {"11": "keep"}
