"""Where the samples of a request lie: as the ledger has it, and as a search of every part finds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from smalti.curation.readers import PartReader
from smalti.errors import MissingObject
from smalti.lake import Lake
from smalti.optouts.ledger_rows import in_order, shows_its_own
from smalti.release.optouts import OptoutSnapshot
from smalti.shards.part import Part, not_collected

_ROWS = 1 << 20
"""Rows of samples.parquet that are searched at a time."""


@dataclass
class Places:
    """Attributes:
    rows: id, source, how, shard and index of each that has a place, in the ledger's order.
    ids: of rows of tables, too.
    pictures: sha256 that no other sample may have.
    keys: places of the request's keys that name a sample.
    shards: basename -> index -> id; what the search finds is added.
    parts, searched: whose rows were searched, and how many.
    """

    rows: list[dict[str, Any]]
    ids: frozenset[str]
    pictures: frozenset[str]
    keys: frozenset[int]
    shards: dict[str, dict[int, str]]
    parts: int = 0
    searched: int = 0
    _frames: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, matched: pa.Table | None) -> Places:
        """From the rows that steps of the ledger have matched; None: there are none."""
        if matched is None:
            return cls([], frozenset(), frozenset(), frozenset(), {})
        matched = in_order(matched)
        placed = matched.filter(pc.is_valid(matched["shard"]))
        rows = placed.select(["id", "source", "how", "shard", "index"]).to_pylist()
        keys = zip(matched["key"].to_pylist(), matched["how"].to_pylist(), strict=True)
        shards: dict[str, dict[int, str]] = {}
        for row in rows:
            shards.setdefault(row["shard"], {})[row["index"]] = row["id"]
        return cls(
            rows,
            frozenset(matched["id"].to_pylist()),
            frozenset(matched.filter(shows_its_own(matched))["sha256"].to_pylist()),
            frozenset(key for key, how in keys if how == "key"),
            shards,
        )

    def again(self, matched: pa.Table, snapshot: OptoutSnapshot) -> list[str]:
        """Add what the request's keys match when they are matched anew. Returns a line for each place that the snapshot lacks."""
        faults: list[str] = []
        placed = matched.filter(pc.is_valid(matched["shard"]))
        columns = (placed[name].to_pylist() for name in ("id", "shard", "index"))
        named: dict[str, frozenset[int]] = {}
        for name, shard, index in zip(*columns, strict=True):
            self.shards.setdefault(shard, {})[index] = name
            if shard not in named:
                named[shard] = frozenset(snapshot.shards.get(shard, ()))
            if index not in named[shard]:
                faults.append(f"a matched sample is in {shard} at {index}, which snapshot {snapshot.position} lacks")
        self.ids |= frozenset(placed["id"].to_pylist())
        return faults

    def search(self, lake: Lake, parts: Mapping[str, Part], snapshot: OptoutSnapshot) -> list[str]:
        """Look for these pictures and ids in every part. Returns a line for each place that the snapshot lacks."""
        faults: list[str] = []
        named = {shard: frozenset(indices) for shard, indices in snapshot.shards.items()}
        for part in parts.values():
            try:
                for name, shard, index in self._hits(lake, part):
                    self.shards.setdefault(shard, {})[index] = name
                    if index not in named.get(shard, ()):
                        faults.append(
                            f"a matched sample is in {shard} at {index}, which snapshot {snapshot.position} lacks"
                        )
            except MissingObject as error:
                not_collected(lake, {part.name: part}, error)
                continue
            self.parts, self.searched = self.parts + 1, self.searched + part.samples
        return faults

    def _hits(self, lake: Lake, part: Part) -> list[tuple[str, str, int]]:
        """(id, shard, index) of what has one of the pictures or ids."""
        import polars as pl

        if not self.ids:
            return []
        reader = PartReader(lake, (part,))
        ids, pictures, begins = self._wanted(part.source)
        found: list[tuple[str, str, int]] = []
        for start in range(0, part.samples, _ROWS):
            light = reader.read(0, ["sha256_0", *(["id"] if len(ids) else [])], start, _ROWS)
            maybe = pl.col("sha256_0").is_in(begins.implode())
            if len(ids):
                maybe |= pl.col("id").is_in(ids.implode())
            if light.select(maybe.any()).item():
                rows = reader.read(0, ["id", "sha256", "shard", "index"], start, _ROWS)
                rows = rows.filter(pl.col("sha256").is_in(pictures.implode()) | pl.col("id").is_in(ids.implode()))
                found += rows.select("id", "shard", "index").iter_rows()
        return found

    def _wanted(self, source: str) -> tuple[Any, Any, Any]:
        """Ids of a source, pictures, and the first 64 bits of those, as polars Series."""
        import polars as pl

        if source not in self._frames:
            pictures = sorted(self.pictures)
            self._frames[source] = (
                pl.Series(sorted(name for name in self.ids if name.startswith(f"{source}/")), dtype=pl.String),
                pl.Series(pictures, dtype=pl.String),
                pl.Series([int(each[:16], 16) for each in pictures], dtype=pl.UInt64),
            )
        found: tuple[Any, Any, Any] = self._frames[source]
        return found
