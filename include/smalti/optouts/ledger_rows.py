"""The samples that steps of the ledger have matched: one parquet file a step, named after its bytes.

Rows are those that `smalti.optouts.match` returns: one for each request and place; and those of tables that are in no part (`part` is
empty, and there is no place), because what they show may have copies in parts that come. What is done here needs the columns `request`,
`part`, `id`, `sha256`, `shard` and `index` of them, and carries the others along.
"""

from __future__ import annotations

import hashlib
import io
import time
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from smalti import objects
from smalti.errors import CorruptError
from smalti.lake import Lake
from smalti.optouts.matched import KEY, ORDER
from smalti.optouts.request import READERS
from smalti.optouts.resolution import Places

PLACE = ["request", "shard", "index"]
"""What two rows of one step, or of two, agree on if they say the same."""

CONTENT = ["request", "id", "sha256"]
"""The same of a row of a table, which has no place: it says no more than one that has."""


OLD = 43_200.0
"""Seconds after which rows that nothing names are written anew by who is about to name them; garbage they are after twice as many."""


def write_matched(lake: Lake, rows: pa.Table) -> str | None:
    """Store the rows of a step. Returns the sha256 that names them; None: there are none, and nothing was stored."""
    if not rows.num_rows:
        return None
    out = io.BytesIO()
    pq.write_table(in_order(rows), out, compression="zstd")
    data = out.getvalue()
    sha256 = hashlib.sha256(data).hexdigest()
    _put(lake.optout_matched(sha256), data)
    return sha256


def _put(uri: str, data: bytes) -> None:
    """Create the rows, or find them. Those that a killed call left long ago are written anew, as they might be collected as garbage right now."""
    while not objects.create_bytes(uri, data):
        found = objects.read_versioned(uri)
        if found is None:
            continue  # they were
        if found[0] != data:
            raise CorruptError("the matched samples are not those that the ledger names", uri, "Restore the object")
        info = objects.stat(uri)
        if info is not None and (time.time() - info.written < OLD or objects.swap_bytes(uri, data, found[1])):
            return


def read_matched(lake: Lake, digests: Sequence[str], requests: Collection[str]) -> pa.Table | None:
    """The rows of these requests in these files; None: there are none.

    Raises:
        MissingObject, CorruptError: a file is gone, or has other bytes.
    """
    wanted = pa.array(sorted(requests), pa.string())

    def read(sha256: str) -> pa.Table:
        uri = lake.optout_matched(sha256)
        data = objects.read_bytes(uri)
        if hashlib.sha256(data).hexdigest() != sha256:
            raise CorruptError("the matched samples are not those that the ledger names", uri, "Restore the object")
        rows = pq.read_table(pa.BufferReader(data))
        return rows.filter(pc.is_in(rows["request"], value_set=wanted))

    with ThreadPoolExecutor(READERS) as pool:
        return together(pool.map(read, digests))


def together(tables: Iterable[pa.Table | None]) -> pa.Table | None:
    """All rows; None: there are none."""
    some = [table for table in tables if table is not None and table.num_rows]
    return pa.concat_tables([table.cast(some[0].schema) for table in some]) if some else None


def in_order(rows: pa.Table) -> pa.Table:
    """Sorted as a step's rows are."""
    return rows.sort_by([(name, "ascending") for name in ORDER]).combine_chunks()


def not_in(rows: pa.Table, known: pa.Table | None) -> pa.Table:
    """Rows without those that are known: each request and place once; of a table, each id and sha256 of a request once."""
    import polars as pl

    frame = pl.from_arrow(rows.select([*PLACE, "part", "id", "sha256"])).with_row_index("row")
    left = []
    for columns, some in ((PLACE, pl.col("part") != ""), (CONTENT, pl.col("part") == "")):
        new = frame.filter(some).unique(columns, keep="first")
        if known is not None:
            new = new.join(pl.from_arrow(known.select(columns)), on=columns, how="anti")
        left.append(new["row"])
    at = pl.concat(left)
    return rows if len(at) == rows.num_rows else rows.take(pa.array(at.sort().to_numpy()))


def without_doubles(rows: pa.Table) -> pa.Table:
    """Rows without those of a table that one with a place stands for."""
    is_placed = pc.not_equal(rows["part"], "")
    if pc.all(is_placed).as_py():
        return rows
    placed = rows.filter(is_placed)
    return pa.concat_tables([placed, not_in(rows.filter(pc.invert(is_placed)), placed)])


def requests_with_news(rows: pa.Table, known: pa.Table | None) -> set[str]:
    """Requests of which `rows` has a picture or an id that `known` does not have."""
    import polars as pl

    news: set[str] = set()
    for column in ("sha256", "id"):
        frame = pl.from_arrow(rows.select(["request", column])).unique()
        if known is not None:
            frame = frame.join(pl.from_arrow(known.select(["request", column])), on=["request", column], how="anti")
        news.update(frame["request"].to_list())
    return news


def shows_its_own(rows: pa.Table) -> pa.Array:
    """Which rows show what was asked for: bool.

    An id stays out when it is delivered again, and what it shows then (a stand-in, perhaps, that a thousand ids have) is no picture that was
    asked for. Rows do not tell that from a copy: of an id with several pictures, those that no key names count by the id alone.
    """
    import polars as pl

    frame = pl.DataFrame(pl.from_arrow(rows.select(["request", "id", "sha256", "how"])))
    is_named = (pl.col("how") == KEY).any().over("request", "id", "sha256")
    is_only = pl.col("sha256").n_unique().over("request", "id") == 1
    return frame.select(is_named | is_only).to_series().to_arrow()


def places_and_ids(rows: pa.Table) -> tuple[Places, dict[str, tuple[str, ...]]]:
    """What a step says of its rows, by request. Rows of tables have ids alone: a part that is written of them later is caught by these."""
    import polars as pl

    frame = pl.from_arrow(rows.select([*PLACE, "id"]))
    places: Places = {}
    grouped = (
        frame
        .drop_nulls("shard")
        .group_by("request", "shard")
        .agg(pl.col("index").unique().sort())
        .sort("request", "shard")
    )
    for request, shard, indices in grouped.iter_rows():
        places.setdefault(request, {})[shard] = tuple(indices)
    ids = frame.group_by("request").agg(pl.col("id").unique().sort()).sort("request")
    return places, {request: tuple(each) for request, each in ids.iter_rows()}
