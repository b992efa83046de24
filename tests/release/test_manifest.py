from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smalti.errors import CorruptError, InputError, MissingObject
from smalti.lake import PARTS_FROM_RELEASE, Lake
from smalti.reasons import SkipReason
from smalti.release import manifest as manifests
from smalti.release.manifest import Count, Manifest, parse_manifest, read_manifest
from smalti.release.skips import ShardSkips, SkipFile, compress, decompress, sha256
from tests.loader.releases import Release, build, skip_share

REASONS = st.sampled_from(list(SkipReason))
SHARD = st.integers(1, 30).flatmap(
    lambda n: st.tuples(st.just(n), st.dictionaries(REASONS, st.lists(st.integers(0, n - 1), max_size=9), max_size=4))
)
SHARDS = st.dictionaries(st.from_regex(r"\A[a-z]{1,3}/p/512/1\.000/shard\.0000[0-9]\.mds\Z"), SHARD, max_size=4)


@pytest.fixture
def release(lake: Lake) -> Release:
    return build(lake, skips=skip_share(0.2), groups={"beta": "other"})


def changed(manifest: Manifest, **fields: Any) -> Manifest:
    """A manifest with other fields, validated anew."""
    return Manifest.model_validate(manifest.model_dump() | fields)


def test_manifest_is_read_as_it_was_written(release: Release) -> None:
    assert read_manifest(release.uri) == release.manifest
    assert parse_manifest(release.manifest.encode(), "x").encode() == release.manifest.encode()


def test_parts_are_found_beside_every_copy_of_a_manifest() -> None:
    assert Manifest.model_fields["parts"].default == PARTS_FROM_RELEASE
    for root in ("gs://bucket/team/lake", "file:///some%20where/lake"):
        uri = Lake(root).manifest("demo", "v1")
        assert manifests.beside(uri, PARTS_FROM_RELEASE) == Lake(root).parts_root()
        assert manifests.skip_file_uri(uri, "a" * 64) == Lake(root).skip_file("demo", "a" * 64)


def test_digest_is_that_of_the_content_and_not_of_its_history(release: Release) -> None:
    same = changed(
        release.manifest,
        version="v9",
        parent="v8",
        warnings=("few samples",),
        optouts=7,
        provenance={"created": "2030-01-01T00:00:00Z", "smalti": "9", "git": "abc"},
        settings={"name": "demo", "description": "another", "expected": {}},
        sources=tuple(reversed(release.manifest.sources)),
    )
    assert same.content_digest() == release.manifest.digest


@pytest.mark.parametrize(
    "fields",
    [
        {"captions": {"caption": 0.5, "caption_short": 0.5}},
        {"mixing": {"main": 1.0, "other": 2.0}},
        {"settings": {"name": "demo", "drops": {"labels": ["nsfw"]}}},
        {"publish": "tree"},
        {"dataset": "another"},
    ],
)
def test_digest_changes_with_the_content(release: Release, fields: dict[str, Any]) -> None:
    assert changed(release.manifest, **fields).content_digest() != release.manifest.digest


@pytest.mark.parametrize("field", ["index_sha256", "skip_file", "kept", "kept_without"])
def test_digest_changes_with_any_stream(release: Release, field: str) -> None:
    stream = release.manifest.streams[-1]
    other = {"index_sha256": "0" * 64, "skip_file": None, "kept": stream.kept - 1, "kept_without": {"text": 5}}
    streams = (*release.manifest.streams[:-1], stream.model_copy(update={field: other[field]}))
    assert release.manifest.model_copy(update={"streams": streams}).content_digest() != release.manifest.digest


def test_digest_changes_with_the_sets_that_may_be_lifted(release: Release) -> None:
    declaring = release.manifest.model_copy(update={"reason_sets": ((), (SkipReason.TEXT,))})
    assert declaring.content_digest() != release.manifest.digest


def test_digest_changes_with_a_parts_digest(release: Release) -> None:
    first = release.manifest.sources[0]
    parts = (first.parts[0].model_copy(update={"digest": "0" * 64}), *first.parts[1:])
    sources = (first.model_copy(update={"parts": parts}), *release.manifest.sources[1:])
    assert release.manifest.model_copy(update={"sources": sources}).content_digest() != release.manifest.digest


def test_a_manifest_whose_content_was_edited_is_refused(release: Release) -> None:
    edited = release.manifest.encode().replace(b'"kept": 1', b'"kept": 2', 1)
    with pytest.raises(CorruptError, match=r"gs://l/m: the content has the digest"):
        parse_manifest(edited, "gs://l/m")


def test_a_manifest_with_any_byte_changed_is_refused(release: Release) -> None:
    data = bytearray(release.manifest.encode())
    accepted = []
    for at in range(len(data)):
        data[at] ^= 1
        try:
            parse_manifest(bytes(data), "gs://l/m")
            accepted.append(at)
        except CorruptError:
            pass
        data[at] ^= 1
    assert accepted == []
    assert parse_manifest(bytes(data), "gs://l/m") == release.manifest


def test_a_manifest_from_before_there_were_checksums_is_read(release: Release) -> None:
    said = json.loads(release.manifest.encode())
    del said["checksum"]
    for stream in said["streams"]:
        del stream["kept_without"]
    assert parse_manifest(json.dumps(said).encode(), "gs://l/m") == release.manifest


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda d: d.pop("streams"), "streams: Field required"),
        (lambda d: d.update(surprise=1), "surprise: Extra inputs"),
        (lambda d: d["streams"][0].update(kept="3"), r"streams\.0\.kept: .*integer"),
        (lambda d: d["streams"][0].update(index="../../../../etc/passwd"), "must be streams/"),
        (lambda d: d.update(parts="../.."), "parts: "),
        (lambda d: d["streams"].append(d["streams"][0]), "listed twice"),
        (lambda d: d.update(mixing={"main": 1.0}), "`mixing` lacks other"),
        (lambda d: d.update(reasons=[]), "`reasons` lacks "),
        (lambda d: d.update(reason_sets=[[], ["text"]]), "`kept_without` of stream "),
        (lambda d: d.update(schema_version=2), "schema_version: "),
        (lambda d: d.update(dataset="../up"), "dataset: "),
    ],
)
def test_a_damaged_manifest_is_one_clear_error(release: Release, edit: Any, message: str) -> None:
    data = json.loads(release.manifest.encode())
    edit(data)
    with pytest.raises(CorruptError, match=rf"^gs://l/m: .*{message}"):
        parse_manifest(json.dumps(data).encode(), "gs://l/m")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\xfe"])
def test_bytes_that_are_no_manifest_are_one_clear_error(data: bytes) -> None:
    with pytest.raises(CorruptError, match=r"^gs://l/m: "):
        parse_manifest(data, "gs://l/m")


def test_a_manifest_that_is_not_there_is_named(lake: Lake) -> None:
    with pytest.raises(MissingObject, match=r"releases/demo/v7/manifest\.json"):
        read_manifest(lake.manifest("demo", "v7"))


def test_a_built_release_balances(release: Release) -> None:
    release.manifest.check_balance()
    assert release.manifest.imbalances() == []


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda d: d["streams"][0].update(kept=d["streams"][0]["kept"] + 1), "stream main/512/0.778"),
        (lambda d: d["sources"][0].update(samples=d["sources"][0]["samples"] + 1), "source alpha"),
        (lambda d: d["sources"][0]["parts"][0].update(samples=0), "source alpha: .* in its parts"),
        (lambda d: d["accounting"].update(kept=0), "release"),
        (lambda d: d["accounting"].update(samples=0, kept=0, skipped={}), "streams add up to"),
        (lambda d: d.update(streams=d["streams"][1:]), "streams add up to"),
        (
            lambda d: d["accounting"].update(upstream=[Count(what="ingest", rows_in=3, rows_out=2).model_dump()]),
            "ingest: 3 ",
        ),
        (lambda d: d.update(licences={"CC0-1.0": 1}), "licences: 1 "),
    ],
)
def test_anything_that_does_not_add_up_is_named(release: Release, edit: Any, message: str) -> None:
    data = json.loads(release.manifest.encode())
    edit(data)
    manifest = Manifest.model_validate(data)
    assert any(message.split(":")[0] in line for line in manifest.imbalances())
    with pytest.raises(CorruptError, match=rf"demo v1: the accounting does not balance.*({message}|more)"):
        manifest.check_balance()


def test_reasons_swapped_between_streams_and_total_are_noticed(release: Release) -> None:
    data = json.loads(release.manifest.encode())
    total = sum(data["accounting"]["skipped"].values())
    data["accounting"]["skipped"] = {"optout": total}
    assert len(Manifest.model_validate(data).imbalances()) == 2


def test_streams_are_chosen_by_tier_and_group(release: Release) -> None:
    def names(**choice: Any) -> list[str]:
        return [stream.name for stream in release.manifest.select(**choice)]

    assert names() == [stream.name for stream in release.manifest.streams]
    assert names(tiers=[1024]) == ["main/1024/1.000", "other/1024/1.286"]
    assert names(tiers=(512,), groups=["other"]) == ["other/512/0.778", "other/512/1.000"]
    for choice, message in (
        ({"tiers": [2048]}, r"no tier 2048\. Use 512, 1024"),
        ({"groups": ["x"]}, r"no group x\. Use main, other"),
        ({"tiers": []}, "no sample is left"),
    ):
        with pytest.raises(InputError, match=message):
            names(**choice)


def test_a_stream_that_keeps_nothing_is_not_chosen(lake: Lake) -> None:
    release = build(lake, skips=skip_share(0, streams=["512/0.778"]))
    assert "main/512/0.778" not in [stream.name for stream in release.manifest.select()]
    assert "main/512/0.778" in [stream.name for stream in release.manifest.streams]


@given(SHARDS)
def test_the_same_skips_are_the_same_bytes_and_are_read_back(shards: dict[str, Any]) -> None:
    skips = SkipFile.of(shards)
    turned = SkipFile.of({
        name: (n, {r: list(reversed(i)) for r, i in reversed(skip.items())})
        for name, (n, skip) in reversed(shards.items())
    })

    assert turned.encode_gzip() == skips.encode_gzip()
    assert SkipFile.decode(skips.encode_gzip(), "x", skips.digest()) == skips
    for name, (samples, reasons) in shards.items():
        left_out = {index for indices in reasons.values() for index in indices}
        entry = skips.shards.get(name)
        assert (entry.left_out() if entry else set()) == left_out
        assert entry is None or entry.kept() == sorted(set(range(samples)) - left_out)


@given(SHARDS)
def test_each_skipped_sample_is_counted_once_under_its_first_reason(shards: dict[str, Any]) -> None:
    order = list(SkipReason)
    expected: dict[SkipReason, int] = {}
    for _, reasons in shards.values():
        for index in {index for indices in reasons.values() for index in indices}:
            first = min((r for r, indices in reasons.items() if index in indices), key=order.index)
            expected[first] = expected.get(first, 0) + 1

    assert SkipFile.of(shards).counts() == expected


def test_a_sample_is_served_again_only_if_all_its_reasons_are_lifted() -> None:
    skips = ShardSkips(samples=4, skip={SkipReason.TEXT: (0, 1), SkipReason.DUPLICATE: (1, 2)})
    decided = skips.model_copy(update={"decided": {"text": (1, 3)}})
    assert decided.left_out() == {0, 1, 2}
    assert decided.left_out({SkipReason.TEXT}) == {1, 3}  # duplicates among what the other reasons leave
    assert decided.kept({SkipReason.TEXT, SkipReason.DUPLICATE}) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "skip",
    [
        {"text": [1, 1]},
        {"text": [2, 1]},
        {"text": [3]},
        {"text": [-1]},
        {"text": []},
        {"boredom": [1]},
        {},
        {"text": ["1"]},
    ],
)
def test_a_skip_file_that_is_not_canonical_is_refused(skip: dict[str, Any]) -> None:
    data = {"version": 1, "shards": {"s/p/512/1.000/shard.00000.mds": {"samples": 3, "skip": skip}}}
    with pytest.raises(CorruptError, match=r"^gs://l/s: "):
        SkipFile.decode(compress(json.dumps(data).encode()), "gs://l/s")


def test_a_skip_file_with_a_flipped_byte_is_refused() -> None:
    skips = SkipFile.of({"s/p/512/1.000/shard.00000.mds": (3, {SkipReason.TEXT: [1]})})
    stored = skips.encode_gzip()
    refused = 0
    for at in range(len(stored)):
        damaged = bytearray(stored)
        damaged[at] ^= 1
        try:
            read = SkipFile.decode(bytes(damaged), "gs://l/s", skips.digest())
        except CorruptError:
            refused += 1
        else:
            assert read == skips  # gzip's header has bits that say nothing
    assert refused >= len(stored) - 10  # of the 10 bytes of the header


def test_a_stream_index_is_in_the_order_of_source_part_and_name() -> None:
    names = [
        "b/1/512/1.000/shard.00000.mds",
        "a/2/512/1.000/shard.00000.mds",
        "a/1/512/1.000/shard.00001.mds",
        "a/1/512/1.000/shard.00000.mds",
    ]
    entries = [{"samples": n, "raw_data": {"basename": name}} for n, name in enumerate(names)]
    index = manifests.encode_stream_index(entries)
    decoded = manifests.decode_stream_index(compress(index), "x", sha256(index))
    assert [entry["samples"] for entry in decoded] == [3, 2, 1, 0]


@pytest.mark.parametrize(
    "name", ["../../../../x", "/etc/x/y/z/w", "a/b/c/d", "a/b/512/1.000/../x", "a/./c/d/e", "a/b/c/d/.e"]
)
def test_an_index_that_names_files_outside_parts_is_refused(name: str) -> None:
    index = compress(json.dumps({"version": 2, "shards": [{"raw_data": {"basename": name}}]}).encode())
    with pytest.raises(CorruptError, match="not a stream's index"):
        manifests.decode_stream_index(index, "gs://l/i")


def test_gzip_tells_no_time_and_is_undone() -> None:
    assert compress(b"x") == compress(b"x")
    assert compress(b"x")[4:8] == b"\0\0\0\0"
    assert decompress(compress(b"x"), "x") == b"x"


def test_schemas_describe_what_is_written(release: Release) -> None:
    schemas = manifests.schemas()
    assert set(json.loads(release.manifest.encode())) == set(schemas["manifest"]["properties"])
    assert schemas["skips"]["additionalProperties"] is False


def test_models_load_without_the_rest_of_the_line() -> None:
    code = "import sys, smalti.release.manifest, smalti.loader.skips, smalti.loader; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"streaming", "torch", "ray", "lance", "pyarrow", "PIL", "yaml", "google.cloud.storage"}
    assert not heavy & set(loaded)
