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

SIDE, CELLS, THUMB = 256, 32, 8
"""Pixels of the reduced picture, cells of the hashed one and of the thumbnail; all on each axis."""

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

LUMA_ALWAYS, LUMA_SHARE = 1.2, 0.03
"""Two thumbnails may differ by this many levels of luma in any cell, and by this share of the step between neighbouring cells
(root mean square, the smoother picture's): a frame that moved by a little changes each cell by a share of that step, and a
smooth picture by little, but what an encoder loses hardly depends on it."""

CHROMA = 2.5
"""Levels by which any cell may differ in Cb or Cr; catches other colours of equal luminance, also of a small thing."""

RECOMMENDED_DISTANCE = 2
"""Bits in which the hashes of copies may differ where a caller allows any; see docs/explanation/duplicates.md."""


Thumbnails = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Fingerprint:
    """What a picture is recognised by.

    phash: 64 bits, of which 40 say something. colour: 8x8 RGB thumbnail, 192 bytes, row by row. flat: too little in it to be told apart by a hash.
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
    cells = _means(reduced, CELLS) @ _LUMA
    low = (_DCT @ cells @ _DCT.T)[_LOWEST]
    low = low.round(6)  # a flat picture has zeros here, and not the rounding errors of one machine
    median = float(np.median(low))
    unstable = int((np.abs(low - median) < UNSTABLE_MARGIN).sum())
    bits = np.zeros(64, np.bool_)
    bits[_PLACES] = low > median
    phash = int.from_bytes(np.packbits(bits).tobytes(), "big")
    colour = np.rint(_means(reduced, THUMB)).astype(np.uint8).tobytes()
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
        ValueError: not 192 bytes each.
    """
    if len(a) != THUMB * THUMB * 3 or len(b) != THUMB * THUMB * 3:
        raise ValueError(f"thumbnails have {THUMB * THUMB * 3} bytes, not {len(a)} and {len(b)}")
    return bool(colours_agree_pairs(np.frombuffer(a, np.uint8)[None], np.frombuffer(b, np.uint8)[None])[0])


def colours_agree_pairs(a: Thumbnails, b: Thumbnails) -> npt.NDArray[np.bool_]:
    """`colours_agree` of many pairs of thumbnails: uint8 (n, 192) twice -> bool (n,).

    Raises:
        ValueError: not of one shape (n, 192).
    """
    if a.shape != b.shape or a.ndim != 2 or a.shape[1] != THUMB * THUMB * 3:
        raise ValueError(f"thumbnails come as two arrays (n, {THUMB * THUMB * 3}), not {a.shape} and {b.shape}")
    agree = np.empty(len(a), np.bool_)
    for start in range(0, len(a), _BLOCK):
        rows = slice(start, start + _BLOCK)
        agree[rows] = _agree(a[rows], b[rows])
    return agree


_BLOCK = 4096  # pairs compared at a time: 15 MB of temporaries, whatever n is


def _agree(a: Thumbnails, b: Thumbnails) -> npt.NDArray[np.bool_]:
    """One block of `colours_agree_pairs`: exact thousandths of a level, so that every machine decides alike."""
    apart = (np.maximum(a, b) - np.minimum(a, b)).max(1)  # in uint8, no level is lost
    agree = np.asarray(apart <= 1)  # luma and chroma are then at most one level apart
    doubt = np.flatnonzero((apart > 1) & (apart <= _HOPELESS))
    one, other = (each[doubt].astype(np.float32) for each in (a, b))
    red, green, blue = (one[:, n::3] - other[:, n::3] for n in range(3))
    luma = np.abs(299 * red + 587 * green + 114 * blue).max(1)
    chroma = np.maximum(np.abs(500 * blue - 169 * red - 331 * green), np.abs(500 * red - 419 * green - 81 * blue)).max(
        1
    )
    step = np.minimum(_steps(one), _steps(other))
    agree[doubt] = (luma <= 1000 * LUMA_ALWAYS + LUMA_SHARE * step) & (chroma <= 1000 * CHROMA)
    return agree


def colour_bounds(thumbnails: Thumbnails) -> tuple[float, float]:
    """By how many levels any two of these can differ and still agree, in one value and summed over all: uint8 (n, 192).

    Each is a bound on a metric, so that what is farther than twice of it from a picture is no copy of that picture's copies. It is
    the rule turned into R, G and B, with the luma that the steepest of the pictures allows.
    """
    steepest = max((float(_steps(block.astype(np.float32)).max()) for block in _blocks(thumbnails)), default=0.0)
    allowed = np.array([LUMA_ALWAYS + LUMA_SHARE * steepest / 1000, CHROMA, CHROMA])
    channels = np.abs(np.linalg.inv(_YCBCR)) @ allowed + 1e-6
    return float(channels.max()), float(channels.sum()) * THUMB * THUMB


def _blocks(thumbnails: Thumbnails) -> Iterator[Thumbnails]:
    for start in range(0, len(thumbnails), _BLOCK):
        yield thumbnails[start : start + _BLOCK]


_HOPELESS = math.ceil(LUMA_ALWAYS + LUMA_SHARE * 255 * math.sqrt(2) + 1.772 * CHROMA + 1)
"""Levels: no value of R, G or B can differ by more where luma and chroma agree (BT.601), as no step is above 255 on an axis."""


def _steps(thumbnails: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """How steep pictures are: the root mean square of the steps of luma to the next cell, thousandths of a level; (n, 192) -> (n,)."""
    luma = 299 * thumbnails[:, 0::3] + 587 * thumbnails[:, 1::3] + 114 * thumbnails[:, 2::3]  # exact in float32
    luma = luma.reshape(-1, THUMB, THUMB)
    down, right = luma[:, 1:] - luma[:, :-1], luma[:, :, 1:] - luma[:, :, :-1]
    squares = [np.einsum("nij,nij->n", each, each, dtype=np.float64) / (THUMB * (THUMB - 1)) for each in (down, right)]
    return np.asarray(np.sqrt(squares[0] + squares[1]), np.float64)


_LUMA = np.array([0.299, 0.587, 0.114])  # ITU-R BT.601, as JPEG
_YCBCR = np.array([_LUMA, [-0.169, -0.331, 0.5], [0.5, -0.419, -0.081]])  # as `_agree` has it


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


def _means(reduced: npt.NDArray[np.float64], cells: int) -> npt.NDArray[np.float64]:
    """Averages of cells x cells equal squares, shape (cells, cells, 3)."""
    step = SIDE // cells
    return np.asarray(reduced.reshape(cells, step, cells, step, 3).mean((1, 3)), np.float64)


def _share_of_one_level(reduced: npt.NDArray[np.float64]) -> float:
    """The share of the commonest grey level: background without shading, noise or grain, which cameras do not make."""
    levels = np.rint(reduced @ _LUMA).astype(np.int64)
    return float(np.bincount(levels.ravel()).max() / levels.size)
