"""Who looked at a request's preview or receipt: an object each time, created before anything is shown, and never changed.

    optouts/requests/<request>/views/<time>-<digest>.json    View

What is read past this, from the bucket itself, only the bucket's own log knows.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Literal

from pydantic import AwareDatetime, Field

from smalti import objects
from smalti.errors import InputError
from smalti.lake import Lake
from smalti.objects import join_uri
from smalti.optouts.request import Action
from smalti.release.skips import Model, canonical_json, decompress, parse, sha256

PREVIEW = "preview"

_TURN = re.compile(r"preview(?:-([2-9]|[1-9]\d{1,3}))?")


_AGAIN = re.compile(rf"{Action.ERASE}-(?:[2-9]|[1-9]\d{{1,3}})")
"""Receipts of later removals."""


class View(Model):
    """Somebody was shown something."""

    version: Literal[1] = 1
    request: str
    what: str = Field(
        description="`preview`, `preview-2` of a second turn, or the name of a receipt: `query`, `exclude`, `erase`, `withdraw`"
    )
    form: Literal["page", "json"]
    by: str = Field(min_length=1, max_length=200, description="as Airflow or the system knows them")
    viewed: AwareDatetime
    sha256: str = Field(description="of the bytes that were shown")


def pages_of(lake: Lake, request: str) -> list[str]:
    """What can be shown of a request now: its preview, and its receipts."""
    receipts = {name.partition(".")[0] for name in objects.list_names(lake.optout_receipts(request))}
    there = {name.partition(".")[0] for name in objects.list_names(lake.optout_folder(request))}
    previews = [each for each in there if _TURN.fullmatch(each)]
    again = sorted(filter(_AGAIN.fullmatch, receipts), key=lambda what: int(what.rpartition("-")[2]))
    return [*sorted(previews, key=_turn_of), *(action.value for action in Action if action in receipts), *again]


def show(lake: Lake, request: str, what: str, by: str, *, page: bool, now: datetime | None = None) -> bytes:
    """The bytes of a preview or a receipt, for somebody who is named. It is recorded first: what cannot be recorded is not shown.

    Args:
        what: one of `pages_of`.
        page: the page (HTML), not the data (JSON, as it is stored, or unpacked).
    Raises:
        InputError: there is no such thing.
    """
    uri = _uri(lake, request, what, page)
    found = objects.read_versioned(uri)
    if found is None:
        there = ", ".join(pages_of(lake, request)) or "nothing yet, or no more"
        raise InputError(f"there is no {what} of request {request}", uri, f"There is: {there}")
    data = _unpacked(found[0], uri)
    record_view(lake, request, what, by, data, page=page, now=now)
    return data


def record_view(
    lake: Lake, request: str, what: str, by: str, shown: bytes, *, page: bool, now: datetime | None = None
) -> View:
    """Record that somebody is shown some bytes."""
    view = View(
        request=request,
        what=what,
        form="page" if page else "json",
        by=by,
        viewed=now or datetime.now(UTC),
        sha256=sha256(shown),
    )
    said = canonical_json(view.model_dump(mode="json"))
    name = f"{view.viewed.astimezone(UTC):%Y%m%dT%H%M%SZ}-{sha256(said)[:16]}"
    objects.create_same(lake.optout_view(request, name), said)
    return view


def views(lake: Lake, request: str) -> list[View]:
    """Who was shown what of a request, in the order of time. Raises CorruptError."""
    root = lake.optout_views(request)
    found = [join_uri(root, name) for name in objects.list_names(root)]
    return sorted((parse(View, objects.read_bytes(uri), uri) for uri in found), key=lambda each: each.viewed)


def _uri(lake: Lake, request: str, what: str, page: bool) -> str:
    if _TURN.fullmatch(what):
        turn = _turn_of(what)
        return lake.optout_preview_page(request, turn) if page else lake.optout_preview(request, turn)
    if what not in list(Action) and not _AGAIN.fullmatch(what):
        raise InputError(f"{what!r} is nothing that a request has", request, f"Use {PREVIEW}, or {', '.join(Action)}")
    return lake.optout_receipt_page(request, what) if page else lake.optout_receipt(request, what)


def _turn_of(what: str) -> int:
    found = _TURN.fullmatch(what)
    return int(found[1] or 1) if found else 0


def _unpacked(data: bytes, uri: str) -> bytes:
    return decompress(data, uri) if uri.endswith(".gz") else data
