"""Keys that are pictures: which samples show them, and which only look much like what was matched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from smalti.curation.copies import ASPECT_TOLERANCE
from smalti.curation.near import Ints
from smalti.curation.readers import Thumbnails
from smalti.images.fingerprint import RECOMMENDED_DISTANCE, colours_agree_pairs
from smalti.optouts.nodes import Nodes
from smalti.optouts.prints import FLAT, HASHED
from smalti.optouts.request import Request
from smalti.optouts.spread import batches, near_hashes, ranges
from smalti.shards.samples import THUMBNAIL

NEAR_DISTANCE = 6
"""Bits of the hash by which something may differ that a person should look at. Of two unrelated photographs one pair in some 30,000 is as near by
chance, which is why colours are asked as well."""

NEAR_COLOURS = 8.0
"""Levels, averaged over a thumbnail, up to which colours are roughly alike: 16 of luma alone, which is half of it. A choice: nothing is done to what is listed."""

NEAR_ORIGINS = 16
"""Pictures of a request around which one looks: first those that are keys, then those that its first keys have."""

NEAR_LOOKED = 256
"""Samples of a request whose colours are compared, those of the nearest hashes. Their thumbnails lie scattered over a lake, and 13 MB are read
for each."""


@dataclass(frozen=True)
class Pictures:
    """Fingerprints with the request and key that they are of: of keys that are pictures, or of samples that keys have.

    Attributes:
        request, key: int64 (n,), places.
        kind: FLAT or HASHED.
        colour: uint8 (n, THUMBNAIL).
        ratio: log(width / height).
    """

    request: Ints
    key: Ints
    phash: npt.NDArray[np.uint64]
    kind: npt.NDArray[np.uint8]
    colour: Thumbnails
    ratio: npt.NDArray[np.float64]

    @classmethod
    def of_keys(cls, requests: Sequence[Request]) -> Pictures:
        found = [
            (number, place, key.fingerprint)
            for number, request in enumerate(requests)
            for place, key in enumerate(request.keys)
            if key.fingerprint is not None
        ]
        prints = [each for _, _, each in found]
        return cls(
            np.array([number for number, _, _ in found], np.int64),
            np.array([place for _, place, _ in found], np.int64),
            np.array([each.phash for each in prints], np.uint64),
            np.array([FLAT if each.flat else HASHED for each in prints], np.uint8),
            np.frombuffer(bytes.fromhex("".join(each.colour for each in prints)), np.uint8).reshape(-1, THUMBNAIL),
            np.array([np.log(each.width / each.height) for each in prints], np.float64),
        )

    def __len__(self) -> int:
        return len(self.phash)

    def take(self, places: Any) -> Pictures:
        fields = (self.request, self.key, self.phash, self.kind, self.colour, self.ratio)
        return Pictures(*(each[places] for each in fields))

    def find(self, nodes: Nodes) -> Any:
        """Rows that show one of them, as a polars frame: row, request, key. Flat ones are found by their bytes alone, which is not done here.

        Of the keys of a request that show a row the first one is named, and of every key that any row shows one row: a thousand pictures of a
        stand-in that a million rows have are a billion pairs, which are gone through piece by piece, and of which so much is kept.
        """
        import polars as pl

        some = self.take(np.flatnonzero(self.kind == HASHED))
        some = some.take(np.argsort(some.phash, kind="stable"))
        nodes.add(nodes.prints.candidates(np.empty(0, np.uint64), np.unique(some.phash), RECOMMENDED_DISTANCE))
        table = nodes.frame().filter("hashed").filter(pl.Series(nodes.row >= 0).filter(pl.Series(nodes.kind == HASHED)))
        asked = pl.DataFrame({"of": some.phash, "at": np.arange(len(some)), "its": some.ratio})
        lists = asked.group_by("of").agg(
            start=pl.col("at").min(), size=pl.len().cast(pl.Int64), low=pl.col("its").min(), high=pl.col("its").max()
        )
        tasks = near_hashes(some.phash, table["phash"].to_numpy())
        tasks = tasks.join(lists, on="of").join(table.select("phash", "node", "ratio"), on="phash")
        ratio = pl.col("ratio")
        tasks = tasks.filter(ratio >= pl.col("low") - ASPECT_TOLERANCE, ratio <= pl.col("high") + ASPECT_TOLERANCE)
        node, start, size = (tasks.sort("node", "start")[name].to_numpy() for name in ("node", "start", "size"))
        nodes.load(node)
        found = [_first(hits(*(np.empty(0, np.int64) for _ in range(3))))]
        for piece in batches(np.arange(len(node)), size):
            task, at = ranges(piece, start[piece], size[piece])
            close = np.abs(nodes.ratio[node[task]] - some.ratio[at]) <= ASPECT_TOLERANCE
            its, at = node[task[close]], at[close]
            same = np.zeros(len(its), np.bool_)
            for low in range(0, len(its), _COMPARED):
                rows = slice(low, low + _COMPARED)
                same[rows] = colours_agree_pairs(some.colour[at[rows]], nodes.colour(its[rows]))
            found.append(_first(hits(nodes.row[its[same]], some.request[at[same]], some.key[at[same]])))
        return _first(pl.concat(found))


_COMPARED = 1 << 16
"""Pairs of thumbnails that are compared at a time: 2 x 6 MiB."""


def _first(found: Any) -> Any:
    """Of entries the first key of each row and request, and the first row of each key."""
    import polars as pl

    rows = found.group_by("row", "request").agg(pl.col("key").min())
    keys = found.group_by("request", "key").agg(pl.col("row").min())
    return pl.concat([rows.select(found.columns), keys.select(found.columns)]).unique().sort("row", "request", "key")


def hits(row: Ints, request: Ints, key: Ints) -> Any:
    """A polars frame of entries."""
    import polars as pl

    return pl.DataFrame({"row": row, "request": request.astype(np.int32), "key": key.astype(np.int32)})


def origins(nodes: Nodes, keys: Pictures, found: Any) -> Pictures:
    """Around what near ones are looked for: NEAR_ORIGINS a request. found: row, request and key of samples that keys have."""
    import polars as pl

    first = (pl.col("request"), pl.col("key"), pl.col("row"))
    of_keys = pl.DataFrame({
        "request": keys.request,
        "key": keys.key,
        "phash": keys.phash,
        "kind": keys.kind,
        "picture": np.arange(len(keys)),
    })
    of_keys = of_keys.with_columns(row=pl.lit(-1, pl.Int64), content=pl.col("picture").cast(pl.UInt64)).sort(
        "request", "key"
    )
    rows = found["row"].to_numpy()
    samples = found.select(pl.col("request", "key").cast(pl.Int64), "row").with_columns(
        phash=pl.Series(nodes.prints.phash[rows]),
        kind=pl.Series(nodes.prints.kind[rows]),
        picture=pl.lit(-1, pl.Int64),
        content=pl.Series(nodes.prints.sha256[rows]),
    )
    samples = samples.filter(pl.col("kind") > 0).sort(first)
    both = pl.concat([of_keys, samples.select(of_keys.columns)])
    both = both.unique(["request", "phash", "kind", "content"], keep="first", maintain_order=True)
    both = both.group_by("request", maintain_order=True).head(NEAR_ORIGINS)
    picture, row = both["picture"].to_numpy(), both["row"].to_numpy()
    colour = np.empty((both.height, THUMBNAIL), np.uint8)
    colour[picture >= 0] = keys.colour[picture[picture >= 0]]
    rows, place = np.unique(row[picture < 0], return_inverse=True)
    colour[picture < 0] = nodes.thumbnails(rows)[place]
    request, key, phash, kind = (both[name].to_numpy() for name in ("request", "key", "phash", "kind"))
    return Pictures(request, key, phash, kind, colour, np.zeros(both.height))


@dataclass(frozen=True)
class Near:
    """entries: polars frame row, request, key. found, unseen: by request, as `Matched` has them."""

    entries: Any
    found: dict[int, int]
    unseen: dict[int, int]


def near(nodes: Nodes, around: Pictures, reached: Any, requests: int, limit: int) -> Near:
    """What looks much like one of some pictures, and is none of what their request has reached.

    Args:
        reached: frame row, request.
        limit: entries of a request that are listed at most.
    """
    import polars as pl

    known = np.unique(reached["row"].to_numpy() * requests + reached["request"].to_numpy())
    table = pl.DataFrame({
        "place": np.arange(len(around)),
        "phash": around.phash,
        "kind": around.kind,
        "request": around.request,
        "key": around.key,
    })
    hashes = np.unique(around.phash)

    def look(rows: slice, at: Ints, hash_: Ints) -> Any:
        pairs = pl.DataFrame({"row": rows.start + at, "phash": hashes[hash_], "kind_of": nodes.prints.kind[rows][at]})
        bits = np.bitwise_count(nodes.prints.phash[rows][at] ^ hashes[hash_])
        pairs = (
            pairs
            .with_columns(bits=pl.Series(bits, dtype=pl.UInt8))
            .filter(pl.col("kind_of") > 0)
            .join(table, on="phash")
        )
        both = (pl.col("kind") == HASHED) & (pl.col("kind_of") == HASHED)
        pairs = pairs.filter(both | (pl.col("bits") == 0))
        code = pairs["row"].to_numpy() * requests + pairs["request"].to_numpy()
        pairs = pairs.filter(pl.Series(~np.isin(code, known)))
        counts = pairs.group_by("request").agg(pl.col("row").n_unique())
        return _nearest(pairs), counts

    seen = nodes.prints.pairs(hashes, NEAR_DISTANCE, look)
    if not seen or not len(around):
        return Near(hits(*(np.empty(0, np.int64) for _ in range(3))), {}, {})
    pairs = _nearest(pl.concat([each for each, _ in seen]))
    counts = dict(pl.concat([each for _, each in seen]).group_by("request").agg(pl.col("row").sum()).iter_rows())
    rows, at = np.unique(pairs["row"].to_numpy(), return_inverse=True)
    colour = nodes.thumbnails(rows)[at].astype(np.int16) - around.colour[pairs["place"].to_numpy()]
    alike = pairs.filter(pl.Series(np.abs(colour).mean(1) <= NEAR_COLOURS))
    looked = dict(pairs.group_by("request").agg(pl.col("row").n_unique()).iter_rows())
    alike = (
        alike.group_by("request", "row").agg(pl.col("bits").min(), pl.col("key").min()).sort("request", "bits", "row")
    )
    found = dict(alike.group_by("request").len().iter_rows())
    listed = alike.group_by("request", maintain_order=True).head(limit)
    unseen = {number: count - looked[number] for number, count in counts.items() if count > looked[number]}
    entries = hits(*(listed[name].to_numpy() for name in ("row", "request", "key")))
    return Near(entries, found, unseen)


def _nearest(pairs: Any) -> Any:
    """The pairs of the NEAR_LOOKED nearest rows of each request."""
    import polars as pl

    rows = pairs.group_by("request", "row").agg(pl.col("bits").min()).sort("request", "bits", "row")
    rows = rows.group_by("request", maintain_order=True).head(NEAR_LOOKED)
    return pairs.join(rows.select("request", "row"), on=["request", "row"])
