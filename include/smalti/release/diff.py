"""Two releases compared, sample by sample: what the second serves that the first does not, what it no longer serves, and why.

Parts never change, so in a part that both releases have only the skip lists are compared, shard by shard; ids are read of
the shards that differ. The samples of a part that only one of them has are all looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import Field

from smalti import objects
from smalti.errors import CorruptError, MissingObject
from smalti.lake import Lake
from smalti.reasons import SkipReason
from smalti.release.manifest import Manifest, read_manifest, read_skip_file
from smalti.release.optouts import lake_of, newest_position, read_snapshot
from smalti.release.skips import Model, ShardSkips
from smalti.release.tombstones import refuse_succeeded

MOST = 1000
"""Samples that are named for each reason; counts are always whole."""

GONE = "in no part"
"""Why a sample is not served that no part of the release has."""

_COLUMNS = ("id", "sha256", "captioner", "shard", "index")


class Change(Model):
    """A sample that one release serves and the other does not.

    Attributes:
        why: the reason for which the other one leaves it out, or `in no part`.
    """

    id: str
    why: str


class Side(Model):
    """One of the two releases."""

    dataset: str
    version: str
    digest: str
    samples: int
    kept: int


class Diff(Model):
    """What became different from `before` to `after`.

    Attributes:
        gained: reason for which `before` did not serve it -> samples that `after` serves.
        lost: reason for which `after` does not serve it -> samples that `before` served.
        replaced: what differs (picture, captioner, part) -> samples that both serve, from other places.
        settings: one line a setting that differs.
        gained_samples, lost_samples: at most MOST for each reason, by id. What is opted out by now is counted and not named: who asked for
            that does not want to stand in a list.
    """

    before: Side
    after: Side
    gained: dict[str, int] = Field({})
    lost: dict[str, int] = Field({})
    replaced: dict[str, int] = Field({})
    new_parts: tuple[str, ...] = ()
    gone_parts: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    gained_samples: tuple[Change, ...] = ()
    lost_samples: tuple[Change, ...] = ()


def diff(before_uri: str, after_uri: str, most: int = MOST) -> Diff:
    """Compare two releases of one lake.

    Raises:
        MissingObject, CorruptError: something that a manifest names is missing or damaged.
        InputError: it is missing, and another version took the place of one of the two.
    """
    try:
        return _compare(_Release.at(before_uri), _Release.at(after_uri), most)
    except MissingObject:
        for uri in (before_uri, after_uri):
            refuse_succeeded(objects.normalise_uri(uri))
        raise


def diff_manifests(lake: Lake, before: Manifest, after: Manifest, most: int = MOST) -> Diff:
    """The same for manifests in hand, of which the second need not be written yet; its skip files must be."""
    first, second = (_Release(lake.manifest(each.dataset, each.version), each) for each in (before, after))
    return _compare(first, second, most)


@dataclass
class _Release:
    """A release, and what its skip files say."""

    uri: str
    manifest: Manifest

    @classmethod
    def at(cls, uri: str) -> _Release:
        uri = objects.normalise_uri(uri)
        return cls(uri, read_manifest(uri))

    @property
    def side(self) -> Side:
        counts = self.manifest.accounting
        return Side(
            dataset=self.manifest.dataset,
            version=self.manifest.version,
            digest=self.manifest.digest,
            samples=counts.samples,
            kept=counts.kept,
        )

    @cached_property
    def parts(self) -> dict[str, str]:
        """`source/part` -> digest of its plan."""
        return {f"{source.name}/{part.name}": part.digest for source in self.manifest.sources for part in source.parts}

    @cached_property
    def skips(self) -> dict[str, ShardSkips]:
        """Basename -> what is left out."""
        found: dict[str, ShardSkips] = {}
        for stream in self.manifest.streams:
            found |= read_skip_file(self.uri, stream).shards
        return found

    @cached_property
    def opted_out(self) -> dict[str, tuple[int, ...]]:
        """Places in the release's parts that are opted out by now: shard -> indices."""
        lake = lake_of(self.uri)
        shards = read_snapshot(lake, newest_position(lake)).shards
        return {name: indices for name, indices in shards.items() if "/".join(name.split("/", 2)[:2]) in self.parts}

    def rows(self, part: str, shards: Iterable[str] | None = None) -> Any:
        """Samples of a part, polars: _COLUMNS and `why` (the first reason; null: it is served).

        Args:
            shards: only these.
        """
        import polars as pl
        import pyarrow.compute as pc
        import pyarrow.parquet as pq
        from pyarrow import ArrowException

        uri = lake_of(self.uri).samples(*part.split("/"))
        chosen = None if shards is None else pc.field("shard").isin(sorted(shards))
        try:
            with objects.open_binary(uri) as file:
                table = pq.read_table(file, columns=list(_COLUMNS), filters=chosen)
        except (ArrowException, KeyError) as error:
            raise CorruptError(f"this is not a samples.parquet ({error})", uri, "Restore it") from error
        frame: Any = pl.from_arrow(table)
        reasons = [row for name in frame["shard"].unique().sort() for row in _first_reasons(name, self.skips.get(name))]
        schema = {"shard": pl.String, "index": pl.Int32, "why": pl.String}
        return frame.join(pl.DataFrame(reasons, schema=schema, orient="row"), on=["shard", "index"], how="left")


def _first_reasons(name: str, skips: ShardSkips | None) -> Iterator[tuple[str, int, str]]:
    """Shard, index and first reason of every sample that is left out of a shard."""
    seen: set[int] = set()
    for reason in SkipReason:
        for index in skips.skip.get(reason, ()) if skips else ():
            if index not in seen:
                seen.add(index)
                yield name, index, str(reason)


def _compare(before: _Release, after: _Release, most: int) -> Diff:
    import polars as pl

    had, has = _differing(before, after)
    served, serves = had.filter(pl.col("why").is_null()), has.filter(pl.col("why").is_null())
    lost = _with_reason(served.join(serves, on="id", how="anti"), has, after, before)
    gained = _with_reason(serves.join(served, on="id", how="anti"), had, before, after)
    both = served.join(serves, on="id", suffix="_after")
    picture, words = pl.col("sha256") != pl.col("sha256_after"), pl.col("captioner") != pl.col("captioner_after")
    what = pl.when(picture).then(pl.lit("picture")).when(words).then(pl.lit("captioner")).otherwise(pl.lit("part"))
    return Diff(
        before=before.side,
        after=after.side,
        gained=_counts(gained["why"]),
        lost=_counts(lost["why"]),
        replaced=_counts(both.select(what.alias("what"))["what"]),
        new_parts=tuple(sorted(after.parts.keys() - before.parts.keys())),
        gone_parts=tuple(sorted(before.parts.keys() - after.parts.keys())),
        settings=tuple(_setting_lines(before.manifest.settings, after.manifest.settings)),
        gained_samples=_listed(gained, most, after),
        lost_samples=_listed(lost, most, before),
    )


def _differing(before: _Release, after: _Release) -> tuple[Any, Any]:
    """The samples of either release that may differ: those of its own parts, and in shared ones those whose fate changed."""
    import polars as pl

    frames: tuple[list[Any], list[Any]] = ([], [])
    shared = {part for part, digest in before.parts.items() if after.parts.get(part) == digest}
    for part in sorted(shared):
        shards = [
            name
            for name in sorted(before.skips.keys() | after.skips.keys())
            if name.startswith(f"{part}/") and before.skips.get(name) != after.skips.get(name)
        ]
        if shards:
            a, b = before.rows(part, shards), after.rows(part, shards)
            changed = a["why"].is_null() != b["why"].is_null()
            frames[0].append(a.filter(changed))
            frames[1].append(b.filter(changed))
    for release, into in ((before, frames[0]), (after, frames[1])):
        into += [release.rows(part) for part in sorted(release.parts.keys() - shared)]
    empty = pl.DataFrame(schema=dict.fromkeys((*_COLUMNS, "why"), pl.String) | {"index": pl.Int32})
    return pl.concat([empty, *frames[0]]), pl.concat([empty, *frames[1]])


def _with_reason(samples: Any, others: Any, other: _Release, own: _Release) -> Any:
    """Why the other release does not serve these samples.

    It is in `others` for a sample whose fate changed or whose part the other has alone. Whatever is left, the other may leave out
    in a part that both have and in which nothing changed.
    """
    import polars as pl

    told = samples.drop("why").join(_reasons(others), on="id", how="left")
    if told["why"].is_null().any() or (told["why"] == str(SkipReason.SUPERSEDED)).any():
        shared = sorted(own.parts.keys() & other.parts.keys())
        found = [
            _reasons(other.rows(part, shards))
            for part in shared
            if (shards := [name for name in other.skips if name.startswith(f"{part}/")])
        ]
        if found:
            every = _reasons(pl.concat([_reasons(others), *found]))
            told = told.drop("why").join(every, on="id", how="left")
    return told.with_columns(why=pl.col("why").fill_null(GONE))


def _reasons(rows: Any) -> Any:
    """`id` and `why` of what is left out, each id once. An older picture of an id says less of it than the current one."""
    import polars as pl

    left_out = rows.select("id", "why").filter(pl.col("why").is_not_null())
    older = pl.col("why") == str(SkipReason.SUPERSEDED)
    return left_out.sort("id", older, "why").unique("id", keep="first", maintain_order=True)


def _counts(column: Any) -> dict[str, int]:
    return dict(sorted(Counter(column.to_list()).items()))


def _listed(samples: Any, most: int, serves: _Release) -> tuple[Change, ...]:
    """The first ids of each reason.

    Args:
        serves: the release that serves these samples.
    """
    import polars as pl

    if not most or not samples.height:
        return ()  # polars' head(0) of a group is a row of nulls
    gone = [(shard, index) for shard, indices in serves.opted_out.items() for index in indices]
    places = pl.DataFrame(gone, schema={"shard": pl.String, "index": pl.Int32}, orient="row")
    told = samples.filter(pl.col("why") != str(SkipReason.OPTOUT)).join(places, on=["shard", "index"], how="anti")
    few = told.sort("why", "id").group_by("why", maintain_order=True).head(most).select("id", "why")
    return tuple(Change(id=each["id"], why=each["why"]) for each in few.iter_rows(named=True))


def _setting_lines(before: Mapping[str, Any], after: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for key in sorted(before.keys() | after.keys()):
        a, b, name = before.get(key), after.get(key), f"{path}{key}"
        if a == b:
            continue
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            yield from _setting_lines(a, b, f"{name}.")
        else:
            yield f"{name}: {a} -> {b}"
