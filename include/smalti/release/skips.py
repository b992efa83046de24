"""The skip file of a stream, and how the files of a release are spelled: canonical JSON, gzip, sha256."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from smalti.errors import CorruptError
from smalti.reasons import DEDUP_REASONS, SkipReason, set_name

_PRECEDENCE = {reason: rank for rank, reason in enumerate(SkipReason)}


class Model(BaseModel):
    """Immutable, and a field nobody knows is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


M = TypeVar("M", bound=Model)
Key = TypeVar("Key", bound=str)


class ShardSkips(Model):
    """The samples of one shard to leave out, by reason. A sample may stand under several."""

    samples: int = Field(gt=0, description="in the shard")
    skip: dict[SkipReason, tuple[int, ...]]
    decided: dict[str, tuple[int, ...]] = Field(
        {},
        description="reason set, as `nsfw+text` -> what stands in place of `duplicate` and `quarantine` if it is lifted",
    )

    @field_validator("skip", "decided")
    @classmethod
    def _ascending(cls, skip: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        for reason, indices in skip.items():
            if not indices or list(indices) != sorted(set(indices)):
                raise ValueError(f"the indices under {reason} are not ascending, or there are none")
        return skip

    @model_validator(mode="after")
    def _inside(self) -> ShardSkips:
        if not self.skip and not self.decided:
            raise ValueError("nothing is left out")
        for reason, indices in [*self.skip.items(), *self.decided.items()]:
            if indices[0] < 0 or indices[-1] >= self.samples:
                raise ValueError(f"an index under {reason} is outside 0 to {self.samples - 1}")
        return self

    def left_out(self, lifted: Collection[SkipReason] = ()) -> set[int]:
        """Indices that are skipped if these reasons are lifted; the release must declare the set."""
        gone = {*lifted, *DEDUP_REASONS} if lifted else frozenset()
        found = {index for reason, indices in self.skip.items() if reason not in gone for index in indices}
        return found | set(self.decided.get(set_name(lifted), ()) if lifted else ())

    def kept(self, lifted: Collection[SkipReason] = ()) -> list[int]:
        """Indices that are served, ascending."""
        left_out = self.left_out(lifted)
        return [index for index in range(self.samples) if index not in left_out]


class SkipFile(Model):
    """What one stream leaves out. Shards (basename relative to parts/) that lose nothing are not in it."""

    version: Literal[1] = 1
    shards: dict[str, ShardSkips]

    @classmethod
    def of(
        cls,
        shards: Mapping[str, tuple[int, Mapping[SkipReason, Iterable[int]]]],
        decided: Mapping[str, Mapping[str, Iterable[int]]] | None = None,
    ) -> SkipFile:
        """From indices in any order; what is empty is left out.

        Args:
            shards: basename -> (samples in the shard, reason -> indices).
            decided: basename -> reason set -> indices.
        """
        entries = {}
        for basename, (samples, reasons) in shards.items():
            skip, others = _ordered(reasons), _ordered((decided or {}).get(basename, {}))
            if skip or others:
                entries[basename] = ShardSkips(samples=samples, skip=skip, decided=others)
        return cls(shards=entries)

    def counts(self) -> dict[SkipReason, int]:
        """Reason -> samples, each counted once, under its first reason in the order of SkipReason."""
        counts: Counter[SkipReason] = Counter()
        for shard in self.shards.values():
            seen: set[int] = set()
            for reason in sorted(shard.skip, key=_PRECEDENCE.__getitem__):
                new = set(shard.skip[reason]) - seen
                counts[reason] += len(new)
                seen |= new
        return nonzero(counts)

    def encode(self) -> bytes:
        """Canonical JSON: the same skips are the same bytes."""
        said = self.model_dump(mode="json")
        for shard in said["shards"].values():
            if not shard["decided"]:
                del shard["decided"]  # as it was before there were reason sets: the same skips keep their name
        return canonical_json(said)

    def digest(self) -> str:
        """What the file is named after."""
        return sha256(self.encode())

    def encode_gzip(self) -> bytes:
        """The object that is stored."""
        return compress(self.encode())

    @classmethod
    def decode(cls, data: bytes, where: str, digest: str | None = None) -> SkipFile:
        """A stored object.

        Args:
            digest: what it must be, if the reader knows.
        Raises:
            CorruptError: it is damaged or not what the digest promises.
        """
        content = decompress(data, where, digest)
        return parse(cls, content, where)


def _ordered(indices: Mapping[Key, Iterable[int]]) -> dict[Key, tuple[int, ...]]:
    """Ascending, each once, and only what there is."""
    found = {key: tuple(sorted(set(each))) for key, each in indices.items()}
    return {key: each for key, each in found.items() if each}


def canonical_json(value: Any) -> bytes:
    """One spelling: sorted keys, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def compress(data: bytes) -> bytes:
    """gzip without a time or a name in it."""
    return gzip.compress(data, compresslevel=6, mtime=0)


def decompress(data: bytes, where: str, digest: str | None = None) -> bytes:
    """Undo `compress`. Raises CorruptError for damaged bytes or another digest (of the uncompressed bytes)."""
    try:
        content = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(where, f"the object is damaged ({error})") from error
    if digest is not None and sha256(content) != digest:
        raise damaged(where, f"the content has the sha256 {sha256(content)}, not {digest}")
    return content


def parse(model: type[M], data: bytes, where: str) -> M:
    """A model from JSON. Raises CorruptError, with the first field that is wrong."""
    try:
        return model.model_validate_json(data, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(step) for step in first["loc"]) or "the file"
        raise damaged(where, f"{field}: {first['msg'].removeprefix('Value error, ')}") from error


def damaged(where: str, what: str) -> CorruptError:
    """The error for a file of a release that is not what it must be."""
    return CorruptError(what, where, "Restore the object, or use another version; a pulled copy: pull it again")


def nonzero(counts: Mapping[SkipReason, int]) -> dict[SkipReason, int]:
    """Only the reasons that occur."""
    return {reason: n for reason, n in counts.items() if n}
