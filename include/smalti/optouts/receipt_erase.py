"""The second receipt of a request to erase: the bytes are gone, shown over a list of the places that were looked at.

optouts/receipts/<request>/erase.json      EraseReceipt, create-only
optouts/receipts/<request>/erase.html      the same as a page
.../erase-2.json, erase-2.html             of what came into the lake later (`smalti.optouts.look`), and so on; the first stays

It names no sample: the first receipt does.
"""

from __future__ import annotations

from typing import Literal

from pydantic import AwareDatetime, Field

from smalti import objects
from smalti.lake import Lake
from smalti.optouts.receipt import Unreachable
from smalti.optouts.request import Action, Request
from smalti.release.skips import Model, parse

KIND = Action.ERASE.value
"""Name of this receipt among those of a request."""


class Place(Model):
    """A part of the lake that was scanned, object by object.

    Attributes:
        where: path below the lake's root.
        objects, bytes: that were read.
        removed, rewritten: objects of it that were removed for this request, or replaced by ones without its samples, by the run that
            proved it. What runs before it did that were killed is not counted.
    """

    where: str
    objects: int = Field(ge=0)
    bytes: int = Field(ge=0)
    removed: int = Field(0, ge=0)
    rewritten: int = Field(0, ge=0)


class Rewritten(Model):
    """A part that held samples, and the one in its place; empty: nothing was left of it."""

    old: str
    new: str


class Succeeded(Model):
    """A version that used such a part, and the one in its place; empty: there is none."""

    dataset: str
    version: str
    successor: str = ""


class EraseReceipt(Model):
    """What became of a request to erase.

    Attributes:
        number: among the receipts of the request's removals.
        erased: when no part that counts, and no version that is served, held any of the samples any more.
        removing, proved: when the removal of the bytes began; when the scan had found nothing.
        ids, pictures: samples, and pictures as delivered and as stored, that were looked for.
        rows: that the tables lost by the run that proved it.
        allowed: objects of the ledger and receipts that name samples: what was asked, and what was done.
        noncurrent, soft_deleted: generations that the store kept of former objects: removed, and out of reach.
        tables: source -> version of its table before the scan: at that version none of the samples is in it.
    """

    version: Literal[1] = 1
    number: int = Field(1, ge=1)
    request: str
    reference: str
    action: Action
    submitted: AwareDatetime
    erased: AwareDatetime
    removing: AwareDatetime
    proved: AwareDatetime
    ids: int = Field(ge=0)
    pictures: int = Field(ge=0)
    parts: tuple[Rewritten, ...]
    releases: tuple[Succeeded, ...]
    rows: int = Field(ge=0)
    noncurrent: int = Field(0, ge=0)
    soft_deleted: int = Field(0, ge=0)
    allowed: int = Field(ge=0)
    places: tuple[Place, ...]
    unreachable: tuple[Unreachable, ...]
    tables: dict[str, int] = Field({})

    def encode(self) -> bytes:
        """The object that is stored."""
        return (self.model_dump_json(indent=1) + "\n").encode()


def kind_of(number: int) -> str:
    """Name of the receipt of a request's first, second, ... removal among its receipts."""
    return KIND if number == 1 else f"{KIND}-{number}"


def read_erase_receipt(lake: Lake, request: str, number: int = 1) -> EraseReceipt | None:
    """A receipt; None: there is none yet. Raises CorruptError."""
    uri = lake.optout_receipt(request, kind_of(number))
    found = objects.read_versioned(uri)
    return None if found is None else parse(EraseReceipt, found[0], uri)


def read_erase_receipts(lake: Lake, request: str) -> list[EraseReceipt]:
    """Those of all its removals, in their order. Raises CorruptError."""
    found: list[EraseReceipt] = []
    while (receipt := read_erase_receipt(lake, request, len(found) + 1)) is not None:
        found.append(receipt)
    return found


def store_erase_receipt(lake: Lake, receipt: EraseReceipt) -> EraseReceipt:
    """Store a receipt and its page, or find those that are there: the first one of its number counts."""
    from smalti.optouts.erase_page import render

    kind = kind_of(receipt.number)
    objects.create_bytes(lake.optout_receipt(receipt.request, kind), receipt.encode())
    stored = read_erase_receipt(lake, receipt.request, receipt.number)
    assert stored is not None
    objects.create_bytes(lake.optout_receipt_page(receipt.request, kind), render(stored).encode())
    return stored


def still_elsewhere(request: Request, soft_deleted: int, until: str, forbidden: int) -> tuple[Unreachable, ...]:
    """Where the pictures may still be, whatever is done here."""
    assert request.action == Action.ERASE
    found = [
        ("where the pictures were delivered from", "it is only read from here: whoever owns the place removes them"),
        (
            "pulled copies and trees that were made elsewhere",
            "nobody here knows where they are: a refreshed copy leaves the samples out, and one that is made anew lacks their bytes",
        ),
        (
            "backups and snapshots of the store",
            "whatever was copied below the store, or beside it, is not seen from here",
        ),
        ("models and checkpoints that were trained before", "what they have learned stays in them"),
        (
            "logs and databases outside the lake",
            "of Airflow, Ray and the machines: they name runs and may name samples",
        ),
    ]
    if soft_deleted:
        found.append((
            f"{soft_deleted} generations that the bucket's soft delete keeps",
            f"nobody can read or remove them; the bucket deletes the last of them by {until}",
        ))
    if forbidden:
        found.append((
            f"{forbidden} noncurrent generations",
            "a retention policy or a hold of the bucket forbids their removal: whoever owns the bucket lifts it",
        ))
    return tuple(Unreachable(where=where, why=why) for where, why in found)
