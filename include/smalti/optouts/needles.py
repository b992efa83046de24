"""What must be found nowhere once a request is erased, in a form that shows nothing: digests of pictures, and ids as the ledger has them.

    optouts/requests/<request>/removing.json      Removing: taken down before the first byte goes, so that a removal that was killed
                                                  still knows what to look for

A picture is known by the sha256 of its bytes, by that of its pixels and, wherever it lies inside something else, by rolling hashes of
stretches of its bytes. Ids are looked for whole: `demo/1.jpg` is not in `demo/11.jpg`, nor in `web/demo/1.jpg`. A URL that has one at
its end names it in a log or on a page; in a row it is what another picture was found by, and only a value that is the id counts.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt
from PIL import Image
from pydantic import AwareDatetime, Field

from smalti import objects
from smalti.images.decode import DecodeError, decode
from smalti.images.fingerprint import RECOMMENDED_DISTANCE, Fingerprint, fingerprint, same_picture
from smalti.lake import Lake
from smalti.optouts.erasing import Erasing, pixels_of
from smalti.release.skips import Model, parse

WINDOW = 32
"""Bytes of a stretch."""

BASE = 0x9E3779B97F4A7C15
"""Of the rolling hash modulo 2^64: odd, so that it has an inverse."""

MAX_PIXELS = 1 << 30
"""Whatever is in the lake was let in."""

_STEP = 1 << 20
_DIVERSE = 16
_HASHES = re.compile(r"[0-9a-f]{64,}")
_WORD = re.compile(r"[\w-]")
_BEFORE = re.compile(r"[\w.%:@+~=/-]*/\Z")
_FAR = 200
_GOES_ON = re.compile(r"[\w-]|[./][\w-]")


class Stretch(Model):
    """WINDOW bytes of a picture. `rolled`: their rolling hash; `sha256`: to be sure."""

    rolled: int
    sha256: str


class Needle(Model):
    """One picture: as it was delivered, or as it stood in a shard.

    Attributes:
        pixels: see `smalti.optouts.erasing.pixels_of`; empty: it does not decode.
        width, height: px, as stored.
        phash, colour, flat: what it is recognised by when it was made smaller; colour is hex.
    """

    kind: Literal["source", "stored"]
    sha256: str
    size: int
    pixels: str = ""
    width: int = 0
    height: int = 0
    phash: int = 0
    colour: str = ""
    flat: bool = True
    stretches: tuple[Stretch, ...] = ()

    @cached_property
    def print(self) -> Fingerprint:
        return Fingerprint(self.phash, bytes.fromhex(self.colour), self.flat, 0)


class Removing(Model):
    """What a request's removal looks for. Pictures are there as digests alone.

    Attributes:
        ids: samples, as the ledger and the tables name them.
        places: sha256 of URIs that the pictures were delivered from, of those that hold nothing else.
        parts: <source>/<part> that hold them.
        rows: "<source>/<batch>" -> ids of rows that tables lose: a batch has that much less than its ingest has put in.
        spared: sha256 of bytes and of pixels that an id showed beside what was asked for (a stand-in that it was delivered with later,
            perhaps): others may show the same.
        listed: `smalti.optouts.removed.object_digest` of the objects at `places`, as inventories have listed them before they lost them.
    """

    version: Literal[1] = 1
    request: str
    begun: AwareDatetime
    ids: tuple[str, ...]
    places: tuple[str, ...] = Field((), repr=False)
    parts: tuple[str, ...] = ()
    pictures: tuple[Needle, ...] = ()
    rows: dict[str, tuple[str, ...]] = Field({})
    spared: tuple[str, ...] = ()
    listed: tuple[str, ...] = ()

    def encode(self) -> bytes:
        return (self.model_dump_json(indent=1) + "\n").encode()

    def joined(self, other: Removing) -> Removing:
        """With what the other one has as well; begun when this one was."""
        pictures = {(each.kind, each.sha256): each for each in (*other.pictures, *self.pictures)}
        wanted = {digest for each in pictures.values() for digest in (each.sha256, each.pixels)}
        return self.model_copy(
            update={
                "ids": tuple(sorted({*self.ids, *other.ids})),
                "places": tuple(sorted({*self.places, *other.places})),
                "parts": tuple(sorted({*self.parts, *other.parts})),
                "listed": tuple(sorted({*self.listed, *other.listed})),
                "pictures": tuple(pictures[key] for key in sorted(pictures)),
                "rows": {
                    batch: tuple(sorted({*self.rows.get(batch, ()), *other.rows.get(batch, ())}))
                    for batch in sorted({*self.rows, *other.rows})
                },
                "spared": tuple(sorted({*self.spared, *other.spared} - wanted)),
            }
        )


def read_removing(lake: Lake, request: str) -> Removing | None:
    """What was taken down; None: no removal has begun. Raises CorruptError."""
    uri = lake.optout_removing(request)
    found = objects.read_versioned(uri)
    return None if found is None else parse(Removing, found[0], uri)


def keep_removing(lake: Lake, now: Removing) -> Removing:
    """Take down what is to be looked for, beside what was taken down before: nothing is forgotten."""
    uri = lake.optout_removing(now.request)
    while True:
        found = objects.read_versioned(uri)
        if found is None:
            if objects.create_bytes(uri, now.encode()):
                return now
            continue
        before = parse(Removing, found[0], uri)
        both = before.joined(now)
        if both == before or objects.swap_bytes(uri, both.encode(), found[1]):
            return both


def needle_of(data: bytes, kind: Literal["source", "stored"]) -> Needle:
    """What a picture is found by."""
    width, height = stored_size(data) or (0, 0)
    needle = Needle(
        kind=kind,
        sha256=hashlib.sha256(data).hexdigest(),
        size=len(data),
        pixels=pixels_of(data) or "",
        width=width,
        height=height,
        stretches=tuple(_stretches(data)),
    )
    try:
        found = fingerprint(decode(data, MAX_PIXELS))
    except DecodeError:
        return needle
    return needle.model_copy(update={"phash": found.phash, "colour": found.colour.hex(), "flat": found.flat})


def stored_size(data: bytes) -> tuple[int, int] | None:
    """(width, height) from the header, not turned; None: it is no picture."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            return image.width, image.height
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None


def rolled(data: bytes | memoryview) -> npt.NDArray[np.uint64]:
    """uint64 (n - WINDOW + 1,): the rolling hash of every stretch.

    Of bytes d[i..i+w): the sum of d[i+j] * BASE^j modulo 2^64, from prefix sums, whose factors BASE^i are divided out.
    """
    if len(data) < WINDOW:
        return np.empty(0, np.uint64)
    up, down = _powers(len(data) + 1)
    sums = np.zeros(len(data) + 1, np.uint64)
    np.cumsum(np.frombuffer(data, np.uint8).astype(np.uint64) * up[: len(data)], out=sums[1:])
    found: npt.NDArray[np.uint64] = (sums[WINDOW:] - sums[:-WINDOW]) * down[: len(data) - WINDOW + 1]
    return found


@lru_cache(maxsize=2)
def _powers(count: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """BASE^i and its inverse modulo 2^64 for i below `count`."""
    inverse = pow(BASE, -1, 1 << 64)
    made = []
    for base in (BASE, inverse):
        powers = np.full(count, base, np.uint64)
        powers[0] = 1
        made.append(np.cumprod(powers))
    return made[0], made[1]


def _stretches(data: bytes) -> Iterator[Stretch]:
    """Some stretches that tell one picture from another: not those of a header, and of many different bytes."""
    for eighth in (3, 4, 5, 6, 7):
        some = data[len(data) * eighth // 8 :][:WINDOW]
        if len(some) == WINDOW and len({*some}) >= _DIVERSE:
            yield Stretch(rolled=int(rolled(some)[0]), sha256=hashlib.sha256(some).hexdigest())


Ids = Literal["value", "word", "anywhere"]
"""Where an id counts in a text: it is the text; no longer one stands there; or anything may stand beside it (of bytes that are no text)."""


def _in_longer(text: str, at: int) -> bool:
    """Whether what begins here goes on a relative path: `web/demo/1.jpg` is another sample. What a URL or an absolute path ends with is none."""
    if text[at - 1] != "/":
        return False
    found = _BEFORE.search(text, max(0, at - _FAR), at)
    before = found.group() if found else "/"
    return not (before.startswith("/") or "://" in before)


@dataclass(frozen=True)
class Seeker:
    """Looks for what is to be found nowhere. What it returns says what was found, and never which id.

    Attributes:
        removing: what was taken down for the removal.
        erasing: what was taken down when the parts were erased; None: nothing was.
    """

    removing: Removing
    erasing: Erasing | None = None

    @cached_property
    def _ids(self) -> dict[str, tuple[frozenset[str], tuple[int, ...]]]:
        """Source -> keys in it, and their lengths."""
        by_source: dict[str, set[str]] = {}
        for name in self.ids:
            source, _, key = name.partition("/")
            by_source.setdefault(source, set()).add(key)
        return {
            source: (frozenset(keys), tuple(sorted({len(key) for key in keys}, reverse=True)))
            for source, keys in by_source.items()
        }

    @cached_property
    def ids(self) -> frozenset[str]:
        return frozenset(self.removing.ids) | frozenset(self.erasing.ids if self.erasing else ())

    @cached_property
    def _bytes(self) -> dict[str, str]:
        kinds = {"source": "the bytes that were delivered", "stored": "the bytes that were stored"}
        found = {each.sha256: kinds[each.kind] for each in self.removing.pictures}
        if self.erasing:
            found |= dict.fromkeys(self.erasing.files, kinds["source"])
            found |= dict.fromkeys(self.erasing.pictures, kinds["stored"])
        return {digest: what for digest, what in found.items() if digest not in self.removing.spared}

    @cached_property
    def _places(self) -> frozenset[str]:
        return frozenset(self.removing.places)

    @cached_property
    def _pixels(self) -> frozenset[str]:
        known = {each.pixels for each in self.removing.pictures if each.pixels}
        return frozenset(known.union(self.erasing.pixels if self.erasing else ()).difference(self.removing.spared))

    @cached_property
    def _sizes(self) -> frozenset[tuple[int, int]]:
        return frozenset((each.width, each.height) for each in self.removing.pictures if each.pixels)

    @cached_property
    def _knows_all_sizes(self) -> bool:
        return self._pixels <= {each.pixels for each in self.removing.pictures}

    def may_be(self, size: tuple[int, int] | None) -> bool:
        """Whether a picture of this width and height, as stored, can have the pixels of one of them."""
        return size is not None and (size in self._sizes or not self._knows_all_sizes)

    @cached_property
    def _stretches(self) -> tuple[npt.NDArray[np.uint64], frozenset[str]]:
        every = [some for each in self.removing.pictures for some in each.stretches]
        return np.unique(np.array([each.rolled for each in every], np.uint64)), frozenset(e.sha256 for e in every)

    def text(self, text: str, ids: Ids = "word") -> Iterator[str]:
        """What a text says of it."""
        if hashlib.sha256(text.encode("utf-8", "replace")).hexdigest() in self._places:
            yield "a place that it was delivered from"
        if text in self.ids if ids == "value" else self._says_id(text, ids == "word"):
            yield "an id"
        for found in _HASHES.finditer(text) if len(text) >= 64 else ():
            run = found.group()
            if any(run[at : at + 64] in self._bytes for at in range(len(run) - 63)):
                yield "the sha256 of its bytes"
                return

    def _says_id(self, text: str, whole: bool) -> bool:
        for source, (keys, lengths) in self._ids.items():
            start, begin = f"{source}/", 0
            while (at := text.find(start, begin)) >= 0:
                begin = at + 1
                if whole and at and (_WORD.match(text[at - 1]) or _in_longer(text, at)):
                    continue
                first = at + len(start)
                for length in lengths:
                    end = first + length
                    if text[first:end] in keys and not (whole and _GOES_ON.match(text, end)):
                        return True
        return False

    def stretches(self, data: bytes) -> Iterator[str]:
        """Whether a picture's bytes lie anywhere in these."""
        wanted, digests = self._stretches
        view = memoryview(data)
        for start in range(0, len(data) if len(wanted) else 0, _STEP):
            block = view[start : start + _STEP + WINDOW - 1]
            hashes = rolled(block)
            at = np.searchsorted(wanted, hashes)
            hits = np.flatnonzero(wanted[np.minimum(at, len(wanted) - 1)] == hashes)
            if any(hashlib.sha256(block[hit : hit + WINDOW]).hexdigest() in digests for hit in hits.tolist()):
                yield "a stretch of its bytes"
                return

    def whole(self, data: bytes) -> Iterator[str]:
        """Whether these bytes are such a picture."""
        if (what := self._bytes.get(hashlib.sha256(data).hexdigest())) is not None:
            yield what

    def picture(self, data: bytes, *, smaller: bool) -> Iterator[str]:
        """What a picture shows.

        Args:
            smaller: also whether it is one of them made smaller: of pages, on which nothing is as it was.
        """
        if self.may_be(stored_size(data)) and pixels_of(data) in self._pixels:
            yield "its pixels"
        elif smaller:
            try:
                shown = fingerprint(decode(data, MAX_PIXELS))
            except DecodeError:
                return
            prints = (each.print for each in self.removing.pictures if each.colour)
            if any(same_picture(shown, each, RECOMMENDED_DISTANCE) for each in prints):
                yield "the picture, smaller"
