"""report.html: a release as a page that a person enjoys. One file, nothing fetched, light and dark.

The same release is the same page: no time, no chance; the pictures are those of the smallest sha256. What was opted out is counted, and
never shown or named: neither its picture, nor its caption, nor its id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import zip_longest

from smalti.config import Dataset
from smalti.images.buckets import Bucket, buckets_of
from smalti.lake import Lake
from smalti.page import bar, document, figure, number, share, size, table
from smalti.reasons import SkipReason
from smalti.release.collect import SHOWN_A_BUCKET, Shown, Tally
from smalti.release.diff import Diff
from smalti.release.manifest import Manifest, StreamEntry
from smalti.release.pictures import Thumbnail, locate, thumbnail

SHOWN = 24
"""Kept samples on the page."""


def render(lake: Lake, manifest: Manifest, parent: Manifest | None, changes: Diff | None, counted: Tally) -> str:
    """The page.

    Args:
        parent: the version that was LATEST before, if there was one.
        changes: since the parent.
        counted: counts and the samples to choose from.
    """
    title = f"{manifest.dataset} {manifest.version}"
    sections = (
        _head(manifest, counted),
        _changes(manifest, parent, changes) if parent and changes else "",
        _samples(lake, counted),
        _left_out(lake, manifest, counted),
        _buckets(manifest.streams),
        _sources(manifest, counted),
        _upstream(manifest),
    )
    return document(title, [each for each in sections if each])


def choose(candidates: Mapping[tuple[str, int, str], Sequence[Shown]], most: int = SHOWN) -> list[Shown]:
    """Samples for the grid: one of each stream in turn, until there are enough."""
    assert most <= SHOWN_A_BUCKET  # more are not remembered
    rounds = zip_longest(*(candidates[key] for key in sorted(candidates)))
    return [shown for each in rounds for shown in each if shown is not None][:most]


def _head(manifest: Manifest, counted: Tally) -> str:
    counts = manifest.accounting
    parts = [("kept", counts.kept), *((str(r), counts.skipped[r]) for r in SkipReason if counts.skipped.get(r))]
    stored = sum(stream.bytes for stream in manifest.streams)
    served = [stream for stream in manifest.streams if stream.kept]
    figures = (
        figure(number(counts.kept), "samples served"),
        figure(
            number(counts.samples - counts.kept), f"left out ({share(counts.samples - counts.kept, counts.samples)})"
        ),
        figure(f"{counted.pixels / 1e6:,.0f} MP", "in the originals"),
        figure(size(stored), "in the shards"),
        figure(number(len(served)), "streams"),
    )
    description = Dataset.model_validate(manifest.settings).description
    return (
        f"<header><p class=over>dataset {escape(manifest.dataset)}</p><h1>{escape(manifest.version)}</h1>"
        + (f"<p class=lead>{escape(description)}</p>" if description else "")
        + f"<p class=digest>content digest <code>{manifest.digest}</code></p></header>"
        + f"<div class=figures>{''.join(figures)}</div>"
        + bar(parts)
        + "".join(f"<p class=warning>{escape(warning)}</p>" for warning in manifest.warnings)
    )


def _changes(manifest: Manifest, parent: Manifest, changes: Diff) -> str:
    before, now = parent.accounting, manifest.accounting
    rows = [
        ("samples served", before.kept, now.kept),
        ("samples in the parts", before.samples, now.samples),
        *(
            (f"left out: {reason}", before.skipped.get(reason, 0), now.skipped.get(reason, 0))
            for reason in SkipReason
            if before.skipped.get(reason) or now.skipped.get(reason)
        ),
        ("streams", len(parent.streams), len(manifest.streams)),
    ]
    notes = [f"new part {name}" for name in changes.new_parts] + [f"without part {name}" for name in changes.gone_parts]
    notes += changes.settings
    moves = [
        (
            f"<b>{what}</b>",
            escape(why),
            number(count),
            escape(", ".join(each.id for each in named if each.why == why and why != SkipReason.OPTOUT)[:300]),
        )
        for what, counts, named in (
            ("gained", changes.gained, changes.gained_samples),
            ("lost", changes.lost, changes.lost_samples),
            ("replaced", changes.replaced, ()),
        )
        for why, count in counts.items()
    ]
    body = [(name, number(a), number(b), f"<b>{b - a:+,d}</b>" if b != a else "·") for name, a, b in rows]
    return (
        f"<section><h2>Since {escape(parent.version)}</h2>"
        + table(("", parent.version, manifest.version, "change"), body)
        + (table(("", "why", "samples", "for instance"), moves, right=(2,)) if moves else "")
        + (f"<p class=note>{escape(', '.join(notes[:20]))}{' …' if len(notes) > 20 else ''}</p>" if notes else "")
        + "</section>"
    )


def _samples(lake: Lake, counted: Tally) -> str:
    shown = [(thumbnail(lake, each), each) for each in choose(counted.kept_shown)]
    cards = "".join(_card(picture, _bucket(each)) for picture, each in shown)
    return (
        f"<section><h2>Samples</h2><p class=note>{len(shown)} of those that are served, some of each stream, as the model "
        f"sees them: cut to their bucket.</p><div class=grid>{cards}</div></section>"
    )


def _bucket(shown: Shown) -> str:
    return "/".join(shown.shard.split("/")[2:4])


def _card(picture: Thumbnail, note: str) -> str:
    return (
        f'<figure><img src="{picture.source}" width="{picture.width}" height="{picture.height}" alt="">'
        f"<figcaption><b>{escape(picture.id)}</b><i>{escape(note)}</i>"
        f"<span>{escape(picture.caption) or '(no caption)'}</span></figcaption></figure>"
    )


def _left_out(lake: Lake, manifest: Manifest, counted: Tally) -> str:
    counts = manifest.accounting
    expected = Dataset.model_validate(manifest.settings).expected
    if counts.samples == counts.kept:
        return "<section><h2>Left out</h2><p class=note>Nothing: every sample of the parts is served.</p></section>"
    body = []
    for reason in SkipReason:
        if not (count := counts.skipped.get(reason, 0)):
            continue
        band = expected.get(reason)
        usual = f"{band.low:g} to {band.high:g} %" if band else ""
        body.append((f"<b>{reason}</b>", escape(reason.meaning), number(count), share(count, counts.samples), usual))
    twins = {shown.twin for each in counted.skipped_shown.values() for shown in each if shown.twin}
    where = locate(lake, [(s.name, part.name) for s in manifest.sources for part in s.parts], twins)
    examples = "".join(
        f"<h3>{reason}</h3><div class=grid>{''.join(_pair(lake, shown, where) for shown in counted.skipped_shown[reason])}</div>"
        for reason in SkipReason
        if counted.skipped_shown.get(reason)
    )
    return (
        "<section><h2>Left out</h2>"
        + table(("reason", "meaning", "samples", "share", "expected"), body, right=(2, 3, 4))
        + f"<details><summary>Examples</summary>{examples}</details></section>"
    )


def _pair(lake: Lake, shown: Shown, where: Mapping[str, Shown]) -> str:
    """A sample that is left out, and beside it the copy that explains why."""
    card = _card(thumbnail(lake, shown), _bucket(shown))
    if shown.twin not in where:
        return card
    twin = where[shown.twin]
    return f"<div class=pair>{card}<span class=arrow>copy of</span>{_card(thumbnail(lake, twin), _bucket(twin))}</div>"


def _buckets(streams: Sequence[StreamEntry]) -> str:
    """Every bucket of the tiers in its own shape, the darker the more samples it serves."""
    most = max((stream.kept for stream in streams), default=0) or 1
    groups = sorted({stream.group for stream in streams})
    rows = []
    for group in groups:
        own = {(stream.tier, stream.ar): stream for stream in streams if stream.group == group}
        for tier in sorted({tier for tier, _ in own}):
            name = f"{group} {tier}" if len(groups) > 1 else str(tier)
            total = sum(stream.kept for stream in own.values() if stream.tier == tier)
            shapes = "".join(_shape(bucket, own.get((tier, bucket.ar)), most) for bucket in buckets_of(tier))
            rows.append(f"<tr><th>{escape(name)}<small>{number(total)}</small></th><td>{shapes}</td></tr>")
    return (
        "<section><h2>Buckets</h2><p class=note>Each tier's thirteen shapes; below a shape its width / height and the samples "
        f"that are served.</p><table class=buckets>{''.join(rows)}</table></section>"
    )


def _shape(bucket: Bucket, stream: StreamEntry | None, most: int) -> str:
    kept = stream.kept if stream else 0
    note = f"{kept} served"
    if stream:
        note += f", {stream.samples - kept} left out, {size(stream.bytes)}"
    scale = 44 / max(bucket.width, bucket.height)
    width, height = bucket.width * scale, bucket.height * scale
    depth = 0.15 + 0.85 * kept / most if kept else 0
    return (
        f'<span class="shape{"" if stream else " none"}" title="{bucket.width} x {bucket.height}: {note}">'
        f'<svg width="48" height="48" aria-hidden="true"><rect x="{24 - width / 2:.1f}" y="{24 - height / 2:.1f}" '
        f'width="{width:.1f}" height="{height:.1f}" rx="2" style="fill-opacity:{depth:.2f}"/></svg>'
        f"<small>{bucket.ar}</small><b>{number(kept) if stream else '·'}</b></span>"
    )


def _sources(manifest: Manifest, counted: Tally) -> str:
    rows = [
        (
            escape(source.name),
            escape(source.group),
            number(len(source.parts)),
            number(source.samples),
            number(source.kept),
            escape(", ".join((*source.captioners, *source.classifiers))),
            escape("; ".join(source.curators)),
        )
        for source in manifest.sources
    ]
    engines = [
        tuple(
            escape(str(engine.get(key) or "")) for key in ("role", "name", "kind", "model", "revision", "description")
        )
        for engine in manifest.engines
    ]
    mixing = ", ".join(f"{name} {weight:g}" for name, weight in manifest.mixing.items())
    return (
        "<section><h2>Where it comes from</h2>"
        + table(
            ("source", "group", "parts", "samples", "served", "engines", "curated by its makers"), rows, right=(2, 3, 4)
        )
        + table(("role", "profile", "kind", "model", "revision", ""), engines, right=())
        + _captions(manifest, counted)
        + f"<p class=note>Mix groups: {escape(mixing)}.</p>"
        + "<div class=columns>"
        + _counts("licence of what is served", manifest.licences, "none stated")
        + _counts("label of every sample", counted.labels, "not labelled")
        + "</div></section>"
    )


def _captions(manifest: Manifest, counted: Tally) -> str:
    """How often each caption column is the caption, and how many of the samples have words in it."""
    weights, kept = manifest.captions, manifest.accounting.kept
    total = sum(weights.values())
    rows = [
        (escape(name), f"{100 * weight / total:.3g} %", number(counted.words[name]), share(counted.words[name], kept))
        for name, weight in weights.items()
    ]
    note = "Where a sample has no words in the column that is drawn, it has those of <code>caption</code>."
    return table(("caption column", "drawn", "samples with words", "of those served"), rows, right=(1, 2, 3)) + (
        f"<p class=note>{note}</p>" if set(weights) != {"caption"} else ""
    )


def _counts(title: str, counts: Mapping[str, int], empty: str) -> str:
    ordered = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    rows = [(escape(name or empty), number(count)) for name, count in ordered[:20]]
    if len(ordered) > 20:
        rows.append((f"{len(ordered) - 20} more", number(sum(count for _, count in ordered[20:]))))
    return table((title, "samples"), rows, right=(1,))


def _upstream(manifest: Manifest) -> str:
    if not manifest.accounting.upstream:
        return ""
    rows = [
        (escape(count.what), number(count.rows_in), number(count.rows_out), escape(_drops(count.dropped.items())))
        for count in manifest.accounting.upstream
    ]
    return (
        "<section><h2>Before the release</h2><details><summary>Rows in = rows out + drops, at every stage</summary>"
        + table(("stage", "in", "out", "dropped"), rows, right=(1, 2))
        + "</details></section>"
    )


def _drops(dropped: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{reason} {count:,d}" for reason, count in sorted(dropped) if count)
