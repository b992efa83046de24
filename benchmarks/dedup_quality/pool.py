"""Every picture of the labelled set, reduced to what it is recognised by."""

from __future__ import annotations

import concurrent.futures
import importlib.util
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from benchmarks.dedup_quality import drawn, others
from benchmarks.dedup_quality.copies import COPIES, Copying
from benchmarks.dedup_quality.photographs import NEIGHBOURS, Photo, stamps
from smalti.images.buckets import Bucket, bucket_of
from smalti.images.fingerprint import Fingerprint, fingerprint

HAS_IMAGEHASH = importlib.util.find_spec("imagehash") is not None
ORIGINAL = "original"


@dataclass(frozen=True)
class Item:
    """One picture of the set.

    picture: equal of copies, and of nothing else. origin: the photograph, stamp or drawing it was made from, which also says in
    which half it is. kind: how it was made. theirs: imagehash.phash, if imagehash is installed.
    """

    picture: str
    origin: str
    kind: str
    width: int
    height: int
    print: Fingerprint
    theirs: int = 0

    @property
    def reporting(self) -> bool:
        """In the half that is reported; the other one is for choosing constants."""
        return bool(zlib.crc32(self.origin.encode()) & 1)

    @property
    def kept(self) -> bool:
        """Large enough for the smallest tier; the line drops smaller pictures before it fingerprints them."""
        return isinstance(bucket_of(self.width, self.height), Bucket)


def item(picture: str, origin: str, kind: str, image: Image.Image) -> Item:
    """The picture's fingerprints."""
    theirs = 0
    if HAS_IMAGEHASH:
        import imagehash

        theirs = int(str(imagehash.phash(image)), 16)
    return Item(picture, origin, kind, image.width, image.height, fingerprint(image), theirs)


def of_photo(photo: Photo, number: int, copies: dict[str, Copying] = COPIES) -> list[Item]:
    """The photograph, its copies, and what is made from it without being one."""
    return [*copies_of(photo, number, copies), *others_of(photo, number)]


def copies_of(photo: Photo, number: int, copies: dict[str, Copying] = COPIES) -> Iterator[Item]:
    """The photograph and its copies."""
    image = photo.load()
    yield item(photo.name, photo.name, ORIGINAL, image)
    for kind, copy in copies.items():
        yield item(photo.name, photo.name, kind, copy(image, number))


def others_of(photo: Photo, number: int) -> Iterator[Item]:
    """What is made from a photograph without being a copy."""
    image = photo.load()
    for kind, other in others.frames(image):
        yield item(f"{photo.name} {kind}", photo.name, kind, other)
        if kind.startswith("shift"):
            share = (image.width - other.width) / image.width
            kind = f"{kind}, the other"
            yield item(f"{photo.name} {kind}", photo.name, kind, others.shifted_back(image, share))
    for n, (kind, other) in enumerate((
        *others.recoloured(image, number),
        *others.two_levels(image),
        *others.cut_out_on_white(image, number),
    )):
        yield item(f"{photo.name} {kind} {n}", photo.name, kind, other)


def of_stamp(path: Path, number: int) -> list[Item]:
    """A cut-out thing on its backgrounds."""
    name = f"stamp {path.name}"
    with Image.open(path) as stamp:
        found = others.object_on_white(stamp.convert("RGBA"), number)
        return [item(f"{name} {kind}", name, kind, image) for kind, image in found]


def of_neighbours(pair: tuple[str, str, str], listed: frozenset[str]) -> list[Item]:
    """Two photographs of one scene, without the one that is in the list of photographs."""
    package, *paths = pair
    photos = [Photo(package, path) for path in paths]
    return [item(p.name, photos[0].name, "other view", p.load()) for p in photos if p.name not in listed]


def of_drawn(first: int, step: int) -> list[Item]:
    """Every step-th drawing."""
    found = enumerate(drawn.all_drawn())
    return [item(f"drawn {n}", f"drawn {n}", kind, draw()) for n, (kind, draw) in found if n % step == first]


def whole_set(photos: Sequence[Photo], workers: int, say: Callable[[str], None]) -> list[Item]:
    """All items, in an order that does not depend on the workers."""
    listed = frozenset(photo.name for photo in photos)
    jobs: list[tuple[Callable[..., list[Item]], tuple[object, ...]]] = [
        *((of_photo, (photo, number)) for number, photo in enumerate(photos)),
        *((of_drawn, (first, 8)) for first in range(8)),
        *((of_stamp, (path, number)) for number, path in enumerate(stamps())),
        *((of_neighbours, (pair, listed)) for pair in NEIGHBOURS),
    ]
    items: list[Item] = []
    with concurrent.futures.ProcessPoolExecutor(workers) as pool:
        running = [pool.submit(make, *arguments) for make, arguments in jobs]
        for number, job in enumerate(running):
            items += job.result()
            if number % 50 == 49:
                say(f"{number + 1} of {len(jobs)} origins, {len(items)} pictures")
    return items
