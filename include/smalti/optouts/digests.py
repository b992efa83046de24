"""Digests of what is erased of a part, taken while it is there: of pictures nothing else is kept.

    optouts/erased/<source>/<part>/<sha256 of the places, 16 digits>.json    Taken, create-only

They are written before the part is replaced. So an erasure that is killed afterwards still knows what must be found nowhere, though
the old part may be collected before another run writes that down (`smalti.optouts.erasing`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from smalti import objects
from smalti.compute import map_tasks
from smalti.errors import MissingObject
from smalti.lake import Lake
from smalti.optouts.erasing import pixels_of
from smalti.release.skips import Model, canonical_json, parse
from smalti.shards import mds

Places = Mapping[str, Sequence[int]]
"""Shard relative to parts/ -> indices, ascending."""

Pair = tuple[str, str]
"""sha256 of a picture's bytes and of its pixels (see `pixels_of`; empty: it does not decode), hex."""


class Taken(Model):
    """Digests of encoded pictures: shard relative to parts/ -> index -> (sha256 of the bytes, of the pixels)."""

    version: Literal[1] = 1
    shards: dict[str, dict[int, Pair]]


def pair_of(picture: bytes) -> Pair:
    return hashlib.sha256(picture).hexdigest(), pixels_of(picture) or ""


def take_digests(lake: Lake, source: str, part: str, places: Places) -> None:
    """Write down what these places of a part show. A second time nothing is read.

    Raises:
        MissingObject: the part is gone.
    """
    said = canonical_json({shard: list(indices) for shard, indices in sorted(places.items())})
    uri = lake.optout_digest(source, part, hashlib.sha256(said).hexdigest())
    if not places or objects.exists(uri):
        return
    shards = dict(map_tasks(_shown, [(lake, shard, tuple(indices)) for shard, indices in sorted(places.items())]))
    objects.create_same(uri, canonical_json(Taken(shards=shards).model_dump(mode="json")) + b"\n")


def digests_of(lake: Lake, places: Places) -> Iterator[Pair]:
    """Of the pictures at these places: as they were taken down, else from the shards. Of a part that is gone, and of which nothing was
    taken down (an earlier request's grace is over), there are none."""
    known: dict[str, dict[int, Pair]] = {}
    for part in sorted({tuple(shard.split("/", 2)[:2]) for shard in places}):
        for info in objects.list_objects(lake.optout_digests(*part)):
            for shard, pairs in parse(Taken, objects.read_bytes(info.uri), info.uri).shards.items():
                known.setdefault(shard, {}).update(pairs)
    left = []
    for shard, indices in sorted(places.items()):
        told = known.get(shard, {})
        yield from (told[index] for index in indices if index in told)
        if lacking := tuple(index for index in indices if index not in told):
            left.append((lake, shard, lacking))
    for _, pairs in map_tasks(_shown_if_there, left):
        yield from pairs.values()


_Task = tuple[Lake, str, tuple[int, ...]]


def _shown(task: _Task) -> tuple[str, dict[int, Pair]]:
    """A shard, and the digests of the pictures at some of its indices."""
    lake, shard, indices = task
    uri = objects.join_uri(lake.parts_root(), shard)
    columns, samples = mds.read_shard(objects.read_bytes(uri), uri)
    images = {index: mds.decode_sample(columns, samples[index], uri)["image"] for index in indices}
    return shard, {index: pair_of(image) for index, image in images.items() if isinstance(image, bytes)}


def _shown_if_there(task: _Task) -> tuple[str, dict[int, Pair]]:
    try:
        return _shown(task)
    except MissingObject:
        return task[1], {}
