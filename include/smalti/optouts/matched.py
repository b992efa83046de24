"""What requests match, as rows: one for each place that a request reaches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

KEY, COPY, NEAR = "key", "copy", "near"
"""How a row was found: by a key itself; because it shows a picture, or has the id, of such a row; or only looks much like one."""

MATCHED = pa.schema([
    pa.field("request", pa.string(), nullable=False),
    pa.field("key", pa.int32(), nullable=False),  # place in the request's keys; of a copy: of the key that reached it
    pa.field("how", pa.string(), nullable=False),
    pa.field("source", pa.string(), nullable=False),
    pa.field("part", pa.string(), nullable=False),  # "<source>/<part>"; empty: of a table
    pa.field("id", pa.string(), nullable=False),
    pa.field("sha256", pa.string(), nullable=False),
    pa.field("phash", pa.uint64()),
    pa.field("colour", pa.binary()),
    pa.field("flat", pa.bool_()),
    pa.field("width", pa.int32(), nullable=False),
    pa.field("height", pa.int32(), nullable=False),
    pa.field("tier", pa.int32()),
    pa.field("ar", pa.string()),
    pa.field("shard", pa.string()),  # relative to parts/
    pa.field("index", pa.int32()),  # in the shard
])
"""Sorted by ORDER; a request has a place once."""

ORDER = ("request", "part", "shard", "index", "id")


@dataclass(frozen=True)
class Matched:
    """What some requests match in some parts.

    Attributes:
        rows: MATCHED, what is opted out.
        near: MATCHED, `how` is NEAR: for a person to look at; nothing is done to them.
        unmatched: request -> places of the keys that no row has.
        near_found: request -> rows that are near, listed or not; requests without any are not named.
        near_unseen: request -> rows of a hash as near that were not looked at, because there were too many.
    """

    rows: pa.Table
    near: pa.Table
    unmatched: Mapping[str, tuple[int, ...]]
    near_found: Mapping[str, int] = field(default_factory=dict)
    near_unseen: Mapping[str, int] = field(default_factory=dict)
