"""The page that a person confirms a request by: what would go, what nearly matches and stays, with pictures."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from smalti.errors import SmaltiError
from smalti.lake import Lake
from smalti.optouts.preview import Listed, Preview
from smalti.optouts.request import Request
from smalti.page import document, figure, number, table
from smalti.release.collect import Shown
from smalti.release.pictures import thumbnail

PICTURES = 60
"""Of what matches, and as many of what nearly does."""


def render(lake: Lake, request: Request, preview: Preview) -> str:
    """The page. It names samples and keys by their number, never a key itself: it may be looked at over a shoulder."""
    head = (
        f"<p class=over>Opt-out {escape(request.id)}</p><h1>{escape(request.action.value.capitalize())}</h1>"
        f"<p class=lead>Asked for under the reference <b>{escape(request.reference)}</b>, handed in "
        f"{request.submitted:%Y-%m-%d %H:%M} UTC. Nothing has been applied yet.</p>"
        '<div class="figures">'
        + figure(number(preview.matched), "places in parts match")
        + figure(number(preview.matched - preview.by_key), "of them copies of what a key names")
        + figure(number(preview.near), "look-alikes that stay")
        + figure(f"{number(preview.unmatched)} of {number(preview.keys)}", "keys that match nothing")
        + "</div>"
    )
    where = (
        "<section><h2>Where</h2>"
        + table(("source", "places"), _rows(preview.sources))
        + (table(("rows of a source's table", "rows"), _rows(preview.tables)) if preview.tables else "")
        + table(
            ("dataset", "live versions"),
            [(escape(name), escape(", ".join(each))) for name, each in sorted(preview.releases.items())],
            right=(),
        )
        + "</section>"
    )
    sections = [
        where,
        _pictures(lake, "What matches", preview.shown, preview.matched),
        _pictures(lake, "What nearly matches, and stays", preview.shown_near, preview.near, _unseen(preview)),
    ]
    return document(f"Opt-out {request.id}", [head, *sections])


def _rows(counts: dict[str, int]) -> list[tuple[str, str]]:
    return [(escape(name), number(count)) for name, count in sorted(counts.items())]


def _unseen(preview: Preview) -> str:
    if not preview.near_unseen:
        return ""
    return (
        f"<p class=note>There were too many to compare them all: {number(preview.near_unseen)} more are as near by their hashes, were not "
        "looked at, and stay.</p>"
    )


def _pictures(lake: Lake, title: str, listed: Sequence[Listed], count: int, note: str = "") -> str:
    if not (listed or note):
        return ""
    more = f"<p class=note>{min(PICTURES, len(listed))} of {number(count)}.</p>" if count > PICTURES else ""
    figures = "".join(_picture(lake, each) for each in listed[:PICTURES])
    return f"<section><h2>{title}</h2>{more}{note}<div class=grid>{figures}</div></section>"


def _picture(lake: Lake, listed: Listed) -> str:
    how = {"key": f"key {listed.key + 1}", "copy": f"a copy of what key {listed.key + 1} names", "near": "looks alike"}
    said = f"<figcaption><b>{escape(listed.id)}</b><i>{how[listed.how]}</i></figcaption>"
    if listed.shard is None or listed.index is None:
        return f"<figure>{said}</figure>"
    try:
        small = thumbnail(lake, Shown("", listed.id, listed.shard, listed.index))
    except (SmaltiError, OSError):
        return f"<figure><figcaption><b>{escape(listed.id)}</b><i>its picture cannot be read</i></figcaption></figure>"
    return f'<figure><img src="{small.source}" width="{small.width}" height="{small.height}" alt="">{said}</figure>'
