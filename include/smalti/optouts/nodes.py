"""The samples that copies are looked for among: those that were matched, those that may be copies, and matched ones of earlier times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from smalti.curation.copies import ASPECT_TOLERANCE
from smalti.curation.load import read_thumbnails
from smalti.curation.near import Ints, Keys, Mask
from smalti.curation.readers import Rows, Thumbnails
from smalti.images.fingerprint import colours_agree_pairs
from smalti.optouts.direct import gather
from smalti.optouts.prints import HASHED, Prints, as_keys, kind_of
from smalti.shards.samples import KEYS, THUMBNAIL, keys_of

_PAIRS = 1 << 16
"""Pairs of thumbnails that are compared at a time: 2 x 6 MiB."""


@dataclass
class Nodes:
    """Columns of what may be a copy of one another. Rows of the reader are added as they are met; thumbnails are read when they are compared.

    Attributes:
        row: of the reader; -1 of what is not there.
        sha256: uint64 (n, 2), KEYS.
        phash, kind: as in Prints.
        ratio: log(width / height).
    """

    reader: Rows
    prints: Prints
    row: Ints
    sha256: Keys
    phash: Keys
    kind: npt.NDArray[np.uint8]
    ratio: npt.NDArray[np.float64]
    _colour: Thumbnails
    _at: Ints  # of a node's thumbnail in `_colour`, or -1
    _rows: Ints  # ascending
    _of_rows: Ints  # their nodes

    @classmethod
    def of(cls, reader: Rows, prints: Prints, others: Any) -> Nodes:
        """Of what is not in the reader; others: frame with sha256, phash, colour, flat, width and height."""
        none = np.empty(0, np.int64)
        return cls(
            reader,
            prints,
            np.full(others.height, -1),
            np.stack(keys_of(others["sha256"].to_arrow()), 1) if others.height else np.empty((0, 2), np.uint64),
            as_keys(others["phash"].fill_null(0)),
            kind_of(others),
            _ratio(others),
            _thumbnails(others["colour"]),
            np.arange(others.height),
            none,
            none,
        )

    def __len__(self) -> int:
        return len(self.row)

    def add(self, rows: Ints) -> None:
        """Rows of the reader (ascending); those that are here already stay as they are."""
        new = rows[~np.isin(rows, self._rows, assume_unique=True)]
        if not len(new):
            return
        second, ratio = np.empty(len(new), np.uint64), np.empty(len(new), np.float64)
        for places, _, frame in gather(self.reader, [KEYS[1], "width", "height"], new):
            second[places], ratio[places] = as_keys(frame[KEYS[1]]), _ratio(frame)
        self._of_rows = np.concatenate([self._of_rows, np.arange(len(self), len(self) + len(new))])
        self._rows = np.concatenate([self._rows, new])
        order = np.argsort(self._rows, kind="stable")
        self._rows, self._of_rows = self._rows[order], self._of_rows[order]
        self.row = np.concatenate([self.row, new])
        self.sha256 = np.concatenate([self.sha256, np.stack([self.prints.sha256[new], second], 1)])
        self.phash = np.concatenate([self.phash, self.prints.phash[new]])
        self.kind = np.concatenate([self.kind, self.prints.kind[new]])
        self.ratio = np.concatenate([self.ratio, ratio])
        self._at = np.concatenate([self._at, np.full(len(new), -1)])

    def at(self, rows: Ints) -> Ints:
        """The nodes of rows, all of which were added."""
        return self._of_rows[np.searchsorted(self._rows, rows)]

    def frame(self) -> Any:
        """node, and what is compared without thumbnails."""
        import polars as pl

        return pl.DataFrame({
            "node": np.arange(len(self)),
            "first": self.sha256[:, 0],
            "second": self.sha256[:, 1],
            "phash": self.phash,
            "hashed": self.kind == HASHED,
            "ratio": self.ratio,
        })

    def load(self, nodes: Ints) -> None:
        """Read the thumbnails of these that have none here yet."""
        nodes = np.unique(nodes)
        nodes = nodes[self._at[nodes] < 0]
        nodes = nodes[np.argsort(self.row[nodes], kind="stable")]
        if len(nodes):
            self._at[nodes] = len(self._colour) + np.arange(len(nodes))
            self._colour = np.concatenate([self._colour, read_thumbnails(self.reader, self.row[nodes])])

    def colour(self, nodes: Ints) -> Thumbnails:
        """Of nodes that were loaded: uint8 (n, THUMBNAIL)."""
        return np.asarray(self._colour[self._at[nodes]])

    def alike(self, ones: Ints, others: Ints) -> Mask:
        """Whether nodes of near hashes, all HASHED and loaded, show the same picture."""
        found = np.abs(self.ratio[ones] - self.ratio[others]) <= ASPECT_TOLERANCE
        rest = np.flatnonzero(found)
        for start in range(0, len(rest), _PAIRS):
            some = rest[start : start + _PAIRS]
            found[some] = colours_agree_pairs(self.colour(ones[some]), self.colour(others[some]))
        return np.asarray(found)

    def thumbnails(self, rows: Ints) -> Thumbnails:
        """Of rows of the reader (ascending), added or not."""
        found = np.empty((len(rows), THUMBNAIL), np.uint8)
        here = np.flatnonzero(np.isin(rows, self._rows, assume_unique=True))
        here = here[self._at[self.at(rows[here])] >= 0]
        found[here] = self.colour(self.at(rows[here]))
        rest = np.setdiff1d(np.arange(len(rows)), here, assume_unique=True)
        found[rest] = read_thumbnails(self.reader, rows[rest])
        return found


def _ratio(frame: Any) -> npt.NDArray[np.float64]:
    return np.asarray(np.log(frame["width"].to_numpy() / frame["height"].to_numpy()), np.float64)


def _thumbnails(column: Any) -> Thumbnails:
    return np.frombuffer(b"".join(column.fill_null(bytes(THUMBNAIL))), np.uint8).reshape(-1, THUMBNAIL)
