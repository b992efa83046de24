"""What verify recomputes of skip files: which samples each reason set serves, and whether one of them must not be.

The rules that a row of samples.parquet can break by itself are applied once more (curation.scan has them as columns); what depends on
other samples (copies, later deliveries, what their owners said of copies) is the curation's, see `check_record`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from smalti.config import Drops
from smalti.reasons import ALWAYS_SKIPPED, LABELS, SkipReason, set_name
from smalti.release.checks import Expected
from smalti.release.manifest import Manifest
from smalti.release.optouts import OptoutSnapshot
from smalti.release.skips import ShardSkips


@dataclass
class SetCheck:
    """The reason sets of one release. Shards are handed in one by one; what depends on all of them is asked at the end.

    Attributes:
        more: reason set -> ids that it serves and the release without it does not.
        fewer: the other way round.
    """

    manifest: Manifest
    optouts: OptoutSnapshot
    more: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    fewer: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def shard_faults(self, name: str, tier: int, rows: Sequence[Expected], skips: ShardSkips | None) -> Iterator[str]:
        """Samples of a shard that are served and must not be, nothing lifted and for each set."""
        out = skips.left_out() if skips else set()
        yield from self._served(name, tier, rows, set(range(len(rows))) - out, ())
        if skips is None:
            return
        strange = {str(reason) for reason in skips.skip} - set(self.manifest.reasons)
        strange |= set(skips.decided) - {set_name(lifted) for lifted in self._sets}
        if strange:
            yield f"{name}: the skip file knows {', '.join(sorted(strange))}, the manifest does not"
        for lifted in self._sets:
            now, key = skips.left_out(lifted), set_name(lifted)
            yield from self._served(name, tier, rows, out - now, lifted)
            self.more[key].update(rows[index].id for index in out - now if index < len(rows))
            self.fewer[key].update(rows[index].id for index in now - out if index < len(rows))

    def faults(self, kept: Counter[str]) -> Iterator[str]:
        """Sets that may not be lifted, and ids that a set serves more than once. kept: ids, with nothing lifted."""
        for lifted in self._sets:
            name = set_name(lifted)
            never = ALWAYS_SKIPPED & set(lifted)
            if never:
                yield f"reason set {name}: it lifts {', '.join(sorted(never))}, which is never served"
            for each, count in sorted(self.more[name].items()):
                count += kept[each] - self.fewer[name][each]
                if count > 1:
                    yield f"{each}: served {count} times if {name} is lifted"

    @property
    def _sets(self) -> tuple[tuple[SkipReason, ...], ...]:
        return tuple(lifted for lifted in self.manifest.reason_sets if lifted)

    def _served(
        self,
        name: str,
        tier: int,
        rows: Sequence[Expected],
        indices: Collection[int],
        lifted: Collection[SkipReason],
    ) -> Iterator[str]:
        gone = set(self.optouts.shards.get(name, ()))
        if_lifted = f" if {set_name(lifted)} is lifted" if lifted else ""
        for index in sorted(indices):
            if index >= len(rows):
                continue  # its count is a fault already
            row = rows[index]
            if index in gone or row.id in self._opted_out:
                position = self.manifest.optouts
                yield f"{name}: sample {index} ({row.id}) is opted out at position {position}, and kept{if_lifted}"
            why = [reason for reason in self._reasons(row, tier) if reason not in lifted]
            if why:
                yield f"{name}: sample {index} ({row.id}) is served{if_lifted}, though it is {', '.join(why)}"

    def _reasons(self, row: Expected, tier: int) -> Iterator[SkipReason]:
        """What the release skips for and the row itself says."""
        drops = self._drops
        rules = (
            (SkipReason.CAPTION_FAILED, not row.caption_ok),
            (SkipReason.LABEL_FAILED, row.caption_ok and row.label is None),
            (SkipReason.RESOLUTION, tier < drops.min_tier),
            (SkipReason.LICENCE, drops.licences is not None and row.licence not in drops.licences),
            (SkipReason.CAPTIONER, drops.captioners is not None and row.captioner not in drops.captioners),
            (SkipReason.CLASSIFIER, drops.classifiers is not None and row.classifier not in drops.classifiers),
            *((LABELS[label], row.label == label) for label in drops.labels),
        )
        return (reason for reason, broken in rules if broken and reason in self.manifest.reasons)

    @cached_property
    def _drops(self) -> Drops:
        return Drops.model_validate(self.manifest.settings["drops"])

    @cached_property
    def _opted_out(self) -> frozenset[str]:
        return frozenset(self.optouts.ids)
