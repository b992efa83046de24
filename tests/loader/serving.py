"""Datasets of small releases, and what they serve."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from streaming import Stream, StreamingDataset
from torch.utils.data import DataLoader

from smalti.loader import ReleaseDataset
from smalti.objects import local_path
from tests.loader.releases import Release, Skips, skip_share

METHODS = ("random", "stratified", "per_stream", "device_per_stream")
WHOLE_SHARD = "alpha/00001-aaaaaaaaaaaa/512/1.000/1"
SKIPS: dict[str, Skips] = {
    "a tenth": skip_share(0.1),
    "much": skip_share(0.45, shards=[WHOLE_SHARD, "beta/00001-cccccccccccc/1024/1.286/0"], streams=["1024/1.000"]),
}
BATCH = 6

_OPEN: list[Callable[[], None]] = []


@contextlib.contextmanager
def apart(folder: Path) -> Iterator[None]:
    """Datasets of this process, as if on a machine of their own.

    StreamingDataset keeps shared memory until the process ends, and lock files for ever. Each new one opens the memory of
    all others, so that some dozens exhaust the open files, and two processes that start at once may take one name.
    `clean_stale_shared_memory` would take the memory from under other processes. Here names are those of `folder`, which processes
    that are to meet have in common, and what was opened is given back.

    Memory that another rank has made and not yet sized cannot be opened; StreamingDataset waits 7 ms for that, which a busy machine
    exceeds. Here it is tried again.
    """
    tag = hashlib.sha256(str(folder).encode()).hexdigest()[:12]

    class Memory(SharedMemory):
        def __init__(self, name: str, create: bool = False, size: int = 0) -> None:
            end = time.monotonic() + 30
            while True:
                try:
                    return super().__init__(f"{tag}_{name}", create, size)
                except ValueError:  # "cannot mmap an empty file"
                    if create or time.monotonic() > end:
                        raise
                    time.sleep(0.01)

    with pytest.MonkeyPatch.context() as patch:
        for module in ("streaming.base.dataset", "streaming.base.shared.prefix"):
            patch.setattr(f"{module}.gettempdir", lambda: str(folder))
        patch.setattr("streaming.base.shared.memory.atexit", SimpleNamespace(register=_OPEN.append))
        patch.setattr("streaming.base.shared.memory.BuiltinSharedMemory", Memory)
        yield
        close_all()


def close_all() -> None:
    """What StreamingDataset would do at the end of the process, with every dataset so far."""
    while _OPEN:
        _OPEN.pop()()


def path_of(uri: str) -> Path:
    path = local_path(uri)
    assert path is not None
    return path


def ours(release: Release, **arguments: Any) -> ReleaseDataset:
    return ReleaseDataset(release.uri, **{"batch_size": BATCH, "shuffle": True} | arguments)


def plain(release: Release, **arguments: Any) -> StreamingDataset:
    """An unmodified StreamingDataset over the tree beside the manifest."""
    tree = path_of(release.uri).parent / "tree"
    folders = [tree / str(stream.tier) / stream.ar for stream in release.manifest.streams]
    streams = [Stream(local=str(folder)) for folder in folders if folder.exists()]
    return StreamingDataset(streams=streams, **{"batch_size": BATCH, "shuffle": True} | arguments)


def ids(dataset: StreamingDataset, workers: int = 0, batch_size: int = BATCH) -> list[list[str]]:
    """The ids of each batch of an epoch."""
    loader: Any = DataLoader(dataset, batch_size=batch_size, num_workers=workers, collate_fn=list)
    return [[sample["id"] for sample in batch] for batch in loader]


def flat(batches: Sequence[Sequence[str]]) -> list[str]:
    return [each for batch in batches for each in batch]
