"""Which of a sample's captions a training run sees.

Chosen by weight from (seed, epoch, sample id) and nothing else: every world size, worker and resume sees the same one, and another
epoch may see another. It costs one hash of the id.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from smalti.captions import CAPTION_COLUMN
from smalti.errors import InputError

if TYPE_CHECKING:  # importing it costs what `import streaming` does
    from smalti.loader.small import Chosen

MAIN = "caption"
"""The column of the source's captioner: every sample that a release serves has words there, unless `caption_failed` was lifted."""

Captions = str | Mapping[str, float] | None
"""One column; column -> weight; None: as the release has them."""

_IS_CAPTION = re.compile(CAPTION_COLUMN)

_MOST = 1e9

_DIGITS = 12
"""Of a share: so that 7 to 3 is the same as 0.7 to 0.3."""


class CaptionChoice:
    """Columns and how often each is drawn.

    Attributes:
        shares: column -> share of the samples; they sum to 1, columns by name.
        is_plain: each sample's caption is the one that is stored as `caption`.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        total = math.fsum(weights.values())
        self.shares = {name: round(weights[name] / total, _DIGITS) for name in sorted(weights)}
        self._columns = tuple(self.shares)
        self.is_plain = self._columns == (MAIN,)
        self._bounds = [int(share * 2.0**64) for share in accumulate(self.shares.values())][:-1]
        self._shown = tuple(dict.fromkeys((MAIN, *self._columns)))

    def column(self, seed: int, epoch: int, sample_id: str) -> str:
        """The column that is drawn for a sample."""
        drawn = blake2b(f"{seed} {epoch} {sample_id}".encode(), digest_size=8).digest()
        return self._columns[bisect_right(self._bounds, int.from_bytes(drawn, "little"))]

    def apply(self, sample: dict[str, Any], seed: int, epoch: int) -> dict[str, Any]:
        """The sample, with the chosen words as its `caption`.

        `caption_column` says which column they are from: `caption` where the drawn one is empty. `captions` has `caption` and the
        weighed columns as they are stored; the sample has the extra columns besides.
        """
        column = self.column(seed, epoch, sample["id"])
        stored = {name: sample[name] for name in self._shown}
        if not stored[column]:
            column = MAIN
        sample["caption"] = stored[column]
        sample["caption_column"] = column
        sample["captions"] = stored
        return sample

    def check_columns(self, streams: Iterable[Chosen], where: str) -> None:
        """Raises InputError if a shard that is served lacks a column."""
        if self.is_plain:
            return
        shards = [shard for stream in streams for shard in stream.shards]
        for shard in shards:
            missing = sorted(set(self._columns) - set(shard.entry["column_names"]))
            if missing:
                in_all = set.intersection(*(set(each.entry["column_names"]) for each in shards))
                known = sorted(name for name in in_all if _IS_CAPTION.fullmatch(name))
                raise InputError(
                    f"captions: part {'/'.join(shard.basename.split('/')[:2])} has no column {missing[0]}",
                    where,
                    f"Use some of: {', '.join(known)}",
                )

    def check_state(self, state: Mapping[str, Any], where: str) -> None:
        """Raises InputError if a checkpoint was made with other captions: its epoch could not go on with the same ones."""
        theirs = state.get("captions", {MAIN: 1.0})  # from before there were others
        if theirs != self.shares:
            raise InputError(
                f"the checkpoint was made with captions {_spelled(theirs)}, not {_spelled(self.shares)}",
                where,
                f"Pass captions={theirs!r}; to change them, start a dataset without the checkpoint's state",
            )

    def line(self) -> str:
        """For the log."""
        return f"captions are drawn as {_spelled(self.shares)}"


def choice_of(given: Captions, release: Mapping[str, float], where: str) -> CaptionChoice:
    """The choice that a dataset makes.

    Raises:
        InputError: `given` is no column and no weights.
    """
    weights = {given: 1.0} if isinstance(given, str) else release if given is None else given
    if not isinstance(weights, Mapping):
        raise InputError(f"captions={given!r} is no choice", where, "Pass a column, or {column: weight}")
    if not weights:
        raise InputError("captions names no column", where, "Pass a column, {column: weight}, or None")
    for name, weight in weights.items():
        if not (isinstance(name, str) and _IS_CAPTION.fullmatch(name)):
            raise InputError(
                f"captions: {name!r} is no caption column",
                where,
                "Write `caption`, or `caption_` and a profile's name with _",
            )
        number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not (number and 0 < weight <= _MOST):
            raise InputError(
                f"captions: {weight!r} is no weight of {name}",
                where,
                f"Use a number above 0, and at most {_MOST:g}, or leave the column out",
            )
    return CaptionChoice(weights)


def in_some_shards(streams: Iterable[Chosen]) -> tuple[str, ...]:
    """Extra caption columns that some of the shards have and some have not, by name: samples with them could not be batched with others."""
    found = {tuple(shard.entry["column_names"]) for stream in streams for shard in stream.shards}
    everywhere = set.intersection(*map(set, found)) if found else set()
    return tuple(
        sorted(
            name for name in {*(each for names in found for each in names)} - everywhere if _IS_CAPTION.fullmatch(name)
        )
    )


def _spelled(shares: object) -> str:
    if not isinstance(shares, Mapping):
        return repr(shares)
    return ", ".join(f"{name} {share:g}" for name, share in shares.items())
