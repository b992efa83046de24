"""Assembly: the same content is the same version, whatever dies or hurries in between."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from smalti import objects
from smalti.curation.curate import curate
from smalti.errors import CorruptError, InputError
from smalti.lake import Lake
from smalti.reasons import SkipReason
from smalti.release.assemble import assemble, claim_version, claimed_versions
from smalti.release.latest import move_latest
from smalti.release.manifest import read_manifest, read_skip_file, read_stream_index
from smalti.release.optouts import OptoutSnapshot
from smalti.release.skips import canonical_json
from smalti.settings import ReleaseRun
from tests.release.conftest import add, build
from tests.support.pictures import Row, picture, release_run, stored


@pytest.fixture
def lake(filled: Lake) -> Lake:
    return filled


def content(lake: Lake) -> dict[str, str]:
    """Every object below releases/, without provenance and without the place of the lake."""
    found = {}
    for each in objects.list_objects(lake.releases()):
        data = objects.read_bytes(each.uri).replace(lake.root.encode(), b"LAKE")
        if each.uri.endswith("manifest.json"):
            manifest = json.loads(data)
            del manifest["provenance"], manifest["checksum"]  # of the whole file
            data = json.dumps(manifest).encode()
        found[each.uri.removeprefix(lake.root)] = hashlib.sha256(data).hexdigest()
    return found


def dying_after(monkeypatch: pytest.MonkeyPatch, writes: int) -> Callable[[], None]:
    """From now on the write after so many fails, as if the process had been killed; returns what ends that."""
    create, left = objects.create_bytes, iter(range(writes))

    def create_or_die(uri: str, data: bytes) -> bool:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return create(uri, data)

    monkeypatch.setattr(objects, "create_bytes", create_or_die)
    return lambda: monkeypatch.setattr(objects, "create_bytes", create)


def test_a_manifest_counts_every_sample_once_and_names_every_file(lake: Lake, run: ReleaseRun) -> None:
    report = build(lake, run)
    manifest = read_manifest(report.manifest)
    assert manifest.imbalances() == []
    assert (report.samples, report.kept, report.version) == (9, 5, "v1")
    assert manifest.accounting.skipped == {
        SkipReason.CAPTION_FAILED: 1,
        SkipReason.TEXT: 1,
        SkipReason.DUPLICATE: 2,
    }
    assert [stream.name for stream in manifest.streams] == [
        "extra/512/1.000",
        "extra/512/1.667",
        "main/512/1.000",
        "main/1024/1.000",
    ]
    assert manifest.mixing == {"main": 3.0, "extra": 1.0}
    assert manifest.licences == {"": 1, "CC0-1.0": 4}
    assert [engine["name"] for engine in manifest.engines] == ["rules", "rules-minilm"]
    assert manifest.sources[0].parts[0].samples == 7
    assert manifest.accounting.upstream[0].what == "demo, batch b1, ingest"
    shard_count = next(c for c in manifest.accounting.upstream if c.what.startswith("demo, batch b1, shard"))
    assert (shard_count.rows_in, shard_count.dropped) == (9, {"decode_failed": 1, "too_small": 1})


def test_streams_merge_the_parts_and_skip_files_name_what_they_leave_out(lake: Lake, run: ReleaseRun) -> None:
    add(lake, [Row("later.jpg", stored(picture(40)))], batch="b2")
    uri = build(lake, run).manifest
    stream = next(s for s in read_manifest(uri).streams if s.name == "main/512/1.000")
    names = [entry["raw_data"]["basename"] for entry in read_stream_index(uri, stream)]
    assert names == sorted(names)
    assert {name.split("/")[1][:5] for name in names} == {"00001", "00002"}
    assert all(objects.exists(f"{lake.parts_root()}/{name}") for name in names)
    skips = read_skip_file(uri, stream)
    assert (
        skips.counts() == stream.skipped == {SkipReason.CAPTION_FAILED: 1, SkipReason.TEXT: 1, SkipReason.DUPLICATE: 1}
    )
    assert set(skips.shards) < set(names)


def test_the_same_content_is_the_same_version_and_changes_no_object(lake: Lake, run: ReleaseRun) -> None:
    first, before = build(lake, run), {each.uri: each for each in objects.list_objects(lake.root)}
    again = build(lake, run)
    assert again.model_copy(update={"seconds": first.seconds}) == first
    assert {each.uri: each for each in objects.list_objects(lake.root)} == before


def test_another_rule_or_another_part_is_another_version(lake: Lake, run: ReleaseRun) -> None:
    first = build(lake, run)
    looser = run.dataset.model_copy(update={"drops": run.dataset.drops.model_copy(update={"labels": ()})})
    second = build(lake, run.model_copy(update={"dataset": looser}))
    add(lake, [Row("later.jpg", stored(picture(40)))], batch="b2")
    third = build(lake, run)
    assert [report.version for report in (first, second, third)] == ["v1", "v2", "v3"]
    assert len({report.digest for report in (first, second, third)}) == 3


def test_words_about_a_dataset_are_not_its_content(lake: Lake, run: ReleaseRun) -> None:
    first = build(lake, run)
    other = run.dataset.model_copy(update={"description": "Other words", "schedule": "all", "expected": {}})
    assert build(lake, run.model_copy(update={"dataset": other})).manifest == first.manifest


def test_killed_at_any_write_the_next_run_ends_in_the_same_release(
    parts: Path, tmp_path: Path, run: ReleaseRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(parts, tmp_path / "undisturbed")
    undisturbed = Lake.at(str(tmp_path / "undisturbed"))
    digest = build(undisturbed, run).digest
    wanted = content(undisturbed)
    assert len(wanted) > 8
    for writes in range(len(wanted)):
        shutil.copytree(parts, tmp_path / f"after{writes}")
        lake = Lake.at(str(tmp_path / f"after{writes}"))
        revive = dying_after(monkeypatch, writes)
        with pytest.raises(KeyboardInterrupt):
            build(lake, run)
        revive()
        assert not objects.exists(lake.manifest("set", "v1"))
        before = {each.uri: each for each in objects.list_objects(lake.root)}
        report = build(lake, run)
        assert (report.digest, report.version) == (digest, "v1")
        assert content(lake) == wanted
        after = {each.uri: each for each in objects.list_objects(lake.root)}
        assert {uri: after[uri] for uri in before} == before


def test_a_wanted_version_is_made_once_and_never_changed(lake: Lake, run: ReleaseRun) -> None:
    named = run.model_copy(update={"version": "2026-01-01"})
    first = build(lake, named)
    assert first.version == "2026-01-01"
    assert build(lake, named).manifest == first.manifest
    add(lake, [Row("later.jpg", stored(picture(40)))], batch="b2")
    with pytest.raises(InputError, match="version 2026-01-01 of set has other content"):
        build(lake, named)
    with pytest.raises(InputError, match="a version cannot be called skips"):
        build(lake, run.model_copy(update={"version": "skips"}))
    assert build(lake, run).version == "v1"


def test_a_wanted_version_of_known_content_is_not_made_and_it_says_so(lake: Lake, run: ReleaseRun) -> None:
    build(lake, run)
    report = build(lake, run.model_copy(update={"version": "2026-01-02"}))
    assert report.version == "v1"
    assert "v1 has this content already; 2026-01-02 was not made" in report.warnings
    assert claimed_versions(lake, "set") == ["v1"]


def test_who_loses_the_race_for_a_number_takes_the_next(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    create = objects.create_bytes

    def somebody_is_faster(uri: str, data: bytes) -> bool:
        monkeypatch.setattr(objects, "create_bytes", create)
        create(uri, canonical_json({"digest": "b" * 64, "parent": None}))
        return create(uri, data)

    monkeypatch.setattr(objects, "create_bytes", somebody_is_faster)
    assert claim_version(lake, "set", "a" * 64, None).version == "v2"
    assert claim_version(lake, "set", "b" * 64, None).version == "v1"
    assert [claim_version(lake, "set", digest * 64, None).version for digest in "cde"] == ["v3", "v4", "v5"]
    create(lake.claim("set", "v10"), canonical_json({"digest": "f" * 64, "parent": None}))
    assert claim_version(lake, "set", "0" * 64, None).version == "v11"


def test_the_parent_is_what_was_served_when_the_version_was_claimed(lake: Lake, run: ReleaseRun) -> None:
    first = build(lake, run)
    assert read_manifest(first.manifest).parent is None
    move_latest(lake, "set", first.version, first.digest)
    add(lake, [Row("later.jpg", stored(picture(40)))], batch="b2")
    second = build(lake, run)
    assert read_manifest(second.manifest).parent == "v1"
    page = objects.read_bytes(lake.release_report("set", "v2")).decode()
    assert "Since v1" in page
    assert "new part demo/00002-" in page


def test_streams_yaml_opens_the_release(lake: Lake, run: ReleaseRun) -> None:
    report = build(lake, run)
    said = yaml.safe_load(objects.read_bytes(lake.streams_yaml("set", "v1")))
    assert said["dataset"]["_target_"] == "smalti.loader.ReleaseDataset"
    assert said["dataset"]["manifest"] == report.manifest
    assert sum(stream["kept"] for stream in said["streams"]) == report.kept
    assert all(type(stream["name"]) is str for stream in said["streams"])


class _Page(HTMLParser):
    """Tags that are open, and everything that a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [value for name, value in attrs if name in ("src", "href") and value]
        if tag not in ("meta", "img", "rect"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag != "rect":
            assert self.open.pop() == tag


def test_the_report_is_one_whole_page_with_pictures_and_reasons(lake: Lake, run: ReleaseRun) -> None:
    build(lake, run)
    page = objects.read_bytes(lake.release_report("set", "v1")).decode()
    parser = _Page()
    parser.feed(page)
    assert parser.open == []
    assert parser.fetched
    assert all(each.startswith("data:image/jpeg;base64,") for each in parser.fetched)
    assert "url(" not in page
    assert "Made for &lt;tests&gt;" in page
    assert "picture &lt;2&gt;" in page
    assert SkipReason.DUPLICATE.meaning in page
    assert re.search(r"other/copy\.jpg.*copy of.*demo/1\.jpg", page, re.DOTALL)
    assert len(page) < 1_000_000


def test_the_report_counts_what_was_opted_out_and_neither_shows_nor_names_it(lake: Lake, run: ReleaseRun) -> None:
    first = build(lake, run)
    move_latest(lake, "set", first.version, first.digest)  # so that the page says what became of it
    opted_out = ("demo/1.jpg", "other/copy.jpg", "demo/text.jpg")  # a picture, its copy, and one with another reason
    before = objects.read_bytes(first.page).decode()
    assert all(each in before for each in opted_out)
    snapshot = OptoutSnapshot(position=1, shards={}, ids=("demo/1.jpg", "demo/text.jpg"))
    objects.create_bytes(lake.optout_snapshot(1), snapshot.encode())
    second = build(lake, run)
    assert second.dropped["optout"] == 3
    assert second.lost == {"optout": 1}
    page = objects.read_bytes(second.page).decode()
    assert SkipReason.OPTOUT.meaning in page
    assert not [each for each in opted_out if each in page]
    assert not set(re.findall(r"data:image/jpeg;base64,[^\"]+", page)) & pictures_of(before, opted_out)


def pictures_of(page: str, ids: tuple[str, ...]) -> set[str]:
    """What a page shows of some samples."""
    cards = re.findall(r'<figure><img src="([^"]+)".*?<figcaption><b>(.*?)</b>', page)
    found = {picture for picture, name in cards if name in ids}
    assert found
    return found


def test_a_part_that_is_not_what_was_curated_is_refused(lake: Lake, run: ReleaseRun) -> None:
    curation = curate(lake, run).curation
    part = next(each.uri for each in objects.list_objects(lake.parts("demo")) if each.uri.endswith("samples.parquet"))
    path = objects.local_path(part)
    assert path is not None
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(CorruptError, match=r"samples\.parquet: the file is not the one that part\.json records"):
        assemble(lake, run.model_copy(update={"curation": curation}))
    assert claimed_versions(lake, "set") == []


def test_what_cannot_be_assembled_is_said(lake: Lake, run: ReleaseRun) -> None:
    with pytest.raises(InputError, match="no curation is named"):
        assemble(lake, run)
    curation = curate(lake, run).curation
    other = release_run("demo", name="another").model_copy(update={"curation": curation})
    with pytest.raises(InputError, match="the curation is of dataset set"):
        assemble(lake, other)
    with pytest.raises(InputError, match="the dataset has no source other"):
        assemble(lake, release_run("demo").model_copy(update={"curation": curation}))
    nothing = run.dataset.model_copy(update={"drops": run.dataset.drops.model_copy(update={"licences": ("none",)})})
    with pytest.raises(InputError, match="all of 9 samples are left out"):
        build(lake, run.model_copy(update={"dataset": nothing}))
    assert claimed_versions(lake, "set") == []


def test_a_version_whose_parent_was_collected_is_found_again(lake: Lake, run: ReleaseRun) -> None:
    first = build(lake, run)
    move_latest(lake, "set", first.version, first.digest)
    changed = run.model_copy(update={"dataset": run.dataset.model_copy(update={"groups": {"main": 1.0, "extra": 1.0}})})
    second = build(lake, changed)
    objects.delete_object(lake.manifest("set", "v1"))
    again = build(lake, changed)
    assert (again.version, again.digest, again.gained) == (second.version, second.digest, {})


def test_a_curation_with_other_drops_is_refused(lake: Lake, run: ReleaseRun) -> None:
    curation = curate(lake, run).curation
    drops = run.dataset.drops.model_copy(update={"min_tier": 1024})
    other = run.dataset.model_copy(update={"drops": drops})
    with pytest.raises(InputError, match=r"other `drops` than the dataset has now\. Curate again"):
        assemble(lake, run.model_copy(update={"dataset": other, "curation": curation}))


def test_a_damaged_claim_is_named(lake: Lake, run: ReleaseRun) -> None:
    objects.create_bytes(lake.claim("set", "v1"), b"{}")
    with pytest.raises(CorruptError, match=r"set/v1/claim\.json: this is not the claim of a version"):
        build(lake, run)
