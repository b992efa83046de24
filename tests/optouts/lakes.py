"""Lakes of samples without pictures, requests about them, and a small matcher that compares every sample with every key."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from smalti import objects
from smalti.accounting import Accounted
from smalti.config import Encoding
from smalti.lake import Lake
from smalti.optouts.keys import Key, KeyKind, key_of
from smalti.optouts.matched import MATCHED, ORDER
from smalti.optouts.request import Action, Answer, Request, ordered, request_id, submit, write_answer
from smalti.optouts.resolution import Ledger, Resolution
from smalti.shards.part import Part
from smalti.shards.samples import SCHEMA, encode_samples

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
SHARD = 4
"""Samples in a shard."""


@dataclass(frozen=True)
class Sample:
    """`key` of its source; `picture`: a number below 256. Numbers one bit apart are copies of each other."""

    key: str
    picture: int
    owner: str = "nobody"
    version: int = 0  # another file of the same picture

    @property
    def sha256(self) -> str:
        return hashlib.sha256(f"{self.picture} {self.version}".encode()).hexdigest()


def add_part(lake: Lake, source: str, number: int, samples: Sequence[Sample]) -> str:
    """A committed part of these samples, without shards. Returns `<source>/<part>`."""
    name = f"{number:05d}-{number:012x}"
    rows = [
        {
            "id": f"{source}/{each.key}", "source": source, "batch": f"b{number}", "sha256": each.sha256, "phash": each.picture,
            "colour": None, "flat": False, "unstable": 0, "width": 520, "height": 520, "tier": 512, "ar": "1.000",
            "shard": f"{source}/{name}/512/1.000/shard.{place // SHARD:05d}.mds", "index": place % SHARD, "label": "visual",
            "caption_ok": True, "captioner": "rules", "classifier": "rules-minilm", "owner": each.owner,
            "url": f"https://example.org/{each.key}", "url_host": "example.org", "licence": "CC0-1.0", "bytes": 1000,
        }
        for place, each in enumerate(samples)
    ]  # fmt: skip
    objects.create_same(lake.samples(source, name), encode_samples(pa.Table.from_pylist(rows, SCHEMA)))
    part = Part(
        source=source, name=name, batch=f"b{number}", sequence=number, delivery=number, digest=f"{number:064x}", encoding=Encoding(),
        columns={}, encoders={}, engines=(), buckets=(), samples=len(rows), samples_sha256="0" * 64,
        accounting=Accounted(stage="shard", rows_in=len(rows), rows_out=len(rows)),
    )  # fmt: skip
    objects.create_bytes(lake.part_commit(source, name), part.encode())
    return f"{source}/{name}"


def ask(
    lake: Lake,
    *keys: tuple[str, str],
    action: Action = Action.EXCLUDE,
    withdraws: str | None = None,
    submission: str = "test",
    apply: bool | None = True,
) -> str:
    """A request of the ledger, answered. Returns its id."""
    found: tuple[Key, ...] = tuple(ordered(key_of(*key) for key in keys))
    name = request_id(action, "ref-1", found, withdraws, submission, None)
    submit(
        lake,
        Request(
            id=name,
            action=action,
            reference="ref-1",
            submission=submission,
            submitted=NOW,
            keys=found,
            withdraws=withdraws,
        ),
    )
    if apply is not None:
        write_answer(lake, Answer(request=name, apply=apply, by="limit", answered=NOW, preview_sha256=""))
    return name


def take_back(lake: Lake, request: str, submission: str = "test") -> str:
    return ask(lake, action=Action.WITHDRAW, withdraws=request, submission=submission)


def ledger_of(steps: Iterable[Resolution]) -> Ledger:
    """What steps, in their order, come to, without blocks."""
    found = Ledger()
    for step in steps:
        found.add(step.as_block())
    return found


def rows_of(lake: Lake, part: Part) -> list[dict[str, Any]]:
    """samples.parquet."""
    rows = pq.read_table(io.BytesIO(objects.read_bytes(lake.samples(part.source, part.name)))).to_pylist()
    return [{name: row.get(name) for name in MATCHED.names} | row for row in rows]


def is_named(row: Mapping[str, Any], key: Key) -> bool:
    column = {KeyKind.ID: "id", KeyKind.OWNER: "owner", KeyKind.SHA256: "sha256", KeyKind.URL: "url"}[key.kind]
    return bool(row[column] == key.value)


def is_copy(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    if one["sha256"] == other["sha256"]:
        return True
    return None not in (one["phash"], other["phash"]) and (one["phash"] ^ other["phash"]).bit_count() <= 1


@dataclass
class Looked:
    """A matcher that notes what it was asked to compare."""

    calls: list[tuple[tuple[str, ...], tuple[str, ...]]] = field(default_factory=list)

    def __call__(
        self, lake: Lake, parts: Sequence[Part], requests: Sequence[Request], known: pa.Table | None = None
    ) -> Matched:
        self.calls.append((
            tuple(f"{each.source}/{each.name}" for each in parts),
            tuple(each.id for each in requests),
        ))
        return match(lake, parts, requests, known)


@dataclass(frozen=True)
class Matched:
    rows: pa.Table
    unmatched: dict[str, tuple[int, ...]]


def match(lake: Lake, parts: Sequence[Part], requests: Sequence[Request], known: pa.Table | None = None) -> Matched:
    """What keys name; copies of that, and copies of copies, those that are known among them; and what has the id of any of these."""
    rows = [row | {"part": f"{part.source}/{part.name}"} for part in parts for row in rows_of(lake, part)]
    told = [] if known is None else known.to_pylist()
    found: list[dict[str, Any]] = []
    unmatched: dict[str, tuple[int, ...]] = {}
    for request in requests:
        mine = [row for row in told if row["request"] == request.id]
        everything = rows + mine
        named = {place: _key_of(row, request) for place, row in enumerate(rows)}
        reached = {place: key for place, key in named.items() if key is not None}
        reached |= {len(rows) + n: row["key"] for n, row in enumerate(mine) if row["how"] == "key"}
        unmatched[request.id] = tuple(sorted({*range(len(request.keys))} - {*reached.values()}))
        edge = list(reached)
        while edge:
            origin = edge.pop()
            for place, row in enumerate(everything):
                if place not in reached and is_copy(everything[origin], row):
                    reached[place] = reached[origin]
                    edge.append(place)
        ids = {everything[place]["id"]: key for place, key in reached.items()}
        ids |= {row["id"]: row["key"] for row in mine}
        for place, row in enumerate(rows):
            if place in reached or row["id"] in ids:
                how = "copy" if named[place] is None else "key"
                found.append(row | {"request": request.id, "key": reached.get(place, ids[row["id"]]), "how": how})
    table = pa.Table.from_pylist([{name: row[name] for name in MATCHED.names} for row in found], MATCHED)
    return Matched(table.sort_by([(name, "ascending") for name in ORDER]), unmatched)


def _key_of(row: Mapping[str, Any], request: Request) -> int | None:
    return next((number for number, key in enumerate(request.keys) if is_named(row, key)), None)


def places_of(
    lake: Lake, parts: Sequence[Part], requests: Sequence[Request]
) -> tuple[dict[str, tuple[int, ...]], tuple[str, ...]]:
    """Shard -> indices, and ids, that requests must reach, looked for in everything at once."""
    rows = [row for part in parts for row in rows_of(lake, part)]
    ids: set[str] = set()
    for request in requests:
        reached = {place for place, row in enumerate(rows) if any(is_named(row, key) for key in request.keys)}
        edge = list(reached)
        while edge:
            origin = rows[edge.pop()]
            new = {place for place, row in enumerate(rows) if place not in reached and is_copy(origin, row)}
            reached |= new
            edge += new
        ids |= {rows[place]["id"] for place in reached}
    shards: dict[str, list[int]] = {}
    for row in rows:
        if row["id"] in ids:
            shards.setdefault(row["shard"], []).append(row["index"])
    return {shard: tuple(sorted(indices)) for shard, indices in shards.items()}, tuple(sorted(ids))
