"""Parts without what is to be erased: what goes and what stays, whatever is killed or hurries in between."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from smalti import objects
from smalti.errors import CorruptError
from smalti.lake import Lake
from smalti.maintenance import copying
from smalti.maintenance.copying import Erasure
from smalti.maintenance.garbage import gc
from smalti.maintenance.merge import merge
from smalti.maintenance.rewrite import rewrite
from smalti.optouts import erase_parts as module
from smalti.optouts.erase_parts import Erased, erase_parts, left_over, plan_erasure
from smalti.optouts.ledger import all_parts, resolve, settle, state
from smalti.optouts.request import Action
from smalti.release import verify as verify_module
from smalti.release.optouts import newest_position, read_snapshot
from smalti.release.verify import verify_manifest
from smalti.shards import mds
from smalti.shards.erasures import Erasures, Moved
from smalti.shards.part import Part, committed_parts, part_names, read_part
from smalti.shards.replacements import Step, append_step, read_log
from smalti.shards.samples import decode_samples, extra_columns
from smalti.shards.stage import shard
from tests.maintenance.conftest import APPLY, content, release, until_done
from tests.optouts.conftest import DEMO, RELEASE, deliver_run
from tests.optouts.lakes import ask, match, take_back
from tests.release.test_verify import kept_ids
from tests.support.pictures import Row, picture, stored


@pytest.fixture(autouse=True)
def without_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing streaming takes many seconds; the proof and the loader have tests with it."""
    monkeypatch.setattr(verify_module, "read_ids", kept_ids)


@pytest.fixture
def lake(erasable: Lake) -> Lake:
    return erasable


def asked(lake: Lake, *ids: str, action: Action = Action.ERASE) -> str:
    """A request that is in force."""
    request = ask(lake, *(("id", each) for each in ids), action=action)
    resolve(lake, [request], match=match)
    return request


def erased(lake: Lake) -> Erased:
    return erase_parts(lake, match=match)


def rows_of(lake: Lake, part: Part) -> list[dict[str, Any]]:
    uri = lake.samples(part.source, part.name)
    return list(decode_samples(objects.read_bytes(uri), uri, extra_columns(part.columns)).to_pylist())


def shards_of(lake: Lake, part: Part) -> dict[str, list[bytes]]:
    """Place below the part -> the samples as they are stored, read by what the indices say."""
    found = {}
    for folder, entry in copying.entries_of(lake, part):
        name = entry["raw_data"]["basename"]
        data = objects.read_bytes(f"{lake.parts_root()}/{folder}/{name}")
        found[f"{folder.split('/', 2)[2]}/{name}"] = mds.read_shard(data)[1]
        assert entry["samples"] == len(mds.read_shard(data)[1])
    return found


def ids_of(lake: Lake, part: Part) -> dict[str, list[str]]:
    """The ids of each shard, as the shards say; samples.parquet must say the same."""
    found: dict[str, list[str]] = {}
    for folder, entry in copying.entries_of(lake, part):
        uri = f"{lake.parts_root()}/{folder}/{entry['raw_data']['basename']}"
        columns, samples = mds.read_shard(objects.read_bytes(uri))
        found[entry["raw_data"]["basename"]] = [str(mds.decode_sample(columns, each)["id"]) for each in samples]
    rows = rows_of(lake, part)
    told: dict[str, list[str]] = {}
    for row in rows:
        told.setdefault(row["shard"].rpartition("/")[2], []).append(row["id"])
        assert row["shard"].startswith(f"{part.source}/{part.name}/")
        assert row["index"] == len(told[row["shard"].rpartition("/")[2]]) - 1
    assert told == found
    return found


def demo(*numbers: int) -> list[str]:
    return [f"demo/{n}.jpg" for n in numbers]


def counted_ids(lake: Lake) -> set[str]:
    """Every id in a part that counts, in sight or not."""
    old = {f"{source}/{name}" for source in ("demo", "other") for name in read_log(lake, source).erased}
    return {row["id"] for name, part in all_parts(lake).items() if name not in old for row in rows_of(lake, part)}


def test_samples_and_their_copies_go_and_everything_else_stays_what_and_where_it_was(lake: Lake) -> None:
    b1, b2 = committed_parts(lake, "demo")
    [other] = committed_parts(lake, "other")
    before = {part.name: shards_of(lake, part) for part in (b1, b2, other)}
    rows = {row["id"]: row for part in (b1, other) for row in rows_of(lake, part)}
    asked(lake, *demo(1, 4, 5, 6, 7, 9))
    done = erased(lake)
    new1, same = committed_parts(lake, "demo")
    [new_other] = committed_parts(lake, "other")
    assert same == b2
    assert done.parts == {f"demo/{b1.name}": f"demo/{new1.name}", f"other/{other.name}": f"other/{new_other.name}"}
    assert (done.samples, done.position) == (7, newest_position(lake))
    assert ids_of(lake, new1) == {"shard.00000.mds": demo(0, 2, 3), "shard.00002.mds": demo(8)}, "the number 1 is a gap"
    old, new = before[b1.name], shards_of(lake, new1)
    first, third = "512/1.000/shard.00000.mds", "512/1.000/shard.00002.mds"
    assert (new[first], new[third]) == ([old[first][at] for at in (0, 2, 3)], [old[third][0]])
    assert ids_of(lake, new_other) == {"shard.00000.mds": ["other/own.jpg"]}
    for part in (new1, new_other):
        for row in rows_of(lake, part):
            here = {"shard": row["shard"], "index": row["index"]}
            assert row == rows[row["id"]] | here
    moved = Erasures.read(lake, ["demo", "other"])
    assert moved.place(f"demo/{b1.name}/{first}") == Moved(f"demo/{new1.name}/{first}", (1,))
    assert moved.place(f"demo/{b1.name}/512/1.000/shard.00001.mds") == Moved(None, (0, 1, 2, 3))
    assert (other.extra_captions, new_other.extra_captions) == ({"caption_source": 1}, {"caption_source": 0})
    assert (new1.samples, new1.accounting.rows_in, new1.accounting.dropped) == (4, 10, {"optout": 6})
    assert (new1.batch, new1.sequence, new1.origins) == (b1.batch, b1.sequence, b1.sharded)


def test_a_shard_that_loses_nothing_has_the_same_bytes(lake: Lake) -> None:
    b1 = committed_parts(lake, "demo")[0]
    asked(lake, *demo(1))
    erased(lake)
    new = committed_parts(lake, "demo")[0]
    for number, same in ((0, False), (1, True), (2, True)):
        data = [objects.read_bytes(lake.shard("demo", part.name, 512, "1.000", number)) for part in (b1, new)]
        assert (data[0] == data[1]) is same


def test_a_second_run_changes_nothing_and_a_request_to_exclude_erases_nothing(lake: Lake) -> None:
    asked(lake, *demo(2), action=Action.EXCLUDE)
    assert erased(lake).parts == {}
    asked(lake, *demo(1))
    assert len(erased(lake).parts) == 2
    before = {each.uri: each for each in objects.list_objects(lake.root)}
    assert erased(lake).parts == {}
    assert {each.uri: each for each in objects.list_objects(lake.root)} == before
    new = committed_parts(lake, "demo")[0]
    assert "demo/2.jpg" in counted_ids(lake)
    told = read_snapshot(lake, newest_position(lake)).shards
    shard_of = {row["id"]: (row["shard"], row["index"]) for row in rows_of(lake, new)}
    assert told[shard_of["demo/2.jpg"][0]] == (shard_of["demo/2.jpg"][1],), "it is left out under its new name"


def test_what_was_taken_back_is_not_erased(lake: Lake) -> None:
    resolve(lake, [take_back(lake, asked(lake, *demo(1)))], match=match)
    assert erased(lake).parts == {}


def test_another_request_erases_of_the_new_part_and_indices_are_still_those_of_the_first(lake: Lake) -> None:
    b1 = committed_parts(lake, "demo")[0]
    asked(lake, *demo(1))
    erased(lake)
    asked(lake, *demo(3, 0))
    assert len(erased(lake).parts) == 1
    new = committed_parts(lake, "demo")[0]
    assert ids_of(lake, new)["shard.00000.mds"] == demo(2)
    place = Erasures.read(lake, ["demo"]).place(f"demo/{b1.name}/512/1.000/shard.00000.mds")
    assert place == Moved(f"demo/{new.name}/512/1.000/shard.00000.mds", (0, 1, 3))
    assert new.accounting.dropped == {"optout": 3}


def test_rows_that_could_not_be_decoded_are_not_named_any_more(lake: Lake) -> None:
    """By their id, or by what only the table knows of them."""
    b1 = committed_parts(lake, "demo")[0]
    assert [row.id for row in b1.failed] == ["demo/broken.jpg"]
    request = ask(lake, ("url", "https://example.org/broken.jpg"), action=Action.ERASE)
    resolve(lake, [request], match=match)
    assert erased(lake).samples == 0
    new = committed_parts(lake, "demo")[0]
    assert (new.failed, new.samples, new.replaces) == ((), 10, (b1.name,))
    assert shards_of(lake, new) == shards_of(lake, b1)
    assert Erasures.read(lake, ["demo"]).part(f"demo/{b1.name}") == f"demo/{new.name}"
    assert erased(lake).parts == {}


def test_of_a_part_of_which_nothing_is_left_there_is_none(lake: Lake) -> None:
    b2 = committed_parts(lake, "demo")[1]
    asked(lake, *demo(10, 11))
    assert erased(lake).parts == {f"demo/{b2.name}": ""}
    assert [part.batch for part in committed_parts(lake, "demo")] == ["b1"]
    assert Erasures.read(lake, ["demo"]).place(f"demo/{b2.name}/512/1.000/shard.00000.mds") == Moved(None, (0, 1))
    assert shard(lake, DEMO.model_copy(update={"batch": "b2"})).part is None, "its rows were sharded once, and gone"
    assert erased(lake).parts == {}


def test_a_part_out_of_sight_is_erased_and_the_new_one_is_out_of_sight(lake: Lake) -> None:
    """A live release uses it."""
    manifest = release(lake, RELEASE)
    old = {part.name for part in committed_parts(lake, "demo")}
    assert len(merge(lake, APPLY).merged) == 1
    [merged] = committed_parts(lake, "demo")
    asked(lake, *demo(1, 10))
    done = erased(lake)
    assert set(done.parts) == {f"demo/{name}" for name in (*old, merged.name)} | {
        f"other/{part.name}" for part in manifest.sources[1].parts
    }
    assert not counted_ids(lake) & {*demo(1, 10), "other/copy.jpg"}
    [new] = committed_parts(lake, "demo")
    assert f"demo/{new.name}" == done.parts[f"demo/{merged.name}"]
    log = read_log(lake, "demo")
    assert {log.holder(name) for name in (*old, merged.name)} == {new.name}
    hidden = {done.parts[f"demo/{name}"].partition("/")[2] for name in old}
    assert {log.hidden[name].why for name in hidden} == {"merged"}
    for _ in range(2):
        gc(lake, APPLY.model_copy(update={"grace_days": 0.0}))
    left = {part.name for part in committed_parts(lake, "demo", hidden=True)}
    assert left == hidden | old | {new.name}, (
        "the merged part was nobody's; the successor of the release needs the others"
    )


def test_new_parts_are_released_rewritten_and_merged_like_others(lake: Lake) -> None:
    asked(lake, *demo(1, 4, 5, 6, 7))
    erased(lake)
    made = release(lake, RELEASE)
    assert verify_manifest(lake.manifest("set", made.version)).faults == ()
    assert made.accounting.skipped == {"text": 1}
    assert len(rewrite(lake, APPLY).rewritten) == 1
    assert len(merge(lake, APPLY).merged) == 1
    [merged] = committed_parts(lake, "demo")
    again = release(lake, RELEASE)
    assert verify_manifest(lake.manifest("set", again.version)).faults == ()
    assert {rows["id"] for rows in rows_of(lake, merged)} == {*demo(0, 2, 3, 8, 9, 10)}
    assert (merged.accounting.rows_in, merged.accounting.dropped) == (12, {"optout": 5, "text": 1})
    assert erased(lake).parts == {}


def test_a_shard_run_that_is_repeated_brings_nothing_back(lake: Lake) -> None:
    told = shard(lake, DEMO)
    asked(lake, *demo(1))
    erased(lake)
    before = {each.uri: each for each in objects.list_objects(lake.root)}
    again = shard(lake, DEMO)
    assert (again.rows_in, again.rows_out) == (told.rows_in, told.rows_out)
    assert again.part == committed_parts(lake, "demo")[0].name
    assert {each.uri: each for each in objects.list_objects(lake.root)} == before


def test_killed_at_any_change_the_next_run_ends_in_the_same_bytes(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = ask(lake, *(("id", each) for each in demo(1, 4, 5, 6, 7)), action=Action.ERASE)
    resolve(lake, [request], match=match)
    here = objects.local_path(lake.root)
    assert here is not None

    def copies(name: str) -> Lake:
        shutil.copytree(here, tmp_path / name)
        return Lake.at(str(tmp_path / name))

    undisturbed = copies("undisturbed")
    erased(undisturbed)
    wanted, killed = content(undisturbed), 0
    for other in until_done(monkeypatch, copies, erased):
        erased(other)
        assert content(other) == wanted
        shutil.rmtree(other.root.removeprefix("file://"))
        killed += 1
    assert killed >= 12


Faster = Callable[[Lake], object]


def overtaken(monkeypatch: pytest.MonkeyPatch, where: object, faster: Faster) -> None:
    """The first step that `where` appends finds that somebody has done something just before."""
    real = append_step

    def slow(lake: Lake, source: str, step: Step) -> bool:
        monkeypatch.setattr(where, "append_step", real)
        faster(lake)
        return real(lake, source, step)

    monkeypatch.setattr(where, "append_step", slow)


def merging(lake: Lake) -> None:
    """As a merge does that was planned before the request."""
    parts = committed_parts(lake, "demo")
    from smalti.maintenance.merge import plan_merge

    assert copying.write(lake, plan_merge(lake, parts)) is not None


def sharding(lake: Lake) -> None:
    """A batch that has another file of a picture that is to be erased."""
    rows = [Row("again.jpg", stored(picture(1, 600, 600))), Row("new.jpg", stored(picture(50)))]
    deliver_run(lake, DEMO.model_copy(update={"batch": "b3"}), rows)


def more(lake: Lake) -> None:
    """Another request, which is erased at once."""
    asked(lake, *demo(1, 3))
    erase_parts(lake, match=match)


@pytest.mark.parametrize("faster", [merging, sharding, more])
def test_who_is_faster_leaves_nothing_behind(lake: Lake, monkeypatch: pytest.MonkeyPatch, faster: Faster) -> None:
    asked(lake, *demo(1))
    overtaken(monkeypatch, copying, faster)
    erased(lake)
    gone = {"demo/1.jpg", "demo/again.jpg", "other/copy.jpg"}
    left = counted_ids(lake)
    assert not left & gone
    assert left >= {*demo(0, 2, 4, 5, 6, 7, 8, 9, 10, 11), "other/own.jpg"}
    assert ("demo/3.jpg" in left) is (faster is not more)
    assert not left_over(lake)
    in_sight = [row["id"] for part in committed_parts(lake, "demo") for row in rows_of(lake, part)]
    assert len(in_sight) == len(set(in_sight)), "nothing is in sight twice"
    assert state(lake).parts >= {f"{part.source}/{part.name}" for part in all_parts(lake).values()}


def test_a_merge_that_is_slower_does_not_count(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    asked(lake, *demo(1))
    parts = committed_parts(lake, "demo")
    from smalti.maintenance.merge import plan_merge

    plan = plan_merge(lake, parts)
    overtaken(monkeypatch, copying, erased)
    assert copying.write(lake, plan) is None
    assert not counted_ids(lake) & {"demo/1.jpg", "other/copy.jpg"}
    assert len(part_names(lake, "demo")) == 4, "what it wrote is garbage"


def test_a_part_that_is_collected_meanwhile_needs_nothing(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    asked(lake, *demo(1, 10))
    b1, b2 = committed_parts(lake, "demo")
    real = plan_erasure

    def collected(lake: Lake, part: Part, erasure: Erasure) -> copying.CopyPlan:
        if part.name == b1.name:
            for name in ("part.json", "samples.parquet"):
                objects.delete_object(f"{lake.part('demo', b1.name)}/{name}")
        return real(lake, part, erasure)

    monkeypatch.setattr(module, "plan_erasure", collected)
    assert f"demo/{b2.name}" in erased(lake).parts
    assert not counted_ids(lake) & {*demo(1, 10)}


def test_what_a_part_does_not_have_is_not_erased_of_it(lake: Lake) -> None:
    part = committed_parts(lake, "demo")[0]
    for name, index in (("shard.00000.mds", 4), ("shard.00009.mds", 0)):
        shards: dict[str, tuple[int, ...]] = {f"demo/{part.name}/512/1.000/{name}": (index,)}
        with pytest.raises(CorruptError, match="names samples that the part does not have"):
            plan_erasure(lake, part, Erasure(shards, (), frozenset()))


def test_a_lake_in_which_nothing_was_asked_is_left_as_it_is(lake: Lake) -> None:
    before = {each.uri: each for each in objects.list_objects(lake.root)}
    assert erase_parts(lake).parts == {}
    assert {each.uri: each for each in objects.list_objects(lake.root)} == before
    assert settle(lake) == 0
    assert read_part(lake, "demo", committed_parts(lake, "demo")[0].name).replaces == ()
