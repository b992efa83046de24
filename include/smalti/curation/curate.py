"""The curate stage: which samples of the parts a release leaves out, each with its reasons.

A sample may have several reasons; it is counted under the first in the order of `SkipReason`. Copies are looked for last, among
the samples that nothing else leaves out, over all sources, tiers and ratios.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from smalti.accounting import Accounted
from smalti.config import Band, Drops
from smalti.curation.dedup import ASPECT_TOLERANCE, Copy, find_duplicates, spread
from smalti.curation.load import load_denylists, load_samples, parts_of
from smalti.curation.record import CuratedPart, Curation, ShardDecisions, write_curation
from smalti.images.fingerprint import Fingerprint
from smalti.lake import Lake
from smalti.reasons import Label, SkipReason
from smalti.settings import ReleaseRun

log = logging.getLogger("smalti")

_PRECEDENCE = {reason: rank for rank, reason in enumerate(SkipReason)}
_LABELS = {Label.NSFW: SkipReason.NSFW, Label.TEXT: SkipReason.TEXT}


class CurateReport(Accounted):
    """Attributes:
    curation: URI of what was decided.
    parts: how many parts were looked at.
    """

    curation: str
    parts: int


@dataclass(frozen=True)
class Decisions:
    """By the sample's place in the table that was decided on.

    Attributes:
        reasons: every reason that a sample is left out for, in their order of precedence.
        duplicate_of, spread_from: id of the copy that is kept, or whose label applies.
    """

    reasons: dict[int, list[SkipReason]]
    duplicate_of: dict[int, str] = field(default_factory=dict)
    spread_from: dict[int, str] = field(default_factory=dict)


def curate(lake: Lake, run: ReleaseRun) -> CurateReport:
    """Decide, and store what was decided. The same parts and settings give the same object.

    Raises:
        InputError: no source has a part, a denylist cannot be read, or a setting makes no sense.
    """
    started = time.monotonic()
    dataset = run.dataset
    reasons = declared_reasons(dataset.drops)
    priorities = {source.name: source.priority for source in run.sources}
    names = [source.name for source in dataset.sources]
    parts, missing = parts_of(lake, names)
    frame = load_samples(lake, parts)
    log.info("curate: %d samples of %d parts", frame.height, len(parts))
    denied, denylists = load_denylists(dataset.drops.denylist, dataset.name)
    decisions = decide(frame, dataset.drops, denied, priorities)
    skipped = Counter(reasons[0] for reasons in decisions.reasons.values())
    warnings = [f"source {name} has no part and is missing from the release" for name in missing]
    warnings += outside_bands(frame.height, skipped, dataset.expected)
    warnings += _unmatched(frame, denied)
    curation = Curation(
        dataset=dataset.name,
        parts=tuple(
            CuratedPart(
                source=part.source,
                name=part.name,
                digest=part.digest,
                samples=part.samples,
                samples_sha256=part.samples_sha256,
            )
            for part in parts
        ),
        settings={
            "drops": dataset.drops.model_dump(mode="json"),
            "priorities": {name: priorities.get(name, 0) for name in names},
            "aspect_tolerance": ASPECT_TOLERANCE,
        },
        denylists=denylists,
        reasons=reasons,
        shards=_by_shard(frame, decisions),
        samples=sum(part.samples for part in parts),
        kept=frame.height - len(decisions.reasons),
        skipped={reason: skipped[reason] for reason in SkipReason if skipped[reason]},
        warnings=tuple(warnings),
    )
    report = CurateReport(
        stage="curate",
        rows_in=curation.samples,
        rows_out=curation.kept,
        dropped={str(reason): count for reason, count in curation.skipped.items()},
        warnings=curation.warnings,
        curation=lake.curation(dataset.name, curation.digest()),
        parts=len(parts),
    )  # before anything is written: what does not balance is never stored
    write_curation(lake, curation)
    return report.model_copy(update={"seconds": time.monotonic() - started})


def decide(frame: Any, drops: Drops, denied: frozenset[str], priorities: Mapping[str, int]) -> Decisions:
    """Every reason of every sample that is left out.

    Args:
        frame: polars, columns of samples.parquet and `order` (a later part of a source has a larger one).
        denied: sample ids.
        priorities: source -> priority among copies of one resolution.
    """
    import polars as pl

    reasons: dict[int, set[SkipReason]] = {}

    def leave_out(rows: Sequence[int], reason: SkipReason) -> None:
        for row in rows:
            reasons.setdefault(row, set()).add(reason)

    frame = mark_current(frame.with_row_index("row"), drops)
    rules = {
        SkipReason.SUPERSEDED: ~pl.col("current") & (pl.col("accepted") | ~pl.col("newest")),
        SkipReason.DENYLIST: pl.col("id").is_in(sorted(denied)),
        SkipReason.CAPTION_FAILED: ~pl.col("caption_ok"),
        SkipReason.LABEL_FAILED: pl.col("caption_ok") & pl.col("label").is_null(),
        SkipReason.RESOLUTION: pl.col("tier") < drops.min_tier,
    }
    if drops.licences is not None:
        rules[SkipReason.LICENCE] = ~pl.col("licence").is_in(list(drops.licences)).fill_null(False)
    if drops.captioners is not None:
        rules[SkipReason.CAPTIONER] = ~pl.col("accepted")
    for label in drops.labels:
        rules[_LABELS[label]] = (pl.col("label") == str(label)).fill_null(False)
    marked = frame.with_columns(**{str(reason): rule for reason, rule in rules.items()})
    for reason in rules:
        leave_out(marked.filter(pl.col(str(reason)))["row"].to_list(), reason)

    live = marked.filter(pl.col("current"))
    rows = dict(zip(live["id"].to_list(), live["row"].to_list(), strict=True))
    spread_from: dict[int, str] = {}
    if Label.NSFW in drops.labels:
        labelled = live.filter(pl.col(str(SkipReason.NSFW)))["id"].to_list()
        reached = spread(_suspects(live, priorities), labelled) if labelled else {}
        spread_from = {rows[sample]: origin for sample, origin in reached.items() if sample != origin}
        leave_out(list(spread_from), SkipReason.NSFW)

    rest = live.filter(~pl.col("row").is_in(list(reasons)))
    duplicate_of = {rows[a]: b for a, b in find_duplicates(_suspects(rest, priorities)).items()}
    leave_out(list(duplicate_of), SkipReason.DUPLICATE)
    ordered = {row: sorted(found, key=_PRECEDENCE.__getitem__) for row, found in reasons.items()}
    return Decisions(ordered, duplicate_of, spread_from)


def mark_current(frame: Any, drops: Drops) -> Any:
    """Which sample of an id may be served: of the newest picture, by a captioner that is accepted, in the newest part.

    So a picture that two captioners described, each in a part of its own, is served with the words of the one that the dataset
    names; and a picture that the source has replaced is not, whoever described it.

    Adds `accepted` (the captioner is), `newest` (the picture is), `current` (one sample an id).
    """
    import polars as pl

    named = pl.lit(True) if drops.captioners is None else pl.col("captioner").is_in(list(drops.captioners))
    frame = frame.with_columns(
        accepted=named, newest=pl.col("sha256") == pl.col("sha256").sort_by("order").last().over("id")
    )
    better = pl.col("newest").cast(pl.Int64) + (pl.col("newest") & pl.col("accepted")).cast(pl.Int64)
    rank = better * (pl.col("order").max() + 1) + pl.col("order")
    return frame.with_columns(rank=rank).with_columns(current=pl.col("rank") == pl.col("rank").max().over("id"))


def declared_reasons(drops: Drops) -> tuple[SkipReason, ...]:
    """What these settings can skip for, in the order of precedence."""
    always = {
        SkipReason.OPTOUT,
        SkipReason.SUPERSEDED,
        SkipReason.DENYLIST,
        SkipReason.CAPTION_FAILED,
        SkipReason.LABEL_FAILED,
        SkipReason.DUPLICATE,
    }
    chosen = {_LABELS[label] for label in drops.labels}
    if drops.licences is not None:
        chosen.add(SkipReason.LICENCE)
    if drops.captioners is not None:
        chosen.add(SkipReason.CAPTIONER)
    if drops.min_tier > 512:
        chosen.add(SkipReason.RESOLUTION)
    return tuple(reason for reason in SkipReason if reason in always | chosen)


def _unmatched(frame: Any, denied: frozenset[str]) -> list[str]:
    """One line if a denylist names what no part has: most often a slip of the pen, and then the picture is served."""
    unknown = sorted(denied - set(frame.filter(frame["id"].is_in(list(denied)))["id"]))
    if not unknown:
        return []
    return [f"denylist: {len(unknown)} ids are of no sample in these parts, the first is {unknown[0]!r}"]


def outside_bands(samples: int, skipped: Mapping[SkipReason, int], expected: Mapping[SkipReason, Band]) -> list[str]:
    """One line for each reason whose share of the samples is outside what the dataset file expects."""
    warnings = []
    for reason, band in sorted(expected.items()):
        count = skipped.get(reason, 0)
        share = 100 * count / samples if samples else 0.0
        if not band.low <= share <= band.high:
            warnings.append(
                f"{reason}: {count} of {samples} samples are {share:.1f} %, expected {band.low:g} to {band.high:g} %"
            )
    return warnings


def _suspects(frame: Any, priorities: Mapping[str, int]) -> list[Copy]:
    """The samples that share their bytes or the hash of their picture with another one."""
    import polars as pl

    hashed = (pl.col("phash").count().over("phash") > 1) & ~pl.col("flat")
    twice = pl.col("sha256").count().over("sha256") > 1
    columns = ("id", "source", "sha256", "width", "height", "phash", "colour", "flat", "unstable")
    return [
        Copy(
            id=row["id"],
            sha256=row["sha256"],
            fingerprint=None
            if row["phash"] is None
            else Fingerprint(row["phash"], row["colour"], row["flat"], row["unstable"]),
            width=row["width"],
            height=row["height"],
            priority=priorities.get(row["source"], 0),
        )
        for row in frame.filter(twice | hashed.fill_null(False)).select(columns).iter_rows(named=True)
    ]


def _by_shard(frame: Any, decisions: Decisions) -> dict[str, ShardDecisions]:
    """The decisions as the record keeps them."""
    import polars as pl

    sizes = dict(frame.group_by("shard").agg(pl.len()).iter_rows())
    shards, indices = frame["shard"].to_list(), frame["index"].to_list()
    skip: dict[str, dict[SkipReason, list[int]]] = {}
    for row, reasons in decisions.reasons.items():
        for reason in reasons:
            skip.setdefault(shards[row], {}).setdefault(reason, []).append(indices[row])
    twins: dict[str, dict[str, str]] = {}
    origins: dict[str, dict[str, str]] = {}
    for said, into in ((decisions.duplicate_of, twins), (decisions.spread_from, origins)):
        for row, other in said.items():
            into.setdefault(shards[row], {})[str(indices[row])] = other
    return {
        name: ShardDecisions(
            samples=sizes[name],
            skip={reason: tuple(sorted(found)) for reason, found in reasons.items()},
            duplicate_of=twins.get(name, {}),
            spread_from=origins.get(name, {}),
        )
        for name, reasons in skip.items()
    }
