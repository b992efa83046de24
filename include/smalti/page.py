"""The look of pages that people read, and its small pieces. What is passed as a cell is HTML: escape texts before."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

STYLE = """
:root{--page:#f7f5f1;--card:#fff;--ink:#22252b;--soft:#6b6f78;--line:#e3dfd6;--main:#2f6f73;
 --c0:#2f6f73;--c1:#d98f3d;--c2:#b0492f;--c3:#6d5a9c;--c4:#8a9a3b;--c5:#c26a8e;--c6:#4f83c2;--c7:#8d7358;--c8:#a9a9a9;--c9:#d9b93d}
@media (prefers-color-scheme:dark){:root{--page:#17191d;--card:#20242a;--ink:#e8e6e1;--soft:#9aa0aa;--line:#343a42;--main:#6cc0bd;
 --c0:#4aa3a0;--c3:#9c87d1;--c6:#79a9e3;--c8:#7d828a}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1120px;margin:0 auto;padding:2.5rem 1.25rem 5rem}
h1{font-size:3rem;line-height:1.1;margin:0;letter-spacing:-.02em}h2{font-size:1.35rem;margin:0 0 .75rem}h3{margin:1.25rem 0 .5rem;font-size:1rem}
.over{margin:0;color:var(--main);font-weight:600}.lead{font-size:1.1rem;margin:.5rem 0 0;max-width:46rem}
.digest,.note,small{color:var(--soft)}.digest{font-size:.85rem;overflow-wrap:anywhere}.note{margin:0 0 .75rem}
.warning{border-left:4px solid var(--c1);background:var(--card);padding:.5rem .9rem;margin:.75rem 0}
section{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:1.25rem 1.4rem;margin-top:1.5rem;overflow-x:auto}
.figures{display:flex;flex-wrap:wrap;gap:.75rem;margin:1.5rem 0 1.25rem}
.figures div{flex:1 1 9rem;background:var(--card);border:1px solid var(--line);border-radius:12px;padding:.8rem 1rem}
.figures b{display:block;font-size:1.6rem;line-height:1.2}.figures span{color:var(--soft);font-size:.9rem}
.bar{display:flex;height:18px;border-radius:9px;overflow:hidden;gap:2px}.bar span{min-width:3px}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;margin:.6rem 0 0;padding:0;list-style:none;font-size:.9rem}
.legend i{display:inline-block;width:.75em;height:.75em;border-radius:3px;margin-right:.4em}
table{border-collapse:collapse;width:100%;font-size:.92rem;margin-bottom:.75rem}
th,td{text-align:left;padding:.35rem 1rem .35rem 0;border-bottom:1px solid var(--line);vertical-align:top}
th{color:var(--soft);font-weight:500}.r{text-align:right;font-variant-numeric:tabular-nums}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(176px,1fr));gap:1rem}
figure{margin:0}figure img{display:block;border-radius:8px;max-width:100%;height:auto;outline:1px solid var(--line)}
figcaption{font-size:.8rem;line-height:1.35;margin-top:.4rem;overflow-wrap:anywhere}
figcaption b{display:block;font-weight:600}figcaption i{color:var(--soft);font-style:normal;display:block}
figcaption span{display:-webkit-box;-webkit-line-clamp:5;-webkit-box-orient:vertical;overflow:hidden}
.pair{grid-column:span 2;display:flex;gap:.75rem;align-items:flex-start}.pair figure{flex:1 1 0}
@media (max-width:560px){.pair{grid-column:auto;flex-wrap:wrap}}
.arrow{color:var(--soft);font-size:.75rem;align-self:center;white-space:nowrap}
.buckets th{width:7rem;color:var(--ink);font-weight:600;font-size:1.1rem}.buckets small{display:block;font-size:.75rem;font-weight:400}
.shape{display:inline-block;text-align:center;width:4.1rem;margin:.15rem 0}.shape rect{fill:var(--main);stroke:var(--main)}
.shape b{font-weight:500;font-size:.85rem}.none{opacity:.35}
.columns{display:grid;grid-template-columns:repeat(auto-fit,minmax(260px,1fr));gap:1.5rem;align-items:start}
summary{cursor:pointer;color:var(--main)}details>table,details>.grid{margin-top:.75rem}
"""


def document(title: str, body: Sequence[str], *, style: str = "", policy: str = "") -> str:
    """A whole page, in one file: nothing of it is fetched from elsewhere.

    Args:
        title: text.
        body: HTML, piece by piece; each begins a line.
        style: rules beside STYLE.
        policy: a Content-Security-Policy.
    """
    meta = f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">\n' if policy else ""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n{meta}'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{STYLE}{style}</style></head>\n<body><main>\n" + "\n".join(body) + "\n</main></body></html>\n"
    )


def number(count: int) -> str:
    return f"{count:,d}"


def short(value: float) -> str:
    """Two decimals; of what is below 1, two digits that say something."""
    return f"{value:,.2f}" if value >= 1 or value == 0 else f"{value:.2g}"


def share(count: int, of: int) -> str:
    """A part in percent, with as many digits as tell something."""
    percent = 100 * count / of if of else 0.0
    return f"{percent:.2f} %" if 0 < percent < 1 else f"{percent:.1f} %"


def size(count: int) -> str:
    """Bytes for people, in powers of 1,000."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:,.1f} TB"


def figure(value: str, what: str) -> str:
    """One large number."""
    return f"<div><b>{escape(value)}</b><span>{escape(what)}</span></div>"


def bar(parts: Sequence[tuple[str, int]]) -> str:
    """Shares of a whole, with their names; the first is the good one."""
    total = sum(count for _, count in parts) or 1
    strips = "".join(
        f'<span style="flex:{count / total:.4f} 0 0;background:var(--c{place % 10})" title="{escape(name)} {count:,d}"></span>'
        for place, (name, count) in enumerate(parts)
        if count
    )
    names = "".join(
        f'<li><i style="background:var(--c{place % 10})"></i>{escape(name)} {count:,d}</li>'
        for place, (name, count) in enumerate(parts)
    )
    return f"<div class=bar>{strips}</div><ul class=legend>{names}</ul>"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] | None = None) -> str:
    """Rows of HTML cells; columns in `right` (empty: all but the first) hold numbers."""
    numeric = set(range(1, len(head))) if right is None else set(right)

    def line(cells: Sequence[str], tag: str) -> str:
        return (
            "<tr>"
            + "".join(
                f"<{tag}{' class=r' if place in numeric else ''}>{cell}</{tag}>" for place, cell in enumerate(cells)
            )
            + "</tr>"
        )

    return f"<table>{line([escape(name) for name in head], 'th')}{''.join(line(row, 'td') for row in rows)}</table>"
