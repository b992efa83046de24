"""Removes parts that never counted and hold what was erased: a writer was killed, or maintenance was overtaken by another step.

No release uses one and no erasure looks into it, but its shards have the pictures. It goes as garbage does (`smalti.maintenance.garbage`),
at once instead of two graces later: out of sight first, so that whoever writes it after all cannot commit it.
"""

from __future__ import annotations

from collections.abc import Iterator

from smalti import objects
from smalti.errors import MissingObject
from smalti.lake import Lake
from smalti.maintenance.garbage import sweep, write_mark
from smalti.maintenance.marks import Doomed, Kind, OpenCollection, read_mark
from smalti.optouts.ledger import all_parts
from smalti.optouts.needles import Seeker
from smalti.optouts.scan import look_at
from smalti.shards.part import part_names, read_part
from smalti.shards.replacements import Step, append_step, read_log


def remove_unfinished(lake: Lake, seeker: Seeker, now: float, grace: float) -> tuple[int, list[str]]:
    """Remove them.

    Args:
        now: Unix time.
        grace: seconds; one in which somebody has written since is left to its writer.
    Returns: objects that went, and the folders that they were in.
    """
    doomed = list(_doomed(lake, seeker, now, grace))
    if not doomed:
        return 0, []
    name = write_mark(lake, tuple(doomed), now).split("/")[-2]
    items = sweep(lake, OpenCollection(name, frozenset()), read_mark(lake, name), now, grace)
    return sum(len(each.deletes) for each in items), [each.uri for each in items if each.deletes]


def _doomed(lake: Lake, seeker: Seeker, now: float, grace: float) -> Iterator[Doomed]:
    counted = all_parts(lake)
    for source in objects.list_names(lake.parts_root()):
        for name in part_names(lake, source):
            if f"{source}/{name}" in counted:
                continue
            infos = [
                *objects.list_objects(lake.part(source, name)),
                *objects.list_objects(lake.part_progress(source, name)),
            ]
            if not infos or now - max(info.written for info in infos) < grace:
                continue
            if any(look_at(seeker, info.uri) for info in infos) and (kind := _hidden(lake, source, name)):
                size = sum(info.size for info in infos)
                why = "it never counted, and holds what was erased"
                yield Doomed(kind=kind, uri=lake.part(source, name), why=why, objects=len(infos), bytes=size)


def _hidden(lake: Lake, source: str, name: str) -> Kind | None:
    """What to collect it as, once it is out of sight; None: a step was faster, and it counts."""
    if name in read_log(lake, source).hidden:
        return "part"
    try:
        part = read_part(lake, source, name)
    except MissingObject:
        return "unfinished part"  # the sweep sees to it that it is never committed
    done = append_step(lake, source, Step(why="abandoned", replaces=(name,), origins=part.sharded))
    return "part" if done else None
