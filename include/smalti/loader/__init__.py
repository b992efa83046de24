"""What a training run installs: a StreamingDataset over a release, and nothing else of smalti.

    from smalti.loader import ReleaseDataset
    dataset = ReleaseDataset("gs://lake/releases/pretrain/v3/manifest.json", local="/cache", batch_size=32, shuffle=True)

`import streaming` (11-15 s, it imports torch) happens when ReleaseDataset is first named, not before: the reading of
manifests and skip files in `smalti.loader.skips` stays light.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smalti.loader.dataset import ReleaseDataset
    from smalti.loader.streams import SkipStream, SkipStreamMixin

__all__ = ["ReleaseDataset", "SkipStream", "SkipStreamMixin"]


def __getattr__(name: str) -> Any:
    if name == "ReleaseDataset":
        from smalti.loader import dataset

        return getattr(dataset, name)
    if name in __all__:
        from smalti.loader import streams

        return getattr(streams, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
