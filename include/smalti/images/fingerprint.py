"""Recognise a picture again: a perceptual hash, and the guards without which no two pictures are merged.

The hash (pHash) is the sign of the lowest frequencies of a picture's grey values; copies that were re-encoded or resized keep
it. Half of its bits are ones, as the median parts them: two hashes differ in an even number of bits. What every constant
below rests on, and how many copies are found and other pictures merged: docs/explanation/duplicates.md.

The reduction decides: a triangle filter to 256x256 before cells are averaged keeps more copies than Pillow's BOX or LANCZOS
straight to 32x32. Hash the decoded source once: every tier of it then has the same fingerprint.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image

SIDE, CELLS = 256, 32
"""Pixels of the reduced picture and cells of the hashed one; both on each axis."""

LUMA_CELLS, CHROMA_CELLS = 7, 5
"""Cells of the thumbnail on each axis. Encoders keep luma better than chroma, and 25 cells still show a thing of a tenth of the side in
another colour, which 16 do not. Dedup reads the thumbnails of a whole lake, so every byte of them is a hundred megabytes in 1e8 pictures."""

THUMBNAIL = LUMA_CELLS**2 + 2 * CHROMA_CELLS**2
"""Bytes of a thumbnail: 49 of luma, 25 of Cb, 25 of Cr."""

BITS = 40
"""Frequencies kept, the lowest ones, a bit each. The higher ones are weaker and flip first: with 64 of them 0.915 of the copies at
a quarter of the size and JPEG 75 kept their hash, with 40 of them 0.936; of 64, 56, 52, 48, 44 and 40 only 40 kept 0.93 of every kind."""

UNSTABLE_MARGIN = 1.0
"""A bit whose coefficient is nearer than this to the median (grey levels, orthonormal 32x32 DCT) may flip in a copy."""

FLAT_CONTRAST = 4.0
"""Standard deviation of the 32x32 grey cells, levels, below which a picture is flat; photographs measured: 8.8 and more."""

FLAT_SHARE = 0.3
"""Share of the reduced picture that one single grey level may hold. Photographs measured: 0.24 at most. Screenshots 0.36 and
more, pages of text 0.48, shapes on white 0.68, photographs of a thing cut out on pure white 0.31."""

FLAT_UNSTABLE = 16
"""Unstable bits that a picture may have. Photographs and their crops measured: 11 at most; half of the gradients 32 and more."""

LUMA_ALWAYS, LUMA_SHARE = 1.2, 0.04
"""Two thumbnails may differ by this many levels of luma in any cell, and by this share of the step between neighbouring cells
(root mean square, the smoother picture's): a frame that moved by a little changes each cell by a share of that step, and a
smooth picture by little, but what an encoder loses hardly depends on it."""

SPREAD_ALWAYS, SPREAD_SHARE = 0.4, 0.008
"""The same for how these differences spread (standard deviation over the cells): where a frame moved many cells change by a level, some up and
some down; in a copy the few do that were about to be rounded the other way, or all of a smooth picture are brighter by one."""

CHROMA = 2
"""Levels by which any cell may differ in Cb or Cr; catches other colours of equal luminance, also of a small thing."""

RECOMMENDED_DISTANCE = 2
"""Bits in which the hashes of copies may differ where a caller allows any; see docs/explanation/duplicates.md."""


Thumbnails = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Fingerprint:
    """What a picture is recognised by.

    phash: 64 bits, of which 40 say something. colour: thumbnail, THUMBNAIL bytes: 7x7 cells of luma, then 5x5 of Cb and
    5x5 of Cr (BT.601, as JPEG has them), each row by row. flat: too little in it to be told apart by a hash.
    unstable: how many bits of the hash may flip in a copy.
    """

    phash: int
    colour: bytes
    flat: bool
    unstable: int


class Recognisable(Protocol):
    """A Fingerprint, or a table row with its fields."""

    @property
    def phash(self) -> int: ...
    @property
    def colour(self) -> bytes: ...
    @property
    def flat(self) -> bool: ...


def fingerprint(image: Image.Image) -> Fingerprint:
    """The fingerprint of a decoded picture (RGB, upright).

    Raises:
        ValueError: the image is not RGB.
    """
    if image.mode != "RGB":
        raise ValueError(f"mode {image.mode}: fingerprints are made of RGB, as decode gives it")
    reduced = np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BILINEAR), np.float64)
    cells = _means(reduced) @ _LUMA
    low = (_DCT @ cells @ _DCT.T)[_LOWEST]
    low = low.round(6)  # a flat picture has zeros here, and not the rounding errors of one machine
    median = float(np.median(low))
    unstable = int((np.abs(low - median) < UNSTABLE_MARGIN).sum())
    bits = np.zeros(64, np.bool_)
    bits[_PLACES] = low > median
    phash = int.from_bytes(np.packbits(bits).tobytes(), "big")
    colour = _thumbnail(reduced).tobytes()
    flat = float(cells.std()) < FLAT_CONTRAST or unstable >= FLAT_UNSTABLE or _share_of_one_level(reduced) >= FLAT_SHARE
    return Fingerprint(phash, colour, flat, unstable)


def same_picture(a: Recognisable, b: Recognisable, distance: int = 0) -> bool:
    """Whether two pictures are copies of one another: the whole rule, and its only place.

    Hashes that differ in at most `distance` bits, agreeing colours, neither flat. That the aspect ratios agree is the caller's
    part; and flat pictures are merged by nothing but an equal sha256, which is the caller's as well.
    """
    return hamming(a.phash, b.phash) <= distance and not (a.flat or b.flat) and colours_agree(a.colour, b.colour)


def hamming(a: int, b: int) -> int:
    """How many of the 64 bits differ."""
    return (a ^ b).bit_count()


def colours_agree(a: bytes, b: bytes) -> bool:
    """Whether two thumbnails are those of one picture; catches colour variants of equal luminance.

    Raises:
        ValueError: not THUMBNAIL bytes each.
    """
    if len(a) != THUMBNAIL or len(b) != THUMBNAIL:
        raise ValueError(f"thumbnails have {THUMBNAIL} bytes, not {len(a)} and {len(b)}")
    return bool(colours_agree_pairs(np.frombuffer(a, np.uint8)[None], np.frombuffer(b, np.uint8)[None])[0])


def colours_agree_pairs(a: Thumbnails, b: Thumbnails) -> npt.NDArray[np.bool_]:
    """`colours_agree` of many pairs of thumbnails: uint8 (n, THUMBNAIL) twice -> bool (n,).

    Raises:
        ValueError: not of one shape (n, THUMBNAIL).
    """
    if a.shape != b.shape or a.ndim != 2 or a.shape[1] != THUMBNAIL:
        raise ValueError(f"thumbnails come as two arrays (n, {THUMBNAIL}), not {a.shape} and {b.shape}")
    agree = np.empty(len(a), np.bool_)
    for start in range(0, len(a), _BLOCK):
        rows = slice(start, start + _BLOCK)
        agree[rows] = _agree(a[rows], b[rows])
    return agree


_BLOCK = 8192  # pairs compared at a time: 15 MB of temporaries, whatever n is


def _agree(a: Thumbnails, b: Thumbnails) -> npt.NDArray[np.bool_]:
    """One block of `colours_agree_pairs`. Of whole numbers, so that every machine decides alike: roots and quotients of them are
    rounded in one way (IEEE 754)."""
    apart = np.maximum(a, b) - np.minimum(a, b)  # in uint8, no level is lost
    largest = apart[:, :_LUMA_END].max(1)
    agree = np.asarray((largest <= _HOPELESS) & (apart[:, _LUMA_END:].max(1) <= CHROMA))
    doubt = np.flatnonzero(agree & (largest > 0))
    step = np.minimum(_steps(a[doubt]), _steps(b[doubt]))
    spread = _spread(a[doubt], b[doubt])
    agree[doubt] = (largest[doubt] <= LUMA_ALWAYS + LUMA_SHARE * step) & (spread <= SPREAD_ALWAYS + SPREAD_SHARE * step)
    return agree


@dataclass(frozen=True)
class ColourBounds:
    """By how much any two of some thumbnails can differ and still agree. Each is a bound on a metric, so that what is farther than twice
    of it from a picture is no copy of that picture's copies.

    Attributes:
        luma: levels in any cell.
        spread: standard deviation over the cells of luma, levels.
    """

    luma: float
    spread: float

    @classmethod
    def of(cls, thumbnails: Thumbnails) -> ColourBounds:
        """The rule with what the steepest of the pictures allows: uint8 (n, THUMBNAIL)."""
        steepest = max((float(_steps(block).max()) for block in _blocks(thumbnails)), default=0.0)
        return cls(
            LUMA_ALWAYS + LUMA_SHARE * steepest + _SLACK,
            SPREAD_ALWAYS + SPREAD_SHARE * steepest + _SLACK,
        )

    @property
    def regions(self) -> float:
        """Of the summed differences of `colour_regions`."""
        return self.luma * LUMA_CELLS**2 + CHROMA * 2 * CHROMA_CELLS**2 / _CHROMA_PARTS + _SLACK

    def within(self, a: Thumbnails, b: Thumbnails, scale: int) -> npt.NDArray[np.bool_]:
        """Whether pairs differ by no more than `scale` times this: uint8 (n, THUMBNAIL) twice -> bool (n,)."""
        apart = np.maximum(a, b) - np.minimum(a, b)
        near = (apart[:, :_LUMA_END].max(1) <= scale * self.luma) & (apart[:, _LUMA_END:].max(1) <= scale * CHROMA)
        return np.asarray(near & (_spread(a, b) <= scale * self.spread))


def colour_regions(thumbnails: Thumbnails) -> npt.NDArray[np.float64]:
    """Twelve numbers a thumbnail, by which those near it can be looked up: sums over quarters, those of chroma divided by _CHROMA_PARTS.

    The differences of two thumbnails' numbers are no more in all than the differences of their cells are, chroma's divided.
    """
    found = []
    for start, cells, parts in _PLANES:
        plane = thumbnails[:, start : start + cells * cells].reshape(-1, cells, cells).astype(np.int32)
        middle = [0, (cells + 1) // 2]
        quarters = np.add.reduceat(np.add.reduceat(plane, middle, axis=1), middle, axis=2)
        found.append(quarters.reshape(-1, 4) / parts)
    return np.concatenate(found, 1)


_SLACK = 1e-6

_LUMA_END = LUMA_CELLS**2
"""Where a thumbnail's luma ends."""

_CHROMA_PARTS = 4
"""So that luma, which tells more about what is near, counts for more than chroma."""

_PLANES = (
    (0, LUMA_CELLS, 1),
    (_LUMA_END, CHROMA_CELLS, _CHROMA_PARTS),
    (_LUMA_END + CHROMA_CELLS**2, CHROMA_CELLS, _CHROMA_PARTS),
)
"""Where the cells of Y, Cb and Cr begin, how many there are on each axis, and what their sums are divided by."""


def _blocks(thumbnails: Thumbnails) -> Iterator[Thumbnails]:
    for start in range(0, len(thumbnails), _BLOCK):
        yield thumbnails[start : start + _BLOCK]


_HOPELESS = math.ceil(LUMA_ALWAYS + LUMA_SHARE * 255 * math.sqrt(2))
"""Levels: luma cannot differ by more and agree, as no step is above 255 on an axis."""


def _spread(a: Thumbnails, b: Thumbnails) -> npt.NDArray[np.float64]:
    """The standard deviation over cells of how their luma differs, levels; (n, THUMBNAIL) twice -> (n,)."""
    apart = a[:, :_LUMA_END].astype(np.int32) - b[:, :_LUMA_END]
    squares, total = np.einsum("nk,nk->n", apart, apart), apart.sum(1, dtype=np.int32)
    return np.asarray(np.sqrt(_LUMA_END * squares - total * total) / _LUMA_END, np.float64)


def _steps(thumbnails: Thumbnails) -> npt.NDArray[np.float64]:
    """How steep pictures are: the root mean square of the steps of luma to the next cell, levels; (n, THUMBNAIL) -> (n,)."""
    luma = thumbnails[:, :_LUMA_END].reshape(-1, LUMA_CELLS, LUMA_CELLS).astype(np.int32)
    down, right = luma[:, 1:] - luma[:, :-1], luma[:, :, 1:] - luma[:, :, :-1]
    squares = np.einsum("nij,nij->n", down, down) + np.einsum("nij,nij->n", right, right)
    return np.asarray(np.sqrt(squares / (LUMA_CELLS * (LUMA_CELLS - 1))), np.float64)


_LUMA = np.array([0.299, 0.587, 0.114])  # ITU-R BT.601, as JPEG

_Y = np.array([[299.0, 587.0, 114.0]])
_CBCR = np.array([[-169.0, -331.0, 500.0], [500.0, -419.0, -81.0]])
"""Thousandths of BT.601's, as JPEG has them: whole numbers."""


def _thumbnail(reduced: npt.NDArray[np.float64]) -> Thumbnails:
    """The mean Y, Cb and Cr of cells, rounded once: all sums are of whole numbers below 2^53, which no order of adding changes."""
    luma, chroma = _sums(reduced, LUMA_CELLS, _Y), _sums(reduced, CHROMA_CELLS, _CBCR)
    whole = 1000 * SIDE * SIDE
    values = np.concatenate([luma.ravel(), chroma.ravel() + 128 * whole]) / whole
    return np.asarray(np.clip(np.rint(values), 0, 255), np.uint8)


def _sums(reduced: npt.NDArray[np.float64], cells: int, weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Weighted sums of R, G and B over cells x cells equal parts: (weights, cells, cells), SIDE^2 times the means."""
    rows = _along(reduced, cells)
    parts = _along(rows.swapaxes(0, 1), cells).swapaxes(0, 1)
    return np.asarray(np.moveaxis(parts @ weights.T, 2, 0), np.float64)


def _along(values: npt.NDArray[np.float64], cells: int) -> npt.NDArray[np.float64]:
    """Sums over equal parts of the first axis, SIDE long. A pixel is `cells` units long and a part SIDE of them: where two parts share a
    pixel each has as many units of it as lie in it."""
    at, units = np.divmod(np.arange(cells + 1) * SIDE, cells)
    nothing = np.zeros_like(values[:1])
    before = np.concatenate([nothing, np.cumsum(values, 0)])[at]
    shared = np.concatenate([values, nothing])[at]
    return np.diff(cells * before + units[:, None, None] * shared, axis=0)


def _dct_matrix(n: int) -> npt.NDArray[np.float64]:
    """DCT-II, orthonormal: row k is the k-th frequency."""
    k, x = np.arange(n)[:, None], np.arange(n)[None, :]
    matrix = np.sqrt(2 / n) * np.cos(np.pi * (2 * x + 1) * k / (2 * n))
    matrix[0] = np.sqrt(1 / n)
    return np.asarray(matrix, np.float64)


_DCT = _dct_matrix(CELLS)


def _lowest(count: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Rows and columns of so many frequencies, the lowest first by u^2 + v^2, then by row; the mean is none of them."""
    u, v = (axis.ravel() for axis in np.mgrid[:CELLS, :CELLS])
    order = np.argsort(u * u + v * v, kind="stable")[1 : count + 1]
    return u[order], v[order]


_LOWEST = _lowest(BITS)
_PLACES = (
    np.arange(BITS) * 64 // BITS
)  # from the highest bit down, spread evenly, so that a prefix or a remainder parts them


def _means(reduced: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Averages of CELLS x CELLS equal squares, shape (CELLS, CELLS, 3)."""
    step = SIDE // CELLS
    return np.asarray(reduced.reshape(CELLS, step, CELLS, step, 3).mean((1, 3)), np.float64)


def _share_of_one_level(reduced: npt.NDArray[np.float64]) -> float:
    """The share of the commonest grey level: background without shading, noise or grain, which cameras do not make."""
    levels = np.rint(reduced @ _LUMA).astype(np.int64)
    return float(np.bincount(levels.ravel()).max() / levels.size)
