"""What a training run may lift, what people asked for, and clusters that are set aside."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from smalti import objects
from smalti.config import Drops, Duplicates
from smalti.curation import decide as decide_module
from smalti.curation.curate import curate
from smalti.curation.record import Explanation, check_rows, explain, read_curation
from smalti.errors import CorruptError, InputError
from smalti.lake import Lake
from smalti.reasons import Label, SkipReason, set_name
from smalti.release.collect import read_parts, streams_of
from smalti.release.optouts import OptoutSnapshot
from smalti.release.skips import canonical_json, compress, sha256
from smalti.settings import ReleaseRun
from tests.curation.test_curate import SAMPLE, add, decided, explained, left_out, reasons_of
from tests.support.pictures import Row, picture, release_run, stored

NSFW, TEXT, DUPLICATE, QUARANTINE = SkipReason.NSFW, SkipReason.TEXT, SkipReason.DUPLICATE, SkipReason.QUARANTINE
CAPTIONER = SkipReason.CAPTIONER


def rows(*changes: dict[str, Any]) -> list[dict[str, Any]]:
    """Samples that differ in everything that `changes` does not say."""
    return [
        SAMPLE | {"id": f"s/{n}", "sha256": f"{n:064x}", "phash": n + 1, "flat": False, "index": n} | change
        for n, change in enumerate(changes)
    ]


def without(
    rows: list[dict[str, Any]], drops: Drops, *sets: tuple[SkipReason, ...], **more: Any
) -> dict[str, set[int]]:
    """Set -> rows that are served if it is lifted; `` is nothing lifted."""
    found, reasons = reasons_of(rows, drops, reason_sets=sets, **more)
    served = {"": set(range(len(rows))) - set(reasons)}
    for each, left in zip(sets, found.copies.without, strict=True):
        gone = {found.copies.rows[n] for n, out in enumerate(left) if out}
        lifted = {*each, DUPLICATE, QUARANTINE}
        served[set_name(each)] = {
            row for row in range(len(rows)) if set(reasons.get(row, ())) <= lifted and row not in gone
        }
    return served


def test_each_set_decides_its_duplicates_among_what_it_leaves() -> None:
    """The best copy is text: with nothing lifted the second is kept, and with text lifted it is a duplicate."""
    same = {"phash": 9}
    samples = rows(same | {"label": "text", "width": 900, "height": 900}, same, {"label": "text"})
    assert without(samples, Drops(), (TEXT,), (DUPLICATE,), (DUPLICATE, TEXT)) == {
        "": {1},
        "text": {0, 2},
        "duplicate": {1},
        "duplicate+text": {0, 1, 2},
    }


def test_lifting_nsfw_lifts_what_was_spread_as_well() -> None:
    same = {"phash": 9}
    samples = rows(same | {"label": "nsfw"}, same | {"width": 900, "height": 900}, {})
    assert without(samples, Drops(), (NSFW,), (DUPLICATE, NSFW)) == {
        "": {2},
        "nsfw": {1, 2},
        "duplicate+nsfw": {0, 1, 2},
    }


def test_lifting_the_captioner_serves_no_id_twice() -> None:
    samples = rows(
        {"captioner": "one"}, {"id": "s/0", "sha256": f"{0:064x}", "phash": 1, "captioner": "two", "order": 1}
    )
    drops = Drops(captioners=("one",))
    assert without(samples, drops, (CAPTIONER,), (CAPTIONER, DUPLICATE)) == {
        "": {0},
        "captioner": {0},
        "captioner+duplicate": {0},
    }
    alone = [sample | {"captioner": "two"} for sample in samples]
    assert without(alone, drops, (CAPTIONER,)) == {"": set(), "captioner": {1}}


CROWD = Drops(duplicates=Duplicates(cluster_limit=3))


def test_a_cluster_above_the_limit_is_set_aside_and_equal_bytes_stay_duplicates() -> None:
    same = {"phash": 9}
    samples = rows(*[same] * 4, same | {"sha256": f"{0:064x}"}, {})
    found, reasons = reasons_of(samples, CROWD)
    assert reasons == {0: [QUARANTINE], 1: [QUARANTINE], 2: [QUARANTINE], 3: [QUARANTINE], 4: [DUPLICATE]}
    assert found.copies.names == (f"{9:016x}",)
    assert without(samples, CROWD, (QUARANTINE,), (DUPLICATE,), (DUPLICATE, QUARANTINE)) == {
        "": {5},
        "quarantine": {0, 1, 2, 3, 5},
        "duplicate": {5},
        "duplicate+quarantine": {0, 1, 2, 3, 4, 5},
    }


def test_what_a_person_decided_of_a_cluster_is_done() -> None:
    samples = rows(*[{"phash": 9}] * 4, {})
    assert without(samples, CROWD, decided={f"{9:016x}": "merge"})[""] == {0, 4}
    assert without(samples, CROWD, decided={f"{9:016x}": "keep"})[""] == {0, 1, 2, 3, 4}
    assert without(samples, CROWD, decided={f"{8:016x}": "keep"})[""] == {4}


def test_a_set_that_leaves_more_of_a_cluster_sets_it_aside() -> None:
    """Four look alike, and one of them is text: three are not too many, four are."""
    same = {"phash": 9}
    samples = rows(same, same, same, same | {"label": "text"})
    assert without(samples, CROWD, (TEXT,)) == {"": {0}, "text": set()}


def test_a_set_with_a_reason_that_is_not_declared_is_refused(lake: Lake) -> None:
    add(lake, [Row("a.jpg", stored(picture(1)))])
    with pytest.raises(InputError, match="reason_sets lifts licence, which the dataset never skips for"):
        curate(lake, release_run(reason_sets=((SkipReason.LICENCE,),)))


def opt_out(lake: Lake, position: int, shards: dict[str, tuple[int, ...]], *ids: str) -> None:
    snapshot = OptoutSnapshot(position=position, shards=shards, ids=ids)
    objects.create_bytes(lake.optout_snapshot(position), snapshot.encode())


def place(lake: Lake, run: ReleaseRun, name: str) -> tuple[str, int]:
    """Where a sample lies."""
    drops = run.dataset.drops.model_copy(update={"min_tier": 4096})
    everything = run.model_copy(update={"dataset": run.dataset.model_copy(update={"drops": drops})})
    (said,) = explain(curate(lake, everything).curation, name)
    return said.shard, said.index


def test_an_optout_reaches_every_copy_in_every_source_and_is_pinned(lake: Lake) -> None:
    add(lake, [Row("a.jpg", stored(picture(1, 900, 900))), Row("b.jpg", stored(picture(2)))])
    add(lake, [Row("copy.jpg", stored(picture(1, 700, 700)))], "other")
    run = release_run("demo", "other", reason_sets=((DUPLICATE,),))
    before = curate(lake, run)
    shard, index = place(lake, run, "demo/a.jpg")
    opt_out(lake, 3, {shard: (index,), "elsewhere/p/512/1.000/shard.00000.mds": (0,)})
    report = curate(lake, run)
    assert decided(before).optouts == 0
    assert decided(report).optouts == 3
    assert left_out(lake, report) == {
        "demo/a.jpg@00001": (["optout"], None),
        "other/copy.jpg@00001": (["optout"], "demo/a.jpg"),
    }
    assert decided(report).kept_without == {"duplicate": 1}


def test_an_optout_by_id_reaches_parts_that_no_snapshot_could_name(lake: Lake) -> None:
    """As those are that maintenance writes anew, or a later delivery."""
    opt_out(lake, 2, {}, "demo/a.jpg", "demo/elsewhere.jpg")
    add(lake, [Row("a.jpg", stored(picture(1, 900, 900))), Row("b.jpg", stored(picture(2)))])
    add(lake, [Row("a.jpg", stored(picture(3)))], batch="b2")
    add(lake, [Row("copy.jpg", stored(picture(1, 700, 700))), Row("later.jpg", stored(picture(3, 800, 800)))], "other")
    assert left_out(lake, curate(lake, release_run("demo", "other"))) == {
        "demo/a.jpg@00001": (["optout", "superseded"], None),
        "demo/a.jpg@00002": (["optout"], None),
        "other/copy.jpg@00001": (["optout"], "demo/a.jpg"),
        "other/later.jpg@00001": (["optout"], "demo/a.jpg"),
    }


def test_an_optout_of_a_picture_that_was_replaced_still_reaches_its_copies(lake: Lake) -> None:
    first = stored(picture(1))
    add(lake, [Row("a.jpg", first)])
    shard, index = place(lake, release_run(), "demo/a.jpg")
    add(lake, [Row("a.jpg", stored(picture(2)))], batch="b2")
    add(lake, [Row("copy.jpg", first)], "other")
    opt_out(lake, 1, {shard: (index,)})
    assert left_out(lake, curate(lake, release_run("demo", "other"))) == {
        "demo/a.jpg@00001": (["optout", "superseded"], None),
        "other/copy.jpg@00001": (["optout"], "demo/a.jpg"),
    }


@pytest.fixture
def crowded(lake: Lake) -> Lake:
    add(
        lake,
        [*(Row(f"{n}.jpg", stored(picture(1, 600 + n, 600 + n))) for n in range(4)), Row("x.jpg", stored(picture(2)))],
    )
    return lake


def test_quarantine_has_a_page_and_stands_in_the_record(crowded: Lake, tmp_path: Path) -> None:
    report = curate(crowded, release_run(drops=CROWD))
    curation = decided(report)
    (cluster,) = curation.clusters
    assert (cluster.samples, cluster.quarantined, cluster.decided) == (4, 4, None)
    assert cluster.examples == ("demo/0.jpg", "demo/1.jpg", "demo/2.jpg", "demo/3.jpg")
    assert curation.skipped == {QUARANTINE: 4}
    page = objects.read_bytes(report.quarantine).decode()
    assert page.count("data:image/jpeg;base64,") == 4
    assert cluster.name in page
    words = tmp_path / "decided.txt"
    words.write_text(f"\nmerge {cluster.name}\nkeep ffff\n")
    drops = Drops(duplicates=Duplicates(cluster_limit=3, decided=(str(words),)))
    merged = curate(crowded, release_run(drops=drops))
    assert {name: said[0] for name, said in left_out(crowded, merged).items()} == {
        f"demo/{n}.jpg@00001": ["duplicate"] for n in range(3)
    }
    assert decided(merged).clusters[0].decided == "merge"
    assert decided(merged).decisions[0].lines == 2
    assert "decided: 1 clusters are not among those above the limit, the first is 'ffff'" in merged.warnings


def test_nobody_is_shown_what_of_a_cluster_was_opted_out(crowded: Lake) -> None:
    opt_out(crowded, 1, {}, "demo/2.jpg")  # the others are its copies
    report = curate(crowded, release_run(drops=CROWD))
    (cluster,) = decided(report).clusters
    assert (cluster.samples, cluster.examples) == (0, ())
    assert decided(report).skipped == {SkipReason.OPTOUT: 4}
    page = objects.read_bytes(report.quarantine).decode()
    assert cluster.name in page
    assert "data:image" not in page
    assert "demo/" not in page


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("merge", "'merge' decides nothing"),
        ("drop ffff", "'drop ffff' decides nothing"),
        ("keep a b", "'keep a b' decides nothing"),
        ("keep a\nmerge a", "cluster a is to be merged and to be kept"),
    ],
)
def test_a_line_that_decides_nothing_stops_the_release(lake: Lake, tmp_path: Path, text: str, message: str) -> None:
    add(lake, [Row("a.jpg", stored(picture(1)))])
    (tmp_path / "decided.txt").write_text(text)
    drops = Drops(duplicates=Duplicates(decided=(str(tmp_path / "decided.txt"),)))
    with pytest.raises(InputError, match=rf"decided\.txt: {message}"):
        curate(lake, release_run(drops=drops))


def test_a_sample_is_explained_by_its_id(crowded: Lake) -> None:
    add(
        crowded,
        [Row("nsfw.jpg", stored(picture(3)), label="nsfw"), Row("twin.jpg", stored(picture(3, 700, 700)))],
        "other",
    )
    report = curate(crowded, release_run("demo", "other", reason_sets=((NSFW,), (QUARANTINE,))))
    curation = decided(report)
    (said,) = explain(report.curation, "other/nsfw.jpg")
    assert (said.reasons, said.decided, said.copy_of, said.spread_from) == ((NSFW,), ("nsfw",), "other/twin.jpg", None)
    (said,) = explain(report.curation, "other/twin.jpg")
    assert (said.reasons, said.decided, said.spread_from) == ((NSFW,), (), "other/nsfw.jpg")
    assert explain(report.curation, "demo/x.jpg") == []
    assert curation.kept_without == {"nsfw": 3, "quarantine": 2}
    assert all(isinstance(each, Explanation) for each in explained(crowded, report))


def test_streams_count_and_list_what_each_set_serves(crowded: Lake) -> None:
    add(crowded, [Row("text.jpg", stored(picture(1, 900, 900)), label="text")], "other")
    run = release_run("demo", "other", reason_sets=((TEXT,), (DUPLICATE, TEXT)))
    curation = decided(curate(crowded, run))
    streams = streams_of(crowded, curation, read_parts(crowded, curation), {"demo": "main", "other": "main"})
    for lifted, kept in (
        ((), curation.kept),
        *((each, curation.kept_without[set_name(each)]) for each in run.dataset.reason_sets),
    ):
        assert sum(stream.entry.kept_if(lifted) for stream in streams) == kept
        left = sum(len(shard.left_out(lifted)) for stream in streams for shard in stream.skips.shards.values())
        assert curation.samples - left == kept
    assert (curation.kept, curation.kept_without) == (2, {"text": 2, "duplicate+text": 6})


def test_rows_that_were_changed_are_refused(crowded: Lake) -> None:
    add(crowded, [Row("text.jpg", stored(picture(3)), label="text")], batch="b2")
    report = curate(crowded, release_run())
    path = objects.local_path(report.curation.replace(".json.gz", ".parquet"))
    assert path is not None
    table = pq.read_table(path)
    copies = pc.fill_null(table["copy_of"], "somebody")
    pq.write_table(table.set_column(table.schema.get_field_index("copy_of"), "copy_of", copies), path)
    with pytest.raises(CorruptError):
        check_rows(crowded, decided(report))
    with pytest.raises(CorruptError):
        curate(crowded, release_run())


def test_a_record_of_an_older_smalti_says_so(lake: Lake) -> None:
    content = canonical_json({"version": 1, "dataset": "set", "shards": {}})
    uri = lake.curation("set", sha256(content))
    objects.create_bytes(uri, compress(content))
    with pytest.raises(InputError, match="an older smalti decided this"):
        read_curation(uri)
    assert json.loads(content)["version"] == 1


def test_labels_that_are_not_dropped_are_not_spread() -> None:
    same = {"phash": 9}
    samples = rows(same | {"label": "nsfw"}, same | {"width": 900, "height": 900})
    assert without(samples, Drops(labels=(Label.TEXT,)))[""] == {1}


@pytest.mark.parametrize("distance", [0, 2])
def test_partitions_say_what_the_whole_says(distance: int) -> None:
    """Labels, opt-outs, sets, clusters and copies that are near by hash or by bytes alone, in 1, 3 and 7 partitions."""
    chance = np.random.default_rng(distance)
    samples = rows(*(
        {
            "phash": int(chance.integers(1, 40)) * 0x9E3779B97F4A7C15 % 2**64 ^ (1 << int(chance.integers(0, 9))),
            "sha256": f"{int(chance.integers(0, 5000)):064x}",
            "width": int(chance.integers(600, 604)),
            "label": str(chance.choice(["visual"] * 60 + ["text"] * 6 + ["nsfw"])),
            "flat": bool(chance.random() < 0.1),
        }
        for _ in range(300)
    ))  # fmt: skip
    drops = Drops(duplicates=Duplicates(distance=distance, cluster_limit=8 if distance else 2))
    shard = str(SAMPLE["shard"])
    more: dict[str, Any] = {"optouts": {shard: (3, 50)}, "reason_sets": ((TEXT,), (DUPLICATE, NSFW), (QUARANTINE,))}
    told = []
    for partitions in (1, 3, 7):
        found, reasons = reasons_of(samples, drops, partitions=partitions, **more)
        copies = found.copies
        clusters = [copies.names[each] if each >= 0 else "" for each in copies.cluster]
        columns = (copies.rows, copies.id, copies.copy_of, copies.spread_from, copies.eligible, *copies.without)
        told.append((reasons, sorted(copies.names), clusters, [list(each) for each in columns]))
    assert told[1:] == told[:1] * 2
    assert {reason for said in told[0][0].values() for reason in said} >= {
        NSFW,
        DUPLICATE,
        QUARANTINE,
        SkipReason.OPTOUT,
    }


def test_several_partitions_are_tasks_of_the_cluster_and_one_does_not_join_it(monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[int] = []
    sent: list[int] = []

    def over_the_wire(function: Any, items: Sequence[Any]) -> Iterator[Any]:
        sent.append(len(items))
        for item in items:
            there, what = pickle.loads(pickle.dumps((function, item)))
            yield pickle.loads(pickle.dumps(there(what)))

    monkeypatch.setattr(decide_module, "connect_ray", lambda: joined.append(1))
    monkeypatch.setattr(decide_module, "map_tasks", over_the_wire)
    samples = rows(*({"phash": number // 2, "sha256": f"{number:064x}"} for number in range(40)))
    alone, _ = reasons_of(samples, Drops(), partitions=1)
    assert joined == []
    together, _ = reasons_of(samples, Drops(), partitions=3)
    assert (joined, sent) == ([1], [1, 3])
    assert list(together.copies.copy_of) == list(alone.copies.copy_of)
    assert (alone.copies.copy_of >= 0).any()
