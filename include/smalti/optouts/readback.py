"""What the training loader serves of the shards in which something is opted out: of small streams everything, of others those shards.

The loader itself is asked, as a run that starts would be: shards lie where they lie, pictures are decoded, and what is compared
is the id that came out with them.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from smalti import objects
from smalti.errors import CorruptError, SmaltiError

EPOCH = 10_000
"""Samples that are read back whole, as an epoch of the loader: about half a minute of decoding."""

SHARDS = 16
"""Of more samples only shards that are concerned are read, so many of each tier of a group of a release, spread evenly."""


@dataclass(frozen=True)
class Reading:
    """What is to be read back: one tier of a mix group of a release.

    Attributes:
        optouts: position by which the loader leaves out; the newest is what a run that starts takes.
        kept: samples that are served of it.
        shards: basenames of the shards that are concerned, of which anything is served.
    """

    manifest: str
    group: str
    tier: int
    optouts: int
    kept: int
    shards: tuple[str, ...]

    @property
    def is_whole(self) -> bool:
        return self.kept <= EPOCH

    @property
    def chosen(self) -> tuple[str, ...]:
        """The shards of `shards` that are read."""
        if self.is_whole or len(self.shards) <= SHARDS:
            return self.shards
        return tuple(self.shards[len(self.shards) * n // SHARDS] for n in range(SHARDS))


def read_ids(reading: Reading) -> Iterator[str]:
    """Ids that the loader serves. Imports streaming (seconds).

    Raises:
        CorruptError: it cannot read the release.
    """
    from smalti.loader import ReleaseDataset

    with contextlib.ExitStack() as stack:
        local = None
        if objects.local_path(reading.manifest) is None:
            local = stack.enter_context(tempfile.TemporaryDirectory(prefix="smalti-prove-"))
        try:
            dataset = ReleaseDataset(
                reading.manifest,
                local=local,
                groups=(reading.group,),
                tiers=(reading.tier,),
                optouts=reading.optouts,
                max_optout_age=None,
                batch_size=1,
                num_canonical_nodes=1,
                cache_limit="8gb" if local else None,
            )
            numbers = None if reading.is_whole else _numbers(dataset.shards, reading.chosen)
            for sample in dataset if numbers is None else (dataset[number] for number in numbers):
                yield str(sample["id"])
        except SmaltiError:
            raise
        except (RuntimeError, OSError, ValueError) as error:  # what streaming raises
            raise CorruptError(
                f"the loader cannot read it ({error})", reading.manifest, "Restore what is damaged"
            ) from error


def _numbers(readers: Sequence[object], basenames: Sequence[str]) -> Iterator[int]:
    """Numbers, in the dataset, of all samples that these shards serve."""
    start, wanted = 0, set(basenames)
    for reader in readers:
        count = int(reader.samples)  # type: ignore[attr-defined]  # streaming is untyped
        if reader.raw_data.basename in wanted:  # type: ignore[attr-defined]
            yield from range(start, start + count)
        start += count
