"""Parts with more than one caption a sample."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from smalti import objects
from smalti.config import Encoding
from smalti.errors import InputError
from smalti.lake import Lake
from smalti.shards import mds
from smalti.shards.part import Part, committed_parts, read_part
from smalti.shards.plan import PlanSettings
from smalti.shards.samples import decode_samples, encode_samples
from smalti.shards.stage import shard
from tests.support.pictures import Row, picture, source_run, stored, write_table

EXTRA = ("source", "short-1")
COLUMNS = ("caption_short_1", "caption_source")


def row(name: str, seed: int, source: str | None, short: tuple[str | None, str | None], **fields: Any) -> Row:
    return Row(name, stored(picture(seed)), source_caption=source, extra=(("short-1", *short),), **fields)


ROWS = [
    row("a.jpg", 1, "alt a", ("short a", "ok")),
    row("b.jpg", 2, None, ("short b", "ok")),
    row("c.jpg", 3, "alt c", ("what was refused", "failed")),
    row("d.jpg", 4, " alt d\n", (None, None)),
    row("f.jpg", 6, " \n", ("short f", "ok")),
    row("e.jpg", 5, "alt e", ("short e", "ok"), caption=None, status="failed", label=None),
]


def samples_of(lake: Lake, part: Part) -> dict[str, dict[str, Any]]:
    found = {}
    for each in objects.list_objects(lake.part(part.source, part.name)):
        if each.uri.endswith(".mds"):
            columns, raw = mds.read_shard(objects.read_bytes(each.uri))
            assert columns == dict(sorted(part.columns.items()))
            for sample in raw:
                decoded = mds.decode_sample(columns, sample)
                found[str(decoded["id"]).rpartition("/")[2]] = decoded
    return found


def test_each_is_a_column_and_empty_where_a_sample_has_none(lake: Lake) -> None:
    run = source_run(extra_captions=EXTRA)
    write_table(lake, run, ROWS)
    report = shard(lake, run)
    part = read_part(lake, "demo", str(report.part))
    found = samples_of(lake, part)
    assert {name: tuple(sample[column] for column in ("caption", *COLUMNS)) for name, sample in found.items()} == {
        "a.jpg": ("a picture", "short a", "alt a"),
        "b.jpg": ("a picture", "short b", ""),
        "c.jpg": ("a picture", "", "alt c"),
        "d.jpg": ("a picture", "", "alt d"),
        "e.jpg": ("", "short e", "alt e"),
        "f.jpg": ("a picture", "short f", ""),
    }
    assert report.extra_captions == part.extra_captions == {"caption_short_1": 4, "caption_source": 4}
    assert [engine.name for engine in part.engines] == ["rules", "rules-minilm", "short-1"]
    data = objects.read_bytes(lake.samples("demo", part.name))
    for sample in decode_samples(data, "here", COLUMNS).to_pylist():
        for column in COLUMNS:
            assert sample[f"{column}_ok"] == bool(found[sample["id"].rpartition("/")[2]][column])


def test_the_same_again_writes_nothing_and_their_order_in_the_file_changes_nothing(lake: Lake) -> None:
    write_table(lake, source_run(extra_captions=EXTRA), ROWS)
    first = shard(lake, source_run(extra_captions=EXTRA))
    before = {each.uri: each for each in objects.list_objects(lake.root)}
    again = shard(lake, source_run(extra_captions=EXTRA[::-1]))
    assert (again.part, again.extra_captions) == (first.part, first.extra_captions)
    assert {each.uri: each for each in objects.list_objects(lake.root)} == before


@pytest.mark.parametrize("then", [(), ("source",), ("short-1",)])
def test_other_columns_are_another_part(lake: Lake, then: Sequence[str]) -> None:
    write_table(lake, source_run(), ROWS)
    first = shard(lake, source_run(extra_captions=EXTRA))
    second = shard(lake, source_run(extra_captions=then))
    parts = committed_parts(lake, "demo")
    assert [part.name for part in parts] == [first.part, second.part]
    assert parts[0].digest != parts[1].digest


def test_other_words_in_an_extra_caption_are_another_part(lake: Lake) -> None:
    for place, words in ((lake, "alt"), (Lake.at(f"{lake.root}2"), "other")):
        write_table(place, source_run(), [Row("a.jpg", stored(picture(1)), source_caption=words)])
    one, two = (shard(place, source_run(extra_captions=["source"])) for place in (lake, Lake.at(f"{lake.root}2")))
    assert one.part != two.part
    plain = [shard(place, source_run()).part for place in (lake, Lake.at(f"{lake.root}2"))]
    assert str(plain[0]) == str(plain[1]), "what is not asked for decides nothing"


def test_a_part_without_extra_captions_is_spelled_as_it_was_before_there_were_any(lake: Lake) -> None:
    """Its digest: see test_plan.py."""
    write_table(lake, source_run(), [Row("a.jpg", stored(picture(1), "BMP")), Row("b.jpg", stored(picture(2), "BMP"))])
    report = shard(lake, source_run())
    part = read_part(lake, "demo", str(report.part))
    data = objects.read_bytes(lake.samples("demo", part.name))
    assert data == encode_samples(decode_samples(data, "here"))
    said = json.loads(objects.read_bytes(lake.part_commit("demo", part.name)))
    assert sorted(said) == sorted({*Part.model_fields} - {"extra_captions", "origins", "replaces"})
    assert (
        "extra_captions"
        not in PlanSettings(
            source="demo", batch="b1", captioner="rules", classifier="rules-minilm", encoding=Encoding()
        ).dump()
    )
    assert not any("caption_" in name for name in part.columns)


def test_a_profile_that_never_captioned_the_source_is_one_line_that_says_how(lake: Lake) -> None:
    run = source_run(extra_captions=["short-1"])
    write_table(lake, run, [Row("a.jpg", stored(picture(1)))])
    with pytest.raises(InputError) as caught:
        shard(lake, run)
    line = str(caught.value)
    assert "no captions of profile 'short-1', which `extra_captions` of source demo names" in line
    assert "smalti source run demo --batch b1 --captioner short-1 --from caption --until caption" in line
    assert "\n" not in line


def test_a_profile_that_has_not_done_the_batch_is_warned_of(lake: Lake) -> None:
    run = source_run(extra_captions=EXTRA)
    write_table(lake, run, [row("a.jpg", 1, "alt", (None, None)), row("b.jpg", 2, None, (None, None))])
    report = shard(lake, run)
    assert report.extra_captions == {"caption_short_1": 0, "caption_source": 1}
    [warning] = report.warnings
    assert "has words in caption_short_1: caption was not run for it" in warning
    assert shard(lake, run).warnings == report.warnings


def test_a_run_by_an_extra_captioner_writes_its_words_in_both_columns(lake: Lake) -> None:
    """So parts of all captioners of a source have the same columns, and one dataset can be made of them."""
    run = source_run(extra_captions=["short-1"])
    short = run.model_copy(update={"captioner": run.extra_captioners[0]})
    write_table(lake, short, [Row("a.jpg", stored(picture(1)), caption="short a")])
    part = read_part(lake, "demo", str(shard(lake, short).part))
    [sample] = samples_of(lake, part).values()
    assert (sample["caption"], sample["caption_short_1"]) == ("short a", "short a")
    assert [engine.name for engine in part.engines] == ["short-1", "rules-minilm"]
