"""How many samples of each stream an epoch serves, from counts alone.

StreamingDataset builds batches of one stream (per_stream, device_per_stream) or of a fixed share of each (stratified);
what does not fill a batch is not served in that epoch, and a stream that fills none ends the run in a worker, long after
the start, with a number instead of a name. The functions here say beforehand what will happen; tests hold them against
StreamingDataset's own work lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np


@dataclass(frozen=True)
class Epoch:
    """What StreamingDataset builds batches from.

    Attributes:
        method: its `batching_method`.
        choose: samples of each stream that the epoch draws (the kept ones, unless proportions say otherwise).
        proportions: of each stream; they sum to 1.
        nodes, ranks: physical nodes, and ranks on each.
        canonical: its `num_canonical_nodes`.
        batch_size: samples a rank takes at once.
        shuffle_block: its `shuffle_block_size`; None if nothing is shuffled.
    """

    method: str
    choose: Sequence[int]
    proportions: Sequence[float]
    nodes: int
    ranks: int
    canonical: int
    batch_size: int
    shuffle_block: int | None = None

    @property
    def global_batch(self) -> int:
        return self.nodes * self.ranks * self.batch_size

    def batches(self) -> list[int]:
        """Batches that each stream could fill: global ones, for device_per_stream those of all ranks.

        A stream with 0 makes StreamingDataset fail (per_stream, device_per_stream) or serve nothing at all (stratified).
        Source: streaming 0.13.0, base/batching and base/partition/orig.py.
        """
        match self.method:
            case "per_stream":
                filled = [self._slots(n) // self.global_batch for n in self.choose]
            case "device_per_stream":
                filled = [self._slots_per_node(n) // self.batch_size * self.nodes for n in self.choose]
            case "stratified":
                portions = self._portions()
                filled = [
                    self._slots_of_one_node(n) // portion if portion > 0 else 0
                    for n, portion in zip(self.choose, portions, strict=True)
                ]
            case _:  # random: batches do not know streams
                return [1] * len(self.choose)
        return [n if shuffled else 0 for n, shuffled in zip(filled, self._can_be_shuffled(), strict=True)]

    def served(self) -> list[int]:
        """Samples of each stream that are handed out, if each fills a batch.

        May exceed `choose` by the few that are repeated so that every rank gets equally many.
        """
        match self.method:
            case "per_stream":
                return [n * self.global_batch for n in self.batches()]
            case "device_per_stream":
                return [n * self.batch_size for n in self.batches()]
            case "stratified":
                return [min(self.batches()) * portion for portion in self._portions()]
        return list(self.choose)

    def _can_be_shuffled(self) -> list[bool]:
        """Each canonical node needs a sample of the stream, and the stream a share of the shuffle block."""
        if self.shuffle_block is None:
            return [True] * len(self.choose)
        block = self.shuffle_block if self.method == "device_per_stream" else float("inf")
        return [n >= self.canonical and block * p >= 1 for n, p in zip(self.choose, self.proportions, strict=True)]

    def _slots(self, samples: int) -> int:
        """Places in an epoch: canonical nodes get equal runs, each node deals its runs out to its ranks."""
        run = ceil(samples / self.canonical)
        if self.canonical < self.nodes:
            ratio = self.nodes // self.canonical
            run = ceil(run / ratio) * ratio
        return ceil(run * self.canonical // self.nodes / self.ranks) * self.ranks * self.nodes

    def _slots_per_node(self, samples: int) -> int:
        """With as many physical as canonical nodes, which are then put together."""
        run = ceil(samples / self.canonical)
        return ceil(run / self.ranks) * self.ranks * (self.canonical // self.nodes)

    def _slots_of_one_node(self, samples: int) -> int:
        """With one physical node."""
        run = ceil(samples / self.canonical)
        return ceil(run * self.canonical / self.ranks) * self.ranks

    def _portions(self) -> list[int]:
        """Samples of each stream in a stratified batch: rounded down, what is left goes to the largest remainders."""
        shares = self.global_batch * np.array(self.proportions, np.float64)
        portions = np.array([int(p * self.global_batch) for p in self.proportions])
        missing = self.global_batch - int(portions.sum())
        if missing:
            portions[np.flip(np.argsort(shares - portions))[:missing]] += 1
        return [int(each) for each in portions]
