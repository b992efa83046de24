"""The curate stage: which samples of the parts a release leaves out, each with its reasons.

A sample may have several reasons; it is counted under the first in the order of `SkipReason`. Copies are looked for last, among
the samples that nothing else leaves out, over all sources, tiers and ratios; and anew for each set of reasons that a training
run may lift.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping, Sequence

import numpy as np

from smalti import objects
from smalti.accounting import Accounted
from smalti.config import Band, Dataset, Drops, load_source
from smalti.curation import quarantine
from smalti.curation.copies import ASPECT_TOLERANCE
from smalti.curation.decide import Decisions, decide
from smalti.curation.inputs import ablated, priorities_of, read_inputs, settle_inputs
from smalti.curation.load import load_decided, load_denylists
from smalti.curation.readers import PartReader
from smalti.curation.record import CuratedPart, Curation, rows_digest, write_curation
from smalti.curation.recorded import recorded
from smalti.curation.rows import clusters_of, first_reasons, kept_without, members_of, places_of, rows_of
from smalti.errors import InputError, SmaltiError
from smalti.lake import Lake
from smalti.reasons import ALWAYS_SKIPPED, LABELS, SkipReason
from smalti.release.collect import Shown
from smalti.release.optouts import read_snapshot
from smalti.settings import ReleaseRun
from smalti.shards.part import Part

log = logging.getLogger("smalti")


class CurateReport(Accounted):
    """Attributes:
    curation: URI of what was decided.
    parts: how many parts were looked at.
    quarantine: URI of the page with the clusters that are too large; empty if there is none.
    """

    curation: str
    parts: int
    quarantine: str = ""


def curate(lake: Lake, run: ReleaseRun) -> CurateReport:
    """Decide, and store what was decided. The same parts, lists, opt-outs and settings give the same objects.

    Raises:
        InputError: no source has a part, a list cannot be read, or a setting makes no sense.
    """
    started = time.monotonic()
    inputs = settle_inputs(lake, run)
    before = recorded(lake, lake.manifest(run.dataset.name, inputs.succeeds)) if inputs.succeeds else None
    dataset = run.dataset if inputs.base is None else ablated(lake, run.dataset.name, inputs.base)
    declared = declared_reasons(dataset.drops)
    check_sets(dataset, declared, run.without)
    names = [source.name for source in dataset.sources]
    priorities = {source.name: source.priority for source in run.sources}
    if inputs.base:
        priorities = priorities_of(lake, dataset.name, inputs.base) or priorities
    if before:
        priorities = before.priorities
    elif inputs.succeeds and not run.sources:
        priorities = _priorities_now(names)
    parts = read_inputs(lake, inputs)
    reader = PartReader(lake, tuple(parts))
    if before:
        denied, denylists = before.denied(), before.curation.denylists
        people, decision_files = before.decided, before.curation.decisions
    else:
        denied, denylists = load_denylists(dataset.drops.denylist, dataset.name)
        people, decision_files = load_decided(dataset.drops.duplicates.decided, dataset.name)
    optouts = read_snapshot(lake, inputs.optouts)
    opted_out = frozenset(optouts.ids)
    opted_out |= before.copies_of(opted_out) if before else frozenset()
    log.info("curate: %d samples of %d parts", sum(reader.sizes), len(parts))

    def decide_with(people: Mapping[str, str]) -> Decisions:
        return decide(
            reader,
            dataset.drops,
            denied=denied,
            priorities=priorities,
            optouts=optouts.shards,
            opted_out=opted_out,
            reason_sets=dataset.reason_sets,
            lifted=run.without,
            decided=people,
        )

    decisions = decide_with(people)
    copies = decisions.copies
    if before and (renamed := before.renamed(copies.names, copies.id, copies.cluster)):
        people |= renamed
        decisions = decide_with(people)
    skipped = first_reasons(decisions.reasons)
    samples = sum(part.samples for part in parts)
    warnings = [f"source {name} has no part and is missing from the release" for name in inputs.missing]
    warnings += outside_bands(samples, skipped, dataset.expected)
    if inputs.succeeds and before is None:
        warnings.append(
            f"what was decided for {inputs.succeeds} cannot be read any more: this successor of it is decided by the lists, decisions "
            "and priorities of today"
        )
        log.warning("curate: %s: %s", dataset.name, warnings[-1])
    if before:
        warnings += before.notes()  # what was erased since is named nowhere
    else:
        warnings += _unmatched(denied - decisions.denied) + _unknown(sorted(set(people) - {*decisions.copies.names}))
    applied = tuple(each for each in declared if each not in run.without or each == SkipReason.DUPLICATE)
    rows = rows_of(reader, decisions, applied)  # an id in two parts is a duplicate of itself, whatever is lifted
    curation = Curation(
        dataset=dataset.name,
        parts=tuple(_curated(part) for part in parts),
        settings={
            "drops": dataset.drops.model_dump(mode="json"),
            "priorities": {name: priorities.get(name, 0) for name in names},
            "aspect_tolerance": ASPECT_TOLERANCE,
        },
        denylists=denylists,
        decisions=decision_files,
        optouts=inputs.optouts,
        reasons=applied,
        reason_sets=dataset.reason_sets,
        without=run.without,
        base=inputs.base,
        clusters=clusters_of(decisions, people),
        rows=rows.num_rows,
        rows_sha256=rows_digest(rows),
        samples=samples,
        kept=int(np.count_nonzero(decisions.reasons == 0)),
        skipped=skipped,
        kept_without=kept_without(decisions),
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
        quarantine=lake.quarantine_page(dataset.name, curation.digest()) if curation.clusters else "",
    )  # before anything is written: what does not balance is never stored
    if report.quarantine:
        objects.create_bytes(report.quarantine, _page(lake, reader, curation, decisions).encode())
    write_curation(lake, curation, rows)
    return report.model_copy(update={"seconds": time.monotonic() - started})


def _priorities_now(names: Sequence[str]) -> dict[str, int]:
    """As the sources' files say, where there are any; a source without has 0."""
    found = {}
    for name in names:
        with contextlib.suppress(SmaltiError):
            found[name] = load_source(name).priority
    return found


def declared_reasons(drops: Drops) -> tuple[SkipReason, ...]:
    """What these settings can skip for, in the order of precedence."""
    always = {
        SkipReason.OPTOUT,
        SkipReason.SUPERSEDED,
        SkipReason.DENYLIST,
        SkipReason.CAPTION_FAILED,
        SkipReason.LABEL_FAILED,
        SkipReason.DUPLICATE,
        SkipReason.QUARANTINE,
    }
    chosen = {LABELS[label] for label in drops.labels}
    if drops.licences is not None:
        chosen.add(SkipReason.LICENCE)
    if drops.captioners is not None:
        chosen.add(SkipReason.CAPTIONER)
    if drops.classifiers is not None:
        chosen.add(SkipReason.CLASSIFIER)
    if drops.min_tier > 512:
        chosen.add(SkipReason.RESOLUTION)
    return tuple(reason for reason in SkipReason if reason in always | chosen)


def check_sets(dataset: Dataset, declared: Sequence[SkipReason], without: Sequence[SkipReason] = ()) -> None:
    """Raises InputError for a reason set, or an ablation, that could lift nothing."""
    if odd := sorted(set(without) - set(declared)):
        raise InputError(
            f"an ablation without {', '.join(odd)}, which the dataset never skips for, changes nothing",
            f"dataset {dataset.name}",
            f"Use some of: {', '.join(each for each in declared if each not in ALWAYS_SKIPPED)}",
        )
    for each in dataset.reason_sets:
        odd = sorted(set(each) - set(declared))
        if odd:
            raise InputError(
                f"reason_sets lifts {', '.join(odd)}, which the dataset never skips for",
                f"dataset {dataset.name}",
                f"Use some of: {', '.join(declared)}",
            )
    if len(dataset.reason_sets) > 32:
        raise InputError(f"{len(dataset.reason_sets)} reason sets", f"dataset {dataset.name}", "Declare at most 32")


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


def _curated(part: Part) -> CuratedPart:
    return CuratedPart(**part.model_dump(include=set(CuratedPart.model_fields)))


def _unmatched(unknown: frozenset[str]) -> list[str]:
    """One line if a denylist names what no part has: most often a slip of the pen, and then the picture is served."""
    if not unknown:
        return []
    return [f"denylist: {len(unknown)} ids are of no sample in these parts, the first is {min(unknown)!r}"]


def _unknown(clusters: Sequence[str]) -> list[str]:
    """One line if a decision is about a cluster that is not there any more, or is not too large."""
    if not clusters:
        return []
    return [f"decided: {len(clusters)} clusters are not among those above the limit, the first is {clusters[0]!r}"]


def _page(lake: Lake, reader: PartReader, curation: Curation, decisions: Decisions) -> str:
    members = {}
    for cluster in curation.clusters[: quarantine.SHOWN]:
        rows = members_of(decisions, cluster.name, quarantine.MEMBERS)
        members[cluster.name] = [Shown("", *each) for each in places_of(reader, rows)]
    limit = curation.settings["drops"]["duplicates"]["cluster_limit"]
    return quarantine.render(lake, curation.dataset, limit, curation.clusters, members)
