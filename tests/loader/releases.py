"""Small releases with known content, made with the same models as real ones: parts, indices, skip files, manifest."""

from __future__ import annotations

import hashlib
import io
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from PIL import Image

from smalti.lake import Lake, stream_index
from smalti.objects import create_bytes, list_names
from smalti.reasons import SkipReason, set_name
from smalti.release.manifest import (
    Accounting,
    Manifest,
    PartEntry,
    Provenance,
    SourceEntry,
    StreamEntry,
    encode_stream_index,
    rebase,
)
from smalti.release.optouts import OptoutSnapshot, newest_position, read_snapshot
from smalti.release.skips import SkipFile, canonical_json, compress, sha256
from smalti.shards import mds
from smalti.shards.erasures import Erasures

Bucket = tuple[int, str]
"""tier, ar"""

Shards = Mapping[str, Mapping[str, Mapping[Bucket, Sequence[int]]]]
"""source -> part -> bucket -> samples in each shard"""

Skips = Callable[[str], Sequence[SkipReason]]
"""sample id -> why it is left out; empty: it is kept"""

Words = Callable[[str], Mapping[str, str]]
"""sample id -> extra caption column -> words; within a part always the same columns"""

COLUMNS = {"image": "jpeg", "caption": "str", "id": "str", "source": "str", "width": "int", "height": "int"}

SHARDS: Shards = {
    "alpha": {
        "00001-aaaaaaaaaaaa": {(512, "1.000"): (11, 7, 9), (512, "0.778"): (10, 3)},
        "00002-bbbbbbbbbbbb": {(512, "1.000"): (12,), (1024, "1.000"): (9, 8)},
    },
    "beta": {"00001-cccccccccccc": {(512, "1.000"): (6, 10), (512, "0.778"): (13,), (1024, "1.286"): (5, 11, 4)}},
}
"""Two sources, three parts, four buckets, 118 samples."""


def kept(_: str) -> Sequence[SkipReason]:
    return ()


def skip_share(share: float, *, seed: int = 0, shards: Sequence[str] = (), streams: Sequence[str] = ()) -> Skips:
    """Skip a share at random, some under two reasons; and everything in these shards and buckets.

    Args:
        shards: "<source>/<part>/<tier>/<ar>/<number>"
        streams: "<tier>/<ar>"
    """

    def decide(sample_id: str) -> Sequence[SkipReason]:
        source, part, tier, ar, number, _ = sample_id.split("/")
        if f"{tier}/{ar}" in streams or f"{source}/{part}/{tier}/{ar}/{number}" in shards:
            return (SkipReason.TEXT,)
        rng = random.Random(f"{seed}/{sample_id}")
        if rng.random() >= share:
            return ()
        return rng.choice([(SkipReason.TEXT,), (SkipReason.DUPLICATE,), (SkipReason.DUPLICATE, SkipReason.NSFW)])

    return decide


@dataclass(frozen=True)
class Release:
    """A release in a lake, and what is known of it.

    Attributes:
        uri: of manifest.json.
        shards: stream name -> for each shard its ids that are kept; empty for a shard that is skipped whole.
        skipped: ids that are left out.
        images: id -> the encoded picture.
    """

    uri: str
    manifest: Manifest
    shards: dict[str, list[list[str]]]
    skipped: set[str]
    images: dict[str, bytes]

    @property
    def kept(self) -> dict[str, list[str]]:
        """Stream name -> ids it serves, in the order of the shards."""
        return {name: [each for ids in shards for each in ids] for name, shards in self.shards.items()}

    @property
    def all_kept(self) -> list[str]:
        return [each for ids in self.kept.values() for each in ids]


def build(
    lake: Lake,
    *,
    dataset: str = "demo",
    version: str = "v1",
    shards: Shards = SHARDS,
    skips: Skips = kept,
    groups: Mapping[str, str] | None = None,
    mixing: Mapping[str, float] | None = None,
    reason_sets: Sequence[Sequence[SkipReason]] = (),
    captions: Mapping[str, float] | None = None,
    words: Words | None = None,
) -> Release:
    """Write parts (unless they are there) and a release over all of them.

    A sample's id is "<source>/<part>/<tier>/<ar>/<shard>/<index>".

    Args:
        groups: source -> mix group; all in `main` by default.
        mixing: mix group -> proportion; equal by default.
        reason_sets: sets that may be lifted. Whatever is lifted, the same samples are duplicates.
        captions: the release's weights; `caption` alone by default.
        words: extra caption columns of a sample.
    """
    images: dict[str, bytes] = {}
    kept_ids: dict[str, list[list[str]]] = defaultdict(list)
    left_out: set[str] = set()
    entries: dict[tuple[str, int, str], list[mds.Entry]] = defaultdict(list)
    skipped: dict[tuple[str, int, str], dict[str, tuple[int, dict[SkipReason, list[int]]]]] = defaultdict(dict)
    by_source: dict[str, Counter[SkipReason | None]] = defaultdict(Counter)
    group_of = {source: (groups or {}).get(source, "main") for source in shards}
    for source, part, tier, ar, number, samples in _each_shard(shards):
        stream = (group_of[source], tier, ar)
        ids = [f"{source}/{part}/{tier}/{ar}/{number}/{index}" for index in range(samples)]
        images |= {each: picture(each) for each in ids}
        extra = dict.fromkeys(words(ids[0]), "str") if words else {}
        samples_of = [_sample(each, source, images[each]) | (dict(words(each)) if words else {}) for each in ids]
        data = mds.encode_shard(COLUMNS | extra, samples_of)
        create_bytes(lake.shard(source, part, tier, ar, number), data)
        entry = rebase(mds.shard_entry(f"shard.{number:05d}.mds", data), f"{source}/{part}/{tier}/{ar}")
        entries[stream].append(entry)
        reasons: dict[SkipReason, list[int]] = defaultdict(list)
        for index, each in enumerate(ids):
            why = sorted(skips(each), key=list(SkipReason).index)
            by_source[source][why[0] if why else None] += 1
            for reason in why:
                reasons[reason].append(index)
        skipped[stream][entry["raw_data"]["basename"]] = (samples, reasons)
        here = [each for each in ids if not skips(each)]
        kept_ids[f"{stream[0]}/{tier}/{ar}"].append(here)
        left_out |= set(ids) - set(here)
    sets = [tuple(sorted(each)) for each in reason_sets]
    for source, part in {(source, part) for source, part, *_ in _each_shard(shards)}:
        create_bytes(lake.part_commit(source, part), b"{}")  # the loader asks for no more than that it is there
    streams = [write_stream(lake, dataset, version, key, entries[key], skipped[key], sets) for key in sorted(entries)]
    sources = tuple(_source(source, group_of[source], shards[source], by_source[source]) for source in sorted(shards))
    manifest = Manifest(
        dataset=dataset,
        version=version,
        digest="0" * 64,
        streams=tuple(streams),
        mixing=dict(mixing or dict.fromkeys(group_of.values(), 1.0)),
        captions=dict(captions or {"caption": 1.0}),
        sources=sources,
        reasons=tuple(SkipReason),
        reason_sets=((), *sets),
        settings={"name": dataset},
        accounting=Accounting(
            samples=sum(s.samples for s in sources),
            kept=sum(s.kept for s in sources),
            skipped=dict(sum((Counter(s.skipped) for s in sources), Counter())),
        ),
        provenance=Provenance(created="2026-01-01T00:00:00Z", smalti="test"),
    ).with_digest()
    assert manifest.imbalances() == []
    uri = lake.manifest(dataset, version)
    create_bytes(lake.claim(dataset, version), canonical_json({"digest": manifest.digest, "parent": None}))
    create_bytes(uri, manifest.encode())
    return Release(uri, manifest, dict(kept_ids), left_out, images)


def opt_out(lake: Lake, position: int, ids: Iterable[str]) -> None:
    """A snapshot in which these samples are opted out: their places in the parts that there are now, as the ledger names them, and those
    that the snapshot before names already."""
    shards: dict[str, list[int]] = defaultdict(list)
    known = read_snapshot(lake, newest_position(lake)).shards
    erasures = Erasures.read(lake, list_names(lake.parts_root()))
    there = {f"{source}/{part}" for source in list_names(lake.parts_root()) for part in list_names(lake.parts(source))}
    for each in ids:
        for shard, index in _places(erasures, each):
            if "/".join(shard.split("/")[:2]) in there or index in known.get(shard, ()):
                shards[shard].append(index)
    snapshot = OptoutSnapshot(position=position, shards={name: tuple(sorted(each)) for name, each in shards.items()})
    create_bytes(lake.optout_snapshot(position), snapshot.encode())


def _places(erasures: Erasures, sample_id: str) -> Iterator[tuple[str, int]]:
    """Shard and index that a sample was written to, and those that it came to by each erasure of others."""
    source, part, tier, ar, number, at = sample_id.split("/")
    index = int(at)
    while True:
        shard = f"{source}/{part}/{tier}/{ar}/shard.{int(number):05d}.mds"
        yield shard, index
        step = erasures.steps.get(f"{source}/{part}")
        erased = step.erased.get(shard, ()) if step else ()
        if step is None or step.by is None or index in erased:
            return
        part, index = step.by, index - sum(each < index for each in erased)


def stand_in(release: Release, gone: Collection[str], sample: str) -> str:
    """What a resumed run serves for a sample that was opted out: the rule, once more and one by one."""
    stream = next(each for each in release.shards.values() if any(sample in ids for ids in each))
    shards = [ids for ids in stream if ids]
    number = next(n for n, ids in enumerate(shards) if sample in ids)
    place = shards[number].index(sample)
    for each in shards[number][place:] + shards[number][:place]:
        if each not in gone:
            return each
    for other in shards[number + 1 :] + shards[:number]:
        left = [each for each in other if each not in gone]
        if left:
            return left[place % len(left)]
    raise AssertionError(f"nothing is left of the stream of {sample}")


def picture(sample_id: str) -> bytes:
    """A JPEG of 8 x 8 pixels whose colour the id decides."""
    colour = tuple(hashlib.sha256(sample_id.encode()).digest()[:3])
    file = io.BytesIO()
    Image.new("RGB", (8, 8), colour).save(file, "JPEG", quality=92)
    return file.getvalue()


def _sample(sample_id: str, source: str, image: bytes) -> dict[str, mds.Value]:
    return {
        "image": image,
        "caption": f"caption of {sample_id}",
        "id": sample_id,
        "source": source,
        "width": 8,
        "height": 8,
    }


def _each_shard(shards: Shards) -> Iterator[tuple[str, str, int, str, int, int]]:
    for source in sorted(shards):
        for part in sorted(shards[source]):
            for (tier, ar), sizes in sorted(shards[source][part].items()):
                for number, samples in enumerate(sizes):
                    yield source, part, tier, ar, number, samples


def write_stream(
    lake: Lake,
    dataset: str,
    version: str,
    key: tuple[str, int, str],
    entries: Sequence[mds.Entry],
    skipped: Mapping[str, tuple[int, Mapping[SkipReason, Sequence[int]]]],
    sets: Sequence[tuple[SkipReason, ...]],
) -> StreamEntry:
    group, tier, ar = key
    decided = {
        name: {set_name(each): () if SkipReason.DUPLICATE in each else reasons[SkipReason.DUPLICATE] for each in sets}
        for name, (_, reasons) in skipped.items()
    }
    index, skips = encode_stream_index(entries), SkipFile.of(skipped, decided)
    path = stream_index(group, tier, ar)
    create_bytes(f"{lake.release(dataset, version)}/{path}", compress(index))
    if skips.shards:
        create_bytes(lake.skip_file(dataset, skips.digest()), skips.encode_gzip())
    samples, counts = sum(entry["samples"] for entry in entries), skips.counts()
    return StreamEntry(
        group=group,
        tier=tier,
        ar=ar,
        width=8,
        height=8,
        samples=samples,
        kept=samples - sum(counts.values()),
        skipped=counts,
        kept_without={
            set_name(each): samples - sum(len(shard.left_out(each)) for shard in skips.shards.values()) for each in sets
        },
        bytes=sum(entry["raw_data"]["bytes"] for entry in entries),
        index=path,
        index_sha256=sha256(index),
        skip_file=skips.digest() if skips.shards else None,
    )


def _source(
    name: str, group: str, parts: Mapping[str, Mapping[Bucket, Sequence[int]]], counts: Counter[SkipReason | None]
) -> SourceEntry:
    skipped = {reason: n for reason, n in counts.items() if reason is not None}
    return SourceEntry(
        name=name,
        group=group,
        parts=tuple(
            PartEntry(name=part, digest=sha256(f"{name}/{part}".encode()), samples=sum(map(sum, buckets.values())))
            for part, buckets in sorted(parts.items())
        ),
        samples=sum(counts.values()),
        kept=counts[None],
        skipped=skipped,
    )
