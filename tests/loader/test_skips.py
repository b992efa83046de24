from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smalti.errors import CorruptError, InputError, MissingObject
from smalti.lake import Lake
from smalti.loader.fetch import fetch
from smalti.loader.skips import lift, served_shards, skipped_indices
from smalti.objects import create_bytes, local_path
from smalti.reasons import ALWAYS_SKIPPED, SkipReason
from smalti.release.manifest import StreamEntry, encode_stream_index, read_stream_index
from smalti.release.skips import SkipFile, compress, sha256
from tests.loader.releases import Release, build, skip_share

WHOLE = "alpha/00001-aaaaaaaaaaaa/512/1.000/1"
WHOLE_FILE = "alpha/00001-aaaaaaaaaaaa/512/1.000/shard.00001.mds"


@pytest.fixture
def release(lake: Lake) -> Release:
    return build(lake, skips=skip_share(0.2, shards=[WHOLE]))


def stream_of(release: Release, name: str = "main/512/1.000") -> StreamEntry:
    return next(stream for stream in release.manifest.streams if stream.name == name)


def test_each_shard_serves_what_is_not_skipped(release: Release) -> None:
    for stream in release.manifest.streams:
        ids = [
            [f"{shard.basename.removesuffix('.mds').replace('shard.', '')}/{index}" for index in shard.kept_indices()]
            for shard in served_shards(release.uri, stream)
        ]
        expected = [
            [f"{each.rsplit('/', 2)[0]}/{int(each.split('/')[4]):05d}/{each.split('/')[5]}" for each in shard]
            for shard in release.shards[stream.name]
            if shard
        ]
        assert ids == expected


def test_a_shard_that_is_skipped_whole_is_not_served(release: Release) -> None:
    names = [shard.basename for shard in served_shards(release.uri, stream_of(release))]
    assert "alpha/00001-aaaaaaaaaaaa/512/1.000/shard.00001.mds" not in names
    assert len(names) == 5


def test_lifted_reasons_bring_samples_back_but_not_those_with_another_reason(lake: Lake) -> None:
    every = tuple(reason for reason in SkipReason if reason not in ALWAYS_SKIPPED)
    release = build(lake, version="v2", skips=skip_share(0.2, shards=[WHOLE]), reason_sets=[(SkipReason.TEXT,), every])
    stream = stream_of(release)
    lifted = served_shards(release.uri, stream, {SkipReason.TEXT})
    assert sum(shard.kept for shard in lifted) == stream.kept + stream.skipped[SkipReason.TEXT]
    assert sum(s.kept for s in served_shards(release.uri, stream, every)) == stream.samples


def test_only_declared_sets_are_lifted(release: Release) -> None:
    assert lift(release.manifest, ()) == frozenset()
    with pytest.raises(InputError, match=r"does not declare the set \(text\)\. .* these sets only: \(\)"):
        lift(release.manifest, ("text",))
    declaring = release.manifest.model_copy(update={"reason_sets": ((), (SkipReason.TEXT, SkipReason.NSFW))})
    assert lift(declaring, ("nsfw", "text")) == {SkipReason.NSFW, SkipReason.TEXT}
    with pytest.raises(InputError, match=r"\(\), \(nsfw, text\)"):
        lift(declaring, ("text",))


def test_a_reason_that_does_not_exist_is_refused_with_those_that_do(release: Release) -> None:
    with pytest.raises(InputError, match=r"no skip reason 'txet'\. Use one of: optout, "):
        lift(release.manifest, ("txet",))


@pytest.mark.parametrize("reason", sorted(ALWAYS_SKIPPED))
def test_some_reasons_are_never_lifted_whatever_a_manifest_declares(release: Release, reason: SkipReason) -> None:
    declaring = release.manifest.model_copy(update={"reason_sets": ((reason,),)})
    with pytest.raises(InputError, match=rf"skipped as {reason} are never served"):
        lift(declaring, (str(reason),))


def test_a_skip_file_for_other_shards_is_refused(release: Release, lake: Lake) -> None:
    for shard, samples in (("alpha/00009-x/512/1.000/shard.00000.mds", 11), (WHOLE_FILE, 99)):
        skips = SkipFile.of({shard: (samples, {SkipReason.TEXT: [0]})})
        create_bytes(lake.skip_file("demo", skips.digest()), skips.encode_gzip())
        stream = stream_of(release).model_copy(update={"skip_file": skips.digest()})
        with pytest.raises(CorruptError, match=r"v1/streams/main/512/1\.000/index\.json\.gz: the skip file counts"):
            served_shards(release.uri, stream)


@pytest.mark.parametrize("field", ["samples", "bytes", "kept"])
def test_counts_that_differ_from_the_manifests_are_refused(release: Release, field: str) -> None:
    stream = stream_of(release)
    stream = stream.model_copy(update={field: getattr(stream, field) + 1})
    with pytest.raises(CorruptError, match=rf"come to \d+ {field}.*, the manifest to"):
        served_shards(release.uri, stream)


def test_an_index_with_other_bytes_is_refused(release: Release, lake: Lake) -> None:
    stream = stream_of(release)
    other = encode_stream_index(read_stream_index(release.uri, stream)[1:])
    path = local_path(f"{lake.release('demo', 'v1')}/{stream.index}")
    assert path is not None
    path.unlink()
    with pytest.raises(MissingObject, match=r"v1/streams/main/512/1\.000/index\.json\.gz"):
        served_shards(release.uri, stream)
    path.write_bytes(compress(other))
    with pytest.raises(CorruptError, match=rf"v1/streams/.*sha256 {sha256(other)}, not {stream.index_sha256}"):
        served_shards(release.uri, stream)


INDICES = st.sets(st.integers(0, 19), max_size=12)


@given(
    st.dictionaries(
        st.sampled_from([f"a/p/512/1.000/shard.{number:05d}.mds" for number in range(5)]),
        st.tuples(
            st.dictionaries(st.sampled_from(SkipReason), INDICES, max_size=4),
            st.dictionaries(st.sampled_from(["text", "nsfw+text"]), INDICES, max_size=2),
        ),
    )
)
def test_the_fast_reading_of_a_skip_file_says_what_the_model_says(said: dict[str, Any]) -> None:
    skips = SkipFile.of(
        {name: (20, reasons) for name, (reasons, _) in said.items()}, {name: each for name, (_, each) in said.items()}
    )
    for lifted in ((), (SkipReason.TEXT,), (SkipReason.TEXT, SkipReason.NSFW)):
        found = skipped_indices(skips.encode(), "x", lifted)
        assert {name: (n, set(indices.tolist())) for name, (n, indices) in found.items()} == {
            name: (20, shard.left_out(lifted)) for name, shard in skips.shards.items()
        }
        assert all(indices.dtype == np.int32 and (np.diff(indices) > 0).all() for _, indices in found.values())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not a skip file"),
        ("[]", "nothing"),
        ("{}", "the version or a field"),
        ('{"shards":{},"version":2}', "the version or a field"),
        ('{"shards":{"a":{"samples":9}},"version":1}', None),
        ('{"shards":{"a":{"samples":9,"skip":{"text":[2,1]}}},"version":1}', "not ascending"),
        ('{"shards":{"a":{"samples":9,"skip":{"text":[1,1]}}},"version":1}', "not ascending"),
        ('{"shards":{"a":{"samples":9,"skip":{"text":[9]}}},"version":1}', "outside its shard"),
        ('{"shards":{"a":{"samples":9,"skip":{"text":[]}}},"version":1}', "or nothing"),
        ('{"shards":{"a":{"samples":9,"skip":{"text":[-1]}}},"version":1}', "something else than indices"),
        ('{"shards":{"a":{"samples":9,"skip":{"text":[1,,2]}}},"version":1}', "something else than indices"),
        ('{"shards":{"a":{"samples":9,"skip":{"text":[1.5]}}},"version":1}', "something else than indices"),
        ('{"shards":{"a":{"samples":9,"skip":{"txet":[1]}}},"version":1}', "txet"),
        ('{"shards":{"a":{"samples":9,"skip":{"text":0}}},"version":1}', "a list stands"),
        ('{"shards":{"a":{"samples":9,"skip":{"nsfw":0,"text":[1]}}},"version":1}', "text of a is no list"),
        ('{"shards":{"a":{"samples":[9],"skip":{"text":[1]}}},"version":1}', "text of a is no list"),
        ('{"shards":{"a":{"samples":"9"}},"version":1}', "other fields"),
        ('{"shards":{"a":{"samples":9,"more":{}}},"version":1}', "other fields"),
    ],
)
def test_what_is_no_skip_file_is_refused(content: str, message: str | None) -> None:
    if message is None:
        assert skipped_indices(content.encode(), "x")["a"][1].size == 0
        return
    with pytest.raises(CorruptError, match=message):
        skipped_indices(content.encode(), "x")


def test_left_out_is_small_and_ascending(release: Release) -> None:
    for shard in served_shards(release.uri, stream_of(release)):
        assert shard.left_out.dtype == np.int32
        assert list(shard.left_out) == sorted(set(shard.left_out))


def test_only_the_right_bytes_appear_under_a_name(lake: Lake, tmp_path: Path) -> None:
    uri, path = f"{lake.root}/object", tmp_path / "cache" / "object"
    create_bytes(uri, b"content")

    with pytest.raises(CorruptError, match=r"/object: the bytes have the sha256 .*smalti verify"):
        fetch(uri, path, hashlib.sha256(b"other").hexdigest())
    assert list(path.parent.iterdir()) == []
    fetch(uri, path, hashlib.sha256(b"content").hexdigest())
    assert [each.name for each in path.parent.iterdir()] == ["object"]
    with pytest.raises(MissingObject):
        fetch(uri + "2", path, "")
