"""Opt-outs as whoever reads parts sees them: numbered snapshots, each of everything that is opted out so far.

    optouts/snapshots/<position>.json.gz       create-only; position counts what the ledger has resolved

A release skips what was opted out up to its own position. Whoever starts later reads one snapshot, the newest, and not the
ledger. Imports stay light: training runs read these files.
"""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, field_validator

from smalti.errors import CorruptError, InputError
from smalti.lake import Lake
from smalti.objects import list_names, read_bytes
from smalti.release.skips import Model, canonical_json, compress, decompress, parse

_NAME = re.compile(r"(\d{8})\.json\.gz")


class OptoutSnapshot(Model):
    """Samples of any part that must not be served."""

    version: Literal[1] = 1
    position: int = Field(ge=0)
    shards: dict[str, tuple[int, ...]] = Field(description="basename relative to parts/ -> indices, ascending")

    @field_validator("shards")
    @classmethod
    def _ascending(cls, shards: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        for basename, indices in shards.items():
            if not indices or indices[0] < 0 or list(indices) != sorted(set(indices)):
                raise ValueError(f"the indices of {basename} are not ascending, or there are none")
        return shards

    def encode(self) -> bytes:
        """The object that is stored."""
        return compress(canonical_json(self.model_dump(mode="json")))


def newest_position(lake: Lake) -> int:
    """The position of the newest snapshot; 0 if nothing was ever opted out."""
    return max((int(m[1]) for name in list_names(lake.optout_snapshots()) if (m := _NAME.fullmatch(name))), default=0)


def read_snapshot(lake: Lake, position: int) -> OptoutSnapshot:
    """What is opted out up to a position; 0 is before anything was.

    Raises:
        MissingObject: there is no snapshot of that position.
        CorruptError: it is damaged.
    """
    if position == 0:
        return OptoutSnapshot(position=0, shards={})
    uri = lake.optout_snapshot(position)
    found = parse(OptoutSnapshot, decompress(read_bytes(uri), uri), uri)
    if found.position != position:
        raise CorruptError(f"it says that it is the snapshot of position {found.position}", uri, "Restore it")
    return found


def check_not_behind(position: int, release: int, where: str) -> None:
    """Raises InputError if the snapshots end before what a release has applied already: they are another lake's, or old."""
    if position < release:
        raise InputError(
            f"opt-outs are known up to position {position}, the release has them up to {release}",
            where,
            "Restore optouts/snapshots; a pulled copy: run `smalti pull --refresh-optouts`",
        )
