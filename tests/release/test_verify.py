"""Verification: every kind of damage is found and named, and only what is whole is noted as verified."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from smalti import objects
from smalti.curation.curate import curate
from smalti.errors import CorruptError, InputError
from smalti.images.encode import encode
from smalti.lake import Lake
from smalti.reasons import SkipReason, reason_set
from smalti.release import verify as module
from smalti.release.latest import give_up
from smalti.release.manifest import Manifest, read_manifest
from smalti.release.materialize import materialize
from smalti.release.skips import SkipFile, canonical_json, compress, sha256
from smalti.release.summary import samples_of, summary
from smalti.release.verify import read_verified, verify, verify_manifest
from smalti.settings import ReleaseRun
from smalti.shards import mds
from tests.release.conftest import add, build
from tests.support.pictures import Row, picture, release_run, stored


@pytest.fixture(scope="module")
def assembled(parts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake with a release; copy it."""
    folder = tmp_path_factory.mktemp("assembled") / "lake"
    shutil.copytree(parts, folder)
    build(Lake.at(str(folder)), release_run("demo:main", "other:extra"))
    return folder


@pytest.fixture
def lake(assembled: Path, tmp_path: Path) -> Lake:
    shutil.copytree(assembled, tmp_path / "lake")
    return Lake.at(str(tmp_path / "lake"))


def uri_of(lake: Lake) -> str:
    return lake.manifest("set", "v1")


def kept_ids(uri: str, group: str, optouts: int = 0) -> Iterator[str]:
    """What the loader would serve, without the loader."""
    manifest = read_manifest(uri)
    sources = {source.name for source in manifest.sources if source.group == group}
    return (
        name for name, shard, _, reasons in samples_of(uri, manifest) if not reasons and shard.split("/")[0] in sources
    )


@pytest.fixture
def without_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing streaming takes many seconds: one test does it."""
    monkeypatch.setattr(module, "read_ids", kept_ids)


def path_of(uri: str) -> Path:
    path = objects.local_path(uri)
    assert path is not None
    return path


def first_shard(lake: Lake) -> str:
    found = (each.uri for each in objects.list_objects(lake.parts("demo")))
    return next(uri for uri in found if uri.endswith("/512/1.000/shard.00000.mds"))


def change_manifest(lake: Lake, change: Callable[[dict[str, Any]], None]) -> None:
    """Damage that somebody has taken pains over: the digest fits."""
    path = path_of(uri_of(lake))
    said = json.loads(path.read_bytes())
    change(said)
    path.write_bytes(Manifest.model_validate(said).with_digest().encode())


def rewrite_shard(lake: Lake, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the first sample of the first shard, with an index, part.json and manifest that fit."""
    uri = first_shard(lake)
    columns, raw = mds.read_shard(objects.read_bytes(uri))
    samples = [mds.decode_sample(columns, each) for each in raw]
    change(samples[0])
    data = mds.encode_shard(columns, samples, size_limit=1 << 17)
    path_of(uri).write_bytes(data)
    basename = uri.removeprefix(lake.parts_root() + "/")
    manifest = read_manifest(uri_of(lake))
    for place, stream in enumerate(manifest.streams):
        where = path_of(f"{lake.release('set', 'v1')}/{stream.index}")
        index = json.loads(gzip.decompress(where.read_bytes()))
        for number, entry in enumerate(index["shards"]):
            if entry["raw_data"]["basename"] == basename:
                index["shards"][number] = mds.shard_entry(basename, data)
                content = canonical_json(index)
                where.write_bytes(compress(content))
                size = sum(each["raw_data"]["bytes"] for each in index["shards"])
                change_manifest(
                    lake,
                    lambda said, at=place, of=content, total=size: said["streams"][at].update(
                        index_sha256=sha256(of), bytes=total
                    ),  # type: ignore[misc]
                )


def test_a_whole_release_is_read_back_through_the_loader_and_noted(
    lake: Lake, run: ReleaseRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # StreamingDataset leaves lock files
    materialize(uri_of(lake), lake.tree("set", "v1"))
    report = verify(lake, run.model_copy(update={"manifest": uri_of(lake)}))
    assert report.faults == ()
    assert (report.samples, report.kept, report.version) == (9, 5, "v1")
    assert report.shards == sum(each.uri.endswith(".mds") for each in objects.list_objects(lake.parts_root()))
    noted = read_verified(uri_of(lake))
    assert noted is not None
    assert noted.manifest_sha256 == sha256(objects.read_bytes(uri_of(lake)))
    before = {each.uri: each for each in objects.list_objects(lake.root)}
    assert verify(lake, run.model_copy(update={"manifest": uri_of(lake)})).faults == ()
    assert {each.uri: each for each in objects.list_objects(lake.root)} == before
    assert plainly_read(lake.parts("demo")) == Counter(f"demo/{n}" for n in IN_DEMO)
    assert plainly_read(lake.tree("set", "v1")) == Counter(summary(uri_of(lake)).kept_ids)
    assert sorted(module.read_ids(uri_of(lake), "main")) == ["demo/1.jpg", "demo/2.jpg", "demo/3.jpg", "demo/large.jpg"]


IN_DEMO = ("0.jpg", "1.jpg", "2.jpg", "3.jpg", "large.jpg", "text.jpg", "failed.jpg")


def plainly_read(root: str) -> Counter[str]:
    """What an unmodified StreamingDataset reads from every bucket directory below a root; it checks the hashes itself."""
    from streaming import StreamingDataset

    found: Counter[str] = Counter()
    for each in objects.list_objects(root):
        if each.uri.endswith("/index.json"):
            folder = path_of(each.uri).parent
            dataset = StreamingDataset(local=str(folder), validate_hash="sha256", batch_size=1, num_canonical_nodes=1)
            for sample in dataset:
                assert sample["image"].size == (sample["width"], sample["height"])
                assert f"{sample['width'] / sample['height']:.3f}" == folder.name
                found[sample["id"]] += 1
    return found


def flip_a_byte(lake: Lake) -> None:
    path = path_of(first_shard(lake))
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def swap_a_skip_file(lake: Lake) -> None:
    stream = next(s for s in read_manifest(uri_of(lake)).streams if s.skip_file)
    path_of(lake.skip_file("set", str(stream.skip_file))).write_bytes(SkipFile(shards={}).encode_gzip())


def forget_a_skip(lake: Lake) -> None:
    """A skip file with a reason less, in its place by its right name."""

    def change(said: dict[str, Any]) -> None:
        for stream in said["streams"]:
            if stream["group"] == "main" and stream["skip_file"]:
                skips = SkipFile.decode(objects.read_bytes(lake.skip_file("set", stream["skip_file"])), "here")
                fewer = SkipFile(shards=dict(list(skips.shards.items())[1:]))
                stream["skip_file"] = fewer.digest()
                objects.create_bytes(lake.skip_file("set", fewer.digest()), fewer.encode_gzip())

    change_manifest(lake, change)


def hide_a_sample(lake: Lake) -> None:
    change_manifest(lake, lambda said: said["accounting"].update(samples=8))


def lose_rows_before(lake: Lake) -> None:
    change_manifest(lake, lambda said: said["accounting"]["upstream"][0].update(rows_in=99, rows_out=99))


def curated(lake: Lake, ending: str) -> Path:
    """What curate wrote for the release."""
    (path,) = path_of(lake.curations("set")).glob(f"*{ending}")
    return path


def recurated(lake: Lake) -> str:
    """Another curation of the same parts, as a manifest names it."""
    run = release_run("demo:main", "other:extra", drops={"labels": ["nsfw"]})
    return f"../curations/{curate(lake, run).curation.rpartition('/')[2]}"


DAMAGE: dict[str, tuple[Callable[[Lake], Any], str]] = {
    "a byte of a shard": (flip_a_byte, r"demo/00001-\w+/512/1\.000/shard\.00000\.mds: its \d+ bytes have the sha256"),
    "a missing shard": (lambda lake: path_of(first_shard(lake)).unlink(), r"shard\.00000\.mds: there is no such object"),
    "a missing index": (
        lambda lake: path_of(f"{lake.release('set', 'v1')}/streams/main/512/1.000/index.json.gz").unlink(),
        r"stream main/512/1\.000: there is no such object",
    ),
    "a swapped skip file": (swap_a_skip_file, r"stream \S+: the content has the sha256"),
    "a skip less": (forget_a_skip, r"stream main/\S+: kept is \d in the manifest, \d by index and skip file"),
    "another streams.yaml": (
        lambda lake: path_of(lake.streams_yaml("set", "v1")).write_bytes(b"dataset: {}\n"),
        r"streams\.yaml: it has the sha256 \w{64}, the manifest says",
    ),
    "a missing page": (lambda lake: path_of(lake.release_report("set", "v1")).unlink(), r"report\.html: there is no such"),
    "no claim": (lambda lake: path_of(lake.claim("set", "v1")).unlink(), r"claim\.json: there is no such object .*restore it, as"),
    "another's claim": (
        lambda lake: path_of(lake.claim("set", "v1")).write_bytes(b'{"digest":"00","parent":null}'),
        r"claim\.json: it is not the claim of this version",
    ),
    "no curation": (lambda lake: curated(lake, ".json.gz").unlink(), r"curation: there is no such object .*json\.gz\): restore it"),
    "no rows of the curation": (
        lambda lake: curated(lake, ".parquet").unlink(), r"curation: there is no such object \(file:///.*\.parquet\): restore it"
    ),
    "other rows of the curation": (
        lambda lake: pq.write_table(pq.read_table(curated(lake, ".parquet")).slice(1), curated(lake, ".parquet")),
        r"curation: the rows are not those that the header names \(file:///.*\.parquet\): restore it",
    ),
    "another curation": (
        lambda lake: change_manifest(lake, lambda said: said["provenance"].update(curation=recurated(lake))),
        r"curation: it says something else of reasons, kept samples, skipped samples than the manifest",
    ),
    "a damaged note": (
        lambda lake: path_of(lake.verified("set", "v1")).write_bytes(b"{}\n"), r"verified\.json: the manifest is not the one that"
    ),
    "a count of the manifest": (hide_a_sample, r"release: 8 samples, but 5 kept \+ 4 skipped"),
    "rows lost between stages": (lose_rows_before, r"shard 00001-\w+: 9 rows in, but ingest put 99 into the table"),
    "a caption less": (
        lambda lake: rewrite_shard(lake, lambda sample: sample.update(caption="")),
        r"sample 0 \(demo/0\.jpg\): it has no caption",
    ),
    "another id": (
        lambda lake: rewrite_shard(lake, lambda sample: sample.update(id="demo/9.jpg")),
        r"sample 0 \(demo/0\.jpg\): id is 'demo/9\.jpg', not 'demo/0\.jpg'",
    ),
    "another shape": (
        lambda lake: rewrite_shard(lake, lambda sample: sample.update(image=encode(picture(1, 512, 480)))),
        r"sample 0 \(demo/0\.jpg\): its picture is 512x480 RGB, the bucket 512x512 RGB",
    ),
    "another quality": (
        lambda lake: rewrite_shard(lake, lambda sample: sample.update(image=encode(picture(1, 512, 512), quality=75))),
        r"sample 0 \(demo/0\.jpg\): its picture was not encoded at quality 92",
    ),
}  # fmt: skip


@pytest.mark.usefixtures("without_loader")
@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_found_and_named_and_nothing_is_noted(lake: Lake, run: ReleaseRun, damage: str) -> None:
    harm, line = DAMAGE[damage]
    harm(lake)
    report = verify_manifest(uri_of(lake))
    assert [fault for fault in report.faults if re.search(line, fault)], report.faults
    with pytest.raises(CorruptError) as raised:
        verify(lake, run.model_copy(update={"manifest": uri_of(lake)}))
    assert raised.value.what.startswith(report.faults[0])
    if len(report.faults) > 1:
        assert f"(and {len(report.faults) - 1} more faults)" in str(raised.value)
    assert damage == "a damaged note" or read_verified(uri_of(lake)) is None


@pytest.mark.usefixtures("without_loader")
def test_what_garbage_collection_takes_from_a_version_that_was_given_up_is_no_fault(lake: Lake) -> None:
    for ending in (".json.gz", ".parquet"):
        curated(lake, ending).unlink()
    assert len(verify_manifest(uri_of(lake)).faults) >= 2
    assert give_up(lake, "set", ["v1"], None) == ("v1",)
    assert verify_manifest(uri_of(lake)).faults == ()


@pytest.mark.usefixtures("without_loader")
def test_a_byte_of_the_manifest_is_found(lake: Lake) -> None:
    path = path_of(uri_of(lake))
    path.write_bytes(
        path.read_bytes().replace(b'"kept": 5', b'"kept": 6', 1).replace(b'"tier": 512', b'"tier": 513', 1)
    )
    (fault,) = verify_manifest(uri_of(lake)).faults
    assert "digest" in fault or "must be" in fault


@pytest.mark.parametrize(
    ("served", "fault"),
    [
        (["demo/1.jpg"] * 2 + ["demo/2.jpg", "demo/3.jpg", "demo/large.jpg"], "demo/1.jpg: served, and not kept or not once"),
        (["demo/1.jpg", "demo/2.jpg", "demo/3.jpg"], "demo/large.jpg: kept, and not served"),
        (["demo/0.jpg", "demo/1.jpg", "demo/2.jpg", "demo/3.jpg", "demo/large.jpg"], "demo/0.jpg: served, and not kept or not once"),
    ],
)  # fmt: skip
def test_a_loader_that_serves_anything_else_is_a_fault(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, served: list[str], fault: str
) -> None:
    monkeypatch.setattr(module, "read_ids", lambda uri, group, _: served if group == "main" else kept_ids(uri, group))
    assert verify_manifest(uri_of(lake)).faults == (fault,)


@pytest.mark.usefixtures("without_loader")
def test_a_tree_that_is_not_the_releases_is_found(lake: Lake) -> None:
    tree = lake.tree("set", "v1")
    materialize(uri_of(lake), tree)
    assert verify_manifest(uri_of(lake)).faults == ()
    shards = [each.uri for each in objects.list_objects(tree) if each.uri.endswith(".mds")]
    good = path_of(shards[0]).read_bytes()
    path_of(shards[0]).write_bytes(good[:-1] + b"!")
    assert [fault for fault in verify_manifest(uri_of(lake)).faults if "it is not what the release has there" in fault]
    path_of(shards[0]).unlink()
    assert [fault for fault in verify_manifest(uri_of(lake)).faults if "there is no such object" in fault]


@pytest.mark.usefixtures("without_loader")
def test_a_manifest_that_was_changed_after_it_was_verified_is_refused(lake: Lake, run: ReleaseRun) -> None:
    named = run.model_copy(update={"manifest": uri_of(lake)})
    verify(lake, named)
    change_manifest(lake, lambda said: said["provenance"].update(smalti="9.9"))
    with pytest.raises(CorruptError, match="the manifest is not the one that was verified before"):
        verify(lake, named)


def test_what_cannot_be_verified_is_said(lake: Lake, run: ReleaseRun) -> None:
    with pytest.raises(InputError, match="no manifest is named"):
        verify(lake, run)
    with pytest.raises(InputError, match="there is no manifest"):
        verify_manifest(lake.manifest("set", "v7"))
    objects.create_bytes(f"{lake.root}/.smalti/verified.jsonl", b"")
    with pytest.raises(InputError, match="this is a pulled copy"):
        verify_manifest(uri_of(lake))


def test_the_summary_says_what_became_of_every_picture(lake: Lake) -> None:
    told = summary(uri_of(lake))
    assert told.kept_ids == ("demo/1.jpg", "demo/2.jpg", "demo/3.jpg", "demo/large.jpg", "other/own.jpg")
    left_out = {each.id: (str(reason), each.duplicate_of) for reason, of in told.skipped.items() for each in of}
    assert left_out == {
        "demo/0.jpg": ("duplicate", "demo/large.jpg"),
        "demo/failed.jpg": ("caption_failed", None),
        "demo/text.jpg": ("text", None),
        "other/copy.jpg": ("duplicate", "demo/1.jpg"),
    }
    assert {(each.id, each.stage, each.reason) for each in told.dropped} == {
        ("demo/broken.jpg", "shard", "decode_failed"),
        ("demo/small.png", "fingerprint", "too_small"),
    }
    assert sum(told.counts.values()) + told.kept == told.samples == 9


@pytest.fixture(scope="module")
def delivered_twice(parts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake whose release may lift text or failed captions, and in which a later part has one of its samples again."""
    folder = tmp_path_factory.mktemp("twice") / "lake"
    shutil.copytree(parts, folder)
    lake = Lake.at(str(folder))
    add(lake, [Row("3.jpg", stored(picture(33)))], batch="b2")
    sets = ((SkipReason.TEXT,), (SkipReason.CAPTION_FAILED,))
    build(lake, release_run("demo:main", "other:extra", reason_sets=sets))
    return folder


def give_other_reasons(lake: Lake, old: str, new: str) -> None:
    """Samples are left out for another reason, in skip files, counts and digests that all fit."""

    def renamed(counts: dict[str, int]) -> None:
        if old in counts:
            counts[new] = counts.get(new, 0) + counts.pop(old)

    def change(said: dict[str, Any]) -> None:
        for stream in filter(lambda stream: stream["skip_file"], said["streams"]):
            skips = SkipFile.decode(objects.read_bytes(lake.skip_file("set", stream["skip_file"])), "here")
            shards = json.loads(skips.encode())["shards"]
            for shard in shards.values():
                moved = [*shard["skip"].pop(old, []), *shard["skip"].get(new, [])]
                shard["skip"] |= {new: sorted(moved)} if moved else {}
            other = SkipFile.model_validate({"shards": shards})
            objects.create_bytes(lake.skip_file("set", other.digest()), other.encode_gzip())
            lifted = {name: reason_set(name) for name in stream["kept_without"]}
            left_out = {name: sum(len(s.left_out(of)) for s in other.shards.values()) for name, of in lifted.items()}
            stream["kept_without"] = {name: stream["samples"] - left_out[name] for name in lifted}
            stream["skip_file"] = other.digest()
        for each in (*said["streams"], *said["sources"], said["accounting"]):
            renamed(each["skipped"])

    change_manifest(lake, change)


@pytest.mark.usefixtures("without_loader")
@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ("superseded", "text", [r"demo/3\.jpg: served 2 times if text is lifted"]),
        (
            "text",
            "caption_failed",
            [r"\S+: sample \d \(demo/text\.jpg\) is served if caption_failed is lifted, though it is text"],
        ),
        (
            "caption_failed",
            "text",
            [r"\S+: sample \d \(demo/failed\.jpg\) is served if text is lifted, though it is cap"],
        ),
    ],
)
def test_what_a_reason_set_must_not_serve_is_named(
    delivered_twice: Path, tmp_path: Path, old: str, new: str, lines: list[str]
) -> None:
    shutil.copytree(delivered_twice, tmp_path / "lake")
    lake = Lake.at(str(tmp_path / "lake"))
    assert verify_manifest(uri_of(lake)).faults == ()

    give_other_reasons(lake, old, new)

    faults = verify_manifest(uri_of(lake)).faults
    for line in [*lines, r"stream main/512/1\.000: skip_file is \w{64} in the manifest, the curation comes to \w{64}"]:
        assert [fault for fault in faults if re.match(line, fault)], faults
    assert not [fault for fault in faults if "by index and skip file" in fault]  # the counts fit


@pytest.mark.usefixtures("without_loader")
def test_a_set_that_lifts_what_is_never_served_is_named(delivered_twice: Path, tmp_path: Path) -> None:
    shutil.copytree(delivered_twice, tmp_path / "lake")
    lake = Lake.at(str(tmp_path / "lake"))

    def change(said: dict[str, Any]) -> None:
        said["reason_sets"] = [["superseded"] if each == ["text"] else each for each in said["reason_sets"]]
        for stream in said["streams"]:
            stream["kept_without"]["superseded"] = stream["kept_without"].pop("text")

    change_manifest(lake, change)
    assert "reason set superseded: it lifts superseded, which is never served" in verify_manifest(uri_of(lake)).faults


@pytest.mark.usefixtures("without_loader")
@pytest.mark.parametrize("where", ["shard", "samples.parquet"])
def test_a_directory_in_an_objects_place_is_one_fault_among_others(lake: Lake, where: str) -> None:
    path = path_of(
        first_shard(lake)
        if where == "shard"
        else next(each.uri for each in objects.list_objects(lake.parts("demo")) if each.uri.endswith("samples.parquet"))
    )
    path.unlink()
    path.mkdir()
    other = path_of(f"{uri_of(lake).rsplit('/', 1)[0]}/report.html")
    other.write_bytes(b"changed")
    faults = verify_manifest(uri_of(lake)).faults
    assert any(path.name in fault for fault in faults)
    assert any("report.html" in fault for fault in faults)
