"""Curation: each sample that is left out has its reasons, and copies are decided last."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from smalti import objects
from smalti.config import Band, Dataset, Drops
from smalti.curation.curate import CurateReport, curate, declared_reasons, outside_bands
from smalti.curation.decide import Decisions, decide
from smalti.curation.readers import FrameReader
from smalti.curation.record import Curation, Explanation, explain, read_curation, read_rows
from smalti.curation.scan import BIT
from smalti.errors import CorruptError, InputError
from smalti.lake import Lake
from smalti.reasons import Label, SkipReason
from smalti.settings import ReleaseRun
from smalti.shards.samples import THUMBNAIL, decode_samples
from smalti.shards.stage import shard
from tests.support.pictures import Row, picture, release_run, source_run, stored, write_table


def decided(report: CurateReport) -> Curation:
    return read_curation(report.curation)


def explained(lake: Lake, report: CurateReport) -> list[Explanation]:
    """Every row of the record, looked up by its id."""
    ids = read_rows(lake, decided(report), ["id"])["id"].to_pylist()
    return [each for name in sorted(set(ids)) for each in explain(report.curation, name)]


def left_out(lake: Lake, report: CurateReport) -> dict[str, tuple[list[str], str | None]]:
    """id and part -> reasons, and the copy that is named."""
    return {
        f"{each.id}@{each.shard.split('/')[1][:5]}": ([str(r) for r in each.reasons], each.copy_of or each.spread_from)
        for each in explained(lake, report)
        if each.reasons
    }


def reasons_of(rows: list[dict[str, Any]], drops: Drops, **more: Any) -> tuple[Decisions, dict[int, list[SkipReason]]]:
    """Decisions over rows in memory; rows of one `order` are a part."""
    import polars as pl

    frame = pl.DataFrame(rows, schema_overrides={"licence": pl.String, "label": pl.String, "phash": pl.UInt64})
    parts = frame.partition_by("order", maintain_order=True)
    found = decide(FrameReader(tuple(parts)), drops, **more)
    said = {row: [r for r in SkipReason if bits & BIT[r]] for row, bits in enumerate(found.reasons.tolist()) if bits}
    return found, said


def add(lake: Lake, rows: list[Row], name: str = "demo", batch: str = "b1") -> None:
    run = source_run(name, batch)
    write_table(lake, run, rows)
    shard(lake, run)


def test_each_reason_is_given_and_duplicates_are_decided_among_what_is_left(lake: Lake, tmp_path: Path) -> None:
    large, small = stored(picture(1, 900, 900)), stored(picture(1))
    add(
        lake,
        [
            Row("large.jpg", large),
            Row("small.jpg", small),
            Row("denied.jpg", stored(picture(2, 900, 900))),
            Row("its-copy.jpg", stored(picture(2))),
            Row("text.jpg", stored(picture(3)), label="text"),
            Row("failed.jpg", stored(picture(4)), caption=None, status="failed", label=None),
            Row("licence.jpg", stored(picture(5)), licence="all rights reserved"),
            Row("none.jpg", stored(picture(6)), licence=None),
            Row("two.jpg", stored(picture(7)), label="text", licence=None),
        ],
    )
    denylist = tmp_path / "denied.txt"
    denylist.write_text("demo/denied.jpg\n\nelsewhere/x.jpg\n")
    run = release_run(drops=Drops(licences=("CC0-1.0",), denylist=(str(denylist),)))
    report = curate(lake, run)
    assert left_out(lake, report) == {
        "demo/small.jpg@00001": (["duplicate"], "demo/large.jpg"),
        "demo/denied.jpg@00001": (["denylist"], None),
        "demo/text.jpg@00001": (["text"], None),
        "demo/failed.jpg@00001": (["caption_failed"], None),
        "demo/licence.jpg@00001": (["licence"], None),
        "demo/none.jpg@00001": (["licence"], None),
        "demo/two.jpg@00001": (["licence", "text"], None),
    }
    assert (report.rows_in, report.rows_out) == (9, 2)
    assert report.dropped == {"denylist": 1, "licence": 3, "caption_failed": 1, "text": 1, "duplicate": 1}
    assert decided(report).denylists[0].lines == 2


def test_a_label_nsfw_reaches_every_copy_and_takes_no_copys_place(lake: Lake) -> None:
    add(lake, [Row("a.jpg", stored(picture(1, 900, 900))), Row("b.jpg", stored(picture(1)), label="nsfw")])
    add(lake, [Row("c.jpg", stored(picture(1, 700, 700))), Row("d.jpg", stored(picture(2)))], "other")
    assert left_out(lake, curate(lake, release_run("demo", "other"))) == {
        "demo/a.jpg@00001": (["nsfw"], "demo/b.jpg"),
        "demo/b.jpg@00001": (["nsfw"], None),
        "other/c.jpg@00001": (["nsfw"], "demo/b.jpg"),
    }
    kept = curate(lake, release_run("demo", "other", drops=Drops(labels=(Label.TEXT,))))
    assert set(left_out(lake, kept)) == {"demo/b.jpg@00001", "other/c.jpg@00001"}  # of equal pictures the largest


def test_copies_are_found_over_sources_tiers_and_ratios(lake: Lake) -> None:
    """1.21 wide is nearest to bucket 1.286 at one size; a little narrower after rounding it could fall into 1.133."""
    boundary = picture(1, 1210, 1000)
    add(lake, [Row("wide.jpg", stored(boundary))])
    add(lake, [Row("narrow.jpg", stored(boundary.resize((604, 500))))], "other")
    report = curate(lake, release_run("demo", "other"))
    buckets = {tuple(name.split("/")[2:4]) for name in _shards(lake, report)}
    assert len(buckets) == 2  # or this shows nothing
    assert left_out(lake, report) == {"other/narrow.jpg@00001": (["duplicate"], "demo/wide.jpg")}


def _shards(lake: Lake, report: CurateReport) -> set[str]:
    tables = [
        decode_samples(objects.read_bytes(lake.samples(part.source, part.name)), "here")
        for part in decided(report).parts
    ]
    return {name for table in tables for name in table["shard"].to_pylist()}


def test_of_two_deliveries_of_one_key_the_later_part_is_served(lake: Lake) -> None:
    add(lake, [Row("a.jpg", stored(picture(1, 900, 900))), Row("b.jpg", stored(picture(2)))])
    add(lake, [Row("a.jpg", stored(picture(3)))], batch="b2")
    report = curate(lake, release_run())
    assert left_out(lake, report) == {"demo/a.jpg@00001": (["superseded"], None)}
    assert report.parts == 2


def test_what_a_superseded_sample_was_labelled_does_not_matter_any_more(lake: Lake) -> None:
    same = stored(picture(1))
    add(lake, [Row("a.jpg", same, label="nsfw")])
    add(lake, [Row("a.jpg", same), Row("copy.jpg", same)], batch="b2")
    assert left_out(lake, curate(lake, release_run())) == {
        "demo/a.jpg@00001": (["superseded", "nsfw"], None),
        "demo/copy.jpg@00002": (["duplicate"], "demo/a.jpg"),
    }


@pytest.mark.parametrize(
    ("accepted", "left"),
    [
        (("one",), {1: [SkipReason.CAPTIONER]}),
        (("two",), {0: [SkipReason.CAPTIONER]}),
        (None, {0: [SkipReason.SUPERSEDED]}),
        (("one", "two"), {0: [SkipReason.SUPERSEDED]}),
        (("three",), {0: [SkipReason.CAPTIONER], 1: [SkipReason.CAPTIONER]}),
    ],
)
def test_of_two_captioners_the_one_that_a_dataset_names_is_served(
    accepted: tuple[str, ...] | None, left: dict[int, list[SkipReason]]
) -> None:
    both = [SAMPLE | {"captioner": "one", "order": 0}, SAMPLE | {"captioner": "two", "order": 1}]
    assert reasons_of(both, Drops(captioners=accepted))[1] == left


def test_a_picture_that_was_replaced_is_not_served_for_its_captioner() -> None:
    both = [SAMPLE | {"captioner": "one", "order": 0}, SAMPLE | {"captioner": "two", "order": 1, "sha256": "new"}]
    reasons = reasons_of(both, Drops(captioners=("one",)))[1]
    assert reasons == {0: [SkipReason.SUPERSEDED], 1: [SkipReason.CAPTIONER]}


def test_the_priority_of_a_source_breaks_a_tie(lake: Lake) -> None:
    same = stored(picture(1))
    for name in ("demo", "other"):
        add(lake, [Row("a.jpg", same)], name)
    run = release_run("demo", "other")
    preferred = run.sources[1].model_copy(update={"priority": 7})
    assert list(left_out(lake, curate(lake, run))) == ["other/a.jpg@00001"]
    run = run.model_copy(update={"sources": (run.sources[0], preferred)})
    assert list(left_out(lake, curate(lake, run))) == ["demo/a.jpg@00001"]


def test_a_second_run_changes_no_object_and_says_the_same(lake: Lake) -> None:
    add(lake, [Row("a.jpg", stored(picture(1))), Row("b.jpg", stored(picture(1, 600, 600)))])
    first, before = curate(lake, release_run()), {each.uri: each for each in objects.list_objects(lake.root)}
    again = curate(lake, release_run())
    assert again.model_copy(update={"seconds": first.seconds}) == first
    assert {each.uri: each for each in objects.list_objects(lake.root)} == before


def test_a_curation_that_was_changed_is_refused(lake: Lake) -> None:
    add(lake, [Row("a.jpg", stored(picture(1)))])
    uri = curate(lake, release_run()).curation
    path = objects.local_path(uri)
    assert path is not None
    path.write_bytes(path.read_bytes()[:-9] + b"damaged!!")
    with pytest.raises(CorruptError):
        read_curation(uri)
    with pytest.raises(CorruptError):
        curate(lake, release_run())


def test_shares_outside_the_expected_bands_are_said(lake: Lake) -> None:
    add(lake, [Row(f"{n}.jpg", stored(picture(1, 600 + n, 600 + n))) for n in range(4)])
    report = curate(lake, release_run())
    assert report.warnings == ("duplicate: 3 of 4 samples are 75.0 %, expected 0 to 10 %",)
    assert decided(report).warnings == report.warnings
    bands = {SkipReason.TEXT: Band(low=1, high=10), SkipReason.DUPLICATE: Band(high=80)}
    assert outside_bands(200, {SkipReason.TEXT: 1}, bands) == ["text: 1 of 200 samples are 0.5 %, expected 1 to 10 %"]


def test_a_source_without_parts_is_named(lake: Lake) -> None:
    with pytest.raises(InputError, match="no part is there to release of demo, other"):
        curate(lake, release_run("demo", "other"))
    add(lake, [Row("a.jpg", stored(picture(1)))])
    assert "source other has no part" in curate(lake, release_run("demo", "other")).warnings[0]


def test_a_denylist_that_is_not_there_stops_the_release(lake: Lake) -> None:
    add(lake, [Row("a.jpg", stored(picture(1)))])
    with pytest.raises(InputError, match=r"missing\.txt: the denylist cannot be read"):
        curate(lake, release_run(drops=Drops(denylist=("file:///nowhere/missing.txt",))))


def test_a_part_that_is_being_written_is_not_looked_at(lake: Lake) -> None:
    add(lake, [Row("a.jpg", stored(picture(1)))])
    objects.create_bytes(lake.samples("demo", "00002-0123456789ab"), b"half a part")
    assert curate(lake, release_run()).parts == 1


def test_reasons_are_declared_as_the_settings_use_them() -> None:
    assert SkipReason.LICENCE not in declared_reasons(Drops())
    assert SkipReason.LICENCE in declared_reasons(Drops(licences=()))


SAMPLE: dict[str, Any] = {
    "id": "s/0", "source": "s", "sha256": "0", "phash": 1, "colour": bytes(THUMBNAIL), "flat": True, "unstable": 0, "width": 600,
    "height": 600, "tier": 512, "label": "visual", "caption_ok": True, "captioner": "rules", "licence": None, "order": 0,
    "classifier": "minilm", "ar": "1.000", "shard": "s/p/512/1.000/shard.00000.mds", "index": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "drops", "reason"),
    [
        ({"captioner": "vlm"}, Drops(captioners=("rules",)), SkipReason.CAPTIONER),
        ({"classifier": "llm"}, Drops(classifiers=("minilm",)), SkipReason.CLASSIFIER),
        ({"tier": 512}, Drops(min_tier=1024), SkipReason.RESOLUTION),
        ({"label": None}, Drops(), SkipReason.LABEL_FAILED),
        ({"label": None, "caption_ok": False}, Drops(), SkipReason.CAPTION_FAILED),
        ({"licence": "MIT"}, Drops(licences=("MIT",)), None),
        ({"label": "text"}, Drops(labels=()), None),
    ],
)
def test_a_rule_looks_at_its_own_column(change: dict[str, Any], drops: Drops, reason: SkipReason | None) -> None:
    assert reasons_of([SAMPLE | change], drops)[1] == ({0: [reason]} if reason else {})


def test_order_of_rows_decides_nothing() -> None:
    chance = random.Random(1)
    rows = [
        SAMPLE
        | {"id": f"s/{n}", "sha256": str(n % 23), "phash": n % 13, "width": 600 + n % 3, "flat": n % 4 == 0}
        | {"label": "nsfw" if n % 11 == 0 else "visual"}
        for n in range(40)
    ]
    told = []
    for _ in range(3):
        found, reasons = reasons_of(rows, Drops())
        ids = [row["id"] for row in rows]
        told.append((
            {ids[row]: said for row, said in reasons.items()},
            {ids[a]: ids[b] for a, b in zip(found.copies.rows, found.copies.copy_of, strict=True) if b >= 0},
            {ids[a]: ids[b] for a, b in zip(found.copies.rows, found.copies.spread_from, strict=True) if b >= 0},
        ))
        chance.shuffle(rows)
    assert told[1:] == told[:1] * 2
    assert all(told[0])


def test_settings_are_of_the_dataset(lake: Lake) -> None:
    add(lake, [Row("a.jpg", stored(picture(1)))])
    run: ReleaseRun = release_run(drops=Drops(min_tier=1024))
    assert isinstance(run.dataset, Dataset)
    curation = decided(curate(lake, run))
    assert curation.settings["drops"]["min_tier"] == 1024
    assert (curation.samples, curation.kept, curation.skipped) == (1, 0, {SkipReason.RESOLUTION: 1})
