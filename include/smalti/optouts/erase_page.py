"""The receipt of an erasure as a page that may be sent on: no picture, no id, no key, and nothing that has to be fetched from elsewhere."""

from __future__ import annotations

from datetime import UTC, datetime
from html import escape

from smalti.optouts.receipt_erase import EraseReceipt
from smalti.page import STYLE, figure, number, size, table


def render(receipt: EraseReceipt) -> str:
    """The page. The same receipt gives the same bytes."""
    body = "\n".join([
        _head(receipt),
        _section("What happened", _times(receipt)),
        _section("Where was looked", _places(receipt)),
        _section("What was written anew", _parts(receipt)),
        _section("What cannot be reached from here", _unreachable(receipt)),
    ])
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Receipt {escape(receipt.request)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{STYLE}</style></head>\n<body><main>\n{body}\n</main></body></html>\n"
    )


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>"


def _time(when: datetime) -> str:
    return f"{when.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _head(receipt: EraseReceipt) -> str:
    return (
        f"<p class=over>Your reference: {escape(receipt.reference)}</p><h1>Erased</h1>"
        f"<p class=lead>The bytes of what request <code>{escape(receipt.request)}</code> reached are removed from this lake.{_again(receipt)}</p>"
        f'<div class="figures">{figure(number(receipt.ids), "samples")}{figure(number(receipt.pictures), "pictures looked for")}'
        f"{figure(number(sum(each.objects for each in receipt.places)), 'objects scanned')}"
        f"{figure(_time(receipt.proved), 'found nowhere')}</div>"
    )


def _again(receipt: EraseReceipt) -> str:
    if receipt.number == 1:
        return ""
    return f" This is receipt {receipt.number}: something of it had come into the lake again, or a copy of it, after an earlier one."


def _times(receipt: EraseReceipt) -> str:
    times = [
        ("handed in", receipt.submitted),
        ("out of all parts and releases that count", receipt.erased),
        ("removal of the bytes begun", receipt.removing),
        ("scanned, and found nowhere", receipt.proved),
    ]
    return table(["", ""], [[name, _time(when)] for name, when in times], right=())


def _places(receipt: EraseReceipt) -> str:
    rows = [
        [
            f"<code>{escape(each.where)}</code>",
            number(each.objects),
            size(each.bytes),
            number(each.removed),
            number(each.rewritten),
        ]
        for each in receipt.places
    ]
    words = (
        "<p>Every object was read and decoded, whatever it is: for the bytes of the pictures, whole and in stretches, for their pixels, and "
        f"for the names of the samples. {number(receipt.allowed)} objects of the ledger and of the receipts name samples, and no other: "
        "they say what was asked and what was done, so that it stays out. "
        f"{number(receipt.rows)} rows were taken out of the tables and {number(receipt.noncurrent)} former generations of objects removed.</p>"
    )
    return words + table(["place", "objects", "bytes", "removed", "written anew"], rows, right=(1, 2, 3, 4))


def _parts(receipt: EraseReceipt) -> str:
    parts = [
        [f"<code>{escape(each.old)}</code>", f"<code>{escape(each.new or 'nothing is left')}</code>"]
        for each in receipt.parts
    ]
    releases = [
        [f"{escape(each.dataset)} {escape(each.version)}", escape(each.successor or "none")]
        for each in receipt.releases
    ]
    none = "<p class=note>None.</p>"
    return (table(["part", "in its place"], parts, right=()) if parts else none) + (
        table(["version that was given up", "in its place"], releases, right=()) if releases else none
    )


def _unreachable(receipt: EraseReceipt) -> str:
    return table(["place", "why"], [[escape(each.where), escape(each.why)] for each in receipt.unreachable], right=())
