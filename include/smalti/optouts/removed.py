"""What removals have taken out of tables and inventories: stages that run again count it, and do not take it up anew."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from pydantic import BaseModel, Field, ValidationError

from smalti import objects
from smalti.lake import Lake
from smalti.release.skips import damaged


class _Rows(BaseModel):
    """What is read of `smalti.optouts.needles.Removing`."""

    rows: dict[str, tuple[str, ...]] = Field({})
    places: tuple[str, ...] = ()
    listed: tuple[str, ...] = ()


def removed_ids(lake: Lake, source: str, batch: str) -> frozenset[str]:
    """Ids of the rows that requests have removed from a batch of a source's table, or are about to.

    Where nobody ever asked, one listing is all that is read.

    Raises:
        CorruptError: what a removal has taken down is damaged.
    """
    every = _read_all(lake)
    return frozenset(name for _, told in every for name in told.rows.get(f"{source}/{batch}", ()))


def removed_objects(lake: Lake) -> frozenset[str]:
    """`object_digest` of each object of a source that requests have removed, or are about to, and were not taken back. Raises CorruptError."""
    return frozenset(digest for told in _in_force(lake) for digest in told.listed)


def removed_places(lake: Lake) -> frozenset[str]:
    """`place_digest` of each such object, changed since or not. Raises CorruptError."""
    return frozenset(digest for told in _in_force(lake) for digest in told.places)


def place_digest(uri: str) -> str:
    """What tells a place of a source, and does not name it."""
    return hashlib.sha256(uri.encode()).hexdigest()


def object_digest(uri: str, generation: str) -> str:
    """What tells an object of a source, as long as its owner does not change it, and does not name it."""
    return hashlib.sha256(f"{uri}\0{generation}".encode()).hexdigest()


def _in_force(lake: Lake) -> list[_Rows]:
    from smalti.optouts.ledger import state

    every = dict(_read_all(lake))
    withdrawn = state(lake).withdrawn if every else {}
    return [told for request, told in every.items() if request not in withdrawn]


def _read_all(lake: Lake) -> Iterator[tuple[str, _Rows]]:
    """What every removal has taken down, by request."""
    for info in objects.list_objects(
        lake.optout_requests()
    ):  # most requests remove nothing: nobody asks for an object of each
        request = info.uri.removeprefix(f"{lake.optout_requests()}/").partition("/")[0]
        uri = lake.optout_removing(request)
        if info.uri != uri:
            continue
        told = objects.read_versioned(uri)
        if told is not None:
            try:
                yield request, _Rows.model_validate_json(told[0])
            except ValidationError as error:
                raise damaged(uri, error.errors()[0]["msg"]) from None
