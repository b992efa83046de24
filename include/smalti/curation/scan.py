"""One pass over all samples: what each rule says of them, and the few bytes that find copies. 20 bytes a sample are kept."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from smalti.config import Drops
from smalti.curation.copies import Copies
from smalti.curation.load import chunks, read_rows, read_thumbnails, starts_of
from smalti.curation.near import Ints, Keys, Mask, may_repeat
from smalti.curation.readers import Reader
from smalti.reasons import LABELS, SkipReason
from smalti.shards.samples import KEYS

Bits = npt.NDArray[np.uint16]

BIT = {reason: 1 << place for place, reason in enumerate(SkipReason)}
"""A sample's reasons in one number."""


@dataclass(frozen=True)
class Keyed:
    """Some rows, ascending, with their columns as in `Scan`."""

    rows: Ints
    sha256: Keys
    phash: Keys
    hashed: Mask

    def take(self, places: Ints) -> Keyed:
        return Keyed(self.rows[places], self.sha256[places], self.phash[places], self.hashed[places])


@dataclass
class Scan:
    """By row; rows are numbered through (`Reader`).

    Attributes:
        reasons: uint16, `BIT`s of what the rules say of the sample alone.
        current: bool, of the samples of an id the one that may be served.
        sha256: uint64, the first of the two hashes of `Copies`; those that may be copies are asked for the second one later.
        phash, hashed: as in `Copies`.
        shards: polars frame: shard, start (its first row), samples.
        denied: ids of the denylists that were met.
        supersede: fills in `reasons` and `current` where an id stands twice; None if no id can.
    """

    reasons: Bits
    current: Mask
    sha256: Keys
    phash: Keys
    hashed: Mask
    shards: Any
    denied: frozenset[str]
    supersede: Callable[[Mask], None] | None

    def keyed(self, rows: Ints) -> Keyed:
        """What is known of some rows."""
        return Keyed(rows, self.sha256[rows], self.phash[rows], self.hashed[rows])

    def row_of(self, shard_indices: Mapping[str, Sequence[int]]) -> Ints:
        """Rows of samples by shard and index; of other parts' shards there are none."""
        import polars as pl

        known = self.shards.filter(pl.col("shard").is_in(list(shard_indices)))
        found = [
            start + np.array([index for index in shard_indices[shard] if index < samples], np.int64)
            for shard, start, samples in known.select("shard", "start", "samples").iter_rows()
        ]
        return np.concatenate([np.empty(0, np.int64), *found])


def scan(
    reader: Reader, drops: Drops, denied: frozenset[str], shards: bool, opted_out: frozenset[str] = frozenset()
) -> Scan:
    """Read the narrow columns of every sample, and no other than the settings ask for.

    Args:
        shards: whether `row_of` will be asked.
    """

    starts = starts_of(reader)
    count = int(starts[-1])
    reasons, accepted = np.zeros(count, np.uint16), np.ones(count, np.bool_)
    sha256, phash, hashed = np.empty(count, np.uint64), np.empty(count, np.uint64), np.empty(count, np.bool_)
    look = _Look.of(reader, drops, denied, opted_out, shards)
    ids = np.empty(count if look.twice else 0, np.uint64)
    runs: list[Any] = []
    met: set[str] = set()
    for rows, seen in chunks(reader, look.columns, look):
        said = seen.said
        reasons[rows], accepted[rows] = said["reasons"].to_numpy(), said["accepted"].to_numpy()
        phash[rows], hashed[rows] = said["phash"].to_numpy(), said["hashed"].to_numpy()
        sha256[rows] = said["sha256"].to_numpy()
        if look.twice:
            ids[rows] = said["id"].to_numpy()
        met |= seen.denied
        runs += [] if seen.runs is None else [seen.runs]
    said_twice = functools.partial(_supersede, reader, ids, accepted, reasons) if look.twice else None
    return Scan(reasons, np.ones(count, np.bool_), sha256, phash, hashed, _shards(runs), frozenset(met), said_twice)


@dataclass(frozen=True)
class _Seen:
    """Of a chunk: frame of what `Scan` has by row, with the hashes of ids; ids of the denylists; runs of shards, or None."""

    said: Any
    denied: frozenset[str]
    runs: Any


@dataclass(frozen=True)
class _Look:
    """What is looked at of each chunk of rows.

    Attributes:
        twice: parts of a source that has several: only there an id can stand twice.
    """

    rules: Mapping[SkipReason, Any]
    takes: Any
    denied: frozenset[str]
    twice: frozenset[int]
    columns: tuple[str, ...]

    @classmethod
    def of(cls, reader: Reader, drops: Drops, denied: frozenset[str], opted_out: frozenset[str], shards: bool) -> _Look:
        rules, takes = _rules(drops, denied, opted_out), _accepts(drops)
        parts = Counter(reader.sources)
        twice = frozenset(part for part, source in enumerate(reader.sources) if parts[source] > 1)
        asked = {name for rule in (*rules.values(), takes) for name in rule.meta.root_names()}
        columns = {KEYS[0], "phash", "flat", *asked} | ({"shard"} if shards else set()) | ({"id"} if twice else set())
        return cls(rules, takes, denied, twice, tuple(sorted(columns)))

    def __call__(self, part: int, first: int, frame: Any) -> _Seen:
        import polars as pl

        tells = pl.col("phash").is_not_null() & ~pl.col("flat").fill_null(True)
        said = frame.select(
            sha256=KEYS[0],
            reasons=pl.sum_horizontal(rule.cast(pl.UInt16) * BIT[reason] for reason, rule in self.rules.items()),
            accepted=self.takes,
            phash=pl.when(tells).then("phash").otherwise(KEYS[0]),  # see dedup.candidates
            hashed=tells,
        )
        if self.twice:
            alone = pl.Series(np.arange(first, first + frame.height), dtype=pl.UInt64)
            said = said.with_columns(id=frame["id"].hash(2) if part in self.twice else alone)
        denied = frame["id"].filter(frame["id"].is_in(self.denied)).to_list() if self.denied else []
        runs = frame["shard"].rle().struct.unnest() if "shard" in self.columns else None
        if runs is not None:
            runs = runs.select(shard="value", samples=pl.col("len").cast(pl.Int64))
        return _Seen(said, frozenset(denied), runs)


def _rules(drops: Drops, denied: frozenset[str], opted_out: frozenset[str]) -> dict[SkipReason, Any]:
    """What each reason asks of a sample; what its owner, its other deliveries and its copies say is not here."""
    import polars as pl

    rules = {
        SkipReason.CAPTION_FAILED: ~pl.col("caption_ok"),
        SkipReason.LABEL_FAILED: pl.col("caption_ok") & pl.col("label").is_null(),
        SkipReason.RESOLUTION: pl.col("tier") < drops.min_tier,
    }
    if denied:
        rules[SkipReason.DENYLIST] = pl.col("id").is_in(sorted(denied))
    if opted_out:
        rules[SkipReason.OPTOUT] = pl.col("id").is_in(sorted(opted_out))
    if drops.licences is not None:
        rules[SkipReason.LICENCE] = ~pl.col("licence").is_in(list(drops.licences)).fill_null(False)
    if drops.captioners is not None:
        rules[SkipReason.CAPTIONER] = ~pl.col("captioner").is_in(list(drops.captioners))
    if drops.classifiers is not None:
        rules[SkipReason.CLASSIFIER] = ~pl.col("classifier").is_in(list(drops.classifiers))
    for label in drops.labels:
        rules[LABELS[label]] = (pl.col("label") == str(label)).fill_null(False)
    return rules


def _accepts(drops: Drops) -> Any:
    """Whether those who described and labelled a sample are accepted."""
    import polars as pl

    named = pl.lit(True)
    if drops.captioners is not None:
        named &= pl.col("captioner").is_in(list(drops.captioners))
    if drops.classifiers is not None:
        named &= pl.col("classifier").is_in(list(drops.classifiers))
    return named | pl.col("caption_ok").is_null()  # a column, however many rows there are


def _supersede(reader: Reader, ids: Keys, accepted: Mask, reasons: Bits, current: Mask) -> None:
    """Which sample of an id may be served: of the newest picture, by engines that are accepted, in the newest part.

    So a picture that two captioners described, each in a part of its own, is served with the words of the one that the dataset
    names; and a picture that the source has replaced is not, whoever described it.

    Args:
        ids: hashes of the ids.
        reasons, current: are filled in.
    """
    import polars as pl

    rows = np.flatnonzero(may_repeat(ids))
    found = []

    def take(places: slice, part: int, frame: Any) -> None:
        order = pl.col("batch").replace_strict(reader.places(part), return_dtype=pl.Int64)
        found.append(frame.with_columns(order=order).drop("batch"))

    read_rows(reader, ["id", "sha256", "batch"], rows, take)
    if not found:
        return
    newest = pl.col("sha256") == pl.col("sha256").sort_by("order").last().over("id")
    frame = pl.concat(found).with_columns(newest=newest, accepted=pl.Series(accepted[rows]))
    better = pl.col("newest").cast(pl.Int64) + (pl.col("newest") & pl.col("accepted")).cast(pl.Int64)
    frame = frame.with_columns(rank=better * (pl.col("order").max() + 1) + pl.col("order"))
    frame = frame.with_columns(current=pl.col("rank") == pl.col("rank").max().over("id"))
    current[rows] = frame["current"].to_numpy()
    old = frame.select(~pl.col("current") & (pl.col("accepted") | ~pl.col("newest"))).to_series().to_numpy()
    reasons[rows[old]] |= np.uint16(BIT[SkipReason.SUPERSEDED])


def _shards(runs: Sequence[Any]) -> Any:
    """Shards with their first rows; a shard that two chunks share is one."""
    import polars as pl

    if not runs:
        return pl.DataFrame(schema={"shard": pl.String, "start": pl.Int64, "samples": pl.Int64})
    frame = pl.concat(runs).group_by("shard", maintain_order=True).agg(pl.col("samples").sum())
    return frame.with_columns(start=pl.col("samples").cum_sum() - pl.col("samples"))


@contextlib.contextmanager
def reading_copies(reader: Reader, keyed: Keyed, priorities: Mapping[str, int]) -> Iterator[Copies]:
    """The wide columns of some rows, too. Thumbnails are read in the background until somebody asks for them.

    Raises:
        InputError: the thumbnails are those of an older smalti.
    """
    import polars as pl

    rows = keyed.rows
    width, height = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    sha256 = np.stack([keyed.sha256, np.empty(len(rows), np.uint64)]).T
    priority, ids = np.empty(len(rows), np.int64), []

    def take(places: slice, part: int, frame: Any) -> None:
        width[places], height[places] = frame["width"].to_numpy(), frame["height"].to_numpy()
        sha256[places, 1] = frame[KEYS[1]].to_numpy()
        priority[places] = priorities.get(reader.sources[part], 0)
        ids.append(frame["id"])

    with ThreadPoolExecutor(1) as pool:
        thumbnails = pool.submit(read_thumbnails, reader, rows)
        read_rows(reader, ["id", "width", "height", KEYS[1]], rows, take)
        yield Copies(
            id=pl.concat(ids, rechunk=True) if ids else pl.Series("id", [], pl.String),
            priority=priority,
            sha256=sha256,
            phash=keyed.phash,
            hashed=keyed.hashed,
            thumbnails=thumbnails.result,
            width=width,
            height=height,
        )
