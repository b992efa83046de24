"""Matched rows that nothing names: of a step whose writer was killed or overtaken, or of a preview that is gone. They hold ids and thumbnails.

A step is created after its rows, so rows may be those of a step that is about to be. What makes that safe is their age, and that whoever finds the
rows that they are about to name already there, and old, writes them anew (`smalti.optouts.ledger_rows.write_matched`): then they are not
those that were looked at.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from pydantic import BaseModel

from smalti import objects
from smalti.errors import MissingObject
from smalti.lake import Lake
from smalti.objects import ObjectInfo
from smalti.optouts.heads import read_some
from smalti.optouts.ledger_rows import OLD
from smalti.optouts.request import READERS
from smalti.optouts.status import PREVIEW
from smalti.release.optouts import newest_position


class _Step(BaseModel):
    """What is read of a step, or of a block of steps."""

    matched: str | tuple[str, ...] | None = None

    def digests(self) -> tuple[str, ...]:
        return (self.matched,) if isinstance(self.matched, str) else self.matched or ()


class _Reached(BaseModel):
    rows: str | None = None


class _Preview(BaseModel):
    reached: _Reached | None = None

    def digests(self) -> tuple[str, ...]:
        return () if self.reached is None or self.reached.rows is None else (self.reached.rows,)


def unnamed_rows(lake: Lake, now: float, grace: float) -> list[ObjectInfo]:
    """Objects to delete, each if it still is the one that was looked at; sorted.

    Args:
        now: seconds since 1970. grace: seconds for which nothing was written to what goes; at least two of OLD.
    Raises:
        MissingObject, CorruptError: a step or a preview cannot be read, so that nobody knows what it names.
    """
    listed = objects.list_objects(lake.optout_resolutions())
    age = max(grace, 2 * OLD)
    found = {each.uri: each for each in listed if each.uri.endswith(".parquet") and now - each.written >= age}
    if not found:
        return []
    steps = [each.uri for each in objects.list_objects(lake.optout_resolutions()) if each.uri.endswith(".json.gz")]
    last = max(newest_position(lake), sum("/block-" not in uri for uri in steps))
    for gone in {lake.optout_resolution(position + 1) for position in range(last)}.difference(steps):
        raise MissingObject("a step of the ledger of opt-outs is gone", gone, "Restore it")
    previews = [
        each.uri
        for each in objects.list_objects(lake.optout_requests())
        if PREVIEW.fullmatch(each.uri.rpartition("/")[2])
    ]

    def named_by(uri: str) -> tuple[str, ...]:
        try:
            return read_some(_Preview, uri).digests()
        except MissingObject:
            return ()  # a preview has its time

    with ThreadPoolExecutor(READERS) as pool:
        named = [*pool.map(lambda uri: read_some(_Step, uri).digests(), steps), *pool.map(named_by, previews)]
    for digest in (digest for each in named for digest in each):
        found.pop(lake.optout_matched(digest), None)
    return [found[uri] for uri in sorted(found)]
