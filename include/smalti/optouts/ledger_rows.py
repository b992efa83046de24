"""The samples that steps of the ledger have matched: one parquet file a step, named after its bytes.

Rows are those of `smalti.optouts.match.MATCHED`: one for each request and place. What is done here needs the columns `request`,
`key`, `how`, `part`, `id`, `sha256`, `shard` and `index` of them, and carries the others along.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from smalti import objects
from smalti.errors import CorruptError
from smalti.lake import Lake
from smalti.optouts.resolution import Places
from smalti.shards.part import Part

READERS = 32
"""Requests to the store at once: 50 ms each on GCS."""

ORDER = ("request", "part", "shard", "index", "id")

PLACE = ["request", "shard", "index"]
"""What two rows of one step, or of two, agree on if they say the same."""


def write_matched(lake: Lake, rows: pa.Table) -> str | None:
    """Store the rows of a step. Returns the sha256 that names them; None: there are none, and nothing was stored."""
    if not rows.num_rows:
        return None
    out = io.BytesIO()
    pq.write_table(in_order(rows), out, compression="zstd")
    data = out.getvalue()
    sha256 = hashlib.sha256(data).hexdigest()
    objects.create_same(lake.optout_matched(sha256), data)
    return sha256


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
    """Rows with a place, each request and place once, without those that are known."""
    import polars as pl

    frame = pl.from_arrow(rows.select([*PLACE, "part"])).with_row_index("row")
    frame = frame.filter(pl.col("part") != "", pl.col("shard").is_not_null()).unique(PLACE, keep="first")
    if known is not None:
        frame = frame.join(pl.from_arrow(known.select(PLACE)), on=PLACE, how="anti")
    return rows.take(pa.array(frame["row"].sort().to_numpy()))


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


def places_and_ids(rows: pa.Table) -> tuple[Places, dict[str, tuple[str, ...]]]:
    """What a step says of its rows, by request."""
    import polars as pl

    frame = pl.from_arrow(rows.select([*PLACE, "id"]))
    places: Places = {}
    grouped = frame.group_by("request", "shard").agg(pl.col("index").unique().sort()).sort("request", "shard")
    for request, shard, indices in grouped.iter_rows():
        places.setdefault(request, {})[shard] = tuple(indices)
    ids = frame.group_by("request").agg(pl.col("id").unique().sort()).sort("request")
    return places, {request: tuple(each) for request, each in ids.iter_rows()}


def same_ids(lake: Lake, parts: Sequence[Part], known: pa.Table) -> pa.Table | None:
    """Samples of these parts that have the id of a known one: whoever asked meant that sample, however often it is delivered.

    Args:
        known: rows that requests have matched.
    Returns: rows of `known`'s schema, how "copy", some of which may be known; None: there are none.
    """
    import polars as pl

    keys = pl.from_arrow(known.select(["request", "id", "key", "source"])).unique(["request", "id"], keep="first")
    by_source: dict[str, Any] = {}
    for source in keys["source"].unique().to_list():
        by_source[source] = keys.filter(pl.col("source") == source).drop("source")

    def read(part: Part) -> pa.Table | None:
        if part.source not in by_source:
            return None
        return _with_ids(lake, part, by_source[part.source], known.schema)

    with ThreadPoolExecutor(4) as pool:  # each holds the ids of a part
        return together(pool.map(read, parts))


def _with_ids(lake: Lake, part: Part, keys: Any, schema: pa.Schema) -> pa.Table | None:
    import polars as pl

    uri = lake.samples(part.source, part.name)
    columns = [field.name for field in schema if field.name not in ("request", "key", "how", "part")]
    with objects.open_binary(uri) as file:
        try:
            found = pq.ParquetFile(file)
            ids = found.read(columns=["id"])["id"]
            hits = pc.is_in(ids, value_set=keys["id"].to_arrow().cast(pa.string()))
            if not pc.any(hits).as_py():
                return None
            rows = found.read(columns=columns).filter(hits)
        except (pa.ArrowException, KeyError) as error:
            raise CorruptError(f"this is not a samples.parquet ({error})", uri, "Restore it, or shard again") from error
    frame = pl.from_arrow(rows).join(keys, on="id", how="inner")
    frame = frame.with_columns(how=pl.lit("copy"), part=pl.lit(f"{part.source}/{part.name}"))
    return frame.select(schema.names).to_arrow().cast(schema)
