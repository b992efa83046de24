"""Writing MDS as bytes against MDSWriter, and create-only objects against plain files."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

from benchmarks.images import photographs
from benchmarks.measure import Comparison, compare
from smalti.objects import create_bytes, file_uri
from smalti.shards import mds

COLUMNS = {"image": "jpeg", "caption": "str", "id": "str"}


def compare_all(folder: Path) -> Iterator[Comparison]:
    from streaming import MDSWriter

    class PassThrough(MDSWriter):  # type: ignore[misc]  # streaming is untyped
        """MDSWriter that stores encoded images as they are, as the codec does."""

        def encode_sample(self, sample: dict[str, bytes | str]) -> bytes:
            image = sample["image"]
            assert isinstance(image, bytes)
            parts = [str(sample["caption"]).encode(), str(sample["id"]).encode(), image]
            return b"".join(len(p).to_bytes(4, "little") for p in parts) + b"".join(parts)

    photos = photographs()
    samples: list[mds.Sample] = [
        {"image": photos[n % len(photos)], "caption": "a room with a chair " * 20, "id": f"demo/{n}"} for n in range(60)
    ]
    megabytes = sum(len(s["image"]) for s in samples if isinstance(s["image"], bytes)) / 1e6
    count = itertools.count()

    def ours() -> None:
        data = mds.encode_shard(COLUMNS, samples)
        mds.shard_entry("shard.00000.mds", data)
        create_bytes(file_uri(folder / f"ours{next(count)}" / "shard.00000.mds"), data)

    def writer() -> None:
        out = folder / f"theirs{next(count)}"
        with PassThrough(out=str(out), columns=COLUMNS, hashes=["sha256"], size_limit=1 << 27) as shard:
            for sample in samples:
                shard.write(sample)

    yield compare("a shard encoded, hashed, synced to disk / MDSWriter", "MB/s", megabytes, ours, writer)
    for made in folder.iterdir():
        shutil.rmtree(made)
