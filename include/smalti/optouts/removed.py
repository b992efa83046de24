"""What removals have taken out of the tables: stages that run again count it, and nobody misses it."""

from __future__ import annotations

from pydantic import BaseModel, Field, ValidationError

from smalti import objects
from smalti.lake import Lake
from smalti.release.skips import damaged


class _Rows(BaseModel):
    """What is read of `smalti.optouts.needles.Removing`."""

    rows: dict[str, tuple[str, ...]] = Field({})


def removed_ids(lake: Lake, source: str, batch: str) -> frozenset[str]:
    """Ids of the rows that requests have removed from a batch of a source's table, or are about to.

    Where nobody ever asked, one listing is all that is read.

    Raises:
        CorruptError: what a removal has taken down is damaged.
    """
    found: set[str] = set()
    for request in objects.list_names(lake.optout_requests()):
        uri = lake.optout_removing(request)
        told = objects.read_versioned(uri)
        if told is not None:
            try:
                found.update(_Rows.model_validate_json(told[0]).rows.get(f"{source}/{batch}", ()))
            except ValidationError as error:
                raise damaged(uri, error.errors()[0]["msg"]) from None
    return frozenset(found)
