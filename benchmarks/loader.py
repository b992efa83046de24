"""ReleaseDataset with skip lists against StreamingDataset over the same release, physically rewritten."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.measure import Comparison, compare
from smalti.lake import Lake
from smalti.objects import file_uri
from tests.loader.releases import build, skip_share

SHARDS = {"alpha": {"00001-aaaaaaaaaaaa": {(512, "1.000"): (500,) * 6, (512, "0.778"): (500,) * 4}}}


def compare_all(folder: Path) -> Iterator[Comparison]:
    from streaming import Stream, StreamingDataset

    from smalti.loader import ReleaseDataset
    from smalti.release.materialize import materialize
    from tests.loader.serving import apart

    def own() -> Any:
        return apart(Path(tempfile.mkdtemp(dir=folder)))

    for share in (0.0, 0.1):
        lake = Lake.at(str(folder / f"lake{share}"))
        release = build(lake, shards=SHARDS, skips=skip_share(share))
        tree = folder / f"tree{share}"
        materialize(release.uri, file_uri(tree))
        options: dict[str, Any] = {"batch_size": 32, "shuffle": True, "batching_method": "random"}

        def ours(uri: str = release.uri, options: dict[str, Any] = options) -> None:
            with own():
                assert sum(1 for _ in ReleaseDataset(uri, **options)) > 0

        def plain(tree: Path = tree, options: dict[str, Any] = options, release: Any = release) -> None:
            streams = [Stream(local=str(tree / str(s.tier) / s.ar)) for s in release.manifest.streams]
            with own():
                assert sum(1 for _ in StreamingDataset(streams=streams, **options)) > 0

        kept = sum(stream.kept for stream in release.manifest.streams)
        name = f"start and one epoch, {share:.0%} skipped / rewritten tree"
        yield compare(name, "samples/s", kept, ours, plain, rounds=3)
