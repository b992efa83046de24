"""`python -m benchmarks.dedup_quality`: the tables of docs/explanation/duplicates.md, from the packages to the last figure.

About half an hour on two cores, 0.8 GB of downloads the first time. With imagehash installed its figures stand beside ours.
"""

from __future__ import annotations

import argparse
import collections
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.dedup_quality import measure
from benchmarks.dedup_quality.copies import COPIES
from benchmarks.dedup_quality.measure import Outcome, Share
from benchmarks.dedup_quality.photographs import DEBIAN, Unavailable, all_photos, fetch
from benchmarks.dedup_quality.pool import HAS_IMAGEHASH, ORIGINAL, Item, whole_set
from smalti.images.fingerprint import RECOMMENDED_DISTANCE

OUT = Path(".cache/dedup_quality.md")
DISTANCES = (0, 2, 4)


def main() -> int:
    """Fetch, fingerprint, judge, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dedup_quality", description=__doc__)
    parser.add_argument("--workers", type=int, default=2, help="processes")
    workers = parser.parse_args().workers
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {text}", file=sys.stderr, flush=True)

    try:
        fetch()
        items = whole_set(all_photos(), workers, say)
    except Unavailable as error:
        print(f"The labelled set cannot be made here: {error}", file=sys.stderr)
        return 1
    text = report(items)
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(text)
    print(text)
    if not HAS_IMAGEHASH:
        print("imagehash is not installed (pip install imagehash): its columns are empty.", file=sys.stderr)
    return 0


def report(items: Sequence[Item]) -> str:
    """The tables, in Markdown."""
    parts = [_what(items), _flat(items)]
    for name, half in measure.halves(items):
        rules = _rules(half)
        kept = _rules([each for each in half if each.kept or each.kind not in (ORIGINAL, *COPIES)])
        parts += [f"### {name}", _merged(rules, kept), _recall(rules, kept)]
        if name == "both":
            parts += [_others(half, rules), _false(rules["smalti"][RECOMMENDED_DISTANCE])]
    return "\n\n".join(parts) + "\n"


def _rules(items: Sequence[Item]) -> dict[str, dict[int, Outcome]]:
    """Rule -> distance -> what it did."""

    def judge(hashes: Sequence[int], guards: measure.Rule) -> dict[int, Outcome]:
        return dict(zip(DISTANCES, measure.judge(items, hashes, guards, DISTANCES), strict=True))

    rules = {"smalti": judge([each.print.phash for each in items], measure.our_guards)}
    if HAS_IMAGEHASH:
        theirs = [each.theirs for each in items]
        rules["imagehash"] = judge(theirs, measure.no_guards)
        rules["imagehash and our guards"] = judge(theirs, measure.our_guards)
    return rules


def _what(items: Sequence[Item]) -> str:
    photos = [each for each in items if each.kind == ORIGINAL]
    copies = [each for each in items if each.kind in COPIES]
    held = sum(each.reporting for each in photos)
    groups = collections.Counter(measure.group_of(each) for each in items)
    return (
        f"{len(photos)} photographs ({len(photos) - held} tuned on, {held} held out), {sum(each.kept for each in photos)} of "
        f"them large enough for a tier; {len(copies)} copies, {sum(each.kept for each in copies)} large enough. Pictures made "
        f"from photographs, cut-out objects and drawings: {groups['photo']}, {groups['stamp']}, {groups['drawn']}; together "
        f"{len(items) * (len(items) - 1) // 2:,} pairs. Debian packages: {', '.join(DEBIAN)}."
    )


def _flat(items: Sequence[Item]) -> str:
    made = [each for each in items if each.kind not in COPIES]
    flat = collections.Counter(each.kind for each in made if each.print.flat)
    every = collections.Counter(each.kind for each in made)
    return _table(["kind", "pictures", "flat"], [[kind, every[kind], flat[kind]] for kind in sorted(flat)])


def _merged(rules: dict[str, dict[int, Outcome]], kept: dict[str, dict[int, Outcome]]) -> str:
    lines = []
    for name, outcomes in rules.items():
        for distance, each in outcomes.items():
            large = kept[name][distance]
            low, high = large.by_photo
            recall = f"{large.all_copies.value:.4f} ({low:.4f} to {high:.4f})"
            false = each.precision.of - each.precision.hits
            lines.append([
                name,
                distance,
                recall,
                each.precision.of,
                false,
                _share(each.precision),
                _share(each.strictly),
            ])
    head = ["rule", "distance", "recall", "pairs merged", "false", "precision, all pairs", "precision, each copy once"]
    return _table(head, lines)


def _recall(rules: dict[str, dict[int, Outcome]], kept: dict[str, dict[int, Outcome]]) -> str:
    columns = [(name, distance) for name in list(rules)[:2] for distance in (0, RECOMMENDED_DISTANCE)]
    lines = []
    for kind in COPIES:
        large = [kept[name][distance].recall.get(kind, Share(0, 0)) for name, distance in columns]
        every = [rules["smalti"][distance].recall[kind] for distance in (0, RECOMMENDED_DISTANCE)]
        lines.append([
            kind,
            large[0].of,
            *(_share(each, 3) for each in large),
            every[0].of,
            *(f"{each.value:.3f}" for each in every),
        ])
    names = [f"{name}, {distance}" for name, distance in columns]
    return _table(["copy", "pairs", *names, "of any size", *(f"smalti, {d}" for d in (0, RECOMMENDED_DISTANCE))], lines)


def _others(items: Sequence[Item], rules: dict[str, dict[int, Outcome]]) -> str:
    counts = measure.pair_counts(items)
    columns = [(name, distance) for name in list(rules)[:2] for distance in (0, RECOMMENDED_DISTANCE)]
    merged = [measure.false_kinds(rules[name][distance]) for name, distance in columns]
    lines = []
    for kind in sorted(counts):
        most = Share(merged[1].get(kind, 0), counts[kind]).interval()[1]
        lines.append([kind, counts[kind], *(each.get(kind, 0) for each in merged), f"{most:.2g}"])
    names = [f"{name}, {distance}" for name, distance in columns]
    return _table(["no copies", "pairs", *names, f"smalti's rate at {RECOMMENDED_DISTANCE}, at most"], lines)


def _false(ours: Outcome) -> str:
    seen = sorted({(one.picture, other.picture) for one, other in ours.false})
    return "\n".join([
        f"Merged at {RECOMMENDED_DISTANCE}, and no copies: {len(seen)} pairs",
        *(f"- {a} | {b}" for a, b in seen),
    ])


def _share(share: Share, digits: int = 5) -> str:
    low, high = share.interval()
    return f"{share.value:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def _table(head: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(str(cell) for cell in row) + " |" for row in rows)


if __name__ == "__main__":
    sys.exit(main())
