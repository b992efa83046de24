"""A receipt as a page that may be sent on: no picture, no key, and nothing that has to be fetched from elsewhere."""

from __future__ import annotations

from datetime import UTC, datetime
from html import escape

from smalti.optouts.receipt import Receipt, Touched
from smalti.optouts.request import Action
from smalti.page import document, figure, number, table

SHOWN = 500
"""Places on the page; the JSON beside it lists more."""

_DONE = {Action.EXCLUDE: "never served again", Action.ERASE: "never served again; the bytes are removed after that"}


def render(receipt: Receipt) -> str:
    """The page. The same receipt gives the same bytes."""
    body = [
        _head(receipt),
        *_warnings(receipt),
        _section("What happened", _times(receipt)),
        _section("Releases", _releases(receipt)),
        _section("How this was checked", _checks(receipt)),
        _section("What cannot be reached from here", _unreachable(receipt)),
        _section("Samples", _samples(receipt)),
    ]
    return document(f"Receipt {receipt.request}", body)


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>"


def _time(when: datetime | None) -> str:
    return "not yet" if when is None else f"{when.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _head(receipt: Receipt) -> str:
    return (
        f"<p class=over>Your reference: {escape(receipt.reference)}</p><h1>Opt-out</h1>"
        f"<p class=lead>Request <code>{escape(receipt.request)}</code> to {escape(receipt.action)}: what it reaches is "
        f"{_DONE[receipt.action]}.</p>"
        f'<div class="figures">{figure(number(receipt.ids), "samples found")}'
        f"{figure(number(receipt.found), 'places where they lie')}"
        f"{figure(number(len(receipt.releases)), 'releases that hold any of them')}"
        f"{figure(_time(receipt.effective), 'in effect since')}</div>"
    )


def _warnings(receipt: Receipt) -> list[str]:
    found = []
    if receipt.effective is None:
        found.append("Not in effect yet: trees of releases still hold samples of it; see below.")
    if receipt.unmatched:
        found.append(
            f"{number(receipt.unmatched)} of {number(receipt.keys)} keys match nothing that is held. They stay in force for "
            "whatever is delivered later."
        )
    return [f'<p class="warning">{escape(each)}</p>' for each in found]


def _times(receipt: Receipt) -> str:
    return table(
        ["", ""],
        [
            ["handed in", _time(receipt.submitted)],
            ["applied", f"{_time(receipt.resolved)}, step {receipt.position} of the ledger"],
            ["in effect", _time(receipt.effective)],
            ["proved", f"{_time(receipt.proved)}, by snapshot {receipt.snapshot}"],
            ["snapshot", f"<span class=digest>sha256 {escape(receipt.snapshot_sha256)}</span>"],
        ],
        right=(),
    )


def _releases(receipt: Receipt) -> str:
    if not receipt.releases:
        return "<p class=note>No release that is served, or was, holds any of them.</p>" + _replaced(receipt)

    def row(each: Touched) -> list[str]:
        name = f"{escape(each.dataset)} {escape(each.version)}<br><span class=digest>{escape(each.digest)}</span>"
        tree = "<br><small>its tree still holds some</small>" if each.tree else ""
        counts = [number(count) for count in (each.samples, each.skipped, each.since)]
        return [name + tree, escape(", ".join(each.streams)), *counts]

    head = ["release", "streams", "samples", "left out by the release", "left out of runs that start"]
    return table(head, [row(each) for each in receipt.releases], right=(2, 3, 4)) + _replaced(receipt)


def _replaced(receipt: Receipt) -> str:
    if not receipt.replaced:
        return ""
    rows = [
        [
            f"{escape(each.dataset)} {escape(each.version)}",
            escape(each.successor or "nothing was left of it"),
            "its files are still there, until maintenance collects them" if each.tree else "gone, or it had none",
        ]
        for each in receipt.replaced
    ]
    return "<p>Served no more:</p>" + table(["release", "in its place", "its tree"], rows, right=())


def _checks(receipt: Receipt) -> str:
    done = receipt.checks
    return "".join(
        f"<p>{each}</p>"
        for each in (
            f"The lists of samples of all {number(done.parts)} parts ({number(done.rows)} rows) were searched for these pictures "
            "and these ids: each place that has one is in the snapshot.",
            f"Each of the {number(done.places)} places in the {number(done.streams)} affected streams of {number(done.releases)} "
            "releases is left out by what the training loader selects.",
            f"{number(done.samples_read)} samples were read back through the training loader, of {number(done.shards_read)} of the "
            f"{number(done.shards)} shards that hold one and are still served: none is among those below.",
        )
    )


def _unreachable(receipt: Receipt) -> str:
    return table(["place", "why"], [[escape(each.where), escape(each.why)] for each in receipt.unreachable], right=())


def _samples(receipt: Receipt) -> str:
    rows = [
        [escape(each.id), escape(each.source), each.how, f"<code>{escape(each.shard)}</code>", number(each.index)]
        for each in receipt.samples[:SHOWN]
    ]
    more = f"<p class=note>The first {SHOWN} of {number(receipt.found)}.</p>" if receipt.found > SHOWN else ""
    return more + table(["sample", "source", "found by", "shard", "index"], rows, right=(4,))
