"""The page that shows a person the clusters of a curation, so that they can decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from smalti.curation.record import Cluster
from smalti.errors import SmaltiError
from smalti.lake import Lake
from smalti.page import document, figure, number
from smalti.release.collect import Shown
from smalti.release.pictures import thumbnail

SHOWN = 40
"""Clusters on the page; the record names all."""

MEMBERS = 6
"""Samples that are shown of each."""


def render(
    lake: Lake, dataset: str, limit: int, clusters: Sequence[Cluster], members: Mapping[str, list[Shown]]
) -> str:
    """The page.

    Args:
        limit: of `cluster_limit`.
        members: cluster -> a few of its samples.
    """
    waiting = [each for each in clusters if each.quarantined]
    head = (
        f"<p class=over>{escape(dataset)}</p><h1>Quarantine</h1><p class=lead>Clusters of more than {number(limit)} samples that "
        "look alike. A hash does not decide here: they are left out until a person has. Write <code>merge CLUSTER</code> "
        "(it is one picture: the best is kept) or <code>keep CLUSTER</code> (each is a picture of its own) into a text file that "
        "<code>drops.duplicates.decided</code> names, and release again.</p>"
        '<div class="figures">'
        + figure(number(len(clusters)), "clusters above the limit")
        + figure(number(len(waiting)), "wait for a decision")
        + figure(number(sum(each.quarantined for each in clusters)), "samples set aside")
        + "</div>"
    )
    more = f"<p class=note>The {SHOWN} largest of {number(len(clusters))}.</p>" if len(clusters) > SHOWN else ""
    sections = [_section(lake, each, members.get(each.name, [])) for each in clusters[:SHOWN]]
    return document(f"Quarantine of {dataset}", [head, more, *sections])


def _section(lake: Lake, cluster: Cluster, members: Sequence[Shown]) -> str:
    said = (
        f"decided: {cluster.decided}" if cluster.decided else "set aside" if cluster.quarantined else "within the limit"
    )
    return (
        f"<section><h2><code>{escape(cluster.name)}</code></h2><p class=note>{number(cluster.samples)} samples that nothing else "
        f"leaves out, {number(cluster.quarantined)} of them in quarantine; {said}</p>"
        f"<div class=grid>{''.join(_picture(lake, each) for each in members[:MEMBERS])}</div></section>"
    )


def _picture(lake: Lake, shown: Shown) -> str:
    try:
        small = thumbnail(lake, shown)
    except (SmaltiError, OSError):
        return f"<figure><figcaption><b>{escape(shown.id)}</b><i>its picture cannot be read</i></figcaption></figure>"
    return (
        f'<figure><img src="{small.source}" width="{small.width}" height="{small.height}" alt="">'
        f"<figcaption><b>{escape(shown.id)}</b></figcaption></figure>"
    )
