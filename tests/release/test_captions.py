"""Releases that weigh more than one caption column."""

from __future__ import annotations

from typing import Any

import pytest

from smalti import objects
from smalti.errors import InputError
from smalti.lake import Lake
from smalti.release import verify as verify_module
from smalti.release.checks import ShardCheck, check_shard
from smalti.release.manifest import Manifest, read_manifest
from smalti.release.materialize import materialize
from smalti.release.verify import verify_manifest
from smalti.settings import ReleaseRun
from smalti.shards import mds
from smalti.shards.stage import shard
from tests.release.conftest import build
from tests.release.test_verify import kept_ids
from tests.support.pictures import Row, picture, release_run, source_run, stored, write_table

WEIGHTS = {"caption": 3.0, "caption_source": 1.0}


def rows(day: int, said: int) -> list[Row]:
    """Four pictures, of which so many have a source's caption."""
    return [
        Row(f"{day}-{n}.jpg", stored(picture(10 * day + n)), source_caption=f"alt {day} {n}" if n < said else None)
        for n in range(4)
    ]


def deliver(lake: Lake, batch: str, found: list[Row], *extra: str) -> str:
    run = source_run(batch=batch, extra_captions=extra)
    write_table(lake, run, found)
    return str(shard(lake, run).part)


def released(lake: Lake, **dataset: Any) -> Manifest:
    return read_manifest(build(lake, release_run(**{"captions": WEIGHTS} | dataset)).manifest)


def test_manifest_streams_yaml_and_page_say_weights_and_coverage(lake: Lake) -> None:
    deliver(lake, "b1", rows(1, 3), "source")
    manifest = released(lake)
    assert manifest.captions == WEIGHTS
    folder = lake.release("set", "v1")
    assert (
        "captions:\n    caption: 3.0\n    caption_source: 1.0" in objects.read_bytes(f"{folder}/streams.yaml").decode()
    )
    page = objects.read_bytes(f"{folder}/report.html").decode()
    cells = [
        part.split(">")[-1] for line in page.split("<tr>") if "caption_source" in line for part in line.split("</td>")
    ]
    assert cells[:4] == ["caption_source", "25 %", "3", "75.0 %"]
    assert "it has those of <code>caption</code>" in page
    assert not any("no sample" in warning for warning in manifest.warnings)


def test_weights_are_content_and_other_words_are_other_content(lake: Lake) -> None:
    deliver(lake, "b1", rows(1, 3), "source")
    one, other = released(lake), released(lake, captions={"caption": 1.0})
    assert one.digest != other.digest
    assert released(lake).digest == one.digest


def test_a_column_that_says_nothing_is_warned_about(lake: Lake) -> None:
    deliver(lake, "b1", rows(1, 0), "source")
    assert "captions: no sample that is served has words in caption_source" in released(lake).warnings


def test_a_part_without_a_column_is_refused_in_a_line_that_says_what_to_do(lake: Lake) -> None:
    deliver(lake, "b1", rows(1, 3))
    part = deliver(lake, "b0", rows(2, 3), "source").rpartition("/")[2]
    with pytest.raises(InputError) as caught:
        released(lake)
    line = str(caught.value)
    assert "part demo/00001-" in line
    assert part not in line
    assert "has no column caption_source" in line
    assert "source demo" in line
    assert "`smalti source run demo --batch b1 --from caption`" in line
    assert "\n" not in line
    assert not objects.exists(lake.release("set", "v1") + "/manifest.json")


def test_what_the_line_says_helps(lake: Lake) -> None:
    """The batch is sharded again; its old part, of which nothing can be served, may stay as it is."""
    old = deliver(lake, "b1", rows(1, 3))
    shard(lake, source_run(extra_captions=["source"]))
    manifest = released(lake)
    names = [part.name for part in manifest.sources[0].parts]
    assert len(names) == 2
    assert old in names
    assert (manifest.accounting.kept, manifest.accounting.skipped) == (4, {"superseded": 4})


def test_a_part_that_only_a_lifted_reason_would_serve_needs_the_column_too(lake: Lake) -> None:
    deliver(lake, "b1", rows(1, 3), "source")
    texts = [Row("t.jpg", stored(picture(90)), label="text", caption="a page")]
    deliver(lake, "b2", texts)
    assert released(lake).accounting.skipped == {"text": 1}
    with pytest.raises(InputError, match="has no column caption_source"):
        released(lake, reason_sets=[["text"]])


def test_verify_holds_the_words_against_samples_parquet(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_module, "read_ids", kept_ids)
    deliver(lake, "b1", rows(1, 3), "source")
    released(lake)
    uri = lake.manifest("set", "v1")
    assert verify_manifest(uri).faults == ()
    seen: list[ShardCheck] = []
    check = check_shard

    def turned(each: ShardCheck) -> list[str]:
        seen.append(each)
        wrong = tuple(row._replace(extra_ok=(not row.extra_ok[0],)) for row in each.rows or ())
        return check(ShardCheck(**{**vars(each), "rows": wrong}))

    monkeypatch.setattr(verify_module, "check_shard", turned)
    faults = verify_manifest(uri).faults
    assert len(faults) == 4
    assert sum("says that it has no words in caption_source" in fault for fault in faults) == 3
    assert sum("says that it has words in caption_source" in fault for fault in faults) == 1


def test_a_tree_has_every_column(lake: Lake) -> None:
    deliver(lake, "b1", rows(1, 3), "source")
    released(lake)
    materialize(lake.manifest("set", "v1"), f"{lake.root}/tree")
    found = {}
    for each in objects.list_objects(f"{lake.root}/tree"):
        if each.uri.endswith(".mds"):
            columns, raw = mds.read_shard(objects.read_bytes(each.uri))
            for sample in raw:
                decoded = mds.decode_sample(columns, sample)
                found[decoded["id"]] = (decoded["caption"], decoded["caption_source"])
    assert found == {f"demo/1-{n}.jpg": ("a picture", f"alt 1 {n}" if n < 3 else "") for n in range(4)}


def test_an_ablation_keeps_the_weights_of_its_base(lake: Lake) -> None:
    deliver(lake, "b1", [*rows(1, 3), Row("t.jpg", stored(picture(90)), label="text", caption="a page")], "source")
    base = released(lake)
    run = release_run(captions={"caption": 1.0})
    ablation = ReleaseRun(
        dataset=run.dataset, sources=run.sources, without=("text",), base=lake.manifest("set", base.version)
    )
    assert read_manifest(build(lake, ablation).manifest).captions == WEIGHTS
