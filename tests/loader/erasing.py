"""Erasures of small releases, written by hand: parts without the erased samples, the log's step, the successor and the tombstone."""

from __future__ import annotations

import shutil
from collections import Counter, defaultdict
from collections.abc import Collection

from smalti.lake import Lake
from smalti.objects import create_bytes, read_bytes
from smalti.reasons import SkipReason
from smalti.release.manifest import Manifest, PartEntry, Succeeds, read_stream_index, rebase
from smalti.release.skips import canonical_json, sha256
from smalti.release.tombstones import Tombstone
from smalti.shards import mds
from smalti.shards.erasures import Erasures
from smalti.shards.replacements import Step, append_step
from tests.loader.releases import Release, Skips, write_stream
from tests.loader.serving import path_of


def places(lake: Lake, manifest: Manifest, uri: str) -> dict[str, list[str]]:
    """Basename -> the ids in the shard, in their order, as the files say."""
    found = {}
    for stream in manifest.streams:
        for entry in read_stream_index(uri, stream):
            name = entry["raw_data"]["basename"]
            columns, samples = mds.read_shard(read_bytes(f"{lake.parts_root()}/{name}"))
            found[name] = [str(mds.decode_sample(columns, each)["id"]) for each in samples]
    return found


def erase_parts(lake: Lake, ids: dict[str, list[str]], erased: Collection[str], *, remove: bool) -> None:
    """Write each part that holds such samples anew, and say so in the log of its source.

    Args:
        ids: see `places`.
        remove: the old part's objects, as is done after the grace.
    """
    by_part: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(dict)
    for name, there in ids.items():
        source, part, _ = name.split("/", 2)
        by_part[source, part][name] = there
    for (source, part), shards in sorted(by_part.items()):
        lost = {n: tuple(i for i, each in enumerate(there) if each in erased) for n, there in shards.items()}
        lost = {name: indices for name, indices in lost.items() if indices}
        if not lost:
            continue
        new = f"{part.partition('-')[0]}-{sha256(canonical_json([part, sorted(lost.items())]))[:12]}"
        gone = tuple(sorted(name for name, indices in lost.items() if len(indices) == len(shards[name])))
        left = [name for name in shards if name not in gone]
        for name in left:
            data = read_bytes(f"{lake.parts_root()}/{name}")
            if name in lost:
                data = mds.rewrite_shard(data, [i for i in range(len(shards[name])) if i not in lost[name]])
            create_bytes(f"{lake.part(source, new)}/{name.split('/', 2)[2]}", data)
        if left:
            create_bytes(lake.part_commit(source, new), b"{}")
        step = Step(why="erased", replaces=(part,), by=new if left else None, erased=lost, gone=gone)
        assert append_step(lake, source, step)
        if remove:
            shutil.rmtree(path_of(lake.part(source, part)))


def succeed(lake: Lake, release: Release, version: str, skips: Skips, *, optouts: int) -> Release:
    """The successor over what the parts have become, and the old one's tombstone.

    Args:
        skips: of the successor; what was opted out, too.
        optouts: its position.
    """
    old = release.manifest
    known = Erasures.read(lake, (source.name for source in old.sources))
    streams, skipped_of = [], set()
    shards: dict[str, list[list[str]]] = {}
    counts: dict[str, Counter[SkipReason | None]] = defaultdict(Counter)
    parts: dict[str, Counter[str]] = defaultdict(Counter)
    for stream in old.streams:
        entries, skipped = [], {}
        shards[stream.name] = []
        for before in read_stream_index(release.uri, stream):
            name = known.place(before["raw_data"]["basename"]).shard
            if name is None:
                continue
            data = read_bytes(f"{lake.parts_root()}/{name}")
            folder, _, file = name.rpartition("/")
            entries.append(rebase(mds.shard_entry(file, data), folder))
            columns, samples = mds.read_shard(data)
            ids = [str(mds.decode_sample(columns, each)["id"]) for each in samples]
            reasons: dict[SkipReason, list[int]] = defaultdict(list)
            source, part, _ = name.split("/", 2)
            parts[source][part] += len(ids)
            for index, each in enumerate(ids):
                why = sorted(skips(each), key=list(SkipReason).index)
                counts[source][why[0] if why else None] += 1
                for reason in why:
                    reasons[reason].append(index)
                if why:
                    skipped_of.add(each)
            skipped[name] = (len(ids), reasons)
            shards[stream.name].append([each for each in ids if not skips(each)])
        if entries:
            key = (stream.group, stream.tier, stream.ar)
            streams.append(write_stream(lake, old.dataset, version, key, entries, skipped, []))
    sources = [
        source.model_copy(
            update={
                "parts": tuple(
                    PartEntry(name=part, digest=sha256(part.encode()), samples=n)
                    for part, n in sorted(parts[source.name].items())
                ),
                "samples": counts[source.name].total(),
                "kept": counts[source.name][None],
                "skipped": {reason: n for reason, n in counts[source.name].items() if reason is not None},
            }
        )
        for source in old.sources
        if source.name in counts
    ]
    accounting = old.accounting.model_copy(
        update={
            "samples": sum(source.samples for source in sources),
            "kept": sum(source.kept for source in sources),
            "skipped": dict(sum((Counter(source.skipped) for source in sources), Counter())),
        }
    )
    manifest = old.model_copy(
        update={
            "version": version,
            "succeeds": Succeeds(version=old.version, digest=old.digest),
            "streams": tuple(streams),
            "sources": tuple(sources),
            "accounting": accounting,
            "optouts": optouts,
        }
    ).with_digest()
    assert manifest.imbalances() == []
    uri = lake.manifest(old.dataset, version)
    create_bytes(lake.claim(old.dataset, version), canonical_json({"digest": manifest.digest, "parent": None}))
    create_bytes(uri, Manifest.model_validate(manifest.model_dump()).encode())
    stone = Tombstone(why="samples were erased", successor=version)
    create_bytes(lake.release_tombstone(old.dataset, old.version), stone.encode())
    return Release(uri, manifest, shards, skipped_of, release.images)


def erase(
    lake: Lake,
    release: Release,
    version: str,
    erased: Collection[str],
    skips: Skips,
    *,
    optouts: int,
    remove: bool = True,
) -> Release:
    """A release without these samples, in the place of the old one."""
    erase_parts(lake, places(lake, release.manifest, release.uri), erased, remove=remove)
    return succeed(lake, release, version, skips, optouts=optouts)
