"""What a resumed run is served in place of samples that were opted out after its checkpoint.

The checkpoint's position means something only in the checkpoint's own order: were the samples taken out, each rank would go on
at another place, and batches would change their size. So the order stays, and each sample that may no longer be served
is exchanged for one that may be: the next of its shard, cyclically; if nothing of the shard is left, one of the next shard of
its stream. So shapes, ranks and the position stay in step, and the choice follows from the checkpoint and the opt-outs alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]


class Places(Protocol):
    """StreamingDataset's Spanner: sample number -> (shard, number in the shard)."""

    def __getitem__(self, index: int) -> tuple[int, int]: ...


class Exchanger:
    """A Spanner that knows of substitutes.

    Args:
        places: the Spanner.
        gone: samples that may no longer be served, ascending.
        instead: what is served in place of each.
    """

    def __init__(self, places: Places, gone: Numbers, instead: Numbers) -> None:
        self._places = places
        self._gone = gone
        self._instead = instead

    def __getitem__(self, index: int) -> tuple[int, int]:
        at = bisect_left(self._gone, index)
        if at < len(self._gone) and self._gone[at] == index:
            index = int(self._instead[at])
        return self._places[index]


def substitutes(kept: Numbers, gone: Mapping[int, Numbers]) -> tuple[Numbers, Numbers] | None:
    """What to serve instead, for one stream.

    Args:
        kept: samples that the checkpoint's order has of each shard; shape (shards,).
        gone: shard -> numbers among its kept samples that were opted out since, ascending.
    Returns:
        (gone, instead): numbers in the stream, the first ascending. None if nothing of the stream is left.
    """
    starts = np.cumsum(kept) - kept
    left = kept.copy()
    for shard, numbers in gone.items():
        left[shard] -= len(numbers)
    if not left.any():
        return None
    found, instead = [np.array((), np.int64)], [np.array((), np.int64)]
    for shard in sorted(gone):
        numbers = gone[shard]
        if left[shard]:
            there = _left(kept[shard], numbers)
            chosen = starts[shard] + there[np.searchsorted(there, numbers) % len(there)]
        else:
            other = _next(left, shard)
            there = _left(kept[other], gone.get(other, numbers[:0]))
            chosen = starts[other] + there[numbers % len(there)]  # not all of them the same
        found.append(starts[shard] + numbers)
        instead.append(chosen)
    return np.concatenate(found), np.concatenate(instead)


def _left(kept: int, gone: Numbers) -> Numbers:
    """Numbers of a shard's samples that may be served."""
    there = np.ones(kept, bool)
    there[gone] = False
    return np.flatnonzero(there)


def _next(left: Numbers, shard: int) -> int:
    """The first shard after this one, cyclically, of which anything is left."""
    some = np.flatnonzero(left)
    return int(some[np.searchsorted(some, shard) % len(some)])
