"""What requests match: the samples that their keys name, every copy of those in any source, tier and ratio, and every place of their ids.

    keys      the columns that the kinds of keys ask for (`smalti.optouts.direct`); pictures by their fingerprint (`pictures`)
    copies    equal bytes, or the same picture, over chains of copies (`spread`)
    places    whatever has the id of a matched sample: what is opted out stays so when the source delivers it again. What another
              delivery of the id shows is not looked for elsewhere: it may be a stand-in that a thousand ids have.

Nothing here depends on the order of parts or of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from smalti.curation.near import Mask
from smalti.curation.readers import PartReader, Rows, Thumbnails
from smalti.lake import Lake
from smalti.optouts.direct import Direct, as_rows, gather, rows_of
from smalti.optouts.keys import HANDED_IN_AGAIN
from smalti.optouts.ledger_rows import not_in
from smalti.optouts.matched import COPY, KEY, MATCHED, NEAR, ORDER, Matched
from smalti.optouts.nodes import Nodes
from smalti.optouts.pictures import Pictures, near, origins
from smalti.optouts.prints import Prints
from smalti.optouts.request import Request
from smalti.optouts.spread import spread
from smalti.shards.part import Part
from smalti.shards.samples import THUMBNAIL, check_thumbnails

NEAR_LISTED = 1000
"""Near matches of a request that are listed at most."""


def match_parts(
    lake: Lake,
    parts: Sequence[Part],
    requests: Sequence[Request],
    known: pa.Table | None = None,
    *,
    near: int = NEAR_LISTED,
) -> Matched:
    """Match requests with samples.parquet of parts.

    Args:
        parts: committed ones, of any sources, each once.
        known: MATCHED, what these requests have matched elsewhere: what its rows of a key show, over copies of copies, is matched here as well, and
            what has one of its ids; its places are not listed again.
        near: rows that only look much alike which are listed for a request at most; 0: none is looked for.
    Raises:
        MissingObject: a samples.parquet is not there.
        CorruptError: one is damaged.
    """
    known = MATCHED.empty_table() if known is None else known
    ordered = sorted(parts, key=lambda part: (part.source, part.name))  # nothing depends on the caller's order
    reader, labels = PartReader(lake, tuple(ordered)), [f"{part.source}/{part.name}" for part in ordered]
    found = match_rows(reader, requests, known, near)
    rows = not_in(table_of(reader, labels, found.nodes, requests, found.entries), known)
    return Matched(
        rows.sort_by([(name, "ascending") for name in ORDER]),
        table_of(reader, labels, found.nodes, requests, found.near),
        found.unmatched,
        {requests[number].id: count for number, count in sorted(found.near_found.items())},
        {requests[number].id: count for number, count in sorted(found.near_unseen.items())},
    )


@dataclass(frozen=True)
class Found:
    """Polars frames `entries` and `near`: row, request (its place), key, how. nodes: None if nothing was found."""

    entries: Any
    near: Any
    unmatched: dict[str, tuple[int, ...]]
    near_found: dict[int, int]
    near_unseen: dict[int, int]
    nodes: Nodes | None


def match_rows(
    reader: Rows,
    requests: Sequence[Request],
    known: pa.Table,
    near_limit: int,
    *,
    keys: bool = True,
    direct: Any = None,
) -> Found:
    """Match requests with the rows of a reader. Without `keys` only with what is known of them.

    Args:
        direct: what `Direct` finds, if the caller has asked it already.
    """
    import polars as pl

    asked = requests if keys else ()
    pictures = Pictures.of_keys(asked)
    before = _known(known, requests)
    if direct is None or not keys:
        direct = Direct.of(asked).find(reader)
    if not (direct.height or before.height or len(pictures)):
        nothing = _labelled(direct, KEY)
        return Found(nothing, nothing, _unmatched(requests, direct, before), {}, {}, None)
    content = ["sha256", "phash", "colour", "flat", "width", "height"]
    others = before.select(content).unique(maintain_order=True).with_row_index("node")
    nodes = Nodes.of(reader, Prints.read(reader), others)
    nodes.add(as_rows(direct))
    direct = pl.concat([direct, pictures.find(nodes)])
    unmatched = _unmatched(requests, direct, before)
    direct = direct.group_by("row", "request").agg(pl.col("key").min()).sort("row", "request")
    own = before.join(others, on=content, nulls_equal=True)
    earlier = own.filter(pl.col("how") == KEY)
    here = direct.with_columns(node=pl.Series(nodes.at(direct["row"].to_numpy())))
    columns = [pl.col("node").cast(pl.Int64), "request", "key"]
    reached = spread(nodes, pl.concat([here.select(columns), earlier.select(columns)]), own, len(requests))
    reached = reached.with_columns(row=pl.Series(nodes.row[reached["node"].to_numpy()])).filter(pl.col("row") >= 0)
    copies = reached.select("row", "request", "key").join(direct, on=["row", "request"], how="anti")
    found = pl.concat([_labelled(direct, KEY), _labelled(copies, COPY)])
    entries = pl.concat([found, _labelled(_same_ids(reader, found, before), COPY)]).sort("row", "request")
    listed, counts, unseen = direct.clear(), {}, {}
    if near_limit:
        alike = near(nodes, origins(nodes, pictures, direct), entries, len(requests), near_limit)
        listed, counts, unseen = alike.entries, alike.found, alike.unseen
    return Found(entries, _labelled(listed, NEAR), unmatched, counts, unseen, nodes)


def _labelled(entries: Any, how: str) -> Any:
    import polars as pl

    return entries.select("row", "request", "key", how=pl.lit(how, pl.String))


def _known(known: pa.Table, requests: Sequence[Request]) -> Any:
    """Rows of these requests, `request` being its place."""
    import polars as pl

    numbers = pl.DataFrame(
        {"id": [each.id for each in requests], "number": range(len(requests))},
        schema={"id": pl.String, "number": pl.Int32},
    )
    columns = ["request", "key", "how", "id", "sha256", "phash", "colour", "flat", "width", "height"]
    check_thumbnails(known["colour"], "the ledger of opt-outs", HANDED_IN_AGAIN)
    frame = pl.DataFrame(pl.from_arrow(known.select(columns)))
    found = frame.join(numbers, left_on="request", right_on="id").drop("request").rename({"number": "request"})
    return found.sort("request", "key", "id", "sha256", "width", "height")


def _unmatched(requests: Sequence[Request], direct: Any, before: Any) -> dict[str, tuple[int, ...]]:
    """Keys that no row has, here or in what was known."""
    import polars as pl

    pairs = pl.concat([direct.select("request", "key"), before.filter(pl.col("how") == KEY).select("request", "key")])
    has: dict[int, set[int]] = {}
    for number, place in pairs.unique().iter_rows():
        has.setdefault(number, set()).add(place)
    return {
        request.id: tuple(sorted(set(range(len(request.keys))) - has.get(number, set())))
        for number, request in enumerate(requests)
    }


def _same_ids(reader: Rows, found: Any, before: Any) -> Any:
    """Other rows of the ids of what was found, or known before: row, request, key."""
    import polars as pl

    rows = as_rows(found)
    ids: list[Any] = [pl.DataFrame(schema={"id": pl.String, "row": pl.Int64})]
    ids += [frame.with_columns(row=pl.Series(rows[at])) for at, _, frame in gather(reader, ["id"], rows)]
    named = pl.concat([
        pl.concat([each.select("id", "row") for each in ids]).join(found, on="row").select("id", "request", "key"),
        before.select("id", "request", "key"),
    ])
    named = named.group_by("id", "request").agg(pl.col("key").min())
    if not named.height:
        return found.clear()
    places = rows_of(named["id"], reader).join(named, on="id")
    return places.join(found, on=["row", "request"], how="anti")


def table_of(
    reader: Rows, labels: Sequence[str], nodes: Nodes | None, requests: Sequence[Request], entries: Any
) -> pa.Table:
    """Entries as MATCHED. labels: of the reader's parts."""
    import polars as pl

    rows = as_rows(entries)
    if nodes is None or not len(rows):
        return MATCHED.empty_table()
    columns = ["id", "sha256", "phash", "flat", "width", "height", "tier", "ar", "shard", "index"]
    frames = [
        frame.with_columns(source=pl.lit(reader.sources[part]), part=pl.lit(labels[part]))
        for _, part, frame in gather(reader, columns, rows)
    ]
    frame = pl.concat(frames).with_columns(place=pl.int_range(len(rows), dtype=pl.Int64), row=pl.Series(rows))
    names = pl.Series([each.id for each in requests], dtype=pl.String)
    frame = frame.join(entries, on="row")
    frame = frame.with_columns(request=names.gather(frame["request"])).sort(*ORDER, nulls_last=False)
    thumbnails, place = nodes.thumbnails(rows), frame["place"].to_numpy()
    none = frame["phash"].is_null().to_numpy()
    narrow = frame.select(name for name in MATCHED.names if name != "colour").to_arrow(
        compat_level=pl.CompatLevel.oldest()
    )
    del frame, frames  # at 1e8 samples each is a gigabyte
    colour = [
        _binaries(thumbnails[place[at : at + _COLOURS]], none[at : at + _COLOURS])
        for at in range(0, len(place), _COLOURS)
    ]
    wide = narrow.append_column("colour", pa.chunked_array(colour, pa.binary()))
    return wide.select(MATCHED.names).cast(MATCHED)


_COLOURS = 1 << 20
"""Thumbnails in one piece of a column: Arrow's binary has 2 GiB at most."""


def _binaries(thumbnails: Thumbnails, none: Mask) -> pa.Array:
    """uint8 (n, THUMBNAIL) as a column, null where there is none."""
    fixed = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(THUMBNAIL), len(thumbnails), [None, pa.py_buffer(np.ascontiguousarray(thumbnails))]
    )
    return pc.if_else(pa.array(none), pa.scalar(None, pa.binary()), fixed.cast(pa.binary()))


__all__ = ["MATCHED", "Matched", "match_parts"]
