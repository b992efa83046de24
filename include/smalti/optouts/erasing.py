"""What was erased of parts for a request, and what must be found nowhere once the old parts are removed.

    optouts/requests/<request>/erasing.json      Erasing, create-only: from here on its grace is counted
    optouts/requests/<request>/erasing-2.json    what was found later (a shard run may commit a part after that), and so on

It is written when no part that counts holds any of the request's samples and no version that is live uses a part that does. Its digests
are taken from the old parts and the tables while they are there. Of pictures it has nothing but digests.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from itertools import count
from typing import Literal

from pydantic import AwareDatetime, Field

from smalti import objects
from smalti.lake import Lake
from smalti.release.skips import Model, canonical_json, parse


class OldVersion(Model):
    """A version that used an old part, or whose tree held what was erased. `successor`: empty, there is none."""

    dataset: str
    version: str
    successor: str | None = None


class Erasing(Model):
    """What must go after the grace, and how it is known then.

    Attributes:
        erased: when nothing that counts held the samples any more: the grace begins.
        position: of the ledger, up to which this was true.
        parts: `<source>/<part>` that still holds samples of the request, or names them -> the one in its place; empty: none is.
        versions: that are no longer live and used these parts.
        ids: of the samples, in parts and in tables.
        files: sha256 of the sources' files, hex.
        pictures: sha256 of the encoded pictures in shards, hex.
        pixels: see `pixels_of`; of the files and of the encoded pictures.
    """

    version: Literal[1] = 1
    request: str
    erased: AwareDatetime
    position: int = Field(ge=1)
    parts: dict[str, str]
    versions: tuple[OldVersion, ...]
    ids: tuple[str, ...]
    files: tuple[str, ...]
    pictures: tuple[str, ...]
    pixels: tuple[str, ...]

    def encode(self) -> bytes:
        """The object that is stored."""
        return canonical_json(self.model_dump(mode="json")) + b"\n"

    def holds(self, other: Erasing) -> bool:
        """Whether all that the other one names is named here."""
        mine, its = self._named(), other._named()
        return all(its[name] <= mine[name] for name in its)

    def with_(self, later: Erasing) -> Erasing:
        """Both as one, with the times of the later."""
        mine, its = self._named(), later._named()
        both = {name: tuple(sorted(mine[name] | its[name])) for name in _DIGESTS}
        versions = {(each.dataset, each.version): each for each in (*self.versions, *later.versions)}
        return later.model_copy(
            update={
                **both,
                "parts": dict(sorted((self.parts | later.parts).items())),
                "versions": tuple(each for _, each in sorted(versions.items())),
            }
        )

    def _named(self) -> dict[str, set[str]]:
        found = {name: set(getattr(self, name)) for name in (*_DIGESTS, "parts")}
        return found | {"versions": {f"{each.dataset}/{each.version}" for each in self.versions}}


_DIGESTS = ("ids", "files", "pictures", "pixels")


def read_erasing(lake: Lake, request: str) -> Erasing | None:
    """All that was erased for a request; None: its parts were not erased yet. Raises CorruptError."""
    found = None
    for each in _read_all(lake, request):
        found = each if found is None else found.with_(each)
    return found


def add_erasing(lake: Lake, erasing: Erasing, *, again: bool = False) -> Erasing:
    """Write down what was erased, as far as it was not. Returns all of it, with the time at which the last of it was written.

    Args:
        again: whatever was written down before: it is here again.
    """
    while True:
        numbers = [*_read_all(lake, erasing.request)]
        found = read_erasing(lake, erasing.request)
        if found is not None and found.holds(erasing) and not (again and found.erased < erasing.erased):
            return found
        if objects.create_bytes(lake.optout_erasing(erasing.request, len(numbers) + 1), erasing.encode()):
            return erasing if found is None else found.with_(erasing)


def _read_all(lake: Lake, request: str) -> Iterator[Erasing]:
    for number in count(1):
        uri = lake.optout_erasing(request, number)
        found = objects.read_versioned(uri)
        if found is None:
            return
        yield parse(Erasing, found[0], uri)


def pixels_of(data: bytes) -> str | None:
    """sha256 over width, height and the RGB pixels of a picture as they are stored (no orientation is applied), hex; None: it cannot be decoded.

    Pictures that were packed anew without loss have the same.
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as image:
            rgb = image.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
    return hashlib.sha256(f"{rgb.width}x{rgb.height}\n".encode() + rgb.tobytes()).hexdigest()
