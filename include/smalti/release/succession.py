"""What a pulled copy has of versions that were succeeded, so that it knows what may no longer be begun with, and checkpoints go on.

    DIR/releases/<dataset>/<old>/{manifest.json,tombstone.json,streams/...}, DIR/releases/<dataset>/skips/...
    DIR/parts/<source>/replacements/NNNNNN.json       the log of parts: what was erased of which

All of it is small, and without it `smalti.loader.successors` could not tell in a copy what it tells in a lake.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from pydantic import ValidationError

from smalti.errors import CorruptError, MissingObject
from smalti.lake import Lake
from smalti.loader.skips import Optouts, ServedShard, served_shards
from smalti.loader.successors import Successor, held_still, parts_gone, succeeded
from smalti.objects import file_uri, list_names, local_path
from smalti.release.latest import stored_latest
from smalti.release.manifest import (
    Manifest,
    StreamEntry,
    beside,
    decode_stream_index,
    parse_manifest,
    skip_file_uri,
)
from smalti.release.optouts import is_in_lake, lake_of, read_snapshot
from smalti.release.skips import SkipFile, parse
from smalti.release.tombstones import Tombstone, read_tombstone
from smalti.shards.erasures import Erasures
from smalti.shards.replacements import Step

log = logging.getLogger("smalti")

Copy = Callable[[str, Path, Callable[[bytes, str], object]], None]
"""Bring an object, unless it is here; what the function refuses (CorruptError) does not count."""


def small_files(uri: str, local: Path, stream: StreamEntry, copy: Copy) -> None:
    """A stream's index and skip file. `local`: where the manifest at `uri` is to be."""
    copy(
        beside(uri, stream.index),
        local.parent / stream.index,
        lambda data, where: decode_stream_index(data, where, stream.index_sha256),
    )
    if stream.skip_file is not None:
        digest = stream.skip_file
        path = local.parent.parent / "skips" / f"{digest}.json.gz"
        copy(skip_file_uri(uri, digest), path, lambda data, where: SkipFile.decode(data, where, digest))


def tombstones(uri: str, folder: Path, copy: Copy) -> tuple[str, ...]:
    """Those of the versions in this copy that were given up since. What the loader makes of them depends on the log of their parts.

    Returns: `<dataset>/<version>` of those of which parts are in the lake no more, see OptoutCheck.left_behind.
    """
    lake, left_behind = lake_of(uri), []
    latest = functools.cache(lambda dataset: stored_latest(lake, dataset))
    in_lake = is_in_lake(uri)  # another copy has no commits of parts, and passes on what it knows
    for path in sorted((folder / "releases").glob("*/*/manifest.json")):
        try:
            manifest = parse_manifest(path.read_bytes(), str(path))
        except CorruptError:
            continue  # the loader will say so
        found = read_tombstone(lake, manifest.dataset, manifest.version)
        is_gone = found is not None or manifest.version in latest(manifest.dataset).collected
        if in_lake and is_gone and (gone := parts_gone(lake, manifest)):
            log.warning("%s is refused from now on: it was given up, and %s is in the lake no more", path, gone[0])
            left_behind.append(f"{manifest.dataset}/{manifest.version}")
        if found is None:
            continue
        _log_of_parts(lake, folder, manifest, copy)
        if not path.with_name("tombstone.json").exists():
            by = f"; {found.successor} succeeds it" if found.successor else ""
            log.warning("%s was given up in the lake (%s)%s", path, found.why, by)
        _tombstone(lake, path, manifest, copy)
    return tuple(left_behind)


def of_checkpoints(
    uri: str, manifest: Manifest, folder: Path, tiers: Collection[int] | None, position: int, copy: Copy
) -> list[ServedShard]:
    """Bring the small files by which checkpoints of the versions that this one succeeds go on.

    Args:
        tiers: only these; empty: all.
        position: of the opt-outs that are known here.
    Returns:
        shards that such a run reads, whether or not this version serves anything of them.
    """
    lake, here = lake_of(uri), Lake.at(str(folder))
    _log_of_parts(lake, folder, manifest, copy)
    gone = read_snapshot(here, position).shards
    shards: dict[str, ServedShard] = {}
    try:
        for before_uri, before in succeeded(uri, manifest):
            local = local_path(here.manifest(before.dataset, before.version))
            assert local is not None
            streams = [each for each in before.streams if not tiers or each.tier in tiers]
            for stream in streams:
                small_files(before_uri, local, stream, copy)
            if read_tombstone(lake, before.dataset, before.version) is not None:
                _tombstone(lake, local, before, copy)
            copy(before_uri, local, parse_manifest)
            _log_of_parts(lake, folder, before, copy)  # of some of its sources nothing may be left in the successor
            by = Successor.of(uri, manifest, before)
            for stream in streams:
                for shard in _read_of(by.stored(stream, served_shards(file_uri(local), stream)), gone):
                    shards[shard.basename] = shard
            _say_what_is_left(by.erasures, before, folder)
    except (MissingObject, CorruptError) as error:  # who has no such checkpoint is not to be kept from this version
        log.warning("checkpoints of older versions cannot go on in this copy: %s", error)
    return list(shards.values())


def _read_of(shards: Sequence[ServedShard], gone: Optouts) -> list[ServedShard]:
    """Of those that are read at all, what holds their samples."""
    read = [shard for shard in shards if len(shard.numbers_gone(gone)) < shard.kept]
    return [
        shard if shard.stored is None or shard.stored.entry is None else ServedShard(shard.stored.entry, shard.left_out)
        for shard in read
    ]


def _say_what_is_left(erasures: Erasures, before: Manifest, folder: Path) -> None:
    for line in held_still(erasures, before, folder / "parts"):
        log.warning(line)


def _tombstone(lake: Lake, manifest_path: Path, manifest: Manifest, copy: Copy) -> None:
    copy(
        lake.release_tombstone(manifest.dataset, manifest.version),
        manifest_path.with_name("tombstone.json"),
        lambda data, where: parse(Tombstone, data, where),
    )


def _log_of_parts(lake: Lake, folder: Path, manifest: Manifest, copy: Copy) -> None:
    here = Lake.at(str(folder))
    for source in manifest.sources:
        for number in range(1, len(list_names(lake.replacements(source.name))) + 1):
            path = local_path(here.replacement(source.name, number))
            assert path is not None
            copy(lake.replacement(source.name, number), path, _decode_step)


def _decode_step(data: bytes, where: str) -> Step:
    try:
        return Step.model_validate_json(data)
    except ValidationError as error:
        raise CorruptError("this is not a step of the log of parts", where, "Restore it") from error
