"""Opt-outs as whoever reads parts sees them: numbered snapshots, each of everything that is opted out so far.

    optouts/snapshots/<position>.json.gz       create-only; position counts what the ledger has resolved

A release skips what was opted out up to its own position. Whoever starts later reads one snapshot, the newest, and not the
ledger. Imports stay light: training runs read these files.

A pulled copy has snapshots too, and a note of when they were last compared with the lake's (`OptoutCheck`): what a copy does
not know cannot be seen in it, so its age is what tells whether it may still be trained on.
"""

from __future__ import annotations

import operator
import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from pydantic import AwareDatetime, Field, field_validator

from smalti.errors import CorruptError, InputError, MissingObject
from smalti.lake import Lake
from smalti.objects import ATTEMPT_PREFIX, exists, join_uri, list_names, local_path, read_bytes
from smalti.release.manifest import beside
from smalti.release.skips import Model, canonical_json, compress, decompress, parse

_NAME = re.compile(r"(\d{8})\.json\.gz")

NOTES = ".smalti"
"""Below a pulled copy: what pull notes for itself. A lake has no such directory."""

_CLOCKS = timedelta(hours=1)
"""By how much a check may lie in the future: machines' clocks differ."""

_NEVER = datetime(1970, 1, 1, tzinfo=UTC)


class OptoutSnapshot(Model):
    """Samples of any part that must not be served.

    Who starts training, and who writes a tree, applies the places alone: shards do not say ids without being read. So parts that were
    committed meanwhile must have their places in a following one: `smalti.optouts.ledger.settle` lists them and names them. Whoever
    brings a request in force calls it afterwards, and so does every build of a release, before it fixes its position.
    """

    version: Literal[1] = 1
    position: int = Field(ge=0)
    shards: dict[str, tuple[int, ...]] = Field(description="basename relative to parts/ -> indices, ascending")
    ids: tuple[str, ...] = Field(
        (), description="samples by id: parts that are written later, of the same rows or of new ones, hold them too"
    )

    @field_validator("shards")
    @classmethod
    def _ascending(cls, shards: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        for basename, indices in shards.items():
            if not indices or indices[0] < 0 or any(map(operator.ge, indices, indices[1:])):
                raise ValueError(f"the indices of {basename} are not ascending, or there are none")
        return shards

    def encode(self) -> bytes:
        """The object that is stored."""
        return compress(canonical_json(self.model_dump(mode="json")))


class OptoutCheck(Model):
    """When the snapshots of a pulled copy were last compared with the lake's. One small file, overwritten by each check."""

    position: int = Field(ge=0, description="the newest snapshot that there was")
    checked: AwareDatetime = Field(description="UTC; of the lake itself, however many copies lie between")
    left_behind: tuple[str, ...] = Field(
        (),
        description="versions here, `<dataset>/<version>`, of which parts are in the lake no more: no later snapshot names their samples",
    )

    def is_older(self, age: timedelta) -> bool:
        """Whether it was made longer ago. A clock that was far off would let a copy never get old, so the future is no check."""
        found = datetime.now(UTC) - self.checked
        return found > age or found < -_CLOCKS


def lake_of(manifest_uri: str) -> Lake:
    """The lake, or the pulled copy, that a manifest stands in; `check_of` tells which."""
    return Lake(beside(manifest_uri, "../../.."))


def is_in_lake(manifest_uri: str) -> bool:
    """Whether a manifest stands in a lake: there alone its claim is beside it."""
    return exists(beside(manifest_uri, "claim.json"))


def check_of(manifest_uri: str) -> OptoutCheck | None:
    """What is known of the age of the opt-outs beside a manifest; None: it stands in a lake, which knows all there is.

    Raises:
        InputError: it stands in a pulled copy that lost its notes: nothing tells how old its opt-outs are, or that it has any.
        CorruptError: the note is damaged.
    """
    check = read_check(lake_of(manifest_uri))
    if check is None and not is_in_lake(manifest_uri):
        raise InputError(
            f"there is neither a claim.json, as in a lake, nor {NOTES}, as in a pulled copy: opt-outs would be missed",
            manifest_uri,
            "A pulled copy: run `smalti pull MANIFEST DIR` from the lake again; a lake: restore claim.json",
        )
    return check


def read_check(lake: Lake) -> OptoutCheck | None:
    """What a pulled copy knows of its opt-outs' age; None for a lake, which knows all there is.

    A copy that was made before there were such notes was last checked in 1970.
    """
    root = local_path(lake.root)
    if root is None or not (root / NOTES).is_dir():
        return None
    try:
        uri = join_uri(lake.root, NOTES, "optouts.json")
        return parse(OptoutCheck, read_bytes(uri), uri)
    except MissingObject:
        return OptoutCheck(position=0, checked=_NEVER)


def write_check(folder: Path, check: OptoutCheck) -> None:
    """Note a check in a pulled copy; a reader sees the old note or the new one. It says that all is known that came up to then: whatever
    else a check is to bring must be here before."""
    path = folder / NOTES / "optouts.json"
    attempt = path.with_name(f"{ATTEMPT_PREFIX}{path.name}-{os.getpid()}")
    attempt.write_text(check.model_dump_json(exclude_defaults=True) + "\n")
    attempt.replace(path)


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
    try:
        data = read_bytes(uri)
    except MissingObject as error:
        raise MissingObject(
            f"the opt-outs of position {position} are not here",
            uri,
            f"A pulled copy: run `smalti pull MANIFEST DIR --refresh-optouts --positions {position}` on every node",
        ) from error
    return decode_snapshot(position, data, uri)


def decode_snapshot(position: int, data: bytes, where: str) -> OptoutSnapshot:
    """A stored snapshot. Raises CorruptError if it is damaged or that of another position."""
    found = parse(OptoutSnapshot, decompress(data, where), where)
    if found.position != position:
        raise CorruptError(f"it says that it is the snapshot of position {found.position}", where, "Restore it")
    return found


def check_not_behind(position: int, release: int, where: str) -> None:
    """Raises InputError if the snapshots end before what a release has applied already: they are another lake's, or old."""
    if position < release:
        raise InputError(
            f"opt-outs are known up to position {position}, the release has them up to {release}",
            where,
            "Restore optouts/snapshots; a pulled copy: run `smalti pull --refresh-optouts`",
        )
