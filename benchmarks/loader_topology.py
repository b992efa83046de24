"""What StreamingDataset repeats and misses when a run resumes in the middle of an epoch, on the same or another topology.

    python -m benchmarks.loader_topology

An unmodified StreamingDataset over a tree of 4,000 samples in 4 streams of unequal size, from its own work lists: 8 ranks on one
node up to the interruption, then either the same or 2 nodes of 4. ReleaseDataset has the same lists by construction (tests/loader).
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from smalti.lake import Lake
from smalti.release.materialize import materialize
from tests.loader.releases import build, kept
from tests.loader.serving import METHODS, apart, plain

SHARDS = {
    "s": {
        "00001-x": {
            (512, "1.000"): (250,) * 6,
            (512, "0.778"): (250,) * 5,
            (1024, "1.000"): (250,) * 3,
            (1024, "1.286"): (250,) * 2,
        }
    }
}
BATCH = 4


def order(dataset: Any, nodes: int, ranks: int, sample: int) -> list[int]:
    """Sample numbers in the order of the run, global batch after global batch; gaps left out."""
    from streaming.base.batching import generate_work
    from streaming.base.world import World

    work = generate_work(dataset.batching_method, dataset, World(nodes, ranks, 1, 0), 0, sample)
    return [int(each) for each in work.transpose(3, 2, 0, 1, 4).flatten() if each >= 0]


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="smalti-topology-") as name, apart(Path(name)):
        lake = Lake.at(f"{name}/lake")
        release = build(lake, shards=SHARDS, skips=kept)
        materialize(release.uri, lake.tree("demo", "v1"))
        for method in METHODS:
            dataset = plain(release, batch_size=BATCH, batching_method=method, num_canonical_nodes=2)
            dataset.shuffle_block_size = 1 << 18
            whole = order(dataset, 1, 8, 0)
            line = [f"whole epoch: {repeats(whole)} repeated, {4000 - len(set(whole))} of 4000 not served"]
            for nodes, ranks in ((1, 8), (2, 4)):
                counts = []
                for batches in (20, 50, 90):
                    sample = batches * BATCH * 8
                    dataset.initial_physical_nodes = None
                    first = whole[:sample]
                    dataset.initial_physical_nodes = 1
                    both = first + order(dataset, nodes, ranks, sample)
                    counts.append((repeats(both) - repeats(whole), len(set(whole) - set(both))))
                    dataset.initial_physical_nodes = None
                line.append(f"1x8 -> {nodes}x{ranks} (repeated, missed) {counts}")
            print(f"{method}: " + "; ".join(line))


def repeats(numbers: list[int]) -> int:
    return sum(n - 1 for n in Counter(numbers).values())


if __name__ == "__main__":
    main()
