"""Takes down what a removal looks for, from the old parts and the tables while they are there."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import pyarrow as pa

from smalti import objects
from smalti.compute import map_tasks
from smalti.errors import CorruptError, InputError, MissingObject
from smalti.lake import Lake
from smalti.optouts.erasing import Erasing
from smalti.optouts.ledger import state
from smalti.optouts.ledger_rows import read_matched
from smalti.optouts.needles import Needle, Removing, keep_removing, needle_of, read_removing
from smalti.optouts.places import Places
from smalti.optouts.remove_tables import rows_of_ids
from smalti.optouts.removed import object_digest, place_digest
from smalti.optouts.request import Request
from smalti.optouts.tables import match_tables, sources_with_table
from smalti.shards import mds
from smalti.sources.inventory import read_inventory
from smalti.table.store import lance_errors, open_table, read_images

_AT_ONCE = 64
"""Pictures of a task."""

Kind = Literal["source", "stored"]
_Task = tuple[Kind, tuple[str, ...], tuple[bytes, ...]]
"""Pictures, and the sha256 of the file that each was delivered as."""


def take_down(lake: Lake, request: Request, erasing: Erasing) -> Removing:
    """What the removal of a request looks for: what was taken down before, and what is held now. It is in the lake when this returns."""
    from smalti.optouts.matched import MATCHED

    before = read_removing(lake, request.id)
    matched = read_matched(lake, state(lake).matched, [request.id])
    places = Places.of(matched)
    rows = match_tables(lake, [request], MATCHED.empty_table() if matched is None else matched)
    ids = places.ids.union(rows["id"].to_pylist(), erasing.ids, before.ids if before else ())
    # What an id shows that was delivered again (a stand-in, perhaps) is no picture that was asked for: see Places
    shown = {row["sha256"] for row in rows.select(["id", "sha256"]).to_pylist() if row["id"] not in places.ids}
    wanted = places.pictures | shown
    parts = {part for part in matched["part"].to_pylist() if part} if matched is not None else set()
    delivered: set[str] = set()
    batches: dict[str, set[str]] = {}
    tasks = itertools.chain(_delivered(lake, sorted(ids), delivered, batches), _stored(lake, matched))
    pictures: dict[str, Needle] = {}
    spared: set[str] = set()
    for sources, made in map_tasks(_needles, tasks):
        for source, needle in zip(sources, made, strict=True):
            if source in wanted:
                pictures[needle.sha256] = needle
            else:
                spared |= {needle.sha256, needle.pixels} - {""}
    delivered.update(before.places if before else ())
    now = Removing(
        request=request.id,
        begun=datetime.now(UTC),
        ids=tuple(sorted(ids)),
        places=tuple(sorted(delivered)),
        parts=tuple(sorted(parts.union(erasing.parts))),
        pictures=tuple(pictures[sha256] for sha256 in sorted(pictures)),
        rows={batch: tuple(sorted(batches[batch])) for batch in sorted(batches)},
        listed=tuple(sorted(_listed(lake, {name.partition("/")[0] for name in ids}, delivered))),
        spared=tuple(sorted(spared.difference(pictures, (each.pixels for each in pictures.values())))),
    )
    return keep_removing(lake, now)


def _listed(lake: Lake, sources: set[str], places: set[str]) -> Iterator[str]:
    """Digests of objects at these places, as the inventories of these sources have them: without their rows there they look new."""
    for source in sorted(sources) if places else ():
        for batch in objects.list_names(lake.batches(source)):
            try:
                listed = read_inventory(lake, source, batch).objects
            except (InputError, CorruptError):
                continue  # not staged, or nothing that says what it had
            for uri, generation in zip(listed["uri"].to_pylist(), listed["generation"].to_pylist(), strict=True):
                if place_digest(uri) in places:
                    yield object_digest(uri, generation)


def _needles(task: _Task) -> tuple[tuple[str, ...], list[Needle]]:
    kind, sources, pictures = task
    return sources, [needle_of(data, kind) for data in pictures]


def _delivered(lake: Lake, ids: Sequence[str], places: set[str], batches: dict[str, set[str]]) -> Iterator[_Task]:
    """The pictures as tables hold them.

    Args:
        places: gains digests of the URIs that they were delivered from, and nothing else was.
        batches: gains the ids of the rows: "<source>/<batch>" -> ids.
    """
    for source in sources_with_table(lake):
        uri = lake.table(source)
        table = open_table(uri)
        if table is None:
            continue
        with lance_errors(uri):
            rows = rows_of_ids(table, ids, ["id", "sha256", "uri", "batch"])
        for row in rows:
            batches.setdefault(f"{source}/{row['batch']}", set()).add(row["id"])
        for place in _own(uri, table, {row["uri"] for row in rows if row["uri"]}, {row["id"] for row in rows}):
            places.add(place_digest(place))
        addresses = list({row["sha256"]: row["_rowid"] for row in rows}.items())
        for start in range(0, len(addresses), _AT_ONCE):
            some = addresses[start : start + _AT_ONCE]
            pictures = tuple(read_images(uri, table.version, [address for _, address in some]))
            yield "source", tuple(sha256 for sha256, _ in some), pictures


def _own(uri: str, table: Any, places: set[str], ids: set[str]) -> set[str]:
    """Of these URIs, those that no other rows were delivered from. `uri` has no index: the column is read once, however many there are."""
    if not places:
        return set()
    import pyarrow.compute as pc

    own, wanted = set(places), pa.array(sorted(places))
    with lance_errors(uri):
        for batch in table.scanner(columns=["id", "uri"]).to_batches():
            some = batch.filter(pc.is_in(batch["uri"], value_set=wanted))
            own.difference_update(
                place
                for name, place in zip(some["id"].to_pylist(), some["uri"].to_pylist(), strict=True)
                if name not in ids
            )
    return own


def _stored(lake: Lake, matched: pa.Table | None) -> Iterator[_Task]:
    """The pictures as shards hold them that are still there."""
    places: dict[str, dict[int, str]] = {}
    for row in () if matched is None else matched.select(["shard", "index", "sha256"]).to_pylist():
        if row["shard"] is not None:
            places.setdefault(row["shard"], {})[row["index"]] = row["sha256"]
    for shard, indices in sorted(places.items()):
        try:
            columns, samples = mds.read_shard(objects.read_bytes(f"{lake.parts_root()}/{shard}"), shard)
        except MissingObject:
            continue
        found = [
            (sha256, mds.decode_sample(columns, samples[at], shard)["image"]) for at, sha256 in sorted(indices.items())
        ]
        pictures = [(sha256, image) for sha256, image in found if isinstance(image, bytes)]
        yield "stored", tuple(sha256 for sha256, _ in pictures), tuple(image for _, image in pictures)
