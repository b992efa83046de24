"""The page of a pilot: every picture, what the source said of it and what the captioner says. One file, nothing fetched.

Captions come from models and from the web: each text is escaped, and the page's own policy allows neither scripts nor fetches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from smalti.page import document, figure, number, share, short, table

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"

LAYOUT = """
.row{display:flex;gap:1.4rem;align-items:flex-start}.row img{flex:none;border-radius:8px;max-width:45%;height:auto}
.row div{min-width:0;overflow-wrap:anywhere}.row p{margin:.15rem 0 .8rem;white-space:pre-wrap;unicode-bidi:isolate}
.row small{display:block}.failed{border-color:var(--c2)}.failed b{color:var(--c2)}
@media (max-width:640px){.row{flex-wrap:wrap}.row img{max-width:100%}}
"""


@dataclass(frozen=True)
class Picture:
    """A data: URI with its size, and the size of what the captioner was shown; px."""

    source: str
    width: int
    height: int
    shown_width: int
    shown_height: int


@dataclass(frozen=True)
class Row:
    """One row of the pilot. `picture`: None if it does not decode. The others are columns of the table, or null."""

    id: str
    picture: Picture | None
    source_caption: str | None
    text: str | None
    status: str
    reason: str | None
    detail: str | None
    finish: str | None
    tokens: int | None
    attempts: int | None


def render(source: str, batch: str, report: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """The page. `report`: the fields of a PilotReport."""
    title = f"Pilot of {source}, batch {batch}"
    body = (_head(source, batch, report), _failures(report), _estimates(report), *map(_row, rows))
    return document(title, [each for each in body if each], style=LAYOUT, policy=POLICY)


def _head(source: str, batch: str, report: Mapping[str, Any]) -> str:
    failed = sum(report["failed"].values())
    engine = [(name, escape(str(report[name]))) for name in ("model", "revision", "prompt") if report[name]]
    return (
        f"<header><p class=over>pilot of {escape(source)}, batch {escape(batch)}</p><h1>{escape(report['profile'])}</h1></header>"
        + "<div class=figures>"
        + figure(number(report["rows"]), f"rows, of {number(report['eligible'])}")
        + figure(number(failed), f"failed ({share(failed, report['rows'])})")
        + figure(number(report["waiting"]), "rows wait for the full run")
        + "</div>"
        + (f"<section><h2>Captioner</h2>{table(('', ''), engine, right=())}</section>" if engine else "")
    )


def _failures(report: Mapping[str, Any]) -> str:
    if not report["failed"]:
        return ""
    rows = [(escape(reason), number(count), share(count, report["rows"])) for reason, count in report["failed"].items()]
    return f"<section><h2>Why rows failed</h2>{table(('reason', 'rows', 'share'), rows)}</section>"


def _estimates(report: Mapping[str, Any]) -> str:
    """What the pilot took, and what the full batch will take, by two rates."""
    rows = []
    for name, key in (("by the pilot's own rate", "measured"), ("by the rate in the profile", "stated")):
        each = report[key]
        if each is None:
            rows.append((name, "not known", "", "", "", ""))
            continue
        gpu = "" if each["gpu_hours"] is None else short(each["gpu_hours"])
        cost = "" if each["cost"] is None else short(each["cost"])
        rows.append((
            name,
            short(each["rows_per_second"]),
            number(each["engines"]),
            short(each["hours"]),
            gpu,
            cost,
        ))
    use = report["use"]
    took = "This run asked about no row, so that nothing was measured. " if not report["computed"] else ""
    if use is not None:
        took = (
            f"The pilot took {short(use['gpu_hours'])} GPU hours, with loading; {use['tokens']:,d} tokens; "
            f"its engines were {100 * use['busy']:.0f} % busy. "
        )
    return (
        f"<section><h2>The full batch</h2><p class=note>{number(report['waiting'])} rows wait. {took}"
        "A pilot is small: it seldom fills an engine, so that the full run is usually faster than the pilot's rate says.</p>"
        + table(("", "rows/s of an engine", "engines", "hours", "GPU hours", "cost"), rows)
        + "</section>"
    )


def _row(row: Row) -> str:
    failed = row.status == "failed"
    facts = [
        f"{len((row.text or '').split())} words" if row.text is not None else "",
        f"{row.tokens} tokens" if row.tokens is not None else "",
        f"{row.attempts} {'attempt' if row.attempts == 1 else 'attempts'}" if row.attempts is not None else "",
        f"ended by {row.finish}" if row.finish else "",
    ]
    said = f"<b>{escape(row.status)}{': ' + escape(row.reason) if row.reason else ''}</b>"
    picture = "<span>(does not decode)</span>"
    if row.picture is not None:
        at = row.picture
        picture = f'<img src="{escape(at.source)}" width="{at.width}" height="{at.height}" alt="">'
        facts.append(f"shown at {at.shown_width} x {at.shown_height}")
    return (
        f'<section class="row{" failed" if failed else ""}">{picture}<div>'
        f"{said}<small>{escape(row.id)}: {escape(', '.join(filter(None, facts)))}</small>"
        + (f'<p dir="auto">{escape(row.text)}</p>' if row.text is not None else "")
        + (f'<small>what it said, or why not</small><p dir="auto">{escape(row.detail)}</p>' if row.detail else "")
        + f'<small>the source\'s caption</small><p dir="auto">{escape(row.source_caption or "") or "(none)"}</p>'
        + "</div></section>"
    )
