"""What the ledger of opt-outs consists of: steps, numbered without gaps, and what they come to.

    optouts/resolved/00000001.json.gz, 00000002.json.gz, ...    Resolution: one step each, create-only
    optouts/resolved/block-00000256.json.gz                     Block: steps 1 to 256 as one, and so on
    optouts/resolved/matched-<sha256>.parquet                   the samples that a step, or a block, has matched
    optouts/snapshots/00000001.json.gz, ...                     OptoutSnapshot: what all steps up to here come to

Snapshots and blocks say nothing that the steps do not: whoever finds one missing writes it. No request is sent here.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import AwareDatetime, Field, field_validator

from smalti.release.optouts import OptoutSnapshot
from smalti.release.skips import Model, canonical_json, compress

BLOCK = 256
"""Steps in a block: ten thousand steps are read with at most 39 + 256 requests."""

Places = dict[str, dict[str, tuple[int, ...]]]
"""request -> shard (basename relative to parts/) -> indices, ascending"""


def ascending(places: Places) -> Places:
    """Raises ValueError unless all indices of a step's places are ascending."""
    for shards in places.values():
        for basename, indices in shards.items():
            if not indices or indices[0] < 0 or any(map(operator.ge, indices, indices[1:])):
                raise ValueError(f"the indices of {basename} are not ascending, or there are none")
    return places


class Resolution(Model):
    """One step of the ledger.

    A step is about new requests, over all parts that there are; about requests that are in force, over parts that are new; or about
    requests that are taken back. It may be about all three; or about none, if it only says which versions of tables hold nothing new.
    """

    version: Literal[1] = 1
    position: int = Field(ge=1)
    requests: tuple[str, ...] = Field((), description="in force from here on, sorted")
    withdrawn: tuple[str, ...] = Field((), description="requests that are taken back, in force before or not; sorted")
    withdrawals: tuple[str, ...] = Field((), description="requests that ask for that, sorted")
    parts: tuple[str, ...] = Field((), description="<source>/<part>: all that is in force was compared with these, too")
    matched: str | None = Field(
        None, description="sha256 of the parquet with the matched samples; empty: there are none"
    )
    places: Places = Field({}, description="request -> shard -> indices")
    ids: dict[str, tuple[str, ...]] = Field({}, description="request -> sample ids")
    unmatched: dict[str, tuple[int, ...]] = Field(
        {}, description="new request -> places of the keys that matched nothing"
    )
    tables: dict[str, int] = Field(
        {}, description="source -> version of its table whose rows all that is in force was compared with"
    )
    resolved: AwareDatetime

    @field_validator("places")
    @classmethod
    def _ascending(cls, places: Places) -> Places:
        return ascending(places)

    @property
    def is_idle(self) -> bool:
        """Whether all it says is what was looked at."""
        return not (self.requests or self.withdrawals or self.parts or self.matched)

    def encode(self) -> bytes:
        """The object that is stored."""
        return compress(canonical_json(self.model_dump(mode="json")))

    def as_block(self) -> Block:
        """The same, as steps that are read together are held."""
        at = self.position
        return Block(
            first=at,
            position=at,
            requests=dict.fromkeys(self.requests, at),
            withdrawn=dict.fromkeys(self.withdrawn, at),
            withdrawals=dict.fromkeys(self.withdrawals, at),
            parts=self.parts,
            matched=() if self.matched is None else (self.matched,),
            places=self.places,
            ids=self.ids,
            unmatched=self.unmatched,
            tables=self.tables,
        )


class Block(Model):
    """Steps `first` to `position` as one; of requests that are taken back in it, without what they matched."""

    version: Literal[1] = 1
    first: int = Field(ge=1)
    position: int = Field(ge=1)
    requests: dict[str, int] = Field(description="request -> step from which it was in force")
    withdrawn: dict[str, int]
    withdrawals: dict[str, int]
    parts: tuple[str, ...]
    matched: tuple[str, ...]
    places: Places
    ids: dict[str, tuple[str, ...]]
    unmatched: dict[str, tuple[int, ...]]
    tables: dict[str, int] = Field({})

    @field_validator("places")
    @classmethod
    def _ascending(cls, places: Places) -> Places:
        return ascending(places)

    def encode(self) -> bytes:
        """The object that is stored."""
        return compress(canonical_json(self.model_dump(mode="json")))


@dataclass
class Ledger:
    """What steps come to. It grows with each that is added.

    Attributes:
        position: the last step; 0: nothing was ever resolved.
        resolved: request -> the step that brought it in force, whether or not it was taken back since.
        withdrawn: request -> the step that took it back; one that was never in force never will be.
        withdrawals: request that asked for that -> the step that did it.
        parts: `<source>/<part>` with which everything in force was compared.
        matched: digests of the parquet files with the matched samples.
        places, ids, unmatched: of requests in force.
        tables: source -> version of its table with which everything in force was compared.
    """

    position: int = 0
    resolved: dict[str, int] = field(default_factory=dict)
    withdrawn: dict[str, int] = field(default_factory=dict)
    withdrawals: dict[str, int] = field(default_factory=dict)
    parts: set[str] = field(default_factory=set)
    matched: list[str] = field(default_factory=list)
    places: dict[str, dict[str, set[int]]] = field(default_factory=dict)
    ids: dict[str, set[str]] = field(default_factory=dict)
    unmatched: dict[str, tuple[int, ...]] = field(default_factory=dict)
    tables: dict[str, int] = field(default_factory=dict)

    @property
    def in_force(self) -> list[str]:
        """Requests that apply, sorted."""
        return sorted(self.resolved.keys() - self.withdrawn.keys())

    def add(self, block: Block) -> None:
        """The next steps."""
        self.position = block.position
        self.resolved |= block.requests
        self.withdrawn |= block.withdrawn
        self.withdrawals |= block.withdrawals
        self.parts.update(block.parts)
        self.matched += block.matched
        self.unmatched |= block.unmatched
        self.tables |= block.tables
        for request, shards in block.places.items():
            mine = self.places.setdefault(request, {})
            for shard, indices in shards.items():
                mine.setdefault(shard, set()).update(indices)
        for request, ids in block.ids.items():
            self.ids.setdefault(request, set()).update(ids)
        touched = {*block.withdrawn, *block.places, *block.ids, *block.unmatched}
        for request in self.withdrawn.keys() & touched:
            self.places.pop(request, None)
            self.ids.pop(request, None)
            self.unmatched.pop(request, None)

    def snapshot(self) -> OptoutSnapshot:
        """What no reader may be served: the union over what is in force."""
        shards: dict[str, set[int]] = {}
        for places in self.places.values():
            for shard, indices in places.items():
                shards.setdefault(shard, set()).update(indices)
        return OptoutSnapshot(
            position=self.position,
            shards={shard: tuple(sorted(indices)) for shard, indices in shards.items()},
            ids=tuple(sorted(set().union(*self.ids.values()))),
        )

    def as_block(self, first: int, matched: str | None) -> Block:
        """What steps `first` to `position` come to, if these alone were added.

        Args:
            matched: digest of the samples that all of them matched, in one file; empty: there are none.
        """
        return Block(
            first=first,
            position=self.position,
            requests=self.resolved,
            withdrawn=self.withdrawn,
            withdrawals=self.withdrawals,
            parts=tuple(sorted(self.parts)),
            matched=() if matched is None else (matched,),
            places={request: sorted_places(shards) for request, shards in self.places.items()},
            ids={request: tuple(sorted(ids)) for request, ids in self.ids.items()},
            unmatched=self.unmatched,
            tables=self.tables,
        )


def sorted_places(shards: Mapping[str, Iterable[int]]) -> dict[str, tuple[int, ...]]:
    """One spelling of a request's places."""
    return {shard: tuple(sorted(indices)) for shard, indices in shards.items()}
