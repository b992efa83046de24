"""Where samples are after erasures: the part and shard that hold now what a shard once held.

An erasure writes a part anew without some samples, under another name, with shards of the same numbers. Whoever goes on with the
names of before (a training run that resumes) asks here for those of now. Imports stay light: the loader reads this.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from smalti.lake import Lake
from smalti.shards.replacements import Step, read_log


@dataclass(frozen=True)
class Moved:
    """What became of a shard.

    Attributes:
        shard: basename relative to parts/ of the one that holds what is left; None: nothing is.
        erased: indices in the shard that was asked for, ascending. The others are in `shard`, in their order.
    """

    shard: str | None
    erased: tuple[int, ...]


@dataclass(frozen=True)
class Erasures:
    """Every erasure of some sources: "<source>/<part>" of before -> the step."""

    steps: Mapping[str, Step]

    @classmethod
    def read(cls, lake: Lake, sources: Iterable[str]) -> Erasures:
        """As the logs of these sources are now.

        Raises:
            CorruptError: a step is damaged or missing.
        """
        logs = {source: read_log(lake, source) for source in sorted(set(sources))}
        return cls({f"{source}/{name}": step for source, log in logs.items() for name, step in log.erased.items()})

    def part(self, key: str) -> str:
        """The part ("<source>/<name>") that holds what is left of this one after all erasures; "": nothing is left of it."""
        source = key.partition("/")[0]
        while (step := self.steps.get(key)) is not None:
            if step.by is None:
                return ""
            key = f"{source}/{step.by}"
        return key

    def place(self, shard: str) -> Moved:
        """What became of a shard. `shard` is relative to parts/: <source>/<part>/<tier>/<ar>/<file>."""
        source, name, rest = shard.split("/", 2)
        lost: list[int] = []
        while (step := self.steps.get(f"{source}/{name}")) is not None:
            now = f"{source}/{name}/{rest}"
            lost = sorted([*lost, *before(lost, step.erased.get(now, ()))])
            if step.by is None or now in step.gone:
                return Moved(None, tuple(lost))
            name = step.by
        return Moved(f"{source}/{name}/{rest}", tuple(lost))


def before(lost: Sequence[int], indices: Iterable[int]) -> list[int]:
    """Indices in a shard -> those in the shard of before, which lacks `lost` since. Both ascend."""
    found, at = [], 0
    for index in indices:
        while at < len(lost) and lost[at] <= index + at:
            at += 1
        found.append(index + at)
    return found
