"""Takes down what a removal looks for, from the old parts and the tables while they are there."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal

from smalti import objects
from smalti.compute import map_tasks
from smalti.errors import MissingObject
from smalti.lake import Lake
from smalti.optouts.erasing import Erasing
from smalti.optouts.ledger import state
from smalti.optouts.ledger_rows import read_matched
from smalti.optouts.needles import Needle, Removing, keep_removing, needle_of, read_removing
from smalti.optouts.places import Places
from smalti.optouts.remove_tables import rows_of_ids
from smalti.optouts.request import Request
from smalti.optouts.tables import match_tables
from smalti.shards import mds
from smalti.table.store import lance_errors, open_table, read_images, sql_text

_AT_ONCE = 64
"""Pictures of a task."""

Kind = Literal["source", "stored"]
_Task = tuple[Kind, tuple[bytes, ...]]


def take_down(lake: Lake, request: Request, erasing: Erasing) -> Removing:
    """What the removal of a request looks for: what was taken down before, and what is held now. It is in the lake when this returns."""
    from smalti.optouts.matched import MATCHED

    before = read_removing(lake, request.id)
    matched = read_matched(lake, state(lake).matched, [request.id])
    places = Places.of(matched)
    rows = match_tables(lake, [request], MATCHED.empty_table() if matched is None else matched)
    ids = places.ids.union(rows["id"].to_pylist(), erasing.ids, before.ids if before else ())
    # What an id shows that was delivered again (a stand-in, perhaps) is no picture that was asked for: see Places
    wanted = places.pictures.union(erasing.files)
    wanted |= {row["sha256"] for row in rows.select(["id", "sha256"]).to_pylist() if row["id"] not in places.ids}
    parts = {part for part in matched["part"].to_pylist() if part} if matched is not None else set()
    delivered: set[str] = set()
    shards = {shard: tuple(sorted(found)) for shard, found in places.shards.items()}
    tasks = itertools.chain(_delivered(lake, sorted(ids), wanted, delivered), _stored(lake, shards))
    pictures = {each.sha256: each for made in map_tasks(_needles, tasks) for each in made}
    now = Removing(
        request=request.id,
        begun=datetime.now(UTC),
        ids=tuple(sorted(ids)),
        places=tuple(sorted(delivered)),
        parts=tuple(sorted(parts.union(erasing.parts))),
        pictures=tuple(pictures[sha256] for sha256 in sorted(pictures)),
    )
    return keep_removing(lake, now)


def _needles(task: _Task) -> list[Needle]:
    kind, pictures = task
    return [needle_of(data, kind) for data in pictures]


def _delivered(lake: Lake, ids: Sequence[str], wanted: frozenset[str], places: set[str]) -> Iterator[_Task]:
    """The pictures as tables hold them.

    Args:
        places: gains digests of the URIs that they were delivered from, and nothing else was.
    """
    for name in objects.list_names(lake.tables()):
        uri = f"{lake.tables()}/{name}"
        table = open_table(uri) if name.endswith(".lance") else None
        if table is None:
            continue
        with lance_errors(uri):
            rows = rows_of_ids(table, ids, ["id", "sha256", "uri"])
        mine = {row["id"] for row in rows}
        for place in {row["uri"] for row in rows if row["uri"]}:
            with lance_errors(uri):
                others = table.scanner(columns=["id"], filter=f"uri = {sql_text(place)}").to_table()["id"].to_pylist()
            if mine.issuperset(others):
                places.add(hashlib.sha256(place.encode()).hexdigest())
        addresses = {row["sha256"]: row["_rowid"] for row in rows if row["sha256"] in wanted}
        every = list(addresses.values())
        for start in range(0, len(every), _AT_ONCE):
            yield "source", tuple(read_images(uri, table.version, every[start : start + _AT_ONCE]))


def _stored(lake: Lake, shards: Mapping[str, Sequence[int]]) -> Iterator[_Task]:
    """The pictures as shards hold them that are still there."""
    for shard, indices in sorted(shards.items()):
        try:
            columns, samples = mds.read_shard(objects.read_bytes(f"{lake.parts_root()}/{shard}"), shard)
        except MissingObject:
            continue
        found = [mds.decode_sample(columns, samples[index], shard)["image"] for index in indices]
        yield "stored", tuple(each for each in found if isinstance(each, bytes))
