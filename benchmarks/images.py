"""The kernel of the shard stage against the loop that anybody would write with Pillow."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from benchmarks.measure import Comparison, compare
from smalti.images.buckets import Bucket, bucket_of
from smalti.images.decode import decode
from smalti.images.encode import encode
from smalti.images.resize import fit_to


def photographs(count: int = 12) -> list[bytes]:
    """JPEGs of 1 to 6 megapixels."""
    import interior_photos

    folder = Path(interior_photos.__file__).parent / "images"
    return [path.read_bytes() for path in sorted(folder.glob("*.jpg"))[:count]]


def compare_all(folder: Path) -> Iterator[Comparison]:
    photos = photographs()
    sizes = [Image.open(io.BytesIO(photo)).size for photo in photos]
    buckets = [bucket for size in sizes if isinstance(bucket := bucket_of(*size), Bucket)]
    assert len(buckets) == len(photos)

    def ours() -> None:
        for photo, bucket in zip(photos, buckets, strict=True):
            encode(fit_to(decode(photo), bucket))

    def pillow() -> None:
        for photo, bucket in zip(photos, buckets, strict=True):
            picture = Image.open(io.BytesIO(photo)).convert("RGB")
            picture.resize((bucket.width, bucket.height), Image.Resampling.LANCZOS).save(
                io.BytesIO(), "JPEG", quality=92
            )

    yield compare("decode, crop, resize, encode / a plain Pillow loop", "images/s", len(photos), ours, pillow, rounds=3)
