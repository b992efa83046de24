"""Receipts: what became of a request, for whoever asked. Of them it has their own reference, and nothing of what they asked by.

optouts/receipts/<request>/exclude.json      Receipt, create-only
optouts/receipts/<request>/exclude.html      the same as a page
"""

from __future__ import annotations

from typing import Literal

from pydantic import AwareDatetime, Field

from smalti import objects
from smalti.lake import Lake
from smalti.optouts.request import Action
from smalti.release.skips import Model, parse

KIND = "exclude"
"""Name of this receipt among those of a request."""

LISTED = 100_000
"""Places that a receipt lists one by one; counts are always whole."""


class Matched(Model):
    """A sample that a request reached, and where it lies."""

    id: str
    source: str
    how: str = Field(description="`key`: what was asked by names it; `copy`: it shows such a picture, or has its id")
    shard: str = Field(description="relative to parts/")
    index: int = Field(ge=0, description="in the shard")


class Touched(Model):
    """A release that is served, or was, and of which the request reached samples."""

    dataset: str
    version: str
    digest: str
    streams: tuple[str, ...] = Field(description="that hold any of them")
    samples: int = Field(ge=0, description="that it holds of them")
    skipped: int = Field(ge=0, description="of these: that it leaves out by itself")
    since: int = Field(ge=0, description="of these: that are left out of runs that start since the request is in force")
    tree: bool = Field(False, description="a tree of it still holds some of them")


class Replaced(Model):
    """A version that held samples of the request and is served no more: another one took its place."""

    dataset: str
    version: str
    successor: str | None = Field(description="empty: nothing was left for one")
    tree: bool = Field(description="files of its tree that hold some are still there, until maintenance collects them")


class Checks(Model):
    """What was looked at, and found in order.

    Attributes:
        parts, rows: whose samples.parquet was searched for the pictures and the ids.
        places: matched samples in streams of releases, each found to be left out by what the training loader selects.
        shards: that hold such a sample and of which anything is served.
        shards_read, samples_read: what the training loader was made to serve of these; none of it was a matched sample.
    """

    parts: int = 0
    rows: int = 0
    releases: int = 0
    streams: int = 0
    places: int = 0
    shards: int = 0
    shards_read: int = 0
    samples_read: int = 0


class Unreachable(Model):
    """A place where the samples may still be."""

    where: str
    why: str


class Receipt(Model):
    """What became of a request.

    Attributes:
        resolved: when it was applied.
        effective: when the snapshot with it was there: from then on no run that starts is served any of the samples; and where a tree
            held some, when its version was succeeded. Empty: trees of live releases still hold some.
        position, snapshot, snapshot_sha256: the step of the ledger that applied it; the newest snapshot, by which it was proved.
        ids, found: how many samples it reached, and in how many places they lie; `samples` lists at most LISTED places.
        keys, unmatched: how many keys it has, and how many of them match nothing that is held.
    """

    version: Literal[1] = 1
    request: str
    reference: str
    action: Action
    submitted: AwareDatetime
    resolved: AwareDatetime
    effective: AwareDatetime | None
    proved: AwareDatetime
    position: int = Field(ge=1)
    snapshot: int = Field(ge=1)
    snapshot_sha256: str
    keys: int = Field(ge=1)
    unmatched: int = Field(ge=0)
    ids: int = Field(ge=0)
    in_tables: int = Field(0, ge=0, description="of `ids`: those that are in a source's table and in no part")
    found: int = Field(ge=0)
    samples: tuple[Matched, ...]
    releases: tuple[Touched, ...]
    replaced: tuple[Replaced, ...] = ()
    checks: Checks
    unreachable: tuple[Unreachable, ...]

    def encode(self) -> bytes:
        """The object that is stored."""
        return (self.model_dump_json(indent=1) + "\n").encode()


def read_receipt(lake: Lake, request: str, kind: str = KIND) -> Receipt | None:
    """A receipt; None: there is none yet. Raises CorruptError."""
    uri = lake.optout_receipt(request, kind)
    found = objects.read_versioned(uri)
    return None if found is None else parse(Receipt, found[0], uri)


def store_receipt(lake: Lake, receipt: Receipt) -> Receipt:
    """Store a receipt and its page, or find those that are there: the first one counts."""
    from smalti.optouts.receipt_page import render

    objects.create_bytes(lake.optout_receipt(receipt.request, KIND), receipt.encode())
    stored = read_receipt(lake, receipt.request)
    assert stored is not None
    objects.create_bytes(lake.optout_receipt_page(receipt.request, KIND), render(stored).encode())
    return stored
