"""What is said of a request that changes nothing by itself: what is held of a query, and that another request was taken back.

    optouts/receipts/<request>/query.json, withdraw.json    Statement, create-only; a page stands beside it

A request to exclude or to erase has a proof instead (`smalti.optouts.proof`).
"""

from __future__ import annotations

from datetime import UTC, datetime
from html import escape
from typing import Literal

from pydantic import AwareDatetime, Field

from smalti import objects
from smalti.errors import InputError
from smalti.lake import Lake
from smalti.optouts.ledger import read_step, state
from smalti.optouts.preview import Listed, read_preview
from smalti.optouts.request import Action, Request, read_request
from smalti.page import document, figure, number, table
from smalti.release.skips import Model, parse

SHOWN = 500
"""Samples on the page; the JSON beside it lists those that the preview does."""


class Statement(Model):
    """The answer to a query, or to a withdrawal. No key is in it."""

    version: Literal[1] = 1
    request: str
    reference: str
    action: Action
    submitted: AwareDatetime
    stated: AwareDatetime
    keys: int = 0
    unmatched: int = Field(0, description="keys that match nothing that is held")
    matched: int = Field(0, description="places in parts")
    samples: int = Field(0, description="ids, in parts or in tables")
    sources: dict[str, int] = Field({}, description="source -> places in its parts")
    tables: dict[str, int] = Field({}, description="source -> rows of its table")
    releases: dict[str, tuple[str, ...]] = Field({}, description="dataset -> live versions that are made of such parts")
    shown: tuple[Listed, ...] = Field((), description="the first samples")
    withdraws: str | None = None
    since: AwareDatetime | None = Field(None, description="when the other request was taken back")
    position: int | None = Field(None, description="of the ledger, where the other request was taken back")


def state_answer(lake: Lake, request_id: str) -> Statement:
    """Store what is said of a query or a withdrawal. If that was done already, that is it.

    Raises:
        InputError: the request excludes or erases; or it was not looked at, or not applied, before.
    """
    request = read_request(lake, request_id)
    uri = lake.optout_receipt(request.id, request.action)
    found = objects.read_versioned(uri)
    if found is None:
        made = _of_query(lake, request) if request.action == Action.QUERY else _of_withdrawal(lake, request)
        objects.create_bytes(uri, (made.model_dump_json(indent=1) + "\n").encode())
        found = objects.read_versioned(uri)
        assert found is not None
    stored = parse(Statement, found[0], uri)
    objects.create_bytes(lake.optout_receipt_page(request.id, request.action), render(stored).encode())
    return stored


def _of_query(lake: Lake, request: Request) -> Statement:
    seen = read_preview(lake, request.id)
    if seen is None:
        raise InputError(f"request {request.id} has no preview", "opt-outs", "Run its preview first")
    fields = {"keys", "unmatched", "matched", "samples", "sources", "tables", "releases", "shown"}
    return _statement(request).model_copy(update={name: getattr(seen, name) for name in fields})


def _of_withdrawal(lake: Lake, request: Request) -> Statement:
    if request.action != Action.WITHDRAW:
        raise InputError(f"request {request.id} is to {request.action}: it has a proof", "opt-outs", "Prove it")
    position = state(lake).withdrawn.get(str(request.withdraws))
    if position is None:
        raise InputError(f"request {request.id} was not applied", "opt-outs", "Apply it first")
    return _statement(request).model_copy(
        update={
            "withdraws": request.withdraws,
            "position": position,
            "since": read_step(lake, position).resolved,
        }
    )


def _statement(request: Request) -> Statement:
    return Statement(
        request=request.id,
        reference=request.reference,
        action=request.action,
        submitted=request.submitted,
        stated=datetime.now(UTC),
    )


def render(said: Statement) -> str:
    """The page, fit to send on. The same statement gives the same bytes."""
    body = _withdrawal(said) if said.action == Action.WITHDRAW else _query(said)
    return document(f"Opt-out {said.request}", [f"<p class=over>Your reference: {escape(said.reference)}</p>{body}"])


def _withdrawal(said: Statement) -> str:
    return (
        f"<h1>Taken back</h1><p class=lead>Request <code>{escape(str(said.withdraws))}</code> no longer applies, since "
        f"{said.since:%Y-%m-%d %H:%M} UTC (step {said.position} of the ledger). What it named is served again, unless another request "
        "names it: by releases that were built before it applied, when training starts next, and by those that are built from now on. Releases that "
        "were built meanwhile stay without, and pictures that were dropped as they arrived do not come back.</p>"
    )


def _query(said: Statement) -> str:
    samples = [
        (
            escape(each.id),
            "named by a key" if each.how == "key" else "a copy",
            escape(each.part or "the source's table"),
        )
        for each in said.shown[:SHOWN]
    ]
    releases = [(escape(name), escape(", ".join(each))) for name, each in sorted(said.releases.items())]
    return (
        f"<h1>What is held</h1><p class=lead>Asked {said.submitted:%Y-%m-%d %H:%M} UTC, looked up by {said.stated:%Y-%m-%d %H:%M} UTC. "
        "Nothing was changed.</p>"
        f'<div class="figures">{figure(number(said.samples), "samples")}{figure(number(said.matched), "places in parts")}'
        f"{figure(f'{number(said.unmatched)} of {number(said.keys)}', 'keys that match nothing')}</div>"
        f"<section><h2>Releases</h2>{table(('dataset', 'live versions'), releases, right=())}</section>"
        f"<section><h2>Samples</h2>{table(('sample', 'how', 'part'), samples, right=())}</section>"
    )
